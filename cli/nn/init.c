/* init.c: initial values of parameters, from the network's seed and the parameter's index. Memory is zero before. */
#include "node.h"
#include "common/random.h"

#include <math.h>

void nn_set_initializer(nn *n, nn_initializer start) { n->initializer = start; }

void nn_set_normal_initializer(nn *n, double deviation) {
  n->initializer = NN_NORMAL;
  n->deviation = deviation;
}

/* Return the fan of a layer: `channels` times the number of kernel positions. */
static double count_fan(const nn_layer *l, int64_t channels) {
  return (double)channels * (l->is_conv ? (double)(l->kernel * l->kernel) : 1.0);
}

static void fill_ones(float *x, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    x[i] = 1.0F;
}

/* Initialise the weight or the bias of a layer. */
static void init_layer_param(const nn *n, const nn_param *p, uint32_t item) {
  const nn_layer *l = &n->layers[p->layer];
  const double in = count_fan(l, l->in), out = count_fan(l, l->out);
  const bool he = p->initializer == NN_HE && l->is_conv, glorot = p->initializer == NN_GLOROT;
  const bool normal = p->initializer == NN_NORMAL;
  const double bound = glorot ? sqrt(6.0 / (in + out)) : 1.0 / sqrt(in);
  if (p->role == NN_BIAS && (he || glorot || normal)) return; /* 0, as allocated */
  if (he || normal) {
    const double deviation = normal ? p->deviation : sqrt(2.0 / out);
    random_normal(n->seed, RANDOM_INIT, item, deviation, 0, p->count, p->value);
  } else {
    random_uniform(n->seed, RANDOM_INIT, item, -bound, bound, p->count, p->value);
  }
}

void nn_init_parameters(nn *n) {
  for (int i = 0; i < n->n_params; i++) {
    const nn_param *p = &n->params[i];
    if (p->role == NN_WEIGHT || p->role == NN_BIAS) init_layer_param(n, p, (uint32_t)i);
    if (p->role == NN_GAMMA) fill_ones(p->value, p->count);
  }
  for (int i = 0; i < n->n_nodes; i++) {
    /* set the running variance to 1; the running mean is already 0 */
    const int b = n->nodes[i].buffer;
    if (b >= 0) fill_ones(n->buffers[b + 1].value, n->buffers[b + 1].count);
  }
}
