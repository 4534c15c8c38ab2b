/* tile.h: shared by the transports threads and mpi: sums over ranks, and checks of calls.
 *
 * A sum adds NG_TILE elements of each rank at a time, in double and in the order of ranks, and rounds the result once.
 * So the sums of the two transports are equal to the last bit. */
#ifndef NG_TILE_H
#define NG_TILE_H

#include "core/core.h"
#include "linalg/linalg.h"

#include <string.h>

enum { NG_TILE = 256 }; /* elements of an accumulator, which is on the stack */

/* Set acc to the n values of the first rank, or add the values of another rank to acc.  (Starting from zeros would turn
 * a sum of -0 into +0.) */
static inline void ng_tile_add(double *acc, const void *from, ng_dtype t, int64_t n, bool first) {
  double wide[NG_TILE];
  float narrow[NG_TILE];
  if (t == NG_F64) {
    memcpy(wide, from, (size_t)n * sizeof *wide);
  } else {
    ng_to_f32(narrow, from, t, n);
    for (int64_t i = 0; i < n; i++) {
      wide[i] = (double)narrow[i];
    }
  }
  for (int64_t i = 0; i < n; i++) {
    acc[i] = first ? wide[i] : acc[i] + wide[i];
  }
}

static inline void ng_tile_write(const double *acc, void *to, ng_dtype t, int64_t n) {
  float narrow[NG_TILE];
  if (t == NG_F64) {
    memcpy(to, acc, (size_t)n * sizeof *acc);
    return;
  }
  for (int64_t i = 0; i < n; i++) {
    narrow[i] = (float)acc[i];
  }
  ng_from_f32(to, t, narrow, n);
}

/* ---- calls -----------------------------------------------------------------------------------*/

/* Return whether a call of this kind has a count for each member. */
static inline bool ng_call_counts(ng_coll_kind k) {
  return k == NG_REDUCE_SCATTER || k == NG_ALL_GATHER;
}
/* Return the index of `rank` in a list of n ranks; -1 if it is not in the list. */
static inline int32_t ng_call_member(const int32_t *ranks, int32_t n, int32_t rank) {
  for (int32_t i = 0; i < n; i++) {
    if (ranks[i] == rank) return i;
  }
  return -1;
}
/* Return whether `ranks` has n >= 1 ascending numbers in [0, size). */
static inline bool ng_call_ranks_valid(const int32_t *ranks, int32_t n, int32_t size) {
  bool fit = ranks != NULL && n >= 1;
  for (int32_t i = 0; i < n && fit; i++) {
    fit = ranks[i] > (i == 0 ? -1 : ranks[i - 1]) && ranks[i] < size;
  }
  return fit;
}
/* Return the number of elements of a call among n ranks. */
static inline int64_t ng_call_total(const ng_collective *c, int32_t n) {
  int64_t sum = ng_call_counts(c->kind) ? 0 : c->count;
  for (int32_t m = 0; m < n && ng_call_counts(c->kind); m++) {
    sum += c->counts[m];
  }
  return sum;
}
/* Check the arguments of a call among n ranks.  `most`: the largest number of elements that the transport accepts. */
static inline ng_status ng_call_check(const ng_collective *c, const int32_t *ranks, int32_t n,
                                      int64_t most) {
  int64_t total = 0;
  if (c->mem != NG_HOST) return NG_ERR_ABSENT;
  if (c->kind < NG_ALL_REDUCE || c->kind > NG_ALL_GATHER || ng_dtype_size(c->dtype) == 0) {
    return NG_ERR_ARG;
  }
  const bool sums = c->kind == NG_ALL_REDUCE || c->kind == NG_REDUCE_SCATTER;
  if (sums && c->dtype > NG_BF16) return NG_ERR_ARG; /* no sums of integers */
  if (c->kind == NG_BROADCAST && ng_call_member(ranks, n, c->root) < 0) return NG_ERR_ARG;
  if (!ng_call_counts(c->kind)) return c->count < 0 || c->count > most ? NG_ERR_ARG : NG_OK;
  if (c->counts == NULL) return NG_ERR_ARG;
  for (int32_t m = 0; m < n; m++) {
    if (c->counts[m] < 0 || c->counts[m] > most) return NG_ERR_ARG;
    total = ng_plus(total, c->counts[m]);
  }
  return total > most ? NG_ERR_ARG : NG_OK;
}

/* Define the ng_transport of the including file, which has functions of these names. */
#define NG_CALL_TABLE(text, stop)                                                                  \
  &(const ng_transport) {                                                                          \
    .name = (text), .run = run, .start = start, .wait = wait, .group_create = group_create,        \
    .group_destroy = group_destroy, .abort = (stop), .test = test                                  \
  }
/* Fill the caller's table of `size` bytes for one rank.  The caller's header may be older or newer. */
static inline void ng_call_fill(ng_transport *out, size_t size, const ng_transport *functions,
                                void *user, int32_t rank, int32_t ranks) {
  ng_transport table = *functions;
  table.struct_size = size;
  table.user = user;
  table.rank = rank;
  table.size = ranks;
  table.kinds =
      1u << NG_ALL_REDUCE | 1u << NG_BROADCAST | 1u << NG_REDUCE_SCATTER | 1u << NG_ALL_GATHER;
  memset(out, 0, size);
  memcpy(out, &table, size < sizeof table ? size : sizeof table);
}

#endif
