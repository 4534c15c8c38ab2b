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
#include <jansson.h>
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
static int read_json(const char *path, json_t **out) {
  char *text = NULL;
  json_error_t error;
  *out = NULL;
  if (disk_regular(path) != CLI_OK || disk_read(path, &text) != CLI_OK) return CLI_BAD;
  *out = json_loads(text, JSON_REJECT_DUPLICATES, &error);
  const json_int_t schema = json_integer_value(json_object_get(*out, "schema"));
  int rc = CLI_OK;
  if (*out == NULL) {
    rc = cli_bad("%s: line %d: no JSON: %s", path, error.line, error.text);
  } else if (schema != SCHEMA) {
    rc = cli_bad("%s: expected an object with \"schema\": %d%s", path, SCHEMA,
                 schema == 1 ? "; schema 1, of an earlier natgrad, cannot be checked" : "");
  } else if (!seal_holds(text)) {
    rc = cli_bad("%s: is damaged or was edited: its last line has another checksum", path);
  }
  free(text);
  if (rc == CLI_OK) return CLI_OK;
  json_decref(*out);
  *out = NULL;
  return rc;
}

/* ---- the result of a run ---------------------------------------------------------------------*/

static json_t *real(double v) { return isfinite(v) ? json_real(v) : json_null(); }

static int64_t whole_of(const json_t *o, const char *name) {
  return (int64_t)json_integer_value(json_object_get(o, name));
}

static json_t *hex(uint32_t crc) { return json_sprintf("%08lx", (unsigned long)crc); }

static bool is_hex(const json_t *v, uint32_t crc) {
  char text[16];
  (void)snprintf(text, sizeof text, "%08lx", (unsigned long)crc);
  return json_is_string(v) && strcmp(json_string_value(v), text) == 0;
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

int compare_result_write(const compare_plan *p, const train_result *r, const char *name) {
  json_t *epochs = json_array(), *stations = json_object();
  for (int i = 0; i < r->epochs; i++) {
    const train_epoch *e = &r->epoch[i];
    (void)json_array_append_new(
        epochs,
        json_pack("{s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "epoch", (json_int_t)e->epoch, "step",
                  (json_int_t)e->step, "lr", real(e->lr), "train_loss", real(e->train_loss),
                  "train_accuracy", real(e->train_accuracy), "test_loss", real(e->test_loss),
                  "test_accuracy", real(e->test_accuracy), "seconds", real(e->seconds)));
  }
  for (int i = 0; i < r->stations; i++)
    (void)json_object_set_new(stations, r->station[i].name, real(r->station[i].total_ms));
  json_t *o = json_pack(
      "{s:i, s:o, s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "schema", SCHEMA,
      "comparison", hex(p->id), "file", name, "diverged", (int)r->diverged, "steps",
      (json_int_t)r->steps, "skipped", (json_int_t)r->skipped, "rescued", (json_int_t)r->rescued,
      "unobserved", (json_int_t)r->unobserved, "network_bytes", (json_int_t)r->network_bytes,
      "precond_bytes", (json_int_t)r->precond_bytes, "epochs", epochs, "total_ms", stations);
  int rc = CLI_OK;
  for (int i = 0; i < BESIDE && rc == CLI_OK; i++) {
    uint32_t crc;
    char *path = beside(p, name, i);
    if (path != NULL) rc = crc_of(path, &crc);
    if (path != NULL && rc == CLI_OK) (void)json_object_set_new(o, file_beside[i], hex(crc));
    free(path);
  }
  char *path = compare_path(p, "%s", name);
  if (rc == CLI_OK) {
    rc = seal_write(path, o);
  } else {
    json_decref(o);
  }
  free(path);
  return rc;
}

/* It is of this comparison, of this run, and what the run wrote beside it is as it was. */
static int belongs(const compare_plan *p, const json_t *o, const char *name, const char *path) {
  const char *file = json_string_value(json_object_get(o, "file"));
  if (file == NULL || strcmp(file, name) != 0)
    return cli_bad("%s: is the result '%s', expected '%s'", path, file != NULL ? file : "", name);
  if (!is_hex(json_object_get(o, "comparison"), p->id))
    return cli_bad("%s: belongs to another comparison than %s/compare.json", path, p->dir);
  int rc = CLI_OK;
  for (int i = 0; i < BESIDE && rc == CLI_OK; i++) {
    uint32_t crc;
    char *other = beside(p, name, i);
    if (other != NULL) rc = crc_of(other, &crc);
    if (other != NULL && rc == CLI_OK && !is_hex(json_object_get(o, file_beside[i]), crc))
      rc = cli_bad("%s: does not belong to result.json beside it, or was edited", other);
    free(other);
  }
  return rc;
}

int compare_result_read(const compare_plan *p, const char *name, train_result *r) {
  json_t *o = NULL;
  memset(r, 0, sizeof *r);
  char *path = compare_path(p, "%s", name);
  int rc = read_json(path, &o);
  if (rc == CLI_OK) rc = belongs(p, o, name, path);
  if (rc != CLI_OK) {
    json_decref(o);
    free(path);
    return rc;
  }
  const json_t *epochs = json_object_get(o, "epochs");
  json_t *stations = json_object_get(o, "total_ms"), *v;
  const char *station;
  const int n = (int)json_array_size(epochs);
  r->epoch = cli_take((size_t)n, sizeof *r->epoch);
  r->epochs = n;
  for (int i = 0; i < n; i++)
    r->epoch[i] = log_epoch_of(json_array_get(epochs, (size_t)i));
  json_object_foreach(stations, station, v) {
    if (r->stations == TRAIN_STATIONS) break;
    train_station *s = &r->station[r->stations++];
    (void)snprintf(s->name, sizeof s->name, "%s", station);
    s->total_ms = json_number_value(v);
  }
  r->diverged = json_is_true(json_object_get(o, "diverged"));
  r->steps = whole_of(o, "steps");
  r->skipped = whole_of(o, "skipped");
  r->rescued = whole_of(o, "rescued");
  r->unobserved = whole_of(o, "unobserved");
  r->network_bytes = whole_of(o, "network_bytes");
  r->precond_bytes = whole_of(o, "precond_bytes");
  const bool whole = json_is_array(epochs) && json_is_boolean(json_object_get(o, "diverged"));
  json_decref(o);
  if (!whole) {
    train_result_free(r);
    rc = cli_bad("%s: expected the result of a run, with \"diverged\" and \"epochs\"", path);
  }
  free(path);
  return rc;
}

/* ---- what is compared ------------------------------------------------------------------------*/

static void pair(json_t *o, const char *label, const char *name, const char *value) {
  char key[192];
  (void)snprintf(key, sizeof key, "%s%s%s", label, label[0] != 0 ? "." : "", name);
  (void)json_object_set_new(o, key, json_string(value));
}

static int method_pairs(const settings *s, const char *label, json_t *o) {
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

static void common_pairs(const compare_plan *p, int64_t train, int64_t test, json_t *o) {
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

/* Only what both have: methods may be added, or left out, and so may seeds. */
static int same(const json_t *was, json_t *now, const char *path) {
  const char *name;
  json_t *v;
  json_object_foreach(now, name, v) {
    const char *before = json_string_value(json_object_get(was, name));
    const char *after = json_string_value(v);
    if (before == NULL || after == NULL || strcmp(before, after) == 0) continue;
    return cli_bad("--resume: %s is '%s', but '%s' in %s; a comparison goes on as it began", name,
                   after, before, path);
  }
  return CLI_OK;
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

/* "comparison": what it began as, so that results of others are told from its own. */
static int name_it(compare_plan *p, json_t *now, const char *path) {
  const char *text = json_string_value(json_object_get(now, "comparison"));
  if (text != NULL) {
    p->id = (uint32_t)strtoul(text, NULL, 16);
    return CLI_OK;
  }
  char *all = json_dumps(now, JSON_SORT_KEYS);
  if (all == NULL)
    return cli_bad("%s: cannot be written: no memory, or a name that is no UTF-8", path);
  p->id = disk_crc(all, strlen(all));
  free(all);
  (void)json_object_set_new(now, "comparison", hex(p->id));
  return CLI_OK;
}

int compare_open(compare_plan *p, int64_t train, int64_t test) {
  char *path = compare_path(p, "compare.json");
  json_t *now = json_pack("{s:i}", "schema", SCHEMA), *was = NULL;
  int rc = CLI_OK;
  common_pairs(p, train, test, now);
  for (int i = 0; rc == CLI_OK && i < p->methods; i++)
    rc = method_pairs(&p->method[i].s, p->method[i].label, now);
  if (rc == CLI_OK && !p->resume) rc = is_new(p);
  if (rc == CLI_OK && !p->resume) rc = disk_folder(p->dir);
  int held; /* until the program ends */
  if (rc == CLI_OK) rc = disk_lock(p->dir, "compare", &held);
  if (rc == CLI_OK && p->resume) {
    rc = disk_exists(path) ? read_json(path, &was)
                           : cli_bad("--resume: %s has no comparison to go on with", p->dir);
    if (rc == CLI_OK) rc = same(was, now, path);
    (void)json_object_del(was, "crc32");
    if (rc == CLI_OK && json_object_update_missing(now, was) != 0)
      rc = cli_bad("%s: no memory", path);
  }
  if (rc == CLI_OK) rc = name_it(p, now, path);
  json_decref(was);
  static const char *const folders[] = {"runs", "tuning"};
  for (int i = 0; rc == CLI_OK && i < (p->grids > 0 ? 2 : 1); i++) {
    char *folder = compare_path(p, "%s", folders[i]);
    rc = disk_own_folder(folder);
    free(folder);
  }
  if (rc == CLI_OK) {
    rc = seal_write(path, now);
  } else {
    json_decref(now);
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
  if (rc == CLI_OK) rc = checkpoint_find(folder, resume);
  if (rc != CLI_OK || *resume) return rc;
  for (size_t i = 0; i < sizeof left / sizeof left[0]; i++) {
    char *path = cli_join(folder, left[i]);
    disk_remove(path);
    free(path);
  }
  return CLI_OK;
}
