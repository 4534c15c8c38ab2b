/* assign.h: ways of giving blocks to ranks, the published ones and ours.
 *
 * In:   blocks in the order of registration, of each what its statistics cost; a grid of m rows and n columns,
 *       rank = row * n + column.
 * Out:  of each block a column, whose m ranks hold its results, and of each statistic an owner in it.
 *
 * A function of its arguments alone, so every rank comes to the same answer without a word. */
#ifndef NG_ASSIGN_H
#define NG_ASSIGN_H

#include "option/option.h"

/* A statistic: what its owner has to do. */
typedef struct ng_task {
  const char *name; /* of equal costs the last name goes first, as published */
  double cost;
  int32_t owner; /* out */
  int32_t was;   /* ... before an exchange that is tried */
} ng_task;

/* A block. */
typedef struct ng_work {
  const char *name;
  ng_task *task;
  int32_t tasks;
  double each;   /* what every rank of its column has to do, or to hold */
  int32_t owner; /* out: of the first task; of a block without one any  */
  int32_t column, was;
} ng_work;

typedef struct ng_assignment {
  ng_placement placement;
  bool together; /* the tasks of a block have one owner */
  int32_t m, n;
  double weight; /* of the largest load beside the largest sum of a column: ng_assign_cost */
  ng_work *work;
  int32_t works, tasks; /* tasks: of all blocks */
  char *room;           /* ng_assign_room bytes, aligned as by malloc */
} ng_assignment;

size_t ng_assign_room(const ng_assignment *a);
void ng_assign(ng_assignment *a);

/* weight * the largest sum of costs of a rank + the largest sum of `each` of a column: what the slowest rank of
 * each kind takes. */
double ng_assign_cost(ng_assignment *a);

/* n weights in a row to contiguous parts of the least possible largest sum; late parts that would stay empty get
 * single tasks from inside (lzhangbv/kfac_pytorch, scripts).  room: 3 n + 3 doubles. */
void ng_partition(int32_t n, const double *weight, int32_t parts, int32_t *part, double *room);

/* ---- between assign.c and balance.c -----------------------------------------------------------*/

typedef struct ng_key {
  double cost;
  const char *name;
  int32_t index;
} ng_key;

/* An assignment at work. */
typedef struct ng_assigner {
  ng_assignment *a;
  double *load;           /* [m n] of each rank                       */
  double *sum, *each;     /* [n] of each column: of loads, of `each`  */
  double *peak;           /* [n] the largest load of each column      */
  double *weight, *cells; /* [N], [3 N]: for ng_partition             */
  ng_key *key;            /* [N]                                      */
  int32_t *part, *kept;   /* [N], [2 N]                               */
  int32_t *turn;          /* [n]                                      */
} ng_assigner;

double ng_work_cost(const ng_work *w);
void ng_assign_clear(ng_assigner *x);
/* Keys of blocks from the largest to the smallest; of equal ones the first stays first. */
void ng_assign_sort(ng_key *key, int32_t n);
/* A block to the ranks of a column that have least to do; all of it away. */
void ng_assign_put(ng_assigner *x, ng_work *w, int32_t column);
void ng_assign_take(ng_assigner *x, const ng_work *w);
void ng_assign_greedy(ng_assigner *x);
double ng_assign_price(const ng_assigner *x);
void ng_assign_balanced(ng_assigner *x); /* balance.c */

#endif
