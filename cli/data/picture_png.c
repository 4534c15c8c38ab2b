/* picture_png.c: decode PNG by libpng. Errors of the library jump to decode_pixels (longjmp). Warnings are ignored,
 * because they do not concern pixels. Chunk lengths are checked first, because libpng would allocate as much memory as
 * a chunk claims to have. */
#include "picture.h"

#ifdef NG_HAVE_PNG
#include "common/cli.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <png.h>

typedef struct reader {
  png_structp png;
  png_infop info;
  const uint8_t *bytes;
  size_t left;
  char *why;
  picture *out;
  png_bytep *row;
} reader;

static void on_error(png_structp png, png_const_charp text) {
  const reader *r = png_get_error_ptr(png);
  (void)snprintf(r->why, PICTURE_WHY, "%.150s", text);
  png_longjmp(png, 1);
}

static void ignore_warning(png_structp png, png_const_charp text) { (void)png, (void)text; }

static void read_bytes(png_structp png, png_bytep to, size_t n) {
  reader *r = png_get_io_ptr(png);
  if (n > r->left) png_error(png, "cut short");
  memcpy(to, r->bytes, n);
  r->bytes += n;
  r->left -= n;
}

/* Return true if all chunks, up to the last one (IEND), lie within the n bytes. */
static bool has_whole_chunks(const uint8_t *bytes, size_t n) {
  for (size_t at = 8; at <= n && n - at >= 12;) {
    const uint8_t *c = bytes + at;
    const size_t length = (size_t)c[0] << 24 | (size_t)c[1] << 16 | (size_t)c[2] << 8 | c[3];
    if (length > n - at - 12) return false;
    if (memcmp(c + 4, "IEND", 4) == 0) return true;
    at += 12 + length;
  }
  return false;
}

static bool decode_pixels(reader *r) {
  if (setjmp(png_jmpbuf(r->png)) != 0) return false;
  png_set_read_fn(r->png, r, read_bytes);
  png_set_user_limits(r->png, 0x7fffffff,
                      /* libpng sets no limit, because picture_allocate checks the size */
                      0x7fffffff);
  if (!has_whole_chunks(r->bytes, r->left)) png_error(r->png, "cut short");
  png_read_info(r->png, r->info);
  const int64_t height = png_get_image_height(r->png, r->info);
  const int64_t width = png_get_image_width(r->png, r->info);
  if (!picture_allocate(height, width, r->out, r->why)) return false;
  png_set_scale_16(r->png);
  if (png_get_color_type(r->png, r->info) == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(r->png);
  png_set_gray_to_rgb(r->png); /* this call also expands pixels of 1, 2 and 4 bits to 8 bits */
  png_set_strip_alpha(r->png);
  (void)png_set_interlace_handling(r->png);
  png_read_update_info(r->png, r->info);
  if (png_get_rowbytes(r->png, r->info) != (size_t)width * 3)
    png_error(r->png, "cannot be converted to 8-bit R, G, B");
  r->row = cli_alloc((size_t)height, sizeof *r->row);
  for (int64_t y = 0; y < height; y++)
    r->row[y] = r->out->rgb + y * width * 3;
  png_read_image(r->png, r->row);
  png_read_end(r->png, NULL);
  return true;
}

static bool decode_png(const uint8_t *bytes, size_t n, picture *out, char why[PICTURE_WHY]) {
  reader r = {.bytes = bytes, .left = n, .why = why, .out = out};
  (void)snprintf(why, PICTURE_WHY, "no memory");
  r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, on_error, ignore_warning);
  r.info = r.png != NULL ? png_create_info_struct(r.png) : NULL;
  const bool good = r.info != NULL && decode_pixels(&r);
  png_destroy_read_struct(&r.png, &r.info, NULL);
  free(r.row);
  return good;
}

#define LIBRARY "libpng " PNG_LIBPNG_VER_STRING
#else
#define LIBRARY NULL
#define decode_png NULL
#endif

const picture_format picture_png = {"png", "\x89PNG\r\n\x1a\n", LIBRARY,
                                    "built without libpng (apt-get install libpng-dev)",
                                    decode_png};
