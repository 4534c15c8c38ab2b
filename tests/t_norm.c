/* t_norm.c: norm layers by hand: refusals, rescues, explanations, and bits that do not depend on threads.  t_oracle.c
 * compares random norm layers with a dense solve. */
#include "fixture.h"
#include "draw.h"
#include "core/core.h"
#include "model/model.h"
#include "stat/norm_sums.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- one layer by hand -----------------------------------------------------------------------*/

typedef struct hand {
  fixture f;
  float grad[4], a[8], g[8];
  ng_array in, out;
} hand;

/* Two channels, two samples, two positions. */
static void hand_open(hand *h, const char *options) {
  static const float a[8] = {1, -2, 3, 4, -1, 2, 0, 5}, g[8] = {1, 2, -1, 1, 3, 0, 2, -2};
  memcpy(h->a, a, sizeof a);
  memcpy(h->g, g, sizeof g);
  h->in = ng_array_nchw(h->a, 2, 2, 1, 2, NG_F32);
  h->out = ng_array_nchw(h->g, 2, 2, 1, 2, NG_F32);
  for (int i = 0; i < 4; i++)
    h->grad[i] = (float)(i + 1);
  fixture_ok(&h->f, fixture_open(&h->f, options, NULL));
  fixture_ok(&h->f, ng_add_norm(h->f.p, "bn", NG_BATCH_NORM, 2, 1, 1e-5, NULL));
  const ng_array D[2] = {ng_array_vector(h->grad, 2, NG_F32),
                         ng_array_vector(h->grad + 2, 2, NG_F32)};
  fixture_ok(&h->f, ng_bind_grad(h->f.p, 0, NG_WEIGHT, &D[0]));
  fixture_ok(&h->f, ng_bind_grad(h->f.p, 0, NG_BIAS, &D[1]));
  fixture_ok(&h->f, ng_ready(h->f.p));
  fixture_ok(&h->f, ng_begin_samples(h->f.p, 2, 1));
}

static void says(const hand *h, const char *text) {
  if (strstr(ng_last_error(h->f.ctx), text) == NULL)
    fail_msg("'%s' has no '%s'", ng_last_error(h->f.ctx), text);
}

static void refuses_what_does_not_fit(void **state) {
  hand h;
  hand_open(&h, "method=natgrad");
  assert_int_equal(ng_observe_input(h.f.p, 0, &h.in, NG_COPY), NG_ERR_ARG);
  says(&h, "NG_BORROW");
  assert_int_equal(ng_observe_output_grad(h.f.p, 0, &h.out, NG_COPY), NG_ERR_STATE);
  says(&h, "without its input");
  const ng_array wide = ng_array_nchw(h.a, 2, 4, 1, 1, NG_F32),
                 long_ = ng_array_nchw(h.a, 2, 2, 1, 1, NG_F32);
  assert_int_equal(ng_observe_input(h.f.p, 0, &wide, NG_BORROW), NG_ERR_SHAPE);
  says(&h, "expected [2, 2, ...] for 2 samples");
  fixture_ok(&h.f, ng_observe_input(h.f.p, 0, &long_, NG_BORROW));
  assert_int_equal(ng_observe_output_grad(h.f.p, 0, &h.out, NG_COPY), NG_ERR_SHAPE);
  says(&h, "has 2 positions a sample, its input 1");
  for (int k = 1; k < 8; k++)
    fixture_ok(&h.f, ng_observe_input(h.f.p, 0, &h.in, NG_BORROW));
  assert_int_equal(ng_observe_input(h.f.p, 0, &h.in, NG_BORROW), NG_ERR_STATE);
  says(&h, "9 inputs without an output gradient");
  /* an input of a micro-batch that is over has nothing to say in the next */
  fixture_ok(&h.f, ng_begin_samples(h.f.p, 2, 1));
  assert_int_equal(ng_observe_output_grad(h.f.p, 0, &h.out, NG_COPY), NG_ERR_STATE);
  fixture_ok(&h.f, ng_observe_input(h.f.p, 0, &h.in, NG_BORROW)); /* and takes no room */
  fixture_ok(&h.f, ng_observe_output_grad(h.f.p, 0, &h.out, NG_COPY));
  fixture_close(&h.f);
  fixture_ok(&h.f, fixture_open(&h.f, "method=natgrad", NULL));
  assert_int_equal(ng_add_norm(h.f.p, "x", NG_GROUP_NORM, 4, 3, 1e-5, NULL), NG_ERR_ARG);
  says(&h, "groups is 3, expected a divisor of in 4");
  assert_int_equal(ng_add_norm(h.f.p, "x", (ng_norm_kind)9, 4, 1, 1e-5, NULL), NG_ERR_ARG);
  says(&h, "norm_kind is 9");
  assert_int_equal(ng_add_norm(h.f.p, "x", NG_BATCH_NORM, 4, 1, (double)NAN, NULL), NG_ERR_ARG);
  says(&h, "norm_eps");
  ng_layer l;
  ng_layer_init(&l, NG_NORM, sizeof l);
  l.name = "x";
  l.in = 4;
  l.norm_no_weight = 1;
  assert_int_equal(ng_add_layer(h.f.p, &l, NULL), NG_ERR_ARG);
  says(&h, "one of gamma and beta at least");
  fixture_close(&h.f);
}

/* Only one sample has a gradient, so F of a channel has rank one, and the damping is lost beside F. */
static void a_singular_unit_is_rescued(void **state) {
  hand h;
  hand_open(&h, "method=natgrad clip=none damping=1e-9");
  memset(h.g, 0, sizeof h.g);
  h.g[0] = h.g[2] = 100;
  fixture_ok(&h.f, ng_observe_input(h.f.p, 0, &h.in, NG_BORROW));
  fixture_ok(&h.f, ng_observe_output_grad(h.f.p, 0, &h.out, NG_COPY));
  assert_int_equal(ng_step(h.f.p, 0.1), NG_RESCUED);
  for (int i = 0; i < 4; i++)
    assert_true(isfinite(h.grad[i]));
  ng_report r = {.struct_size = sizeof r};
  fixture_ok(&h.f, ng_report_read(h.f.p, &r));
  assert_true(r.more_damping + r.plain > 0);
  fixture_close(&h.f);
}

/* One step of a block whose average, kept by stat_decay = 1, is put by hand; its rung is reported, and counted once. */
static void rung_is(hand *h, const char *what, int32_t rung) {
  static const float D[4] = {1, 2, 3, 4};
  ng_report before = {.struct_size = sizeof before}, after = before;
  ng_layer_report l = {.struct_size = sizeof l};
  memcpy(h->grad, D, sizeof D);
  fixture_ok(&h->f, ng_report_read(h->f.p, &before));
  fixture_ok(&h->f, ng_begin_samples(h->f.p, 2, 1));
  fixture_ok(&h->f, ng_observe_input(h->f.p, 0, &h->in, NG_BORROW));
  fixture_ok(&h->f, ng_observe_output_grad(h->f.p, 0, &h->out, NG_COPY));
  const ng_status st = ng_step(h->f.p, 0.1);
  fixture_ok(&h->f, ng_report_read(h->f.p, &after));
  fixture_ok(&h->f, ng_report_layer(h->f.p, 0, &l));
  if (st != (rung > 0 ? NG_RESCUED : NG_OK) || l.rung != rung ||
      after.more_damping - before.more_damping != (rung > 0 && rung < 4) ||
      after.kept_last - before.kept_last != (rung == 5) ||
      after.plain - before.plain != (rung == 6))
    fail_msg("%s: %s, rung %d, expected %d", what, ng_status_name(st), (int)l.rung, (int)rung);
  if (rung == 6) assert_true(h->grad[1] == D[1] && h->grad[3] == D[3]);
}

static void rungs_are_reported(void **state) {
  hand h;
  for (int full = 0; full < 2; full++) {
    static const float shown[] = {-5, -0.005F, 3, -5, 3};
    const int32_t rungs[2][5] = {{6, 1, 0, 6, 0}, {6, 1, 0, 5, 0}};
    char set[160];
    (void)snprintf(set, sizeof set,
                   "method=natgrad norm_block=%s clip=none damping=0.001 norm_damping=1 "
                   "stat_decay=1 stat_start=identity solve_period=1",
                   full ? "full" : "unit");
    hand_open(&h, set);
    const ng_stat *s = h.f.p->block[0]->stat;
    const int64_t last = full ? ng_sym_at(4, 3, 3) : 3; /* beta of the second channel */
    for (int k = 0; k < 5; k++) {
      if (ng_stat_is_double(s)) {
        ((double *)s->part->average)[last] = (double)shown[k];
      } else {
        ((float *)s->part->average)[last] = shown[k];
      }
      rung_is(&h, set, rungs[full][k]);
    }
    fixture_close(&h.f);
  }
}

/* none: registered, named, left alone; and never asked for. */
static void norm_block_none_keeps_the_gradient(void **state) {
  hand h;
  hand_open(&h, "method=natgrad norm_block=none");
  assert_int_equal(ng_wants(h.f.p, 0), 0);
  fixture_ok(&h.f, ng_step(h.f.p, 0.1));
  for (int i = 0; i < 4; i++)
    assert_true(h.grad[i] == (float)(i + 1));
  ng_explain_row row = {.struct_size = sizeof row};
  assert_int_equal(ng_explain(h.f.p, 0, &row), NG_OK);
  assert_string_equal(row.family, "none");
  assert_string_equal(row.name, "bn.weight");
  fixture_close(&h.f);
  hand_open(&h, "method=natgrad");
  row = (ng_explain_row){.struct_size = sizeof row};
  assert_int_equal(ng_explain(h.f.p, 1, &row), NG_OK);
  assert_string_equal(row.family, "norm");
  assert_string_equal(row.name, "bn.bias");
  assert_string_equal(row.why, "F 4x4, units of 2x2");
  assert_int_equal(ng_wants(h.f.p, 0), 1);
  fixture_close(&h.f);
}

/* F + norm_damping damping I. */
static double damping_of_step(hand *h, int t) {
  ng_layer_report r = {.struct_size = sizeof r};
  if (t % 2 == 0) {
    if (t > 0) fixture_ok(&h->f, ng_begin_samples(h->f.p, 2, 1));
    fixture_ok(&h->f, ng_observe_input(h->f.p, 0, &h->in, NG_BORROW));
    fixture_ok(&h->f, ng_observe_output_grad(h->f.p, 0, &h->out, NG_COPY));
  }
  fixture_ok(&h->f, ng_step(h->f.p, 0.1));
  fixture_ok(&h->f, ng_report_layer(h->f.p, 0, &r));
  assert_true(r.damping_a == 0 && r.damping_g == 0);
  return r.damping_f;
}

/* The damping changes after step 0; with damping_leak it is added when the average changes, at steps 0 and 2. */
static void reports_its_damping(void **state) {
  static const struct {
    const char *options;
    double expected[3];
  } row[] = {{"method=natgrad stat_period=2 damping=0.1 norm_damping=16", {1.6, 3.2, 3.2}},
             {"method=natgrad stat_period=2 damping=0.1 norm_damping=16 damping_leak=owner "
              "damping_split=full",
              {1.6, 1.6, 3.2}}};
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
    hand h;
    hand_open(&h, row[i].options);
    for (int t = 0; t < 3; t++) {
      if (t == 1) fixture_ok(&h.f, ng_set_real(h.f.p, "damping", 0.2));
      const double d = damping_of_step(&h, t);
      if (fabs(d - row[i].expected[t]) > 1e-12) fail_msg("%s, step %d: %g", row[i].options, t, d);
    }
    fixture_close(&h.f);
  }
}

/* ---- one pass over a batch norm --------------------------------------------------------------*/

/* Squares and products of a batch norm's gradients of single samples, made in one pass
 * relative to a guess of the mean (stat/norm_products.c), against loops over everything in double.
 *
 * Tolerance.  Sums of a sample are f32 over blocks of 64 rows, four of them added first: at most 20 additions
 * and 2 roundings a term, all of |g| |x - guess|.  With M = sum_t |g| (|x - mean| + |off|) / deviation the error
 * of one dgamma is at most 22 units of 2^-24 M, of dbeta 22 units of sum |g|, and of the variance, in which
 * off counts squared, 22 units of 1 + (off / deviation)^2; of a product of two of these their sum. */

enum { B = 9, MOST = 300, ALL = 160000 };
/* Narrow rows; strips of 64 columns and some that are left, rows that make no fours; wide rows; strips alone. */
static const struct shape {
  int S, C;
} shapes[] = {{802, 21}, {67, 150}, {50, 300}, {3, 64}, {66, 256}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };
static int S, C;

static void shape(size_t k) {
  S = shapes[k].S;
  C = shapes[k].C;
  assert_true(B * S * C <= ALL && C <= MOST);
}

static const double unit = 0x1p-24, EPS = 1e-3;

static ng_context *context(int32_t threads) {
  ng_context_config config;
  char message[256] = "";
  ng_context *ctx = NULL;
  ng_context_config_init(&config, sizeof config);
  config.threads = threads;
  if (ng_context_create(NG_VERSION, &config, message, sizeof message, &ctx) != NG_OK)
    fail_msg("%s", message);
  return ctx;
}

static void *room_of(const ng_context *ctx) {
  void *p = NULL;
  assert_int_equal(posix_memalign(&p, 64, (size_t)ng_norm_room(ctx, C)), 0);
  memset(p, 0xff, (size_t)ng_norm_room(ctx, C)); /* NaN */
  return p;
}

/* [B, S, C] as it lies, or with its channels apart, [B, C, S]. */
static ng_view view_of(const float *x, bool apart) {
  return (ng_view){.data = x,
                   .dtype = NG_F32,
                   .samples = B,
                   .positions = S,
                   .columns = C,
                   .by_sample = S * C,
                   .by_position = apart ? 1 : C,
                   .by_column = apart ? S : 1,
                   .run = S};
}

typedef struct data {
  float x[ALL], g[ALL];
} data;

/* Rows that the guess looks at, `off` deviations away from all others. */
static data *data_of(rng *r, double off, double mean) {
  data *d = malloc(sizeof *d);
  assert_non_null(d);
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

/* False: a value is not finite. */
static bool products(const data *d, bool apart, int32_t threads, int64_t take, double X[3 * MOST]) {
  const ng_norm_of raw = {.kind = NG_BATCH_NORM,
                          .input = NG_NORM_RAW,
                          .eps = 1e-3,
                          .channels = C,
                          .groups = 1,
                          .gamma = true,
                          .beta = true};
  ng_context *ctx = context(threads);
  void *room = room_of(ctx);
  const ng_view x = view_of(d->x, apart), g = view_of(d->g, apart);
  assert_true(ng_norm_one_pass(&raw));
  const bool finite = ng_norm_products(ctx, &raw, &x, &g, take, X, room);
  free(room);
  ng_context_destroy(&ctx);
  return finite;
}

/* X of channel c, and how much of each may be wrong. */
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

/* In another layout and by any number of threads. */
static void same_bits(const data *d, int64_t take, const double X[3 * MOST]) {
  data *apart = malloc(sizeof *apart);
  double Y[3 * MOST];
  assert_non_null(apart);
  for (int i = 0; i < B * S * C; i++) {
    const int to = i / (S * C) * S * C + i % C * S + i / C % S;
    apart->x[to] = d->x[i];
    apart->g[to] = d->g[i];
  }
  for (int k = 1; k < 8; k++) {
    assert_true(products(k % 2 ? apart : d, k % 2 == 1, 1 + k / 2, take, Y));
    assert_memory_equal(X, Y, 3 * (size_t)C * sizeof *X);
  }
  free(apart);
}

static void one_pass_is_dense(void **state) {
  static const struct {
    double off, mean;
    int64_t take;
  } how[] = {{0, 0, B}, {0, 1000, B}, {30, 0, B}, {300, -5, B}, {3, 0, 1}, {3, 0, B - 1}};
  double worst = 0;
  for (size_t i = 0; i < SHAPES * sizeof how / sizeof how[0]; i++) {
    const size_t k = i / SHAPES;
    rng r = {test_seed() + i};
    shape(i % SHAPES);
    data *d = data_of(&r, how[k].off, how[k].mean);
    double X[3 * MOST];
    assert_true(products(d, false, 1, how[k].take, X));
    for (int c = 0; c < C; c++) {
      double want[3], may[3];
      dense(d, how[k].take, c, want, may);
      for (int n = 0; n < 3; n++) {
        const double e = fabs(X[n * C + c] - want[n]) / may[n];
        if (!(e <= 1))
          fail_msg("case %d, C %d, channel %d, %d: %g, not %g", (int)k, C, c, n, X[n * C + c],
                   want[n]);
        worst = fmax(worst, e);
      }
    }
    if (k == 5) same_bits(d, how[k].take, X);
    free(d);
  }
  print_message("worst = %.3g of what is allowed\n", worst);
}

/* A value that is not finite is refused: the last samples have a part in the moments only. */
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
    assert_false(products(d, false, 1, 2, X));
    if (k / 3 % 3 == 1) { /* an output gradient of samples that are not taken is not read */
      d->g[middle * C + 5] = 1;
      d->g[(middle + S) * C + 5] = bad[k % 3];
      assert_true(products(d, false, 1, 2, X));
    }
    free(d);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(refuses_what_does_not_fit),
      cmocka_unit_test(a_singular_unit_is_rescued),
      cmocka_unit_test(reports_its_damping),
      cmocka_unit_test(rungs_are_reported),
      cmocka_unit_test(norm_block_none_keeps_the_gradient),
      cmocka_unit_test(one_pass_is_dense),
      cmocka_unit_test(non_finite_arrays_are_refused),
  };
  return cmocka_run_group_tests_name("norm", tests, NULL, NULL);
}
