/* family.h: what a family of curvatures owes the engine, and what the engine lends it.
 *
 * In:   a block with its layer, options and segments; observations; tiles of gradients.
 * Out:  what the block's statistics gain, results of a solve, <D, PD>, |D|^2, |PD|^2, tiles of PD.
 * May call: model, stat, option, linalg, core.  A family never talks to other ranks, never writes a
 * gradient or a weight, and does not know which step, update or clip is at work.
 *
 * A step, as a block sees it (step/step.h has the whole table):
 *
 *   observe          adds what is shown to the sums of its statistics
 *   [statistics]     the engine sums over ranks and folds into the averages
 *   choose           what of gradients ranks send is decided by all of them together, in a few small sums
 *   tell             what an owner of one statistic needs to know of another, which another rank keeps
 *   solve, shared    averages to results, on the owner; results are here, on every rank that holds them
 *   measure_tile     each tile of its gradients, by all threads;  then measure, once
 *   [agree]          the engine knows the clip, on all ranks
 *   emit_tile        each tile of PD, by all threads, into a sink
 *   commit           the step is over
 */
#ifndef NG_FAMILY_H
#define NG_FAMILY_H

#include "model/model.h"

#define NG_FAMILY_VERSION 2

/* ---- what comes in ---------------------------------------------------------------------------*/

/* An observation on its way to a family, checked against the layer. */
typedef struct ng_obs {
  uint32_t what; /* NG_SEES_INPUT, NG_SEES_OUTGRAD; NG_SEES_FLATGRAD: read the segments       */
  ng_view v;
  int64_t samples;
  int64_t whole, first; /* of all ranks that share the micro-batch, 0: none; place of the first */
  int64_t positions;    /* of the output                                                     */
  int64_t size[2], out[2]; /* conv2d: height and width of the array, and of the output          */
  int64_t batch;           /* the number of the micro-batch */
  double loss_scale;
  double lr; /* NG_SEES_FLATGRAD: of the step */
  ng_reduction reduction;
  double most; /* the largest magnitude in it; of a family that scans, 0 */
} ng_obs;

/* g of the mean loss over all ranks' samples, over that of this rank's. */
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

/* Some whole rows of a parameter, or a part of one row, inside one group of its layer. */
struct ng_tile {
  ng_slot *slot;
  ng_block *block; /* NULL: no curvature */
  int32_t segment, group;
  int64_t row, rows, col, cols;
};
enum { NG_TILE_SUMS = 2 };

/* ---- what goes out ---------------------------------------------------------------------------*/

/* What leaves for n elements of a row: scale * PD where PD is at hand (`values`), or else
 * scale * gradient + k * u with the slot's own bound gradient, read once; u NULL: no second term.
 * wide: in double, for two terms that nearly cancel, or factors that are no f32. */
typedef struct ng_pair {
  double scale, k;
  const float *u, *values;
  bool wide;
} ng_pair;

/* Rows are disjoint, so different rows may be put from different threads. */
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

/* An array that belongs to the state on disk.  Symmetric ones are ng_sym storage. */
typedef struct ng_field {
  char name[48];      /* "A", "G.1", "A_inverse", "momentum.weight"                               */
  ng_dtype dtype;     /* as stored in memory                                                      */
  bool sym;           /* rows = cols = n, n(n+1)/2 elements in ng_sym order                       */
  int64_t rows, cols; /* of the array in memory, row-major, dense, unless sym                     */
  void *data;         /* NULL on ranks that do not hold it                                        */
  int32_t owner;      /* a rank that holds it                                                     */
  bool everywhere;    /* all of them do; false: this is not known                                 */
  bool squares;       /* means of squares, f32: none is below 0                                   */
  /* [ranks + 1]: rank r holds columns [slice[r], slice[r + 1]) of every row, and `data` are this rank's;
   * plain order, not sym.  NULL: who holds it holds all */
  const int64_t *slice;
  /* Several ranks may hold the same columns, or rows instead (by_rows).  Then there are `slices` of them, slice i is
   * taken from rank holder[i], and this rank holds [from, to).  NULL: as above. */
  const int32_t *holder;
  int32_t slices;
  bool by_rows;
  int64_t from, to;
  /* Index order: internal i of the rows (cols) is (offset, channel) with `offsets` kernel offsets
   * and `channels` channels, published is (channel, offset); a trailing bias stays last.
   * offsets 1 means both are the same. */
  int64_t row_offsets, row_channels, col_offsets, col_channels;
} ng_field;
typedef ng_status (*ng_field_visit)(void *arg, ng_field *f);

/* A dense array in the published order already. */
ng_field ng_field_plain(const char *name, ng_dtype t, int64_t rows, int64_t cols, void *data,
                        int32_t owner);

/* A number that belongs to the state, saved with 17 digits. */
typedef struct ng_number {
  char name[48];
  double *value;
  const ng_stat *stat; /* known to the owner of this; NULL: to the block's */
} ng_number;
typedef ng_status (*ng_number_visit)(void *arg, ng_number *n);

/* ---- the table -------------------------------------------------------------------------------*/

typedef enum ng_scope {
  NG_SCOPE_LAYER, /* a block for each layer that it fits                  */
  NG_SCOPE_MODEL  /* one block over the parameters of all that it fits    */
} ng_scope;

typedef struct ng_family {
  int32_t version; /* NG_FAMILY_VERSION */
  const char *name;
  uint32_t sees;
  ng_scope scope;
  bool
      scans; /* observe finds what is not finite by itself, in what it reads; else the engine does */

  /* Of NG_SCOPE_MODEL: it looks at slot->out, so some of its parameters may have no part in a step. */
  bool sits_out;

  /* All it asks of a layer is its block: observations and gradients that ranks have parts of come whole to
   * those that observe and make PD, and the others have none. */
  bool shards;

  /* ---- required ---- */
  /* Whether it takes this layer (or tensor), under the options that hold for it. */
  bool (*fits)(const ng_settings *o, const ng_entry *e);
  /* Options against each other and against what the family has; one line in message. */
  ng_status (*check)(const ng_options *o, const ng_settings *s, char *message, size_t size);
  ng_status (*create)(ng_block *b); /* geometry into b->state; b->entry->why, if it has a layer */
  void (*destroy)(ng_block *b); /* also after a create that failed half way, or was not called */
  /* Declares b->stat: shapes, what each sees, its rule's `averaged`; the rest is filled in. */
  ng_status (*statistics)(ng_block *b);
  /* Results and scratch; called twice.  These three look at the rank's number only where the block is in slices
   * (b->slice) or its measure partial: ng_plan_ranks makes blocks once for all ranks. */
  ng_status (*plan)(ng_block *b, ng_plan *plan);
  /* Adds s->mix.fresh X to every statistic that sees o->what; NG_SKIPPED if not finite, and nothing
   * was added. */
  ng_status (*observe)(ng_block *b, const ng_obs *o);
  /* inner, d2, pd2; NG_SKIPPED: the gradient is not finite; NG_RESCUED: it was made otherwise than asked */
  ng_status (*measure)(ng_block *b);
  void (*emit_tile)(const ng_block *b, const ng_tile *t, double factor, const ng_sink *sink);

  /* ---- optional, with a default ---- */
  ng_status (*begin)(
      ng_block *b); /* memory is there: initial values; nothing                       */
  /* Bytes of scratch that `observe` takes for an image of this size; what `plan` asked for. */
  int64_t (*room)(const ng_block *b, const ng_obs *o);
  /* |PD|^2 of each segment, where every rank has PD; a walk over its tiles. */
  void (*norms)(ng_block *b, double *pd2);
  /* Arrays and numbers beside those of its statistics; none. */
  ng_status (*fields)(ng_block *b, ng_field_visit visit, void *arg);
  ng_status (*numbers)(ng_block *b, ng_number_visit visit, void *arg);

  /* ---- optional, absent means that it cannot ---- */
  /* Both or none.  solve: of what this rank owns; NG_RESCUED and counters for what did not go as asked.
   * shared: results are here, from this rank, others (fresh) or a file. */
  ng_status (*solve)(ng_block *b);
  void (*shared)(ng_block *b, bool fresh);
  /* `solve` works where each statistic is kept by an owner alone, of several: tell gives the b->tells numbers
   * of one that this rank keeps, after the fold, and solve finds those of all in b->told. */
  void (*tell)(ng_block *b, int32_t stat, double *numbers);
  /* Between check and sums, of a block with b->choosing: for rounds 0 to b->rounds - 1 puts b->round[r] numbers into
   * x, which are summed over ranks; takes those of the round before from there.  Once more, with round = b->rounds,
   * only takes.  Then its statistics are complete. */
  void (*choose)(ng_block *b, int32_t round, double *x);
  /* A part of what measure needs, tile by tile; b->tile_sum has what it left. */
  void (*measure_tile)(const ng_block *b, const ng_tile *t, double sum[NG_TILE_SUMS]);
  void (*commit)(ng_block *b, bool taken); /* the step is over: did it count?   */
  void (*report)(const ng_block *b, ng_layer_report *report); /* what it knows of its last solve */
} ng_family;

extern const ng_family ng_family_kronecker, ng_family_rankone, ng_family_norm, ng_family_norm_full,
    ng_family_window, ng_family_embedding;

/* ---- families.c ------------------------------------------------------------------------------*/

/* Adds a family to a context.  NG_ERR_ARG names the entry that is missing, or the name that is taken.
 * Those of the library are there from the beginning; the one that was added last is asked first. */
ng_status ng_family_register(ng_context *ctx, const ng_family *f, char *message, size_t size);
ng_status ng_family_register_own(ng_context *ctx);
/* Of the library, by name; NULL: no such family. */
const ng_family *ng_family_find(const char *name);
/* The one that takes an entry; NULL: none. */
const ng_family *ng_family_of(const ng_context *ctx, const ng_settings *o, const ng_entry *e);
/* Options against each other, and as the method's family wants them; also with each line of per_layer. */
ng_status ng_family_check(const ng_options *o, char *message, size_t size);
/* As the family wants them, of values that ng_options_override left. */
ng_status ng_family_check_line(const ng_options *o, char *message, size_t size);
/* The same for values that a block would have, as its own family wants them. */
ng_status ng_block_check(const ng_block *b, const ng_options *o, char *message, size_t size);
/* For `check`: options that only another family has hold their defaults. */
ng_status ng_family_check_others(const char *family, const ng_options *o, char *message,
                                 size_t size);

/* The average of part i as a field: "A", or "A.0", "A.1", ... where there are several parts; "A_older" of one
 * before it. */
ng_field ng_average_field(const ng_stat *s, int32_t i, bool older);
/* The walks over what a block saves: its statistics, then what its family adds. */
ng_status ng_block_fields(ng_block *b, ng_field_visit visit, void *arg);
ng_status ng_block_numbers(ng_block *b, ng_number_visit visit, void *arg);
size_t ng_block_counts(const ng_block *b); /* the first so many numbers are flags and counts */

/* The geometry of a layer at its declared size (0: undeclared): of its input, or its outputs as pixels. */
ng_conv ng_layer_conv(const ng_entry *e, bool outputs);

/* Room for `count` statistics; NG_ERR_NOMEM.  Freed with the block. */
ng_status ng_block_take_stats(ng_block *b, int32_t count);
/* ... and for the parts of one: groups of `each` parts. */
ng_status ng_stat_take_parts(ng_block *b, ng_stat *s, int32_t groups, int32_t each);
void ng_block_free_stats(ng_block *b);

#endif
