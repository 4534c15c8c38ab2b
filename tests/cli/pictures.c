/* pictures.c: a folder of generated images for the scripts of this folder.
 *
 *   cli_pictures DIR CLASSES EACH     write DIR/class_K/image_N.jpg or .png: EACH images of every class,
 *                                     20 to 60 pixels wide and high, every fifth grey, the others in a
 *                                     colour of their class; JPEG and PNG alternate
 *
 * Exit code 0; 77 without libjpeg or libpng; 1 with one line on stderr. */
#include "picture_files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Paint the colour of the class with a gradient and noise. */
static void paint_picture(int class, int number, int width, int height, bool grey, uint8_t *to) {
  uint32_t grain = (uint32_t)(class * 7919 + number);
  for (int y = 0; y < height; y++) {
    for (int x = 0; x < width; x++) {
      for (int c = 0; c < (grey ? 1 : 3); c++) {
        grain = grain * 1664525U + 1013904223U;
        const int hue = grey ? 40 + class * 30 % 160 : (class * 83 + c * 61) % 200;
        *to++ = (uint8_t)(hue + 40 * x / width + (int)(grain >> 28));
      }
    }
  }
}

static int save_picture(const char *path, const made *m) {
  FILE *f = fopen(path, "wb");
  const bool good = f != NULL && fwrite(m->bytes, 1, m->n, f) == m->n;
  if (f == NULL || fclose(f) != 0 || !good)
    return fprintf(stderr, "%s: %s\n", path, strerror(errno)), 1;
  return 0;
}

int main(int argc, char **argv) {
  static uint8_t pixels[64 * 64 * 3];
  const long classes = argc == 4 ? strtol(argv[2], NULL, 10) : 0;
  const long each = argc == 4 ? strtol(argv[3], NULL, 10) : 0;
  if (classes < 1 || each < 1) return fprintf(stderr, "cli_pictures DIR CLASSES EACH\n"), 1;
  (void)mkdir(argv[1], 0777);
  for (int k = 0; k < (int)classes; k++) {
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/class_%02d", argv[1], k);
    (void)mkdir(path, 0777);
    for (int i = 0; i < (int)each; i++) {
      const int width = 20 + (i * 7 + k * 3) % 41, height = 20 + (i * 11 + k * 5) % 41;
      const bool grey = i % 5 == 4, jpeg = i % 2 == 0;
      const jpeg_how how = {.components = grey ? 1 : 3, .quality = 90, .progressive = i % 4 == 0};
      made m;
      paint_picture(k, i, width, height, grey, pixels);
      if (jpeg ? !make_jpeg(width, height, pixels, &how, &m)
               : !make_png(width, height, grey ? 0 : 2, 8, i % 3 == 0, pixels,
                           (size_t)(width * (grey ? 1 : 3)), &m)) {
        return 77;
      }
      (void)snprintf(path, sizeof path, "%s/class_%02d/image_%03d.%s", argv[1], k, i,
                     jpeg ? "jpg" : "png");
      if (save_picture(path, &m) != 0) return 1;
      free(m.bytes);
    }
  }
  return 0;
}
