/* t_option_effects.c: every option does something; see effects.h.  Those of norm layers and of windows
 * are in t_option_effects_norm.c and t_option_effects_window.c, those of placement in t_option_effects_place.c,
 * options of single layers in t_option_effects_layers.c. */
#include "effects.h"

/* The judge itself: the same run twice has the same bits, and a changed one has not. */
static void the_same_run_twice(void **state) {
  (void)state;
  const run a = with("damping=0.1"), b = with("damping=0.1");
  assert_memory_equal(a.rank[0].P, b.rank[0].P, sizeof a.rank[0].P);
  float D[TOTAL];
  gradient_of(0, D);
  run plain = a;
  memcpy(plain.rank[0].P[0], D, sizeof D);
  assert_differ(gap_at(&a, &plain, 0));
  plain.rank[0].P[0][3] = NAN;
  assert_true(isinf(gap_at(&a, &plain, 0)));
}

/* ---- curvature -------------------------------------------------------------------------------*/

/* With each factor damped on its own, both solvers invert the same matrices by other means; only
 * eigen can damp the product. */
static void effect_solver(void **state) {
  (void)state;
  const run a = with("damping=0.1 solver=cholesky"), b = with("damping=0.1 solver=eigen");
  assert_within(gap(&a, &b), DIFFERENT);
  assert_memory_not_equal(a.rank[0].P, b.rank[0].P, sizeof a.rank[0].P);
  assert_true(a.rank[0].results < b.rank[0].results); /* triangles against whole matrices */
  const run joint = with("damping=0.1 solver=eigen damping_split=joint");
  assert_differ(gap(&a, &joint));
}

/* The same inverse, multiplied with or solved with. */
static void effect_cholesky_form(void **state) {
  (void)state;
  const run a = with("damping=0.1 cholesky_form=inverse"),
            b = with("damping=0.1 cholesky_form=factor");
  assert_within(gap(&a, &b), DIFFERENT);
  assert_memory_not_equal(a.rank[0].P, b.rank[0].P, sizeof a.rank[0].P);
  /* auto is one of the two, in each layer */
  const run c = with("damping=0.1 cholesky_form=auto");
  for (int32_t i = 0; i < LAYERS; i++) {
    assert_true(gap_of(&a, &c, 0, i) == 0 || gap_of(&b, &c, 0, i) == 0);
  }
}

/* They part when the damping changes between solves. */
static void effect_prediv(void **state) {
  (void)state;
  run r = usual;
  r.settings = "solver=eigen damping_split=joint solve_period=2 damping=0.1 clip=none prediv=0";
  const run keep = play(r);
  r.set_option = "damping";
  r.set_value = "10";
  const run now = play(r);
  r.settings = "solver=eigen damping_split=joint solve_period=2 damping=0.1 clip=none prediv=1";
  const run then = play(r);
  assert_within(gap_at(&now, &then, 0), 1e-5); /* one rounding of R apart */
  assert_differ(gap_at(&now, &then, 1));       /* 10 against still 0.1 */
  assert_within(gap_at(&keep, &then, 1), 1e-5);
  assert_within(gap_at(&now, &then, 2), 1e-5); /* solved again */
}

/* With every eigenvalue below the floor, PD = D / lambda. */
static void effect_eigen_floor(void **state) {
  (void)state;
  const char *const floor0 = "solver=eigen damping_split=joint damping=0.5 clip=none";
  const run a = with(floor0), b = with("solver=eigen damping_split=joint damping=0.5 clip=none "
                                       "eigen_floor=1e20");
  assert_differ(gap(&a, &b));
  float D[TOTAL];
  for (int32_t step = 0; step < 3; step++) {
    gradient_of(step, D);
    for (int64_t i = 0; i < TOTAL; i++) {
      /* two orthogonal changes of basis there and back: 1e-5 is 40 f32 roundings of entries <= 2 */
      assert_true(fabs((double)b.rank[0].P[step][i] - 2.0 * (double)D[i]) < 2e-5);
    }
  }
}

/* For large lambda, lambda PD is D. */
static void effect_damping(void **state) {
  (void)state;
  const run a = with("damping=0.1"), b = with("damping=0.2");
  assert_differ(gap(&a, &b));
  const run large = with("damping=1e8 damping_split=joint solver=eigen clip=none");
  float D[TOTAL];
  gradient_of(0, D);
  for (int64_t i = 0; i < TOTAL; i++) {
    assert_true(fabs(1e8 * (double)large.rank[0].P[0][i] - (double)D[i]) < 1e-4);
  }
}

/* lambda PD of a run with so large a damping that the factors hardly count, against D, over the
 * largest entry of D. */
static double gap_from_plain(const char *settings, double lambda) {
  const run r = with(settings);
  float D[TOTAL];
  double most = 0;
  gradient_of(0, D);
  for (int64_t i = 0; i < TOTAL; i++) {
    most = fmax(most, fabs(lambda * (double)r.rank[0].P[0][i] - (double)D[i]));
  }
  return most;
}

/* Each split by what it becomes for large lambda: joint and pi 1/lambda, full 1/lambda^2.  What is
 * left is of the order of an eigenvalue over its damping: 10 / lambda, 10 pi / sqrt(lambda). */
static void effect_damping_split(void **state) {
  (void)state;
  assert_all_differ("solver=eigen damping=0.1 damping_split=joint",
                    "solver=eigen damping=0.1 damping_split=full",
                    "solver=eigen damping=0.1 damping_split=pi");
  assert_within(gap_from_plain("clip=none solver=eigen damping=1e6 damping_split=joint", 1e6),
                1e-3);
  assert_within(gap_from_plain("clip=none solver=eigen damping=1e4 damping_split=full", 1e8), 1e-2);
  assert_within(gap_from_plain("clip=none damping=1e4 damping_split=full", 1e8), 1e-2);
  assert_within(gap_from_plain("clip=none damping=1e8 damping_split=pi", 1e8), 1e-2);
}

/* The shift shows from the second solve on. */
static void effect_damping_leak(void **state) {
  (void)state;
  const run a = with("solve_period=1 damping=0.1 damping_leak=0");
  const run b = with("solve_period=1 damping=0.1 damping_leak=1");
  assert_within(gap_at(&a, &b, 0), 0);
  assert_differ(gap_at(&a, &b, 1));
  assert_differ(gap_at(&a, &b, 2));
}

/* ---- statistics ------------------------------------------------------------------------------*/

static void effect_stat_decay(void **state) {
  (void)state;
  const run a = with("solve_period=1 damping=0.1 stat_decay=0.95");
  const run b = with("solve_period=1 damping=0.1 stat_decay=0.5");
  assert_within(gap_at(&a, &b, 0), 0); /* the first sample has no old average beside it */
  assert_differ(gap_at(&a, &b, 1));
  assert_differ(gap_at(&a, &b, 2));
  /* 1 freezes the average: as if it were never solved again */
  const run frozen = with("solve_period=1 damping=0.1 stat_decay=1");
  const run once = with("solve_period=1000 damping=0.1 stat_decay=1");
  assert_within(gap(&frozen, &once), DIFFERENT);
}

static void effect_stat_start(void **state) {
  (void)state;
  assert_all_differ("damping=0.1 stat_start=first", "damping=0.1 stat_start=identity",
                    "damping=0.1 stat_start=zero");
}

static void effect_stat_scale(void **state) {
  (void)state;
  assert_all_differ("damping=0.1 stat_scale=textbook", "damping=0.1 stat_scale=kaisa",
                    "damping=0.1 stat_scale=mpd-kfac");
}

static void effect_positions(void **state) {
  (void)state;
  const run a = with("damping=0.1 positions=expand"), b = with("damping=0.1 positions=reduce");
  for (int32_t i = 0; i < LAYERS; i++) {
    assert_differ(gap_of(&a, &b, 0, i));
  }
}

static void effect_stat_batch(void **state) {
  (void)state;
  const run all = with("damping=0.1 stat_batch=0"), first = with("damping=0.1 stat_batch=1");
  const run more = with("damping=0.1 stat_batch=1000");
  assert_differ(gap(&all, &first));
  assert_within(gap(&all, &more), 0);
}

static void effect_calls(void **state) {
  (void)state;
  assert_all_differ("damping=0.1 stat_start=identity stat_decay=0.5 calls=mean",
                    "damping=0.1 stat_start=identity stat_decay=0.5 calls=ema",
                    "damping=0.1 stat_start=identity stat_decay=0.5 calls=last");
  /* one call a step: all are the same */
  run r = usual;
  r.calls = 1;
  r.settings = "damping=0.1 calls=mean";
  const run mean = play(r);
  r.settings = "damping=0.1 calls=ema";
  const run ema = play(r);
  r.settings = "damping=0.1 calls=last";
  const run last = play(r);
  assert_within(gap(&mean, &ema), DIFFERENT);
  assert_within(gap(&mean, &last), DIFFERENT);
}

/* Micro-batches of 4 and 2 samples weigh 2:1 or 1:1; of 3 and 3 there is no difference. */
static void effect_call_weight(void **state) {
  (void)state;
  const run a = with("damping=0.1 call_weight=samples"), b = with("damping=0.1 call_weight=equal");
  assert_differ(gap(&a, &b));
  run r = usual;
  r.samples[0] = r.samples[1] = 3;
  r.settings = "damping=0.1 call_weight=samples";
  const run even = play(r);
  r.settings = "damping=0.1 call_weight=equal";
  const run equal = play(r);
  assert_within(gap(&even, &equal), DIFFERENT);
}

static void effect_stat_period(void **state) {
  (void)state;
  const run a = with("damping=0.1 solve_period=1 stat_decay=0.5 stat_period=1");
  const run b = with("damping=0.1 solve_period=1 stat_decay=0.5 stat_period=2");
  assert_within(gap_at(&a, &b, 0), 0);
  assert_differ(gap_at(&a, &b, 1)); /* b still has the factors of step 0 */
  assert_int_equal(a.rank[0].wanted[1], 1);
  assert_int_equal(b.rank[0].wanted[1], 0);
  assert_int_equal(b.rank[0].wanted[2], 1);
}

static void effect_solve_period(void **state) {
  (void)state;
  const run a = with("damping=0.1 stat_decay=0.5 cholesky_form=inverse solve_period=1");
  const run b = with("damping=0.1 stat_decay=0.5 cholesky_form=inverse solve_period=2");
  assert_within(gap_at(&a, &b, 0), 0);
  assert_differ(gap_at(&a, &b, 1)); /* b still has the inverses of step 0 */
  assert_within(gap_at(&a, &b, 2), 0);
}

/* Cut factors are other factors, smaller ones, and explain says so. */
static void effect_max_factor(void **state) {
  (void)state;
  const run a = with("damping=0.1 max_factor=0"), b = with("damping=0.1 max_factor=3");
  assert_differ(gap_of(&a, &b, 0, FC1));
  assert_differ(gap_of(&a, &b, 0, FC2));
  assert_null(strstr(a.rank[0].why[FC1], "diagonal blocks"));
  assert_non_null(strstr(b.rank[0].why[FC1], "diagonal blocks"));
  /* the convolution's A alone is wider than 10, 19; blocks of 9 and 10 are half of its triangle */
  const run ten = with("damping=0.1 clip=none max_factor=10"), no = with("damping=0.1 clip=none");
  assert_differ(gap_of(&no, &ten, 0, CONV));
  assert_within(gap_of(&no, &ten, 0, FC1), 0);
  assert_true(ten.rank[0].factors < a.rank[0].factors);
  const run wide = with("damping=0.1 max_factor=1000");
  assert_within(gap(&a, &wide), 0);
}

static void effect_factor_blocks(void **state) {
  (void)state;
  const run a = with("damping=0.1 factor_blocks=1"), b = with("damping=0.1 factor_blocks=2");
  for (int32_t i = 0; i < LAYERS; i++) {
    assert_differ(gap_of(&a, &b, 0, i));
    assert_non_null(strstr(b.rank[0].why[i], "diagonal blocks"));
  }
  assert_true(b.rank[0].factors < a.rank[0].factors);
}

/* Half the bytes; bf16 keeps 8 bits and f16 11, so that the results are off by more than 1e-5 and,
 * at condition numbers below 1e2, by less than 0.3. */
static void effect_factor_dtype(void **state) {
  (void)state;
  const run f32 = with("damping=0.1 factor_dtype=f32"),
            bf16 = with("damping=0.1 factor_dtype=bf16");
  const run f16 = with("damping=0.1 factor_dtype=f16");
  assert_true(bf16.rank[0].factors < f32.rank[0].factors);
  assert_int_equal(f16.rank[0].factors, bf16.rank[0].factors);
  assert_true(gap(&f32, &bf16) > 1e-5 && gap(&f32, &f16) > 1e-5 && gap(&bf16, &f16) > 1e-5);
  assert_within(gap(&f32, &bf16), 0.3);
  assert_within(gap(&f32, &f16), 0.1);
}

static void effect_inverse_dtype(void **state) {
  (void)state;
  const run f32 = with("damping=0.1 inverse_dtype=f32"),
            bf16 = with("damping=0.1 inverse_dtype=bf16");
  const run f16 = with("damping=0.1 inverse_dtype=f16");
  assert_true(bf16.rank[0].results < f32.rank[0].results);
  assert_int_equal(f16.rank[0].results, bf16.rank[0].results);
  assert_true(gap(&f32, &bf16) > 1e-5 && gap(&f32, &f16) > 1e-5 && gap(&bf16, &f16) > 1e-5);
  assert_within(gap(&f32, &bf16), 0.3);
  assert_within(gap(&f32, &f16), 0.1);
}

/* ---- clip ------------------------------------------------------------------------------------*/

static double dot(const float *x, const float *y) {
  double s = 0;
  for (int64_t i = 0; i < TOTAL; i++) {
    s += (double)x[i] * (double)y[i];
  }
  return s;
}

/* Each kind by its own formula, from the unclipped direction and the gradient; lr is 1.
 * 1e-5: sums of 131 f32 products. */
static void effect_clip(void **state) {
  (void)state;
  const run none = with("damping=0.1 clip=none"), kl = with("damping=0.1 clip=kl");
  const run rescale = with("damping=0.1 clip=rescale");
  for (int32_t step = 0; step < 3; step++) {
    float D[TOTAL];
    gradient_of(step, D);
    const float *PD = none.rank[0].P[step];
    const double expected_kl = fmin(1, sqrt(1e-3 / fabs(dot(PD, D))));
    const double expected_rescale = sqrt(dot(D, D) / dot(PD, PD));
    assert_true(none.rank[0].nu[step] == 1);
    assert_true(expected_kl < 0.99 && fabs(expected_rescale - 1) > 0.01);
    assert_true(fabs(kl.rank[0].nu[step] / expected_kl - 1) < 1e-5);
    assert_true(fabs(rescale.rank[0].nu[step] / expected_rescale - 1) < 1e-5);
    assert_differ(gap_at(&none, &kl, step));
    assert_differ(gap_at(&none, &rescale, step));
    assert_true(fabs(dot(rescale.rank[0].P[step], rescale.rank[0].P[step]) / dot(D, D) - 1) < 1e-5);
  }
}

/* Slots of the model as ranges of the results: every weight, every bias. */
static int32_t slots_of(int64_t from[2 * LAYERS], int64_t to[2 * LAYERS]) {
  int32_t n = 0;
  for (int32_t i = 0; i < LAYERS; i++) {
    const int64_t split = layer[i].at + layer[i].rows * layer[i].cols;
    from[n] = layer[i].at;
    to[n++] = split;
    if (layer[i].bias == 0) continue;
    from[n] = split;
    to[n++] = end_of(i);
  }
  return n;
}

static double norm_of(const float *x, int64_t from, int64_t to) {
  double s = 0;
  for (int64_t i = from; i < to; i++) {
    s += (double)x[i] * (double)x[i];
  }
  return sqrt(s);
}

/* What clip = kind with this bound makes of the unclipped direction, slot by slot, as f[slot]. */
static void expected_factors(const char *kind, double bound, const float *PD, const float *w,
                             double f[2 * LAYERS]) {
  int64_t from[2 * LAYERS], to[2 * LAYERS];
  const int32_t n = slots_of(from, to);
  for (int32_t i = 0; i < n; i++) {
    const double norm = norm_of(PD, from[i], to[i]);
    if (strcmp(kind, "norm") == 0) f[i] = fmin(1, bound / norm_of(PD, 0, TOTAL));
    if (strcmp(kind, "ratio") == 0) f[i] = fmin(50, bound * norm_of(w, from[i], to[i]) / norm);
    if (strcmp(kind, "rms") == 0)
      f[i] = 1 / fmax(1, norm / sqrt((double)(to[i] - from[i])) / bound);
  }
}

/* The largest bound that clips something. */
static double largest_bound(const char *kind, const float *PD, const float *w) {
  int64_t from[2 * LAYERS], to[2 * LAYERS];
  const int32_t n = slots_of(from, to);
  double most = 0;
  for (int32_t i = 0; i < n; i++) {
    const double norm = norm_of(PD, from[i], to[i]);
    most = fmax(most, strcmp(kind, "ratio") == 0 ? norm / norm_of(w, from[i], to[i])
                                                 : norm / sqrt((double)(to[i] - from[i])));
  }
  return strcmp(kind, "norm") == 0 ? norm_of(PD, 0, TOTAL) : most;
}

/* `share` of the bound where clipping begins in the first step.  1e-5: f32 directions and sums of up
 * to 131 products; relative to the norm of a slot. */
static void clip_is(const char *settings, int32_t ranks, const char *kind, double share) {
  char text[256];
  run none = usual, clipped = usual;
  (void)snprintf(text, sizeof text, "%s clip=none", settings);
  none.ranks = clipped.ranks = ranks;
  none.settings = text;
  none = play(none);
  const double bound = share * largest_bound(kind, none.rank[0].P[0], none.rank[0].weight[0]);
  (void)snprintf(text, sizeof text, "%s clip=%s clip_bound=%.17g", settings, kind, bound);
  clipped.settings = text;
  clipped = play(clipped);
  int64_t from[2 * LAYERS], to[2 * LAYERS];
  const int32_t n = slots_of(from, to);
  for (int32_t step = 0; step < usual.steps; step++) {
    double f[2 * LAYERS], least = INFINITY;
    const float *PD = none.rank[0].P[step], *w = none.rank[0].weight[step];
    expected_factors(kind, bound, PD, w, f);
    for (int32_t r = 0; r < ranks; r++) {
      for (int32_t i = 0; i < n; i++) {
        const double most = f[i] * norm_of(PD, from[i], to[i]);
        for (int64_t k = from[i]; k < to[i]; k++) {
          const double got = clipped.rank[r].P[step][k], want = f[i] * (double)PD[k];
          if (!(fabs(got - want) <= 1e-5 * most))
            fail_msg("%s, rank %d, slot %d: %g, not %g", text, r, i, got, want);
        }
        least = fmin(least, f[i]);
      }
      assert_true(fabs(clipped.rank[r].nu[step] / least - 1) < 1e-5);
    }
    assert_true(step > 0 || (fabs(least - 1) > 0.01) == (share != 2)); /* it does something */
  }
}

/* Each number by itself, on every rank; the unclipped direction, cut.  1e-6: PD times 1, rounded once more. */
static void value_is(const char *settings, int32_t ranks) {
  char text[256];
  run none = usual, cut = usual;
  double most = 0;
  (void)snprintf(text, sizeof text, "%s clip=none", settings);
  none.ranks = cut.ranks = ranks;
  none.settings = text;
  none = play(none);
  for (int64_t k = 0; k < TOTAL; k++)
    most = fmax(most, fabs((double)none.rank[0].P[0][k]));
  (void)snprintf(text, sizeof text, "%s clip=value clip_bound=%.17g", settings, most / 3);
  cut.settings = text;
  cut = play(cut);
  for (int32_t r = 0; r < ranks; r++) {
    for (int32_t step = 0; step < usual.steps; step++) {
      for (int64_t k = 0; k < TOTAL; k++) {
        const double x = (double)none.rank[0].P[step][k], want = fmax(-most / 3, fmin(most / 3, x)),
                     got = (double)cut.rank[r].P[step][k];
        if (!(fabs(got - want) <= 1e-6 * most)) fail_msg("%s, %d: %g, not %g", text, r, got, want);
      }
      assert_true(cut.rank[r].nu[step] == 1);
    }
  }
}

/* Kinds with a bound: by their formulas, in every method that makes PD in another way. */
static void effect_clip_bound(void **state) {
  (void)state;
  static const char *const methods[] = {"damping=0.1",
                                        "damping=0.1 solver=eigen damping_split=joint",
                                        "method=eva-natgrad damping=0.05",
                                        "method=eva-natgrad damping=0.05 sides=input",
                                        "method=adasgd",
                                        "method=sam stat_scale=textbook radius=0.5"};
  for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
    clip_is(methods[i], 1, "norm", 0.5);
    clip_is(methods[i], 1, "norm", 2);
    clip_is(methods[i], 2, "ratio", 0.5);
    clip_is(methods[i], 1, "ratio", 1e6); /* fifty at most */
    clip_is(methods[i], 2, "rms", 0.1);
    value_is(methods[i], 1);
  }
  value_is("method=mfac window=2 damping=0.1 statistics=sharded", 2);
  value_is("damping=0.1 grad_worker_fraction=0", 2);
  clip_is("damping=0.1 grad_worker_fraction=0", 2, "ratio", 0.3);
  clip_is("method=sam stat_scale=textbook radius=0.5 grad_worker_fraction=0", 2, "rms", 0.3);
  run r = usual;
  r.settings = "clip=rms";
  assert_int_equal(try_play(&r), NG_ERR_ARG);
  assert_non_null(strstr(r.rank[0].message, "clip = rms needs a clip_bound above 0"));
}

/* PD = D + radius / |D| G D A: what is added grows with the radius, and its ratio is that of both. */
static void effect_radius(void **state) {
  (void)state;
  const run a = with("method=sam stat_scale=textbook radius=0.1"),
            b = with("method=sam stat_scale=textbook radius=0.3");
  for (int32_t step = 0; step < usual.steps; step++) {
    float D[TOTAL];
    double one = 0, both = 0;
    gradient_of(step, D);
    for (int64_t i = 0; i < TOTAL; i++) {
      const double x = (double)a.rank[0].P[step][i] - (double)D[i];
      one += x * x;
      both += x * ((double)b.rank[0].P[step][i] - (double)D[i]);
    }
    assert_true(one > 1e-6); /* a thousandth of |D| of some ten; 1e-4: differences of f32 near 1 */
    assert_true(fabs(both / one - 3) < 1e-3);
  }
  run r = usual;
  r.settings = "damping=0.1 solver=product";
  assert_int_equal(try_play(&r), NG_ERR_ARG);
  r.settings = "damping=0.1";
  r.layer_options = "solver=product";
  assert_int_equal(try_play(&r), NG_ERR_ARG);
}

/* Both clips are active, so the directions are as the square roots of kappa. */
static void effect_kl_clip(void **state) {
  (void)state;
  const run a = with("damping=0.1 kl_clip=1e-3"), b = with("damping=0.1 kl_clip=1e-5");
  assert_differ(gap(&a, &b));
  for (int32_t step = 0; step < 3; step++) {
    assert_true(fabs(a.rank[0].nu[step] / b.rank[0].nu[step] - 10) < 1e-4);
  }
}

/* ---- which layers ----------------------------------------------------------------------------*/

static void assert_plain(const run *r, int32_t i, bool plain) {
  float D[TOTAL];
  assert_int_equal(r->rank[0].covered[i], !plain);
  for (int32_t step = 0; step < r->steps; step++) {
    gradient_of(step, D);
    const size_t bytes = (size_t)(end_of(i) - layer[i].at) * sizeof(float);
    const int same = memcmp(r->rank[0].P[step] + layer[i].at, D + layer[i].at, bytes) == 0;
    assert_int_equal(same, plain);
  }
}

static void effect_skip_layers(void **state) {
  (void)state;
  const run none = with("damping=0.1"), name = with("damping=0.1 skip_layers=fc1");
  const run kind = with("damping=0.1 skip_layers=linear");
  for (int32_t i = 0; i < LAYERS; i++) {
    assert_plain(&none, i, false);
    assert_plain(&name, i, i == FC1);
    assert_plain(&kind, i, i != CONV);
  }
  assert_differ(gap(&none, &name));
}

/* fc2 has 4 outputs; the convolution has 4 too and is no linear layer. */
static void effect_exclude_width(void **state) {
  (void)state;
  const run none = with("damping=0.1 exclude_width=0"), four = with("damping=0.1 exclude_width=4");
  assert_differ(gap(&none, &four));
  for (int32_t i = 0; i < LAYERS; i++) {
    assert_plain(&four, i, i == FC2);
  }
}

/* ---- ranks -----------------------------------------------------------------------------------*/

/* What the other rank saw matters, or does not. */
static void effect_statistics(void **state) {
  (void)state;
  const char *const all = "damping=0.1 clip=none statistics=all";
  const char *const local = "damping=0.1 clip=none statistics=local";
  const run a = on_two(all, -1), b = on_two(local, -1);
  assert_differ(gap(&a, &b));
  const run a1 = on_two(all, 1), b1 = on_two(local, 1);
  for (int32_t i = 0; i < LAYERS; i++) {
    assert_differ(gap_of(&a, &a1, 0, i));
    if (b.rank[0].owner[i] == 0) assert_within(gap_of(&b, &b1, 0, i), 0);
    if (b.rank[0].owner[i] == 1) assert_differ(gap_of(&b, &b1, 0, i));
  }
}

/* owner: the numbers of all, kept by one. */
static void effect_statistics_owner(void **state) {
  (void)state;
  const run a = on_two("damping=0.1 statistics=all", -1),
            b = on_two("damping=0.1 statistics=owner", -1);
  assert_within(gap(&a, &b), 1e-6);
  for (int r = 0; r < 2; r++)
    assert_true(b.rank[r].factors < a.rank[r].factors);
}

/* Off the diagonal nothing is left: as many blocks as outputs. */
static void effect_output_factor(void **state) {
  (void)state;
  const run a = with("damping=0.1 clip=none output_factor=full"),
            b = with("damping=0.1 clip=none output_factor=diagonal");
  for (int32_t i = 0; i < LAYERS; i++)
    assert_differ(gap_of(&a, &b, 0, i));
  assert_non_null(strstr(b.rank[0].why[FC1], "1 and 5 diagonal blocks"));
}

/* Two steps are always due; then what did not change waits.  t_stale.c has the rule. */
static void effect_stat_refresh(void **state) {
  (void)state;
  run r = usual;
  r.steps = 4;
  r.settings = "damping=0.1 stat_refresh=period";
  const run period = play(r);
  r.settings = "damping=0.1 stat_refresh=adaptive refresh_tolerance=1e9";
  const run adaptive = play(r);
  assert_int_equal(period.rank[0].wanted[3], 1);
  assert_int_equal(adaptive.rank[0].wanted[2], 1);
  assert_int_equal(adaptive.rank[0].wanted[3], 0);
  assert_true(adaptive.rank[0].factors > period.rank[0].factors);
}

/* Everything is alike, or nothing is. */
static void effect_refresh_tolerance(void **state) {
  (void)state;
  run r = usual;
  r.steps = 4;
  r.settings = "damping=0.1 stat_refresh=adaptive refresh_tolerance=1e9";
  const run loose = play(r);
  r.settings = "damping=0.1 stat_refresh=adaptive refresh_tolerance=1e-9";
  const run tight = play(r);
  assert_int_equal(loose.rank[0].wanted[3], 0);
  assert_int_equal(tight.rank[0].wanted[3], 1);
}

/* The same weights on all ranks, to a bit; moments on one of them. */
static void effect_update_ranks(void **state) {
  static const char *const update[] = {"sgd", "adamw"};
  (void)state;
  for (int i = 0; i < 2; i++) {
    run r = usual, out[2];
    r.ranks = 2;
    r.step = update[i];
    for (int owner = 0; owner < 2; owner++) {
      char settings[128];
      (void)snprintf(settings, sizeof settings,
                     "damping=0.1 update=%s update_ranks=%s grad_worker_fraction=0", update[i],
                     owner ? "owner" : "all");
      r.settings = settings;
      out[owner] = play(r);
    }
    for (int rank = 0; rank < 2; rank++) {
      assert_memory_equal(out[1].rank[rank].weight, out[0].rank[0].weight,
                          sizeof out[0].rank[0].weight);
      assert_true(out[1].rank[rank].moments < out[0].rank[rank].moments);
      assert_int_equal(out[1].rank[rank].deliver_bytes, 0);
      assert_true(out[0].rank[rank].deliver_bytes > 0);
    }
  }
}

/* The same numbers; who holds the inverses, and what travels, changes. */
static void effect_grad_worker_fraction(void **state) {
  (void)state;
  const run all = on_two("damping=0.1 grad_worker_fraction=1", -1);
  const run one = on_two("damping=0.1 grad_worker_fraction=0", -1);
  assert_within(gap(&all, &one), DIFFERENT);
  for (int r = 0; r < 2; r++) {
    assert_true(one.rank[r].results < all.rank[r].results);
    assert_true(all.rank[r].share_bytes > 0);
    assert_int_equal(all.rank[r].deliver_bytes, 0);
    assert_int_equal(one.rank[r].share_bytes, 0);
    assert_true(one.rank[r].deliver_bytes > 0);
  }
}

/* Half the bytes.  Only what travels is rounded, once before the sum and once after, to 8 and 11 bits: at
 * condition numbers below 1e2 by less than 0.3 and 0.1; alone, nothing travels. */
static void effect_wire_dtype(void **state) {
  (void)state;
  static const char *const calls[] = {"mean", "ema"};
  for (int i = 0; i < 2; i++) {
    run out[3];
    static const char *const name[] = {"f32", "bf16", "f16"};
    for (int k = 0; k < 3; k++) {
      char settings[96];
      (void)snprintf(settings, sizeof settings, "damping=0.1 calls=%s wire_dtype=%s", calls[i],
                     name[k]);
      out[k] = on_two(settings, -1);
      const run alone = with(settings);
      assert_within(gap(&alone, &out[0]), 1); /* the same size: not off by samples or ranks */
    }
    assert_true(out[0].rank[0].sums_bytes > 0);
    for (int k = 1; k < 3; k++) {
      assert_int_equal(2 * out[k].rank[0].sums_bytes, out[0].rank[0].sums_bytes);
      assert_int_equal(out[k].rank[0].factors, out[0].rank[0].factors);
      assert_true(gap(&out[0], &out[k]) > 1e-6);
      assert_within(gap(&out[0], &out[k]), k == 1 ? 0.3 : 0.1);
    }
    assert_true(gap(&out[1], &out[2]) > 1e-6);
  }
  const run a = with("damping=0.1 wire_dtype=f32"), b = with("damping=0.1 wire_dtype=bf16");
  assert_within(gap(&a, &b), 0);
}

/* ---- update ----------------------------------------------------------------------------------*/

/* The option says which step there will be, and so how much memory its moments need. */
static void effect_update(void **state) {
  (void)state;
  static const char *const name[] = {"gradient", "sgd", "adamw"};
  run r = usual, out[3];
  for (int i = 0; i < 3; i++) {
    char settings[64];
    (void)snprintf(settings, sizeof settings, "damping=0.1 update=%s", name[i]);
    r.settings = settings;
    for (int k = 0; k < 3; k++) {
      r.step = name[k];
      if (k == i) out[i] = play(r);
      if (k != i) assert_int_equal(try_play(&r), NG_ERR_STATE);
    }
  }
  assert_int_equal(out[0].rank[0].moments, 0);
  assert_true(out[1].rank[0].moments >= (int64_t)(TOTAL * sizeof(float)));
  assert_true(out[2].rank[0].moments >= 2 * (int64_t)(TOTAL * sizeof(float)));
  double moved[3] = {0};
  for (int i = 0; i < 3; i++) {
    for (int64_t k = 0; k < TOTAL; k++) {
      moved[i] += fabs((double)out[i].rank[0].weight[0][k] - (double)data(0, 6, 0, 14, k));
    }
  }
  assert_true(moved[0] == 0 && moved[1] > DIFFERENT && moved[2] > DIFFERENT);
  assert_true(fabs(moved[1] - moved[2]) > DIFFERENT);
}

/* ---- all at once -----------------------------------------------------------------------------*/

static const struct override {
  const char *text, *settings;
} override[] = {
    {"solver=eigen", ""},
    {"cholesky_form=factor", "cholesky_form=inverse"},
    {"prediv=0", "solver=eigen prediv=1"},
    {"eigen_floor=1e20", "solver=eigen"},
    {"damping=3", ""},
    {"damping_split=full", ""},
    {"damping_leak=1", ""},
    {"stat_decay=0.5", ""},
    {"stat_start=identity", ""},
    {"stat_scale=kaisa", ""},
    {"positions=reduce", ""},
    {"stat_batch=1", ""},
    {"calls=last", ""},
    {"call_weight=equal", ""},
    {"stat_period=2", ""},
    {"solve_period=2", "cholesky_form=inverse"},
    {"max_factor=3", ""},
    {"factor_blocks=2", ""},
    {"factor_dtype=bf16", ""},
    {"inverse_dtype=bf16", ""},
    {"sides=input", "method=eva clip=none"}, /* which has no solve_period */
    {"norm_block=full", NULL},               /* of norm layers: t_option_effects_norm.c */
    {"norm_damping=3", NULL},
    {"output_factor=diagonal", ""},
    {"leak_ranks=all", NULL}, /* of several ranks: t_option_effects_ranks.c */
};

/* Every per-layer option, given to fc1 only: fc1 changes, the others keep every bit. */
static void overrides_reach_one_layer(void **state) {
  (void)state;
  const int32_t n = (int32_t)(sizeof override / sizeof override[0]);
  for (int32_t k = 0; k < n; k++) {
    char settings[256];
    if (override[k].settings == NULL) continue;
    const bool other = strncmp(override[k].settings, "method=", 7) == 0;
    (void)snprintf(settings, sizeof settings, "%s%s",
                   other ? "" : "damping=0.1 clip=none solve_period=1 stat_decay=0.9 ",
                   override[k].settings);
    run r = usual;
    r.settings = settings;
    if (strncmp(override[k].text, "prediv", 6) == 0) {
      /* nothing but a change of damping between solves shows it, one rounding apart */
      r.settings = "damping=0.1 clip=none solve_period=2 damping_split=joint solver=eigen prediv=1";
      r.set_option = "damping";
      r.set_value = "10";
    }
    const run base = play(r);
    r.layer_options = override[k].text;
    const run over = play(r);
    double most = 0;
    for (int32_t step = 0; step < usual.steps; step++) {
      most = fmax(most, gap_of(&base, &over, step, FC1));
      const double others = fmax(gap_of(&base, &over, step, CONV), gap_of(&base, &over, step, FC2));
      if (others > 0) print_error("%s reached another layer\n", override[k].text);
      assert_true(others == 0);
    }
    if (!(most > 0 && most < 1e12)) print_error("%s did nothing: %g\n", override[k].text, most);
    assert_true(most > 0 && most < 1e12);
  }
  /* the table above has every per-layer option; those of windows: t_option_effects_layers.c */
  for (int32_t i = 0; i < ng_option_count(); i++) {
    ng_option_info info = {.struct_size = sizeof info};
    assert_int_equal(ng_option_at(i, &info), NG_OK);
    int32_t found = strcmp(info.family, "window") == 0;
    const size_t length = strlen(info.name);
    for (int32_t k = 0; k < n; k++) {
      found += strncmp(override[k].text, info.name, length) == 0 && override[k].text[length] == '=';
    }
    if (found != info.per_layer) print_error("%s\n", info.name);
    assert_int_equal(found, info.per_layer);
  }
}

/* Every option that is marked as live takes effect at the step after ng_set, every other is refused
 * once memory is planned. */
static void live_options_move(void **state) {
  (void)state;
  static const struct {
    const char *option, *value, *settings;
  } move[] = {
      {"damping", "3", "damping=0.1 solve_period=1"},
      {"stat_decay", "0.1", "damping=0.1 solve_period=1"},
      {"kl_clip", "1e-7", "damping=0.1 solve_period=1"},
      {"stat_period", "4", "damping=0.1 solve_period=1 stat_decay=0.5"},
      {"solve_period", "4", "damping=0.1 solve_period=1 stat_decay=0.5 cholesky_form=inverse"},
      {"eigen_floor", "1e20", "damping=0.1 solve_period=1 solver=eigen"},
      {"clip", "none", "damping=0.1 solve_period=1"},
      {"clip_bound", "0.001", "damping=0.1 solve_period=1 clip=norm clip_bound=0.1"},
  };
  int32_t live = 1; /* norm_damping: t_option_effects_norm.c */
  for (size_t k = 0; k < sizeof move / sizeof move[0]; k++) {
    run r = usual;
    r.settings = move[k].settings;
    const run base = play(r);
    r.set_option = move[k].option;
    r.set_value = move[k].value;
    const run moved = play(r);
    assert_within(gap_at(&base, &moved, 0), 0);
    if (!(gap_at(&base, &moved, 1) > DIFFERENT)) print_error("%s did not move\n", move[k].option);
    assert_differ(gap_at(&base, &moved, 1));
    live++;
  }
  for (int32_t i = 0; i < ng_option_count(); i++) {
    ng_option_info info = {.struct_size = sizeof info};
    assert_int_equal(ng_option_at(i, &info), NG_OK);
    live -= info.live;
    if (info.live) continue;
    run r = usual;
    r.settings = "damping=0.1";
    r.set_option = info.name;
    r.set_value = info.standard;
    const ng_status st = try_play(&r);
    if (st != NG_ERR_STATE) print_error("%s\n", info.name);
    assert_int_equal(st, NG_ERR_STATE);
  }
  assert_int_equal(live, 0); /* the list above has every live option */
}

static void effect_sides(void **state) {
  (void)state;
  const run a = with("method=eva damping=0.1 clip=none sides=both");
  const run b = with("method=eva damping=0.1 clip=none sides=input");
  const run c = with("method=eva damping=0.1 clip=none sides=none");
  for (int32_t i = 0; i < LAYERS; i++) {
    assert_differ(gap_of(&a, &b, 0, i));
    assert_differ(gap_of(&a, &c, 0, i));
    assert_differ(gap_of(&b, &c, 0, i));
  }
  assert_int_equal(b.rank[0].wanted[1], 1);
  assert_int_equal(c.rank[0].wanted[1], 0); /* nothing to look at */
}

/* The other family has these, and they do something there, too. */
static void rank_one_options(void **state) {
  (void)state;
  static const char *const pairs[][2] = {{"damping=0.1", "damping=0.2"},
                                         {"stat_decay=0.9", "stat_decay=0.1"},
                                         {"stat_start=first", "stat_start=zero"},
                                         {"stat_scale=textbook", "stat_scale=eva"},
                                         {"positions=expand", "positions=reduce"},
                                         {"stat_batch=0", "stat_batch=1"},
                                         {"calls=mean", "calls=last"},
                                         {"calls=mean", "calls=ema stat_decay=0.3"},
                                         {"call_weight=samples", "call_weight=equal"},
                                         {"stat_period=1", "stat_period=2"},
                                         {"clip=none", "clip=rescale"},
                                         {"clip=kl kl_clip=0.001", "clip=kl kl_clip=0.0001"},
                                         {"skip_layers=", "skip_layers=fc1"},
                                         {"exclude_width=0", "exclude_width=5"}};
  for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
    char one[128], two[128];
    (void)snprintf(one, sizeof one, "method=eva-natgrad damping=0.05 clip=none; %s", pairs[i][0]);
    (void)snprintf(two, sizeof two, "method=eva-natgrad damping=0.05 clip=none; %s", pairs[i][1]);
    const run a = with(one), b = with(two);
    const double g = gap(&a, &b);
    if (!(g > DIFFERENT && g < 1e12)) fail_msg("%s, %s: gap %g", pairs[i][0], pairs[i][1], g);
  }
  run own = usual, moved = usual;
  const run plain = with("method=eva damping=0.05 clip=none");
  own.settings = moved.settings = "method=eva damping=0.05 clip=none";
  own.layer_options = "damping=0.5";
  own = play(own);
  assert_differ(gap_of(&plain, &own, 0, FC1)); /* a layer's own damping, and only there */
  assert_within(gap_of(&plain, &own, 0, FC2), 0);
  moved.set_option = "damping";
  moved.set_value = "0.5";
  moved = play(moved);
  assert_within(gap_at(&plain, &moved, 0), 0);
  assert_differ(gap_at(&plain, &moved, 1));
}

/* ---- missing ---------------------------------------------------------------------------------*/

/* A tensor without a gradient under a fused update: an error, or left as it is.  t_bindings.c has the
 * rest. */
static void effect_missing(void **state) {
  (void)state;
  for (int keep = 0; keep < 2; keep++) {
    fixture f;
    float x[2] = {1, 2}, y[3] = {1, 2, 3}, g[2] = {1, 1};
    fixture_ok(
        &f, fixture_open(&f, keep ? "update=sgd missing=keep" : "update=sgd missing=refuse", NULL));
    const plane w[2] = {plane_of(x, 1, 2, NG_F32), plane_of(y, 1, 3, NG_F32)};
    const plane dw = plane_of(g, 1, 2, NG_F32), none = plane_of(NULL, 1, 3, NG_F32);
    fixture_ok(&f, fixture_tensor(&f, "seen", &dw, &w[0]));
    fixture_ok(&f, fixture_tensor(&f, "unseen", &none, &w[1]));
    fixture_ok(&f, ng_ready(f.p));
    const ng_sgd s = fixture_sgd(0.5, 0);
    assert_int_equal(fixture_step(&f, &s), keep ? NG_OK : NG_ERR_STATE);
    assert_true(x[0] == (keep ? 0.5f : 1.0f) && y[0] == 1.0f);
    fixture_close(&f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_same_run_twice),
      cmocka_unit_test(effect_solver),
      cmocka_unit_test(effect_cholesky_form),
      cmocka_unit_test(effect_prediv),
      cmocka_unit_test(effect_eigen_floor),
      cmocka_unit_test(effect_damping),
      cmocka_unit_test(effect_damping_split),
      cmocka_unit_test(effect_damping_leak),
      cmocka_unit_test(effect_stat_decay),
      cmocka_unit_test(effect_stat_start),
      cmocka_unit_test(effect_stat_scale),
      cmocka_unit_test(effect_positions),
      cmocka_unit_test(effect_stat_batch),
      cmocka_unit_test(effect_calls),
      cmocka_unit_test(effect_call_weight),
      cmocka_unit_test(effect_stat_period),
      cmocka_unit_test(effect_solve_period),
      cmocka_unit_test(effect_max_factor),
      cmocka_unit_test(effect_factor_blocks),
      cmocka_unit_test(effect_factor_dtype),
      cmocka_unit_test(effect_inverse_dtype),
      cmocka_unit_test(effect_clip),
      cmocka_unit_test(effect_kl_clip),
      cmocka_unit_test(effect_skip_layers),
      cmocka_unit_test(effect_exclude_width),
      cmocka_unit_test(effect_statistics),
      cmocka_unit_test(effect_grad_worker_fraction),
      cmocka_unit_test(effect_update),
      cmocka_unit_test(overrides_reach_one_layer),
      cmocka_unit_test(live_options_move),
      cmocka_unit_test(rank_one_options),
      cmocka_unit_test(effect_sides),
      cmocka_unit_test(effect_clip_bound),
      cmocka_unit_test(effect_radius),
      cmocka_unit_test(effect_missing),
      cmocka_unit_test(effect_output_factor),
      cmocka_unit_test(effect_statistics_owner),
      cmocka_unit_test(effect_stat_refresh),
      cmocka_unit_test(effect_refresh_tolerance),
      cmocka_unit_test(effect_update_ranks),
      cmocka_unit_test(effect_wire_dtype),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
