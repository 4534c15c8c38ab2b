/* direction.c: rows of directions, read from descriptors. */
#include "kernel/direction.h"

#include "simd.h"

float ng_line_limit(ng_dtype t) {
  return t == NG_F16 ? 65520.0f : t == NG_BF16 ? 0x1.ffp127f : INFINITY;
}

float *ng_line_f32(const ng_place *v, int64_t row, int64_t col, int64_t n, float *room) {
  if (v->dtype == NG_F32 && v->straight) return ng_place_at(v, row, col);
  ng_place_read(v, row, col, n, room);
  return room;
}

/* Return elements [c, c + n) of row r of u: in place, or copied to `room`. */
static const float *row_of(const ng_emit *e, int64_t r, int64_t c, int64_t n, float *room) {
  const float *row = e->u + r * e->u_row;
  if (e->map == NULL && e->u_col == 1) return row + c;
  for (int64_t i = 0; i < n; i++) {
    room[i] = row[e->map != NULL ? e->map[c + i] : (c + i) * e->u_col];
  }
  return room;
}

/* A row is combined in double if the descriptor says so or a factor does not fit f32. */
static ng_line line_of(const ng_emit *e, int64_t r, int64_t c, int64_t n, float *room) {
  ng_line x = {.scale = e->scale, .k = ng_line_factor(e, r)};
  const float *u = e->u == NULL ? NULL : row_of(e, r, c, n, room);
  x.u = e->stored ? NULL : u;
  x.values = e->stored ? u : NULL;
  x.u_wide = e->u_wide == NULL ? NULL : e->u_wide + c;
  x.wide =
      e->wide || x.u_wide != NULL || fabs(x.scale) > (double)FLT_MAX || fabs(x.k) > (double)FLT_MAX;
  return x;
}

void ng_line_wide(const ng_emit *e, int64_t r, int64_t c, int64_t n, double *pd) {
  float room[NG_LINE], gradient[NG_LINE];
  const ng_line x = line_of(e, r, c, n, room);
  const float *d = x.values;
  if (d == NULL) d = ng_line_f32(e->D.at, e->D.row + r, e->D.col + c, n, gradient);
  for (int64_t i = 0; i < n; i++) {
    pd[i] = x.scale * (double)d[i];
    if (x.u_wide != NULL) {
      pd[i] += x.k * x.u_wide[i];
    } else if (x.u != NULL) {
      pd[i] += x.k * (double)x.u[i];
    }
  }
}

ng_line ng_line_of(const ng_emit *e, int64_t r, int64_t c, int64_t n, float *room) {
  double pd[NG_LINE];
  if (!(e->bound > 0.0f)) return line_of(e, r, c, n, room);
  ng_line_wide(e, r, c, n, pd);
  for (int64_t i = 0; i < n; i++) {
    const float y = (float)pd[i];
    room[i] = y > e->bound ? e->bound : y < -e->bound ? -e->bound : y;
  }
  return (ng_line){.scale = 1.0, .values = room};
}

NG_CLONES static void rescale_wide(float *y, const float *d, const float *u, int64_t n,
                                   double scale, double k) {
  for (int64_t i = 0; i < n; i++) {
    y[i] = (float)(scale * (double)d[i] + (u == NULL ? 0.0 : k * (double)u[i]));
  }
}

void ng_line_rescale_wide(float *y, const float *d, const ng_line *x, int64_t n) {
  if (x->u_wide == NULL) {
    rescale_wide(y, d, x->u, n, x->scale, x->k);
    return;
  }
  for (int64_t i = 0; i < n; i++) {
    y[i] = (float)(x->scale * (double)d[i] + x->k * x->u_wide[i]);
  }
}
