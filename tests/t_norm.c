/* t_norm.c: one norm layer by hand: refusals, fallbacks, explanations.  t_kernels_norm.c tests the sums,
 * t_oracle.c random norm layers against a dense solve. */
#include "fixture.h"
#include "core/core.h"
#include "model/model.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct norm_run {
  fixture f;
  float grad[4], a[8], g[8];
  ng_array in, out;
} norm_run;

/* Two channels, two samples, two positions. */
static void open_layer(norm_run *h, const char *options) {
  static const float a[8] = {1, -2, 3, 4, -1, 2, 0, 5}, g[8] = {1, 2, -1, 1, 3, 0, 2, -2};
  memcpy(h->a, a, sizeof a);
  memcpy(h->g, g, sizeof g);
  h->in = ng_array_nchw(h->a, 2, 2, 1, 2, NG_F32);
  h->out = ng_array_nchw(h->g, 2, 2, 1, 2, NG_F32);
  for (int i = 0; i < 4; i++)
    h->grad[i] = (float)(i + 1);
  fixture_ok(&h->f, fixture_open(&h->f, options, NULL));
  fixture_ok(&h->f, ng_add_norm(h->f.p, "bn", NG_BATCH_NORM, 2, 1, 1e-5, NULL));
  const ng_array D[2] = {ng_array_vector(h->grad, 2, NG_F32),
                         ng_array_vector(h->grad + 2, 2, NG_F32)};
  fixture_ok(&h->f, ng_bind_grad(h->f.p, 0, NG_WEIGHT, &D[0]));
  fixture_ok(&h->f, ng_bind_grad(h->f.p, 0, NG_BIAS, &D[1]));
  fixture_ok(&h->f, ng_ready(h->f.p));
  fixture_ok(&h->f, ng_begin_samples(h->f.p, 2, 1));
}

static void observe_layer(norm_run *h) {
  fixture_ok(&h->f, ng_observe_input(h->f.p, 0, &h->in, NG_BORROW));
  fixture_ok(&h->f, ng_observe_output_grad(h->f.p, 0, &h->out, NG_COPY));
}

static void wrong_observations_and_norms_are_refused(void **state) {
  norm_run h;
  open_layer(&h, "method=natgrad");
  fixture_fails(&h.f, ng_observe_input(h.f.p, 0, &h.in, NG_COPY), NG_ERR_ARG, "NG_BORROW");
  fixture_fails(&h.f, ng_observe_output_grad(h.f.p, 0, &h.out, NG_COPY), NG_ERR_STATE,
                "without its input");
  const ng_array wide = ng_array_nchw(h.a, 2, 4, 1, 1, NG_F32),
                 long_ = ng_array_nchw(h.a, 2, 2, 1, 1, NG_F32);
  fixture_fails(&h.f, ng_observe_input(h.f.p, 0, &wide, NG_BORROW), NG_ERR_SHAPE,
                "expected [2, 2, ...] for 2 samples");
  fixture_ok(&h.f, ng_observe_input(h.f.p, 0, &long_, NG_BORROW));
  fixture_fails(&h.f, ng_observe_output_grad(h.f.p, 0, &h.out, NG_COPY), NG_ERR_SHAPE,
                "has 2 positions a sample, its input 1");
  for (int k = 1; k < 8; k++)
    fixture_ok(&h.f, ng_observe_input(h.f.p, 0, &h.in, NG_BORROW));
  fixture_fails(&h.f, ng_observe_input(h.f.p, 0, &h.in, NG_BORROW), NG_ERR_STATE,
                "9 inputs without an output gradient");
  /* an input does not count in the next micro-batch */
  fixture_ok(&h.f, ng_begin_samples(h.f.p, 2, 1));
  assert_int_equal(ng_observe_output_grad(h.f.p, 0, &h.out, NG_COPY), NG_ERR_STATE);
  observe_layer(&h); /* the limit of 8 inputs starts again */
  fixture_close(&h.f);
  fixture_ok(&h.f, fixture_open(&h.f, "method=natgrad", NULL));
  fixture_fails(&h.f, ng_add_norm(h.f.p, "x", NG_GROUP_NORM, 4, 3, 1e-5, NULL), NG_ERR_ARG,
                "groups is 3, expected a divisor of in 4");
  fixture_fails(&h.f, ng_add_norm(h.f.p, "x", (ng_norm_kind)9, 4, 1, 1e-5, NULL), NG_ERR_ARG,
                "norm_kind is 9");
  fixture_fails(&h.f, ng_add_norm(h.f.p, "x", NG_BATCH_NORM, 4, 1, (double)NAN, NULL), NG_ERR_ARG,
                "norm_eps");
  ng_layer l;
  ng_layer_init(&l, NG_NORM, sizeof l);
  l.name = "x";
  l.in = 4;
  l.norm_no_weight = 1;
  fixture_fails(&h.f, ng_add_layer(h.f.p, &l, NULL), NG_ERR_ARG, "gamma or beta or both");
  fixture_close(&h.f);
}

/* Only one sample has a gradient, so F of a channel has rank one, and rounding of F exceeds the damping. */
static void a_singular_unit_needs_a_fallback(void **state) {
  norm_run h;
  open_layer(&h, "method=natgrad clip=none damping=1e-9");
  memset(h.g, 0, sizeof h.g);
  h.g[0] = h.g[2] = 100;
  observe_layer(&h);
  assert_int_equal(ng_step(h.f.p, 0.1), NG_RESCUED);
  for (int i = 0; i < 4; i++)
    assert_true(isfinite(h.grad[i]));
  const ng_report r = fixture_report(&h.f);
  assert_true(r.more_damping + r.plain > 0);
  fixture_close(&h.f);
}

/* Take a step with the average that the test wrote and stat_decay = 1 keeps.  The step must report the given rung
 * and count one solve with a rung. */
static void expect_rung(norm_run *h, const char *what, int32_t rung) {
  static const float D[4] = {1, 2, 3, 4};
  memcpy(h->grad, D, sizeof D);
  const ng_report before = fixture_report(&h->f);
  fixture_ok(&h->f, ng_begin_samples(h->f.p, 2, 1));
  observe_layer(h);
  const ng_status st = ng_step(h->f.p, 0.1);
  const ng_report after = fixture_report(&h->f);
  const int32_t got = fixture_layer_report(&h->f, 0).rung;
  if (st != (rung > 0 ? NG_RESCUED : NG_OK) || got != rung ||
      after.more_damping - before.more_damping != (rung > 0 && rung < 4) ||
      after.kept_last - before.kept_last != (rung == 5) ||
      after.plain - before.plain != (rung == 6))
    fail_msg("%s: %s, rung %d, expected %d", what, ng_status_name(st), (int)got, (int)rung);
  if (rung == 6) assert_true(h->grad[1] == D[1] && h->grad[3] == D[3]);
}

static void rungs_are_reported(void **state) {
  norm_run h;
  for (int full = 0; full < 2; full++) {
    static const float average[] = {-5, -0.005F, 3, -5, 3};
    const int32_t rungs[2][5] = {{6, 1, 0, 6, 0}, {6, 1, 0, 5, 0}};
    char set[160];
    (void)snprintf(set, sizeof set,
                   "method=natgrad norm_block=%s clip=none damping=0.001 norm_damping=1 "
                   "stat_decay=1 stat_start=identity solve_period=1",
                   full ? "full" : "unit");
    open_layer(&h, set);
    const ng_stat *s = h.f.p->block[0]->stat;
    const int64_t last = full ? ng_sym_at(4, 3, 3) : 3; /* beta of the second channel */
    for (int k = 0; k < 5; k++) {
      if (ng_stat_is_double(s)) ((double *)s->part->average)[last] = (double)average[k];
      if (!ng_stat_is_double(s)) ((float *)s->part->average)[last] = average[k];
      expect_rung(&h, set, rungs[full][k]);
    }
    fixture_close(&h.f);
  }
}

/* With norm_block = none the layer is registered and named, and its gradient stays.  Statistics are never due. */
static void norm_block_none_keeps_the_gradient(void **state) {
  norm_run h;
  open_layer(&h, "method=natgrad norm_block=none");
  assert_int_equal(ng_wants(h.f.p, 0), 0);
  fixture_ok(&h.f, ng_step(h.f.p, 0.1));
  for (int i = 0; i < 4; i++)
    assert_true(h.grad[i] == (float)(i + 1));
  ng_explain_row row = {.struct_size = sizeof row};
  assert_int_equal(ng_explain(h.f.p, 0, &row), NG_OK);
  assert_string_equal(row.family, "none");
  assert_string_equal(row.name, "bn.weight");
  fixture_close(&h.f);
  open_layer(&h, "method=natgrad");
  row = (ng_explain_row){.struct_size = sizeof row};
  assert_int_equal(ng_explain(h.f.p, 1, &row), NG_OK);
  assert_string_equal(row.family, "norm");
  assert_string_equal(row.name, "bn.bias");
  assert_string_equal(row.why, "F 4x4, units of 2x2");
  assert_int_equal(ng_wants(h.f.p, 0), 1);
  fixture_close(&h.f);
}

/* Take step t and return the reported damping of F. */
static double take_step_and_get_damping(norm_run *h, int t) {
  if (t == 2) fixture_ok(&h->f, ng_begin_samples(h->f.p, 2, 1));
  if (t % 2 == 0) observe_layer(h);
  fixture_ok(&h->f, ng_step(h->f.p, 0.1));
  const ng_layer_report r = fixture_layer_report(&h->f, 0);
  assert_true(r.damping_a == 0 && r.damping_g == 0);
  return r.damping_f;
}

/* The damping doubles after step 0.  damping_leak = owner adds it to the average when that changes, at steps 0 and
 * 2. */
static void damping_of_the_average_is_reported(void **state) {
  static const struct {
    const char *options;
    double expected[3];
  } row[] = {{"method=natgrad stat_period=2 damping=0.1 norm_damping=16", {1.6, 3.2, 3.2}},
             {"method=natgrad stat_period=2 damping=0.1 norm_damping=16 damping_leak=owner "
              "damping_split=full",
              {1.6, 1.6, 3.2}}};
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
    norm_run h;
    open_layer(&h, row[i].options);
    for (int t = 0; t < 3; t++) {
      if (t == 1) fixture_ok(&h.f, ng_set_real(h.f.p, "damping", 0.2));
      const double d = take_step_and_get_damping(&h, t);
      if (fabs(d - row[i].expected[t]) > 1e-12) fail_msg("%s, step %d: %g", row[i].options, t, d);
    }
    fixture_close(&h.f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(wrong_observations_and_norms_are_refused),
      cmocka_unit_test(a_singular_unit_needs_a_fallback),
      cmocka_unit_test(damping_of_the_average_is_reported),
      cmocka_unit_test(rungs_are_reported),
      cmocka_unit_test(norm_block_none_keeps_the_gradient),
  };
  return cmocka_run_group_tests_name("norm", tests, NULL, NULL);
}
