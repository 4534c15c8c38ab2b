/* balance.c: placement = balanced: a local search for the assignment with the least ng_assign_total_cost.
 *
 * The search has two starts: the assignment of kaisa, and a greedy assignment that also counts `step_cost`.  It
 * improves each start by moves and exchanges of blocks and tasks, and keeps the cheaper result; if both cost the same,
 * the first.  So the result is never more expensive than kaisa.  The number of rounds is bounded, not the time, because
 * all ranks must compute the same assignment. */
#include "model/assign.h"

#include "core/core.h"

#include <math.h>

/* Return whether a is less than b by more than the rounding of a sum. */
static bool is_below(double a, double b) { return a < b - 1e-12 * b; }

/* ---- between the ranks of a column -----------------------------------------------------------*/

/* The work that one move assigns to another rank: a block with all its tasks (one_owner), or one task. */
typedef struct unit {
  ng_assign_block *w;
  int32_t task; /* index in w->task; -1: the whole block */
} unit;

static double unit_cost(unit u) {
  return u.task < 0 ? ng_assign_block_cost(u.w) : u.w->task[u.task].cost;
}

static int32_t unit_owner(unit u) {
  if (u.w->tasks == 0) return -1;
  return u.w->task[u.task < 0 ? 0 : u.task].owner;
}

static void move_unit(ng_assigner *x, unit u, int32_t rank) {
  for (int32_t i = 0; i < u.w->tasks; i++) {
    ng_task *t = &u.w->task[i];
    if (u.task >= 0 && u.task != i) continue;
    x->load[t->owner] -= t->cost;
    x->load[rank] += t->cost;
    t->owner = rank;
  }
}

/* Set *u to the next unit of all blocks; return false after the last unit.  *next: index of the next block. */
static bool next_unit(const ng_assigner *x, int32_t *next, unit *u) {
  if (u->w != NULL && !x->a->one_owner && ++u->task < u->w->tasks) return true;
  while (*next < x->a->blocks && x->a->block[*next].tasks == 0) {
    ++*next;
  }
  if (*next == x->a->blocks) return false;
  *u = (unit){&x->a->block[(*next)++], x->a->one_owner ? -1 : 0};
  return true;
}

/* Move unit u to `rank`, and unit `with` (with.w NULL: none) from `rank` to the rank of u. */
typedef struct exchange {
  unit u, with;
  int32_t rank;
  double most; /* the larger load of the two ranks after the exchange */
} exchange;

/* Set *best to the exchange between u on rank `top` and `with` on `rank`, if it is better than *best. */
static void try_exchange(const ng_assigner *x, int32_t top, unit u, int32_t rank, unit with,
                         exchange *best) {
  const double back = with.w == NULL ? 0.0 : unit_cost(with);
  const double most = fmax(x->load[top] - unit_cost(u) + back, x->load[rank] + unit_cost(u) - back);
  if (is_below(most, best->most)) *best = (exchange){u, with, rank, most};
}

/* Make the best move or exchange between the most loaded rank and a rank of its column; return false if none lowers the
 * larger load of the two ranks. */
static bool improve_loads(ng_assigner *x) {
  const ng_assignment *a = x->a;
  int32_t top = 0, at = 0;
  if (a->m == 1) return false; /* a column has one rank, so no other owner is possible */
  for (int32_t r = 1; r < a->m * a->n; r++) {
    if (x->load[r] > x->load[top]) top = r;
  }
  exchange b = {.most = x->load[top]};
  for (unit u = {0}; next_unit(x, &at, &u);) {
    if (unit_owner(u) != top) continue;
    for (int32_t row = 0; row < a->m; row++) {
      const int32_t rank = row * a->n + top % a->n;
      if (rank != top) try_exchange(x, top, u, rank, (unit){0}, &b);
    }
    int32_t other = 0;
    for (unit v = {0}; next_unit(x, &other, &v);) {
      const int32_t rank = unit_owner(v);
      if (rank != top && rank % a->n == top % a->n) try_exchange(x, top, u, rank, v, &b);
    }
  }
  if (b.u.w == NULL) return false;
  move_unit(x, b.u, b.rank);
  if (b.with.w != NULL) move_unit(x, b.with, top);
  return true;
}

/* ---- between columns -------------------------------------------------------------------------*/

static double column_peak_load(const ng_assigner *x, int32_t c) {
  double most = 0.0;
  for (int32_t r = c; r < x->a->m * x->a->n; r += x->a->n) {
    most = fmax(most, x->load[r]);
  }
  return most;
}

/* The columns with the three largest values.  If two columns change, one of these has the largest of the other
 * values. */
typedef struct top_three {
  int32_t column[3];
} top_three;

static top_three largest_three(const double *value, int32_t n) {
  top_three p = {{-1, -1, -1}};
  for (int32_t c = 0; c < n; c++) {
    int32_t k = 3;
    for (; k > 0 && (p.column[k - 1] < 0 || value[c] > value[p.column[k - 1]]); k--) {
      if (k < 3) p.column[k] = p.column[k - 1];
    }
    if (k < 3) p.column[k] = c;
  }
  return p;
}

/* Return the largest value of all columns except c and d. */
static double largest_except(const top_three *p, const double *value, int32_t c, int32_t d) {
  for (int k = 0; k < 3; k++) {
    if (p->column[k] >= 0 && p->column[k] != c && p->column[k] != d) return value[p->column[k]];
  }
  return 0.0;
}

/* Copy the column and the owners of a block to the list `at`, or with `restore` from the list; return its end. */
static int32_t *copy_assignment(ng_assign_block *w, int32_t *at, bool restore) {
  for (int32_t i = -1; i < w->tasks; i++, at++) {
    int32_t *value = i < 0 ? &w->column : &w->task[i].owner;
    *(restore ? value : at) = *(restore ? at : value);
  }
  return at;
}

/* Move block w to column d, and block `back` (NULL: none) from column d to the column of w.  If this does not lower the
 * total cost, undo the moves and return false.  loads, steps: the largest `peak` and `step_cost` before the move. */
static bool try_column_move(ng_assigner *x, const top_three *loads, const top_three *steps,
                            ng_assign_block *w, int32_t d, ng_assign_block *back, double cost) {
  const int32_t c = w->column;
  const double weight = x->a->weight;
  const double pair_before =
      weight * fmax(x->peak[c], x->peak[d]) + fmax(x->step_cost[c], x->step_cost[d]);
  int32_t *const was = x->part, *const end = copy_assignment(w, was, false);
  ng_assign_charge(x, w, -1.0);
  if (back != NULL) {
    (void)copy_assignment(back, end, false);
    ng_assign_charge(x, back, -1.0);
    ng_assign_add(x, back, c);
  }
  ng_assign_add(x, w, d);
  const double load = fmax(column_peak_load(x, c), column_peak_load(x, d));
  const double step = fmax(x->step_cost[c], x->step_cost[d]);
  const double now = weight * fmax(load, largest_except(loads, x->peak, c, d)) +
                     fmax(step, largest_except(steps, x->step_cost, c, d));
  /* If another column also has the maximum, the total stays equal; then the cost of columns c and d must fall. */
  if (is_below(now, cost) || (now <= cost && is_below(weight * load + step, pair_before)))
    return true;
  ng_assign_charge(x, w, -1.0);
  if (back != NULL) ng_assign_charge(x, back, -1.0);
  (void)copy_assignment(w, was, true);
  ng_assign_charge(x, w, 1.0);
  if (back != NULL) {
    (void)copy_assignment(back, end, true);
    ng_assign_charge(x, back, 1.0);
  }
  return false;
}

/* Make the first improving move or exchange of a block that is in the column with the largest load or with the largest
 * `step_cost`; return false if there is none. */
static bool improve_columns(ng_assigner *x) {
  const ng_assignment *a = x->a;
  if (a->n == 1) return false;
  for (int32_t c = 0; c < a->n; c++) {
    x->peak[c] = column_peak_load(x, c);
  }
  const top_three loads = largest_three(x->peak, a->n), steps = largest_three(x->step_cost, a->n);
  const double cost = ng_assign_total_cost(x);
  for (int32_t i = 0; i < a->blocks; i++) {
    ng_assign_block *w = &a->block[i];
    if (w->column != loads.column[0] && w->column != steps.column[0]) continue;
    for (int32_t d = 0; d < a->n; d++) {
      if (d != w->column && try_column_move(x, &loads, &steps, w, d, NULL, cost)) return true;
    }
    for (int32_t k = 0; k < a->blocks; k++) {
      ng_assign_block *v = &a->block[k];
      if (v->column != w->column && try_column_move(x, &loads, &steps, w, v->column, v, cost))
        return true;
    }
  }
  return false;
}

/* ---- search ----------------------------------------------------------------------------------*/

/* Return the total cost afterwards. */
static double improve_assignment(ng_assigner *x) {
  for (int32_t round = 0; round < 4 * x->a->blocks + 16; round++) {
    if (!improve_loads(x) && !improve_columns(x)) break;
  }
  return ng_assign_total_cost(x);
}

void ng_assign_balanced(ng_assigner *x) {
  const ng_assignment *a = x->a;
  int32_t *at = x->saved;
  ng_assign_greedy(x, 1.0, 0.0);
  const double first = improve_assignment(x);
  for (int32_t i = 0; i < a->blocks; i++) {
    at = copy_assignment(&a->block[i], at, false);
  }
  ng_assign_greedy(x, a->weight / a->m, 1.0); /* the m ranks of a column share the load */
  if (is_below(improve_assignment(x), first)) return;
  at = x->saved;
  for (int32_t i = 0; i < a->blocks; i++) {
    at = copy_assignment(&a->block[i], at, true);
  }
}
