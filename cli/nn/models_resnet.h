/* models_resnet.h: residual networks, for the list of models.c. */
#ifndef MODELS_RESNET_H
#define MODELS_RESNET_H

#include "models.h"

void resnet_cifar(nn *n, const model_task *t, int x, int depth); /* 20, 32, 56, 110 */
void resnet18(nn *n, const model_task *t, int x);
void resnet34(nn *n, const model_task *t, int x);
void resnet50(nn *n, const model_task *t, int x);
void resnet50d(nn *n, const model_task *t, int x);
void resnet_wide(nn *n, const model_task *t, int x, int depth, int width);

#endif
