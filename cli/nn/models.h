/* models.h: networks by name. */
#ifndef MODELS_H
#define MODELS_H

#include "nn.h"

/* What a model is built for. */
typedef struct model_task {
  nn_shape input;
  int64_t classes;
  double label_smoothing; /* [0, 1) */
  double dropout;         /* of the models that have dropout; negative: the model's own rate */
} model_task;

typedef struct model_info {
  const char *name; /* "resnet20", "wrn-D-W" */
  const char *help; /* one line, with its source */
  nn_shape input;   /* what it was published for, when nothing else is said */
  int64_t classes;
} model_info;
int model_count(void);
model_info model_at(int i);
/* The task it was published for, without label smoothing.  CLI_BAD, told in one line: unknown. */
int model_task_of(const char *name, model_task *out);

/* Builds the nodes and sets the loss; nn_ready is the caller's.  *reconstructs: the target is the
 * input itself (autoencoder).  CLI_BAD, told in one line: unknown (with the nearest), or does not
 * fit the task (an image too small). */
int model_build(const char *name, const model_task *task, nn *n, bool *reconstructs);

#endif
