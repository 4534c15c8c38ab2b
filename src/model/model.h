/* internal.h: the types every room of the library shares.
 *
 * A gradient walks: observe.c -> (conv.c, rows.c) -> family/ -> exchange.c -> family/ solve ->
 * (tiles.c) family/ measure -> exchange.c (agree) -> (tiles.c) family/ -> emit.c.  step.c holds the table of stations that drives
 * it, plan.c the memory and the placement, layers.c what the caller described.
 *
 * Dependency: a room includes this header and calls down (linalg, comm, convert), never up.
 */
#ifndef NG_MODEL_H
#define NG_MODEL_H

#include "comm/comm.h"
#include "core/core.h"
#include "linalg/linalg.h"
#include "option/option.h"

/* ---- what the caller described: layers.c -----------------------------------------------------*/

typedef struct ng_block ng_block;

/* A parameter tensor: where its gradient and its weight live. */
typedef struct ng_slot {
  int64_t rows, cols; /* weight [out, in/groups*kh*kw]; bias and tensors [1, count]              */
  ng_view grad, weight; /* .data NULL: not bound */
  float *m, *v; /* moments: momentum or first, second; NULL if options.update keeps none   */
} ng_slot;

typedef struct ng_entry {
  ng_layer d;  /* copied; name and options owned; alias_of not supported yet                      */
  bool tensor; /* registered by ng_add_tensor                                                     */
  int32_t slots;          /* 1 or 2 */
  ng_slot slot[2];        /* [NG_WEIGHT], [NG_BIAS]        */
  char slot_name[2][264]; /* "conv1.weight", "conv1.bias"; a tensor's own name */
  ng_block *block;        /* NULL: no curvature; `why` says the reason        */
  char why[200];
  int64_t positions; /* S: conv OH*OW; linear as described, 0 if it varies */
  int64_t oh, ow; /* conv                                                                       */
} ng_entry;

/* ---- an observation on its way to a family: observe.c ----------------------------------------*/

typedef struct ng_obs {
  ng_view v; /* checked against the layer                                                    */
  int64_t samples; /* rows of it belong to so many samples */
  int64_t positions;
  double loss_scale;
  ng_reduction reduction;
  bool grad; /* false: layer input, true: output gradient                                    */
} ng_obs;

/* ---- memory: plan.c --------------------------------------------------------------------------*/

typedef enum ng_use {
  NG_USE_FACTORS, /* running averages                                                            */
  NG_USE_SUMS,    /* sums of the current step, one message                                       */
  NG_USE_RESULTS, /* inverses, eigenbases; ordered by owner, one message an owner                */
  NG_USE_DIRECTION, /* PD of every block; ordered by column of owners, one message a column */
  NG_USE_MOMENTS, /* of the fused updates                                                        */
  NG_USE_SCRATCH, /* shared by all stations                                                      */
  NG_USE_OBJECTS, /* structs, names                                                              */
  NG_USES
} ng_use;

/* Families ask for memory twice: a counting pass (take returns NULL) and a placing pass. */
typedef struct ng_plan {
  bool place;
  char *base[NG_USES];
  int64_t bytes[NG_USES]; /* so far, each piece rounded up to NG_ALIGN */
} ng_plan;
void *ng_plan_take(ng_plan *plan, ng_use use, int64_t bytes);
void ng_plan_scratch(ng_plan *plan,
                     int64_t bytes); /* the largest request of all is what is taken */

/* ---- families --------------------------------------------------------------------------------*/

/* An array that belongs to the state on disk.  Symmetric ones are ng_sym storage. */
typedef struct ng_field {
  char name[48];      /* "A", "G.1", "A_inverse", "momentum.weight"                               */
  ng_dtype dtype;     /* as stored in memory                                                      */
  bool sym;           /* rows = cols = n, n(n+1)/2 elements in ng_sym order                       */
  int64_t rows, cols; /* of the array in memory, row-major, dense, unless sym                     */
  void *data;         /* NULL on ranks that do not hold it                                        */
  int32_t owner;      /* a rank that holds it                                                     */
  /* Index order: internal i of the rows (cols) is (offset, channel) with `offsets` kernel offsets
   * and `channels` channels, published is (channel, offset); a trailing bias stays last.
   * offsets 1 means both are the same. */
  int64_t row_offsets, row_channels, col_offsets, col_channels;
} ng_field;
typedef ng_status (*ng_field_visit)(void *arg, ng_field *f);

/* A number that belongs to the state, saved with 17 digits. */
typedef struct ng_number {
  char name[48];
  double *value;
} ng_number;
typedef ng_status (*ng_number_visit)(void *arg, ng_number *n);

typedef struct ng_sink ng_sink;

/* Some whole rows of a parameter, or a part of one row, inside one group of its layer: tiles.c. */
typedef struct ng_tile {
  ng_entry *entry;
  int32_t which, group; /* slot: NG_WEIGHT, NG_BIAS; 0 without groups */
  int64_t row, rows, col, cols;
} ng_tile;
enum { NG_TILE_SUMS = 2 };

enum { NG_SEES_INPUT = 1 << 0, NG_SEES_OUTGRAD = 1 << 1, NG_SEES_FLATGRAD = 1 << 2 };

typedef struct ng_family_ops {
  int32_t api_version;
  const char *name;
  uint32_t sees;
  bool scans; /* observe finds what is not finite by itself, in the samples that it reads */
  /* required, but for those that say when they may be NULL */
  ng_status (*create)(ng_block *b); /* geometry into b->state; says why in b->entry->why */
  void (*destroy)(ng_block *b);
  ng_status (*plan)(ng_block *b, ng_plan *plan); /* called twice                                  */
  ng_status (*begin)(ng_block *b);               /* memory is there: initial values               */
  ng_status (*observe)(ng_block *b, const ng_obs *o); /* NG_SKIPPED if not finite */
  /* This step's weights {w_A, w_G, w_A keep_A, w_G keep_G}: read this rank's, set the sums over
   * ranks.  keep is the weight that the old average retains. */
  void (*weights)(ng_block *b, double w[4], bool set);
  void (*scale)(ng_block *b); /* own sums onto the wire's scale, after weights   */
  float *(*message)(
      ng_block *b,
      int64_t *count); /* what is summed over ranks; contiguous; NULL: never fold = direct */
  ng_status (*fold)(ng_block *b);  /* statistics: sums over ranks are complete      */
  void (*forget)(ng_block *b);     /* drop this step's sums                         */
  ng_status (*solve)(ng_block *b); /* on the owner; counts its rungs; NULL: nothing to solve    */
  void (*shared)(ng_block *b);     /* results arrived from the owner; NULL with solve           */
  ng_status (*measure)(
      ng_block *b); /* inner, d2, pd2; PD into `direction` if there is one        */
  /* |PD|^2 of the weight and of the bias, when every rank has PD. */
  void (*norms)(ng_block *b, double pd2[2]);
  /* The result, row by row, each slot times its factor; NULL with emit_tile. */
  ng_status (*emit)(ng_block *b, const double factor[2], const ng_sink *sink);
  /* Both or none: for families whose PD of an element needs that element and what `measure` knows.
   * Tiles of all such blocks are walked in one loop of all threads, by measure_tile before measure
   * (which adds up b->tile_sum, in order), by emit_tile instead of emit. */
  void (*measure_tile)(const ng_block *b, const ng_tile *t, double sum[NG_TILE_SUMS]);
  void (*emit_tile)(const ng_block *b, const ng_tile *t, double factor, const ng_sink *sink);
  ng_status (*fields)(ng_block *b, ng_field_visit visit, void *arg);
  ng_status (*numbers)(ng_block *b, ng_number_visit visit, void *arg);
} ng_family_ops;
extern const ng_family_ops ng_family_kronecker, ng_family_rankone;
const ng_family_ops *ng_family_find(const char *name); /* NULL: no such family */

struct ng_block {
  const ng_family_ops *ops;
  ng_precond *p;
  ng_entry *entry;
  int32_t number; /* among blocks */
  ng_settings base; /* the model's options with this layer's overrides: what ng_ready plans with */
  ng_settings opt;  /* the same at the coming step: read this one */
  ng_option_mask overridden;
  int32_t owner, column;
  bool holds_stats, holds_result; /* on this rank */
  uint32_t sees;                  /* of what its family sees, what this one looks at */
  void *state;
  int64_t curvature_bytes;
  /* this step */
  bool refused; /* an observation was not finite */
  double inner, d2, pd2;
  double w2[2], factor[2]; /* of the weight and the bias: squared norm, what PD is multiplied by */
  const ng_tile *tile;     /* of its weight, then of its bias, and NG_TILE_SUMS numbers for each */
  const double *tile_sum;
  int32_t tiles;
  bool folded[2]; /* A, G: some rank has shown a sample since the beginning; same on all ranks */
  /* since ng_ready */
  int64_t observations[2];
  bool solved;
  int32_t rung;
  double pi, damping_a, damping_g;
  double observe_ms, observing_ms, solve_ms, measure_ms; /* observing: the step under way */
};

/* ---- the update: emit.c ----------------------------------------------------------------------*/

struct ng_sink {
  ng_precond *p;
  enum { NG_SINK_GRADIENT, NG_SINK_SGD, NG_SINK_ADAMW, NG_SINK_PROBE } kind;
  ng_sgd sgd;
  ng_adamw adamw;
  bool first; /* sgd: momentum starts at d                                              */
  double step_size, root; /* adamw: lr/(1-b1^t), sqrt(1-b2^t) */
  atomic_bool *overflows; /* probe: nothing is written, but whether a gradient would be Inf */
};

/* Write `cols` values of row `row` of a slot, times `scale`, as the sink does.  Rows are disjoint,
 * so different rows may be written from different threads. */
void ng_sink_row(const ng_sink *s, ng_slot *slot, int64_t row, const float *values, double scale);
/* The same for n values from column `col` that are scale * gradient + k * u: the slot's own bound
 * gradient, read once; u NULL: no second term.  What goes out is not kept anywhere.  wide: in double,
 * for two terms that nearly cancel, or factors that are no f32. */
typedef struct ng_pair {
  double scale, k;
  const float *u;
  bool wide;
} ng_pair;
void ng_sink_span(const ng_sink *s, ng_slot *slot, int64_t row, int64_t col, int64_t n,
                  const ng_pair *pair);
/* Row of a bound gradient as f32 in published order; false if a value is not finite. */
bool ng_grad_row(const ng_slot *slot, int64_t row, float *out);

/* ---- the preconditioner ----------------------------------------------------------------------*/

enum {
  NG_AT_CHECK,
  NG_AT_STATISTICS,
  NG_AT_SOLVE,
  NG_AT_SHARE,
  NG_AT_MEASURE,
  NG_AT_DELIVER,
  NG_AT_AGREE,
  NG_AT_EMIT,
  NG_STATIONS
};

typedef struct ng_station {
  const char *name;
  ng_status (*run)(ng_precond *p);
  bool (*due)(const ng_precond *p);
  bool collective;
} ng_station;
extern const ng_station ng_stations[NG_STATIONS];

typedef struct ng_station_time {
  int64_t runs, last_bytes, total_bytes;
  double last_ms, total_ms;
} ng_station_time;

/* Where blocks live: a grid of m rows (workers of a block: a column) and n columns. */
typedef struct ng_grid {
  int32_t m, n, row, column; /* this rank's */
  ng_group column_group, row_group;
  int32_t *ranks; /* room for a list of all of them, while groups are made */
} ng_grid;

/* A run of bytes in an arena that travels as one message. */
typedef struct ng_span {
  int32_t root; /* results: owner; direction: column */
  int64_t begin, end;
} ng_span;

struct ng_precond {
  ng_context *ctx;
  ng_options opt; /* owned texts; scheduled options hold their base values                       */
  ng_settings base, now;       /* opt parsed, and that at the coming step: read now */
  int64_t since[NG_SCHEDULED]; /* the step at which ng_set moved the base */
  ng_schedule *schedule;
  ng_entry **entry; /* capacity grows before ng_ready only */
  int32_t entries, entry_capacity;
  ng_block **block;
  int32_t blocks;
  bool ready;
  bool broken; /* NG_ERR_COMM was returned: destroy only */
  ng_grid grid;
  char *arena[NG_USES];
  int64_t held[NG_USES]; /* bytes by use, objects included */
  ng_span *result_span, *direction_span;
  int32_t result_spans, direction_spans;
  double *small; /* buffer of check and agree */
  int64_t small_count;
  ng_tile *tile; /* of blocks and parameters that are walked in tiles */
  double *tile_sum;
  int32_t *tile_cut; /* piece i is tiles [cut[i], cut[i+1]) */
  int32_t tiles, tile_pieces;
  int64_t tile_elements;
  /* this micro-batch, this step */
  bool begun;
  ng_batch batch;
  ng_sink sink;
  double lr;
  ng_status trouble; /* worst local status of this step; collectives go on, agree spreads it */
  bool refused;      /* something was not finite on this rank      */
  bool told; /* ... and all ranks know it                                                       */
  bool solving; /* this step solves */
  double nu, inner, pd2;
  double ascent; /* solver = product: k of PD = D + k G D A */
  /* counters */
  int64_t steps, updates, skipped;
  int64_t more_damping, in_double, kept_last, plain;
  ng_station_time time[NG_STATIONS];
};

/* Objects of a preconditioner: counted under NG_USE_OBJECTS, zeroed. */
void *ng_object(ng_precond *p, size_t bytes);
void ng_object_free(ng_precond *p, void *ptr, size_t bytes);
char *ng_object_text(ng_precond *p, const char *text);
void ng_object_text_free(ng_precond *p, char *text);

/* The worse of two statuses: the most negative, else the largest note. */
static inline ng_status ng_worse(ng_status a, ng_status b) {
  if (a < 0 || b < 0) return a < b ? a : b;
  return a > b ? a : b;
}

ng_status ng_plan_model(ng_precond *p); /* plan.c: placement, arenas, spans                     */
void ng_plan_release(ng_precond *p);
ng_status ng_tiles_plan(ng_precond *p); /* tiles.c: after the blocks are made */
void ng_tiles_release(ng_precond *p);
void ng_tiles_measure(ng_precond *p); /* fills tile_sum; says `refused` of plain parameters */
void ng_tiles_emit(ng_precond *p);
void ng_live_update(ng_precond *p); /* values.c: now of the model, opt of the blocks, at p->steps */

/* clip.c.  Weights are read in `measure`; `sum` is <PD, D>, |D|^2, |PD|^2 over all ranks; the factors
 * of all blocks are known when PD is delivered and agreed on. */
bool ng_clip_reads_weights(const ng_precond *p);
void ng_clip_measure(ng_precond *p);
void ng_clip_agreed(ng_precond *p, const double sum[3]);
double ng_clip_largest(const ng_precond *p); /* no value that leaves is above it */
void ng_clip_factors(ng_precond *p);

/* exchange.c: the collective halves of the stations.  Each returns NG_ERR_COMM or NG_OK. */
ng_status ng_exchange_check(ng_precond *p);
ng_status ng_exchange_sums(ng_precond *p);
ng_status ng_exchange_results(ng_precond *p);
ng_status ng_exchange_direction(ng_precond *p);
ng_status ng_exchange_agree(ng_precond *p);
/* ng_ready: the worst status of all ranks, NG_ERR_COMM with a message if hashes differ. */
ng_status ng_exchange_same(ng_precond *p, const uint64_t hash[2], ng_status local);
bool ng_stat_due(const ng_precond *p, const ng_block *b);  /* step.c */
bool ng_solve_due(const ng_precond *p, const ng_block *b); /* step.c */

/* Walk every field (number) of the state: blocks, then moments. */
ng_status ng_state_fields(ng_precond *p, ng_status (*visit)(void *arg, ng_entry *e, ng_field *f),
                          void *arg);

#endif
