/* readers.h: what the readers of cli/data/ share.  A reader fills a data_set whose name is set and
 * whose other fields are zero: shape, classes, byte_scale, both splits; data.c adds the statistics. */
#ifndef DATA_READERS_H
#define DATA_READERS_H

#include "data.h"

#include <stddef.h>

int data_read_digits(data_set *d);
int data_read_idx(const char *folder, data_set *d);
int data_read_cifar(const char *folder, int classes, data_set *d);
int data_read_npy(const char *names, data_set *d);
int data_read_images(const char *settings, data_set *d);
int data_make_synthetic(const char *settings, data_set *d);

/* Memory that data_close frees; NULL (told) if there is none. */
void *data_take(data_set *d, int64_t count, int64_t size);

/* Keys of "SOURCE:KEY=VALUE,...": is `key` a known one that was not given yet?  *given has a bit for each.  Else
 * CLI_BAD, told: it comes twice, or it is none of them, which `expected` lists. */
int data_key(const char *source, const char *key, const char *const *known, int n,
             const char *expected, unsigned *given);

/* ---- stream.c: the bytes of a file, plain or gzip.  CLI_BAD: told --------------------------------*/

typedef struct data_stream data_stream;

int data_stream_open(const char *path,
                     data_stream **out); /* a regular file; path stays the caller's */
void data_stream_close(data_stream **s); /* accepts NULL */
bool data_stream_zipped(const data_stream *s);
/* So many bytes it can have at most: those of a plain file, what deflate could make of a gzip one. */
int64_t data_stream_most(const data_stream *s);
int data_stream_read(data_stream *s, void *to, int64_t n); /* the next n, all of them */
int data_stream_end(data_stream *s);                       /* nothing is left */

/* A whole file of a format without a header, so not compressed, of at most `most` bytes; *bytes belongs to
 * the caller (free). */
int data_read_plain(const char *path, int64_t most, unsigned char **bytes, int64_t *count);

#endif
