/* t_quantify.c: quantify = 1 against a plain sort: quartiles, least, largest and mean of |PD / (D + 1e-8)|,
 * for every family, on several ranks, and the numbers of EFCP's own function. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fixture.h"
#include "quartiles.h"
#include "ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IN = 40, OUT = 30, LAST = 50, TALL = 700, SAMPLES = 8, MOST = 4, STEPS = 3 };
enum { FC1 = IN * OUT, FC2 = OUT * LAST, LONG = LAST * TALL, D = FC1 + OUT + FC2 + LONG };

typedef struct life {
  const char *options;
  int32_t threads;
  float g[D], u[D]; /* of the last step, rank 0: D, and nu PD */
  float a[SAMPLES * TALL];
  ng_report report[MOST];
  char message[512];
} life;

static ng_status describe(fixture *f, float *g, float *w) {
  static const int64_t rows[] = {OUT, LAST, TALL}, cols[] = {IN, OUT, LAST};
  static const int64_t at[] = {0, FC1 + OUT, FC1 + OUT + FC2};
  static const char *const name[] = {"fc1", "fc2", "fc3"};
  ng_status st = NG_OK;
  for (int i = 0; i < 3 && st == NG_OK; i++) {
    const plane vg[2] = {plane_of(g + at[i], rows[i], cols[i], NG_F32),
                         i == 0 ? plane_of(g + FC1, 1, OUT, NG_F32) : (plane){0}};
    const plane vw[2] = {plane_of(w + at[i], rows[i], cols[i], NG_F32),
                         i == 0 ? plane_of(w + FC1, 1, OUT, NG_F32) : (plane){0}};
    st = fixture_linear(f, name[i], vg, vw);
  }
  return st == NG_OK ? ng_ready(f->p) : st;
}

static ng_status observe(fixture *f, const life *l) {
  static const int64_t in[] = {IN, OUT, LAST}, out[] = {OUT, LAST, TALL};
  bool wants = false;
  for (int32_t i = 0; i < 3; i++)
    wants = wants || ng_wants(f->p, i) != 0;
  ng_status st = wants ? fixture_begin(f, SAMPLES) : NG_OK;
  for (int32_t i = 0; i < 3 && wants && st == NG_OK; i++) {
    const plane a = plane_of((void *)(uintptr_t)l->a, SAMPLES, in[i], NG_F32);
    const plane g = plane_of((void *)(uintptr_t)l->a, SAMPLES, out[i], NG_F32);
    st = fixture_observe(f, i, &a, &g);
  }
  return st;
}

/* Weights begin at 0 and move by lr 1: what a fused update leaves is -nu PD. */
static ng_status rank_life(int32_t rank, ng_transport *t, void *arg) {
  life *l = arg;
  const fixture_how how = {.threads = l->threads, .transport = t};
  float *g = calloc(2 * D, sizeof *g), *w = g + D;
  fixture f;
  ng_status st = g == NULL ? NG_ERR_NOMEM : fixture_open(&f, l->options, &how);
  const bool fused = strstr(l->options, "update=sgd") != NULL;
  if (st == NG_OK) st = describe(&f, g, w);
  for (int64_t step = 0; step < STEPS && st >= NG_OK; step++) {
    for (int64_t i = 0; i < D; i++) {
      g[i] = uneven(step * D + i, i);
      w[i] = 0.0f;
    }
    if (rank == 0) memcpy(l->g, g, sizeof l->g);
    st = observe(&f, l);
    const ng_sgd how_far = fixture_sgd(1.0, 0.0);
    if (st == NG_OK) st = fused ? fixture_step(&f, &how_far) : ng_step(f.p, 1.0);
  }
  l->report[rank] = (ng_report){.struct_size = sizeof l->report[rank]};
  if (st == NG_OK) st = ng_report_read(f.p, &l->report[rank]);
  for (int64_t i = 0; i < D && rank == 0; i++) {
    l->u[i] = fused ? -w[i] : g[i];
  }
  if (st != NG_OK && rank == 0) (void)snprintf(l->message, sizeof l->message, "%s", f.message);
  if (g != NULL) fixture_close(&f);
  free(g);
  return st;
}

static void live(life *l, int32_t ranks) {
  for (int i = 0; i < SAMPLES * TALL; i++)
    l->a[i] = sinf((float)(i + 1));
  const ng_status st = ranks_run(ranks, rank_life, l, NULL);
  if (st != NG_OK) fail_msg("%s: %s", l->options, l->message);
}

/* ---- the oracle ------------------------------------------------------------------------------*/

/* PD is told in f32, nu times it once more: 1e-6 has room.  Where
 * PD is D / damping and a term that nearly cancels it, with a damping of 0.1, f32 is off by 2^-24 of 10 D each,
 * and r by twice that. */
static void must_be_sorted(const life *l, const ng_report *r) {
  static double x[D];
  for (int64_t i = 0; i < D; i++)
    x[i] = fabs((double)l->u[i] / r->clip / ((double)l->g[i] + 1e-8));
  quartiles_must_be(l->options, r, x, D, 1e-6, 10 * 0x1p-23);
}

#define OWNER " update=sgd update_ranks=owner"
static const char *const each[] = {
    "method=natgrad damping=0.1 clip=kl quantify=1",
    "method=natgrad damping=0.1 clip=kl quantify=1 grad_worker_fraction=0",
    "method=natgrad damping=0.1 clip=kl quantify=1" OWNER,
    "method=natgrad solver=product damping=0.1 radius=0.5 clip=none quantify=1",
    "method=eva damping=0.1 quantify=1",
    "method=eva damping=0.1 quantify=1" OWNER,
    "method=mfac window=4 damping=0.01 clip=norm clip_bound=0.1 quantify=1",
    "method=mfac window=4 damping=0.01 quantify=1 statistics=sharded",
    "method=mfac window=4 damping=0.01 quantify=1 statistics=sharded" OWNER,
    "method=efcp window=4 damping=0.01 window_density=0.01 quantify=1",
    "method=efcp window=4 damping=0.01 window_density=0.4 quantify=1 update=sgd"};

static void quartiles_are_those_of_a_sort(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) {
    for (int32_t ranks = 1; ranks <= 3; ranks += 2) {
      life *l = calloc(2, sizeof *l), *threads = l + 1;
      assert_non_null(l);
      l->options = threads->options = each[i];
      l->threads = 1;
      threads->threads = 3;
      live(l, ranks);
      must_be_sorted(l, &l->report[0]);
      for (int32_t r = 1; r < ranks; r++)
        assert_memory_equal(&l->report[r].scaled, &l->report[0].scaled, 7 * sizeof(double));
      if (ranks == 1) live(threads, 1);
      if (ranks == 1)
        assert_memory_equal(&threads->report[0].scaled, &l->report[0].scaled, 7 * sizeof(double));
      free(l);
    }
  }
}

/* ---- the published function ------------------------------------------------------------------*/

static void of_published(const char *what, double got, double expected, double allowed) {
  near("published", what, got, expected, allowed * expected + 10 * 0x1p-23);
}

/* EFCP's quantify_preconditioning of g = sin((i+1) 0.8) and u = sin((i+1) 1.6), 8 of them, in float64.  u is
 * made of two gradients: v = (v + x) / 2 twice, from 0. */
static void published_numbers(void **state) {
  (void)state;
  float g[8], first[8];
  fixture f;
  ng_report r;
  const plane v = plane_of(g, 1, 8, NG_F32);
  fixture_ok(&f, fixture_open(&f,
                              "method=mfac window=1 window_function=step window_momentum=0.5 "
                              "damping=1 clip=none quantify=1",
                              NULL));
  fixture_ok(&f, fixture_tensor(&f, "w", &v, NULL));
  fixture_ok(&f, ng_ready(f.p));
  r = (ng_report){.struct_size = sizeof r};
  fixture_ok(&f, ng_report_read(f.p, &r));
  assert_true(r.scaled == 0 && r.scaling_max == 0.0);
  for (int k = 0; k < 2; k++) {
    for (int i = 0; i < 8; i++) {
      const double x = sin((i + 1) * 0.8), u = sin((i + 1) * 1.6);
      first[i] = (float)(4.0 * u - 2.0 * x);
      g[i] = k == 0 ? first[i] : (float)x;
    }
    fixture_ok(&f, ng_step(f.p, 1.0));
  }
  fixture_ok(&f, ng_report_read(f.p, &r));
  assert_int_equal(r.scaled, 8);
  of_published("min", r.scaling_min, 0.058399050,
               1e-5); /* u there is 0.06: of f32 sums of 4 and 2 */
  of_published("max", r.scaling_max, 1.996589894, 1e-6);
  of_published("mean", r.scaling_mean, 1.242872052, 1e-6);
  /* the published angle, 90 (1 - cos), is 88.893897518 degrees; cos of sums of f32 of 4 and 2 */
  const double cosine = r.inner / sqrt(r.d2) / sqrt(r.pd2);
  assert_true(fabs(cosine - 0.012290028) <= 1e-6);
  assert_true(fabs(90.0 * (1.0 - cosine) - 88.893897518) <= 1e-4);
  of_published("25 %", r.scaling_25, 0.741142614, 0x1p-18 + 1e-6);
  of_published("50 %", r.scaling_50, 1.434100404, 0x1p-18 + 1e-6);
  of_published("75 %", r.scaling_75, 1.768750724, 0x1p-18 + 1e-6);
  /* A step that does not count leaves the numbers of the one before. */
  g[3] = NAN;
  assert_int_equal(ng_step(f.p, 1.0), NG_SKIPPED);
  const double before = r.scaling_75;
  fixture_ok(&f, ng_report_read(f.p, &r));
  assert_true(r.scaled == 8 && r.scaling_75 == before);
  fixture_close(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(quartiles_are_those_of_a_sort),
      cmocka_unit_test(published_numbers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
