/* t_family.c: families that the library does not know, mixed with those that it has: what a family owes
 * is all that it owes.  The toys of toys.c run beside Kronecker and rank-one layers, on 1 to 4 ranks, at
 * every fraction of workers, with both folds; they are saved, resumed, skipped and reported by code that
 * has never heard of them.
 *
 * Tolerance.  Ranks that see the same samples have the statistics of one rank but for the rounding of
 * a sum and a division: 1e-5 is some 80 roundings.  Everything else is compared bit for bit. */
#include "family_life.h"
#include "ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- what the toys should give ---------------------------------------------------------------*/

static const double LAMBDA = 0.3, RHO = 0.9;

/* PD before the clip, in double; v is the toy's average. */
static void predict(int32_t i, int32_t step, double v[PARAMETERS], double *out) {
  float d[PARAMETERS];
  double all = 0;
  for (int k = 0; k < 2; k++) {
    const int32_t at = k == 0 ? ALL : ALL_FC;
    const int64_t n = model[at].weights + model[at].biases;
    draw(d, n, step, at);
    for (int64_t e = 0; e < n; e++)
      all += (double)d[e] * (double)d[e];
  }
  const int64_t n = model[i].weights + model[i].biases;
  draw(d, n, step, i);
  for (int64_t e = 0; e < n; e++) {
    const double x = (double)d[e];
    v[e] = step == 0 ? x * x : RHO * v[e] + (1 - RHO) * x * x;
    out[e] = i == ALL || i == ALL_FC ? x / (LAMBDA + all) : x / (LAMBDA + sqrt(v[e]));
  }
}

static void as_predicted(const life *l) {
  static const int32_t toys[] = {TOY, TOY2, ALL, ALL_FC};
  for (int k = 0; k < 4; k++) {
    double v[PARAMETERS] = {0}, want[PARAMETERS];
    for (int32_t step = 0; step < STEPS; step++) {
      predict(toys[k], step, v, want);
      for (int64_t e = 0; e < model[toys[k]].weights + model[toys[k]].biases; e++) {
        const double got = (double)l->out[0][step][toys[k]][e], w = want[e] * l->clip[0][step];
        if (!(fabs(got - w) <= 1e-5 * fabs(w))) {
          fail_msg("%s, %d ranks, step %d, %s[%d]: %g, expected %g", l->set, l->ranks, step,
                   model[toys[k]].name, (int)e, got, w);
        }
      }
    }
  }
}

static void close_to(const life *x, const life *y) {
  for (int32_t step = 0; step < STEPS; step++) {
    for (int32_t i = 0; i < ENTRIES; i++) {
      double most = 0, gap = 0;
      for (int64_t e = 0; e < model[i].weights + model[i].biases; e++) {
        most = fmax(most, fabs((double)y->out[0][step][i][e]));
        gap = fmax(gap, fabs((double)x->out[0][step][i][e] - (double)y->out[0][step][i][e]));
      }
      assert_true(gap <= 1e-5 * most);
    }
  }
}

#define COMMON "damping=0.3 stat_decay=0.9 kl_clip=0.01 solve_period=1 "
static const char *const folds[] = {COMMON "fold=sum", COMMON "fold=direct"};

static const char *with(char text[512], const char *set, const char *more) {
  (void)snprintf(text, 512, "%.250s %.250s", set, more);
  return text;
}

/* ---- tests -----------------------------------------------------------------------------------*/

static void test_explained(void **state) {
  (void)state;
  static const char *const family[ENTRIES] = {
      [FC] = "kronecker",  [CONV] = "kronecker", [R1] = "beside",    [TOY] = "diagonal",
      [TOY2] = "diagonal", [ALL] = "total",      [ALL_FC] = "total", [PLAIN] = "none"};
  life *l = lived(new_life(folds[0], 1));
  for (int32_t i = 0; i < ENTRIES; i++) {
    assert_string_equal(l->explained[0][i], family[i]);
  }
  assert_true(l->reported[0] > 0);
  assert_int_equal(l->commits[0].taken, STEPS);
  assert_int_equal(l->commits[0].skipped, 0);
  /* Without toys the others are the library's, and the tensor of a toy stays as it is. */
  life *plain = new_life(folds[0], 1);
  plain->plain = true;
  (void)ranks_run(1, life_of, plain, NULL); /* "all.fc" is never observed: refused by name */
  assert_non_null(strstr(plain->why[0], "'all.fc' was never observed"));
  free(plain);
  free(l);
}

/* 1 to 4 ranks, every fraction, both folds: formulas hold, fractions do not matter to a bit. */
static void test_ranks_and_fractions(void **state) {
  (void)state;
  static const char *const fraction[] = {"grad_worker_fraction=0", "grad_worker_fraction=0.5",
                                         "grad_worker_fraction=1"};
  static const char *const clip[] = {"clip=kl", "clip=rms clip_bound=0.1", "clip=none"};
  char text[512], more[512];
  for (int f = 0; f < 2; f++) {
    for (int c = 0; c < 3; c++) {
      life *one = lived(new_life(with(more, folds[f], clip[c]), 1));
      if (c != 1) as_predicted(one);
      for (int32_t ranks = 2; ranks <= MOST_RANKS; ranks++) {
        life *whole = NULL;
        for (int k = 2; k >= 0; k--) {
          if (k == 1 && ranks % 2 != 0) continue;
          life *l = lived(new_life(with(text, more, fraction[k]), ranks));
          close_to(l, one);
          if (whole == NULL) {
            whole = l;
            continue;
          }
          same_from(l, whole, 0);
          free(l);
        }
        free(whole);
      }
      free(one);
    }
  }
}

/* clip = norm over families that measure in every way, an ascent (SAM) among them: all that leaves has
 * the norm that was asked for. */
static void test_norm(void **state) {
  (void)state;
  static const char *const set[] = {
      COMMON "clip=norm clip_bound=0.01",
      "solver=product radius=0.5 solve_period=1 clip=norm clip_bound=0.01"};
  for (int k = 0; k < 2; k++) {
    for (int32_t ranks = 1; ranks <= 3; ranks++) {
      life *l = lived(new_life(set[k], ranks));
      for (int32_t step = 0; step < STEPS; step++) {
        double sum = 0;
        for (int32_t i = 0; i < PLAIN; i++) {
          for (int64_t e = 0; e < model[i].weights + model[i].biases; e++) {
            const double x = (double)l->out[0][step][i][e];
            sum += x * x;
          }
        }
        assert_true(l->clip[0][step] < 1);
        assert_true(fabs(sqrt(sum) - 0.01) <= 1e-5 * 0.01);
      }
      free(l);
    }
  }
}

static void test_resume(void **state) {
  (void)state;
  char path[] = "/tmp/natgrad-family-XXXXXX", text[512];
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  (void)close(fd);
  for (int32_t ranks = 1; ranks <= MOST_RANKS; ranks++) {
    for (int f = 0; f < 2; f++) {
      const char *set = with(text, folds[f], ranks % 2 == 0 ? "grad_worker_fraction=0.5" : "");
      life *whole = new_life(set, ranks), *rest = new_life(set, ranks);
      whole->save = rest->load = path;
      (void)lived(whole);
      (void)lived(rest);
      same_from(rest, whole, 2);
      free(whole);
      free(rest);
    }
  }
  (void)unlink(path);
}

/* A NaN in the gradient of each kind of entry: the step is skipped on all ranks and gradients stay.  What
 * was observed counts (twice, as the step is taken again), but not the gradient that was refused. */
static void test_skip(void **state) {
  (void)state;
  static const int32_t bad[] = {FC, R1, TOY, ALL, ALL_FC};
  char text[512];
  for (int32_t ranks = 1; ranks <= MOST_RANKS; ranks += 3) {
    for (int k = 0; k < 5; k++) {
      const char *set = with(text, folds[0], "grad_worker_fraction=0 clip=none");
      life *good = lived(new_life(set, ranks)), *l = new_life(set, ranks);
      l->bad_step = 2;
      l->bad_entry = bad[k];
      (void)lived(l);
      for (int32_t r = 0; r < ranks; r++) {
        assert_int_equal(l->status[r][2], NG_SKIPPED);
        assert_int_equal(l->commits[r].skipped, 1);
        assert_int_equal(l->commits[r].taken, STEPS);
        assert_int_equal(l->changed[r], 0);
      }
      for (int32_t step = 0; step < STEPS; step++) {
        for (int32_t i = 0; i < ENTRIES; i++) {
          const bool forgetful = i == ALL || i == ALL_FC || i == PLAIN;
          if (step >= 2 && !forgetful && i != bad[k]) continue;
          if (step >= 2 && (bad[k] == FC || bad[k] == R1) && i == bad[k]) continue;
          assert_memory_equal(l->out[0][step][i], good->out[0][step][i], sizeof l->out[0][step][i]);
        }
      }
      free(good);
      free(l);
    }
  }
}

/* A and G on different ranks, and the toy's v on a third: the same bits. */
static void elsewhere(ng_block *b, ng_stat *s) {
  const ng_grid *g = &b->p->grid;
  const int32_t at = (int32_t)(s - b->stat) + 1 + b->number;
  s->owner = b->column + at % g->m * g->n; /* of the block's column */
}

static void test_owners(void **state) {
  (void)state;
  static const char *const solver[] = {"solver=cholesky", "solver=eigen",
                                       "solver=eigen damping_split=joint prediv=1",
                                       "damping_leak=1 solver=eigen"};
  char text[512], more[512];
  for (int k = 0; k < 4; k++) {
    for (int32_t ranks = 2; ranks <= MOST_RANKS; ranks++) {
      const char *set = with(more, folds[k % 2], solver[k]);
      if (ranks == 4) set = with(text, set, "grad_worker_fraction=0.5");
      life *l = new_life(set, ranks), *together = lived(new_life(set, ranks));
      l->place = elsewhere;
      (void)lived(l);
      same_from(l, together, 0);
      free(l);
      free(together);
    }
  }
}

/* Who sums and who keeps: averages with the owner only, or made by every rank for itself. */
static ng_spread spread_of_v;

static void spread_v(ng_block *b, ng_stat *s) {
  if (b->family == &toy_diagonal) s->spread = spread_of_v;
}

static void test_spreads(void **state) {
  (void)state;
  static const ng_spread spreads[] = {NG_SPREAD_OWNER, NG_SPREAD_SAME};
  char text[512];
  for (int f = 0; f < 2; f++) {
    for (int k = 0; k < 2; k++) {
      for (int32_t ranks = 1; ranks <= MOST_RANKS; ranks++) {
        const char *set = with(text, folds[f], "grad_worker_fraction=0");
        life *l = new_life(set, ranks);
        spread_of_v = spreads[k];
        l->place = spread_v;
        as_predicted(lived(l));
        free(l);
      }
    }
  }
}

/* Sums of layers leave while others are still observed; a transport that does everything as
 * late as it may gives the same bits.  What has left is closed. */
static void test_posted(void **state) {
  (void)state;
  char text[512];
  const char *set = with(text, folds[0], "stat_bucket_mb=0");
  for (int32_t ranks = 2; ranks <= MOST_RANKS; ranks++) {
    life *l = new_life(set, ranks), *waited = lived(new_life(set, ranks));
    l->post = true;
    (void)lived(l);
    same_from(l, waited, 0);
    for (int32_t r = 0; r < ranks; r++) {
      assert_int_equal(l->in_flight[r], 2 * 3 * STEPS); /* A and G of each layer, and nothing else */
      assert_true(l->again[r]);
    }
    free(l);
    free(waited);
  }
}

/* ---- registration ----------------------------------------------------------------------------*/

static void refused(ng_context *ctx, const ng_family *f, const char *says) {
  char why[256] = "";
  const int32_t before = ctx->families;
  assert_int_equal(ng_family_register(ctx, f, why, sizeof why), NG_ERR_ARG);
  if (strstr(why, says) == NULL) fail_msg("'%s' does not say '%s'", why, says);
  assert_int_equal(ctx->families, before);
}

static void test_registered(void **state) {
  (void)state;
  ng_context *ctx = NULL;
  assert_int_equal(ng_context_create(NG_VERSION, NULL, NULL, 0, &ctx), NG_OK);
  const int32_t own = ctx->families; /* the library's */
#define WITHOUT(entry)                                                                             \
  do {                                                                                             \
    ng_family f = toy_diagonal;                                                                    \
    f.entry = NULL;                                                                                \
    refused(ctx, &f, "'diagonal': " #entry " is missing");                                         \
  } while (0)
  WITHOUT(fits);
  WITHOUT(check);
  WITHOUT(create);
  WITHOUT(destroy);
  WITHOUT(statistics);
  WITHOUT(plan);
  WITHOUT(observe);
  WITHOUT(measure);
  WITHOUT(emit_tile);
  ng_family f = toy_diagonal;
  f.shared = NULL;
  refused(ctx, &f, "solve and shared");
  f = toy_diagonal;
  f.version = NG_FAMILY_VERSION + 1;
  refused(ctx, &f, "version is 3, expected 2");
  f = toy_diagonal;
  f.name = "kronecker";
  refused(ctx, &f, "is already registered");
  refused(ctx, NULL, "NULL");
  char name[NG_FAMILIES_MAX][16];
  ng_family many[NG_FAMILIES_MAX];
  for (int32_t i = own; i <= NG_FAMILIES_MAX; i++) {
    ng_family *m = &many[i - own];
    *m = toy_diagonal;
    (void)snprintf(name[i - own], sizeof name[0], "f%d", i);
    m->name = name[i - own];
    if (i < NG_FAMILIES_MAX) {
      assert_int_equal(ng_family_register(ctx, m, NULL, 0), NG_OK);
    } else {
      refused(ctx, m, "at most 16 families");
    }
  }
  ng_context_destroy(&ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_explained),  cmocka_unit_test(test_ranks_and_fractions),
      cmocka_unit_test(test_norm),       cmocka_unit_test(test_resume),
      cmocka_unit_test(test_skip),       cmocka_unit_test(test_owners),
      cmocka_unit_test(test_posted),     cmocka_unit_test(test_spreads),
      cmocka_unit_test(test_registered),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
