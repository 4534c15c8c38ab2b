/* progress.h: progress bar and lines of a run. */
#ifndef PROGRESS_H
#define PROGRESS_H

#include "train.h"

typedef struct progress {
  train_show show;
  char head[128]; /* the label and ": ", or "" */
  bool bar;       /* asked for, and stderr is a terminal */
  bool drawn;
  double last_ms; /* time of the last drawing */
  int64_t total, per_epoch, batch;
  double epochs;
  int64_t first; /* first step of this process, and its time */
  double began_ms;
} progress;

void progress_begin(progress *p, const train_show *show, int64_t first, int64_t total,
                    int64_t per_epoch, int64_t batch);
/* After `step` steps; loss and accuracy are means of the epoch so far, accuracy NaN if undefined. Draws at most
 * ten times a second. */
void progress_step(progress *p, int64_t step, double loss, double accuracy);
void progress_epoch(progress *p, const train_epoch *e, double samples_per_second);
void progress_end(progress *p); /* erase the bar */

#endif
