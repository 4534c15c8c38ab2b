/* checkpoint.c: find, save, load and remove the checkpoints of a run directory. checkpoint.h has their format. */
#include "checkpoint.h"
#include "checkpoint_file.h"
#include "disk.h"
#include "log.h"
#include "part_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME = 96 };

static const char state_tensor[] = "natgrad.state", average_tensor[] = "natgrad.average";
static const char config_key[] = "config", id_key[] = "state_id", replaces_key[] = "replaces";

void checkpoint_init(run_state *s) {
  memset(s, 0, sizeof *s);
  s->previous = -1;
}

/* ---- names -----------------------------------------------------------------------------------*/

static char *make_path(const char *dir, int64_t step, const char *end) {
  char name[NAME];
  (void)snprintf(name, sizeof name, "checkpoint-%lld.%s", (long long)step, end);
  return cli_join(dir, name);
}

char *checkpoint_path(const char *dir, int64_t step) { return make_path(dir, step, "safetensors"); }

static char *make_state_path(const char *dir, int64_t step) {
  return make_path(dir, step, "natgrad-state");
}

typedef enum kind { OTHER, WHOLE, TEMPORARY, STATE } kind;

/* Return the kind of the file with this name, and set *step. STATE: a complete or incomplete part of the state. */
static kind classify_file_name(const char *name, int64_t *step) {
  static const char head[] = "checkpoint-", state[] = ".natgrad-state";
  const char *digits = name + sizeof head - 1;
  char *end = NULL;
  if (strncmp(name, head, sizeof head - 1) != 0 || *digits < '0' || *digits > '9') return OTHER;
  errno = 0;
  *step = strtoll(digits, &end, 10);
  if (errno != 0) return OTHER;
  if (strcmp(end, ".safetensors") == 0) return WHOLE;
  if (strcmp(end, ".safetensors.natgrad-part") == 0) return TEMPORARY;
  if (strncmp(end, state, sizeof state - 1) != 0) return OTHER;
  end += sizeof state - 1;
  const bool part = *end == '.' && ngio_is_part_name(end + 1, true);
  return *end == 0 || part || strcmp(end, ".natgrad-part") == 0 ? STATE : OTHER;
}

/* Return the step of the newest checkpoint in `dir`; -1: none. */
static int64_t find_newest(const char *dir) {
  int64_t most = -1, step;
  DIR *d = opendir(dir);
  for (const struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
    if (classify_file_name(e->d_name, &step) == WHOLE && step > most) most = step;
  if (d != NULL) (void)closedir(d);
  return most;
}

/* ---- finding ---------------------------------------------------------------------------------*/

/* Refuse the checkpoints of versions before 0.3, which have several files in DIR/checkpoint. */
static int refuse_old_format(const char *dir) {
  char *old = cli_join(dir, "checkpoint/latest.json");
  const bool there = disk_exists(old);
  free(old);
  if (!there) return CLI_OK;
  return cli_fail(
      "%s/checkpoint: is a checkpoint of natgrad 0.2, unsupported by this version; finish "
      "the run with 0.2, or start in another folder",
      dir);
}

/* Read settings and counters from the metadata of a checkpoint. */
static int read_metadata(const char *path, settings *s, run_state *state) {
  file_reader r;
  if (disk_check_regular(path) != CLI_OK) return CLI_BAD;
  if (!file_open(path, true, true, &r)) return CLI_BAD;
  const char *config = ngio_tensors_text(r.file, config_key);
  int rc = file_read_state(&r, state);
  if (rc == CLI_OK && config == NULL) rc = cli_fail("%s: is no checkpoint of a run", path);
  if (rc == CLI_OK) rc = settings_parse_json(s, config, path);
  file_close(&r);
  return rc;
}

/* Check that config.json has the settings `was` of the checkpoint `where`. */
static int check_config(const char *dir, const settings *was, const char *where) {
  settings now;
  char *path = cli_join(dir, "config.json");
  settings_init(&now);
  int rc = disk_exists(path)
               ? disk_check_regular(path)
               : cli_fail("%s: is missing, but the checkpoint %s needs it", path, where);
  if (rc == CLI_OK) rc = settings_read_file(&now, path);
  if (rc == CLI_OK) rc = settings_check_same(was, &now, path, where);
  settings_free(&now);
  free(path);
  return rc;
}

int checkpoint_find(const char *dir, int64_t *step, settings *was) {
  settings own;
  run_state state;
  *step = find_newest(dir);
  if (*step < 0) return refuse_old_format(dir);
  char *path = checkpoint_path(dir, *step), *log = cli_join(dir, "log.jsonl");
  settings_init(&own);
  checkpoint_init(&state);
  if (was == NULL) was = &own;
  int rc = read_metadata(path, was, &state);
  if (rc == CLI_OK && state.step != *step)
    rc = cli_fail("%s: has the content of step %lld, not of the step in its name", path,
                  (long long)state.step);
  if (rc == CLI_OK) rc = check_config(dir, was, path);
  if (rc == CLI_OK) rc = log_check_crc(log, state.log_bytes, (uint32_t)state.log_crc, path);
  settings_free(&own);
  free(log);
  free(path);
  return rc;
}

/* ---- removing --------------------------------------------------------------------------------*/

static void remove_checkpoint(const char *dir, int64_t step) {
  char *path = checkpoint_path(dir, step);
  disk_remove_file(path);
  free(path);
}

/* Return the step of the checkpoint that the checkpoint of `step` replaced; -1: none. */
static int64_t find_replaced_step(const char *dir, int64_t step) {
  char *path = checkpoint_path(dir, step);
  file_reader r;
  const bool opened = file_open(path, true, false, &r);
  const char *text = opened ? ngio_tensors_text(r.file, replaces_key) : NULL;
  const int64_t replaced = text != NULL ? strtoll(text, NULL, 10) : -1;
  if (opened) file_close(&r);
  free(path);
  return replaced;
}

void checkpoint_remove_leftovers(const char *dir, int64_t step) {
  DIR *d = opendir(dir);
  for (const struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
    int64_t of = -1;
    const kind what = classify_file_name(e->d_name, &of);
    char *path = cli_join(dir, e->d_name);
    if (what == TEMPORARY || (what == STATE && of != step)) disk_remove_file(path);
    free(path);
  }
  if (d != NULL) (void)closedir(d);
  if (step >= 0) remove_checkpoint(dir, find_replaced_step(dir, step));
}

void checkpoint_remove_all(const char *dir) {
  const int64_t step = find_newest(dir);
  checkpoint_remove_leftovers(dir, step);
  remove_checkpoint(dir, step);
  checkpoint_remove_leftovers(dir, -1);
}

/* ---- saving ----------------------------------------------------------------------------------*/

/* Append bytes of the library's state (an ng_writer). */
static int32_t append_state_bytes(void *user, const void *data, int64_t n) {
  ngio_out *state = user;
  ngio_out_bytes(state, data, (size_t)n);
  return state->lost ? ENOMEM : 0;
}

/* Read the identity of a state in parts: the checksum in the file of the first part. */
static int read_state_id(const char *path, char id[NAME]) {
  file_reader r;
  if (disk_check_regular(path) != CLI_OK) return CLI_BAD;
  if (!file_open(path, false, true, &r)) return CLI_BAD;
  const char *text = ngio_tensors_text(r.file, "natgrad.crc32");
  (void)snprintf(id, NAME, "%s", text != NULL ? text : "");
  file_close(&r);
  return text != NULL ? CLI_OK : cli_fail("%s: is no state of the library", path);
}

static ngio_tensor describe_average(const average *a) {
  ngio_tensor t = {.name = average_tensor, .dtype = NGIO_F32, .ndim = 1, .shape = {a->weights}};
  t.data = a->mean;
  t.bytes = ngio_bytes_of(t.dtype, t.shape, t.ndim);
  return t;
}

/* Collect the header and the tensors of the checkpoint file, which rank 0 writes. */
static void fill_file_content(const checkpoint *c, const char *config, const ngio_out *state,
                              const char *id, const ngio_tensor mixup[2], file_content *h) {
  char previous[NAME];
  (void)snprintf(previous, sizeof previous, "%lld", (long long)c->state->previous);
  file_add_state(h, c->state);
  file_add_text(h, config_key, config);
  file_add_text(h, replaces_key, previous);
  if (id[0] != 0) file_add_text(h, id_key, id);
  file_add_network(h, c->net);
  if (c->mean->count > 0) {
    const ngio_tensor t = describe_average(c->mean);
    file_add_tensor(h, &t);
  }
  for (int i = 0; i < 2 && mix_has_previous(&c->feed->mix); i++)
    file_add_tensor(h, &mixup[i]);
  if (id[0] != 0) return;
  const ngio_tensor t = {.name = state_tensor,
                         .dtype = NGIO_U8,
                         .ndim = 1,
                         .shape = {(int64_t)state->used},
                         /* dtype u8 has no checksum here, because the state has its own */
                         .data = state->text};
  file_add_tensor(h, &t);
}

int checkpoint_save(const checkpoint *c, const char *config, bool in_parts) {
  run_state *s = c->state;
  const bool first = c->ranks->rank == 0;
  char *path = checkpoint_path(c->dir, s->step), *parts = make_state_path(c->dir, s->step);
  char id[NAME] = "";
  ngio_tensor mixup[2] = {{0}, {0}};
  ngio_out state = {0};
  file_content head = {0};
  int rc = CLI_OK;
  if (first && disk_exists(path))
    rc = cli_fail("%s: exists and does not belong to this run; move it away", path);
  if (rc == CLI_OK && in_parts)
    rc = precond_save_parts(c->p, parts, first);
  else if (rc == CLI_OK)
    rc = precond_save_stream(c->p, append_state_bytes, &state, first);
  if (rc == CLI_OK && in_parts && first) rc = read_state_id(parts, id);
  if (rc == CLI_OK && mix_has_previous(&c->feed->mix)) rc = mix_gather(&c->feed->mix, mixup);
  if (rc == CLI_OK && first) {
    s->averaged = c->mean->count;
    checkpoint_set_maker(s);
    fill_file_content(c, config, &state, id, mixup, &head);
    rc = file_write(&head, path);
  }
  file_head_free(&head);
  mix_free_tensors(mixup);
  ngio_out_free(&state);
  if (first && rc == CLI_OK) {
    remove_checkpoint(c->dir, s->previous);
    s->previous = s->step;
  }
  if (first) checkpoint_remove_leftovers(c->dir, s->previous);
  free(parts);
  free(path);
  return rc;
}

/* ---- loading ---------------------------------------------------------------------------------*/

/* The bytes of the tensor natgrad.state that are not yet read. */
typedef struct piece {
  ngio_source *source;
  int64_t at, end;
} piece;

/* Read the next bytes of the state (an ng_reader). */
static int64_t read_state_bytes(void *user, void *data, int64_t n) {
  piece *p = user;
  if (n > p->end - p->at) n = p->end - p->at;
  if (n > 0 && ngio_source_read(p->source, p->at, data, n, NULL, 0) != NGIO_OK) return -1;
  p->at += n;
  return n;
}

static int read_average(file_reader *r, const run_state *s, average *mean) {
  const bool has = ngio_tensors_find(r->file, average_tensor) != NULL;
  if (has != (s->averaged > 0) || (has && mean->mean == NULL))
    return cli_fail("%s: its averaged weights do not fit the settings of this run", r->path);
  if (!has) return CLI_OK;
  const ngio_tensor t = describe_average(mean);
  mean->count = s->averaged;
  return file_read_tensor(r, &t, mean->mean);
}

/* On rank 0, read everything but the library's state. No communication. */
static int read_run_state(file_reader *r, const checkpoint *c, const ngio_tensor mixup[2]) {
  int rc = file_read_state(r, c->state);
  if (rc == CLI_OK) rc = file_read_network(r, c->net);
  if (rc == CLI_OK) rc = read_average(r, c->state, c->mean);
  for (int i = 0; i < 2 && rc == CLI_OK && mix_has_previous(&c->feed->mix); i++)
    rc = file_read_tensor(r, &mixup[i], (float *)(uintptr_t)mixup[i].data);
  return rc;
}

/* Load the library's state: from parts, or from the file `r`, which rank 0 has opened. Collective. */
static int load_state(const checkpoint *c, file_reader *r, const char *parts, bool in_parts) {
  piece p = {&r->source, 0, 0};
  if (in_parts) return precond_load_parts(c->p, parts);
  if (c->ranks->rank == 0) {
    const ngio_tensor *t = ngio_tensors_find(r->file, state_tensor);
    if (t == NULL || t->dtype != NGIO_U8)
      return cli_fail("%s: tensor '%s' is missing, or not u8", r->path, state_tensor);
    p.at = ngio_tensors_place(r->file, t);
    p.end = p.at + t->bytes;
  }
  return precond_load_stream(c->p, read_state_bytes, &p, r->path);
}

int checkpoint_load(const checkpoint *c, int64_t step) {
  const bool first = c->ranks->rank == 0;
  char *path = checkpoint_path(c->dir, step), *parts = make_state_path(c->dir, step), id[NAME] = "";
  ngio_tensor mixup[2];
  file_reader r = {.path = path, .source = {.fd = -1}};
  int rc = CLI_OK;
  mix_create_tensors(&c->feed->mix, mixup);
  if (first) {
    rc = file_open(path, true, true, &r) ? read_run_state(&r, c, mixup) : CLI_BAD;
    c->state->previous = step;
  }
  const char *want = rc == CLI_OK && first ? ngio_tensors_text(r.file, id_key) : NULL;
  bool in_parts = want != NULL;
  if (in_parts) {
    rc = disk_exists(parts) ? read_state_id(parts, id)
                            : cli_fail("%s: is missing, but %s needs it", parts, path);
    if (rc == CLI_OK && strcmp(id, want) != 0)
      rc = cli_fail("%s: does not belong to %s", parts, path);
  }
  if (rc == CLI_OK) rc = ranks_broadcast(c->ranks, &in_parts, sizeof in_parts);
  if (rc == CLI_OK) rc = load_state(c, &r, parts, in_parts);
  if (rc == CLI_OK && mix_has_previous(&c->feed->mix)) rc = mix_scatter(&c->feed->mix, mixup);
  file_close(&r);
  mix_free_tensors(mixup);
  free(parts);
  free(path);
  return rc;
}

/* ---- the network alone -----------------------------------------------------------------------*/

int checkpoint_read_model(const char *path, nn *net, run_state *state) {
  file_reader r;
  if (!file_open(path, false, true, &r)) return CLI_BAD;
  int rc = file_read_state(&r, state);
  if (rc == CLI_OK) rc = file_read_network(&r, net);
  file_close(&r);
  return rc;
}

int checkpoint_write_model(const char *path, const nn *net, const run_state *state) {
  file_content h = {0};
  file_add_state(&h, state);
  file_add_network(&h, net);
  const int rc = file_write(&h, path);
  file_head_free(&h);
  return rc;
}

/* ---- other files of a run --------------------------------------------------------------------*/

int checkpoint_check_average(const char *dir, bool resumed) {
  char *path = cli_join(dir, CHECKPOINT_AVERAGE);
  int rc = disk_check_regular(path);
  if (rc == CLI_OK && !resumed && disk_exists(path))
    rc = cli_fail("%s: exists and does not belong to this run; move it away", path);
  free(path);
  return rc;
}

bool checkpoint_is_run_file(const char *path) {
  static const char *const file[] = {"log.jsonl", "config.json", CHECKPOINT_AVERAGE};
  int64_t step;
  const char *name = cli_get_base_name(path);
  bool found = classify_file_name(name, &step) != OTHER;
  for (size_t i = 0; i < sizeof file / sizeof file[0]; i++)
    found = found || strcmp(name, file[i]) == 0;
  return found;
}
