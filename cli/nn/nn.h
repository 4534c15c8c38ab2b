/* nn.h: networks, forward and backward.
 *
 * A network is a list of nodes in the order they run, made once by the nn_<kind> functions; each
 * takes the number of the node it reads and returns its own.  The first mistake (a kernel larger
 * than its image, memory) is remembered: later calls return -1, and nn_ready reports it, so that a
 * model is written without checks (models.c).
 *
 * All arrays are f32.  Images are [batch, height, width, channels] (NHWC), everything else
 * [batch, features], which is the same with height = width = 1.  Weights are what natgrad.h wants:
 * linear [out, in], convolution [out, in, kernel, kernel].  A linear layer after an image reads
 * its values in NHWC order.
 *
 * nn_ready takes all memory; forward, loss and backward allocate nothing.  cli/nn/ knows nothing of
 * natgrad.h's preconditioner: who wants to see inputs and output gradients hangs an nn_watch in.
 */
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

/* ---- making one ------------------------------------------------------------------------------*/

/* `pool` runs our loops (NULL: the caller's thread only); it stays the caller's. */
nn *nn_create(ng_pool *pool, uint64_t seed);
void nn_destroy(nn **n); /* accepts NULL */

/* `name` is the prefix of parameters: "conv1" gives "conv1.weight", "conv1.bias".  x = -1 is
 * answered with -1.  In the formulas x is the input, y the output. */
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
/* y = x / (1 - rate) where kept, 0 with probability `rate`; evaluation: y = x. */
int nn_dropout(nn *n, int x, double rate);
/* Windows that reach over the border ignore (max) or leave out of the mean (average) what is not
 * there. */
int nn_max_pool(nn *n, int x, int64_t kernel, int64_t stride, int64_t padding);
int nn_average_pool(nn *n, int x, int64_t kernel, int64_t stride, int64_t padding);
/* The last window may reach over the border: sizes are divided by the stride and rounded up. */
int nn_average_pool_up(nn *n, int x, int64_t kernel, int64_t stride);
int nn_global_pool(nn *n, int x);         /* mean over all positions: [batch, channels] */
int nn_add(nn *n, int x, int y);          /* same shapes */
nn_shape nn_shape_of(const nn *n, int x); /* zeros for -1 */

/* The loss of a batch of B samples, over the last node y:
 *   cross entropy   (1/B) sum_n -sum_k t_k log softmax(y)_k, t = (1-s) onehot + s / classes
 *   squared error   (1/B) sum_n 1/2 ||y - t||^2  (summed over outputs, as in Hinton &
 *                   Salakhutdinov 2006 and Martens & Grosse 2015) */
typedef enum nn_loss_kind { NN_CROSS_ENTROPY = 1, NN_SQUARED_ERROR = 2 } nn_loss_kind;
void nn_set_loss(nn *n, nn_loss_kind kind, double label_smoothing);
nn_loss_kind nn_loss_of(const nn *n);

/* First values of weights, for the nodes made from here on (of every output o and input i):
 *   fan in   uniform in +-1/sqrt(in), weights and biases (PyTorch's layers)
 *   he       normal with variance 2 / (out kernel^2), biases 0 (He et al. 2015, as torchvision's
 *            residual networks); linear layers as fan in
 *   glorot   uniform in +-sqrt(6 / (in + out)), biases 0 (Glorot & Bengio 2010)
 * Norms start with gamma 1, beta 0, running mean 0 and variance 1. */
typedef enum nn_start { NN_FAN_IN = 0, NN_HE = 1, NN_GLOROT = 2 } nn_start;
void nn_set_start(nn *n, nn_start start);

/* The first mistake made in describing it, NULL if there is none. */
const char *nn_mistake(const nn *n);

/* The smallest batch that each rank can train it with: 2 where a norm sees one position a sample (the deviation
 * of one value from its own mean is zero, and so is every gradient before it), 1 where there are other norms over a
 * batch, else 0: a rank may have no sample. */
int64_t nn_least_batch(const nn *n);

/* Take memory for batches of up to `batch` samples and give the parameters their first values
 * (init.c).  The last node made is the output.  On failure CLI_BAD, told in one line. */
int nn_ready(nn *n, int64_t batch);
int64_t nn_bytes(const nn *n); /* all memory it holds */

/* ---- what it learns --------------------------------------------------------------------------*/

enum { NN_NAME = 64 };

typedef enum nn_role { NN_WEIGHT = 0, NN_BIAS = 1, NN_GAMMA = 2, NN_BETA = 3 } nn_role;

typedef struct nn_param {
  char name[NN_NAME]; /* "layer1.0.conv1.weight"                            */
  nn_role role;
  nn_start start;
  int layer; /* its nn_layer, -1 for a norm's                                */
  int ndim;
  int64_t shape[4], count;
  float *value, *grad;
} nn_param;

typedef struct nn_buffer { /* kept in checkpoints, not learned: running mean and variance */
  char name[NN_NAME];
  int64_t count;
  float *value;
} nn_buffer;

typedef struct nn_layer { /* what a preconditioner is told about a layer with weights */
  char name[NN_NAME];
  bool conv, bias;
  int64_t in, out;                 /* channels or features               */
  int64_t kernel, stride, padding; /* convolution                        */
  int64_t height, width;           /* of the input image                 */
  int64_t out_height;              /* of the output's                    */
  int64_t positions;               /* of the output, per sample; 1 for linear */
  int weight_param, bias_param;    /* bias_param -1 without              */
} nn_layer;

typedef struct nn_norm_layer { /* ... and about a norm */
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
int64_t nn_weights(const nn *n); /* sum of all counts */

/* ---- running it ------------------------------------------------------------------------------*/

/* From now on a training forward, too, takes the running values of norms, and leaves them as they are (true), or not
 * (false, as it begins): gradients of what evaluation computes. */
void nn_fix_norms(nn *n, bool fixed);

/* Called for every layer, and for every norm with a number behind those of the layers (norm i is
 * nn_layers + i), with its input in forward and d(loss)/d(its output) in backward, both
 * [samples, height * width * channels of that side], valid during the call; a norm's input until its
 * output gradient was shown.  A result other than 0 ends the pass, which returns it. */
typedef struct nn_watch {
  void *user;
  int (*input)(void *user, int layer, const float *a, int64_t samples, int64_t columns);
  int (*output_grad)(void *user, int layer, const float *g, int64_t samples, int64_t columns);
} nn_watch;

typedef enum nn_mode { NN_EVALUATE = 0, NN_TRAIN = 1 } nn_mode;

/* The batches given from now on begin at this sample of a larger one, of which other ranks have the rest:
 * what is drawn for a sample (dropout, targets) is what it would be in the whole batch. */
void nn_set_first(nn *n, int64_t sample);
/* Running statistics of norms become keep old + (1 - keep) new at every forward of training (0.9). */
void nn_set_norm_keep(nn *n, double keep);

/* x [samples, input shape], samples <= batch of nn_ready; borrowed until the backward of this
 * batch is done.  `step` moves dropout's random numbers on.  samples 0: nothing is computed, watches hear of each layer,
 * and backward, without a loss before it, writes gradients of 0. */
int nn_forward(nn *n, nn_mode mode, const float *x, int64_t samples, uint64_t step,
               const nn_watch *watch);
const float *nn_output(const nn *n); /* [samples, outputs] of the last forward */
int64_t nn_outputs(const nn *n);

/* Mean loss of the batch of the last forward, summed in double in a fixed order.  labels for
 * cross entropy (each in [0, outputs)), targets [samples, outputs] for squared error; the other is
 * NULL; NN_EVALUATE smooths no label.  Cross entropy with targets, too: the gradient is that of the
 * targets, (softmax(y) - t) / B, the loss and `correct` are still those of the labels (mixup).  *correct (may be NULL): samples whose largest output, the first of equals, is the label; 0
 * for squared error.  After a training forward the gradient at the output is ready for
 * nn_backward. */
double nn_loss(nn *n, nn_mode mode, const int32_t *labels, const float *targets, int64_t *correct);

/* Instead of nn_loss: the gradient at the output for targets drawn from the model's own
 * distribution (labels ~ softmax(y); targets ~ normal(y, 1)), whose second moment is the Fisher
 * matrix (Martens & Grosse 2015, section 5; Kunstner et al. 2019 on what happens without). */
void nn_sampled_loss(nn *n, uint64_t step);

/* Fills every parameter's grad (written, not added to).  May be called again after another nn_loss
 * or nn_sampled_loss on the same forward.  With `params` false only output gradients are made (for
 * the watch). */
int nn_backward(nn *n, bool params, const nn_watch *watch);
/* From now on told by every nn_backward that writes parameters' grads: those from `first` on are written, down
 * to 0.  A result other than 0 ends the pass, which returns it. */
typedef int nn_made(void *user, int first);
void nn_on_gradients(nn *n, nn_made *made, void *user);

#endif
