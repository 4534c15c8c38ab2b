/* t_stale.c: stat_refresh = adaptive: at which steps a statistic is made anew, with what PD is made between
 * them, on one rank and several, and after a resume.
 *
 * The layer is 1 x 1 without a bias, one sample a step and stat_decay = 0: A = a^2, G = g^2, and with
 * damping_split = full PD = D / ((A + lambda) (G + lambda)), of which every number is scripted.  The oracle is
 * the rule once more, on those numbers. */
#include "fixture.h"
#include "ranks.h"
#include "stat/stat.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { STEPS = 40, RANKS = 2 };
static const char *const options = "method=natgrad clip=none stat_decay=0 damping=0.5 "
                                   "damping_split=full stat_refresh=adaptive";

/* ---- the oracle ------------------------------------------------------------------------------*/

typedef struct rule {
  double x, older; /* X1, X2 */
  int refreshed, next, last, before;
} rule;

static bool like(double a, double b) { return fabs(a - b) / fabs(b) < 0.1; }

/* Whether it is due at step t; then X is `now`. */
static bool rule_step(rule *r, int t, double now) {
  if (t < r->next) return false;
  const bool one = r->refreshed > 0 && like(now, r->x),
             two = r->refreshed > 1 && like(now, r->older);
  const int d = !one ? (r->last > 3 ? r->last / 2 : 1) : !two ? r->last : r->last + r->before;
  r->older = r->x;
  r->x = now;
  r->before = r->last;
  r->last = d;
  r->next = t + d;
  r->refreshed++;
  return true;
}

static const rule begin = {.last = 1, .before = 1};

/* Scripts: still; a jump; a slow drift of 3 % a step; every step another. */
static double script(int which, int t) {
  switch (which) {
  case 0:
    return 2;
  case 1:
    return t < 17 ? 1 : 3;
  case 2:
    return pow(1.03, t);
  default:
    return 1 + t % 3;
  }
}

/* ---- the library -----------------------------------------------------------------------------*/

typedef struct life {
  int a, g; /* scripts */
  int32_t ranks;
  int from, to, bad; /* steps; one whose gradient is NaN first, -1: none */
  const char *options, *save, *load;
  float P[RANKS][STEPS];
  ng_statistic_report seen[RANKS][STEPS][2];
  int32_t wanted[RANKS][STEPS];
  int64_t factors;
} life;

static ng_status live(int32_t rank, ng_transport *t, void *arg) {
  life *l = arg;
  fixture f;
  float D, x, y;
  const plane grad[2] = {plane_of(&D, 1, 1, NG_F32), {0}}, a = plane_of(&x, 1, 1, NG_F32),
              g = plane_of(&y, 1, 1, NG_F32);
  const fixture_how how = {.threads = 1, .transport = l->ranks > 1 ? t : NULL};
  ng_status st = fixture_open(&f, l->options, &how);
  if (st == NG_OK) st = fixture_linear(&f, "fc", grad, NULL);
  if (st == NG_OK) st = ng_ready(f.p);
  if (st == NG_OK && l->load != NULL) st = ng_load(f.p, l->load);
  for (int s = l->from; s < l->to && st >= NG_OK; s++) {
    for (int bad = s == l->bad; bad >= 0 && st >= NG_OK; bad--) {
      x = (float)script(l->a, s);
      y = (float)script(l->g, s);
      D = bad ? NAN : (float)(s + 1);
      l->wanted[rank][s] = ng_wants(f.p, 0);
      st = fixture_show(&f, 1, 0, &a, &g);
      if (st == NG_OK) st = ng_step(f.p, 0.1);
      if (bad && st != NG_SKIPPED) return NG_ERR_ARG;
    }
    l->P[rank][s] = D;
    for (int k = 0; k < 2 && st >= NG_OK; k++) {
      l->seen[rank][s][k].struct_size = sizeof l->seen[0][0][0];
      st = ng_report_statistic(f.p, k, &l->seen[rank][s][k]);
    }
  }
  if (st >= NG_OK && l->save != NULL) st = ng_save(f.p, l->save);
  ng_report held = {.struct_size = sizeof held};
  if (st >= NG_OK && rank == 0 && ng_report_read(f.p, &held) == NG_OK) l->factors = held.factors;
  if (st < NG_OK) print_message("rank %d: %s\n", rank, f.ctx ? ng_last_error(f.ctx) : f.message);
  fixture_close(&f);
  return st;
}

static void play(life *l) {
  if (l->options == NULL) l->options = options;
  if (l->to == 0) l->to = STEPS;
  const ng_status st = l->ranks > 1 ? ranks_run(l->ranks, live, l, NULL) : live(0, NULL, l);
  if (st != NG_OK) fail_msg("%s", ng_status_name(st));
}

/* Every step of a life is what the rule says, of A and of G apart. */
static void as_the_rule(const life *l, int from) {
  rule A = begin, G = begin;
  const double lambda = 0.5;
  const bool pi = strstr(l->options, "damping_split=pi") != NULL;
  double on[2] = {lambda, lambda}; /* of the last solve of each side */
  int due[2] = {0, 0};
  for (int t = 0; t < l->to; t++) {
    const double a = script(l->a, t), g = script(l->g, t);
    const bool now[2] = {rule_step(&A, t, a * a), rule_step(&G, t, g * g)};
    const rule *r[2] = {&A, &G};
    due[0] += now[0];
    due[1] += now[1];
    if (pi && now[0]) on[0] = sqrt(lambda) * sqrt(A.x / G.x);
    if (pi && now[1]) on[1] = sqrt(lambda) / sqrt(A.x / G.x);
    if (t < from) continue;
    const double want = (t + 1) / ((A.x + on[0]) * (G.x + on[1]));
    for (int32_t rank = 0; rank < (l->ranks > 1 ? l->ranks : 1); rank++) {
      if (!(fabs((double)l->P[rank][t] - want) <= 1e-5 * want))
        fail_msg("step %d: %g, not %g", t, (double)l->P[rank][t], want);
      assert_int_equal(l->wanted[rank][t], now[0] || now[1]);
      for (int k = 0; k < 2; k++) {
        const ng_statistic_report *s = &l->seen[rank][t][k];
        assert_string_equal(s->name, k == 0 ? "A" : "G");
        assert_int_equal(s->refreshed, due[k]);
        assert_int_equal(s->passed, t + 1 - due[k]);
        assert_int_equal(s->interval, r[k]->last);
        assert_int_equal(s->next, r[k]->next);
        assert_int_equal(s->bytes_sent, l->ranks > 1 ? 4 * due[k] : 0);
        assert_int_equal(s->bytes_passed, l->ranks > 1 ? 4 * (t + 1 - due[k]) : 0);
      }
    }
  }
}

/* ---- tests -----------------------------------------------------------------------------------*/

/* Still: d = 1, 1, then sums: steps 0, 1, 2, 4, 7, 12, 20, 33. */
static void refresh_steps_by_hand(void **state) {
  static const int steps[] = {0, 1, 2, 4, 7, 12, 20, 33};
  rule r = begin;
  ng_stale s = {.last = 1, .before = 1};
  (void)state;
  for (int t = 0, k = 0; t < STEPS; t++) {
    const bool due = rule_step(&r, t, 5);
    assert_int_equal(due, k < 8 && steps[k] == t);
    k += due;
  }
  /* the library's own rule, from verdicts */
  static const struct {
    ng_verdict verdict;
    int64_t next, last;
  } by[] = {{NG_UNLIKE, 1, 1},    {NG_LIKE_LAST, 2, 1},  {NG_LIKE_BOTH, 4, 2},
            {NG_LIKE_BOTH, 7, 3}, {NG_LIKE_LAST, 10, 3}, {NG_LIKE_BOTH, 16, 6},
            {NG_UNLIKE, 19, 3},   {NG_UNLIKE, 20, 1},    {NG_UNLIKE, 21, 1}};
  for (size_t k = 0; k < sizeof by / sizeof by[0]; k++) {
    ng_stale_advance(&s, by[k].verdict, s.next);
    assert_int_equal(s.next, by[k].next);
    assert_int_equal(s.last, by[k].last);
  }
}

static void scripted(void **state) {
  (void)state;
  for (int k = 0; k < 16; k++) {
    for (int32_t ranks = 1; ranks <= RANKS; ranks++) {
      life l = {.a = k / 4, .g = k % 4, .ranks = ranks, .bad = -1};
      play(&l);
      as_the_rule(&l, 0);
    }
  }
}

/* Statistics of the owner: the other rank keeps nothing to compare, and knows the same; or keeps the other one. */
static void owners_decide(void **state) {
  (void)state;
  static const char *const spread[] = {"grad_worker_fraction=0",
                                       "colocate=0 placement=round-robin"};
  for (int k = 0; k < 2; k++) {
    life l = {.a = 1, .g = 2, .ranks = 2, .bad = -1};
    char line[256];
    (void)snprintf(line, sizeof line, "%s statistics=owner %s", options, spread[k]);
    l.options = line;
    play(&l);
    as_the_rule(&l, 0);
  }
}

/* A side that was not made anew keeps its inverse, with the pi of then. */
static void a_stale_side_is_not_solved(void **state) {
  (void)state;
  life l = {.a = 1,
            .g = 2,
            .ranks = 1,
            .bad = -1,
            .options = "method=natgrad clip=none stat_decay=0 damping=0.5 damping_split=pi "
                       "stat_refresh=adaptive"};
  play(&l);
  as_the_rule(&l, 0);
  life apart = l;
  apart.ranks = 2;
  apart.options = "method=natgrad clip=none stat_decay=0 damping=0.5 damping_split=pi "
                  "stat_refresh=adaptive statistics=owner colocate=0 placement=round-robin";
  play(&apart);
  as_the_rule(&apart, 0);
}

/* A step that is skipped after a refresh does not refresh again, and the next one is at its time. */
static void skipped_steps(void **state) {
  (void)state;
  for (int bad = 0; bad < 8; bad++) {
    life l = {.a = 0, .g = 0, .ranks = 1, .bad = bad, .to = 12},
         m = {.a = 0, .g = 0, .ranks = 1, .bad = -1, .to = 12};
    play(&l);
    play(&m);
    for (int t = 0; t < 12; t++) {
      assert_int_equal(l.seen[0][t][0].refreshed, m.seen[0][t][0].refreshed);
      assert_int_equal(l.seen[0][t][0].next, m.seen[0][t][0].next);
    }
  }
}

static void resumes(void **state) {
  char file[FIXTURE_FILE];
  (void)state;
  fixture_file(file, "t_stale");
  for (int at = 1; at < 30; at += 4) {
    life whole = {.a = 1, .g = 2, .ranks = 2, .bad = -1}, first = whole, second = whole;
    first.to = at;
    first.save = second.load = file;
    second.from = at;
    play(&whole);
    play(&first);
    play(&second);
    as_the_rule(&second, at);
    for (int32_t r = 0; r < 2; r++)
      assert_memory_equal(&second.P[r][at], &whole.P[r][at], sizeof(float) * (size_t)(STEPS - at));
  }
  (void)unlink(file);
}

/* One more array a statistic, where asked for; two arrays of 64 bytes each here. */
static void memory_is_counted(void **state) {
  (void)state;
  life l = {.ranks = 1, .bad = -1, .to = 2}, m = l;
  m.options = "method=natgrad clip=none stat_decay=0 damping_split=full";
  play(&l);
  play(&m);
  assert_int_equal(m.factors, 2 * 64);
  assert_int_equal(l.factors, 4 * 64);
}

/* Norm blocks and rank-one blocks have statistics, too: nothing moves, so few of the steps are due. */
static void every_family(void **state) {
  static const char *const how[] = {"method=eva", "method=natgrad norm_block=unit",
                                    "method=natgrad norm_block=full",
                                    "method=natgrad norm_block=diagonal", "method=kaisa"};
  (void)state;
  for (int k = 0; k < 5; k++) {
    const bool norm = k >= 1 && k <= 3;
    fixture f;
    float grad[2], x[4] = {1, 2, -1, 3}, y[4] = {1, -1, 2, 1};
    char line[128];
    (void)snprintf(line, sizeof line, "%s stat_refresh=adaptive", how[k]);
    fixture_ok(&f, fixture_open(&f, line, NULL));
    const ng_array g0 = ng_array_matrix(grad, 1, norm ? 1 : 2, NG_F32),
                   g1 = ng_array_vector(grad + 1, 1, NG_F32);
    fixture_ok(&f, norm ? ng_add_norm(f.p, "bn", NG_BATCH_NORM, 1, 1, 1e-5, NULL)
                        : ng_add_linear(f.p, "fc", 2, 1, 0, NULL));
    fixture_ok(&f, ng_bind_grad(f.p, 0, NG_WEIGHT, &g0));
    if (norm) fixture_ok(&f, ng_bind_grad(f.p, 0, NG_BIAS, &g1));
    fixture_ok(&f, ng_ready(f.p));
    const ng_array in = ng_array_matrix(x, norm ? 4 : 2, norm ? 1 : 2, NG_F32),
                   out = ng_array_matrix(y, norm ? 4 : 2, 1, NG_F32);
    for (int t = 0; t < STEPS; t++) {
      grad[0] = grad[1] = 1;
      fixture_ok(&f, ng_begin_samples(f.p, norm ? 4 : 2, 1));
      if (ng_wants(f.p, 0)) {
        fixture_ok(&f, ng_observe_input(f.p, 0, &in, NG_BORROW));
        fixture_ok(&f, ng_observe_output_grad(f.p, 0, &out, NG_COPY));
      }
      fixture_ok(&f, ng_step(f.p, 0.1));
      assert_true(isfinite(grad[0]));
    }
    ng_statistic_report r = {.struct_size = sizeof r};
    fixture_ok(&f, ng_report_statistic(f.p, 0, &r));
    /* kaisa begins at the identity and moves by 5 % a refresh */
    assert_true(r.refreshed == 8 || (k == 4 && r.refreshed < STEPS));
    assert_int_equal(r.refreshed + r.passed, STEPS);
    fixture_close(&f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(refresh_steps_by_hand),
      cmocka_unit_test(scripted),
      cmocka_unit_test(owners_decide),
      cmocka_unit_test(skipped_steps),
      cmocka_unit_test(resumes),
      cmocka_unit_test(a_stale_side_is_not_solved),
      cmocka_unit_test(memory_is_counted),
      cmocka_unit_test(every_family),
  };
  return cmocka_run_group_tests_name("stale", tests, NULL, NULL);
}
