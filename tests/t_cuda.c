/* t_cuda.c: contexts with linalg = cuda on the stand-in (standin_desk.c). Arrays of the caller are memory of the device, which the
 * host cannot access. Steps equal the backend `ref`; observations are refused late; failures of the device are reported. */
#include "unit_test.h"

#include <math.h>
#include <string.h>

#include "cuda_model.h"

/* ---- steps -----------------------------------------------------------------------------------*/

/* stays: the host accesses no managed memory. With each solve the host writes ng_side.solve_info, which lies beside the results. */
static const struct {
  const char *method, *update;
  bool on_device; /* no entry runs on the host */
  bool stays;
  bool fused; /* step/fused.c runs all steps */
} runs[] = {{"method=eva", "sgd", true, true, true},
            {"method=eva", "adamw", true, true, true},
            {"method=eva; kl_clip=1e-9; per_layer='b: damping=0.5'", "sgd", true, true, true},
            {"method=eva-natgrad; stat_period=2", "sgd", true, true, true},
            {"method=eva; skip_layers=b; stat_start=zero", "adamw", true, true, true},
            {"method=eva; clip=norm; clip_bound=1", "sgd", true, true, false},
            {"method=eva", "gradient", true, true, false},
            {"method=eva-f", "sgd", true, true, false},
            {"method=natgrad", "sgd", true, false, false},
            {"method=natgrad; spatial=full; inverse_dtype=bf16", "sgd", true, false, false},
            {"method=natgrad; factor_dtype=f16", "sgd", true, false, false},
            {"method=natgrad; solver=eigen", "adamw", true, false, false},
            {"method=kaisa; solve_period=1", "gradient", true, false, false},
            {"method=mpd-kfac; damping=0.1", "gradient", true, false, false},
            {"method=adam", "gradient", true, false, false},
            {"method=soap", "gradient", true, false, false},
            {"method=mfac; window=4; damping=0.1", "sgd", false, false, false},
            {"method=muon", "sgd", false, false, false}};

static void steps_equal_ref(void **state) {
  for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
    char options[100];
    (void)snprintf(options, sizeof options, "%s; update=%s", runs[i].method, runs[i].update);
    model on[2];
    for (int k = 0; k < 2; k++) {
      rng r = {7};
      open_model(&on[k], k == 0, options, &r);
      for (int t = 0; t < STEPS; t++) {
        draw_observed(&on[k], &r);
        const int64_t waits = k == 0 ? standin_count(on[0].desk).waits : 0;
        observe_drawn(&on[k]);
        if (k == 0) assert_int_equal(standin_count(on[0].desk).waits, waits);
        fixture_ok(&on[k].f, step(&on[k], runs[i].update));
      }
    }
    expect_equal(&on[0], &on[1], options);
    assert_int_equal(on[0].f.p->step->fused.launched, runs[i].fused ? STEPS : 0);
    fixture_ok(&on[0].f, ng_sync(on[0].f.p));
    const ng_device *d = on[0].f.ctx->queue->device;
    const standin_counts c = standin_count(on[0].desk);
    assert_int_equal(d->host_entries > 0, !runs[i].on_device);
    if (runs[i].stays) assert_int_equal(c.migrations, 0);
    close_model(&on[0]);
    close_model(&on[1]);
  }
}

/* ---- refused observations ----------------------------------------------------------------------*/

/* Step 1 observes a NaN or Inf: the step or ng_sync names the layer. The weights and the average stay. */
static void a_refused_observation_names_its_layer(void **state) {
  static const struct {
    const char *method, *update;
    int layer, kind; /* kind 0: the input, 1: the output gradient */
    float value;
    const char *text;
  } refused[] = {{"method=eva", "sgd", 0, 0, NAN, "layer 'a': its inputs"},
                 {"method=eva", "adamw", 1, 1, INFINITY, "layer 'b': its output gradients"},
                 {"method=eva; clip=norm; clip_bound=1", "sgd", 1, 0, INFINITY, "'b'"},
                 {"method=eva", "gradient", 2, 1, NAN, "'c'"},
                 {"method=natgrad", "sgd", 0, 1, NAN, "layer 'a': its output gradients"},
                 {"method=natgrad", "sgd", 2, 0, INFINITY, "layer 'c': its inputs"},
                 {"method=natgrad; output_factor=diagonal", "sgd", 1, 1, NAN, "'b'"},
                 {"method=natgrad; output_factor=diagonal", "gradient", 2, 1, NAN, "'c'"},
                 {"method=natgrad; spatial=full", "sgd", 1, 0, NAN, "'b'"},
                 {"method=kaisa; solve_period=1", "gradient", 1, 0, -INFINITY, "'b'"}};
  for (size_t n = 0; n < sizeof refused / sizeof refused[0]; n++) {
    const int at = refused[n].layer, kind = refused[n].kind;
    char options[100];
    (void)snprintf(options, sizeof options, "%s; update=%s", refused[n].method, refused[n].update);
    model m;
    rng r = {29};
    float was[LAYERS][MOST], is[MOST], average[2];
    open_model(&m, true, options, &r);
    observe(&m, &r);
    fixture_ok(&m.f, step(&m, refused[n].update));
    fixture_ok(&m.f, ng_sync(m.f.p));
    const ng_stat_part *part = m.f.p->block[at]->stat[kind].part;
    for (int i = 0; i < LAYERS; i++) {
      read_array(&m, m.weight[i][0], count(i, 0), was[i]);
    }
    read_array(&m, part->average, 1, &average[0]);
    draw_observed(&m, &r);
    /* the first number in every other row, the last one in the others */
    float *spoilt = m.observed[at][kind] + (n % 2 == 0 ? observed_count(at, kind) - 1 : 0);
    assert_null(dv_copy(m.desk, spoilt, &refused[n].value, sizeof *spoilt));
    observe_drawn(&m);
    ng_status st = step(&m, refused[n].update);
    if (st == NG_OK) st = ng_sync(m.f.p);
    fixture_fails(&m.f, st, NG_SKIPPED, refused[n].text);
    for (int i = 0; i < LAYERS; i++) {
      read_array(&m, m.weight[i][0], count(i, 0), is);
      assert_memory_equal(was[i], is, (size_t)count(i, 0) * sizeof *is);
    }
    read_array(&m, part->average, 1, &average[1]);
    assert_true(average[0] == average[1]);
    assert_int_equal(m.f.p->skipped, 1);
    observe(&m, &r);
    fixture_ok(&m.f, step(&m, refused[n].update));
    fixture_ok(&m.f, ng_sync(m.f.p));
    close_model(&m);
  }
}

/* ---- failures --------------------------------------------------------------------------------*/

/* Call number `after` of a kind fails in the second step: the step fails with the text, and all weights are as before. Later calls
 * fail, too. If the step has fewer calls, the step succeeds. */
static void fail_in_second_step(const char *options, standin_failure what, const char *text,
                                int64_t after, bool expect_failure) {
  model m;
  rng r = {13};
  float was[MOST], is[MOST];
  open_model(&m, true, options, &r);
  observe(&m, &r);
  fixture_ok(&m.f, step(&m, "sgd"));
  observe(&m, &r);
  assert_null(dv_wait(m.desk));
  standin_fail(m.desk, what, after);
  read_array(&m, m.weight[2][0], count(2, 0), was);
  ng_status st = step(&m, "sgd");
  if (st == NG_OK) st = ng_sync(m.f.p);
  read_array(&m, m.weight[2][0], count(2, 0), is);
  assert_int_equal(st != NG_OK, expect_failure);
  if (expect_failure) {
    fixture_fails(&m.f, st, NG_ERR_DEVICE, text);
    assert_memory_equal(was, is, (size_t)count(2, 0) * sizeof *is);
    fixture_fails(&m.f, step(&m, "sgd"), NG_ERR_COMM, "failed before");
  }
  close_model(&m);
}
static void failures_of_the_device_change_no_weight(void **state) {
  const char *options = "method=eva; update=sgd; clip=norm; clip_bound=1";
  const char *fused = "method=eva; update=sgd";
  const standin_counts plan = plan_eva_step();
  const int64_t launches = plan.launches - 4 * LAYERS; /* without the observations */
  const int64_t at[] = {0, 1, launches / 2, launches - 1, launches};
  for (int i = 0; i < 5; i++) {
    fail_in_second_step(options, STANDIN_LAUNCH, "a launch fails on demand", at[i],
                        at[i] < launches);
    fail_in_second_step(fused, STANDIN_LAUNCH, "a launch fails on demand", i, i < 4);
  }
  for (int64_t k = 0; k <= plan.waits; k++) {
    fail_in_second_step(options, STANDIN_WAIT, "a wait fails on demand", k, k < plan.waits);
    fail_in_second_step(fused, STANDIN_WAIT, "a wait fails on demand", k, k < 1);
  }
}

/* The host adds squares as soon as a basis exists. */
static void ekfac_refuses_memory_of_the_device(void **state) {
  model m;
  rng r = {31};
  open_model(&m, true, "method=ekfac; update=sgd", &r);
  observe(&m, &r);
  fixture_ok(&m.f, step(&m, "sgd"));
  observe(&m, &r);
  fixture_fails(&m.f, step(&m, "sgd"), NG_ERR_DEVICE, "cannot access an observed array");
  close_model(&m);
}

/* Allocation number `after` fails in ng_ready, for every allocation: the object can be destroyed. */
static void failed_allocations_are_reported(void **state) {
  for (int64_t after = 0;; after++) {
    model m;
    rng r = {17};
    open_context(&m, true, "method=eva; update=sgd");
    for (int i = 0; i < LAYERS; i++) {
      add_layer(&m, i, &r);
    }
    /* its averages exceed the blocks that are cut from a page */
    fixture_ok(&m.f, ng_add_linear(m.f.p, "large", 1 << 16, 2, 0, NULL));
    standin_fail(m.desk, STANDIN_ALLOCATION, after);
    const ng_status st = ng_ready(m.f.p);
    if (st != NG_OK) fixture_fails(&m.f, st, NG_ERR_NOMEM, "no memory");
    standin_fail(m.desk, STANDIN_NO_FAILURE, 0);
    close_model(&m);
    if (st != NG_OK) continue;
    assert_true(after > 0);
    break;
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(steps_equal_ref),
      cmocka_unit_test(a_refused_observation_names_its_layer),
      cmocka_unit_test(failures_of_the_device_change_no_weight),
      cmocka_unit_test(ekfac_refuses_memory_of_the_device),
      cmocka_unit_test(failed_allocations_are_reported),
  };
  return cmocka_run_group_tests_name("cuda", tests, NULL, NULL);
}
