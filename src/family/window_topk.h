/* window_topk.h: the state of the top-k store, shared by window_topk.c (layout, products, commit) and window_topk_choose.c
 * (selection). */
#ifndef NG_WINDOW_TOPK_H
#define NG_WINDOW_TOPK_H

#include "family/window.h"

/* Elements [at, at + n): a group, from which k are selected, or a block. */
typedef struct ng_window_range {
  int64_t at, n, k, first; /* k selected; their position in a row */
  int32_t part;
} ng_window_range;

typedef struct ng_topk_rows {
  int64_t k, all, before; /* of a row: on this rank, on all ranks, on the ranks before */
  /* The ranks select k of all elements together.  Any number may lie in one slice, so every rank stores whole rows with all
   * blocks; its own blocks begin at `first`. */
  bool joint;
  int32_t row_blocks, first;
  ng_window_joint choice;
  int64_t *cut; /* [3, ranks + 1] slices of values, of indices as bytes, of blocks */
  int32_t groups, blocks, all_blocks, pieces;
  ng_window_range *group, *block;
  ng_dtype type;
  uint16_t *index;     /* [places, k] */
  char *value;         /* [places, k] */
  int32_t *begin;      /* [places, blocks] in a row of all ranks */
  float *error, *next; /* [d] */
  float by;            /* factor of the gradient in a = e + by g */
  bool counted;        /* k of groups depends on mask or missing gradients */
  int32_t *count;      /* [pieces, NG_WINDOW_COUNTS] */
  double *tile;        /* [pieces, BLOCK] */
} ng_topk_rows;

static inline float *ng_window_topk_target(ng_block *b) {
  return ((ng_topk_rows *)ng_window_of(b)->own)->next;
}
/* The vector in target becomes the row at head, and the residual replaces it; the same by rounds over ranks. */
void ng_window_topk_enter(ng_block *b);
void ng_window_topk_choose(ng_block *b, int32_t round, double *x);

#endif
