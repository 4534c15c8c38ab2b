/* torture_train.c: a training run that may be killed at any moment.
 *
 *   torture_train FOLDER STEPS
 *
 * trains a small perceptron on made-up data, from the newest whole pair FOLDER/weights.N,
 * FOLDER/state.N or from the beginning, saves a pair every third step, and ends with FOLDER/final,
 * the weights. scripts/torture.sh kills it again and again and compares `final` with that of an
 * undisturbed run. Prints "resumed = N steps = M". */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "draw.h"
#include "natgrad.h"
#include "plane.h"
#include "safetensors.h"

enum { B = 32, IN = 20, HIDDEN = 48, OUT = 10, EVERY = 3 };
enum { W1 = HIDDEN * IN, B1 = HIDDEN, W2 = OUT * HIDDEN, B2 = OUT, ALL = W1 + B1 + W2 + B2 };

static struct {
  float w[ALL], g[ALL];
  float x[B * IN], h[B * HIDDEN], dh[B * HIDDEN], y[B * OUT];
  ng_context *ctx;
  ng_precond *p;
  int32_t fc1, fc2;
  char folder[512], message[512];
} run;

#define TRY(call)                                                                                  \
  do {                                                                                             \
    const ng_status try_ = (call);                                                                 \
    if (try_ < NG_OK) give_up(#call, try_);                                                        \
  } while (0)

static void give_up(const char *what, ng_status st) {
  fprintf(stderr, "torture_train: %s: %s: %s\n", what, ng_status_name(st),
          run.ctx ? ng_last_error(run.ctx) : run.message);
  exit(1);
}

static float number(uint64_t a, uint64_t b) { /* splitmix64, in [-1, 1) */
  uint64_t x = a * UINT64_C(0x9e3779b97f4a7c15) + b + UINT64_C(0x632be59bd9b4e019);
  x = rng_mix(x);
  return (float)((double)(x >> 11) / 4503599627370496.0 - 1.0);
}

/* y[n] = W x[n] + b, W [out, in] */
static void affine(const float *w, const float *b, const float *x, float *y, int in, int out) {
  for (int n = 0; n < B; n++) {
    for (int o = 0; o < out; o++) {
      float s = b[o];
      for (int i = 0; i < in; i++)
        s += w[o * in + i] * x[n * in + i];
      y[n * out + o] = s;
    }
  }
}

static void gradient(const float *x, const float *d, float *dw, float *db, int in, int out) {
  for (int o = 0; o < out; o++) {
    db[o] = 0;
    for (int n = 0; n < B; n++)
      db[o] += d[n * out + o];
    for (int i = 0; i < in; i++) {
      float s = 0;
      for (int n = 0; n < B; n++)
        s += d[n * out + o] * x[n * in + i];
      dw[o * in + i] = s;
    }
  }
}

static void bind(int32_t layer, ng_param which, int64_t at, int64_t rows, int64_t cols) {
  const plane g = plane_of(run.g + at, rows, cols, NG_F32);
  const plane w = plane_of(run.w + at, rows, cols, NG_F32);
  TRY(plane_bind_grad(run.p, layer, which, &g));
  TRY(plane_bind_weight(run.p, layer, which, &w));
}

static void build(void) {
  TRY(ng_context_create(NG_VERSION, NULL, run.message, sizeof run.message, &run.ctx));
  TRY(ng_precond_create(run.ctx, "update=adamw stat_period=2 solve_period=5", &run.p));
  TRY(ng_add_linear(run.p, "fc1", IN, HIDDEN, 1, &run.fc1));
  TRY(ng_add_linear(run.p, "fc2", HIDDEN, OUT, 1, &run.fc2));
  bind(run.fc1, NG_WEIGHT, 0, HIDDEN, IN);
  bind(run.fc1, NG_BIAS, W1, 1, HIDDEN);
  bind(run.fc2, NG_WEIGHT, W1 + B1, OUT, HIDDEN);
  bind(run.fc2, NG_BIAS, W1 + B1 + W2, 1, OUT);
  TRY(ng_ready(run.p));
}

static void observe(int32_t layer, float *a, int in, float *d, int out) {
  const plane va = plane_of(a, B, in, NG_F32), vd = plane_of(d, B, out, NG_F32);
  TRY(plane_input(run.p, layer, &va, NG_COPY));
  TRY(plane_output_grad(run.p, layer, &vd, NG_COPY));
}

static void step(int64_t t) {
  ng_batch batch;
  ng_adamw how;
  ng_batch_init(&batch, sizeof batch);
  batch.samples = B;
  TRY(ng_begin(run.p, &batch));
  for (int i = 0; i < B * IN; i++)
    run.x[i] = number((uint64_t)t, (uint64_t)i);
  affine(run.w, run.w + W1, run.x, run.h, IN, HIDDEN);
  for (int i = 0; i < B * HIDDEN; i++)
    run.h[i] = tanhf(run.h[i]);
  affine(run.w + W1 + B1, run.w + W1 + B1 + W2, run.h, run.y, HIDDEN, OUT);
  for (int n = 0; n < B; n++) { /* softmax cross-entropy; the class is the largest of ten inputs */
    float *y = run.y + n * OUT, most = y[0], sum = 0;
    int label = 0;
    for (int o = 0; o < OUT; o++) {
      if (y[o] > most) most = y[o];
      if (run.x[n * IN + o] > run.x[n * IN + label]) label = o;
    }
    for (int o = 0; o < OUT; o++)
      sum += y[o] = expf(y[o] - most);
    for (int o = 0; o < OUT; o++)
      y[o] = (y[o] / sum - (o == label ? 1.0f : 0.0f)) / (float)B;
  }
  for (int n = 0; n < B; n++) {
    for (int i = 0; i < HIDDEN; i++) {
      float s = 0;
      for (int o = 0; o < OUT; o++)
        s += run.y[n * OUT + o] * run.w[W1 + B1 + o * HIDDEN + i];
      run.dh[n * HIDDEN + i] = s * (1.0f - run.h[n * HIDDEN + i] * run.h[n * HIDDEN + i]);
    }
  }
  observe(run.fc1, run.x, IN, run.dh, HIDDEN);
  observe(run.fc2, run.h, HIDDEN, run.y, OUT);
  gradient(run.x, run.dh, run.g, run.g + W1, IN, HIDDEN);
  gradient(run.h, run.y, run.g + W1 + B1, run.g + W1 + B1 + W2, HIDDEN, OUT);
  ng_adamw_init(&how, sizeof how);
  how.lr = 0.002;
  TRY(ng_step_adamw(run.p, &how, 1));
}

/* ---- pairs on disk ---------------------------------------------------------------------------*/

typedef struct path {
  char text[600];
} path;

static path path_of(const char *what, int64_t t) {
  path p;
  if (t < 0) {
    (void)snprintf(p.text, sizeof p.text, "%s/%s", run.folder, what);
  } else {
    (void)snprintf(p.text, sizeof p.text, "%s/%s.%lld", run.folder, what, (long long)t);
  }
  return p;
}

static void save_weights(path file) {
  const ngio_tensor t = {
      .name = "weights", .dtype = NGIO_F32, .ndim = 1, .shape = {ALL}, .data = run.w};
  if (ngio_tensors_write(file.text, &t, 1, NULL, 0, run.message, sizeof run.message) != NGIO_OK) {
    fprintf(stderr, "torture_train: %s\n", run.message);
    exit(1);
  }
}

/* The state comes last: where it is, the weights are. */
static void save(int64_t t) {
  save_weights(path_of("weights", t));
  TRY(ng_save(run.p, path_of("state", t).text));
  (void)unlink(path_of("state", t - 2 * EVERY).text);
  (void)unlink(path_of("weights", t - 2 * EVERY).text);
}

static int64_t newest(void) {
  int64_t most = 0;
  DIR *d = opendir(run.folder);
  if (d == NULL) {
    perror(run.folder);
    exit(1);
  }
  for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
    char *end = NULL;
    if (strncmp(e->d_name, "state.", 6) != 0) continue;
    const long long t = strtoll(e->d_name + 6, &end, 10);
    if (*end == 0 && t > most) most = t;
  }
  (void)closedir(d);
  return most;
}

/* A file under its own name is whole: one that cannot be read is a failure of what is tested. */
static void load(int64_t t) {
  ngio_tensors *f = NULL;
  if (ngio_tensors_read(path_of("weights", t).text, NULL, &f, run.message, sizeof run.message) !=
      NGIO_OK) {
    fprintf(stderr, "torture_train: %s\n", run.message);
    exit(1);
  }
  memcpy(run.w, ngio_tensors_find(f, "weights")->data, sizeof run.w);
  ngio_tensors_close(&f);
  TRY(ng_load(run.p, path_of("state", t).text));
}

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: torture_train FOLDER STEPS\n");
    return 2;
  }
  (void)snprintf(run.folder, sizeof run.folder, "%s", argv[1]);
  const int64_t steps = strtoll(argv[2], NULL, 10);
  for (int i = 0; i < ALL; i++)
    run.w[i] = number(1u << 30, (uint64_t)i) * 0.2f;
  build();
  const int64_t from = newest();
  if (from > 0) load(from);
  printf("resumed = %lld steps = %lld\n", (long long)from, (long long)steps);
  (void)fflush(stdout);
  for (int64_t t = from; t < steps; t++) {
    step(t);
    if ((t + 1) % EVERY == 0) save(t + 1);
  }
  save_weights(path_of("final", -1));
  ng_precond_destroy(&run.p);
  ng_context_destroy(&run.ctx);
  return 0;
}
