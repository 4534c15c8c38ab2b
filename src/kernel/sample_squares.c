/* sample_squares.c: squared gradients of single samples in an eigenbasis (George et al. 2018, arXiv 1806.03884, equation 10).
 *
 * In: views of an input x and its output gradient g, in any strides and dtype; bases Q_A, Q_G. Out: V += alpha sum over
 * samples n of U_n^2, element by element, with U_n = Q_G (sum over positions s of g_ns a_ns') Q_A'. The squares follow the sum
 * over positions, because this sum is the gradient of a sample.
 *
 * With one position, U_n = (Q_G g)(Q_A a)', so V is one product of squared rows: 2 N q p operations. With S positions the
 * cheaper of two ways is chosen by size:
 *     rotate rows       a <- Q_A a, g <- Q_G g, then multiply      2 S (p^2 + q^2) operations a sample
 *     rotate gradients  multiply, then Q_G (...) Q_A'              2 q p (p + q)
 *
 * Rows are loaded to tiles of at most ROWS rows: several samples, or a part of one. */
#include "kernel/pixels.h"
#include "simd.h"

enum { ROWS = 512 };

/* A tile of both kinds of rows, with memory of the same size for rotated rows; D, T: two matrices [q, p]. */
typedef struct sample_tile {
  ng_queue *queue;
  const ng_sample_squares *k;
  int64_t p, q;
  float *a, *g, *a_rotated, *g_rotated, *D, *T, *window;
} sample_tile;

static int64_t row_columns(const ng_sample_squares *k) {
  return (k->is_conv ? ng_conv_taps(&k->conv) : 1) * (k->a1 - k->a0) + (k->has_ones ? 1 : 0);
}

/* Two tiles of rows, D and T, the window of patches; `ref`: three rows of doubles. */
int64_t ng_sample_squares_scratch(int64_t q, int64_t p, const ng_conv *conv) {
  const int64_t rows = ng_times(2 * ROWS, ng_round16(p) + ng_round16(q)),
                matrices = ng_times(2, ng_round16(ng_times(q, p)));
  const int64_t window = conv == NULL ? 0 : ng_patch_window_floats(conv, conv->channels);
  return ng_max64(ng_plus(ng_plus(rows, matrices), window), 6 * p);
}

static sample_tile new_tile(ng_queue *queue, const ng_sample_squares *k, float *scratch) {
  sample_tile t = {.queue = queue, .k = k, .p = row_columns(k), .q = k->g1 - k->g0};
  const int64_t p = ng_round16(t.p) * ROWS, q = ng_round16(t.q) * ROWS, n = ng_round16(t.q * t.p);
  t.a = scratch;
  t.a_rotated = t.a + p;
  t.g = t.a_rotated + p;
  t.g_rotated = t.g + q;
  t.D = t.g_rotated + q;
  t.T = t.D + n;
  t.window = t.T + n;
  return t;
}

/* ---- rows ------------------------------------------------------------------------------------*/

/* Load rows [first, first + count) of the list of positions of all samples. */
static void load_rows(const sample_tile *t, int64_t first, int64_t count) {
  const ng_sample_squares *k = t->k;
  const ng_pixels a = {&k->x, k->a0, k->a1}, g = {&k->g, k->g0, k->g1};
  const int64_t S = k->positions;
  const ng_gram rows = {
      .x = k->x, .c0 = k->a0, .c1 = k->a1, .has_ones = k->has_ones, .conv = k->conv};
  ng_gram_tile patches = {.g = &rows,
                          .first = first,
                          .count = count,
                          .pieces = 1,
                          .to = t->a,
                          .ld = t->p,
                          .scratch = t->window};
  if (k->is_conv) ng_copy_patches(&patches, 0);
  for (int64_t i = 0, run; i < count; i += run) {
    const int64_t n = (first + i) / S, s = (first + i) % S;
    run = ng_min64(S - s, count - i);
    ng_pixels_load(&g, n, s, run, t->g + i * t->q, t->q);
    if (!k->is_conv) ng_pixels_load(&a, n, s, run, t->a + i * t->p, t->p);
  }
  for (int64_t i = 0; i < count && k->has_ones && !k->is_conv; i++) {
    t->a[i * t->p + t->p - 1] = 1.0f;
  }
}

/* to [rows, n] <- from Q'; row i of Q is vector i. */
static void rotate_rows(const sample_tile *t, int64_t rows, int64_t n, const float *from,
                        const float *Q, float *to) {
  ng_linalg_uncounted(t->queue)->gemm(t->queue, NG_F32, false, true, rows, n, n, 1.0, from, n, Q, n,
                                      0.0, to, n);
}

NG_CLONES static void square(float *x, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    x[i] *= x[i];
  }
}

/* One position: V += alpha (g^2)' (a^2) of rotated rows. */
static void add_products_of_squares(const sample_tile *t) {
  const ng_sample_squares *k = t->k;
  for (int64_t n = 0, count; n < k->samples; n += count) {
    count = ng_min64(ROWS, k->samples - n);
    load_rows(t, n, count);
    rotate_rows(t, count, t->p, t->a, k->QA, t->a_rotated);
    rotate_rows(t, count, t->q, t->g, k->QG, t->g_rotated);
    square(t->a_rotated, count * t->p);
    square(t->g_rotated, count * t->q);
    ng_linalg_uncounted(t->queue)->gemm(t->queue, NG_F32, true, false, t->q, t->p, count,
                                        (double)(float)k->alpha, t->g_rotated, t->q, t->a_rotated,
                                        t->p, 1.0, k->V, k->ld);
  }
}

/* ---- several positions -----------------------------------------------------------------------*/

typedef struct squares_job {
  const sample_tile *t;
  const float *U;
  int32_t pieces;
} squares_job;

NG_CLONES static void add_square_row(const float *restrict u, int64_t n, float alpha,
                                     float *restrict v) {
  for (int64_t i = 0; i < n; i++) {
    v[i] += alpha * (u[i] * u[i]);
  }
}

static void add_square_rows(void *arg, int32_t i) {
  const squares_job *j = arg;
  const ng_sample_squares *k = j->t->k;
  int64_t from, to;
  ng_piece_bounds(j->t->q, j->pieces, i, &from, &to);
  for (int64_t r = from; r < to; r++) {
    add_square_row(j->U + r * j->t->p, j->t->p, (float)k->alpha, k->V + r * k->ld);
  }
}

/* V += alpha U^2, with U = D or, if D is not in the basis, Q_G D Q_A'. */
static void add_sample(const sample_tile *t, bool is_rotated) {
  const ng_linalg_ops *l = ng_linalg_uncounted(t->queue);
  if (!is_rotated) {
    rotate_rows(t, t->q, t->p, t->D, t->k->QA, t->T);
    l->gemm(t->queue, NG_F32, false, false, t->q, t->p, t->q, 1.0, t->k->QG, t->q, t->T, t->p, 0.0,
            t->D, t->p);
  }
  squares_job j = {t, t->D, ng_queue_pieces(t->queue, 2 * t->q * t->p)};
  ng_queue_run(t->queue, j.pieces, add_square_rows, &j);
}

static void add_gradients(const sample_tile *t) {
  const ng_sample_squares *k = t->k;
  const int64_t S = k->positions, p = t->p, q = t->q, together = ng_max64(1, ROWS / S);
  const bool rotates_rows = (double)S * (double)(p * p + q * q) < (double)(q * p) * (double)(p + q);
  for (int64_t n = 0, samples; n < k->samples; n += samples) {
    samples = ng_min64(together, k->samples - n);
    for (int64_t s = 0, count; s < samples * S; s += count) {
      count = ng_min64(ROWS, samples * S - s);
      load_rows(t, n * S + s, count);
      if (rotates_rows) {
        rotate_rows(t, count, p, t->a, k->QA, t->a_rotated);
        rotate_rows(t, count, q, t->g, k->QG, t->g_rotated);
      }
      const float *a = rotates_rows ? t->a_rotated : t->a, *g = rotates_rows ? t->g_rotated : t->g;
      for (int64_t i = 0, rows; i < count; i += rows) {
        rows = ng_min64(S, count - i);
        ng_linalg_uncounted(t->queue)->gemm(t->queue, NG_F32, true, false, q, p, rows, 1.0,
                                            g + i * q, q, a + i * p, p, s > 0 ? 1.0 : 0.0, t->D, p);
        if (samples > 1 || s + count == S) add_sample(t, rotates_rows);
      }
    }
  }
}

/* ---- the entry -------------------------------------------------------------------------------*/

void ng_cpu_add_sample_squares(ng_queue *q, const ng_sample_squares *k, int64_t n, float *scratch) {
  for (const ng_sample_squares *end = k + n; k < end; k++) {
    const sample_tile t = new_tile(q, k, scratch);
    if (k->positions == 1) {
      add_products_of_squares(&t);
    } else {
      add_gradients(&t);
    }
  }
}
