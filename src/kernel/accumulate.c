/* accumulate.c: count tokens; add vectors in double to the sums of statistics. */
#include "kernel/entries.h"

#include <math.h>

/* Integers first, because adding 1 to a large f32 sum may change nothing. */
void ng_shared_count_tokens(ng_queue *q, const ng_tokens *t, int64_t n) {
  (void)q;
  for (const ng_tokens *end = t + n; t < end; t++) {
    const ng_view *v = &t->x;
    memset(t->count, 0, (size_t)(t->vocabulary + 2) * sizeof *t->count);
    for (int64_t i = v->samples * v->positions - 1; i >= 0; i--) {
      const int64_t k = ng_token_at(v, i);
      if (k == NG_NO_TOKEN) continue;
      if (k < 0 || k >= t->vocabulary) {
        t->count[0] = (double)NAN;
        t->count[t->vocabulary] = (double)i;
        memcpy(&t->count[t->vocabulary + 1], &k, sizeof k);
      } else if (i / v->positions < t->samples) {
        t->count[k] += 1.0;
      }
    }
  }
}

void ng_shared_accumulate(ng_queue *q, const ng_accumulation *a, int64_t n) {
  (void)q;
  for (const ng_accumulation *end = a + n; a < end; a++) {
    for (int64_t i = 0; i < a->count && (a->adds_nan || !isnan(a->x[0])); i++) {
      const double fresh = i < a->n ? a->fresh * a->x[i] : a->rest;
      const int64_t at = i * a->stride;
      ng_set_number(a->S, a->dtype, at, a->old * ng_number_at(a->S, a->dtype, at) + fresh);
    }
  }
}
