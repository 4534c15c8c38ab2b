/* replay.h: data and functions that the files of `natgrad replay` share. */
#ifndef CLI_REPLAY_H
#define CLI_REPLAY_H

#include "recording.h"

typedef struct replay_job {
  const recording *r;
  const char *path;          /* of the recording, for messages */
  const ng_options *options; /* options of the run that writes preconditioned gradients */
  const ng_options *fused; /* options of the run that updates weights; NULL: no recorded updates */
  const char *linalg;
  double lr;     /* learning rate of the run that writes preconditioned gradients */
  bool low_rank; /* start the low-rank iteration from the recorded matrices */
  bool feedback; /* compare the error feedback */
} replay_job;

/* Kinds of errors: of preconditioned gradients (directions), and of state: weights and momentum, or error feedback. */
enum { DIRECTION_ERRORS, STATE_ERRORS, ERROR_KINDS };

/* The arrays bound for a weight or bias: its gradient, and its value (NULL: not bound). */
typedef struct replay_arrays {
  float *grad, *value;
} replay_arrays;

/* The run of one rank. */
typedef struct replay_rank {
  const replay_job *job;
  int rank;
  bool fused;                  /* this run updates weights and compares them */
  double *errors[ERROR_KINDS]; /* [step][layer] */
  replay_arrays (*arrays)[2];  /* [layer][0: weight, 1: bias] */
  int64_t rescued;             /* number of steps with status NG_RESCUED */
} replay_rank;

replay_rank *replay_ranks_create(const replay_job *job);
void replay_ranks_free(replay_rank *ranks, int count);
/* replay_window.c: check the array init.P.q (replay_check_start) or the arrays sT.P.error (replay_check_feedback) of
 * each parameter P. *some is true if there is an array sT.P.error. Return 0; 2: reported. */
int replay_check_start(const recording *r, const char *path, int64_t rank);
int replay_check_feedback(const recording *r, const char *path, bool *some);
/* Replace the matrices from which the low-rank iteration starts, which the library drew at random, by the recorded
 * ones. The recording must be of parameters and of one rank. */
ng_status replay_set_start(const recording *r, ng_precond *p);
/* replay_state.c: save the state, let `edit` change its arrays, and load the state. An edit returns whether it has
 * changed `data`, the elements of the array `name`. */
typedef bool (*replay_edit)(void *user, const char *name, float *data, const int64_t size[2]);
ng_status replay_edit_state(ng_precond *p, replay_edit edit, void *user);
/* Load the recorded state after `step`; compare the state after `step`, as replay_compare_feedback. */
ng_status replay_load_state(const recording *r, ng_precond *p, int step);
/* Divide a direction of the library by the factor that the recorded directions lack. */
void replay_scale_direction(const recording *r, int step, int layer, float *direction);
ng_status replay_compare_state(const recording *r, ng_precond *p, int step, double *error);
/* Compare the error feedback after a step; set error[layers] to the error of each parameter. */
ng_status replay_compare_feedback(const recording *r, ng_precond *p, int step, double *error);
/* Set *gap to the maximum of *gap and |ours - recorded| over n numbers, and *scale to the maximum of *scale and
 * |recorded|. If a difference is not finite, *gap becomes infinite. */
void replay_add_error(const float *ours, const float *recorded, int64_t n, double *gap,
                      double *scale);
/* Copy the n numbers of the field `name` of the library's state. *there is false if there is no such field. */
ng_status replay_read_field(ng_precond *p, const char *name, float *to, int64_t n, bool *there);
/* Run all steps on all ranks. `fused`: the steps update weights. Return 0; 2: reported. */
int replay_run(const replay_job *job, replay_rank *ranks, bool fused);

#endif
