/* model.h: layers, parameters, blocks, placement and memory.
 *
 * In:   layers and tensors (api/), the places of their gradients and weights. Out:  entries with
 * slots; blocks with segments; owners; the memory plan. May call: stat, option, linalg, comm, core.
 * It knows families by their table only.
 *
 *   entry    a layer or a tensor, as registered
 *   slot     one of its parameters: gradient, weight, moments; points to its block
 *   block    the unit of preconditioning: one layer or many; has a family, statistics, an owner
 *   segment  a block's view of a slot: its range, and its clip factor */
#ifndef NG_MODEL_H
#define NG_MODEL_H

#include "comm/comm.h"
#include "core/core.h"
#include "linalg/linalg.h"
#include "option/option.h"
#include "stat/stat.h"

struct ng_family;
struct ng_engine;
typedef struct ng_block ng_block;
typedef struct ng_entry ng_entry;
typedef struct ng_layer_shard ng_layer_shard;
typedef struct ng_object_head ng_object_head;

/* ---- what the caller described: layers.c -----------------------------------------------------*/

/* The layout of a parameter as [rows, cols]. The elements of a row are 1 apart (`straight`), or
 * along `axes` axes, outermost first: a channels-last or transposed weight. */
typedef struct ng_place {
  void *data; /* NULL: not bound */
  ng_dtype dtype;
  bool straight;
  bool once;    /* binding for one step */
  bool expired; /* ... which has returned: `data` is NULL */
  int32_t axes;
  int64_t by_row;
  int64_t extent[NG_DIMS], step[NG_DIMS];
} ng_place;

/* A parameter: its gradient and its weight. */
typedef struct ng_slot {
  ng_entry *entry;
  int32_t which;      /* NG_WEIGHT, NG_BIAS                                                       */
  const char *name;   /* "conv1.weight"; the name of a tensor */
  int64_t rows, cols; /* weight [out, in/groups*kh*kw]; bias and tensors [1, count]               */
  int64_t groups;     /* independent runs of rows, or of columns if there is one row */
  ng_place grad, weight;
  float *m, *v;         /* moments: momentum or first, second; NULL: the fused update has none */
  int32_t update_group; /* its group in a fused update: ng_set_group */
  ng_block *block;      /* NULL: no curvature */
  int32_t segment;      /* its index in the block */
  bool here;            /* this rank updates the weight; update_ranks = owner: one rank */
  bool out;             /* excluded from this step, see ng_block */
  _Atomic int64_t overflowed; /* elements that kept their old value in this step: see step/sink.c */
  float late[2];              /* replaces the numbers of its group after missed updates */
} ng_slot;

enum { NG_SHOWN = 4 };
enum { NG_NAME_BUCKETS = 1024 };
struct ng_entry {
  ng_layer d;             /* copied; name and options are owned; alias_of is unsupported */
  bool tensor;            /* registered by ng_add_tensor */
  bool lined;             /* d.options come from per_layer, until ng_step_release */
  bool asleep;            /* ng_freeze */
  int64_t kept;           /* steps without a gradient */
  int64_t missed;         /* fused updates that skipped it, for any reason; saved */
  int32_t slots;          /* 1 or 2 */
  int32_t first_slot;     /* slots of all entries before it */
  int32_t next_named;     /* next entry in its hash bucket: index + 1, 0 for the last */
  ng_slot slot[2];        /* weight, bias; see ng_entry_slot */
  char slot_name[2][264]; /* texts of the slots' names */
  ng_block *block;        /* NULL: no curvature; `why` has the reason */
  char why[200];
  int32_t plan_members, plan_axis;  /* ng_plan_shard; 0 members: not sharded */
  const struct ng_family *taken_by; /* ng_ready: its family */
  ng_layer_shard *shard;            /* ng_ready: NULL: not sharded */
  ng_entry *local;                  /* in ng_layer_shard.whole: the registered shard; else NULL */
  int64_t oh, ow;                   /* conv: of the declared image, 0: undeclared */
  /* Output sizes of the images of this micro-batch, the latest first. */
  int64_t shown_in;
  int64_t shown[NG_SHOWN][2];
  int32_t shown_count;
};

/* A sharded linear layer (whole.c). Families see `whole`, an entry of all widths with gathered
 * gradients; the registered shard stays unchanged. */
struct ng_layer_shard {
  ng_entry whole;
  int32_t members, member; /* of the model group */
  int64_t *at;             /* [members + 1] first element of each shard along the sharded axis */
  int64_t *saved;          /* the same in the group of rank 0, which saves moments */
  int64_t *counts;         /* [members] scratch of a gather */
  bool primary;            /* this rank observes for its group */
  bool gathers;            /* some rank of its group computes PD */
  float *grad;             /* weight [out, in], then the bias */
};

/* The parameter of slot k, and the slot of a parameter: -1 if absent. */
static inline int32_t ng_entry_param(const ng_entry *e, int32_t k) {
  return !e->tensor && e->d.kind == NG_NORM && e->d.norm_no_weight != 0 ? NG_BIAS : k;
}
static inline int32_t ng_entry_slot(const ng_entry *e, int32_t which) {
  for (int32_t k = 0; k < e->slots; k++) {
    if (ng_entry_param(e, k) == which) return k;
  }
  return -1;
}

/* The entry that families see. */
static inline const ng_entry *ng_entry_seen(const ng_entry *e) {
  return e->shard == NULL ? e : &e->shard->whole;
}
/* The registered slot of a block's slot. */
static inline ng_slot *ng_slot_own(ng_slot *s) {
  ng_entry *local = s->entry->local;
  return local == NULL ? s : &local->slot[s - s->entry->slot];
}
static inline bool ng_shard_cuts(const ng_entry *e, bool grad) { /* outputs, or inputs */
  return (e->d.shard_axis == 0) == grad;
}
/* `width`: the registered width of each member. */
ng_status ng_shard_make(ng_precond *p, ng_entry *e, const double *width, int32_t members,
                        int32_t member);
void ng_shard_follow(ng_entry *e); /* copy the flags of the entry to the whole layer */

/* Most elements of a parameter: bytes are 64-bit, tiles 32-bit numbers. */
#define NG_LARGEST (INT64_C(1) << 40)
/* Most groups, diagonal blocks or permuted columns of a layer, which are lists: so planning any
 * layer takes at most two seconds and two gigabytes, or is refused by name. */
#define NG_LISTED (INT64_C(1) << 22)
/* Check every field of a layer or tensor, once; other files assume a valid entry. */
ng_status ng_entry_add_layer(ng_precond *p, const ng_layer *d, int32_t *index);
ng_status ng_entry_add_tensor(ng_precond *p, const char *name, int64_t count, int32_t *index);
int32_t ng_entry_named(ng_precond *p, const char *name); /* its index; -1: unknown */
ng_status ng_entry_check_name(ng_precond *p, const char *call, const char *name);
/* Size of a convolution's output along an axis; false: the kernel exceeds the padded image. */
bool ng_conv_output(const ng_layer *d, int axis, int64_t size, int64_t *out);
/* ---- addresses of gradients and weights: bind.c ----------------------------------------------*/

/* Bind all of the list or none. */
ng_status ng_bind_list(ng_precond *p, const ng_binding *list, int32_t count, const char *call);
void ng_bind_expire(ng_precond *p); /* after a step */

/* Set the update group; `which` may be NG_BOTH. */
ng_status ng_slot_group(ng_precond *p, int32_t index, ng_param which, int32_t group,
                        const char *call);

/* place.c: n elements of row `row` from column `col`, as f32; write them; whether all are finite. */
void ng_place_read(const ng_place *v, int64_t row, int64_t col, int64_t n, float *out);
void ng_place_write(const ng_place *v, int64_t row, int64_t col, int64_t n, const float *x);
bool ng_place_finite(const ng_place *v, int64_t row, int64_t col, int64_t n);
/* Columns of one access, at most NG_LINE; whole channels of a channels-last row. */
static inline int64_t ng_place_columns(const ng_place *v) {
  const int64_t inner = v->straight || v->axes != 2 ? 1 : v->extent[1];
  return inner > NG_LINE ? NG_LINE : NG_LINE / inner * inner;
}
/* The address of an element of a straight place. */
static inline void *ng_place_at(const ng_place *v, int64_t row, int64_t col) {
  return (char *)v->data + (row * v->by_row + col) * ng_dtype_size(v->dtype);
}
static inline void ng_slot_read(const ng_slot *slot, int64_t row, int64_t col, int64_t n,
                                float *out) {
  ng_place_read(&slot->grad, row, col, n, out);
}

/* ---- blocks ----------------------------------------------------------------------------------*/

/* Elements [from, to) of a slot, in row order; families of whole parameters get whole segments. */
typedef struct ng_segment {
  ng_slot *slot;
  int64_t from, to;
  int64_t at;    /* elements of all segments before it */
  int32_t group; /* of its slot */
  double w2;     /* |weight|^2, for clips that need it */
  double factor; /* clip factor */
} ng_segment;

typedef struct ng_tile ng_tile;

enum { NG_ROUNDS = 5 };

struct ng_block {
  const struct ng_family *family;
  ng_precond *p;
  ng_context *ctx;
  const char *name;    /* its key in messages and files: the layer's name, or the family's */
  const char *options; /* its options line; NULL: none */
  const char *method;  /* the model's, or the one of its line */
  ng_entry *entry;     /* its layer; NULL: a block over many layers */
  int32_t number;      /* index among blocks */
  ng_settings base;    /* the model's options with this layer's overrides */
  uint32_t sees;       /* observations that this block uses */
  ng_stat *stat;
  int32_t stats;
  int32_t first_stat; /* statistics of all blocks before it */
  ng_segment *segment;
  int32_t segments;
  int32_t owner, column; /* the solver, unless statistics have their own owners */
  bool keeps;            /* this rank keeps all averages of the block */
  bool apart;            /* each average is kept by its owner only, and owners differ */
  /* Numbers that the owner of each statistic sends to the others before a solve (ng_family.put_traces).
   * If `apart`, `traces` has the numbers of all statistics, equal on all ranks of its column; otherwise
   * NULL. */
  int64_t traces_each;
  double *traces;        /* [stats x traces_each] */
  bool keeps_everywhere; /* every rank keeps all averages */
  bool solves, scans;    /* as its family; `create` may set them to false */
  bool is_worker;        /* this rank stores the results of the solve and can compute PD */
  bool partial;          /* inner, d2, pd2 are partial sums of this rank */
  bool ascends;          /* it measures H; PD = D + ascent H, and the clip sets ascent */
  void *state;           /* the family's */
  int64_t curvature_bytes;
  /* PD, if stored. A family that stores PD plans `direction` in its own order (ng_plan_direction).
   * For other families the engine stores PD, segment after segment, where ranks without results
   * need it: `delivered`. */
  float *direction;
  bool keeps_direction, delivered;
  /* PD in slices: rank r computes [slice[r], slice[r + 1]) of `whole`, in the family's order, and
   * the engine gathers the others. NULL: not sliced. */
  float *whole;
  const int64_t *slice; /* [ranks + 1] */
  /* A joint choice over ranks: `rounds` sums of round[i] numbers, see ng_family.select_topk. 0: none. */
  int32_t rounds;
  int64_t round[NG_ROUNDS];
  /* this step */
  bool selecting; /* observed, and the joint choice is pending */
  bool out;       /* excluded: its layer is frozen, or its gradient is missing and may be */
  double inner, d2, pd2;
  double ascent;
  bool ahead;          /* its sums are posted before the step */
  bool leaving;        /* ... in the messages under construction */
  const ng_tile *tile; /* its tiles, and NG_TILE_SUMS sums of measure_tile for each */
  double *tile_sum;
  int32_t tiles;
  /* since ng_ready */
  bool seen[NG_SEEN_KINDS]; /* observed by some rank, equal on all ranks; true also if unused */
  int64_t observations[NG_SEEN_KINDS];
  int32_t unshown;    /* statistics that were due in this step and no rank observed */
  int64_t unobserved; /* steps with such statistics */
  bool solved, fresh; /* since ng_ready; in this step */
  double observe_ms, observing_ms, solve_ms, measure_ms; /* observing: in this step */
};

/* ---- memory: arena.c -------------------------------------------------------------------------*/

typedef enum ng_use {
  NG_USE_FACTORS,   /* running averages */
  NG_USE_SUMS,      /* sums of the current step */
  NG_USE_RESULTS,   /* inverses, eigenbases; one run of bytes for each owner */
  NG_USE_DIRECTION, /* PD of blocks; one run for each column */
  NG_USE_MOMENTS,   /* of the fused updates */
  NG_USE_SCRATCH,   /* shared by all stations */
  NG_USE_OBJECTS,   /* structs, names */
  NG_USES
} ng_use;

/* A run of bytes in an arena, sent as one message. */
typedef struct ng_span {
  int64_t begin, end;
} ng_span;

/* Memory is requested twice: in a counting pass (take returns NULL) and in a placing pass. */
typedef struct ng_plan {
  bool place;
  char *base[NG_USES];
  int64_t bytes[NG_USES]; /* so far, each piece rounded up to NG_ALIGN */
  ng_span *result,
      *direction; /* [ranks]: by owner, by column; in the placing pass `end` is the next place */
  ng_span *sum, rest; /* sums that go to an owner, by owner; all other sums */
} ng_plan;
/* Whether a call after ng_ready may begin. */
ng_status ng_may_call(ng_precond *p, const char *call);
void ng_shard_ask(ng_layer_shard *s, ng_plan *plan); /* memory of the whole gradient: whole.c */
void *ng_plan_take(ng_plan *plan, ng_use use, int64_t bytes);
void *ng_plan_result(ng_plan *plan, int32_t owner, int64_t bytes);
/* Memory of PD of a block, in the family's order; sent to ranks without results. */
void ng_plan_direction(ng_plan *plan, ng_block *b, int64_t floats);
void ng_plan_scratch(ng_plan *plan, int64_t bytes); /* the largest request counts */
void ng_plan_stats(ng_plan *plan, ng_block *b);     /* averages and sums of its statistics */
int64_t ng_plan_held(const ng_plan *plan);          /* bytes of averages, sums and results so far */

/* Between the passes: allocate the arenas and place the runs. */
ng_status ng_plan_commit(ng_precond *p, ng_plan *plan);
void ng_arena_release(ng_precond *p);
/* Grow the scratch to at least `bytes`; its contents are lost.  `name`: the layer, for messages. */
ng_status ng_scratch_grow(ng_precond *p, int64_t bytes, const char *name);

/* Objects of a preconditioner: counted under NG_USE_OBJECTS, zeroed. NULL for 0 bytes, or without memory, which
 * is reported. ng_step_release frees all objects since ng_objects_open, ng_precond_destroy the others. */
void *ng_object(ng_precond *p, size_t bytes);
char *ng_object_text(ng_precond *p, const char *text);
void ng_object_free(ng_precond *p, void *object);
void ng_objects_open(ng_precond *p);
void ng_objects_close(ng_precond *p);
ng_status ng_objects_status(const ng_precond *p); /* NG_ERR_NOMEM: an object got no memory */

/* ---- ranks: placement.c ----------------------------------------------------------------------*/

/* W ranks form a grid of m rows and n = W/m columns, rank = row * n + column. */
typedef struct ng_grid {
  int32_t m, n, row, column; /* of this rank */
  ng_group column_group, row_group;
  int32_t *ranks; /* scratch for lists of ranks */
} ng_grid;

ng_status ng_grid_make(ng_precond *p);
ng_status ng_grid_groups(ng_precond *p); /* collective */
void ng_grid_release(ng_precond *p);
/* Assign columns and owners to blocks and statistics by their costs. */
ng_status ng_place_blocks(ng_precond *p);
void ng_place_stats(ng_block *b); /* set which ranks observe and keep its statistics */
double ng_stat_cost(const ng_stat *s, bool memory);
double ng_block_apply_cost(const ng_block *b);

/* ---- the preconditioner ----------------------------------------------------------------------*/

/* Counters of the ladder, see ng_report. */
typedef enum ng_rescue {
  NG_RESCUE_DAMPING,
  NG_RESCUE_DOUBLE,
  NG_RESCUE_LAST,
  NG_RESCUE_PLAIN,
  NG_RESCUES
} ng_rescue;

/* A statistic whose sums go to its owner only. */
typedef struct ng_owned {
  ng_block *block;
  ng_stat *stat;
} ng_owned;

enum { NG_FIELD_KEY = 320 }; /* "layer/field": at most 255 characters and 47 */

/* Position of state/walk.c: field `before` is the first of this key with this width. */
typedef struct ng_shown {
  int64_t width; /* bytes of an element; 0: at the start */
  int32_t key, before;
} ng_shown;

struct ng_precond {
  ng_context *ctx;
  ng_options opt;   /* owned texts, as in ng_get, messages and files */
  ng_settings base; /* parsed */
  ng_entry **entry; /* fixed at ng_ready */
  int32_t entries, entry_capacity;
  int32_t named[NG_NAME_BUCKETS]; /* hash buckets: index + 1 of the last entry, 0: none */
  ng_block **block;
  int32_t blocks;
  int32_t update_groups; /* number of update groups, fixed at ng_ready, 0 before */
  char *unused_globs;    /* of skip_layers: [unused] texts, each ended by a 0 */
  int32_t unused;
  bool ready;
  bool expires; /* some binding is for one step */
  bool broken;  /* NG_ERR_COMM was returned: only destroy */
  ng_grid grid;
  char *arena[NG_USES];
  int64_t held[NG_USES];                 /* bytes by use */
  ng_object_head *objects, *lasting;     /* the newest; the newest before ng_objects_open */
  bool starved;                          /* ... after which an object got no memory */
  ng_span *result_span, *direction_span; /* [ranks] by owner, by column */
  ng_span *sum_span;                     /* [ranks] sums that go to each owner */
  ng_owned *by_owner; /* [owned_stats] statistics that go to one owner, in order of owners */
  int32_t owned_stats;
  struct ng_engine *step; /* step/step.h */
  /* counters */
  int64_t steps, updates, skipped;
  int64_t overflowed; /* elements of updates that kept their old value on this rank */
  int64_t kept;       /* entries without a gradient in the last step */
  int64_t unobserved; /* statistics x steps: due, but not observed */
  int64_t rescued[NG_RESCUES];
  ng_shown shown;
  char shown_name[NG_FIELD_KEY]; /* the last name of ng_state_at */
};

/* Statistics of all blocks. */
static inline int32_t ng_stats_count(const ng_precond *p) {
  const ng_block *last = p->blocks > 0 ? p->block[p->blocks - 1] : NULL;
  return last != NULL ? last->first_stat + last->stats : 0;
}

/* Read by each use, because an observation may grow the scratch. */
static inline void *ng_scratch(const ng_block *b) { return b->p->arena[NG_USE_SCRATCH]; }

#endif
