/* json.h: JSON of a hundred thousand lines: written as text, piece by piece, and read in one pass.
 *
 * Writing.  Commas and brackets are the caller's; what is here cannot be wrong on its own: strings are
 * escaped and numbers come back as what they were.  In: pieces.  Out: the text, in one block of malloc's.
 * A lack of memory is remembered (`lost`), and what comes after it is dropped: one look at the end is
 * enough.
 *
 * Reading.  In: a text of anybody's.  Out: its values, or what is wrong and where.  Every question may be
 * asked of NULL and of a value of another kind, and has an answer. */
#ifndef NGIO_JSON_H
#define NGIO_JSON_H

#include "io.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ngio_out { /* begins as {0} */
  char *text;             /* without a 0 */
  size_t used, room;
  int lost;
} ngio_out;

/* Room for n more bytes; 0, and lost, if there is no memory.  Texts grow by themselves. */
int ngio_out_reserve(ngio_out *o, size_t n);
/* As it stands. */
static inline void ngio_out_bytes(ngio_out *o, const void *bytes, size_t n) {
  if (n == 0 || ((o->lost || n > o->room - o->used) && !ngio_out_reserve(o, n))) return;
  memcpy(o->text + o->used, bytes, n);
  o->used += n;
}
static inline void ngio_out_put(ngio_out *o, const char *text) {
  ngio_out_bytes(o, text, strlen(text));
}
/* In quotes; `text` is UTF-8.  Escaped is what must be, in the shortest way: quotes, backslashes and what
 * lies below the blank. */
void ngio_out_string(ngio_out *o, const char *text);
void ngio_out_escaped(ngio_out *o, const char *text, size_t n); /* n bytes, without the quotes */
void ngio_out_integer(ngio_out *o, int64_t x);
/* The same at `to`, which has room for NGIO_DIGITS; the byte behind it. */
enum { NGIO_DIGITS = 20 };
char *ngio_digits(char *to, int64_t x);
/* A finite number, with 17 digits, and never like a whole one: 1 is 1.0. */
void ngio_out_real(ngio_out *o, double x);
void ngio_out_free(ngio_out *o);

/* ---- reading ---------------------------------------------------------------------------------*/

typedef enum ngio_kind {
  NGIO_NULL,
  NGIO_FALSE,
  NGIO_TRUE,
  NGIO_INTEGER,
  NGIO_REAL,
  NGIO_STRING,
  NGIO_ARRAY,
  NGIO_OBJECT
} ngio_kind;

typedef struct ngio_value {
  ngio_kind kind;
  uint32_t count;  /* values of a list, members of a map */
  uint32_t span;   /* places of the array that it takes, with all that is in it */
  int32_t tag;     /* the owner's, 0 to begin with */
  const char *key; /* of a member; else NULL */
  union {
    int64_t integer;
    double real;
    const char *text;
    struct ngio_index *index; /* of a map: where the members are, by hash; NULL if they are few */
  } is;
} ngio_value;

typedef struct ngio_json ngio_json;

/* A copy of the n bytes, understood.  NGIO_ERR_FILE with what is wrong at which byte, or NGIO_ERR_NOMEM;
 * *out is NULL then. */
ngio_status ngio_json_parse(const char *text, size_t n, ngio_json **out, char *message,
                            size_t size);
/* The same without a copy: `text` has room for a 0 behind its n bytes, is changed, and must outlive *out. */
ngio_status ngio_json_parse_here(char *text, size_t n, ngio_json **out, char *message, size_t size);
void ngio_json_free(ngio_json **doc);

ngio_value *ngio_json_root(const ngio_json *doc);
int ngio_is(const ngio_value *v, ngio_kind kind);
const char *ngio_text_of(const ngio_value *v); /* of a string, else NULL */
int ngio_is_number(const ngio_value *v);       /* whole or not */
double ngio_number_of(const ngio_value *v);
const ngio_value *ngio_get(const ngio_value *map, const char *key); /* or NULL */
/* The same for who expects members in an order: `v` (or NULL) is looked at first. */
const ngio_value *ngio_get_at(const ngio_value *map, const ngio_value *v, const char *key);
/* In the order of the text; NULL at the end. */
const ngio_value *ngio_first(const ngio_value *list);
const ngio_value *ngio_next(const ngio_value *list, const ngio_value *v);

#ifdef __cplusplus
}
#endif
#endif
