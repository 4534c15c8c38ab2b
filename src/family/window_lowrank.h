/* window_lowrank.h: the state of the store of factors, shared by window_lowrank.c and the power iteration,
 * window_lowrank_power.c. */
#ifndef NG_WINDOW_LOWRANK_H
#define NG_WINDOW_LOWRANK_H

#include "family/window.h"

typedef struct ng_lowrank_view {
  int64_t rows, cols, rank, at; /* in a row of the store; rank 0: whole */
} ng_lowrank_view;

typedef struct ng_lowrank {
  int64_t floats;        /* of a row of the store */
  int64_t all, *cut;     /* ... on all ranks; [ranks + 1] their slices */
  ng_lowrank_view *view; /* [segments] */
  float *rows;           /* [places, floats] */
  float *rest,
      *next_rest; /* [floats] what f32 rounds off the Q of the newest row, and of that at head */
  float *error, *next;                 /* [d] */
  float *error_rest, *next_error_rest; /* [d] what f32 rounds off those */
  double *work;                        /* [floats] */
} ng_lowrank;

/* Two f32 that are one number of 48 bits; `rest` NULL: there is none. */
typedef struct ng_lowrank_pair {
  float *x, *rest;
} ng_lowrank_pair;

static inline void ng_lowrank_split(double y, float *x, float *rest) {
  *x = (float)y;
  *rest = (float)(y - (double)*x);
}

static inline float *ng_lowrank_factors(const ng_lowrank *s, int64_t place,
                                        const ng_lowrank_view *v) {
  return s->rows + place * s->floats + v->at;
}

/* ---- window_lowrank_power.c ------------------------------------------------------------------*/

/* P and Q of x [rows, cols] and the Q of `from`, to `work`; to `to`, rounded. */
void ng_lowrank_advance(const ng_lowrank_view *v, ng_lowrank_pair x, ng_lowrank_pair from,
                        ng_lowrank_pair to, double *work);
/* x <- x - P Q', as they are in `work`. */
void ng_lowrank_subtract(const ng_lowrank_view *v, const double *work, ng_lowrank_pair x);
/* A column of a Q to begin with that f32 does not hold. */
void ng_lowrank_within_range(const ng_lowrank_view *v, const double *work, ng_lowrank_pair f);

#endif
