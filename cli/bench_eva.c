/* bench_eva.c: `natgrad bench fused-eva`: an Eva step three ways, on the weights of a network.
 *
 * In: shapes of a model, or a number of parameters.  Out: medians for
 *     published    the published sequence of operations (lzhangbv/eva and an SGD of one tensor
 *                  operation after the other), each operation one plain loop over memory, all
 *                  processors: 19 words a parameter to precondition, 11 to update
 *     two passes   ng_step, then one loop of SGD
 *     fused        ng_step_sgd
 * beside floors: 12 bytes a parameter (read, read and write the gradient) and 24 bytes (and read and
 * write weights and momentum) at the rate of a copy in the same process.  Only the step is timed;
 * before each the gradient is fresh and the caches hold something else, as after a backward pass.
 * All three start from the same arrays and must end with the same numbers. */
#include "bench.h"
#include "clock.h"
#include "floors.h"
#include "pool.h"
#include "shapes.h"
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
  int64_t rows, cols, at; /* the gradient of one layer, no bias: q x p; where it starts */
  int64_t a, g;           /* where its vectors start */
} matrix;

typedef struct work {
  const bench_wish *wish;
  char name[64];
  matrix *layer;
  int layers;
  int64_t count, vectors, flush_bytes;
  ng_options *options;
  ng_context *ctx;
  ng_pool *pool;
  float *fresh, *grad, *weight, *moment, *p, *tmp, *vector, *result;
  char *flush;
  double *sample[PARTS], median[WAYS][PARTS], floor[PARTS], copy_gbs;
  int64_t copy_bytes;
} work;

/* ---- the published sequence, one loop an operation -------------------------------------------*/

/* One operation of a tensor library on n elements: x from x, y, z and c; what it returns is added
 * up.  Sums are made in f32 lanes, as such libraries do. */
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

/* x, y, z: the layer's first element; a NULL one is not used.  by_row: y or z is the layer's vector
 * a, the same in every row, and c the row's entry of g. */
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
  for (int64_t r = from; r < to; r++) { /* in rows: f32 sums stay short, as pairwise ones are */
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
  const double lambda = cli_option_real(k->options, "damping");
  double v = 0;
  for (int i = 0; i < k->layers; i++) {
    const matrix *m = &k->layer[i];
    const float *a = k->vector + m->a, *g = k->vector + m->g;
    const double alpha = dot(NULL, a, a, 1, m->cols), beta = dot(NULL, g, g, 1, m->rows);
    loop s = {.run = dot, .y = k->grad + m->at, .z = a, .g = g, .same_z = true};
    loop outer = {.run = multiple, .x = k->p + m->at, .y = a, .g = g, .same_y = true};
    s.rows = outer.rows = m->rows;
    s.cols = outer.cols = m->cols;
    const double sum = run_loop(k, &s);
    (void)run_loop(k, &outer);
    (void)each(k, m, times_number, k->p, NULL, NULL, -sum / (alpha * beta + lambda));
    (void)each(k, m, add, k->p, k->grad, NULL, 0);
    (void)each(k, m, by_number, k->p, NULL, NULL, lambda);
  }
  for (int i = 0; i < k->layers; i++) {
    const matrix *m = &k->layer[i];
    (void)each(k, m, product, k->tmp, k->p, k->grad, 0);
    (void)each(k, m, times_number, k->tmp, NULL, NULL, LR * LR);
    v += each(k, m, total, k->tmp, NULL, NULL, 0);
    (void)each(k, m, copy, k->grad, k->p, NULL, 0);
  }
  const double nu = v > 0 ? fmin(1, sqrt(cli_option_real(k->options, "kl_clip") / v)) : 1;
  for (int i = 0; i < k->layers; i++)
    (void)each(k, &k->layer[i], times_number, k->grad, NULL, NULL, nu);
}

static void published_sgd(const work *k) {
  for (int i = 0; i < k->layers; i++) {
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

/* ---- ours ------------------------------------------------------------------------------------*/

static int failed(const work *k, const char *what, ng_status st) {
  return cli_bad("bench: %s: %s (%s)", what, ng_last_error(k->ctx), ng_status_name(st));
}

/* Layers as matrices: a step does not ask where a and g came from. */
static int open_model(work *k, const char *update, ng_precond **p) {
  char message[512] = "";
  if (ng_options_set(k->options, "update", update, message, sizeof message) < 0) {
    return cli_bad("%s", message);
  }
  ng_status st = ng_precond_create_from(k->ctx, k->options, p);
  for (int i = 0; i < k->layers && st >= 0; i++) {
    const matrix *m = &k->layer[i];
    char name[32];
    int32_t index = -1;
    (void)snprintf(name, sizeof name, "layer%d", i);
    const ng_array g = ng_array_matrix(k->grad + m->at, m->rows, m->cols, NG_F32);
    const ng_array w = ng_array_matrix(k->weight + m->at, m->rows, m->cols, NG_F32);
    st = ng_add_linear(*p, name, m->cols, m->rows, 0, &index);
    if (st >= 0) st = ng_bind_grad(*p, index, NG_WEIGHT, &g);
    if (st >= 0) st = ng_bind_weight(*p, index, NG_WEIGHT, &w);
  }
  if (st >= 0) st = ng_ready(*p);
  ng_batch one;
  ng_batch_init(&one, sizeof one);
  one.samples = 1;
  if (st >= 0) st = ng_begin(*p, &one); /* one sample: the means are what is shown */
  for (int32_t i = 0; i < k->layers && st >= 0; i++) {
    const matrix *m = &k->layer[i];
    const ng_array a = ng_array_matrix(k->vector + m->a, 1, m->cols, NG_F32);
    const ng_array g = ng_array_matrix(k->vector + m->g, 1, m->rows, NG_F32);
    st = ng_observe_input(*p, i, &a, NG_COPY);
    if (st >= 0) st = ng_observe_output_grad(*p, i, &g, NG_COPY);
  }
  /* observing is not what is measured: after the first step nothing is due */
  if (st >= 0) st = ng_set(*p, "stat_period", "1000000000");
  return st < 0 ? failed(k, "a model", st) : CLI_OK;
}

/* ---- the run ---------------------------------------------------------------------------------*/

static const float WEIGHT = 0.1f, GRADIENT = 0.01f, VECTOR = 0.5f;

static void refresh(const work *k) {
  memcpy(k->grad, k->fresh, (size_t)k->count * sizeof(float));
  for (int64_t i = 0; i < k->flush_bytes; i += 64)
    k->flush[i]++;
}

static int one(work *k, int way, ng_precond *p, double ms[PARTS]) {
  const double t0 = ng_now_ms();
  ng_status st = NG_OK;
  if (way == PUBLISHED) published_precondition(k);
  if (way == TWO_PASSES) st = ng_step(p, LR);
  ms[PRECONDITION] = ng_now_ms() - t0;
  if (way == PUBLISHED) published_sgd(k);
  if (way == TWO_PASSES) {
    loop l = {.run = sgd, .x = k->weight, .y = k->grad, .z = k->moment, .cols = 4096};
    l.rows = k->count / l.cols;
    (void)run_loop(k, &l);
    const int64_t rest = l.rows * l.cols;
    (void)sgd(k->weight + rest, k->grad + rest, k->moment + rest, 0, k->count - rest);
  }
  if (way == FUSED) {
    ng_sgd how;
    ng_sgd_init(&how, sizeof how);
    how.lr = LR;
    how.momentum = MOMENTUM;
    how.weight_decay = DECAY;
    if (st >= 0) st = ng_step_sgd(p, &how, 1);
  }
  ms[STEP] = ng_now_ms() - t0;
  return st == NG_OK ? CLI_OK : failed(k, "a step", st);
}

/* Weights after the first step: the same from every way, to the rounding of the step and of the
 * weights (at most 0.1) themselves. */
static int compare(const work *k, int way) {
  double gap = 0, most = 0;
  uint64_t s = BENCH_SEED;
  if (way == PUBLISHED) {
    memcpy(k->result, k->weight, (size_t)k->count * sizeof(float));
    return CLI_OK;
  }
  for (int64_t i = 0; i < k->count; i++) {
    const double before = (double)(WEIGHT * bench_number(&s));
    gap = fmax(gap, fabs((double)k->weight[i] - (double)k->result[i]));
    most = fmax(most, fabs((double)k->result[i] - before));
  }
  if (gap <= TOLERANCE * most + (double)WEIGHT * 0x1p-23) return CLI_OK;
  return cli_bad("bench: the step of '%s' differs from the published sequence by %g of %g",
                 way_name[way], gap, most);
}

static int run_way(work *k, int way) {
  ng_precond *p = NULL;
  double ms[PARTS];
  int rc = CLI_OK;
  bench_fill(k->weight, k->count, WEIGHT);
  memset(k->moment, 0, (size_t)k->count * sizeof(float));
  refresh(k);
  if (way != PUBLISHED) rc = open_model(k, way == FUSED ? "sgd" : "gradient", &p);
  if (rc == CLI_OK) rc = one(k, way, p, ms);
  if (rc == CLI_OK) rc = compare(k, way);
  for (int r = 0; r < k->wish->repeat && rc == CLI_OK; r++) {
    refresh(k);
    rc = one(k, way, p, ms);
    for (int part = 0; part < PARTS; part++)
      k->sample[part][r] = ms[part];
  }
  for (int part = 0; part < PARTS && rc == CLI_OK; part++)
    k->median[way][part] = bench_median(k->sample[part], k->wish->repeat);
  ng_precond_destroy(&p);
  return rc;
}

/* ---- arrays ----------------------------------------------------------------------------------*/

static int take_floats(float **x, int64_t n) {
  void *p = NULL;
  if (posix_memalign(&p, 64, (size_t)n * sizeof(float)) != 0) {
    return cli_bad("bench: no memory for arrays of %lld floats", (long long)n);
  }
  *x = p;
  memset(p, 0, (size_t)n * sizeof(float)); /* its pages, before anything is timed */
  return CLI_OK;
}

static int take_arrays(work *k) {
  float **const all[] = {&k->fresh, &k->grad, &k->weight, &k->moment, &k->p, &k->tmp, &k->result};
  int rc = take_floats(&k->vector, k->vectors);
  for (size_t i = 0; i < sizeof all / sizeof all[0] && rc == CLI_OK; i++)
    rc = take_floats(all[i], k->count);
  if (rc != CLI_OK) return rc;
  bench_fill(k->fresh, k->count, GRADIENT);
  bench_fill(k->vector, k->vectors, VECTOR);
  k->flush_bytes = 2 * floor_cache();
  k->flush = cli_take((size_t)k->flush_bytes, 1);
  for (int part = 0; part < PARTS; part++)
    k->sample[part] = cli_take((size_t)k->wish->repeat, sizeof(double));
  return CLI_OK;
}

static void add_layer(work *k, int64_t rows, int64_t cols) {
  matrix *m = &k->layer[k->layers++];
  *m = (matrix){rows, cols, k->count, k->vectors, k->vectors + (cols + 15) / 16 * 16};
  k->count += rows * cols;
  k->vectors = m->g + (rows + 15) / 16 * 16;
}

/* A number of parameters becomes 3x3 convolutions of 512 channels; anything else is a model. */
static int take_layers(work *k, const char *model) {
  enum { ROWS = 512, COLS = 4608 };
  char *end = NULL;
  const double number = strtod(model, &end);
  (void)snprintf(k->name, sizeof k->name, "%s", model);
  if (*end == 0 && end != model) {
    if (!(number >= COLS && number <= 1e9)) {
      return cli_bad("--model: %s parameters, expected %d to 1e9", model, COLS);
    }
    int64_t rows = (int64_t)(number / COLS);
    k->layer = cli_take((size_t)(rows / ROWS + 1), sizeof *k->layer);
    for (; rows > 0; rows -= ROWS)
      add_layer(k, rows < ROWS ? rows : ROWS, COLS);
    return CLI_OK;
  }
  shapes list;
  const int rc = shapes_make(model, SHAPES_OF_BENCH, &list);
  if (rc != CLI_OK) return rc;
  (void)snprintf(k->name, sizeof k->name, "%s", list.name);
  k->layer = cli_take((size_t)list.n, sizeof *k->layer);
  for (int i = 0; i < list.n; i++) /* a bias is one more column */
    add_layer(k, list.layer[i].q, list.layer[i].p);
  shapes_free(&list);
  return CLI_OK;
}

/* ---- the answer ------------------------------------------------------------------------------*/

static void print_table(const work *k) {
  printf("\n%s, %lld parameters in %d layers", k->name, (long long)k->count, k->layers);
  if (k->copy_gbs > 0) {
    printf("; copy of %lld MiB = %.1f GB/s", (long long)(k->copy_bytes >> 20), k->copy_gbs);
  }
  printf("\n  %-26s %8s %9s %9s %9s %9s\n", "optimize", "ms", "ns/param", "floor ms", "of floor",
         "speedup");
  for (int part = 0; part < PARTS; part++) {
    for (int way = 0; way < WAYS; way++) {
      const double ms = k->median[way][part];
      char name[64], floor[16] = "-", ratio[16] = "-";
      if (part == PRECONDITION && way == FUSED) continue; /* one with the update */
      (void)snprintf(name, sizeof name, "%s, %s", way_name[way], part_name[part]);
      if (k->floor[part] > 0) {
        (void)snprintf(floor, sizeof floor, "%.3f", k->floor[part]);
        (void)snprintf(ratio, sizeof ratio, "%.2f", ms / k->floor[part]);
      }
      printf("  %-26s %8.3f %9.3f %9s %9s %9.1f\n", name, ms, 1e6 * ms / (double)k->count, floor,
             ratio, k->median[PUBLISHED][part] / ms);
    }
  }
}

static int print_json(const work *k) {
  int rc = CLI_OK;
  for (int part = 0; part < PARTS; part++) {
    for (int way = 0; way < WAYS && rc == CLI_OK; way++) {
      char name[160];
      if (part == PRECONDITION && way == FUSED) continue;
      (void)snprintf(name, sizeof name, "%s/%s/%s", k->name, part_name[part], way_name[way]);
      ngio_out line = bench_line("fused-eva", name);
      ngio_put_integer(&line, "parameters", k->count);
      ngio_put_real(&line, "median_ms", k->median[way][part]);
      bench_floor(&line, k->floor[part]);
      rc = bench_print(&line);
    }
  }
  return rc;
}

static int head(const bench_wish *w, const ng_options *o) {
  const cli_value method = cli_option_text(o, "method");
  char processor[256], commit[64];
  cli_processor(processor, sizeof processor);
  cli_build("commit", commit, sizeof commit);
  if (w->json) {
    ngio_out line = bench_line("fused-eva", NULL);
    ngio_open(&line, "machine", '{');
    bench_machine(&line, processor, commit, method.text, w->repeat);
    ngio_shut(&line, '}');
    return bench_print(&line);
  }
  printf("bench fused-eva: method %s, SGD with momentum and weight decay, f32\n", method.text);
  printf("processor = %s; threads = %d; commit = %s; medians of %d steps\n", processor, cli_cores(),
         commit, w->repeat);
  return CLI_OK;
}

/* ---- together --------------------------------------------------------------------------------*/

/* Does a row take the steps of the published sequence here? */
static bool is_published(const ng_method_info *m) {
  ng_options *o = NULL;
  const bool yes = strcmp(m->family, "rankone") == 0 && ng_options_create(NULL, NULL, 0, &o) >= 0 &&
                   ng_options_set(o, "method", m->name, NULL, 0) >= 0 &&
                   cli_option_is(o, "clip", "kl") && cli_option_is(o, "sides", "both");
  ng_options_destroy(&o);
  return yes;
}

/* "eva or eva-natgrad" */
static void list_published(char *text, size_t size) {
  size_t n = 0;
  text[0] = 0;
  for (int32_t i = 0; i < ng_method_count() && n < size; i++) {
    ng_method_info m = {.struct_size = sizeof m};
    if (ng_method_at(i, &m) != NG_OK || !is_published(&m)) continue;
    n += (size_t)snprintf(text + n, size - n, "%s%s", n > 0 ? " or " : "", m.name);
  }
}

static int configure(ng_options **made, const cli_args *args) {
  char message[512] = "", others[256];
  ng_method_info m;
  int rc = CLI_OK;
  if (ng_options_create("method=eva", message, sizeof message, made) < 0)
    return cli_bad("%s", message);
  ng_options *o = *made;
  if (ng_options_from_env(o, message, sizeof message) < 0) rc = cli_bad("%s", message);
  if (rc == CLI_OK) rc = cli_apply(args, o);
  if (rc == CLI_OK && ng_options_check(o, message, sizeof message) < 0) rc = cli_bad("%s", message);
  if (rc == CLI_OK && !cli_option_is(o, "clip", "kl")) {
    rc = cli_bad("bench fused-eva: clip is %s; the published sequence here has kl",
                 cli_option_text(o, "clip").text);
  }
  if (rc == CLI_OK && !cli_option_is(o, "sides", "both")) {
    rc = cli_bad("bench fused-eva: sides is %s; the published sequence here has both",
                 cli_option_text(o, "sides").text);
  }
  if (rc == CLI_OK && cli_method_find(cli_option_text(o, "method").text, &m) >= 0 &&
      strcmp(m.family, "rankone") != 0) {
    list_published(others, sizeof others);
    rc = cli_bad("bench fused-eva: method %s is of the %s family; take %s", m.name, m.family,
                 others);
  }
  return rc;
}

/* The line about the machine comes with the first model, when it is known to be one. */
static int run_model(const bench_wish *w, const char *model, ng_options *o, bool first) {
  work k = {.wish = w, .options = o};
  ng_context_config config;
  int rc = take_layers(&k, model);
  if (rc == CLI_OK && first) rc = head(w, o);
  if (rc == CLI_OK) rc = take_arrays(&k);
  ng_context_config_init(&config, sizeof config);
  if (rc == CLI_OK) rc = cli_context(&config, &k.ctx);
  k.pool = ng_pool_create(cli_cores(), NULL);
  if (rc == CLI_OK && k.pool == NULL) rc = cli_bad("bench: no threads");
  if (rc == CLI_OK && !w->no_floors) k.copy_gbs = floor_copy_gbs(&k.copy_bytes);
  for (int way = 0; way < WAYS && rc == CLI_OK; way++)
    rc = run_way(&k, way);
  for (int part = 0; part < PARTS && k.copy_gbs > 0; part++)
    k.floor[part] = 1e-6 * part_bytes[part] * (double)k.count / k.copy_gbs;
  if (rc == CLI_OK && w->json) rc = print_json(&k);
  if (rc == CLI_OK && !w->json) print_table(&k);
  if (rc == CLI_OK && w->table) {
    const double optimize[3] = {k.median[PUBLISHED][STEP], k.median[TWO_PASSES][STEP],
                                k.median[FUSED][STEP]};
    rc = bench_iterations(k.name, w->repeat, optimize);
  }
  ng_context_destroy(&k.ctx);
  ng_pool_destroy(k.pool);
  float *const all[] = {k.fresh, k.grad, k.weight, k.moment, k.p, k.tmp, k.result, k.vector};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
    free(all[i]);
  for (int part = 0; part < PARTS; part++)
    free(k.sample[part]);
  free(k.flush);
  free(k.layer);
  return rc;
}

int bench_eva(const bench_wish *w, const cli_args *args) {
  static const char *const usual[] = {"resnet18", "1e7", "1e8"};
  ng_options *o = NULL;
  int rc = configure(&o, args);
  if (rc == CLI_OK && w->table &&
      (w->model == NULL || strpbrk(w->model, "./") != NULL || w->json)) {
    rc = cli_bad("bench fused-eva: --table wants --model NAME of a network, and no --json");
  }
  const size_t models = w->model != NULL ? 1 : sizeof usual / sizeof usual[0];
  for (size_t i = 0; i < models && rc == CLI_OK; i++)
    rc = run_model(w, w->model != NULL ? w->model : usual[i], o, i == 0);
  ng_options_destroy(&o);
  return rc;
}
