/* oracle_geometry.c: see oracle.h.  The sizes of a layer, and the rows of its statistics. */
#include "dense.h"
#include "oracle.h"

#include <stdlib.h>

int64_t oracle_output_size(const ng_layer *l, int axis) {
  int64_t reach = l->dilation[axis] * (l->kernel[axis] - 1) + 1;
  return (l->image[axis] + 2 * l->padding[axis] - reach) / l->stride[axis] + 1;
}

int64_t oracle_positions(const ng_layer *l) {
  return l->kind == NG_CONV2D ? oracle_output_size(l, 0) * oracle_output_size(l, 1) : 1;
}

int64_t oracle_columns(const ng_layer *l) {
  if (l->kind == NG_NORM) return (l->norm_no_weight ? 0 : 1) + (l->bias ? 1 : 0);
  int64_t p = l->kind == NG_CONV2D ? l->in / l->groups * l->kernel[0] * l->kernel[1] : l->in;
  return p + (l->bias ? 1 : 0);
}

double *oracle_stat_rows(const ng_layer *l, bool grad, int64_t group, const double *data,
                         int64_t samples, int64_t positions, int64_t n) {
  double *X = zeros(samples * positions * n);
  if (l->kind == NG_EMBEDDING && !grad) {
    for (int64_t r = 0; r < samples * positions; r++) {
      if (data[r] != NG_NO_TOKEN) X[r * n + (int64_t)data[r]] = 1;
    }
    return X;
  }
  if (l->kind != NG_CONV2D) {
    int64_t width = grad ? l->out : l->in;
    for (int64_t r = 0; r < samples * positions; r++) {
      for (int64_t j = 0; j < n; j++)
        X[r * n + j] = j < width ? data[r * width + j] : 1;
    }
    return X;
  }
  int64_t oh = oracle_output_size(l, 0), ow = oracle_output_size(l, 1), H = l->image[0],
          W = l->image[1];
  int64_t groups = l->groups;
  for (int64_t b = 0; b < samples; b++) {
    for (int64_t y = 0; y < oh; y++) {
      for (int64_t x = 0; x < ow; x++) {
        double *row = X + ((b * oh + y) * ow + x) * n;
        if (grad) {
          for (int64_t j = 0; j < n; j++) {
            row[j] = data[((b * l->out + group * n + j) * oh + y) * ow + x];
          }
          continue;
        }
        int64_t j = 0, channels = l->in / groups;
        for (int64_t c = 0; c < channels; c++) {
          for (int64_t ky = 0; ky < l->kernel[0]; ky++) {
            for (int64_t kx = 0; kx < l->kernel[1]; kx++) {
              int64_t iy = y * l->stride[0] - l->padding[0] + ky * l->dilation[0];
              int64_t ix = x * l->stride[1] - l->padding[1] + kx * l->dilation[1];
              bool inside = iy >= 0 && iy < H && ix >= 0 && ix < W;
              row[j++] = inside ? data[((b * l->in + group * channels + c) * H + iy) * W + ix] : 0;
            }
          }
        }
        if (l->bias) row[j++] = 1;
      }
    }
  }
  return X;
}
