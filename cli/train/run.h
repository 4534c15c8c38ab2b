/* run.h: a training run while it lasts, of loop.c, step.c and begin.c. */
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
}; /* our own stations */

typedef struct run {
  const settings *s;
  const data_set *d;
  ng_pool *pool;
  nn *net;
  bool reconstructs; /* the target is the input, and there is no accuracy */
  precond *p;
  feed feed;
  run_log *log;
  int lock; /* of the folder; -1: none */
  progress progress;
  run_state state;
  int64_t total;                        /* steps of the run */
  double own_ms[RUN_STATIONS], step_ms; /* of this process; step_ms: all of a step */
  double seconds_before;
  run_state before; /* of the checkpoint that was resumed, with its totals */
  char *config;     /* the text of config.json, on rank 0 */
  grads grads;      /* of a step's micro-batches */
  double damping;   /* the library's option */
  double base[SCHEDULED],
      moved[SCHEDULED]; /* options that --schedule moves: as given, as last set */
  average mean;         /* of the weights */
  settings sgd;         /* of the part after the switch, and its first step: switch.h */
  int64_t switch_at;
  bool switched;
  double loss;       /* of the last step */
  double loss_since; /* sum over the steps since the last checkpoint, and their number */
  int64_t steps_since;
  run_ranks ranks;
  traffic_wire wire;
  ranks_count said, in_steps; /* by the trainer itself; in steps alone            */
  double sent_ms, hidden_ms;  /* by it and the library, over the wire, in steps */
  bool asked;                 /* some rank was asked to stop */
  bool asked_to_keep;         /* ... for a checkpoint, since the last one */
  int keeps;                  /* train_keep_wanted that this rank's checkpoints have answered */
  train_result *out;
} run;

/* Totals of all stations, with those of the run before it was resumed. */
log_times run_times(run *r);

/* step.c: one step, `before` the learning rate of the step before; *correct grows by what was right in its batches.
 * CLI_BAD, told.  Collective. */
int run_step(run *r, double lr, double before, int64_t *correct);
double run_loss(run *r, nn_mode mode, int64_t *correct);        /* of the batch at hand */
double run_accuracy(const run *r, int64_t correct, int64_t of); /* NAN: there is none   */

/* All that belongs to a checkpoint of this run. */
checkpoint run_checkpoint(run *r);

/* begin.c: from settings and data to a run that can take its first step.  CLI_BAD, told. */
int run_begin(run *r);
/* The mean of running statistics, which every rank gathers from its own samples.  Collective. */
int run_share_buffers(run *r);

#endif
