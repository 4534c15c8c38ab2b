/* picture_files.c: see picture_files.h. */
#include "picture_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef NG_HAVE_PNG
#include <png.h>

static void append_bytes(png_structp png, png_bytep bytes, size_t n) {
  made *m = png_get_io_ptr(png);
  uint8_t *wider = realloc(m->bytes, m->n + n);
  if (wider == NULL) png_error(png, "memory");
  memcpy(wider + m->n, bytes, n);
  m->bytes = wider;
  m->n += n;
}
static void flush_nothing(png_structp png) { (void)png; }

bool make_png(int width, int height, int type, int depth, bool interlaced, const uint8_t *rows,
              size_t row_bytes, made *out) {
  memset(out, 0, sizeof *out);
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
  png_infop info = png_create_info_struct(png);
  png_bytep *row = malloc((size_t)height * sizeof *row);
  for (int y = 0; y < height; y++)
    row[y] = (png_bytep)(uintptr_t)(rows + (size_t)y * row_bytes);
  png_set_write_fn(png, out, append_bytes, flush_nothing);
  png_set_IHDR(png, info, (png_uint_32)width, (png_uint_32)height, depth, type,
               interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_BASE,
               PNG_FILTER_TYPE_BASE);
  if (type == PNG_COLOR_TYPE_PALETTE) {
    png_color palette[256];
    const png_byte clear[3] = {0, 0, 0};
    for (int i = 0; i < 256; i++)
      palette[i] = (png_color){(png_byte)i, (png_byte)(255 - i), (png_byte)(7 * i)};
    png_set_PLTE(png, info, palette, 1 << depth);
    png_set_tRNS(png, info, clear, depth == 1 ? 2 : 3, NULL);
  }
  png_write_info(png, info);
  png_write_image(png, row);
  png_write_end(png, NULL);
  png_destroy_write_struct(&png, &info);
  free(row);
  return true;
}
#else
bool make_png(int width, int height, int type, int depth, bool interlaced, const uint8_t *rows,
              size_t row_bytes, made *out) {
  memset(out, 0, sizeof *out);
  return false;
}
#endif

#ifdef NG_HAVE_JPEG
#include <jpeglib.h>

bool make_jpeg(int width, int height, const uint8_t *pixels, const jpeg_how *how, made *out) {
  struct jpeg_compress_struct j;
  struct jpeg_error_mgr errors;
  unsigned long n = 0;
  memset(out, 0, sizeof *out);
  j.err = jpeg_std_error(&errors);
  jpeg_create_compress(&j);
  jpeg_mem_dest(&j, &out->bytes, &n);
  j.image_width = (JDIMENSION)width;
  j.image_height = (JDIMENSION)height;
  j.input_components = how->components;
  j.in_color_space = how->components == 1   ? JCS_GRAYSCALE
                     : how->components == 3 ? JCS_RGB
                                            : JCS_CMYK;
  jpeg_set_defaults(&j);
  jpeg_set_quality(&j, how->quality, TRUE);
  if (how->progressive) jpeg_simple_progression(&j);
  enum { BITS = 9, PASSES = 1 + 63 * BITS };
  jpeg_scan_info pass[PASSES] = {{.comps_in_scan = 1}};
  for (int i = 1; i < PASSES; i++) {
    const int bit = (i - 1) % BITS, at = 1 + (i - 1) / BITS;
    pass[i] = (jpeg_scan_info){.comps_in_scan = 1, .Ss = at, .Se = at, .Al = BITS - 1 - bit};
    pass[i].Ah = bit == 0 ? 0 : BITS - bit;
  }
  if (how->scattered) {
    j.scan_info = pass;
    j.num_scans = PASSES;
  }
  j.write_Adobe_marker = how->adobe ? TRUE : FALSE;
  jpeg_start_compress(&j, TRUE);
  if (how->orientation > 0) { /* TIFF in big endian, one entry: 0x0112, a short */
    uint8_t exif[] = {'E',  'x', 'i', 'f', 0, 0, 'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 1,
                      0x12, 0,   3,   0,   0, 0, 1,   0,   0, 0,  0, 0, 0, 0, 0, 0};
    exif[25] = (uint8_t)how->orientation;
    jpeg_write_marker(&j, JPEG_APP0 + 1, exif, sizeof exif);
  }
  for (int y = 0; y < height; y++) {
    JSAMPROW row = (JSAMPROW)(uintptr_t)(pixels + (size_t)y * (size_t)(width * how->components));
    (void)jpeg_write_scanlines(&j, &row, 1);
  }
  jpeg_finish_compress(&j);
  jpeg_destroy_compress(&j);
  out->n = n;
  return true;
}
#else
bool make_jpeg(int width, int height, const uint8_t *pixels, const jpeg_how *how, made *out) {
  memset(out, 0, sizeof *out);
  return false;
}
#endif
