/* recording.h: a recorded run of a published program: configuration, layers and arrays.
 *
 * A recording is one safetensors file with a JSON text, case.json, in its metadata.  Names of tensors: sT.L.a and
 * sT.L.g (input and output gradient of layer L at step T), sT.mK.L.a with micro-batches, rR.sT.L.a with ranks;
 * sT.L.weight.grad, .bias.grad before and .out after the program's step (of a batch norm sT.L.gamma.*, .beta.*).
 * With weight_decay, sT.L.weight.before has the weights.  Recordings with updates also have sT.L.weight.after and .v,
 * the weights and their momentum after the step, and the lists lr_steps and lr_pre_steps: the learning rates of each
 * step and of the step before.  "tolerance" and "state_tolerance" hold the largest accepted errors (1e-5; the same) if
 * the program's rounding is larger, and "tolerance_reason" says so.
 *
 * A recording of a program that uses gradients only has a list of "parameters" P with shapes, and for each the arrays
 * sT.P.before (the weight), .grad and .out (the direction).  `layer` then has one entry for each parameter: a linear
 * layer; with one output if it has one axis. */
#ifndef CLI_RECORDING_H
#define CLI_RECORDING_H

#include "safetensors.h"
#include "json.h"
#include "shapes.h"

#include <stdbool.h>
#include <stdint.h>

/* Observed arrays of one micro-batch on one rank: rows = samples x positions of a linear layer.  chainerkfac counts
 * positions as samples: in its recordings samples = rows, and each layer has its own number. */
typedef struct recording_observed {
  const float *a, *g;
  int64_t samples, rows;
} recording_observed;

/* A weight or bias in one step: its gradient, the result, and the value before the step (of parameters, with weight_decay,
 * with updates; else NULL); with updates also its value and momentum after the step, else NULL. */
typedef struct recording_step {
  const float *grad, *out, *before, *after, *v;
} recording_step;

typedef struct recording {
  char
      name[128]; /* of the file, without ".safetensors"                                           */
  ngio_json *json; /* case.json: root, and its member "config" */
  const ngio_value *root, *config;
  const char *system, *method;
  double tolerance, state_tolerance; /* of the directions; of error feedback, weights, momentum */
  const char *reason;                /* for a tolerance above the default, else "" */
  double weight_decay, loss_scale;   /* 0, 1; times the weights, of unscaled gradients */
  bool parameters;                   /* parameters instead of layers */
  bool updates;                      /* has weights and momentum after each step */
  double momentum;                   /* updates only, as the next three */
  bool adjust_momentum;              /* multiply momentum by lr / lr_pre if below 1 */
  double *lr, *lr_pre;               /* [steps] */
  int layers, steps, micro_batches, ranks;
  shape *layer; /* image: of the observed input                                                 */
  recording_observed
      *observed;        /* [rank][step][micro-batch][layer]                                     */
  recording_step *step; /* [step][layer][bias]                                                  */
  ngio_tensors *file;   /* the arrays                                                           */
} recording;

/* Read everything and check all shapes.  Returns 0, -1 with one line if the file is no recording, or 2 with one line that names the file and the array; *out is then
 * zero. */
int recording_open(const char *path, recording *out);
void recording_close(recording *r);

/* The array with this name, or NULL. */
__attribute__((format(printf, 2, 3))) const ngio_tensor *recording_array(const recording *r,
                                                                         const char *format, ...);

static inline const recording_observed *recording_observed_at(const recording *r, int rank,
                                                              int step, int micro, int layer) {
  return &r->observed[((rank * r->steps + step) * r->micro_batches + micro) * r->layers + layer];
}
static inline const recording_step *recording_step_at(const recording *r, int step, int layer,
                                                      int bias) {
  return &r->step[2 * (step * r->layers + layer) + bias];
}

#endif
