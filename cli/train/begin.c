/* begin.c: set up a run and its directory, for a new or a resumed run.
 *
 * In: settings, data, ranks. Out: a run that can take its next step. If the run is resumed, rank 0 reads the files and
 * sends their contents to the other ranks. */
#include "checkpoint_file.h"
#include "disk.h"
#include "launch.h"
#include "nn/models.h"
#include "run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Without NG_THREADS, the ranks of one machine divide its processors among them. */
static int create_pool(const run_ranks *ranks, ng_pool **out) {
  int threads = 1;
  const char *given = getenv("NG_THREADS");
  if (cli_read_thread_count(&threads) != CLI_OK) return CLI_BAD;
  if ((given == NULL || given[0] == 0) && ranks->size > 1)
    threads /= launch_count_local_ranks(ranks->size);
  if (threads < 2) return CLI_OK;
  *out = ng_pool_create(threads, NULL);
  return *out != NULL ? CLI_OK : cli_fail("no memory for %d threads", threads);
}

int train_build_network(const settings *s, const data_set *d, ng_pool *pool, nn **net,
                        bool *reconstructs) {
  const model_task task = {.input = {d->height, d->width, d->channels},
                           .classes = d->classes,
                           .is_text = d->context > 0,
                           .label_smoothing = s->label_smoothing,
                           .dropout = s->dropout};
  *net = nn_create(pool, (uint64_t)s->seed);
  return model_build(s->model, &task, *net, reconstructs);
}

static int build_network(run *r) {
  if (train_build_network(r->s, r->d, r->pool, &r->net, &r->reconstructs) != CLI_OK) return CLI_BAD;
  if (r->reconstructs && r->s->label_smoothing > 0.0)
    return cli_fail("--label-smoothing: model %s has no labels", r->s->model);
  const int64_t least = nn_find_smallest_batch(r->net);
  if (r->s->batch / r->ranks.size < least)
    return cli_fail("--batch: model %s normalises over a batch%s, expected at least %lld",
                    r->s->model, least > 1 ? " of single pixels" : " on each rank",
                    (long long)least * r->ranks.size);
  return CLI_OK;
}

static int64_t count_steps(const settings *s, int64_t per_epoch) {
  const double wanted = s->epochs * (double)per_epoch;
  return s->steps > 0 ? s->steps : (int64_t)llround(fmax(1.0, wanted));
}

/* Write config.json, unless the file already has this text. */
static int write_config(run *r, const char *path) {
  char *was = NULL;
  int rc = settings_write_json(r->s, path, &r->config);
  if (rc == CLI_OK && disk_exists(path)) rc = disk_read_text(path, &was);
  if (rc == CLI_OK && (was == NULL || strcmp(was, r->config) != 0))
    rc = disk_write_file(path, r->config, strlen(r->config));
  free(was);
  return rc;
}

static int write_config_and_log(run *r, const char *config, const char *log) {
  const int rc = write_config(r, config);
  return rc == CLI_OK ? log_create(log, &r->log) : rc;
}

/* Create the directory and the files of a new run. */
static int create_folder(run *r, const char *config, const char *log) {
  int64_t step = -1;
  if (disk_make_folder(r->s->out) != CLI_OK) return CLI_BAD;
  if (disk_lock_folder(r->s->out, "train", &r->lock) != CLI_OK) return CLI_BAD;
  if (disk_exists(config) || disk_exists(log))
    return cli_fail("--out: %s already has a run; --resume continues it", r->s->out);
  const int rc = checkpoint_find(r->s->out, &step, NULL);
  return rc == CLI_OK ? write_config_and_log(r, config, log) : rc;
}

/* Check that the resumed run has the data of the checkpoint, and does not end before it. */
static int check_data_and_length(const run *r, int64_t data) {
  const run_state *was = &r->state;
  if (was->data_crc != data)
    return cli_fail("--data: %s has other samples than the run in %s began with", r->s->data,
                    r->s->out);
  if (was->per_epoch != r->feed.per_epoch)
    return cli_fail("--data: %s has %lld steps an epoch, the run in %s began with %lld", r->s->data,
                    (long long)r->feed.per_epoch, r->s->out, (long long)was->per_epoch);
  if (was->step > r->total)
    return cli_fail("--%s: the run in %s has taken %lld steps, expected at least as many, not %lld",
                    r->s->steps > 0 ? "steps" : "epochs", r->s->out, (long long)was->step,
                    (long long)r->total);
  return CLI_OK;
}

/* Report changes that --resume allows although they change results: another build, machine or length of the run. */
static void report_changes(const run *r, const settings *was) {
  char differs[1024];
  run_state now;
  checkpoint_init(&now);
  checkpoint_set_maker(&now);
  checkpoint_list_changes(&r->before, &now, differs, sizeof differs);
  if (differs[0] != 0)
    cli_note("--resume: %s: build or machine differ (%s), so the last bits of results may differ",
             r->s->out, differs);
  const double per_epoch = (double)r->feed.per_epoch, at = (double)r->state.step / per_epoch;
  const double then =
      recipe_get_lr(was, at, (double)count_steps(was, r->feed.per_epoch) / per_epoch);
  const double next = recipe_get_lr(r->s, at, (double)r->total / per_epoch);
  if (r->state.step < r->total && next != then)
    cli_note("--%s: another length of the run changes the schedule %s: after step %lld lr is %.4g "
             "instead of %.4g",
             r->s->steps > 0 ? "steps" : "epochs", r->s->lr_schedule, (long long)r->state.step,
             next, then);
}

checkpoint run_get_checkpoint(run *r) {
  return (checkpoint){r->s->out, &r->ranks, r->net, &r->feed, &r->mean, r->p, &r->state};
}

/* Send weights and counters from rank 0 to all ranks. The library has already distributed its own state. */
static int broadcast_loaded(run *r) {
  int rc = CLI_OK;
  if (r->ranks.size == 1) return rc;
  for (int i = 0; i < nn_count_params(r->net) + nn_count_buffers(r->net) && rc == CLI_OK; i++) {
    const ngio_tensor t = file_get_tensor(r->net, i);
    rc = ranks_broadcast(&r->ranks, (void *)(uintptr_t)t.data, t.bytes);
  }
  if (rc == CLI_OK) rc = average_broadcast(&r->mean, &r->ranks);
  return rc == CLI_OK ? ranks_broadcast(&r->ranks, &r->state, sizeof r->state) : rc;
}

/* On ranks other than 0: receive the resumed run from rank 0, and load this rank's part of the library's state. */
static int receive_resumed_run(run *r) {
  int64_t step = -1;
  if (!r->s->resume) return CLI_OK;
  int rc = ranks_broadcast(&r->ranks, &step, sizeof step);
  if (rc != CLI_OK || step < 0) return rc;
  const checkpoint c = run_get_checkpoint(r);
  rc = checkpoint_load(&c, step);
  if (rc == CLI_OK) rc = broadcast_loaded(r);
  r->out->saved_step = r->state.step;
  return rc;
}

int run_average_buffers(run *r) {
  int rc = CLI_OK;
  for (int i = 0; i < nn_count_buffers(r->net) && r->ranks.size > 1 && rc == CLI_OK; i++) {
    const nn_buffer *b = nn_get_buffer(r->net, i);
    rc = ranks_sum_floats(&r->ranks, b->value, b->count);
    for (int64_t k = 0; k < b->count; k++)
      b->value[k] /= (float)r->ranks.size;
  }
  return rc;
}

/* Resume a run that has no checkpoint yet: begin again. All random numbers depend on the seed, so results are equal. */
static int restart_run(run *r, const char *config, const char *log) {
  bool ended = false;
  int rc = log_find_end(log, &ended);
  if (rc == CLI_OK && ended)
    rc = cli_fail("%s: has the end of the run, but %s has no checkpoint; restore the checkpoint, "
                  "or begin in another folder",
                  log, r->s->out);
  if (rc != CLI_OK) return rc;
  cli_note("--resume: %s has no checkpoint yet, the run begins again", r->s->out);
  checkpoint_remove_leftovers(r->s->out, -1);
  int64_t none = -1;
  rc = ranks_broadcast(&r->ranks, &none, sizeof none);
  return rc == CLI_OK ? write_config_and_log(r, config, log) : rc;
}

/* Resume a run from the checkpoint of `step`. */
static int continue_run(run *r, int64_t step, const char *config, const char *log,
                        const settings *was) {
  const int64_t data = r->state.data_crc;
  const checkpoint c = run_get_checkpoint(r);
  /* receive_resumed_run receives this number */
  int rc = ranks_broadcast(&r->ranks, &step, sizeof step);
  if (rc == CLI_OK) rc = checkpoint_load(&c, step);
  if (rc == CLI_OK) rc = broadcast_loaded(r);
  if (rc == CLI_OK) rc = check_data_and_length(r, data);
  const run_state *s = &r->state;
  if (rc == CLI_OK) rc = log_read_epochs(log, s->log_bytes, &r->out->epoch, &r->out->epochs);
  r->out->saved_step = s->step;
  r->seconds_before = s->seconds;
  r->before = *s;
  const log_times t = run_sum_times(r);
  if (rc == CLI_OK) rc = log_reopen(log, s->log_bytes, &t, &r->log);
  if (rc == CLI_OK) checkpoint_remove_leftovers(r->s->out, step);
  if (rc == CLI_OK) rc = write_config(r, config);
  if (rc == CLI_OK) report_changes(r, was);
  return rc;
}

/* Resume a run. All files are checked before a file in the directory changes. */
static int resume_run(run *r, const char *config, const char *log) {
  settings was;
  int64_t step = -1;
  if (disk_lock_folder(r->s->out, "train", &r->lock) != CLI_OK) return CLI_BAD;
  settings_init(&was);
  int rc = checkpoint_find(r->s->out, &step, &was);
  if (rc == CLI_OK && step < 0) rc = disk_check_regular(config);
  if (rc == CLI_OK && step < 0)
    rc = disk_exists(config) ? settings_read_file(&was, config)
                             : cli_fail("--resume: %s has no run", r->s->out);
  char *where = step >= 0 ? checkpoint_path(r->s->out, step) : cli_copy_text(config);
  if (rc == CLI_OK) rc = settings_check_same(&was, r->s, NULL, where);
  if (rc == CLI_OK)
    rc = step >= 0 ? continue_run(r, step, config, log, &was) : restart_run(r, config, log);
  settings_free(&was);
  free(where);
  return rc;
}

int train_open_data(const settings *s, data_set *d) {
  int rc = data_open(s->data, d);
  if (rc != CLI_OK || s->validation == 0) return rc;
  rc = s->validation < d->train.n
           ? data_hold_out(d, (int32_t)s->validation, (uint64_t)s->seed)
           : cli_fail("--validation: %lld samples, but %s has %d to train on",
                      (long long)s->validation, d->name, (int)d->train.n);
  if (rc != CLI_OK) data_close(d);
  return rc;
}

int train_check_settings(const settings *s, const data_set *d) {
  run r;
  memset(&r, 0, sizeof r);
  r.s = s;
  r.d = d;
  r.ranks = ranks_from_transport(NULL);
  int rc = settings_check(s);
  if (rc == CLI_OK) rc = build_network(&r);
  if (rc == CLI_OK) rc = feed_create(s, d, NULL, r.reconstructs, NULL, &r.feed);
  feed_free(&r.feed);
  nn_destroy(&r.net);
  return rc;
}

/* The part of the set-up that needs no communication between ranks. */
static int set_up_rank(run *r) {
  const run_ranks *k = &r->ranks;
  const int64_t first = ranks_find_first(k, k->rank, r->s->batch);
  const int64_t batch = ranks_find_first(k, k->rank + 1, r->s->batch) - first;
  int rc = settings_check(r->s);
  if (rc == CLI_OK) rc = create_pool(k, &r->pool);
  if (rc == CLI_OK) rc = build_network(r);
  if (rc == CLI_OK) rc = feed_create(r->s, r->d, k, r->reconstructs, r->pool, &r->feed);
  r->total = count_steps(r->s, r->feed.per_epoch);
  if (rc == CLI_OK) rc = nn_prepare(r->net, r->feed.capacity);
  if (rc == CLI_OK) nn_set_first_sample(r->net, first);
  if (rc == CLI_OK) rc = average_create(r->s, r->net, r->feed.per_epoch, &r->mean);
  const double share = (double)batch / (double)r->s->batch;
  const double cap = r->s->bucket_mb * 1e6;
  return rc == CLI_OK ? grads_create(r->net, k, r->s->acc_iters, share, cap, &r->grads) : rc;
}

int run_set_up(run *r) {
  const run_ranks *k = &r->ranks;
  /* rank 0 first: if all ranks have the same error, rank 0 alone reports it */
  int rc = ranks_combine_status(k, k->rank == 0 ? set_up_rank(r) : CLI_OK);
  if (rc == CLI_OK) rc = ranks_combine_status(k, k->rank > 0 ? set_up_rank(r) : CLI_OK);
  if (rc == CLI_OK) rc = precond_create(r->s, k->t, r->net, r->pool, &r->p);
  schedule_read_base(r->s, r->base);
  for (int i = 0; i < SCHEDULED; i++)
    r->current[i] = (double)NAN; /* NaN: the value is not yet set in the library */
  r->state.per_epoch = r->feed.per_epoch;
  if (rc != CLI_OK || r->s->out[0] == 0) return rc;
  if (k->rank > 0) return ranks_combine_status(k, receive_resumed_run(r));
  r->state.data_crc = data_compute_crc(r->d);
  char *config = cli_join(r->s->out, "config.json"), *log = cli_join(r->s->out, "log.jsonl");
  if (r->mean.mean != NULL) rc = checkpoint_check_average(r->s->out, r->s->resume);
  if (rc == CLI_OK) rc = r->s->resume ? resume_run(r, config, log) : create_folder(r, config, log);
  free(config);
  free(log);
  return rc == CLI_OK ? ranks_combine_status(k, rc) : rc;
}
