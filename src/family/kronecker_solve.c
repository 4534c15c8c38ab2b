/* kronecker_solve.c: from running averages to inverses, Cholesky factors or eigenbases.
 *
 * On the owner of a side, each part of it by itself:
 *   cholesky   (F + d I)^-1, or L of F + d I = L L' where that is cheaper
 *   eigen      F = Q diag(e) Q', e at or below eigen_floor set to 0
 *   product    F as it is: nothing is inverted
 * with d from damping_split: full d_A = d_G = lambda; pi d_A = sqrt(lambda) pi, d_G =
 * sqrt(lambda)/pi, pi = sqrt((tr A / p) / (tr G / q)) (Martens & Grosse 2015, section 6.3); root is pi = 1.
 *
 * LAPACK's word is not taken: it reports success on NaN, so the average is scanned before and the
 * result is checked after, on a sampled column.  What does not pass climbs the ladder
 *   damping x 10, at most 3 times -> double precision -> last good result -> plain gradient
 * and each rung is counted.  The ladder has an end for every matrix, so no step fails for one;
 * ng_report says what was needed.
 *
 * In: averages of this rank's own sides, and where another rank alone keeps the other side the mean
 * eigenvalue of that, for pi.  Out: results in their run, what they say of themselves, rungs.  No
 * collective here: telling and sharing are the exchange's. */
#include "family/kronecker.h"

#include <math.h>

/* From base: the answer sizes memory and names a field in files, so no schedule may change it. */
bool ng_kron_keeps_factor(const ng_block *b, int64_t n, int64_t m) {
  const ng_kron *k = ng_kron_of(b);
  if (k->eigen || k->product || b->base.cholesky_form == NG_FORM_INVERSE) return false;
  if (b->base.cholesky_form == NG_FORM_FACTOR) return true;
  /* Inverting costs 2 n^3 / 3 once more a solve; two triangular solves run at about two thirds of
   * the rate of one symmetric product of the same 2 n^2 m, so a step loses n^2 m.  Hence: keep L
   * where 2 n^3 / 3 > solve_period n^2 m. */
  return 2.0 * (double)n > 3.0 * (double)b->base.solve_period * (double)m;
}

/* pi gives each factor a shift in proportion to its own mean eigenvalue: of all splits with d_A d_G
 * = lambda it makes the bound on the cross terms d_A I (x) G + d_G A (x) I least, in the trace norm
 * (Martens & Grosse 2015, section 6.3). */
void ng_kron_split(const ng_block *b, double lambda, double pi, double *on_a, double *on_g) {
  *on_a = *on_g = 0.0;
  if (ng_kron_of(b)->product) return; /* nothing is inverted */
  if (b->opt.damping_split == NG_SPLIT_FULL) {
    *on_a = *on_g = lambda;
  } else if (b->opt.damping_split == NG_SPLIT_ROOT) {
    *on_a = *on_g = sqrt(lambda);
  } else if (b->opt.damping_split == NG_SPLIT_PI) {
    *on_a = sqrt(lambda) * pi;
    *on_g = sqrt(lambda) / pi;
  }
}

/* pi is what G's owner said, which every rank that holds the results has read; not this rank's
 * own. */
ng_spectrum ng_kron_spectrum(const ng_block *b, const ng_part *g, const ng_part *a, double lambda) {
  const float *pi = ng_kron_of(b)->side[NG_SIDE_G].says + NG_SAYS_PI;
  ng_spectrum s = {.g = g->d, .a = a->d};
  ng_kron_split(b, lambda, (double)pi[g->group], &s.on_a, &s.on_g);
  if (b->opt.damping_split == NG_SPLIT_JOINT) s.on_both = lambda;
  return s;
}

/* 1 / (d_G d_A + lambda), or with a split damping 1 / ((d_G + on_g) (d_A + on_a)).  Frozen at this
 * lambda until the next solve, as KAISA's compute_eigenvalue_outer_product has it. */
static void predivide(ng_block *b, double lambda) {
  const ng_kron *k = ng_kron_of(b);
  const int64_t size = ng_dtype_size(k->inverse_dtype);
  ng_queue *q = b->ctx->queue;
  if (k->vocabulary > 0) {
    ng_kron_predivide_tokens(b, lambda);
    return;
  }
  for (int32_t gi = 0; gi < k->side[NG_SIDE_G].parts; gi++) {
    const ng_part *g = &k->side[NG_SIDE_G].part[gi];
    for (int32_t ai = 0; ai < k->side[NG_SIDE_A].each; ai++) {
      const ng_part *a = &k->side[NG_SIDE_A].part[g->group * k->side[NG_SIDE_A].each + ai];
      const ng_spectrum s = ng_kron_spectrum(b, g, a, lambda);
      ng_on(q)->invert_spectrum(q, g->n, a->n, s, (char *)k->prediv + (g->at * k->p + a->at) * size,
                                k->inverse_dtype, k->p);
    }
  }
}

/* ---- the block -------------------------------------------------------------------------------*/

/* Traces of a group's averages of the sides that this rank keeps, and whether they are finite: one
 * look at all of them, before any solve.  LAPACK reports success on NaN, and a NaN trace would spread
 * through pi to the healthy side. */
static void look(const ng_block *b, int32_t group) {
  const ng_kron *k = ng_kron_of(b);
  ng_queue *q = b->ctx->queue;
  for (int side = 0; side < 2; side++) {
    const ng_side *s = &k->side[side];
    if (!s->stat->keeps) continue;
    for (int32_t i = group * s->each; i < (group + 1) * s->each; i++) {
      ng_part *part = &s->part[i];
      const void *F = ng_kron_average(s, part);
      ng_on(q)->finite(q, ng_sym_count(part->n), F, s->stat->kept, &part->finite);
      ng_on(q)->trace(q, part->n, F, s->stat->kept, &part->trace);
    }
  }
  ng_queue_wait(q);
}

/* A of an embedding, which is a vector. */
static bool is_tokens(const ng_kron *k, const ng_side *s) {
  return k->vocabulary > 0 && s == &k->side[NG_SIDE_A];
}

/* Mean eigenvalue of a group's side, its shift included; false if an entry is not finite. */
static bool mean_trace(const ng_block *b, const ng_side *s, int32_t group, double *mean) {
  if (is_tokens(ng_kron_of(b), s)) return ng_kron_token_mean(b, mean);
  const ng_queue *q = b->ctx->queue;
  double trace = 0.0;
  int64_t n = 0;
  bool finite = true;
  for (int32_t i = group * s->each; i < (group + 1) * s->each; i++) {
    finite = finite && ng_info_read(q, &s->part[i].finite) != 0;
    trace += *ng_numbers_read(q, &s->part[i].trace);
    n += s->part[i].n;
  }
  *mean = trace / (double)n + s->shift[group];
  return finite;
}

/* The mean of each group: all that the owner of the other side needs. */
void ng_kron_tell(ng_block *b, int32_t stat, double *mean) {
  ng_kron *k = ng_kron_of(b);
  for (int32_t group = 0; group < k->groups; group++) {
    look(b, group);
    (void)mean_trace(b, &k->side[stat], group, &mean[group]);
  }
}

static void count(ng_block *b, int32_t rung) {
  if (rung == 0) return;
  b->p->rescued[rung < NG_RUNG_DOUBLE    ? NG_RESCUE_DAMPING
                : rung == NG_RUNG_DOUBLE ? NG_RESCUE_DOUBLE
                : rung == NG_RUNG_LAST   ? NG_RESCUE_LAST
                                         : NG_RESCUE_PLAIN]++;
}

/* One group of a side on its owner: the worst rung of its parts. */
static int32_t solve_group(ng_block *b, ng_side *s, int32_t group, double on, bool finite) {
  int32_t worst = 0;
  if (is_tokens(ng_kron_of(b), s)) {
    ng_kron *k = ng_kron_of(b);
    worst = ng_kron_solve_tokens(b, s->shift[group], on, finite);
    count(b, worst);
    k->token_good = k->token_good || worst < NG_RUNG_LAST;
    return worst;
  }
  for (int32_t j = group * s->each; j < (group + 1) * s->each; j++) {
    ng_part *part = &s->part[j];
    int32_t rung = part->good ? NG_RUNG_LAST : NG_RUNG_PLAIN;
    if (finite) {
      rung = ng_kron_solve_part(b, s, part, s->shift[group], on);
    }
    count(b, rung);
    part->good = part->good || rung < NG_RUNG_LAST;
    worst = rung > worst ? rung : worst;
  }
  return worst;
}

/* pi, or 1 where it would be 0, Inf or NaN: then the product of both shifts is still lambda. */
static double balance(const double mean[2]) {
  const double pi = sqrt(mean[NG_SIDE_A] / mean[NG_SIDE_G]);
  const bool sound = mean[NG_SIDE_A] > 0.0 && mean[NG_SIDE_G] > 0.0 && pi - pi == 0.0 && pi > 0.0;
  return sound ? pi : 1.0; /* a zero or broken factor has no scale to balance */
}

static bool all_good(const ng_side *s) {
  for (int32_t i = 0; i < s->parts; i++) {
    if (!s->part[i].good) return false;
  }
  return true;
}

/* Every rank that keeps the averages makes the same traces, pi and shifts; what is inverted is the
 * owner's of each side.  So none of them waits for the pi of another, and damping_leak moves the
 * averages of all ranks alike: an owner's alone would differ from the others' until the next
 * reduction, as the published program's does.  Where each side is kept by its owner alone, the means
 * of both were told.  Groups are solved one by one, each with a pi of its own: they share nothing but
 * the layer. */
ng_status ng_kron_solve(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  const double lambda = b->opt.damping;
  int32_t worst[2] = {0, 0}; /* by side: the highest rung of its parts */
  bool own[2];               /* this rank solves that side */
  const bool together =
      ng_kron_together(k) && k->side[NG_SIDE_A].stat->owner == b->ctx->rank; /* both are its */
  if (!b->keeps && b->told == NULL) return NG_OK;
  for (int i = 0; i < 2; i++) {
    const ng_stat *s = k->side[i].stat;
    /* stat_refresh = adaptive: one that did not move keeps its inverse, and the pi of then */
    own[i] = s->owner == b->ctx->rank && (!s->stale.on || !b->solved || s->fresh);
  }
  for (int32_t group = 0; group < k->groups; group++) {
    double mean[2], on[2];
    bool finite[2];
    look(b, group);
    for (int i = 0; i < 2; i++) {
      finite[i] = k->side[i].stat->keeps && mean_trace(b, &k->side[i], group, &mean[i]);
      if (b->told != NULL) mean[i] = b->told[i * b->tells + group];
    }
    const double pi = balance(mean);
    ng_kron_split(b, lambda, pi, &on[NG_SIDE_A], &on[NG_SIDE_G]);
    for (int i = 0; i < 2; i++) {
      ng_side *s = &k->side[i];
      if (own[i]) {
        const int32_t rung = solve_group(b, s, group, on[i], finite[i]);
        worst[i] = rung > worst[i] ? rung : worst[i];
        s->says[NG_SAYS_PI + group] = (float)pi;
        if (group == 0) s->says[NG_SAYS_DAMPING] = (float)on[i];
      }
      /* on every rank that holds the average: same sums, same shift */
      if (b->base.damping_leak && s->stat->keeps &&
          (!s->stat->stale.on || !b->solved || s->stat->fresh)) {
        s->shift[group] += on[i];
      }
    }
  }
  if ((own[0] || own[1]) && together && k->prediv != NULL && all_good(&k->side[0]) &&
      all_good(&k->side[1]) && (k->vocabulary == 0 || k->token_good)) {
    predivide(b, lambda);
  }
  ng_queue_wait(b->ctx->queue); /* scratch is free for others */
  for (int i = 0; i < 2; i++) {
    ng_side *s = &k->side[i];
    for (int32_t j = 0; own[i] && j < s->parts; j++) {
      s->says[NG_SAYS_PI + k->groups + j] = s->part[j].good ? 1.0f : 0.0f;
    }
    if (own[i] && is_tokens(k, s)) s->says[NG_SAYS_PI + k->groups] = k->token_good ? 1.0f : 0.0f;
    if (own[i]) s->says[NG_SAYS_RUNG] = (float)worst[i];
  }
  return worst[0] > 0 || worst[1] > 0 ? NG_RESCUED : NG_OK;
}

/* Results are here, from this rank, others or a file.  Where A and G were solved by different ranks
 * nobody could divide ahead before. */
void ng_kron_shared(ng_block *b, bool fresh) {
  ng_kron *k = ng_kron_of(b);
  k->good = true;
  for (int i = 0; i < 2; i++) {
    ng_side *s = &k->side[i];
    for (int32_t j = 0; j < s->parts; j++) {
      s->part[j].good = s->says[NG_SAYS_PI + k->groups + j] != 0.0f;
      k->good = k->good && s->part[j].good;
    }
    if (is_tokens(k, s)) {
      k->token_good = s->says[NG_SAYS_PI + k->groups] != 0.0f;
      k->good = k->good && k->token_good;
    }
  }
  if (fresh && k->prediv != NULL && k->good && !ng_kron_together(k)) {
    predivide(b, b->opt.damping);
    ng_queue_wait(b->ctx->queue);
  }
}

void ng_kron_report(const ng_block *b, ng_layer_report *r) {
  const ng_kron *k = ng_kron_of(b);
  if (!b->holds) return;
  for (int i = 0; i < 2; i++) {
    const float rung = k->side[i].says[NG_SAYS_RUNG]; /* of a file: any number */
    const int32_t known =
        rung >= 0.0f && rung <= (float)NG_RUNG_PLAIN ? (int32_t)rung : NG_RUNG_PLAIN;
    r->rung = known > r->rung ? known : r->rung;
  }
  r->pi = (double)k->side[NG_SIDE_A].says[NG_SAYS_PI];
  r->damping_a = (double)k->side[NG_SIDE_A].says[NG_SAYS_DAMPING];
  r->damping_g = (double)k->side[NG_SIDE_G].says[NG_SAYS_DAMPING];
}
