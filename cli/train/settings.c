/* settings.c: the table of settings (settings_table.h) at work: defaults, one value from text and
 * back, the check of all against each other, and the options that the library is given.
 *
 * In come names and texts, wherever they were written; out go a struct that holds no nonsense, and
 * lines that say what is wrong with a name or a value. */
#include "settings.h"
#include "settings_rows.h"
#include "io.h"
#include "lr.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROW(kind, field, name, takes, standard, lower, upper, shapes, help)                        \
  {SETTINGS_##kind, name, standard, lower, upper, offsetof(settings, field), (shapes) != 0},
const settings_row settings_rows[] = {SETTINGS_TABLE(ROW)};
#undef ROW
const int settings_rows_count = (int)(sizeof settings_rows / sizeof settings_rows[0]);

enum { MESSAGE = 512, NAMES = 256 };

/* ---- memory ----------------------------------------------------------------------------------*/

static char *copy_text(const char *text) {
  const size_t n = strlen(text) + 1;
  char *out = cli_take(n, 1);
  memcpy(out, text, n);
  return out;
}

static void *place(const settings *s, const settings_row *row) {
  return (char *)(uintptr_t)s + row->offset;
}

static bool is_text(const settings_row *row) {
  return row->kind == SETTINGS_TEXT || row->kind == SETTINGS_WORD;
}

static void put_text(settings *s, const settings_row *row, const char *value) {
  char **at = place(s, row), *fresh = copy_text(value);
  free(*at);
  *at = fresh;
}

void settings_free(settings *s) {
  for (int i = 0; i < settings_rows_count; i++) {
    if (is_text(&settings_rows[i])) free(*(char **)place(s, &settings_rows[i]));
  }
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
    if (!is_text(&settings_rows[i])) continue;
    *(char **)place(&copy, &settings_rows[i]) = copy_text(*(char **)place(from, &settings_rows[i]));
  }
  copy.library = cli_take((size_t)from->n_library, sizeof *copy.library);
  for (int i = 0; i < from->n_library; i++) {
    copy.library[i].name = copy_text(from->library[i].name);
    copy.library[i].value = copy_text(from->library[i].value);
  }
  *to = copy;
}

/* ---- names -----------------------------------------------------------------------------------*/

/* `name` with '_' for '-', as the library's table and JSON spell it. */
void settings_spell(char *to, size_t size, const char *name) {
  (void)snprintf(to, size, "%s", name);
  for (; *to != 0; to++) {
    if (*to == '-') *to = '_';
  }
}

const settings_row *settings_find(const char *name) {
  char want[64], have[64];
  settings_spell(want, sizeof want, name);
  for (int i = 0; i < settings_rows_count; i++) {
    settings_spell(have, sizeof have, settings_rows[i].name);
    if (strcmp(want, have) == 0) return &settings_rows[i];
  }
  return NULL;
}

bool settings_library_option(const char *name, ng_option_info *info) {
  char want[64];
  settings_spell(want, sizeof want, name);
  for (int i = 0; i < ng_option_count(); i++) {
    memset(info, 0, sizeof *info);
    info->struct_size = sizeof *info;
    if (ng_option_at(i, info) == NG_OK && strcmp(info->name, want) == 0) return true;
  }
  return false;
}

static int unknown(const char *name, char *message, size_t size) {
  const char *names[NAMES];
  int n = 0;
  for (int i = 0; i < settings_rows_count; i++)
    names[n++] = settings_rows[i].name;
  for (int i = 0; i < ng_option_count() && n < NAMES; i++) {
    ng_option_info info = {.struct_size = sizeof info};
    if (ng_option_at(i, &info) == NG_OK) names[n++] = info.name;
  }
  const char *near = cli_nearest(name, names, n);
  (void)snprintf(message, size, "there is no such setting%s%s",
                 near != NULL ? "; the nearest is " : "", near != NULL ? near : "");
  return CLI_BAD;
}

/* ---- words -----------------------------------------------------------------------------------*/

static int one_of(const char *value, const char *choices, char *message, size_t size) {
  const size_t n = strlen(value);
  for (const char *c = choices; *c != 0;) {
    const size_t m = strcspn(c, "|");
    if (n == m && strncmp(c, value, n) == 0) return CLI_OK;
    c += m + (c[m] == '|');
  }
  (void)snprintf(message, size, "'%s' is none of %s", value, choices);
  return CLI_BAD;
}

static int method_form(const char *value, char *message, size_t size) {
  const char *names[NAMES] = {"sgd", "adamw"};
  int n = 2;
  for (int i = 0; i < ng_method_count() && n < NAMES; i++) {
    ng_method_info info = {.struct_size = sizeof info};
    if (ng_method_at(i, &info) == NG_OK) names[n++] = info.name;
  }
  for (int i = 0; i < n; i++) {
    if (strcmp(names[i], value) != 0) continue;
    ng_options o;
    if (i < 2) return CLI_OK;
    if (ng_options_init(&o) != NG_OK) return CLI_BAD;
    return ng_options_set_method(&o, value, message, size) < 0 ? CLI_BAD : CLI_OK;
  }
  const char *near = cli_nearest(value, names, n);
  (void)snprintf(message, size, "unknown method '%s'; %s%s", value,
                 near != NULL ? "the nearest is " : "sgd, adamw and `natgrad info --methods`",
                 near != NULL ? near : "");
  return CLI_BAD;
}

static int word_form(const char *name, const char *value, char *message, size_t size) {
  if (strcmp(name, "lr-schedule") == 0) {
    lr_schedule parsed;
    return lr_parse(value, &parsed, message, size);
  }
  return one_of(value,
                strcmp(name, "optimizer") == 0 ? "sgd|adamw"
                : strcmp(name, "augment") == 0 ? "auto|none|crop|flip|crop+flip"
                                               : "empirical|sampled",
                message, size);
}

/* ---- one value -------------------------------------------------------------------------------*/

static bool read_real(const char *text, double *out) {
  char *end = NULL;
  *out = strtod(text, &end);
  return end != text && *end == 0;
}

static int set_real(settings *s, const settings_row *row, const char *value, char *message,
                    size_t size) {
  double v = -1.0;
  const bool own = row->kind == SETTINGS_OWN && strcmp(value, "default") == 0;
  if (!own && (!read_real(value, &v) || !(v >= row->lower && v <= row->upper))) {
    const bool open = row->upper > 0.999 && row->upper < 1.0; /* %g would say 1 */
    (void)snprintf(message, size, "'%s' is no number from %g to %s%g", value, row->lower,
                   open ? "below " : "", open ? 1.0 : row->upper);
    return CLI_BAD;
  }
  *(double *)place(s, row) = v;
  return CLI_OK;
}

static int set_int(settings *s, const settings_row *row, const char *value, char *message,
                   size_t size) {
  char *end = NULL;
  errno = 0;
  const long long v = strtoll(value, &end, 10);
  if (end == value || *end != 0 || errno != 0 || (double)v < row->lower || (double)v > row->upper) {
    (void)snprintf(message, size, "'%s' is no whole number from %.0f to %.0f", value, row->lower,
                   row->upper);
    return CLI_BAD;
  }
  *(int64_t *)place(s, row) = v;
  return CLI_OK;
}

static int set_bool(settings *s, const settings_row *row, const char *value, char *message,
                    size_t size) {
  static const char *const word[2][4] = {{"false", "0", "off", "no"}, {"true", "1", "on", "yes"}};
  for (int v = 0; v < 2; v++) {
    for (int i = 0; i < 4; i++) {
      if (strcmp(value, word[v][i]) != 0) continue;
      *(bool *)place(s, row) = v == 1;
      return CLI_OK;
    }
  }
  (void)snprintf(message, size, "'%s' is neither true nor false", value);
  return CLI_BAD;
}

static int set_own(settings *s, const settings_row *row, const char *value, char *message,
                   size_t size) {
  int rc = CLI_OK;
  switch (row->kind) {
  case SETTINGS_TEXT:
  case SETTINGS_WORD:
    if (row->kind == SETTINGS_WORD) rc = word_form(row->name, value, message, size);
    if (strcmp(row->name, "method") == 0) rc = method_form(value, message, size);
    if (rc == CLI_OK) put_text(s, row, value);
    return rc;
  case SETTINGS_REAL:
  case SETTINGS_OWN:
    rc = set_real(s, row, value, message, size);
    if (rc == CLI_OK && strcmp(row->name, "epochs") == 0 && s->epochs > 0.0) s->steps = 0;
    return rc;
  case SETTINGS_INT:
    rc = set_int(s, row, value, message, size);
    if (rc == CLI_OK && strcmp(row->name, "steps") == 0 && s->steps > 0) s->epochs = 0.0;
    return rc;
  case SETTINGS_BOOL:
    return set_bool(s, row, value, message, size);
  }
  return CLI_BAD;
}

static int set_library(settings *s, const char *name, const char *value, char *message,
                       size_t size) {
  ng_options o;
  if (strcmp(name, "update") == 0) {
    (void)snprintf(message, size, "the trainer sets it; use optimizer");
    return CLI_BAD;
  }
  if (ng_options_init(&o) != NG_OK) return CLI_BAD;
  if (ng_options_set(&o, name, value, message, size) < 0) {
    const size_t n = strlen(name); /* the library's message names the option, as ours will */
    if (strncmp(message, name, n) == 0 && strncmp(message + n, ": ", 2) == 0)
      memmove(message, message + n + 2, strlen(message + n + 2) + 1);
    return CLI_BAD;
  }
  int i = 0;
  while (i < s->n_library && strcmp(s->library[i].name, name) != 0)
    i++;
  if (i == s->n_library) { /* grown by one: there are few */
    void *room = cli_take((size_t)i + 1, sizeof *s->library);
    if (i > 0) memcpy(room, s->library, (size_t)i * sizeof *s->library);
    free(s->library);
    s->library = room;
    s->library[i].name = copy_text(name);
    s->n_library = i + 1;
  } else {
    free(s->library[i].value);
  }
  s->library[i].value = copy_text(value);
  return CLI_OK;
}

int settings_put(settings *s, const char *name, const char *value, char *message, size_t size) {
  const settings_row *row = settings_find(name);
  if (!ngio_is_utf8(value)) { /* config.json could not hold it */
    (void)snprintf(message, size, "'%s' is not UTF-8", ngio_quote(value).text);
    return CLI_BAD;
  }
  if (row != NULL) return set_own(s, row, value, message, size);
  ng_option_info info;
  if (!settings_library_option(name, &info)) return unknown(name, message, size);
  return set_library(s, info.name, value, message, size);
}

int settings_set(settings *s, const char *name, const char *value) {
  char message[MESSAGE] = "";
  if (settings_put(s, name, value, message, sizeof message) == CLI_OK) return CLI_OK;
  return cli_bad("--%s: %s", name, message);
}

int settings_given(settings *s, const cli_setting *given, int n) {
  bool epochs = false, steps = false;
  int rc = CLI_OK;
  for (int i = 0; i < n && rc == CLI_OK; i++) {
    epochs = epochs || strcmp(given[i].name, "epochs") == 0;
    steps = steps || strcmp(given[i].name, "steps") == 0;
    rc = settings_set(s, given[i].name, given[i].value);
  }
  if (rc == CLI_OK && epochs && steps) rc = cli_bad("--steps: give it or --epochs, not both");
  if (rc == CLI_OK && steps && s->steps == 0) rc = cli_bad("--steps: expected at least 1");
  if (rc == CLI_OK && epochs && s->epochs <= 0.0) rc = cli_bad("--epochs: expected more than 0");
  return rc;
}

void settings_init(settings *s) {
  char message[MESSAGE] = "";
  memset(s, 0, sizeof *s);
  for (int i = 0; i < settings_rows_count; i++) {
    (void)set_own(s, &settings_rows[i], settings_rows[i].standard, message, sizeof message);
    if (strcmp(settings_rows[i].name, "epochs") == 0) s->steps = 0;
  }
}

/* 15 digits read well, 17 always read back. */
static void write_real(double v, char *text, size_t size) {
  (void)snprintf(text, size, "%.15g", v);
  if (strtod(text, NULL) != v) (void)snprintf(text, size, "%.17g", v);
}

bool settings_get(const settings *s, const char *name, char *value, size_t size) {
  const settings_row *row = settings_find(name);
  if (row == NULL) return false;
  const void *at = place(s, row);
  switch (row->kind) {
  case SETTINGS_TEXT:
  case SETTINGS_WORD:
    (void)snprintf(value, size, "%s", *(char *const *)at);
    break;
  case SETTINGS_REAL:
  case SETTINGS_OWN:
    if (*(const double *)at < 0.0) {
      (void)snprintf(value, size, "default");
    } else {
      write_real(*(const double *)at, value, size);
    }
    break;
  case SETTINGS_INT:
    (void)snprintf(value, size, "%lld", (long long)*(const int64_t *)at);
    break;
  case SETTINGS_BOOL:
    (void)snprintf(value, size, "%s", *(const bool *)at ? "true" : "false");
    break;
  }
  return true;
}

/* ---- all of them -----------------------------------------------------------------------------*/

bool settings_first_order(const settings *s) {
  return strcmp(s->method, "sgd") == 0 || strcmp(s->method, "adamw") == 0;
}

bool settings_adamw(const settings *s) {
  return strcmp(settings_first_order(s) ? s->method : s->optimizer, "adamw") == 0;
}

bool settings_knows(const settings *s, const char *name) {
  static const char *const sgd[] = {"momentum", "nesterov", "decoupled"};
  static const char *const adamw[] = {"beta1", "beta2", "eps"};
  char spelt[64];
  settings_spell(spelt, sizeof spelt, name);
  const bool first_order = settings_first_order(s);
  if (settings_find(name) == NULL) return !first_order; /* the library's */
  if (first_order && (strcmp(spelt, "fisher") == 0 || strcmp(spelt, "optimizer") == 0))
    return false;
  for (int i = 0; i < 3; i++) {
    if (strcmp(spelt, settings_adamw(s) ? sgd[i] : adamw[i]) == 0) return false;
  }
  return true;
}

static int options_of(const settings *s, ng_options *out, char *message, size_t size) {
  if (ng_options_init(out) != NG_OK) return CLI_BAD;
  ng_status st = NG_OK;
  if (settings_first_order(s)) {
    st = ng_options_set(out, "clip", "none", message, size);
  } else {
    st = ng_options_set_method(out, s->method, message, size);
    if (st >= 0) st = ng_options_from_env(out, message, size);
    for (int i = 0; i < s->n_library && st >= 0; i++) {
      st = ng_options_set(out, s->library[i].name, s->library[i].value, message, size);
    }
  }
  if (st >= 0)
    st = ng_options_set(out, "update", settings_adamw(s) ? "adamw" : "sgd", message, size);
  if (st >= 0) st = ng_options_check(out, message, size);
  return st < 0 ? CLI_BAD : CLI_OK;
}

static bool is_rankone(const settings *s) {
  for (int i = 0; i < ng_method_count(); i++) {
    ng_method_info info = {.struct_size = sizeof info};
    if (ng_method_at(i, &info) == NG_OK && strcmp(info.name, s->method) == 0)
      return strcmp(info.family, "rankone") == 0;
  }
  return false;
}

/* 0.03 trained every model here with momentum 0.9; 0.001 is what Kingma & Ba 2015 recommend.  PD of the
 * rank-one family is D / damping in all directions but one, so the same step takes damping times the
 * rate; K-FAC's PD has no such scale, and its clip keeps the step bounded. */
double settings_lr(const settings *s) {
  const double sgd = 0.03, adamw = 0.001;
  char message[MESSAGE];
  ng_options o;
  if (s->lr >= 0.0) return s->lr;
  if (settings_adamw(s)) return adamw;
  if (!is_rankone(s) || options_of(s, &o, message, sizeof message) != CLI_OK) return sgd;
  return sgd * o.damping;
}

int settings_options(const settings *s, ng_options *out) {
  char message[MESSAGE] = "";
  if (options_of(s, out, message, sizeof message) == CLI_OK) return CLI_OK;
  return cli_bad("%s", message);
}

/* What is not at its default must mean something. */
static int check_useful(const settings *s) {
  char standard[64], value[64];
  settings fresh;
  settings_init(&fresh);
  int rc = CLI_OK;
  for (int i = 0; i < settings_rows_count && rc == CLI_OK; i++) {
    const char *name = settings_rows[i].name;
    if (settings_knows(s, name)) continue;
    (void)settings_get(&fresh, name, standard, sizeof standard);
    (void)settings_get(s, name, value, sizeof value);
    if (strcmp(standard, value) == 0) continue;
    rc = cli_bad("--%s: method %s with the %s update has no use for it", name, s->method,
                 settings_adamw(s) ? "adamw" : "sgd");
  }
  settings_free(&fresh);
  return rc;
}

int settings_check(const settings *s) {
  ng_options o;
  if (s->epochs <= 0.0 && s->steps <= 0)
    return cli_bad("--epochs: expected it, or --steps, above 0");
  if (settings_first_order(s) && s->n_library > 0) {
    return cli_bad("--%s: method %s has no curvature and no use for it", s->library[0].name,
                   s->method);
  }
  if (settings_first_order(s) && strcmp(s->fisher, "sampled") == 0) {
    return cli_bad("--fisher: method %s has no statistics to sample labels for", s->method);
  }
  if (check_useful(s) != CLI_OK) return CLI_BAD;
  if (s->nesterov && !settings_adamw(s) && s->momentum == 0.0) {
    return cli_bad("--nesterov: needs a momentum above 0");
  }
  if (s->out[0] == 0 && s->resume) return cli_bad("--resume: needs --out DIR, to go on with");
  if (s->out[0] == 0 && s->checkpoint_every > 0) {
    return cli_bad("--checkpoint-every: needs --out DIR, to write to");
  }
  if (s->data[0] == 0) return cli_bad("--data: expected the name of a data set");
  if (s->model[0] == 0) return cli_bad("--model: expected the name of a network");
  return settings_options(s, &o);
}

/* The same kind of files may lie elsewhere by now; whether they hold the same, a checksum tells. */
static bool same_data(const char *was, const char *now) {
  const size_t n = strcspn(was, ":");
  if (strcmp(was, now) == 0) return true;
  return was[n] == ':' && strncmp(was, now, n + 1) == 0 && strncmp(was, "synthetic:", n + 1) != 0;
}

int settings_same(const settings *was, const settings *now, const char *where) {
  char a[4096] = "", b[4096] = "";
  for (int i = 0; i < settings_rows_count; i++) {
    const settings_row *row = &settings_rows[i];
    if (!row->shapes) continue;
    (void)settings_get(was, row->name, a, sizeof a);
    (void)settings_get(now, row->name, b, sizeof b);
    if (strcmp(row->name, "data") == 0 && same_data(a, b)) continue;
    if (strcmp(row->name, "lr") == 0) {
      write_real(settings_lr(was), a, sizeof a);
      write_real(settings_lr(now), b, sizeof b);
    }
    if (strcmp(a, b) != 0) {
      return cli_bad("--%s: is '%s', but '%s' in %s; a run goes on as it began", row->name, b, a,
                     where);
    }
  }
  ng_options x, y;
  int rc = settings_options(was, &x);
  if (rc == CLI_OK) rc = settings_options(now, &y);
  for (int i = 0; i < ng_option_count() && rc == CLI_OK; i++) {
    ng_option_info info = {.struct_size = sizeof info};
    if (ng_option_at(i, &info) != NG_OK || ng_options_get(&x, info.name, a, sizeof a) != NG_OK ||
        ng_options_get(&y, info.name, b, sizeof b) != NG_OK || strcmp(a, b) == 0) {
      continue;
    }
    rc =
        cli_bad("--%s: is '%s', but '%s' in %s; a run goes on as it began", info.name, b, a, where);
  }
  return rc;
}
