/* model.h: layers, parameters, blocks, placement and memory.
 *
 * In:   layers and tensors, and the addresses of their gradients and weights.
 * Out:  entries with slots; blocks with segments; owners; the memory plan.
 * May call: stat, option, linalg, comm, core; families only through struct ng_family.
 *
 *   entry    a registered layer or tensor
 *   slot     a parameter of an entry: gradient, weight, moments
 *   block    the unit of preconditioning: one layer or many; has a family, statistics, an owner
 *   segment  the elements of a slot that belong to a block, and their clip factor */
#ifndef NG_MODEL_H
#define NG_MODEL_H

#include "comm/comm.h"
#include "core/core.h"
#include "kernel/kernel.h"
#include "option/option.h"
#include "stat/stat.h"

struct ng_family;
struct ng_engine;
typedef struct ng_block ng_block;
typedef struct ng_entry ng_entry;
typedef struct ng_layer_shard ng_layer_shard;
typedef struct ng_object_head ng_object_head;

/* ---- layers and tensors of the caller: layers.c ----------------------------------------------*/

/* A parameter of an entry. */
typedef struct ng_slot {
  ng_entry *entry;
  int32_t param;      /* NG_WEIGHT, NG_BIAS */
  const char *name;   /* "conv1.weight"; of a tensor: the name of the tensor */
  int64_t rows, cols; /* weight [out, in/groups*kh*kw]; bias and tensors [1, count] */
  /* number of groups of a convolution, otherwise 1; a group is a range of rows, of a bias a range of columns */
  int64_t groups;
  ng_place grad, weight; /* bound arrays */
  bool is_on_device[2];  /* the gradient, the weight was bound as NG_DEVICE */
  void *m, *v;           /* momentum or first moment; second moment; NULL if the update has none */
  ng_dtype moment_dtype; /* f64 if the weight bound at ng_ready is f64, otherwise f32 */
  int32_t update_group;  /* group of a fused update, from ng_set_group */
  ng_block *block;       /* NULL: no curvature */
  int32_t segment;       /* index of this slot's segment in the block */
  bool updates_here;     /* this rank updates the weight (option update_ranks) */
  bool is_excluded;      /* set in each step: the entry is frozen or has no gradient */
  _Atomic int64_t overflowed; /* number of elements that the update of this step left unchanged */
  double
      late_coefficients[2]; /* replace ng_group_numbers.coefficients if the entry missed updates */
} ng_slot;

enum { NG_IMAGE_SIZES = 4, NG_NAME_BUCKETS = 1024 };
struct ng_entry {
  ng_layer d;                     /* copy of the caller's struct, with own copies of its texts */
  bool is_tensor;                 /* true: registered by ng_add_tensor; false: a layer */
  bool has_per_layer_options;     /* d.options come from per_layer; ng_setup_release resets them */
  bool is_frozen;                 /* frozen by ng_freeze */
  int64_t steps_without_gradient; /* number of counted steps in which the entry had no gradient */
  int64_t missed_updates;         /* number of fused updates that excluded the entry; saved */
  int32_t slots;                  /* 1 or 2 */
  int32_t index;                  /* index in ng_precond.entry */
  int32_t next_named;     /* next entry in the hash bucket of this name: index + 1; 0: none */
  ng_slot slot[2];        /* weight, bias; see ng_entry_slot */
  char slot_name[2][264]; /* texts of the slots' names */
  ng_block *block;        /* NULL: no curvature */
  /* text for ng_explain: the factors, or the reason why the entry has no block */
  char why[200];
  int32_t plan_members, plan_axis; /* arguments of ng_plan_shard; 0 members: not called */
  const struct ng_family *family;  /* set by ng_ready; NULL: no curvature */
  ng_layer_shard *shard;           /* set by ng_ready; NULL: not sharded */
  /* for ng_layer_shard.whole: the entry of the registered shard; otherwise NULL */
  ng_entry *registered;
  int64_t out_size
      [2]; /* for a convolution: height and width of the output at the declared image size, or 0 */
  /* The different output sizes [height, width] of a convolution in micro-batch `sizes_batch`.  sizes_count may exceed
   * NG_IMAGE_SIZES; then only the first sizes are stored. */
  int64_t sizes_batch;
  int64_t sizes[NG_IMAGE_SIZES][2];
  int32_t sizes_count;
};

/* A sharded linear layer (whole.c).  Families get `whole`, an entry of the total width with gathered gradients, instead
 * of the registered shard. */
struct ng_layer_shard {
  ng_entry whole;
  int32_t members, member; /* size of the model group, and index of this rank in the group */
  int64_t *first_element;  /* [members + 1] first element of each shard along the sharded axis */
  int64_t *saved_first_element; /* `first_element` of rank 0, whose model group saves the moments */
  int64_t *counts;              /* [members] scratch of a gather */
  /* in the model group, this rank adds the observations to the sums */
  bool is_primary;
  /* some rank of this model group computes PD, so the gradient must be gathered */
  bool gathers;
  float *whole_grad; /* the gathered gradient: weight [out, in], then the bias */
};

/* Return the parameter (NG_WEIGHT, NG_BIAS) of slot k. */
static inline int32_t ng_entry_param(const ng_entry *e, int32_t k) {
  return !e->is_tensor && e->d.kind == NG_NORM && e->d.norm_no_weight != 0 ? NG_BIAS : k;
}
/* Return the index of the entry's slot for parameter `which`; -1 if there is no such slot. */
static inline int32_t ng_entry_slot(const ng_entry *e, int32_t which) {
  for (int32_t k = 0; k < e->slots; k++) {
    if (ng_entry_param(e, k) == which) return k;
  }
  return -1;
}

/* Return the entry that families receive: if e is a shard, the whole layer; otherwise e. */
static inline const ng_entry *ng_entry_whole(const ng_entry *e) {
  return e->shard == NULL ? e : &e->shard->whole;
}
/* Return the registered slot of `s`, which may be a slot of ng_layer_shard.whole. */
static inline ng_slot *ng_slot_registered(ng_slot *s) {
  ng_entry *local = s->entry->registered;
  return local == NULL ? s : &local->slot[s - s->entry->slot];
}
/* Return whether each rank has only a shard of the output gradients (`grad`) or of the inputs of the layer. */
static inline bool ng_shard_cuts(const ng_entry *e, bool grad) {
  return (e->d.shard_axis == 0) == grad;
}
/* Create e->shard for index `member` of a model group.  width[i]: width of the shard of member i on the sharded
 * axis. */
ng_status ng_shard_make(ng_precond *p, ng_entry *e, const double *width, int32_t members,
                        int32_t member);
/* Copy flags and groups of a registered shard, which ng_freeze and ng_set_group change, to its whole layer. */
void ng_shard_copy_flags(ng_entry *e);

/* The largest number of elements of a parameter: the number of its tiles then fits 32 bits. */
#define NG_PARAMETER_MOST (INT64_C(1) << 40)
/* The largest number of groups, of diagonal blocks, and of permuted columns of a layer, which are stored as lists.
 * With this bound, ng_ready needs at most two seconds and two gigabytes for a layer. */
#define NG_LIST_MOST (INT64_C(1) << 22)
/* Check every field of a layer or tensor and add its entry; other files assume a valid entry. */
ng_status ng_entry_add_layer(ng_precond *p, const ng_layer *d, int32_t *index);
ng_status ng_entry_add_tensor(ng_precond *p, const char *name, int64_t count, int32_t *index);
int32_t ng_entry_find(ng_precond *p, const char *name); /* index of the entry; -1: unknown */
ng_status ng_entry_check_name(ng_precond *p, const char *call, const char *name);
/* Set *out to the output size of a convolution along `axis` (0: height, 1: width) for an input of `size` pixels.
 * Return false if the kernel is larger than the padded input. */
bool ng_conv_output(const ng_layer *d, int axis, int64_t size, int64_t *out);

/* ---- addresses of gradients and weights: bind.c ----------------------------------------------*/

/* Return an error if the backend cannot read the array of a layer or tensor `name`. */
ng_status ng_check_memory(ng_context *ctx, const ng_array *a, const char *call, const char *name);

/* Bind every array of the list, or after an error none.  `call`: name of the public function, for messages. */
ng_status ng_bind_list(ng_precond *p, const ng_binding *list, int32_t count, const char *call);
void ng_bind_expire(ng_precond *p); /* end the bindings with NG_ONE_STEP */

/* Set the group of a parameter (NG_BOTH: of both parameters) of entry `index` for fused updates. */
ng_status ng_slot_set_group(ng_precond *p, int32_t index, ng_param which, int32_t group,
                            const char *call);

/* ---- blocks ----------------------------------------------------------------------------------*/

/* The elements of a slot in a block, row after row. */
typedef struct ng_segment {
  ng_slot *slot;
  int64_t count;       /* number of elements of the slot */
  int64_t offset;      /* number of elements of all previous segments of the block */
  int32_t group;       /* update_group of the slot at ng_ready */
  double weight_norm2; /* |weight|^2 of this step, for clip = ratio */
  double pd_norm2;     /* |PD|^2 of this step, for clip = ratio and rms */
  double clip_factor;
} ng_segment;

/* Who plans and fills ng_block.direction. */
typedef enum ng_filled_by {
  NG_BY_NONE,
  NG_BY_FAMILY, /* the family fills `direction`, in an order that only its `emit` knows */
  NG_BY_ENGINE /* segment after segment, if some rank lacks the results: the exchange delivers PD */
} ng_filled_by;

enum { NG_TOPK_ROUNDS = 5 }; /* capacity of ng_block.topk_counts */

struct ng_block {
  const struct ng_family *family;
  ng_precond *p;
  ng_context *ctx;
  const char *name; /* key in messages and files: "fc1" (the layer), "window", "window.fc1" */
  const char *own_options; /* text of the layer's own options; NULL: none */
  ng_entry *entry;         /* layer of the block; NULL: a block over many layers */
  int32_t index;           /* index in ng_precond.block */
  ng_settings base;  /* options of the model, overridden by own_options (ng_block_set_options) */
  uint32_t observed; /* set of observations (ng_observed_bit) that the block uses */
  ng_stat *stat;
  int32_t stats;
  ng_segment *segment;
  int32_t segments;
  int32_t owner;     /* rank that solves; if owners_differ, each statistic has its own owner */
  int32_t column;    /* column of the grid whose ranks store the results */
  bool has_averages; /* this rank stores all averages of the block */
  bool averages_everywhere; /* every rank stores all averages of the block */
  bool owners_differ;       /* each average is stored on its owner only, and the owners differ */
  /* If `owners_differ`: numbers that the owner of each statistic sends to the other ranks of the column before a solve
   * (ng_family.write_traces).  Otherwise `traces` is NULL. */
  int64_t traces_per_stat;
  double *traces; /* [stats x traces_per_stat] */
  double
      direction_cost; /* number of multiplications for PD, if PD uses no matrix of a statistic; set by create_state */
  bool solves; /* the family solves this block; ng_family.create_state may clear the flag */
  /* largest number of matrices that ng_block_list_matrix lists in one step; set by create_state */
  int32_t matrices;
  int32_t matrices_listed; /* number of matrices listed in this step */
  bool
      skips_update; /* set by the family, equal on all ranks: this step does not change the weights, not even by
                     * weight decay */
  bool is_worker;          /* this rank stores the results of the solve and can compute PD */
  void *state;             /* memory of the family */
  int64_t curvature_bytes; /* bytes of averages, sums and results on this rank */
  float *direction;        /* PD; with NG_BY_NONE memory of the family, or NULL */
  ng_filled_by filled_by;  /* which code requests memory for `direction` and fills it */
  /* PD in slices: rank r computes elements [slice[r], slice[r + 1]) of whole_direction, in the family's order, and the
   * engine gathers the slices of all ranks; inner, d2, pd2 are this rank's part of sums over ranks.  NULL: not
   * sliced. */
  float *whole_direction;
  const int64_t *slice; /* [ranks + 1] */
  /* Joint top-k selection: in reduction i of `topk_rounds` the ranks sum topk_counts[i] numbers
   * (ng_family.select_topk). */
  int32_t topk_rounds;
  int64_t topk_counts[NG_TOPK_ROUNDS];
  /* The next fields are valid in one step. */
  bool is_selecting; /* the gradient is observed, but its top-k elements are not selected yet */
  bool is_excluded;  /* the layer is frozen, or its gradient is missing (missing = keep) */
  double inner, d2, pd2;
  double *gradient_sums; /* [groups of all segments x 2] results of ng_family.describe_sums */
  /* number of the last micro-batch in which an array of the block was not finite */
  int64_t refused_batch;
  /* number of statistics that were due in this step, but not observed by any rank */
  int32_t unobserved_now;
  /* Since ng_ready. */
  bool was_observed
      [NG_OBSERVED_KINDS]; /* for each kind of observation: some rank has observed it, or the block does not use it */
  int64_t observation_count[NG_OBSERVED_KINDS];
  int64_t unobserved_steps; /* number of steps with unobserved_now > 0 */
  bool was_solved;
  /* Times of ng_layer_report; step_observe_ms: of the observations in this step so far. */
  double observe_ms, step_observe_ms, solve_ms, measure_ms;
};

/* ---- memory: arena.c -------------------------------------------------------------------------*/

/* One arena (allocation) for each use. */
typedef enum ng_use {
  NG_USE_FACTORS,   /* running averages */
  NG_USE_SUMS,      /* sums of the current step */
  NG_USE_RESULTS,   /* inverses, eigenbases; ordered by owner */
  NG_USE_DIRECTION, /* PD of blocks; ordered by column of ranks */
  NG_USE_MOMENTS,   /* moments; bases of SOAP; rows of gradient_rows */
  NG_USE_SCRATCH,   /* shared by all stations */
  NG_USE_OBJECTS,   /* structs, names */
  NG_USES
} ng_use;

/* Bytes [begin, end) of an arena.  Each span is sent as one message. */
typedef struct ng_span {
  int64_t begin, end;
} ng_span;

/* The memory plan.  All memory is requested twice: in a counting pass, in which requests return NULL, and in a placing
 * pass, in which they return addresses.  While a pass runs, a span ends after the last request so far. */
typedef struct ng_plan {
  bool is_placing;
  char *base[NG_USES]; /* placing pass: address of each arena */
  int64_t bytes
      [NG_USES];   /* bytes requested so far in this pass; each request is rounded up to NG_ALIGN */
  ng_span *result; /* [ranks] results of each owner */
  ng_span *direction; /* [columns] PD of the blocks of each column */
  ng_span *sum;       /* [ranks] the span of the sums that only this owner receives */
  ng_span shared_sum; /* all other sums */
} ng_plan;

/* Begin a public function of a model: NG_ERR_ARG if p is NULL; otherwise ng_enter.  ng_check_callable: also check that
 * the transport works and that ng_ready was called. */
ng_status ng_precond_enter(const ng_precond *p);
ng_status ng_check_callable(ng_precond *p, const char *call);
/* Request memory.  Return NULL in the counting pass, and for 0 bytes. */
void *ng_plan_take(ng_plan *plan, ng_use use, int64_t bytes);
void *ng_plan_result(ng_plan *plan, int32_t owner, int64_t bytes);
/* Request memory for b->direction, which is sent to ranks without results. */
void ng_plan_direction(ng_plan *plan, ng_block *b, ng_filled_by by, int64_t floats);
void ng_plan_scratch(ng_plan *plan, int64_t bytes); /* the scratch gets the largest request */
void ng_plan_stats(ng_plan *plan, ng_block *b); /* averages and sums of the block's statistics */
/* return the bytes of averages, sums and results requested so far */
int64_t ng_plan_counted_bytes(const ng_plan *plan);

/* Between the passes: allocate the arenas and set the begin of each span. */
ng_status ng_plan_commit(ng_precond *p, ng_plan *plan);
void ng_arena_release(ng_precond *p);
/* Grow the scratch to at least `bytes`; its contents are lost.  Messages name the layer `name`. */
ng_status ng_scratch_grow(ng_precond *p, int64_t bytes, const char *name);

/* Allocate a zeroed object, which counts as NG_USE_OBJECTS.  Return NULL for 0 bytes, or without memory, after ng_fail.
 * ng_object_copy_text: allocate a copy of a text.  ng_objects_open stores the newest object in p->lasting.
 * ng_objects_free_after: free all objects that are newer than `last` (NULL: all).
 * ng_objects_status: return NG_ERR_NOMEM if an allocation has failed since ng_objects_open. */
void *ng_object(ng_precond *p, size_t bytes);
/* the same, but the memory is not initialised */
void *ng_object_unset(ng_precond *p, size_t bytes);
char *ng_object_copy_text(ng_precond *p, const char *text);
void ng_object_free(ng_precond *p, void *object);
void ng_objects_open(ng_precond *p);
void ng_objects_free_after(ng_precond *p, const ng_object_head *last);
ng_status ng_objects_status(const ng_precond *p);

/* ---- ranks: placement.c ----------------------------------------------------------------------*/

/* W ranks form a grid of m rows and n = W/m columns, rank = row * n + column. */
typedef struct ng_grid {
  int32_t m, n, row, column; /* size of the grid; row and column of this rank */
  ng_group column_group, row_group;
  int32_t *ranks; /* scratch for lists of ranks */
} ng_grid;

ng_status ng_grid_make(ng_precond *p);
ng_status ng_grid_groups(ng_precond *p); /* create column_group and row_group; collective */
void ng_grid_release(ng_precond *p);
/* Assign columns and owners to blocks and statistics by their costs. */
ng_status ng_place_blocks(ng_precond *p);
void ng_place_stats(ng_block *b); /* set which statistics this rank observes and stores */
/* Return the cost of solving a statistic: operations, or with `memory` numbers to store. */
double ng_stat_cost(const ng_stat *s, bool memory);
double ng_block_apply_cost(const ng_block *b); /* cost of PD, see ng_rank_plan.apply_cost */

/* ---- the preconditioner ----------------------------------------------------------------------*/

/* Counters of the ladder, see ng_report. */
typedef enum ng_rescue {
  NG_RESCUE_DAMPING,
  NG_RESCUE_DOUBLE,
  NG_RESCUE_LAST,
  NG_RESCUE_PLAIN,
  NG_RESCUES
} ng_rescue;

/* A statistic and its block. */
typedef struct ng_block_stat {
  ng_block *block;
  ng_stat *stat;
} ng_block_stat;

enum { NG_FIELD_KEY = 320 }; /* "layer/field": at most 255 and 47 characters, a slash and a 0 */

/* Where the last search of state/walk.c ended, in the order of files: arrays with elements of 8 bytes, 4, 2, 1. */
typedef struct ng_field_search {
  int64_t width; /* bytes of an element; 0: no search yet */
  int32_t key;   /* block or entry, see ng_state_key_fields */
  /* number of fields that precede the first field with this element size and key */
  int32_t fields_before;
} ng_field_search;

struct ng_precond {
  ng_context *ctx;
  ng_options opt;
  ng_entry **entry; /* fixed at ng_ready */
  int32_t entries, entry_capacity;
  ng_slot **slot; /* [slots] of all entries, in order */
  int32_t slots;
  int32_t name_bucket[NG_NAME_BUCKETS]; /* hash table of names: index + 1 of an entry, 0: none */
  ng_block **block;
  int32_t blocks;
  ng_block_stat *stat; /* [stats] of all blocks, in order; set by ng_ready */
  int32_t stats;
  int32_t update_groups; /* number of groups of ng_set_group, fixed at ng_ready; 0 before */
  /* [unused_count] globs of skip_layers that match no layer, each ending with a 0 byte */
  char *unused_globs;
  int32_t unused_count;
  bool is_ready;
  bool is_broken; /* the transport or the device failed; only ng_precond_destroy may be called */
  ng_grid grid;
  char *arena[NG_USES];
  int64_t arena_bytes[NG_USES];      /* bytes of each arena, and of all objects */
  ng_object_head *objects, *lasting; /* newest object; newest object at ng_objects_open */
  bool out_of_memory;                /* an allocation of an object failed since ng_objects_open */
  ng_span *result_span, *direction_span, *sum_span; /* spans of messages, set by ng_plan */
  ng_block_stat *owned; /* [owned_stats] statistics that only one owner receives, sorted by owner */
  int32_t owned_stats;
  struct ng_engine *step; /* step/step.h */
  /* counters */
  int64_t steps, updates, skipped;
  /* number of elements that the updates of this rank left unchanged, in all steps */
  int64_t overflowed;
  /* number of entries without a gradient in the last step; 0 if the step did not count */
  int64_t entries_without_gradient;
  int64_t unobserved; /* number of statistics that were due, but not observed, summed over steps */
  int64_t rescued[NG_RESCUES];
  /* [sum of ng_block.matrices] the matrices that the step solves, block after block */
  ng_matrix **solve_list;
  int32_t solve_listed;
  ng_field_search last_search;
  char found_name[NG_FIELD_KEY]; /* the last name of ng_state_at */
};

/* Return the address of the scratch, which an observation may reallocate. */
static inline void *ng_scratch(const ng_block *b) { return b->p->arena[NG_USE_SCRATCH]; }

#endif
