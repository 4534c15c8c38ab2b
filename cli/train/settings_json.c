/* settings_json.c: settings as a JSON object: --config FILE.json and DIR/config.json.
 *
 *   {"model": "lenet", "lr": 0.1, "nesterov": true, "damping": 0.01}
 *
 * A written file gives the same run when read: it has all options of the library, so that other defaults or
 * environments have no effect. */
#include "settings_table.h"
#include "disk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE = 512, VALUE = 4096 };

/* Information for readers, no settings. */
static bool about(const char *name) {
  return strcmp(name, "schema") == 0 || strcmp(name, "natgrad") == 0;
}

/* The value as command-line text; NULL: neither text nor number nor flag. */
static const char *text_of(const ngio_value *v, char *text, size_t size) {
  if (ngio_is(v, NGIO_STRING)) return ngio_text_of(v);
  if (ngio_is_flag(v)) return ngio_is(v, NGIO_TRUE) ? "true" : "false";
  if (!ngio_is_number(v)) return NULL;
  if (ngio_is(v, NGIO_INTEGER)) {
    (void)snprintf(text, size, "%lld", (long long)ngio_integer_of(v));
  } else {
    (void)snprintf(text, size, "%.17g", ngio_number_of(v));
  }
  return text;
}

/* Refuse two spellings of one setting. Unknown names are refused elsewhere, so the list is never longer than the
 * table. */
static int check_twice(const ngio_value *o, const char *path) {
  typedef struct key {
    const char *given, *name;
  } key;
  key *seen = cli_take(o->count, sizeof *seen);
  size_t n = 0;
  int rc = CLI_OK;
  for (const ngio_value *v = ngio_first(o); v != NULL; v = ngio_next(o, v)) {
    const char *given = v->key;
    const char *name = rc == CLI_OK ? settings_name(given) : NULL;
    for (size_t i = 0; name != NULL && i < n && rc == CLI_OK; i++) {
      if (strcmp(seen[i].name, name) == 0)
        rc = cli_bad("%s: %s and %s are the same setting", path, seen[i].given, given);
    }
    if (name != NULL) seen[n++] = (key){given, name};
  }
  free(seen);
  return rc;
}

int settings_read(settings *s, const char *path) {
  char *text = NULL;
  if (disk_read(path, &text) != CLI_OK) return CLI_BAD;
  const int rc = settings_parse(s, text, path);
  free(text);
  return rc;
}

int settings_parse(settings *s, const char *text, const char *path) {
  ngio_json *json = NULL;
  int rc = cli_json_parse(path, text, strlen(text), &json);
  if (rc != CLI_OK) return rc;
  const ngio_value *o = ngio_json_root(json);
  if (!ngio_is(o, NGIO_OBJECT)) rc = cli_bad("%s: expected a JSON object of settings", path);
  if (rc == CLI_OK) rc = check_twice(o, path);
  bool epochs = false, steps = false;
  for (const ngio_value *v = ngio_first(o); v != NULL; v = ngio_next(o, v)) {
    const char *name = v->key;
    char number[64], message[MESSAGE] = "";
    if (rc == CLI_OK && strcmp(name, "schema") == 0 && ngio_integer_of(v) != 1)
      rc = cli_bad("%s: schema: expected 1", path);
    if (rc != CLI_OK || about(name)) continue;
    const char *value = text_of(v, number, sizeof number);
    if (value == NULL) {
      rc = cli_bad("%s: %s: expected a text, a number, true or false", path, name);
    } else if (settings_put(s, name, value, message, sizeof message) != CLI_OK) {
      rc = cli_bad("%s: %s: %s", path, name, message);
    }
    epochs = epochs || (strcmp(name, "epochs") == 0 && s->epochs > 0.0);
    steps = steps || (strcmp(name, "steps") == 0 && s->steps > 0);
  }
  if (rc == CLI_OK && epochs && steps) rc = cli_bad("%s: steps: give it or epochs, not both", path);
  ngio_json_free(&json);
  return rc;
}

/* ---- writing ---------------------------------------------------------------------------------*/

/* Numbers keep the short form that reads back as the same number. */
static void add(FILE *f, const char *name, const char *value, bool quoted) {
  char key[64];
  cli_spell(key, sizeof key, name, '_');
  ngio_out text = {0};
  if (quoted) ngio_put_text(&text, NULL, value);
  ngio_out_bytes(&text, "", 1);
  (void)fprintf(f, ",\n  \"%s\": %s", key, !quoted ? value : text.lost ? "null" : text.text);
  ngio_out_free(&text);
}

static void add_library(FILE *f, const settings *s, const ng_options *o) {
  for (int i = 0; i < ng_option_count(); i++) {
    char value[VALUE] = "";
    ng_option_info info = {.struct_size = sizeof info};
    if (ng_option_at(i, &info) != NG_OK || strcmp(info.name, "update") == 0) continue;
    if (!settings_knows(s, info.name)) continue;
    if (ng_options_get(o, info.name, value, sizeof value) != NG_OK) continue;
    const bool quoted = info.type == NG_OPTION_CHOICE || info.type == NG_OPTION_TEXT;
    if (info.type == NG_OPTION_BOOL) {
      add(f, info.name, strcmp(value, "0") == 0 || strcmp(value, "false") == 0 ? "false" : "true",
          false);
    } else {
      add(f, info.name, value, quoted);
    }
  }
}

int settings_text(const settings *s, const char *path, char **text, size_t *size) {
  ng_options *o = NULL;
  char value[VALUE] = "";
  *text = NULL;
  FILE *f = open_memstream(text, size);
  if (f == NULL) return cli_bad("%s: no memory", path);
  if (settings_options(s, &o) != CLI_OK) {
    (void)fclose(f);
    free(*text);
    *text = NULL;
    return CLI_BAD;
  }
  settings full = *s; /* only looked at */
  full.lr = settings_lr(s);
  const int v = ng_version();
  char commit[64];
  cli_build("commit", commit, sizeof commit);
  (void)fprintf(f, "{\n  \"schema\": 1,\n  \"natgrad\": \"%d.%d.%d (%s)\"", v / 10000,
                v / 100 % 100, v % 100, commit);
  for (int i = 0; i < settings_rows_count; i++) {
    const settings_row *row = &settings_rows[i];
    if (strcmp(row->name, "resume") == 0)
      continue; /* it tells how the run started, not how it trains */
    (void)settings_get(&full, row->name, value, sizeof value);
    add(f, row->name, value,
        row->kind == SETTINGS_TEXT || row->kind == SETTINGS_WORD || strcmp(value, "default") == 0);
  }
  add_library(f, s, o);
  ng_options_destroy(&o);
  (void)fputs("\n}\n", f);
  if (fclose(f) == 0) return CLI_OK;
  free(*text);
  *text = NULL;
  return cli_bad("%s: no memory", path);
}
