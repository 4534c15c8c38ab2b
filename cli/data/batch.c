/* batch.c: fill a batch with samples of a data set in memory: scale, normalise, and shift and mirror images. */
#include "data.h"

#include "common/random.h"

#include <string.h>

enum { PAD = 4 }; /* zero pixels added on each side of an image */

typedef struct window { /* the window of a sample: offset in pixels, 0 = not shifted */
  int64_t dy, dx;
  bool mirrored;
} window;

/* Draw a random window and mirroring for a sample. Each offset is one of -PAD to PAD, all equally likely. The draw
 * depends on the seed, the epoch and the sample, not on its position in the batch. */
static window draw_window(const data_transform *how, int32_t sample) {
  window p = {0, 0, false};
  uint32_t w[4];
  if (!how->crop && !how->flip) return p;
  random_words(how->seed, RANDOM_AUGMENT, how->epoch, (uint64_t)sample, w);
  if (how->crop) {
    p.dy = (int64_t)(((uint64_t)w[0] * (2 * PAD + 1)) >> 32) - PAD;
    p.dx = (int64_t)(((uint64_t)w[1] * (2 * PAD + 1)) >> 32) - PAD;
  }
  if (how->flip) p.mirrored = w[2] >> 31 != 0;
  return p;
}

static void write_pixel(const data_split *s, int64_t at, const float *scale, const float *shift,
                        int64_t channels, float *to) {
  for (int64_t k = 0; k < channels; k++) {
    const float value = s->bytes != NULL ? (float)s->bytes[at + k] : s->reals[at + k];
    to[k] = value * scale[k] + shift[k];
  }
}

static void write_image(const data_set *d, const data_split *s, int64_t row, const window *p,
                        const float *scale, const float *shift, float *to) {
  const int64_t c = d->channels, base = row * d->height * d->width * c;
  for (int64_t y = 0; y < d->height; y++) {
    const int64_t from = y + p->dy;
    for (int64_t x = 0; x < d->width; x++, to += c) {
      const int64_t at = (p->mirrored ? d->width - 1 - x : x) + p->dx;
      if (from < 0 || from >= d->height || at < 0 || at >= d->width) {
        memset(to, 0, (size_t)c * sizeof *to);
      } else {
        write_pixel(s, base + (from * d->width + at) * c, scale, shift, c, to);
      }
    }
  }
}

void data_fill_batch(const data_set *d, const data_split *split, const int32_t *order,
                     int32_t first, int32_t count, const data_transform *how, float *x,
                     int32_t *labels) {
  const int64_t per = d->height * d->width * d->channels, each = data_count_labels(d);
  for (int32_t i = 0; i < count; i++) {
    const int32_t sample = order != NULL ? order[i] : first + i;
    const int32_t row = split->index != NULL ? split->index[sample] : sample;
    const window p = draw_window(how, row);
    memcpy(labels + i * each, split->labels + row * each, (size_t)each * sizeof *labels);
    write_image(d, split, row, &p, d->scale[how->normalise], d->shift[how->normalise], x + i * per);
  }
}
