/* plan.h: estimate the cost of a strategy: bytes by the library's plan of each rank, times by a model of the
 * machine. */
#ifndef CLI_PLAN_H
#define CLI_PLAN_H

#include "common/cli.h"
#include "shapes.h"

#include <stdint.h>

/* Rates of one rank. A message of n bytes takes latency + n / bandwidth seconds. */
typedef struct plan_machine {
  double gemm, solve;        /* rate of matrix products and rate of factorisations, in FLOP/s */
  double bandwidth, latency; /* bytes/s, s                                             */
} plan_machine;

/* A way to distribute a step over ranks: options of the library, and the name of its row in the table. */
typedef struct plan_strategy {
  char name[64], options[240];
  double fraction; /* grad_worker_fraction */
  bool is_natgrad; /* method natgrad, not a published program */
} plan_strategy;

enum {
  PLAN_GRADIENT, /* the sum of gradients over ranks, as in data-parallel training without natgrad */
  PLAN_OBSERVE,
  PLAN_SUMS,
  PLAN_SOLVE,
  PLAN_SHARE,
  PLAN_APPLY,
  PLAN_DELIVER,
  PLAN_WEIGHTS,
  PLAN_SMALL,  /* the small messages check, agree and traces */
  PLAN_SHARDS, /* all-gathers of sharded layers in model groups */
  PLAN_PARTS
};
extern const char *const plan_part_name[PLAN_PARTS];

typedef struct plan_cost {
  int64_t held_most,
      held_least;   /* largest and smallest bytes of curvature, directions and moments on a rank */
  double held_mean; /* mean of these bytes over the ranks */
  ng_rank_plan largest;  /* each field is the largest value of any rank in a step with all work */
  int64_t shards_bytes;  /* sharded layers: gradients of a step, observations of a micro-batch */
  double sent;           /* bytes that a rank passes to collectives in a step, mean over steps */
  double ms[PLAN_PARTS]; /* milliseconds of each part of a step, mean over steps */
  double compute, added; /* ms of forward and backward; ms of all parts but PLAN_GRADIENT */
  double step;           /* ms: compute + PLAN_GRADIENT + added */
} plan_cost;

typedef struct plan_task {
  const shapes *model;
  const cli_args *args; /* options of the command line, for strategies of natgrad; or NULL */
  int64_t group_ranks;  /* ranks of a model group; 1: layers are not sharded */
  int64_t batch;        /* samples of a rank (or of a model group) in a step */
  int64_t period[2];    /* stat_period, solve_period */
  plan_machine machine;
} plan_task;

/* Return the seconds of `messages` messages with `bytes` bytes in all over `ranks` ranks: sum: of all-reduces, by the faster
 * of two algorithms; broadcast: of broadcasts. */
double plan_estimate_sum(const plan_machine *m, int32_t ranks, double bytes, double messages);
double plan_estimate_broadcast(const plan_machine *m, int32_t ranks, double bytes, double messages);

/* Measure latency and bandwidth by all-reduces over the ranks of t, at least two. Collective. CLI_BAD: reported. */
int plan_measure_link(const ng_transport *t, plan_machine *m);
/* Compute latency and bandwidth from two measurements: `small` is the seconds of an all-reduce of one number, `large`
 * the seconds of an all-reduce of `bytes` bytes. */
void plan_fit_link(int32_t ranks, double small, double large, double bytes, plan_machine *m);

/* Compute the cost of strategy s on `ranks` ranks.  CLI_BAD: reported. */
int plan_estimate_cost(const plan_task *w, const plan_strategy *s, int32_t ranks, plan_cost *out);

#endif
