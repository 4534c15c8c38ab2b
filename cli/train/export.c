/* export.c: `natgrad export`: the log of a run (log.jsonl, see log.h) as CSV or as TensorBoard event files.
 *
 * All fields are exported, in the order of first appearance; fields of "ms" get the name of their station. An
 * incomplete last line (a run that is running or was killed) is left out; any other line that is no object is an
 * error with its number. */
#include "checkpoint.h"
#include "commands.h"
#include "disk.h"
#include "event_file.h"
#include "train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct record {
  ngio_json **line;
  int lines;
  char **column; /* "event", "step", "ms.forward" */
  int columns;
} record;

/* ---- reading ---------------------------------------------------------------------------------*/

static void add_column(record *r, const char *outer, const char *name) {
  char column[160];
  (void)snprintf(column, sizeof column, "%s%s", outer, name);
  for (int i = 0; i < r->columns; i++) {
    if (strcmp(r->column[i], column) == 0) return;
  }
  r->column = cli_grown(r->column, (size_t)r->columns, sizeof *r->column);
  r->column[r->columns++] = cli_copy(column);
}

static void add_columns(record *r, const ngio_value *o) {
  for (const ngio_value *v = ngio_first(o); v != NULL; v = ngio_next(o, v)) {
    if (strcmp(v->key, "schema") == 0 || strcmp(v->key, "crc32") == 0) continue;
    if (!ngio_is(v, NGIO_OBJECT)) {
      add_column(r, "", v->key);
      continue;
    }
    char outer[80];
    (void)snprintf(outer, sizeof outer, "%s.", v->key);
    for (const ngio_value *w = ngio_first(v); w != NULL; w = ngio_next(v, w))
      add_column(r, outer, w->key);
  }
}

static int read_record(const char *path, record *r) {
  char *text = NULL;
  memset(r, 0, sizeof *r);
  if (disk_read(path, &text) != CLI_OK) return CLI_BAD;
  int rc = CLI_OK;
  for (const char *c = text, *end; rc == CLI_OK && (end = strchr(c, '\n')) != NULL; c = end + 1) {
    ngio_json *json = NULL;
    (void)ngio_json_parse(c, (size_t)(end - c), &json, NULL, 0);
    const ngio_value *o = ngio_json_root(json);
    const bool ours = ngio_integer_of(ngio_get(o, "schema")) == 1 &&
                      ngio_is(ngio_get(o, "event"), NGIO_STRING) &&
                      ngio_is(ngio_get(o, "step"), NGIO_INTEGER);
    if (ours) {
      r->line = cli_grown(r->line, (size_t)r->lines, sizeof *r->line);
      r->line[r->lines++] = json;
      add_columns(r, o);
    } else {
      ngio_json_free(&json);
      rc = cli_bad("%s: line %d: expected an object with \"schema\": 1, \"event\" and \"step\"",
                   path, r->lines + 1);
    }
  }
  free(text);
  if (rc == CLI_OK && r->lines == 0) rc = cli_bad("%s: has no complete line yet", path);
  return rc;
}

static void free_record(record *r) {
  for (int i = 0; i < r->lines; i++)
    ngio_json_free(&r->line[i]);
  for (int i = 0; i < r->columns; i++)
    free(r->column[i]);
  free(r->line);
  free(r->column);
}

static const ngio_value *field(const ngio_value *line, const char *column) {
  const char *dot = strchr(column, '.');
  char outer[160];
  if (dot == NULL) return ngio_get(line, column);
  (void)snprintf(outer, sizeof outer, "%.*s", (int)(dot - column), column);
  return ngio_get(ngio_get(line, outer), dot + 1);
}

/* ---- CSV (RFC 4180) --------------------------------------------------------------------------*/

static void csv_text(FILE *f, const char *text) {
  const bool plain = strpbrk(text, ",\"\r\n") == NULL;
  if (!plain) (void)fputc('"', f);
  for (; *text != 0; text++) {
    if (*text == '"') (void)fputc('"', f);
    (void)fputc(*text, f);
  }
  if (!plain) (void)fputc('"', f);
}

static void csv_value(FILE *f, const ngio_value *v) {
  if (ngio_is(v, NGIO_STRING)) {
    csv_text(f, ngio_text_of(v));
  } else if (ngio_is(v, NGIO_INTEGER)) {
    (void)fprintf(f, "%lld", (long long)ngio_integer_of(v));
  } else if (ngio_is(v, NGIO_REAL)) {
    (void)fprintf(f, "%.17g", ngio_number_of(v));
  } else if (ngio_is_flag(v)) {
    (void)fputs(ngio_is(v, NGIO_TRUE) ? "true" : "false", f);
  }
}

static const char standard_output[] = "-"; /* as FILE */

static void print_csv(FILE *f, const void *what) {
  const record *r = what;
  for (int c = 0; c < r->columns; c++) {
    if (c > 0) (void)fputc(',', f);
    csv_text(f, r->column[c]);
  }
  (void)fputc('\n', f);
  for (int i = 0; i < r->lines; i++) {
    for (int c = 0; c < r->columns; c++) {
      if (c > 0) (void)fputc(',', f);
      csv_value(f, field(ngio_json_root(r->line[i]), r->column[c]));
    }
    (void)fputc('\n', f);
  }
}

static int write_csv(const record *r, const char *path) {
  if (strcmp(path, standard_output) != 0) return disk_print(path, print_csv, r);
  print_csv(stdout, r); /* main reports errors of stdout */
  return CLI_OK;
}

/* ---- TensorBoard -----------------------------------------------------------------------------*/

/* Seconds of training at a step, interpolated linearly between the lines that have seconds ("epoch", "end"), and
 * extrapolated after the last. */
static double seconds_at(const record *r, double step) {
  double step0 = 0.0, at0 = 0.0, speed = 0.0;
  for (int i = 0; i < r->lines; i++) {
    const ngio_value *line = ngio_json_root(r->line[i]), *seconds = ngio_get(line, "seconds");
    const double step1 = ngio_number_of(ngio_get(line, "step"));
    if (!ngio_is_number(seconds) || step1 <= step0) continue;
    speed = (ngio_number_of(seconds) - at0) / (step1 - step0);
    if (step <= step1) break;
    step0 = step1;
    at0 = ngio_number_of(seconds);
  }
  return at0 + speed * (step - step0);
}

static int write_events(const record *r, const char *dir, double modified) {
  ngio_out f = {0};
  /* The log has durations only; its time of modification is the end. */
  const ngio_value *last = ngio_json_root(r->line[r->lines - 1]);
  const double end = seconds_at(r, ngio_number_of(ngio_get(last, "step")));
  const double begin = modified - end;
  event_file_begin(&f, begin);
  for (int i = 0; i < r->lines; i++) {
    const ngio_value *line = ngio_json_root(r->line[i]);
    const char *event = ngio_text_of(ngio_get(line, "event"));
    const int64_t step = ngio_integer_of(ngio_get(line, "step"));
    const double wall = begin + seconds_at(r, (double)step);
    for (int c = 0; c < r->columns; c++) {
      const char *name = r->column[c];
      const ngio_value *v = field(line, name);
      char tag[256];
      if (!ngio_is_number(v) || strcmp(name, "step") == 0) continue;
      const bool time = strncmp(name, "ms.", 3) == 0; /* stations get a group of their own */
      (void)snprintf(tag, sizeof tag, "%s%s/%s", event, time ? "_ms" : "", time ? name + 3 : name);
      event_file_scalar(&f, wall, step, tag, ngio_number_of(v));
    }
  }
  char name[96];
  (void)snprintf(name, sizeof name, "events.out.tfevents.%010lld.natgrad", (long long)modified);
  char *path = cli_join(dir, name);
  int rc = disk_folder(dir);
  if (rc == CLI_OK && f.lost) rc = cli_bad("%s: no memory", path);
  if (rc == CLI_OK) rc = disk_write(path, f.text, f.used);
  ngio_out_free(&f);
  free(path);
  return rc;
}

/* ---- the command -----------------------------------------------------------------------------*/

typedef struct wish {
  const char *csv, *tensorboard;
} wish;

static int export(const char *dir, const wish *w) {
  record r;
  struct stat st;
  memset(&r, 0, sizeof r);
  char *log = cli_join(dir, "log.jsonl");
  int rc = stat(log, &st) == 0
               ? read_record(log, &r)
               : cli_bad("%s: expected the folder of a run, but there is no log.jsonl in it", dir);
  if (rc == CLI_OK && w->csv != NULL && strcmp(w->csv, standard_output) != 0 &&
      checkpoint_owns(dir, w->csv))
    rc = cli_bad("--csv: %s is a part of the run itself", w->csv);
  if (rc == CLI_OK && w->tensorboard != NULL && checkpoint_owns(dir, w->tensorboard))
    rc = cli_bad("--tensorboard: %s is a part of the run itself", w->tensorboard);
  if (rc == CLI_OK && w->tensorboard != NULL)
    rc = write_events(&r, w->tensorboard, (double)st.st_mtime);
  if (rc == CLI_OK && w->csv != NULL) rc = write_csv(&r, w->csv);
  free_record(&r);
  free(log);
  return rc;
}

static int run(void *user, const cli_args *args) {
  const wish *w = user;
  if (args->operands == 0)
    return cli_bad("export: expected the folder of a run (natgrad train --out)");
  if (w->csv == NULL && w->tensorboard == NULL)
    return cli_bad("export: --csv FILE or --tensorboard DIR is missing");
  return export(args->operand[0], w);
}

static const cli_option own[] = {
    {"csv", "FILE", "a row per line of the log, a column per field", CLI_TEXT,
     .field = offsetof(wish, csv)},
    {"tensorboard", "DIR", "an event file; tensorboard --logdir DIR shows it", CLI_TEXT,
     .field = offsetof(wish, tensorboard)},
};

const cli_command cli_export = {
    .name = "export",
    .usage = "RUN_DIR --csv FILE | --tensorboard DIR",
    .summary = "export the log of a training run",
    .text = "RUN_DIR is a folder made by `natgrad train --out`, or one of runs/ of `natgrad\n"
            "compare`. Exported again, a file is replaced; --csv - is standard output.\n"
            "TensorBoard's values have single precision; their wall times count seconds of\n"
            "training and end when the log was written last.\n",
    .options = own,
    .n_options = (int)(sizeof own / sizeof own[0]),
    .operands = 1,
    .size = sizeof(wish),
    .run = run,
};
