/* sim.h: a small model with repeatable training: observations and gradients of a step are a function of (step, rank,
 * weights).  Functions return the status of the library and never assert. */
#ifndef TESTS_SIM_H
#define TESTS_SIM_H

#include "fixture.h"

#include <stdbool.h>

/* Changes of the model. */
enum {
  SIM_SMALL = 1 << 0,   /* the model has one linear layer and one tensor */
  SIM_RENAMED = 1 << 1, /* "fc1" is called "fc0" */
  SIM_WIDER = 1 << 2,   /* layer fc1 has one more input */
  SIM_FEWER = 1 << 3,   /* without the last layer */
  SIM_MORE = 1 << 4,    /* the model has one more layer */
  SIM_NHWC = 1 << 5,    /* arrays of convolutions are NHWC */
  SIM_STRIDE = 1 << 6,  /* a convolution has another stride, with a weight of the same size */
  SIM_OWN = 1 << 7      /* layer fc1 has its own options */
};

typedef struct sim_setup {
  const char *method, *set;         /* "natgrad", "solver=eigen damping_split=joint" */
  const char *linalg;               /* NULL: the default */
  const struct ng_backend *backend; /* instead of `linalg` */
  int32_t threads, micro;           /* micro: micro-batches per step; 0: one */
  unsigned vary;                    /* flags of SIM_... */
  const char *layer_options;        /* the own options of fc1, with SIM_OWN */
} sim_setup;

enum { SIM_LAYERS = 8 };

typedef struct sim {
  sim_setup how;
  fixture f;
  ng_context *ctx; /* f.ctx */
  ng_precond *p;   /* f.p */
  int32_t rank, layers;
  ng_layer layer[SIM_LAYERS]; /* kind 0: a tensor of `in` elements */
  int32_t index[SIM_LAYERS];
  int64_t weights[SIM_LAYERS], biases[SIM_LAYERS]; /* elements */
  /* gradients and weights of all layers, one layer after the other */
  float *grad, *weight;
  int64_t weight_count;
  float *observation; /* scratch */
  char message[256];
} sim;

/* Open, up to ng_ready.  sim_close in any case. */
ng_status sim_open(sim *s, const sim_setup *how, const ng_transport *t,
                   const ng_context_config *config /* configuration of the context; may be NULL */);
ng_status sim_step(sim *s, int64_t step); /* observe, fresh gradients, the step of options.update */
ng_status sim_begin(sim *s, int64_t step); /* call ng_begin, without observations */
void sim_close(sim *s);

/* Hash bytes by FNV-1a, continuing from h. */
uint64_t sim_hash(uint64_t h, const void *data, size_t bytes);
/* Hash everything that a load may change: arenas, counters, live values, options, bytes allocated. */
uint64_t sim_fingerprint(const sim *s);

#endif
