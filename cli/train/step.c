/* step.c: one step of a run: forward and backward passes, the sum of gradients over ranks, and the update by the
 * library.
 *
 * In: a run that has begun; the learning rates of this step and of the previous one. Out: updated weights, or a
 * diverged run; times, losses and counters. */
#include "clock.h"
#include "run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

double run_get_accuracy(const run *r, int64_t correct, int64_t samples) {
  const double labels = (double)(samples * data_count_labels(r->d));
  return r->reconstructs || samples == 0 ? (double)NAN : (double)correct / labels;
}

/* Return the number of the micro-batch in the run, which seeds random draws (dropout, sampled labels). */
static uint64_t compute_batch_number(const run *r, int64_t micro) {
  return (uint64_t)(r->state.step * r->s->acc_iters + micro);
}

/* Run the backward pass. The library observes the output gradients. With fisher = sampled, it observes a first pass
 * with labels drawn from the model's distribution; a second pass, with the labels of the batch, computes the gradients.
 * A rank without samples also runs the passes, so that all ranks call collectives in the same order. */
static int run_backward_passes(run *r, bool wants, int64_t micro, double *loss, int64_t *correct) {
  const nn_watch *watch = wants ? precond_get_watch(r->p) : NULL;
  int rc = CLI_OK;
  const bool some = r->feed.batch > 0;
  if (wants && strcmp(r->s->fisher, "sampled") == 0) {
    if (some) nn_compute_sampled_loss(r->net, compute_batch_number(r, micro));
    rc = nn_backward(r->net, false, watch);
    watch = NULL;
  }
  const int32_t *labels = r->reconstructs ? NULL : r->feed.labels;
  const float *targets = r->reconstructs ? r->feed.x : r->feed.mix.targets;
  *loss = some ? nn_compute_loss(r->net, NN_TRAIN, labels, targets, correct) : 0.0;
  if (!isfinite(*loss)) r->out->diverged = true;
  /* with several ranks, the other ranks wait for the gradients of this rank */
  const bool needed = r->ranks.size > 1 || !r->out->diverged;
  return rc == CLI_OK && needed ? nn_backward(r->net, true, watch) : rc;
}

/* Run a micro-batch: add its loss and its gradient to their sums. */
static int run_micro_batch(run *r, int64_t micro, int64_t *correct) {
  const double t0 = ng_now_ms(), observed = precond_get_observe_ms(r->p);
  int rc = feed_fill_train(&r->feed, r->state.step, micro);
  const double t1 = ng_now_ms();
  double loss = 0.0;
  int64_t right = 0;
  bool wants = false;
  const bool last = micro == r->s->acc_iters - 1;
  if (rc == CLI_OK) rc = precond_begin_batch(r->p, r->feed.batch, last, &wants);
  if (rc == CLI_OK)
    rc = nn_forward(r->net, NN_TRAIN, r->feed.x, r->feed.batch, compute_batch_number(r, micro),
                    wants ? precond_get_watch(r->p) : NULL);
  const double t2 = ng_now_ms(), observed_forward = precond_get_observe_ms(r->p);
  grads_begin(&r->grads, micro);
  if (rc == CLI_OK) rc = run_backward_passes(r, wants, micro, &loss, &right);
  const double t3 = ng_now_ms(), observed_all = precond_get_observe_ms(r->p);
  *correct += right;
  r->loss = micro == 0 ? loss : r->loss + loss;
  r->own_ms[RUN_DATA] += t1 - t0;
  r->own_ms[RUN_FORWARD] += t2 - t1 - (observed_forward - observed);
  r->own_ms[RUN_BACKWARD] += t3 - t2 - (observed_all - observed_forward);
  r->own_ms[RUN_OBSERVE] += observed_all - observed;
  return rc;
}

/* Combine losses and requests of all ranks, so that all ranks take the same decisions. If a rank fails, it aborts the
 * transport, because other ranks may wait for its messages. */
static int agree_on_step(run *r, int64_t *correct) {
  const double share = (double)r->feed.batch / (double)r->feed.whole_batch;
  const bool stop = train_is_interrupted() || r->out->output_failed;
  const bool keep = train_count_requests() != r->requests_served;
  double x[] = {r->out->diverged ? 0.0 : r->loss * share, (double)*correct, r->out->diverged, stop,
                keep};
  if (ranks_sum(&r->ranks, x, sizeof x / sizeof *x) != CLI_OK) return CLI_BAD;
  if (!r->out->diverged) r->loss = x[0];
  *correct = (int64_t)x[1];
  r->stop_requested = x[3] > 0.0;
  r->checkpoint_requested = x[4] > 0.0;
  /* the loss of another rank is not finite */
  if (x[2] > 0.0 && !r->out->diverged) r->loss = (double)NAN;
  r->out->diverged = x[2] > 0.0;
  return CLI_OK;
}

/* The library skips a step if a gradient is not finite. After this many skipped steps in a row, the run ends. */
enum { MOST_SKIPPED = 4 };

/* Before the step observes, set the options that --schedule changes to their values in this step. */
static int set_scheduled_options(run *r) {
  double value[SCHEDULED];
  char message[128] = "";
  (void)schedule_evaluate(r->s->schedule, r->base, r->state.step, value, message,
                          sizeof message); /* cannot fail: settings_check has checked the text */
  for (int k = 0; k < SCHEDULED; k++) {
    if (isnan(value[k]) || value[k] == r->current[k]) continue;
    if (precond_set_option(r->p, schedule_option[k], value[k]) != CLI_OK) return CLI_BAD;
    r->current[k] = value[k];
  }
  return CLI_OK;
}

/* Set the damping of this step according to --damping-rule. */
static int set_damping_by_lr(run *r, double lr) {
  if (strcmp(r->s->damping_rule, "keep-ratio") != 0) return CLI_OK;
  const double damping = recipe_scale_damping(r->s, r->base[SCHEDULED_DAMPING], lr);
  return damping > 0.0 ? precond_set_option(r->p, "damping", damping) : CLI_OK;
}

static int take_step(run *r, double lr, double before, int64_t *correct) {
  const double t0 = ng_now_ms();
  int rc = set_scheduled_options(r);
  const bool several = r->ranks.size > 1;
  for (int64_t i = 0; i < r->s->acc_iters && rc == CLI_OK && (several || !r->out->diverged); i++)
    rc = run_micro_batch(r, i, correct);
  if (r->s->acc_iters > 1) r->loss /= (double)r->s->acc_iters;
  const double t1 = ng_now_ms();
  if (rc == CLI_OK) rc = agree_on_step(r, correct);
  if (rc == CLI_OK && (several || !r->out->diverged)) rc = grads_end(&r->grads);
  if (several) r->own_ms[RUN_SUM] += ng_now_ms() - t1;
  if (rc == CLI_OK && r->out->diverged) return precond_drop_observations(r->p);
  precond_outcome outcome = {false, false, false};
  if (rc == CLI_OK) rc = set_damping_by_lr(r, lr);
  if (rc == CLI_OK) rc = precond_step(r->p, lr, recipe_get_momentum(r->s, lr, before), &outcome);
  if (rc == CLI_OK && !outcome.skipped) recipe_rescale_weights(r->s, r->net);
  r->state.skipped += outcome.skipped;
  r->state.skipped_in_a_row = outcome.skipped ? r->state.skipped_in_a_row + 1 : 0;
  if (rc == CLI_OK && r->state.skipped_in_a_row >= MOST_SKIPPED) {
    r->out->diverged = true;
    (void)snprintf(r->out->reason, sizeof r->out->reason,
                   "the gradient of each of the last %d steps is not finite", MOST_SKIPPED);
  }
  r->state.rescued += outcome.rescued;
  r->state.unobserved += outcome.unobserved;
  r->step_ms += ng_now_ms() - t0;
  return rc;
}

int run_step(run *r, double lr, double before, int64_t *correct) {
  r->ranks.count = &r->in_steps;
  const int rc = take_step(r, lr, before, correct);
  r->ranks.count = NULL;
  return rc;
}
