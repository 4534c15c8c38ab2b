/* readers.h: the readers of data sets. A reader gets a data_set with its name only, and fills shape, classes,
 * byte_scale and both splits; data.c then adds mean and deviation, unless the reader has set both. */
#ifndef DATA_READERS_H
#define DATA_READERS_H

#include "common/cli.h"
#include "data.h"

#include <stddef.h>

int data_read_digits(const char *text, data_set *d); /* `text` is ignored */
int data_read_idx(const char *folder, data_set *d);
int data_read_cifar(const char *folder, data_set *d); /* d->name selects cifar10 or cifar100 */
int data_read_npy(const char *names, data_set *d);
int data_read_images(const char *settings, data_set *d);
void data_close_images(data_set *d); /* other data sets: does nothing */
int data_read_text(const char *settings, data_set *d);
int data_make_synthetic(const char *settings, data_set *d);

/* Allocate zeroed memory, which data_close frees. If there is none, end the program with an error. */
void *data_alloc(data_set *d, int64_t count, int64_t size);

/* Compute d->scale and d->shift from byte_scale, mean and deviation. */
void data_set_scales(data_set *d);

/* A setting KEY=VALUE of a SPEC. `to` points to the variable: an int64_t or a double from `lower` to `upper`, or a
 * const char * for a text, which must not be empty. */
typedef struct data_setting {
  const char *key;
  cli_kind kind; /* CLI_WHOLE, CLI_REAL or CLI_TEXT */
  void *to;
  double lower, upper;
} data_setting;

/* Parse "KEY=VALUE,KEY=VALUE" in place. Each of the n known keys may occur once. `source` names the data set in
 * messages. */
int data_parse_settings(const char *source, char *text, const data_setting *known, int n);

/* ---- stream.c: the bytes of a file, plain or gzip; CLI_BAD: reported in one line ------------------*/

typedef struct data_stream data_stream;

/* Open a regular file; `path` must stay valid. `plain`: a gzip file is an error. */
int data_stream_open(const char *path, bool plain, data_stream **out);
void data_stream_close(data_stream **s); /* accepts NULL */
bool data_stream_is_gzip(const data_stream *s);
/* Return an upper bound of the bytes that the stream contains: the size of the file; for gzip, this size times the
 * largest compression ratio. */
int64_t data_stream_bound_bytes(const data_stream *s);
int data_stream_read(data_stream *s, void *to, int64_t n); /* read exactly n bytes */
int data_stream_check_end(data_stream *s);                 /* CLI_BAD: more bytes follow */

#endif
