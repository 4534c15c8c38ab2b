/* log.c: write and read log.jsonl; log.h has the format. Lines are buffered, so a disk error is noticed at the next
 * checkpoint or at the end of the run, at the latest; it ends the run. */
#include "log.h"
#include "disk.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { STEP, EPOCH, END, MARKS }; /* kinds of lines */

struct run_log {
  FILE *f;
  char *path;
  bool reported; /* an error was reported, so later errors are not reported */
  struct {
    double ms[TRAIN_STATIONS];
    int64_t steps;
  } mark[MARKS];
};

static int report_failure(run_log *l) {
  if (!l->reported) (void)cli_fail("%s: cannot be written: %s", l->path, strerror(errno));
  l->reported = true;
  return CLI_BAD;
}

static int open_log(const char *path, int flags, run_log **out) {
  *out = NULL;
  if (disk_check_regular(path) != CLI_OK) return CLI_BAD;
  run_log *l = cli_alloc(1, sizeof *l);
  l->path = cli_copy_text(path);
  const int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | flags, 0666);
  l->f = fd >= 0 ? fdopen(fd, "r+") : NULL;
  if (l->f != NULL) {
    *out = l;
    return CLI_OK;
  }
  const int rc = report_failure(l);
  if (fd >= 0) (void)close(fd);
  free(l->path);
  free(l);
  return rc;
}

int log_create(const char *path, run_log **out) {
  return open_log(path, O_CREAT | O_TRUNC | O_APPEND, out);
}

int log_check_crc(const char *path, int64_t bytes, uint32_t crc, const char *where) {
  char *text;
  if (disk_check_regular(path) != CLI_OK || disk_read_text(path, &text) != CLI_OK) return CLI_BAD;
  const long long has = (long long)strlen(text);
  const uint32_t is = has >= bytes ? disk_compute_crc(text, (size_t)bytes) : 0;
  free(text);
  if (has < bytes)
    return cli_fail("%s: has %lld bytes, the checkpoint was made when the log had %lld", path, has,
                    (long long)bytes);
  if (is == crc) return CLI_OK;
  return cli_fail("%s: does not belong to %s, or was edited: its first %lld bytes have checksum "
                  "%08lx, expected %08lx",
                  path, where, (long long)bytes, (unsigned long)is, (unsigned long)crc);
}

int log_reopen(const char *path, int64_t bytes, const log_times *t, run_log **out) {
  if (open_log(path, O_APPEND, out) != CLI_OK) return CLI_BAD;
  run_log *l = *out;
  if (ftruncate(fileno(l->f), (off_t)bytes) != 0) {
    const int rc = cli_fail("%s: cannot be truncated: %s", path, strerror(errno));
    log_close_quietly(out);
    return rc;
  }
  for (int m = 0; m < MARKS - 1; m++) { /* an "end" line has the times of the whole run */
    for (int i = 0; i < t->stations; i++)
      l->mark[m].ms[i] = t->station[i].ms;
    l->mark[m].steps = t->steps;
  }
  return CLI_OK;
}

int log_close(run_log **l) {
  if (*l == NULL) return CLI_OK;
  const int rc = fclose((*l)->f) == 0 ? CLI_OK : report_failure(*l);
  free((*l)->path);
  free(*l);
  *l = NULL;
  return rc;
}

void log_close_quietly(run_log **l) {
  if (*l == NULL) return;
  (*l)->reported = true;
  (void)log_close(l);
}

int log_flush(run_log *l, int64_t *bytes, uint32_t *crc) {
  *bytes = 0;
  *crc = 0;
  if (l == NULL) return CLI_OK;
  if (fflush(l->f) != 0 || fsync(fileno(l->f)) != 0) return report_failure(l);
  char *text;
  if (disk_read_text(l->path, &text) != CLI_OK) return CLI_BAD;
  *bytes = (int64_t)strlen(text);
  *crc = disk_compute_crc(text, (size_t)*bytes);
  free(text);
  return CLI_OK;
}

/* ---- lines -----------------------------------------------------------------------------------*/

static void write_real(run_log *l, const char *name, double v) {
  if (isfinite(v))
    (void)fprintf(l->f, ", \"%s\": %.17g", name, v);
  else
    (void)fprintf(l->f, ", \"%s\": null", name);
}

static void write_whole(run_log *l, const char *name, int64_t v) {
  (void)fprintf(l->f, ", \"%s\": %lld", name, (long long)v);
}

static void begin_log_line(run_log *l, const char *event, int64_t step, int64_t epoch) {
  (void)fprintf(l->f, "{\"schema\": 1, \"event\": \"%s\"", event);
  write_whole(l, "step", step);
  write_whole(l, "epoch", epoch);
}

/* Write the member "ms" and the end of the line. An "end" line is not ended: its checksum follows. */
static int finish_log_line(run_log *l, int mark, const log_times *t) {
  const double steps = (double)(t->steps - l->mark[mark].steps);
  (void)fputs(", \"ms\": {", l->f);
  for (int i = 0; i < t->stations; i++) {
    const double ms = t->station[i].ms - l->mark[mark].ms[i];
    (void)fprintf(l->f, "%s\"%s\": %.4f", i > 0 ? ", " : "", t->station[i].name,
                  steps > 0.0 ? ms / steps : 0.0);
    l->mark[mark].ms[i] = t->station[i].ms;
  }
  l->mark[mark].steps = t->steps;
  (void)fputs(mark == END ? "}" : "}}\n", l->f);
  return ferror(l->f) != 0 ? report_failure(l) : CLI_OK;
}

int log_write_step(run_log *l, int64_t step, int64_t epoch, const train_number *x, int n,
                   const log_times *t) {
  if (l == NULL) return CLI_OK;
  begin_log_line(l, "step", step, epoch);
  for (int i = 0; i < n; i++)
    write_real(l, x[i].name, x[i].value);
  return finish_log_line(l, STEP, t);
}

/* The members of an "epoch" line that are numbers, and the members of an "end" line that are counters. */
static const struct member {
  const char *name;
  size_t at;
} of_epoch[] = {{"lr", offsetof(train_epoch, lr)},
                {"train_loss", offsetof(train_epoch, train_loss)},
                {"train_accuracy", offsetof(train_epoch, train_accuracy)},
                {"test_loss", offsetof(train_epoch, test_loss)},
                {"test_accuracy", offsetof(train_epoch, test_accuracy)},
                {"seconds", offsetof(train_epoch, seconds)}},
  of_end[] = {{"skipped", offsetof(train_result, skipped)},
              {"rescued", offsetof(train_result, rescued)},
              {"unobserved", offsetof(train_result, unobserved)},
              {"network_bytes", offsetof(train_result, network_bytes)},
              {"precond_bytes", offsetof(train_result, precond_bytes)}};
enum { OF_EPOCH = sizeof of_epoch / sizeof *of_epoch, OF_END = sizeof of_end / sizeof *of_end };

int log_write_epoch(run_log *l, const train_epoch *e, const log_times *t) {
  if (l == NULL) return CLI_OK;
  begin_log_line(l, "epoch", e->step, e->epoch);
  for (int i = 0; i < OF_EPOCH; i++)
    write_real(l, of_epoch[i].name, *(const double *)((const char *)e + of_epoch[i].at));
  const int rc = finish_log_line(l, EPOCH, t);
  return rc == CLI_OK && fflush(l->f) != 0
             ? report_failure(l)
             : rc; /* flush, so that other programs can follow the log */
}

static const char checksum_member[] = ", \"crc32\": \"";

/* Write the last member of the "end" line: the checksum of config.json and of the log before this member. */
static int write_log_checksum(run_log *l, const char *config) {
  int64_t bytes;
  uint32_t crc;
  if (log_flush(l, &bytes, &crc) != CLI_OK) return CLI_BAD;
  const uLong all = crc32_combine(disk_compute_crc(config, strlen(config)), crc, (z_off_t)bytes);
  (void)fprintf(l->f, "%s%08lx\"}\n", checksum_member, all);
  return ferror(l->f) != 0 ? report_failure(l) : CLI_OK;
}

int log_write_end(run_log *l, const char *why, const train_epoch *last, const train_result *r,
                  const log_times *t, const char *config) {
  if (l == NULL) return CLI_OK;
  begin_log_line(l, "end", r->steps, last->epoch);
  (void)fprintf(l->f, ", \"why\": \"%s\"", why);
  write_real(l, "train_loss", last->train_loss);
  write_real(l, "test_accuracy", last->test_accuracy);
  if (r->averaged > 0) {
    write_whole(l, "averaged", r->averaged);
    write_real(l, "average_test_loss", r->average_loss);
    write_real(l, "average_test_accuracy", r->average_accuracy);
  }
  for (int i = 0; i < OF_END; i++)
    write_whole(l, of_end[i].name, *(const int64_t *)((const char *)r + of_end[i].at));
  write_real(l, "seconds", last->seconds);
  for (int i = 0; i < r->kinds; i++) {
    const train_refreshed *k = &r->kind[i];
    (void)fprintf(l->f, "%s\"%s\": {\"refreshed\": %lld", i > 0 ? ", " : ", \"statistics\": {",
                  k->name, (long long)k->refreshed);
    write_whole(l, "passed", k->passed);
    write_whole(l, "bytes_sent", k->bytes_sent);
    write_whole(l, "bytes_passed", k->bytes_passed);
    (void)fputs(i + 1 < r->kinds ? "}" : "}}", l->f);
  }
  if (r->traffic.ranks > 1) {
    (void)fputs(", \"ranks\": ", l->f);
    traffic_print_json(&r->traffic, l->f);
  }
  const int rc = finish_log_line(l, END, t);
  return rc == CLI_OK ? write_log_checksum(l, config) : rc;
}

/* ---- reading -------------------------------------------------------------------------*/

static int64_t get_whole(const ngio_value *o, const char *name) {
  return (int64_t)ngio_integer_of(ngio_get(o, name));
}

/* Parse a line. false: this is not an "epoch" line. */
static bool parse_epoch_line(const char *line, size_t size, train_epoch *e) {
  ngio_json *json = NULL;
  (void)ngio_json_parse(line, size, &json, NULL, 0);
  const ngio_value *o = ngio_json_root(json);
  const char *event = ngio_text_of(ngio_get(o, "event"));
  const bool is_epoch = event != NULL && strcmp(event, "epoch") == 0;
  *e = (train_epoch){.epoch = get_whole(o, "epoch"), .step = get_whole(o, "step")};
  for (int i = 0; i < OF_EPOCH; i++) {
    const ngio_value *v = ngio_get(o, of_epoch[i].name);
    *(double *)((char *)e + of_epoch[i].at) = ngio_is_number(v) ? ngio_number_of(v) : (double)NAN;
  }
  ngio_json_free(&json);
  return is_epoch;
}

int log_find_end(const char *path, bool *ended) {
  char *text = NULL;
  *ended = false;
  if (!disk_exists(path)) return CLI_OK;
  if (disk_read_text(path, &text) != CLI_OK) return CLI_BAD;
  *ended = strstr(text, "\"event\": \"end\"") != NULL;
  free(text);
  return CLI_OK;
}

int log_read_epochs(const char *path, int64_t bytes, train_epoch **out, int *n) {
  char *text;
  *out = NULL;
  *n = 0;
  if (disk_read_text(path, &text) != CLI_OK) return CLI_BAD;
  if ((size_t)bytes < strlen(text)) text[bytes] = 0;
  for (const char *c = text, *stop; (stop = strchr(c, '\n')) != NULL; c = stop + 1) {
    train_epoch e;
    if (!parse_epoch_line(c, (size_t)(stop - c), &e)) continue;
    *out = cli_append_zeroed(*out, (size_t)*n, sizeof e);
    (*out)[(*n)++] = e;
  }
  free(text);
  return CLI_OK;
}

/* ---- a finished run --------------------------------------------------------------------------*/

/* Return true if the checksum in the last line fits config.json and the log before the checksum. */
static bool is_checksum_valid(const char *text, const char *last, const char *config) {
  char want[sizeof checksum_member + 16];
  const char *mark = strstr(last, checksum_member);
  if (mark == NULL) return false;
  uLong crc = disk_compute_crc(config, strlen(config));
  crc = crc32_z(crc, (const unsigned char *)text, (size_t)(mark - text));
  (void)snprintf(want, sizeof want, "%s%08lx\"}\n", checksum_member, crc);
  return strcmp(mark, want) == 0;
}

/* Read the counters and times of an "end" line into *r. */
static void read_end_fields(const ngio_value *o, train_result *r) {
  const ngio_value *ms = ngio_get(o, "ms");
  const char *why = ngio_text_of(ngio_get(o, "why"));
  r->diverged = why != NULL && strcmp(why, "diverged") == 0;
  r->steps = get_whole(o, "step");
  for (int i = 0; i < OF_END; i++)
    *(int64_t *)((char *)r + of_end[i].at) = get_whole(o, of_end[i].name);
  for (const ngio_value *v = ngio_first(ms); v != NULL; v = ngio_next(ms, v)) {
    if (r->stations == TRAIN_STATIONS) break;
    train_station *s = &r->station[r->stations++];
    (void)snprintf(s->name, sizeof s->name, "%s", v->key);
    s->ms = ngio_number_of(v) * (double)r->steps;
  }
}

int log_read_result(const char *path, const char *config, train_result *out, bool *over) {
  ngio_json *json = NULL;
  char *text = NULL;
  memset(out, 0, sizeof *out);
  *over = false;
  if (disk_check_regular(path) != CLI_OK || disk_read_text(path, &text) != CLI_OK) return CLI_BAD;
  const size_t n = strlen(text);
  const char *last = n > 1 ? memrchr(text, '\n', n - 1) : NULL;
  last = last != NULL ? last + 1 : text;
  (void)ngio_json_parse(last, strlen(last), &json, NULL, 0);
  const ngio_value *o = ngio_json_root(json);
  const char *event = ngio_text_of(ngio_get(o, "event")), *why = ngio_text_of(ngio_get(o, "why"));
  *over = event != NULL && strcmp(event, "end") == 0 && why != NULL && strcmp(why, "stopped") != 0;
  int rc = CLI_OK;
  if (*over && !is_checksum_valid(text, last, config))
    rc = cli_fail("%s: does not belong to config.json beside it, or was edited", path);
  if (*over && rc == CLI_OK) {
    read_end_fields(o, out);
    rc = log_read_epochs(path, (int64_t)n, &out->epoch, &out->epochs);
  }
  ngio_json_free(&json);
  free(text);
  return rc;
}
