/* t_window_state.c: the state of windows.  A resumed run has the bits of the run that saved, including M-FAC's
 * factor.  A skipped step changes nothing. */
#include "unit_test.h"
#include "draw.h"
#include "fixture.h"
#include "folder.h"
#include "safetensors.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LONG = 40, STEPS = 30 };

typedef struct directions {
  float P[STEPS][LONG];
} directions;

/* Take the steps [from, to): load `load` first, save to `save` at the end.  `bad`: before each step, skip a step
 * with a NaN. */
static void run_steps(int from, int to, const char *load, const char *save, bool bad,
                      directions *l) {
  float g[LONG];
  fixture f;
  const plane v = plane_of(g, 1, LONG, NG_F32);
  fixture_ok(&f, fixture_open(&f, "method=mfac window=7 damping=1e-6", NULL));
  fixture_ok(&f, fixture_add_tensor(&f, "w", &v, NULL));
  fixture_ok(&f, ng_ready(f.p));
  if (load != NULL) fixture_ok(&f, ng_load(f.p, load));
  for (int t = from; t < to; t++) {
    if (t == 17) fixture_ok(&f, ng_set(f.p, "damping", "1e-7"));
    rng r = {(uint64_t)t + test_seed()};
    for (int i = 0; i < LONG; i++)
      g[i] = (float)(cos(i) + 0.3 * rng_value(&r));
    const float first = g[LONG - 1];
    g[LONG - 1] = NAN;
    if (bad) assert_int_equal(ng_step(f.p, 1.0), NG_SKIPPED);
    g[LONG - 1] = first;
    fixture_ok(&f, ng_step(f.p, 1.0));
    memcpy(l->P[t], g, sizeof g);
  }
  fixture_ok(&f, ng_save(f.p, save));
  fixture_close(&f);
}

/* Compare two states.  In arrays with `places` rows, leave out the row `unused`, which no step reads. */
static void compare_states(const char *a, const char *b, int64_t places, int64_t unused) {
  ngio_tensors *x = must_read_tensors(a), *y = must_read_tensors(b);
  int found = 0;
  for (int32_t i = 0; i < (int32_t)ngio_tensors_count(x); i++) {
    const ngio_tensor *p = ngio_tensors_at(x, i), *q = ngio_tensors_find(y, p->name);
    assert_non_null(q);
    const int64_t row = p->shape[0] == places ? p->bytes / places : 0;
    const size_t before = (size_t)(row * unused), behind = before + (size_t)row;
    assert_memory_equal(p->data, q->data, before);
    assert_memory_equal((const char *)p->data + behind, (const char *)q->data + behind,
                        (size_t)p->bytes - behind);
    found += strcmp(p->name, "window/factor") == 0;
  }
  assert_int_equal(found, 1);
  ngio_tensors_close(&x);
  ngio_tensors_close(&y);
}

static void resumed_factors_have_the_same_bits(void **state) {
  static const int at[] = {1, 6, 7, 8, 16, 17, 18, 25};
  static directions whole, parts, refused;
  const char *file[] = {in_folder("whole"), in_folder("first"), in_folder("second")};
  run_steps(0, STEPS, NULL, file[0], false, &whole);
  run_steps(0, STEPS, NULL, file[1], true, &refused);
  assert_memory_equal(&whole, &refused, sizeof whole);
  compare_states(file[0], file[1], 0, 0);
  for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
    run_steps(0, at[i], NULL, file[1], false, &parts);
    run_steps(at[i], STEPS, file[1], file[2], false, &parts);
    assert_memory_equal(&whole, &parts, sizeof whole);
    compare_states(file[0], file[2], 0, 0);
  }
}

/* ---- steps skipped after the solve -----------------------------------------------------------*/

enum { STEPS_TO_SAVE = 14 };

/* Take a step that is skipped after the window is solved, because the gradient of a skipped layer is NaN. */
static void skip_after_the_solve(fixture *f, float *plain, const float g[LONG],
                                 const float w[LONG]) {
  const ng_sgd far = fixture_sgd(1, 0);
  float g0[LONG], w0[LONG];
  memcpy(g0, g, sizeof g0);
  memcpy(w0, w, sizeof w0);
  *plain = NAN;
  assert_int_equal(ng_step_sgd(f->p, &far, 1), NG_SKIPPED);
  *plain = 0;
  assert_memory_equal(g, g0, sizeof g0);
  assert_memory_equal(w, w0, sizeof w0);
}

/* Write the weights after each step to `out`.  Before each step, skip a step with this damping; 0: none. */
static void run_with_skipped_steps(const char *store, double damping, const char *save,
                                   float out[STEPS_TO_SAVE][LONG]) {
  const ng_sgd sgd = fixture_sgd(0.1, 0);
  float g[LONG] = {0}, w[LONG] = {0}, plain[2] = {0};
  const plane vg = plane_of(g, 1, LONG, NG_F32), vw = plane_of(w, 1, LONG, NG_F32);
  const plane pg[2] = {plane_of(&plain[0], 1, 1, NG_F32)},
              pw[2] = {plane_of(&plain[1], 1, 1, NG_F32)};
  char options[200];
  fixture f;
  (void)snprintf(options, sizeof options,
                 "method=mfac window=5 damping=1e-3 update=sgd skip_layers=plain %s", store);
  fixture_ok(&f, fixture_open(&f, options, NULL));
  fixture_ok(&f, fixture_add_tensor(&f, "w", &vg, &vw));
  fixture_ok(&f, fixture_add_linear(&f, "plain", pg, pw));
  fixture_ok(&f, ng_ready(f.p));
  for (int t = 0; t <= STEPS_TO_SAVE; t++) {
    rng r = {(uint64_t)t + test_seed()};
    for (int i = 0; i < LONG; i++)
      g[i] = (float)(cos(i) + 0.3 * rng_value(&r));
    if (damping > 0) {
      fixture_ok(&f, ng_set_real(f.p, "damping", damping));
      skip_after_the_solve(&f, &plain[0], g, w);
      fixture_ok(&f, ng_set_real(f.p, "damping", 1e-3));
    }
    if (t == STEPS_TO_SAVE) break; /* the last step before the save is skipped */
    fixture_ok(&f, ng_step_sgd(f.p, &sgd, 1));
    memcpy(out[t], w, sizeof w);
  }
  fixture_ok(&f, ng_save(f.p, save));
  fixture_close(&f);
}

/* Skipped steps with the same damping do not change any bit.  Skipped steps with another damping overwrite the stored
 * factor, and the next step factorises again.  Coefficients then agree up to rounding in double, so f32 weights may
 * change in the last bit, 14 times; 1e-5 of the largest weight is ten times as much. */
static void compare_with_skipped_steps(const char *store) {
  static float whole[STEPS_TO_SAVE][LONG], same[STEPS_TO_SAVE][LONG], other[STEPS_TO_SAVE][LONG];
  const char *file[] = {in_folder("refused"), in_folder("late")};
  run_with_skipped_steps(store, 0, file[0], whole);
  run_with_skipped_steps(store, 1e-3, file[1], same);
  assert_memory_equal(whole, same, sizeof whole);
  compare_states(file[0], file[1], 6, STEPS_TO_SAVE % 6); /* window + 1 places */
  /* a smaller damping: the stored factor then looks accurate enough */
  run_with_skipped_steps(store, 1e-5, file[1], other);
  for (int t = 0; t < STEPS_TO_SAVE; t++) {
    double most = 0;
    for (int i = 0; i < LONG; i++)
      most = fmax(most, fabs((double)whole[t][i]));
    for (int i = 0; i < LONG; i++)
      assert_true(fabs((double)whole[t][i] - (double)other[t][i]) <= 1e-5 * most);
  }
}

static void late_skips_change_no_result(void **state) {
  compare_with_skipped_steps("");
  compare_with_skipped_steps("window_store=topk window_density=0.2");
  compare_with_skipped_steps("window_store=lowrank");
}

/* ---- a state after a skipped step ------------------------------------------------------------*/

/* The step is skipped because a gradient has a NaN or, in bf16, rounds to Inf. */
static void a_state_after_a_skipped_step_loads(void **state) {
  static const char *const store[] = {
      "", "window_dtype=bf16", "window_store=topk window_density=0.2", "window_store=lowrank"};
  const char *file = in_folder("skipped");
  for (int k = 0; k < 5; k++) {
    float g[4 * LONG];
    const plane vg = plane_of(g, 4, LONG, NG_F32);
    char options[200];
    (void)snprintf(options, sizeof options, "method=mfac window=5 damping=1e-3 %s",
                   store[k == 4 ? 1 : k]);
    for (int load = 0; load < 2; load++) {
      fixture f;
      fixture_ok(&f, fixture_open(&f, options, NULL));
      fixture_ok(&f, fixture_add_tensor(&f, "w", &vg, NULL));
      fixture_ok(&f, ng_ready(f.p));
      if (load) fixture_ok(&f, ng_load(f.p, file));
      for (int t = 0; t < 4 - 2 * load; t++) {
        for (int i = 0; i < 4 * LONG; i++) {
          g[i] = (float)cos(i + t);
        }
        if (t == 3) g[7] = k == 4 ? FLT_MAX : NAN;
        assert_int_equal(ng_step(f.p, 1.0), t == 3 ? NG_SKIPPED : NG_OK);
      }
      if (!load) fixture_ok(&f, ng_save(f.p, file));
      fixture_close(&f);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(resumed_factors_have_the_same_bits),
                                     cmocka_unit_test(late_skips_change_no_result),
                                     cmocka_unit_test(a_state_after_a_skipped_step_loads)};
  return cmocka_run_group_tests_name("states of windows", tests, make_folder, delete_folder);
}
