/* kronecker_apply.c: from a gradient to its preconditioned direction, and out.
 *
 *   cholesky   PD = G^-1 D A^-1, damped as they were solved
 *   eigen      PD = Q_G ((Q_G' D Q_A) o R) Q_A',  R = 1/(d_G d_A' + lambda) of solve time (prediv)
 *              or of now
 *   product    H = G D A, and PD = D + k H once all ranks know k (clip.c): the ascent of SAM (Foret et
 *              al. 2021, arXiv 2010.01412) along the curvature, as published with Eva
 *
 * D is gathered into internal column order (see kronecker.h), PD is kept in `direction` until all
 * ranks have agreed on the clip, then emitted row by row in published order. */
#include "family/kronecker.h"

#include "core/core.h"
#include "simd.h"

/* ---- scratch: D [out,p], T [out,p], one result as f32, 3 doubles a row; emit: a row a piece
 * ----*/

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
  const int64_t measure =
      2 * ng_floats(k->out * k->p) + ng_floats(widest_result(k)) + ng_floats(6 * k->out);
  const int64_t emit = ng_threads_of(b->p->ctx) * ng_floats(k->p) + ng_floats(k->out);
  const int64_t norms = 2 * ng_floats(k->p);
  return ng_max64(measure, ng_max64(emit, norms));
}

/* ---- rows of D -------------------------------------------------------------------------------*/

typedef struct rows_job {
  ng_block *b;
  float *D;
  double *sums; /* [out][3]: <PD,D>, |D|^2, |PD|^2 */
  const ng_sink *sink;
  const double *factor;
  int64_t chunk;
  bool bad[256];
} rows_job;

static int32_t pieces_of(const ng_block *b, rows_job *j) {
  const ng_kron *k = ng_kron_of(b);
  int32_t pieces = (int32_t)ng_min64(ng_min64(ng_threads_of(b->p->ctx), 256), k->out);
  if (k->out * k->p < 8192) pieces = 1;
  j->chunk = (k->out + pieces - 1) / pieces;
  return pieces;
}

static void gather_rows(void *arg, int32_t piece) {
  rows_job *j = arg;
  const ng_kron *k = ng_kron_of(j->b);
  const ng_slot *w = &j->b->entry->slot[NG_WEIGHT], *bias = &j->b->entry->slot[NG_BIAS];
  const bool has_bias = j->b->entry->slots > 1;
  const int64_t to = ng_min64(k->out, (piece + 1) * j->chunk);
  j->bad[piece] = false;
  for (int64_t r = piece * j->chunk; r < to; r++) {
    float *row = k->direction + r * k->p, *D = j->D + r * k->p; /* PD is made after all rows */
    if (!ng_grad_row(w, r, row)) j->bad[piece] = true;
    if (has_bias) {
      const int64_t size = ng_dtype_size(bias->grad.dtype);
      ng_to_f32(&row[k->p - 1], (const char *)bias->grad.data + r * size, bias->grad.dtype, 1);
      if (!(row[k->p - 1] - row[k->p - 1] == 0.0f)) j->bad[piece] = true;
    }
    if (k->offsets == 1) {
      memcpy(D, row, (size_t)k->p * sizeof *D);
    } else {
      for (int64_t c = 0; c < k->p; c++) {
        D[c] = row[k->map[c]];
      }
    }
  }
}

/* <P,D>, |D|^2, |P|^2 in double, in eight lanes added at the end: the same order for every width of
 * vector, so the same bits on every processor. */
NG_CLONES static void sum_row(const float *P, const float *D, int64_t n, double out[3]) {
  enum { LANES = 8 };
  double pd[LANES] = {0.0}, dd[LANES] = {0.0}, pp[LANES] = {0.0};
  const int64_t whole = n / LANES * LANES;
  for (int64_t c = 0; c < whole; c += LANES) {
    for (int i = 0; i < LANES; i++) {
      const double p = (double)P[c + i], d = (double)D[c + i];
      pd[i] += p * d;
      dd[i] += d * d;
      pp[i] += p * p;
    }
  }
  for (int64_t c = whole; c < n; c++) {
    const double p = (double)P[c], d = (double)D[c];
    pd[c - whole] += p * d;
    dd[c - whole] += d * d;
    pp[c - whole] += p * p;
  }
  out[0] = out[1] = out[2] = 0.0;
  for (int i = 0; i < LANES; i++) {
    out[0] += pd[i];
    out[1] += dd[i];
    out[2] += pp[i];
  }
}

static void sum_rows(void *arg, int32_t piece) {
  const rows_job *j = arg;
  const ng_kron *k = ng_kron_of(j->b);
  const int64_t to = ng_min64(k->out, (piece + 1) * j->chunk);
  for (int64_t r = piece * j->chunk; r < to; r++) {
    sum_row(k->direction + r * k->p, j->D + r * k->p, k->p, j->sums + 3 * r);
  }
}

/* ---- the products ----------------------------------------------------------------------------*/

static const float *as_f32(const ng_kron *k, const void *stored, int64_t n, float *room) {
  if (k->inverse_dtype == NG_F32) return stored;
  ng_to_f32(room, stored, k->inverse_dtype, n);
  return room;
}

static void copy_block(float *to, const float *from, int64_t rows, int64_t cols, int64_t ld) {
  for (int64_t r = 0; r < rows; r++) {
    memcpy(to + r * ld, from + r * ld, (size_t)cols * sizeof *to);
  }
}

static ng_sym result_of(const ng_kron *k, const ng_part *part, float *room) {
  const float *a = as_f32(k, part->R, ng_sym_count(part->n), room);
  const ng_sym S = {(float *)(uintptr_t)a, part->n};
  return S;
}

static void apply_cholesky(ng_block *b, const float *D, float *T, float *room) {
  const ng_kron *k = ng_kron_of(b);
  const ng_linalg_ops *la = b->p->ctx->la;
  for (int32_t i = 0; i < k->side[NG_SIDE_A].parts; i++) {
    const ng_part *a = &k->side[NG_SIDE_A].part[i];
    const int64_t at = a->group * k->q * k->p + a->at;
    const ng_sym S = result_of(k, a, room);
    if (a->is_factor) {
      copy_block(T + at, D + at, k->q, a->n, k->p);
      la->solve_right(S, k->q, T + at, k->p);
    } else {
      la->mul_right(S, k->q, D + at, k->p, T + at, k->p);
    }
  }
  for (int32_t i = 0; i < k->side[NG_SIDE_G].parts; i++) {
    const ng_part *g = &k->side[NG_SIDE_G].part[i];
    const int64_t at = g->at * k->p;
    const ng_sym S = result_of(k, g, room);
    if (g->is_factor) {
      copy_block(k->direction + at, T + at, g->n, k->p, k->p);
      la->solve_left(S, k->p, k->direction + at, k->p);
    } else {
      la->mul_left(S, k->p, T + at, k->p, k->direction + at, k->p);
    }
  }
}

/* T = D Q_A (transposed: back) and Out = Q_G' T (transposed: back), part by part. */
static void times_a(ng_block *b, const float *from, float *to, bool back, float *room) {
  const ng_kron *k = ng_kron_of(b);
  for (int32_t i = 0; i < k->side[NG_SIDE_A].parts; i++) {
    const ng_part *a = &k->side[NG_SIDE_A].part[i];
    const int64_t at = a->group * k->q * k->p + a->at;
    const float *V = as_f32(k, a->V, a->n * a->n, room);
    b->p->ctx->la->gemm(false, !back, k->q, a->n, a->n, 1.0f, from + at, k->p, V, a->n, 0.0f,
                        to + at, k->p);
  }
}

static void times_g(ng_block *b, const float *from, float *to, bool back, float *room) {
  const ng_kron *k = ng_kron_of(b);
  for (int32_t i = 0; i < k->side[NG_SIDE_G].parts; i++) {
    const ng_part *g = &k->side[NG_SIDE_G].part[i];
    const int64_t at = g->at * k->p;
    const float *V = as_f32(k, g->V, g->n * g->n, room);
    b->p->ctx->la->gemm(back, false, g->n, k->p, g->n, 1.0f, V, g->n, from + at, k->p, 0.0f,
                        to + at, k->p);
  }
}

static void divide(ng_block *b, float *U, float *room) {
  const ng_kron *k = ng_kron_of(b);
  const double lambda = b->live[NG_LIVE_DAMPING];
  const bool joint = ng_is(b->opt.damping_split, "joint");
  for (int32_t gi = 0; gi < k->side[NG_SIDE_G].parts; gi++) {
    const ng_part *g = &k->side[NG_SIDE_G].part[gi];
    double on_a, on_g;
    ng_kron_split(b, lambda, (double)k->told[NG_TOLD_PI + g->group], &on_a, &on_g);
    for (int64_t r = 0; r < g->n; r++) {
      float *u = U + (g->at + r) * k->p;
      if (k->prediv != NULL) {
        const int64_t size = ng_dtype_size(k->inverse_dtype);
        const float *R = as_f32(k, (char *)k->prediv + (g->at + r) * k->p * size, k->p, room);
        for (int64_t c = 0; c < k->p; c++) {
          u[c] *= R[c];
        }
        continue;
      }
      const double dg = g->d[r];
      for (int32_t ai = 0; ai < k->side[NG_SIDE_A].each; ai++) {
        const ng_part *a = &k->side[NG_SIDE_A].part[g->group * k->side[NG_SIDE_A].each + ai];
        for (int64_t c = 0; c < a->n; c++) {
          const double da = a->d[c];
          const double by = joint ? dg * da + lambda : (dg + on_g) * (da + on_a);
          u[a->at + c] = (float)((double)u[a->at + c] / by);
        }
      }
    }
  }
}

/* ---- measure, emit ---------------------------------------------------------------------------*/

ng_status ng_kron_measure(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  float *D = k->scratch, *T = D + ng_floats(k->out * k->p), *room = T + ng_floats(k->out * k->p);
  rows_job j;
  j.b = b;
  j.D = D;
  j.sums = (double *)(void *)(room + ng_floats(widest_result(k)));
  const int32_t pieces = pieces_of(b, &j);
  ng_parallel(b->p->ctx, pieces, gather_rows, &j);
  for (int32_t i = 0; i < pieces; i++) {
    if (j.bad[i]) {
      memset(k->direction, 0, (size_t)(k->out * k->p) * sizeof *k->direction);
      return ng_fail(b->p->ctx, NG_SKIPPED, "layer '%s': its gradient is not finite",
                     b->entry->d.name);
    }
  }
  if (!k->good && k->product) {
    memset(k->direction, 0, (size_t)(k->out * k->p) * sizeof *D);
  } else if (!k->good) {
    memcpy(k->direction, D, (size_t)(k->out * k->p) * sizeof *D);
  } else if (k->eigen) {
    times_a(b, D, T, false, room);
    times_g(b, T, k->direction, false, room);
    divide(b, k->direction, room);
    times_a(b, k->direction, T, true, room);
    times_g(b, T, k->direction, true, room);
  } else {
    apply_cholesky(b, D, T, room);
  }
  ng_parallel(b->p->ctx, pieces, sum_rows, &j);
  for (int64_t r = 0; r < k->out; r++) { /* in row order: the same bits for any number of threads */
    b->inner += j.sums[3 * r];
    b->d2 += j.sums[3 * r + 1];
    b->pd2 += j.sums[3 * r + 2];
  }
  return NG_OK;
}

/* Row r of `direction` in published order: where it is, or in `room`. */
static const float *published_row(const ng_kron *k, int64_t r, float *room) {
  const float *row = k->direction + r * k->p;
  if (k->offsets == 1) return row;
  for (int64_t c = 0; c < k->p; c++) {
    room[k->map[c]] = row[c];
  }
  return room;
}

/* In row order: the same bits for any number of threads. */
void ng_kron_norms(ng_block *b, double pd2[2]) {
  const ng_kron *k = ng_kron_of(b);
  const ng_slot *w = &b->entry->slot[NG_WEIGHT], *bias = &b->entry->slot[NG_BIAS];
  const double ascent = b->p->ascent;
  float *room = k->scratch, *D = room + ng_floats(k->p);
  pd2[NG_WEIGHT] = pd2[NG_BIAS] = 0.0;
  memset(D, 0, (size_t)k->p * sizeof *D);
  for (int64_t r = 0; r < k->out; r++) {
    const float *H = published_row(k, r, room);
    if (k->product) (void)ng_grad_row(w, r, D);
    if (k->product && b->entry->d.bias) {
      const int64_t size = ng_dtype_size(bias->grad.dtype);
      ng_to_f32(D + w->cols, (const char *)bias->grad.data + r * size, bias->grad.dtype, 1);
    }
    for (int i = 0; i < b->entry->slots; i++) {
      const int64_t at = i == NG_WEIGHT ? 0 : w->cols, n = i == NG_WEIGHT ? w->cols : 1;
      double sum[3];
      sum_row(H + at, D + at, n, sum);
      pd2[i] += k->product ? sum[1] + ascent * (2.0 * sum[0] + ascent * sum[2]) : sum[2];
    }
  }
}

/* A row of a slot: PD, or with solver = product the gradient and k H. */
static void give_row(const rows_job *j, int32_t which, int64_t row, const float *values) {
  ng_slot *slot = &j->b->entry->slot[which];
  const double factor = j->factor[which];
  if (ng_kron_of(j->b)->product) {
    const ng_pair pair = {.scale = factor, .k = factor * j->b->p->ascent, .u = values};
    ng_sink_span(j->sink, slot, row, 0, slot->cols, &pair);
  } else {
    ng_sink_row(j->sink, slot, row, values, factor);
  }
}

static void emit_rows(void *arg, int32_t piece) {
  const rows_job *j = arg;
  const ng_kron *k = ng_kron_of(j->b);
  float *room = k->scratch + piece * ng_floats(k->p);
  const int64_t to = ng_min64(k->out, (piece + 1) * j->chunk);
  for (int64_t r = piece * j->chunk; r < to; r++) {
    give_row(j, NG_WEIGHT, r, published_row(k, r, room));
  }
}

ng_status ng_kron_emit(ng_block *b, const double factor[2], const ng_sink *sink) {
  ng_kron *k = ng_kron_of(b);
  rows_job j;
  j.b = b;
  j.sink = sink;
  j.factor = factor;
  const int32_t pieces = pieces_of(b, &j);
  ng_parallel(b->p->ctx, pieces, emit_rows, &j);
  if (b->entry->slots > 1) {
    float *bias = k->scratch + pieces * ng_floats(k->p);
    for (int64_t r = 0; r < k->out; r++) {
      bias[r] = k->direction[r * k->p + k->p - 1]; /* internal order, too, has the bias last */
    }
    give_row(&j, NG_BIAS, 0, bias);
  }
  return NG_OK;
}
