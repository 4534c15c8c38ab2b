/* t_run.c: the log of a training run against softmax regression in double, and which labels the curvature
 * observes.  t_run_steps.c tests single steps, t_run_kept.c the kept weights. */
#include "common/cli.h"
#include "train/feed.h"
#include "train/precond.h"
#include "trained.h"
#include "trainer_help.h"

#include "natgrad.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a whole run in double -------------------------------------------------------------------*/

enum { CLASSES = 4, FEATURES = 6, BATCH = 8, EACH = 3, STEPS = 8, WIDE = FEATURES + 1 };
static const double SMOOTHING = 0.1;

/* y = W x + b, b as the last column of w. */
static void compute_logits(double w[CLASSES][WIDE], const float *x, double *y) {
  for (int k = 0; k < CLASSES; k++) {
    y[k] = w[k][FEATURES];
    for (int i = 0; i < FEATURES; i++)
      y[k] += w[k][i] * (double)x[i];
  }
}

static void evaluate(double w[CLASSES][WIDE], const feed *f, int32_t n, double smoothing,
                     double *loss, double *accuracy) {
  *loss = *accuracy = 0.0;
  for (int i = 0; i < n; i++) {
    double y[CLASSES];
    compute_logits(w, f->x + i * FEATURES, y);
    *loss += cross_entropy(y, CLASSES, f->labels[i], smoothing) / n;
    *accuracy += (double)is_correct(y, CLASSES, f->labels[i]) / n;
  }
}

static void copy_weights(const nn *net, double w[CLASSES][WIDE]) {
  for (int k = 0; k < CLASSES; k++) {
    for (int c = 0; c < FEATURES; c++)
      w[k][c] = (double)nn_get_param(net, 0)->value[k * FEATURES + c];
    w[k][FEATURES] = (double)nn_get_param(net, 1)->value[k];
  }
}

/* The gradient of the mean loss; the last column belongs to b. */
static void compute_gradient(double w[CLASSES][WIDE], const feed *f, double smoothing,
                             double g[CLASSES][WIDE]) {
  memset(g, 0, sizeof(double[CLASSES][WIDE]));
  for (int i = 0; i < BATCH; i++) {
    double y[CLASSES], sum = 0.0;
    compute_logits(w, f->x + i * FEATURES, y);
    for (int k = 0; k < CLASSES; k++)
      sum += exp(y[k]);
    for (int k = 0; k < CLASSES; k++) {
      const double t = smoothing / CLASSES + (k == f->labels[i] ? 1.0 - smoothing : 0.0);
      for (int c = 0; c < WIDE; c++)
        g[k][c] +=
            (exp(y[k]) / sum - t) / BATCH * (c < FEATURES ? (double)f->x[i * FEATURES + c] : 1.0);
    }
  }
}

/* The update of weights as documented for options.update in natgrad.h, in double. */
typedef struct update {
  bool adamw, nesterov, decoupled;
  double momentum, decay, beta1, beta2, eps;
} update;
typedef struct weights {
  double w[CLASSES][WIDE], v[CLASSES][WIDE], m[CLASSES][WIDE], s[CLASSES][WIDE];
} weights;

static void update_weights(weights *l, const feed *f, const update *u, double lr, int step) {
  double g[CLASSES][WIDE];
  compute_gradient(l->w, f, SMOOTHING, g);
  for (int i = 0; i < CLASSES * WIDE; i++) {
    const int k = i / WIDE, c = i % WIDE;
    double *w = &l->w[k][c], *v = &l->v[k][c], *m = &l->m[k][c], *s = &l->s[k][c];
    if (u->adamw) {
      *m = u->beta1 * *m + (1.0 - u->beta1) * g[k][c];
      *s = u->beta2 * *s + (1.0 - u->beta2) * g[k][c] * g[k][c];
      const double up = *m / (1.0 - pow(u->beta1, step));
      *w = (1.0 - lr * u->decay) * *w - lr * up / (sqrt(*s / (1.0 - pow(u->beta2, step))) + u->eps);
      continue;
    }
    const double d = g[k][c] + (u->decoupled ? 0.0 : u->decay * *w);
    *v = u->momentum * *v + d;
    if (u->decoupled) *w *= 1.0 - lr * u->decay;
    *w -= lr * (u->nesterov ? d + u->momentum * *v : *v);
  }
}

/* Fail unless the line has the times of a step, and `steps` times their sum is at most its seconds. */
static void expect_times_add_up(const ngio_value *line, double steps) {
  static const char *const own[] = {"data", "forward", "backward", "observe"};
  const ngio_value *ms = ngio_get(line, "ms");
  double sum = 0.0;
  int k = 0;
  for (const ngio_value *v = ngio_first(ms); v != NULL; v = ngio_next(ms, v), k++) {
    if (k < 4) assert_string_equal(v->key, own[k]);
    assert_true(ngio_number_of(v) >= 0.0);
    sum += ngio_number_of(v);
  }
  assert_true(k >= 4 && sum > 0.0);
  /* times are written with four decimals */
  assert_true(steps * (sum - k * 1e-4) <= 1e3 * number_in(line, "seconds"));
}

/* Compare every number of every line of a run with 8 steps; the third epoch has two steps. */
static void compare_with_hand_computation(const char *name, const char *set, const update *u) {
  const double NEAR = 1e-6; /* f32 against double: 4e-8 is seen */
  char line[256];
  data_set d;
  trained r;
  feed f;
  precond *p = NULL;
  int threads = 1;
  weights l;
  memset(&l, 0, sizeof l);
  assert_int_equal(data_open("synthetic:classes=4,features=6,train=30,test=7,noise=3", &d), CLI_OK);
  (void)snprintf(line, sizeof line,
                 "model=logreg batch=8 steps=8 lr=0.4 label-smoothing=0.1 log-every=2 seed=5 %s",
                 set);
  train(&d, name, line, &r);
  nn *net = new_network(&r, &d, BATCH, 5);
  copy_weights(net, l.w);
  assert_int_equal(feed_create(&r.s, &d, NULL, false, NULL, &f), CLI_OK);
  double loss, accuracy, loss_sum = 0.0, accuracy_sum = 0.0, test_loss = 0.0, test_accuracy = 0.0;
  int at = 0;
  for (int step = 1; step <= STEPS; step++) {
    const double lr = 0.4 * (1.0 - (step - 1.0) / STEPS); /* linear, the default */
    assert_int_equal(feed_fill_train(&f, step - 1, 0), CLI_OK);
    evaluate(l.w, &f, BATCH, SMOOTHING, &loss, &accuracy);
    update_weights(&l, &f, u, lr, step);
    loss_sum += loss;
    accuracy_sum += accuracy;
    if (step % 2 == 0) {
      const ngio_value *o = r.line[at++];
      assert_true(is_event(o, "step"));
      must_be_near(o, "schema", 1, 0);
      must_be_near(o, "step", step, 0);
      must_be_near(o, "epoch", (step + EACH - 1) / EACH, 0);
      must_be_near(o, "lr", lr, 1e-15);
      must_be_near(o, "train_loss", loss, NEAR);
      must_be_near(o, "train_accuracy", accuracy, 1e-9);
      must_be_near(o, "clip", 1, 0);
      assert_true(ngio_is(ngio_get(o, "cosine"),
                          NGIO_NULL)); /* SGD has no curvature, so there is no cosine */
    }
    if (step % EACH == 0 || step == STEPS) {
      const ngio_value *o = r.line[at++];
      const double n = step % EACH == 0 ? EACH : step % EACH;
      int32_t good = 0;
      assert_int_equal(feed_fill_test(&f, 0, d.test.n, &good), CLI_OK);
      assert_int_equal(good, d.test.n);
      evaluate(l.w, &f, d.test.n, 0.0, &test_loss, &test_accuracy);
      assert_true(is_event(o, "epoch"));
      must_be_near(o, "step", step, 0);
      must_be_near(o, "epoch", (step + EACH - 1) / EACH, 0);
      must_be_near(o, "lr", lr, 1e-15);
      must_be_near(o, "train_loss", loss_sum / n, NEAR);
      must_be_near(o, "train_accuracy", accuracy_sum / n, 1e-9);
      must_be_near(o, "test_loss", test_loss, NEAR);
      must_be_near(o, "test_accuracy", test_accuracy, 1e-9);
      const train_epoch *e = &r.r.epoch[(step - 1) / EACH];
      assert_true(e->epoch == (step + EACH - 1) / EACH && e->step == step &&
                  fabs(e->lr - lr) < NEAR);
      if (step == STEPS) break;
      loss_sum = accuracy_sum = 0.0;
    }
  }
  const ngio_value *end = r.line[at++];
  assert_int_equal(at, r.lines);
  assert_true(is_event(end, "end") && r.r.epochs == 3 && r.r.steps == STEPS && r.r.first == 0);
  must_be_near(end, "step", STEPS, 0);
  must_be_near(end, "epoch", 3, 0);
  must_be_near(end, "train_loss", loss_sum / 2, NEAR);
  must_be_near(end, "test_accuracy", test_accuracy, 1e-9);
  must_be_near(end, "skipped", 0, 0);
  must_be_near(end, "rescued", 0, 0);
  must_be_near(end, "unobserved", 0, 0);
  must_be_near(end, "network_bytes", (double)nn_count_bytes(net), 0);
  /* The report counts the memory of the model, not the memory for saving. */
  assert_int_equal(cli_read_thread_count(&threads), CLI_OK);
  ng_pool *pool = threads > 1 ? ng_pool_create(threads, NULL) : NULL;
  assert_int_equal(precond_create(&r.s, NULL, net, pool, &p), CLI_OK);
  must_be_near(end, "precond_bytes", (double)precond_count_bytes(p), 0);
  precond_destroy(&p);
  ng_pool_destroy(pool);
  assert_string_equal(ngio_text_of(ngio_get(end, "why")), "done");
  expect_times_add_up(end, STEPS);
  for (int k = 0; k < CLASSES; k++) {
    const float *kept = ngio_tensors_find(r.model, nn_get_param(net, 0)->name)->data;
    for (int c = 0; c < FEATURES; c++)
      assert_true(fabs((double)kept[k * FEATURES + c] - l.w[k][c]) < NEAR);
  }
  feed_free(&f);
  nn_destroy(&net);
  free_trained(&r);
  data_close(&d);
}

static void log_matches_softmax_regression(void **state) {
  compare_with_hand_computation("plain", "method=sgd momentum=0 weight-decay=0.02",
                                &(update){.decay = 0.02});
  compare_with_hand_computation("momentum", "method=sgd momentum=0.8 weight-decay=0.02",
                                &(update){.momentum = 0.8, .decay = 0.02});
  compare_with_hand_computation("nesterov",
                                "method=sgd momentum=0.8 weight-decay=0.02 nesterov=true",
                                &(update){.momentum = 0.8, .decay = 0.02, .nesterov = true});
  compare_with_hand_computation("decoupled",
                                "method=sgd momentum=0.8 weight-decay=0.2 decoupled=true",
                                &(update){.momentum = 0.8, .decay = 0.2, .decoupled = true});
  compare_with_hand_computation(
      "adamw", "method=adamw beta1=0.7 beta2=0.95 eps=0.01 weight-decay=0.2",
      &(update){.adamw = true, .beta1 = 0.7, .beta2 = 0.95, .eps = 0.01, .decay = 0.2});
}

/* ---- the labels that the curvature observes --------------------------------------------------*/

/* Sum over samples of (s - onehot(label)) (s - onehot(label))', s = softmax(y); the lower triangle. */
static void compute_label_moment(double w[CLASSES][WIDE], const feed *f, int code,
                                 double g[CLASSES * (CLASSES + 1) / 2]) {
  memset(g, 0, sizeof(double[CLASSES * (CLASSES + 1) / 2]));
  for (int i = 0; i < BATCH; i++, code /= CLASSES) {
    double y[CLASSES], sum = 0.0;
    compute_logits(w, f->x + i * FEATURES, y);
    for (int k = 0; k < CLASSES; k++)
      sum += y[k] = exp(y[k]);
    for (int k = 0, at = 0; k < CLASSES; k++) {
      for (int j = 0; j <= k; j++, at++)
        g[at] += (y[k] / sum - (k == code % CLASSES)) * (y[j] / sum - (j == code % CLASSES));
    }
  }
}

/* fisher = empirical observes softmax - onehot(label), fisher = sampled the same with drawn labels.  So G of the
 * first step belongs to exactly one set of labels.  The update uses the labels of the batch in both cases. */
static void fisher_selects_the_observed_labels(void **state) {
  static const char *const fisher[] = {"empirical", "sampled"};
  enum { CODES = 65536, PAIRS = CLASSES * (CLASSES + 1) / 2 }; /* CODES = CLASSES^BATCH */
  data_set d;
  assert_int_equal(data_open("synthetic:classes=4,features=6,train=8,test=0,noise=3", &d), CLI_OK);
  for (int sampled = 0; sampled < 2; sampled++) {
    trained r;
    feed f;
    double w[CLASSES][WIDE], g[CLASSES][WIDE], moment[PAIRS];
    char set[200];
    int found = 0, labels = 0, of_batch = 0;
    /* with such a damping the step equals a step of SGD with lr / damping */
    (void)snprintf(set, sizeof set,
                   "model=logreg method=natgrad fisher=%s batch=8 steps=1 lr=1e5 damping=1e6 "
                   "clip=none momentum=0 seed=5",
                   fisher[sampled]);
    train(&d, fisher[sampled], set, &r);
    nn *net = new_network(&r, &d, BATCH, 5);
    copy_weights(net, w);
    assert_int_equal(feed_create(&r.s, &d, NULL, false, NULL, &f), CLI_OK);
    assert_int_equal(feed_fill_train(&f, 0, 0), CLI_OK);
    ngio_tensors *saved = read_library_state(&r);
    char name[80];
    (void)snprintf(name, sizeof name, "%s/G", nn_get_layer(net, 0)->name);
    const ngio_tensor *G = ngio_tensors_find(saved, name);
    assert_non_null(G);
    assert_int_equal(G->shape[0], PAIRS);
    for (int i = BATCH - 1; i >= 0; i--)
      of_batch = of_batch * CLASSES + f.labels[i];
    for (int code = 0; code < CODES; code++) { /* G = B sum g g' with g = (s - onehot) / B */
      double most = 0.0;
      compute_label_moment(w, &f, code, moment);
      for (int k = 0; k < PAIRS; k++)
        most = fmax(most, fabs((double)((const float *)G->data)[k] - moment[k] / BATCH));
      if (most > 1e-6) continue;
      found++;
      labels = code;
    }
    if (found != 1 || (labels == of_batch) != (sampled == 0))
      fail_msg("fisher=%s: %d sets of labels have this G, expected one, %s the batch's labels",
               fisher[sampled], found, sampled == 0 ? "with" : "without");
    compute_gradient(w, &f, 0.0, g);
    const float *kept = ngio_tensors_find(r.model, nn_get_param(net, 0)->name)->data;
    for (int k = 0; k < CLASSES; k++) {
      for (int c = 0; c < FEATURES; c++) /* a curvature of 10 against a damping of 1e6 */
        assert_true(fabs((double)kept[k * FEATURES + c] - (w[k][c] - 0.1 * g[k][c])) < 1e-3);
    }
    ngio_tensors_close(&saved);
    feed_free(&f);
    nn_destroy(&net);
    free_trained(&r);
  }
  data_close(&d);
}

/* Squares of activations overflow f16 while the loss is finite.  A huge lr causes an overflow in every step, huge
 * samples cause overflows in some steps, but never in four in a row. */
static void the_fourth_skipped_step_in_a_row_ends_the_run(void **state) {
  static const struct {
    const char *set;
    bool samples, diverges;
    int skipped, steps;
  } row[] = {{"batch=8 steps=9 lr=1e4", false, true, 4, 4},
             {"batch=1 steps=24 lr=1e-4", true, false, 9, 24}};
  for (size_t i = 0; i < 2; i++) {
    data_set d;
    trained r;
    char set[128];
    assert_int_equal(data_open("synthetic:classes=4,features=6,train=64,test=0", &d), CLI_OK);
    for (int k = 0; k < 64 && row[i].samples; k += 3)
      ((float *)(uintptr_t)d.train.reals)[6 * k] = 1e5F;
    (void)snprintf(set, sizeof set, "model=mlp method=natgrad factor_dtype=f16 clip=none seed=5 %s",
                   row[i].set);
    train(&d, i == 0 ? "skipped" : "skipped-some", set, &r);
    if (r.r.diverged != row[i].diverges || r.r.skipped != row[i].skipped ||
        r.r.steps != row[i].steps)
      fail_msg("%d steps, %d skipped, reason '%s'", (int)r.r.steps, (int)r.r.skipped, r.r.reason);
    free_trained(&r);
    data_close(&d);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(log_matches_softmax_regression),
      cmocka_unit_test(fisher_selects_the_observed_labels),
      cmocka_unit_test(the_fourth_skipped_step_in_a_row_ends_the_run),
  };
  return cmocka_run_group_tests(tests, make_folder, delete_folder);
}
