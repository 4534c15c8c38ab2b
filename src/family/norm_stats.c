/* norm_stats.c: add observations to F.
 *
 * In: an input, whose data the caller keeps valid, and later in the same micro-batch its output gradient. Out:
 * S <- old S + fresh (1/B) sum_i q_i q_i', B: samples used. q_i is the gradient of gamma and beta for the loss of
 * sample i alone, summed over positions. So output gradients are multiplied by c / loss_scale, where c is the samples
 * of the micro-batch for a mean loss, 1 for a sum. stat_scale has no effect on norm blocks. */
#include "family/norm.h"

/* The scratch contains X, then the scratch of the kernel. Return the number of doubles of X; a full block has no X. */
static int64_t count_of_x(const ng_block *b) {
  return ng_norm_of_block(b)->is_full ? 0 : ng_round16(3 * ng_norm_of_block(b)->layer.channels);
}

int64_t ng_norm_scratch(const ng_block *b) {
  return ng_plus(ng_times(count_of_x(b), (int64_t)sizeof(double)),
                 ng_norm_sums_scratch(b->ctx->queue, &ng_norm_of_block(b)->layer));
}

/* ---- pairs -----------------------------------------------------------------------------------*/

/* Add an input to the waiting inputs; inputs of an earlier micro-batch are dropped. */
static ng_status store_input(ng_block *b, const ng_obs *o) {
  ng_norm *k = ng_norm_of_block(b);
  if (k->batch != o->batch) k->waiting_count = 0;
  k->batch = o->batch;
  if (k->waiting_count == NG_NORM_WAITING) {
    return ng_fail(b->ctx, NG_ERR_STATE,
                   "layer '%s': %d inputs without an output gradient, at most %d", b->name,
                   k->waiting_count + 1, NG_NORM_WAITING);
  }
  k->waiting_input[k->waiting_count++] = o->view;
  return NG_OK;
}

/* *x <- the latest input without an output gradient. If the output gradient is rejected, the input stays in the list,
 * so that the caller can observe the output gradient again. */
static ng_status find_input(const ng_block *b, const ng_obs *o, ng_view *x) {
  const ng_norm *k = ng_norm_of_block(b);
  *x = o->view;
  if (!k->layer.has_gamma) return NG_OK; /* beta needs no input */
  if (k->waiting_count == 0 || k->batch != o->batch) {
    return ng_fail(b->ctx, NG_ERR_STATE,
                   "layer '%s': an output gradient was observed without its input in this "
                   "micro-batch",
                   b->name);
  }
  *x = k->waiting_input[k->waiting_count - 1];
  if (x->samples == o->view.samples && x->positions == o->view.positions) return NG_OK;
  return ng_fail(b->ctx, NG_ERR_SHAPE,
                 "layer '%s': its output gradient has %lld positions a sample, its input %lld",
                 b->name, (long long)o->view.positions, (long long)x->positions);
}

/* ---- sums ------------------------------------------------------------------------------------*/

/* S <- old S + alpha X. NG_SKIPPED: an input is not finite. */
static ng_status add_units(ng_block *b, ng_norm_sum *k, void *scratch) {
  ng_queue *q = b->ctx->queue;
  const int64_t n = b->stat->part->cols;
  k->products = n > ng_norm_width(&k->layer);
  k->X = ng_scratch(b);
  ng_kernels(q)->sum_norm_squares(q, k, 1, scratch);
  return ng_stat_add(q, b->stat, k->X, n, k->alpha, 0.0);
}

/* x and g are finite: the engine has scanned them, because a full block solves. */
static void add_full(ng_block *b, ng_norm_sum *k, void *scratch) {
  ng_queue *q = b->ctx->queue;
  k->S = b->stat->part->sum;
  k->dtype = b->stat->sum_dtype;
  ng_stat_scale_old(q, b->stat);
  ng_kernels(q)->add_norm_grams(q, k, 1, scratch);
  ng_queue_wait(q); /* the caller may change its arrays */
}

ng_status ng_norm_observe(ng_block *b, const ng_obs *o) {
  ng_norm *k = ng_norm_of_block(b);
  const ng_stat *s = b->stat;
  ng_view x;
  if (o->kind == NG_OBSERVED_INPUT) return store_input(b, o);
  ng_status st = find_input(b, o, &x);
  if (st != NG_OK) return st;
  const double c = o->reduction == NG_MEAN ? (double)o->samples : 1.0, by = c / o->loss_scale;
  void *scratch = (double *)ng_scratch(b) + count_of_x(b);
  ng_norm_sum sum = {.layer = k->layer, .x = x, .g = o->view, .samples = s->samples};
  sum.alpha = s->mix.fresh * by * by / (double)s->samples;
  if (k->is_full) {
    add_full(b, &sum, scratch);
  } else {
    st = add_units(b, &sum, scratch);
  }
  if (st == NG_OK && k->layer.has_gamma) k->waiting_count--;
  return st;
}
