/* direction.h: one row of a direction, for the entries of emit.c, update.c and ratios.c. */
#ifndef NG_DIRECTION_H
#define NG_DIRECTION_H

#include <float.h>
#include <math.h>

#include "kernel/tiles.h"

/* n elements of a row of a direction: scale values, if `values` is set; else scale D + k u, where u NULL has no second
 * term and u_double replaces u. in_double: combine in double. */
typedef struct ng_line {
  double scale, k;
  const float *u, *values;
  const double *u_double;
  bool in_double;
} ng_line;

/* Return the factor of u in row r. */
static inline double ng_line_factor(const ng_direction *e, int64_t r) {
  if (e->is_stored || (e->u == NULL && e->u_double == NULL)) return 0.0;
  return e->k * (e->y != NULL ? (double)e->y[r] : e->y_double != NULL ? e->y_double[r] : 1.0);
}

/* Return whether rows of a direction are read in place and combined in f32, if their factor of u fits f32. */
static inline bool ng_line_is_plain(const ng_direction *e) {
  const bool dense = e->u == NULL || (e->map == NULL && e->u_col == 1);
  return dense && e->u_double == NULL && !e->in_double && !(e->clip_bound > 0.0f) &&
         fabs(e->scale) <= (double)FLT_MAX;
}

/* Set *x to row r from column c on of a direction with ng_line_is_plain; return false if the factor of u does not fit. */
static inline bool ng_line_in_place(const ng_direction *e, int64_t r, int64_t c, ng_line *x) {
  const float *u = e->u == NULL ? NULL : e->u + r * e->u_row + c;
  *x = (ng_line){.scale = e->scale, .k = ng_line_factor(e, r)};
  *(e->is_stored ? &x->values : &x->u) = u;
  return fabs(x->k) <= (double)FLT_MAX;
}

/* Return row r, columns [c, c + n), of a direction, n <= NG_LINE; values with a stride or a map are copied to `buffer`. A
 * clipped direction is computed, rounded and clipped into `buffer`, too. */
ng_line ng_line_of(const ng_direction *e, int64_t r, int64_t c, int64_t n, float *buffer);
/* pd[0..n) <- the direction in double, before it is clipped; n <= NG_LINE. */
void ng_line_double(const ng_direction *e, int64_t r, int64_t c, int64_t n, double *pd);

/* Return n elements of a row as f32: their address, or a copy in `buffer`; n <= NG_LINE if they are copied. */
float *ng_line_f32(const ng_place *v, int64_t row, int64_t col, int64_t n, float *buffer);

/* y <- scale d + k u in double, rounded once; y may be d. */
void ng_line_rescale_double(float *y, const float *d, const ng_line *x, int64_t n);

/* Return a magnitude: every smaller f32 rounds to a finite number of dtype t. The largest f16 is 65504; 65520, halfway to
 * the next power of 2, rounds to Inf. */
float ng_line_limit(ng_dtype t);

/* update.c: u <- minus the weight after an update with lr = 1 and keep = 0, on copies of the moments: the direction of
 * update s. If one of the n <= NG_LINE weights is not finite, all u are 0. */
void ng_update_direction(const ng_direction *e, const ng_weight_update *s, int64_t r, int64_t c,
                         int64_t n, float *u);

#endif
