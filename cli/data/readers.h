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
int data_make_synthetic(const char *settings, data_set *d);

/* Memory that data_close frees; NULL (told) if there is none. */
void *data_take(data_set *d, int64_t count, int64_t size);

/* A whole file, gzip or not, at most `most` bytes; *bytes belongs to the caller (free).  Told. */
int data_slurp(const char *path, int64_t most, unsigned char **bytes, int64_t *count);

#endif
