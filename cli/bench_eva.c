/* bench_eva.c: `natgrad bench fused-eva`: an Eva step on the weights of a network:
 *     precondition   ng_step, which writes the gradients
 *     with sgd       ng_step_sgd, which updates the weights
 * Lower bounds at the rate of a copy: 12 bytes a parameter (read the gradient twice, write it), and 24 (also read
 * and write weights and momentum).  Only the step is timed; before each one the gradient is fresh and the caches
 * hold other data, as after a backward pass.  bench/vs_torch.py times the published operations in PyTorch. */
#include "bench.h"
#include "clock.h"
#include "floors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PRECONDITION, WITH_SGD, ROWS };
static const struct {
  const char *name, *update;
  int bytes; /* of a parameter, for the lower bound */
} rows[ROWS] = {{"precondition", "gradient", 12}, {"with sgd", "sgd", 24}};

typedef struct work {
  shapes list;
  int64_t count, flush_bytes;
  ng_precond *p[ROWS];
  float *fresh, *grad, *weight;
  float *vector; /* every layer observes its first elements */
  char *flush;
} work;

/* Layers are matrices: a step does not depend on the source of a and g. */
static int make_precond(const bench *b, work *k, int row) {
  char message[512] = "";
  if (ng_options_set(b->options, "update", rows[row].update, message, sizeof message) < 0)
    return cli_bad("%s", message);
  ng_status st = ng_precond_create_from(b->ctx, b->options, &k->p[row]);
  if (st >= 0) st = bench_linear(k->p[row], &k->list, k->grad, k->weight);
  /* of one sample the mean is the sample */
  if (st >= 0) st = bench_observe(k->p[row], &k->list, k->vector, 1);
  /* no later step observes: observing is not timed */
  if (st >= 0) st = ng_set(k->p[row], "stat_period", "1000000000");
  return st < 0 ? bench_failed(b, "a model", st) : CLI_OK;
}

static int make_arrays(work *k) {
  const int64_t longest = bench_longest(&k->list);
  k->count = bench_count(&k->list);
  k->fresh = bench_floats(k->count);
  k->grad = bench_floats(k->count);
  k->weight = bench_floats(k->count);
  k->vector = bench_floats(longest);
  if (k->fresh == NULL || k->grad == NULL || k->weight == NULL || k->vector == NULL) return CLI_BAD;
  bench_fill(k->fresh, k->count, 0.01F);
  bench_fill(k->weight, k->count, 0.1F);
  bench_fill(k->vector, longest, 0.5F);
  k->flush_bytes = 2 * floor_cache();
  k->flush = cli_take((size_t)k->flush_bytes, 1);
  return CLI_OK;
}

static int open_eva(bench *b) {
  work *k = b->user = cli_take(1, sizeof *k);
  int rc =
      bench_layers(b->model, 512, 4608, &k->list); /* a number: 3x3 convolutions of 512 channels */
  if (rc == CLI_OK) rc = make_arrays(k);
  for (int row = 0; row < ROWS && rc == CLI_OK; row++) {
    (void)bench_add(b, "%s", rows[row].name);
    rc = make_precond(b, k, row);
  }
  if (rc != CLI_OK) return rc;
  (void)snprintf(b->prefix, sizeof b->prefix, "%.90s/", k->list.name);
  bench_common(b, "parameters", k->count);
  bench_title(b,
              "bench fused-eva: method %s, SGD with momentum and weight decay, f32\n%s, %lld "
              "parameters in %d layers",
              cli_option_text(b->options, "method").text, k->list.name, (long long)k->count,
              k->list.n);
  return CLI_OK;
}

static int round_of(bench *b, int r) {
  work *k = b->user;
  ng_sgd how;
  ng_sgd_init(&how, sizeof how);
  how.lr = 0.1;
  how.momentum = 0.9;
  how.weight_decay = 5e-4;
  for (int row = 0; row < ROWS; row++) {
    memcpy(k->grad, k->fresh, (size_t)k->count * sizeof(float));
    for (int64_t i = 0; i < k->flush_bytes; i += 64)
      k->flush[i]++;
    const double start = ng_now_ms();
    const ng_status st =
        row == WITH_SGD ? ng_step_sgd(k->p[row], &how, 1) : ng_step(k->p[row], how.lr);
    bench_time(b, row, r, ng_now_ms() - start);
    if (st != NG_OK) return bench_failed(b, "a step", st);
  }
  return CLI_OK;
}

static int bounds(bench *b) {
  const work *k = b->user;
  for (int i = 0; i < ROWS && bench_copy_gbs(b) > 0; i++)
    b->row[i].bound = 1e-6 * rows[i].bytes * (double)k->count / b->copy_gbs;
  return CLI_OK;
}

static void close_eva(bench *b) {
  work *k = b->user;
  if (k == NULL) return;
  for (int row = 0; row < ROWS; row++)
    ng_precond_destroy(&k->p[row]);
  free(k->fresh);
  free(k->grad);
  free(k->weight);
  free(k->vector);
  free(k->flush);
  shapes_free(&k->list);
  free(k);
}

const bench_case bench_eva = {.name = "fused-eva",
                              .options = "method=eva",
                              .models = "resnet18 1e7 1e8",
                              .family = "rankone",
                              .expected = "eva or eva-natgrad",
                              .open = open_eva,
                              .round = round_of,
                              .bounds = bounds,
                              .close = close_eva};
