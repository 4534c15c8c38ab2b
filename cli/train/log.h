/* log.h: DIR/log.jsonl has one JSON object per line, with "schema": 1 and these fields:
 *
 *   "event": "step"   step, epoch, lr, train_loss, train_accuracy (of this batch), clip, cosine (of the angle between
 *     the gradient g and the direction u, over all layers with curvature), angle (in degrees), rotation
 *     (90 times 1 - cosine, as in EFCP), stretch (|u| / |g|), ms (cosine to stretch are null for sgd and adamw without
 *     --quantify. With --quantify, u is the vector that lr multiplies, and six fields follow: scaling_min, scaling_25,
 *     scaling_50, scaling_75, scaling_max, scaling_mean of |u_i / g_i|)
 *   "event": "epoch"  step, epoch, lr, train_loss, train_accuracy (means), test_loss, test_accuracy, seconds, ms
 *   "event": "end"    step, epoch, why ("done", "stopped", "diverged"), train_loss, test_accuracy, skipped, rescued,
 *     unobserved, network_bytes, precond_bytes, seconds, ms (with averaged weights: averaged, average_test_loss,
 *     average_test_accuracy; with adaptive intervals: statistics; with several ranks: ranks, see traffic.h; last: crc32
 *     of config.json and of the log before it)
 *
 * ms: milliseconds per step at each station, since the last line with the same event or since the resumed checkpoint
 * ("end": in the whole run). Doubles have 17 digits, so they read back exactly; values that are not finite are null. */
#ifndef LOG_H
#define LOG_H

#include "json.h"
#include "precond.h"

typedef struct run_log run_log; /* NULL: no log; all functions accept NULL */

/* Functions with the type int return CLI_BAD after a message. */
int log_create(const char *path, run_log **out);
int log_close(run_log **l);
void log_close_quietly(run_log **l); /* close without a message, after an error was reported */

typedef struct log_times { /* totals since the start of the run; the log writes differences */
  const train_station *station;
  int stations;
  int64_t steps;
} log_times;

/* Check that the first `bytes` bytes of the log have this CRC-32, which the checkpoint `where` contains. */
int log_check_crc(const char *path, int64_t bytes, uint32_t crc, const char *where);
/* After log_check_crc: open the log of a resumed run, remove the text after `bytes` bytes. `t`: times at that point. */
int log_reopen(const char *path, int64_t bytes, const log_times *t, run_log **out);

int log_write_step(run_log *l, int64_t step, int64_t epoch, const train_number *x, int n,
                   const log_times *t);
int log_write_epoch(run_log *l, const train_epoch *e, const log_times *t);
/* `config`: the text of config.json. */
int log_write_end(run_log *l, const char *why, const train_epoch *last, const train_result *r,
                  const log_times *t, const char *config);
/* Flush the log to disk; return its length and CRC-32. */
int log_flush(run_log *l, int64_t *bytes, uint32_t *crc);

/* Set *ended to true if the log contains an "end" line. */
int log_find_end(const char *path, bool *ended);
/* Read the result of a finished run (done or diverged). *over is false if the run is not finished. The checksum in the
 * last line must fit the log and `config`, the text of config.json. */
int log_read_result(const char *path, const char *config, train_result *out, bool *over);
/* Read the "epoch" lines in the first `bytes` bytes of the log. The caller frees *out. */
int log_read_epochs(const char *path, int64_t bytes, train_epoch **out, int *n);

#endif
