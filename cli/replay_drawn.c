/* replay_drawn.c: what a program of low rank drew at its beginning, handed to the library.
 *
 * Power iteration with a warm start begins with a matrix of random numbers, and everything that follows hangs
 * on it.  The library draws its own; what it drew is part of its state, so the state is saved into memory, the
 * recorded matrices are written where its own were, checksums follow, and it is loaded again. */
#include "replay.h"

#include "common/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/* [columns, rank] of each parameter of more than one row. */
static const ngio_tensor *drawn(const recording *r, const shape *l) {
  char name[160];
  (void)snprintf(name, sizeof name, "init.%s.q", l->name);
  return r->file != NULL ? ngio_tensors_find(r->file, name)
                         : recording_folder_find(&r->folder, name);
}

/* Of a parameter: window_rank, and no more than it has. */
static int64_t rank_of(const shape *l, int64_t rank) {
  const int64_t least = l->in < l->out ? l->in : l->out;
  return l->out == 1 ? 0 : rank < least ? rank : least;
}

int replay_check_drawn(const recording *r, const char *path, int64_t rank) {
  for (int i = 0; i < r->layers; i++) {
    const shape *l = &r->layer[i];
    const ngio_tensor *q = drawn(r, l);
    if (l->out == 1) continue;
    if (!r->parameters || q == NULL) {
      return cli_bad("%s: array init.%s.q is missing: low rank begins with what the program drew",
                     path, l->name);
    }
    if (q->dtype != NGIO_F32 || q->ndim != 2 || q->shape[0] != l->in ||
        q->shape[1] != rank_of(l, rank)) {
      return cli_bad("%s: array init.%s.q: expected float32 [%lld,%lld], of window_rank %lld", path,
                     l->name, (long long)l->in, (long long)rank_of(l, rank), (long long)rank);
    }
  }
  return CLI_OK;
}

/* ---- the state in memory ---------------------------------------------------------------------*/

typedef struct bytes {
  char *data;
  size_t n, room, read;
} bytes;

static int32_t take(void *user, const void *data, int64_t n) {
  bytes *b = user;
  if (b->n + (size_t)n > b->room) {
    const size_t room = 2 * (b->n + (size_t)n);
    char *more = cli_take(room, 1);
    if (b->n > 0) memcpy(more, b->data, b->n);
    free(b->data);
    b->data = more;
    b->room = room;
  }
  memcpy(b->data + b->n, data, (size_t)n);
  b->n += (size_t)n;
  return 0;
}

static int64_t give(void *user, void *data, int64_t n) {
  bytes *b = user;
  const size_t left = b->n - b->read, some = left < (size_t)n ? left : (size_t)n;
  memcpy(data, b->data + b->read, some);
  b->read += some;
  return (int64_t)some;
}

/* Eight digits behind `key`, which stands once in the header. */
static bool put_crc(char *header, size_t size, const char *key, const void *data, size_t n) {
  char digits[16];
  const size_t length = strlen(key);
  (void)snprintf(digits, sizeof digits, "%08lx", (unsigned long)crc32_z(0, data, n));
  for (size_t i = 0; i + length + 8 <= size; i++) {
    if (memcmp(header + i, key, length) != 0) continue;
    memcpy(header + i + length, digits, 8);
    return true;
  }
  return false;
}

/* A row of the store: of each parameter the columns of P, then those of Q; whole, where there is one row. */
static void put_drawn(const recording *r, float *row) {
  for (int i = 0; i < r->layers; i++) {
    const shape *l = &r->layer[i];
    const ngio_tensor *q = drawn(r, l);
    const int64_t rank = l->out == 1 ? 0 : q->shape[1];
    const float *from = l->out == 1 ? NULL : q->data;
    for (int64_t a = 0; a < rank; a++) {
      for (int64_t c = 0; c < l->in; c++)
        row[rank * l->out + a * l->in + c] = from[c * rank + a];
    }
    row += l->out == 1 ? l->in : rank * (l->out + l->in);
  }
}

/* The last of its rows is the one before the first. */
static bool change(const recording *r, bytes *b) {
  uint64_t size = 0;
  if (b->n < sizeof size) return false;
  memcpy(&size, b->data, sizeof size);
  char *header = b->data + sizeof size, *arrays = header + size;
  if (size > b->n - sizeof size) return false;
  ngio_json *json = NULL;
  if (ngio_json_parse(header, size, &json, NULL, 0) != NGIO_OK) return false;
  const ngio_value *t = ngio_get(ngio_json_root(json), "window/factors");
  const ngio_value *lengths = ngio_get(t, "shape"), *at = ngio_get(t, "data_offsets");
  const int64_t rows = ngio_integer_of(ngio_at(lengths, 0));
  const int64_t floats = ngio_integer_of(ngio_at(lengths, 1));
  const int64_t from = ngio_integer_of(ngio_at(at, 0));
  const int64_t to = ngio_integer_of(ngio_at(at, 1));
  ngio_json_free(&json);
  if (rows < 2 || to - from != 4 * rows * floats) return false;
  put_drawn(r, (float *)(void *)(arrays + from + 4 * (rows - 1) * floats));
  if (!put_crc(header, size, "\\\"window/factors\\\":{\\\"crc32\\\":\\\"", arrays + from,
               (size_t)(to - from)))
    return false;
  if (ngio_json_parse(header, size, &json, NULL, 0) != NGIO_OK) return false;
  const char *manifest =
      ngio_text_of(ngio_get(ngio_get(ngio_json_root(json), "__metadata__"), "natgrad"));
  const bool ok =
      manifest != NULL && put_crc(header, size, "\"natgrad.crc32\":\"", manifest, strlen(manifest));
  ngio_json_free(&json);
  return ok;
}

ng_status replay_hand_over(const recording *r, ng_precond *p) {
  bytes b = {0};
  ng_status st = ng_save_to(p, take, &b);
  if (st >= 0) st = change(r, &b) ? ng_load_from(p, give, &b) : NG_ERR_FILE;
  free(b.data);
  return st;
}
