/* kronecker_apply.c: compute the direction PD of a gradient D, and emit PD.
 *
 *   cholesky   PD = G^-1 D A^-1 with the damping of the last solve
 *   eigen      PD = Q_G ((Q_G' D Q_A) o R) Q_A', with R = 1 / (d_G d_A' + lambda) entry by entry; o multiplies entry by
 *              entry; d_G, d_A: eigenvalues; lambda: present damping, or the damping of the last solve (eigen-prediv)
 *   product    H = G D A; PD = D + k H with k from clip.c: the ascent of SAM (Foret et al. 2021, arXiv 2010.01412)
 *              along the curvature, as published with Eva
 *
 * In: bound gradients, results of the last solve. Out: `direction` [out, p], <PD, D>, |D|^2, |PD|^2, and
 * descriptors of PD. A step costs 2 q p (p + q) operations with stored inverses, twice that in eigenbases.
 *
 * D is copied into internal column order (kronecker.h). `direction` keeps PD until all ranks agree on the clip factor.
 * Ranks without results of the solve receive PD from a worker. */
#include "family/kronecker.h"

/* ---- scratch of measure: D and T [rows of a chunk, p], one inverse or eigenbasis as f32, 3 doubles a row. ------------------------------------------------------------------------------------------- */

enum { CHUNK = 256 };

/* With a diagonal left side rows are independent, so an embedding is processed in chunks of rows; else in one chunk. */
static int64_t chunk_rows(const ng_kron *k) {
  return k->left->part->is_diagonal ? ng_min64(CHUNK, k->outputs) : k->outputs;
}

/* Return the floats of the largest stored result after conversion to f32; 0 if results are f32. */
static int64_t widest_result(const ng_kron *k) {
  int64_t most = 0;
  if (k->inverse_dtype == NG_F32) return 0;
  for (int side = 0; side < 2; side++) {
    for (int32_t i = 0; i < k->side[side].group_parts; i++) {
      const ng_part *part = &k->side[side].part[i];
      if (part->is_diagonal) continue;
      most = ng_max64(most, k->is_eigen ? part->n * part->n : ng_sym_count(part->n));
    }
  }
  return ng_max64(most, k->p);
}

int64_t ng_kron_apply_scratch(const ng_block *b) {
  const ng_kron *k = ng_kron_of(b);
  const int64_t rows = chunk_rows(k);
  return 2 * ng_round16(rows * k->p) + ng_round16(widest_result(k)) + ng_round16(6 * rows);
}

/* ---- the products ----------------------------------------------------------------------------*/

/* Rows [row, row + rows) of the gradient (chunk_rows); group_rows: rows of the chunk in one group. */
typedef struct row_chunk {
  ng_block *b;
  const ng_kron *k;
  ng_queue *q;
  int64_t row, rows, group_rows;
  float *D, *T, *out, *room;
} row_chunk;

/* Return n stored numbers as f32: `stored` itself, or `room`, to which the queue will convert them. */
static const float *as_f32(const row_chunk *c, const void *stored, int64_t n) {
  if (c->k->inverse_dtype == NG_F32) return stored;
  ng_on(c->q)->widen(c->q, n, stored, c->k->inverse_dtype, c->room);
  return c->room;
}

/* Return the stored inverse, or L, of a part as f32. */
static ng_sym load_result(const row_chunk *c, const ng_part *part) {
  const float *a = as_f32(c, part->R, ng_sym_count(part->n));
  return (ng_sym){(float *)(uintptr_t)a, part->n};
}

/* to <- from F^-1, where F is the damped factor of the right side; each part multiplies its own columns. The queue
 * works in order, so consecutive parts may use the same `room` without a wait. */
static void divide_right(const row_chunk *c, const float *from, float *to) {
  const int64_t p = c->k->p, rows = c->group_rows;
  for (int32_t i = 0; i < c->k->right->parts; i++) {
    const ng_part *r = &c->k->right->part[i];
    const int64_t at = r->group * c->k->q * p + r->offset;
    const ng_sym S = load_result(c, r);
    if (r->is_factor) {
      ng_on(c->q)->copy(c->q, rows, r->n, from + at, p, to + at, p);
      ng_on(c->q)->solve_right(c->q, S, rows, to + at, p);
    } else {
      ng_on(c->q)->mul_right(c->q, S, rows, from + at, p, to + at, p);
    }
  }
}

/* to <- F^-1 from, where F is the damped factor of the left side; each part multiplies its own rows. */
static void divide_left(const row_chunk *c, const float *from, float *to) {
  const int64_t p = c->k->p;
  for (int32_t i = 0; i < c->k->left->parts; i++) {
    const ng_part *l = &c->k->left->part[i];
    const int64_t at = l->offset * p;
    if (l->is_diagonal) {
      ng_queue_wait(c->q);
      for (int64_t r = 0; r < c->rows; r++) {
        for (int64_t x = 0; x < p; x++) {
          to[r * p + x] = from[r * p + x] * l->d[c->row + r];
        }
      }
      continue;
    }
    const ng_sym S = load_result(c, l);
    if (l->is_factor) {
      ng_on(c->q)->copy(c->q, l->n, p, from + at, p, to + at, p);
      ng_on(c->q)->solve_left(c->q, S, p, to + at, p);
    } else {
      ng_on(c->q)->mul_left(c->q, S, p, from + at, p, to + at, p);
    }
  }
}

/* rotate_right: to <- from Q (back: from Q'), Q the eigenvectors of the right side; rotate_left: to <- Q' from (back:
 * Q from), Q of the left side. Row i of V is eigenvector i, so V = Q'. */
static void rotate_right(const row_chunk *c, const float *from, float *to, bool back) {
  const int64_t p = c->k->p;
  for (int32_t i = 0; i < c->k->right->parts; i++) {
    const ng_part *r = &c->k->right->part[i];
    const int64_t at = r->group * c->k->q * p + r->offset;
    const float *V = as_f32(c, r->V, r->n * r->n);
    ng_on(c->q)->gemm(c->q, false, !back, c->group_rows, r->n, r->n, 1.0f, from + at, p, V, r->n,
                      0.0f, to + at, p);
  }
}

static void rotate_left(const row_chunk *c, const float *from, float *to, bool back) {
  const int64_t p = c->k->p;
  for (int32_t i = 0; i < c->k->left->parts; i++) {
    const ng_part *l = &c->k->left->part[i];
    const int64_t at = l->offset * p;
    const float *V = as_f32(c, l->V, l->n * l->n);
    ng_on(c->q)->gemm(c->q, back, false, l->n, p, l->n, 1.0f, V, l->n, from + at, p, 0.0f, to + at,
                      p);
  }
}

/* Divide each entry of U = Q_G' D Q_A by its damped product of eigenvalues, for all pairs of parts in one group. */
static void divide_spectrum(const row_chunk *c, float *U) {
  const ng_kron *k = c->k;
  for (int32_t i = 0; i < k->left->parts; i++) {
    const ng_part *l = &k->left->part[i], *r = ng_kron_opposite(k, l);
    for (const ng_part *end = r + k->right->group_parts; r < end; r++) {
      ng_spectrum s = ng_kron_spectrum(c->b, l, r);
      s.g += c->row;
      ng_on(c->q)->divide(c->q, ng_min64(l->n, c->rows), r->n, s, U + l->offset * k->p + r->offset,
                          k->p);
    }
  }
}

/* c->out <- PD (product: H). If a part has no good result (rung NG_RUNG_PLAIN): PD <- D (product: H <- 0). A diagonal
 * left side has the identity as eigenbasis, so it needs no rotation. */
static void precondition(const row_chunk *c) {
  const ng_kron *k = c->k;
  if (!k->has_results && k->is_product) {
    ng_on(c->q)->scale(c->q, c->rows * k->p, c->out, 0.0);
  } else if (!k->has_results) {
    ng_on(c->q)->copy(c->q, c->rows, k->p, c->D, k->p, c->out, k->p);
  } else if (!k->is_eigen) {
    divide_right(c, c->D, c->T);
    divide_left(c, c->T, c->out);
  } else if (k->left->part->is_diagonal) {
    rotate_right(c, c->D, c->T, false);
    divide_spectrum(c, c->T);
    rotate_right(c, c->T, c->out, true);
  } else {
    rotate_right(c, c->D, c->T, false);
    rotate_left(c, c->T, c->out, false);
    divide_spectrum(c, c->out);
    rotate_right(c, c->out, c->T, true);
    rotate_left(c, c->T, c->out, true);
  }
}

/* ---- measure, emit ---------------------------------------------------------------------------*/

/* Copy rows of the gradients to c->D in internal column order, the bias last; return whether all values are finite. */
static bool read_rows(const row_chunk *c) {
  ng_kron *k = ng_kron_of(c->b);
  const ng_slot *w = c->b->segment[0].slot;
  ng_read list[] = {{.D = {&w->grad, c->row, c->rows, 0, w->cols},
                     .to = c->D,
                     .to_row = k->p,
                     .to_col = 1,
                     .map = k->offsets > 1 ? k->unmap : NULL,
                     .finite = &k->finite},
                    {.to = c->D + k->p - 1, .to_col = k->p, .finite = &k->finite}};
  if (c->b->segments > 1)
    list[1].D = (ng_region){&c->b->segment[1].slot->grad, 0, 1, c->row, c->rows};
  k->finite = 1;
  ng_kernels(c->q)->read(c->q, list, c->b->segments);
  ng_queue_wait(c->q);
  return k->finite != 0;
}

/* If the gradient is not finite, set the direction to 0, because other ranks may receive the direction before they
 * learn that the step is skipped. Rows are summed in order, so the bits do not depend on the number of threads. */
ng_status ng_kron_measure(ng_block *b) {
  const ng_kron *k = ng_kron_of(b);
  ng_queue *q = b->ctx->queue;
  const int64_t most = chunk_rows(k);
  row_chunk c = {.b = b, .k = k, .q = q, .D = ng_scratch(b)};
  c.T = c.D + ng_round16(most * k->p);
  c.room = c.T + ng_round16(most * k->p);
  double *sums = (double *)(void *)(c.room + ng_round16(widest_result(k)));
  for (; c.row < k->outputs; c.row += c.rows) {
    c.rows = ng_min64(most, k->outputs - c.row);
    c.group_rows = ng_min64(k->q, c.rows);
    c.out = b->direction + c.row * k->p;
    if (!read_rows(&c)) {
      memset(b->direction, 0, (size_t)(k->outputs * k->p) * sizeof *b->direction);
      return ng_fail(b->ctx, NG_SKIPPED, "layer '%s': its gradient is not finite", b->name);
    }
    precondition(&c);
    ng_on(q)->row_sums(q, c.rows, k->p, c.out, k->p, c.D, k->p, sums);
    ng_queue_wait(q);
    const double *sum = ng_numbers_read(q, sums);
    for (int64_t r = 0; r < c.rows; r++, sum += 3) {
      b->inner += sum[0];
      b->d2 += sum[1];
      b->pd2 += sum[2];
    }
  }
  return NG_OK;
}

/* ---- emit ------------------------------------------------------------------------------------*/

/* The gradient of the bias is one row whose columns are the outputs; in `direction` the bias is the last column. */
void ng_kron_emit(const ng_block *b, int32_t segment, int32_t g, double factor, ng_direction *e) {
  const ng_kron *k = ng_kron_of(b);
  (void)g;
  e->is_stored = !k->is_product;
  e->k = k->is_product ? factor * b->ascent : 0.0;
  if (b->segment[segment].slot->param == NG_BIAS) {
    e->u = b->direction + e->D.col * k->p + k->p - 1;
    e->u_col = k->p;
    return;
  }
  e->u = b->direction + e->D.row * k->p;
  e->u_row = k->p;
  if (k->offsets > 1) e->map = k->unmap;
}
