/* ref_flat.c: the entry of flat.c, element by element in double. */
#include <float.h>
#include <math.h>

#include "kernel/entries.h"

/* Element k of the vectors, which is element `at` of its parameter. */
typedef struct element {
  const ng_flat_pass *p;
  const ng_flat_range *r;
  int64_t k, at;
} element;

static double read_bound(const element *e, const ng_place *v) {
  float x;
  ng_place_read(v, e->at / e->r->cols, e->at % e->r->cols, 1, &x);
  return (double)x;
}

static bool is_skipped(const element *e) {
  return e->r->is_excluded || (e->p->mask != NULL && e->p->mask[e->k] == 0);
}

/* *to <- x, or `old` if x is not finite. Return the number of elements that kept the old value. */
static int store_finite(float *to, double x, float old) {
  const bool fits = fabs(x) <= (double)FLT_MAX;
  *to = fits ? (float)x : old;
  return !fits;
}

static int update_moments(const element *e) {
  const ng_flat_pass *p = e->p;
  const int64_t k = e->k;
  float *to = &p->to[k];
  if (p->op == NG_FLAT_DIVIDE) {
    const double x = (double)*to;
    const double s = (double)p->s[k] + x * x, used = s <= (double)FLT_MAX ? s : (double)p->s[k];
    *to = (float)(x / (sqrt(used) + p->eps));
    return store_finite(&p->next_s[k], s, p->s[k]);
  }
  if (e->r->is_excluded) {
    *to = p->v[k];
    if (p->op == NG_FLAT_ADAM && p->s != NULL) p->next_s[k] = p->s[k];
    return 0;
  }
  const double x = (double)p->x[k], v = p->old * (double)p->v[k] + p->take * x;
  int kept = store_finite(to, v, p->v[k]);
  if (p->op == NG_FLAT_MIX) return kept;
  p->x[k] = *to;
  if (p->s == NULL) return kept;
  const double s = p->forget * (double)p->s[k] + p->add * x * x;
  const double m = fabs(v) <= (double)FLT_MAX ? v : (double)p->v[k];
  const double used = s <= (double)FLT_MAX ? s : (double)p->s[k];
  p->x[k] = (float)(m * p->m / (sqrt(used * p->m2) + p->eps));
  return kept + store_finite(&p->next_s[k], s, p->s[k]);
}

/* Apply the pass to an element; return 1 if the pass counts the element. */
static int apply_pass(const element *e) {
  const ng_flat_pass *p = e->p;
  const ng_flat_range *r = e->r;
  float *to = p->to == NULL ? NULL : &p->to[e->k];
  const bool reads =
      p->op == NG_FLAT_READ || p->op == NG_FLAT_MEASURE || (p->op == NG_FLAT_FILL && p->x == NULL);
  const double g = reads && !r->is_excluded ? read_bound(e, r->grad) : 0.0;
  switch (p->op) {
  case NG_FLAT_READ:
    *to = is_skipped(e) ? 0.0F : (float)g;
    return !(fabs(g) <= p->limit);
  case NG_FLAT_DECAY:
    if (!is_skipped(e)) *to = (float)((double)*to + p->take * read_bound(e, r->weight));
    return !r->is_excluded && !(fabsf(*to) <= FLT_MAX);
  case NG_FLAT_MASK:
    p->mask[e->k] = read_bound(e, r->weight) != 0.0;
    return 0;
  case NG_FLAT_CLEAR:
    if (r->is_excluded) *to = p->v == NULL ? 0.0F : p->v[e->k];
    return 0;
  case NG_FLAT_SCALE:
    *to = r->is_excluded ? -p->v[e->k] : (float)(p->take * (double)*to);
    return 0;
  case NG_FLAT_FILL:
    if (*to != 0.0F || is_skipped(e)) return 0;
    *to = p->x == NULL ? (float)g : p->x[e->k];
    if (p->x != NULL) p->x[e->k] = 0.0F;
    return 0;
  case NG_FLAT_LIMIT:
    if (fabs((double)*to) * p->take <= p->limit) return 0;
    *to = 0.0F;
    return 1;
  case NG_FLAT_COUNT:
    return !is_skipped(e);
  case NG_FLAT_MEASURE:
    p->out[0] += g * (double)*to;
    p->out[1] += g * g;
    p->out[2] += r->is_excluded ? 0.0 : (double)*to * (double)*to;
    return 0;
  default:
    return update_moments(e);
  }
}

void ng_ref_run_flat_passes(ng_queue *q, const ng_flat_pass *p, int64_t n) {
  (void)q;
  for (const ng_flat_pass *end = p + n; p < end; p++) {
    p->out[0] = p->out[1] = p->out[2] = 0.0;
    for (const ng_flat_range *r = p->range; r < p->range + p->ranges; r++) {
      for (int64_t k = 0; k < r->n; k++) {
        p->out[0] += apply_pass(&(element){p, r, r->at + k, r->from + k});
      }
    }
  }
}
