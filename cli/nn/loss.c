/* loss.c: the loss of the network's output, and its gradient. For one sample with output y and target t:
 *
 *   cross entropy   l = -sum_k t_k log s_k, s = softmax(y); dl/dy = s - t
 *   squared error   l = 1/2 ||y - t||^2;                    dl/dy = y - t
 * The loss of a batch is the mean of l. With cross entropy each position of the output has a loss. The sum has a fixed
 * order and is in double. */
#include "node.h"
#include "common/random.h"

#include <math.h>

void nn_set_loss(nn *n, nn_loss_kind kind, double label_smoothing) {
  n->loss = kind;
  n->label_smoothing = label_smoothing;
}

nn_loss_kind nn_get_loss(const nn *n) { return n->loss; }

int64_t nn_count_losses(const nn *n) {
  const nn_shape s = n->nodes[n->n_nodes - 1].shape;
  return n->loss == NN_CROSS_ENTROPY ? s.height * s.width : 1;
}

/* Return log(sum_k exp(y_k)) of c values. To avoid overflow, subtract the largest y_k before exp. */
static double log_sum_exp(const float *y, int64_t c) {
  float most = y[0];
  double sum = 0.0;
  for (int64_t k = 1; k < c; k++)
    most = y[k] > most ? y[k] : most;
  for (int64_t k = 0; k < c; k++)
    sum += exp((double)(y[k] - most));
  /* cppcheck-suppress invalidFunctionArg ; sum >= 1: the largest y_k adds exp(0) */
  return (double)most + log(sum);
}

/* Return the cross entropy of one sample with c outputs y, for the smoothed label as target. If `grad` is not NULL,
 * set it to share * (softmax(y) - t), where t is `targets` if not NULL, else the smoothed label. */
static double compute_cross_entropy(double smoothing, const float *y, int64_t c, int32_t label,
                                    const float *targets, double share, float *grad) {
  const double smooth = smoothing / (double)c, all = log_sum_exp(y, c);
  double loss = 0.0;
  for (int64_t k = 0; k < c; k++) {
    const double t = smooth + (k == label ? 1.0 - smoothing : 0.0);
    const double log_s = (double)y[k] - all;
    if (t > 0.0) loss -= t * log_s;
    if (grad == NULL) continue;
    grad[k] = (float)((exp(log_s) - (targets != NULL ? (double)targets[k] : t)) * share);
  }
  return loss;
}

static int64_t find_largest_index(const float *y, int64_t c) {
  int64_t best = 0;
  for (int64_t k = 1; k < c; k++)
    best = y[k] > y[best] ? k : best;
  return best;
}

double nn_compute_loss(nn *n, nn_mode mode, const int32_t *labels, const float *targets,
                       int64_t *correct) {
  const int64_t c = nn_count_outputs(n) / nn_count_losses(n);
  const int64_t losses = n->samples * nn_count_losses(n);
  const double share = 1.0 / (double)losses;
  const double smoothing = mode == NN_TRAIN ? n->label_smoothing : 0.0;
  double sum = 0.0;
  int64_t right = 0;
  for (int64_t i = 0; i < losses; i++) {
    const float *y = nn_get_output(n) + i * c;
    float *grad = n->trained ? n->loss_grad + i * c : NULL;
    if (n->loss == NN_CROSS_ENTROPY) {
      sum += compute_cross_entropy(smoothing, y, c, labels[i],
                                   targets != NULL ? targets + i * c : NULL, share, grad);
      right += find_largest_index(y, c) == labels[i];
      continue;
    }
    const float *t = targets + i * c;
    double row = 0.0;
    for (int64_t k = 0; k < c; k++) {
      const double d = (double)y[k] - (double)t[k];
      row += 0.5 * d * d;
      if (grad != NULL) grad[k] = (float)(d * share);
    }
    sum += row;
  }
  if (correct != NULL) *correct = right;
  return sum * share;
}

/* Return label k with probability softmax(y)_k: the smallest k whose cumulative probability exceeds u in [0, 1). */
static int32_t draw_label(const float *y, int64_t c, double u) {
  const double all = log_sum_exp(y, c);
  double sum = 0.0;
  for (int64_t k = 0; k < c - 1; k++) {
    sum += exp((double)y[k] - all);
    if (u < sum) return (int32_t)k;
  }
  return (int32_t)(c - 1);
}

void nn_compute_sampled_loss(nn *n, uint64_t step) {
  const int64_t each = nn_count_losses(n), c = nn_count_outputs(n) / each;
  const double share = 1.0 / (double)(n->samples * each);
  if (n->loss == NN_SQUARED_ERROR) {
    /* with labels drawn from the model, the gradient y - t is normal with variance 1 */
    random_normal(n->seed, RANDOM_TARGET, (uint32_t)step, share, n->first * c, n->samples * c,
                  n->loss_grad);
    return;
  }
  for (int64_t i = 0; i < n->samples * each; i++) {
    const float *y = nn_get_output(n) + i * c;
    uint32_t w[4];
    random_words(n->seed, RANDOM_TARGET, (uint32_t)step, (uint64_t)(n->first * each + i), w);
    const int32_t label = draw_label(y, c, random_unit(w[0]));
    (void)compute_cross_entropy(0.0, y, c, label, NULL, share, n->loss_grad + i * c);
  }
}
