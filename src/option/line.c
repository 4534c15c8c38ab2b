/* line.c: many values in one text: "method=eva damping=0.01 skip_layers='^fc [12]$'".
 *
 *   line  = { blank } [ word { blank { blank } word } { blank } ]
 *   word  = NAME "=" VALUE        VALUE: all up to a blank; or, if it begins with ' or ", all up to the
 *                                 next of that kind, behind which a blank or the end must follow
 *
 * In come the options of a model and the values of one layer over them; all of a line is taken, or
 * nothing of it.  There is no other escape: a value with both kinds of quotes is for ng_options_set. */
#include "option/option.h"

/* Cut at its equals sign and out of its quotes, hence a copy: the line is the caller's. */
typedef struct word {
  char name[64]; /* longer than any */
  char value[NG_TEXT_ROOM];
} word;

/* What a line has set so far; nothing may be set twice in one: the last would win, and the first would
 * look as if it counted. */
typedef struct seen {
  ng_option_mask options;
  bool method;
} seen;

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static const char *skip_blanks(const char *at) {
  while (is_blank(*at)) {
    at++;
  }
  return at;
}

/* *at stands behind the equals sign, and then behind the value. */
static ng_status next_value(const char **at, word *w, char *message, size_t size) {
  const char quote = **at == '\'' || **at == '"' ? **at : 0;
  const char *from = quote == 0 ? *at : *at + 1, *to = from;
  while (*to != 0 && (quote == 0 ? !is_blank(*to) : *to != quote)) {
    to++;
  }
  if (quote != 0 && *to == 0) {
    return ng_fail_to(message, size, NG_ERR_ARG, "%s: %s has no closing %c", w->name,
                      ng_quote(*at).text, quote);
  }
  *at = quote == 0 ? to : to + 1;
  if (**at != 0 && !is_blank(**at)) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "%s: expected a blank behind the closing %c, not '%s'", w->name, quote,
                      ng_quote(*at).text);
  }
  const size_t bytes = (size_t)(to - from);
  if (bytes >= sizeof w->value) {
    return ng_fail_to(message, size, NG_ERR_ARG, "%s: %zu bytes, expected at most %d", w->name,
                      bytes, NG_TEXT_ROOM - 1);
  }
  memcpy(w->value, from, bytes);
  w->value[bytes] = 0;
  return NG_OK;
}

/* The next NAME=VALUE of a text that has one; *at moves behind it. */
static ng_status next_word(const char **at, word *w, char *message, size_t size) {
  size_t n = 0;
  while ((*at)[n] != 0 && (*at)[n] != '=' && !is_blank((*at)[n])) {
    n++;
  }
  if ((*at)[n] != '=' || n == 0) {
    return ng_fail_to(message, size, NG_ERR_ARG, "'%s': expected NAME=VALUE", ng_quote(*at).text);
  }
  const size_t kept = n < sizeof w->name ? n : sizeof w->name - 1; /* enough not to be found */
  memcpy(w->name, *at, kept);
  w->name[kept] = 0;
  *at += n + 1;
  return next_value(at, w, message, size);
}

static ng_status twice(const char *name, char *message, size_t size) {
  return ng_fail_to(message, size, NG_ERR_ARG, "%s is given twice", name);
}

/* A layer has the family that the model's method has. */
static ng_status take_method(ng_options *full, const word *w, seen *s, bool of_layer, char *message,
                             size_t size) {
  if (of_layer) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "method holds for the whole model, not for a layer");
  }
  if (s->method) return twice("method", message, size);
  s->method = true;
  return ng_options_choose(full, w->value, message, size);
}

static ng_status take_option(ng_options *full, const word *w, seen *s, bool of_layer, char *message,
                             size_t size) {
  const ng_option_row *row = NULL;
  const ng_status st = ng_option_lookup(w->name, &row, message, size);
  if (st != NG_OK) return st;
  const int32_t id = (int32_t)(row - ng_option_table);
  if (of_layer && !row->per_layer) {
    return ng_fail_to(message, size, NG_ERR_ARG, "%s holds for the whole model, not for a layer",
                      row->name);
  }
  if (ng_bits_has(s->options.word, id)) return twice(row->name, message, size);
  ng_bits_add(s->options.word, id);
  return ng_option_read(row, w->value, full, message, size);
}

static ng_status take_line(ng_options *full, const char *line, seen *s, bool of_layer,
                           char *message, size_t size) {
  word w;
  memset(s, 0, sizeof *s);
  for (const char *at = skip_blanks(line); *at != 0; at = skip_blanks(at)) {
    ng_status st = next_word(&at, &w, message, size);
    if (st == NG_OK) {
      st = ng_is(w.name, "method") ? take_method(full, &w, s, of_layer, message, size)
                                   : take_option(full, &w, s, of_layer, message, size);
    }
    if (st != NG_OK) return st;
  }
  return NG_OK;
}

ng_status ng_options_set_line(ng_options *o, const char *line, char *message, size_t message_size) {
  seen s;
  if (o == NULL || line == NULL) {
    return ng_fail_to(message, message_size, NG_ERR_ARG, "ng_options_set_line: %s is NULL",
                      o == NULL ? "the object" : "line");
  }
  ng_options full = *o;
  const ng_status st = take_line(&full, line, &s, false, message, message_size);
  if (st == NG_OK) *o = full;
  return st;
}

/* The result is checked with the layer's values in place: a layer may choose what the model's other
 * values would not allow.  A schedule is not held against values that it will not move. */
ng_status ng_options_override(ng_options *o, const char *text, ng_option_mask *mask, char *message,
                              size_t size) {
  ng_options full = *o;
  seen s; /* the caller's mask stays as it is if this fails */
  ng_status st = take_line(&full, text == NULL ? "" : text, &s, true, message, size);
  if (st == NG_OK) st = ng_options_verify(&full, &s.options, message, size);
  if (st != NG_OK) return st;
  *o = full;
  if (mask != NULL) *mask = s.options;
  return NG_OK;
}
