/* huge_model.h: a linear layer with a bias and a tensor, for tests with numbers of any magnitude.
 *
 * Gradients have one dtype, weights another.  Element i counts the weight of the layer, its bias, then the tensor.
 * Functions for ranks return a status and assert nothing. */
#ifndef TESTS_HUGE_MODEL_H
#define TESTS_HUGE_MODEL_H

#include "draw.h"
#include "element.h"
#include "fixture.h"

enum { IN = 5, OUT = 3, COUNT = 7, FC = IN * OUT + OUT, ALL = FC + COUNT, NOWHERE = -1 };

/* The numbers of an update: SGD; AdamW if beta2 > 0; ng_step if in_place. */
typedef struct update {
  const char *name;
  double lr, momentum, dampening, decay, beta1, beta2, eps;
  int32_t nesterov, decoupled;
  bool in_place;
} update;
static const update in_place = {.name = "ng_step", .lr = 0.1, .in_place = true};

typedef struct model {
  fixture f;
  rng r;
  ng_dtype grads, type; /* dtype of gradients; dtype of weights */
  uint32_t grad[ALL], weight[ALL];
  float a[IN], g[OUT];
} model;

/* Stored weight, momentum and second moment of an element. */
typedef struct element {
  float w, m, v;
} element;

void *address_of(uint32_t *of, ng_dtype t, int64_t i);
element element_of(const model *m, int i);

/* `line` has options; `transport` may be NULL. */
ng_status model_open(model *m, const char *line, const update *by, ng_dtype grads, ng_dtype type,
                     const ng_transport *transport);
/* Fill with ordinary numbers, exact in all dtypes, and with `size` at `place`: an element of a gradient; ALL and more:
 * of an observation. */
void fill_model(model *m, int place, double size);
/* Observe one sample and take the step. */
ng_status observe_and_step(model *m, const update *by);
ng_status fill_and_step(model *m, const update *by, int place, double size);

#endif
