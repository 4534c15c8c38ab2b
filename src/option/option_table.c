/* option_table.c: every option, once.
 *
 * In comes nothing, out goes a const table: name, default, bounds, choices, help, and the test that
 * shows two values of the option giving different results.  ng_options_init, NG_<NAME> in the
 * environment, --<name> on the command line, `natgrad info --options` and the man page are all read
 * from here; tests/t_options.c and tests/cli/options_in_sync.sh walk them against each other.
 *
 * To add an option: append the field to ng_options in natgrad.h (never insert), add a row here in
 * the same order, and write effect_<name> in tests/t_option_effects.c.
 *
 * The defaults are those of method "natgrad"; what other methods change is in methods.c. */
#include "option/option.h"

/* A choice list is needed twice, as one text for people and as pointers to store; both come from
 * the same literals. */
#define ONE_OF_1(a) .choices = a, .choice = {a}
#define ONE_OF_2(a, b) .choices = a "|" b, .choice = {a, b}
#define ONE_OF_3(a, b, c) .choices = a "|" b "|" c, .choice = {a, b, c}
#define ONE_OF_6(a, b, c, d, e, f)                                                                 \
  .choices = a "|" b "|" c "|" d "|" e "|" f, .choice = {a, b, c, d, e, f}
#define ONE_OF_4(a, b, c, d) .choices = a "|" b "|" c "|" d, .choice = {a, b, c, d}

/* Options that the other families have no use for: with a method of theirs they stay as they are. */
#define KRONECKER .family = "kronecker"

#define AT(kind, field)                                                                            \
  .name = #field, .type = NG_OPTION_##kind, .offset = offsetof(ng_options, field)

/* Counts stop where a double still holds every whole number, because the bounds are doubles. */
#define COUNT_MAX 1e15
/* f32 arithmetic has to hold lambda times an eigenvalue. */
#define REAL_MAX 1e30

const ng_option_row ng_option_table[] = {
    /* Curvature */
    {AT(CHOICE, solver), .group = "curvature", .standard = "cholesky",
     ONE_OF_3("cholesky", "eigen", "product"),
     .help = "how a damped factor is inverted: cholesky damps each factor, eigen can damp the "
             "product of both; product multiplies by the factors instead, see radius",
     .test = "effect_solver", KRONECKER, .per_layer = true},
    {AT(CHOICE, cholesky_form), .group = "curvature", .standard = "auto",
     ONE_OF_3("auto", "inverse", "factor"),
     .help = "cholesky: keep the inverse, or the triangular factor and solve with it; auto takes "
             "what solve_period makes cheaper",
     .test = "effect_cholesky_form", KRONECKER, .per_layer = true},
    {AT(BOOL, prediv), .group = "curvature", .standard = "0",
     .help = "eigen: keep 1/(d_G d_A + lambda) as it was at the last solve, instead of dividing "
             "anew by the damping of the step",
     .test = "effect_prediv", KRONECKER, .per_layer = true},
    {AT(REAL, eigen_floor), .group = "curvature", .standard = "0", .lower = 0, .upper = REAL_MAX,
     .unit = "eigenvalue", .help = "eigen: eigenvalues at or below it count as 0",
     .test = "effect_eigen_floor", KRONECKER, .per_layer = true, .live = true},
    {AT(REAL, damping), .group = "curvature", .standard = "0.1", .lower = 0, .upper = REAL_MAX,
     .lower_open = true, .unit = "curvature",
     .help = "lambda, added to the curvature before it is inverted", .test = "effect_damping",
     .per_layer = true, .live = true},
    {AT(CHOICE, damping_split), .group = "curvature", .standard = "pi",
     ONE_OF_3("joint", "full", "pi"),
     .help = "where lambda goes: joint on the product of eigenvalues, full on each factor, pi as "
             "sqrt(lambda) pi on A and sqrt(lambda)/pi on G",
     .test = "effect_damping_split", KRONECKER, .per_layer = true},
    {AT(BOOL, damping_leak), .group = "curvature", .standard = "0",
     .help = "leave the shift in the running average after a solve, as published MPD-KFAC and "
             "DP-KFAC do",
     .test = "effect_damping_leak", KRONECKER, .per_layer = true},

    /* Statistics */
    {AT(REAL, stat_decay), .group = "statistics", .standard = "0.95", .lower = 0, .upper = 1,
     .unit = "weight", .help = "rho, the weight of the old running average",
     .test = "effect_stat_decay", .per_layer = true, .live = true},
    {AT(CHOICE, stat_start), .group = "statistics", .standard = "first",
     ONE_OF_3("first", "identity", "zero"),
     .help = "the running average before the first sample; first takes the first statistics "
             "unweighted",
     .test = "effect_stat_start", .per_layer = true},
    {AT(CHOICE, stat_scale), .group = "statistics", .standard = "textbook",
     ONE_OF_4("textbook", "kaisa", "mpd-kfac", "eva"),
     .help = "what the statistics are divided by: textbook makes damping mean the same for every "
             "batch, image and rank count; eva takes plain means",
     .test = "effect_stat_scale", .per_layer = true},
    {AT(CHOICE, positions), .group = "statistics", .standard = "expand",
     ONE_OF_2("expand", "reduce"),
     .help = "positions of a sequence or image are samples of their own, or are averaged first",
     .test = "effect_positions", .per_layer = true},
    {AT(INT, stat_batch), .group = "statistics", .standard = "0", .lower = 0, .upper = COUNT_MAX,
     .unit = "samples", .help = "use the first so many samples of a micro-batch only; 0 means all",
     .test = "effect_stat_batch", .per_layer = true},
    {AT(CHOICE, calls), .group = "statistics", .standard = "mean", ONE_OF_3("mean", "ema", "last"),
     .help = "several observations of a layer in one step: their mean, one running average update "
             "each, or the last one only",
     .test = "effect_calls", .per_layer = true},
    {AT(CHOICE, call_weight), .group = "statistics", .standard = "samples",
     ONE_OF_2("samples", "equal"),
     .help = "weight of one observation in the mean over a step and over ranks",
     .test = "effect_call_weight", .per_layer = true},
    {AT(CHOICE, fold), .group = "statistics", .standard = "sum", ONE_OF_2("sum", "direct"),
     .help = "sum observations of a step before they enter the running average, or add the only "
             "one directly, which halves the memory of the factors",
     .test = "effect_fold", KRONECKER},
    {AT(INT, stat_period), .group = "statistics", .standard = "1", .lower = 1, .upper = COUNT_MAX,
     .unit = "steps", .help = "steps from one observation to the next",
     .test = "effect_stat_period", .per_layer = true, .live = true},
    {AT(INT, solve_period), .group = "statistics", .standard = "10", .lower = 1, .upper = COUNT_MAX,
     .unit = "steps", .help = "steps from one solve to the next", .test = "effect_solve_period",
     KRONECKER, .per_layer = true, .live = true},
    {AT(INT, max_factor), .group = "statistics", .standard = "0", .lower = 0, .upper = COUNT_MAX,
     .unit = "columns",
     .help = "a wider factor becomes diagonal blocks no wider than this; 0 never cuts",
     .test = "effect_max_factor", KRONECKER, .per_layer = true},
    {AT(INT, factor_blocks), .group = "statistics", .standard = "1", .lower = 1, .upper = COUNT_MAX,
     .unit = "blocks", .help = "cut every factor into at least so many diagonal blocks",
     .test = "effect_factor_blocks", KRONECKER, .per_layer = true},
    {AT(CHOICE, factor_dtype), .group = "statistics", .standard = "f32",
     ONE_OF_3("f32", "bf16", "f16"), .later = "f64", .help = "how running averages are kept",
     .test = "effect_factor_dtype", KRONECKER, .per_layer = true},
    {AT(CHOICE, inverse_dtype), .group = "statistics", .standard = "f32",
     ONE_OF_3("f32", "bf16", "f16"), .later = "f64",
     .help = "how inverses and eigenvectors are kept", .test = "effect_inverse_dtype", KRONECKER,
     .per_layer = true},

    /* Clip */
    {AT(CHOICE, clip), .group = "clip", .standard = "kl",
     ONE_OF_6("kl", "rescale", "norm", "ratio", "rms", "none"),
     .help = "what preconditioned gradients are multiplied by: kl bounds the step in distribution, "
             "rescale keeps the norm of the gradient, norm bounds the norm of all, ratio and rms "
             "that of each weight and bias",
     .test = "effect_clip", .live = true},
    {AT(REAL, kl_clip), .group = "clip", .standard = "0.001", .lower = 0, .upper = REAL_MAX,
     .lower_open = true, .unit = "KL", .help = "kappa, the bound of clip = kl",
     .test = "effect_kl_clip", .live = true},

    /* Layers */
    {AT(TEXT, skip_layers), .group = "layers", .standard = "",
     .help = "POSIX extended regular expression, searched in the name and the kind of a layer; "
             "what matches keeps its gradient",
     .test = "effect_skip_layers"},
    {AT(INT, exclude_width), .group = "layers", .standard = "0", .lower = 0, .upper = COUNT_MAX,
     .unit = "outputs", .help = "linear layers with so many outputs keep their gradient; 0: none",
     .test = "effect_exclude_width"},

    /* Schedule */
    {AT(TEXT, schedule), .group = "schedule", .standard = "",
     .help = "entries NAME*F@T1,T2 (base times F at each step), NAME*=F@T1,T2 (the current value "
             "times F, periods cut to whole steps), stat_decay~M (min(1 - 1/max(t,1), M))",
     .test = "effect_schedule", .form = ng_schedule_form},

    /* Ranks */
    {AT(CHOICE, statistics), .group = "ranks", .standard = "all", ONE_OF_2("all", "local"),
     .later = "owner|sharded",
     .help = "factors over the batches of all ranks, or over the owner's batch only",
     .test = "effect_statistics", KRONECKER},
    {AT(CHOICE, placement), .group = "ranks", .standard = "round-robin", ONE_OF_1("round-robin"),
     .later = "kaisa|contiguous|balanced",
     .help = "which rank solves a block: block i, rank i mod W", .test = "effect_placement"},
    {AT(REAL, grad_worker_fraction), .group = "ranks", .standard = "1", .lower = 0, .upper = 1,
     .unit = "ranks/W",
     .help = "share of the ranks that hold the inverse of a block; 0: the owner only",
     .test = "effect_grad_worker_fraction", KRONECKER},

    /* Update */
    {AT(CHOICE, update), .group = "update", .standard = "gradient",
     ONE_OF_3("gradient", "sgd", "adamw"),
     .help = "which step will be called: ng_step, ng_step_sgd or ng_step_adamw",
     .test = "effect_update"},

    /* The rank-one family's own */
    {AT(CHOICE, sides), .group = "curvature", .standard = "both", ONE_OF_3("both", "input", "none"),
     .help = "rank one: mean vectors of inputs and output gradients, or of inputs only, or none, "
             "and the squared norm of the gradient",
     .test = "effect_sides", .family = "rankone", .per_layer = true},

    /* Came later */
    {AT(REAL, clip_bound), .group = "clip", .standard = "0", .lower = 0, .upper = REAL_MAX,
     .unit = "norm", .help = "the bound of clip = norm, ratio, rms: |PD|, |PD|/|w|, rms(PD)",
     .test = "effect_clip_bound", .live = true},
    {AT(REAL, radius), .group = "curvature", .standard = "0", .lower = 0, .upper = REAL_MAX,
     .unit = "norm", .help = "solver = product: PD = D + radius/|D| G D A", KRONECKER,
     .test = "effect_radius"},
};

const int32_t ng_option_rows = (int32_t)(sizeof ng_option_table / sizeof ng_option_table[0]);

/* Masks of options are 64 bits wide. */
_Static_assert(sizeof ng_option_table / sizeof ng_option_table[0] <= 64, "more options than bits");

const char *const ng_live_name[NG_LIVE_COUNT] = {
    [NG_LIVE_DAMPING] = "damping",  [NG_LIVE_DECAY] = "stat_decay",   [NG_LIVE_KL] = "kl_clip",
    [NG_LIVE_STAT] = "stat_period", [NG_LIVE_SOLVE] = "solve_period",
};

int32_t ng_option_count(void) { return ng_option_rows; }

ng_status ng_option_at(int32_t i, ng_option_info *out) {
  if (out == NULL || i < 0 || i >= ng_option_rows) return NG_ERR_ARG;
  const ng_option_row *row = &ng_option_table[i];
  const bool number = row->type == NG_OPTION_REAL || row->type == NG_OPTION_INT;
  const ng_option_info info = {
      .struct_size = sizeof info,
      .name = row->name,
      .group = row->group,
      .type = row->type,
      .standard = row->standard,
      .lower = number ? row->lower : 0,
      .upper = number                        ? row->upper
               : row->type == NG_OPTION_BOOL ? 1
                                             : 0,
      .lower_open = row->lower_open,
      .choices = row->choices == NULL ? "" : row->choices,
      .unit = row->unit == NULL ? "" : row->unit,
      .help = row->help,
      .test = row->test,
      .per_layer = row->per_layer,
      .live = row->live,
      .family = row->family == NULL ? "" : row->family,
  };
  return ng_give_struct(out, &info, sizeof info);
}

/* Command lines write '-' where C writes '_'. */
static bool same_name(const char *a, const char *b) {
  for (; *a != 0 || *b != 0; a++, b++) {
    if ((*a == '-' ? '_' : *a) != (*b == '-' ? '_' : *b)) return false;
  }
  return true;
}

int32_t ng_option_find(const char *name) {
  if (name == NULL) return -1;
  for (int32_t i = 0; i < ng_option_rows; i++) {
    if (same_name(name, ng_option_table[i].name)) return i;
  }
  return -1;
}

static const char *name_at(int32_t i) { return ng_option_table[i].name; }

ng_status ng_option_lookup(const char *name, const ng_option_row **row, char *message,
                           size_t size) {
  const int32_t i = ng_option_find(name);
  if (i >= 0) {
    *row = &ng_option_table[i];
    return NG_OK;
  }
  if (name == NULL) return ng_fail_to(message, size, NG_ERR_ARG, "the option's name is NULL");
  if (ng_is(name, "method")) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "method sets all options at once; use ng_options_set_method");
  }
  return ng_fail_to(message, size, NG_ERR_ARG, "there is no option '%s'%s", ng_quote(name).text,
                    ng_hint_of(ng_nearest(name, name_at, ng_option_rows)).text);
}
