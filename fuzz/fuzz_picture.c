/* fuzz_picture.c: any bytes as a JPEG or PNG file, and a scaled window of the picture.  Without the two libraries
 * every file is refused. */
#include "fuzz.h"

#include <string.h>

#include "../cli/data/picture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  enum { SIDE = 12 };
  char why[PICTURE_WHY] = "";
  uint8_t window[SIDE * SIDE * 3];
  int64_t height = 0, width = 0;
  picture p;
  memset(&p, 0x55, sizeof p);
  const int good = picture_decode(data, size, &p, why);
  NEED(good == (p.rgb != NULL));
  for (const char *c = why; !good && *c != 0; c++)
    NEED(*c >= 32 && *c < 127);
  NEED(good || (why[0] != 0 && p.height == 0 && p.width == 0));
  if (!good) return 0;
  NEED(p.height >= 1 && p.height <= PICTURE_SIDE && p.width >= 1 && p.width <= PICTURE_SIDE);
  NEED(p.height * p.width <= PICTURE_PIXELS);
  picture_scale_size(p.height, p.width, SIDE + 2, &height, &width);
  NEED(height >= SIDE + 2 && width >= SIDE + 2 && (height == SIDE + 2 || width == SIDE + 2));
  picture_cut_window(&p, height, width, height - SIDE, width - SIDE, SIDE, window);
  free(p.rgb);
  return 0;
}
