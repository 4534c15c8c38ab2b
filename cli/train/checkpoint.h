/* checkpoint.h: a run's state in DIR/checkpoint/, and back.
 *
 *   model-<step>.safetensors    parameters and buffers by name; in its metadata what follows
 *   precond-<step>.safetensors  the library's own (ng_save), momentum and moments included
 *   latest.json                 {"schema": 1, "step": N}: the pair that counts
 *
 * The pair is complete on the disk before latest.json names it, and the one before goes only then:
 * a run killed at any moment has a whole checkpoint, unless it has none yet. */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include "precond.h"

typedef struct run_state {
  int64_t step;      /* so many are done */
  int64_t per_epoch; /* steps of an epoch, to see whether the data is the same */
  int64_t data_crc;  /* data_checksum */
  int64_t log_bytes; /* of log.jsonl */
  double loss_sum;   /* of the epoch so far, and its counts */
  int64_t summed, correct;
  int64_t skipped, rescued, unobserved;
  double seconds;
  train_station station[TRAIN_STATIONS];
  int stations;
} run_state;

/* All CLI_BAD, told in one line. */
bool checkpoint_exists(const char *dir);
int checkpoint_save(const char *dir, const nn *net, precond *p, const run_state *state);
/* An error if there is none.  After a failure the network may be half loaded. */
int checkpoint_load(const char *dir, nn *net, precond *p, run_state *state);
/* Removes all but the pair of `step`: a run killed between latest.json and this leaves more. */
void checkpoint_tidy(const char *dir, int64_t step);

#endif
