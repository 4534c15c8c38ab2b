/* t_run.c: what a training run writes down, against values known another way: losses and accuracies
 * from the weights that it kept, a whole run of softmax regression in double, the clip from what the
 * weights did.  Times are in t_run_times.c. */
#include "cli.h"
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

/* -log softmax(y)_label, or with smoothed labels. */
static double entropy(const double *y, int n, int32_t label, double smoothing) {
  double sum = 0.0, loss = 0.0;
  for (int k = 0; k < n; k++)
    sum += exp(y[k]);
  for (int k = 0; k < n; k++)
    loss -= (smoothing / n + (k == label ? 1.0 - smoothing : 0.0)) * (y[k] - log(sum));
  return loss;
}

static bool right(const double *y, int n, int32_t label) {
  for (int k = 0; k < n; k++) {
    if (k != label && y[k] >= y[label]) return false;
  }
  return true;
}

/* ---- the test pass ---------------------------------------------------------------------------*/

/* The weights that were kept, in a network of batch 1, show every sample by itself, as it is in the
 * data set. */
static void evaluate(const trained *r, const data_set *d, const data_split *split, double *loss,
                     double *accuracy) {
  enum { CLASSES = 8 };
  nn *net = network_of(r, d, 1, 77);
  for (int i = 0; i < nn_params(net) + nn_buffers(net); i++) {
    const bool param = i < nn_params(net);
    const nn_param *q = param ? nn_param_at(net, i) : NULL;
    const nn_buffer *b = param ? NULL : nn_buffer_at(net, i - nn_params(net));
    const ngio_tensor *t = ngio_tensors_find(r->model, param ? q->name : b->name);
    assert_non_null(t);
    memcpy(param ? q->value : b->value, t->data, (size_t)t->bytes);
  }
  const int64_t per = d->height * d->width * d->channels;
  float *x = calloc((size_t)per, sizeof *x);
  assert_non_null(x);
  assert_true(d->classes <= CLASSES && split->n > 0);
  *loss = *accuracy = 0.0;
  for (int32_t i = 0; i < split->n; i++) {
    const int32_t row = split->index != NULL ? split->index[i] : i;
    double y[CLASSES];
    for (int64_t k = 0; k < per; k++) {
      const int64_t c = k % d->channels;
      x[k] = (split->reals[row * per + k] - d->mean[c]) / d->deviation[c];
    }
    assert_int_equal(nn_forward(net, NN_EVALUATE, x, 1, 0, NULL), CLI_OK);
    for (int k = 0; k < d->classes; k++)
      y[k] = (double)nn_output(net)[k];
    *loss += entropy(y, d->classes, split->labels[row], 0.0) / split->n;
    *accuracy += (double)right(y, d->classes, split->labels[row]) / split->n;
  }
  free(x);
  nn_destroy(&net);
}

/* Dropout, batch normalisation, augmentation and smoothed labels: of all that the test pass sees
 * nothing.  Batches of the run are of 8 and one of 5 (validation: one of 5, too). */
#define IMAGES "synthetic:classes=3,image=8x8x3,train=45,test=21,noise=2"
#define HARD                                                                                       \
  "model=wrn-10-1 method=sgd batch=8 epochs=2 lr=0.05 dropout=0.5 label-smoothing=0.2 "            \
  "augment=crop+flip"

static void tests_are_of_the_weights_that_are_kept(void **state) {
  (void)state;
  for (int held = 0; held < 2; held++) {
    data_set d;
    trained r;
    double loss, accuracy;
    assert_int_equal(data_open(IMAGES, &d), CLI_OK);
    if (held == 1) assert_int_equal(data_hold_out(&d, 13, 1), CLI_OK);
    train(&d, held == 1 ? "held" : "tested", held == 1 ? HARD " validation=13" : HARD, &r);
    evaluate(&r, &d, held == 1 ? &d.validation : &d.test, &loss, &accuracy);
    const json_t *epoch = last_event(&r, "epoch"), *end = last_event(&r, "end");
    /* f32 sums of up to 576 terms, added in another order for another batch: 5e-8 was seen */
    must_be_near(epoch, "test_loss", loss, 1e-6);
    must_be_near(epoch, "test_accuracy", accuracy, 1e-9);
    must_be_near(end, "test_accuracy", accuracy, 1e-9);
    assert_true(accuracy > 0.0 && accuracy < 1.0); /* or one could be another */
    drop_trained(&r);
    data_close(&d);
  }
}

/* Without a test the same weights and running statistics, bit for bit, and the same training. */
static void testing_changes_nothing(void **state) {
  (void)state;
  data_set d;
  trained with, without;
  assert_int_equal(data_open(IMAGES, &d), CLI_OK);
  train(&d, "with", HARD " log-every=1", &with);
  d.test.n = 0;
  train(&d, "without", HARD " log-every=1", &without);
  const int64_t n = ngio_tensors_count(with.model);
  assert_int_equal(n, ngio_tensors_count(without.model));
  for (int32_t i = 0; i < n; i++) {
    const ngio_tensor *a = ngio_tensors_at(with.model, i);
    const ngio_tensor *b = ngio_tensors_find(without.model, a->name);
    assert_memory_equal(a->data, b->data, (size_t)a->bytes);
  }
  assert_int_equal(with.lines, without.lines);
  for (int i = 0; i < with.lines; i++) {
    const json_t *a = with.line[i], *b = without.line[i];
    must_be_near(a, "train_loss", number_of(b, "train_loss"), 0.0);
    if (!is_event(a, "step")) assert_true(json_is_null(json_object_get(b, "test_accuracy")));
  }
  drop_trained(&with);
  drop_trained(&without);
  data_close(&d);
}

/* ---- weights, averaged -----------------------------------------------------------------------*/

#define STEADY HARD " lr-schedule=constant"
#define AVERAGED STEADY " average-weights=1"

static ngio_tensors *average_of(const trained *r) {
  char message[256] = "", *path = cli_join(r->folder, "average.safetensors");
  ngio_tensors *file = NULL;
  if (ngio_tensors_read(path, NULL, &file, message, sizeof message) != NGIO_OK)
    fail_msg("%s", message);
  free(path);
  return file;
}

/* Running statistics of the network with these weights: each batch's own, their mean in double. */
static void statistics_are_means(const trained *r, const data_set *d, const ngio_tensors *file) {
  enum { MOST = 64 };
  feed f;
  nn *net = network_of(r, d, r->s.batch, (uint64_t)r->s.seed);
  assert_int_equal(feed_create(&r->s, d, NULL, false, NULL, &f), CLI_OK);
  for (int i = 0; i < nn_params(net); i++) {
    const nn_param *q = nn_param_at(net, i);
    memcpy(q->value, ngio_tensors_find(file, q->name)->data, (size_t)q->count * sizeof *q->value);
  }
  nn_set_norm_keep(net, 0.0);
  assert_true(nn_buffers(net) > 0);
  for (int b = 0; b < nn_buffers(net); b++) {
    const nn_buffer *one = nn_buffer_at(net, b);
    const float *got = ngio_tensors_find(file, one->name)->data;
    double mean[MOST] = {0};
    assert_true(one->count <= MOST);
    for (int64_t i = 0; i < f.per_epoch; i++) {
      assert_int_equal(feed_train(&f, r->r.steps - f.per_epoch + i, 0), CLI_OK);
      assert_int_equal(nn_forward(net, NN_TRAIN, f.x, f.batch, (uint64_t)i, NULL), CLI_OK);
      for (int64_t k = 0; k < one->count; k++)
        mean[k] += (double)one->value[k] / (double)f.per_epoch;
    }
    for (int64_t k = 0; k < one->count; k++) /* five roundings of f32 */
      assert_true(fabs((double)got[k] - mean[k]) <= 1e-6 * (1.0 + fabs(mean[k])));
  }
  feed_free(&f);
  nn_destroy(&net);
}

/* From epoch 1 to 4, after every one: the mean of what shorter runs keep; the run itself is as without. */
static void weights_are_averaged(void **state) {
  (void)state;
  static const char *const set[] = {STEADY " epochs=2", STEADY " epochs=3", STEADY " epochs=4"};
  static const char *const name[] = {"two", "three", "four"};
  data_set d;
  trained r, one[3];
  double loss, accuracy;
  assert_int_equal(data_open(IMAGES, &d), CLI_OK);
  train(&d, "averaged", AVERAGED " epochs=4", &r);
  ngio_tensors *file = average_of(&r);
  for (int k = 0; k < 3; k++)
    train(&d, name[k], set[k], &one[k]);
  nn *net = network_of(&r, &d, 1, 77);
  for (int i = 0; i < nn_params(net); i++) {
    const char *of = nn_param_at(net, i)->name;
    const float *got = ngio_tensors_find(file, of)->data, *w[3];
    for (int k = 0; k < 3; k++)
      w[k] = ngio_tensors_find(one[k].model, of)->data;
    for (int64_t k = 0; k < nn_param_at(net, i)->count; k++) { /* three roundings of f32 */
      const double mean = ((double)w[0][k] + (double)w[1][k] + (double)w[2][k]) / 3.0;
      assert_true(fabs((double)got[k] - mean) <= 3.0 * 6e-8 * (fabs(mean) + 0.1));
    }
    assert_memory_equal(ngio_tensors_find(r.model, of)->data, w[2],
                        (size_t)nn_param_at(net, i)->count * sizeof(float));
  }
  statistics_are_means(&r, &d, file);
  ngio_tensors_close(&r.model);
  r.model = file;
  evaluate(&r, &d, &d.test, &loss, &accuracy);
  const json_t *end = last_event(&r, "end");
  must_be_near(end, "averaged", 3, 0.0);
  must_be_near(end, "average_test_loss", loss, 1e-6);
  must_be_near(end, "average_test_accuracy", accuracy, 1e-9);
  assert_true(fabs(loss - number_of(end, "train_loss")) > 1e-3);
  nn_destroy(&net);
  for (int k = 0; k < 3; k++)
    drop_trained(&one[k]);
  drop_trained(&r);
  data_close(&d);
}

/* A run that goes on has the same mean, bit for bit; and lr is what it is told from there on. */
static void averages_go_on(void **state) {
  (void)state;
  data_set d;
  trained whole, part, rest;
#define OFTEN AVERAGED " average-every=2 average-lr=0.02 mixup-alpha=0.4 acc-iters=2 log-every=1"
  assert_int_equal(data_open(IMAGES, &d), CLI_OK);
  train(&d, "whole-average", OFTEN " epochs=4", &whole);
  train(&d, "part-average", OFTEN " epochs=2", &part);
  train(&d, "part-average", OFTEN " epochs=4 resume=true", &rest);
  ngio_tensors *a = average_of(&whole), *b = average_of(&rest);
  assert_true(ngio_tensors_count(a) > 0);
  for (int32_t i = 0; i < ngio_tensors_count(a); i++) {
    const ngio_tensor *t = ngio_tensors_at(a, i);
    assert_memory_equal(t->data, ngio_tensors_find(b, t->name)->data, (size_t)t->bytes);
  }
  const int64_t from = whole.r.steps / 4;
  for (int i = 0; i < whole.lines; i++) {
    if (is_event(whole.line[i], "step"))
      must_be_near(whole.line[i], "lr", number_of(whole.line[i], "step") > from ? 0.02 : 0.05, 0.0);
  }
  must_be_near(last_event(&rest, "end"), "averaged", (double)(whole.r.steps / 2 - from / 2), 0.0);
  ngio_tensors_close(&a);
  ngio_tensors_close(&b);
  drop_trained(&whole);
  drop_trained(&part);
  drop_trained(&rest);
  data_close(&d);
}

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
      const json_t *o = r.line[at++];
      assert_true(is_event(o, "step"));
      must_be_near(o, "schema", 1, 0);
      must_be_near(o, "step", step, 0);
      must_be_near(o, "epoch", (step + EACH - 1) / EACH, 0);
      must_be_near(o, "lr", lr, 1e-15);
      must_be_near(o, "train_loss", loss, NEAR);
      must_be_near(o, "train_accuracy", accuracy, 1e-9);
      must_be_near(o, "clip", 1, 0);
      assert_true(json_is_null(json_object_get(o, "cosine"))); /* there is no curvature */
    }
    if (step % EACH == 0 || step == STEPS) {
      const json_t *o = r.line[at++];
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
  const json_t *end = r.line[at++];
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
  assert_string_equal(json_string_value(json_object_get(end, "why")), "done");
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
    const double lr = json_number_value(json_object_get(r.line[i], "lr"));
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
      cmocka_unit_test(tests_are_of_the_weights_that_are_kept),
      cmocka_unit_test(testing_changes_nothing),
      cmocka_unit_test(weights_are_averaged),
      cmocka_unit_test(averages_go_on),
      cmocka_unit_test(softmax_regression_by_hand),
      cmocka_unit_test(fisher_says_whose_labels_are_seen),
      cmocka_unit_test(norms_see_drawn_labels),
      cmocka_unit_test(clip_is_what_the_weights_did),
  };
  return cmocka_run_group_tests(tests, make_scratch, drop_scratch);
}
