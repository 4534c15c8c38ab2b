/* checkpoint.c: a run's state on disk and back, bit for bit, and whether it is one, whole, and nobody else's.
 * Files and the order of events: checkpoint.h; what model-<step>.safetensors holds: checkpoint_model.c. */
#include "checkpoint.h"
#include "disk.h"
#include "log.h"
#include "part_files.h"
#include "parts.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VALUE = 64 };

void checkpoint_init(run_state *s) {
  memset(s, 0, sizeof *s);
  manifest_init(&s->files);
}

/* ---- names -----------------------------------------------------------------------------------*/

/* For free(), as the next. */
static char *in_checkpoint(const char *dir, const char *name) {
  char *folder = cli_join(dir, "checkpoint"), *path = cli_join(folder, name);
  free(folder);
  return path;
}

static char *path_of(const char *dir, const char *what, int64_t step) {
  char name[VALUE];
  (void)snprintf(name, sizeof name, "%s-%lld.safetensors", what, (long long)step);
  return in_checkpoint(dir, name);
}

/* The name it has until latest.json is written. */
static char *next_of(const char *dir, const char *what) {
  char name[VALUE];
  (void)snprintf(name, sizeof name, "%s.natgrad-next", what);
  return in_checkpoint(dir, name);
}

/* The step in "model-<step>.safetensors" and the like; -1: another name. */
static int64_t step_of(const char *name) {
  size_t head = 0;
  for (int i = 0; i < MANIFEST_PARTS; i++) {
    const size_t n = strlen(manifest_part[i]);
    if (strncmp(name, manifest_part[i], n) == 0 && name[n] == '-') head = n + 1;
  }
  char *end = NULL;
  if (head == 0 || name[head] < '0' || name[head] > '9') return -1;
  errno = 0;
  const long long step = strtoll(name + head, &end, 10);
  static const char tail[] = ".safetensors";
  const size_t n = sizeof tail - 1;
  if (errno != 0 || strncmp(end, tail, n) != 0) return -1;
  return end[n] == 0 || (end[n] == '.' && ngio_part_named(end + n + 1, false)) ? (int64_t)step : -1;
}

/* A file of a step after `last`, for free(); NULL: there is none. */
static char *newer(const char *dir, int64_t last) {
  char *folder = cli_join(dir, "checkpoint"), *found = NULL;
  DIR *d = opendir(folder);
  for (const struct dirent *e; d != NULL && found == NULL && (e = readdir(d)) != NULL;) {
    if (step_of(e->d_name) > last) found = cli_join(folder, e->d_name);
  }
  if (d != NULL) (void)closedir(d);
  free(folder);
  return found;
}

/* ---- saving ----------------------------------------------------------------------------------*/

/* A name that is taken, but not by the file that is to have it, is somebody else's. */
static int is_free(const char *path, const manifest_file *f) {
  if (!disk_exists(path) || manifest_is(path, f)) return CLI_OK;
  return cli_bad("%s: is there already and is none of this run's; move it away", path);
}

static void remove_set(const char *dir, const manifest_set *set) {
  for (int i = 0; i < MANIFEST_PARTS; i++) {
    const manifest_file *f = &set->file[i];
    if (set->step < 0 || f->bytes == 0) continue;
    char *path = path_of(dir, manifest_part[i], set->step);
    if (manifest_is(path, f)) disk_remove(path);
    parts_remove(path, f);
    free(path);
  }
}

int checkpoint_save(const char *dir, const nn *net, const feed *f, const average *mean, precond *p,
                    int32_t ranks, run_state *state) {
  manifest m = state->files;
  m.before = m.now;
  m.now = (manifest_set){.step = state->step};
  manifest_made_by(&m);
  const bool has[MANIFEST_PARTS] = {true, true, mix_carries(&f->mix), average_carries(mean)};
  char *folder = cli_join(dir, "checkpoint"), *latest = cli_join(folder, "latest.json");
  char *next[MANIFEST_PARTS], *path[MANIFEST_PARTS], *left_out = damaged_text(&f->damaged);
  int rc = disk_own_folder(folder);
  for (int i = 0; i < MANIFEST_PARTS; i++) {
    next[i] = next_of(dir, manifest_part[i]);
    path[i] = path_of(dir, manifest_part[i], state->step);
    if (rc == CLI_OK) rc = disk_regular(next[i]);
  }
  if (rc == CLI_OK) rc = checkpoint_write_model(next[MANIFEST_MODEL], net, state, 0, left_out);
  if (rc == CLI_OK) rc = precond_save(p, next[MANIFEST_PRECOND], ranks > 1);
  if (rc == CLI_OK && has[MANIFEST_MIXUP]) rc = mix_save(&f->mix, next[MANIFEST_MIXUP]);
  if (rc == CLI_OK && has[MANIFEST_AVERAGE]) rc = average_save(mean, next[MANIFEST_AVERAGE]);
  for (int i = 0; i < MANIFEST_PARTS && rc == CLI_OK; i++) {
    if (!has[i]) continue;
    rc = manifest_look(next[i], &m.now.file[i]);
    if (rc == CLI_OK && i == MANIFEST_PRECOND) rc = parts_look(next[i], ranks, &m.now.file[i]);
    if (rc == CLI_OK) rc = is_free(path[i], &m.now.file[i]);
    if (rc == CLI_OK) rc = parts_free(path[i], &m.now.file[i]);
  }
  if (rc == CLI_OK) rc = manifest_write(latest, &m);
  for (int i = 0; i < MANIFEST_PARTS && rc != CLI_OK; i++) {
    /* room on a disk that may be full; the checkpoint before is whole */
    if (has[i]) disk_remove(next[i]);
    if (i == MANIFEST_PRECOND) parts_sweep(next[i]);
  }
  for (int i = 0; i < MANIFEST_PARTS && rc == CLI_OK; i++) {
    if (has[i]) rc = parts_rename(next[i], path[i], &m.now.file[i]);
    if (has[i] && rc == CLI_OK) rc = disk_give_name(next[i], path[i]);
  }
  if (rc == CLI_OK) {
    remove_set(dir, &m.before);
    state->files = m;
  }
  for (int i = 0; i < MANIFEST_PARTS; i++) {
    free(next[i]);
    free(path[i]);
  }
  free(left_out);
  free(latest);
  free(folder);
  return rc;
}

int checkpoint_save_part(const char *dir, const feed *f, precond *p, bool in_parts) {
  char *next = next_of(dir, manifest_part[MANIFEST_PRECOND]);
  int rc = precond_save_with(p, next, in_parts);
  if (rc == CLI_OK && mix_carries(&f->mix)) rc = mix_save(&f->mix, NULL);
  free(next);
  return rc;
}

int checkpoint_load_part(const char *dir, feed *f, precond *p, int64_t step) {
  char *path = path_of(dir, manifest_part[MANIFEST_PRECOND], step);
  int rc = precond_load(p, path);
  if (rc == CLI_OK && mix_carries(&f->mix)) rc = mix_load(&f->mix, NULL);
  free(path);
  return rc;
}

int checkpoint_config(const char *dir, run_state *state, uint32_t next) {
  char *latest = in_checkpoint(dir, "latest.json");
  state->files.config_next = next;
  const int rc = manifest_write(latest, &state->files);
  state->files.config = next; /* of the next checkpoint */
  free(latest);
  return rc;
}

/* ---- is it all there? ------------------------------------------------------------------------*/

static int find_file(const char *dir, const char *what, int64_t step, const manifest_file *f) {
  char *path = path_of(dir, what, step), *next = next_of(dir, what);
  manifest_file is = {0};
  int rc = CLI_OK;
  if (!disk_exists(path) && manifest_is(next, f)) rc = disk_give_name(next, path);
  if (rc == CLI_OK && !disk_exists(path))
    rc = cli_bad("%s: is missing, and belongs to the checkpoint of step %lld", path,
                 (long long)step);
  if (rc == CLI_OK) rc = manifest_look(path, &is);
  if (rc == CLI_OK && (is.bytes != f->bytes || is.head != f->head)) {
    rc = cli_bad("%s: does not belong to latest.json, or was edited: %lld bytes, head %08lx, "
                 "expected %lld, %08lx",
                 path, (long long)is.bytes, (unsigned long)is.head, (long long)f->bytes,
                 (unsigned long)f->head);
  }
  if (rc == CLI_OK) rc = parts_find(path, next, f, step);
  free(path);
  free(next);
  return rc;
}

static int find_config(const char *dir, const manifest *m) {
  char *path = cli_join(dir, "config.json"), *text = NULL;
  int rc = disk_exists(path) ? disk_regular(path)
                             : cli_bad("%s: is missing, and belongs to the checkpoint", path);
  if (rc == CLI_OK) rc = disk_read(path, &text);
  if (rc == CLI_OK) {
    const uint32_t is = disk_crc(text, strlen(text));
    if (is != m->config && is != m->config_next)
      rc = cli_bad("%s: does not belong to checkpoint/latest.json, or was edited: checksum %08lx, "
                   "expected %08lx",
                   path, (unsigned long)is, (unsigned long)m->config_next);
  }
  free(text);
  free(path);
  return rc;
}

/* Names that nobody else gives to a file: what bears one is ours. */
static const char *const passing[] = {
    "model.natgrad-next",      "model.natgrad-next.natgrad-part",
    "precond.natgrad-next",    "precond.natgrad-next.natgrad-part",
    "mixup.natgrad-next",      "mixup.natgrad-next.natgrad-part",
    "average.natgrad-next",    "average.natgrad-next.natgrad-part",
    "latest.json.natgrad-part"};
enum { PASSING = sizeof passing / sizeof passing[0] };

/* Where the next checkpoint is going to be written; better known before the training than after it. */
static int find_way(const char *dir) {
  int rc = CLI_OK;
  for (size_t i = 0; i < PASSING && rc == CLI_OK; i++) {
    char *path = in_checkpoint(dir, passing[i]);
    rc = disk_regular(path);
    free(path);
  }
  char *next = next_of(dir, manifest_part[MANIFEST_PRECOND]);
  if (rc == CLI_OK) rc = parts_regular(next);
  free(next);
  return rc;
}

int checkpoint_find(const char *dir, bool *there) {
  manifest m;
  char *folder = cli_join(dir, "checkpoint"), *latest = cli_join(folder, "latest.json");
  char *log = cli_join(dir, "log.jsonl"), *more = NULL;
  *there = false;
  int rc = disk_exists(folder) ? disk_own_folder(folder) : CLI_OK;
  if (rc == CLI_OK && disk_exists(folder)) rc = find_way(dir);
  if (rc == CLI_OK && disk_exists(latest)) {
    *there = true;
    rc = manifest_read(latest, &m);
    for (int i = 0; i < MANIFEST_PARTS && rc == CLI_OK; i++) {
      if (m.now.file[i].bytes > 0)
        rc = find_file(dir, manifest_part[i], m.now.step, &m.now.file[i]);
    }
    if (rc == CLI_OK && (more = newer(dir, m.now.step)) != NULL) {
      rc = cli_bad("%s: is newer than latest.json, which is of step %lld; put back what belongs "
                   "together, or move it away",
                   more, (long long)m.now.step);
    }
    if (rc == CLI_OK) rc = find_config(dir, &m);
    if (rc == CLI_OK) rc = log_check(log, m.log_bytes, m.log);
  } else if (rc == CLI_OK && (more = newer(dir, -1)) != NULL) {
    rc = cli_bad("%s: is missing, but %s is there; put latest.json back, or move the checkpoint "
                 "away to begin again",
                 latest, more);
  }
  free(more);
  free(log);
  free(latest);
  free(folder);
  return rc;
}

/* ---- loading, and what is left over ----------------------------------------------------------*/

/* Of other data nothing is known; that they are others is told elsewhere. */
static int take_left_out(const char *path, const char *text, const run_state *s, damaged *a,
                         const data_set *d) {
  if (text == NULL || d->images == NULL || s->data_crc != data_checksum(d)) return CLI_OK;
  return damaged_read(a, text) ? CLI_OK : cli_bad("%s: its metadata has no good 'left_out'", path);
}

int checkpoint_load(const char *dir, nn *net, feed *f, average *mean, precond *p,
                    run_state *state) {
  char *latest = in_checkpoint(dir, "latest.json"), *path[MANIFEST_PARTS], *left_out = NULL;
  checkpoint_init(state);
  int rc = manifest_read(latest, &state->files);
  const manifest_set *now = &state->files.now;
  for (int i = 0; i < MANIFEST_PARTS; i++)
    path[i] = path_of(dir, manifest_part[i], now->step);
  const bool carried = now->file[MANIFEST_MIXUP].bytes > 0;
  if (rc == CLI_OK && carried != mix_carries(&f->mix))
    rc = cli_bad("%s: is %s mixup, this run %s it", latest, carried ? "with" : "without",
                 carried ? "without" : "with");
  const bool averaged = now->file[MANIFEST_AVERAGE].bytes > 0;
  if (rc == CLI_OK && averaged && mean->mean == NULL)
    rc = cli_bad("%s: is with averaged weights, this run without", latest);
  if (rc == CLI_OK) rc = checkpoint_read_model(path[MANIFEST_MODEL], net, state, &left_out);
  if (rc == CLI_OK) rc = take_left_out(path[MANIFEST_MODEL], left_out, state, &f->damaged, f->d);
  if (rc == CLI_OK && state->step != now->step)
    rc = cli_bad("%s: is of step %lld", path[MANIFEST_MODEL], (long long)state->step);
  if (rc == CLI_OK) rc = precond_load(p, path[MANIFEST_PRECOND]);
  if (rc == CLI_OK && carried) rc = mix_load(&f->mix, path[MANIFEST_MIXUP]);
  if (rc == CLI_OK && averaged) rc = average_load(mean, path[MANIFEST_AVERAGE]);
  for (int i = 0; i < MANIFEST_PARTS; i++)
    free(path[i]);
  free(left_out);
  free(latest);
  return rc;
}

int checkpoint_step(const char *dir, int64_t *step) {
  manifest m;
  char *latest = in_checkpoint(dir, "latest.json");
  const int rc = manifest_read(latest, &m);
  *step = rc == CLI_OK ? m.now.step : -1;
  free(latest);
  return rc;
}

int checkpoint_load_model(const char *dir, nn *net, run_state *state) {
  char *latest = in_checkpoint(dir, "latest.json"), *path = NULL;
  checkpoint_init(state);
  int rc = manifest_read(latest, &state->files);
  if (rc == CLI_OK) {
    path = path_of(dir, manifest_part[MANIFEST_MODEL], state->files.now.step);
    rc = checkpoint_read_model(path, net, state, NULL);
  }
  free(path);
  free(latest);
  return rc;
}

void checkpoint_tidy(const char *dir, const manifest *m) {
  for (size_t i = 0; i < PASSING; i++) {
    char *path = in_checkpoint(dir, passing[i]);
    disk_remove(path);
    free(path);
  }
  char *next = next_of(dir, manifest_part[MANIFEST_PRECOND]);
  parts_sweep(next);
  free(next);
  if (m->before.step != m->now.step) remove_set(dir, &m->before);
}

void checkpoint_remove(const char *dir) {
  manifest m;
  char *folder = cli_join(dir, "checkpoint"), *latest = cli_join(folder, "latest.json");
  if (disk_exists(latest) && manifest_read(latest, &m) == CLI_OK) {
    checkpoint_tidy(dir, &m);
    remove_set(dir, &m.now);
    disk_remove(latest);
  }
  (void)rmdir(folder);
  free(latest);
  free(folder);
}
