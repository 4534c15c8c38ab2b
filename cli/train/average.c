/* average.c: the formulas are on the card in average.h. */
#include "average.h"
#include "safetensors.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { MESSAGE = 512, TEXT = 32 };

int average_create(const settings *s, const nn *net, int64_t per_epoch, average *out) {
  *out = (average){.weights = nn_weights(net)};
  if (s->average_weights <= 0.0) return CLI_OK;
  out->start = llround(s->average_weights * (double)per_epoch);
  out->every = s->average_every > 0 ? s->average_every : per_epoch;
  out->mean = calloc((size_t)out->weights, sizeof *out->mean);
  if (out->mean != NULL) return CLI_OK;
  return cli_bad("--average-weights: no memory for %lld weights", (long long)out->weights);
}

void average_free(average *a) {
  free(a->mean);
  memset(a, 0, sizeof *a);
}

void average_add(average *a, const nn *net, int64_t step) {
  if (a->mean == NULL || step <= a->start || step % a->every != 0) return;
  float *to = a->mean;
  const double n = (double)++a->count;
  for (int i = 0; i < nn_params(net); i++) {
    const nn_param *p = nn_param_at(net, i);
    for (int64_t k = 0; k < p->count; k++)
      to[k] = (float)((double)to[k] + ((double)p->value[k] - (double)to[k]) / n);
    to += p->count;
  }
}

double average_lr(const settings *s, const average *a, int64_t step, double lr) {
  return a->mean != NULL && step >= a->start && s->average_lr >= 0.0 ? s->average_lr : lr;
}

bool average_carries(const average *a) { return a->count > 0; }

void average_take(const average *a, nn *net) {
  const float *from = a->mean;
  for (int i = 0; i < nn_params(net); i++) {
    const nn_param *p = nn_param_at(net, i);
    memcpy(p->value, from, (size_t)p->count * sizeof *from);
    from += p->count;
  }
}

int average_tell(average *a, const run_ranks *k) {
  int rc = ranks_tell(k, &a->count, sizeof a->count);
  if (rc == CLI_OK && a->count > 0)
    rc = ranks_tell(k, a->mean, a->weights * (int64_t)sizeof *a->mean);
  return rc;
}

/* ---- on disk -----------------------------------------------------------------------------------*/

static ngio_tensor tensor_of(const average *a) {
  ngio_tensor t = {
      .name = "mean", .dtype = NGIO_F32, .ndim = 1, .shape = {a->weights}, .data = a->mean};
  t.bytes = ngio_bytes_of(t.dtype, t.shape, t.ndim);
  return t;
}

static void checksum(const ngio_tensor *t, char sum[TEXT]) {
  (void)snprintf(sum, TEXT, "%08lx", crc32_z(crc32_z(0, NULL, 0), t->data, (size_t)t->bytes));
}

int average_save(const average *a, const char *path) {
  char message[MESSAGE] = "", sum[TEXT], count[TEXT];
  const ngio_tensor t = tensor_of(a);
  checksum(&t, sum);
  (void)snprintf(count, sizeof count, "%lld", (long long)a->count);
  const ngio_text text[] = {{"crc32 mean", sum}, {"averaged", count}};
  const ngio_status st = ngio_tensors_write(path, &t, 1, text, 2, message, sizeof message);
  return st == NGIO_OK ? CLI_OK : cli_bad("%s", message);
}

int average_load(average *a, const char *path) {
  char message[MESSAGE] = "", sum[TEXT] = "", *end = NULL;
  ngio_tensors *file = NULL;
  if (ngio_tensors_read(path, NULL, &file, message, sizeof message) != NGIO_OK)
    return cli_bad("%s", message);
  const ngio_tensor *have = ngio_tensors_find(file, "mean");
  const char *written = ngio_tensors_text(file, "crc32 mean");
  const char *count = ngio_tensors_text(file, "averaged");
  int rc = CLI_OK;
  errno = 0;
  const long long n = count != NULL ? strtoll(count, &end, 10) : 0;
  if (have == NULL || have->dtype != NGIO_F32 || have->ndim != 1 || have->shape[0] != a->weights) {
    rc = cli_bad("%s: tensor 'mean' is missing or is not of %lld weights", path,
                 (long long)a->weights);
  } else if (n < 1 || errno != 0 || *end != 0) {
    rc = cli_bad("%s: its metadata has no good 'averaged'", path);
  } else {
    checksum(have, sum);
    if (written == NULL || strcmp(written, sum) != 0)
      rc = cli_bad("%s: tensor 'mean' is damaged (its checksum differs)", path);
  }
  if (rc == CLI_OK) {
    memcpy(a->mean, have->data, (size_t)have->bytes);
    a->count = n;
  }
  ngio_tensors_close(&file);
  return rc;
}
