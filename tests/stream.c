/* stream.c: see stream.h. */
#include "stream.h"
#include "json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

int32_t stream_write(void *user, const void *data, int64_t bytes) {
  stream *s = user;
  if (++s->calls == s->fail_at) return (int32_t)s->says;
  if (bytes <= 0) return -99; /* the library must not write 0 bytes */
  unsigned char *more = realloc(s->bytes, (size_t)(s->n + bytes));
  if (more == NULL) return -98;
  s->bytes = more;
  memcpy(s->bytes + s->n, data, (size_t)bytes);
  s->n += bytes;
  return 0;
}

int64_t stream_read(void *user, void *data, int64_t bytes) {
  stream *s = user;
  if (++s->calls == s->fail_at) return s->says > 0 ? bytes + s->says : s->says;
  if (s->at == s->n && s->endless) {
    memset(data, 0, (size_t)bytes);
    return bytes;
  }
  if (s->piece > 0 && bytes > s->piece) bytes = s->piece;
  if (bytes > s->n - s->at) bytes = s->n - s->at;
  if (bytes > 0) memcpy(data, s->bytes + s->at, (size_t)bytes);
  s->at += bytes;
  return bytes;
}

void stream_rewind(stream *s) { s->at = s->calls = s->fail_at = s->says = s->endless = 0; }

void stream_free(stream *s) {
  free(s->bytes);
  memset(s, 0, sizeof *s);
}

/* ---- a state by hand -------------------------------------------------------------------------*/

static ng_status field_at(ng_precond *p, int32_t i, ng_field_info *info) {
  *info = (ng_field_info){.struct_size = sizeof *info};
  return ng_state_at(p, i, info);
}

ng_status state_arrays_read(ng_precond *p, int32_t rank, state_arrays *mine) {
  memset(mine, 0, sizeof *mine);
  mine->fields = ng_state_count(p);
  mine->data = calloc((size_t)mine->fields + 1, sizeof *mine->data);
  ng_status st = mine->data == NULL ? NG_ERR_NOMEM : NG_OK;
  for (int32_t i = 0; i < mine->fields && st == NG_OK; i++) {
    ng_field_info info;
    st = field_at(p, i, &info);
    if (st != NG_OK) break;
    void *room = malloc((size_t)info.bytes);
    if (room == NULL) return NG_ERR_NOMEM;
    if (ng_state_read(p, i, room, info.bytes) == NG_OK) {
      mine->data[i] = room;
    } else {
      free(room);
      if (info.owner == rank) st = NG_ERR_STATE;
    }
  }
  const int64_t n = ng_state_manifest(p, NULL, 0); /* collective: every rank has read its fields */
  if (n <= 0) return NG_ERR_STATE;
  mine->manifest = malloc((size_t)n + 1);
  if (mine->manifest == NULL) return NG_ERR_NOMEM;
  return ng_state_manifest(p, mine->manifest, (size_t)n + 1) == n ? st : NG_ERR_STATE;
}

ng_status state_arrays_write(ng_precond *p, const state_arrays *all, stream *to) {
  static const char *const dtype[] = {"", "F32", "F64", "F16", "BF16", "I32", "I64", "U8"};
  ngio_out o = {0};
  char sum[16];
  int64_t at = 0;
  ng_status st = NG_OK;
  ng_field_info info;
  (void)snprintf(sum, sizeof sum, "%08lx",
                 crc32(0, (const Bytef *)all[0].manifest, (uInt)strlen(all[0].manifest)));
  ngio_open(&o, NULL, '{');
  ngio_open(&o, "__metadata__", '{');
  ngio_put_text(&o, "natgrad.crc32", sum);
  ngio_put_text(&o, "natgrad", all[0].manifest);
  ngio_shut(&o, '}');
  for (int32_t i = 0; i < all[0].fields && st == NG_OK; i++) {
    st = field_at(p, i, &info);
    if (st != NG_OK) break;
    ngio_open(&o, info.name, '{');
    ngio_open(&o, "data_offsets", '[');
    ngio_put_integer(&o, NULL, at);
    ngio_put_integer(&o, NULL, at + info.bytes);
    ngio_shut(&o, ']');
    ngio_open(&o, "shape", '[');
    for (int32_t k = 0; k < info.ndim; k++)
      ngio_put_integer(&o, NULL, info.shape[k]);
    ngio_shut(&o, ']');
    ngio_put_text(&o, "dtype", dtype[info.dtype]);
    ngio_shut(&o, '}');
    at += info.bytes;
  }
  ngio_shut(&o, '}');
  if (o.lost) return NG_ERR_NOMEM;
  unsigned char length[8];
  for (int i = 0; i < 8; i++)
    length[i] = (unsigned char)((uint64_t)o.used >> (8 * i));
  if (stream_write(to, length, 8) != 0 || stream_write(to, o.text, (int64_t)o.used) != 0)
    st = NG_ERR_NOMEM;
  ngio_out_free(&o);
  for (int32_t i = 0; i < all[0].fields && st == NG_OK; i++) {
    st = field_at(p, i, &info);
    const void *data = all[0].data[i] != NULL ? all[0].data[i] : all[info.owner].data[i];
    if (st == NG_OK && (data == NULL || stream_write(to, data, info.bytes) != 0)) st = NG_ERR_STATE;
  }
  return st;
}

void state_arrays_free(state_arrays *w) {
  for (int32_t i = 0; i < w->fields && w->data != NULL; i++)
    free(w->data[i]);
  free(w->data);
  free(w->manifest);
  memset(w, 0, sizeof *w);
}
