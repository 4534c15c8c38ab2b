/* assign.h: assign blocks to ranks, by the published placements and by `balanced`.
 *
 * In:   blocks in the order of registration, the cost of each of their statistics; a grid of m rows and n columns,
 *       rank = row * n + column.
 * Out:  for each block a column, whose m ranks store the results; for each statistic an owner in this column.
 *
 * The result depends on the arguments only, so all ranks compute the same assignment without a message. */
#ifndef NG_ASSIGN_H
#define NG_ASSIGN_H

#include "option/option.h"

/* A statistic: the work of its owner. */
typedef struct ng_task {
  const char *name; /* of tasks with equal cost, the last by name is assigned first, as published */
  double cost;
  int32_t owner; /* out */
} ng_task;

/* A block. */
typedef struct ng_assign_block {
  const char *name;
  ng_task *task;
  int32_t tasks;
  double step_cost; /* work of a step on every rank of the block's column */
  int32_t owner;    /* out: owner of the first task; without tasks a rank of the column */
  int32_t column;   /* out */
} ng_assign_block;

typedef struct ng_assignment {
  ng_placement placement;
  bool one_owner; /* all tasks of a block have one owner */
  int32_t m, n;   /* rows and columns of the grid */
  double weight;  /* weight of the largest load in ng_assign_total_cost */
  ng_assign_block *block;
  int32_t blocks, tasks; /* number of blocks; number of tasks of all blocks */
  char *scratch;         /* scratch of ng_assign_scratch bytes, aligned as by malloc */
} ng_assignment;

size_t ng_assign_scratch(const ng_assignment *a);
void ng_assign(ng_assignment *a);

/* Partition n weights into contiguous parts, minimising the largest sum; part[i] is the part of weight i.  A part that
 * would stay empty gets the last weight of another part (lzhangbv/kfac_pytorch).  room: 3 n + 3 doubles of scratch. */
void ng_partition(int32_t n, const double *weight, int32_t parts, int32_t *part, double *room);

/* ---- shared by assign.c and balance.c ---------------------------------------------------------*/

typedef struct ng_key {
  double cost;
  const char *name;
  int32_t index;
} ng_key;

typedef struct ng_assigner {
  ng_assignment *a;
  double *load; /* [m n] sum of the costs of each rank's tasks */
  double *sum,
      *step_cost; /* [n] sums over each column: of `load`, and of `step_cost` of its blocks */
  double *peak;   /* [n] the largest load of each column */
  double *weight, *cells; /* [N], [3 N] for ng_partition; N: 1 + the larger of works and tasks */
  ng_key *key;            /* [N] blocks in the order of assignment */
  int32_t *part, *saved;  /* [N + 1] part of each weight; [2 N] a saved assignment */
  int32_t *next_row;      /* [n] next row of each column, for TURNS */
} ng_assigner;

double ng_assign_block_cost(const ng_assign_block *w); /* sum of the costs of its tasks */
/* ng_assign_add: assign each task of a block to the least-loaded rank of `column`.  ng_assign_remove: undo this. */
void ng_assign_add(ng_assigner *x, ng_assign_block *w, int32_t column);
void ng_assign_remove(ng_assigner *x, const ng_assign_block *w);
/* Assign blocks, the most expensive first, each to the column with the least cost so far.  A block costs by_load x the
 * sum of its tasks + by_each x `each`. */
void ng_assign_greedy(ng_assigner *x, double by_load, double by_each);
/* Return weight x the largest load of a rank + the largest sum of `each` of a column. */
double ng_assign_total_cost(const ng_assigner *x);
void ng_assign_balanced(ng_assigner *x); /* balance.c */

#endif
