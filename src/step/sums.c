/* sums.c: sums of statistics on their way over ranks.
 *
 * In: sums of this rank, block after block, or by owner where only the owner keeps the average.  Out: those of
 * all ranks: on every rank, or each on its owner, as few messages as they lie in.  They are posted at a step,
 * and waited for before the first is folded.  In the micro-batch that ng_batch.last names the last one, a
 * block's sums are posted ahead of the step, while other layers are still observed. */
#include "step/step.h"

/* ---- messages --------------------------------------------------------------------------------*/

/* The same on all ranks: spread and totals are agreed, posted is the caller's order of layers,
 * which the header demands to be one. */
static bool sends(const ng_stat *s) {
  /* fold = direct: what no rank observed is the average itself, the same everywhere; f16 needs the totals */
  const bool any = s->total > 0.0 || !(s->rule.direct || ng_stat_as_mean(s));
  return ng_stat_sent(s) && s->observes && !s->posted && any;
}

/* Joins the message before it if `before`, the statistic before it in the walk over all blocks, is
 * at the end of that: then its sums lie right behind (gaps between arrays are zeros).  Where
 * messages are cut depends on what is the same on all ranks only, never on where this one has its
 * memory.  Sums of all blocks lie in one arena in the order of the walk, so a step in which all are
 * due usually has one message, or one more of those that go to owners. */
static void add_message(ng_exchange *x, int32_t ranks, const ng_stat *before, const ng_stat *s) {
  const ng_stat_part *last = &s->part[s->parts - 1];
  const int64_t size = ng_dtype_size(s->wire);
  char *from = s->part[0].sum;
  char *end = (char *)last->sum + ng_stat_part_count(s, last) * size;
  if (before != NULL && before->wire == s->wire && before->travels == s->travels &&
      before->rule.direct == s->rule.direct) {
    ng_message *m = &x->message[x->messages - 1];
    NG_ASSERT(from >= m->buffer + m->count * size &&
              from - (m->buffer + m->count * size) < NG_ALIGN);
    if (m->counts != NULL) { /* a gap goes with what is before it */
      m->counts[before->owner] += (from - m->buffer) / size - m->count;
      m->counts[s->owner] += (end - from) / size;
    }
    m->count = (end - m->buffer) / size;
    return;
  }
  int64_t *counts = NULL;
  if (ng_stat_to_owner(s)) {
    counts = x->counts + (int64_t)x->messages * ranks;
    memset(counts, 0, (size_t)ranks * sizeof *counts);
    counts[s->owner] = (end - from) / size;
  }
  x->message[x->messages++] = (ng_message){.buffer = from,
                                           .count = (end - from) / size,
                                           .counts = counts,
                                           .dtype = s->travels,
                                           .narrow = s->travels != s->wire,
                                           .request = {.done = true}};
}

/* A transport without `start` does its work here, and waiting finds it done. */
static ng_status post(ng_precond *p, int32_t first) {
  ng_comm *c = p->ctx->comm;
  ng_exchange *x = &p->step->exchange;
  const ng_group world = ng_group_world(c);
  for (int32_t i = first; i < x->messages; i++) {
    ng_message *m = &x->message[i];
    if (m->narrow) ng_wire_narrow(m->buffer, m->count, m->dtype);
    const ng_status st =
        m->counts == NULL
            ? ng_comm_post_sum(c, &world, m->buffer, m->count, m->dtype, &m->request)
            : ng_comm_post_scatter_sum(c, &world, m->buffer, m->counts, m->dtype, &m->request);
    if (st != NG_OK) return ng_exchange_failed(p, "statistics");
  }
  return NG_OK;
}

/* Its statistics that go to their owner, or the others.  Returns the last of the block if it is at the end of
 * the last message.  The queue is waited for before the transport reads: that does not know the queue. */
static const ng_stat *add_block(ng_precond *p, ng_block *b, bool owned, const ng_stat *before) {
  ng_exchange *x = &p->step->exchange;
  for (int32_t k = 0; k < b->stats; k++) {
    ng_stat *s = &b->stat[k];
    if (ng_stat_to_owner(s) != owned || !sends(s) || !ng_one_due(p, b, s)) {
      before = NULL;
      continue;
    }
    ng_stat_to_wire(p->ctx->queue, s);
    add_message(x, p->ctx->ranks, s->alone ? NULL : before, s);
    s->posted = true;
    before = s->alone ? NULL : s;
  }
  ng_queue_wait(p->ctx->queue);
  return before;
}

/* In the order in which they lie: of blocks, or of owners. */
static void add_blocks(ng_precond *p, bool owned) {
  const ng_stat *before = NULL;
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = owned ? p->by_owner[i] : p->block[i];
    if (b->stats > 0) before = ng_stat_due(p, b) ? add_block(p, b, owned, before) : NULL;
  }
}

ng_status ng_exchange_post_statistics(ng_precond *p) {
  const int32_t first = p->step->exchange.messages;
  if (p->ctx->ranks == 1) return NG_OK;
  add_blocks(p, false);
  if (p->step->exchange.counts != NULL) add_blocks(p, true);
  return post(p, first);
}

/* ---- ahead of the step -----------------------------------------------------------------------*/

/* Whose sums may leave before `check`: the same on all ranks, so decided when the micro-batch begins, since
 * a period may be set anew before it ends.  Not where gradients are looked at, nor where one block is shown
 * many layers; with fold = direct the scale on the wire needs the totals of `check`, so `sends` says no. */
void ng_exchange_begin_last(ng_precond *p) {
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    b->ahead = p->ctx->ranks > 1 && b->entry != NULL && (b->sees & NG_SEES_FLATGRAD) == 0 &&
               ng_stat_due(p, b);
  }
  p->step->exchange.ahead = p->blocks;
}

static bool complete(const ng_block *b) {
  for (int32_t k = 0; k < b->stats; k++) {
    const ng_stat *s = &b->stat[k];
    if (sends(s) && !s->shown && ng_one_due(b->p, b, s)) return false;
  }
  return true;
}

/* One after the other in a fixed order, from the layer registered last, as backward goes: a block that is
 * complete waits for those before it, so every rank posts the same in the same order, whatever it was
 * shown first.  `all`: there will be nothing more. */
static ng_status post_ahead(ng_precond *p, bool all) {
  ng_exchange *x = &p->step->exchange;
  const int64_t bytes = p->ctx->comm->bytes;
  ng_status st = NG_OK;
  for (; x->ahead > 0 && st == NG_OK; x->ahead--) {
    ng_block *b = p->block[x->ahead - 1];
    const int32_t first = x->messages;
    if (!b->ahead) continue;
    if (!all && !complete(b)) break;
    (void)add_block(p, b, false, NULL);
    (void)add_block(p, b, true, NULL);
    st = post(p, first);
  }
  x->bytes += p->ctx->comm->bytes - bytes;
  return st;
}

/* Transports that work only when they are called get on with it; the oldest first, as it was posted. */
static ng_status push(ng_precond *p) {
  ng_exchange *x = &p->step->exchange;
  while (x->waited < x->messages) {
    ng_request *r = &x->message[x->waited].request;
    if (ng_comm_test(p->ctx->comm, r) != NG_OK) return ng_exchange_failed(p, "statistics");
    if (r->started && !r->done) break;
    x->waited++;
  }
  return NG_OK;
}

ng_status ng_exchange_ahead(ng_precond *p) {
  ng_status st = post_ahead(p, false);
  if (st == NG_OK && p->step->exchange.waited < p->step->exchange.messages) st = push(p);
  return st;
}

/* A rank that has given up on its batch has told the others a part of it: they need the rest, too. */
ng_status ng_exchange_end_last(ng_precond *p) { return post_ahead(p, true); }

/* In the order of posting, which is that of all ranks. */
ng_status ng_exchange_wait_statistics(ng_precond *p) {
  ng_exchange *x = &p->step->exchange;
  for (; x->waited < x->messages; x->waited++) {
    if (ng_comm_wait(p->ctx->comm, &x->message[x->waited].request) != NG_OK) {
      return ng_exchange_failed(p, "statistics");
    }
  }
  for (int32_t i = 0; i < x->messages; i++) {
    const ng_message *m = &x->message[i];
    if (m->narrow) ng_wire_widen(m->buffer, m->count, m->dtype);
  }
  x->messages = x->waited = 0;
  return NG_OK;
}
