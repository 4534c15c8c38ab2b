/* checkpoint_model.c: the network on disk and back, bit for bit: weights as they are, sums as hexadecimal
 * floating point in the metadata. */
#include "checkpoint.h"
#include "run_files.h"
#include "safetensors.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { MESSAGE = 512, VALUE = 64, KEY = 256, FIELDS = 11 };

/* ---- the numbers -----------------------------------------------------------------------------*/

/* Files of a set of images that are no good. */
static const char left_out_key[] = "left_out";

/* One list for both ways: a key, and where its number is. */
typedef struct field {
  const char *key;
  int64_t *whole;
  double *real;
  bool later; /* checkpoints of before do not have it, and then it stays 0 */
} field;

static void fields_of(run_state *s, field out[FIELDS]) {
  const field list[FIELDS] = {
      {"step", &s->step, NULL, false},
      {"steps_per_epoch", &s->per_epoch, NULL, false},
      {"loss_sum", NULL, &s->loss_sum, false},
      {"summed", &s->summed, NULL, false},
      {"correct", &s->correct, NULL, false},
      {"skipped", &s->skipped, NULL, false},
      {"rescued", &s->rescued, NULL, false},
      {"unobserved", &s->unobserved, NULL, false},
      {"data_crc32", &s->data_crc, NULL, false},
      {"skipped_in_a_row", &s->in_a_row, NULL, false},
      {"first_loss", NULL, &s->first_loss, true},
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

int checkpoint_write_model(const char *path, const nn *net, const run_state *state,
                           int64_t averaged, const char *left_out) {
  run_state s = *state;
  field list[FIELDS];
  fields_of(&s, list);
  const int n = nn_params(net) + nn_buffers(net);
  const size_t most = (size_t)(FIELDS + n + 2);
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
  ngio_tensor *t = cli_take((size_t)n, sizeof *t);
  for (int i = 0; i < n; i++, texts++) {
    tensor_of(net, i, &t[i]);
    checksum(&t[i], key[texts], value[texts]);
    text[texts] = (ngio_text){key[texts], value[texts]};
  }
  if (averaged > 0) {
    (void)snprintf(value[texts], VALUE, "%lld", (long long)averaged);
    text[texts] = (ngio_text){RUN_FILES_AVERAGED, value[texts]};
    texts++;
  }
  if (left_out != NULL) text[texts++] = (ngio_text){left_out_key, left_out};
  const ngio_status st = ngio_tensors_write(path, t, n, text, texts, message, sizeof message);
  free(t);
  free(text);
  free(key);
  free(value);
  return st == NGIO_OK ? CLI_OK : cli_bad("%s", message);
}

const char *checkpoint_lost(const nn *net) {
  for (int i = 0; i < nn_params(net) + nn_buffers(net); i++) {
    ngio_tensor t;
    tensor_of(net, i, &t);
    const float *value = t.data;
    for (int64_t k = 0; k < t.bytes / (int64_t)sizeof *value; k++) {
      if (!isfinite(value[k])) return t.name;
    }
  }
  return NULL;
}

int checkpoint_read_model(const char *path, nn *net, run_state *s, char **left_out) {
  char message[MESSAGE] = "";
  ngio_tensors *file = NULL;
  field list[FIELDS];
  if (left_out != NULL) *left_out = NULL;
  if (ngio_tensors_read(path, NULL, &file, message, sizeof message) != NGIO_OK)
    return cli_bad("%s", message);
  int rc = CLI_OK;
  fields_of(s, list);
  if (left_out != NULL) {
    const char *text = ngio_tensors_text(file, left_out_key);
    *left_out = text != NULL ? cli_copy(text) : NULL;
  }
  for (int i = 0; i < FIELDS && rc == CLI_OK; i++) {
    const char *text = ngio_tensors_text(file, list[i].key);
    if (text == NULL && list[i].later) continue;
    if (text == NULL || !read_field(&list[i], text))
      rc = cli_bad("%s: its metadata has no good '%s'", path, list[i].key);
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
  const char *lost = rc == CLI_OK ? checkpoint_lost(net) : NULL;
  if (lost != NULL) rc = cli_bad("%s: tensor '%s' holds a number that is not finite", path, lost);
  return rc;
}
