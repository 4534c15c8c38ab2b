/* checkpoint.h: a run's state in DIR/checkpoint/, and back.
 *
 *   model-<step>.safetensors    parameters and buffers by name; in its metadata what follows
 *   precond-<step>.safetensors  the library's own (ng_save), momentum and moments included; with
 *                               --checkpoint-parts rank 0's, beside those of the others (parts.h)
 *   mixup-<step>.safetensors    with mixup, the batch before (mix.h)
 *   average-<step>.safetensors  once weights are averaged, their mean (average.h)
 *   latest.json                 which of them count, and the checksums that hold it, config.json and
 *                               log.jsonl together (manifest.h)
 *
 * They are written as model.natgrad-next and so on, complete on the disk before latest.json says so; then they
 * get their names, and those of the checkpoint before go.  So a run killed at any moment has a whole checkpoint
 * (or none yet), a file under its own name was in a latest.json once, and no other file is removed.
 * Links are not followed: what is none of these files is refused. */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include "average.h"
#include "manifest.h"
#include "feed.h"
#include "precond.h"

typedef struct run_state {
  int64_t step;      /* so many are done */
  int64_t per_epoch; /* steps of an epoch, to see whether the data is the same */
  int64_t data_crc;  /* data_checksum */
  double loss_sum;   /* of the epoch so far, and its counts */
  int64_t summed, correct;
  int64_t skipped, rescued, unobserved;
  int64_t in_a_row;  /* skipped ones since the last step that counted */
  double first_loss; /* of the run's first step; 0: not known */
  manifest files;    /* of the checkpoint made or read last; for the next one: config, log, times */
} run_state;

void checkpoint_init(run_state *s);

/* All CLI_BAD, told in one line that names the file. */

/* Is there a checkpoint in DIR, with all that belongs to it as it was?  Anything less than all of it is
 * an error.  Finishes what a run that was killed left between latest.json and the names. */
int checkpoint_find(const char *dir, bool *there);
/* Rank 0 of `ranks` whose state is in parts; 1: it is not. */
int checkpoint_save(const char *dir, const nn *net, const feed *f, const average *mean, precond *p,
                    int32_t ranks, run_state *state);
/* What the other ranks do meanwhile: the part of each, if the state is in parts, and theirs of the batch before; and
 * when rank 0 loads the state of a step. */
int checkpoint_save_part(const char *dir, const feed *f, precond *p, bool in_parts);
int checkpoint_load_part(const char *dir, feed *f, precond *p, int64_t step);
/* After checkpoint_find.  After a failure the network may be half loaded. */
int checkpoint_load(const char *dir, nn *net, feed *f, average *mean, precond *p, run_state *state);
/* The network alone: that of a checkpoint, after checkpoint_find; a file as model-<step>.safetensors. */
int checkpoint_load_model(const char *dir, nn *net, run_state *state);
int checkpoint_step(const char *dir, int64_t *step); /* of the one that is there */
/* *left_out: damaged_text of the run, for free(), NULL: there is none; or NULL: nobody asks. */
int checkpoint_read_model(const char *path, nn *net, run_state *state, char **left_out);
/* `averaged`: of how many weights the network's are the mean, 0: of none; left_out: damaged_text or NULL. */
int checkpoint_write_model(const char *path, const nn *net, const run_state *state,
                           int64_t averaged, const char *left_out);
/* config.json, whose checksum is that of state->files, is about to become another. */
int checkpoint_config(const char *dir, run_state *state, uint32_t next);
/* The name of a parameter or buffer that is not finite, or NULL. */
const char *checkpoint_lost(const nn *net);
/* Removes what a killed save left behind, and the files of the checkpoint before. */
void checkpoint_tidy(const char *dir, const manifest *m);
/* Removes a checkpoint that nobody needs any more, and the folder if nothing else is in it. */
void checkpoint_remove(const char *dir);

#endif
