/* direction.c: rows of directions, read from descriptors. */
#include "kernel/direction.h"

#include "simd.h"

float ng_line_limit(ng_dtype t) {
  return t == NG_F16 ? 65520.0f : t == NG_BF16 ? 0x1.ffp127f : INFINITY;
}

float *ng_line_f32(const ng_place *v, int64_t row, int64_t col, int64_t n, float *buffer) {
  if (v->dtype == NG_F32 && v->rows_adjacent) return ng_place_at(v, row, col);
  ng_place_read(v, row, col, n, buffer);
  return buffer;
}

/* Return elements [c, c + n) of row r of u: in place, or copied to `buffer`. */
static const float *load_u(const ng_direction *e, int64_t r, int64_t c, int64_t n, float *buffer) {
  const float *row = e->u + r * e->u_row;
  if (e->map == NULL && e->u_col == 1) return row + c;
  for (int64_t i = 0; i < n; i++) {
    buffer[i] = row[e->map != NULL ? e->map[c + i] : (c + i) * e->u_col];
  }
  return buffer;
}

/* A row is combined in double if the descriptor says so or a factor does not fit f32. */
static ng_line load_row(const ng_direction *e, int64_t r, int64_t c, int64_t n, float *buffer) {
  ng_line x = {.scale = e->scale, .k = ng_line_factor(e, r)};
  const float *u = e->u == NULL ? NULL : load_u(e, r, c, n, buffer);
  x.u = e->is_stored ? NULL : u;
  x.values = e->is_stored ? u : NULL;
  x.u_double = e->u_double == NULL ? NULL : e->u_double + c;
  x.in_double = e->in_double || x.u_double != NULL || fabs(x.scale) > (double)FLT_MAX ||
                fabs(x.k) > (double)FLT_MAX;
  return x;
}

void ng_line_double(const ng_direction *e, int64_t r, int64_t c, int64_t n, double *pd) {
  float buffer[NG_LINE], gradient[NG_LINE];
  const ng_line x = load_row(e, r, c, n, buffer);
  const float *d = x.values;
  if (d == NULL) d = ng_line_f32(e->D.place, e->D.row + r, e->D.col + c, n, gradient);
  for (int64_t i = 0; i < n; i++) {
    pd[i] = x.scale * (double)d[i];
    if (x.u_double != NULL) {
      pd[i] += x.k * x.u_double[i];
    } else if (x.u != NULL) {
      pd[i] += x.k * (double)x.u[i];
    }
  }
}

ng_line ng_line_of(const ng_direction *e, int64_t r, int64_t c, int64_t n, float *buffer) {
  double pd[NG_LINE];
  if (!(e->clip_bound > 0.0f)) return load_row(e, r, c, n, buffer);
  ng_line_double(e, r, c, n, pd);
  for (int64_t i = 0; i < n; i++) {
    const float y = (float)pd[i];
    buffer[i] = y > e->clip_bound ? e->clip_bound : y < -e->clip_bound ? -e->clip_bound : y;
  }
  return (ng_line){.scale = 1.0, .values = buffer};
}

NG_CLONES static void rescale_wide(float *y, const float *d, const float *u, int64_t n,
                                   double scale, double k) {
  for (int64_t i = 0; i < n; i++) {
    y[i] = (float)(scale * (double)d[i] + (u == NULL ? 0.0 : k * (double)u[i]));
  }
}

void ng_line_rescale_double(float *y, const float *d, const ng_line *x, int64_t n) {
  if (x->u_double == NULL) {
    rescale_wide(y, d, x->u, n, x->scale, x->k);
    return;
  }
  for (int64_t i = 0; i < n; i++) {
    y[i] = (float)(x->scale * (double)d[i] + x->k * x->u_double[i]);
  }
}
