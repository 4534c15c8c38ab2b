/* export.c: `natgrad export`: convert the log of a run (log.jsonl, see log.h) to CSV.
 *
 * All fields except the schema and the checksum become columns, in the order of first appearance. The field "forward"
 * of the object "ms" has the column "ms.forward". An incomplete last line is ignored: the run continues or was killed.
 * Any other line that is no object of a log is an error, with its line number. */
#include "checkpoint.h"
#include "common/commands.h"
#include "disk.h"
#include "train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct record {
  ngio_json **line;
  int lines;
  char **column; /* names of columns, such as "event", "step", "ms.forward" */
  int columns;
} record;

static void add_csv_column(record *r, const char *outer, const char *name) {
  char column[160];
  (void)snprintf(column, sizeof column, "%s%s", outer, name);
  for (int i = 0; i < r->columns; i++)
    if (strcmp(r->column[i], column) == 0) return;
  r->column = cli_append_zeroed(r->column, (size_t)r->columns, sizeof *r->column);
  r->column[r->columns++] = cli_copy_text(column);
}

static void add_object_columns(record *r, const ngio_value *o) {
  for (const ngio_value *v = ngio_first(o); v != NULL; v = ngio_next(o, v)) {
    if (strcmp(v->key, "schema") == 0 || strcmp(v->key, "crc32") == 0) continue;
    if (!ngio_is(v, NGIO_OBJECT)) {
      add_csv_column(r, "", v->key);
      continue;
    }
    char outer[80];
    (void)snprintf(outer, sizeof outer, "%s.", v->key);
    for (const ngio_value *w = ngio_first(v); w != NULL; w = ngio_next(v, w))
      add_csv_column(r, outer, w->key);
  }
}

static int read_log_records(const char *path, record *r) {
  char *text = NULL;
  if (disk_read_text(path, &text) != CLI_OK) return CLI_BAD;
  int rc = CLI_OK;
  for (const char *c = text, *end; rc == CLI_OK && (end = strchr(c, '\n')) != NULL; c = end + 1) {
    ngio_json *json = NULL;
    (void)ngio_json_parse(c, (size_t)(end - c), &json, NULL, 0);
    const ngio_value *o = ngio_json_root(json);
    const bool is_line = ngio_integer_of(ngio_get(o, "schema")) == 1 &&
                         ngio_is(ngio_get(o, "event"), NGIO_STRING) &&
                         ngio_is(ngio_get(o, "step"), NGIO_INTEGER);
    if (is_line) {
      r->line = cli_append_zeroed(r->line, (size_t)r->lines, sizeof *r->line);
      r->line[r->lines++] = json;
      add_object_columns(r, o);
    } else {
      ngio_json_free(&json);
      rc = cli_fail("%s: line %d: expected an object with \"schema\": 1, \"event\" and \"step\"",
                    path, r->lines + 1);
    }
  }
  free(text);
  if (rc == CLI_OK && r->lines == 0) rc = cli_fail("%s: has no complete line yet", path);
  return rc;
}

/* Return the value of a column in a line; NULL: the line has none. */
static const ngio_value *find_field(const ngio_value *line, const char *column) {
  const char *dot = strchr(column, '.');
  char outer[160];
  if (dot == NULL) return ngio_get(line, column);
  (void)snprintf(outer, sizeof outer, "%.*s", (int)(dot - column), column);
  return ngio_get(ngio_get(line, outer), dot + 1);
}

static void print_csv_text(FILE *f, const char *text) {
  const bool plain = strpbrk(text, ",\"\r\n") == NULL;
  if (!plain) (void)fputc('"', f);
  for (; *text != 0; text++) {
    if (*text == '"') (void)fputc('"', f);
    (void)fputc(*text, f);
  }
  if (!plain) (void)fputc('"', f);
}

static void print_csv_value(FILE *f, const ngio_value *v) {
  char number[32];
  const char *text = cli_json_text(v, number, sizeof number);
  if (text != NULL) print_csv_text(f, text);
}

static void print_csv(FILE *f, const void *what) {
  const record *r = what;
  for (int c = 0; c < r->columns; c++) {
    if (c > 0) (void)fputc(',', f);
    print_csv_text(f, r->column[c]);
  }
  (void)fputc('\n', f);
  for (int i = 0; i < r->lines; i++) {
    for (int c = 0; c < r->columns; c++) {
      if (c > 0) (void)fputc(',', f);
      print_csv_value(f, find_field(ngio_json_root(r->line[i]), r->column[c]));
    }
    (void)fputc('\n', f);
  }
}

typedef struct request {
  const char *csv;
} request;

static int run_export(void *user, const cli_args *args) {
  const char *csv = ((const request *)user)->csv;
  if (args->operands == 0)
    return cli_fail("export: expected the folder of a run (natgrad train --out)");
  if (csv == NULL) return cli_fail("export: --csv is missing");
  const char *dir = args->operand[0];
  char *log = cli_join(dir, "log.jsonl");
  record r = {0};
  int rc = disk_exists(log)
               ? read_log_records(log, &r)
               : cli_fail("%s: expected the folder of a run, but there is no log.jsonl in it", dir);
  if (rc == CLI_OK && strcmp(csv, "-") == 0) {
    print_csv(stdout, &r); /* the result is not checked, because main checks stdout at the end */
  } else if (rc == CLI_OK) {
    rc = checkpoint_is_run_file(csv) ? cli_fail("--csv: %s is the name of a file of a run", csv)
                                     : disk_print_file(csv, print_csv, &r);
  }
  for (int i = 0; i < r.lines; i++)
    ngio_json_free(&r.line[i]);
  for (int i = 0; i < r.columns; i++)
    free(r.column[i]);
  free(r.line);
  free(r.column);
  free(log);
  return rc;
}

static const cli_option own[] = {
    {"csv", "FILE", "a row per line of the log, a column per field", CLI_TEXT,
     .field = offsetof(request, csv)},
};

const cli_command cli_export = {
    .name = "export",
    .usage = "RUN_DIR --csv FILE",
    .summary = "export the log of a training run",
    .text = "RUN_DIR is a folder made by `natgrad train --out`, or one of runs/ of `natgrad\n"
            "compare`. Exported again, FILE is replaced; - is standard output. docs/pytorch.md\n"
            "(Records) passes log.jsonl to TensorBoard.\n",
    .options = own,
    .n_options = (int)(sizeof own / sizeof own[0]),
    .operands = 1,
    .size = sizeof(request),
    .run = run_export,
};
