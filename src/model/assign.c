/* assign.c: the rules of the option `placement`.
 *
 *   round-robin  lzhangbv/kfac_pytorch: block i to rank i mod W; if one_owner is false, task k to rank k mod W
 *   mpd-kfac     round-robin, as if one_owner were false when there are more ranks than blocks
 *   kaisa        gpauloski/kfac-pytorch (SC'21): the most expensive block first, to the least-loaded column and the
 *                least-loaded rank of this column
 *   contiguous   scripts of lzhangbv/kfac_pytorch: runs of consecutive blocks, minimising the largest load
 *   spngd        chainerkfac: blocks in the order of names, in runs of nearly equal length
 *   balanced     kaisa, improved by moves and exchanges (balance.c)
 *
 * The published rules are for a grid with one row or one column.  On other grids round-robin assigns block i to column
 * i mod n, and to the rows of this column in turn. */
#include "model/assign.h"

#include "core/core.h"

#include <math.h>
#include <stdlib.h>

/* ---- scratch ---------------------------------------------------------------------------------*/

/* Return N: the capacity of lists of blocks and of lists of tasks. */
static size_t list_capacity(const ng_assignment *a) {
  return (size_t)ng_max64(a->blocks, a->tasks) + 1;
}

size_t ng_assign_scratch(const ng_assignment *a) {
  const size_t W = (size_t)a->m * (size_t)a->n, n = (size_t)a->n, N = list_capacity(a);
  return (W + 3 * n + N) * sizeof(double) + N * sizeof(ng_key) + (3 * N + 1 + n) * sizeof(int32_t);
}

static ng_assigner make_assigner(ng_assignment *a) {
  const size_t W = (size_t)a->m * (size_t)a->n, n = (size_t)a->n, N = list_capacity(a);
  ng_assigner x = {.a = a, .load = (double *)(void *)a->scratch};
  x.sum = x.load + W;
  x.step_cost = x.sum + n;
  x.peak = x.step_cost + n;
  x.weight = x.peak + n;
  x.key = (ng_key *)(void *)(x.weight + N);
  x.part = (int32_t *)(void *)(x.key + N);
  x.saved = x.part + N + 1;
  x.next_row = x.saved + 2 * N;
  return x;
}

/* ---- one block -------------------------------------------------------------------------------*/

double ng_assign_block_cost(const ng_assign_block *w) {
  double cost = 0.0;
  for (int32_t i = 0; i < w->tasks; i++) {
    cost += w->task[i].cost;
  }
  return cost;
}

static void add_task_cost(ng_assigner *x, const ng_task *t, double sign) {
  x->load[t->owner] += sign * t->cost;
  x->sum[t->owner % x->a->n] += sign * t->cost;
}

void ng_assign_charge(ng_assigner *x, const ng_assign_block *w, double sign) {
  x->step_cost[w->column] += sign * w->step_cost;
  for (int32_t i = 0; i < w->tasks; i++) {
    add_task_cost(x, &w->task[i], sign);
  }
}

/* Return the least-loaded rank of a column; of equally loaded ranks the first. */
static int32_t least_loaded(const ng_assigner *x, int32_t column) {
  int32_t best = column;
  for (int32_t i = 1; i < x->a->m; i++) {
    const int32_t rank = i * x->a->n + column;
    if (x->load[rank] < x->load[best]) best = rank;
  }
  return best;
}

/* Return the index of task i in the list of the block's tasks in descending order of (cost, name). */
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
  x->step_cost[column] += w->step_cost;
  for (int32_t turn = 0; turn < w->tasks; turn++) {
    for (int32_t i = 0; i < w->tasks; i++) {
      if (sorted_index(w, i) != turn) continue;
      w->task[i].owner = x->a->one_owner ? first : least_loaded(x, column);
      add_task_cost(x, &w->task[i], 1.0);
    }
  }
}

/* ---- rules -----------------------------------------------------------------------------------*/

static int compare_costs(const void *a, const void *b) {
  const ng_key *x = a, *y = b;
  if (x->cost != y->cost) return x->cost > y->cost ? -1 : 1;
  return x->index - y->index;
}

static int compare_names(const void *a, const void *b) {
  const ng_key *x = a, *y = b;
  const int d = strcmp(x->name, y->name);
  return d != 0 ? d : x->index - y->index;
}

/* Fill x->key with all blocks, sorted by `order`; NULL: in the order of registration. */
static void list_blocks(ng_assigner *x, int (*order)(const void *, const void *), double by_load,
                        double by_step) {
  for (int32_t i = 0; i < x->a->blocks; i++) {
    const ng_assign_block *w = &x->a->block[i];
    x->key[i] = (ng_key){by_load * ng_assign_block_cost(w) + by_step * w->step_cost, w->name, i};
  }
  if (order != NULL) qsort(x->key, (size_t)x->a->blocks, sizeof *x->key, order);
}

/* With by_load = 1 and by_step = 0 this is KAISA's assignment.  Of equally cheap columns the first one gets the block;
 * the published program compares them in the order of a hash. */
void ng_assign_greedy(ng_assigner *x, double by_load, double by_step) {
  const ng_assignment *a = x->a;
  memset(x->load, 0, (size_t)a->m * (size_t)a->n * sizeof *x->load);
  memset(x->sum, 0, (size_t)a->n * sizeof *x->sum);
  memset(x->step_cost, 0, (size_t)a->n * sizeof *x->step_cost);
  list_blocks(x, compare_costs, by_load, by_step);
  for (int32_t i = 0; i < a->blocks; i++) {
    int32_t best = 0;
    for (int32_t c = 1; c < a->n; c++) {
      if (by_load * x->sum[c] + by_step * x->step_cost[c] <
          by_load * x->sum[best] + by_step * x->step_cost[best])
        best = c;
    }
    ng_assign_add(x, &a->block[x->key[i].index], best);
  }
}

/* Round-robin: assign block i to column i mod n.  Each task, or with `one_owner` each block, gets the next row. */
static void assign_in_turn(ng_assigner *x, ng_assign_block *w, int32_t i, bool one_owner) {
  const int32_t n = x->a->n, m = x->a->m;
  int32_t *turn = &x->next_row[i % n];
  w->column = i % n;
  w->owner = *turn % m * n + w->column;
  for (int32_t k = 0; k < w->tasks; k++) {
    w->task[k].owner = (*turn + (one_owner ? 0 : k)) % m * n + w->column;
  }
  *turn = (*turn + (one_owner || w->tasks == 0 ? 1 : w->tasks)) % m;
}

/* Divide the blocks in the order of x->key into runs, one for each rank or column; part[i] is the run of the i-th block.
 * spngd: runs of nearly equal length, of which the first (blocks mod W) have one block more. */
static void make_runs(ng_assigner *x) {
  const ng_assignment *a = x->a;
  const int32_t W = a->m * a->n;
  for (int32_t i = 0; i < a->blocks; i++) {
    x->weight[i] = ng_assign_block_cost(&a->block[i]);
  }
  if (a->placement == NG_PLACEMENT_CONTIGUOUS) {
    ng_partition(a->blocks, x->weight, a->one_owner ? W : a->n, x->part);
    return;
  }
  for (int32_t rank = 0, i = 0, end = 0; rank < W; rank++) {
    end += a->blocks / W + (rank < a->blocks % W);
    for (; i < end; i++) {
      x->part[i] = rank;
    }
  }
}

/* Assign a block with all its tasks to one rank. */
static void assign_whole(const ng_assigner *x, ng_assign_block *w, int32_t rank) {
  w->owner = rank;
  w->column = rank % x->a->n;
  for (int32_t k = 0; k < w->tasks; k++) {
    w->task[k].owner = rank;
  }
}

/* contiguous without one_owner: partition the tasks of a column over its ranks.  The order is: the first task of
 * each block, then the other tasks from the last block to the first.  Pass 0 lists the costs, pass 1 sets the
 * owners. */
static void assign_tasks(ng_assigner *x, int32_t column) {
  const ng_assignment *a = x->a;
  int32_t count = 0;
  for (int pass = 0; pass < 2; pass++) {
    if (pass == 1) ng_partition(count, x->weight, a->m, x->part);
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
  const ng_placement rule = a->placement;
  const bool in_turn = rule == NG_PLACEMENT_ROUND_ROBIN || rule == NG_PLACEMENT_MPD_KFAC;
  const bool runs = rule == NG_PLACEMENT_CONTIGUOUS || rule == NG_PLACEMENT_SPNGD;
  const bool greedy = !in_turn && !runs;
  const bool spreads = rule == NG_PLACEMENT_MPD_KFAC && a->m * a->n > a->blocks;
  ng_assigner x = make_assigner(a);
  memset(x.next_row, 0, (size_t)a->n * sizeof *x.next_row);
  if (rule == NG_PLACEMENT_BALANCED) {
    ng_assign_balanced(&x);
  } else if (greedy) {
    ng_assign_greedy(&x, 1.0, 0.0);
  } else {
    list_blocks(&x, rule == NG_PLACEMENT_SPNGD ? compare_names : NULL, 1.0, 0.0);
  }
  if (runs) make_runs(&x);
  for (int32_t i = 0; i < a->blocks; i++) {
    ng_assign_block *w = &a->block[greedy ? i : x.key[i].index];
    if (in_turn) assign_in_turn(&x, w, i, a->one_owner && !spreads);
    if (runs) assign_whole(&x, w, x.part[i]);
    if (greedy && w->tasks == 0) w->owner = i % a->m * a->n + w->column;
  }
  for (int32_t c = 0; c < a->n && rule == NG_PLACEMENT_CONTIGUOUS && !a->one_owner; c++) {
    assign_tasks(&x, c);
  }
  for (int32_t i = 0; i < a->blocks; i++) {
    if (a->block[i].tasks > 0) a->block[i].owner = a->block[i].task[0].owner;
  }
}

double ng_assign_total_cost(const ng_assigner *x) {
  double load = 0.0, step = 0.0;
  for (int32_t r = 0; r < x->a->m * x->a->n; r++) {
    load = fmax(load, x->load[r]);
  }
  for (int32_t c = 0; c < x->a->n; c++) {
    step = fmax(step, x->step_cost[c]);
  }
  return x->a->weight * load + step;
}
