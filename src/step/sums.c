/* sums.c: reduce the sums of statistics over ranks.
 *
 * In: this rank's sums, in memory order: first the statistics whose average every rank stores, in order of blocks, then
 * those whose average only an owner stores, in order of owners. Out: the sums over all ranks, on all ranks or on the
 * owner. A message contains one statistic, or adjacent statistics of together at most stat_bucket_mb. The station
 * `statistics` posts the messages and waits for them before the first fold. In the micro-batch with ng_batch.last a
 * message is posted as soon as all its statistics are observed. */
#include "step/step.h"

/* ---- messages --------------------------------------------------------------------------------*/

/* Return whether the sums of s must still be posted. The result is equal on all ranks, because spread, weights summed over
 * ranks and, after ng_batch.last, the order of observations are equal. */
static bool is_sent_to_ranks(const ng_stat *s) {
  const bool any =
      s->w_total > 0.0 || !ng_stat_sends_mean(s); /* f16 sums are divided by w_total first */
  return ng_stat_is_sent(s) && s->observes && !s->posted && any;
}

/* Return the largest size in bytes of a message with several statistics. */
static int64_t bucket_bytes(const ng_precond *p) {
  return (int64_t)(p->opt.base.stat_bucket_mb * 1e6 + 0.5);
}

/* Return the padding, in elements of `size` bytes, from n elements to the next cache line, where an array starts. */
static int64_t padding_after(int64_t n, int64_t size) {
  return (NG_ALIGN - n * size % NG_ALIGN) % NG_ALIGN / size;
}

/* The result depends only on numbers that are equal on all ranks. */
bool ng_stat_joins_message(const ng_precond *p, const ng_stat *before, const ng_stat *s,
                           int64_t count, int64_t *gap, int64_t *n) {
  const int64_t size = ng_dtype_size(s->sum_dtype);
  *n = 0;
  for (int32_t i = 0; i < s->parts; i++) {
    *n += padding_after(*n, size) + ng_stat_part_count(s, &s->part[i]);
  }
  *gap = padding_after(count, size);
  return before != NULL && ng_stat_can_join(before, s) &&
         (count + *gap + *n) * ng_dtype_size(s->wire_dtype) <= bucket_bytes(p);
}

/* Append s to the last message if s fits, and `before`, the previous statistic in memory, is the end of that message;
 * otherwise add a message. Gaps between arrays are zeros. All sums are in one arena in this order, so a step with all
 * statistics due usually has one message for all ranks and one for owners. */
static void add_message(ng_precond *p, const ng_stat *before, const ng_stat *s) {
  ng_exchange *x = &p->step->exchange;
  const int32_t ranks = p->ctx->ranks;
  ng_message *m = before != NULL ? &x->message[x->messages - 1] : NULL;
  int64_t gap, n;
  if (ng_stat_joins_message(p, before, s, m != NULL ? m->count : 0, &gap, &n)) {
    NG_ASSERT((char *)s->part->sum == m->buffer + (m->count + gap) * ng_dtype_size(s->sum_dtype));
    if (m->owner_counts != NULL) { /* the owner of `before` also receives the gap */
      m->owner_counts[before->owner] += gap;
      m->owner_counts[s->owner] += n;
    }
    m->count += gap + n;
    return;
  }
  int64_t *counts = NULL;
  if (ng_stat_goes_to_owner(s)) {
    counts = x->counts + (int64_t)x->messages * ranks;
    memset(counts, 0, (size_t)ranks * sizeof *counts);
    counts[s->owner] = n;
  }
  x->message[x->messages++] = (ng_message){.buffer = s->part->sum,
                                           .count = n,
                                           .owner_counts = counts,
                                           .dtype = s->wire_dtype,
                                           .is_narrowed = s->wire_dtype != s->sum_dtype,
                                           .request = {.done = true}};
}

/* Convert the sums of the messages from index `first` on to 16 bits, or back if `widens`; then wait for the queue. */
static void convert_messages(ng_precond *p, int32_t first, bool widens) {
  const ng_exchange *x = &p->step->exchange;
  ng_queue *q = p->ctx->queue;
  int64_t n = 0;
  for (const ng_message *m = x->message + first; m < x->message + x->messages; m++) {
    if (m->is_narrowed) x->wire[n++] = (ng_wire_conversion){m->buffer, m->count, m->dtype, widens};
  }
  if (n > 0) ng_kernels(q)->convert_for_wire(q, x->wire, n);
  ng_queue_wait(q);
}

/* Post the messages from index `first` on. A transport without asynchronous messages completes each message here. */
static ng_status post_messages(ng_precond *p, int32_t first) {
  ng_comm *c = p->ctx->comm;
  ng_exchange *x = &p->step->exchange;
  const ng_group world = ng_group_world(c);
  if (first == x->messages) return NG_OK; /* without a wait */
  convert_messages(p, first, false);
  for (int32_t i = first; i < x->messages; i++) {
    ng_message *m = &x->message[i];
    const ng_status st =
        m->owner_counts == NULL
            ? ng_comm_post_sum(c, &world, m->buffer, m->count, m->dtype, &m->request)
            : ng_comm_post_scatter_sum(c, &world, m->buffer, m->owner_counts, m->dtype,
                                       &m->request);
    if (st != NG_OK) return ng_exchange_failed(p, "statistics");
  }
  return NG_OK;
}

/* Add s to the messages if s is due. Return s if the next statistic in memory may join the same message, otherwise NULL. */
static const ng_stat *add_stat(ng_precond *p, const ng_block *b, ng_stat *s,
                               const ng_stat *before) {
  if (!is_sent_to_ranks(s) || !ng_statistic_due(b, s)) return NULL;
  ng_stat_to_wire(p->ctx->queue, s);
  add_message(p, s->own_message ? NULL : before, s);
  s->posted = true;
  return s->own_message ? NULL : s;
}

/* Add the all-reduced statistics of a block. */
static const ng_stat *add_block(ng_precond *p, ng_block *b, const ng_stat *before) {
  for (int32_t k = 0; k < b->stats; k++) {
    ng_stat *s = &b->stat[k];
    before = ng_stat_goes_to_owner(s) ? NULL : add_stat(p, b, s, before);
  }
  return before;
}

/* Add the statistics whose sums only an owner receives; with `ahead`, only statistics of blocks in [blocks_ahead, blocks_held). */
static void add_owned(ng_precond *p, bool ahead) {
  const ng_exchange *x = &p->step->exchange;
  const ng_stat *before = NULL;
  for (int32_t i = 0; i < p->owned_stats; i++) {
    const ng_block_stat *o = &p->owned[i];
    const int32_t at = o->block->index;
    const bool held = x->may_post_ahead[at] && at >= x->blocks_ahead && at < x->blocks_held;
    before = !ahead || held ? add_stat(p, o->block, o->stat, before) : NULL;
  }
}

/* Post the sums of blocks [from, to) in memory order: first block by block, then owner by owner. `ahead`: before the step,
 * of blocks with may_post_ahead; otherwise of blocks with due statistics. */
static ng_status post_blocks(ng_precond *p, int32_t from, int32_t to, bool ahead) {
  const ng_exchange *x = &p->step->exchange;
  const int32_t first = x->messages;
  const ng_stat *before = NULL;
  for (int32_t i = from; i < to; i++) {
    ng_block *b = p->block[i];
    if (b->stats == 0) continue;
    const bool posts = ahead ? x->may_post_ahead[i] : ng_block_statistics_due(b);
    before = posts ? add_block(p, b, before) : NULL;
  }
  add_owned(p, ahead);
  return post_messages(p, first);
}

ng_status ng_exchange_post_statistics(ng_precond *p) {
  return p->ctx->ranks == 1 ? NG_OK : post_blocks(p, 0, p->blocks, false);
}

/* ---- ahead of the step -----------------------------------------------------------------------*/

/* Set may_post_ahead of each block: whether the block's sums may be posted before `check`. Decide at the beginning of the
 * micro-batch, because a period may change before its end. Exclude families that observe gradients, and blocks of several
 * layers. */
void ng_exchange_begin_last_batch(ng_precond *p) {
  ng_exchange *x = &p->step->exchange;
  for (int32_t i = 0; i < p->blocks; i++) {
    const ng_block *b = p->block[i];
    x->may_post_ahead[i] = p->ctx->ranks > 1 && b->entry != NULL &&
                           (b->observed & NG_OBSERVED_FLATGRAD) == 0 && ng_block_statistics_due(b);
  }
  x->blocks_ahead = x->blocks_held = p->blocks;
  x->held_bytes = 0;
}

void ng_exchange_reset(ng_precond *p) {
  ng_exchange *x = &p->step->exchange;
  x->blocks_ahead = x->blocks_held = 0;
  x->held_bytes = 0;
  p->step->early_traffic[NG_AT_STATISTICS] = (ng_traffic){0, 0, 0.0};
}

static bool is_block_complete(const ng_block *b) {
  for (int32_t k = 0; k < b->stats; k++) {
    const ng_stat *s = &b->stat[k];
    if (is_sent_to_ranks(s) && !s->last_observed && ng_statistic_due(b, s)) return false;
  }
  return true;
}

/* Return how many bytes the block sends ahead of the step, gaps between its arrays included. */
static int64_t sum_bytes(const ng_precond *p, const ng_block *b) {
  int64_t bytes = 0;
  for (int32_t k = 0; k < b->stats && p->step->exchange.may_post_ahead[b->index]; k++) {
    const ng_stat *s = &b->stat[k];
    const int64_t size = ng_dtype_size(s->sum_dtype);
    if (!is_sent_to_ranks(s) || !ng_statistic_due(b, s)) continue;
    for (int32_t i = 0; i < s->parts; i++) {
      const int64_t n = ng_stat_part_count(s, &s->part[i]);
      bytes += (n + padding_after(n, size)) * ng_dtype_size(s->wire_dtype);
    }
  }
  return bytes;
}

static ng_status post_held(ng_precond *p) {
  ng_exchange *x = &p->step->exchange;
  const ng_status st = post_blocks(p, x->blocks_ahead, x->blocks_held, true);
  x->blocks_held = x->blocks_ahead;
  x->held_bytes = 0;
  return st;
}

/* Post complete blocks in the order of a backward pass, from the last registered layer to the first. A block is posted
 * when all later layers are complete and its message is full, so that all ranks post the same messages. `all`: no more
 * observations follow, so post the incomplete blocks, too. */
static ng_status post_ahead(ng_precond *p, bool all) {
  ng_exchange *x = &p->step->exchange;
  const ng_traffic before = ng_exchange_traffic(p);
  ng_status st = NG_OK;
  for (; x->blocks_ahead > 0 && st == NG_OK; x->blocks_ahead--) {
    const ng_block *b = p->block[x->blocks_ahead - 1];
    const int64_t more = sum_bytes(p, b);
    if (more > 0 && x->held_bytes > 0 && x->held_bytes + more > bucket_bytes(p)) st = post_held(p);
    if (st != NG_OK || (x->may_post_ahead[b->index] && !all && !is_block_complete(b))) break;
    x->held_bytes += more;
  }
  if (st == NG_OK && x->blocks_ahead == 0) st = post_held(p);
  ng_exchange_count_early(p, NG_AT_STATISTICS, before);
  return st;
}

/* Test the oldest incomplete messages, because some transports make progress only when they are called. */
static ng_status advance_messages(ng_precond *p) {
  ng_exchange *x = &p->step->exchange;
  while (x->messages_waited < x->messages) {
    ng_request *r = &x->message[x->messages_waited].request;
    if (ng_comm_test(p->ctx->comm, r) != NG_OK) return ng_exchange_failed(p, "statistics");
    if (r->started && !r->done) break;
    x->messages_waited++;
  }
  return NG_OK;
}

ng_status ng_exchange_post_ahead(ng_precond *p) {
  const ng_status st = post_ahead(p, false);
  return st == NG_OK ? advance_messages(p) : st;
}

/* Called also after an error on this rank, because the other ranks wait for the remaining messages. */
ng_status ng_exchange_end_last_batch(ng_precond *p) { return post_ahead(p, true); }

/* Wait in the order of posting, which is equal on all ranks. */
ng_status ng_exchange_wait_statistics(ng_precond *p) {
  ng_exchange *x = &p->step->exchange;
  for (; x->messages_waited < x->messages; x->messages_waited++) {
    if (ng_comm_wait(p->ctx->comm, &x->message[x->messages_waited].request) != NG_OK) {
      return ng_exchange_failed(p, "statistics");
    }
  }
  convert_messages(p, 0, true);
  x->messages = x->messages_waited = 0;
  return NG_OK;
}
