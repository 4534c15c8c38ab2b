/* settings_json.c: read and write settings as a JSON object: --config FILE.json and DIR/config.json.
 *
 *   {"model": "lenet", "lr": 0.1, "nesterov": true, "damping": 0.01}
 *
 * A written file contains all settings and all options of the library. So if it is read, other defaults or other
 * environment variables do not change the run. */
#include "settings.h"
#include "disk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUE = 4096 };

int settings_read_file(settings *s, const char *path) {
  char *text = NULL;
  if (disk_read_text(path, &text) != CLI_OK) return CLI_BAD;
  const int rc = settings_parse_json(s, text, path);
  free(text);
  return rc;
}

int settings_parse_json(settings *s, const char *text, const char *path) {
  ngio_json *json = NULL;
  int rc = cli_json_parse(path, text, strlen(text), &json);
  if (rc != CLI_OK) return rc;
  const ngio_value *o = ngio_json_root(json);
  if (!ngio_is(o, NGIO_OBJECT)) rc = cli_fail("%s: expected a JSON object of settings", path);
  bool epochs = false, steps = false;
  for (const ngio_value *v = ngio_first(o); v != NULL; v = ngio_next(o, v)) {
    const char *name = v->key;
    char number[64];
    if (rc == CLI_OK && strcmp(name, "schema") == 0 && ngio_integer_of(v) != 1)
      rc = cli_fail("%s: schema: expected 1", path);
    /* the members "schema" and "natgrad" are not settings */
    if (rc != CLI_OK || settings_is_in_list(name, "schema|natgrad")) continue;
    const char *value = cli_json_text(v, number, sizeof number);
    if (value == NULL)
      rc = cli_fail("%s: %s: expected a text, a number, true or false", path, name);
    else
      rc = settings_set_or_report(s, path, name, value);
    for (const ngio_value *w = ngio_first(o); w != v && rc == CLI_OK; w = ngio_next(o, w))
      if (settings_is_same_name(w->key, name))
        rc = cli_fail("%s: %s and %s are the same setting", path, w->key, name);
    epochs = epochs || (strcmp(name, "epochs") == 0 && s->epochs > 0.0);
    steps = steps || (strcmp(name, "steps") == 0 && s->steps > 0);
  }
  if (rc == CLI_OK && epochs && steps)
    rc = cli_fail("%s: steps: give it or epochs, not both", path);
  ngio_json_free(&json);
  return rc;
}

/* ---- writing ---------------------------------------------------------------------------------*/

/* Add a member. A number is written with the fewest digits that read back as the same number. */
static void add_member(ngio_out *o, const char *name, const char *value, bool quoted) {
  char key[64];
  cli_replace_separators(key, sizeof key, name, '_');
  ngio_put_key(o, key);
  if (quoted)
    ngio_out_string(o, value);
  else
    ngio_out_put(o, value);
}

static void add_library_options(ngio_out *out, const settings *s, const ng_options *o) {
  for (int i = 0; i < ng_option_count(); i++) {
    char value[VALUE] = "";
    ng_option_info info = {.struct_size = sizeof info};
    if (ng_option_at(i, &info) != NG_OK || strcmp(info.name, "update") == 0 ||
        !settings_applies(s, info.name) ||
        ng_options_get(o, info.name, value, sizeof value) != NG_OK)
      continue;
    if (info.type == NG_OPTION_BOOL)
      (void)snprintf(value, sizeof value, "%s", strcmp(value, "0") == 0 ? "false" : "true");
    add_member(out, info.name, value, info.type == NG_OPTION_CHOICE || info.type == NG_OPTION_TEXT);
  }
}

int settings_write_json(const settings *s, const char *path, char **text) {
  ng_options *o = NULL;
  char value[VALUE] = "", version[128];
  ngio_out out = {.indent = 1};
  *text = NULL;
  if (settings_create_options(s, &o) != CLI_OK) return CLI_BAD;
  settings full = *s; /* a shallow copy that shares its texts with *s, so only *s is freed */
  full.lr = settings_choose_lr(s);
  cli_format_version(version, sizeof version);
  ngio_open(&out, NULL, '{');
  ngio_put_integer(&out, "schema", 1);
  ngio_put_text(&out, "natgrad", version);
  for (int i = 0; i < settings_rows_count; i++) {
    const settings_row *row = &settings_rows[i];
    if (strcmp(row->name, "resume") == 0) continue; /* "resume" is not a property of the run */
    (void)settings_get(&full, row->name, value, sizeof value);
    add_member(&out, row->name, value, row->kind == CLI_TEXT || strcmp(value, "default") == 0);
  }
  add_library_options(&out, s, o);
  ng_options_destroy(&o);
  ngio_shut(&out, '}');
  ngio_out_bytes(&out, "\n", 2);
  if (!out.lost) {
    *text = out.text;
    return CLI_OK;
  }
  ngio_out_free(&out);
  return cli_fail("%s: no memory", path);
}
