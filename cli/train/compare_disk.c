/* compare_disk.c: the files of a comparison, which may be killed at any moment and resumed:
 *
 *   DIR/compare.json            every setting of every method, as flat pairs of text
 *   DIR/tuning/LABEL-K/         the run of point K of a method's grid, as `natgrad train` writes it, without its checkpoint;
 *                               LABEL-K-seedS from the second tuning seed on
 *   DIR/runs/LABEL-seedK/       the runs, the same way
 *
 * A run is over when its log ends; the results are read from the logs. */
#include "compare.h"
#include "checkpoint.h"
#include "disk.h"
#include "log.h"
#include "settings_rows.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { VALUE = 4096, SCHEMA = 3 };

char *compare_path(const compare_plan *p, const char *format, ...) {
  char name[512];
  va_list args;
  va_start(args, format);
  /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized) as in say.c */
  (void)vsnprintf(name, sizeof name, format, args);
  va_end(args);
  return cli_join(p->dir, name);
}

/* ---- a run -----------------------------------------------------------------------------------*/

/* Remove the files of a run that has no checkpoint, and nothing else. */
static void begin_again(const char *dir) {
  static const char *const left[] = {"config.json", "config.json.natgrad-part", "log.jsonl"};
  for (size_t i = 0; i < sizeof left / sizeof left[0]; i++) {
    char *path = cli_join(dir, left[i]);
    disk_remove(path);
    free(path);
  }
}

/* Check that the run was made with the settings `s`. */
static int check_config(const char *path, const char *text, const settings *s) {
  settings was;
  char *who = cli_take(strlen(path) + 3, 1);
  (void)snprintf(who, strlen(path) + 3, "%s: ", path);
  settings_init(&was);
  int rc = settings_parse(&was, text, path);
  if (rc == CLI_OK) rc = settings_same(s, &was, who, "this comparison");
  if (rc == CLI_OK && (was.epochs != s->epochs || was.steps != s->steps))
    rc = cli_bad("%s: is a run of another length than this comparison", path);
  settings_free(&was);
  free(who);
  return rc;
}

/* Read the result of the run in s->out if it is over. */
static int read_result(const settings *s, train_result *r, bool *over) {
  char *config = cli_join(s->out, "config.json"), *log = cli_join(s->out, "log.jsonl");
  char *text = NULL;
  int rc = CLI_OK;
  *over = false;
  if (disk_exists(config) && disk_exists(log)) {
    rc = disk_regular(config);
    if (rc == CLI_OK) rc = disk_read(config, &text);
    if (rc == CLI_OK) rc = log_result(log, text, r, over);
    if (rc == CLI_OK && *over) rc = check_config(config, text, s);
    if (rc != CLI_OK) train_result_free(r);
  }
  free(text);
  free(log);
  free(config);
  return rc;
}

int compare_run(settings *s, const data_set *d, const train_show *show, train_result *r,
                bool *ran) {
  int64_t step = -1;
  bool over = false;
  *ran = false;
  memset(r, 0, sizeof *r);
  int rc = disk_own_folder(s->out);
  if (rc == CLI_OK) rc = read_result(s, r, &over);
  if (rc == CLI_OK && !over) {
    rc = checkpoint_find(s->out, &step);
    s->resume = step >= 0;
    if (rc == CLI_OK && !s->resume) begin_again(s->out);
    if (rc == CLI_OK) rc = train_run(s, d, show, r);
    *ran = rc == CLI_OK && !r->stopped;
    if (*ran) { /* read the log, as a later --resume does */
      train_result_free(r);
      rc = read_result(s, r, &over);
    }
  }
  if (over) checkpoint_remove(s->out); /* also after a kill before this line */
  return rc;
}

/* ---- settings of the comparison ----------------------------------------------------------------- */

static void pair(ngio_out *o, const char *label, const char *name, const char *value) {
  char key[192];
  (void)snprintf(key, sizeof key, "%s%s%s", label, label[0] != 0 ? "." : "", name);
  ngio_put_text(o, key, value);
}

static int method_pairs(const settings *s, const char *label, ngio_out *o) {
  char value[VALUE] = "";
  for (int i = 0; i < settings_rows_count; i++) {
    const settings_row *row = &settings_rows[i];
    const bool length = strcmp(row->name, "epochs") == 0 || strcmp(row->name, "steps") == 0;
    if (!row->shapes && !length) continue;
    (void)settings_get(s, row->name, value, sizeof value);
    pair(o, label, row->name, value);
  }
  if (settings_first_order(s)) return CLI_OK;
  ng_options *options = NULL;
  if (settings_options(s, &options) != CLI_OK) return CLI_BAD;
  for (int i = 0; i < ng_option_count(); i++) {
    ng_option_info info = {.struct_size = sizeof info};
    if (ng_option_at(i, &info) != NG_OK ||
        ng_options_get(options, info.name, value, sizeof value) != NG_OK) {
      continue;
    }
    pair(o, label, info.name, value);
  }
  ng_options_destroy(&options);
  return CLI_OK;
}

static void common_pairs(const compare_plan *p, int64_t train, int64_t test, ngio_out *o) {
  char value[VALUE] = "";
  (void)snprintf(value, sizeof value, "%lld + %lld", (long long)train, (long long)test);
  pair(o, "", "samples", value);
  if (p->grids == 0) {
    pair(o, "", "grid", "none");
    return;
  }
  (void)snprintf(value, sizeof value, "%lld", (long long)p->validation);
  pair(o, "", "validation", value);
  (void)snprintf(value, sizeof value, "%lld", (long long)compare_tuning_seed(p, 0));
  pair(o, "", "tuning_seed", value);
  pair(o, "", "grid-epochs", p->grid_epochs != NULL ? p->grid_epochs : "those of the runs");
  (void)snprintf(value, sizeof value, "%d", p->grid_seeds);
  pair(o, "", "grid-seeds", value);
  size_t n = 0;
  for (int g = 0; g < p->grids; g++) {
    for (int i = 0; i < p->grid[g].n && n < sizeof value; i++) {
      n += (size_t)snprintf(value + n, sizeof value - n, "%s%s%s",
                            i > 0   ? ","
                            : g > 0 ? " "
                                    : "",
                            i == 0 ? p->grid[g].name : "", i == 0 ? "=" : "");
      if (n < sizeof value)
        n += (size_t)snprintf(value + n, sizeof value - n, "%s", p->grid[g].value[i]);
    }
  }
  pair(o, "", "grid", value);
}

/* Settings that both have must agree: methods and seeds may be added or left out.  Settings that only `was`
 * has are added to `now`. */
static int merge(const ngio_value *was, ngio_out *now, const char *path) {
  ngio_out copy = {0};
  ngio_json *json = NULL;
  ngio_out_bytes(&copy, now->text, now->used);
  ngio_out_put(&copy, "}");
  int rc = copy.lost ? cli_bad("%s: no memory", path)
                     : cli_json_parse(path, copy.text, copy.used, &json);
  ngio_out_free(&copy);
  for (const ngio_value *v = ngio_first(was); v != NULL && rc == CLI_OK; v = ngio_next(was, v)) {
    const char *before = ngio_text_of(v);
    const ngio_value *other = ngio_get(ngio_json_root(json), v->key);
    const char *after = ngio_text_of(other);
    if (before == NULL) continue;
    if (other == NULL) {
      ngio_put_text(now, v->key, before);
    } else if (after != NULL && strcmp(before, after) != 0) {
      rc = cli_bad("--resume: %s is '%s', but '%s' in %s; a comparison goes on as it began", v->key,
                   after, before, path);
    }
  }
  ngio_json_free(&json);
  return rc;
}

static int is_new(const compare_plan *p) {
  DIR *folder = opendir(p->dir);
  if (folder == NULL) {
    return errno == ENOENT ? CLI_OK : cli_bad("--out: %s: %s", p->dir, strerror(errno));
  }
  bool empty = true;
  for (const struct dirent *e; (e = readdir(folder)) != NULL;)
    empty = empty && (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0);
  (void)closedir(folder);
  if (empty) return CLI_OK;
  char *file = compare_path(p, "compare.json");
  const bool ours = disk_exists(file);
  free(file);
  return ours ? cli_bad("--out: %s holds a comparison; --resume goes on with it", p->dir)
              : cli_bad("--out: %s is not empty, expected a new folder", p->dir);
}

static int read_json(const char *path, ngio_json **out) {
  char *text = NULL;
  if (disk_regular(path) != CLI_OK || disk_read(path, &text) != CLI_OK) return CLI_BAD;
  int rc = cli_json_parse(path, text, strlen(text), out);
  free(text);
  if (rc == CLI_OK && ngio_integer_of(ngio_get(ngio_json_root(*out), "schema")) != SCHEMA)
    rc = cli_bad("%s: expected a comparison with \"schema\": %d, of this version", path, SCHEMA);
  return rc;
}

static int write_json(const char *path, ngio_out *o) {
  ngio_shut(o, '}');
  ngio_out_put(o, "\n");
  return o->lost ? cli_bad("%s: no memory", path) : disk_write(path, o->text, o->used);
}

int compare_open(compare_plan *p, int64_t train, int64_t test) {
  char *path = compare_path(p, "compare.json");
  ngio_out now = {.indent = 1};
  ngio_json *was = NULL;
  int rc = CLI_OK;
  ngio_open(&now, NULL, '{');
  ngio_put_integer(&now, "schema", SCHEMA);
  common_pairs(p, train, test, &now);
  for (int i = 0; rc == CLI_OK && i < p->methods; i++)
    rc = method_pairs(&p->method[i].s, p->method[i].label, &now);
  if (rc == CLI_OK && !p->resume) rc = is_new(p);
  if (rc == CLI_OK && !p->resume) rc = disk_folder(p->dir);
  int held; /* the lock lasts until the program ends */
  if (rc == CLI_OK) rc = disk_lock(p->dir, "compare", &held);
  if (rc == CLI_OK && p->resume) {
    rc = disk_exists(path) ? read_json(path, &was)
                           : cli_bad("--resume: %s has no comparison to go on with", p->dir);
    if (rc == CLI_OK) rc = merge(ngio_json_root(was), &now, path);
  }
  ngio_json_free(&was);
  static const char *const folders[] = {"runs", "tuning"};
  for (int i = 0; rc == CLI_OK && i < (p->grids > 0 ? 2 : 1); i++) {
    char *folder = compare_path(p, "%s", folders[i]);
    rc = disk_own_folder(folder);
    free(folder);
  }
  if (rc == CLI_OK) rc = write_json(path, &now);
  ngio_out_free(&now);
  free(path);
  return rc;
}
