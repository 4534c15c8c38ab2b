/* comm.c: see comm.h.
 *
 * Optional functions of a transport are replaced: reduce-scatter and all-gather by all-reduce and broadcast, start and
 * wait by run.  A collective of more than 2^28 elements becomes several calls of the transport.
 *
 * All members of a group must call the same collectives in the same order. */
#include "comm/comm.h"
#include "core/core.h"

#include <stddef.h>

enum {
  ASKED = 64, /* gather_ranks: number of members whose ranks one sum collects */
  /* largest number of elements of one call: 2 GiB of doubles; MPI and NCCL accept at most INT_MAX elements */
  PIECE = 1 << 28
};

ng_status ng_comm_give_up(ng_comm *c) {
  if (!c->broken) {
    c->broken = true;
    if (c->t.abort != NULL) c->t.abort(c->t.user);
  }
  return NG_ERR_COMM;
}

/* Return whether the transport has collectives of this kind. */
static bool implements(const ng_comm *c, ng_coll_kind kind) {
  return (c->t.kinds >> kind & 1u) != 0;
}

/* ---- the table -------------------------------------------------------------------------------*/

static ng_status check_table(const ng_transport *t, char *message, size_t size) {
  const uint32_t basic = 1u << NG_ALL_REDUCE | 1u << NG_BROADCAST;
  const uint32_t known = basic | 1u << NG_REDUCE_SCATTER | 1u << NG_ALL_GATHER;
  const bool makes = t->group_create != NULL, frees = t->group_destroy != NULL;
  const char *wrong = t->run == NULL                        ? "run is missing"
                      : t->start != NULL && t->wait == NULL ? "start without wait"
                      : t->start == NULL && t->wait != NULL ? "wait without start"
                      : t->start == NULL && t->test != NULL ? "test without start and wait"
                      : makes && !frees                     ? "group_create without group_destroy"
                      : frees && !makes                     ? "group_destroy without group_create"
                                                            : NULL;
  if (t->size < 1 || t->rank < 0 || t->rank >= t->size) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "ng_transport: rank is %d and size is %d, expected 0 <= rank < size", t->rank,
                      t->size);
  }
  if (wrong != NULL) return ng_fail_to(message, size, NG_ERR_ARG, "ng_transport: %s", wrong);
  if (t->kinds != 0 && ((t->kinds & basic) != basic || (t->kinds & ~known) != 0)) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "ng_transport: kinds is 0x%x, expected 0, or bits of 0x%x with all of 0x%x",
                      t->kinds, known, basic);
  }
  return NG_OK;
}

/* In the struct of an older header, the fields from `start` on may be missing. */
ng_status ng_comm_init(ng_comm *c, const ng_transport *t, char *message, size_t size) {
  *c = (ng_comm){
      .t = {.struct_size = sizeof c->t, .name = "self", .size = 1}, .size = 1, .piece = PIECE};
  if (t == NULL) return NG_OK;
  const size_t least = offsetof(ng_transport, start);
  if (t->struct_size < least) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "ng_transport: struct_size is %zu, expected sizeof(ng_transport) = %zu",
                      t->struct_size, sizeof *t);
  }
  ng_transport ours = {.name = NULL};
  ng_status st = ng_struct_read(&ours, sizeof ours, t, least, "ng_transport", message, size);
  if (st == NG_OK) st = check_table(&ours, message, size);
  if (st != NG_OK) return st;
  if (ours.name == NULL) ours.name = "user";
  if (ours.kinds == 0) ours.kinds = 1u << NG_ALL_REDUCE | 1u << NG_BROADCAST;
  c->t = ours;
  c->rank = ours.rank;
  c->size = ours.size;
  return NG_OK;
}

/* A forked child calls this function, because the locks and sockets of the transport belong to its parent. */
void ng_comm_leave(ng_comm *c) {
  c->broken = true;
  c->t = (ng_transport){
      .struct_size = sizeof c->t, .name = c->t.name, .rank = c->rank, .size = c->size};
}

/* ---- groups ----------------------------------------------------------------------------------*/

ng_group ng_group_world(const ng_comm *c) {
  return (ng_group){.handle = NULL, .n = c->size, .index = c->rank};
}

/* A group of one rank or of all ranks needs no group of the transport.  Ranks are ascending, so that all members agree
 * on the index of each.  Ranks that are not members also call group_create, because MPI_Comm_split needs all ranks. */
ng_status ng_group_create(ng_comm *c, const int32_t *ranks, int32_t n, ng_group *out) {
  *out = (ng_group){.n = n, .index = -1};
  for (int32_t i = 0; i < n; i++) {
    NG_ASSERT(ranks[i] >= 0 && ranks[i] < c->size && (i == 0 || ranks[i] > ranks[i - 1]));
    if (ranks[i] == c->rank) out->index = i;
  }
  if (c->broken) return NG_ERR_COMM;
  if (n == 1 || n == c->size) return NG_OK;
  if (c->t.group_create == NULL) return NG_ERR_ABSENT;
  if (c->t.group_create(c->t.user, ranks, n, &out->handle) != NG_OK) {
    out->handle = NULL;
    return ng_comm_give_up(c);
  }
  /* without a handle, the collectives of this member would go to all ranks */
  if (out->index >= 0 && out->handle == NULL) return ng_comm_give_up(c);
  return NG_OK;
}

/* After ng_comm_leave there is no group_destroy. */
void ng_group_destroy(ng_comm *c, ng_group *g) {
  if (g->handle != NULL && c->t.group_destroy != NULL) c->t.group_destroy(c->t.user, g->handle);
  *g = (ng_group){.index = -1};
}

/* Return whether this rank sends nothing: it is the only member of the group, or not a member. */
static bool is_alone(const ng_group *g) { return g->n <= 1 || g->index < 0; }

/* ---- collectives -----------------------------------------------------------------------------*/

static char *element_at(void *buffer, int64_t i, ng_dtype t) {
  return (char *)buffer + i * ng_dtype_size(t);
}

/* Return the sum of n counts, which is also the first element of member n's part. */
static int64_t sum_counts(const int64_t *counts, int32_t n) {
  int64_t sum = 0;
  for (int32_t i = 0; i < n; i++) {
    sum += counts[i];
  }
  return sum;
}

/* Describe a collective in place on `buffer`, of `count` elements or (counts not NULL) of counts[i] elements of each member.
 * Sums and broadcasts have send == recv. */
static ng_collective describe_collective(const ng_group *g, ng_coll_kind kind, void *buffer,
                                         int64_t count, const int64_t *counts, ng_dtype t,
                                         int32_t root) {
  void *part = element_at(buffer, counts == NULL ? 0 : sum_counts(counts, g->index), t);
  return (ng_collective){.struct_size = sizeof(ng_collective),
                         .kind = kind,
                         .dtype = t,
                         .mem = NG_HOST,
                         .group = g->handle,
                         .send = kind == NG_ALL_GATHER ? part : buffer,
                         .recv = kind == NG_REDUCE_SCATTER ? part : buffer,
                         .count = count,
                         .counts = counts,
                         .root = root};
}

/* Return the number of elements of the whole buffer. */
static int64_t count_elements(const ng_group *g, const ng_collective *x) {
  return x->counts == NULL ? x->count : sum_counts(x->counts, g->n);
}

static ng_status run_collective(ng_comm *c, const ng_collective *x) {
  const double t0 = ng_now_ms();
  ng_meter_begin(&c->meter);
  const ng_status st = c->t.run(c->t.user, x);
  ng_meter_end(&c->meter);
  c->meter.wait_ms += ng_now_ms() - t0;
  return st == NG_OK ? NG_OK : ng_comm_give_up(c);
}

/* Run an all-reduce or a broadcast, at most c->piece elements at a time. */
static ng_status run_in_pieces(ng_comm *c, const ng_group *g, ng_coll_kind kind, void *buffer,
                               int64_t count, ng_dtype t, int32_t root) {
  ng_status st = NG_OK;
  for (int64_t i = 0; i < count && st == NG_OK; i += c->piece) {
    const ng_collective x = describe_collective(g, kind, element_at(buffer, i, t),
                                                ng_min64(c->piece, count - i), NULL, t, root);
    st = run_collective(c, &x);
  }
  return st;
}

/* Set rank[i] to the rank of member first + i, for i < n, by a sum: a group has no list of its ranks, but a broadcast
 * needs the rank of its root. */
static ng_status gather_ranks(ng_comm *c, const ng_group *g, int32_t first, int32_t n,
                              double *rank) {
  for (int32_t i = 0; i < n; i++) {
    rank[i] = first + i == g->index ? c->rank : 0;
  }
  return run_in_pieces(c, g, NG_ALL_REDUCE, rank, n, NG_F64, 0);
}

/* All-gather by one broadcast from each member. */
static ng_status gather_by_broadcast(ng_comm *c, const ng_group *g, const ng_collective *x) {
  char *buffer = x->recv;
  double rank[ASKED];
  ng_status st = NG_OK;
  for (int32_t i = 0; i < g->n && st == NG_OK; i++) {
    if (i % ASKED == 0 && g->handle != NULL) {
      st = gather_ranks(c, g, i, g->n - i < ASKED ? g->n - i : ASKED, rank);
      if (st != NG_OK) return st;
    }
    const int32_t root = g->handle == NULL ? i : (int32_t)rank[i % ASKED];
    st = run_in_pieces(c, g, NG_BROADCAST, buffer, x->counts[i], x->dtype, root);
    buffer += x->counts[i] * ng_dtype_size(x->dtype);
  }
  return st;
}

/* Count a collective as one message, even if the transport is called several times: ng_plan_ranks counts in this
 * way. */
static void count_message(ng_comm *c, int64_t elements, ng_dtype t) {
  c->bytes += elements * ng_dtype_size(t);
  c->messages++;
}

/* Run a collective.  A reduce-scatter that the transport lacks is an all-reduce of the buffer, which begins at x.send,
 * as in sums and broadcasts. */
static ng_status run_call(ng_comm *c, const ng_group *g, ng_collective x) {
  const int64_t total = count_elements(g, &x);
  if (c->broken) return NG_ERR_COMM;
  if (is_alone(g) || (x.counts != NULL && total == 0)) return NG_OK;
  count_message(c, total, x.dtype);
  if (x.counts != NULL && implements(c, x.kind) && total <= c->piece) return run_collective(c, &x);
  if (x.kind == NG_ALL_GATHER) return gather_by_broadcast(c, g, &x);
  if (x.kind == NG_REDUCE_SCATTER) x.kind = NG_ALL_REDUCE;
  return run_in_pieces(c, g, x.kind, (void *)(uintptr_t)x.send, total, x.dtype, x.root);
}

/* If the transport has no `start`, or the collective needs several calls of the transport, complete it at once; then
 * ng_comm_wait does nothing. */
static ng_status post_call(ng_comm *c, const ng_group *g, ng_collective x, ng_request *r) {
  const int64_t total = count_elements(g, &x);
  *r = (ng_request){.c = x, .done = true};
  if (c->broken) return NG_ERR_COMM;
  if (c->t.start == NULL || is_alone(g) || total == 0 || total > c->piece) {
    return run_call(c, g, x);
  }
  count_message(c, total, x.dtype);
  ng_meter_begin(&c->meter);
  if (c->t.start(c->t.user, &r->c, &r->handle) != NG_OK) return ng_comm_give_up(c);
  r->started = true;
  r->done = false;
  return NG_OK;
}

ng_status ng_comm_sum(ng_comm *c, const ng_group *g, void *buffer, int64_t count, ng_dtype t) {
  return run_call(c, g, describe_collective(g, NG_ALL_REDUCE, buffer, count, NULL, t, 0));
}

ng_status ng_comm_broadcast(ng_comm *c, const ng_group *g, void *buffer, int64_t count, ng_dtype t,
                            int32_t root) {
  return run_call(c, g, describe_collective(g, NG_BROADCAST, buffer, count, NULL, t, root));
}

ng_status ng_comm_gather(ng_comm *c, const ng_group *g, void *buffer, const int64_t *counts,
                         ng_dtype t) {
  return run_call(c, g, describe_collective(g, NG_ALL_GATHER, buffer, 0, counts, t, 0));
}

ng_status ng_comm_post_sum(ng_comm *c, const ng_group *g, void *buffer, int64_t count, ng_dtype t,
                           ng_request *r) {
  return post_call(c, g, describe_collective(g, NG_ALL_REDUCE, buffer, count, NULL, t, 0), r);
}

ng_status ng_comm_post_scatter_sum(ng_comm *c, const ng_group *g, void *buffer,
                                   const int64_t *counts, ng_dtype t, ng_request *r) {
  if (!implements(c, NG_REDUCE_SCATTER))
    return ng_comm_post_sum(c, g, buffer, sum_counts(counts, g->n), t, r);
  return post_call(c, g, describe_collective(g, NG_REDUCE_SCATTER, buffer, 0, counts, t, 0), r);
}

ng_status ng_comm_post_broadcast(ng_comm *c, const ng_group *g, void *buffer, int64_t count,
                                 ng_dtype t, int32_t root, ng_request *r) {
  return post_call(c, g, describe_collective(g, NG_BROADCAST, buffer, count, NULL, t, root), r);
}

ng_status ng_comm_wait(ng_comm *c, ng_request *r) {
  if (c->broken) return NG_ERR_COMM;
  if (!r->started || r->done) return NG_OK;
  const double t0 = ng_now_ms();
  const ng_status st = c->t.wait(c->t.user, r->handle);
  ng_meter_end(&c->meter);
  c->meter.wait_ms += ng_now_ms() - t0;
  if (st != NG_OK) return ng_comm_give_up(c);
  r->done = true;
  return NG_OK;
}

/* If the transport has no `test`, a request stays incomplete until ng_comm_wait. */
ng_status ng_comm_test(ng_comm *c, ng_request *r) {
  if (c->broken) return NG_ERR_COMM;
  if (!r->started || r->done || c->t.test == NULL) return NG_OK;
  int32_t done = 0;
  if (c->t.test(c->t.user, r->handle, &done) != NG_OK) return ng_comm_give_up(c);
  r->done = done != 0;
  if (r->done) ng_meter_end(&c->meter);
  return NG_OK;
}
