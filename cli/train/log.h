/* log.h: DIR/log.jsonl: one JSON object a line, each with "schema": 1 and
 *   "event": "step"   step, epoch, lr, train_loss, train_accuracy (of this batch), clip, cosine, angle,
 *                     rotation, stretch (precond.h; null for sgd and adamw without --quantify)
 *                     (and scaling_min, scaling_25, scaling_50, scaling_75, scaling_max, scaling_mean with
 *                     --quantify), ms
 *   "event": "epoch"  step, epoch, lr, train_loss, train_accuracy (means), test_loss,
 *                     test_accuracy, seconds, ms
 *   "event": "end"    step, epoch, why ("done", "stopped", "diverged"), train_loss, test_accuracy
 *                     (and averaged, average_test_loss, average_test_accuracy where weights are averaged),
 *                     skipped, rescued, unobserved, network_bytes, precond_bytes, seconds, ms
 *                     (and statistics where they are adaptive: of each kind refreshed, passed, bytes_sent,
 *                     bytes_passed; refreshed.h)
 *                     (and ranks where there are several: of each sent_ms, hidden_ms and stations, of each
 *                     ms, wait_ms, idle_ms, bytes, messages; traffic.h; totals of this process)
 *                     and last "crc32": of config.json and of the log before it, so that a finished run can be checked
 * ms: milliseconds a step by station, since the last line of that event, or since the checkpoint of a run that
 * goes on between two (end: of the whole run).
 * Doubles have 17 digits, so that they are the doubles; what is not a number is null. */
#ifndef LOG_H
#define LOG_H

#include "json.h"
#include "precond.h"

typedef struct run_log run_log; /* NULL: nothing is written, all functions accept it */

/* Everything here: CLI_BAD, told in one line. */
int log_create(const char *path, run_log **out);
int log_close(run_log **l);
void log_drop(run_log **l); /* the run has failed already: nobody is told more */

typedef struct log_times { /* totals so far; the log keeps its own marks */
  const train_station *station;
  int stations;
  int64_t steps;
} log_times;

/* Do its first `bytes` have this CRC-32, as the checkpoint `where` says? */
int log_check(const char *path, int64_t bytes, uint32_t crc, const char *where);
bool log_begins(const char *path, int64_t bytes, uint32_t crc); /* the same, without a message */
/* Goes on after the first `bytes` of it, whose CRC-32 that is, cutting the rest off (with a note, if it is not a run's own); `t`: the times those
 * tell. */
int log_reopen(const char *path, int64_t bytes, uint32_t crc, const log_times *t, run_log **out);

typedef struct log_step {
  int64_t step, epoch;
  double lr, loss, accuracy, clip, cosine, angle, rotation, stretch;
  precond_scaling scaling;
} log_step;

int log_write_step(run_log *l, const log_step *s, const log_times *t);
int log_write_epoch(run_log *l, const train_epoch *e, const log_times *t);
/* `config`: the text of config.json. */
int log_write_end(run_log *l, const char *why, const train_epoch *last, const train_result *r,
                  const log_times *t, const char *config);
/* On the disk; so long it is, and their CRC-32. */
int log_sync(run_log *l, int64_t *bytes, uint32_t *crc);

/* What an object holds under the names of a train_epoch; what is not a number becomes NaN. */
train_epoch log_epoch_of(const ngio_value *o);
/* The "epoch" lines of the first `bytes`, for free(). */
/* Whether it tells the end of a run. */
int log_ended(const char *path, bool *ended);
/* The result of a run that is over: done or diverged; else *over is false.  Its last line must fit config.json, whose text
 * is `config`, and the lines before. */
int log_result(const char *path, const char *config, train_result *out, bool *over);
int log_epochs(const char *path, int64_t bytes, train_epoch **out, int *n);

#endif
