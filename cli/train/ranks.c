/* ranks.c: the trainer's collectives, and counts of their traffic. */
#include "ranks.h"

run_ranks ranks_from_transport(const ng_transport *t) {
  if (t == NULL) return (run_ranks){.size = 1};
  return (run_ranks){.rank = t->rank, .size = t->size, .t = t};
}

int64_t ranks_find_first(const run_ranks *r, int32_t rank, int64_t n) { return n * rank / r->size; }

static ng_collective describe_collective(ng_coll_kind kind, ng_dtype dtype, void *x, int64_t n) {
  ng_collective c = {.struct_size = sizeof c, .mem = NG_HOST};
  c.kind = kind;
  c.dtype = dtype;
  c.send = c.recv = x;
  c.count = n;
  return c;
}

static int report_failure(const run_ranks *r, ng_status st) {
  if (st == NG_OK) return CLI_OK;
  return cli_fail("rank %d of %d: another rank or %s failed", r->rank, r->size, r->t->name);
}

static void count_message(const run_ranks *r, const ng_collective *c) {
  if (r->count == NULL) return;
  r->count->bytes += c->count * ng_dtype_size(c->dtype);
  r->count->messages++;
  ng_meter_begin(&r->count->meter);
}

/* `waited`: this rank was blocked from the time `since` until now. */
static void stop_time_count(const run_ranks *r, bool waited, double since) {
  if (r->count == NULL) return;
  ng_meter_end(&r->count->meter);
  if (waited) r->count->meter.wait_ms += ng_now_ms() - since;
}

static int run_collective(const run_ranks *r, const ng_collective *c) {
  const double t0 = ng_now_ms();
  count_message(r, c);
  const ng_status st = r->t->run(r->t->user, c);
  stop_time_count(r, true, t0);
  return report_failure(r, st);
}

static int run_in_place(const run_ranks *r, ng_coll_kind kind, ng_dtype dtype, void *x, int64_t n) {
  if (r->size == 1) return CLI_OK;
  const ng_collective c = describe_collective(kind, dtype, x, n);
  return run_collective(r, &c);
}

int ranks_sum(const run_ranks *r, double *x, int64_t n) {
  return run_in_place(r, NG_ALL_REDUCE, NG_F64, x, n);
}

int ranks_sum_floats(const run_ranks *r, float *x, int64_t n) {
  return run_in_place(r, NG_ALL_REDUCE, NG_F32, x, n);
}

/* If the transport has no `start`, run the sum now, blocking. */
int ranks_start_sum(const run_ranks *r, float *x, int64_t n, ranks_request *out) {
  *out = (ranks_request){.c = describe_collective(NG_ALL_REDUCE, NG_F32, x, n)};
  if (r->size == 1) return CLI_OK;
  if (r->t->start == NULL) return run_collective(r, &out->c);
  count_message(r, &out->c);
  const ng_status st = r->t->start(r->t->user, &out->c, &out->handle);
  out->is_pending = st == NG_OK;
  return report_failure(r, st);
}

int ranks_test_sum(const run_ranks *r, ranks_request *q, bool *done) {
  int32_t over = 0;
  *done = !q->is_pending;
  if (!q->is_pending || r->t->test == NULL) return CLI_OK;
  const ng_status st = r->t->test(r->t->user, q->handle, &over);
  *done = over != 0;
  q->is_pending = st == NG_OK && over == 0;
  if (!q->is_pending) stop_time_count(r, false, 0.0);
  return report_failure(r, st);
}

int ranks_wait_sum(const run_ranks *r, ranks_request *q) {
  if (!q->is_pending) return CLI_OK;
  const double t0 = ng_now_ms();
  const ng_status st = r->t->wait(r->t->user, q->handle);
  q->is_pending = false;
  stop_time_count(r, true, t0);
  return report_failure(r, st);
}

int ranks_broadcast_from(const run_ranks *r, int32_t rank, void *x, int64_t bytes) {
  if (r->size == 1) return CLI_OK;
  ng_collective c = describe_collective(NG_BROADCAST, NG_U8, x, bytes);
  c.root = rank;
  return run_collective(r, &c);
}

int ranks_broadcast(const run_ranks *r, void *x, int64_t bytes) {
  return ranks_broadcast_from(r, 0, x, bytes);
}

int ranks_combine_status(const run_ranks *r, int rc) {
  double bad = rc != CLI_OK;
  if (ranks_sum(r, &bad, 1) != CLI_OK) return CLI_BAD;
  return bad > 0.0 ? CLI_BAD : CLI_OK;
}

void ranks_abort(const run_ranks *r) {
  if (r->size > 1 && r->t->abort != NULL) r->t->abort(r->t->user);
}
