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

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(effect_stat_bucket_mb)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
