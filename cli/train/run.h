/* run.h: the state of a running training run, for begin.c, loop.c and step.c. */
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

enum {
  RUN_DATA,
  RUN_FORWARD,
  RUN_BACKWARD,
  RUN_OBSERVE,
  RUN_SUM,
  RUN_STATIONS
}; /* stations of the trainer */

typedef struct run {
  const settings *s;
  const data_set *d;
  ng_pool *pool;
  nn *net;
  bool reconstructs; /* the target is the input (autoencoder): no accuracy */
  precond *p;
  feed feed;
  run_log *log;
  int lock; /* file descriptor of the locked directory; -1: none */
  progress progress;
  run_state state;
  int64_t total;                        /* steps of the run */
  double own_ms[RUN_STATIONS], step_ms; /* of this process; step_ms: of whole steps */
  double seconds_before;
  run_state before; /* of the resumed checkpoint: adds its totals to the times */
  char *config;     /* the text of config.json, on rank 0 */
  grads grads;      /* sum over micro-batches and ranks */
  double base[SCHEDULED],
      moved[SCHEDULED]; /* options that --schedule changes: initial values, current values */
  average mean;         /* mean of the weights */
  double loss;          /* loss of the last step */
  double loss_since;    /* sum of losses since the last checkpoint, and the number of steps */
  int64_t steps_since;
  run_ranks ranks;
  ranks_count in_steps; /* collectives of the trainer within steps */
  bool asked;           /* some rank received SIGINT or SIGTERM */
  bool asked_to_keep;   /* some rank received SIGUSR1 since the last checkpoint */
  int keeps;            /* requests for checkpoints that have been served */
  train_result *out;
} run;

/* Total times by station, including those before a resume. */
log_times run_times(run *r);

/* step.c: one step with learning rate `lr`, `before` in the previous step; *correct grows by the correct samples.
 * Collective; CLI_BAD after a message. */
int run_step(run *r, double lr, double before, int64_t *correct);
double run_accuracy(const run *r, int64_t correct, int64_t of); /* NAN for autoencoders */

/* The parts of a checkpoint of this run. */
checkpoint run_checkpoint(run *r);

/* begin.c: set up the run. CLI_BAD after a message. */
int run_begin(run *r);
/* Average the running statistics over the ranks, each of which has its own samples. Collective. */
int run_share_buffers(run *r);

#endif
