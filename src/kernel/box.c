/* box.c: sums of image patches over samples and output positions, computed without storing patches.
 *
 * In: images or rows of positions, in any strides, f32, bf16 or f16. Out: a[c, i, k], for channel c and kernel offset
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

/* PLANE: doubles of scratch that fit an L1 cache; NARROW, WIDE: least and most channels of a line (box_lines); ROW:
 * most channels of a line of a pointwise convolution; TILE: elements converted at once. */
enum { PLANE = 4096, NARROW = 8, WIDE = 64, ROW = 256, TILE = 512 };

typedef struct job {
  const ng_conv *box;
  const ng_view *in;
  int64_t take; /* number of samples used: the first ones */
  int32_t pieces;
  double *out;  /* [channels][offsets] */
  double *room; /* scratch: `each` doubles for each piece */
  int64_t each;
  atomic_bool bad; /* a piece read a non-finite number */
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
static void add(const job *j, double *acc, int64_t at, int64_t stride, int64_t rows, int64_t n,
                int64_t step) {
  const ng_dtype t = j->in->dtype;
  if (t == NG_F32 && step == 1) {
    add_floats(acc, (const float *)j->in->data + at, stride, rows, n);
    return;
  }
  float line[TILE];
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t i = 0; i < n; i += TILE) {
      const int64_t m = ng_min64(TILE, n - i);
      const int64_t from = at + r * stride + i * step;
      ng_gather(line, (const char *)j->in->data + from * ng_dtype_size(t), t, step, m);
      add_floats(acc + i, line, 0, 1, m);
    }
  }
}

/* Return whether all n numbers are finite: x - x is 0 if x is finite, otherwise NaN. */
static bool all_numbers(const double *x, int64_t n) {
  double zero = 0.0;
  for (int64_t i = 0; i < n; i++) {
    zero += x[i] - x[i];
  }
  return zero == 0.0;
}

static void clear(double *x, int64_t n) { memset(x, 0, (size_t)n * sizeof *x); }

/* Set [*from, *to) to the output positions of one axis at which kernel tap k is inside the image. */
static void reach(const ng_conv *b, int axis, int64_t k, int64_t *from, int64_t *to) {
  const int64_t size = axis == 0 ? b->height : b->width, stride = b->stride[axis];
  const int64_t first = b->padding[axis] - k * b->dilation[axis]; /* u stride >= first */
  const int64_t last = size - 1 + first;                          /* u stride <= last */
  *from = first > 0 ? (first + stride - 1) / stride : 0;
  *to = last < 0 ? 0 : ng_min64(last / stride + 1, (axis == 0 ? b->oh : b->ow));
}

/* Return the image coordinate under tap k at output position u. */
static int64_t pixel(const ng_conv *b, int axis, int64_t k, int64_t u) {
  return u * b->stride[axis] + k * b->dilation[axis] - b->padding[axis];
}

/* ---- channels first: a plane [channel][y][x] at a time ---------------------------------------*/

/* Sum image rows for every column, then sum columns of the result. With kernel kh x kw, output oh x ow and image
 * width w, this takes kh oh w + kh kw ow additions instead of kh kw oh ow. */
static void box_plane(const ng_conv *b, const double *plane, double *rows, double *out) {
  for (int64_t i = 0; i < b->kernel[0]; i++) {
    int64_t from, to;
    reach(b, 0, i, &from, &to);
    clear(rows, b->width);
    for (int64_t u = from; u < to; u++) {
      add_doubles(rows, plane + pixel(b, 0, i, u) * b->width, b->width);
    }
    for (int64_t k = 0; k < b->kernel[1]; k++) {
      double sum = 0.0;
      reach(b, 1, k, &from, &to);
      for (int64_t v = from; v < to; v++) {
        sum += rows[pixel(b, 1, k, v)];
      }
      out[i * b->kernel[1] + k] = sum;
    }
  }
}

static int64_t plane_channels(const ng_conv *b) {
  return ng_max64(1, ng_min64(b->channels, PLANE / ng_times(b->height, b->width)));
}

/* Process as many channel planes at a time as fit the cache; they are one contiguous run in each sample. */
static void first_piece(job *j, int64_t c0, int64_t c1, double *room) {
  const ng_conv *b = j->box;
  const int64_t pixels = b->height * b->width, most = plane_channels(b);
  double *plane = room, *rows = room + most * pixels;
  for (int64_t c = c0; c < c1; c += most) {
    const int64_t n = ng_min64(most, c1 - c);
    clear(plane, n * pixels);
    add(j, plane, c * pixels, j->in->by_sample, j->take, n * pixels, 1);
    if (!all_numbers(plane, n * pixels)) j->bad = true;
    for (int64_t i = 0; i < n; i++) {
      double *out = j->out + (c + i) * ng_conv_taps(b);
      if (ng_conv_pointwise(b)) {
        out[0] = 0.0;
        for (int64_t x = 0; x < pixels; x++) {
          out[0] += plane[i * pixels + x];
        }
      } else {
        box_plane(b, plane + i * pixels, rows, out);
      }
    }
  }
}

/* ---- channels last and all other layouts: one row of pixels at a time, some channels of each pixel --------------*/

/* Return the channels of a line. With all channels, the sums of a line would leave the cache before the next sample. */
static int64_t line_channels(const ng_conv *b) {
  const int64_t n = ng_conv_pointwise(b) ? ROW : ng_max64(NARROW, ng_min64(WIDE, PLANE / b->width));
  return ng_min64(n, b->channels);
}

/* Sum channels [c, c + n). sums[i][x][channel]: sum of the image rows under kernel row i; line: scratch for one row. */
static void box_lines(job *j, int64_t c, int64_t n, double *line, double *sums) {
  const ng_conv *b = j->box;
  const int64_t wide = b->width * n;
  clear(sums, b->kernel[0] * wide);
  const ng_view *in = j->in;
  for (int64_t y = 0; y < b->height; y++) {
    clear(line, wide);
    const int64_t at = ng_view_offset(in, 0, y * b->width) + c * in->by_column;
    if (in->by_column == 1 && n == in->by_position) {
      add(j, line, at, in->by_sample, j->take, wide, 1);
    } else {
      for (int64_t x = 0; x < b->width; x++) {
        add(j, line + x * n, at + x * in->by_position, in->by_sample, j->take, n, in->by_column);
      }
    }
    if (!all_numbers(line, wide)) j->bad = true;
    for (int64_t i = 0; i < b->kernel[0]; i++) {
      const int64_t top = y + b->padding[0] - i * b->dilation[0];
      if (top < 0 || top % b->stride[0] != 0 || top / b->stride[0] >= b->oh) continue;
      add_doubles(sums + i * wide, line, wide);
    }
  }
  for (int64_t i = 0; i < b->kernel[0]; i++) {
    for (int64_t k = 0; k < b->kernel[1]; k++) {
      int64_t from, to;
      reach(b, 1, k, &from, &to);
      clear(line, n);
      for (int64_t v = from; v < to; v++) {
        add_doubles(line, sums + i * wide + pixel(b, 1, k, v) * n, n);
      }
      for (int64_t m = 0; m < n; m++) {
        j->out[(c + m) * ng_conv_taps(b) + i * b->kernel[1] + k] = line[m];
      }
    }
  }
}

static void last_piece(job *j, int64_t c0, int64_t c1, double *room) {
  const ng_conv *b = j->box;
  const int64_t most = line_channels(b), pixels = b->height * b->width;
  for (int64_t c = c0; c < c1; c += most) {
    const int64_t n = ng_min64(most, c1 - c);
    if (!ng_conv_pointwise(b)) {
      box_lines(j, c, n, room, room + b->width * n);
      continue;
    }
    clear(room, n);
    const ng_view *in = j->in;
    for (int64_t s = 0; s < j->take; s++) {
      int64_t at = 0;
      do { /* usually one iteration: a dense view has one run */
        const int64_t first = ng_view_offset(in, s, at) + c * in->by_column;
        add(j, room, first, in->by_position, in->run, n, in->by_column);
      } while ((at += in->run) < pixels);
    }
    if (!all_numbers(room, n)) j->bad = true;
    memcpy(j->out + c, room, (size_t)n * sizeof *room);
  }
}

/* Return whether each channel of a sample is a contiguous plane. */
static bool planar(const ng_conv *b, const ng_view *v) {
  return !b->linear && v->by_column != 1 && v->by_position == 1 && v->axes == 0 &&
         v->by_column == v->positions;
}

static void channels(job *j, int64_t from, int64_t to, double *room) {
  if (planar(j->box, j->in)) {
    first_piece(j, from, to, room);
  } else {
    last_piece(j, from, to, room);
  }
}

/* Each piece sums its own channels, so the result does not depend on the number of threads. */
static void piece(void *arg, int32_t i) {
  job *j = arg;
  int64_t from, to;
  ng_piece_bounds(j->box->channels, j->pieces, i, &from, &to);
  channels(j, from, to, j->room + i * j->each);
}

/* ---- the entry -----------------------------------------------------------------------------*/

/* Return the doubles of scratch that one piece needs; planes: for channels first. */
static int64_t piece_room(const ng_conv *b, bool planes) {
  const int64_t first =
      ng_plus(ng_times(plane_channels(b), ng_times(b->height, b->width)), b->width);
  const int64_t lines = ng_conv_pointwise(b) ? 1 : ng_times(b->width, 1 + b->kernel[0]);
  const int64_t last = ng_times(line_channels(b), lines);
  return ng_round16(planes ? first : last);
}

int64_t ng_box_scratch(const ng_queue *q, const ng_conv *c) {
  return ng_times(q->threads, ng_box_sample_room(c));
}

static void sum_patches(ng_queue *q, const ng_box *b, double *room) {
  job j = {.box = &b->conv, .in = &b->x, .take = b->take, .out = b->out, .room = room};
  j.each = piece_room(j.box, planar(j.box, j.in));
  j.pieces = ng_queue_pieces(q, j.take * j.box->channels * j.box->height * j.box->width);
  j.pieces = (int32_t)ng_min64(j.pieces, j.box->channels);
  ng_queue_run(q, j.pieces, piece, &j);
  if (j.bad) b->out[0] = (double)NAN;
}

void ng_box_sums(ng_queue *q, const ng_box *b, int64_t n, double *scratch) {
  for (int64_t i = 0; i < n; i++) {
    sum_patches(q, &b[i], scratch);
  }
}

int64_t ng_box_sample_room(const ng_conv *box) {
  return ng_max64(piece_room(box, false), box->linear ? 0 : piece_room(box, true));
}

void ng_box_sample(const ng_conv *box, const ng_view *in, double *out, double *room) {
  job j = {.box = box, .in = in, .take = 1, .out = out};
  channels(&j, 0, box->channels, room); /* a finite sample: j.bad is not read */
}
