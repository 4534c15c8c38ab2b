/* t_convert.c: bf16 and f16 from and to f32, and the scan for Inf and NaN, compared with the definition of a binary
 * floating-point format (IEEE 754-2008, 3.4) in double: all 2^16 patterns, and every tie between two neighbours.  All
 * comparisons are exact. */
#include "unit_test.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/kernel.h"
#include "draw.h"

static rng numbers;

static uint64_t draw_bits(void) { return rng_next(&numbers); }

static void *new_aligned(int64_t bytes) {
  void *p = NULL;
  assert_int_equal(posix_memalign(&p, 64, (size_t)(bytes > 0 ? bytes : 1)), 0);
  return p;
}

/* Return the value of a format with `e` exponent bits and `f` fraction bits, by definition. */
static double decode_by_definition(uint32_t bits, int e, int f) {
  const int bias = (1 << (e - 1)) - 1, exponent = (int)(bits >> f) & ((1 << e) - 1);
  const double fraction = (double)(bits & ((1u << f) - 1)), sign = bits >> (e + f) ? -1 : 1;
  if (exponent == (1 << e) - 1) return fraction != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * ldexp(fraction, 1 - bias - f);
  return sign * ldexp(ldexp(1.0, f) + fraction, exponent - bias - f);
}

static uint32_t bits_of(float f) {
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return u;
}
static float float_of(uint32_t u) {
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}

typedef struct format {
  ng_dtype t;
  int e, f;
  float (*widen)(uint16_t h);
  uint16_t (*narrow)(float f);
} format;
static const format formats[] = {{NG_BF16, 8, 7, ng_bf16_to_f32, ng_f32_to_bf16},
                                 {NG_F16, 5, 10, ng_f16_to_f32, ng_f32_to_f16}};

static void widening_is_exact(void **unused) {
  for (size_t k = 0; k < 2; k++) {
    const format *m = &formats[k];
    for (uint32_t h = 0; h < 65536; h++) {
      const double want = decode_by_definition(h, m->e, m->f);
      const float got = m->widen((uint16_t)h);
      if (isnan(want) ? !isnan(got) : (double)got != want) {
        fail_msg("%s %04x is %g, got %g", ng_dtype_name(m->t), h, want, (double)got);
      }
      if (!isnan(want) && (signbit(want) != 0) != (signbit(got) != 0)) {
        fail_msg("%s %04x lost its sign", ng_dtype_name(m->t), h);
      }
    }
  }
}

static void check_narrowing(const format *m, float from, uint32_t want) {
  const uint16_t got = m->narrow(from);
  if (got != want) {
    fail_msg("%s of %a (%08x) is %04x, got %04x", ng_dtype_name(m->t), (double)from, bits_of(from),
             want, got);
  }
}

/* Every value converts to itself, the middle of two neighbours to the even one, and the next f32 beside the middle to
 * the nearer one.  The neighbour above the largest value is Inf, as if the format had one more exponent. */
static void narrowing_rounds_to_nearest_even(void **unused) {
  for (size_t k = 0; k < 2; k++) {
    const format *m = &formats[k];
    const uint32_t inf = ((1u << m->e) - 1) << m->f;
    for (uint32_t s = 0; s < 2; s++) {
      const float sign = s ? -1.0f : 1.0f;
      for (uint32_t h = 0; h <= inf; h++) {
        const uint32_t pattern = h | s << 15;
        check_narrowing(m, m->widen((uint16_t)pattern), pattern);
        if (h == inf) break;
        const double here = decode_by_definition(h, m->e, m->f);
        const double next = h + 1 < inf ? decode_by_definition(h + 1, m->e, m->f)
                                        : 2 * here - decode_by_definition(h - 1, m->e, m->f);
        const double middle = here + (next - here) / 2;
        if (middle < 0x1p-149) continue; /* f32 has no number there */
        const float half = (float)middle;
        assert_true((double)half == middle);
        check_narrowing(m, sign * half, (h & 1 ? h + 1 : h) | s << 15);
        check_narrowing(m, sign * nextafterf(half, 0), h | s << 15);
        check_narrowing(m, sign * nextafterf(half, INFINITY), (h + 1) | s << 15);
      }
      const int largest = (1 << (m->e - 1)) - 1; /* larger exponents give Inf */
      for (int x = largest + 1; x < 128; x++) {
        check_narrowing(m, sign * ldexpf(1.0f, x), inf | s << 15);
        check_narrowing(m, sign * ldexpf(1.37f, x), inf | s << 15);
      }
      check_narrowing(m, sign * INFINITY, inf | s << 15);
      check_narrowing(m, sign * 0x1.fffffep127f, inf | s << 15);
      check_narrowing(m, sign * 0x1p-149f, s << 15);
    }
    for (uint32_t payload = 1; payload < 0x800000; payload = payload * 2 + (payload & 1)) {
      for (uint32_t s = 0; s < 2; s++) {
        const uint16_t got = m->narrow(float_of(0x7f800000u | payload | s << 31));
        if (!isnan(decode_by_definition(got, m->e, m->f)) || (uint32_t)(got >> 15) != s) {
          fail_msg("%s of a NaN with payload %x is %04x", ng_dtype_name(m->t), payload, got);
        }
      }
    }
  }
}

/* Conversions of arrays equal conversions of single numbers; elements outside the range do not change. */
static void arrays_convert_as_single_numbers(void **unused) {
  uint16_t *half = new_aligned(65536 * 2), *back = new_aligned(65600 * 2);
  float *wide = new_aligned(65600 * 4), *narrow = new_aligned(65536 * 4);
  for (uint32_t i = 0; i < 65536; i++) {
    half[i] = (uint16_t)(i * 40503u); /* an odd factor gives every pattern once */
    narrow[i] = float_of((uint32_t)draw_bits());
    if (i % 4 == 0)
      narrow[i] =
          (float)((rng_real(&numbers) - 0.5) * ldexp(1, (int)rng_between(&numbers, -30, 20)));
  }
  for (size_t k = 0; k < 2; k++) {
    const format *m = &formats[k];
    for (int64_t n = 0; n < 65536; n = n < 70 ? n + 1 : n * 5 + 3) {
      const int64_t from = n % 7;
      if (from + n > 65536) break;
      for (int64_t i = 0; i < n + 2; i++) {
        wide[i] = 42.0f;
        back[i] = 4242;
      }
      ng_to_f32(wide + 1, half + from, m->t, n);
      ng_from_f32(back + 1, m->t, narrow + from, n);
      for (int64_t i = 0; i < n; i++) {
        if (bits_of(wide[1 + i]) != bits_of(m->widen(half[from + i])) ||
            back[1 + i] != m->narrow(narrow[from + i])) {
          fail_msg("%s: element %d of %d differs", ng_dtype_name(m->t), (int)i, (int)n);
        }
      }
      assert_true(wide[0] == 42.0f && wide[n + 1] == 42.0f);
      assert_true(back[0] == 4242 && back[n + 1] == 4242);
    }
  }
  ng_to_f32(wide, narrow, NG_F32, 65536);
  assert_memory_equal(wide, narrow, 65536 * 4);
  memset(wide, 0, 65536 * 4);
  ng_from_f32(wide, NG_F32, narrow, 65536);
  assert_memory_equal(wide, narrow, 65536 * 4);
  free(half);
  free(back);
  free(wide);
  free(narrow);
}

static void scan_finds_non_finite_values(void **unused) {
  static const struct {
    ng_dtype t;
    uint32_t largest, strange[4];
  } row[] = {{NG_F32, 0x7f7fffff, {0x7f800000, 0xff800000, 0x7f800001, 0xffc00000}},
             {NG_BF16, 0x7f7f, {0x7f80, 0xff80, 0x7f81, 0xffc0}},
             {NG_F16, 0x7bff, {0x7c00, 0xfc00, 0x7c01, 0xfe00}}};
  enum { MOST = 40000 };
  char *a = new_aligned(MOST * 4);
  for (size_t k = 0; k < 3; k++) {
    const size_t size = (size_t)ng_dtype_size(row[k].t);
    for (size_t i = 0; i < MOST; i++) {
      const uint32_t v = row[k].largest | (i % 2 ? 1u << (size * 8 - 1) : 0);
      memcpy(a + i * size, &v, size); /* little endian */
    }
    assert_true(ng_are_finite(a, row[k].t, MOST));
    assert_true(ng_are_finite(a, row[k].t, 0));
    for (size_t i = 0; i < MOST; i += i < 100 || (i > 16200 && i < 16500) ? 1 : 97) {
      uint32_t keep = 0;
      memcpy(&keep, a + i * size, size);
      memcpy(a + i * size, &row[k].strange[i % 4], size);
      if (ng_are_finite(a, row[k].t, MOST) || ng_are_finite(a, row[k].t, (int64_t)i + 1)) {
        fail_msg("%s: %x at %zu was not found", ng_dtype_name(row[k].t), row[k].strange[i % 4], i);
      }
      if (!ng_are_finite(a, row[k].t, (int64_t)i) ||
          !ng_are_finite(a + (i + 1) * size, row[k].t, MOST - (int64_t)i - 1)) {
        fail_msg("%s: the scan read outside its range at %zu", ng_dtype_name(row[k].t), i);
      }
      memcpy(a + i * size, &keep, size);
    }
  }
  free(a);
}

/* Doubles with any pattern in either half; integers are always finite.  The address sanitizer finds reads outside. */
static void scan_reads_doubles_and_integers(void **state) {
  double x[33];
  uint8_t *bytes = malloc(33);
  assert_non_null(bytes);
  memset(bytes, 0xff, 33);
  for (int i = 0; i < 33; i++)
    x[i] = i % 2 ? -DBL_MAX : 0x1.0p-1022;
  assert_true(ng_are_finite(x, NG_F64, 33));
  x[32] = (double)NAN;
  assert_true(!ng_are_finite(x, NG_F64, 33) && ng_are_finite(x, NG_F64, 32));
  x[32] = -(double)INFINITY;
  assert_true(!ng_are_finite(x, NG_F64, 33));
  assert_true(ng_are_finite(bytes, NG_U8, 33));
  assert_true(ng_are_finite(bytes, NG_I32, 8) && ng_are_finite(bytes, NG_I64, 4));
  free(bytes);
}

int main(void) {
  numbers.state = test_seed();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(widening_is_exact),
      cmocka_unit_test(narrowing_rounds_to_nearest_even),
      cmocka_unit_test(arrays_convert_as_single_numbers),
      cmocka_unit_test(scan_finds_non_finite_values),
      cmocka_unit_test(scan_reads_doubles_and_integers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
