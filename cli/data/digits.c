/* digits.c: read the shipped UCI digits. Each line of the file has 64 values from 0 to 16, and a label. */
#include "readers.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 1797, TRAIN = 1437, SIDE = 8, PIXELS = SIDE * SIDE };

/* Return the path of digits.csv: in the folder $NATGRAD_DATA if this variable is set, else in the installation. */
static char *find_digits_file(void) {
  const char *set = getenv("NATGRAD_DATA");
  if (set != NULL && set[0] != 0) return cli_join(set, "digits.csv");
  return cli_find_shipped("digits.csv", "data/digits.csv");
}

/* Read a number from 0 to `most` and the separator after it, and advance *at. Return -1 if the text is different. */
static int read_number(const unsigned char **at, const unsigned char *end, int most,
                       char separator) {
  int v = 0, digits = 0;
  for (; *at < end && **at >= '0' && **at <= '9' && digits < 3; (*at)++, digits++)
    v = 10 * v + (**at - '0');
  if (digits == 0 || v > most) return -1;
  if (*at < end && **at == '\r' && separator == '\n') (*at)++;
  if (*at >= end || **at != (unsigned char)separator) return -1;
  (*at)++;
  return v;
}

static int parse_rows(const char *path, const unsigned char *bytes, int64_t count, uint8_t *x,
                      int32_t *y) {
  const unsigned char *at = bytes, *end = bytes + count;
  for (int r = 0; r < ROWS; r++) {
    for (int c = 0; c <= PIXELS; c++) {
      const int v = read_number(&at, end, c < PIXELS ? 16 : 9, c < PIXELS ? ',' : '\n');
      if (v < 0)
        return cli_fail("%s: line %d: column %d is no number from 0 to %d", path, r + 1, c + 1,
                        c < PIXELS ? 16 : 9);
      if (c < PIXELS) x[r * PIXELS + c] = (uint8_t)v;
      if (c == PIXELS) y[r] = v;
    }
  }
  if (at != end) return cli_fail("%s: more than %d lines", path, ROWS);
  return CLI_OK;
}

int data_read_digits(const char *text, data_set *d) {
  (void)text;
  enum { MOST = 1 << 20 };
  char *path = find_digits_file();
  data_stream *file = NULL;
  int rc = data_stream_open(path, true, &file);
  const int64_t count = rc == CLI_OK ? data_stream_bound_bytes(file) : 0;
  if (count > MOST)
    rc =
        cli_fail("--data: %s: %lld bytes, more than the %d expected", path, (long long)count, MOST);
  unsigned char *bytes = cli_alloc(rc == CLI_OK ? (size_t)count : 1, 1);
  uint8_t *x = data_alloc(d, ROWS, PIXELS);
  int32_t *y = data_alloc(d, ROWS, (int64_t)sizeof *y);
  if (rc == CLI_OK) rc = data_stream_read(file, bytes, count);
  if (rc == CLI_OK) rc = parse_rows(path, bytes, count, x, y);
  data_stream_close(&file);
  free(bytes);
  free(path);
  d->height = d->width = SIDE;
  d->channels = 1;
  d->classes = 10;
  d->byte_scale = 1.0 / 16.0;
  d->train = (data_split){.n = TRAIN, .bytes = x, .labels = y};
  d->test = (data_split){.n = ROWS - TRAIN, .bytes = x + TRAIN * PIXELS, .labels = y + TRAIN};
  return rc;
}
