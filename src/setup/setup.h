/* setup.h: ng_ready (make blocks, place them on ranks, allocate all memory), and ng_plan_ranks (predict the memory and
 * messages of any rank).
 *
 * In:   a model with all layers registered; options; ranks.
 * Out:  a model that can step; or bytes, messages and costs of ranks, which need not exist.
 * May call: step, family, model, stat, option, comm, kernel, linalg, core.
 *
 *   blocks.c       make the blocks of a model and choose their families
 *   ready.c        ng_ready: allocate memory; compare the models of all ranks
 *   plan.c         ng_plan_ranks: count the memory and messages of any rank, for any number of ranks
 *   shard_ranks.c  exchange the widths of shards between ranks, make the whole layers, plan their memory
 *   shard_plan.c   make the sharded layers for ng_plan_ranks, without an exchange */
#ifndef NG_SETUP_H
#define NG_SETUP_H

#include "step/step.h"

ng_status ng_setup_ready(ng_precond *p);
/* Free all memory of ng_ready, also after ng_ready has failed. */
void ng_setup_release(ng_precond *p);
/* Set out[i] to the plan of rank first + i of `ranks`, for i in [0, n).  Elements of `out` have `size` bytes. */
ng_status ng_setup_plan(ng_precond *p, int32_t ranks, int32_t first, int32_t n, ng_rank_plan *out,
                        size_t size);

/* Steps of ng_ready that ng_plan_ranks runs, too: make and place blocks; request the memory of this rank.
 * ng_setup_switch_rank: change what depends on the number of this rank, for a plan. */
ng_status ng_setup_place(ng_precond *p);
ng_status ng_setup_switch_rank(ng_precond *p, int32_t rank);
ng_status ng_setup_request_memory(ng_precond *p, ng_plan *plan);

ng_status ng_blocks_make(ng_precond *p);
/* Set which blocks this rank can compute PD of, and which statistics it observes and stores. */
ng_status ng_blocks_set_workers(ng_precond *p);

/* ---- sharded layers ------------------------------------------------------------------------------*/

ng_status ng_shards_exchange(ng_precond *p); /* collective; call before blocks are made */
/* Allocate the lists of ng_shards for model groups of `members` ranks. */
ng_status ng_shards_alloc(ng_precond *p, int32_t members);
/* After placement: set on which rank of each model group observations of a sharded layer count. */
ng_status ng_shards_set_primary(ng_precond *p);
void ng_shards_plan_memory(const ng_precond *p, ng_plan *plan);
/* For ng_plan_ranks: shard the layers named by ng_plan_shard, as ng_shards_exchange would.  ng_shards_undo_planned: restore
 * them, before ng_setup_release. */
ng_status ng_shards_make_planned(ng_precond *p);
void ng_shards_undo_planned(ng_precond *p);
/* call in ng_ready: fail if ng_plan_shard was called */
ng_status ng_shards_refuse_planned(ng_precond *p);
/* Add the messages of sharded layers to a plan. */
void ng_shards_count(const ng_precond *p, ng_rank_plan *out);

#endif
