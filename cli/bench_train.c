/* bench_train.c: `natgrad bench train`: forward and backward pass of a network on random data, and K-FAC blocks of its
 * norms.
 *
 * The lower bound of forward is 2 in out kernel^2 positions operations for each layer and sample, at the rate of SGEMM.
 * The bound of backward is twice as much (a product for the weights and one for the input), except in the first layer.
 * Norm blocks are computed by the library with method spngd. They observe an additional pass, so that the times of
 * forward and backward exclude them. Their lower bound is one read of the observed arrays at the rate of a copy. */
#include "bench.h"
#include "clock.h"
#include "common/random.h"
#include "nn/models.h"

#include <stdio.h>
#include <stdlib.h>

enum { FORWARD, BACKWARD, BOTH, NORMS, STALE_NORMS };

typedef struct work {
  nn *n;
  ng_pool *pool;
  model_task task;
  float *x, *targets;
  int32_t *labels;
  int64_t samples;
  /* preconditioner of the norm layers; NULL: the network has no norms, or its loss is not cross entropy */
  ng_precond *norms;
  double ms; /* total time of the observe calls of a pass */
  const bench *b;
} work;

/* ---- a pass ----------------------------------------------------------------------------------*/

static int create_network(work *k, const char *model, int64_t samples) {
  bool reconstructs = false;
  k->samples = samples;
  if (model_default_task(model, &k->task) != CLI_OK) return CLI_BAD;
  k->pool = cli_count_cores() > 1 ? ng_pool_create(cli_count_cores(), NULL) : NULL;
  k->n = nn_create(k->pool, 1);
  int rc = model_build(model, &k->task, k->n, &reconstructs);
  if (rc == CLI_OK) rc = nn_prepare(k->n, samples);
  if (rc != CLI_OK) return rc;
  const int64_t in = samples * nn_count_values(k->task.input);
  k->x = cli_alloc((size_t)in, sizeof *k->x);
  k->targets = cli_alloc((size_t)(samples * nn_count_outputs(k->n)), sizeof *k->targets);
  const int64_t labels = samples * nn_count_losses(k->n);
  k->labels = cli_alloc((size_t)labels, sizeof *k->labels);
  random_normal(1, RANDOM_DATA, 0, 1.0, 0, in, k->x);
  for (int64_t i = 0; i < in && k->task.is_text; i++)
    k->x[i] = (float)(i * i % k->task.classes);
  for (int64_t i = 0; i < labels; i++)
    k->labels[i] = (int32_t)(i % (nn_count_outputs(k->n) / nn_count_losses(k->n)));
  return CLI_OK;
}

/* Run forward, loss and backward. *middle (may be NULL): the clock in ms at the end of forward. */
static int run_training_pass(work *k, int r, const nn_watch *watch, double *middle) {
  const float *targets = nn_get_loss(k->n) == NN_SQUARED_ERROR ? k->targets : NULL;
  int rc = nn_forward(k->n, NN_TRAIN, k->x, k->samples, (uint64_t)(r + 1), watch);
  if (middle != NULL) *middle = ng_now_ms();
  (void)nn_compute_loss(k->n, NN_TRAIN, k->labels, targets, NULL);
  if (rc == CLI_OK) rc = nn_backward(k->n, true, watch);
  return rc;
}

static int time_training_pass(bench *b, work *k, int r) {
  double middle;
  const double start = ng_now_ms();
  const int rc = run_training_pass(k, r, NULL, &middle);
  const double end = ng_now_ms();
  bench_record_time(b, FORWARD, r, middle - start);
  bench_record_time(b, BACKWARD, r, end - middle);
  bench_record_time(b, BOTH, r, end - start);
  return rc;
}

/* ---- norm blocks -----------------------------------------------------------------------------*/

static int create_norm_blocks(const bench *b, work *k) {
  ng_status st = ng_precond_create(b->ctx, "method=spngd stat_period=2 solve_period=2", &k->norms);
  for (int i = 0; i < nn_count_norms(k->n) && st >= 0; i++) {
    const nn_norm_layer *l = nn_get_norm(k->n, i);
    const int param[2] = {l->gamma_param, l->beta_param};
    st = ng_add_norm(k->norms, l->name, l->is_layer_norm ? NG_LAYER_NORM : NG_BATCH_NORM,
                     l->channels, 1, l->eps, NULL);
    for (int j = 0; j < 2 && st >= 0; j++) {
      const ng_array g = ng_array_vector(nn_get_param(k->n, param[j])->grad, l->channels, NG_F32);
      st = ng_bind_grad(k->norms, i, (ng_param)j, &g);
    }
  }
  if (st >= 0) st = ng_ready(k->norms);
  return st < 0 ? bench_report_error(b, "norm blocks", st) : CLI_OK;
}

static int observe_norm(void *user, int layer, const float *x, int64_t samples, int64_t columns,
                        bool grad) {
  work *k = user;
  const int norm = layer - nn_count_layers(k->n);
  (void)columns;
  if (norm < 0) return CLI_OK;
  const nn_norm_layer *l = nn_get_norm(k->n, norm);
  float *data = (float *)(uintptr_t)x;
  const ng_array v =
      l->is_layer_norm ? ng_array_matrix(data, samples * l->height * l->width, l->channels, NG_F32)
                       : ng_array_nhwc(data, samples, l->channels, l->height, l->width, NG_F32);
  const double start = ng_now_ms();
  const ng_status st = grad ? ng_observe_output_grad(k->norms, norm, &v, NG_BORROW)
                            : ng_observe_input(k->norms, norm, &v, NG_BORROW);
  k->ms += ng_now_ms() - start;
  return st < 0 ? bench_report_error(k->b, "norm blocks", st) : CLI_OK;
}

/* Run a pass that the norm blocks observe, then time two steps with stat_period = 2: the first (NORMS) refreshes the
 * statistics, the second (STALE_NORMS) does not. */
static int time_norm_steps(bench *b, work *k, int r) {
  const nn_watch watch = {k, observe_norm};
  k->ms = 0.0;
  ng_status st = ng_begin_samples(k->norms, k->samples * nn_count_losses(k->n), 1.0);
  if (st < 0) return bench_report_error(b, "norm blocks", st);
  if (run_training_pass(k, r, &watch, NULL) != CLI_OK) return CLI_BAD;
  for (int row = NORMS; row <= STALE_NORMS && st >= 0; row++) {
    const double start = ng_now_ms();
    st = ng_step(k->norms, 0.1);
    bench_record_time(b, row, r, ng_now_ms() - start + (row == NORMS ? k->ms : 0.0));
  }
  return st < 0 ? bench_report_error(b, "norm blocks", st) : CLI_OK;
}

/* ---- the case --------------------------------------------------------------------------------*/

static void count_operations(const work *k, double *forward, double *backward) {
  *forward = *backward = 0.0;
  for (int i = 0; i < nn_count_layers(k->n); i++) {
    const nn_layer *l = nn_get_layer(k->n, i);
    if (l->is_embedding) continue;
    const double area = l->is_conv ? (double)(l->kernel * l->kernel) : 1.0;
    const double one =
        2.0 * (double)k->samples * (double)l->in * (double)l->out * area * (double)l->positions;
    *forward += one;
    *backward += i == 0 ? one : 2.0 * one;
  }
}

static int open_train(bench *b) {
  static const char *const names[] = {"forward", "loss and backward", "both", "norm blocks",
                                      "norm blocks, stale"};
  double forward, backward;
  work *k = b->user;
  k->b = b;
  int rc = create_network(k, b->model, b->batch);
  const bool norms =
      rc == CLI_OK && nn_count_norms(k->n) > 0 && nn_get_loss(k->n) == NN_CROSS_ENTROPY;
  if (norms) rc = create_norm_blocks(b, k);
  if (rc != CLI_OK) return rc;
  for (int i = 0; i < (norms ? STALE_NORMS : BOTH) + 1; i++)
    (void)bench_add_row(b, "%s", names[i]);
  count_operations(k, &forward, &backward);
  bench_add_json_member(b, "parameters", nn_count_weights(k->n));
  bench_print_title(
      b, "bench train: %s, batch %lld, %lld parameters, %.1f GFLOP forward and backward", b->model,
      (long long)b->batch, (long long)nn_count_weights(k->n), (forward + backward) * 1e-9);
  return CLI_OK;
}

static int run_round(bench *b, int r) {
  work *k = b->user;
  const int rc = time_training_pass(b, k, r);
  return rc == CLI_OK && k->norms != NULL ? time_norm_steps(b, k, r) : rc;
}

static int set_bounds(bench *b) {
  const work *k = b->user;
  double forward, backward;
  count_operations(k, &forward, &backward);
  if (bench_measure_sgemm(b) > 0) {
    b->row[FORWARD].bound = 1e-6 * forward / b->gflops;
    b->row[BACKWARD].bound = 1e-6 * backward / b->gflops;
    b->row[BOTH].bound = b->row[FORWARD].bound + b->row[BACKWARD].bound;
  }
  double floats = 0.0; /* number of elements of inputs and output gradients of all norms */
  for (int i = 0; i < nn_count_norms(k->n); i++) {
    const nn_norm_layer *l = nn_get_norm(k->n, i);
    floats += 2.0 * (double)(k->samples * l->channels * l->height * l->width);
  }
  if (k->norms != NULL && bench_measure_copy(b) > 0)
    b->row[NORMS].bound = 1e-6 * sizeof(float) * floats / b->copy_gbs;
  return CLI_OK;
}

static int add_norm_note(bench *b) {
  const work *k = b->user;
  if (k->norms != NULL)
    bench_add_note(b, "norm blocks: %.2f %% of forward and backward",
                   100 * bench_find_median(b->row[NORMS].ms, (int)b->repeat) /
                       bench_find_median(b->row[BOTH].ms, (int)b->repeat));
  return CLI_OK;
}

static void close_train(bench *b) {
  work *k = b->user;
  ng_precond_destroy(&k->norms);
  nn_destroy(&k->n);
  ng_pool_destroy(k->pool);
  free(k->x);
  free(k->targets);
  free(k->labels);
}

const bench_case bench_train = {.name = "train",
                                .size = sizeof(work),
                                .models = {"resnet18"},
                                .open = open_train,
                                .round = run_round,
                                .bounds = set_bounds,
                                .finish = add_norm_note,
                                .close = close_train};
