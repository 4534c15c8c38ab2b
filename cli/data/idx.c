/* idx.c: read MNIST and Fashion-MNIST. A file has a magic number (0, 0, type, number of axes), the lengths of the axes
 * as big-endian 32-bit numbers, and the values. This reader accepts unsigned bytes, in images with three axes and
 * labels with one axis, plain or gzip. */
#include "readers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int64_t read_big_endian_u32(const unsigned char *b) {
  return ((int64_t)b[0] << 24) | ((int64_t)b[1] << 16) | ((int64_t)b[2] << 8) | b[3];
}

/* Find the file STEM-idx<axes>-ubyte or STEM.idx<axes>-ubyte, plain or .gz: all four names are in use. */
static int find_idx_file(const char *folder, const char *stem, int axes, char **path) {
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
    if (why != ENOENT) return cli_fail("--data: %s: %s", folder, strerror(why));
  }
  return cli_fail("--data: %s: no file %s-idx%d-ubyte or %s.idx%d-ubyte, plain or .gz", folder,
                  stem, axes, stem, axes);
}

/* Open the file, read its header, and compare its lengths with the size of the file. Next, *out reads the values. */
static int open_idx(const char *path, int axes, int64_t length[3], data_stream **out) {
  if (data_stream_open(path, false, out) != CLI_OK) return CLI_BAD;
  const int64_t head = 4 + 4 * axes, most = data_stream_bound_bytes(*out), count = most - head;
  const bool zipped = data_stream_is_gzip(*out);
  unsigned char b[16] = {0};
  int64_t product = 1;
  if (count < 0)
    return cli_fail("--data: %s: %lld bytes are too few for an idx header of %lld", path,
                    (long long)most, (long long)head);
  if (data_stream_read(*out, b, head) != CLI_OK) return CLI_BAD;
  if (b[0] != 0 || b[1] != 0 || b[2] != 8 || b[3] != axes)
    return cli_fail(
        "--data: %s: begins with %d %d %d %d, expected 0 0 8 %d (unsigned bytes, %d %s)", path,
        b[0], b[1], b[2], b[3], axes, axes, axes == 1 ? "axis" : "axes");
  for (int i = 0; i < axes; i++) {
    length[i] = read_big_endian_u32(b + 4 + 4 * i);
    if (length[i] < 1 || length[i] > INT32_MAX || length[i] > count / product)
      return cli_fail(
          "--data: %s: its header has length %lld for axis %d, which does not fit %s %lld bytes",
          path, (long long)length[i], i, zipped ? "its content of at most" : "its",
          (long long)most);
    product *= length[i];
  }
  if (!zipped && count != product)
    return cli_fail("--data: %s: has %lld values, its header says %lld", path, (long long)count,
                    (long long)product);
  return CLI_OK;
}

static int read_labels(const char *path, const char *which, data_set *d, data_stream *s, int64_t n,
                       int32_t *y) {
  unsigned char *labels = cli_alloc((size_t)n, 1);
  int rc = data_stream_read(s, labels, n);
  if (rc == CLI_OK) rc = data_stream_check_end(s);
  for (int64_t i = 0; i < n && rc == CLI_OK; i++) {
    y[i] = labels[i];
    if (y[i] < d->classes) continue;
    rc = cli_fail("--data: %s: %s sample %lld has the label %d, expected 0 to %d", path, which,
                  (long long)i, y[i], d->classes - 1);
  }
  free(labels);
  return rc;
}

static int read_split(const char *folder, const char *stem, data_set *d, data_split *s) {
  char name[32], *path = NULL, *label_path = NULL;
  data_stream *images = NULL, *labels = NULL;
  int64_t shape[3] = {0, 0, 0}, n[3] = {0, 0, 0};
  (void)snprintf(name, sizeof name, "%s-images", stem);
  int rc = find_idx_file(folder, name, 3, &path);
  if (rc == CLI_OK) rc = open_idx(path, 3, shape, &images);
  (void)snprintf(name, sizeof name, "%s-labels", stem);
  if (rc == CLI_OK) rc = find_idx_file(folder, name, 1, &label_path);
  if (rc == CLI_OK) rc = open_idx(label_path, 1, n, &labels);
  if (rc == CLI_OK && n[0] != shape[0])
    rc = cli_fail("--data: %s: %lld labels for %lld images", label_path, (long long)n[0],
                  (long long)shape[0]);
  if (rc == CLI_OK && d->height > 0 && (d->height != shape[1] || d->width != shape[2]))
    rc = cli_fail("--data: %s: images of %lldx%lld, the training images have %lldx%lld", path,
                  (long long)shape[1], (long long)shape[2], (long long)d->height,
                  (long long)d->width);
  const int64_t values = shape[0] * shape[1] * shape[2];
  uint8_t *x = rc == CLI_OK ? data_alloc(d, values, 1) : NULL;
  int32_t *y = rc == CLI_OK ? data_alloc(d, n[0], (int64_t)sizeof *y) : NULL;
  if (rc == CLI_OK) rc = data_stream_read(images, x, values);
  if (rc == CLI_OK) rc = data_stream_check_end(images);
  if (rc == CLI_OK)
    rc = read_labels(label_path, s == &d->train ? "training" : "test", d, labels, n[0], y);
  if (rc == CLI_OK) {
    d->height = shape[1];
    d->width = shape[2];
    d->channels = 1;
    *s = (data_split){.n = (int32_t)n[0], .bytes = x, .labels = y};
  }
  data_stream_close(&images);
  data_stream_close(&labels);
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
