/* settings_check.c: check settings against each other and the library; build the options of the library; compare the
 * settings of a resumed run with the saved ones. */
#include "schedule.h"
#include "settings.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool settings_is_first_order(const settings *s) {
  return settings_is_in_list(s->method, "sgd|adamw");
}

bool settings_is_adamw(const settings *s) {
  return strcmp(settings_is_first_order(s) ? s->method : s->optimizer, "adamw") == 0;
}

bool settings_has_moments(const settings *s) {
  return !settings_is_first_order(s) && !settings_is_adamw(s) &&
         cli_method_has_option(s->method, "moment_epsilon");
}

int64_t settings_count_samples(const settings *s) { return s->batch * s->acc_iters; }

/* Return true if this library option also applies to methods without curvature. */
static bool applies_to_all_methods(const char *option) { return strcmp(option, "quantify") == 0; }

bool settings_applies(const settings *s, const char *name) {
  char spelt[CLI_NAME];
  cli_replace_separators(spelt, sizeof spelt, name, '_');
  const bool first_order = settings_is_first_order(s);
  if (settings_find(name) == NULL)
    return !first_order || applies_to_all_methods(spelt); /* the name is a library option */
  if (first_order && settings_is_in_list(spelt, "fisher|optimizer|damping_rule|schedule"))
    return false;
  const bool momentum = settings_is_in_list(spelt, "momentum|nesterov|decoupled|adjust_momentum");
  if (settings_is_adamw(s)) return !momentum;
  return !settings_is_in_list(spelt, "beta1|beta2|eps") && !(momentum && settings_has_moments(s));
}

static int make_options(const settings *s, ng_options **out, char *message, size_t size) {
  ng_options *o = NULL;
  *out = NULL;
  ng_status st = ng_options_create(NULL, message, size, &o);
  const bool first_order = settings_is_first_order(s);
  if (st >= 0 && first_order) {
    st = ng_options_set(o, "clip", "none", message, size);
  } else if (st >= 0) {
    st = ng_options_from_env(o, message, size);
    if (st >= 0) st = ng_options_set(o, "method", s->method, message, size);
  }
  for (int i = 0; i < s->n_library && st >= 0; i++)
    st = ng_options_set(o, s->library[i].name, s->library[i].value, message, size);
  if (st >= 0)
    st = ng_options_set(o, "update", settings_is_adamw(s) ? "adamw" : "sgd", message, size);
  if (st >= 0) st = ng_options_check(o, message, size);
  if (st < 0) ng_options_destroy(&o);
  *out = o;
  return st < 0 ? CLI_BAD : CLI_OK;
}

/* The default learning rate. 0.03 trains all models of nn/models.h with momentum 0.9. For AdamW, 0.001 is the value of
 * Kingma & Ba 2015. With mean vectors (the trait `sides`), PD is D / damping in all directions but one, so the rate is
 * multiplied by damping. M-FAC windows weigh a row by 1 / window, so PD is long: on mlp the rates 0.03 and 0.003
 * diverged, on lenet 0.001, 0.0003 on neither; 0.0001 is safe. A method with moments has directions with elements near 1;
 * of mlp and gpt-char 0.003, 0.006 and 0.01, 0.01 trains best with kfac-adam. Muon has its published 0.02, which trains
 * gpt-char better than 0.01. */
double settings_choose_lr(const settings *s) {
  const double sgd = 0.03, adamw = 0.001, moments = 0.01, muon = 0.02, small = 0.0001;
  char message[CLI_MESSAGE];
  const bool vectors = cli_method_has_option(s->method, "sides");
  ng_options *o = NULL;
  if (s->lr >= 0.0) return s->lr;
  if (settings_is_adamw(s)) return adamw;
  if (settings_has_moments(s))
    return cli_method_has_option(s->method, "muon_steps") ? muon : moments;
  if (!(vectors || cli_method_has_option(s->method, "window_function")) ||
      make_options(s, &o, message, sizeof message) != CLI_OK)
    return sgd;
  const double damping = cli_get_option_real(o, "damping");
  const cli_value function = cli_get_option_text(o, "window_function");
  ng_options_destroy(&o);
  if (vectors) return sgd * damping;
  return settings_is_in_list(function.text, "mfac|adam") ? small : sgd;
}

int settings_create_options(const settings *s, ng_options **out) {
  char message[CLI_MESSAGE] = "";
  if (make_options(s, out, message, sizeof message) == CLI_OK) return CLI_OK;
  return cli_fail("%s", message);
}

void schedule_read_base(const settings *s, double base[SCHEDULED]) {
  char message[CLI_MESSAGE];
  ng_options *o = NULL;
  memset(base, 0, SCHEDULED * sizeof *base);
  if (settings_is_first_order(s) || make_options(s, &o, message, sizeof message) != CLI_OK) return;
  for (int k = 0; k < SCHEDULED; k++)
    base[k] = cli_get_option_real(o, schedule_option[k]);
  ng_options_destroy(&o);
}

static bool is_default(const settings *s, const settings_row *row) {
  char value[64];
  (void)settings_get(s, row->name, value, sizeof value);
  return strcmp(row->standard, value) == 0;
}

const settings_row *settings_find_idle(const settings *s) {
  for (int i = 0; i < settings_rows_count; i++) {
    const settings_row *row = &settings_rows[i];
    if (!settings_applies(s, row->name) && !is_default(s, row)) return row;
  }
  return NULL;
}

/* The library accepts options without effect, because ng_set or a layer may make them effective later. The trainer does
 * neither, so it refuses such options. */
bool settings_is_idle(const settings *s, const char *name, char *needs, size_t size) {
  char message[CLI_MESSAGE];
  ng_option_info info;
  ng_options *o = NULL;
  if (settings_is_first_order(s) || settings_find(name) != NULL || !cli_find_option(name, &info) ||
      make_options(s, &o, message, sizeof message) != CLI_OK)
    return false;
  const bool idle = ng_options_idle(o, info.name, needs, size) == NG_OK && needs[0] != 0;
  ng_options_destroy(&o);
  return idle;
}

static int check_damping_rule(const settings *s, const ng_options *o) {
  const double base[SCHEDULED] = {1, 1, 1, 1, 1};
  double value[SCHEDULED];
  char message[CLI_MESSAGE];
  if (strcmp(s->damping_rule, "none") == 0) return CLI_OK;
  if (ng_options_idle(o, "damping", message, sizeof message) == NG_OK && message[0] != 0)
    return cli_fail("--damping-rule: method %s has no damping", s->method);
  (void)schedule_evaluate(s->schedule, base, 0, value, message,
                          sizeof message); /* cannot fail: checked before */
  if (isnan(value[SCHEDULED_DAMPING])) return CLI_OK;
  return cli_fail("--damping-rule: the schedule '%s' changes damping as well", s->schedule);
}

/* Refuse a setting if the other setting that it needs has its default. */
static int check_required_settings(const settings *s) {
  static const char *const list[][2] = {{"running-mixup", "mixup-alpha"},
                                        {"average-every", "average-weights"},
                                        {"average-lr", "average-weights"},
                                        {"erase-area-low", "erase-rate"},
                                        {"erase-area-high", "erase-rate"},
                                        {"erase-aspect-low", "erase-rate"},
                                        {"resume", "out"},
                                        {"checkpoint-every", "out"},
                                        {"checkpoint-parts", "out"}};
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
    if (!is_default(s, settings_find(list[i][0])) && is_default(s, settings_find(list[i][1])))
      return cli_fail("--%s: needs --%s", list[i][0], list[i][1]);
  return CLI_OK;
}

int settings_check(const settings *s) {
  ng_options *o = NULL;
  if (s->epochs <= 0.0 && s->steps <= 0)
    return cli_fail("--epochs: expected --epochs or --steps above 0");
  for (int i = 0; i < s->n_library && settings_is_first_order(s); i++) {
    if (applies_to_all_methods(s->library[i].name)) continue;
    return cli_fail("--%s: method %s has no curvature", s->library[i].name, s->method);
  }
  if (settings_is_first_order(s) && strcmp(s->fisher, "sampled") == 0)
    return cli_fail("--fisher: method %s has no statistics", s->method);
  const settings_row *useless = settings_find_idle(s);
  if (useless != NULL)
    return cli_fail("--%s: has no effect with method %s and the %s update", useless->name,
                    s->method, settings_is_adamw(s) ? "adamw" : "sgd");
  if (s->nesterov && !settings_is_adamw(s) && s->momentum == 0.0)
    return cli_fail("--nesterov: needs a momentum above 0");
  if (strcmp(s->adjust_momentum, "none") != 0 && (s->nesterov || s->momentum == 0.0))
    return cli_fail("--adjust-momentum: needs a momentum above 0, and not Nesterov's");
  if (check_required_settings(s) != CLI_OK) return CLI_BAD;
  if (s->erase_area_low > s->erase_area_high)
    return cli_fail("--erase-area-low: %g is above --erase-area-high, %g", s->erase_area_low,
                    s->erase_area_high);
  if (s->data[0] == 0) return cli_fail("--data: expected the name of a data set");
  if (s->model[0] == 0) return cli_fail("--model: expected the name of a network");
  int rc = settings_create_options(s, &o);
  if (rc == CLI_OK && s->schedule[0] != 0) {
    char message[CLI_MESSAGE] = "";
    rc = schedule_check(s->schedule, o, message, sizeof message);
    if (rc != CLI_OK) rc = cli_fail("--schedule: %s", message);
  }
  if (rc == CLI_OK) rc = check_damping_rule(s, o);
  ng_options_destroy(&o);
  return rc;
}

/* Compare the kind of the data set only, because files may have moved. check_fit compares a checksum of the data. */
static bool is_same_data(const char *was, const char *now) {
  const size_t n = strcspn(was, ":");
  if (strcmp(was, now) == 0) return true;
  return was[n] == ':' && strncmp(was, now, n + 1) == 0 && strncmp(was, "synthetic:", n + 1) != 0;
}

/* Return true if the change only moves work or memory between ranks, so that results stay the same (ng_load). */
static bool only_moves_work_between_ranks(const char *option, const char *was, const char *now) {
  static const char whole[] = "all|sharded";
  if (settings_is_in_list(option, "placement|colocate|grad_worker_fraction")) return true;
  return strcmp(option, "statistics") == 0 && settings_is_in_list(was, whole) &&
         settings_is_in_list(now, whole);
}

/* Report a difference; return CLI_BAD. */
static int report_difference(const char *path, const char *name, const char *is, const char *was,
                             const char *where) {
  return cli_fail("%s%s%s: is '%s', but '%s' in %s; a resumed run keeps its settings",
                  path != NULL ? path : "--", path != NULL ? ": " : "", name, is, was, where);
}

int settings_check_same(const settings *was, const settings *now, const char *path,
                        const char *where) {
  char a[4096] = "", b[4096] = "";
  for (int i = 0; i < settings_rows_count; i++) {
    const settings_row *row = &settings_rows[i];
    if (!row->fixed) continue;
    (void)settings_get(was, row->name, a, sizeof a);
    (void)settings_get(now, row->name, b, sizeof b);
    if (strcmp(row->name, "data") == 0 && is_same_data(a, b)) continue;
    if (strcmp(row->name, "lr") == 0) {
      settings_format_real(settings_choose_lr(was), a, sizeof a);
      settings_format_real(settings_choose_lr(now), b, sizeof b);
    }
    if (strcmp(a, b) != 0) return report_difference(path, row->name, b, a, where);
  }
  ng_options *x = NULL, *y = NULL;
  int rc = settings_create_options(was, &x);
  if (rc == CLI_OK) rc = settings_create_options(now, &y);
  for (int i = 0; i < ng_option_count() && rc == CLI_OK; i++) {
    ng_option_info info = {.struct_size = sizeof info};
    if (ng_option_at(i, &info) != NG_OK || ng_options_get(x, info.name, a, sizeof a) != NG_OK ||
        ng_options_get(y, info.name, b, sizeof b) != NG_OK || strcmp(a, b) == 0 ||
        only_moves_work_between_ranks(info.name, a, b))
      continue;
    rc = report_difference(path, info.name, b, a, where);
  }
  ng_options_destroy(&x);
  ng_options_destroy(&y);
  return rc;
}
