/* bf16_block.c: blocks of bf16.h, by AVX-512, AVX512_BF16 and AMX. */
#include "linalg/bf16.h"

#include <string.h>

#if defined(NG_BF16_BODIES)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WIDE __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#define TILE __attribute__((target("amx-tile,amx-bf16")))
#define UNROLL _Pragma("GCC unroll 16")

enum { SIDE = NG_BF16_SIDE, LINE = 64, HALF = 1024, LANES = 16 };

/* ---- which body ------------------------------------------------------------------------------*/

/* arch_prctl(2): ARCH_REQ_XCOMP_PERM asks for the permission to use a component of the processor's state; 18 is the tile data.
 * The kernel refuses it if an alternate signal stack is too small for the larger state. */
static bool may_use_tiles(void) {
  enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & (1u << 22)) == 0 || (d & (1u << 24)) == 0) return false; /* AMX-BF16, AMX-TILE */
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

bool ng_bf16_can_run(ng_bf16_body body) {
  __builtin_cpu_init();
  const bool wide = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return body == NG_BF16_NONE || (wide && (body == NG_BF16_AVX512 || may_use_tiles()));
}

ng_bf16_body ng_bf16_find_body(void) {
  if (ng_bf16_can_run(NG_BF16_AMX)) return NG_BF16_AMX;
  return ng_bf16_can_run(NG_BF16_AVX512) && !__builtin_cpu_is("intel") ? NG_BF16_AVX512
                                                                       : NG_BF16_NONE;
}

/* ---- AMX -------------------------------------------------------------------------------------*/

/* Eight tiles of 16 rows of 64 bytes. The compiler does not know that the instruction reads the whole struct. */
TILE static void set_tiles(void) {
  struct {
    uint8_t palette, start, unused[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  } c;
  memset(&c, 0, sizeof c);
  c.palette = 1;
  for (int i = 0; i < 8; i++) {
    c.bytes[i] = LINE;
    c.rows[i] = LANES;
  }
  __asm__ volatile("ldtilecfg %0" : : "m"(c));
}

TILE static void release_tiles(void) { _tile_release(); }

/* gcc 12 does not know that a load of a tile reads memory, and could move stores behind it. */
#define MEMORY_IS_WRITTEN() __asm__ volatile("" : : : "memory")

TILE static void multiply_amx(const char *left, const char *right, int64_t blocks, bool adds,
                              float *c) {
  enum { ROW = SIDE * (int)sizeof(float) };
  float *const low = c + LANES * SIDE;
  MEMORY_IS_WRITTEN();
  if (adds) {
    _tile_loadd(0, c, ROW);
    _tile_loadd(1, c + LANES, ROW);
    _tile_loadd(2, low, ROW);
    _tile_loadd(3, low + LANES, ROW);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (; blocks > 0; blocks--, left += NG_BF16_BYTES, right += NG_BF16_BYTES) {
    _tile_loadd(4, left, LINE);
    _tile_loadd(6, right, LINE);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, right + HALF, LINE);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, left + HALF, LINE);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, ROW);
  _tile_stored(1, c + LANES, ROW);
  _tile_stored(2, low, ROW);
  _tile_stored(3, low + LANES, ROW);
}

/* ---- AVX512_BF16 -----------------------------------------------------------------------------*/

WIDE static inline __m512i load_line(const char *at) { return _mm512_load_si512((const void *)at); }
WIDE static inline void store_line(char *at, __m512i x) { _mm512_store_si512((void *)at, x); }

/* Eight rows of c at a time: 16 sums in registers. */
WIDE static void multiply_avx512(const char *left, const char *right, int64_t blocks, bool adds,
                                 float *c) {
  enum { ROWS = 8 };
  for (int from = 0; from < SIDE; from += ROWS, c += (ptrdiff_t)ROWS * SIDE) {
    __m512 sum[ROWS][2];
    UNROLL for (int r = 0; r < ROWS; r++) {
      sum[r][0] = adds ? _mm512_load_ps(c + r * SIDE) : _mm512_setzero_ps();
      sum[r][1] = adds ? _mm512_load_ps(c + r * SIDE + LANES) : _mm512_setzero_ps();
    }
    const char *x = left + (ptrdiff_t)from * LINE, *y = right;
    for (int64_t k = 0; k < blocks; k++, x += NG_BF16_BYTES, y += NG_BF16_BYTES) {
      for (int p = 0; p < LANES; p++) {
        const __m512bh y0 = (__m512bh)load_line(y + p * LINE);
        const __m512bh y1 = (__m512bh)load_line(y + HALF + p * LINE);
        UNROLL for (int r = 0; r < ROWS; r++) {
          int32_t pair;
          memcpy(&pair, x + r * LINE + p * (int)sizeof pair, sizeof pair);
          const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
          sum[r][0] = _mm512_dpbf16_ps(sum[r][0], both, y0);
          sum[r][1] = _mm512_dpbf16_ps(sum[r][1], both, y1);
        }
      }
    }
    UNROLL for (int r = 0; r < ROWS; r++) {
      _mm512_store_ps(c + r * SIDE, sum[r][0]);
      _mm512_store_ps(c + r * SIDE + LANES, sum[r][1]);
    }
  }
}

void ng_bf16_begin(ng_bf16_body body) {
  if (body == NG_BF16_AMX) set_tiles();
}

void ng_bf16_end(ng_bf16_body body) {
  if (body == NG_BF16_AMX) release_tiles();
}

void ng_bf16_multiply(ng_bf16_body body, const char *left, const char *right, int64_t blocks,
                      bool adds, float *c) {
  (body == NG_BF16_AMX ? multiply_amx : multiply_avx512)(left, right, blocks, adds, c);
}

/* ---- conversions -----------------------------------------------------------------------------*/

/* Widen the elements 16 to 31 (`high`) or 0 to 15 of a row. */
WIDE static inline __m512 widen(__m512i row, bool high) {
  const __m256i x = high ? _mm512_extracti64x4_epi64(row, 1) : _mm512_castsi512_si256(row);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

WIDE static inline __m512i narrow(__m512 low, __m512 high) {
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

WIDE static inline __m512i scale_line(__m512i x, __m512 by) {
  return narrow(_mm512_mul_ps(by, widen(x, false)), _mm512_mul_ps(by, widen(x, true)));
}

WIDE static inline __m512i add_lines(__m512i x, __m512i y) {
  return narrow(_mm512_add_ps(widen(x, false), widen(y, false)),
                _mm512_add_ps(widen(x, true), widen(y, true)));
}

WIDE void ng_bf16_round(const float *c, float by, const char *old, float by_old, bool each,
                        char *rows) {
  const __m512 f = _mm512_set1_ps(by), g = _mm512_set1_ps(by_old);
  for (int r = 0; r < SIDE; r++, c += SIDE) {
    __m512 low = _mm512_mul_ps(f, _mm512_load_ps(c));
    __m512 high = _mm512_mul_ps(f, _mm512_load_ps(c + LANES));
    __m512i line;
    if (old == NULL) {
      line = narrow(low, high);
    } else if (each) {
      line = add_lines(scale_line(load_line(old + r * LINE), g), narrow(low, high));
    } else {
      const __m512i x = load_line(old + r * LINE);
      line = narrow(_mm512_fmadd_ps(g, widen(x, false), low),
                    _mm512_fmadd_ps(g, widen(x, true), high));
    }
    store_line(rows + r * LINE, line);
  }
}

WIDE void ng_bf16_scale(const char *old, float by, char *rows) {
  const __m512 f = _mm512_set1_ps(by);
  for (int r = 0; r < SIDE; r++)
    store_line(rows + r * LINE, scale_line(load_line(old + r * LINE), f));
}

WIDE void ng_bf16_interleave(const char *rows, char *pairs) {
  uint16_t order[2][SIDE];
  for (int i = 0; i < SIDE; i++) { /* element i / 2 of the first row (even i) or the second one */
    order[0][i] = (uint16_t)(i / 2 + i % 2 * SIDE);
    order[1][i] = (uint16_t)(order[0][i] + LANES);
  }
  const __m512i low = _mm512_loadu_si512(order[0]), high = _mm512_loadu_si512(order[1]);
  for (int r = 0; r < LANES; r++) {
    const __m512i x = load_line(rows + 2 * r * LINE), y = load_line(rows + (2 * r + 1) * LINE);
    store_line(pairs + r * LINE, _mm512_permutex2var_epi16(x, low, y));
    store_line(pairs + HALF + r * LINE, _mm512_permutex2var_epi16(x, high, y));
  }
}

/* Transpose a matrix of 16 x 16 numbers of 32 bits: elements within quarters of registers, then the quarters. */
WIDE static void transpose(const char *from, char *to) {
  __m512i x[LANES], y[LANES];
  UNROLL for (int i = 0; i < LANES; i++) x[i] = load_line(from + i * LINE);
  UNROLL for (int i = 0; i < LANES; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  UNROLL for (int i = 0; i < LANES;
              i += 4) { /* x[4 i + j]: column 4 q + j of the rows 4 i to 4 i + 3, in quarter q */
    x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
  }
  UNROLL for (int j = 0; j < 4; j++) {
    const __m512i a = _mm512_shuffle_i32x4(x[j], x[4 + j], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(x[j], x[4 + j], 0xdd);
    const __m512i c = _mm512_shuffle_i32x4(x[8 + j], x[12 + j], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(x[8 + j], x[12 + j], 0xdd);
    store_line(to + j * LINE, _mm512_shuffle_i32x4(a, c, 0x88));
    store_line(to + (8 + j) * LINE, _mm512_shuffle_i32x4(a, c, 0xdd));
    store_line(to + (4 + j) * LINE, _mm512_shuffle_i32x4(b, d, 0x88));
    store_line(to + (12 + j) * LINE, _mm512_shuffle_i32x4(b, d, 0xdd));
  }
}

WIDE void ng_bf16_turn(const char *from, char *to) {
  transpose(from, to);
  transpose(from + HALF, to + HALF);
}

/* The mask of elements [16 half, 16 half + 16) of a row that are below `width`. */
static inline uint16_t mask_of(int64_t width, int half) {
  const int64_t n = width - half * LANES;
  return (uint16_t)(n >= LANES ? 0xffff : n <= 0 ? 0 : (1u << n) - 1);
}

WIDE void ng_bf16_load(const float *x, int64_t ld, int64_t height, int64_t width, float norm,
                       char *rows) {
  const uint16_t low = mask_of(width, 0), high = mask_of(width, 1);
  const __m512 by = _mm512_set1_ps(norm);
  for (int64_t r = 0; r < SIDE; r++) {
    __m512i line = _mm512_setzero_si512();
    if (r < height) {
      const float *row = x + r * ld;
      line = narrow(_mm512_maskz_loadu_ps(low, row), _mm512_maskz_loadu_ps(high, row + LANES));
      line = narrow(_mm512_div_ps(widen(line, false), by), _mm512_div_ps(widen(line, true), by));
    }
    store_line(rows + r * LINE, line);
  }
}

WIDE void ng_bf16_store(const char *rows, float by, bool rounds, float *x, int64_t ld,
                        int64_t height, int64_t width) {
  const uint16_t low = mask_of(width, 0), high = mask_of(width, 1);
  const __m512 f = _mm512_set1_ps(by), one = _mm512_set1_ps(1.0f);
  for (int64_t r = 0; r < height; r++) {
    __m512i line = load_line(rows + r * LINE);
    if (rounds) line = scale_line(line, f);
    const __m512 last = rounds ? one : f;
    _mm512_mask_storeu_ps(x + r * ld, low, _mm512_mul_ps(last, widen(line, false)));
    _mm512_mask_storeu_ps(x + r * ld + LANES, high, _mm512_mul_ps(last, widen(line, true)));
  }
}

WIDE double ng_bf16_sum_squares(const float *x, int64_t n) {
  __m512d sum = _mm512_setzero_pd(), other = sum;
  for (int64_t i = 0; i < n; i += SIDE) {
    const uint16_t low = mask_of(n - i, 0), high = mask_of(n - i, 1);
    const __m512i line =
        narrow(_mm512_maskz_loadu_ps(low, x + i), _mm512_maskz_loadu_ps(high, x + i + LANES));
    for (int half = 0; half < 2; half++) {
      const __m512 v = widen(line, half == 1);
      const __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
      const __m512d b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
      sum = _mm512_fmadd_pd(a, a, sum);
      other = _mm512_fmadd_pd(b, b, other);
    }
  }
  return _mm512_reduce_add_pd(_mm512_add_pd(sum, other));
}

#else

bool ng_bf16_can_run(ng_bf16_body body) { return body == NG_BF16_NONE; }
ng_bf16_body ng_bf16_find_body(void) { return NG_BF16_NONE; }

#endif

const char *ng_bf16_describe(void) {
#if defined(NG_HAVE_BLAS)
  const ng_bf16_body body = ng_bf16_find_body();
  return body == NG_BF16_AMX ? "AMX" : body == NG_BF16_AVX512 ? "AVX512_BF16" : "rounded, in f32";
#else /* the backend `ref`, which does not use bf16.h */
  return "rounded, in double";
#endif
}
