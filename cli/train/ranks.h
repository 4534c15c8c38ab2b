/* ranks.h: collectives of the trainer for gradients, losses and status, over any ng_transport. Without a transport, the
 * run has one rank and does not communicate.
 *
 * Of a batch of B samples, rank r of W ranks has the samples [B r / W, B (r + 1) / W). A rank that fails calls
 * ranks_abort, so that the other ranks do not wait for it. */
#ifndef RANKS_H
#define RANKS_H

#include "common/cli.h"
#include "meter.h"
#include "natgrad.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct run_ranks {
  int32_t rank, size;
  const ng_transport *t;     /* transport of all ranks; NULL: one rank */
  struct ranks_count *count; /* counts of traffic; NULL: traffic is not counted */
} run_ranks;

/* Counts of bytes, messages and time of the collectives below. */
typedef struct ranks_count {
  int64_t bytes, messages;
  ng_meter meter;
} ranks_count;

run_ranks ranks_from_transport(const ng_transport *t);
/* Return the index of the first of n samples that `rank` has; n for rank = size. */
int64_t ranks_find_first(const run_ranks *r, int32_t rank, int64_t n);

/* Sum x [n] over ranks, in place. Collective; CLI_BAD, reported: a rank or the transport failed. */
int ranks_sum(const run_ranks *r, double *x, int64_t n);
int ranks_sum_floats(const run_ranks *r, float *x, int64_t n);
/* Sum without blocking. The request and x must stay valid until the sum is complete. ranks_test_sum lets it progress
 * and sets *done; ranks_wait_sum blocks until the sum is complete. */
typedef struct ranks_request {
  ng_collective c;
  void *handle;
  bool is_pending;
} ranks_request;
int ranks_start_sum(const run_ranks *r, float *x, int64_t n, ranks_request *out);
int ranks_test_sum(const run_ranks *r, ranks_request *q, bool *done);
int ranks_wait_sum(const run_ranks *r, ranks_request *q);
int ranks_broadcast(const run_ranks *r, void *x, int64_t bytes); /* broadcast from rank 0 */
int ranks_broadcast_from(const run_ranks *r, int32_t rank, void *x, int64_t bytes);
/* Return CLI_OK if rc is CLI_OK on all ranks, else CLI_BAD; the rank that failed has printed a message. Collective. */
int ranks_combine_status(const run_ranks *r, int rc);

/* abort the transport, so that no other rank waits for this rank */
void ranks_abort(const run_ranks *r);

#endif
