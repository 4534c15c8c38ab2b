/* shard_run.h: train four linear layers, three of them sharded, on a grid of ranks: `data` model groups of `model`
 * ranks each.  Numbers are a function of (step, model group, call, layer, element), so all shards together must equal
 * whole layers on `data` ranks.  Ranks return a status; only the main thread asserts. */
#ifndef TESTS_SHARD_RUN_H
#define TESTS_SHARD_RUN_H

#include "fixture.h"
#include "ranks.h"

#include <stdbool.h>

enum { LAYERS = 4, RANKS = 8, STEPS = 3, MICRO = 2, MOST_WEIGHTS = 96, MOST_OBSERVED = 128 };

typedef struct sharded_layer {
  const char *name;
  int32_t axis, bias;
  int64_t in, out, positions;
} sharded_layer;
extern const sharded_layer layer[LAYERS];

typedef struct shard_run {
  const char *
      options; /* after a '|': the fault of rank `bad_rank` in the first call of step 1: rows, shape or nan */
  int32_t data, model;
  bool data_adjacent; /* adjacent ranks form a data group; false: a model group */
  bool bias;          /* false: no layer has a bias */
  bool last;          /* set ng_batch.last in the last call of a step */
  bool rows_first;
  bool whole;               /* no layer is sharded; for model = 1 */
  bool skewed;              /* model groups but the first have other shards */
  bool even;                /* shards as ng_plan_shard defines them */
  uint32_t unsharded;       /* bit r: rank r has no model group and no shards */
  int first_step;           /* step to begin with */
  const char *save, *parts; /* after step `first_step` + 1: save to one file, save in parts */
  const char *load,
      *resave; /* before the first step: load the state `load`, save to the file `resave` */
  double (*start)[MOST_WEIGHTS]; /* whole weights to begin with, the bias in the last column */
  ng_status (*check)(const ng_precond *p, int32_t rank, void *arg); /* called after the last step */
  void *check_arg;
  int32_t bad_rank; /* the rank with the fault */
  /* number of the collective that fails on rank `bad_rank`, in the world and in the model group; 0: none */
  int32_t fail[2];
  int32_t failing_alloc; /* allocation after ng_ready that fails on rank `bad_rank` */
  bool alloc_failed;     /* set if the run made that allocation */
  ranks_grid grid;
  double D[STEPS][LAYERS][MOST_WEIGHTS];
  /* the rank's shards of P, or its weights; then the bias */
  float out[RANKS][STEPS][LAYERS][MOST_WEIGHTS];
  double nu[RANKS][STEPS];
  ng_status status[RANKS][STEPS], observed[RANKS][STEPS];
  char message[RANKS][512];
} shard_run;

/* The sizes of a rank's shard, and its first row and column. */
typedef struct shard {
  int64_t in, out, row, col;
} shard;

int32_t model_group_of(const shard_run *x, int32_t rank);
shard shard_of(const shard_run *x, int32_t rank, int i);
bool has_bias(const shard_run *x, int i);
int64_t sample_count(int32_t group, int64_t call);
int64_t position_count(int i); /* return the number of positions of layer i */
double observed_value(int32_t group, int64_t t, int64_t call, int i, bool grad, int64_t k);
double initial_weight(int i, int64_t k);
/* Copy a rank's weights or gradients to their place in the whole [out, in (+ 1)], and back; in a shard the bias follows
 * the weights. */
void store_shard(const shard_run *x, int32_t rank, int i, const float *from, double *whole);
void copy_shard(const shard_run *x, int32_t rank, int i, const double *whole, float *to);

bool has_ranks(int32_t ranks); /* return whether there are that many ranks; over MPI: processes */
/* Two model groups of two ranks, biases, rows first, no fault. */
shard_run default_run(const char *options);
shard_run *new_run(const shard_run *how); /* a copy; free() */
ng_status train(shard_run *x, ng_status each[RANKS]);
shard_run *trained_run(
    const shard_run *how); /* call new_run and train; fail the test unless the status is NG_OK */

#endif
