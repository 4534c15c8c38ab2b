/* stale.c: see stale.h.
 *
 * In: a statistic before and after a fold. Out: its change, and the step of its next refresh. */
#include "stat/stat.h"

void ng_stale_advance(ng_stale *s, ng_verdict verdict, int64_t step) {
  const int64_t d = verdict == NG_UNLIKE      ? ng_max64(1, s->interval / 2)
                    : verdict == NG_LIKE_LAST ? s->interval
                                              : s->interval + s->previous_interval;
  s->previous_interval = s->interval;
  s->interval = d;
  s->next_refresh = step + d;
}

/* Return the bytes that one refresh of the statistic sends. */
int64_t ng_stat_wire_bytes(const ng_stat *s) {
  int64_t bytes = 0;
  for (int32_t i = 0; i < s->parts && ng_stat_is_sent(s) && s->observers > 1; i++) {
    bytes += ng_stat_part_count(s, &s->part[i]) * ng_dtype_size(s->wire_dtype);
  }
  return bytes;
}

/* ---- change of an average ---------------------------------------------------------------------*/

/* Add times |a - b|^2 and times |b|^2 over elements [from, from + n) to sum[0] and sum[1]. */
static void add_change(const void *a, const void *b, ng_dtype t, int64_t from, int64_t n,
                       double times, double sum[2]) {
  enum { LINE = 512 };
  const int64_t size = ng_dtype_size(t);
  float x[LINE], y[LINE];
  for (int64_t i = from, m; i < from + n; i += m) {
    m = ng_min64(LINE, from + n - i);
    if (t != NG_F64) {
      ng_to_f32(x, (const char *)a + i * size, t, m);
      ng_to_f32(y, (const char *)b + i * size, t, m);
    }
    for (int64_t k = 0; k < m; k++) {
      const double was = t == NG_F64 ? ((const double *)b)[i + k] : (double)y[k];
      const double d = (t == NG_F64 ? ((const double *)a)[i + k] : (double)x[k]) - was;
      sum[0] += times * d * d;
      sum[1] += times * was * was;
    }
  }
}

/* The Frobenius norm counts elements off the diagonal of a symmetric matrix twice. */
static void add_part_change(const ng_stat *s, const ng_stat_part *p, const void *a, const void *b,
                            double sum[2]) {
  const int64_t n = ng_stat_part_count(s, p);
  if (!s->symmetric) {
    const int64_t diagonal = p->diagonal > 0 ? p->diagonal : n;
    add_change(a, b, s->average_dtype, 0, diagonal, 1.0, sum);
    add_change(a, b, s->average_dtype, diagonal, n - diagonal, 2.0, sum);
    return;
  }
  add_change(a, b, s->average_dtype, 0, n, 2.0, sum);
  for (int64_t i = 0; i < p->rows; i++) {
    add_change(a, b, s->average_dtype, ng_sym_at(p->rows, i, i), 1, -1.0, sum);
  }
}

static bool is_close(const double sum[2], double tolerance) {
  return sum[0] < tolerance * tolerance * sum[1];
}

/* ---- before and after a fold ------------------------------------------------------------------*/

int64_t ng_stat_stale_scratch(const ng_stat *s) {
  int64_t bytes = 0;
  for (int32_t i = 0; i < s->parts && s->has_average && s->stale.enabled; i++) {
    bytes += ng_round16(ng_stat_part_count(s, &s->part[i])) * ng_dtype_size(s->average_dtype);
  }
  return bytes;
}

void ng_stat_copy_average(const ng_stat *s, void *scratch) {
  char *to = scratch;
  for (int32_t i = 0; i < s->parts && s->has_average && s->stale.enabled; i++) {
    const int64_t n = ng_stat_part_count(s, &s->part[i]), size = ng_dtype_size(s->average_dtype);
    memcpy(to, s->part[i].average, (size_t)(n * size));
    to += ng_round16(n) * size;
  }
}

void ng_stat_compare(ng_stat *s, const void *scratch) {
  const char *was = scratch;
  double last[2] = {0.0, 0.0}, older[2] = {0.0, 0.0};
  for (int32_t i = 0; i < s->parts && s->has_average; i++) {
    ng_stat_part *p = &s->part[i];
    const int64_t n = ng_stat_part_count(s, p), size = ng_dtype_size(s->average_dtype);
    add_part_change(s, p, p->average, was, last);
    add_part_change(s, p, p->average, p->older, older);
    memcpy(p->older, was, (size_t)(n * size));
    was += ng_round16(n) * size;
  }
  s->stale.verdict =
      !s->has_average || s->stale.refreshes < 1 || !is_close(last, s->stale.tolerance) ? NG_UNLIKE
      : s->stale.refreshes < 2 || !is_close(older, s->stale.tolerance) ? NG_LIKE_LAST
                                                                       : NG_LIKE_BOTH;
}
