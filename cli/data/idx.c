/* idx.c: MNIST and its relatives.  A file is a magic number (0, 0, type, number of axes), the axes'
 * lengths as big-endian 32-bit numbers, and the values; read are unsigned bytes, images of three axes
 * and labels of one, plain or gzip. */
#include "cli.h"
#include "readers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int64_t big_endian(const unsigned char *b) {
  return ((int64_t)b[0] << 24) | ((int64_t)b[1] << 16) | ((int64_t)b[2] << 8) | b[3];
}

/* Names differ by who unpacked the file. */
static int find(const char *folder, const char *stem, int axes, char **path) {
  static const char separator[] = {'-', '.'};
  for (int i = 0; i < 4; i++) {
    char name[64];
    (void)snprintf(name, sizeof name, "%s%cidx%d-ubyte%s", stem, separator[i / 2], axes,
                   i % 2 == 0 ? "" : ".gz");
    *path = cli_join(folder, name);
    if (access(*path, F_OK) == 0) return CLI_OK;
    const int why = errno;
    free(*path);
    *path = NULL;
    if (why != ENOENT) return cli_bad("--data: %s: %s", folder, strerror(why));
  }
  return cli_bad("--data: %s: no file %s-idx%d-ubyte or %s-idx%d-ubyte.gz", folder, stem, axes,
                 stem, axes);
}

/* The values of a file of `axes` axes; *bytes is the whole file (free it), values from *at on. */
static int read_idx(const char *path, int axes, int64_t length[3], unsigned char **bytes,
                    int64_t *at) {
  int64_t count = 0, product = 1;
  if (data_slurp(path, (int64_t)1 << 36, bytes, &count) != CLI_OK) return CLI_BAD;
  const unsigned char *b = *bytes;
  int rc = CLI_OK;
  *at = 4 + 4 * axes;
  if (count < *at) {
    rc = cli_bad("--data: %s: %lld bytes are too few for an idx header of %lld", path,
                 (long long)count, (long long)*at);
  } else if (b[0] != 0 || b[1] != 0 || b[2] != 8 || b[3] != axes) {
    rc = cli_bad("--data: %s: begins with %d %d %d %d, expected 0 0 8 %d (unsigned bytes, %d %s)",
                 path, b[0], b[1], b[2], b[3], axes, axes, axes == 1 ? "axis" : "axes");
  }
  for (int i = 0; i < axes && rc == CLI_OK; i++) {
    length[i] = big_endian(b + 4 + 4 * i);
    if (length[i] < 1 || length[i] > INT32_MAX || length[i] > (count - *at) / product) {
      rc = cli_bad("--data: %s: says axis %d has length %lld, which does not fit its %lld bytes",
                   path, i, (long long)length[i], (long long)count);
    } else {
      product *= length[i];
    }
  }
  if (rc == CLI_OK && count - *at != product) {
    rc = cli_bad("--data: %s: has %lld values, its header says %lld", path,
                 (long long)(count - *at), (long long)product);
  }
  if (rc != CLI_OK) {
    free(*bytes);
    *bytes = NULL;
  }
  return rc;
}

static int read_split(const char *folder, const char *stem, data_set *d, data_split *s) {
  char name[32], *path = NULL, *label_path = NULL;
  unsigned char *images = NULL, *labels = NULL;
  int64_t shape[3] = {0, 0, 0}, n[3] = {0, 0, 0}, at = 0, label_at = 0;
  (void)snprintf(name, sizeof name, "%s-images", stem);
  int rc = find(folder, name, 3, &path);
  if (rc == CLI_OK) rc = read_idx(path, 3, shape, &images, &at);
  (void)snprintf(name, sizeof name, "%s-labels", stem);
  if (rc == CLI_OK) rc = find(folder, name, 1, &label_path);
  if (rc == CLI_OK) rc = read_idx(label_path, 1, n, &labels, &label_at);
  if (rc == CLI_OK && n[0] != shape[0]) {
    rc = cli_bad("--data: %s: %lld labels for %lld images", label_path, (long long)n[0],
                 (long long)shape[0]);
  }
  if (rc == CLI_OK && d->height > 0 && (d->height != shape[1] || d->width != shape[2])) {
    rc = cli_bad("--data: %s: images of %lldx%lld, the training images have %lldx%lld", path,
                 (long long)shape[1], (long long)shape[2], (long long)d->height,
                 (long long)d->width);
  }
  if (rc == CLI_OK) {
    const int64_t count = shape[0] * shape[1] * shape[2];
    uint8_t *x = data_take(d, count, 1);
    int32_t *y = data_take(d, n[0], (int64_t)sizeof *y);
    d->height = shape[1];
    d->width = shape[2];
    d->channels = 1;
    rc = x != NULL && y != NULL ? CLI_OK : CLI_BAD;
    if (rc == CLI_OK) {
      memcpy(x, images + at, (size_t)count);
      for (int64_t i = 0; i < n[0] && rc == CLI_OK; i++) {
        y[i] = labels[label_at + i];
        if (y[i] < d->classes) continue;
        rc = cli_bad("--data: %s: %s sample %lld has the label %d, expected 0 to %d", label_path,
                     s == &d->train ? "training" : "test", (long long)i, y[i], d->classes - 1);
      }
      *s = (data_split){.n = (int32_t)n[0], .bytes = x, .labels = y};
    }
  }
  free(images);
  free(labels);
  free(path);
  free(label_path);
  return rc;
}

int data_read_idx(const char *folder, data_set *d) {
  d->classes = 10;
  d->byte_scale = 1.0 / 255.0;
  const int rc = read_split(folder, "train", d, &d->train);
  return rc == CLI_OK ? read_split(folder, "t10k", d, &d->test) : rc;
}
