/* change.c: |a - b|^2 and |b|^2 of averages before and after a fold, in the Frobenius norm (stat/stale.h). */
#include "kernel/entries.h"

/* Add times |a - b|^2 and times |b|^2 over elements [from, from + n) to out. */
static void add_change(const ng_change *c, int64_t from, int64_t n, double times) {
  const ng_dtype t = c->dtype;
  const int64_t size = ng_dtype_size(t);
  float x[NG_LINE], y[NG_LINE];
  for (int64_t i = from, m; i < from + n; i += m) {
    m = ng_min64(NG_LINE, from + n - i);
    if (t != NG_F64) {
      ng_to_f32(x, (const char *)c->a + i * size, t, m);
      ng_to_f32(y, (const char *)c->b + i * size, t, m);
    }
    for (int64_t k = 0; k < m; k++) {
      const double was = t == NG_F64 ? ((const double *)c->b)[i + k] : (double)y[k];
      const double d = (t == NG_F64 ? ((const double *)c->a)[i + k] : (double)x[k]) - was;
      c->out[0] += times * d * d;
      c->out[1] += times * was * was;
    }
  }
}

/* The order of additions must not depend on the threads, so one thread adds. */
void ng_shared_add_changes(ng_queue *q, const ng_change *c, int64_t n) {
  (void)q;
  for (const ng_change *end = c + n; c < end; c++) {
    const int64_t diagonal = c->diagonal > 0 ? c->diagonal : c->n;
    add_change(c, 0, c->order > 0 ? c->n : diagonal, c->order > 0 ? 2.0 : 1.0);
    if (c->order == 0) add_change(c, diagonal, c->n - diagonal, 2.0);
    for (int64_t i = 0; i < c->order; i++) {
      add_change(c, ng_sym_at(c->order, i, i), 1, -1.0);
    }
  }
}
