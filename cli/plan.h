/* plan.h: what a strategy costs: bytes from the library's own plan of every rank, times from a model of the
 * machine. */
#ifndef CLI_PLAN_H
#define CLI_PLAN_H

#include "common/cli.h"
#include "shapes.h"

#include <stdint.h>

/* Of one rank; the network's as a message sees it: latency + bytes / bandwidth. */
typedef struct plan_machine {
  double gemm, solve;        /* FLOP/s: of matrix products, of factorisations          */
  double bandwidth, latency; /* bytes/s, s                                             */
} plan_machine;

/* How a step is to be spread: a line of options, and a name for people. */
typedef struct plan_strategy {
  char name[64], options[240];
  double fraction;
} plan_strategy;

enum {
  PLAN_GRADIENT, /* sums of gradients, which data-parallel training has anyway */
  PLAN_OBSERVE,
  PLAN_SUMS,
  PLAN_SOLVE,
  PLAN_SHARE,
  PLAN_APPLY,
  PLAN_DELIVER,
  PLAN_WEIGHTS,
  PLAN_SMALL,  /* check and agree */
  PLAN_SHARDS, /* parts of layers, brought together in model groups */
  PLAN_PARTS
};
extern const char *const plan_part_name[PLAN_PARTS];

typedef struct plan_answer {
  int64_t held_most, held_least; /* bytes of curvature and directions on a rank */
  double held_mean;
  int64_t sums_bytes, scatter_bytes, share_bytes, deliver_bytes,
      weights_bytes;     /* when they are due, of the rank that has most */
  int64_t shards_bytes;  /* parts of gradients in a step, and of what one micro-batch shows */
  double sent;           /* bytes handed to collectives by a rank, the mean over steps */
  double ms[PLAN_PARTS]; /* of a step, the mean over steps                             */
  double compute, added; /* ms: forward and backward; of all parts but the gradients'  */
  double step;           /* ms: compute, gradients, added                              */
} plan_answer;

typedef struct plan_wish {
  const shapes *model;
  const char *per_layer; /* of the library's options; NULL: none */
  int32_t members;       /* ranks of a model group; 1: no layer is cut */
  int64_t batch;         /* samples of a rank, or of a model group */
  int64_t every[2];      /* stat_period, solve_period */
  plan_machine machine;
} plan_wish;

/* Seconds that a sum over `ranks` takes, the better of halves and of the whole; that `messages` broadcasts take. */
double plan_sum_seconds(const plan_machine *m, int32_t ranks, double bytes, double messages);
/* Each rank gets the sum of a part only. */
double plan_scatter_seconds(const plan_machine *m, int32_t ranks, double bytes, double messages);
double plan_broadcast_seconds(const plan_machine *m, int32_t ranks, double bytes, double messages);

/* Latency and bandwidth as sums over these ranks (two or more) show them; on all of them.  CLI_BAD: told. */
int plan_link(const ng_transport *t, plan_machine *m);
/* From the seconds of a sum of next to nothing, and of one of `bytes`. */
void plan_link_of(int32_t ranks, double small, double large, double bytes, plan_machine *m);

/* CLI_BAD: told. */
int plan_strategy_cost(const plan_wish *w, const plan_strategy *s, int32_t ranks, plan_answer *out);

#endif
