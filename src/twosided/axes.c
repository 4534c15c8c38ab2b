/* axes.c: a tensor with a basis on each axis: rotate the tensor, add Gram matrices, carry second moments to other bases.
 *
 * Element (i0, i1, ...) of a tensor D [n0, n1, ...] is row-major. Row i of a basis Q' is vector i, so the coordinates of
 * axis k in its basis are sum_j Q'[i][j] D[.., j, ..]. The unfolding D_(k) [n_k, all / n_k] has axis k as rows.
 *
 * A product contracts the first axis and appends the result as the last axis (X' Q, one GEMM). After all axes the order
 * is the first one again, so no axis is transposed. A matrix is multiplied in place of its order. */
#include "twosided/twosided.h"

int64_t ng_axes_elements(const ng_axes *a) {
  int64_t all = 1;
  for (int32_t k = 0; k < a->count; k++) {
    all = ng_times(all, a->length[k]);
  }
  return all;
}

int64_t ng_axes_scratch(const ng_axes *a) {
  int64_t squares = 0;
  for (int32_t k = 0; k < a->count; k++) {
    squares += 2 * ng_round16(ng_times(a->length[k], a->length[k]));
  }
  return ng_round16(ng_axes_elements(a)) + squares;
}

/* ---- rotation --------------------------------------------------------------------------------*/

/* y <- x with axis k of a matrix or vector multiplied by M, or by M' if `back`. */
static void multiply_in_order(ng_queue *q, const ng_axes *a, int32_t k, bool back, const float *M,
                              const float *x, float *y) {
  const int64_t n = a->length[k], others = ng_axes_elements(a) / n;
  if (k == a->count - 1) {
    ng_linalg(q)->gemm(q, NG_F32, false, !back, others, n, n, 1.0, x, n, M, n, 0.0, y, n);
  } else {
    ng_linalg(q)->gemm(q, NG_F32, back, false, n, others, n, 1.0, M, n, x, others, 0.0, y, others);
  }
}

/* y [others, n] <- X' M', X [n, others]; M NULL: X'. */
static void multiply_and_cycle(ng_queue *q, int64_t n, int64_t others, bool back, const float *M,
                               const float *x, float *y) {
  if (M != NULL) {
    ng_linalg(q)->gemm(q, NG_F32, true, !back, others, n, n, 1.0, x, others, M, n, 0.0, y, n);
    return;
  }
  const ng_copy c = {.from = {.data = (void *)(uintptr_t)x,
                              .dtype = NG_F32,
                              .ndim = 2,
                              .shape = {n, others},
                              .stride = {others, 1}},
                     .to = y,
                     .to_stride = {1, n}};
  ng_kernels(q)->copy_arrays(q, &c, 1);
}

void ng_axes_rotate(ng_queue *q, const ng_axes *a, bool back, const float *D, float *out,
                    float *scratch) {
  const int64_t all = ng_axes_elements(a);
  const bool cycles = a->count > 2;
  int32_t left = 0;
  for (int32_t k = 0; k < a->count; k++) {
    left += cycles || a->basis[k] != NULL;
  }
  if (left == 0) ng_linalg(q)->copy_rows(q, 1, all, D, all, out, all);
  for (int32_t k = 0; k < a->count; k++) {
    if (!cycles && a->basis[k] == NULL) continue;
    float *const to = left-- % 2 == 1 ? out : scratch;
    if (cycles) {
      multiply_and_cycle(q, a->length[k], all / a->length[k], back, a->basis[k], D, to);
    } else {
      multiply_in_order(q, a, k, back, a->basis[k], D, to);
    }
    D = to;
  }
}

/* ---- Gram matrices ---------------------------------------------------------------------------*/

void ng_axes_add_gram(ng_queue *q, const ng_axes *a, int32_t k, const float *D, float c, float *sum,
                      float *scratch) {
  const int64_t n = a->length[k];
  int64_t before = 1, after = 1;
  for (int32_t i = 0; i < a->count; i++) {
    *(i < k ? &before : &after) *= i == k ? 1 : a->length[i];
  }
  if (after > 1) { /* scratch <- D_(k)' */
    const ng_copy t = {.from = {.data = (void *)(uintptr_t)D,
                                .dtype = NG_F32,
                                .ndim = 3,
                                .shape = {before, n, after},
                                .stride = {n * after, after, 1}},
                       .to = scratch,
                       .to_stride = {after * n, 1, n}};
    ng_kernels(q)->copy_arrays(q, &t, 1);
    D = scratch;
  }
  ng_linalg(q)->add_gram(q, (ng_sym){sum, n}, 0, n, D, before * after, n, c);
}

/* ---- second moments in other bases -----------------------------------------------------------*/

void ng_axes_permute(ng_queue *q, const ng_axes *a, const int32_t *const *order, const float *V,
                     float *out, float *scratch) {
  int64_t after = ng_axes_elements(a), before = 1;
  int32_t left = 0;
  for (int32_t k = 0; k < a->count; k++) {
    left += order[k] != NULL;
  }
  if (left == 0) ng_linalg(q)->copy_rows(q, 1, after, V, after, out, after);
  for (int32_t k = 0; k < a->count; k++) {
    const int64_t n = a->length[k];
    after /= n;
    float *const to = left % 2 == 1 ? out : scratch;
    for (int64_t i = 0; i < n && order[k] != NULL; i++) {
      ng_linalg(q)->copy_rows(q, before, after, V + order[k][i] * after, n * after, to + i * after,
                              n * after);
    }
    if (order[k] != NULL) {
      V = to;
      left--;
    }
    before *= n;
  }
}

/* T[i][j] = <new vector i, old vector j>. The covariance with the diagonal V in the old basis has the diagonal
 * sum_j T[i][j]^2 V[j] in the new basis. */
void ng_axes_rotate_squares(ng_queue *q, const ng_axes *from, const ng_axes *to, const float *V,
                            float *out, float *scratch) {
  ng_axes squares = *to;
  float *T = scratch + ng_round16(ng_axes_elements(to));
  for (int32_t k = 0; k < to->count; k++) {
    const int64_t n = to->length[k];
    float *const T2 = T + ng_round16(n * n);
    if (to->basis[k] == NULL) continue;
    ng_linalg(q)->gemm(q, NG_F32, false, true, n, n, n, 1.0, to->basis[k], n, from->basis[k], n,
                       0.0, T, n);
    ng_linalg(q)->mul_diagonal(q, false, 1, n * n, T, NG_F32, T, T2, n * n); /* T o T */
    squares.basis[k] = T2;
    T = T2 + ng_round16(n * n);
  }
  ng_axes_rotate(q, &squares, false, V, out, scratch);
}
