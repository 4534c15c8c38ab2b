/* family.h: the interface between the engine and a family of curvatures.
 *
 * In:   a block with its layer, options and segments; observations; sums over gradients. Out: sums of the block's
 * statistics; results of a solve (inverses, eigenbases); <D, PD>, |D|^2, |PD|^2; descriptors of PD. May call: model, stat,
 * option, linalg, core. A family does not communicate, does not write gradients or weights, and does not know the step,
 * the update or the clip.
 *
 * A step, as a block sees it (step/step.h has all stations):
 *
 *   observe          add an observation to the sums of the statistics
 *   [statistics]     the engine sums over ranks and folds into the averages
 *   select_topk      all ranks select the k largest elements of the gradient, in a few small sums over ranks
 *   solve            the owner computes results, in three phases; read_results: every rank that received results reads them
 *   write_traces     in `solve`: the owner of a statistic sends its traces to the owners of the block's other statistics
 *   describe_sums    describe sums over gradients, which the engine computes for all blocks at once
 *   precondition     enqueue PD and its sums; the engine waits once for all blocks
 *   read_sums        read the sums
 *   scale_direction  enqueue a scaling of PD that depends on the sums; the engine waits once for all blocks
 *   [agree]          the engine computes the clip factor, equal on all ranks
 *   emit             describe PD; the engine writes gradients or weights of all blocks at once
 *   end_step         end the step: advance the block's state if the step counts, otherwise discard the new state */
#ifndef NG_FAMILY_H
#define NG_FAMILY_H

#include "model/model.h"

/* ---- input -----------------------------------------------------------------------------------*/

/* An observation: one array of a micro-batch, checked against the layer. */
typedef struct ng_obs {
  uint32_t kind; /* NG_OBSERVED_ bit; for NG_OBSERVED_FLATGRAD the family reads bound gradients */
  ng_view view;
  int64_t samples; /* number of samples on this rank */
  /* If ranks share the micro-batch (ng_batch.whole): its number of samples, index of this rank's first one; else 0. */
  int64_t batch_samples, first_sample;
  int64_t positions; /* output positions of one sample */
  int64_t in_size[2],
      out_size[2];      /* conv2d: [height, width] of the observed array, and of the output */
  int64_t batch;        /* number of the micro-batch */
  bool follows_refusal; /* an earlier array of the layer was refused in this micro-batch */
  /* The array was not scanned, and its statistics are late (ng_stat.is_late). Otherwise the engine waits after `observe`,
   * because the caller may change the array. */
  bool is_late;
  double loss_scale;
  double lr; /* NG_OBSERVED_FLATGRAD: learning rate of the step */
  ng_reduction reduction;
} ng_obs;

/* If the loss is a mean over a micro-batch that all ranks share, return this rank's share of the samples; otherwise 1. */
static inline double ng_obs_share(const ng_obs *o) {
  const bool mean = o->reduction == NG_MEAN && o->batch_samples > 0;
  return mean ? (double)o->samples / (double)o->batch_samples : 1.0;
}

/* Return the declared geometry with the image and output sizes of the observation o. */
static inline ng_conv ng_obs_conv(const ng_conv *declared, const ng_obs *o) {
  ng_conv c = *declared;
  c.height = c.is_linear ? 1 : o->in_size[0];
  c.width = c.is_linear ? o->positions : o->in_size[1];
  c.out_height = c.is_linear ? 1 : o->out_size[0];
  c.out_width = c.is_linear ? o->positions : o->out_size[1];
  return c;
}

/* ---- state -----------------------------------------------------------------------------------*/

/* An array of the saved state. */
typedef struct ng_field {
  char name[48];       /* name of the array: "A", "G.1", "A_inverse", "momentum.weight" */
  ng_dtype dtype;      /* dtype of `data` in memory */
  bool is_symmetric;   /* n(n+1)/2 elements in ng_sym order, n = rows = cols */
  int64_t rows, cols;  /* size in memory; dense and row-major unless is_symmetric */
  void *data;          /* the elements; NULL on ranks that do not have the array */
  int32_t owner;       /* a rank that has the array */
  bool is_everywhere;  /* true: all ranks have the array; false: unknown */
  bool is_nonnegative; /* the elements are means of squares: f32, never negative */
  /* [ranks + 1]: `data` of rank r has columns [slice[r], slice[r + 1]) of every row. NULL: every rank has all columns. */
  const int64_t *slice;
  /* If several ranks hold the same columns (rows if by_rows): rank holder[i] provides slice i of `slices`, and this
   * rank holds the columns (rows) [from, to). NULL: rank r provides slice r. */
  const int32_t *holder;
  int32_t slices;
  bool by_rows;
  int64_t from, to;
  /* Order of the rows (columns): (kernel offset, channel) in memory, (channel, kernel offset) in files; a bias is last.
   * `offsets` and `channels` are the numbers of kernel offsets and channels; with offsets = 1 both orders are equal. */
  int64_t row_offsets, row_channels, col_offsets, col_channels;
} ng_field;
typedef void (*ng_field_visit)(void *arg, ng_field *f);

/* Return a field of a dense array that memory and files store in the same order. */
ng_field ng_field_plain(const char *name, ng_dtype t, int64_t rows, int64_t cols, void *data,
                        int32_t owner);

/* A number of the saved state; files contain it with 17 digits. */
typedef struct ng_number {
  char name[48];
  double *value;
  /* owner of the saved value: the owner of this statistic, or of the block if NULL */
  const ng_stat *stat;
} ng_number;
typedef void (*ng_number_visit)(void *arg, ng_number *n);

/* ---- the table -------------------------------------------------------------------------------*/

typedef enum ng_scope {
  NG_SCOPE_LAYER, /* one block for each layer that fits; the default */
  NG_SCOPE_MODEL  /* one block over the parameters of all layers that fit */
} ng_scope;

typedef enum ng_solve_phase {
  NG_SOLVE_MEASURE,
  NG_SOLVE_LIST,
  NG_SOLVE_START,
  NG_SOLVE_CLIMB
} ng_solve_phase;

typedef struct ng_family {
  const char *name;
  uint32_t observed;
  uint32_t traits; /* NG_TRAIT_ bits: groups of options that apply to the family */
  ng_scope scope;
  bool
      detects_nonfinite; /* `observe` detects non-finite values, if the block does not solve; otherwise the engine
                          * detects them */
  /* NG_SCOPE_MODEL: a step may exclude some parameters of the block, because the family reads slot->is_excluded. */
  bool can_exclude;
  /* Without results of a solve: only the ranks of the block's column compute PD, which they send to the others. */
  bool computes_in_column;
  /* The family takes only the weight of a layer. The bias belongs to a block of the family ng_settings.other_family. */
  bool takes_weight_only;
  /* Layers may be sharded. Ranks that observe or compute PD receive whole observations and gradients; the other ranks
   * of the model group receive nothing. */
  bool can_shard;
  /* ---- required ---- */
  /* Return whether the family preconditions the layer or tensor e with the options o. */
  bool (*accepts_entry)(const ng_settings *o, const ng_entry *e);
  /* Check options against each other and against the family; on failure write one line to message. */
  ng_status (*check_options)(const ng_options *o, char *message, size_t size);
  /* Set the geometry in b->state, and b->entry->why for a layer. Objects from ng_object are freed with the block. */
  ng_status (*create_state)(ng_block *b);
  /* Request memory for results and scratch, in both passes of ng_plan. create_state, declare_statistics and request_memory may use this rank's
   * number only if the block is sliced (b->slice): ng_plan_ranks creates blocks once for all ranks. */
  ng_status (*request_memory)(ng_block *b, ng_plan *plan);
  /* Set b->inner, b->d2 and b->pd2 from the results of `describe_sums` and `precondition`; leave no work pending. NG_SKIPPED: the
   * gradient is not finite; NG_RESCUED: the block used a fallback.
   * If b->base.radius > 0, PD = D + k H: inner and pd2 are of H, and the engine multiplies e->k of `emit` by k. */
  ng_status (*read_sums)(ng_block *b);
  /* Describe factor * PD of group g of segment k in *e. Before the call, *e describes factor times the gradient: e->D is
   * set, e->scale = factor, e->u_col = 1, and the other fields are 0. */
  void (*emit)(const ng_block *b, int32_t k, int32_t g, double factor, ng_direction *e);

  /* ---- optional, with a default ---- */
  /* Declare b->stat: shapes, `observed`, `averaged`; the engine sets the rest. Default: none. */
  ng_status (*declare_statistics)(ng_block *b);
  /* Add s->mix.fresh times the observation to every statistic s with s->observed = o->kind. NG_SKIPPED: the observation is
   * not finite, and no sum has changed. A family without statistics has no entry. */
  ng_status (*observe)(ng_block *b, const ng_obs *o);
  /* Return whether `observe` also wants the inputs and output gradients of a step in which no statistic is due; default:
   * no. */
  bool (*wants_arrays)(const ng_block *b);
  ng_status (*set_initial_values)(
      ng_block *b); /* set initial values in planned memory; default: nothing */
  /* Enqueue PD and the sums that `read_sums` reads; default: nothing. The engine calls the entry for all blocks and waits
   * once. So the scratch is for queued work only, and the host reads no result here. */
  void (*precondition)(ng_block *b);
  /* Enqueue a scaling of b->direction by numbers of `read_sums`, which has set inner, d2 and pd2 of the scaled PD; default:
   * nothing. The engine calls the entry after `read_sums` of all blocks, whatever they returned, and waits once. */
  void (*scale_direction)(ng_block *b);
  /* For a family that reads bound gradients: NG_SKIPPED if a gradient is not finite, or its sums would not be. The engine calls the entry after it has
   * called `observe` of all blocks and waited once, and discards the sums if necessary; default: `observe` waits and
   * returns the status. */
  ng_status (*check_gradients_finite)(ng_block *b);
  /* Return the bytes of scratch that `observe` needs for the observation o; default: the planned scratch is enough. */
  int64_t (*observation_scratch)(const ng_block *b, const ng_obs *o);
  /* Set pd_norm2 of the segments, on ranks that compute PD themselves; default: computed from `emit`. */
  void (*set_pd_norms)(ng_block *b);
  /* Visit the saved arrays and numbers other than averages; default: none. */
  void (*visit_fields)(ng_block *b, ng_field_visit visit, void *arg);
  void (*visit_numbers)(ng_block *b, ng_number_visit visit, void *arg);

  /* ---- optional; NULL: the family does not support this function ---- */
  /* Return the number of counted steps of the block, to which stat_period and solve_period apply; default: of the model. */
  int64_t (*count_steps)(const ng_block *b);
  /* Set both or neither. solve, on every rank: compute the results that this rank owns. The engine calls each phase for all
   * blocks and waits in between:
   *   MEASURE  enqueue the numbers that LIST reads
   *   LIST     call ng_block_list_matrix for each matrix; enqueue nothing
   *   START    enqueue other work; then the engine solves the matrices of all blocks
   *   CLIMB    begin without pending work, call ng_matrix_retry, return NG_RESCUED after the rung of a fallback was counted
   * read_results, on workers: read received or loaded results, new or old. */
  ng_status (*solve)(ng_block *b, ng_solve_phase phase);
  void (*read_results)(ng_block *b);
  /* For blocks whose statistics have different owners: after NG_SOLVE_MEASURE, the owner of statistic `stat` writes
   * b->traces_per_stat numbers. All ranks of the block's column receive all numbers in b->traces for NG_SOLVE_LIST. */
  void (*write_traces)(ng_block *b, int32_t stat, double *numbers);
  /* For blocks with b->is_selecting, between `check` and the sums of statistics. In round r < b->topk_rounds: read from x the
   * sums over ranks of round r - 1 (if r > 0), and write b->topk_counts[r] numbers to x. The call with round = b->topk_rounds only
   * reads. After this call the statistics are complete. */
  void (*select_topk)(ng_block *b, int32_t round, double *x);
  /* Describe sums over the gradient of group g of segment k, which `read_sums` reads: m->D is set; the engine
   * writes the result to b->gradient_sums, two numbers for each group, segment after segment. */
  void (*describe_sums)(const ng_block *b, int32_t k, int32_t g, ng_measure *m);
  void (*end_step)(ng_block *b, bool step_counts);
  /* write the numbers of the last solve */
  void (*write_report)(const ng_block *b, ng_layer_report *report);
  /* Set the sizes of *f; if f->left is not NULL, copy the averages of all statistics, which this rank has. */
  void (*write_factors)(ng_block *b, ng_factors *f);
} ng_family;

extern const ng_family ng_family_kronecker, ng_family_rankone, ng_family_norm, ng_family_window,
    ng_family_adam, ng_family_kronecker_adam, ng_family_kronecker_ekfac, ng_family_kronecker_muon,
    ng_family_muon, ng_family_soap, ng_family_shampoo;

/* ---- families.c ------------------------------------------------------------------------------*/

/* Add family f, which must outlive the context. ng_family_choose tries the families from the last added to the first. */
void ng_family_register(ng_context *ctx, const ng_family *f);
void ng_family_register_own(ng_context *ctx);
/* Return the library's family of this name; NULL: unknown. */
const ng_family *ng_family_find(const char *name);
/* Return the family that preconditions the entry e with the options o; NULL: none, and the gradient stays unchanged. */
const ng_family *ng_family_choose(const ng_context *ctx, const ng_settings *o, const ng_entry *e);
/* Check the model's options, then the options of each line of per_layer. */
ng_status ng_family_check(const ng_options *o, char *message, size_t size);
/* Check options with `check_options` of the method's family. o: the model's options, or a line of per_layer applied. */
ng_status ng_family_check_method_options(const ng_options *o, char *message, size_t size);
/* Used in `check_options`: fail if an option without one of the `traits` differs from its default. */
ng_status ng_family_check_others(uint32_t traits, const ng_options *o, char *message, size_t size);
/* Used in `check_options`: fail if one of n options that the method ignores differs from its default; the message has `why`. */
ng_status ng_family_check_unused(const ng_option_id *list, size_t n, const char *why,
                                 const ng_options *o, char *message, size_t size);
/* Used in `check_options`: fail at the first row with is_refused; the message is "OPTION = VALUE", then `reason`. */
typedef struct ng_refusal {
  bool is_refused;
  ng_option_id option;
  const char *reason;
} ng_refusal;
ng_status ng_family_check_list(const ng_refusal *list, size_t n, const ng_options *o, char *message,
                               size_t size);

/* Return a field of part i of a statistic. The name of the field is the statistic's name, then ".i" if there are several
 * parts, then `suffix`: with "_inverse", "A_inverse" or "A.0_inverse", "A.1_inverse", ... */
ng_field ng_part_field(const ng_stat *s, int32_t i, const char *suffix, ng_dtype t, int64_t rows,
                       int64_t cols, void *data);
/* Return the field of the average of part i; older: of s->part[i].older, with the suffix "_older". */
ng_field ng_average_field(const ng_stat *s, int32_t i, bool older);
/* Visit the saved arrays (numbers) of a block: first of its statistics, then of its family. */
void ng_block_fields(ng_block *b, ng_field_visit visit, void *arg);
void ng_block_numbers(ng_block *b, ng_number_visit visit, void *arg);
/* Return how many numbers, which ng_block_numbers visits first, are flags and counts. */
size_t ng_block_flags_and_counts(const ng_block *b);

/* Return the geometry of a layer at its declared image size (0: undeclared); outputs: of its output gradient. */
ng_conv ng_layer_conv(const ng_entry *e, bool outputs);

/* Rungs (ng_layer_report.rung): 0 to 3 damping x 1, 10, 100, 1000; then double, last good result, plain gradient. */
enum { NG_RUNG_DOUBLE = NG_DAMPED_DOUBLE, NG_RUNG_LAST = 5, NG_RUNG_PLAIN = 6 };
void ng_count_rung(ng_precond *p, int32_t rung);
int32_t
ng_rung_from_float(float says); /* convert a received or loaded rung; out of range: NG_RUNG_PLAIN */

/* What the queue writes for `read_sums` about the gradient D and PD: an object of its own, because the host reads the
 * state of the block meanwhile. */
typedef struct ng_direction_sums {
  double total[3]; /* <PD, D>, |D|^2, |PD|^2 */
  int32_t finite;  /* 0: a value of D is not finite */
} ng_direction_sums;
/* Set b->inner, b->d2 and b->pd2. If D is not finite, set the `count` numbers of the direction to 0, because other ranks
 * may receive the direction before they learn that the step is skipped; return NG_SKIPPED. */
ng_status ng_block_read_sums(ng_block *b, const ng_direction_sums *s, int64_t count);
/* The entry `emit` of a family whose b->direction has PD segment after segment, row after row. */
void ng_block_emit_direction(const ng_block *b, int32_t segment, int32_t g, double factor,
                             ng_direction *e);

/* ---- families_moments.c ----------------------------------------------------------------------*/

/* Vectors of all elements of a block, segment after segment, and passes over them. A family has one or both moments. */
typedef struct ng_moments {
  int64_t count, chunks;
  ng_flat_range *range; /* [ranges] of the segments */
  int32_t ranges;
  /* the moments after the last counted step; the moments after this step */
  float *moment[2], *next[2];
  bool are_new;         /* this step computes the next moments */
  double steps;         /* number of counted steps */
  double *partial_sums; /* [chunks, 3] scratch for the sums of chunks */
  double *result;       /* [NG_FLAT_OPS, 3] ng_flat_pass.out of the last pass of each kind */
} ng_moments;
/* Allocate objects in create_state. Request memory on ranks that compute PD: uses of the old and the next moments. */
ng_status ng_moments_create(ng_block *b, ng_moments *m);
void ng_moments_request(ng_plan *plan, ng_moments *m, int32_t moments, ng_use old, ng_use next);
/* Enqueue a pass p over the elements of the block; set its op, vectors and numbers only. */
void ng_moments_pass(ng_block *b, const ng_moments *m, ng_flat_pass p);
/* Enqueue, with b1, b2 and eps of the block's options:
 *     read_gradient  D <- the bound gradients
 *     mix            to <- beta v + (1 - beta) x
 *     add            next[0] <- beta moment[0] + (1 - beta) D
 *     adam           to <- b1 v + (1 - b1) x;   next[1] <- b2 moment[1] + (1 - b2) x^2;
 *                    x <- by1 to / (sqrt(by2 next[1]) + eps)
 *     measure        the sums of b->direction for ng_moments_read_sums, which read_sums calls */
void ng_moments_read_gradient(ng_block *b, const ng_moments *m, float *D);
void ng_moments_mix(ng_block *b, const ng_moments *m, float *to, const float *v, const float *x,
                    double beta);
void ng_moments_add(ng_block *b, ng_moments *m, const float *D, double beta);
void ng_moments_adam(ng_block *b, ng_moments *m, float *to, const float *v, float *x, double by1,
                     double by2);
void ng_moments_measure(ng_block *b, const ng_moments *m);
ng_status ng_moments_read_sums(ng_block *b, const ng_moments *m);
void ng_moments_end_step(ng_moments *m, bool step_counts);
void ng_moments_swap(ng_moments *m); /* exchange the old and the next moments */
/* Visit one or both moments of each segment, which this owner or each rank has. */
void ng_moments_visit(ng_block *b, const ng_moments *m, int32_t moments, int32_t owner,
                      bool is_everywhere, ng_field_visit visit, void *arg);

/* ---- families_schulz.c -----------------------------------------------------------------------*/

/* The direction of Muon for the weight of a layer, as a matrix. */
enum { NG_SCHULZ_MOST = 100 };
typedef struct ng_schulz {
  ng_newton_schulz iteration;
  double coefficients[NG_SCHULZ_MOST][3];
} ng_schulz;
ng_status ng_schulz_check_options(const ng_options *o, char *message, size_t size);
/* In create_state: set the size and b->direction_cost. The scratch is ng_newton_schulz_scratch of `iteration`. */
ng_status ng_schulz_create(ng_block *b, ng_schulz *k);
/* Enqueue D <- PD of D; the first moment of m is the momentum. */
void ng_schulz_direction(ng_block *b, ng_moments *m, ng_schulz *k, float *D, float *scratch);

/* ---- families_inputs.c -----------------------------------------------------------------------*/

/* Inputs of a micro-batch that wait for their output gradients, the latest last. The caller keeps their data valid until
 * then. If a layer runs several times, its output gradients are observed in the opposite order of its inputs. */
enum { NG_INPUTS_MOST = 8 };
typedef struct ng_inputs {
  ng_obs input[NG_INPUTS_MOST];
  int32_t count;
  int64_t batch; /* number of the micro-batch */
} ng_inputs;
/* Add an input; inputs of an earlier micro-batch are dropped. */
ng_status ng_inputs_store(ng_block *b, ng_inputs *k, const ng_obs *o);
/* *x <- the latest input, which belongs to the output gradient o; NG_SKIPPED: an earlier array was refused. The input
 * stays in the list, so that the caller can observe a refused output gradient again; ng_inputs.count-- removes it. */
ng_status ng_inputs_find(const ng_block *b, const ng_inputs *k, const ng_obs *o, const ng_obs **x);

/* Let the engine compute the result of m with this damping (ng_matrix). */
void ng_block_list_matrix(ng_block *b, ng_matrix *m, double shift, double damping, double floor);

/* Allocate b->stat with `count` statistics, freed with the block. */
ng_status ng_block_alloc_stats(ng_block *b, int32_t count);
/* Allocate the parts of statistic s: `each` parts for each of the `groups` groups. */
ng_status ng_stat_alloc_parts(ng_block *b, ng_stat *s, int32_t groups, int32_t each);

#endif
