/* sink.c: where a gradient leaves: written once for all families.
 *
 * In: tiles of PD, or of a gradient and what PD adds to it, times the clip.  Out: a gradient, or through
 * SGD or AdamW the weight itself, in the caller's dtype.  The formulas are those of torch.optim.SGD and
 * torch.optim.AdamW (decoupled weight decay, arXiv 1711.05101).  The optimizer state is f32 whatever the
 * weight's dtype.
 *
 * Rows are disjoint and nothing is kept between calls, so any thread may put any tile.  Each parameter
 * has a group, and each group its numbers (ng_set_group).
 *
 * With d the preconditioned gradient times the clip, w the weight, m and v the moments, t the
 * update:
 *
 *      SGD    g = d + wd w;  m <- mu m + (1 - damp) g;  w <- w - lr m, or w - lr (g + mu m)
 *      AdamW  m <- b1 m + (1-b1) d;  v <- b2 v + (1-b2) d^2
 *             w <- (1 - lr wd) w - lr / (1-b1^t) m / (sqrt(v / (1-b2^t)) + eps)
 *
 * Weight decay comes after the preconditioner, which never sees it; decoupled SGD decays as AdamW
 * does.  After a rank-one family a step moves 12 bytes a parameter for a gradient in f32 (two reads
 * with measure's, one write), 24 with SGD and momentum. */
#include "step/step.h"

#include <float.h>
#include <math.h>

#include "simd.h"

/* One tile of a row, small enough for the stack and the first cache: where 16 bits are
 * converted. */
enum { TILE = 512 };

/* What goes into an update: scale d + k u, and scale d alone where there is no u.  A family whose PD
 * is a multiple of the gradient and a rank-one term needs no array for it. */
typedef struct direction {
  const float *d, *u;
  float scale, k;
} direction;

/* x = scale x + k u, where x is the gradient itself. */
NG_CLONES static void rescale(float *restrict x, const float *restrict u, int64_t n, float scale,
                              float k) {
  if (u == NULL) {
    for (int64_t i = 0; i < n; i++) {
      x[i] = scale * x[i];
    }
    return;
  }
  for (int64_t i = 0; i < n; i++) {
    x[i] = scale * x[i] + k * u[i];
  }
}

/* The same in double. */
NG_CLONES static void rescale_wide(float *restrict x, const float *restrict u, int64_t n,
                                   double scale, double k) {
  for (int64_t i = 0; i < n; i++) {
    x[i] = (float)(scale * (double)x[i] + (u == NULL ? 0.0 : k * (double)u[i]));
  }
}

/* Flags are constants where it is inlined: six loops without a branch come out of one text.  u and
 * k are read only with `pair`. */
static inline __attribute__((always_inline)) void sgd_loop(const ng_sgd_numbers *s,
                                                           float *restrict m, float *restrict w,
                                                           const direction *of, int64_t n,
                                                           bool pair, bool moments, bool nesterov) {
  const float *restrict d = of->d, *restrict u = of->u;
  const float scale = of->scale, k = of->k, lr = s->lr, mu = s->mu, keep = s->keep,
              decay = s->decay, take = s->take, old = s->old;
  for (int64_t i = 0; i < n; i++) {
    const float pd = pair ? scale * d[i] + k * u[i] : scale * d[i];
    const float g = pd + decay * w[i];
    float step = g;
    if (moments) {
      m[i] = old * m[i] + take * g;
      step = nesterov ? g + mu * m[i] : m[i];
    }
    w[i] = keep * w[i] - lr * step;
  }
}

NG_CLONES static void sgd_tile(const ng_sgd_numbers *s, float *m, float *w, const direction *of,
                               int64_t n) {
  const bool pair = of->u != NULL;
  if (!s->moments) {
    if (pair) {
      sgd_loop(s, m, w, of, n, true, false, false);
    } else {
      sgd_loop(s, m, w, of, n, false, false, false);
    }
  } else if (s->nesterov) {
    if (pair) {
      sgd_loop(s, m, w, of, n, true, true, true);
    } else {
      sgd_loop(s, m, w, of, n, false, true, true);
    }
  } else {
    if (pair) {
      sgd_loop(s, m, w, of, n, true, true, false);
    } else {
      sgd_loop(s, m, w, of, n, false, true, false);
    }
  }
}

static inline __attribute__((always_inline)) void adamw_loop(const ng_adamw_numbers *a,
                                                             float *restrict m, float *restrict v,
                                                             float *restrict w, const direction *of,
                                                             int64_t n, bool pair) {
  const float *restrict d = of->d, *restrict u = of->u;
  const float scale = of->scale, k = of->k, b1 = a->b1, b2 = a->b2, n1 = a->n1, n2 = a->n2,
              keep = a->keep, step = a->step, root = a->root, eps = a->eps;
  for (int64_t i = 0; i < n; i++) {
    const float g = pair ? scale * d[i] + k * u[i] : scale * d[i];
    m[i] = b1 * m[i] + n1 * g;
    v[i] = b2 * v[i] + n2 * (g * g);
    w[i] = keep * w[i] - step * (m[i] / (sqrtf(v[i]) * root + eps));
  }
}

NG_CLONES static void adamw_tile(const ng_adamw_numbers *a, float *m, float *v, float *w,
                                 const direction *of, int64_t n) {
  if (of->u != NULL) {
    adamw_loop(a, m, v, w, of, n, true);
  } else {
    adamw_loop(a, m, v, w, of, n, false);
  }
}

/* n weights and their moments through SGD or AdamW. */
static void update(const ng_update_sink *s, const ng_slot *slot, float *m, float *v, float *w,
                   const direction *of, int64_t n) {
  const ng_group_numbers *numbers = &s->group[slot->update_group];
  ng_group_numbers own;
  if (slot->entry->missed > 0) {
    own = *numbers;
    own.sgd.take = own.adamw.step = slot->late[0];
    own.sgd.old = own.adamw.root = slot->late[1];
    numbers = &own;
  }
  if (s->kind == NG_OUT_SGD) {
    sgd_tile(&numbers->sgd, m, w, of, n);
  } else {
    adamw_tile(&numbers->adamw, m, v, w, of, n);
  }
}

/* ---- the ways out ----------------------------------------------------------------------------*/

/* n elements of a row as f32: where they are, or converted or gathered into `room`. */
static float *as_f32(const ng_place *v, int64_t row, int64_t col, int64_t n, float *room) {
  if (v->dtype == NG_F32 && v->straight) return ng_place_at(v, row, col);
  ng_place_read(v, row, col, n, room);
  return room;
}

/* In double: where two terms nearly cancel, or a factor is no f32. */
static bool is_wide(const ng_pair *pair) {
  return pair->wide || fabs(pair->scale) > (double)FLT_MAX || fabs(pair->k) > (double)FLT_MAX;
}

/* PD of at most TILE elements into x: x has the gradient, unless PD is at hand. */
static void make(float *x, int64_t n, const ng_pair *pair, int64_t at) {
  const float *u = pair->u == NULL ? NULL : pair->u + at;
  if (is_wide(pair)) {
    rescale_wide(x, u, n, pair->scale, pair->k);
  } else {
    rescale(x, u, n, (float)pair->scale, (float)pair->k);
  }
}

/* A gradient is written in place; one of 16 bits, or PD that is at hand, by way of a tile.  In f32
 * each element is read and written once, where it lies. */
static void put_gradient(const ng_sink *s, ng_slot *slot, int64_t row, int64_t col, int64_t n,
                         const ng_pair *pair) {
  float tile[TILE];
  const ng_place *v = &slot->grad;
  const bool there = v->dtype == NG_F32 && v->straight;
  const int64_t most = ng_place_columns(v);
  (void)s;
  if (there && pair->values == NULL && !is_wide(pair)) {
    make(ng_place_at(v, row, col), n, pair, 0);
    return;
  }
  for (int64_t c = 0, m; c < n; c += m) {
    m = ng_min64(most, n - c);
    float *x = there ? ng_place_at(v, row, col + c) : tile;
    if (pair->values != NULL) {
      memcpy(x, pair->values + c, (size_t)m * sizeof *x);
    } else if (x == tile) {
      ng_place_read(v, row, col + c, m, tile);
    }
    make(x, m, pair, c);
    if (x == tile) ng_place_write(v, row, col + c, m, tile);
  }
}

/* What goes into the update of m elements from column c of what is put: read where it lies, or by way
 * of `seen`.  With `wide` PD is made in double first and enters as f32. */
static direction direction_of(const ng_slot *slot, int64_t row, int64_t col, int64_t c, int64_t m,
                              const ng_pair *pair, float *seen) {
  const ng_place *from = &slot->grad;
  direction of = {NULL, pair->u == NULL ? NULL : pair->u + c, (float)pair->scale, (float)pair->k};
  if (is_wide(pair)) {
    if (pair->values != NULL) {
      memcpy(seen, pair->values + c, (size_t)m * sizeof *seen);
    } else {
      ng_place_read(from, row, col + c, m, seen);
    }
    make(seen, m, pair, c);
    return (direction){seen, NULL, 1.0f, 0.0f};
  }
  of.d = pair->values != NULL ? pair->values + c : as_f32(from, row, col + c, m, seen);
  return of;
}

/* What the caller made not finite since it was last looked at: known to no bound, found while it is read. */
static bool look(ng_slot *slot, const float *w, int64_t n) {
  const uint32_t most = ng_most_bits(w, n);
  uint32_t seen = atomic_load_explicit(&slot->seen, memory_order_relaxed);
  while (most > seen && !atomic_compare_exchange_weak_explicit(
                            &slot->seen, &seen, most, memory_order_relaxed, memory_order_relaxed)) {
  }
  return most < NG_INF_BITS;
}

/* The gradient stays as it is: the caller may want it for its own norms.  `straight` needs no tile:
 * all of a row in one loop.  Moments are dense, whatever the stride of the weight. */
static void put_update(const ng_sink *sink, ng_slot *slot, int64_t row, int64_t col, int64_t n,
                       const ng_pair *pair) {
  const ng_update_sink *s = (const ng_update_sink *)(const void *)sink;
  const ng_place *from = &slot->grad, *to = &slot->weight;
  const bool straight = to->dtype == NG_F32 && to->straight && !is_wide(pair) &&
                        (pair->values != NULL || (from->dtype == NG_F32 && from->straight));
  const int64_t most = ng_place_columns(to->straight ? from : to);
  float seen[TILE], tile[TILE];
  for (int64_t c = 0, m; c < n; c += m) {
    m = straight ? n : ng_min64(most, n - c);
    const int64_t at = row * slot->cols + col + c;
    float *w = as_f32(to, row, col + c, m, tile);
    if (!look(slot, w, m)) continue; /* stays, with its moments */
    const direction of = direction_of(slot, row, col, c, m, pair, seen);
    update(s, slot, slot->m == NULL ? NULL : slot->m + at, slot->v == NULL ? NULL : slot->v + at, w,
           &of, m);
    if (w == tile) ng_place_write(to, row, col + c, m, tile);
  }
}

/* ---- the probe -------------------------------------------------------------------------------*/

static void found(const ng_probe_sink *s, const ng_slot *slot, ng_fault fault) {
  int64_t entry = 0;
  while (s->p->entry[entry] != slot->entry) {
    entry++;
  }
  const int64_t mine = (entry * 2 + slot->which) * NG_FAULTS + (int64_t)fault;
  _Atomic int64_t *first = (_Atomic int64_t *)(uintptr_t)&s->found;
  int64_t seen = atomic_load(first);
  while (mine < seen && !atomic_compare_exchange_weak(first, &seen, mine)) {
  }
}

/* What was there before is looked at, too: a number that is not finite makes no other. */
static void probe_update(const ng_probe_sink *s, ng_slot *slot, int64_t row, int64_t col, int64_t c,
                         int64_t n, const ng_pair *pair) {
  const int64_t at = row * slot->cols + col + c, bytes = n * (int64_t)sizeof(float);
  float seen[TILE], w[TILE], m[TILE], v[TILE];
  uint32_t narrow[TILE];
  ng_place_read(&slot->weight, row, col + c, n, w);
  if (!ng_all_finite(w, NG_F32, n)) found(s, slot, NG_FAULT_WEIGHT);
  if (slot->m != NULL) memcpy(m, slot->m + at, (size_t)bytes);
  if (slot->v != NULL) memcpy(v, slot->v + at, (size_t)bytes);
  for (int pass = 0; pass < 2; pass++) {
    const bool fine = (slot->m == NULL || ng_all_finite(m, NG_F32, n)) &&
                      (slot->v == NULL || ng_all_finite(v, NG_F32, n));
    if (!fine) found(s, slot, pass == 0 ? NG_FAULT_MOMENT : NG_FAULT_RESULT);
    if (pass > 0) break;
    const direction of = direction_of(slot, row, col, c, n, pair, seen);
    update(&s->p->step->out, slot, slot->m == NULL ? NULL : m, v, w, &of, n);
  }
  ng_from_f32(narrow, slot->weight.dtype, w, n);
  if (!ng_all_finite(narrow, slot->weight.dtype, n)) found(s, slot, NG_FAULT_RESULT);
  if (slot->m != NULL && !ng_bounds_stays(s->p, slot, w, m, n)) found(s, slot, NG_FAULT_LATER);
}

/* The same operations as put_gradient and put_update, rounded to the dtype they go to and then thrown
 * away, so that the answer is that of what would be written. */
static void put_probe(const ng_sink *sink, ng_slot *slot, int64_t row, int64_t col, int64_t n,
                      const ng_pair *pair) {
  const ng_probe_sink *s = (const ng_probe_sink *)(const void *)sink;
  const ng_dtype t = slot->grad.dtype;
  float tile[TILE];
  uint32_t narrow[TILE];
  for (int64_t c = 0, m; c < n; c += m) {
    m = ng_min64(TILE, n - c);
    if (s->p->step->out.kind != NG_OUT_GRADIENT) {
      probe_update(s, slot, row, col, c, m, pair);
      continue;
    }
    if (pair->values != NULL) {
      memcpy(tile, pair->values + c, (size_t)m * sizeof *tile);
    } else {
      ng_place_read(&slot->grad, row, col + c, m, tile);
    }
    make(tile, m, pair, c);
    ng_from_f32(narrow, t, tile, m);
    if (!ng_all_finite(narrow, t, m)) found(s, slot, NG_FAULT_RESULT);
  }
}

void ng_probe_sink_begin(ng_probe_sink *s, const ng_precond *p) {
  s->sink.put = put_probe;
  s->p = p;
  atomic_init(&s->found, NG_PROBE_FINE);
}

void ng_probe_tell(ng_precond *p, ng_probe_sink *s) {
  const int64_t code = atomic_load(&s->found);
  if (code == NG_PROBE_FINE) return;
  const int64_t number = code / NG_FAULTS;
  const ng_slot *slot = &p->entry[number / 2]->slot[number % 2];
  const bool gradient = p->step->out.kind == NG_OUT_GRADIENT;
  const ng_fault fault = (ng_fault)(code % NG_FAULTS);
  p->step->refused = true;
  p->step->beyond = fault == NG_FAULT_RESULT || fault == NG_FAULT_LATER;
  if (fault == NG_FAULT_RESULT) {
    (void)ng_fail(p->ctx, NG_SKIPPED,
                  "'%s': the step would leave the range of its %s (%s); nothing was written",
                  slot->name, gradient ? "gradient" : "weight or moments",
                  ng_dtype_name(gradient ? slot->grad.dtype : slot->weight.dtype));
    return;
  }
  if (fault == NG_FAULT_LATER) {
    (void)ng_fail(
        p->ctx, NG_SKIPPED,
        "'%s': the momentum that the step leaves would take its weight out of the range of "
        "%s in later ones; nothing was written",
        slot->name, ng_dtype_name(slot->weight.dtype));
    return;
  }
  (void)ng_fail(p->ctx, NG_SKIPPED, "'%s': its %s not finite; nothing was written", slot->name,
                fault == NG_FAULT_WEIGHT ? "weight is" : "moments are");
}

/* ---- the numbers of a group ------------------------------------------------------------------*/

/* What depends on how many updates there were.  The first has m <- g without dampening, as torch has it: its
 * buffer starts as a copy.  Numbers are made in double and rounded once. */
static void sgd_counted(const ng_group_numbers *of, int64_t updates, float out[2]) {
  out[0] = updates == 0 ? 1.0f : (float)(1.0 - of->dampening);
  out[1] = updates == 0 ? 0.0f : (float)of->momentum;
}

void ng_update_sgd(ng_group_numbers *of, const ng_sgd *how, int64_t updates) {
  float counted[2];
  of->lr = how->lr;
  of->momentum = how->momentum;
  of->dampening = how->dampening;
  sgd_counted(of, updates, counted);
  of->sgd = (ng_sgd_numbers){
      .lr = (float)how->lr,
      .mu = (float)how->momentum,
      .keep = how->decoupled ? (float)(1.0 - how->lr * how->weight_decay) : 1.0f,
      .decay = how->decoupled ? 0.0f : (float)how->weight_decay,
      .take = counted[0],
      .old = counted[1],
      .moments = how->momentum != 0.0,
      .nesterov = how->nesterov != 0,
  };
}

/* sqrt(v / (1 - b2^t)) as sqrt(v) times a constant: no division an element for the correction.
 * 1 - b^t in double: at t = 1 and b2 = 0.999 an f32 would have lost three digits of it. */
static void adamw_counted(const ng_group_numbers *of, int64_t updates, float out[2]) {
  const double t = (double)(updates + 1);
  out[0] = (float)(of->lr / (1.0 - pow(of->beta1, t)));
  out[1] = (float)(1.0 / sqrt(1.0 - pow(of->beta2, t)));
}

void ng_update_adamw(ng_group_numbers *of, const ng_adamw *how, int64_t updates) {
  float counted[2];
  of->lr = how->lr;
  of->beta1 = how->beta1;
  of->beta2 = how->beta2;
  adamw_counted(of, updates, counted);
  of->adamw = (ng_adamw_numbers){
      .b1 = (float)how->beta1,
      .b2 = (float)how->beta2,
      .n1 = (float)(1.0 - how->beta1),
      .n2 = (float)(1.0 - how->beta2),
      .keep = (float)(1.0 - how->lr * how->weight_decay),
      .step = counted[0],
      .root = counted[1],
      .eps = (float)how->eps,
  };
}

/* torch counts the updates of each parameter: one that was frozen, or had no gradient, has had fewer. */
void ng_update_late(ng_precond *p) {
  const ng_update_sink *s = &p->step->out;
  for (int32_t i = 0; i < p->entries && s->kind != NG_OUT_GRADIENT; i++) {
    ng_entry *e = p->entry[i];
    for (int32_t k = 0; k < e->slots && e->missed > 0; k++) {
      ng_slot *slot = &e->slot[k];
      const ng_group_numbers *of = &s->group[slot->update_group];
      if (s->kind == NG_OUT_SGD) {
        sgd_counted(of, p->updates - e->missed, slot->late);
      } else {
        adamw_counted(of, p->updates - e->missed, slot->late);
      }
    }
  }
}

/* u <- what lr multiplies in the update of n elements without a block, at most TILE: that of w = 0 (but for decay that is
 * part of the gradient) with lr = 1.  0 where the weight is not finite and stays. */
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
  if (slot->m != NULL) memcpy(m, slot->m + at, bytes);
  if (slot->v != NULL) memcpy(v, slot->v + at, bytes);
  if (s->kind == NG_OUT_SGD) {
    sgd_counted(&one, updates, counted);
    one.sgd.lr = 1.0f;
    one.sgd.keep = 0.0f;
    one.sgd.take = counted[0];
    one.sgd.old = counted[1];
    sgd_tile(&one.sgd, m, u, &of, n);
  } else {
    adamw_counted(&one, updates, counted);
    one.adamw.keep = 0.0f;
    one.adamw.step = counted[0];
    one.adamw.root = counted[1];
    adamw_tile(&one.adamw, m, v, u, &of, n);
  }
  for (int64_t i = 0; i < n; i++) {
    u[i] = -u[i];
  }
}

void ng_update_sink_begin(ng_update_sink *s) {
  s->sink.put = s->kind == NG_OUT_GRADIENT ? put_gradient : put_update;
}
