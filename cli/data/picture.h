/* picture.h: one JPEG or PNG file to pixels, and pixels to the square that a network sees.
 *
 * In come bytes of which nothing is believed; out go 8-bit R, G, B, row by row.  What a file is, its
 * first bytes say, not its name.  Defined answers:
 *   grey             three times the same
 *   palette          its colours
 *   16 bits          rounded to 8
 *   alpha            dropped, not blended: the colours as they are stored
 *   CMYK, YCCK       R = C K / 255 and so on, of inverted inks (Adobe's; others are inverted first)
 *   EXIF's rotation  ignored, as PyTorch's and the published loaders do; so are colour profiles and gamma
 *   cut short, or damaged where it matters for pixels: refused; bytes too many between two parts: not
 *   more than PICTURE_SIDE in height or width, PICTURE_PIXELS in all: refused before memory is taken */
#ifndef DATA_PICTURE_H
#define DATA_PICTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PICTURE_SIDE = 65500, PICTURE_PIXELS = 1 << 26, PICTURE_WHY = 200, PICTURE_BYTES = 1 << 28 };

typedef struct picture {
  int64_t height, width;
  uint8_t *rgb; /* [height, width, 3], for free() */
} picture;

/* false: the reason is in `why`, and *out is empty. */
bool picture_decode(const uint8_t *bytes, size_t n, picture *out, char why[PICTURE_WHY]);
/* A file, by name.  What is no file is refused without being opened for long: a pipe never hangs. */
bool picture_read(const char *path, picture *out, char why[PICTURE_WHY]);

/* The two decoders, and their libraries' names; NULL: not built in. */
bool picture_jpeg(const uint8_t *bytes, size_t n, picture *out, char why[PICTURE_WHY]);
bool picture_png(const uint8_t *bytes, size_t n, picture *out, char why[PICTURE_WHY]);
const char *picture_jpeg_library(void);
const char *picture_png_library(void);
/* For both: is this size allowed, is there memory for it? */
bool picture_room(int64_t height, int64_t width, picture *out, char why[PICTURE_WHY]);

/* Height and width whose shorter one is `shorter`, the other rounded up. */
void picture_scaled(int64_t height, int64_t width, int64_t shorter, int64_t *to_height,
                    int64_t *to_width);

/* Of the picture scaled to height x width the window [side, side] at (top, left), which lies inside.
 * Every output pixel is a mean of the input pixels around its place, weights falling linearly to 0 over
 * one output pixel or one input pixel, whichever is larger (the triangle filter: bilinear when
 * enlarging, antialiased when shrinking), rounded to 8 bits once.  Only what the window needs is
 * computed.  false: no memory. */
bool picture_window(const picture *p, int64_t height, int64_t width, int64_t top, int64_t left,
                    int64_t side, uint8_t *to);

#endif
