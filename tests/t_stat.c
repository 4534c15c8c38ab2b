/* t_stat.c: a statistic by itself, over ranks that are played one after the other: every rule against
 * its formula in double, what each owner has after a fold, and that nothing of a step is left.
 *
 * Tolerance.  A sum or average is a few operations on f32, or on double that is kept in f32: 1e-6 is
 * some eight roundings. */
#include "core/core.h"
#include "stat/stat.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "draw.h"

enum { RANKS = 3, N = 3, TRI = 6, MOST_CALLS = 3, FOLDS = 4 };

/* One statistic as each rank has it: a vector of N, or a symmetric matrix of order N. */
typedef struct each {
  ng_stat s;
  ng_stat_part part;
  double room[TRI]; /* the sum, f32 or f64 */
  float average[TRI], left[TRI];
  double shift;
} each;

static ng_context *ctx;

static int open_context(void **state) {
  (void)state;
  ng_context_config c;
  ng_context_config_init(&c, sizeof c);
  c.linalg = "ref";
  c.threads = 1;
  return ng_context_create(NG_VERSION, &c, NULL, 0, &ctx) == NG_OK ? 0 : -1;
}

static int close_context(void **state) {
  (void)state;
  ng_context_destroy(&ctx);
  return 0;
}

static void make(each e[RANKS], bool symmetric, ng_rule rule, ng_spread spread, int32_t owner) {
  for (int32_t r = 0; r < RANKS; r++) {
    memset(&e[r], 0, sizeof e[r]);
    ng_stat *s = &e[r].s;
    e[r].part.rows = symmetric ? N : 1;
    e[r].part.cols = N;
    e[r].part.offsets = 1;
    s->name = "x";
    s->sees = NG_SEES_INPUT;
    s->symmetric = symmetric;
    s->kept = s->wire = NG_F32;
    s->parts = s->groups = 1;
    s->part = &e[r].part;
    s->rule = rule;
    s->spread = spread;
    s->owner = owner;
    s->observes = spread != NG_SPREAD_LOCAL || r == owner;
    s->keeps = r == owner || spread == NG_SPREAD_ALL;
    s->observers = ng_stat_sent(s) ? RANKS : 1;
    if (s->keeps) s->part->average = e[r].average;
    if (s->observes) s->part->sum = e[r].room;
    ng_stat_begin(s);
  }
}

static void observe(each *e, int64_t samples, const float *x) {
  ng_stat *s = &e->s;
  ng_stat_prepare(s, samples, 0, 0);
  ng_stat_retain(ctx->queue, s);
  for (int64_t i = 0; i < ng_stat_part_count(s, s->part); i++) {
    if (s->wire == NG_F64) {
      ((double *)s->part->sum)[i] += s->mix.fresh * (double)x[i];
    } else {
      ((float *)s->part->sum)[i] += (float)(s->mix.fresh * (double)x[i]);
    }
  }
  ng_stat_count(s);
}

/* What the exchange does: weights of all, then sums of what is sent. */
static void exchange_of(each e[RANKS], bool shared) {
  double total[2] = {0};
  for (int32_t r = 0; r < RANKS; r++) {
    double w[2];
    ng_stat_weights(&e[r].s, w);
    total[0] += w[0];
    total[1] += w[1];
  }
  for (int32_t r = 0; r < RANKS; r++) {
    ng_stat_agreed(&e[r].s, total, shared);
    if (ng_stat_sent(&e[r].s)) ng_stat_to_wire(ctx->queue, &e[r].s);
    e[r].s.posted = true;
  }
  const int64_t n = ng_stat_part_count(&e[0].s, e[0].s.part);
  for (int64_t i = 0; i < n && ng_stat_sent(&e[0].s); i++) {
    double sum = 0.0;
    for (int32_t r = 0; r < RANKS; r++) {
      const void *at = e[r].s.part->sum;
      sum += e[r].s.wire == NG_F64 ? ((const double *)at)[i] : (double)((const float *)at)[i];
    }
    for (int32_t r = 0; r < RANKS; r++) {
      void *at = e[r].s.part->sum;
      if (e[r].s.wire == NG_F64) {
        ((double *)at)[i] = sum;
      } else {
        ((float *)at)[i] = (float)sum;
      }
    }
  }
}

static void exchange(each e[RANKS]) { exchange_of(e, false); }

/* Nothing of the step: what the next one would begin with. */
static void assert_closed(const each *e) {
  assert_true(e->s.w == 0.0 && e->s.total == 0.0 && e->s.total_keep == 0.0 && e->s.keep == 1.0);
  assert_false(e->s.posted);
  for (int i = 0; i < TRI && e->s.observes; i++) {
    assert_true(e->room[i] == 0.0);
  }
}

static void assert_near(double got, double want) {
  if (!(fabs(got - want) <= 1e-6 * fmax(1.0, fabs(want)))) fail_msg("%g, expected %g", got, want);
}

/* ---- every rule, against its formula ---------------------------------------------------------*/

/* Calls of one rank in a step: none for the last rank in every second step. */
static int32_t calls_of(int32_t step, int32_t r) {
  if (r == RANKS - 1 && step % 2 == 1) return 0;
  return 1 + (step + r) % MOST_CALLS;
}

static void fresh(int32_t step, int32_t r, int32_t call, float x[TRI]) {
  rng g = {test_seed() ^ (uint64_t)(step * 100 + r * 10 + call)};
  for (int i = 0; i < TRI; i++) {
    x[i] = (float)rng_value(&g);
  }
}

static int64_t samples_of(int32_t r, int32_t call) { return 1 + (3 * r + call) % 4; }

/* One rank's {w, w keep, S}: formulas of stat.c, S of element i. */
static void one_rank(const ng_rule *o, int32_t step, int32_t r, bool started, int i,
                     double out[3]) {
  double w = 0, keep = 1, S = 0;
  bool any = started;
  for (int32_t c = 0; c < calls_of(step, r); c++) {
    float x[TRI];
    fresh(step, r, c, x);
    const int64_t take =
        o->stat_batch > 0 && o->stat_batch < samples_of(r, c) ? o->stat_batch : samples_of(r, c);
    const double weight = o->weight == NG_CALL_WEIGHT_EQUAL ? 1.0 : (double)take;
    const double rho = !any && o->start == NG_START_FIRST ? 0.0 : o->decay, v = (double)x[i];
    if (o->calls == NG_CALLS_EMA) {
      S = c == 0 ? (1 - rho) * v : rho * S + (1 - rho) * v;
      keep *= rho;
      w += weight;
      any = true;
    } else if (o->calls == NG_CALLS_LAST) {
      S = weight * v;
      keep = rho;
      w = weight;
    } else {
      S += weight * v;
      keep = rho;
      w += weight;
    }
  }
  out[0] = w;
  out[1] = w * keep;
  out[2] = o->calls == NG_CALLS_EMA ? w * S : S;
}

static double predicted(const ng_rule *o, int32_t step, bool started, double F, int i,
                        int32_t only) {
  double w = 0, wk = 0, S = 0;
  for (int32_t r = 0; r < RANKS; r++) {
    double mine[3];
    if (only >= 0 && r != only) continue;
    one_rank(o, step, r, started, i, mine);
    w += mine[0];
    wk += mine[1];
    S += mine[2];
  }
  const double keep = wk / w;
  return keep * F + (o->calls == NG_CALLS_EMA ? S / w : (1 - keep) * S / w);
}

static void play(ng_rule rule, bool symmetric, ng_spread spread) {
  const int32_t owner = 1, n = symmetric ? TRI : N;
  each e[RANKS];
  double F[TRI] = {0};
  make(e, symmetric, rule, spread, owner);
  for (int64_t j = 0; j < N && symmetric && rule.start == NG_START_IDENTITY; j++) {
    F[ng_sym_at(N, j, j)] = 1.0;
  }
  for (int32_t step = 0; step < FOLDS; step++) {
    for (int32_t r = 0; r < RANKS; r++) {
      for (int32_t c = 0; c < calls_of(step, r) && e[r].s.observes; c++) {
        float x[TRI];
        fresh(step, r, c, x);
        observe(&e[r], samples_of(r, c), x);
      }
    }
    exchange(e);
    for (int i = 0; i < n; i++) {
      F[i] = predicted(&rule, step, step > 0, F[i], i, spread == NG_SPREAD_LOCAL ? owner : -1);
    }
    for (int32_t r = 0; r < RANKS; r++) {
      assert_int_equal(ng_stat_fold(ctx->queue, &e[r].s), NG_OK);
      assert_true(e[r].s.started);
      assert_closed(&e[r]);
      for (int i = 0; i < n && e[r].s.keeps; i++) {
        assert_near((double)e[r].average[i], F[i]);
      }
      for (int i = 0; i < n && !e[r].s.keeps; i++) {
        assert_true(e[r].average[i] == 0.0f); /* not its own */
      }
    }
  }
}

static void test_rules(void **state) {
  (void)state;
  static const ng_calls calls[] = {NG_CALLS_MEAN, NG_CALLS_EMA, NG_CALLS_LAST};
  static const ng_call_weight weights[] = {NG_CALL_WEIGHT_SAMPLES, NG_CALL_WEIGHT_EQUAL};
  static const ng_start starts[] = {NG_START_FIRST, NG_START_ZERO, NG_START_IDENTITY};
  static const ng_spread spreads[] = {NG_SPREAD_ALL, NG_SPREAD_OWNER, NG_SPREAD_LOCAL};
  for (int k = 0; k < 3 * 2 * 3 * 3 * 2; k++) {
    const bool symmetric = k / 54 % 2 == 0;
    const ng_rule rule = {.averaged = true,
                          .calls = calls[k % 3],
                          .weight = weights[k / 3 % 2],
                          .start = starts[k / 6 % 3],
                          .stat_batch = k % 5 == 0 ? 2 : 0,
                          .decay = 0.75};
    play(rule, symmetric, spreads[k / 18 % 3]);
  }
}

/* ---- what is left, and what is refused -------------------------------------------------------*/

static const ng_rule mean = {.averaged = true, .start = NG_START_FIRST, .decay = 0.5};
static const float ones[TRI] = {1, 1, 1, 1, 1, 1};

/* Forgotten before ranks have spoken, after, by a rank that saw nothing, and after a refusal. */
static void test_forgotten(void **state) {
  (void)state;
  for (int when = 0; when < 3; when++) {
    each e[RANKS];
    make(e, true, mean, when == 1 ? NG_SPREAD_OWNER : NG_SPREAD_ALL, 1);
    for (int32_t r = 0; r < RANKS - 1; r++) {
      observe(&e[r], 2, ones);
    }
    if (when > 0) exchange(e); /* now the last rank has the sum of the others */
    for (int32_t r = 0; r < RANKS; r++) {
      if (when == 2) ((float *)e[r].s.part->sum)[TRI - 1] = INFINITY;
      if (when == 2) {
        assert_int_equal(ng_stat_fold(ctx->queue, &e[r].s), NG_SKIPPED);
      } else {
        ng_stat_forget(&e[r].s);
      }
      assert_false(e[r].s.started);
      assert_closed(&e[r]);
      for (int i = 0; i < TRI; i++) {
        assert_true(e[r].average[i] == 0.0f);
      }
    }
  }
}

/* Without an average: the plain sum of all ranks, until it is forgotten; what is not finite is found. */
static void test_plain_sum(void **state) {
  (void)state;
  for (int wide = 0; wide < 2; wide++) {
    each e[RANKS];
    make(e, false, (ng_rule){.averaged = false}, NG_SPREAD_ALL, 0);
    for (int32_t r = 0; r < RANKS; r++) {
      e[r].s.wire = wide ? NG_F64 : NG_F32;
      observe(&e[r], 4, ones);
      observe(&e[r], 9, ones);
    }
    exchange(e);
    for (int32_t r = 0; r < RANKS; r++) {
      const void *sum = e[r].s.part->sum;
      assert_int_equal(ng_stat_fold(ctx->queue, &e[r].s), NG_OK);
      for (int i = 0; i < N; i++) {
        assert_true((wide ? ((const double *)sum)[i] : (double)((const float *)sum)[i]) ==
                    2.0 * RANKS);
      }
      ng_stat_forget(&e[r].s);
      assert_closed(&e[r]);
    }
    observe(&e[0], 1, ones);
    if (wide) {
      e[0].room[N - 1] = NAN;
    } else {
      ((float *)e[0].s.part->sum)[N - 1] = NAN;
    }
    exchange(e);
    assert_int_equal(ng_stat_fold(ctx->queue, &e[0].s), NG_SKIPPED);
    assert_closed(&e[0]);
  }
}

/* What waits for the diagonal is added once, weighted as the old average is: divided by the ranks, or whole where
 * all of them have it in their averages, or share their micro-batches. */
static void test_shift(void **state) {
  (void)state;
  for (int k = 0; k < 4; k++) {
    each e[RANKS];
    ng_rule rule = mean;
    rule.undivided = k % 2 != 0;
    const bool shared = k >= 2;
    const double shift = 0.6 * (rule.undivided || shared ? 1 : RANKS);
    make(e, true, rule, NG_SPREAD_ALL, 0);
    for (int step = 0; step < 2; step++) {
      for (int32_t r = 0; r < RANKS; r++) {
        if (step == 1) {
          e[r].s.shift = &e[r].shift;
          e[r].shift = shift;
        }
        observe(&e[r], 2, ones);
      }
      exchange_of(e, shared);
      for (int32_t r = 0; r < RANKS; r++) {
        assert_int_equal(ng_stat_fold(ctx->queue, &e[r].s), NG_OK);
        assert_true(e[r].shift == 0.0);
        for (int64_t i = 0; i < N; i++) {
          for (int64_t j = 0; j <= i; j++) {
            assert_near((double)e[r].average[ng_sym_at(N, i, j)],
                        1.0 + (step == 1 && i == j ? 0.5 * 0.6 : 0.0));
          }
        }
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_rules), cmocka_unit_test(test_forgotten),
                                     cmocka_unit_test(test_plain_sum),
                                     cmocka_unit_test(test_shift)};
  return cmocka_run_group_tests(tests, open_context, close_context);
}
