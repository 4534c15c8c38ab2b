/* bench_kfac.c: `natgrad bench kfac`: a layer list, random arrays of its shapes, whole steps
 * through the public header, and what the library reports of each layer, beside floors of the same
 * shapes.
 *
 * In: a model and a batch.  Out: medians over steps per layer and of the sums, as a table or JSON.
 * The arrays shown come one after the other out of a pool larger than the caches, so that no layer
 * finds its input where the last one left it; a trainer's would be as cold. */
#include "bench.h"
#include "clock.h"
#include "floors.h"
#include "shapes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STATISTICS, SOLVE, APPLY, PARTS };
static const char *const part_name[PARTS] = {"statistics", "solve", "apply"};

typedef struct figures {
  double median[PARTS], floor[PARTS]; /* ms; a negative floor: none */
} figures;

typedef struct work {
  const bench_wish *wish;
  shapes model;
  ng_options *options;
  bool eigen, whole, invert; /* whole: inverse or factor of whole matrices: floors are theirs */
  ng_context *ctx;
  ng_precond *p;
  float *pool;
  int64_t pool_floats, at;
  float **grad;
  double *sample; /* [part][layer + sum][repeat] */
  double *step;   /* [repeat] whole steps, observations and all */
  figures *layer; /* and the sum as the last */
  double gflops, copy_gbs, median_step;
  int64_t copy_bytes, rescued; /* rescued: steps that took the ladder, whose times are not usual */
} work;

/* ---- the run ---------------------------------------------------------------------------------*/

static int64_t input_floats(const shape *l, int64_t batch) {
  return l->conv ? batch * l->in * l->image[0] * l->image[1] : batch * l->positions * l->in;
}

static int64_t output_floats(const shape *l, int64_t batch) {
  return batch * l->positions * l->out;
}

static double *sample_of(const work *k, int part, int layer) {
  return k->sample +
         ((size_t)part * (size_t)(k->model.n + 1) + (size_t)layer) * (size_t)k->wish->repeat;
}

static int failed(const work *k, const char *what, ng_status st) {
  return cli_bad("bench: %s: %s (%s)", what, ng_last_error(k->ctx), ng_status_name(st));
}

/* The next `floats` of the pool. */
static float *next_array(work *k, int64_t floats) {
  if (k->at + floats > k->pool_floats) k->at = 0;
  float *x = k->pool + k->at;
  k->at += (floats + 15) / 16 * 16; /* 64-byte aligned, as allocators give it */
  return x;
}

static int take_pool(work *k) {
  int64_t most = 0;
  for (int i = 0; i < k->model.n; i++) {
    const shape *l = &k->model.layer[i];
    const int64_t a = input_floats(l, k->wish->batch), g = output_floats(l, k->wish->batch);
    const int64_t d = l->p * l->q;
    if (a > most) most = a;
    if (g > most) most = g;
    if (d > most) most = d;
  }
  k->pool_floats = most + 4 * floor_cache() / (int64_t)sizeof(float);
  void *pool = NULL;
  if (posix_memalign(&pool, 64, (size_t)k->pool_floats * sizeof(float)) != 0) {
    return cli_bad("bench: no memory for arrays of %lld floats; a smaller --batch",
                   (long long)k->pool_floats);
  }
  k->pool = pool;
  bench_fill(k->pool, k->pool_floats, 1.0F);
  return CLI_OK;
}

static int set_up(work *k) {
  ng_context_config config;
  ng_context_config_init(&config, sizeof config);
  config.linalg = k->wish->linalg;
  int rc = cli_context(&config, &k->ctx);
  if (rc != CLI_OK) return rc;
  ng_status st = ng_precond_create_from(k->ctx, k->options, &k->p);
  if (st < 0) return failed(k, "options", st);
  for (int i = 0; i < k->model.n; i++) {
    const shape *l = &k->model.layer[i];
    ng_layer layer;
    int32_t index = -1;
    st = shapes_describe(l, &layer);
    if (st >= 0) st = ng_add_layer(k->p, &layer, &index);
    if (st < 0) return failed(k, l->name, st);
    k->grad[i] = cli_take((size_t)(l->q * l->p), sizeof(float));
    const int64_t in = l->p - (l->bias ? 1 : 0);
    ng_array w = ng_array_matrix(k->grad[i], l->out, in, NG_F32);
    ng_array b = ng_array_matrix(k->grad[i] + l->out * in, 1, l->out, NG_F32);
    st = ng_bind_grad(k->p, index, NG_WEIGHT, &w);
    if (st >= 0 && l->bias) st = ng_bind_grad(k->p, index, NG_BIAS, &b);
    if (st < 0) return failed(k, l->name, st);
  }
  st = ng_ready(k->p);
  return st < 0 ? failed(k, "ng_ready", st) : CLI_OK;
}

static int one_step(work *k, double *ms) {
  const int64_t B = k->wish->batch;
  for (int i = 0; i < k->model.n; i++) { /* the last step has preconditioned them */
    const int64_t n = k->model.layer[i].q * k->model.layer[i].p;
    memcpy(k->grad[i], next_array(k, n), (size_t)n * sizeof(float));
  }
  ng_batch batch;
  ng_batch_init(&batch, sizeof batch);
  batch.samples = B;
  const double start = ng_now_ms();
  ng_status st = ng_begin(k->p, &batch);
  for (int i = 0; i < k->model.n && st == NG_OK; i++) {
    const shape *l = &k->model.layer[i];
    if (!ng_wants(k->p, i)) continue;
    const ng_array a = shapes_input(l, next_array(k, input_floats(l, B)), B);
    const ng_array g = shapes_output(l, next_array(k, output_floats(l, B)), B);
    st = ng_observe_input(k->p, i, &a, NG_COPY);
    if (st == NG_OK) st = ng_observe_output_grad(k->p, i, &g, NG_COPY);
  }
  if (st == NG_OK) st = ng_step(k->p, 0.1);
  *ms = ng_now_ms() - start;
  if (st == NG_RESCUED) k->rescued++;
  return st == NG_OK || st == NG_RESCUED ? CLI_OK : failed(k, "a step", st);
}

static int run_steps(work *k) {
  const int n = k->model.n, R = k->wish->repeat;
  double ms;
  int64_t calls[2];
  int rc = one_step(k, &ms); /* pages, pool threads and caches come to life */
  ng_context_allocated(k->ctx, NULL, NULL, &calls[0]);
  for (int r = 0; r < R && rc == CLI_OK; r++) {
    rc = one_step(k, &k->step[r]);
    for (int i = 0; i < n && rc == CLI_OK; i++) {
      ng_layer_report report = {.struct_size = sizeof report};
      const ng_status st = ng_report_layer(k->p, i, &report);
      if (st < 0) return failed(k, "report", st);
      const double now[PARTS] = {report.observe_ms, report.solve_ms, report.measure_ms};
      for (int part = 0; part < PARTS; part++) {
        sample_of(k, part, i)[r] = now[part];
        sample_of(k, part, n)[r] += now[part];
      }
    }
  }
  if (rc != CLI_OK) return rc;
  ng_context_allocated(k->ctx, NULL, NULL, &calls[1]);
  if (calls[1] != calls[0]) {
    return cli_bad("bench: %lld allocations in %d steps; there must be none",
                   (long long)(calls[1] - calls[0]), R);
  }
  for (int i = 0; i <= n; i++) {
    for (int part = 0; part < PARTS; part++) {
      k->layer[i].median[part] = bench_median(sample_of(k, part, i), R);
    }
  }
  k->median_step = bench_median(k->step, R);
  return CLI_OK;
}

/* ---- the floors ------------------------------------------------------------------------------*/

static bool same_patches(const shape *a, const shape *b) {
  return a->conv == b->conv && a->in == b->in &&
         memcmp(a->kernel, b->kernel, sizeof a->kernel) == 0 &&
         memcmp(a->stride, b->stride, sizeof a->stride) == 0 &&
         memcmp(a->padding, b->padding, sizeof a->padding) == 0 &&
         memcmp(a->image, b->image, sizeof a->image) == 0;
}

/* Of one order, measured once: shapes repeat in every network. */
static double solve_floor(const work *k, int64_t n, int64_t *known, double *ms, int *count) {
  for (int i = 0; i < *count; i++) {
    if (known[i] == n) return ms[i];
  }
  known[*count] = n;
  ms[*count] = k->eigen ? floor_eigen(n) : floor_cholesky(n, k->invert);
  return ms[(*count)++];
}

static void measure_floors(work *k) {
  const int n = k->model.n;
  int64_t *known = cli_take((size_t)(2 * n), sizeof *known);
  double *ms = cli_take((size_t)(2 * n), sizeof *ms),
         *patches = cli_take((size_t)n, sizeof *patches);
  int count = 0;
  figures *sum = &k->layer[n];
  k->gflops = floor_sgemm_gflops(4096);
  k->copy_gbs = floor_copy_gbs(&k->copy_bytes);
  for (int i = 0; i < n; i++) {
    const shape *l = &k->model.layer[i];
    double *floor = k->layer[i].floor;
    int twin = 0; /* an earlier layer of the same shape */
    while (!same_patches(&k->model.layer[twin], l))
      twin++;
    patches[i] = twin < i ? patches[twin] : floor_im2col(l, k->wish->batch);
    const double rows = (double)(k->wish->batch * l->positions);
    const double flops = rows * (double)(l->p * (l->p + 1) + l->q * (l->q + 1));
    floor[STATISTICS] =
        patches[i] < 0 || k->gflops <= 0 ? -1 : patches[i] + 1e-6 * flops / k->gflops;
    for (twin = 0; k->model.layer[twin].p != l->p || k->model.layer[twin].q != l->q;)
      twin++;
    floor[APPLY] = twin < i   ? k->layer[twin].floor[APPLY]
                   : k->eigen ? floor_rotate(l->q, l->p)
                              : floor_apply(l->q, l->p);
    const double a = solve_floor(k, l->p, known, ms, &count);
    const double g = solve_floor(k, l->q, known, ms, &count);
    floor[SOLVE] = a < 0 || g < 0 ? -1 : a + g;
    for (int part = 0; part < PARTS; part++) {
      if (floor[part] < 0 || sum->floor[part] < 0) {
        sum->floor[part] = -1;
      } else {
        sum->floor[part] += floor[part];
      }
    }
  }
  free(known);
  free(ms);
  free(patches);
}

/* ---- the answer ------------------------------------------------------------------------------*/

typedef struct machine {
  char processor[256], blas[256], kernel[64], blas_threads[32], commit[64];
} machine;

static machine describe(void) {
  machine m = {"", "", "", "", ""};
  cli_processor(m.processor, sizeof m.processor);
  cli_build("blas", m.blas, sizeof m.blas);
  cli_build("kernel", m.kernel, sizeof m.kernel);
  cli_build("blas threads", m.blas_threads, sizeof m.blas_threads);
  cli_build("commit", m.commit, sizeof m.commit);
  return m;
}

static void print_row(const char *name, int64_t p, int64_t q, const figures *f) {
  char orders[32] = "", floor[16], ratio[16];
  if (p > 0) (void)snprintf(orders, sizeof orders, "%lld %lld", (long long)p, (long long)q);
  printf("%-22s %9s", name, orders);
  for (int part = 0; part < PARTS; part++) {
    (void)snprintf(floor, sizeof floor, "-");
    (void)snprintf(ratio, sizeof ratio, "-");
    if (f->floor[part] > 0) {
      (void)snprintf(floor, sizeof floor, "%.2f", f->floor[part]);
      (void)snprintf(ratio, sizeof ratio, "%.2f", f->median[part] / f->floor[part]);
    }
    printf("  %9.2f %9s %6s", f->median[part], floor, ratio);
  }
  printf("\n");
}

static void print_table(const work *k) {
  const machine m = describe();
  printf("bench kfac: %s, batch %lld, method %s, solver %s%s%s\n", k->model.name,
         (long long)k->wish->batch, cli_option_text(k->options, "method").text,
         cli_option_text(k->options, "solver").text, k->eigen ? "" : ", form ",
         k->eigen ? "" : cli_option_text(k->options, "cholesky_form").text);
  printf("processor = %s; blas = %s; kernel = %s; blas threads = %s; threads = %d; commit = %s\n",
         m.processor, m.blas, m.kernel[0] != 0 ? m.kernel : "unknown", m.blas_threads, cli_cores(),
         m.commit);
  if (k->gflops > 0) printf("sgemm at 4096 = %.0f GFLOP/s; ", k->gflops);
  if (!floors_possible()) printf("no floors: this build has no BLAS; ");
  if (k->copy_gbs > 0) {
    printf("copy of %lld MiB = %.1f GB/s; ", (long long)(k->copy_bytes >> 20), k->copy_gbs);
  }
  printf("milliseconds, medians of %d steps\n\n", k->wish->repeat);
  printf("%-22s %9s  %9s %9s %6s  %9s %9s %6s  %9s %9s %6s\n", "layer", "A G", "statistics",
         "floor", "ratio", "solve", "floor", "ratio", "apply", "floor", "ratio");
  for (int i = 0; i < k->model.n; i++) {
    print_row(k->model.layer[i].name, k->model.layer[i].p, k->model.layer[i].q, &k->layer[i]);
  }
  print_row("sum", 0, 0, &k->layer[k->model.n]);
  printf("%-22s %9s  %9.2f\n", "whole step", "", k->median_step);
  if (k->rescued > 0) printf("\n%lld steps rescued a factor\n", (long long)k->rescued);
  if (!k->whole) printf("\nfloors are those of whole factors; this run cuts them into blocks\n");
  printf("\nbytes held:");
  for (int32_t i = 0; i < ng_memory_count(k->p); i++) {
    ng_memory_info info = {.struct_size = sizeof info};
    if (ng_memory(k->p, i, &info) != NG_OK || info.bytes == 0) continue;
    printf(" %s %lld", info.use, (long long)info.bytes);
  }
  printf("\n");
}

static int json_figure(const work *k, const char *layer, const char *part, double median,
                       double floor) {
  char name[192];
  (void)snprintf(name, sizeof name, "%s/%lld/%s/%s", k->model.name, (long long)k->wish->batch,
                 layer, part);
  ngio_out line = bench_line("kfac", name);
  ngio_put_real(&line, "median_ms", median);
  bench_floor(&line, floor);
  return bench_print(&line);
}

static int print_json(const work *k) {
  const machine m = describe();
  ngio_out line = bench_line("kfac", NULL);
  ngio_open(&line, "machine", '{');
  bench_machine(&line, m.processor, m.commit, cli_option_text(k->options, "method").text,
                k->wish->repeat);
  ngio_put_text(&line, "blas", m.blas);
  ngio_put_text(&line, "kernel", m.kernel);
  ngio_put_text(&line, "blas_threads", m.blas_threads);
  ngio_put_real(&line, "sgemm_gflops", k->gflops);
  ngio_put_real(&line, "copy_gbs", k->copy_gbs);
  ngio_shut(&line, '}');
  int rc = bench_print(&line);
  for (int i = 0; i <= k->model.n && rc == CLI_OK; i++) {
    const char *layer = i < k->model.n ? k->model.layer[i].name : "sum";
    for (int part = 0; part < PARTS && rc == CLI_OK; part++) {
      rc =
          json_figure(k, layer, part_name[part], k->layer[i].median[part], k->layer[i].floor[part]);
    }
  }
  return rc == CLI_OK ? json_figure(k, "sum", "step", k->median_step, -1) : rc;
}

/* ---- together --------------------------------------------------------------------------------*/

/* What a bench of every part needs, the environment, the command line. */
static int configure(work *k, const cli_args *args) {
  char message[512] = "";
  int rc = CLI_OK;
  if (ng_options_create("stat_period=1 solve_period=1 cholesky_form=inverse", message,
                        sizeof message, &k->options) < 0) {
    return cli_bad("%s", message);
  }
  ng_options *o = k->options;
  if (ng_options_from_env(o, message, sizeof message) < 0) rc = cli_bad("%s", message);
  if (rc == CLI_OK) rc = cli_apply(args, o);
  if (rc == CLI_OK &&
      cli_option_is(o, "solver", "eigen")) { /* ours means nothing then; theirs is an error */
    bool theirs = false;
    for (int i = 0; i < args->n_settings; i++) {
      theirs = theirs || strcmp(args->settings[i].name, "cholesky_form") == 0;
    }
    if (!theirs && ng_options_set(o, "cholesky_form", "auto", message, sizeof message) < 0) {
      rc = cli_bad("%s", message);
    }
  }
  if (rc == CLI_OK && ng_options_check(o, message, sizeof message) < 0) rc = cli_bad("%s", message);
  if (rc != CLI_OK) return rc;
  k->eigen = cli_option_is(o, "solver", "eigen");
  k->invert = !cli_option_is(o, "cholesky_form", "factor");
  k->whole = cli_option_is(o, "max_factor", "0") && cli_option_is(o, "factor_blocks", "1");
  return CLI_OK;
}

static void print_list(const shapes *model) {
  int64_t sum = 0, product = 0;
  printf("%-22s %7s %7s %10s\n", "layer", "A", "G", "positions");
  for (int i = 0; i < model->n; i++) {
    const shape *l = &model->layer[i];
    printf("%-22s %7lld %7lld %10lld\n", l->name, (long long)l->p, (long long)l->q,
           (long long)l->positions);
    sum += l->p + l->q;
    product += l->p * l->q;
  }
  printf("%d layers, sum of orders %lld, parameters %lld\n", model->n, (long long)sum,
         (long long)product);
}

int bench_kfac(const bench_wish *w, const cli_args *args) {
  work k;
  memset(&k, 0, sizeof k);
  k.wish = w;
  int rc = configure(&k, args);
  if (rc == CLI_OK) rc = shapes_make(w->model, SHAPES_OF_BENCH, &k.model);
  if (rc == CLI_OK && w->list) {
    print_list(&k.model);
    shapes_free(&k.model);
    ng_options_destroy(&k.options);
    return CLI_OK;
  }
  if (rc == CLI_OK) {
    const size_t n = (size_t)k.model.n;
    k.grad = cli_take(n, sizeof *k.grad);
    k.layer = cli_take(n + 1, sizeof *k.layer);
    k.sample = cli_take(PARTS * (n + 1) * (size_t)w->repeat, sizeof *k.sample);
    k.step = cli_take((size_t)w->repeat, sizeof *k.step);
    rc = take_pool(&k);
  }
  if (rc == CLI_OK) rc = set_up(&k);
  if (rc == CLI_OK) rc = run_steps(&k);
  if (rc == CLI_OK) {
    if (!w->no_floors) measure_floors(&k);
    if (w->json) {
      rc = print_json(&k);
    } else {
      print_table(&k);
    }
  }
  ng_precond_destroy(&k.p);
  ng_context_destroy(&k.ctx);
  ng_options_destroy(&k.options);
  for (int i = 0; i < k.model.n && k.grad != NULL; i++)
    free(k.grad[i]);
  free(k.grad);
  free(k.pool);
  free(k.sample);
  free(k.step);
  free(k.layer);
  shapes_free(&k.model);
  return rc;
}
