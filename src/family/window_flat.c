/* window_flat.c: passes over all parameters of a window, in flat order (kernel/flat.h).
 *
 * In: bound gradients and weights.  Out: a vector of d elements; counts of elements, and sums. */
#include "family/window.h"

/* Largest element for error feedback or momentum: 1e12 / (damping = 1e-6) = 1e18, whose square fits f32 (AdamW). */
static const double STORED_MOST = 1e12;

void ng_window_pass(ng_block *b, ng_flat_pass p) {
  ng_window *w = ng_window_of(b);
  for (int32_t i = 0; i < w->segments; i++) {
    w->flat[i].is_excluded = b->segment[w->segment_order[i]].slot->is_excluded;
  }
  p.range = w->flat;
  p.ranges = w->segments;
  p.mask = w->mask;
  p.out = w->results + 3 * p.op;
  p.partial_sums = w->sums;
  ng_kernels(b->ctx->queue)->run_flat_passes(b->ctx->queue, &p, 1);
}

bool ng_window_has_decay(const ng_block *b, ng_decay_form form) {
  return b->base.window_decay > 0.0 && b->base.window_decay_form == form;
}

/* Rows may be large, because a row leaves the window after m steps and the solve scales its direction down.  But error
 * feedback and averages keep large elements, and every step divides them by the damping: so these have a bound. */
static bool has_element_bound(const ng_block *b) {
  const bool keeps = b->base.window_store != NG_STORE_DENSE || ng_window_x_is_average(b);
  return keeps && !ng_window_is_adaptive(&b->base);
}

void ng_window_read_decayed(ng_block *b, float *to) {
  const double limit = has_element_bound(b) ? STORED_MOST : ng_dtype_largest(NG_F32);
  ng_window_pass(b, (ng_flat_pass){.op = NG_FLAT_READ, .to = to, .limit = limit});
  if (!ng_window_has_decay(b, NG_DECAY_GRADIENT)) return;
  ng_window_pass(b, (ng_flat_pass){.op = NG_FLAT_DECAY, .to = to, .take = b->base.window_decay});
}

ng_status ng_window_check_read(const ng_block *b) {
  const double *bad = ng_read_numbers(b->ctx->queue, ng_window_of(b)->results);
  if (bad[3 * NG_FLAT_READ] > 0.0) {
    return ng_fail(
        b->ctx, NG_SKIPPED, "%s: a gradient is not finite%s", b->name,
        has_element_bound(b) ? ", or above 1e12, which error feedback or momentum would keep" : "");
  }
  if (bad[3 * NG_FLAT_DECAY] > 0.0) {
    return ng_fail(b->ctx, NG_SKIPPED, "%s: a gradient with window_decay is not finite", b->name);
  }
  return NG_OK;
}

bool ng_window_has_excluded(const ng_block *b) {
  for (int32_t k = 0; k < b->segments; k++) {
    if (b->segment[k].slot->is_excluded) return true;
  }
  return false;
}

int64_t ng_window_topk_size(const ng_block *b, int64_t n) {
  const double density = b->base.window_density;
  const double k = density > 1.0 ? density : density * (double)n;
  const bool up = b->base.window_store == NG_STORE_TOPK_BLOCK && (double)(int64_t)k < k;
  return ng_max64(1, ng_min64(n, (int64_t)k + up));
}
