/* window_cut.c: the layout of a window: parts, slices of ranks, chunks of loops.
 *
 * In: the segments and options of a block, the number W of ranks.  Out: this rank's elements in flat order, divided
 * into parts (one Gram matrix each) and chunks (one task each).  A rank has all elements or, with statistics = sharded,
 * the elements [cut[rank], cut[rank + 1]), about 1/W of all elements. */
#include "family/window.h"

/* w->sums has three doubles per chunk; its index must fit 32 bits. */
enum { MOST_CHUNKS = INT32_MAX / 4 };

/* ---- parts -----------------------------------------------------------------------------------*/

/* Create one part for the model, for each parameter, or for each group in ascending order (window_scope).  The segments
 * of a part are contiguous in flat order. */
static void set_parts(ng_block *b) {
  ng_window *w = ng_window_of(b);
  const ng_window_scope scope = b->base.window_scope;
  int32_t at = 0;
  for (int32_t group = 0; group < b->p->update_groups; group++) {
    const int32_t first = at;
    for (int32_t k = 0; k < w->segments; k++) {
      if ((scope == NG_WINDOW_GROUP ? b->segment[k].group : 0) != group) continue;
      if (scope == NG_WINDOW_PARAMETER && at > first) w->parts++;
      w->segment_order[at++] = k;
      w->segment[k].part = w->parts;
    }
    w->parts += at > first;
  }
  for (int32_t i = 0; i < w->segments; i++) {
    w->segment[w->segment_order[i]].global_begin = w->d_all;
    w->d_all += b->segment[w->segment_order[i]].count;
  }
}

/* ---- slices ----------------------------------------------------------------------------------*/

int64_t ng_window_nearest_segment(const ng_block *b, int64_t at) {
  const ng_window *w = ng_window_of(b);
  int64_t best = 0;
  for (int32_t i = 0; i < w->segments; i++) {
    const int32_t k = w->segment_order[i];
    const int64_t end = w->segment[k].global_begin + b->segment[k].count;
    if (at - best > (end > at ? end - at : at - end)) best = end;
  }
  return best;
}

static void set_slices(ng_block *b) {
  ng_window *w = ng_window_of(b);
  const int32_t W = b->ctx->ranks;
  for (int32_t r = 0; r < W && w->is_sliced; r++) {
    int64_t from, to;
    ng_piece_bounds(w->d_all, W, r, &from, &to);
    w->cut[r] = w->store->nearest_border == NULL ? from : w->store->nearest_border(b, from);
  }
  w->cut[W] = w->d_all;
  w->first_element = w->is_sliced ? w->cut[b->ctx->rank] : 0;
  w->d = (w->is_sliced ? w->cut[b->ctx->rank + 1] : w->d_all) - w->first_element;
}

/* ---- chunks ----------------------------------------------------------------------------------*/

/* Set w->flat and w->part for this rank's elements; return the number of chunks. */
static int64_t number_chunks(ng_block *b) {
  ng_window *w = ng_window_of(b);
  int64_t at = 0, chunks = 0;
  for (int32_t i = 0; i < w->segments; i++) {
    const int32_t k = w->segment_order[i];
    const ng_slot *slot = b->segment[k].slot;
    const int32_t part = w->segment[k].part;
    const int64_t begin = w->segment[k].global_begin, first = ng_max64(begin, w->first_element);
    const int64_t end = ng_min64(begin + b->segment[k].count, w->first_element + w->d);
    const int64_t n = ng_max64(0, end - first);
    w->part[part].u_scale = &w->u_scales[part];
    w->flat[i] = (ng_flat_range){.at = at,
                                 .n = n,
                                 .from = first - begin,
                                 .first_chunk = chunks,
                                 .part = part,
                                 .grad = &slot->grad,
                                 .weight = &slot->weight,
                                 .cols = slot->cols};
    at += n;
    chunks += ng_count_range_chunks(n);
  }
  return chunks;
}

ng_status ng_window_set_layout(ng_block *b) {
  ng_window *w = ng_window_of(b);
  w->segments = b->segments;
  w->is_sliced = b->base.statistics == NG_STATISTICS_SHARDED && b->ctx->ranks > 1;
  w->cut = ng_object(b->p, (size_t)(b->ctx->ranks + 1) * sizeof *w->cut);
  w->segment = ng_object(b->p, (size_t)w->segments * sizeof *w->segment);
  w->segment_order = ng_object(b->p, (size_t)w->segments * sizeof *w->segment_order);
  w->flat = ng_object(b->p, (size_t)w->segments * sizeof *w->flat);
  if (ng_objects_status(b->p) != NG_OK) return NG_ERR_NOMEM;
  set_parts(b);
  if (w->store->max_elements > 0 && w->d_all > w->store->max_elements) {
    return ng_fail(b->ctx, NG_ERR_ARG, "window_store = %s: %lld parameters, at most %lld",
                   w->store->name, (long long)w->d_all, (long long)w->store->max_elements);
  }
  w->part = ng_object(b->p, (size_t)w->parts * sizeof *w->part);
  w->u_scales = ng_object(b->p, (size_t)w->parts * sizeof *w->u_scales);
  if (w->part == NULL || w->u_scales == NULL) return NG_ERR_NOMEM;
  set_slices(b);
  const int64_t chunks = number_chunks(b);
  if (chunks > MOST_CHUNKS) {
    return ng_fail(b->ctx, NG_ERR_ARG, "'%s': %lld parameters on one rank, at most about %lld",
                   b->name, (long long)w->d, (long long)MOST_CHUNKS * NG_FLAT_CHUNK);
  }
  w->chunks = (int32_t)chunks;
  return NG_OK;
}

ng_field ng_window_field(const ng_block *b, const char *name, ng_dtype t, int64_t rows,
                         void *data) {
  const ng_window *w = ng_window_of(b);
  ng_field f = ng_field_plain(name, t, rows, w->d_all, data, b->owner);
  if (w->is_sliced) f.slice = w->cut;
  return f;
}
