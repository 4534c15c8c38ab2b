/* t_run_kept.c: the weights that a training run keeps or averages.  Their reported losses and accuracies equal an
 * evaluation sample by sample. */
#include "train/feed.h"
#include "trained.h"
#include "trainer_help.h"
#include "unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the test pass ---------------------------------------------------------------------------*/

/* Evaluate the kept weights in a network of batch 1, on each sample as it is in the data set. */
static void evaluate_kept_weights(const trained *r, const data_set *d, const data_split *split,
                                  double *loss, double *accuracy) {
  enum { CLASSES = 8 };
  nn *net = new_network(r, d, 1, 77);
  load_weights(net, r->model);
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
      y[k] = (double)nn_get_output(net)[k];
    *loss += cross_entropy(y, d->classes, split->labels[row], 0.0) / split->n;
    *accuracy += (double)is_correct(y, d->classes, split->labels[row]) / split->n;
  }
  free(x);
  nn_destroy(&net);
}

/* The test pass does not use dropout, batch statistics, augmentation or smoothed labels.  The run has batches of 8,
 * and its last batch has 5 samples, also in validation. */
#define IMAGES "synthetic:classes=3,image=8x8x3,train=45,test=21,noise=2"
#define HARD                                                                                       \
  "model=wrn-10-1 method=sgd batch=8 epochs=2 lr=0.05 dropout=0.5 label-smoothing=0.2 "            \
  "augment=crop+flip"

static void tests_evaluate_the_kept_weights(void **state) {
  for (int held = 0; held < 2; held++) {
    data_set d;
    trained r;
    double loss, accuracy;
    assert_int_equal(data_open(IMAGES, &d), CLI_OK);
    if (held == 1) assert_int_equal(data_hold_out(&d, 13, 1), CLI_OK);
    train(&d, held == 1 ? "held" : "tested", held == 1 ? HARD " validation=13" : HARD, &r);
    evaluate_kept_weights(&r, &d, held == 1 ? &d.validation : &d.test, &loss, &accuracy);
    const ngio_value *epoch = last_event(&r, "epoch"), *end = last_event(&r, "end");
    /* f32 sums of up to 576 terms in another order: 5e-8 is seen */
    must_be_near(epoch, "test_loss", loss, 1e-6);
    must_be_near(epoch, "test_accuracy", accuracy, 1e-9);
    must_be_near(end, "test_accuracy", accuracy, 1e-9);
    /* if all samples were right or all wrong, equal accuracies would prove nothing */
    assert_true(accuracy > 0.0 && accuracy < 1.0);
    free_trained(&r);
    data_close(&d);
  }
}

/* A run without test data has the same weights and running statistics, bit for bit, and the same training losses. */
static void testing_leaves_training_unchanged(void **state) {
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
    const ngio_value *a = with.line[i], *b = without.line[i];
    must_be_near(a, "train_loss", number_in(b, "train_loss"), 0.0);
    if (!is_event(a, "step")) assert_true(ngio_is(ngio_get(b, "test_accuracy"), NGIO_NULL));
  }
  free_trained(&with);
  free_trained(&without);
  data_close(&d);
}

/* ---- averaged weights ------------------------------------------------------------------------*/

#define STEADY HARD " lr-schedule=constant"
#define AVERAGED STEADY " average-weights=1"

static ngio_tensors *read_averaged_weights(const trained *r) {
  char *path = cli_join(r->folder, "average.safetensors");
  ngio_tensors *file = must_read_tensors(path);
  free(path);
  return file;
}

/* Running statistics of the averaged weights are means over the batches of one epoch, here in double. */
static void expect_mean_statistics(const trained *r, const data_set *d, const ngio_tensors *file) {
  enum { MOST = 64 };
  feed f;
  nn *net = new_network(r, d, r->s.batch, (uint64_t)r->s.seed);
  assert_int_equal(feed_create(&r->s, d, NULL, false, NULL, &f), CLI_OK);
  for (int i = 0; i < nn_count_params(net); i++) {
    const nn_param *q = nn_get_param(net, i);
    memcpy(q->value, ngio_tensors_find(file, q->name)->data, (size_t)q->count * sizeof *q->value);
  }
  nn_set_norm_decay(net, 0.0);
  assert_true(nn_count_buffers(net) > 0);
  for (int b = 0; b < nn_count_buffers(net); b++) {
    const nn_buffer *one = nn_get_buffer(net, b);
    const float *got = ngio_tensors_find(file, one->name)->data;
    double mean[MOST] = {0};
    assert_true(one->count <= MOST);
    for (int64_t i = 0; i < f.per_epoch; i++) {
      assert_int_equal(feed_fill_train(&f, r->r.steps - f.per_epoch + i, 0), CLI_OK);
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

/* Average after each of the epochs 2 to 4: the mean of the weights of shorter runs.  Averaging leaves the run
 * unchanged. */
static void average_is_the_mean_of_weights(void **state) {
  static const char *const set[] = {STEADY " epochs=2", STEADY " epochs=3", STEADY " epochs=4"};
  static const char *const name[] = {"two", "three", "four"};
  data_set d;
  trained r, one[3];
  double loss, accuracy;
  assert_int_equal(data_open(IMAGES, &d), CLI_OK);
  train(&d, "averaged", AVERAGED " epochs=4", &r);
  ngio_tensors *file = read_averaged_weights(&r);
  for (int k = 0; k < 3; k++)
    train(&d, name[k], set[k], &one[k]);
  nn *net = new_network(&r, &d, 1, 77);
  for (int i = 0; i < nn_count_params(net); i++) {
    const char *of = nn_get_param(net, i)->name;
    const float *got = ngio_tensors_find(file, of)->data, *w[3];
    for (int k = 0; k < 3; k++)
      w[k] = ngio_tensors_find(one[k].model, of)->data;
    for (int64_t k = 0; k < nn_get_param(net, i)->count; k++) { /* three roundings of f32 */
      const double mean = ((double)w[0][k] + (double)w[1][k] + (double)w[2][k]) / 3.0;
      assert_true(fabs((double)got[k] - mean) <= 3.0 * 6e-8 * (fabs(mean) + 0.1));
    }
    assert_memory_equal(ngio_tensors_find(r.model, of)->data, w[2],
                        (size_t)nn_get_param(net, i)->count * sizeof(float));
  }
  expect_mean_statistics(&r, &d, file);
  ngio_tensors_close(&r.model);
  r.model = file;
  evaluate_kept_weights(&r, &d, &d.test, &loss, &accuracy);
  const ngio_value *end = last_event(&r, "end");
  must_be_near(end, "averaged", 3, 0.0);
  must_be_near(end, "average_test_loss", loss, 1e-6);
  must_be_near(end, "average_test_accuracy", accuracy, 1e-9);
  assert_true(fabs(loss - number_in(end, "train_loss")) > 1e-3);
  nn_destroy(&net);
  for (int k = 0; k < 3; k++)
    free_trained(&one[k]);
  free_trained(&r);
  data_close(&d);
}

/* A resumed run has the same average, bit for bit.  average-lr is the learning rate after averaging starts. */
static void resumed_averages_have_the_same_bits(void **state) {
  data_set d;
  trained whole, part, rest;
#define OFTEN AVERAGED " average-every=2 average-lr=0.02 mixup-alpha=0.4 acc-iters=2 log-every=1"
  assert_int_equal(data_open(IMAGES, &d), CLI_OK);
  train(&d, "whole-average", OFTEN " epochs=4", &whole);
  train(&d, "part-average", OFTEN " epochs=2", &part);
  train(&d, "part-average", OFTEN " epochs=4 resume=true", &rest);
  ngio_tensors *a = read_averaged_weights(&whole), *b = read_averaged_weights(&rest);
  assert_true(ngio_tensors_count(a) > 0);
  for (int32_t i = 0; i < ngio_tensors_count(a); i++) {
    const ngio_tensor *t = ngio_tensors_at(a, i);
    assert_memory_equal(t->data, ngio_tensors_find(b, t->name)->data, (size_t)t->bytes);
  }
  const int64_t from = whole.r.steps / 4;
  for (int i = 0; i < whole.lines; i++) {
    if (is_event(whole.line[i], "step"))
      must_be_near(whole.line[i], "lr", number_in(whole.line[i], "step") > from ? 0.02 : 0.05, 0.0);
  }
  must_be_near(last_event(&rest, "end"), "averaged", (double)(whole.r.steps / 2 - from / 2), 0.0);
  ngio_tensors_close(&a);
  ngio_tensors_close(&b);
  free_trained(&whole);
  free_trained(&part);
  free_trained(&rest);
  data_close(&d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tests_evaluate_the_kept_weights),
      cmocka_unit_test(testing_leaves_training_unchanged),
      cmocka_unit_test(average_is_the_mean_of_weights),
      cmocka_unit_test(resumed_averages_have_the_same_bits),
  };
  return cmocka_run_group_tests(tests, make_folder, delete_folder);
}
