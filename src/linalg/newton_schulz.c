/* newton_schulz.c: the Newton-Schulz iteration of Muon (ng_newton_schulz), by products of the queue's linear algebra.
 *
 * W is X or X', whichever has at most as many rows r as columns R. Nothing is transposed: with X = W', A = X'X and W <- P W is
 * X <- X P'. Without rounding to bf16, A and A A are symmetric products, and a is added to the diagonal of P, so an
 * iteration takes 3 R r^2 + r^3 multiplications and additions.
 *
 * Roundings to bf16 have the order of the published programs, because the order changes entries by up to 0.08 (both
 * programs: docs/algorithms.md). Numbers stay f32 in memory, so the sums of products are in f32 or double. */
#include <math.h>

#include "linalg/vector.h"
#include "simd.h"

typedef struct iteration {
  ng_queue *q;
  const ng_newton_schulz *x;
  bool tall; /* X = W' */
  int64_t n, count;
  float *X, *Y;     /* [rows, cols]: x->X and scratch, in turn */
  float *A, *P, *T; /* scratch [n, n] */
} iteration;

static float round_bf16(float x) { return ng_bf16_to_f32(ng_f32_to_bf16(x)); }

static bool rounds(const iteration *w) { return w->x->rounding != NG_NS_EXACT; }

/* to <- from / by, in double, or else by from; in threads. `to` may be `from`. */
typedef struct pass {
  const float *from;
  float *to;
  int64_t n;
  double by;
  bool divides, rounds;
  int32_t pieces;
} pass;

NG_CLONES static void divide(float *to, const float *from, int64_t n, double by) {
  for (int64_t i = 0; i < n; i++)
    to[i] = (float)((double)from[i] / by);
}

NG_CLONES static void scale(float *to, const float *from, int64_t n, float by) {
  for (int64_t i = 0; i < n; i++)
    to[i] = by * from[i];
}

static void round_all(float *x, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    x[i] = round_bf16(x[i]);
}

static void pass_piece(void *arg, int32_t piece) {
  const pass *p = arg;
  const int64_t at = p->n * piece / p->pieces, n = p->n * (piece + 1) / p->pieces - at;
  if (p->divides) {
    divide(p->to + at, p->from + at, n, p->by);
  } else {
    scale(p->to + at, p->from + at, n, (float)p->by);
  }
  if (p->rounds) round_all(p->to + at, n);
}

static void run_pass(ng_queue *q, pass p) {
  p.pieces = ng_queue_pieces(q, p.n);
  ng_queue_run(q, p.pieces, pass_piece, &p);
}

static void divide_all(const iteration *w, double by) {
  run_pass(w->q, (pass){w->X, w->X, w->count, by, true, rounds(w), 0});
}

/* W <- W / (|W| + epsilon) or W / max(|W|, epsilon), after W is rounded. */
static void normalise(const iteration *w) {
  const ng_newton_schulz *x = w->x;
  double sum = 0.0, norm;
  if (rounds(w)) divide_all(w, 1.0);
  w->q->backend->linalg->sum_squares(w->q, x->rows, x->cols, w->X, NG_F32, x->cols, &sum);
  norm = sqrt(sum);
  if (rounds(w)) norm = (double)round_bf16((float)norm);
  norm = x->bounds_norm ? fmax(norm, x->epsilon) : norm + x->epsilon;
  if (rounds(w)) norm = (double)round_bf16((float)norm);
  divide_all(w, norm);
}

/* Y <- P W + beta Y, as Y' if tall. */
static void multiply(const iteration *w, double beta) {
  const ng_newton_schulz *x = w->x;
  const ng_linalg_ops *l = w->q->backend->linalg;
  const int64_t m = x->rows, k = x->cols, n = w->n;
  if (w->tall) {
    l->gemm(w->q, NG_F32, false, true, m, n, n, 1.0, w->X, k, w->P, n, beta, w->Y, k);
  } else {
    l->gemm(w->q, NG_F32, false, false, n, k, n, 1.0, w->P, n, w->X, k, beta, w->Y, k);
  }
}

/* P <- a I + b A + c A A; Y <- P W, which is the next X. */
static void iterate_exactly(iteration *w, ng_square *square, const double c[3]) {
  const int64_t n = w->n;
  float *const X = w->X;
  square(w->q, w->tall, n, w->count / n, 1.0, X, 0.0, w->A);
  run_pass(w->q, (pass){.from = w->A, .to = w->P, .n = n * n, .by = c[1]});
  if (c[2] != 0.0) square(w->q, false, n, n, c[2], w->A, 1.0, w->P);
  for (int64_t i = 0; i < n; i++)
    w->P[i * (n + 1)] += (float)c[0];
  multiply(w, 0.0);
  w->X = w->Y;
  w->Y = X;
}

/* NG_NS_EACH: A; b A; c A; (c A) A; P = their sum; a W; P W; their sum. NG_NS_FUSED: A; P = b A + c A A; a W + P W. */
static void iterate_rounding(iteration *w, ng_square *square, const double c[3]) {
  const int64_t n = w->n, count = w->count;
  const bool each = w->x->rounding == NG_NS_EACH;
  const float by[3] = {(float)c[0], (float)c[1], (float)c[2]};
  const ng_linalg_ops *l = w->q->backend->linalg;
  square(w->q, w->tall, n, count / n, 1.0, w->X, 0.0, w->A);
  round_all(w->A, n * n);
  for (int64_t i = 0; i < n * n; i++) {
    w->T[i] = each ? round_bf16(by[2] * w->A[i]) : w->A[i];
    w->P[i] = each ? 0.0f : by[1] * w->A[i];
  }
  l->gemm(w->q, NG_F32, false, false, n, n, n, each ? 1.0 : c[2], w->T, n, w->A, n,
          each ? 0.0 : 1.0, w->P, n);
  for (int64_t i = 0; i < n * n; i++) {
    if (each) w->P[i] = round_bf16(by[1] * w->A[i]) + round_bf16(w->P[i]);
    w->P[i] = round_bf16(w->P[i]);
  }
  for (int64_t i = 0; i < count; i++)
    w->Y[i] = each ? 0.0f : by[0] * w->X[i];
  multiply(w, each ? 0.0 : 1.0);
  for (int64_t i = 0; i < count; i++) {
    if (each) w->Y[i] = round_bf16(by[0] * w->X[i]) + round_bf16(w->Y[i]);
    w->X[i] = round_bf16(w->Y[i]);
  }
}

static void orthogonalise(iteration *w, ng_square *square) {
  const ng_newton_schulz *x = w->x;
  normalise(w);
  for (int32_t i = 0; i < x->steps; i++) {
    (rounds(w) ? iterate_rounding : iterate_exactly)(w, square, x->coefficients[i]);
  }
  if (x->scale == 1.0 && w->X == x->X) return;
  run_pass(w->q, (pass){w->X, x->X, w->count, x->scale, false, x->rounding == NG_NS_EACH, 0});
}

void ng_host_newton_schulz(ng_queue *q, const ng_newton_schulz *list, int64_t n, float *scratch,
                           ng_square *square) {
  for (const ng_newton_schulz *x = list; x < list + n; x++) {
    const int64_t order = x->rows < x->cols ? x->rows : x->cols;
    iteration w = {
        .q = q, .x = x, .tall = x->rows > x->cols, .n = order, .count = x->rows * x->cols};
    w.X = x->X;
    w.A = scratch;
    w.P = w.A + order * order;
    w.T = w.P + order * order;
    w.Y = w.T + order * order;
    orthogonalise(&w, square);
  }
}
