/* replay.h: what `natgrad replay` (replay.c) hands to the part that plays a recording (replay_run.c). */
#ifndef CLI_REPLAY_H
#define CLI_REPLAY_H

#include "recording.h"

typedef struct replay_job {
  const recording *r;
  const ng_options *options; /* of a step that writes gradients ...                              */
  const ng_options *fused;   /* ... and of one that updates weights; NULL: the recording has none */
  const char *linalg;
  double lr;
  bool drawn; /* low rank, which begins with what the program drew */
  bool kept;  /* error feedback is recorded, and there is some here */
  bool moved; /* of parameters: their weights after each step are recorded */
} replay_job;

/* One rank's run. */
typedef struct replay_rank {
  const replay_job *job;
  int rank;
  ng_transport transport;
  bool fused; /* weights are updated, and compared */
  double *error,
      *updated; /* [step][layer]: of preconditioned gradients; of weights and momentum, or of what is kept */
  double *moved; /* [step][layer]: of parameters' weights after the step */
  float **grad, **bias;
  float **weight, **bias_weight; /* of parameters: as they were before the step */
  int64_t rescued;               /* steps that said NG_RESCUED */
  ng_status status;
  char message[512];
} replay_rank;

replay_rank *replay_ranks(const replay_job *job); /* [job->r->ranks]                        */
void replay_ranks_free(replay_rank *ranks, int count, int layers);
/* replay_drawn.c: is all there that low rank begins with?  0, or 2 with a line told.  The library's own
 * beginning replaced by it; one rank, of parameters. */
int replay_check_drawn(const recording *r, const char *path, int64_t rank);
ng_status replay_hand_over(const recording *r, ng_precond *p);
/* replay_kept.c: is error feedback recorded, as it must be?  0, or 2 with a line told.  Of a step: [layers] how far ours
 * is from it. */
int replay_check_kept(const recording *r, const char *path, bool *some);
ng_status replay_compare_kept(const recording *r, ng_precond *p, int step, double *apart);
/* replay_weights.c: do recorded weights go on from step to step, and is what low rank begins with made of them?  0, or 2
 * with a line told.  Of a step: [layers] how far our direction takes them from where they went. */
int replay_check_weights(const recording *r, const char *path, bool *there);
void replay_compare_weights(const recording *r, int step, double lr, float *const *direction,
                            double *apart);
/* The n numbers of a field of the state, f32, into `to`; *there is false, and `to` as it was, if the state has no such. */
ng_status replay_field(ng_precond *p, const char *name, float *to, int64_t n, bool *there);
/* Plays it on all ranks; 0, or 2 with a line told. */
int replay_run(const replay_job *job, replay_rank *ranks, bool fused);

#endif
