/* json.h: writing JSON as text, piece by piece, into memory that grows.
 *
 * For what has a hundred thousand lines, where a tree of values would cost more than the text.  Commas and
 * brackets are the caller's; what is here cannot be wrong on its own: strings are escaped and numbers come
 * back as what they were.  Reading is ngio_json (io.h).
 *
 * In: pieces.  Out: the text, in one block of malloc's.  A lack of memory is remembered (`lost`), and what
 * comes after it is dropped: one look at the end is enough. */
#ifndef NGIO_JSON_H
#define NGIO_JSON_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ngio_out { /* begins as {0} */
  char *text;             /* without a 0 */
  size_t used, room;
  int lost;
} ngio_out;

/* As it stands. */
void ngio_out_bytes(ngio_out *o, const void *bytes, size_t n);
void ngio_out_put(ngio_out *o, const char *text);
/* In quotes; `text` is UTF-8.  Escaped is what must be, in the shortest way: quotes, backslashes and what
 * lies below the blank. */
void ngio_out_string(ngio_out *o, const char *text);
void ngio_out_integer(ngio_out *o, int64_t x);
/* A finite number, with 17 digits, and never like a whole one: 1 is 1.0. */
void ngio_out_real(ngio_out *o, double x);
void ngio_out_free(ngio_out *o);

#ifdef __cplusplus
}
#endif
#endif
