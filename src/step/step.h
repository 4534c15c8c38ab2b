/* step.h: a step, from what is observed to what leaves.
 *
 * In:   a model that is ready; micro-batches with their observations; the numbers of an update.
 * Out:  gradients preconditioned in place, or weights and moments moved; what happened.
 * May call: family, model, stat, option, comm, linalg, core.  Nothing but api/ and state/ calls it.
 *
 * stations.c has the table that drives everything here.  A file is one station or what several need:
 *
 *   blocks.c    which layer gets which family, whose it is
 *   ready.c     ng_ready: memory, the same on all ranks    values.c   options of the coming step
 *   observe.c   an observation on its way to a block       exchange.c what ranks tell each other
 *   take.c      a step from its call to its end: the walk  stations.c the table, what is due
 *   agree.c     one verdict on all ranks: small sums       clip.c     how far the step goes
 *   tiles.c     one loop over the gradients of all blocks  sink.c     where a tile leaves
 *   deliver.c   PD for ranks that cannot make it       plan.c     ng_ready in numbers
 *   gather.c    weights from the ranks that move them
 *   sums.c      sums of statistics, over ranks or to owners wire.c    ... in 16 bits
 *   topk.c      the joint top-k selection of sharded windows
 *   stages.c    pipeline stages: one clip, one verdict
 *   quantify.c  how far each element is scaled         shard.c   layers of which ranks have parts
 */
#ifndef NG_STEP_H
#define NG_STEP_H

#include "family/family.h"
#include "model/model.h"

/* ---- the sink: sink.c ------------------------------------------------------------------------*/

/* Where tiles go.  GRADIENT and the two updates write what the step is for. */
typedef enum ng_out { NG_OUT_GRADIENT, NG_OUT_SGD, NG_OUT_ADAMW } ng_out;

/* w <- keep w - lr step; m <- old m + take g */
typedef struct ng_sgd_numbers {
  float lr, mu, keep, decay, take, old;
  bool moments, nesterov;
} ng_sgd_numbers;

typedef struct ng_adamw_numbers {
  float b1, b2, n1, n2, keep, step, root, eps;
} ng_adamw_numbers;

/* Of one group in the coming update, as the loops want them: made once a step. */
typedef struct ng_group_numbers {
  double lr, momentum, dampening, beta1, beta2; /* as given: of one update or the other */
  ng_sgd_numbers sgd;
  ng_adamw_numbers adamw;
} ng_group_numbers;

typedef struct ng_update_sink {
  ng_sink sink; /* first: what families see */
  ng_out kind;
  ng_group_numbers *group; /* [p->update_groups], by slot->update_group */
} ng_update_sink;

/* The numbers of one group; `updates` were taken before. */
void ng_update_sgd(ng_group_numbers *of, const ng_sgd *how, int64_t updates);
void ng_update_adamw(ng_group_numbers *of, const ng_adamw *how, int64_t updates);
void ng_update_sink_begin(ng_update_sink *s); /* kind and numbers are set */
/* What depends on how often a parameter was updated, for those that missed some: after the groups. */
void ng_update_late(ng_precond *p);
/* u [n], n at most 512: what lr multiplies in the coming update of elements that have no block.  Nothing moves. */
void ng_update_direction(const ng_precond *p, const ng_slot *slot, int64_t row, int64_t col,
                         int64_t n, float *u);

/* An element whose new weight, momentum or moment is not finite keeps the old one; a gradient element that does not
 * fit its dtype stays plain.  begin: before anything is written; end: NG_RESCUED and a message with the first
 * parameter and the count, if an element of this rank did. */
void ng_overflow_begin(ng_precond *p);
ng_status ng_overflow_end(ng_precond *p);

/* ---- tiles: tiles.c --------------------------------------------------------------------------*/

/* One loop over tiles [0, count): piece i is [cut[i], cut[i+1]), about the same elements each. */
typedef struct ng_walk {
  int32_t count, pieces;
  int64_t elements;
  int32_t *cut;
} ng_walk;

/* Tiles by what they need: first those that are measured (blocks with measure_tile, parameters without
 * curvature), then the others; block after block, each block's in one run. */
typedef struct ng_tiles {
  ng_tile *tile;
  double *sum; /* NG_TILE_SUMS numbers each */
  ng_walk measured, all;
} ng_tiles;

ng_status ng_tiles_plan(ng_precond *p); /* after the blocks are made */
void ng_tiles_release(ng_precond *p);
void ng_tiles_measure(ng_precond *p); /* fills sum; says `refused` of plain parameters */
/* Every tile of every block and plain parameter: PD times its segment's factor. */
void ng_tiles_emit(ng_precond *p, const ng_sink *sink);

/* ---- PD that travels: deliver.c --------------------------------------------------------------*/

/* Whether a block's tiles come from what another rank sent, and room for that: while memory is
 * planned. */
void ng_deliver_plan(ng_block *b, ng_plan *plan);
void ng_deliver_fill(ng_block *b); /* on ranks that hold its results */
/* The one way out of a block: from its family, or from what was delivered. */
void ng_deliver_tile(const ng_tile *t, double factor, const ng_sink *sink);
/* |PD|^2 of each segment of a block, by its family or by a walk over its tiles. */
void ng_deliver_norms(ng_block *b, double *pd2);

/* ---- the exchange: exchange.c, of statistics sums.c, one verdict agree.c ---------------------*/

/* Messages under way: a station posts them, a later one waits (ng_station.waits). */
typedef enum ng_mail {
  NG_MAIL_STATISTICS = 1 << 0,
  NG_MAIL_RESULTS = 1 << 1,
  NG_MAIL_DIRECTION = 1 << 2
} ng_mail;

/* A message of statistics: adjacent sums of one dtype. */
typedef struct ng_message {
  char *buffer;
  int64_t count;
  int64_t *counts; /* [ranks] elements that go to each; NULL: all of it to all */
  ng_dtype dtype;
  bool narrow; /* f32 in memory, 16 bits while it is under way */
  ng_request request;
} ng_message;

/* wire.c: n f32 become bf16 or f16 in the first half of their memory, and come back. */
void ng_wire_narrow(char *x, int64_t n, ng_dtype t);
void ng_wire_widen(char *x, int64_t n, ng_dtype t);

typedef struct ng_exchange {
  double *small; /* [small_count] the buffer of both small reductions, of nobody else */
  int64_t small_count;
  ng_message *message; /* [messages_most] of this step, in the order in which they were posted */
  int64_t *counts;     /* [messages_most x ranks]; NULL: no statistic goes to its owner alone */
  int32_t messages, messages_most, waited; /* waited: the first so many are known to be complete */
  int64_t cap;                             /* most bytes of one of several statistics */
  int32_t ahead; /* blocks that may still be posted ahead of the step: the first so many ... */
  int32_t held;  /* ... and from there to here those that wait for their message's others */
  int64_t held_bytes;
  int64_t bytes, sent; /* sent ahead, in so many messages; counted at sums */
  double *told;        /* [traces_count] of blocks that are apart, of this rank's column */
  int64_t traces_count;
  double *choice; /* [choice_count] of a round of topk.c */
  int64_t choice_count;
  ng_request *spans; /* [spans_most] results or directions under way, of ranks, then slices */
  int32_t spans_most;
} ng_exchange;

/* The sums of all blocks over all ranks; of blocks that ascend, whose PD = D + ascent H, inner and
 * pd2 are of H.  `weighted` are the same with each block's times ng_clip_weight. */
typedef struct ng_sums {
  double inner, d2, pd2;
  double weighted_inner, weighted_d2;
} ng_sums;

/* Of numbers that must be the same on all ranks: another one for each that is mixed in. */
uint64_t ng_step_number(uint64_t so_far, double x);
uint64_t ng_options_number(const ng_precond *p); /* of p->base */
/* This rank's part of a sum over ranks; NG_ERR_STATE if options or numbers of the update differ. */
enum { NG_SAME = 8, NG_SAME_PIECES = 4 };
/* One number into a sum over ranks, and whether all gave the same. */
void ng_same_number(double x[NG_SAME_PIECES], uint64_t number);
bool ng_same_sums(const double x[NG_SAME_PIECES], int32_t ranks);
void ng_same_put(const ng_precond *p, double x[NG_SAME]);
ng_status ng_same_check(ng_precond *p, const double *x);

ng_status ng_exchange_plan(ng_precond *p);
void ng_exchange_release(ng_precond *p);
ng_status ng_exchange_failed(ng_precond *p, const char *what); /* a collective has */
void ng_exchange_give_up(ng_precond *p); /* all transports; only destroy is left */
ng_status ng_exchange_wait_statistics(ng_precond *p);
/* ng_ready: the worst status of all ranks, NG_ERR_COMM with a message if hashes differ. */
enum { NG_HASHES = 4 }; /* options, layers, owners, linear algebra */
ng_status ng_exchange_same(ng_precond *p, const uint64_t hash[NG_HASHES], ng_status local);
/* Small reductions: every rank leaves with the same verdict.  check: status, refusals, the weights of
 * all statistics; agree: status, refusals, sums[0] of most blocks and sums[1] of those that ascend. */
ng_status ng_exchange_check(ng_precond *p);
void ng_exchange_mark_seen(ng_block *b); /* what is about to be folded */
ng_status ng_exchange_agree(ng_precond *p, ng_sums sums[2]);
/* Owners of A and G of one block exchange the traces of both before its solve. */
bool ng_traces_are_due(const ng_precond *p);
ng_status ng_exchange_traces(ng_precond *p);
int64_t ng_traces_count(const ng_precond *p);

/* topk.c: ranks select the largest entries of a sharded window jointly, in rounds of sums. */
int64_t ng_topk_count(const ng_precond *p); /* the most numbers of a round */
bool ng_topk_is_due(const ng_precond *p);
ng_status ng_topk_select(ng_precond *p);
ng_status ng_exchange_sum(ng_precond *p, double *x, int64_t n, const char *what);
/* Post what is due and was not posted; all ranks in the same order.  wait ends all of it. */
ng_status ng_exchange_post_statistics(ng_precond *p);
ng_status ng_exchange_post_results(ng_precond *p);
ng_status ng_exchange_post_direction(ng_precond *p);
ng_status ng_exchange_wait(ng_precond *p, ng_mail what);
int64_t ng_step_bucket(const ng_precond *p); /* most bytes of a message of several statistics */
typedef struct ng_traffic {
  int64_t bytes, messages;
  double wait_ms;
} ng_traffic;
/* All that this rank has said so far, in its world, its model group and to other stages. */
ng_traffic ng_exchange_said(const ng_precond *p);
/* Numbers in check and agree: the most of either, of so many statistics; then each. */
int64_t ng_exchange_small_count(const ng_precond *p, int32_t stats);
int64_t ng_exchange_check_count(const ng_precond *p);
int64_t ng_exchange_agree_count(const ng_precond *p);
/* In the last micro-batch before a step: when it begins; after each observation, to post what is complete
 * and to make progress; when nothing more will be shown, to post the rest.  Without one they do nothing. */
void ng_exchange_begin_last(ng_precond *p);
ng_status ng_exchange_ahead(ng_precond *p);
ng_status ng_exchange_end_last(ng_precond *p);
void ng_exchange_forget(ng_precond *p); /* the batches of a step are over, or dropped */

/* ---- pipeline stages: stages.c ---------------------------------------------------------------*/

/* The first word of ng_ready: ranks of the world were given the same groups, of the same sizes, or none; NG_ERR_COMM. */
ng_status ng_groups_same(ng_precond *p);
bool ng_sums_equal(const double x[2],
                   int32_t ranks); /* sums over ranks of a number and of its square: of one */
bool ng_stages_there(const ng_precond *p); /* more than one */
/* Sums over one rank of each stage, of what the ranks of a stage have agreed on. */
ng_status ng_stages_sum(ng_precond *p, double *x, int64_t n, const char *what);
/* The verdict of all stages on a step that begins, or on ng_ready; NG_ERR_STATE if their options or lr differ. */
ng_status ng_stages_check(ng_precond *p, ng_status local);
/* x: codes, `sum` behind them as ng_exchange_agree has it: both of all stages. */
ng_status ng_stages_agree(ng_precond *p, double *x, double *sum, bool weighted);

/* ---- weights: gather.c -----------------------------------------------------------------------*/

bool ng_update_is_owned(const ng_precond *p); /* update_ranks = owner, of a fused update */
int32_t ng_update_owner(const ng_precond *p, const ng_entry *e, int32_t index);
int64_t ng_gather_scratch(const ng_precond *p); /* bytes */
void ng_gather_in_advance(const ng_precond *p, ng_rank_plan *out);
ng_status ng_gather_weights(ng_precond *p);

/* ---- the clip: clip.c ------------------------------------------------------------------------*/

bool ng_clip_reads_weights(const ng_precond *p);
/* (its learning rate / the largest of all groups)^2; 1 where they are equal */
double ng_clip_weight(const ng_block *b);
void ng_clip_measure(ng_precond *p); /* |weight|^2 of every segment, where asked for */
/* Sums over all ranks are known: nu, and the ascent of blocks that have one. */
void ng_clip_agreed(ng_precond *p, const ng_sums sums[2]);
void ng_clip_factors(ng_precond *p); /* of all segments; PD is there */

/* ---- how elements are scaled: quantify.c -----------------------------------------------------*/

typedef struct ng_scaling {
  int64_t count; /* 0: none was measured */
  double least, quartile[3], most, mean;
} ng_scaling;
typedef struct ng_scaling_piece {
  double least, most;
} ng_scaling_piece;
/* NULL where the option is off. */
typedef struct ng_quantify {
  ng_scaling_piece *piece; /* [pieces] */
  int64_t *count;          /* [pieces x bins] */
  double *sum;             /* [tiles x 4] */
  double *wire;            /* NULL: every rank counts all of it */
  ng_scaling found;
} ng_quantify;
ng_status ng_quantify_plan(ng_precond *p); /* after ng_tiles_plan */
void ng_quantify_release(ng_precond *p);   /* before ng_tiles_release */
bool ng_quantify_due(const ng_precond *p);
ng_status ng_quantify_step(ng_precond *p); /* after agree, before anything is written */

/* ---- layers in shards: shard.c ---------------------------------------------------------------*/

typedef struct ng_shards {
  int32_t members, blocks; /* of the model group; blocks of layers in shards */
  int32_t *rank;           /* [members] of all ranks, of each member */
  int32_t *member;         /* [ranks] where each rank stands in its model group */
  int32_t *holder;         /* [members] as `rank`, of the group of rank 0 */
  char *room;              /* what is gathered, and made of it */
  int64_t room_bytes;
  int64_t bytes, messages; /* said in the model group since the last step, of observations */
} ng_shards;

ng_status ng_shards_meet(ng_precond *p);   /* ... then, before blocks are made; collective */
ng_status ng_shards_settle(ng_precond *p); /* ... when they have their places */
void ng_shards_ask(const ng_precond *p,
                   ng_plan *plan); /* ... whole gradients, and room to gather them */
void ng_shards_release(ng_precond *p);
ng_status ng_shards_check(ng_precond *p); /* a step may begin */
/* This rank's part of what is shown, and what it thinks of it (s NULL: it has none): all of a model group
 * leave with the same status, and its primary with the whole; collective if this side is cut. */
ng_status ng_shard_bring(ng_precond *p, ng_entry *e, bool grad, const ng_strided *s, ng_status st,
                         ng_strided *whole);
/* shard_plan.c: the same for a rank that is planned, from ng_plan_shard; before ng_step_release as it was; what is
 * gathered. */
ng_status ng_shards_plan(ng_precond *p);
void ng_shards_unplan(ng_precond *p);
ng_status ng_shards_real(ng_precond *p); /* ng_ready: none is only planned */
void ng_shards_count(const ng_precond *p, ng_rank_plan *out);
bool ng_shards_due(const ng_precond *p);
ng_status ng_shards_gather(ng_precond *p);

/* Of what is put into a whole parameter, the part that is here. */
typedef struct ng_shard_sink {
  ng_sink sink; /* first: what families see */
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

/* Where the walk may end.  All ranks end it there together, because they know the same. */
typedef enum ng_leave {
  NG_LEAVE_NEVER,
  NG_LEAVE_ERRORS, /* after an error of any rank; a refused value does not end the step here */
  NG_LEAVE_REFUSED /* after a value that is not finite on any rank: the step does not count  */
} ng_leave;

typedef struct ng_station {
  const char *name;
  ng_status (*run)(ng_precond *p);
  bool (*due)(const ng_precond *p);
  bool collective;
  bool spreads;   /* afterwards all ranks know whether any of them refused a value */
  unsigned waits; /* ng_mail that is waited for before it runs */
  ng_leave leave; /* after it, due or not                      */
} ng_station;
extern const ng_station ng_stations[NG_STATIONS];

typedef struct ng_station_time {
  int64_t runs, last_bytes, total_bytes, last_messages, total_messages;
  double last_ms, total_ms, last_wait_ms, total_wait_ms;
} ng_station_time;

/* What is under way. */
typedef struct ng_engine {
  bool begun;
  bool last;       /* the micro-batch under way is the last one before the step */
  ng_batch batch;  /* the micro-batch */
  int64_t batches; /* ... and how many there were */
  ng_tiles tiles;
  ng_exchange exchange;
  ng_quantify quantify;
  ng_shards shards;
  ng_update_sink out;
  double lr;           /* the largest of all groups */
  uint64_t numbers;    /* of the update at hand, mixed: ng_step_number */
  ng_status trouble;   /* worst local status; collectives go on, check and agree spread it */
  bool refused;        /* something was not finite on this rank */
  bool refused_before; /* ... before gradients were looked at */
  bool known;          /* ... on any rank, and all know it      */
  bool solving;
  int64_t overflowed; /* elements that the last emit left on this rank; the next check clears it */
  double nu, inner, d2, pd2; /* of the last step                                                  */
  double *norms; /* [norms_most] |PD|^2 of the segments of one block                      */
  int64_t norms_most;
  ng_station_time time[NG_STATIONS];
} ng_engine;

/* The worse of two statuses: the most negative, else the largest note. */
static inline ng_status ng_worse(ng_status a, ng_status b) {
  if (a < 0 || b < 0) return a < b ? a : b;
  return a > b ? a : b;
}

bool ng_stat_due(const ng_precond *p, const ng_block *b); /* some statistic of it is */
bool ng_one_due(const ng_precond *p, const ng_block *b, const ng_stat *s);
bool ng_solve_due(const ng_precond *p, const ng_block *b);

/* observe.c: families that see the gradients themselves. */
bool ng_gradients_are_due(const ng_precond *p);
ng_status ng_gradients_observe(ng_precond *p);
void ng_gradients_undo(ng_precond *p);

/* What api/ calls; arguments are checked. */
ng_status ng_step_ready(ng_precond *p);
/* blocks.c: what it makes before it fails is p->block's, for ng_step_release to free. */
ng_status ng_blocks_make(ng_precond *p);
ng_status
ng_blocks_settle(ng_precond *p); /* ... when they are placed: what this rank has of them */
void ng_block_free(ng_block *b);
/* Blocks of many that have no part in the coming step, since none of their parameters has one. */
void ng_blocks_leave_out(ng_precond *p);
/* plan.c: the same for `rank` of `ranks`, or for each of them, in numbers; its parts in ready.c: who owns what, the
 * same as another rank sees it, and a pass over all requests for memory. */
ng_status ng_step_plan(ng_precond *p, int32_t ranks, int32_t first, int32_t n, ng_rank_plan *out,
                       size_t size);
ng_status ng_step_place(ng_precond *p);
ng_status ng_step_turn(ng_precond *p, int32_t rank);
ng_status ng_step_ask(ng_precond *p, ng_plan *plan);
void ng_step_release(ng_precond *p);
ng_status ng_step_begin(ng_precond *p, const ng_batch *batch);
int32_t ng_step_wants(const ng_precond *p, int32_t layer);
/* s NULL: there is nothing to show, for a reason that is `wrong`; other ranks may have to hear of it. */
ng_status ng_step_observe(ng_precond *p, int32_t layer, const ng_strided *s, bool grad,
                          ng_status wrong);
void ng_step_reset(ng_precond *p);
/* out and lr are set, or `wrong` says that they cannot be, and all ranks fail together. */
ng_status ng_step_take(ng_precond *p, const char *call, ng_status wrong);
void ng_step_values(
    ng_precond *p); /* after options have changed: numbers that are copied from them */
ng_status ng_step_set(ng_precond *p, const char *option, const char *value);

#endif
