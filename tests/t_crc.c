/* t_crc.c: CRC-32 compared with zlib: every length up to 600 at every offset in a cache line, with several initial
 * sums; every single bit, because CRC-32 is linear; in pieces. */
#include "unit_test.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "crc.h"
#include "draw.h"

enum { MOST = 600, PLACES = 17, LONG = 1 << 20 };

static void crc_equals_zlib(void **state) {
  static unsigned char bytes[MOST + PLACES];
  rng r = {test_seed()};
  for (int round = 0; round < 3; round++) {
    const uint32_t begin[3] = {0, UINT32_MAX, 0x2144df1c};
    for (size_t i = 0; i < sizeof bytes; i++)
      bytes[i] = (unsigned char)(round == 1 ? 0xff : rng_below(&r, 256));
    for (size_t at = 0; at < PLACES; at++) {
      for (size_t n = 0; n <= MOST; n++)
        assert_int_equal(ng_crc32(begin[round], bytes + at, n),
                         (uint32_t)crc32_z(begin[round], bytes + at, n));
    }
  }
}

static void every_single_bit_has_its_checksum(void **state) {
  unsigned char bytes[4 * 64 + 5];
  for (size_t bit = 0; bit < 8 * sizeof bytes; bit++) {
    memset(bytes, 0, sizeof bytes);
    bytes[bit / 8] = (unsigned char)(1U << bit % 8);
    assert_int_equal(ng_crc32(0, bytes, sizeof bytes), (uint32_t)crc32_z(0, bytes, sizeof bytes));
  }
}

static void crc_of_pieces_equals_the_whole(void **state) {
  unsigned char *bytes = malloc(LONG);
  rng r = {test_seed()};
  assert_non_null(bytes);
  for (size_t i = 0; i < LONG; i++)
    bytes[i] = (unsigned char)rng_below(&r, 256);
  const uint32_t whole = (uint32_t)crc32_z(0, bytes, LONG);
  assert_int_equal(ng_crc32(0, bytes, LONG), whole);
  uint32_t sum = 0;
  for (size_t at = 0, n; at < LONG; at += n) {
    n = (size_t)rng_below(&r, 5000);
    if (n > LONG - at) n = LONG - at;
    sum = ng_crc32(sum, bytes + at, n);
  }
  assert_int_equal(sum, whole);
  free(bytes);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(crc_equals_zlib),
                                     cmocka_unit_test(every_single_bit_has_its_checksum),
                                     cmocka_unit_test(crc_of_pieces_equals_the_whole)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
