/* squares.c: sums of squares of columns: the diagonal of the Gram matrices of gram_rows.c and
 * gram_conv.c.
 *
 * In: a view in any strides and dtype. Out: for each column the sum over samples and positions of x^2, or the
 * sum over samples of the squared sum (or mean) over positions. A thread sums all rows of its columns, so the result
 * does not depend on the number of threads. Sums are in f32 over blocks of rows, in double between blocks. */
#include "kernel/pixels.h"
#include "simd.h"

enum { WIDE = 64, BLOCK = 64 };

NG_CLONES static void add_squares(const float *restrict x, int64_t rows, float *restrict sum) {
  for (int64_t r = 0; r < rows; r++, x += WIDE) {
    for (int i = 0; i < WIDE; i++) {
      sum[i] += x[i] * x[i];
    }
  }
}

NG_CLONES static void add_rows(const float *restrict x, int64_t rows, float *restrict sum) {
  for (int64_t r = 0; r < rows; r++, x += WIDE) {
    for (int i = 0; i < WIDE; i++) {
      sum[i] += x[i];
    }
  }
}

static void square_columns(void *arg, int32_t k) {
  const ng_squares *j = arg;
  const ng_view *v = &j->x;
  const int64_t from = (int64_t)k * WIDE, to = ng_min64(v->columns, from + WIDE);
  const ng_pixels some = {v, from, to};
  const double by = j->reduce == 1 ? 1.0 / (double)v->positions : 1.0;
  /* initialised because columns after the last column of the view are not written */
  float tile[BLOCK * WIDE] = {0.0f};
  double sum[WIDE] = {0.0};
  for (int64_t n = 0; n < j->samples; n++) {
    double sample[WIDE] = {0.0};
    for (int64_t s = 0, rows; s < v->positions; s += rows) {
      float part[WIDE] = {0.0f};
      rows = ng_min64(BLOCK, v->positions - s);
      ng_pixels_load(&some, n, s, rows, tile, WIDE);
      if (j->reduce == 0) {
        add_squares(tile, rows, part);
      } else {
        add_rows(tile, rows, part);
      }
      for (int i = 0; i < WIDE; i++) {
        sample[i] += (double)part[i];
      }
    }
    for (int i = 0; i < WIDE; i++) {
      sum[i] += j->reduce == 0 ? sample[i] : by * sample[i] * by * sample[i];
    }
  }
  for (int64_t c = from; c < to; c++) {
    j->out[c] = sum[c - from];
  }
}

void ng_cpu_sum_squares(ng_queue *q, const ng_squares *s, int64_t n) {
  for (const ng_squares *end = s + n; s < end; s++) {
    if (s->x.dtype == NG_F64) {
      ng_ref_sum_squares(q, s, 1);
      continue;
    }
    const bool threads = ng_queue_pieces(q, s->samples * s->x.positions * s->x.columns) > 1;
    const int32_t tasks = (int32_t)((s->x.columns + WIDE - 1) / WIDE);
    ng_queue_run(threads ? q : NULL, tasks, square_columns, (void *)(uintptr_t)s);
  }
}
