/* t_groups.c: the fused updates, ng_step_sgd and ng_step_adamw, and their parameter groups: each parameter uses the
 * numbers of its group, the kl clip uses the learning rate of each layer's weight.  t_groups_ranks.c tests wrong
 * numbers, and groups on several ranks.
 *
 * The model has two layers with biases and a tensor.  A second model without a fused update writes the directions.
 *
 * Tolerance: 2e-6 (1 + |w|) after four updates of a dozen operations in f32 (2^-24 each), with values and steps around
 * 1; in bf16 half a unit more, 2^-8 |w|.  Wide rows are compared after each update: 3e-7 (1 + |w|). */
#include "unit_test.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "element.h"
#include "fixture.h"
#include "oracle.h"
#include "test_case.h"

enum { B = 6, LAYERS = 2, SLOTS = 5, STEPS = 4, GROUPS = 3, NARROW = 46 };

/* The weight and bias of each layer, then the tensor.  `wide` has rows longer than a tile. */
typedef struct shape {
  int64_t rows[SLOTS], cols[SLOTS];
} shape;
static const shape narrow = {{4, 1, 3, 1, 1}, {5, 4, 4, 3, 7}},
                   wide = {{3, 1, 2, 1, 1}, {20011, 3, 3, 2, 40000}};
static const int32_t index_of[SLOTS] = {0, 0, 1, 1, 2};
static const ng_param param_of[SLOTS] = {NG_WEIGHT, NG_BIAS, NG_WEIGHT, NG_BIAS, NG_WEIGHT};

typedef struct model {
  fixture f;
  const shape *s;
  ng_dtype grads, weights;
  int64_t pad; /* between rows of weights, NaN */
  void *grad[SLOTS], *weight[SLOTS];
  void *memory; /* one allocation: all gradients, then all weights */
} model;

static int64_t weight_count(const model *m, int k) { return m->s->rows[k] * m->s->cols[k]; }

/* Return the index in memory of element i of a weight. */
static int64_t weight_at(const model *m, int k, int64_t i) {
  const int64_t cols = m->s->cols[k];
  return i / cols * (cols + m->pad) + i % cols;
}

static double read_weight(const model *m, int k, int64_t i) {
  return (double)get(m->weight[k], m->weights, weight_at(m, k, i));
}

/* Return a multiple of 1/128 in [-1, 1], exact in bf16. */
static float value_at(int step, int what, int64_t i) {
  return rintf(128 * sinf((float)(1 + 37 * step + 11 * what) + 2.3f * (float)i)) / 128;
}

static void allocate_arrays(model *m) {
  const int64_t weight = ng_dtype_size(m->weights), grad = ng_dtype_size(m->grads);
  int64_t bytes = 0;
  for (int k = 0; k < SLOTS; k++)
    bytes += weight_count(m, k) * grad + m->s->rows[k] * (m->s->cols[k] + m->pad) * weight;
  char *at = m->memory = must_calloc((size_t)bytes);
  for (int k = 0; k < SLOTS; at += weight_count(m, k++) * grad)
    m->grad[k] = at;
  for (int k = 0; k < SLOTS; k++) {
    m->weight[k] = at;
    const int64_t n = m->s->rows[k] * (m->s->cols[k] + m->pad);
    for (int64_t i = 0; i < n; i++)
      put(at, m->weights, i, (double)NAN);
    for (int64_t i = 0; i < weight_count(m, k); i++)
      put(at, m->weights, weight_at(m, k, i), (double)value_at(0, k, i));
    at += n * weight;
  }
}

/* Before the call the caller sets s, grads, weights and pad. */
static ng_status open_layout(model *m, const char *set, const int32_t group[SLOTS],
                             const fixture_how *how) {
  int32_t index;
  allocate_arrays(m);
  ng_status st = fixture_open(&m->f, set, how);
  for (int l = 0; l < LAYERS && st == NG_OK; l++) {
    const char *name = l == 0 ? "fc1" : "fc2";
    st = ng_add_linear(m->f.p, name, m->s->cols[2 * l], m->s->rows[2 * l], 1, &index);
  }
  if (st == NG_OK) st = ng_add_tensor(m->f.p, "gamma", weight_count(m, SLOTS - 1), &index);
  for (int k = 0; k < SLOTS && st == NG_OK; k++) {
    const plane g = plane_of(m->grad[k], m->s->rows[k], m->s->cols[k], m->grads);
    plane w = plane_of(m->weight[k], m->s->rows[k], m->s->cols[k], m->weights);
    w.row_stride += m->pad;
    st = fixture_bind(&m->f, index_of[k], param_of[k], &g, &w);
    if (st == NG_OK && group != NULL) st = ng_set_group(m->f.p, index_of[k], param_of[k], group[k]);
  }
  return st == NG_OK ? ng_ready(m->f.p) : st;
}

static ng_status model_open(model *m, const char *set, const int32_t group[SLOTS],
                            const fixture_how *how) {
  *m = (model){.s = &narrow, .grads = NG_F32, .weights = NG_F32};
  return open_layout(m, set, group, how);
}

static void model_close(model *m) {
  fixture_close(&m->f);
  free(m->memory);
}

/* Observe the same samples on every rank. */
static ng_status model_observe(model *m, int step) {
  ng_status st = fixture_begin(&m->f, B);
  for (int l = 0; l < LAYERS && st == NG_OK; l++) {
    const int64_t in = m->s->cols[2 * l], out = m->s->rows[2 * l];
    float *a = must_calloc(sizeof *a * (size_t)(B * (in + out))), *g = a + B * in;
    for (int64_t i = 0; i < B * in; i++)
      a[i] = value_at(step, 10 + l, i);
    for (int64_t i = 0; i < B * out; i++)
      g[i] = value_at(step, 20 + l, i) / B;
    const plane x = plane_of(a, B, in, NG_F32), y = plane_of(g, B, out, NG_F32);
    st = fixture_observe(&m->f, l, &x, &y);
    free(a);
  }
  for (int k = 0; k < SLOTS; k++) {
    for (int64_t i = 0; i < weight_count(m, k); i++)
      put(m->grad[k], m->grads, i, (double)value_at(step, 30 + k, i));
  }
  return st;
}

/* Numbers of an update, SGD or AdamW. */
typedef struct numbers {
  bool adamw;
  ng_sgd sgd[GROUPS];
  ng_adamw adam[GROUPS];
} numbers;

static ng_status model_step(model *m, const numbers *how, int32_t count) {
  return how->adamw ? ng_step_adamw(m->f.p, how->adam, count)
                    : ng_step_sgd(m->f.p, how->sgd, count);
}

/* Group 0: the first weight; 1: the biases and the tensor; 2: the second weight. */
static const int32_t three[SLOTS] = {0, 1, 2, 1, 1};

/* Every combination that torch.optim.SGD allows: nesterov needs momentum and no dampening.  AdamW of four kinds. */
static numbers numbers_from(bool adamw, int first) {
  static const int legal[16] = {0, 4, 16, 20, 1, 3, 5, 7, 9, 13, 17, 19, 21, 23, 25, 29};
  numbers n = {.adamw = adamw};
  for (int g = 0; g < GROUPS; g++) {
    const int k = legal[(first + g) % 16], a = (first + g) % 4;
    n.sgd[g] = fixture_sgd(0.1 / (1 + g), k & 1 ? 0.9 : 0);
    n.sgd[g].dampening = k & 2 ? 0.25 : 0;
    n.sgd[g].weight_decay = k & 4 ? 0.05 : 0;
    n.sgd[g].nesterov = k & 8 ? 1 : 0;
    n.sgd[g].decoupled = k & 16 ? 1 : 0;
    ng_adamw_init(&n.adam[g], sizeof n.adam[g]);
    n.adam[g].lr = a == 3 ? 1 : 0.01;
    n.adam[g].beta1 = a == 1 ? 0 : 0.9;
    n.adam[g].beta2 = a == 1 ? 0.5 : 0.999;
    n.adam[g].eps = a == 2 ? 0.1 : 1e-8;
    n.adam[g].weight_decay = a == 0 ? 0 : 0.1;
  }
  return n;
}

#define PLAIN_SGD "method=natgrad update=sgd clip=none"

/* ---- formulas --------------------------------------------------------------------------------*/

typedef struct update_case {
  const char *method;
  numbers how;
  const shape *s;
  ng_dtype grads, weights;
  int64_t pad;
  bool still; /* lr is 0 in the first steps: moments move, weights keep their bits */
  bool decay_after;
} update_case;

/* Compare with the formulas of PyTorch.  In step 2 momentum without Nesterov is 0, so v = d. */
static void check_formula(const update_case *c) {
  char set[128], plain_set[128];
  model m = {.s = c->s, .grads = c->grads, .weights = c->weights, .pad = c->pad};
  model plain = {.s = c->s, .grads = NG_F32, .weights = NG_F32};
  double *w[SLOTS], *v[SLOTS], *s[SLOTS];
  numbers how = c->how;
  (void)snprintf(plain_set, sizeof plain_set, "method=%s clip=rescale", c->method);
  (void)snprintf(set, sizeof set, "%.99s update=%s%s", plain_set, how.adamw ? "adamw" : "sgd",
                 c->decay_after ? " decay_after=1" : "");
  fixture_ok(&m.f, open_layout(&m, set, three, &(fixture_how){.threads = c->s == &wide ? 3 : 0}));
  fixture_ok(&plain.f, open_layout(&plain, plain_set, NULL, NULL));
  for (int k = 0; k < SLOTS; k++) {
    w[k] = zeros(3 * weight_count(&m, k));
    v[k] = w[k] + weight_count(&m, k);
    s[k] = v[k] + weight_count(&m, k);
    for (int64_t i = 0; i < weight_count(&m, k); i++)
      w[k][i] = read_weight(&m, k, i);
  }
  for (int t = 1; t <= STEPS; t++) {
    const bool stays = c->still && t < 3;
    how.sgd[0].lr = stays ? 0 : c->how.sgd[0].lr;
    how.adam[0].lr = stays ? 0 : c->how.adam[0].lr;
    for (int g = 0; g < GROUPS; g++)
      how.sgd[g].momentum = t == 2 && !how.sgd[g].nesterov ? 0 : c->how.sgd[g].momentum;
    fixture_ok(&m.f, model_observe(&m, t));
    fixture_ok(&plain.f, model_observe(&plain, t));
    fixture_ok(&m.f, model_step(&m, &how, GROUPS));
    fixture_ok(&plain.f, ng_step(plain.f.p, 0.1));
    for (int k = 0; k < SLOTS; k++) {
      const int g = three[k];
      const ng_sgd *sgd = &how.sgd[g];
      const double keep = c->decay_after && sgd->decoupled ? 1 - sgd->lr * sgd->weight_decay : 1;
      const int64_t cols = c->s->cols[k], stride = cols + c->pad;
      for (int64_t i = 0; i < weight_count(&m, k); i++) {
        const double d = (double)((const float *)plain.grad[k])[i];
        if (how.adamw) {
          oracle_update_adamw(&how.adam[g], t, 1, &d, &w[k][i], &v[k][i], &s[k][i]);
        } else {
          ng_sgd used = *sgd; /* decay_after: w <- keep (w - lr u) */
          if (c->decay_after && sgd->decoupled) used.weight_decay = 0;
          oracle_update_sgd(&used, t, 1, &d, &w[k][i], &v[k][i]);
          w[k][i] *= keep;
        }
        const double x = read_weight(&m, k, i),
                     half = c->weights == NG_BF16 ? 0x1p-8 * fabs(w[k][i]) : 0;
        const double slack = c->s == &wide ? 3e-7 : 2e-6;
        if (!(fabs(x - w[k][i]) <= slack * (1 + fabs(w[k][i])) + half) ||
            (stays && g == 0 && x != w[k][i])) {
          fail_msg("%s: step %d slot %d entry %d: %.9g, expected %.9g", set, t, k, (int)i, x,
                   w[k][i]);
        }
        if (half > 0 || c->s == &wide) w[k][i] = x; /* the rounded value */
      }
      for (int64_t i = 0; i < c->s->rows[k] * stride && c->weights == NG_F32; i++)
        assert_true(isnan(((const float *)m.weight[k])[i]) == (i % stride >= cols));
    }
  }
  for (int k = 0; k < SLOTS; k++)
    free(w[k]);
  model_close(&m);
  model_close(&plain);
}

static void updates_follow_the_formulas(void **state) {
  static const char *const method[] = {"natgrad", "eva-natgrad"};
  for (int i = 0; i < 2 * 2 * 6; i++) {
    update_case c = {method[i / 2 % 2],
                     numbers_from(i % 2 == 1, 3 * (i / 4)),
                     &narrow,
                     NG_F32,
                     NG_F32,
                     i % 3,
                     i / 4 == 1,
                     false};
    check_formula(&c);
    c.decay_after = !c.how.adamw;
    if (c.decay_after) check_formula(&c);
    c.decay_after = false;
    c.weights = NG_BF16;
    c.pad = i / 4;
    c.still = false;
    if (i / 4 < 2) check_formula(&c);
  }
}

static void updates_of_wide_rows_follow_the_formulas(void **state) {
  static const ng_dtype type[2] = {NG_F32, NG_BF16};
  for (int i = 0; i < 8; i++) {
    check_formula(&(update_case){"eva-natgrad", numbers_from(i >= 4, i), &wide, type[i % 2],
                                 type[i / 2 % 2], 0, false, false});
  }
}

static void a_nan_in_the_last_tile_skips_the_step(void **state) {
  model m = {.s = &wide, .grads = NG_F32, .weights = NG_F32};
  const numbers how = numbers_from(false, 4);
  fixture_ok(&m.f, open_layout(&m, "method=eva-natgrad update=sgd", three, NULL));
  fixture_ok(&m.f, model_observe(&m, 1));
  ((float *)m.grad[SLOTS - 1])[weight_count(&m, SLOTS - 1) - 1] = NAN;
  assert_int_equal(model_step(&m, &how, GROUPS), NG_SKIPPED);
  for (int k = 0; k < SLOTS; k++) {
    for (int64_t i = 0; i < weight_count(&m, k); i++)
      assert_true(read_weight(&m, k, i) == (double)value_at(0, k, i));
  }
  model_close(&m);
}

/* A parameter that changes its group keeps its moments; NG_BOTH changes weight and bias. */
static void a_moved_parameter_keeps_its_moments(void **state) {
  model m, other;
  const int32_t first[SLOTS] = {0, 0, 0, 0, 2}, last[SLOTS] = {1, 1, 0, 0, 2};
  numbers how = numbers_from(false, 4), swapped = how;
  how.sgd[1].momentum = swapped.sgd[1].momentum = 0.5;
  swapped.sgd[0] = how.sgd[1];
  fixture_ok(&m.f, model_open(&m, PLAIN_SGD, first, NULL));
  fixture_ok(&other.f, model_open(&other, PLAIN_SGD, first, NULL));
  for (int t = 1; t <= 3; t++) {
    fixture_ok(&m.f, model_observe(&m, t));
    fixture_ok(&other.f, model_observe(&other, t));
    if (t == 2) fixture_ok(&m.f, ng_set_group(m.f.p, 0, NG_BOTH, 1));
    fixture_ok(&m.f, model_step(&m, &how, GROUPS));
    fixture_ok(&other.f, model_step(&other, t < 2 ? &how : &swapped, GROUPS));
  }
  for (int k = 0; k < SLOTS; k++) {
    const bool same =
        memcmp(m.weight[k], other.weight[k], (size_t)weight_count(&m, k) * sizeof(float)) == 0;
    assert_int_equal(same, last[k] != 0); /* group 0 has other numbers */
  }
  model_close(&m);
  model_close(&other);
}

/* ---- the clip --------------------------------------------------------------------------------*/

/* Store <PD, D> of each layer in the first step. */
static void read_inner_products(const char *set, double inner[LAYERS]) {
  model m;
  fixture_ok(&m.f, model_open(&m, set, NULL, NULL));
  fixture_ok(&m.f, model_observe(&m, 1));
  fixture_ok(&m.f, ng_step(m.f.p, 1));
  inner[0] = inner[1] = 0;
  for (int k = 0; k < 4; k++) {
    for (int64_t i = 0; i < weight_count(&m, k); i++)
      inner[index_of[k]] += (double)((const float *)m.grad[k])[i] * (double)value_at(1, 30 + k, i);
  }
  model_close(&m);
}

static ng_report step_with_clip(const char *set, const int32_t *group, const double lr[GROUPS],
                                model *m) {
  numbers how = numbers_from(false, 4);
  for (int g = 0; g < GROUPS; g++)
    how.sgd[g].lr = lr[g];
  fixture_ok(&m->f, model_open(m, set, group, NULL));
  fixture_ok(&m->f, model_observe(m, 1));
  fixture_ok(&m->f, model_step(m, &how, group == NULL ? 1 : GROUPS));
  return fixture_report(&m->f);
}

/* nu = sqrt(kl_clip / sum over layers of lr^2 <PD, D>).  <PD, D> includes the bias, and lr is the rate of the layer's
 * weight, whatever the rate of its bias.  Tensors are not in the sum.  Tolerance 1e-6: PD in the formula is f32, and all terms have one sign. */
static void clip_weighs_layers_by_their_rate(void **state) {
  static const char *const way[] = {"method=natgrad", "method=eva-natgrad",
                                    "method=natgrad solver=product radius=0.5"};
  static const double lrs[][GROUPS] = {{0.1, 0.7, 0.3}, {0.4, 0.2, 0}, {0, 0.3, 0.2}, {0, 1, 0}};
  for (int i = 0; i < 3; i++) {
    char set[160];
    double inner[LAYERS];
    (void)snprintf(set, sizeof set, "%s clip=none", way[i]);
    read_inner_products(set, inner);
    (void)snprintf(set, sizeof set, "%s update=sgd clip=kl kl_clip=1e-6", way[i]);
    for (size_t k = 0; k < sizeof lrs / sizeof lrs[0]; k++) {
      const double *lr = lrs[k], kl = lr[0] * lr[0] * inner[0] + lr[2] * lr[2] * inner[1];
      const double nu = kl > 0 ? fmin(1, sqrt(1e-6 / kl)) : 1;
      model m;
      const ng_report r = step_with_clip(set, three, lr, &m);
      if (!(fabs(r.clip - nu) <= 1e-6 * nu)) {
        fail_msg("%s, rates %zu: nu = %.9g, expected %.9g", way[i], k, r.clip, nu);
      }
      assert_true(fabs(r.inner - inner[0] - inner[1]) <= 1e-6 * fabs(r.inner));
      model_close(&m);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(updates_follow_the_formulas),
      cmocka_unit_test(updates_of_wide_rows_follow_the_formulas),
      cmocka_unit_test(a_nan_in_the_last_tile_skips_the_step),
      cmocka_unit_test(a_moved_parameter_keeps_its_moments),
      cmocka_unit_test(clip_weighs_layers_by_their_rate),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
