/* family_life.h: a model with layers and tensors of every family, toys included, and its life on one or
 * several ranks: what comes out of each step, kept to be compared.  No rank asserts: from the main thread. */
#ifndef TESTS_FAMILY_LIFE_H
#define TESTS_FAMILY_LIFE_H

#include "step/step.h"
#include "toys.h"

/* ---- a model of every family -----------------------------------------------------------------*/

enum { FC, CONV, R1, TOY, TOY2, ALL, ALL_FC, PLAIN, ENTRIES, STEPS = 5, MOST_RANKS = 4 };
enum { B = 4, SHOWN = 4 * 3 * 5 * 5, BIGGEST = 130, PARAMETERS = 2 * BIGGEST };

typedef struct entry {
  const char *name;
  int64_t in, out, weights, biases; /* out 0: a tensor */
} entry;

extern const entry model[ENTRIES];
typedef struct life {
  const char *set; /* options "name=value ..." */
  int32_t ranks;
  const char *save, *load;     /* after step 2; before step 2, of a life that begins there */
  int32_t bad_step, bad_entry; /* a NaN in this gradient, at this step and again not; -1: none */
  bool plain;                  /* no toys are registered */
  const ng_family *extra;      /* one more family, asked first */
  ng_status (*hook)(int32_t rank, ng_precond *p, int32_t step); /* just before each ng_step */
  void (*place)(ng_block *b, ng_stat *s);
  int32_t post_until; /* only before this step; 0: always */
  bool post;          /* ng_batch.last: statistics are posted while others are seen */
  float out[MOST_RANKS][STEPS][ENTRIES][PARAMETERS];
  double clip[MOST_RANKS][STEPS];
  ng_status status[MOST_RANKS][STEPS];
  char why[MOST_RANKS][256];
  toy_commits commits[MOST_RANKS];
  double reported[MOST_RANKS];
  char explained[MOST_RANKS][ENTRIES][32];
  int32_t in_flight[MOST_RANKS], again[MOST_RANKS], changed[MOST_RANKS];
} life;

/* Everybody sees the same: what a layer is shown and a gradient depend on the step and the entry. */
void draw(float *x, int64_t n, int32_t step, int32_t at);

life *new_life(const char *set, int32_t ranks);
ng_status life_of(int32_t rank, ng_transport *t, void *arg); /* a rank_fn; arg is a life */
/* Every rank ends well and with the same bits, or the test fails. */
life *lived(life *l);
/* The gradients of all steps from `step` on have the same bits. */
void same_from(const life *x, const life *y, int32_t step);

#endif
