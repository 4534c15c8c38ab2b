/* compare_stats.c: statistics of finished runs: the epoch that reaches a target, mean and deviation over seeds, the
 * mean curve of a method, a target that all methods reach, and differences between each method and the first method. A
 * difference is between two runs with the same seed, which start from the same weights and get the samples in the same
 * order.
 *
 * The differences over n seeds with standard deviation s have the 95 % confidence interval mean +- t s / sqrt(n), where
 * t is the 0.975 quantile of Student's distribution with n - 1 degrees of freedom. Pairs with a diverged run do not
 * count. */
#include "compare.h"

#include <math.h>
#include <stdlib.h>

bool compare_is_accuracy(compare_metric m) { return m == TEST_ACCURACY || m == TRAIN_ACCURACY; }

static double get_score(compare_metric m, const train_epoch *e) {
  return m == TEST_ACCURACY    ? e->test_accuracy
         : m == TRAIN_ACCURACY ? e->train_accuracy
         : m == TEST_LOSS      ? e->test_loss
                               : e->train_loss;
}

/* Return true if score a is better than score b. Any number is better than NaN. */
bool compare_is_better(compare_metric m, double a, double b) {
  if (isnan(b)) return !isnan(a);
  return compare_is_accuracy(m) ? a > b : a < b;
}

double compare_find_best(compare_metric m, const train_result *r) {
  double best = (double)NAN;
  for (int i = 0; i < r->epochs; i++) {
    const double v = get_score(m, &r->epoch[i]);
    if (compare_is_better(m, v, best)) best = v;
  }
  return best;
}

int compare_find_target_epoch(compare_metric m, const train_result *r, double target) {
  for (int i = 0; i < r->epochs; i++) {
    const double v = get_score(m, &r->epoch[i]);
    if (isfinite(v) && isfinite(target) && !compare_is_better(m, target, v)) return i;
  }
  return -1;
}

/* Two passes: a single pass would cancel the digits of the deviation of nearly equal values. */
spread compare_compute_spread(const double *x, int n) {
  spread s = {0, 0.0, (double)NAN, (double)NAN, (double)NAN};
  double sum = 0.0, squares = 0.0;
  for (int i = 0; i < n; i++) {
    if (!isfinite(x[i])) continue;
    sum += x[i];
    s.min = s.n == 0 || x[i] < s.min ? x[i] : s.min;
    s.max = s.n == 0 || x[i] > s.max ? x[i] : s.max;
    s.n++;
  }
  s.mean = s.n > 0 ? sum / s.n : (double)NAN;
  for (int i = 0; i < n; i++)
    if (isfinite(x[i])) squares += (x[i] - s.mean) * (x[i] - s.mean);
  if (s.n > 1) s.deviation = sqrt(squares / (s.n - 1));
  return s;
}

plot_curve compare_make_curve(compare_metric m, const train_result *run, int runs) {
  plot_curve out = {.n = 0};
  int valid = 0;
  for (int i = 0; i < runs; i++)
    valid += !run[i].diverged;
  for (int i = 0; i < runs; i++)
    if ((valid == 0 || !run[i].diverged) && run[i].epochs > out.n) out.n = run[i].epochs;
  double *x = cli_alloc(3 * (size_t)runs, sizeof *x);
  out.diverged = valid == 0;
  out.point = cli_alloc((size_t)out.n, sizeof *out.point);
  for (int e = 0; e < out.n; e++) {
    plot_point *p = &out.point[e];
    int n = 0;
    for (int i = 0; i < runs; i++) {
      if ((valid > 0 && run[i].diverged) || e >= run[i].epochs) continue;
      p->epoch = (double)run[i].epoch[e].epoch;
      x[n] = run[i].epoch[e].seconds;
      x[runs + n] = run[i].epoch[e].train_loss;
      x[2 * runs + n++] = get_score(m, &run[i].epoch[e]);
    }
    p->seconds = compare_compute_spread(x, n).mean;
    p->loss = compare_compute_spread(x + runs, n);
    p->score = compare_compute_spread(x + 2 * runs, n);
  }
  free(x);
  return out;
}

double compare_find_target(compare_metric m, const plot_curve *curve, int n) {
  double target = (double)NAN;
  for (int i = 0; i < n; i++) {
    if (curve[i].diverged) continue;
    double best = (double)NAN;
    for (int e = 0; e < curve[i].n; e++)
      if (compare_is_better(m, curve[i].point[e].score.mean, best))
        best = curve[i].point[e].score.mean;
    if (isfinite(best) && (isnan(target) || compare_is_better(m, target, best))) target = best;
  }
  return target;
}

/* ---- differences to the baseline -------------------------------------------------------------*/

/* probability of values below the upper bound of a two-sided 95 % interval */
static const double TAIL = 0.975;

/* Return P(|T| < t) for Student's T with f degrees of freedom (Abramowitz & Stegun 26.7.3, 26.7.4), tan(theta)^2 = t^2
 * / f. */
static double compute_student_cdf(double theta, int freedom) {
  const double c2 = cos(theta) * cos(theta);
  const bool odd = freedom % 2 == 1;
  double term = odd ? sin(theta) * cos(theta) : sin(theta), sum = freedom > 1 ? term : 0.0;
  for (int k = odd ? 3 : 2; k <= freedom - 2; k += 2) {
    term *= c2 * (double)(k - 1) / (double)k;
    sum += term;
  }
  return odd ? 2.0 / acos(-1.0) * (theta + sum) : sum;
}

double compare_compute_quantile(int freedom) {
  if (freedom < 1) return (double)NAN;
  double low = 0.0, high = acos(-1.0) / 2.0;
  for (int i = 0; i < 100; i++) {
    const double middle = 0.5 * (low + high);
    *(compute_student_cdf(middle, freedom) < 2.0 * TAIL - 1.0 ? &low : &high) = middle;
  }
  return sqrt((double)freedom) * tan(low);
}

static double get_end_value(compare_metric m, compare_end what, const train_result *r) {
  if (r->diverged || r->epochs == 0) return (double)NAN;
  const train_epoch *last = &r->epoch[r->epochs - 1];
  return what == END_TRAIN_LOSS  ? last->train_loss
         : what == END_TEST_LOSS ? last->test_loss
                                 : compare_find_best(m, r);
}

difference compare_compute_difference(compare_metric m, compare_end what, const train_result *run,
                                      const train_result *base, int runs) {
  double *x = cli_alloc((size_t)runs, sizeof *x);
  for (int k = 0; k < runs; k++)
    x[k] = get_end_value(m, what, &run[k]) - get_end_value(m, what, &base[k]);
  const spread s = compare_compute_spread(x, runs);
  const double half =
      s.n > 1 ? compare_compute_quantile(s.n - 1) * s.deviation / sqrt((double)s.n) : NAN;
  free(x);
  return (difference){s.n, s.mean, s.mean - half, s.mean + half};
}

/* ---- output ------------------------------------------------------------------------------------- */

static const struct {
  const char *name;
  bool of_test, accuracy;
} ends[COMPARE_ENDS] = {
    [END_TRAIN_LOSS] = {"final training loss", false, false},
    [END_TEST_LOSS] = {"final test loss", true, false},
    [END_BEST_ACCURACY] = {"best accuracy, points", false, true},
};

/* Return true if the runs have this number: a test loss needs a test split, an accuracy needs classes. */
static bool has_end_value(compare_metric m, int what) {
  if (ends[what].of_test) return m == TEST_ACCURACY || m == TEST_LOSS;
  return !ends[what].accuracy || compare_is_accuracy(m);
}

/* Write "-0.0123 [-0.0246, -0.0001]" with this number of decimals; decimals < 0: three digits of half the interval. */
static void put_difference(table *t, int column, const difference *d, double scale, int decimals) {
  const double half = 0.5 * scale * (d->high - d->low);
  if (decimals < 0 && half > 1e-8 && half < 1e6) {
    const int digits = 2 - (int)floor(log10(half));
    decimals = digits > 0 ? digits : 0;
  }
  if (d->n == 0) {
    table_put(t, column, "-");
  } else if (decimals < 0) {
    table_put(t, column, d->n > 1 ? "%+.3g [%+.3g, %+.3g]" : "%+.3g", scale * d->mean,
              scale * d->low, scale * d->high);
  } else {
    table_put(t, column, d->n > 1 ? "%+.*f [%+.*f, %+.*f]" : "%+.*f", decimals, scale * d->mean,
              decimals, scale * d->low, decimals, scale * d->high);
  }
}

void compare_fill_difference_table(const compare_plan *p, table *t) {
  const char *head[2 + COMPARE_ENDS + 1] = {"method", "pairs"};
  int shown[COMPARE_ENDS], n = 0;
  for (int what = 0; what < COMPARE_ENDS; what++) {
    if (!has_end_value(p->metric, what)) continue;
    head[2 + n] = ends[what].name;
    shown[n++] = what;
  }
  table_begin(t, head);
  for (int i = 1; i < p->methods; i++) {
    int pairs = 0;
    table_add_row(t);
    table_put(t, 0, "%s", p->method[i].label);
    for (int c = 0; c < n; c++) {
      const difference d = compare_compute_difference(
          p->metric, (compare_end)shown[c], p->method[i].run, p->method[0].run, (int)p->seeds);
      const bool points = ends[shown[c]].accuracy;
      put_difference(t, 2 + c, &d, points ? 100.0 : 1.0, points ? 2 : -1);
      if (d.n > pairs) pairs = d.n;
    }
    table_put(t, 1, "%d", pairs);
  }
}

void compare_print_differences(const compare_plan *p, FILE *f) {
  (void)fprintf(f, "difference to %s of the same seed: mean%s\n", p->method[0].label,
                p->seeds > 1 ? " and its 95 % interval (Student's t)" : "");
}
