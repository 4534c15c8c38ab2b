/* t_last.c: ng_batch.last sends the sums of complete layers while other layers are still observed.  Results have
 * the same bits with and without it, for any order of observations and any stat_bucket_mb.  A table gives the
 * messages.  Misuse returns an error on all ranks; a rank that fails ends all ranks (ranks.c has the watchdog). */
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"
#include "fixture.h"
#include "ranks.h"
#include "step/step.h"
#include "tap.h"

#define SLICES "method=mfac window=2 statistics=sharded stat_period=2"

enum { LAYERS = 4, MOST_RANKS = 4, STEPS = 4, MICRO = 2, B = 3, MOST = 240, ROOM = 512 };

static const struct {
  const char *name;
  int64_t in, out;
} layer[LAYERS] = {{"one", 7, 5}, {"two", 5, 6}, {"three", 6, 4}, {"four", 4, 4}};

/* The fault of a run.  It happens in step 1 on the last rank, unless stated otherwise. */
typedef enum event {
  NOTHING,
  UNOBSERVED, /* the last micro-batch does not observe one layer */
  NOT_FINITE, /* an input */
  UNBOUND, /* a gradient is unbound; ng_step reports the fault; then the gradient is bound again */
  RESET,   /* all ranks observe different layers, then call ng_reset_batch */
  PERIOD,  /* all ranks set a stat_period with which no statistic is due */
  DESTROY, /* all ranks destroy their objects, each after another number of observations */
  ONE_HAS_LAST /* only rank 0 sets ng_batch.last */
} event;

typedef struct test_run {
  const char *set;
  int32_t ranks, last; /* last: ng_batch.last of the last micro-batch of a step */
  event what;
  tap_way wire;
  const ng_family *family; /* the family that takes the layers; NULL: the usual one */
  int64_t in;              /* inputs of the last layer; 0: as in layer[] */
  int64_t fail_at;         /* number of the transport call of the last rank that fails; 0: none */
  float out[MOST_RANKS][STEPS][LAYERS][MOST];
  ng_status status[MOST_RANKS], step_status[MOST_RANKS][STEPS];
  int64_t ahead[MOST_RANKS];
  bool changed[MOST_RANKS]; /* a failed step wrote a gradient */
  ng_station_report sums[MOST_RANKS];
  tap tap[MOST_RANKS]; /* records the starts of the last step */
  char why[MOST_RANKS][512];
} test_run;

static void fill_random(float *x, int64_t n, int32_t rank, int32_t step, int32_t at) {
  rng r = {test_seed() ^ (uint64_t)(rank * 10000 + step * 100 + at)};
  rng_fill(&r, x, n);
}

/* ---- one run ---------------------------------------------------------------------------------*/

static int64_t count_layer_inputs(const test_run *l, int32_t i) {
  return i == LAYERS - 1 && l->in > 0 ? l->in : layer[i].in;
}

/* Observe array k of a micro-batch.  Each rank has its own order of inputs and of output gradients. */
static ng_status observe_array(test_run *l, ng_precond *p, int32_t rank, int32_t step,
                               int32_t micro, int32_t k) {
  float x[B * ROOM];
  const bool grad = k >= LAYERS;
  const int32_t i = grad ? (2 * LAYERS - 1 - k + rank) % LAYERS : (k + rank) % LAYERS;
  const bool bad = l->what == NOT_FINITE && step == 1 && rank == l->ranks - 1 && i == 1;
  const int64_t cols = grad ? layer[i].out : count_layer_inputs(l, i);
  if (l->what == UNOBSERVED && micro == MICRO - 1 && rank == l->ranks - 1 && i == 2) return NG_OK;
  fill_random(x, B * cols, rank, step, 10 + micro * 20 + k);
  l->tap[rank].mark = k + 1;
  if (bad && !grad && micro == MICRO - 1) x[1] = NAN;
  const plane v = plane_of(x, B, cols, NG_F32);
  const ng_status st =
      grad ? plane_observe_output_grad(p, i, &v, NG_COPY) : plane_observe_input(p, i, &v, NG_COPY);
  return st == NG_SKIPPED ? NG_OK : st; /* ng_step returns NG_SKIPPED on all ranks */
}

static ng_status bind_weight_grad(const test_run *l, ng_precond *p, int32_t i, float *grad) {
  const plane v = plane_of(grad, layer[i].out, count_layer_inputs(l, i), NG_F32);
  return plane_bind_grad(p, i, NG_WEIGHT, &v);
}

/* Observe arrays that belong to no step, of other layers on each rank, and discard them. */
static ng_status observe_and_reset(test_run *l, fixture *f, int32_t rank) {
  ng_precond *p = f->p;
  ng_status st = fixture_begin_last(f, B, l->last);
  for (int32_t k = 0; k < (rank == 0 ? 2 * LAYERS : rank) && st == NG_OK; k++) {
    st = observe_array(l, p, rank, 77, 0, k);
  }
  return st == NG_OK ? ng_reset_batch(p) : st;
}

static bool has_changed_gradients(const test_run *l, int32_t rank, int32_t step) {
  bool changed = false;
  for (int32_t i = 0; i < LAYERS; i++) {
    float was[MOST];
    const int64_t n = layer[i].out * count_layer_inputs(l, i);
    fill_random(was, n, 0, step, i);
    changed = changed || memcmp(was, l->out[rank][step][i], (size_t)n * sizeof *was) != 0;
  }
  return changed;
}

static ng_status take_step(test_run *l, fixture *f, int32_t rank, int32_t step) {
  ng_precond *p = f->p;
  const bool now = step == 1;
  l->tap[rank].starts = 0;
  ng_status st = now && l->what == RESET ? observe_and_reset(l, f, rank) : NG_OK;
  for (int32_t i = 0; i < LAYERS && st == NG_OK; i++) {
    fill_random(l->out[rank][step][i], layer[i].out * count_layer_inputs(l, i), 0, step, i);
    st = bind_weight_grad(l, p, i, l->out[rank][step][i]);
  }
  for (int32_t micro = 0; micro < MICRO && st == NG_OK; micro++) {
    const bool mine = l->what != ONE_HAS_LAST || rank == 0;
    st = fixture_begin_last(f, B, micro == MICRO - 1 && mine ? l->last : 0);
    const int32_t most = now && micro == MICRO - 1 && l->what == DESTROY ? 2 * rank : 2 * LAYERS;
    for (int32_t k = 0; k < most && st == NG_OK; k++) {
      st = observe_array(l, p, rank, step, micro, k);
    }
  }
  if (now && l->what == DESTROY) return st == NG_OK ? NG_SKIPPED : st;
  if (st == NG_OK && now && l->what == PERIOD) st = ng_set(p, "stat_period", "100");
  if (st == NG_OK && now && l->what == UNBOUND) {
    const plane none = plane_of(NULL, 0, 0, NG_F32);
    if (rank == l->ranks - 1) st = plane_bind_grad(p, 2, NG_WEIGHT, &none);
    if (st == NG_OK && ng_step(p, 0.1) != NG_ERR_STATE) st = NG_ERR_COMM;
    if (st == NG_OK) st = bind_weight_grad(l, p, 2, l->out[rank][step][2]);
  }
  l->ahead[rank] += p->step->exchange.messages;
  l->tap[rank].mark = 0;
  if (st == NG_OK) st = ng_step(p, 0.1);
  if (st < NG_OK) l->changed[rank] = has_changed_gradients(l, rank, step);
  return st;
}

static ng_status run_rank(int32_t rank, ng_transport *t, void *arg) {
  test_run *l = arg;
  l->tap[rank] = (tap){.inner = *t, .fail_at = rank == l->ranks - 1 ? l->fail_at : 0};
  const ng_transport mine = tap_transport(&l->tap[rank], l->wire);
  const fixture_how how = {
      .linalg = "ref", .threads = 1 + rank % 2, .transport = l->ranks > 1 ? &mine : NULL};
  fixture f;
  l->sums[rank] = (ng_station_report){.struct_size = sizeof l->sums[rank]};
  ng_status st = fixture_open(&f, l->set, &how);
  if (st == NG_OK && l->family != NULL) ng_family_register(f.ctx, l->family);
  for (int32_t i = 0; i < LAYERS && st == NG_OK; i++) {
    st = ng_add_linear(f.p, layer[i].name, count_layer_inputs(l, i), layer[i].out, 0, NULL);
  }
  if (st == NG_OK) st = ng_ready(f.p);
  for (int32_t step = 0; step < STEPS && st >= NG_OK; step++) {
    st = l->step_status[rank][step] = take_step(l, &f, rank, step);
    if (l->what == DESTROY && step == 1) break;
  }
  (void)snprintf(l->why[rank], sizeof l->why[0], "%s", fixture_message(&f));
  if (st >= NG_OK) st = ng_report_station(f.p, NG_AT_STATISTICS, &l->sums[rank]);
  l->status[rank] = st;
  fixture_close(&f);
  return NG_OK;
}

static test_run *run_case(test_run how) {
  test_run *l = malloc(sizeof *l);
  assert_non_null(l);
  *l = how;
  assert_int_equal(ranks_run(l->ranks, run_rank, l, NULL), NG_OK);
  return l;
}

static test_run *run_ranks(const char *set, int32_t ranks, int32_t last, event what, tap_way way) {
  return run_case((test_run){.set = set, .ranks = ranks, .last = last, .what = what, .wire = way});
}

static bool all_ranks_succeeded(const test_run *l) {
  for (int32_t r = 0; r < l->ranks; r++) {
    if (l->status[r] >= NG_OK) continue;
    print_error("%s, %d ranks, event %d, wire %d: rank %d: %s\n", l->set, l->ranks, (int)l->what,
                (int)l->wire, r, l->why[r]);
    return false;
  }
  return true;
}

/* ---- tests -----------------------------------------------------------------------------------*/

static const char *const sets[] = {
    "method=natgrad",
    "method=natgrad stat_bucket_mb=0",
    "method=natgrad stat_bucket_mb=0.0003 wire_dtype=bf16",
    "method=natgrad stat_bucket_mb=0.0003 statistics=owner grad_worker_fraction=0",
    "method=natgrad stat_bucket_mb=0.0003 statistics=owner colocate=0 placement=round-robin",
    "method=natgrad solver=eigen damping_split=joint grad_worker_fraction=0",
    "method=natgrad calls=ema stat_start=identity",
    "method=natgrad calls=last stat_period=2 solve_period=2",
    "method=natgrad statistics=local grad_worker_fraction=0",
    "method=kaisa",
    "method=eva",
    "method=eva-natgrad sides=input",
    "method=adasgd",
    "method=sam radius=0.1",
};
enum { SETS = (int)(sizeof sets / sizeof sets[0]) };

static void compare_with_and_without_last(const char *set, int32_t ranks, event what, tap_way way) {
  test_run *plain = run_ranks(set, ranks, 0, what, way), *l = run_ranks(set, ranks, 1, what, way);
  int64_t ahead = 0, tests = 0;
  assert_true(all_ranks_succeeded(plain) && all_ranks_succeeded(l));
  for (int32_t r = 0; r < ranks; r++) {
    ahead += l->ahead[r];
    tests += l->tap[r].tests;
    assert_memory_equal(l->step_status[r], plain->step_status[r], sizeof l->step_status[0]);
    if (memcmp(l->out[r], plain->out[r], sizeof l->out[0]) != 0) {
      fail_msg("%s, %d ranks, event %d: `last` changes bits on rank %d", set, ranks, (int)what, r);
    }
    /* `last` cuts messages at other places, which changes the padding between sums */
    const int64_t gaps = llabs(plain->sums[r].total_bytes - l->sums[r].total_bytes);
    if (what == NOTHING) assert_true(gaps < (int64_t)STEPS * LAYERS * NG_ALIGN);
    assert_int_equal(plain->ahead[r], 0);
  }
  const bool sends = strstr(set, "local") == NULL && strstr(set, "adasgd") == NULL;
  if (what == NOTHING) assert_true((ranks > 1 && sends) == (ahead > 0));
  if (ranks == 1 || way != WHOLE) assert_int_equal(tests, 0);
  if (ranks > 1 && sends && what == NOTHING && way == WHOLE) assert_true(tests > 0);
  free(plain);
  free(l);
}

static void last_changes_no_bit(void **state) {
  for (int k = 0; k < SETS; k++) {
    for (int32_t ranks = 1; ranks <= MOST_RANKS; ranks++) {
      compare_with_and_without_last(sets[k], ranks, NOTHING, WHOLE);
    }
  }
  for (tap_way w = NO_TEST; w < TAP_WAYS; w++) {
    compare_with_and_without_last("method=natgrad", 3, NOTHING, w);
    compare_with_and_without_last("method=eva", 2, NOTHING, w);
  }
  compare_with_and_without_last("method=natgrad", 3, NOTHING, LATE);
}

/* The result of a faulty step does not depend on `last`. */
static void last_does_not_change_a_faulty_step(void **state) {
  static const event what[] = {UNOBSERVED, NOT_FINITE, UNBOUND, RESET, PERIOD};
  for (size_t e = 0; e < sizeof what / sizeof what[0]; e++) {
    for (int32_t ranks = 1; ranks <= MOST_RANKS; ranks++) {
      compare_with_and_without_last("method=natgrad", ranks, what[e], WHOLE);
      compare_with_and_without_last("method=eva", ranks, what[e], NO_START);
      compare_with_and_without_last("method=natgrad calls=ema", ranks, what[e], NO_TEST);
      compare_with_and_without_last(SLICES, ranks, what[e], NO_TEST);
    }
  }
}

/* No rank waits for ever if ranks destroy their objects after different numbers of observations. */
static void ranks_may_leave_within_a_batch(void **state) {
  for (tap_way w = WHOLE; w < TAP_WAYS; w++) {
    test_run *l = run_ranks("method=natgrad", 4, 1, DESTROY, w);
    assert_true(all_ranks_succeeded(l));
    free(l);
  }
}

/* Statistics with sums in double, like the sums of `check`.  No step succeeds, so the sums are not read. */
static ng_status declare_double_sums(ng_block *b) {
  const ng_status st = ng_family_rankone.declare_statistics(b);
  for (int32_t i = 0; i < b->stats && st == NG_OK; i++) {
    b->stat[i].rule.averaged = false;
    b->stat[i].sum_dtype = NG_F64;
  }
  return st;
}

static ng_status observe_nothing(ng_block *b, const ng_obs *o) { return NG_OK; }

/* If only rank 0 sets `last`, its sums meet the `check` of the other ranks, and all ranks return an error, for any
 * length of the messages.  The last set has doubles and sweeps the inputs, so that one, two or three blocks have
 * the length of `check`: 36 numbers and two for each of 8 statistics. */
static void last_on_one_rank_only_is_an_error_on_all(void **state) {
  static const char *const set[] = {"method=natgrad", "method=eva",
                                    "method=natgrad statistics=local grad_worker_fraction=0",
                                    "method=eva stat_bucket_mb=0.00045"};
  ng_family doubles = ng_family_rankone;
  int met = 0;
  doubles.name = "doubles";
  doubles.declare_statistics = declare_double_sums;
  doubles.observe = observe_nothing;
  for (int k = 0; k < 4; k++) {
    for (int64_t in = 1; in <= 48; in++) {
      test_run *l = run_case((test_run){.set = set[k],
                                        .ranks = 3,
                                        .last = 1,
                                        .in = in,
                                        .family = k == 3 ? &doubles : NULL,
                                        .what = ONE_HAS_LAST,
                                        .wire = (tap_way)(in % TAP_WAYS)});
      for (int32_t r = 0; r < 3; r++) {
        const ng_status want = k == 2 ? NG_ERR_STATE : NG_ERR_COMM;
        if (l->status[r] == want) continue;
        fail_msg("%s, %d inputs: rank %d: %s (%s), expected %s", set[k], (int)in, r,
                 ng_status_name(l->status[r]), l->why[r], ng_status_name(want));
      }
      if (k == 2) {
        assert_non_null(strstr(l->why[1], "1 of 3 ranks began a micro-batch with ng_batch.last"));
      }
      met += strstr(l->why[1], "ranks are in different collectives") != NULL ||
             strstr(l->why[2], "ranks are in different collectives") != NULL;
      free(l);
    }
  }
  /* inputs with which two collectives have equal lengths: 9 to 16 (three blocks), 25 to 32 (two), 41 to 48 (one) */
  assert_int_equal(met, 24);
}

/* The transport of one rank fails at each call in turn, also during an observation.  All ranks return an error, and no
 * rank changes a gradient. */
static void every_failing_call_ends_all_ranks(void **state) {
  static const char *const set[] = {"method=natgrad", "method=natgrad grad_worker_fraction=0",
                                    "method=eva", SLICES};
  for (int i = 0; i < 4 * TAP_WAYS; i++) {
    test_run how = {
        .set = set[i / TAP_WAYS], .ranks = 3, .last = 1, .wire = (tap_way)(i % TAP_WAYS)};
    test_run *l = run_case(how);
    const int64_t calls = l->tap[2].calls;
    assert_true(all_ranks_succeeded(l) && calls > 12);
    free(l);
    for (int64_t k = 1; k <= calls; k++) {
      how.fail_at = k;
      l = run_case(how);
      /* the number of tests depends on the other ranks, so the last calls may not happen */
      const bool came = l->tap[2].calls >= k;
      for (int32_t r = 0; r < 3; r++) {
        assert_int_equal(l->status[r], came ? NG_ERR_COMM : NG_OK);
        assert_false(l->changed[r]);
      }
      free(l);
    }
  }
}

/* ---- messages --------------------------------------------------------------------------------*/

/* Each triangle begins on a cache line of 16 numbers.  A and G of the four layers have 28 numbers at 0, 15 at 32,
 * 15 at 48, 21 at 64, 21 at 96, 10 at 128, 10 at 144 and 10 at 160, so they end at 170.  Rank 0 observes inputs
 * from the first layer on, then output gradients from the last layer back: observation 5 completes layer four,
 * ..., observation 8 layer one. */
static const struct {
  const char *mb;
  int32_t last;
  int messages;
  struct {
    int64_t count;
    int observed; /* number of observations before this message is posted; 0: ng_step posts it */
  } sent[2 * LAYERS];
} row[] = {
    {"25", 0, 1, {{170, 0}}},
    {"25", 1, 1, {{170, 8}}},
    {"0", 0, 8, {{28, 0}, {15, 0}, {15, 0}, {21, 0}, {21, 0}, {10, 0}, {10, 0}, {10, 0}}},
    {"0", 1, 8, {{10, 5}, {10, 5}, {21, 6}, {10, 6}, {15, 7}, {21, 7}, {28, 8}, {15, 8}}},
    /* 64 numbers: 28, 15 and 15 end at 63; two layers of 48 do not fit */
    {"256e-6", 0, 3, {{63, 0}, {53, 0}, {42, 0}}},
    {"256e-6", 1, 4, {{26, 5}, {42, 6}, {37, 7}, {47, 8}}},
    {"248e-6", 0, 4, {{47, 0}, {37, 0}, {58, 0}, {10, 0}}}, /* 62 numbers */
    {"384e-6", 0, 2, {{85, 0}, {74, 0}}},
    {"340e-6", 0, 2, {{85, 0}, {74, 0}}}, /* exactly 85 numbers */
    {"384e-6", 1, 2, {{74, 6}, {85, 8}}},
};

static void expect_equal(const char *what, size_t at, int rank, int64_t is, int64_t want) {
  if (is == want) return;
  fail_msg("row %d, rank %d: %s is %lld, expected %lld", (int)at, rank, what, (long long)is,
           (long long)want);
}

static void complete_layers_are_sent_first(void **state) {
  test_run *first = NULL;
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
    char set[96];
    int64_t all = 0;
    (void)snprintf(set, sizeof set, "method=natgrad stat_bucket_mb=%s", row[i].mb);
    test_run *l = run_ranks(set, 3, row[i].last, NOTHING, NO_TEST);
    assert_true(all_ranks_succeeded(l));
    for (int k = 0; k < row[i].messages; k++)
      all += row[i].sent[k].count;
    for (int r = 0; r < 3; r++) {
      expect_equal("messages", i, r, l->tap[r].starts, row[i].messages);
      for (int k = 0; k < row[i].messages; k++) {
        expect_equal("a message", i, r, l->tap[r].count[k], row[i].sent[k].count);
        if (r == 0)
          expect_equal("observations", i, r, l->tap[r].mark_at[k], row[i].sent[k].observed);
      }
      expect_equal("last_messages", i, r, l->sums[r].last_messages, row[i].messages);
      expect_equal("total_messages", i, r, l->sums[r].total_messages, STEPS * row[i].messages);
      expect_equal("last_bytes", i, r, l->sums[r].last_bytes, all * (int64_t)sizeof(float));
    }
    if (i == 0) first = l;
    assert_memory_equal(l->out, first->out, sizeof l->out);
    if (i > 0) free(l);
  }
  free(first);
}

/* ---- misuse has the same errors on one rank as on many ---------------------------------------*/

static void observations_after_last_are_refused(void **state) {
  float a[B * 2] = {1, 2, 3, 4, 5, 6}, g[B * 2] = {1, -1, 2, -2, 3, -3}, d[2][4];
  const plane x = plane_of(a, B, 2, NG_F32), y = plane_of(g, B, 2, NG_F32);
  for (int twice = 0; twice < 2; twice++) {
    fixture f;
    const plane grad[2] = {plane_of(d[twice], 2, 2, NG_F32), plane_of(NULL, 0, 0, NG_F32)};
    for (int i = 0; i < 4; i++) {
      d[twice][i] = (float)(i + 1);
    }
    fixture_ok(&f,
               fixture_open(&f, "method=natgrad", &(fixture_how){.linalg = "ref", .threads = 1}));
    fixture_ok(&f, fixture_add_linear(&f, "fc", grad, NULL));
    fixture_ok(&f, ng_ready(f.p));
    fixture_ok(&f, fixture_begin_last(&f, B, 0));
    fixture_ok(&f, fixture_observe(&f, 0, &x, &y));
    /* a layer may be observed often before the last micro-batch */
    fixture_ok(&f, fixture_observe(&f, 0, &x, &y));
    fixture_fails(&f, fixture_begin_last(&f, B, 2), NG_ERR_ARG, "last is 2, expected 0 or 1");
    fixture_ok(&f, fixture_begin_last(&f, B, 1));
    fixture_ok(&f, fixture_observe(&f, 0, &x, &y));
    if (twice) {
      fixture_fails(
          &f, plane_observe_input(f.p, 0, &x, NG_COPY), NG_ERR_STATE,
          "layer 'fc': its input was observed a second time in the micro-batch that ng_batch.last");
      fixture_fails(&f, plane_observe_output_grad(f.p, 0, &y, NG_COPY), NG_ERR_STATE,
                    "its output gradient");
      fixture_fails(&f, fixture_begin_last(&f, B, 0), NG_ERR_STATE,
                    "the previous micro-batch had ng_batch.last");
      fixture_fails(&f, fixture_begin_last(&f, B, 1), NG_ERR_STATE,
                    "the previous micro-batch had ng_batch.last");
    }
    fixture_ok(&f, ng_step(f.p, 0.1));
    fixture_ok(&f, fixture_begin_last(&f, B, 1)); /* the next step */
    fixture_ok(&f, fixture_observe(&f, 0, &x, &y));
    fixture_ok(&f, ng_reset_batch(f.p));
    fixture_ok(&f, fixture_begin_last(&f, B, 1));
    fixture_close(&f);
  }
  assert_memory_equal(d[0], d[1], sizeof d[0]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(last_changes_no_bit),
      cmocka_unit_test(last_does_not_change_a_faulty_step),
      cmocka_unit_test(ranks_may_leave_within_a_batch),
      cmocka_unit_test(last_on_one_rank_only_is_an_error_on_all),
      cmocka_unit_test(every_failing_call_ends_all_ranks),
      cmocka_unit_test(complete_layers_are_sent_first),
      cmocka_unit_test(observations_after_last_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
