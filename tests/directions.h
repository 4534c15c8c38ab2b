/* directions.h: random lists of directions for tests of kernels, with the arrays that they read and write. */
#ifndef TESTS_DIRECTIONS_H
#define TESTS_DIRECTIONS_H

#include "draw.h"
#include "kernels.h"

enum { LISTED = 3, ROUNDS = 200 };
typedef enum kind {
  PLAIN,
  STORED,
  MAPPED,
  STRIDED,
  RANK_ONE,
  LEFT_WIDE,
  WIDE,
  RIGHT_WIDE,
  KINDS
} kind;

/* The arrays of one descriptor. Each queue writes g, w, m and v; `gradient`, `weights`, m0 and v0 keep their begin. */
typedef struct item {
  ng_place grad, weight;
  int64_t rows, cols;
  ng_dtype moment;
  char *gradient, *weights, *g, *w, *m0, *v0, *m, *v;
  float *u, *x, *y, *stored;
  double *y_wide;
  int32_t *map;
  _Atomic int64_t overflowed;
} item;

typedef struct list {
  bool doubles; /* some arrays are f64 */
  item item[LISTED];
  ng_direction e[LISTED];
  ng_weight_update s[LISTED];
  float *to[LISTED]; /* where directions are stored */
} list;

/* One block of zeroed memory for all arrays; arena_reset frees the block. */
void *arena_alloc(size_t n, size_t size);
void arena_reset(void);

/* Describe n elements from v->data on: dense rows, or channels-last rows of [channel][offset] if `last` and 9 divides
 * cols. */
void set_layout(ng_place *v, ng_dtype t, int64_t cols, bool last);

/* Make LISTED directions of one kind. Some elements overflow: every correct result keeps their old value. */
void draw_directions(rng *r, list *l, kind k, int round);
void restore_arrays(item *a);                    /* set g, w, m and v to the drawn arrays */
double at(const char *a, ng_dtype t, int64_t i); /* element i in the order of memory */

#endif
