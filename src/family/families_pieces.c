/* families_pieces.c: pieces of parameters, each with matrices of its own (axes.h). */
#include "family/axes.h"

/* Return how many pieces of at most `most` elements an axis has. */
static int64_t count_cuts(int64_t length, int64_t most) { return (length + most - 1) / most; }

int64_t ng_pieces_count(const ng_block *b) {
  int64_t count = 0;
  for (int32_t i = 0; i < b->segments; i++) {
    ng_axes a;
    int64_t pieces = 1;
    (void)ng_axes_of_segment(b, i, &a);
    for (int32_t k = 0; k < a.count; k++) {
      pieces = ng_times(pieces, count_cuts(a.length[k], b->base.max_axis));
    }
    count = ng_plus(count, pieces);
  }
  return count;
}

/* Set *p to piece number `at`, in row-major order, of the parameter with the axes *a. */
static void set_piece(const ng_block *b, int32_t segment, const ng_axes *a, int64_t at,
                      ng_axes_parameter *p) {
  const int64_t most = b->base.max_axis;
  int64_t stride = 1;
  *p = (ng_axes_parameter){.segment = segment, .at = b->segment[segment].offset, .axes = *a};
  for (int32_t k = a->count - 1; k >= 0; k--) {
    const int64_t cuts = count_cuts(a->length[k], most), from = at % cuts * most;
    p->axes.length[k] = ng_min64(most, a->length[k] - from);
    p->at += from * stride;
    p->stride[k] = stride;
    p->is_cut = p->is_cut || (k > 0 && cuts > 1);
    stride *= a->length[k];
    at /= cuts;
  }
}

int32_t ng_pieces_of_block(const ng_block *b, ng_axes_parameter *piece) {
  int32_t matrices = 0;
  const bool ignores_vectors = b->base.gram_form >= NG_GRAMS_EIGEN && !b->base.vector_factor;
  for (int32_t i = 0; i < b->segments; i++) {
    ng_axes a;
    int64_t pieces = 1;
    (void)ng_axes_of_segment(b, i, &a);
    for (int32_t k = 0; k < a.count; k++) {
      pieces *= count_cuts(a.length[k], b->base.max_axis);
    }
    for (int64_t at = 0; at < pieces; at++, piece++) {
      set_piece(b, i, &a, at, piece);
      for (int32_t k = 0; k < a.count; k++) {
        double e;
        (void)ng_exponents_find(b->p->opt.root_exponents, a.count, k, &e);
        piece->part[k] = e == 0.0 || (a.count == 1 && ignores_vectors) ? -1 : matrices++;
      }
    }
  }
  return matrices;
}

const float *ng_piece_gather(ng_queue *q, const ng_axes_parameter *p, const float *all,
                             float *room) {
  ng_copy c = {
      .from = {.data = (void *)(uintptr_t)(all + p->at), .dtype = NG_F32, .ndim = p->axes.count},
      .to = room};
  int64_t stride = 1;
  if (!p->is_cut) return all + p->at;
  for (int32_t k = p->axes.count - 1; k >= 0; k--) {
    c.from.shape[k] = p->axes.length[k];
    c.from.stride[k] = p->stride[k];
    c.to_stride[k] = stride;
    stride *= p->axes.length[k];
  }
  ng_kernels(q)->copy_arrays(q, &c, 1);
  return room;
}

void ng_piece_scatter(ng_queue *q, const ng_axes_parameter *p, const float *piece, float *all) {
  ng_copy c = {.from = {.data = (void *)(uintptr_t)piece, .dtype = NG_F32, .ndim = p->axes.count},
               .to = all + p->at};
  int64_t stride = 1;
  if (piece == all + p->at) return;
  for (int32_t k = p->axes.count - 1; k >= 0; k--) {
    c.from.shape[k] = p->axes.length[k];
    c.from.stride[k] = stride;
    c.to_stride[k] = p->stride[k];
    stride *= p->axes.length[k];
  }
  ng_kernels(q)->copy_arrays(q, &c, 1);
}
