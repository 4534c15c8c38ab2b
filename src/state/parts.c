/* parts.c: see parts.h. */
#include "state/parts.h"

int64_t ng_part_room(const char *path) { return (int64_t)strlen(path) + NGIO_PART_ROOM; }

/* ---- pieces, written -------------------------------------------------------------------------*/

void ng_pieces_begin(ngio_out *o, const ng_item *item) {
  int32_t ndim;
  int64_t shape[2];
  ng_tensor_shape(&item->f, &ndim, shape);
  ngio_open(o, item->name, '{');
  ngio_open(o, "shape", '[');
  for (int32_t i = 0; i < ndim; i++)
    ngio_put_integer(o, NULL, shape[i]);
  ngio_shut(o, ']');
  ngio_open(o, "pieces", '[');
}

void ng_pieces_put(ngio_out *o, const ng_part_piece *q) {
  ngio_open(o, NULL, '{');
  ngio_put_integer(o, "part", q->part);
  if (!q->whole) {
    ngio_put_integer(o, q->by_rows ? "from_row" : "from", q->from);
    ngio_put_integer(o, q->by_rows ? "to_row" : "to", q->to);
  }
  ngio_put_text(o, "crc32", q->crc);
  ngio_put_flag(o, "finite", q->finite);
  ngio_shut(o, '}');
}

void ng_pieces_end(ngio_out *o) { ngio_out_put(o, "]}"); }

void ng_parts_end(ngio_out *o, const int64_t *bytes, const int64_t *tensors, int32_t parts) {
  ngio_shut(o, '}');
  ngio_open(o, "parts", '[');
  for (int32_t r = 0; r < parts; r++) {
    ngio_open(o, NULL, '{');
    ngio_put_integer(o, "bytes", bytes[r]);
    ngio_put_integer(o, "tensors", tensors[r]);
    ngio_shut(o, '}');
  }
  ngio_out_bytes(o, "]}", sizeof "]}");
}

/* ---- ... and read ----------------------------------------------------------------------------*/

/* -1: no such number. */
static int64_t number_of(const ngio_value *v, const char *key) {
  const ngio_value *x = ngio_get(v, key);
  return ngio_is(x, NGIO_INTEGER) ? x->is.integer : -1;
}

ng_part_piece ng_part_piece_of(const ngio_value *v, const ng_field *f) {
  ng_part_piece q = {.part = (int32_t)number_of(v, "part"), .to = f->cols, .whole = true};
  q.by_rows = ngio_get(v, "from_row") != NULL;
  if (q.by_rows || ngio_get(v, "from") != NULL) {
    q.whole = false;
    q.from = number_of(v, q.by_rows ? "from_row" : "from");
    q.to = number_of(v, q.by_rows ? "to_row" : "to");
  }
  q.crc = ngio_text_of(ngio_get(v, "crc32"));
  q.finite = !ngio_is(ngio_get(v, "finite"), NGIO_FALSE);
  return q;
}

static bool same_shape(const ngio_value *v, const ng_field *f) {
  int32_t ndim;
  int64_t shape[2];
  ng_tensor_shape(f, &ndim, shape);
  if (!ngio_is(v, NGIO_ARRAY) || v->count != (uint32_t)ndim) return false;
  const ngio_value *x = ngio_first(v);
  for (int32_t i = 0; i < ndim; i++, x = ngio_next(v, x)) {
    if (!ngio_is(x, NGIO_INTEGER) || x->is.integer != shape[i]) return false;
  }
  return true;
}

/* Refuse keys that this version does not know. */
static bool well_said(const ngio_value *v, const ng_part_piece *q) {
  const ngio_value *finite = ngio_get(v, "finite");
  return v->count == (q->whole ? 3 : 5) && q->crc != NULL && strlen(q->crc) == NG_HEX &&
         (ngio_is(finite, NGIO_TRUE) || ngio_is(finite, NGIO_FALSE));
}

/* A rank writes one piece of an array at most.  Parts are in order of ranks, except within a model group. */
static bool parts_twice(const ngio_value *pieces) {
  for (const ngio_value *x = ngio_first(pieces); x != NULL; x = ngio_next(pieces, x)) {
    for (const ngio_value *y = ngio_next(pieces, x); y != NULL; y = ngio_next(pieces, y)) {
      if (number_of(x, "part") == number_of(y, "part")) return true;
    }
  }
  return false;
}

const ngio_value *ng_pieces_read(const ngio_value *v, const ng_field *f, int32_t parts) {
  const ngio_value *pieces = ngio_get(v, "pieces");
  int64_t at = 0, part = -1, all = f->cols;
  bool ordered = true;
  if (!same_shape(ngio_get(v, "shape"), f) || v->count != 2 || !ngio_is(pieces, NGIO_ARRAY) ||
      pieces->count == 0) {
    return NULL;
  }
  const bool by_rows = ngio_get(ngio_first(pieces), "from_row") != NULL;
  if (by_rows) all = f->rows;
  for (const ngio_value *x = ngio_first(pieces); x != NULL; x = ngio_next(pieces, x)) {
    const int64_t its = number_of(x, "part");
    const ng_part_piece q = ng_part_piece_of(x, f);
    if (its < 0 || its >= parts || q.by_rows != by_rows || !well_said(x, &q)) return NULL;
    if (q.whole ? pieces->count != 1 : f->sym || q.from != at || q.to <= q.from || q.to > all) {
      return NULL;
    }
    ordered = ordered && its > part;
    part = its;
    at = q.to;
  }
  if (at != all || (!ordered && parts_twice(pieces))) return NULL;
  return pieces;
}

ng_rect ng_part_piece_rect(const ng_part_piece *q, const ng_field *f) {
  return q->by_rows ? (ng_rect){q->from, q->to, 0, f->cols} : (ng_rect){0, f->rows, q->from, q->to};
}

ngio_tensor ng_part_piece_tensor(const ng_item *item, const ng_part_piece *q) {
  ngio_tensor t = ng_tensor_of(item);
  if (!q->whole) t.shape[q->by_rows ? 0 : 1] = q->to - q->from;
  t.bytes = ngio_bytes_of(t.dtype, t.shape, t.ndim);
  return t;
}
