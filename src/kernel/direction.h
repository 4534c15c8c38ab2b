/* direction.h: one row of a direction, for the entries of emit.c, update.c and ratios.c. */
#ifndef NG_DIRECTION_H
#define NG_DIRECTION_H

#include <float.h>
#include <math.h>

#include "kernel/tiles.h"

/* n elements of a row of a direction d = scale D + k u, without the second term if u is NULL. If `values` is not NULL,
 * d = scale values instead. */
typedef struct ng_direction_line {
  float scale, k;
  const float *u, *values;
} ng_direction_line;

/* Return k y[r], the factor of u in row r. */
static inline double ng_row_factor(const ng_direction *e, int64_t r) {
  if (e->is_stored || (e->u == NULL && e->u_double == NULL)) return 0.0;
  return e->k * (e->y != NULL ? (double)e->y[r] : e->y_double != NULL ? e->y_double[r] : 1.0);
}

static inline bool ng_fits_f32(double x) { return !(fabs(x) > (double)FLT_MAX); }

/* Return whether d is computed in f32 and not clipped, provided that the factor of u fits f32. */
static inline bool ng_is_single_precision(const ng_direction *e) {
  const bool reads_double = !e->is_stored && e->D.place->dtype == NG_F64;
  return e->u_double == NULL && !e->uses_double && !reads_double && !(e->clip_bound > 0.0f) &&
         ng_fits_f32(e->scale);
}

/* Return whether, in addition, the elements of a row of u are adjacent: then ng_describe_plain_line describes a row. */
static inline bool ng_is_plain_direction(const ng_direction *e) {
  return (e->u == NULL || (e->map == NULL && e->u_col == 1)) && ng_is_single_precision(e);
}

/* Describe row r from column c on in *x, for a direction with ng_is_plain_direction. Return false if the factor of u does not
 * fit f32. */
static inline bool ng_describe_plain_line(const ng_direction *e, int64_t r, int64_t c,
                                          ng_direction_line *x) {
  const float *u = e->u == NULL ? NULL : e->u + r * e->u_row + c;
  const double k = ng_row_factor(e, r);
  *x = (ng_direction_line){.scale = (float)e->scale, .k = (float)k};
  *(e->is_stored ? &x->values : &x->u) = u;
  return ng_fits_f32(k);
}

/* Describe row r, columns [c, c + n), of any direction; n <= NG_LINE. `buffer` receives elements of u that are not
 * adjacent, or the values of d if d is clipped or not computed in f32. */
ng_direction_line ng_describe_line(const ng_direction *e, int64_t r, int64_t c, int64_t n,
                                   float *buffer);
/* pd[0..n) <- the direction in double, before it is clipped; n <= NG_LINE. */
void ng_compute_line(const ng_direction *e, int64_t r, int64_t c, int64_t n, double *pd);
/* The same, clipped to clip_bound. */
void ng_compute_clipped_line(const ng_direction *e, int64_t r, int64_t c, int64_t n, double *pd);

/* Return n elements of a row as f32: their address, or a copy in `buffer`; n <= NG_LINE if they are copied. */
float *ng_row_as_f32(const ng_place *v, int64_t row, int64_t col, int64_t n, float *buffer);

/* Return the smallest magnitude of an f32 that rounds to Inf in dtype t. The largest f16 is 65504; 65520, halfway to the
 * next power of 2, rounds to Inf. */
float ng_overflow_limit(ng_dtype t);

/* ref_emit.c: return the weight and moments of one element after an update by d, in double. Moments and coefficients of an
 * f64 weight are f64, of other weights rounded to f32. If a moment overflows, the weight overflows, too. */
typedef struct ng_element {
  double w, m, v;
} ng_element;
ng_element ng_update_element(const ng_weight_update *s, ng_element x, double d);

/* update.c: u <- minus the weight after update s with lr = 1 and keep = 0, computed on copies of the moments. If one of the
 * n <= NG_LINE weights is not finite, all u are 0. */
void ng_direction_of_update(const ng_direction *e, const ng_weight_update *s, int64_t r, int64_t c,
                            int64_t n, float *u);

/* ratios.c: count element d of a direction or update, whose gradient is g, in the counts, extremes and sums of `to`. */
void ng_count_ratio(const ng_ratios *to, double d, double g);

#endif
