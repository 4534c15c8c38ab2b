/* agree.c: sum statuses and numbers over ranks and pipeline stages, so that all ranks decide equally about the step.
 *
 * In: this rank's status, sample weights, clip sums, and whether it refused a non-finite value. Out: sums over ranks.
 *
 *   ng_exchange_compare_models  at ng_ready: status; hashes of options, layers, owners and linear algebra
 *   check                       before the model changes: status, refusals, hashes of options and update, sample weights
 *   agree                       before gradients or weights are written: status, refusals, clip sums
 *
 * Between two collectives no rank returns. After a failure a rank continues with harmless data and sends its status in
 * the next of these reductions. Then all ranks return together (as PETSc's PCReduceFailedReason). */
#include "step/step.h"

enum { WEIGHTS = 2 }; /* numbers of each statistic that `check` sums: ng_stat_weights */

/* Positions in the buffer of check. */
enum {
  /* number of ranks that refused a non-finite value; the position is the same in `agree` */
  REFUSED = NG_CODES,
  /* number of elements that kept their old value in the last step; 0 if this number is equal on all ranks */
  OVERFLOWED,
  LAST,   /* number of ranks with ng_batch.last */
  BEGUN,  /* number of ranks that began a micro-batch */
  SHARED, /* whether ng_batch.whole is equal on all ranks that began a micro-batch (ng_hash_split) */
  SAME = SHARED + NG_HASH_PIECES, /* hashes of options and update (ng_hashes_write) */
  /* [entries] number of ranks that exclude each entry; last in the buffer */
  FIRST_OUT = SAME + NG_HASH_NUMBERS
};

/* Positions in the buffer of agree: status codes, refusals, two ng_sums, times (overhead.c), verdicts on statistics
 * (stat/stale.h). */
enum {
  SUMS = REFUSED + 1,
  COSTS = SUMS + 2 * (int)(sizeof(ng_sums) / sizeof(double)),
  AGREED = COSTS + NG_COSTS
};

/* ---- ng_ready --------------------------------------------------------------------------------*/

static double count_reports(const double code[NG_CODES]) {
  double ranks = 0.0;
  for (int i = 0; i < NG_CODES; i++) {
    ranks += code[i];
  }
  return ranks;
}

ng_status ng_exchange_worst_status(ng_precond *p, const double code[NG_CODES], ng_status mine,
                                   const char *who) {
  const ng_status st = ng_codes_worst(code);
  if (st >= NG_OK || st == mine) return st;
  return ng_fail(p->ctx, st, "%d of %d %s failed with %s (%s)", ng_codes_count(code, st),
                 (int)count_reports(code), who, ng_status_name(st), ng_status_meaning(st));
}

ng_status ng_groups_compare(ng_precond *p) {
  static const char *const name[2] = {"stage_group", "model_group"};
  const ng_comm *const group[2] = {p->ctx->stages, p->ctx->model};
  const int32_t W = p->ctx->ranks;
  /* Of each group in name[]: 1 if the group was given, otherwise 0; then the size of the group, split by ng_hash_split. */
  double x[2][1 + NG_HASH_PIECES];
  for (int i = 0; i < 2; i++) {
    x[i][0] = group[i] != NULL;
    ng_hash_split(x[i] + 1, group[i] == NULL ? 0 : (uint64_t)group[i]->size);
  }
  ng_status st = ng_exchange_sum(p, x[0], sizeof x / sizeof x[0][0], "ng_ready");
  for (int i = 0; i < 2 && st == NG_OK; i++) {
    if (x[i][0] != 0.0 && x[i][0] != (double)W) {
      st = ng_fail(p->ctx, NG_ERR_COMM,
                   "ng_ready: %s is given on %d of %d ranks, expected all ranks or none", name[i],
                   (int)x[i][0], W);
    } else if (!ng_hash_sums_agree(x[i] + 1, W)) {
      st = ng_fail(p->ctx, NG_ERR_COMM, "ng_ready: the sizes of %s differ between ranks", name[i]);
    } else {
      continue;
    }
    /* Abort the transport, because ranks that have a stage_group may already wait in a collective of that group. */
    if (i == 0) ng_exchange_abort(p);
  }
  return st;
}

/* Every rank compares its hashes with the hashes of rank 0. The ranks sum the results, 0 or 1: the number of ranks that
 * differ. */
ng_status ng_exchange_compare_models(ng_precond *p, const uint64_t hash[NG_HASHES],
                                     ng_status local) {
  static const char *const what[NG_HASHES] = {"options", "layers", "owners of blocks",
                                              "linear algebra"};
  ng_comm *c = p->ctx->comm;
  if (c->size == 1) return local;
  uint64_t first[NG_HASHES];
  memcpy(first, hash, sizeof first);
  const ng_group world = ng_group_world(c);
  if (ng_comm_broadcast(c, &world, first, (int64_t)sizeof first, NG_U8, 0) != NG_OK) {
    return ng_exchange_failed(p, "ng_ready");
  }
  double x[NG_CODES + NG_HASHES];
  ng_codes_write(x, local);
  for (int i = 0; i < NG_HASHES; i++) {
    x[NG_CODES + i] = first[i] != hash[i];
  }
  const ng_status st = ng_exchange_sum(p, x, NG_CODES + NG_HASHES, "ng_ready");
  if (st != NG_OK) return st;
  const ng_status worst = ng_exchange_worst_status(p, x, local, "ranks");
  if (worst < NG_OK) return worst;
  for (int i = 0; i < NG_HASHES; i++) {
    if (x[NG_CODES + i] > 0.0) {
      return ng_fail(p->ctx, NG_ERR_COMM, "ng_ready: %s of %d of %d ranks differ from rank 0",
                     what[i], (int)x[NG_CODES + i], c->size);
    }
  }
  return NG_OK;
}

/* ---- pipeline stages -------------------------------------------------------------------------*/

/* Stages have different layers and step together. Each rank sums with the ranks at the same position of the other stages.
 * All ranks of a stage contribute equal numbers, so all ranks of all stages have equal sums. So the clip covers all layers,
 * each counted once, and a step is skipped in all stages or in none. */
bool ng_pipeline_exists(const ng_precond *p) {
  return p->ctx->stages != NULL && p->ctx->stages->size > 1;
}

ng_status ng_pipeline_check(ng_precond *p, ng_status local) {
  double x[NG_CODES + 1 + NG_HASH_PIECES];
  double *refused = x + NG_CODES, *same = refused + 1;
  if (!ng_pipeline_exists(p)) return local;
  ng_codes_write(x, local);
  *refused = p->step->has_refused;
  ng_hash_split(same, ng_hash_number(ng_options_hash(p), p->step->lr));
  const ng_status st =
      ng_exchange_sum_over(p, p->ctx->stages, x, NG_CODES + 1 + NG_HASH_PIECES, "check");
  if (st != NG_OK) return st;
  const ng_status worst = ng_exchange_worst_status(p, x, local, "pipeline stages");
  if (worst < NG_OK) return worst;
  if (!ng_hash_sums_agree(same, p->ctx->stages->size)) {
    return ng_fail(p->ctx, NG_ERR_STATE,
                   "options or the largest learning rate differ between the %d pipeline stages",
                   p->ctx->stages->size);
  }
  if (*refused > 0.0) p->step->has_refused = true;
  return local;
}

/* ---- check -----------------------------------------------------------------------------------*/

/* Return whether some rank has observed arrays of a kind for the block since the last step. */
static bool is_observed(const ng_block *b, int kind) {
  for (int32_t i = 0; i < b->stats; i++) {
    if (ng_stat_uses(&b->stat[i], ng_observed_bit(kind)) && b->stat[i].w_total > 0.0) return true;
  }
  return false;
}

/* Return an error if no rank has ever observed a kind of array that the block needs. If an array was refused in this
 * step, return NG_OK, because the step is skipped and reports the refusal. */
static ng_status check_observed(ng_precond *p, ng_block *b) {
  static const char *const name[NG_OBSERVED_KINDS] = {"input", "output gradient", "gradient"};
  for (int kind = 0; kind < NG_OBSERVED_KINDS && !b->is_excluded && !p->step->has_refused; kind++) {
    if (b->was_observed[kind] || is_observed(b, kind)) continue;
    return ng_fail(p->ctx, NG_ERR_STATE, "layer '%s' was never observed: no rank observed its %s",
                   b->name, name[kind]);
  }
  return NG_OK;
}

/* b->was_observed stays true and is saved, because the layer may be absent in later steps. Call after the sums are posted,
 * because is_block_due, which decides what to post, reads b->was_observed. */
void ng_exchange_mark_observed(ng_block *b) {
  for (int kind = 0; kind < NG_OBSERVED_KINDS; kind++) {
    b->was_observed[kind] = b->was_observed[kind] || is_observed(b, kind);
  }
}

/* Check that all ranks exclude the same entries. */
static ng_status check_excluded(ng_precond *p, const double *out) {
  const double W = (double)p->ctx->ranks;
  for (int32_t i = 0; i < p->entries; i++) {
    if (out[i] > 0.0 && out[i] < W) {
      return ng_fail(p->ctx, NG_ERR_STATE,
                     "'%s' has no gradient, or is frozen, on %d of %d ranks and not on the others",
                     p->entry[i]->d.name, (int)out[i], p->ctx->ranks);
    }
  }
  return NG_OK;
}

/* Check that all ranks are in this reduction. Each rank adds 1 to one code, so the codes sum to the number of ranks. For
 * another sum, some rank is in a reduction of statistics of the same length, and the data is invalid. */
static ng_status check_same_collective(ng_precond *p, const double *x) {
  const double ranks = count_reports(x);
  if (ranks != (double)p->ctx->ranks) {
    ng_exchange_abort(p);
    return ng_fail(
        p->ctx, NG_ERR_COMM,
        "ranks are in different collectives; check that ng_batch.last is equal on all ranks");
  }
  if (x[LAST] == 0.0 || x[LAST] == ranks) return NG_OK;
  return ng_fail(p->ctx, NG_ERR_STATE,
                 "%d of %d ranks began a micro-batch with ng_batch.last, expected all or none",
                 (int)x[LAST], p->ctx->ranks);
}

/* ng_batch.whole must be equal on all ranks that began a micro-batch. */
static ng_status check_batch_samples(ng_precond *p, const double *x, bool *shared) {
  for (int i = 0; i < NG_HASH_PIECES; i++) {
    *shared = *shared || x[SHARED + i] > 0.0;
  }
  if (ng_hash_sums_agree(x + SHARED, (int32_t)x[BEGUN])) return NG_OK;
  return ng_fail(
      p->ctx, NG_ERR_STATE,
      "ng_batch.whole differs between ranks, expected the samples of all ranks, or 0 on all ranks");
}

/* The last step returned NG_RESCUED only on the ranks that counted overflows. Let this step return NG_RESCUED on all
 * ranks. */
static void report_earlier_overflow(ng_precond *p, double elements) {
  const ng_status st = ng_fail(
      p->ctx, NG_RESCUED,
      "in the previous step, elements with a non-finite result kept their old value on some "
      "ranks (elements: %.0f)",
      elements);
  p->step->status = ng_worse_status(p->step->status, st);
}

/* Run check on the ranks of this pipeline stage. If no rank has an error, set the weights of all statistics to their sums
 * over ranks. */
static ng_status check_stage(ng_precond *p) {
  ng_engine *s = p->step;
  double *x = s->exchange.check_buffer, *out = x + FIRST_OUT, *w = out + p->entries;
  ng_codes_write(x, s->status);
  x[REFUSED] = s->has_refused;
  /* Owners of updates, and ranks of a model group, write different elements, so their counts differ. */
  const bool counts_differ = ng_update_is_owned(p) || s->shards.members > 1;
  x[OVERFLOWED] = counts_differ ? (double)s->overflowed : 0.0;
  x[LAST] = s->batch.last != 0;
  x[BEGUN] = s->has_begun;
  ng_hash_split(x + SHARED, s->has_begun ? (uint64_t)s->batch.whole : 0);
  ng_hashes_write(p, x + SAME);
  for (int32_t i = 0; i < p->entries; i++) {
    out[i] = p->entry[i]->slot[0].is_excluded;
  }
  for (int32_t i = 0; i < p->stats; i++, w += WEIGHTS) {
    ng_stat_weights(p->stat[i].stat, w);
  }
  ng_status st = ng_exchange_sum(p, x, w - x, "check");
  if (st != NG_OK) return st;
  const ng_status met = check_same_collective(p, x);
  if (met == NG_ERR_COMM) return met;
  st = ng_exchange_worst_status(p, x, s->status, "ranks");
  if (st >= NG_OK && met != NG_OK) st = met;
  s->status = st;
  if (x[REFUSED] > 0.0) s->has_refused = true;
  if (st < NG_OK) return st;
  if (x[OVERFLOWED] > 0.0) report_earlier_overflow(p, x[OVERFLOWED]);
  s->overflowed = 0;
  bool shared = false;
  st = check_batch_samples(p, x, &shared);
  if (st == NG_OK)
    st = check_excluded(
        p, out); /* check excluded entries before the hashes, because the hashes depend on them */
  if (st == NG_OK) st = ng_hashes_check(p, x + SAME);
  w = out + p->entries;
  for (int32_t i = 0; i < p->blocks && st == NG_OK; i++) {
    ng_block *b = p->block[i];
    b->unobserved_now = 0;
    for (int32_t k = 0; k < b->stats; k++, w += WEIGHTS) {
      ng_stat_set_totals(&b->stat[k], w, shared);
      b->unobserved_now += !b->is_excluded && ng_statistic_due(b, &b->stat[k]) &&
                           !(w[0] > 0.0); /* w[0]: weight of the samples of all ranks */
    }
  }
  for (int32_t i = 0; i < p->blocks && st >= NG_OK; i++) {
    st = check_observed(p, p->block[i]);
  }
  return st;
}

/* Before this call, and after an error in this call, the model is unchanged. */
ng_status ng_exchange_check(ng_precond *p) {
  const ng_status st = check_stage(p);
  if (st == NG_ERR_COMM) return st; /* all transports are aborted */
  p->step->status = ng_pipeline_check(p, st < NG_OK ? st : p->step->status);
  return p->step->status < NG_OK ? p->step->status : NG_OK;
}

/* ---- agree -----------------------------------------------------------------------------------*/

/* x <- the verdict on each statistic with adaptive refresh; 0 if this rank does not own the statistic or did not
 * refresh it.  Return the number of verdicts; x NULL: only count. */
static int64_t write_verdicts(const ng_precond *p, double *x) {
  int64_t n = 0;
  for (int32_t i = 0; i < p->stats; i++) {
    const ng_stat *s = p->stat[i].stat;
    if (!s->stale.enabled) continue;
    if (x != NULL) x[n] = s->owner == p->ctx->rank && s->is_new ? (double)s->stale.verdict : 0.0;
    n++;
  }
  return n;
}

/* Advance the refresh interval of each statistic with a verdict in x.  Verdict 0: no rank refreshed the statistic. */
static void read_verdicts(ng_precond *p, const double *x) {
  for (int32_t i = 0; i < p->stats; i++) {
    ng_stale *t = &p->stat[i].stat->stale;
    if (!t->enabled) continue;
    if (*x > 0.0) ng_stale_advance(t, (ng_verdict)*x, p->steps);
    x++;
  }
}

/* Each rank adds the blocks that it owns, and its part of sliced blocks.  Blocks with a radius (PD = D + k H)
 * have separate sums over H, because k is not known before these sums. */
ng_status ng_exchange_agree(ng_precond *p, ng_sums sums[2]) {
  ng_engine *s = p->step;
  double *x = s->exchange.check_buffer;
  memset(sums, 0, 2 * sizeof *sums);
  for (int32_t i = 0; i < p->blocks; i++) {
    const ng_block *b = p->block[i];
    ng_sums *to = &sums[b->base.radius > 0.0];
    if (b->owner != p->ctx->rank && b->slice == NULL) continue;
    const double weight = ng_clip_weight(b);
    to->inner += b->inner;
    to->d2 += b->d2;
    to->pd2 += b->pd2;
    to->weighted_inner += weight * b->inner;
    to->weighted_d2 += weight * b->d2;
  }
  ng_codes_write(x, s->status);
  x[REFUSED] = s->has_refused;
  memcpy(x + SUMS, sums, 2 * sizeof *sums);
  ng_overhead_write(p, x + COSTS);
  const int64_t verdicts = write_verdicts(p, x + AGREED);
  ng_status st = ng_exchange_sum(p, x, AGREED + verdicts, "agree");
  if (st != NG_OK) return st;
  read_verdicts(p, x + AGREED);
  if (ng_pipeline_exists(p)) st = ng_exchange_sum_over(p, p->ctx->stages, x, AGREED, "agree");
  if (st != NG_OK) return st;
  st = ng_exchange_worst_status(p, x, s->status, "ranks");
  s->status = st;
  s->has_refused = x[REFUSED] > 0.0;
  memcpy(sums, x + SUMS, 2 * sizeof *sums);
  memcpy(s->overhead.sum, x + COSTS, sizeof s->overhead.sum);
  return st < NG_OK ? st : NG_OK;
}

/* ---- sizes of the buffers --------------------------------------------------------------------*/

int64_t ng_exchange_check_count(const ng_precond *p) {
  return FIRST_OUT + p->entries + WEIGHTS * (int64_t)p->stats;
}

int64_t ng_exchange_agree_count(const ng_precond *p) { return AGREED + write_verdicts(p, NULL); }
