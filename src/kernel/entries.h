/* entries.h: the entries of both tables of backend.c. */
#ifndef NG_ENTRIES_H
#define NG_ENTRIES_H

#include "kernel/kernel.h"

/* Entries that both tables share: their results are exact, or one thread adds in double. */
void ng_shared_scan(ng_queue *q, const ng_strided *a, int64_t n, double *out);
void ng_shared_finite(ng_queue *q, const ng_region *a, int64_t n, int32_t *out);
void ng_shared_read(ng_queue *q, const ng_read *r, int64_t n);
void ng_shared_largest_pack(ng_queue *q, const ng_largest_pack *p, int64_t n);
void ng_shared_copy(ng_queue *q, const ng_copy *c, int64_t n);
void ng_shared_wire(ng_queue *q, const ng_wire *w, int64_t n);
void ng_shared_change(ng_queue *q, const ng_change *c, int64_t n);

/* The other entries. `cpu` has ng_cpu_X, in a file X.c, `ref` has ng_ref_X, in a file ref_X.c. */
/* clang-format off */
#define NG_ENTRIES(p)                                                                              \
  void p##measure(ng_queue *q, const ng_measure *m, int64_t n, double *parts);                     \
  void p##emit(ng_queue *q, const ng_direction *e, int64_t n);                                     \
  void p##store(ng_queue *q, const ng_direction *e, float *const *to, int64_t n);                  \
  void p##norm2(ng_queue *q, const ng_direction *e, int64_t n, double *parts, double *out);        \
  void p##update(ng_queue *q, const ng_direction *e, const ng_weight_update *s, int64_t n);        \
  void p##ratios(ng_queue *q, const ng_direction *e, const ng_weight_update *s, int64_t n,         \
                 const ng_ratios *r);                                                              \
  void p##gram_rows(ng_queue *q, const ng_gram *g, int64_t n, float *scratch);                     \
  void p##gram_conv(ng_queue *q, const ng_gram *g, int64_t n, float *scratch);                     \
  void p##box_sums(ng_queue *q, const ng_box *b, int64_t n, double *scratch);                      \
  void p##square_sums(ng_queue *q, const ng_squares *s, int64_t n);                                \
  void p##norm_squares(ng_queue *q, const ng_norm_sum *k, int64_t n, void *scratch);               \
  void p##norm_gram(ng_queue *q, const ng_norm_sum *k, int64_t n, void *scratch);                  \
  void p##flat(ng_queue *q, const ng_flat_pass *pass, int64_t n);                                  \
  void p##row_products(ng_queue *q, const ng_rows *G, int64_t n);                                  \
  void p##row_combine(ng_queue *q, const ng_rows *G, int64_t n);                                   \
  void p##largest_select(ng_queue *q, const ng_largest *v, int64_t n, int32_t *count);             \
  void p##largest_count(ng_queue *q, const ng_largest *v, int64_t n);                              \
  void p##largest_collect(ng_queue *q, const ng_largest *v, int64_t n);                            \
  void p##largest_store(ng_queue *q, const ng_largest *v, int64_t n);                              \
  void p##low_rank(ng_queue *q, const ng_low_rank *w, int64_t n)
/* clang-format on */
NG_ENTRIES(ng_cpu_);
NG_ENTRIES(ng_ref_);

#endif
