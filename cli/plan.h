/* plan.h: the cost of a strategy: bytes from the library's own plan of every rank, times from a model of the machine. */
#ifndef CLI_PLAN_H
#define CLI_PLAN_H

#include "common/cli.h"
#include "shapes.h"

#include <stdint.h>

/* Rates of one rank; a message takes latency + bytes / bandwidth. */
typedef struct plan_machine {
  double gemm, solve;        /* FLOP/s: of matrix products, of factorisations          */
  double bandwidth, latency; /* bytes/s, s                                             */
} plan_machine;

/* A way to distribute a step: options, and a name for the table. */
typedef struct plan_strategy {
  char name[64], options[240];
  double fraction;
  bool ours; /* a row of natgrad */
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

typedef struct plan_answer {
  int64_t held_most, held_least; /* bytes of curvature and directions on a rank */
  double held_mean;
  ng_rank_plan most; /* the largest bytes and messages of a rank, field by field, when due */
  int64_t
      shards_bytes; /* shards of gradients in a step, and of the observations of a micro-batch */
  double sent;      /* bytes that a rank passes to collectives, the mean over steps */
  double ms[PLAN_PARTS]; /* of a step, the mean over steps                               */
  double compute, added; /* ms: forward and backward; all parts without the gradients    */
  double step;           /* ms: compute, gradients, added                              */
} plan_answer;

typedef struct plan_wish {
  const shapes *model;
  const cli_args *args; /* options of the library for rows of natgrad; NULL: none */
  int64_t members;      /* ranks of a model group; 1: no sharded layer */
  int64_t batch;        /* samples of a rank, or of a model group */
  int64_t every[2];     /* stat_period, solve_period */
  plan_machine machine;
} plan_wish;

/* Seconds of a sum over `ranks`, by the faster algorithm; of a sum of which each rank gets a part; of broadcasts. */
double plan_sum_seconds(const plan_machine *m, int32_t ranks, double bytes, double messages);
double plan_scatter_seconds(const plan_machine *m, int32_t ranks, double bytes, double messages);
double plan_broadcast_seconds(const plan_machine *m, int32_t ranks, double bytes, double messages);

/* Measure latency and bandwidth by sums over these ranks (at least two); all ranks call it.  CLI_BAD: reported. */
int plan_link(const ng_transport *t, plan_machine *m);
/* Latency and bandwidth from the seconds of a sum of one number and of a sum of `bytes`. */
void plan_link_of(int32_t ranks, double small, double large, double bytes, plan_machine *m);

/* CLI_BAD: reported. */
int plan_strategy_cost(const plan_wish *w, const plan_strategy *s, int32_t ranks, plan_answer *out);

#endif
