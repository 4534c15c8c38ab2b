/* bound.h: a model of two linear layers and a tensor, for tests that bind its gradients and weights. */
#ifndef TESTS_BOUND_H
#define TESTS_BOUND_H

#include "fixture.h"

enum { FC1, FC2, GAMMA, ENTRIES, IN = 3, MID = 4, OUT = 2, B = 6 };

extern const int64_t count[ENTRIES]; /* elements of each */

typedef struct model {
  fixture f;
  float grad[ENTRIES][MID * IN], weight[ENTRIES][MID * IN];
} model;

ng_array entry_array(float *x, int32_t k);
ng_status bind_entry(model *m, int32_t k, float *grad, float *weight, ng_hold hold);
/* Draw weights, bind everything with NG_HOLD, call ng_ready; `t` may be NULL. */
ng_status open_model(model *m, const char *options, const ng_transport *t);
/* Draw the gradients of step t. */
void draw_gradients(model *m, int32_t t);
/* Begin step t and observe the layers whose bit is in `which`. */
ng_status observe_layers(model *m, int32_t t, unsigned which);
ng_status step_sgd(model *m);

#endif
