/* ref.c: linear algebra by plain loops: the oracle of the other implementations, and the fallback without BLAS.
 *
 * Every sum is in double, in index order, and rounded once. vector.c has the entries for vectors and for storage.
 *
 * Eigenvalues: Jacobi rotations in double (Golub & Van Loan, Matrix Computations, 4th ed., 8.5).
 *
 * Results are equal to the last bit on every machine with IEEE arithmetic and without contraction. */
#include "linalg/linalg.h"
#include "linalg/vector.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- products --------------------------------------------------------------------------------*/

/* C_ij <- alpha sum over l of op(A)_il op(B)_lj + beta C_ij. If beta == 0, C, which may be NaN, is not read. */
static void gemm(ng_queue *q, ng_dtype t, bool ta, bool tb, int64_t m, int64_t n, int64_t k,
                 double alpha, const void *A, int64_t lda, const void *B, int64_t ldb, double beta,
                 void *C, int64_t ldc) {
  const int64_t a_step = ta ? lda : 1, b_step = tb ? 1 : ldb;
  (void)q;
  for (int64_t i = 0; i < m; i++) {
    for (int64_t j = 0; j < n; j++) {
      double sum = 0.0;
      for (int64_t l = 0; l < k; l++) {
        sum += ng_number_at(A, t, (ta ? i : i * lda) + l * a_step) *
               ng_number_at(B, t, (tb ? j * ldb : j) + l * b_step);
      }
      sum *= alpha;
      if (beta != 0.0) sum += beta * ng_number_at(C, t, i * ldc + j);
      ng_set_number(C, t, i * ldc + j, sum);
    }
  }
}

/* S_ij += alpha sum over rows l of X_li X_lj, for i and j in the block from r0. */
static void add_gram(ng_queue *q, ng_sym S, int64_t r0, int64_t m, const float *X, int64_t rows,
                     int64_t ldx, float alpha) {
  (void)q;
  for (int64_t i = 0; i < m; i++) {
    for (int64_t j = 0; j <= i; j++) {
      double sum = 0.0;
      for (int64_t l = 0; l < rows; l++) {
        sum += (double)X[l * ldx + i] * (double)X[l * ldx + j];
      }
      float *s = &S.a[ng_sym_at(S.n, r0 + i, r0 + j)];
      *s = (float)((double)*s + (double)alpha * sum);
    }
  }
}

static void mul_right(ng_queue *q, ng_sym S, int64_t m, const float *B, int64_t ldb, float *C,
                      int64_t ldc) {
  (void)q;
  for (int64_t r = 0; r < m; r++) {
    for (int64_t j = 0; j < S.n; j++) {
      double sum = 0.0;
      for (int64_t l = 0; l < S.n; l++) {
        sum += (double)B[r * ldb + l] * (double)S.a[ng_sym_at(S.n, l, j)];
      }
      C[r * ldc + j] = (float)sum;
    }
  }
}

static void mul_left(ng_queue *q, ng_sym S, int64_t m, const float *B, int64_t ldb, float *C,
                     int64_t ldc) {
  (void)q;
  for (int64_t i = 0; i < S.n; i++) {
    for (int64_t c = 0; c < m; c++) {
      double sum = 0.0;
      for (int64_t l = 0; l < S.n; l++) {
        sum += (double)S.a[ng_sym_at(S.n, i, l)] * (double)B[l * ldb + c];
      }
      C[i * ldc + c] = (float)sum;
    }
  }
}

/* ---- Cholesky --------------------------------------------------------------------------------
 * L_ij = (S_ij - sum over l < j of L_il L_jl) / L_jj, L_ii = sqrt(S_ii - sum over l < i of L_il^2) (Golub & Van
 * Loan, 4.2). If L_ii is not positive, or NaN, info is i + 1, the order of the failing leading minor.
 *
 * The functions work in place, row by row. Each element of a solution is rounded to its dtype, as BLAS does. `invert` first
 * computes X = L^-1: X_ij needs row i of L from column j on and the finished rows of X above. Then it computes X'X:
 * element (i, j) needs columns i and j of X from row i down, so row i is overwritten after the rows above, its diagonal
 * last. */
#define AT(i, j) ng_number_at(a, t, ng_sym_at(n, (i), (j)))

static void factor(ng_queue *q, int64_t n, void *a, ng_dtype t, int *info) {
  (void)q;
  *info = 0;
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j <= i; j++) {
      double sum = AT(i, j);
      for (int64_t l = 0; l < j; l++) {
        sum -= AT(i, l) * AT(j, l);
      }
      ng_set_number(a, t, ng_sym_at(n, i, j), j < i ? sum / AT(j, j) : sqrt(sum));
    }
    if (!(AT(i, i) > 0)) { /* written so that NaN also fails */
      *info = (int)(i + 1);
      return;
    }
  }
}

/* *info is i + 1 if L_ii is 0. */
static void invert(ng_queue *q, int64_t n, void *a, ng_dtype t, int *info) {
  (void)q;
  *info = 0;
  for (int64_t i = n - 1; i >= 0; i--) {
    if (AT(i, i) == 0.0) *info = (int)(i + 1);
  }
  if (*info != 0) return;
  for (int64_t i = 0; i < n; i++) {
    const double pivot = 1.0 / AT(i, i);
    for (int64_t j = 0; j < i; j++) {
      double sum = 0.0;
      for (int64_t l = j; l < i; l++) {
        sum += AT(i, l) * AT(l, j);
      }
      ng_set_number(a, t, ng_sym_at(n, i, j), -sum * pivot);
    }
    ng_set_number(a, t, ng_sym_at(n, i, i), pivot);
  }
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j <= i; j++) {
      double sum = 0.0;
      for (int64_t l = i; l < n; l++) {
        sum += AT(l, i) * AT(l, j);
      }
      ng_set_number(a, t, ng_sym_at(n, i, j), sum);
    }
  }
}

/* x <- (L L')^-1 x for elements from, from + stride, ... of x: solve L y = x, then L' x = y; row i of L' is column i of L. */
static void solve_vector(int64_t n, const void *a, ng_dtype t, void *x, int64_t from,
                         int64_t stride) {
  for (int64_t i = 0; i < n; i++) {
    double sum = ng_number_at(x, t, from + i * stride);
    for (int64_t l = 0; l < i; l++) {
      sum -= AT(i, l) * ng_number_at(x, t, from + l * stride);
    }
    ng_set_number(x, t, from + i * stride, sum / AT(i, i));
  }
  for (int64_t i = n - 1; i >= 0; i--) {
    double sum = ng_number_at(x, t, from + i * stride);
    for (int64_t l = i + 1; l < n; l++) {
      sum -= AT(l, i) * ng_number_at(x, t, from + l * stride);
    }
    ng_set_number(x, t, from + i * stride, sum / AT(i, i));
  }
}
#undef AT

/* solve_right solves for each row of B, solve_left for each column. */
static void solve_right(ng_queue *q, int64_t n, const void *L, ng_dtype t, int64_t m, void *B,
                        int64_t ldb) {
  (void)q;
  for (int64_t r = 0; r < m; r++) {
    solve_vector(n, L, t, B, r * ldb, 1);
  }
}

static void solve_left(ng_queue *q, ng_sym L, int64_t m, float *B, int64_t ldb) {
  (void)q;
  for (int64_t c = 0; c < m; c++) {
    solve_vector(L.n, L.a, NG_F32, B, c, ldb);
  }
}

/* ---- eigen -----------------------------------------------------------------------------------*/

/* Rotate two lines x and y of n numbers at distance `stride`: x <- c x - s y, y <- s x + c y. */
static void rotate(double *x, double *y, int64_t n, int64_t stride, double c, double s) {
  for (int64_t i = 0; i < n * stride; i += stride) {
    const double old = x[i];
    x[i] = c * old - s * y[i];
    y[i] = s * old + c * y[i];
  }
}

/* Diagonalise A [n,n], with |A_ij| <= 1, by cyclic Jacobi rotations, and multiply the rotations into V. Two angles make an
 * entry 0, of which the smaller one is used (Golub & Van Loan, 8.5). Return false if A is not diagonal after 60 sweeps; 8
 * are usual. */
static bool diagonalise(int64_t n, double *A, double *V) {
  const double TINY = 0x1p-66;
  bool turned = true;
  for (int sweep = 0; sweep < 60 && turned; sweep++) {
    turned = false;
    for (int64_t p = 0; p < n; p++) {
      for (int64_t q = p + 1; q < n; q++) {
        const double x = A[p * n + q];
        if (fabs(x) <= TINY) continue;
        /* cotangent of twice the rotation angle */
        const double cot = (A[q * n + q] - A[p * n + p]) / (2.0 * x);
        const double t = copysign(1.0, cot) / (fabs(cot) + hypot(cot, 1.0));
        const double c = 1.0 / hypot(t, 1.0);
        rotate(A + p, A + q, n, n, c, t * c);
        rotate(A + p * n, A + q * n, n, 1, c, t * c);
        rotate(V + p * n, V + q * n, n, 1, c, t * c);
        A[p * n + q] = A[q * n + p] = 0.0;
        turned = true;
      }
    }
  }
  return !turned;
}

/* Replace V by its eigenvectors (rows) and set w to the eigenvalues in ascending order. V is first scaled by a power of
 * two, without rounding, so that its largest entry is in [1/2, 1). Return 1 if V is not finite or the rotations do not
 * converge. */
static int decompose(int64_t n, double *V, double *w, void *work) {
  double *A = work, most = 0.0;
  int exponent = 0;
  for (int64_t i = 0; i < n * n; i++) {
    if (!isfinite(V[i])) return 1;
    most = fmax(most, fabs(V[i]));
  }
  (void)frexp(most, &exponent);
  for (int64_t i = 0; i < n * n; i++) {
    A[i] = ldexp(V[i], -exponent);
    V[i] = i % (n + 1) == 0 ? 1.0 : 0.0;
  }
  if (!diagonalise(n, A, V)) return 1;
  for (int64_t i = 0; i < n; i++) { /* selection sort swaps fewer than n rows */
    int64_t least = i;
    for (int64_t j = i + 1; j < n; j++) {
      if (A[j * n + j] < A[least * n + least]) least = j;
    }
    w[i] = ldexp(A[least * n + least], exponent);
    A[least * n + least] = A[i * n + i];
    for (int64_t j = 0; j < n && least != i; j++) {
      const double x = V[i * n + j];
      V[i * n + j] = V[least * n + j];
      V[least * n + j] = x;
    }
  }
  return 0;
}

/* The oracle must not have rounding errors of f32, so eigen computes in double and rounds at the end. */
static int64_t eigen_work(const ng_queue *q, int64_t n, ng_dtype t) {
  (void)q, (void)t;
  return (2 * n * n + n) * (int64_t)sizeof(double);
}

static void eigen(ng_queue *q, int64_t n, void *V, ng_dtype t, void *w, void *work, int *info) {
  double *V64 = work, *w64 = V64 + n * n;
  (void)q;
  if (t == NG_F64) {
    *info = decompose(n, V, w, work);
    return;
  }
  ng_from_f32(V64, NG_F64, V, n * n);
  *info = decompose(n, V64, w64, w64 + n);
  if (*info != 0) return;
  ng_to_f32(V, V64, NG_F64, n * n);
  ng_to_f32(w, w64, NG_F64, n);
}

/* ---- QR --------------------------------------------------------------------------------------
 * Reflection k is H_k = I - 2 v v' / v'v with v = a - beta e_k, a: column k from entry k down, beta = -+|a| with the sign
 * that does not cancel; Q = H_0 H_1 ... (Golub & Van Loan, 5.2). */

/* x <- H x, for the n entries of x from entry k down. */
static void reflect(int64_t n, const double *v, double *x) {
  double vv = 0.0, vx = 0.0;
  for (int64_t i = 0; i < n; i++) {
    vv += v[i] * v[i];
    vx += v[i] * x[i];
  }
  for (int64_t i = 0; i < n && vv > 0.0; i++) {
    x[i] -= 2.0 * vx / vv * v[i];
  }
}

static int64_t qr_work(const ng_queue *q, int64_t m, int64_t n) {
  (void)q;
  return (n + 1) * m * (int64_t)sizeof(double);
}

static void qr(ng_queue *q, int64_t m, int64_t n, float *X, int64_t ldx, void *work, int *info) {
  (void)q;
  /* row k of V stores column k of A and, later, the vector v of reflection k */
  double *V = work, *x = V + n * m;
  for (int64_t i = 0; i < n * m; i++) {
    V[i] = (double)X[i / m * ldx + i % m];
  }
  for (int64_t k = 0; k < n; k++) {
    double *v = V + k * m + k, norm2 = 0.0;
    for (int64_t i = 0; i < m - k; i++) {
      norm2 += v[i] * v[i];
    }
    v[0] += copysign(sqrt(norm2), v[0]);
    for (int64_t j = k + 1; j < n; j++) {
      reflect(m - k, v, V + j * m + k);
    }
  }
  for (int64_t j = 0; j < n; j++) {
    for (int64_t i = 0; i < m; i++) {
      x[i] = i == j ? 1.0 : 0.0;
    }
    for (int64_t k = j; k >= 0; k--) { /* for k > j, H_k does not change the unit vector e_j */
      reflect(m - k, V + k * m + k, x + k);
    }
    for (int64_t i = 0; i < m; i++) {
      X[j * ldx + i] = (float)x[i];
    }
  }
  *info = 0;
}

static void square(ng_queue *q, bool transposed, int64_t n, int64_t k, double alpha, const float *W,
                   double beta, float *C) {
  const int64_t ld = transposed ? n : k;
  gemm(q, NG_F32, transposed, !transposed, n, n, k, alpha, W, ld, W, ld, beta, C, n);
}

static void newton_schulz(ng_queue *q, const ng_newton_schulz *list, int64_t n, float *scratch) {
  ng_host_newton_schulz(q, list, n, scratch, square);
}

const ng_linalg_ops ng_linalg_ref = {
    NG_OWN_ENTRIES,
    .newton_schulz = newton_schulz,
    .solve = ng_host_solve,
    NG_HOST_ENTRIES,
};
