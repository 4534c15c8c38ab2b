/* t_properties_life.c: changes of a run that must not change its results: the number of ranks and their work,
 * resuming, skipped and discarded steps.  Each property runs on every row of families.c that promises it, with
 * every linear algebra; families.h explains the tolerances.  v_run checks in every run that steps allocate nothing
 * and that ranks have the same bits. */
#include "families.h"
#include "family/family.h"
#include "late.h"
#include "ranks.h"
#include "state_help.h"
#include "unit_test.h"

#include <math.h>
#include <string.h>

#if defined(NG_TEST_MPI)
enum { RANK_COUNTS = 2 };
static int32_t rank_count(int k) { return k == 0 ? 1 : ranks_process_count(); } /* all processes */
#else
static const int32_t rank_counts[] = {1, 2, 3, 4, 8};
enum { RANK_COUNTS = sizeof rank_counts / sizeof rank_counts[0] };
static int32_t rank_count(int k) { return rank_counts[k]; }
#endif

/* A damping that leaks into the owner's average is divided by the number of ranks (as published), which changes
 * results from the second step on. */
static int32_t count_comparable_steps(const ng_options *o) {
  return o->base.damping_leak == NG_LEAK_OWNER ? 1 : 2;
}

/* Return 2 if either all ranks or only the owner may store a result; otherwise 1. */
static int count_divisions(const variant *v) { return has_promise(v, FRACTIONS) ? 2 : 1; }

static ng_options choose_worker_fraction(const variant *v, int way) {
  ng_options o = v_options(v);
  if (has_promise(v, FRACTIONS)) fixture_set_real(&o, "grad_worker_fraction", way);
  return o;
}

/* ---- ranks -----------------------------------------------------------------------------------*/

/* Ranks with shards of any size, against the prediction. */
static void ranks_match_the_prediction(const variant *v) {
  for (int k = 1; k < RANK_COUNTS; k++) {
    test_case *s = has_promise(v, ALIKE) ? v_new_even_case(v, 2, rank_count(k), 6)
                                         : v_new_uneven_case(v, 2, rank_count(k), 6);
    for (int way = 0; way < count_divisions(v); way++) {
      const ng_options o = choose_worker_fraction(v, way);
      v_must_match_prediction(v, "prediction for ranks", s, &o);
    }
    case_destroy(&s);
  }
}

/* A row with stat_batch = 16 would read more samples on more ranks. */
static ng_options use_all_samples(ng_options o) {
  fixture_set_real(&o, "stat_batch", 0);
  return o;
}

/* N ranks with a shard each equal one rank with the whole batch. */
static void shards_equal_the_whole_batch(const variant *v) {
  if (v->f->shards == NO_PARTS) return;
  for (int k = 0; k < RANK_COUNTS; k++) {
    const ng_options usual = use_all_samples(v_options(v));
    const int32_t steps = count_comparable_steps(&usual);
    test_case *s = v->f->shards == ANY_PARTS ? v_new_uneven_case(v, steps, rank_count(k), 6)
                                             : v_new_even_case(v, steps, rank_count(k), 6);
    test_case *whole = case_merge(s);
    if (v->f->shards == EVEN_MEANS) {
      v_average_losses(s);
      v_average_losses(whole);
    }
    case_result y = v_run(v, whole, &usual);
    const double tolerance = v_tolerance(v, s, &usual);
    for (int way = 0; way < count_divisions(v); way++) {
      const ng_options o = use_all_samples(choose_worker_fraction(v, way));
      case_result x = v_run(v, s, &o);
      v_must_match(v, "ranks", s, &x, &y, tolerance);
      case_free_result(&x);
    }
    case_free_result(&y);
    case_destroy(&s);
    case_destroy(&whole);
  }
}

/* The batch of `one` on every rank. */
static test_case *give_batch_to_all_ranks(const variant *v, const test_case *one, int32_t ranks) {
  test_case *s = v_new_even_case(v, one->steps, ranks, 28);
  v_average_losses(s);
  for (int32_t t = 0; t < s->steps; t++) {
    for (int32_t l = 0; l < s->layers; l++) {
      const case_micro *from = &one->micro[t][0][0];
      memcpy(s->D[t][l], one->D[t][l], sizeof(double) * (size_t)case_weight_count(s, l));
      for (int32_t r = 0; r < s->ranks; r++) {
        case_micro *to = &s->micro[t][r][0];
        memcpy(to->a[l][0], from->a[l][0], sizeof(double) * (size_t)case_input_count(s, l, 3));
        memcpy(to->g[l][0], from->g[l][0], sizeof(double) * (size_t)case_output_count(s, l, 3));
      }
    }
  }
  v_add_weights(s);
  return s;
}

/* Ranks that all have the same batch equal one rank with this batch. */
static void equal_ranks_equal_one_rank(const variant *v) {
  const ng_options usual = v_options(v);
  test_case *one = v_new_even_case(v, count_comparable_steps(&usual), 1, 27);
  v_average_losses(one);
  v_add_weights(one); /* the options of some rows need weights */
  const double tolerance = v_tolerance(v, one, &usual);
  for (int k = 1; k < RANK_COUNTS; k++) {
    test_case *s = give_batch_to_all_ranks(v, one, rank_count(k));
    for (int way = 0; way < count_divisions(v); way++) {
      const ng_options o = choose_worker_fraction(v, way);
      v_runs_must_match(v, "ranks with one batch", s, &o, one, &usual, tolerance);
    }
    case_destroy(&s);
  }
  case_destroy(&one);
}

/* Each clip sums over the blocks of all ranks. */
static void clips_sum_over_all_ranks(const variant *v) {
  test_case *one = v_new_even_case(v, 1, 1, 27), *s;
  v_average_losses(one);
  v_add_weights(one);
  s = give_batch_to_all_ranks(v, one, 3);
  const ng_options usual = v_options(v);
  const double tolerance = v_tolerance(v, one, &usual);
  for (int k = 1; k < V_CLIPS; k++) {
    ng_options o = choose_worker_fraction(v, k % count_divisions(v));
    fixture_set(&o, "clip", v_clips[k]);
    fixture_set_real(&o, "clip_bound", k < V_BOUNDED ? 0 : 0.1);
    v_runs_must_match(v, v_clips[k], s, &o, one, &o, tolerance);
  }
  case_destroy(&s);
  case_destroy(&one);
}

/* ---- resumed runs ----------------------------------------------------------------------------*/

/* One rank with threads, or three ranks. */
static test_case *usual_case(const variant *v, int32_t ranks) {
  return has_promise(v, ALIKE) ? v_new_even_case(v, 4, ranks, 13)
                               : v_new_uneven_case(v, 4, ranks, 13);
}

static case_setup usual_setup(int32_t ranks) { return (case_setup){.threads = ranks == 1 ? 3 : 1}; }

/* A new preconditioner that loads the state continues with the same bits.  The state is one file, one file per
 * rank, or single arrays that the test collects from their ranks.  If every layer is observed in every second step
 * only, the running average decides the other steps. */
static void resumed_runs_have_the_same_bits(const variant *v) {
  assert_int_equal(make_folder(NULL), 0);
  const path file = path_of("state");
  for (int k = 0; k < 7; k++) {
    const int32_t ranks = k < 3 ? 1 : 3;
    test_case *s = usual_case(v, ranks);
    ng_options o = v_options(v);
    if (k == 6 && o.base.statistics == NG_STATISTICS_SHARDED) { /* no rank stores whole arrays */
      case_destroy(&s);
      continue;
    }
    if (strncmp(o.base.method, "topk-", 5) != 0) fixture_set_real(&o, "stat_period", 1 + k % 2);
    case_setup setup = usual_setup(ranks);
    case_result x = v_run_setup(v, s, &o, setup);
    setup.resume = file.text;
    setup.resume_after = k == 0 || k == 4 ? 2 : k == 2 ? 1 : 0;
    setup.in_parts = k == 5;
    setup.by_arrays = k == 2 || k == 6;
    case_result y = v_run_setup(v, s, &o, setup);
    v_must_match(v, "resumed", s, &y, &x, 0);
    case_free_result(&x);
    case_free_result(&y);
    case_destroy(&s);
  }
  clear_folder();
  assert_int_equal(remove_empty_folder(NULL), 0);
}

/* ---- skipped steps ---------------------------------------------------------------------------*/

/* A non-finite value on one rank skips the step on all ranks and changes no gradient.  The array with this value
 * enters no average: later steps have the bits of a run that did not observe it and skipped the step for another
 * reason.  Other observations of the step do enter the averages, in both runs. */
static void non_finite_values_skip_the_step(const variant *v) {
  static const struct {
    const char *name;
    case_fault what, as;
    unsigned reads; /* rows that do not read the array cannot detect the NaN */
  } fault[] = {{"input", CASE_BAD_INPUT, CASE_NO_INPUT, READS_INPUT},
               {"output gradient", CASE_BAD_OUTPUT_GRAD, CASE_NO_OUTPUT_GRAD, READS_OUTPUT},
               {"gradient", CASE_BAD_GRADIENT, CASE_BAD_SCALE, EVERYONE}};
  for (int k = 0; k < 3 * 2; k++) {
    if (fault[k % 3].reads != EVERYONE && !has_promise(v, fault[k % 3].reads)) continue;
    const int32_t ranks = k < 3 ? 1 : 3;
    /* EKFAC needs an input with its output gradient: t_ekfac.c */
    if (k % 3 == 0 && strstr(v->f->options, "ekfac") != NULL) continue;
    test_case *s = usual_case(v, ranks);
    ng_options o = v_options(v);
    /* gradients are checked after the solve, whose damping would leak */
    fixture_set(&o, "damping_leak", "0");
    for (int32_t at = 0; at < 3; at++) {
      case_setup setup = usual_setup(ranks);
      setup.fault = fault[k % 3].what;
      setup.fault_step = at;
      case_result x = v_run_setup(v, s, &o, setup), y;
      setup.fault = fault[k % 3].as;
      /* without an average, a missing observation is an error */
      if (at > 0 || setup.fault == CASE_BAD_SCALE) {
        y = v_run_setup(v, s, &o, setup);
        v_must_match(v, fault[k % 3].name, s, &x, &y, 0);
        if (y.refused != 1) v_fail(v, "%s at %d: twin not skipped", fault[k % 3].name, at);
        case_free_result(&y);
      }
      if (x.refused != 1) v_fail(v, "%s at step %d: no step skipped", fault[k % 3].name, at);
      case_free_result(&x);
    }
    case_destroy(&s);
  }
}

/* Observations before ng_reset_batch have no effect. */
static void reset_observations_have_no_effect(const variant *v) {
  for (int32_t ranks = 1; ranks <= 3; ranks += 2) {
    test_case *s = usual_case(v, ranks);
    const ng_options o = v_options(v);
    case_setup setup = usual_setup(ranks);
    case_result clean = v_run_setup(v, s, &o, setup);
    setup.fault = CASE_ABANDONED;
    for (setup.fault_step = 0; setup.fault_step < 4; setup.fault_step += 2) {
      case_result r = v_run_setup(v, s, &o, setup);
      v_must_match(v, "abandoned", s, &r, &clean, 0);
      case_free_result(&r);
    }
    case_free_result(&clean);
    case_destroy(&s);
  }
}

/* Without curvature, P = D / damping overflows the gradient's dtype; the gradient stays. */
static void overflow_keeps_the_gradient(const variant *v) {
  static const struct {
    ng_dtype type;
    double largest;
  } type[] = {{NG_F32, 0x1p127}, {NG_F16, 0x1p15}};
  for (int k = 0; k < 2; k++) {
    test_case *s = v_new_even_case(v, 1, 1, 30);
    case_micro *m = &s->micro[0][0][0];
    case_result r;
    ng_options o = v_options(v);
    fixture_set(&o, "clip", "none");
    fixture_set_real(&o, "damping", 1e-3);
    fixture_set_real(&o, "stat_decay", 0);
    for (int32_t l = 0; l < s->layers; l++) {
      const double most = v_largest(s->D[0][l], case_weight_count(s, l));
      v_clear_array(s, m, l, false);
      v_clear_array(s, m, l, true);
      for (int64_t i = 0; i < case_weight_count(s, l); i++)
        s->D[0][l][i] = s->D[0][l][i] < most ? 0 : type[k].largest;
    }
    case_run(s, &o, &(case_setup){.linalg = v->linalg, .gradient = type[k].type}, &r);
    if (r.status != NG_SKIPPED && r.status != NG_RESCUED)
      v_fail(v, "out of range of %s: %s %s", ng_dtype_name(type[k].type), ng_status_name(r.status),
             r.message);
    for (int32_t l = 0; l < s->layers; l++)
      assert_memory_equal(r.P[0][l], s->D[0][l], sizeof(double) * (size_t)case_weight_count(s, l));
    case_free_result(&r);
    case_destroy(&s);
  }
}

/* Waits of the host for the queue in a step that refreshes and solves nothing: one in `measure`, for the sums of all
 * blocks, and one in `emit`, because the arrays are the caller's after ng_step.  Eva's options have no solve_period, so
 * its full norms are solved in every step.  A window, which refreshes in every step, waits once more in `gradients`,
 * which finds values that are not finite, and in `statistics`, for all its parameters at once.  The first step waits in
 * `solve` for all traces, then for all results, and once more for an eigenbasis in double. */
static void waits_are_few(const variant *v) {
  enum { GRADIENTS, CHECK, STATISTICS, SOLVE, SHARE, MEASURE, DELIVER, AGREE, EMIT, WEIGHTS };
  test_case *s = v_new_even_case(v, 3, 1, 41);
  ng_options o = v_options(v);
  const bool window = strstr(v->f->options, "window") != NULL;
  const bool solves = has_promise(v, VECTORS) && strstr(v->f->name, "full norms") != NULL;
  /* EKFAC measures second moments in every step. */
  const int64_t folds = strcmp(o.base.method, "ekfac") == 0 ? 2 : 0;
  if (!window) fixture_set_real(&o, "stat_period", 3);
  if (!window && (ng_family_find(o.base.family)->traits & NG_TRAIT_SOLVES) != 0)
    fixture_set_real(&o, "solve_period", 3);
  if (strcmp(v->f->name, "mfac") == 0)
    fixture_set(&o, "per_layer", "linear: window=2"); /* two blocks */
  case_result r = v_run(v, s, &o);
  if (r.waits[0][SOLVE] > (ng_is_eigen(o.base.solver) ? 3 : 2))
    v_fail(v, "waits in step 0: solve %d", (int)r.waits[0][SOLVE]);
  for (int t = 1; t < 3; t++) {
    const int64_t *is = r.waits[t];
    const bool none = is[CHECK] + is[SHARE] + is[DELIVER] + is[AGREE] + is[WEIGHTS] == 0;
    const bool few = window ? is[GRADIENTS] == 1 && is[STATISTICS] <= 2
                            : is[GRADIENTS] + is[STATISTICS] <= folds && (solves || is[SOLVE] == 0);
    const bool scales = ng_family_find(o.base.family)->scale_direction != NULL;
    if (none && few && is[MEASURE] <= 1 + scales && is[EMIT] == 1) continue;
    v_fail(
        v,
        "waits in step %d: gradients %d, statistics %d, solve %d, measure %d, emit %d, others %s",
        t, (int)is[GRADIENTS], (int)is[STATISTICS], (int)is[SOLVE], (int)is[MEASURE], (int)is[EMIT],
        none ? "none" : "some");
  }
  case_free_result(&r);
  case_destroy(&s);
}

/* SGD and AdamW update bound weights in the step.  A late queue over a backend of the host gives the bits of this backend. */
static void late_updates_have_the_same_bits(const variant *v) {
  static const char *const update[] = {"sgd", "adamw"};
  const late_backend late =
      late_over(strcmp(v->linalg, "ref") == 0 ? &ng_backend_ref : ng_backend_at(0));
  if (strcmp(v->linalg, late.backend.name) == 0 || strcmp(v->linalg, "cuda") == 0) return;
  for (int k = 0; k < 4; k++) {
    test_case *s = usual_case(v, k < 2 ? 1 : 3);
    ng_options o = v_options(v);
    fixture_set(&o, "update", update[k % 2]);
    v_add_weights(s);
    case_result x = v_run_setup(v, s, &o, (case_setup){.backend = &late.backend});
    case_result y = v_run(v, s, &o);
    v_must_match(v, update[k % 2], s, &x, &y, 0);
    case_free_result(&x);
    case_free_result(&y);
    case_destroy(&s);
  }
}

/* Over MPI, run the properties of exchanges only; state files belong to one process. */
int main(void) {
  static const property list[] = {
    {"waits are few", EVERYONE, waits_are_few},
    {"ranks share a batch", EVERYONE, shards_equal_the_whole_batch},
#if !defined(NG_TEST_MPI)
    {"ranks as predicted", PREDICTED, ranks_match_the_prediction},
    {"ranks see the same", EVERYONE, equal_ranks_equal_one_rank},
    {"ranks clip together", EVERYONE, clips_sum_over_all_ranks},
    {"resumed", EVERYONE, resumed_runs_have_the_same_bits},
    {"refused", EVERYONE, non_finite_values_skip_the_step},
    {"abandoned", EVERYONE, reset_observations_have_no_effect},
    {"out of range", LINEAR, overflow_keeps_the_gradient},
    {"updates on a late queue", EVERYONE, late_updates_have_the_same_bits},
#endif
  };
  return PROPERTIES_MAIN("properties of a life", list);
}
