/* bench_window.c: `natgrad bench window`: steps of a window method on random gradients, once the window is full.
 *
 * Lower bound: all that is stored (rows, Gram matrix, error feedback), read twice at the rate of a copy. */
#include "bench.h"
#include "clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEP };

typedef struct work {
  ng_precond *p;
  float *grad;
  int64_t count, window, stored, other; /* bytes: of the window, of everything else */
  uint64_t state;
} work;

static int open_window(bench *b) {
  shapes list = {.n = 0};
  work *k = b->user = cli_take(1, sizeof *k);
  k->state = BENCH_SEED;
  k->window = (int64_t)cli_option_real(b->options, "window");
  if (bench_layers(b->model, INT64_MAX / 2, 1024, &list) != CLI_OK) return CLI_BAD;
  k->count = bench_count(&list);
  k->grad = bench_floats(k->count);
  ng_status st = k->grad == NULL ? NG_ERR_NOMEM : ng_precond_create_from(b->ctx, b->options, &k->p);
  if (st >= 0) st = bench_linear(k->p, &list, k->grad, NULL);
  ng_report r = {.struct_size = sizeof r};
  if (st >= 0) st = ng_report_read(k->p, &r);
  k->stored = r.factors;
  k->other = r.sums + r.results + r.direction + r.moments + r.scratch + r.objects;
  (void)bench_add(b, "%s", list.name);
  shapes_free(&list);
  if (st < 0) return bench_failed(b, "window", st);
  bench_common(b, "parameters", k->count);
  bench_common(b, "window", k->window);
  bench_common(b, "kept_bytes", k->stored);
  bench_common(b, "other_bytes", k->other);
  const cli_value method = cli_option_text(b->options, "method");
  bench_title(b, "bench window: method %s, store %s, %s: %lld parameters, window %lld", method.text,
              cli_option_text(b->options, "window_store").text, b->row[STEP].work,
              (long long)k->count, (long long)k->window);
  bench_note(b, "bytes: %.1f MiB of the window, %.1f MiB of everything else",
             (double)k->stored / 1048576, (double)k->other / 1048576);
  return CLI_OK;
}

static ng_status step(work *k, double *ms) {
  for (int64_t i = 0; i < k->count; i++)
    k->grad[i] = bench_number(&k->state);
  const double start = ng_now_ms();
  const ng_status st = ng_step(k->p, 0.1);
  *ms = ng_now_ms() - start;
  return st;
}

/* The warm-up fills the window, which can take minutes: report progress every five seconds. */
static int fill(const bench *b, work *k) {
  const double begin = ng_now_ms();
  double last = begin, ms;
  for (int64_t i = 1; i <= k->window; i++) {
    const ng_status st = step(k, &ms);
    if (st < 0) return bench_failed(b, "a step", st);
    if (ng_now_ms() - last < 5e3) continue;
    last = ng_now_ms();
    (void)fprintf(stderr, "  %lld of %lld steps that fill the window, %.0f s\n", (long long)i,
                  (long long)k->window, 1e-3 * (last - begin));
  }
  return CLI_OK;
}

static int round_of(bench *b, int r) {
  work *k = b->user;
  double ms;
  if (r < 0) return fill(b, k);
  const ng_status st = step(k, &ms);
  bench_time(b, STEP, r, ms);
  return st < 0 ? bench_failed(b, "a step", st) : CLI_OK;
}

static int bounds(bench *b) {
  const work *k = b->user;
  if (bench_copy_gbs(b) > 0) b->row[STEP].bound = 2e-6 * (double)k->stored / b->copy_gbs;
  return CLI_OK;
}

static void close_window(bench *b) {
  work *k = b->user;
  if (k == NULL) return;
  ng_precond_destroy(&k->p);
  free(k->grad);
  free(k);
}

const bench_case bench_window = {.name = "window",
                                 .options = "method=mfac",
                                 .models = "272474",
                                 .family = "window",
                                 .expected = "mfac, efcp, ggt, sparse-ggt or lowrank-mfac",
                                 .open = open_window,
                                 .round = round_of,
                                 .bounds = bounds,
                                 .close = close_window};
