/* crc.c: CRC-32 by carry-less multiplication.
 *
 * Bytes are coefficients of a polynomial over GF(2), and the CRC is its remainder.  A block of 128 bits that is
 * followed by n bits may be replaced by the products of its halves with x^n and x^(n + 64), modulo the
 * polynomial: the remainder stays the same.  So each 64 bytes are folded into the next 64, then 4 blocks into
 * one, and zlib computes the remainder of the last block.
 * V. Gopal et al., Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction, Intel, 2009.
 * The factors are x^n modulo the polynomial, with reversed bits. */
#include "crc.h"

#include <zlib.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define FOLDS
#include <immintrin.h>

/* Factors that fold a block into the block 512 or 128 bits later: [0] of its first half, [1] of its second half. */
static const uint64_t by_512[2] = {0x154442bd4, 0x1c6e41596}, by_128[2] = {0x1751997d0, 0xccaa009e};

enum { BLOCK = 16, LINE = 4 * BLOCK };

__attribute__((target("pclmul,sse2"))) static inline __m128i fold(__m128i x, __m128i by,
                                                                  __m128i next) {
  const __m128i first = _mm_clmulepi64_si128(x, by, 0x00);
  const __m128i other = _mm_clmulepi64_si128(x, by, 0x11);
  return _mm_xor_si128(_mm_xor_si128(first, other), next);
}

static inline __m128i load_block(const unsigned char *at) {
  return _mm_loadu_si128((const __m128i *)(const void *)at);
}

/* Continue `crc` over at least LINE bytes. */
__attribute__((target("pclmul,sse2"))) static uint32_t
crc_by_folding(uint32_t crc, const unsigned char *at, size_t bytes) {
  const __m128i far = _mm_loadu_si128((const __m128i *)(const void *)by_512);
  const __m128i near = _mm_loadu_si128((const __m128i *)(const void *)by_128);
  __m128i x[4];
  unsigned char rest[BLOCK];
  for (int i = 0; i < 4; i++)
    x[i] = load_block(at + i * BLOCK);
  x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)~crc)); /* zlib stores the CRC inverted */
  for (at += LINE, bytes -= LINE; bytes >= LINE; at += LINE, bytes -= LINE) {
    for (int i = 0; i < 4; i++)
      x[i] = fold(x[i], far, load_block(at + i * BLOCK));
  }
  for (int i = 1; i < 4; i++)
    x[0] = fold(x[0], near, x[i]);
  for (; bytes >= BLOCK; at += BLOCK, bytes -= BLOCK)
    x[0] = fold(x[0], near, load_block(at));
  _mm_storeu_si128((__m128i *)(void *)rest, x[0]);
  /* The last block includes the CRC of all earlier bytes, so zlib must start with a register of
   * zeros; crc32_z inverts its argument. */
  return (uint32_t)crc32_z(crc32_z(UINT32_MAX, rest, BLOCK), at, bytes);
}
#endif

uint32_t ng_crc32(uint32_t crc, const void *data, size_t bytes) {
#ifdef FOLDS
  if (bytes >= LINE && __builtin_cpu_supports("pclmul")) return crc_by_folding(crc, data, bytes);
#endif
  return (uint32_t)crc32_z(crc, data, bytes);
}
