/* exchange.c: everything a step says to other ranks.
 *
 * check       one small double reduction before anything changes: status of every rank, observations
 *             refused, whether options and numbers of the update are the same, sample weights of every
 *             statistic
 * choose      what ranks send of gradients of which each has a part: choose.c
 * statistics  sums of what is due: sums.c
 * tell        a few doubles of blocks whose averages several ranks keep, each its own: what their solves need
 * results     from each owner to its column, one message an owner
 * direction   from each column to the rows, one message a column
 * agree       one small double reduction: status, refusals, clip sums
 *
 * It moves bytes and judges nothing.  Between two collectives nobody returns: a rank in trouble goes on
 * with harmless data, its status rides in the next small reduction, and all ranks leave together (style:
 * PCReduceFailedReason). */
#include "step/step.h"

/* Whoever waits for this rank, in its stage, its model group or another stage, hears of it. */
void ng_exchange_give_up(ng_precond *p) {
  ng_comm *const all[] = {p->ctx->comm, p->ctx->model, p->ctx->stages};
  p->broken = true;
  for (int i = 0; i < 3; i++) {
    if (all[i] != NULL) (void)ng_comm_give_up(all[i]);
  }
}

ng_traffic ng_exchange_said(const ng_precond *p) {
  const ng_comm *const all[] = {p->ctx->comm, p->ctx->model, p->ctx->stages};
  ng_traffic x = {0, 0, 0.0};
  for (int i = 0; i < 3; i++) {
    if (all[i] == NULL) continue;
    x.bytes += all[i]->bytes;
    x.messages += all[i]->messages;
    x.wait_ms += all[i]->meter.wait_ms;
  }
  return x;
}

/* After a broken transport ranks may be at different collectives, and no further one can put that
 * right: the model is only good for being destroyed. */
ng_status ng_exchange_failed(ng_precond *p, const char *what) {
  ng_exchange_give_up(p);
  return ng_fail(p->ctx, NG_ERR_COMM, "the transport failed in %s; every rank gets this", what);
}

/* ---- memory ----------------------------------------------------------------------------------*/

enum {
  WEIGHTS = 2, /* numbers of a statistic in check                              */
  SUMS = 3,    /* ... of a kind of block in agree; WEIGHTED where there are groups */
  WEIGHTED = 5,
  REFUSED = NG_CODES,        /* ranks that refused something    */
  LAST,                      /* ... that had ng_batch.last      */
  SAME,                      /* whether all ranks have the same options and numbers */
  FIRST_OUT = SAME + NG_SAME /* ranks that leave an entry out     */
};

/* In the column that holds their results; no other rank has to do with them. */
int64_t ng_exchange_told_count(const ng_precond *p) {
  int64_t n = 0;
  for (int32_t i = 0; i < p->blocks; i++) {
    const ng_block *b = p->block[i];
    if (b->apart && b->holds) n += b->stats * b->tells;
  }
  return n;
}

static void place_told(ng_precond *p) {
  double *to = p->step->exchange.told;
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if (!b->apart || !b->holds) continue;
    b->told = to;
    to += b->stats * b->tells;
  }
}

static size_t counts_bytes(const ng_precond *p) {
  const size_t messages = (size_t)p->step->exchange.messages_most;
  return messages * (size_t)p->ctx->ranks * sizeof *p->step->exchange.counts;
}

/* Sized once for the most that a step may say.  Every statistic is posted at most once a step
 * (`posted`), so there are never more messages than statistics. */
ng_status ng_exchange_plan(ng_precond *p) {
  ng_exchange *x = &p->step->exchange;
  int32_t stats = 0, sliced = 0;
  bool owned = false;
  for (int32_t i = 0; i < p->blocks; i++) {
    stats += p->block[i]->stats;
    sliced += p->block[i]->slice != NULL;
    for (int32_t k = 0; k < p->block[i]->stats; k++) {
      owned = owned || ng_stat_to_owner(&p->block[i]->stat[k]);
    }
  }
  x->small_count =
      FIRST_OUT + ng_max64(p->entries + WEIGHTS * (int64_t)stats, 2 * WEIGHTED + stats);
  x->messages_most = stats + 1;
  x->cap = ng_step_bucket(p);
  x->spans_most = (1 + sliced) * p->ctx->ranks;
  x->small = ng_object(p, (size_t)x->small_count * sizeof *x->small);
  x->message = ng_object(p, (size_t)x->messages_most * sizeof *x->message);
  x->spans = ng_object(p, (size_t)x->spans_most * sizeof *x->spans);
  x->told_count = ng_exchange_told_count(p);
  if (owned) x->counts = ng_object(p, counts_bytes(p));
  if (x->told_count > 0) x->told = ng_object(p, (size_t)x->told_count * sizeof *x->told);
  x->choice_count = ng_choose_count(p);
  if (x->choice_count > 0) x->choice = ng_object(p, (size_t)x->choice_count * sizeof *x->choice);
  const bool told =
      (x->told_count == 0 || x->told != NULL) && (x->choice_count == 0 || x->choice != NULL);
  if (x->small == NULL || x->message == NULL || x->spans == NULL || !told ||
      (owned && x->counts == NULL)) {
    return ng_fail(p->ctx, NG_ERR_NOMEM, "ng_ready: no memory");
  }
  place_told(p);
  return NG_OK;
}

void ng_exchange_release(ng_precond *p) {
  ng_exchange *x = &p->step->exchange;
  ng_object_free(p, x->small, (size_t)x->small_count * sizeof *x->small);
  ng_object_free(p, x->message, (size_t)x->messages_most * sizeof *x->message);
  ng_object_free(p, x->spans, (size_t)x->spans_most * sizeof *x->spans);
  ng_object_free(p, x->counts, counts_bytes(p));
  ng_object_free(p, x->told, (size_t)x->told_count * sizeof *x->told);
  ng_object_free(p, x->choice, (size_t)x->choice_count * sizeof *x->choice);
  memset(x, 0, sizeof *x);
}

/* ---- small reductions ------------------------------------------------------------------------*/

/* In double: counts of ranks and of samples add up exactly, whatever the order of ranks. */
ng_status ng_exchange_sum(ng_precond *p, double *x, int64_t n, const char *what) {
  const ng_group world = ng_group_world(p->ctx->comm);
  if (ng_comm_sum(p->ctx->comm, &world, x, n, NG_F64) != NG_OK) return ng_exchange_failed(p, what);
  return NG_OK;
}

/* Says that another rank failed, where this one has nothing to report itself. */
static ng_status spread(ng_precond *p, const double *slots, ng_status mine) {
  const ng_status st = ng_codes_worst(slots);
  double ranks = 0.0; /* of all stages that were heard */
  for (int i = 0; i < NG_CODES; i++) {
    ranks += slots[i];
  }
  if (st < NG_OK && st != mine) {
    (void)ng_fail(p->ctx, st, "%d of %d ranks failed with %s (%s)", ng_codes_count(slots, st),
                  (int)ranks, ng_status_name(st), ng_status_meaning(st));
  }
  return st;
}

/* Rank 0's hash goes around and each says whether it has another: a difference of hashes could not
 * be summed.  The verdict is a sum, so all ranks have it. */
ng_status ng_exchange_same(ng_precond *p, const uint64_t hash[NG_HASHES], ng_status local) {
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
  ng_codes_put(x, local);
  for (int i = 0; i < NG_HASHES; i++) {
    x[NG_CODES + i] = first[i] != hash[i];
  }
  const ng_status st = ng_exchange_sum(p, x, NG_CODES + NG_HASHES, "ng_ready");
  if (st != NG_OK) return st;
  const ng_status worst = spread(p, x, local);
  if (worst < NG_OK) return worst;
  for (int i = 0; i < NG_HASHES; i++) {
    if (x[NG_CODES + i] > 0.0) {
      return ng_fail(p->ctx, NG_ERR_COMM, "ng_ready: %d of %d ranks have other %s than rank 0",
                     (int)x[NG_CODES + i], c->size, what[i]);
    }
  }
  return NG_OK;
}

/* A kind of array that no rank has ever shown, although the block looks at it.  On agreed totals,
 * so every rank comes to the same answer; not after a refusal, which explains what is missing. */
static ng_status check_seen(ng_precond *p, ng_block *b) {
  static const char *const name[NG_SEEN_KINDS] = {"input", "output gradient", "gradient"};
  for (int kind = 0; kind < NG_SEEN_KINDS; kind++) {
    bool now = b->seen[kind] || b->out;
    for (int32_t i = 0; i < b->stats; i++) {
      if (ng_stat_reads(&b->stat[i], ng_sees(kind)) && b->stat[i].total > 0.0) now = true;
    }
    if (!now && !p->step->refused) {
      return ng_fail(p->ctx, NG_ERR_STATE,
                     "layer '%s' was never observed: its %s was not shown on any rank", b->name,
                     name[kind]);
    }
  }
  return NG_OK;
}

/* For good, and saved: a layer that the data of a later step leaves out keeps its averages, and is
 * no error. */
static void mark_seen(ng_block *b) {
  if (b->out && !ng_stat_due(b->p, b)) return; /* what was shown of it is not folded */
  for (int kind = 0; kind < NG_SEEN_KINDS; kind++) {
    for (int32_t i = 0; i < b->stats; i++) {
      if (ng_stat_reads(&b->stat[i], ng_sees(kind)) && b->stat[i].total > 0.0) b->seen[kind] = true;
    }
  }
}

/* On some ranks it has a part in the step and on others not: a gradient that only some have, or a
 * difference in what was frozen. */
static ng_status check_out(ng_precond *p, const double *out) {
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

/* Each rank gives one code, so they add up to the ranks, unless this met another rank's sums of a block,
 * of the same length: then what was received is nobody's. */
static ng_status check_meeting(ng_precond *p, const double *x) {
  double ranks = 0.0;
  for (int i = 0; i < NG_CODES; i++) {
    ranks += x[i];
  }
  if (ranks != (double)p->ctx->ranks) {
    ng_exchange_give_up(p);
    return ng_fail(p->ctx, NG_ERR_COMM,
                   "ranks are at different calls; was ng_batch.last the same on all of them?");
  }
  if (x[LAST] == 0.0 || x[LAST] == ranks) return NG_OK;
  return ng_fail(p->ctx, NG_ERR_STATE,
                 "%d of %d ranks began a micro-batch with ng_batch.last, expected all or none",
                 (int)x[LAST], p->ctx->ranks);
}

/* Of this stage: `total` is only set once the worst status is known. */
static ng_status check_stage(ng_precond *p) {
  ng_engine *s = p->step;
  double *x = s->exchange.small, *out = x + FIRST_OUT, *w = out + p->entries;
  ng_codes_put(x, s->trouble);
  x[REFUSED] = s->refused;
  x[LAST] = s->last;
  ng_same_put(p, x + SAME);
  for (int32_t i = 0; i < p->entries; i++) {
    out[i] = p->entry[i]->slot[0].out;
  }
  for (int32_t i = 0; i < p->blocks; i++) {
    for (int32_t k = 0; k < p->block[i]->stats; k++, w += WEIGHTS) {
      ng_stat_weights(&p->block[i]->stat[k], w);
    }
  }
  ng_status st = ng_exchange_sum(p, x, w - x, "check");
  if (st != NG_OK) return st;
  const ng_status met = check_meeting(p, x);
  if (met == NG_ERR_COMM) return met;
  st = spread(p, x, s->trouble);
  if (st >= NG_OK && met != NG_OK) st = met;
  s->trouble = st;
  if (x[REFUSED] > 0.0) s->refused = true;
  if (st < NG_OK) return st;
  st = check_out(p, out); /* first: the numbers of `same` depend on who is out */
  if (st == NG_OK) st = ng_same_check(p, x + SAME);
  w = out + p->entries;
  for (int32_t i = 0; i < p->blocks && st == NG_OK; i++) {
    ng_block *b = p->block[i];
    b->unshown = 0;
    for (int32_t k = 0; k < b->stats; k++, w += WEIGHTS) {
      ng_stat_agreed(&b->stat[k], w);
      b->unshown += !b->out && ng_one_due(p, b, &b->stat[k]) && !(w[0] > 0.0); /* of all ranks */
    }
  }
  for (int32_t i = 0; i < p->blocks && st >= NG_OK; i++) {
    st = check_seen(p, p->block[i]);
  }
  return st;
}

/* Nothing of the model has changed yet, and after an error nothing will: `seen` is only set when every block has
 * passed, of all stages. */
ng_status ng_exchange_check(ng_precond *p) {
  ng_status st = check_stage(p);
  if (st == NG_ERR_COMM) return st; /* the other stages have been told */
  st = ng_stages_check(p, st < NG_OK ? st : p->step->trouble);
  if (st < NG_OK) {
    if (st != NG_ERR_COMM) p->step->trouble = st;
    return st;
  }
  for (int32_t i = 0; i < p->blocks; i++) {
    mark_seen(p->block[i]);
  }
  return NG_OK;
}

/* One number each of the statistics that may go stale: the owner's verdict, if it was refreshed. */
static int64_t put_verdicts(const ng_precond *p, double *x) {
  int64_t n = 0;
  for (int32_t i = 0; i < p->blocks; i++) {
    for (int32_t k = 0; k < p->block[i]->stats; k++) {
      const ng_stat *s = &p->block[i]->stat[k];
      if (s->stale.on)
        x[n++] = s->owner == p->ctx->rank && s->fresh ? (double)s->stale.verdict : 0.0;
    }
  }
  return n;
}

/* Refreshed on all ranks or on none, so that 0 says no. */
static void take_verdicts(ng_precond *p, const double *x) {
  for (int32_t i = 0; i < p->blocks; i++) {
    for (int32_t k = 0; k < p->block[i]->stats; k++) {
      ng_stat *s = &p->block[i]->stat[k];
      if (!s->stale.on) continue;
      if (*x > 0.0) ng_stale_advance(&s->stale, (ng_verdict)*x, p->steps);
      x++;
    }
  }
}

/* What is this rank's to add: all of a block that it owns, its share of one that every rank has a part
 * of.  Blocks that ascend are summed apart: their three numbers are of H, and turn into those of PD
 * when the clip knows the common factor.  With one group the weighted sums are the others. */
ng_status ng_exchange_agree(ng_precond *p, ng_sums sums[2]) {
  ng_engine *s = p->step;
  const int64_t each = p->update_groups > 1 ? WEIGHTED : SUMS;
  double *x = s->exchange.small, *sum = x + NG_CODES;
  ng_codes_put(x, s->trouble);
  memset(sum, 0, (2 + 2 * WEIGHTED) * sizeof *sum);
  sum[0] = s->refused;
  sum[1] = ng_bounds_threat(p);
  for (int32_t i = 0; i < p->blocks; i++) {
    const ng_block *b = p->block[i];
    double *to = sum + 2 + (b->ascends ? each : 0);
    if (b->owner != p->ctx->rank && !b->partial) continue;
    to[0] += b->inner;
    to[1] += b->d2;
    to[2] += b->pd2;
    if (each == SUMS) continue;
    const double weight = ng_clip_weight(b);
    to[3] += weight * b->inner;
    to[4] += weight * b->d2;
  }
  double *verdict = sum + 2 + 2 * each;
  const int64_t verdicts = put_verdicts(p, verdict);
  ng_status st = ng_exchange_sum(p, x, NG_CODES + 2 + 2 * each + verdicts, "agree");
  if (st != NG_OK) return st;
  take_verdicts(p, verdict);
  st = ng_stages_agree(p, x, sum, each == WEIGHTED);
  if (st != NG_OK) return st;
  st = spread(p, x, s->trouble);
  s->trouble = st;
  s->refused = sum[0] > 0.0;
  s->threat = sum[1];
  const int64_t came = ng_stages_there(p) ? WEIGHTED : each;
  for (int i = 0; i < 2; i++) {
    const double *from = sum + 2 + i * came, *weighted = came == SUMS ? from : from + 3;
    sums[i] = (ng_sums){from[0], from[1], from[2], weighted[0], weighted[1]};
  }
  return st < NG_OK ? st : NG_OK;
}

/* What any rank found that made all of what the step would write. */
ng_status ng_exchange_probe(ng_precond *p) {
  ng_engine *s = p->step;
  double refused = s->refused;
  ng_status st = ng_exchange_sum(p, &refused, 1, "probe");
  if (st == NG_OK) st = ng_stages_sum(p, &refused, 1, "probe");
  if (st != NG_OK) return st;
  s->refused = refused > 0.0;
  return NG_OK;
}

/* The same on all ranks of a column: what is apart, and what is solved. */
bool ng_exchange_tells(const ng_precond *p) {
  bool due = false;
  for (int32_t i = 0; i < p->blocks; i++) {
    due = due || (p->block[i]->told != NULL && ng_solve_due(p, p->block[i]));
  }
  return due;
}

/* Every number from one rank, the owner of its statistic: a sum with zeros hands it on as it is. */
ng_status ng_exchange_tell(ng_precond *p) {
  ng_exchange *x = &p->step->exchange;
  ng_comm *c = p->ctx->comm;
  memset(x->told, 0, (size_t)x->told_count * sizeof *x->told);
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if (b->told == NULL || !ng_solve_due(p, b)) continue;
    for (int32_t k = 0; k < b->stats; k++) {
      if (b->stat[k].keeps) b->family->tell(b, k, b->told + k * b->tells);
    }
  }
  if (ng_comm_sum(c, &p->grid.column_group, x->told, x->told_count, NG_F64) != NG_OK) {
    return ng_exchange_failed(p, "tell");
  }
  return NG_OK;
}

/* ---- results and directions ------------------------------------------------------------------*/

/* Results travel as bytes: they hold several dtypes.  Only inside the column that makes PD of these
 * blocks (KAISA's gradient workers); columns are disjoint and owners walked in one order, so no two
 * of them wait for each other. */
ng_status ng_exchange_post_results(ng_precond *p) {
  ng_comm *c = p->ctx->comm;
  if (p->grid.m == 1) return NG_OK;
  for (int32_t owner = 0; owner < c->size; owner++) {
    const ng_span *s = &p->result_span[owner];
    if (s->end == s->begin) continue;
    if (ng_comm_post_broadcast(c, &p->grid.column_group, p->arena[NG_USE_RESULTS] + s->begin,
                               s->end - s->begin, NG_U8, owner,
                               &p->step->exchange.spans[owner]) != NG_OK) {
      return ng_exchange_failed(p, "share");
    }
  }
  return NG_OK;
}

/* What each rank makes of a block's PD, to all. */
static ng_status post_slices(ng_precond *p) {
  ng_comm *c = p->ctx->comm;
  const ng_group world = ng_group_world(c);
  ng_request *request = p->step->exchange.spans + c->size;
  for (int32_t i = 0; i < p->blocks; i++) {
    const ng_block *b = p->block[i];
    for (int32_t r = 0; r < c->size && b->slice != NULL; r++, request++) {
      const int64_t n = b->slice[r + 1] - b->slice[r];
      if (n == 0 || b->out) continue;
      if (ng_comm_post_broadcast(c, &world, b->whole + b->slice[r], n, NG_F32, r, request) !=
          NG_OK) {
        return ng_exchange_failed(p, "deliver");
      }
    }
  }
  return NG_OK;
}

/* Each row hears from its own member of the column: m broadcasts side by side, none across rows.  Where
 * owners update, PD of other blocks stays with them. */
ng_status ng_exchange_post_direction(ng_precond *p) {
  ng_comm *c = p->ctx->comm;
  if (p->ctx->ranks > 1 && post_slices(p) != NG_OK) return NG_ERR_COMM;
  if (p->grid.n == 1 || ng_update_is_owned(p)) return NG_OK;
  for (int32_t column = 0; column < p->grid.n; column++) {
    const ng_span *s = &p->direction_span[column];
    if (s->end == s->begin) continue;
    const int32_t source = p->grid.row * p->grid.n + column;
    if (ng_comm_post_broadcast(c, &p->grid.row_group, p->arena[NG_USE_DIRECTION] + s->begin,
                               (s->end - s->begin) / (int64_t)sizeof(float), NG_F32, source,
                               &p->step->exchange.spans[column]) != NG_OK) {
      return ng_exchange_failed(p, "deliver");
    }
  }
  return NG_OK;
}

/* Ranks outside a group never posted, and have nothing to wait for. */
static ng_status wait_spans(ng_precond *p, const char *what) {
  for (int32_t i = 0; i < p->step->exchange.spans_most; i++) {
    if (ng_comm_wait(p->ctx->comm, &p->step->exchange.spans[i]) != NG_OK)
      return ng_exchange_failed(p, what);
    p->step->exchange.spans[i] = (ng_request){.done = true};
  }
  return NG_OK;
}

/* Spans serve results, then directions: the first are waited for before the second are posted. */
ng_status ng_exchange_wait(ng_precond *p, ng_mail what) {
  ng_status st = NG_OK;
  if (p->ctx->ranks == 1) return st;
  if ((what & NG_MAIL_STATISTICS) != 0) st = ng_exchange_wait_statistics(p);
  if (st == NG_OK && (what & NG_MAIL_RESULTS) != 0) st = wait_spans(p, "share");
  if (st == NG_OK && (what & NG_MAIL_DIRECTION) != 0) st = wait_spans(p, "deliver");
  return st;
}

/* ---- how many -------------------------------------------------------------------------------*/

int64_t ng_exchange_check_count(const ng_precond *p) {
  int64_t n = FIRST_OUT + p->entries;
  for (int32_t i = 0; i < p->blocks; i++) {
    n += WEIGHTS * (int64_t)p->block[i]->stats;
  }
  return n;
}

int64_t ng_exchange_agree_count(const ng_precond *p) {
  int64_t n = NG_CODES + 2 + 2 * (int64_t)(p->update_groups > 1 ? WEIGHTED : SUMS);
  for (int32_t i = 0; i < p->blocks; i++) {
    for (int32_t k = 0; k < p->block[i]->stats; k++) {
      n += p->block[i]->stat[k].stale.on;
    }
  }
  return n;
}
