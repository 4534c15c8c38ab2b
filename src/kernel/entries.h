/* entries.h: the entries of both tables of backend.c. A file X.c has entries of `cpu`, ref_X.c entries of `ref`. */
#ifndef NG_ENTRIES_H
#define NG_ENTRIES_H

#include "kernel/kernel.h"

void ng_scan(ng_queue *q, const ng_strided *a, int64_t n, double *out);
void ng_ref_scan(ng_queue *q, const ng_strided *a, int64_t n, double *out);

void ng_measure_gradients(ng_queue *q, const ng_measure *m, int64_t n, double *parts);
void ng_measure_finite(ng_queue *q, const ng_region *a, int64_t n, int32_t *out);
void ng_measure_read(ng_queue *q, const ng_read *r, int64_t n);
void ng_emit_gradients(ng_queue *q, const ng_direction *e, int64_t n);
void ng_emit_store(ng_queue *q, const ng_direction *e, float *const *to, int64_t n);
void ng_emit_norm2(ng_queue *q, const ng_direction *e, int64_t n, double *parts, double *out);
void ng_emit_update(ng_queue *q, const ng_direction *e, const ng_weight_update *s, int64_t n);
void ng_emit_ratios(ng_queue *q, const ng_direction *e, const ng_weight_update *s, int64_t n,
                    const ng_ratios *r);

void ng_ref_measure(ng_queue *q, const ng_measure *m, int64_t n, double *parts);
void ng_ref_finite(ng_queue *q, const ng_region *a, int64_t n, int32_t *out);
void ng_ref_read(ng_queue *q, const ng_read *j, int64_t n);
void ng_ref_emit(ng_queue *q, const ng_direction *e, int64_t n);
void ng_ref_store(ng_queue *q, const ng_direction *e, float *const *to, int64_t n);
void ng_ref_norm2(ng_queue *q, const ng_direction *e, int64_t n, double *parts, double *out);
void ng_ref_update(ng_queue *q, const ng_direction *e, const ng_weight_update *s, int64_t n);
void ng_ref_ratios(ng_queue *q, const ng_direction *e, const ng_weight_update *s, int64_t n,
                   const ng_ratios *r);

void ng_gram_rows(ng_queue *q, const ng_gram *g, int64_t n, float *scratch);
void ng_gram_conv(ng_queue *q, const ng_gram *g, int64_t n, float *scratch);
void ng_box_sums(ng_queue *q, const ng_box *b, int64_t n, double *scratch);
void ng_square_sums(ng_queue *q, const ng_squares *s, int64_t n);
void ng_norm_squares(ng_queue *q, const ng_norm_sum *k, int64_t n, void *scratch);
void ng_norm_gram(ng_queue *q, const ng_norm_sum *k, int64_t n, void *scratch);
void ng_flat_run(ng_queue *q, const ng_flat_pass *p, int64_t n);
void ng_rows_products(ng_queue *q, const ng_rows *G, int64_t n);
void ng_rows_combine(ng_queue *q, const ng_rows *G, int64_t n);
void ng_largest_select(ng_queue *q, const ng_largest *v, int64_t n, int32_t *count);
void ng_largest_count(ng_queue *q, const ng_largest *v, int64_t n);
void ng_largest_collect(ng_queue *q, const ng_largest *v, int64_t n);
void ng_largest_store(ng_queue *q, const ng_largest *v, int64_t n);
void ng_largest_pack_entries(ng_queue *q, const ng_largest_pack *p, int64_t n);
void ng_copy_arrays(ng_queue *q, const ng_copy *c, int64_t n);
void ng_copy_wire(ng_queue *q, const ng_wire *w, int64_t n);
void ng_change_sums(ng_queue *q, const ng_change *c, int64_t n);
void ng_low_rank_steps(ng_queue *q, const ng_low_rank *w, int64_t n);

void ng_ref_gram_rows(ng_queue *q, const ng_gram *g, int64_t n, float *scratch);
void ng_ref_gram_conv(ng_queue *q, const ng_gram *g, int64_t n, float *scratch);
void ng_ref_box_sums(ng_queue *q, const ng_box *b, int64_t n, double *scratch);
void ng_ref_square_sums(ng_queue *q, const ng_squares *s, int64_t n);
void ng_ref_norm_squares(ng_queue *q, const ng_norm_sum *k, int64_t n, void *scratch);
void ng_ref_norm_gram(ng_queue *q, const ng_norm_sum *k, int64_t n, void *scratch);
void ng_ref_flat(ng_queue *q, const ng_flat_pass *p, int64_t n);
void ng_ref_row_products(ng_queue *q, const ng_rows *G, int64_t n);
void ng_ref_row_combine(ng_queue *q, const ng_rows *G, int64_t n);
void ng_ref_largest_select(ng_queue *q, const ng_largest *v, int64_t n, int32_t *count);
void ng_ref_largest_count(ng_queue *q, const ng_largest *v, int64_t n);
void ng_ref_largest_collect(ng_queue *q, const ng_largest *v, int64_t n);
void ng_ref_largest_store(ng_queue *q, const ng_largest *v, int64_t n);
void ng_ref_copy(ng_queue *q, const ng_copy *c, int64_t n);
void ng_ref_wire(ng_queue *q, const ng_wire *w, int64_t n);
void ng_ref_change(ng_queue *q, const ng_change *c, int64_t n);
void ng_ref_low_rank(ng_queue *q, const ng_low_rank *w, int64_t n);

#endif
