/* json.h: the JSON writer and reader of the library and the program.
 *
 * The writer appends to one block of memory.  After a failure it sets `lost` and ignores further output, so a test at
 * the end is enough.  The reader accepts untrusted text; it returns all values in one array, or an error with its line.
 * One array is fast: a state of 10,000 layers has half a million values.  All accessors accept NULL, and values of
 * another kind. */
#ifndef NGIO_JSON_H
#define NGIO_JSON_H

#include "io.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ngio_out { /* starts as {0} */
  char *text;             /* without a terminating 0 */
  size_t used, room;
  int lost;   /* 1 after a failure: there was no memory, or a text was not UTF-8 */
  int digits; /* significant digits of a real number; 0: 17, enough to read back the same double */
  int indent; /* 1: one member or element per line, one blank per level */
  int depth;  /* open brackets */
} ngio_out;

/* Append a member of an object, or with key NULL an element of an array or the outermost value; first a comma if
 * needed. */
void ngio_open(ngio_out *o, const char *key, char bracket);         /* '{' or '[' */
void ngio_shut(ngio_out *o, char bracket);                          /* '}' or ']' */
void ngio_put_text(ngio_out *o, const char *key, const char *text); /* writes null for NULL */
void ngio_put_integer(ngio_out *o, const char *key, int64_t x);
void ngio_put_real(ngio_out *o, const char *key, double x); /* writes null if x is not finite */
void ngio_put_flag(ngio_out *o, const char *key, int x);
void ngio_put_null(ngio_out *o, const char *key);
/* Append the comma and the key only; the caller then appends the value. */
void ngio_put_key(ngio_out *o, const char *key);

/* Reserve memory for n more bytes and return 1. If there is no memory, set `lost` and return 0. */
int ngio_out_reserve(ngio_out *o, size_t n);
/* Append n bytes unchanged, without a comma or quotes. */
static inline void ngio_out_bytes(ngio_out *o, const void *bytes, size_t n) {
  if (n == 0 || ((o->lost || n > o->room - o->used) && !ngio_out_reserve(o, n))) return;
  memcpy(o->text + o->used, bytes, n);
  o->used += n;
}
static inline void ngio_out_put(ngio_out *o, const char *text) {
  ngio_out_bytes(o, text, strlen(text));
}
/* Append UTF-8 text in quotes; escape quotes, backslashes and control characters. */
void ngio_out_string(ngio_out *o, const char *text);
void ngio_out_integer(ngio_out *o, int64_t x);
/* Append a finite number, always with a point or an exponent: 1 becomes 1.0. */
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
  uint32_t span;   /* number of ngio_values of this value and all values inside it */
  int32_t tag;     /* not used by this reader; the caller may store a number here; initially 0 */
  const char *key; /* key, if the value is a member of an object; else NULL */
  union {
    int64_t integer;
    double real;
    const char *text;
    struct ngio_index *index; /* hash table of an object with many members; else NULL */
  } is;
} ngio_value;

typedef struct ngio_json ngio_json;

/* Parse a copy of the n bytes.  On failure, return NGIO_ERR_FILE with a message "line L: ...", or NGIO_ERR_NOMEM, and
 * set *out to NULL. */
ngio_status ngio_json_parse(const char *text, size_t n, ngio_json **out, char *message,
                            size_t size);
/* Parse and change `text` in place: `text` must have one more byte after its n bytes, and must outlive *out.  An error
 * message names the byte ("byte B: ...") instead of the line. */
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
static inline int64_t ngio_integer_or(const ngio_value *v, int64_t otherwise) {
  return ngio_is(v, NGIO_INTEGER) ? v->is.integer : otherwise;
}
static inline int64_t ngio_integer_of(const ngio_value *v) { return ngio_integer_or(v, 0); }
double ngio_number_of(const ngio_value *v); /* 0: not a number */
size_t ngio_count(const ngio_value *list);  /* elements; 0: not an array */
/* Return element i of an array, in time O(i), or the member `key` of an object; NULL: absent. */
const ngio_value *ngio_at(const ngio_value *list, size_t i);
const ngio_value *ngio_get(const ngio_value *map, const char *key);
/* As ngio_get, but test the member `hint` (may be NULL) first: fast if the caller guesses the order of the members. */
const ngio_value *ngio_get_hinted(const ngio_value *map, const ngio_value *hint, const char *key);
/* Return the first element or member, or the element or member after v, in the order of the text; NULL: none. */
const ngio_value *ngio_first(const ngio_value *list);
const ngio_value *ngio_next(const ngio_value *list, const ngio_value *v);

#ifdef __cplusplus
}
#endif
#endif
