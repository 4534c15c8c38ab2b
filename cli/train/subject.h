/* subject.h: the trained network of a run, for commands that study or change it.
 *
 * Gradients and tests use samples without augmentation and labels without smoothing, and there is no dropout. */
#ifndef SUBJECT_H
#define SUBJECT_H

#include "checkpoint.h"
#include "feed.h"

typedef struct subject {
  settings s;
  data_set d;
  bool opened, reconstructs;
  ng_pool *pool;
  ng_context *ctx;
  nn *net;
  feed feed;
  run_state state;
  char *weights; /* path of the checkpoint; NULL: none */
} subject;

typedef struct subject_request {
  const char *dir;     /* the folder of the run */
  const char *command; /* the command that locks the folder */
  /* replaces the recorded data set, if its files have moved; NULL: not given */
  const char *data;
  const char *weights; /* a file of weights instead of the checkpoint; or NULL */
  int64_t batch;       /* samples of a batch; 0: as in the run */
} subject_request;

/* Read settings, data and weights of a run. CLI_BAD: reported. Then subject_close in any case. */
int subject_open(const subject_request *r, subject *out);
void subject_close(subject *p);
/* Check before the work begins that the file `path` of --out can be written and does not exist. CLI_BAD: reported. */
int subject_check_output(const char *path);

#endif
