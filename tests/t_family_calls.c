/* t_family_calls.c: what the engine expects of the functions of a family (family/family.h): owners, delivered
 * directions, failed observations, `check`, periods; and families that ng_ready refuses.  Runs that must be equal have
 * the same bits. */
#include "family_toys.h"
#include "fixture.h"
#include "step/step.h"
#include "unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void use_only_on_owner(ng_block *b, ng_stat *s) {
  if (s->rule.averaged) s->spread = NG_SPREAD_OWNER;
}

static void emit_doubled(const ng_block *b, int32_t k, int32_t g, double factor, ng_direction *e) {
  toy_diagonal.emit(b, k, g, factor, e);
  e->scale = 2.0 * factor;
}

static void receivers_get_the_scaled_direction(void **state) {
  ng_family twice = toy_diagonal;
  twice.name = "twice";
  twice.emit = emit_doubled;
  family_runs_must_match(new_run_with(&twice, UNCLIPPED "grad_worker_fraction=1", 2),
                         new_run_with(&twice, UNCLIPPED "grad_worker_fraction=0", 2), 0);
}

/* ---- ranks -----------------------------------------------------------------------------------*/

static bool fits_layer_fc(const ng_settings *o, const ng_entry *e) {
  return strcmp(e->d.name, "fc") == 0;
}

/* Statistics that are summed over ranks alternate with statistics of one rank: all ranks send the same messages. */
static void messages_agree_beside_local_statistics(void **state) {
  ng_family first = toy_total; /* its block comes before "conv", whose factors are local */
  first.name = "first";
  first.scope = NG_SCOPE_LAYER;
  first.accepts_entry = fits_layer_fc;
  family_run *one = new_run_with(&first, UNCLIPPED, 1);
  (void)family_must_train(one);
  for (int32_t ranks = 2; ranks <= FAMILY_RANKS; ranks++) {
    family_run *run =
        new_run_with(&first, UNCLIPPED "statistics=local grad_worker_fraction=0", ranks);
    family_must_be_close(family_must_train(run), one); /* all ranks have the same samples */
    free(run);
  }
  free(one);
  /* only the owner of a rank-one layer computes the norms for clip = rms */
  free(family_must_train(
      new_run("damping=0.3 clip=rms clip_bound=0.1 statistics=local grad_worker_fraction=0", 2)));
}

/* A and G have different owners: eigen-prediv computes the divisors of a block in the steps that solve this block. */
static void separate_a_and_g(ng_block *b, ng_stat *s) {
  const ng_grid *g = &b->p->grid;
  s->owner = b->column + (int32_t)(s - b->stat + b->index) % g->m * g->n;
}

static ng_status solve_block_1_each_step(int32_t rank, ng_precond *p, int32_t step) {
  if (step > 0 && ng_set_real(p, "damping", step == 1 ? 0.15 : 0.075) != NG_OK) return NG_ERR_STATE;
  p->block[1]->base.solve_period = 1;
  return NG_OK;
}

static void divisors_are_computed_with_their_block(void **state) {
  const char *set = "solver=eigen-prediv damping_split=joint damping=0.3 clip=none solve_period=3";
  for (int32_t ranks = 2; ranks <= 3; ranks++) {
    family_run *run = new_run(set, ranks), *together = new_run(set, ranks);
    run->place = separate_a_and_g;
    run->before_step = together->before_step = solve_block_1_each_step;
    family_runs_must_match(run, together, 0);
  }
}

/* ---- failed observations ---------------------------------------------------------------------*/

static _Thread_local bool cannot_observe;
static ng_status fail_if_cannot_observe(ng_block *b, const ng_obs *o) {
  return cannot_observe ? ng_fail(b->ctx, NG_ERR_NOMEM, "'%s' cannot observe", b->name)
                        : toy_diagonal.observe(b, o);
}

static ng_status fail_on_one_rank(int32_t rank, ng_precond *p, int32_t step) {
  if (step != 1) return NG_OK;
  cannot_observe = rank == 1;
  const ng_status st = ng_step(p, 0.1);
  cannot_observe = false;
  return st == NG_ERR_NOMEM ? NG_OK : NG_ERR_STATE;
}

static void a_step_can_be_repeated_after_a_failed_observation(void **state) {
  ng_family sees = toy_diagonal;
  sees.name = "sees";
  sees.observe = fail_if_cannot_observe;
  for (int32_t ranks = 2; ranks <= 3; ranks++) {
    family_run *run = new_run_with(&sees, UNCLIPPED, ranks);
    run->before_step = fail_on_one_rank;
    family_runs_must_match(run, new_run(UNCLIPPED, ranks), 0);
  }
}

static ng_status skip_on_rank_0(ng_block *b, const ng_obs *o) {
  return b->p->steps == 1 && b->ctx->rank == 0 ? NG_SKIPPED : toy_diagonal.observe(b, o);
}

static void a_skipped_observation_skips_the_step_on_all_ranks(void **state) {
  ng_family f = toy_diagonal;
  f.name = "skips";
  f.observe = skip_on_rank_0;
  for (int32_t ranks = 1; ranks <= 2; ranks++) {
    family_run *run = new_run_with(&f, UNCLIPPED, ranks);
    assert_int_equal(family_train(run), NG_SKIPPED);
    for (int32_t r = 0; r < ranks; r++)
      assert_true(run->status[r][0] == NG_OK && run->status[r][1] == NG_SKIPPED);
    free(run);
  }
}

/* ---- refused by ng_ready, with the name ------------------------------------------------------*/

static void must_be_refused(family_run *run, ng_status st, const char *says) {
  assert_int_equal(family_train(run), st);
  for (int32_t r = 0; r < run->ranks; r++) {
    if (strstr(run->message[r], says) == NULL)
      fail_msg("rank %d: '%s', not '%s'", r, run->message[r], says);
  }
  free(run);
}

static void set_owner_out_of_range(ng_block *b, ng_stat *s) { s->owner = b->ctx->ranks; }
static void set_owner_in_other_column(ng_block *b, ng_stat *s) {
  s->owner = (b->column + 1) % b->p->grid.n;
}
static void split_averages_over_owners(ng_block *b, ng_stat *s) {
  if (b->stats == 2) s->spread = NG_SPREAD_OWNER;
  s->owner = (int32_t)(s - b->stat) % b->ctx->ranks;
}
/* The messages of rank 1 would differ. */
static void shift_owner_on_rank_1(ng_block *b, ng_stat *s) {
  if (b->ctx->rank == 1) s->owner = (s->owner + 1) % b->ctx->ranks;
}

static void set_vector_to_bf16(ng_block *b, ng_stat *s) {
  if (!s->symmetric) s->average_dtype = NG_BF16;
}
static void set_sum_to_f64(ng_block *b, ng_stat *s) {
  if (s->rule.averaged) s->sum_dtype = NG_F64;
}
static void declare_two_observations(ng_block *b, ng_stat *s) {
  s->observed = NG_OBSERVED_INPUT | NG_OBSERVED_OUTGRAD;
}

static void invalid_families_are_refused_by_name(void **state) {
  static const struct {
    void (*place)(ng_block *b, ng_stat *s);
    const char *set, *says;
  } wrong[] = {
      {set_owner_out_of_range, UNCLIPPED, "its owner is not in the block's column"},
      {set_owner_in_other_column, UNCLIPPED "grad_worker_fraction=0",
       "its owner is not in the block's column"},
      {split_averages_over_owners, UNCLIPPED, "the family needs both on one rank"},
      {use_only_on_owner, UNCLIPPED "grad_worker_fraction=1", "sends no results to other ranks"},
      {set_vector_to_bf16, UNCLIPPED, "averages are f32"},
      {set_sum_to_f64, UNCLIPPED, "over sums in f32"},
      {declare_two_observations, UNCLIPPED, "exactly one kind of observation"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    family_run *run = new_run(wrong[i].set, 2);
    run->place = wrong[i].place;
    must_be_refused(run, NG_ERR_ARG, wrong[i].says);
  }
  family_run *run = new_run(UNCLIPPED "grad_worker_fraction=1", 3);
  run->place = shift_owner_on_rank_1;
  must_be_refused(run, NG_ERR_COMM, "owners of blocks of 1 of 3 ranks differ from rank 0");
  ng_family named = toy_total; /* the name of a tensor of the model */
  named.name = "plain";
  named.accepts_entry = fits_layer_fc;
  must_be_refused(new_run_with(&named, UNCLIPPED, 1), NG_ERR_ARG,
                  "'plain': a block of several layers has this name");
  ng_family shares = toy_diagonal;
  shares.name = "shares";
  shares.create_state = toy_total.create_state; /* slices and a solve */
  shares.accepts_entry = fits_layer_fc;
  must_be_refused(new_run_with(&shares, UNCLIPPED "grad_worker_fraction=0", 2), NG_ERR_ARG,
                  "needs grad_worker_fraction = 1");
}

static ng_status refuse_damping_of_half(const ng_options *o, char *message, size_t size) {
  if (o->base.damping != 0.5) return NG_OK;
  return ng_fail_to(message, size, NG_ERR_ARG, "damping = 0.5 is not for toys");
}

static ng_status set_damping_of_half(int32_t rank, ng_precond *p, int32_t step) {
  if (step != 1) return NG_OK;
  const double before = p->block[0]->base.damping;
  if (ng_set(p, "damping", "0.5") != NG_ERR_ARG) return NG_ERR_STATE;
  if (strstr(ng_last_error(p->ctx), "not for toys") == NULL) return NG_ERR_STATE;
  return p->block[0]->base.damping == before ? NG_OK : NG_ERR_STATE;
}

static void check_sees_options_and_ng_set(void **state) {
  ng_family picky = toy_diagonal;
  picky.name = "picky";
  picky.check_options = refuse_damping_of_half;
  family_run *run = new_run_with(&picky, UNCLIPPED, 1);
  run->before_step = set_damping_of_half;
  free(family_must_train(run));
  must_be_refused(new_run_with(&picky, "damping=0.5 clip=none", 1), NG_ERR_ARG,
                  "layer 'toy': options: damping = 0.5 is not for toys");
}

static int32_t solved;
static ng_status count_solve(ng_block *b, ng_solve_phase phase) {
  solved += phase == NG_SOLVE_CLIMB;
  return toy_diagonal.solve(b, phase);
}

static void solve_period_applies_to_families_with_the_trait(void **state) {
  static const uint32_t traits[] = {0, NG_TRAIT_SOLVES};
  /* expected solves of a block: in every step, or once, because the default period exceeds STEPS */
  static const int32_t solves[] = {STEPS, 1};
  ng_family periodic = toy_diagonal;
  periodic.solve = count_solve;
  for (int k = 0; k < 2; k++) {
    periodic.traits = traits[k];
    family_run *run = new_run_with(&periodic, "method=eva-natgrad damping=0.3 clip=none", 1);
    solved = 0;
    free(family_must_train(run));
    assert_int_equal(solved, 2 * solves[k]); /* toy and toy2 */
  }
}

/* PD = D / (damping + |D|^2), |D|^2 = 14 + 77 = 91; the clip uses the largest learning rate of the groups. */
static void a_block_of_two_groups_has_the_larger_learning_rate(void **state) {
  for (int32_t first = 0; first < 2; first++) {
    fixture f;
    float g[2][3] = {{1, 2, 3}, {4, 5, 6}}, w[2][3] = {{0}};
    fixture_ok(&f, fixture_open(&f, "damping=0.5 clip=kl kl_clip=1e-4 update=sgd", NULL));
    ng_family_register(f.ctx, &toy_total);
    fixture_ok(&f, ng_add_tensor(f.p, "all.one", 3, NULL));
    fixture_ok(&f, ng_add_tensor(f.p, "all.two", 3, NULL));
    for (int32_t k = 0; k < 2; k++) {
      const ng_array d = ng_array_vector(g[k], 3, NG_F32), x = ng_array_vector(w[k], 3, NG_F32);
      const ng_binding b = {k, NG_WEIGHT, &d, &x, NG_HOLD};
      fixture_ok(&f, ng_bind(f.p, &b, 1));
      fixture_ok(&f, ng_set_group(f.p, k, NG_WEIGHT, k == first));
    }
    fixture_ok(&f, ng_ready(f.p));
    ng_sgd how[2] = {fixture_sgd(0.1, 0.0), fixture_sgd(0.3, 0.0)};
    fixture_ok(&f, ng_step_sgd(f.p, how, 2));
    const ng_report r = fixture_report(&f);
    const double nu = sqrt(1e-4 / (0.3 * 0.3 * 91.0 / 91.5));
    assert_true(fabs(r.clip - nu) <= 1e-12 * nu); /* the library computes in double, too */
    fixture_close(&f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(receivers_get_the_scaled_direction),
      cmocka_unit_test(messages_agree_beside_local_statistics),
      cmocka_unit_test(divisors_are_computed_with_their_block),
      cmocka_unit_test(a_step_can_be_repeated_after_a_failed_observation),
      cmocka_unit_test(a_skipped_observation_skips_the_step_on_all_ranks),
      cmocka_unit_test(invalid_families_are_refused_by_name),
      cmocka_unit_test(check_sees_options_and_ng_set),
      cmocka_unit_test(solve_period_applies_to_families_with_the_trait),
      cmocka_unit_test(a_block_of_two_groups_has_the_larger_learning_rate),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
