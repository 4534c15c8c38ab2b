/* patches.h: rows of patches of NHWC images.  Row r belongs to output position r, counted over samples, then y, then x,
 * and has kernel x kernel x channels values of the image, with zeros outside the image. */
#ifndef NN_PATCHES_H
#define NN_PATCHES_H

#include <stdint.h>

typedef struct patches {
  int64_t height, width, channels; /* of the image                  */
  int64_t rows, columns;           /* output positions of one sample */
  int64_t kernel, stride, padding;
} patches;

static inline int64_t patches_width(const patches *p) {
  return p->kernel * p->kernel * p->channels;
}

/* Set `rows` to the rows [first, first + count) of the patches of x [samples, height, width, channels]. */
void patches_gather(const patches *p, const float *x, int64_t first, int64_t count, float *rows);
/* Add each value of these rows to the element of x that patches_gather copies it from. */
void patches_scatter(const patches *p, const float *rows, int64_t first, int64_t count, float *x);

#endif
