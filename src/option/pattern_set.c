/* pattern_set.c: lists of bytes in brackets: "[^a-z_]", "[]x]", "[[:digit:].]".
 *
 * In: the text behind the opening bracket.  Out: a set of bytes.  A first ']' is a member, as is a '-'
 * that is the first or the last; any other '-' stands between the two ends of a range.  A backslash is
 * a member like any other. */
#include "option/pattern_steps.h"

static void add(pattern_set *s, int from, int to) {
  for (int c = from; c <= to; c++) {
    s->bits[c / 32] |= 1U << (c % 32);
  }
}

static void invert(pattern_set *s) {
  for (size_t i = 0; i < sizeof s->bits / sizeof s->bits[0]; i++) {
    s->bits[i] = ~s->bits[i];
  }
}

/* Of ASCII, pairs of ends. */
static bool add_class(pattern_set *s, const char *name, size_t n) {
  static const struct {
    const char *name;
    unsigned char pair[9];
  } class[] = {{"alpha", "AZaz"}, {"digit", "09"},       {"alnum", "09AZaz"}, {"upper", "AZ"},
               {"lower", "az"},   {"space", "\t\r  "},   {"blank", "\t\t  "}, {"print", " ~"},
               {"graph", "!~"},   {"punct", "!/:@[`{~"}, {"xdigit", "09AFaf"}};
  for (size_t i = 0; i < sizeof class / sizeof class[0]; i++) {
    if (strlen(class[i].name) != n || strncmp(class[i].name, name, n) != 0) continue;
    for (const unsigned char *p = class[i].pair; *p != 0; p += 2) {
      add(s, p[0], p[1]);
    }
    return true;
  }
  if (n != 5 || strncmp(name, "cntrl", n) != 0) return false;
  add(s, 0, 31);
  add(s, 127, 127);
  return true;
}

/* One member: a byte (*one), or a class or an equivalence class, which is in the set then (*one is -1).
 * [.x.] is a byte, [=x=] the class of one. */
static bool member(const char **at, pattern_set *s, int *one, bool hyphen) {
  const char *from = *at;
  const char kind = from[0] == '[' ? from[1] : 0;
  *one = -1;
  if (kind == '.' || kind == '=' || kind == ':') {
    const char *end = from + 2;
    while (*end != 0 && !(end[0] == kind && end[1] == ']')) {
      end++;
    }
    if (*end == 0) return false;
    *at = end + 2;
    const size_t n = (size_t)(end - from - 2);
    if (kind == ':') return add_class(s, from + 2, n);
    if (n != 1) return false;
    if (kind == '=') add(s, (unsigned char)from[2], (unsigned char)from[2]);
    if (kind == '.') *one = (unsigned char)from[2];
    return true;
  }
  if (*from == 0 || (*from == '-' && !hyphen && from[1] != ']')) return false;
  *one = (unsigned char)*from;
  *at = from + 1;
  return true;
}

bool pattern_set_read(const char **at, pattern_set *out) {
  memset(out, 0, sizeof *out);
  const bool inverted = **at == '^';
  if (inverted) ++*at;
  const char *first = *at;
  while (**at != ']' || *at == first) {
    int from, to;
    const bool may_be_hyphen = *at == first;
    if (!member(at, out, &from, may_be_hyphen)) return false;
    if (from < 0) continue;
    to = from;
    if (**at == '-' && (*at)[1] != ']') {
      ++*at;
      if (!member(at, out, &to, true) || to < from) return false; /* a class is no end: -1 */
    }
    add(out, from, to);
  }
  ++*at;
  if (inverted) invert(out);
  return true;
}

bool pattern_set_class(char letter, pattern_set *out) {
  memset(out, 0, sizeof *out);
  if (letter == 'w' || letter == 'W') {
    (void)add_class(out, "alnum", 5);
    add(out, '_', '_');
  } else if (letter == 's' || letter == 'S') {
    (void)add_class(out, "space", 5);
  } else {
    return false;
  }
  if (letter == 'W' || letter == 'S') invert(out);
  return true;
}
