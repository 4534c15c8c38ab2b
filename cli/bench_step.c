/* bench_step.c: `natgrad bench fused-eva` and `natgrad bench window`: steps on random gradients of matrices.
 *
 * Only the step is timed. Before each step, the case draws a new gradient and fills the caches with other data, as a
 * backward pass does. The lower bound of a step is a number of bytes at the rate of a copy:
 *   fused-eva  ng_step: 12 bytes a parameter (read the gradient twice, write the direction); ng_step_sgd: 24 bytes (in
 *              addition read and write weights and momentum). bench/vs_torch.py times the published PyTorch operations
 *   window     read the window's memory (rows, Gram matrix, error feedback) twice; the warm-up fills the window */
#include "bench.h"
#include "clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PRECONDITION, WITH_SGD, MOST };

typedef struct work {
  shapes list;
  int64_t count, window, flush_bytes;
  ng_precond *p[MOST];
  double bytes[MOST]; /* bytes that the lower bound of each row counts */
  float *grad, *weight;
  char *flush;
  uint64_t state;
} work;

/* Create layers (`rows`, `cols` as in bench_list_layers), gradients, weights, and memory to flush the caches. */
static int make_arrays(bench *b, int64_t rows, int64_t cols) {
  work *k = b->user;
  if (bench_list_layers(b->model, rows, cols, &k->list) != CLI_OK) return CLI_BAD;
  k->state = BENCH_SEED;
  k->count = bench_count_parameters(&k->list);
  k->grad = bench_alloc(k->count);
  k->weight = bench_alloc(k->count);
  bench_fill_random(k->weight, k->count, 0.1F);
  k->flush_bytes = 2 * floor_read_cache_bytes();
  k->flush = cli_alloc((size_t)k->flush_bytes, 1);
  bench_add_json_member(b, "parameters", k->count);
  return CLI_OK;
}

static ng_status make_precond(const bench *b, work *k, int row) {
  const ng_status st = ng_precond_create_from(b->ctx, b->options, &k->p[row]);
  return st < 0 ? st : bench_add_layers(k->p[row], &k->list, k->grad, k->weight);
}

static ng_status time_step(work *k, int row, double *ms) {
  ng_sgd how;
  ng_sgd_init(&how, sizeof how);
  how.lr = 0.1;
  how.momentum = 0.9;
  how.weight_decay = 5e-4;
  for (int64_t i = 0; i < k->count; i++)
    k->grad[i] = bench_next_random(&k->state);
  for (int64_t i = 0; i < k->flush_bytes; i += 64)
    k->flush[i]++;
  const double start = ng_now_ms();
  const ng_status st =
      row == WITH_SGD ? ng_step_sgd(k->p[row], &how, 1) : ng_step(k->p[row], how.lr);
  *ms = ng_now_ms() - start;
  return st;
}

/* Take steps until the window is full. Report progress every five seconds, because this can take minutes. */
static int fill_window(const bench *b, work *k) {
  const double begin = ng_now_ms();
  double last = begin, ms;
  for (int64_t i = 1; i <= k->window; i++) {
    const ng_status st = time_step(k, PRECONDITION, &ms);
    if (st < 0) return bench_report_error(b, "a step", st);
    if (ng_now_ms() - last < 5e3) continue;
    last = ng_now_ms();
    (void)fprintf(stderr, "  filling the window: step %lld of %lld, %.0f s\n", (long long)i,
                  (long long)k->window, 1e-3 * (last - begin));
  }
  return CLI_OK;
}

static int run_round(bench *b, int r) {
  work *k = b->user;
  if (r < 0 && k->window > 0) return fill_window(b, k);
  for (int row = 0; row < b->rows; row++) {
    double ms;
    const ng_status st = time_step(k, row, &ms);
    if (st < 0) return bench_report_error(b, "a step", st);
    bench_record_time(b, row, r, ms);
  }
  return CLI_OK;
}

static int set_bounds(bench *b) {
  const work *k = b->user;
  for (int i = 0; i < b->rows && bench_measure_copy(b) > 0; i++)
    b->row[i].bound = 1e-6 * k->bytes[i] / b->copy_gbs;
  return CLI_OK;
}

static void close_step(bench *b) {
  work *k = b->user;
  for (int row = 0; row < MOST; row++)
    ng_precond_destroy(&k->p[row]);
  free(k->grad);
  free(k->weight);
  free(k->flush);
  shapes_free(&k->list);
}

/* ---- Eva -------------------------------------------------------------------------------------*/

/* Each layer observes one sample before the first step only: the time of a step does not depend on the values. */
static int open_eva(bench *b) {
  static const char *const names[] = {"precondition", "with sgd"};
  char message[512] = "";
  /* the sizes of 3x3 convolutions with 512 channels */
  if (make_arrays(b, 512, 4608) != CLI_OK) return CLI_BAD;
  work *k = b->user;
  float *x = bench_alloc(bench_find_largest_order(&k->list));
  ng_status st = NG_OK;
  bench_fill_random(x, bench_find_largest_order(&k->list), 0.5F);
  for (int row = 0; row < MOST && st >= 0; row++) {
    (void)bench_add_row(b, "%s", names[row]);
    k->bytes[row] = (row == WITH_SGD ? 24.0 : 12.0) * (double)k->count;
    st = ng_options_set(b->options, "update", row == WITH_SGD ? "sgd" : "gradient", message,
                        sizeof message);
    if (st >= 0) st = make_precond(b, k, row);
    if (st >= 0) st = bench_observe_layers(k->p[row], &k->list, x, 1);
    if (st >= 0) st = ng_set(k->p[row], "stat_period", "1000000000");
  }
  free(x);
  if (st < 0)
    return message[0] != 0 ? cli_fail("%s", message) : bench_report_error(b, "a model", st);
  (void)snprintf(b->prefix, sizeof b->prefix, "%.90s/", k->list.name);
  bench_print_title(b,
                    "bench fused-eva: method %s, SGD with momentum and weight decay, f32\n%s, %lld "
                    "parameters in %d layers",
                    cli_get_option_text(b->options, "method").text, k->list.name,
                    (long long)k->count, k->list.n);
  return CLI_OK;
}

const bench_case bench_eva = {.name = "fused-eva",
                              .size = sizeof(work),
                              .options = "method=eva",
                              .models = {"resnet18", "1e7", "1e8"},
                              .needs = "sides",
                              .expected = "eva or eva-natgrad",
                              .open = open_eva,
                              .round = run_round,
                              .bounds = set_bounds,
                              .close = close_step};

/* ---- windows ---------------------------------------------------------------------------------*/

static int open_window(bench *b) {
  if (make_arrays(b, INT64_MAX / 2, 1024) != CLI_OK) return CLI_BAD;
  work *k = b->user;
  ng_report r = {.struct_size = sizeof r};
  ng_status st = make_precond(b, k, PRECONDITION);
  if (st >= 0) st = ng_report_read(k->p[PRECONDITION], &r);
  if (st < 0) return bench_report_error(b, "window", st);
  const int64_t other = r.sums + r.results + r.direction + r.moments + r.scratch + r.objects;
  k->window = (int64_t)cli_get_option_real(b->options, "window");
  k->bytes[PRECONDITION] = 2.0 * (double)r.factors;
  (void)bench_add_row(b, "%s", k->list.name);
  bench_add_json_member(b, "window", k->window);
  bench_add_json_member(b, "kept_bytes", r.factors);
  bench_add_json_member(b, "other_bytes", other);
  const cli_value method = cli_get_option_text(b->options, "method");
  bench_print_title(b, "bench window: method %s, store %s, %s: %lld parameters, window %lld",
                    method.text, cli_get_option_text(b->options, "window_store").text, k->list.name,
                    (long long)k->count, (long long)k->window);
  bench_add_note(b, "bytes: %.1f MiB of the window, %.1f MiB of everything else",
                 (double)r.factors / 1048576, (double)other / 1048576);
  return CLI_OK;
}

const bench_case bench_window = {.name = "window",
                                 .size = sizeof(work),
                                 .options = "method=mfac",
                                 .models = {"272474"},
                                 .needs = "window",
                                 .expected = "mfac, efcp, ggt, sparse-ggt or lowrank-mfac",
                                 .open = open_window,
                                 .round = run_round,
                                 .bounds = set_bounds,
                                 .close = close_step};
