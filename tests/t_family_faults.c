/* t_family_faults.c: what went wrong once with families of others, one test each, in the mixed model of
 * family_life.h; and what a family may not ask for. */
#include "family_life.h"
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define COMMON "damping=0.3 stat_decay=0.9 solve_period=1 clip=none "

/* ---- ranks -----------------------------------------------------------------------------------*/

static bool first_fits(const ng_settings *o, const ng_entry *e) {
  (void)o;
  return strcmp(e->d.name, "fc") == 0;
}

/* Sums that are sent, around sums that only their owner has: every rank cuts the same messages.  (Three
 * ranks failed: who had the local sums sent one message more.) */
static void test_messages(void **state) {
  (void)state;
  ng_family first = toy_total; /* of its own statistic: before conv, whose factors are local */
  first.name = "first";
  first.scope = NG_SCOPE_LAYER;
  first.fits = first_fits;
  for (int32_t ranks = 2; ranks <= MOST_RANKS; ranks++) {
    life *l = new_life(COMMON "statistics=local grad_worker_fraction=0", ranks);
    l->extra = &first;
    free(lived(l));
  }
}

/* PD of a rank-one layer that only its owner can make: its norms come from what was delivered. */
static void test_delivered_norms(void **state) {
  (void)state;
  free(lived(
      new_life("damping=0.3 clip=rms clip_bound=0.1 statistics=local grad_worker_fraction=0", 2)));
}

/* A and G on different ranks: what divides ahead is made when the block was solved, not when another
 * was. */
static void apart(ng_block *b, ng_stat *s) {
  const ng_grid *g = &b->p->grid;
  s->owner = b->column + (int32_t)(s - b->stat + b->number) % g->m * g->n;
}

static ng_status own_period(int32_t rank, ng_precond *p, int32_t step) {
  (void)rank;
  if (step > 0 && ng_set_real(p, "damping", step == 1 ? 0.15 : 0.075) != NG_OK) return NG_ERR_STATE;
  p->block[1]->base.solve_period = 1;
  ng_step_values(p);
  return NG_OK;
}

static void test_divided_ahead(void **state) {
  (void)state;
  const char *set =
      "solver=eigen damping_split=joint prediv=1 damping=0.3 clip=none solve_period=3";
  for (int32_t ranks = 2; ranks <= 3; ranks++) {
    life *l = new_life(set, ranks), *together = new_life(set, ranks);
    l->place = apart;
    l->hook = together->hook = own_period;
    same_from(lived(l), lived(together), 0);
    free(l);
    free(together);
  }
}

/* ---- steps that do not begin -----------------------------------------------------------------*/

/* Step 1 is called without one of the gradients, then as it should be. */
static ng_status trip(int32_t rank, ng_precond *p, int32_t step) {
  ng_slot *s = &p->entry[PLAIN - 1]->slot[NG_WEIGHT]; /* all.fc: bound again below */
  const ng_place bound = s->grad;
  (void)rank;
  if (step != 1) return NG_OK;
  s->grad.data = NULL;
  if (ng_step(p, 0.1) != NG_ERR_STATE) return NG_ERR_ARG;
  s->grad = bound;
  return NG_OK;
}

/* ... on one rank only: the others have looked at their gradients by then. */
static ng_status trip_one(int32_t rank, ng_precond *p, int32_t step) {
  ng_slot *s = &p->entry[TOY]->slot[NG_WEIGHT];
  const ng_place bound = s->grad;
  if (step != 1) return NG_OK;
  if (rank == 1) s->grad.data = NULL;
  if (ng_step(p, 0.1) != NG_ERR_STATE) return NG_ERR_ARG;
  s->grad = bound;
  return NG_OK;
}

static void test_tripped(void **state) {
  (void)state;
  static const char *const set[] = {COMMON "fold=sum", COMMON "fold=direct"};
  for (int f = 0; f < 2; f++) {
    for (int32_t ranks = 2; ranks <= 3; ranks++) {
      for (int k = 0; k < 2; k++) {
        life *l = new_life(set[f], ranks), *good = lived(new_life(set[f], ranks));
        l->hook = k == 0 ? trip : trip_one;
        same_from(lived(l), good, 0);
        free(l);
        free(good);
      }
    }
  }
}

/* Posted, and then not due because the period was changed: nothing stays under way. */
static ng_status late_period(int32_t rank, ng_precond *p, int32_t step) {
  (void)rank;
  return step == 1 ? ng_set(p, "stat_period", "3") : NG_OK;
}

static void test_period_changed(void **state) {
  (void)state;
  life *l = new_life(COMMON, 2), *waited = new_life(COMMON, 2);
  l->hook = waited->hook = late_period;
  l->post_until = 2;
  l->post = true;
  same_from(lived(l), lived(waited), 0);
  free(l);
  free(waited);
}

/* ---- refused at ng_ready, by name ------------------------------------------------------------*/

static void refused(life *l, const char *says) {
  assert_int_equal(ranks_run(l->ranks, life_of, l, NULL), NG_ERR_ARG);
  for (int32_t r = 0; r < l->ranks; r++) {
    if (strstr(l->why[r], says) == NULL) fail_msg("rank %d: '%s', not '%s'", r, l->why[r], says);
  }
  free(l);
}

static void far_owner(ng_block *b, ng_stat *s) { s->owner = b->ctx->ranks; }
static void other_column(ng_block *b, ng_stat *s) { s->owner = (b->column + 1) % b->p->grid.n; }
static void split_owners(ng_block *b, ng_stat *s) {
  if (b->stats == 2) s->spread = NG_SPREAD_OWNER;
  s->owner = (int32_t)(s - b->stat) % b->ctx->ranks;
}
/* One rank thinks that another solves: its messages would be other ones. */
static void own_idea(ng_block *b, ng_stat *s) {
  if (b->ctx->rank == 1) s->owner = (s->owner + 1) % b->ctx->ranks;
}

static void test_other_owners(void **state) {
  (void)state;
  life *l = new_life(COMMON "grad_worker_fraction=1", 3);
  l->place = own_idea;
  assert_int_equal(ranks_run(l->ranks, life_of, l, NULL), NG_ERR_COMM);
  for (int32_t r = 0; r < l->ranks; r++)
    assert_non_null(strstr(l->why[r], "1 of 3 ranks have other owners of blocks than rank 0"));
  free(l);
}

static void half_vector(ng_block *b, ng_stat *s) {
  if (!s->symmetric) s->kept = NG_BF16;
  (void)b;
}
static void wide_average(ng_block *b, ng_stat *s) {
  if (s->rule.averaged) s->wire = NG_F64;
  (void)b;
}
static void sees_two(ng_block *b, ng_stat *s) {
  s->sees = NG_SEES_INPUT | NG_SEES_OUTGRAD;
  (void)b;
}

static void test_refused(void **state) {
  (void)state;
  static const struct {
    void (*place)(ng_block *b, ng_stat *s);
    const char *set, *says;
  } wrong[] = {
      {far_owner, COMMON, "its owner is no rank of the block's column"},
      {other_column, COMMON "grad_worker_fraction=0", "its owner is no rank of the block's column"},
      {split_owners, COMMON,
       "another statistic, which the family needs beside it, has another owner"},
      {half_vector, COMMON, "averages are f32"},
      {wide_average, COMMON, "over sums in f32"},
      {sees_two, COMMON, "from one thing"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    life *l = new_life(wrong[i].set, 2);
    l->place = wrong[i].place;
    refused(l, wrong[i].says);
  }
  ng_family named = toy_total; /* "plain" is a tensor of the model: two keys of one name */
  named.name = "plain";
  life *l = new_life(COMMON, 1);
  named.fits = first_fits;
  l->extra = &named;
  refused(l, "'plain' has the name of a family");
  ng_family shares = toy_diagonal;
  shares.name = "shares";
  shares.create = toy_total.create; /* partial, and something to solve */
  shares.destroy = toy_total.destroy;
  shares.fits = first_fits;
  l = new_life(COMMON "grad_worker_fraction=0", 2);
  l->extra = &shares;
  refused(l, "needs grad_worker_fraction = 1");
}

/* A family is asked about values that ng_set would give its block. */
static ng_status no_half(const ng_options *o, const ng_settings *s, char *message, size_t size) {
  (void)o;
  if (s->damping != 0.5) return NG_OK;
  return ng_fail_to(message, size, NG_ERR_ARG, "damping = 0.5 is not for toys");
}

static ng_status set_half(int32_t rank, ng_precond *p, int32_t step) {
  (void)rank;
  if (step != 1) return NG_OK;
  const double before = p->block[0]->base.damping;
  if (ng_set(p, "damping", "0.5") != NG_ERR_ARG) return NG_ERR_STATE;
  if (strstr(ng_last_error(p->ctx), "not for toys") == NULL) return NG_ERR_STATE;
  return p->block[0]->base.damping == before ? NG_OK : NG_ERR_STATE;
}

static void test_set(void **state) {
  (void)state;
  ng_family picky = toy_diagonal;
  picky.name = "picky";
  picky.check = no_half;
  life *l = new_life(COMMON, 1);
  l->extra = &picky;
  l->hook = set_half;
  free(lived(l));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_messages),       cmocka_unit_test(test_delivered_norms),
      cmocka_unit_test(test_divided_ahead),  cmocka_unit_test(test_tripped),
      cmocka_unit_test(test_period_changed), cmocka_unit_test(test_refused),
      cmocka_unit_test(test_other_owners),   cmocka_unit_test(test_set),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
