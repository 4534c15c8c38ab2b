/* directions.c: see directions.h. */
#include "unit_test.h"

#include <string.h>

#include "directions.h"

enum { MOST = 40000 }; /* elements of an array */

static const ng_dtype types[] = {NG_F32, NG_BF16, NG_F16, NG_F64};

static char arena[64 << 20];
static size_t used;

void *arena_alloc(size_t n, size_t size) {
  void *x = arena + used;
  used += (n * size + 63) / 64 * 64;
  assert_true(used <= sizeof arena);
  return memset(x, 0, n * size);
}

void arena_reset(void) { used = 0; }

static float *draw_floats(rng *r, int64_t n) {
  float *x = arena_alloc((size_t)n, sizeof *x);
  for (int64_t i = 0; i < n; i++) {
    x[i] = (float)(rng_real(r) * 2.0 - 1.0);
  }
  return x;
}

void set_layout(ng_place *v, ng_dtype t, int64_t cols, bool last) {
  *v = (ng_place){.dtype = t, .has_dense_rows = true, .axes = 1, .row_stride = cols};
  v->extent[0] = cols, v->stride[0] = 1;
  if (!last || cols % 9 != 0) return;
  v->has_dense_rows = false, v->axes = 2;
  v->extent[0] = cols / 9, v->extent[1] = 9, v->stride[0] = 1, v->stride[1] = cols / 9;
}

static char *draw_array(rng *r, ng_dtype t, int64_t n) {
  char *a = arena_alloc((size_t)n, (size_t)ng_dtype_size(t));
  float *x = draw_floats(r, n);
  ng_from_f32(a, t, x, n);
  for (int64_t i = 0; i < n && t == NG_F64; i++) {
    ((double *)(void *)a)[i] += rng_real(r) * 0x1p-24;
  }
  return a;
}

static void draw_arrays(rng *r, item *a, int i, bool doubles) {
  const int64_t cols[] = {1, 9, 144, 512, 577, 513, 2048, 17001};
  const bool is_flat = i % 5 == 0; /* in such rows a device reads 4 elements at once */
  a->cols = is_flat ? 512 : cols[rng_below(r, 8)];
  a->rows = rng_between(r, 1, MOST / a->cols < 70 ? MOST / a->cols : 70);
  const int64_t n = a->rows * a->cols;
  const int32_t of = doubles ? 4 : 3;
  set_layout(&a->grad, types[is_flat ? 0 : rng_below(r, of)], a->cols, i % 2 == 1);
  set_layout(&a->weight, types[is_flat ? 0 : rng_below(r, of)], a->cols, rng_below(r, 2) == 1);
  a->moment = a->weight.dtype == NG_F64 ? NG_F64 : NG_F32;
  a->gradient = draw_array(r, a->grad.dtype, n), a->weights = draw_array(r, a->weight.dtype, n);
  a->g = arena_alloc((size_t)n, 8), a->w = arena_alloc((size_t)n, 8);
  a->grad.data = a->g, a->weight.data = a->w;
  a->m0 = draw_array(r, a->moment, n), a->v0 = draw_array(r, a->moment, n);
  a->u = draw_floats(r, n), a->x = draw_floats(r, a->cols);
  for (int64_t k = 0; k < n; k++) { /* clear the sign, in the last byte */
    a->v0[(k + 1) * ng_dtype_size(a->moment) - 1] &= 0x7f;
  }
  a->m = arena_alloc((size_t)n, 8), a->v = arena_alloc((size_t)n, 8),
  a->stored = arena_alloc((size_t)n, 4);
  a->y = draw_floats(r, a->rows), a->y_wide = arena_alloc((size_t)a->rows, sizeof(double));
  a->map = arena_alloc((size_t)a->cols, sizeof *a->map);
  for (int64_t k = 0; k < a->cols; k++) {
    a->map[k] = (int32_t)(a->cols - 1 - k);
  }
  for (int64_t k = 0; k < a->rows; k++) {
    a->y_wide[k] = (double)a->y[k] * (1.0 + 0x1p-40);
  }
}

static ng_direction describe_direction(item *a, kind k, float bound) {
  ng_direction e = {.D = {&a->grad, 0, a->rows, 0, a->cols}, .scale = 1.5, .k = -0.75, .u_col = 1};
  e.overflowed = &a->overflowed;
  e.clip_bound = bound;
  if (k == PLAIN) return e;
  e.is_stored = k == STORED || k == MAPPED || k == STRIDED;
  e.u = e.is_stored ? a->u : a->x;
  e.u_row = k == STRIDED ? 1 : e.is_stored ? a->cols : 0;
  if (k == STRIDED) e.u_col = a->rows;
  if (k == MAPPED) e.map = a->map;
  if (k == RANK_ONE || k == WIDE) e.y = a->y;
  if (k == RANK_ONE) e.largest_D = e.largest_u = 1.0;
  if (k == LEFT_WIDE) e.y_double = a->y_wide;
  e.uses_double = k == WIDE || k == RIGHT_WIDE;
  return e;
}

void restore_arrays(item *a) {
  const size_t n = (size_t)(a->rows * a->cols);
  memcpy(a->g, a->gradient, n * (size_t)ng_dtype_size(a->grad.dtype));
  memcpy(a->w, a->weights, n * (size_t)ng_dtype_size(a->weight.dtype));
  memcpy(a->m, a->m0, n * (size_t)ng_dtype_size(a->moment));
  memcpy(a->v, a->v0, n * (size_t)ng_dtype_size(a->moment));
  a->overflowed = 0;
}

double at(const char *a, ng_dtype t, int64_t i) {
  float x;
  if (t == NG_F64) return ((const double *)(const void *)a)[i];
  ng_to_f32(&x, a + i * ng_dtype_size(t), t, 1);
  return (double)x;
}

static const ng_sgd_coefficients sgd[] = {{0.1f, 0.9f, 1.0f, 0.01f, false},
                                          {0.1f, 0.9f, 0.5f, 0.0f, true}};
static const ng_adamw_coefficients adamw = {0.9f, 0.99f, 0.1f, 0.01f, 0.999f, 1e-3f};
static const double counted[] = {0.5, 0.9};

void draw_directions(rng *r, list *l, kind k, int round) {
  memset(l, 0, sizeof *l);
  l->doubles = rng_below(r, 3) == 0 || round % 7 == 5;
  for (int i = 0; i < LISTED; i++) {
    item *a = &l->item[i];
    draw_arrays(r, a, round + i, l->doubles);
    l->e[i] = describe_direction(a, k, round % 5 == 4 ? 0.25f : 0.0f);
    if (round % 3 != 2 && rng_below(r, 3) == 0) { /* SGD; k y does not fit f32, k y u does */
      l->e[i].k = 1e39, l->e[i].largest_u = 0.0;
      for (int64_t c = 0; c < a->cols; c++) {
        a->x[c] *= 1e-3f;
      }
    }
    if (k == RIGHT_WIDE) {
      l->e[i].u_double = arena_alloc((size_t)a->cols, sizeof(double));
      for (int64_t c = 0; c < a->cols; c++) {
        ((double *)(uintptr_t)l->e[i].u_double)[c] = (double)a->x[c];
      }
    }
    if (round % 7 == 5 && a->weight.dtype == NG_F64) /* the square of PD does not fit f64 */
      l->e[i].scale = 1e200, l->e[i].largest_D = 0.0;
    if (round % 7 == 6) l->e[i].scale = 1e50, l->e[i].largest_D = 0.0;
    for (int64_t c = 0; c < a->rows * a->cols && round % 7 == 6 && a->grad.dtype == NG_F64;
         c += 3) {
      ((double *)(void *)a->gradient)[c] = 1e300; /* PD does not fit f64 */
    }
    l->s[i] = (ng_weight_update){
        .weight = &a->weight, .m = a->m, .v = a->v, .cols = a->cols, .coefficients = counted};
    if (round % 3 == 2)
      l->s[i].adamw = &adamw;
    else
      l->s[i].sgd = &sgd[round % 2];
    l->to[i] = a->stored;
  }
}
