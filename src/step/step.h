/* step.h: one step, from observations to new gradients or weights.
 *
 * In:   a model after ng_ready; micro-batches and their observations; learning rates and coefficients of an update.
 * Out:  preconditioned gradients in place, or updated weights and moments; reports.
 * May call: family, model, stat, option, comm, kernel, linalg, core.  Only setup/, state/ and api/ call this room.
 *
 * Files:
 *   take.c       run the stations in order, then close the step
 *   stations.c   define the table of stations
 *   due.c        decide which work is due
 *   overhead.c   choose periods from measured times (option overhead)
 *   values.c     change options (ng_set); compare options between ranks
 *   observe.c    add activations and gradients to the sums of statistics
 *   agree.c      sum statuses over ranks and pipeline stages, so that all ranks have one status
 *   sums.c       reduce the sums of statistics over ranks
 *   exchange.c   send results, directions and traces; select the top-k entries of a sliced window
 *   clip.c       compute the clip factor
 *   emission.c   measure and emit: list all blocks for the kernels; store PD that other ranks need
 *   coefficients.c  learning rates and coefficients of the fused updates
 *   gather.c     broadcast weights from their owners
 *   quantify.c   measure |PD / D| of each element
 *   fused.c      a step of Eva on a device, without a wait
 *   shard.c      gather layers that are sharded over a model group */
#ifndef NG_STEP_H
#define NG_STEP_H

#include "family/family.h"
#include "model/model.h"

/* ---- updates: coefficients.c ------------------------------------------------------------------------*/

typedef enum ng_output_kind { NG_OUT_GRADIENT, NG_OUT_SGD, NG_OUT_ADAMW } ng_output_kind;

/* The learning rate and coefficients of one group of parameters, set in each step. Only the fields of the update in use,
 * SGD or AdamW, are set. */
typedef struct ng_group_numbers {
  double lr, dampening; /* the caller's values */
  ng_sgd_coefficients sgd;
  ng_adamw_coefficients adamw;
  double coefficients[2]; /* SGD: take, old; AdamW: step, root */
} ng_group_numbers;

typedef struct ng_output {
  ng_output_kind kind;
  ng_group_numbers *group; /* [p->update_groups], indexed by slot->update_group */
} ng_output;

/* Set the numbers of one group from the caller's values `given`. `updates`: number of earlier updates of the model. */
void ng_update_set_sgd(ng_group_numbers *group, const ng_sgd *given, bool decay_after,
                       int64_t updates);
void ng_update_set_adamw(ng_group_numbers *group, const ng_adamw *given, int64_t updates);
/* Set slot->late_coefficients of all parameters that had fewer updates than the model. Call after the numbers of all
 * groups are set. */
void ng_update_set_late_coefficients(ng_precond *p);
/* Change the numbers to lr = 1 and keep = 0, so that the new weight is minus the direction of the update. */
void ng_update_set_lr_1_keep_0(ng_group_numbers *group, ng_output_kind kind, int64_t updates);

/* ---- emission: emission.c --------------------------------------------------------------------*/

/* Lists of descriptors for the kernels, filled in each step. */
typedef struct ng_emission {
  int64_t capacity, tiles; /* largest number of descriptors, and largest number of their tiles */
  /* Lengths in this step of `measure`; of `direction` and `update`; of `range` in ng_emission_measure. */
  int64_t measure_count, direction_count, plain_count;
  ng_measure *measure;
  ng_region *range;
  ng_direction *direction;
  ng_weight_update *update;
  ng_slot **slot;   /* the parameters of `range`; in ng_emission_norms, of `direction` */
  int32_t *finite;  /* result of the kernel `finite` for `range` */
  double *norm2;    /* result of the kernel `norm2` for `direction` */
  float **store_to; /* where the kernel `store` writes `direction` */
  double *parts;    /* [tiles x 2] scratch of kernels */
} ng_emission;

/* Return whether the parameter has no curvature and a fused update writes it. */
bool ng_is_updated_without_curvature(const ng_precond *p, const ng_slot *s);
ng_status ng_emission_plan(ng_precond *p);
/* If some ranks cannot compute PD of the block and its family does not store PD, request memory where the engine does. */
void ng_emission_plan_direction(ng_block *b, ng_plan *plan);
/* Enqueue the sums over gradients of families with `describe_sums`, and the check of the gradients of parameters without
 * curvature. */
void ng_emission_measure(ng_precond *p);
/* After a wait: if a gradient without curvature is not finite, set ng_engine.has_refused. */
void ng_emission_check(ng_precond *p);
void ng_emission_store(ng_precond *p); /* store PD of delivered blocks, on ranks with results */
void ng_emission_norms(ng_precond *p); /* set ng_segment.pd_norm2 of all blocks, with one wait */
/* Write PD, times the clip factor of its segment, to the gradients, or update weights and moments with it. The direction
 * of a parameter without curvature is its gradient. An element whose new weight, momentum or moment is not finite keeps
 * its old value; a gradient element whose PD does not fit its dtype keeps the gradient. If there are such elements on this
 * rank, ng_engine.status becomes NG_RESCUED, with a message that names the first parameter. Return NG_OK. */
ng_status ng_emission_emit(ng_precond *p);
/* Fill `direction` and `update`: first with PD of the blocks, times their clip factors or (`unit`) with factor 1, then with
 * the gradients of parameters without curvature. */
void ng_emission_list_blocks(ng_precond *p, bool unit);
void ng_emission_list_plain(ng_precond *p);
void ng_emission_list_all(ng_precond *p);

/* ---- the exchange: exchange.c, sums.c, agree.c -----------------------------------------------*/

/* Kinds of messages that one station posts and a later station waits for (ng_station.awaited_mail). */
typedef enum ng_mail {
  NG_MAIL_STATISTICS = 1 << 0,
  NG_MAIL_RESULTS = 1 << 1,
  NG_MAIL_DIRECTION = 1 << 2
} ng_mail;

/* Adjacent sums of one dtype, which are sent together. */
typedef struct ng_message {
  char *buffer;
  int64_t count;
  int64_t *owner_counts; /* [ranks] number of elements that each owner receives; NULL: all-reduce */
  ng_dtype dtype;
  /* the message is f32 in memory and is converted to the 16-bit `dtype` while it is sent */
  bool is_narrowed;
  ng_request request;
} ng_message;

typedef struct ng_exchange {
  double *check_buffer;     /* buffer with the numbers that `check` and `agree` sum over ranks */
  ng_message *message;      /* [statistics + 1] in the order of posting */
  ng_wire_conversion *wire; /* [statistics + 1] messages to be converted */
  int64_t *counts; /* [messages x ranks] memory for owner_counts; NULL: all sums are all-reduced */
  int32_t messages, messages_waited; /* the first `messages_waited` messages are complete */
  /* In the last micro-batch: blocks [0, blocks_ahead) still wait for observations; the sums of blocks [blocks_ahead,
   * blocks_held), held_bytes, are complete, but their message is not full; the sums of later blocks are posted. */
  int32_t blocks_ahead, blocks_held;
  int64_t held_bytes;
  bool *may_post_ahead; /* [blocks] the sums of the block may be posted before the step */
  double *traces;       /* [traces_count] traces of blocks whose A and G have different owners */
  int64_t traces_count;
  double *topk_sums; /* sums of one round of ng_topk_select */
  /* [span_capacity] posted broadcasts: results, one for each owner, or directions, one for each column; then slices of
   * PD. */
  ng_request *span_requests;
  int32_t span_capacity;
} ng_exchange;

/* Sums over blocks and, after agree, also over ranks: inner = <D, PD>, d2 = |D|^2, pd2 = |PD|^2. For blocks with ascent
 * (PD = D + k H, where k is computed after agree) inner = <D, H> and pd2 = |H|^2. In weighted sums the terms of each block
 * are multiplied by ng_clip_weight. */
typedef struct ng_sums {
  double inner, d2, pd2;
  double weighted_inner, weighted_d2;
} ng_sums;

/* Return the hash of the numbers that so_far is a hash of, and of x. */
uint64_t ng_hash_number(uint64_t so_far, double x);
uint64_t ng_options_hash(const ng_precond *p); /* hash of the model's options */
enum { NG_HASH_NUMBERS = 8, NG_HASH_PIECES = 4 };
/* ng_hash_split: x <- the low 32 bits of `number`, in a form that ranks sum. ng_hash_sums_agree: return whether all
 * `ranks` ranks had the same number, given the sums x. */
void ng_hash_split(double x[NG_HASH_PIECES], uint64_t number);
bool ng_hash_sums_agree(const double x[NG_HASH_PIECES], int32_t ranks);
/* ng_hashes_write: x <- this rank's hashes of options and update, split. ng_hashes_check: return NG_ERR_STATE if ranks had
 * different hashes, given the sums x. */
void ng_hashes_write(const ng_precond *p, double x[NG_HASH_NUMBERS]);
ng_status ng_hashes_check(ng_precond *p, const double *x);

ng_status ng_exchange_plan(ng_precond *p);
/* report that the collective named `what` failed; return NG_ERR_COMM */
ng_status ng_exchange_failed(ng_precond *p, const char *what);
void ng_exchange_abort(ng_precond *p); /* set p->is_broken; abort all transports */
ng_status ng_exchange_wait_statistics(ng_precond *p);
/* At ng_ready: return the worst status of all ranks, or NG_ERR_COMM and a message if their hashes differ. */
enum { NG_HASHES = 4 }; /* options, layers, owners, linear algebra */
ng_status ng_exchange_compare_models(ng_precond *p, const uint64_t hash[NG_HASHES],
                                     ng_status local);
/* The two reductions after which all ranks have the same status. check sums statuses, refusals and sample weights. agree
 * sums statuses, refusals and clip sums: sums[0] of blocks without ascent, sums[1] of blocks with ascent. */
ng_status ng_exchange_check(ng_precond *p);
void ng_exchange_mark_observed(ng_block *b); /* call before the block's sums are folded */
ng_status ng_exchange_agree(ng_precond *p, ng_sums sums[2]);
/* If A and G of a block have different owners, the owners exchange the traces of A and G before the solve. */
ng_status ng_exchange_traces(ng_precond *p);
int64_t ng_traces_count(const ng_precond *p);

/* All ranks select the largest entries of a sliced window jointly, in rounds of sums. */
ng_status ng_topk_select(ng_precond *p);
ng_status ng_exchange_sum(ng_precond *p, double *x, int64_t n, const char *what);
ng_status ng_exchange_sum_over(ng_precond *p, ng_comm *c, double *x, int64_t n, const char *what);
/* Return the worst status in the summed codes. If another rank has a worse status than `mine`, set a message that says how
 * many of `who` ("ranks") failed. */
ng_status ng_exchange_worst_status(ng_precond *p, const double code[NG_CODES], ng_status mine,
                                   const char *who);
/* Post all due messages that are not posted yet, in the same order on all ranks. */
ng_status ng_exchange_post_statistics(ng_precond *p);
ng_status ng_exchange_post_results(ng_precond *p);
ng_status ng_exchange_post_direction(ng_precond *p);
ng_status ng_exchange_wait(ng_precond *p, ng_mail what);
/* Return whether statistic s joins a message of `count` elements (of s->sum_dtype) that ends with statistic `before`. *gap:
 * padding between the message and s; *n: elements of s, padding between its arrays included. */
bool ng_stat_joins_message(const ng_precond *p, const ng_stat *before, const ng_stat *s,
                           int64_t count, int64_t *gap, int64_t *n);
typedef struct ng_traffic {
  int64_t bytes, messages;
  double wait_ms;
} ng_traffic;
/* Return the payload, calls and waiting time of all collectives of this rank so far. */
ng_traffic ng_exchange_traffic(const ng_precond *p);
/* Count the traffic since `before` as traffic of `station` in the next step. */
void ng_exchange_count_early(ng_precond *p, int station, ng_traffic before);
/* Return how many numbers check and agree sum. */
int64_t ng_exchange_check_count(const ng_precond *p);
int64_t ng_exchange_agree_count(const ng_precond *p);
/* For the last micro-batch before a step (ng_batch.last). begin_last_batch marks the blocks whose sums may be posted before
 * the step. post_ahead, called after each observation, posts complete sums and tests posted messages. end_last_batch,
 * called when the step begins, posts the remaining sums of marked blocks. In other micro-batches these do nothing. */
void ng_exchange_begin_last_batch(ng_precond *p);
ng_status ng_exchange_post_ahead(ng_precond *p);
ng_status ng_exchange_end_last_batch(ng_precond *p);
/* call after a step or a reset: forget which blocks wait to be posted */
void ng_exchange_reset(ng_precond *p);

/* At ng_ready: return NG_ERR_COMM if some ranks have a stage_group (or model_group) and others have none, or one of another
 * size. */
ng_status ng_groups_compare(ng_precond *p);
bool ng_pipeline_exists(const ng_precond *p); /* there are several pipeline stages */
/* Return the worst error of all stages; NG_ERR_STATE if their options or learning rates differ; otherwise `local`. */
ng_status ng_pipeline_check(ng_precond *p, ng_status local);

/* ---- weights: gather.c -----------------------------------------------------------------------*/

bool ng_update_is_owned(
    const ng_precond *p); /* there is a fused update with update_ranks = owner */
int32_t ng_update_owner(const ng_precond *p, const ng_entry *e);
int64_t ng_gather_scratch(const ng_precond *p);
void ng_gather_count_traffic(const ng_precond *p, ng_rank_plan *out);
ng_status ng_gather_weights(ng_precond *p);

/* ---- the clip: clip.c ------------------------------------------------------------------------*/

bool ng_clip_reads_weights(const ng_precond *p);
/* Return (lr of the block / largest lr of all groups)^2. */
double ng_clip_weight(const ng_block *b);
/* clip = ratio: enqueue |weight|^2 of every segment; after a wait, refuse the step if one is not finite. */
void ng_clip_measure(ng_precond *p);
void ng_clip_refuse_nonfinite_weights(ng_precond *p);
/* Compute the clip factor nu and the ascent from the sums over all ranks. */
void ng_clip_compute(ng_precond *p, const ng_sums sums[2]);
void ng_clip_factors(ng_precond *p); /* set the clip factor of each segment */

/* ---- scaling of elements: quantify.c ---------------------------------------------------------*/

/* Statistics of |PD / D| over all elements. */
typedef struct ng_scaling {
  int64_t count; /* elements measured; 0: not measured */
  double least, quartile[3], most, mean;
} ng_scaling;
/* Memory of quantify.c.  All pointers are NULL if the option quantify is 0. */
typedef struct ng_quantify {
  double *extreme;         /* [threads x 2] minimum and maximum */
  int64_t *count;          /* [threads x bins] histogram */
  double *sum;             /* [tiles x 4] sums of r, <g, u>, |g|^2, |u|^2: see quantify.c */
  double total[4];         /* the four sums over all tiles */
  ng_group_numbers *group; /* [update_groups] numbers with lr = 1 */
  double *rank_sums;       /* buffer of a sum over ranks; NULL: every rank counts all elements */
  ng_scaling result;
} ng_quantify;
ng_status ng_quantify_plan(ng_precond *p); /* call after ng_emission_plan */
ng_status ng_quantify_step(ng_precond *p); /* call after agree and before emit */

/* ---- sharded layers: shard.c -----------------------------------------------------------------*/

typedef struct ng_shards {
  int32_t members, blocks; /* number of ranks of the model group, and of blocks of sharded layers */
  int32_t *rank;           /* [members] world rank of each member of this model group */
  int32_t *member;         /* [ranks] index of each rank in its model group */
  int32_t *holder;         /* [members] world rank of each member of rank 0's model group */
  char *buffer;            /* the gathered shards of an observation, then the whole array */
  int64_t buffer_bytes;
  int32_t finite; /* ng_read.finite needs an address; the value is not used */
} ng_shards;

ng_status ng_shards_check(ng_precond *p);
/* Gather an observation s of a sharded layer; on the primary, *whole <- the whole array. s NULL: this rank has no array. st:
 * status of this rank before the call. All ranks of the model group return the same status. */
ng_status ng_shard_gather_observation(ng_precond *p, ng_entry *e, bool grad, const ng_strided *s,
                                      ng_status st, ng_strided *whole);
ng_status ng_shards_gather(ng_precond *p);

/* e describes a direction of a whole layer. Reduce e to this rank's shard; return false if the shard has no element of e. */
bool ng_shard_cut_direction(ng_slot *slot, ng_direction *e);

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

typedef struct ng_station {
  const char *name;
  ng_status (*run)(ng_precond *p);
  bool (*is_due)(const ng_precond *p); /* NULL: always */
  bool is_collective;
  bool shares_refusal;   /* after `run`, ng_engine.has_refused is equal on all ranks */
  unsigned awaited_mail; /* kinds of messages (ng_mail) to wait for before `run` */
  bool skips_step;       /* end the step here, also if the station was not due, after a refusal */
} ng_station;
extern const ng_station ng_stations[NG_STATIONS];

typedef struct ng_station_time {
  int64_t runs, last_bytes, total_bytes, last_messages, total_messages;
  int64_t last_waits; /* how often the host waited for the queue (ng_queue.waits) */
  double last_ms, total_ms, last_wait_ms, total_wait_ms;
} ng_station_time;

/* ---- periods from measured times: overhead.c -------------------------------------------------*/

/* Times of a step: of the caller, between our calls; of statistics, observations included; of solves, with the messages of
 * their results; of all else, in every step. */
typedef enum ng_cost {
  NG_COST_CALLER,
  NG_COST_STATISTICS,
  NG_COST_SOLVE,
  NG_COST_REST,
  NG_COSTS
} ng_cost;
enum { NG_MEASURED_STEPS = 20 };
typedef struct ng_overhead {
  double ms[NG_COSTS][NG_MEASURED_STEPS];
  int32_t samples[NG_COSTS];
  double began, ended;  /* begin time of this step; end time of the last step, 0: there was none */
  double observed;      /* milliseconds of this step's observations, which precede its begin */
  bool has_statistics;  /* statistics are due in this step */
  double sum[NG_COSTS]; /* sums over ranks of the medians, after the last measured step */
} ng_overhead;

/* The two periods that overhead.c chooses. */
typedef struct ng_periods {
  int64_t stat, solve;
} ng_periods;
/* Return the periods *now, of which free ones are replaced by the shortest that keep the mean time of a step below `share`
 * of the caller's time; 100 if none does. */
ng_periods ng_choose_periods(const double cost[NG_COSTS], double share, ng_periods now,
                             bool stat_is_free, bool solve_is_free);
void ng_overhead_begin(ng_precond *p); /* call when a step begins */
void ng_overhead_end(ng_precond *p);   /* call after a step was counted */
/* Set x to this rank's medians in the last measured step, to zeros in all other steps. */
void ng_overhead_write(const ng_precond *p, double x[NG_COSTS]);

/* ---- a step of Eva without a wait: fused.c ---------------------------------------------------*/

enum { NG_EVA_AHEAD = 8 };
typedef struct ng_fused {
  bool is_possible; /* memory is allocated */
  bool is_running;  /* the last step and this step run here */
  ng_eva_lists lists;
  ng_eva_mean *mean;
  int32_t *layer_of, *group_of, *started;
  ng_place *bound; /* [slots][2] bindings for which the lists were uploaded */
  /* Step i has the numbers [i % NG_EVA_AHEAD]. The reports of the first `settled` of `launched` steps are read. */
  ng_eva_numbers *numbers[NG_EVA_AHEAD];
  int64_t launched, settled;
  int64_t overflowed; /* number of overflows that were reported */
  ng_status late;     /* status of steps before the last ng_fused_stop */
} ng_fused;

ng_status ng_fused_plan(ng_precond *p);
void ng_fused_begin(ng_precond *p);    /* decide whether this step runs here */
ng_status ng_fused_run(ng_precond *p); /* replaces the stations from `statistics` on */
/* Return the status of finished steps that was not returned yet. */
ng_status ng_fused_settle(ng_precond *p);
/* Wait for all steps. The next step uploads everything. */
void ng_fused_stop(ng_precond *p);

/* The state of the current step, and numbers of the last step. */
typedef struct ng_engine {
  bool has_begun;  /* ng_begin was called in this step */
  ng_batch batch;  /* the current micro-batch; after a step `last` is 0 */
  int64_t batches; /* micro-batches since ng_ready */
  ng_emission emission;
  ng_exchange exchange;
  ng_quantify quantify; /* statistics of |PD / D| over all elements: memory and results */
  ng_shards shards;
  ng_output output;
  double lr;            /* the largest learning rate of all groups */
  double largest;       /* largest magnitude of the last array that was scanned */
  uint64_t update_hash; /* hash of the coefficients of the update: ng_hash_number */
  /* worst status of this rank; after `check` and after `agree`: of all ranks */
  ng_status status;
  /* this rank refused a non-finite value; after `check` and after `agree`: some rank refused one */
  bool has_refused;
  bool refused_before; /* `has_refused` before gradients were observed */
  bool is_solving;     /* some block is solved in this step */
  /* Elements that kept their old value on this rank in the last step; the next check reads and clears this number. */
  int64_t overflowed;
  double nu, inner, d2, pd2; /* clip factor, <D, PD>, |D|^2, |PD|^2 of the last step */
  double ascent;             /* PD = D + ascent H of blocks with radius > 0 */
  ng_traffic
      early_traffic[NG_STATIONS]; /* traffic before the step, to be counted in each station */
  ng_station_time time[NG_STATIONS];
  int64_t waits; /* how often the host waited for the queue in the last step */
  ng_overhead overhead;
  ng_fused fused;
} ng_engine;

/* Return the worse of two statuses: the smaller one if one is an error (< 0), otherwise the larger one. */
static inline ng_status ng_worse_status(ng_status a, ng_status b) {
  if (a < 0 || b < 0) return a < b ? a : b;
  return a > b ? a : b;
}

/* ---- due work: due.c -------------------------------------------------------------------------*/

bool ng_any_block(const ng_precond *p, bool (*is)(const ng_block *b));
bool ng_block_statistics_due(const ng_block *b); /* some statistic of the block is due */
bool ng_statistic_due(const ng_block *b, const ng_stat *s);
bool ng_block_solve_due(const ng_block *b);
/* Return whether this rank adds arrays of the kinds `what` (NG_OBSERVED_ bits) to a due statistic of the block. */
bool ng_array_wanted(const ng_block *b, uint32_t what);
bool ng_block_observes_gradients(const ng_block *b);
/* Return whether the owners of A and G exchange traces in this step; equal on all ranks of a column. */
bool ng_block_exchanges_traces(const ng_block *b);

/* Observe bound gradients, for families with statistics of gradients; after an error, discard these observations. */
ng_status ng_gradients_observe(ng_precond *p);
void ng_gradients_discard(ng_precond *p);

/* Implementations of public functions; api/ has checked the arguments. */
ng_status ng_step_begin(ng_precond *p, const ng_batch *batch);
int32_t ng_step_wants(const ng_precond *p, int32_t layer);
/* s NULL: this rank has no array, because its arguments have the error `wrong`, or because it has no samples. For a sharded
 * layer, the ranks of the model group return the worst `wrong`. is_late: an array of a device, for which the call does not
 * wait. */
ng_status ng_step_observe(ng_precond *p, int32_t layer, const ng_strided *s, bool grad,
                          bool is_late, ng_status wrong);
void ng_step_reset(ng_precond *p);
/* `wrong`: NG_OK, or the error in this rank's arguments. If one rank has an error, the step fails on all ranks. */
ng_status ng_step_run(ng_precond *p, const char *call, ng_status wrong);
ng_status ng_step_sync(ng_precond *p);
/* Before the host reads or writes averages, results or moments: wait for all work of the model. Return the text of the first
 * error of the device, or NULL. After an error the numbers are invalid. */
const char *ng_step_settle(ng_precond *p);
/* The same for a call that is not collective. After an error abort the transports, so that no other rank waits for this one. */
ng_status ng_step_check_device(ng_precond *p, const char *call);
ng_status ng_step_set(ng_precond *p, const char *option, const char *value);
/* Check new options of the model, and the options of each block: these options, overridden by its line of per_layer. */
ng_status ng_model_check_options(const ng_precond *p, const ng_options *o, char *message,
                                 size_t size);
/* Set the options of a block, or of the model and all blocks; *o has been checked. */
void ng_block_set_options(ng_block *b, const ng_options *o);
void ng_model_set_options(ng_precond *p, const ng_options *o);

#endif
