/* t_kernels_norm.c: sums of norm layers (norm_sums.c, norm_products.c) equal `ref` and loops in double, for every kind,
 * layout and dtype, and do not depend on threads. */
#include "unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/core.h"
#include "draw.h"
#include "fixture.h"
#include "kernels.h"

/* ---- one pass over a batch norm --------------------------------------------------------------*/

/* norm_squares of a batch norm with raw input, computed in one pass relative to a guess of the mean
 * (kernel/norm_products.c), equals loops in double.
 *
 * Tolerance.  Sums of a sample are in f32 over blocks of 64 rows; four rows are added first.  So a term has at most 20
 * additions and 2 roundings, relative to |g| |x - guess|.  With M = sum_t |g| (|x - mean| + |off|) / deviation the
 * error of one dgamma is at most 22 units of 2^-24 M, of dbeta 22 units of sum |g|, and of the variance, in which off
 * counts squared, 22 units of 1 + (off / deviation)^2; of a product of two of these their sum. */

enum { MOST = 300, ALL = 160000 };
/* Narrow rows; strips of 64 columns with and without a remainder, a number of rows that is no multiple of four; wide
 * rows. Then, for every kind: several chunks of samples, several blocks of rows. */
static const struct shape {
  int B, S, C;
} shapes[] = {{9, 802, 21}, {9, 67, 150}, {9, 50, 300}, {9, 3, 64},
              {9, 66, 256}, {72, 5, 24},  {5, 70, 24}};
enum { SHAPES = 5 };
static int B, S, C;

static void shape(size_t k) {
  B = shapes[k].B;
  S = shapes[k].S;
  C = shapes[k].C;
  assert_true(B * S * C <= ALL && C <= MOST);
}

static const double unit = 0x1p-24, EPS = 1e-3;

/* [B, S, C] of any dtype; `planar`: [B, C, S] in memory. */
typedef struct data {
  float x[2 * ALL], g[2 * ALL]; /* room for f64 */
  ng_dtype t;
  bool planar;
} data;

/* Multiples of 1/64 that every dtype holds exactly. Rows that the guess reads are `off` deviations away. */
static data *data_of(rng *r, double off, double mean) {
  data *d = calloc(1, sizeof *d);
  assert_non_null(d);
  d->t = NG_F32;
  for (int i = 0; i < B * S * C; i++) {
    d->x[i] = (float)(mean + rng_value(r));
    d->g[i] = (float)rng_value(r);
  }
  for (int k = 0; k < 16; k++) {
    for (int c = 0; c < C; c++)
      d->x[k * (B * S) / 16 * C + c] += (float)off;
  }
  return d;
}

/* Return a copy in another layout and dtype. */
static data *changed(const data *d, bool planar, ng_dtype t) {
  data *to = calloc(1, sizeof *to);
  assert_non_null(to);
  to->t = t;
  to->planar = planar;
  for (int i = 0; i < B * S * C; i++) {
    const int at = planar ? i / (S * C) * S * C + i % C * S + i / C % S : i;
    ng_from_f32((char *)to->x + at * ng_dtype_size(t), t, &d->x[i], 1);
    ng_from_f32((char *)to->g + at * ng_dtype_size(t), t, &d->g[i], 1);
  }
  return to;
}

static ng_view view_of(const data *d, const float *x) {
  return (ng_view){.data = x,
                   .dtype = d->t,
                   .samples = B,
                   .positions = S,
                   .columns = C,
                   .sample_stride = S * C,
                   .position_stride = d->planar ? 1 : C,
                   .column_stride = d->planar ? S : 1,
                   .run_length = S};
}

/* Compute X of a norm on queue q, and its Gram matrix if `gram` is not NULL. Return false if a value is not finite. */
static bool sums(ng_queue *q, const data *d, const ng_norm_layer *of, int64_t take,
                 double X[3 * MOST], double *gram) {
  const size_t bytes = (size_t)ng_norm_sums_scratch(q, of);
  void *scratch = NULL;
  assert_int_equal(posix_memalign(&scratch, 64, bytes), 0);
  memset(scratch, 0xff, bytes); /* NaN */
  const ng_norm_sum sum = {.layer = *of,
                           .x = view_of(d, d->x),
                           .g = view_of(d, d->g),
                           .samples = take,
                           .products = of->has_gamma && of->has_beta,
                           .X = X,
                           .alpha = 0.25,
                           .S = gram,
                           .dtype = NG_F64};
  ng_kernels(q)->sum_norm_squares(q, &sum, 1, scratch);
  if (gram != NULL) ng_kernels(q)->add_norm_grams(q, &sum, 1, scratch);
  ng_queue_wait(q);
  kernels_check_device();
  free(scratch);
  return !isnan(X[0]);
}

static const ng_norm_layer raw_batch = {.kind = NG_BATCH_NORM,
                                        .input = NG_NORM_RAW,
                                        .eps = 1e-3,
                                        .groups = 1,
                                        .has_gamma = true,
                                        .has_beta = true};

static bool products(const data *d, int32_t threads, int64_t take, double X[3 * MOST]) {
  ng_norm_layer of = raw_batch;
  of.channels = C;
  ng_queue q = {.backend = ng_backend_at(0), .threads = threads};
  return sums(&q, d, &of, take, X, NULL);
}

/* X of channel c, and the tolerance of each. */
static void dense(const data *d, int64_t take, int c, double X[3], double may[3]) {
  double mean = 0, var = 0, guess = 0, most[2] = {0, 0}, size[3] = {0};
  for (int i = 0; i < B * S; i++)
    mean += (double)d->x[i * C + c] / (B * S);
  for (int i = 0; i < B * S; i++)
    var += pow((double)d->x[i * C + c] - mean, 2) / (B * S);
  for (int k = 0; k < 16; k++)
    guess += (double)d->x[k * (B * S) / 16 * C + c] / 16;
  const double r = 1 / sqrt(var + EPS), off = fabs(mean - guess);
  memset(X, 0, 3 * sizeof *X);
  memset(may, 0, 3 * sizeof *may);
  for (int n = 0; n < take; n++) {
    double gamma = 0, beta = 0;
    most[0] = most[1] = 0;
    for (int i = n * S; i < (n + 1) * S; i++) {
      const double g = (double)d->g[i * C + c], h = ((double)d->x[i * C + c] - mean) * r;
      gamma += g * h;
      beta += g;
      most[0] += fabs(g) * (fabs(h) + off * r);
      most[1] += fabs(g);
    }
    X[0] += gamma * gamma;
    X[1] += beta * beta;
    X[2] += gamma * beta;
    may[0] += 2 * fabs(gamma) * most[0];
    may[1] += 2 * fabs(beta) * most[1];
    may[2] += fabs(gamma) * most[1] + fabs(beta) * most[0];
    size[0] += gamma * gamma;
    size[2] += fabs(gamma * beta) / 2;
  }
  for (int k = 0; k < 3; k++)
    may[k] = 22 * unit * (may[k] + size[k] * (1 + off * off * r * r));
}

/* Other layouts and any number of threads give the same bits. */
static void same_bits(const data *d, int64_t take, const double X[3 * MOST]) {
  data *planar = changed(d, true, NG_F32);
  double Y[3 * MOST];
  for (int k = 1; k < 8; k++) {
    assert_true(products(k % 2 ? planar : d, 1 + k / 2, take, Y));
    assert_memory_equal(X, Y, 3 * (size_t)C * sizeof *X);
  }
  free(planar);
}

static void one_pass_is_dense(void **state) {
  static const struct {
    double off, mean;
    int64_t take;
  } how[] = {{0, 0, 9}, {0, 1000, 9}, {30, 0, 9}, {300, -5, 9}, {3, 0, 1}, {3, 0, 8}};
  double worst = 0;
  for (size_t i = 0; i < SHAPES * sizeof how / sizeof how[0]; i++) {
    const size_t k = i / SHAPES;
    rng r = {test_seed() + i};
    shape(i % SHAPES);
    data *d = data_of(&r, how[k].off, how[k].mean);
    double X[3 * MOST];
    assert_true(products(d, 1, how[k].take, X));
    for (int c = 0; c < C; c++) {
      double want[3], may[3];
      dense(d, how[k].take, c, want, may);
      for (int n = 0; n < 3; n++) {
        const double e = fabs(X[n * C + c] - want[n]) / may[n];
        if (!(e <= 1))
          fail_msg("case %d, C %d, channel %d: number %d is %g, expected %g", (int)k, C, c, n,
                   X[n * C + c], want[n]);
        worst = fmax(worst, e);
      }
    }
    if (k == 5) same_bits(d, how[k].take, X);
    free(d);
  }
  print_message("worst = %.3g of the tolerance\n", worst);
}

/* Non-finite values are found; the last samples are in the moments only. */
static void non_finite_arrays_are_refused(void **state) {
  static const float bad[] = {INFINITY, -INFINITY, NAN};
  rng r = {test_seed()};
  for (size_t k = 0; k < 3 * 3 * SHAPES; k++) {
    shape(k / 9);
    data *d = data_of(&r, 0, 0);
    double X[3 * MOST];
    float *in = k / 3 % 3 == 1 ? d->g : d->x;
    const int middle = S + S / 2, last = (B - 1) * S + S / 2;
    in[(k / 3 % 3 == 2 ? last : middle) * C + 5] = bad[k % 3];
    assert_false(products(d, 1, 2, X));
    if (k / 3 % 3 == 1) { /* output gradients of samples beyond `take` are not read */
      d->g[middle * C + 5] = 1;
      d->g[(middle + S) * C + 5] = bad[k % 3];
      assert_true(products(d, 1, 2, X));
    }
    free(d);
  }
}

/* ---- every kind ------------------------------------------------------------------------------*/

/* f32 sums of at most 70 terms in a sample are off by 70 units of 2^-24 of the sums of magnitudes, the moments by as
 * much again, and products of two sums by twice the sum of both; sums of magnitudes are below 4 times the largest sum.
 */
static void near(const ng_norm_layer *of, const double *x, const double *want, int64_t n) {
  double largest = 0;
  for (int64_t i = 0; i < n; i++)
    largest = fmax(largest, fabs(want[i]));
  for (int64_t i = 0; i < n; i++) {
    if (!(fabs(x[i] - want[i]) <= 4 * 280 * unit * largest))
      fail_msg("kind %d, input %d: number %d is %.9g, expected %.9g", of->kind, of->input, (int)i,
               x[i], want[i]);
  }
}

static void every_kind_equals_ref(void **state) {
  static const ng_dtype types[] = {NG_F32, NG_BF16, NG_F16, NG_F64};
  enum { GRAM = 48 * 49 / 2 };
  rng r = {test_seed()};
  for (int i = 0; i < 3 * 2 * 3 * 4; i++) {
    double X[2][3 * MOST], gram[2][GRAM] = {{0}};
    shape((size_t)(SHAPES + i % 2));
    const ng_norm_layer of = {.kind = (ng_norm_kind)(1 + i / 4 % 3),
                              .input = (ng_norm_input)(1 + i / 12 % 2),
                              .eps = EPS,
                              .channels = C,
                              .groups = 4,
                              .has_gamma = i / 24 != 1,
                              .has_beta = i / 24 != 2};
    data *d = data_of(&r, 0, 1), *other = changed(d, i % 4 > 1, types[i / 2 % 4]);
    const int64_t n = ng_norm_width(&of), take = B - i % 3;
    ng_queue ref = {.backend = &ng_backend_ref, .threads = 1};
    assert_true(sums(&ref, d, &of, take, X[1], gram[1]));
    /* the stand-in of a device is slow */
    for (int k = i % 7 == 0 ? KERNELS_FIRST : 0; k < 0 || test_backend(k / 2) != NULL; k++) {
      ng_queue q = kernels_queue_or_device(k);
      memset(gram[0], 0, sizeof gram[0]);
      assert_true(sums(&q, other, &of, take, X[0], gram[0]));
      near(&of, X[0], X[1], of.has_gamma && of.has_beta ? 3 * C : n);
      near(&of, gram[0], gram[1], n * (n + 1) / 2);
    }
    if (i % 7 == 0) {
      ng_queue q = kernels_device();
      d->g[S / 2 * C + 5] = i % 2 == 0 ? INFINITY : NAN;
      assert_false(sums(&q, d, &of, take, X[0], gram[0]));
    }
    free(d);
    free(other);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_pass_is_dense),
      cmocka_unit_test(non_finite_arrays_are_refused),
      cmocka_unit_test(every_kind_equals_ref),
  };
  return cmocka_run_group_tests_name("kernels_norm", tests, NULL, NULL);
}
