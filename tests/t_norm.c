/* t_norm.c: norm layers by hand: refusals, rescues, explanations, and bits that do not depend on threads.  t_oracle.c
 * compares random norm layers with a dense solve. */
#include "fixture.h"
#include "draw.h"

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
  (void)state;
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
  says(&h, "9 inputs wait");
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
  (void)state;
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

/* none: registered, named, left alone; and never asked for. */
static void none_keeps_the_gradient(void **state) {
  hand h;
  (void)state;
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

/* Work that is worth waking threads for: they take samples as they come, and the bits are those of one. */
static void large_layers_share_out(void **state) {
  (void)state;
  enum { LARGE_B = 70, LARGE_S = 144, LARGE_C = 96 };
  static float a[LARGE_B * LARGE_S * LARGE_C], g[LARGE_B * LARGE_S * LARGE_C];
  static const ng_norm_kind kinds[] = {NG_BATCH_NORM, NG_LAYER_NORM, NG_GROUP_NORM};
  rng r = {test_seed()};
  for (size_t i = 0; i < sizeof a / sizeof *a; i++) {
    a[i] = (float)rng_value(&r);
    g[i] = (float)rng_value(&r);
  }
  for (int kind = 0; kind < 3; kind++) {
    float P[4][2][LARGE_C];
    for (int32_t threads = 1; threads <= 4; threads++) {
      fixture f;
      float(*D)[LARGE_C] = P[threads - 1];
      ng_layer d;
      ng_layer_init(&d, NG_NORM, sizeof d);
      d.name = "norm";
      d.in = LARGE_C;
      d.bias = 1;
      d.norm_kind = kinds[kind];
      d.norm_eps = 1e-5;
      d.groups = kinds[kind] == NG_GROUP_NORM ? 4 : 1;
      assert_int_equal(fixture_open(&f, "clip=none", &(fixture_how){.threads = threads}), NG_OK);
      fixture_ok(&f, ng_add_layer(f.p, &d, NULL));
      fixture_ok(&f, ng_ready(f.p));
      for (int k = 0; k < 2; k++) {
        for (int c = 0; c < LARGE_C; c++)
          D[k][c] = (float)(c + 1) / LARGE_C;
        const ng_array grad = ng_array_matrix(D[k], 1, LARGE_C, NG_F32);
        fixture_ok(&f, ng_bind_grad(f.p, 0, (ng_param)k, &grad));
      }
      ng_array in = ng_array_nchw(a, LARGE_B, LARGE_C, 12, 12, NG_F32),
               out = ng_array_nchw(g, LARGE_B, LARGE_C, 12, 12, NG_F32);
      if (kinds[kind] == NG_LAYER_NORM) {
        in = ng_array_matrix(a, (int64_t)LARGE_B * LARGE_S, LARGE_C, NG_F32);
        out = ng_array_matrix(g, (int64_t)LARGE_B * LARGE_S, LARGE_C, NG_F32);
      }
      fixture_ok(&f, ng_begin_samples(f.p, LARGE_B, 1));
      fixture_ok(&f, ng_observe_input(f.p, 0, &in, NG_BORROW));
      fixture_ok(&f, ng_observe_output_grad(f.p, 0, &out, NG_COPY));
      fixture_ok(&f, ng_step(f.p, 0.1));
      fixture_close(&f);
      assert_memory_equal(P[threads - 1], P[0], sizeof P[0]);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(refuses_what_does_not_fit),
      cmocka_unit_test(a_singular_unit_is_rescued),
      cmocka_unit_test(large_layers_share_out),
      cmocka_unit_test(none_keeps_the_gradient),
  };
  return cmocka_run_group_tests_name("norm", tests, NULL, NULL);
}
