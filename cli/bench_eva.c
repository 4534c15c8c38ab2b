/* bench_eva.c: `natgrad bench fused-eva`: an Eva step on the weights of a network, in three ways:
 *     published    the operations of lzhangbv/eva and of an SGD of tensor operations, each one plain loop over
 *                  memory on all processors: 19 words a parameter to precondition, 11 to update
 *     two passes   ng_step, then one loop of SGD
 *     fused        ng_step_sgd
 * Lower bounds at the rate of a copy: 12 bytes a parameter (read the gradient twice, write it), and 24 (also read
 * and write weights and momentum).  Only the step is timed; before each one the gradient is fresh and the caches
 * hold other data, as after a backward pass.  The first step of each way starts from the same arrays and must give
 * the same weights. */
#include "bench.h"
#include "clock.h"
#include "floors.h"
#include "pool.h"
#include "simd.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PUBLISHED, TWO_PASSES, FUSED, WAYS };
enum { PRECONDITION, STEP, PARTS };
static const char *const way_name[WAYS] = {"published", "two passes", "fused"};
static const char *const part_name[PARTS] = {"precondition", "with sgd"};
static const int part_bytes[PARTS] = {12, 24};

static const double LR = 0.1, MOMENTUM = 0.9, DECAY = 5e-4;
/* f32 rounding of a dozen operations, relative to the largest entry of a layer. */
static const double TOLERANCE = 1e-5;

typedef struct matrix {
  int64_t rows, cols, at; /* the gradient of one layer, no bias: q x p; its offset  */
  int64_t a, g;           /* offsets of its vectors                                 */
} matrix;

typedef struct work {
  shapes list;
  matrix *layer;
  int64_t count, vectors, flush_bytes;
  double damping, kl_clip;
  ng_pool *pool;
  ng_precond *p[WAYS];
  float *fresh, *grad, *weight, *moment, *direction, *tmp, *vector, *result;
  char *flush;
  int row[WAYS][PARTS]; /* -1: not timed */
} work;

/* ---- the published sequence, one loop an operation -------------------------------------------*/

/* One operation of a tensor library on n elements: x from x, y, z and c.  Reductions return a sum, computed in f32 lanes
 * as in such libraries. */
typedef double (*operation)(float *x, const float *y, const float *z, float c, int64_t n);

#define OPERATION(name, statement)                                                                 \
  NG_CLONES static double name(float *restrict x, const float *restrict y,                         \
                               const float *restrict z, float c, int64_t n) {                      \
    (void)y, (void)z, (void)c;                                                                     \
    for (int64_t i = 0; i < n; i++) {                                                              \
      statement;                                                                                   \
    }                                                                                              \
    return 0;                                                                                      \
  }
OPERATION(times_number, x[i] *= c)
OPERATION(by_number, x[i] /= c)
OPERATION(add, x[i] += y[i])
OPERATION(add_multiple, x[i] += c * y[i])
OPERATION(copy, x[i] = y[i])
OPERATION(multiple, x[i] = c * y[i])
OPERATION(product, x[i] = y[i] * z[i])
OPERATION(plus_multiple, x[i] = y[i] + c * z[i])

enum { LANES = 32 };
NG_CLONES static double dot(float *x, const float *y, const float *z, float c, int64_t n) {
  float lane[LANES] = {0};
  double sum = 0;
  int64_t i = 0;
  (void)x;
  for (; i + LANES <= n; i += LANES) {
    for (int j = 0; j < LANES; j++)
      lane[j] += y[i + j] * z[i + j];
  }
  for (; i < n; i++)
    sum += (double)(y[i] * z[i]);
  for (int j = 0; j < LANES; j++)
    sum += (double)lane[j];
  return (double)c * sum;
}
NG_CLONES static double total(float *x, const float *y, const float *z, float c, int64_t n) {
  float lane[LANES] = {0};
  double sum = 0;
  int64_t i = 0;
  (void)y, (void)z, (void)c;
  for (; i + LANES <= n; i += LANES) {
    for (int j = 0; j < LANES; j++)
      lane[j] += x[i + j];
  }
  for (; i < n; i++)
    sum += (double)x[i];
  for (int j = 0; j < LANES; j++)
    sum += (double)lane[j];
  return sum;
}

/* One operation over a layer, row by row.  same_y, same_z: y or z is the layer's vector a, the same for every row; g: c is
 * the row's entry of g.  Rows keep f32 sums short, like pairwise summation. */
typedef struct loop {
  operation run;
  float *x;
  const float *y, *z, *g;
  float c;
  int64_t rows, cols;
  int32_t pieces;
  bool same_y, same_z;
  double sum[256];
} loop;

static void loop_piece(void *arg, int32_t i) {
  loop *l = arg;
  const int64_t from = l->rows * i / l->pieces, to = l->rows * (i + 1) / l->pieces;
  l->sum[i] = 0;
  for (int64_t r = from; r < to; r++) {
    float *x = l->x == NULL ? NULL : l->x + r * l->cols;
    const float *y = l->y == NULL || l->same_y ? l->y : l->y + r * l->cols;
    const float *z = l->z == NULL || l->same_z ? l->z : l->z + r * l->cols;
    l->sum[i] += l->run(x, y, z, l->g == NULL ? l->c : l->g[r], l->cols);
  }
}

static double run_loop(const work *k, loop *l) {
  double sum = 0;
  l->pieces = ng_pool_threads(k->pool) < 256 ? ng_pool_threads(k->pool) : 256;
  ng_pool_run(k->pool, l->pieces, loop_piece, l);
  for (int i = 0; i < l->pieces; i++)
    sum += l->sum[i];
  return sum;
}

static double each(const work *k, const matrix *m, operation run, float *x, const float *y,
                   const float *z, double c) {
  loop l = {.run = run, .x = x + m->at, .c = (float)c, .rows = m->rows, .cols = m->cols};
  l.y = y == NULL ? NULL : y + m->at;
  l.z = z == NULL ? NULL : z + m->at;
  return run_loop(k, &l);
}

static void published_precondition(const work *k) {
  const double lambda = k->damping;
  double v = 0;
  for (int i = 0; i < k->list.n; i++) {
    const matrix *m = &k->layer[i];
    const float *a = k->vector + m->a, *g = k->vector + m->g;
    const double alpha = dot(NULL, a, a, 1, m->cols), beta = dot(NULL, g, g, 1, m->rows);
    loop s = {.run = dot, .y = k->grad + m->at, .z = a, .g = g, .same_z = true};
    loop outer = {.run = multiple, .x = k->direction + m->at, .y = a, .g = g, .same_y = true};
    s.rows = outer.rows = m->rows;
    s.cols = outer.cols = m->cols;
    const double sum = run_loop(k, &s);
    (void)run_loop(k, &outer);
    (void)each(k, m, times_number, k->direction, NULL, NULL, -sum / (alpha * beta + lambda));
    (void)each(k, m, add, k->direction, k->grad, NULL, 0);
    (void)each(k, m, by_number, k->direction, NULL, NULL, lambda);
  }
  for (int i = 0; i < k->list.n; i++) {
    const matrix *m = &k->layer[i];
    (void)each(k, m, product, k->tmp, k->direction, k->grad, 0);
    (void)each(k, m, times_number, k->tmp, NULL, NULL, LR * LR);
    v += each(k, m, total, k->tmp, NULL, NULL, 0);
    (void)each(k, m, copy, k->grad, k->direction, NULL, 0);
  }
  const double nu = v > 0 ? fmin(1, sqrt(k->kl_clip / v)) : 1;
  for (int i = 0; i < k->list.n; i++)
    (void)each(k, &k->layer[i], times_number, k->grad, NULL, NULL, nu);
}

static void published_sgd(const work *k) {
  for (int i = 0; i < k->list.n; i++) {
    const matrix *m = &k->layer[i];
    (void)each(k, m, plus_multiple, k->tmp, k->grad, k->weight, DECAY);
    (void)each(k, m, times_number, k->moment, NULL, NULL, MOMENTUM);
    (void)each(k, m, add, k->moment, k->tmp, NULL, 0);
    (void)each(k, m, add_multiple, k->weight, k->moment, NULL, -LR);
  }
}

/* ---- SGD in one loop -------------------------------------------------------------------------*/

NG_CLONES static double sgd(float *restrict w, const float *restrict d, const float *restrict m,
                            float c, int64_t n) {
  float *restrict moment = (float *)(uintptr_t)m;
  (void)c;
  for (int64_t i = 0; i < n; i++) {
    moment[i] = (float)MOMENTUM * moment[i] + (d[i] + (float)DECAY * w[i]);
    w[i] -= (float)LR * moment[i];
  }
  return 0;
}

/* ---- the case --------------------------------------------------------------------------------*/

static const float WEIGHT = 0.1f, GRADIENT = 0.01f, VECTOR = 0.5f;

/* Layers as matrices, because a step does not depend on the source of a and g. */
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
    const matrix *m = &k->layer[i];
    const ng_array a = ng_array_matrix(k->vector + m->a, 1, m->cols, NG_F32);
    const ng_array g = ng_array_matrix(k->vector + m->g, 1, m->rows, NG_F32);
    st = ng_observe_input(p, i, &a, NG_COPY);
    if (st >= 0) st = ng_observe_output_grad(p, i, &g, NG_COPY);
  }
  /* no later step observes: observing is not timed */
  if (st >= 0) st = ng_set(p, "stat_period", "1000000000");
  return st < 0 ? bench_failed(b, "a model", st) : CLI_OK;
}

static int make_arrays(const bench *b, work *k) {
  float **const all[] = {&k->fresh,     &k->grad, &k->weight, &k->moment,
                         &k->direction, &k->tmp,  &k->result};
  k->layer = cli_take((size_t)k->list.n, sizeof *k->layer);
  for (int i = 0; i < k->list.n; i++) {
    const int64_t rows = k->list.layer[i].q, cols = k->list.layer[i].p;
    const int64_t g = k->vectors + (cols + 15) / 16 * 16;
    k->layer[i] = (matrix){rows, cols, k->count, k->vectors, g};
    k->count += rows * cols;
    k->vectors = g + (rows + 15) / 16 * 16;
  }
  k->damping = cli_option_real(b->options, "damping");
  k->kl_clip = cli_option_real(b->options, "kl_clip");
  if ((k->vector = bench_floats(k->vectors)) == NULL) return CLI_BAD;
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    if ((*all[i] = bench_floats(k->count)) == NULL) return CLI_BAD;
  }
  bench_fill(k->fresh, k->count, GRADIENT);
  bench_fill(k->vector, k->vectors, VECTOR);
  k->flush_bytes = 2 * floor_cache();
  k->flush = cli_take((size_t)k->flush_bytes, 1);
  k->pool = ng_pool_create(cli_cores(), NULL);
  return k->pool == NULL ? cli_bad("bench: no threads") : CLI_OK;
}

static int open_eva(bench *b) {
  work *k = b->user = cli_take(1, sizeof *k);
  int rc =
      bench_layers(b->model, 512, 4608, &k->list); /* a number: 3x3 convolutions of 512 channels */
  if (rc == CLI_OK) rc = make_arrays(b, k);
  for (int way = TWO_PASSES; way < WAYS && rc == CLI_OK; way++)
    rc = make_precond(b, k, way);
  if (rc != CLI_OK) return rc;
  for (int part = 0; part < PARTS; part++) {
    for (int way = 0; way < WAYS; way++) {
      const bool timed = part == STEP || way != FUSED;
      k->row[way][part] = timed ? bench_add(b, "%s/%s", part_name[part], way_name[way]) : -1;
    }
  }
  (void)snprintf(b->prefix, sizeof b->prefix, "%.90s/", k->list.name);
  bench_common(b, "parameters", k->count);
  bench_title(b,
              "bench fused-eva: method %s, SGD with momentum and weight decay, f32\n%s, %lld "
              "parameters in %d layers",
              cli_option_text(b->options, "method").text, k->list.name, (long long)k->count,
              k->list.n);
  return CLI_OK;
}

static void refresh(const work *k) {
  memcpy(k->grad, k->fresh, (size_t)k->count * sizeof(float));
  for (int64_t i = 0; i < k->flush_bytes; i += 64)
    k->flush[i]++;
}

static int one_step(const bench *b, work *k, int way, double ms[PARTS]) {
  const double start = ng_now_ms();
  ng_status st = NG_OK;
  if (way == PUBLISHED) published_precondition(k);
  if (way == TWO_PASSES) st = ng_step(k->p[way], LR);
  ms[PRECONDITION] = ng_now_ms() - start;
  if (way == PUBLISHED) published_sgd(k);
  if (way == TWO_PASSES) {
    loop l = {.run = sgd, .x = k->weight, .y = k->grad, .z = k->moment, .cols = 4096};
    l.rows = k->count / l.cols;
    (void)run_loop(k, &l);
    const int64_t done = l.rows * l.cols;
    (void)sgd(k->weight + done, k->grad + done, k->moment + done, 0, k->count - done);
  }
  if (way == FUSED) {
    ng_sgd how;
    ng_sgd_init(&how, sizeof how);
    how.lr = LR;
    how.momentum = MOMENTUM;
    how.weight_decay = DECAY;
    st = ng_step_sgd(k->p[way], &how, 1);
  }
  ms[STEP] = ng_now_ms() - start;
  return st == NG_OK ? CLI_OK : bench_failed(b, "a step", st);
}

/* The weights after the first step must equal the weights of the published sequence, up to the rounding of the step and
 * of the weights (at most 0.1). */
static int compare(const work *k, int way) {
  double gap = 0, most = 0;
  uint64_t s = BENCH_SEED;
  if (way == PUBLISHED) memcpy(k->result, k->weight, (size_t)k->count * sizeof(float));
  for (int64_t i = 0; i < k->count; i++) {
    const double before = (double)(WEIGHT * bench_number(&s));
    gap = fmax(gap, fabs((double)k->weight[i] - (double)k->result[i]));
    most = fmax(most, fabs((double)k->result[i] - before));
  }
  if (gap <= TOLERANCE * most + (double)WEIGHT * 0x1p-23) return CLI_OK;
  return cli_bad("bench: the step of '%s' differs from the published sequence by %g of %g",
                 way_name[way], gap, most);
}

static int round_of(bench *b, int r) {
  work *k = b->user;
  int rc = CLI_OK;
  for (int way = 0; way < WAYS && rc == CLI_OK; way++) {
    double ms[PARTS];
    if (r < 0) {
      bench_fill(k->weight, k->count, WEIGHT);
      memset(k->moment, 0, (size_t)k->count * sizeof(float));
    }
    refresh(k);
    rc = one_step(b, k, way, ms);
    for (int part = 0; part < PARTS; part++) {
      if (k->row[way][part] >= 0) bench_time(b, k->row[way][part], r, ms[part]);
    }
    if (r < 0 && rc == CLI_OK) rc = compare(k, way);
  }
  return rc;
}

static int bounds(bench *b) {
  const work *k = b->user;
  for (int part = 0; part < PARTS && bench_copy_gbs(b) > 0; part++) {
    for (int way = 0; way < WAYS; way++) {
      if (k->row[way][part] >= 0)
        b->row[k->row[way][part]].bound = 1e-6 * part_bytes[part] * (double)k->count / b->copy_gbs;
    }
  }
  return CLI_OK;
}

/* --table: whole iterations: forward and backward of the network, and the median of each way. */
static int finish(bench *b) {
  const work *k = b->user;
  double step[WAYS];
  for (int way = 0; way < WAYS; way++) {
    bench_row *row = &b->row[k->row[way][STEP]];
    step[way] = bench_median(row->ms, b->repeat);
  }
  for (int64_t batch = 1; batch <= 256 && b->table; batch *= 2) {
    const int passes = bench_add(b, "batch %lld/forward and backward", (long long)batch);
    if (bench_passes(b, batch, passes) != CLI_OK) return CLI_BAD;
    for (int way = 0; way < WAYS; way++) {
      const int row = bench_add(b, "batch %lld/iteration, %s", (long long)batch, way_name[way]);
      for (int r = 0; r < b->repeat; r++)
        bench_time(b, row, r, b->row[passes].ms[r] + step[way]);
    }
  }
  return CLI_OK;
}

static void close_eva(bench *b) {
  work *k = b->user;
  if (k == NULL) return;
  for (int way = 0; way < WAYS; way++)
    ng_precond_destroy(&k->p[way]);
  ng_pool_destroy(k->pool);
  float *const all[] = {k->fresh,     k->grad, k->weight, k->moment,
                        k->direction, k->tmp,  k->result, k->vector};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
    free(all[i]);
  free(k->flush);
  free(k->layer);
  shapes_free(&k->list);
  free(k);
}

static int check(const bench *b) {
  static const char *const published[][2] = {{"clip", "kl"}, {"sides", "both"}};
  ng_method_info m = {.struct_size = sizeof m};
  for (int i = 0; i < 2; i++) {
    if (!cli_option_is(b->options, published[i][0], published[i][1])) {
      return cli_bad("bench fused-eva: %s is %s; the published sequence has %s", published[i][0],
                     cli_option_text(b->options, published[i][0]).text, published[i][1]);
    }
  }
  if (cli_method_find(cli_option_text(b->options, "method").text, &m) >= 0 &&
      strcmp(m.family, "rankone") != 0) {
    return cli_bad("bench fused-eva: method %s is of the %s family; expected eva or eva-natgrad",
                   m.name, m.family);
  }
  if (b->table && (b->model == NULL || strpbrk(b->model, "./") != NULL))
    return cli_bad("bench fused-eva: --table needs --model NAME of a network");
  return CLI_OK;
}

const bench_case bench_eva = {.name = "fused-eva",
                              .options = "method=eva",
                              .models = "resnet18 1e7 1e8",
                              .check = check,
                              .open = open_eva,
                              .round = round_of,
                              .bounds = bounds,
                              .finish = finish,
                              .close = close_eva};
