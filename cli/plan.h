/* plan.h: the cost of a strategy: bytes from the library's own plan of every rank, times from a model of the
 * machine. */
#ifndef CLI_PLAN_H
#define CLI_PLAN_H

#include "common/cli.h"
#include "shapes.h"

#include <stdint.h>

/* Rates of one rank.  A message takes latency + bytes / bandwidth seconds. */
typedef struct plan_machine {
  double gemm, solve;        /* FLOP/s: of matrix products, of factorisations          */
  double bandwidth, latency; /* bytes/s, s                                             */
} plan_machine;

/* A way to distribute a step: options of the library, and the name of its row in the table. */
typedef struct plan_strategy {
  char name[64], options[240];
  double fraction; /* grad_worker_fraction */
  bool is_natgrad; /* a row of natgrad, not of a published program */
} plan_strategy;

enum {
  PLAN_GRADIENT, /* sums of gradients, as in plain data-parallel training */
  PLAN_OBSERVE,
  PLAN_SUMS,
  PLAN_SOLVE,
  PLAN_SHARE,
  PLAN_APPLY,
  PLAN_DELIVER,
  PLAN_WEIGHTS,
  PLAN_SMALL,  /* check, agree and traces */
  PLAN_SHARDS, /* shards of layers, gathered in model groups */
  PLAN_PARTS
};
extern const char *const plan_part_name[PLAN_PARTS];

typedef struct plan_cost {
  int64_t held_most, held_least; /* bytes of curvature, directions and moments on a rank */
  double held_mean;              /* mean of these bytes over ranks */
  ng_rank_plan largest;          /* each field: the largest value of any rank in a full step */
  int64_t shards_bytes;  /* sharded layers: gradients of a step, observations of a micro-batch */
  double sent;           /* bytes that a rank passes to collectives, the mean over steps */
  double ms[PLAN_PARTS]; /* milliseconds of each part, the mean over steps */
  double compute, added; /* ms: forward and backward; the sum of all parts except PLAN_GRADIENT */
  double step;           /* ms: compute + PLAN_GRADIENT + added */
} plan_cost;

typedef struct plan_task {
  const shapes *model;
  const cli_args *args; /* the user's options of the library, for rows of natgrad; NULL: none */
  int64_t group_ranks;  /* ranks of a model group; 1: no sharded layer */
  int64_t batch;        /* samples of a step on a rank, or on a model group */
  int64_t period[2];    /* stat_period, solve_period */
  plan_machine machine;
} plan_task;

/* Return the seconds of `messages` messages with `bytes` bytes in all over `ranks` ranks: an all-reduce by the faster
 * of two algorithms; a reduce-scatter; a broadcast. */
double plan_estimate_sum(const plan_machine *m, int32_t ranks, double bytes, double messages);
double plan_estimate_scatter(const plan_machine *m, int32_t ranks, double bytes, double messages);
double plan_estimate_broadcast(const plan_machine *m, int32_t ranks, double bytes, double messages);

/* Measure latency and bandwidth by all-reduces over the ranks of t (at least two); all ranks must call this function.
 * CLI_BAD: reported. */
int plan_measure_link(const ng_transport *t, plan_machine *m);
/* Compute latency and bandwidth from the seconds of an all-reduce of one number (`small`) and of `bytes` (`large`). */
void plan_fit_link(int32_t ranks, double small, double large, double bytes, plan_machine *m);

/* Compute the cost of strategy s on `ranks` ranks.  CLI_BAD: reported. */
int plan_estimate_cost(const plan_task *w, const plan_strategy *s, int32_t ranks, plan_cost *out);

#endif
