/* t_pruning.c: one step of pruning against dense formulas and golden numbers of the published program; then
 * networks.
 *
 * Tolerance: gradients are f32 in both, everything else is double.  A dense inverse of order 12 with a condition
 * of about 100 loses less than 1e-11. */
#include "dense.h"
#include "nn/models.h"
#include "train/pruning.h"
#include "trainer_help.h"
#include "one_context.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 12, GRADIENTS = 5 };

/* x_s(i) = sin((i + 1)(s + 0.5)) */
static double compute_sine(double s, int i) { return sin((double)(i + 1) * (s + 0.5)); }

/* Invert the damped block-diagonal matrix; coordinates with the same block number form a block. */
static void invert_blocks(const float *G, const int *block, double damping, double inverse[N * N]) {
  double A[N * N];
  memset(inverse, 0, sizeof A);
  for (int i = 0; i < N; i++) {
    for (int j = 0; j < N; j++) {
      double sum = 0.0;
      for (int r = 0; r < GRADIENTS; r++)
        sum += (double)G[r * N + i] * (double)G[r * N + j];
      A[i * N + j] = (block[i] == block[j] ? sum / GRADIENTS : 0.0) + (i == j ? damping : 0.0);
    }
    inverse[i * (N + 1)] = 1.0;
  }
  dense_solve(N, A, N, inverse);
}

static void expect_dense_step(int64_t size, int block_size) {
  enum { DROP = 5 };
  float G[GRADIENTS * N];
  double w[N], expected[N], score[N], inverse[N * N], t[N] = {0.0};
  bool pruned[N], out[N] = {false};
  int block[N];
  for (int i = 0; i < GRADIENTS * N; i++)
    G[i] = (float)compute_sine(0.3 + 0.9 * (double)(i / N), i % N);
  for (int i = 0; i < N; i++) {
    w[i] = compute_sine(2.0, i);
    block[i] = i / block_size;
  }
  invert_blocks(G, block, 0.05, inverse);
  for (int i = 0; i < N; i++)
    score[i] = w[i] * w[i] / (2.0 * inverse[i * (N + 1)]);
  for (int k = 0; k < DROP; k++) {
    int least = -1;
    for (int i = 0; i < N; i++) {
      if (!out[i] && (least < 0 || score[i] < score[least])) least = i;
    }
    out[least] = true;
  }
  for (int i = 0; i < N; i++)
    t[i] = out[i] ? -w[i] / inverse[i * (N + 1)] : 0.0;
  for (int i = 0; i < N; i++) {
    expected[i] = w[i];
    for (int j = 0; j < N; j++)
      expected[i] += inverse[i * N + j] * t[j];
    if (out[i]) expected[i] = 0.0;
  }
  const pruning how = {.gradients = GRADIENTS, .steps = 1, .damping = 0.05, .block = size};
  const pruning_set s = {.n = N, .drop = DROP, .G = G, .w = w, .pruned = pruned};
  assert_int_equal(pruning_prune_step(ctx, &how, &s), CLI_OK);
  for (int i = 0; i < N; i++) {
    assert_int_equal(pruned[i], out[i]);
    assert_true(out[i] ? w[i] == 0.0 : fabs(w[i] - expected[i]) < 1e-10);
  }
}

static void steps_match_dense_formulas(void **state) {
  expect_dense_step(0, N);
  expect_dense_step(5, 5);
  expect_dense_step(100, N);
}

/* From the published program in double: 6 weights, 3 gradients, damping 0.1, 2 weights dropped.  Gradients here
 * are f32. */
static void step_matches_the_published_program(void **state) {
  static const double after[] = {0.604278621, -1.039811836, 1.231898664, 0.0, 0.0, 0.705931968};
  float G[18];
  double w[6];
  bool pruned[6];
  for (int i = 0; i < 18; i++)
    G[i] = (float)compute_sine(0.3 + 0.9 * (double)(i / 6), i % 6);
  for (int i = 0; i < 6; i++)
    w[i] = compute_sine(2.0, i);
  const pruning how = {
      .gradients = 3,
      .steps = 1,
      .damping = 0.1,
  };
  const pruning_set s = {.n = 6, .drop = 2, .G = G, .w = w, .pruned = pruned};
  assert_int_equal(pruning_prune_step(ctx, &how, &s), CLI_OK);
  for (int i = 0; i < 6; i++)
    assert_true(fabs(w[i] - after[i]) < 3e-6);
}

static void magnitude_drops_the_smallest_weights(void **state) {
  double w[5] = {-3.0, 1.0, -1.0, 0.5, 1.0};
  bool pruned[5];
  const pruning how = {.score = PRUNING_MAGNITUDE, .gradients = 1, .steps = 1};
  const pruning_set s = {.n = 5, .drop = 2, .w = w, .pruned = pruned};
  assert_int_equal(pruning_prune_step(ctx, &how, &s), CLI_OK);
  assert_true(w[0] == -3.0 && w[1] == 0.0 && w[2] == -1.0 && w[3] == 0.0 && w[4] == 1.0);
}

static void remaining_share_falls_geometrically(void **state) {
  assert_int_equal(pruning_compute_step_count(1000, 0, 0, 0.75, 1, 2), 500);
  assert_int_equal(pruning_compute_step_count(1000, 0, 500, 0.75, 2, 2), 250);
  /* 0.8, 0.4, 0.2 and 0.1 remain */
  assert_int_equal(pruning_compute_step_count(1000, 200, 200, 0.9, 1, 3), 400);
  assert_int_equal(pruning_compute_step_count(1000, 200, 600, 0.9, 2, 3), 200);
  assert_int_equal(pruning_compute_step_count(1000, 200, 800, 0.9, 3, 3), 100);
  assert_int_equal(pruning_compute_step_count(1000, 600, 600, 0.5, 1, 1),
                   0); /* the model is already sparser */
  for (int i = 0; i < 1000; i++)
    assert_int_equal(pruning_compute_step_count(1000, 0, 0, i * 0.001, 1, 1), i);
}

/* ---- networks --------------------------------------------------------------------------------*/

typedef struct pruning_run_setup {
  settings s;
  data_set d;
  nn *net;
  feed feed;
} pruning_run_setup;

static void open_setup(pruning_run_setup *p, const char *model, const char *data) {
  const model_task task = {.input = {8, 8, 1}, .classes = 10};
  bool reconstructs;
  settings_init(&p->s);
  must_set(&p->s, "data", data);
  must_set(&p->s, "batch", "16");
  assert_int_equal(data_open(data, &p->d), CLI_OK);
  p->net = nn_create(NULL, 3);
  assert_int_equal(model_build(model, &task, p->net, &reconstructs), CLI_OK);
  assert_int_equal(feed_create(&p->s, &p->d, NULL, false, NULL, &p->feed), CLI_OK);
  assert_int_equal(nn_prepare(p->net, 16), CLI_OK);
}

static void close_setup(pruning_run_setup *p) {
  feed_free(&p->feed);
  nn_destroy(&p->net);
  data_close(&p->d);
  settings_free(&p->s);
}

/* After pruning, the given share of all weights is zero.  Earlier zeros and all biases are unchanged. */
static void given_sparsity_is_reached(void **state) {
  for (int turn = 0; turn < 2; turn++) {
    pruning_run_setup p;
    open_setup(&p, "mlp", "digits");
    const pruning how = {.score = turn == 0 ? PRUNING_MFAC : PRUNING_MAGNITUDE,
                         .sparsity = 0.9,
                         .steps = 3,
                         .gradients = 4,
                         .damping = 1e-3,
                         .block = 50};
    float *first = nn_get_param(p.net, 0)->value;
    /* weights that are 0 before pruning must stay 0 */
    for (int i = 0; i < 7; i++)
      first[i] = 0.0F;
    float bias[4];
    memcpy(bias, nn_get_param(p.net, 1)->value, sizeof bias);
    assert_int_equal(nn_get_param(p.net, 1)->role, NN_BIAS);
    assert_int_equal(pruning_run(ctx, &how, false, &p.feed, p.net), CLI_OK);
    const pruning_count c = pruning_count_zeros(p.net);
    assert_int_equal(c.zeros, (int64_t)(0.9 * (double)c.weights + 1e-9));
    for (int i = 0; i < 7; i++)
      assert_true(first[i] == 0.0F);
    assert_memory_equal(bias, nn_get_param(p.net, 1)->value, sizeof bias);
    close_setup(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(steps_match_dense_formulas),
      cmocka_unit_test(step_matches_the_published_program),
      cmocka_unit_test(magnitude_drops_the_smallest_weights),
      cmocka_unit_test(remaining_share_falls_geometrically),
      cmocka_unit_test(given_sparsity_is_reached),
  };
  return cmocka_run_group_tests_name("pruning", tests, open_context, close_context);
}
