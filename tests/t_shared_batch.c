/* t_shared_batch.c: ranks that share a micro-batch (ng_batch.whole) equal one rank with the whole batch, for every
 * row whose statistics are summed over ranks: uneven shards, ranks without samples, means and sums, every
 * stat_batch.  On threads and over MPI. */
#include "families.h"
#include "ranks.h"
#include "unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 2 };

#if defined(NG_TEST_MPI)
enum { RANK_COUNTS = 1, PATTERNS = 1, DESCRIPTIONS = 2, TAKES = 1 };
static int32_t rank_count(int k) { return k + ranks_process_count(); } /* all processes */
#else
static const int32_t rank_counts[] = {2, 3, 5};
enum { RANK_COUNTS = sizeof rank_counts / sizeof rank_counts[0] };
enum { PATTERNS = 3, DESCRIPTIONS = 4, TAKES = 4 };
static int32_t rank_count(int k) { return rank_counts[k]; }
#endif

/* Samples of a rank.  Pattern 0: every second rank has samples; 1: only the last rank; SHARED: every rank. */
enum { SHARED = 2 };
static int64_t count_samples(int pattern, int32_t t, int32_t rank, int32_t ranks) {
  if (pattern == SHARED) return 1 + (3 * rank + t) % 5;
  if (pattern == 1) return rank == ranks - 1 ? 5 : 0;
  return (rank + t) % 2 == 0 ? 0 : 1 + (3 * rank + t) % 5;
}

static test_case *make_sharded_case(const variant *v, int32_t steps, int32_t ranks, int pattern) {
  rng r = {test_seed() ^ 43};
  test_case *s = v_new_layers(v, steps, ranks);
  for (int32_t t = 0; t < steps; t++) {
    for (int32_t k = 0; k < ranks; k++)
      case_add_micro(s, t, k, count_samples(pattern, t, k, ranks))->batch.reduction = NG_SUM;
  }
  case_fill(s, &r);
  return s;
}

/* Equivalent descriptions of a batch. */
typedef struct description {
  bool mean, last, silent, whole; /* silent: ranks without samples do not observe */
} description;

static void set_batch_fields(test_case *s, const description *m) {
  for (int32_t t = 0; t < s->steps; t++) {
    int64_t whole = 0;
    for (int32_t k = 0; k < s->ranks; k++) {
      case_micro *x = &s->micro[t][k][0];
      x->batch.first = m->whole ? whole : 0;
      x->batch.last = m->last;
      whole += x->batch.samples;
      if (x->batch.samples > 0) continue;
      if (m->mean) x->batch.loss_scale = 0; /* 0: the rank's share of all samples */
      for (int32_t l = 0; l < s->layers && m->silent; l++) {
        free(x->a[l][0]);
        free(x->g[l][0]);
        x->a[l][0] = x->g[l][0] = NULL;
      }
    }
    for (int32_t k = 0; k < s->ranks; k++)
      s->micro[t][k][0].batch.whole = m->whole ? whole : 0;
  }
}

static void ranks_equal_one_rank(const variant *v) {
  static const description row[] = {{true, true, true, true},
                                    {true, false, true, false},
                                    {false, false, false, true},
                                    {false, true, false, false}};
  static const double take[] = {-1, 0, 2, 5};
  const ng_options usual = v_options(v);
  /* DP-KFAC observes the owner's samples only; batch norms depend on the shard */
  if (v->f->shards == NO_PARTS) return;
  for (int i = 0; i < RANK_COUNTS * PATTERNS; i++) {
    for (size_t k = 0; k < DESCRIPTIONS; k++) {
      const bool shared = i % PATTERNS == SHARED;
      if (!row[k].whole && (v->f->shards != ANY_PARTS || shared)) continue;
      /* A damping that leaks into an average is divided by the number of ranks (as published), which changes
       * results from the second step on; ranks that share a batch add it whole. */
      const int32_t steps = usual.base.damping_leak != NG_LEAK_NONE && !row[k].whole ? 1 : STEPS;
      test_case *s = make_sharded_case(v, steps, rank_count(i / PATTERNS), i % PATTERNS),
                *whole = case_merge(s);
      if (row[k].mean) {
        v_average_losses(s);
        v_average_losses(whole);
      }
      set_batch_fields(s, &row[k]);
      char what[80];
      (void)snprintf(what, sizeof what, "%d ranks, pattern %d, description %d", s->ranks,
                     i % PATTERNS, (int)k);
      v_runs_must_match(v, what, s, &usual, whole, &usual, v_tolerance(v, whole, &usual));
      for (int n = 1; n < TAKES && shared && s->ranks != 3; n++) {
        ng_options o = usual; /* stat_batch counts samples of the whole batch */
        if (take[n] == (double)usual.base.stat_batch) continue; /* the row's own value */
        fixture_set_real(&o, "stat_batch", take[n]);
        v_runs_must_match(v, what, s, &o, whole, &o, v_tolerance(v, whole, &o));
      }
      case_destroy(&s);
      case_destroy(&whole);
    }
  }
}

/* calls = last: a rank without samples in the last call contributes nothing, as one rank's earlier calls
 * contribute nothing. */
static void empty_last_call_adds_nothing(const variant *v) {
  enum { RANKS = 2, B = 4 };
  rng r = {test_seed() ^ 44};
  const ng_options usual = v_options(v); /* with one call, `calls` has no effect */
  ng_options o = usual;
  if (v->f->shards != ANY_PARTS || rank_count(0) != RANKS) return;
  fixture_set(&o, "calls", "last");
  test_case *s = v_new_layers(v, 1, RANKS), *one = v_new_layers(v, 1, 1);
  for (int32_t k = 0; k < RANKS; k++) {
    case_add_micro(s, 0, k, 3 - k)->batch.reduction = NG_SUM;
    case_add_micro(s, 0, k, k == 0 ? B : 0)->batch.reduction = NG_SUM;
  }
  case_add_micro(one, 0, 0, B)->batch.reduction = NG_SUM;
  case_fill(s, &r);
  case_fill(one, &r);
  for (int32_t l = 0; l < s->layers; l++) {
    const case_micro *from = &s->micro[0][0][1], *to = &one->micro[0][0][0];
    memcpy(one->D[0][l], s->D[0][l], sizeof(double) * (size_t)case_weight_count(s, l));
    memcpy(to->a[l][0], from->a[l][0], sizeof(double) * (size_t)case_input_count(s, l, B));
    memcpy(to->g[l][0], from->g[l][0], sizeof(double) * (size_t)case_output_count(s, l, B));
  }
  v_runs_must_match(v, "no samples in the last call", s, &o, one, &usual,
                    v_tolerance(v, one, &usual));
  case_destroy(&s);
  case_destroy(&one);
}

static void expect_refusal(const variant *v, test_case *s, ng_status st, const char *message) {
  const ng_options o = v_options(v);
  case_result r;
  case_run(s, &o, &(case_setup){.linalg = v->linalg}, &r);
  if (r.status != st || strstr(r.message, message) == NULL)
    v_fail(v, "%s %s, expected %s", ng_status_name(r.status), r.message, message);
  case_free_result(&r);
  case_destroy(&s);
}

/* A single rank needs samples, and its samples must lie within the whole batch. */
static void invalid_batch_sizes_are_refused(const variant *v) {
  static const struct {
    int64_t samples, whole, first;
    const char *message;
  } bad[] = {{0, 0, 0, "samples is 0, expected at least 1 on a single rank"},
             {-1, 0, 0, "samples is -1, expected the number"},
             {3, 0, 1, "first is"},
             {3, 2, 0, "first is"},
             {3, 4, 2, "first is"},
             {3, 4, -1, "first is"},
             {3, -4, 0, "first is"},
             {3, (INT64_C(1) << 31) + 1, 0, "first is"},
             {3, 3, INT64_MAX, "first is"}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    test_case *s = v_new_even_case(v, 1, 1, 42);
    ng_batch *b = &s->micro[0][0][0].batch;
    b->samples = bad[i].samples;
    b->whole = bad[i].whole;
    b->first = bad[i].first;
    expect_refusal(v, s, NG_ERR_ARG, bad[i].message);
  }
}

#if !defined(NG_TEST_MPI)
/* Ranks with different sizes of the whole batch: 3 more, or none, on one rank. */
static void different_wholes_are_refused(const variant *v) {
  for (int more = 0; more < 2; more++) {
    test_case *s = v_new_even_case(v, 2, 3, 43);
    ng_batch *b = &s->micro[1][1][0].batch;
    set_batch_fields(s, &(description){.whole = true});
    b->whole = more ? b->whole + 3 : 0;
    if (!more) b->first = 0;
    expect_refusal(v, s, NG_ERR_STATE, "ng_batch.whole differs");
  }
}
#endif

int main(void) {
  static const property list[] = {
    {"as one rank", READS_INPUT, ranks_equal_one_rank},
    {"the last call", READS_INPUT, empty_last_call_adds_nothing},
#if !defined(NG_TEST_MPI)
    {"of one batch", READS_INPUT, different_wholes_are_refused},
#endif
    {"refused", EVERYONE, invalid_batch_sizes_are_refused}
  };
  return PROPERTIES_MAIN("shared batches", list);
}
