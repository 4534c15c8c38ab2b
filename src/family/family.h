/* family.h: the interface between the engine and a family of curvatures.
 *
 * In:   a block with its layer, options and segments; observations; tiles of gradients. Out:  sums
 * of the block's statistics, results of a solve, <D, PD>, |D|^2, |PD|^2, tiles of PD. May call:
 * model, stat, option, linalg, core. A family does not communicate, does not write gradients or
 * weights, and does not know the step, the update or the clip.
 *
 * A step, as a block sees it (step/step.h has all stations):
 *
 *   observe          add an observation to the sums of the statistics
 *   [statistics]     the engine sums over ranks and folds into the averages
 *   select_topk      ranks decide jointly what to send of gradients, in a few small sums
 *   put_traces       the owner of a statistic sends numbers to the owners of the others
 *   solve, shared    compute results on the owner; results have arrived on every rank that holds them
 *   measure_tile     each tile of its gradients, by all threads; then measure, once
 *   [agree]          the engine computes the clip factor, equal on all ranks
 *   emit_tile        each tile of PD, by all threads, into a sink
 *   commit           the step has ended */
#ifndef NG_FAMILY_H
#define NG_FAMILY_H

#include "model/model.h"

/* ---- input -----------------------------------------------------------------------------------*/

/* An observation, checked against the layer. */
typedef struct ng_obs {
  uint32_t what; /* NG_SEES_INPUT, NG_SEES_OUTGRAD; NG_SEES_FLATGRAD: read the segments */
  ng_view v;
  int64_t samples;
  int64_t whole,
      first; /* samples of all ranks of the micro-batch, 0: not shared; index of the first */
  int64_t positions;       /* of the output */
  int64_t size[2], out[2]; /* conv2d: height and width of the array, and of the output */
  int64_t batch;           /* number of the micro-batch */
  double loss_scale;
  double lr; /* NG_SEES_FLATGRAD: of the step */
  ng_reduction reduction;
  double most; /* its largest magnitude; 0 if the family scans */
} ng_obs;

/* The factor from gradients of this rank's mean loss to gradients of the mean over all ranks. */
static inline double ng_obs_share(const ng_obs *o) {
  const bool mean = o->reduction == NG_MEAN && o->whole > 0;
  return mean ? (double)o->samples / (double)o->whole : 1.0;
}

/* The geometry of a layer at the size of an observation. */
static inline ng_conv ng_obs_conv(const ng_conv *declared, const ng_obs *o) {
  ng_conv c = *declared;
  c.oh = o->out[0];
  c.ow = o->out[1];
  c.height = c.linear ? 1 : o->size[0];
  c.width = c.linear ? o->positions : o->size[1];
  return c;
}

/* Whole rows of a parameter, or a part of one row, within one group of its layer. */
struct ng_tile {
  ng_slot *slot;
  ng_block *block; /* NULL: no curvature */
  int32_t segment, group;
  int64_t row, rows, col, cols;
};
enum { NG_TILE_SUMS = 2 };

/* ---- output ----------------------------------------------------------------------------------*/

/* n elements of a row of PD: scale * values if `values` is set, otherwise scale * gradient + k * u
 * with the bound gradient, read once; u NULL: no second term. wide: in double, for terms that
 * nearly cancel, or factors beyond f32. most: no element is larger in magnitude; 0: unknown. */
typedef struct ng_pair {
  double scale, k, most;
  const float *u, *values;
  bool wide;
} ng_pair;

/* Rows are disjoint, so several threads may put different rows. */
typedef struct ng_sink ng_sink;
struct ng_sink {
  void (*put)(const ng_sink *s, ng_slot *slot, int64_t row, int64_t col, int64_t n,
              const ng_pair *pair);
};
static inline void ng_put(const ng_sink *s, ng_slot *slot, int64_t row, int64_t col, int64_t n,
                          const ng_pair *pair) {
  s->put(s, slot, row, col, n, pair);
}

/* ---- state -----------------------------------------------------------------------------------*/

/* An array of the saved state. Symmetric arrays are ng_sym storage. */
typedef struct ng_field {
  char name[48];      /* "A", "G.1", "A_inverse", "momentum.weight"                               */
  ng_dtype dtype;     /* as stored in memory */
  bool sym;           /* rows = cols = n, n(n+1)/2 elements in ng_sym order */
  int64_t rows, cols; /* of the array in memory, row-major, dense, unless sym */
  void *data;         /* NULL on ranks without it */
  int32_t owner;      /* a rank that holds it */
  bool everywhere;    /* all ranks hold it; false: unknown */
  bool squares;       /* means of squares, f32, never negative */
  /* [ranks + 1]: rank r holds columns [slice[r], slice[r + 1]) of every row, in `data`; plain
   * order, not sym. NULL: not sliced. */
  const int64_t *slice;
  /* Several ranks may hold the same columns, or rows (by_rows). Then there are `slices`, rank
   * holder[i] provides slice i, and this rank holds [from, to). NULL: as above. */
  const int32_t *holder;
  int32_t slices;
  bool by_rows;
  int64_t from, to;
  /* Index order: internal i of the rows (cols) is (offset, channel) with `offsets` kernel offsets
   * and `channels` channels, the published order is (channel, offset); a trailing bias stays last.
   * offsets 1: both are equal. */
  int64_t row_offsets, row_channels, col_offsets, col_channels;
} ng_field;
typedef ng_status (*ng_field_visit)(void *arg, ng_field *f);

/* A dense array in the published order. */
ng_field ng_field_plain(const char *name, ng_dtype t, int64_t rows, int64_t cols, void *data,
                        int32_t owner);

/* A number of the saved state, with 17 digits. */
typedef struct ng_number {
  char name[48];
  double *value;
  const ng_stat *stat; /* the owner of this statistic knows it; NULL: the owner of the block */
} ng_number;
typedef ng_status (*ng_number_visit)(void *arg, ng_number *n);

/* ---- the table -------------------------------------------------------------------------------*/

typedef enum ng_scope {
  NG_SCOPE_LAYER, /* one block for each layer that fits; the default */
  NG_SCOPE_MODEL  /* one block over the parameters of all layers that fit */
} ng_scope;

typedef struct ng_family {
  const char *name;
  uint32_t sees;
  ng_scope scope;
  bool scans; /* observe detects non-finite values itself; otherwise the engine scans */

  /* NG_SCOPE_MODEL: the family respects slot->out, so a step may exclude some of its parameters. */
  bool can_exclude;

  /* Layers may be sharded: ranks that observe and compute PD get whole observations and gradients,
   * the others none. */
  bool shards;

  /* ---- required ---- */
  /* Whether the family takes this layer (or tensor), under its options. */
  bool (*fits)(const ng_settings *o, const ng_entry *e);
  /* Check options against each other and against the family; one line in message. */
  ng_status (*check)(const ng_options *o, const ng_settings *s, char *message, size_t size);
  /* Set the geometry in b->state, and b->entry->why for a layer. Its objects (ng_object) are freed with the block. */
  ng_status (*create)(ng_block *b);
  /* Declare b->stat: shapes, `sees`, `averaged`; the engine sets the rest. */
  ng_status (*statistics)(ng_block *b);
  /* Plan results and scratch; called twice. create, statistics and plan read the rank's number only
   * if the block is sliced (b->slice) or partial: ng_plan_ranks creates blocks once for all ranks. */
  ng_status (*plan)(ng_block *b, ng_plan *plan);
  /* Add s->mix.fresh X to every statistic with `sees` o->what; NG_SKIPPED: not finite, and nothing
   * was added. */
  ng_status (*observe)(ng_block *b, const ng_obs *o);
  /* Set inner, d2, pd2. NG_SKIPPED: the gradient is not finite; NG_RESCUED: computed with a
   * fallback. */
  ng_status (*measure)(ng_block *b);
  void (*emit_tile)(const ng_block *b, const ng_tile *t, double factor, const ng_sink *sink);

  /* ---- optional, with a default ---- */
  ng_status (*begin)(ng_block *b); /* set initial values in planned memory; default: nothing */
  /* Bytes of scratch of `observe` for an image of this size; default: as planned. */
  int64_t (*room)(const ng_block *b, const ng_obs *o);
  /* |PD|^2 of each segment, if every rank has PD; default: a walk over its tiles. */
  void (*norms)(ng_block *b, double *pd2);
  /* Arrays and numbers besides the averages; default: none. */
  ng_status (*fields)(ng_block *b, ng_field_visit visit, void *arg);
  ng_status (*numbers)(ng_block *b, ng_number_visit visit, void *arg);

  /* ---- optional, absent means that it cannot ---- */
  /* Both or neither. solve: compute the results that this rank owns; NG_RESCUED and counters for
   * fallbacks. shared: results have arrived, from this rank, others (fresh) or a file. */
  ng_status (*solve)(ng_block *b);
  void (*shared)(ng_block *b, bool fresh);
  /* `solve` supports statistics with different owners that keep them alone: after the fold, put_traces
   * writes the b->traces_each numbers of a statistic of this rank, and solve reads the numbers of all in
   * b->traces. */
  void (*put_traces)(ng_block *b, int32_t stat, double *numbers);
  /* Between check and sums, for blocks with b->selecting: for rounds 0 to b->rounds - 1 write
   * b->round[r] numbers into x, which are summed over ranks, and read the sums of the previous round.
   * A last call with round = b->rounds only reads. Then the statistics are complete. */
  void (*select_topk)(ng_block *b, int32_t round, double *x);
  /* Partial sums for measure, tile by tile, collected in b->tile_sum. */
  void (*measure_tile)(const ng_block *b, const ng_tile *t, double sum[NG_TILE_SUMS]);
  void (*commit)(ng_block *b, bool taken); /* the step has ended; taken: not skipped */
  void (*report)(const ng_block *b, ng_layer_report *report); /* about its last solve */
} ng_family;

extern const ng_family ng_family_kronecker, ng_family_rankone, ng_family_norm, ng_family_window;

/* ---- families.c ------------------------------------------------------------------------------*/

/* Add a family, which must outlive the context. The families of the library come first; the latest family is asked first. */
void ng_family_register(ng_context *ctx, const ng_family *f);
void ng_family_register_own(ng_context *ctx);
/* A family of the library by name; NULL: unknown. */
const ng_family *ng_family_find(const char *name);
/* The family that takes an entry; NULL: none. */
const ng_family *ng_family_of(const ng_context *ctx, const ng_settings *o, const ng_entry *e);
/* Check options against each other and by the method's family; also with each line of per_layer. */
ng_status ng_family_check(const ng_options *o, char *message, size_t size);
/* Check the values of ng_options_override by the family. */
ng_status ng_family_check_line(const ng_options *o, char *message, size_t size);
/* Check the values of a block by its own family. */
ng_status ng_block_check(const ng_block *b, const ng_options *o, char *message, size_t size);
/* For `check`: options of other families must have their defaults. */
ng_status ng_family_check_others(const char *family, const ng_options *o, char *message,
                                 size_t size);
/* For `check`: so must n options that the method does not read; `why` in words. */
ng_status ng_family_check_unused(const ng_option_id *list, size_t n, const char *why,
                                 const ng_options *o, char *message, size_t size);
/* For `check`: refuse the first option with `wrong`; the message is "OPTION = VALUE", then `says`. */
typedef struct ng_refusal {
  bool wrong;
  ng_option_id option;
  const char *says;
} ng_refusal;
ng_status ng_family_check_list(const ng_refusal *list, size_t n, const ng_options *o, char *message,
                               size_t size);

/* A field of part i: "A_inverse", or "A.0_inverse", "A.1_inverse" if there are several parts. Saved files contain
 * these names. */
ng_field ng_part_field(const ng_stat *s, int32_t i, const char *suffix, ng_dtype t, int64_t rows,
                       int64_t cols, void *data);
/* The average of part i, or the average before ("_older"). */
ng_field ng_average_field(const ng_stat *s, int32_t i, bool older);
/* Visit the saved arrays and numbers of a block: its statistics, then its family's. */
ng_status ng_block_fields(ng_block *b, ng_field_visit visit, void *arg);
ng_status ng_block_numbers(ng_block *b, ng_number_visit visit, void *arg);
size_t ng_block_counts(const ng_block *b); /* number of leading flags and counts */

/* The geometry of a layer at its declared size (0: undeclared): of its input, or its outputs as pixels. */
ng_conv ng_layer_conv(const ng_entry *e, bool outputs);

/* Rungs of the ladder: 0 as asked, 1 to 3 damping x 10, x 100, x 1000, then these; ng_layer_report.rung. */
enum { NG_RUNG_DOUBLE = NG_DAMPED_DOUBLE, NG_RUNG_LAST = 5, NG_RUNG_PLAIN = 6 };
void ng_count_rung(ng_precond *p, int32_t rung);
int32_t ng_rung_of(float says); /* a sent or loaded rung; any other number is NG_RUNG_PLAIN */

/* Allocate `count` statistics; NG_ERR_NOMEM. Freed with the block. */
ng_status ng_block_take_stats(ng_block *b, int32_t count);
/* Allocate the parts of a statistic: `each` parts for each group. */
ng_status ng_stat_take_parts(ng_block *b, ng_stat *s, int32_t groups, int32_t each);

#endif
