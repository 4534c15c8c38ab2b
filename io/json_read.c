/* json_read.c: the suspicious half of the JSON room: a text of anybody's to values, in one pass.
 *
 * Values lie in one array in the order of the text, those of a list or map right behind it; strings stay
 * where they were in a copy of the text.  So a hundred thousand lines cost two blocks of memory, not half
 * a million.  Strict (RFC 8259): UTF-8 without a NUL, no key twice, no number that does not fit.
 */
#include "io.h"
#include "json.h"

#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

enum {
  DEPTH = 32, /* our own files have 5 */
  FEW = 8     /* members of a map that are looked through one by one */
};

struct ngio_json {
  char *text;
  ngio_value *value;
  size_t count, room;
};

typedef struct parser {
  ngio_json *doc;
  char *at, *end;          /* *end is a 0 */
  const char *why, *twice; /* what is wrong; or a key that is there twice */
  int memory;
} parser;

static int wrong(parser *p, const char *why) {
  if (p->why == NULL) p->why = why;
  return 0;
}

static int no_memory(parser *p) {
  p->memory = 1;
  return wrong(p, "no memory");
}

static void blanks(parser *p) {
  while (*p->at == ' ' || *p->at == '\n' || *p->at == '\r' || *p->at == '\t')
    p->at++;
}

/* ---- words -----------------------------------------------------------------------------------*/

static int hex4(const char *c, uint32_t *out) {
  *out = 0;
  for (int i = 0; i < 4; i++) {
    const char x = c[i];
    const int d = x >= '0' && x <= '9'   ? x - '0'
                  : x >= 'a' && x <= 'f' ? x - 'a' + 10
                  : x >= 'A' && x <= 'F' ? x - 'A' + 10
                                         : -1;
    if (d < 0) return 0; /* also at the end of the text */
    *out = *out << 4 | (uint32_t)d;
  }
  return 1;
}

static char *utf8(char *to, uint32_t c) {
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

/* Behind "\u"; never longer than what it replaces. */
static int unicode(parser *p, char **to) {
  uint32_t c, low;
  if (!hex4(p->at, &c)) return wrong(p, "\\u without four hexadecimal digits");
  p->at += 4;
  if (c == 0) return wrong(p, "\\u0000 in a string");
  if (c >= 0xd800 && c < 0xe000) {
    if (c >= 0xdc00 || p->at[0] != '\\' || p->at[1] != 'u' || !hex4(p->at + 2, &low) ||
        low < 0xdc00 || low > 0xdfff)
      return wrong(p, "half of a surrogate pair");
    p->at += 6;
    c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
  }
  *to = utf8(*to, c);
  return 1;
}

/* In place: what an escape stands for is shorter than it.  p->at is behind the quote. */
static const char *string(parser *p) {
  char *const begin = p->at;
  char *to = begin;
  unsigned char high = 0;
  for (;;) {
    const unsigned char c = (unsigned char)*p->at;
    if (c == '"') break;
    if (c < 0x20) {
      (void)wrong(p,
                  p->at == p->end ? "a string without an end" : "a control character in a string");
      return NULL;
    }
    p->at++;
    high |= c;
    if (c != '\\') {
      *to++ = (char)c;
      continue;
    }
    static const char from[] = "\"\\/bfnrt", is[] = "\"\\/\b\f\n\r\t";
    const char e = *p->at;
    const char *known = e == 0 ? NULL : strchr(from, e);
    p->at += e != 0;
    if (known != NULL) {
      *to++ = is[known - from];
    } else if (e != 'u') {
      (void)wrong(p, "a backslash before something unknown");
      return NULL;
    } else if (!unicode(p, &to)) {
      return NULL;
    }
  }
  p->at++;
  *to = 0;
  if (high >= 0x80 && !ngio_is_utf8(begin)) {
    (void)wrong(p, "a string is not UTF-8");
    return NULL;
  }
  return begin;
}

static size_t digits(parser *p, uint64_t *value) {
  size_t n = 0;
  for (; *p->at >= '0' && *p->at <= '9'; p->at++, n++) {
    if (*value > (UINT64_MAX - 9) / 10) continue; /* too many to count */
    *value = 10 * *value + (uint64_t)(*p->at - '0');
  }
  return n;
}

/* Numbers of few digits are exact as a quotient of two exact doubles; the others are the C library's,
 * whose decimal point is the caller's locale's. */
static int real(parser *p, const char *begin, double *out) {
  char small[512];
  const size_t n = (size_t)(p->at - begin);
  const char *point = localeconv()->decimal_point;
  const size_t wide = strlen(point);
  if (n + wide >= sizeof small) return wrong(p, "a number of too many digits");
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
  if (*out - *out != 0.0) return wrong(p, "a number that is too large");
  return 1;
}

static int number(parser *p, ngio_value *v) {
  const char *begin = p->at;
  const int minus = *p->at == '-';
  uint64_t whole = 0;
  p->at += minus;
  const char *first = p->at;
  const size_t n = digits(p, &whole);
  if (n == 0) return wrong(p, "expected a value");
  if (n > 1 && *first == '0') return wrong(p, "a number with a leading zero");
  if (*p->at != '.' && *p->at != 'e' && *p->at != 'E') {
    const uint64_t most = (uint64_t)INT64_MAX + (uint64_t)minus;
    if (n > 19 || whole > most) return wrong(p, "a whole number that is too large");
    v->kind = NGIO_INTEGER;
    v->is.integer = minus ? (int64_t)(0 - whole) : (int64_t)whole;
    return 1;
  }
  size_t behind = 0;
  v->kind = NGIO_REAL;
  if (*p->at == '.') {
    p->at++;
    behind = digits(p, &whole);
    if (behind == 0) return wrong(p, "a point without a digit");
  }
  if (*p->at == 'e' || *p->at == 'E') {
    uint64_t power = 0;
    p->at++;
    p->at += *p->at == '+' || *p->at == '-';
    if (digits(p, &power) == 0) return wrong(p, "an exponent without a digit");
  } else if (n + behind <= 15) {
    double ten = 1.0;
    for (size_t i = 0; i < behind; i++)
      ten *= 10.0; /* exact up to 1e22 */
    v->is.real = (minus ? -(double)whole : (double)whole) / ten;
    return 1;
  }
  return real(p, begin, &v->is.real);
}

static int word(parser *p, const char *text, ngio_kind kind, ngio_value *v) {
  const size_t n = strlen(text);
  if (strncmp(p->at, text, n) != 0) return wrong(p, "expected a value");
  p->at += n;
  v->kind = kind;
  return 1;
}

/* ---- maps ------------------------------------------------------------------------------------*/

/* Seeded by an address, so that nobody can write a file all of whose keys meet. */
static uint64_t hash(const ngio_value *map, const char *key) {
  uint64_t h = (uint64_t)(uintptr_t)map * UINT64_C(0x9e3779b97f4a7c15);
  for (size_t n = strlen(key); n > 0;) {
    uint64_t part = 0;
    const size_t take = n < 8 ? n : 8;
    memcpy(&part, key, take);
    h = (h ^ part) * UINT64_C(0xff51afd7ed558ccd);
    h ^= h >> 32;
    key += take;
    n -= take;
  }
  return h;
}

static uint32_t slots_of(uint32_t count) {
  uint32_t n = 16;
  while (n / 2 < count)
    n *= 2;
  return n;
}

/* The slot of a key, or the empty one where it would be. */
static uint32_t *slot_of(const ngio_value *map, const char *key) {
  const uint32_t mask = slots_of(map->count) - 1;
  uint32_t i = (uint32_t)hash(map, key) & mask;
  while (map->is.slot[i] != 0 && strcmp(map[map->is.slot[i]].key, key) != 0)
    i = (i + 1) & mask;
  return &map->is.slot[i];
}

static int duplicate(parser *p, const char *key) {
  p->twice = key;
  return 0;
}

static int small_map(parser *p, const ngio_value *map) {
  const ngio_value *last = map + map->span;
  for (const ngio_value *a = map + 1; a < last; a += a->span) {
    for (const ngio_value *b = a + a->span; b < last; b += b->span) {
      if (strcmp(a->key, b->key) == 0) return duplicate(p, b->key);
    }
  }
  return 1;
}

/* When all values have their place: no key twice, and where each is. */
static int index_maps(parser *p) {
  for (size_t i = 0; i < p->doc->count; i++) {
    ngio_value *map = &p->doc->value[i];
    if (map->kind != NGIO_OBJECT) continue;
    if (map->count <= FEW) {
      if (!small_map(p, map)) return 0;
      continue;
    }
    map->is.slot = calloc(slots_of(map->count), sizeof *map->is.slot);
    if (map->is.slot == NULL) return no_memory(p);
    for (uint32_t at = 1; at < map->span; at += map[at].span) {
      uint32_t *slot = slot_of(map, map[at].key);
      if (*slot != 0) return duplicate(p, map[at].key);
      *slot = at;
    }
  }
  return 1;
}

/* ---- the walk over the text ------------------------------------------------------------------*/

static ngio_value *next_value(parser *p) {
  ngio_json *d = p->doc;
  if (d->count == d->room) {
    const size_t room = 2 * d->room + 64;
    ngio_value *more = malloc(room * sizeof *more);
    if (more == NULL) {
      (void)no_memory(p);
      return NULL;
    }
    if (d->count > 0) memcpy(more, d->value, d->count * sizeof *more);
    free(d->value);
    d->value = more;
    d->room = room;
  }
  ngio_value *v = &d->value[d->count++];
  memset(v, 0, sizeof *v);
  v->span = 1;
  return v;
}

static int is_list(const ngio_value *v) { return v->kind == NGIO_ARRAY || v->kind == NGIO_OBJECT; }

/* One value; of a list or a map the bracket that opens it. */
static int value(parser *p, const char *key) {
  ngio_value *v = next_value(p);
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
    v->is.text = string(p);
    return v->is.text != NULL;
  case 't':
    return word(p, "true", NGIO_TRUE, v);
  case 'f':
    return word(p, "false", NGIO_FALSE, v);
  case 'n':
    return word(p, "null", NGIO_NULL, v);
  default:
    return number(p, v);
  }
}

static int member_key(parser *p, const char **key) {
  if (*p->at != '"') return wrong(p, "expected a key in quotes");
  p->at++;
  *key = string(p);
  if (*key == NULL) return 0;
  blanks(p);
  if (*p->at != ':') return wrong(p, "expected ':' behind a key");
  p->at++;
  blanks(p);
  return 1;
}

static int all(parser *p) {
  size_t open[DEPTH];
  int depth = 0;
  blanks(p);
  if (!value(p, NULL)) return 0;
  if (is_list(p->doc->value)) open[depth++] = 0;
  while (depth > 0) {
    const size_t inside = open[depth - 1];
    const ngio_value *list = &p->doc->value[inside];
    const char *key = NULL;
    blanks(p);
    if (*p->at == (list->kind == NGIO_OBJECT ? '}' : ']')) {
      p->at++;
      p->doc->value[inside].span = (uint32_t)(p->doc->count - inside);
      depth--;
      continue;
    }
    if (list->count > 0) {
      if (*p->at != ',') return wrong(p, "expected a comma or the end of a list");
      p->at++;
      blanks(p);
    }
    p->doc->value[inside].count++;
    if (list->kind == NGIO_OBJECT && !member_key(p, &key)) return 0;
    if (p->doc->count >= UINT32_MAX / 4) return wrong(p, "too many values");
    if (!value(p, key)) return 0;
    if (!is_list(&p->doc->value[p->doc->count - 1])) continue;
    if (depth == DEPTH) return wrong(p, "lists in lists, too deep");
    open[depth++] = p->doc->count - 1;
  }
  blanks(p);
  if (p->at != p->end) return wrong(p, "something behind the value");
  return index_maps(p);
}

ngio_status ngio_json_parse(const char *text, size_t n, ngio_json **out, char *message,
                            size_t size) {
  ngio_json *d = calloc(1, sizeof *d);
  *out = d;
  if (d != NULL) d->text = malloc(n + 1);
  if (d == NULL || d->text == NULL) {
    ngio_json_free(out);
    return ngio_say(message, size, NGIO_ERR_NOMEM, "no memory");
  }
  memcpy(d->text, text, n);
  d->text[n] = 0;
  parser p = {.doc = d, .at = d->text, .end = d->text + n};
  if (all(&p)) return NGIO_OK;
  const ngio_status st =
      p.memory ? ngio_say(message, size, NGIO_ERR_NOMEM, "no memory")
      : p.twice != NULL
          ? ngio_say(message, size, NGIO_ERR_FILE, "duplicate key '%s'", ngio_quote(p.twice).text)
          : ngio_say(message, size, NGIO_ERR_FILE, "%s, at byte %zu", p.why,
                     (size_t)(p.at - d->text));
  ngio_json_free(out);
  return st;
}

void ngio_json_free(ngio_json **doc) {
  ngio_json *d = *doc;
  *doc = NULL;
  if (d == NULL) return;
  for (size_t i = 0; i < d->count; i++) {
    if (d->value[i].kind == NGIO_OBJECT) free(d->value[i].is.slot);
  }
  free(d->value);
  free(d->text);
  free(d);
}

/* ---- asking ----------------------------------------------------------------------------------*/

ngio_value *ngio_json_root(const ngio_json *d) { return d == NULL ? NULL : d->value; }

int ngio_is(const ngio_value *v, ngio_kind kind) { return v != NULL && v->kind == kind; }

const char *ngio_text_of(const ngio_value *v) {
  return ngio_is(v, NGIO_STRING) ? v->is.text : NULL;
}

int ngio_is_number(const ngio_value *v) {
  return ngio_is(v, NGIO_INTEGER) || ngio_is(v, NGIO_REAL);
}

double ngio_number_of(const ngio_value *v) {
  if (ngio_is(v, NGIO_INTEGER)) return (double)v->is.integer;
  return ngio_is(v, NGIO_REAL) ? v->is.real : 0.0;
}

const ngio_value *ngio_get(const ngio_value *map, const char *key) {
  if (!ngio_is(map, NGIO_OBJECT)) return NULL;
  if (map->count > FEW) {
    const uint32_t at = *slot_of(map, key);
    return at == 0 ? NULL : &map[at];
  }
  for (const ngio_value *v = map + 1; v < map + map->span; v += v->span) {
    if (strcmp(v->key, key) == 0) return v;
  }
  return NULL;
}

const ngio_value *ngio_first(const ngio_value *list) {
  return list != NULL && is_list(list) && list->count > 0 ? list + 1 : NULL;
}

const ngio_value *ngio_next(const ngio_value *list, const ngio_value *v) {
  return v + v->span < list + list->span ? v + v->span : NULL;
}
