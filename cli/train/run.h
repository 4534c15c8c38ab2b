/* run.h: the state of a training run in progress, shared by begin.c, loop.c and step.c. */
#ifndef RUN_H
#define RUN_H

#include "feed.h"
#include "grads.h"
#include "log.h"
#include "precond.h"
#include "progress.h"
#include "recipe.h"
#include "schedule.h"
#include "traffic.h"
#include "checkpoint.h"

/* stations of the trainer */
enum { RUN_DATA, RUN_FORWARD, RUN_BACKWARD, RUN_OBSERVE, RUN_SUM, RUN_STATIONS };

typedef struct run {
  const settings *s;
  const data_set *d;
  ng_pool *pool;
  nn *net;
  bool reconstructs; /* the target is the input (autoencoder): no accuracy */
  precond *p;
  feed feed;
  run_log *log;
  int lock; /* file descriptor that locks the directory; -1: none */
  progress progress;
  run_state state;
  int64_t total; /* number of steps of the run */
  /* times of this process in whole steps: of each station, and of the steps */
  double own_ms[RUN_STATIONS], step_ms;
  double seconds_before;  /* seconds of training before the resume */
  run_state before;       /* the state of the resumed checkpoint; run_sum_times adds its times */
  char *config;           /* text of config.json (rank 0) */
  grads grads;            /* sum of gradients over micro-batches and ranks */
  double base[SCHEDULED]; /* initial values of the options that --schedule can change */
  /* current values of the same options; NaN: not yet set in the library */
  double current[SCHEDULED];
  average mean;        /* mean of the weights (--average-weights) */
  double loss;         /* loss of the last step */
  double loss_since;   /* sum of the losses since the last checkpoint, over steps_since steps */
  int64_t steps_since; /* steps in loss_since */
  run_ranks ranks;
  ranks_count in_steps;      /* traffic of the trainer's collectives in steps */
  bool stop_requested;       /* a rank received SIGINT or SIGTERM */
  bool checkpoint_requested; /* a rank received SIGUSR1 since the last checkpoint */
  int requests_served;       /* number of SIGUSR1 signals that were answered by a checkpoint */
  train_result *out;
} run;

/* Return the total time at each station, including times before a resume. */
log_times run_sum_times(run *r);

/* step.c: take one step with learning rate `lr`; `before` is the learning rate of the previous step. Add the number of
 * correct samples to *correct. Collective; CLI_BAD: reported. */
int run_step(run *r, double lr, double before, int64_t *correct);
/* Return the share of correct labels of `samples` samples; NAN: there are no labels. */
double run_get_accuracy(const run *r, int64_t correct, int64_t samples);

/* Return the objects whose state a checkpoint of this run contains. */
checkpoint run_get_checkpoint(run *r);

/* begin.c: set up the run. CLI_BAD: reported. */
int run_set_up(run *r);
/* Average the running statistics of norms over the ranks, which update them separately. Collective. */
int run_average_buffers(run *r);

#endif
