/* glob.c: lists of globs, which match the names and kinds of layers.
 *
 *   list = glob { "," glob }           blanks around a glob are ignored
 *   glob = { "*" | "?" | set | "\" byte | byte }
 *   set  = "[" [ "!" | "^" ] member { member } "]"     member: a byte, or a range a-z
 *
 * "*" matches any text, "?" one byte.  A glob must match the whole name, or the whole kind ("linear", "Linear",
 * "conv2d", ...).  fnmatch(3) depends on the locale, but all ranks must have the same result. */
#include "option/option.h"

/* ---- one glob --------------------------------------------------------------------------------*/

/* Return the byte at *at, or if that is a backslash, the byte after it.  Advance *at to the next byte. */
static unsigned char read_byte(const char **at) {
  if (**at == '\\' && (*at)[1] != 0) ++*at;
  return (unsigned char)*(*at)++;
}

/* Set *hit to whether the set at `at` contains `c`.  Return the position after the set; NULL if it has no closing
 * bracket. */
static const char *match_set(const char *at, unsigned char c, bool *hit) {
  const bool inverted = at[1] == '!' || at[1] == '^';
  bool found = false;
  at += inverted ? 2 : 1;
  const char *first = at;
  while (*at != 0 && (*at != ']' || at == first)) {
    const unsigned char low = read_byte(&at);
    unsigned char high = low;
    if (*at == '-' && at[1] != ']' && at[1] != 0) {
      at++;
      high = read_byte(&at);
    }
    found = found || (low <= c && c <= high);
  }
  *hit = found != inverted;
  return *at == ']' ? at + 1 : NULL;
}

/* Set *hit to whether the element at `at` ("?", a set or a byte) matches `c`.  Return the position after it. */
static const char *match_element(const char *at, unsigned char c, bool *hit) {
  *hit = true;
  if (*at == '?') return at + 1;
  if (*at == '[') return match_set(at, c, hit);
  *hit = read_byte(&at) == c;
  return at;
}

/* After a mismatch, extend the match of the last "*" by one byte and try again.  The time is at most proportional to
 * the length of the glob times the length of the text. */
bool ng_glob_matches(const ng_glob *g, const char *text) {
  const char *at = g->from, *star = NULL, *again = text;
  while (*text != 0) {
    bool hit = false;
    if (at < g->to && *at == '*') {
      star = ++at;
      again = text;
      continue;
    }
    const char *next = at < g->to ? match_element(at, (unsigned char)*text, &hit) : NULL;
    if (hit) {
      at = next;
      text++;
    } else if (star != NULL) {
      at = star;
      text = ++again;
    } else {
      return false;
    }
  }
  while (at < g->to && *at == '*') {
    at++;
  }
  return at == g->to;
}

/* Return whether `g` begins with "linear/" and matches "linear/N", where l is a linear layer with N outputs.  Other
 * globs, such as "*1", are not compared with "linear/N". */
static bool matches_output_count(const ng_glob *g, const ng_layer *l) {
  char text[32];
  if (l->kind != NG_LINEAR || strncmp(g->from, "linear/", 7) != 0) return false;
  (void)snprintf(text, sizeof text, "linear/%lld", (long long)l->out);
  return ng_glob_matches(g, text);
}

/* A kind has two spellings: this library's and PyTorch's.  For a tensor l->kind is 0, so only its name can match. */
bool ng_glob_fits(const ng_glob *g, const ng_layer *l) {
  static const char *const kind[][2] = {[NG_LINEAR] = {"linear", "Linear"},
                                        [NG_CONV2D] = {"conv2d", "Conv2d"},
                                        [NG_NORM] = {"norm", "Norm"},
                                        [NG_EMBEDDING] = {"embedding", "Embedding"}};
  if (ng_glob_matches(g, l->name) || matches_output_count(g, l)) return true;
  if (l->kind < NG_LINEAR || l->kind > NG_EMBEDDING) return false;
  return ng_glob_matches(g, kind[l->kind][0]) || ng_glob_matches(g, kind[l->kind][1]);
}

/* ---- lists -----------------------------------------------------------------------------------*/

/* Return the position after the element at `at`; NULL if it is a set without closing bracket, or a backslash at the end
 * of the list. */
static const char *skip_element(const char *at) {
  bool hit;
  if (*at == '[') return match_set(at, 0, &hit);
  if (*at == '\\') return at[1] == 0 ? NULL : at + 2;
  return at + 1;
}

bool ng_globs_next(const char **at, ng_glob *g) {
  if (*at == NULL) return false;
  const char *s = *at + strspn(*at, NG_BLANKS);
  g->from = g->to = s;
  while (s != NULL && *s != 0 && *s != ',') {
    const bool blank = ng_is_blank(*s);
    s = skip_element(s);
    if (!blank && s != NULL) g->to = s;
  }
  g->is_broken = s == NULL;
  if (g->is_broken) g->to = g->from + strlen(g->from);
  *at = s != NULL && *s == ',' ? s + 1 : NULL;
  return true;
}

bool ng_globs_fit(const char *list, const ng_layer *l) {
  ng_glob g;
  bool fits = false;
  for (const char *at = list[0] == 0 ? NULL : list; !fits && ng_globs_next(&at, &g);) {
    fits = ng_glob_fits(&g, l);
  }
  return fits;
}

/* ---- regular expressions ---------------------------------------------------------------------*/

/* The globs that ng_globs_from_regex writes. */
typedef struct glob_writer {
  char *text;
  size_t size, n; /* capacity; length so far, which may exceed the capacity */
} glob_writer;

static void write_bytes(glob_writer *w, const char *text, size_t length) {
  for (size_t i = 0; i < length; i++, w->n++) {
    if (w->n + 1 < w->size) w->text[w->n] = text[i];
  }
}

/* Write "*", except after an unescaped "*". */
static void write_star(glob_writer *w) {
  const bool twice = w->n > 0 && w->n < w->size && w->text[w->n - 1] == '*';
  const bool escaped = twice && w->n > 1 && w->text[w->n - 2] == '\\';
  if (!twice || escaped) write_bytes(w, "*", 1);
}

/* Translate the atom at `s` of a regular expression (a byte, an escape, a set, "." or ".*") to an element of a glob.
 * Return the position after the atom; NULL if no element has the same meaning. */
static const char *translate_atom(glob_writer *w, const char *s) {
  const char *behind = *s == '[' && s[1] != '[' ? skip_element(s) : s + 1;
  if (s[0] == '.' && s[1] == '*') {
    write_star(w);
    return s + 2;
  }
  if (*s == '\\' && s[1] != 0) {
    const bool digit = s[1] == 'd' || s[1] == 'D';
    if (!digit && strchr(".[](){}*+?^$|\\,-/_", s[1]) == NULL) return NULL;
    write_bytes(w, digit ? s[1] == 'd' ? "[0-9]" : "[!0-9]" : s, digit ? s[1] == 'd' ? 5 : 6 : 2);
    behind = s + 2;
  } else if (strchr("(){}*+?^$|\\", *s) != NULL || behind == NULL) {
    return NULL;
  } else if (*s == '.' || *s == ',') {
    write_bytes(w, *s == '.' ? "?" : "\\,", *s == '.' ? 1 : 2);
  } else {
    write_bytes(w, s, (size_t)(behind - s));
  }
  return strchr("*+?{", *behind) != NULL && *behind != 0 ? NULL : behind;
}

/* "^fc|conv" becomes "fc*,*conv*", because a search finds an expression without anchors anywhere in a name. */
bool ng_globs_from_regex(const char *expression, char *out, size_t size) {
  glob_writer w = {.text = out, .size = size};
  const char *s = expression;
  for (bool more = true; more;) {
    const bool start = *s == '^';
    if (start) s++;
    if (!start) write_star(&w);
    if (start && *s == '$') return false; /* matches only the empty name */
    while (*s != 0 && *s != '|' && !(*s == '$' && (s[1] == 0 || s[1] == '|'))) {
      s = translate_atom(&w, s);
      if (s == NULL) return false;
    }
    if (*s == '$') {
      s++;
    } else {
      write_star(&w);
    }
    more = *s == '|';
    if (more) write_bytes(&w, ",", 1);
    s += more;
  }
  if (w.n < size) out[w.n] = 0;
  return w.n < size;
}

/* Return whether the glob has a byte of ^$|(), outside sets and not escaped, or "[[:": it is a regular expression. */
static bool is_regular_expression(const ng_glob *g) {
  for (const char *s = g->from; s < g->to; s = skip_element(s)) {
    if (strchr("^$|()", *s) != NULL || (s[0] == '[' && s[1] == '[' && s[2] == ':')) return true;
    if (g->is_broken && (*s == '[' || *s == '\\')) return false; /* here skip_element is NULL */
  }
  return false;
}

ng_status ng_globs_check(const char *option, const char *list, char *message, size_t size) {
  char text[NG_TEXT_SIZE], globs[NG_MESSAGE];
  ng_glob g;
  for (const char *at = list[0] == 0 ? NULL : list; ng_globs_next(&at, &g);) {
    (void)snprintf(text, sizeof text, "%.*s", (int)(g.to - g.from), g.from);
    if (is_regular_expression(&g)) {
      const bool known = ng_globs_from_regex(text, globs, 256);
      return ng_fail_to(message, size, NG_ERR_ARG,
                        "%s = \"%s\": regular expressions are not supported; write %s%s%s", option,
                        ng_shorten(text).text, known ? "\"" : "",
                        known ? globs : "globs with *, ? and [...]",
                        known ? "\"" : ", separated by commas");
    }
    if (g.is_broken || g.from == g.to) {
      return ng_fail_to(message, size, NG_ERR_ARG, "%s: '%s' %s", option, ng_shorten(text).text,
                        g.from == g.to ? "has an empty glob"
                                       : "has a [ without ], or ends with a \\");
    }
  }
  return NG_OK;
}
