/* lines.c: the option per_layer, which gives lines of options to the layers that fit globs.
 *
 *   text  = entry { ";" entry }
 *   entry = GLOBS ": " LINE        GLOBS: a list as in glob.c, without ';' and ": "; LINE: as in line.c
 *
 * A layer gets the line of the first entry whose globs fit the layer. */
#include "option/option.h"

/* A blank must follow the colon between globs and line, because names of layers may contain colons. */
bool ng_lines_next(const char **rest, ng_layer_line *e) {
  if (*rest == NULL) return false;
  const char *from = *rest + strspn(*rest, NG_BLANKS);
  const size_t n = strcspn(from, ";");
  (void)snprintf(e->globs, sizeof e->globs, "%.*s", (int)n, from);
  *rest = from[n] == 0 ? NULL : from + n + 1;
  char *colon = strchr(e->globs, ':');
  while (colon != NULL && !ng_is_blank(colon[1])) {
    colon = strchr(colon + 1, ':');
  }
  e->line = colon == NULL || colon == e->globs ? NULL : colon + 1;
  if (e->line != NULL) *colon = 0;
  return true;
}

/* Check the entries and their globs.  ng_options_check checks the lines, when the model's options are set. */
ng_status ng_lines_check(const char *option, const char *text, char *message, size_t size) {
  ng_layer_line e;
  ng_status st = NG_OK;
  for (const char *rest = text[0] == 0 ? NULL : text; st == NG_OK && ng_lines_next(&rest, &e);) {
    if (e.line == NULL) {
      return ng_fail_to(message, size, NG_ERR_ARG,
                        "%s: '%s': expected GLOBS: NAME=VALUE ..., with a blank behind the colon",
                        option, ng_shorten(e.globs).text);
    }
    st = ng_globs_check(option, e.globs, message, size);
  }
  return st;
}

ng_status ng_lines_check_options(const ng_options *o, ng_options_rule rule, char *message,
                                 size_t size) {
  char why[NG_MESSAGE] = "";
  ng_layer_line e;
  for (const char *rest = o->per_layer[0] == 0 ? NULL : o->per_layer; ng_lines_next(&rest, &e);) {
    ng_options own = *o;
    ng_status st = ng_options_override(&own, e.line, why, sizeof why);
    if (st == NG_OK) st = rule(&own, why, sizeof why);
    if (st != NG_OK) {
      return ng_fail_to(message, size, st, "per_layer: '%s': %s", ng_shorten(e.globs).text, why);
    }
  }
  return NG_OK;
}
