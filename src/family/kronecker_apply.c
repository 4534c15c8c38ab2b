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

/* ---- scratch: D [rows of a chunk, p], 3 doubles a row, scratch of ng_twosided_apply ----------------------*/

enum { CHUNK = 256 };

/* Rows of an embedding are independent, because its left side is diagonal, so they form chunks; else one chunk. */
static int64_t rows_per_chunk(const ng_kron *k) {
  return k->both.left->form == NG_FORM_DIAGONAL ? ng_min64(CHUNK, k->outputs) : k->outputs;
}

static int64_t D_floats(const ng_kron *k, int64_t rows) {
  return ng_round16(rows * k->p) * (k->is_double ? 2 : 1);
}

int64_t ng_kron_apply_scratch(const ng_block *b) {
  const ng_kron *k = ng_kron_of(b);
  if (k->spatial != NULL) return ng_spatial_apply_scratch(k);
  const int64_t rows = rows_per_chunk(k);
  const int64_t apply = ng_twosided_scratch(&k->both, rows);
  return D_floats(k, rows) + ng_round16(6 * rows) + ng_max64(apply, ng_kron_rows_scratch(b));
}

/* ---- precondition, measure, emit -------------------------------------------------------------*/

void ng_kron_read_rows(const ng_block *b, int64_t row, int64_t rows, void *D) {
  ng_kron *k = ng_kron_of(b);
  ng_queue *q = b->ctx->queue;
  const ng_slot *w = b->segment[0].slot;
  ng_read list[] = {{.D = {&w->grad, row, rows, 0, w->cols},
                     .to_row = k->p,
                     .to_col = 1,
                     .map = k->offsets > 1 ? k->unmap : NULL,
                     .finite = &k->sums->finite},
                    {.to_col = k->p, .finite = &k->sums->finite}};
  for (int i = 0; i < 2; i++) {
    const int64_t at = i == 0 ? 0 : k->p - 1;
    if (k->is_double) list[i].to_double = (double *)D + at;
    if (!k->is_double) list[i].to = (float *)D + at;
  }
  if (b->segments > 1) list[1].D = (ng_region){&b->segment[1].slot->grad, 0, 1, row, rows};
  ng_kernels(q)->read_gradients(q, list, b->segments);
}

/* Rows are summed in order, so the bits do not depend on the number of threads. */
void ng_kron_precondition(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  ng_queue *q = b->ctx->queue;
  if (k->spatial != NULL) {
    ng_spatial_precondition(b);
    return;
  }
  const int64_t most = rows_per_chunk(k);
  float *D = ng_scratch(b);
  double *sums = (double *)(void *)(D + D_floats(k, most));
  float *scratch = (float *)(void *)sums + ng_round16(6 * most);
  ng_kron_set_damping(b);
  *k->sums = (ng_direction_sums){.finite = 1};
  for (int64_t row = 0; row < k->outputs; row += most) {
    const int64_t rows = ng_min64(most, k->outputs - row);
    float *out = b->direction + row * k->p * (k->is_double ? 2 : 1);
    ng_kron_read_rows(b, row, rows, D);
    if (k->rows == NULL || !ng_kron_rows_apply(b, D, out, scratch))
      ng_twosided_apply(q, &k->both, row, rows, D, out, scratch);
    if (k->is_double) {
      ng_linalg(q)->add_sums64(q, rows * k->p, (void *)out, (void *)D, k->sums->total);
    } else {
      ng_linalg(q)->sum_row_products(q, rows, k->p, out, k->p, D, k->p, sums);
      ng_linalg(q)->add_rows_of_sums(q, rows, sums, k->sums->total);
    }
  }
}

ng_status ng_kron_read_sums(ng_block *b) {
  const ng_kron *k = ng_kron_of(b);
  return ng_block_read_sums(b, k->sums, ng_kron_direction_floats(k));
}

/* The gradient of the bias is one row whose columns are the outputs; in `direction` the bias is the last column. */
void ng_kron_emit(const ng_block *b, int32_t segment, int32_t g, double factor, ng_direction *e) {
  const ng_kron *k = ng_kron_of(b);
  const bool is_bias = b->segment[segment].slot->param == NG_BIAS;
  (void)g;
  if (k->spatial != NULL) {
    ng_spatial_describe(b, is_bias, e);
  } else if (is_bias) {
    ng_describe_stored(e, b->direction + k->p - 1, 0, k->p, NULL);
  } else {
    ng_describe_stored(e, b->direction, k->p, 1, k->offsets > 1 ? k->unmap : NULL);
  }
  if (k->is_double) {
    e->u_double = (double *)(void *)b->direction + (e->u - b->direction);
    e->u = NULL;
  }
  e->is_stored = !k->is_product;
  e->k = k->is_product ? factor : 0.0;
}
