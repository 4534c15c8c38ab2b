/* t_cuda_eva.c: Eva with linalg = cuda on the stand-in: the work of observations and steps equals plans from shapes, and the fused
 * step (step/fused.c) equals `ref`, reports late, and can be captured. */
#include "unit_test.h"

#include <math.h>
#include <string.h>

#include "cuda_model.h"

/* ---- work of a step --------------------------------------------------------------------------*/

/* The same with the step in four launches without a wait. The first step waits and uploads the lists. */
static standin_counts plan_fused_step(int t) {
  standin_counts c = {.launches = 4 + 2 * 2 * LAYERS, .zeros = 2 * LAYERS};
  int64_t parameters = 0;
  for (int i = 0; i < LAYERS; i++) {
    parameters += 1 + shape[i].bias;
  }
  if (t > 0) return c;
  c.waits = 1;
  c.copies = 1;
  c.bytes += staged(1, sizeof(dv_eva)) + staged(2 * LAYERS, sizeof(dv_mean)) +
             staged(LAYERS, sizeof(dv_layer)) + staged(parameters, sizeof(dv_measure)) +
             staged(parameters, sizeof(dv_direction)) + staged(parameters, sizeof(dv_update)) +
             cut_of(parameters) + 2 * staged(parameters, sizeof(int32_t));
  return c;
}

static void check_work(bool fused) {
  model m;
  rng r = {11};
  open_model(&m, true,
             fused ? "method=eva; update=sgd" : "method=eva; update=sgd; clip=norm; clip_bound=1",
             &r);
  for (int t = 0; t < STEPS; t++) {
    const standin_counts plan = fused ? plan_fused_step(t) : plan_eva_step();
    draw_observed(&m, &r);
    assert_null(dv_wait(m.desk));
    const standin_counts start = standin_count(m.desk);
    observe_drawn(&m);
    fixture_ok(&m.f, step(&m, "sgd"));
    const int64_t waits = standin_count(m.desk).waits - start.waits;
    assert_null(dv_wait(m.desk));
    const standin_counts is = standin_count(m.desk);
    assert_int_equal(is.launches - start.launches, plan.launches);
    assert_int_equal(is.zeros - start.zeros, plan.zeros);
    assert_int_equal(is.copies - start.copies, plan.copies);
    assert_int_equal(is.bytes - start.bytes, plan.bytes);
    assert_int_equal(waits, plan.waits);
    assert_int_equal(is.migrations, start.migrations);
  }
  close_model(&m);
}
static void a_step_does_the_planned_work(void **state) { check_work(false); }
static void a_fused_step_does_the_planned_work(void **state) { check_work(true); }

/* ---- the fused step --------------------------------------------------------------------------*/

/* Step 1 has a NaN in a gradient: all weights stay, the device counts 2 of 3 updates, and a later step returns the status if the
 * device is done, otherwise ng_sync. */
static void a_skipped_step_is_reported_later(void **state) {
  for (int done = 0; done < 2; done++) {
    model m;
    rng r = {19};
    float was[MOST], is[MOST];
    open_model(&m, true, "method=eva; update=adamw", &r);
    for (int t = 0; t < STEPS; t++) {
      const float x = t == 1 ? NAN : 0.25f;
      observe(&m, &r);
      read_array(&m, m.weight[2][0], count(2, 0), was);
      assert_null(dv_copy(m.desk, m.gradient[1][0], &x, sizeof x));
      const ng_status st = step(&m, "adamw");
      if (done == 1) assert_null(dv_wait(m.desk));
      assert_int_equal(st, t == 2 ? NG_SKIPPED : NG_OK);
      read_array(&m, m.weight[2][0], count(2, 0), is);
      assert_int_equal(memcmp(was, is, (size_t)count(2, 0) * sizeof *is) == 0, t == 1);
      if (done == 0 && t == 1) break;
    }
    assert_int_equal(ng_sync(m.f.p), done == 0 ? NG_SKIPPED : NG_OK);
    fixture_ok(&m.f, ng_sync(m.f.p));
    assert_int_equal(m.f.p->skipped, 1);
    assert_int_equal(m.f.p->steps, 1 + done);
    assert_int_equal(*m.f.p->step->fused.lists.updates, 1 + done);
    close_model(&m);
  }
}

/* In a capture of a CUDA graph the stand-in refuses allocations, waits and copies to the host. */
static void observations_and_a_fused_step_can_be_captured(void **state) {
  static const char *const options[2] = {"method=eva; update=sgd",
                                         "method=eva; update=sgd; clip=norm; clip_bound=1"};
  for (int i = 0; i < 2; i++) {
    model m;
    rng r = {23};
    open_model(&m, true, options[i], &r);
    observe(&m, &r);
    fixture_ok(&m.f, step(&m, "sgd"));
    draw_observed(&m, &r);
    assert_null(dv_wait(m.desk));
    assert_null(dv_graph_begin(m.desk));
    observe_drawn(&m);
    const ng_status st = step(&m, "sgd");
    assert_null(dv_graph_end(m.desk));
    if (i == 0) fixture_ok(&m.f, st);
    if (i == 0) fixture_ok(&m.f, ng_sync(m.f.p));
    if (i == 1) fixture_fails(&m.f, st, NG_ERR_DEVICE, "a wait in a capture");
    close_model(&m);
  }
}

/* More parameters than threads of a warp, more layers than warps of a block, two groups. */
static void compare_many_parameters(bool adamw) {
  enum { MANY = 40, EACH = 3 };
  model on[2];
  float x[2][MANY * EACH];
  ng_sgd sgd[2] = {fixture_sgd(0.1, 0.0), fixture_sgd(0.03, 0.5)};
  sgd[0].dampening = sgd[1].dampening = 0.25;
  ng_adamw by[2];
  for (int i = 0; i < 2; i++) {
    ng_adamw_init(&by[i], sizeof by[i]);
    by[i].lr = 0.01 * (i + 1);
  }
  for (int k = 0; k < 2; k++) {
    rng r = {37};
    open_context(&on[k], k == 0,
                 adamw ? "method=eva; update=adamw; kl_clip=1e-4"
                       : "method=eva; update=sgd; kl_clip=1e-4");
    fixture *f = &on[k].f;
    for (int i = 0; i < LAYERS; i++) {
      add_layer(&on[k], i, &r);
    }
    float *w = random_array(&on[k], &r, MANY * EACH), *g = random_array(&on[k], &r, MANY * EACH);
    for (int32_t i = 0, at; i < MANY; i++) {
      const char name[3] = {'t', (char)('0' + i), '\0'};
      ng_array a = ng_array_vector(w + EACH * i, EACH, NG_F32), b = a;
      b.data = g + EACH * i;
      a.mem = b.mem = k == 0 ? NG_DEVICE : NG_HOST;
      fixture_ok(f, ng_add_tensor(f->p, name, EACH, &at));
      fixture_ok(f, ng_bind(f->p, &(ng_binding){at, NG_WEIGHT, &b, &a, NG_HOLD}, 1));
      fixture_ok(f, ng_set_group(f->p, at, NG_WEIGHT, i % 2));
    }
    fixture_ok(f, ng_ready(f->p));
    for (int t = 0; t < STEPS; t++) {
      observe(&on[k], &r);
      fixture_ok(f, adamw ? ng_step_adamw(f->p, by, 2) : ng_step_sgd(f->p, sgd, 2));
    }
    assert_int_equal(f->p->step->fused.launched, k == 0 ? STEPS : 0);
    fixture_ok(f, ng_sync(f->p));
    read_array(&on[k], w, MANY * EACH, x[k]);
    const float bad = NAN;
    write_array(&on[k], g + MANY * EACH - 1, 1, &bad);
    observe(&on[k], &r);
    ng_status st = adamw ? ng_step_adamw(f->p, by, 2) : ng_step_sgd(f->p, sgd, 2);
    if (st == NG_OK) st = ng_sync(f->p);
    fixture_fails(f, st, NG_SKIPPED, "finite");
  }
  expect_equal(&on[0], &on[1], "many parameters");
  for (int i = 0; i < MANY * EACH; i++) {
    assert_true(fabsf(x[0][i] - x[1][i]) <= 1e-6f);
  }
  close_model(&on[0]);
  close_model(&on[1]);
}
static void many_parameters_equal_ref(void **state) {
  compare_many_parameters(false);
  compare_many_parameters(true);
}

/* Step 1 has a gradient of layer 2 that is parallel to g a': its part in PD cancels, so the update is in double (dv_layer,
 * ng_direction.uses_double). Products in f32 have errors of 1e6 2^-24. */
static void a_parallel_gradient_is_updated_in_double(void **state) {
  const int64_t p = shape[2].in, n = count(2, 0);
  model on[2];
  for (int k = 0; k < 2; k++) {
    rng r = {41};
    float a[MOST], g[MOST], D[MOST];
    open_model(&on[k], k == 0, "method=eva; update=sgd; damping=1e-6; clip=none", &r);
    draw_observed(&on[k], &r);
    for (int64_t i = 0; i < n; i++) {
      D[i] = 0.0f;
    }
    for (int t = 0; t < 2; t++) {
      write_array(&on[k], on[k].gradient[2][0], n, D);
      observe_drawn(&on[k]);
      fixture_ok(&on[k].f, step(&on[k], "sgd"));
      fixture_ok(&on[k].f, ng_sync(on[k].f.p));
      const ng_stat *s = on[k].f.p->block[2]->stat;
      read_array(&on[k], s[0].part->average, p, a);
      read_array(&on[k], s[1].part->average, shape[2].out, g);
      for (int64_t i = 0; i < n; i++) {
        D[i] = g[i / p] * a[i % p];
      }
    }
  }
  expect_equal(&on[0], &on[1], "parallel");
  close_model(&on[0]);
  close_model(&on[1]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_step_does_the_planned_work),
      cmocka_unit_test(a_fused_step_does_the_planned_work),
      cmocka_unit_test(a_skipped_step_is_reported_later),
      cmocka_unit_test(observations_and_a_fused_step_can_be_captured),
      cmocka_unit_test(many_parameters_equal_ref),
      cmocka_unit_test(a_parallel_gradient_is_updated_in_double),
  };
  return cmocka_run_group_tests_name("cuda eva", tests, NULL, NULL);
}
