/* json.h: the JSON writer and reader of the library and the program.
 *
 * The writer appends to one block of memory.  After a failure, `lost` is set and further output is dropped, so
 * one test at the end is enough.  The reader takes untrusted text and returns all values in one array, or an
 * error with its line.  All accessors accept NULL and values of another kind.  Both use the C library's
 * allocator and no global state.  A state of 10,000 layers has half a million values, which a tree of
 * separately allocated nodes would make slow to read. */
#ifndef NGIO_JSON_H
#define NGIO_JSON_H

#include "io.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ngio_out { /* starts as {0} */
  char *text;             /* without a terminating 0 */
  size_t used, room;
  int lost;   /* no memory, or a text that is not UTF-8 */
  int digits; /* significant digits of a real number; 0: 17, which read back as the same double */
  int indent; /* 1: one member or element per line, one blank per level */
  int depth;
} ngio_out;

/* Members of an object, or elements of an array or the outermost value (key = NULL), with commas. */
void ngio_open(ngio_out *o, const char *key, char bracket);         /* '{' or '[' */
void ngio_shut(ngio_out *o, char bracket);                          /* '}' or ']' */
void ngio_put_text(ngio_out *o, const char *key, const char *text); /* NULL: null */
void ngio_put_integer(ngio_out *o, const char *key, int64_t x);
void ngio_put_real(ngio_out *o, const char *key, double x); /* not finite: null */
void ngio_put_flag(ngio_out *o, const char *key, int x);
void ngio_put_null(ngio_out *o, const char *key);
/* Only the comma and the key: the caller appends the value. */
void ngio_put_key(ngio_out *o, const char *key);

/* Reserve room for n more bytes; 0, and lost, if there is no memory. */
int ngio_out_reserve(ngio_out *o, size_t n);
/* Append without commas and quotes. */
static inline void ngio_out_bytes(ngio_out *o, const void *bytes, size_t n) {
  if (n == 0 || ((o->lost || n > o->room - o->used) && !ngio_out_reserve(o, n))) return;
  memcpy(o->text + o->used, bytes, n);
  o->used += n;
}
static inline void ngio_out_put(ngio_out *o, const char *text) {
  ngio_out_bytes(o, text, strlen(text));
}
/* Append UTF-8 text in quotes, with the shortest escapes. */
void ngio_out_string(ngio_out *o, const char *text);
void ngio_out_escaped(ngio_out *o, const char *text, size_t n); /* n bytes, without the quotes */
void ngio_out_integer(ngio_out *o, int64_t x);
/* Write the digits of x at `to`, which has room for NGIO_DIGITS; return the end. */
enum { NGIO_DIGITS = 20 };
char *ngio_digits(char *to, int64_t x);
/* Append a finite number, always with a point or an exponent: 1 is 1.0. */
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
  uint32_t count;  /* elements of an array, members of an object */
  uint32_t span;   /* elements of the array that this value and all values inside it occupy */
  int32_t tag;     /* for the caller, initially 0 */
  const char *key; /* key of a member; else NULL */
  union {
    int64_t integer;
    double real;
    const char *text;
    struct ngio_index *index; /* hash table of an object with many members; else NULL */
  } is;
} ngio_value;

typedef struct ngio_json ngio_json;

/* Parse a copy of the n bytes.  NGIO_ERR_FILE with "line L: expected ...", or NGIO_ERR_NOMEM;
 * *out is NULL then. */
ngio_status ngio_json_parse(const char *text, size_t n, ngio_json **out, char *message,
                            size_t size);
/* Parse in place: `text` has room for a 0 after its n bytes, is changed, and must outlive *out.  The error
 * has the byte instead of the line. */
ngio_status ngio_json_parse_here(char *text, size_t n, ngio_json **out, char *message, size_t size);
void ngio_json_free(ngio_json **doc);

ngio_value *ngio_json_root(const ngio_json *doc);
static inline int ngio_is(const ngio_value *v, ngio_kind kind) {
  return v != NULL && v->kind == kind;
}
static inline int ngio_is_flag(const ngio_value *v) {
  return ngio_is(v, NGIO_TRUE) || ngio_is(v, NGIO_FALSE);
}
static inline int ngio_is_number(const ngio_value *v) {
  return ngio_is(v, NGIO_INTEGER) || ngio_is(v, NGIO_REAL);
}
static inline const char *ngio_text_of(const ngio_value *v) { /* NULL: not a string */
  return ngio_is(v, NGIO_STRING) ? v->is.text : NULL;
}
static inline int64_t ngio_integer_of(const ngio_value *v) { /* 0: not an integer */
  return ngio_is(v, NGIO_INTEGER) ? v->is.integer : 0;
}
double ngio_number_of(const ngio_value *v);                  /* 0: not a number */
size_t ngio_count(const ngio_value *list);                   /* elements; 0: not an array */
const ngio_value *ngio_at(const ngio_value *list, size_t i); /* or NULL; walks over i elements */
const ngio_value *ngio_get(const ngio_value *map, const char *key); /* or NULL */
/* The same, but test `v` (or NULL) first: callers that expect an order pass the next member. */
const ngio_value *ngio_get_at(const ngio_value *map, const ngio_value *v, const char *key);
/* In the order of the text; NULL at the end. */
const ngio_value *ngio_first(const ngio_value *list);
const ngio_value *ngio_next(const ngio_value *list, const ngio_value *v);

#ifdef __cplusplus
}
#endif
#endif
