/* replay_run.c: run natgrad on a recording as a trainer does, with one thread for each rank: add layers, bind gradients,
 * observe each micro-batch, step.
 *
 * Errors of a step and layer: max |ours - recorded| over weight and bias, divided by the largest recorded entry: for
 * preconditioned gradients, and, in a second run that updates the recorded first weights, for weights and momentum. */
#include "replay.h"

#include "common/cli.h"

#include <dlfcn.h>
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- set-up --------------------------------------------------------------------------------*/

replay_rank *replay_ranks(const replay_job *job) {
  const recording *r = job->r;
  replay_rank *ranks = cli_take((size_t)r->ranks, sizeof *ranks);
  for (int i = 0; i < r->ranks; i++) {
    float ***list[] = {&ranks[i].grad, &ranks[i].bias, &ranks[i].weight, &ranks[i].bias_weight};
    ranks[i].job = job;
    ranks[i].rank = i;
    for (int k = 0; k < COMPARED; k++)
      ranks[i].cells[k] = cli_take((size_t)r->steps, (size_t)r->layers * sizeof(double));
    for (int k = 0; k < 4; k++)
      *list[k] = cli_take((size_t)r->layers, sizeof(float *));
  }
  return ranks;
}

static void free_arrays(const replay_rank *me, int layers) {
  float **list[] = {me->grad, me->bias, me->weight, me->bias_weight};
  for (int k = 0; k < 4 * layers; k++) {
    free(list[k / layers][k % layers]);
    list[k / layers][k % layers] = NULL;
  }
}

void replay_ranks_free(replay_rank *ranks, int count, int layers) {
  for (int i = 0; i < count; i++) {
    float **list[] = {ranks[i].grad, ranks[i].bias, ranks[i].weight, ranks[i].bias_weight};
    free_arrays(&ranks[i], layers);
    for (int k = 0; k < 4; k++)
      free(list[k]);
    for (int k = 0; k < COMPARED; k++)
      free(ranks[i].cells[k]);
  }
  free(ranks);
}

static int64_t inputs(const shape *l) {
  return l->norm ? 1 : l->conv ? l->in * l->kernel[0] * l->kernel[1] : l->in;
}

/* chainerkfac's flag of single layers, as options of the layer. */
static const char *own_options(const recording *r, const shape *l) {
  const ngio_value *list = ngio_get(r->config, "diagonalize");
  for (size_t i = 0; i < ngio_count(list); i++) {
    const char *name = ngio_text_of(ngio_at(list, i));
    if (name == NULL || strcmp(name, l->name) != 0) continue;
    return l->norm ? "norm_block=diagonal" : "output_factor=diagonal";
  }
  return NULL;
}

/* The gradient that the recorded optimizer sees: unscaled, plus weight_decay times the weights; or 0. */
static void write_gradient(const recording *r, float *to, const float *grad, const float *before,
                           int64_t n, bool none) {
  for (int64_t i = 0; i < n; i++) {
    if (none) to[i] = 0.0f;
    if (none) continue;
    to[i] = (float)((double)grad[i] / r->loss_scale +
                    (before == NULL ? 0.0 : r->weight_decay * (double)before[i]));
  }
}

/* Bind the gradient of a parameter and, if `before` is given, a copy of its weight. */
static ng_status bind(ng_precond *p, int32_t index, ng_param which, int64_t rows, int64_t cols,
                      const float *before, float **grad, float **weight) {
  const size_t n = (size_t)(rows * cols);
  *grad = cli_take(n, sizeof(float));
  const ng_array g = ng_array_matrix(*grad, rows, cols, NG_F32);
  const ng_status st = ng_bind_grad(p, index, which, &g);
  if (before == NULL || st < 0) return st;
  *weight = cli_take(n, sizeof(float));
  memcpy(*weight, before, n * sizeof(float));
  const ng_array w = ng_array_matrix(*weight, rows, cols, NG_F32);
  return ng_bind_weight(p, index, which, &w);
}

/* A recorded parameter of one axis is a tensor, of more axes a linear layer with as many rows as the first. */
static ng_status set_up(replay_rank *me, ng_precond *p) {
  const recording *r = me->job->r;
  const bool weights = r->parameters || me->fused;
  ng_status st = NG_OK;
  for (int i = 0; i < r->layers && st >= 0; i++) {
    const shape *l = &r->layer[i];
    const recording_step *s = recording_step_at(r, 0, i);
    int32_t index = -1;
    ng_layer layer;
    st = shapes_describe(l, &layer);
    layer.options = own_options(r, l);
    if (st >= 0)
      st = r->parameters && l->out == 1 ? ng_add_tensor(p, l->name, l->in, &index)
                                        : ng_add_layer(p, &layer, &index);
    if (st >= 0)
      st = bind(p, index, NG_WEIGHT, l->out, inputs(l), weights ? s->before : NULL, &me->grad[i],
                &me->weight[i]);
    if (st >= 0 && l->bias)
      st = bind(p, index, NG_BIAS, 1, l->out, weights ? s->bias_before : NULL, &me->bias[i],
                &me->bias_weight[i]);
  }
  if (st >= 0) st = ng_ready(p);
  return st >= 0 && me->job->low_rank ? replay_set_start(r, p) : st;
}

/* The recorded arrays determine the positions of a linear layer. */
static ng_status observe(ng_precond *p, int32_t layer, const shape *l,
                         const recording_observed *s) {
  if (!ng_wants(p, layer)) return NG_OK;
  shape here = *l;
  if (!l->conv && !l->norm) here.positions = s->rows / s->samples;
  const ng_array a = shapes_input(&here, s->a, s->samples);
  const ng_array g = shapes_output(&here, s->g, s->samples);
  const ng_status st = ng_observe_input(p, layer, &a, NG_BORROW);
  return st == NG_OK ? ng_observe_output_grad(p, layer, &g, NG_COPY) : st;
}

/* Errors are relative to the largest entry of the step over all parameters. */
static ng_status step_parameters(replay_rank *me, ng_precond *p, int step) {
  const recording *r = me->job->r;
  double scale = 0;
  for (int i = 0; i < r->layers; i++) {
    const recording_step *s = recording_step_at(r, step, i);
    const size_t bytes = (size_t)(r->layer[i].in * r->layer[i].out) * sizeof(float);
    memcpy(me->grad[i], s->grad, bytes);
    memcpy(me->weight[i], s->before, bytes);
  }
  const ng_status st = ng_step(p, me->job->lr);
  if (st < 0 || st == NG_SKIPPED) return st;
  if (st == NG_RESCUED) me->rescued++;
  for (int i = 0; i < r->layers; i++) {
    double *gap = &me->cells[OF_DIRECTION][step * r->layers + i];
    *gap = 0;
    replay_measure(me->grad[i], recording_step_at(r, step, i)->out,
                   r->layer[i].in * r->layer[i].out, gap, &scale);
  }
  for (int i = 0; i < r->layers && scale > 0; i++) {
    me->cells[OF_DIRECTION][step * r->layers + i] /= scale;
  }
  if (!me->job->feedback) return NG_OK;
  return replay_compare_feedback(r, p, step, &me->cells[OF_STATE][step * r->layers]);
}

/* chainerkfac: v <- m v - lr PD, w <- w + v, m = momentum; adjust_momentum multiplies m by lr / lr_pre if lr has fallen.
 * natgrad: u = -v / lr, hence its momentum is m lr_before / lr.  At lr = 0 chainerkfac still moves w by v: use the
 * last positive lr and a gradient of 0. */
static double scale_of(const recording *r, int step) {
  while (step > 0 && r->lr[step] == 0)
    step--;
  return r->lr[step];
}

static ng_sgd sgd_of(const recording *r, int step) {
  ng_sgd how;
  ng_sgd_init(&how, sizeof how);
  how.lr = scale_of(r, step);
  how.momentum = r->momentum;
  if (r->adjust_momentum && r->lr[step] < r->lr_pre[step])
    how.momentum *= r->lr[step] / r->lr_pre[step];
  if (step > 0 && how.lr > 0) how.momentum *= scale_of(r, step - 1) / how.lr;
  /* a momentum of exactly 0 would mean that the library keeps none */
  if (r->momentum > 0 && how.momentum == 0) how.momentum = DBL_MIN;
  return how;
}

/* Compare the momentum of a parameter, on the scale of the recording. */
static ng_status measure_momentum(ng_precond *p, const char *name, double lr, const float *recorded,
                                  int64_t n, double *gap, double *scale) {
  bool there;
  float *v = cli_take((size_t)n, sizeof *v);
  ng_status st = replay_field(p, name, v, n, &there);
  for (int64_t k = 0; k < n && there && st >= 0; k++)
    v[k] = (float)(-lr * (double)v[k]);
  if (there) replay_measure(v, recorded, n, gap, scale);
  free(v);
  /* a missing field: only if moments are renamed */
  return st >= 0 && !there ? NG_ERR_STATE : st;
}

static ng_status compare_updates(const replay_rank *me, ng_precond *p, int step) {
  const recording *r = me->job->r;
  ng_status st = NG_OK;
  for (int i = 0; i < r->layers; i++) {
    const shape *l = &r->layer[i];
    const recording_step *s = recording_step_at(r, step, i);
    double gap = 0, scale = 0, v_gap = 0, v_scale = 0;
    replay_measure(me->weight[i], s->after, l->out * inputs(l), &gap, &scale);
    if (l->bias) replay_measure(me->bias_weight[i], s->bias_after, l->out, &gap, &scale);
    for (int k = 0; k < (l->bias ? 2 : 1) && r->momentum != 0 && st >= 0; k++) {
      char name[128];
      (void)snprintf(name, sizeof name, "%s/momentum.%s", l->name, k == 0 ? "weight" : "bias");
      st = measure_momentum(p, name, scale_of(r, step), k == 0 ? s->v : s->bias_v,
                            k == 0 ? l->out * inputs(l) : l->out, &v_gap, &v_scale);
    }
    if (st < 0) return st;
    gap = gap == 0 ? 0 : gap / scale;
    v_gap = v_gap == 0 ? 0 : v_gap / v_scale;
    me->cells[OF_STATE][step * r->layers + i] = v_gap > gap ? v_gap : gap;
  }
  return st;
}

static ng_status one_step(replay_rank *me, ng_precond *p, int step) {
  const recording *r = me->job->r;
  if (r->parameters) return step_parameters(me, p, step);
  ng_status st = NG_OK;
  for (int m = 0; m < r->micro_batches && st >= 0; m++) {
    ng_batch batch;
    ng_batch_init(&batch, sizeof batch);
    batch.loss_scale = r->loss_scale;
    for (int i = 0; i < r->layers && st >= 0; i++) {
      const recording_observed *s = recording_observed_at(r, me->rank, step, m, i);
      if (i == 0 || s->samples != batch.samples) { /* of chainerkfac each layer has its own */
        batch.samples = s->samples;
        st = ng_begin(p, &batch);
      }
      if (st >= 0) st = observe(p, i, &r->layer[i], s);
      if (st == NG_SKIPPED) return st;
    }
  }
  const bool none = me->fused && r->lr[step] == 0;
  for (int i = 0; i < r->layers && st >= 0; i++) {
    const shape *l = &r->layer[i];
    const recording_step *s = recording_step_at(r, step, i);
    write_gradient(r, me->grad[i], s->grad, s->before, l->out * inputs(l), none);
    if (l->bias) write_gradient(r, me->bias[i], s->bias_grad, s->bias_before, l->out, none);
  }
  if (st < 0) return st;
  const ng_sgd sgd = me->fused ? sgd_of(r, step) : (ng_sgd){0};
  st = me->fused ? ng_step_sgd(p, &sgd, 1) : ng_step(p, me->job->lr);
  if (st < 0 || st == NG_SKIPPED) return st;
  if (me->fused) return compare_updates(me, p, step);
  if (st == NG_RESCUED) me->rescued++;
  for (int i = 0; i < r->layers; i++) {
    const shape *l = &r->layer[i];
    const recording_step *s = recording_step_at(r, step, i);
    double gap = 0, scale = 0;
    replay_measure(me->grad[i], s->out, l->out * inputs(l), &gap, &scale);
    if (l->bias) replay_measure(me->bias[i], s->bias_out, l->out, &gap, &scale);
    me->cells[OF_DIRECTION][step * r->layers + i] = gap == 0 ? 0 : gap / scale;
  }
  return NG_OK;
}

static void *run_rank(void *arg) {
  replay_rank *me = arg;
  const recording *r = me->job->r;
  ng_context_config config;
  ng_context *ctx = NULL;
  ng_precond *p = NULL;
  int step = -1;
  ng_context_config_init(&config, sizeof config);
  config.linalg = me->job->linalg;
  if (r->ranks > 1) {
    config.transport = &me->transport;
    config.threads = 1; /* one thread a rank */
  }
  ng_status st = ng_context_create(NG_VERSION, &config, me->message, sizeof me->message, &ctx);
  if (st >= 0) st = ng_precond_create_from(ctx, me->fused ? me->job->fused : me->job->options, &p);
  if (st >= 0) st = set_up(me, p);
  for (step = 0; step < r->steps && st == NG_OK; step++)
    st = one_step(me, p, step);
  if (st != NG_OK) {
    if (ctx != NULL) {
      char where[32] = "";
      if (step > 0) (void)snprintf(where, sizeof where, "step %d: ", step - 1);
      (void)snprintf(me->message, sizeof me->message, "%s%s (%s)", where, ng_last_error(ctx),
                     ng_status_name(st));
    }
    if (r->ranks > 1 && me->transport.abort != NULL) me->transport.abort(me->transport.user);
  }
  ng_precond_destroy(&p);
  ng_context_destroy(&ctx);
  me->status = st;
  return NULL;
}

/* ---- ranks -----------------------------------------------------------------------------------*/

/* All ranks call BLAS at the same time: one thread for each call. */
static void one_blas_thread(void) {
  void (*set)(int) = NULL;
  void *symbol = dlsym(RTLD_DEFAULT, "openblas_set_num_threads");
  memcpy(&set, &symbol, sizeof set);
  if (set != NULL) set(1);
}

int replay_run(const replay_job *j, replay_rank *runs, bool fused) {
  const recording *r = j->r;
  ng_threads *group = NULL;
  pthread_t *thread = cli_take((size_t)r->ranks, sizeof *thread);
  int started = 0, rc = CLI_OK;
  cli_need_address_space(r->ranks);
  for (int i = 0; i < r->ranks; i++) {
    free_arrays(&runs[i], r->layers);
    runs[i].fused = fused;
  }
  if (r->ranks == 1) {
    run_rank(&runs[0]);
  } else if (ng_threads_create(r->ranks, &group) != NG_OK) {
    rc = cli_bad("%s: no group of %d ranks", r->name, r->ranks);
  } else {
    one_blas_thread();
    for (int i = 0; i < r->ranks && rc == CLI_OK; i++) {
      if (ng_threads_transport(group, i, &runs[i].transport, sizeof runs[i].transport) != NG_OK) {
        rc = cli_bad("%s: no transport for rank %d", r->name, i);
      }
    }
    for (; started < r->ranks && rc == CLI_OK; started++) {
      if (pthread_create(&thread[started], NULL, run_rank, &runs[started]) != 0) {
        rc = cli_bad("%s: rank %d could not be started", r->name, started);
        runs[started].transport.abort(runs[started].transport.user); /* wake the others */
        break;
      }
    }
    for (int i = 0; i < started; i++)
      (void)pthread_join(thread[i], NULL);
  }
  ng_threads_destroy(&group);
  free(thread);
  /* Report the first cause: a rank with NG_ERR_COMM failed only because another rank left. */
  const replay_rank *worst = NULL;
  for (int i = 0; i < r->ranks && rc == CLI_OK; i++) {
    if (runs[i].status == NG_OK) continue;
    if (worst == NULL || (worst->status == NG_ERR_COMM && runs[i].status != NG_ERR_COMM)) {
      worst = &runs[i];
    }
  }
  if (worst != NULL && r->ranks > 1) {
    rc = cli_bad("%s: rank %d: %s", r->name, worst->rank, worst->message);
  } else if (worst != NULL) {
    rc = cli_bad("%s: %s", r->name, worst->message);
  }
  return rc;
}
