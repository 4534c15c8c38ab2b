/* stale.c: see stale.h.
 *
 * In: a statistic before and after a fold. Out: its change, and the step of its next refresh. */
#include "stat/stat.h"

void ng_stale_advance(ng_stale *s, ng_verdict verdict, int64_t step) {
  const int64_t d = verdict == NG_UNLIKE      ? ng_max64(1, s->last / 2)
                    : verdict == NG_LIKE_LAST ? s->last
                                              : s->last + s->before;
  s->before = s->last;
  s->last = d;
  s->next = step + d;
}

/* Bytes on the wire of one refresh. */
int64_t ng_stat_wire_bytes(const ng_stat *s) {
  int64_t bytes = 0;
  for (int32_t i = 0; i < s->parts && ng_stat_sent(s) && s->observers > 1; i++) {
    bytes += ng_stat_sent_count(s, &s->part[i]) * ng_dtype_size(s->travels);
  }
  return bytes;
}

/* ---- change ---------------------------------------------------------------------------*/

static double value_at(const void *x, ng_dtype t, int64_t i) {
  float f;
  if (t == NG_F64) return ((const double *)x)[i];
  ng_to_f32(&f, (const char *)x + i * ng_dtype_size(t), t, 1);
  return (double)f;
}

/* Add |a - b|^2 and |b|^2 over n stored numbers. */
static void add_gap(const void *a, const void *b, ng_dtype t, int64_t from, int64_t n, double times,
                    double sum[2]) {
  enum { LINE = 512 };
  const int64_t size = ng_dtype_size(t);
  float x[LINE], y[LINE];
  for (int64_t i = from; i < from + n && t == NG_F64; i++) {
    const double was = value_at(b, t, i), d = value_at(a, t, i) - was;
    sum[0] += times * d * d;
    sum[1] += times * was * was;
  }
  if (t == NG_F64) return;
  for (int64_t i = 0, m; i < n; i += m) {
    m = ng_min64(LINE, n - i);
    ng_to_f32(x, (const char *)a + (from + i) * size, t, m);
    ng_to_f32(y, (const char *)b + (from + i) * size, t, m);
    for (int64_t k = 0; k < m; k++) {
      const double d = (double)x[k] - (double)y[k];
      sum[0] += times * d * d;
      sum[1] += times * (double)y[k] * (double)y[k];
    }
  }
}

/* Elements off the diagonal of a symmetric matrix count twice. */
static void add_part_gap(const ng_stat *s, const ng_stat_part *p, const void *a, const void *b,
                         double sum[2]) {
  const int64_t n = ng_stat_part_count(s, p);
  if (!s->symmetric) {
    const int64_t diagonal = p->diagonal > 0 ? p->diagonal : n;
    add_gap(a, b, s->kept, 0, diagonal, 1.0, sum);
    add_gap(a, b, s->kept, diagonal, n - diagonal, 2.0, sum);
    return;
  }
  add_gap(a, b, s->kept, 0, n, 2.0, sum);
  for (int64_t i = 0; i < p->rows; i++) {
    const int64_t at = ng_sym_at(p->rows, i, i);
    const double x = value_at(a, s->kept, at), y = value_at(b, s->kept, at);
    sum[0] -= (x - y) * (x - y);
    sum[1] -= y * y;
  }
}

static bool like(const double sum[2], double tolerance) {
  return sum[0] < tolerance * tolerance * sum[1];
}

/* ---- around a fold ---------------------------------------------------------------------------*/

int64_t ng_stat_stale_scratch(const ng_stat *s) {
  int64_t bytes = 0;
  for (int32_t i = 0; i < s->parts && s->keeps && s->stale.on; i++) {
    bytes += ng_round16(ng_stat_part_count(s, &s->part[i])) * ng_dtype_size(s->kept);
  }
  return bytes;
}

void ng_stat_remember(const ng_stat *s, void *scratch) {
  char *to = scratch;
  for (int32_t i = 0; i < s->parts && s->keeps && s->stale.on; i++) {
    const int64_t n = ng_stat_part_count(s, &s->part[i]), size = ng_dtype_size(s->kept);
    memcpy(to, s->part[i].average, (size_t)(n * size));
    to += ng_round16(n) * size;
  }
}

void ng_stat_judge(ng_stat *s, const void *scratch) {
  const char *was = scratch;
  double last[2] = {0.0, 0.0}, older[2] = {0.0, 0.0};
  for (int32_t i = 0; i < s->parts && s->keeps; i++) {
    ng_stat_part *p = &s->part[i];
    const int64_t n = ng_stat_part_count(s, p), size = ng_dtype_size(s->kept);
    add_part_gap(s, p, p->average, was, last);
    add_part_gap(s, p, p->average, p->older, older);
    memcpy(p->older, was, (size_t)(n * size));
    was += ng_round16(n) * size;
  }
  s->stale.verdict = !s->keeps || s->stale.refreshed < 1 || !like(last, s->stale.tolerance)
                         ? NG_UNLIKE
                     : s->stale.refreshed < 2 || !like(older, s->stale.tolerance) ? NG_LIKE_LAST
                                                                                  : NG_LIKE_BOTH;
}
