/* t_groups.c: the fused updates, ng_step_sgd and ng_step_adamw, and their parameter groups: each parameter uses the
 * numbers of its group, the kl clip uses the learning rate of each layer's weight, and wrong numbers on one rank are
 * an error on all.
 *
 * Two layers with biases and a tensor; the direction comes from a second model that writes gradients.
 *
 * Tolerance: 2e-6 (1 + |w|), of values and steps around 1: a dozen operations in f32 (2^-24 each) in each of four updates; in bf16
 * half a unit, 2^-8 |w|, more.  Wide rows are compared after each update: 3e-7 (1 + |w|). */
#include "unit_test.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixture.h"
#include "oracle.h"
#include "ranks.h"
#include "test_case.h"
#include "toys.h"

enum { B = 6, LAYERS = 2, SLOTS = 5, STEPS = 4, GROUPS = 3, NARROW = 46 };

/* Slots: weight and bias of each layer, the tensor; `wide`: rows longer than a tile. */
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
  void *memory; /* all gradients, then all weights */
} model;

static int64_t size(const model *m, int k) { return m->s->rows[k] * m->s->cols[k]; }

static void *grad_at(model *m, int k, int64_t i) {
  return (char *)m->grad[k] + i * ng_dtype_size(m->grads);
}

static void *weight_at(model *m, int k, int64_t i) {
  const int64_t cols = m->s->cols[k], at = i / cols * (cols + m->pad) + i % cols;
  return (char *)m->weight[k] + at * ng_dtype_size(m->weights);
}

static double weight(model *m, int k, int64_t i) {
  float x;
  ng_to_f32(&x, weight_at(m, k, i), m->weights, 1);
  return (double)x;
}

/* A multiple of 1/128 in [-1, 1], exact in bf16. */
static float value(int step, int what, int64_t i) {
  return rintf(128 * sinf((float)(1 + 37 * step + 11 * what) + 2.3f * (float)i)) / 128;
}

static void allocate(model *m) {
  const int64_t weight = ng_dtype_size(m->weights), grad = ng_dtype_size(m->grads);
  int64_t bytes = 0;
  for (int k = 0; k < SLOTS; k++)
    bytes += size(m, k) * grad + m->s->rows[k] * (m->s->cols[k] + m->pad) * weight;
  char *at = m->memory = must_calloc((size_t)bytes);
  for (int k = 0; k < SLOTS; at += size(m, k++) * grad)
    m->grad[k] = at;
  for (int k = 0; k < SLOTS; k++) {
    m->weight[k] = at;
    for (int64_t i = m->s->rows[k] * (m->s->cols[k] + m->pad); i > 0; i--, at += weight)
      ng_from_f32(at, m->weights, &(float){NAN}, 1);
    for (int64_t i = 0; i < size(m, k); i++)
      ng_from_f32(weight_at(m, k, i), m->weights, &(float){value(0, k, i)}, 1);
  }
}

/* Before the call the caller sets s, grads, weights and pad. */
static ng_status open_as(model *m, const char *set, const int32_t group[SLOTS],
                         const fixture_how *how) {
  int32_t index;
  allocate(m);
  ng_status st = fixture_open(&m->f, set, how);
  for (int l = 0; l < LAYERS && st == NG_OK; l++)
    st = ng_add_linear(m->f.p, l == 0 ? "fc1" : "fc2", m->s->cols[2 * l], m->s->rows[2 * l], 1,
                       &index);
  if (st == NG_OK) st = ng_add_tensor(m->f.p, "gamma", size(m, SLOTS - 1), &index);
  for (int k = 0; k < SLOTS && st == NG_OK; k++) {
    const plane g = plane_of(m->grad[k], m->s->rows[k], m->s->cols[k], m->grads);
    plane w = plane_of(m->weight[k], m->s->rows[k], m->s->cols[k], m->weights);
    w.row_stride += m->pad;
    st = fixture_bind(&m->f, index_of[k], param_of[k], &g, &w);
    if (st == NG_OK && group != NULL) {
      st = ng_set_group(m->f.p, index_of[k], param_of[k], group[k]);
    }
  }
  return st == NG_OK ? ng_ready(m->f.p) : st;
}

static ng_status model_open(model *m, const char *set, const int32_t group[SLOTS],
                            const fixture_how *how) {
  *m = (model){.s = &narrow, .grads = NG_F32, .weights = NG_F32};
  return open_as(m, set, group, how);
}

static void model_close(model *m) {
  fixture_close(&m->f);
  free(m->memory);
}

/* The same samples on every rank. */
static ng_status model_observe(model *m, int step) {
  ng_status st = fixture_begin(&m->f, B);
  for (int l = 0; l < LAYERS && st == NG_OK; l++) {
    const int64_t in = m->s->cols[2 * l], out = m->s->rows[2 * l];
    float *a = must_calloc(sizeof *a * (size_t)(B * (in + out))), *g = a + B * in;
    for (int64_t i = 0; i < B * in; i++)
      a[i] = value(step, 10 + l, i);
    for (int64_t i = 0; i < B * out; i++)
      g[i] = value(step, 20 + l, i) / B;
    const plane x = plane_of(a, B, in, NG_F32), y = plane_of(g, B, out, NG_F32);
    st = fixture_observe(&m->f, l, &x, &y);
    free(a);
  }
  for (int k = 0; k < SLOTS; k++) {
    for (int64_t i = 0; i < size(m, k); i++)
      ng_from_f32(grad_at(m, k, i), m->grads, &(float){value(step, 30 + k, i)}, 1);
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

/* Groups: the first weight; biases and the tensor, without decay; the second weight. */
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

static numbers make(bool adamw) { return numbers_from(adamw, 4); }

static void ok(const model *m, ng_status st) { fixture_ok(&m->f, st); }

static void options(char *set, size_t n, const char *method, const char *clip, bool adamw) {
  (void)snprintf(set, n, "method=%s update=%s %s", method, adamw ? "adamw" : "sgd", clip);
}

static const char *const method[] = {"natgrad", "eva-natgrad"};

/* ---- formulas --------------------------------------------------------------------------------*/

typedef struct update_case {
  const char *method;
  numbers how;
  const shape *s;
  ng_dtype grads, weights;
  int64_t pad;
  bool still; /* lr is 0 in the first steps: moments move, weights keep their bits */
} update_case;

/* Compare with the formulas of PyTorch.  In step 2 momentum without Nesterov is 0, so v = d. */
static void check_formula(const update_case *c) {
  char set[128], plain_set[128];
  model m = {.s = c->s, .grads = c->grads, .weights = c->weights, .pad = c->pad};
  model plain = {.s = c->s, .grads = NG_F32, .weights = NG_F32};
  double *w[SLOTS], *v[SLOTS], *s[SLOTS];
  numbers how = c->how;
  options(set, sizeof set, c->method, "clip=rescale", how.adamw);
  (void)snprintf(plain_set, sizeof plain_set, "method=%s clip=rescale", c->method);
  ok(&m, open_as(&m, set, three, &(fixture_how){.threads = c->s == &wide ? 3 : 0}));
  ok(&plain, open_as(&plain, plain_set, NULL, NULL));
  for (int k = 0; k < SLOTS; k++) {
    w[k] = zeros(3 * size(&m, k));
    v[k] = w[k] + size(&m, k);
    s[k] = v[k] + size(&m, k);
    for (int64_t i = 0; i < size(&m, k); i++)
      w[k][i] = weight(&m, k, i);
  }
  for (int t = 1; t <= STEPS; t++) {
    const bool stays = c->still && t < 3;
    how.sgd[0].lr = stays ? 0 : c->how.sgd[0].lr;
    how.adam[0].lr = stays ? 0 : c->how.adam[0].lr;
    for (int g = 0; g < GROUPS; g++)
      how.sgd[g].momentum = t == 2 && !how.sgd[g].nesterov ? 0 : c->how.sgd[g].momentum;
    ok(&m, model_observe(&m, t));
    ok(&plain, model_observe(&plain, t));
    ok(&m, model_step(&m, &how, GROUPS));
    ok(&plain, ng_step(plain.f.p, 0.1));
    for (int k = 0; k < SLOTS; k++) {
      const int g = three[k];
      const int64_t cols = c->s->cols[k], stride = cols + c->pad;
      for (int64_t i = 0; i < size(&m, k); i++) {
        const double d = (double)((const float *)plain.grad[k])[i];
        if (how.adamw) {
          oracle_adamw(&how.adam[g], t, 1, &d, &w[k][i], &v[k][i], &s[k][i]);
        } else {
          oracle_sgd(&how.sgd[g], t, 1, &d, &w[k][i], &v[k][i]);
        }
        const double x = weight(&m, k, i),
                     half = c->weights == NG_BF16 ? 0x1p-8 * fabs(w[k][i]) : 0;
        const double slack = c->s == &wide ? 3e-7 : 2e-6;
        if (!(fabs(x - w[k][i]) <= slack * (1 + fabs(w[k][i])) + half) ||
            (stays && g == 0 && x != w[k][i])) {
          fail_msg("%s %s: step %d slot %d entry %d: %.9g, should be %.9g", c->method,
                   how.adamw ? "adamw" : "sgd", t, k, (int)i, x, w[k][i]);
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

static void formulas(void **state) {
  for (int i = 0; i < 2 * 2 * 6; i++) {
    update_case c = {
        method[i / 2 % 2], numbers_from(i % 2 == 1, 3 * (i / 4)), &narrow, NG_F32, NG_F32, i % 3,
        i / 4 == 1};
    check_formula(&c);
    c.weights = NG_BF16;
    c.pad = i / 4;
    c.still = false;
    if (i / 4 < 2) check_formula(&c);
  }
}

static void formulas_of_wide_rows(void **state) {
  static const ng_dtype type[2] = {NG_F32, NG_BF16};
  for (int i = 0; i < 8; i++) {
    check_formula(&(update_case){"eva-natgrad", numbers_from(i >= 4, i), &wide, type[i % 2],
                                 type[i / 2 % 2], 0, false});
  }
}

/* The last number of the last tile is NaN: the step is skipped, no weight moves. */
static void nan_skips_the_step(void **state) {
  model m = {.s = &wide, .grads = NG_F32, .weights = NG_F32};
  const numbers how = make(false);
  ok(&m, open_as(&m, "method=eva-natgrad update=sgd", three, NULL));
  ok(&m, model_observe(&m, 1));
  *(float *)grad_at(&m, SLOTS - 1, size(&m, SLOTS - 1) - 1) = NAN;
  assert_int_equal(model_step(&m, &how, GROUPS), NG_SKIPPED);
  for (int k = 0; k < SLOTS; k++) {
    for (int64_t i = 0; i < size(&m, k); i++)
      assert_true(weight(&m, k, i) == (double)value(0, k, i));
  }
  model_close(&m);
}

/* A parameter that changes its group keeps its moments; NG_BOTH changes weight and bias. */
static void a_moved_parameter_keeps_its_moments(void **state) {
  model m, other;
  char set[128];
  const int32_t first[SLOTS] = {0, 0, 0, 0, 2}, last[SLOTS] = {1, 1, 0, 0, 2};
  numbers how = make(false), swapped = how;
  how.sgd[1].momentum = swapped.sgd[1].momentum = 0.5;
  swapped.sgd[0] = how.sgd[1];
  options(set, sizeof set, "natgrad", "clip=none", false);
  ok(&m, model_open(&m, set, first, NULL));
  ok(&other, model_open(&other, set, first, NULL));
  for (int t = 1; t <= 3; t++) {
    ok(&m, model_observe(&m, t));
    ok(&other, model_observe(&other, t));
    if (t == 2) {
      assert_int_equal(ng_set_group(m.f.p, 0, NG_BOTH, 1), NG_OK);
    }
    ok(&m, model_step(&m, &how, GROUPS));
    ok(&other, model_step(&other, t < 2 ? &how : &swapped, GROUPS));
  }
  for (int k = 0; k < SLOTS; k++) {
    const bool same =
        memcmp(m.weight[k], other.weight[k], (size_t)size(&m, k) * sizeof(float)) == 0;
    assert_int_equal(same, last[k] != 0); /* group 0 has other numbers */
  }
  model_close(&m);
  model_close(&other);
}

/* ---- the clip --------------------------------------------------------------------------------*/

/* <PD, D> of each layer in the first step. */
static void inners(const char *set, double inner[LAYERS]) {
  model m;
  ok(&m, model_open(&m, set, NULL, NULL));
  ok(&m, model_observe(&m, 1));
  ok(&m, ng_step(m.f.p, 1));
  inner[0] = inner[1] = 0;
  for (int k = 0; k < 4; k++) {
    for (int64_t i = 0; i < size(&m, k); i++) {
      inner[index_of[k]] += (double)((const float *)m.grad[k])[i] * (double)value(1, 30 + k, i);
    }
  }
  model_close(&m);
}

static ng_report clipped(const char *set, const int32_t *group, const double lr[GROUPS], model *m) {
  numbers how = make(false);
  for (int g = 0; g < GROUPS; g++) {
    how.sgd[g].lr = lr[g];
  }
  ok(m, model_open(m, set, group, NULL));
  ok(m, model_observe(m, 1));
  ok(m, model_step(m, &how, group == NULL ? 1 : GROUPS));
  return fixture_report(&m->f);
}

/* nu = sqrt(kl_clip / sum lr^2 <PD, D>), with lr of each layer's weight; biases and tensors do not count.  Tolerance
 * 1e-6: PD in the formula is f32, and all terms have one sign. */
static void clip_weighs_layers_by_their_rate(void **state) {
  static const char *const way[] = {"method=natgrad", "method=eva-natgrad",
                                    "method=natgrad solver=product radius=0.5"};
  static const double lrs[][GROUPS] = {{0.1, 0.7, 0.3}, {0.4, 0.2, 0}, {0, 0.3, 0.2}, {0, 1, 0}};
  for (int i = 0; i < 3; i++) {
    char set[160];
    double inner[LAYERS];
    (void)snprintf(set, sizeof set, "%s clip=none", way[i]);
    inners(set, inner);
    (void)snprintf(set, sizeof set, "%s update=sgd clip=kl kl_clip=1e-6", way[i]);
    for (size_t k = 0; k < sizeof lrs / sizeof lrs[0]; k++) {
      const double *lr = lrs[k], kl = lr[0] * lr[0] * inner[0] + lr[2] * lr[2] * inner[1];
      const double nu = kl > 0 ? fmin(1, sqrt(1e-6 / kl)) : 1;
      model m;
      const ng_report r = clipped(set, three, lr, &m);
      if (!(fabs(r.clip - nu) <= 1e-6 * nu)) {
        fail_msg("%s, rates %zu: nu = %.9g, should be %.9g", way[i], k, r.clip, nu);
      }
      assert_true(fabs(r.inner - inner[0] - inner[1]) <= 1e-6 * fabs(r.inner));
      model_close(&m);
    }
  }
}

/* ---- errors ----------------------------------------------------------------------------------*/

#define WRONG(call, word, which)                                                                   \
  do {                                                                                             \
    assert_int_equal(call, NG_ERR_ARG);                                                            \
    const char *said = ng_last_error(m.f.ctx);                                                     \
    if (!strstr(said, word) || !strstr(said, which))                                               \
      fail_msg("'%s' lacks %s %s", said, word, which);                                             \
  } while (0)

static void wrong_numbers_are_refused(void **state) {
  model m;
  char set[128];
  for (int adamw = 0; adamw < 2; adamw++) {
    options(set, sizeof set, "natgrad", "clip=none", adamw == 1);
    ok(&m, model_open(&m, set, three, NULL));
    ok(&m, model_observe(&m, 1));
    float before[NARROW];
    const int64_t bias = size(&m, 0);
    memcpy(before, m.weight[0], sizeof before);
    numbers how = make(adamw == 1);
    ng_sgd_init(&how.sgd[1], sizeof how.sgd[1]);
    ng_adamw_init(&how.adam[1], sizeof how.adam[1]);
    WRONG(model_step(&m, &how, GROUPS), "lr was not given", "(group 1)");
    how = make(adamw == 1);
    WRONG(model_step(&m, &how, 1), "count is 1", "groups is 3");
    WRONG(model_step(&m, &how, 0), "count is 0", "groups is 3");
    WRONG(model_step(&m, &how, 4), "count is 4", "groups is 3");
    how.sgd[2].weight_decay = how.adam[2].weight_decay = -1;
    WRONG(model_step(&m, &how, GROUPS), "weight_decay is -1", "(group 2)");
    how = make(adamw == 1);
    how.sgd[1].lr = how.adam[1].lr = -0.5;
    WRONG(model_step(&m, &how, GROUPS), "lr is -0.5", "(group 1)");
    how = make(adamw == 1);
    how.sgd[2].struct_size -= 8;
    how.adam[2].struct_size -= 8;
    WRONG(model_step(&m, &how, GROUPS), "struct_size", "group 2");
    how = make(adamw == 1);
    how.sgd[0].struct_size = how.adam[0].struct_size = 0;
    WRONG(model_step(&m, &how, GROUPS), "struct_size is 0",
          adamw ? "ng_adamw_init" : "ng_sgd_init");
    if (adamw) {
      WRONG(ng_step_adamw(m.f.p, NULL, GROUPS), "ng_step_adamw", "how is NULL");
    } else {
      how = make(false);
      how.sgd[1].nesterov = 1;
      WRONG(model_step(&m, &how, GROUPS), "nesterov", "(group 1)");
      WRONG(ng_step_sgd(m.f.p, NULL, GROUPS), "ng_step_sgd", "how is NULL");
    }
    assert_memory_equal(before, m.weight[0], sizeof before);
    how = make(adamw == 1);
    how.sgd[1].lr = how.adam[1].lr = 0;   /* 0 is a valid learning rate */
    ok(&m, model_step(&m, &how, GROUPS)); /* with the same observations */
    assert_memory_equal(before + bias, m.weight[1], (size_t)size(&m, 1) * sizeof *before);
    assert_memory_not_equal(before, m.weight[0], (size_t)bias * sizeof *before);
    model_close(&m);
  }
}

/* An array of larger structs of a newer header, whose new fields are zero. */
static void larger_structs_of_a_newer_header(void **state) {
  struct {
    ng_sgd how;
    double newer;
  } larger[GROUPS];
  model m, same;
  char set[128];
  const numbers how = make(false);
  options(set, sizeof set, "natgrad", "clip=none", false);
  ok(&m, model_open(&m, set, three, NULL));
  ok(&same, model_open(&same, set, three, NULL));
  for (int g = 0; g < GROUPS; g++) {
    larger[g].how = how.sgd[g];
    larger[g].how.struct_size = sizeof larger[g];
    larger[g].newer = 0;
  }
  ok(&m, model_observe(&m, 1));
  ok(&same, model_observe(&same, 1));
  larger[2].newer = 1;
  WRONG(ng_step_sgd(m.f.p, &larger[0].how, GROUPS), "struct_size", "knows only");
  larger[2].newer = 0;
  ok(&m, ng_step_sgd(m.f.p, &larger[0].how, GROUPS));
  ok(&same, ng_step_sgd(same.f.p, how.sgd, GROUPS));
  assert_memory_equal(m.weight[0], same.weight[0], NARROW * sizeof(float));
  model_close(&m);
  model_close(&same);
}

static void numbers_of_groups(void **state) {
  model m;
  int32_t index;
  const plane none = plane_of(NULL, 1, 1, NG_F32);
  memset(&m, 0, sizeof m);
  fixture_ok(&m.f, fixture_open(&m.f, "update=sgd", NULL));
  assert_int_equal(ng_add_linear(m.f.p, "fc", 2, 2, 0, &index), NG_OK);
  WRONG(ng_set_group(m.f.p, 1, NG_WEIGHT, 0), "index is 1", "ng_set_group");
  WRONG(ng_set_group(m.f.p, 0, NG_BIAS, 0), "'fc'", "bias");
  WRONG(ng_set_group(m.f.p, 0, (ng_param)3, 0), "'fc'", "no such parameter");
  WRONG(ng_set_group(m.f.p, 0, NG_WEIGHT, -1), "group is -1", "0 to 1023");
  WRONG(ng_set_group(m.f.p, 0, NG_WEIGHT, 1024), "group is 1024", "0 to 1023");
  WRONG(ng_set_group(m.f.p, 0, NG_WEIGHT, 1025), "group is 1025", "0 to 1023");
  WRONG(plane_bind_grad(m.f.p, 0, NG_BOTH, &none), "'fc'", "no such parameter");
  assert_int_equal(ng_set_group(m.f.p, 0, NG_BOTH, 1023),
                   NG_OK); /* without a bias NG_BOTH is the weight */
  assert_int_equal(ng_set_group(m.f.p, 0, NG_BOTH, 2), NG_OK);
  assert_int_equal(ng_ready(m.f.p), NG_OK);
  WRONG(ng_set_group(m.f.p, 0, NG_WEIGHT, 3), "group is 3", "expected 0 to 2");
  assert_int_equal(ng_set_group(m.f.p, 0, NG_WEIGHT, 1), NG_OK);
  model_close(&m);
}

/* ---- ranks -----------------------------------------------------------------------------------*/

enum { RANKS = 3, ODD = 1 };
typedef enum fault { NONE, NO_LR, NO_HOW, COUNT, DECAY, NESTEROV, OTHER_GROUP, FAULTS } fault;

typedef struct job {
  fault what;
  const char *set;
  ng_status first[RANKS], last[RANKS];
  double nu[RANKS];
  char said[RANKS][256];
  float weight[RANKS][NARROW];
  bool changed[RANKS];
} job;

static ng_status run_rank(int32_t rank, ng_transport *t, void *arg) {
  job *j = arg;
  model m;
  const fixture_how where = {.linalg = "ref", .threads = 1, .transport = t};
  const fault what = rank == ODD ? j->what : NONE;
  int32_t group[SLOTS];
  memcpy(group, three, sizeof group);
  if (what == OTHER_GROUP) group[3] = 2;
  ng_status st = model_open(&m, j->set, group, &where);
  if (st == NG_OK) st = model_observe(&m, 1);
  float before[NARROW];
  memcpy(before, m.weight[0], sizeof before);
  numbers how = make(false);
  if (what == NO_LR) how.sgd[2].lr = NAN;
  if (what == DECAY) how.sgd[1].weight_decay = -1;
  if (what == NESTEROV) how.sgd[1].nesterov = 1;
  if (st == NG_OK) {
    st = ng_step_sgd(m.f.p, what == NO_HOW ? NULL : how.sgd, what == COUNT ? 2 : GROUPS);
  }
  j->first[rank] = st;
  j->changed[rank] = memcmp(before, m.weight[0], sizeof before) != 0;
  if (m.f.ctx != NULL) {
    (void)snprintf(j->said[rank], sizeof j->said[rank], "%s", ng_last_error(m.f.ctx));
  }
  /* The corrected call, with the same observations. */
  how = make(false);
  if (st == NG_ERR_ARG) st = ng_step_sgd(m.f.p, how.sgd, GROUPS);
  j->last[rank] = st;
  ng_report r = {.struct_size = sizeof r};
  if (st == NG_OK) st = ng_report_read(m.f.p, &r);
  j->nu[rank] = r.clip;
  memcpy(j->weight[rank], m.weight[0], sizeof j->weight[rank]);
  model_close(&m);
  return NG_OK;
}

static const char ranks_set[] = "update=sgd clip=kl kl_clip=1e-6 grad_worker_fraction=0";

/* A wrong number on one rank: all ranks return the error, nothing changes, and a correct call succeeds. */
static void wrong_numbers_of_one_rank_are_refused_by_all(void **state) {
  static const char *const word[FAULTS] = {
      "", "lr was not given", "how is NULL", "count", "weight_decay", "nesterov", "layers"};
  for (int what = NO_LR; what < FAULTS; what++) {
    job j = {.what = (fault)what, .set = ranks_set};
    const ng_status want = what == OTHER_GROUP ? NG_ERR_COMM : NG_ERR_ARG;
    assert_int_equal(ranks_run(RANKS, run_rank, &j, NULL), NG_OK);
    for (int r = 0; r < RANKS; r++) {
      assert_int_equal(j.first[r], want);
      assert_false(j.changed[r]);
      assert_int_equal(j.last[r], what == OTHER_GROUP ? NG_ERR_COMM : NG_OK);
    }
    if (!strstr(j.said[ODD], word[what])) fail_msg("'%s' lacks '%s'", j.said[ODD], word[what]);
    if (!strstr(j.said[0], "1 of 3 ranks")) fail_msg("'%s' does not name the ranks", j.said[0]);
  }
}

/* The clip sums terms of all owners: the result of one rank up to rounding. */
static void clip_over_ranks(void **state) {
  job alone = {.set = ranks_set}, j = {.set = ranks_set};
  assert_int_equal(ranks_run(1, run_rank, &alone, NULL), NG_OK);
  assert_int_equal(ranks_run(RANKS, run_rank, &j, NULL), NG_OK);
  assert_true(alone.nu[0] > 0 && alone.nu[0] < 1);
  for (int r = 0; r < RANKS; r++) {
    assert_int_equal(j.first[r], NG_OK);
    assert_true(j.nu[r] == j.nu[0] && fabs(j.nu[r] - alone.nu[0]) <= 1e-6 * alone.nu[0]);
    assert_memory_equal(j.weight[r], j.weight[0], sizeof j.weight[0]);
  }
}

/* A block with parameters of several groups counts with their largest learning rate: PD = D / (damping + |D|^2), with
 * 14 and 77 elements. */
static void one_block_of_two_groups(void **state) {
  for (int32_t first = 0; first < 2; first++) {
    fixture f;
    float g[2][3] = {{1, 2, 3}, {4, 5, 6}}, w[2][3] = {{0}};
    fixture_ok(&f, fixture_open(&f, "damping=0.5 clip=kl kl_clip=1e-4 update=sgd", NULL));
    ng_family_register(f.ctx, &toy_total);
    fixture_ok(&f, ng_add_tensor(f.p, "all.one", 3, NULL));
    fixture_ok(&f, ng_add_tensor(f.p, "all.two", 3, NULL));
    for (int32_t k = 0; k < 2; k++) {
      const ng_array d = ng_array_vector(g[k], 3, NG_F32), x = ng_array_vector(w[k], 3, NG_F32);
      const ng_binding b = {k, NG_WEIGHT, &d, &x, NG_HOLD};
      fixture_ok(&f, ng_bind(f.p, &b, 1));
      fixture_ok(&f, ng_set_group(f.p, k, NG_WEIGHT, k == first));
    }
    fixture_ok(&f, ng_ready(f.p));
    ng_sgd how[2] = {fixture_sgd(0.1, 0.0), fixture_sgd(0.3, 0.0)};
    fixture_ok(&f, ng_step_sgd(f.p, how, 2));
    const ng_report r = fixture_report(&f);
    const double nu = sqrt(1e-4 / (0.3 * 0.3 * 91.0 / 91.5));
    assert_true(fabs(r.clip - nu) <= 1e-12 * nu); /* computed in double */
    fixture_close(&f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(formulas),
      cmocka_unit_test(formulas_of_wide_rows),
      cmocka_unit_test(nan_skips_the_step),
      cmocka_unit_test(a_moved_parameter_keeps_its_moments),
      cmocka_unit_test(clip_weighs_layers_by_their_rate),
      cmocka_unit_test(wrong_numbers_are_refused),
      cmocka_unit_test(larger_structs_of_a_newer_header),
      cmocka_unit_test(numbers_of_groups),
      cmocka_unit_test(wrong_numbers_of_one_rank_are_refused_by_all),
      cmocka_unit_test(clip_over_ranks),
      cmocka_unit_test(one_block_of_two_groups),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
