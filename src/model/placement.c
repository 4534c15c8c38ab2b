/* placement.c: which rank has what.
 *
 * In: the number of ranks, placement, grad_worker_fraction, statistics.  Out: for every block the
 * column of ranks that can make PD of it, and for each of its statistics the rank that solves it and
 * those that observe and keep it.
 *
 * W ranks are a grid of m rows and n = W/m columns, rank = row * n + column.  The m ranks of a block's
 * column hold its results (spec: KAISA's gradient workers, SC'21), every row receives PD from the member
 * of that column in it.  m = W: everybody holds everything; m = 1: the owner only.  More rows mean
 * more memory and less traffic in every step: the published COMM-OPT, HYBRID-OPT and MEM-OPT are m
 * = W, in between, and 1. */
#include "model/model.h"

#include <math.h>

ng_status ng_grid_make(ng_precond *p) {
  const int32_t W = p->ctx->ranks;
  const double workers = p->base.grad_worker_fraction * W;
  int32_t m = (int32_t)lround(workers); /* fraction W, at least 1 */
  if (m < 1) m = 1;
  /* 0 is the least there is, and one rank is all of one: as published. */
  const bool free = p->base.grad_worker_fraction == 0.0 || W == 1;
  if (W % m != 0 || (!free && fabs(workers - m) > 1e-6 * W)) {
    return ng_fail(p->ctx, NG_ERR_ARG,
                   "grad_worker_fraction is %g: %g of %d ranks, expected a whole number that "
                   "divides %d",
                   p->base.grad_worker_fraction, workers, W, W);
  }
  p->grid.m = m;
  p->grid.n = W / m;
  p->grid.row = p->ctx->rank / p->grid.n;
  p->grid.column = p->ctx->rank % p->grid.n;
  p->grid.ranks = ng_object(p, (size_t)W * sizeof *p->grid.ranks);
  if (p->grid.ranks == NULL) return ng_fail(p->ctx, NG_ERR_NOMEM, "ng_ready: no memory");
  return NG_OK;
}

/* Collective: every rank makes every column, then every row, and keeps its own.  Ranks have one kind of
 * transport, so all of them lack groups or none. */
ng_status ng_grid_groups(ng_precond *p) {
  ng_comm *c = p->ctx->comm;
  ng_grid *g = &p->grid;
  g->column_group = g->row_group = ng_group_world(c);
  if (g->m == c->size || g->m == 1) return NG_OK; /* one of them is the world, the other single */
  if (c->t.group_create == NULL) {
    return ng_fail(p->ctx, NG_ERR_ABSENT,
                   "grad_worker_fraction is %g, but the transport '%s' has no groups; use 0 or 1",
                   p->base.grad_worker_fraction, c->t.name == NULL ? "" : c->t.name);
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
  ng_object_free(p, p->grid.ranks, (size_t)p->ctx->ranks * sizeof *p->grid.ranks);
  memset(&p->grid, 0, sizeof p->grid);
}

/* placement = round-robin: block i, rank i mod W, all of its statistics.  As in
 * lzhangbv/kfac_pytorch; it looks at no cost, so with few layers one rank may solve most of what
 * there is.  A function of the number alone: every rank places every block without a word. */
void ng_place_block(ng_block *b) {
  b->owner = b->number % b->ctx->ranks;
  b->column = b->owner % b->p->grid.n;
}

/* Every statistic has the owner of its block here (step/ready.c has set it); ctx->place, of tests,
 * may move it to another rank of the block's column, so owners of one block may differ.  LOCAL: the
 * owner's own samples, nobody else looks (DP-KFAC, arXiv 2206.15143). */
void ng_place_stats(ng_block *b) {
  const int32_t rank = b->ctx->rank, ranks = b->ctx->ranks;
  b->keeps = b->keeps_everywhere = true;
  for (int32_t i = 0; i < b->stats; i++) {
    ng_stat *s = &b->stat[i];
    if (b->ctx->place != NULL) b->ctx->place(b, s);
    const bool own = s->owner == rank;
    /* What is added straight into an average needs one on every rank that observes. */
    if (s->spread == NG_SPREAD_OWNER) s->rule.direct = false;
    s->observes = s->spread != NG_SPREAD_LOCAL || own;
    const bool everywhere = s->spread == NG_SPREAD_ALL || s->spread == NG_SPREAD_SAME;
    s->keeps = own || everywhere;
    s->observers = ng_stat_sent(s) ? ranks : 1;
    b->keeps = b->keeps && s->keeps;
    b->keeps_everywhere = b->keeps_everywhere && everywhere;
  }
}
