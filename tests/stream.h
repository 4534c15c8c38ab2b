/* stream.h: a stream in memory with faults; and the state of a rank as single arrays, as a program with a state_dict
 * stores them. */
#ifndef TESTS_STREAM_H
#define TESTS_STREAM_H

#include <stddef.h>

#include "natgrad.h"

typedef struct stream {
  unsigned char *bytes; /* free() */
  int64_t n, at;        /* bytes written, bytes read */
  int64_t piece;        /* largest read; 0: any */
  int64_t calls;
  int64_t fail_at; /* number of the call, counted from 1, that transfers nothing */
  int64_t says;    /* value that this call returns */
  int64_t endless; /* 1: reads after the end return zeros */
} stream;

int32_t stream_write(void *user, const void *data, int64_t bytes);
int64_t stream_read(void *user, void *data, int64_t bytes);
void stream_rewind(stream *s); /* read from the start, without faults */
void stream_free(stream *s);

/* All fields of a state, as read by one rank. */
typedef struct state_arrays {
  int32_t fields;
  void **data; /* NULL: another rank stores the array */
  char *manifest;
} state_arrays;

/* Collective.  NG_ERR_STATE also if answers of the library are inconsistent; assert nothing. */
ng_status state_arrays_read(ng_precond *p, int32_t rank, state_arrays *mine);
/* On rank 0, after state_arrays_read on all ranks: write a safetensors file of all arrays, without the library's
 * writer. */
ng_status state_arrays_write(ng_precond *p, const state_arrays *all, stream *to);
void state_arrays_free(state_arrays *w);

#endif
