/* t_last: ng_batch.last: sums of complete layers are sent while others are still observed.  The bits are the same with
 * and without it, in any order of observations, of any stat_bucket_mb; the messages are those of a table; misuse is an
 * error on all ranks; a rank that fails ends all ranks (ranks.h has the watchdog). */
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
  const char *set;
  int32_t ranks, last; /* what the last micro-batch of a step says */
  event what;
  tap_way wire;
  const ng_family *family; /* takes the layers, if there is one */
  int64_t in;              /* of the last layer, if it is another */
  int64_t fail_at;         /* on the last rank */
  float out[MOST_RANKS][STEPS][LAYERS][MOST];
  ng_status status[MOST_RANKS], step_status[MOST_RANKS][STEPS];
  int64_t ahead[MOST_RANKS];
  bool changed[MOST_RANKS]; /* a step that failed wrote a gradient */
  ng_station_report sums[MOST_RANKS];
  tap tap[MOST_RANKS]; /* starts: of the last step */
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
static ng_status show(life *l, ng_precond *p, int32_t rank, int32_t step, int32_t micro,
                      int32_t k) {
  float x[B * ROOM];
  const bool grad = k >= LAYERS;
  const int32_t i = grad ? (2 * LAYERS - 1 - k + rank) % LAYERS : (k + rank) % LAYERS;
  const bool bad = l->what == NOT_FINITE && step == 1 && rank == l->ranks - 1 && i == 1;
  const int64_t cols = grad ? layer[i].out : width(l, i);
  if (l->what == UNSHOWN && micro == MICRO - 1 && rank == l->ranks - 1 && i == 2) return NG_OK;
  draw(x, B * cols, rank, step, 10 + micro * 20 + k);
  l->tap[rank].mark = k + 1;
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
static ng_status forget_one(life *l, ng_precond *p, int32_t rank) {
  ng_status st = begin(p, l->last);
  for (int32_t k = 0; k < (rank == 0 ? 2 * LAYERS : rank) && st == NG_OK; k++) {
    st = show(l, p, rank, 77, 0, k);
  }
  return st == NG_OK ? ng_reset_batch(p) : st;
}

static bool is_changed(const life *l, int32_t rank, int32_t step) {
  bool changed = false;
  for (int32_t i = 0; i < LAYERS; i++) {
    float was[MOST];
    const int64_t n = layer[i].out * width(l, i);
    draw(was, n, 0, step, i);
    changed = changed || memcmp(was, l->out[rank][step][i], (size_t)n * sizeof *was) != 0;
  }
  return changed;
}

static ng_status one_step(life *l, ng_precond *p, int32_t rank, int32_t step) {
  const bool now = step == 1;
  l->tap[rank].starts = 0;
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
  l->tap[rank].mark = 0;
  if (st == NG_OK) st = ng_step(p, 0.1);
  if (st < NG_OK) l->changed[rank] = is_changed(l, rank, step);
  return st;
}

static ng_status live(int32_t rank, ng_transport *t, void *arg) {
  life *l = arg;
  l->tap[rank] = (tap){.inner = *t, .fail_at = rank == l->ranks - 1 ? l->fail_at : 0};
  const ng_transport mine = tapped(&l->tap[rank], l->wire);
  const fixture_how how = {
      .linalg = "ref", .threads = 1 + rank % 2, .transport = l->ranks > 1 ? &mine : NULL};
  fixture f;
  int32_t index;
  l->sums[rank] = (ng_station_report){.struct_size = sizeof l->sums[rank]};
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
  if (st >= NG_OK) st = ng_report_station(f.p, NG_AT_STATISTICS, &l->sums[rank]);
  l->status[rank] = st;
  fixture_close(&f);
  return NG_OK;
}

static life *lived_as(life how) {
  life *l = malloc(sizeof *l);
  assert_non_null(l);
  *l = how;
  assert_int_equal(ranks_run(l->ranks, live, l, NULL), NG_OK);
  return l;
}

static life *lived(const char *set, int32_t ranks, int32_t last, event what, tap_way way) {
  return lived_as((life){.set = set, .ranks = ranks, .last = last, .what = what, .wire = way});
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

static int64_t tests_of(const life *l) {
  int64_t n = 0;
  for (int32_t r = 0; r < l->ranks; r++)
    n += l->tap[r].tests;
  return n;
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

static void same(const char *set, int32_t ranks, event what, tap_way way) {
  life *plain = lived(set, ranks, 0, what, way), *l = lived(set, ranks, 1, what, way);
  assert_true(well(plain) && well(l));
  for (int32_t r = 0; r < ranks; r++) {
    assert_memory_equal(l->step_status[r], plain->step_status[r], sizeof l->step_status[0]);
    if (memcmp(l->out[r], plain->out[r], sizeof l->out[0]) != 0) {
      fail_msg("%s, %d ranks, event %d: last changes bits on rank %d", set, ranks, (int)what, r);
    }
    /* cut at other places: without the few bytes by which the sums on both sides are apart */
    const int64_t gaps = llabs(plain->sums[r].total_bytes - l->sums[r].total_bytes);
    if (what == NOTHING) assert_true(gaps < (int64_t)STEPS * LAYERS * NG_ALIGN);
    assert_int_equal(plain->ahead[r], 0);
  }
  const bool sends = strstr(set, "local") == NULL && strstr(set, "adasgd") == NULL;
  if (what == NOTHING) assert_true((ranks > 1 && sends) == (total(l->ahead) > 0));
  if (ranks == 1 || way != WHOLE) assert_int_equal(tests_of(l), 0);
  if (ranks > 1 && sends && what == NOTHING && way == WHOLE) assert_true(tests_of(l) > 0);
  free(plain);
  free(l);
}

static void test_same_bits(void **state) {
  for (int k = 0; k < SETS; k++) {
    for (int32_t ranks = 1; ranks <= MOST_RANKS; ranks++) {
      same(sets[k], ranks, NOTHING, WHOLE);
    }
  }
  for (tap_way w = NO_TEST; w < TAP_WAYS; w++) {
    same("method=natgrad", 3, NOTHING, w);
    same("method=eva", 2, NOTHING, w);
  }
  same("method=natgrad", 3, NOTHING, LATE);
}

/* Steps that do not go as they should: what is left of them does not depend on `last`. */
static void test_events(void **state) {
  static const event what[] = {UNSHOWN, NOT_FINITE, UNBOUND, RESET, PERIOD};
  for (size_t e = 0; e < sizeof what / sizeof what[0]; e++) {
    for (int32_t ranks = 1; ranks <= MOST_RANKS; ranks++) {
      same("method=natgrad", ranks, what[e], WHOLE);
      same("method=eva", ranks, what[e], NO_START);
      same("method=natgrad calls=ema", ranks, what[e], NO_TEST);
      same(SLICES, ranks, what[e], NO_TEST);
    }
  }
}

/* Ranks that leave in the middle of a batch, each in another place: nobody waits for ever. */
static void test_destroy(void **state) {
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
    b->stat[i].sum_dtype = NG_F64;
  }
  return st;
}

static ng_status nothing_seen(ng_block *b, const ng_obs *o) { return NG_OK; }

/* A rank that does not say so meets the others' sums in its `check`: all are told, whatever the lengths
 * of the messages.  In the sweep of the doubles there are some that are as long as `check` is: 36 numbers and
 * two for each of 8 statistics, and up to 48 inputs, on a cache line, before 4 outputs; so are messages of two and three blocks. */
static void test_not_the_same(void **state) {
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
      life *l = lived_as((life){.set = set[k],
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
  assert_int_equal(met, 24); /* 9 to 16 inputs with two more blocks, 25 to 32 with one, 41 to 48 */
}

/* The transport of one rank fails at each of its calls in turn, those while observing among them: all ranks end, and
 * no gradient is half written. */
static void test_every_call_fails(void **state) {
  static const char *const set[] = {"method=natgrad", "method=natgrad grad_worker_fraction=0",
                                    "method=eva", SLICES};
  for (int i = 0; i < 4 * TAP_WAYS; i++) {
    life how = {.set = set[i / TAP_WAYS], .ranks = 3, .last = 1, .wire = (tap_way)(i % TAP_WAYS)};
    life *l = lived_as(how);
    const int64_t calls = l->tap[2].calls;
    assert_true(well(l) && calls > 12);
    free(l);
    for (int64_t k = 1; k <= calls; k++) {
      how.fail_at = k;
      l = lived_as(how);
      /* how often a rank asks depends on the others: the last few calls may not come */
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

/* Triangles begin on cache lines of 16 numbers: A and G of layer after layer have 28 at 0, 15 at 32, 15 at 48, 21 at
 * 64, 21 at 96, 10 at 128, 10 at 144, 10 at 160, to 170.  Rank 0 shows inputs from the first layer on, then output
 * gradients from the last: a layer is complete with the fifth, sixth, ... observation; 0: in the step. */
static const struct {
  const char *mb;
  int32_t last;
  int messages;
  struct {
    int64_t count;
    int shown;
  } sent[2 * LAYERS];
} row[] = {
    {"25", 0, 1, {{170, 0}}},
    {"25", 1, 1, {{170, 8}}},
    {"0", 0, 8, {{28, 0}, {15, 0}, {15, 0}, {21, 0}, {21, 0}, {10, 0}, {10, 0}, {10, 0}}},
    {"0", 1, 8, {{10, 5}, {10, 5}, {21, 6}, {10, 6}, {15, 7}, {21, 7}, {28, 8}, {15, 8}}},
    /* 64 numbers: 28 + 15 and 15 more end at 63; two layers of 48 are too many */
    {"256e-6", 0, 3, {{63, 0}, {53, 0}, {42, 0}}},
    {"256e-6", 1, 4, {{26, 5}, {42, 6}, {37, 7}, {47, 8}}},
    {"248e-6", 0, 4, {{47, 0}, {37, 0}, {58, 0}, {10, 0}}}, /* 62 */
    {"384e-6", 0, 2, {{85, 0}, {74, 0}}},
    {"340e-6", 0, 2, {{85, 0}, {74, 0}}}, /* just */
    {"384e-6", 1, 2, {{74, 6}, {85, 8}}},
};

static void must_be(const char *what, size_t at, int rank, int64_t is, int64_t want) {
  if (is == want) return;
  fail_msg("row %d, rank %d: %s is %lld, expected %lld", (int)at, rank, what, (long long)is,
           (long long)want);
}

static void test_messages(void **state) {
  life *first = NULL;
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
    char set[96];
    int64_t all = 0;
    (void)snprintf(set, sizeof set, "method=natgrad stat_bucket_mb=%s", row[i].mb);
    life *l = lived(set, 3, row[i].last, NOTHING, NO_TEST);
    assert_true(well(l));
    for (int k = 0; k < row[i].messages; k++)
      all += row[i].sent[k].count;
    for (int r = 0; r < 3; r++) {
      must_be("messages", i, r, l->tap[r].starts, row[i].messages);
      for (int k = 0; k < row[i].messages; k++) {
        must_be("a message", i, r, l->tap[r].count[k], row[i].sent[k].count);
        if (r == 0) must_be("what was shown", i, r, l->tap[r].mark_at[k], row[i].sent[k].shown);
      }
      must_be("last_messages", i, r, l->sums[r].last_messages, row[i].messages);
      must_be("total_messages", i, r, l->sums[r].total_messages, STEPS * row[i].messages);
      must_be("last_bytes", i, r, l->sums[r].last_bytes, all * (int64_t)sizeof(float));
    }
    if (i == 0) first = l;
    assert_memory_equal(l->out, first->out, sizeof l->out);
    if (i > 0) free(l);
  }
  free(first);
}

/* ---- misuse, on one rank as on many ----------------------------------------------------------*/

static void says(const fixture *f, ng_status st, ng_status want, const char *word) {
  if (st != want || strstr(ng_last_error(f->ctx), word) == NULL) {
    fail_msg("%s: '%s', expected %s: '%s'", ng_status_name(st), ng_last_error(f->ctx),
             ng_status_name(want), word);
  }
}

static void test_misuse(void **state) {
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
      says(&f, begin(f.p, 0), NG_ERR_STATE, "the previous micro-batch had ng_batch.last");
      says(&f, begin(f.p, 1), NG_ERR_STATE, "the previous micro-batch had ng_batch.last");
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
      cmocka_unit_test(test_every_call_fails), cmocka_unit_test(test_messages),
      cmocka_unit_test(test_misuse),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
