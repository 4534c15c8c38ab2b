/* checkpoint_file.c: write and read the file of a checkpoint. Doubles in the metadata are hexadecimal, hence exact. */
#include "checkpoint_file.h"
#include "disk.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { VALUE = 64, KEY = 256 }; /* sizes of text buffers */

static const char seal_key[] = "crc32", maker_key[] = "made_by ", station_key[] = "ms ";

static const char *const maker[CHECKPOINT_MAKERS] = {"version",      "commit",    "compiler",
                                                     "linalg",       "blas",      "kernel",
                                                     "blas threads", "processor", "threads"};

void checkpoint_set_maker(run_state *s) {
  int threads = 1;
  for (int i = 0; i < CHECKPOINT_MAKERS - 2; i++)
    cli_read_build_line(maker[i], s->made_by[i], CHECKPOINT_TEXT);
  cli_read_processor_name(s->made_by[CHECKPOINT_MAKERS - 2], CHECKPOINT_TEXT);
  /* this call cannot fail, because run_set_up has checked NG_THREADS */
  (void)cli_read_thread_count(&threads);
  (void)snprintf(s->made_by[CHECKPOINT_MAKERS - 1], CHECKPOINT_TEXT, "%d", threads);
}

void checkpoint_list_changes(const run_state *was, const run_state *now, char *text, size_t size) {
  size_t n = 0;
  text[0] = 0;
  for (int i = 0; i < CHECKPOINT_MAKERS && n < size; i++) {
    if (strcmp(was->made_by[i], now->made_by[i]) == 0) continue;
    n += (size_t)snprintf(text + n, size - n, "%s%s %s, now %s", n > 0 ? "; " : "", maker[i],
                          was->made_by[i], now->made_by[i]);
  }
}

/* ---- counters --------------------------------------------------------------------------------*/

/* The numbers of run_state that the metadata has: first whole numbers, then doubles. */
static const struct field {
  const char *key;
  size_t at;
} field[] = {{"step", offsetof(run_state, step)},
             {"steps_per_epoch", offsetof(run_state, per_epoch)},
             {"summed", offsetof(run_state, summed)},
             {"correct", offsetof(run_state, correct)},
             {"skipped", offsetof(run_state, skipped)},
             {"rescued", offsetof(run_state, rescued)},
             {"unobserved", offsetof(run_state, unobserved)},
             {"data_crc32", offsetof(run_state, data_crc)},
             {"skipped_in_a_row", offsetof(run_state, skipped_in_a_row)},
             {"averaged_so_far", offsetof(run_state, averaged)},
             {"log_bytes", offsetof(run_state, log_bytes)},
             {"log_crc32", offsetof(run_state, log_crc)},
             {"loss_sum", offsetof(run_state, loss_sum)},
             {"first_loss", offsetof(run_state, first_loss)},
             {"seconds", offsetof(run_state, seconds)}};
enum { FIELDS = sizeof field / sizeof *field, WHOLE = FIELDS - 3 };

/* Parse the text as a whole number >= 0, or as a double. false: the text is wrong, or missing (NULL). */
static bool parse_number(cli_kind kind, const char *text, void *to) {
  char message[CLI_MESSAGE];
  return text != NULL && cli_parse(kind, text, kind == CLI_WHOLE ? 0.0 : -INFINITY, INFINITY, to,
                                   message, sizeof message) == CLI_OK;
}

/* ---- writing ---------------------------------------------------------------------------------*/

void file_head_free(file_content *h) {
  for (int32_t i = 0; i < h->texts; i++) {
    free((char *)(uintptr_t)h->text[i].key);
    free((char *)(uintptr_t)h->text[i].value);
  }
  free(h->text);
  free(h->tensor);
  memset(h, 0, sizeof *h);
}

void file_add_text(file_content *h, const char *key, const char *value) {
  h->text = cli_append_zeroed(h->text, (size_t)h->texts, sizeof *h->text);
  h->text[h->texts++] = (ngio_text){cli_copy_text(key), cli_copy_text(value)};
}

static void format_crc(uLong crc, char text[VALUE]) { (void)snprintf(text, VALUE, "%08lx", crc); }

static void format_data_crc(const void *data, int64_t bytes, char text[VALUE]) {
  format_crc(disk_compute_crc(data, (size_t)bytes), text);
}

static void set_crc_key(const char *name, char key[KEY]) {
  (void)snprintf(key, KEY, "crc32 %s", name);
}

void file_add_tensor(file_content *h, const ngio_tensor *t) {
  char key[KEY], value[VALUE];
  h->tensor = cli_append_zeroed(h->tensor, (size_t)h->tensors, sizeof *h->tensor);
  h->tensor[h->tensors++] = *t;
  if (t->dtype != NGIO_F32) return;
  set_crc_key(t->name, key);
  format_data_crc(t->data, t->bytes, value);
  file_add_text(h, key, value);
}

void file_add_state(file_content *h, const run_state *s) {
  char value[VALUE], key[KEY];
  for (int i = 0; i < FIELDS; i++) {
    const void *from = (const char *)s + field[i].at;
    if (i < WHOLE)
      (void)snprintf(value, VALUE, "%lld", (long long)*(const int64_t *)from);
    else
      (void)snprintf(value, VALUE, "%a", *(const double *)from);
    file_add_text(h, field[i].key, value);
  }
  for (int i = 0; i < s->stations; i++) {
    (void)snprintf(key, KEY, "%s%s", station_key, s->station[i].name);
    (void)snprintf(value, VALUE, "%a", s->station[i].ms);
    file_add_text(h, key, value);
  }
  for (int i = 0; i < CHECKPOINT_MAKERS; i++) {
    (void)snprintf(key, KEY, "%s%s", maker_key, maker[i]);
    file_add_text(h, key, s->made_by[i]);
  }
}

ngio_tensor file_get_tensor(const nn *net, int i) {
  ngio_tensor t = {.dtype = NGIO_F32};
  if (i < nn_count_params(net)) {
    const nn_param *q = nn_get_param(net, i);
    t.name = q->name;
    t.ndim = q->ndim;
    memcpy(t.shape, q->shape, sizeof q->shape);
    t.data = q->value;
  } else {
    const nn_buffer *b = nn_get_buffer(net, i - nn_count_params(net));
    t.name = b->name;
    t.ndim = 1;
    t.shape[0] = b->count;
    t.data = b->value;
  }
  t.bytes = ngio_bytes_of(t.dtype, t.shape, t.ndim);
  return t;
}

void file_add_network(file_content *h, const nn *net) {
  for (int i = 0; i < nn_count_params(net) + nn_count_buffers(net); i++) {
    const ngio_tensor t = file_get_tensor(net, i);
    file_add_tensor(h, &t);
  }
}

/* Continue a checksum over key and value, including their terminating zeros. */
static uLong add_text_crc(uLong crc, const ngio_text *t) {
  crc = crc32_z(crc, (const unsigned char *)t->key, strlen(t->key) + 1);
  return crc32_z(crc, (const unsigned char *)t->value, strlen(t->value) + 1);
}

int file_write(file_content *h, const char *path) {
  char message[CLI_MESSAGE] = "", seal[VALUE];
  uLong crc = crc32_z(0, NULL, 0);
  for (int32_t i = 0; i < h->texts; i++)
    crc = add_text_crc(crc, &h->text[i]);
  format_crc(crc, seal);
  file_add_text(h, seal_key, seal);
  const ngio_status st =
      ngio_tensors_write(path, h->tensor, h->tensors, h->text, h->texts, message, sizeof message);
  return st == NGIO_OK ? CLI_OK : cli_fail("%s", message);
}

/* ---- reading ---------------------------------------------------------------------------------*/

static bool has_valid_seal(const ngio_tensors *f) {
  char seal[VALUE];
  const char *written = ngio_tensors_text(f, seal_key);
  uLong crc = crc32_z(0, NULL, 0);
  for (int32_t i = 0; i < ngio_tensors_text_count(f); i++) {
    const ngio_text *t = ngio_tensors_text_at(f, i);
    if (strcmp(t->key, seal_key) != 0) crc = add_text_crc(crc, t);
  }
  format_crc(crc, seal);
  return written != NULL && strcmp(written, seal) == 0;
}

bool file_open(const char *path, bool sealed, bool report, file_reader *out) {
  char why[CLI_MESSAGE] = "";
  *out = (file_reader){.path = path, .source = {.fd = -1}};
  if (ngio_source_open(&out->source, path, why, CLI_MESSAGE) == NGIO_OK &&
      ngio_tensors_begin(&out->source, NULL, &out->file, why, CLI_MESSAGE) == NGIO_OK) {
    if (!sealed || has_valid_seal(out->file)) return true;
    (void)snprintf(why, CLI_MESSAGE,
                   "%s: its metadata is damaged or was edited: the checksum differs", path);
  }
  file_close(out);
  if (report) (void)cli_fail("%s", why);
  return false;
}

void file_close(file_reader *r) {
  ngio_tensors_close(&r->file);
  ngio_source_close(&r->source);
}

int file_read_state(const file_reader *r, run_state *s) {
  const bool sealed = ngio_tensors_text(r->file, seal_key) != NULL; /* false in natgrad 0.2 */
  for (int i = 0; i < FIELDS; i++) {
    const char *text = ngio_tensors_text(r->file, field[i].key);
    void *to = (char *)s + field[i].at;
    if (text == NULL && !sealed) continue;
    if (!parse_number(i < WHOLE ? CLI_WHOLE : CLI_REAL, text, to))
      return cli_fail("%s: its metadata has no valid '%s'", r->path, field[i].key);
  }
  s->stations = 0;
  const size_t station = sizeof station_key - 1, made_by = sizeof maker_key - 1;
  for (int32_t i = 0; i < ngio_tensors_text_count(r->file); i++) {
    const ngio_text *t = ngio_tensors_text_at(r->file, i);
    if (strncmp(t->key, station_key, station) == 0 && s->stations < TRAIN_STATIONS) {
      train_station *to = &s->station[s->stations++];
      (void)snprintf(to->name, sizeof to->name, "%s", t->key + station);
      if (!parse_number(CLI_REAL, t->value, &to->ms))
        return cli_fail("%s: its metadata has no valid '%s'", r->path, t->key);
    }
    for (int k = 0; k < CHECKPOINT_MAKERS && strncmp(t->key, maker_key, made_by) == 0; k++)
      if (strcmp(t->key + made_by, maker[k]) == 0)
        (void)snprintf(s->made_by[k], CHECKPOINT_TEXT, "%s", t->value);
  }
  return CLI_OK;
}

int file_read_tensor(file_reader *r, const ngio_tensor *want, float *to) {
  char key[KEY], sum[VALUE], message[CLI_MESSAGE] = "";
  const ngio_tensor *have = ngio_tensors_find(r->file, want->name);
  if (have == NULL || have->dtype != NGIO_F32 || have->ndim != want->ndim ||
      memcmp(have->shape, want->shape, (size_t)want->ndim * sizeof want->shape[0]) != 0)
    return cli_fail("%s: tensor '%s' is missing or has another shape", r->path, want->name);
  if (ngio_source_read(&r->source, ngio_tensors_place(r->file, have), to, have->bytes, message,
                       sizeof message) != NGIO_OK)
    return cli_fail("%s", message);
  set_crc_key(want->name, key);
  format_data_crc(to, have->bytes, sum);
  const char *written = ngio_tensors_text(r->file, key);
  if (written != NULL && strcmp(written, sum) == 0) return CLI_OK;
  return cli_fail("%s: tensor '%s' is damaged (its checksum differs)", r->path, want->name);
}

/* Return the number of tensors of the network. Names of all other tensors begin with "natgrad.". */
static int count_network_tensors(const ngio_tensors *f) {
  int n = 0;
  for (int32_t i = 0; i < ngio_tensors_count(f); i++)
    n += strncmp(ngio_tensors_at(f, i)->name, "natgrad.", 8) != 0;
  return n;
}

int file_read_network(file_reader *r, nn *net) {
  const int n = nn_count_params(net) + nn_count_buffers(net), has = count_network_tensors(r->file);
  if (has != n)
    return cli_fail("%s: has %d tensors, expected the %d of this model", r->path, has, n);
  for (int i = 0; i < n; i++) {
    const ngio_tensor want = file_get_tensor(net, i);
    if (file_read_tensor(r, &want, (float *)(uintptr_t)want.data) != CLI_OK) return CLI_BAD;
  }
  const char *lost = checkpoint_find_nonfinite(net);
  if (lost == NULL) return CLI_OK;
  return cli_fail("%s: tensor '%s' holds a number that is not finite", r->path, lost);
}

const char *checkpoint_find_nonfinite(const nn *net) {
  for (int i = 0; i < nn_count_params(net) + nn_count_buffers(net); i++) {
    const ngio_tensor t = file_get_tensor(net, i);
    const float *value = t.data;
    for (int64_t k = 0; k < t.bytes / (int64_t)sizeof *value; k++)
      if (!isfinite(value[k])) return t.name;
  }
  return NULL;
}
