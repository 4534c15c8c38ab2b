/* checkpoint.c: a run's state on disk and back, bit for bit: weights as they are, sums as
 * hexadecimal floating point.  Order of events and files: checkpoint.h. */
#include "checkpoint.h"
#include "disk.h"
#include "safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { MESSAGE = 512, PATH = 4096, VALUE = 64, KEY = 256, FIELDS = 11 };

static int path_of(char *path, const char *dir, const char *what, int64_t step) {
  const int n =
      snprintf(path, PATH, "%s/checkpoint/%s-%lld.safetensors", dir, what, (long long)step);
  return n < PATH ? CLI_OK : cli_bad("%s: this name is too long", dir);
}

/* ---- the numbers -----------------------------------------------------------------------------*/

/* One list for both ways: a key, and where its number is. */
typedef struct field {
  const char *key;
  int64_t *whole;
  double *real;
} field;

static void fields_of(run_state *s, field out[FIELDS]) {
  const field list[FIELDS] = {
      {"step", &s->step, NULL},
      {"steps_per_epoch", &s->per_epoch, NULL},
      {"log_bytes", &s->log_bytes, NULL},
      {"loss_sum", NULL, &s->loss_sum},
      {"summed", &s->summed, NULL},
      {"correct", &s->correct, NULL},
      {"skipped", &s->skipped, NULL},
      {"rescued", &s->rescued, NULL},
      {"unobserved", &s->unobserved, NULL},
      {"seconds", NULL, &s->seconds},
      {"data_crc32", &s->data_crc, NULL},
  };
  memcpy(out, list, sizeof list);
}

static bool read_field(const field *f, const char *text) {
  char *end = NULL;
  errno = 0;
  if (f->whole != NULL) {
    const long long v = strtoll(text, &end, 10);
    *f->whole = v;
    return end != text && *end == 0 && errno == 0 && v >= 0;
  }
  *f->real = strtod(text, &end);
  return end != text && *end == 0;
}

/* ---- the model -------------------------------------------------------------------------------*/

/* Parameters, then buffers. */
static void tensor_of(const nn *net, int i, ngio_tensor *t) {
  memset(t, 0, sizeof *t);
  t->dtype = NGIO_F32;
  if (i < nn_params(net)) {
    const nn_param *q = nn_param_at(net, i);
    t->name = q->name;
    t->ndim = q->ndim;
    memcpy(t->shape, q->shape, sizeof q->shape);
    t->data = q->value;
  } else {
    const nn_buffer *b = nn_buffer_at(net, i - nn_params(net));
    t->name = b->name;
    t->ndim = 1;
    t->shape[0] = b->count;
    t->data = b->value;
  }
  t->bytes = ngio_bytes_of(t->dtype, t->shape, t->ndim);
}

/* Metadata "crc32 NAME" of every tensor, as in the library's state. */
static void checksum(const ngio_tensor *t, char key[KEY], char value[VALUE]) {
  (void)snprintf(key, KEY, "crc32 %s", t->name);
  (void)snprintf(value, VALUE, "%08lx", crc32_z(crc32_z(0, NULL, 0), t->data, (size_t)t->bytes));
}

static int save_model(const char *path, const nn *net, const run_state *state) {
  run_state s = *state;
  field list[FIELDS];
  fields_of(&s, list);
  const int n = nn_params(net) + nn_buffers(net);
  const size_t most = (size_t)(FIELDS + TRAIN_STATIONS + n);
  char message[MESSAGE] = "", (*value)[VALUE] = cli_take(most, VALUE),
       (*key)[KEY] = cli_take(most, KEY);
  ngio_text *text = cli_take(most, sizeof *text);
  int texts = 0;
  for (; texts < FIELDS; texts++) {
    if (list[texts].whole != NULL) {
      (void)snprintf(value[texts], VALUE, "%lld", (long long)*list[texts].whole);
    } else {
      (void)snprintf(value[texts], VALUE, "%a", *list[texts].real);
    }
    text[texts] = (ngio_text){list[texts].key, value[texts]};
  }
  for (int i = 0; i < s.stations; i++, texts++) {
    (void)snprintf(key[texts], KEY, "ms %s", s.station[i].name);
    (void)snprintf(value[texts], VALUE, "%a", s.station[i].total_ms);
    text[texts] = (ngio_text){key[texts], value[texts]};
  }
  ngio_tensor *t = cli_take((size_t)n, sizeof *t);
  for (int i = 0; i < n; i++, texts++) {
    tensor_of(net, i, &t[i]);
    checksum(&t[i], key[texts], value[texts]);
    text[texts] = (ngio_text){key[texts], value[texts]};
  }
  const ngio_status st = ngio_tensors_write(path, t, n, text, texts, message, sizeof message);
  free(t);
  free(text);
  free(key);
  free(value);
  return st == NGIO_OK ? CLI_OK : cli_bad("%s", message);
}

static int load_model(const char *path, nn *net, run_state *s) {
  char message[MESSAGE] = "";
  ngio_tensors *file = NULL;
  field list[FIELDS];
  if (ngio_tensors_read(path, NULL, &file, message, sizeof message) != NGIO_OK)
    return cli_bad("%s", message);
  int rc = CLI_OK;
  fields_of(s, list);
  for (int i = 0; i < FIELDS && rc == CLI_OK; i++) {
    const char *text = ngio_tensors_text(file, list[i].key);
    if (text == NULL || !read_field(&list[i], text))
      rc = cli_bad("%s: its metadata has no good '%s'", path, list[i].key);
  }
  for (int i = 0; i < ngio_tensors_text_count(file) && rc == CLI_OK; i++) {
    const ngio_text *t = ngio_tensors_text_at(file, i);
    if (strncmp(t->key, "ms ", 3) != 0 || s->stations == TRAIN_STATIONS) continue;
    train_station *to = &s->station[s->stations++];
    (void)snprintf(to->name, sizeof to->name, "%s", t->key + 3);
    if (!read_field(&(field){NULL, NULL, &to->total_ms}, t->value))
      rc = cli_bad("%s: its metadata has no good '%s'", path, t->key);
  }
  const int n = nn_params(net) + nn_buffers(net);
  if (rc == CLI_OK && ngio_tensors_count(file) != n) {
    rc = cli_bad("%s: has %lld tensors, this model %d", path, (long long)ngio_tensors_count(file),
                 n);
  }
  for (int i = 0; i < n && rc == CLI_OK; i++) {
    ngio_tensor want;
    tensor_of(net, i, &want);
    const ngio_tensor *have = ngio_tensors_find(file, want.name);
    char key[KEY], sum[VALUE] = "";
    if (have == NULL || have->dtype != NGIO_F32 || have->ndim != want.ndim ||
        memcmp(have->shape, want.shape, (size_t)want.ndim * sizeof want.shape[0]) != 0) {
      rc = cli_bad("%s: tensor '%s' is missing or has another shape", path, want.name);
      continue;
    }
    checksum(have, key, sum);
    const char *written = ngio_tensors_text(file, key);
    if (written == NULL || strcmp(written, sum) != 0) {
      rc = cli_bad("%s: tensor '%s' is damaged (its checksum differs)", path, want.name);
    } else {
      memcpy((float *)(uintptr_t)want.data, have->data,
             (size_t)have->bytes); /* the network's own */
    }
  }
  ngio_tensors_close(&file);
  return rc;
}

/* ---- the pair --------------------------------------------------------------------------------*/

/* Whatever is not of this step goes: the pair before, and what a killed run left half written. */
void checkpoint_tidy(const char *dir, int64_t step) {
  char keep[2][VALUE], *folder = cli_join(dir, "checkpoint");
  (void)snprintf(keep[0], VALUE, "model-%lld.safetensors", (long long)step);
  (void)snprintf(keep[1], VALUE, "precond-%lld.safetensors", (long long)step);
  DIR *d = opendir(folder);
  free(folder);
  if (d == NULL) return; /* they only take room */
  for (const struct dirent *e; (e = readdir(d)) != NULL;) {
    if (strncmp(e->d_name, "model-", 6) != 0 && strncmp(e->d_name, "precond-", 8) != 0) continue;
    if (strcmp(e->d_name, keep[0]) != 0 && strcmp(e->d_name, keep[1]) != 0)
      (void)unlinkat(dirfd(d), e->d_name, 0);
  }
  (void)closedir(d);
}

int checkpoint_save(const char *dir, const nn *net, precond *p, const run_state *state) {
  char path[PATH], text[VALUE];
  char *folder = cli_join(dir, "checkpoint"), *latest = cli_join(folder, "latest.json");
  int rc = disk_folder(folder);
  if (rc == CLI_OK) rc = path_of(path, dir, "model", state->step);
  if (rc == CLI_OK) rc = save_model(path, net, state);
  if (rc == CLI_OK) rc = path_of(path, dir, "precond", state->step);
  if (rc == CLI_OK) rc = precond_save(p, path);
  const int n =
      snprintf(text, sizeof text, "{\"schema\": 1, \"step\": %lld}\n", (long long)state->step);
  if (rc == CLI_OK) rc = disk_write(latest, text, (size_t)n);
  if (rc == CLI_OK) checkpoint_tidy(dir, state->step);
  free(folder);
  free(latest);
  return rc;
}

bool checkpoint_exists(const char *dir) {
  char *path = cli_join(dir, "checkpoint/latest.json");
  const bool there = disk_exists(path);
  free(path);
  return there;
}

static int read_latest(const char *dir, int64_t *step) {
  char *folder = cli_join(dir, "checkpoint"), *path = cli_join(folder, "latest.json");
  char *text = NULL;
  int rc = disk_read(path, &text);
  json_t *o = rc == CLI_OK ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
  const json_t *v = json_object_get(o, "step");
  const bool ours = json_integer_value(json_object_get(o, "schema")) == 1;
  *step = ours && json_is_integer(v) ? (int64_t)json_integer_value(v) : -1;
  if (rc == CLI_OK && *step < 0) rc = cli_bad("%s: expected {\"schema\": 1, \"step\": N}", path);
  json_decref(o);
  free(text);
  free(folder);
  free(path);
  return rc;
}

int checkpoint_load(const char *dir, nn *net, precond *p, run_state *state) {
  char path[PATH];
  int64_t step = 0;
  memset(state, 0, sizeof *state);
  int rc = read_latest(dir, &step);
  if (rc == CLI_OK) rc = path_of(path, dir, "model", step);
  if (rc == CLI_OK) rc = load_model(path, net, state);
  if (rc == CLI_OK && state->step != step)
    rc = cli_bad("%s: is of step %lld", path, (long long)state->step);
  if (rc == CLI_OK) rc = path_of(path, dir, "precond", step);
  return rc == CLI_OK ? precond_load(p, path) : rc;
}
