/* loop.c: a training run: settings and data go in, steps are taken, a result comes out; on the way
 * the log is written, checkpoints are made, and somebody may be told how it goes.
 *
 * A step, and what is said and kept after it, always come in the same order: step, "step" line,
 * (end of an epoch: test, "epoch" line), checkpoint.  So a checkpoint knows how much of the log
 * belongs to it, and what comes after it can be written again. */
#include "train.h"
#include "checkpoint.h"
#include "clock.h"
#include "disk.h"
#include "feed.h"
#include "log.h"
#include "lr.h"
#include "nn/models.h"
#include "precond.h"
#include "progress.h"
#include "recipe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DATA, FORWARD, BACKWARD, OBSERVE, OWN }; /* our own stations */

typedef struct run {
  const settings *s;
  const data_set *d;
  ng_pool *pool;
  nn *net;
  bool reconstructs; /* the target is the input, and there is no accuracy */
  precond *p;
  feed feed;
  run_log *log;
  int lock; /* of the folder; -1: none */
  progress progress;
  run_state state;
  int64_t total;               /* steps of the run */
  double own_ms[OWN], step_ms; /* of this process; step_ms: all of a step */
  double seconds_before;
  manifest before; /* of the checkpoint that was resumed, with its totals */
  grad_sum grads;  /* of a step's micro-batches */
  double damping;  /* the library's option */
  double loss;     /* of the last step */
  train_result *out;
} run;

/* ---- times -----------------------------------------------------------------------------------*/

/* Totals of all stations, with those of the run before it was resumed. */
static log_times gather(run *r) {
  static const char *const own[OWN] = {"data", "forward", "backward", "observe"};
  train_station *t = r->out->station;
  for (int i = 0; i < OWN; i++) {
    (void)snprintf(t[i].name, sizeof t[i].name, "%s", own[i]);
    t[i].total_ms = r->own_ms[i];
  }
  const int n = OWN + precond_stations(r->p, t + OWN, TRAIN_STATIONS - OWN);
  for (int i = 0; i < n; i++) {
    for (int k = 0; k < r->before.stations; k++) {
      const train_station *b = &r->before.station[k];
      if (strcmp(t[i].name, b->name) == 0) t[i].total_ms += b->total_ms;
    }
  }
  r->out->stations = n;
  return (log_times){t, n, r->state.step};
}

static double seconds(const run *r) { return r->seconds_before + r->step_ms * 1e-3; }

/* ---- one step --------------------------------------------------------------------------------*/

static double loss_of(run *r, nn_mode mode, int64_t *correct) {
  const float *targets = r->reconstructs    ? r->feed.x
                         : mode == NN_TRAIN ? r->feed.mix.targets
                                            : NULL;
  return nn_loss(r->net, mode, r->reconstructs ? NULL : r->feed.labels, targets, correct);
}

static double share(const run *r, int64_t correct, int64_t of) {
  return r->reconstructs || of == 0 ? (double)NAN : (double)correct / (double)of;
}

/* A number for what is drawn anew in every batch. */
static uint64_t batch_number(const run *r, int64_t micro) {
  return (uint64_t)(r->state.step * r->s->acc_iters + micro);
}

/* Backward with the library watching: by the labels of the batch, or, for the true Fisher matrix,
 * by drawn ones first; the gradients are always those of the batch. */
static int backward(run *r, bool wants, int64_t micro, double *loss, int64_t *correct) {
  const nn_watch *watch = wants ? precond_watch(r->p) : NULL;
  int rc = CLI_OK;
  if (wants && strcmp(r->s->fisher, "sampled") == 0) {
    nn_sampled_loss(r->net, batch_number(r, micro));
    rc = nn_backward(r->net, false, watch);
    watch = NULL;
  }
  *loss = loss_of(r, NN_TRAIN, correct);
  r->out->diverged = !isfinite(*loss);
  return rc == CLI_OK && !r->out->diverged ? nn_backward(r->net, true, watch) : rc;
}

/* One of a step's batches: its loss, and its gradient added to theirs. */
static int one_batch(run *r, int64_t micro, bool *wanted, int64_t *correct) {
  const double t0 = ng_now_ms(), seen = precond_observe_ms(r->p);
  int rc = feed_train(&r->feed, r->state.step, micro);
  const double t1 = ng_now_ms();
  double loss = 0.0;
  int64_t right = 0;
  bool wants = false;
  if (rc == CLI_OK) rc = precond_begin(r->p, r->s->batch, &wants);
  if (rc == CLI_OK) {
    rc = nn_forward(r->net, NN_TRAIN, r->feed.x, r->s->batch, batch_number(r, micro),
                    wants ? precond_watch(r->p) : NULL);
  }
  const double t2 = ng_now_ms(), seen_forward = precond_observe_ms(r->p);
  if (rc == CLI_OK) rc = backward(r, wants, micro, &loss, &right);
  if (rc == CLI_OK && !r->out->diverged) grad_sum_add(&r->grads, r->net, micro);
  const double t3 = ng_now_ms(), seen_all = precond_observe_ms(r->p);
  *wanted = *wanted || wants;
  *correct += right;
  r->loss = micro == 0 ? loss : r->loss + loss;
  r->own_ms[DATA] += t1 - t0;
  r->own_ms[FORWARD] += t2 - t1 - (seen_forward - seen);
  r->own_ms[BACKWARD] += t3 - t2 - (seen_all - seen_forward);
  r->own_ms[OBSERVE] += seen_all - seen;
  return rc;
}

/* The library leaves a step out whose result would not be finite.  One may be an accident; so many in a
 * row have nowhere to go. */
enum { MOST_SKIPPED = 4 };

static int one_step(run *r, double lr, double before, int64_t *correct) {
  const double t0 = ng_now_ms();
  bool wanted = false;
  int rc = CLI_OK;
  for (int64_t i = 0; i < r->s->acc_iters && rc == CLI_OK && !r->out->diverged; i++)
    rc = one_batch(r, i, &wanted, correct);
  if (r->s->acc_iters > 1) r->loss /= (double)r->s->acc_iters;
  if (rc == CLI_OK && r->out->diverged) return wanted ? precond_forget(r->p) : CLI_OK;
  unsigned outcome = 0;
  grad_sum_end(&r->grads, r->net);
  precond_momentum(r->p, recipe_momentum(r->s, lr, before));
  if (rc == CLI_OK && r->s->damping_start > 0.0)
    rc = precond_damping(r->p, recipe_damping(r->s, r->damping, r->state.step, r->feed.per_epoch));
  if (rc == CLI_OK) rc = precond_step(r->p, lr, &outcome);
  if (rc == CLI_OK && (outcome & PRECOND_SKIPPED) == 0) recipe_rescale(r->s, r->net);
  const bool skipped = (outcome & PRECOND_SKIPPED) != 0;
  r->state.skipped += skipped;
  r->state.in_a_row = skipped ? r->state.in_a_row + 1 : 0;
  if (rc == CLI_OK && r->state.in_a_row >= MOST_SKIPPED) {
    r->out->diverged = true;
    (void)snprintf(r->out->lost, sizeof r->out->lost, "all that the last %d steps would write",
                   MOST_SKIPPED);
  }
  r->state.rescued += (outcome & PRECOND_RESCUED) != 0;
  r->state.unobserved += (outcome & PRECOND_UNOBSERVED) != 0;
  r->step_ms += ng_now_ms() - t0;
  return rc;
}

/* ---- an epoch's end --------------------------------------------------------------------------*/

static int test(run *r, double *loss, double *accuracy) {
  const int32_t n = r->feed.test->n;
  double sum = 0.0;
  int64_t right = 0, all = 0;
  *loss = *accuracy = (double)NAN;
  for (int32_t at = 0, count, good; at < n; at += count) {
    count = n - at < r->feed.batch ? n - at : r->feed.batch;
    int rc = feed_test(&r->feed, at, count, &good);
    if (rc == CLI_OK && good > 0) rc = nn_forward(r->net, NN_EVALUATE, r->feed.x, good, 0, NULL);
    if (rc != CLI_OK) return rc;
    if (good == 0) continue;
    int64_t correct = 0;
    sum += loss_of(r, NN_EVALUATE, &correct) * (double)good;
    right += correct;
    all += good;
  }
  r->out->diverged = all > 0 && !isfinite(sum); /* weights may be lost in the last step */
  if (all > 0 && !r->out->diverged) {
    *loss = sum / (double)all;
    *accuracy = share(r, right, all);
  }
  return CLI_OK;
}

static int end_epoch(run *r, double lr) {
  train_epoch e = {.epoch = (r->state.step - 1) / r->feed.per_epoch + 1,
                   .step = r->state.step,
                   .lr = lr,
                   .train_loss = r->state.loss_sum / (double)r->state.summed,
                   .train_accuracy =
                       share(r, r->state.correct, r->state.summed * settings_samples(r->s)),
                   .seconds = seconds(r)};
  const int rc = test(r, &e.test_loss, &e.test_accuracy);
  if (rc != CLI_OK) return rc;
  train_epoch *all = cli_take((size_t)r->out->epochs + 1, sizeof *all);
  if (r->out->epochs > 0) memcpy(all, r->out->epoch, (size_t)r->out->epochs * sizeof *all);
  free(r->out->epoch);
  r->out->epoch = all;
  all[r->out->epochs++] = e;
  const double took = seconds(r) - r->seconds_before;
  const double speed =
      (double)((r->state.step - r->progress.first) * settings_samples(r->s)) / took;
  progress_epoch(&r->progress, &e, speed);
  const log_times t = gather(r);
  if (r->state.step % r->feed.per_epoch == 0) {
    r->state.loss_sum = 0.0;
    r->state.summed = r->state.correct = 0;
  }
  return log_write_epoch(r->log, &e, &t);
}

/* ---- keeping ---------------------------------------------------------------------------------*/

/* Weights that are lost never replace those of the checkpoint before: the run ends as diverged. */
static int save(run *r) {
  const char *lost = checkpoint_lost(r->net);
  if (lost != NULL) {
    r->out->diverged = true;
    (void)snprintf(r->out->lost, sizeof r->out->lost, "%s", lost);
    return CLI_OK;
  }
  const log_times t = gather(r);
  manifest *m = &r->state.files;
  int rc = log_sync(r->log, &m->log_bytes, &m->log);
  m->seconds = seconds(r);
  m->stations = t.stations;
  memcpy(m->station, t.station, sizeof m->station);
  if (rc == CLI_OK) rc = checkpoint_save(r->s->out, r->net, &r->feed.mix, r->p, &r->state);
  if (rc == CLI_OK) r->out->kept = r->state.step;
  return rc;
}

static bool due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

/* What comes after a step. */
static int after_step(run *r, double lr, int64_t correct) {
  r->state.step++;
  r->state.loss_sum += r->loss;
  r->state.summed++;
  r->state.correct += correct;
  const int64_t step = r->state.step;
  const bool closes = step % r->feed.per_epoch == 0 || step == r->total;
  int rc = CLI_OK;
  progress_step(&r->progress, step, r->state.loss_sum / (double)r->state.summed,
                share(r, r->state.correct, r->state.summed * settings_samples(r->s)));
  if (due(step, r->s->log_every)) {
    const log_times t = gather(r);
    const log_step line = {.step = step,
                           .epoch = (step - 1) / r->feed.per_epoch + 1,
                           .lr = lr,
                           .loss = r->loss,
                           .accuracy = share(r, correct, settings_samples(r->s)),
                           .clip = precond_clip(r->p)};
    rc = log_write_step(r->log, &line, &t);
  }
  if (rc == CLI_OK && closes) rc = end_epoch(r, lr);
  const bool keep = r->log != NULL && !r->out->diverged;
  if (rc == CLI_OK && keep && due(step, r->s->checkpoint_every)) rc = save(r);
  return rc;
}

static int steps(run *r) {
  const double per_epoch = (double)r->feed.per_epoch, epochs = (double)r->total / per_epoch;
  while (r->state.step < r->total) {
    const double at = (double)r->state.step;
    const double lr = lr_at(r->s, at / per_epoch, epochs);
    const double before = lr_at(r->s, fmax(at - 1.0, 0.0) / per_epoch, epochs);
    int64_t correct = 0;
    int rc = one_step(r, lr, before, &correct);
    if (rc != CLI_OK || r->out->diverged) return rc;
    rc = after_step(r, lr, correct);
    if (rc != CLI_OK || r->out->diverged) return rc;
    r->out->unheard = r->progress.show.lines && ferror(stdout) != 0;
    if ((train_interrupted() || r->out->unheard) && r->state.step < r->total) {
      r->out->stopped = true;
      return CLI_OK;
    }
  }
  return CLI_OK;
}

static int finish(run *r) {
  int rc = CLI_OK;
  /* A run that has lost its way is not kept: the checkpoint before it is worth more. */
  if (r->log != NULL && !r->out->diverged && r->out->kept != r->state.step) rc = save(r);
  train_epoch last = {.epoch = r->state.step / r->feed.per_epoch,
                      .train_loss = r->loss,
                      .test_accuracy = (double)NAN};
  if (r->out->epochs > 0) last = r->out->epoch[r->out->epochs - 1];
  if (r->out->diverged) last.train_loss = r->loss;
  last.seconds = seconds(r);
  r->out->steps = r->state.step;
  r->out->skipped = r->state.skipped;
  r->out->rescued = r->state.rescued;
  r->out->unobserved = r->state.unobserved;
  r->out->network_bytes = nn_bytes(r->net);
  r->out->precond_bytes = precond_bytes(r->p);
  const log_times t = gather(r);
  const char *why = r->out->diverged ? "diverged" : r->out->stopped ? "stopped" : "done";
  if (rc == CLI_OK) rc = log_write_end(r->log, why, &last, r->out, &t);
  return rc;
}

/* ---- beginning -------------------------------------------------------------------------------*/

static int make_pool(ng_pool **out) {
  int threads = 1;
  if (cli_threads(&threads) != CLI_OK) return CLI_BAD;
  if (threads < 2) return CLI_OK;
  *out = ng_pool_create(threads, NULL);
  return *out != NULL ? CLI_OK : cli_bad("no memory for %d threads", threads);
}

static int describe_net(run *r) {
  const model_task task = {.input = {r->d->height, r->d->width, r->d->channels},
                           .classes = r->d->classes,
                           .label_smoothing = r->s->label_smoothing,
                           .dropout = r->s->dropout};
  r->net = nn_create(r->pool, (uint64_t)r->s->seed);
  if (model_build(r->s->model, &task, r->net, &r->reconstructs) != CLI_OK) return CLI_BAD;
  if (r->reconstructs && r->s->label_smoothing > 0.0) {
    return cli_bad("--label-smoothing: model %s has no labels", r->s->model);
  }
  const int64_t least = nn_least_batch(r->net);
  if (r->s->batch < least) {
    return cli_bad("--batch: %s normalises over a batch, where one pixel is left: at least %lld",
                   r->s->model, (long long)least);
  }
  return precond_check(r->s, r->net);
}

static int64_t total_of(const settings *s, int64_t per_epoch) {
  const double wanted = s->epochs * (double)per_epoch;
  return s->steps > 0 ? s->steps : (int64_t)llround(fmax(1.0, wanted));
}

static int from_the_start(run *r, const char *config, const char *log) {
  char *text;
  size_t size;
  int rc = settings_text(r->s, config, &text, &size);
  if (rc == CLI_OK) rc = disk_write(config, text, size);
  if (rc == CLI_OK) {
    r->state.files.config = r->state.files.config_next = disk_crc(text, size);
    rc = log_create(log, &r->log);
  }
  free(text);
  return rc;
}

/* The folder of a run that begins. */
static int make_folder(run *r, const char *config, const char *log) {
  bool there = false;
  if (disk_folder(r->s->out) != CLI_OK) return CLI_BAD;
  if (disk_lock(r->s->out, "train", &r->lock) != CLI_OK) return CLI_BAD;
  if (disk_exists(config) || disk_exists(log)) {
    return cli_bad("--out: %s holds a run; --resume goes on with it", r->s->out);
  }
  const int rc = checkpoint_find(r->s->out, &there);
  return rc == CLI_OK ? from_the_start(r, config, log) : rc;
}

/* config.json as it is from now on: epochs may be more.  A kill in between leaves one of the two. */
static int renew_config(run *r, const char *config) {
  char *text;
  size_t size;
  int rc = settings_text(r->s, config, &text, &size);
  manifest *m = &r->state.files;
  const uint32_t crc = rc == CLI_OK ? disk_crc(text, size) : 0;
  if (rc == CLI_OK && (crc != m->config || crc != m->config_next)) {
    rc = checkpoint_config(r->s->out, &r->state, crc);
    if (rc == CLI_OK) rc = disk_write(config, text, size);
  }
  free(text);
  return rc;
}

static int fits(const run *r, int64_t data) {
  const run_state *was = &r->state;
  if (was->data_crc != data) {
    return cli_bad("--data: %s holds other samples than the run in %s began with", r->s->data,
                   r->s->out);
  }
  if (was->per_epoch != r->feed.per_epoch) {
    return cli_bad("--data: %s has %lld steps an epoch, the run in %s began with %lld", r->s->data,
                   (long long)r->feed.per_epoch, r->s->out, (long long)was->per_epoch);
  }
  if (was->step > r->total) {
    return cli_bad("--%s: the run in %s has taken %lld steps already, this asks for %lld",
                   r->s->steps > 0 ? "steps" : "epochs", r->s->out, (long long)was->step,
                   (long long)r->total);
  }
  return CLI_OK;
}

/* What is allowed, and changes the numbers to come. */
static void say_what_changes(const run *r, const settings *was) {
  char differs[1024];
  manifest now;
  manifest_init(&now);
  manifest_made_by(&now);
  manifest_differs(&r->before, &now, differs, sizeof differs);
  if (differs[0] != 0)
    cli_note("--resume: %s was left by %s; the last bits may differ", r->s->out, differs);
  const double per_epoch = (double)r->feed.per_epoch, at = (double)r->state.step / per_epoch;
  const double then = lr_at(was, at, (double)total_of(was, r->feed.per_epoch) / per_epoch);
  const double next = lr_at(r->s, at, (double)r->total / per_epoch);
  if (r->state.step < r->total && next != then) {
    cli_note("--%s: another length of the run changes the schedule %s: after step %lld lr is %.4g, "
             "it would have been %.4g",
             r->s->steps > 0 ? "steps" : "epochs", r->s->lr_schedule, (long long)r->state.step,
             next, then);
  }
}

/* The folder of a run that goes on.  Nothing in it changes before all of it is known to be good. */
static int open_folder(run *r, const char *config, const char *log) {
  settings was;
  bool there = false, ended = false;
  if (disk_lock(r->s->out, "train", &r->lock) != CLI_OK) return CLI_BAD;
  settings_init(&was);
  int rc = checkpoint_find(r->s->out, &there);
  if (rc == CLI_OK) rc = disk_regular(config);
  if (rc == CLI_OK) {
    rc = disk_exists(config) ? settings_read(&was, config)
                             : cli_bad("--resume: %s holds no run", r->s->out);
  }
  if (rc == CLI_OK) rc = settings_same(&was, r->s, config);
  const int64_t data = r->state.data_crc;
  if (rc == CLI_OK && !there) rc = log_ended(log, &ended);
  if (rc == CLI_OK && ended) {
    rc = cli_bad(
        "--resume: %s tells the end of the run, but %s/checkpoint holds none; put it back, or "
        "begin in another folder",
        log, r->s->out);
  }
  if (rc == CLI_OK && !there) { /* everything is a function of the seed */
    cli_note("--resume: %s was left before its first checkpoint, and begins again", r->s->out);
    rc = from_the_start(r, config, log);
  } else if (rc == CLI_OK) {
    rc = checkpoint_load(r->s->out, r->net, &r->feed.mix, r->p, &r->state);
    if (rc == CLI_OK) rc = fits(r, data);
    const manifest *m = &r->state.files;
    if (rc == CLI_OK) rc = log_epochs(log, m->log_bytes, &r->out->epoch, &r->out->epochs);
    r->out->kept = r->state.step;
    r->seconds_before = m->seconds;
    r->before = *m;
    const log_times t = gather(r);
    if (rc == CLI_OK) rc = log_reopen(log, m->log_bytes, m->log, &t, &r->log);
    if (rc == CLI_OK) checkpoint_tidy(r->s->out, m);
    if (rc == CLI_OK) rc = renew_config(r, config);
    if (rc == CLI_OK) say_what_changes(r, &was);
  }
  settings_free(&was);
  return rc;
}

int train_check(const settings *s, const data_set *d) {
  run r;
  memset(&r, 0, sizeof r);
  r.s = s;
  r.d = d;
  int rc = settings_check(s);
  if (rc == CLI_OK) rc = describe_net(&r);
  if (rc == CLI_OK) rc = feed_create(s, d, r.reconstructs, NULL, &r.feed);
  feed_free(&r.feed);
  nn_destroy(&r.net);
  return rc;
}

static int begin(run *r) {
  int rc = settings_check(r->s);
  if (rc == CLI_OK) rc = make_pool(&r->pool);
  if (rc == CLI_OK) rc = describe_net(r);
  if (rc == CLI_OK) rc = nn_ready(r->net, r->s->batch);
  if (rc == CLI_OK) rc = feed_create(r->s, r->d, r->reconstructs, r->pool, &r->feed);
  if (rc == CLI_OK) rc = precond_create(r->s, r->net, r->pool, &r->p);
  if (rc == CLI_OK) rc = grad_sum_create(r->net, r->s->acc_iters, &r->grads);
  r->damping = settings_damping(r->s);
  r->total = total_of(r->s, r->feed.per_epoch);
  r->state.per_epoch = r->feed.per_epoch;
  if (rc != CLI_OK || r->s->out[0] == 0) return rc;
  r->state.data_crc = data_checksum(r->d);
  char *config = cli_join(r->s->out, "config.json"), *log = cli_join(r->s->out, "log.jsonl");
  rc = r->s->resume ? open_folder(r, config, log) : make_folder(r, config, log);
  free(config);
  free(log);
  return rc;
}

int train_run(const settings *s, const data_set *d, const train_show *show, train_result *out) {
  memset(out, 0, sizeof *out);
  run r;
  settings decided = *s; /* only looked at */
  decided.lr = settings_lr(s);
  memset(&r, 0, sizeof r);
  r.s = &decided;
  r.d = d;
  r.out = out;
  r.loss = (double)NAN;
  r.lock = -1;
  out->kept = -1;
  checkpoint_init(&r.state);
  manifest_init(&r.before);
  int rc = begin(&r);
  if (rc == CLI_OK) {
    out->first = r.state.step;
    progress_begin(&r.progress, show, r.state.step, r.total, r.feed.per_epoch, settings_samples(s));
    rc = steps(&r);
    progress_end(&r.progress);
    if (rc == CLI_OK) rc = finish(&r);
  }
  if (rc == CLI_OK) rc = log_close(&r.log);
  log_drop(&r.log);
  if (r.lock >= 0) (void)close(r.lock);
  precond_destroy(&r.p);
  feed_free(&r.feed);
  grad_sum_free(&r.grads);
  nn_destroy(&r.net);
  ng_pool_destroy(r.pool);
  if (rc != CLI_OK) train_result_free(out);
  return rc;
}

void train_result_free(train_result *r) {
  free(r->epoch);
  r->epoch = NULL;
  r->epochs = 0;
}
