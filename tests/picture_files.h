/* picture_files.h: JPEG and PNG files for tests, in memory.  Without the library: false. */
#ifndef TESTS_PICTURE_FILES_H
#define TESTS_PICTURE_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct made {
  uint8_t *bytes; /* for free() */
  size_t n;
} made;

/* `rows`: as PNG packs them, `row_bytes` each; type is its colour type (0 grey, 2 RGB, 3 palette, 4 grey
 * and alpha, 6 RGBA), of a palette entry i is (i, 255 - i, 7 i), and i is transparent below 3. */
bool make_png(int width, int height, int type, int depth, bool interlaced, const uint8_t *rows,
              size_t row_bytes, made *out);

/* components: 1 grey, 3 RGB, 4 inks; `adobe`: with Adobe's marker; orientation > 0: an EXIF block that
 * says so. */
typedef struct jpeg_how {
  int components, quality, orientation;
  bool progressive, adobe;
  bool scattered; /* grey: a pass for each bit of each coefficient, 568 of them */
} jpeg_how;
bool make_jpeg(int width, int height, const uint8_t *pixels, const jpeg_how *how, made *out);

#endif
