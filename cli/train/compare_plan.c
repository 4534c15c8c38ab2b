/* compare_plan.c: parse the methods with their settings, and the grids. All names and values are checked before a run
 * begins.
 *
 * A shared setting or a grid may have no effect on a method (damping on SGD). Then it is dropped for this method, with
 * a note. A setting without effect that was given after the method's name is an error. */
#include "compare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Return true for a setting that must be the same for all methods. */
static bool is_same_for_all_methods(const char *name) {
  char spelt[CLI_NAME];
  cli_replace_separators(spelt, sizeof spelt, name, '_');
  return settings_is_in_list(spelt,
                             "data|model|method|seed|out|validation|checkpoint_every|log_every|"
                             "resume");
}

/* ---- methods ---------------------------------------------------------------------------------*/

static void drop_library_option(compare_plan *p, compare_method *m, int i) {
  settings *s = &m->s;
  (void)fprintf(p->notes, "%s: %s has no effect\n", m->label, s->library[i].name);
  free(s->library[i].name);
  free(s->library[i].value);
  s->n_library--;
  memmove(s->library + i, s->library + i + 1, (size_t)(s->n_library - i) * sizeof *s->library);
}

/* Return true if the effect of another option depends on this option. */
static bool has_dependent_options(const char *name) {
  for (int32_t i = 0; i < ng_option_count(); i++) {
    ng_option_info info = {.struct_size = sizeof info};
    if (ng_option_at(i, &info) == NG_OK && strcmp(info.needs, name) == 0) return true;
  }
  return false;
}

/* Return settings_is_idle; but if the effect of some option depends on an option of the grid, return false. */
static bool is_always_idle(const compare_plan *p, const compare_method *m, const char *name,
                           char *needs, size_t size) {
  for (int g = 0; g < p->grids; g++)
    if (has_dependent_options(p->grid[g].name)) return false;
  return settings_is_idle(&m->s, name, needs, size);
}

bool compare_has_effect(const compare_plan *p, const compare_method *m, const char *name) {
  char needs[SETTINGS_NEEDS];
  return settings_applies(&m->s, name) && !is_always_idle(p, m, name, needs, sizeof needs);
}

bool compare_has_own(const compare_method *m, const char *name) {
  for (int i = 0; i < m->n_own_settings; i++)
    if (settings_is_same_name(name, m->own[i].name)) return true;
  return false;
}

/* Drop the shared options of the library that have no effect in this method's runs. */
static int drop_ineffective_options(compare_plan *p, compare_method *m) {
  for (int i = m->s.n_library - 1; i >= 0; i--) {
    const char *name = m->s.library[i].name;
    char needs[SETTINGS_NEEDS] = "";
    if (settings_applies(&m->s, name) && !is_always_idle(p, m, name, needs, sizeof needs)) continue;
    if (compare_has_own(m, name))
      return cli_fail("--methods: %s: %s has no effect unless %s", m->label, name, needs);
    drop_library_option(p, m, i);
  }
  return CLI_OK;
}

/* Reset the shared settings of the trainer that do not apply to this method to their defaults. */
static int drop_inapplicable_settings(compare_plan *p, compare_method *m) {
  int rc = CLI_OK;
  for (const settings_row *row; rc == CLI_OK && (row = settings_find_idle(&m->s)) != NULL;) {
    (void)fprintf(p->notes, "%s: %s has no effect\n", m->label, row->name);
    rc = settings_set_or_report(&m->s, NULL, row->name, row->standard);
  }
  return rc;
}

static void set_method_label(compare_plan *p, compare_method *m, const char *name) {
  (void)snprintf(m->label, sizeof m->label, "%s", name);
  for (int again = 2;; again++) {
    int same = 0;
    for (int i = 0; i < p->methods; i++)
      same += strcmp(p->method[i].label, m->label) == 0;
    if (same == 0) return;
    (void)snprintf(m->label, sizeof m->label, "%.40s-%d", name, again);
  }
}

static int append_method(compare_plan *p, const char *name) {
  char message[CLI_MESSAGE] = "";
  if (name[0] == 0)
    return cli_fail("--methods: expected name or name:option=value, separated by ','");
  if (p->methods == COMPARE_METHODS)
    return cli_fail("--methods: more than %d methods", COMPARE_METHODS);
  compare_method *m = &p->method[p->methods];
  settings_copy(&m->s, &p->base);
  set_method_label(p, m, name);
  p->methods++;
  if (settings_try_set(&m->s, "method", name, message, sizeof message) != CLI_OK)
    return cli_fail("--methods: %s", message);
  return drop_inapplicable_settings(p, m);
}

static int add_own_setting(compare_plan *p, char *text) {
  char where[96];
  if (p->methods == 0) return cli_fail("--methods: '%s', expected a method before it", text);
  compare_method *m = &p->method[p->methods - 1];
  char *equals = strchr(text, '=');
  if (equals == NULL || equals == text)
    return cli_fail("--methods: %s: '%s', expected option=value", m->label, text);
  *equals = 0;
  if (is_same_for_all_methods(text))
    return cli_fail("--methods: %s: %s is the same for all methods", m->label, text);
  if (compare_has_own(m, text)) return cli_fail("--methods: %s: %s is given twice", m->label, text);
  (void)snprintf(where, sizeof where, "--methods: %s", m->label);
  if (settings_set_or_report(&m->s, where, text, equals + 1) != CLI_OK) return CLI_BAD;
  m->own = cli_append_zeroed(m->own, (size_t)m->n_own_settings, sizeof *m->own);
  m->own[m->n_own_settings++] = (cli_setting){text, equals + 1};
  return CLI_OK;
}

/* Return true if the item begins a method: it has a ':' before any '=', or no '='. */
static bool begins_method(const char *item) {
  const size_t word = strcspn(item, ":=");
  return item[word] != '=';
}

/* Return the end of an item: the next comma that no digit follows; NULL: the end of the text. */
static char *find_item_end(char *text) {
  char *end = strchr(text, ',');
  while (end != NULL && end[1] >= '0' && end[1] <= '9')
    end = strchr(end + 1, ',');
  return end;
}

int compare_parse_methods(compare_plan *p, const char *list) {
  p->text = cli_copy_text(list);
  p->method = cli_alloc(COMPARE_METHODS, sizeof *p->method);
  int rc = CLI_OK;
  for (char *item = p->text, *next; rc == CLI_OK && item != NULL; item = next) {
    next = find_item_end(item);
    if (next != NULL) *next++ = 0;
    item += strspn(item, " ");
    if (!begins_method(item)) {
      rc = add_own_setting(p, item);
      continue;
    }
    char *colon = strchr(item, ':');
    if (colon != NULL) *colon++ = 0;
    rc = append_method(p, item);
    if (rc == CLI_OK && colon != NULL) rc = add_own_setting(p, colon);
  }
  for (int i = 0; rc == CLI_OK && i < p->methods; i++) {
    compare_method *m = &p->method[i];
    for (int k = 0; rc == CLI_OK && k < m->n_own_settings; k++)
      if (!settings_applies(&m->s, m->own[k].name))
        rc = cli_fail("--methods: %s: %s has no effect", m->label, m->own[k].name);
    if (rc == CLI_OK) rc = drop_ineffective_options(p, m);
    if (rc == CLI_OK) rc = settings_check(&m->s);
    if (rc == CLI_OK) rc = compare_count_points(p, m);
  }
  return rc;
}

/* ---- grid ------------------------------------------------------------------------------------*/

static int check_last_value(const compare_grid *g) {
  settings s;
  settings_init(&s);
  const int rc = settings_set_or_report(&s, "--grid", g->name, g->value[g->n - 1]);
  settings_free(&s);
  return rc;
}

int compare_add_grid(compare_plan *p, const char *text) {
  if (p->grids == COMPARE_GRIDS) return cli_fail("--grid: more than %d grids", COMPARE_GRIDS);
  compare_grid *g = &p->grid[p->grids++];
  memset(g, 0, sizeof *g);
  g->text = cli_copy_text(text);
  char *value = strchr(g->text, '=');
  if (value == NULL || value == g->text || value[1] == 0)
    return cli_fail("--grid: '%s', expected option=a,b,c", text);
  *value++ = 0;
  g->name = g->text;
  if (is_same_for_all_methods(g->name) || settings_is_in_list(g->name, "epochs|steps"))
    return cli_fail("--grid: %s is the same for all runs", g->name);
  for (int i = 0; i + 1 < p->grids; i++)
    if (settings_is_same_name(g->name, p->grid[i].name))
      return cli_fail("--grid: %s is given twice", g->name);
  int rc = CLI_OK;
  for (char *next; rc == CLI_OK && value != NULL; value = next) {
    next = strchr(value, ',');
    if (next != NULL) *next++ = 0;
    if (g->n == COMPARE_VALUES)
      return cli_fail("--grid: %s has more than %d values", g->name, COMPARE_VALUES);
    for (int i = 0; i < g->n; i++)
      if (strcmp(g->value[i], value) == 0)
        return cli_fail("--grid: %s has '%s' twice", g->name, value);
    g->value[g->n++] = value;
    rc = check_last_value(g);
  }
  return rc;
}

void compare_plan_free(compare_plan *p) {
  for (int i = 0; i < p->methods; i++) {
    compare_method *m = &p->method[i];
    for (int k = 0; m->run != NULL && k < p->seeds; k++)
      train_result_free(&m->run[k]);
    for (int k = 0; m->point != NULL && k < m->points * p->grid_seeds; k++)
      train_result_free(&m->point[k]);
    free(m->point);
    free(m->run);
    free(m->own);
    settings_free(&m->s);
  }
  for (int i = 0; i < p->grids; i++)
    free(p->grid[i].text);
  if (p->notes != NULL) (void)fclose(p->notes);
  free(p->note);
  free(p->dir);
  free(p->method);
  free(p->text);
  settings_free(&p->base);
  memset(p, 0, sizeof *p);
}
