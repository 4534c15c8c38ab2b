/* stale.c: adaptive refresh; stale.h has the rule.
 *
 * In: the average of a statistic before and after a fold. Out: the verdict on its change; the step of its next refresh. */
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

/* Describe to the kernel `change` the change of a part since the average `was`. */
static ng_change change_of(const ng_stat *s, const ng_stat_part *p, const void *was, double *out) {
  return (ng_change){.a = p->average,
                     .b = was,
                     .dtype = s->average_dtype,
                     .n = ng_stat_part_count(s, p),
                     .order = s->symmetric ? p->rows : 0,
                     .diagonal = s->symmetric ? 0 : p->diagonal,
                     .out = out};
}

static void copy_average(ng_queue *q, const ng_stat *s, int64_t n, const void *from, void *to) {
  const ng_copy c = {
      .from = {(void *)(uintptr_t)from, s->average_dtype, 1, {n}, {1}}, .to = to, .to_stride = {1}};
  ng_kernels(q)->copy_arrays(q, &c, 1);
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

void ng_stat_copy_average(ng_queue *q, const ng_stat *s, void *scratch) {
  char *to = scratch;
  for (int32_t i = 0; i < s->parts && s->has_average && s->stale.enabled; i++) {
    const int64_t n = ng_stat_part_count(s, &s->part[i]), size = ng_dtype_size(s->average_dtype);
    copy_average(q, s, n, s->part[i].average, to);
    to += ng_round16(n) * size;
  }
}

void ng_stat_compare(ng_queue *q, ng_stat *s, const void *scratch) {
  const char *was = scratch;
  double *last = s->change, *older = s->change + 2;
  ng_queue_wait(q);
  memset(s->change, 0, sizeof s->change);
  for (int32_t i = 0; i < s->parts && s->has_average; i++) {
    ng_stat_part *p = &s->part[i];
    const int64_t n = ng_stat_part_count(s, p), size = ng_dtype_size(s->average_dtype);
    const ng_change both[] = {change_of(s, p, was, last), change_of(s, p, p->older, older)};
    ng_kernels(q)->add_changes(q, both, 2);
    copy_average(q, s, n, was, p->older);
    was += ng_round16(n) * size;
  }
  ng_queue_wait(q);
  s->stale.verdict =
      !s->has_average || s->stale.refreshes < 1 || !is_close(last, s->stale.tolerance) ? NG_UNLIKE
      : s->stale.refreshes < 2 || !is_close(older, s->stale.tolerance) ? NG_LIKE_LAST
                                                                       : NG_LIKE_BOTH;
}
