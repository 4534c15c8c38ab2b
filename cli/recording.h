/* recording.h: a recorded run of a published program: its configuration, its layers, and arrays.
 *
 * A case is a folder with case.json and NAME.npy files, or one safetensors file with the text of
 * case.json in its metadata and tensors of the same names.  Names: sT.L.a and sT.L.g (input and
 * output gradient of layer L at step T), sT.mK.L.a with micro-batches, rR.sT.L.a with ranks;
 * sT.L.weight.grad, .bias.grad before and .out after the program's step (of a batch norm sT.L.gamma.*,
 * .beta.*); sT.L.weight.before, the weights, where weight_decay adds some of them to the gradients.  With
 * sT.L.weight.after and .v, the weights and their momentum after the program's update, .before is there, too, and
 * the lists lr_steps and lr_pre_steps say its learning rates, and those of the steps before.
 *
 * A program that looks at gradients only has a list of "parameters" P with shapes, and of each
 * sT.P.before (the weight), .grad and .out (the direction); `layer` has one entry a parameter then, a
 * weight as a linear layer, what has one axis as one with one output.
 */
#ifndef CLI_RECORDING_H
#define CLI_RECORDING_H

#include "safetensors.h"
#include "json.h"
#include "shapes.h"

#include <stdbool.h>
#include <stdint.h>

/* The case.json and .npy files of a folder, as they are: what `pack` writes into one file. */
typedef struct recording_folder {
  char *text; /* of case.json                                                                     */
  int n;
  ngio_tensor *tensor; /* names without ".npy", sorted                                            */
  void *arrays;        /* their memory                                                            */
} recording_folder;
int recording_folder_read(const char *path, recording_folder *out); /* 0, or 2 with a line told   */
const ngio_tensor *recording_folder_find(const recording_folder *f, const char *name); /* or NULL */
void recording_folder_free(recording_folder *f);

/* Captured arrays of one micro-batch on one rank: rows = samples x positions of a linear layer.  chainerkfac counts
 * positions as samples, so of its recordings both are the rows, of each layer its own. */
typedef struct recording_shown {
  const float *a, *g;
  int64_t samples, rows;
} recording_shown;

/* Gradient and result of one layer in one step; bias pointers are NULL without one. */
typedef struct recording_step {
  const float *grad, *out, *bias_grad, *bias_out;
  const float *before,
      *bias_before; /* weights, of parameters, with weight_decay and updates; else NULL */
  const float *after, *bias_after, *v, *bias_v; /* updates; else NULL */
} recording_step;

typedef struct recording {
  char name[128]; /* of the folder or file, without what follows the dot of ".safetensors"        */
  ngio_json *json; /* case.json: root, and its member "config" */
  const ngio_value *root, *config;
  const char *system, *method;
  double weight_decay, loss_scale; /* 0, 1; times the weights, of unscaled gradients */
  bool parameters;                 /* there are no layers, only parameters */
  bool updates;                    /* weights and momentum after each step are there */
  double momentum;                 /* updates: of it, */
  bool adjust_momentum;            /* times lr / lr_pre where that is below 1 */
  double *lr, *lr_pre;             /* updates: [steps] */
  int layers, steps, micro_batches, ranks;
  shape *layer; /* image: of the captured input; positions: as many as were captured           */
  recording_shown *shown; /* [rank][step][micro-batch][layer]                                     */
  recording_step *step;   /* [step][layer]                                                        */
  ngio_tensors *file;     /* where the arrays are: this ...                                       */
  recording_folder folder; /* ... or this */
} recording;

/* Reads everything and checks every shape against the layers.  Returns 0, or 2 with one line told
 * on stderr that names the file and the array.  *out is all zero then. */
int recording_open(const char *path, recording *out);
void recording_close(recording *r);

/* The array with this name, or NULL. */
__attribute__((format(printf, 2, 3))) const ngio_tensor *recording_array(const recording *r,
                                                                         const char *format, ...);

static inline const recording_shown *recording_shown_at(const recording *r, int rank, int step,
                                                        int micro, int layer) {
  return &r->shown[((rank * r->steps + step) * r->micro_batches + micro) * r->layers + layer];
}
static inline const recording_step *recording_step_at(const recording *r, int step, int layer) {
  return &r->step[step * r->layers + layer];
}

#endif
