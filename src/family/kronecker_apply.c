/* kronecker_apply.c: from a gradient to its preconditioned direction, and out.
 *
 *   cholesky   PD = G^-1 D A^-1, damped as they were solved
 *   eigen      PD = Q_G ((Q_G' D Q_A) o R) Q_A',  R = 1/(d_G d_A' + lambda) of solve time (prediv)
 *              or of now
 *   product    H = G D A, and PD = D + k H once all ranks know k (clip.c): the ascent of SAM (Foret
 *              et al. 2021, arXiv 2010.01412) along the curvature, as published with Eva
 *
 * In: bound gradients, results of the last solve.  Out: `direction` [out, p], <PD, D>, |D|^2,
 * |PD|^2, and tiles of PD.  2 q p (p + q) operations a step with stored inverses, twice that in the
 * eigenbases.
 *
 * D is gathered into internal column order (see kronecker.h), PD is kept in `direction` until all
 * ranks have agreed on the clip, then emitted tile by tile in published order, on ranks that made
 * it and on those that received it.  It has to be kept: made again for the sink it would cost the
 * products twice, and ranks without results could not make it at all. */
#include "family/kronecker.h"

/* ---- scratch: D [out,p], T [out,p], one result as f32, 3 doubles a row; norms: published rows and D,
 *               and the same 3 doubles -------------------------------------------------------- */

/* Floats that one stored result takes when it is widened; none where it is f32 already.  Group 0
 * stands for all. */
static int64_t widest_result(const ng_kron *k) {
  int64_t most = 0;
  if (k->inverse_dtype == NG_F32) return 0;
  for (int side = 0; side < 2; side++) {
    for (int32_t i = 0; i < k->side[side].each; i++) {
      const int64_t n = k->side[side].part[i].n;
      most = ng_max64(most, k->eigen ? n * n : ng_sym_count(n));
    }
  }
  return ng_max64(most, k->p);
}

int64_t ng_kron_apply_scratch(const ng_block *b) {
  const ng_kron *k = ng_kron_of(b);
  return 2 * ng_round16(k->out * k->p) + ng_round16(widest_result(k)) + ng_round16(6 * k->out);
}

/* ---- rows of D -------------------------------------------------------------------------------*/

typedef struct rows_job {
  ng_block *b;
  float *D, *H; /* the gradient; norms: `direction` in published order */
  int64_t chunk;
  bool bad[256];
} rows_job;

/* Whole rows to a thread.  Below some 8192 numbers waking threads costs more than copying. */
static int32_t pieces_of(const ng_block *b, rows_job *j) {
  const ng_kron *k = ng_kron_of(b);
  int32_t pieces = (int32_t)ng_min64(ng_min64(ng_threads_of(b->ctx), 256), k->out);
  if (k->out * k->p < 8192) pieces = 1;
  j->chunk = (k->out + pieces - 1) / pieces;
  return pieces;
}

/* A row of the bound gradients, the bias last; false if a value is not finite. */
static bool read_row(const ng_block *b, int64_t r, float *row) {
  const ng_slot *w = b->segment[0].slot;
  ng_slot_read(w, r, 0, w->cols, row);
  if (b->segments > 1) ng_slot_read(b->segment[1].slot, 0, r, 1, row + w->cols);
  return ng_all_finite(row, NG_F32, ng_kron_of(b)->p);
}

/* `direction` is only borrowed here, as the row in the weight's order before it is permuted. */
static void gather_rows(void *arg, int32_t piece) {
  rows_job *j = arg;
  const ng_block *b = j->b;
  const ng_kron *k = ng_kron_of(b);
  const int64_t to = ng_min64(k->out, (piece + 1) * j->chunk);
  j->bad[piece] = false;
  for (int64_t r = piece * j->chunk; r < to; r++) {
    float *row = b->direction + r * k->p, *D = j->D + r * k->p; /* PD is made after all rows */
    if (!read_row(b, r, row)) j->bad[piece] = true;
    if (k->offsets == 1) {
      memcpy(D, row, (size_t)k->p * sizeof *D);
    } else {
      for (int64_t c = 0; c < k->p; c++) {
        D[c] = row[k->map[c]];
      }
    }
  }
}

/* ---- the products ----------------------------------------------------------------------------*/

/* n stored numbers as f32: where they are, or enqueued to be in `room` when they are needed. */
static const float *as_f32(ng_block *b, const void *stored, int64_t n, float *room) {
  const ng_kron *k = ng_kron_of(b);
  ng_queue *q = b->ctx->queue;
  if (k->inverse_dtype == NG_F32) return stored;
  ng_on(q)->widen(q, n, stored, k->inverse_dtype, room);
  return room;
}

/* The stored inverse, or L, of a part. */
static ng_sym result_of(ng_block *b, const ng_part *part, float *room) {
  const float *a = as_f32(b, part->R, ng_sym_count(part->n), room);
  const ng_sym S = {(float *)(uintptr_t)a, part->n};
  return S;
}

/* T = D A^-1, then G^-1 T, part by part: each is a block of columns, then of rows.  A queue works in
 * order, so `room` may take one stored result after the other without a wait between them. */
static void apply_cholesky(ng_block *b, const float *D, float *T, float *room) {
  const ng_kron *k = ng_kron_of(b);
  ng_queue *q = b->ctx->queue;
  for (int32_t i = 0; i < k->side[NG_SIDE_A].parts; i++) {
    const ng_part *a = &k->side[NG_SIDE_A].part[i];
    const int64_t at = a->group * k->q * k->p + a->at;
    const ng_sym S = result_of(b, a, room);
    if (a->is_factor) {
      ng_on(q)->copy(q, k->q, a->n, D + at, k->p, T + at, k->p);
      ng_on(q)->solve_right(q, S, k->q, T + at, k->p);
    } else {
      ng_on(q)->mul_right(q, S, k->q, D + at, k->p, T + at, k->p);
    }
  }
  for (int32_t i = 0; i < k->side[NG_SIDE_G].parts; i++) {
    const ng_part *g = &k->side[NG_SIDE_G].part[i];
    const int64_t at = g->at * k->p;
    const ng_sym S = result_of(b, g, room);
    if (g->is_factor) {
      ng_on(q)->copy(q, g->n, k->p, T + at, k->p, b->direction + at, k->p);
      ng_on(q)->solve_left(q, S, k->p, b->direction + at, k->p);
    } else {
      ng_on(q)->mul_left(q, S, k->p, T + at, k->p, b->direction + at, k->p);
    }
  }
}

/* T = D Q_A (transposed: back) and Out = Q_G' T (transposed: back), part by part.  Row i of V is
 * eigenvector i, so V is Q': what reads as a transposition in one of them is none in the other. */
static void times_a(ng_block *b, const float *from, float *to, bool back, float *room) {
  const ng_kron *k = ng_kron_of(b);
  ng_queue *q = b->ctx->queue;
  for (int32_t i = 0; i < k->side[NG_SIDE_A].parts; i++) {
    const ng_part *a = &k->side[NG_SIDE_A].part[i];
    const int64_t at = a->group * k->q * k->p + a->at;
    const float *V = as_f32(b, a->V, a->n * a->n, room);
    ng_on(q)->gemm(q, false, !back, k->q, a->n, a->n, 1.0f, from + at, k->p, V, a->n, 0.0f, to + at,
                   k->p);
  }
}

static void times_g(ng_block *b, const float *from, float *to, bool back, float *room) {
  const ng_kron *k = ng_kron_of(b);
  ng_queue *q = b->ctx->queue;
  for (int32_t i = 0; i < k->side[NG_SIDE_G].parts; i++) {
    const ng_part *g = &k->side[NG_SIDE_G].part[i];
    const int64_t at = g->at * k->p;
    const float *V = as_f32(b, g->V, g->n * g->n, room);
    ng_on(q)->gemm(q, back, false, g->n, k->p, g->n, 1.0f, V, g->n, from + at, k->p, 0.0f, to + at,
                   k->p);
  }
}

/* U o R in the eigenbases: by what was stored when it was solved, or by the damping of now.  The
 * two differ where a schedule moved lambda since then; prediv = 1 is what KAISA does by default.
 * Only blocks of one group meet: between groups the curvature has no entry. */
static void divide(ng_block *b, float *U) {
  const ng_kron *k = ng_kron_of(b);
  ng_queue *q = b->ctx->queue;
  if (k->prediv != NULL) {
    ng_on(q)->times(q, k->out * k->p, U, k->prediv, k->inverse_dtype);
    return;
  }
  for (int32_t gi = 0; gi < k->side[NG_SIDE_G].parts; gi++) {
    const ng_part *g = &k->side[NG_SIDE_G].part[gi];
    for (int32_t ai = 0; ai < k->side[NG_SIDE_A].each; ai++) {
      const ng_part *a = &k->side[NG_SIDE_A].part[g->group * k->side[NG_SIDE_A].each + ai];
      const ng_spectrum s = ng_kron_spectrum(b, g, a, b->opt.damping);
      ng_on(q)->divide(q, g->n, a->n, s, U + g->at * k->p + a->at, k->p);
    }
  }
}

/* ---- measure, emit ---------------------------------------------------------------------------*/

/* Enqueued from end to end; the one wait is for the sums of rows, which stand for everything
 * before.
 *
 * A gradient that is not finite leaves zeros, not garbage: the direction may already be on its way
 * to other ranks when they learn that the step does not count.  Without results (the ladder's last
 * rung) PD = D; for product H = 0, which is the same: PD = D + k 0. */
ng_status ng_kron_measure(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  ng_queue *q = b->ctx->queue;
  float *D = ng_scratch(b), *T = D + ng_round16(k->out * k->p),
        *room = T + ng_round16(k->out * k->p);
  rows_job j;
  j.b = b;
  j.D = D;
  double *sums = (double *)(void *)(room + ng_round16(widest_result(k)));
  const int32_t pieces = pieces_of(b, &j);
  ng_parallel(b->ctx, pieces, gather_rows, &j);
  for (int32_t i = 0; i < pieces; i++) {
    if (j.bad[i]) {
      memset(b->direction, 0, (size_t)(k->out * k->p) * sizeof *b->direction);
      return ng_fail(b->ctx, NG_SKIPPED, "layer '%s': its gradient is not finite", b->name);
    }
  }
  if (!k->good && k->product) {
    ng_on(q)->scale(q, k->out * k->p, b->direction, 0.0);
  } else if (!k->good) {
    ng_on(q)->copy(q, k->out, k->p, D, k->p, b->direction, k->p);
  } else if (k->eigen) {
    times_a(b, D, T, false, room);
    times_g(b, T, b->direction, false, room);
    divide(b, b->direction);
    times_a(b, b->direction, T, true, room);
    times_g(b, T, b->direction, true, room);
  } else {
    apply_cholesky(b, D, T, room);
  }
  ng_on(q)->row_sums(q, k->out, k->p, b->direction, k->p, D, k->p, sums);
  ng_queue_wait(q);
  const double *sum = ng_numbers_read(q, sums);
  for (int64_t r = 0; r < k->out; r++) { /* in row order: the same bits for any number of threads */
    b->inner += sum[3 * r];
    b->d2 += sum[3 * r + 1];
    b->pd2 += sum[3 * r + 2];
  }
  return NG_OK;
}

/* Row r of `direction` in published order: where it is, or in `room`. */
static const float *published_row(const ng_block *b, int64_t r, float *room) {
  const ng_kron *k = ng_kron_of(b);
  const float *row = b->direction + r * k->p;
  if (k->offsets == 1) return row;
  for (int64_t c = 0; c < k->p; c++) {
    room[k->map[c]] = row[c];
  }
  return room;
}

/* What `norms` sums: rows of `direction` in published order, and with solver = product of the gradient.
 */
static void publish_rows(void *arg, int32_t piece) {
  const rows_job *j = arg;
  const ng_kron *k = ng_kron_of(j->b);
  const int64_t to = ng_min64(k->out, (piece + 1) * j->chunk);
  for (int64_t r = piece * j->chunk; r < to; r++) {
    (void)published_row(j->b, r, j->H + r * k->p);
    if (k->product) (void)read_row(j->b, r, j->D + r * k->p);
  }
}

/* |PD|^2 of the weight and of the bias apart, for clips that look at one tensor.  For product |D +
 * k H|^2 from its three terms, k being known only now; `row_sums` has <H, D>, |D|^2, |H|^2.  In row
 * order: the same bits for any number of threads. */
void ng_kron_norms(ng_block *b, double *pd2) {
  const ng_kron *k = ng_kron_of(b);
  ng_queue *q = b->ctx->queue;
  const int64_t cols = b->segment[0].slot->cols;
  const double ascent = b->ascent;
  float *scratch = ng_scratch(b);
  rows_job j = {.b = b, .H = scratch, .D = scratch + ng_round16(k->out * k->p)};
  double *sums = (double *)(void *)(j.D + ng_round16(k->out * k->p) + ng_round16(widest_result(k)));
  const int32_t pieces = pieces_of(b, &j);
  NG_ASSERT(ng_queue_settled(q));
  if (k->product || k->offsets > 1) ng_parallel(b->ctx, pieces, publish_rows, &j);
  const float *H = k->offsets == 1 ? b->direction : j.H, *D = k->product ? j.D : H;
  for (int32_t i = 0; i < b->segments; i++) {
    const int64_t at = i == NG_WEIGHT ? 0 : cols, n = i == NG_WEIGHT ? cols : 1;
    ng_on(q)->row_sums(q, k->out, n, H + at, k->p, D + at, k->p, sums);
    ng_queue_wait(q);
    const double *sum = ng_numbers_read(q, sums);
    pd2[i] = 0.0;
    for (int64_t r = 0; r < k->out; r++, sum += 3) {
      pd2[i] += k->product ? sum[1] + ascent * (2.0 * sum[0] + ascent * sum[2]) : sum[2];
    }
  }
}

/* ---- emit ------------------------------------------------------------------------------------*/

/* n published columns of row r: where they are, or collected in `room`.  The bias is one row of the
 * gradient whose columns are outputs; internal order, too, has it last. */
static const float *published(const ng_block *b, const ng_tile *t, int64_t r, int64_t col,
                              int64_t n, float *room) {
  const ng_kron *k = ng_kron_of(b);
  if (t->slot->which == NG_BIAS) {
    for (int64_t i = 0; i < n; i++) {
      room[i] = b->direction[(col + i) * k->p + k->p - 1];
    }
    return room;
  }
  const float *row = b->direction + r * k->p;
  if (k->offsets == 1) return row + col;
  for (int64_t i = 0; i < n; i++) {
    room[i] = row[k->unmap[col + i]];
  }
  return room;
}

void ng_kron_emit_tile(const ng_block *b, const ng_tile *t, double factor, const ng_sink *sink) {
  enum { LINE = 512 };
  const ng_kron *k = ng_kron_of(b);
  const bool straight = t->slot->which == NG_WEIGHT && k->offsets == 1;
  float room[LINE];
  for (int64_t r = t->row; r < t->row + t->rows; r++) {
    for (int64_t c = t->col, n; c < t->col + t->cols; c += n) {
      n = straight ? t->cols : ng_min64(LINE, t->col + t->cols - c);
      const float *x = published(b, t, r, c, n, room);
      ng_pair pair = {.scale = factor, .values = x};
      if (k->product) pair = (ng_pair){.scale = factor, .k = factor * b->ascent, .u = x};
      ng_put(sink, t->slot, r, c, n, &pair);
    }
  }
}
