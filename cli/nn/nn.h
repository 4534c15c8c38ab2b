/* nn.h: networks, forward and backward.
 *
 * A network is a list of nodes in the order of execution. A function such as nn_add_conv or nn_add_relu adds a node
 * that reads node x, and returns the number of the new node. After a mistake (such as a kernel larger than its image),
 * all these functions return -1, and nn_prepare reports the first mistake; so models.c needs no checks.
 *
 * All arrays are f32. Images are [batch, height, width, channels] (NHWC). Other arrays are [batch, features], which
 * is the same layout with height = width = 1. Weights have the order of natgrad.h: linear [out, in], convolution
 * [out, in, kernel, kernel]. A linear layer after an image reads the values of the image in NHWC order.
 *
 * nn_prepare allocates all memory; forward, loss and backward allocate nothing. cli/nn/ does not call the library: the
 * callback nn_watch gives inputs and output gradients to the preconditioner. */
#ifndef NN_H
#define NN_H

#include "pool.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nn nn;

typedef struct nn_shape {
  int64_t height, width, channels;
} nn_shape;
static inline int64_t nn_count_values(nn_shape s) { return s.height * s.width * s.channels; }

/* ---- construction ---------------------------------------------------------------------------*/

/* `pool` runs the loops in parallel (NULL: the calling thread runs them). The caller destroys the pool afterwards. */
nn *nn_create(ng_pool *pool, uint64_t seed);
void nn_destroy(nn **n); /* accepts NULL */

/* `name` is the prefix of the parameters' names: "conv1" gives "conv1.weight", "conv1.bias". If x is -1, a function
 * returns -1. In the formulas, x is the input and y the output of the node. */
int nn_add_input(nn *n, nn_shape shape);
int nn_add_conv(nn *n, const char *name, int x, int64_t out, int64_t kernel, int64_t stride,
                int64_t padding, bool bias);
int nn_add_linear(nn *n, const char *name, int x, int64_t out, bool bias);
/* The same linear layer at each position: [.., in] -> [.., out] over the channels. */
int nn_add_projection(nn *n, const char *name, int x, int64_t out, bool bias);
/* Rows of a table [tokens, features]; x has one channel, whose values are whole numbers from 0 to tokens - 1. */
int nn_add_embedding(nn *n, const char *name, int x, int64_t tokens, int64_t features);
/* add a node whose output is the number of each position of x, from 0 on */
int nn_add_positions(nn *n, int x);
/* Layer normalisation over the channels of each position (layernorm.c), eps 1e-5. */
int nn_add_layer_norm(nn *n, const char *name, int x);
/* Causal attention (attention.c). x has queries, keys and values, C channels each; the output has C channels. A
 * position attends to itself and to the positions before it. */
int nn_add_attention(nn *n, int x, int64_t heads);
/* Batch normalisation over batch and positions (Ioffe & Szegedy 2015), eps 1e-5:
 * training    y = gamma (x - mean) / sqrt(var + eps) + beta, with the batch's mean and biased variance;
 *             running <- 0.9 running + 0.1 batch, where the batch's variance is the unbiased one
 * evaluation  y from the same formula with the running mean and variance */
int nn_add_norm(nn *n, const char *name, int x);
int nn_add_relu(nn *n, int x);
int nn_add_tanh(nn *n, int x);
int nn_add_sigmoid(nn *n, int x);
/* y = x (1 + tanh(u)) / 2, u = sqrt(2 / pi) (x + 0.044715 x^3): the approximation of GPT-2 (Hendrycks & Gimpel 2016,
 * arXiv 1606.08415) */
int nn_add_gelu(nn *n, int x);
/* Training: y = 0 with probability `rate`, else x / (1 - rate). Evaluation: y = x. */
int nn_add_dropout(nn *n, int x, double rate);
/* The maximum over a window that crosses the border uses only the positions inside the image. */
int nn_add_max_pool(nn *n, int x, int64_t kernel, int64_t stride, int64_t padding);
/* The number of windows is rounded up: the last one may cross the border, and averages the positions inside. */
int nn_add_average_pool(nn *n, int x, int64_t kernel, int64_t stride);
/* add a node: the mean over all positions, [batch, channels] */
int nn_add_global_pool(nn *n, int x);
int nn_add_sum(nn *n, int x, int y);       /* x + y, of the same shape */
nn_shape nn_get_shape(const nn *n, int x); /* all zero for x = -1 */

/* The loss of a batch of B samples; y: the output of the last node, t: the target, s: the label smoothing. With cross
 * entropy each position of the output has its own loss and counts as a sample here:
 *   cross entropy   (1/B) sum_n -sum_k t_k log softmax(y)_k, t = (1-s) onehot + s / classes
 *   squared error   (1/B) sum_n 1/2 ||y - t||^2  (summed over outputs, as in Hinton &
 *                   Salakhutdinov 2006 and Martens & Grosse 2015) */
typedef enum nn_loss_kind { NN_CROSS_ENTROPY = 1, NN_SQUARED_ERROR = 2 } nn_loss_kind;
void nn_set_loss(nn *n, nn_loss_kind kind, double label_smoothing);
nn_loss_kind nn_get_loss(const nn *n);
/* Return the number of losses of a sample: the positions of the output with cross entropy, else 1. */
int64_t nn_count_losses(const nn *n);

/* Rule for the initial values of nodes that are added after this call. `in` and `out` are input and output channels
 * times kernel^2:
 *   NN_FAN_IN  weights and biases uniform in +-1/sqrt(in) (PyTorch's default)
 *   NN_HE      convolutions: normal with variance 2 / out, biases 0 (He et al. 2015, as in torchvision's residual
 *              networks); linear layers: as NN_FAN_IN
 *   NN_GLOROT  weights uniform in +-sqrt(6 / (in + out)), biases 0 (Glorot & Bengio 2010)
 *   NN_NORMAL  weights normal with the standard deviation of nn_set_normal_initializer, biases 0 (as GPT-2)
 * Norms start with gamma 1 and beta 0, batch norms with running mean 0 and running variance 1. */
typedef enum nn_initializer {
  NN_FAN_IN = 0,
  NN_HE = 1,
  NN_GLOROT = 2,
  NN_NORMAL = 3
} nn_initializer;
void nn_set_initializer(nn *n, nn_initializer start);
void nn_set_normal_initializer(nn *n, double deviation);

/* Return the message of the first mistake of a constructor, or NULL. */
const char *nn_get_error(const nn *n);

/* Return the smallest batch that a rank can train on: 2 if a batch norm has one position a sample (a single value
 * equals its mean, so all gradients before the norm would be zero), 1 with other norms, else 0. */
int64_t nn_find_smallest_batch(const nn *n);

/* Allocate memory for batches of up to `batch` samples, and initialise the parameters (init.c). The output of the
 * network is the last node. CLI_BAD: reported in one line. */
int nn_prepare(nn *n, int64_t batch);
int64_t nn_count_bytes(const nn *n);

/* ---- parameters -----------------------------------------------------------------------------*/

enum { NN_NAME = 64 };

typedef enum nn_role { NN_WEIGHT = 0, NN_BIAS = 1, NN_GAMMA = 2, NN_BETA = 3 } nn_role;

typedef struct nn_param {
  char name[NN_NAME]; /* "layer1.0.conv1.weight"                            */
  nn_role role;
  nn_initializer initializer;
  double deviation; /* standard deviation of the distribution NN_NORMAL */
  int layer;        /* index of the nn_layer; -1: a parameter of a norm */
  int ndim;
  int64_t shape[4], count;
  float *value, *grad;
} nn_param;

typedef struct nn_buffer { /* a running mean or variance, saved in checkpoints */
  char name[NN_NAME];
  int64_t count;
  float *value;
} nn_buffer;

typedef struct nn_layer { /* a layer with weights, for the preconditioner */
  char name[NN_NAME];
  bool is_conv, is_embedding, has_bias;
  int64_t in, out;                 /* channels or features; tokens and features of an embedding */
  int64_t kernel, stride, padding; /* convolution                        */
  int64_t height, width;           /* size of the input image of a convolution */
  int64_t out_height;              /* height of the output image         */
  int64_t positions;               /* number of output positions of one sample */
  int weight_param, bias_param;    /* indices of parameters; bias_param -1: no bias */
} nn_layer;

typedef struct nn_norm_layer { /* a norm, for the preconditioner */
  char name[NN_NAME];
  bool is_layer_norm; /* true: layer norm; false: batch norm */
  int64_t channels, height, width;
  double eps;
  int gamma_param, beta_param;
} nn_norm_layer;

int nn_count_params(const nn *n);
const nn_param *nn_get_param(const nn *n, int i);
int nn_count_buffers(const nn *n);
const nn_buffer *nn_get_buffer(const nn *n, int i);
int nn_count_layers(const nn *n);
const nn_layer *nn_get_layer(const nn *n, int i);
int nn_count_norms(const nn *n);
const nn_norm_layer *nn_get_norm(const nn *n, int i);
int64_t nn_count_weights(const nn *n); /* number of elements of all parameters */

/* ---- execution ------------------------------------------------------------------------------*/

/* If `fixed`, batch norms use their running statistics in training as in evaluation, and do not update them.
 * Gradients then belong to the function that evaluation computes. The default is false. */
void nn_freeze_norms(nn *n, bool fixed);

/* A callback. Forward calls it for each layer with x = the input of the layer; backward calls it (`is_grad`) with x =
 * d(loss)/d(output). Norm i has the number nn_count_layers + i. x is [samples, columns], columns = height * width *
 * channels. The array is valid during the call; the input of a norm is valid until the call for its output gradient
 * returns. A nonzero result ends the pass, which returns this result. */
typedef struct nn_watch {
  void *user;
  int (*observe)(void *user, int layer, const float *x, int64_t samples, int64_t columns,
                 bool grad);
} nn_watch;

typedef enum nn_mode { NN_EVALUATE = 0, NN_TRAIN = 1 } nn_mode;

/* The first sample of this rank's batches is sample number `sample` of the batch of all ranks. So each sample gets
 * the same random numbers (dropout, sampled targets) as in a run on one rank. */
void nn_set_first_sample(nn *n, int64_t sample);
/* Each training forward sets the running statistics of norms to keep * running + (1 - keep) * batch (keep = 0.9). */
void nn_set_norm_decay(nn *n, double keep);

/* Compute the output for x [samples, input shape], samples <= the batch of nn_prepare. x must stay valid until the
 * backward of this batch ends. `step` selects the random numbers of dropout. With samples = 0, forward only calls
 * the watch; the caller omits the loss, and nn_backward writes zero gradients. */
int nn_forward(nn *n, nn_mode mode, const float *x, int64_t samples, uint64_t step,
               const nn_watch *watch);
const float *nn_get_output(const nn *n); /* [samples, outputs] of the last forward */
int64_t nn_count_outputs(const nn *n);

/* Return the mean loss over the batch of the last forward, summed in double in a fixed order.
 *   cross entropy   labels [samples, nn_count_losses] in [0, channels of the output). Mode NN_EVALUATE does not smooth
 *                   labels. `targets` [samples, outputs] may be given in addition (mixup): then the gradient is
 *                   (softmax(y) - targets) / B, while the loss and *correct use the labels
 *   squared error   targets [samples, outputs]; labels is NULL
 * *correct (may be NULL) is set to the number of labels at the largest output (the first of equal ones); 0 for squared
 * error. After a training forward, nn_compute_loss also sets the output gradient for nn_backward. */
double nn_compute_loss(nn *n, nn_mode mode, const int32_t *labels, const float *targets,
                       int64_t *correct);

/* Call instead of nn_compute_loss: set the gradient of the output for targets drawn from the model's own distribution
 * (labels ~ softmax(y); targets ~ normal(y, 1)). The second moment of these gradients is the Fisher matrix (Martens
 * & Grosse 2015, section 5; Kunstner et al. 2019 on the effect of real labels). */
void nn_compute_sampled_loss(nn *n, uint64_t step);

/* Compute the gradients of all parameters; with params = false, only the output gradients of the layers, for the
 * watch. After one forward, the caller may call nn_compute_(sampled_)loss, then nn_backward, several times. */
int nn_backward(nn *n, bool params, const nn_watch *watch);
/* Make nn_backward call `ready` each time the gradients of the parameters first, first + 1, ... are complete. A
 * nonzero result ends the pass, which returns this result. */
typedef int nn_on_gradients_ready(void *user, int first);
void nn_watch_gradients(nn *n, nn_on_gradients_ready *ready, void *user);

#endif
