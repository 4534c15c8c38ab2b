/* t_option_effects.c: every option has an effect.  A table gives values with different results, in the whole
 * model, in one layer (per-layer options) and from one step to the next (live options).
 *
 * Directions differ if the largest difference exceeds 1e-3 of the largest entry.  That is a thousand times the
 * rounding of f32 (6e-8) at condition numbers below 1e3, which a damping of 0.1 on factors of order 1 ensures. */
#include "effects.h"

#define D "damping=0.1 clip=none "
#define JOINT D "solver=eigen damping_split=joint "
#define EACH D "solve_period=1 "
#define ONE "method=mfac window=2 damping=0.1 "
#define MFAC ONE "window_scope=parameter "
#define TOPK MFAC "window_store=topk window_density=0.3 "
#define LOWRANK MFAC "window_store=lowrank window_rank=2 "
#define EVA "method=eva-natgrad damping=0.05 clip=none "
#define ADAM "method=adam "
#define MUON "method=torch-muon "
#define SOAP "method=soap solve_period=1 "
#define SHAMPOO "method=shampoo damping=0.1 "
#define SAM "method=sam stat_scale=textbook "

enum { ALL = STEPS };

/* All pairs of values give the same directions in the first `same` steps, and different ones in the next. */
typedef struct effect {
  const char *option, *settings;
  const char *values; /* separated by '|'; further options may follow a value */
  /* ALL: directions agree in all steps; then the number `less` must differ or, without `less`, the last bits of
   * directions */
  int32_t same;
  int32_t ranks; /* number of ranks; 0: one rank */
  /* a number that is smaller with each further value than with the first; NONE: no comparison */
  number less;
  /* bounds of the difference; 0: 1e-3, infinity */
  double least, most;
  const char *later_damping; /* the damping that ng_set sets before the second step */
  bool only_fc1;             /* the weights of other layers are 0 */
  bool falls;                /* lr is 0.5, in the last step 0.05 */
} effect;

static const effect effects[] = {
    {"solver", D, "cholesky|eigen", .same = ALL},
    {"solver", D, "cholesky|eigen damping_split=joint", .same = 0},
    {"solver", SAM, "product radius=0.1|product radius=0.2", .same = 0},
    {"solver", JOINT "solve_period=2", "eigen|eigen-prediv", .same = 1, .later_damping = "10"},
    {"eigen_floor", JOINT, "0|1e20", .same = 0},
    {"damping", "clip=none", "0.1|0.2", .same = 0},
    {"damping", "method=eva clip=none", "0.1|0.2", .same = 0},
    {"damping", MFAC, "0.1|3", .same = 0},
    {"damping_split", D "solver=eigen", "joint|full|pi", .same = 0},
    {"damping_split", D, "pi|full|root", .same = 0},
    {"damping_leak", EACH, "0|owner", .same = 1},
    {"damping_leak", EACH, "owner|all", .same = 1, .ranks = 2},
    {"output_factor", D, "full|diagonal", .same = 0},
    {"radius", SAM, "0.1|0.3", .same = 0},
    {"sides", "method=eva damping=0.1 clip=none", "both|input|none", .same = 0},
    {"stat_decay", EACH, "0.95|0.5", .same = 1},
    {"stat_start", D, "first|identity|zero", .same = 0},
    {"stat_start", EVA, "first|zero", .same = 0},
    {"stat_scale", D, "textbook|kaisa|mpd-kfac", .same = 0},
    {"stat_scale", D, "textbook|chainerkfac", .same = 0},
    {"stat_scale", EVA, "textbook|eva", .same = 0},
    {"positions", D, "expand|reduce", .same = 0},
    {"positions", EVA, "expand|reduce", .same = 0},
    {"stat_batch", D, "0|1", .same = 0},
    {"stat_batch", EVA, "0|1", .same = 0},
    {"calls", D "stat_start=identity stat_decay=0.5", "mean|ema|last", .same = 0},
    {"calls", EVA "stat_decay=0.3", "mean|ema|last", .same = 0},
    {"stat_period", EACH "stat_decay=0.5", "1|2", .same = 1, .less = WANTED},
    {"stat_period", EVA, "1|2", .same = 1, .less = WANTED},
    {"stat_period", MFAC, "1|2", .same = 1},
    {"solve_period", D "stat_decay=0.5", "1|2", .same = 1},
    {"refresh_tolerance", EACH, "0|1e9", .same = 3, .less = WANTED},
    {"refresh_tolerance", EACH, "1e-9|1e9", .same = 3, .less = WANTED},
    {"max_factor", D, "0|3", .same = 0},
    {"max_factor", D, "0|6", .less = FACTORS},
    {"factor_blocks", D, "1|2", .less = FACTORS},
    {"factor_dtype", D, "f32|bf16|f16", .less = FACTORS, .least = 1e-5, .most = 0.3},
    {"inverse_dtype", D, "f32|bf16|f16", .less = RESULTS, .least = 1e-5, .most = 0.3},
    {"factor_dtype", D, "f64|f32", .less = FACTORS, .least = 1e-10, .most = 1e-3},
    {"inverse_dtype", D, "f64|f32", .less = RESULTS, .least = 1e-10, .most = 1e-3},
    {"norm_block", D, "unit|full|diagonal|none", .same = 0},
    {"norm_damping", D, "1|3", .same = 0},
    {"clip", "damping=0.1 clip_bound=0.01", "kl|rescale|none|norm", .same = 0},
    {"clip", "damping=0.1 clip_bound=0.01", "none|ratio|rms|value", .same = 0},
    {"kl_clip", "damping=0.1 clip=kl", "1e-3|1e-5", .same = 0},
    {"clip_bound", "damping=0.1 clip=norm", "0.1|0.001", .same = 0},
    {"first_decay", ADAM, "0.9|0.5", .same = 1},
    {"second_decay", ADAM, "0.99|0.5", .same = 1},
    {"moment_epsilon", ADAM, "1e-8|0.1", .same = 0},
    {"adam_lr", ADAM, "1|0.1", .same = 0},
    {"muon_momentum", MUON, "0.95|0.5", .same = 1},
    {"muon_nesterov", MUON, "0|1", .same = 1},
    {"muon_scale", MUON, "matrix|rms|largest", .same = 0},
    {"muon_scale", MUON, "axes|rms", .same = 0},
    {"muon_steps", MUON, "5|3", .same = 0},
    {"muon_coefficients", MUON, "simple|quintic|deepseekv4 muon_steps=9", .same = 0},
    {"muon_coefficients", MUON, "simple|polar_express|cans|cubic5", .same = 0},
    {"muon_a", MUON, "3.4445|3", .same = 0},
    {"muon_b", MUON, "-4.775|-4.7", .same = 0},
    {"muon_c", MUON, "2.0315|1", .same = 0},
    {"muon_norm", MUON "muon_epsilon=1", "bound|sum", .same = 0},
    {"muon_epsilon", MUON, "1e-7|10", .same = 0},
    {"damping", "method=newton-muon solve_period=1 ", "1|0.1", .same = 0},
    {"muon_rounding", MUON, "none|each|fused", .same = 0, .most = 0.3},
    {"bias_correction", SOAP, "1|0", .same = 1},
    {"max_axis", SOAP, "10000|2", .same = 1},
    {"merge_axes", SOAP, "none|left", .same = 1},
    {"merge_axes", SHAMPOO, "none|right", .same = 0},
    {"max_axis", SHAMPOO "kept_axes=2 grafting=sgd", "100|2", .same = 0},
    {"kept_axes", SHAMPOO, "1|2", .same = 0},
    {"vector_factor", SOAP, "0|1", .same = 1},
    {"basis_moments", SOAP, "permute|rotate", .same = 2},
    {"normalize", SOAP, "0|1", .same = 2},
    {"gram_form", SHAMPOO "stat_decay=0.9", "plain|kl", .same = 0},
    {"gram_form", SHAMPOO "stat_decay=0.9 kept_axes=2", "plain|eigen|qr", .same = 0},
    {"vector_factor", SHAMPOO "gram_form=eigen", "0|1", .same = 0},
    {"root_exponents", SHAMPOO "kept_axes=2", "|'2: 0.5'|'2: 0.5 0; 1: 1'", .same = 0},
    {"root_trace", SHAMPOO, "0|1", .same = 0},
    {"grafting", SHAMPOO, "none|sgd|adam|rmsprop", .same = 0},
    {"grafting", SHAMPOO, "adam|adagrad", .same = 1},
    {"filter_decay", SHAMPOO, "0.9|0.5", .same = 1},
    {"solve_start", SHAMPOO, "0|2", .same = 0},
    {"stat_decay", SHAMPOO, "1|0.9", .same = 1},
    {"skip_layers", D, "|fc1|linear|Conv2d|linear/4", .same = 0},
    {"per_layer", D, "'fc1: damping=2'|'fc2: damping=2'|'linear: damping=2'", .same = 0},
    {"statistics", D "norm_block=none", "all|local", .ranks = 2},
    {"statistics", D "norm_block=none", "all|owner", .same = ALL, .ranks = 2, .less = FACTORS},
    {"statistics", MFAC, "all|sharded", .same = ALL, .ranks = 2, .less = FACTORS},
    {"placement", D "statistics=local norm_block=none", "round-robin|kaisa|spngd", .ranks = 2},
    {"placement", D "statistics=local norm_block=none", "mpd-kfac|contiguous", .ranks = 2},
    {"placement", D "statistics=local norm_block=none", "mpd-kfac|kaisa-memory", .ranks = 2},
    {"placement", D "statistics=local norm_block=none", "spngd|balanced", .ranks = 2},
    {"grad_worker_fraction", D, "1|0", .same = ALL, .ranks = 2, .less = RESULTS},
    {"wire_dtype", D, "f32|bf16|f16", .ranks = 2, .less = SENT, .least = 1e-6, .most = 0.3},
    {"wire_dtype", D "calls=ema", "f32|bf16|f16", .ranks = 2, .less = SENT, .least = 1e-6},
    {"stat_bucket_mb", D, "0|25", .same = ALL, .ranks = 2, .less = MESSAGES},
    {"update_ranks", D "update=sgd", "all|owner", .same = ALL, .ranks = 2, .less = MOMENTS},
    {"update_ranks", D "update=adamw", "all|owner", .same = ALL, .ranks = 2, .less = MOMENTS},
    {"quantify", MFAC "window_momentum=0.5", "1|0", .same = ALL, .less = SCALED},
    {"window", MFAC "window_function=mfac-filled", "1|2", .same = 1},
    {"window", MFAC "window_function=mfac-filled", "2|3", .same = 2},
    {"window_function", "method=mfac damping=0.1 window_scope=parameter window=1",
     "step|adam|adagrad", .same = 0},
    {"window_function", MFAC, "mfac|mfac-filled|ggt", .same = 0},
    {"window_scope", MFAC, "parameter|group", .same = 0},
    {"window_scope", MFAC, "parameter|model", .same = 0},
    {"window_dtype", MFAC, "f32|bf16", .less = FACTORS, .most = 0.02},
    {"window_forget", MFAC "window_function=ggt", "1|0.5", .same = 1},
    {"window_momentum", MFAC, "0.5|0.6", .same = 0},
    {"window_momentum_form", MFAC "window_momentum=0.5", "average|heavy-ball", .same = 0},
    {"window_momentum_form", MFAC "window_momentum=0.5", "average|gradient", .same = 1},
    {"window_decay", MFAC, "0|0.1|0.2", .same = 0},
    {"window_decay_form", MFAC "window_decay=0.1", "gradient|direction|none", .same = 0},
    {"window_mask", MFAC, "0|1", .only_fc1 = true},
    {"window_store", MFAC, "dense|topk window_density=0.3|lowrank window_rank=2", .same = 0},
    {"window_density", TOPK, "0.1|0.5", .same = 0},
    {"window_store", TOPK, "topk|topk-block", .same = 0},
    {"window_store", ONE "window_density=0.3", "topk|topk-layer", .same = 0},
    {"window_feedback_lr", TOPK, "0|1", .falls = true},
    {"window_feedback_lr", LOWRANK, "0|1", .falls = true},
    {"window_rank", LOWRANK, "1|2", .same = 0},
    {"window_fill", TOPK, "none|gradient|rest", .same = 0},
    {"window_fill", TOPK, "none|gradient|added", .same = 0},
    {"window_fill", LOWRANK, "none|added", .same = 0},
    {"window_fill", TOPK, "gradient|error", .same = 1},
    {"window_empty", MFAC "window_function=mfac-filled", "0|0.2", .same = 3, .falls = true},
};
enum { EFFECTS = sizeof effects / sizeof effects[0] };

/* Copy value k of the list to `out`; return false after the last value. */
static bool get_listed_value(const char *values, int k, char out[100]) {
  for (; k > 0 && values != NULL; k--) {
    values = strchr(values, '|');
    if (values != NULL) values++;
  }
  if (values == NULL) return false;
  (void)snprintf(out, 100, "%.*s", (int)strcspn(values, "|"), values);
  return true;
}

static run make_run(const effect *e) {
  run r = usual;
  r.ranks = e->ranks == 0 ? 1 : e->ranks;
  r.only_fc1 = e->only_fc1;
  if (strstr(e->settings, "update=sgd") != NULL) r.step = "sgd";
  if (strstr(e->settings, "update=adamw") != NULL) r.step = "adamw";
  if (e->falls) r.lr = 0.5;
  if (e->falls) r.last_lr = 0.05;
  if (e->later_damping != NULL) r.set = "damping";
  r.value = e->later_damping;
  return r;
}

/* Run with value k of the option; return false after the last value. */
static bool run_value(const effect *e, int k, run *out) {
  char value[100], settings[300];
  if (!get_listed_value(e->values, k, value)) return false;
  (void)snprintf(settings, sizeof settings, "%s; %s=%s", e->settings, e->option, value);
  run r = make_run(e);
  r.settings = settings;
  *out = must_run(r);
  return true;
}

static void expect_difference(const effect *e, const run *a, const run *b, int i, int k) {
  for (int32_t step = 0; step < e->same; step++) {
    if (step_gap(a, b, step) > (e->same == ALL ? 1e-3 : 1e-5))
      fail_msg("%s (%s): values %d and %d differ in step %d", e->option, e->settings, i, k, step);
  }
  if (e->same == ALL) {
    if (e->less == NONE) assert_memory_not_equal(a->rank[0].P, b->rank[0].P, sizeof a->rank[0].P);
    return;
  }
  const double gap = step_gap(a, b, e->same), least = e->least > 0 ? e->least : 1e-3;
  if (!(gap > least && gap < (e->most > 0 ? e->most : 1e12)))
    fail_msg("%s (%s): step %d of values %d and %d differs by %g", e->option, e->settings, e->same,
             i, k, gap);
}

static void option_values_have_different_effects(void **state) {
  for (const effect *e = effects; e < effects + EFFECTS; e++) {
    static run r[5];
    int n = 0;
    while (run_value(e, n, &r[n]))
      n++;
    for (int k = 1; k < n; k++) {
      for (int i = 0; i < k; i++)
        expect_difference(e, &r[i], &r[k], i, k);
      for (int32_t q = 0; q < r[k].ranks && e->less != NONE; q++) {
        if (r[k].rank[q].quantity[e->less] >= r[0].rank[q].quantity[e->less])
          fail_msg("%s (%s): value %d is not less than the first", e->option, e->settings, k);
      }
    }
  }
}

/* ---- the table is complete -------------------------------------------------------------------*/

static ng_option_info get_option_info(const char *option) {
  ng_option_info info = {.struct_size = sizeof info};
  assert_int_equal(ng_option_at(ng_option_find(option), &info), NG_OK);
  return info;
}

/* Tests of these options: update_decides_the_step_and_the_moments, t_bindings, t_plan_places, t_oracle,
 * t_overhead, t_groups, t_gradient_rows. */
static const char *const tested_elsewhere[] = {"update",   "missing",     "colocate",     "spatial",
                                               "overhead", "decay_after", "gradient_rows"};

static bool is_tested(const char *option, const char *choice) {
  for (size_t i = 0; i < sizeof tested_elsewhere / sizeof tested_elsewhere[0]; i++) {
    if (strcmp(tested_elsewhere[i], option) == 0) return true;
  }
  for (const effect *e = effects; e < effects + EFFECTS; e++) {
    char value[100];
    for (int k = 0; strcmp(e->option, option) == 0 && get_listed_value(e->values, k, value); k++) {
      value[strcspn(value, " ")] = 0;
      if (choice == NULL || strcmp(value, choice) == 0) return true;
    }
  }
  return false;
}

static void every_option_and_choice_is_tested(void **state) {
  ng_option_info info = {.struct_size = sizeof info};
  for (int32_t i = 0; ng_option_at(i, &info) == NG_OK; i++) {
    char choice[100];
    if (!is_tested(info.name, NULL)) fail_msg("%s", info.name);
    for (int k = 0; info.choices[0] != 0 && get_listed_value(info.choices, k, choice); k++) {
      if (!is_tested(info.name, choice)) fail_msg("%s = %s", info.name, choice);
    }
  }
}

/* ---- one layer -------------------------------------------------------------------------------*/

/* A layer's own value changes this layer only. */
static void expect_own_layer_changes(const run *base, const run *over, const char *what) {
  bool changed = false;
  for (int32_t step = 0; step < STEPS; step++) {
    for (int32_t i = 0; i < LAYERS; i++) {
      const double gap = layer_gap(base, over, step, i);
      if (i != base->own_layer && gap > 0)
        fail_msg("%s of one layer changes the layer %s", what, layer[i].name);
      if (gap > 1e12) fail_msg("%s: not finite", what);
      changed = changed || gap > 0;
    }
  }
  if (!changed) fail_msg("%s of a layer does not change the layer", what);
}

/* Options of a window over all layers and of sam belong to the whole model. */
static bool applies_to_one_layer(const effect *e) {
  const bool window = strstr(e->settings, "method=mfac") != NULL;
  return strstr(e->settings, "method=sam") == NULL && !e->only_fc1 &&
         (!window || strstr(e->settings, "window_scope=parameter") != NULL);
}

static void per_layer_options_change_one_layer(void **state) {
  for (const effect *e = effects; e < effects + EFFECTS; e++) {
    char one[100], two[100], settings[300], own[200];
    if (!get_option_info(e->option).per_layer || !applies_to_one_layer(e)) continue;
    assert_true(get_listed_value(e->values, 0, one) && get_listed_value(e->values, 1, two));
    run r = make_run(e);
    (void)snprintf(settings, sizeof settings, "%s; %s=%s", e->settings, e->option, one);
    (void)snprintf(own, sizeof own, "%s=%s", e->option, two);
    r.settings = settings;
    r.own_layer = strncmp(e->option, "norm_", 5) == 0 ? BN : FC1;
    const run base = must_run(r);
    r.layer_options = own;
    const run over = must_run(r);
    expect_own_layer_changes(&base, &over, own);
  }
}

/* A line of per_layer equals ng_layer.options of the layers that it names, by name or kind.  The first matching
 * line counts, after the layer's own options. */
static void lines_of_per_layer_equal_layer_options(void **state) {
  static const char *const one[] = {"fc1: damping=3", "fc1:\tdamping=3 ",
                                    "[a-f]?1: damping=3; fc*: damping=0.1; conv*: damping=0.1"};
  run own = usual, mine = usual;
  char settings[200];
  own.settings = D;
  own.layer_options = mine.layer_options = "damping=3";
  own = must_run(own);
  for (int i = 0; i < 3; i++) {
    (void)snprintf(settings, sizeof settings, D "per_layer='%s'", one[i]);
    const run a = must_run_with(settings);
    assert_memory_equal(a.rank[0].P, own.rank[0].P, sizeof a.rank[0].P);
  }
  mine.settings = D "per_layer='fc*: damping=4'";
  mine = must_run(mine);
  assert_true(layer_gap(&mine, &own, 0, FC1) == 0 && layer_gap(&mine, &own, 0, FC2) > 1e-3);
}

/* A layer with a method of its own has that method's values, whatever the model's values are. */
static void a_layer_with_a_method_has_its_values(void **state) {
  static const char *const model[] = {"", "solver=eigen damping_split=joint stat_decay=0.5"};
  static const char *const row[][2] = {
      {"method=mfac window=2 damping=0.1", "method=mfac window=2 damping=0.1"},
      {"method=ggt damping=0.1 window=2", "method=ggt window=2 damping=0.1"},
      {"damping=0.5 window_density=0.3 method=efcp", "method=efcp window_density=0.3 damping=0.5"},
      {"method=eva", "method=eva clip=none"},
      {"method=kaisa solve_period=2", "method=kaisa solve_period=2 clip=none"}};
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
    char base[128], mixed[256], alone[200];
    (void)snprintf(base, sizeof base, "damping=0.2 clip=none %s", model[i % 2]);
    (void)snprintf(mixed, sizeof mixed, "%s per_layer='fc1: %s'", base, row[i][0]);
    (void)snprintf(alone, sizeof alone, "%s skip_layers='conv*,fc2,bn'", row[i][1]);
    const run a = must_run_with(base), b = must_run_with(mixed), c = must_run_with(alone);
    expect_own_layer_changes(&a, &b, mixed);
    for (int32_t step = 0; step < STEPS; step++)
      assert_true(layer_gap(&b, &c, step, FC1) == 0);
  }
}

/* ---- live options ----------------------------------------------------------------------------*/

static void live_options_change_later_steps(void **state) {
  for (const effect *e = effects; e < effects + EFFECTS; e++) {
    char one[100], two[100], settings[300];
    const bool live = get_option_info(e->option).live;
    if (!live && e > effects && strcmp(e[-1].option, e->option) == 0) continue;
    assert_true(get_listed_value(e->values, 0, one) && get_listed_value(e->values, 1, two));
    const bool solves = live && strstr(e->settings, "method=") == NULL;
    (void)snprintf(settings, sizeof settings, "%s; %s=%s%s", e->settings, e->option, one,
                   solves ? "; solve_period=1" : "");
    run r = make_run(e);
    r.settings = settings;
    const run base = must_run(r);
    r.set = e->option;
    r.value = two;
    if (!live) {
      if (try_run(&r) != NG_ERR_STATE) fail_msg("ng_set changed %s after ng_ready", e->option);
      continue;
    }
    const run moved = must_run(r);
    double gap = 0;
    assert_true(step_gap(&base, &moved, 0) == 0);
    for (int32_t step = 1; step < STEPS; step++)
      gap = fmax(gap, step_gap(&base, &moved, step));
    if (!(gap > 1e-3 && gap < 1e12)) fail_msg("%s (%s): no effect", e->option, e->settings);
  }
}

/* ---- effects elsewhere -----------------------------------------------------------------------*/

/* `update` decides which step function is allowed, and how much memory the moments need. */
static void update_decides_the_step_and_the_moments(void **state) {
  static const char *const name[] = {"gradient", "sgd", "adamw"};
  static run out[3];
  for (int i = 0; i < 3; i++) {
    run r = usual;
    char settings[64];
    (void)snprintf(settings, sizeof settings, "damping=0.1 gradient_rows=0 update=%s", name[i]);
    r.settings = settings;
    for (int k = 0; k < 3; k++) {
      r.step = name[k];
      if (k == i) out[i] = must_run(r);
      if (k != i) assert_int_equal(try_run(&r), NG_ERR_STATE);
    }
    assert_true(out[i].rank[0].quantity[MOMENTS] >= i * (int64_t)(TOTAL * sizeof(float)));
    for (int k = 0; k < i; k++)
      assert_memory_not_equal(out[i].rank[0].weight, out[k].rank[0].weight,
                              sizeof out[0].rank[0].weight);
  }
  assert_int_equal(out[0].rank[0].quantity[MOMENTS], 0);
}

/* These values are refused only with layers; t_options_check has the others. */
static void layer_options_must_suit_the_model(void **state) {
  static const char *const row[][3] = {
      {"damping=0.1", "solver=product", "solver"},
      {"damping=0.1 statistics=local colocate=0", NULL, "set colocate = 1"}};
  for (int i = 0; i < 2; i++) {
    run r = usual;
    r.ranks = 2;
    r.settings = row[i][0];
    r.layer_options = row[i][1];
    assert_int_equal(try_run(&r), NG_ERR_ARG);
    if (strstr(r.rank[0].message, row[i][2]) == NULL) fail_msg("%s", r.rank[0].message);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(option_values_have_different_effects),
      cmocka_unit_test(every_option_and_choice_is_tested),
      cmocka_unit_test(per_layer_options_change_one_layer),
      cmocka_unit_test(lines_of_per_layer_equal_layer_options),
      cmocka_unit_test(a_layer_with_a_method_has_its_values),
      cmocka_unit_test(live_options_change_later_steps),
      cmocka_unit_test(update_decides_the_step_and_the_moments),
      cmocka_unit_test(layer_options_must_suit_the_model),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
