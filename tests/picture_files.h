/* picture_files.h: make JPEG and PNG files in memory.  Return false without libjpeg or libpng. */
#ifndef TESTS_PICTURE_FILES_H
#define TESTS_PICTURE_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct made {
  uint8_t *bytes; /* allocated bytes of the file, which the caller frees */
  size_t n;
} made;

/* `rows`: packed as in PNG, `row_bytes` each.  type: the colour type of PNG (0 grey, 2 RGB, 3 palette, 4 grey and
 * alpha, 6 RGBA).  Entry i of the palette is (i, 255 - i, 7 i); entries below 3 are transparent. */
bool make_png(int width, int height, int type, int depth, bool interlaced, const uint8_t *rows,
              size_t row_bytes, made *out);

/* components: 1 grey, 3 RGB, 4 CMYK; adobe: with Adobe's marker; orientation > 0: with an EXIF block. */
typedef struct jpeg_how {
  int components, quality, orientation;
  bool progressive, adobe;
  bool scattered; /* grey only: 568 passes, one for each bit of each coefficient */
} jpeg_how;
bool make_jpeg(int width, int height, const uint8_t *pixels, const jpeg_how *how, made *out);

#endif
