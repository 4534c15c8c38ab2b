/* ranks.c: see ranks.h. */
#include "ranks.h"

run_ranks ranks_of(const ng_transport *t) {
  if (t == NULL) return (run_ranks){.size = 1};
  return (run_ranks){.rank = t->rank, .size = t->size, .t = t};
}

int64_t ranks_first(const run_ranks *r, int32_t rank, int64_t n) { return n * rank / r->size; }

static int call(const run_ranks *r, ng_coll_kind kind, ng_dtype dtype, void *x, int64_t n) {
  if (r->size == 1) return CLI_OK;
  ng_collective c;
  ng_collective_init(&c, sizeof c);
  c.kind = kind;
  c.dtype = dtype;
  c.mem = NG_HOST;
  c.send = c.recv = x;
  c.count = n;
  if (r->t->run(r->t->user, &c) == NG_OK) return CLI_OK;
  return cli_bad("rank %d of %d: another rank gave up, or %s failed", r->rank, r->size, r->t->name);
}

int ranks_sum(const run_ranks *r, double *x, int64_t n) {
  return call(r, NG_ALL_REDUCE, NG_F64, x, n);
}

int ranks_sum_floats(const run_ranks *r, float *x, int64_t n) {
  return call(r, NG_ALL_REDUCE, NG_F32, x, n);
}

int ranks_tell(const run_ranks *r, void *x, int64_t bytes) {
  return call(r, NG_BROADCAST, NG_U8, x, bytes);
}

int ranks_agree(const run_ranks *r, int rc) {
  double bad = rc != CLI_OK;
  if (ranks_sum(r, &bad, 1) != CLI_OK) return CLI_BAD;
  return bad > 0.0 ? CLI_BAD : CLI_OK;
}

void ranks_leave(const run_ranks *r) {
  if (r->size > 1 && r->t->abort != NULL) r->t->abort(r->t->user);
}
