/* bench_train.c: `natgrad bench train`: forward and backward of a network of the trainer on random
 * data, beside the time its arithmetic would take at the rate of SGEMM.
 *
 * The arithmetic of a layer is 2 in out kernel^2 positions operations a sample forward, and twice that
 * backward (one product for the weights, one for the input, which the first layer does not need).  Then norm
 * blocks and whole steps (bench_norms.c). */
#include "bench.h"
#include "clock.h"
#include "floors.h"
#include "nn/models.h"
#include "common/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

int bench_train_line(const bench_wish *w, const char *what, double ms, double floor) {
  if (w->json) {
    ngio_out line = bench_line("train", what);
    ngio_put_real(&line, "median_ms", ms);
    ngio_put_real(&line, "floor_ms", floor);
    return bench_print(&line);
  }
  if (floor > 0.0) {
    printf("%-18s %10.2f %10.2f %8.2f\n", what, ms, floor, ms / floor);
  } else {
    printf("%-18s %10.2f\n", what, ms);
  }
  return CLI_OK;
}

/* Medians of forward, of loss and backward, and of both, over `repeat` steps after a first one. */
static int measure(nn *n, const model_task *task, int64_t batch, int repeat, double median[3]) {
  const int64_t in = batch * nn_count(task->input);
  float *x = cli_take((size_t)in, sizeof *x);
  float *targets = cli_take((size_t)(batch * nn_outputs(n)), sizeof *targets);
  int32_t *labels = cli_take((size_t)batch, sizeof *labels);
  double *ms[3];
  for (int k = 0; k < 3; k++)
    ms[k] = cli_take((size_t)repeat, sizeof *ms[k]);
  random_normal(1, RANDOM_DATA, 0, 1.0, in, x);
  for (int64_t i = 0; i < batch; i++)
    labels[i] = (int32_t)(i % nn_outputs(n));
  int rc = CLI_OK;
  for (int r = -1; r < repeat && rc == CLI_OK; r++) { /* the first one is not counted */
    const double t0 = ng_now_ms();
    rc = nn_forward(n, NN_TRAIN, x, batch, (uint64_t)(r + 1), NULL);
    const double t1 = ng_now_ms();
    (void)nn_loss(n, NN_TRAIN, labels, nn_loss_of(n) == NN_SQUARED_ERROR ? targets : NULL, NULL);
    if (rc == CLI_OK) rc = nn_backward(n, true, NULL);
    const double t2 = ng_now_ms();
    if (r < 0) continue;
    ms[0][r] = t1 - t0;
    ms[1][r] = t2 - t1;
    ms[2][r] = t2 - t0;
  }
  for (int k = 0; k < 3; k++) {
    median[k] = bench_median(ms[k], repeat);
    free(ms[k]);
  }
  free(x);
  free(targets);
  free(labels);
  return rc;
}

/* A network for `batch` samples; `use` is called with it. */
static int with_network(const char *model, int64_t batch,
                        int (*use)(nn *n, const model_task *task, void *arg), void *arg) {
  model_task task;
  bool reconstructs = false;
  if (model_task_of(model, &task) != CLI_OK) return CLI_BAD;
  ng_pool *pool = cli_cores() > 1 ? ng_pool_create(cli_cores(), NULL) : NULL;
  nn *n = nn_create(pool, 1);
  int rc = model_build(model, &task, n, &reconstructs);
  if (rc == CLI_OK) rc = nn_ready(n, batch);
  if (rc == CLI_OK) rc = use(n, &task, arg);
  nn_destroy(&n);
  ng_pool_destroy(pool);
  return rc;
}

typedef struct asked {
  int64_t batch;
  int repeat;
  double median[3];
} asked;

static int ask(nn *n, const model_task *task, void *arg) {
  asked *a = arg;
  return measure(n, task, a->batch, a->repeat, a->median);
}

int bench_iterations(const char *model, int repeat, const double optimize[3]) {
  printf("\n%s, ms an iteration; optimize: published, two passes and SGD, fused\n%6s %9s %9s",
         model, "batch", "forward", "backward");
  printf(" %10s %10s %8s %16s\n", "published", "two passes", "fused", "iteration ratio");
  for (int64_t batch = 1; batch <= 256; batch *= 2) {
    asked a = {batch, repeat, {0.0}};
    const int rc = with_network(model, batch, ask, &a);
    if (rc != CLI_OK) return rc;
    const double passes = a.median[0] + a.median[1];
    printf("%6lld %9.2f %9.2f %10.2f %10.2f %8.2f %16.2f\n", (long long)batch, a.median[0],
           a.median[1], optimize[0], optimize[1], optimize[2],
           (passes + optimize[0]) / (passes + optimize[2]));
    (void)fflush(stdout);
  }
  return CLI_OK;
}

static int show(nn *n, const model_task *task, void *arg) {
  const bench_wish *w = arg;
  double median[3];
  int rc = measure(n, task, w->batch, w->repeat, median);
  if (rc != CLI_OK) return rc;
  const sums s = arithmetic(n, w->batch);
  const double rate = w->no_floors || !floors_possible() ? 0.0 : floor_sgemm_gflops(4096) * 1e6;
  const double f = rate > 0.0 ? s.forward / rate : 0.0, b = rate > 0.0 ? s.backward / rate : 0.0;
  if (!w->json) {
    printf("bench train: %s, batch %lld, %lld parameters, %.1f GFLOP a step; medians of %d, ms\n",
           w->model, (long long)w->batch, (long long)nn_weights(n), (s.forward + s.backward) * 1e-9,
           w->repeat);
    if (rate > 0.0) printf("%-18s %10s %10s %8s\n", "", "median", "as SGEMM", "ratio");
  }
  rc = bench_train_line(w, "forward", median[0], f);
  if (rc == CLI_OK) rc = bench_train_line(w, "loss and backward", median[1], b);
  if (rc == CLI_OK) rc = bench_train_line(w, "both", median[2], f + b);
  if (rc != CLI_OK || nn_norms(n) == 0 || nn_loss_of(n) != NN_CROSS_ENTROPY) return rc;
  return bench_norms(n, w, median[2]);
}

int bench_train(const bench_wish *w, const cli_args *args) {
  if (args->n_settings > 0) {
    return cli_bad("bench train: --%s is an option of the library, which is not part of it",
                   args->settings[0].name);
  }
  bench_wish wish = *w;
  return with_network(w->model, w->batch, show, &wish);
}
