/* methods.c: methods are rows of data: option values, and the published option names with what
 * their values mean here.
 *
 * In comes the name of a method, or an option as the published program spells it; out go values of
 * the table in option_table.c.  A method lists only what differs from the table's defaults, which
 * are method "natgrad".
 *
 * To add a method: a list of values, a list of published names if there is a published program, a
 * row in `method`, and its variants in `variant`. */
#include "options.h"

/* ---- rows of values --------------------------------------------------------------------------*/

static const char *const natgrad_values[] = {NULL};

/* KAISA: gpauloski/kfac-pytorch 0.4.2. */
static const char *const kaisa_values[] = {"solver=eigen",
                                           "prediv=1",
                                           "damping=0.001",
                                           "damping_split=joint",
                                           "stat_start=identity",
                                           "stat_scale=kaisa",
                                           "call_weight=equal",
                                           "solve_period=1",
                                           NULL};
/* Each factor gets the whole damping, on a copy. */
static const char *const kaisa_inverse[] = {"solver=cholesky", "prediv=0", "damping_split=full",
                                            NULL};

/* MPD-KFAC and DP-KFAC: lzhangbv/kfac_pytorch.  Its factor_decay 0.95 weighs the NEW sample. */
#define MPD_VALUES                                                                                 \
  "solver=eigen", "eigen_floor=1e-10", "damping=0.001", "damping_split=joint", "stat_decay=0.05",  \
      "stat_start=identity", "stat_scale=mpd-kfac", "positions=reduce", "calls=last",              \
      "solve_period=1"
static const char *const mpd_values[] = {MPD_VALUES, NULL};
/* Statistics never leave their owner, nor do inverses. */
static const char *const dp_values[] = {MPD_VALUES, "statistics=local", "grad_worker_fraction=0",
                                        NULL};
/* The published inverse damps in place, and its numbers need that; gradients travel, not inverses.
 */
static const char *const lz_inverse[] = {"solver=cholesky",        "eigen_floor=0",
                                         "damping_split=pi",       "damping_leak=1",
                                         "grad_worker_fraction=0", NULL};
static const char *const as_the_row[] = {NULL};

static ng_status set_values(ng_options *full, const char *const *values, char *message,
                            size_t size) {
  for (; *values != NULL; values++) {
    char name[64];
    const ng_option_row *row = NULL;
    const size_t n = strcspn(*values, "=");
    memcpy(name, *values, n);
    name[n] = 0;
    ng_status st = ng_option_lookup(name, &row, message, size);
    if (st == NG_OK) st = ng_option_read(row, *values + n + 1, full, message, size);
    if (st != NG_OK) return st;
  }
  return NG_OK;
}

/* ---- published names -------------------------------------------------------------------------*/

/* One published option on its way in. */
typedef struct published published;
typedef struct job {
  const published *row;
  const char *value;
  ng_options *full;
  double lr;
  bool gives_lr;
  char *message;
  size_t size;
} job;

struct published {
  const char *name, *option, *meaning;
  ng_status (*take)(job *j);
};

static ng_status refuse(const job *j, ng_status st, const char *expected) {
  return ng_fail_to(j->message, j->size, st, "%s: '%s', expected %s", j->row->name,
                    ng_quote(j->value).text, expected);
}

/* Sets one of our options; a refusal names both. */
static ng_status put(job *j, const char *option, const char *value) {
  char why[NG_MESSAGE];
  const ng_option_row *row = NULL;
  ng_status st = ng_option_lookup(option, &row, why, sizeof why);
  if (st == NG_OK) st = ng_option_read(row, value, j->full, why, sizeof why);
  if (st != NG_OK) return ng_fail_to(j->message, j->size, st, "%s: %s", j->row->name, why);
  return NG_OK;
}

/* Python writes None; nothing and null come from files. */
static bool is_none(const char *text) {
  return text[0] == 0 || ng_same_word(text, "none") || ng_same_word(text, "null");
}

static ng_status take_same(job *j) { return put(j, j->row->option, j->value); }

static ng_status take_lr(job *j) {
  if (!ng_read_real(j->value, &j->lr) || j->lr < 0) return refuse(j, NG_ERR_ARG, "a number >= 0");
  j->gives_lr = true;
  return NG_OK;
}

static ng_status take_kl_clip(job *j) {
  if (is_none(j->value)) return put(j, "clip", "none");
  const ng_status st = put(j, "kl_clip", j->value);
  return st == NG_OK ? put(j, "clip", "kl") : st;
}

/* There, 0 and negative numbers switch the clip off. */
static ng_status take_kl_clip_sign(job *j) {
  double v;
  if (!is_none(j->value) && ng_read_real(j->value, &v) && v <= 0) return put(j, "clip", "none");
  return take_kl_clip(j);
}

static ng_status take_new_weight(job *j) {
  char text[32];
  double xi;
  if (!ng_read_real(j->value, &xi) || xi < 0 || xi > 1) {
    return refuse(j, NG_ERR_ARG, "0 <= factor_decay <= 1, the weight of the new sample");
  }
  ng_write_real(1 - xi, text, sizeof text);
  return put(j, "stat_decay", text);
}

static ng_status take_compute_method(job *j) {
  const bool eigen = ng_same_word(j->value, "eigen");
  if (!eigen && !ng_same_word(j->value, "inverse"))
    return refuse(j, NG_ERR_ARG, "eigen or inverse");
  if (!eigen) return set_values(j->full, kaisa_inverse, j->message, j->size);
  if (ng_is(j->full->solver, "eigen")) return NG_OK; /* prediv may have been chosen already */
  static const char *const eigen_again[] = {"solver=eigen", "prediv=1", "damping_split=joint",
                                            NULL};
  return set_values(j->full, eigen_again, j->message, j->size);
}

/* The published inverse method accepts the flag and does not look at it. */
static ng_status take_prediv(job *j) {
  int32_t flag;
  if (!ng_read_bool(j->value, &flag)) return refuse(j, NG_ERR_ARG, "true or false");
  return put(j, "prediv", flag && ng_is(j->full->solver, "eigen") ? "1" : "0");
}

static ng_status take_fraction(job *j) {
  if (ng_same_word(j->value, "COMM_OPT")) return put(j, j->row->option, "1");
  if (ng_same_word(j->value, "HYBRID_OPT")) return put(j, j->row->option, "0.5");
  if (ng_same_word(j->value, "MEM_OPT")) return put(j, j->row->option, "0");
  return put(j, j->row->option, j->value);
}

static ng_status take_dtype(job *j) {
  static const char *const name[][5] = {{"f32", "float32", "float", "fp32", "none"},
                                        {"bf16", "bfloat16"},
                                        {"f16", "float16", "half", "fp16"},
                                        {"f64", "float64", "double", "fp64"}};
  const char *value = j->value;
  if (strncmp(value, "torch.", 6) == 0) value += 6;
  for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
    for (size_t k = 0; k < 5 && name[i][k] != NULL; k++) {
      if (ng_same_word(value, name[i][k])) return put(j, j->row->option, name[i][0]);
    }
  }
  return refuse(j, NG_ERR_ARG, "none, float32, bfloat16 or float16");
}

/* The text is kept by the caller, so a list cannot be joined here. */
static ng_status take_regex(job *j) {
  const char *v = j->value;
  if (is_none(v) || ng_is(v, "[]")) return put(j, j->row->option, "");
  if (v[0] == '[' && (v[1] == '"' || v[1] == '\'')) {
    return refuse(j, NG_ERR_ARG, "one expression; join a list with '|'");
  }
  if (strstr(v, "(?") != NULL || strstr(v, "\\d") != NULL || strstr(v, "\\D") != NULL) {
    return refuse(j, NG_ERR_ABSENT, "a POSIX extended expression: [0-9] for \\d, and no (?...)");
  }
  return put(j, j->row->option, v);
}

static ng_status take_width(job *j) {
  int64_t width;
  if (is_none(j->value)) return put(j, j->row->option, "0");
  if (!ng_read_int(j->value, &width) || width < 1)
    return refuse(j, NG_ERR_ARG, "none or a width >= 1");
  return put(j, j->row->option, j->value);
}

/* Open in the published class `inverse` only; `eigen` always sends, the DP classes never do. */
static ng_status take_communicate(job *j) {
  int32_t flag;
  const bool local = ng_is(j->full->statistics, "local");
  if (!ng_read_bool(j->value, &flag)) return refuse(j, NG_ERR_ARG, "true or false");
  if (local && flag) return refuse(j, NG_ERR_ARG, "false: DP-KFAC never sends inverses");
  if (!local && !flag && ng_is(j->full->solver, "eigen")) {
    return refuse(j, NG_ERR_ARG, "true: the published eigen class always sends its eigenbases");
  }
  return put(j, j->row->option, flag ? "1" : "0");
}

/* Nothing to set: the value is only checked. */
static ng_status check_bool(job *j) {
  int32_t flag;
  return ng_read_bool(j->value, &flag) ? NG_OK : refuse(j, NG_ERR_ARG, "true or false");
}

static ng_status check_bool_or_none(job *j) { return is_none(j->value) ? NG_OK : check_bool(j); }

static ng_status check_count(job *j) {
  int64_t n;
  return ng_read_int(j->value, &n) && n >= 1 ? NG_OK : refuse(j, NG_ERR_ARG, "a whole number >= 1");
}

static ng_status check_size(job *j) {
  double v;
  return ng_read_real(j->value, &v) && v >= 0 ? NG_OK : refuse(j, NG_ERR_ARG, "a number >= 0");
}

static ng_status check_strategy(job *j) {
  if (ng_same_word(j->value, "compute") || ng_same_word(j->value, "memory")) return NG_OK;
  return refuse(j, NG_ERR_ARG, "COMPUTE or MEMORY");
}

static ng_status check_true(job *j) {
  int32_t flag;
  if (!ng_read_bool(j->value, &flag)) return refuse(j, NG_ERR_ARG, "true or false");
  return flag ? NG_OK : refuse(j, NG_ERR_ABSENT, "true; to pause, show no observations");
}

static ng_status check_none(job *j) {
  return is_none(j->value) ? NG_OK : refuse(j, NG_ERR_ABSENT, "none; give ng_batch.loss_scale");
}

static ng_status check_no_parts(job *j) {
  return is_none(j->value) ? NG_OK
                           : refuse(j, NG_ERR_ABSENT, "nothing: all parts of a step are needed");
}

static const published kaisa_names[] = {
    {"factor_update_steps", "stat_period", "the same", take_same},
    {"inv_update_steps", "solve_period", "the same", take_same},
    {"damping", "damping", "the same", take_same},
    {"factor_decay", "stat_decay", "the same: weight of the old average", take_same},
    {"kl_clip", "kl_clip", "the same, with clip = kl; none: clip = none", take_kl_clip},
    {"lr", "", "the lr argument of ng_step", take_lr},
    {"accumulation_steps", "",
     "nothing to set: calls = mean averages the micro-batches shown before a step", check_count},
    {"compute_method", "solver",
     "eigen: eigen with damping_split = joint; inverse: cholesky with damping_split = full and "
     "prediv = 0",
     take_compute_method},
    {"compute_eigenvalue_outer_product", "prediv", "the same; no meaning with inverse",
     take_prediv},
    {"grad_worker_fraction", "grad_worker_fraction",
     "the same; COMM_OPT: 1, HYBRID_OPT: 0.5, MEM_OPT: 0", take_fraction},
    {"factor_dtype", "factor_dtype", "float32, bfloat16, float16 by any name; none: f32",
     take_dtype},
    {"inv_dtype", "inverse_dtype", "float32, bfloat16, float16 by any name", take_dtype},
    {"skip_layers", "skip_layers", "one expression; join a list with '|'", take_regex},
    {"symmetry_aware", "",
     "nothing to set: one triangle is kept and sent always, with the same numbers", check_bool},
    {"allreduce_bucket_cap_mb", "", "nothing to set: all factors of a step travel in one message",
     check_size},
    {"colocate_factors", "",
     "nothing to set: both factors of a layer have one owner, with the same numbers", check_bool},
    {"assignment_strategy", "",
     "nothing to set: it decides who solves what, which changes no number; see placement",
     check_strategy},
    {"update_factors_in_hook", "",
     "nothing to set: statistics are summed as they are shown and completed in the step; a layer "
     "that runs twice in a step with accumulation_steps = 1 is calls = ema",
     check_bool},
    {"grad_scaler", "", "nothing to set: the loss scale is ng_batch.loss_scale", check_none},
};

/* MPD-KFAC and DP-KFAC are one program. */
static const published lz_names[] = {
    {"fac_update_freq", "stat_period", "the same", take_same},
    {"kfac_update_freq", "solve_period", "the same", take_same},
    {"damping", "damping", "the same", take_same},
    {"factor_decay", "stat_decay", "1 - factor_decay: it is the weight of the new sample there",
     take_new_weight},
    {"kl_clip", "kl_clip", "the same, with clip = kl; none, 0 and negative: clip = none",
     take_kl_clip_sign},
    {"lr", "", "the lr argument of ng_step", take_lr},
    {"communicate_inverse_or_not", "grad_worker_fraction",
     "true: 1; false: 0, gradients travel instead; always true with MPD's eigen, false with DP",
     take_communicate},
    {"exclude_vocabulary_size", "exclude_width", "the same; none: 0", take_width},
    {"distribute_layer_factors", "",
     "nothing to set: both factors of a layer have one owner, with the same numbers",
     check_bool_or_none},
    {"hook_enabled", "", "nothing to set: true; to pause, show no observations", check_true},
    {"exclude_parts", "", "nothing to set: only the empty text, parts of a step are not left out",
     check_no_parts},
};

/* ---- the methods -----------------------------------------------------------------------------*/

#define COUNT(list) (int32_t)(sizeof(list) / sizeof(list)[0])

static const struct method {
  const char *name, *help, *paper;
  const char *const *values;
  const published *names;
  int32_t count;
} method[] = {
    {"natgrad", "ours: textbook scaling, so damping means the same for every batch and rank count",
     "Martens & Grosse 2015, arXiv 1503.05671; Grosse & Martens 2016, arXiv 1602.01407",
     natgrad_values, NULL, 0},
    {"kaisa", "gpauloski/kfac-pytorch as published", "Pauloski et al. 2021, arXiv 2107.01739",
     kaisa_values, kaisa_names, COUNT(kaisa_names)},
    {"mpd-kfac", "lzhangbv/kfac_pytorch, factors over all ranks, as published",
     "Zhang, Shi, Wang & Li 2022, arXiv 2206.15143, where it is the baseline", mpd_values, lz_names,
     COUNT(lz_names)},
    {"dp-kfac", "lzhangbv/kfac_pytorch, factors from the owner's batch, as published",
     "Zhang, Shi, Wang & Li 2022, arXiv 2206.15143", dp_values, lz_names, COUNT(lz_names)},
};
static const char methods_there_are[] = "natgrad|kaisa|mpd-kfac|dp-kfac";
static const char methods_later[] = "spngd|eva|eva-natgrad|eva-kfac|mfac|efcp|ggt";

static const struct variant {
  const char *systems, *variant, *method;
  const char *const *values;
} variant[] = {
    {"kaisa|gpauloski", "eigen", "kaisa", as_the_row},
    {"kaisa|gpauloski", "inverse", "kaisa", kaisa_inverse},
    {"dpkfacrepo|dpkfac|lzhangbv", "eigen", "mpd-kfac", as_the_row},
    {"dpkfacrepo|dpkfac|lzhangbv", "inverse", "mpd-kfac", lz_inverse},
    {"dpkfacrepo|dpkfac|lzhangbv", "eigen_dp", "dp-kfac", as_the_row},
    {"dpkfacrepo|dpkfac|lzhangbv", "inverse_dp", "dp-kfac", lz_inverse},
};
static const char systems_later[] = "eva|chainerkfac|efcp|mfac";

static const struct method *find_method(const char *name) {
  for (int32_t i = 0; i < COUNT(method); i++) {
    if (ng_is(method[i].name, name)) return &method[i];
  }
  return NULL;
}

bool ng_method_known(const char *name) { return find_method(name) != NULL; }

const char *ng_method_name(const char *name) {
  const struct method *m = find_method(name);
  return m == NULL ? NULL : m->name;
}

/* Every option to the row of `m`, then the variant. */
static ng_status set_row(ng_options *o, const struct method *m, const char *const *more,
                         char *message, size_t size) {
  ng_options full;
  ng_status st = ng_options_take(o, &full, message, size);
  if (st != NG_OK) return st;
  ng_options_standard(&full);
  full.method = m->name;
  st = set_values(&full, m->values, message, size);
  if (st == NG_OK) st = set_values(&full, more, message, size);
  return st == NG_OK ? ng_options_put(o, &full, message, size) : st;
}

ng_status ng_options_set_method(ng_options *o, const char *name, char *message,
                                size_t message_size) {
  if (name == NULL) return ng_fail_to(message, message_size, NG_ERR_ARG, "method: it is NULL");
  const struct method *m = find_method(name);
  if (m != NULL) return set_row(o, m, as_the_row, message, message_size);
  if (ng_in_list(methods_later, name)) {
    return ng_fail_to(message, message_size, NG_ERR_ABSENT,
                      "method '%s' is not supported yet, there is %s", name, methods_there_are);
  }
  return ng_fail_to(message, message_size, NG_ERR_ARG, "there is no method '%s', there is %s%s",
                    ng_quote(name).text, methods_there_are,
                    ng_hint_list(name, methods_there_are).text);
}

/* "DP-KFAC repo", "dp_kfac_repo", "DP-KFACrepo": letters and digits count. */
static void letters(const char *name, char *out, size_t size) {
  size_t n = 0;
  for (; *name != 0 && n < size - 1; name++) {
    const char c = *name;
    if (c >= 'A' && c <= 'Z') {
      out[n++] = (char)(c - 'A' + 'a');
    } else if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) {
      out[n++] = c;
    }
  }
  out[n] = 0;
}

ng_status ng_options_set_system(ng_options *o, const char *system, const char *which, char *message,
                                size_t message_size) {
  char word[64], there_are[128] = "";
  if (system == NULL || which == NULL) {
    return ng_fail_to(message, message_size, NG_ERR_ARG, "%s: it is NULL",
                      system == NULL ? "system" : "variant");
  }
  letters(system, word, sizeof word);
  for (int32_t i = 0; i < COUNT(variant); i++) {
    if (!ng_in_list(variant[i].systems, word)) continue;
    if (ng_is(variant[i].variant, which)) {
      return set_row(o, find_method(variant[i].method), variant[i].values, message, message_size);
    }
    const size_t n = strlen(there_are);
    (void)snprintf(there_are + n, sizeof there_are - n, "%s%s", n == 0 ? "" : "|",
                   variant[i].variant);
  }
  if (there_are[0] != 0) {
    return ng_fail_to(message, message_size, NG_ERR_ARG,
                      "system '%s' has no variant '%s', there is %s%s", ng_quote(system).text,
                      ng_quote(which).text, there_are, ng_hint_list(which, there_are).text);
  }
  if (ng_in_list(systems_later, word)) {
    return ng_fail_to(message, message_size, NG_ERR_ABSENT, "system '%s' is not supported yet",
                      ng_quote(system).text);
  }
  return ng_fail_to(message, message_size, NG_ERR_ARG,
                    "there is no system '%s', there is KAISA and DP-KFACrepo",
                    ng_quote(system).text);
}

ng_status ng_options_set_published(ng_options *o, const char *name, const char *value, double *lr,
                                   char *message, size_t message_size) {
  ng_options full;
  ng_status st = ng_options_take(o, &full, message, message_size);
  if (st != NG_OK) return st;
  if (name == NULL || value == NULL) {
    return ng_fail_to(message, message_size, NG_ERR_ARG, "published option: %s is NULL",
                      name == NULL ? "the name" : "the value");
  }
  const struct method *m = full.method == NULL ? NULL : find_method(full.method);
  if (m == NULL) return ng_fail_to(message, message_size, NG_ERR_ARG, "ng_options has no method");
  if (m->count == 0) {
    return ng_fail_to(message, message_size, NG_ERR_ARG,
                      "'%s': method %s has no published names; use ng_options_set",
                      ng_quote(name).text, m->name);
  }
  char list[NG_MESSAGE] = "";
  for (int32_t i = 0; i < m->count; i++) {
    if (!ng_is(m->names[i].name, name)) {
      const size_t n = strlen(list);
      (void)snprintf(list + n, sizeof list - n, "%s%s", n == 0 ? "" : "|", m->names[i].name);
      continue;
    }
    job j = {&m->names[i], value, &full, 0, false, message, message_size};
    st = j.row->take(&j);
    if (st == NG_OK) st = ng_options_put(o, &full, message, message_size);
    if (st == NG_OK && j.gives_lr && lr != NULL) *lr = j.lr;
    return st;
  }
  return ng_fail_to(message, message_size, NG_ERR_ARG, "%s has no option '%s'%s", m->name,
                    ng_quote(name).text, ng_hint_list(name, list).text);
}

/* ---- walking the tables ----------------------------------------------------------------------*/

int32_t ng_method_count(void) { return COUNT(method); }

ng_status ng_method_at(int32_t i, ng_method_info *out) {
  if (out == NULL || i < 0 || i >= COUNT(method)) return NG_ERR_ARG;
  const struct method *m = &method[i];
  const ng_method_info info = {sizeof info, m->name, "kronecker", m->help, m->paper, m->count};
  return ng_give_struct(out, &info, sizeof info);
}

ng_status ng_method_published_at(int32_t m, int32_t i, ng_published_info *out) {
  if (out == NULL || m < 0 || m >= COUNT(method) || i < 0 || i >= method[m].count)
    return NG_ERR_ARG;
  const published *p = &method[m].names[i];
  const ng_published_info info = {sizeof info, p->name, p->option, p->meaning};
  return ng_give_struct(out, &info, sizeof info);
}
