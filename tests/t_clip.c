/* t_clip.c: clip = rms and clip = ratio multiply the direction of each tensor by its own factor.
 *
 * With PD the direction of clip = none, W the weight, n the number of elements and b = clip_bound:
 *     rms     1 / max(1, sqrt(|PD|^2 / n) / b)
 *     ratio   b |W| / |PD|, at most 50 (clip.c) */
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "draw.h"
#include "fixture.h"

enum { IN = 7, OUT = 5, SAMPLES = 6, WEIGHTS = OUT * IN };

typedef struct tensors {
  float x[2][WEIGHTS]; /* the weight and the bias */
} tensors;

static const int64_t count[2] = {WEIGHTS, OUT};

static void fill(tensors *t, int key) {
  for (int k = 0; k < 2; k++) {
    for (int64_t i = 0; i < WEIGHTS; i++)
      t->x[k][i] = draw_at(key + k, i);
  }
}

/* Return the directions of one step of a linear layer. */
static tensors directions(const char *method, const char *clip) {
  char line[200];
  (void)snprintf(line, sizeof line, "method=%s damping=0.1 %s", method, clip);
  tensors D, W, a, g;
  fill(&D, 1);
  fill(&W, 3);
  fill(&a, 5);
  fill(&g, 7);
  fixture f;
  const fixture_how how = {.threads = 1};
  fixture_ok(&f, fixture_open(&f, line, &how));
  const plane grad[2] = {plane_of(D.x[0], OUT, IN, NG_F32), plane_of(D.x[1], 1, OUT, NG_F32)};
  const plane weight[2] = {plane_of(W.x[0], OUT, IN, NG_F32), plane_of(W.x[1], 1, OUT, NG_F32)};
  fixture_ok(&f, fixture_add_linear(&f, "fc", grad, weight));
  fixture_ok(&f, ng_ready(f.p));
  const plane in = plane_of(a.x, SAMPLES, IN, NG_F32), out = plane_of(g.x, SAMPLES, OUT, NG_F32);
  fixture_ok(&f, fixture_begin_and_observe(&f, SAMPLES, 0, &in, &out));
  fixture_ok(&f, ng_step(f.p, 0.1));
  fixture_close(&f);
  return D;
}

static double norm_of(const float *x, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; i++)
    sum += (double)x[i] * x[i];
  return sqrt(sum);
}

/* PD, the factor and their product are rounded to f32, and Eva computes |PD| from sums whose terms cancel: 2e-6 is 33 roundings
 * of 2^-24. */
static void each_tensor_has_its_factor(void **state) {
  static const char *const methods[] = {"natgrad", "kaisa", "spngd", "eva"};
  static const double bounds[] = {0.01, 0.3, 100.0};
  tensors W;
  fill(&W, 3);
  for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
    const tensors plain = directions(methods[m], "clip=none");
    for (size_t i = 0; i < 2 * sizeof bounds / sizeof *bounds; i++) {
      const double b = bounds[i / 2];
      const bool rms = i % 2 == 0;
      char clip[60];
      (void)snprintf(clip, sizeof clip, "clip=%s clip_bound=%g", rms ? "rms" : "ratio", b);
      const tensors clipped = directions(methods[m], clip);
      for (int t = 0; t < 2; t++) {
        const double PD = norm_of(plain.x[t], count[t]);
        const double ratio = fmin(50.0, b * norm_of(W.x[t], count[t]) / PD);
        const double factor = rms ? 1.0 / fmax(1.0, PD / sqrt((double)count[t]) / b) : ratio;
        for (int64_t k = 0; k < count[t]; k++) {
          const double expected = factor * plain.x[t][k];
          if (!(fabs(clipped.x[t][k] - expected) <= 2e-6 * fabs(expected) + 1e-9))
            fail_msg("%s, %s, tensor %d, element %d: %g, expected %g", methods[m], clip, t, (int)k,
                     (double)clipped.x[t][k], expected);
        }
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(each_tensor_has_its_factor)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
