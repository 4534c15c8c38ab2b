/* picture.c: read an image file, select its decoder, scale the picture and cut out a window. */
#include "picture.h"

#include "common/cli.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- files -------------------------------------------------------------------------------------*/

static bool set_reason(char why[PICTURE_WHY], const char *reason) {
  (void)snprintf(why, PICTURE_WHY, "%.190s", reason);
  return false;
}

bool picture_allocate(int64_t height, int64_t width, picture *out, char why[PICTURE_WHY]) {
  if (height < 1 || width < 1 || height > PICTURE_SIDE || width > PICTURE_SIDE ||
      height > PICTURE_PIXELS / width) {
    (void)snprintf(why, PICTURE_WHY,
                   "%lld x %lld pixels, expected at most %d each way and %d in all",
                   (long long)width, (long long)height, PICTURE_SIDE, PICTURE_PIXELS);
    return false;
  }
  out->rgb = cli_alloc((size_t)(height * width), 3);
  out->height = height;
  out->width = width;
  return true;
}

bool picture_decode(const uint8_t *bytes, size_t n, picture *out, char why[PICTURE_WHY]) {
  const picture_format *const formats[] = {&picture_jpeg, &picture_png}, *format = NULL;
  memset(out, 0, sizeof *out);
  for (int i = 0; i < 2; i++) {
    const size_t length = strlen(formats[i]->first_bytes);
    if (n >= length && memcmp(bytes, formats[i]->first_bytes, length) == 0) format = formats[i];
  }
  if (format == NULL) return set_reason(why, "its first bytes are neither JPEG's nor PNG's");
  if (format->library == NULL) return set_reason(why, format->absent);
  const bool good = format->decode(bytes, n, out, why);
  for (char *c = why; !good && *c != 0;
       c++) { /* the decoder's message may contain bytes of the file */
    if ((unsigned char)*c < 32 || (unsigned char)*c > 126) *c = '?';
  }
  if (!good) {
    free(out->rgb);
    memset(out, 0, sizeof *out);
  }
  return good;
}

bool picture_read(const char *path, picture *out, char why[PICTURE_WHY]) {
  char message[1024] = ""; /* "PATH: reason" */
  ngio_source file;
  uint8_t *bytes = NULL;
  memset(out, 0, sizeof *out);
  bool done = ngio_source_open(&file, path, message, sizeof message) == NGIO_OK;
  if (done && (file.size < 1 || file.size > PICTURE_BYTES)) {
    (void)snprintf(why, PICTURE_WHY, "%lld bytes, expected 1 to %d", (long long)file.size,
                   PICTURE_BYTES);
    ngio_source_close(&file);
    return false;
  }
  if (done) {
    bytes = cli_alloc((size_t)file.size, 1);
    done = ngio_source_read(&file, 0, bytes, file.size, message, sizeof message) == NGIO_OK;
  }
  const size_t skip = strlen(path) + 2;
  if (!done) (void)set_reason(why, message + (skip < strlen(message) ? skip : 0));
  done = done && picture_decode(bytes, (size_t)file.size, out, why);
  ngio_source_close(&file);
  free(bytes);
  return done;
}

/* ---- scaling -----------------------------------------------------------------------------------*/

void picture_scale_size(int64_t height, int64_t width, int64_t shorter, int64_t *to_height,
                        int64_t *to_width) {
  const int64_t least = height < width ? height : width;
  *to_height = (height * shorter + least - 1) / least;
  *to_width = (width * shorter + least - 1) / least;
}

/* The input pixels [first, first + count) that contribute to one output pixel along one axis, and their weights. */
typedef struct taps {
  int64_t first, count;
  /* [count] weights of each output; the pointer of the first output owns the memory of all */
  float *weight;
} taps;

static void free_taps(taps *t) {
  free(t[0].weight);
  free(t);
}

/* Return the taps of `outputs` output pixels, from pixel `from` on, of a line scaled from `size` to `to` pixels. The
 * weights are a triangle of half-width max(1, size / to), normalised to the sum 1. */
static taps *make_taps(int64_t size, int64_t to, int64_t from, int64_t outputs) {
  const double scale = (double)size / (double)to, reach = scale > 1.0 ? scale : 1.0;
  const int64_t most = 2 * (int64_t)ceil(reach) + 1;
  taps *t = cli_alloc((size_t)outputs, sizeof *t);
  float *weight = cli_alloc((size_t)(outputs * most), sizeof *weight);
  for (int64_t i = 0; i < outputs; i++) {
    const double centre = ((double)(from + i) + 0.5) * scale;
    int64_t a = (int64_t)floor(centre - reach + 0.5), b = (int64_t)ceil(centre + reach - 0.5);
    if (a < 0) a = 0;
    if (b > size) b = size;
    float *w = weight + i * most;
    double sum = 0.0;
    for (int64_t k = a; k < b; k++)
      sum += fmax(0.0, 1.0 - fabs((double)k + 0.5 - centre) / reach);
    for (int64_t k = a; k < b; k++)
      w[k - a] = (float)(fmax(0.0, 1.0 - fabs((double)k + 0.5 - centre) / reach) / sum);
    t[i] = (taps){a, b - a, w};
  }
  return t;
}

static void scale_row(const uint8_t *line, const taps *t, int64_t side, float *to) {
  for (int64_t x = 0; x < side; x++, t++) {
    const uint8_t *p = line + 3 * t->first;
    float r = 0.0F, g = 0.0F, b = 0.0F;
    for (int64_t k = 0; k < t->count; k++, p += 3) {
      r += t->weight[k] * (float)p[0];
      g += t->weight[k] * (float)p[1];
      b += t->weight[k] * (float)p[2];
    }
    to[3 * x] = r;
    to[3 * x + 1] = g;
    to[3 * x + 2] = b;
  }
}

static uint8_t round_to_byte(float v) {
  return v <= 0.0F ? 0 : v >= 255.0F ? 255 : (uint8_t)lroundf(v);
}

void picture_cut_window(const picture *p, int64_t height, int64_t width, int64_t top, int64_t left,
                        int64_t side, uint8_t *to) {
  if (height == p->height && width == p->width) { /* no scaling */
    for (int64_t y = 0; y < side; y++)
      memcpy(to + y * side * 3, p->rgb + ((top + y) * p->width + left) * 3, (size_t)(side * 3));
    return;
  }
  taps *columns = make_taps(p->width, width, left, side);
  taps *rows = make_taps(p->height, height, top, side);
  const int64_t first = rows[0].first, count = rows[side - 1].first + rows[side - 1].count - first;
  float *lines = cli_alloc((size_t)(count * side * 3), sizeof *lines);
  float *sum = cli_alloc((size_t)(side * 3), sizeof *sum);
  for (int64_t y = 0; y < count; y++)
    scale_row(p->rgb + (first + y) * p->width * 3, columns, side, lines + y * side * 3);
  for (int64_t y = 0; y < side; y++) {
    memset(sum, 0, (size_t)(side * 3) * sizeof *sum);
    for (int64_t k = 0; k < rows[y].count; k++) {
      const float *line = lines + (rows[y].first - first + k) * side * 3;
      for (int64_t x = 0; x < side * 3; x++)
        sum[x] += rows[y].weight[k] * line[x];
    }
    for (int64_t x = 0; x < side * 3; x++)
      to[y * side * 3 + x] = round_to_byte(sum[x]);
  }
  free_taps(columns);
  free_taps(rows);
  free(lines);
  free(sum);
}
