/* train.h: a training run, from settings to a result.
 *
 * Files: settings*.c the table of settings; begin.c set-up and resume; loop.c the steps, step.c one step; recipe.c
 * learning rate, momentum and damping of a step, lr.c and schedule.c schedules; precond.c calls natgrad.h; feed.c
 * batches, mix.c mixup and random erasing; grads.c gradients over ranks; average.c mean of the weights; checkpoint.c
 * state on disk; log.c log.jsonl; progress.c the progress bar; train.c the command.
 *
 * A step: load a batch; forward (the library observes inputs); loss; backward (the library observes output gradients);
 * ng_step_sgd or ng_step_adamw, which preconditions and updates. The methods sgd and adamw register every parameter as
 * a tensor without curvature, so all methods use the same update.
 *
 * All random numbers depend on (seed, epoch, step) only, so a checkpoint needs no state of a generator. */
#ifndef TRAIN_H
#define TRAIN_H

#include "data/data.h"
#include "nn/nn.h"
#include "settings.h"
#include "traffic.h"

typedef struct train_epoch { /* the numbers of an "epoch" line of log.jsonl */
  int64_t epoch, step;       /* counted from 1 */
  double lr;
  double train_loss, train_accuracy; /* epoch means in training mode; accuracy from 0 to 1 */
  /* results on the test or validation split; NaN: the split is empty */
  double test_loss, test_accuracy;
  double seconds; /* seconds of training so far, without tests, checkpoints and logs */
} train_epoch;

typedef struct train_number { /* a number of a line of log.jsonl */
  const char *name;
  double value;
} train_number;

/* A run has diverged if its mean training loss exceeds TRAIN_FAR * max(1, loss of the first step). */
enum { TRAIN_FAR = 1000 };

/* The effect of refresh_tolerance on a kind of statistic ("A", "G", "F" of norms, means): the number of refreshes and
 * of refreshes that were passed over; the bytes of sums that rank 0 sent and did not need to send. Totals over layers
 * and steps, including the steps before a resume. */
enum { TRAIN_KINDS = 8 };
typedef struct train_refreshed {
  char name[16];
  int64_t refreshed, passed, bytes_sent, bytes_passed;
} train_refreshed;

typedef struct train_result {
  int epochs;
  train_epoch *epoch; /* [epochs]: the epochs of the run */
  int64_t steps, skipped, rescued, unobserved;
  int64_t first; /* number of steps before this process resumed the run */
  bool stopped;  /* a signal stopped the run */
  /* the loss or a weight is not finite, the loss is far too large, or many steps in a row were skipped */
  bool diverged;
  bool output_failed; /* the run stopped because stdout is full or closed */
  char reason[128];   /* text that says why the run diverged, such as "the loss is not finite" */
  int64_t averaged;   /* number of averaged weights; 0: none, or the run is not finished */
  double average_loss, average_accuracy; /* test results of the averaged network */
  int64_t saved_step;                    /* step of the last checkpoint; -1: none */
  int stations;
  train_station station[TRAIN_STATIONS];
  int kinds; /* number of kinds of adaptive statistics */
  train_refreshed kind[TRAIN_KINDS];
  traffic traffic; /* traffic between ranks */
  /* bytes of the network; bytes of the library between steps */
  int64_t network_bytes, precond_bytes;
} train_result;

typedef struct train_output { /* what the run prints */
  bool bar;                   /* a progress bar, if stderr is a terminal */
  bool lines;                 /* print one line per epoch on stdout */
  /* prefix of the lines and of the bar, such as "natgrad seed 1", or "" */
  const char *label;
} train_output;

/* Check that settings and data fit together, before the run writes files or allocates memory. CLI_BAD: reported. */
int train_check_settings(const settings *s, const data_set *d);

/* Build the network that the settings select. *reconstructs: the target is the input. CLI_BAD: reported. */
int train_build_network(const settings *s, const data_set *d, ng_pool *pool, nn **net,
                        bool *reconstructs);
/* Open the data set and hold out the validation samples. CLI_BAD: reported. */
int train_open_data(const settings *s, data_set *d);
/* Run the training. `d` is an open data set, which may serve many runs. CLI_OK: also after a signal or divergence,
 * which the result tells. CLI_BAD: reported. */
int train_run(const settings *s, const data_set *d, const train_output *output, train_result *out);
/* Run the training on several ranks; each rank calls this function with its transport (NULL: one rank). Results equal
 * the results of one rank with the same batch, up to the order of sums; except that batch norms use the samples of
 * their own rank, and running statistics are averaged. Rank 0 writes the directory and shows progress. */
int train_run_rank(const ng_transport *t, const settings *s, const data_set *d,
                   const train_output *output, train_result *out);
void train_result_free(train_result *r);

/* Catch SIGINT and SIGTERM: the loop saves a checkpoint after the current step and ends the run. A second signal, at
 * least half a second later, ends the process at once. SIGUSR1 requests a checkpoint. */
void train_catch_signals(void);
void train_restore_signals(void); /* let SIGINT and SIGTERM end the process */
bool train_is_interrupted(void);
int train_count_requests(void); /* return the number of SIGUSR1 signals received so far */

#endif
