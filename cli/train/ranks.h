/* ranks.h: collectives of the trainer beside those of the library: gradients, losses, status. Works over any
 * ng_transport; without one there is one rank and no communication.
 *
 * Rank r of W has samples [B r / W, B (r + 1) / W) of every batch of one rank. A rank that fails calls
 * ranks_leave, so that no other waits for it. */
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
  struct ranks_count *count; /* NULL: not counted */
} run_ranks;

/* Bytes and messages of these collectives, and their time. */
typedef struct ranks_count {
  int64_t bytes, messages;
  ng_meter meter;
} ranks_count;

run_ranks ranks_of(const ng_transport *t);
/* The first of n samples on rank `rank`; for rank `size`: n. */
int64_t ranks_first(const run_ranks *r, int32_t rank, int64_t n);

/* Collective; CLI_BAD after a message: another rank gave up, or the transport failed. */
int ranks_sum(const run_ranks *r, double *x, int64_t n);
int ranks_sum_floats(const run_ranks *r, float *x, int64_t n);
/* The same without blocking; request and x must stay valid until it is done. ranks_test makes progress, ranks_wait
 * completes it. */
typedef struct ranks_request {
  ng_collective c;
  void *handle;
  bool under_way;
} ranks_request;
int ranks_post_floats(const run_ranks *r, float *x, int64_t n, ranks_request *out);
int ranks_test(const run_ranks *r, ranks_request *q, bool *done);
int ranks_wait(const run_ranks *r, ranks_request *q);
int ranks_broadcast(const run_ranks *r, void *x, int64_t bytes); /* broadcast from rank 0 */
int ranks_broadcast_from(const run_ranks *r, int32_t rank, void *x, int64_t bytes);
/* CLI_OK if rc is CLI_OK on all ranks, else CLI_BAD; the failing rank has reported why. */
int ranks_agree(const run_ranks *r, int rc);

void ranks_leave(const run_ranks *r); /* abort the transport */

#endif
