/* models.h: networks by name. */
#ifndef MODELS_H
#define MODELS_H

#include "nn.h"

typedef struct model_task {
  nn_shape input;
  int64_t classes;
  bool is_text;           /* inputs are tokens from 0 to classes - 1 */
  double label_smoothing; /* [0, 1) */
  double dropout;         /* dropout rate; negative: the model's default */
} model_task;

/* largest number of integers in the name of a model: 16 and 2 in "wrn-16-2" */
enum { MODEL_NUMBERS = 3 };

typedef struct model_info {
  const char *name; /* "resnet20", "wrn-D-W" */
  const char *help; /* one line of help, with the paper */
} model_info;
int model_count(void);
model_info model_at(int i);
/* Set *out to input shape and classes of the model's paper, without label smoothing. CLI_BAD, reported: unknown
 * model. */
int model_default_task(const char *name, model_task *out);

/* Add the nodes of a model to n and set its loss; then the caller calls nn_prepare. *reconstructs: the target is the
 * input (autoencoder). CLI_BAD, reported: the name is unknown, or the task does not fit (such as too small images). */
int model_build(const char *name, const model_task *task, nn *n, bool *reconstructs);

/* models_resnet.c: add a residual network that reads node x. number[0]: layers. number[1]: 'd' for variant D of
 * resnet_add_imagenet; the factor of all widths for resnet_add_wide. */
void resnet_add_cifar(nn *n, const model_task *t, int x, const int64_t number[MODEL_NUMBERS]);
void resnet_add_imagenet(nn *n, const model_task *t, int x, const int64_t number[MODEL_NUMBERS]);
void resnet_add_wide(nn *n, const model_task *t, int x, const int64_t number[MODEL_NUMBERS]);

/* models_gpt.c: add a transformer that predicts the next token. number: features, blocks, heads. */
void gpt_add(nn *n, const model_task *t, int x, const int64_t number[MODEL_NUMBERS]);

#endif
