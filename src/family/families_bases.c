/* families_bases.c: gram_form = eigen and qr of the family shampoo (axes.h): Adam's quotient in eigenbases of L.
 *
 * Vyas et al. 2024, arXiv 2409.11321, as the SOAP form of facebookresearch/optimizers: the basis of a step contains its
 * gradient, V is neither permuted nor rotated, M is in the coordinates of the gradient. */
#include "family/axes.h"

#include <math.h>

/* Return the rung, 0 before NG_SOLVE_CLIMB. No eigenvalue is divided by, so each damping is large enough (NO_DAMPING). */
int32_t ng_grams_solve_basis(ng_block *b, ng_matrix *m, ng_solve_phase phase, double shift) {
  static const double NO_DAMPING = 1e30;
  const bool iterates = b->base.gram_form == NG_GRAMS_QR;
  if (phase == NG_SOLVE_LIST && !iterates) ng_block_list_matrix(b, m, 0.0, NO_DAMPING, 0.0);
  if (phase != NG_SOLVE_CLIMB) return 0;
  if (!iterates) return ng_matrix_retry(b->ctx->queue, m, ng_scratch(b));
  return ng_matrix_refresh_ascending(b->ctx->queue, m, shift, ng_scratch(b)) ? 0 : NG_DAMPED_NONE;
}

/* Enqueue `to` <- the coordinates of all pieces of `from` in their bases; back: the inverse rotation. */
static void rotate_pieces(const ng_block *b, bool back, const float *from, float *to,
                          float *scratch) {
  const ng_grams *g = ng_grams_of_block(b);
  ng_queue *q = b->ctx->queue;
  for (int32_t i = 0; i < g->count; i++) {
    const ng_axes_parameter *p = &g->list[i];
    const int64_t room = ng_round16(ng_axes_elements(&p->axes));
    ng_axes axes = p->axes;
    float *out = p->is_cut ? scratch + room : to + p->at;
    for (int32_t axis = 0; axis < axes.count; axis++) {
      axes.basis[axis] = p->part[axis] < 0 ? NULL : g->matrix[p->part[axis]].R;
    }
    ng_axes_rotate(q, &axes, back, ng_piece_gather(q, p, from, scratch), out, scratch + 2 * room);
    ng_piece_scatter(q, p, out, to);
  }
}

void ng_grams_precondition(ng_block *b, float *D, float *F, float *S, double filter_scale) {
  ng_moments *m = &ng_grams_of_block(b)->moments;
  float *scratch = S + ng_round16(ng_axes_elements_of_block(b));
  const double beta2 = b->base.stat_decay,
               beta3 = b->base.first_decay > 0.0 ? b->base.filter_decay : 0.0;
  const bool corrects = b->base.bias_correction && beta2 < 1.0;
  ng_moments_add(b, m, D, b->base.first_decay);
  rotate_pieces(b, false, D, S, scratch);
  rotate_pieces(b, false, m->moment[0], F, scratch);
  ng_moments_pass(
      b, m,
      (ng_flat_pass){.op = NG_FLAT_ADAM,
                     .to = F,
                     .v = F,
                     .x = S,
                     .s = m->moment[1],
                     .next_s = m->next[1],
                     .old = beta3,
                     .take = 1.0 - beta3,
                     .forget = beta2,
                     .add = beta2 == 1.0 ? 1.0 : 1.0 - beta2,
                     .m = filter_scale,
                     .m2 = corrects ? 1.0 / (1.0 - pow(beta2, (double)b->p->steps + 1.0)) : 1.0,
                     .eps = b->base.damping});
  rotate_pieces(b, true, S, b->direction, scratch);
}
