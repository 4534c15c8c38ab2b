/* assign.h: assign blocks to ranks, by the published placements and ours.
 *
 * In:   blocks in the order of registration, the cost of each of their statistics; a grid of m rows and n columns,
 *       rank = row * n + column.
 * Out:  a column of each block, whose m ranks hold its results; an owner in this column of each statistic.
 *
 * The result depends on the arguments only, so all ranks compute the same without a message. */
#ifndef NG_ASSIGN_H
#define NG_ASSIGN_H

#include "option/option.h"

/* The work of the owner of a statistic. */
typedef struct ng_task {
  const char *name; /* equal costs: the last name first, as published */
  double cost;
  int32_t owner; /* out */
} ng_task;

/* The work for a block. */
typedef struct ng_work {
  const char *name;
  ng_task *task;
  int32_t tasks;
  double each;   /* cost, or memory, of every rank of its column */
  int32_t owner; /* out: of the first task; without tasks any rank of the column */
  int32_t column;
} ng_work;

typedef struct ng_assignment {
  ng_placement placement;
  bool together; /* all tasks of a block have one owner */
  int32_t m, n;
  double weight; /* of the largest load relative to `each`: see ng_assign_price */
  ng_work *work;
  int32_t works, tasks; /* tasks: of all blocks */
  char *room;           /* ng_assign_room bytes, aligned as by malloc */
} ng_assignment;

size_t ng_assign_room(const ng_assignment *a);
void ng_assign(ng_assignment *a);

/* Partition n weights into contiguous parts, minimising the largest sum. Late parts that would stay empty get single
 * weights from inside (lzhangbv/kfac_pytorch, scripts). room: 3 n + 3 doubles. */
void ng_partition(int32_t n, const double *weight, int32_t parts, int32_t *part, double *room);

/* ---- shared by assign.c and balance.c ---------------------------------------------------------*/

typedef struct ng_key {
  double cost;
  const char *name;
  int32_t index;
} ng_key;

typedef struct ng_assigner {
  ng_assignment *a;
  double *load;           /* [m n] of each rank */
  double *sum, *each;     /* [n] of each column: sum of loads, sum of `each` */
  double *peak;           /* [n] the largest load of each column */
  double *weight, *cells; /* [N], [3 N]: for ng_partition */
  ng_key *key;            /* [N] */
  int32_t *part, *kept;   /* [N + 1], [2 N] */
  int32_t *turn;          /* [n] TURNS: the next row of each column */
} ng_assigner;

double ng_work_cost(const ng_work *w);
/* Add a block to the least-loaded ranks of a column; remove a block. */
void ng_assign_put(ng_assigner *x, ng_work *w, int32_t column);
void ng_assign_take(ng_assigner *x, const ng_work *w);
/* Assign blocks, the most expensive first, each to the cheapest column. A block costs by_load x the sum of its tasks
 * + by_each x `each`. */
void ng_assign_greedy(ng_assigner *x, double by_load, double by_each);
/* weight x the largest load of a rank + the largest sum of `each` of a column. */
double ng_assign_price(const ng_assigner *x);
void ng_assign_balanced(ng_assigner *x); /* balance.c */

#endif
