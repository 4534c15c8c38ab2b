/* json.c: the writer of json.h. */
#include "json.h"

#include "pages.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Double the capacity, so that realloc copies a long text only a few times. */
int ngio_out_reserve(ngio_out *o, size_t n) {
  if (o->lost) return 0;
  if (n <= o->room - o->used) return 1;
  const size_t room = o->room < SIZE_MAX / 4 ? 2 * o->room + 4096 : SIZE_MAX / 2;
  const size_t more = n <= room - o->used ? room : o->used + n;
  char *text = n < SIZE_MAX / 4 ? realloc(o->text, more) : NULL;
  if (text == NULL) {
    o->lost = 1;
    return 0;
  }
  ng_request_large_pages(text + o->used, more - o->used);
  o->text = text;
  o->room = more;
  return 1;
}

/* PIECE: bytes of text for which memory is reserved at once.  LONGEST: bytes of the longest escape, "\u00XX". */
enum { PIECE = 1024, LONGEST = 6 };

static char *append_control_character(char *to, unsigned char c) {
  static const char digit[] = "0123456789ABCDEF";
  const char letter = c >= '\b' && c <= '\r' ? "btnufr"[c - '\b'] : 'u';
  *to++ = '\\';
  *to++ = letter;
  if (letter != 'u') return to;
  *to++ = '0';
  *to++ = '0';
  *to++ = digit[c >> 4];
  *to++ = digit[c & 15];
  return to;
}

/* Copy eight bytes at once, but advance only to the first byte that needs an escape. */
void ngio_out_string(ngio_out *o, const char *text) {
  const char *end = text + strlen(text);
  ngio_out_bytes(o, "\"", 1);
  while (text < end) {
    const char *stop = end - text > PIECE ? text + PIECE : end;
    if (!ngio_out_reserve(o, LONGEST * (size_t)(stop - text) + 8)) return;
    char *to = o->text + o->used;
    while (text < stop) {
      if (stop - text >= 8) {
        const int plain = ngio_bytes_before_escape(text);
        memcpy(to, text, 8);
        to += plain;
        text += plain;
        if (plain == 8) continue;
      }
      const unsigned char c = (unsigned char)*text++;
      if (c < 0x20) {
        to = append_control_character(to, c);
        continue;
      }
      /* prepare an escape; if c needs none, the next iteration overwrites the backslash */
      *to = '\\';
      to += c == '"' || c == '\\';
      *to++ = (char)c;
    }
    o->used = (size_t)(to - o->text);
  }
  ngio_out_bytes(o, "\"", 1);
}

enum { DIGITS = 20 }; /* largest number of bytes of an int64_t in decimal */

/* Write x in decimal at `to`, two digits at a time, the last digits first. Return the end of the digits. */
static char *write_digits(char *to, int64_t x) {
  static const char pair[] =
      "00010203040506070809101112131415161718192021222324252627282930313233343536373839"
      "40414243444546474849505152535455565758596061626364656667686970717273747576777879"
      "8081828384858687888990919293949596979899";
  char text[DIGITS];
  char *at = text + sizeof text;
  uint64_t left = x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
  for (; left >= 100; left /= 100)
    memcpy(at -= 2, pair + 2 * (left % 100), 2);
  if (left >= 10) {
    memcpy(at -= 2, pair + 2 * left, 2);
  } else {
    *--at = (char)('0' + left);
  }
  if (x < 0) *to++ = '-';
  const size_t n = (size_t)(text + sizeof text - at);
  memcpy(to, at, n);
  return to + n;
}

void ngio_out_integer(ngio_out *o, int64_t x) {
  if (!ngio_out_reserve(o, DIGITS)) return;
  o->used = (size_t)(write_digits(o->text + o->used, x) - o->text);
}

/* Whole numbers have a fast path. snprintf writes all other numbers; its decimal point depends on the locale, and its
 * exponents may have a plus and leading zeros, which the code below removes. */
void ngio_out_real(ngio_out *o, double x) {
  char text[64];
  if (o->digits == 0 && fabs(x) < 1e15 && x == (double)(int64_t)x && !(x == 0.0 && signbit(x))) {
    ngio_out_integer(o, (int64_t)x);
    ngio_out_bytes(o, ".0", 2);
    return;
  }
  (void)snprintf(text, sizeof text, "%.*g", o->digits > 0 ? o->digits : 17, x);
  const char *point = localeconv()->decimal_point;
  char *at = *point != 0 && strcmp(point, ".") != 0 ? strstr(text, point) : NULL;
  if (at != NULL) {
    const size_t n = strlen(point);
    *at = '.';
    memmove(at + 1, at + n, strlen(at + n) + 1);
  }
  char *e = strchr(text, 'e');
  if (e == NULL) {
    ngio_out_put(o, text);
    if (strchr(text, '.') == NULL) ngio_out_bytes(o, ".0", 2);
    return;
  }
  ngio_out_bytes(o, text, (size_t)(e + 1 - text));
  if (*++e == '-') ngio_out_bytes(o, "-", 1);
  ngio_out_put(o, e + 1 + strspn(e + 1, "0"));
}

/* ---- members and elements --------------------------------------------------------------------*/

static void append_line_break(ngio_out *o) {
  ngio_out_put(o, "\n");
  for (int i = 0; i < o->depth; i++)
    ngio_out_put(o, " ");
}

/* Append a comma, unless the last character is an opening bracket. */
void ngio_put_key(ngio_out *o, const char *key) {
  const char last = o->used > 0 ? o->text[o->used - 1] : '[';
  if (last != '{' && last != '[') ngio_out_put(o, ",");
  if (o->indent && o->depth > 0) append_line_break(o);
  if (key == NULL) return;
  ngio_out_string(o, key);
  ngio_out_bytes(o, ": ", o->indent ? 2 : 1);
}

void ngio_open(ngio_out *o, const char *key, char bracket) {
  ngio_put_key(o, key);
  ngio_out_bytes(o, &bracket, 1);
  o->depth++;
}

void ngio_shut(ngio_out *o, char bracket) {
  const char last = o->used > 0 ? o->text[o->used - 1] : '[';
  o->depth--;
  if (o->indent && last != '{' && last != '[') append_line_break(o);
  ngio_out_bytes(o, &bracket, 1);
}

void ngio_put_null(ngio_out *o, const char *key) {
  ngio_put_key(o, key);
  ngio_out_put(o, "null");
}

void ngio_put_text(ngio_out *o, const char *key, const char *text) {
  if (text == NULL) {
    ngio_put_null(o, key);
    return;
  }
  if (!ngio_is_utf8(text)) o->lost = 1;
  ngio_put_key(o, key);
  ngio_out_string(o, text);
}

void ngio_put_integer(ngio_out *o, const char *key, int64_t x) {
  ngio_put_key(o, key);
  ngio_out_integer(o, x);
}

void ngio_put_real(ngio_out *o, const char *key, double x) {
  if (!isfinite(x)) {
    ngio_put_null(o, key);
    return;
  }
  ngio_put_key(o, key);
  ngio_out_real(o, x);
}

void ngio_put_flag(ngio_out *o, const char *key, int x) {
  ngio_put_key(o, key);
  ngio_out_put(o, x ? "true" : "false");
}

void ngio_out_free(ngio_out *o) {
  free(o->text);
  memset(o, 0, sizeof *o);
}
