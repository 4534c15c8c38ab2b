/* settings.c: defaults of settings, and conversion from and to text by the table in settings_table.h. */
#include "settings.h"
#include "io.h"
#include "lr.h"
#include "schedule.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROW(kind, field, name, value, standard, lower, upper, fixed, help)                         \
  {CLI_##kind, name, standard, lower, upper, offsetof(settings, field), (fixed) != 0},
const settings_row settings_rows[] = {SETTINGS_TABLE(ROW)};
#undef ROW
const int settings_rows_count = (int)(sizeof settings_rows / sizeof settings_rows[0]);

enum { NAMES = 256 };

/* ---- memory ----------------------------------------------------------------------------------*/

static void *get_field(const settings *s, const settings_row *row) {
  return (char *)(uintptr_t)s + row->offset;
}

static void set_text_field(settings *s, const settings_row *row, const char *value) {
  char **at = get_field(s, row), *fresh = cli_copy_text(value);
  free(*at);
  *at = fresh;
}

void settings_free(settings *s) {
  for (int i = 0; i < settings_rows_count; i++)
    if (settings_rows[i].kind == CLI_TEXT) free(*(char **)get_field(s, &settings_rows[i]));
  for (int i = 0; i < s->n_library; i++) {
    free(s->library[i].name);
    free(s->library[i].value);
  }
  free(s->library);
  memset(s, 0, sizeof *s);
}

void settings_copy(settings *to, const settings *from) {
  settings copy = *from;
  for (int i = 0; i < settings_rows_count; i++) {
    if (settings_rows[i].kind != CLI_TEXT) continue;
    *(char **)get_field(&copy, &settings_rows[i]) =
        cli_copy_text(*(char **)get_field(from, &settings_rows[i]));
  }
  copy.library = cli_alloc((size_t)from->n_library, sizeof *copy.library);
  for (int i = 0; i < from->n_library; i++) {
    copy.library[i].name = cli_copy_text(from->library[i].name);
    copy.library[i].value = cli_copy_text(from->library[i].value);
  }
  *to = copy;
}

/* ---- names -----------------------------------------------------------------------------------*/

const settings_row *settings_find(const char *name) {
  for (int i = 0; i < settings_rows_count; i++)
    if (cli_is_same_name(name, settings_rows[i].name)) return &settings_rows[i];
  return NULL;
}

/* Return the canonical name of a setting or of an option of the library; NULL: unknown. */
static const char *get_canonical_name(const char *name) {
  const settings_row *row = settings_find(name);
  ng_option_info info;
  if (row != NULL) return row->name;
  return cli_find_option(name, &info) ? info.name : NULL;
}

bool settings_is_same_name(const char *a, const char *b) {
  const char *of_a = get_canonical_name(a), *of_b = get_canonical_name(b);
  return cli_is_same_name(of_a != NULL ? of_a : a, of_b != NULL ? of_b : b);
}

static int write_unknown_name(const char *name, char *message, size_t size) {
  const char *names[NAMES];
  int n = 0;
  for (int i = 0; i < settings_rows_count; i++)
    names[n++] = settings_rows[i].name;
  for (int i = 0; i < ng_option_count() && n < NAMES; i++) {
    ng_option_info info = {.struct_size = sizeof info};
    if (ng_option_at(i, &info) == NG_OK) names[n++] = info.name;
  }
  const char *near = cli_find_nearest(name, names, n);
  (void)snprintf(message, size, "unknown setting%s%s", near != NULL ? "; the nearest is " : "",
                 near != NULL ? near : "");
  return CLI_BAD;
}

/* ---- words -----------------------------------------------------------------------------------*/

bool settings_is_in_list(const char *word, const char *list) {
  const size_t n = strlen(word);
  for (; *list != 0; list += list[0] == '|') {
    const size_t m = strcspn(list, "|");
    if (n == m && strncmp(list, word, n) == 0) return true;
    list += m;
  }
  return false;
}

static int check_method(const char *value, char *message, size_t size) {
  ng_method_info info;
  if (strcmp(value, "sgd") == 0 || strcmp(value, "adamw") == 0) return CLI_OK;
  if (cli_find_method(value, &info) >= 0) return CLI_OK;
  const char *names[CLI_METHODS + 2] = {"sgd", "adamw"};
  const char *near = cli_find_nearest(value, names, 2 + cli_list_methods(names + 2, CLI_METHODS));
  (void)snprintf(message, size, "unknown method '%s'; %s%s", value,
                 near != NULL ? "the nearest is " : "sgd, adamw and `natgrad info --methods`",
                 near != NULL ? near : "");
  return CLI_BAD;
}

static int check_word(const char *name, const char *value, char *message, size_t size) {
  if (strcmp(name, "method") == 0) return check_method(value, message, size);
  if (strcmp(name, "lr-schedule") == 0) {
    lr_schedule parsed;
    return lr_parse(value, &parsed, message, size);
  }
  if (strcmp(name, "schedule") == 0) {
    const double base[SCHEDULED] = {1, 1, 1, 1, 1};
    double moved[SCHEDULED];
    return schedule_evaluate(value, base, 0, moved, message, size);
  }
  static const char *const choice[][2] = {{"optimizer", "sgd|adamw"},
                                          {"augment", "auto|none|crop|flip|crop+flip"},
                                          {"fisher", "empirical|sampled"},
                                          {"adjust-momentum", "none|ratio|proportional"},
                                          {"rescale-weights", "none|shrink|always"},
                                          {"damping-rule", "none|keep-ratio"}};
  for (size_t i = 0; i < sizeof choice / sizeof choice[0]; i++) {
    if (strcmp(name, choice[i][0]) != 0 || settings_is_in_list(value, choice[i][1])) continue;
    (void)snprintf(message, size, "'%s' is none of %s", value, choice[i][1]);
    return CLI_BAD;
  }
  return CLI_OK;
}

/* ---- one value -------------------------------------------------------------------------------*/

/* Set a setting of the trainer. Setting `epochs` resets `steps`, and vice versa. */
static int set_setting(settings *s, const settings_row *row, const char *value, char *message,
                       size_t size) {
  const bool computed = row->kind == CLI_REAL && strcmp(row->standard, "default") == 0;
  int rc = CLI_OK;
  if (row->kind == CLI_TEXT) {
    rc = check_word(row->name, value, message, size);
    if (rc == CLI_OK) set_text_field(s, row, value);
  } else if (computed && strcmp(value, "default") == 0) {
    *(double *)get_field(s, row) = -1.0;
  } else {
    rc = cli_parse(row->kind, value, row->lower, row->upper, get_field(s, row), message, size);
  }
  if (strcmp(row->name, "epochs") == 0 && s->epochs > 0.0) s->steps = 0;
  if (strcmp(row->name, "steps") == 0 && s->steps > 0) s->epochs = 0.0;
  return rc;
}

static int set_library_option(settings *s, const char *name, const char *value, char *message,
                              size_t size) {
  ng_options *o = NULL;
  if (strcmp(name, "update") == 0) {
    (void)snprintf(message, size, "the trainer sets this option; use optimizer");
    return CLI_BAD;
  }
  ng_status st = ng_options_create(NULL, message, size, &o);
  if (st >= 0) st = ng_options_set(o, name, value, message, size);
  ng_options_destroy(&o);
  if (st < 0) {
    /* remove the name from the message, because the caller adds it */
    const size_t n = strlen(name);
    if (strncmp(message, name, n) == 0 && strncmp(message + n, ": ", 2) == 0)
      memmove(message, message + n + 2, strlen(message + n + 2) + 1);
    return CLI_BAD;
  }
  int i = 0;
  while (i < s->n_library && strcmp(s->library[i].name, name) != 0)
    i++;
  if (i == s->n_library) {
    s->library = cli_append_zeroed(s->library, (size_t)i, sizeof *s->library);
    s->library[i].name = cli_copy_text(name);
    s->n_library = i + 1;
  } else {
    free(s->library[i].value);
  }
  s->library[i].value = cli_copy_text(value);
  return CLI_OK;
}

int settings_try_set(settings *s, const char *name, const char *value, char *message, size_t size) {
  const settings_row *row = settings_find(name);
  if (!ngio_is_utf8(value)) { /* a text that is not UTF-8 could not be written to config.json */
    (void)snprintf(message, size, "'%s' is not UTF-8", ngio_printable(value).text);
    return CLI_BAD;
  }
  if (row != NULL) return set_setting(s, row, value, message, size);
  ng_option_info info;
  if (!cli_find_option(name, &info)) return write_unknown_name(name, message, size);
  return set_library_option(s, info.name, value, message, size);
}

int settings_set_or_report(settings *s, const char *where, const char *name, const char *value) {
  char message[CLI_MESSAGE] = "";
  if (settings_try_set(s, name, value, message, sizeof message) == CLI_OK) return CLI_OK;
  return cli_fail("%s%s%s: %s", where != NULL ? where : "--", where != NULL ? ": " : "", name,
                  message);
}

int settings_apply(settings *s, const cli_setting *given, int n) {
  bool epochs = false, steps = false;
  int rc = CLI_OK;
  for (int i = 0; i < n && rc == CLI_OK; i++) {
    epochs = epochs || strcmp(given[i].name, "epochs") == 0;
    steps = steps || strcmp(given[i].name, "steps") == 0;
    rc = settings_set_or_report(s, NULL, given[i].name, given[i].value);
  }
  if (rc == CLI_OK && epochs && steps) rc = cli_fail("--steps: give it or --epochs, not both");
  if (rc == CLI_OK && steps && s->steps == 0) rc = cli_fail("--steps: expected at least 1");
  if (rc == CLI_OK && epochs && s->epochs <= 0.0) rc = cli_fail("--epochs: expected more than 0");
  return rc;
}

void settings_init(settings *s) {
  char message[CLI_MESSAGE] = "";
  memset(s, 0, sizeof *s);
  for (int i = 0; i < settings_rows_count; i++)
    (void)set_setting(s, &settings_rows[i], settings_rows[i].standard, message, sizeof message);
  /* settings_create_options will refuse an unknown method, as it does for library options */
  const char *method = getenv("NG_METHOD");
  if (method != NULL) set_text_field(s, settings_find("method"), method);
}

void settings_format_real(double v, char *text, size_t size) {
  (void)snprintf(text, size, "%.15g", v);
  if (strtod(text, NULL) != v) (void)snprintf(text, size, "%.17g", v);
}

bool settings_get(const settings *s, const char *name, char *value, size_t size) {
  const settings_row *row = settings_find(name);
  if (row == NULL) return false;
  const void *at = get_field(s, row);
  if (row->kind == CLI_TEXT)
    (void)snprintf(value, size, "%s", *(char *const *)at);
  else if (row->kind == CLI_WHOLE)
    (void)snprintf(value, size, "%lld", (long long)*(const int64_t *)at);
  else if (row->kind == CLI_FLAG)
    (void)snprintf(value, size, "%s", *(const bool *)at ? "true" : "false");
  else if (*(const double *)at < 0.0)
    (void)snprintf(value, size, "default");
  else
    settings_format_real(*(const double *)at, value, size);
  return true;
}
