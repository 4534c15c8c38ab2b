/* transpose.c: transpose a matrix of f32, in blocks that fit the first-level cache.
 *
 * Loops over channels run fast if the channels are adjacent in memory.  In an NCHW image, adjacent channels are one
 * image plane apart; in a channels-last weight, adjacent kernel offsets are a run of channels apart. */
#include "kernel/kernel.h"

#if defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 12)
/* Only these compilers have __builtin_shufflevector, which transposes 4 x 4 elements in registers. */
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

void ng_transpose(const float *src, int64_t lds, int64_t m, int64_t n, float *dst, int64_t ldd) {
  /* 16 rows of src fill one cache line (64 bytes) of dst.  If lds is a power of two, more rows would evict each other
   * from the cache. */
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
