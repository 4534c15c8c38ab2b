/* scores.c: influence of training samples; scores.h has the formula.
 *
 * Passes in evaluation mode, each over batches: the test samples give D; the training samples give K, and with `ekfac` in a second
 * pass its eigenvalues; the training samples give inputs and output gradients, from which the library computes scores without the
 * gradients D_j. Rows of left and right as in ng_samples. */
#include "scores.h"
#include "precond.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 23 }; /* largest number of elements of `right` in one call of the library */

typedef struct scored_layer {
  const nn_layer *l;
  int64_t rows, cols, inputs; /* shape of D; input values of a sample */
  ng_curvature *c;
  ng_damped_power inverse;
  double *D,
      *eye; /* D: [rows, cols]; eye: the identity [rows, rows]. D counts as one sample with `rows` positions: left = eye, right = D */
  float *x; /* inputs of the batch */
} scored_layer;

typedef struct scorer {
  ng_context *ctx;
  const scores_how *how;
  bool reconstructs;
  feed *f;
  nn *net;
  scored_layer *layer; /* [nn_count_layers] */
  double *left, *right;
  bool corrects; /* true: samples correct the eigenvalues (ekfac); false: samples get scores */
  double *score; /* [samples of a batch] the score of each sample */
  /* The next fields belong to the present pass. */
  precond *p;         /* observes the training samples */
  int64_t samples;    /* number of samples of the pass so far */
  int64_t batches;    /* number of batches of the pass so far */
  scored_sample *out; /* list of scored samples */
  int32_t *count;     /* number of scored samples */
} scorer;

/* ---- batches -----------------------------------------------------------------------------------*/

static int run_batch(const scorer *k, int64_t samples, int64_t step, bool sampled, bool params,
                     const nn_watch *watch) {
  nn *net = k->net;
  const int rc = nn_forward(net, NN_TRAIN, k->f->x, samples, (uint64_t)step, watch);
  if (rc != CLI_OK) return rc;
  if (sampled) {
    nn_compute_sampled_loss(net, (uint64_t)step);
  } else {
    (void)nn_compute_loss(net, NN_TRAIN, k->reconstructs ? NULL : k->f->labels,
                          k->reconstructs ? k->f->x : NULL, NULL);
  }
  return nn_backward(net, params, watch);
}

/* A pass over samples [first, end) of a split: call `each` for every batch. */
static int for_batches(scorer *k, const data_split *split, int32_t first, int32_t end,
                       int (*each)(scorer *k, int32_t samples)) {
  const data_split *test = k->f->test;
  int rc = CLI_OK;
  k->samples = k->batches = 0;
  k->f->test = split;
  for (int32_t at = first, count, good = 0; at < end && rc == CLI_OK; at += count) {
    count = end - at < k->f->capacity ? end - at : k->f->capacity;
    rc = feed_fill_test(k->f, at, count, &good);
    if (rc != CLI_OK || good == 0) continue;
    rc = each(k, good);
    k->samples += good;
    k->batches++;
  }
  k->f->test = test;
  return rc;
}

static int for_training_samples(scorer *k, int (*each)(scorer *k, int32_t samples)) {
  return for_batches(k, &k->f->d->train, 0, k->f->d->train.n, each);
}

/* ---- curvature ---------------------------------------------------------------------------------*/

static int observe_batch(scorer *k, int32_t samples) {
  bool wants;
  const int rc = precond_begin_batch(k->p, samples, false, &wants);
  return rc == CLI_OK
             ? run_batch(k, samples, k->batches, !k->how->empirical, false, precond_get_watch(k->p))
             : rc;
}

static int create_curvature(const scorer *k, int i) {
  scored_layer *v = &k->layer[i];
  ng_factors F = {.struct_size = sizeof F,
                  .left = cli_alloc((size_t)(v->rows * v->rows), sizeof(double)),
                  .right = cli_alloc((size_t)(v->cols * v->cols), sizeof(double))};
  int rc = precond_read_factors(k->p, i, &F);
  if (rc == CLI_OK && ng_curvature_create(k->ctx, &F, &v->c) != NG_OK)
    rc = cli_fail("influence: layer '%s': %s", v->l->name, ng_last_error(k->ctx));
  free(F.left);
  free(F.right);
  return rc;
}

/* Choose the damping of a layer. D <- (K + lambda I)^-1 D, so that scores need the power 0 only; `self` needs -1. */
static int prepare_scores(const scorer *k, scored_layer *v) {
  double trace = 0.0;
  ng_damped_power *m = &v->inverse;
  *m = (ng_damped_power){sizeof *m, 0.0, 1.0, NULL};
  ng_status st = ng_curvature_measure(v->c, m, &trace, NULL);
  m->power = -1.0;
  m->damping = k->how->damping >= 0.0 ? k->how->damping : 0.1 * trace / (double)(v->rows * v->cols);
  if (st == NG_OK && m->damping == 0.0 && trace == 0.0)
    return cli_fail("influence: the curvature of layer '%s' is 0: give --damping", v->l->name);
  if (st == NG_OK && !k->how->self) {
    st = ng_curvature_apply(v->c, m, v->D, 1, v->D);
    m->power = 0.0;
  }
  return st == NG_OK ? CLI_OK
                     : cli_fail("influence: layer '%s': %s", v->l->name, ng_last_error(k->ctx));
}

/* All batches are micro-batches of one step with gradients of zero, so the averages are means over all samples. */
static int fit_curvature(scorer *k, const settings *s, ng_pool *pool) {
  static const char *const set[][2] = {
      {"method", "natgrad"}, {"norm_block", "none"}, {"clip", "none"}, {"spatial", "full"}};
  settings own;
  precond_outcome outcome = {false, false, false};
  int rc = CLI_OK;
  settings_init(&own);
  own.batch = s->batch;
  own.weight_decay = 0.0;
  for (size_t i = 0; i < sizeof set / sizeof *set && rc == CLI_OK; i++)
    rc = settings_set_or_report(&own, "influence", set[i][0], set[i][1]);
  if (rc == CLI_OK) rc = precond_create(&own, NULL, k->net, pool, &k->p);
  if (rc == CLI_OK) rc = for_training_samples(k, observe_batch);
  if (rc == CLI_OK) rc = precond_step(k->p, 0.0, 0.0, &outcome);
  if (rc == CLI_OK && outcome.skipped)
    rc = cli_fail("influence: an activation or a gradient of the network is not finite");
  for (int i = 0; i < nn_count_layers(k->net) && rc == CLI_OK; i++)
    rc = create_curvature(k, i);
  precond_destroy(&k->p);
  settings_free(&own);
  return rc;
}

/* ---- gradient of the test loss -----------------------------------------------------------------*/

static int add_gradients(scorer *k, int32_t samples) {
  const int rc = run_batch(k, samples, 0, false, true, NULL);
  for (int i = 0; i < nn_count_layers(k->net) && rc == CLI_OK; i++) {
    const scored_layer *v = &k->layer[i];
    const nn_param *w = nn_get_param(k->net, v->l->weight_param);
    const int64_t bias = v->l->has_bias, cols = v->cols - bias;
    for (int64_t r = 0; r < v->rows; r++) {
      for (int64_t c = 0; c < cols; c++)
        v->D[r * v->cols + c] += samples * (double)w->grad[r * cols + c];
      if (bias)
        v->D[r * v->cols + cols] +=
            samples * (double)nn_get_param(k->net, v->l->bias_param)->grad[r];
    }
  }
  return rc;
}

static int compute_test_gradient(scorer *k) {
  const int32_t n = k->f->test->n;
  if (n == 0) return cli_fail("influence: %s has no test samples", k->f->d->name);
  if (k->how->test >= n)
    return cli_fail("--test: %lld, but %s has %d test samples, 0 to %d", (long long)k->how->test,
                    k->f->d->name, n, n - 1);
  const int32_t first = k->how->test < 0 ? 0 : (int32_t)k->how->test;
  const int rc = for_batches(k, k->f->test, first, k->how->test < 0 ? n : first + 1, add_gradients);
  if (rc == CLI_OK && k->samples == 0)
    return cli_fail("influence: no test sample of %s can be read", k->f->d->name);
  for (int i = 0; i < nn_count_layers(k->net) && rc == CLI_OK; i++) {
    const scored_layer *v = &k->layer[i];
    for (int64_t e = 0; e < v->rows * v->cols; e++)
      v->D[e] /= (double)k->samples;
  }
  return rc;
}

/* ---- scores ------------------------------------------------------------------------------------*/

/* The input of output position s of a sample: features, or a patch (channel, kernel row, kernel column); 1 for the bias. */
static void write_input(const nn_layer *l, const float *x, int64_t s, double *to) {
  if (l->is_conv) {
    const int64_t width = l->positions / l->out_height, top = s / width * l->stride - l->padding,
                  left = s % width * l->stride - l->padding;
    for (int64_t c = 0; c < l->in; c++) {
      for (int64_t row = top; row < top + l->kernel; row++) {
        for (int64_t column = left; column < left + l->kernel; column++) {
          const bool inside = row >= 0 && row < l->height && column >= 0 && column < l->width;
          *to++ = inside ? (double)x[(row * l->width + column) * l->in + c] : 0.0;
        }
      }
    }
  } else {
    for (int64_t c = 0; c < l->in; c++)
      *to++ = (double)x[s * l->in + c];
  }
  if (l->has_bias) *to = 1.0;
}

/* Add the scores, or squared gradients, of samples [first, first + n) of the batch; g: output gradient of the mean loss over `samples`. */
static int add_scores(const scorer *k, const scored_layer *v, const float *g, int64_t first,
                      int64_t n, int64_t samples) {
  const nn_layer *l = v->l;
  for (int64_t i = 0; i < n * l->positions; i++) {
    const int64_t sample = first + i / l->positions;
    for (int64_t r = 0; r < v->rows; r++)
      k->left[i * v->rows + r] =
          (double)samples * (double)g[(first * l->positions + i) * v->rows + r];
    write_input(l, v->x + sample * v->inputs, i % l->positions, k->right + i * v->cols);
  }
  const ng_samples x = {sizeof x, 1, v->rows, v->eye, v->D},
                   y = {sizeof y, n, l->positions, k->left, k->right};
  const ng_status st = k->corrects ? ng_curvature_correct(v->c, &y)
                       : k->how->self
                           ? ng_curvature_scores(v->c, &v->inverse, &y, NULL, k->score + first)
                           : ng_curvature_scores(v->c, &v->inverse, &x, &y, k->score + first);
  return st == NG_OK ? CLI_OK
                     : cli_fail("influence: layer '%s': %s", l->name, ng_last_error(k->ctx));
}

static int64_t chunk_of(const scored_layer *v) {
  const int64_t n = CHUNK / (v->l->positions * v->cols);
  return n > 1 ? n : 1;
}

/* nn_watch: keep inputs; with the output gradient, add the scores of the layer. */
static int score_layer(void *user, int layer, const float *x, int64_t samples, int64_t columns,
                       bool grad) {
  const scorer *k = user;
  int rc = CLI_OK;
  if (layer >= nn_count_layers(k->net)) return rc;
  const scored_layer *v = &k->layer[layer];
  if (!grad) memcpy(v->x, x, (size_t)(samples * columns) * sizeof *x);
  const int64_t step = chunk_of(v);
  for (int64_t at = 0; at < samples && rc == CLI_OK && grad; at += step)
    rc = add_scores(k, v, x, at, samples - at < step ? samples - at : step, samples);
  return rc;
}

/* The number of the batch is the seed of the drawn labels, so they are the labels of the pass that computes K. */
static int correct_batch(scorer *k, int32_t samples) {
  const nn_watch watch = {k, score_layer};
  return run_batch(k, samples, k->batches, !k->how->empirical, false, &watch);
}

static int correct_curvature(scorer *k) {
  k->corrects = true;
  const int rc = for_training_samples(k, correct_batch);
  k->corrects = false;
  return rc;
}

static int score_batch(scorer *k, int32_t samples) {
  const nn_watch watch = {k, score_layer};
  memset(k->score, 0, (size_t)samples * sizeof *k->score);
  const int rc = run_batch(k, samples, 0, false, false, &watch);
  for (int32_t i = 0; i < samples; i++)
    k->out[(*k->count)++] = (scored_sample){k->f->rows[i], k->f->labels[i], k->score[i]};
  return rc;
}

/* ---- all ---------------------------------------------------------------------------------------*/

static void create_layers(scorer *k) {
  const int n = nn_count_layers(k->net);
  int64_t left = 0, right = 0;
  k->layer = cli_alloc((size_t)n, sizeof *k->layer);
  k->score = cli_alloc((size_t)k->f->capacity, sizeof *k->score);
  for (int i = 0; i < n; i++) {
    scored_layer *v = &k->layer[i];
    const nn_layer *l = v->l = nn_get_layer(k->net, i);
    const nn_param *w = nn_get_param(k->net, l->weight_param);
    v->rows = l->out;
    v->cols = w->count / l->out + l->has_bias;
    v->inputs = l->is_conv ? l->height * l->width * l->in : l->positions * l->in;
    v->D = cli_alloc((size_t)(v->rows * v->cols), sizeof *v->D);
    v->eye = cli_alloc((size_t)(v->rows * v->rows), sizeof *v->eye);
    v->x = cli_alloc((size_t)(k->f->capacity * v->inputs), sizeof *v->x);
    for (int64_t r = 0; r < v->rows; r++)
      v->eye[r * (v->rows + 1)] = 1.0;
    int64_t samples = chunk_of(v);
    if (samples > k->f->capacity) samples = k->f->capacity;
    const int64_t positions = samples * l->positions;
    left = positions * v->rows > left ? positions * v->rows : left;
    right = positions * v->cols > right ? positions * v->cols : right;
  }
  k->left = cli_alloc((size_t)left, sizeof *k->left);
  k->right = cli_alloc((size_t)right, sizeof *k->right);
}

static void free_layers(scorer *k) {
  for (int i = 0; i < nn_count_layers(k->net); i++) {
    ng_curvature_destroy(&k->layer[i].c);
    free(k->layer[i].D);
    free(k->layer[i].eye);
    free(k->layer[i].x);
  }
  free(k->layer);
  free(k->left);
  free(k->right);
  free(k->score);
}

int scores_compute(ng_context *ctx, const scores_how *how, const settings *s, bool reconstructs,
                   feed *f, nn *net, ng_pool *pool, scored_sample *out, int32_t *count) {
  scorer k = {.ctx = ctx,
              .how = how,
              .reconstructs = reconstructs,
              .f = f,
              .net = net,
              .out = out,
              .count = count};
  *count = 0;
  if (f->d->context > 0)
    return cli_fail("influence: %s is a text, expected images or rows", f->d->name);
  create_layers(&k);
  nn_freeze_norms(net, true);
  int rc = how->self ? CLI_OK : compute_test_gradient(&k);
  if (rc == CLI_OK) rc = fit_curvature(&k, s, pool);
  if (rc == CLI_OK && how->ekfac) rc = correct_curvature(&k);
  for (int i = 0; i < nn_count_layers(net) && rc == CLI_OK; i++)
    rc = prepare_scores(&k, &k.layer[i]);
  if (rc == CLI_OK) rc = for_training_samples(&k, score_batch);
  nn_freeze_norms(net, false);
  free_layers(&k);
  return rc;
}

static int compare_scores(const void *a, const void *b) {
  const scored_sample *x = a, *y = b;
  if (x->score != y->score) return x->score > y->score ? -1 : 1;
  return x->row < y->row ? -1 : 1;
}

void scores_sort(scored_sample *list, int32_t count) {
  qsort(list, (size_t)count, sizeof *list, compare_scores);
}
