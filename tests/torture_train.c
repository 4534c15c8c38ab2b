/* torture_train.c: a training run that may be killed at any moment.
 *
 *   torture_train FOLDER STEPS
 *
 * trains two layers on numbers of each step, from the newest whole pair FOLDER/weights.N,
 * FOLDER/state.N or from the beginning, saves a pair every third step, and ends with FOLDER/final,
 * the weights. scripts/torture.sh kills it again and again and compares `final` with that of an
 * undisturbed run. Prints "resumed = N steps = M". */
#include <dirent.h>
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
enum { OBSERVED = B * (IN + 2 * HIDDEN + OUT) }; /* numbers that both layers observe */

static struct {
  float w[ALL], g[ALL];
  float x[OBSERVED];
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

/* Arrays of the step's numbers; gradients depend on the weights. */
static void step(int64_t t) {
  ng_batch batch;
  ng_adamw how;
  ng_batch_init(&batch, sizeof batch);
  batch.samples = B;
  TRY(ng_begin(run.p, &batch));
  for (int i = 0; i < OBSERVED; i++)
    run.x[i] = number((uint64_t)t, (uint64_t)i);
  float *h = run.x + B * IN, *dh = h + B * HIDDEN, *y = dh + B * HIDDEN;
  observe(run.fc1, run.x, IN, dh, HIDDEN);
  observe(run.fc2, h, HIDDEN, y, OUT);
  for (int i = 0; i < ALL; i++)
    run.g[i] = run.w[i] + number((uint64_t)t, (uint64_t)(OBSERVED + i));
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
