/* run_files.h: what in and beside the folder of a run is the run's own.
 *
 * In:   the folder; a path that somebody gave, or the network of the run.
 * Out:  whether the path is a part of the run; whether the mean of its weights may be written. */
#ifndef RUN_FILES_H
#define RUN_FILES_H

#include "nn/nn.h"

#include <stdbool.h>

/* A run is one unit: nothing else is written over a part of it, by whatever name or link, nor among its
 * checkpoints. */
bool run_files_have(const char *dir, const char *path);

/* DIR/average.safetensors, which the end of a run replaces: not there, or (`resumed`) the mean of such a network,
 * as the run wrote it before.  Else CLI_BAD, told. */
int run_files_average(const char *dir, const nn *net, bool resumed);

#define RUN_FILES_AVERAGE "average.safetensors"
#define RUN_FILES_AVERAGED                                                                         \
  "averaged" /* how many weights, in its metadata; no checkpoint says that of a model */

#endif
