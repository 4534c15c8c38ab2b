/* window_moments.c: vectors that are no rows: the gradient, momentum, moments of first-order methods, the average of
 * gradients. Passes over all parameters, in flat order (kernel/flat.h), read and write these vectors.
 *
 * If the new value of an element is not finite, the element keeps the old value and is counted. */
#include "family/window.h"

#include <math.h>

/* ---- passes, the gradient ---------------------------------------------------------------------*/

/* Largest element for error feedback or momentum: 1e12 / (damping = 1e-6) = 1e18, whose square fits f32 (AdamW). */
static const double STORED_MOST = 1e12;

void ng_window_run_pass(ng_block *b, ng_flat_pass p) {
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

void ng_window_read_gradients(ng_block *b, float *to) {
  const double limit = has_element_bound(b) ? STORED_MOST : ng_dtype_largest(NG_F32);
  ng_window_run_pass(b, (ng_flat_pass){.op = NG_FLAT_READ, .to = to, .limit = limit});
  if (!ng_window_has_decay(b, NG_DECAY_GRADIENT)) return;
  ng_window_run_pass(b,
                     (ng_flat_pass){.op = NG_FLAT_DECAY, .to = to, .take = b->base.window_decay});
}

ng_status ng_window_check_gradients(const ng_block *b) {
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

void ng_window_copy_vector(ng_block *b, const float *x, float *to) {
  const int64_t d = ng_window_of(b)->d;
  ng_linalg(b->ctx->queue)->copy_rows(b->ctx->queue, 1, d, x, d, to, d);
}

void ng_window_mix_vectors(ng_block *b, float *to, const float *v, float *x, double old,
                           double take) {
  ng_window_run_pass(
      b, (ng_flat_pass){.op = NG_FLAT_MIX, .to = to, .v = v, .x = x, .old = old, .take = take});
}

/* ---- first-order methods ---------------------------------------------------------------------*/

/* First-order methods (window_function = step, adam, adagrad; window = 1) use a store for error feedback: x enters, and
 * the direction u is computed from `sent`, the row that the store made of x and the error.  These are top-k SGD (Stich,
 * Cordonnier & Jaggi 2018, arXiv 1809.07599), and Adam and AdaGrad as in EFCP's comparison.  g: gradient; t: step;
 * mu: window_momentum; v, m, s: moments.
 *
 *     step     v <- mu v + g (heavy-ball), mu v + (1 - mu) g (average);  x = v;  u = sent
 *     adam     m <- mu m + (1 - mu) g;  s <- f s + (1 - f) g^2, f = window_forget;
 *              x = m / (1 - mu^t) / (sqrt(s / (1 - f^t)) + eps);  u = sent
 *     adagrad  x = g;  s <- s + sent^2;  u = sent / (sqrt(s) + eps)
 *
 * eps is the damping.  With window_feedback_lr = 1, lr x enters and u = sent / lr, so SGD changes the weight by -sent.
 * If lr = 0, u = 0 and the error feedback stays unchanged.  With a dense store, sent = x. */

/* Elements with |lr x| > 1e28 do not enter: if lr later falls to 1e-10, sent / lr would overflow f32 in every step. */
static const double INPUT_MOST = 1e28;

void ng_window_compute_adaptive_input(ng_block *b) {
  ng_window *w = ng_window_of(b);
  const bool adam = b->base.window_function == NG_WINDOW_ADAM;
  const double mu = b->base.window_momentum, forget = b->base.window_forget, t = w->updates + 1.0;
  const bool heavy = b->base.window_momentum_form == NG_MOMENTUM_HEAVY_BALL;
  ng_flat_pass p = {.op = NG_FLAT_ADAM,
                    .to = w->next_v,
                    .x = w->x,
                    .next_s = adam ? w->next_s : NULL,
                    .v = w->v,
                    .s = adam ? w->s : NULL,
                    .old = mu,
                    .take = heavy ? 1.0 : 1.0 - mu,
                    .forget = forget,
                    .add = 1.0 - forget,
                    .m = 1.0 / (1.0 - pow(mu, t)),
                    .m2 = forget < 1.0 ? 1.0 / (1.0 - pow(forget, t)) : 1.0,
                    .eps = b->base.damping};
  if (w->v != NULL) ng_window_run_pass(b, p);
  if (!ng_window_feeds_lr(b)) return;
  ng_window_run_pass(
      b,
      (ng_flat_pass){.op = NG_FLAT_LIMIT, .to = w->x, .take = w->input_scale, .limit = INPUT_MOST});
}

void ng_window_add_head(ng_block *b, double by, double factor) {
  ng_window *w = ng_window_of(b);
  for (int32_t i = 0; i < w->parts; i++) {
    w->part[i].c[ng_window_head(w)] = factor;
  }
  w->row_place[0] = ng_window_head(w);
  w->rows = 1;
  ng_window_combine_rows(b, by);
}

void ng_window_compute_adaptive_direction(ng_block *b) {
  ng_window *w = ng_window_of(b);
  if (w->input_scale == 0.0) {
    ng_linalg(b->ctx->queue)->scale(b->ctx->queue, w->d, w->u, NG_F32, 0.0);
    return;
  }
  ng_window_add_head(b, 0.0, 1.0 / w->input_scale);
  if (b->base.window_function != NG_WINDOW_ADAGRAD) return;
  ng_window_run_pass(b, (ng_flat_pass){.op = NG_FLAT_DIVIDE,
                                       .to = w->u,
                                       .next_s = w->next_s,
                                       .s = w->s,
                                       .eps = b->base.damping});
}

void ng_window_commit_adaptive(ng_block *b) {
  ng_window *w = ng_window_of(b);
  ng_window_swap_vectors(&w->s, &w->next_s);
  w->updates += 1.0;
}

/* ---- the average of gradients ----------------------------------------------------------------*/

/* With window_momentum_form = gradient (GGT's beta1), the direction is computed from the average of gradients
 * x <- mu x + (1 - mu) row, from x = 0, instead of from the newest gradient.
 *
 * In: the row at head or, in steps that stat_period leaves out, a gradient.  Out: x = r + G' b.  b has the coefficients
 * of the rows in the window, in double: window_solve.c needs no difference of large vectors for G' b.  r, in f32, is
 * the sum over rows that have left the window and gradients that never entered.  If all of x were one f32 vector, its
 * rounding errors outside the span of the rows would be divided by the damping.
 *
 * When a row leaves the window, b times the row is added to r.  If all rows leave (window_empty) or a parameter has no
 * gradient, all of G' b is added to r, so that the parameter's elements of x can stay while other elements change.
 *
 * Between steps, the entry of `row_coefficient` at head (no row) has the 2-norm of r's rounding error. */

bool ng_window_x_is_average(const ng_block *b) {
  return b->base.window_momentum > 0.0 && b->base.window_momentum_form == NG_MOMENTUM_GRADIENT;
}

/* next_v <- r + b times the rows that leave G' b in this step (all: all rows); next_row_coefficient <- mu b for rows that stay, 0 for rows that leave. */
static void move_leaving_rows(ng_block *b, bool fresh, bool all) {
  ng_window *w = ng_window_of(b);
  const double mu = b->base.window_momentum;
  const int64_t count = ng_window_count(w);
  ng_window_list_ages(w, count, all ? 1 : fresh ? ng_min64(count, w->m - 1) + 1 : count + 1);
  for (int32_t i = 0; i < w->parts; i++) {
    ng_window_part *p = &w->part[i];
    for (int64_t j = 0; j < w->places; j++) {
      p->next_row_coefficient[j] = mu * p->row_coefficient[j];
    }
    p->next_row_coefficient[ng_window_head(w)] = 0.0;
    for (int64_t k = 0; k < w->rows; k++) {
      p->c[w->row_place[k]] = p->row_coefficient[w->row_place[k]];
      p->next_row_coefficient[w->row_place[k]] = 0.0;
    }
  }
  if (w->rows > 0) {
    ng_window_copy_vector(b, w->v, w->u);
    ng_window_combine_rows(b, 1.0);
  }
  ng_window_copy_vector(b, w->rows > 0 ? w->u : w->v, w->next_v);
}

/* u, next_v <- r after this step, next_row_coefficient <- b; if the step counts, they replace v and row_coefficient. */
void ng_window_compute_average(ng_block *b, bool fresh) {
  ng_window *w = ng_window_of(b);
  const double mu = b->base.window_momentum;
  const bool out = ng_window_has_excluded(b), in_rest = out || !fresh;
  move_leaving_rows(b, fresh, out || (fresh && w->drops_rows));
  if (in_rest && fresh) {
    ng_window_add_head(b, 0.0, 1.0);
  } else if (in_rest) {
    ng_window_read_gradients(b, w->u);
  }
  ng_window_mix_vectors(b, w->next_v, w->next_v, in_rest ? w->u : w->next_v, mu,
                        in_rest ? 1.0 - mu : 0.0);
  for (int32_t i = 0; i < w->parts && !in_rest; i++) {
    w->part[i].next_row_coefficient[ng_window_head(w)] = 1.0 - mu;
  }
  ng_window_copy_vector(b, w->next_v, w->u);
  if (out) ng_window_run_pass(b, (ng_flat_pass){.op = NG_FLAT_CLEAR, .to = w->u});
}

/* Rounding errors of different steps are independent, so their squares add up; each error decays by mu per step. */
void ng_window_add_average_error(const ng_block *b, ng_window_part *p, double size) {
  const ng_window *w = ng_window_of(b);
  p->next_row_coefficient[ng_window_unused_place(w)] =
      hypot(b->base.window_momentum * p->row_coefficient[ng_window_head(w)], 0x1p-25 * size);
}

void ng_window_commit_average(ng_block *b) {
  ng_window *w = ng_window_of(b);
  ng_window_part *p = w->part; /* the arrays of all parts are adjacent */
  memcpy(p->row_coefficient, p->next_row_coefficient,
         (size_t)(w->parts * w->places) * sizeof *p->row_coefficient);
}
