/* replay.h: the job of `natgrad replay` (replay.c) and its parts. */
#ifndef CLI_REPLAY_H
#define CLI_REPLAY_H

#include "recording.h"

typedef struct replay_job {
  const recording *r;
  const ng_options *options; /* for steps that write gradients                                   */
  const ng_options *fused;   /* for steps that update weights; NULL: none recorded                */
  const char *linalg;
  double lr;
  bool low_rank; /* low rank: start from the recorded matrices */
  bool feedback; /* compare the error feedback */
} replay_job;

/* Errors of each step and layer: of preconditioned gradients; of weights and momentum, or of the error feedback. */
enum { OF_DIRECTION, OF_STATE, COMPARED };

/* Bound memory of a weight or bias: its gradient, and its value or NULL. */
typedef struct replay_arrays {
  float *grad, *value;
} replay_arrays;

/* One rank's run. */
typedef struct replay_rank {
  const replay_job *job;
  int rank;
  bool fused;                 /* the step updates weights, which are compared */
  double *cells[COMPARED];    /* [step][layer] */
  replay_arrays (*arrays)[2]; /* [layer]: weight, bias */
  int64_t rescued;            /* steps with status NG_RESCUED */
} replay_rank;

replay_rank *replay_ranks(const replay_job *job); /* [job->r->ranks]                        */
void replay_ranks_free(replay_rank *ranks, int count, int layers);
/* replay_window.c.  The checks return 0, or 2 with one line reported. */
int replay_check_start(const recording *r, const char *path, int64_t rank);
int replay_check_feedback(const recording *r, const char *path, bool *some);
/* Replace the library's own start of the low-rank iteration by the recorded one; one rank, of parameters. */
ng_status replay_set_start(const recording *r, ng_precond *p);
/* Errors of one step: [layers]. */
ng_status replay_compare_feedback(const recording *r, ng_precond *p, int step, double *error);
/* max |ours - recorded| and max |recorded|, joined to *gap and *scale; a NaN is an infinite gap. */
void replay_measure(const float *ours, const float *recorded, int64_t n, double *gap,
                    double *scale);
/* Copy the n numbers of a field of the state; *there is false if the state has no such field. */
ng_status replay_field(ng_precond *p, const char *name, float *to, int64_t n, bool *there);
/* Run all steps on all ranks; 0, or 2: reported. */
int replay_run(const replay_job *job, replay_rank *ranks, bool fused);

#endif
