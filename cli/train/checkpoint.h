/* checkpoint.h: save and load the state of a run in one file, DIR/checkpoint-STEP.safetensors.
 *
 *   tensor NAME                     parameters and running statistics of the network, f32
 *   tensor natgrad.average          the mean of the weights so far (--average-weights)
 *   tensor natgrad.mixup.images     images of the previous batch (--mixup-alpha)
 *   tensor natgrad.mixup.targets    targets of the previous batch
 *   tensor natgrad.state            the bytes of ng_save_to: statistics, inverses, momentum, moments
 *   metadata                        counters of the run; the text of config.json ("config"); the step of the checkpoint
 *                                   that this one replaced ("replaces"); length and CRC-32 of log.jsonl; the CRC-32 of
 *                                   each f32 tensor ("crc32 NAME") and of the metadata ("crc32")
 *
 * With --checkpoint-parts, each rank writes its own part of the library's state, DIR/checkpoint-STEP.natgrad-state with
 * the suffixes of io/part_files.h. Then the metadata has "state_id" instead of the tensor natgrad.state.
 *
 * The parts are written first. Then the file is written as NAME.natgrad-part, flushed and renamed; then the previous
 * checkpoint is removed. So a run that is killed at any moment leaves a complete checkpoint, or none if there was none
 * before. If there are several checkpoints, the one with the highest step is valid. Only regular files are read,
 * replaced or removed. */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include "average.h"
#include "feed.h"
#include "precond.h"

enum { CHECKPOINT_MAKERS = 9, CHECKPOINT_TEXT = 128 };

typedef struct run_state {
  int64_t step;      /* steps done */
  int64_t per_epoch; /* steps of an epoch; another number means other data */
  int64_t data_crc;  /* data_compute_crc */
  double loss_sum;   /* sum of the losses of this epoch so far */
  /* number of steps whose losses are in loss_sum; number of correct samples in these steps */
  int64_t summed, correct;
  int64_t skipped, rescued, unobserved;
  int64_t skipped_in_a_row; /* skipped steps since the last counted step */
  double first_loss;        /* loss of the run's first step; 0: unknown */
  int64_t averaged;         /* number of averaged weights (average.h) */
  int64_t log_bytes;        /* length of log.jsonl */
  int64_t log_crc;          /* CRC-32 of these log_bytes bytes */
  double seconds;           /* seconds of training, as in log.jsonl */
  /* step of the checkpoint that the next checkpoint replaces; -1: none; not written to the file */
  int64_t previous;
  int stations; /* number of stations; the next two arrays have their total times in ms */
  train_station station[TRAIN_STATIONS];
  char made_by[CHECKPOINT_MAKERS][CHECKPOINT_TEXT]; /* set by checkpoint_set_maker */
} run_state;

void checkpoint_init(run_state *s);

/* Set `made_by` to the program, the machine and the number of threads, on which the last bits of results depend. */
void checkpoint_set_maker(run_state *s);
/* Write how `made_by` differs, as "threads 2, now 1; kernel ..."; "" if it does not differ. */
void checkpoint_list_changes(const run_state *was, const run_state *now, char *text, size_t size);

/* The functions below return CLI_BAD after a message that names the file. */

/* Find the checkpoint in DIR, and check that its header, config.json and log.jsonl belong together. *step is -1 if
 * there is none. `was` (initialised, or NULL) gets the settings of the saved run. */
int checkpoint_find(const char *dir, int64_t *step, settings *was);
char *checkpoint_path(const char *dir, int64_t step); /* the caller calls free() */

/* The objects of a run whose state a checkpoint contains. The caller owns them. */
typedef struct checkpoint {
  const char *dir;
  const run_ranks *ranks;
  nn *net;
  feed *feed;
  average *mean;
  precond *p;
  run_state *state;
} checkpoint;

/* Save a checkpoint; rank 0 writes the file. `config`: the text of config.json. Collective. */
int checkpoint_save(const checkpoint *c, const char *config, bool in_parts);
/* Load the checkpoint of `step`, after checkpoint_find on rank 0. Collective. Other ranks get the library's state and
 * their part of the mixup batch; share_loaded (begin.c) sends weights. After a failure, the network may be half
 * loaded. */
int checkpoint_load(const checkpoint *c, int64_t step);
/* Remove temporary files, parts of a state that do not belong to the checkpoint of `step` (-1: none), and the
 * checkpoint that this checkpoint replaced. */
void checkpoint_remove_leftovers(const char *dir, int64_t step);
/* Remove all checkpoints of a finished run. */
void checkpoint_remove_all(const char *dir);

/* Read or write a file that has only the network and the counters. */
int checkpoint_read_model(const char *path, nn *net, run_state *state);
int checkpoint_write_model(const char *path, const nn *net, const run_state *state);
/* Return the name of a parameter or buffer that is not finite, or NULL. */
const char *checkpoint_find_nonfinite(const nn *net);

#define CHECKPOINT_AVERAGE "average.safetensors"
/* Check DIR/average.safetensors, which the end of the run writes: absent, or if `resumed` a regular file. */
int checkpoint_check_average(const char *dir, bool resumed);
/* Return true if `path` has the file name of a log, a configuration or a checkpoint of a run. */
bool checkpoint_is_run_file(const char *path);

#endif
