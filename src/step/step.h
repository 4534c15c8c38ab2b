/* step.h: one step, from observations to new gradients or weights.
 *
 * In:   a model after ng_ready; micro-batches and their observations; the numbers of an update.
 * Out:  preconditioned gradients in place, or updated weights and moments; reports.
 * May call: family, model, stat, option, comm, linalg, core.  Only api/ and state/ call it.
 *
 * Once, at ng_ready:
 *   blocks.c     the blocks of a model, their families and owners
 *   ready.c      memory; comparison of all ranks
 *   plan.c       the memory and traffic of any rank of any number, as numbers
 *   shard_plan.c the same for sharded layers
 * In each step:
 *   take.c       run the stations in order, close the step
 *   stations.c   the table of stations; which work is due
 *   values.c     options of the coming step; are they equal on all ranks?
 *   observe.c    activations and gradients -> sums
 *   agree.c      small reductions: one verdict on all ranks
 *   sums.c       reduce sums over ranks (wire.c: in 16 bits)
 *   topk.c       joint top-k selection of sharded windows
 *   exchange.c   broadcast results, directions, traces
 *   tiles.c      measure and emit: one loop over the tiles of all blocks
 *   clip.c       the clip factor
 *   deliver.c    PD that another rank computed
 *   sink.c       write gradients, or weights and moments
 *   gather.c     broadcast weights from their owners
 *   quantify.c   how far each element is scaled
 *   shard.c      layers that are sharded over a model group
 *   stages.c     pipeline stages: one clip factor, one verdict */
#ifndef NG_STEP_H
#define NG_STEP_H

#include "family/family.h"
#include "model/model.h"

/* ---- the sink: sink.c ------------------------------------------------------------------------*/

typedef enum ng_out { NG_OUT_GRADIENT, NG_OUT_SGD, NG_OUT_ADAMW } ng_out;

/* w <- keep w - lr step; m <- old m + take g */
typedef struct ng_sgd_numbers {
  float lr, mu, keep, decay;
  bool nesterov;
} ng_sgd_numbers;

typedef struct ng_adamw_numbers {
  float b1, b2, n1, n2, keep, eps;
} ng_adamw_numbers;

/* The numbers of a group in the form that the loops use, made once a step. */
typedef struct ng_group_numbers {
  double lr, momentum, dampening, beta1, beta2; /* as given; of SGD or of AdamW */
  ng_sgd_numbers sgd;
  ng_adamw_numbers adamw;
  float counted[2]; /* SGD: factors of g and of m; AdamW: of m and of sqrt(v) */
} ng_group_numbers;

typedef struct ng_update_sink {
  ng_sink sink; /* first member: the interface for families */
  ng_out kind;
  ng_group_numbers *group; /* [p->update_groups], indexed by slot->update_group */
} ng_update_sink;

/* Set the numbers of one group; `updates` is how many updates came before. */
void ng_update_sgd(ng_group_numbers *of, const ng_sgd *how, int64_t updates);
void ng_update_adamw(ng_group_numbers *of, const ng_adamw *how, int64_t updates);
void ng_update_sink_begin(ng_update_sink *s); /* after kind and numbers */
/* Set slot->late of parameters that missed updates; call after the groups are set. */
void ng_update_late(ng_precond *p);
/* u <- the factor of lr in the coming update, for n <= 512 elements without a block. */
void ng_update_direction(const ng_precond *p, const ng_slot *slot, int64_t row, int64_t col,
                         int64_t n, float *u);

/* An element whose new weight, momentum or moment is not finite keeps the old one; a gradient
 * element that does not fit its dtype stays plain.  ng_overflow_end returns NG_RESCUED, with the
 * first parameter and the count as message, if that happened on this rank. */
void ng_overflow_begin(ng_precond *p);
ng_status ng_overflow_end(ng_precond *p);

/* ---- tiles: tiles.c --------------------------------------------------------------------------*/

/* One loop over tiles [0, count); piece i is [cut[i], cut[i+1]), all of about equal size. */
typedef struct ng_walk {
  int32_t count, pieces;
  int64_t elements;
  int32_t *cut;
} ng_walk;

/* First the tiles to measure (blocks with measure_tile, parameters without curvature), then the
 * others.  The tiles of a block are contiguous. */
typedef struct ng_tiles {
  ng_tile *tile;
  double *sum; /* [tiles x NG_TILE_SUMS] */
  ng_walk measured, all;
} ng_tiles;

ng_status ng_tiles_plan(ng_precond *p);
void ng_tiles_measure(
    ng_precond *p); /* fill `sum`; set `refused` for a non-finite plain gradient */
/* Write every tile: PD times the factor of its segment, or the plain gradient. */
void ng_tiles_emit(ng_precond *p, const ng_sink *sink);

/* ---- delivered PD: deliver.c ------------------------------------------------------------------*/

/* While memory is planned: does this rank receive the block's PD?  Request the memory for it. */
void ng_deliver_plan(ng_block *b, ng_plan *plan);
void ng_deliver_fill(ng_block *b); /* on ranks with the block's results */
/* Write a tile of a block, from its family or from the delivered PD. */
void ng_deliver_tile(const ng_tile *t, double factor, const ng_sink *sink);
/* Elements [at, at + n) of what a sink gets for a row from `col` on, in double; n <= NG_LINE. */
void ng_pair_line(const ng_slot *slot, int64_t row, int64_t col, const ng_pair *pair, int64_t at,
                  int64_t n, double *pd);
/* |PD|^2 of each segment of a block. */
void ng_deliver_norms(ng_block *b, double *pd2);

/* ---- the exchange: exchange.c, of statistics sums.c, one verdict agree.c ---------------------*/

/* Messages under way: a station posts them, a later one waits (ng_station.waits). */
typedef enum ng_mail {
  NG_MAIL_STATISTICS = 1 << 0,
  NG_MAIL_RESULTS = 1 << 1,
  NG_MAIL_DIRECTION = 1 << 2
} ng_mail;

/* Adjacent sums of one dtype. */
typedef struct ng_message {
  char *buffer;
  int64_t count;
  int64_t *counts; /* [ranks] elements for each owner; NULL: all-reduce */
  ng_dtype dtype;
  bool narrow; /* f32 in memory, 16 bits while under way */
  ng_request request;
} ng_message;

/* Convert n f32 to 16 bits in the first half of their memory, and back. */
void ng_wire_narrow(char *x, int64_t n, ng_dtype t);
void ng_wire_widen(char *x, int64_t n, ng_dtype t);

typedef struct ng_exchange {
  double *small;            /* buffer of the small reductions */
  ng_message *message;      /* in the order of posting; one more than all statistics */
  int64_t *counts;          /* [messages x ranks]; NULL: no sum goes to its owner only */
  int32_t messages, waited; /* the first `waited` messages are complete */
  int32_t ahead;            /* blocks [0, ahead) may still be posted before the step; */
  int32_t held; /* blocks [ahead, held) are complete and wait for the rest of their message */
  int64_t held_bytes;
  double *traces; /* [traces_count] traces of blocks whose A and G have different owners */
  int64_t traces_count;
  double *choice; /* numbers of one round of topk.c */
  ng_request
      *spans; /* [spans_most] broadcasts of results or directions under way: by rank, then slices */
  int32_t spans_most;
} ng_exchange;

/* Sums over all blocks and ranks.  Blocks with ascent have PD = D + k H; their inner and pd2 are of
 * H.  In `weighted` each block counts with ng_clip_weight. */
typedef struct ng_sums {
  double inner, d2, pd2;
  double weighted_inner, weighted_d2;
} ng_sums;

/* Mix x into a hash of numbers that must be equal on all ranks. */
uint64_t ng_step_number(uint64_t so_far, double x);
uint64_t ng_options_number(const ng_precond *p); /* a hash of p->base */
/* Write this rank's hashes of options and update; check their sums: NG_ERR_STATE if they differ. */
enum { NG_SAME = 8, NG_SAME_PIECES = 4 };
/* Encode a number for a sum over ranks; ng_same_sums tests whether all ranks gave the same one. */
void ng_same_number(double x[NG_SAME_PIECES], uint64_t number);
bool ng_same_sums(const double x[NG_SAME_PIECES], int32_t ranks);
void ng_same_write(const ng_precond *p, double x[NG_SAME]);
ng_status ng_same_check(ng_precond *p, const double *x);

ng_status ng_exchange_plan(ng_precond *p);
ng_status ng_exchange_failed(ng_precond *p, const char *what); /* a collective failed */
void ng_exchange_give_up(ng_precond *p);                       /* abort all transports */
ng_status ng_exchange_wait_statistics(ng_precond *p);
/* At ng_ready: the worst status of all ranks; NG_ERR_COMM with a message if hashes differ. */
enum { NG_HASHES = 4 }; /* options, layers, owners, linear algebra */
ng_status ng_exchange_same(ng_precond *p, const uint64_t hash[NG_HASHES], ng_status local);
/* Small reductions with one verdict on all ranks.  check: status, refusals, sample weights; agree:
 * status, refusals, sums[0] of blocks without ascent, sums[1] of blocks with ascent. */
ng_status ng_exchange_check(ng_precond *p);
void ng_exchange_mark_seen(ng_block *b); /* before its sums are folded */
ng_status ng_exchange_agree(ng_precond *p, ng_sums sums[2]);
/* Owners of A and G of one block exchange the traces of both before its solve. */
bool ng_traces_are_due(const ng_precond *p);
ng_status ng_exchange_traces(ng_precond *p);
int64_t ng_traces_count(const ng_precond *p);

/* Ranks select the largest entries of a sharded window jointly, in rounds of sums. */
int64_t ng_topk_count(const ng_precond *p); /* the most numbers of a round */
bool ng_topk_is_due(const ng_precond *p);
ng_status ng_topk_select(ng_precond *p);
ng_status ng_exchange_sum(ng_precond *p, double *x, int64_t n, const char *what);
ng_status ng_exchange_sum_over(ng_precond *p, ng_comm *c, double *x, int64_t n, const char *what);
/* The worst status in summed codes; if it is not `mine`, the message says how many of `who` failed. */
ng_status ng_exchange_verdict(ng_precond *p, const double code[NG_CODES], ng_status mine,
                              const char *who);
/* Post all due messages that are not posted yet, in the same order on all ranks. */
ng_status ng_exchange_post_statistics(ng_precond *p);
ng_status ng_exchange_post_results(ng_precond *p);
ng_status ng_exchange_post_direction(ng_precond *p);
ng_status ng_exchange_wait(ng_precond *p, ng_mail what);
/* Does s join the message of `count` elements (of its wire dtype) that `before` ends?  *gap: padding between them,
 * *n: elements of s with gaps between its arrays. */
bool ng_stat_extends(const ng_precond *p, const ng_stat *before, const ng_stat *s, int64_t count,
                     int64_t *gap, int64_t *n);
typedef struct ng_traffic {
  int64_t bytes, messages;
  double wait_ms;
} ng_traffic;
/* What this rank has sent so far to all its groups. */
ng_traffic ng_exchange_traffic(const ng_precond *p);
/* Count the traffic since `before` at a station of the coming step. */
void ng_exchange_count_early(ng_precond *p, int station, ng_traffic before);
/* Numbers in the small reductions. */
int64_t ng_exchange_check_count(const ng_precond *p);
int64_t ng_exchange_agree_count(const ng_precond *p);
/* In the last micro-batch before a step (ng_batch.last): at its begin; after each observation, to
 * post complete sums and to make progress; at its end, to post the others.  No-ops otherwise. */
void ng_exchange_begin_last(ng_precond *p);
ng_status ng_exchange_ahead(ng_precond *p);
ng_status ng_exchange_end_last(ng_precond *p);
void ng_exchange_forget(ng_precond *p); /* at the end of a step, or after ng_reset_batch */

/* ---- pipeline stages: stages.c ---------------------------------------------------------------*/

/* At the start of ng_ready: NG_ERR_COMM unless all ranks have the same groups, of equal sizes. */
ng_status ng_groups_same(ng_precond *p);
bool ng_stages_there(const ng_precond *p); /* more than one stage */
/* Sum over one rank of each stage; x is equal on the ranks of a stage. */
ng_status ng_stages_sum(ng_precond *p, double *x, int64_t n, const char *what);
/* One verdict of all stages; NG_ERR_STATE if their options or lr differ. */
ng_status ng_stages_check(ng_precond *p, ng_status local);

/* ---- weights: gather.c -----------------------------------------------------------------------*/

bool ng_update_is_owned(const ng_precond *p); /* update_ranks = owner, and a fused update */
int32_t ng_update_owner(const ng_precond *p, const ng_entry *e, int32_t index);
int64_t ng_gather_scratch(const ng_precond *p);
void ng_gather_in_advance(const ng_precond *p, ng_rank_plan *out);
ng_status ng_gather_weights(ng_precond *p);

/* ---- the clip: clip.c ------------------------------------------------------------------------*/

bool ng_clip_reads_weights(const ng_precond *p);
/* (lr of the block / largest lr)^2 */
double ng_clip_weight(const ng_block *b);
void ng_clip_measure(ng_precond *p); /* |weight|^2 of every segment, if clip reads weights */
/* Compute nu and the ascent from the sums over all ranks. */
void ng_clip_agreed(ng_precond *p, const ng_sums sums[2]);
void ng_clip_factors(ng_precond *p); /* Set the factor of each segment; needs PD. */

/* ---- how elements are scaled: quantify.c -----------------------------------------------------*/

typedef struct ng_scaling {
  int64_t count; /* 0: not measured */
  double least, quartile[3], most, mean;
} ng_scaling;
typedef struct ng_scaling_piece {
  double least, most;
} ng_scaling_piece;
/* All NULL if the option quantify is 0. */
typedef struct ng_quantify {
  ng_scaling_piece *piece; /* [pieces] */
  int64_t *count;          /* [pieces x bins] */
  double *sum;             /* [tiles x 4] */
  double *wire;            /* NULL: every rank counts all elements */
  ng_scaling found;
} ng_quantify;
ng_status ng_quantify_plan(ng_precond *p); /* after ng_tiles_plan */
bool ng_quantify_due(const ng_precond *p);
ng_status ng_quantify_step(ng_precond *p); /* after agree, before emit */

/* ---- layers in shards: shard.c ---------------------------------------------------------------*/

typedef struct ng_shards {
  int32_t members, blocks; /* ranks of the model group; blocks of sharded layers */
  int32_t *rank;           /* [members] rank of each member of this model group */
  int32_t *member;         /* [ranks] index of each rank in its model group */
  int32_t *holder;         /* [members] rank of each member of rank 0's model group */
  char *room;              /* gathered shards, and whole arrays */
  int64_t room_bytes;
} ng_shards;

ng_status ng_shards_meet(ng_precond *p);                /* before blocks are made; collective */
ng_status ng_shards_settle(ng_precond *p);              /* after placement */
void ng_shards_ask(const ng_precond *p, ng_plan *plan); /* request whole gradients and the buffer */
ng_status ng_shards_check(ng_precond *p);
/* Gather one observation of a sharded layer (s NULL: this rank has none; st: its local status). All
 * ranks of the model group return the same status; the primary gets the whole array. */
ng_status ng_shard_bring(ng_precond *p, ng_entry *e, bool grad, const ng_strided *s, ng_status st,
                         ng_strided *whole);
/* For a planned rank (ng_plan_shard): set up, undo before ng_step_release, count the traffic. */
ng_status ng_shards_plan(ng_precond *p);
void ng_shards_unplan(ng_precond *p);
ng_status ng_shards_real(ng_precond *p); /* ng_ready: refuse ng_plan_shard */
void ng_shards_count(const ng_precond *p, ng_rank_plan *out);
bool ng_shards_due(const ng_precond *p);
ng_status ng_shards_gather(ng_precond *p);

/* Pass on the part of a whole parameter that this rank has. */
typedef struct ng_shard_sink {
  ng_sink sink; /* first member: the interface for families */
  const ng_sink *next;
} ng_shard_sink;
ng_shard_sink ng_shard_sink_to(const ng_sink *next);

/* ---- stations --------------------------------------------------------------------------------*/

typedef enum ng_station_id {
  NG_AT_GRADIENTS,
  NG_AT_CHECK,
  NG_AT_STATISTICS,
  NG_AT_SOLVE,
  NG_AT_SHARE,
  NG_AT_MEASURE,
  NG_AT_DELIVER,
  NG_AT_AGREE,
  NG_AT_EMIT,
  NG_AT_WEIGHTS,
  NG_STATIONS
} ng_station_id;

/* After which station may all ranks end the step?  They agree because they have the same
 * verdict. */
typedef enum ng_leave {
  NG_LEAVE_NEVER,
  NG_LEAVE_ERRORS, /* after an error of any rank; a refused value does not end the step here */
  NG_LEAVE_REFUSED /* after a value that is not finite on any rank: the step does not count */
} ng_leave;

typedef struct ng_station {
  const char *name;
  ng_status (*run)(ng_precond *p);
  bool (*due)(const ng_precond *p);
  bool collective;
  bool spreads;   /* afterwards all ranks know whether any rank refused a value */
  unsigned waits; /* ng_mail to wait for before it runs */
  ng_leave leave; /* also if it was not due */
} ng_station;
extern const ng_station ng_stations[NG_STATIONS];

typedef struct ng_station_time {
  int64_t runs, last_bytes, total_bytes, last_messages, total_messages;
  double last_ms, total_ms, last_wait_ms, total_wait_ms;
} ng_station_time;

/* The step under way. */
typedef struct ng_engine {
  bool begun;
  bool last;       /* ng_batch.last */
  ng_batch batch;  /* the micro-batch */
  int64_t batches; /* micro-batches of this step so far */
  ng_tiles tiles;
  ng_exchange exchange;
  ng_quantify quantify;
  ng_shards shards;
  ng_update_sink out;
  double lr;           /* the largest of all groups */
  uint64_t numbers;    /* hash of the update's numbers: ng_step_number */
  ng_status trouble;   /* worst local status; check and agree spread it */
  bool refused;        /* a value was not finite on this rank */
  bool refused_before; /* ... before gradients were observed */
  bool known;          /* ... on any rank, known to all */
  bool solving;
  int64_t
      overflowed; /* elements that kept their old value on this rank in the last emit; the next check clears it */
  double nu, inner, d2, pd2;     /* of the last step */
  double *norms;                 /* |PD|^2 of the segments of one block */
  ng_traffic early[NG_STATIONS]; /* sent before the step, counted at the station */
  ng_station_time time[NG_STATIONS];
} ng_engine;

/* The worse of two statuses: the most negative, else the largest note. */
static inline ng_status ng_worse(ng_status a, ng_status b) {
  if (a < 0 || b < 0) return a < b ? a : b;
  return a > b ? a : b;
}

bool ng_any_block(const ng_precond *p, bool (*is)(const ng_precond *p, const ng_block *b));
bool ng_stat_due(const ng_precond *p, const ng_block *b); /* any statistic of the block */
bool ng_one_due(const ng_precond *p, const ng_block *b, const ng_stat *s);
bool ng_solve_due(const ng_precond *p, const ng_block *b);

/* Observe the gradients for families that read them. */
bool ng_gradients_are_due(const ng_precond *p);
ng_status ng_gradients_observe(ng_precond *p);
void ng_gradients_forget(ng_precond *p); /* after a step that could not begin */

/* Arguments are already checked. */
ng_status ng_step_ready(ng_precond *p);
ng_status ng_blocks_make(ng_precond *p);
ng_status ng_blocks_settle(ng_precond *p); /* after placement: memory and tiles of this rank */
/* Exclude blocks of several layers from the step if none of their layers has a gradient. */
void ng_blocks_leave_out(ng_precond *p);
/* plan.c: count for n ranks from `first`; place, turn and ask are its parts in ready.c: placement,
 * the view of another rank, and a pass over all memory requests. */
ng_status ng_step_plan(ng_precond *p, int32_t ranks, int32_t first, int32_t n, ng_rank_plan *out,
                       size_t size);
ng_status ng_step_place(ng_precond *p);
ng_status ng_step_turn(ng_precond *p, int32_t rank);
ng_status ng_step_ask(ng_precond *p, ng_plan *plan);
void ng_step_release(ng_precond *p);
ng_status ng_step_begin(ng_precond *p, const ng_batch *batch);
int32_t ng_step_wants(const ng_precond *p, int32_t layer);
/* s NULL: no array, because of `wrong`; other ranks of a sharded layer must learn it. */
ng_status ng_step_observe(ng_precond *p, int32_t layer, const ng_strided *s, bool grad,
                          ng_status wrong);
void ng_step_reset(ng_precond *p);
/* `wrong`: why out and lr are invalid; then all ranks fail together. */
ng_status ng_step_take(ng_precond *p, const char *call, ng_status wrong);
void ng_step_values(ng_precond *p); /* copy changed options */
ng_status ng_step_set(ng_precond *p, const char *option, const char *value);

#endif
