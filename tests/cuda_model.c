/* cuda_model.c: see cuda_model.h. */
#include "cuda_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "unit_test.h"

const shape_of shape[LAYERS] = {{7, 5, 0, true}, {3, 4, 3, false}, {64, 62, 0, false}};

static int64_t columns(int i) {
  return shape[i].kernel == 0 ? shape[i].in : shape[i].in * shape[i].kernel * shape[i].kernel;
}
int64_t count(int i, int k) { return k == 0 ? shape[i].out * columns(i) : shape[i].out; }

float *random_array(model *m, rng *r, int64_t n) {
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

void read_array(const model *m, const float *at, int64_t n, float *out) {
  if (m->desk == NULL) {
    memcpy(out, at, (size_t)n * sizeof *out);
  } else {
    assert_null(dv_copy(m->desk, out, at, (size_t)n * sizeof *out));
  }
}

void write_array(const model *m, float *at, int64_t n, const float *x) {
  if (m->desk == NULL) {
    memcpy(at, x, (size_t)n * sizeof *x);
  } else {
    assert_null(dv_copy(m->desk, at, x, (size_t)n * sizeof *x));
  }
}

static void open_on(model *m, const ng_context_config *config, bool device, const char *options) {
  memset(m, 0, sizeof *m);
  m->backend = ng_backend_device;
  m->backend.under = &ng_backend_ref;
  m->backend.host = &ng_linalg_ref;
  ng_context_config with = *config;
  with.queue = device ? m : NULL; /* any handle of a stream */
  const fixture_how how = {
      .linalg = "ref", .threads = 1, .backend = device ? &m->backend : NULL, .config = &with};
  fixture_ok(&m->f, fixture_open(&m->f, options, &how));
  if (device) m->desk = ng_device_desk(m->f.ctx->queue->device);
}
void open_context(model *m, bool device, const char *options) {
  ng_context_config config;
  ng_context_config_init(&config, sizeof config);
  open_on(m, &config, device, options);
}
void open_context_with(model *m, const ng_context_config *config, const char *options) {
  open_on(m, config, true, options);
}

void add_layer(model *m, int i, rng *r) {
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

void open_model(model *m, bool device, const char *options, rng *r) {
  open_context(m, device, options);
  for (int i = 0; i < LAYERS; i++) {
    add_layer(m, i, r);
  }
  fixture_ok(&m->f, ng_ready(m->f.p));
}

static int64_t positions_of(int i) { return shape[i].kernel > 0 ? SIDE * SIDE : 1; }
int64_t observed_count(int i, int k) {
  return SAMPLES * positions_of(i) * (k == 0 ? shape[i].in : shape[i].out);
}

void draw_observed(model *m, rng *r) {
  for (int i = 0; i < 2 * LAYERS; i++) {
    m->observed[i / 2][i % 2] = random_array(m, r, observed_count(i / 2, i % 2));
  }
}

void observe_drawn(model *m) {
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
void observe(model *m, rng *r) {
  draw_observed(m, r);
  observe_drawn(m);
}

ng_status step(model *m, const char *update) {
  ng_sgd sgd = fixture_sgd(0.1, 0.9);
  ng_adamw adamw;
  ng_adamw_init(&adamw, sizeof adamw);
  adamw.lr = 0.01;
  if (strcmp(update, "sgd") == 0) return ng_step_sgd(m->f.p, &sgd, 1);
  if (strcmp(update, "adamw") == 0) return ng_step_adamw(m->f.p, &adamw, 1);
  return ng_step(m->f.p, 0.1);
}

void close_model(model *m) {
  if (m->desk != NULL) (void)dv_wait(m->desk);
  for (int i = 0; i < m->arrays; i++) {
    if (m->desk == NULL) {
      free(m->array[i]);
    } else {
      dv_free(m->desk, m->array[i]);
    }
  }
  fixture_close(&m->f);
}

/* Both backends add in double and round to f32, in different orders: a sum may differ in its last bit, which a step divides by the
 * damping. */
void expect_equal(const model *a, const model *b, const char *what) {
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

/* Bytes of n descriptors in the stage. */
int64_t staged(int64_t n, size_t size) { return (n * (int64_t)size + 255) / 256 * 256; }
int64_t cut_of(int64_t n) { return staged(n + 1, sizeof(int64_t)); }

/* Observations and a step of Eva with SGD, from shapes. A layer has 2 observations (sum_patches, which sets one double to 0,
 * accumulate), 2 statistics (check_finite with 2 launches, find_largest, fold) and 2 mean vectors (sum_row_products), one more
 * with a bias. The step has one list of gradients (measure_gradients with 2 launches) and one list of updates. The host waits
 * before it reads the checks of the sums, after the folds, before it reads the sums of the gradients, and before it reads the
 * number of overflows. */
standin_counts plan_eva_step(void) {
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
