/* t_to_owner.c: statistics = owner sends sums only to the rank that stores the average.
 *
 * The oracle is statistics = all: both add sums in the order of ranks, so every bit is the same.  The transport
 * overwrites what a reduce-scatter leaves undefined, so a rank that reads sums of other owners gets NaN. */
#include "draw.h"
#include "fixture.h"
#include "ranks.h"
#include "tap.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINEAR = 4, LAYERS = LINEAR + 1, MOST_RANKS = 5, STEPS = 4, MICRO = 2, MOST = 64 };
enum { ROOM = 96 };

static const struct {
  const char *name;
  int64_t in, out;
} layer[LAYERS] = {{"one", 7, 5}, {"two", 5, 6}, {"three", 6, 4}, {"four", 4, 6}, {"bn", 6, 6}};

/* The transport: blocking; with `start`; without reduce-scatter. */
typedef enum way { BLOCKING, STARTED, WITHOUT, WAYS } way;

typedef struct recorder {
  tap tap; /* first member, because count_and_overwrite casts the address of `tap` */
  int64_t scattered, others;
} recorder;

typedef struct outcome {
  float out[STEPS][LAYERS][MOST];
  ng_status status[STEPS];
  int64_t scattered, others, sums;
  char message[512];
} outcome;

typedef struct test_run {
  const char *options, *with;
  int32_t ranks;
  way way;
  bool ahead; /* ng_batch.last */
  bool alone; /* each step observes one layer only */
  bool alike; /* all ranks and calls observe the same */
  int huge;   /* the step in which a sum of the inputs of `two` overflows; -1: none */
  outcome rank[MOST_RANKS];
} test_run;

/* ---- the transport ---------------------------------------------------------------------------*/

/* Count messages, and overwrite all but this rank's result, which lies within `send`. */
static void count_and_overwrite(tap *p, const ng_collective *c) {
  recorder *s = (recorder *)p;
  const int64_t size = ng_dtype_size(c->dtype);
  char *at = (char *)(uintptr_t)c->send;
  s->scattered += c->kind == NG_REDUCE_SCATTER;
  s->others += c->kind == NG_ALL_REDUCE && c->dtype != NG_F64;
  for (int32_t r = 0; r < p->inner.size && c->kind == NG_REDUCE_SCATTER; r++) {
    const size_t bytes = (size_t)(c->counts[r] * size);
    if (r != p->inner.rank) memset(at, 0xff, bytes); /* NaN in every dtype */
    at += bytes;
  }
}

static ng_transport make_counting_transport(recorder *s, const test_run *l) {
  ng_transport t = tap_transport(&s->tap, l->way == BLOCKING ? NO_START : WHOLE);
  t.group_create = NULL;
  t.group_destroy = NULL;
  if (l->way == WITHOUT) t.kinds = 1u << NG_ALL_REDUCE | 1u << NG_BROADCAST;
  return t;
}

/* ---- one run ---------------------------------------------------------------------------------*/

static void fill_random(float *x, int64_t n, int32_t rank, int step, int at) {
  rng r = {test_seed() ^ (uint64_t)(rank * 10000 + step * 100 + at)};
  rng_fill(&r, x, n);
}

static int64_t count_samples(const test_run *l, int32_t rank, int micro) {
  return l->alike ? 3 : 2 + (rank + micro) % 3;
}

static ng_status observe_layer(const test_run *l, ng_precond *p, int32_t rank, int step, int micro,
                               int32_t k) {
  const int64_t B = count_samples(l, rank, micro);
  float a[ROOM], g[ROOM];
  if (l->alike) rank = micro = 0;
  fill_random(a, B * layer[k].in, rank, step, 10 + 2 * k + 20 * micro);
  fill_random(g, B * layer[k].out, rank, step, 11 + 2 * k + 20 * micro);
  /* finite numbers whose squares are not finite */
  for (int64_t i = 0; i < B * layer[k].in && k == 1 && step == l->huge; i++)
    a[i] = 1e30f;
  const ng_array in = ng_array_matrix(a, B, layer[k].in, NG_F32),
                 out = ng_array_matrix(g, B, layer[k].out, NG_F32);
  const ng_status st = ng_observe_input(p, k, &in, k < LINEAR ? NG_COPY : NG_BORROW);
  return st == NG_OK ? ng_observe_output_grad(p, k, &out, NG_COPY) : st;
}

static ng_status take_step(test_run *l, fixture *f, int32_t rank, int step) {
  ng_precond *p = f->p;
  ng_status st = NG_OK;
  for (int32_t k = 0; k < LAYERS && st == NG_OK; k++) {
    const int64_t n = k < LINEAR ? layer[k].in * layer[k].out : layer[k].out;
    float *w = l->rank[rank].out[step][k];
    fill_random(w, MOST, 0, step, 90 + k);
    const ng_array grad = ng_array_matrix(w, k < LINEAR ? layer[k].out : 1,
                                          k < LINEAR ? layer[k].in : n, NG_F32),
                   bias = ng_array_matrix(w + n, 1, layer[k].out, NG_F32);
    st = ng_bind_grad(p, k, NG_WEIGHT, &grad);
    if (st == NG_OK) st = ng_bind_grad(p, k, NG_BIAS, &bias);
  }
  for (int micro = 0; micro < MICRO && st == NG_OK; micro++) {
    st = fixture_begin_last(f, count_samples(l, rank, micro), l->ahead && micro == MICRO - 1);
    for (int32_t k = 0; k < LAYERS && st == NG_OK; k++) {
      if (!l->alone || step == 0 || k == step) st = observe_layer(l, p, rank, step, micro, k);
    }
  }
  return st == NG_OK ? ng_step(p, 0.1) : st;
}

static ng_status run_rank(int32_t rank, ng_transport *t, void *arg) {
  test_run *l = arg;
  outcome *o = &l->rank[rank];
  recorder p = {.tap = {.inner = *t, .after = count_and_overwrite}};
  const ng_transport mine = make_counting_transport(&p, l);
  const fixture_how how = {.threads = 1, .linalg = "ref", .transport = &mine};
  char options[256];
  fixture f;
  (void)snprintf(options, sizeof options, "grad_worker_fraction=0 clip=none %s %s", l->options,
                 l->with);
  ng_status st = fixture_open(&f, options, &how);
  for (int32_t k = 0; k < LINEAR && st == NG_OK; k++)
    st = ng_add_linear(f.p, layer[k].name, layer[k].in, layer[k].out, 1, NULL);
  if (st == NG_OK) st = ng_add_norm(f.p, "bn", NG_BATCH_NORM, 6, 1, 1e-5, NULL);
  if (st == NG_OK) st = ng_ready(f.p);
  for (int step = 0; step < STEPS && st >= NG_OK; step++)
    st = o->status[step] = take_step(l, &f, rank, step);
  if (st < NG_OK) (void)snprintf(o->message, sizeof o->message, "%s", fixture_message(&f));
  ng_station_report s = {.struct_size = sizeof s};
  for (int32_t i = 0; st >= NG_OK && ng_report_station(f.p, i, &s) == NG_OK; i++)
    if (strcmp(s.name, "statistics") == 0) o->sums = s.total_bytes;
  o->scattered = p.scattered;
  o->others = p.others;
  fixture_close(&f);
  return st < NG_OK ? st : NG_OK;
}

/* The smallest and the largest number of ranks in a test.  Over MPI, all processes are ranks. */
#if defined(NG_TEST_MPI)
static int32_t least_ranks(void) {
  return ranks_process_count() < MOST_RANKS ? ranks_process_count() : MOST_RANKS;
}
static int32_t most_ranks(void) { return least_ranks(); }
#else
static int32_t least_ranks(void) { return 2; }
static int32_t most_ranks(void) { return MOST_RANKS; }
#endif

static test_run run_ranks(test_run how) {
  static test_run l;
  l = how;
  if (ranks_run(l.ranks, run_rank, &l, NULL) != NG_OK)
    fail_msg("%s %s: %s", l.options, l.with, l.rank[0].message);
  for (int32_t r = 0; r < l.ranks; r++) {
    const outcome *o = &l.rank[r];
    ranks_broadcast_bytes(r, &l.rank[r], sizeof *o);
    assert_memory_equal(o->out, l.rank[0].out, sizeof o->out);
    assert_memory_equal(o->status, l.rank[0].status, sizeof o->status);
    /* sums go to all ranks or to owners, never both */
    const bool owner = strstr(l.options, "statistics=owner") != NULL && l.way != WITHOUT;
    assert_true((o->scattered > 0) == owner && (o->others > 0) == !owner);
  }
  return l;
}

/* ---- tests -----------------------------------------------------------------------------------*/

static test_run *result[2];

static void expect_same_bits(test_run how) {
  how.options = "statistics=all";
  *result[0] = run_ranks(how);
  how.options = "statistics=owner";
  *result[1] = run_ranks(how);
  const outcome *all = result[0]->rank, *owner = result[1]->rank;
  if (memcmp(all->out, owner->out, sizeof all->out) != 0 ||
      memcmp(all->status, owner->status, sizeof all->status) != 0)
    fail_msg("%s, %d ranks, transport %d: statistics = owner gives other bits", how.with, how.ranks,
             (int)how.way);
  assert_true(owner->sums > 0);
}

/* Through every kind of transport. */
static void sums_to_owners_equal_sums_to_all(void **state) {
  static const char *const with[] = {"stat_period=1",
                                     "wire_dtype=bf16",
                                     "wire_dtype=f16 norm_block=full",
                                     "calls=ema",
                                     "calls=last norm_block=diagonal",
                                     "factor_dtype=bf16",
                                     "refresh_tolerance=0.9",
                                     "factor_blocks=2",
                                     "solver=eigen damping_split=joint"};
  for (size_t i = 0; i < sizeof with / sizeof with[0]; i++)
    for (int32_t ranks = least_ranks(); ranks <= most_ranks(); ranks++)
      for (int k = 0; k < 2 * WAYS; k++)
        expect_same_bits((test_run){
            .with = with[i], .ranks = ranks, .way = (way)(k / 2), .ahead = k % 2 != 0, .huge = -1});
}

/* A layer sends sums only in its own period.  In each step, all layers are due, all layers but one, or one layer. */
static void only_due_layers_are_sent(void **state) {
  static const char *const with[] = {"stat_period=1",
                                     "stat_period=1 per_layer='two: stat_period=100'",
                                     "stat_period=100 per_layer='two: stat_period=1'"};
  int64_t sent[3];
  for (int k = 0; k < 3; k++) {
    *result[0] = run_ranks((test_run){
        .options = "statistics=owner", .with = with[k], .ranks = least_ranks(), .huge = -1});
    sent[k] = result[0]->rank[0].sums;
  }
  assert_true(sent[0] > sent[1] && sent[1] > sent[2]);
}

/* Each step observes another single layer, so its sums are a whole message. */
static void single_layers_reach_their_owner(void **state) {
  for (int32_t ranks = least_ranks(); ranks <= most_ranks(); ranks++)
    for (int k = 0; k < WAYS; k++)
      expect_same_bits((test_run){
          .with = "stat_period=1", .ranks = ranks, .way = (way)k, .alone = true, .huge = -1});
}

/* Only the owner finds the overflow of a sum.  The next sample begins the owner's average, but continues the averages
 * of other ranks.  With calls = ema the owner and other ranks then weigh calls differently, so all ranks observe the
 * same arrays.  Tolerance: a few roundings of f32; 1e-5 is about 80 roundings. */
static void an_overflow_found_by_the_owner_skips_the_step(void **state) {
  for (int32_t ranks = least_ranks(); ranks <= most_ranks(); ranks++) {
    expect_same_bits((test_run){.with = "stat_period=1", .ranks = ranks, .huge = 0});
    assert_int_equal(result[1]->rank[0].status[0], NG_SKIPPED);
    assert_int_equal(result[1]->rank[0].status[1], NG_OK);
    expect_same_bits((test_run){.with = "wire_dtype=bf16", .ranks = ranks, .huge = 2});
    assert_int_equal(result[1]->rank[0].status[2], NG_SKIPPED);
    for (int k = 0; k < 2; k++)
      *result[k] = run_ranks((test_run){.options = k == 0 ? "statistics=all" : "statistics=owner",
                                        .with = "calls=ema",
                                        .ranks = ranks,
                                        .alike = true,
                                        .huge = 0});
    for (int i = 0; i < STEPS * LAYERS * MOST; i++) {
      const double x = (double)(&result[0]->rank[0].out[0][0][0])[i],
                   y = (double)(&result[1]->rank[0].out[0][0][0])[i];
      if (!(fabs(x - y) <= 1e-5 * fmax(1.0, fabs(x))))
        fail_msg("number %d is %g, expected %g", i, y, x);
    }
  }
}

int main(void) {
  for (int i = 0; i < 2; i++)
    result[i] = calloc(1, sizeof(test_run));
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sums_to_owners_equal_sums_to_all),
      cmocka_unit_test(single_layers_reach_their_owner), cmocka_unit_test(only_due_layers_are_sent),
      cmocka_unit_test(an_overflow_found_by_the_owner_skips_the_step)};
  const int failed = result[0] == NULL || result[1] == NULL ? 1 : RANKS_TESTS("owner", tests);
  for (int i = 0; i < 2; i++)
    free(result[i]);
  return failed;
}
