/* loop.c: run the steps of a training run, with log, tests, checkpoints and progress.
 *
 * The order is always: step; "step" line; at the end of an epoch, test and "epoch" line; checkpoint. A checkpoint has
 * the length of the log when it was written, so a resumed run removes the later lines and writes them again. */
#include "clock.h"
#include "disk.h"
#include "run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- times -----------------------------------------------------------------------------------*/

static const char *const station_name[RUN_STATIONS] = {"data", "forward", "backward", "observe",
                                                       "reduce"};

/* Set the times of all stations. "reduce" has all messages with losses and gradients, also those during backward. */
static int collect_stations(const run *r, train_station t[TRAIN_STATIONS]) {
  const int own = r->ranks.size > 1 ? RUN_STATIONS : RUN_SUM;
  for (int i = 0; i < own; i++) {
    t[i] = (train_station){.ms = r->own_ms[i]};
    (void)snprintf(t[i].name, sizeof t[i].name, "%s", station_name[i]);
  }
  t[RUN_SUM].wait_ms = r->in_steps.meter.wait_ms;
  t[RUN_SUM].bytes = (double)r->in_steps.bytes;
  t[RUN_SUM].messages = (double)r->in_steps.messages;
  return own + precond_read_stations(r->p, t + own, TRAIN_STATIONS - own);
}

log_times run_sum_times(run *r) {
  train_station *t = r->out->station;
  const int n = collect_stations(r, t);
  for (int i = 0; i < n; i++) {
    for (int k = 0; k < r->before.stations; k++) {
      const train_station *b = &r->before.station[k];
      if (strcmp(t[i].name, b->name) == 0) t[i].ms += b->ms;
    }
  }
  r->out->stations = n;
  return (log_times){t, n, r->state.step};
}

static int gather_traffic(run *r) {
  const ng_report of = precond_read_report(r->p);
  traffic_rank mine = {.sent_ms = of.sent_ms + r->in_steps.meter.sent_ms,
                       .hidden_ms = of.hidden_ms + ng_meter_hidden(&r->in_steps.meter)};
  const int n = collect_stations(r, mine.station);
  const double steps = (double)(r->state.step - r->out->first);
  return traffic_gather(&r->ranks, &mine, n, steps, &r->out->traffic);
}

static double sum_seconds(const run *r) { return r->seconds_before + r->step_ms * 1e-3; }

/* ---- end of an epoch --------------------------------------------------------------------------*/

/* Test the network. Each rank tests its share of the samples. */
static int test_network(run *r, double *loss, double *accuracy) {
  const run_ranks *k = &r->ranks;
  const int32_t first = (int32_t)ranks_find_first(k, k->rank, r->feed.test->n);
  const int32_t n = (int32_t)ranks_find_first(k, k->rank + 1, r->feed.test->n);
  double x[4] = {0.0}; /* sum of losses; correct samples; samples; failed ranks */
  *loss = *accuracy = (double)NAN;
  int rc = run_average_buffers(r);
  if (rc == CLI_OK) rc = feed_evaluate(&r->feed, r->net, r->reconstructs, first, n, x);
  x[3] = rc != CLI_OK;
  if (ranks_sum(k, x, 4) != CLI_OK || x[3] > 0.0) return CLI_BAD;
  const int64_t all = (int64_t)x[2];
  /* A loss that is not finite means that the last step made weights non-finite. */
  r->out->diverged = all > 0 && !isfinite(x[0]);
  if (all > 0 && !r->out->diverged) {
    *loss = x[0] / (double)all;
    *accuracy = run_get_accuracy(r, (int64_t)x[1], all);
  }
  return CLI_OK;
}

static int finish_epoch(run *r, double lr) {
  train_epoch e = {.epoch = (r->state.step - 1) / r->feed.per_epoch + 1,
                   .step = r->state.step,
                   .lr = lr,
                   .train_loss = r->state.loss_sum / (double)r->state.summed,
                   .train_accuracy = run_get_accuracy(
                       r, r->state.correct, r->state.summed * settings_count_samples(r->s)),
                   .seconds = sum_seconds(r)};
  const int rc = test_network(r, &e.test_loss, &e.test_accuracy);
  if (rc != CLI_OK) return rc;
  r->out->epoch = cli_append_zeroed(r->out->epoch, (size_t)r->out->epochs, sizeof e);
  r->out->epoch[r->out->epochs++] = e;
  const double took = sum_seconds(r) - r->seconds_before;
  const double speed =
      (double)((r->state.step - r->progress.first) * settings_count_samples(r->s)) / took;
  progress_print_epoch(&r->progress, &e, speed);
  const log_times t = run_sum_times(r);
  if (r->state.step % r->feed.per_epoch == 0) {
    r->state.loss_sum = 0.0;
    r->state.summed = r->state.correct = 0;
  }
  return log_write_epoch(r->log, &e, &t);
}

/* ---- checkpoints ---------------------------------------------------------------------------------*/

/* Return true if the run has diverged although all numbers are finite: the mean loss since the last checkpoint is far
 * above the loss of the first step. A step computes its loss before its update, so the last update is not judged. */
static bool is_loss_too_large(const run *r) {
  const double limit = TRAIN_FAR * fmax(1.0, r->state.first_loss);
  return r->steps_since > 0 && r->loss_since / (double)r->steps_since > limit;
}

/* Save a checkpoint. If the run has diverged, do not replace the last checkpoint. */
static int save_checkpoint(run *r) {
  if (is_loss_too_large(r)) {
    /* all ranks have the same loss, so all ranks take the same decision */
    r->out->diverged = true;
    (void)snprintf(
        r->out->reason, sizeof r->out->reason,
        "the mean loss since the last checkpoint, %.3g, is above %d times the first loss",
        r->loss_since / (double)r->steps_since, TRAIN_FAR);
    return CLI_OK;
  }
  if (run_average_buffers(r) != CLI_OK) return CLI_BAD;
  const char *name = checkpoint_find_nonfinite(r->net); /* all ranks have the same weights */
  if (name != NULL) {
    r->out->diverged = true;
    (void)snprintf(r->out->reason, sizeof r->out->reason, "%s is not finite", name);
    return CLI_OK;
  }
  const log_times t = run_sum_times(r);
  run_state *s = &r->state;
  uint32_t log_crc;
  int rc = log_flush(r->log, &s->log_bytes, &log_crc); /* only rank 0 has a log */
  s->log_crc = log_crc;
  s->seconds = sum_seconds(r);
  s->stations = t.stations;
  memcpy(s->station, t.station, sizeof s->station);
  const checkpoint c = run_get_checkpoint(r);
  if (rc == CLI_OK)
    rc = checkpoint_save(&c, r->config, r->s->checkpoint_parts && r->ranks.size > 1);
  if (rc != CLI_OK) return rc;
  r->requests_served = train_count_requests(); /* this checkpoint serves all requests so far */
  r->out->saved_step = s->step;
  r->loss_since = 0.0;
  r->steps_since = 0;
  return CLI_OK;
}

/* Save the checkpoint that SIGUSR1 requested, on any rank. */
static int save_requested(run *r) {
  int rc = CLI_OK;
  if (r->s->out[0] != 0 && r->out->saved_step != r->state.step) rc = save_checkpoint(r);
  r->requests_served = train_count_requests();
  if (rc != CLI_OK || r->out->diverged || r->ranks.rank > 0) return rc;
  progress_erase_bar(&r->progress); /* erase the bar before the message */
  if (r->s->out[0] != 0)
    cli_note("SIGUSR1: the checkpoint of step %lld is in %s", (long long)r->out->saved_step,
             r->s->out);
  else
    cli_note("SIGUSR1: no checkpoint without --out");
  return CLI_OK;
}

static bool is_due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

/* Log, test and save as necessary after a step. */
static int finish_step(run *r, double lr, int64_t correct) {
  r->state.step++;
  if (r->state.first_loss == 0.0) r->state.first_loss = r->loss;
  r->loss_since += r->loss;
  r->steps_since++;
  r->state.loss_sum += r->loss;
  r->state.summed++;
  r->state.correct += correct;
  const int64_t step = r->state.step;
  average_add_weights(&r->mean, r->net, step);
  const bool closes = step % r->feed.per_epoch == 0 || step == r->total;
  int rc = CLI_OK;
  progress_draw_bar(
      &r->progress, step, r->state.loss_sum / (double)r->state.summed,
      run_get_accuracy(r, r->state.correct, r->state.summed * settings_count_samples(r->s)));
  if (is_due(step, r->s->log_every)) {
    const log_times t = run_sum_times(r);
    const int64_t samples = settings_count_samples(r->s);
    train_number x[3 + PRECOND_NUMBERS] = {
        {"lr", lr},
        {"train_loss", r->loss},
        {"train_accuracy", run_get_accuracy(r, correct, samples)}};
    const int n = 3 + precond_read_numbers(r->p, x + 3);
    rc = log_write_step(r->log, step, (step - 1) / r->feed.per_epoch + 1, x, n, &t);
  }
  if (rc == CLI_OK && closes) rc = finish_epoch(r, lr);
  const bool keep = r->s->out[0] != 0 && !r->out->diverged;
  if (rc == CLI_OK && keep && is_due(step, r->s->checkpoint_every)) rc = save_checkpoint(r);
  if (rc == CLI_OK && r->checkpoint_requested && !r->out->diverged) rc = save_requested(r);
  return rc;
}

static double get_step_lr(const run *r, int64_t step) {
  const double per_epoch = (double)r->feed.per_epoch, at = fmax((double)step, 0.0);
  const double lr = recipe_get_lr(r->s, at / per_epoch, (double)r->total / per_epoch);
  return average_select_lr(r->s, &r->mean, step, lr);
}

static int take_steps(run *r) {
  while (r->state.step < r->total) {
    const double lr = get_step_lr(r, r->state.step), before = get_step_lr(r, r->state.step - 1);
    int64_t correct = 0;
    int rc = run_step(r, lr, before, &correct);
    if (rc != CLI_OK || r->out->diverged) return rc;
    rc = finish_step(r, lr, correct);
    if (rc != CLI_OK || r->out->diverged) return rc;
    r->out->output_failed = r->progress.output.lines && ferror(stdout) != 0;
    const bool stop =
        r->ranks.size > 1 ? r->stop_requested : train_is_interrupted() || r->out->output_failed;
    if (stop && r->state.step < r->total) {
      r->out->stopped = true;
      return CLI_OK;
    }
  }
  return CLI_OK;
}

/* Replace the weights by their mean, recompute the running statistics of norms, test the network and write it. This
 * happens after the last checkpoint, and no training follows. */
static int test_average(run *r) {
  const int64_t batches = r->feed.per_epoch * r->s->acc_iters;
  const int64_t first = (r->state.step - 1) / r->feed.per_epoch * r->feed.per_epoch;
  train_result *out = r->out;
  int rc = CLI_OK;
  average_copy_to_network(&r->mean, r->net);
  for (int64_t i = 0; i < batches && nn_count_buffers(r->net) > 0 && rc == CLI_OK; i++) {
    const int64_t step = i / r->s->acc_iters, micro = i % r->s->acc_iters;
    rc = feed_fill_train(&r->feed, first + step, micro);
    nn_set_norm_decay(r->net, (double)i / (double)(i + 1));
    if (rc == CLI_OK)
      rc = nn_forward(r->net, NN_TRAIN, r->feed.x, r->feed.batch, (uint64_t)i, NULL);
  }
  rc = ranks_combine_status(&r->ranks, rc);
  if (rc == CLI_OK) rc = test_network(r, &out->average_loss, &out->average_accuracy);
  out->averaged = r->mean.count;
  /* test() has set this flag for the averaged network, not for the trained one */
  out->diverged = false;
  if (rc != CLI_OK || r->s->out[0] == 0 || r->ranks.rank > 0) return rc;
  char *path = cli_join(r->s->out, CHECKPOINT_AVERAGE);
  rc = disk_check_regular(path);
  if (rc == CLI_OK) rc = checkpoint_write_model(path, r->net, &r->state);
  free(path);
  return rc;
}

static int finish_run(run *r) {
  int rc = CLI_OK;
  /* A run that has diverged saves no last checkpoint, so the earlier checkpoint stays. */
  if (r->s->out[0] != 0 && !r->out->diverged && r->out->saved_step != r->state.step)
    rc = save_checkpoint(r);
  if (rc == CLI_OK && !r->out->diverged && !r->out->stopped && r->mean.count > 0)
    rc = ranks_combine_status(&r->ranks, test_average(r));
  train_epoch last = {.epoch = r->state.step / r->feed.per_epoch,
                      .train_loss = r->loss,
                      .test_accuracy = (double)NAN};
  if (r->out->epochs > 0) last = r->out->epoch[r->out->epochs - 1];
  if (r->out->diverged) last.train_loss = r->loss;
  last.seconds = sum_seconds(r);
  if (r->out->reason[0] == 0)
    (void)snprintf(r->out->reason, sizeof r->out->reason, "the loss is not finite");
  r->out->steps = r->state.step;
  r->out->skipped = r->state.skipped;
  r->out->rescued = r->state.rescued;
  r->out->unobserved = r->state.unobserved;
  r->out->network_bytes = nn_count_bytes(r->net);
  r->out->precond_bytes = precond_count_bytes(r->p);
  r->out->kinds = precond_read_refreshes(r->p, r->out->kind);
  if (rc == CLI_OK) rc = gather_traffic(r);
  const log_times t = run_sum_times(r);
  const char *why = r->out->diverged ? "diverged" : r->out->stopped ? "stopped" : "done";
  if (rc == CLI_OK) rc = log_write_end(r->log, why, &last, r->out, &t, r->config);
  return rc;
}

int train_run(const settings *s, const data_set *d, const train_output *output, train_result *out) {
  return train_run_rank(NULL, s, d, output, out);
}

int train_run_rank(const ng_transport *t, const settings *s, const data_set *d,
                   const train_output *output, train_result *out) {
  memset(out, 0, sizeof *out);
  run r;
  settings decided = *s; /* a shallow copy that shares its texts with *s, so only *s is freed */
  decided.lr = settings_choose_lr(s);
  memset(&r, 0, sizeof r);
  r.s = &decided;
  r.d = d;
  r.out = out;
  r.loss = (double)NAN;
  r.lock = -1;
  out->saved_step = -1;
  checkpoint_init(&r.state);
  checkpoint_init(&r.before);
  r.ranks = ranks_from_transport(t);
  int rc = run_set_up(&r);
  if (rc == CLI_OK) {
    out->first = r.state.step;
    progress_start(&r.progress, output, r.state.step, r.total, r.feed.per_epoch,
                   settings_count_samples(s));
    rc = take_steps(&r);
    progress_erase_bar(&r.progress);
    if (rc == CLI_OK) rc = finish_run(&r);
  }
  if (rc == CLI_OK) rc = log_close(&r.log);
  log_close_quietly(&r.log);
  if (rc != CLI_OK) ranks_abort(&r.ranks);
  if (r.lock >= 0) (void)close(r.lock);
  precond_destroy(&r.p);
  feed_free(&r.feed);
  grads_free(&r.grads);
  average_free(&r.mean);
  free(r.config);
  nn_destroy(&r.net);
  ng_pool_destroy(r.pool);
  if (rc != CLI_OK) train_result_free(out);
  return rc;
}

void train_result_free(train_result *r) {
  free(r->epoch);
  r->epoch = NULL;
  r->epochs = 0;
  traffic_free(&r->traffic);
}
