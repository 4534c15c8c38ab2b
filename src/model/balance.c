/* balance.c: placement = balanced: never dearer than KAISA's.
 *
 * In: an ng_assignment.  Out: owners and columns of the least price that was found, ng_assign_cost.
 *
 * Two beginnings: KAISA's, which looks at decompositions alone, and the same way of giving, with what every rank
 * of a column does in each step in the scale.  Each is improved by moving or exchanging what the dearest rank or
 * column has, as long as that helps; the cheaper of the two stays, KAISA's if they are equal.  A number of rounds
 * bounds the search, not a time: the same on all ranks. */
#include "model/assign.h"

#include "core/core.h"

static double largest(double a, double b) { return a > b ? a : b; }

/* Clearly less: no rounding of a sum. */
static bool below(double a, double b) { return a < b - 1e-12 * b; }

/* ---- inside a column: loads alone ------------------------------------------------------------*/

/* What moves as one: a block, or a statistic. */
typedef struct unit {
  ng_work *w;
  int32_t task; /* -1: all of the block */
} unit;

static double cost_of(unit u) { return u.task < 0 ? ng_work_cost(u.w) : u.w->task[u.task].cost; }

static int32_t owner_of(unit u) {
  if (u.w->tasks == 0) return -1;
  return u.w->task[u.task < 0 ? 0 : u.task].owner;
}

static void give(ng_assigner *x, unit u, int32_t rank) {
  for (int32_t i = 0; i < u.w->tasks; i++) {
    ng_task *t = &u.w->task[i];
    if (u.task >= 0 && u.task != i) continue;
    x->load[t->owner] -= t->cost;
    x->load[rank] += t->cost;
    t->owner = rank;
  }
}

/* Units one after the other; false behind the last. */
static bool next(const ng_assigner *x, int32_t *work, unit *u) {
  if (u->w != NULL && !x->a->together && ++u->task < u->w->tasks) return true;
  for (; *work < x->a->works; ++*work) {
    ng_work *w = &x->a->work[*work];
    if (w->tasks == 0) continue;
    *u = (unit){w, x->a->together ? -1 : 0};
    ++*work;
    return true;
  }
  return false;
}

typedef struct exchange {
  unit u, with; /* with.w NULL: u moves to `rank` */
  int32_t rank;
  double most; /* the larger of the two loads afterwards */
} exchange;

static void try_pair(const ng_assigner *x, int32_t top, unit u, int32_t rank, unit with,
                     exchange *b) {
  const double back = with.w == NULL ? 0.0 : cost_of(with);
  const double most = largest(x->load[top] - cost_of(u) + back, x->load[rank] + cost_of(u) - back);
  if (below(most, b->most)) *b = (exchange){u, with, rank, most};
}

/* Of the rank that has most, the unit whose going, alone or for another, leaves the least. */
static bool improve_loads(ng_assigner *x) {
  const ng_assignment *a = x->a;
  int32_t top = 0, at = 0;
  for (int32_t r = 1; r < a->m * a->n; r++) {
    if (x->load[r] > x->load[top]) top = r;
  }
  exchange b = {.most = x->load[top]};
  for (unit u = {0}; next(x, &at, &u);) {
    if (owner_of(u) != top) continue;
    for (int32_t row = 0; row < a->m; row++) {
      const int32_t rank = row * a->n + top % a->n;
      if (rank != top) try_pair(x, top, u, rank, (unit){0}, &b);
    }
    int32_t other = 0;
    for (unit v = {0}; next(x, &other, &v);) {
      const int32_t rank = owner_of(v);
      if (rank != top && rank % a->n == top % a->n) try_pair(x, top, u, rank, v, &b);
    }
  }
  if (b.u.w == NULL) return false;
  give(x, b.u, b.rank);
  if (b.with.w != NULL) give(x, b.with, top);
  return true;
}

/* ---- across columns --------------------------------------------------------------------------*/

static double peak_of(const ng_assigner *x, int32_t c) {
  double most = 0.0;
  for (int32_t r = c; r < x->a->m * x->a->n; r += x->a->n) {
    most = largest(most, x->load[r]);
  }
  return most;
}

/* The three columns that have most: of all but two others one of them is the largest. */
typedef struct podium {
  int32_t column[3];
} podium;

static podium three(const double *value, int32_t n) {
  podium p = {{-1, -1, -1}};
  for (int32_t c = 0; c < n; c++) {
    int32_t k = 3;
    for (; k > 0 && (p.column[k - 1] < 0 || value[c] > value[p.column[k - 1]]); k--) {
      if (k < 3) p.column[k] = p.column[k - 1];
    }
    if (k < 3) p.column[k] = c;
  }
  return p;
}

static double beside(const podium *p, const double *value, int32_t c, int32_t d) {
  for (int k = 0; k < 3; k++) {
    if (p->column[k] >= 0 && p->column[k] != c && p->column[k] != d) return value[p->column[k]];
  }
  return 0.0;
}

static void remember(ng_work *w) {
  w->was = w->column;
  for (int32_t i = 0; i < w->tasks; i++) {
    w->task[i].was = w->task[i].owner;
  }
}

static void as_it_was(ng_assigner *x, ng_work *w) {
  w->column = w->was;
  x->each[w->column] += w->each;
  for (int32_t i = 0; i < w->tasks; i++) {
    ng_task *t = &w->task[i];
    t->owner = t->was;
    x->load[t->owner] += t->cost;
    x->sum[w->column] += t->cost;
  }
}

/* `w` to column d, `back` (NULL: nothing) from there to w's. */
static bool try_columns(ng_assigner *x, const podium *loads, const podium *eaches, ng_work *w,
                        int32_t d, ng_work *back, double price) {
  const int32_t c = w->column;
  const double weight = x->a->weight;
  const double pair = weight * largest(x->peak[c], x->peak[d]) + largest(x->each[c], x->each[d]);
  remember(w);
  ng_assign_take(x, w);
  if (back != NULL) {
    remember(back);
    ng_assign_take(x, back);
    ng_assign_put(x, back, c);
  }
  ng_assign_put(x, w, d);
  const double load = largest(peak_of(x, c), peak_of(x, d)), each = largest(x->each[c], x->each[d]);
  const double now = weight * largest(load, beside(loads, x->peak, c, d)) +
                     largest(each, beside(eaches, x->each, c, d));
  /* of two equal columns one goes down first */
  if (below(now, price) || (now <= price && below(weight * load + each, pair))) return true;
  ng_assign_take(x, w);
  if (back != NULL) ng_assign_take(x, back);
  as_it_was(x, w);
  if (back != NULL) as_it_was(x, back);
  return false;
}

/* The first that helps: a block of the column of the largest load, or of the largest `each`. */
static bool improve_columns(ng_assigner *x) {
  const ng_assignment *a = x->a;
  if (a->n == 1) return false;
  for (int32_t c = 0; c < a->n; c++) {
    x->peak[c] = peak_of(x, c);
  }
  const podium loads = three(x->peak, a->n), eaches = three(x->each, a->n);
  const double price = ng_assign_price(x);
  for (int32_t i = 0; i < a->works; i++) {
    ng_work *w = &a->work[i];
    if (w->column != loads.column[0] && w->column != eaches.column[0]) continue;
    for (int32_t d = 0; d < a->n; d++) {
      if (d != w->column && try_columns(x, &loads, &eaches, w, d, NULL, price)) return true;
    }
    for (int32_t k = 0; k < a->works; k++) {
      ng_work *v = &a->work[k];
      if (v->column != w->column && try_columns(x, &loads, &eaches, w, v->column, v, price))
        return true;
    }
  }
  return false;
}

/* ---- the whole -------------------------------------------------------------------------------*/

static double improve(ng_assigner *x) {
  for (int32_t round = 0; round < 4 * x->a->works + 16; round++) {
    if (!improve_loads(x) && !improve_columns(x)) break;
  }
  return ng_assign_price(x);
}

static void keep(const ng_assigner *x) {
  int32_t *to = x->kept;
  for (int32_t i = 0; i < x->a->works; i++) {
    const ng_work *w = &x->a->work[i];
    *to++ = w->column;
    for (int32_t k = 0; k < w->tasks; k++) {
      *to++ = w->task[k].owner;
    }
  }
}

static void take_back(ng_assigner *x) {
  const int32_t *from = x->kept;
  for (int32_t i = 0; i < x->a->works; i++) {
    ng_work *w = &x->a->work[i];
    w->column = *from++;
    for (int32_t k = 0; k < w->tasks; k++) {
      w->task[k].owner = *from++;
    }
  }
}

/* As ng_assign_greedy, with the whole price of a block in its order and of a column in the choice. */
static void greedy_by_price(ng_assigner *x) {
  const ng_assignment *a = x->a;
  const double weight = a->weight / a->m; /* the ranks of a column share its loads */
  ng_assign_clear(x);
  for (int32_t i = 0; i < a->works; i++) {
    const ng_work *w = &a->work[i];
    x->key[i] = (ng_key){.cost = weight * ng_work_cost(w) + w->each, .index = i};
  }
  ng_assign_sort(x->key, a->works);
  for (int32_t i = 0; i < a->works; i++) {
    int32_t best = 0;
    for (int32_t c = 1; c < a->n; c++) {
      if (weight * x->sum[c] + x->each[c] < weight * x->sum[best] + x->each[best]) best = c;
    }
    ng_assign_put(x, &a->work[x->key[i].index], best);
  }
}

void ng_assign_balanced(ng_assigner *x) {
  ng_assign_greedy(x);
  const double first = improve(x);
  keep(x);
  greedy_by_price(x);
  if (!below(improve(x), first)) take_back(x);
}
