/* progress.h: progress bar and lines of a run. */
#ifndef PROGRESS_H
#define PROGRESS_H

#include "train.h"

typedef struct progress {
  train_output output;
  char head[128]; /* the label and ": ", or "" */
  bool bar;       /* the caller wants a bar, and stderr is a terminal */
  bool drawn;
  double last_ms; /* time when the bar was last drawn */
  int64_t total, per_epoch, batch;
  double epochs;
  int64_t first; /* first step of this process; began_ms: its start time */
  double began_ms;
} progress;

void progress_begin(progress *p, const train_output *output, int64_t first, int64_t total,
                    int64_t per_epoch, int64_t batch);
/* Draw the bar after `step` steps, at most ten times a second. loss and accuracy are means of the epoch so far;
 * accuracy is NaN if undefined. */
void progress_step(progress *p, int64_t step, double loss, double accuracy);
void progress_epoch(progress *p, const train_epoch *e, double samples_per_second);
void progress_end(progress *p); /* erase the bar */

#endif
