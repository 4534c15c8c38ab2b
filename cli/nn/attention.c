/* attention.c: causal multi-head attention (Vaswani et al. 2017, arXiv 1706.03762). The input has queries, keys and
 * values [T, 3 C] of T positions; head h uses columns h s to (h + 1) s of each, s = C / heads:
 *
 *   S = Q K' / sqrt(s); P = softmax of each row i of S over j <= i; y = P V
 *   dV = P' dy; dP = dy V'; dS = P (dP - sum_j P dP) / sqrt(s); dQ = dS K; dK = dS' Q
 *
 * `saved` has P of all samples and heads. A thread of the pool computes some (sample, head) pairs with BLAS on one
 * thread. Rows are computed in tiles of TILE, and a tile has only the columns up to its last row. */
#include "expf.h"
#include "node.h"
#include "simd.h"

#include <math.h>

enum { TILE = 64, LANES = 16 };

typedef struct job {
  nn *n;
  const node *v;
  int64_t pairs, t, c, s; /* pairs: samples times heads */
  float scale;
  int32_t pieces;
} job;

/* The matrices of one pair. Q, K, V and their gradients have rows of 3 C floats, y and dy of C. */
typedef struct pair {
  const float *q, *k, *v, *dy;
  float *dq, *dk, *dv, *y, *p;
} pair;

static pair find_pair(const job *j, int64_t i) {
  const int64_t heads = j->c / j->s, sample = i / heads, at = i % heads * j->s;
  const node *x = get_input(j->n, j->v, 0);
  const int64_t in = sample * j->t * 3 * j->c + at, out = sample * j->t * j->c + at;
  pair a = {.q = x->out + in, .y = j->v->out + out, .p = (float *)j->v->saved + i * j->t * j->t};
  a.k = a.q + j->c;
  a.v = a.k + j->c;
  if (j->v->grad == NULL) return a;
  a.dy = j->v->grad + out;
  a.dq = x->grad + in;
  a.dk = a.dq + j->c;
  a.dv = a.dk + j->c;
  return a;
}

/* Rows [from, to) of P, which has t columns: P <- softmax(scale P) over the columns up to the row; 0 in columns up to
 * `to`. */
NG_CLONES static void softmax_rows(float *p, int64_t t, int64_t from, int64_t to, float scale) {
  for (int64_t r = from; r < to; r++) {
    float *row = p + r * t, lane[LANES], most = row[0], sum = 0.0F;
    const int64_t c = r + 1, whole = c / LANES * LANES;
    for (int i = 0; i < LANES; i++)
      lane[i] = row[0];
    for (int64_t k = 0; k < whole; k += LANES) {
      for (int i = 0; i < LANES; i++)
        lane[i] = row[k + i] > lane[i] ? row[k + i] : lane[i];
    }
    for (int64_t k = whole; k < c; k++)
      lane[k - whole] = row[k] > lane[k - whole] ? row[k] : lane[k - whole];
    for (int i = 0; i < LANES; i++)
      most = lane[i] > most ? lane[i] : most;
    for (int64_t k = 0; k < c; k++)
      row[k] = nn_expf(scale * (row[k] - most));
    for (int i = 0; i < LANES; i++)
      lane[i] = 0.0F;
    for (int64_t k = 0; k < whole; k += LANES) {
      for (int i = 0; i < LANES; i++)
        lane[i] += row[k + i];
    }
    for (int64_t k = whole; k < c; k++)
      lane[k - whole] += row[k];
    for (int i = 0; i < LANES; i++)
      sum += lane[i];
    const float share = 1.0F / sum;
    for (int64_t k = 0; k < c; k++)
      row[k] *= share;
    for (int64_t k = c; k < to; k++)
      row[k] = 0.0F;
  }
}

/* dp <- scale P (dp - sum P dp) for `rows` rows of `columns` columns; P has t columns, and is 0 above the diagonal. */
NG_CLONES static void softmax_gradient(const float *p, int64_t t, float *dp, int64_t rows,
                                       int64_t columns, float scale) {
  const int64_t whole = columns / LANES * LANES;
  for (int64_t r = 0; r < rows; r++, p += t, dp += columns) {
    float lane[LANES] = {0}, sum = 0.0F;
    for (int64_t k = 0; k < whole; k += LANES) {
      for (int i = 0; i < LANES; i++)
        lane[i] += p[k + i] * dp[k + i];
    }
    for (int64_t k = whole; k < columns; k++)
      lane[k - whole] += p[k] * dp[k];
    for (int i = 0; i < LANES; i++)
      sum += lane[i];
    for (int64_t k = 0; k < columns; k++)
      dp[k] = scale * p[k] * (dp[k] - sum);
  }
}

static void run_forward_piece(void *arg, int32_t piece) {
  const job *j = arg;
  const int64_t t = j->t, c = j->c, s = j->s;
  int64_t first, last;
  nn_find_range(j->pairs, j->pieces, piece, 1, &first, &last);
  for (int64_t i = first; i < last; i++) {
    const pair a = find_pair(j, i);
    for (int64_t r = 0; r < t; r += TILE) {
      const int64_t end = r + TILE < t ? r + TILE : t, rows = end - r;
      nn_gemm(false, true, rows, end, s, 1.0F, a.q + r * 3 * c, 3 * c, a.k, 3 * c, 0.0F,
              a.p + r * t, t);
      softmax_rows(a.p, t, r, end, j->scale);
      nn_gemm(false, false, rows, s, end, 1.0F, a.p + r * t, t, a.v, 3 * c, 0.0F, a.y + r * c, c);
    }
  }
}

/* The last tile has all columns, so it writes dK and dV; the tiles before it add to their first rows. */
static void run_backward_piece(void *arg, int32_t piece) {
  const job *j = arg;
  const int64_t t = j->t, c = j->c, s = j->s;
  const float keep = j->v->adds[0] ? 1.0F : 0.0F;
  float *dp = (float *)j->n->scratch + TILE * t * piece;
  int64_t first, last;
  nn_find_range(j->pairs, j->pieces, piece, 1, &first, &last);
  for (int64_t i = first; i < last; i++) {
    const pair a = find_pair(j, i);
    for (int64_t r = (t - 1) / TILE * TILE; r >= 0; r -= TILE) {
      const int64_t end = r + TILE < t ? r + TILE : t, rows = end - r;
      const float *p = a.p + r * t, *dy = a.dy + r * c;
      const float old = end < t ? 1.0F : keep;
      nn_gemm(false, true, rows, end, s, 1.0F, dy, c, a.v, 3 * c, 0.0F, dp, end);
      nn_gemm(true, false, end, s, rows, 1.0F, p, t, dy, c, old, a.dv, 3 * c);
      softmax_gradient(p, t, dp, rows, end, j->scale);
      nn_gemm(false, false, rows, s, end, 1.0F, dp, end, a.k, 3 * c, keep, a.dq + r * 3 * c, 3 * c);
      nn_gemm(true, false, end, s, rows, 1.0F, dp, end, a.q + r * 3 * c, 3 * c, old, a.dk, 3 * c);
    }
  }
}

static void run_over_pairs(nn *n, const node *v, int64_t samples,
                           void (*task)(void *arg, int32_t piece)) {
  job j = {.n = n,
           .v = v,
           .pairs = samples * v->heads,
           .t = v->shape.height * v->shape.width,
           .c = v->shape.channels,
           .s = v->shape.channels / v->heads,
           .pieces = 1};
  j.scale = (float)(1.0 / sqrt((double)j.s));
  if (j.pairs > 1 && nn_blas_use_one_thread(n)) {
    j.pieces = (int32_t)(j.pairs < n->threads ? j.pairs : n->threads);
    nn_run_pieces(n, j.pieces, task, &j);
    nn_blas_restore_threads(n);
  } else {
    task(&j, 0);
  }
}

static void attention_forward(nn *n, node *v, int64_t samples, nn_mode mode) {
  (void)mode;
  run_over_pairs(n, v, samples, run_forward_piece);
}

static void attention_backward(nn *n, node *v, int64_t samples, bool params) {
  (void)params;
  if (get_input(n, v, 0)->grad != NULL) run_over_pairs(n, v, samples, run_backward_piece);
}

static int64_t count_scratch_bytes(const nn *n, const node *v) {
  return n->threads * TILE * v->shape.height * v->shape.width * (int64_t)sizeof(float);
}

static int64_t count_saved_bytes(const nn *n, const node *v) {
  const int64_t t = v->shape.height * v->shape.width;
  return n->batch * v->heads * t * t * (int64_t)sizeof(float);
}

static const nn_op op = {.name = "attention",
                         .forward = attention_forward,
                         .backward = attention_backward,
                         .scratch = count_scratch_bytes,
                         .saved = count_saved_bytes};

int nn_add_attention(nn *n, int x, int64_t heads) {
  if (x < 0) return -1;
  const nn_shape from = nn_get_shape(n, x);
  if (heads < 1 || from.channels % (3 * heads) != 0)
    return nn_fail(n, "attention: %lld channels are not queries, keys and values of %lld heads",
                   (long long)from.channels, (long long)heads);
  node *v = nn_add_node(n, &op, x, -1, (nn_shape){from.height, from.width, from.channels / 3});
  if (v == NULL) return -1;
  v->heads = heads;
  return v->number;
}
