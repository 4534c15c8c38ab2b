/* option_find.c: describe a row of the option table (ng_option_at), find a row by name, list removed options. */
#include "option/option.h"

int32_t ng_option_count(void) { return NG_OPTION_COUNT; }

const char *ng_trait_text(uint32_t trait) {
  return trait == NG_TRAIT_FACTORS   ? "Kronecker factors"
         : trait & NG_TRAIT_SOLVES   ? "a solve"
         : trait == NG_TRAIT_VECTORS ? "mean vectors"
         : trait == NG_TRAIT_WINDOW  ? "a window"
         : trait == NG_TRAIT_MOMENTS ? "Adam's moments"
         : trait == NG_TRAIT_MUON    ? "a Newton-Schulz iteration"
         : trait == NG_TRAIT_AXES    ? "matrices of gradient axes"
         : trait == NG_TRAIT_ROOTS   ? "roots of matrices"
                                     : "";
}

ng_status ng_option_at(int32_t i, ng_option_info *out) {
  if (out == NULL || i < 0 || i >= NG_OPTION_COUNT) return NG_ERR_ARG;
  const ng_option_row *row = &ng_option_table[i];
  const ng_option_info info = {
      .struct_size = sizeof info,
      .name = row->name,
      .group = row->group,
      .type = row->type,
      .standard = row->default_text,
      .lower = row->lower,
      .upper = row->type == NG_OPTION_BOOL ? 1 : row->upper,
      .lower_open = row->lower_open,
      .choices = row->choices == NULL ? "" : row->choices,
      .unit = row->unit == NULL ? "" : row->unit,
      .help = row->help,
      .test = "t_option_effects",
      .per_layer = row->per_layer,
      .live = row->can_change,
      .trait = ng_trait_text(row->trait),
      .needs = row->needs[0].exists ? ng_option_name(row->needs[0].option) : "",
  };
  return ng_struct_write(out, &info, sizeof info);
}

/* Compare names.  '-' and '_' are equal, because command lines use '-'. */
static bool is_same_name(const char *a, const char *b) {
  for (; *a != 0 || *b != 0; a++, b++) {
    if ((*a == '-' ? '_' : *a) != (*b == '-' ? '_' : *b)) return false;
  }
  return true;
}

int32_t ng_option_find(const char *name) {
  if (name == NULL) return -1;
  for (int32_t i = 0; i < NG_OPTION_COUNT; i++) {
    if (is_same_name(name, ng_option_table[i].name)) return i;
  }
  return -1;
}

/* Ends with a NULL. */
static const ng_removed_option removed_options[] = {
    {"call_weight", "samples",
     "stat_scale = kaisa, eva or chainerkfac gives observations equal weights"},
    {"cholesky_form", "auto", "the library stores the cheaper form at this solve_period"},
    {"exclude_width", "0", "skip_layers = linear/N names the linear layers with N outputs"},
    {"fold", "sum", "observations of a step are always summed first"},
    {"leak_ranks", "owner", "damping_leak = owner or all selects the ranks"},
    {"placement_cost", "compute", "with placement = kaisa-memory a factor of order n costs n^2"},
    {"prediv", "0", "solver = eigen-prediv divides by the damping of the last solve"},
    {"schedule", "",
     "call ng_set_real between steps; natgrad train has --schedule, the PyTorch front takes "
     "functions of the step"},
    {"stat_refresh", "period", "refresh_tolerance above 0 makes refreshes adaptive"},
    {"symmetry_aware", "1", "symmetric sums are always sent as one triangle"},
    {"window_divisor", "window", "window_function = mfac-filled divides by the stored gradients"},
    {"window_rest", "kept", "window_fill = added adds the part that was not stored"},
    {"window_topk", "global", "window_store = topk-layer or topk-block selects in parts"},
    {NULL, NULL, NULL}};

const ng_removed_option *ng_find_removed_option(const char *name) {
  const ng_removed_option *g = removed_options;
  while (g->name != NULL && !is_same_name(name, g->name)) {
    g++;
  }
  return g->name == NULL ? NULL : g;
}

const char *ng_settable_name(int32_t i) {
  if (i == NG_OPTION_COUNT) return "method";
  return i < NG_OPTION_COUNT ? ng_option_table[i].name
                             : removed_options[i - NG_OPTION_COUNT - 1].name;
}

ng_status ng_option_lookup(const char *name, const ng_option_row **row, char *message,
                           size_t size) {
  const int32_t i = ng_option_find(name);
  if (i >= 0) {
    *row = &ng_option_table[i];
    return NG_OK;
  }
  if (name == NULL) return ng_fail_to(message, size, NG_ERR_ARG, "the option's name is NULL");
  const ng_removed_option *gone = ng_find_removed_option(name);
  if (gone != NULL) {
    return ng_fail_to(message, size, NG_ERR_ARG, "option '%s' was removed: %s", gone->name,
                      gone->replacement);
  }
  if (ng_is(name, "method")) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "method is a name: use ng_options_set and ng_options_get");
  }
  return ng_fail_to(message, size, NG_ERR_ARG, "there is no option '%s'%s", ng_shorten(name).text,
                    ng_hint_of(ng_nearest(name, ng_settable_name, NG_OPTION_COUNT + 1)).text);
}
