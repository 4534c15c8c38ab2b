/* placement.c: make the grid of ranks; compute the costs by which assign.c assigns blocks and statistics to ranks; set
 * which ranks observe and store a statistic.
 *
 * W ranks form a grid of m rows and n = W/m columns, rank = row * n + column.  The m ranks of a block's column store
 * the results (KAISA's gradient workers, SC'21).  In each row, the rank in this column sends PD to the other ranks of
 * the row.  More rows need more memory and less traffic: m = W is the published COMM-OPT, m = 1 is MEM-OPT, and 1 < m <
 * W is HYBRID-OPT. */
#include "model/assign.h"
#include "model/model.h"

#include <math.h>

/* ---- the grid --------------------------------------------------------------------------------*/

/* Append ", 1/6, 1/3, 1/2 or 1" to a text, which is truncated to `size` bytes. */
static void list_legal_fractions(int32_t W, char *text, size_t size) {
  for (int32_t m = 1; m <= W; m++) {
    char one[32];
    if (W % m != 0) continue;
    (void)snprintf(one, sizeof one, m == W ? " or 1" : ", 1/%d", W / m);
    ng_name_append(text, size, one);
  }
}

ng_status ng_grid_make(ng_precond *p) {
  const int32_t W = p->ctx->ranks;
  const double workers = p->opt.base.grad_worker_fraction * W;
  int32_t m = (int32_t)lround(workers);
  if (m < 1) m = 1;
  /* As published, the fraction 0 means one worker, and any fraction is valid for a single rank. */
  const bool any = p->opt.base.grad_worker_fraction == 0.0 || W == 1;
  if (W % m != 0 || (!any && fabs(workers - m) > 1e-6 * W)) {
    char legal[200] = "0";
    list_legal_fractions(W, legal, sizeof legal);
    return ng_fail(p->ctx, NG_ERR_ARG,
                   "grad_worker_fraction is %g: %g of %d ranks, expected a whole number that "
                   "divides %d: %s",
                   p->opt.base.grad_worker_fraction, workers, W, W, legal);
  }
  p->grid.m = m;
  p->grid.n = W / m;
  p->grid.row = p->ctx->rank / p->grid.n;
  p->grid.column = p->ctx->rank % p->grid.n;
  p->grid.ranks = ng_object(p, (size_t)W * sizeof *p->grid.ranks);
  return ng_objects_status(p);
}

/* Collective.  All ranks create the groups of all columns and all rows; each rank then destroys the groups to which it
 * does not belong. */
ng_status ng_grid_groups(ng_precond *p) {
  ng_comm *c = p->ctx->comm;
  ng_grid *g = &p->grid;
  g->column_group = g->row_group = ng_group_world(c);
  /* with m = W or m = 1, one group has all ranks and the other only this rank, which sends nothing */
  if (g->m == c->size || g->m == 1) return NG_OK;
  if (c->t.group_create == NULL) {
    return ng_fail(p->ctx, NG_ERR_ABSENT,
                   "grad_worker_fraction is %g, but the transport '%s' has no groups; use 0 or 1",
                   p->opt.base.grad_worker_fraction, c->t.name == NULL ? "" : c->t.name);
  }
  for (int32_t k = 0; k < g->n + g->m; k++) {
    const bool column = k < g->n;
    const int32_t count = column ? g->m : g->n, first = column ? k : (k - g->n) * g->n;
    for (int32_t i = 0; i < count; i++) {
      g->ranks[i] = column ? first + i * g->n : first + i;
    }
    ng_group made;
    const ng_status st = ng_group_create(c, g->ranks, count, &made);
    if (st != NG_OK) {
      return ng_fail(p->ctx, NG_ERR_COMM, "ng_ready: the transport could not make its groups");
    }
    if (column && k == g->column) {
      g->column_group = made;
    } else if (!column && k - g->n == g->row) {
      g->row_group = made;
    } else {
      ng_group_destroy(c, &made);
    }
  }
  return NG_OK;
}

void ng_grid_release(ng_precond *p) {
  if (p->grid.m > 1 && p->grid.m < p->ctx->ranks) {
    ng_group_destroy(p->ctx->comm, &p->grid.column_group);
    ng_group_destroy(p->ctx->comm, &p->grid.row_group);
  }
  memset(&p->grid, 0, sizeof p->grid);
}

/* ---- owners ----------------------------------------------------------------------------------*/

/* KAISA's costs: n^3 operations, or n^2 numbers, for each symmetric matrix of order n.  For another part, both costs
 * are its number of elements. */
double ng_stat_cost(const ng_stat *s, bool memory) {
  double sum = 0.0;
  for (int32_t k = 0; k < s->parts; k++) {
    const double n = (double)s->part[k].rows;
    const double square = s->symmetric ? n * n : (double)ng_stat_part_count(s, &s->part[k]);
    sum += (double)s->part[k].matrices * (s->symmetric && !memory ? n * square : square);
  }
  return sum;
}

/* Return p q (p + q) for a layer with factors A [p, p] and G [q, q], the number of multiplications of G^-1 D A^-1, and the
 * family's own cost. */
double ng_block_apply_cost(const ng_block *b) {
  double elements = 0.0, orders = 0.0;
  for (int32_t i = 0; i < b->segments; i++) {
    elements += (double)b->segment[i].count;
  }
  for (int32_t k = 0; k < b->stats; k++) {
    if (b->stat[k].symmetric) orders += (double)b->stat[k].part[0].rows;
  }
  return elements * orders + b->direction_cost;
}

/* Return the operations for the PD of a block in a step: two products with each eigenbasis, or one with each
 * inverse. */
static double direction_cost(const ng_block *b) {
  return (ng_is_eigen(b->base.solver) ? 4.0 : 2.0) * ng_block_apply_cost(b);
}

/* Return the weight of solves relative to matrix products, as in `natgrad plan`.  A Cholesky inverse takes n^3
 * operations and an eigendecomposition 9 n^3, at 1/20 of the rate of products, once in solve_period steps. */
static double solve_weight(const ng_settings *o) {
  return (ng_is_eigen(o->solver) ? 9.0 : 1.0) * 20.0 / (double)o->solve_period;
}

/* With statistics = local an owner uses its own samples.  A and G of a layer must come from the same samples, so they
 * must have the same owner, as in the published DP classes. */
static ng_placement effective_placement(const ng_settings *o) {
  const bool local = o->statistics == NG_STATISTICS_LOCAL;
  return o->placement == NG_PLACEMENT_MPD_KFAC && local ? NG_PLACEMENT_ROUND_ROBIN : o->placement;
}

ng_status ng_place_blocks(ng_precond *p) {
  const bool memory = p->opt.base.placement == NG_PLACEMENT_KAISA_MEMORY;
  ng_assignment a = {.placement = effective_placement(&p->opt.base),
                     .one_owner = p->opt.base.colocate,
                     .m = p->grid.m,
                     .n = p->grid.n,
                     .weight = solve_weight(&p->opt.base),
                     .blocks = p->blocks,
                     .tasks = p->stats};
  ng_task *const task = ng_object(p, (size_t)a.tasks * sizeof *task);
  a.block = ng_object(p, (size_t)a.blocks * sizeof *a.block);
  a.scratch = ng_object(p, ng_assign_scratch(&a));
  if (ng_objects_status(p) != NG_OK) return NG_ERR_NOMEM;
  for (int32_t i = 0; i < p->stats; i++) {
    const ng_stat *s = p->stat[i].stat;
    task[i] = (ng_task){.name = s->name, .cost = ng_stat_cost(s, memory)};
  }
  for (int32_t i = 0, at = 0; i < p->blocks; at += p->block[i++]->stats) {
    const ng_block *b = p->block[i];
    a.block[i] = (ng_assign_block){
        .name = b->name, .task = task + at, .tasks = b->stats, .step_cost = direction_cost(b)};
  }
  ng_assign(&a);
  for (int32_t i = 0; i < p->blocks; i++) {
    p->block[i]->owner = a.block[i].owner;
    p->block[i]->column = a.block[i].column;
  }
  for (int32_t i = 0; i < p->stats; i++) {
    p->stat[i].stat->owner = task[i].owner;
  }
  ng_object_free(p, a.scratch);
  ng_object_free(p, a.block);
  ng_object_free(p, task);
  return NG_OK;
}

/* With NG_SPREAD_LOCAL only the owner of a statistic observes the statistic (DP-KFAC, arXiv 2206.15143).  Tests may set
 * ctx->set_test_owner to move this owner to another rank of the block's column of the rank grid. */
void ng_place_stats(ng_block *b) {
  const int32_t rank = b->ctx->rank, ranks = b->ctx->ranks;
  b->has_averages = b->averages_everywhere = true;
  b->owners_differ = false;
  for (int32_t i = 0; i < b->stats; i++) {
    ng_stat *s = &b->stat[i];
    if (b->ctx->set_test_owner != NULL) b->ctx->set_test_owner(b, s);
    const bool own = s->owner == rank;
    s->observes = s->spread != NG_SPREAD_LOCAL || own;
    const bool everywhere = s->spread == NG_SPREAD_ALL || s->spread == NG_SPREAD_SAME;
    s->has_average = own || everywhere;
    s->observers = ng_stat_is_sent(s) ? ranks : 1;
    b->has_averages = b->has_averages && s->has_average;
    b->owners_differ = b->owners_differ || (!everywhere && s->owner != b->stat[0].owner);
    b->averages_everywhere = b->averages_everywhere && everywhere;
  }
}
