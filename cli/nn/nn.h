/* nn.h: networks, forward and backward.
 *
 * A network is a list of nodes in the order of execution.  Each nn_<kind> function takes the number of the input node
 * x, adds a node and returns its number.  After a mistake (such as a kernel larger than its image), all these functions
 * return -1, and nn_ready reports the first mistake; so models.c needs no checks.
 *
 * All arrays are f32.  Images are [batch, height, width, channels] (NHWC), everything else [batch, features], which is
 * the same with height = width = 1.  Weights have the order of natgrad.h: linear [out, in], convolution [out, in,
 * kernel, kernel].  A linear layer after an image reads its values in NHWC order.
 *
 * nn_ready allocates all memory; forward, loss and backward allocate nothing.  cli/nn/ does not depend on the
 * preconditioner: an nn_watch observes inputs and output gradients. */
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
static inline int64_t nn_count(nn_shape s) { return s.height * s.width * s.channels; }

/* ---- construction ---------------------------------------------------------------------------*/

/* `pool` runs the loops (NULL: the caller's thread runs them); the caller destroys the pool after the network. */
nn *nn_create(ng_pool *pool, uint64_t seed);
void nn_destroy(nn **n); /* accepts NULL */

/* `name` is the prefix of the parameters' names: "conv1" gives "conv1.weight", "conv1.bias".  For x = -1 a function
 * returns -1.  In the formulas, x is the input and y the output of the node. */
int nn_input(nn *n, nn_shape shape);
int nn_conv(nn *n, const char *name, int x, int64_t out, int64_t kernel, int64_t stride,
            int64_t padding, bool bias);
int nn_linear(nn *n, const char *name, int x, int64_t out, bool bias);
/* Batch normalisation over batch and positions (Ioffe & Szegedy 2015), eps 1e-5:
 * train: y = gamma (x - mean) / sqrt(var + eps) + beta with the batch's mean and biased variance;
 * running <- 0.9 running + 0.1 batch (variance unbiased), which evaluation uses. */
int nn_norm(nn *n, const char *name, int x);
int nn_relu(nn *n, int x);
int nn_tanh(nn *n, int x);
int nn_sigmoid(nn *n, int x);
/* y = 0 with probability `rate`, else x / (1 - rate); evaluation: y = x. */
int nn_dropout(nn *n, int x, double rate);
/* A window that crosses the border uses only the positions inside the image. */
int nn_max_pool(nn *n, int x, int64_t kernel, int64_t stride, int64_t padding);
/* The number of windows is rounded up: the last window may cross the border. */
int nn_average_pool(nn *n, int x, int64_t kernel, int64_t stride);
int nn_global_pool(nn *n, int x);          /* mean over all positions: [batch, channels] */
int nn_add(nn *n, int x, int y);           /* x + y, of the same shape */
nn_shape nn_get_shape(const nn *n, int x); /* zeros for -1 */

/* The loss of a batch of B samples; y: the output of the last node, t: the target, s: the label smoothing:
 *   cross entropy   (1/B) sum_n -sum_k t_k log softmax(y)_k, t = (1-s) onehot + s / classes
 *   squared error   (1/B) sum_n 1/2 ||y - t||^2  (summed over outputs, as in Hinton &
 *                   Salakhutdinov 2006 and Martens & Grosse 2015) */
typedef enum nn_loss_kind { NN_CROSS_ENTROPY = 1, NN_SQUARED_ERROR = 2 } nn_loss_kind;
void nn_set_loss(nn *n, nn_loss_kind kind, double label_smoothing);
nn_loss_kind nn_get_loss(const nn *n);

/* Initial weights of nodes that are added after this call; `in` and `out` count channels times kernel^2:
 *   fan in   uniform in +-1/sqrt(in), weights and biases (PyTorch's layers)
 *   he       normal with variance 2 / out, biases 0 (He et al. 2015, as in torchvision's residual networks); linear
 *            layers as fan in
 *   glorot   uniform in +-sqrt(6 / (in + out)), biases 0 (Glorot & Bengio 2010)
 * Norms start with gamma 1, beta 0, running mean 0 and variance 1. */
typedef enum nn_initializer { NN_FAN_IN = 0, NN_HE = 1, NN_GLOROT = 2 } nn_initializer;
void nn_set_initializer(nn *n, nn_initializer start);

/* Return the message of the first mistake of a constructor, or NULL. */
const char *nn_error(const nn *n);

/* Return the smallest batch of a rank in training: 2 if a norm has one position a sample (with one sample, its value
 * equals its mean, and all gradients before the norm would be zero), 1 with other norms, else 0. */
int64_t nn_find_least_batch(const nn *n);

/* Allocate memory for batches of up to `batch` samples and initialise the parameters (init.c).  The last node is the
 * output.  On failure CLI_BAD, reported in one line. */
int nn_ready(nn *n, int64_t batch);
int64_t nn_bytes(const nn *n);

/* ---- parameters -----------------------------------------------------------------------------*/

enum { NN_NAME = 64 };

typedef enum nn_role { NN_WEIGHT = 0, NN_BIAS = 1, NN_GAMMA = 2, NN_BETA = 3 } nn_role;

typedef struct nn_param {
  char name[NN_NAME]; /* "layer1.0.conv1.weight"                            */
  nn_role role;
  nn_initializer start;
  int layer; /* index of the nn_layer; -1: a parameter of a norm */
  int ndim;
  int64_t shape[4], count;
  float *value, *grad;
} nn_param;

typedef struct nn_buffer { /* running mean and variance: in checkpoints, not learned */
  char name[NN_NAME];
  int64_t count;
  float *value;
} nn_buffer;

typedef struct nn_layer { /* a layer with weights, for the preconditioner */
  char name[NN_NAME];
  bool conv, bias;
  int64_t in, out;                 /* channels or features               */
  int64_t kernel, stride, padding; /* convolution                        */
  int64_t height, width;           /* of the input image of a convolution */
  int64_t out_height;              /* height of the output image         */
  int64_t positions;               /* output positions of one sample; 1 for linear */
  int weight_param, bias_param;    /* indices of parameters; bias_param -1: no bias */
} nn_layer;

typedef struct nn_norm_layer { /* a norm, for the preconditioner */
  char name[NN_NAME];
  int64_t channels, height, width;
  double eps;
  int gamma_param, beta_param;
} nn_norm_layer;

int nn_params(const nn *n);
const nn_param *nn_param_at(const nn *n, int i);
int nn_buffers(const nn *n);
const nn_buffer *nn_buffer_at(const nn *n, int i);
int nn_layers(const nn *n);
const nn_layer *nn_layer_at(const nn *n, int i);
int nn_norms(const nn *n);
const nn_norm_layer *nn_norm_at(const nn *n, int i);
int64_t nn_weights(const nn *n); /* number of all weights, biases, gammas and betas */

/* ---- execution ------------------------------------------------------------------------------*/

/* If `fixed`, norms use their running statistics in training, too, and do not update them, so that gradients are
 * the values of the evaluated function.  The default, false: norms use batch statistics in training. */
void nn_fix_norms(nn *n, bool fixed);

/* A function that a pass calls for each layer, and for norm i as layer nn_layers + i: in forward with x = the input, in
 * backward (`grad`) with x = d(loss)/d(output), both [samples, columns], columns = height * width * channels.  The
 * array is valid during the call; the input of a norm is valid until the call in backward ends.  A nonzero result ends
 * the pass, which returns this result. */
typedef struct nn_watch {
  void *user;
  int (*observe)(void *user, int layer, const float *x, int64_t samples, int64_t columns,
                 bool grad);
} nn_watch;

typedef enum nn_mode { NN_EVALUATE = 0, NN_TRAIN = 1 } nn_mode;

/* The first sample of later batches is sample number `sample` of the batch of all ranks.  So each sample gets the same
 * random numbers (dropout, sampled targets) as on one rank. */
void nn_set_first_sample(nn *n, int64_t sample);
/* Set the decay of the running statistics of norms: keep * old + (1 - keep) * new in each training forward (0.9). */
void nn_set_norm_keep(nn *n, double keep);

/* Run x [samples, input shape] through the network; samples <= batch of nn_ready.  x is borrowed until the backward of
 * this batch ends.  `step` selects the random numbers of dropout.  If samples = 0, nothing is computed, the watch is
 * called, the caller omits the loss, and nn_backward writes zero gradients. */
int nn_forward(nn *n, nn_mode mode, const float *x, int64_t samples, uint64_t step,
               const nn_watch *watch);
const float *nn_output(const nn *n); /* [samples, outputs] of the last forward */
int64_t nn_outputs(const nn *n);

/* Return the mean loss of the batch of the last forward, summed in double in a fixed order.
 *   cross entropy   labels [samples] in [0, outputs); NN_EVALUATE smooths no label.  With targets t as well (mixup),
 *                   the gradient is (softmax(y) - t) / B, while the loss and *correct use the labels
 *   squared error   targets [samples, outputs]; labels NULL
 * *correct (may be NULL) counts samples whose largest output (of equal ones the first) is the label; 0 for squared
 * error.  After a training forward, nn_loss also sets the gradient of the output for nn_backward. */
double nn_loss(nn *n, nn_mode mode, const int32_t *labels, const float *targets, int64_t *correct);

/* Set the gradient of the output for targets drawn from the model's own distribution (labels ~ softmax(y); targets ~
 * normal(y, 1)), instead of nn_loss.  The second moment of these gradients is the Fisher matrix (Martens & Grosse 2015,
 * section 5; Kunstner et al. 2019 on the effect of real labels). */
void nn_sample_loss(nn *n, uint64_t step);

/* Write the gradients of all parameters; with params = false, compute output gradients only, for the watch.  After
 * another nn_loss or nn_sample_loss on the same forward, the caller may call nn_backward again. */
int nn_backward(nn *n, bool params, const nn_watch *watch);
/* Later calls of nn_backward call `ready` when the gradients of the parameters first, first + 1, ... are written.  A
 * nonzero result ends the pass, which returns this result. */
typedef int nn_gradients_ready(void *user, int first);
void nn_watch_gradients(nn *n, nn_gradients_ready *ready, void *user);

#endif
