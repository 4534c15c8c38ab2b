/* readers.h: the readers of cli/data/.  A reader fills shape, classes, byte_scale and both splits of a data_set that
 * has only its name; data.c adds the statistics. */
#ifndef DATA_READERS_H
#define DATA_READERS_H

#include "common/cli.h"
#include "data.h"

#include <stddef.h>

int data_read_digits(const char *text, data_set *d); /* text: not used */
int data_read_idx(const char *folder, data_set *d);
int data_read_cifar(const char *folder, data_set *d); /* d->name: cifar10 or cifar100 */
int data_read_npy(const char *names, data_set *d);
int data_read_images(const char *settings, data_set *d);
void data_close_images(data_set *d); /* d may be any data set */
int data_make_synthetic(const char *settings, data_set *d);

/* Allocate zeroed memory, which data_close frees, or end the program with one line if there is no memory. */
void *data_alloc(data_set *d, int64_t count, int64_t size);

/* Compute scale and shift from byte_scale, mean and deviation. */
void data_set_scales(data_set *d);

/* A setting KEY=VALUE.  `to` points to an int64_t or a double, a number from `lower` to `upper`, or to a const char *
 * for a text, which must not be empty. */
typedef struct data_setting {
  const char *key;
  cli_kind kind; /* CLI_WHOLE, CLI_REAL or CLI_TEXT */
  void *to;
  double lower, upper;
} data_setting;

/* Parse "KEY=VALUE,KEY=VALUE" in place, with the n known keys, each at most once; `source`: the data set, for
 * messages. */
int data_parse_settings(const char *source, char *text, const data_setting *known, int n);

/* ---- stream.c: the bytes of a file, plain or gzip; CLI_BAD: reported in one line ------------------*/

typedef struct data_stream data_stream;

/* Open a regular file; the stream borrows `path`.  plain: report a gzip file as an error. */
int data_stream_open(const char *path, bool plain, data_stream **out);
void data_stream_close(data_stream **s); /* accepts NULL */
bool data_stream_is_gzip(const data_stream *s);
/* Return an upper bound of the stream's bytes: the size of the file, times the largest ratio of deflate for gzip. */
int64_t data_stream_bound(const data_stream *s);
int data_stream_read(data_stream *s, void *to, int64_t n); /* exactly the next n bytes    */
int data_stream_check_end(data_stream *s);                 /* CLI_BAD if bytes are left   */

#endif
