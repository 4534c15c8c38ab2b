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
  int64_t total; /* steps of the run */
  double own_ms[RUN_STATIONS],
      step_ms; /* time at each station, time of whole steps; of this process */
  double seconds_before;
  run_state before;       /* the state in the resumed checkpoint; run_sum_times adds its totals */
  char *config;           /* the text of config.json, on rank 0 */
  grads grads;            /* sum over micro-batches and ranks */
  double base[SCHEDULED]; /* initial values of the options that --schedule changes */
  double current[SCHEDULED]; /* their current values */
  average mean;              /* mean of the weights */
  double loss;               /* loss of the last step */
  double loss_since;         /* sum of losses since the last checkpoint, and the number of steps */
  int64_t steps_since;
  run_ranks ranks;
  ranks_count in_steps;      /* collectives of the trainer within steps */
  bool stop_requested;       /* some rank received SIGINT or SIGTERM */
  bool checkpoint_requested; /* some rank received SIGUSR1 since the last checkpoint */
  int requests_served;       /* of checkpoints */
  train_result *out;
} run;

/* Return total times by station, including the times before a resume. */
log_times run_sum_times(run *r);

/* step.c: take one step with learning rate `lr`; `before` is the rate of the previous step. Add the number of correct
 * samples to *correct. Collective; CLI_BAD after a message. */
int run_step(run *r, double lr, double before, int64_t *correct);
double run_accuracy(const run *r, int64_t correct, int64_t of); /* NAN for autoencoders */

/* Return the parts of a checkpoint of this run. */
checkpoint run_get_checkpoint(run *r);

/* begin.c: set up the run. CLI_BAD after a message. */
int run_begin(run *r);
/* Average the running statistics of norms over the ranks. Collective. */
int run_share_buffers(run *r);

#endif
