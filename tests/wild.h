/* wild.h: a small model for tests of numbers of any size: a linear layer with a bias, and a tensor.
 *
 * Gradients have one dtype, weights another.  Elements count through: the weight of the layer, its bias, the tensor.
 * Functions that ranks call return a status and assert nothing. */
#ifndef TESTS_WILD_H
#define TESTS_WILD_H

#include "draw.h"
#include "fixture.h"

enum { IN = 5, OUT = 3, COUNT = 7, FC = IN * OUT + OUT, ALL = FC + COUNT, NOWHERE = -1 };

/* The numbers of an update: of SGD, of AdamW if beta2 > 0, or of ng_step. */
typedef struct how {
  const char *name;
  double lr, momentum, dampening, decay, beta1, beta2, eps;
  int32_t nesterov, decoupled;
  bool in_place; /* ng_step */
} how;

typedef struct model {
  fixture f;
  rng r;
  ng_dtype grads, type; /* of gradients, of weights */
  uint32_t grad[ALL], weight[ALL];
  float a[IN], g[OUT];
} model;

/* Weight, momentum and second moment of an element, as they are stored. */
typedef struct element {
  float w, m, v;
} element;

void *at(uint32_t *of, ng_dtype t, int64_t i);
float get(const uint32_t *of, ng_dtype t, int64_t i);
void put(uint32_t *of, ng_dtype t, int64_t i, float x);
element element_of(const model *m, int i);

/* `line` has options; `transport` may be NULL. */
ng_status begin(model *m, const char *line, const how *by, ng_dtype grads, ng_dtype type,
                const ng_transport *transport);
/* Fill with ordinary numbers, exact in all dtypes, and at `place` one of that size: in a gradient, or in an observation. */
void fill(model *m, int place, double size);
/* Observe one sample and take the step. */
ng_status step(model *m, const how *by);
ng_status play(model *m, const how *by, int place, double size); /* fill and step */

#endif
