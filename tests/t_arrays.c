/* t_arrays.c: strides, gaps and axis orders of observations, gradients and weights; images of several sizes.
 *
 * The oracle is the same training on dense arrays.  Gradients and weights must have the same bits.  Observations may be
 * summed in another order, so results are compared to 2e-5 of the largest entry, about 300 roundings; a wrong element
 * gives a much larger error. */
#include "unit_test.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "draw.h"
#include "fixture.h"
#include "strided.h"

enum { FC, CONV, SEQ, TENSOR, ENTRIES, SLOTS = 6, STEPS = 3, B = 5, MOST = 4096 };

/* ---- a small model ---------------------------------------------------------------------------*/

/* weight, bias of fc; weight, bias of conv; weight of seq; the tensor */
static const struct slot {
  int32_t index;
  ng_param which;
  int32_t ndim;
  int64_t shape[4];
} slot[SLOTS] = {{FC, NG_WEIGHT, 2, {7, 6}},         {FC, NG_BIAS, 1, {7}},
                 {CONV, NG_WEIGHT, 4, {6, 2, 3, 2}}, {CONV, NG_BIAS, 1, {6}},
                 {SEQ, NG_WEIGHT, 2, {3, 5}},        {TENSOR, NG_WEIGHT, 3, {2, 3, 4}}};

/* A layout: the axes from the innermost, and a gap. */
typedef struct layout {
  const char *name;
  int two[2], three[3], four[4]; /* indices of the parameters with two, three and four axes */
  int64_t gap;
  ng_dtype grads, weights;
} layout;

static const layout dense = {"dense", {1, 0}, {2, 1, 0}, {3, 2, 1, 0}, 0, NG_F32, NG_F32};

typedef struct model {
  fixture f;
  strided grad[SLOTS], weight[SLOTS];
} model;

static const int one[1] = {0};

static const int *axis_order(const layout *l, int32_t ndim) {
  return ndim == 1 ? one : ndim == 2 ? l->two : ndim == 3 ? l->three : l->four;
}

static ng_status add_entries(ng_precond *p) {
  const int64_t kernel[2] = {3, 2}, stride[2] = {1, 2}, padding[2] = {1, 0};
  ng_layer seq = layer_of(NG_LINEAR, "seq", 5, 3);
  ng_status st = ng_add_linear(p, "fc", 6, 7, 1, NULL);
  if (st == NG_OK) {
    st = ng_add_conv2d(p, "conv", 4, 6, kernel, stride, padding, NULL, 2, NULL, 1, NULL);
  }
  seq.order = NG_POSITIONS_FIRST;
  if (st == NG_OK) st = ng_add_layer(p, &seq, NULL);
  return st == NG_OK ? ng_add_tensor(p, "gamma", 24, NULL) : st;
}

static void open_model(model *m, const char *options, const layout *l) {
  ng_binding list[SLOTS];
  fixture_ok(&m->f, fixture_open(&m->f, options, &(fixture_how){.threads = 2}));
  fixture_ok(&m->f, add_entries(m->f.p));
  for (int k = 0; k < SLOTS; k++) {
    const struct slot *s = &slot[k];
    strided_create(&m->grad[k], s->ndim, s->shape, l->grads, axis_order(l, s->ndim), l->gap, 0);
    strided_create(&m->weight[k], s->ndim, s->shape, l->weights, axis_order(l, s->ndim), l->gap, 0);
    for (int64_t i = 0; i < m->weight[k].count; i++) {
      strided_set(&m->weight[k], i, draw_at(900 + k, i));
    }
    list[k] = (ng_binding){s->index, s->which, &m->grad[k].a, &m->weight[k].a, NG_HOLD};
  }
  fixture_ok(&m->f, ng_bind(m->f.p, list, SLOTS));
  fixture_ok(&m->f, ng_ready(m->f.p));
}

static void close_model(model *m) {
  fixture_close(&m->f);
  for (int k = 0; k < SLOTS; k++) {
    assert_true(strided_free_checked(&m->grad[k]));
    assert_true(strided_free_checked(&m->weight[k]));
  }
}

/* ---- observed arrays -------------------------------------------------------------------------*/

typedef struct observed_array {
  int32_t index;
  bool grad;
  int32_t ndim;
  int64_t shape[4];
  int plain[4];
} observed_array;

static const observed_array observed[] = {
    {FC, false, 2, {B, 6}, {1, 0}},
    {FC, true, 2, {B, 7}, {1, 0}},
    {CONV, false, 4, {B, 4, 5, 6}, {3, 2, 1, 0}},
    {CONV, true, 4, {B, 6, 5, 3}, {3, 2, 1, 0}},
    {SEQ, false, 4, {2, B, 3, 5}, {3, 2, 1, 0}},
    {SEQ, true, 4, {2, B, 3, 3}, {3, 2, 1, 0}},
};
enum { OBSERVED = sizeof observed / sizeof observed[0] };

static void observe_array(model *m, const observed_array *s, int64_t key, ng_dtype dtype,
                          const int *inner, int64_t gap) {
  strided x;
  strided_create(&x, s->ndim, s->shape, dtype, inner, gap, 0);
  for (int64_t i = 0; i < x.count; i++) {
    strided_set(&x, i, draw_at(key, i));
  }
  const ng_status st = s->grad ? ng_observe_output_grad(m->f.p, s->index, &x.a, NG_COPY)
                               : ng_observe_input(m->f.p, s->index, &x.a, NG_COPY);
  fixture_ok(&m->f, st);
  assert_true(strided_free_checked(&x));
}

static void observe_dense(model *m, int step) {
  fixture_ok(&m->f, fixture_begin(&m->f, B));
  for (int k = 0; k < OBSERVED; k++) {
    observe_array(m, &observed[k], step * 100 + k, NG_F32, observed[k].plain, 0);
  }
}

static void draw_gradients(model *m, int step) {
  for (int k = 0; k < SLOTS; k++) {
    for (int64_t i = 0; i < m->grad[k].count; i++) {
      strided_set(&m->grad[k], i, draw_at(step * 100 + 50 + k, i));
    }
  }
}

static ng_status take_step(model *m, const char *update) {
  if (strcmp(update, "gradient") == 0) return ng_step(m->f.p, 0.1);
  if (strcmp(update, "sgd") == 0) {
    ng_sgd s = fixture_sgd(0.05, 0.9);
    s.weight_decay = 0.01;
    s.nesterov = 1;
    return fixture_step(&m->f, &s);
  }
  const ng_sgd s = fixture_sgd(0.05, 0);
  return fixture_step(&m->f, &s);
}

/* ---- parameters ------------------------------------------------------------------------------*/

static const layout layouts[] = {
    {"last axis first", {0, 1}, {0, 1, 2}, {0, 1, 2, 3}, 0, NG_F32, NG_F32},
    {"channels last", {1, 0}, {1, 2, 0}, {1, 3, 2, 0}, 0, NG_F32, NG_F32},
    {"slices", {1, 0}, {2, 1, 0}, {3, 2, 1, 0}, 3, NG_F32, NG_F32},
    {"mixed, with gaps", {0, 1}, {1, 0, 2}, {2, 0, 3, 1}, 2, NG_F32, NG_F32},
};
static const char *const methods[] = {"method=natgrad damping=0.1",
                                      "method=kaisa damping=0.1",
                                      "method=eva damping=0.1",
                                      "method=eva-natgrad damping=0.1 sides=input",
                                      "method=adasgd",
                                      "method=sam stat_scale=textbook radius=0.5",
                                      "method=natgrad damping=0.1 clip=ratio clip_bound=0.1",
                                      "method=eva damping=0.1 clip=rms clip_bound=0.1",
                                      "method=eva damping=1e-9"};
static const char *const updates[] = {"gradient", "sgd", "adamw"};

static void must_match_dense(const model *m, const model *d, const char *what) {
  for (int k = 0; k < SLOTS; k++) {
    for (int64_t i = 0; i < m->grad[k].count; i++) {
      const float g = strided_get(&m->grad[k], i), h = strided_get(&d->grad[k], i);
      const float w = strided_get(&m->weight[k], i), v = strided_get(&d->weight[k], i);
      if (memcmp(&g, &h, sizeof g) == 0 && memcmp(&w, &v, sizeof w) == 0) continue;
      fail_msg("%s: slot %d, element %d: %.9g and %.9g, dense %.9g and %.9g", what, k, (int)i,
               (double)g, (double)w, (double)h, (double)v);
    }
  }
}

/* Train in f32; with gradients in bf16 and weights in f16; in f64. */
static void parameters_have_any_layout(void **state) {
  for (size_t a = 0; a < sizeof methods / sizeof methods[0]; a++) {
    for (size_t u = 0; u < 3; u++) {
      for (size_t k = 0; k < 3 * sizeof layouts / sizeof layouts[0]; k++) {
        char options[200], what[300];
        layout here = layouts[k / 3], plain = dense;
        here.grads = plain.grads = (ng_dtype[]){NG_F32, NG_BF16, NG_F64}[k % 3];
        here.weights = plain.weights = (ng_dtype[]){NG_F32, NG_F16, NG_F64}[k % 3];
        (void)snprintf(options, sizeof options, "%s update=%s", methods[a], updates[u]);
        (void)snprintf(what, sizeof what, "%s, %s, types %d", options, here.name, (int)(k % 3));
        model m = {0}, d = {0};
        open_model(&m, options, &here);
        open_model(&d, options, &plain);
        for (int t = 0; t < STEPS; t++) {
          observe_dense(&m, t);
          observe_dense(&d, t);
          draw_gradients(&m, t);
          draw_gradients(&d, t);
          const ng_status st = take_step(&m, updates[u]);
          assert_int_equal(st, take_step(&d, updates[u]));
          fixture_ok(&m.f, st > 0 ? NG_OK : st);
          must_match_dense(&m, &d, what);
        }
        close_model(&m);
        close_model(&d);
      }
    }
  }
}

/* ---- observations ----------------------------------------------------------------------------*/

static void find_largest_gap(const model *m, const model *d, double *gap, double *scale) {
  *gap = *scale = 0;
  for (int k = 0; k < SLOTS; k++) {
    for (int64_t i = 0; i < m->grad[k].count; i++) {
      const double x = (double)strided_get(&m->grad[k], i), y = (double)strided_get(&d->grad[k], i);
      *gap = isnan(x) ? INFINITY : fmax(*gap, fabs(x - y));
      *scale = fmax(*scale, fabs(y));
    }
  }
}

/* Every order of the axes of every array, with and without gaps, in every dtype (both runs have the same numbers). */
static void observations_have_any_layout(void **state) {
  rng r = {test_seed()};
  for (size_t a = 0; a < sizeof methods / sizeof methods[0]; a++) {
    for (int round = 0; round < 24; round++) {
      const ng_dtype dtype = (ng_dtype[]){NG_F32, NG_F16, NG_BF16, NG_F64}[round % 4];
      char options[200];
      (void)snprintf(options, sizeof options, "%s%s%s", methods[a],
                     round % 4 == 1 && strstr(methods[a], "method=eva d") == NULL &&
                             strstr(methods[a], "adasgd") == NULL
                         ? " positions=reduce"
                         : "",
                     round % 5 == 1 ? " stat_batch=3" : "");
      if (strstr(options, "adasgd") != NULL)
        (void)snprintf(options, sizeof options, "method=adasgd");
      model m = {0}, d = {0};
      open_model(&m, options, &dense);
      open_model(&d, options, &dense);
      fixture_ok(&m.f, fixture_begin(&m.f, B));
      fixture_ok(&d.f, fixture_begin(&d.f, B));
      for (int k = 0; k < OBSERVED; k++) {
        int inner[4] = {0, 1, 2, 3};
        for (int i = observed[k].ndim - 1; i > 0; i--) {
          const int j = (int)rng_below(&r, i + 1), swap = inner[i];
          inner[i] = inner[j];
          inner[j] = swap;
        }
        observe_array(&m, &observed[k], k, dtype, inner, rng_below(&r, 3));
        observe_array(&d, &observed[k], k, dtype, observed[k].plain, 0);
      }
      draw_gradients(&m, 0);
      draw_gradients(&d, 0);
      assert_true(ng_step(m.f.p, 0.1) >= 0 && ng_step(d.f.p, 0.1) >= 0);
      double gap, most;
      find_largest_gap(&m, &d, &gap, &most);
      if (!(gap <= 2e-5 * most))
        fail_msg("%s, round %d: off by %g, largest entry %g", options, round, gap, most);
      close_model(&m);
      close_model(&d);
    }
  }
}

/* Stride 0 repeats samples, positions or features. */
static void expanded_axes_repeat_elements(void **state) {
  for (unsigned axis = 0; axis < 4; axis++) {
    for (int k = 0; k < OBSERVED; k++) {
      const observed_array *s = &observed[k];
      if (axis >= (unsigned)s->ndim) continue;
      model m = {0}, d = {0};
      strided x, y;
      open_model(&m, "damping=0.1", &dense);
      open_model(&d, "damping=0.1", &dense);
      strided_create(&x, s->ndim, s->shape, NG_F32, s->plain, 0, 1U << axis);
      strided_create(&y, s->ndim, s->shape, NG_F32, s->plain, 0, 0);
      for (int64_t i = 0; i < x.count; i++) {
        strided_set(&x, i, draw_at(7, i));
      }
      for (int64_t i = 0; i < x.count; i++) {
        strided_set(&y, i, strided_get(&x, i));
      }
      model *of[2] = {&m, &d};
      for (int which = 0; which < 2; which++) {
        observe_dense(of[which], 0);
        const ng_array *a = which == 0 ? &x.a : &y.a;
        fixture_ok(&of[which]->f, s->grad
                                      ? ng_observe_output_grad(of[which]->f.p, s->index, a, NG_COPY)
                                      : ng_observe_input(of[which]->f.p, s->index, a, NG_COPY));
        draw_gradients(of[which], 0);
        assert_true(ng_step(of[which]->f.p, 0.1) >= 0);
      }
      double gap, most;
      find_largest_gap(&m, &d, &gap, &most);
      if (!(gap <= 2e-5 * most))
        fail_msg("array %d with stride 0 on axis %u: gradients differ by %g from the run with the "
                 "dense copy, "
                 "largest gradient %g",
                 k, axis, gap, most);
      assert_true(strided_free_checked(&x) && strided_free_checked(&y));
      close_model(&m);
      close_model(&d);
    }
  }
}

/* A NaN is found in every element; gaps are not read. */
static void non_finite_values_are_found(void **state) {
  const int orders[4][4] = {{3, 2, 1, 0}, {1, 3, 2, 0}, {0, 1, 2, 3}, {2, 0, 3, 1}};
  for (int o = 0; o < 4; o++) {
    for (int64_t at = 0; at < B * 4 * 30; at += 37) {
      model m = {0};
      strided x;
      open_model(&m, "damping=0.1", &dense);
      fixture_ok(&m.f, fixture_begin(&m.f, B));
      strided_create(&x, 4, observed[2].shape, NG_F32, orders[o], 1, 0);
      for (int64_t i = 0; i < x.count; i++) {
        strided_set(&x, i, i == at ? NAN : 1.0f);
      }
      assert_int_equal(ng_observe_input(m.f.p, CONV, &x.a, NG_COPY), NG_SKIPPED);
      assert_true(strided_free_checked(&x));
      close_model(&m);
    }
  }
}

/* ---- images ----------------------------------------------------------------------------------*/

/* A 1x1 convolution equals a linear layer whose positions are the pixels, also if the image size differs in each
 * micro-batch. */
static void image_sizes_may_vary(void **state) {
  const int64_t kernel[2] = {1, 1}, sizes[4][2] = {{3, 5}, {9, 4}, {1, 1}, {20, 31}};
  static float x[2 * 3 * 620], g[2 * 4 * 620], dw[2][12];
  const char *const settings[] = {"damping=0.1 clip=none", "method=eva damping=0.1 clip=none",
                                  "method=eva-natgrad damping=0.1 clip=none"};
  for (int k = 0; k < 3; k++) {
    fixture f[2];
    int64_t calls = 0, before = 0;
    for (int i = 0; i < 2; i++) {
      fixture_ok(&f[i], fixture_open(&f[i], settings[k], NULL));
      fixture_ok(&f[i], i == 0 ? ng_add_conv2d(f[i].p, "c", 3, 4, kernel, NULL, NULL, NULL, 1, NULL,
                                               0, NULL)
                               : ng_add_linear(f[i].p, "c", 3, 4, 0, NULL));
      const ng_array w = ng_array_matrix(dw[i], 4, 3, NG_F32);
      fixture_ok(&f[i], ng_bind_grad(f[i].p, 0, NG_WEIGHT, &w));
      fixture_ok(&f[i], ng_ready(f[i].p));
    }
    before = fixture_report(&f[0]).scratch;
    for (int s = 0; s < 4; s++) {
      const int64_t S = sizes[s][0] * sizes[s][1];
      for (int64_t i = 0; i < 2 * 4 * S; i++) {
        if (i < 2 * 3 * S) x[i] = draw_at(s, i);
        g[i] = draw_at(s + 10, i);
      }
      for (int i = 0; i < 12; i++) {
        dw[0][i] = dw[1][i] = draw_at(s + 20, i);
      }
      for (int i = 0; i < 2; i++) {
        fixture_ok(&f[i], fixture_begin(&f[i], 2));
        const ng_array a = i == 0 ? ng_array_nhwc(x, 2, 3, sizes[s][0], sizes[s][1], NG_F32)
                                  : ng_array_matrix(x, 2 * S, 3, NG_F32);
        const ng_array b = i == 0 ? ng_array_nhwc(g, 2, 4, sizes[s][0], sizes[s][1], NG_F32)
                                  : ng_array_matrix(g, 2 * S, 4, NG_F32);
        fixture_ok(&f[i], ng_observe_input(f[i].p, 0, &a, NG_COPY));
        fixture_ok(&f[i], ng_observe_output_grad(f[i].p, 0, &b, NG_COPY));
        fixture_ok(&f[i], ng_step(f[i].p, 0.1));
      }
      assert_memory_equal(dw[0], dw[1], sizeof dw[0]);
      /* a larger image needs more scratch, a smaller one does not; reports count the scratch */
      int64_t bytes, more;
      ng_context_allocated(f[0].ctx, &bytes, NULL, &more);
      assert_true(fixture_report(&f[0]).scratch >= before);
      if (s == 2) assert_int_equal(more, calls);
      calls = more;
      before = fixture_report(&f[0]).scratch;
    }
    fixture_close(&f[0]);
    fixture_close(&f[1]);
  }
}

/* ---- refused ---------------------------------------------------------------------------------*/

#define WRONG(call, status, word) fixture_fails(&m.f, call, status, word)

static void wrong_shapes_are_refused(void **state) {
  float x[2048] = {0};
  model m = {0};
  open_model(&m, "damping=0.1", &dense);
  ng_precond *p = m.f.p;
  fixture_ok(&m.f, fixture_begin(&m.f, B));
  ng_array a = ng_array_matrix(x, B, 5, NG_F32);
  WRONG(ng_observe_input(p, FC, &a, NG_COPY), NG_ERR_SHAPE, "[5, 5]");
  a = ng_array_matrix(x, B + 1, 6, NG_F32);
  WRONG(ng_observe_input(p, FC, &a, NG_COPY), NG_ERR_SHAPE, "5 samples");
  a = ng_array_matrix(x, 3 * B, 6, NG_F32); /* three positions: accepted */
  fixture_ok(&m.f, ng_observe_input(p, FC, &a, NG_COPY));
  a = ng_array_nchw(x, 2, B, 2, 6, NG_F32); /* axis 0 must count samples */
  WRONG(ng_observe_input(p, FC, &a, NG_COPY), NG_ERR_SHAPE, "samples, ..., 6");
  a = ng_array_nchw(x, B, 2, 2, 5, NG_F32); /* axis 1 of seq must count samples */
  WRONG(ng_observe_input(p, SEQ, &a, NG_COPY), NG_ERR_SHAPE, "positions, samples, ..., 5");
  a = ng_array_matrix(x, B, 4 * 30, NG_F32);
  WRONG(ng_observe_input(p, CONV, &a, NG_COPY), NG_ERR_SHAPE, "[5, 4, height, width]");
  a = ng_array_nchw(x, B, 3, 5, 6, NG_F32);
  WRONG(ng_observe_input(p, CONV, &a, NG_COPY), NG_ERR_SHAPE, "[5, 3, 5, 6]");
  a = ng_array_nchw(x, B, 4, 5, 1, NG_F32); /* the kernel is 2 wide, without padding */
  WRONG(ng_observe_input(p, CONV, &a, NG_COPY), NG_ERR_SHAPE, "kernel");
  a = ng_array_nchw(x, B, 4, 5, 6, NG_F32);
  fixture_ok(&m.f, ng_observe_input(p, CONV, &a, NG_COPY));
  a = ng_array_nchw(x, B, 6, 3, 5, NG_F32); /* height and width exchanged */
  WRONG(ng_observe_output_grad(p, CONV, &a, NG_COPY), NG_ERR_SHAPE, "[5, 6, 5, 3]");
  a = ng_array_nchw(x, B, 6, 5, 3, NG_F32);
  fixture_ok(&m.f, ng_observe_output_grad(p, CONV, &a, NG_COPY));
  a.ndim = 9;
  WRONG(ng_observe_output_grad(p, CONV, &a, NG_COPY), NG_ERR_SHAPE, "ndim");
  a = ng_array_matrix(x, B, 6, NG_F32);
  a.room[4] = INT64_MAX;
  WRONG(ng_observe_input(p, FC, &a, NG_COPY), NG_ERR_SHAPE, "exceed 2^60 bytes");
  a.room[4] = INT64_MIN;
  WRONG(ng_observe_input(p, FC, &a, NG_COPY), NG_ERR_SHAPE, "exceed 2^60 bytes");
  a = ng_array_matrix((char *)x + 1, B, 6, NG_F32);
  WRONG(ng_observe_input(p, FC, &a, NG_COPY), NG_ERR_SHAPE, "not aligned");
  a = ng_array_matrix(x, B, 6, NG_F32);
  a.mem = (ng_mem)0;
  WRONG(ng_observe_input(p, FC, &a, NG_COPY), NG_ERR_ARG, "mem is 0");
  a = ng_array_matrix(x, B, 0, NG_F32);
  WRONG(ng_observe_input(p, FC, &a, NG_COPY), NG_ERR_SHAPE, "below 1");
  close_model(&m);
}

/* One sample as an array without the sample axis; one-dimensional arrays; negative strides. */
static void vectors_and_negative_strides_are_read(void **state) {
  float x[6] = {1, 2, 3, 4, 5, 6}, back[6] = {6, 5, 4, 3, 2, 1}, g[7] = {1, 1, 2, 2, 3, 3, 4};
  model m = {0}, d = {0};
  open_model(&m, "damping=0.1 skip_layers=conv,seq", &dense);
  open_model(&d, "damping=0.1 skip_layers=conv,seq", &dense);
  const int64_t shape[1] = {6}, stride[1] = {-1};
  ng_array a = ng_array_vector(x, 6, NG_F32), b = a;
  const ng_array out = ng_array_vector(g, 7, NG_F32);
  b.data = back + 5;
  b.shape = shape;
  b.stride = stride;
  model *of[2] = {&m, &d};
  for (int i = 0; i < 2; i++) {
    fixture_ok(&of[i]->f, fixture_begin(&of[i]->f, 1));
    fixture_ok(&of[i]->f, ng_observe_input(of[i]->f.p, FC, i == 0 ? &a : &b, NG_COPY));
    fixture_ok(&of[i]->f, ng_observe_output_grad(of[i]->f.p, FC, &out, NG_COPY));
    draw_gradients(of[i], 0);
    fixture_ok(&of[i]->f, ng_step(of[i]->f.p, 0.1));
  }
  must_match_dense(&m, &d, "backwards");
  close_model(&m);
  close_model(&d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(parameters_have_any_layout),
      cmocka_unit_test(observations_have_any_layout),
      cmocka_unit_test(expanded_axes_repeat_elements),
      cmocka_unit_test(non_finite_values_are_found),
      cmocka_unit_test(image_sizes_may_vary),
      cmocka_unit_test(wrong_shapes_are_refused),
      cmocka_unit_test(vectors_and_negative_strides_are_read),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
