/* t_option_clip.c: clips with a bound by their formulas, from the unclipped directions: every method, one and two ranks.  The
 * oracle has kl and rescale. */
#include "effects.h"

/* bn is not clipped here. */
#define NO_BN " skip_layers=bn"

/* Every weight and every bias that is clipped, as a range of P. */
static int32_t slots_of(int64_t from[2 * LAYERS], int64_t to[2 * LAYERS]) {
  int32_t n = 0;
  for (int32_t i = 0; i < BN; i++) {
    const int64_t split = layer[i].at + layer[i].rows * layer[i].cols;
    from[n] = layer[i].at;
    to[n++] = split;
    if (layer[i].bias == 0) continue;
    from[n] = split;
    to[n++] = end_of(i);
  }
  return n;
}

static double dot(const float *x, const float *y, int64_t from, int64_t to) {
  double s = 0;
  for (int64_t i = from; i < to; i++)
    s += (double)x[i] * (double)y[i];
  return s;
}

static double norm_of(const float *x, int64_t from, int64_t to) {
  return sqrt(dot(x, x, from, to));
}

/* The factor of every slot, or with `largest` the largest bound that clips something. */
static double factors(const char *kind, double bound, const float *PD, const float *w,
                      double f[2 * LAYERS]) {
  int64_t from[2 * LAYERS], to[2 * LAYERS];
  double largest = 0;
  const int32_t n = slots_of(from, to);
  for (int32_t i = 0; i < n; i++) {
    const double norm = norm_of(PD, from[i], to[i]);
    const double rms = norm / sqrt((double)(to[i] - from[i]));
    const double whole = norm_of(PD, 0, end_of(FC2)), size = norm_of(w, from[i], to[i]);
    const bool ratio = strcmp(kind, "ratio") == 0, all = strcmp(kind, "norm") == 0;
    f[i] = all     ? fmin(1, bound / whole)
           : ratio ? fmin(50, bound * size / norm)
                   : 1 / fmax(1, rms / bound);
    largest = fmax(largest, all ? whole : ratio ? norm / size : rms);
  }
  return largest;
}

/* `share` of the bound where clipping begins in the first step.  1e-5: f32 directions and sums of up to 135 products,
 * relative to the norm of a slot. */
static void clip_is(const char *settings, int32_t ranks, const char *kind, double share) {
  char text[256];
  run none = usual, clipped = usual;
  double f[2 * LAYERS];
  int64_t from[2 * LAYERS], to[2 * LAYERS];
  const int32_t n = slots_of(from, to);
  (void)snprintf(text, sizeof text, "%s clip=none" NO_BN, settings);
  none.ranks = clipped.ranks = ranks;
  none.settings = text;
  none = play(none);
  const double bound = share * factors(kind, 1, none.rank[0].P[0], none.rank[0].weight[0], f);
  (void)snprintf(text, sizeof text, "%s clip=%s clip_bound=%.17g" NO_BN, settings, kind, bound);
  clipped.settings = text;
  clipped = play(clipped);
  for (int32_t step = 0; step < STEPS; step++) {
    double least = INFINITY;
    const float *PD = none.rank[0].P[step];
    (void)factors(kind, bound, PD, none.rank[0].weight[step], f);
    for (int32_t i = 0; i < n; i++) {
      const double most = f[i] * norm_of(PD, from[i], to[i]);
      for (int64_t k = from[i]; k < to[i]; k++) {
        const double got = (double)clipped.rank[0].P[step][k], want = f[i] * (double)PD[k];
        if (!(fabs(got - want) <= 1e-5 * most)) fail_msg("%s, %d: %g, not %g", text, i, got, want);
      }
      least = fmin(least, f[i]);
    }
    assert_true(fabs(clipped.rank[0].nu[step] / least - 1) < 1e-5);
    assert_true(step > 0 || (fabs(least - 1) > 0.01) == (share != 2)); /* it does something */
  }
}

/* Each number by itself.  1e-6: PD times 1, rounded once more. */
static void value_is(const char *settings, int32_t ranks) {
  char text[256];
  run none = usual, cut = usual;
  double most = 0;
  (void)snprintf(text, sizeof text, "%s clip=none" NO_BN, settings);
  none.ranks = cut.ranks = ranks;
  none.settings = text;
  none = play(none);
  for (int64_t k = 0; k < end_of(FC2); k++)
    most = fmax(most, fabs((double)none.rank[0].P[0][k]));
  (void)snprintf(text, sizeof text, "%s clip=value clip_bound=%.17g" NO_BN, settings, most / 3);
  cut.settings = text;
  cut = play(cut);
  for (int32_t step = 0; step < STEPS; step++) {
    for (int64_t k = 0; k < end_of(FC2); k++) {
      const double x = (double)none.rank[0].P[step][k], want = fmax(-most / 3, fmin(most / 3, x)),
                   got = (double)cut.rank[0].P[step][k];
      if (!(fabs(got - want) <= 1e-6 * most)) fail_msg("%s: %g, not %g", text, got, want);
    }
    assert_true(cut.rank[0].nu[step] == 1);
  }
}

/* In every method that makes PD in another way; kl and rescale are in the oracle. */
static void clips_by_formula(void **state) {
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
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(clips_by_formula)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
