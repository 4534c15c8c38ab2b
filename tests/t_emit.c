/* t_emit.c: ng_step_sgd and ng_step_adamw against their formulas in double (oracle.c), and against
 * ng_step followed by the formula.
 *
 * The direction d = nu PD does not depend on weights, so a second preconditioner that only writes
 * gradients sees the same data and supplies d; tensors without curvature have d = their gradient.
 *
 * Tolerance: 1e-6 of |w| + lr |update|, sixteen units 2^-24: an update is a dozen f32 operations,
 * and moments carry their rounding over a few steps.
 */
#include "plane.h"
#include "fixture.h"
#include "oracle.h"
#include "scene.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const double tolerance = 1e-6;

enum { SLOTS = 5, STEPS = 4 };

/* A family that keeps PD and hands over rows, and one that has the sink make PD of the gradient. */
static const char *method = "natgrad";

/* What the model holds: a linear layer with bias, a convolution with bias, and a tensor. */
static const int64_t slot_rows[SLOTS] = {4, 1, 3, 1, 1}, slot_cols[SLOTS] = {5, 4, 18, 3, 7};
static const int slot_index[SLOTS] = {0, 0, 1, 1, 2}, slot_param[SLOTS] = {0, 1, 0, 1, 0};

typedef struct model {
  fixture f;
  int64_t pad;
  ng_dtype type; /* of weights */
  float *grad[SLOTS];
  void *weight[SLOTS];
} model;

static int64_t count(int k) { return slot_rows[k] * slot_cols[k]; }

static float half_value(uint16_t h) {
  uint32_t u = (uint32_t)h << 16;
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}

static double weight(const model *m, int k, int64_t i) {
  int64_t at = i / slot_cols[k] * (slot_cols[k] + m->pad) + i % slot_cols[k];
  if (m->type == NG_BF16) return (double)half_value(((const uint16_t *)m->weight[k])[at]);
  return (double)((const float *)m->weight[k])[at];
}

static void weight_set(model *m, int k, int64_t i, float x) {
  int64_t at = i / slot_cols[k] * (slot_cols[k] + m->pad) + i % slot_cols[k];
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  if (m->type == NG_BF16)
    ((uint16_t *)m->weight[k])[at] = (uint16_t)(u >> 16);
  else
    ((float *)m->weight[k])[at] = x;
}

static void check(const model *m, ng_status st) { fixture_ok(&m->f, st); }

static void *room(int64_t bytes) {
  void *p = calloc(1, (size_t)bytes);
  assert_non_null(p);
  return p;
}

static void model_open(model *m, const char *update, ng_dtype type, int64_t pad, bool bind_all) {
  char set[128];
  int32_t index;
  memset(m, 0, sizeof *m);
  m->type = type;
  m->pad = pad;
  (void)snprintf(set, sizeof set, "method=%s update=%s kl_clip=0.01%s", method, update,
                 strcmp(method, "natgrad") == 0 ? " solve_period=2" : "");
  check(m, fixture_open(&m->f, set, &(fixture_how){.threads = 2}));
  check(m, ng_add_linear(m->f.p, "fc", 5, 4, 1, &index));
  check(m, plane_conv2d(m->f.p, "conv", 2, 3, 3, 1, 1, 4, 4, 1, &index));
  check(m, ng_add_tensor(m->f.p, "gamma", 7, &index));
  rng r = {test_seed()};
  for (int k = 0; k < SLOTS; k++) {
    plane g = plane_of(m->grad[k] = room(count(k) * 4), slot_rows[k], slot_cols[k], NG_F32);
    plane w = g;
    w.row_stride += pad;
    w.dtype = type;
    w.data = m->weight[k] = room(slot_rows[k] * w.row_stride * ng_dtype_size(type));
    for (int64_t i = 0; i < count(k); i++)
      weight_set(m, k, i, (float)rng_value(&r));
    check(m, fixture_bind(&m->f, slot_index[k], (ng_param)slot_param[k], &g,
                          bind_all || k < SLOTS - 1 ? &w : NULL));
  }
  check(m, ng_ready(m->f.p));
}

static void model_close(model *m) {
  fixture_close(&m->f);
  for (int k = 0; k < SLOTS; k++) {
    free(m->grad[k]);
    free(m->weight[k]);
  }
}

/* Step t's observations and gradients: the same for every model. */
static void show(model *m, int t) {
  rng r = {test_seed() + 1000 + (uint64_t)t};
  float a0[3 * 5], g0[3 * 4], a1[3 * 32], g1[3 * 48];
  float *arrays[] = {a0, g0, a1, g1};
  const int64_t cols[] = {5, 4, 32, 48};
  check(m, fixture_begin(&m->f, 3));
  for (int k = 0; k < 4; k++) {
    for (int64_t i = 0; i < 3 * cols[k]; i++)
      arrays[k][i] = (float)rng_value(&r);
    plane v = k < 2 ? plane_of(arrays[k], 3, cols[k], NG_F32)
                    : plane_images(arrays[k], PLANE_NCHW, 3, cols[k] / 16, 4, 4, NG_F32);
    check(m, fixture_observe(&m->f, k / 2, k % 2 ? NULL : &v, k % 2 ? &v : NULL));
  }
  for (int k = 0; k < SLOTS; k++) {
    for (int64_t i = 0; i < count(k); i++)
      m->grad[k][i] = (float)rng_value(&r);
  }
}

typedef struct follow {
  double *w[SLOTS], *m[SLOTS], *v[SLOTS];
  double *sum[SLOTS]; /* the first moment, had every term been positive */
} follow;

static void follow_open(follow *f, const model *m) {
  for (int k = 0; k < SLOTS; k++) {
    f->w[k] = room(count(k) * 8);
    f->m[k] = room(count(k) * 8);
    f->v[k] = room(count(k) * 8);
    f->sum[k] = room(count(k) * 8);
    for (int64_t i = 0; i < count(k); i++)
      f->w[k][i] = weight(m, k, i);
  }
}

static void follow_close(follow *f) {
  for (int k = 0; k < SLOTS; k++) {
    free(f->w[k]);
    free(f->m[k]);
    free(f->v[k]);
    free(f->sum[k]);
  }
}

/* Weights after step t (from 1) of the fused model against the formula; `half` is half a unit in
 * the last place of the weights' type. */
static void compare(const char *name, const model *m, follow *f, const model *plain, int64_t t,
                    const ng_sgd *sgd, const ng_adamw *adamw, double half) {
  for (int k = 0; k < SLOTS; k++) {
    int64_t n = count(k);
    double *d = room(n * 8), *before = room(n * 8);
    for (int64_t i = 0; i < n; i++) {
      d[i] = (double)plain->grad[k][i];
      before[i] = f->w[k][i];
    }
    if (sgd)
      oracle_sgd(sgd, t, n, d, f->w[k], f->m[k]);
    else
      oracle_adamw(adamw, t, n, d, f->w[k], f->m[k], f->v[k]);
    for (int64_t i = 0; i < n; i++) {
      double x = weight(m, k, i), y = f->w[k][i];
      double *sum = &f->sum[k][i], size;
      if (sgd) {
        *sum = sgd->momentum * *sum + fabs(d[i]) + sgd->weight_decay * fabs(before[i]);
        size = sgd->lr * (1 + sgd->momentum) * *sum;
      } else {
        *sum = adamw->beta1 * *sum + (1 - adamw->beta1) * fabs(d[i]);
        double root = sqrt(f->v[k][i] / (1 - pow(adamw->beta2, (double)t))) + adamw->eps;
        size = adamw->lr * *sum / (1 - pow(adamw->beta1, (double)t)) / root;
      }
      size += fabs(before[i]);
      if (!(fabs(x - y) <= tolerance * size + half * fabs(y))) {
        fail_msg("%s: step %d slot %d entry %d: %.9g, should be %.9g", name, (int)t, k, (int)i, x,
                 y);
      }
      if (half > 0) f->w[k][i] = x; /* what the type kept */
    }
    free(d);
    free(before);
  }
}

static void run_update(const char *name, const ng_sgd *sgd, const ng_adamw *adamw, ng_dtype type,
                       int64_t pad) {
  model m, plain;
  follow f;
  double lr = sgd ? sgd->lr : adamw->lr;
  model_open(&m, sgd ? "sgd" : "adamw", type, pad, true);
  model_open(&plain, "gradient", NG_F32, 0, true);
  follow_open(&f, &m);
  for (int t = 1; t <= STEPS; t++) {
    show(&m, t);
    show(&plain, t);
    check(&plain, ng_step(plain.f.p, lr));
    check(&m, sgd ? ng_step_sgd(m.f.p, sgd, 1) : ng_step_adamw(m.f.p, adamw, 1));
    /* bf16: eight bits, so half a unit is 2^-9 of the next power of two above |y|: 2^-8 |y| */
    compare(name, &m, &f, &plain, t, sgd, adamw, type == NG_BF16 ? 0x1p-8 : 0);
    ng_report x = {.struct_size = sizeof x}, y = x;
    check(&m, ng_report_read(m.f.p, &x));
    check(&plain, ng_report_read(plain.f.p, &y));
    assert_true(x.clip == y.clip && x.steps == t);
  }
  follow_close(&f);
  model_close(&m);
  model_close(&plain);
}

static ng_sgd sgd_of(double momentum, double dampening, double decay, int nesterov, int decoupled) {
  ng_sgd s = fixture_sgd(0.1, momentum);
  s.dampening = dampening;
  s.weight_decay = decay;
  s.nesterov = nesterov;
  s.decoupled = decoupled;
  return s;
}

/* Every combination that torch.optim.SGD allows (nesterov needs momentum and no dampening). */
static void test_sgd(void **state) {
  (void)state;
  for (int k = 0; k < 32; k++) {
    double momentum = k & 1 ? 0.9 : 0, dampening = k & 2 ? 0.25 : 0, decay = k & 4 ? 0.05 : 0;
    int nesterov = k & 8 ? 1 : 0, decoupled = k & 16 ? 1 : 0;
    if (nesterov && (momentum == 0 || dampening > 0)) continue;
    if (momentum == 0 && dampening > 0) continue;
    ng_sgd s = sgd_of(momentum, dampening, decay, nesterov, decoupled);
    char name[96];
    snprintf(name, sizeof name, "sgd momentum %g dampening %g decay %g nesterov %d decoupled %d",
             momentum, dampening, decay, nesterov, decoupled);
    run_update(name, &s, NULL, NG_F32, k % 3);
  }
}

static void test_adamw(void **state) {
  (void)state;
  for (int k = 0; k < 4; k++) {
    ng_adamw a;
    ng_adamw_init(&a, sizeof a);
    a.lr = k == 3 ? 1 : 0.01;
    a.beta1 = k == 1 ? 0 : 0.9;
    a.beta2 = k == 1 ? 0.5 : 0.999;
    a.eps = k == 2 ? 0.1 : 1e-8;
    a.weight_decay = k == 0 ? 0 : 0.1;
    run_update("adamw", NULL, &a, NG_F32, k % 2);
  }
}

static void test_bf16_weights(void **state) {
  (void)state;
  ng_sgd s = sgd_of(0.9, 0, 0.01, 1, 0);
  ng_adamw a;
  ng_adamw_init(&a, sizeof a);
  a.lr = 0.01;
  run_update("sgd in bf16", &s, NULL, NG_BF16, 1);
  run_update("adamw in bf16", NULL, &a, NG_BF16, 0);
}

/* lr = 0: the moments move, weights keep their bits; then a step with lr shows what they gathered.
 */
static void test_zero_lr(void **state) {
  (void)state;
  model m, plain;
  follow f;
  ng_sgd s = sgd_of(0.9, 0.5, 0, 0, 0);
  model_open(&m, "sgd", NG_F32, 2, true);
  model_open(&plain, "gradient", NG_F32, 0, true);
  follow_open(&f, &m);
  for (int t = 1; t <= 3; t++) {
    s.lr = t < 3 ? 0 : 0.1;
    show(&m, t);
    show(&plain, t);
    check(&plain, ng_step(plain.f.p, s.lr));
    check(&m, ng_step_sgd(m.f.p, &s, 1));
    for (int k = 0; t < 3 && k < SLOTS; k++) {
      for (int64_t i = 0; i < count(k); i++)
        assert_true(weight(&m, k, i) == f.w[k][i]);
    }
    compare("lr = 0", &m, &f, &plain, t, &s, NULL, 0);
  }
  follow_close(&f);
  model_close(&m);
  model_close(&plain);
}

/* Nothing beside the slots is written: the pad of a weight's rows keeps its bits. */
static void test_pads(void **state) {
  (void)state;
  model m;
  ng_sgd s = sgd_of(0.9, 0, 0.1, 0, 1);
  model_open(&m, "sgd", NG_F32, 3, true);
  for (int k = 0; k < SLOTS; k++) {
    for (int64_t i = 0; i < slot_rows[k] * (slot_cols[k] + 3); i++) {
      if (i % (slot_cols[k] + 3) >= slot_cols[k]) ((float *)m.weight[k])[i] = NAN;
    }
  }
  show(&m, 1);
  check(&m, ng_step_sgd(m.f.p, &s, 1));
  for (int k = 0; k < SLOTS; k++) {
    for (int64_t i = 0; i < slot_rows[k] * (slot_cols[k] + 3); i++) {
      bool pad = i % (slot_cols[k] + 3) >= slot_cols[k];
      assert_true(isnan(((float *)m.weight[k])[i]) == pad);
    }
  }
  model_close(&m);
}

/* The option says which step will be called; a weight that is not bound is named. */
static void test_refusals(void **state) {
  (void)state;
  model m;
  ng_sgd s = sgd_of(0.9, 0, 0, 0, 0);
  ng_adamw a;
  ng_adamw_init(&a, sizeof a);
  a.lr = 0.01;
  model_open(&m, "sgd", NG_F32, 0, true);
  show(&m, 1);
  double before = weight(&m, 0, 0);
  assert_int_equal(ng_step_adamw(m.f.p, &a, 1), NG_ERR_STATE);
  assert_int_equal(ng_step(m.f.p, 0.1), NG_ERR_STATE);
  assert_true(weight(&m, 0, 0) == before);
  check(&m, ng_step_sgd(m.f.p, &s, 1));
  model_close(&m);
  model_open(&m, "gradient", NG_F32, 0, true);
  show(&m, 1);
  assert_int_equal(ng_step_sgd(m.f.p, &s, 1), NG_ERR_STATE);
  check(&m, ng_step(m.f.p, 0.1));
  model_close(&m);
  model_open(&m, "adamw", NG_F32, 0, false);
  show(&m, 1);
  before = weight(&m, 0, 0);
  assert_int_equal(ng_step_adamw(m.f.p, &a, 1), NG_ERR_STATE);
  assert_non_null(strstr(ng_last_error(m.f.ctx), "gamma"));
  assert_true(weight(&m, 0, 0) == before);
  model_close(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_sgd),          cmocka_unit_test(test_adamw),
      cmocka_unit_test(test_bf16_weights), cmocka_unit_test(test_zero_lr),
      cmocka_unit_test(test_pads),         cmocka_unit_test(test_refusals),
  };
  const int failed = cmocka_run_group_tests_name("emit, kronecker", tests, NULL, NULL);
  method = "eva-natgrad";
  return failed + cmocka_run_group_tests_name("emit, rank one", tests, NULL, NULL);
}
