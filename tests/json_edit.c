/* json_edit.c: see json_edit.h. */
#include "json_edit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void write_raw(ngio_out *o, const char *key, const char *text) {
  ngio_put_null(o, key); /* the comma and the key */
  o->used -= strlen("null");
  ngio_out_put(o, text);
}

void json_write(ngio_out *o, const char *key, const ngio_value *v, const json_edit *edit) {
  const int map = ngio_is(v, NGIO_OBJECT), here = edit != NULL && edit->at == v;
  if (here && edit->key != NULL) key = edit->key;
  if (here && edit->with != NULL) write_raw(o, key, edit->with);
  if (here && (edit->with != NULL || (edit->add == NULL && edit->key == NULL && !edit->reverse)))
    return;
  switch (v->kind) {
  case NGIO_NULL:
    ngio_put_null(o, key);
    return;
  case NGIO_FALSE:
  case NGIO_TRUE:
    ngio_put_flag(o, key, v->kind == NGIO_TRUE);
    return;
  case NGIO_INTEGER:
    ngio_put_integer(o, key, v->is.integer);
    return;
  case NGIO_REAL:
    ngio_put_real(o, key, v->is.real);
    return;
  case NGIO_STRING:
    ngio_put_text(o, key, v->is.text);
    return;
  case NGIO_ARRAY:
  case NGIO_OBJECT:
    break;
  }
  ngio_open(o, key, map ? '{' : '[');
  const ngio_value **inner = calloc(v->count + 1, sizeof(void *));
  if (inner == NULL) abort();
  uint32_t n = 0;
  for (const ngio_value *x = ngio_first(v); x != NULL; x = ngio_next(v, x))
    inner[n++] = x;
  for (uint32_t i = 0; i < n; i++) {
    const ngio_value *x = inner[here && edit->reverse ? n - 1 - i : i];
    json_write(o, x->key, x, edit);
  }
  free(inner);
  if (here && edit->add != NULL) write_raw(o, map ? edit->add_key : NULL, edit->add);
  ngio_shut(o, map ? '}' : ']');
}

/* Return the parent of the value at `path`; store the last key or position in `last`. */
static const ngio_value *parent_of(const ngio_value *v, const char *path, char last[256]) {
  for (const char *bar; (bar = strchr(path, '|')) != NULL; path = bar + 1) {
    (void)snprintf(last, 256, "%.*s", (int)(bar - path), path);
    v = ngio_is(v, NGIO_ARRAY) ? ngio_at(v, strtoul(last, NULL, 10)) : ngio_get(v, last);
  }
  (void)snprintf(last, 256, "%s", path);
  return v;
}

const ngio_value *json_find(const ngio_value *root, const char *path) {
  char last[256];
  const ngio_value *v = parent_of(root, path, last);
  return ngio_is(v, NGIO_ARRAY) ? ngio_at(v, strtoul(last, NULL, 10)) : ngio_get(v, last);
}

ngio_json *json_must_parse(const char *text, size_t n) {
  ngio_json *json;
  char message[160];
  if (ngio_json_parse(text, n, &json, message, sizeof message) == NGIO_OK) return json;
  (void)fprintf(stderr, "json_must_parse: %s: %.*s\n", message, (int)n, text);
  abort();
}

char *json_edit_copy(const char *text, const char *path, const char *with) {
  ngio_json *json = json_must_parse(text, strlen(text));
  ngio_out o = {0};
  char last[256];
  const ngio_value *root = ngio_json_root(json), *in = parent_of(root, path, last);
  json_edit edit = {.at = json_find(root, path), .with = with};
  if (edit.at == NULL && with != NULL) edit = (json_edit){.at = in, .add = with, .add_key = last};
  if (edit.at == NULL) {
    (void)fprintf(stderr, "json_edit_copy: there is no %s\n", path);
    abort();
  }
  json_write(&o, NULL, root, &edit);
  ngio_out_bytes(&o, "", 1);
  if (o.lost) abort();
  ngio_json_free(&json);
  return o.text;
}

void json_edit_text(char **text, const char *path, const char *with) {
  char *changed = json_edit_copy(*text, path, with);
  free(*text);
  *text = changed;
}
