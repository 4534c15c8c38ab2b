/* json_read.c: parse untrusted JSON text in one pass.
 *
 * In this file a list is an array or an object of JSON, and a map is an object.  All values are in one array, in the
 * order of the text: after a list come the values inside it.  Strings are decoded in place, in the text or its copy.
 * So any text needs only a few allocations.  The parser follows RFC 8259, and rejects text that is not UTF-8, NUL,
 * duplicate keys and numbers out of range. */
#include "io.h"
#include "json.h"
#include "pages.h"

#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

enum {
  DEPTH = 32, /* largest depth of nested values; files of natgrad have depth 5 */
  FEW = 8     /* maps with at most this many members have no hash table */
};

typedef struct slot {
  uint32_t at;   /* offset of a member from its map in the array of values; 0: empty slot */
  uint32_t hash; /* hash of the member's key */
} slot;

typedef struct ngio_index {
  struct ngio_index *next;
  uint64_t
      seed; /* seed of the hashes; it depends on the address, so that a file cannot contain keys chosen to collide */
  uint32_t mask; /* number of slots - 1 */
  slot slots[];
} ngio_index;

struct ngio_json {
  char *text; /* memory of the text; NULL: the text belongs to the caller */
  ngio_value *value;
  size_t count, room;
  ngio_index *indices; /* linked list of the hash tables of all large maps */
};

typedef struct parser {
  ngio_json *doc;
  char *at, *end;            /* *end is a 0 */
  const char *why;           /* reason of the error */
  const char *duplicate_key; /* NULL: no key is duplicate */
  int is_out_of_memory;
} parser;

static int fail_with(parser *p, const char *why) {
  p->why = why;
  return 0;
}

static int fail_without_memory(parser *p) {
  p->is_out_of_memory = 1;
  return 0;
}

static void skip_blanks(parser *p) {
  while (*p->at == ' ' || *p->at == '\n' || *p->at == '\r' || *p->at == '\t')
    p->at++;
}

/* ---- words -----------------------------------------------------------------------------------*/

static int parse_hex4(const char *c, uint32_t *out) {
  *out = 0;
  for (int i = 0; i < 4; i++) {
    const char x = c[i];
    const int d = x >= '0' && x <= '9'   ? x - '0'
                  : x >= 'a' && x <= 'f' ? x - 'a' + 10
                  : x >= 'A' && x <= 'F' ? x - 'A' + 10
                                         : -1;
    if (d < 0) return 0; /* also true at the terminating 0, so the loop ends there */
    *out = *out << 4 | (uint32_t)d;
  }
  return 1;
}

static char *append_utf8(char *to, uint32_t c) {
  if (c < 0x80) {
    *to++ = (char)c;
    return to;
  }
  const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  static const uint32_t head[] = {0, 0xc0, 0xe0, 0xf0};
  *to++ = (char)(unsigned char)(head[more] | c >> (6 * more));
  for (int i = more - 1; i >= 0; i--)
    *to++ = (char)(unsigned char)(0x80 | (c >> (6 * i) & 0x3f));
  return to;
}

/* Decode the digits after "\u" to UTF-8 at *to, in place: UTF-8 is never longer than the escape. */
static int decode_unicode_escape(parser *p, char **to) {
  uint32_t c, low;
  if (!parse_hex4(p->at, &c)) return fail_with(p, "\\u without four hexadecimal digits");
  p->at += 4;
  if (c == 0) return fail_with(p, "\\u0000 in a string");
  if (c >= 0xd800 && c < 0xe000) {
    if (c >= 0xdc00 || p->at[0] != '\\' || p->at[1] != 'u' || !parse_hex4(p->at + 2, &low) ||
        low < 0xdc00 || low > 0xdfff)
      return fail_with(p, "half of a surrogate pair");
    p->at += 6;
    c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
  }
  *to = append_utf8(*to, c);
  return 1;
}

static inline int is_unescaped(unsigned char c) { return c >= 0x20 && c != '"' && c != '\\'; }

static int decode_escape(parser *p, char **to) {
  static const char from[] = "\"\\/bfnrt", is[] = "\"\\/\b\f\n\r\t";
  const char e = *p->at;
  const char *known = e == 0 ? NULL : strchr(from, e);
  p->at += e != 0;
  if (known != NULL) {
    *(*to)++ = is[known - from];
    return 1;
  }
  return e == 'u' ? decode_unicode_escape(p, to)
                  : fail_with(p, "an unknown escape after a backslash");
}

/* Copy unescaped bytes and escaped quotes from `at` to *out (*out <= at), and advance *out.  Return the address of the
 * first other byte.  *high: OR of the copied bytes, and of up to 7 bytes after them, to find bytes that are not
 * ASCII. */
static char *copy_unescaped(const parser *p, char *at, char **out, uint64_t *high) {
  char *to = *out;
  while (p->end - at >= 8) {
    const int n = ngio_bytes_before_escape(at);
    uint64_t eight;
    memcpy(&eight, at, 8);
    *high |= eight;
    if (n == 8 || at - to >= 8) {
      /* in both cases the write does not overwrite bytes that are not yet read */
      memcpy(to, &eight, 8);
    } else if (to != at) {
      for (int i = 0; i < n; i++)
        to[i] = at[i];
    }
    at += n;
    to += n;
    if (n == 8) continue;
    if (at[0] != '\\' || at[1] != '"') {
      *out = to;
      return at;
    }
    *to++ = '"';
    at += 2;
  }
  for (; is_unescaped((unsigned char)*at); at++) {
    *high |= (unsigned char)*at;
    *to++ = *at;
  }
  *out = to;
  return at;
}

/* Decode the string after the opening quote at p->at, in place: no escape is shorter than its character. */
static const char *parse_string(parser *p) {
  char *const begin = p->at;
  char *at = begin;
  uint64_t high = 0, eight;
  for (int n = 8; n == 8 && p->end - at >= 8; at += n) {
    /* copy up to the first escape, or to the end of the text */
    n = ngio_bytes_before_escape(at);
    memcpy(&eight, at, 8);
    high |= eight;
  }
  char *to = at;
  if (*at != '"') at = copy_unescaped(p, at, &to, &high);
  while (*at == '\\') {
    p->at = at + 1;
    if (!decode_escape(p, &to)) return NULL;
    at = copy_unescaped(p, p->at, &to, &high);
  }
  p->at = at;
  if (*at != '"') {
    (void)fail_with(p, at == p->end ? "a string without a closing quote"
                                    : "a control character in a string");
    return NULL;
  }
  p->at++;
  *to = 0;
  if ((high & UINT64_C(0x8080808080808080)) != 0 && !ngio_is_utf8(begin)) {
    (void)fail_with(p, "a string is not UTF-8");
    return NULL;
  }
  return begin;
}

static size_t parse_digits(parser *p, uint64_t *value) {
  size_t n = 0;
  for (; *p->at >= '0' && *p->at <= '9'; p->at++, n++) {
    if (*value > (UINT64_MAX - 9) / 10)
      continue; /* another digit would overflow; the caller checks n */
    *value = 10 * *value + (uint64_t)(*p->at - '0');
  }
  return n;
}

/* Read the number from `begin` to p->at with strtod, after replacing its point by the decimal point of the locale. */
static int parse_real(parser *p, const char *begin, double *out) {
  char small[512];
  const size_t n = (size_t)(p->at - begin);
  const char *point = localeconv()->decimal_point;
  const size_t wide = strlen(point);
  if (n + wide >= sizeof small) return fail_with(p, "a number with too many digits");
  size_t at = 0;
  for (size_t i = 0; i < n; i++) {
    if (begin[i] != '.') {
      small[at++] = begin[i];
      continue;
    }
    memcpy(small + at, point, wide);
    at += wide;
  }
  small[at] = 0;
  errno = 0;
  *out = strtod(small, NULL);
  if (*out - *out != 0.0) return fail_with(p, "a number that is too large");
  return 1;
}

static int parse_number(parser *p, ngio_value *v) {
  const char *begin = p->at;
  const int minus = *p->at == '-';
  uint64_t whole = 0;
  p->at += minus;
  const char *first = p->at;
  const size_t n = parse_digits(p, &whole);
  if (n == 0) return fail_with(p, "expected a value");
  if (n > 1 && *first == '0') return fail_with(p, "a number with a leading zero");
  if (*p->at != '.' && *p->at != 'e' && *p->at != 'E') {
    const uint64_t most = (uint64_t)INT64_MAX + (uint64_t)minus;
    if (n > 19 || whole > most) return fail_with(p, "a whole number that is too large");
    v->kind = NGIO_INTEGER;
    v->is.integer = minus ? (int64_t)(0 - whole) : (int64_t)whole;
    return 1;
  }
  size_t behind = 0;
  v->kind = NGIO_REAL;
  if (*p->at == '.') {
    p->at++;
    behind = parse_digits(p, &whole);
    if (behind == 0) return fail_with(p, "a point without a digit");
  }
  if (*p->at == 'e' || *p->at == 'E') {
    uint64_t power = 0;
    p->at++;
    p->at += *p->at == '+' || *p->at == '-';
    if (parse_digits(p, &power) == 0) return fail_with(p, "an exponent without a digit");
  } else if (n + behind <= 15) {
    double ten = 1.0;
    for (size_t i = 0; i < behind; i++)
      ten *= 10.0; /* whole and ten are exact, so their quotient is correctly rounded */
    v->is.real = (minus ? -(double)whole : (double)whole) / ten;
    return 1;
  }
  return parse_real(p, begin, &v->is.real);
}

static int parse_word(parser *p, const char *text, ngio_kind kind, ngio_value *v) {
  const size_t n = strlen(text);
  if (strncmp(p->at, text, n) != 0) return fail_with(p, "expected a value");
  p->at += n;
  v->kind = kind;
  return 1;
}

/* ---- maps ------------------------------------------------------------------------------------*/

static uint32_t hash_key(const ngio_index *x, const char *key) {
  uint64_t h = x->seed;
  uint64_t part;
  size_t n = strlen(key);
  for (; n >= 8; n -= 8, key += 8) {
    memcpy(&part, key, 8);
    h = (h ^ part) * UINT64_C(0xff51afd7ed558ccd);
    h ^= h >> 32;
  }
  for (part = 0; n > 0; n--)
    part = part << 8 | (unsigned char)*key++;
  h = (h ^ part) * UINT64_C(0xff51afd7ed558ccd);
  h ^= h >> 32;
  return (uint32_t)h;
}

/* Return the slot of `key`, whose hash is h; if the map has no such key, the empty slot for it.  Compare keys only if
 * their hashes are equal, because keys are rarely in the cache. */
static slot *find_slot(const ngio_value *map, const char *key, uint32_t h) {
  ngio_index *x = map->is.index;
  uint32_t i = h & x->mask;
  while (x->slots[i].at != 0 &&
         (x->slots[i].hash != h || strcmp(map[x->slots[i].at].key, key) != 0))
    i = (i + 1) & x->mask;
  return &x->slots[i];
}

static int fail_with_duplicate(parser *p, const char *key) {
  p->duplicate_key = key;
  return 0;
}

static inline int is_same_text(const char *a, const char *b) {
  return *a == *b && strcmp(a, b) == 0;
}

static int check_small_map(parser *p, const ngio_value *map) {
  const ngio_value *last = map + map->span;
  for (const ngio_value *a = map + 1; a < last; a += a->span) {
    for (const ngio_value *b = a + a->span; b < last; b += b->span) {
      if (is_same_text(a->key, b->key)) return fail_with_duplicate(p, b->key);
    }
  }
  return 1;
}

/* At the end of a map: check for duplicate keys and build the hash table. */
static int index_map(parser *p, ngio_value *map) {
  uint32_t places = 16;
  if (map->count <= FEW) return check_small_map(p, map);
  while (places / 2 < map->count)
    places *= 2;
  ngio_index *x = calloc(1, sizeof *x + places * sizeof(slot));
  if (x == NULL) return fail_without_memory(p);
  x->seed = (uint64_t)(uintptr_t)x * UINT64_C(0x9e3779b97f4a7c15);
  x->mask = places - 1;
  x->next = p->doc->indices;
  p->doc->indices = map->is.index = x;
  for (uint32_t at = 1; at < map->span; at += map[at].span) {
    const uint32_t h = hash_key(x, map[at].key);
    slot *to = find_slot(map, map[at].key, h);
    if (to->at != 0) return fail_with_duplicate(p, map[at].key);
    *to = (slot){at, h};
  }
  return 1;
}

/* ---- the walk over the text ------------------------------------------------------------------*/

static ngio_value *append_value(parser *p) {
  ngio_json *d = p->doc;
  if (d->count == d->room) {
    const size_t room = 2 * d->room + 64;
    ngio_value *more = realloc(d->value, room * sizeof *more);
    if (more == NULL) {
      (void)fail_without_memory(p);
      return NULL;
    }
    d->value = more;
    d->room = room;
  }
  ngio_value *v = &d->value[d->count++];
  memset(v, 0, sizeof *v);
  v->span = 1;
  return v;
}

static int is_list(const ngio_value *v) { return v->kind == NGIO_ARRAY || v->kind == NGIO_OBJECT; }

/* Parse one value; for a list or map, parse only the opening bracket. */
static int parse_value(parser *p, const char *key) {
  ngio_value *v = append_value(p);
  if (v == NULL) return 0;
  v->key = key;
  switch (*p->at) {
  case '{':
  case '[':
    v->kind = *p->at++ == '{' ? NGIO_OBJECT : NGIO_ARRAY;
    return 1;
  case '"':
    p->at++;
    v->kind = NGIO_STRING;
    v->is.text = parse_string(p);
    return v->is.text != NULL;
  case 't':
    return parse_word(p, "true", NGIO_TRUE, v);
  case 'f':
    return parse_word(p, "false", NGIO_FALSE, v);
  case 'n':
    return parse_word(p, "null", NGIO_NULL, v);
  default:
    return parse_number(p, v);
  }
}

static int parse_member_key(parser *p, const char **key) {
  if (*p->at != '"') return fail_with(p, "expected a key in quotes");
  p->at++;
  *key = parse_string(p);
  if (*key == NULL) return 0;
  skip_blanks(p);
  if (*p->at != ':') return fail_with(p, "expected ':' after a key");
  p->at++;
  skip_blanks(p);
  return 1;
}

static int parse_all_values(parser *p) {
  size_t open[DEPTH];
  int depth = 0;
  skip_blanks(p);
  if (!parse_value(p, NULL)) return 0;
  if (is_list(p->doc->value)) open[depth++] = 0;
  while (depth > 0) {
    const size_t inside = open[depth - 1];
    const ngio_value *list = &p->doc->value[inside];
    const char *key = NULL;
    skip_blanks(p);
    if (*p->at == (list->kind == NGIO_OBJECT ? '}' : ']')) {
      p->at++;
      ngio_value *whole = &p->doc->value[inside];
      whole->span = (uint32_t)(p->doc->count - inside);
      if (whole->kind == NGIO_OBJECT && !index_map(p, whole)) return 0;
      depth--;
      continue;
    }
    if (list->count > 0) {
      if (*p->at != ',') return fail_with(p, "expected a comma or the end of a list");
      p->at++;
      skip_blanks(p);
    }
    p->doc->value[inside].count++;
    if (list->kind == NGIO_OBJECT && !parse_member_key(p, &key)) return 0;
    if (p->doc->count >= UINT32_MAX / 4) return fail_with(p, "too many values");
    if (!parse_value(p, key)) return 0;
    if (!is_list(&p->doc->value[p->doc->count - 1])) continue;
    if (depth == DEPTH) return fail_with(p, "lists nested too deep");
    open[depth++] = p->doc->count - 1;
  }
  skip_blanks(p);
  return p->at == p->end ? 1 : fail_with(p, "text after the value");
}

/* Parse `text` in place. `original`: the unchanged text, to count lines; NULL: errors name the byte. */
static ngio_status parse_document(char *text, size_t n, const char *original, ngio_json **out,
                                  char *message, size_t size) {
  ngio_json *d = *out = calloc(1, sizeof *d);
  parser p = {.doc = d, .at = text, .end = text + n};
  text[n] = 0;
  if (d != NULL) {
    /* capacity for the values of most states; memory that is not used costs nothing */
    d->room = n / 16 + 64;
    d->value = malloc(d->room * sizeof *d->value);
  }
  p.is_out_of_memory = d == NULL || d->value == NULL;
  if (!p.is_out_of_memory) {
    ng_request_large_pages(d->value, d->room * sizeof *d->value);
    if (parse_all_values(&p)) return NGIO_OK;
  }
  ngio_json_free(out);
  if (p.is_out_of_memory) return ngio_say(message, size, NGIO_ERR_NOMEM, "no memory");
  const size_t byte = (size_t)((p.duplicate_key != NULL ? p.duplicate_key : p.at) - text);
  const char *what = original != NULL ? "line" : "byte";
  size_t place = original != NULL ? 1 : byte;
  for (size_t i = 0; i < byte && original != NULL; i++)
    place += original[i] == '\n';
  return p.duplicate_key != NULL
             ? ngio_say(message, size, NGIO_ERR_FILE, "%s %zu: duplicate key '%s'", what, place,
                        ngio_printable(p.duplicate_key).text)
             : ngio_say(message, size, NGIO_ERR_FILE, "%s %zu: %s", what, place, p.why);
}

ngio_status ngio_json_parse_here(char *text, size_t n, ngio_json **out, char *message,
                                 size_t size) {
  return parse_document(text, n, NULL, out, message, size);
}

ngio_status ngio_json_parse(const char *text, size_t n, ngio_json **out, char *message,
                            size_t size) {
  char *own = malloc(n + 1);
  *out = NULL;
  if (own == NULL) return ngio_say(message, size, NGIO_ERR_NOMEM, "no memory");
  ng_request_large_pages(own, n + 1);
  memcpy(own, text, n);
  const ngio_status st = parse_document(own, n, text, out, message, size);
  if (st == NGIO_OK) {
    (*out)->text = own;
  } else {
    free(own);
  }
  return st;
}

void ngio_json_free(ngio_json **doc) {
  ngio_json *d = *doc;
  *doc = NULL;
  if (d == NULL) return;
  for (ngio_index *x = d->indices, *next; x != NULL; x = next) {
    next = x->next;
    free(x);
  }
  free(d->value);
  free(d->text);
  free(d);
}

/* ---- asking ----------------------------------------------------------------------------------*/

ngio_value *ngio_json_root(const ngio_json *d) { return d == NULL ? NULL : d->value; }

double ngio_number_of(const ngio_value *v) {
  if (ngio_is(v, NGIO_INTEGER)) return (double)v->is.integer;
  return ngio_is(v, NGIO_REAL) ? v->is.real : 0.0;
}

size_t ngio_count(const ngio_value *list) { return ngio_is(list, NGIO_ARRAY) ? list->count : 0; }

const ngio_value *ngio_at(const ngio_value *list, size_t i) {
  const ngio_value *v = i < ngio_count(list) ? ngio_first(list) : NULL;
  for (; v != NULL && i > 0; i--)
    v = ngio_next(list, v);
  return v;
}

const ngio_value *ngio_get(const ngio_value *map, const char *key) {
  if (!ngio_is(map, NGIO_OBJECT)) return NULL;
  if (map->count > FEW) {
    const uint32_t at = find_slot(map, key, hash_key(map->is.index, key))->at;
    return at == 0 ? NULL : &map[at];
  }
  for (const ngio_value *v = map + 1; v < map + map->span; v += v->span) {
    if (is_same_text(v->key, key)) return v;
  }
  return NULL;
}

const ngio_value *ngio_get_hinted(const ngio_value *map, const ngio_value *v, const char *key) {
  return v != NULL && v->key != NULL && is_same_text(v->key, key) ? v : ngio_get(map, key);
}

const ngio_value *ngio_first(const ngio_value *list) {
  return list != NULL && is_list(list) && list->count > 0 ? list + 1 : NULL;
}

const ngio_value *ngio_next(const ngio_value *list, const ngio_value *v) {
  return v + v->span < list + list->span ? v + v->span : NULL;
}
