/* t_run.c: what a training run writes down, against values known another way: a whole run of softmax
 * regression in double, whose labels curvature sees, the clip from what the weights did.  Weights that are kept
 * are in t_run_kept.c, times in t_run_times.c. */
#include "common/cli.h"
#include "train/feed.h"
#include "train/precond.h"
#include "trained.h"
#include "trainer_help.h"

#include "natgrad.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a whole run in double -------------------------------------------------------------------*/

enum { CLASSES = 4, FEATURES = 6, BATCH = 8, EACH = 3, STEPS = 8, WIDE = FEATURES + 1 };
static const double SMOOTHING = 0.1;

/* y = W x + b, b as the last column of w. */
static void logits(double w[CLASSES][WIDE], const float *x, double *y) {
  for (int k = 0; k < CLASSES; k++) {
    y[k] = w[k][FEATURES];
    for (int i = 0; i < FEATURES; i++)
      y[k] += w[k][i] * (double)x[i];
  }
}

static void scan(double w[CLASSES][WIDE], const feed *f, int32_t n, double smoothing, double *loss,
                 double *accuracy) {
  *loss = *accuracy = 0.0;
  for (int i = 0; i < n; i++) {
    double y[CLASSES];
    logits(w, f->x + i * FEATURES, y);
    *loss += entropy(y, CLASSES, f->labels[i], smoothing) / n;
    *accuracy += (double)right(y, CLASSES, f->labels[i]) / n;
  }
}

/* The gradient of the mean loss; a column for b. */
static void gradient_of(double w[CLASSES][WIDE], const feed *f, double smoothing,
                        double g[CLASSES][WIDE]) {
  memset(g, 0, sizeof(double[CLASSES][WIDE]));
  for (int i = 0; i < BATCH; i++) {
    double y[CLASSES], sum = 0.0;
    logits(w, f->x + i * FEATURES, y);
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

/* How an update makes w of its gradient: as options.update of natgrad.h has it, in double. */
typedef struct update {
  bool adamw, nesterov, decoupled;
  double momentum, decay, beta1, beta2, eps;
} update;
typedef struct weights {
  double w[CLASSES][WIDE], v[CLASSES][WIDE], m[CLASSES][WIDE], s[CLASSES][WIDE];
} weights;

static void learn(weights *l, const feed *f, const update *u, double lr, int step) {
  double g[CLASSES][WIDE];
  gradient_of(l->w, f, SMOOTHING, g);
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

/* Every number of every line; 8 steps, the third epoch has two. */
static void by_hand(const char *name, const char *set, const update *u) {
  const double NEAR = 1e-6; /* f32 against double: 4e-8 was seen */
  char words[256];
  data_set d;
  trained r;
  feed f;
  precond *p = NULL;
  int threads = 1;
  weights l;
  memset(&l, 0, sizeof l);
  assert_int_equal(data_open("synthetic:classes=4,features=6,train=30,test=7,noise=3", &d), CLI_OK);
  (void)snprintf(words, sizeof words,
                 "model=logreg batch=8 steps=8 lr=0.4 label-smoothing=0.1 log-every=2 seed=5 %s",
                 set);
  train(&d, name, words, &r);
  nn *net = network_of(&r, &d, BATCH, 5);
  for (int k = 0; k < CLASSES; k++) {
    for (int c = 0; c < FEATURES; c++)
      l.w[k][c] = (double)nn_param_at(net, 0)->value[k * FEATURES + c];
    l.w[k][FEATURES] = (double)nn_param_at(net, 1)->value[k];
  }
  assert_int_equal(feed_create(&r.s, &d, NULL, false, NULL, &f), CLI_OK);
  double loss, accuracy, loss_sum = 0.0, accuracy_sum = 0.0, test_loss = 0.0, test_accuracy = 0.0;
  int at = 0;
  for (int step = 1; step <= STEPS; step++) {
    const double lr = 0.4 * (1.0 - (step - 1.0) / STEPS); /* linear, the default */
    assert_int_equal(feed_train(&f, step - 1, 0), CLI_OK);
    scan(l.w, &f, BATCH, SMOOTHING, &loss, &accuracy);
    learn(&l, &f, u, lr, step);
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
      assert_true(ngio_is(ngio_get(o, "cosine"), NGIO_NULL)); /* there is no curvature */
    }
    if (step % EACH == 0 || step == STEPS) {
      const ngio_value *o = r.line[at++];
      const double n = step % EACH == 0 ? EACH : step % EACH;
      int32_t good = 0;
      assert_int_equal(feed_test(&f, 0, d.test.n, &good), CLI_OK);
      assert_int_equal(good, d.test.n);
      scan(l.w, &f, d.test.n, 0.0, &test_loss, &test_accuracy);
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
  must_be_near(end, "network_bytes", (double)nn_bytes(net), 0);
  /* What such a model holds, whatever saving it took on top. */
  assert_int_equal(cli_threads(&threads), CLI_OK);
  ng_pool *pool = threads > 1 ? ng_pool_create(threads, NULL) : NULL;
  assert_int_equal(precond_create(&r.s, NULL, net, pool, &p), CLI_OK);
  must_be_near(end, "precond_bytes", (double)precond_bytes(p), 0);
  precond_destroy(&p);
  ng_pool_destroy(pool);
  assert_string_equal(ngio_text_of(ngio_get(end, "why")), "done");
  for (int k = 0; k < CLASSES; k++) {
    const float *kept = ngio_tensors_find(r.model, nn_param_at(net, 0)->name)->data;
    for (int c = 0; c < FEATURES; c++)
      assert_true(fabs((double)kept[k * FEATURES + c] - l.w[k][c]) < NEAR);
  }
  feed_free(&f);
  nn_destroy(&net);
  drop_trained(&r);
  data_close(&d);
}

static void softmax_regression_by_hand(void **state) {
  (void)state;
  by_hand("plain", "method=sgd momentum=0 weight-decay=0.02", &(update){.decay = 0.02});
  by_hand("momentum", "method=sgd momentum=0.8 weight-decay=0.02",
          &(update){.momentum = 0.8, .decay = 0.02});
  by_hand("nesterov", "method=sgd momentum=0.8 weight-decay=0.02 nesterov=true",
          &(update){.momentum = 0.8, .decay = 0.02, .nesterov = true});
  by_hand("decoupled", "method=sgd momentum=0.8 weight-decay=0.2 decoupled=true",
          &(update){.momentum = 0.8, .decay = 0.2, .decoupled = true});
  by_hand("adamw", "method=adamw beta1=0.7 beta2=0.95 eps=0.01 weight-decay=0.2",
          &(update){.adamw = true, .beta1 = 0.7, .beta2 = 0.95, .eps = 0.01, .decay = 0.2});
}

/* ---- whose labels ----------------------------------------------------------------------------*/

static struct {
  float g[BATCH * CLASSES]; /* what was shown last */
  int times;
} shown;
ng_status __real_ng_observe_output_grad(ng_precond *p, int32_t i, const ng_array *g, ng_loan loan);
/* Output gradients of the layers of a network, norms behind the others. */
enum { SEEN = 64 };
static struct {
  bool on;
  int times[SEEN];
  double sum[SEEN]; /* of all numbers, each with another weight */
} watched;

ng_status __wrap_ng_observe_output_grad(ng_precond *p, int32_t i, const ng_array *g, ng_loan loan);
ng_status __wrap_ng_observe_output_grad(ng_precond *p, int32_t i, const ng_array *g, ng_loan loan) {
  if (g->room[0] == BATCH && g->room[1] == CLASSES) memcpy(shown.g, g->data, sizeof shown.g);
  shown.times++;
  if (i < SEEN && watched.on) {
    watched.times[i]++;
    int64_t n = 1;
    for (int32_t k = 0; k < g->ndim; k++)
      n *= g->shape == NULL ? g->room[k] : g->shape[k];
    for (int64_t k = 0; k < n; k++)
      watched.sum[i] += (double)((const float *)g->data)[k] * (double)(1 + k % 7);
  }
  return __real_ng_observe_output_grad(p, i, g, loan);
}

/* fisher = empirical shows softmax - onehot(label of the batch), sampled the same of labels that are
 * drawn; a step later the update is that of the batch's in both.  First step of softmax regression. */
static void fisher_says_whose_labels_are_seen(void **state) {
  (void)state;
  data_set d;
  assert_int_equal(data_open("synthetic:classes=4,features=6,train=8,test=0,noise=3", &d), CLI_OK);
  for (int sampled = 0; sampled < 2; sampled++) {
    trained r;
    feed f;
    double w[CLASSES][WIDE], g[CLASSES][WIDE];
    int others = 0;
    memset(&shown, 0, sizeof shown);
    /* without curvature's say: damping so large that a step is that of SGD with lr / damping */
    train(&d, sampled == 1 ? "sampled" : "empirical",
          sampled == 1 ? "model=logreg method=natgrad fisher=sampled batch=8 steps=1 lr=1e5 "
                         "damping=1e6 clip=none momentum=0 seed=5"
                       : "model=logreg method=natgrad fisher=empirical batch=8 steps=1 lr=1e5 "
                         "damping=1e6 clip=none momentum=0 seed=5",
          &r);
    nn *net = network_of(&r, &d, BATCH, 5);
    for (int k = 0; k < CLASSES; k++) {
      for (int c = 0; c < FEATURES; c++)
        w[k][c] = (double)nn_param_at(net, 0)->value[k * FEATURES + c];
      w[k][FEATURES] = (double)nn_param_at(net, 1)->value[k];
    }
    assert_int_equal(feed_create(&r.s, &d, NULL, false, NULL, &f), CLI_OK);
    assert_int_equal(feed_train(&f, 0, 0), CLI_OK);
    assert_int_equal(shown.times, 1);
    for (int i = 0; i < BATCH; i++) {
      double y[CLASSES], sum = 0.0;
      int drawn = -1;
      logits(w, f.x + i * FEATURES, y);
      for (int k = 0; k < CLASSES; k++)
        sum += exp(y[k]);
      for (int k = 0; k < CLASSES; k++)
        drawn = shown.g[i * CLASSES + k] < 0.0f ? k : drawn; /* softmax - 1 */
      for (int k = 0; k < CLASSES; k++) {
        const double want = (exp(y[k]) / sum - (k == drawn)) / BATCH;
        assert_true(fabs((double)shown.g[i * CLASSES + k] - want) < 1e-6);
      }
      others += drawn != f.labels[i];
    }
    if ((others > 0) != (sampled == 1)) fail_msg("%d labels are not the batch's", others);
    gradient_of(w, &f, 0.0, g);
    const float *kept = ngio_tensors_find(r.model, nn_param_at(net, 0)->name)->data;
    for (int k = 0; k < CLASSES; k++) {
      for (int c = 0; c < FEATURES; c++) /* a curvature of 10 beside a damping of 1e6 */
        assert_true(fabs((double)kept[k * FEATURES + c] - (w[k][c] - 0.1 * g[k][c])) < 1e-3);
    }
    feed_free(&f);
    nn_destroy(&net);
    drop_trained(&r);
  }
  data_close(&d);
}

/* Norm blocks, too, see the gradients of drawn labels, once each, and the update is that of the batch's. */
static void norms_see_drawn_labels(void **state) {
  (void)state;
  data_set d;
  double sum[2][SEEN];
  assert_int_equal(data_open("synthetic:classes=4,image=8x8x3,train=8,test=0,noise=3", &d), CLI_OK);
  for (int sampled = 0; sampled < 2; sampled++) {
    trained r;
    memset(&watched, 0, sizeof watched);
    watched.on = true;
    train(&d, sampled == 1 ? "norms_sampled" : "norms_empirical",
          sampled == 1 ? "model=resnet20 method=natgrad fisher=sampled batch=8 steps=1 seed=5"
                       : "model=resnet20 method=natgrad fisher=empirical batch=8 steps=1 seed=5",
          &r);
    watched.on = false;
    memcpy(sum[sampled], watched.sum, sizeof watched.sum);
    drop_trained(&r);
  }
  trained r;
  train(&d, "norms_count", "model=resnet20 method=natgrad batch=8 steps=1 seed=5", &r);
  nn *net = network_of(&r, &d, 8, 5);
  drop_trained(&r);
  assert_true(nn_norms(net) > 0 && nn_layers(net) + nn_norms(net) <= SEEN);
  for (int i = nn_layers(net); i < nn_layers(net) + nn_norms(net); i++) {
    assert_int_equal(watched.times[i], 1);
    if (sum[0][i] == sum[1][i]) fail_msg("norm %d saw the batch's own labels", i - nn_layers(net));
  }
  nn_destroy(&net);
  data_close(&d);
}

/* ---- the clip --------------------------------------------------------------------------------*/

static struct {
  nn *net; /* of the last forward */
  int steps;
  double clip[16], kl_clip;     /* kl_clip > 0: what each step's weights say of the clip */
  double cosine[16], ratio[16]; /* of D and w before - w after; of their norms */
} moved;

int __real_nn_forward(nn *n, nn_mode mode, const float *x, int64_t samples, uint64_t step,
                      const nn_watch *watch);
int __wrap_nn_forward(nn *n, nn_mode mode, const float *x, int64_t samples, uint64_t step,
                      const nn_watch *watch);
int __wrap_nn_forward(nn *n, nn_mode mode, const float *x, int64_t samples, uint64_t step,
                      const nn_watch *watch) {
  moved.net = n;
  return __real_nn_forward(n, mode, x, samples, step, watch);
}

/* |lr^2 sum <PD, D>| from what the step did: w moved by -lr nu PD, so with S = sum D (w before - w after)
 * = lr nu <PD, D> a step that was clipped has nu = kl_clip / (lr S), any other lr S <= kl_clip. */
static double clip_of(const float *before, double lr) {
  double s = 0.0, d2 = 0.0, w2 = 0.0;
  for (int i = 0, at = 0; i < nn_params(moved.net); i++) {
    const nn_param *q = nn_param_at(moved.net, i);
    for (int64_t k = 0; k < q->count; k++, at++) {
      const double d = (double)q->grad[k], w = (double)before[at] - (double)q->value[k];
      s += d * w;
      d2 += d * d;
      w2 += w * w;
    }
  }
  moved.cosine[moved.steps] = s / sqrt(d2 * w2);
  moved.ratio[moved.steps] = sqrt(w2 / d2);
  return fmin(1.0, moved.kl_clip / (lr * s));
}

ng_status __real_ng_step_sgd(ng_precond *p, const ng_sgd *groups, int32_t n);
ng_status __wrap_ng_step_sgd(ng_precond *p, const ng_sgd *groups, int32_t n);
ng_status __wrap_ng_step_sgd(ng_precond *p, const ng_sgd *groups, int32_t n) {
  float *before = calloc((size_t)nn_weights(moved.net), sizeof *before);
  assert_non_null(before);
  for (int i = 0, at = 0; i < nn_params(moved.net); i++) {
    const nn_param *q = nn_param_at(moved.net, i);
    memcpy(before + at, q->value, (size_t)q->count * sizeof(float));
    at += (int)q->count;
  }
  const ng_status st = __real_ng_step_sgd(p, groups, n);
  if (moved.kl_clip > 0.0) moved.clip[moved.steps] = clip_of(before, groups[0].lr);
  free(before);
  moved.steps++;
  return st;
}

static void clip_is_what_the_weights_did(void **state) {
  (void)state;
  data_set d;
  trained r;
  int clipped = 0, whole = 0;
  assert_int_equal(data_open("synthetic:classes=4,features=6,train=80,test=7,noise=3", &d), CLI_OK);
  moved.kl_clip = 0.02;
  moved.steps = 0;
  train(&d, "clip",
        "model=mlp-5-1 method=natgrad clip=kl kl_clip=0.02 damping=0.1 batch=8 steps=10 lr=0.4 "
        "momentum=0 log-every=1",
        &r);
  moved.kl_clip = 0.0;
  for (int i = 0, step = 0; i < r.lines; i++) {
    if (!is_event(r.line[i], "step")) continue;
    /* differences of f32 weights, which move by a hundredth or more: 6e-8 was seen */
    must_be_near(r.line[i], "clip", moved.clip[step], 1e-5);
    const double lr = ngio_number_of(ngio_get(r.line[i], "lr"));
    const double cosine = moved.cosine[step];
    must_be_near(r.line[i], "cosine", cosine, 1e-5);
    must_be_near(r.line[i], "rotation", 90 * (1 - cosine), 1e-3);
    must_be_near(r.line[i], "angle", acos(cosine) * 180 / acos(-1.0), 1e-2);
    must_be_near(r.line[i], "stretch", moved.ratio[step] / (lr * moved.clip[step]), 1e-4);
    clipped += moved.clip[step] < 0.9;
    whole += moved.clip[step++] == 1.0;
  }
  if (clipped == 0 || whole == 0) fail_msg("%d steps are clipped, %d are not", clipped, whole);
  drop_trained(&r);
  data_close(&d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(softmax_regression_by_hand),
      cmocka_unit_test(fisher_says_whose_labels_are_seen),
      cmocka_unit_test(norms_see_drawn_labels),
      cmocka_unit_test(clip_is_what_the_weights_did),
  };
  return cmocka_run_group_tests(tests, make_scratch, drop_scratch);
}
