/* t_option_effects_ranks.c: options of what travels between ranks; see effects.h. */
#include "effects.h"

/* The same bits; what each message has decides how many there are: one a step, or one a statistic, of which
 * there are A and G of three layers.  t_buckets.c looks at each of them. */
static void effect_stat_bucket_mb(void **state) {
  (void)state;
  run few = usual, many = usual;
  few.ranks = many.ranks = RANKS;
  few.settings = "damping=0.1";
  many.settings = "damping=0.1 stat_bucket_mb=0";
  few = play(few);
  many = play(many);
  for (int r = 0; r < RANKS; r++) {
    assert_int_equal(few.rank[r].sums_messages, few.steps);
    assert_int_equal(many.rank[r].sums_messages, few.steps * 2 * LAYERS);
    assert_memory_equal(few.rank[r].P, many.rank[r].P, sizeof few.rank[r].P);
  }
}

/* Of what a solve leaves, all or a share: from the second step on, in the layer that has the option. */
static void effect_leak_ranks(void **state) {
  (void)state;
  run owner = usual, all = usual, one = usual;
  owner.settings = one.settings = "solve_period=1 damping=0.1 clip=none damping_leak=1";
  all.settings = "solve_period=1 damping=0.1 clip=none damping_leak=1 leak_ranks=all";
  one.layer_options = "leak_ranks=all"; /* fc1's */
  owner.ranks = all.ranks = one.ranks = RANKS;
  owner = play(owner);
  all = play(all);
  one = play(one);
  for (int32_t i = 0; i < LAYERS; i++) {
    const run *same = i == FC1 ? &all : &owner, *other = i == FC1 ? &owner : &all;
    assert_within(gap_of(&owner, &all, 0, i), 0);
    for (int32_t step = 1; step < usual.steps; step++) {
      assert_within(gap_of(same, &one, step, i), 0);
      assert_differ(gap_of(other, &one, step, i));
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(effect_stat_bucket_mb),
                                     cmocka_unit_test(effect_leak_ranks)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
