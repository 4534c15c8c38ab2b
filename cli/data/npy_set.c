/* npy_set.c: read NumPy files: FEATURES,LABELS or XTRAIN,YTRAIN,XTEST,YTEST. Features are [n, features] or [n, height,
 * width, channels], f4, f8 or u1, and are not scaled; labels are [n] or [n, 1], i4, i8 or u1. Of two files, the last
 * sixth of the rows is the test split. */
#include "npy.h"
#include "readers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int read_features(const char *path, data_set *d, data_split *s) {
  ngio_npy a;
  char message[256] = "";
  if (ngio_npy_read(path, &a, message, sizeof message) != NGIO_OK)
    return cli_fail("--data: %s", message);
  int rc = CLI_OK;
  const int64_t h = a.ndim == 4 ? a.shape[1] : 1, w = a.ndim == 4 ? a.shape[2] : 1;
  const int64_t c = a.ndim == 4 ? a.shape[3] : a.ndim == 2 ? a.shape[1] : 0;
  if ((a.ndim != 2 && a.ndim != 4) || a.count < 1 || a.shape[0] > INT32_MAX) {
    rc = cli_fail("--data: %s: %d axes and %lld values, expected [n, features] or [n, height, "
                  "width, channels]",
                  path, a.ndim, (long long)a.count);
  } else if (a.dtype != NGIO_F32 && a.dtype != NGIO_F64 && a.dtype != NGIO_U8) {
    rc = cli_fail("--data: %s: features are %s, expected f4, f8 or u1", path,
                  a.dtype == NGIO_I32 ? "i4" : "i8");
  } else if (d->channels > 0 && (h != d->height || w != d->width || c != d->channels)) {
    rc = cli_fail("--data: %s: samples of %lldx%lldx%lld, the training samples have %lldx%lldx%lld",
                  path, (long long)h, (long long)w, (long long)c, (long long)d->height,
                  (long long)d->width, (long long)d->channels);
  }
  float *x = rc == CLI_OK ? data_alloc(d, a.count, (int64_t)sizeof *x) : NULL;
  for (int64_t i = 0; rc == CLI_OK && i < a.count; i++) {
    x[i] = a.dtype == NGIO_F32   ? ((const float *)a.data)[i]
           : a.dtype == NGIO_F64 ? (float)((const double *)a.data)[i]
                                 : (float)((const uint8_t *)a.data)[i];
    if (!isfinite(x[i])) rc = cli_fail("--data: %s: value %lld is not finite", path, (long long)i);
  }
  if (rc == CLI_OK) {
    d->height = h;
    d->width = w;
    d->channels = c;
    *s = (data_split){.n = (int32_t)a.shape[0], .reals = x};
  }
  ngio_npy_free(&a);
  return rc;
}

static int read_labels(const char *path, data_set *d, data_split *s) {
  ngio_npy a;
  char message[256] = "";
  if (ngio_npy_read(path, &a, message, sizeof message) != NGIO_OK)
    return cli_fail("--data: %s", message);
  int rc = CLI_OK;
  if (a.ndim != 1 && !(a.ndim == 2 && a.shape[1] == 1)) {
    rc = cli_fail("--data: %s: %d axes, expected labels [n] or [n, 1]", path, a.ndim);
  } else if (a.dtype != NGIO_I32 && a.dtype != NGIO_I64 && a.dtype != NGIO_U8) {
    rc = cli_fail("--data: %s: labels are %s, expected i4, i8 or u1", path,
                  a.dtype == NGIO_F32 ? "f4" : "f8");
  } else if (a.count != s->n) {
    rc = cli_fail("--data: %s: %lld labels for %d samples", path, (long long)a.count, s->n);
  }
  int32_t *y = rc == CLI_OK ? data_alloc(d, a.count, (int64_t)sizeof *y) : NULL;
  for (int64_t i = 0; rc == CLI_OK && i < a.count; i++) {
    const int64_t v = a.dtype == NGIO_I32   ? ((const int32_t *)a.data)[i]
                      : a.dtype == NGIO_I64 ? ((const int64_t *)a.data)[i]
                                            : ((const uint8_t *)a.data)[i];
    if (v < 0 || v > 65535) {
      rc = cli_fail("--data: %s: label %lld is %lld, expected 0 to 65535", path, (long long)i,
                    (long long)v);
    } else {
      y[i] = (int32_t)v;
      if (v >= d->classes) d->classes = (int32_t)v + 1;
    }
  }
  s->labels = y;
  ngio_npy_free(&a);
  return rc;
}

int data_read_npy(const char *names, data_set *d) {
  char *copy = cli_copy_text(names), *name[5] = {NULL}, *rest = copy;
  int n = 0;
  while (rest != NULL && n < 5) {
    char *comma = strchr(rest, ',');
    name[n++] = rest;
    if (comma != NULL) *comma++ = 0;
    rest = comma;
  }
  int rc = n == 2 || n == 4
               ? CLI_OK
               : cli_fail("--data: npy: expected FEATURES,LABELS or XTRAIN,YTRAIN,XTEST,YTEST");
  if (rc == CLI_OK) rc = read_features(name[0], d, &d->train);
  if (rc == CLI_OK) rc = read_labels(name[1], d, &d->train);
  if (rc == CLI_OK && n == 4) rc = read_features(name[2], d, &d->test);
  if (rc == CLI_OK && n == 4) rc = read_labels(name[3], d, &d->test);
  if (rc == CLI_OK && n == 2) {
    const int32_t test = d->train.n / 6, train = d->train.n - test;
    d->test = d->train;
    d->test.n = test;
    d->test.reals += (int64_t)train * d->height * d->width * d->channels;
    d->test.labels += train;
    d->train.n = train;
  }
  free(copy);
  return rc;
}
