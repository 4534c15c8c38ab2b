/* settings.h: the values of all options.
 *
 *   ng_settings   the options that are numbers, flags or choices
 *   ng_options    ng_settings, the options that are texts, and which options the caller has set
 *
 * A preconditioner p has p->opt, a copy of the caller's ng_options.  A block b has b->base: p->opt.base, overridden by
 * the layer's own options.  ng_set changes both.  The memory that ng_ready plans must not depend on an option that
 * ng_set may change. */
#ifndef NG_SETTINGS_H
#define NG_SETTINGS_H

#include "natgrad.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- choices ---------------------------------------------------------------------------------*/

/* An enum value is the index of its text in ng_option_row.choice.  The value 0 need not be the default. */
typedef enum {
  NG_SOLVER_CHOLESKY,
  NG_SOLVER_EIGEN,
  NG_SOLVER_EIGEN_PREDIV,
  NG_SOLVER_PRODUCT
} ng_solver;
typedef enum { NG_SPLIT_JOINT, NG_SPLIT_FULL, NG_SPLIT_PI, NG_SPLIT_ROOT } ng_split;
typedef enum { NG_LEAK_NONE, NG_LEAK_OWNER, NG_LEAK_ALL } ng_damping_leak;
typedef enum { NG_START_FIRST, NG_START_IDENTITY, NG_START_ZERO } ng_start;
typedef enum {
  NG_SCALE_TEXTBOOK,
  NG_SCALE_KAISA,
  NG_SCALE_MPD_KFAC,
  NG_SCALE_EVA,
  NG_SCALE_CHAINERKFAC
} ng_stat_scale;
typedef enum { NG_POSITIONS_EXPAND, NG_POSITIONS_REDUCE } ng_positions;
typedef enum { NG_CALLS_MEAN, NG_CALLS_EMA, NG_CALLS_LAST } ng_calls;
typedef enum {
  NG_CLIP_KL,
  NG_CLIP_RESCALE,
  NG_CLIP_NORM,
  NG_CLIP_RATIO,
  NG_CLIP_RMS,
  NG_CLIP_NONE,
  NG_CLIP_VALUE
} ng_clip_kind;
typedef enum {
  NG_STATISTICS_ALL,
  NG_STATISTICS_LOCAL,
  NG_STATISTICS_OWNER,
  NG_STATISTICS_SHARDED
} ng_statistics;
typedef enum { NG_OUTPUT_FULL, NG_OUTPUT_DIAGONAL } ng_output_factor;
typedef enum { NG_SPATIAL_FULL, NG_SPATIAL_FACTORED } ng_spatial_form;
typedef enum {
  NG_PLACEMENT_ROUND_ROBIN,
  NG_PLACEMENT_KAISA,
  NG_PLACEMENT_MPD_KFAC,
  NG_PLACEMENT_CONTIGUOUS,
  NG_PLACEMENT_SPNGD,
  NG_PLACEMENT_BALANCED,
  NG_PLACEMENT_KAISA_MEMORY
} ng_placement;
typedef enum { NG_UPDATE_GRADIENT, NG_UPDATE_SGD, NG_UPDATE_ADAMW } ng_update;
typedef enum { NG_UPDATE_RANKS_ALL, NG_UPDATE_RANKS_OWNER } ng_update_ranks;
typedef enum { NG_MISSING_REFUSE, NG_MISSING_KEEP } ng_missing;
typedef enum { NG_NORM_UNIT, NG_NORM_FULL, NG_NORM_DIAGONAL, NG_NORM_NONE } ng_norm_block;
typedef enum { NG_MERGE_NONE, NG_MERGE_LEFT, NG_MERGE_RIGHT } ng_merge_axes;
typedef enum { NG_BASIS_PERMUTE, NG_BASIS_ROTATE } ng_basis_moments;
typedef enum {
  NG_GRAFT_NONE,
  NG_GRAFT_SGD,
  NG_GRAFT_ADAM,
  NG_GRAFT_ADAGRAD,
  NG_GRAFT_RMSPROP
} ng_grafting;
typedef enum { NG_GRAMS_PLAIN, NG_GRAMS_KL, NG_GRAMS_EIGEN, NG_GRAMS_QR } ng_gram_form;
typedef enum { NG_SIDES_BOTH, NG_SIDES_INPUT, NG_SIDES_NONE } ng_sides;

typedef enum {
  NG_WINDOW_MFAC,
  NG_WINDOW_MFAC_FILLED,
  NG_WINDOW_GGT,
  NG_WINDOW_STEP,
  NG_WINDOW_ADAM,
  NG_WINDOW_ADAGRAD
} ng_window_function;
typedef enum { NG_WINDOW_MODEL, NG_WINDOW_PARAMETER, NG_WINDOW_GROUP } ng_window_scope;
typedef enum { NG_MOMENTUM_AVERAGE, NG_MOMENTUM_HEAVY_BALL, NG_MOMENTUM_GRADIENT } ng_momentum_form;
typedef enum {
  NG_STORE_DENSE,
  NG_STORE_TOPK,
  NG_STORE_TOPK_LAYER,
  NG_STORE_TOPK_BLOCK,
  NG_STORE_LOWRANK
} ng_store_kind;
typedef enum {
  NG_FILL_NONE,
  NG_FILL_GRADIENT,
  NG_FILL_ERROR,
  NG_FILL_REST,
  NG_FILL_ADDED
} ng_window_fill;
typedef enum { NG_DECAY_GRADIENT, NG_DECAY_DIRECTION, NG_DECAY_NONE } ng_decay_form;

typedef enum {
  NG_MUON_SIMPLE,
  NG_MUON_QUINTIC,
  NG_MUON_DEEPSEEK,
  NG_MUON_POLAR_EXPRESS,
  NG_MUON_CANS,
  NG_MUON_CUBIC
} ng_muon_coefficients;
typedef enum { NG_MUON_MATRIX, NG_MUON_AXES, NG_MUON_RMS, NG_MUON_LARGEST } ng_muon_scale;
typedef enum { NG_MUON_SUM, NG_MUON_BOUND } ng_muon_norm;
typedef enum {
  NG_MUON_NO_ROUNDING,
  NG_MUON_EACH,
  NG_MUON_FUSED
} ng_muon_rounding; /* as ng_ns_rounding */

/* ---- the list of options ---------------------------------------------------------------------*/

/* All options, ordered by purpose: kind (NG_OPTION_<kind>), name, C type.  This list generates the ids, the fields of
 * ng_settings, and the kinds in the rows of the table.  Options of kind TEXT are fields of ng_options instead. */
#define NG_OPTION_LIST(X)                                                                          \
  X(CHOICE, solver, ng_solver)                                                                     \
  X(REAL, eigen_floor, double)                                                                     \
  X(REAL, damping, double)                                                                         \
  X(CHOICE, damping_split, ng_split)                                                               \
  X(CHOICE, damping_leak, ng_damping_leak)                                                         \
  X(CHOICE, output_factor, ng_output_factor)                                                       \
  X(CHOICE, spatial, ng_spatial_form)                                                              \
  X(INT, gradient_rows, int64_t)                                                                   \
  X(REAL, radius, double)                                                                          \
  X(CHOICE, sides, ng_sides)                                                                       \
  X(REAL, stat_decay, double)                                                                      \
  X(CHOICE, stat_start, ng_start)                                                                  \
  X(CHOICE, stat_scale, ng_stat_scale)                                                             \
  X(CHOICE, positions, ng_positions)                                                               \
  X(INT, stat_batch, int64_t)                                                                      \
  X(CHOICE, calls, ng_calls)                                                                       \
  X(INT, stat_period, int64_t)                                                                     \
  X(INT, solve_period, int64_t)                                                                    \
  X(REAL, overhead, double)                                                                        \
  X(REAL, refresh_tolerance, double)                                                               \
  X(INT, max_factor, int64_t)                                                                      \
  X(INT, factor_blocks, int64_t)                                                                   \
  X(CHOICE, factor_dtype, ng_dtype)                                                                \
  X(CHOICE, inverse_dtype, ng_dtype)                                                               \
  X(CHOICE, norm_block, ng_norm_block)                                                             \
  X(REAL, norm_damping, double)                                                                    \
  X(CHOICE, clip, ng_clip_kind)                                                                    \
  X(REAL, kl_clip, double)                                                                         \
  X(REAL, clip_bound, double)                                                                      \
  X(REAL, first_decay, double)                                                                     \
  X(REAL, second_decay, double)                                                                    \
  X(REAL, moment_epsilon, double)                                                                  \
  X(REAL, adam_lr, double)                                                                         \
  X(REAL, muon_momentum, double)                                                                   \
  X(BOOL, muon_nesterov, bool)                                                                     \
  X(CHOICE, muon_scale, ng_muon_scale)                                                             \
  X(INT, muon_steps, int64_t)                                                                      \
  X(CHOICE, muon_coefficients, ng_muon_coefficients)                                               \
  X(REAL, muon_a, double)                                                                          \
  X(REAL, muon_b, double)                                                                          \
  X(REAL, muon_c, double)                                                                          \
  X(CHOICE, muon_norm, ng_muon_norm)                                                               \
  X(REAL, muon_epsilon, double)                                                                    \
  X(CHOICE, muon_rounding, ng_muon_rounding)                                                       \
  X(BOOL, bias_correction, bool)                                                                   \
  X(INT, max_axis, int64_t)                                                                        \
  X(CHOICE, merge_axes, ng_merge_axes)                                                             \
  X(INT, kept_axes, int64_t)                                                                       \
  X(BOOL, vector_factor, bool)                                                                     \
  X(CHOICE, basis_moments, ng_basis_moments)                                                       \
  X(BOOL, normalize, bool)                                                                         \
  X(CHOICE, gram_form, ng_gram_form)                                                               \
  X(TEXT, root_exponents, )                                                                        \
  X(BOOL, root_trace, bool)                                                                        \
  X(CHOICE, grafting, ng_grafting)                                                                 \
  X(REAL, filter_decay, double)                                                                    \
  X(INT, solve_start, int64_t)                                                                     \
  X(TEXT, skip_layers, )                                                                           \
  X(TEXT, per_layer, )                                                                             \
  X(CHOICE, statistics, ng_statistics)                                                             \
  X(CHOICE, placement, ng_placement)                                                               \
  X(BOOL, colocate, bool)                                                                          \
  X(REAL, grad_worker_fraction, double)                                                            \
  X(CHOICE, wire_dtype, ng_dtype)                                                                  \
  X(REAL, stat_bucket_mb, double)                                                                  \
  X(CHOICE, update, ng_update)                                                                     \
  X(CHOICE, update_ranks, ng_update_ranks)                                                         \
  X(BOOL, decay_after, bool)                                                                       \
  X(CHOICE, missing, ng_missing)                                                                   \
  X(BOOL, quantify, bool)                                                                          \
  X(INT, window, int64_t)                                                                          \
  X(CHOICE, window_function, ng_window_function)                                                   \
  X(CHOICE, window_scope, ng_window_scope)                                                         \
  X(CHOICE, window_dtype, ng_dtype)                                                                \
  X(REAL, window_forget, double)                                                                   \
  X(REAL, window_momentum, double)                                                                 \
  X(CHOICE, window_momentum_form, ng_momentum_form)                                                \
  X(REAL, window_decay, double)                                                                    \
  X(CHOICE, window_decay_form, ng_decay_form)                                                      \
  X(BOOL, window_mask, bool)                                                                       \
  X(CHOICE, window_store, ng_store_kind)                                                           \
  X(REAL, window_density, double)                                                                  \
  X(INT, window_rank, int64_t)                                                                     \
  X(CHOICE, window_fill, ng_window_fill)                                                           \
  X(BOOL, window_feedback_lr, bool)                                                                \
  X(REAL, window_empty, double)

#define NG_AS_ID(kind, name, type) NG_OPTION_##name,
typedef enum ng_option_id { NG_OPTION_LIST(NG_AS_ID) NG_OPTION_COUNT } ng_option_id;

#define NG_FIELD_REAL(name, type) type name;
#define NG_FIELD_INT(name, type) type name;
#define NG_FIELD_BOOL(name, type) type name;
#define NG_FIELD_CHOICE(name, type) type name;
#define NG_FIELD_TEXT(name, type)
#define NG_AS_FIELD(kind, name, type) NG_FIELD_##kind(name, type)
typedef struct ng_settings {
  /* Names in the table of methods. other_family: of the parameters that `family` does not take; NULL: none. */
  const char *method, *family, *other_family;
  NG_OPTION_LIST(NG_AS_FIELD)
} ng_settings;

/* ---- ng_options -------------------------------------------------------------------------------*/

/* Bytes of a text option with its final 0.  Texts are arrays, so that an assignment of ng_options copies them. */
enum { NG_TEXT_SIZE = 4096 };

struct ng_options {
  ng_settings base;
  char skip_layers[NG_TEXT_SIZE], per_layer[NG_TEXT_SIZE], root_exponents[NG_TEXT_SIZE];
  bool given[NG_OPTION_COUNT]; /* options that the caller has set; a method does not change them */
  bool own_method;             /* these options belong to a layer whose own options name a method */
};

/* ---- option_value.c ---------------------------------------------------------------------------*/

static inline bool ng_is_eigen(ng_solver s) {
  return s == NG_SOLVER_EIGEN || s == NG_SOLVER_EIGEN_PREDIV;
}
static inline bool ng_is_mfac(ng_window_function f) {
  return f == NG_WINDOW_MFAC || f == NG_WINDOW_MFAC_FILLED;
}

const char *ng_option_name(ng_option_id id);
/* Return the text of a choice: ng_choice_text(NG_OPTION_solver, NG_SOLVER_EIGEN) is "eigen". */
const char *ng_choice_text(ng_option_id id, int32_t value);

#endif
