/* assign.c: the placements, as a table of rules and one routine.
 *
 * In: an ng_assignment.  Out: the columns and owners in a->work.
 *
 *   round-robin  lzhangbv/kfac_pytorch: block i to rank i mod W; without `together` statistic k to rank k mod W
 *   mpd-kfac     round-robin, but not `together` if there are more ranks than blocks (distribute_layer_factors = none)
 *   kaisa        gpauloski/kfac-pytorch (SC'21): the most expensive block first, to the least-loaded column and the
 *                least-loaded rank of this column
 *   contiguous   scripts of lzhangbv/kfac_pytorch: runs of consecutive blocks, minimising the largest load
 *   spngd        chainerkfac: blocks in the order of names, in runs of nearly equal length
 *   balanced     kaisa, improved by moves and exchanges (balance.c)
 *
 * On a grid with several rows and columns, round-robin takes the rows of each column in turn.  With one row or one
 * column, this is the published rule. */
#include "model/assign.h"

#include "core/core.h"

#include <stdlib.h>

/* ---- scratch ---------------------------------------------------------------------------------*/

/* Return the next piece of a->room and add its size to *at.  If a->room is NULL, only add the size. */
static void *array_at(const ng_assignment *a, size_t *at, size_t count, size_t size) {
  char *const p = a->scratch == NULL ? NULL : a->scratch + *at;
  *at += (count * size + 15) / 16 * 16;
  return p;
}

static size_t place_arrays(ng_assignment *a, ng_assigner *x) {
  const size_t W = (size_t)a->m * (size_t)a->n, n = (size_t)a->n;
  const size_t N = (size_t)ng_max64(a->blocks, a->tasks) + 1;
  size_t at = 0;
  x->a = a;
  x->load = array_at(a, &at, W, sizeof(double));
  x->sum = array_at(a, &at, n, sizeof(double));
  x->step_cost = array_at(a, &at, n, sizeof(double));
  x->peak = array_at(a, &at, n, sizeof(double));
  x->weight = array_at(a, &at, N, sizeof(double));
  x->cells = array_at(a, &at, 3 * N, sizeof(double));
  x->key = array_at(a, &at, N, sizeof(ng_key));
  x->part = array_at(a, &at, N + 1, sizeof(int32_t)); /* also holds two saved blocks: try_columns */
  x->saved = array_at(a, &at, 2 * N, sizeof(int32_t));
  x->next_row = array_at(a, &at, n, sizeof(int32_t));
  return at;
}

size_t ng_assign_scratch(const ng_assignment *a) {
  ng_assignment none = *a;
  ng_assigner x;
  none.scratch = NULL;
  return place_arrays(&none, &x);
}

/* ---- one block -------------------------------------------------------------------------------*/

double ng_assign_block_cost(const ng_assign_block *w) {
  double cost = 0.0;
  for (int32_t i = 0; i < w->tasks; i++) {
    cost += w->task[i].cost;
  }
  return cost;
}

static void set_owner(ng_assigner *x, ng_task *t, int32_t rank) {
  t->owner = rank;
  x->load[rank] += t->cost;
  x->sum[rank % x->a->n] += t->cost;
}

/* Return the least-loaded rank of a column; of equal ranks the first. */
static int32_t least_loaded(const ng_assigner *x, int32_t column) {
  int32_t best = column;
  for (int32_t i = 1; i < x->a->m; i++) {
    const int32_t rank = i * x->a->n + column;
    if (x->load[rank] < x->load[best]) best = rank;
  }
  return best;
}

/* Return the position of task i of `w` in descending order of (cost, name). */
static int32_t sorted_index(const ng_assign_block *w, int32_t i) {
  int32_t before = 0;
  for (int32_t k = 0; k < w->tasks; k++) {
    const double d = w->task[k].cost - w->task[i].cost;
    const int by_name = strcmp(w->task[k].name, w->task[i].name);
    if (d > 0 || (d == 0 && (by_name > 0 || (by_name == 0 && k < i)))) before++;
  }
  return before;
}

void ng_assign_add(ng_assigner *x, ng_assign_block *w, int32_t column) {
  const int32_t first = least_loaded(x, column);
  w->column = column;
  w->owner = first;
  x->step_cost[column] += w->step_cost;
  for (int32_t turn = 0; turn < w->tasks; turn++) {
    for (int32_t i = 0; i < w->tasks; i++) {
      if (sorted_index(w, i) != turn) continue;
      set_owner(x, &w->task[i], x->a->one_owner ? first : least_loaded(x, column));
    }
  }
}

void ng_assign_remove(ng_assigner *x, const ng_assign_block *w) {
  x->step_cost[w->column] -= w->step_cost;
  for (int32_t i = 0; i < w->tasks; i++) {
    x->load[w->task[i].owner] -= w->task[i].cost;
    x->sum[w->column] -= w->task[i].cost;
  }
}

/* ---- rules -----------------------------------------------------------------------------------*/

typedef enum sequence { REGISTERED, BY_NAME, BY_COST } sequence;
typedef enum method {
  TURNS,   /* block i to column i mod n, and to the rows of this column in turn */
  NUMBERS, /* runs of nearly equal length: the first (blocks mod W) ranks get one block more */
  LOADS,   /* runs that minimise the largest load */
  LEAST,   /* least-loaded column, and least-loaded rank of this column */
  IMPROVED /* LEAST, improved by moves and exchanges */
} method;

static const struct rule {
  sequence order;
  method choice;
  bool spreads; /* not `together` if there are more ranks than blocks */
} rules[] = {
    [NG_PLACEMENT_ROUND_ROBIN] = {REGISTERED, TURNS, false},
    [NG_PLACEMENT_MPD_KFAC] = {REGISTERED, TURNS, true},
    [NG_PLACEMENT_KAISA] = {BY_COST, LEAST, false},
    [NG_PLACEMENT_CONTIGUOUS] = {REGISTERED, LOADS, false},
    [NG_PLACEMENT_SPNGD] = {BY_NAME, NUMBERS, false},
    [NG_PLACEMENT_KAISA_MEMORY] = {BY_COST, LEAST, false},
    [NG_PLACEMENT_BALANCED] = {BY_COST, IMPROVED, false},
};

static int by_cost(const void *a, const void *b) {
  const ng_key *x = a, *y = b;
  if (x->cost != y->cost) return x->cost > y->cost ? -1 : 1;
  return x->index - y->index;
}

static int by_name(const void *a, const void *b) {
  const ng_key *x = a, *y = b;
  const int d = strcmp(x->name, y->name);
  return d != 0 ? d : x->index - y->index;
}

static void sort(ng_assigner *x, sequence order, double by_load, double by_each) {
  const size_t n = (size_t)x->a->blocks;
  for (int32_t i = 0; i < x->a->blocks; i++) {
    const ng_assign_block *w = &x->a->block[i];
    x->key[i] = (ng_key){by_load * ng_assign_block_cost(w) + by_each * w->step_cost, w->name, i};
  }
  if (order != REGISTERED) qsort(x->key, n, sizeof *x->key, order == BY_NAME ? by_name : by_cost);
}

/* With by_load = 1 and by_each = 0 this is KAISA's greedy assignment.  Of equal columns, the first gets the block; the
 * published program takes them in the order of a hash. */
void ng_assign_greedy(ng_assigner *x, double by_load, double by_each) {
  const ng_assignment *a = x->a;
  memset(x->load, 0, (size_t)a->m * (size_t)a->n * sizeof *x->load);
  memset(x->sum, 0, (size_t)a->n * sizeof *x->sum);
  memset(x->step_cost, 0, (size_t)a->n * sizeof *x->step_cost);
  sort(x, BY_COST, by_load, by_each);
  for (int32_t i = 0; i < a->blocks; i++) {
    int32_t best = 0;
    for (int32_t c = 1; c < a->n; c++) {
      if (by_load * x->sum[c] + by_each * x->step_cost[c] <
          by_load * x->sum[best] + by_each * x->step_cost[best])
        best = c;
    }
    ng_assign_add(x, &a->block[x->key[i].index], best);
  }
}

/* Assign block i by TURNS: each statistic (`together`: each block) gets the next row of column i mod n. */
static void assign_in_turn(ng_assigner *x, ng_assign_block *w, int32_t i, bool together) {
  const int32_t n = x->a->n, m = x->a->m;
  int32_t *turn = &x->next_row[i % n];
  w->column = i % n;
  w->owner = *turn % m * n + w->column;
  for (int32_t k = 0; k < w->tasks; k++) {
    w->task[k].owner = (*turn + (together ? 0 : k)) % m * n + w->column;
  }
  *turn = (*turn + (together || w->tasks == 0 ? 1 : w->tasks)) % m;
}

/* Set part[i] to the run of block i, in the order of the keys. */
static void assign_runs(ng_assigner *x, method choice) {
  const ng_assignment *a = x->a;
  const int32_t W = a->m * a->n;
  for (int32_t i = 0; i < a->blocks; i++) {
    x->weight[i] = ng_assign_block_cost(&a->block[i]);
  }
  if (choice == LOADS) {
    ng_partition(a->blocks, x->weight, a->one_owner ? W : a->n, x->part, x->cells);
    return;
  }
  for (int32_t rank = 0, i = 0, end = 0; rank < W; rank++) {
    end += a->blocks / W + (rank < a->blocks % W);
    for (; i < end; i++) {
      x->part[i] = rank;
    }
  }
}

static void assign_all(const ng_assigner *x, ng_assign_block *w, int32_t rank) {
  w->owner = rank;
  w->column = rank % x->a->n;
  for (int32_t k = 0; k < w->tasks; k++) {
    w->task[k].owner = rank;
  }
}

/* LOADS without `together`: partition the statistics of a column over its ranks, first the first statistic of each
 * block, then the others from the last block to the first.  Pass 0 collects the costs, pass 1 assigns. */
static void assign_tasks_apart(ng_assigner *x, int32_t column) {
  const ng_assignment *a = x->a;
  int32_t count = 0;
  for (int pass = 0; pass < 2; pass++) {
    if (pass == 1) ng_partition(count, x->weight, a->m, x->part, x->cells);
    count = 0;
    for (int32_t at = 0; at < 2 * a->blocks; at++) {
      const bool first = at < a->blocks;
      const ng_assign_block *w = &a->block[first ? at : 2 * a->blocks - 1 - at];
      const int32_t end = first && w->tasks > 1 ? 1 : w->tasks;
      for (int32_t k = first ? 0 : 1; k < end && w->column == column; k++, count++) {
        if (pass == 0) {
          x->weight[count] = w->task[k].cost;
        } else {
          w->task[k].owner = x->part[count] * a->n + column;
        }
      }
    }
  }
}

void ng_assign(ng_assignment *a) {
  const struct rule *r = &rules[a->placement];
  ng_assigner x;
  (void)place_arrays(a, &x);
  memset(x.next_row, 0, (size_t)a->n * sizeof *x.next_row);
  const bool together = a->one_owner && !(r->spreads && a->m * a->n > a->blocks);
  const bool runs = r->choice == NUMBERS || r->choice == LOADS;
  if (r->choice == LEAST) ng_assign_greedy(&x, 1.0, 0.0);
  if (r->choice == IMPROVED) ng_assign_balanced(&x);
  if (r->choice <= LOADS) sort(&x, r->order, 1.0, 0.0);
  if (runs) assign_runs(&x, r->choice);
  for (int32_t i = 0; i < a->blocks; i++) {
    ng_assign_block *w = &a->block[r->choice <= LOADS ? x.key[i].index : i];
    if (r->choice == TURNS) assign_in_turn(&x, w, i, together);
    if (runs) assign_all(&x, w, x.part[i]);
    if (r->choice > LOADS && w->tasks == 0) w->owner = i % a->m * a->n + w->column;
  }
  for (int32_t c = 0; c < a->n && r->choice == LOADS && !together; c++) {
    assign_tasks_apart(&x, c);
  }
  for (int32_t i = 0; i < a->blocks; i++) {
    if (a->block[i].tasks > 0) a->block[i].owner = a->block[i].task[0].owner;
  }
}

double ng_assign_total_cost(const ng_assigner *x) {
  double load = 0.0, each = 0.0;
  for (int32_t r = 0; r < x->a->m * x->a->n; r++) {
    if (x->load[r] > load) load = x->load[r];
  }
  for (int32_t c = 0; c < x->a->n; c++) {
    if (x->step_cost[c] > each) each = x->step_cost[c];
  }
  return x->a->weight * load + each;
}
