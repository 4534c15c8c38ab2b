/* read.c: from the caller's layout and dtype to rows of f32.
 *
 * In: images in any strides, f32, bf16 or f16.  Out: rows of channels, one row a pixel, which is
 * what every statistic of a convolution is made of (Grosse & Martens 2016, section 3).
 *
 * Tiles bound the scratch: a batch of any size goes through the same few MiB, and the conversion of
 * a tile is still in the caches when BLAS reads it. */
#include "stat/read.h"

#include "core/core.h"

enum { LEAST_ROWS = 512, MOST_ROWS = 16384, TILE_FLOATS = 1 << 21 };

/* Whole cache lines, so that no two rows share one and threads may fill neighbours. */
int64_t ng_tile_ld(int64_t cols) { return ng_round16(cols); }

/* 8 MiB of floats, but never fewer rows than SYRK needs to pay for reading and writing S, and no
 * more than MOST_ROWS of narrow ones. */
int64_t ng_tile_rows(int64_t cols) {
  const int64_t rows = TILE_FLOATS / ng_tile_ld(cols);
  return ng_max64(LEAST_ROWS, ng_min64(MOST_ROWS, rows));
}

int64_t ng_tile_floats(int64_t cols) {
  /* Rounding makes rows * ld jump about below TILE_FLOATS; this bound grows with cols, so scratch
   * that was sized for the widest part serves every narrower one. */
  const int64_t ld = ng_tile_ld(cols);
  return ng_max64(LEAST_ROWS * ld, ng_min64(MOST_ROWS * ld, TILE_FLOATS));
}

/* ---- transpose -------------------------------------------------------------------------------*/

#if defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 12)
/* Four by four in registers: four loads, eight shuffles, four stores. */
typedef float four __attribute__((vector_size(16)));

static inline void transpose4(const float *src, int64_t lds, float *dst, int64_t ldd) {
  four a, b, c, d;
  memcpy(&a, src, sizeof a);
  memcpy(&b, src + lds, sizeof b);
  memcpy(&c, src + 2 * lds, sizeof c);
  memcpy(&d, src + 3 * lds, sizeof d);
  const four ac0 = __builtin_shufflevector(a, c, 0, 4, 1, 5);
  const four ac1 = __builtin_shufflevector(a, c, 2, 6, 3, 7);
  const four bd0 = __builtin_shufflevector(b, d, 0, 4, 1, 5);
  const four bd1 = __builtin_shufflevector(b, d, 2, 6, 3, 7);
  a = __builtin_shufflevector(ac0, bd0, 0, 4, 1, 5);
  b = __builtin_shufflevector(ac0, bd0, 2, 6, 3, 7);
  c = __builtin_shufflevector(ac1, bd1, 0, 4, 1, 5);
  d = __builtin_shufflevector(ac1, bd1, 2, 6, 3, 7);
  memcpy(dst, &a, sizeof a);
  memcpy(dst + ldd, &b, sizeof b);
  memcpy(dst + 2 * ldd, &c, sizeof c);
  memcpy(dst + 3 * ldd, &d, sizeof d);
}
#else
static inline void transpose4(const float *src, int64_t lds, float *dst, int64_t ldd) {
  for (int64_t j = 0; j < 4; j++) {
    for (int64_t i = 0; i < 4; i++) {
      dst[j * ldd + i] = src[i * lds + j];
    }
  }
}
#endif

/* Channels of NCHW are strided by whole images; this is where they become neighbours. */
void ng_transpose(const float *src, int64_t lds, int64_t m, int64_t n, float *dst, int64_t ldd) {
  /* 16 rows of src fill whole cache lines of dst while both strides may be powers of two, where
   * more rows would evict each other. */
  for (int64_t i0 = 0; i0 < m; i0 += 16) {
    const int64_t i1 = ng_min64(i0 + 16, m);
    const int64_t whole = i0 + (i1 - i0) / 4 * 4;
    int64_t j = 0;
    for (; j + 4 <= n; j += 4) {
      for (int64_t i = i0; i < whole; i += 4) {
        transpose4(src + i * lds + j, lds, dst + j * ldd + i, ldd);
      }
      for (int64_t i = whole; i < i1; i++) {
        for (int64_t jj = j; jj < j + 4; jj++) {
          dst[jj * ldd + i] = src[i * lds + jj];
        }
      }
    }
    for (; j < n; j++) {
      for (int64_t i = i0; i < i1; i++) {
        dst[j * ldd + i] = src[i * lds + j];
      }
    }
  }
}

/* ---- pixels ----------------------------------------------------------------------------------*/

/* Pixels are rows already: one conversion where they follow each other. */
static void load_last(const ng_pixels *p, const char *src, int64_t count, float *dst,
                      int64_t stride) {
  const int64_t size = ng_dtype_size(p->v->dtype), wide = p->c1 - p->c0;
  if (p->v->by_position == wide && stride == wide) {
    ng_to_f32(dst, src, p->v->dtype, count * wide);
    return;
  }
  for (int64_t i = 0; i < count; i++) {
    ng_to_f32(dst + i * stride, src + i * p->v->by_position * size, p->v->dtype, wide);
  }
}

/* f32 is transposed where it lies; 16 bits go through a block on the stack, small enough for the
 * first cache: 16 channels of 64 pixels, 4 KiB. */
static void load_first(const ng_pixels *p, const char *src, int64_t count, float *dst,
                       int64_t stride) {
  enum { ROWS = 16, COLS = 64 };
  const int64_t size = ng_dtype_size(p->v->dtype), wide = p->c1 - p->c0, apart = p->v->by_column;
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

/* Run after run; which way depends on what lies next to what: channels, pixels, or nothing. */
void ng_pixels_load(const ng_pixels *p, int64_t n, int64_t first, int64_t count, float *dst,
                    int64_t stride) {
  const ng_view *v = p->v;
  for (int64_t m; count > 0; first += m, count -= m, dst += m * stride) {
    const char *src = ng_view_at(v, n, first, p->c0);
    m = ng_min64(count, v->run - first % v->run);
    if (v->by_column == 1) {
      load_last(p, src, m, dst, stride);
    } else if (v->by_position == 1) {
      load_first(p, src, m, dst, stride);
    } else {
      const int64_t apart = v->by_position * ng_dtype_size(v->dtype);
      for (int64_t i = 0; i < m; i++) {
        ng_gather(dst + i * stride, src + i * apart, v->dtype, v->by_column, p->c1 - p->c0);
      }
    }
  }
}
