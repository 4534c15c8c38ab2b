/* t_kernels_emit.c: conformance of the entries that measure gradients and emit directions: `cpu` against `ref`, with
 * one and three pieces, for every kind of direction, dtype and layout.
 *
 * Tolerances: cpu combines two products in f32 (3 roundings of 2^-24 of the sum of magnitudes) and updates in f32 (at
 * most 8 more), ref in double; both round to the dtype of the array, where they may be neighbours. Sums are compared
 * with 4 n 2^-53 of the sum of magnitudes. Functions that compute in double on both sides must agree to the last bit.
 * An f64 gradient or weight is combined in double on both sides: at most 12 roundings of 2^-53.
 */
#include "unit_test.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "draw.h"
#include "kernels.h"

enum { LISTED = 3, MOST = 40000, ROUNDS = 200 };
typedef enum kind {
  PLAIN,
  STORED,
  MAPPED,
  STRIDED,
  RANK_ONE,
  LEFT_WIDE,
  WIDE,
  RIGHT_WIDE,
  KINDS
} kind;

/* The arrays of one descriptor; `gradient` and `weight` are copied for every queue. */
typedef struct item {
  ng_place grad, weight;
  int64_t rows, cols, bytes;
  ng_dtype moment;
  char *gradient, *weights, *g, *w, *m0, *v0, *m, *v;
  float *u, *x, *stored;
  float *y;
  double *y_wide;
  int32_t *map;
  _Atomic int64_t overflowed;
} item;

static const ng_dtype types[] = {NG_F32, NG_BF16, NG_F16, NG_F64};

/* Memory of one round; every block starts as zeros. */
static char arena[64 << 20];
static size_t used;

static void *take(size_t n, size_t size) {
  void *x = arena + used;
  used += (n * size + 63) / 64 * 64;
  assert_true(used <= sizeof arena);
  return memset(x, 0, n * size);
}

static float *draw(rng *r, int64_t n) {
  float *x = take((size_t)n, sizeof *x);
  for (int64_t i = 0; i < n; i++) {
    x[i] = (float)(rng_real(r) * 2.0 - 1.0);
  }
  return x;
}

/* Dense rows, or channels-last rows of [channel][offset]: offset steps of `channels` elements. */
static void lay_out(ng_place *v, ng_dtype t, int64_t cols, bool last) {
  *v = (ng_place){.dtype = t, .rows_adjacent = true, .axes = 1, .row_stride = cols};
  v->extent[0] = cols, v->stride[0] = 1;
  if (!last || cols % 9 != 0) return;
  v->rows_adjacent = false, v->axes = 2;
  v->extent[0] = cols / 9, v->extent[1] = 9, v->stride[0] = 1, v->stride[1] = cols / 9;
}

static char *draw_array(rng *r, ng_dtype t, int64_t n) {
  char *a = take((size_t)n, (size_t)ng_dtype_size(t));
  float *x = draw(r, n);
  ng_from_f32(a, t, x, n);
  for (int64_t i = 0; i < n && t == NG_F64; i++) {
    ((double *)(void *)a)[i] += rng_real(r) * 0x1p-24;
  }
  return a;
}

static void make(rng *r, item *a, int i, bool doubles) {
  const int64_t cols[] = {1, 9, 144, 512, 577, 513, 2048, 17001};
  const bool is_flat = i % 5 == 0; /* rows that a device reads 4 elements at once */
  a->cols = is_flat ? 512 : cols[rng_below(r, 8)];
  a->rows = rng_between(r, 1, MOST / a->cols < 70 ? MOST / a->cols : 70);
  const int64_t n = a->rows * a->cols;
  const int32_t of = doubles ? 4 : 3;
  lay_out(&a->grad, types[is_flat ? 0 : rng_below(r, of)], a->cols, i % 2 == 1);
  lay_out(&a->weight, types[is_flat ? 0 : rng_below(r, of)], a->cols, rng_below(r, 2) == 1);
  a->moment = a->weight.dtype == NG_F64 ? NG_F64 : NG_F32;
  a->gradient = draw_array(r, a->grad.dtype, n), a->weights = draw_array(r, a->weight.dtype, n);
  a->g = take((size_t)n, 8), a->w = take((size_t)n, 8);
  a->grad.data = a->g, a->weight.data = a->w;
  a->m0 = draw_array(r, a->moment, n), a->v0 = draw_array(r, a->moment, n);
  a->u = draw(r, n), a->x = draw(r, a->cols);
  for (int64_t k = 0; k < n; k++) { /* clear the sign, in the last byte */
    a->v0[(k + 1) * ng_dtype_size(a->moment) - 1] &= 0x7f;
  }
  a->m = take((size_t)n, 8), a->v = take((size_t)n, 8), a->stored = take((size_t)n, 4);
  a->y = draw(r, a->rows), a->y_wide = take((size_t)a->rows, sizeof(double));
  a->map = take((size_t)a->cols, sizeof *a->map);
  for (int64_t k = 0; k < a->cols; k++) {
    a->map[k] = (int32_t)(a->cols - 1 - k);
  }
  for (int64_t k = 0; k < a->rows; k++) {
    a->y_wide[k] = (double)a->y[k] * (1.0 + 0x1p-40);
  }
}

static ng_direction describe(item *a, kind k, float bound) {
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
  e.in_double = k == WIDE || k == RIGHT_WIDE;
  return e;
}

/* Restore the drawn arrays, which a queue has changed. */
static void restore(item *a) {
  const size_t n = (size_t)(a->rows * a->cols);
  memcpy(a->g, a->gradient, n * (size_t)ng_dtype_size(a->grad.dtype));
  memcpy(a->w, a->weights, n * (size_t)ng_dtype_size(a->weight.dtype));
  memcpy(a->m, a->m0, n * (size_t)ng_dtype_size(a->moment));
  memcpy(a->v, a->v0, n * (size_t)ng_dtype_size(a->moment));
  a->overflowed = 0;
}

/* Return an element in the order of memory. */
static double at(const char *a, ng_dtype t, int64_t i) {
  float x;
  if (t == NG_F64) return ((const double *)(const void *)a)[i];
  ng_to_f32(&x, a + i * ng_dtype_size(t), t, 1);
  return (double)x;
}

/* Return whether two results, computed from numbers of magnitude up to 4, agree. */
static bool agree(double x, double y, ng_dtype t) {
  const double last = t == NG_F16    ? 0x1p-10
                      : t == NG_BF16 ? 0x1p-7
                                     : 0.0; /* one unit in the last place */
  const double roundings = 12.0 * (t == NG_F64 ? 0x1p-53 : 0x1p-24);
  return fabs(x - y) <= (last + roundings) * fmax(4.0, fabs(y));
}

/* Compare the arrays with results of the reference; the first queue of ref sets them. */
static void compare(const item *a, const item *is, bool update) {
  const char *x = update ? a->w : a->g, *y = update ? is->w : is->g;
  const ng_dtype t = update ? a->weight.dtype : a->grad.dtype;
  for (int64_t i = 0; i < a->rows * a->cols; i++) {
    assert_true(agree(at(x, t, i), at(y, t, i), t));
    if (!update) continue;
    assert_true(agree(at(a->m, a->moment, i), at(is->m, a->moment, i), a->moment));
    assert_true(agree(at(a->v, a->moment, i), at(is->v, a->moment, i), a->moment));
  }
  assert_int_equal(a->overflowed, is->overflowed);
}

typedef struct list {
  bool doubles; /* some arrays are f64, which the device does not support */
  item item[LISTED];
  ng_direction e[LISTED];
  ng_weight_update s[LISTED];
  float *to[LISTED];
} list;

static const ng_sgd_numbers sgd[] = {{0.1f, 0.9f, 1.0f, 0.01f, false},
                                     {0.1f, 0.9f, 0.5f, 0.0f, true}};
static const ng_adamw_numbers adamw = {0.9f, 0.99f, 0.1f, 0.01f, 0.999f, 1e-3f};
static const double counted[] = {0.5, 0.9};

/* Make three descriptors of one kind. Some elements overflow: every correct result keeps their old value. */
static void make_list(rng *r, list *l, kind k, int round) {
  memset(l, 0, sizeof *l);
  l->doubles = rng_below(r, 3) == 0;
  for (int i = 0; i < LISTED; i++) {
    item *a = &l->item[i];
    make(r, a, round + i, l->doubles);
    l->e[i] = describe(a, k, round % 5 == 4 ? 0.25f : 0.0f);
    if (round % 3 != 2 && rng_below(r, 3) == 0) { /* SGD; k y does not fit f32, k y u does */
      l->e[i].k = 1e39, l->e[i].largest_u = 0.0;
      for (int64_t c = 0; c < a->cols; c++) {
        a->x[c] *= 1e-3f;
      }
    }
    if (k == RIGHT_WIDE) {
      l->e[i].u_double = take((size_t)a->cols, sizeof(double));
      for (int64_t c = 0; c < a->cols; c++) {
        ((double *)(uintptr_t)l->e[i].u_double)[c] = (double)a->x[c];
      }
    }
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

/* Return a copy of the results in `l`, whose arrays the next queue overwrites. */
static void keep(const item *from, item *to) {
  const size_t n = (size_t)(from->rows * from->cols);
  memcpy(to->g, from->g, n * (size_t)ng_dtype_size(from->grad.dtype));
  memcpy(to->w, from->w, n * (size_t)ng_dtype_size(from->weight.dtype));
  memcpy(to->m, from->m, n * (size_t)ng_dtype_size(from->moment));
  memcpy(to->v, from->v, n * (size_t)ng_dtype_size(from->moment));
  to->overflowed = from->overflowed;
}

static int first_queue(const list *l) { return l->doubles ? 0 : KERNELS_FIRST; }

static void run(ng_queue *q, list *l, bool update) {
  for (int i = 0; i < LISTED; i++) {
    restore(&l->item[i]);
  }
  if (update) {
    ng_kernels(q)->update(q, l->e, l->s, LISTED);
  } else {
    ng_kernels(q)->emit(q, l->e, LISTED);
  }
  ng_queue_wait(q);
}

static void test_emit_and_update(void **state) {
  rng r = {test_seed()};
  for (int round = 0; round < test_times(ROUNDS); round++) {
    const bool update = round / KINDS % 2 == 1;
    list l, is;
    rng again = r;
    used = 0;
    make_list(&r, &l, (kind)(round % KINDS), round);
    make_list(&again, &is, (kind)(round % KINDS), round);
    for (int k = kernels_last(); k >= first_queue(&l); k--) { /* late, over ref, first */
      ng_queue q = kernels_queue_or_device(k);
      run(&q, &l, update);
      for (int i = 0; i < LISTED; i++) {
        if (k == kernels_last()) keep(&l.item[i], &is.item[i]);
        compare(&l.item[i], &is.item[i], update);
      }
    }
  }
}

/* ---- results in double -------------------------------------------------------------------------*/

/* The numbers of a pass of `ratios`; a count of the second pass has fewer elements. */
typedef struct ratio_numbers {
  int64_t count[NG_RATIO_BINS];
  double extreme[2], sum[4];
} ratio_numbers;

/* Run `ratios` with memory that contains garbage. bins 0: the first pass. */
static void run_ratios(ng_queue *q, const list *l, bool update, const uint32_t *bin, int32_t bins,
                       int64_t *count, ratio_numbers *out) {
  static double parts[4 * LISTED * 80];
  double extreme[6];
  const ng_ratios r = {bin, bins, count, extreme, parts, out->sum};
  memset(count, 0x5A, 3 * NG_RATIO_BINS * sizeof *count);
  memset(extreme, 0x5A, sizeof extreme);
  memset(out, 0x5A, sizeof *out);
  ng_kernels(q)->ratios(q, l->e, update ? l->s : NULL, LISTED, &r);
  ng_queue_wait(q);
  const int64_t n = bins == 0 ? NG_RATIO_BINS : (int64_t)bins * NG_RATIO_FINE_BINS;
  memset(out->count, 0, sizeof out->count);
  memcpy(out->count, count, (size_t)n * sizeof *count);
  memcpy(out->extreme, extreme, sizeof out->extreme);
}

/* List the largest bins that have elements, ascending. */
static int32_t list_bins(const ratio_numbers *r, uint32_t *bin, int32_t most) {
  int32_t bins = 0;
  for (uint32_t k = NG_RATIO_BINS; k-- > 0 && bins < most;) {
    if (r->count[k] > 0) bin[most - ++bins] = k;
  }
  memmove(bin, bin + most - bins, (size_t)bins * sizeof *bin);
  return bins;
}

static void same_ratios(const ratio_numbers *x, const ratio_numbers *y, int64_t n) {
  const double unit = 4.0 * (double)n * 0x1p-53;
  assert_memory_equal(x->count, y->count, sizeof x->count);
  assert_memory_equal(x->extreme, y->extreme, sizeof x->extreme);
  assert_true(fabs(x->sum[0] - y->sum[0]) <= unit * y->sum[0]);
  assert_true(fabs(x->sum[1] - y->sum[1]) <= unit * sqrt(y->sum[2] * y->sum[3]));
  assert_true(fabs(x->sum[2] - y->sum[2]) <= unit * y->sum[2]);
  assert_true(fabs(x->sum[3] - y->sum[3]) <= unit * y->sum[3]);
}

/* An update in f32 has at most 8 roundings, so an element may be in the next bin. */
static void near_ratios(const ratio_numbers *x, const ratio_numbers *y) {
  int64_t n = 0;
  for (int64_t k = 0; k < NG_RATIO_BINS; k++) {
    n += x->count[k] - y->count[k];
  }
  assert_int_equal(n, 0);
  assert_true(fabs(x->sum[0] - y->sum[0]) <= 0x1p-18 * y->sum[0]);
  assert_true(fabs(x->sum[1] - y->sum[1]) <= 0x1p-18 * sqrt(y->sum[2] * y->sum[3]));
  assert_true(fabs(x->sum[2] - y->sum[2]) <= 0x1p-40 * y->sum[2]);
  assert_true(fabs(x->sum[3] - y->sum[3]) <= 0x1p-18 * y->sum[3]);
}

static void test_ratios(void **state) {
  static const ng_sgd_numbers unit_sgd = {1.0f, 0.9f, 0.0f, 0.01f, true};
  static const ng_adamw_numbers unit_adamw = {0.9f, 0.99f, 0.1f, 0.01f, 0.0f, 1e-3f};
  rng r = {test_seed()};
  static ratio_numbers want[2], is;
  used = 0;
  int64_t *count = take(3 * NG_RATIO_BINS, sizeof *count);
  const size_t reserved = used;
  for (int round = 0; round < test_times(ROUNDS) / 8; round++) {
    const bool update = round % 3 == 2;
    list l;
    uint32_t bin[3] = {0};
    int32_t bins = 0;
    int64_t n = 0, total = 0;
    used = reserved;
    make_list(&r, &l, (kind)(round % KINDS), 7 * round);
    for (int i = 0; i < LISTED; i++) {
      restore(&l.item[i]);
      if (update) l.e[i].clip_bound = 0.0f; /* directions are measured before they are clipped */
      l.s[i].sgd = l.s[i].adamw == NULL ? &unit_sgd : NULL;
      if (l.s[i].adamw != NULL) l.s[i].adamw = &unit_adamw;
      n += l.item[i].rows * l.item[i].cols;
    }
    for (int k = kernels_last(); k >= first_queue(&l); k--) {
      ng_queue q = kernels_queue_or_device(k);
      for (int pass = 0; pass < 2; pass++) {
        run_ratios(&q, &l, update, bin, pass == 0 ? 0 : bins, count, &is);
        if (k == kernels_last()) want[pass] = is;
        if (k == kernels_last() && pass == 0) bins = list_bins(&is, bin, 3);
        if (update && k < kernels_last()) {
          if (pass == 0) near_ratios(&is, &want[0]);
        } else if (pass == 0) {
          same_ratios(&is, &want[0], n);
        } else {
          assert_memory_equal(is.count, want[1].count, sizeof is.count);
        }
      }
    }
    for (int64_t k = 0; k < NG_RATIO_BINS; k++) {
      total += want[0].count[k] - want[1].count[k];
    }
    for (int32_t k = 0; k < bins; k++) {
      total += want[0].count[bin[k]];
    }
    assert_int_equal(total, n); /* the second pass counts the elements of its bins */
  }
}

static void test_store_norm2(void **state) {
  rng r = {test_seed()};
  for (int round = 0; round < test_times(ROUNDS) / 4; round++) {
    list l;
    double parts[LISTED * 80], norm2[LISTED], want2[LISTED] = {0.0};
    float *want[LISTED];
    used = 0;
    make_list(&r, &l, (kind)(round % KINDS), 7 * round);
    for (int k = kernels_last(); k >= first_queue(&l); k--) {
      ng_queue q = kernels_queue_or_device(k);
      for (int i = 0; i < LISTED; i++) {
        restore(&l.item[i]);
        memset(l.to[i], 0x5A, (size_t)(l.item[i].rows * l.item[i].cols) * sizeof(float));
        norm2[i] = -1.0;
      }
      ng_kernels(&q)->store(&q, l.e, l.to, LISTED);
      ng_kernels(&q)->norm2(&q, l.e, LISTED, parts, norm2);
      ng_queue_wait(&q);
      for (int i = 0; i < LISTED; i++) {
        const int64_t n = l.item[i].rows * l.item[i].cols;
        const size_t bytes = (size_t)n * sizeof(float);
        if (k == kernels_last()) {
          want[i] = take((size_t)n, sizeof(float));
          memcpy(want[i], l.to[i], bytes);
          want2[i] = norm2[i];
        }
        assert_memory_equal(want[i], l.to[i], bytes);
        assert_true(fabs(norm2[i] - want2[i]) <= 4.0 * (double)n * 0x1p-53 * want2[i]);
      }
    }
  }
}

/* The sums of t, with its bias, against sums over the rows in order. */
static void same_sums_of_t(const ng_measure *m, const item *a, double n) {
  double tt = 0.0, tb = 0.0;
  for (int64_t r = 0; r < a->rows; r++) {
    const double b = m->bias.place == NULL ? 0.0 : 0.5 * at(a->m0, a->moment, m->bias.col + r);
    double t = b;
    for (int64_t c = 0; c < a->cols; c++) {
      double x;
      ng_place_read_double(&a->grad, r, c, 1, &x);
      t += x * (double)a->x[c];
    }
    assert_true(fabs(m->t[r] - t) <= 4.0 * n * 0x1p-53 * n);
    tt += m->t[r] * m->t[r];
    tb += m->t[r] * b;
  }
  assert_true(fabs(m->out[1] - tt) <= 4.0 * n * 0x1p-53 * tt);
  assert_true(fabs(m->out[2] - tb) <= 4.0 * n * 0x1p-53 * n * n);
}

/* Sums of every kind of direction; a NaN in any element is found. */
static void test_measure_and_finite(void **state) {
  const float half = 0.5F;
  rng r = {test_seed()};
  for (int round = 0; round < test_times(ROUNDS) / 4; round++) {
    list l;
    double parts[2 * LISTED * 80], out[LISTED][3], want[LISTED][3] = {{0.0}};
    ng_measure m[LISTED];
    ng_place bias[LISTED];
    used = 0;
    make_list(&r, &l, PLAIN, 7 * round); /* no overflow */
    for (int k = kernels_last(); k >= first_queue(&l); k--) {
      ng_queue q = kernels_queue_or_device(k);
      int32_t finite[LISTED] = {-1, -1, -1}, copied[LISTED] = {1, 1, 1};
      ng_region region[LISTED];
      ng_read copy[LISTED];
      for (int i = 0; i < LISTED; i++) {
        item *a = &l.item[i];
        restore(a);
        region[i] = l.e[i].D;
        m[i] = (ng_measure){.D = region[i], .out = out[i]};
        if (round % 4 > 0) m[i].x = a->x;
        if (round % 4 == 2) m[i].y = a->y;
        if (round % 4 == 3) m[i].t = a->y_wide;
        if (round % 8 == 7) {
          lay_out(&bias[i], a->moment, a->rows + 1, false);
          bias[i].data = a->m0;
          m[i].bias = (ng_region){&bias[i], 0, 1, a->cols > 1, a->rows};
          m[i].y = &half;
        }
        copy[i] = (ng_read){
            region[i], k == kernels_last() ? a->u : a->stored, NULL, a->cols, 1, NULL, &copied[i]};
        if (round % 3 == 1) copy[i].map = a->map;
        if (round % 3 == 2) copy[i].to_row = 1, copy[i].to_col = a->rows;
        memset(copy[i].to, 0x5A, (size_t)(a->rows * a->cols) * sizeof(float));
        memset(out[i], 0x5A, sizeof out[i]);
        if (m[i].t != NULL) memset(m[i].t, 0x5A, (size_t)a->rows * sizeof *m[i].t);
      }
      ng_kernels(&q)->measure(&q, m, LISTED, parts);
      ng_kernels(&q)->finite(&q, region, LISTED, finite);
      ng_kernels(&q)->read(&q, copy, LISTED);
      ng_queue_wait(&q);
      for (int i = 0; i < LISTED; i++) {
        const double n = (double)(l.item[i].rows * l.item[i].cols);
        double t = 0.0;
        for (int64_t c = 0; c < l.item[i].rows && m[i].t != NULL; c++) {
          t += (double)l.item[i].y[c] * m[i].t[c];
        }
        const double second = m[i].t != NULL ? t : out[i][1];
        if (k == kernels_last()) want[i][0] = out[i][0], want[i][1] = second;
        assert_true(fabs(out[i][0] - want[i][0]) <= 4.0 * n * 0x1p-53 * want[i][0]);
        assert_true(fabs(second - want[i][1]) <= 4.0 * n * 0x1p-53 * n);
        if (m[i].t != NULL) same_sums_of_t(&m[i], &l.item[i], n);
        assert_true(finite[i] == 1 && copied[i] == 1);
        if (k < kernels_last())
          assert_memory_equal(l.item[i].u, l.item[i].stored, (size_t)n * sizeof(float));
      }
      item *a = &l.item[round % LISTED];
      const float bad = round % 2 == 0 ? NAN : -INFINITY;
      memset(finite, 0x5A, sizeof finite);
      ng_from_f32(a->g + rng_below(&r, a->rows * a->cols) * ng_dtype_size(a->grad.dtype),
                  a->grad.dtype, &bad, 1);
      ng_kernels(&q)->finite(&q, region, LISTED, finite);
      for (int i = 0; i < LISTED; i++) {
        copy[i].to = (float *)(void *)l.item[i].m; /* keep the expected copies */
      }
      ng_kernels(&q)->read(&q, copy, LISTED);
      ng_queue_wait(&q);
      for (int i = 0; i < LISTED; i++) {
        assert_int_equal(copied[i], i != round % LISTED);
        assert_int_equal(finite[i], i != round % LISTED);
      }
    }
  }
}

/* Emit f32 numbers as f16 and bf16: every number of 16 bits, its neighbours in f32, and the middle between two, which
 * rounds to even. Numbers out of range keep the gradient. */
static void test_rounding_to_16_bits(void **state) {
  enum { EACH = 4, N = 65536 * EACH };
  static const ng_dtype half[] = {NG_F16, NG_BF16};
  for (int t = 0; t < 2; t++) {
    used = 0;
    float *u = take(N, sizeof *u);
    uint16_t *got = take(N, sizeof *got), *want = take(N, sizeof *want);
    int64_t stay = 0;
    for (uint32_t i = 0; i < N; i++) {
      const uint16_t h[2] = {(uint16_t)(i / EACH), (uint16_t)(i / EACH + 1)};
      float x[2];
      ng_to_f32(x, h, half[t], 2);
      u[i] = i % EACH == 0   ? x[0]
             : i % EACH == 1 ? (float)(0.5 * ((double)x[0] + (double)x[1]))
                             : nextafterf(x[0], i % EACH == 2 ? INFINITY : -INFINITY);
      ng_from_f32(&want[i], half[t], &u[i], 1);
      if (ng_all_finite(&want[i], half[t], 1)) continue;
      want[i] = 1;
      stay++;
    }
    for (int k = kernels_last(); k >= KERNELS_FIRST; k--) {
      ng_queue q = kernels_queue_or_device(k);
      ng_place place = {.data = got, .dtype = half[t]};
      lay_out(&place, half[t], N, false);
      place.data = got;
      _Atomic int64_t *overflowed = take(1, sizeof *overflowed);
      const ng_direction e = {.D = {&place, 0, 1, 0, N},
                              .scale = 1.0,
                              .is_stored = true,
                              .u = u,
                              .u_col = 1,
                              .overflowed = overflowed};
      for (int64_t i = 0; i < N; i++) {
        got[i] = 1;
      }
      ng_kernels(&q)->emit(&q, &e, 1);
      ng_queue_wait(&q);
      assert_memory_equal(got, want, N * sizeof *got);
      assert_int_equal(*overflowed, stay);
    }
  }
}

static int device_failed(void **state) {
  kernels_check_device();
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_emit_and_update),
      cmocka_unit_test(test_store_norm2),
      cmocka_unit_test(test_ratios),
      cmocka_unit_test(test_measure_and_finite),
      cmocka_unit_test(test_rounding_to_16_bits),
  };
  return cmocka_run_group_tests(tests, NULL, device_failed);
}
