/* toys.h: families for tests, written as a contributor would write a new family.
 *
 * diagonal   a block for each tensor "toy...": v the running average of its squared gradient,
 *            PD = D / (damping + sqrt(v)); the owner computes and shares the divisors
 * total      one block with all tensors and layers "all...": PD = D / (damping + |D|^2) with the norm of the block;
 *            each rank sums the squares of some elements, in double
 * beside     the library's rank-one family with another name, for linear layers "r1...", with any method */
#ifndef TESTS_TOYS_H
#define TESTS_TOYS_H

#include "family/family.h"

extern const ng_family toy_diagonal, toy_total;
ng_family toy_rank_one_family(void);

/* Number of end_step calls of the family `total` since the block was created: with a step that counts, and without. */
typedef struct toy_commits {
  int32_t taken, skipped;
} toy_commits;
toy_commits count_total_commits(const ng_block *b);

#endif
