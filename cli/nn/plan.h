/* plan.h: where every array of a network lives. */
#ifndef NN_PLAN_H
#define NN_PLAN_H

#include "node.h"

/* Takes n->memory and points everything into it; false if there is none.  With `share` false
 * nothing works in place and no two gradients share memory: the oracle of the tests. */
bool nn_plan(nn *n, bool share);

#endif
