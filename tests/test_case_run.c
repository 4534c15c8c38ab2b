/* test_case_run.c: see test_case.h.  Run a test case with the library (public functions only, one thread per rank) or
 * with the oracle, and store the preconditioned gradients of every step. */
#include "test_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/kernel.h"
#include "element.h"
#include "fixture.h"
#include "ranks.h"
#include "stream.h"

#if defined(NG_TEST_MPI)
#include <mpi.h>
#endif

/* ---- arrays for the library ------------------------------------------------------------------*/

/* Tokens, [B, S] or [S, B]. */
static plane tokens_for_library(const test_case *s, const case_setup *setup, int32_t i, int64_t B,
                                const double *v) {
  const ng_dtype type = s->layer[i].token_dtype;
  const int64_t S = s->positions[i];
  const bool turned = setup->order == NG_POSITIONS_FIRST;
  plane out = plane_of(NULL, turned ? S : B, turned ? B : S, type);
  out.row_stride = out.cols + setup->pad;
  out.data = must_calloc((size_t)(out.rows * out.row_stride * ng_dtype_size(type)));
  for (int64_t k = 0; k < B * S; k++) {
    const int64_t at = turned ? k % S * out.row_stride + k / S : k / S * out.row_stride + k % S;
    if (type == NG_I32) ((int32_t *)out.data)[at] = (int32_t)v[k];
    if (type == NG_I64) ((int64_t *)out.data)[at] = (int64_t)v[k];
  }
  return out;
}

/* Return `by` times v in the dtype, strides and layout of the setup; free(data). */
static plane array_for_library(const test_case *s, const case_setup *setup, int32_t i, bool grad,
                               int64_t B, const double *v, double by) {
  const ng_layer *l = &s->layer[i];
  ng_dtype type = setup->observed ? setup->observed : NG_F32;
  int64_t S = s->positions[i], rows, cols, hw = 1, channels = grad ? l->out : l->in;
  if (l->kind == NG_EMBEDDING && !grad) return tokens_for_library(s, setup, i, B, v);
  const bool images = takes_images(l);
  if (images) {
    hw = grad ? S : l->image[0] * l->image[1];
    rows = B;
    cols = channels * hw;
  } else {
    rows = B * S;
    cols = channels;
  }
  int64_t stride = cols + setup->pad;
  plane out =
      plane_of(must_calloc((size_t)(rows * stride * ng_dtype_size(type))), rows, cols, type);
  if (images) {
    const int64_t h = grad && l->kind == NG_CONV2D ? oracle_output_size(l, 0) : l->image[0];
    out = plane_images(out.data, setup->layout ? setup->layout : PLANE_NCHW, B, channels, h, hw / h,
                       type);
  }
  out.row_stride = stride;
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t c = cols; c < stride; c++)
      put(out.data, type, r * stride + c, (double)NAN);
    for (int64_t c = 0; c < cols; c++) {
      int64_t to_r = r, to_c = c;
      if (images && setup->layout == PLANE_NHWC) to_c = c % hw * channels + c / hw;
      if (!images && setup->order == NG_POSITIONS_FIRST) to_r = r % S * B + r / S;
      put(out.data, type, to_r * stride + to_c, by * v[r * cols + c]);
    }
  }
  return out;
}

/* ---- run with the library --------------------------------------------------------------------*/

typedef struct case_job {
  const test_case *s;
  const ng_options *opt;
  const case_setup *setup;
  case_result *result;  /* [rank] */
  state_arrays *arrays; /* [rank] */
  stream *kept;
} case_job;

typedef struct rank_run {
  const case_job *job;
  int32_t rank;
  bool trying; /* the step with the fault is running */
  fixture f;
  int32_t index[CASE_LAYERS];
  plane grad[CASE_LAYERS][2], weight[CASE_LAYERS][2];
  /* inputs that the library reads again until the next micro-batch */
  void *borrowed[CASE_LAYERS * CASE_USES];
  int32_t borrowed_count;
} rank_run;

/* Return the array that has entry (i, j) of D, whose last column is the bias, and store the index there. */
static plane *find_slot(const ng_layer *l, plane slot[2], int64_t i, int64_t j, int64_t *at) {
  const bool bias = l->bias && j == oracle_columns(l) - 1;
  *at = bias || l->kind == NG_NORM ? i
        : l->kind == NG_EMBEDDING  ? j * slot[0].row_stride + i
                                   : i * slot[0].row_stride + j;
  return &slot[bias];
}

static void write_slots(const test_case *s, int32_t l, plane slot[2], const double *x) {
  const int64_t p = oracle_columns(&s->layer[l]), n = case_weight_count(s, l);
  for (int64_t i = 0, at; i < n; i++) {
    plane *v = find_slot(&s->layer[l], slot, i / p, i % p, &at);
    put(v->data, v->dtype, at, x[i]);
  }
}

static void read_slots(const test_case *s, int32_t l, plane slot[2], double *x) {
  const int64_t p = oracle_columns(&s->layer[l]), n = case_weight_count(s, l);
  for (int64_t i = 0, at; i < n; i++) {
    const plane *v = find_slot(&s->layer[l], slot, i / p, i % p, &at);
    x[i] = (double)get(v->data, v->dtype, at);
  }
}

/* An array of NaN. */
static plane new_slot(int64_t rows, int64_t cols, int64_t pad, ng_dtype type) {
  plane v = plane_of(NULL, rows, cols, type);
  v.row_stride = cols + pad;
  v.data = must_calloc((size_t)(rows * v.row_stride * ng_dtype_size(type)));
  for (int64_t i = 0; i < rows * v.row_stride; i++)
    put(v.data, type, i, (double)NAN);
  return v;
}

static ng_status add_layer(rank_run *run, int32_t l) {
  const test_case *s = run->job->s;
  const case_setup *setup = run->job->setup;
  ng_layer d = s->layer[l];
  if (!takes_images(&d) && setup->order) d.order = setup->order;
  if (!takes_images(&d) && setup->declare_positions) d.positions = s->positions[l];
  ng_status st = ng_add_layer(run->f.p, &d, &run->index[l]);
  const ng_dtype type = setup->gradient ? setup->gradient : NG_F32;
  const int64_t q = d.out, w = oracle_columns(&d) - (d.bias ? 1 : 0);
  const bool vector = d.kind == NG_NORM, turned = d.kind == NG_EMBEDDING;
  for (int k = 0; k < (d.bias ? 2 : 1); k++) {
    const int64_t rows = k || vector ? 1 : turned ? w : q, cols = k || vector || turned ? q : w;
    if (k == 0 && w == 0) continue; /* beta only */
    run->grad[l][k] = new_slot(rows, cols, setup->pad, type);
    if (s->W[l]) run->weight[l][k] = new_slot(rows, cols, 0, NG_F32);
  }
  if (s->W[l]) write_slots(s, l, run->weight[l], s->W[l]);
  for (int k = 0; k < (d.bias ? 2 : 1) && st == NG_OK; k++) {
    st = fixture_bind(&run->f, run->index[l], (ng_param)k, &run->grad[l][k], &run->weight[l][k]);
  }
  return st;
}

static ng_status open_rank(rank_run *run, const ng_transport *transport) {
  const case_job *job = run->job;
  const fixture_how how = {.linalg = job->setup->linalg,
                           .backend = job->setup->backend,
                           .threads = job->setup->threads > 0 ? job->setup->threads : 1,
                           .transport = job->s->ranks > 1 ? transport : NULL};
  ng_status st = fixture_open_options(&run->f, job->opt, &how);
  for (int32_t k = 0; k < job->s->layers && st == NG_OK; k++) {
    st = add_layer(run, job->setup->reverse ? job->s->layers - 1 - k : k);
  }
  return st == NG_OK ? ng_ready(run->f.p) : st;
}

static void free_borrowed(rank_run *run) {
  while (run->borrowed_count > 0)
    free(run->borrowed[--run->borrowed_count]);
}

static void close_rank(rank_run *run) {
  fixture_close(&run->f);
  free_borrowed(run);
  for (int32_t l = 0; l < run->job->s->layers; l++) {
    for (int k = 0; k < 2; k++) {
      free(run->grad[l][k].data);
      free(run->weight[l][k].data);
      run->grad[l][k].data = run->weight[l][k].data = NULL;
    }
  }
}

/* The array with the fault is the last one of its kind that the library reads. */
static bool is_faulty(const rank_run *run, int32_t t, int32_t c, int32_t l, int32_t u, bool grad) {
  const test_case *s = run->job->s;
  const case_fault what = run->job->setup->fault;
  const bool input = what == CASE_BAD_INPUT || what == CASE_NO_INPUT;
  const bool output = what == CASE_BAD_OUTPUT_GRAD || what == CASE_NO_OUTPUT_GRAD;
  if (!run->trying || run->rank != s->ranks - 1 || c != s->calls[t][run->rank] - 1) return false;
  if (!(grad ? output : input) || u != (grad ? 0 : s->uses[l] - 1)) return false;
  for (int32_t k = grad ? 0 : l + 1; k < (grad ? l : s->layers); k++) {
    if (ng_wants(run->f.p, run->index[k])) return false;
  }
  return true;
}

static ng_status observe_one(rank_run *run, int32_t t, int32_t c, int32_t l, int32_t u, bool grad) {
  const test_case *s = run->job->s;
  const case_micro *m = &s->micro[t][run->rank][c];
  const case_fault what = run->job->setup->fault;
  const double *v = grad ? m->g[l][u] : m->a[l][u];
  const bool bad = is_faulty(run, t, c, l, u, grad);
  if (!v || (!run->job->setup->observe_unwanted && !ng_wants(run->f.p, run->index[l])))
    return NG_OK;
  if (bad && (what == CASE_NO_INPUT || what == CASE_NO_OUTPUT_GRAD)) return NG_OK;
  /* Observations of the faulty step are doubled: if one entered a sum, the results would differ. */
  plane x =
      array_for_library(s, run->job->setup, l, grad, m->batch.samples, v, run->trying ? 2 : 1);
  if (bad) put(x.data, x.dtype, x.cols - 1, (double)NAN);
  const bool reads_again = strcmp(run->job->opt->base.method, "ekfac") == 0;
  const bool borrows = !grad && (reads_again || s->layer[l].kind == NG_NORM);
  ng_status st = borrows
                     ? plane_observe_input(run->f.p, run->index[l], &x, NG_BORROW)
                     : fixture_observe(&run->f, run->index[l], grad ? NULL : &x, grad ? &x : NULL);
  if (borrows)
    run->borrowed[run->borrowed_count++] = x.data;
  else
    free(x.data);
  return st == NG_SKIPPED && run->trying ? NG_OK : st; /* ng_step will also return NG_SKIPPED */
}

static ng_status observe_batch(rank_run *run, int32_t t) {
  const test_case *s = run->job->s;
  for (int32_t c = 0; c < s->calls[t][run->rank]; c++) {
    ng_status st = ng_begin(run->f.p, &s->micro[t][run->rank][c].batch);
    free_borrowed(run);
    for (int32_t l = 0; l < s->layers && st == NG_OK; l++) {
      for (int32_t u = 0; u < s->uses[l] && st == NG_OK; u++)
        st = observe_one(run, t, c, l, u, false);
    }
    for (int32_t l = s->layers - 1; l >= 0 && st == NG_OK; l--) {
      for (int32_t u = s->uses[l] - 1; u >= 0 && st == NG_OK; u--)
        st = observe_one(run, t, c, l, u, true);
    }
    if (st != NG_OK) return st;
  }
  return NG_OK;
}

/* Try step t with the fault of the setup.  Count the attempt if the step was skipped and no gradient changed. */
static ng_status attempt_faulty_step(rank_run *run, int32_t t) {
  const test_case *s = run->job->s;
  const case_fault what = run->job->setup->fault;
  run->trying = true;
  ng_status st = observe_batch(run, t);
  run->trying = false;
  if (st != NG_OK) return st;
  if (what == CASE_ABANDONED) return ng_reset_batch(run->f.p);
  if (what >= CASE_NO_INPUT && run->rank == s->ranks - 1) {
    ng_batch b = s->micro[t][run->rank][0].batch;
    b.loss_scale = (double)INFINITY;
    if (ng_begin(run->f.p, &b) != NG_SKIPPED) return NG_ERR_STATE;
  }
  double *was[CASE_LAYERS];
  /* With fractions not every rank reads the gradients, so all ranks get the NaN. */
  const bool spoils = run->rank == s->ranks - 1 || run->job->opt->base.grad_worker_fraction < 1;
  bool same = true;
  for (int32_t l = 0; l < s->layers; l++) {
    const plane *g = &run->grad[l][0];
    write_slots(s, l, run->grad[l], s->D[t][l]);
    if (what == CASE_BAD_GRADIENT && spoils && l == s->layers - 1)
      put(g->data, g->dtype, g->cols - 1, (double)NAN);
    was[l] = zeros(case_weight_count(s, l));
    read_slots(s, l, run->grad[l], was[l]);
  }
  st = ng_step(run->f.p, 0.1);
  for (int32_t l = 0; l < s->layers; l++) {
    double *is = zeros(case_weight_count(s, l));
    read_slots(s, l, run->grad[l], is);
    for (int64_t i = 0; i < case_weight_count(s, l); i++)
      same = same && (is[i] == was[l][i] || (isnan(is[i]) && isnan(was[l][i])));
    free(is);
    free(was[l]);
  }
  run->job->result[run->rank].refused += st == NG_SKIPPED && same;
  return st < NG_OK ? st : NG_OK;
}

static ng_status take_step(rank_run *run, int32_t t) {
  const test_case *s = run->job->s;
  const case_setup *setup = run->job->setup;
  case_result *out = &run->job->result[run->rank];
  ng_status st = s->damping[t] > 0 ? ng_set_real(run->f.p, "damping", s->damping[t]) : NG_OK;
  if (st == NG_OK && s->decay_moves) st = ng_set_real(run->f.p, "stat_decay", s->decay[t]);
  if (st == NG_OK && setup->fault && setup->fault_step == t) st = attempt_faulty_step(run, t);
  if (st == NG_OK) st = observe_batch(run, t);
  if (st != NG_OK) return st;
  for (int32_t l = 0; l < s->layers; l++)
    write_slots(s, l, run->grad[l], s->D[t][l]);
  const bool updates = run->job->opt->base.update != NG_UPDATE_GRADIENT;
  const ng_sgd how = fixture_sgd(0.1, 0.9);
  st = fixture_step(&run->f, &how);
  if (st < NG_OK) return st;
  for (int32_t l = 0; l < s->layers; l++) {
    out->P[t][l] = zeros(case_weight_count(s, l));
    read_slots(s, l, updates ? run->weight[l] : run->grad[l], out->P[t][l]);
  }
  ng_report report = {.struct_size = sizeof report};
  ng_status read = ng_report_read(run->f.p, &report);
  out->nu[t] = report.clip;
  out->inner[t] = report.inner;
  for (int32_t i = 0; i < report.stations && i < CASE_STATIONS && read == NG_OK; i++) {
    ng_station_report station = {.struct_size = sizeof station};
    read = ng_report_station(run->f.p, i, &station);
    out->waits[t][i] = station.last_waits;
    report.waits -= station.last_waits;
  }
  if (read == NG_OK && report.waits != 0) read = NG_ERR_STATE; /* a wait outside the stations */
  return read < NG_OK ? read : st;
}

/* Save the state and load it into a new preconditioner. */
static ng_status save_and_reload(rank_run *run, const ng_transport *transport) {
  const char *file = run->job->setup->resume;
  const bool arrays = run->job->setup->by_arrays;
  ng_status st = arrays ? state_arrays_read(run->f.p, run->rank, &run->job->arrays[run->rank])
                 : run->job->setup->in_parts ? ng_save_parts(run->f.p, file)
                                             : ng_save(run->f.p, file);
  if (st == NG_OK && arrays && run->rank == 0)
    st = state_arrays_write(run->f.p, run->job->arrays, run->job->kept);
  if (st != NG_OK) return st;
  close_rank(run);
  st = open_rank(run, transport);
  if (st != NG_OK) return st;
  return arrays ? ng_load_from(run->f.p, stream_read, run->job->kept) : ng_load(run->f.p, file);
}

static ng_status run_rank(int32_t rank, ng_transport *transport, void *arg) {
  const case_job *job = arg;
  const case_setup *setup = job->setup;
  rank_run run = {.job = job, .rank = rank};
  case_result *out = &job->result[rank];
  ng_status worst = NG_OK, st = open_rank(&run, transport);
  for (int32_t t = 0; t < job->s->steps && st >= NG_OK; t++) {
    int64_t before = 0, after = 0;
    ng_context_allocated(run.f.ctx, NULL, NULL, &before);
    st = take_step(&run, t);
    ng_context_allocated(run.f.ctx, NULL, NULL, &after);
    out->allocations += after - before;
    if (st > worst) worst = st;
    if (st >= NG_OK && (setup->resume || setup->by_arrays) && setup->resume_after == t)
      st = save_and_reload(&run, transport);
  }
  if (st < NG_OK) {
    snprintf(out->message, sizeof out->message, "rank %d: %s: %.400s", rank, ng_status_name(st),
             fixture_message(&run.f));
    worst = st;
  }
  close_rank(&run);
  return out->status = worst;
}

#if defined(NG_TEST_MPI)
/* Broadcast the results of each rank. */
static void share_results(const test_case *s, case_result *result) {
  int me = 0;
  (void)MPI_Comm_rank(MPI_COMM_WORLD, &me);
  for (int32_t r = 0; r < s->ranks; r++) {
    case_result *to = &result[r], kept = *to;
    (void)MPI_Bcast(to, (int)sizeof *to, MPI_BYTE, r, MPI_COMM_WORLD);
    for (int32_t t = 0; t < s->steps; t++) {
      for (int32_t l = 0; l < s->layers; l++) {
        const bool has = to->P[t][l] != NULL;
        const size_t n = (size_t)case_weight_count(s, l);
        to->P[t][l] = has && me != r ? must_calloc(n * sizeof(double)) : kept.P[t][l];
        if (has) (void)MPI_Bcast(to->P[t][l], (int)n, MPI_DOUBLE, r, MPI_COMM_WORLD);
      }
    }
  }
}
#endif

void case_run(const test_case *s, const ng_options *opt, const case_setup *setup,
              case_result *out) {
  case_result *result = must_calloc(sizeof *result * (size_t)s->ranks);
  state_arrays arrays[CASE_RANKS] = {{0}};
  stream kept = {0};
  case_job job = {s, opt, setup, result, arrays, &kept};
  ng_status worst =
      s->ranks > 1 ? ranks_run(s->ranks, run_rank, &job, NULL) : run_rank(0, NULL, &job);
#if defined(NG_TEST_MPI)
  if (s->ranks > 1) share_results(s, result);
#endif
  double gap = 0;
  for (int32_t r = 1; r < s->ranks; r++) {
    for (int32_t t = 0; t < s->steps; t++) {
      for (int32_t l = 0; l < s->layers; l++) {
        const double *x = result[0].P[t][l], *y = result[r].P[t][l];
        for (int64_t i = 0; x && y && i < case_weight_count(s, l); i++) {
          gap = fmax(gap, fabs(x[i] - y[i]));
        }
      }
    }
    if (result[0].message[0] == '\0') {
      memcpy(result[0].message, result[r].message, sizeof result[0].message);
    }
    result[0].allocations += result[r].allocations;
    if (result[r].refused < result[0].refused) result[0].refused = result[r].refused;
    case_free_result(&result[r]);
  }
  for (int32_t r = 0; r < s->ranks; r++)
    state_arrays_free(&arrays[r]);
  stream_free(&kept);
  *out = result[0];
  out->status = worst;
  out->rank_gap = gap;
  free(result);
}

/* ---- run with the oracle ---------------------------------------------------------------------*/

void case_predict(const test_case *s, const ng_options *opt, case_result *out, oracle **keep) {
  oracle *o = oracle_create(opt, s->ranks);
  memset(out, 0, sizeof *out);
  for (int32_t l = 0; l < s->layers; l++)
    (void)oracle_add_layer(o, &s->layer[l]);
  for (int32_t t = 0; t < s->steps; t++) {
    for (int32_t l = 0; l < s->layers; l++) {
      if (s->damping[t] > 0) oracle_options(o, l)->base.damping = s->damping[t];
      if (s->decay_moves) oracle_options(o, l)->base.stat_decay = s->decay[t];
    }
    for (int32_t r = 0; r < s->ranks; r++) {
      for (int32_t c = 0; c < s->calls[t][r]; c++) {
        const case_micro *m = &s->micro[t][r][c];
        oracle_begin(o, r, &m->batch);
        for (int32_t l = 0; l < s->layers; l++) {
          for (int32_t u = 0; u < s->uses[l]; u++) {
            if (m->a[l][u]) oracle_observe_input(o, r, l, m->a[l][u], s->positions[l]);
          }
        }
        for (int32_t l = s->layers - 1; l >= 0; l--) {
          for (int32_t u = s->uses[l] - 1; u >= 0; u--) {
            if (m->g[l][u]) oracle_observe_output_grad(o, r, l, m->g[l][u], s->positions[l]);
          }
        }
      }
    }
    for (int32_t l = 0; l < s->layers; l++) {
      out->P[t][l] = zeros(case_weight_count(s, l));
    }
    out->nu[t] = oracle_step(o, 0.1, (const double *const *)s->D[t], out->P[t]);
    out->inner[t] = oracle_inner_product(o);
    for (int32_t l = 0; l < s->layers; l++)
      out->condition[t][l] = oracle_condition(o, l);
  }
  if (keep)
    *keep = o;
  else
    oracle_destroy(&o);
}
