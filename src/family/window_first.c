/* window_first.c: first-order methods as users of a store: what enters is made of the gradient, the direction of
 * what was sent (window_function = step, adam, adagrad; window = 1).  With error feedback these are top-k SGD
 * (Stich, Cordonnier & Jaggi 2018, arXiv 1809.07599), Adam and AdaGrad as EFCP compares itself with.
 *
 *     step     v <- mu v + g (heavy-ball), mu v + (1 - mu) g (average);  x = v;  u = sent
 *     adam     m <- mu m + (1 - mu) g;  s <- f s + (1 - f) g^2, f = window_forget;
 *              x = m / (1 - mu^t) / (sqrt(s / (1 - f^t)) + eps);  u = sent
 *     adagrad  x = g;  s <- s + sent^2;  u = sent / (sqrt(s) + eps)
 *
 * eps is damping.  With window_feedback_lr = 1 lr x enters and u is what was sent over lr, so that a weight
 * moves by what was sent; with lr = 0 nothing is sent, and nothing lost; a dense store sends all of x as it is.  Moments move when the step counts: until then the new ones lie beside the old.
 * A step whose moments leave f32 is refused before anything is kept of it: an Inf in them would stay.
 * So is one of which lr x is above 1e28: what stays of it in the error would leave f32 over every later lr of 1e-10
 * and less, and no step would go again.  The step is lost, and not the error of those before. */
#include "family/window.h"

#include <float.h>
#include <math.h>

static const double ENTERS_MOST = 1e28; /* with window_feedback_lr */

typedef struct pass {
  const ng_block *b;
  ng_window *w;
  double mu, take, forget, by_m, by_s, eps; /* by: 1 / (1 - mu^t), 1 / (1 - f^t) */
  bool adam;
} pass;

/* NG_SKIPPED: a chunk found what is beyond its range. */
static ng_status found(const ng_block *b, const char *what) {
  const ng_window *w = ng_window_of(b);
  for (int32_t i = 0; i < w->chunks; i++) {
    if (w->sums[i] == 0.0) continue;
    return ng_fail(b->ctx, NG_SKIPPED, "%s: %s", b->name, what);
  }
  return NG_OK;
}

static ng_status moments_fit(const ng_block *b) {
  return found(b, "a moment would leave the range of f32");
}

static void enter_chunk(void *arg, int32_t i) {
  const pass *p = arg;
  const ng_window *w = p->w;
  const ng_window_chunk c = ng_window_chunk_at(w, i);
  const size_t bytes = (size_t)c.n * sizeof(float);
  int beyond = 0;
  w->sums[i] = 0.0;
  if (ng_window_is_out(p->b, &c)) { /* x is 0 there */
    memcpy(w->next_v + c.at, w->v + c.at, bytes);
    if (p->adam) memcpy(w->next_s + c.at, w->s + c.at, bytes);
    return;
  }
  for (int64_t k = c.at; k < c.at + c.n; k++) {
    const double g = (double)w->x[k];
    const double m = p->mu * (double)w->v[k] + p->take * g;
    w->next_v[k] = w->x[k] = (float)m;
    beyond |= !(fabs(m) <= (double)FLT_MAX);
    if (!p->adam) continue;
    const double s = p->forget * (double)w->s[k] + (1.0 - p->forget) * g * g;
    w->next_s[k] = (float)s;
    beyond |= !(s <= (double)FLT_MAX);
    w->x[k] = (float)(m * p->by_m / (sqrt(s * p->by_s) + p->eps));
  }
  w->sums[i] = beyond;
}

ng_status ng_window_first_enter(ng_block *b) {
  ng_window *w = ng_window_of(b);
  const bool adam = b->base.window_function == NG_WINDOW_ADAM;
  const double mu = b->base.window_momentum, forget = b->base.window_forget, t = w->updates + 1.0;
  const bool heavy = b->base.window_momentum_form == NG_MOMENTUM_HEAVY_BALL;
  pass p = {.b = b,
            .w = w,
            .mu = mu,
            .take = heavy ? 1.0 : 1.0 - mu,
            .forget = forget,
            .by_m = 1.0 / (1.0 - pow(mu, t)),
            .by_s = forget < 1.0 ? 1.0 / (1.0 - pow(forget, t)) : 1.0,
            .eps = b->base.damping,
            .adam = adam};
  ng_status st = NG_OK;
  if (w->v != NULL) {
    ng_parallel(b->ctx, w->chunks, enter_chunk, &p);
    st = moments_fit(b);
  }
  if (st != NG_OK || !ng_window_feeds_lr(b)) return st;
  if (ng_window_within(b, w->x, ENTERS_MOST / w->scale)) return NG_OK;
  w->beyond = true;
  return ng_fail(
      b->ctx, NG_SKIPPED,
      "%s: lr times its direction is above 1e28, of which later steps could not send the "
      "rest",
      b->name);
}

static void divide_chunk(void *arg, int32_t i) {
  const pass *p = arg;
  const ng_window *w = p->w;
  const ng_window_chunk c = ng_window_chunk_at(w, i);
  int beyond = 0;
  for (int64_t k = c.at; k < c.at + c.n; k++) {
    const double x = (double)w->u[k], s = (double)w->s[k] + x * x;
    beyond |= !(s <= (double)FLT_MAX);
    w->u[k] = (float)(x / (sqrt(s) + p->eps));
  }
  w->sums[i] = beyond;
}

void ng_window_sent(ng_block *b, double by) {
  ng_window *w = ng_window_of(b);
  for (int32_t i = 0; i < w->parts; i++) {
    w->part[i].c[ng_window_head(w)] = 1.0 / by;
  }
  w->used[0] = ng_window_head(w);
  w->uses = 1;
  ng_window_combine(b, 0.0);
}

ng_status ng_window_first_direct(ng_block *b) {
  ng_window *w = ng_window_of(b);
  pass p = {.w = w, .eps = b->base.damping};
  if (w->scale == 0.0) {
    memset(w->u, 0, (size_t)w->d * sizeof *w->u);
    return NG_OK;
  }
  ng_window_sent(b, w->scale);
  if (b->base.window_function != NG_WINDOW_ADAGRAD) return NG_OK;
  ng_parallel(b->ctx, w->chunks, divide_chunk, &p);
  return moments_fit(b);
}

static void add_chunk(void *arg, int32_t i) {
  const pass *p = arg;
  const ng_window *w = p->w;
  const ng_window_chunk c = ng_window_chunk_at(w, i);
  for (int64_t k = c.at; k < c.at + c.n; k++) {
    w->s[k] = (float)((double)w->s[k] + (double)w->u[k] * (double)w->u[k]);
  }
}

void ng_window_first_taken(ng_block *b) {
  ng_window *w = ng_window_of(b);
  pass p = {.w = w};
  if (b->base.window_function == NG_WINDOW_ADAGRAD) { /* u has left */
    ng_window_sent(b, 1.0);
    ng_parallel(b->ctx, w->chunks, add_chunk, &p);
  } else if (w->s != NULL) {
    float *s = w->next_s;
    w->next_s = w->s;
    w->s = s;
  }
  w->updates += 1.0;
}
