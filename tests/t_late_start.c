/* t_late_start: a layer that has no part in its first steps, asleep or without a gradient, and comes back when no
 * statistic is due by its period: what is shown then is its first average, on all ranks alike.
 *
 * clip = none, so layers do not know of each other: the oracle is a run of which the step that is shown then is the
 * first, bit for bit.  Steps after it have other periods. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
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

enum { FC1, FC2, LAYERS, N = 3, B = 4, RANKS = 4, BACK = 1 };

typedef enum way { FIRST_STEP, ASLEEP, ABSENT, WAYS } way;

typedef struct life {
  const char *set;
  way what;
  int32_t last;
  float grad[RANKS][LAYERS][N * N];    /* of step BACK */
  int32_t wanted[RANKS];               /* in the step after it */
  int64_t counted[RANKS], sent[RANKS]; /* bytes: of all stations, of the transport */
  char why[RANKS][512];
} life;

static float number(int64_t what, int64_t i) {
  rng r = {test_seed() + (uint64_t)(what * 1009 + i)};
  return (float)rng_value(&r);
}

static ng_status show(fixture *f, int32_t rank, int t, int32_t k, bool grad) {
  float x[B * N];
  for (int64_t i = 0; i < B * N; i++) {
    x[i] = number(1000 * (rank + 1) + 100 * t + 10 * grad + k, i);
  }
  const ng_array a = ng_array_matrix(x, B, N, NG_F32);
  return grad ? ng_observe_output_grad(f->p, k, &a, NG_COPY)
              : ng_observe_input(f->p, k, &a, NG_COPY);
}

static ng_status one_step(life *l, fixture *f, int32_t rank, int t) {
  const bool out = t < BACK;
  ng_batch batch;
  ng_batch_init(&batch, sizeof batch);
  batch.samples = B;
  batch.last = l->last;
  ng_status st = l->what == ASLEEP ? ng_freeze(f->p, FC2, out) : NG_OK;
  for (int32_t k = 0; k < LAYERS && st == NG_OK; k++) {
    for (int64_t i = 0; i < N * N; i++) {
      l->grad[rank][k][i] = number(500 + 10 * t + k, i);
    }
    float *const grad = out && k == FC2 && l->what == ABSENT ? NULL : l->grad[rank][k];
    const ng_array g = ng_array_matrix(grad, N, N, NG_F32);
    st = ng_bind_grad(f->p, k, NG_WEIGHT, &g);
  }
  if (st == NG_OK) st = ng_begin(f->p, &batch);
  for (int32_t k = 0; k < 2 * LAYERS && st == NG_OK; k++) {
    st = show(f, rank, t, k % LAYERS, k >= LAYERS);
  }
  return st == NG_OK ? ng_step(f->p, 0.1) : st;
}

static ng_status live(int32_t rank, ng_transport *t, void *arg) {
  life *l = arg;
  fixture f;
  ng_status st = fixture_open(&f, l->set, &(fixture_how){.threads = 1, .transport = t});
  if (st == NG_OK) st = ng_add_linear(f.p, "fc1", N, N, 0, NULL);
  if (st == NG_OK) st = ng_add_linear(f.p, "fc2", N, N, 0, NULL);
  if (st == NG_OK) st = ng_ready(f.p);
  const int64_t before = st == NG_OK ? f.ctx->comm->bytes : 0;
  for (int s = l->what == FIRST_STEP ? BACK : 0; s <= BACK && st == NG_OK; s++) {
    st = one_step(l, &f, rank, s);
  }
  l->wanted[rank] = st == NG_OK ? ng_wants(f.p, FC2) : -1;
  l->sent[rank] = f.ctx != NULL ? f.ctx->comm->bytes - before : 0;
  ng_station_report r = {.struct_size = sizeof r};
  for (int32_t i = 0; st == NG_OK && ng_report_station(f.p, i, &r) == NG_OK; i++) {
    l->counted[rank] += r.total_bytes;
  }
  (void)snprintf(l->why[rank], sizeof l->why[0], "%s",
                 f.ctx == NULL ? f.message : ng_last_error(f.ctx));
  fixture_close(&f);
  return st;
}

static life *lived(const char *set, int32_t ranks, way what, int32_t last) {
  life *l = calloc(1, sizeof *l);
  assert_non_null(l);
  l->set = set;
  l->what = what;
  l->last = last;
  const ng_status st = ranks_run(ranks, live, l, NULL);
  if (st != NG_OK) fail_msg("%s, way %d: %s", set, (int)what, l->why[0]);
  return l;
}

static const char *const sets[] = {
    "damping=0.1 stat_period=3 solve_period=6",
    "damping=0.1 stat_period=3 solve_period=6 solver=eigen damping_split=joint "
    "grad_worker_fraction=0.5",
    "damping=0.1 stat_period=3 solve_period=6 statistics=owner grad_worker_fraction=0",
    "damping=0.1 stat_period=3 solve_period=6 statistics=local grad_worker_fraction=0",
    "method=kaisa damping=0.1 stat_period=3 solve_period=6",
    "method=eva-natgrad damping=0.1 stat_period=3",
};
enum { SETS = sizeof sets / sizeof sets[0] };

static void what_is_shown_first_is_folded(void **state) {
  (void)state;
  for (int k = 0; k < SETS; k++) {
    for (int32_t ranks = 1; ranks <= RANKS; ranks++) {
      if (ranks % 2 == 1 && strstr(sets[k], "fraction=0.5") != NULL) continue;
      char set[200];
      (void)snprintf(set, sizeof set, "%s clip=none missing=keep", sets[k]);
      life *first = lived(set, ranks, FIRST_STEP, 0);
      for (way w = ASLEEP; w < WAYS; w++) {
        for (int last = 0; last < 2; last++) {
          life *l = lived(set, ranks, w, last);
          for (int32_t r = 0; r < ranks; r++) {
            if (memcmp(l->grad[r][FC2], first->grad[r][FC2], sizeof l->grad[r][FC2]) != 0) {
              fail_msg("%s, %d ranks, way %d, last %d: rank %d: fc2 is %g, as its first step %g",
                       set, ranks, (int)w, last, r, (double)l->grad[r][FC2][0],
                       (double)first->grad[r][FC2][0]);
            }
            assert_int_equal(l->wanted[r], 0);
            assert_int_equal(l->counted[r], l->sent[r]);
          }
          free(l);
        }
      }
      free(first);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_shown_first_is_folded)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
