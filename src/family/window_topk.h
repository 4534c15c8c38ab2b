/* window_topk.h: the state of the store of largest entries, shared by window_topk.c (geometry, products, life) and
 * window_topk_choose.c (what enters). */
#ifndef NG_WINDOW_TOPK_H
#define NG_WINDOW_TOPK_H

#include "family/window.h"

/* Elements [at, at + n): what is chosen from, or a block of one part. */
typedef struct ng_window_range {
  int64_t at, n, k, first; /* k of them, first in a row */
  int32_t part;
} ng_window_range;

typedef struct ng_topk_rows {
  int64_t k, all, before; /* of a row: here, on all ranks, on the ranks before this one */
  /* The k largest of all that ranks have slices of.  Any number of them may lie in one slice, so every rank keeps whole rows:
   * k of them, all blocks; its blocks for products begin at `first`. */
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
  float by;            /* of what enters, in its sum with error */
  bool counted;        /* k of groups may be of some parameters only */
  int32_t *count;      /* [pieces, NG_WINDOW_COUNTS] */
  double *tile;        /* [pieces, BLOCK] */
} ng_topk_rows;

static inline float *ng_window_topk_target(ng_block *b) {
  return ((ng_topk_rows *)ng_window_of(b)->own)->next;
}
/* What is in target becomes the row at head, and its rest stays there; the same in rounds, where ranks choose together. */
void ng_window_topk_enter(ng_block *b);
void ng_window_topk_choose(ng_block *b, int32_t round, double *x);

#endif
