/* t_axes.c: rotations, Gram matrices and second moments of tensors of 1 to 4 axes (twosided/axes.c), against loops in
 * double over single elements.
 *
 * Tolerance.  A sum has at most 60 terms of at most 4; after 4 axes its error in f32 is a few times 60 * 2^-24 of the
 * largest entry: 1e-5. */
#include "unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "linalg_check.h"
#include "twosided/twosided.h"

enum { CASES = 9, MOST_LENGTH = 9, MOST_ELEMENTS = 1024, MOST_SCRATCH = 1 << 13 };
/* Lengths; has_basis: bit k for axis k. */
static const struct {
  int32_t count;
  int64_t length[NG_AXES_MOST];
  unsigned has_basis;
} shape[CASES] = {{1, {7}, 0},       {1, {7}, 1},           {2, {5, 8}, 3},
                  {2, {5, 8}, 1},    {2, {5, 8}, 2},        {2, {1, 9}, 3},
                  {3, {4, 3, 5}, 7}, {4, {4, 2, 3, 3}, 15}, {4, {4, 2, 3, 3}, 5}};

typedef struct sample {
  ng_axes axes;
  float *bases, *D, *out, *scratch;
  double *want;
  int64_t all;
} sample;

/* Random orthonormal rows: Gram-Schmidt in double. */
static void fill_basis(int64_t n, float *to) {
  double Q[MOST_LENGTH * MOST_LENGTH];
  for (int64_t i = 0; i < n; i++) {
    double norm = 0.0;
    for (int64_t c = 0; c < n; c++)
      Q[i * n + c] = uniform() + (c == i ? 2.0 : 0.0);
    for (int64_t j = 0; j < 2 * i; j++) {
      double dot = 0.0;
      for (int64_t c = 0; c < n; c++)
        dot += Q[i * n + c] * Q[j % i * n + c];
      for (int64_t c = 0; c < n; c++)
        Q[i * n + c] -= dot * Q[j % i * n + c];
    }
    for (int64_t c = 0; c < n; c++)
      norm += Q[i * n + c] * Q[i * n + c];
    for (int64_t c = 0; c < n; c++)
      to[i * n + c] = (float)(Q[i * n + c] /= sqrt(norm));
  }
}

static void fill_bases(ng_axes *a, unsigned has_basis, float *bases) {
  for (int32_t k = 0; k < a->count; k++) {
    a->basis[k] = (has_basis >> k & 1) != 0 ? bases : NULL;
    fill_basis(a->length[k], bases);
    bases += a->length[k] * a->length[k];
  }
}

static sample new_sample(int which) {
  sample s = {.axes.count = shape[which].count};
  memcpy(s.axes.length, shape[which].length, sizeof s.axes.length);
  s.all = ng_axes_elements(&s.axes);
  s.bases = work_new(2 * NG_AXES_MOST * MOST_LENGTH * MOST_LENGTH * (int64_t)sizeof(float));
  s.D = work_new(MOST_ELEMENTS * (int64_t)sizeof(float));
  s.out = work_new(MOST_ELEMENTS * (int64_t)sizeof(float));
  s.scratch = work_new(ng_axes_scratch(&s.axes) * (int64_t)sizeof(float));
  s.want = zeros(MOST_ELEMENTS);
  fill_bases(&s.axes, shape[which].has_basis, s.bases);
  for (int64_t i = 0; i < s.all; i++)
    s.D[i] = (float)uniform();
  CASE("axes %d of %d, bases %u", which, s.axes.count, shape[which].has_basis);
  return s;
}

static void free_sample(sample *s) {
  work_free(s->scratch, ng_axes_scratch(&s->axes) * (int64_t)sizeof(float));
  work_free(s->bases, 2 * NG_AXES_MOST * MOST_LENGTH * MOST_LENGTH * (int64_t)sizeof(float));
  work_free(s->D, MOST_ELEMENTS * (int64_t)sizeof(float));
  work_free(s->out, MOST_ELEMENTS * (int64_t)sizeof(float));
  free(s->want);
}

/* x <- x with axis k multiplied by M [n, n], entry by entry. */
static void multiply_axis(const ng_axes *a, int32_t k, const double *M, double *x) {
  double y[MOST_ELEMENTS] = {0};
  int64_t after = 1, n = a->length[k], all = ng_axes_elements(a);
  for (int32_t i = k + 1; i < a->count; i++)
    after *= a->length[i];
  for (int64_t i = 0; i < all; i++) {
    const int64_t at = i / after % n, first = i - at * after;
    for (int64_t j = 0; j < n; j++)
      y[i] += M[at * n + j] * x[first + j * after];
  }
  memcpy(x, y, sizeof(double) * (size_t)all);
}

static void must_be_near(const sample *s, const float *x) {
  double most = 0.0;
  for (int64_t i = 0; i < s->all; i++)
    most = fmax(most, fabs(s->want[i]));
  for (int64_t i = 0; i < s->all; i++)
    CHECK(fabs((double)x[i] - s->want[i]) <= 1e-5 * most);
}

static void rotations(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  for (int which = 0; which < CASES; which++) {
    sample s = new_sample(which);
    for (int64_t i = 0; i < s.all; i++)
      s.want[i] = (double)s.D[i];
    for (int32_t k = 0; k < s.axes.count; k++) {
      double M[MOST_LENGTH * MOST_LENGTH];
      const int64_t n = s.axes.length[k];
      for (int64_t i = 0; i < n * n && s.axes.basis[k] != NULL; i++)
        M[i] = (double)s.axes.basis[k][i];
      if (s.axes.basis[k] != NULL) multiply_axis(&s.axes, k, M, s.want);
    }
    ng_axes_rotate(q, &s.axes, false, s.D, s.out, s.scratch);
    ng_queue_wait(q);
    must_be_near(&s, s.out);
    for (int64_t i = 0; i < s.all; i++)
      s.want[i] = (double)s.D[i];
    ng_axes_rotate(q, &s.axes, true, s.out, s.D, s.scratch);
    ng_queue_wait(q);
    must_be_near(&s, s.D);
    free_sample(&s);
  }
}

static void gram_matrices(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  for (int which = 0; which < CASES; which++) {
    sample s = new_sample(which);
    for (int32_t k = 0; k < s.axes.count; k++) {
      const int64_t n = s.axes.length[k];
      ng_sym S = sym_new(n);
      int64_t after = 1;
      for (int32_t i = k + 1; i < s.axes.count; i++)
        after *= s.axes.length[i];
      sym_diagonal(S, 3.0F);
      ng_axes_add_gram(q, &s.axes, k, s.D, 0.5F, S.a, s.scratch);
      ng_queue_wait(q);
      sym_check(S);
      for (int64_t r = 0; r < n; r++) {
        for (int64_t c = 0; c < n; c++) {
          double sum = r == c ? 3.0 : 0.0;
          for (int64_t i = 0; i < s.all; i++)
            if (i / after % n == r) sum += 0.5 * (double)s.D[i] * (double)s.D[i + (c - r) * after];
          CHECK(fabs((double)ng_sym_get(S, r, c) - sum) <= 1e-5 * (double)s.all);
        }
      }
      sym_free(S);
    }
    free_sample(&s);
  }
}

/* Permutations; then the diagonal of T diag(V) T' against the matrix itself, and the sum of V, which stays. */
static void second_moments(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  for (int which = 0; which < CASES; which++) {
    sample s = new_sample(which);
    int32_t turn[NG_AXES_MOST][MOST_LENGTH];
    const int32_t *order[NG_AXES_MOST];
    ng_axes to = s.axes;
    double sum[2] = {0.0, 0.0};
    for (int64_t i = 0; i < s.all; i++)
      s.want[i] = (double)(s.D[i] = fabsf(s.D[i]));
    for (int32_t k = 0; k < s.axes.count; k++) {
      double M[MOST_LENGTH * MOST_LENGTH] = {0};
      const int64_t n = s.axes.length[k];
      order[k] = s.axes.basis[k] == NULL ? NULL : turn[k];
      for (int64_t i = 0; i < n; i++) {
        turn[k][i] = (int32_t)((i + 1) % n);
        M[i * n + turn[k][i]] = 1.0;
      }
      if (order[k] != NULL) multiply_axis(&s.axes, k, M, s.want);
    }
    ng_axes_permute(q, &s.axes, order, s.D, s.out, s.scratch);
    ng_queue_wait(q);
    must_be_near(&s, s.out);
    fill_bases(&to, shape[which].has_basis, s.bases + NG_AXES_MOST * MOST_LENGTH * MOST_LENGTH);
    for (int64_t i = 0; i < s.all; i++)
      s.want[i] = (double)s.D[i];
    for (int32_t k = 0; k < s.axes.count; k++) {
      double M[MOST_LENGTH * MOST_LENGTH] = {0};
      const int64_t n = s.axes.length[k];
      if (to.basis[k] == NULL) continue;
      for (int64_t i = 0; i < n * n; i++) {
        for (int64_t c = 0; c < n; c++)
          M[i] += (double)to.basis[k][i / n * n + c] * (double)s.axes.basis[k][i % n * n + c];
        M[i] *= M[i];
      }
      multiply_axis(&s.axes, k, M, s.want);
    }
    ng_axes_rotate_squares(q, &s.axes, &to, s.D, s.out, s.scratch);
    ng_queue_wait(q);
    must_be_near(&s, s.out);
    for (int64_t i = 0; i < s.all; i++) {
      sum[0] += (double)s.D[i];
      sum[1] += (double)s.out[i];
    }
    CHECK(fabs(sum[0] - sum[1]) <= 1e-5 * sum[0]);
    free_sample(&s);
  }
}

int main(void) {
  static const struct CMUnitTest tests[] = {EACH(rotations), EACH(gram_matrices),
                                            EACH(second_moments)};
  return run_on_backends("axes", tests, sizeof tests / sizeof tests[0]);
}
