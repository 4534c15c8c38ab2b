/* compare_disk.c: what a comparison keeps, so that it can be killed at any moment and go on:
 *
 *   DIR/compare.json                 every setting of every method, as flat pairs of text
 *   DIR/tuning/LABEL-K.json          the result of point K of a method's grid; with the second tuning
 *                                    seed S and on LABEL-K-seedS.json
 *   DIR/runs/LABEL-seedK/            as `natgrad train` writes it, and
 *   DIR/runs/LABEL-seedK/result.json the run's result, when it is over
 *
 * A result is on the disk whole or not at all (disk.h), and what is there is not run again: so it says
 * which one it is ("file"), of which comparison, the checksums of what lies beside it, and its own (seal.h). */
#include "compare.h"
#include "checkpoint.h"
#include "disk.h"
#include "log.h"
#include "seal.h"
#include "settings_rows.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VALUE = 4096, SCHEMA = 2 };

char *compare_path(const compare_plan *p, const char *format, ...) {
  char name[512];
  va_list args;
  va_start(args, format);
  /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized) as in say.c */
  (void)vsnprintf(name, sizeof name, format, args);
  va_end(args);
  return cli_join(p->dir, name);
}

/* Ours, and as it was written. */
static int read_json(const char *path, ngio_json **out) {
  char *text = NULL;
  *out = NULL;
  if (disk_regular(path) != CLI_OK || disk_read(path, &text) != CLI_OK) return CLI_BAD;
  int rc = cli_json_parse(path, text, strlen(text), out);
  const int64_t schema = ngio_integer_of(ngio_get(ngio_json_root(*out), "schema"));
  if (rc == CLI_OK && schema != SCHEMA) {
    rc = cli_bad("%s: expected an object with \"schema\": %d%s", path, SCHEMA,
                 schema == 1 ? "; schema 1, of an earlier natgrad, cannot be checked" : "");
  } else if (rc == CLI_OK && !seal_holds(text)) {
    rc = cli_bad("%s: is damaged or was edited: its last line has another checksum", path);
  }
  free(text);
  if (rc != CLI_OK) ngio_json_free(out);
  return rc;
}

/* ---- the result of a run ---------------------------------------------------------------------*/

static int64_t whole_of(const ngio_value *o, const char *name) {
  return (int64_t)ngio_integer_of(ngio_get(o, name));
}

enum { BESIDE = 2 };
static const char *const file_beside[BESIDE] = {"config.json", "log.jsonl"};

/* Files of a run that lie in the folder of its result; a point of a grid has none.  For free(). */
static char *beside(const compare_plan *p, const char *name, int i) {
  const char *slash = strrchr(name, '/');
  if (strncmp(name, "runs/", 5) != 0 || slash == NULL) return NULL;
  return compare_path(p, "%.*s/%s", (int)(slash - name), name, file_beside[i]);
}

static int crc_of(const char *path, uint32_t *crc) {
  char *text = NULL;
  if (disk_regular(path) != CLI_OK || disk_read(path, &text) != CLI_OK) return CLI_BAD;
  *crc = disk_crc(text, strlen(text));
  free(text);
  return CLI_OK;
}

static void put_epoch(ngio_out *o, const train_epoch *e) {
  ngio_open(o, NULL, '{');
  ngio_put_integer(o, "epoch", e->epoch);
  ngio_put_integer(o, "step", e->step);
  ngio_put_real(o, "lr", e->lr);
  ngio_put_real(o, "train_loss", e->train_loss);
  ngio_put_real(o, "train_accuracy", e->train_accuracy);
  ngio_put_real(o, "test_loss", e->test_loss);
  ngio_put_real(o, "test_accuracy", e->test_accuracy);
  ngio_put_real(o, "seconds", e->seconds);
  ngio_shut(o, '}');
}

int compare_result_write(const compare_plan *p, const train_result *r, const char *name) {
  ngio_out o = {.indent = 1};
  ngio_open(&o, NULL, '{');
  ngio_put_integer(&o, "schema", SCHEMA);
  seal_put(&o, "comparison", p->id);
  ngio_put_text(&o, "file", name);
  ngio_put_flag(&o, "diverged", r->diverged);
  ngio_put_integer(&o, "steps", r->steps);
  ngio_put_integer(&o, "skipped", r->skipped);
  ngio_put_integer(&o, "rescued", r->rescued);
  ngio_put_integer(&o, "unobserved", r->unobserved);
  ngio_put_integer(&o, "network_bytes", r->network_bytes);
  ngio_put_integer(&o, "precond_bytes", r->precond_bytes);
  ngio_open(&o, "epochs", '[');
  for (int i = 0; i < r->epochs; i++)
    put_epoch(&o, &r->epoch[i]);
  ngio_shut(&o, ']');
  ngio_open(&o, "total_ms", '{');
  for (int i = 0; i < r->stations; i++)
    ngio_put_real(&o, r->station[i].name, r->station[i].total_ms);
  ngio_shut(&o, '}');
  int rc = CLI_OK;
  for (int i = 0; i < BESIDE && rc == CLI_OK; i++) {
    uint32_t crc;
    char *path = beside(p, name, i);
    if (path != NULL) rc = crc_of(path, &crc);
    if (path != NULL && rc == CLI_OK) seal_put(&o, file_beside[i], crc);
    free(path);
  }
  char *path = compare_path(p, "%s", name);
  if (rc == CLI_OK) {
    rc = seal_write(path, &o);
  } else {
    ngio_out_free(&o);
  }
  free(path);
  return rc;
}

/* It is of this comparison, of this run, and what the run wrote beside it is as it was. */
static int belongs(const compare_plan *p, const ngio_value *o, const char *name, const char *path) {
  const char *file = ngio_text_of(ngio_get(o, "file"));
  if (file == NULL || strcmp(file, name) != 0)
    return cli_bad("%s: is the result '%s', expected '%s'", path, file != NULL ? file : "", name);
  if (!seal_is(ngio_get(o, "comparison"), p->id))
    return cli_bad("%s: belongs to another comparison than %s/compare.json", path, p->dir);
  int rc = CLI_OK;
  for (int i = 0; i < BESIDE && rc == CLI_OK; i++) {
    uint32_t crc;
    char *other = beside(p, name, i);
    if (other != NULL) rc = crc_of(other, &crc);
    if (other != NULL && rc == CLI_OK && !seal_is(ngio_get(o, file_beside[i]), crc))
      rc = cli_bad("%s: does not belong to result.json beside it, or was edited", other);
    free(other);
  }
  return rc;
}

int compare_result_read(const compare_plan *p, const char *name, train_result *r) {
  ngio_json *json = NULL;
  memset(r, 0, sizeof *r);
  char *path = compare_path(p, "%s", name);
  int rc = read_json(path, &json);
  const ngio_value *o = ngio_json_root(json);
  if (rc == CLI_OK) rc = belongs(p, o, name, path);
  if (rc != CLI_OK) {
    ngio_json_free(&json);
    free(path);
    return rc;
  }
  const ngio_value *epochs = ngio_get(o, "epochs");
  const ngio_value *stations = ngio_get(o, "total_ms"), *e = ngio_first(epochs);
  const int n = (int)ngio_count(epochs);
  r->epoch = cli_take((size_t)n, sizeof *r->epoch);
  r->epochs = n;
  for (int i = 0; i < n; i++, e = ngio_next(epochs, e))
    r->epoch[i] = log_epoch_of(e);
  for (const ngio_value *v = ngio_first(stations); v != NULL; v = ngio_next(stations, v)) {
    if (r->stations == TRAIN_STATIONS) break;
    train_station *s = &r->station[r->stations++];
    (void)snprintf(s->name, sizeof s->name, "%s", v->key);
    s->total_ms = ngio_number_of(v);
  }
  r->diverged = ngio_is(ngio_get(o, "diverged"), NGIO_TRUE);
  r->steps = whole_of(o, "steps");
  r->skipped = whole_of(o, "skipped");
  r->rescued = whole_of(o, "rescued");
  r->unobserved = whole_of(o, "unobserved");
  r->network_bytes = whole_of(o, "network_bytes");
  r->precond_bytes = whole_of(o, "precond_bytes");
  const bool whole = ngio_is(epochs, NGIO_ARRAY) && ngio_is_flag(ngio_get(o, "diverged"));
  ngio_json_free(&json);
  if (!whole) {
    train_result_free(r);
    rc = cli_bad("%s: expected the result of a run, with \"diverged\" and \"epochs\"", path);
  }
  free(path);
  return rc;
}

/* ---- what is compared ------------------------------------------------------------------------*/

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
    if (before == NULL || strcmp(v->key, "crc32") == 0) continue;
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
  int held; /* until the program ends */
  if (rc == CLI_OK) rc = disk_lock(p->dir, "compare", &held);
  if (rc == CLI_OK && p->resume) {
    rc = disk_exists(path) ? read_json(path, &was)
                           : cli_bad("--resume: %s has no comparison to go on with", p->dir);
    if (rc == CLI_OK) rc = merge(ngio_json_root(was), &now, path);
  }
  /* The checksum of the first settings marks all results of this comparison. */
  const char *id = ngio_text_of(ngio_get(ngio_json_root(was), "comparison"));
  if (id != NULL) {
    p->id = (uint32_t)strtoul(id, NULL, 16);
  } else if (rc == CLI_OK && !now.lost) {
    p->id = disk_crc(now.text, now.used);
    seal_put(&now, "comparison", p->id);
  }
  ngio_json_free(&was);
  static const char *const folders[] = {"runs", "tuning"};
  for (int i = 0; rc == CLI_OK && i < (p->grids > 0 ? 2 : 1); i++) {
    char *folder = compare_path(p, "%s", folders[i]);
    rc = disk_own_folder(folder);
    free(folder);
  }
  if (rc == CLI_OK) {
    rc = seal_write(path, &now);
  } else {
    ngio_out_free(&now);
  }
  free(path);
  return rc;
}

/* ---- the folder of a run ---------------------------------------------------------------------*/

void compare_run_done(const char *folder) { checkpoint_remove(folder); }

/* What a run that never came to a checkpoint has written; nothing else that may lie there. */
int compare_run_begin(const char *folder, bool *resume) {
  static const char *const left[] = {"config.json", "config.json.natgrad-part", "log.jsonl"};
  int rc = disk_own_folder(folder);
  int64_t step = -1;
  if (rc == CLI_OK) rc = checkpoint_find(folder, &step);
  *resume = step >= 0;
  if (rc != CLI_OK || *resume) return rc;
  for (size_t i = 0; i < sizeof left / sizeof left[0]; i++) {
    char *path = cli_join(folder, left[i]);
    disk_remove(path);
    free(path);
  }
  return CLI_OK;
}
