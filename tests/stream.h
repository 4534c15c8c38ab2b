/* stream.h: a stream in memory that fails when it is told to; and a state that is kept array by array,
 * as a program with a state_dict would, and put together by hand. */
#ifndef TESTS_STREAM_H
#define TESTS_STREAM_H

#include <stddef.h>

#include "natgrad.h"

typedef struct stream {
  unsigned char *bytes; /* free() */
  int64_t n, at;        /* written; read so far */
  int64_t piece;        /* a read gives at most so many; 0: all that was asked for */
  int64_t calls;
  int64_t fail_at; /* the call, from 1, that ... */
  int64_t says;    /* ... returns this; a read gives nothing then */
  int64_t endless; /* 1: zeros behind the end, for ever */
} stream;

int32_t stream_write(void *user, const void *data, int64_t bytes);
int64_t stream_read(void *user, void *data, int64_t bytes);
void stream_rewind(stream *s); /* to be read from the start; no failure */
void stream_drop(stream *s);

/* What one rank's walk gave. */
typedef struct walked {
  int32_t fields;
  void **data; /* NULL: this rank does not hold it */
  char *manifest;
} walked;

/* Collective.  NG_ERR_STATE also when the library contradicts itself; asserts nothing. */
ng_status walk_take(ng_precond *p, int32_t rank, walked *mine);
/* Rank 0, after every rank has walked: a safetensors file of what all ranks hold, made without the
 * library's writer. */
ng_status walk_compose(ng_precond *p, const walked *all, stream *to);
void walk_drop(walked *w);

#endif
