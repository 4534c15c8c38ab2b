/* t_window_joint.c: the k largest of all elements, chosen by ranks that have a slice each, are those that one rank
 * chooses of all (window_largest.c): the same places, of equal magnitudes the first.  Rounds are summed here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "draw.h"
#include "family/window.h"
#include "fixture.h"
#include "ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 700, RANKS = 5, ROOM = NG_WINDOW_BINS };

/* Few magnitudes, of both signs and with zeros; or any, among them those that differ in their last bits. */
static float value(rng *r, int kind) {
  const float sign = rng_below(r, 2) ? -1.0F : 1.0F;
  if (kind == 0) return sign * (float)rng_below(r, 4);
  if (kind == 1) return (float)rng_value(r);
  if (kind == 2) return sign * (1.0F + (float)rng_below(r, 3) * 0x1p-23F);
  return sign * ldexpf(1.0F, (int)rng_below(r, 277) - 149);
}

static void as_one_rank(void **state) {
  static float x[MOST];
  static int32_t one[MOST], mine[RANKS][MOST], count[NG_WINDOW_COUNTS];
  static double sum[ROOM], part[RANKS][ROOM];
  rng r = {test_seed()};
  (void)state;
  for (int64_t t = 0; t < test_times(400); t++) {
    const int64_t n = 1 + rng_below(&r, MOST), k = 1 + rng_below(&r, t % 5 == 0 ? n : n / 4 + 1);
    const int32_t W = 1 + (int32_t)rng_below(&r, RANKS);
    int64_t cut[RANKS + 1] = {0}, before = 0;
    ng_window_joint j[RANKS];
    for (int64_t i = 0; i < n; i++)
      x[i] = value(&r, (int)(t % 4));
    for (int32_t q = 1; q <= W; q++) /* slices of any size, none too */
      cut[q] = q == W ? n : cut[q - 1] + rng_below(&r, n - cut[q - 1] + 1);
    ng_window_largest(&(ng_window_sum){.x = x}, n, k, count, one);
    for (int32_t q = 0; q < W; q++)
      j[q] = (ng_window_joint){
          .x = x + cut[q], .n = cut[q + 1] - cut[q], .k = k, .rank = q, .chosen = mine[q]};
    for (int32_t round = 0; round <= NG_WINDOW_JOINT_ROUNDS; round++) {
      for (int32_t q = 0; q < W; q++) {
        memcpy(part[q], sum, sizeof sum);
        ng_window_joint_round(&j[q], round, W, part[q]);
      }
      memset(sum, 0, sizeof sum);
      for (int64_t i = 0; i < ng_window_joint_room(round, W) && round < 4; i++)
        for (int32_t q = 0; q < W; q++)
          sum[i] += part[q][i];
    }
    for (int32_t q = 0; q < W; q++) {
      if (j[q].before != before) fail_msg("rank %d of %d begins at %d", q, W, (int)j[q].before);
      for (int64_t i = 0; i < j[q].m; i++, before++) {
        if (before >= k || one[before] != cut[q] + mine[q][i])
          fail_msg("%d of %d, %d ranks, kind %d: entry %d is another", (int)k, (int)n, W,
                   (int)(t % 4), (int)before);
      }
    }
    assert_int_equal(before, k);
  }
}

/* What enters is not finite on one rank alone, which has that weight in its slice: no rank waits for a choice, all
 * refuse, and the steps after it are the same on both. */
enum { LONG = 70000 };

static ng_status refused_by_one(int32_t rank, ng_transport *t, void *arg) {
  float(*out)[LONG] = arg, *g = calloc(2 * LONG, sizeof *g), *w = g + LONG;
  fixture f = {0};
  ng_status st =
      g == NULL
          ? NG_ERR_NOMEM
          : fixture_open(&f,
                         "method=efcp window=3 damping=0.1 window_density=0.1 window_decay=0.1 "
                         "window_decay_form=gradient statistics=sharded",
                         &(fixture_how){.threads = 1, .transport = t});
  const plane grad = plane_of(g, 1, LONG, NG_F32), weight = plane_of(w, 1, LONG, NG_F32);
  if (st == NG_OK) st = fixture_tensor(&f, "long", &grad, &weight);
  if (st == NG_OK) st = ng_ready(f.p);
  for (int step = 0; step < 4 && st == NG_OK; step++) {
    for (int i = 0; i < LONG; i++) {
      g[i] = (float)((i * 7 + step * 11) % 101 - 50);
      w[i] = (float)(i % 3);
    }
    w[LONG - 1] = step == 1 ? NAN : 1.0F;
    st = ng_step(f.p, 1);
    if (step == 1) st = st == NG_SKIPPED ? NG_OK : NG_ERR_STATE;
    if (step == 1 && g[5] != (float)((5 * 7 + 11) % 101 - 50)) st = NG_ERR_STATE;
  }
  if (st == NG_OK) memcpy(out[rank], g, LONG * sizeof *g);
  fixture_close(&f);
  free(g);
  return st;
}

static void together(void **state) {
  static float out[2][LONG];
  (void)state;
  assert_int_equal(ranks_run(2, refused_by_one, out, NULL), NG_OK);
  assert_memory_equal(out[0], out[1], sizeof out[0]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(as_one_rank), cmocka_unit_test(together)};
  return cmocka_run_group_tests_name("largest of slices", tests, NULL, NULL);
}
