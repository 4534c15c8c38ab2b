/* t_recipe.c: the recipe for large batches: each part of a step against its published formula, and whole runs with
 * micro-batches against whole batches. */
#include "nn/models.h"
#include "common/random.h"
#include "train/schedule.h"
#include "train/disk.h"
#include "train/lr.h"
#include "train/recipe.h"
#include "train/train.h"
#include "trained.h"
#include "trainer_help.h"
#include "unit_test.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- polynomial decay --------------------------------------------------------------------------*/

/* Three published configurations of ResNet-50; their formula gives these 7 digits at five epochs. */
static void lr_is_the_published_polynomial(void **state) {
  static const double epoch[5] = {0.5, 2.5, 10, 20, 35};
  static const struct {
    const char *schedule, *lr;
    double epochs, eta[5];
  } known[] = {
      {"polynomial:11@1,53",
       "0.00818",
       36,
       {8.180000e-03, 5.928184e-03, 1.011276e-03, 5.500091e-05, 6.993814e-08}},
      {"polynomial:3.5@1.5,49.5",
       "0.03",
       46,
       {3.000000e-02, 2.786887e-02, 1.516585e-02, 5.459514e-03, 4.545325e-04}},
      {"polynomial:3@1,95",
       "0.07",
       81,
       {7.000000e-02, 6.670213e-02, 5.175726e-02, 3.555480e-02, 1.820406e-02}},
  };
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    settings s;
    settings_init(&s);
    must_set(&s, "lr", known[i].lr);
    must_set(&s, "lr-schedule", known[i].schedule);
    for (int k = 0; k < 5; k++) {
      const double got = recipe_get_lr(&s, epoch[k], known[i].epochs);
      if (fabs(got / known[i].eta[k] - 1.0) > 1e-6) /* seven known digits */
        fail_msg("%s at epoch %g: %.7g, expected %.7g", known[i].schedule, epoch[k], got,
                 known[i].eta[k]);
    }
    /* In a run longer than END, END is the run's length: max(epoch, polynomial_epoch). */
    assert_true(recipe_get_lr(&s, 100, 200) > 0.0 && recipe_get_lr(&s, 200, 200) == 0.0);
    settings_free(&s);
  }
}

/* ---- configurations ----------------------------------------------------------------------------*/

/* Each key of each configuration is a known setting or option and has an effect, and the model can be built. */
static void every_key_of_every_configuration_is_used(void **state) {
  int keys = 0;
  DIR *d = opendir(NG_SOURCE_DIR "/configs");
  assert_non_null(d);
  for (const struct dirent *e; (e = readdir(d)) != NULL;) {
    const char *dot = strrchr(e->d_name, '.');
    if (dot == NULL || strcmp(dot, ".json") != 0) continue;
    settings s;
    bool reconstructs = false;
    model_task task;
    char needs[SETTINGS_NEEDS] = "", *path = cli_join(NG_SOURCE_DIR "/configs", e->d_name), *text;
    ngio_json *json;
    settings_init(&s);
    assert_int_equal(settings_read_file(&s, path), CLI_OK);
    assert_int_equal(settings_check(&s), CLI_OK);
    nn *net = nn_create(NULL, 1);
    assert_int_equal(model_default_task(s.model, &task), CLI_OK);
    assert_int_equal(model_build(s.model, &task, net, &reconstructs), CLI_OK);
    nn_destroy(&net);
    assert_int_equal(disk_read_text(path, &text), CLI_OK);
    assert_int_equal(cli_json_parse(path, text, strlen(text), &json), CLI_OK);
    const ngio_value *object = ngio_json_root(json);
    for (const ngio_value *v = ngio_first(object); v != NULL; v = ngio_next(object, v), keys++) {
      if (!settings_applies(&s, v->key))
        fail_msg("%s: no setting or option is called %s", e->d_name, v->key);
      if (settings_is_idle(&s, v->key, needs, sizeof needs))
        fail_msg("%s: %s needs %s", e->d_name, v->key, needs);
    }
    ngio_json_free(&json);
    free(text);
    free(path);
    settings_free(&s);
  }
  (void)closedir(d);
  assert_true(keys > 100);
}

/* ---- momentum ----------------------------------------------------------------------------------*/

/* Compare our update with the published update on one number.  The learning rate rises, falls and jumps. */
static void momentum_follows_lr(void **state) {
  static const char *const how[] = {"ratio", "proportional", "none"};
  const double first = 0.2, m0 = 0.9;
  for (int k = 0; k < 3; k++) {
    settings s;
    settings_init(&s);
    must_set(&s, "momentum", "0.9");
    must_set(&s, "lr", "0.2");
    must_set(&s, "adjust-momentum", how[k]);
    double before = first, v = 0.0, w = 1.0, u = 0.0, x = 1.0, largest = 0.0;
    for (int t = 0; t < 60; t++) {
      const double lr = t == 30 ? 0.15 : first * (t < 10 ? 1.0 - 0.05 * t : 0.5 + 0.01 * (t - 10));
      const double g = sin(t) + 0.3;
      const double m = k == 0   ? m0 * fmin(1.0, lr / before)
                       : k == 1 ? m0 / first * lr
                                : m0 * lr / before; /* our rule in the published form */
      v = m * v - lr * g;
      w += v;
      u = recipe_get_momentum(&s, lr, before) * u + g; /* ng_step_sgd */
      x -= lr * u;
      largest = fmax(largest, fabs(w - x));
      before = lr;
    }
    /* 60 steps on numbers up to 10, each with a few roundings of 1e-16 */
    if (largest > 1e-13) fail_msg("%s: updates differ by %g", how[k], largest);
    settings_free(&s);
  }
}

/* ---- damping -----------------------------------------------------------------------------------*/

/* EFCP's KeepRatio: the damping is lr / (lr0 / damp0). */
static void damping_keeps_its_ratio(void **state) {
  settings s;
  settings_init(&s);
  must_set(&s, "lr", "0.5");
  assert_true(recipe_scale_damping(&s, 0.01, 0.5) == 0.01);
  assert_true(recipe_scale_damping(&s, 0.01, 0.125) == 0.0025);
  assert_true(recipe_scale_damping(&s, 0.01, 2.0) == 0.04);
  assert_true(recipe_scale_damping(&s, 0.01, 0.0) < 0.0);
  settings_free(&s);
}

/* ---- weights -----------------------------------------------------------------------------------*/

static double compute_norm(const nn_param *p) {
  double sum = 0.0;
  for (int64_t k = 0; k < p->count; k++)
    sum += (double)p->value[k] * (double)p->value[k];
  return sqrt(sum);
}

static void weights_are_rescaled(void **state) {
  static const char *const when[] = {"none", "shrink", "always"};
  nn *n = nn_create(NULL, 3);
  int x = nn_add_input(n, (nn_shape){6, 6, 2});
  x = nn_add_norm(n, "norm", nn_add_conv(n, "conv", x, 4, 3, 1, 1, true));
  (void)nn_add_linear(n, "fc", x, 5, true);
  assert_int_equal(nn_prepare(n, 2), 0);
  for (int k = 0; k < 3; k++) {
    settings s;
    settings_init(&s);
    must_set(&s, "rescale-weights", when[k]);
    for (int length = 1; length <= 10; length++) {   /* from a third to three times the target */
      for (int i = 0; i < nn_count_params(n); i++) { /* conv: 8 outputs, sqrt(8) = 2.8284 */
        const nn_param *p = nn_get_param(n, i);
        random_normal(5, RANDOM_DATA, (uint32_t)i, 1.0, 0, p->count, p->value);
        const double was = compute_norm(p);
        for (int64_t j = 0; j < p->count; j++)
          p->value[j] = (float)((double)p->value[j] * length / was);
      }
      recipe_rescale_weights(&s, n);
      for (int i = 0; i < nn_count_params(n); i++) {
        const nn_param *p = nn_get_param(n, i);
        const double target = p->layer >= 0 ? sqrt(2.0 * (double)p->shape[0]) : 0.0;
        const bool changes = p->role == NN_WEIGHT && (k == 2 || (k == 1 && length > target));
        const double want = changes ? target : length;
        /* sums of at most 720 rounded squares of f32 values: 1e-6 */
        if (fabs(compute_norm(p) / want - 1.0) > 1e-6)
          fail_msg("rescale-weights=%s: %s of norm %d has norm %g, expected %g", when[k], p->name,
                   length, compute_norm(p), want);
      }
    }
    settings_free(&s);
  }
  nn_destroy(&n);
}

/* ---- micro-batches -----------------------------------------------------------------------------*/

#define RUN_DATA "synthetic:classes=3,features=12,train=110,test=40,seed=2"

static train_epoch run_to_last_epoch(const data_set *d, const char *set) {
  static int runs;
  char name[16];
  trained r;
  (void)snprintf(name, sizeof name, "run-%d", runs++);
  train(d, name, set, &r);
  const train_epoch e = r.r.epoch[r.r.epochs - 1];
  free_trained(&r);
  return e;
}

/* Without norms, and with a method whose statistics do not depend on micro-batches, both runs are the same.  110
 * samples are 3 steps of 32; 14 remain. */
static void micro_batches_equal_a_batch(void **state) {
  static const char *const methods[] = {"sgd", "natgrad", "eva-natgrad"};
  data_set d;
  assert_int_equal(data_open(RUN_DATA, &d), 0);
  for (int i = 0; i < 3; i++) {
    train_epoch e[2];
    for (int cut = 0; cut < 2; cut++) {
      char set[128];
      (void)snprintf(set, sizeof set, "model=mlp-16-1 epochs=3 method=%s %s", methods[i],
                     cut ? "batch=8 acc-iters=4" : "batch=32");
      e[cut] = run_to_last_epoch(&d, set);
      assert_int_equal(e[cut].step, 9);
    }
    /* 9 steps with f32 sums in another order: 1e-5 of losses of order 1; one sample of 40 may change its class */
    if (fabs(e[0].train_loss - e[1].train_loss) > 1e-5 ||
        fabs(e[0].test_loss - e[1].test_loss) > 1e-5 ||
        fabs(e[0].train_accuracy - e[1].train_accuracy) > 0.011) {
      fail_msg("%s: train losses %g and %g, test losses %g and %g", methods[i], e[0].train_loss,
               e[1].train_loss, e[0].test_loss, e[1].test_loss);
    }
  }
  data_close(&d);
}

/* Each setting changes the result of a run. */
static void every_setting_has_an_effect(void **state) {
  static const char *const with[][2] = {
      {"", "adjust-momentum=proportional"},
      {"warm-up=2", "adjust-momentum=ratio"}, /* with a falling lr it equals none */
      {"", "rescale-weights=always"},
      {"method=sgd lr=5",
       "rescale-weights=shrink"}, /* initial weights are shorter than the target */
      {"solve-period=1", "damping-rule=keep-ratio"}, /* lr falls to 0 */
      {"", "acc-iters=2"},
      {"", "mixup-alpha=1"},
      {"mixup-alpha=1", "running-mixup=true"},
  };
  data_set d;
  assert_int_equal(data_open(RUN_DATA, &d), 0);
  for (size_t i = 0; i < sizeof with / sizeof with[0]; i++) {
    double loss[2];
    for (int on = 0; on < 2; on++) {
      char set[128];
      (void)snprintf(set, sizeof set, "model=mlp-64-1 batch=16 steps=8 %s %s", with[i][0],
                     on ? with[i][1] : "");
      loss[on] = run_to_last_epoch(&d, set).test_loss;
    }
    if (!(fabs(loss[0] - loss[1]) > 1e-4))
      fail_msg("%s does not change the loss %g", with[i][1], loss[0]);
  }
  data_close(&d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lr_is_the_published_polynomial),
      cmocka_unit_test(every_key_of_every_configuration_is_used),
      cmocka_unit_test(momentum_follows_lr),
      cmocka_unit_test(damping_keeps_its_ratio),
      cmocka_unit_test(weights_are_rescaled),
      cmocka_unit_test(micro_batches_equal_a_batch),
      cmocka_unit_test(every_setting_has_an_effect),
  };
  return cmocka_run_group_tests(tests, make_folder, delete_folder);
}
