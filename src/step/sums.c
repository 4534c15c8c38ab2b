/* sums.c: sums of statistics on their way over ranks.
 *
 * In: sums of this rank, block after block, or by owner where only the owner keeps the average.  Out: those of
 * all ranks: on every rank, or each on its owner, in as few messages as they lie in, of at most `cap` bytes.
 * They are posted at a step, and waited for before the first is folded.  In the micro-batch that ng_batch.last
 * names the last one, a message is posted ahead of the step, as soon as all in it was shown. */
#include "step/step.h"

/* ---- messages --------------------------------------------------------------------------------*/

/* The same on all ranks: spread and totals are agreed, posted is the caller's order of layers,
 * which the header demands to be one. */
static bool sends(const ng_stat *s) {
  /* fold = direct: what no rank observed is the average itself, the same everywhere; f16 needs the totals */
  const bool any = s->total > 0.0 || !(s->rule.direct || ng_stat_as_mean(s));
  return ng_stat_sent(s) && s->observes && !s->posted && any;
}

int64_t ng_step_bucket(const ng_precond *p) {
  return (int64_t)(p->base.stat_bucket_mb * 1e6 + 0.5);
}

/* Joins the message before it, unless that is full, if `before`, the statistic before it in the walk over all blocks, is
 * at the end of that: then its sums lie right behind (gaps between arrays are zeros).  Where
 * messages are cut depends on what is the same on all ranks only, never on where this one has its
 * memory.  Sums of all blocks lie in one arena in the order of the walk, so a step in which all are
 * due usually has one message, or one more of those that go to owners. */
static void add_message(ng_exchange *x, int32_t ranks, const ng_stat *before, const ng_stat *s) {
  const ng_stat_part *last = &s->part[s->parts - 1];
  const int64_t size = ng_dtype_size(s->wire);
  char *from = ng_stat_sent_from(s, &s->part[0]);
  char *end = (char *)ng_stat_sent_from(s, last) + ng_stat_sent_count(s, last) * size;
  ng_message *m = before != NULL ? &x->message[x->messages - 1] : NULL;
  if (before != NULL && ng_stat_joins(before, s) &&
      (end - m->buffer) / size * ng_dtype_size(s->travels) <= x->cap) {
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

/* Returns it if it is at the end of the last message. */
static const ng_stat *add_stat(ng_precond *p, const ng_block *b, ng_stat *s,
                               const ng_stat *before) {
  if (!sends(s) || !ng_one_due(p, b, s)) return NULL;
  ng_stat_to_wire(p->ctx->queue, s);
  ng_stat_unfold(p->ctx->queue, s);
  add_message(&p->step->exchange, p->ctx->ranks, s->alone ? NULL : before, s);
  s->posted = true;
  return s->alone ? NULL : s;
}

/* Its statistics that do not go to their owner.  The queue is waited for before the transport reads: that does
 * not know the queue. */
static const ng_stat *add_block(ng_precond *p, ng_block *b, const ng_stat *before) {
  for (int32_t k = 0; k < b->stats; k++) {
    ng_stat *s = &b->stat[k];
    before = ng_stat_to_owner(s) ? NULL : add_stat(p, b, s, before);
  }
  ng_queue_wait(p->ctx->queue);
  return before;
}

/* Those that do, by owners, of all blocks or of those that leave ahead. */
static void add_owned(ng_precond *p, bool ahead) {
  const ng_stat *before = NULL;
  for (int32_t i = 0; i < p->owned; i++) {
    const ng_owned *o = &p->by_owner[i];
    before = !ahead || o->block->leaving ? add_stat(p, o->block, o->stat, before) : NULL;
  }
  ng_queue_wait(p->ctx->queue);
}

/* In the order in which they lie: of blocks, then of owners. */
ng_status ng_exchange_post_statistics(ng_precond *p) {
  const int32_t first = p->step->exchange.messages;
  const ng_stat *before = NULL;
  if (p->ctx->ranks == 1) return NG_OK;
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if (b->stats > 0) before = ng_stat_due(p, b) ? add_block(p, b, before) : NULL;
  }
  add_owned(p, false);
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
  p->step->exchange.ahead = p->step->exchange.held = p->blocks;
  p->step->exchange.held_bytes = 0;
}

void ng_exchange_forget(ng_precond *p) {
  ng_exchange *x = &p->step->exchange;
  x->ahead = x->held = 0;
  x->held_bytes = x->bytes = x->sent = 0;
}

static bool complete(const ng_block *b) {
  for (int32_t k = 0; k < b->stats; k++) {
    const ng_stat *s = &b->stat[k];
    if (sends(s) && !s->shown && ng_one_due(b->p, b, s)) return false;
  }
  return true;
}

/* What it will send, with the gaps behind its pieces; what was not shown of it is sent, too. */
static int64_t bytes_of(const ng_precond *p, const ng_block *b) {
  int64_t bytes = 0;
  for (int32_t k = 0; k < b->stats && b->ahead; k++) {
    const ng_stat *s = &b->stat[k];
    const int64_t size = ng_dtype_size(s->wire);
    if (!sends(s) || !ng_one_due(p, b, s)) continue;
    for (int32_t i = 0; i < s->parts; i++) {
      const int64_t piece = ng_stat_sent_count(s, &s->part[i]) * size;
      bytes += (piece + NG_ALIGN - 1) / NG_ALIGN * NG_ALIGN / size * ng_dtype_size(s->travels);
    }
  }
  return bytes;
}

/* Those that are held, in the order in which their sums lie. */
static ng_status post_held(ng_precond *p) {
  ng_exchange *x = &p->step->exchange;
  const int32_t first = x->messages;
  const ng_stat *before = NULL;
  for (int32_t i = x->ahead; i < x->held; i++) {
    ng_block *b = p->block[i];
    b->leaving = b->ahead;
    if (b->stats > 0) before = b->ahead ? add_block(p, b, before) : NULL;
  }
  if (x->held > x->ahead) add_owned(p, true);
  for (int32_t i = x->ahead; i < x->held; i++) {
    p->block[i]->leaving = false;
  }
  x->held = x->ahead;
  x->held_bytes = 0;
  return post(p, first);
}

/* One after the other in a fixed order, from the layer registered last, as backward goes: a block that is
 * complete waits for those before it, and for the others of its message, so every rank posts the same in the
 * same order, whatever it was shown first.  `all`: there will be nothing more. */
static ng_status post_ahead(ng_precond *p, bool all) {
  ng_exchange *x = &p->step->exchange;
  const int64_t bytes = p->ctx->comm->bytes, messages = p->ctx->comm->messages;
  ng_status st = NG_OK;
  for (; x->ahead > 0 && st == NG_OK; x->ahead--) {
    const ng_block *b = p->block[x->ahead - 1];
    const int64_t more = bytes_of(p, b);
    if (more > 0 && x->held_bytes > 0 && x->held_bytes + more > x->cap) st = post_held(p);
    if (st != NG_OK || (b->ahead && !all && !complete(b))) break;
    x->held_bytes += more;
  }
  if (st == NG_OK && x->ahead == 0) st = post_held(p);
  x->bytes += p->ctx->comm->bytes - bytes;
  x->sent += p->ctx->comm->messages - messages;
  return st;
}

/* Transports that work only when they are called get on with it; the oldest first, as it was posted. */
static ng_status progress(ng_precond *p) {
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
  if (st == NG_OK && p->step->exchange.waited < p->step->exchange.messages) st = progress(p);
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
  for (int32_t i = 0; i < p->blocks && x->messages > 0; i++) {
    const ng_block *b = p->block[i];
    for (int32_t k = 0; k < b->stats; k++) {
      if (b->stat[k].posted) ng_stat_refold(&b->stat[k]);
    }
  }
  x->messages = x->waited = 0;
  return NG_OK;
}
