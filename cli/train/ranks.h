/* ranks.h: the ranks of a run, and what they say to each other beside the library: gradients, losses, how it
 * goes.  Over any ng_transport; without one there is one rank, and nothing is said.
 *
 * Every batch is the same as that of one rank; rank r of W has its samples [B r / W, B (r + 1) / W).
 * A rank that fails gives up (ranks_leave), so that no other waits for it. */
#ifndef RANKS_H
#define RANKS_H

#include "common/cli.h"
#include "meter.h"
#include "natgrad.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct run_ranks {
  int32_t rank, size;
  const ng_transport *t;     /* NULL: one rank */
  struct ranks_count *count; /* NULL: nobody counts */
} run_ranks;

/* What was handed to collectives from here, and how long it took. */
typedef struct ranks_count {
  int64_t bytes, messages;
  ng_meter meter;
} ranks_count;

run_ranks ranks_of(const ng_transport *t);
/* The first of n samples that rank `rank` has; of rank `size`: n. */
int64_t ranks_first(const run_ranks *r, int32_t rank, int64_t n);

/* Collective; CLI_BAD, told: another rank gave up, or the transport failed. */
int ranks_sum(const run_ranks *r, double *x, int64_t n);
int ranks_sum_floats(const run_ranks *r, float *x, int64_t n);
/* The same begun, while this rank does other things; request and x stay where they are until it is done.
 * ranks_test only asks, and lets it get on; ranks_wait ends it. */
typedef struct ranks_request {
  ng_collective c;
  void *handle;
  bool under_way;
} ranks_request;
int ranks_post_floats(const run_ranks *r, float *x, int64_t n, ranks_request *out);
int ranks_test(const run_ranks *r, ranks_request *q, bool *done);
int ranks_wait(const run_ranks *r, ranks_request *q);
int ranks_tell(const run_ranks *r, void *x, int64_t bytes); /* rank 0's, to all */
int ranks_tell_from(const run_ranks *r, int32_t rank, void *x, int64_t bytes);
/* CLI_OK if all ranks say so, else CLI_BAD, which whoever failed has told. */
int ranks_agree(const run_ranks *r, int rc);

/* All have come here, before they give up; one that has gone already is no news, and nothing is told. */
void ranks_gather(const run_ranks *r);
void ranks_leave(const run_ranks *r); /* gives up */

#endif
