/* sink.c: write gradients, or weights and moments, for all families.
 *
 * In: tiles of D or PD with coefficients and the clip factor.  Out: gradients in place, or weights updated by SGD or
 * AdamW as in torch.optim (AdamW: decoupled weight decay, arXiv 1711.05101), in the caller's dtype; moments are f32.
 *
 * With d = clip factor times PD, w the weight, m and v the moments, t the number of the update; lr, wd (weight decay),
 * mu (momentum), damp (dampening), b1, b2 and eps are the caller's numbers:
 *
 *      SGD    g = d + wd w;  m <- mu m + (1 - damp) g;  w <- w - lr m, or w - lr (g + mu m)
 *      AdamW  m <- b1 m + (1-b1) d;  v <- b2 v + (1-b2) d^2
 *             w <- (1 - lr wd) w - lr / (1-b1^t) m / (sqrt(v / (1-b2^t)) + eps)
 *
 * An element whose new weight, momentum or moment is not finite keeps the old value and is counted.  Tiles are disjoint
 * and a sink has no state of its own, so any thread may write any tile.  With a rank-one family, emit moves 12 bytes
 * per f32 parameter (two reads, one write), 24 with SGD and momentum. */
#include "step/step.h"

#include <float.h>
#include <math.h>

#include "simd.h"

/* Elements of a row that are converted at once; they fit on the stack and in the first cache. */
enum { TILE = 512 };

/* The direction of an update: scale d + k u, or scale d if u is NULL.  A family whose PD is a
 * multiple of the gradient plus a rank-one term needs no array for PD. */
typedef struct direction {
  const float *d, *u;
  float scale, k;
} direction;

/* Return a magnitude: every smaller f32 rounds to a finite number of dtype t.  The largest f16 is 65504; 65520, halfway
 * to the next power of 2, rounds to Inf. */
static float limit_of(ng_dtype t) {
  return t == NG_F16 ? 65520.0f : t == NG_BF16 ? 0x1.ffp127f : INFINITY;
}

/* x <- scale d + k u, where d is `values` or x, and u counts only if `pair`.  An element of magnitude >= limit keeps
 * its x; return the number of such elements.  Flags are constants after inlining, so no variant branches. */
static inline __attribute__((always_inline)) int32_t
rescale_loop(float *restrict x, const float *restrict values, const float *restrict u, int64_t n,
             float scale, float k, float limit, bool has_values, bool pair) {
  int32_t stayed = 0;
  for (int64_t i = 0; i < n; i++) {
    const float d = has_values ? values[i] : x[i];
    const float y = pair ? scale * d + k * u[i] : scale * d;
    const bool fits = fabsf(y) < limit;
    x[i] = fits ? y : x[i];
    stayed += !fits;
  }
  return stayed;
}

NG_CLONES static int32_t rescale(float *x, const float *values, const float *u, int64_t n,
                                 float scale, float k, float limit) {
  if (values != NULL) {
    return u != NULL ? rescale_loop(x, values, u, n, scale, k, limit, true, true)
                     : rescale_loop(x, values, NULL, n, scale, k, limit, true, false);
  }
  return u != NULL ? rescale_loop(x, NULL, u, n, scale, k, limit, false, true)
                   : rescale_loop(x, NULL, NULL, n, scale, k, limit, false, false);
}

/* x <- scale x + k u without a test, for results known to be finite. */
NG_CLONES static void rescale_known(float *restrict x, const float *restrict u, int64_t n,
                                    float scale, float k) {
  for (int64_t i = 0; i < n && u == NULL; i++) {
    x[i] = scale * x[i];
  }
  for (int64_t i = 0; i < n && u != NULL; i++) {
    x[i] = scale * x[i] + k * u[i];
  }
}

/* y <- scale d + k u in double, rounded once; y may be d. */
NG_CLONES static void rescale_wide(float *y, const float *d, const float *u, int64_t n,
                                   double scale, double k) {
  for (int64_t i = 0; i < n; i++) {
    y[i] = (float)(scale * (double)d[i] + (u == NULL ? 0.0 : k * (double)u[i]));
  }
}

/* Return how many elements overflow.  Momentum and weight are tested separately: if only the weight overflows, the
 * momentum still changes.  If the momentum is not finite, the new weight is not finite either, so counting weights is
 * enough.  `plain`: keep and take are 1, so the compiler removes two products. */
static inline __attribute__((always_inline)) int32_t
sgd_loop(const ng_sgd_numbers *s, const float counted[2], float *restrict m, float *restrict w,
         const direction *of, int64_t n, float limit, bool pair, bool nesterov, bool plain) {
  const float *restrict d = of->d, *restrict u = of->u;
  const float scale = of->scale, k = of->k, lr = s->lr, mu = s->mu, decay = s->decay,
              old = counted[1], keep = plain ? 1.0f : s->keep, take = plain ? 1.0f : counted[0];
  int32_t updated = 0;
  for (int64_t i = 0; i < n; i++) {
    const float pd = pair ? scale * d[i] + k * u[i] : scale * d[i];
    const float g = pd + decay * w[i];
    const float v = old * m[i] + take * g;
    const bool fits = fabsf(v) < INFINITY;
    const float step = nesterov ? g + mu * v : v;
    m[i] = fits ? v : m[i];
    const float moved = keep * w[i] - lr * step;
    const bool in_range = fabsf(moved) < limit;
    w[i] = in_range ? moved : w[i];
    updated += in_range;
  }
  return (int32_t)n - updated;
}

NG_CLONES static int32_t sgd_tile(const ng_sgd_numbers *s, const float counted[2], float *m,
                                  float *w, const direction *of, int64_t n, float limit) {
  const bool pair = of->u != NULL, plain = s->keep == 1.0f && counted[0] == 1.0f;
  if (s->nesterov) {
    return pair ? sgd_loop(s, counted, m, w, of, n, limit, true, true, false)
                : sgd_loop(s, counted, m, w, of, n, limit, false, true, false);
  }
  if (plain && pair) return sgd_loop(s, counted, m, w, of, n, limit, true, false, true);
  return pair ? sgd_loop(s, counted, m, w, of, n, limit, true, false, false)
              : sgd_loop(s, counted, m, w, of, n, limit, false, false, false);
}

/* Return how many elements overflow.  If the second moment overflows, the denominator of this step is Inf, so the
 * weight only decays. */
static inline __attribute__((always_inline)) int32_t
adamw_loop(const ng_adamw_numbers *a, const float counted[2], float *restrict m, float *restrict v,
           float *restrict w, const direction *of, int64_t n, float limit, bool pair) {
  const float *restrict d = of->d, *restrict u = of->u;
  const float scale = of->scale, k = of->k, b1 = a->b1, b2 = a->b2, n1 = a->n1, n2 = a->n2,
              keep = a->keep, step = counted[0], root = counted[1], eps = a->eps;
  int32_t stayed = 0;
  for (int64_t i = 0; i < n; i++) {
    const float g = pair ? scale * d[i] + k * u[i] : scale * d[i];
    const float first = b1 * m[i] + n1 * g;
    const float second = b2 * v[i] + n2 * (g * g);
    const float moved = keep * w[i] - step * (first / (sqrtf(second) * root + eps));
    const bool first_fits = fabsf(first) < INFINITY, second_fits = second < INFINITY;
    const bool in_range = fabsf(moved) < limit;
    m[i] = first_fits ? first : m[i];
    v[i] = second_fits ? second : v[i];
    w[i] = in_range ? moved : w[i];
    stayed += !(first_fits & second_fits & in_range);
  }
  return stayed;
}

NG_CLONES static int32_t adamw_tile(const ng_adamw_numbers *a, const float counted[2], float *m,
                                    float *v, float *w, const direction *of, int64_t n,
                                    float limit) {
  return of->u != NULL ? adamw_loop(a, counted, m, v, w, of, n, limit, true)
                       : adamw_loop(a, counted, m, v, w, of, n, limit, false);
}

/* Update n weights and their moments; return how many elements overflowed. */
static int32_t update(ng_out kind, const ng_group_numbers *of, const float counted[2], float *m,
                      float *v, float *w, const direction *pd, int64_t n, float limit) {
  return kind == NG_OUT_SGD ? sgd_tile(&of->sgd, counted, m, w, pd, n, limit)
                            : adamw_tile(&of->adamw, counted, m, v, w, pd, n, limit);
}

/* Several threads may count for one parameter; overflow is rare, so they seldom contend. */
static void count_overflow(ng_slot *slot, int32_t elements) {
  if (elements > 0) atomic_fetch_add(&slot->overflowed, elements);
}

/* ---- writing rows ----------------------------------------------------------------------------*/

/* Return n elements of a row as f32: their address, or a copy converted into `room`. */
static float *as_f32(const ng_place *v, int64_t row, int64_t col, int64_t n, float *room) {
  if (v->dtype == NG_F32 && v->straight) return ng_place_at(v, row, col);
  ng_place_read(v, row, col, n, room);
  return room;
}

/* Return whether PD needs double: two terms nearly cancel, or a factor does not fit f32. */
static bool is_wide(const ng_pair *pair) {
  return pair->wide || fabs(pair->scale) > (double)FLT_MAX || fabs(pair->k) > (double)FLT_MAX;
}

/* Write a gradient in place and test each element.  f32 in straight rows needs no copy; other
 * gradients pass through a tile. */
static void put_tested(ng_slot *slot, int64_t row, int64_t col, int64_t n, const ng_pair *pair) {
  float tile[TILE], wide[TILE];
  const ng_place *v = &slot->grad;
  const bool there = v->dtype == NG_F32 && v->straight, in_double = is_wide(pair);
  const int64_t most = ng_place_columns(v);
  const float limit = limit_of(v->dtype);
  int32_t overflowed = 0;
  for (int64_t c = 0, m; c < n; c += m) {
    m = there && !in_double ? n : ng_min64(most, n - c);
    float *x = as_f32(v, row, col + c, m, tile);
    const float *values = pair->values == NULL ? NULL : pair->values + c;
    const float *u = pair->u == NULL ? NULL : pair->u + c;
    if (in_double) {
      rescale_wide(wide, values == NULL ? x : values, u, m, pair->scale, pair->k);
      overflowed += rescale(x, wide, NULL, m, 1.0f, 0.0f, limit);
    } else {
      overflowed += rescale(x, values, u, m, (float)pair->scale, (float)pair->k, limit);
    }
    if (x == tile) ng_place_write(v, row, col + c, m, tile);
  }
  count_overflow(slot, overflowed);
}

/* If pair->most is below half of FLT_MAX (half covers rounding), no element needs a test. */
static void put_gradient(const ng_sink *s, ng_slot *slot, int64_t row, int64_t col, int64_t n,
                         const ng_pair *pair) {
  const ng_place *v = &slot->grad;
  (void)s;
  if (pair->most > 0.0 && pair->most < 0.5 * (double)FLT_MAX && pair->values == NULL &&
      !is_wide(pair) && v->dtype == NG_F32 && v->straight) {
    rescale_known(ng_place_at(v, row, col), pair->u, n, (float)pair->scale, (float)pair->k);
    return;
  }
  put_tested(slot, row, col, n, pair);
}

/* Return the direction of m elements from column col + c on; the gradient is read in place, or converted into `room`.
 * If is_wide(pair), compute PD in double and round PD into `room`. */
static direction direction_of(const ng_slot *slot, int64_t row, int64_t col, int64_t c, int64_t m,
                              const ng_pair *pair, float *room) {
  const float *u = pair->u == NULL ? NULL : pair->u + c;
  const float *d =
      pair->values != NULL ? pair->values + c : as_f32(&slot->grad, row, col + c, m, room);
  if (!is_wide(pair)) return (direction){d, u, (float)pair->scale, (float)pair->k};
  rescale_wide(room, d, u, m, pair->scale, pair->k);
  return (direction){room, NULL, 1.0f, 0.0f};
}

/* Update weights and moments.  The gradient stays unchanged, because the caller may need its norm.  `straight` needs no
 * tile.  Moments are dense for any stride of the weight. */
static void put_update(const ng_sink *sink, ng_slot *slot, int64_t row, int64_t col, int64_t n,
                       const ng_pair *pair) {
  const ng_update_sink *s = (const ng_update_sink *)(const void *)sink;
  const ng_place *from = &slot->grad, *to = &slot->weight;
  const bool straight = to->dtype == NG_F32 && to->straight && !is_wide(pair) &&
                        (pair->values != NULL || (from->dtype == NG_F32 && from->straight));
  const int64_t most = ng_place_columns(to->straight ? from : to);
  const ng_group_numbers *numbers = &s->group[slot->update_group];
  const float *counted = slot->entry->missed > 0 ? slot->late : numbers->counted;
  float room[TILE], tile[TILE];
  int32_t overflowed = 0;
  for (int64_t c = 0, m; c < n; c += m) {
    m = straight ? n : ng_min64(most, n - c);
    const int64_t at = row * slot->cols + col + c;
    float *w = as_f32(to, row, col + c, m, tile);
    const direction of = direction_of(slot, row, col, c, m, pair, room);
    overflowed += update(s->kind, numbers, counted, slot->m == NULL ? NULL : slot->m + at,
                         slot->v == NULL ? NULL : slot->v + at, w, &of, m, limit_of(to->dtype));
    if (w == tile) ng_place_write(to, row, col + c, m, tile);
  }
  count_overflow(slot, overflowed);
}

void ng_overflow_begin(ng_precond *p) {
  for (int32_t i = 0; i < p->entries; i++) {
    for (int32_t k = 0; k < p->entry[i]->slots; k++) {
      atomic_store(&p->entry[i]->slot[k].overflowed, 0);
    }
  }
}

ng_status ng_overflow_end(ng_precond *p) {
  const ng_slot *first = NULL;
  int64_t all = 0;
  for (int32_t i = 0; i < p->entries; i++) {
    for (int32_t k = 0; k < p->entry[i]->slots; k++) {
      const ng_slot *s = &p->entry[i]->slot[k];
      const int64_t mine = atomic_load(&s->overflowed);
      if (mine > 0 && first == NULL) first = s;
      all += mine;
    }
  }
  p->overflowed += all;
  p->step->overflowed = all;
  if (all == 0) return NG_OK;
  return ng_fail(p->ctx, NG_RESCUED,
                 "'%s'%s: elements whose result is not finite in its dtype kept their old value "
                 "(elements: %lld)",
                 first->name, all > atomic_load(&first->overflowed) ? " and others" : "",
                 (long long)all);
}

/* ---- the numbers of a group ------------------------------------------------------------------*/

/* out <- the two numbers that depend on the count of updates (ng_group_numbers.counted).
 *
 * SGD: {take, old} of m <- old m + take g.  In the first update of a parameter, and with momentum 0, m <- g without
 * dampening, as in torch, where the buffer starts as a copy of g.
 * AdamW: {lr / (1 - b1^t), 1 / sqrt(1 - b2^t)}, t = updates + 1: no division per element.  1 - b^t is computed in
 * double: at t = 1, b2 = 0.999 an f32 would lose three digits. */
static void count_updates(const ng_group_numbers *of, ng_out kind, int64_t updates, float out[2]) {
  const bool first = updates == 0 || of->momentum == 0.0;
  const double t = (double)(updates + 1);
  if (kind == NG_OUT_SGD) {
    out[0] = first ? 1.0f : (float)(1.0 - of->dampening);
    out[1] = first ? 0.0f : (float)of->momentum;
  } else {
    out[0] = (float)(of->lr / (1.0 - pow(of->beta1, t)));
    out[1] = (float)(1.0 / sqrt(1.0 - pow(of->beta2, t)));
  }
}

void ng_update_sgd(ng_group_numbers *of, const ng_sgd *how, int64_t updates) {
  of->lr = how->lr;
  of->momentum = how->momentum;
  of->dampening = how->dampening;
  of->sgd = (ng_sgd_numbers){
      .lr = (float)how->lr,
      .mu = (float)how->momentum,
      .keep = how->decoupled ? (float)(1.0 - how->lr * how->weight_decay) : 1.0f,
      .decay = how->decoupled ? 0.0f : (float)how->weight_decay,
      .nesterov = how->nesterov != 0,
  };
  count_updates(of, NG_OUT_SGD, updates, of->counted);
}

void ng_update_adamw(ng_group_numbers *of, const ng_adamw *how, int64_t updates) {
  of->lr = how->lr;
  of->beta1 = how->beta1;
  of->beta2 = how->beta2;
  of->adamw = (ng_adamw_numbers){
      .b1 = (float)how->beta1,
      .b2 = (float)how->beta2,
      .n1 = (float)(1.0 - how->beta1),
      .n2 = (float)(1.0 - how->beta2),
      .keep = (float)(1.0 - how->lr * how->weight_decay),
      .eps = (float)how->eps,
  };
  count_updates(of, NG_OUT_ADAMW, updates, of->counted);
}

/* As torch, count updates per parameter: a frozen or absent parameter had fewer updates. */
void ng_update_late(ng_precond *p) {
  const ng_update_sink *s = &p->step->out;
  for (int32_t i = 0; i < p->entries && s->kind != NG_OUT_GRADIENT; i++) {
    ng_entry *e = p->entry[i];
    for (int32_t k = 0; k < e->slots && e->missed > 0; k++) {
      ng_slot *slot = &e->slot[k];
      count_updates(&s->group[slot->update_group], s->kind, p->updates - e->missed, slot->late);
    }
  }
}

/* u <- minus the weight after an update with lr = 1 and keep = 0: the direction.  If one of the n weights is not
 * finite, all u are 0. n <= TILE. */
void ng_update_direction(const ng_precond *p, const ng_slot *slot, int64_t row, int64_t col,
                         int64_t n, float *u) {
  const ng_update_sink *s = &p->step->out;
  const int64_t at = row * slot->cols + col, updates = p->updates - slot->entry->missed;
  const size_t bytes = (size_t)n * sizeof(float);
  const ng_pair plain = {.scale = 1.0};
  ng_group_numbers one = s->group[slot->update_group];
  float seen[TILE], m[TILE], v[TILE], counted[2];
  const direction of = direction_of(slot, row, col, 0, n, &plain, seen);
  ng_place_read(&slot->weight, row, col, n, u);
  if (!ng_all_finite(u, NG_F32, n)) {
    memset(u, 0, bytes);
    return;
  }
  one.lr = 1.0;
  one.sgd.lr = 1.0f;
  one.sgd.keep = one.adamw.keep = 0.0f;
  if (slot->m != NULL) memcpy(m, slot->m + at, bytes);
  if (slot->v != NULL) memcpy(v, slot->v + at, bytes);
  count_updates(&one, s->kind, updates, counted);
  (void)update(s->kind, &one, counted, m, v, u, &of, n, INFINITY);
  for (int64_t i = 0; i < n; i++) {
    u[i] = -u[i];
  }
}

void ng_update_sink_begin(ng_update_sink *s) {
  s->sink.put = s->kind == NG_OUT_GRADIENT ? put_gradient : put_update;
}
