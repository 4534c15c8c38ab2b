/* bench_window.c: `natgrad bench window`: a step of a window method on random gradients, once the window is
 * full.
 *
 * In: a network or a number of parameters, options.  Out: the median of whole steps and of their stations,
 * beside the floor: everything that is kept (rows, Gram matrix, error feedback), read twice at the rate of a
 * copy measured in the same process; and the bytes held. */
#include "bench.h"
#include "clock.h"
#include "floors.h"
#include "shapes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct work {
  const bench_wish *wish;
  const ng_options *options;
  char name[64];
  ng_context *ctx;
  ng_precond *p;
  float *grad;
  int64_t count, window;
  int64_t kept, sums; /* bytes: what is saved, what a step needs beside it */
  double step_ms, look_ms, measure_ms, emit_ms, floor_ms, copy_gbs;
} work;

enum { COLS = 1024 };

/* Layers of q rows and p columns; a number of parameters: one of rows of 1,024. */
static int take_layers(work *k, const char *model, shapes *out) {
  char *end = NULL;
  const double number = strtod(model, &end);
  (void)snprintf(k->name, sizeof k->name, "%s", model);
  if (*end != 0 || end == model) return shapes_make(model, SHAPES_OF_BENCH, out);
  if (!(number >= COLS && number <= 1e9)) {
    return cli_bad("--model: %s parameters, expected %d to 1e9", model, COLS);
  }
  out->n = 1;
  out->layer = cli_take(1, sizeof *out->layer);
  (void)snprintf(out->layer->name, sizeof out->layer->name, "weight");
  out->layer->p = COLS;
  out->layer->q = (int64_t)(number / COLS);
  return CLI_OK;
}

static ng_status add_layers(work *k, const shapes *list) {
  ng_status st = NG_OK;
  for (int i = 0; i < list->n; i++)
    k->count += list->layer[i].q * list->layer[i].p;
  k->grad = cli_take((size_t)k->count, sizeof *k->grad);
  float *at = k->grad;
  for (int i = 0; i < list->n && st >= 0; i++) {
    const shape *s = &list->layer[i];
    int32_t index = -1;
    ng_layer layer;
    ng_layer_init(&layer, NG_LINEAR, sizeof layer);
    layer.name = s->name;
    layer.in = s->p;
    layer.out = s->q;
    st = ng_add_layer(k->p, &layer, &index);
    const ng_array g = ng_array_matrix(at, s->q, s->p, NG_F32);
    if (st >= 0) st = ng_bind_grad(k->p, index, NG_WEIGHT, &g);
    at += s->q * s->p;
  }
  return st < 0 ? st : ng_ready(k->p);
}

static int failed(const work *k, ng_status st) {
  return cli_bad("bench window: %s (%s)", k->ctx == NULL ? "no context" : ng_last_error(k->ctx),
                 ng_status_name(st));
}

static ng_status look_at_memory(work *k) {
  ng_status st = NG_OK;
  for (int32_t i = 0; i < ng_memory_count(k->p) && st >= 0; i++) {
    ng_memory_info m;
    ng_memory_info_init(&m, sizeof m);
    st = ng_memory(k->p, i, &m);
    if (strcmp(m.use, "factors") == 0) k->kept = m.bytes;
    if (strcmp(m.use, "factors") != 0) k->sums += m.bytes;
  }
  return st;
}

/* Stations of the last step, added to the rows of samples. */
static ng_status look_at_stations(const work *k, double *look, double *measure, double *emit) {
  ng_report r;
  ng_report_init(&r, sizeof r);
  ng_status st = ng_report_read(k->p, &r);
  for (int32_t i = 0; i < r.stations && st >= 0; i++) {
    ng_station_report s;
    ng_station_report_init(&s, sizeof s);
    st = ng_report_station(k->p, i, &s);
    if (strcmp(s.name, "look") == 0) *look = s.last_ms;
    if (strcmp(s.name, "measure") == 0) *measure = s.last_ms;
    if (strcmp(s.name, "emit") == 0) *emit = s.last_ms;
  }
  return st;
}

static void draw(work *k, uint64_t *state) {
  for (int64_t i = 0; i < k->count; i++)
    k->grad[i] = bench_number(state);
}

/* Filling a window takes minutes: so that nobody wonders, whatever is done with the answer. */
static void tell_how_far(const work *k, int64_t steps, double ms, double *told_ms) {
  if (ms - *told_ms < 5e3) return;
  *told_ms = ms;
  (void)fprintf(stderr, "  %lld of %lld steps that fill the window, %.0f s\n", (long long)steps,
                (long long)k->window, 1e-3 * ms);
}

static int run_steps(work *k) {
  const int n = k->wish->repeat;
  double *sample = cli_take((size_t)n * 4, sizeof *sample);
  uint64_t state = BENCH_SEED;
  ng_status st = NG_OK;
  const double begin = ng_now_ms();
  double told = 0.0;
  for (int64_t i = -k->window; i < n && st >= 0; i++) {
    draw(k, &state);
    const double t0 = ng_now_ms();
    st = ng_step(k->p, 0.1);
    if (i < 0) tell_how_far(k, k->window + i + 1, ng_now_ms() - begin, &told);
    if (i < 0 || st < 0) continue;
    sample[i] = ng_now_ms() - t0;
    st = look_at_stations(k, &sample[n + i], &sample[2 * n + i], &sample[3 * n + i]);
  }
  k->step_ms = bench_median(sample, n);
  k->look_ms = bench_median(sample + n, n);
  k->measure_ms = bench_median(sample + 2 * (size_t)n, n);
  k->emit_ms = bench_median(sample + 3 * (size_t)n, n);
  free(sample);
  return st < 0 ? failed(k, st) : CLI_OK;
}

/* ---- the answer ------------------------------------------------------------------------------*/

/* What is measured, before it is. */
static void announce(const work *k) {
  char processor[256], commit[64], name[64];
  const cli_value store = cli_option_text(k->options, "window_store");
  if (k->wish->json) return;
  (void)snprintf(name, sizeof name, "%s", cli_option_text(k->options, "method").text);
  cli_processor(processor, sizeof processor);
  cli_build("commit", commit, sizeof commit);
  printf("bench window: method %s, store %s, %s: %lld parameters, window %lld\n", name, store.text,
         k->name, (long long)k->count, (long long)k->window);
  printf("processor = %s; threads = %d; commit = %s; medians of %d steps\n", processor, cli_cores(),
         commit, k->wish->repeat);
  (void)fflush(stdout);
}

static int answer(const work *k) {
  char processor[256], commit[64];
  const char *method = cli_option_text(k->options, "method").text;
  const cli_value store = cli_option_text(k->options, "window_store");
  char name[64];
  (void)snprintf(name, sizeof name, "%s", method);
  cli_processor(processor, sizeof processor);
  cli_build("commit", commit, sizeof commit);
  if (k->wish->json) {
    ngio_out line = bench_line("window", NULL);
    ngio_open(&line, "machine", '{');
    bench_machine(&line, processor, commit, name, k->wish->repeat);
    ngio_shut(&line, '}');
    const int rc = bench_print(&line);
    if (rc != CLI_OK) return rc;
    line = bench_line("window", k->name);
    ngio_put_integer(&line, "parameters", k->count);
    ngio_put_integer(&line, "window", k->window);
    ngio_put_text(&line, "store", store.text);
    ngio_put_real(&line, "median_ms", k->step_ms);
    bench_floor(&line, k->floor_ms);
    ngio_put_real(&line, "look_ms", k->look_ms);
    ngio_put_real(&line, "measure_ms", k->measure_ms);
    ngio_put_real(&line, "emit_ms", k->emit_ms);
    ngio_put_integer(&line, "kept_bytes", k->kept);
    ngio_put_integer(&line, "other_bytes", k->sums);
    return bench_print(&line);
  }
  printf("  step %.2f ms: look %.2f, measure %.2f, emit %.2f\n", k->step_ms, k->look_ms,
         k->measure_ms, k->emit_ms);
  if (k->floor_ms > 0) {
    printf("  floor %.2f ms: what is kept, read twice at %.1f GB/s; the step is %.2f of it\n",
           k->floor_ms, k->copy_gbs, k->step_ms / k->floor_ms);
  }
  printf("  bytes: %.1f MiB kept, %.1f MiB beside it\n", (double)k->kept / 1048576,
         (double)k->sums / 1048576);
  return CLI_OK;
}

static int configure(ng_options **o, const cli_args *args) {
  char message[512] = "";
  if (ng_options_create("method=mfac", message, sizeof message, o) < 0)
    return cli_bad("%s", message);
  int rc = ng_options_from_env(*o, message, sizeof message) < 0 ? cli_bad("%s", message) : CLI_OK;
  if (rc == CLI_OK) rc = cli_apply(args, *o);
  if (rc == CLI_OK && ng_options_check(*o, message, sizeof message) < 0)
    rc = cli_bad("%s", message);
  ng_method_info m;
  if (rc == CLI_OK && cli_method_find(cli_option_text(*o, "method").text, &m) >= 0 &&
      strcmp(m.family, "window") != 0) {
    rc = cli_bad("bench window: method %s is of the %s family; take mfac, efcp, ggt, sparse-ggt or "
                 "lowrank-mfac",
                 m.name, m.family);
  }
  return rc;
}

int bench_window(const bench_wish *w, const cli_args *args) {
  work k = {.wish = w};
  ng_options *o = NULL;
  shapes list = {0};
  ng_context_config config;
  int rc = configure(&o, args);
  k.options = o;
  if (rc == CLI_OK) rc = take_layers(&k, w->model != NULL ? w->model : "272474", &list);
  ng_context_config_init(&config, sizeof config);
  config.linalg = w->linalg;
  if (rc == CLI_OK) rc = cli_context(&config, &k.ctx);
  ng_status st = NG_OK;
  if (rc == CLI_OK) {
    k.window = (int64_t)cli_option_real(o, "window");
    st = ng_precond_create_from(k.ctx, o, &k.p);
    if (st >= 0) st = add_layers(&k, &list);
    if (st >= 0) st = look_at_memory(&k);
    if (st < 0) rc = failed(&k, st);
  }
  if (rc == CLI_OK) {
    announce(&k);
    rc = run_steps(&k);
  }
  if (rc == CLI_OK && !w->no_floors && floors_possible()) {
    int64_t bytes = 0;
    k.copy_gbs = floor_copy_gbs(&bytes);
    if (k.copy_gbs > 0) k.floor_ms = 2e-6 * (double)k.kept / k.copy_gbs;
  }
  if (rc == CLI_OK) rc = answer(&k);
  ng_precond_destroy(&k.p);
  ng_context_destroy(&k.ctx);
  ng_options_destroy(&o);
  shapes_free(&list);
  free(k.grad);
  return rc;
}
