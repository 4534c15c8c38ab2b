/* t_picture.c: PNG and JPEG: decoded pixels equal the written ones, each kind of file has its defined result,
 * damaged files are refused; scaling against a plain version in double. */
#include "data/picture.h"
#include "folder.h"
#include "picture_files.h"
#include "unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { W = 37, H = 29 };
static uint8_t random_pixels[H * W * 8];

static void fill_random_pixels(void) {
  uint32_t v = 1;
  for (size_t i = 0; i < sizeof random_pixels; i++) {
    v = v * 1664525U + 1013904223U;
    random_pixels[i] = (uint8_t)(v >> 24);
  }
}

static void must_decode(const made *m, picture *p) {
  char why[PICTURE_WHY] = "";
  if (!picture_decode(m->bytes, m->n, p, why)) fail_msg("refused: %s", why);
}

static void expect_refused(const uint8_t *bytes, size_t n, const char *announced) {
  char why[PICTURE_WHY] = "";
  picture p;
  if (picture_decode(bytes, n, &p, why))
    fail_msg("a damaged file was accepted, expected '%s'", announced);
  if (strstr(why, announced) == NULL) fail_msg("'%s' is not in: %s", announced, why);
  assert_true(p.rgb == NULL && p.width == 0);
}

/* ---- PNG ---------------------------------------------------------------------------------------*/

/* Value number x of a packed row, at most 16 bits. */
static unsigned read_packed_value(const uint8_t *row, int depth, int x) {
  if (depth == 16) return (unsigned)row[2 * x] << 8 | row[2 * x + 1];
  return (unsigned)row[x * depth / 8] >> (8 - depth - x * depth % 8) & ((1U << depth) - 1);
}

/* Round to 8 bits: v * 255 / (2^depth - 1). */
static unsigned scale_to_8_bits(unsigned v, int depth) {
  const double most = (double)((1U << depth) - 1);
  return (unsigned)floor((double)v * 255.0 / most + 0.5);
}

static void png_pixels_equal_the_written_ones(void **state) {
  static const struct {
    int type, depth, channels;
  } kinds[] = {{0, 1, 1}, {0, 2, 1},  {0, 4, 1},  {0, 8, 1}, {0, 16, 1},
               {2, 8, 3}, {2, 16, 3}, {3, 1, 1},  {3, 2, 1}, {3, 4, 1},
               {3, 8, 1}, {4, 8, 2},  {4, 16, 2}, {6, 8, 4}, {6, 16, 4}};
  for (size_t i = 0; i < 2 * sizeof kinds / sizeof kinds[0]; i++) {
    const int type = kinds[i / 2].type, depth = kinds[i / 2].depth,
              channels = kinds[i / 2].channels;
    const size_t row_bytes = (size_t)(W * channels * depth + 7) / 8;
    made m;
    picture p;
    if (!make_png(W, H, type, depth, i % 2 == 1, random_pixels, row_bytes, &m)) skip();
    must_decode(&m, &p);
    assert_true(p.width == W && p.height == H);
    for (int at = 0; at < W * H * 3; at++) {
      const int x = at / 3 % W, c = at % 3;
      const uint8_t *row = random_pixels + (size_t)(at / 3 / W) * row_bytes;
      const unsigned v = read_packed_value(row, depth, x * channels + (channels > 2 ? c : 0));
      const unsigned want = type == 3 ? (c == 0   ? v
                                         : c == 1 ? 255 - v
                                                  : (7 * v & 255))
                                      : scale_to_8_bits(v, depth);
      if (p.rgb[at] != want)
        fail_msg("type %d, depth %d: value %d is %u, expected %u", type, depth, at, p.rgb[at],
                 want);
    }
    free(p.rgb);
    free(m.bytes);
  }
}

static void write_uint32(uint8_t *to, uint32_t v) {
  for (int i = 0; i < 4; i++)
    to[i] = (uint8_t)(v >> (24 - 8 * i));
}

static void large_png_headers_are_refused(void **state) {
  static const uint32_t sizes[][2] = {
      {65535, 65535}, {0x7fffffff, 1}, {1, 0x7fffffff}, {8193, 8193}};
  made m;
  if (!make_png(W, H, 2, 8, false, random_pixels, 3 * W, &m)) skip();
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    write_uint32(m.bytes + 16, sizes[i][0]);
    write_uint32(m.bytes + 20, sizes[i][1]);
    write_uint32(m.bytes + 29, (uint32_t)crc32(0, m.bytes + 12, 17));
    expect_refused(m.bytes, m.n, " pixels, expected at most 65500 each way and 67108864 in all");
  }
  write_uint32(m.bytes + 16, 0);
  write_uint32(m.bytes + 29, (uint32_t)crc32(0, m.bytes + 12, 17));
  expect_refused(m.bytes, m.n, "");
  free(m.bytes);
}

/* ---- JPEG --------------------------------------------------------------------------------------*/

static uint8_t smooth_pixels[H * W * 4];

static void fill_smooth_pixels(int components) {
  for (int i = 0; i < H * W * components; i++) {
    const int c = i % components, x = i / components % W, y = i / components / W;
    smooth_pixels[i] = (uint8_t)(60 + 40 * c + 2 * x + y);
  }
}

/* At quality 100 the quantisation, the transform and two colour conversions round: errors of 4 levels are seen.
 * Colours have half the resolution, so the test has small slopes. */
static void expect_colour(const picture *p, int at, double want, double within) {
  if (fabs((double)p->rgb[at] - want) > within)
    fail_msg("pixel %d: colour %d is %d, expected %g", at / 3, at % 3, p->rgb[at], want);
}

static void jpeg_colours_are_decoded(void **state) {
  static const int components[] = {1, 3, 4, 4};
  for (int k = 0; k < 4; k++) {
    const int n = components[k];
    const jpeg_how how = {
        .components = n, .quality = 100, .adobe = k != 2, .orientation = k == 1 ? 6 : 0};
    jpeg_how again = how;
    made m, scans;
    picture p, q;
    fill_smooth_pixels(n);
    if (!make_jpeg(W, H, smooth_pixels, &how, &m)) skip();
    again.progressive = true;
    assert_true(make_jpeg(W, H, smooth_pixels, &again, &scans));
    must_decode(&m, &p);
    must_decode(&scans, &q);
    assert_true(p.width == W && p.height == H); /* EXIF does not rotate the picture */
    assert_memory_equal(p.rgb, q.rgb, W * H * 3);
    for (int at = 0; at < W * H * 3; at++) {
      const uint8_t *v = smooth_pixels + at / 3 * n;
      const double ink = k == 2 ? 255.0 - v[at % 3] : v[at % 3];
      const double black = n < 4 ? 255.0 : k == 2 ? 255.0 - v[3] : v[3];
      expect_colour(&p, at, n == 1 ? v[0] : n == 3 ? v[at % 3] : ink * black / 255.0, 5.0);
      if (n == 1) assert_true(p.rgb[at] == p.rgb[at / 3 * 3]);
    }
    free(p.rgb);
    free(q.rgb);
    free(m.bytes);
    free(scans.bytes);
  }
}

/* A copy of the file with one more chunk behind its header.  The chunk announces `announced` bytes and has n. */
static made insert_png_chunk(const made *m, const char *type, uint32_t announced,
                             const uint8_t *data, size_t n) {
  enum { HEADER = 33 };
  made out = {malloc(m->n + n + 12), m->n + n + 12};
  assert_non_null(out.bytes);
  uint8_t *to = out.bytes + HEADER;
  memcpy(out.bytes, m->bytes, HEADER);
  memcpy(to + 4, type, 4);
  memcpy(to + 8, data, n);
  write_uint32(to, announced);
  write_uint32(to + 8 + n, (uint32_t)crc32(0, to + 4, (uInt)n + 4));
  memcpy(to + 12 + n, m->bytes + HEADER, m->n - HEADER);
  return out;
}

static long get_peak_memory_kb(void) {
  struct rusage u;
  assert_int_equal(getrusage(RUSAGE_SELF, &u), 0);
  return u.ru_maxrss;
}

/* The contents of a text chunk: its fixed part `front`, then `mb` MB of zeros, compressed. */
static made make_compressed_text(const char *front, size_t front_n, int mb) {
  static uint8_t zeros[1 << 20];
  made out = {malloc((size_t)mb * 1200 + 4096), 0};
  assert_non_null(out.bytes);
  memcpy(out.bytes, front, front_n);
  z_stream z = {.next_out = out.bytes + front_n, .avail_out = (uInt)mb * 1200 + 2000};
  assert_int_equal(deflateInit(&z, 9), Z_OK);
  for (int i = 0; i < mb; i++) {
    z.next_in = zeros;
    z.avail_in = sizeof zeros;
    assert_int_equal(deflate(&z, i + 1 < mb ? Z_NO_FLUSH : Z_FINISH),
                     i + 1 < mb ? Z_OK : Z_STREAM_END);
  }
  out.n = front_n + z.total_out;
  assert_int_equal(deflateEnd(&z), Z_OK);
  return out;
}

/* A chunk longer than the file, or a chunk that expands, must not cause large allocations. */
static void png_chunks_allocate_little_memory(void **state) {
  enum { MB = 300 };
  static const char *const types[] = {"zTXt", "iTXt", "tEXt", "iCCP", "eXIf", "sPLT",
                                      "teSt", "tRNS", "PLTE", "hIST", "sCAL", "pCAL"};
  made m;
  if (!make_png(W, H, 2, 8, false, random_pixels, (size_t)3 * W, &m)) skip();
  const long before = get_peak_memory_kb();
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
    static const uint32_t lengths[] = {0x7fffffff, 0x40000000, 0x00ffffff};
    for (int k = 0; k < 3; k++) {
      made x = insert_png_chunk(&m, types[i], lengths[k], random_pixels, 100);
      expect_refused(x.bytes, x.n, "cut short");
      free(x.bytes);
    }
  }
  static const char z[] = "a\0", it[] = "a\0\1\0\0";
  for (int k = 0; k < 2; k++) {
    made text = k == 0 ? make_compressed_text(z, 3, MB) : make_compressed_text(it, 6, MB);
    made x = insert_png_chunk(&m, k == 0 ? "zTXt" : "iTXt", (uint32_t)text.n, text.bytes, text.n);
    picture p;
    must_decode(&x, &p);
    assert_memory_equal(p.rgb, random_pixels, (size_t)3 * W * H);
    free(p.rgb);
    free(x.bytes);
    free(text.bytes);
  }
  free(m.bytes);
  const long took = get_peak_memory_kb() - before;
  if (took > MB * 1024 / 4) fail_msg("%ld kB more for files of %d kB at most", took, MB * 2);
}

/* The position of the first bytes FF `code` at or after `from`. */
static size_t find_marker(const made *m, uint8_t code, size_t from) {
  for (size_t i = from; i + 1 < m->n; i++) {
    if (m->bytes[i] == 0xff && m->bytes[i + 1] == code) return i;
  }
  fail_msg("no marker %02x", code);
  return 0;
}

static void large_jpeg_headers_are_refused(void **state) {
  const jpeg_how how = {.components = 3, .quality = 90};
  made m;
  fill_smooth_pixels(3);
  if (!make_jpeg(W, H, smooth_pixels, &how, &m)) skip();
  const size_t at = find_marker(&m, 0xc0, 0); /* SOF0: length 2, precision 1, height 2, width 2 */
  memset(m.bytes + at + 5, 0xff, 4);
  expect_refused(m.bytes, m.n, ""); /* the JPEG library's limit is 65500 */
  m.bytes[at + 5] = m.bytes[at + 7] = 0xf0;
  expect_refused(m.bytes, m.n, "61695 x 61695 pixels, expected at most");
  free(m.bytes);
  const jpeg_how scattered = {.components = 1, .quality = 90, .scattered = true};
  assert_true(make_jpeg(W, H, smooth_pixels, &scattered, &m));
  expect_refused(m.bytes, m.n, "more than 500 scans");
  free(m.bytes);
}

/* ---- damage ------------------------------------------------------------------------------------*/

static void damaged_pictures_are_refused(void **state) {
  int tried = 0;
  for (int k = 0; k < 5; k++) {
    made m;
    fill_smooth_pixels(4);
    const jpeg_how how = {.components = k == 2 ? 4 : 3, .quality = 80, .progressive = k == 1};
    if (k < 3 ? !make_jpeg(W, H, k == 0 ? random_pixels : smooth_pixels, &how, &m)
              : !make_png(W, H, k == 3 ? 2 : 3, 8, k == 4, random_pixels,
                          (size_t)(k == 3 ? 3 * W : W), &m))
      continue;
    tried++;
    for (size_t n = 0; n < m.n; n += 1 + m.n / 200) /* truncated */
      expect_refused(m.bytes, n, "");
    expect_refused(m.bytes, m.n - 2, "");
    if (k >= 3) { /* the checksum of the last IDAT is before the 12 bytes of IEND */
      m.bytes[m.n - 13] ^= 1;
      expect_refused(m.bytes, m.n, "CRC");
      m.bytes[m.n - 13] ^= 1;
    }
    uint8_t *copy = malloc(m.n);
    assert_non_null(copy);
    for (size_t i = 0; i < m.n; i += 1 + m.n / 400) {
      /* with one bit flipped, the reader returns a picture or an error */
      char why[PICTURE_WHY] = "";
      picture p;
      memcpy(copy, m.bytes, m.n);
      copy[i] ^= (uint8_t)(1U << i % 8);
      if (picture_decode(copy, m.n, &p, why)) {
        assert_true(p.rgb != NULL && p.width * p.height > 0);
        free(p.rgb);
      } else {
        assert_true(why[0] != 0 && p.rgb == NULL);
      }
    }
    free(copy);
    free(m.bytes);
  }
  expect_refused((const uint8_t *)"GIF89a", 6, "neither JPEG's nor PNG's");
  expect_refused((const uint8_t *)"", 0, "neither JPEG's nor PNG's");
  if (tried == 0) skip();
}

static void invalid_paths_are_refused(void **state) {
  const char *path = in_folder("pipe");
  char why[PICTURE_WHY] = "";
  picture p;
  assert_false(picture_read(test_folder, &p, why));
  assert_string_equal(why, "not a regular file");
  assert_int_equal(mkfifo(path, 0600), 0);
  assert_false(picture_read(path, &p, why)); /* a pipe without a writer would block */
  assert_string_equal(why, "not a regular file");
  assert_int_equal(unlink(path), 0);
  assert_false(picture_read(path, &p, why));
  assert_string_equal(why, "No such file or directory");
  write_file(path, "", 0);
  assert_false(picture_read(path, &p, why));
  assert_string_equal(why, "0 bytes, expected 1 to 268435456");
  assert_int_equal(unlink(path), 0);
}

/* ---- scaling -----------------------------------------------------------------------------------*/

/* The triangle filter over both axes at once, in double. */
static double scale_in_double(const picture *p, int64_t height, int64_t width, int64_t y, int64_t x,
                              int c) {
  const double sy = (double)p->height / (double)height, sx = (double)p->width / (double)width;
  const double ry = sy > 1.0 ? sy : 1.0, rx = sx > 1.0 ? sx : 1.0;
  double sum = 0.0, all = 0.0;
  for (int64_t v = 0; v < p->height; v++) {
    const double a = 1.0 - fabs((double)v + 0.5 - ((double)y + 0.5) * sy) / ry;
    for (int64_t u = 0; a > 0.0 && u < p->width; u++) {
      const double b = 1.0 - fabs((double)u + 0.5 - ((double)x + 0.5) * sx) / rx;
      if (b <= 0.0) continue;
      sum += a * b * p->rgb[(v * p->width + u) * 3 + c];
      all += a * b;
    }
  }
  return sum / all;
}

static void scaling_equals_the_triangle_filter(void **state) {
  static const int64_t cases[][7] = {
      /* height and width of the picture; scaled height and width; top, left and side of the window */
      {29, 37, 13, 17, 0, 0, 13},    {29, 37, 13, 17, 0, 4, 13},  {29, 37, 58, 74, 11, 30, 40},
      {29, 37, 29, 37, 5, 8, 21},    {29, 37, 29, 48, 3, 20, 26}, {29, 37, 8, 11, 0, 3, 8},
      {1, 1000, 2, 2000, 0, 999, 2}, {1000, 1, 3, 1, 1, 0, 1},    {1, 1, 9, 9, 0, 0, 9},
      {28, 36, 27, 35, 1, 2, 25}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const int64_t *k = cases[i], side = k[6];
    const picture p = {k[0], k[1], random_pixels};
    uint8_t got[64 * 64 * 3];
    picture_cut_window(&p, k[2], k[3], k[4], k[5], side, got);
    for (int64_t at = 0; at < side * side * 3; at++) {
      const int64_t y = at / 3 / side, x = at / 3 % side;
      const double want = scale_in_double(&p, k[2], k[3], k[4] + y, k[5] + x, (int)(at % 3));
      /* one rounding, and f32 sums of a few dozen products of 255: 1e-4 */
      if (fabs((double)got[at] - want) > 0.5 + 1e-3)
        fail_msg("case %zu: pixel (%lld, %lld) is %d, expected %g", i, (long long)y, (long long)x,
                 got[at], want);
    }
  }
  int64_t h, w;
  picture_scale_size(375, 500, 256, &h, &w);
  assert_true(h == 256 && w == 342); /* 341.3 is rounded up */
  picture_scale_size(500, 100, 224, &h, &w);
  assert_true(h == 1120 && w == 224);
  picture_scale_size(65500, 1, 4096, &h, &w);
  assert_true(h == (int64_t)65500 * 4096 && w == 4096);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(png_pixels_equal_the_written_ones),
      cmocka_unit_test(large_png_headers_are_refused),
      cmocka_unit_test(png_chunks_allocate_little_memory),
      cmocka_unit_test(jpeg_colours_are_decoded),
      cmocka_unit_test(large_jpeg_headers_are_refused),
      cmocka_unit_test(damaged_pictures_are_refused),
      cmocka_unit_test(invalid_paths_are_refused),
      cmocka_unit_test(scaling_equals_the_triangle_filter),
  };
  fill_random_pixels();
  return cmocka_run_group_tests(tests, make_folder, remove_empty_folder);
}
