/* t_shards.c: sharded linear layers.
 *
 * The oracle is K-FAC in double over whole layers, with one rank per model group (oracle.h): each rank's shard of
 * PD, or of the updated weights, and nu.  PD and nu agree to 1e-5 of the largest number, the rounding of f32 at
 * this damping.  Replicated data (biases of layers sharded by inputs, unsharded layers) has the same bits on all
 * ranks. */
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"
#include "shard_run.h"

typedef struct whole_model {
  double P[STEPS][LAYERS][MOST_WEIGHTS], nu[STEPS];
} whole_model;

static void compute_oracle(const shard_run *x, whole_model *w) {
  char options[256];
  (void)snprintf(options, sizeof options, "%.*s", (int)strcspn(x->options, "|"), x->options);
  ng_options opt = fixture_parse_options(options);
  oracle *o = oracle_create(&opt, x->data);
  for (int i = 0; i < LAYERS; i++) {
    ng_layer d = layer_of(NG_LINEAR, layer[i].name, layer[i].in, layer[i].out);
    d.bias = (int32_t)has_bias(x, i);
    d.positions = layer[i].positions;
    assert_int_equal(oracle_add_layer(o, &d), i);
  }
  for (int64_t t = 0; t < STEPS; t++) {
    const double *D[LAYERS];
    double *P[LAYERS];
    for (int32_t g = 0; g < x->data; g++) {
      for (int64_t call = 0; call < MICRO; call++) {
        const ng_batch b = batch_of(sample_count(g, call));
        oracle_begin(o, g, &b);
        for (int k = 0; k < 2 * LAYERS; k++) {
          const int i = k % LAYERS;
          const bool grad = k >= LAYERS;
          const int64_t n = b.samples * position_count(i) * (grad ? layer[i].out : layer[i].in);
          double a[2 * MOST_OBSERVED];
          for (int64_t j = 0; j < n; j++)
            a[j] = observed_value(g, t, call, i, grad, j);
          (grad ? oracle_observe_output_grad : oracle_observe_input)(o, g, i, a, position_count(i));
        }
      }
    }
    for (int i = 0; i < LAYERS; i++) {
      D[i] = x->D[t][i];
      P[i] = w->P[t][i];
    }
    w->nu[t] = oracle_step(o, 0.1, D, P);
  }
  oracle_destroy(&o);
}

/* If the options have a fused update, replace PD of each step by the weights after the update. */
static void apply_updates(const shard_run *x, whole_model *w) {
  const bool sgd = strstr(x->options, "=sgd") != NULL;
  if (!sgd && strstr(x->options, "=adamw") == NULL) return;
  ng_sgd s = fixture_sgd(0.1, 0.9);
  s.weight_decay = 0.01;
  ng_adamw a;
  ng_adamw_init(&a, sizeof a);
  a.lr = 0.1;
  for (int i = 0; i < LAYERS; i++) {
    double now[MOST_WEIGHTS], m[MOST_WEIGHTS] = {0}, v[MOST_WEIGHTS] = {0};
    const int64_t n = layer[i].out * (layer[i].in + has_bias(x, i));
    for (int64_t k = 0; k < MOST_WEIGHTS; k++)
      now[k] = initial_weight(i, k);
    for (int t = 0; t < STEPS; t++) {
      if (sgd) {
        oracle_update_sgd(&s, t + 1, n, w->P[t][i], now, m);
      } else {
        oracle_update_adamw(&a, t + 1, n, w->P[t][i], now, m, v);
      }
      memcpy(w->P[t][i], now, sizeof now);
    }
  }
}

/* The largest difference of this rank's shards, relative to the largest number of the layer. */
static double measure_error(const shard_run *x, const whole_model *w, int32_t rank, int t) {
  double worst = fabs(x->nu[rank][t] - w->nu[t]) / w->nu[t];
  for (int i = 0; i < LAYERS; i++) {
    const shard p = shard_of(x, rank, i);
    double most = 0.0;
    float expected[MOST_WEIGHTS] = {0};
    for (int64_t k = 0; k < layer[i].out * (layer[i].in + has_bias(x, i)); k++) {
      most = fmax(most, fabs(w->P[t][i][k]));
    }
    copy_shard(x, rank, i, w->P[t][i], expected);
    for (int64_t k = 0; k < p.out * (p.in + has_bias(x, i)); k++) {
      worst = fmax(worst, fabs((double)(x->out[rank][t][i][k] - expected[k])) / most);
    }
  }
  return worst;
}

/* Eigenvectors are f32, and their accuracy depends on the LAPACK: 1.1e-5 is seen with AVX-512 on one rank without
 * shards. */
static double error_bound(const shard_run *x) {
  return strstr(x->options, "eigen") != NULL ? 3e-5 : 1e-5;
}

static void compare_with_oracle(const shard_run *x) {
  whole_model w;
  memset(&w, 0, sizeof w);
  compute_oracle(x, &w);
  apply_updates(x, &w);
  for (int32_t r = 0; r < x->data * x->model; r++) {
    for (int t = x->first_step; t < STEPS; t++) {
      const double error = measure_error(x, &w, r, t);
      if (!(error < error_bound(x))) {
        fail_msg("%s, data %d model %d: rank %d is off by %g in step %d (nu %g, %g)", x->options,
                 x->data, x->model, r, error, t, x->nu[r][t], w.nu[t]);
      }
      assert_true(x->nu[r][t] == x->nu[0][t]);
      /* layer 3 is not sharded, so all ranks have the same numbers */
      const float *mine = x->out[r][t][3], *first = x->out[0][t][3];
      assert_memory_equal(mine, first, (size_t)(layer[3].out * layer[3].in) * sizeof *mine);
      const shard p = shard_of(x, r, 1), q = shard_of(x, 0, 1);
      if (has_bias(x, 1)) { /* whole on all ranks */
        assert_memory_equal(x->out[r][t][1] + p.out * p.in, x->out[0][t][1] + q.out * q.in,
                            (size_t)p.out * sizeof *mine);
      }
    }
  }
}

static const char *const methods[] = {
    "method=natgrad damping=0.3 stat_period=1 solve_period=1 kl_clip=0.0001",
    "method=natgrad damping=0.3 stat_period=1 solve_period=1 clip=rescale solver=eigen "
    "damping_split=joint",
    "method=natgrad damping=0.3 stat_period=1 solve_period=1 update=sgd",
    "method=natgrad damping=0.3 stat_period=1 solve_period=1 update=adamw kl_clip=0.0001",
    "method=kaisa damping=0.3 kl_clip=0.0001",
};
static const char *const places[] = {
    "grad_worker_fraction=1", "grad_worker_fraction=0", "grad_worker_fraction=0.5",
    "grad_worker_fraction=0 statistics=owner", "statistics=owner colocate=0 placement=round-robin"};

static void shards_equal_whole_layers(void **state) {
  static const int32_t grid[][2] = {{1, 1}, {1, 2}, {1, 3}, {2, 2}, {2, 3}, {4, 2}};
  for (size_t m = 0; m < sizeof methods / sizeof methods[0]; m++) {
    for (size_t g = 0; g < sizeof grid / sizeof grid[0]; g++) {
      for (size_t k = 0; k < sizeof places / sizeof places[0]; k++) {
        const int32_t W = grid[g][0] * grid[g][1];
        char options[256];
        (void)snprintf(options, sizeof options, "%s %s", methods[m], places[k]);
        /* the first method runs everywhere */
        const bool half = m > 0 && (W == RANKS || (m + g + k) % 2 == 0);
        if ((k == 2 && W % 2 != 0) || half || !has_ranks(W)) continue;
        shard_run how = default_run(options);
        how.data = grid[g][0];
        how.model = grid[g][1];
        how.data_adjacent = (m + k) % 2 == 0;
        how.bias = (g + k) % 2 == 0 || W == 1;
        how.last = g % 2 == 1;
        how.rows_first = k % 2 == 0;
        shard_run *x = trained_run(&how);
        compare_with_oracle(x);
        free(x);
      }
    }
  }
}

/* Options that the oracle does not have: compare with model groups of one rank each. */
static void shards_equal_groups_of_one_rank(void **state) {
  if (!has_ranks(6)) skip();
  static const char *const more[] = {
      "method=sam stat_period=1",
      "method=natgrad damping=0.3 stat_period=1 solve_period=1 clip=rms clip_bound=0.01",
      "method=natgrad damping=0.3 stat_period=1 solve_period=1 clip=value clip_bound=0.1",
      "method=natgrad damping=0.3 stat_period=1 solve_period=2 factor_blocks=2 max_factor=4",
      "method=natgrad damping=0.3 calls=ema refresh_tolerance=0.1 colocate=0 placement=mpd-kfac",
      "method=kfac-adam damping=0.1 moment_epsilon=0.1"};
  for (size_t m = 0; m < sizeof more / sizeof more[0]; m++) {
    shard_run how = default_run(more[m]);
    how.model = 1;
    shard_run *one = trained_run(&how);
    how.model = 3;
    shard_run *x = trained_run(&how);
    for (int32_t r = 0; r < 6; r++) {
      for (int t = 0; t < STEPS; t++) {
        if (!(fabs(x->nu[r][t] / one->nu[0][t] - 1.0) < 1e-5)) {
          fail_msg("%s: nu is %g on rank %d, expected %g", more[m], x->nu[r][t], r, one->nu[0][t]);
        }
        for (int i = 0; i < LAYERS; i++) {
          const shard p = shard_of(x, r, i);
          const float *of = one->out[model_group_of(one, 0)][t][i], *mine = x->out[r][t][i];
          double most = 0.0;
          for (int64_t k = 0; k < layer[i].in * layer[i].out; k++)
            most = fmax(most, fabs((double)of[k]));
          for (int64_t a = 0; a < p.out; a++) {
            for (int64_t b = 0; b < p.in; b++) {
              const float e = of[(p.row + a) * layer[i].in + p.col + b];
              assert_true(fabs((double)(mine[a * p.in + b] - e)) < 1e-5 * most);
            }
          }
        }
      }
    }
    free(one);
    free(x);
  }
}

/* ---- a model group on some ranks only --------------------------------------------------------*/

/* For any set of ranks without a model group, all ranks return the error, and no rank hangs. */
static void model_groups_on_some_ranks_are_refused(void **state) {
  for (int32_t data = 1; data < 3; data++) {
    const int32_t W = 2 * data;
    if (!has_ranks(W)) break;
    for (uint32_t without = 0; without < (1U << W) - 1; without++) {
      shard_run how = default_run(methods[0]);
      how.data = data;
      how.unsharded = without;
      shard_run *x = new_run(&how);
      ng_status each[RANKS];
      char message[64];
      const bool fine = without == 0;
      const int given = W - __builtin_popcount(without);
      (void)snprintf(message, sizeof message, "model_group is given on %d of %d ranks", given, W);
      (void)train(x, each);
      for (int32_t r = 0; r < W; r++) {
        assert_int_equal(each[r], fine ? NG_OK : NG_ERR_COMM);
        /* over MPI this process has only its own message */
        const bool here = x->message[r][0] != 0;
        if (!fine && here && strstr(x->message[r], message) == NULL) fail_msg("%s", x->message[r]);
      }
      free(x);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(shards_equal_whole_layers),
                                     cmocka_unit_test(shards_equal_groups_of_one_rank),
                                     cmocka_unit_test(model_groups_on_some_ranks_are_refused)};
  return RANKS_TESTS("shards", tests);
}
