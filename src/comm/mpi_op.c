/* mpi_op.c: one op of the transport over MPI (mpi.h): a call, as one or two non-blocking collectives of MPI.
 *
 * A large sum has two stages.  First each rank receives its share of the elements from all ranks (MPI_Ialltoallv) and
 * sums them (tile.h); then all ranks gather the shares (MPI_Iallgatherv).  A reduce-scatter with very uneven parts also
 * has two stages, so that no rank receives all elements: the second stage sends each share to the ranks that its
 * elements belong to (MPI_Ialltoallv).  MPI's own sums are not used: they have no bf16, round 16-bit numbers at every
 * addition, and do not fix the order of ranks.
 *
 * All ranks must post the collectives of a communicator in the same order.  First stages begin when posted.  Second
 * stages use a second communicator and begin in the order of tickets, which is the order of posting. */
#include "comm/mpi.h"
#include "comm/tile.h"

#include <limits.h>

typedef ng_mpi_op op;
typedef ng_mpi_team team;

enum { SMALL = 1 << 15 }; /* a sum of more received bytes than this has two stages */

/* Return whether the call has two stages, equally on all ranks. */
static bool needs_two_stages(const team *t, const ng_collective *c, int64_t count) {
  const int64_t size = ng_dtype_size(c->dtype);
  if (c->kind == NG_ALL_REDUCE) return t->n > 2 && count * size * t->n > SMALL;
  if (c->kind != NG_REDUCE_SCATTER) return false;
  int64_t widest = 0;
  for (int32_t m = 0; m < t->n; m++) {
    widest = ng_max64(widest, c->counts[m]);
  }
  const bool skewed = widest > 2 * (count / t->n + 1);
  return t->n * widest > INT_MAX || (t->n > 2 && skewed && t->n * widest * size > SMALL);
}

int64_t ng_mpi_buffer_size(const team *t, const ng_collective *c, int64_t count, bool *two) {
  *two = needs_two_stages(t, c, count);
  if (*two) return count + t->n * (count / t->n + 1);
  if (c->kind == NG_ALL_REDUCE) return count * t->n;
  return c->kind == NG_REDUCE_SCATTER ? count + t->n * c->counts[t->index] : count;
}

/* ---- counts and offsets -----------------------------------------------------------------------*/

static MPI_Datatype type_of(ng_dtype t) {
  const int64_t size = ng_dtype_size(t);
  return size == 8 ? MPI_UINT64_T : size == 4 ? MPI_UINT32_T : size == 2 ? MPI_UINT16_T : MPI_BYTE;
}

/* Return the first element of member m's share in a two-stage op. */
static int64_t share_begin(const op *o, int32_t m) { return o->c.count * m / o->team->n; }

/* Return the number of elements of member m: its part in a call with `counts` and one stage, otherwise its share. */
static int64_t part_size(const op *o, int32_t m) {
  if (ng_call_counts(o->c.kind) && !o->has_two_stages) return o->c.counts[m];
  return share_begin(o, m + 1) - share_begin(o, m);
}

/* Set `list` to counts and offsets for a gather of all parts. */
static void list_parts(op *o) {
  const int32_t n = o->team->n;
  int at = 0;
  for (int32_t m = 0; m < n; m++) {
    o->list[m] = (int)part_size(o, m);
    o->list[n + m] = at;
    at += o->list[m];
  }
}

/* Set `list` to send each part to its member and to receive this rank's part from each member. */
static void list_exchange(op *o) {
  const int32_t n = o->team->n;
  list_parts(o);
  for (int32_t m = 0; m < n; m++) {
    o->list[2 * n + m] = o->list[o->team->index];
    o->list[3 * n + m] = m * o->list[o->team->index];
  }
}

/* Return the number of common elements of [a, b) and [from, to). */
static int count_common(int64_t a, int64_t b, int64_t from, int64_t to) {
  return (int)ng_max64(0, ng_min64(b, to) - ng_max64(a, from));
}

/* Set `list` to counts and offsets for the second stage of a reduce-scatter: to send the elements of this rank's share
 * to the members whose parts they are in, and to receive this rank's part from the shares. */
static void list_owners(op *o) {
  const int32_t n = o->team->n, me = o->team->index;
  int64_t mine = 0, part = 0;
  for (int32_t m = 0; m < me; m++) {
    mine += o->c.counts[m];
  }
  int send = (int)share_begin(o, me), recv = 0;
  for (int32_t m = 0; m < n; part += o->c.counts[m], m++) {
    o->list[m] =
        count_common(share_begin(o, me), share_begin(o, me + 1), part, part + o->c.counts[m]);
    o->list[n + m] = send;
    o->list[2 * n + m] =
        count_common(share_begin(o, m), share_begin(o, m + 1), mine, mine + o->c.counts[me]);
    o->list[3 * n + m] = recv;
    send += o->list[m];
    recv += o->list[2 * n + m];
  }
}

/* ---- sums ------------------------------------------------------------------------------------*/

/* Set to[i] to the sum over members m of from[m][i].  `from` has `count` elements of each member. */
static void sum_members(const op *o, const char *from, int64_t count, char *to) {
  const ng_dtype t = o->c.dtype;
  const int64_t size = ng_dtype_size(t);
  double acc[NG_TILE];
  for (int64_t i = 0; i < count; i += NG_TILE) {
    const int64_t n = ng_min64(NG_TILE, count - i);
    for (int32_t m = 0; m < o->team->n; m++) {
      ng_tile_add(acc, from + (m * count + i) * size, t, n, m == 0);
    }
    ng_tile_write(acc, to + i * size, t, n);
  }
}

/* ---- stages -----------------------------------------------------------------------------------*/

/* Return whether the op is a small all-reduce: every rank gathers the data of all ranks and sums them. */
static bool sums_by_gather(const op *o) { return o->c.kind == NG_ALL_REDUCE && !o->has_two_stages; }

/* Copy the data to send into the buffer and begin the first collective. */
int ng_mpi_begin(op *o) {
  const ng_collective *c = &o->c;
  const team *t = o->team;
  const MPI_Datatype type = type_of(c->dtype);
  const int64_t size = ng_dtype_size(c->dtype);
  const size_t all = (size_t)(c->count * size);
  if (c->kind == NG_BROADCAST) {
    const int root = ng_call_member(t->rank, t->n, c->root);
    if (root == t->index) memcpy(o->buffer, c->send, all);
    return MPI_Ibcast(o->buffer, (int)c->count, type, root, t->comm[0], &o->request);
  }
  if (sums_by_gather(o)) {
    memcpy(o->buffer + t->index * c->count * size, c->send, all);
    return MPI_Iallgather(MPI_IN_PLACE, 0, type, o->buffer, (int)c->count, type, t->comm[0],
                          &o->request);
  }
  const int32_t n = t->n;
  if (c->kind == NG_ALL_GATHER) {
    list_parts(o);
    memcpy(o->buffer + o->list[n + t->index] * size, c->send, (size_t)(o->list[t->index] * size));
    return MPI_Iallgatherv(MPI_IN_PLACE, 0, type, o->buffer, o->list, o->list + n, type, t->comm[0],
                           &o->request);
  }
  list_exchange(o);
  memcpy(o->buffer, c->send, all);
  return MPI_Ialltoallv(o->buffer, o->list, o->list + n, type, o->buffer + all, o->list + 2 * n,
                        o->list + 3 * n, type, t->comm[0], &o->request);
}

/* Called when the first collective is complete: write the result, or the input of the second collective. */
static void finish_first(op *o) {
  const ng_collective *c = &o->c;
  const team *t = o->team;
  const int64_t size = ng_dtype_size(c->dtype), all = c->count * size;
  if (!(c->kind == NG_ALL_REDUCE || c->kind == NG_REDUCE_SCATTER)) {
    const bool own = c->kind == NG_BROADCAST && c->root == t->rank[t->index] && c->recv == c->send;
    if (!own && all > 0) memcpy(c->recv, o->buffer, (size_t)all);
  } else if (sums_by_gather(o)) {
    sum_members(o, o->buffer, c->count, c->recv);
  } else {
    const int64_t mine = o->list[t->index];
    char *to = o->has_two_stages ? o->buffer + o->list[t->n + t->index] * size : c->recv;
    sum_members(o, o->buffer + all, mine, to);
  }
  o->stage = o->has_two_stages ? NG_MPI_TURN : NG_MPI_DONE;
}

/* In the buffer the received data follow the sent data. */
static char *received_data(const op *o) {
  return o->buffer + o->c.count * ng_dtype_size(o->c.dtype);
}

static int begin_second_stage(op *o) {
  const MPI_Datatype type = type_of(o->c.dtype);
  o->team->turn++;
  o->stage = NG_MPI_SECOND;
  if (o->c.kind == NG_REDUCE_SCATTER) {
    const int32_t n = o->team->n;
    list_owners(o);
    return MPI_Ialltoallv(o->buffer, o->list, o->list + n, type, received_data(o), o->list + 2 * n,
                          o->list + 3 * n, type, o->team->comm[1], &o->request);
  }
  return MPI_Iallgatherv(MPI_IN_PLACE, 0, type, o->buffer, o->list, o->list + o->team->n, type,
                         o->team->comm[1], &o->request);
}

int ng_mpi_advance(op *o) {
  int e = MPI_SUCCESS, done = 1;
  if (o->stage == NG_MPI_FIRST) {
    e = MPI_Test(&o->request, &done, MPI_STATUS_IGNORE);
    if (e == MPI_SUCCESS && done != 0) finish_first(o);
  }
  if (e == MPI_SUCCESS && o->stage == NG_MPI_TURN && o->ticket == o->team->turn)
    e = begin_second_stage(o);
  if (e != MPI_SUCCESS || o->stage != NG_MPI_SECOND) return e;
  e = MPI_Test(&o->request, &done, MPI_STATUS_IGNORE);
  if (e == MPI_SUCCESS && done != 0) {
    const bool part = o->c.kind == NG_REDUCE_SCATTER;
    const int64_t n = part ? o->c.counts[o->team->index] : o->c.count;
    memcpy(o->c.recv, part ? received_data(o) : o->buffer, (size_t)(n * ng_dtype_size(o->c.dtype)));
    o->stage = NG_MPI_DONE;
  }
  return e;
}
