/* cifar.c: CIFAR-10 and CIFAR-100 in their binary version.  A row is one label byte (two for
 * CIFAR-100: coarse, fine) and 3072 bytes, red plane, green plane, blue plane, each 32 x 32. */
#include "common/cli.h"
#include "readers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIDE = 32, PIXELS = SIDE * SIDE, IMAGE = 3 * PIXELS };

typedef struct rows {
  unsigned char *bytes;
  int64_t count;
} rows;

static int read_file(const char *path, int64_t row, rows *out) {
  int64_t bytes = 0;
  if (data_read_plain(path, (int64_t)1 << 34, &out->bytes, &bytes) != CLI_OK) return CLI_BAD;
  out->count = bytes / row;
  if (out->count > 0 && bytes % row == 0) return CLI_OK;
  free(out->bytes);
  out->bytes = NULL;
  return cli_bad("--data: %s: %lld bytes are no whole number of rows of %lld (at least one)", path,
                 (long long)bytes, (long long)row);
}

static int unpack(const char *path, const rows *from, int labels, int classes, uint8_t *x,
                  int32_t *y) {
  for (int64_t i = 0; i < from->count; i++) {
    const unsigned char *row = from->bytes + i * (labels + IMAGE);
    y[i] = row[labels - 1];
    if (y[i] >= classes) {
      return cli_bad("--data: %s: row %lld has the label %d, expected 0 to %d", path, (long long)i,
                     y[i], classes - 1);
    }
    for (int p = 0; p < PIXELS; p++) {
      for (int c = 0; c < 3; c++)
        x[i * IMAGE + 3 * p + c] = row[labels + c * PIXELS + p];
    }
  }
  return CLI_OK;
}

/* Read all files into one split. */
static int read_split(char *const *paths, int n, int classes, data_set *d, data_split *s) {
  const int labels = classes == 100 ? 2 : 1;
  rows file[5] = {{NULL, 0}};
  int64_t total = 0;
  int rc = CLI_OK;
  for (int i = 0; i < n && rc == CLI_OK; i++) {
    rc = read_file(paths[i], labels + IMAGE, &file[i]);
    total += file[i].count;
  }
  uint8_t *x = rc == CLI_OK ? data_alloc(d, total, IMAGE) : NULL;
  int32_t *y = rc == CLI_OK ? data_alloc(d, total, (int64_t)sizeof *y) : NULL;
  int64_t at = 0;
  for (int i = 0; i < n && rc == CLI_OK; i++) {
    rc = unpack(paths[i], &file[i], labels, classes, x + at * IMAGE, y + at);
    at += file[i].count;
  }
  *s = (data_split){.n = (int32_t)total, .bytes = x, .labels = y};
  for (int i = 0; i < n; i++)
    free(file[i].bytes);
  return rc;
}

int data_read_cifar(const char *folder, data_set *d) {
  const int classes = strcmp(d->name, "cifar100") == 0 ? 100 : 10;
  char *path[5] = {NULL};
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
  int rc = n > 0 ? read_split(path, n, classes, d, &d->train)
                 : cli_bad("--data: %s: no file data_batch_1.bin to data_batch_5.bin", folder);
  for (int i = 0; i < n; i++)
    free(path[i]);
  if (rc != CLI_OK) return rc;
  char *test = cli_join(folder, classes == 10 ? "test_batch.bin" : "test.bin");
  rc = read_split(&test, 1, classes, d, &d->test);
  free(test);
  return rc;
}
