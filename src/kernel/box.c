/* box.c: sums of image patches over samples and output positions, computed without storing patches.
 *
 * In: images or rows of positions, in any strides and dtype. Out: a[c, i, k], for channel c and kernel offset
 * (i, k): the sum, over samples and output positions (u, v), of the pixel under that offset (0 outside the image).
 * With x the image summed over samples, and s, d, p stride, dilation and padding,
 *
 *      a[c, i, k] = sum over u, v of x[c, u s + i d - p, v s + k d - p]
 *
 * a divided by the number of patches is the mean patch of Eva (Zhang, Shi & Li 2023). The code sums the image over
 * samples, then over rows, then over columns, so it reads each sample once. A sum in double is finite only if all its
 * inputs are finite, so the inputs need no separate scan. */
#include <math.h>

#include "kernel/pixels.h"
#include "simd.h"

enum {
  PLANE = 4096,   /* number of doubles that fit an L1 cache */
  LINE_LEAST = 8, /* smallest and largest number of channels that sum_lines sums at once */
  LINE_MOST = 64,
  POINTWISE = 256, /* largest number of channels that sum_lines sums at once for a 1x1 kernel */
  TILE = 512       /* number of elements that are converted at once */
};

typedef struct job {
  const ng_box *box;
  int32_t pieces;
  double *scratch; /* [pieces][each] doubles of scratch */
  int64_t each;
  atomic_bool has_nonfinite; /* a piece read a non-finite number */
} job;

/* ---- sums ------------------------------------------------------------------------------------*/

/* acc[i] += sum over rows r of x[r stride + i], i < n. The loop adds four rows at a time, because reading and writing
 * acc costs as much as reading a row. */
NG_CLONES static void add_floats(double *restrict acc, const float *restrict x, int64_t stride,
                                 int64_t rows, int64_t n) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4, x += 4 * stride) {
    const float *restrict x1 = x + stride, *restrict x2 = x1 + stride, *restrict x3 = x2 + stride;
    for (int64_t i = 0; i < n; i++) {
      acc[i] += ((double)x[i] + (double)x1[i]) + ((double)x2[i] + (double)x3[i]);
    }
  }
  for (; r < rows; r++, x += stride) {
    for (int64_t i = 0; i < n; i++) {
      acc[i] += (double)x[i];
    }
  }
}

NG_CLONES static void add_doubles(double *restrict acc, const double *restrict x, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    acc[i] += x[i];
  }
}

/* acc[i] += sum over r < rows of element at + r stride + i step of the view, for i < n. */
static void add_elements(const job *j, double *acc, int64_t at, int64_t stride, int64_t rows,
                         int64_t n, int64_t step) {
  const ng_dtype t = j->box->x.dtype;
  if (t == NG_F32 && step == 1) {
    add_floats(acc, (const float *)j->box->x.data + at, stride, rows, n);
    return;
  }
  float line[TILE];
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t i = 0; i < n; i += TILE) {
      const int64_t m = ng_min64(TILE, n - i);
      const int64_t from = at + r * stride + i * step;
      ng_gather(line, (const char *)j->box->x.data + from * ng_dtype_size(t), t, step, m);
      add_floats(acc + i, line, 0, 1, m);
    }
  }
}

static void clear_doubles(double *x, int64_t n) { memset(x, 0, (size_t)n * sizeof *x); }

/* Set [*from, *to) to the output positions of one axis at which kernel tap k is inside the image. */
static void output_range(const ng_conv *b, int axis, int64_t k, int64_t *from, int64_t *to) {
  const int64_t size = axis == 0 ? b->height : b->width, stride = b->stride[axis];
  const int64_t first = b->padding[axis] - k * b->dilation[axis]; /* u stride >= first */
  const int64_t last = size - 1 + first;                          /* u stride <= last */
  *from = first > 0 ? (first + stride - 1) / stride : 0;
  *to = last < 0 ? 0 : ng_min64(last / stride + 1, (axis == 0 ? b->out_height : b->out_width));
}

/* Return the image coordinate under tap k at output position u. */
static int64_t image_coordinate(const ng_conv *b, int axis, int64_t k, int64_t u) {
  return u * b->stride[axis] + k * b->dilation[axis] - b->padding[axis];
}

/* ---- channels first: a plane [channel][y][x] at a time ---------------------------------------*/

/* For each kernel row, sum the image rows under it, then sum columns of this sum. With kernel kh x kw, output oh x ow and
 * image width w, this needs kh oh w + kh kw ow additions instead of kh kw oh ow. */
static void sum_plane(const ng_conv *b, const double *plane, double *rows, double *out) {
  for (int64_t i = 0; i < b->kernel[0]; i++) {
    int64_t from, to;
    output_range(b, 0, i, &from, &to);
    clear_doubles(rows, b->width);
    for (int64_t u = from; u < to; u++) {
      add_doubles(rows, plane + image_coordinate(b, 0, i, u) * b->width, b->width);
    }
    for (int64_t k = 0; k < b->kernel[1]; k++) {
      double sum = 0.0;
      output_range(b, 1, k, &from, &to);
      for (int64_t v = from; v < to; v++) {
        sum += rows[image_coordinate(b, 1, k, v)];
      }
      out[i * b->kernel[1] + k] = sum;
    }
  }
}

static int64_t count_plane_channels(const ng_conv *b) {
  return ng_max64(1, ng_min64(b->channels, PLANE / ng_times(b->height, b->width)));
}

/* Sum channels [c0, c1), as many planes at a time as fit the cache. These planes are contiguous in each sample. */
static void sum_planes(job *j, int64_t c0, int64_t c1, double *scratch) {
  const ng_conv *b = &j->box->conv;
  const int64_t pixels = b->height * b->width, most = count_plane_channels(b);
  double *plane = scratch, *rows = scratch + most * pixels;
  for (int64_t c = c0; c < c1; c += most) {
    const int64_t n = ng_min64(most, c1 - c);
    clear_doubles(plane, n * pixels);
    add_elements(j, plane, c * pixels, j->box->x.sample_stride, j->box->samples, n * pixels, 1);
    if (!ng_are_finite(plane, NG_F64, n * pixels)) j->has_nonfinite = true;
    for (int64_t i = 0; i < n; i++) {
      double *out = j->box->out + (c + i) * ng_conv_taps(b);
      if (ng_conv_is_pointwise(b)) {
        out[0] = 0.0;
        for (int64_t x = 0; x < pixels; x++) {
          out[0] += plane[i * pixels + x];
        }
      } else {
        sum_plane(b, plane + i * pixels, rows, out);
      }
    }
  }
}

/* ---- channels last and all other layouts: one row of pixels at a time, some channels of each pixel --------------*/

/* Return how many channels to sum at once: so few that their sums stay in the cache from one sample to the next. */
static int64_t count_line_channels(const ng_conv *b) {
  const int64_t n = ng_conv_is_pointwise(b)
                        ? POINTWISE
                        : ng_max64(LINE_LEAST, ng_min64(LINE_MOST, PLANE / b->width));
  return ng_min64(n, b->channels);
}

/* Sum channels [c, c + n). sums[i][x][channel]: sum of the image rows under kernel row i; line: scratch for one row. */
static void sum_lines(job *j, int64_t c, int64_t n, double *line, double *sums) {
  const ng_conv *b = &j->box->conv;
  const int64_t wide = b->width * n;
  clear_doubles(sums, b->kernel[0] * wide);
  const ng_view *in = &j->box->x;
  for (int64_t y = 0; y < b->height; y++) {
    clear_doubles(line, wide);
    const int64_t at = ng_view_offset(in, 0, y * b->width) + c * in->column_stride;
    if (in->column_stride == 1 && n == in->position_stride) {
      add_elements(j, line, at, in->sample_stride, j->box->samples, wide, 1);
    } else {
      for (int64_t x = 0; x < b->width; x++) {
        add_elements(j, line + x * n, at + x * in->position_stride, in->sample_stride,
                     j->box->samples, n, in->column_stride);
      }
    }
    if (!ng_are_finite(line, NG_F64, wide)) j->has_nonfinite = true;
    for (int64_t i = 0; i < b->kernel[0]; i++) {
      const int64_t top = y + b->padding[0] - i * b->dilation[0];
      if (top < 0 || top % b->stride[0] != 0 || top / b->stride[0] >= b->out_height) continue;
      add_doubles(sums + i * wide, line, wide);
    }
  }
  for (int64_t i = 0; i < b->kernel[0]; i++) {
    for (int64_t k = 0; k < b->kernel[1]; k++) {
      int64_t from, to;
      output_range(b, 1, k, &from, &to);
      clear_doubles(line, n);
      for (int64_t v = from; v < to; v++) {
        add_doubles(line, sums + i * wide + image_coordinate(b, 1, k, v) * n, n);
      }
      for (int64_t m = 0; m < n; m++) {
        j->box->out[(c + m) * ng_conv_taps(b) + i * b->kernel[1] + k] = line[m];
      }
    }
  }
}

static void sum_other_layouts(job *j, int64_t c0, int64_t c1, double *scratch) {
  const ng_conv *b = &j->box->conv;
  const int64_t most = count_line_channels(b), pixels = b->height * b->width;
  for (int64_t c = c0; c < c1; c += most) {
    const int64_t n = ng_min64(most, c1 - c);
    if (!ng_conv_is_pointwise(b)) {
      sum_lines(j, c, n, scratch, scratch + b->width * n);
      continue;
    }
    clear_doubles(scratch, n);
    const ng_view *in = &j->box->x;
    for (int64_t s = 0; s < j->box->samples; s++) {
      int64_t at = 0;
      do { /* a dense view has one run, so it needs one iteration */
        const int64_t first = ng_view_offset(in, s, at) + c * in->column_stride;
        add_elements(j, scratch, first, in->position_stride, in->run_length, n, in->column_stride);
      } while ((at += in->run_length) < pixels);
    }
    if (!ng_are_finite(scratch, NG_F64, n)) j->has_nonfinite = true;
    memcpy(j->box->out + c, scratch, (size_t)n * sizeof *scratch);
  }
}

/* Return whether each channel of a sample is a contiguous plane. */
static bool has_planes(const ng_conv *b, const ng_view *v) {
  return !b->is_linear && v->column_stride != 1 && v->position_stride == 1 && v->axes == 0 &&
         v->column_stride == v->positions;
}

static void sum_channels(job *j, int64_t from, int64_t to, double *scratch) {
  if (has_planes(&j->box->conv, &j->box->x)) {
    sum_planes(j, from, to, scratch);
  } else {
    sum_other_layouts(j, from, to, scratch);
  }
}

/* Each piece sums its own channels, so the result does not depend on the number of threads. */
static void sum_piece(void *arg, int32_t i) {
  job *j = arg;
  int64_t from, to;
  ng_piece_bounds(j->box->conv.channels, j->pieces, i, &from, &to);
  sum_channels(j, from, to, j->scratch + i * j->each);
}

/* ---- the entry -----------------------------------------------------------------------------*/

/* Return how many doubles of scratch a piece needs; `planes`: for sum_planes. */
static int64_t piece_scratch(const ng_conv *b, bool planes) {
  const int64_t first =
      ng_plus(ng_times(count_plane_channels(b), ng_times(b->height, b->width)), b->width);
  const int64_t lines = ng_conv_is_pointwise(b) ? 1 : ng_times(b->width, 1 + b->kernel[0]);
  const int64_t last = ng_times(count_line_channels(b), lines);
  return ng_round16(planes ? first : last);
}

int64_t ng_box_scratch(const ng_queue *q, const ng_conv *c) {
  return ng_times(q->threads, ng_sample_patches_scratch(c));
}

void ng_cpu_sum_patches(ng_queue *q, const ng_box *b, int64_t n, double *scratch) {
  for (const ng_box *end = b + n; b < end; b++) {
    const ng_conv *c = &b->conv;
    job j = {.box = b, .scratch = scratch};
    j.each = piece_scratch(c, has_planes(c, &b->x));
    j.pieces = ng_queue_pieces(q, b->samples * c->channels * c->height * c->width);
    j.pieces = (int32_t)ng_min64(j.pieces, c->channels);
    ng_queue_run(q, j.pieces, sum_piece, &j);
    if (j.has_nonfinite) b->out[0] = (double)NAN;
  }
}

int64_t ng_sample_patches_scratch(const ng_conv *box) {
  return ng_max64(piece_scratch(box, false), box->is_linear ? 0 : piece_scratch(box, true));
}

void ng_sum_sample_patches(const ng_box *box, double *scratch) {
  job j = {.box = box};
  /* all inputs are finite, so j.has_nonfinite is not read */
  sum_channels(&j, 0, box->conv.channels, scratch);
}
