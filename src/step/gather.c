/* gather.c: with update_ranks = owner, broadcast weights from their owners, as SP-NGD (arXiv 2002.06015).
 *
 * The owner of a block updates the block's parameters and stores their moments.  A parameter without curvature, of
 * entry i, belongs to rank i mod W.  Weights travel in the order of registration, in messages of at most PIECE
 * elements, as f64 if the weight is f64, otherwise as f32, so the values are exact. */
#include "step/step.h"

enum { PIECE = 1 << 20 }; /* most elements of a message */

bool ng_update_is_owned(const ng_precond *p) {
  return p->opt.base.update_ranks == NG_UPDATE_RANKS_OWNER &&
         p->opt.base.update != NG_UPDATE_GRADIENT;
}

int32_t ng_update_owner(const ng_precond *p, const ng_entry *e) {
  return e->block != NULL ? e->block->owner : e->index % p->ctx->ranks;
}

int64_t ng_gather_scratch(const ng_precond *p) {
  int64_t most = 0;
  for (int32_t i = 0; i < p->slots && ng_update_is_owned(p); i++) {
    const ng_slot *s = p->slot[i];
    most = ng_max64(most, ng_min64(PIECE, s->rows * s->cols) * ng_dtype_size(s->moment_dtype));
  }
  return most;
}

/* Copy elements [from, from + n) of the weight, counted row by row, to x on the owner, and from x to the weight on other
 * ranks. The elements are at most three regions: the end of a row, whole rows, the beginning of a row. x: f64 or f32. */
static void copy_weights(ng_precond *p, ng_slot *s, int64_t from, int64_t n, void *x) {
  const bool is_double = s->moment_dtype == NG_F64;
  ng_queue *q = p->ctx->queue;
  ng_direction e = {.scale = 1.0, .is_stored = true, .u_col = 1, .overflowed = &s->overflowed};
  for (int64_t i = 0, cols; i < n; i += e.D.rows * cols) {
    const int64_t row = (from + i) / s->cols, col = (from + i) % s->cols, left = n - i;
    const bool whole = col == 0 && left >= s->cols;
    cols = ng_min64(left, s->cols - col);
    e.D = (ng_region){&s->weight, row, whole ? left / cols : 1, col, cols};
    e.u = is_double ? NULL : (float *)x + i;
    e.u_double = is_double ? (double *)x + i : NULL;
    e.u_row = cols;
    const ng_read r = {.D = e.D,
                       .to = (float *)(uintptr_t)e.u,
                       .to_double = (double *)(uintptr_t)e.u_double,
                       .to_row = cols,
                       .to_col = 1,
                       .finite = &p->step->shards.finite};
    if (s->updates_here) {
      ng_kernels(q)->read_gradients(q, &r, 1);
    } else {
      ng_kernels(q)->write_directions(q, &e, 1);
    }
  }
  ng_queue_wait(q); /* the transport reads and writes x */
}

static ng_status gather_slot(ng_precond *p, ng_slot *s) {
  const ng_group world = ng_group_world(p->ctx->comm);
  const int64_t count = s->rows * s->cols;
  const int32_t root = ng_update_owner(p, s->entry);
  void *x = p->arena[NG_USE_SCRATCH];
  ng_status st = NG_OK;
  for (int64_t from = 0, n; from < count && st == NG_OK; from += n) {
    n = ng_min64(PIECE, count - from);
    if (s->updates_here) copy_weights(p, s, from, n, x);
    st = ng_comm_broadcast(p->ctx->comm, &world, x, n, s->moment_dtype, root);
    if (st == NG_OK && !s->updates_here) copy_weights(p, s, from, n, x);
  }
  return st;
}

/* Send no excluded parameters; all ranks exclude the same parameters. */
ng_status ng_gather_weights(ng_precond *p) {
  ng_status st = NG_OK;
  for (int32_t i = 0; i < p->slots && st == NG_OK; i++) {
    ng_slot *s = p->slot[i];
    if (!s->is_excluded && !s->entry->d.frozen) st = gather_slot(p, s);
  }
  return st == NG_OK ? NG_OK : ng_exchange_failed(p, "weights");
}

void ng_gather_count_traffic(const ng_precond *p, ng_rank_plan *out) {
  for (int32_t i = 0; i < p->slots && p->ctx->ranks > 1 && ng_update_is_owned(p); i++) {
    const ng_slot *s = p->slot[i];
    const int64_t count = s->entry->d.frozen ? 0 : s->rows * s->cols;
    out->weights_bytes += count * ng_dtype_size(s->moment_dtype);
    out->weights_messages += (count + PIECE - 1) / PIECE;
  }
}
