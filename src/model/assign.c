/* assign.c: placements that look at order and number, and the greedy one of KAISA; the room of all.
 *
 * In: an ng_assignment.  Out: columns and owners in it.
 *
 *   round-robin  lzhangbv/kfac_pytorch: block i belongs to rank i mod W; apart, statistic k to rank k mod W
 *   mpd-kfac     the same, apart where there are more ranks than blocks (its distribute_layer_factors = none)
 *   kaisa        gpauloski/kfac-pytorch (SC'21): blocks from the most expensive, each to the column with the least
 *                load, there to the rank with the least load
 *   contiguous   partition.c (scripts of lzhangbv/kfac_pytorch)
 *   spngd        chainerkfac: blocks by name, in contiguous runs of nearly equal number
 *   balanced     balance.c: ours
 *
 * With fewer rows than ranks a column comes first and the turn goes round inside it; with one column, and with
 * one row, that is as published. */
#include "model/assign.h"

#include "core/core.h"

#include <stdlib.h>

/* ---- room ------------------------------------------------------------------------------------*/

/* A piece of the room; of no room only its size. */
static void *piece(const ng_assignment *a, size_t *at, size_t count, size_t size) {
  char *const p = a->room == NULL ? NULL : a->room + *at;
  *at += (count * size + 15) / 16 * 16;
  return p;
}

static size_t carve(ng_assignment *a, ng_assigner *x) {
  const size_t W = (size_t)a->m * (size_t)a->n, n = (size_t)a->n;
  const size_t N = (size_t)ng_max64(a->works, a->tasks) + 1;
  size_t at = 0;
  x->a = a;
  x->load = piece(a, &at, W, sizeof(double));
  x->sum = piece(a, &at, n, sizeof(double));
  x->each = piece(a, &at, n, sizeof(double));
  x->peak = piece(a, &at, n, sizeof(double));
  x->weight = piece(a, &at, N, sizeof(double));
  x->cells = piece(a, &at, 3 * N, sizeof(double));
  x->key = piece(a, &at, N, sizeof(ng_key));
  x->part = piece(a, &at, N, sizeof(int32_t));
  x->kept = piece(a, &at, 2 * N, sizeof(int32_t));
  x->turn = piece(a, &at, n, sizeof(int32_t));
  return at;
}

size_t ng_assign_room(const ng_assignment *a) {
  ng_assignment none = *a;
  ng_assigner x;
  none.room = NULL;
  return carve(&none, &x);
}

void ng_assign_clear(ng_assigner *x) {
  memset(x->load, 0, (size_t)x->a->m * (size_t)x->a->n * sizeof *x->load);
  memset(x->sum, 0, (size_t)x->a->n * sizeof *x->sum);
  memset(x->each, 0, (size_t)x->a->n * sizeof *x->each);
}

/* ---- one block -------------------------------------------------------------------------------*/

double ng_work_cost(const ng_work *w) {
  double cost = 0.0;
  for (int32_t i = 0; i < w->tasks; i++) {
    cost += w->task[i].cost;
  }
  return cost;
}

static void own(ng_assigner *x, ng_task *t, int32_t rank) {
  t->owner = rank;
  x->load[rank] += t->cost;
  x->sum[rank % x->a->n] += t->cost;
}

/* The first of those of a column that have least. */
static int32_t least(const ng_assigner *x, int32_t column) {
  int32_t best = column;
  for (int32_t i = 1; i < x->a->m; i++) {
    const int32_t rank = i * x->a->n + column;
    if (x->load[rank] < x->load[best]) best = rank;
  }
  return best;
}

/* By cost, of equal cost by name, from the last to the first: the place of task i. */
static int32_t place_of(const ng_work *w, int32_t i) {
  int32_t before = 0;
  for (int32_t k = 0; k < w->tasks; k++) {
    const double d = w->task[k].cost - w->task[i].cost;
    const int by_name = strcmp(w->task[k].name, w->task[i].name);
    if (d > 0 || (d == 0 && (by_name > 0 || (by_name == 0 && k < i)))) before++;
  }
  return before;
}

void ng_assign_put(ng_assigner *x, ng_work *w, int32_t column) {
  const int32_t first = least(x, column);
  w->column = column;
  w->owner = first;
  x->each[column] += w->each;
  for (int32_t turn = 0; turn < w->tasks; turn++) {
    for (int32_t i = 0; i < w->tasks; i++) {
      if (place_of(w, i) != turn) continue;
      own(x, &w->task[i], x->a->together ? first : least(x, column));
    }
  }
}

void ng_assign_take(ng_assigner *x, const ng_work *w) {
  x->each[w->column] -= w->each;
  for (int32_t i = 0; i < w->tasks; i++) {
    x->load[w->task[i].owner] -= w->task[i].cost;
    x->sum[w->column] -= w->task[i].cost;
  }
}

/* ---- placements ------------------------------------------------------------------------------*/

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

void ng_assign_sort(ng_key *key, int32_t n) { qsort(key, (size_t)n, sizeof *key, by_cost); }

static void keys(ng_assigner *x) {
  for (int32_t i = 0; i < x->a->works; i++) {
    const ng_work *w = &x->a->work[i];
    x->key[i] = (ng_key){.cost = ng_work_cost(w), .name = w->name, .index = i};
  }
}

/* KAISA: 2.2 of its algorithm; columns in ascending order, where the published program has the order of a hash. */
void ng_assign_greedy(ng_assigner *x) {
  ng_assign_clear(x);
  keys(x);
  ng_assign_sort(x->key, x->a->works);
  for (int32_t i = 0; i < x->a->works; i++) {
    int32_t best = 0;
    for (int32_t c = 1; c < x->a->n; c++) {
      if (x->sum[c] < x->sum[best]) best = c;
    }
    ng_assign_put(x, &x->a->work[x->key[i].index], best);
  }
}

/* Block i to column i mod n; inside it statistic after statistic, or block after block, to row after row.  For
 * blocks that is rank i mod W, whatever the grid. */
static void round_robin(ng_assigner *x, bool together) {
  const int32_t n = x->a->n, m = x->a->m;
  memset(x->turn, 0, (size_t)n * sizeof *x->turn);
  for (int32_t i = 0; i < x->a->works; i++) {
    ng_work *w = &x->a->work[i];
    int32_t *turn = &x->turn[i % n];
    w->column = i % n;
    w->owner = *turn % m * n + w->column;
    for (int32_t k = 0; k < w->tasks; k++) {
      w->task[k].owner = (*turn + (together ? 0 : k)) % m * n + w->column;
    }
    *turn = (*turn + (together || w->tasks == 0 ? 1 : w->tasks)) % m;
  }
}

/* First statistics of the blocks as forward goes, then the others as backward does: weighed, then given away. */
static void contiguous_apart(ng_assigner *x, int32_t column) {
  const ng_assignment *a = x->a;
  int32_t count = 0;
  for (int pass = 0; pass < 2; pass++) {
    if (pass == 1) ng_partition(count, x->weight, a->m, x->part, x->cells);
    count = 0;
    for (int32_t at = 0; at < 2 * a->works; at++) {
      const bool first = at < a->works;
      const ng_work *w = &a->work[first ? at : 2 * a->works - 1 - at];
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

static void contiguous(ng_assigner *x) {
  const ng_assignment *a = x->a;
  for (int32_t i = 0; i < a->works; i++) {
    x->weight[i] = ng_work_cost(&a->work[i]);
  }
  ng_partition(a->works, x->weight, a->together ? a->m * a->n : a->n, x->part, x->cells);
  for (int32_t i = 0; i < a->works; i++) {
    ng_work *w = &a->work[i];
    w->owner = x->part[i];
    w->column = w->owner % a->n;
    for (int32_t k = 0; k < w->tasks; k++) {
      w->task[k].owner = w->owner;
    }
  }
  for (int32_t c = 0; c < a->n && !a->together; c++) {
    contiguous_apart(x, c);
  }
}

/* The first (blocks mod W) ranks get one more than the others. */
static void by_number(ng_assigner *x) {
  const ng_assignment *a = x->a;
  const int32_t W = a->m * a->n;
  keys(x);
  qsort(x->key, (size_t)a->works, sizeof *x->key, by_name);
  for (int32_t rank = 0, i = 0; rank < W; rank++) {
    const int32_t end = i + a->works / W + (rank < a->works % W);
    for (; i < end; i++) {
      ng_work *w = &a->work[x->key[i].index];
      w->owner = rank;
      w->column = rank % a->n;
      for (int32_t k = 0; k < w->tasks; k++) {
        w->task[k].owner = rank;
      }
    }
  }
}

void ng_assign(ng_assignment *a) {
  ng_assigner x;
  (void)carve(a, &x);
  switch (a->placement) {
  case NG_PLACEMENT_ROUND_ROBIN:
    round_robin(&x, a->together);
    break;
  case NG_PLACEMENT_MPD_KFAC:
    round_robin(&x, a->together && a->m * a->n <= a->works);
    break;
  case NG_PLACEMENT_KAISA:
    ng_assign_greedy(&x);
    break;
  case NG_PLACEMENT_CONTIGUOUS:
    contiguous(&x);
    break;
  case NG_PLACEMENT_SPNGD:
    by_number(&x);
    break;
  case NG_PLACEMENT_BALANCED:
    ng_assign_balanced(&x);
    break;
  }
  const bool weighed = a->placement == NG_PLACEMENT_KAISA || a->placement == NG_PLACEMENT_BALANCED;
  for (int32_t i = 0; i < a->works; i++) {
    ng_work *w = &a->work[i];
    if (w->tasks > 0) w->owner = w->task[0].owner;
    if (w->tasks == 0 && weighed)
      w->owner = i % a->m * a->n + w->column; /* in turn: it has no cost */
  }
}

/* ---- the price -------------------------------------------------------------------------------*/

double ng_assign_price(const ng_assigner *x) {
  double load = 0.0, each = 0.0;
  for (int32_t r = 0; r < x->a->m * x->a->n; r++) {
    if (x->load[r] > load) load = x->load[r];
  }
  for (int32_t c = 0; c < x->a->n; c++) {
    if (x->each[c] > each) each = x->each[c];
  }
  return x->a->weight * load + each;
}

double ng_assign_cost(ng_assignment *a) {
  ng_assigner x;
  (void)carve(a, &x);
  ng_assign_clear(&x);
  for (int32_t i = 0; i < a->works; i++) {
    x.each[a->work[i].column] += a->work[i].each;
    for (int32_t k = 0; k < a->work[i].tasks; k++) {
      own(&x, &a->work[i].task[k], a->work[i].task[k].owner);
    }
  }
  return ng_assign_price(&x);
}
