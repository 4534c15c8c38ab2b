/* sums.cu: kernels over observed arrays (kernel/observed.h): sums of patches, sums of squares, Gram matrices. */
#include "device_read.h"

/* ---- patches ---------------------------------------------------------------------------------*/

/* Return whether the pixel (y, x) lies under kernel offset k of an output position. */
NG_INLINE bool is_under(const dv_sum *b, int64_t y, int64_t x, int64_t k) {
  const int64_t u = y + b->padding[0] - k / b->kernel[1] * b->dilation[0];
  const int64_t v = x + b->padding[1] - k % b->kernel[1] * b->dilation[1];
  return u >= 0 && v >= 0 && u % b->stride[0] == 0 && v % b->stride[1] == 0 &&
         u / b->stride[0] < b->out_height && v / b->stride[1] < b->out_width;
}

/* One block for each channel and each DV_TAPS kernel offsets. out[0] is 0 before, and becomes NaN if an input is not finite. */
NG_GLOBAL dv_box_channels(NG_ARGUMENT(dv_sum) b) {
  NG_SHARED double warps[32];
  const int64_t groups = (b.taps + DV_TAPS - 1) / DV_TAPS, c = NG_BLOCK / groups,
                offset = NG_BLOCK % groups * DV_TAPS, positions = b.x.positions;
  double sum[DV_TAPS] = {0.0};
  for (int64_t i = NG_THREAD; i < b.samples * positions; i += DV_THREADS) {
    const int64_t s = i % positions;
    const double x = dv_element(&b.x, i / positions, s, c);
    if (x - x != 0.0) NG_ADD_DOUBLE(b.out, DV_NAN);
    NG_UNROLL
    for (int32_t t = 0; t < DV_TAPS; t++) {
      if (offset + t < b.taps && is_under(&b, s / b.width, s % b.width, offset + t)) sum[t] += x;
    }
  }
  NG_UNROLL
  for (int32_t t = 0; t < DV_TAPS; t++) {
    if (offset + t >= b.taps) break;
    const double all = dv_block_sum(sum[t], warps);
    const int64_t at = c * b.taps + offset + t;
    if (NG_THREAD != 0) continue;
    if (at == 0) NG_ADD_DOUBLE(b.out, all);
    if (at > 0) b.out[at] = all;
  }
}

/* ---- squares ---------------------------------------------------------------------------------*/

/* One block for each column. */
NG_GLOBAL dv_square_columns(const dv_sum *list, const int64_t *first, int64_t n) {
  NG_SHARED double warps[32];
  const int64_t item = dv_find_descriptor(first, n), c = NG_BLOCK - first[item];
  const dv_sum *s = &list[item];
  const int64_t S = s->x.positions;
  double all = 0.0;
  for (int64_t i = 0; i < s->samples; i++) {
    double sum = 0.0;
    for (int64_t p = NG_THREAD; p < S; p += DV_THREADS) {
      const double x = dv_element(&s->x, i, p, c);
      sum += s->reduce == 0 ? x * x : x;
    }
    sum = dv_block_sum(sum, warps);
    if (s->reduce == 1) sum /= (double)S;
    all += s->reduce == 0 ? sum : sum * sum;
  }
  if (NG_THREAD == 0) s->out[c] = all;
}

/* ---- Gram matrices ---------------------------------------------------------------------------*/

/* Return element j of the row of sample n and position s. */
NG_INLINE double row_element(const dv_gram *g, int64_t n, int64_t s, int64_t j) {
  const dv_sum *x = &g->of;
  const int64_t C = g->c1 - g->c0, k = j / C;
  if (g->has_ones && j == g->p - 1) return 1.0;
  if (!g->has_patches) return dv_element(&x->x, n, s, g->c0 + j);
  const int64_t row =
      s / x->out_width * x->stride[0] + k / x->kernel[1] * x->dilation[0] - x->padding[0];
  const int64_t col =
      s % x->out_width * x->stride[1] + k % x->kernel[1] * x->dilation[1] - x->padding[1];
  if (row < 0 || row >= x->height || col < 0 || col >= x->width) return 0.0;
  return dv_element(&x->x, n, row * x->width + col, g->c0 + j % C);
}

NG_INLINE int64_t count_positions(const dv_gram *g) {
  return g->has_patches ? g->of.out_height * g->of.out_width : g->of.x.positions;
}

/* Return element j of row r of the matrix; with `reduce` a row is the sum or mean over the positions of a sample. */
NG_INLINE double row_value(const dv_gram *g, int64_t positions, int64_t r, int64_t j) {
  if (g->of.reduce == 0) return row_element(g, r / positions, r % positions, j);
  double sum = 0.0;
  for (int64_t s = 0; s < positions; s++) {
    sum += row_element(g, r, s, j);
  }
  return g->of.reduce == 1 ? sum / (double)positions : sum;
}

/* Add `sum` times alpha to entry (i, j) of S. */
NG_INLINE void add_entry(const dv_gram *g, int64_t i, int64_t j, double sum) {
  const int64_t at = dv_sym_at(g->p, i, j);
  if (g->S64 != NULL) {
    g->S64[at] += g->wide_alpha * sum;
  } else {
    g->S[at] = (float)((double)g->S[at] + (double)g->alpha * sum);
  }
}

/* One block for each square of DV_GRAM rows, of `count` from `from` on, and DV_GRAM columns: rows [count, p] <- the rows in f32. The
 * threads of a warp read along the axis of stride 1 and write along columns. */
NG_GLOBAL dv_gram_pack(const dv_gram *g, int64_t from, int64_t count, float *rows) {
  NG_SHARED float square[DV_GRAM][DV_GRAM + 1];
  const int64_t across = (g->p + DV_GRAM - 1) / DV_GRAM, positions = count_positions(g);
  const int64_t r0 = NG_BLOCK / across * DV_GRAM, j0 = NG_BLOCK % across * DV_GRAM;
  const bool along_columns = g->of.x.column_stride == 1;
  const int32_t tx = NG_THREAD % DV_GRAM;
  for (int32_t y = NG_THREAD / DV_GRAM; y < DV_GRAM; y += DV_THREADS / DV_GRAM) {
    const int32_t r = along_columns ? y : tx, j = along_columns ? tx : y;
    if (r0 + r < count && j0 + j < g->p)
      square[r][j] = (float)row_value(g, positions, from + r0 + r, j0 + j);
  }
  NG_BARRIER();
  for (int32_t y = NG_THREAD / DV_GRAM; y < DV_GRAM; y += DV_THREADS / DV_GRAM) {
    if (r0 + y < count && j0 + tx < g->p) rows[(r0 + y) * g->p + j0 + tx] = square[y][tx];
  }
}

/* One block for each square of DV_GRAM x DV_GRAM entries on or below the diagonal, counted row by row. Thread t has the
 * entries of row t / DV_GRAM + 8 k and column t % DV_GRAM. Products of DV_GRAM rows are added in f32, these sums in
 * double. */
NG_GLOBAL dv_gram_squares(const dv_gram *list, const int64_t *first, int64_t n) {
  NG_SHARED float A[DV_GRAM][DV_GRAM + 1], B[DV_GRAM][DV_GRAM + 1];
  enum { EACH = DV_GRAM * DV_GRAM / DV_THREADS, STEP = DV_THREADS / DV_GRAM };
  const int64_t item = dv_find_descriptor(first, n);
  const dv_gram *g = &list[item];
  int64_t across = NG_BLOCK - first[item], down = 0;
  for (; across > down; down++) {
    across -= down + 1;
  }
  const int64_t i0 = down * DV_GRAM, j0 = across * DV_GRAM;
  const int64_t positions = count_positions(g);
  const int64_t rows = g->of.samples * (g->of.reduce != 0 ? 1 : positions);
  const int32_t tx = NG_THREAD % DV_GRAM, ty = NG_THREAD / DV_GRAM;
  double sum[EACH] = {0.0};
  for (int64_t r0 = 0; r0 < rows; r0 += DV_GRAM) {
    for (int32_t y = ty; y < DV_GRAM; y += STEP) {
      const int64_t r = r0 + y;
      A[y][tx] = r < rows && i0 + tx < g->p ? (float)row_value(g, positions, r, i0 + tx) : 0.0f;
      B[y][tx] = r < rows && j0 + tx < g->p ? (float)row_value(g, positions, r, j0 + tx) : 0.0f;
    }
    NG_BARRIER();
    for (int32_t k = 0; k < EACH; k++) {
      float part = 0.0f;
      for (int32_t r = 0; r < DV_GRAM; r++) {
        part += A[r][ty + STEP * k] * B[r][tx];
      }
      sum[k] += (double)part;
    }
    NG_BARRIER();
  }
  for (int32_t k = 0; k < EACH; k++) {
    const int64_t i = i0 + ty + STEP * k, j = j0 + tx;
    if (i < g->p && j <= i) add_entry(g, i, j, sum[k]);
  }
}

/* One block for each row of S64, in double. */
NG_GLOBAL dv_gram_rows64(const dv_gram *list, const int64_t *first, int64_t n) {
  const int64_t item = dv_find_descriptor(first, n), i = NG_BLOCK - first[item];
  const dv_gram *g = &list[item];
  const int64_t positions = count_positions(g);
  const int64_t rows = g->of.samples * (g->of.reduce != 0 ? 1 : positions);
  for (int64_t j = NG_THREAD; j <= i; j += DV_THREADS) {
    double sum = 0.0;
    for (int64_t r = 0; r < rows; r++) {
      sum += row_value(g, positions, r, i) * row_value(g, positions, r, j);
    }
    add_entry(g, i, j, sum);
  }
}

/* ---- correlations between kernel positions (kernel/spatial.c) ----------------------------------*/

/* DV_SLICES blocks for each distance d = (dy, dx) >= 0 in row-major order, with columns from -(width - 1): sums [blocks] <- a part
 * of the sum of x[y, x] x[y + dy dilation, x + dx dilation] over samples, channels and pixels. */
NG_GLOBAL dv_spatial_sums(const dv_gram *list, const int64_t *first, int64_t n, double *sums) {
  NG_SHARED double warps[32];
  const int64_t item = dv_find_descriptor(first, n);
  const dv_gram *g = &list[item];
  const dv_sum *b = &g->of;
  const int64_t k = (NG_BLOCK - first[item]) / DV_SLICES + b->kernel[1] - 1;
  const int64_t wide = 2 * b->kernel[1] - 1, slice = NG_BLOCK % DV_SLICES;
  const int64_t dy = k / wide * b->dilation[0], dx = (k % wide - b->kernel[1] + 1) * b->dilation[1];
  const int64_t C = g->c1 - g->c0, pixels = b->height * b->width;
  const bool channels_last = b->x.column_stride == 1;
  double sum = 0.0;
  for (int64_t i = slice * DV_THREADS + NG_THREAD; i < b->samples * pixels * C;
       i += DV_SLICES * DV_THREADS) {
    const int64_t sample = i / (pixels * C), rest = i % (pixels * C);
    const int64_t c = g->c0 + (channels_last ? rest % C : rest / pixels);
    const int64_t s = channels_last ? rest / C : rest % pixels;
    const int64_t row = s / b->width + dy, col = s % b->width + dx;
    if (row >= b->height || col < 0 || col >= b->width) continue;
    sum += dv_element(&b->x, sample, s, c) * dv_element(&b->x, sample, row * b->width + col, c);
  }
  sum = dv_block_sum(sum, warps);
  if (NG_THREAD == 0) sums[NG_BLOCK] = sum;
}
/* One thread for each entry; first_sum: the number of sums before each descriptor. */
NG_GLOBAL dv_spatial_add(const dv_gram *list, const int64_t *first, const int64_t *first_sum,
                         int64_t n, const double *sums) {
  const int64_t item = dv_find_descriptor(first, n);
  const dv_gram *g = &list[item];
  const int64_t e = (NG_BLOCK - first[item]) * DV_THREADS + NG_THREAD, width = g->of.kernel[1];
  const int64_t l = e / g->p, k = e % g->p;
  if (l >= g->p || k > l) return;
  const int64_t d = (l / width - k / width) * (2 * width - 1) + l % width - k % width;
  double sum = 0.0;
  for (int32_t i = 0; i < DV_SLICES; i++) {
    sum += sums[first_sum[item] + d * DV_SLICES + i];
  }
  add_entry(g, l, k, sum);
}
