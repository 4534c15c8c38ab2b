/* pictures.h: random arrays of images or rows, for tests of the kernels over observed arrays. */
#ifndef TESTS_PICTURES_H
#define TESTS_PICTURES_H

#include "draw.h"
#include "element.h"
#include "kernel/observed.h"

/* The random numbers of all functions here; set the state first. */
extern rng numbers;
static inline uint64_t draw(void) { return rng_next(&numbers); }
static inline int64_t between(int64_t low, int64_t high) {
  return rng_between(&numbers, low, high);
}
double draw_grid_value(void); /* k / 8, |k| <= 15 */

void *new_aligned(int64_t bytes); /* return memory that free() accepts; a failure ends the test */

/* Orders of the axes of [samples, channels, height, width] in memory; rows may have gaps. */
typedef enum axis_order { AXES_NCHW, AXES_NHWC, AXES_HNWC, AXES_ANY, AXES_ORDERS } axis_order;

typedef struct picture {
  ng_conv c;
  axis_order how;
  ng_dtype t;
  int64_t samples, take, c0, c1;
  bool one;   /* a column of ones, for the bias, is added */
  int reduce; /* over positions: 0 none, 1 mean, 2 sum */
} picture;

typedef struct image_array {
  void *data;
  ng_view v;
  int64_t by[4]; /* elements from one sample, channel, row, pixel to the next */
} image_array;

/* Set the output size of a convolution; return false if the size is not positive. */
bool set_output_size(ng_conv *c);
/* Return a convolution with as many outputs as channels, strides and dilations 1, padding for the size of the input. */
ng_conv conv_of(int64_t channels, int64_t height, int64_t width, int64_t kernel);
picture draw_picture(bool stride_one);
/* Return rows: the patches of a kernel of 1 x 1. */
picture draw_rows(int64_t samples, int64_t height, int64_t width, int64_t cols);
/* Describe a picture in a message about `way` on `linalg`; the text is valid until the next call. */
const char *describe_picture(const picture *g, const char *way, const char *linalg);
/* Return the array of a picture with values from `next`; values that must not be read are NaN. Free `data`. */
image_array new_image_array(const picture *g, double (*next)(void));

#endif
