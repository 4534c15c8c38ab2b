/* bounds.c: whether all that a step would write is finite, known before any of it is written.
 *
 * In: the numbers of the update, the largest |PD| (agree), the largest gradient of what has no curvature
 * (measure), bounds of the moments.  Out: the largest |PD| for which nothing can leave its range; where the
 * step has a larger one, the probe makes all of it once without writing (sink.c).
 *
 * No weight is read for it.  A weight that is finite stays so, however large, if the update does not
 * multiply it by more than 1 and moves it by less than half a unit in the last place of its type's largest
 * number: 2^103 of f32, 2^119 of bf16, 16 of f16 (65504 + 15 is 65504).  For SGD, with g = PD + decay w,
 *
 *     w' = keep w - lr step,  step = by g + rest,  by = take, or 1 + mu take;  rest = old m, or mu old m
 *
 * so |keep| <= 1, 0 <= lr by decay <= 1 and lr (by |PD| + |rest|) below that are enough; for AdamW, where
 * m / (sqrt(v) root + eps) is at most max(|m|, |PD|) / eps, |keep| <= 1 and step max(|m|, |PD|) / eps.  The
 * limits here leave a factor of 2 (f16) or more for the roundings on the way.
 *
 * A weight that is not finite already is looked for when it was bound anew, and after a load; later, in
 * place, only the caller can have made it so, and the update that meets it leaves it (sink.c), says so, and
 * has it looked for before every step until it is mended. */
#include "step/step.h"

#include <float.h>
#include <math.h>

static const double FAR = 0x1p100;      /* of f32 and bf16; squares of PD: SQUARE */
static const double FAR_F16 = 8.0;      /* a weight may be moved so far           */
static const double F16_MOST = 65504.0; /* a gradient of f16 may be so large      */
static const double GRADIENT = 0x1p123; /* of f32, bf16: its two terms are some 8 times as large */
static const double SQUARE = 0x1p60;    /* |PD| of AdamW, whose square is kept    */
static const double WEIGHED = 0.25;     /* by decay: times an f32 it is one       */
static const double WEIGHED_F16 = 0x1p60;
static const double ROUNDED = 1.0 + 0x1p-16; /* more than the roundings of one update   */

/* Written by the step, in some way. */
static bool written(const ng_precond *p, const ng_slot *s) {
  if (s->out || s->entry->d.frozen) return false;
  return s->block != NULL || p->step->out.kind != NG_OUT_GRADIENT;
}

/* The numbers that loops take for a parameter, see ng_update_late. */
static ng_group_numbers numbers_of(const ng_precond *p, const ng_slot *s) {
  ng_group_numbers n = p->step->out.group[s->update_group];
  if (s->entry->missed > 0) {
    n.sgd.take = n.adamw.step = s->late[0];
    n.sgd.old = n.adamw.root = s->late[1];
  }
  if (!n.sgd.moments) {
    n.sgd.take = 1.0f;
    n.sgd.old = 0.0f;
  }
  return n;
}

/* ---- the largest |PD| ------------------------------------------------------------------------*/

/* Comparisons with NaN are false: what is no number allows nothing. */
static double room_sgd(const ng_slot *s, const ng_sgd_numbers *n) {
  const bool f16 = s->weight.dtype == NG_F16;
  const double lr = (double)n->lr, mu = n->nesterov ? (double)n->mu : 1.0;
  const double by = n->nesterov ? 1.0 + mu * (double)n->take : (double)n->take;
  const double rest = mu * (double)n->old * s->most_m, weighed = by * (double)n->decay;
  const double far = fmin(FAR, (f16 ? FAR_F16 : FAR) / lr);
  if (!(fabs((double)n->keep) <= 1.0 && by >= 0.0 && n->old >= 0.0f)) return 0.0;
  if (!(weighed <= (f16 ? WEIGHED_F16 : WEIGHED) && lr * weighed <= 1.0)) return 0.0;
  if (!((double)n->decay <= (f16 ? WEIGHED_F16 : WEIGHED) && rest <= far)) return 0.0;
  return by > 0.0 ? fmin(FAR, (far - rest) / by) : FAR;
}

static double room_adamw(const ng_slot *s, const ng_adamw_numbers *n) {
  const double far = s->weight.dtype == NG_F16 ? FAR_F16 : FAR, eps = (double)n->eps;
  const double room = fmin(SQUARE, fmin(far / (double)n->step, FAR) * eps);
  const bool holds =
      fabs((double)n->keep) <= 1.0 && s->most_m <= room && s->most_v <= SQUARE * SQUARE;
  return holds ? room : 0.0;
}

static double room_of(const ng_precond *p, const ng_slot *s) {
  if (p->step->out.kind == NG_OUT_GRADIENT) return s->grad.dtype == NG_F16 ? F16_MOST : GRADIENT;
  const ng_group_numbers n = numbers_of(p, s);
  return p->step->out.kind == NG_OUT_SGD ? room_sgd(s, &n.sgd) : room_adamw(s, &n.adamw);
}

/* Sums over ranks are never less than what any of them adds, so the verdict on them is that of the worst,
 * and the same everywhere. */
double ng_bounds_threat(const ng_precond *p) {
  double most = 0.0;
  if (p->step->trouble < NG_OK) return NG_THREAT; /* the groups may have no numbers */
  for (int32_t i = 0; i < p->entries; i++) {
    for (int32_t k = 0; k < p->entry[i]->slots; k++) {
      const ng_slot *s = &p->entry[i]->slot[k];
      if (!written(p, s)) continue;
      if (p->step->out.kind != NG_OUT_GRADIENT && !s->looked) return NG_THREAT;
      const double room = room_of(p, s);
      if (!(room > 0.0)) return NG_THREAT;
      if (s->block == NULL && !(s->most_g <= room)) return NG_THREAT;
      if (s->block != NULL) most = fmax(most, 1.0 / room);
    }
  }
  return fmin(most, NG_THREAT);
}

bool ng_bounds_fail(const ng_precond *p) {
  const ng_engine *s = p->step;
  return !(s->threat < NG_THREAT && s->largest * s->threat <= 1.0);
}

/* ---- what is kept ----------------------------------------------------------------------------*/

static double most_of(const float *x, int64_t n) {
  const uint32_t bits = x == NULL ? 0 : ng_most_bits(x, n);
  return bits < NG_INF_BITS ? (double)ng_float_of_bits(bits) : (double)INFINITY;
}

static void look_at_moments(ng_slot *s) {
  s->most_m = most_of(s->m, s->rows * s->cols);
  s->most_v = most_of(s->v, s->rows * s->cols);
}

/* Less than half a unit in the last place above the largest number, which is rounded down to it. */
static double range_of(ng_dtype t) {
  return t == NG_F16 ? F16_MOST + 15.0 : t == NG_BF16 ? 0x1.feep127 : (double)FLT_MAX;
}

/* How far m moves a weight where no gradient comes any more: of SGD in all steps to come, of AdamW in the next. */
static double drift(ng_out kind, const ng_group_numbers *n, double m, double v) {
  const ng_adamw_numbers *a = &n->adamw;
  const double mu = (double)n->sgd.mu;
  if (kind == NG_OUT_SGD) {
    return n->sgd.moments ? (double)n->sgd.lr * mu * m / (mu < 1.0 ? 1.0 - mu : 1.0) : 0.0;
  }
  const double root = sqrt((double)a->b2 * v) * (double)a->root + (double)a->eps;
  return (double)a->step * (double)a->b1 * m / root;
}

bool ng_bounds_stays(const ng_precond *p, const ng_slot *s, const float *w, const float *m,
                     int64_t n) {
  const ng_group_numbers numbers = numbers_of(p, s);
  const double range = range_of(s->weight.dtype);
  if (p->step->out.kind != NG_OUT_SGD) return true;
  for (int64_t i = 0; i < n; i++) {
    const double end = (double)w[i] - drift(NG_OUT_SGD, &numbers, (double)m[i], 0.0);
    if (!(fabs(end) <= range)) return false;
  }
  return true;
}

/* m <- 0 where it alone would have the next steps refused, twice as far for the gradient that comes.  How many. */
static int64_t relieve(const ng_precond *p, ng_slot *s) {
  const ng_group_numbers numbers = numbers_of(p, s);
  const double range = range_of(s->weight.dtype);
  float w[NG_LINE];
  int64_t found = 0;
  for (int64_t r = 0; r < s->rows; r++) {
    for (int64_t c = 0, n; c < s->cols; c += n) {
      float *m = s->m + r * s->cols + c;
      const float *v = s->v == NULL ? NULL : s->v + r * s->cols + c;
      n = ng_min64(NG_LINE, s->cols - c);
      ng_place_read(&s->weight, r, c, n, w);
      for (int64_t i = 0; i < n; i++) {
        const double square = v == NULL ? 0.0 : (double)v[i], was = (double)w[i];
        const double end = was - 2.0 * drift(p->step->out.kind, &numbers, (double)m[i], square);
        if (fabs(end) <= range || !(was - was == 0.0)) continue;
        m[i] = 0.0f;
        found++;
      }
    }
  }
  return found;
}

/* A step was refused since it would have left a range, and so would every later one while what is kept stays as it is. */
void ng_bounds_relieve(ng_precond *p) {
  if (p->step->out.kind == NG_OUT_GRADIENT) return;
  for (int32_t i = 0; i < p->entries; i++) {
    for (int32_t k = 0; k < p->entry[i]->slots; k++) {
      ng_slot *s = &p->entry[i]->slot[k];
      const int64_t found = written(p, s) && s->here && s->m != NULL ? relieve(p, s) : 0;
      if (found == 0) continue;
      look_at_moments(s);
      ng_fail_also(p->ctx,
                   "the momentum of '%s' would have kept every later step from being taken and is "
                   "0 now (elements: %lld)",
                   s->name, (long long)found);
    }
  }
}

/* ---- what was written ------------------------------------------------------------------------*/

void ng_bounds_begin(ng_precond *p) {
  for (int32_t i = 0; i < p->entries; i++) {
    for (int32_t k = 0; k < p->entry[i]->slots; k++) {
      atomic_store(&p->entry[i]->slot[k].seen, 0);
    }
  }
}

/* The moments were finite when they were written (by a bound, or because the probe said so), hence never
 * above the largest f32. */
static void moments_moved(const ng_precond *p, ng_slot *s, double weight) {
  const ng_group_numbers n = numbers_of(p, s);
  const double pd = s->block == NULL ? s->most_g : p->step->largest;
  if (p->step->out.kind == NG_OUT_SGD) {
    if (!n.sgd.moments) return; /* they stay */
    const double g = pd + (double)n.sgd.decay * weight;
    s->most_m = fabs((double)n.sgd.old) * s->most_m + fabs((double)n.sgd.take) * g;
  } else {
    s->most_m = fmax(s->most_m, pd);
    s->most_v = (double)n.adamw.b2 * s->most_v + (double)n.adamw.n2 * pd * pd;
  }
  s->most_m = fmin(s->most_m * ROUNDED, (double)FLT_MAX);
  s->most_v = fmin(s->most_v * ROUNDED + (double)FLT_MIN, (double)FLT_MAX);
}

ng_status ng_bounds_written(ng_precond *p) {
  ng_status st = NG_OK;
  if (p->step->out.kind == NG_OUT_GRADIENT) return NG_OK;
  for (int32_t i = 0; i < p->entries; i++) {
    for (int32_t k = 0; k < p->entry[i]->slots; k++) {
      ng_slot *s = &p->entry[i]->slot[k];
      if (!written(p, s)) continue;
      const uint32_t bits = atomic_load(&s->seen);
      s->looked = bits < NG_INF_BITS;
      if (s->looked) {
        if (s->m != NULL) moments_moved(p, s, (double)ng_float_of_bits(bits));
        continue;
      }
      look_at_moments(s);
      st = ng_fail(
          p->ctx, NG_RESCUED,
          "'%s': its weight is not finite; lines of it that are not stay, with their moments, "
          "and steps are skipped until all of it is",
          s->name);
    }
  }
  return st;
}

/* Weights come back with them, in place: they are looked at anew, too. */
void ng_bounds_loaded(ng_precond *p) {
  for (int32_t i = 0; i < p->entries; i++) {
    for (int32_t k = 0; k < p->entry[i]->slots; k++) {
      look_at_moments(&p->entry[i]->slot[k]);
      p->entry[i]->slot[k].looked = false;
    }
  }
}
