/* recording.h: a recorded run of a published program: configuration, layers and arrays.
 *
 * A recording is one safetensors file, with the JSON text case.json in its metadata. The tensors of layer L in step T
 * are:
 *   sT.L.a, sT.L.g       input and output gradient; sT.mK.L.a in micro-batch K; rR.sT.L.a on rank R
 *   sT.L.weight.grad     the gradient before the step; .out: the preconditioned gradient; .before: the weight, if
 *                        weight_decay is not 0. A bias has sT.L.bias.*, a batch norm sT.L.gamma.* and sT.L.beta.*
 *   sT.L.weight.after    in recordings with updates: the weight after the step; .v: its momentum. The lists lr_steps
 *                        and lr_pre_steps have the learning rate of each step, and of the step before
 * "passes" = 2: every step observes the arrays of all steps, and a step without gradient before the first one gives the bases.
 * "reduction" = "sum": the loss is a sum over samples. "options" of a layer: its options, such as "damping=0.1".
 *
 * "tolerance" (1e-5) and "state_tolerance" (default: tolerance) are the largest accepted errors; "tolerance_reason"
 * says why they are larger than the default.
 *
 * A recording of a program that uses only gradients has a list "parameters" with names P and shapes, and the arrays
 * sT.P.before (the weight), .grad and .out (the direction). `layer` then has one linear layer for each parameter; it
 * has one output if the parameter has one axis. If the recording has states, the arrays sT.P.after and sT.P.m, and others
 * that replay_state.c lists, a parameter of four axes is a convolution; .grad or .out may be missing; and lr is the
 * configuration's, times the entry of "lr_factor" for the step. */
#ifndef CLI_RECORDING_H
#define CLI_RECORDING_H

#include "safetensors.h"
#include "json.h"
#include "shapes.h"

#include <stdbool.h>
#include <stdint.h>

/* Input a and output gradient g of one layer, micro-batch and rank. For a linear layer, rows = samples x positions.
 * chainerkfac counts positions as samples, so in its recordings samples = rows, which differs between layers. */
typedef struct recording_observed {
  const float *a, *g;
  int64_t samples, rows;
} recording_observed;

/* A weight or bias in one step. grad: its gradient. out: the preconditioned gradient. before: its value before the step
 * (NULL: not recorded). after, momentum: value and momentum after the step (NULL: no updates). */
typedef struct recording_step {
  const float *grad, *out, *before, *after, *momentum;
} recording_step;

typedef struct recording {
  char name[128];  /* file name without ".safetensors" */
  ngio_json *json; /* case.json; root: its object; config: the member "config" */
  const ngio_value *root, *config;
  const char *system, *method;
  /* tolerance of directions; tolerance of error feedback, weights and momentum */
  double tolerance, state_tolerance;
  const char *tolerance_reason; /* reason for a tolerance above the default; otherwise "" */
  double weight_decay,
      /* the used gradient is grad / loss_scale + weight_decay before, where `before` is the weight; defaults 0 and 1 */
      loss_scale;
  bool has_two_passes, is_sum; /* "passes", "reduction" */
  bool has_parameters;         /* the recording lists "parameters" instead of layers */
  bool
      has_states; /* the recording has the state of the optimizer and the weights after each step (replay_state.c) */
  bool has_updates;     /* the recording has weights and momentum after each step */
  double momentum;      /* 0.9 if not recorded */
  bool adjust_momentum; /* multiply momentum by min(1, lr / lr_pre) */
  double *lr, *lr_pre;  /* [steps]; NULL without updates */
  /* States: parameters with a "role" that begins with "adam"; the weight decay of their group, and in lr_pre its learning rate
   * (configuration: adam.lr, adam.weight_decay). */
  bool *is_other; /* [layers] */
  double other_decay;
  int layers, steps, micro_batches, ranks;
  shape *layer;                 /* [layers]; member image: size of the observed input */
  recording_observed *observed; /* [rank][step][micro-batch][layer] */
  recording_step *step; /* [step][layer][bias]                                                  */
  ngio_tensors *file;   /* the arrays                                                           */
} recording;

/* Read a recording and check all shapes. Return 0; 2 if the recording is damaged (the file and the array are reported);
 * -1, with a note, if the file is no recording. *out is zero unless the result is 0. */
int recording_open(const char *path, recording *out);
void recording_close(recording *r);

/* Return the array with this name, or NULL. */
__attribute__((format(printf, 2, 3))) const ngio_tensor *
recording_find_array(const recording *r, const char *format, ...);

static inline const recording_observed *recording_observed_at(const recording *r, int rank,
                                                              int step, int micro, int layer) {
  return &r->observed[((rank * r->steps + step) * r->micro_batches + micro) * r->layers + layer];
}
static inline const recording_step *recording_step_at(const recording *r, int step, int layer,
                                                      int bias) {
  return &r->step[2 * (step * r->layers + layer) + bias];
}

#endif
