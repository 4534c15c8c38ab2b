/* cifar.c: read CIFAR-10 and CIFAR-100 in their binary version. A row is a label byte (CIFAR-100: two, the coarse and
 * the fine label) and 3072 bytes: the red, green and blue planes, each 32 x 32. */
#include "readers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIDE = 32, PIXELS = SIDE * SIDE, IMAGE = 3 * PIXELS, FILES = 5 };

/* Read the next row of a file. *y: the label (CIFAR-100: the fine one); x [PIXELS, 3]: the image as pixels. */
static int read_cifar_row(data_stream *file, const char *path, int64_t row, const data_set *d,
                          uint8_t *x, int32_t *y) {
  const int labels = d->classes == 100 ? 2 : 1;
  unsigned char bytes[2 + IMAGE];
  if (data_stream_read(file, bytes, labels + IMAGE) != CLI_OK) return CLI_BAD;
  *y = bytes[labels - 1];
  if (*y >= d->classes)
    return cli_fail("--data: %s: row %lld has the label %d, expected 0 to %d", path, (long long)row,
                    *y, d->classes - 1);
  for (int p = 0; p < PIXELS; p++) {
    for (int c = 0; c < 3; c++)
      x[3 * p + c] = bytes[labels + c * PIXELS + p];
  }
  return CLI_OK;
}

/* Read n files into one split. */
static int read_split(char *const *paths, int n, data_set *d, data_split *s) {
  const int64_t width = (d->classes == 100 ? 2 : 1) + IMAGE;
  data_stream *file[FILES] = {NULL};
  int64_t rows[FILES] = {0}, total = 0;
  int rc = CLI_OK;
  for (int i = 0; i < n && rc == CLI_OK; i++) {
    rc = data_stream_open(paths[i], true, &file[i]);
    const int64_t bytes = rc == CLI_OK ? data_stream_bound_bytes(file[i]) : 0;
    rows[i] = bytes / width;
    total += rows[i];
    if (rc == CLI_OK && (bytes == 0 || bytes % width != 0))
      rc = cli_fail("--data: %s: %lld bytes are no whole number of rows of %lld (at least one)",
                    paths[i], (long long)bytes, (long long)width);
  }
  uint8_t *x = rc == CLI_OK ? data_alloc(d, total, IMAGE) : NULL;
  int32_t *y = rc == CLI_OK ? data_alloc(d, total, (int64_t)sizeof *y) : NULL;
  *s = (data_split){.n = (int32_t)total, .bytes = x, .labels = y};
  for (int i = 0; i < n; i++) {
    for (int64_t r = 0; r < rows[i] && rc == CLI_OK; r++, x += IMAGE, y++)
      rc = read_cifar_row(file[i], paths[i], r, d, x, y);
    data_stream_close(&file[i]);
  }
  return rc;
}

int data_read_cifar(const char *folder, data_set *d) {
  const int classes = strcmp(d->name, "cifar100") == 0 ? 100 : 10;
  char *path[FILES] = {NULL};
  int n = 0;
  d->height = d->width = SIDE;
  d->channels = 3;
  d->classes = classes;
  d->byte_scale = 1.0 / 255.0;
  d->augments = true;
  for (int i = 1; i <= (classes == 10 ? 5 : 1); i++) {
    char name[32];
    (void)snprintf(name, sizeof name, classes == 10 ? "data_batch_%d.bin" : "train.bin", i);
    path[n] = cli_join(folder, name);
    if (classes == 100 || access(path[n], F_OK) == 0 || errno != ENOENT) {
      n++;
    } else {
      free(path[n]);
      path[n] = NULL;
    }
  }
  int rc = n > 0 ? read_split(path, n, d, &d->train)
                 : cli_fail("--data: %s: no file data_batch_1.bin to data_batch_5.bin", folder);
  for (int i = 0; i < n; i++)
    free(path[i]);
  if (rc != CLI_OK) return rc;
  char *test = cli_join(folder, classes == 10 ? "test_batch.bin" : "test.bin");
  rc = read_split(&test, 1, d, &d->test);
  free(test);
  return rc;
}
