/* line.c: set several options from one text: "method=eva damping=0.01 skip_layers='fc1, head 2'".
 *
 *   line  = { blank } [ word { blank { blank } word } { blank } ]
 *   word  = NAME "=" VALUE        VALUE: the text up to the next blank, or a text in '..' or ".."
 *
 * A quote cannot be escaped, so a value with both kinds of quotes needs ng_options_set.  If a word is wrong, the whole
 * line has no effect. */
#include "option/option.h"

#include <stdlib.h>

/* A line of options that is being parsed, and the options that it has set so far. */
typedef struct line_reader {
  const char *at;           /* the text that is not parsed yet */
  char name[64];            /* NAME of the current word; no option has a longer name */
  char value[NG_TEXT_SIZE]; /* VALUE of the current word */
  /* the line belongs to a layer, so it may only set options with per_layer */
  bool of_layer;
  /* what the line has set so far: each option, and a method */
  bool is_set[NG_OPTION_COUNT], has_method;
  ng_options options; /* receives the values */
  char *message;      /* receives an error; `size` bytes */
  size_t size;
} line_reader;

/* Copy the VALUE at r->at, after the equals sign, to r->value, and skip the blanks after the value. */
static ng_status read_value(line_reader *r) {
  const char quote = *r->at == '\'' || *r->at == '"' ? *r->at : 0;
  const char *from = quote == 0 ? r->at : r->at + 1, *to = from;
  while (*to != 0 && (quote == 0 ? !ng_is_blank(*to) : *to != quote)) {
    to++;
  }
  if (quote != 0 && *to == 0) {
    return ng_fail_to(r->message, r->size, NG_ERR_ARG, "%s: %s has no closing %c", r->name,
                      ng_shorten(r->at).text, quote);
  }
  r->at = quote == 0 ? to : to + 1;
  if (*r->at != 0 && !ng_is_blank(*r->at)) {
    return ng_fail_to(r->message, r->size, NG_ERR_ARG,
                      "%s: expected a blank behind the closing %c, not '%s'", r->name, quote,
                      ng_shorten(r->at).text);
  }
  const size_t bytes = (size_t)(to - from);
  if (bytes >= sizeof r->value) {
    return ng_fail_to(r->message, r->size, NG_ERR_ARG, "%s: %zu bytes, expected at most %d",
                      r->name, bytes, NG_TEXT_SIZE - 1);
  }
  memcpy(r->value, from, bytes);
  r->value[bytes] = 0;
  r->at += strspn(r->at, NG_BLANKS);
  return NG_OK;
}

/* Copy the NAME=VALUE at r->at to r->name and r->value. */
static ng_status read_word(line_reader *r) {
  const size_t n = strcspn(r->at, "=" NG_BLANKS);
  if (r->at[n] != '=' || n == 0) {
    return ng_fail_to(r->message, r->size, NG_ERR_ARG, "'%s': expected NAME=VALUE",
                      ng_shorten(r->at).text);
  }
  (void)snprintf(r->name, sizeof r->name, "%.*s", (int)ng_min64((int64_t)n, 63), r->at);
  r->at += n + 1;
  return read_value(r);
}

/* Set the option or method r->name to r->value. */
static ng_status set_word(line_reader *r) {
  const ng_option_row *row = NULL;
  bool *is_set = &r->has_method;
  if (!ng_is(r->name, "method")) {
    const ng_status st = ng_option_lookup(r->name, &row, r->message, r->size);
    if (st != NG_OK) return st;
    if (r->of_layer && !row->per_layer) {
      return ng_fail_to(r->message, r->size, NG_ERR_ARG,
                        "%s holds for the whole model, not for a layer", row->name);
    }
    is_set = &r->is_set[row - ng_option_table];
  }
  if (*is_set) {
    return ng_fail_to(r->message, r->size, NG_ERR_ARG, "%s is given twice",
                      row == NULL ? "method" : row->name);
  }
  *is_set = true;
  return ng_options_set(&r->options, r->name, r->value, r->message, r->size);
}

static ng_status read_line(line_reader *r) {
  ng_status st = NG_OK;
  r->at += strspn(r->at, NG_BLANKS);
  while (*r->at != 0 && st == NG_OK) {
    st = read_word(r);
    if (st == NG_OK) st = set_word(r);
  }
  return st;
}

ng_status ng_options_set_line(ng_options *o, const char *line, char *message, size_t size) {
  if (o == NULL || line == NULL) {
    return ng_fail_to(message, size, NG_ERR_ARG, "ng_options_set_line: %s is NULL",
                      o == NULL ? "the object" : "line");
  }
  line_reader r = {.at = line, .options = *o, .message = message, .size = size};
  const ng_status st = read_line(&r);
  if (st == NG_OK) *o = r.options;
  return st;
}

/* Check a layer's line that sets a method.  An option of the method that only the whole model can have must have the
 * same value in the model, except that the model's clip, update and ranks (without `statistics`) also hold for the layer.
 * Default values of the method are not compared, except radius: either all blocks ascend (SAM) or none. */
static ng_status check_method(const ng_options *full, char *message, size_t size) {
  ng_options row;
  ng_options_set_defaults(&row);
  ng_status st = ng_options_set_method(&row, full->base.method, message, size);
  for (int32_t i = 0; i < NG_OPTION_COUNT && st == NG_OK; i++) {
    const ng_option_row *r = &ng_option_table[i];
    char asked[64], is[64];
    const bool ranks = ng_is(r->group, "ranks") && i != NG_OPTION_statistics;
    const bool of_model = ranks || ng_is(r->group, "clip") || ng_is(r->group, "update");
    if (r->per_layer || r->type == NG_OPTION_TEXT || of_model) continue;
    if (!ng_option_write(r, &row, asked, sizeof asked)) continue;
    if (ng_is(asked, r->default_text) && i != NG_OPTION_radius) continue;
    if (ng_option_write(r, full, is, sizeof is) && ng_is(asked, is)) continue;
    st =
        ng_fail_to(message, size, NG_ERR_ARG,
                   "method = %s has %s = %s, which holds for the whole model; give it to the model",
                   full->base.method, r->name, asked);
  }
  return st;
}

/* During the line, options of the whole model count as given and per-layer options do not.  So a method in the line
 * sets every per-layer option, whose value in the model may belong to another curvature, and no other option. */
ng_status ng_options_override(ng_options *o, const char *text, char *message, size_t size) {
  if (text == NULL) return NG_OK;
  line_reader r = {.at = text, .of_layer = true, .options = *o, .message = message, .size = size};
  for (int32_t i = 0; i < NG_OPTION_COUNT; i++) {
    r.options.given[i] = !ng_option_table[i].per_layer;
  }
  ng_status st = read_line(&r);
  if (st == NG_OK && r.has_method) {
    r.options.own_method = true;
    st = check_method(&r.options, message, size);
  }
  if (st == NG_OK) st = ng_options_check_rules(&r.options, message, size);
  if (st != NG_OK) return st;
  memcpy(r.options.given, o->given, sizeof o->given);
  *o = r.options;
  return NG_OK;
}

/* ---- root_exponents --------------------------------------------------------------------------*/

static const char *skip_blanks(const char *at) { return at + strspn(at, " "); }

/* Read the exponents of one entry, from behind its ':'. Return the character after them; NULL: wrong. */
static const char *read_exponents(const char *at, long axes, int32_t axis, double *e) {
  long count = 0;
  for (at = skip_blanks(at); *at != 0 && *at != ';'; at = skip_blanks(at), count++) {
    char word[32] = "";
    const size_t length = strcspn(at, " ;");
    double value = -1.0;
    if (length < sizeof word) memcpy(word, at, length);
    const bool is_number = ng_read_real(word, &value) && value >= 0.0 && value <= 16.0;
    if (!is_number && strcmp(word, "*") != 0) return NULL;
    if (count == 0 || count == axis) *e = is_number ? value : -1.0;
    at += length;
  }
  return count == 1 || count == axes ? at : NULL;
}

bool ng_exponents_find(const char *text, int32_t axes, int32_t axis, double *e) {
  *e = -1.0;
  for (const char *at = skip_blanks(text); at != NULL && *at != 0;) {
    char *end;
    double unused;
    const long order = strtol(at, &end, 10);
    if (end == at || order < 1 || order > 4 || *end != ':') return false;
    at = read_exponents(end + 1, order, axis, order == axes ? e : &unused);
    if (at == NULL) return false;
    if (*at == ';') at = skip_blanks(at + 1);
  }
  return true;
}

ng_status ng_exponents_check(const char *option, const char *text, char *message, size_t size) {
  double e;
  if (ng_exponents_find(text, 1, 0, &e)) return NG_OK;
  return ng_fail_to(
      message, size, NG_ERR_ARG,
      "%s = \"%s\": expected entries \"K: E\" or \"K: E1 ... EK\", K from 1 to 4, E from "
      "0 to 16 or *, separated by ';'",
      option, ng_shorten(text).text);
}
