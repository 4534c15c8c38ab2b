/* picture.h: decode a JPEG or PNG file to 8-bit R, G, B, and cut out a square window.
 *
 * The files are not trusted. The first bytes of the file, not its name, select the decoder.
 *   grey             three equal channels
 *   palette          the colours of the palette
 *   16 bits          rounded to 8 bits
 *   alpha            dropped, not blended
 *   CMYK, YCCK       R = C K / 255, G and B alike, for inverted inks as Adobe writes them; inks of other files are
 *                    inverted first
 *   EXIF's rotation  ignored, as by PyTorch's and the published loaders; colour profiles and gamma are ignored, too
 *   truncated files, and damage that changes pixels: an error; extra bytes between two markers: accepted
 *   more than PICTURE_SIDE in height or width, or PICTURE_PIXELS pixels: an error before memory is allocated */
#ifndef DATA_PICTURE_H
#define DATA_PICTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PICTURE_SIDE = 65500, PICTURE_PIXELS = 1 << 26, PICTURE_WHY = 200, PICTURE_BYTES = 1 << 28 };

typedef struct picture {
  int64_t height, width;
  uint8_t *rgb; /* [height, width, 3]; the caller calls free() */
} picture;

/* Decode the n bytes of a file.  false: the reason is in `why`, and *out is empty. */
bool picture_decode(const uint8_t *bytes, size_t n, picture *out, char why[PICTURE_WHY]);
/* Read and decode a file. Anything but a regular file is an error; opening a pipe does not wait. */
bool picture_read(const char *path, picture *out, char why[PICTURE_WHY]);

/* An image format: its first bytes, its decoder, and the version of the decoder's library. If the library is NULL, the
 * decoder is not built in, and `absent` is the message. */
typedef struct picture_format {
  const char *name, *first_bytes, *library, *absent;
  bool (*decode)(const uint8_t *bytes, size_t n, picture *out, char why[PICTURE_WHY]);
} picture_format;
extern const picture_format picture_jpeg, picture_png;
/* Check the size of a picture and allocate its pixels. false: `why` has the reason. */
bool picture_allocate(int64_t height, int64_t width, picture *out, char why[PICTURE_WHY]);

/* Compute the size to which a picture is scaled so that its shorter side is `shorter`; the other side is rounded up. */
void picture_scale_size(int64_t height, int64_t width, int64_t shorter, int64_t *to_height,
                        int64_t *to_width);

/* Scale the picture to height x width, and write the window [side, side, 3] at (top, left) to `to`; the window must lie
 * inside. Each output pixel is a weighted mean of nearby input pixels, rounded once to 8 bits. The weights fall
 * linearly to 0 within one output or one input pixel, whichever is larger (triangle filter: bilinear when enlarging,
 * antialiased when shrinking). */
void picture_cut_window(const picture *p, int64_t height, int64_t width, int64_t top, int64_t left,
                        int64_t side, uint8_t *to);

#endif
