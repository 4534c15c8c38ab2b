/* option_table.c: every option, once.
 *
 * In comes nothing, out goes a const table: name, default, bounds, choices, help, and the test that
 * shows two values of the option giving different results.  ng_options_create, NG_<NAME> in the
 * environment, --<name> on the command line, `natgrad info --options` and the man page are all read
 * from here; tests/t_options.c and tests/cli/options_in_sync.sh walk them against each other.
 *
 * To add an option: a line in the list of natgrad.h, one in NG_OPTION_LIST of settings.h, a row here,
 * and write effect_<name> in tests/t_option_effects*.c.
 *
 * The defaults are those of method "natgrad"; what other methods change is in methods.c. */
#include "option/option.h"

/* The kind of an option by its name, so that a row need not repeat it. */
#define KIND(kind, name, type) KIND_##name = NG_OPTION_##kind,
enum { NG_OPTION_LIST(KIND) };

/* The id places the row, so the order in which rows are written does not matter (it is the header's
 * for people), and a second row for one option is a warning of the compiler. */
#define ROW(field, ...)                                                                            \
  [NG_OPTION_##field] = {.name = #field,                                                           \
                         .type = (ng_option_type)KIND_##field,                                     \
                         .offset = offsetof(ng_options, field),                                    \
                         __VA_ARGS__}

/* Pairs of an enum's value and its text.  The texts are needed twice, as one list for people, in
 * this order, and each at the place of its value, for the parser; both come from the same literals.
 * A dtype's values are those of ng_dtype, so its list has holes. */
#define ONE_OF_1(a, at) .choices = at, .choice = {[a] = at}
#define ONE_OF_2(a, at, b, bt) .choices = at "|" bt, .choice = {[a] = at, [b] = bt}
#define ONE_OF_3(a, at, b, bt, c, ct)                                                              \
  .choices = at "|" bt "|" ct, .choice = {[a] = at, [b] = bt, [c] = ct}
#define ONE_OF_4(a, at, b, bt, c, ct, d, dt)                                                       \
  .choices = at "|" bt "|" ct "|" dt, .choice = {[a] = at, [b] = bt, [c] = ct, [d] = dt}
#define ONE_OF_5(a, at, b, bt, c, ct, d, dt, e, et)                                                \
  .choices = at "|" bt "|" ct "|" dt "|" et,                                                       \
  .choice = {[a] = at, [b] = bt, [c] = ct, [d] = dt, [e] = et}
#define ONE_OF_6(a, at, b, bt, c, ct, d, dt, e, et, f, ft)                                         \
  .choices = at "|" bt "|" ct "|" dt "|" et "|" ft,                                                \
  .choice = {[a] = at, [b] = bt, [c] = ct, [d] = dt, [e] = et, [f] = ft}
#define ONE_OF_7(a, at, b, bt, c, ct, d, dt, e, et, f, ft, g, gt)                                  \
  .choices = at "|" bt "|" ct "|" dt "|" et "|" ft "|" gt,                                         \
  .choice = {[a] = at, [b] = bt, [c] = ct, [d] = dt, [e] = et, [f] = ft, [g] = gt}

/* Options that the other families have no use for: with a method of theirs they stay as they are;
 * ng_family_check_others sees to it. */
#define KRONECKER .family = "kronecker"

/* Has an effect only where another option has one of some values, a bit each.  Not for what is an error
 * then: that is for the check of the family. */
#define NEED(which, values)                                                                        \
  { .there = true, .option = NG_OPTION_##which, .one_of = (values) }
#define NEEDS(which, values) .needs = {NEED(which, values)}
/* Or of another choice. */
#define NEEDS_EITHER(which, values, other, others)                                                 \
  .needs = {NEED(which, values), NEED(other, others)}
/* Where a number is above 0. */
#define NEEDS_ABOVE(which) .needs = {NEED(which, 0)}
#define STATISTICS .group = "statistics", NEEDS(sides, 1U << NG_SIDES_BOTH | 1U << NG_SIDES_INPUT)

/* What a window keeps is decided at ng_ready, for all layers in it: those with the same line. */
#define WINDOW .group = "window", .family = "window", .per_layer = true

/* Bounds are those of the arithmetic behind, not of taste: a value that only trains badly is the
 * user's to choose.  A bound that is too narrow cannot be lifted by the user. */
/* Counts stop where a double still holds every whole number, because the bounds are doubles. */
#define COUNT_MAX 1e15
/* f32 arithmetic has to hold lambda times an eigenvalue.  FLT_MAX leaves 3e8 for the latter. */
#define REAL_MAX 1e30

const ng_option_row ng_option_table[NG_OPTION_COUNT] = {
    /* Curvature: what is inverted and how.  All of it is work done for one layer alone, so a layer
     * may have its own; radius, which scales by the gradient of all, may not. */
    ROW(solver, .group = "curvature", .standard = "cholesky",
        ONE_OF_3(NG_SOLVER_CHOLESKY, "cholesky", NG_SOLVER_EIGEN, "eigen", NG_SOLVER_PRODUCT,
                 "product"),
        .help = "how a damped factor is inverted: cholesky damps each factor, eigen can damp the "
                "product of both; product multiplies by the factors instead, see radius",
        .test = "effect_solver", KRONECKER, .per_layer = true),
    ROW(cholesky_form, .group = "curvature", .standard = "auto",
        ONE_OF_3(NG_FORM_AUTO, "auto", NG_FORM_INVERSE, "inverse", NG_FORM_FACTOR, "factor"),
        .help =
            "cholesky: keep the inverse, or the triangular factor and solve with it; auto takes "
            "what solve_period makes cheaper",
        .test = "effect_cholesky_form", KRONECKER, .per_layer = true),
    ROW(prediv, .group = "curvature", .standard = "0",
        .help = "eigen: keep 1/(d_G d_A + lambda) as it was at the last solve, instead of dividing "
                "anew by the damping of the step",
        .test = "effect_prediv", KRONECKER, .per_layer = true),
    ROW(eigen_floor, .group = "curvature", .standard = "0", .lower = 0, .upper = REAL_MAX,
        .unit = "eigenvalue", .help = "eigen: eigenvalues at or below it count as 0",
        .test = "effect_eigen_floor", KRONECKER, .per_layer = true, .live = true),
    ROW(damping, .group = "curvature", .standard = "0.1", .lower = 0, .upper = REAL_MAX,
        .lower_open = true, .unit = "curvature",
        .help = "lambda, added to the curvature before it is inverted", .test = "effect_damping",
        .per_layer = true, .live = true,
        NEEDS(window_function, 1U << NG_WINDOW_MFAC | 1U << NG_WINDOW_GGT | 1U << NG_WINDOW_ADAM |
                                   1U << NG_WINDOW_ADAGRAD)),
    ROW(damping_split, .group = "curvature", .standard = "pi",
        ONE_OF_4(NG_SPLIT_JOINT, "joint", NG_SPLIT_FULL, "full", NG_SPLIT_PI, "pi", NG_SPLIT_ROOT,
                 "root"),
        .help =
            "where lambda goes: joint on the product of eigenvalues, full on each factor, pi as "
            "sqrt(lambda) pi on A and sqrt(lambda)/pi on G, root as sqrt(lambda) on both",
        .test = "effect_damping_split", KRONECKER, .per_layer = true),
    ROW(damping_leak, .group = "curvature", .standard = "0",
        .help = "leave the shift in the running average after a solve, as published MPD-KFAC and "
                "DP-KFAC do",
        .test = "effect_damping_leak", KRONECKER, .per_layer = true),

    /* Statistics: what enters the running averages, and when.  Published programs differ here most,
     * so most of the choices are theirs. */
    ROW(stat_decay, STATISTICS, .standard = "0.95", .lower = 0, .upper = 1, .unit = "weight",
        .help = "rho, the weight of the old running average", .test = "effect_stat_decay",
        .per_layer = true, .live = true),
    ROW(stat_start, STATISTICS, .standard = "first",
        ONE_OF_3(NG_START_FIRST, "first", NG_START_IDENTITY, "identity", NG_START_ZERO, "zero"),
        .help = "the running average before the first sample; first takes the first statistics "
                "unweighted",
        .test = "effect_stat_start", .per_layer = true),
    ROW(stat_scale, STATISTICS, .standard = "textbook",
        ONE_OF_4(NG_SCALE_TEXTBOOK, "textbook", NG_SCALE_KAISA, "kaisa", NG_SCALE_MPD_KFAC,
                 "mpd-kfac", NG_SCALE_EVA, "eva"),
        .help =
            "what the statistics are divided by: textbook makes damping mean the same for every "
            "batch, image and rank count; eva takes plain means",
        .test = "effect_stat_scale", .per_layer = true),
    ROW(positions, STATISTICS, .standard = "expand",
        ONE_OF_2(NG_POSITIONS_EXPAND, "expand", NG_POSITIONS_REDUCE, "reduce"),
        .help = "positions of a sequence or image are samples of their own, or are averaged first",
        .test = "effect_positions", .per_layer = true),
    ROW(stat_batch, STATISTICS, .standard = "0", .lower = 0, .upper = COUNT_MAX, .unit = "samples",
        .help = "use the first so many samples of a micro-batch only; 0 means all",
        .test = "effect_stat_batch", .per_layer = true),
    ROW(calls, STATISTICS, .standard = "mean",
        ONE_OF_3(NG_CALLS_MEAN, "mean", NG_CALLS_EMA, "ema", NG_CALLS_LAST, "last"),
        .help =
            "several observations of a layer in one step: their mean, one running average update "
            "each, or the last one only",
        .test = "effect_calls", .per_layer = true),
    ROW(call_weight, STATISTICS, .standard = "samples",
        ONE_OF_2(NG_CALL_WEIGHT_SAMPLES, "samples", NG_CALL_WEIGHT_EQUAL, "equal"),
        .help = "weight of one observation in the mean over a step and over ranks",
        .test = "effect_call_weight", .per_layer = true),
    ROW(fold, STATISTICS, .standard = "sum", ONE_OF_2(NG_FOLD_SUM, "sum", NG_FOLD_DIRECT, "direct"),
        .help = "sum observations of a step before they enter the running average, or add the only "
                "one directly, which halves the memory of the factors",
        .test = "effect_fold", KRONECKER),
    ROW(stat_period, STATISTICS, .standard = "1", .lower = 1, .upper = COUNT_MAX, .unit = "steps",
        .help = "steps from one observation to the next", .test = "effect_stat_period",
        .per_layer = true, .live = true),
    ROW(solve_period, STATISTICS, .standard = "10", .lower = 1, .upper = COUNT_MAX, .unit = "steps",
        .help = "steps from one solve to the next", .test = "effect_solve_period", KRONECKER,
        .per_layer = true, .live = true),
    ROW(max_factor, STATISTICS, .standard = "0", .lower = 0, .upper = COUNT_MAX, .unit = "columns",
        .help = "a wider factor becomes diagonal blocks no wider than this; 0 never cuts",
        .test = "effect_max_factor", KRONECKER, .per_layer = true),
    ROW(factor_blocks, STATISTICS, .standard = "1", .lower = 1, .upper = COUNT_MAX,
        .unit = "blocks", .help = "cut every factor into at least so many diagonal blocks",
        .test = "effect_factor_blocks", KRONECKER, .per_layer = true),
    ROW(factor_dtype, STATISTICS, .standard = "f32",
        ONE_OF_3(NG_F32, "f32", NG_BF16, "bf16", NG_F16, "f16"), .later = "f64",
        .help =
            "how running averages of factors are kept; of norm blocks and an embedding's A: f32",
        .test = "effect_factor_dtype", KRONECKER, .per_layer = true),
    ROW(inverse_dtype, STATISTICS, .standard = "f32",
        ONE_OF_3(NG_F32, "f32", NG_BF16, "bf16", NG_F16, "f16"), .later = "f64",
        .help = "how inverses and eigenvectors are kept; of norm blocks: f32",
        .test = "effect_inverse_dtype", KRONECKER, .per_layer = true),

    /* Clip: one for the whole model, since the bound is on the step of all layers. */
    ROW(clip, .group = "clip", .standard = "kl",
        ONE_OF_7(NG_CLIP_KL, "kl", NG_CLIP_RESCALE, "rescale", NG_CLIP_NORM, "norm", NG_CLIP_RATIO,
                 "ratio", NG_CLIP_RMS, "rms", NG_CLIP_NONE, "none", NG_CLIP_VALUE, "value"),
        .help =
            "what preconditioned gradients are multiplied by: kl bounds the step in distribution, "
            "rescale keeps the norm of the gradient, norm bounds the norm of all, ratio and rms "
            "that of each weight and bias; value bounds each number instead",
        .test = "effect_clip", .live = true),
    ROW(kl_clip, .group = "clip", .standard = "0.001", .lower = 0, .upper = REAL_MAX,
        .lower_open = true, .unit = "KL", .help = "kappa, the bound of clip = kl",
        .test = "effect_kl_clip", .live = true, NEEDS(clip, 1U << NG_CLIP_KL)),

    /* Layers: who keeps its gradient as it is. */
    ROW(skip_layers, .group = "layers", .standard = "",
        .help = "globs separated by commas, with *, ?, [...] and \\, each for the whole name or "
                "kind of a "
                "layer: \"fc*,conv2d\"; layers that match keep their gradient",
        .test = "effect_skip_layers", .form = ng_globs_form),
    ROW(exclude_width, .group = "layers", .standard = "0", .lower = 0, .upper = COUNT_MAX,
        .unit = "outputs",
        .help = "linear layers with so many outputs keep their gradient; 0: none",
        .test = "effect_exclude_width"),

    /* Ranks: where things are kept; but for `statistics`, no number depends on it. */
    ROW(statistics, .group = "ranks", .standard = "all",
        ONE_OF_4(NG_STATISTICS_ALL, "all", NG_STATISTICS_LOCAL, "local", NG_STATISTICS_OWNER,
                 "owner", NG_STATISTICS_SHARDED, "sharded"),
        .help =
            "factors over the batches of all ranks, kept by all; over the owner's batch only; over "
            "those of all, kept by the owner; windows: all, or sharded, each rank its part of "
            "every "
            "row",
        .test = "effect_statistics"),
    ROW(placement, .group = "ranks", .standard = "balanced",
        ONE_OF_6(NG_PLACEMENT_ROUND_ROBIN, "round-robin", NG_PLACEMENT_KAISA, "kaisa",
                 NG_PLACEMENT_MPD_KFAC, "mpd-kfac", NG_PLACEMENT_CONTIGUOUS, "contiguous",
                 NG_PLACEMENT_SPNGD, "spngd", NG_PLACEMENT_BALANCED, "balanced"),
        .help = "who solves what: block i on rank i mod W (mpd-kfac: A and G apart on more ranks "
                "than blocks); the dearest to who has least; runs of blocks of the least largest "
                "cost, of equal number; balanced, never dearer than kaisa",
        .test = "effect_placement"),
    ROW(grad_worker_fraction, .group = "ranks", .standard = "1", .lower = 0, .upper = 1,
        .unit = "ranks/W",
        .help = "share of the ranks that hold the inverse of a block; 0: the owner only",
        .test = "effect_grad_worker_fraction", KRONECKER),

    /* Update: decides memory, so it is chosen before ng_ready and not by the call. */
    ROW(update, .group = "update", .standard = "gradient",
        ONE_OF_3(NG_UPDATE_GRADIENT, "gradient", NG_UPDATE_SGD, "sgd", NG_UPDATE_ADAMW, "adamw"),
        .help = "which step will be called: ng_step, ng_step_sgd or ng_step_adamw",
        .test = "effect_update"),

    /* The rank-one family's own.  Appended, hence not beside its group. */
    ROW(sides, .group = "curvature", .standard = "both",
        ONE_OF_3(NG_SIDES_BOTH, "both", NG_SIDES_INPUT, "input", NG_SIDES_NONE, "none"),
        .help =
            "rank one: mean vectors of inputs and output gradients, or of inputs only, or none, "
            "and the squared norm of the gradient",
        .test = "effect_sides", .family = "rankone", .per_layer = true),

    /* Came later. */
    ROW(clip_bound, .group = "clip", .standard = "0", .lower = 0, .upper = REAL_MAX, .unit = "norm",
        .help = "the bound of clip = norm, ratio, rms, value: |PD|, |PD|/|w|, rms(PD), a number",
        .test = "effect_clip_bound", .live = true,
        NEEDS(clip,
              1U << NG_CLIP_NORM | 1U << NG_CLIP_RATIO | 1U << NG_CLIP_RMS | 1U << NG_CLIP_VALUE)),
    ROW(radius, .group = "curvature", .standard = "0", .lower = 0, .upper = REAL_MAX,
        .unit = "norm", .help = "solver = product: PD = D + radius/|D| G D A", KRONECKER,
        .test = "effect_radius"),
    ROW(missing, .group = "update", .standard = "refuse",
        ONE_OF_2(NG_MISSING_REFUSE, "refuse", NG_MISSING_KEEP, "keep"),
        .help =
            "what a gradient that is absent at a step means: an error, or a layer (a tensor) that "
            "stays as it is and is counted in the report",
        .test = "effect_missing"),
    ROW(norm_block, .group = "curvature", .standard = "unit",
        ONE_OF_4(NG_NORM_UNIT, "unit", NG_NORM_FULL, "full", NG_NORM_DIAGONAL, "diagonal",
                 NG_NORM_NONE, "none"),
        .help = "norm layers: unit takes gamma and beta of a channel together, full all channels, "
                "diagonal each number alone; none keeps the gradient",
        .test = "effect_norm_block", .per_layer = true),
    ROW(norm_damping, .group = "curvature", .standard = "1", .lower = 0, .upper = REAL_MAX,
        .lower_open = true, .unit = "damping", .help = "norm layers: what damping is multiplied by",
        .test = "effect_norm_damping", .per_layer = true, .live = true,
        NEEDS(norm_block, 1U << NG_NORM_UNIT | 1U << NG_NORM_FULL | 1U << NG_NORM_DIAGONAL)),

    /* The window family's own. */
    ROW(window, WINDOW, .standard = "64", .lower = 1, .upper = COUNT_MAX, .unit = "gradients",
        .help = "how many gradients are kept, m", .test = "effect_window"),
    ROW(window_function, WINDOW, .standard = "mfac",
        ONE_OF_5(NG_WINDOW_MFAC, "mfac", NG_WINDOW_GGT, "ggt", NG_WINDOW_STEP, "step",
                 NG_WINDOW_ADAM, "adam", NG_WINDOW_ADAGRAD, "adagrad"),
        .help = "what is made of them: mfac inverts damping I + their mean outer product, ggt "
                "divides by their singular values + damping; of one: step is what is sent of it, "
                "with momentum, adam of Adam's step, adagrad divides what is sent",
        .test = "effect_window_function"),
    ROW(window_scope, WINDOW, .standard = "model",
        ONE_OF_3(NG_WINDOW_MODEL, "model", NG_WINDOW_PARAMETER, "parameter", NG_WINDOW_GROUP,
                 "group"),
        .help = "one curvature over all parameters, one for each weight and bias, or one for each "
                "group of ng_set_group",
        .test = "effect_window_scope",
        NEEDS_EITHER(window_function, 1U << NG_WINDOW_MFAC | 1U << NG_WINDOW_GGT, window_store,
                     1U << NG_STORE_TOPK)),
    ROW(window_dtype, WINDOW, .standard = "f32", ONE_OF_2(NG_F32, "f32", NG_BF16, "bf16"),
        .later = "f16|f64", .help = "how the gradients are kept", .test = "effect_window_dtype"),
    ROW(window_divisor, WINDOW, .standard = "window",
        ONE_OF_2(NG_DIVISOR_WINDOW, "window", NG_DIVISOR_FILLED, "filled"),
        .help = "mfac: the mean is over window gradients from the first step on, or over those "
                "that there are",
        .test = "effect_window_divisor"),
    ROW(window_forget, WINDOW, .standard = "1", .lower = 0, .upper = 1, .unit = "weight",
        .help = "ggt: each step multiplies the gradients in the Gram matrix by it; adam: the "
                "weight of the "
                "old second moment",
        .test = "effect_window_forget"),
    ROW(window_momentum, WINDOW, .standard = "0", .lower = 0, .upper = 0.999999, .unit = "weight",
        .help = "mu, the weight of what momentum keeps; see window_momentum_form",
        .test = "effect_window_momentum"),
    ROW(window_momentum_form, WINDOW, .standard = "average",
        ONE_OF_3(NG_MOMENTUM_AVERAGE, "average", NG_MOMENTUM_HEAVY_BALL, "heavy-ball",
                 NG_MOMENTUM_GRADIENT, "gradient"),
        .help = "average: mu v + (1 - mu) u of the preconditioned u; heavy-ball: mu v + u; "
                "gradient: the average before it is preconditioned",
        .test = "effect_window_momentum_form", NEEDS_ABOVE(window_momentum)),
    ROW(window_decay, WINDOW, .standard = "0", .lower = 0, .upper = REAL_MAX, .unit = "weight",
        .help = "weight decay inside the preconditioner, see window_decay_form; weights must be "
                "bound",
        .test = "effect_window_decay",
        NEEDS(window_decay_form, 1U << NG_DECAY_GRADIENT | 1U << NG_DECAY_DIRECTION)),
    ROW(window_decay_form, WINDOW, .standard = "gradient",
        ONE_OF_3(NG_DECAY_GRADIENT, "gradient", NG_DECAY_DIRECTION, "direction", NG_DECAY_NONE,
                 "none"),
        .help = "gradient: decay times the weight is part of the gradient; direction: over "
                "damping, part of the direction; none",
        .test = "effect_window_decay_form", NEEDS_ABOVE(window_decay)),
    ROW(window_mask, WINDOW, .standard = "0",
        .help = "weights that are 0 at ng_ready have no gradient and no direction",
        .test = "effect_window_mask"),
    ROW(output_factor, .group = "statistics", .standard = "full",
        ONE_OF_2(NG_OUTPUT_FULL, "full", NG_OUTPUT_DIAGONAL, "diagonal"),
        .help = "G whole (or as it is cut), or its diagonal only", .test = "effect_output_factor",
        KRONECKER, .per_layer = true),
    ROW(stat_refresh, STATISTICS, .standard = "period",
        ONE_OF_2(NG_REFRESH_PERIOD, "period", NG_REFRESH_ADAPTIVE, "adaptive"),
        .help =
            "when statistics are made anew: every stat_period, or each the more seldom the less "
            "it changes; what is inverted of it then is inverted",
        .test = "effect_stat_refresh"),
    ROW(refresh_tolerance, .group = "statistics", .standard = "0.1", .lower = 0, .upper = REAL_MAX,
        .lower_open = true, .unit = "norm",
        .help = "stat_refresh = adaptive: two averages are alike if they differ by less than this "
                "part of the older one",
        .test = "effect_refresh_tolerance", NEEDS(stat_refresh, 1U << NG_REFRESH_ADAPTIVE)),
    ROW(update_ranks, .group = "update", .standard = "all",
        ONE_OF_2(NG_UPDATE_RANKS_ALL, "all", NG_UPDATE_RANKS_OWNER, "owner"),
        .help = "sgd, adamw: every rank moves every weight, or the owner of its block alone, which "
                "keeps its moments; then the weights go round",
        .test = "effect_update_ranks", NEEDS(update, 1U << NG_UPDATE_SGD | 1U << NG_UPDATE_ADAMW)),
    ROW(window_store, WINDOW, .standard = "dense",
        ONE_OF_3(NG_STORE_DENSE, "dense", NG_STORE_TOPK, "topk", NG_STORE_LOWRANK, "lowrank"),
        .help = "whole gradients, or their largest entries, or factors of low rank, with error "
                "feedback for what is left out",
        .test = "effect_window_store"),
    ROW(window_density, WINDOW, .standard = "0.01", .lower = 0, .upper = COUNT_MAX,
        .lower_open = true, .unit = "entries/all",
        .help = "topk: how much of a gradient is kept, at least one entry; above 1: how many "
                "entries, at most all (window_topk = global)",
        .test = "effect_window_density", NEEDS(window_store, 1U << NG_STORE_TOPK)),
    ROW(window_topk, WINDOW, .standard = "global",
        ONE_OF_3(NG_TOPK_GLOBAL, "global", NG_TOPK_LAYER, "layer", NG_TOPK_BLOCK, "block"),
        .help = "topk: the largest of all, of each weight and bias, or of each run of 32,768",
        .test = "effect_window_topk", NEEDS(window_store, 1U << NG_STORE_TOPK)),
    ROW(window_rest, WINDOW, .standard = "kept",
        ONE_OF_2(NG_REST_KEPT, "kept", NG_REST_ADDED, "added"),
        .help = "what did not enter: kept for later steps only, or also added to the direction, "
                "over damping",
        .test = "effect_window_rest",
        NEEDS(window_store, 1U << NG_STORE_TOPK | 1U << NG_STORE_LOWRANK)),
    ROW(window_feedback_lr, WINDOW, .standard = "0",
        .help = "topk, lowrank: what enters is lr times the gradient, and what was left before",
        .test = "effect_window_feedback_lr",
        NEEDS(window_store, 1U << NG_STORE_TOPK | 1U << NG_STORE_LOWRANK)),
    ROW(window_rank, WINDOW, .standard = "1", .lower = 1, .upper = COUNT_MAX, .unit = "columns",
        .help = "lowrank: columns of the factors of a weight, at most its rows and its columns",
        .test = "effect_window_rank", NEEDS(window_store, 1U << NG_STORE_LOWRANK)),
    ROW(wire_dtype, .group = "ranks", .standard = "f32",
        ONE_OF_3(NG_F32, "f32", NG_BF16, "bf16", NG_F16, "f16"),
        .help =
            "how sums of averaged statistics travel; each rank's is rounded to it, and so is their "
            "sum",
        .test = "effect_wire_dtype"),
    ROW(window_fill, WINDOW, .standard = "none",
        ONE_OF_4(NG_FILL_NONE, "none", NG_FILL_GRADIENT, "gradient", NG_FILL_ERROR, "error",
                 NG_FILL_REST, "rest"),
        .help =
            "topk, lowrank, until the window is full: numbers of the direction that are 0 become "
            "those of the gradient, or of what was left out, which leaves with them; rest: as "
            "window_rest = added",
        .test = "effect_window_fill",
        NEEDS(window_store, 1U << NG_STORE_TOPK | 1U << NG_STORE_LOWRANK)),
    ROW(window_empty, WINDOW, .standard = "0", .lower = 0, .upper = 0.999999, .unit = "lr/lr",
        .help = "the window is emptied by a step whose lr is at most this part of that of the last "
                "gradient's; 0: never",
        .test = "effect_window_empty"),
    ROW(quantify, .group = "update", .standard = "0",
        .help = "measure how far each element is scaled, |PD_i / (D_i + 1e-8)|: quartiles, least, "
                "largest and mean in the report",
        .test = "effect_quantify"),
    ROW(placement_cost, .group = "ranks", .standard = "compute",
        ONE_OF_2(NG_COST_COMPUTE, "compute", NG_COST_MEMORY, "memory"),
        .help = "what a placement counts of a factor of order n: n^3, or n^2",
        .test = "effect_placement_cost",
        NEEDS(placement, 1U << NG_PLACEMENT_KAISA | 1U << NG_PLACEMENT_CONTIGUOUS |
                             1U << NG_PLACEMENT_BALANCED)),
    ROW(colocate, .group = "ranks", .standard = "1",
        .help = "A and G of a layer on one rank, or each on its own of those that hold the results",
        .test = "effect_colocate"),
    ROW(stat_bucket_mb, .group = "ranks", .standard = "25", .lower = 0, .upper = 1e5, .unit = "MB",
        .help = "sums of statistics travel in messages of at most so many MB, of whole statistics",
        .test = "effect_stat_bucket_mb"),
    ROW(per_layer, .group = "layers", .standard = "",
        .help =
            "options of some layers: GLOBS: NAME=VALUE ..., entries separated by ';'; the first "
            "entry "
            "that matches a layer's name or kind counts; method=NAME takes that method's values",
        .test = "effect_per_layer", .form = ng_lines_form),
    ROW(symmetry_aware, .group = "ranks", .standard = "1",
        .help =
            "sums of symmetric statistics travel as one triangle, or as whole matrices: twice the "
            "bytes, the same numbers",
        .test = "effect_symmetry_aware"),
    ROW(leak_ranks, .group = "ranks", .standard = "owner",
        ONE_OF_2(NG_LEAK_OWNER, "owner", NG_LEAK_ALL, "all"),
        .help =
            "in whose average the shift of damping_leak stays: the owner's, so that the next sum "
            "divides it by the ranks, or each rank's; ranks that share a batch keep it whole",
        .test = "effect_leak_ranks", KRONECKER, NEEDS(damping_leak, 1U << 1), .per_layer = true),
};

int32_t ng_option_count(void) { return NG_OPTION_COUNT; }

/* Only a part of a row is public: where a field lies and how a text is checked are ours. */
ng_status ng_option_at(int32_t i, ng_option_info *out) {
  if (out == NULL || i < 0 || i >= NG_OPTION_COUNT) return NG_ERR_ARG;
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
      .needs = row->needs[0].there ? ng_option_name(row->needs[0].option) : "",
  };
  return ng_give_struct(out, &info, sizeof info);
}

/* Command lines write '-' where C writes '_'. */
/* (A name that only differs so is not a near miss but the same one: nearest.c agrees.) */
static bool same_name(const char *a, const char *b) {
  for (; *a != 0 || *b != 0; a++, b++) {
    if ((*a == '-' ? '_' : *a) != (*b == '-' ? '_' : *b)) return false;
  }
  return true;
}

/* Strings are searched when something is set or shown; the rooms use ids. */
int32_t ng_option_find(const char *name) {
  if (name == NULL) return -1;
  for (int32_t i = 0; i < NG_OPTION_COUNT; i++) {
    if (same_name(name, ng_option_table[i].name)) return i;
  }
  return -1;
}

/* `standard` is the default that the option had: a state with that value still loads. */
const ng_option_gone ng_options_gone[] = {
    {"schedule", "",
     "call ng_set_real between steps; natgrad train has --schedule, the PyTorch front takes "
     "functions of the step"},
    {NULL, NULL, NULL}};

const ng_option_gone *ng_option_removed(const char *name) {
  const ng_option_gone *g = ng_options_gone;
  while (g->name != NULL && !same_name(name, g->name)) {
    g++;
  }
  return g->name == NULL ? NULL : g;
}

/* With the method: it is set and read like them. */
static const char *name_at(int32_t i) {
  return i < NG_OPTION_COUNT ? ng_option_table[i].name : "method";
}

/* For names that a person typed: says what was meant.  ng_option_find is for those that may be
 * something else. */
ng_status ng_option_lookup(const char *name, const ng_option_row **row, char *message,
                           size_t size) {
  const int32_t i = ng_option_find(name);
  if (i >= 0) {
    *row = &ng_option_table[i];
    return NG_OK;
  }
  if (name == NULL) return ng_fail_to(message, size, NG_ERR_ARG, "the option's name is NULL");
  const ng_option_gone *gone = ng_option_removed(name);
  if (gone != NULL) {
    return ng_fail_to(message, size, NG_ERR_ARG, "option '%s' was removed: %s", gone->name,
                      gone->instead);
  }
  /* Where it is set or read, it has been looked at before. */
  if (ng_is(name, "method")) {
    return ng_fail_to(message, size, NG_ERR_ARG, "method is a name, the row of a table");
  }
  return ng_fail_to(message, size, NG_ERR_ARG, "there is no option '%s'%s", ng_quote(name).text,
                    ng_hint_of(ng_nearest(name, name_at, NG_OPTION_COUNT + 1)).text);
}
