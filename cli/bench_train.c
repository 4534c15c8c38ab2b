/* bench_train.c: `natgrad bench train`: forward and backward of a trainer's network on random data, its norm blocks, and
 * whole steps of spngd.
 *
 * Lower bound of a pass: 2 in out kernel^2 positions operations a layer and sample forward, and twice that backward
 * (one product for the weights, one for the input, which the first layer does not need), at the rate of SGEMM.
 * Norm blocks are layers of the library with the options of spngd, observed in a pass of their own, so that the time
 * is theirs alone.  Their lower bound is a plain sum over the same arrays at the same places of another pass. */
#include "bench.h"
#include "clock.h"
#include "common/random.h"
#include "floors.h"
#include "nn/models.h"
#include "simd.h"
#include "train/precond.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { FORWARD, BACKWARD, BOTH, NORMS, STALE_NORMS, FRESH_STEP, STALE_STEP };
enum { READERS = 64, SMALL = 1 << 18 }; /* floats that one thread reads faster */

typedef struct work {
  nn *n;
  ng_pool *pool;
  model_task task;
  float *x, *targets;
  int32_t *labels;
  int64_t samples;
  ng_precond *norms; /* NULL: the network has none, or another loss */
  settings set;
  bool settled;
  precond *whole; /* --steps */
  /* of the arrays of norm layers in one pass */
  double ms, read_ms, sum;
  const float *array;
  int64_t floats;
  float part[READERS];
  const bench *b;
} work;

/* ---- a pass ----------------------------------------------------------------------------------*/

static int make_network(work *k, const char *model, int64_t samples) {
  bool reconstructs = false;
  k->samples = samples;
  if (model_task_of(model, &k->task) != CLI_OK) return CLI_BAD;
  k->pool = cli_cores() > 1 ? ng_pool_create(cli_cores(), NULL) : NULL;
  k->n = nn_create(k->pool, 1);
  int rc = model_build(model, &k->task, k->n, &reconstructs);
  if (rc == CLI_OK) rc = nn_ready(k->n, samples);
  if (rc != CLI_OK) return rc;
  const int64_t in = samples * nn_count(k->task.input);
  k->x = cli_take((size_t)in, sizeof *k->x);
  k->targets = cli_take((size_t)(samples * nn_outputs(k->n)), sizeof *k->targets);
  k->labels = cli_take((size_t)samples, sizeof *k->labels);
  random_normal(1, RANDOM_DATA, 0, 1.0, in, k->x);
  for (int64_t i = 0; i < samples; i++)
    k->labels[i] = (int32_t)(i % nn_outputs(k->n));
  return CLI_OK;
}

static void drop_network(work *k) {
  nn_destroy(&k->n);
  ng_pool_destroy(k->pool);
  free(k->x);
  free(k->targets);
  free(k->labels);
}

/* Forward, loss and backward; `middle`: the time after forward; NULL: not wanted. */
static int pass(work *k, int r, const nn_watch *watch, double *middle) {
  const float *targets = nn_loss_of(k->n) == NN_SQUARED_ERROR ? k->targets : NULL;
  int rc = nn_forward(k->n, NN_TRAIN, k->x, k->samples, (uint64_t)(r + 1), watch);
  if (middle != NULL) *middle = ng_now_ms();
  (void)nn_loss(k->n, NN_TRAIN, k->labels, targets, NULL);
  if (rc == CLI_OK) rc = nn_backward(k->n, true, watch);
  return rc;
}

static int timed_pass(bench *b, work *k, int r) {
  double middle;
  const double start = ng_now_ms();
  const int rc = pass(k, r, NULL, &middle);
  const double end = ng_now_ms();
  bench_time(b, FORWARD, r, middle - start);
  bench_time(b, BACKWARD, r, end - middle);
  bench_time(b, BOTH, r, end - start);
  return rc;
}

int bench_passes(bench *b, int64_t batch, int row) {
  work k = {.samples = batch};
  int rc = make_network(&k, b->model, batch);
  for (int r = -1; r < b->repeat && rc == CLI_OK; r++) {
    const double start = ng_now_ms();
    rc = pass(&k, r, NULL, NULL);
    bench_time(b, row, r, ng_now_ms() - start);
  }
  drop_network(&k);
  return rc;
}

/* ---- norm blocks -----------------------------------------------------------------------------*/

static int make_norms(const bench *b, work *k) {
  ng_status st = ng_precond_create(b->ctx, "method=spngd stat_period=2 solve_period=2", &k->norms);
  for (int i = 0; i < nn_norms(k->n) && st >= 0; i++) {
    const nn_norm_layer *l = nn_norm_at(k->n, i);
    const int param[2] = {l->gamma_param, l->beta_param};
    st = ng_add_norm(k->norms, l->name, NG_BATCH_NORM, l->channels, 1, l->eps, NULL);
    for (int j = 0; j < 2 && st >= 0; j++) {
      const ng_array g = ng_array_vector(nn_param_at(k->n, param[j])->grad, l->channels, NG_F32);
      st = ng_bind_grad(k->norms, i, (ng_param)j, &g);
    }
  }
  if (st >= 0) st = ng_ready(k->norms);
  return st < 0 ? bench_failed(b, "norm blocks", st) : CLI_OK;
}

static int observe(work *k, int layer, const float *x, int64_t samples, bool grad) {
  const int norm = layer - nn_layers(k->n);
  if (norm < 0) return CLI_OK;
  const nn_norm_layer *l = nn_norm_at(k->n, norm);
  const ng_array v = ng_array_nhwc((float *)(uintptr_t)x, samples, l->channels, l->height, l->width,
                                   NG_F32); /* read only */
  const double start = ng_now_ms();
  const ng_status st = grad ? ng_observe_output_grad(k->norms, norm, &v, NG_BORROW)
                            : ng_observe_input(k->norms, norm, &v, NG_BORROW);
  k->ms += ng_now_ms() - start;
  return st < 0 ? bench_failed(k->b, "norm blocks", st) : CLI_OK;
}

static int observe_input(void *user, int layer, const float *x, int64_t samples, int64_t columns) {
  (void)columns;
  return observe(user, layer, x, samples, false);
}

static int observe_grad(void *user, int layer, const float *x, int64_t samples, int64_t columns) {
  (void)columns;
  return observe(user, layer, x, samples, true);
}

/* A pass that norms observe, a step with new statistics, and a step without. */
static int norm_round(bench *b, work *k, int r) {
  const nn_watch watch = {k, observe_input, observe_grad};
  k->ms = 0.0;
  ng_status st = ng_begin_samples(k->norms, k->samples, 1.0);
  if (st < 0) return bench_failed(b, "norm blocks", st);
  if (pass(k, r, &watch, NULL) != CLI_OK) return CLI_BAD;
  for (int row = NORMS; row <= STALE_NORMS && st >= 0; row++) {
    const double start = ng_now_ms();
    st = ng_step(k->norms, 0.1);
    bench_time(b, row, r, ng_now_ms() - start + (row == NORMS ? k->ms : 0.0));
  }
  return st < 0 ? bench_failed(b, "norm blocks", st) : CLI_OK;
}

NG_CLONES static float sum_of(const float *x, int64_t n) {
  enum { LANES = 128 };
  float s[LANES] = {0.0f}, all = 0.0f;
  for (int64_t i = 0; i + LANES <= n; i += LANES) {
    for (int k = 0; k < LANES; k++)
      s[k] += x[i + k];
  }
  for (int k = 0; k < LANES; k++)
    all += s[k];
  return all;
}

static int readers(const work *k) {
  const int threads = k->pool != NULL && k->floats >= SMALL ? ng_pool_threads(k->pool) : 1;
  return threads < READERS ? threads : READERS;
}

static void read_part(void *arg, int32_t i) {
  work *k = arg;
  const int64_t parts = readers(k), from = k->floats * i / parts;
  k->part[i] = sum_of(k->array + from, k->floats * (i + 1) / parts - from);
}

static int read_array(void *user, int layer, const float *x, int64_t samples, int64_t columns) {
  work *k = user;
  if (layer < nn_layers(k->n)) return CLI_OK;
  const double start = ng_now_ms();
  k->array = x;
  k->floats = samples * columns;
  if (readers(k) > 1) {
    ng_pool_run(k->pool, readers(k), read_part, k);
  } else {
    read_part(k, 0);
  }
  k->ms += ng_now_ms() - start;
  for (int i = 0; i < readers(k); i++)
    k->sum += (double)k->part[i];
  return CLI_OK;
}

static int read_round(work *k, int r) {
  const nn_watch watch = {k, read_array, read_array};
  k->ms = 0.0;
  const int rc = pass(k, r, &watch, NULL);
  if (r < 0 || k->ms < k->read_ms) k->read_ms = k->ms;
  return rc == CLI_OK && isnan(k->sum) ? cli_bad("bench train: a norm layer has NaN") : rc;
}

/* ---- whole steps -----------------------------------------------------------------------------*/

static int make_steps(const bench *b, work *k) {
  static const char *const own[][2] = {
      {"method", "spngd"}, {"stat_period", "2"}, {"solve_period", "2"}};
  settings_init(&k->set);
  k->settled = true;
  int rc = settings_set(&k->set, "model", b->model);
  for (size_t i = 0; i < sizeof own / sizeof own[0] && rc == CLI_OK; i++)
    rc = settings_set(&k->set, own[i][0], own[i][1]);
  return rc == CLI_OK ? precond_create(&k->set, NULL, k->n, k->pool, &k->whole) : rc;
}

/* Even steps recompute all statistics and inverses, odd steps none. */
static int step_round(bench *b, work *k, int r) {
  const double lr = 1e-6; /* keeps the weights about as they are */
  int rc = CLI_OK;
  for (int row = FRESH_STEP; row <= STALE_STEP && rc == CLI_OK; row++) {
    bool wants = false;
    unsigned what = 0;
    const double start = ng_now_ms();
    rc = precond_begin(k->whole, k->samples, true, &wants);
    if (rc == CLI_OK) rc = pass(k, r, wants ? precond_watch(k->whole) : NULL, NULL);
    if (rc == CLI_OK) rc = precond_step(k->whole, lr, &what);
    bench_time(b, row, r, ng_now_ms() - start);
    if (rc == CLI_OK && wants != (row == FRESH_STEP))
      rc = cli_bad("bench train: round %d: the library observes at the wrong step", r);
  }
  return rc;
}

/* ---- the case --------------------------------------------------------------------------------*/

static void operations(const work *k, double *forward, double *backward) {
  *forward = *backward = 0.0;
  for (int i = 0; i < nn_layers(k->n); i++) {
    const nn_layer *l = nn_layer_at(k->n, i);
    const double area = l->conv ? (double)(l->kernel * l->kernel) : 1.0;
    const double one =
        2.0 * (double)k->samples * (double)l->in * (double)l->out * area * (double)l->positions;
    *forward += one;
    *backward += i == 0 ? one : 2.0 * one;
  }
}

static int open_train(bench *b) {
  static const char *const names[] = {"forward",
                                      "loss and backward",
                                      "both",
                                      "norm blocks",
                                      "norm blocks, stale",
                                      "spngd, all recomputed",
                                      "spngd, none recomputed"};
  double forward, backward;
  work *k = b->user = cli_take(1, sizeof *k);
  k->b = b;
  int rc = make_network(k, b->model, b->batch);
  const bool norms = rc == CLI_OK && nn_norms(k->n) > 0 && nn_loss_of(k->n) == NN_CROSS_ENTROPY;
  if (norms) rc = make_norms(b, k);
  if (norms && rc == CLI_OK && b->steps) rc = make_steps(b, k);
  if (rc != CLI_OK) return rc;
  for (int i = 0; i < (k->whole != NULL ? STALE_STEP : norms ? STALE_NORMS : BOTH) + 1; i++)
    (void)bench_add(b, "%s", names[i]);
  operations(k, &forward, &backward);
  bench_common(b, "parameters", nn_weights(k->n));
  bench_title(b, "bench train: %s, batch %lld, %lld parameters, %.1f GFLOP forward and backward",
              b->model, (long long)b->batch, (long long)nn_weights(k->n),
              (forward + backward) * 1e-9);
  return CLI_OK;
}

static int round_of(bench *b, int r) {
  work *k = b->user;
  int rc = timed_pass(b, k, r);
  if (k->norms == NULL || rc != CLI_OK) return rc;
  rc = norm_round(b, k, r);
  if (rc == CLI_OK && !b->no_floors) rc = read_round(k, r);
  return rc == CLI_OK && k->whole != NULL ? step_round(b, k, r) : rc;
}

static int bounds(bench *b) {
  const work *k = b->user;
  double forward, backward;
  operations(k, &forward, &backward);
  if (bench_gflops(b) > 0) {
    b->row[FORWARD].bound = 1e-6 * forward / b->gflops;
    b->row[BACKWARD].bound = 1e-6 * backward / b->gflops;
    b->row[BOTH].bound = b->row[FORWARD].bound + b->row[BACKWARD].bound;
  }
  if (k->norms != NULL) b->row[NORMS].bound = k->read_ms;
  return CLI_OK;
}

static int finish(bench *b) {
  const work *k = b->user;
  double median[STALE_STEP + 1];
  for (int i = 0; i < b->rows; i++)
    median[i] = bench_median(b->row[i].ms, b->repeat);
  if (k->norms == NULL) return CLI_OK;
  bench_note(b, "norm blocks: %.2f %% of forward and backward", 100 * median[NORMS] / median[BOTH]);
  if (k->whole == NULL) return CLI_OK;
  bench_note(b, "; of a step of spngd: %.2f %% if all is recomputed, %.2f %% if nothing is, ",
             100 * median[NORMS] / median[FRESH_STEP],
             100 * median[STALE_NORMS] / median[STALE_STEP]);
  bench_note(b, "%.2f %% if norm blocks alone are",
             100 * median[NORMS] / (median[STALE_STEP] + median[NORMS] - median[STALE_NORMS]));
  return CLI_OK;
}

static void close_train(bench *b) {
  work *k = b->user;
  if (k == NULL) return;
  precond_destroy(&k->whole);
  if (k->settled) settings_free(&k->set);
  ng_precond_destroy(&k->norms);
  drop_network(k);
  free(k);
}

const bench_case bench_train = {.name = "train",
                                .open = open_train,
                                .round = round_of,
                                .bounds = bounds,
                                .finish = finish,
                                .close = close_train};
