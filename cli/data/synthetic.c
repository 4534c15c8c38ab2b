/* synthetic.c: generate a data set from settings. Each class has a random centre of length sqrt(features); the centre
 * of an image class is smoothed over neighbouring pixels. A sample is the centre of its class plus normal noise. */
#include "common/random.h"
#include "readers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct recipe {
  int64_t classes, train, test, seed, height, width, channels;
  double noise;
} recipe;

static int parse_settings(char *text, recipe *r) {
  const char *image = NULL;
  int64_t features = 0, size[3] = {1, 1, 20};
  const data_setting known[] = {{"classes", CLI_WHOLE, &r->classes, 2, 65536},
                                {"features", CLI_WHOLE, &features, 1, 1 << 20},
                                {"image", CLI_TEXT, &image, 0, 0},
                                {"train", CLI_WHOLE, &r->train, 1, 1 << 24},
                                {"test", CLI_WHOLE, &r->test, 0, 1 << 24},
                                {"noise", CLI_REAL, &r->noise, 0, 1e6},
                                {"seed", CLI_WHOLE, &r->seed, 0, INT32_MAX}};
  if (data_parse_settings("synthetic", text, known, sizeof known / sizeof known[0]) != CLI_OK)
    return CLI_BAD;
  if (features > 0 && image != NULL)
    return cli_fail("--data: synthetic: features and image are both given, expected one");
  if (features > 0) size[2] = features;
  if (image != NULL && !cli_parse_counts(image, 'x', 3, size))
    return cli_fail("--data: synthetic: image is '%s', expected HEIGHTxWIDTHxCHANNELS", image);
  r->height = size[0];
  r->width = size[1];
  r->channels = size[2];
  return CLI_OK;
}

/* Twice, replace each pixel of x by the mean over itself and its neighbours; then scale x to length sqrt(count). */
static void smooth_and_scale(const recipe *r, float *x, float *work) {
  const int64_t h = r->height, w = r->width, c = r->channels, count = h * w * c;
  for (int pass = 0; pass < 2 && h * w > 1; pass++) {
    memcpy(work, x, (size_t)count * sizeof *x);
    for (int64_t i = 0; i < count; i++) {
      const int64_t k = i % c, u = i / c % w, v = i / c / w;
      double sum = 0.0;
      int n = 0;
      for (int64_t a = v > 0 ? v - 1 : 0; a <= v + 1 && a < h; a++) {
        for (int64_t b = u > 0 ? u - 1 : 0; b <= u + 1 && b < w; b++, n++)
          sum += (double)work[(a * w + b) * c + k];
      }
      x[i] = (float)(sum / n);
    }
  }
  double square = 0.0;
  for (int64_t i = 0; i < count; i++)
    square += (double)x[i] * (double)x[i];
  const double scale = square > 0.0 ? sqrt((double)count / square) : 0.0;
  for (int64_t i = 0; i < count; i++)
    x[i] = (float)(scale * (double)x[i]);
}

int data_make_synthetic(const char *settings, data_set *d) {
  recipe r = {.classes = 10, .train = 1000, .test = 200, .seed = 1, .noise = 1.0};
  char *copy = cli_copy_text(settings);
  const int rc = parse_settings(copy, &r);
  free(copy);
  if (rc != CLI_OK) return rc;
  const int64_t per = r.height * r.width * r.channels, rows = r.train + r.test;
  if (r.classes > ((int64_t)1 << 30) / per)
    return cli_fail("--data: synthetic: %lld classes of %lld values are too many",
                    (long long)r.classes, (long long)per);
  if (rows > INT32_MAX || rows > ((int64_t)1 << 34) / per)
    return cli_fail("--data: synthetic: %lld samples of %lld values are too many", (long long)rows,
                    (long long)per);
  float *x = data_alloc(d, rows * per, (int64_t)sizeof *x);
  int32_t *y = data_alloc(d, rows, (int64_t)sizeof *y);
  float *centre = cli_alloc((size_t)((r.classes + 1) * per), sizeof *centre);
  const uint64_t seed = (uint64_t)r.seed;
  for (int64_t k = 0; k < r.classes; k++) {
    random_normal(seed, RANDOM_DATA, (uint32_t)k, 1.0, 0, per, centre + k * per);
    smooth_and_scale(&r, centre + k * per, centre + r.classes * per);
  }
  for (int64_t i = 0; i < rows; i++) {
    uint32_t word[4];
    random_words(seed, RANDOM_DATA, 1U << 31, (uint64_t)i, word);
    y[i] = (int32_t)(((uint64_t)word[0] * (uint64_t)r.classes) >> 32);
    random_normal(seed, RANDOM_DATA, (1U << 30) + (uint32_t)i, r.noise, 0, per, x + i * per);
    for (int64_t k = 0; k < per; k++)
      x[i * per + k] += centre[y[i] * per + k];
  }
  free(centre);
  d->height = r.height;
  d->width = r.width;
  d->channels = r.channels;
  d->classes = (int32_t)r.classes;
  d->train = (data_split){.n = (int32_t)r.train, .reals = x, .labels = y};
  d->test = (data_split){.n = (int32_t)r.test, .reals = x + r.train * per, .labels = y + r.train};
  return CLI_OK;
}
