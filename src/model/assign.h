/* assign.h: assign blocks to ranks by a rule of the option `placement`.
 *
 * In:   blocks in the order of registration, with the cost of each statistic; a grid of m rows and n columns of ranks,
 *       rank = row * n + column.
 * Out:  for each block a column of the grid, whose m ranks store the results; for each statistic an owner in this
 *       column.
 *
 * The result depends on the arguments only, so all ranks compute the same assignment without a message. */
#ifndef NG_ASSIGN_H
#define NG_ASSIGN_H

#include "option/option.h"

/* A task: solve one statistic of a block. */
typedef struct ng_task {
  /* of several tasks with equal cost, the one with the last name is assigned first, as in the published programs */
  const char *name;
  double cost;
  int32_t owner; /* result: the rank that solves the statistic */
} ng_task;

typedef struct ng_assign_block {
  const char *name;
  ng_task *task;
  int32_t tasks;
  double step_cost; /* cost of each step on every rank of the block's column */
  int32_t
      owner; /* result: owner of the first task; of a block without tasks, any rank of the column */
  int32_t column; /* result: column of the grid */
} ng_assign_block;

typedef struct ng_assignment {
  ng_placement placement;
  bool one_owner; /* all tasks of a block have the same owner */
  int32_t m, n;   /* rows and columns of the grid */
  double weight;  /* used by `balanced`: number of solves per step, see ng_assign_total_cost */
  ng_assign_block *block;
  int32_t blocks, tasks; /* number of blocks; number of tasks of all blocks */
  char *scratch;         /* ng_assign_scratch bytes, aligned as by malloc */
} ng_assignment;

size_t ng_assign_scratch(const ng_assignment *a);
void ng_assign(ng_assignment *a);

/* Partition n weights into contiguous parts, minimising the largest sum of a part; part[i] is the part of weight i.  A
 * part that would be empty gets the last weight of another part, as in lzhangbv/kfac_pytorch. */
void ng_partition(int32_t n, const double *weight, int32_t parts, int32_t *part);

/* ---- shared by assign.c and balance.c ---------------------------------------------------------*/

/* A block in a list that is sorted by cost or name. */
typedef struct ng_key {
  double cost;
  const char *name;
  int32_t index; /* index of the block */
} ng_key;

/* The load of a rank is the sum of the costs of its tasks. */
typedef struct ng_assigner {
  ng_assignment *a;
  double *load;      /* [m n] load of each rank */
  double *sum;       /* [n] sum of the loads in each column */
  double *step_cost; /* [n] sum of `step_cost` over the blocks of each column */
  double *peak;      /* [n] largest load in each column */
  double *weight;    /* [N] for ng_partition; N: 1 + the larger of `blocks` and `tasks` */
  ng_key *key;       /* [N] blocks in the order of assignment */
  int32_t *part,
      *saved;        /* [N + 1] part of each weight, or two saved blocks; [2 N] all saved blocks */
  int32_t *next_row; /* [n] next row of each column, for round-robin */
} ng_assigner;

/* return the sum of the costs of the block's tasks */
double ng_assign_block_cost(const ng_assign_block *w);
/* Add the costs of an assigned block to its column and owners (sign = 1), or subtract them (-1). */
void ng_assign_charge(ng_assigner *x, const ng_assign_block *w, double sign);
/* Assign each task of a block to the least-loaded rank of `column`, and charge its costs. */
void ng_assign_add(ng_assigner *x, ng_assign_block *w, int32_t column);
/* Assign the blocks, the most expensive first, each to the column that is cheapest so far.  The cost of a block is
 * by_load x the cost of its tasks + by_step x `step_cost`; the cost of a column is the sum over its blocks. */
void ng_assign_greedy(ng_assigner *x, double by_load, double by_step);
/* Return `weight` x the largest load of a rank + the largest `step_cost` of a column. */
double ng_assign_total_cost(const ng_assigner *x);
void ng_assign_balanced(ng_assigner *x); /* balance.c */

#endif
