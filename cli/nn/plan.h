/* plan.h: the places of all arrays of a network. */
#ifndef NN_PLAN_H
#define NN_PLAN_H

#include "node.h"

/* Allocate n->memory and set all pointers into it; return false if there is no memory.  share = false (for the
 * oracle of the tests): no node works in place, and no two gradients share memory. */
bool nn_plan(nn *n, bool share);

#endif
