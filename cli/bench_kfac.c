/* bench_kfac.c: `natgrad bench kfac`: K-FAC steps on random arrays, with the layer shapes of a network.
 *
 * The times of each layer come from the report of the library. A pool larger than the caches holds random numbers; each
 * observed array is the next range of the pool. So no array is in a cache when a layer observes it, as in a trainer. */
#include "bench.h"
#include "clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STATISTICS, SOLVE, APPLY, PARTS };
static const char *const part_name[PARTS] = {"statistics", "solve", "apply"};

typedef struct work {
  shapes model;
  ng_precond *p;
  float **grad;
  float *pool;
  int64_t pool_floats, at; /* length of the pool; offset of the next array */
  /* number of steps that repeated a solve with more damping, which takes longer */
  int64_t rescued;
} work;

/* Return the row of the table for a part (STATISTICS, ...) of a layer. With n layers, index n stands for the sum over
 * the layers, and index n + 1 for the complete step. */
static int find_row(int layer, int part) { return PARTS * layer + part; }

/* ---- arrays ----------------------------------------------------------------------------------*/

static int64_t count_inputs(const shape *l, int64_t batch) {
  return l->is_conv ? batch * l->in * l->image[0] * l->image[1] : batch * l->positions * l->in;
}

static int64_t count_outputs(const shape *l, int64_t batch) {
  return batch * l->positions * l->out;
}

/* Return the next `floats` elements of the pool. At the end of the pool, start again from its first element. */
static float *take_array(work *k, int64_t floats) {
  if (k->at + floats > k->pool_floats) k->at = 0;
  float *x = k->pool + k->at;
  k->at += (floats + 15) / 16 * 16; /* arrays begin at multiples of 64 bytes */
  return x;
}

static void create_pool(const bench *b, work *k) {
  int64_t most = 0;
  for (int i = 0; i < k->model.n; i++) {
    const shape *l = &k->model.layer[i];
    const int64_t sizes[] = {count_inputs(l, b->batch), count_outputs(l, b->batch), l->p * l->out};
    for (int j = 0; j < 3; j++)
      if (sizes[j] > most) most = sizes[j];
  }
  k->pool_floats = most + 4 * floor_read_cache_bytes() / (int64_t)sizeof(float);
  k->pool = bench_alloc(k->pool_floats);
  bench_fill_random(k->pool, k->pool_floats, 1.0F);
}

/* ---- the case --------------------------------------------------------------------------------*/

static ng_status create_precond(const bench *b, work *k) {
  ng_status st = ng_precond_create_from(b->ctx, b->options, &k->p);
  k->grad = cli_alloc((size_t)k->model.n, sizeof *k->grad);
  for (int i = 0; i < k->model.n && st >= 0; i++) {
    const shape *l = &k->model.layer[i];
    const int64_t in = l->p - (l->has_bias ? 1 : 0);
    ng_layer layer;
    int32_t index = -1;
    shapes_set_layer(l, &layer);
    st = ng_add_layer(k->p, &layer, &index);
    k->grad[i] = cli_alloc((size_t)(l->out * l->p), sizeof(float));
    const ng_array w = ng_array_matrix(k->grad[i], l->out, in, NG_F32);
    const ng_array bias = ng_array_matrix(k->grad[i] + l->out * in, 1, l->out, NG_F32);
    if (st >= 0) st = ng_bind_grad(k->p, index, NG_WEIGHT, &w);
    if (st >= 0 && l->has_bias) st = ng_bind_grad(k->p, index, NG_BIAS, &bias);
  }
  if (st >= 0) st = ng_ready(k->p);
  /* Solve in every step. In ng_ready, the user's solve_period has decided which form of the inverse is stored. */
  return st < 0 ? st : ng_set_real(k->p, "solve_period", 1);
}

static int open_kfac(bench *b) {
  work *k = b->user;
  if (shapes_list(b->model, &k->model) != CLI_OK) return CLI_BAD;
  shapes_keep_matrices(&k->model);
  create_pool(b, k);
  const ng_status st = create_precond(b, k);
  if (st < 0) return bench_report_error(b, "kfac", st);
  for (int i = 0; i <= k->model.n; i++) {
    for (int part = 0; part < PARTS; part++)
      (void)bench_add_row(b, "%s/%s", i < k->model.n ? k->model.layer[i].name : "sum",
                          part_name[part]);
  }
  (void)bench_add_row(b, "sum/step");
  (void)snprintf(b->prefix, sizeof b->prefix, "%.64s/%lld/", k->model.name, (long long)b->batch);
  bench_print_title(b, "bench kfac: %s, batch %lld, method %s, solver %s", k->model.name,
                    (long long)b->batch, cli_get_option_text(b->options, "method").text,
                    cli_get_option_text(b->options, "solver").text);
  return CLI_OK;
}

static ng_status time_step(const bench *b, work *k, double *ms) {
  for (int i = 0; i < k->model.n; i++) {
    /* the last step has overwritten the gradients, so fill them again */
    const int64_t n = k->model.layer[i].out * k->model.layer[i].p;
    memcpy(k->grad[i], take_array(k, n), (size_t)n * sizeof(float));
  }
  const double start = ng_now_ms();
  ng_status st = ng_begin_samples(k->p, b->batch, 1.0);
  for (int i = 0; i < k->model.n && st == NG_OK; i++) {
    const shape *l = &k->model.layer[i];
    if (!ng_wants(k->p, i)) continue;
    const ng_array a = shapes_input_array(l, take_array(k, count_inputs(l, b->batch)), b->batch);
    const ng_array g = shapes_output_array(l, take_array(k, count_outputs(l, b->batch)), b->batch);
    st = ng_observe_input(k->p, i, &a, NG_COPY);
    if (st == NG_OK) st = ng_observe_output_grad(k->p, i, &g, NG_COPY);
  }
  if (st == NG_OK) st = ng_step(k->p, 0.1);
  *ms = ng_now_ms() - start;
  k->rescued += st == NG_RESCUED;
  return st;
}

static int run_round(bench *b, int r) {
  work *k = b->user;
  double ms, sum[PARTS] = {0.0};
  int64_t calls[2];
  ng_context_allocated(b->ctx, NULL, NULL, &calls[0]);
  ng_status st = time_step(b, k, &ms);
  ng_context_allocated(b->ctx, NULL, NULL, &calls[1]);
  if (r >= 0 && calls[1] != calls[0])
    return cli_fail("bench kfac: %lld allocations in a step, expected none",
                    (long long)(calls[1] - calls[0]));
  for (int i = 0; i < k->model.n && st >= 0; i++) {
    ng_layer_report report = {.struct_size = sizeof report};
    st = ng_report_layer(k->p, i, &report);
    const double now[PARTS] = {report.observe_ms, report.solve_ms, report.measure_ms};
    for (int part = 0; part < PARTS; part++) {
      bench_record_time(b, find_row(i, part), r, now[part]);
      sum[part] += now[part];
    }
  }
  for (int part = 0; part < PARTS; part++)
    bench_record_time(b, find_row(k->model.n, part), r, sum[part]);
  bench_record_time(b, find_row(k->model.n + 1, 0), r, ms);
  return st < 0 ? bench_report_error(b, "a step", st) : CLI_OK;
}

/* ---- lower bounds ----------------------------------------------------------------------------*/

/* Return the bytes read and written to copy the inputs to patches [in kh kw, positions] for a kernel of kh x kw; 0 for
 * linear layers and for 1x1 convolutions of stride 1, which need no patches. */
static double count_patch_bytes(const shape *l, int64_t batch) {
  bool needed = false;
  for (int k = 0; k < 2 && l->is_conv; k++)
    needed = needed || l->kernel[k] > 1 || l->stride[k] > 1 || l->padding[k] > 0;
  if (!needed) return 0;
  const int64_t patches = batch * l->positions * l->in * l->kernel[0] * l->kernel[1];
  return (double)sizeof(float) * (double)(count_inputs(l, batch) + patches);
}

/* Measured times of a solve, one for each order, because many factors have the same order. */
typedef struct solve_bounds {
  int64_t *order;
  double *solve;
  int orders;
} solve_bounds;

static double find_solve_bound(solve_bounds *m, int64_t n) {
  int i = 0;
  while (i < m->orders && m->order[i] != n)
    i++;
  if (i == m->orders) {
    m->order[m->orders] = n;
    m->solve[m->orders++] = floor_measure_cholesky(n);
  }
  return m->solve[i];
}

static int set_bounds(bench *b) {
  const work *k = b->user;
  const int n = k->model.n;
  if (!floors_have_blas() || bench_measure_sgemm(b) <= 0 || bench_measure_copy(b) <= 0)
    return CLI_OK;
  const bool eigen = strncmp(cli_get_option_text(b->options, "solver").text, "eigen", 5) == 0;
  solve_bounds m = {.orders = 0};
  m.order = cli_alloc((size_t)(2 * n), sizeof *m.order);
  m.solve = cli_alloc((size_t)(2 * n), sizeof *m.solve);
  for (int i = 0; i < n; i++) {
    const shape *l = &k->model.layer[i];
    const double p = (double)l->p, q = (double)l->q, groups = (double)l->out / q;
    const double rows = (double)(b->batch * l->positions);
    const double bound[PARTS] = {
        1e-6 * (count_patch_bytes(l, b->batch) / b->copy_gbs +
                groups * rows * (p * (p + 1) + q * (q + 1)) / b->gflops),
        eigen ? 0 : groups * (find_solve_bound(&m, l->p) + find_solve_bound(&m, l->q)),
        1e-6 * groups * (eigen ? 4 : 2) * q * p * (p + q) / b->gflops};
    for (int part = 0; part < PARTS; part++) {
      b->row[find_row(i, part)].bound = bound[part];
      b->row[find_row(n, part)].bound += bound[part];
    }
  }
  free(m.order);
  free(m.solve);
  if (!cli_option_is(b->options, "max_factor", "0") ||
      !cli_option_is(b->options, "factor_blocks", "1"))
    bench_add_note(b, "the bounds are for whole factors; this run cuts factors into blocks\n");
  return CLI_OK;
}

static int add_memory_notes(bench *b) {
  const work *k = b->user;
  if (k->rescued > 0)
    bench_add_note(b, "%lld steps raised the damping of a factor\n", (long long)k->rescued);
  bench_add_note(b, "bytes held:");
  ng_report r = {.struct_size = sizeof r};
  const ng_status st = ng_report_read(k->p, &r);
  const struct {
    const char *use;
    int64_t bytes;
  } held[] = {{"factors", r.factors},     {"sums", r.sums},       {"results", r.results},
              {"direction", r.direction}, {"moments", r.moments}, {"scratch", r.scratch},
              {"objects", r.objects}};
  for (size_t i = 0; i < sizeof held / sizeof *held; i++)
    if (held[i].bytes > 0) bench_add_note(b, " %s %lld", held[i].use, (long long)held[i].bytes);
  return st == NG_OK ? CLI_OK : bench_report_error(b, "kfac", st);
}

static void close_kfac(bench *b) {
  work *k = b->user;
  ng_precond_destroy(&k->p);
  for (int i = 0; i < k->model.n && k->grad != NULL; i++)
    free(k->grad[i]);
  free(k->grad);
  free(k->pool);
  shapes_free(&k->model);
}

static int print_layers(const bench *b) {
  shapes list, *model = &list;
  if (shapes_list(b->model, model) != CLI_OK) return CLI_BAD;
  shapes_keep_matrices(model);
  int64_t sum = 0, product = 0;
  printf("%-22s %7s %7s %10s\n", "layer", "A", "G", "positions");
  for (int i = 0; i < model->n; i++) {
    const shape *l = &model->layer[i];
    printf("%-22s %7lld %7lld %10lld\n", l->name, (long long)l->p, (long long)l->q,
           (long long)l->positions);
    sum += l->p + l->q;
    product += l->p * l->out;
  }
  printf("%d layers, sum of orders %lld, parameters %lld\n", model->n, (long long)sum,
         (long long)product);
  shapes_free(model);
  return CLI_OK;
}

const bench_case bench_kfac = {.name = "kfac",
                               .size = sizeof(work),
                               .models = {"resnet18"},
                               .options = "stat_period=1",
                               .list = print_layers,
                               .open = open_kfac,
                               .round = run_round,
                               .bounds = set_bounds,
                               .finish = add_memory_notes,
                               .close = close_kfac};
