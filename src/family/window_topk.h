/* window_topk.h: the state of the top-k store, for window_topk.c (layout, products), window_topk_choose.c (choice). */
#ifndef NG_WINDOW_TOPK_H
#define NG_WINDOW_TOPK_H

#include "family/window.h"

typedef struct ng_topk_rows {
  int64_t k, k_all, k_before; /* entries of a row: on this rank, on all ranks, on lower ranks */
  /* All ranks select k of all elements jointly.  A slice may have any number of entries, so every rank stores whole rows,
   * with row_blocks blocks; its own blocks begin at `first_block`. */
  bool is_joint;
  int32_t row_blocks, first_block;
  ng_window_joint selection;
  int64_t *cut; /* [3, ranks + 1] slices: of values, of indices (in bytes), of blocks */
  int32_t groups, blocks, all_blocks, pieces;
  ng_largest *group;        /* the elements from which a step selects, in flat order */
  ng_flat_pass *count_pass; /* passes that count the selectable elements of each group */
  ng_flat_range *cut_range; /* their ranges: a border of groups may cut a range */
  double *selectable;       /* [groups, 3] their results */
  ng_flat_range *block;
  ng_dtype value_dtype;
  uint16_t *index_in_block; /* [places, k] of each value */
  char *value;              /* [places, k] */
  int32_t *block_begin; /* [places, row_blocks] position of a block's first entry, over all ranks */
  float *error, *next_error; /* [d] error feedback before and after this step */
  float gradient_factor;     /* factor of the gradient g in a = e + by g */
  int32_t *count;            /* [pieces, NG_LARGEST_COUNTS] */
  double *tile;              /* [pieces, BLOCK] */
} ng_topk_rows;

/* Store k entries of e + by g as the row at head; next_error: g, then the residual.  select: one round over ranks. */
void ng_window_topk_enter(ng_block *b);
void ng_window_topk_select(ng_block *b, int32_t round, double *x);

#endif
