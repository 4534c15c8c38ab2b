/* entries.h: the entries of both tables of backend.c. */
#ifndef NG_ENTRIES_H
#define NG_ENTRIES_H

#include "kernel/kernel.h"

/* Entries that both tables share: their results are exact, or one thread adds in double. */
void ng_shared_find_largest(ng_queue *q, const ng_strided *a, int64_t n, double *out);
void ng_shared_check_finite(ng_queue *q, const ng_region *a, int64_t n, int32_t *out);
void ng_shared_read_gradients(ng_queue *q, const ng_read *r, int64_t n);
void ng_shared_count_tokens(ng_queue *q, const ng_tokens *t, int64_t n);
void ng_shared_accumulate(ng_queue *q, const ng_accumulation *a, int64_t n);
void ng_shared_pack_largest(ng_queue *q, const ng_largest_pack *p, int64_t n);
void ng_shared_copy_arrays(ng_queue *q, const ng_copy *c, int64_t n);
void ng_shared_convert_for_wire(ng_queue *q, const ng_wire_conversion *w, int64_t n);
void ng_shared_add_changes(ng_queue *q, const ng_change *c, int64_t n);

/* The other entries. `cpu` has ng_cpu_X, in a file X.c, `ref` has ng_ref_X, in a file ref_X.c. */
/* clang-format off */
#define NG_ENTRIES(p)                                                                              \
  void p##measure_gradients(ng_queue *q, const ng_measure *m, int64_t n, double *parts);                     \
  void p##write_directions(ng_queue *q, const ng_direction *e, int64_t n);                                     \
  void p##store_directions(ng_queue *q, const ng_direction *e, float *const *to, int64_t n);                  \
  void p##sum_norms(ng_queue *q, const ng_direction *e, int64_t n, double *parts, double *out);        \
  void p##update_weights(ng_queue *q, const ng_direction *e, const ng_weight_update *s, int64_t n);        \
  void p##count_ratios(ng_queue *q, const ng_direction *e, const ng_weight_update *s, int64_t n,         \
                 const ng_ratios *r);                                                              \
  void p##add_row_grams(ng_queue *q, const ng_gram *g, int64_t n, float *scratch);                     \
  void p##add_conv_grams(ng_queue *q, const ng_gram *g, int64_t n, float *scratch);                     \
  void p##add_spatial_grams(ng_queue *q, const ng_gram *g, int64_t n, float *scratch);                     \
  void p##add_sample_squares(ng_queue *q, const ng_sample_squares *s, int64_t n, float *scratch);    \
  void p##sum_patches(ng_queue *q, const ng_box *b, int64_t n, double *scratch);                      \
  void p##sum_squares(ng_queue *q, const ng_squares *s, int64_t n);                                \
  void p##sum_norm_squares(ng_queue *q, const ng_norm_sum *k, int64_t n, void *scratch);               \
  void p##add_norm_grams(ng_queue *q, const ng_norm_sum *k, int64_t n, void *scratch);                  \
  void p##run_flat_passes(ng_queue *q, const ng_flat_pass *pass, int64_t n);                                  \
  void p##multiply_rows(ng_queue *q, const ng_rows *G, int64_t n);                                  \
  void p##combine_rows(ng_queue *q, const ng_rows *G, int64_t n);                                   \
  void p##select_largest(ng_queue *q, const ng_largest *v, int64_t n, int32_t *count);             \
  void p##count_largest(ng_queue *q, const ng_largest *v, int64_t n);                              \
  void p##collect_largest(ng_queue *q, const ng_largest *v, int64_t n);                            \
  void p##store_largest(ng_queue *q, const ng_largest *v, int64_t n);                              \
  void p##iterate_low_rank(ng_queue *q, const ng_low_rank *w, int64_t n)
/* clang-format on */
NG_ENTRIES(ng_cpu_);
NG_ENTRIES(ng_ref_);

#endif
