/* t_to_owner.c: statistics = owner: sums go to the rank that keeps the average, and to no other.
 *
 * The oracle is statistics = all: sums are added in the order of ranks, so every bit is the same.  A transport
 * that spoils what a reduce-scatter leaves undefined shows who needs what is not its own. */
#include "draw.h"
#include "fixture.h"
#include "ranks.h"
#include "tap.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  LINEAR = 4,
  LAYERS = LINEAR + 1,
  MOST_RANKS = 5,
  STEPS = 4,
  MICRO = 2,
  MOST = 64,
  ROOM = 96
};

static const struct {
  const char *name;
  int64_t in, out;
} layer[LAYERS] = {{"one", 7, 5}, {"two", 5, 6}, {"three", 6, 4}, {"four", 4, 6}, {"bn", 6, 6}};

typedef enum way {
  BLOCKING,
  STARTED,
  WITHOUT,
  WAYS
} way; /* WITHOUT: no reduce-scatter of its own */

typedef struct spy {
  tap tap; /* the first */
  int64_t scattered, others;
} spy;

typedef struct life {
  const char *options, *with;
  int32_t ranks;
  way way;
  bool ahead, alone,
      alike; /* ng_batch.last; a step shows one layer only; all ranks and calls see one thing */
  int huge;  /* a step in which the inputs of `two` overflow in a sum; -1: none */
  float out[MOST_RANKS][STEPS][LAYERS][MOST];
  ng_status status[MOST_RANKS][STEPS];
  int64_t scattered[MOST_RANKS], others[MOST_RANKS], sums[MOST_RANKS];
  char why[MOST_RANKS][512];
} life;

/* ---- the transport ---------------------------------------------------------------------------*/

/* Count, and spoil all but this rank's part, which is where it receives. */
static void count_and_spoil(tap *p, const ng_collective *c) {
  spy *s = (spy *)p;
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

static ng_transport spied(spy *s, const life *l) {
  ng_transport t = tapped(&s->tap, l->way == BLOCKING ? NO_START : WHOLE);
  t.group_create = NULL;
  t.group_destroy = NULL;
  if (l->way == WITHOUT) t.kinds = 1u << NG_ALL_REDUCE | 1u << NG_BROADCAST;
  return t;
}

/* ---- a life ----------------------------------------------------------------------------------*/

static void draw(float *x, int64_t n, int32_t rank, int step, int at) {
  rng r = {test_seed() ^ (uint64_t)(rank * 10000 + step * 100 + at)};
  for (int64_t i = 0; i < n; i++)
    x[i] = (float)rng_value(&r);
}

/* Uneven, or alike. */
static int64_t samples(const life *l, int32_t rank, int micro) {
  return l->alike ? 3 : 2 + (rank + micro) % 3;
}

static ng_status show(const life *l, ng_precond *p, int32_t rank, int step, int micro, int32_t k) {
  const int64_t B = samples(l, rank, micro);
  float a[ROOM], g[ROOM];
  if (l->alike) rank = micro = 0;
  draw(a, B * layer[k].in, rank, step, 10 + 2 * k + 20 * micro);
  draw(g, B * layer[k].out, rank, step, 11 + 2 * k + 20 * micro);
  for (int64_t i = 0; i < B * layer[k].in && k == 1 && step == l->huge; i++)
    a[i] = 1e30f; /* finite, its square is not */
  const ng_array in = ng_array_matrix(a, B, layer[k].in, NG_F32),
                 out = ng_array_matrix(g, B, layer[k].out, NG_F32);
  const ng_status st = ng_observe_input(p, k, &in, k < LINEAR ? NG_COPY : NG_BORROW);
  return st == NG_OK ? ng_observe_output_grad(p, k, &out, NG_COPY) : st;
}

static ng_status one_step(life *l, ng_precond *p, int32_t rank, int step) {
  ng_status st = NG_OK;
  for (int32_t k = 0; k < LAYERS && st == NG_OK; k++) {
    const int64_t n = k < LINEAR ? layer[k].in * layer[k].out : layer[k].out;
    float *w = l->out[rank][step][k];
    draw(w, MOST, 0, step, 90 + k);
    const ng_array grad = ng_array_matrix(w, k < LINEAR ? layer[k].out : 1,
                                          k < LINEAR ? layer[k].in : n, NG_F32),
                   bias = ng_array_matrix(w + n, 1, layer[k].out, NG_F32);
    st = ng_bind_grad(p, k, NG_WEIGHT, &grad);
    if (st == NG_OK) st = ng_bind_grad(p, k, NG_BIAS, &bias);
  }
  for (int micro = 0; micro < MICRO && st == NG_OK; micro++) {
    ng_batch b;
    ng_batch_init(&b, sizeof b);
    b.samples = samples(l, rank, micro);
    b.last = l->ahead && micro == MICRO - 1;
    st = ng_begin(p, &b);
    for (int32_t k = 0; k < LAYERS && st == NG_OK; k++) {
      if (!l->alone || step == 0 || k == step) st = show(l, p, rank, step, micro, k);
    }
  }
  return st == NG_OK ? ng_step(p, 0.1) : st;
}

static ng_status live(int32_t rank, ng_transport *t, void *arg) {
  life *l = arg;
  spy p = {.tap = {.inner = *t, .after = count_and_spoil}};
  const ng_transport mine = spied(&p, l);
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
    st = l->status[rank][step] = one_step(l, f.p, rank, step);
  if (st < NG_OK)
    (void)snprintf(l->why[rank], sizeof l->why[rank], "%s",
                   f.ctx != NULL ? ng_last_error(f.ctx) : f.message);
  ng_station_report s = {.struct_size = sizeof s};
  for (int32_t i = 0; st >= NG_OK && ng_report_station(f.p, i, &s) == NG_OK; i++)
    if (strcmp(s.name, "statistics") == 0) l->sums[rank] = s.total_bytes;
  l->scattered[rank] = p.scattered;
  l->others[rank] = p.others;
  fixture_close(&f);
  return st < NG_OK ? st : NG_OK;
}

/* From so many ranks to so many: of processes, all there are. */
#if defined(NG_TEST_MPI)
static int32_t fewest(void) { return ranks_there() < MOST_RANKS ? ranks_there() : MOST_RANKS; }
static int32_t most(void) { return fewest(); }
#else
static int32_t fewest(void) { return 2; }
static int32_t most(void) { return MOST_RANKS; }
#endif

static life lived(life how) {
  static life l;
  l = how;
  if (ranks_run(l.ranks, live, &l, NULL) != NG_OK)
    fail_msg("%s %s: %s", l.options, l.with, l.why[0]);
  for (int32_t r = 0; r < l.ranks; r++) { /* all processes compare */
    ranks_broadcast_bytes(r, l.out[r], sizeof l.out[r]);
    ranks_broadcast_bytes(r, l.status[r], sizeof l.status[r]);
    ranks_broadcast_bytes(r, &l.scattered[r], sizeof l.scattered[r]);
    ranks_broadcast_bytes(r, &l.others[r], sizeof l.others[r]);
    ranks_broadcast_bytes(r, &l.sums[r], sizeof l.sums[r]);
    assert_memory_equal(l.out[r], l.out[0], sizeof l.out[0]);
    assert_memory_equal(l.status[r], l.status[0], sizeof l.status[0]);
  }
  for (int32_t r = 0; r < l.ranks; r++) { /* to all, or to owners: never both */
    const bool owner = strstr(l.options, "statistics=owner") != NULL && l.way != WITHOUT;
    assert_int_equal(l.scattered[r] > 0, owner);
    assert_int_equal(l.others[r] > 0, !owner);
  }
  return l;
}

/* ---- tests -----------------------------------------------------------------------------------*/

static life *kept[2];

static void same_bits(life how) {
  how.options = "statistics=all";
  *kept[0] = lived(how);
  how.options = "statistics=owner";
  *kept[1] = lived(how);
  if (memcmp(kept[0]->out, kept[1]->out, sizeof kept[0]->out) != 0 ||
      memcmp(kept[0]->status, kept[1]->status, sizeof kept[0]->status) != 0)
    fail_msg("%s, %d ranks, way %d: other bits", how.with, how.ranks, (int)how.way);
  assert_true(kept[1]->sums[0] > 0);
}

/* Every way that a sum may go. */
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
    for (int32_t ranks = fewest(); ranks <= most(); ranks++)
      for (int k = 0; k < 2 * WAYS; k++)
        same_bits((life){
            .with = with[i], .ranks = ranks, .way = (way)(k / 2), .ahead = k % 2 != 0, .huge = -1});
}

/* A layer sends in its own period only: all layers in every step, all but one, one alone. */
static void only_due_layers_are_sent(void **state) {
  static const char *const with[] = {"stat_period=1",
                                     "stat_period=1 per_layer='two: stat_period=100'",
                                     "stat_period=100 per_layer='two: stat_period=1'"};
  int64_t sent[3];
  for (int k = 0; k < 3; k++) {
    *kept[0] = lived(
        (life){.options = "statistics=owner", .with = with[k], .ranks = fewest(), .huge = -1});
    sent[k] = kept[0]->sums[0];
  }
  assert_true(sent[0] > sent[1] && sent[1] > sent[2]);
}

/* A step that shows one layer only, another one each time: messages begin and end with it. */
static void steps_that_observe_one_layer(void **state) {
  for (int32_t ranks = fewest(); ranks <= most(); ranks++)
    for (int k = 0; k < WAYS; k++)
      same_bits((life){
          .with = "stat_period=1", .ranks = ranks, .way = (way)k, .alone = true, .huge = -1});
}

/* Only the owner finds that a sum has overflowed.  Its average begins with the next sample, although the other
 * ranks take theirs for one that goes on.  With calls = ema an owner's S and those of others then weigh calls
 * differently, so all see one thing; tolerance: a few roundings of f32, 1e-5 is some 80. */
static void first_overflows(void **state) {
  for (int32_t ranks = fewest(); ranks <= most(); ranks++) {
    same_bits((life){.with = "stat_period=1", .ranks = ranks, .huge = 0});
    assert_int_equal(kept[1]->status[0][0], NG_SKIPPED);
    assert_int_equal(kept[1]->status[0][1], NG_OK);
    same_bits((life){.with = "wire_dtype=bf16", .ranks = ranks, .huge = 2});
    assert_int_equal(kept[1]->status[0][2], NG_SKIPPED);
    for (int k = 0; k < 2; k++)
      *kept[k] = lived((life){.options = k == 0 ? "statistics=all" : "statistics=owner",
                              .with = "calls=ema",
                              .ranks = ranks,
                              .alike = true,
                              .huge = 0});
    for (int i = 0; i < STEPS * LAYERS * MOST; i++) {
      const double x = (double)(&kept[0]->out[0][0][0][0])[i],
                   y = (double)(&kept[1]->out[0][0][0][0])[i];
      if (!(fabs(x - y) <= 1e-5 * fmax(1.0, fabs(x)))) fail_msg("%d: %g, expected %g", i, y, x);
    }
  }
}

int main(void) {
  for (int i = 0; i < 2; i++)
    kept[i] = calloc(1, sizeof(life));
  const struct CMUnitTest tests[] = {cmocka_unit_test(sums_to_owners_equal_sums_to_all),
                                     cmocka_unit_test(steps_that_observe_one_layer),
                                     cmocka_unit_test(only_due_layers_are_sent),
                                     cmocka_unit_test(first_overflows)};
  const int failed = kept[0] == NULL || kept[1] == NULL ? 1 : RANKS_TESTS("owner", tests);
  for (int i = 0; i < 2; i++)
    free(kept[i]);
  return failed;
}
