/* t_engine.c: public functions after ng_ready: each wrong argument or order of calls gives its status, a message with
 * the name, and changes nothing; skipped steps, memory, reports.  t_context.c tests contexts, t_describe.c
 * registration. */
#include "unit_test.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "linalg/linalg.h"
#include "misuse.h"

static void observe_and_step(misused *f, ng_status want) {
  assert_int_equal(observe_fc(f), NG_OK);
  assert_int_equal(ng_step(f->p, 0.1), want);
}

/* ---- order of calls --------------------------------------------------------------------------*/

static void calls_in_wrong_order_are_refused(void **state) {
  misused f;
  create_model(&f, "");
  plane a = plane_of(f.a, B, IN, NG_F32);
  const ng_batch b = batch_of(B);
  WRONG(ng_begin(f.p, &b), NG_ERR_STATE, "ng_ready");
  WRONG(plane_observe_input(f.p, f.fc, &a, NG_COPY), NG_ERR_STATE, "ng_ready");
  WRONG(ng_step(f.p, 0.1), NG_ERR_STATE, "ng_ready");
  WRONG(ng_reset_batch(f.p), NG_ERR_STATE, "ng_ready");
  WRONG(ng_save(f.p, "/tmp/never"), NG_ERR_STATE, "ng_ready");
  assert_int_equal(ng_wants(f.p, f.fc), 0);
  assert_int_equal(ng_ready(f.p), NG_OK);
  WRONG(plane_observe_input(f.p, f.fc, &a, NG_COPY), NG_ERR_STATE, "ng_begin");
  assert_int_equal(observe_fc(&f), NG_OK);
  WRONG(ng_step(f.p, 0.1), NG_ERR_STATE, "gradient of its weight is not bound");
  bind_all(&f);
  WRONG(ng_step(f.p, -1.0), NG_ERR_ARG, "lr is -1");
  WRONG(ng_step(f.p, (double)NAN), NG_ERR_ARG, "lr");
  assert_int_equal(ng_step(f.p, 0.1), NG_OK);
  destroy_checked(&f);

  ng_precond *none = NULL;
  ng_options o;
  assert_int_equal(ng_context_create(NG_VERSION, NULL, NULL, 0, &f.f.ctx), NG_OK);
  f.ctx = f.f.ctx;
  ng_options_set_defaults(&o);
  fixture_set(&o, "damping_split", "joint");
  WRONG(ng_precond_create_from(f.ctx, &o, &none), NG_ERR_ARG, "damping_split");
  WRONG(ng_precond_create(f.ctx, "damping_split=joint", &none), NG_ERR_ARG, "damping_split");
  WRONG(ng_precond_create(f.ctx, "dampin=1", &none), NG_ERR_ARG, "'damping'");
  WRONG(ng_precond_create(f.ctx, "window_dtype=f64", &none), NG_ERR_ABSENT, "f64");
  WRONG(ng_precond_create(f.ctx, "skip_layers=(", &none), NG_ERR_ARG, "skip_layers");
  assert_null(none);
  fixture_set(&o, "damping_split", "pi");
  assert_int_equal(ng_precond_create_from(f.ctx, &o, &none), NG_OK);
  WRONG(ng_ready(none), NG_ERR_STATE, "no layer");
  ng_precond_destroy(&none);
  ng_context_destroy(&f.ctx);
}

static void a_layer_without_observations_is_refused(void **state) {
  misused f;
  create_ready(&f, "");
  float before[OUT * IN];
  memcpy(before, f.dw, sizeof before);
  WRONG(ng_step(f.p, 0.1), NG_ERR_STATE, "layer 'fc' was never observed");
  const ng_batch b = batch_of(B);
  const plane a = plane_of(f.a, B, IN, NG_F32);
  assert_int_equal(ng_begin(f.p, &b), NG_OK);
  assert_int_equal(plane_observe_input(f.p, f.fc, &a, NG_COPY), NG_OK);
  WRONG(ng_step(f.p, 0.1), NG_ERR_STATE, "output gradient");
  assert_memory_equal(before, f.dw, sizeof before);
  assert_int_equal(observe_fc(&f), NG_OK); /* later calls work */
  assert_int_equal(ng_step(f.p, 0.1), NG_OK);
  assert_int_equal(ng_step(f.p, 0.1), NG_UNOBSERVED); /* t_unobserved.c tests such steps */
  destroy_checked(&f);
}

/* ng_begin_samples equals ng_begin with a mean loss, bit for bit. */
static void begin_samples_is_begin_with_a_mean_loss(void **state) {
  float got[3][OUT * IN];
  for (int k = 0; k < 3; k++) {
    misused f;
    create_ready(&f, "clip=none");
    const plane a = plane_of(f.a, B, IN, NG_F32), g = plane_of(f.g, B, OUT, NG_F32);
    ng_batch b = batch_of(B);
    b.loss_scale = 0.3;
    WRONG(ng_begin_samples(f.p, 0, 0.3), NG_ERR_ARG, "ng_begin_samples: samples is 0");
    WRONG(ng_begin_samples(f.p, B, 0.0), NG_ERR_ARG, "ng_begin_samples: loss_scale is 0");
    WRONG(plane_observe_input(f.p, f.fc, &a, NG_COPY), NG_ERR_STATE,
          "ng_begin"); /* no batch has begun */
    assert_int_equal(k == 0 ? ng_begin(f.p, &b) : ng_begin_samples(f.p, B, k == 1 ? 0.3 : 1.0),
                     NG_OK);
    assert_int_equal(plane_observe_input(f.p, f.fc, &a, NG_COPY), NG_OK);
    assert_int_equal(plane_observe_output_grad(f.p, f.fc, &g, NG_COPY), NG_OK);
    assert_int_equal(ng_step(f.p, 0.1), NG_OK);
    memcpy(got[k], f.dw, sizeof got[k]);
    destroy_checked(&f);
  }
  assert_memory_equal(got[0], got[1], sizeof got[0]);
  assert_memory_not_equal(got[0], got[2], sizeof got[0]);
}

static void invalid_observations_are_refused(void **state) {
  misused f;
  create_ready(&f, "");
  ng_batch b = batch_of(0);
  WRONG(ng_begin(f.p, &b), NG_ERR_ARG, "samples is 0");
  b = batch_of(B);
  b.loss_scale = 0.0;
  WRONG(ng_begin(f.p, &b), NG_ERR_ARG, "loss_scale");
  b = batch_of(B);
  b.reduction = (ng_reduction)0;
  WRONG(ng_begin(f.p, &b), NG_ERR_ARG, "reduction");
  b.struct_size = 0;
  WRONG(ng_begin(f.p, &b), NG_ERR_ARG, "struct_size");
  b = batch_of(B);
  assert_int_equal(ng_begin(f.p, &b), NG_OK);
  plane a = plane_of(f.a, B, IN, NG_F32);
  WRONG(plane_observe_input(f.p, 9, &a, NG_COPY), NG_ERR_ARG, "index 9");
  WRONG(plane_observe_input(f.p, f.norm, &a, NG_COPY), NG_ERR_ARG, "not a layer");
  WRONG(plane_observe_input(f.p, f.fc, &a, (ng_loan)0), NG_ERR_ARG, "loan");
  WRONG(plane_observe_output_grad(f.p, f.fc, &a, NG_COPY), NG_ERR_SHAPE,
        "output gradient is [4, 3]");
  a.rows = 3;
  WRONG(plane_observe_input(f.p, f.fc, &a, NG_COPY), NG_ERR_SHAPE, "[3, 3]");
  a.rows = B;
  a.dtype = NG_I64;
  WRONG(plane_observe_input(f.p, f.fc, &a, NG_COPY), NG_ERR_ARG, "i64");
  a.dtype = NG_F32;
  a.mem = NG_DEVICE;
  if (f.ctx->queue->backend->can_access == NULL) /* false with NG_LINALG=cuda */
    WRONG(plane_observe_input(f.p, f.fc, &a, NG_COPY), NG_ERR_ABSENT, "device");
  destroy_checked(&f);
}

/* ---- not finite ------------------------------------------------------------------------------*/

/* A non-finite value: the step is skipped with a message, the gradient stays, and later steps
 * count.  t_properties_life.c compares their bits. */
static void check_skipped(int where, float value) {
  misused f;
  create_ready(&f, "");
  assert_int_equal(observe_fc(&f), NG_OK); /* this step counts */
  assert_int_equal(ng_step(f.p, 0.1), NG_OK);
  fill_arrays(&f);
  if (where == 0) f.a[5] = value;
  if (where == 1) f.g[1] = value;
  if (where == 2) f.dw[4] = value;
  if (where == 3) f.db[1] = value;
  float before[OUT * IN];
  memcpy(before, f.dw, sizeof before);
  assert_int_equal(observe_fc(&f), where < 2 ? NG_SKIPPED : NG_OK);
  WRONG(ng_step(f.p, 0.1), NG_SKIPPED, where < 2 ? "not finite" : "gradient is not finite");
  assert_memory_equal(before, f.dw, sizeof before);
  const ng_report r = fixture_report(&f.f);
  assert_int_equal(r.skipped, 1);
  assert_int_equal(r.steps, 1);
  fill_arrays(&f);
  observe_and_step(&f, NG_OK);
  for (int i = 0; i < OUT * IN; i++) {
    assert_true(isfinite((double)f.dw[i]));
  }
  destroy_checked(&f);
}

static void non_finite_values_skip_the_step(void **state) {
  for (int where = 0; where < 4; where++) {
    check_skipped(where, NAN);
    check_skipped(where, INFINITY);
    check_skipped(where, -INFINITY);
  }
}

/* Values that a family does not read may be non-finite. */
static void values_that_are_not_read_may_be_non_finite(void **state) {
  misused f;
  create_ready(&f, "stat_batch=2");
  f.a[2 * IN] = NAN;
  f.g[3 * OUT] = INFINITY;
  observe_and_step(&f, NG_OK);
  assert_true(isfinite((double)f.dw[0]) && isfinite((double)f.db[1]));
  destroy_checked(&f);
  create_ready(&f, "sides=input");
  f.g[0] = NAN;
  observe_and_step(&f, NG_OK);
  assert_true(isfinite((double)f.dw[0]));
  destroy_checked(&f);
}

/* Finite values whose squares overflow: the average must not change. */
static void sums_that_overflow_skip_the_step(void **state) {
  misused f;
  create_ready(&f, "");
  observe_and_step(&f, NG_OK);
  fill_arrays(&f);
  const bool kronecker =
      strcmp(misuse_method, "natgrad") == 0; /* Eva has no squares, only weighted sums */
  f.a[0] = kronecker ? 3e30f : 3e38f;
  if (!kronecker) f.a[IN] = f.a[2 * IN] = f.a[3 * IN] = 3e38f;
  observe_and_step(&f, NG_SKIPPED);
  assert_non_null(strstr(ng_last_error(f.ctx), "overflowed"));
  fill_arrays(&f);
  observe_and_step(&f, NG_OK);
  assert_true(isfinite((double)f.dw[0]));
  destroy_checked(&f);
}

static void an_infinite_loss_scale_skips_the_step(void **state) {
  misused f;
  create_ready(&f, "");
  ng_batch b = batch_of(B);
  b.loss_scale = INFINITY;
  float before[OUT * IN];
  memcpy(before, f.dw, sizeof before);
  WRONG(ng_begin(f.p, &b), NG_SKIPPED, "loss_scale");
  assert_int_equal(ng_step(f.p, 0.1), NG_SKIPPED);
  assert_memory_equal(before, f.dw, sizeof before);
  destroy_checked(&f);
}

/* ---- fused updates, options ------------------------------------------------------------------*/

static void updates_need_their_option_and_weights(void **state) {
  misused f;
  ng_sgd s;
  ng_adamw w;
  ng_sgd_init(&s, sizeof s);
  ng_adamw_init(&w, sizeof w);
  create_ready(&f, "");
  assert_int_equal(observe_fc(&f), NG_OK);
  s.lr = 0.1;
  WRONG(ng_step_sgd(f.p, &s, 1), NG_ERR_STATE, "update");
  w.lr = 0.1;
  WRONG(ng_step_adamw(f.p, &w, 1), NG_ERR_STATE, "update");
  destroy_checked(&f);
  create_ready(&f, "update=sgd");
  assert_int_equal(observe_fc(&f), NG_OK);
  WRONG(ng_step(f.p, 0.1), NG_ERR_STATE, "update");
  s.momentum = -1;
  WRONG(ng_step_sgd(f.p, &s, 1), NG_ERR_ARG, "momentum");
  s.momentum = 0;
  plane none = plane_of(NULL, OUT, IN, NG_F32);
  assert_int_equal(plane_bind_weight(f.p, f.fc, NG_WEIGHT, &none), NG_OK);
  WRONG(ng_step_sgd(f.p, &s, 1), NG_ERR_STATE, "weight of its weight is not bound");
  bind_all(&f);
  assert_int_equal(ng_step_sgd(f.p, &s, 1), NG_OK);
  destroy_checked(&f);
  /* with clip = ratio also ng_step needs bound weights, because the clip reads their norms */
  create_ready(&f, "");
  assert_int_equal(observe_fc(&f), NG_OK);
  assert_int_equal(plane_bind_weight(f.p, f.fc, NG_WEIGHT, &none), NG_OK);
  assert_int_equal(ng_step(f.p, 0.1), NG_OK);
  assert_int_equal(ng_set(f.p, "clip_bound", "0.1"), NG_OK);
  assert_int_equal(ng_set(f.p, "clip", "ratio"), NG_OK);
  assert_int_equal(observe_fc(&f), NG_OK);
  WRONG(ng_step(f.p, 0.1), NG_ERR_STATE, "weight of its weight is not bound");
  bind_all(&f);
  assert_int_equal(ng_step(f.p, 0.1), NG_OK);
  f.w[1] = INFINITY;
  observe_and_step(&f, NG_SKIPPED);
  destroy_checked(&f);
  create_ready(&f, "update=adamw");
  assert_int_equal(observe_fc(&f), NG_OK);
  w.beta1 = 1.0;
  WRONG(ng_step_adamw(f.p, &w, 1), NG_ERR_ARG, "beta1");
  w.beta1 = 0.9;
  w.beta2 = -0.1;
  WRONG(ng_step_adamw(f.p, &w, 1), NG_ERR_ARG, "beta2");
  w.beta2 = 0.999;
  w.eps = -1;
  WRONG(ng_step_adamw(f.p, &w, 1), NG_ERR_ARG, "eps");
  w.eps = 1e-8;
  assert_int_equal(ng_step_adamw(f.p, &w, 1), NG_OK);
  destroy_checked(&f);
}

static void invalid_values_of_ng_set_change_nothing(void **state) {
  misused f;
  char value[64];
  create_ready(&f, "");
  assert_int_equal(ng_set(f.p, "damping", "0.5"), NG_OK);
  assert_int_equal(ng_get(f.p, "damping", value, sizeof value), NG_OK);
  assert_true(strtod(value, NULL) == 0.5);
  WRONG(ng_set(f.p, "damping", "-1"), NG_ERR_ARG, "damping");
  WRONG(ng_set(f.p, "dampin", "1"), NG_ERR_ARG, "damping");
  WRONG(ng_set(f.p, "solver", "eigen"), NG_ERR_STATE, "solver");
  WRONG(ng_set(f.p, "skip_layers", ""), NG_ERR_STATE, "skip_layers");
  WRONG(ng_set(f.p, "schedule", ""), NG_ERR_ARG, "was removed");
  WRONG(ng_set_real(f.p, "stat_period", 1.5), NG_ERR_ARG, "stat_period");
  assert_int_equal(ng_get(f.p, "damping", value, sizeof value), NG_OK);
  assert_true(strtod(value, NULL) == 0.5); /* nothing changed */
  assert_int_equal(ng_get(f.p, "nothing", value, sizeof value), NG_ERR_ARG);
  /* the buffer is too small for the value */
  assert_int_equal(ng_get(f.p, "damping", value, 2), NG_ERR_ARG);
  destroy_checked(&f);
}

/* ---- memory, reports -------------------------------------------------------------------------*/

static void reported_memory_is_the_allocated_memory(void **state) {
  misused f;
  int64_t empty = 0, full = 0, sum = 0;
  ng_context *ctx = NULL;
  assert_int_equal(ng_context_create(NG_VERSION, NULL, NULL, 0, &ctx), NG_OK);
  ng_context_allocated(ctx, &empty, NULL, NULL);
  ng_context_destroy(&ctx);
  create_ready(&f, "update=adamw");
  ng_context_allocated(f.ctx, &full, NULL, NULL);
  const ng_report m = fixture_report(&f.f);
  sum = m.factors + m.sums + m.results + m.direction + m.moments + m.scratch + m.objects;
  /* 4 bytes per element of each triangle, rounded up to a cache line: A: 4*5/2 * 4 = 40, G: 2*3/2 * 4 = 12 */
  assert_int_equal(m.factors, 64 + 64);
  assert_int_equal(sum, full - empty);
  destroy_checked(&f);
}

static void reports_describe_the_last_step(void **state) {
  misused f;
  create_ready(&f, "");
  observe_and_step(&f, NG_OK);
  const ng_report r = fixture_report(&f.f);
  const ng_layer_report l = fixture_layer_report(&f.f, f.fc);
  ng_station_report s = {.struct_size = sizeof s};
  ng_explain_row e = {.struct_size = sizeof e};
  assert_int_equal(r.steps, 1);
  assert_true(r.clip > 0.0 && r.clip <= 1.0);
  assert_true(r.stations > 8);
  for (int32_t i = 0; i < r.stations; i++) {
    assert_int_equal(ng_report_station(f.p, i, &s), NG_OK);
    /* no family here reads gradients, and update_ranks is all */
    assert_int_equal(s.runs, strstr("gradients weights", s.name) == NULL);
    assert_int_equal(s.total_bytes, 0); /* a single rank sends nothing */
  }
  assert_int_equal(ng_report_station(f.p, r.stations, &s), NG_ERR_ARG);
  assert_string_equal(l.name, "fc");
  assert_int_equal(l.observations, 2);
  assert_int_equal(l.rung, 0);
  assert_true(l.pi > 0.0 && l.damping_a > 0.0 && l.damping_g > 0.0);
  assert_int_equal(ng_explain_count(f.p), 3);
  const char *const name[] = {"fc.weight", "fc.bias", "norm"};
  for (int32_t i = 0; i < 3; i++) {
    assert_int_equal(ng_explain(f.p, i, &e), NG_OK);
    assert_string_equal(e.name, name[i]);
    assert_int_equal(e.covered, i < 2);
    assert_true(strlen(e.why) > 0);
  }
  assert_non_null(strstr(e.why, "tensor"));
  assert_int_equal(ng_explain(f.p, 3, &e), NG_ERR_ARG);
  destroy_checked(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(calls_in_wrong_order_are_refused),
      cmocka_unit_test(a_layer_without_observations_is_refused),
      cmocka_unit_test(begin_samples_is_begin_with_a_mean_loss),
      cmocka_unit_test(invalid_observations_are_refused),
      cmocka_unit_test(non_finite_values_skip_the_step),
      cmocka_unit_test(sums_that_overflow_skip_the_step),
      cmocka_unit_test(an_infinite_loss_scale_skips_the_step),
      cmocka_unit_test(updates_need_their_option_and_weights),
      cmocka_unit_test(invalid_values_of_ng_set_change_nothing),
      cmocka_unit_test(reported_memory_is_the_allocated_memory),
      cmocka_unit_test(reports_describe_the_last_step),
  };
  const struct CMUnitTest of_a_family[] = {
      cmocka_unit_test(calls_in_wrong_order_are_refused),
      cmocka_unit_test(a_layer_without_observations_is_refused),
      cmocka_unit_test(invalid_observations_are_refused),
      cmocka_unit_test(non_finite_values_skip_the_step),
      cmocka_unit_test(sums_that_overflow_skip_the_step),
      cmocka_unit_test(an_infinite_loss_scale_skips_the_step),
      cmocka_unit_test(updates_need_their_option_and_weights),
      cmocka_unit_test(reported_memory_is_the_allocated_memory),
      cmocka_unit_test(values_that_are_not_read_may_be_non_finite),
  };
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  misuse_method = "eva-natgrad";
  return failed + cmocka_run_group_tests_name("rank one", of_a_family, NULL, NULL);
}
