/* t_option_effects_norm.c: the options of norm layers; see effects.h. */
#include "effects.h"

/* One batch norm of two channels; two steps, `set` before the second. */
static void norm_play(const char *options, const char *own, const char *set, const char *value,
                      float P[2][4]) {
  fixture f;
  float grad[4], a[12], g[12];
  ng_layer l;
  ng_layer_init(&l, NG_NORM, sizeof l);
  l.name = "bn";
  l.in = 2;
  l.bias = 1;
  l.options = own;
  fixture_ok(&f, fixture_open(&f, options, NULL));
  fixture_ok(&f, ng_add_layer(f.p, &l, NULL));
  const ng_array D[2] = {ng_array_vector(grad, 2, NG_F32), ng_array_vector(grad + 2, 2, NG_F32)};
  for (int k = 0; k < 2; k++)
    fixture_ok(&f, ng_bind_grad(f.p, 0, (ng_param)k, &D[k]));
  fixture_ok(&f, ng_ready(f.p));
  for (int step = 0; step < 2; step++) {
    for (int i = 0; i < 12; i++) {
      a[i] = data(step, 0, 0, 12, i);
      g[i] = data(step, 0, 0, 13, i);
    }
    const ng_array in = ng_array_nchw(a, 3, 2, 2, 1, NG_F32),
                   out = ng_array_nchw(g, 3, 2, 2, 1, NG_F32);
    if (step == 1 && set != NULL) fixture_ok(&f, ng_set(f.p, set, value));
    for (int i = 0; i < 4; i++)
      grad[i] = data(step, 0, 0, 11, i);
    fixture_ok(&f, ng_begin_samples(f.p, 3, 1));
    if (ng_wants(f.p, 0)) {
      fixture_ok(&f, ng_observe_input(f.p, 0, &in, NG_BORROW));
      fixture_ok(&f, ng_observe_output_grad(f.p, 0, &out, NG_COPY));
    }
    fixture_ok(&f, ng_step(f.p, 0.1));
    memcpy(P[step], grad, sizeof grad);
  }
  fixture_close(&f);
}

static double norm_gap(float x[2][4], float y[2][4], int step) {
  double most = 0, size = 0;
  for (int i = 0; i < 4; i++) {
    most = fmax(most, fabs((double)x[step][i] - (double)y[step][i]));
    size = fmax(size, fabs((double)y[step][i]));
  }
  return most / size;
}

/* All four differ; a layer's own is what the model's would be. */
static void effect_norm_block(void **state) {
  static const char *const block[] = {"unit", "full", "diagonal", "none"};
  float P[4][2][4], own[2][4];
  (void)state;
  for (int i = 0; i < 4; i++) {
    char line[64];
    (void)snprintf(line, sizeof line, "clip=none norm_block=%s", block[i]);
    norm_play(line, NULL, NULL, NULL, P[i]);
    for (int k = 0; k < i; k++)
      assert_true(norm_gap(P[i], P[k], 0) > DIFFERENT);
    norm_play("clip=none", line + strlen("clip=none "), NULL, NULL, own);
    assert_memory_equal(own, P[i], sizeof own);
  }
  for (int i = 0; i < 4; i++)
    assert_true(P[3][0][i] == data(0, 0, 0, 11, i));
}

/* What multiplies the damping is as good as a damping multiplied; also when it is set later. */
static void effect_norm_damping(void **state) {
  float one[2][4], three[2][4], damped[2][4], own[2][4], set[2][4];
  (void)state;
  norm_play("clip=none damping=0.1", NULL, NULL, NULL, one);
  norm_play("clip=none damping=0.1 norm_damping=3", NULL, NULL, NULL, three);
  norm_play("clip=none damping=0.3", NULL, NULL, NULL, damped);
  norm_play("clip=none damping=0.1", "norm_damping=3", NULL, NULL, own);
  norm_play("clip=none damping=0.1", NULL, "norm_damping", "3", set);
  assert_true(norm_gap(three, one, 0) > DIFFERENT);
  assert_true(norm_gap(three, damped, 0) < 1e-6);
  assert_memory_equal(own, three, sizeof own);
  assert_memory_equal(set[0], one[0], sizeof set[0]);
  assert_memory_equal(set[1], three[1], sizeof set[1]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(effect_norm_block),
      cmocka_unit_test(effect_norm_damping),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
