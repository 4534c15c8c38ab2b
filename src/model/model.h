/* model.h: what the caller described, and what was made of it: layers, parameters, blocks, memory.
 *
 * In:   layers and tensors (api/), where their gradients and weights live.
 * Out:  entries with their slots; blocks with their segments; which rank owns what; every byte.
 * May call: stat, option, linalg, comm, core.  It knows that there are families, not what they do.
 *
 *   entry    a layer or a tensor, as registered
 *   slot     one of its parameters: gradient, weight, moments; knows its block
 *   block    what is preconditioned together: one layer, or many; has a family, statistics, an owner
 *   segment  a block's view of a slot: the range that is its own, and what the clip says of it
 */
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

/* ---- what the caller described: layers.c -----------------------------------------------------*/

/* Where the numbers of a parameter lie, seen as [rows, cols].  The elements of a row are 1 apart
 * (`straight`), or along `axes` axes, outermost first: a channels-last weight, a transposed one. */
typedef struct ng_place {
  void *data; /* NULL: not bound */
  ng_dtype dtype;
  bool straight;
  bool once;    /* until the next step returns ...          */
  bool expired; /* ... which it has: `data` is NULL         */
  int32_t axes;
  int64_t by_row;
  int64_t extent[NG_DIMS], step[NG_DIMS];
} ng_place;

/* A parameter: where its gradient and its weight live. */
typedef struct ng_slot {
  ng_entry *entry;
  int32_t which;      /* NG_WEIGHT, NG_BIAS                                                       */
  const char *name;   /* "conv1.weight"; a tensor's own name                                      */
  int64_t rows, cols; /* weight [out, in/groups*kh*kw]; bias and tensors [1, count]               */
  int64_t groups;     /* runs of rows (of one row: of columns) that share nothing                 */
  ng_place grad, weight;
  float *m, *v; /* moments: momentum or first, second; NULL if options.update keeps none       */
  int32_t update_group; /* whose numbers a fused update takes for it: ng_set_group                */
  ng_block *block; /* NULL: no curvature                                                          */
  int32_t segment; /* its number in the block                                                     */
  bool here;       /* this rank moves its weight; update_ranks = owner: one rank does             */
  bool out;        /* of this step, as its block: see ng_block                                    */
  _Atomic int64_t overflowed; /* elements that kept their old value in this step: see step/sink.c */
  float late[2]; /* what an update takes instead of its group's numbers, if its entry missed some */
} ng_slot;

enum { NG_SHOWN = 4 };
enum { NG_NAME_BUCKETS = 1024 };
struct ng_entry {
  ng_layer d;  /* copied; name and options owned; alias_of not supported yet                      */
  bool tensor; /* registered by ng_add_tensor                                                     */
  bool lined;  /* d.options are of per_layer                                                      */
  bool asleep; /* ng_freeze                                                                       */
  int64_t kept;   /* steps that left it as it was, for want of a gradient                         */
  int64_t missed; /* fused updates that left it as it was, for whatever reason; saved             */
  int32_t slots;  /* 1 or 2 */
  int32_t first_slot;     /* how many the entries before it have */
  int32_t next_named;     /* of the same bucket of names: index + 1, 0 for the last */
  ng_slot slot[2];        /* weight, bias; see ng_entry_slot */
  char slot_name[2][264]; /* what the slots' names point at */
  ng_block *block;        /* NULL: no curvature; `why` says the reason        */
  char why[200];
  int32_t plan_members, plan_axis;  /* ng_plan_shard; 0 members: planned as it is */
  const struct ng_family *taken_by; /* ng_ready: the family that fits it */
  ng_layer_shard *shard;            /* ng_ready: NULL, this rank has all of it */
  ng_entry *local;                  /* of ng_layer_shard.whole: the one that was registered */
  int64_t oh, ow;                   /* conv: of the image that was told, 0 if none was */
  /* Output sizes of the images shown in this micro-batch, the latest first. */
  int64_t shown_in;
  int64_t shown[NG_SHOWN][2];
  int32_t shown_count;
};

/* A linear layer of which each rank of a model group has a part: whole.c.  Families see `whole`, an entry of
 * all widths with gradients that were brought together; what is registered and bound stays as it is. */
struct ng_layer_shard {
  ng_entry whole;
  int32_t members, member; /* of the model group */
  int64_t *at;             /* [members + 1] where each part begins, along what is cut */
  int64_t *saved;          /* ... in the group of rank 0, which gives moments to a state */
  int64_t *counts;         /* [members] room for a gather */
  bool primary;            /* this rank's observations count, not those of its group's others */
  bool gathers;            /* some rank of its group makes PD */
  float *grad;             /* weight [out, in], then the bias */
};

/* Slot k is which parameter, and the other way round: -1 if there is none. */
static inline int32_t ng_entry_param(const ng_entry *e, int32_t k) {
  return !e->tensor && e->d.kind == NG_NORM && e->d.norm_no_weight != 0 ? NG_BIAS : k;
}
static inline int32_t ng_entry_slot(const ng_entry *e, int32_t which) {
  for (int32_t k = 0; k < e->slots; k++) {
    if (ng_entry_param(e, k) == which) return k;
  }
  return -1;
}

/* What families see of an entry. */
static inline const ng_entry *ng_entry_seen(const ng_entry *e) {
  return e->shard == NULL ? e : &e->shard->whole;
}
/* The slot that was registered, of one that a block has. */
static inline ng_slot *ng_slot_own(ng_slot *s) {
  ng_entry *local = s->entry->local;
  return local == NULL ? s : &local->slot[s - s->entry->slot];
}
static inline bool ng_shard_cuts(const ng_entry *e, bool grad) { /* outputs, or inputs */
  return (e->d.shard_axis == 0) == grad;
}
/* `width`: of each member, as they registered it. */
ng_status ng_shard_make(ng_precond *p, ng_entry *e, const double *width, int32_t members,
                        int32_t member);
void ng_shard_free(ng_precond *p, ng_entry *e);
void ng_shard_follow(ng_entry *e); /* what was said of the entry holds for what families see */

/* Elements of a parameter: its bytes, and tiles of it, are numbers of 64 and 32 bits. */
#define NG_LARGEST (INT64_C(1) << 40)
/* Of what a layer has a list of: groups, diagonal blocks of a factor, columns of a permutation.  So a layer of any
 * size is planned in two seconds and two gigabytes, or refused by name. */
#define NG_LISTED (INT64_C(1) << 22)
/* Every field of a layer or tensor is checked here, once; the rooms behind assume a valid entry. */
ng_status ng_entry_add_layer(ng_precond *p, const ng_layer *d, int32_t *index);
ng_status ng_entry_add_tensor(ng_precond *p, const char *name, int64_t count, int32_t *index);
int32_t ng_entry_named(ng_precond *p, const char *name); /* its index; -1: there is none */
ng_status ng_entry_check_name(ng_precond *p, const char *call, const char *name);
void ng_entry_free(ng_precond *p, ng_entry *e);
/* Size of a convolution's output along an axis; false: the kernel reaches beyond the padded image. */
bool ng_conv_output(const ng_layer *d, int axis, int64_t size, int64_t *out);
/* ---- where they live: bind.c -----------------------------------------------------------------*/

/* All of the list or nothing of it. */
ng_status ng_bind_list(ng_precond *p, const ng_binding *list, int32_t count, const char *call);
void ng_bind_expire(ng_precond *p); /* a step has returned */

/* Whose numbers fused updates take for it; `which` may be NG_BOTH. */
ng_status ng_slot_group(ng_precond *p, int32_t index, ng_param which, int32_t group,
                        const char *call);

/* place.c: n elements of row `row` from column `col`, as f32; back; whether all are finite. */
void ng_place_read(const ng_place *v, int64_t row, int64_t col, int64_t n, float *out);
void ng_place_write(const ng_place *v, int64_t row, int64_t col, int64_t n, const float *x);
bool ng_place_finite(const ng_place *v, int64_t row, int64_t col, int64_t n);
/* How many columns to take at once, at most NG_LINE: whole channels of a row that lies turned. */
static inline int64_t ng_place_columns(const ng_place *v) {
  const int64_t inner = v->straight || v->axes != 2 ? 1 : v->extent[1];
  return inner > NG_LINE ? NG_LINE : NG_LINE / inner * inner;
}
/* Of one whose rows are straight: where an element is. */
static inline void *ng_place_at(const ng_place *v, int64_t row, int64_t col) {
  return (char *)v->data + (row * v->by_row + col) * ng_dtype_size(v->dtype);
}
static inline void ng_slot_read(const ng_slot *slot, int64_t row, int64_t col, int64_t n,
                                float *out) {
  ng_place_read(&slot->grad, row, col, n, out);
}

/* ---- blocks ----------------------------------------------------------------------------------*/

/* Elements [from, to) of a slot, in the order of its rows; families that need a whole parameter get
 * segments that are whole. */
typedef struct ng_segment {
  ng_slot *slot;
  int64_t from, to;
  int64_t at;    /* elements of the segments before it                 */
  int32_t group; /* of its slot, at ng_ready                           */
  double w2;     /* |weight|^2, where the clip asks for it             */
  double factor; /* what its part of PD is multiplied by               */
} ng_segment;

typedef struct ng_tile ng_tile;

enum { NG_ROUNDS = 5 };

struct ng_block {
  const struct ng_family *family;
  ng_precond *p;
  ng_context *ctx;
  const char *name; /* its key in messages and files: the layer's name, or the family's           */
  char *own_name;   /* ... if it has none of theirs */
  const char *options; /* the line of its layers, NULL: there is none */
  const char *method;  /* the model's, or that of the line */
  ng_entry *entry;  /* its layer; NULL: it has the slots of many                                  */
  int32_t number;   /* among blocks                                                               */
  ng_settings base; /* the model's options with this layer's overrides                            */
  uint32_t sees; /* of what its family sees, what this one looks at                               */
  ng_stat *stat;
  int32_t stats;
  int32_t first_stat; /* how many the blocks before it have */
  ng_segment *segment;
  int32_t segments;
  int32_t owner, column; /* who solves, unless its statistics have owners of their own            */
  bool keeps;            /* this rank keeps all of its averages                                   */
  bool apart; /* each of its averages is kept by an owner alone, not all by the same              */
  /* Numbers that an owner tells the others of each statistic before a solve, as its family says; where it
   * is apart, of all of them, the same on all ranks of its column.  NULL: not there. */
  int64_t tells;
  double *told;          /* [stats x tells] */
  bool keeps_everywhere; /* ... and so does every rank                                            */
  bool holds;            /* ... can make PD of it: has the results of its solve, if there are any */
  bool partial; /* inner, d2, pd2 are this rank's share: the sum over ranks is the block's        */
  bool ascends; /* what it measures is H, and PD = D + ascent H; the clip sets ascent             */
  void *state;  /* the family's                                                                   */
  int64_t curvature_bytes;
  /* PD where it cannot be made twice.  A family that keeps it takes `direction` by itself, in an order
   * of its own (ng_plan_direction); for the others the engine does where ranks without results need
   * it, segment after segment: `delivered`. */
  float *direction;
  bool keeps_direction, delivered;
  /* PD of which each rank makes a part: all of it, in the family's order, of which rank r makes
   * [slice[r], slice[r + 1]); the engine brings those of the others.  NULL: each makes what it needs. */
  float *whole;
  const int64_t *slice; /* [ranks + 1] */
  /* Where ranks decide together what their observations are: so many sums over ranks of so many numbers, see
   * ng_family.choose.  0: no such block. */
  int32_t rounds;
  int64_t round[NG_ROUNDS];
  /* this step */
  bool choosing; /* it was observed, and its ranks have not chosen yet */
  bool out; /* has no part in it: its layer is frozen, or has no gradient and that is allowed */
  double inner, d2, pd2;
  double ascent;
  bool ahead;          /* its sums leave before the step, while others are observed */
  bool leaving;        /* ... in the messages that are being made */
  const ng_tile *tile; /* its tiles, and what measure_tile left, NG_TILE_SUMS numbers for each */
  double *tile_sum;
  int32_t tiles;
  /* since ng_ready */
  bool seen[NG_SEEN_KINDS]; /* some rank has shown it; the same on all ranks; true: not looked at */
  int64_t observations[NG_SEEN_KINDS];
  int32_t unshown; /* statistics that were due in this step and of which no rank showed anything */
  int64_t unobserved;                                    /* steps in which there were such */
  bool solved, fresh;                                    /* since ng_ready; in this step */
  double observe_ms, observing_ms, solve_ms, measure_ms; /* observing: the step under way */
};

/* ---- memory: arena.c -------------------------------------------------------------------------*/

typedef enum ng_use {
  NG_USE_FACTORS,   /* running averages                                                           */
  NG_USE_SUMS,      /* sums of the current step                                                   */
  NG_USE_RESULTS,   /* inverses, eigenbases; one run of bytes an owner: one message               */
  NG_USE_DIRECTION, /* PD of blocks; one run a column of owners                                   */
  NG_USE_MOMENTS,   /* of the fused updates                                                       */
  NG_USE_SCRATCH,   /* shared by all stations                                                     */
  NG_USE_OBJECTS,   /* structs, names                                                             */
  NG_USES
} ng_use;

/* A run of bytes in an arena that travels as one message. */
typedef struct ng_span {
  int64_t begin, end;
} ng_span;

/* Memory is asked for twice: a counting pass (take returns NULL) and a placing pass. */
typedef struct ng_plan {
  bool place;
  char *base[NG_USES];
  int64_t bytes[NG_USES]; /* so far, each piece rounded up to NG_ALIGN */
  ng_span *result,
      *direction;     /* [ranks]: by owner, by column; placing, end is how far it is filled */
  ng_span *sum, rest; /* ... of sums that go to an owner, by owner; of all others */
  ng_span apart;      /* ... of sums that stay: both triangles of them travel instead */
} ng_plan;
void ng_shard_ask(ng_layer_shard *s, ng_plan *plan); /* room for the whole gradient: whole.c */
void *ng_plan_take(ng_plan *plan, ng_use use, int64_t bytes);
void *ng_plan_result(ng_plan *plan, int32_t owner, int64_t bytes);
/* Room for PD of a block, in the family's own order; it travels to ranks without results. */
void ng_plan_direction(ng_plan *plan, ng_block *b, int64_t floats);
void ng_plan_scratch(ng_plan *plan, int64_t bytes); /* the largest request is what is taken */
void ng_plan_stats(ng_plan *plan, ng_block *b);     /* averages and sums of its statistics */
int64_t ng_plan_held(const ng_plan *plan);          /* bytes of averages, sums and results so far */

/* Between the passes: take the arenas, lay the runs out. */
ng_status ng_plan_commit(ng_precond *p, ng_plan *plan);
void ng_arena_release(ng_precond *p);
/* Scratch of at least so many bytes: what there is, or more, for `name`.  What was in it is gone. */
ng_status ng_scratch_grow(ng_precond *p, int64_t bytes, const char *name);

/* Objects of a preconditioner: counted under NG_USE_OBJECTS, zeroed. */
void *ng_object(ng_precond *p, size_t bytes);
void ng_object_free(ng_precond *p, void *ptr, size_t bytes);
char *ng_object_text(ng_precond *p, const char *text);
void ng_object_text_free(ng_precond *p, char *text);

/* ---- ranks: placement.c ----------------------------------------------------------------------*/

/* W ranks are a grid of m rows and n = W/m columns, rank = row * n + column. */
typedef struct ng_grid {
  int32_t m, n, row, column; /* this rank's */
  ng_group column_group, row_group;
  int32_t *ranks; /* room for a list of all of them, while groups are made */
} ng_grid;

typedef struct ng_placed ng_placed;

ng_status ng_grid_make(ng_precond *p);
ng_status ng_grid_groups(ng_precond *p); /* collective */
void ng_grid_release(ng_precond *p);
/* Owner and column of every block, owners of their statistics: when all are made, from their costs. */
ng_status ng_place_blocks(ng_precond *p);
void ng_place_forget(
    ng_precond *p); /* what the last placement came to: nobody will ask the same again */
void ng_place_stats(ng_block *b); /* who observes and keeps its statistics */
double ng_stat_cost(const ng_stat *s, ng_placement_cost cost);
double ng_block_apply_cost(const ng_block *b);

/* ---- the preconditioner ----------------------------------------------------------------------*/

/* Counters of the ladder: how a block was rescued; header: ng_report. */
typedef enum ng_rescue {
  NG_RESCUE_DAMPING,
  NG_RESCUE_DOUBLE,
  NG_RESCUE_LAST,
  NG_RESCUE_PLAIN,
  NG_RESCUES
} ng_rescue;

/* A statistic whose sums go to its owner alone. */
typedef struct ng_owned {
  ng_block *block;
  ng_stat *stat;
} ng_owned;

enum { NG_FIELD_KEY = 320 }; /* "layer/field": at most 255 characters and 47 */

/* Where state/walk.c stopped: field `before` is the first of this key that has this width. */
typedef struct ng_shown {
  int64_t width; /* bytes of an element; 0: nowhere yet */
  int32_t key, before;
} ng_shown;

struct ng_precond {
  ng_context *ctx;
  ng_options opt;              /* owned texts; what ng_get, messages and files show */
  ng_settings base;            /* the same, parsed */
  ng_entry **entry; /* capacity grows before ng_ready only */
  int32_t entries, entry_capacity;
  int32_t named[NG_NAME_BUCKETS]; /* index + 1 of the last entry of each, 0: none */
  ng_block **block;
  int32_t blocks, block_capacity;
  int32_t update_groups; /* 0 to update_groups - 1; fixed by ng_ready, 0 before */
  char *unused_globs; /* of skip_layers: [unused] texts, each ended by a 0 */
  int32_t unused;
  bool ready;
  bool expires; /* some binding holds until the next step only */
  bool broken;  /* NG_ERR_COMM was returned: destroy only */
  ng_grid grid;
  ng_placed *placed; /* the last placement, while ranks are planned one after the other */
  char *arena[NG_USES];
  int64_t held[NG_USES];                 /* bytes by use, objects included */
  ng_span *result_span, *direction_span; /* [ranks] by owner, by column */
  ng_span *sum_span;                     /* ... by owner: sums that go to it */
  ng_owned *by_owner;                    /* [owned] what goes to one owner, in that order */
  int32_t owned;
  struct ng_engine *step; /* step/step.h; what is under way */
  /* counters */
  int64_t steps, updates, skipped;
  int64_t overflowed; /* elements of updates that kept their old value on this rank */
  int64_t kept;       /* entries that the last step left as they were, for want of a gradient */
  int64_t unobserved; /* statistics x steps: due, and shown by no rank */
  int64_t rescued[NG_RESCUES];
  ng_shown shown;
  char shown_name[NG_FIELD_KEY]; /* what ng_state_at gave */
};

/* Asked for anew by each use: an observation may have moved it. */
static inline void *ng_scratch(const ng_block *b) { return b->p->arena[NG_USE_SCRATCH]; }

#endif
