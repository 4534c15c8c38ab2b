/* bench_norms.c: what norm blocks add to a training step: `natgrad bench train` of a network with batch norms.
 *
 * The norms alone are layers of the library with the options of spngd, so that what is timed is theirs: showing
 * their inputs and output gradients, and ng_step.  Their floor is a plain sum over the same arrays in the same
 * place of forward and backward, in passes in turn with those, the best of them.  Whole steps are the trainer's, of all
 * layers: the even ones make every statistic and inverse anew, the odd ones none. */
#include "bench.h"
#include "clock.h"
#include "nn/nn.h"
#include "common/random.h"
#include "simd.h"
#include "train/precond.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ANEW, STALE, KINDS }; /* in turn */
static const char *const options = "method=spngd stat_period=2 solve_period=2";

/* ---- random samples --------------------------------------------------------------------------*/

typedef struct drawn {
  float *x;
  int32_t *labels;
  int64_t count;
} drawn;

static drawn samples_of(const nn *n, int64_t count) {
  const int64_t in = count * nn_count(nn_shape_of(n, 0));
  drawn s = {cli_take((size_t)in, sizeof *s.x), cli_take((size_t)count, sizeof *s.labels), count};
  random_normal(1, RANDOM_DATA, 0, 1.0, in, s.x);
  for (int64_t i = 0; i < count; i++)
    s.labels[i] = (int32_t)(i % nn_outputs(n));
  return s;
}

static void samples_free(drawn *s) {
  free(s->x);
  free(s->labels);
}

static int pass(nn *n, const drawn *s, int number, const nn_watch *watch) {
  const int rc = nn_forward(n, NN_TRAIN, s->x, s->count, (uint64_t)number, watch);
  (void)nn_loss(n, NN_TRAIN, s->labels, NULL, NULL);
  return rc == CLI_OK ? nn_backward(n, true, watch) : rc;
}

/* ---- norms alone -----------------------------------------------------------------------------*/

enum { READERS = 64, SMALL = 1 << 18 }; /* floats that one thread reads faster */

typedef struct norm_blocks {
  nn *n;
  ng_context *ctx;
  ng_precond *p;
  ng_pool *pool;    /* of the floor; NULL: this thread */
  double ms, added; /* since it was last set to 0; what the floor has added up */
  const float *array;
  int64_t floats;
  float sum[READERS];
} norm_blocks;

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

static int readers(const norm_blocks *b) {
  if (b->floats < SMALL) return 1;
  const int threads = b->pool != NULL ? ng_pool_threads(b->pool) : 1;
  return threads < READERS ? threads : READERS;
}

static void read_part(void *arg, int32_t i) {
  norm_blocks *b = arg;
  const int64_t parts = readers(b), from = b->floats * i / parts;
  b->sum[i] = sum_of(b->array + from, b->floats * (i + 1) / parts - from);
}

static int read_norm(void *user, int layer, const float *x, int64_t samples, int64_t columns) {
  norm_blocks *b = user;
  if (layer < nn_layers(b->n)) return CLI_OK;
  const double t0 = ng_now_ms();
  b->array = x;
  b->floats = samples * columns;
  if (readers(b) > 1) {
    ng_pool_run(b->pool, readers(b), read_part, b);
  } else {
    read_part(b, 0);
  }
  b->ms += ng_now_ms() - t0;
  for (int i = 0; i < readers(b); i++)
    b->added += (double)b->sum[i];
  return CLI_OK;
}

static int show_norm(norm_blocks *b, int layer, const float *x, int64_t samples, bool grad) {
  if (layer < nn_layers(b->n)) return CLI_OK;
  const int norm = layer - nn_layers(b->n);
  const nn_norm_layer *l = nn_norm_at(b->n, norm);
  const ng_array v = ng_array_nhwc((float *)(uintptr_t)x, samples, l->channels, l->height, l->width,
                                   NG_F32); /* read only */
  const double t0 = ng_now_ms();
  const ng_status st = grad ? ng_observe_output_grad(b->p, norm, &v, NG_BORROW)
                            : ng_observe_input(b->p, norm, &v, NG_BORROW);
  b->ms += ng_now_ms() - t0;
  return st < 0 ? cli_bad("%s", ng_last_error(b->ctx)) : CLI_OK;
}

static int norm_input(void *user, int layer, const float *a, int64_t samples, int64_t columns) {
  (void)columns;
  return show_norm(user, layer, a, samples, false);
}

static int norm_grad(void *user, int layer, const float *g, int64_t samples, int64_t columns) {
  (void)columns;
  return show_norm(user, layer, g, samples, true);
}

static ng_status add_norms(norm_blocks *b) {
  ng_status st = NG_OK;
  for (int i = 0; i < nn_norms(b->n) && st >= 0; i++) {
    const nn_norm_layer *l = nn_norm_at(b->n, i);
    const int param[2] = {l->gamma_param, l->beta_param};
    st = ng_add_norm(b->p, l->name, NG_BATCH_NORM, l->channels, 1, l->eps, NULL);
    for (int k = 0; k < 2 && st >= 0; k++) {
      const ng_array g = ng_array_vector(nn_param_at(b->n, param[k])->grad, l->channels, NG_F32);
      st = ng_bind_grad(b->p, i, (ng_param)k, &g);
    }
  }
  return st < 0 ? st : ng_ready(b->p);
}

/* A pass that norms watch, and two steps of their blocks; how long the library takes goes to ms[ANEW], without
 * statistics ms[STALE]. */
static int norm_steps(norm_blocks *b, const drawn *s, int number, double ms[KINDS]) {
  const nn_watch watch = {b, norm_input, norm_grad};
  b->ms = 0.0;
  if (ng_begin_samples(b->p, s->count, 1.0) < 0) return cli_bad("%s", ng_last_error(b->ctx));
  const int rc = pass(b->n, s, number, &watch);
  for (int k = 0; k < KINDS && rc == CLI_OK; k++) {
    const double t0 = ng_now_ms();
    if (ng_step(b->p, 0.1) < 0) return cli_bad("%s", ng_last_error(b->ctx));
    ms[k] = ng_now_ms() - t0 + (k == ANEW ? b->ms : 0.0);
  }
  return rc;
}

/* Medians of a step of norm blocks, with their statistics and without; the best of reading their arrays once. */
static int measure_norms(nn *n, const bench_wish *w, double median[KINDS], double *read) {
  norm_blocks b = {.n = n};
  const nn_watch reads = {&b, read_norm, read_norm};
  drawn s = samples_of(n, w->batch);
  double *ms[KINDS], one[KINDS] = {0.0};
  ng_context_config config;
  ng_context_config_init(&config, sizeof config);
  for (int k = 0; k < KINDS; k++)
    ms[k] = cli_take((size_t)w->repeat, sizeof *ms[k]);
  if (cli_cores() > 1) b.pool = ng_pool_create(cli_cores(), NULL);
  int rc = cli_context(&config, &b.ctx);
  if (rc == CLI_OK && (ng_precond_create(b.ctx, options, &b.p) < 0 || add_norms(&b) < 0)) {
    rc = cli_bad("%s", ng_last_error(b.ctx));
  }
  *read = 0.0;
  for (int r = -1; r < w->repeat && rc == CLI_OK; r++) { /* the first one is not counted */
    rc = norm_steps(&b, &s, r + 1, one);
    for (int k = 0; k < KINDS && r >= 0; k++)
      ms[k][r] = one[k];
    b.ms = 0.0;
    if (rc == CLI_OK && !w->no_floors) rc = pass(n, &s, r + 1, &reads);
    if (r < 1 || b.ms < *read) *read = b.ms;
  }
  for (int k = 0; k < KINDS; k++) {
    median[k] = bench_median(ms[k], w->repeat);
    free(ms[k]);
  }
  if (rc == CLI_OK && isnan(b.added)) rc = cli_bad("bench train: a norm layer was shown NaN");
  ng_precond_destroy(&b.p);
  ng_context_destroy(&b.ctx);
  ng_pool_destroy(b.pool);
  samples_free(&s);
  return rc;
}

/* ---- whole steps -----------------------------------------------------------------------------*/

static int settle(settings *s, const bench_wish *w) {
  static const char *const own[][2] = {
      {"method", "spngd"}, {"stat_period", "2"}, {"solve_period", "2"}};
  int rc = settings_set(s, "model", w->model);
  for (size_t i = 0; i < sizeof own / sizeof own[0] && rc == CLI_OK; i++)
    rc = settings_set(s, own[i][0], own[i][1]);
  return rc;
}

static int whole_step(nn *n, precond *p, const drawn *s, int number, double *ms) {
  const double lr = 1e-6; /* weights stay about what they are */
  bool wants = false;
  unsigned what = 0;
  const double t0 = ng_now_ms();
  int rc = precond_begin(p, s->count, true, &wants);
  if (rc == CLI_OK) rc = pass(n, s, number, wants ? precond_watch(p) : NULL);
  if (rc == CLI_OK) rc = precond_step(p, lr, &what);
  *ms = ng_now_ms() - t0;
  if (rc == CLI_OK && wants != (number % KINDS == ANEW))
    return cli_bad("bench train: step %d is not what it was planned to be", number);
  return rc;
}

static int measure_steps(nn *n, const bench_wish *w, double median[KINDS]) {
  settings set;
  precond *p = NULL;
  drawn s = samples_of(n, w->batch);
  double *ms[KINDS];
  ng_pool *pool = cli_cores() > 1 ? ng_pool_create(cli_cores(), NULL) : NULL;
  for (int k = 0; k < KINDS; k++)
    ms[k] = cli_take((size_t)w->repeat, sizeof *ms[k]);
  settings_init(&set);
  int rc = settle(&set, w);
  if (rc == CLI_OK) rc = precond_create(&set, NULL, n, pool, &p);
  for (int i = 0; i < KINDS * (w->repeat + 1) && rc == CLI_OK; i++) {
    double one = 0.0;
    rc = whole_step(n, p, &s, i, &one);
    if (i >= KINDS) ms[i % KINDS][i / KINDS - 1] = one;
  }
  for (int k = 0; k < KINDS; k++) {
    median[k] = bench_median(ms[k], w->repeat);
    free(ms[k]);
  }
  precond_destroy(&p);
  settings_free(&set);
  ng_pool_destroy(pool);
  samples_free(&s);
  return rc;
}

/* ---- the figures -----------------------------------------------------------------------------*/

static void share(const bench_wish *w, double part, double whole, const char *of) {
  if (!w->json) printf("%-18s %10.2f %% of %s\n", "", 100.0 * part / whole, of);
}

int bench_norms(nn *n, const bench_wish *w, double passes) {
  double norms[KINDS], step[KINDS], read;
  int rc = measure_norms(n, w, norms, &read);
  if (rc != CLI_OK) return rc;
  if (!w->json && read > 0.0) printf("%-18s %10s %10s %8s\n", "", "median", "read once", "ratio");
  rc = bench_train_line(w, "norm blocks", norms[ANEW], read);
  if (rc != CLI_OK) return rc;
  share(w, norms[ANEW], passes, "both");
  if (!w->steps) return CLI_OK;
  rc = measure_steps(n, w, step);
  if (rc == CLI_OK) rc = bench_train_line(w, "spngd, all anew", step[ANEW], 0.0);
  if (rc != CLI_OK) return rc;
  share(w, norms[ANEW], step[ANEW], "it norm blocks");
  rc = bench_train_line(w, "spngd, none anew", step[STALE], 0.0);
  if (rc != CLI_OK) return rc;
  share(w, norms[STALE], step[STALE], "it norm blocks");
  share(w, norms[ANEW], step[STALE] + norms[ANEW] - norms[STALE], "it were they alone anew");
  return rc;
}
