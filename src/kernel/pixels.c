/* pixels.c: load pixels from any layout and dtype into a tile of f32, one row for each pixel, one column for each channel.
 *
 * With tiles, a batch of any size needs only a few MiB of scratch, and BLAS reads a converted tile from the caches. */
#include "kernel/pixels.h"

enum { LEAST_ROWS = 512, MOST_ROWS = 16384, TILE_FLOATS = 1 << 21 };

int64_t ng_tile_rows(int64_t cols) {
  const int64_t rows = TILE_FLOATS / ng_round16(cols);
  return ng_max64(LEAST_ROWS, ng_min64(MOST_ROWS, rows));
}

int64_t ng_tile_floats(int64_t cols) {
  /* ng_tile_rows * ld does not grow monotonically with cols; this bound does, so scratch for many columns serves
   * fewer. */
  const int64_t ld = ng_round16(cols);
  return ng_max64(LEAST_ROWS * ld, ng_min64(MOST_ROWS * ld, TILE_FLOATS));
}

/* ---- pixels ----------------------------------------------------------------------------------*/

/* Channels last: if the pixels are contiguous, one call converts all pixels. */
static void load_channels_last(const ng_pixels *p, const char *src, int64_t count, float *dst,
                               int64_t stride) {
  const int64_t size = ng_dtype_size(p->v->dtype), wide = p->c1 - p->c0;
  if (p->v->position_stride == wide && stride == wide) {
    ng_to_f32(dst, src, p->v->dtype, count * wide);
    return;
  }
  for (int64_t i = 0; i < count; i++) {
    ng_to_f32(dst + i * stride, src + i * p->v->position_stride * size, p->v->dtype, wide);
  }
}

/* Channels first: transpose to dst; 16-bit numbers are first converted in blocks of 16 channels x 64 pixels. */
static void load_channels_first(const ng_pixels *p, const char *src, int64_t count, float *dst,
                                int64_t stride) {
  enum { ROWS = 16, COLS = 64 };
  const int64_t size = ng_dtype_size(p->v->dtype), wide = p->c1 - p->c0,
                apart = p->v->column_stride;
  if (p->v->dtype == NG_F32) {
    ng_transpose((const float *)(const void *)src, apart, wide, count, dst, stride);
    return;
  }
  float block[ROWS * COLS];
  for (int64_t c = 0; c < wide; c += ROWS) {
    const int64_t rows = ng_min64(ROWS, wide - c);
    for (int64_t i = 0; i < count; i += COLS) {
      const int64_t cols = ng_min64(COLS, count - i);
      for (int64_t r = 0; r < rows; r++) {
        ng_to_f32(block + r * COLS, src + ((c + r) * apart + i) * size, p->v->dtype, cols);
      }
      ng_transpose(block, COLS, rows, cols, dst + i * stride + c, stride);
    }
  }
}

/* Load run after run of the view. The method depends on which axis is contiguous: channels, pixels, or neither. */
void ng_pixels_load(const ng_pixels *p, int64_t n, int64_t first, int64_t count, float *dst,
                    int64_t stride) {
  const ng_view *v = p->v;
  for (int64_t m; count > 0; first += m, count -= m, dst += m * stride) {
    const char *src = ng_view_at(v, n, first, p->c0);
    m = ng_min64(count, v->run_length - first % v->run_length);
    if (v->column_stride == 1) {
      load_channels_last(p, src, m, dst, stride);
    } else if (v->position_stride == 1) {
      load_channels_first(p, src, m, dst, stride);
    } else {
      const int64_t apart = v->position_stride * ng_dtype_size(v->dtype);
      for (int64_t i = 0; i < m; i++) {
        ng_gather(dst + i * stride, src + i * apart, v->dtype, v->column_stride, p->c1 - p->c0);
      }
    }
  }
}
