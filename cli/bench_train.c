/* bench_train.c: `natgrad bench train`: forward and backward of a network of the trainer on random
 * data, beside the time its arithmetic would take at the rate of SGEMM.
 *
 * The arithmetic of a layer is 2 in out kernel^2 positions operations a sample forward, and twice that
 * backward (one product for the weights, one for the input, which the first layer does not need). */
#include "bench.h"
#include "floors.h"
#include "nn/models.h"
#include "random.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *take(void *user, size_t bytes) {
  (void)user;
  return malloc(bytes);
}

static void give(void *user, void *p, size_t bytes) {
  (void)user;
  (void)bytes;
  free(p);
}

typedef struct sums {
  double forward, backward; /* operations a batch */
} sums;

static sums arithmetic(const nn *n, int64_t batch) {
  sums s = {0.0, 0.0};
  for (int i = 0; i < nn_layers(n); i++) {
    const nn_layer *l = nn_layer_at(n, i);
    const double area = l->conv ? (double)(l->kernel * l->kernel) : 1.0;
    const double one =
        2.0 * (double)batch * (double)l->in * (double)l->out * area * (double)l->positions;
    s.forward += one;
    s.backward += i == 0 ? one : 2.0 * one;
  }
  return s;
}

static void line(const bench_wish *w, const char *what, double ms, double floor) {
  if (w->json) {
    json_t *o = json_pack("{s:s, s:s, s:f, s:f}", "bench", "train", "case", what, "median_ms", ms,
                          "floor_ms", floor);
    char *text = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(6));
    if (text != NULL) puts(text);
    free(text);
    json_decref(o);
  } else if (floor > 0.0) {
    printf("%-18s %10.2f %10.2f %8.2f\n", what, ms, floor, ms / floor);
  } else {
    printf("%-18s %10.2f\n", what, ms);
  }
}

static int measure(const bench_wish *w, nn *n, const model_task *task) {
  const int64_t in = w->batch * nn_count(task->input);
  float *x = cli_take((size_t)in, sizeof *x);
  float *targets = cli_take((size_t)(w->batch * nn_outputs(n)), sizeof *targets);
  int32_t *labels = cli_take((size_t)w->batch, sizeof *labels);
  double *ms[3];
  for (int k = 0; k < 3; k++)
    ms[k] = cli_take((size_t)w->repeat, sizeof *ms[k]);
  random_normal(1, RANDOM_DATA, 0, 1.0, in, x);
  for (int64_t i = 0; i < w->batch; i++)
    labels[i] = (int32_t)(i % nn_outputs(n));
  int rc = CLI_OK;
  for (int r = -1; r < w->repeat && rc == CLI_OK; r++) { /* the first one is not counted */
    const double t0 = now_ms();
    rc = nn_forward(n, NN_TRAIN, x, w->batch, (uint64_t)(r + 1), NULL);
    const double t1 = now_ms();
    (void)nn_loss(n, labels, targets, NULL);
    if (rc == CLI_OK) rc = nn_backward(n, true, NULL);
    const double t2 = now_ms();
    if (r < 0) continue;
    ms[0][r] = t1 - t0;
    ms[1][r] = t2 - t1;
    ms[2][r] = t2 - t0;
  }
  if (rc == CLI_OK) {
    const sums s = arithmetic(n, w->batch);
    const double rate = w->no_floors || !floors_possible() ? 0.0 : floor_sgemm_gflops(4096) * 1e6;
    const double f = rate > 0.0 ? s.forward / rate : 0.0, b = rate > 0.0 ? s.backward / rate : 0.0;
    if (!w->json) {
      printf("bench train: %s, batch %lld, %lld parameters, %.1f GFLOP a step; medians of %d, ms\n",
             w->model, (long long)w->batch, (long long)nn_weights(n),
             (s.forward + s.backward) * 1e-9, w->repeat);
      if (rate > 0.0) printf("%-18s %10s %10s %8s\n", "", "median", "as SGEMM", "ratio");
    }
    line(w, "forward", bench_median(ms[0], w->repeat), f);
    line(w, "loss and backward", bench_median(ms[1], w->repeat), b);
    line(w, "both", bench_median(ms[2], w->repeat), f + b);
  }
  for (int k = 0; k < 3; k++)
    free(ms[k]);
  free(x);
  free(targets);
  free(labels);
  return rc;
}

int bench_train(const bench_wish *w, const cli_args *args) {
  if (args->n_settings > 0) {
    return cli_bad("bench train: --%s is an option of the library, which is not part of it",
                   args->settings[0].name);
  }
  model_task task;
  bool reconstructs = false;
  if (model_task_of(w->model, &task) != CLI_OK) return CLI_BAD;
  const ng_pool_alloc from = {take, give, NULL};
  ng_pool *pool = cli_cores() > 1 ? ng_pool_create(cli_cores(), &from) : NULL;
  nn *n = nn_create(pool, 1);
  int rc = model_build(w->model, &task, n, &reconstructs);
  if (rc == CLI_OK) rc = nn_ready(n, w->batch);
  if (rc == CLI_OK) rc = measure(w, n, &task);
  nn_destroy(&n);
  ng_pool_destroy(pool);
  return rc;
}
