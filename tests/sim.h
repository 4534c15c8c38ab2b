/* sim.h: a small model with repeatable training: observations and gradients of a step depend on
 * (step, rank, weights) only.  Used by tests of the state, of allocation failures, and by the fuzz
 * entry of the state reader.  Functions return the status of the library and never assert. */
#ifndef TESTS_SIM_H
#define TESTS_SIM_H

#include "fixture.h"

#include <stdbool.h>

/* Another model: what differs. */
enum {
  SIM_SMALL = 1 << 0,   /* one linear layer and a tensor                                          */
  SIM_RENAMED = 1 << 1, /* "fc1" is called "fc0"                                                  */
  SIM_WIDER = 1 << 2,   /* fc1 has one more input                                                 */
  SIM_FEWER = 1 << 3,   /* the last layer is not there                                            */
  SIM_MORE = 1 << 4,    /* one layer more                                                         */
  SIM_NHWC = 1 << 5,    /* convolutions see NHWC                                                  */
  SIM_STRIDE = 1 << 6,  /* a convolution has another stride, its weight is the same               */
  SIM_OWN = 1 << 7      /* fc1 has options of its own                                             */
};

typedef struct sim_setup {
  const char *method, *set; /* "natgrad", "solver=eigen damping_split=joint"                      */
  const char *linalg;       /* NULL: the library's choice                                         */
  int32_t threads, micro;   /* 0: one; micro-batches of a step                                    */
  unsigned vary;
  const char *layer_options; /* of SIM_OWN                                                        */
} sim_setup;

enum { SIM_LAYERS = 8 };

typedef struct sim {
  sim_setup how;
  fixture f;
  ng_context
      *ctx; /* those of f                                                                   */
  ng_precond *p;
  int32_t rank, layers;
  ng_layer layer[SIM_LAYERS]; /* kind 0: a tensor of `in`                                         */
  int32_t index[SIM_LAYERS];
  int64_t weights[SIM_LAYERS], biases[SIM_LAYERS]; /* elements                                    */
  float *grad, *weight; /* of all layers, one after the other                                  */
  int64_t count;
  float *seen; /* room for one observation */
  char message[256];
} sim;

/* NG_OK: ready.  Otherwise the sim holds what there was so far; sim_close in any case. */
ng_status sim_open(sim *s, const sim_setup *how, const ng_transport *t,
                   const ng_context_config *config /* may be NULL */);
ng_status sim_step(sim *s, int64_t step); /* observe, fresh gradients, the step of options.update */
ng_status sim_begin(sim *s, int64_t step); /* one ng_begin only */
void sim_close(sim *s);

/* Hash of everything that a load may change: arenas, counters, live values, options, memory held.
 */
uint64_t sim_fingerprint(const sim *s);

#endif
