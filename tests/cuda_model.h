/* cuda_model.h: a model whose arrays are memory of the device of the stand-in (standin_desk.c), which the host cannot access, or
 * memory of the host; for t_cuda.c and t_cuda_eva.c. Main thread only: failures fail the test. */
#ifndef TESTS_CUDA_MODEL_H
#define TESTS_CUDA_MODEL_H

#include "draw.h"
#include "fixture.h"
#include "kernel/kernel.h"
#include "step/step.h"

#include "stage.h"
#include "standin.h"

enum { LAYERS = 3, SAMPLES = 5, STEPS = 3, MOST = 4096, SIDE = 6 };

/* A linear layer with bias, a convolution of images of SIDE x SIDE pixels, a linear layer without bias, whose rows have a multiple
 * of 4 columns (dv_region.is_flat). */
typedef struct shape_of {
  int64_t in, out, kernel; /* kernel 0: a linear layer */
  bool bias;
} shape_of;
extern const shape_of shape[LAYERS];

typedef struct model {
  fixture f;
  ng_backend backend;
  dv_desk *desk; /* NULL: arrays of the host */
  void *array[6 * LAYERS * STEPS];
  int arrays;
  float *weight[LAYERS][2], *gradient[LAYERS][2];
  float *observed[LAYERS][2]; /* the next input, output gradient */
} model;

void open_context(model *m, bool device, const char *options);
/* On the device, with further settings. */
void open_context_with(model *m, const ng_context_config *config, const char *options);
void add_layer(model *m, int i, rng *r);
void open_model(model *m, bool device, const char *options, rng *r);
void close_model(model *m);
/* Number of elements of parameter k (0: the weight, 1: the bias) of layer i, and of its input (0) or output gradient (1). */
int64_t count(int i, int k);
int64_t observed_count(int i, int k);
/* Arrays of the device, or of the host. */
float *random_array(model *m, rng *r, int64_t n);
void read_array(const model *m, const float *at, int64_t n, float *out);
void write_array(const model *m, float *at, int64_t n, const float *x);
/* observe_drawn: begin a micro-batch and observe the drawn arrays. */
void draw_observed(model *m, rng *r);
void observe_drawn(model *m);
void observe(model *m, rng *r);
/* update: "sgd", "adamw" or "gradient" */
ng_status step(model *m, const char *update);
void expect_equal(const model *a, const model *b, const char *what);
/* Bytes of n descriptors in the stage; of their ng_kernel_ops cut. */
int64_t staged(int64_t n, size_t size);
int64_t cut_of(int64_t n);
standin_counts plan_eva_step(void);

#endif
