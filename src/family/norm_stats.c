/* norm_stats.c: add observations to F.
 *
 * In: an input, whose data the caller keeps valid, and later in the same micro-batch its output gradient. Out:
 * S <- old S + fresh (1/B) sum_i q_i q_i', B: samples used. q_i is the gradient of gamma and beta for the loss of
 * sample i alone, summed over positions. So output gradients are multiplied by c / loss_scale, where c is the samples
 * of the micro-batch for a mean loss, 1 for a sum. stat_scale has no effect on norm blocks.
 *
 * Samples are processed in chunks, so that scratch does not grow with the batch. */
#include "family/norm.h"

#include <math.h>

enum { CHUNK = 64 };

/* Scratch: [X, doubles; not for full][q of a chunk][scratch of ng_norm_sums]. Return the floats of X. */
static int64_t x_floats(const ng_block *b) {
  return ng_norm_of_block(b)->full ? 0 : 2 * ng_round16(3 * ng_norm_of_block(b)->of.channels);
}

int64_t ng_norm_scratch(const ng_block *b) {
  const ng_norm *k = ng_norm_of_block(b);
  const int64_t floats = x_floats(b) + CHUNK * ng_round16(k->width);
  return ng_plus(ng_times(floats, (int64_t)sizeof(float)), ng_norm_room(b->ctx, k->of.channels));
}

/* ---- pairs -----------------------------------------------------------------------------------*/

/* Add an input to the waiting inputs; inputs of an earlier micro-batch are dropped. */
static ng_status keep_input(ng_block *b, const ng_obs *o) {
  ng_norm *k = ng_norm_of_block(b);
  if (k->batch != o->batch) k->waiting = 0;
  k->batch = o->batch;
  if (k->waiting == NG_NORM_WAITING) {
    return ng_fail(b->ctx, NG_ERR_STATE,
                   "layer '%s': %d inputs without an output gradient, at most %d", b->name,
                   k->waiting + 1, NG_NORM_WAITING);
  }
  k->shown[k->waiting++] = o->v;
  return NG_OK;
}

/* *x <- the latest input without an output gradient. If the output gradient is rejected, the input stays in the list,
 * so that the caller can observe the output gradient again. */
static ng_status find_input(const ng_block *b, const ng_obs *o, ng_view *x) {
  const ng_norm *k = ng_norm_of_block(b);
  *x = o->v;
  if (!k->of.gamma) return NG_OK; /* beta needs no input */
  if (k->waiting == 0 || k->batch != o->batch) {
    return ng_fail(b->ctx, NG_ERR_STATE,
                   "layer '%s': an output gradient was observed without its input in this "
                   "micro-batch",
                   b->name);
  }
  *x = k->shown[k->waiting - 1];
  if (x->samples == o->v.samples && x->positions == o->v.positions) return NG_OK;
  return ng_fail(b->ctx, NG_ERR_SHAPE,
                 "layer '%s': its output gradient has %lld positions a sample, its input %lld",
                 b->name, (long long)o->v.positions, (long long)x->positions);
}

/* ---- sums ------------------------------------------------------------------------------------*/

static bool all_finite(const float *x, int64_t rows, int64_t cols, int64_t ld) {
  float zero = 0.0f;
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t c = 0; c < cols; c++) {
      zero += x[r * ld + c] - x[r * ld + c];
    }
  }
  return zero == 0.0f;
}

/* Add the gradient q of one sample to X: q_i^2; if `products`, also dgamma dbeta of each channel. */
static void add_sample(const ng_norm *k, const float *q, bool products, double *X) {
  const int64_t C = k->of.channels;
  for (int64_t i = 0; i < k->width; i++) {
    X[i] += (double)q[i] * (double)q[i];
  }
  for (int64_t c = 0; c < C && products; c++) {
    X[2 * C + c] += (double)q[c] * (double)q[C + c];
  }
}

static ng_status add_units(ng_block *b, const ng_view *x, const ng_view *g, double alpha) {
  const ng_norm *k = ng_norm_of_block(b);
  const ng_stat *s = b->stat;
  const int64_t n = s->part->cols, ld = ng_round16(k->width);
  double *X = ng_scratch(b);
  float *q = (float *)(void *)X + x_floats(b);
  void *room = q + CHUNK * ld;
  const bool once = ng_norm_one_pass(&k->of);
  if (once && !ng_norm_products(b->ctx, &k->of, x, g, s->take, X, room)) return NG_SKIPPED;
  if (!once) memset(X, 0, (size_t)n * sizeof *X);
  for (int64_t from = 0, count; from < s->take && !once; from += count) {
    count = ng_min64(CHUNK, s->take - from);
    ng_norm_sums(b->ctx, &k->of, x, g, from, count, q, ld, room);
    if (!all_finite(q, count, k->width, ld)) return NG_SKIPPED;
    for (int64_t i = 0; i < count; i++) {
      add_sample(k, q + i * ld, n > k->width, X);
    }
  }
  float *sum = s->part->sum;
  for (int64_t i = 0; i < n; i++) {
    sum[i] = (float)(s->mix.old * (double)sum[i] + alpha * X[i]);
  }
  return NG_OK;
}

/* S += alpha sum_i q_i q_i' over `count` samples, in double; one triangle. */
static void add_wide(double *S, int64_t n, const float *q, int64_t count, int64_t ld,
                     double alpha) {
  for (int64_t r = 0; r < n; r++) {
    for (int64_t c = 0; c <= r; c++) {
      double sum = 0.0;
      for (int64_t i = 0; i < count; i++) {
        sum += (double)q[i * ld + r] * (double)q[i * ld + c];
      }
      S[ng_sym_at(n, r, c)] += alpha * sum;
    }
  }
}

/* x and g are finite: the engine has scanned them, because b->scans is false for a full block. */
static void add_full(ng_block *b, const ng_view *x, const ng_view *g, double alpha) {
  const ng_norm *k = ng_norm_of_block(b);
  const ng_stat *s = b->stat;
  ng_queue *queue = b->ctx->queue;
  const int64_t ld = ng_round16(k->width);
  float *q = ng_scratch(b);
  void *room = q + CHUNK * ld;
  const ng_sym S = {s->part->sum, k->width};
  ng_norm_moments(b->ctx, &k->of, x, room);
  ng_stat_retain(queue, s);
  for (int64_t from = 0, count; from < s->take; from += count) {
    count = ng_min64(CHUNK, s->take - from);
    ng_norm_sums(b->ctx, &k->of, x, g, from, count, q, ld, room);
    if (ng_stat_is_double(s)) {
      add_wide(s->part->sum, k->width, q, count, ld, alpha);
      continue;
    }
    ng_on(queue)->add_gram(queue, S, 0, k->width, q, count, ld, (float)alpha);
    ng_queue_wait(queue); /* the next chunk overwrites q */
  }
}

ng_status ng_norm_observe(ng_block *b, const ng_obs *o) {
  ng_norm *k = ng_norm_of_block(b);
  const ng_stat *s = b->stat;
  ng_view x;
  if (o->what == NG_SEES_INPUT) return keep_input(b, o);
  ng_status st = find_input(b, o, &x);
  if (st != NG_OK) return st;
  const double c = o->reduction == NG_MEAN ? (double)o->samples : 1.0, by = c / o->loss_scale;
  const double alpha = s->mix.fresh * by * by / (double)s->take;
  if (k->full) {
    add_full(b, &x, &o->v, alpha);
  } else {
    st = add_units(b, &x, &o->v, alpha);
  }
  if (st == NG_OK && k->of.gamma) k->waiting--;
  return st;
}
