/* train.h: one training run, from settings to a result.
 *
 * Rooms: settings.c the table of settings; loop.c the steps, step.c one of them; recipe.c what a large batch needs around one;
 * precond.c the one that talks to natgrad.h (layers registered, watch, step, stations); lr.c the learning
 * rate of a step; feed.c its batches, damaged.c files that are no images; checkpoint.c state on disk and back;
 * log.c log.jsonl; progress.c the bar; train.c the command.
 *
 * A step: batch -> forward (inputs observed) -> loss -> backward (output gradients observed) ->
 * ng_step_sgd or ng_step_adamw, which preconditions and updates.  sgd and adamw are the same with
 * every parameter registered as a tensor, so all methods share one update.
 *
 * Everything random is a function of (seed, epoch, step), so a checkpoint holds no generator.  mix.c is
 * mixup and random erasing, average.c the mean of the weights, grads.c gradients over ranks. */
#ifndef TRAIN_H
#define TRAIN_H

#include "data/data.h"
#include "nn/nn.h"
#include "refreshed.h"
#include "settings.h"
#include "traffic.h"

typedef struct train_epoch { /* one line "epoch" of log.jsonl */
  int64_t epoch, step;       /* counted from 1: after so many */
  double lr;
  double train_loss, train_accuracy; /* means over the epoch, in training mode; accuracy 0..1 */
  double test_loss, test_accuracy;   /* on the test (or validation) split, NaN if it is empty */
  double seconds; /* of training so far, all epochs; evaluation, checkpoints and logs left out */
} train_epoch;

/* A mean training loss of so many times that of the run's first step (or 1, if that is less) is diverged. */
enum { TRAIN_FAR = 1000 };

enum { TRAIN_STATIONS = 32 };
typedef struct train_station { /* forward, backward, then those of ng_report_station */
  char name[24];
  double total_ms;
} train_station;

typedef struct train_result {
  int epochs;
  train_epoch *epoch; /* [epochs] */
  int64_t steps, skipped, rescued, unobserved;
  int64_t first; /* steps that were done before, by a run that this one goes on with */
  bool stopped;  /* by a signal */
  bool
      diverged; /* the loss, a weight, or what steps in a row would write, is not finite: ended there */
  bool unheard;  /* stopped because nobody can be told: stdout is full, or closed */
  char lost[64]; /* what; "": the loss */
  double
      far; /* diverged, with all numbers finite: the mean loss since the last checkpoint; 0: not so */
  int64_t averaged; /* weights of so many steps; 0: not, or the run is not over */
  double average_loss, average_accuracy; /* of their mean, on the test split */
  int64_t kept;                          /* step of the last checkpoint; -1: none */
  int stations;
  train_station station[TRAIN_STATIONS];
  refreshed refreshed;                  /* where statistics are adaptive */
  traffic traffic;                      /* of several ranks, of this process */
  int64_t network_bytes, precond_bytes; /* held by the network; by the library, between steps */
} train_result;

typedef struct train_show { /* what is shown while it runs */
  bool bar;                 /* a bar on stderr, kept up to date, if it is a terminal */
  bool lines;               /* one line an epoch on stdout */
  const char *label;        /* in front of both: "natgrad seed 1", or "" */
} train_show;

/* Whether settings and data go together, before a folder is made or memory is taken.  Told. */
int train_check(const settings *s, const data_set *d);

/* `d` is opened by the caller, who may run many with it.  CLI_OK also when stopped by a signal or
 * diverged (see the result); CLI_BAD told in one line. */
int train_run(const settings *s, const data_set *d, const train_show *show, train_result *out);
/* The same on one of several ranks, which all call it with their tables (NULL: there is one rank).  The
 * results are those of one rank with the whole batch, up to the order of sums; norms see their own rank's
 * samples, and running statistics are the mean.  Rank 0 has the folder; `show` of the others shows
 * nothing. */
int train_run_on(const ng_transport *t, const settings *s, const data_set *d,
                 const train_show *show, train_result *out);
void train_result_free(train_result *r);

/* SIGINT and SIGTERM set a flag that the loop reads between steps (checkpoint, then leave); one that comes later
 * than half a second after the first ends the process.  SIGUSR1 is counted: checkpoint, then go on. */
void train_catch_signals(void);
void train_leave_signals(void); /* there is no next step: SIGINT and SIGTERM just end the process */
bool train_interrupted(void);
int train_keep_wanted(void); /* so often, so far */

#endif
