/* t_finite.c: random steps at the limits of f32, f16 and bf16 leave all values finite, on 1 and 4 ranks; averages and
 * inverses stay in the range of their dtype.  A skipped step changes nothing.  A non-finite state is rejected with the
 * name of the array.  t_huge.c tests single elements. */
#include "unit_test.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "family/window.h"
#include "folder.h"
#include "ranks.h"
#include "step/step.h"
#include "huge_model.h"

/* Fill gradients and weights with random numbers of these magnitudes. */
static void fill_magnitudes(model *m, double grad, double weight) {
  rng r = {test_seed()};
  for (int i = 0; i < ALL; i++) {
    put(m->grad, m->grads, i, (float)(grad * rng_value(&r)));
    put(m->weight, m->type, i, (float)(weight * rng_value(&r)));
  }
}

static ng_status open_model(model *m, const char *options, const update *by, ng_dtype grads,
                            ng_dtype weights, const ng_transport *t) {
  const ng_status st = model_open(m, options, by, grads, weights, t);
  fill_magnitudes(m, 1, 1);
  for (int i = 0; i < IN; i++)
    m->a[i] = i % 3 == 0 ? 0.5f : -0.25f;
  for (int i = 0; i < OUT; i++)
    m->g[i] = 0.125f * (float)(i + 1);
  return st;
}

static void must_open(model *m, const char *options, const update *by, ng_dtype grads) {
  fixture_ok(&m->f, open_model(m, options, by, grads, NG_F32, NULL));
}

static bool is_all_finite(const model *m) {
  bool fine = ng_are_finite(m->grad, m->grads, ALL) && ng_are_finite(m->weight, m->type, ALL);
  for (int i = 0; i < ALL; i++) {
    const element e = element_of(m, i);
    fine = fine && isfinite((double)e.m) && isfinite((double)e.v);
  }
  return fine;
}

/* ---- overflow in intermediate results --------------------------------------------------------*/

/* clip = ratio multiplies by up to 50; |PD| alone is in the range of f16. */
static void clip_ratio_may_overflow_f16(void **state) {
  model m;
  must_open(&m, "method=eva clip=ratio clip_bound=1e6 damping=1", &in_place, NG_F16);
  fill_magnitudes(&m, 0, 1000);
  put(m.grad, NG_F16, 2, 2000);
  assert_int_equal(observe_and_step(&m, &in_place), NG_RESCUED);
  assert_true(get(m.grad, NG_F16, 2) == 2000);
  put(m.grad, NG_F16, 2, 1000);
  assert_int_equal(observe_and_step(&m, &in_place), NG_OK);
  assert_true(fabs((double)get(m.grad, NG_F16, 2)) > 40000); /* the factor was 50 */
  fixture_close(&m.f);
}

/* PD is in the range of f32, the factor of g in the bias column, about PD / |g|, is not. */
static void bias_factor_may_overflow(void **state) {
  static const update updates[] = {{.lr = 0.1, .in_place = true}, {.lr = 1e-30}};
  for (int u = 0; u < 2; u++) {
    model m;
    must_open(&m, "method=eva clip=none damping=1e-35", &updates[u], NG_F32);
    for (int i = 0; i < OUT; i++)
      m.g[i] *= 1e-16f;
    assert_int_equal(observe_and_step(&m, &updates[u]), NG_OK);
    assert_true(is_all_finite(&m));
    fixture_close(&m.f);
  }
}

/* D and PD are in the range of f32, the sum D a of a row is not. */
static void row_sum_may_overflow(void **state) {
  model m;
  must_open(&m, "method=eva-f clip=none damping=100", &in_place, NG_F32);
  for (int i = 0; i < FC; i++)
    put(m.grad, NG_F32, i, i >= IN * OUT || m.a[i % IN] > 0 ? 1.9e38f : -1.9e38f);
  assert_int_equal(observe_and_step(&m, &in_place), NG_OK);
  assert_true(is_all_finite(&m));
  fixture_close(&m.f);
}

/* ---- random models ---------------------------------------------------------------------------*/

static double draw_magnitude(rng *r) {
  static const double size[] = {0, 1e-42, 1e-20, 1e-3, 1, 100, 6e4, 1e10, 1e19, 1e30, 1e38};
  return size[rng_below(r, 11)];
}

/* Draw the numbers of update u, of any magnitude; u is 0 for ng_step, 1 for SGD, 2 for AdamW. */
static update draw_update(rng *r, int64_t u) {
  update by = {.lr = u == 0 ? 0.1 : draw_magnitude(r),
               .in_place = u == 0,
               .momentum = rng_below(r, 2) ? 0.9 : draw_magnitude(r),
               .beta1 = 0.9,
               .beta2 = u == 2 ? 0.999 : 0,
               .eps = rng_below(r, 2) ? 1e-8 : draw_magnitude(r),
               .decay = rng_below(r, 2) ? 1e-3 : draw_magnitude(r),
               .decoupled = rng_below(r, 2) != 0};
  by.nesterov = by.momentum > 0 && rng_below(r, 3) == 0;
  if (!by.nesterov && rng_below(r, 2))
    by.dampening = draw_magnitude(r) * (rng_below(r, 2) ? 1 : -1);
  return by;
}

/* Replace gradients and weights by finite numbers of any magnitude. */
static void draw_model_numbers(model *m, rng *r) {
  if (rng_below(r, 2)) fill_magnitudes(m, draw_magnitude(r), draw_magnitude(r));
  for (int i = 0; i < ALL; i++) {
    if (rng_below(r, 9) == 0) put(m->weight, m->type, i, m->type == NG_F16 ? 65504.0f : 3.38e38f);
    if (!isfinite((double)get(m->grad, m->grads, i))) put(m->grad, m->grads, i, 1);
    if (!isfinite((double)get(m->weight, m->type, i))) put(m->weight, m->type, i, 1);
  }
}

typedef struct random_case {
  uint64_t seed;
  int64_t counted, rejected; /* steps of rank 0 */
} random_case;

static ng_status run_random_steps(int32_t rank, ng_transport *t, void *arg) {
  static const char *const method[] = {"eva", "natgrad", "eva-f",
                                       "natgrad solver=eigen damping_split=joint"};
  static const ng_dtype dtype[] = {NG_F32, NG_F16, NG_BF16};
  random_case *x = arg;
  rng r = {x->seed};
  model m;
  char options[160];
  const int64_t u = rng_below(&r, 3);
  (void)snprintf(options, sizeof options, "method=%s clip=%s damping=%g", method[rng_below(&r, 4)],
                 rng_below(&r, 2) ? "none" : "rescale", pow(10, (double)rng_between(&r, -12, 2)));
  update by = draw_update(&r, u);
  const ng_dtype grads = dtype[rng_below(&r, 3)], weights = dtype[rng_below(&r, 3)];
  ng_status st = open_model(&m, options, &by, grads, weights, t);
  for (int k = 0; k < 4 && st >= NG_OK; k++) {
    element was[ALL];
    uint32_t grad[ALL];
    by = draw_update(&r, u);
    draw_model_numbers(&m, &r);
    memcpy(grad, m.grad, sizeof grad);
    for (int i = 0; i < ALL; i++)
      was[i] = element_of(&m, i);
    st = observe_and_step(&m, &by);
    bool fine = st >= NG_OK && is_all_finite(&m);
    for (int i = 0; i < ALL && st == NG_SKIPPED; i++) {
      const element is = element_of(&m, i);
      fine = fine && memcmp(&is, &was[i], sizeof is) == 0;
    }
    fine = fine && (st != NG_SKIPPED || memcmp(grad, m.grad, sizeof grad) == 0);
    if (rank == 0 && st == NG_OK) x->counted++;
    if (rank == 0 && (st == NG_SKIPPED || st == NG_RESCUED)) x->rejected++;
    if (fine) continue;
    (void)fprintf(stderr, "rank %d, step %d (%s): %s (%s), %s\n", (int)rank, k, options,
                  ng_status_name(st), ng_last_error(m.f.ctx),
                  is_all_finite(&m) ? "finite" : "not finite");
    st = NG_ERR_STATE;
    if (t != NULL) t->abort(t->user); /* abort, so that no rank waits for this rank */
  }
  fixture_close(&m.f);
  return st < NG_OK ? st : NG_OK;
}

static void random_models_keep_finite_weights(void **state) {
  random_case x = {.seed = 0};
  const int64_t cases = test_repetitions(600);
  for (int64_t i = 0; i < cases; i++) {
    x.seed = rng_mix(test_seed() + (uint64_t)i);
    const ng_status st =
        i % 10 == 0 ? ranks_run(4, run_random_steps, &x, NULL) : run_random_steps(0, NULL, &x);
    if (st != NG_OK) fail_msg("case %d: %s", (int)i, ng_status_name(st));
  }
  if (x.counted < cases / 6 || x.rejected < cases / 6)
    fail_msg("%d steps without, %d with values out of range", (int)x.counted, (int)x.rejected);
}

/* ---- averages --------------------------------------------------------------------------------*/

/* Copy the averages of the layer. */
static void copy_averages(const model *m, unsigned char *to, size_t size) {
  const ng_block *b = m->f.p->block[0];
  size_t at = 0;
  for (int32_t i = 0; i < b->stats; i++) {
    const ng_stat *s = &b->stat[i];
    const size_t bytes = (size_t)(ng_stat_part_count(s, s->part) * ng_dtype_size(s->average_dtype));
    assert_true(s->parts == 1 && at + bytes <= size);
    memcpy(to + at, s->part->average, bytes);
    assert_true(ng_are_finite(s->part->average, s->average_dtype, ng_stat_part_count(s, s->part)));
    at += bytes;
  }
}

/* After two ordinary steps multiply an input by a and an output gradient by g; then two ordinary steps.  Without
 * `taken` one of the averages overflows, and the step is skipped. */
static void step_enlarged(const char *options, float a, float g, bool taken) {
  unsigned char before[4096] = {0}, after[4096] = {0};
  model m;
  must_open(&m, options, &in_place, NG_F32);
  const model first = m;
  for (int i = 0; i < 2; i++)
    assert_int_equal(observe_and_step(&m, &in_place), NG_OK);
  copy_averages(&m, before, sizeof before);
  m.a[0] *= 1.5f; /* change the input, so that the folded statistic changes */
  m.g[0] *= 1.5f;
  m.a[2] *= a;
  m.g[1] *= g;
  const ng_status st = observe_and_step(&m, &in_place);
  if (st != (taken ? NG_OK : NG_SKIPPED)) fail_msg("%s: %s", options, ng_status_name(st));
  copy_averages(&m, after, sizeof after);
  if (!taken && memcmp(before, after, sizeof before) == 0)
    fail_msg("%s: nothing was folded", options);
  if (!taken) { /* A is unchanged if A overflows, and folded if G overflows */
    const size_t A = (size_t)ng_sym_count(6) * (strstr(options, "16") != NULL ? 2 : 4);
    assert_int_equal(memcmp(before, after, A) == 0, a > 1);
  }
  memcpy(m.a, first.a, sizeof m.a);
  memcpy(m.g, first.g, sizeof m.g);
  for (int i = 0; i < 2; i++) {
    fill_magnitudes(&m, 1, 1);
    assert_int_equal(observe_and_step(&m, &in_place), NG_OK);
    assert_true(is_all_finite(&m));
  }
  copy_averages(&m, after, sizeof after);
  fixture_close(&m.f);
}

static void averages_stay_in_range(void **state) {
  static const char *const start[] = {"first", "identity", "zero"};
  char options[160];
  for (int i = 0; i < 3; i++) {
    (void)snprintf(options, sizeof options,
                   "method=natgrad factor_dtype=f16 stat_decay=0 stat_start=%s", start[i]);
    step_enlarged(options, 1300, 1, false); /* 0.25 * 1300 = 325: its square is 105625 */
    step_enlarged(options, 1, 1300, false);
    step_enlarged(options, 900, 1, true); /* 225 */
    (void)snprintf(options, sizeof options, "method=natgrad factor_dtype=bf16 stat_start=%s",
                   start[i]);
    step_enlarged(options, 1300, 1, true);
    step_enlarged(options, 1e19f, 1, true);
    step_enlarged(options, 1e30f, 1, false);
    (void)snprintf(options, sizeof options, "method=natgrad stat_start=%s", start[i]);
    step_enlarged(options, 1e30f, 1, false);
    step_enlarged(options, 1, 1e30f, false);
  }
  /* damping_leak adds the damping to the average */
  unsigned char now[4096];
  model m;
  must_open(&m,
            "method=natgrad factor_dtype=f16 damping=1e5 damping_split=full damping_leak=owner "
            "stat_decay=0.1",
            &in_place, NG_F32);
  assert_int_equal(observe_and_step(&m, &in_place), NG_OK);
  assert_int_equal(observe_and_step(&m, &in_place), NG_SKIPPED);
  copy_averages(&m, now, sizeof now);
  fixture_close(&m.f);
}

/* The last entry of A is the number of positions: 65536 is out of the range of f16. */
static void positions_beyond_f16_skip_the_step(void **state) {
  enum { MANY = 65536 };
  static float a[MANY], g[MANY];
  for (int i = 0; i < MANY; i++)
    a[i] = g[i] = i % 2 ? 0.5f : -0.5f;
  for (int64_t S = MANY / 2; S <= MANY; S += MANY / 2) {
    fixture f;
    float d[2] = {1, 1};
    const plane grad[2] = {plane_of(d, 1, 1, NG_F32), plane_of(d + 1, 1, 1, NG_F32)};
    const plane x = plane_of(a, S, 1, NG_F32), y = plane_of(g, S, 1, NG_F32);
    fixture_ok(&f, fixture_open(&f, "method=natgrad factor_dtype=f16", NULL));
    fixture_ok(&f, fixture_add_linear(&f, "fc", grad, NULL));
    fixture_ok(&f, ng_ready(f.p));
    fixture_ok(&f, fixture_begin_and_observe(&f, 1, 0, &x, &y));
    fixture_fails(&f, ng_step(f.p, 0.1), S == MANY ? NG_SKIPPED : NG_OK,
                  S == MANY ? "average A would leave the range of f16" : "");
    fixture_close(&f);
  }
}

/* An inverse of 1e5 is out of the range of f16: the ladder raises the damping. */
static void inverses_stay_in_range(void **state) {
  model m;
  must_open(&m, "method=natgrad inverse_dtype=f16 damping=1e-5 damping_split=full clip=none",
            &in_place, NG_F32);
  assert_int_equal(observe_and_step(&m, &in_place), NG_RESCUED);
  assert_true(is_all_finite(&m));
  fixture_close(&m.f);
}

/* ---- non-finite states -----------------------------------------------------------------------*/

enum { FAULTY = 2 };

static const update adamw = {.lr = 1e-3, .decay = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};

typedef struct fault {
  const char *line, *says;
  const update *by;
  void (*make)(ng_precond *p);
} fault;

typedef struct faulty {
  const fault *is;
  bool parts;
  const char *path;
  char why[FAULTY][200];
} faulty;

static void store_infinite_average(ng_precond *p) {
  ((float *)p->block[0]->stat[0].part[0].average)[2] = INFINITY;
}
static void store_negative_second_moment(ng_precond *p) {
  ((float *)p->entry[0]->slot[0].v)[2] = -FLT_TRUE_MIN;
}
static void store_negative_sample_moment(ng_precond *p) {
  ((float *)p->block[0]->stat[2].part[0].average)[2] = -FLT_TRUE_MIN;
}
static void store_negative_window_moment(ng_precond *p) {
  ng_window_of(p->block[0])->s[ALL - 1] = -1.0F;
}

/* ng_load refuses a negative mean of squares, because its square root would be NaN. */
#define FIRST "method=mfac window=1 window_store=topk window_density=0.5 window_function="
static const fault faults[] = {
    {"method=natgrad", "'fc/A' holds a number that is not finite", &in_place,
     store_infinite_average},
    {"method=eva", "'fc/second.weight' holds a number below 0", &adamw,
     store_negative_second_moment},
    {"method=ekfac", "'fc/V' holds a number below 0", &in_place, store_negative_sample_moment},
    {FIRST "adam", "'window/second' holds a number below 0", &in_place,
     store_negative_window_moment},
    {FIRST "adagrad", "'window/second' holds a number below 0", &in_place,
     store_negative_window_moment},
};
#undef FIRST

/* Save a state with the fault, and load it into another model. */
static ng_status save_and_load(int32_t rank, ng_transport *t, void *arg) {
  faulty *x = arg;
  model m;
  ng_status st = model_open(&m, x->is->line, x->is->by, NG_F32, NG_F32, t);
  if (st == NG_OK) x->is->make(m.f.p);
  if (st == NG_OK) st = x->parts ? ng_save_parts(m.f.p, x->path) : ng_save(m.f.p, x->path);
  fixture_close(&m.f);
  if (st == NG_OK) st = model_open(&m, x->is->line, x->is->by, NG_F32, NG_F32, t);
  if (st != NG_OK) return st;
  st = ng_load(m.f.p, x->path);
  (void)snprintf(x->why[rank], sizeof x->why[rank], "%s", ng_last_error(m.f.ctx));
  fixture_close(&m.f);
  return st;
}

static void states_with_invalid_values_are_refused(void **state) {
  for (int i = 0; i < 2 * (int)(sizeof faults / sizeof faults[0]); i++) {
    static faulty x;
    ng_status st[FAULTY];
    x.is = &faults[i / 2];
    x.parts = i % 2 == 1;
    x.path = in_folder("state");
    (void)ranks_run(FAULTY, save_and_load, &x, st);
    for (int r = 0; r < FAULTY; r++) {
      if (st[r] != NG_ERR_FILE || strstr(x.why[r], x.is->says) == NULL)
        fail_msg("%s, parts %d, rank %d: %s, %s", x.is->line, x.parts, r, ng_status_name(st[r]),
                 x.why[r]);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(clip_ratio_may_overflow_f16),
      cmocka_unit_test(bias_factor_may_overflow),
      cmocka_unit_test(row_sum_may_overflow),
      cmocka_unit_test(random_models_keep_finite_weights),
      cmocka_unit_test(averages_stay_in_range),
      cmocka_unit_test(positions_beyond_f16_skip_the_step),
      cmocka_unit_test(inverses_stay_in_range),
      cmocka_unit_test(states_with_invalid_values_are_refused),
  };
  return cmocka_run_group_tests(tests, make_folder, delete_folder);
}
