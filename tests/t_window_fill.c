/* t_window_fill.c: window_fill with every store, of the model's line and of a layer's: as in double (window_oracle.h),
 * or refused by name where the store leaves nothing; numbers of entries.
 *
 * Three steps whose gradients meet in few places, so directions are 0 in many and what is left is not.  All are on a
 * grid of 1/512.  Damping 0.1: 200 units of f32, 5e-4 for low rank, as in t_window_programs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fixture.h"
#include "window_oracle.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { OUT = 4, IN = 5, D = OUT * IN, STEPS = 3 };

static const char *const stores[] = {"dense", "topk", "lowrank"};
static const char *const fills[] = {"none", "gradient", "error", "rest"};

static ng_status open_window(fixture *f, const char *store, const char *fill, bool layer,
                             float g[D], float w[D], char line[200]) {
  char text[300];
  const plane vg[2] = {plane_of(g, OUT, IN, NG_F32), {0}};
  const plane vw[2] = {plane_of(w, OUT, IN, NG_F32), {0}};
  (void)snprintf(line, 200, "method=mfac window=5 damping=0.1 window_store=%s%s window_fill=%s",
                 store,
                 strcmp(store, "topk") == 0      ? " window_density=0.2"
                 : strcmp(store, "lowrank") == 0 ? " window_rank=1"
                                                 : "",
                 fill);
  (void)snprintf(text, sizeof text, layer ? "clip=none per_layer='fc*: %s'" : "%s", line);
  ng_status st = fixture_open(f, text, NULL);
  if (st == NG_OK) st = fixture_linear(f, "fc", vg, vw);
  return st == NG_OK ? ng_ready(f->p) : st;
}

/* The gradients of the three steps: one entry; it and one in another row and column; both and more. */
static void gradient(int t, float g[D]) {
  memset(g, 0, D * sizeof *g);
  g[0] = 0.75F + (float)t / 512;
  if (t > 0) g[IN + 1] = -0.5F;
  if (t > 1) g[2 * IN + 2] = 0.25F;
  for (int i = 0; t > 1 && i < IN; i++)
    g[3 * IN + i] = (float)(i - 2) / 16;
}

/* Steps of the store as in double; `u` takes all directions. */
static void play(const char *store, const char *fill, bool layer, float u[STEPS][D]) {
  static const int64_t size[] = {D}, rows[] = {OUT};
  float g[D] = {0}, w[D];
  char line[200];
  fixture f;
  for (int i = 0; i < D; i++)
    w[i] = 1;
  if (open_window(&f, store, fill, layer, g, w, line) != NG_OK)
    fail_msg("%s, %s: %s", line, layer ? "layer" : "model",
             f.ctx == NULL ? f.message : ng_last_error(f.ctx));
  const ng_options o = fixture_parse(line);
  const bool low = strcmp(store, "lowrank") == 0;
  window_oracle *want = window_oracle_open(&o, 1, size, rows);
  if (low) {
    const float *q = window_field(&f, "factors") + o.window * (OUT + IN) + OUT;
    want->q[0] = scene_room(IN * sizeof *want->q[0]);
    for (int i = 0; i < IN; i++)
      want->q[0][i] = (double)q[i];
  }
  for (int t = 0; t < STEPS; t++) {
    double wide[D], expected[D], most = 0, gap = 0;
    gradient(t, g);
    for (int i = 0; i < D; i++)
      wide[i] = (double)g[i];
    window_oracle_step(want, wide, NULL, 1, true, expected);
    fixture_ok(&f, ng_step(f.p, 1));
    for (int i = 0; i < D; i++) {
      most = fmax(most, fabs(expected[i]));
      gap = fmax(gap, fabs((double)g[i] - expected[i]));
    }
    if (!(gap <= (low ? 5e-4 : 200 * 0x1p-24) * most))
      fail_msg("%s, %s, step %d: off by %g of %g", line, layer ? "layer" : "model", t, gap, most);
    memcpy(u[t], g, sizeof g);
  }
  fixture_close(&f);
  window_oracle_close(&want);
}

static void every_store(void **state) {
  (void)state;
  for (size_t s = 0; s < 3; s++) {
    float none[STEPS][D], model[STEPS][D], layer[STEPS][D];
    play(stores[s], "none", false, none);
    for (size_t k = 0; k < 4; k++) {
      const bool dense = s == 0, left = strcmp(fills[k], "error") == 0;
      if (dense && left) continue;
      play(stores[s], fills[k], false, model);
      play(stores[s], fills[k], true, layer);
      assert_memory_equal(model, layer, sizeof model);
      /* A dense store leaves nothing for the rest; gradients that are 0 fill nothing. */
      if (!dense && k > 0 && memcmp(none, model, sizeof model) == 0)
        fail_msg("%s: window_fill = %s changes nothing", stores[s], fills[k]);
    }
  }
}

static void refused(void **state) {
  (void)state;
  static const char *const lines[] = {
      "method=mfac window_fill=error",
      "method=efcp window_store=dense window_fill=error",
      "method=ggt window_fill=error",
      "per_layer='fc*: method=mfac window=4 window_fill=error'",
      "method=efcp window_fill=error per_layer='fc*: window_store=dense'",
      "method=mfac per_layer='fc*: window_fill=error'",
  };
  for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
    float g[D] = {0};
    fixture f;
    const plane vg[2] = {plane_of(g, OUT, IN, NG_F32), {0}};
    ng_status st = fixture_open(&f, lines[i], NULL);
    if (st == NG_OK) st = fixture_linear(&f, "fc", vg, NULL);
    if (st == NG_OK) st = ng_ready(f.p);
    const char *told = f.ctx == NULL ? f.message : ng_last_error(f.ctx);
    if (st != NG_ERR_ARG || strstr(told, "window_fill = error: window_store = dense") == NULL)
      fail_msg("%s: %s '%s'", lines[i], ng_status_name(st), told);
    fixture_close(&f);
  }
}

/* Counts of entries are of all; what a layer or a block keeps is a part of it. */
static void counts(void **state) {
  (void)state;
  static const char *const modes[] = {"global", "layer", "block"};
  for (size_t i = 0; i < 3; i++) {
    char line[100];
    fixture f;
    (void)snprintf(line, sizeof line, "method=efcp window_density=3 window_topk=%s", modes[i]);
    const ng_status st = fixture_open(&f, line, NULL);
    if (st != (i == 0 ? NG_OK : NG_ERR_ARG) ||
        (i > 0 && strstr(f.message, "window_density = 3: a number of entries") == NULL))
      fail_msg("%s: %s '%s'", line, ng_status_name(st), f.message);
    fixture_close(&f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_store), cmocka_unit_test(refused),
                                     cmocka_unit_test(counts)};
  return cmocka_run_group_tests_name("filling of windows", tests, NULL, NULL);
}
