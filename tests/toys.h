/* toys.h: families that only tests have, as somebody who adds one would write them.
 *
 * diagonal   a block for each tensor "toy...": v the running average of its squared gradient,
 *            PD = D / (damping + sqrt(v)), the divisors made by the owner and shared
 * total      one block over all of "all...", tensors and layers: PD = D / (damping + |D|^2 of all of them),
 *            each rank adding the squares of its share of the elements, in double
 * beside     the library's rank-one family under another name, for linear layers "r1..." of any method */
#ifndef TESTS_TOYS_H
#define TESTS_TOYS_H

#include "family/family.h"

extern const ng_family toy_diagonal, toy_total;
ng_family toy_beside(void);

/* What commit of `total` has seen since it was created. */
typedef struct toy_commits {
  int32_t taken, skipped;
} toy_commits;
toy_commits toy_total_commits(const ng_block *b);

#endif
