/* bench_eva.c: `natgrad bench fused-eva`: an Eva step on the weights of a network, in two ways:
 *     two passes   ng_step, then one loop of SGD
 *     fused        ng_step_sgd
 * Lower bounds at the rate of a copy: 12 bytes a parameter (read the gradient twice, write it), and 24 (also read
 * and write weights and momentum).  Only the step is timed; before each one the gradient is fresh and the caches
 * hold other data, as after a backward pass.  The first step of both ways must give the same weights.
 * bench/vs_torch.py times the published operations in PyTorch. */
#include "bench.h"
#include "clock.h"
#include "floors.h"
#include "pool.h"
#include "simd.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TWO_PASSES, FUSED, WAYS };
enum { PRECONDITION, STEP, FUSED_STEP, ROWS };
static const struct {
  const char *name;
  int bytes; /* of a parameter, for the lower bound */
} rows[ROWS] = {
    {"precondition/two passes", 12}, {"with sgd/two passes", 24}, {"with sgd/fused", 24}};

static const double LR = 0.1, MOMENTUM = 0.9, DECAY = 5e-4;
/* f32 rounding of a dozen operations, relative to the largest change of a weight. */
static const double TOLERANCE = 1e-5;
static const float WEIGHT = 0.1F, GRADIENT = 0.01F, VECTOR = 0.5F;

typedef struct work {
  shapes list;
  int64_t count, flush_bytes;
  ng_pool *pool;
  ng_precond *p[WAYS];
  float *fresh, *grad, *weight, *moment, *result;
  float *vector; /* every layer observes its first elements */
  char *flush;
} work;

/* Layers are matrices: a step does not depend on the source of a and g. */
static int make_precond(const bench *b, work *k, int way) {
  char message[512] = "";
  if (ng_options_set(b->options, "update", way == FUSED ? "sgd" : "gradient", message,
                     sizeof message) < 0) {
    return cli_bad("%s", message);
  }
  ng_precond *p = NULL;
  ng_status st = ng_precond_create_from(b->ctx, b->options, &p);
  k->p[way] = p;
  if (st >= 0) st = bench_linear(p, &k->list, k->grad, k->weight);
  if (st >= 0) st = ng_begin_samples(p, 1, 1.0); /* of one sample the mean is the sample */
  for (int32_t i = 0; i < k->list.n && st >= 0; i++) {
    const ng_array a = ng_array_matrix(k->vector, 1, k->list.layer[i].p, NG_F32);
    const ng_array g = ng_array_matrix(k->vector, 1, k->list.layer[i].q, NG_F32);
    st = ng_observe_input(p, i, &a, NG_COPY);
    if (st >= 0) st = ng_observe_output_grad(p, i, &g, NG_COPY);
  }
  /* no later step observes: observing is not timed */
  if (st >= 0) st = ng_set(p, "stat_period", "1000000000");
  return st < 0 ? bench_failed(b, "a model", st) : CLI_OK;
}

static int make_arrays(work *k) {
  float **const all[] = {&k->fresh, &k->grad, &k->weight, &k->moment, &k->result};
  int64_t longest = 0;
  for (int i = 0; i < k->list.n; i++) {
    const int64_t q = k->list.layer[i].q, p = k->list.layer[i].p;
    k->count += q * p;
    longest = p > longest ? p : longest;
    longest = q > longest ? q : longest;
  }
  if ((k->vector = bench_floats(longest)) == NULL) return CLI_BAD;
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    if ((*all[i] = bench_floats(k->count)) == NULL) return CLI_BAD;
  }
  bench_fill(k->fresh, k->count, GRADIENT);
  bench_fill(k->vector, longest, VECTOR);
  k->flush_bytes = 2 * floor_cache();
  k->flush = cli_take((size_t)k->flush_bytes, 1);
  k->pool = ng_pool_create(cli_cores(), NULL);
  return k->pool == NULL ? cli_bad("bench: no threads") : CLI_OK;
}

static int open_eva(bench *b) {
  work *k = b->user = cli_take(1, sizeof *k);
  int rc =
      bench_layers(b->model, 512, 4608, &k->list); /* a number: 3x3 convolutions of 512 channels */
  if (rc == CLI_OK) rc = make_arrays(k);
  for (int way = 0; way < WAYS && rc == CLI_OK; way++)
    rc = make_precond(b, k, way);
  if (rc != CLI_OK) return rc;
  for (int i = 0; i < ROWS; i++)
    (void)bench_add(b, "%s", rows[i].name);
  (void)snprintf(b->prefix, sizeof b->prefix, "%.90s/", k->list.name);
  bench_common(b, "parameters", k->count);
  bench_title(b,
              "bench fused-eva: method %s, SGD with momentum and weight decay, f32\n%s, %lld "
              "parameters in %d layers",
              cli_option_text(b->options, "method").text, k->list.name, (long long)k->count,
              k->list.n);
  return CLI_OK;
}

NG_CLONES static void sgd(float *restrict w, const float *restrict d, float *restrict m,
                          int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    m[i] = (float)MOMENTUM * m[i] + (d[i] + (float)DECAY * w[i]);
    w[i] -= (float)LR * m[i];
  }
}

static void sgd_piece(void *arg, int32_t i) {
  const work *k = arg;
  const int32_t n = ng_pool_threads(k->pool);
  const int64_t from = k->count * i / n, to = k->count * (i + 1) / n;
  sgd(k->weight + from, k->grad + from, k->moment + from, to - from);
}

static int one_step(bench *b, work *k, int way, int r) {
  ng_sgd how;
  ng_sgd_init(&how, sizeof how);
  how.lr = LR;
  how.momentum = MOMENTUM;
  how.weight_decay = DECAY;
  memcpy(k->grad, k->fresh, (size_t)k->count * sizeof(float));
  for (int64_t i = 0; i < k->flush_bytes; i += 64)
    k->flush[i]++;
  const double start = ng_now_ms();
  const ng_status st = way == FUSED ? ng_step_sgd(k->p[way], &how, 1) : ng_step(k->p[way], LR);
  const double middle = ng_now_ms();
  if (way == TWO_PASSES) {
    bench_time(b, PRECONDITION, r, middle - start);
    ng_pool_run(k->pool, ng_pool_threads(k->pool), sgd_piece, k);
  }
  bench_time(b, way == FUSED ? FUSED_STEP : STEP, r, ng_now_ms() - start);
  return st == NG_OK ? CLI_OK : bench_failed(b, "a step", st);
}

/* Both ways must give the same weights, up to the rounding of the step and of the weights (at most 0.1). */
static int compare(const work *k) {
  double gap = 0, most = 0;
  uint64_t s = BENCH_SEED;
  for (int64_t i = 0; i < k->count; i++) {
    const double before = (double)(WEIGHT * bench_number(&s));
    gap = fmax(gap, fabs((double)k->weight[i] - (double)k->result[i]));
    most = fmax(most, fabs((double)k->result[i] - before));
  }
  if (gap <= TOLERANCE * most + (double)WEIGHT * 0x1p-23) return CLI_OK;
  return cli_bad("bench: the weights of the two ways differ by %g; the step changes these by %g",
                 gap, most);
}

static int round_of(bench *b, int r) {
  work *k = b->user;
  const size_t bytes = (size_t)k->count * sizeof(float);
  int rc = CLI_OK;
  for (int way = 0; way < WAYS && rc == CLI_OK; way++) {
    if (r < 0) {
      bench_fill(k->weight, k->count, WEIGHT);
      memset(k->moment, 0, bytes);
    }
    rc = one_step(b, k, way, r);
    if (r < 0 && way == TWO_PASSES) memcpy(k->result, k->weight, bytes);
  }
  return rc == CLI_OK && r < 0 ? compare(k) : rc;
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
  for (int way = 0; way < WAYS; way++)
    ng_precond_destroy(&k->p[way]);
  ng_pool_destroy(k->pool);
  float *const all[] = {k->fresh, k->grad, k->weight, k->moment, k->result, k->vector};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
    free(all[i]);
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
