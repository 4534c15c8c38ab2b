/* train.h: one training run, from settings to a result.
 *
 * Files: settings*.c the table of settings; begin.c set-up and resume; loop.c the steps, step.c one step; recipe.c
 * learning rate, momentum and damping of a step, lr.c schedules; precond.c calls natgrad.h; feed.c batches, mix.c
 * mixup and random erasing; grads.c gradients over ranks; average.c mean of the weights; checkpoint.c state on disk;
 * log.c log.jsonl; progress.c the bar; train.c the command.
 *
 * A step: batch -> forward (inputs observed) -> loss -> backward (output gradients observed) -> ng_step_sgd or
 * ng_step_adamw, which preconditions and updates. The methods sgd and adamw register every parameter as a tensor,
 * so all methods share one update.
 *
 * All random numbers depend on (seed, epoch, step) only, so a checkpoint needs no generator state. */
#ifndef TRAIN_H
#define TRAIN_H

#include "data/data.h"
#include "nn/nn.h"
#include "settings.h"
#include "traffic.h"

typedef struct train_epoch { /* an "epoch" line of log.jsonl */
  int64_t epoch, step;       /* counted from 1 */
  double lr;
  double train_loss, train_accuracy; /* means over the epoch, in training mode; accuracy 0..1 */
  double test_loss, test_accuracy;   /* on the test or validation split; NaN if it is empty */
  double seconds; /* of training so far, without evaluation, checkpoints and logs */
} train_epoch;

typedef struct train_number { /* a member of a line of log.jsonl */
  const char *name;
  double value;
} train_number;

/* A run has diverged if its mean training loss exceeds this factor times max(1, loss of the first step). */
enum { TRAIN_FAR = 1000 };

/* The effect of refresh_tolerance on a kind of statistic ("A", "G", "F" of norms, means): the number of refreshes and
 * of refreshes passed over, and the bytes of sums that rank 0 sent or did not need to send. Totals over layers and
 * steps, including the steps before a resume. */
enum { TRAIN_KINDS = 8 };
typedef struct train_refreshed {
  char name[16];
  int64_t refreshed, passed, bytes_sent, bytes_passed;
} train_refreshed;

typedef struct train_result {
  int epochs;
  train_epoch *epoch; /* [epochs] */
  int64_t steps, skipped, rescued, unobserved;
  int64_t first;      /* steps done before this run resumed */
  bool stopped;       /* stopped by a signal */
  bool diverged;      /* the loss or a weight is not finite, or many steps in a row were skipped */
  bool output_failed; /* stopped because stdout is full or closed */
  char reason[128];   /* diverged: "the loss is not finite" */
  int64_t averaged;   /* number of averaged weights; 0: none, or the run is not over */
  double average_loss, average_accuracy; /* of the averaged network, on the test split */
  int64_t saved_step;                    /* step of the last checkpoint; -1: none */
  int stations;
  train_station station[TRAIN_STATIONS];
  int kinds; /* of adaptive statistics */
  train_refreshed kind[TRAIN_KINDS];
  traffic traffic;                      /* of several ranks */
  int64_t network_bytes, precond_bytes; /* memory of the model; of the library between steps */
} train_result;

typedef struct train_output { /* output during the run */
  bool bar;                   /* a progress bar on stderr, if it is a terminal */
  bool lines;                 /* one line per epoch on stdout */
  const char *label;          /* before both: "natgrad seed 1", or "" */
} train_output;

/* Check that settings and data fit, before the run takes a directory or memory. CLI_BAD after a message. */
int train_check(const settings *s, const data_set *d);

/* Build the network of the settings; *reconstructs: the target is the input. CLI_BAD after a message. */
int train_network(const settings *s, const data_set *d, ng_pool *pool, nn **net,
                  bool *reconstructs);
/* Open the data set and hold out the validation samples. CLI_BAD after a message. */
int train_open(const settings *s, data_set *d);
/* Run the training. `d` is open and may serve many runs. CLI_OK also after a signal or divergence (see the
 * result); CLI_BAD after a message. */
int train_run(const settings *s, const data_set *d, const train_output *output, train_result *out);
/* Run the training on several ranks; each rank calls this function with its transport (NULL: one rank). Results equal
 * the results of one rank with the whole batch, up to the order of sums; batch norms use the samples of their own rank,
 * running statistics are averaged. Rank 0 has the directory and shows progress. */
int train_run_on(const ng_transport *t, const settings *s, const data_set *d,
                 const train_output *output, train_result *out);
void train_result_free(train_result *r);

/* SIGINT and SIGTERM set a flag that the loop reads between steps: the loop saves a checkpoint and ends. A second
 * signal at least half a second later ends the process at once. SIGUSR1 requests a checkpoint. */
void train_catch_signals(void);
void train_restore_signals(void); /* SIGINT and SIGTERM end the process again */
bool train_is_interrupted(void);
int train_count_requests(void); /* number of SIGUSR1 received */

#endif
