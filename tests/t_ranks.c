/* t_ranks: ranks fail together.  One rank of three is in trouble (its own data, its own model, its
 * transport at every call in turn): every rank must get the same status, keep its gradients, and
 * nobody may hang (ranks_run has a watchdog). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "plane.h"
#include "fixture.h"
#include "ranks.h"

enum { RANKS = 3, ODD = 1, LAYERS = 2 };
typedef enum trouble {
  NONE,
  BAD_GRADIENT,
  BAD_INPUT,
  UNBOUND,
  BAD_LR,
  OTHER_LAYER,
  OTHER_OPTION,
  TROUBLES,
  OTHER_METHOD /* of another family, with the same values */
} trouble;

/* A method and what is said of it. */
#define SLICES "mfac window=2 statistics=sharded stat_period=2"

typedef struct plan {
  trouble what;
  const char *fraction, *method; /* NULL: natgrad */
  int64_t
      fail; /* the call of the transport that fails on ODD; 0: none                            */
  ng_status status[RANKS];
  int changed[RANKS];
  int64_t calls[RANKS];
} plan;

typedef struct tap {
  ng_transport inner;
  int64_t calls, fail;
} tap;

static ng_status tap_run(void *user, const ng_collective *c) {
  tap *t = user;
  return ++t->calls == t->fail ? NG_ERR_DEVICE : t->inner.run(t->inner.user, c);
}

static void tap_abort(void *user) {
  const tap *t = user;
  t->inner.abort(t->inner.user);
}

static ng_status steps(fixture *f, plan *job, int32_t rank) {
  float d[LAYERS][6], a[6] = {1, 2, -1, 0.5f, 1, 1};
  const trouble what = rank == ODD ? job->what : NONE;
  ng_status st = NG_OK;
  for (int32_t i = 0; i < LAYERS && st == NG_OK; i++) {
    const plane v = plane_of(d[i], 2, 3, NG_F32);
    if (what != UNBOUND || i == 0) st = fixture_bind(f, i, NG_WEIGHT, &v, NULL);
  }
  if (st == NG_OK) st = ng_ready(f->p);
  for (int s = 0; s < 2 && st == NG_OK; s++) {
    for (int i = 0; i < LAYERS * 6; i++) {
      d[i / 6][i % 6] = 0.1f * (float)(i + 1);
    }
    st = fixture_begin(f, 2);
    const int bad = s == 1 && what != NONE; /* the first step is a good one */
    if (bad && what == BAD_GRADIENT) d[1][2] = NAN;
    a[3] = bad && what == BAD_INPUT ? INFINITY : 0.5f;
    for (int32_t i = 0; i < LAYERS && st == NG_OK; i++) {
      const plane in = plane_of(a, 2, 3, NG_F32), out = plane_of(a, 2, 2, NG_F32);
      st = fixture_observe(f, i, &in, &out);
      if (st == NG_SKIPPED) st = NG_OK; /* the step tells everybody */
    }
    if (st == NG_OK) st = ng_step(f->p, bad && what == BAD_LR ? -1.0 : 0.1);
    for (int i = 0; i < LAYERS * 6 && st != NG_OK; i++) {
      const float x = d[i / 6][i % 6];
      if (x == x && x != 0.1f * (float)(i + 1)) job->changed[rank] = 1;
    }
  }
  return st;
}

static ng_status life(int32_t rank, ng_transport *t, void *arg) {
  plan *job = arg;
  tap wire = {*t, 0, rank == ODD ? job->fail : 0};
  ng_transport table = *t;
  fixture f;
  char set[128];
  int32_t index;
  table.user = &wire;
  table.run = tap_run;
  table.start = NULL;
  table.wait = NULL;
  table.test = NULL;
  table.group_create = NULL; /* their callbacks would get the tap */
  table.group_destroy = NULL;
  table.abort = tap_abort;
  const fixture_how how = {.linalg = "ref", .threads = 1, .transport = &table};
  const trouble what = rank == ODD ? job->what : NONE;
  const char *const method = job->method != NULL    ? job->method
                             : what == OTHER_METHOD ? "eva-natgrad"
                                                    : "natgrad";
  (void)snprintf(set, sizeof set, "method=%s grad_worker_fraction=%s%s", method, job->fraction,
                 what == OTHER_OPTION ? " damping=0.5" : "");
  ng_status st = fixture_open(&f, set, &how);
  if (st == NG_OK) st = ng_add_linear(f.p, "a", 3, 2, 0, &index);
  if (st == NG_OK) st = ng_add_linear(f.p, what == OTHER_LAYER ? "c" : "b", 3, 2, 0, &index);
  if (st == NG_OK) st = steps(&f, job, rank);
  job->status[rank] = st;
  job->calls[rank] = wire.calls;
  fixture_close(&f);
  return NG_OK;
}

static void play(plan *job, ng_status want) {
  assert_int_equal(ranks_run(RANKS, life, job, NULL), NG_OK);
  for (int32_t r = 0; r < RANKS; r++) {
    assert_int_equal(job->status[r], want);
    assert_int_equal(job->changed[r], 0);
  }
}

static const char *const fraction[] = {"0", "1"};

static void test_one_in_trouble(void **state) {
  (void)state;
  static const ng_status want[TROUBLES] = {NG_OK,      NG_SKIPPED,  NG_SKIPPED, NG_ERR_STATE,
                                           NG_ERR_ARG, NG_ERR_COMM, NG_ERR_COMM};
  for (int what = 0; what < TROUBLES; what++) {
    for (int k = 0; k < 2; k++) {
      plan job = {.what = (trouble)what, .fraction = fraction[k]};
      play(&job, want[what]);
    }
    plan rankone = {.what = (trouble)what, .fraction = "1", .method = "eva"};
    play(&rankone, want[what]);
    plan window = {.what = (trouble)what, .fraction = "1", .method = SLICES};
    if (what != BAD_INPUT) play(&window, want[what]); /* it is not looked at */
  }
  plan other = {.what = OTHER_METHOD, .fraction = "1"};
  play(&other, NG_ERR_COMM);
  assert_int_equal(other.calls[ODD],
                   3); /* groups; seen when hashes are compared, not in a message */
}

static void test_every_call_fails(void **state) {
  (void)state;
  for (int k = 0; k < 4; k++) { /* the last two: rank one, a window in slices */
    const char *const f = k < 2 ? fraction[k] : "1";
    const char *const method = k < 2 ? NULL : k == 2 ? "eva" : SLICES;
    plan whole = {.fraction = f, .method = method};
    play(&whole, NG_OK);
    assert_true(whole.calls[ODD] >= 8);
    for (int64_t call = 1; call <= whole.calls[ODD]; call++) {
      plan job = {.fraction = f, .method = method, .fail = call};
      play(&job, NG_ERR_COMM);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_in_trouble),
                                     cmocka_unit_test(test_every_call_fails)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
