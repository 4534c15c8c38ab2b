/* compare_stats.c: statistics of finished runs: when a target was reached, mean and deviation over seeds, the mean
 * curve of a method, the target that all methods reach. */
#include "compare.h"

#include <math.h>
#include <stdlib.h>

bool compare_is_accuracy(compare_metric m) { return m == TEST_ACCURACY || m == TRAIN_ACCURACY; }

double compare_score(compare_metric m, const train_epoch *e) {
  return m == TEST_ACCURACY    ? e->test_accuracy
         : m == TRAIN_ACCURACY ? e->train_accuracy
         : m == TEST_LOSS      ? e->test_loss
                               : e->train_loss;
}

/* Is a better than b? Any number is better than NaN. */
bool compare_better(compare_metric m, double a, double b) {
  if (isnan(b)) return !isnan(a);
  return compare_is_accuracy(m) ? a > b : a < b;
}

double compare_best(compare_metric m, const train_result *r) {
  double best = (double)NAN;
  for (int i = 0; i < r->epochs; i++) {
    const double v = compare_score(m, &r->epoch[i]);
    if (compare_better(m, v, best)) best = v;
  }
  return best;
}

int compare_reaches(compare_metric m, const train_result *r, double target) {
  for (int i = 0; i < r->epochs; i++) {
    const double v = compare_score(m, &r->epoch[i]);
    if (isfinite(v) && isfinite(target) && !compare_better(m, target, v)) return i;
  }
  return -1;
}

/* Two passes, because the deviation of nearly equal values would lose its digits in one. */
spread compare_spread(const double *x, int n) {
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
  for (int i = 0; i < n; i++) {
    if (isfinite(x[i])) squares += (x[i] - s.mean) * (x[i] - s.mean);
  }
  if (s.n > 1) s.deviation = sqrt(squares / (s.n - 1));
  return s;
}

static plot_range range_of(const double *x, int n) {
  const spread s = compare_spread(x, n);
  return (plot_range){s.mean, s.min, s.max};
}

int compare_curve(compare_metric m, const train_result *run, int runs, plot_point **out) {
  int longest = 0, sound = 0;
  for (int i = 0; i < runs; i++)
    sound += !run[i].diverged;
  for (int i = 0; i < runs; i++) {
    if ((sound == 0 || !run[i].diverged) && run[i].epochs > longest) longest = run[i].epochs;
  }
  double *x = cli_take(3 * (size_t)runs, sizeof *x);
  *out = cli_take((size_t)longest, sizeof **out);
  for (int e = 0; e < longest; e++) {
    plot_point *p = &(*out)[e];
    int n = 0;
    for (int i = 0; i < runs; i++) {
      if ((sound > 0 && run[i].diverged) || e >= run[i].epochs) continue;
      p->epoch = (double)run[i].epoch[e].epoch;
      x[n] = run[i].epoch[e].seconds;
      x[runs + n] = run[i].epoch[e].train_loss;
      x[2 * runs + n++] = compare_score(m, &run[i].epoch[e]);
    }
    p->seconds = compare_spread(x, n).mean;
    p->loss = range_of(x + runs, n);
    p->score = range_of(x + 2 * runs, n);
  }
  free(x);
  return longest;
}

double compare_target(compare_metric m, const plot_curve *curve, int n) {
  double target = (double)NAN;
  for (int i = 0; i < n; i++) {
    double best = (double)NAN;
    for (int e = 0; e < curve[i].n; e++) {
      if (compare_better(m, curve[i].point[e].score.mean, best))
        best = curve[i].point[e].score.mean;
    }
    if (isfinite(best) && (isnan(target) || compare_better(m, target, best))) target = best;
  }
  return target;
}
