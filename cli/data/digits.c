/* digits.c: the shipped UCI digits: lines of 64 values 0 to 16 and a label. */
#include "common/cli.h"
#include "readers.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 1797, TRAIN = 1437, SIDE = 8, PIXELS = SIDE * SIDE };

/* $NATGRAD_DATA comes first. */
static char *find(void) {
  const char *set = getenv("NATGRAD_DATA");
  if (set != NULL && set[0] != 0) return cli_join(set, "digits.csv");
  return cli_shipped("digits.csv", "data/digits.csv");
}

/* Read a number up to `most` and the separator after it; -1: not found. */
static int number(const unsigned char **at, const unsigned char *end, int most, char separator) {
  int v = 0, digits = 0;
  for (; *at < end && **at >= '0' && **at <= '9' && digits < 3; (*at)++, digits++)
    v = 10 * v + (**at - '0');
  if (digits == 0 || v > most) return -1;
  if (*at < end && **at == '\r' && separator == '\n') (*at)++;
  if (*at >= end || **at != (unsigned char)separator) return -1;
  (*at)++;
  return v;
}

static int parse(const char *path, const unsigned char *bytes, int64_t count, uint8_t *x,
                 int32_t *y) {
  const unsigned char *at = bytes, *end = bytes + count;
  for (int r = 0; r < ROWS; r++) {
    for (int c = 0; c <= PIXELS; c++) {
      const int v = number(&at, end, c < PIXELS ? 16 : 9, c < PIXELS ? ',' : '\n');
      if (v < 0) {
        return cli_bad("%s: line %d: column %d is no number from 0 to %d", path, r + 1, c + 1,
                       c < PIXELS ? 16 : 9);
      }
      if (c < PIXELS) x[r * PIXELS + c] = (uint8_t)v;
      if (c == PIXELS) y[r] = v;
    }
  }
  if (at != end) return cli_bad("%s: more than %d lines", path, ROWS);
  return CLI_OK;
}

int data_read_digits(const char *text, data_set *d) {
  (void)text;
  char *path = find();
  unsigned char *bytes = NULL;
  int64_t count = 0;
  int rc = data_read_plain(path, 1 << 20, &bytes, &count);
  uint8_t *x = rc == CLI_OK ? data_alloc(d, ROWS, PIXELS) : NULL;
  int32_t *y = rc == CLI_OK ? data_alloc(d, ROWS, (int64_t)sizeof *y) : NULL;
  if (rc == CLI_OK) rc = parse(path, bytes, count, x, y);
  free(bytes);
  free(path);
  d->height = d->width = SIDE;
  d->channels = 1;
  d->classes = 10;
  d->byte_scale = 1.0 / 16.0;
  d->train = (data_split){.n = TRAIN, .bytes = x, .labels = y};
  if (rc == CLI_OK) {
    d->test = (data_split){.n = ROWS - TRAIN, .bytes = x + TRAIN * PIXELS, .labels = y + TRAIN};
  }
  return rc;
}
