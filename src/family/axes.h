/* axes.h: gradients as tensors with a Gram matrix for each axis; for the families soap and shampoo.
 *
 * In: a block of a layer or tensor, with the options max_axis, merge_axes, vector_factor. Out: the axes of each parameter,
 * and one statistic `L`, whose part i is the sum or average of D_(k) D_(k)' for one axis k of one parameter.
 *
 * Gradients are equal on all ranks, so the owner of a block computes L itself: no sum is sent. */
#ifndef NG_FAMILY_AXES_H
#define NG_FAMILY_AXES_H

#include "family/family.h"
#include "twosided/twosided.h"

enum { NG_AXES_PARAMETERS = 2, NG_AXES_MATRICES = NG_AXES_PARAMETERS * NG_AXES_MOST };

/* A parameter: its axes, and the part of L of each axis; -1: the axis has no matrix. */
typedef struct ng_axes_parameter {
  ng_axes axes;
  int32_t part[NG_AXES_MOST];
} ng_axes_parameter;

/* Set `parameter` of each segment; return the number of matrices. */
int32_t ng_axes_of_block(const ng_block *b, ng_axes_parameter parameter[NG_AXES_PARAMETERS]);
/* Declare L. */
ng_status ng_axes_declare(ng_block *b, const ng_axes_parameter *parameter, int32_t matrices);
/* Enqueue: D <- the gradients of all segments, f32, row after row; *finite <- 0 if an element is not finite. */
void ng_axes_read_gradients(const ng_block *b, float *D, int32_t *finite);
/* Add fresh D_(k) D_(k)' to the sums of L. */
void ng_axes_observe(ng_block *b, const ng_axes_parameter *parameter, int32_t *finite);
int64_t ng_axes_elements_of_block(const ng_block *b);
/* Return the floats of scratch for the functions above: D, then the scratch of twosided/. */
int64_t ng_axes_block_scratch(const ng_block *b, const ng_axes_parameter *parameter);
/* Append ".weight" or ".bias" to the name of a field. */
void ng_axes_name_field(const ng_segment *s, ng_field *f);
/* Write "L 6x6, 5x5; moments 30" for ng_explain. */
void ng_axes_describe(ng_block *b, const ng_axes_parameter *parameter);

#endif
