/* init.c: initial values of parameters, a function of the network's seed and of the parameter's index.  All memory is 0
 * before nn_init. */
#include "node.h"
#include "common/random.h"

#include <math.h>

void nn_set_start(nn *n, nn_start start) { n->start = start; }

/* Return `channels` times the positions of the kernel. */
static double fan(const nn_layer *l, int64_t channels) {
  return (double)channels * (l->conv ? (double)(l->kernel * l->kernel) : 1.0);
}

static void fill_ones(float *x, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    x[i] = 1.0F;
}

static void weight(const nn *n, const nn_param *p, uint32_t item) {
  const nn_layer *l = &n->layers[p->layer];
  const double in = fan(l, l->in), out = fan(l, l->out);
  if (p->start == NN_HE && l->conv) {
    random_normal(n->seed, RANDOM_INIT, item, sqrt(2.0 / out), p->count, p->value);
    return;
  }
  const double bound = p->start == NN_GLOROT ? sqrt(6.0 / (in + out)) : 1.0 / sqrt(in);
  random_uniform(n->seed, RANDOM_INIT, item, -bound, bound, p->count, p->value);
}

static void bias(const nn *n, const nn_param *p, uint32_t item) {
  const nn_layer *l = &n->layers[p->layer];
  const double bound = 1.0 / sqrt(fan(l, l->in));
  if (p->start == NN_GLOROT || (p->start == NN_HE && l->conv)) return; /* 0, as allocated */
  random_uniform(n->seed, RANDOM_INIT, item, -bound, bound, p->count, p->value);
}

void nn_init(nn *n) {
  for (int i = 0; i < n->n_params; i++) {
    const nn_param *p = &n->params[i];
    switch (p->role) {
    case NN_WEIGHT:
      weight(n, p, (uint32_t)i);
      break;
    case NN_BIAS:
      bias(n, p, (uint32_t)i);
      break;
    case NN_GAMMA:
      fill_ones(p->value, p->count);
      break;
    case NN_BETA: /* 0 */
      break;
    }
  }
  for (int i = 0; i < n->n_nodes; i++) { /* buffers of a norm: running mean 0, running variance 1 */
    const int b = n->nodes[i].buffer;
    if (b >= 0) fill_ones(n->buffers[b + 1].value, n->buffers[b + 1].count);
  }
}
