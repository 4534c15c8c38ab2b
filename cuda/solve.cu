/* solve.cu: the kernels of solve.c, which check and store the result of a matrix. src/linalg/results.c has the same checks. */
#include "device_read.h"

/* ng_result */
enum { DV_INVERSE, DV_CHOLESKY, DV_EIGEN, DV_COPY, DV_ROOT };

NG_INLINE double dv_sym_number(const char *S, int32_t t, int64_t n, int64_t i, int64_t j) {
  return dv_number(S, t, i > j ? dv_sym_at(n, i, j) : dv_sym_at(n, j, i));
}

/* Return the largest x of the threads of a block; an x that is not finite counts as Inf. all: shared memory for DV_THREADS numbers. */
NG_INLINE double dv_block_largest(double x, double *all) {
  NG_BARRIER();
  all[NG_THREAD] = x - x == 0.0 ? x : DV_INF;
  NG_BARRIER();
  double most = all[0];
  for (int32_t i = 1; i < NG_THREADS; i++) {
    most = all[i] > most ? all[i] : most;
  }
  return most;
}

/* *info <- the info of T1 (infos[0]), or of T2 (infos[1]), which begins at row h. One thread. */
NG_GLOBAL dv_join_infos(const int32_t *infos, int64_t h, int32_t *info) {
  if (NG_THREAD == 0) {
    *info = infos[0] != 0 ? infos[0] : infos[1] > 0 ? (int32_t)h + infos[1] : infos[1];
  }
}

/* ---- inverse, factor -------------------------------------------------------------------------*/

/* One block: *worst <- the index of the largest diagonal entry of an inverse, or of the smallest one of L; -1 if a diagonal
 * entry is not positive and finite, or the solve failed. column <- this column of the inverse, or of the identity. */
NG_INLINE void dv_take_column(const dv_solve *s) {
  NG_SHARED double extreme[DV_THREADS];
  NG_SHARED int64_t place[DV_THREADS];
  const bool is_factor = s->result == DV_CHOLESKY;
  bool is_bad = s->infos[0] != 0 || s->infos[1] != 0;
  int64_t at = -1;
  double best = 0.0;
  for (int64_t i = NG_THREAD; i < s->n; i += DV_THREADS) {
    const double x = dv_number(s->W, s->W_dtype, dv_sym_at(s->n, i, i));
    if (!(x > 0.0) || !(x - x == 0.0)) is_bad = true;
    if (at < 0 || (is_factor ? x < best : x > best)) {
      best = x;
      at = i;
    }
  }
  extreme[NG_THREAD] = best;
  place[NG_THREAD] = is_bad ? -2 : at;
  NG_BARRIER();
  for (int32_t k = 0; k < DV_THREADS; k++) {
    if (place[k] == -2) is_bad = true;
    if (place[k] < 0) continue;
    const bool is_equal = extreme[k] == best && place[k] < at;
    if (at < 0 || is_equal || (is_factor ? extreme[k] < best : extreme[k] > best)) {
      best = extreme[k];
      at = place[k];
    }
  }
  if (is_bad) at = -1;
  if (NG_THREAD == 0) *s->worst = at;
  for (int64_t i = NG_THREAD; i < s->n; i += DV_THREADS) {
    const double x = at < 0      ? 0.0
                     : is_factor ? (i == at ? 1.0 : 0.0)
                                 : dv_sym_number(s->W, s->W_dtype, s->n, i, at);
    dv_put(s->column, s->W_dtype, i, x);
  }
}

NG_GLOBAL dv_solve_take_column(const dv_solve *s) { dv_take_column(s); }

/* A thread for each row: parts [blocks] <- the largest |(scale F + d I) x - e| of the rows of a block. */
NG_INLINE void dv_find_residual(const dv_solve *s, int64_t block) {
  NG_SHARED double all[DV_THREADS];
  const int64_t i = block * DV_THREADS + NG_THREAD;
  double r = 0.0;
  if (i < s->n) {
    double y = 0.0;
    for (int64_t j = 0; j < s->n; j++) {
      y += dv_sym_number(s->F, s->F_dtype, s->n, i, j) * dv_number(s->column, s->W_dtype, j);
    }
    const double x = dv_number(s->column, s->W_dtype, i);
    r = fabs(s->scale * y + (s->shift + s->damping) * x - (i == *s->worst ? 1.0 : 0.0));
  }
  r = dv_block_largest(r, all);
  if (NG_THREAD == 0) s->parts[block] = r;
}
NG_GLOBAL dv_solve_residual(const dv_solve *s) { dv_find_residual(s, NG_BLOCK); }

/* One block. */
NG_INLINE void dv_accept(const dv_solve *s) {
  if (NG_THREAD != 0) return;
  bool is_good = *s->worst >= 0;
  for (int64_t k = 0; k < s->part_count; k++) {
    is_good = is_good && s->parts[k] <= s->residual_most;
  }
  *s->info = s->infos[0] != 0 ? s->infos[0] : s->infos[1];
  *s->accepted = is_good ? 1 : 0;
}
NG_GLOBAL dv_solve_accept(const dv_solve *s) { dv_accept(s); }

/* ---- eigen -----------------------------------------------------------------------------------*/

/* The eigenpairs that are checked: the first, the middle and the last. */
NG_INLINE int64_t dv_sample(const dv_solve *s, int32_t k) {
  return k == 0 ? 0 : k == 1 ? s->n / 2 : s->n - 1;
}

/* A thread for each row: parts [blocks] <- the largest |F v - e v| of the rows of a block and three eigenpairs. */
NG_GLOBAL dv_solve_check_pairs(const dv_solve *s) {
  NG_SHARED double all[DV_THREADS];
  const int64_t i = NG_BLOCK * DV_THREADS + NG_THREAD;
  double most = 0.0;
  for (int32_t k = 0; k < 3 && i < s->n; k++) {
    const int64_t at = dv_sample(s, k) * s->n;
    double y = 0.0;
    for (int64_t j = 0; j < s->n; j++) {
      y += dv_sym_number(s->F, s->F_dtype, s->n, i, j) * dv_number(s->W, s->W_dtype, at + j);
    }
    const double r = fabs(y - dv_number(s->e, s->W_dtype, dv_sample(s, k)) *
                                  dv_number(s->W, s->W_dtype, at + i));
    if (!(r <= most)) most = r; /* written so that a NaN in r is stored */
  }
  most = dv_block_largest(most, all);
  if (NG_THREAD == 0) s->parts[NG_BLOCK] = most;
}

/* One block. */
NG_GLOBAL dv_solve_accept_pairs(const dv_solve *s) {
  NG_SHARED double all[DV_THREADS];
  NG_SHARED double warps[32];
  const int64_t n = s->n;
  double top = 0.0, norm[3] = {0.0, 0.0, 0.0}, dot = 0.0;
  for (int64_t i = NG_THREAD; i < n; i += DV_THREADS) {
    const double e = fabs(dv_number(s->e, s->W_dtype, i));
    if (!(e <= top)) top = e; /* written so that a NaN in e is stored */
    for (int32_t k = 0; k < 3; k++) {
      const double v = dv_number(s->W, s->W_dtype, dv_sample(s, k) * n + i);
      norm[k] += v * v;
    }
    dot += dv_number(s->W, s->W_dtype, i) * dv_number(s->W, s->W_dtype, (n - 1) * n + i);
  }
  top = dv_block_largest(top, all);
  bool is_good = s->infos[0] == 0 && top <= DV_LARGEST_F32;
  for (int32_t k = 0; k < 3; k++) {
    norm[k] = dv_block_sum(norm[k], warps);
    is_good = is_good && fabs(norm[k] - 1.0) <= s->residual_most;
  }
  dot = dv_block_sum(dot, warps);
  if (NG_THREAD != 0) return;
  is_good = is_good && (n == 1 || fabs(dot) <= s->residual_most);
  is_good = is_good && dv_number(s->e, s->W_dtype, 0) >= -s->negative_most * top;
  for (int64_t k = 0; k < s->part_count; k++) {
    is_good = is_good && s->parts[k] <= s->residual_most * top;
  }
  *s->info = s->infos[0];
  *s->accepted = is_good ? 1 : 0;
  if (is_good) {
    *s->largest_eigenvalue = s->W_dtype == DV_F64 ? 0.0 : s->scale * dv_number(s->e, DV_F32, n - 1);
  }
}

/* Return e + shift in the dtype of the result, or 0 if it is at most `floor` or negative. */
NG_INLINE double dv_clamp_eigenvalue(const dv_solve *s, double e) {
  double x = e + s->shift;
  if (s->d_dtype != DV_F64) x = (double)(float)x;
  return x <= s->floor || x < 0.0 ? 0.0 : x;
}

NG_GLOBAL dv_solve_store_eigenvalues(const dv_solve *s) {
  for (int64_t i = NG_THREAD; i < s->n && *s->accepted != 0; i += DV_THREADS) {
    dv_put(s->d, s->d_dtype, i, dv_clamp_eigenvalue(s, dv_number(s->e, s->W_dtype, i)));
  }
}

/* root [n] <- (scale e + d)^(1/2p), by which rows of eigenvectors are divided. If e_0 is negative, all e are reduced by e_0. */
NG_GLOBAL dv_solve_roots(const dv_solve *s) {
  const double least = (double)(float)dv_number(s->e, s->W_dtype, 0);
  const double d = s->shift + s->damping - (least < 0.0 ? s->scale * least : 0.0);
  for (int64_t i = NG_THREAD; i < s->n; i += DV_THREADS) {
    const double e = (double)(float)dv_number(s->e, s->W_dtype, i);
    s->root[i] = (float)pow(s->scale * e + d, 0.5 / s->p);
  }
}

/* ---- any result ------------------------------------------------------------------------------*/

/* Elements of one tile. *accepted <- 0 if an element of W is not finite or not in the range of its dtype. */
NG_INLINE void dv_check_range(const dv_solve *s, int64_t tile) {
  for (int64_t i = tile * DV_TILE + NG_THREAD; i < (tile + 1) * DV_TILE && i < s->count;
       i += DV_THREADS) {
    if (!(fabs((double)(float)dv_number(s->W, s->W_dtype, i)) <= s->largest)) *s->accepted = 0;
  }
}
NG_GLOBAL dv_solve_check_range(const dv_solve *s) { dv_check_range(s, NG_BLOCK); }
NG_INLINE void dv_store_result(const dv_solve *s, int64_t tile) {
  for (int64_t i = tile * DV_TILE + NG_THREAD;
       i < (tile + 1) * DV_TILE && i < s->count && *s->accepted != 0; i += DV_THREADS) {
    dv_put(s->R, s->R_dtype, i, dv_number(s->W, s->W_dtype, i));
  }
}
NG_GLOBAL dv_solve_store(const dv_solve *s) { dv_store_result(s, NG_BLOCK); }

/* Return element i of the result of a diagonal matrix; an inverse or root is rounded to the dtype of d. */
NG_INLINE double dv_diagonal_result(const dv_solve *s, int64_t i) {
  const double F = dv_number(s->F, DV_F32, i);
  double x = 1.0 / (F + (s->shift + s->damping));
  if (s->result == DV_EIGEN) return dv_clamp_eigenvalue(s, F);
  if (s->result == DV_COPY) return F;
  if (s->result == DV_ROOT) x = pow(x, 1.0 / s->p);
  return s->d_dtype == DV_F64 ? x : (double)(float)x;
}
/* One block. Nothing is stored if an inverse or root is not positive or not in the range of its dtype. */
NG_GLOBAL dv_solve_diagonal(const dv_solve *s) {
  NG_SHARED double all[DV_THREADS];
  const bool checks = s->result != DV_EIGEN && s->result != DV_COPY;
  double bad = 0.0;
  for (int64_t i = NG_THREAD; i < s->n && checks; i += DV_THREADS) {
    const double x = dv_diagonal_result(s, i);
    if (!(x > 0.0) || !(x - x == 0.0)) bad = 1.0;
  }
  bad = dv_block_largest(bad, all);
  if (NG_THREAD == 0) *s->accepted = bad == 0.0 ? 1 : 0;
  for (int64_t i = NG_THREAD; i < s->n && bad == 0.0; i += DV_THREADS) {
    dv_put(s->d, s->d_dtype, i, dv_diagonal_result(s, i));
  }
}

/* ---- small matrices, all at once ---------------------------------------------------------------*/

/* W <- L with W = L L', one column after the other. Return 0, or 1 + the column whose pivot is not positive and finite. */
NG_INLINE int32_t dv_factor_small(double *W, int64_t n) {
  for (int64_t j = 0; j < n; j++) {
    NG_BARRIER();
    const double pivot = W[dv_sym_at(n, j, j)], root = sqrt(pivot);
    if (!(pivot > 0.0) || !(pivot - pivot == 0.0)) return (int32_t)j + 1;
    NG_BARRIER();
    for (int64_t i = j + NG_THREAD; i < n; i += DV_THREADS) {
      const int64_t at = dv_sym_at(n, i, j);
      W[at] = i == j ? root : W[at] / root;
    }
    NG_BARRIER();
    const int64_t m = n - j - 1;
    for (int64_t k = NG_THREAD; k < m * m; k += DV_THREADS) {
      const int64_t row = j + 1 + k / m, col = j + 1 + k % m;
      if (col <= row)
        W[dv_sym_at(n, row, col)] -= W[dv_sym_at(n, row, j)] * W[dv_sym_at(n, col, j)];
    }
  }
  return 0;
}

/* W = L <- (L L')^-1 by X = L^-1: a thread for each column of X, then for each element of X'X. */
NG_INLINE void dv_invert_small(double *W, double *X, int64_t n) {
  for (int64_t j = NG_THREAD; j < n; j += DV_THREADS) {
    for (int64_t i = j; i < n; i++) {
      double x = i == j ? 1.0 : 0.0;
      for (int64_t k = j; k < i; k++) {
        x -= W[dv_sym_at(n, i, k)] * X[dv_sym_at(n, k, j)];
      }
      X[dv_sym_at(n, i, j)] = x / W[dv_sym_at(n, i, i)];
    }
  }
  NG_BARRIER();
  for (int64_t k = NG_THREAD; k < n * n; k += DV_THREADS) {
    const int64_t i = k / n, j = k % n;
    double sum = 0.0;
    for (int64_t l = i; l < n && j <= i; l++) {
      sum += X[dv_sym_at(n, l, i)] * X[dv_sym_at(n, l, j)];
    }
    if (j <= i) W[dv_sym_at(n, i, j)] = sum;
  }
}

/* x <- (L L')^-1 x: 2n steps, of which each finds one element and subtracts its column of L, then of L'. */
NG_INLINE void dv_solve_column(const double *L, double *x, int64_t n) {
  for (int64_t k = 0; k < 2 * n; k++) {
    const int64_t j = k < n ? k : 2 * n - 1 - k;
    NG_BARRIER();
    const double y = x[j] / L[dv_sym_at(n, j, j)];
    NG_BARRIER();
    for (int64_t i = NG_THREAD; i < n; i += DV_THREADS) {
      if (i == j) x[i] = y;
      if (k < n && i > j) x[i] -= L[dv_sym_at(n, i, j)] * y;
      if (k >= n && i < j) x[i] -= L[dv_sym_at(n, j, i)] * y;
    }
  }
}

/* One block for each matrix: its inverse or factor in double, with the checks of the kernels above. W, e [count] and column [n] are
 * f64, and part_count is 1. */
NG_GLOBAL dv_solve_small(const dv_solve *list) {
  const dv_solve *s = &list[NG_BLOCK];
  const int64_t n = s->n, tiles = (s->count + DV_TILE - 1) / DV_TILE;
  double *W = (double *)(void *)s->W;
  for (int64_t k = NG_THREAD; k < s->count; k += DV_THREADS) {
    W[k] = s->scale * dv_number(s->F, s->F_dtype, k);
  }
  NG_BARRIER();
  for (int64_t i = NG_THREAD; i < n; i += DV_THREADS) {
    W[dv_sym_at(n, i, i)] += s->shift + s->damping;
  }
  const int32_t info = dv_factor_small(W, n);
  NG_BARRIER();
  if (info == 0 && s->result == DV_INVERSE) dv_invert_small(W, (double *)(void *)s->e, n);
  if (NG_THREAD == 0) s->infos[0] = info;
  if (NG_THREAD == 0) s->infos[1] = 0;
  NG_BARRIER();
  dv_take_column(s);
  NG_BARRIER();
  if (info == 0 && s->result == DV_CHOLESKY)
    dv_solve_column(W, (double *)(void *)s->column, n);
  NG_BARRIER();
  dv_find_residual(s, 0);
  NG_BARRIER();
  dv_accept(s);
  NG_BARRIER();
  for (int64_t k = 0; k < tiles; k++) {
    dv_check_range(s, k);
  }
  NG_BARRIER();
  for (int64_t k = 0; k < tiles; k++) {
    dv_store_result(s, k);
  }
}
