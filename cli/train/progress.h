/* progress.h: the progress bar and the epoch lines of a run. */
#ifndef PROGRESS_H
#define PROGRESS_H

#include "train.h"

typedef struct progress {
  train_output output;
  char head[128]; /* "LABEL: ", or "" */
  bool bar;       /* draw the bar: the caller wants it, and stderr is a terminal */
  bool drawn;     /* the bar is on the terminal now */
  double last_ms; /* time when the bar was drawn last */
  int64_t total, per_epoch, batch;
  double epochs;
  int64_t first; /* first step of this process; time at which it began */
  double began_ms;
} progress;

void progress_start(progress *p, const train_output *output, int64_t first, int64_t total,
                    int64_t per_epoch, int64_t batch);
/* Draw the bar after `step` steps, at most ten times a second. loss, accuracy: means of this epoch; NaN: undefined. */
void progress_draw_bar(progress *p, int64_t step, double loss, double accuracy);
void progress_print_epoch(progress *p, const train_epoch *e, double samples_per_second);
void progress_erase_bar(progress *p);

#endif
