/* checkpoint.h: the state of a run in one file, DIR/checkpoint-STEP.safetensors, and back.
 *
 *   tensor NAME                     parameters and running statistics of the network, f32
 *   tensor natgrad.average          the mean of the weights so far (--average-weights)
 *   tensor natgrad.mixup.images     the previous batch (--mixup-alpha), and
 *   tensor natgrad.mixup.targets
 *   tensor natgrad.state            the bytes of ng_save_to: statistics, inverses, momentum, moments
 *   metadata                        counters of the run, the text of config.json ("config"), the step of the
 *                                   checkpoint that it replaced ("replaces"), length and CRC-32 of log.jsonl, the
 *                                   CRC-32 of each f32 tensor ("crc32 NAME") and of the metadata ("crc32")
 *
 * With --checkpoint-parts each rank writes its own part of the library's state, DIR/checkpoint-STEP.natgrad-state with
 * the suffixes of io/part_files.h; the metadata then has "state_id" instead of natgrad.state.
 *
 * The file is written as NAME.natgrad-part, flushed and renamed, after its parts; then the previous checkpoint is
 * removed.  So a run that is killed at any moment has a complete checkpoint, or none yet.  If there are several
 * checkpoints, the one with the highest step is valid. Only regular files are read, replaced or removed. */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include "average.h"
#include "feed.h"
#include "precond.h"

enum { CHECKPOINT_MAKERS = 9, CHECKPOINT_TEXT = 128 };

typedef struct run_state {
  int64_t step;      /* steps done */
  int64_t per_epoch; /* steps of an epoch, to detect other data */
  int64_t data_crc;  /* data_compute_crc */
  double loss_sum;   /* of the epoch so far, and its counts */
  int64_t summed, correct;
  int64_t skipped, rescued, unobserved;
  int64_t skipped_in_a_row; /* since the last step that changed weights */
  double first_loss;        /* of the run's first step; 0: unknown */
  int64_t averaged;         /* number of weights in the mean */
  int64_t log_bytes;        /* length of log.jsonl */
  int64_t log_crc;          /* CRC-32 of these bytes */
  double seconds;           /* of training, as in log.jsonl */
  int64_t previous; /* step of the checkpoint that the next one replaces; -1: none.  Not saved. */
  int stations;     /* totals, in ms */
  train_station station[TRAIN_STATIONS];
  char made_by[CHECKPOINT_MAKERS][CHECKPOINT_TEXT]; /* checkpoint_set_maker */
} run_state;

void checkpoint_init(run_state *s);

/* Set `made_by`: program, machine and threads, which decide the last bits of a run. */
void checkpoint_set_maker(run_state *s);
/* Write the differences of `made_by`, as "threads 2, now 1; kernel ..."; "": none. */
void checkpoint_list_changes(const run_state *was, const run_state *now, char *text, size_t size);

/* The functions below return CLI_BAD after one line that names the file. */

/* Find the checkpoint in DIR and check that its header, config.json and log.jsonl belong together; *step is -1 if there
 * is none. `was` (initialised, or NULL) receives the settings that the run had. */
int checkpoint_find(const char *dir, int64_t *step, settings *was);
char *checkpoint_path(const char *dir, int64_t step); /* for free() */

/* The parts of a run that a checkpoint contains; the caller owns every part. */
typedef struct checkpoint {
  const char *dir;
  const run_ranks *ranks;
  nn *net;
  feed *feed;
  average *mean;
  precond *p;
  run_state *state;
} checkpoint;

/* Write the checkpoint on rank 0; `config`: the text of config.json.  Collective. */
int checkpoint_save(const checkpoint *c, const char *config, bool in_parts);
/* Load the checkpoint of `step`, after checkpoint_find on rank 0.  Other ranks get the library's state and their part
 * of the batch; share_loaded (begin.c) sends the weights.  After a failure only a part of the network may be loaded.
 * Collective. */
int checkpoint_load(const checkpoint *c, int64_t step);
/* Remove temporary files, parts that do not belong to the checkpoint of `step` (-1: none), and the checkpoint that the
 * checkpoint of `step` replaced. */
void checkpoint_sweep(const char *dir, int64_t step);
/* Remove the checkpoints of a finished run. */
void checkpoint_remove(const char *dir);

/* Read or write a file with the network and the counters only. */
int checkpoint_read_model(const char *path, nn *net, run_state *state);
int checkpoint_write_model(const char *path, const nn *net, const run_state *state);
/* Return the name of a parameter or buffer that is not finite, or NULL. */
const char *checkpoint_find_nonfinite(const nn *net);

#define CHECKPOINT_AVERAGE "average.safetensors"
/* Check that DIR/average.safetensors, which the end of a run replaces, does not exist or (`resumed`) is a regular
 * file. */
int checkpoint_check_average(const char *dir, bool resumed);
/* Return whether the file name of `path` is the name of a log, a configuration or a checkpoint of a run. */
bool checkpoint_is_run_file(const char *path);

#endif
