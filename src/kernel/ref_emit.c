/* ref_emit.c: measure, emit, store, norm2, update and ratios, element by element in double. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernel/direction.h"
#include "kernel/entries.h"

/* ---- elements --------------------------------------------------------------------------------*/

static double read_element(const ng_place *v, int64_t row, int64_t col) {
  double x;
  ng_place_read_double(v, row, col, 1, &x);
  return x;
}

/* Write x if it fits the dtype of the place; return whether it fits. */
static bool write_if_it_fits(const ng_place *v, int64_t row, int64_t col, double x) {
  if (v->dtype == NG_F64) {
    if (x - x == 0.0) ng_place_write_double(v, row, col, 1, &x);
    return x - x == 0.0;
  }
  const float y = (float)x;
  float stored;
  uint64_t buffer;
  ng_from_f32(&buffer, v->dtype, &y, 1);
  ng_to_f32(&stored, &buffer, v->dtype, 1);
  const bool fits = stored - stored == 0.0f;
  if (fits) ng_place_write(v, row, col, 1, &y);
  return fits;
}

static double gradient_element(const ng_region *D, int64_t r, int64_t c) {
  return read_element(D->place, D->row + r, D->col + c);
}

/* Return element (r, c) of a direction, before clip_bound is applied. */
static double direction_element(const ng_direction *e, int64_t r, int64_t c) {
  const double y = e->y != NULL ? (double)e->y[r] : e->y_double != NULL ? e->y_double[r] : 1.0;
  double u = 0.0;
  const int64_t at = r * e->u_row + (e->map != NULL ? e->map[c] : c * e->u_col);
  if (e->u != NULL) u = (double)e->u[at];
  if (e->u_double != NULL) u = e->u_double[at];
  return e->is_stored ? e->scale * u : e->scale * gradient_element(&e->D, r, c) + e->k * y * u;
}

/* The same, bounded to [-clip_bound, clip_bound] (clip = value). */
static double bounded_element(const ng_direction *e, int64_t r, int64_t c) {
  const double d = direction_element(e, r, c), bound = (double)e->clip_bound;
  return e->clip_bound > 0.0f ? fmax(-bound, fmin(bound, d)) : d;
}

#define EACH_ELEMENT(e, r, c)                                                                      \
  for (int64_t r = 0; r < (e)->D.rows; r++)                                                        \
    for (int64_t c = 0; c < (e)->D.cols; c++)

/* ---- sums ------------------------------------------------------------------------------------*/

void ng_ref_measure_gradients(ng_queue *q, const ng_measure *m, int64_t n, double *parts) {
  (void)q, (void)parts;
  for (const ng_measure *end = m + n; m < end; m++) {
    m->out[0] = m->out[1] = 0.0;
    for (int64_t r = 0; m->t != NULL && r < m->D.rows; r++) {
      m->t[r] = 0.0;
    }
    EACH_ELEMENT(m, r, c) {
      const double x = gradient_element(&m->D, r, c), u = m->x == NULL ? 0.0 : (double)m->x[c];
      m->out[0] += x * x;
      if (m->t != NULL) {
        m->t[r] += x * u;
      } else {
        m->out[1] += (m->y == NULL ? 1.0 : (double)m->y[r]) * x * u;
      }
    }
    for (int64_t r = 0; m->t != NULL && r < m->D.rows; r++) {
      const double b =
          m->bias.place != NULL ? (double)m->y[0] * gradient_element(&m->bias, 0, r) : 0.0;
      m->t[r] += b;
      m->out[1] += m->t[r] * m->t[r];
      m->out[2] = (r > 0 ? m->out[2] : 0.0) + m->t[r] * b;
    }
  }
}

void ng_ref_store_directions(ng_queue *q, const ng_direction *e, float *const *to, int64_t n) {
  (void)q;
  for (int64_t i = 0; i < n; i++, e++) {
    EACH_ELEMENT(e, r, c) { to[i][r * e->D.cols + c] = (float)direction_element(e, r, c); }
  }
}

void ng_ref_sum_norms(ng_queue *q, const ng_direction *e, int64_t n, double *parts, double *out) {
  (void)q, (void)parts;
  for (int64_t i = 0; i < n; i++, e++) {
    out[i] = 0.0;
    EACH_ELEMENT(e, r, c) { out[i] += direction_element(e, r, c) * direction_element(e, r, c); }
  }
}

/* ---- gradients, weights ------------------------------------------------------------------------*/

void ng_ref_write_directions(ng_queue *q, const ng_direction *e, int64_t n) {
  (void)q;
  for (const ng_direction *end = e + n; e < end; e++) {
    EACH_ELEMENT(e, r, c) {
      const bool fits =
          write_if_it_fits(e->D.place, e->D.row + r, e->D.col + c, bounded_element(e, r, c));
      if (!fits) atomic_fetch_add(e->overflowed, 1);
    }
  }
}

static ng_dtype moment_dtype(const ng_weight_update *s) {
  return s->weight->dtype == NG_F64 ? NG_F64 : NG_F32;
}

static double round_to_dtype(ng_dtype t, double x) { return t == NG_F64 ? x : (double)(float)x; }

static ng_element step_sgd(ng_dtype t, const ng_sgd_coefficients *s, const double coefficients[2],
                           ng_element x, double d) {
  const double g = d + round_to_dtype(t, s->decay) * x.w;
  x.m = round_to_dtype(t, round_to_dtype(t, coefficients[1]) * x.m +
                              round_to_dtype(t, coefficients[0]) * g);
  const double step = s->nesterov ? g + round_to_dtype(t, s->mu) * x.m : x.m;
  x.w = round_to_dtype(t, s->keep) * x.w - round_to_dtype(t, s->lr) * step;
  return x;
}

static ng_element step_adamw(ng_dtype t, const ng_adamw_coefficients *a,
                             const double coefficients[2], ng_element x, double d) {
  x.m = round_to_dtype(t, round_to_dtype(t, a->b1) * x.m + round_to_dtype(t, a->n1) * d);
  x.v = round_to_dtype(t, round_to_dtype(t, a->b2) * x.v + round_to_dtype(t, a->n2) * (d * d));
  const double root = sqrt(x.v) * round_to_dtype(t, coefficients[1]) + round_to_dtype(t, a->eps);
  x.w = round_to_dtype(t, a->keep) * x.w - round_to_dtype(t, coefficients[0]) * (x.m / root);
  return x;
}

ng_element ng_update_element(const ng_weight_update *s, ng_element x, double d) {
  const ng_dtype t = moment_dtype(s);
  return s->sgd != NULL ? step_sgd(t, s->sgd, s->coefficients, x, d)
                        : step_adamw(t, s->adamw, s->coefficients, x, d);
}

static double load_moment(const void *m, ng_dtype t, int64_t at) {
  return m == NULL ? 0.0 : ng_number_at(m, t, at);
}

/* Store a moment if it is finite; return whether it is. */
static bool store_moment(void *m, ng_dtype t, int64_t at, double x) {
  const bool fits = x - x == 0.0;
  if (fits) ng_set_number(m, t, at, x);
  return fits;
}

static ng_element load_element(const ng_weight_update *s, int64_t row, int64_t col) {
  const int64_t at = row * s->cols + col;
  const ng_dtype t = moment_dtype(s);
  return (ng_element){read_element(s->weight, row, col), load_moment(s->m, t, at),
                      load_moment(s->v, t, at)};
}

void ng_ref_update_weights(ng_queue *q, const ng_direction *e, const ng_weight_update *s,
                           int64_t n) {
  (void)q;
  for (const ng_direction *end = e + n; e < end; e++, s++) {
    EACH_ELEMENT(e, r, c) {
      const int64_t row = e->D.row + r, col = e->D.col + c, at = row * s->cols + col;
      const ng_dtype t = moment_dtype(s);
      const ng_element x =
          ng_update_element(s, load_element(s, row, col), bounded_element(e, r, c));
      bool fits = s->m == NULL || store_moment(s->m, t, at, x.m);
      if (s->v != NULL && !store_moment(s->v, t, at, x.v)) fits = false;
      if (!write_if_it_fits(s->weight, row, col, x.w) || !fits) atomic_fetch_add(e->overflowed, 1);
    }
  }
}

/* ---- ratios ----------------------------------------------------------------------------------*/

void ng_ref_count_ratios(ng_queue *q, const ng_direction *e, const ng_weight_update *s, int64_t n,
                         const ng_ratios *r) {
  ng_ratios to = *r;
  (void)q;
  to.sum = r->out;
  memset(r->count, 0, NG_RATIO_BINS * sizeof *r->count);
  memset(r->out, 0, 4 * sizeof *r->out);
  if (r->bins == 0) r->extreme[0] = INFINITY, r->extreme[1] = 0.0;
  for (int64_t i = 0; i < n; i++, e++) {
    EACH_ELEMENT(e, row, c) {
      const double g = gradient_element(&e->D, row, c);
      double d = direction_element(e, row, c);
      if (s != NULL) {
        const ng_element x = load_element(&s[i], e->D.row + row, e->D.col + c);
        d = x.w - x.w == 0.0 ? -ng_update_element(&s[i], x, d).w : 0.0;
      }
      ng_count_ratio(&to, d, g);
    }
  }
}
