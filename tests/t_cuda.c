/* t_cuda.c: contexts with linalg = cuda on the stand-in (standin_desk.c). Arrays of the caller are memory of the device, which the
 * host cannot access. Steps equal the backend `ref`; work is counted; failures of the device are reported. */
#include "unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"
#include "fixture.h"
#include "kernel/kernel.h"
#include "step/step.h"

#include "stage.h"
#include "standin.h"

enum { LAYERS = 3, SAMPLES = 5, STEPS = 3, MOST = 4096, SIDE = 6 };

/* A linear layer with bias, a convolution of images of SIDE x SIDE pixels, a linear layer without bias, whose rows have a multiple
 * of 4 columns (dv_region.is_flat). */
static const struct {
  int64_t in, out, kernel; /* kernel 0: a linear layer */
  bool bias;
} shape[LAYERS] = {{7, 5, 0, true}, {3, 4, 3, false}, {64, 62, 0, false}};

typedef struct model {
  fixture f;
  ng_backend backend;
  dv_desk *desk; /* NULL: arrays of the host */
  void *array[6 * LAYERS * STEPS];
  int arrays;
  float *weight[LAYERS][2], *gradient[LAYERS][2];
  float *observed[LAYERS][2]; /* the next input, output gradient */
} model;

static int64_t columns(int i) {
  return shape[i].kernel == 0 ? shape[i].in : shape[i].in * shape[i].kernel * shape[i].kernel;
}
static int64_t count(int i, int k) { return k == 0 ? shape[i].out * columns(i) : shape[i].out; }

static float *random_array(model *m, rng *r, int64_t n) {
  float x[MOST];
  void *at = NULL;
  assert_true(n <= MOST);
  for (int64_t i = 0; i < n; i++) {
    x[i] = (float)rng_real(r) - 0.4f;
  }
  const size_t bytes = (size_t)n * sizeof *x;
  if (m->desk == NULL) {
    at = malloc(bytes);
    assert_non_null(at);
    memcpy(at, x, bytes);
  } else {
    assert_null(dv_alloc(m->desk, bytes, &at));
    assert_null(dv_copy(m->desk, at, x, bytes));
  }
  m->array[m->arrays++] = at;
  return at;
}

static void read_array(const model *m, const float *at, int64_t n, float *out) {
  if (m->desk == NULL) {
    memcpy(out, at, (size_t)n * sizeof *out);
  } else {
    assert_null(dv_copy(m->desk, out, at, (size_t)n * sizeof *out));
  }
}

static void write_array(const model *m, float *at, int64_t n, const float *x) {
  if (m->desk == NULL) {
    memcpy(at, x, (size_t)n * sizeof *x);
  } else {
    assert_null(dv_copy(m->desk, at, x, (size_t)n * sizeof *x));
  }
}

static void open_context(model *m, bool device, const char *options) {
  memset(m, 0, sizeof *m);
  m->backend = ng_backend_device;
  m->backend.under = &ng_backend_ref;
  m->backend.host = &ng_linalg_ref;
  const fixture_how how = {.linalg = "ref", .threads = 1, .backend = device ? &m->backend : NULL};
  fixture_ok(&m->f, fixture_open(&m->f, options, &how));
  if (device) m->desk = ng_device_desk(m->f.ctx->queue->device);
}

static void add_layer(model *m, int i, rng *r) {
  const char name[2] = {(char)('a' + i), '\0'};
  const int64_t kernel[2] = {shape[i].kernel, shape[i].kernel}, ones[2] = {1, 1},
                image[2] = {SIDE, SIDE};
  ng_precond *p = m->f.p;
  fixture_ok(&m->f, shape[i].kernel == 0
                        ? ng_add_linear(p, name, shape[i].in, shape[i].out, shape[i].bias, NULL)
                        : ng_add_conv2d(p, name, shape[i].in, shape[i].out, kernel, ones, ones,
                                        ones, 1, image, shape[i].bias, NULL));
  for (int k = 0; k < 1 + shape[i].bias; k++) {
    m->weight[i][k] = random_array(m, r, count(i, k));
    m->gradient[i][k] = random_array(m, r, count(i, k));
    const int64_t rows = k == 0 ? shape[i].out : 1;
    ng_array w = ng_array_matrix(m->weight[i][k], rows, count(i, k) / rows, NG_F32);
    ng_array g = ng_array_matrix(m->gradient[i][k], rows, count(i, k) / rows, NG_F32);
    w.mem = g.mem = m->desk == NULL ? NG_HOST : NG_DEVICE;
    fixture_ok(&m->f, ng_bind_weight(p, i, (ng_param)k, &w));
    fixture_ok(&m->f, ng_bind_grad(p, i, (ng_param)k, &g));
  }
}

static void open_model(model *m, bool device, const char *options, rng *r) {
  open_context(m, device, options);
  for (int i = 0; i < LAYERS; i++) {
    add_layer(m, i, r);
  }
  fixture_ok(&m->f, ng_ready(m->f.p));
}

static int64_t positions_of(int i) { return shape[i].kernel > 0 ? SIDE * SIDE : 1; }
static int64_t observed_count(int i, int k) {
  return SAMPLES * positions_of(i) * (k == 0 ? shape[i].in : shape[i].out);
}

static void draw_observed(model *m, rng *r) {
  for (int i = 0; i < 2 * LAYERS; i++) {
    m->observed[i / 2][i % 2] = random_array(m, r, observed_count(i / 2, i % 2));
  }
}

static void observe_drawn(model *m) {
  fixture_ok(&m->f, fixture_begin(&m->f, SAMPLES));
  for (int i = 0; i < 2 * LAYERS; i++) {
    const int64_t side = shape[i / 2].kernel > 0 ? SIDE : 1;
    const int64_t width = i % 2 == 0 ? shape[i / 2].in : shape[i / 2].out;
    float *x = m->observed[i / 2][i % 2];
    ng_array a = side > 1 ? ng_array_nchw(x, SAMPLES, width, side, side, NG_F32)
                          : ng_array_matrix(x, SAMPLES, width, NG_F32);
    a.mem = m->desk == NULL ? NG_HOST : NG_DEVICE;
    fixture_ok(&m->f, i % 2 == 0 ? ng_observe_input(m->f.p, i / 2, &a, NG_BORROW)
                                 : ng_observe_output_grad(m->f.p, i / 2, &a, NG_COPY));
  }
}
static void observe(model *m, rng *r) {
  draw_observed(m, r);
  observe_drawn(m);
}

static ng_status step(model *m, const char *update) {
  ng_sgd sgd = fixture_sgd(0.1, 0.9);
  ng_adamw adamw;
  ng_adamw_init(&adamw, sizeof adamw);
  adamw.lr = 0.01;
  if (strcmp(update, "sgd") == 0) return ng_step_sgd(m->f.p, &sgd, 1);
  if (strcmp(update, "adamw") == 0) return ng_step_adamw(m->f.p, &adamw, 1);
  return ng_step(m->f.p, 0.1);
}

static void close_model(model *m) {
  for (int i = 0; i < m->arrays; i++) {
    if (m->desk == NULL) {
      free(m->array[i]);
    } else {
      dv_free(m->desk, m->array[i]);
    }
  }
  fixture_close(&m->f);
}

/* ---- steps -----------------------------------------------------------------------------------*/

/* Both backends add in double and round to f32, in different orders: a sum may differ in its last bit, which a step divides by the
 * damping. */
static void expect_equal(const model *a, const model *b, const char *what) {
  float x[MOST], y[MOST];
  for (int i = 0; i < LAYERS; i++) {
    for (int k = 0; k < 1 + shape[i].bias; k++) {
      float *const of[2][2] = {{a->weight[i][k], b->weight[i][k]},
                               {a->gradient[i][k], b->gradient[i][k]}};
      for (int j = 0; j < 2; j++) {
        read_array(a, of[j][0], count(i, k), x);
        read_array(b, of[j][1], count(i, k), y);
        for (int64_t e = 0; e < count(i, k); e++) {
          if (!(fabsf(x[e] - y[e]) <= 1e-5f * (1.0f + fabsf(y[e]))))
            fail_msg("%s: layer %d: element %d is %.9g, ref has %.9g", what, i, (int)e,
                     (double)x[e], (double)y[e]);
        }
      }
    }
  }
}

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

/* ---- work of a step --------------------------------------------------------------------------*/

/* Bytes of n descriptors in the stage. */
static int64_t staged(int64_t n, size_t size) { return (n * (int64_t)size + 255) / 256 * 256; }
static int64_t cut_of(int64_t n) { return staged(n + 1, sizeof(int64_t)); }

/* Observations and a step of Eva with SGD, from shapes. A layer has 2 observations (sum_patches, which sets one double to 0,
 * accumulate), 2 statistics (check_finite with 2 launches, find_largest, fold) and 2 mean vectors (sum_row_products), one more
 * with a bias. The step has one list of gradients (measure_gradients with 2 launches) and one list of updates. The host waits
 * before it reads the checks of the sums, after the folds, before it reads the sums of the gradients, and before it reads the
 * number of overflows. */
static standin_counts plan_eva_step(void) {
  standin_counts c = {.launches = 2 + 1, .copies = 2, .waits = 4};
  int64_t parameters = 0;
  for (int i = 0; i < LAYERS; i++) {
    c.launches += 2 * 2 + 2 * 4 + 2 + shape[i].bias;
    c.zeros += 2 * 1 + 2 * 1; /* sum_patches; find_largest: the result */
    parameters += 1 + shape[i].bias;
  }
  c.bytes += staged(parameters, sizeof(dv_measure)) + 2 * cut_of(parameters);
  c.bytes += staged(parameters, sizeof(dv_direction)) + staged(parameters, sizeof(dv_update)) +
             cut_of(parameters);
  return c;
}

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
    float *last = m.observed[at][kind] + observed_count(at, kind) - 1;
    assert_null(dv_copy(m.desk, last, &refused[n].value, sizeof *last));
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
      cmocka_unit_test(many_parameters_equal_ref),
      cmocka_unit_test(a_parallel_gradient_is_updated_in_double),
      cmocka_unit_test(a_step_does_the_planned_work),
      cmocka_unit_test(a_fused_step_does_the_planned_work),
      cmocka_unit_test(a_skipped_step_is_reported_later),
      cmocka_unit_test(observations_and_a_fused_step_can_be_captured),
      cmocka_unit_test(a_refused_observation_names_its_layer),
      cmocka_unit_test(failures_of_the_device_change_no_weight),
      cmocka_unit_test(ekfac_refuses_memory_of_the_device),
      cmocka_unit_test(failed_allocations_are_reported),
  };
  return cmocka_run_group_tests_name("cuda", tests, NULL, NULL);
}
