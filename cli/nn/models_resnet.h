/* models_resnet.h: residual networks, for the table of models.c.  x: the input node. */
#ifndef MODELS_RESNET_H
#define MODELS_RESNET_H

#include "models.h"

/* number[0]: 20, 32, 56 or 110 layers */
void resnet_cifar(nn *n, const model_task *t, int x, const long long number[2]);
/* number[0]: 18, 34 or 50 layers; number[1]: 'd' for variant D */
void resnet_imagenet(nn *n, const model_task *t, int x, const long long number[2]);
/* number[0]: layers; number[1]: factor of all widths */
void resnet_wide(nn *n, const model_task *t, int x, const long long number[2]);

#endif
