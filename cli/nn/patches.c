/* patches.c: images to rows of patches and back.  In NHWC a kernel row of a patch is one run of memory, clipped at the
 * left and right border. */
#include "patches.h"

#include "simd.h"

#include <string.h>

/* Find the part of kernel row i of the patch at output position (y, x) that lies inside the image: values [*skip,
 * *skip + *count) of the kernel * channels values of the row, at offset *at in the sample. */
static void find_inside_run(const patches *p, int64_t y, int64_t x, int64_t i, int64_t *skip,
                            int64_t *count, int64_t *at) {
  const int64_t row = y * p->stride + i - p->padding, left = x * p->stride - p->padding;
  const int64_t from = left < 0 ? -left : 0;
  const int64_t to = p->width - left < p->kernel ? p->width - left : p->kernel;
  *skip = *count = *at = 0;
  if (row < 0 || row >= p->height || to <= from) return;
  *skip = from * p->channels;
  *count = (to - from) * p->channels;
  *at = (row * p->width + left + from) * p->channels;
}

/* Whole rows are copied by a loop instead of memcpy, because most rows of small networks are short. */
NG_CLONES static void gather_row(const patches *p, const float *image, int64_t y, int64_t x,
                                 float *to) {
  const int64_t width = p->kernel * p->channels;
  for (int64_t i = 0; i < p->kernel; i++, to += width) {
    int64_t skip, count, at;
    find_inside_run(p, y, x, i, &skip, &count, &at);
    const float *from = image + at;
    if (count == width) {
      for (int64_t k = 0; k < width; k++)
        to[k] = from[k];
      continue;
    }
    memset(to, 0, (size_t)width * sizeof *to);
    memcpy(to + skip, from, (size_t)count * sizeof *to);
  }
}

/* An output position. */
typedef struct position {
  int64_t sample, y, x;
} position;

static position position_of(const patches *p, int64_t row) {
  const int64_t each = p->rows * p->columns, at = row % each;
  return (position){row / each, at / p->columns, at % p->columns};
}

static void next_position(const patches *p, position *at) {
  if (++at->x < p->columns) return;
  at->x = 0;
  if (++at->y < p->rows) return;
  at->y = 0;
  at->sample++;
}

void patches_gather(const patches *p, const float *x, int64_t first, int64_t count, float *rows) {
  const int64_t image = p->height * p->width * p->channels, width = patches_width(p);
  position at = position_of(p, first);
  for (int64_t r = 0; r < count; r++, next_position(p, &at))
    gather_row(p, x + at.sample * image, at.y, at.x, rows + r * width);
}

NG_CLONES static void scatter_row(const patches *p, const float *from, int64_t y, int64_t x,
                                  float *image) {
  const int64_t width = p->kernel * p->channels;
  for (int64_t i = 0; i < p->kernel; i++, from += width) {
    int64_t skip, count, at;
    find_inside_run(p, y, x, i, &skip, &count, &at);
    float *to = image + at;
    for (int64_t k = 0; k < count; k++)
      to[k] += from[skip + k];
  }
}

void patches_scatter(const patches *p, const float *rows, int64_t first, int64_t count, float *x) {
  const int64_t image = p->height * p->width * p->channels, width = patches_width(p);
  position at = position_of(p, first);
  for (int64_t r = 0; r < count; r++, next_position(p, &at))
    scatter_row(p, rows + r * width, at.y, at.x, x + at.sample * image);
}
