/* t_option_effects_place.c: the options that say who solves what; see effects.h.  The assignments themselves are
 * in t_assign.c, by example. */
#include "effects.h"

/* Orders 19 and 4, 7 and 5, 5 and 4 on two ranks: owners by hand.  With local statistics they decide whose
 * samples count; else nothing is other than who works. */
static void effect_placement(void **state) {
  (void)state;
  static const struct {
    const char *name;
    int32_t owner[LAYERS];
  } row[] = {{"round-robin", {0, 1, 0}}, {"mpd-kfac", {0, 1, 0}}, {"kaisa", {0, 1, 1}},
             {"contiguous", {0, 1, 1}},  {"spngd", {0, 0, 1}},    {"balanced", {0, 1, 1}}};
  const run all = on_two("damping=0.1", -1);
  for (size_t k = 0; k < sizeof row / sizeof row[0]; k++) {
    char local[128], wide[64];
    (void)snprintf(local, sizeof local, "damping=0.1 clip=none statistics=local placement=%s",
                   row[k].name);
    (void)snprintf(wide, sizeof wide, "damping=0.1 placement=%s", row[k].name);
    const run base = on_two(local, -1), odd0 = on_two(local, 0), odd1 = on_two(local, 1);
    for (int32_t i = 0; i < LAYERS; i++) {
      assert_int_equal(base.rank[0].owner[i], row[k].owner[i]);
      assert_int_equal(base.rank[1].owner[i], row[k].owner[i]);
      assert_int_equal(gap_of(&base, &odd0, 0, i) > DIFFERENT, row[k].owner[i] == 0);
      assert_int_equal(gap_of(&base, &odd1, 0, i) > DIFFERENT, row[k].owner[i] == 1);
    }
    const run same = on_two(wide, -1);
    assert_memory_equal(same.rank[0].P, all.rank[0].P, sizeof all.rank[0].P);
  }
}

/* What the ranks of two have to solve, planned. */
static void solves(const char *options, double cost[2]) {
  static const int64_t order[4][2] = {{10, 1}, {8, 7}, {6, 6}, {2, 2}};
  static const char *const name[4] = {"x", "y", "z", "w"};
  fixture f;
  fixture_ok(&f, fixture_open(&f, options, NULL));
  for (int i = 0; i < 4; i++)
    fixture_ok(&f, ng_add_linear(f.p, name[i], order[i][0], order[i][1], 0, NULL));
  for (int32_t r = 0; r < 2; r++) {
    ng_rank_plan plan = {.struct_size = sizeof plan};
    fixture_ok(&f, ng_plan_ranks(f.p, 2, r, 1, &plan));
    cost[r] = plan.solve_cost;
  }
  fixture_close(&f);
}

/* x 1001, y 855, z 432, w 16 by n^3, the least loaded in turn; 101, 113, 72, 8 by n^2. */
static void effect_placement_cost(void **state) {
  (void)state;
  double compute[2], memory[2], neither[2];
  solves("placement=kaisa placement_cost=compute", compute);
  solves("placement=kaisa placement_cost=memory", memory);
  assert_true(compute[0] == 1001 + 16 && compute[1] == 855 + 432);
  assert_true(memory[0] == 855 + 16 && memory[1] == 1001 + 432);
  solves("placement=spngd placement_cost=compute", compute); /* does not ask */
  solves("placement=spngd placement_cost=memory", neither);
  assert_memory_equal(compute, neither, sizeof compute);
}

/* The same bits; by turns A is solved by one rank and G by the other. */
static void effect_colocate(void **state) {
  (void)state;
  double cost[2];
  const run one = on_two("damping=0.1 colocate=1", -1), two = on_two("damping=0.1 colocate=0", -1);
  assert_memory_equal(one.rank[0].P, two.rank[0].P, sizeof one.rank[0].P);
  solves("placement=round-robin colocate=1", cost);
  assert_true(cost[0] == 1001 + 432 && cost[1] == 855 + 16);
  solves("placement=round-robin colocate=0", cost);
  assert_true(cost[0] == 1000 + 512 + 216 + 8 && cost[1] == 1 + 343 + 216 + 8);
  solves("placement=round-robin colocate=0 grad_worker_fraction=0",
         cost); /* one rank holds, so one rank solves */
  assert_true(cost[0] == 1001 + 432 && cost[1] == 855 + 16);
  run r = usual;
  r.ranks = 2;
  r.settings = "damping=0.1 statistics=local colocate=0";
  assert_int_equal(try_play(&r), NG_ERR_ARG);
  assert_non_null(strstr(r.rank[0].message, "statistics = local: it has its owner's samples"));
  assert_non_null(strstr(r.rank[0].message, "colocate = 1 gives both to one"));
  r.settings = "placement=spngd colocate=0";
  assert_int_equal(try_play(&r), NG_ERR_ARG);
  assert_non_null(strstr(r.rank[0].message, "colocate must be 1"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(effect_placement),
      cmocka_unit_test(effect_placement_cost),
      cmocka_unit_test(effect_colocate),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
