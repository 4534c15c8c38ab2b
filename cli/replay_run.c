/* replay_run.c: run natgrad on a recording as a trainer would, with one thread for each rank: add layers, bind
 * gradients, observe each micro-batch, step.
 *
 * The error of a step and layer is max |ours - recorded| over weight and bias, divided by the largest recorded
 * magnitude. The first run compares preconditioned gradients. If the recording has updates, a second run starts from
 * the recorded initial weights, updates them, and compares weights and momentum. */
#include "replay.h"

#include "common/cli.h"
#include "train/launch.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- set-up --------------------------------------------------------------------------------*/

replay_rank *replay_ranks_create(const replay_job *job) {
  const recording *r = job->r;
  replay_rank *ranks = cli_alloc((size_t)r->ranks, sizeof *ranks);
  for (int i = 0; i < r->ranks; i++) {
    ranks[i] = (replay_rank){.job = job, .rank = i};
    for (int k = 0; k < ERROR_KINDS; k++)
      ranks[i].errors[k] = cli_alloc((size_t)r->steps, (size_t)r->layers * sizeof(double));
  }
  return ranks;
}

void replay_ranks_free(replay_rank *ranks, int count) {
  for (int i = 0; i < count; i++) {
    for (int k = 0; k < ERROR_KINDS; k++)
      free(ranks[i].errors[k]);
  }
  free(ranks);
}

/* In recordings with states a parameter without gradient was skipped. */
static bool is_skipped(const recording *r, const recording_step *s) {
  return r->has_states && s->grad == NULL;
}

static int64_t count_weight_columns(const shape *l) {
  return l->is_norm ? 1 : l->is_conv ? l->in * l->kernel[0] * l->kernel[1] : l->in;
}

static int count_weight_and_bias(const shape *l) { return l->has_bias ? 2 : 1; }

/* Return the number of elements of the weight or bias of a layer. */
static int64_t count_elements(const shape *l, int bias) {
  return bias ? l->out : l->out * count_weight_columns(l);
}

/* Return the recorded options of a layer, or its options if it is in the list "diagonalize" of chainerkfac; else NULL. */
static const char *find_layer_options(const recording *r, const shape *l) {
  const char *own =
      ngio_text_of(ngio_get(ngio_get(ngio_get(r->root, "layers"), l->name), "options"));
  if (own != NULL) return own;
  const ngio_value *list = ngio_get(r->config, "diagonalize");
  for (size_t i = 0; i < ngio_count(list); i++) {
    const char *name = ngio_text_of(ngio_at(list, i));
    if (name == NULL || strcmp(name, l->name) != 0) continue;
    return l->is_norm ? "norm_block=diagonal" : "output_factor=diagonal";
  }
  return NULL;
}

/* Write the gradient that the recorded optimizer used: grad / loss_scale + weight_decay before. If `none`, write 0. In
 * recordings of parameters, the library adds the decay itself. */
static void write_used_gradient(const recording *r, float *to, const float *grad,
                                const float *before, int64_t n, bool none) {
  const double decay = r->has_parameters || before == NULL ? 0.0 : r->weight_decay;
  for (int64_t i = 0; i < n; i++)
    to[i] = none ? 0.0F
                 : (float)((double)grad[i] / r->loss_scale +
                           (decay == 0.0 ? 0.0 : decay * (double)before[i]));
}

/* Bind a gradient array of a weight or bias. If `before` is not NULL, also bind a copy of `before` as the value. */
static ng_status bind_arrays(ng_precond *p, int32_t index, const shape *l, int bias, bool flat,
                             const float *before, replay_arrays *to) {
  const int64_t n = count_elements(l, bias), rows = bias || flat ? 1 : l->out;
  const ng_param which = bias ? NG_BIAS : NG_WEIGHT;
  to->grad = cli_alloc((size_t)n, sizeof(float));
  const ng_array g = ng_array_matrix(to->grad, rows, n / rows, NG_F32);
  const ng_status st = ng_bind_grad(p, index, which, &g);
  if (before == NULL || st < 0) return st;
  to->value = cli_alloc((size_t)n, sizeof(float));
  memcpy(to->value, before, (size_t)n * sizeof(float));
  const ng_array w = ng_array_matrix(to->value, rows, n / rows, NG_F32);
  return ng_bind_weight(p, index, which, &w);
}

/* Add and bind all layers. In recordings of parameters, a parameter of one axis becomes a tensor, and another parameter
 * a linear layer whose first axis counts the outputs. */
static ng_status add_layers(replay_rank *me, ng_precond *p) {
  const recording *r = me->job->r;
  const bool weights = (r->has_parameters && !r->has_states) || me->fused;
  ng_status st = NG_OK;
  for (int i = 0; i < r->layers && st >= 0; i++) {
    const shape *l = &r->layer[i];
    int32_t index = -1;
    ng_layer layer;
    shapes_set_layer(l, &layer);
    layer.options = find_layer_options(r, l);
    const bool flat = r->is_other[i] || (r->has_parameters && l->out == 1 && !l->is_conv);
    st = flat ? ng_add_tensor(p, l->name, count_elements(l, 0), &index)
              : ng_add_layer(p, &layer, &index);
    if (st >= 0 && r->is_other[i]) st = ng_set_group(p, index, NG_WEIGHT, 1);
    for (int k = 0; k < count_weight_and_bias(l) && st >= 0; k++)
      st = bind_arrays(p, index, l, k, r->is_other[i],
                       weights ? recording_step_at(r, 0, i, k)->before : NULL, &me->arrays[i][k]);
  }
  if (st >= 0) st = ng_ready(p);
  return st >= 0 && me->job->low_rank ? replay_set_start(r, p) : st;
}

/* Observe the recorded arrays of a layer. Their shape determines the number of positions of a linear layer. */
static ng_status observe_layer(ng_precond *p, int32_t layer, const shape *l,
                               const recording_observed *s) {
  if (!ng_wants(p, layer)) return NG_OK;
  shape here = *l;
  if (!l->is_conv && !l->is_norm) here.positions = s->rows / s->samples;
  const ng_array a = shapes_input_array(&here, s->a, s->samples);
  const ng_array g = shapes_output_array(&here, s->g, s->samples);
  const ng_status st = ng_observe_input(p, layer, &a, NG_BORROW);
  return st == NG_OK ? ng_observe_output_grad(p, layer, &g, NG_COPY) : st;
}

/* chainerkfac updates weights w by v <- m v - lr PD, w <- w + v, with momentum m. Its option adjust_momentum multiplies
 * m by lr / lr_pre if lr has fallen. natgrad stores u = -v / lr instead of v, so its momentum must be m lr_before / lr.
 * At lr = 0, chainerkfac still adds v to w. For such a step, natgrad gets the last positive lr and a gradient of 0. */
static double find_positive_lr(const recording *r, int step) {
  while (step > 0 && r->lr[step] == 0)
    step--;
  return r->lr[step];
}

static ng_sgd make_sgd_settings(const recording *r, int step) {
  ng_sgd how;
  ng_sgd_init(&how, sizeof how);
  if (r->has_states) {
    how.lr = r->lr[step];
    how.weight_decay = r->weight_decay;
    how.decoupled = 1;
    if (ngio_get(r->config, "weight_decay_type") == NULL) return how;
    /* Distributed Shampoo: weight decay and momentum of torch.optim.SGD, without dampening */
    const char *type = ngio_text_of(ngio_get(r->config, "weight_decay_type"));
    if (type != NULL && strcmp(type, "CORRECTED") == 0) how.weight_decay *= how.lr / r->lr[0];
    how.decoupled = 0;
    how.momentum = r->momentum;
    how.nesterov = ngio_is(ngio_get(r->config, "use_nesterov"), NGIO_TRUE);
    return how;
  }
  how.lr = find_positive_lr(r, step);
  how.momentum = r->momentum;
  if (r->adjust_momentum && r->lr[step] < r->lr_pre[step])
    how.momentum *= r->lr[step] / r->lr_pre[step];
  if (step > 0 && how.lr > 0) how.momentum *= find_positive_lr(r, step - 1) / how.lr;
  /* with momentum 0 the library would not store u, which compare_momentum reads */
  if (r->momentum > 0 && how.momentum == 0) how.momentum = DBL_MIN;
  return how;
}

/* Compare the momentum v = -lr u of a parameter with the recorded v (see find_positive_lr). */
static ng_status compare_momentum(ng_precond *p, const char *name, double lr, const float *recorded,
                                  int64_t n, double *gap, double *scale) {
  bool there;
  float *v = cli_alloc((size_t)n, sizeof *v);
  ng_status st = replay_read_field(p, name, v, n, &there);
  for (int64_t k = 0; k < n && there && st >= 0; k++)
    v[k] = (float)(-lr * (double)v[k]);
  if (there) replay_add_error(v, recorded, n, gap, scale);
  free(v);
  /* if the field is missing, its name has changed in the library */
  return st >= 0 && !there ? NG_ERR_STATE : st;
}

static ng_status compare_updates(const replay_rank *me, ng_precond *p, int step) {
  const recording *r = me->job->r;
  for (int i = 0; i < r->layers; i++) {
    const shape *l = &r->layer[i];
    double gap = 0, scale = 0, v_gap = 0, v_scale = 0, *error;
    for (int k = 0; k < count_weight_and_bias(l); k++) {
      const recording_step *s = recording_step_at(r, step, i, k);
      char name[128];
      replay_add_error(me->arrays[i][k].value, s->after, count_elements(l, k), &gap, &scale);
      if (r->momentum == 0 || r->has_states) continue;
      (void)snprintf(name, sizeof name, "%s/momentum.%s", l->name, k == 0 ? "weight" : "bias");
      const ng_status st = compare_momentum(p, name, find_positive_lr(r, step), s->momentum,
                                            count_elements(l, k), &v_gap, &v_scale);
      if (st < 0) return st;
    }
    gap = gap == 0 ? 0 : gap / scale;
    v_gap = v_gap == 0 ? 0 : v_gap / v_scale;
    error = &me->errors[STATE_ERRORS][step * r->layers + i];
    *error = fmax(r->has_states ? *error : 0.0, fmax(v_gap, gap));
  }
  return NG_OK;
}

/* Set the errors of a step. They are divided by the largest recorded magnitude of the layer; in recordings of
 * parameters, of all parameters together. */
static void compare_directions(const replay_rank *me, int step) {
  const recording *r = me->job->r;
  double *error = &me->errors[DIRECTION_ERRORS][step * r->layers], most = 0;
  for (int i = 0; i < r->layers; i++) {
    const shape *l = &r->layer[i];
    double gap = 0, scale = 0;
    for (int k = 0; k < count_weight_and_bias(l); k++) {
      const recording_step *s = recording_step_at(r, step, i, k);
      if (s->out == NULL) continue;
      if (r->has_states) replay_scale_direction(r, step, i, me->arrays[i][k].grad);
      replay_add_error(me->arrays[i][k].grad, s->out, count_elements(l, k), &gap, &scale);
    }
    most = fmax(most, scale);
    error[i] = gap == 0 || r->has_parameters ? gap : gap / scale;
  }
  for (int i = 0; i < r->layers && r->has_parameters && most > 0; i++)
    error[i] /= most;
}

static ng_status observe_micro_batches(const replay_rank *me, ng_precond *p, int step) {
  const recording *r = me->job->r;
  ng_status st = NG_OK;
  for (int m = 0; m < r->micro_batches && st == NG_OK; m++) {
    ng_batch batch;
    ng_batch_init(&batch, sizeof batch);
    batch.loss_scale = r->loss_scale;
    batch.reduction = r->is_sum ? NG_SUM : NG_MEAN;
    for (int i = 0; i < r->layers && st == NG_OK; i++) {
      const recording_observed *s = recording_observed_at(r, me->rank, step, m, i);
      if (i == 0 || s->samples != batch.samples) { /* chainerkfac's samples differ between layers */
        batch.samples = s->samples;
        st = ng_begin(p, &batch);
      }
      if (st == NG_OK) st = observe_layer(p, i, &r->layer[i], s);
    }
  }
  return st;
}

/* Observe the arrays of a step, with two passes of all steps. */
static ng_status observe_step(const replay_rank *me, ng_precond *p, int step) {
  const recording *r = me->job->r;
  ng_status st = NG_OK;
  if (r->has_parameters) return NG_OK;
  if (!r->has_two_passes) return observe_micro_batches(me, p, step);
  for (int s = 0; s < r->steps && st == NG_OK; s++)
    st = observe_micro_batches(me, p, s);
  return st;
}

/* Bind the gradient of a parameter, or no gradient if the recorded optimizer skipped the parameter. */
static ng_status bind_recorded_gradient(ng_precond *p, int index, const recording *r, float *grad) {
  const int64_t n = count_elements(&r->layer[index], 0);
  const int64_t rows = r->is_other[index] ? 1 : r->layer[index].out;
  const ng_array g = ng_array_matrix(grad, rows, n / rows, NG_F32);
  return ng_bind_grad(p, index, NG_WEIGHT, &g);
}

static ng_status run_recorded_step(replay_rank *me, ng_precond *p, int step) {
  const recording *r = me->job->r;
  ng_status st = observe_step(me, p, step);
  if (st == NG_OK && r->has_states && step > 0) st = replay_load_state(r, p, step - 1);
  for (int i = 0; i < r->layers && st == NG_OK && r->has_states; i++)
    st = bind_recorded_gradient(
        p, i, r, is_skipped(r, recording_step_at(r, step, i, 0)) ? NULL : me->arrays[i][0].grad);
  if (st != NG_OK) return st;
  const bool none = me->fused && r->lr[step] == 0 && !r->has_states;
  for (int i = 0; i < 2 * r->layers; i++) {
    const shape *l = &r->layer[i / 2];
    const recording_step *s = recording_step_at(r, step, i / 2, i % 2);
    const replay_arrays *x = &me->arrays[i / 2][i % 2];
    if (x->value != NULL && s->before != NULL && r->has_states)
      memcpy(x->value, s->before, (size_t)count_elements(l, i % 2) * sizeof(float));
    if (s->grad == NULL) continue;
    write_used_gradient(r, x->grad, s->grad, s->before, count_elements(l, i % 2), none);
    if (r->has_parameters && !r->has_states)
      memcpy(x->value, s->before, (size_t)count_elements(l, 0) * sizeof(float));
  }
  /* [0]: parameters with curvature; [1]: parameters that the method leaves to its second family */
  ng_sgd sgd[2] = {{0}, {0}};
  bool others = false;
  for (int i = 0; i < r->layers; i++)
    others = others || r->is_other[i];
  if (me->fused) sgd[0] = sgd[1] = make_sgd_settings(r, step);
  if (others) {
    sgd[1].lr = r->lr_pre[step];
    sgd[1].weight_decay = r->other_decay;
  }
  st = me->fused ? ng_step_sgd(p, sgd, others ? 2 : 1) : ng_step(p, me->job->lr);
  if (st < 0 || st == NG_SKIPPED) return st;
  if (me->fused) return compare_updates(me, p, step);
  if (st == NG_OK && r->has_states)
    st = replay_compare_state(r, p, step, &me->errors[STATE_ERRORS][step * r->layers]);
  if (st < 0) return st;
  if (st == NG_RESCUED) me->rescued++;
  compare_directions(me, step);
  if (!me->job->feedback) return NG_OK;
  return replay_compare_feedback(r, p, step, &me->errors[STATE_ERRORS][step * r->layers]);
}

static int run_rank(void *user, const ng_transport *t) {
  replay_rank *me = (replay_rank *)user + (t != NULL ? t->rank : 0);
  const recording *r = me->job->r;
  ng_context_config config;
  ng_context *ctx = NULL;
  ng_precond *p = NULL;
  char message[512] = "";
  int step = -1;
  me->arrays = cli_alloc((size_t)r->layers, sizeof *me->arrays);
  ng_context_config_init(&config, sizeof config);
  config.linalg = me->job->linalg;
  config.transport = t;
  if (t != NULL) config.threads = 1; /* the ranks are threads */
  ng_status st = ng_context_create(NG_VERSION, &config, message, sizeof message, &ctx);
  if (st >= 0) st = ng_precond_create_from(ctx, me->fused ? me->job->fused : me->job->options, &p);
  if (st >= 0) st = add_layers(me, p);
  if (st >= 0 && r->has_two_passes) st = observe_step(me, p, 0);
  if (st >= 0 && r->has_two_passes) st = ng_step(p, me->job->lr); /* gradients are 0 */
  for (step = 0; step < r->steps && st == NG_OK; step++)
    st = run_recorded_step(me, p, step);
  if (st != NG_OK) {
    /* report the error before the abort, because the abort makes other ranks fail */
    char where[48] = "";
    if (step > 0) (void)snprintf(where, sizeof where, "step %d: ", step - 1);
    if (ctx != NULL)
      (void)snprintf(message, sizeof message, "%s (%s)", ng_last_error(ctx), ng_status_name(st));
    (void)(t == NULL ? cli_fail("%s: %s%s", me->job->path, where, message)
                     : cli_fail("%s: rank %d: %s%s", me->job->path, me->rank, where, message));
    if (t != NULL) t->abort(t->user);
  }
  ng_precond_destroy(&p);
  ng_context_destroy(&ctx);
  for (int i = 0; i < 2 * r->layers; i++) {
    free(me->arrays[i / 2][i % 2].grad);
    free(me->arrays[i / 2][i % 2].value);
  }
  free(me->arrays);
  return st == NG_OK ? CLI_OK : CLI_BAD;
}

/* ---- ranks -----------------------------------------------------------------------------------*/

int replay_run(const replay_job *j, replay_rank *ranks, bool fused) {
  for (int i = 0; i < j->r->ranks; i++)
    ranks[i].fused = fused;
  return j->r->ranks == 1 ? run_rank(ranks, NULL)
                          : launch_run_threads(j->r->ranks, run_rank, ranks);
}
