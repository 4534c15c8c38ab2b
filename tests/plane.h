/* plane.h: a matrix or a batch of images, and its ng_array.
 *
 * Row r begins row_stride elements after row r - 1.  In a batch of images a row is one image, NCHW or NHWC. */
#ifndef PLANE_H
#define PLANE_H

#include "natgrad.h"

typedef enum plane_order { PLANE_NCHW = 1, PLANE_NHWC = 2 } plane_order;

typedef struct plane {
  void *data;
  int64_t rows, cols, row_stride;
  ng_dtype dtype;
  ng_mem mem;
  plane_order order; /* 0: a matrix; otherwise an image with cols = channels * height * width */
  int64_t channels, height, width;
} plane;

plane plane_of(void *data, int64_t rows, int64_t cols, ng_dtype dtype);
plane plane_images(void *data, plane_order order, int64_t n, int64_t channels, int64_t height,
                   int64_t width, ng_dtype dtype);
ng_array array_of_plane(const plane *v);

/* ng_bind_grad, ng_bind_weight, ng_observe_input, ng_observe_output_grad. */
ng_status plane_bind_grad(ng_precond *p, int32_t index, ng_param which, const plane *v);
ng_status plane_bind_weight(ng_precond *p, int32_t index, ng_param which, const plane *v);
ng_status plane_observe_input(ng_precond *p, int32_t layer, const plane *v, ng_loan loan);
ng_status plane_observe_output_grad(ng_precond *p, int32_t layer, const plane *v, ng_loan loan);

/* ng_add_conv2d with a square kernel and one group. */
ng_status plane_add_conv2d(ng_precond *p, const char *name, int64_t in, int64_t out, int64_t kernel,
                           int64_t stride, int64_t padding, int64_t height, int64_t width,
                           int32_t bias, int32_t *index);

#endif
