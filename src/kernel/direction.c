/* direction.c: compute or describe rows of directions. */
#include "kernel/direction.h"

float ng_overflow_limit(ng_dtype t) {
  return t == NG_F16 ? 65520.0f : t == NG_BF16 ? 0x1.ffp127f : INFINITY;
}

float *ng_row_as_f32(const ng_place *v, int64_t row, int64_t col, int64_t n, float *buffer) {
  if (v->dtype == NG_F32 && v->has_dense_rows) return ng_place_at(v, row, col);
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

/* u <- elements [c, c + n) of row r of u, in double. */
static void load_double(const ng_direction *e, int64_t r, int64_t c, int64_t n, double *u) {
  float buffer[NG_LINE];
  if (e->u_double == NULL) {
    ng_from_f32(u, NG_F64, load_u(e, r, c, n, buffer), n);
    return;
  }
  for (int64_t i = 0; i < n; i++) {
    u[i] = e->u_double[r * e->u_row + (e->map != NULL ? e->map[c + i] : (c + i) * e->u_col)];
  }
}

void ng_compute_line(const ng_direction *e, int64_t r, int64_t c, int64_t n, double *pd) {
  const double k = ng_row_factor(e, r);
  double u[NG_LINE];
  const bool has_u = e->u != NULL || e->u_double != NULL;
  if (has_u) load_double(e, r, c, n, e->is_stored ? pd : u);
  if (!e->is_stored) ng_place_read_double(e->D.place, e->D.row + r, e->D.col + c, n, pd);
  for (int64_t i = 0; i < n; i++) {
    pd[i] *= e->scale;
    if (has_u && !e->is_stored) pd[i] += k * u[i];
  }
}

void ng_compute_clipped_line(const ng_direction *e, int64_t r, int64_t c, int64_t n, double *pd) {
  const double bound = (double)e->clip_bound;
  ng_compute_line(e, r, c, n, pd);
  for (int64_t i = 0; i < n && bound > 0.0; i++) {
    pd[i] = pd[i] > bound ? bound : pd[i] < -bound ? -bound : pd[i];
  }
}

ng_direction_line ng_describe_line(const ng_direction *e, int64_t r, int64_t c, int64_t n,
                                   float *buffer) {
  const double k = ng_row_factor(e, r);
  double pd[NG_LINE];
  if (ng_is_single_precision(e) && ng_fits_f32(k)) {
    ng_direction_line x = {.scale = (float)e->scale, .k = (float)k};
    *(e->is_stored ? &x.values : &x.u) = e->u == NULL ? NULL : load_u(e, r, c, n, buffer);
    return x;
  }
  ng_compute_clipped_line(e, r, c, n, pd);
  ng_to_f32(buffer, pd, NG_F64, n);
  return (ng_direction_line){.scale = 1.0f, .values = buffer};
}
