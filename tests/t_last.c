/* t_last: ng_batch.last: sums of complete layers leave while others are still observed.  The same bits with
 * and without it, in whatever order each rank observes; what is told of its misuse, to all ranks; nobody
 * waits for ever (ranks.h has the watchdog). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "draw.h"
#include "fixture.h"
#include "ranks.h"
#include "step/step.h"
#include "tap.h"

enum { LAYERS = 4, MOST_RANKS = 4, STEPS = 4, MICRO = 2, B = 3, MOST = 240, ROOM = 512 };

static const struct {
  const char *name;
  int64_t in, out;
} layer[LAYERS] = {{"one", 7, 5}, {"two", 5, 6}, {"three", 6, 4}, {"four", 4, 4}};

/* What goes wrong, in step 1 and on the last rank unless it says otherwise. */
typedef enum event {
  NOTHING,
  UNSHOWN,     /* one layer less in the last micro-batch */
  NOT_FINITE,  /* an input */
  UNBOUND,     /* a gradient, put right after the step has said so */
  RESET,       /* all ranks forget a micro-batch of which each has shown another part */
  PERIOD,      /* all set a stat_period with which nothing is due any more */
  DESTROY,     /* all leave, each in another place */
  ONE_HAS_LAST /* rank 0 alone says that it is the last */
} event;

typedef struct life {
  char set[160];
  int32_t ranks, last; /* what the last micro-batch of a step says */
  event what;
  tap_way wire;
  const ng_family *family; /* takes the layers, if there is one */
  int64_t in;              /* of the last layer, if it is another */
  int64_t fail_at;         /* on the last rank */
  float out[MOST_RANKS][STEPS][LAYERS][MOST];
  ng_status status[MOST_RANKS], step_status[MOST_RANKS][STEPS];
  int64_t bytes[MOST_RANKS], ahead[MOST_RANKS], calls[MOST_RANKS], tests[MOST_RANKS];
  char why[MOST_RANKS][512];
} life;

static void draw(float *x, int64_t n, int32_t rank, int32_t step, int32_t at) {
  rng r = {test_seed() ^ (uint64_t)(rank * 10000 + step * 100 + at)};
  for (int64_t i = 0; i < n; i++) {
    x[i] = (float)rng_value(&r);
  }
}

/* ---- a life ----------------------------------------------------------------------------------*/

static int64_t width(const life *l, int32_t i) {
  return i == LAYERS - 1 && l->in > 0 ? l->in : layer[i].in;
}

/* The k-th array of a micro-batch; ranks show inputs and output gradients in orders of their own. */
static ng_status show(const life *l, ng_precond *p, int32_t rank, int32_t step, int32_t micro,
                      int32_t k) {
  float x[B * ROOM];
  const bool grad = k >= LAYERS;
  const int32_t i = grad ? (2 * LAYERS - 1 - k + rank) % LAYERS : (k + rank) % LAYERS;
  const bool bad = l->what == NOT_FINITE && step == 1 && rank == l->ranks - 1 && i == 1;
  const int64_t cols = grad ? layer[i].out : width(l, i);
  if (l->what == UNSHOWN && micro == MICRO - 1 && rank == l->ranks - 1 && i == 2) return NG_OK;
  draw(x, B * cols, rank, step, 10 + micro * 20 + k);
  if (bad && !grad && micro == MICRO - 1) x[1] = NAN;
  const plane v = plane_of(x, B, cols, NG_F32);
  const ng_status st = grad ? plane_output_grad(p, i, &v, NG_COPY) : plane_input(p, i, &v, NG_COPY);
  return st == NG_SKIPPED ? NG_OK : st; /* the step tells everybody */
}

static ng_status begin(ng_precond *p, int32_t last) {
  ng_batch b;
  ng_batch_init(&b, sizeof b);
  b.samples = B;
  b.last = last;
  return ng_begin(p, &b);
}

static ng_status bind(const life *l, ng_precond *p, int32_t i, float *grad) {
  const plane v = plane_of(grad, layer[i].out, width(l, i), NG_F32);
  return plane_bind_grad(p, i, NG_WEIGHT, &v);
}

/* Forgotten: numbers of another step, of which each rank has shown another part. */
static ng_status forget_one(const life *l, ng_precond *p, int32_t rank) {
  ng_status st = begin(p, l->last);
  for (int32_t k = 0; k < (rank == 0 ? 2 * LAYERS : rank) && st == NG_OK; k++) {
    st = show(l, p, rank, 77, 0, k);
  }
  return st == NG_OK ? ng_reset_batch(p) : st;
}

static ng_status one_step(life *l, ng_precond *p, int32_t rank, int32_t step) {
  const bool now = step == 1;
  ng_status st = now && l->what == RESET ? forget_one(l, p, rank) : NG_OK;
  for (int32_t i = 0; i < LAYERS && st == NG_OK; i++) {
    draw(l->out[rank][step][i], layer[i].out * width(l, i), 0, step, i);
    st = bind(l, p, i, l->out[rank][step][i]);
  }
  for (int32_t micro = 0; micro < MICRO && st == NG_OK; micro++) {
    const bool mine = l->what != ONE_HAS_LAST || rank == 0;
    st = begin(p, micro == MICRO - 1 && mine ? l->last : 0);
    const int32_t most = now && micro == MICRO - 1 && l->what == DESTROY ? 2 * rank : 2 * LAYERS;
    for (int32_t k = 0; k < most && st == NG_OK; k++) {
      st = show(l, p, rank, step, micro, k);
    }
  }
  if (now && l->what == DESTROY) return st == NG_OK ? NG_SKIPPED : st;
  if (st == NG_OK && now && l->what == PERIOD) st = ng_set(p, "stat_period", "100");
  if (st == NG_OK && now && l->what == UNBOUND) {
    const plane none = plane_of(NULL, 0, 0, NG_F32);
    if (rank == l->ranks - 1) st = plane_bind_grad(p, 2, NG_WEIGHT, &none);
    if (st == NG_OK && ng_step(p, 0.1) != NG_ERR_STATE) st = NG_ERR_COMM;
    if (st == NG_OK) st = bind(l, p, 2, l->out[rank][step][2]);
  }
  l->ahead[rank] += p->step->exchange.messages;
  return st == NG_OK ? ng_step(p, 0.1) : st;
}

static ng_status live(int32_t rank, ng_transport *t, void *arg) {
  life *l = arg;
  tap between = {.inner = *t, .fail_at = rank == l->ranks - 1 ? l->fail_at : 0};
  const ng_transport mine = tapped(&between, l->wire);
  const fixture_how how = {
      .linalg = "ref", .threads = 1 + rank % 2, .transport = l->ranks > 1 ? &mine : NULL};
  fixture f;
  int32_t index;
  ng_station_report sums = {.struct_size = sizeof sums};
  ng_status st = fixture_open(&f, l->set, &how);
  if (st == NG_OK && l->family != NULL) ng_family_register(f.ctx, l->family);
  for (int32_t i = 0; i < LAYERS && st == NG_OK; i++) {
    st = ng_add_linear(f.p, layer[i].name, width(l, i), layer[i].out, 0, &index);
  }
  if (st == NG_OK) st = ng_ready(f.p);
  for (int32_t step = 0; step < STEPS && st >= NG_OK; step++) {
    st = l->step_status[rank][step] = one_step(l, f.p, rank, step);
    if (l->what == DESTROY && step == 1) break;
  }
  (void)snprintf(l->why[rank], sizeof l->why[0], "%s",
                 f.ctx == NULL ? f.message : ng_last_error(f.ctx));
  if (st >= NG_OK && ng_report_station(f.p, NG_AT_STATISTICS, &sums) == NG_OK)
    l->bytes[rank] = sums.total_bytes;
  l->calls[rank] = between.calls;
  l->tests[rank] = between.tests;
  l->status[rank] = st;
  fixture_close(&f);
  return NG_OK;
}

static life *lived(const char *set, int32_t ranks, int32_t last, event what, tap_way way) {
  life *l = calloc(1, sizeof *l);
  assert_non_null(l);
  (void)snprintf(l->set, sizeof l->set, "%s", set);
  l->ranks = ranks;
  l->last = last;
  l->what = what;
  l->wire = way;
  assert_int_equal(ranks_run(ranks, live, l, NULL), NG_OK);
  return l;
}

static bool well(const life *l) {
  for (int32_t r = 0; r < l->ranks; r++) {
    if (l->status[r] >= NG_OK) continue;
    print_error("%s, %d ranks, event %d, wire %d: rank %d: %s\n", l->set, l->ranks, (int)l->what,
                (int)l->wire, r, l->why[r]);
    return false;
  }
  return true;
}

static int64_t total(const int64_t x[MOST_RANKS]) { return x[0] + x[1] + x[2] + x[3]; }

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

static void same(const char *set, int32_t ranks, event what, tap_way way) {
  life *plain = lived(set, ranks, 0, what, way), *l = lived(set, ranks, 1, what, way);
  assert_true(well(plain) && well(l));
  for (int32_t r = 0; r < ranks; r++) {
    assert_memory_equal(l->step_status[r], plain->step_status[r], sizeof l->step_status[0]);
    if (memcmp(l->out[r], plain->out[r], sizeof l->out[0]) != 0) {
      fail_msg("%s, %d ranks, event %d: last changes bits on rank %d", set, ranks, (int)what, r);
    }
    /* cut at other places: without the few bytes by which the sums on both sides are apart */
    const int64_t gaps = llabs(plain->bytes[r] - l->bytes[r]);
    if (what == NOTHING) assert_true(gaps < (int64_t)STEPS * LAYERS * NG_ALIGN);
    assert_int_equal(plain->ahead[r], 0);
  }
  const bool sends = strstr(set, "local") == NULL && strstr(set, "adasgd") == NULL;
  if (what == NOTHING) assert_true((ranks > 1 && sends) == (total(l->ahead) > 0));
  if (ranks == 1 || way != WHOLE) assert_int_equal(total(l->tests), 0);
  if (ranks > 1 && sends && what == NOTHING && way == WHOLE) assert_true(total(l->tests) > 0);
  free(plain);
  free(l);
}

static void test_same_bits(void **state) {
  (void)state;
  for (int k = 0; k < SETS; k++) {
    for (int32_t ranks = 1; ranks <= MOST_RANKS; ranks++) {
      same(sets[k], ranks, NOTHING, WHOLE);
    }
  }
  for (tap_way w = NO_TEST; w < TAP_WAYS; w++) {
    same("method=natgrad", 3, NOTHING, w);
    same("method=eva", 2, NOTHING, w);
  }
}

/* Steps that do not go as they should: what is left of them does not depend on `last`. */
static void test_events(void **state) {
  (void)state;
  static const event what[] = {UNSHOWN, NOT_FINITE, UNBOUND, RESET, PERIOD};
  for (size_t e = 0; e < sizeof what / sizeof what[0]; e++) {
    for (int32_t ranks = 1; ranks <= MOST_RANKS; ranks++) {
      same("method=natgrad", ranks, what[e], WHOLE);
      same("method=eva", ranks, what[e], NO_START);
      same("method=natgrad calls=ema", ranks, what[e], NO_TEST);
    }
  }
}

/* Ranks that leave in the middle of a batch, each in another place: nobody waits for ever. */
static void test_destroy(void **state) {
  (void)state;
  for (tap_way w = WHOLE; w < TAP_WAYS; w++) {
    life *l = lived("method=natgrad", 4, 1, DESTROY, w);
    assert_true(well(l));
    free(l);
  }
}

/* Sums in double, as those of `check` are; no step of it ends well, so nobody reads them. */
static ng_status in_double(ng_block *b) {
  const ng_status st = ng_family_rankone.statistics(b);
  for (int32_t i = 0; i < b->stats && st == NG_OK; i++) {
    b->stat[i].rule.averaged = false;
    b->stat[i].wire = NG_F64;
  }
  return st;
}

static ng_status nothing_seen(ng_block *b, const ng_obs *o) {
  (void)b, (void)o;
  return NG_OK;
}

/* A rank that does not say so meets the others' sums in its `check`: all are told, whatever the lengths
 * of the messages.  In the sweep of the doubles there are some that are as long as `check` is: 36 numbers and
 * two for each of 8 statistics, and up to 48 inputs, on a cache line, before 4 outputs; so are messages of two and three blocks. */
static void test_not_the_same(void **state) {
  (void)state;
  static const char *const set[] = {"method=natgrad", "method=eva",
                                    "method=natgrad statistics=local grad_worker_fraction=0",
                                    "method=eva stat_bucket_mb=0.00045"};
  ng_family doubles = ng_family_rankone;
  int met = 0;
  doubles.name = "doubles";
  doubles.statistics = in_double;
  doubles.observe = nothing_seen;
  for (int k = 0; k < 4; k++) {
    for (int64_t in = 1; in <= 48; in++) {
      life *l = calloc(1, sizeof *l);
      assert_non_null(l);
      (void)snprintf(l->set, sizeof l->set, "%s", set[k]);
      l->ranks = 3;
      l->last = 1;
      l->in = in;
      l->family = k == 3 ? &doubles : NULL;
      l->what = ONE_HAS_LAST;
      l->wire = (tap_way)(in % TAP_WAYS);
      assert_int_equal(ranks_run(3, live, l, NULL), NG_OK);
      for (int32_t r = 0; r < 3; r++) {
        const ng_status want = k == 2 ? NG_ERR_STATE : NG_ERR_COMM;
        if (l->status[r] == want) continue;
        fail_msg("%s, %d inputs: rank %d: %s (%s), expected %s", set[k], (int)in, r,
                 ng_status_name(l->status[r]), l->why[r], ng_status_name(want));
      }
      if (k == 2) {
        assert_non_null(strstr(l->why[1], "1 of 3 ranks began a micro-batch with ng_batch.last"));
      }
      met += strstr(l->why[1], "ranks are at different calls") != NULL ||
             strstr(l->why[2], "ranks are at different calls") != NULL;
      free(l);
    }
  }
  assert_int_equal(met, 24); /* 9 to 16 inputs with two more blocks, 25 to 32 with one, 41 to 48 */
}

/* The transport of one rank fails at each of its calls in turn, those while observing among them. */
static void test_every_call_fails(void **state) {
  (void)state;
  for (tap_way w = WHOLE; w < TAP_WAYS; w++) {
    life *l = lived("method=natgrad", 3, 1, NOTHING, w);
    const int64_t calls = l->calls[2];
    assert_true(well(l) && calls > 12);
    free(l);
    for (int64_t k = 1; k <= calls; k++) {
      l = calloc(1, sizeof *l);
      assert_non_null(l);
      (void)snprintf(l->set, sizeof l->set, "method=natgrad");
      l->ranks = 3;
      l->last = 1;
      l->wire = w;
      l->fail_at = k;
      assert_int_equal(ranks_run(3, live, l, NULL), NG_OK);
      /* how often a rank asks depends on the others: the last few calls may not come */
      const bool came = l->calls[2] >= k;
      for (int32_t r = 0; r < 3; r++) {
        assert_int_equal(l->status[r], came ? NG_ERR_COMM : NG_OK);
      }
      free(l);
    }
  }
}

/* ---- misuse, on one rank as on many ----------------------------------------------------------*/

static void says(const fixture *f, ng_status st, ng_status want, const char *word) {
  if (st != want || strstr(ng_last_error(f->ctx), word) == NULL) {
    fail_msg("%s: '%s', expected %s: '%s'", ng_status_name(st), ng_last_error(f->ctx),
             ng_status_name(want), word);
  }
}

static void test_misuse(void **state) {
  (void)state;
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
    fixture_ok(&f, fixture_linear(&f, "fc", grad, NULL));
    fixture_ok(&f, ng_ready(f.p));
    fixture_ok(&f, begin(f.p, 0));
    fixture_ok(&f, fixture_observe(&f, 0, &x, &y));
    fixture_ok(&f, fixture_observe(&f, 0, &x, &y)); /* not the last one: as often as one likes */
    says(&f, begin(f.p, 2), NG_ERR_ARG, "last is 2, expected 0 or 1");
    fixture_ok(&f, begin(f.p, 1));
    fixture_ok(&f, fixture_observe(&f, 0, &x, &y));
    if (twice) {
      says(
          &f, plane_input(f.p, 0, &x, NG_COPY), NG_ERR_STATE,
          "layer 'fc': its input was observed a second time in the micro-batch that ng_batch.last");
      says(&f, plane_output_grad(f.p, 0, &y, NG_COPY), NG_ERR_STATE, "its output gradient");
      says(&f, begin(f.p, 0), NG_ERR_STATE, "the micro-batch before was the last one");
      says(&f, begin(f.p, 1), NG_ERR_STATE, "the micro-batch before was the last one");
    }
    fixture_ok(&f, ng_step(f.p, 0.1));
    fixture_ok(&f, begin(f.p, 1)); /* of the next step */
    fixture_ok(&f, fixture_observe(&f, 0, &x, &y));
    fixture_ok(&f, ng_reset_batch(f.p));
    fixture_ok(&f, begin(f.p, 1));
    fixture_close(&f);
  }
  assert_memory_equal(d[0], d[1], sizeof d[0]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_same_bits),        cmocka_unit_test(test_events),
      cmocka_unit_test(test_destroy),          cmocka_unit_test(test_not_the_same),
      cmocka_unit_test(test_every_call_fails), cmocka_unit_test(test_misuse),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
