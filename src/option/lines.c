/* lines.c: parse the option per_layer, which gives lines of options to the layers that fit globs.
 *
 *   text  = entry { ";" entry }
 *   entry = GLOBS ": " LINE        GLOBS: a list as in glob.c, without ';' and ": "; LINE: as in line.c
 *
 * A layer gets the line of the first entry whose globs fit the layer. */
#include "option/option.h"

typedef struct entry {
  bool used;          /* ng_lines_find has returned the line */
  char *globs, *line; /* in ng_lines.text */
} entry;

struct ng_lines {
  entry *list;
  char *text;    /* copy of the option, in which a 0 follows all globs and lines */
  int32_t count; /* number of entries */
  size_t bytes;  /* of the object with its entries and text */
};

void ng_lines_close(ng_lines **lines) {
  ng_lines *l = *lines;
  if (l == NULL) return;
  ng_plain_free(NULL, l, l->bytes);
  *lines = NULL;
}

/* Allocate the object, its entries and a copy of the text in one allocation. */
static ng_lines *copy_lines(const char *text) {
  const size_t length = strlen(text) + 1;
  int32_t count = 1;
  for (const char *c = text; *c != 0; c++) {
    count += *c == ';';
  }
  const size_t lists = sizeof(ng_lines) + (size_t)count * sizeof(entry);
  ng_lines *l = ng_plain_alloc(NULL, lists + length);
  if (l == NULL) return NULL;
  memset(l, 0, lists);
  l->bytes = lists + length;
  l->count = count;
  l->list = (entry *)(l + 1);
  l->text = (char *)(l->list + count);
  memcpy(l->text, text, length);
  return l;
}

/* Return the colon between globs and line; NULL if there is none.  A blank must follow it, because names of layers may
 * contain colons. */
static char *colon_of(char *at) {
  while (*at != 0 && !(*at == ':' && ng_is_blank(at[1]))) {
    at++;
  }
  return *at == 0 ? NULL : at;
}

static ng_status split_entry(entry *e, char *at, char *message, size_t size) {
  while (ng_is_blank(*at)) {
    at++;
  }
  char *colon = colon_of(at);
  if (colon == NULL || colon == at) {
    return ng_fail_to(
        message, size, NG_ERR_ARG,
        "per_layer: '%s': expected GLOBS: NAME=VALUE ..., with a blank behind the colon",
        ng_shorten(at).text);
  }
  *colon = 0;
  e->globs = at;
  e->line = colon + 1;
  return ng_globs_check("per_layer", at, message, size);
}

ng_status ng_lines_open(const char *text, ng_lines **out, char *message, size_t size) {
  *out = NULL;
  if (text[0] == 0) return NG_OK;
  ng_lines *l = copy_lines(text);
  if (l == NULL) return ng_fail_to(message, size, NG_ERR_NOMEM, "per_layer: no memory");
  ng_status st = NG_OK;
  char *at = l->text;
  for (int32_t i = 0; i < l->count && st == NG_OK; i++) {
    char *end = strchr(at, ';');
    if (end != NULL) *end = 0;
    st = split_entry(&l->list[i], at, message, size);
    at = end == NULL ? at : end + 1;
  }
  if (st == NG_OK) *out = l;
  if (st != NG_OK) ng_lines_close(&l);
  return st;
}

const char *ng_lines_find(ng_lines *l, const ng_layer *d) {
  for (int32_t i = 0; l != NULL && i < l->count; i++) {
    if (!ng_globs_fit(l->list[i].globs, d)) continue;
    l->list[i].used = true;
    return l->list[i].line;
  }
  return NULL;
}

const char *ng_lines_find_unused(const ng_lines *l) {
  for (int32_t i = 0; l != NULL && i < l->count; i++) {
    if (!l->list[i].used) return l->list[i].globs;
  }
  return NULL;
}

ng_status ng_lines_each(const ng_options *o, ng_lines_check check, char *message, size_t size) {
  char why[NG_MESSAGE] = "";
  ng_lines *l;
  ng_status st = ng_lines_open(o->per_layer, &l, message, size);
  if (st != NG_OK) return st;
  for (int32_t i = 0; l != NULL && i < l->count && st == NG_OK; i++) {
    ng_options own = *o;
    st = ng_options_override(&own, l->list[i].line, why, sizeof why);
    if (st == NG_OK && check != NULL) st = check(&own, why, sizeof why);
    if (st != NG_OK) {
      st = ng_fail_to(message, size, st, "per_layer: '%s': %s", ng_shorten(l->list[i].globs).text,
                      why);
    }
  }
  ng_lines_close(&l);
  return st;
}

/* Check the form of the text and the globs.  ng_options_check checks the lines, when the model's options are set. */
ng_status ng_lines_check_text(const char *text, char *message, size_t size) {
  ng_lines *l;
  const ng_status st = ng_lines_open(text, &l, message, size);
  ng_lines_close(&l);
  return st;
}
