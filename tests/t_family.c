/* t_family.c: families that a test registers (toys.c), in one model with Kronecker and rank-one layers, on 1 to 4
 * ranks, with every fraction of workers: formulas, save, resume, skipped steps.  t_family_calls.c tests the
 * calls of a family, and families that are refused.
 *
 * Tolerance.  Ranks with the same samples have the statistics of one rank up to the rounding of a sum and a division:
 * 1e-5 is about 80 roundings.  All other comparisons are exact. */
#include "family_toys.h"
#include "folder.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- expected results of the toys ------------------------------------------------------------*/

static const double LAMBDA = 0.3, RHO = 0.9;

static toy_commits commits[FAMILY_RANKS];

static void read_commits(int32_t rank, const ng_precond *p) {
  for (int32_t i = 0; i < p->blocks; i++) {
    if (p->block[i]->family == &toy_total) commits[rank] = count_total_commits(p->block[i]);
  }
}

/* Compute PD of a toy before the clip, in double; v: the running average of its squared gradient. */
static void predict_direction(int32_t i, int32_t step, double v[FAMILY_NUMBERS], double *out) {
  float d[FAMILY_NUMBERS];
  double all = 0;
  for (int32_t k = ALL; k <= ALL_FC; k++) {
    family_draw_gradients(&toy_model, step, k, d);
    for (int64_t e = 0; e < family_gradient_count(&toy_model, k); e++)
      all += (double)d[e] * (double)d[e];
  }
  const int64_t n = family_gradient_count(&toy_model, i);
  family_draw_gradients(&toy_model, step, i, d);
  for (int64_t e = 0; e < n; e++) {
    const double x = (double)d[e];
    v[e] = step == 0 ? x * x : RHO * v[e] + (1 - RHO) * x * x;
    out[e] = i == ALL || i == ALL_FC ? x / (LAMBDA + all) : x / (LAMBDA + sqrt(v[e]));
  }
}

static void must_match_formulas(const family_run *run) {
  static const int32_t toys[] = {TOY, TOY2, ALL, ALL_FC};
  for (int k = 0; k < 4; k++) {
    double v[FAMILY_NUMBERS] = {0}, want[FAMILY_NUMBERS];
    for (int32_t step = 0; step < STEPS; step++) {
      predict_direction(toys[k], step, v, want);
      for (int64_t e = 0; e < family_gradient_count(&toy_model, toys[k]); e++) {
        const double got = (double)run->out[0][step][toys[k]][e], w = want[e] * run->clip[0][step];
        if (!(fabs(got - w) <= 1e-5 * fabs(w))) {
          fail_msg("%s, %d ranks, step %d, %s[%d]: %g, expected %g", run->set, run->ranks, step,
                   toy_entry[toys[k]].name, (int)e, got, w);
        }
      }
    }
  }
}

static const char *join_options(char text[512], const char *set, const char *more) {
  (void)snprintf(text, 512, "%.250s %.250s", set, more);
  return text;
}

/* ---- tests -----------------------------------------------------------------------------------*/

static void every_layer_names_its_family(void **state) {
  static const char *const family[ENTRIES] = {
      [FC] = "kronecker",  [CONV] = "kronecker", [R1] = "beside",    [TOY] = "diagonal",
      [TOY2] = "diagonal", [ALL] = "total",      [ALL_FC] = "total", [PLAIN] = "none"};
  family_run *run = family_must_train(new_run(COMMON, 1));
  for (int32_t i = 0; i < ENTRIES; i++) {
    assert_string_equal(run->family[0][i], family[i]);
  }
  assert_true(run->report[0][ALL].pi > 0);
  /* Without the toys "all.fc" belongs to a family of the library, which needs observations. */
  static const ng_family *const none[] = {NULL};
  family_run *plain = family_new_run(&toy_model, none, COMMON, 1);
  (void)family_train(plain);
  assert_non_null(strstr(plain->message[0], "'all.fc' was never observed"));
  free(plain);
  free(run);
}

static void ranks_and_fractions_follow_the_formulas(void **state) {
  static const char *const fraction[] = {"grad_worker_fraction=0", "grad_worker_fraction=0.5",
                                         "grad_worker_fraction=1"};
  static const char *const clip[] = {"clip=kl", "clip=rms clip_bound=0.1", "clip=none"};
  char text[512], more[512];
  for (int c = 0; c < 3; c++) {
    family_run *one = family_must_train(new_run(join_options(more, COMMON, clip[c]), 1));
    if (c != 1) must_match_formulas(one);
    for (int32_t ranks = 2; ranks <= FAMILY_RANKS; ranks++) {
      family_run *whole = NULL;
      for (int k = 2; k >= 0; k--) {
        if (k == 1 && ranks % 2 != 0) continue;
        family_run *run = family_must_train(new_run(join_options(text, more, fraction[k]), ranks));
        family_must_be_close(run, one);
        if (whole == NULL) {
          whole = run;
          continue;
        }
        family_must_match_from(run, whole, 0);
        free(run);
      }
      free(whole);
    }
    free(one);
  }
}

/* The engine stores the direction of `diagonal` by the kernel `store`, and sends the direction to other ranks. */
static void a_late_queue_changes_no_bit(void **state) {
  char text[512];
  static const char *const clip[] = {"", "clip=rms clip_bound=0.1"};
  for (int k = 0; k < 2; k++) {
    family_run *late = new_run(join_options(text, COMMON "grad_worker_fraction=0", clip[k]), 3);
    late->linalg = "late";
    family_runs_must_match(late, new_run(text, 3), 0);
  }
}

/* clip = norm sums over families with different `measure`, also with solver = product. */
static void the_norm_of_all_directions_is_clipped(void **state) {
  static const char *const set[] = {
      COMMON "clip=norm clip_bound=0.01",
      "solver=product radius=0.5 solve_period=1 clip=norm clip_bound=0.01"};
  for (int k = 0; k < 2; k++) {
    for (int32_t ranks = 1; ranks <= 3; ranks++) {
      family_run *run = family_must_train(new_run(set[k], ranks));
      for (int32_t step = 0; step < STEPS; step++) {
        double sum = 0;
        for (int32_t i = 0; i < PLAIN; i++) {
          for (int64_t e = 0; e < family_gradient_count(&toy_model, i); e++) {
            const double x = (double)run->out[0][step][i][e];
            sum += x * x;
          }
        }
        assert_true(run->clip[0][step] < 1);
        assert_true(fabs(sqrt(sum) - 0.01) <= 1e-5 * 0.01);
      }
      free(run);
    }
  }
}

static void resumed_runs_have_the_same_bits(void **state) {
  for (int32_t ranks = 1; ranks <= FAMILY_RANKS; ranks++) {
    const char *set = ranks % 2 == 0 ? COMMON "grad_worker_fraction=0.5" : COMMON;
    family_run *whole = new_run(set, ranks), *resumed = new_run(set, ranks);
    whole->save = resumed->load = in_folder("state");
    family_runs_must_match(whole, resumed, 2);
  }
}

/* Observations of the skipped step enter the averages, and once more when the step is repeated.  The gradient with the
 * NaN does not enter an average. */
static void a_nan_in_a_gradient_skips_the_step_on_all_ranks(void **state) {
  static const int32_t bad[] = {FC, R1, TOY, ALL, ALL_FC};
  for (int32_t ranks = 1; ranks <= FAMILY_RANKS; ranks += 3) {
    for (int k = 0; k < 5; k++) {
      const char *set = COMMON "grad_worker_fraction=0 clip=none";
      family_run *good = family_must_train(new_run(set, ranks)), *run = new_run(set, ranks);
      run->bad_step = 2;
      run->bad_entry = bad[k];
      run->after_last_step = read_commits;
      (void)family_must_train(run);
      for (int32_t r = 0; r < ranks; r++) {
        assert_int_equal(run->status[r][2], NG_SKIPPED);
        assert_int_equal(commits[r].skipped, 1);
        assert_int_equal(commits[r].taken, STEPS);
        assert_int_equal(run->changed[r], 0);
      }
      for (int32_t step = 0; step < STEPS; step++) {
        for (int32_t i = 0; i < ENTRIES; i++) {
          const bool is_memoryless = i == ALL || i == ALL_FC || i == PLAIN;
          if (step >= 2 && !is_memoryless && i != bad[k]) continue;
          if (step >= 2 && (bad[k] == FC || bad[k] == R1) && i == bad[k]) continue;
          assert_memory_equal(run->out[0][step][i], good->out[0][step][i],
                              sizeof run->out[0][step][i]);
        }
      }
      free(good);
      free(run);
    }
  }
}

static ng_spread spread_of_v;

static void spread_average(ng_block *b, ng_stat *s) {
  if (b->family == &toy_diagonal) s->spread = spread_of_v;
}

static void averages_on_owners_or_on_all_ranks_follow_the_formulas(void **state) {
  static const ng_spread spreads[] = {NG_SPREAD_OWNER, NG_SPREAD_SAME};
  for (int k = 0; k < 2; k++) {
    for (int32_t ranks = 1; ranks <= FAMILY_RANKS; ranks++) {
      family_run *run = new_run(COMMON "grad_worker_fraction=0", ranks);
      spread_of_v = spreads[k];
      run->place = spread_average;
      must_match_formulas(family_must_train(run));
      free(run);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_layer_names_its_family),
      cmocka_unit_test(ranks_and_fractions_follow_the_formulas),
      cmocka_unit_test(a_late_queue_changes_no_bit),
      cmocka_unit_test(the_norm_of_all_directions_is_clipped),
      cmocka_unit_test(resumed_runs_have_the_same_bits),
      cmocka_unit_test(a_nan_in_a_gradient_skips_the_step_on_all_ranks),
      cmocka_unit_test(averages_on_owners_or_on_all_ranks_follow_the_formulas),
  };
  return cmocka_run_group_tests(tests, make_folder, delete_folder);
}
