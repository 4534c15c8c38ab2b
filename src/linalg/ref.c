/* ref.c: linear algebra by plain loops: the oracle of the other implementations, and the fallback
 * without BLAS.
 *
 * Every sum is in double, in index order, rounded once. Vectors and storage: vector.c.
 *
 * Eigenvalues: Householder reduction to tridiagonal form, then implicit QL with Wilkinson's shift
 * (Golub & Van Loan, Matrix Computations, 4th ed., 8.3), in double.
 *
 * The bits are the same on every machine with IEEE arithmetic and without contraction. */
#include "linalg/linalg.h"
#include "linalg/vector.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- products --------------------------------------------------------------------------------*/

/* (A B)_ij = sum over l of A_il B_lj. beta == 0 does not read C, which may be NaN. */
static void gemm(ng_queue *q, bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha,
                 const float *A, int64_t lda, const float *B, int64_t ldb, float beta, float *C,
                 int64_t ldc) {
  (void)q;
  for (int64_t i = 0; i < m; i++) {
    for (int64_t j = 0; j < n; j++) {
      double sum = 0.0;
      for (int64_t l = 0; l < k; l++) {
        const float a = ta ? A[l * lda + i] : A[i * lda + l];
        const float b = tb ? B[j * ldb + l] : B[l * ldb + j];
        sum += (double)a * (double)b;
      }
      float *c = &C[i * ldc + j];
      sum *= (double)alpha;
      *c = (float)(beta == 0.0f ? sum : sum + (double)beta * (double)*c);
    }
  }
}

/* S_ij += alpha sum over rows l of X_li X_lj. */
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
 * L_ij = (S_ij - sum over l < j of L_il L_jl) / L_jj, and L_ii the root of S_ii - sum L_il^2 (Golub & Van
 * Loan, 4.2). If that is not positive, or NaN, info is i + 1, the order of the failing leading minor.
 *
 * Row by row in place, the same text for float and double. `invert` first computes X = L^-1: (i, j) needs row i
 * from column j on and the finished rows above. Then X'X: (i, j) needs column i and column j from row i down, so
 * row i is overwritten after the rows above, its diagonal last. */
#define AT(i, j) a[ng_sym_at(n, (i), (j))]
#define CHOLESKY(number, suffix)                                                                   \
  static int factor_##suffix(int64_t n, number *a) {                                               \
    for (int64_t i = 0; i < n; i++) {                                                              \
      for (int64_t j = 0; j <= i; j++) {                                                           \
        double sum = (double)AT(i, j);                                                             \
        for (int64_t l = 0; l < j; l++) {                                                          \
          sum -= (double)AT(i, l) * (double)AT(j, l);                                              \
        }                                                                                          \
        if (j < i) {                                                                               \
          AT(i, j) = (number)(sum / (double)AT(j, j));                                             \
        } else {                                                                                   \
          AT(i, i) = (number)sqrt(sum);                                                            \
          if (!(AT(i, i) > 0)) return (int)(i + 1); /* NaN too */                                  \
        }                                                                                          \
      }                                                                                            \
    }                                                                                              \
    return 0;                                                                                      \
  }                                                                                                \
  static int invert_##suffix(int64_t n, number *a) {                                               \
    for (int64_t i = 0; i < n; i++) {                                                              \
      if (AT(i, i) == 0) return (int)(i + 1);                                                      \
    }                                                                                              \
    for (int64_t i = 0; i < n; i++) {                                                              \
      const double pivot = 1.0 / (double)AT(i, i);                                                 \
      for (int64_t j = 0; j < i; j++) {                                                            \
        double sum = 0.0;                                                                          \
        for (int64_t l = j; l < i; l++) {                                                          \
          sum += (double)AT(i, l) * (double)AT(l, j);                                              \
        }                                                                                          \
        AT(i, j) = (number)(-sum * pivot);                                                         \
      }                                                                                            \
      AT(i, i) = (number)pivot;                                                                    \
    }                                                                                              \
    for (int64_t i = 0; i < n; i++) {                                                              \
      for (int64_t j = 0; j <= i; j++) {                                                           \
        double sum = 0.0;                                                                          \
        for (int64_t l = i; l < n; l++) {                                                          \
          sum += (double)AT(l, i) * (double)AT(l, j);                                              \
        }                                                                                          \
        AT(i, j) = (number)sum;                                                                    \
      }                                                                                            \
    }                                                                                              \
    return 0;                                                                                      \
  }
CHOLESKY(float, f32)
CHOLESKY(double, f64)
#undef AT

static void factor(ng_queue *q, ng_sym S, int *info) {
  (void)q;
  *info = factor_f32(S.n, S.a);
}

/* info i: L has a zero at i. */
static void invert(ng_queue *q, ng_sym L, int *info) {
  (void)q;
  *info = invert_f32(L.n, L.a);
}

static void factor64(ng_queue *q, int64_t n, double *a, int *info) {
  (void)q;
  *info = factor_f64(n, a);
}

static void invert64(ng_queue *q, int64_t n, double *a, int *info) {
  (void)q;
  *info = invert_f64(n, a);
}

/* x <- (L L')^-1 x, x strided: forward, then backward. Each element is rounded to f32, as by BLAS. */
static void solve_vector(ng_sym L, float *x, int64_t stride) {
  for (int64_t i = 0; i < L.n; i++) { /* L y = x */
    double sum = (double)x[i * stride];
    for (int64_t l = 0; l < i; l++) {
      sum -= (double)L.a[ng_sym_at(L.n, i, l)] * (double)x[l * stride];
    }
    x[i * stride] = (float)(sum / (double)L.a[ng_sym_at(L.n, i, i)]);
  }
  for (int64_t i = L.n - 1; i >= 0; i--) { /* L' x = y; row i of L' is column i of L */
    double sum = (double)x[i * stride];
    for (int64_t l = i + 1; l < L.n; l++) {
      sum -= (double)L.a[ng_sym_at(L.n, l, i)] * (double)x[l * stride];
    }
    x[i * stride] = (float)(sum / (double)L.a[ng_sym_at(L.n, i, i)]);
  }
}

static void solve64(ng_queue *q, int64_t n, const double *a, double *x) {
  (void)q;
  for (int64_t i = 0; i < n; i++) {
    double sum = x[i];
    for (int64_t l = 0; l < i; l++) {
      sum -= a[ng_sym_at(n, i, l)] * x[l];
    }
    x[i] = sum / a[ng_sym_at(n, i, i)];
  }
  for (int64_t i = n - 1; i >= 0; i--) {
    double sum = x[i];
    for (int64_t l = i + 1; l < n; l++) {
      sum -= a[ng_sym_at(n, l, i)] * x[l];
    }
    x[i] = sum / a[ng_sym_at(n, i, i)];
  }
}

/* Rows of B are independent, as are columns below. */
static void solve_right(ng_queue *q, ng_sym L, int64_t m, float *B, int64_t ldb) {
  (void)q;
  for (int64_t r = 0; r < m; r++) {
    solve_vector(L, B + r * ldb, 1);
  }
}

static void solve_left(ng_queue *q, ng_sym L, int64_t m, float *B, int64_t ldb) {
  (void)q;
  for (int64_t c = 0; c < m; c++) {
    solve_vector(L, B + c, ldb);
  }
}

/* ---- eigen -----------------------------------------------------------------------------------*/

/* A = Q T Q' with Q = H_0 H_1 ... H_{n-3}, H_k = I - beta v v' on indices from k+1. d, e: diagonal
 * and subdiagonal of T. On return A contains Q'. p: n numbers of scratch. */
static void tridiagonal(int64_t n, double *A, double *d, double *e, double *p) {
  for (int64_t k = 0; k + 2 < n; k++) {
    double *v = A + k * n; /* row k from k+1 on becomes v, and stays until Q' is formed */
    /* H x = e[k] e_1 for x = row k behind its diagonal: v = x - e[k] e_1, |e[k]| = |x|. */
    double norm = 0.0;
    for (int64_t i = k + 1; i < n; i++) {
      norm += v[i] * v[i];
    }
    norm = norm > 1e-280 ? sqrt(norm)
                         : 0.0; /* negligible beside the largest entry, which is 1/2 to 1 */
    d[k] = v[k];
    e[k] = v[k + 1] > 0.0 ? -norm : norm; /* this sign avoids cancellation in v[k+1] - e[k] */
    v[k + 1] -= e[k];
    /* ||v||^2 = 2 norm (norm + |x|) = -2 e[k] v[k+1] */
    const double beta = norm > 0.0 ? -1.0 / (e[k] * v[k + 1]) : 0.0;
    v[k] = beta;
    /* H A H = A - v w' - w v' with p = beta A v and w = p - (beta <p, v> / 2) v (Golub & Van Loan,
     * 8.3.1). */
    double pv = 0.0;
    for (int64_t i = k + 1; i < n; i++) {
      double sum = 0.0;
      for (int64_t j = k + 1; j < n; j++) {
        sum += A[i * n + j] * v[j];
      }
      p[i] = beta * sum;
      pv += p[i] * v[i];
    }
    for (int64_t i = k + 1; i < n; i++) {
      p[i] -= 0.5 * beta * pv * v[i];
    }
    for (int64_t i = k + 1; i < n; i++) {
      for (int64_t j = k + 1; j < n; j++) {
        A[i * n + j] -= v[i] * p[j] + p[i] * v[j];
      }
    }
  }
  if (n > 1) {
    d[n - 2] = A[(n - 2) * n + n - 2];
    e[n - 2] = A[(n - 1) * n + n - 2];
  }
  d[n - 1] = A[(n - 1) * n + n - 1];
  e[n - 1] = 0.0;
  /* Q' = H_{n-3} ... H_0, from the last: each H_k meets a matrix that is the identity outside the
   * indices above k+1; line k+1 is set just before. */
  for (int64_t k = n - 1; k >= 0; k--) {
    double *v = A + (k > 0 ? k - 1 : 0) * n;
    for (int64_t i = k; i < n; i++) {
      A[k * n + i] = A[i * n + k] = i == k ? 1.0 : 0.0;
    }
    if (k == 0 || k == n - 1) continue;
    const double beta = v[k - 1];
    for (int64_t i = k; i < n; i++) {
      double sum = 0.0;
      for (int64_t j = k; j < n; j++) {
        sum += A[i * n + j] * v[j];
      }
      for (int64_t j = k; j < n; j++) {
        A[i * n + j] -= beta * sum * v[j];
      }
    }
  }
}

/* Implicit QL on (d, e); V collects the rotations in its rows. m is the first index from l where
 * the matrix splits (e[m] is negligible); the shift by the eigenvalue of the 2 x 2 corner nearer to
 * d[l] makes e[l] vanish cubically; each rotation moves the bulge up by one. info: l + 1 for an
 * eigenvalue without convergence, as LAPACK. */
static int ql(int64_t n, double *V, double *d, double *e) {
  int64_t left = 30 * n; /* LAPACK's bound; 2 n sweeps are usual */
  for (int64_t l = 0; l < n; l++) {
    for (;;) {
      int64_t m = l;
      while (m + 1 < n && !(fabs(e[m]) <= DBL_EPSILON * (fabs(d[m]) + fabs(d[m + 1])) ||
                            fabs(e[m]) <= DBL_MIN)) {
        m++;
      }
      if (m == l) break;
      if (left-- == 0) return (int)(l + 1);
      /* Wilkinson's shift: d[l] - e[l] / (g + sign(g) root(g^2 + 1)); hypot avoids overflow. */
      double g = (d[l + 1] - d[l]) / (2.0 * e[l]);
      /* d[m] minus the shift, without cancellation */
      g = d[m] - d[l] + e[l] / (g + copysign(hypot(g, 1.0), g));
      double s = 1.0, c = 1.0, p = 0.0; /* sine, cosine, displacement of the last rotation */
      int64_t i = m - 1;
      for (; i >= l; i--) {
        const double f = s * e[i], b = c * e[i];
        double r = hypot(f, g);
        e[i + 1] = r;
        if (r == 0.0) { /* split by underflow: restart with the smaller block */
          d[i + 1] -= p;
          e[m] = 0.0;
          break;
        }
        s = f / r;
        c = g / r;
        g = d[i + 1] - p;
        r = (d[i] - g) * s + 2.0 * c * b;
        p = s * r;
        d[i + 1] = g + p;
        g = c * r - b;
        /* The same rotation on rows i and i + 1 of V. */
        double *x = V + i * n, *y = x + n;
        for (int64_t j = 0; j < n; j++) {
          const double t = y[j];
          y[j] = s * x[j] + c * t;
          x[j] = c * x[j] - s * t;
        }
      }
      if (i >= l) continue;
      d[l] -= p;
      e[l] = g;
      e[m] = 0.0;
    }
  }
  return 0;
}

static int64_t decompose_work(int64_t n) { return 2 * n * (int64_t)sizeof(double); }

/* Eigenvalues of V in ascending order. Non-finite input: info 1 at once, since QL would not
 * converge. */
static int decompose(int64_t n, double *V, double *w, void *work) {
  double *e = work, *p = e + n;
  double most = 0.0;
  for (int64_t i = 0; i < n * n; i++) {
    if (!isfinite(V[i])) return 1;
    most = fmax(most, fabs(V[i]));
  }
  /* Scale the largest entry to 1/2 to 1 by a power of two, which is exact, so that squares stay in
   * range. */
  int exponent = 0;
  (void)frexp(most, &exponent);
  for (int64_t i = 0; i < n * n; i++) {
    V[i] = ldexp(V[i], -exponent);
  }
  tridiagonal(n, V, w, e, p);
  const int info = ql(n, V, w, e);
  if (info != 0) return info;
  for (int64_t i = 0; i < n; i++) {
    /* selection sort: fewer than n swaps of rows */
    int64_t least = i;
    for (int64_t j = i + 1; j < n; j++) {
      if (w[j] < w[least]) least = j;
    }
    if (least != i) {
      const double t = w[i];
      w[i] = w[least];
      w[least] = t;
      for (int64_t j = 0; j < n; j++) {
        const double x = V[i * n + j];
        V[i * n + j] = V[least * n + j];
        V[least * n + j] = x;
      }
    }
    w[i] = ldexp(w[i], exponent);
  }
  return 0;
}

static int64_t eigen64_work(const ng_queue *q, int64_t n) {
  (void)q;
  return decompose_work(n);
}

static void eigen64(ng_queue *q, int64_t n, double *V, double *w, void *work, int *info) {
  (void)q;
  *info = decompose(n, V, w, work);
}

/* In double, rounded at the end: the oracle must not have f32 errors. */
static int64_t eigen_work(const ng_queue *q, int64_t n) {
  (void)q;
  return (n * n + n) * (int64_t)sizeof(double) + decompose_work(n);
}

static void eigen(ng_queue *q, int64_t n, float *V, float *w, void *work, int *info) {
  (void)q;
  double *V64 = work, *w64 = V64 + n * n;
  for (int64_t i = 0; i < n * n; i++) {
    V64[i] = (double)V[i];
  }
  *info = decompose(n, V64, w64, w64 + n);
  if (*info != 0) return;
  for (int64_t i = 0; i < n * n; i++) {
    V[i] = (float)V64[i];
  }
  for (int64_t i = 0; i < n; i++) {
    w[i] = (float)w64[i];
  }
}

const ng_linalg_ops ng_linalg_ref = {
    .name = "ref",
    .gemm = gemm,
    .add_gram = add_gram,
    .factor = factor,
    .invert = invert,
    .solve_right = solve_right,
    .solve_left = solve_left,
    .mul_right = mul_right,
    .mul_left = mul_left,
    .eigen = eigen,
    .eigen_work = eigen_work,
    .factor64 = factor64,
    .invert64 = invert64,
    .solve64 = solve64,
    .eigen64 = eigen64,
    .eigen64_work = eigen64_work,
    NG_HOST_ENTRIES,
};
