/* methods.c: methods are rows of data: a family and option values.
 *
 * In comes the name of a method, or of a published system and its variant; out go values of the
 * table in option_table.c.  A method lists only what differs from the table's defaults, which are
 * method "natgrad".
 *
 * To add a method: a list of values, a list of published names in published.c if there is a
 * published program, a row in `method`, and its variants in `variant`. */
#include "option/option.h"

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
const char *const ng_kaisa_inverse[] = {"solver=cholesky", "prediv=0", "damping_split=full", NULL};

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

/* Eva and FusedEva: lzhangbv/eva, ffhh927/fused_eva.  Plain means over the first 16 samples of each
 * rank, one update of the average a call; factor_decay 0.95 weighs the NEW sample here, too. */
static const char *const eva_values[] = {"damping=0.03",
                                         "stat_decay=0.05",
                                         "stat_scale=eva",
                                         "stat_batch=16",
                                         "calls=ema",
                                         "call_weight=equal",
                                         NULL};
static const char *const eva_f_values[] = {
    "damping=0.03", "stat_decay=0.05",   "stat_scale=eva", "stat_batch=16",
    "calls=ema",    "call_weight=equal", "sides=input",    NULL};
static const char *const eva_natgrad_values[] = {NULL};
/* The K-FAC of the same program: one row a sample, neither of its factors scaled. */
static const char *const eva_kfac_values[] = {
    "damping=0.03", "stat_decay=0.05",   "stat_scale=kaisa", "positions=reduce", "stat_batch=16",
    "calls=ema",    "call_weight=equal", "damping_leak=1",   "solve_period=1",   NULL};
/* The rest of that program: AdaSGD has no statistics and no clip; SAM ascends along the same K-FAC
 * factors, undamped, and does not clip. */
static const char *const adasgd_values[] = {"sides=none", "damping=0.03", "clip=none", NULL};
static const char *const sam_values[] = {"solver=product",
                                         "radius=0.01",
                                         "clip=none",
                                         "stat_decay=0.05",
                                         "stat_scale=kaisa",
                                         "positions=reduce",
                                         "stat_batch=16",
                                         "calls=ema",
                                         "call_weight=equal",
                                         "solve_period=1",
                                         NULL};

ng_status ng_options_set_values(ng_options *full, const char *const *values, char *message,
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

/* ---- the methods -----------------------------------------------------------------------------*/

#define COUNT(list) (int32_t)(sizeof(list) / sizeof(list)[0])

static const struct method {
  const char *name;
  const char *family; /* name of its table in family/ */
  const char *help, *paper;
  const char *const *values;
  const ng_names *names; /* NULL: no published program */
} method[] = {
    {"natgrad", "kronecker",
     "ours: textbook scaling, so damping means the same for every batch and rank count",
     "Martens & Grosse 2015, arXiv 1503.05671; Grosse & Martens 2016, arXiv 1602.01407",
     natgrad_values, NULL},
    {"kaisa", "kronecker", "gpauloski/kfac-pytorch as published",
     "Pauloski et al. 2021, arXiv 2107.01739", kaisa_values, &ng_names_kaisa},
    {"mpd-kfac", "kronecker",
     "lzhangbv/kfac_pytorch, factors over all ranks, as published",
     "Zhang, Shi, Wang & Li 2022, arXiv 2206.15143, where it is the baseline", mpd_values,
     &ng_names_lz},
    {"dp-kfac", "kronecker",
     "lzhangbv/kfac_pytorch, factors from the owner's batch, as published",
     "Zhang, Shi, Wang & Li 2022, arXiv 2206.15143", dp_values, &ng_names_lz},
    {"eva", "rankone", "lzhangbv/eva as published: mean vectors of 16 samples a rank",
     "Zhang, Shi & Li 2023 (ICLR), arXiv 2308.02123", eva_values, &ng_names_eva},
    {"eva-f", "rankone", "eva with the mean vector of the inputs only, as in FOOF",
     "Zhang, Shi & Li 2023, arXiv 2308.02123; FOOF: Benzing 2022, arXiv 2201.12250", eva_f_values,
     &ng_names_eva},
    {"eva-natgrad", "rankone",
     "ours: Eva with all samples and the textbook scale, so damping means what it means in natgrad",
     "Zhang, Shi & Li 2023 (ICLR), arXiv 2308.02123; scale: arXiv 1602.01407", eva_natgrad_values,
     NULL},
    {"eva-kfac", "kronecker", "the K-FAC that lzhangbv/eva compares itself with",
     "Zhang, Shi & Li 2023 (ICLR), arXiv 2308.02123, where it is the baseline", eva_kfac_values,
     &ng_names_eva_kfac},
    {"adasgd", "rankone",
     "lzhangbv/eva: the gradient over its own squared norm and damping",
     "Zhang, Shi & Li 2023 (ICLR), arXiv 2308.02123, in an ablation", adasgd_values,
     &ng_names_adasgd},
    {"sam", "kronecker",
     "lzhangbv/eva: the gradient plus its product with K-FAC's factors, after SAM",
     "Foret, Kleiner, Mobahi & Neyshabur 2021, arXiv 2010.01412", sam_values, &ng_names_sam},
};
static const char methods_there_are[] =
    "natgrad|kaisa|mpd-kfac|dp-kfac|eva|eva-f|eva-natgrad|eva-kfac|adasgd|sam";
static const char methods_later[] = "spngd|mfac|efcp|ggt";

static const struct variant {
  const char *systems, *variant, *method;
  const char *const *values;
} variant[] = {
    {"kaisa|gpauloski", "eigen", "kaisa", as_the_row},
    {"kaisa|gpauloski", "inverse", "kaisa", ng_kaisa_inverse},
    {"dpkfacrepo|dpkfac|lzhangbv", "eigen", "mpd-kfac", as_the_row},
    {"dpkfacrepo|dpkfac|lzhangbv", "inverse", "mpd-kfac", lz_inverse},
    {"dpkfacrepo|dpkfac|lzhangbv", "eigen_dp", "dp-kfac", as_the_row},
    {"dpkfacrepo|dpkfac|lzhangbv", "inverse_dp", "dp-kfac", lz_inverse},
    {"eva|fusedeva|lzhangbveva", "", "eva", as_the_row},
    {"eva|fusedeva|lzhangbveva", "eva", "eva", as_the_row},
    {"eva|lzhangbveva", "kfac", "eva-kfac", as_the_row},
    {"eva|lzhangbveva", "adasgd", "adasgd", as_the_row},
    {"eva|lzhangbveva", "sam", "sam", as_the_row},
};
static const char systems_there_are[] = "KAISA, DP-KFACrepo and Eva";
static const char systems_later[] = "chainerkfac|efcp|mfac";

static const struct method *find_method(const char *name) {
  for (int32_t i = 0; i < COUNT(method); i++) {
    if (ng_is(method[i].name, name)) return &method[i];
  }
  return NULL;
}

bool ng_method_known(const char *name) { return find_method(name) != NULL; }

const char *ng_method_family(const char *name) {
  const struct method *m = find_method(name);
  return m == NULL ? NULL : m->family;
}

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
  st = ng_options_set_values(&full, m->values, message, size);
  if (st == NG_OK) st = ng_options_set_values(&full, more, message, size);
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
    if (variant[i].variant[0] == 0) continue;
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
  return ng_fail_to(message, message_size, NG_ERR_ARG, "there is no system '%s', there is %s",
                    ng_quote(system).text, systems_there_are);
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
  if (m->names == NULL) {
    return ng_fail_to(message, message_size, NG_ERR_ARG,
                      "'%s': method %s has no published names; use ng_options_set",
                      ng_quote(name).text, m->name);
  }
  double given = 0;
  bool gives_lr = false;
  st = ng_names_take(m->names, m->name, name, value, &full, &given, &gives_lr, message,
                     message_size);
  if (st == NG_OK) st = ng_options_put(o, &full, message, message_size);
  if (st == NG_OK && gives_lr && lr != NULL) *lr = given;
  return st;
}

/* ---- walking the tables ----------------------------------------------------------------------*/

int32_t ng_method_count(void) { return COUNT(method); }

ng_status ng_method_at(int32_t i, ng_method_info *out) {
  if (out == NULL || i < 0 || i >= COUNT(method)) return NG_ERR_ARG;
  const struct method *m = &method[i];
  const ng_method_info info = {sizeof info, m->name,  m->family,
                               m->help,     m->paper, m->names == NULL ? 0 : m->names->count};
  return ng_give_struct(out, &info, sizeof info);
}

ng_status ng_method_published_at(int32_t m, int32_t i, ng_published_info *out) {
  if (out == NULL || m < 0 || m >= COUNT(method) || i < 0) return NG_ERR_ARG;
  const ng_names *names = method[m].names;
  if (names == NULL || i >= names->count) return NG_ERR_ARG;
  const ng_published *p = &names->row[i];
  const ng_published_info info = {sizeof info, p->name, p->option, p->meaning};
  return ng_give_struct(out, &info, sizeof info);
}
