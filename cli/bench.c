/* bench.c: `natgrad bench CASE`: the table of cases, the arguments, the loop over rounds, and the output of results. */
#include "common/commands.h"
#include "bench.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const bench_case *const cases[] = {&bench_kfac, &bench_train, &bench_eva, &bench_state,
                                          &bench_window};
enum { CASES = sizeof cases / sizeof cases[0] };

/* ---- for the cases ---------------------------------------------------------------------------*/

static int compare_doubles(const void *x, const void *y) {
  const double a = *(const double *)x, b = *(const double *)y;
  return (a > b) - (a < b);
}

double bench_find_median(double *x, int n) {
  qsort(x, (size_t)n, sizeof *x, compare_doubles);
  return n % 2 == 1 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

void bench_fill_random(float *x, int64_t n, float scale) {
  uint64_t s = BENCH_SEED;
  for (int64_t i = 0; i < n; i++)
    x[i] = scale * bench_next_random(&s);
}

float *bench_alloc(int64_t n) {
  void *x = NULL;
  if (posix_memalign(&x, 64, (size_t)n * sizeof(float)) != 0)
    exit(cli_fail("bench: no memory for arrays of %lld floats", (long long)n));
  /* writing to the memory maps its pages before a round is measured */
  return memset(x, 0, (size_t)n * sizeof(float));
}

int bench_report_error(const bench *b, const char *what, ng_status st) {
  return cli_fail("bench: %s: %s (%s)", what, ng_last_error(b->ctx), ng_status_name(st));
}

int bench_add_row(bench *b, const char *format, ...) {
  b->row = cli_append_zeroed(b->row, (size_t)b->rows, sizeof *b->row);
  bench_row *row = &b->row[b->rows];
  va_list args;
  va_start(args, format);
  (void)vsnprintf(row->name, sizeof row->name, format, args);
  va_end(args);
  row->ms = cli_alloc((size_t)b->repeat, sizeof *row->ms);
  return b->rows++;
}

void bench_record_time(bench *b, int row, int r, double ms) {
  if (r >= 0) b->row[row].ms[r] = ms;
}

void bench_add_note(bench *b, const char *format, ...) {
  const size_t n = strlen(b->notes);
  va_list args;
  va_start(args, format);
  (void)vsnprintf(b->notes + n, sizeof b->notes - n, format, args);
  va_end(args);
}

void bench_add_json_member(bench *b, const char *key, int64_t value) {
  b->member[b->members].json_key = key;
  b->member[b->members++].value = value;
}

double bench_measure_sgemm(bench *b) {
  if (b->gflops == 0 && floors_have_blas()) b->gflops = floor_measure_sgemm(4096);
  return b->gflops;
}

double bench_measure_copy(bench *b) {
  if (b->copy_gbs == 0) b->copy_gbs = floor_measure_copy();
  return b->copy_gbs;
}

int bench_list_layers(const char *model, int64_t rows, int64_t cols, shapes *out) {
  char *end = NULL;
  const double number = strtod(model, &end);
  if (*end != 0 || end == model) {
    if (shapes_list(model, out) != CLI_OK) return CLI_BAD;
    shapes_keep_matrices(out);
    return CLI_OK;
  }
  if (!(number >= (double)cols && number <= 1e9))
    return cli_fail("--model: %s parameters, expected %lld to 1e9", model, (long long)cols);
  const int64_t all = (int64_t)(number / (double)cols);
  memset(out, 0, sizeof *out);
  (void)snprintf(out->name, sizeof out->name, "%s", model);
  out->layer = cli_alloc((size_t)((all + rows - 1) / rows), sizeof *out->layer);
  for (int64_t left = all; left > 0; left -= rows) {
    shape *l = &out->layer[out->n];
    (void)snprintf(l->name, sizeof l->name, "layer%d", out->n++);
    l->p = cols;
    l->q = l->out = left < rows ? left : rows;
  }
  return CLI_OK;
}

ng_status bench_add_layers(ng_precond *p, const shapes *list, float *grad, float *weight) {
  ng_status st = NG_OK;
  int64_t at = 0;
  for (int i = 0; i < list->n && st >= 0; i++) {
    const shape *l = &list->layer[i];
    int32_t index = -1;
    const ng_array g = ng_array_matrix(grad + at, l->out, l->p, NG_F32);
    st = ng_add_linear(p, l->name, l->p, l->out, 0, &index);
    if (st >= 0) st = ng_bind_grad(p, index, NG_WEIGHT, &g);
    if (st >= 0 && weight != NULL) {
      const ng_array w = ng_array_matrix(weight + at, l->out, l->p, NG_F32);
      st = ng_bind_weight(p, index, NG_WEIGHT, &w);
    }
    at += l->out * l->p;
  }
  return st < 0 ? st : ng_ready(p);
}

ng_status bench_observe_layers(ng_precond *p, const shapes *list, float *x, int64_t samples) {
  ng_status st = ng_begin_samples(p, samples, 1.0);
  for (int32_t i = 0; i < list->n && st >= 0; i++) {
    const ng_array a = ng_array_matrix(x, samples, list->layer[i].p, NG_F32);
    const ng_array g = ng_array_matrix(x, samples, list->layer[i].out, NG_F32);
    st = ng_observe_input(p, i, &a, NG_COPY);
    if (st >= 0) st = ng_observe_output_grad(p, i, &g, NG_COPY);
  }
  return st;
}

int64_t bench_count_parameters(const shapes *list) {
  int64_t count = 0;
  for (int i = 0; i < list->n; i++)
    count += list->layer[i].out * list->layer[i].p;
  return count;
}

int64_t bench_find_largest_order(const shapes *list) {
  int64_t longest = 0;
  for (int i = 0; i < list->n; i++) {
    const int64_t q = list->layer[i].out, p = list->layer[i].p;
    longest = p > longest ? p : longest;
    longest = q > longest ? q : longest;
  }
  return longest;
}

/* ---- the printer -----------------------------------------------------------------------------*/

/* Keys of lines of ng_build_info, and the names of their values in JSON. */
static const char *const build_lines[] = {"blas", "kernel", "blas threads", "commit"};
static const char *const build_keys[] = {"blas", "kernel", "blas_threads", "commit"};
enum { BUILD_LINES = sizeof build_lines / sizeof build_lines[0] };

void bench_print_title(const bench *b, const char *format, ...) {
  if (b->prints_json) return;
  char text[256];
  va_list args;
  va_start(args, format);
  (void)vprintf(format, args);
  va_end(args);
  cli_read_processor_name(text, sizeof text);
  printf("\nprocessor = %s; threads = %d", text, cli_count_cores());
  for (int i = 0; i < BUILD_LINES; i++) {
    cli_read_build_line(build_lines[i], text, sizeof text);
    printf("; %s = %s", build_lines[i], text[0] != 0 ? text : "unknown");
  }
  printf("\n");
  (void)fflush(stdout);
}

static int print_machine_json(const bench *b, const bench_case *c) {
  char text[256];
  ngio_out line = {.digits = 6};
  ngio_open(&line, NULL, '{');
  ngio_put_text(&line, "bench", c->name);
  ngio_open(&line, "machine", '{');
  cli_read_processor_name(text, sizeof text);
  ngio_put_text(&line, "processor", text);
  ngio_put_integer(&line, "threads", cli_count_cores());
  for (int i = 0; i < BUILD_LINES; i++) {
    cli_read_build_line(build_lines[i], text, sizeof text);
    ngio_put_text(&line, build_keys[i], text);
  }
  if (b->options != NULL)
    ngio_put_text(&line, "method", cli_get_option_text(b->options, "method").text);
  if (b->gflops > 0) ngio_put_real(&line, "sgemm_gflops", b->gflops);
  if (b->copy_gbs > 0) ngio_put_real(&line, "copy_gbs", b->copy_gbs);
  ngio_put_integer(&line, "repeat", b->repeat);
  ngio_shut(&line, '}');
  ngio_shut(&line, '}');
  return cli_json_print("bench", &line);
}

static int print_result_row(const bench *b, const bench_case *c, bench_row *row) {
  const int n = (int)b->repeat;
  /* bench_find_median has sorted row->ms, so the quartiles can be read from it */
  const double median = bench_find_median(row->ms, n);
  const double spread = row->ms[(3 * n - 1) / 4] - row->ms[n / 4];
  if (!b->prints_json) {
    printf("%-32s %10.3f %9.3f %10.3f", row->name, median, spread, row->ms[0]);
    if (row->bound > 0) printf(" %10.3f %7.2f", row->bound, median / row->bound);
    printf("\n");
    return CLI_OK;
  }
  char name[sizeof b->prefix + sizeof row->name];
  ngio_out line = {.digits = 6};
  (void)snprintf(name, sizeof name, "%s%s", b->prefix, row->name);
  ngio_open(&line, NULL, '{');
  ngio_put_text(&line, "bench", c->name);
  ngio_put_text(&line, "case", name);
  ngio_put_real(&line, "median_ms", median);
  ngio_put_real(&line, "spread_ms", spread);
  ngio_put_real(&line, "least_ms", row->ms[0]);
  ngio_put_real(&line, "floor_ms", row->bound > 0 ? row->bound : NAN); /* NAN is written as null */
  ngio_put_real(&line, "ratio", row->bound > 0 ? median / row->bound : NAN);
  for (int i = 0; i < b->members; i++)
    ngio_put_integer(&line, b->member[i].json_key, b->member[i].value);
  ngio_shut(&line, '}');
  return cli_json_print("bench", &line);
}

static int print_results(bench *b, const bench_case *c) {
  int rc = CLI_OK;
  if (b->prints_json) {
    rc = print_machine_json(b, c);
  } else {
    printf("milliseconds of %d rounds; spread: between the quartiles\n\n%-32s %10s %9s %10s %10s "
           "%7s\n",
           (int)b->repeat, "work", "median", "spread", "least", "bound", "ratio");
  }
  for (int i = 0; i < b->rows && rc == CLI_OK; i++)
    rc = print_result_row(b, c, &b->row[i]);
  if (b->prints_json) return rc;
  if (b->gflops > 0) printf("\nsgemm at 4096 = %.0f GFLOP/s", b->gflops);
  if (b->copy_gbs > 0) printf("\ncopy = %.1f GB/s", b->copy_gbs);
  if (!b->skips_bounds && !floors_have_blas())
    printf("\nno lower bounds of arithmetic: this build has no BLAS");
  printf("\n%s%s", b->notes, b->notes[0] != 0 ? "\n" : "");
  (void)fflush(stdout);
  return rc;
}

/* ---- a run -----------------------------------------------------------------------------------*/

/* Set the options of the case, then of the environment, then of the command line, and check them. */
static int set_options(bench *b, const bench_case *c) {
  char message[512] = "";
  if (ng_options_create(c->options, message, sizeof message, &b->options) < 0 ||
      ng_options_from_env(b->options, message, sizeof message) < 0)
    return cli_fail("%s", message);
  if (cli_set_options(b->args, b->options) != CLI_OK) return CLI_BAD;
  const cli_value method = cli_get_option_text(b->options, "method");
  if (c->needs != NULL && !cli_method_has_option(method.text, c->needs))
    return cli_fail("bench %s: method %s has no option %s; expected %s", c->name, method.text,
                    c->needs, c->expected);
  return ng_options_check(b->options, message, sizeof message) < 0 ? cli_fail("%s", message)
                                                                   : CLI_OK;
}

static int run_model(bench *b, const bench_case *c) {
  ng_context_config config;
  ng_context_config_init(&config, sizeof config);
  config.linalg = b->linalg;
  int rc = cli_create_context(&config, &b->ctx);
  b->user = cli_alloc(1, c->size);
  if (rc == CLI_OK) rc = c->open(b);
  for (int r = -1; r < b->repeat && rc == CLI_OK; r++)
    rc = c->round(b, r);
  if (rc == CLI_OK && !b->skips_bounds) rc = c->bounds(b);
  if (rc == CLI_OK && c->finish != NULL) rc = c->finish(b);
  if (rc == CLI_OK) rc = print_results(b, c);
  c->close(b);
  free(b->user);
  for (int i = 0; i < b->rows; i++)
    free(b->row[i].ms);
  free(b->row);
  ng_context_destroy(&b->ctx);
  return rc;
}

static int run_case(const bench *asked, const bench_case *c) {
  bench b = *asked;
  if (c->options == NULL && b.args->n_settings > 0)
    return cli_fail("bench %s: --%s: this case takes no option of the library", c->name,
                    b.args->settings[0].name);
  const char *const one[] = {b.model, NULL}, *const *model = b.model != NULL ? one : c->models;
  int rc = CLI_OK;
  if (c->options != NULL) rc = set_options(&b, c);
  for (; *model != NULL && rc == CLI_OK; model++) {
    bench run_bench = b;
    run_bench.model = *model;
    rc = b.lists_layers && c->list != NULL ? c->list(&run_bench) : run_model(&run_bench, c);
  }
  ng_options_destroy(&b.options);
  return rc;
}

static int run_bench(void *user, const cli_args *args) {
  bench *b = user;
  const char *names[CASES];
  b->args = args;
  if (args->operands == 0)
    return cli_fail("bench: the case is missing, expected kfac, train, fused-eva, state or window");
  for (int i = 0; i < CASES; i++) {
    names[i] = cases[i]->name;
    if (strcmp(args->operand[0], names[i]) == 0) return run_case(b, cases[i]);
  }
  return cli_report_unknown("bench: unknown case", args->operand[0], names, CASES, NULL);
}

static const bench standard = {.batch = 32, .repeat = 5};
static const cli_option own[] = {
    {"model", "MODEL",
     "a model of `natgrad train --models`; except for train, also a FILE.json as of `natgrad "
     "plan`, or a number "
     "of parameters",
     CLI_TEXT, .field = offsetof(bench, model)},
    {"batch", "N", "samples of a batch, for kfac and train (32)", CLI_WHOLE, offsetof(bench, batch),
     1, 65536},
    {"repeat", "R", "number of measured rounds, after one warm-up (5)", CLI_WHOLE,
     offsetof(bench, repeat), 1, 1000},
    {"linalg", "NAME", "linear algebra of the library: cpu or ref (cpu)", CLI_TEXT,
     .field = offsetof(bench, linalg)},
    {"no-floors", NULL, "do not measure the lower bounds", CLI_FLAG,
     .field = offsetof(bench, skips_bounds)},
    {"list", NULL, "kfac: print the layers and the orders of their factors, and measure nothing",
     CLI_FLAG, .field = offsetof(bench, lists_layers)},
    {"json", NULL, "print one JSON object a line instead of a table", CLI_FLAG,
     .field = offsetof(bench, prints_json)},
};

const cli_command cli_bench = {
    .name = "bench",
    .usage = "kfac|train|fused-eva|state|window [OPTIONS]",
    .summary = "measure K-FAC by layer, a network, Eva steps, saving and loading, or a window",
    .text =
        "Prints a row for each part of the work: median, distance between the quartiles and least\n"
        "time in milliseconds, a lower bound of the time, and the ratio median / bound.  A bound\n"
        "is a number of operations at the rate of SGEMM of order 4096, or a number of bytes at\n"
        "the rate of a copy of memory, both measured in the same process.\n\n"
        "kfac       K-FAC steps on random arrays; each step observes and solves (stat_period=1).\n"
        "           p and q are the orders of the factors A and G of a layer.\n"
        "  statistics  bound: copy the inputs to patches; rows (p (p+1) + q (q+1)) operations\n"
        "  solve       bound: spotrf and spotri of orders p and q; none for solver=eigen\n"
        "  apply       bound: 2 q p (p+q) operations; twice as many for solver=eigen\n"
        "train      forward and backward pass of a network on random data; bound: operations of\n"
        "           the products.  If the network has batch norms, also K-FAC of these norms;\n"
        "           bound: one read of their inputs and output gradients.\n"
        "fused-eva  Eva steps on random gradients; bounds: 12 bytes a parameter for ng_step, 24\n"
        "           for ng_step_sgd.  Default models: resnet18, 1e7 and 1e8 parameters.\n"
        "state      ng_save and ng_load; bound: write and flush, or read, as many bytes to a "
        "file.\n"
        "           Default model: 2560000 parameters in 10,000 layers of 16 x 16.\n"
        "window     steps of mfac (or another window method) on random gradients after the window\n"
        "           is full; bound: read the window twice.  Default model: 272474 parameters.\n",
    .options = own,
    .n_options = (int)(sizeof own / sizeof own[0]),
    .library = true,
    .operands = 1,
    .size = sizeof(bench),
    .standard = &standard,
    .run = run_bench,
};
