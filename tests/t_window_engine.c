/* t_window_engine.c: what the engine makes of the window family: beside K-FAC in one model, saved and gone on
 * with, under fused updates, with gradients that no f32 of a step may pass on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "draw.h"
#include "fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- windows beside factors ------------------------------------------------------------------*/

enum { IN = 5, OUT = 4, COUNT = 7, B = 3, STEPS = 6, WEIGHTS = IN * OUT, MINE = WEIGHTS + COUNT };

typedef struct mixed {
  fixture f;
  bool factors; /* a layer "k" with K-FAC is there, too */
  float k[WEIGHTS], w[MINE];
} mixed;

static void open_mixed(mixed *m, bool factors) {
  memset(m, 0, sizeof *m);
  m->factors = factors;
  fixture_ok(&m->f, fixture_open(&m->f,
                                 factors ? "method=natgrad damping=0.2 clip=none solve_period=1 "
                                           "per_layer='w*: method=mfac window=64 damping=0.1'"
                                         : "method=mfac window=64 damping=0.1 clip=none",
                                 &(fixture_how){.threads = 1}));
  const plane k[2] = {plane_of(m->k, OUT, IN, NG_F32), {0}},
              w[2] = {plane_of(m->w, OUT, IN, NG_F32), {0}};
  const plane t = plane_of(m->w + WEIGHTS, 1, COUNT, NG_F32);
  if (factors) fixture_ok(&m->f, fixture_linear(&m->f, "k", k, NULL));
  fixture_ok(&m->f, fixture_linear(&m->f, "w", w, NULL));
  fixture_ok(&m->f, fixture_tensor(&m->f, "w2", &t, NULL));
  fixture_ok(&m->f, ng_ready(m->f.p));
}

static void step_mixed(mixed *m, int64_t step, float out[WEIGHTS + MINE]) {
  rng r = {test_seed() + (uint64_t)step};
  float a[B * IN], g[B * OUT];
  for (int i = 0; i < B * IN; i++)
    a[i] = (float)rng_value(&r);
  for (int i = 0; i < B * OUT; i++)
    g[i] = (float)rng_value(&r);
  for (int i = 0; i < WEIGHTS; i++)
    m->k[i] = (float)rng_value(&r);
  for (int i = 0; i < MINE; i++)
    m->w[i] = (float)rng_value(&r);
  const plane va = plane_of(a, B, IN, NG_F32), vg = plane_of(g, B, OUT, NG_F32);
  if (m->factors) fixture_ok(&m->f, fixture_show(&m->f, B, 0, &va, &vg));
  fixture_ok(&m->f, ng_step(m->f.p, 1));
  memcpy(out, m->k, sizeof m->k);
  memcpy(out + WEIGHTS, m->w, sizeof m->w);
}

/* Beside K-FAC the window does what it does alone, to a bit; a run that is saved and gone on with by another
 * model is the run. */
static void beside_factors(void **state) {
  char file[] = "/tmp/t_window_engine-XXXXXX";
  const int fd = mkstemp(file);
  float both[STEPS][WEIGHTS + MINE], alone[WEIGHTS + MINE], again[WEIGHTS + MINE];
  mixed m;
  (void)state;
  assert_true(fd >= 0);
  (void)close(fd);
  open_mixed(&m, true);
  ng_explain_row row = {.struct_size = sizeof row};
  assert_int_equal(ng_explain(m.f.p, 0, &row), NG_OK);
  assert_string_equal(row.family, "kronecker");
  assert_int_equal(ng_explain(m.f.p, 1, &row), NG_OK);
  assert_string_equal(row.family, "window");
  assert_string_equal(row.block, "window.w");
  assert_string_equal(row.method, "mfac");
  for (int t = 0; t < STEPS; t++) {
    step_mixed(&m, t, both[t]);
    if (t == 2) fixture_ok(&m.f, ng_save(m.f.p, file));
  }
  fixture_close(&m.f);
  open_mixed(&m, false);
  for (int t = 0; t < STEPS; t++) {
    step_mixed(&m, t, alone);
    assert_memory_equal(alone + WEIGHTS, both[t] + WEIGHTS, MINE * sizeof *alone);
  }
  fixture_close(&m.f);
  open_mixed(&m, true);
  fixture_ok(&m.f, ng_load(m.f.p, file));
  for (int t = 3; t < STEPS; t++) {
    step_mixed(&m, t, again);
    assert_memory_equal(again, both[t], sizeof again);
  }
  fixture_close(&m.f);
  assert_int_equal(unlink(file), 0);
}

/* ---- what is refused leaves everything -------------------------------------------------------*/

typedef struct held {
  unsigned char *bytes;
  int64_t n;
} held;

/* All arrays of the state, one behind the other. */
static held state_of(ng_precond *p) {
  held h = {NULL, 0};
  for (int pass = 0; pass < 2; pass++, h.bytes = h.bytes == NULL ? malloc((size_t)h.n) : h.bytes) {
    int64_t at = 0;
    for (int32_t i = 0; i < ng_state_count(p); i++) {
      ng_field_info info = {.struct_size = sizeof info};
      assert_int_equal(ng_state_at(p, i, &info), NG_OK);
      if (pass == 1) assert_int_equal(ng_state_read(p, i, h.bytes + at, info.bytes), NG_OK);
      at += (info.bytes + 7) / 8 * 8;
    }
    h.n = at;
  }
  return h;
}

/* A NaN in a gradient, of every store: refused, and window, Gram matrix, error feedback and momentum have the
 * bits of before; gradients are as they were. */
static void not_finite(void **state) {
  static const char *const stores[] = {
      "method=mfac window=3 window_momentum=0.5",
      "method=mfac window=3 window_dtype=bf16",
      "method=efcp window=3 window_density=0.2 window_dtype=bf16 window_momentum=0.5",
      "method=lowrank-mfac window=3 window_rank=2",
      "method=ggt window=3 window_momentum=0.5",
      "method=topk-adam window_density=0.3",
      "method=topk-adagrad window_density=0.3"};
  (void)state;
  for (size_t s = 0; s < sizeof stores / sizeof stores[0]; s++) {
    rng r = {test_seed() + s};
    fixture f;
    float g[WEIGHTS], was[WEIGHTS];
    const plane v[2] = {plane_of(g, OUT, IN, NG_F32), {0}};
    fixture_ok(&f, fixture_open(&f, stores[s], &(fixture_how){.threads = 1}));
    fixture_ok(&f, fixture_linear(&f, "fc", v, NULL));
    fixture_ok(&f, ng_ready(f.p));
    for (int t = 0; t < 8; t++) {
      for (int i = 0; i < WEIGHTS; i++)
        g[i] = (float)rng_value(&r);
      if (t % 2 == 0) {
        fixture_ok(&f, ng_step(f.p, 1));
        continue;
      }
      held before = state_of(f.p);
      g[WEIGHTS - 1] = t % 4 == 1 ? NAN : INFINITY;
      memcpy(was, g, sizeof g);
      assert_int_equal(ng_step(f.p, 1), NG_SKIPPED);
      assert_memory_equal(was, g, sizeof g);
      held after = state_of(f.p);
      assert_true(before.n == after.n && before.n > 0);
      if (memcmp(before.bytes, after.bytes, (size_t)before.n) != 0)
        fail_msg("%s: step %d changed the state", stores[s], t);
      free(before.bytes);
      free(after.bytes);
    }
    fixture_close(&f);
  }
}

/* ---- fused updates ---------------------------------------------------------------------------*/

/* w <- w - lr u, in the step itself, is that with u from a step that writes gradients. */
static void fused(void **state) {
  (void)state;
  fixture f[2];
  float g[2][WEIGHTS], w[2][WEIGHTS];
  for (int k = 0; k < 2; k++) {
    const plane v[2] = {plane_of(g[k], OUT, IN, NG_F32), {0}},
                x[2] = {plane_of(w[k], OUT, IN, NG_F32), {0}};
    fixture_ok(&f[k],
               fixture_open(&f[k],
                            k ? "method=efcp window=2 damping=0.1 window_density=0.3 update=sgd"
                              : "method=efcp window=2 damping=0.1 window_density=0.3",
                            &(fixture_how){.threads = 2}));
    fixture_ok(&f[k], fixture_linear(&f[k], "fc", v, x));
    for (int i = 0; i < WEIGHTS; i++)
      w[k][i] = 1;
    fixture_ok(&f[k], ng_ready(f[k].p));
  }
  rng r = {test_seed()};
  const ng_sgd how = fixture_sgd(0.5, 0);
  for (int t = 0; t < 4; t++) {
    for (int i = 0; i < WEIGHTS; i++)
      g[0][i] = g[1][i] = (float)rng_value(&r);
    fixture_ok(&f[0], ng_step(f[0].p, 0.5));
    fixture_ok(&f[1], fixture_step(&f[1], &how));
    for (int i = 0; i < WEIGHTS; i++) {
      w[0][i] -= 0.5f * g[0][i];
      assert_true(w[0][i] == w[1][i]);
    }
  }
  fixture_close(&f[0]);
  fixture_close(&f[1]);
}

/* ---- refused by name -------------------------------------------------------------------------*/

static void refused(void **state) {
  static const char *const wrong[][2] = {
      {"method=mfac stat_decay=0.5", "stat_decay"},
      {"method=mfac window_forget=0.5", "window_forget"},
      {"method=mfac solver=eigen", "solver"},
      {"method=ggt window_divisor=filled", "window_divisor"},
      {"method=ggt window_rest=added", "window_rest"},
      {"method=ggt window_decay=0.1 window_decay_form=direction", "window_decay_form"},
      {"method=lowrank-mfac window_dtype=bf16", "window_dtype"},
      {"method=lowrank-mfac window_mask=1", "window_mask"},
      {"method=ggt window_store=lowrank window_mask=1", "window_mask"},
      {"method=topk-sgd window=2", "window = 1"},
      {"method=topk-adam stat_period=2", "stat_period = 1"},
      {"method=topk-sgd window_forget=0.5", "window_forget = 1"},
      {"method=topk-adagrad window_momentum=0.5", "window_momentum = 0"},
      {"method=topk-adam window_momentum_form=heavy-ball", "window_momentum_form"},
      {"method=efcp window_rest=added window_fill=rest", "window_fill"},
      {"method=efcp window_rest=added window_momentum=0.5 window_momentum_form=gradient",
       "window_momentum_form"},
      {"method=sparse-ggt window_forget=0.9 window_fill=gradient", "window_fill = gradient"},
      {"method=natgrad window=3", "window"}};
  (void)state;
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    fixture f;
    const ng_status st = fixture_open(&f, wrong[i][0], NULL);
    if (st >= NG_OK) fail_msg("%s was taken", wrong[i][0]);
    const char *why = f.ctx != NULL ? ng_last_error(f.ctx) : f.message;
    if (strstr(why, wrong[i][1]) == NULL) fail_msg("%s: '%s'", wrong[i][0], why);
    fixture_close(&f);
  }
  /* What needs weights says whose are not there. */
  for (int k = 0; k < 2; k++) {
    fixture f;
    float g[3] = {1, 2, 3};
    const plane v = plane_of(g, 1, 3, NG_F32);
    fixture_ok(&f, fixture_open(
                       &f, k ? "method=mfac window_decay=0.1" : "method=mfac window_mask=1", NULL));
    fixture_ok(&f, fixture_tensor(&f, "bn1.scale", &v, NULL));
    ng_status st = ng_ready(f.p);
    if (k == 1) {
      fixture_ok(&f, st);
      st = ng_step(f.p, 1);
    }
    assert_int_equal(st, NG_ERR_STATE);
    assert_non_null(strstr(ng_last_error(f.ctx), "bn1.scale"));
    fixture_close(&f);
  }
}

/* Tensors, too, are left out by their names. */
static void skipped(void **state) {
  (void)state;
  fixture f;
  float g[2][3] = {{1, 2, 3}, {4, 5, 6}};
  const plane v[2] = {plane_of(g[0], 1, 3, NG_F32), plane_of(g[1], 1, 3, NG_F32)};
  fixture_ok(&f, fixture_open(&f, "method=mfac damping=1; skip_layers='*norm*,*bn*'", NULL));
  fixture_ok(&f, fixture_tensor(&f, "bn1.scale", &v[0], NULL));
  fixture_ok(&f, fixture_tensor(&f, "fc.linear", &v[1], NULL));
  fixture_ok(&f, ng_ready(f.p));
  fixture_ok(&f, ng_step(f.p, 1));
  assert_true(g[0][0] == 1 && g[0][1] == 2 && g[0][2] == 3);
  assert_true(g[1][0] != 4);
  fixture_close(&f);
}

/* A low-rank window begins with the direction of the weights, however large they are. */
static void huge_weights(void **state) {
  (void)state;
  fixture f;
  float grad[WEIGHTS], weight[WEIGHTS];
  rng r = {test_seed()};
  for (int i = 0; i < WEIGHTS; i++) {
    grad[i] = (float)rng_value(&r);
    weight[i] = (i % 3 == 0 ? -3e38F : 3e38F);
  }
  const plane g[2] = {plane_of(grad, OUT, IN, NG_F32), {0}},
              w[2] = {plane_of(weight, OUT, IN, NG_F32), {0}};
  assert_int_equal(
      fixture_open(&f, "method=lowrank-mfac window=3 window_rank=2", &(fixture_how){.threads = 1}),
      NG_OK);
  fixture_ok(&f, fixture_linear(&f, "w", g, w));
  fixture_ok(&f, ng_ready(f.p));
  for (int step = 0; step < 5; step++) {
    fixture_ok(&f, fixture_begin(&f, B));
    assert_int_equal(ng_step(f.p, 0.1), NG_OK);
    for (int i = 0; i < WEIGHTS; i++) {
      assert_true(isfinite(grad[i]));
      grad[i] = (float)rng_value(&r);
    }
  }
  fixture_close(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(beside_factors), cmocka_unit_test(not_finite),
      cmocka_unit_test(fused),          cmocka_unit_test(refused),
      cmocka_unit_test(skipped),        cmocka_unit_test(huge_weights),
  };
  return cmocka_run_group_tests_name("window engine", tests, NULL, NULL);
}
