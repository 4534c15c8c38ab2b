/* scan.c: the largest magnitude of arrays in any layout, and lines of elements converted to and from f32.
 *
 * A contiguous line is converted in one call; another line of 16-bit elements goes through a buffer on the stack. */
#include <math.h>

#include "kernel/entries.h"

/* ---- lines -----------------------------------------------------------------------------------*/

void ng_gather(float *out, const void *from, ng_dtype t, int64_t step, int64_t n) {
  if (step == 1) {
    ng_to_f32(out, from, t, n);
    return;
  }
  for (int64_t i = 0; i < n && t == NG_F32; i++) {
    out[i] = ((const float *)from)[i * step];
  }
  for (int64_t i = 0; i < n && t == NG_F64; i++) {
    out[i] = (float)((const double *)from)[i * step];
  }
  if (t == NG_F32 || t == NG_F64) return;
  const uint16_t *x = from;
  uint16_t line[NG_LINE];
  for (int64_t at = 0; at < n; at += NG_LINE) {
    const int64_t m = ng_min64(NG_LINE, n - at);
    for (int64_t i = 0; i < m; i++) {
      line[i] = x[(at + i) * step];
    }
    ng_to_f32(out + at, line, t, m);
  }
}

void ng_scatter(void *to, ng_dtype t, int64_t step, const float *x, int64_t n) {
  if (step == 1) {
    ng_from_f32(to, t, x, n);
    return;
  }
  for (int64_t i = 0; i < n && t == NG_F32; i++) {
    ((float *)to)[i * step] = x[i];
  }
  for (int64_t i = 0; i < n && t == NG_F64; i++) {
    ((double *)to)[i * step] = (double)x[i];
  }
  if (t == NG_F32 || t == NG_F64) return;
  uint16_t *out = to, line[NG_LINE];
  for (int64_t at = 0; at < n; at += NG_LINE) {
    const int64_t m = ng_min64(NG_LINE, n - at);
    ng_from_f32(line, t, x + at, m);
    for (int64_t i = 0; i < m; i++) {
      out[(at + i) * step] = line[i];
    }
  }
}

/* ---- a scan ----------------------------------------------------------------------------------*/

enum { PIECES = 256 };

typedef struct scan_job {
  const ng_strided *s; /* axes sorted and joined; the elements along the last axis are a line */
  /* number of lines; number of elements of a line; stride between these elements */
  int64_t lines, length, step;
  int32_t pieces;
  uint32_t
      most[PIECES]; /* [pieces] bits of the largest magnitude of each piece: ng_find_largest_bits */
} scan_job;

static uint32_t find_line_largest(const char *at, ng_dtype t, int64_t step, int64_t n) {
  if (step == 1 && t != NG_F64) return ng_find_largest_bits(at, t, n);
  float line[NG_LINE];
  uint32_t most = 0;
  for (int64_t i = 0; i < n && most < NG_INF_BITS; i += NG_LINE) {
    const int64_t m = ng_min64(NG_LINE, n - i);
    ng_gather(line, at + i * step * ng_dtype_size(t), t, step, m);
    const uint32_t bits = ng_find_largest_bits(line, NG_F32, m);
    most = bits > most ? bits : most;
  }
  return most;
}

/* Scan piece i: some lines or, in an array with one line, a part of the line. */
static void scan_piece(void *arg, int32_t i) {
  scan_job *j = arg;
  const ng_strided *s = j->s;
  int64_t from, to;
  const bool one = j->lines == 1;
  ng_piece_bounds(one ? j->length : j->lines, j->pieces, i, &from, &to);
  const int64_t size = ng_dtype_size(s->dtype);
  if (one) {
    j->most[i] = find_line_largest((const char *)s->data + from * j->step * size, s->dtype, j->step,
                                   to - from);
    return;
  }
  j->most[i] = 0;
  for (int64_t k = from; k < to && j->most[i] < NG_INF_BITS; k++) {
    const int64_t at = ng_axes_offset(s->ndim - 1, s->shape, s->stride, k);
    const uint32_t bits =
        find_line_largest((const char *)s->data + at * size, s->dtype, j->step, j->length);
    j->most[i] = bits > j->most[i] ? bits : j->most[i];
  }
}

/* Return an array with the same elements, in the order of memory: axes sorted by stride and joined. An axis with stride
 * 0 repeats its elements and is dropped. */
static ng_strided sorted_axes(const ng_strided *array) {
  ng_strided s = *array;
  int32_t n = 0;
  for (int32_t i = 0; i < s.ndim; i++) {
    if (s.stride[i] == 0) continue;
    s.shape[n] = s.shape[i];
    s.stride[n++] = s.stride[i];
  }
  s.ndim = n;
  ng_axes_sort(&s);
  s.ndim = ng_axes_join(s.ndim, s.shape, s.stride);
  return s;
}

void ng_shared_find_largest(ng_queue *q, const ng_strided *a, int64_t n, double *out) {
  for (const ng_strided *end = a + n; a < end; a++) {
    const ng_strided s = sorted_axes(a);
    scan_job j = {.s = &s, .lines = 1};
    j.length = s.ndim == 0 ? 1 : s.shape[s.ndim - 1];
    j.step = s.ndim == 0 ? 1 : s.stride[s.ndim - 1];
    for (int32_t i = 0; i + 1 < s.ndim; i++) {
      j.lines *= s.shape[i];
    }
    j.pieces = (int32_t)ng_min64(PIECES, ng_queue_pieces(q, j.lines * j.length));
    ng_queue_run(q, j.pieces, scan_piece, &j);
    uint32_t most = 0;
    for (int32_t i = 0; i < j.pieces; i++) {
      most = j.most[i] > most ? j.most[i] : most;
    }
    *out++ = most < NG_INF_BITS ? (double)ng_float_of_bits(most) : (double)INFINITY;
  }
}
