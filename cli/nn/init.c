/* init.c: initial values of parameters, a function of the network's seed and the number of the parameter. */
#include "node.h"
#include "common/random.h"

#include <math.h>

void nn_set_start(nn *n, nn_start start) { n->start = start; }

/* Channels times kernel positions. */
static double fan_in(const nn *n, const nn_param *p) {
  const nn_layer *l = &n->layers[p->layer];
  return (double)l->in * (l->conv ? (double)(l->kernel * l->kernel) : 1.0);
}

static double fan_out(const nn *n, const nn_param *p) {
  const nn_layer *l = &n->layers[p->layer];
  return (double)l->out * (l->conv ? (double)(l->kernel * l->kernel) : 1.0);
}

static void fill(float *x, int64_t count, float value) {
  for (int64_t i = 0; i < count; i++)
    x[i] = value;
}

static void weight(const nn *n, const nn_param *p, uint32_t item) {
  const double in = fan_in(n, p), out = fan_out(n, p);
  if (p->start == NN_HE && n->layers[p->layer].conv) {
    random_normal(n->seed, RANDOM_INIT, item, sqrt(2.0 / out), p->count, p->value);
    return;
  }
  const double bound = p->start == NN_GLOROT ? sqrt(6.0 / (in + out)) : 1.0 / sqrt(in);
  random_uniform(n->seed, RANDOM_INIT, item, -bound, bound, p->count, p->value);
}

static void bias(const nn *n, const nn_param *p, uint32_t item) {
  const bool zero = p->start == NN_GLOROT || (p->start == NN_HE && n->layers[p->layer].conv);
  const double bound = zero ? 0.0 : 1.0 / sqrt(fan_in(n, p));
  random_uniform(n->seed, RANDOM_INIT, item, -bound, bound, p->count, p->value);
  if (zero) fill(p->value, p->count, 0.0F); /* and not -0 */
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
      fill(p->value, p->count, 1.0F);
      break;
    case NN_BETA:
      fill(p->value, p->count, 0.0F);
      break;
    }
  }
  for (int i = 0; i < n->n_nodes; i++) { /* a norm's two buffers: mean, variance */
    const int b = n->nodes[i].buffer;
    if (b < 0) continue;
    fill(n->buffers[b].value, n->buffers[b].count, 0.0F);
    fill(n->buffers[b + 1].value, n->buffers[b + 1].count, 1.0F);
  }
}
