/* replay.h: the job of `natgrad replay` (replay.c) and its parts. */
#ifndef CLI_REPLAY_H
#define CLI_REPLAY_H

#include "recording.h"

typedef struct replay_job {
  const recording *r;
  const ng_options *options; /* options of the run that writes preconditioned gradients */
  const ng_options *fused; /* options of the run that updates weights; NULL: no recorded updates */
  const char *linalg;
  double lr;     /* of the run that writes preconditioned gradients */
  bool low_rank; /* the low-rank iteration starts from the recorded matrices */
  bool feedback; /* the error feedback is compared */
} replay_job;

/* DIRECTION_ERRORS: errors of preconditioned gradients; STATE_ERRORS: of weights and momentum, or of the error
 * feedback. */
enum { DIRECTION_ERRORS, STATE_ERRORS, ERROR_KINDS };

/* Arrays that are bound for a weight or bias: its gradient, and its value (NULL: not bound). */
typedef struct replay_arrays {
  float *grad, *value;
} replay_arrays;

/* One rank's run. */
typedef struct replay_rank {
  const replay_job *job;
  int rank;
  bool fused;                  /* this run updates weights and compares them */
  double *errors[ERROR_KINDS]; /* errors, [step][layer] */
  replay_arrays (*arrays)[2];  /* [layer][0: weight, 1: bias], of the present run */
  int64_t rescued;             /* steps with status NG_RESCUED */
} replay_rank;

replay_rank *
replay_ranks_create(const replay_job *job); /* [job->r->ranks]                        */
void replay_ranks_free(replay_rank *ranks, int count);
/* replay_window.c: check the arrays init.P.q, or sT.P.error of each parameter P.  *some: the recording has such an
 * error array.  Return 0; 2: reported. */
int replay_check_start(const recording *r, const char *path, int64_t rank);
int replay_check_feedback(const recording *r, const char *path, bool *some);
/* Replace the start of the low-rank iteration, which the library drew, by the recorded start.  The recording must be of
 * parameters and of one rank. */
ng_status replay_set_start(const recording *r, ng_precond *p);
/* Set error[layers] to the errors of the error feedback after a step. */
ng_status replay_compare_feedback(const recording *r, ng_precond *p, int step, double *error);
/* Raise *gap to max |ours - recorded| and *scale to max |recorded| of n numbers; a non-finite difference gives an
 * infinite gap. */
void replay_add_error(const float *ours, const float *recorded, int64_t n, double *gap,
                      double *scale);
/* Copy the n numbers of field `name` of the state; set *there to false if the state has no such field. */
ng_status replay_read_field(ng_precond *p, const char *name, float *to, int64_t n, bool *there);
/* Run all steps on all ranks; `fused`: the steps update weights.  Return 0; 2: reported. */
int replay_run(const replay_job *job, replay_rank *ranks, bool fused);

#endif
