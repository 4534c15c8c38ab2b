/* t_option_effects_wire.c: what of a statistic travels; see effects.h. */
#include "effects.h"

/* Orders of A and G of the three layers. */
static int64_t bytes_of(bool whole) {
  int64_t bytes = 0;
  for (int i = 0; i < LAYERS; i++) {
    const int64_t n[2] = {layer[i].cols + (layer[i].bias > 0), layer[i].rows};
    for (int k = 0; k < 2; k++)
      bytes += (whole ? n[k] * n[k] : n[k] * (n[k] + 1) / 2) * (int64_t)sizeof(float);
  }
  return bytes;
}

static run on_ranks(const char *more, int whole) {
  char settings[200];
  run r = usual;
  (void)snprintf(settings, sizeof settings, "damping=0.1 symmetry_aware=%d %s", !whole, more);
  r.ranks = RANKS;
  r.settings = settings;
  r = play(r);
  r.settings = NULL;
  return r;
}

/* The same bits, in twice the bytes but for the diagonals; without gaps where each statistic is a message. */
static void effect_symmetry_aware(void **state) {
  (void)state;
  static const char *const more[] = {"stat_bucket_mb=0", "", "wire_dtype=bf16",
                                     "stat_refresh=adaptive",
                                     "factor_dtype=bf16 grad_worker_fraction=0"};
  for (size_t k = 0; k < sizeof more / sizeof more[0]; k++) {
    const run one = on_ranks(more[k], 0), all = on_ranks(more[k], 1);
    for (int r = 0; r < RANKS; r++) {
      const int64_t before = one.rank[r].sums_bytes, after = all.rank[r].sums_bytes;
      assert_memory_equal(one.rank[r].P, all.rank[r].P, sizeof one.rank[r].P);
      assert_true(2 * after > 3 * before && after < 2 * before);
      assert_int_equal(one.rank[r].sums_messages, all.rank[r].sums_messages);
      assert_int_equal(one.rank[r].factors, all.rank[r].factors);
      assert_true(all.rank[r].sums > one.rank[r].sums);
      if (k > 0) continue;
      assert_int_equal(before, one.steps * bytes_of(false));
      assert_int_equal(after, one.steps * bytes_of(true));
    }
  }
  /* What is not sent is not made. */
  run r = with("damping=0.1"), s = with("damping=0.1 symmetry_aware=0");
  assert_int_equal(r.rank[0].sums, s.rank[0].sums);
  r = usual;
  r.settings = "damping=0.1 symmetry_aware=0 statistics=owner";
  assert_int_equal(try_play(&r), NG_ERR_ARG);
  assert_non_null(strstr(r.rank[0].message, "symmetry_aware must be 1"));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(effect_symmetry_aware)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
