/* setup.h: what runs once: make blocks, place them on ranks, allocate all memory; and the plan of any rank.
 *
 * In:   a model with all layers registered; options; ranks.
 * Out:  a model that can step; or bytes, messages and costs of ranks that need not exist.
 * May call: step, family, model, stat, option, comm, kernel, linalg, core.
 *
 *   blocks.c       make the blocks of a model and choose their families
 *   ready.c        ng_ready: allocate memory; compare the models of all ranks
 *   plan.c         ng_plan_ranks: count the memory and traffic of any rank, for any number of ranks
 *   shard_ranks.c  compute the shards of layers, and the ranks that hold them
 *   shard_plan.c   set up sharded layers for plan.c */
#ifndef NG_SETUP_H
#define NG_SETUP_H

#include "step/step.h"

ng_status ng_setup_ready(ng_precond *p);
/* Free all memory of ng_ready, complete or not. */
void ng_setup_release(ng_precond *p);
/* out[0..n) <- plans of ranks [first, first + n) of `ranks`; an element has `size` bytes. */
ng_status ng_setup_plan(ng_precond *p, int32_t ranks, int32_t first, int32_t n, ng_rank_plan *out,
                        size_t size);

/* Parts of ng_ready, shared with plan.c: make and place blocks; change to another rank; request all memory. */
ng_status ng_setup_place(ng_precond *p);
ng_status ng_setup_switch_rank(ng_precond *p, int32_t rank);
ng_status ng_setup_request_memory(ng_precond *p, ng_plan *plan);

ng_status ng_blocks_make(ng_precond *p);
ng_status
ng_blocks_set_holders(ng_precond *p); /* after placement: set which ranks hold each block */

/* ---- sharded layers ------------------------------------------------------------------------------*/

ng_status ng_shards_exchange(ng_precond *p);    /* collective; call before blocks are made */
ng_status ng_shards_set_primary(ng_precond *p); /* call after placement */
void ng_shards_plan_memory(const ng_precond *p,
                           ng_plan *plan); /* request memory of sharded layers */
/* For ng_plan_ranks: shard the layers named by ng_plan_shard; restore these layers before ng_setup_release. */
ng_status ng_shards_plan(ng_precond *p);
void ng_shards_unplan(ng_precond *p);
ng_status ng_shards_refuse_planned(ng_precond *p); /* at ng_ready: error after ng_plan_shard */
/* Add the traffic of sharded layers. */
void ng_shards_count(const ng_precond *p, ng_rank_plan *out);

#endif
