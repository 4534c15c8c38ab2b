/* winograd.h: 3x3 convolutions of stride 1 with 2.25 times fewer products than by patches; conv.c calls these functions. */
#ifndef NN_WINOGRAD_H
#define NN_WINOGRAD_H

#include "node.h"

/* Return true if node v, a convolution, uses these functions. */
bool nn_winograd_fits(const nn *n, const node *v);
int64_t nn_winograd_scratch_bytes(const nn *n, const node *v);
int64_t nn_winograd_saved_bytes(const nn *n, const node *v); /* the transformed weights */
void nn_winograd_forward(nn *n, node *v, int64_t samples);   /* compute the output, with the bias */
/* Compute the gradients of the weights if `params`, and of the input unless it has none. */
void nn_winograd_backward(nn *n, node *v, int64_t samples, bool params);

#endif
