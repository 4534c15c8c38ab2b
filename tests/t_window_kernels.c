/* t_window_kernels.c: several ranks select the k largest elements that one rank selects; the Cholesky factor of a ring
 * of rows solves as a dense factor; the memory of a large sparse window. */
#include "unit_test.h"
#include "dense.h"
#include "draw.h"
#include "family/window.h"
#include "fixture.h"
#include "kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- selection on several ranks --------------------------------------------------------------*/

enum { ALL = 700, RANKS = 5, ROOM = NG_LARGEST_BINS };

/* Draw a value.  Kinds: few magnitudes with both signs and zeros; random; differences in the last bits; powers of 2. */
static float draw_value(rng *r, int kind) {
  const float sign = rng_below(r, 2) ? -1.0F : 1.0F;
  if (kind == 0) return sign * (float)rng_below(r, 4);
  if (kind == 1) return (float)rng_value(r);
  if (kind == 2) return sign * (1.0F + (float)rng_below(r, 3) * 0x1p-23F);
  return sign * ldexpf(1.0F, (int)rng_below(r, 277) - 149);
}

static void selection_on_ranks_equals_one_rank(void **state) {
  static float x[ALL];
  static int32_t single[ALL], mine[RANKS][ALL], count[NG_LARGEST_COUNTS];
  static double sum[ROOM], part[RANKS][ROOM];
  rng r = {test_seed()};
  for (int64_t t = 0; t < test_repetitions(400); t++) {
    const int64_t n = 1 + rng_below(&r, ALL), k = 1 + rng_below(&r, t % 5 == 0 ? n : n / 4 + 1);
    const int32_t W = 1 + (int32_t)rng_below(&r, RANKS);
    int64_t cut[RANKS + 1] = {0}, before = 0;
    ng_window_joint j[RANKS];
    for (int64_t i = 0; i < n; i++)
      x[i] = draw_value(&r, (int)(t % 4));
    for (int32_t q = 1; q <= W; q++) /* slices of any size, also empty */
      cut[q] = q == W ? n : cut[q - 1] + rng_below(&r, n - cut[q - 1] + 1);
    ng_queue queue = kernels_queue(t % 2 == 0 ? 0 : 2);
    const ng_largest all = {.x = x, .n = n, .k = k, .chosen = single};
    ng_kernels(&queue)->select_largest(&queue, &all, 1, count);
    ng_queue_wait(&queue);
    for (int32_t q = 0; q < W; q++)
      j[q] = (ng_window_joint){
          .of = {.x = x + cut[q], .n = cut[q + 1] - cut[q], .k = k, .chosen = mine[q]},
          .this_rank = q};
    for (int32_t round = 0; round <= NG_WINDOW_JOINT_ROUNDS; round++) {
      for (int32_t q = 0; q < W; q++) {
        memcpy(part[q], sum, sizeof sum);
        ng_window_joint_round(&queue, &j[q], round, W, part[q]);
      }
      memset(sum, 0, sizeof sum);
      for (int64_t i = 0; i < ng_window_joint_count(round, W) && round < 4; i++)
        for (int32_t q = 0; q < W; q++)
          sum[i] += part[q][i];
    }
    for (int32_t q = 0; q < W; q++) {
      if (j[q].selected_below != before)
        fail_msg("the selection of rank %d of %d begins at %d", q, W, (int)j[q].selected_below);
      for (int64_t i = 0; i < j[q].selected; i++, before++) {
        if (before >= k || single[before] != cut[q] + mine[q][i])
          fail_msg("the %d largest of %d, %d ranks, kind %d: entry %d differs", (int)k, (int)n, W,
                   (int)(t % 4), (int)before);
      }
    }
    assert_int_equal(before, k);
  }
}

/* ---- the factor of a ring ----------------------------------------------------------------------*/

enum { RING = 41, DRAWN = 60 };

/* Rows of K + I, K = V V' with eigenvalues up to 1230, enter and leave; the condition is below 1e4, so
 * errors of 1e-16 grow to less than 1e-10. */
static void ring_factor_solves_as_dense(void **state) {
  rng r = {test_seed()};
  for (int64_t t = 0; t < test_repetitions(20); t++) {
    const int64_t places = rng_between(&r, 2, RING);
    double L[RING * RING] = {0.0}, V[RING][30], row[RING], z[RING], x[RING], S[RING * RING];
    int64_t place[RING];
    ng_ring ring = {L, places, place, 0};
    for (int step = 0; step < DRAWN; step++) {
      const int64_t head = step % places;
      const bool last = rng_below(&r, 2) == 0;
      if (ring.n == places) {
        ng_ring_drop(&ring);
        for (int64_t j = 0, old = place[0]; j < places; j++)
          assert_true(L[old * places + j] == 0.0 && L[j * places + old] == 0.0);
        memmove(place, place + 1, (size_t)--ring.n * sizeof *place);
      }
      place[ring.n++] = head;
      for (int k = 0; k < 30; k++)
        V[head][k] = 2 * rng_real(&r) - 1;
      for (int i = 0; i < ring.n; i++) {
        for (int j = 0; j < ring.n; j++) {
          double *at = &S[i * ring.n + j];
          *at = i == j;
          for (int k = 0; k < 30; k++)
            *at += V[place[i]][k] * V[place[j]][k];
        }
        z[place[i]] = x[i] = last && i + 1 < ring.n ? 0.0 : 2 * rng_real(&r) - 1;
      }
      static double before[RING * RING];
      memcpy(before, L, sizeof L);
      for (int refused = 1; refused >= 0; refused--) { /* a pivot is at least 1 */
        for (int i = 0; i < ring.n; i++)
          row[place[i]] = S[(ring.n - 1) * ring.n + i];
        assert_true(ng_ring_append(&ring, refused ? 1e6 : 0.5, row) == !refused);
        if (refused) assert_memory_equal(before, L, sizeof L);
      }
      ng_ring_solve(&ring, last, z);
      dense_solve(ring.n, S, 1, x);
      for (int i = 0; i < ring.n; i++)
        assert_true(fabs(z[place[i]] - x[i]) <= 1e-10);
    }
  }
}

/* ---- memory ----------------------------------------------------------------------------------*/

/* 11.2 million parameters (ResNet-18), 1,024 rows of 1 % in bf16 and error feedback: at most 0.5 GiB.  The memory
 * is planned and allocated, but no step is taken. */
static void sparse_window_memory_is_bounded(void **state) {
  const fixture_how how = {.threads = 2};
  const int64_t d = 11200000;
  int64_t bytes = 0;
  fixture f;
  static float nothing[4];
  fixture_ok(
      &f, fixture_open(&f, "method=efcp window=1024 window_density=0.01 window_dtype=bf16", &how));
  fixture_ok(&f, ng_add_tensor(f.p, "all", d, NULL));
  /* describes more elements than `nothing` has, because the test never reads them */
  const ng_array g = ng_array_matrix(nothing, 1, d, NG_F32);
  fixture_ok(&f, ng_bind_grad(f.p, 0, NG_WEIGHT, &g));
  fixture_ok(&f, ng_ready(f.p));
  bytes = fixture_report(&f).factors;
  /* 1,025 rows of 112,000 entries of 4 bytes, e, the Gram matrix and its factor; and the starts of 342 blocks */
  const int64_t least = 1025 * 112000 * 4 + 4 * d + 2 * 1025 * 1025 * 8;
  if (!(bytes >= least && bytes <= least + (1 << 22) && bytes <= INT64_C(1) << 29))
    fail_msg("%lld bytes are stored, expected %lld to 2^29", (long long)bytes, (long long)least);
  fixture_close(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(selection_on_ranks_equals_one_rank),
                                     cmocka_unit_test(ring_factor_solves_as_dense),
                                     cmocka_unit_test(sparse_window_memory_is_bounded)};
  return cmocka_run_group_tests_name("selection of windows", tests, NULL, NULL);
}
