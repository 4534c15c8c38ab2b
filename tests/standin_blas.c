/* standin_blas.c: the calls of cuda/blas.h by the stand-in: plain loops, sums in double. A call is noted, and runs at dv_wait. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "blas.h"
#include "standin.h"

struct dv_blas {
  dv_desk *desk;
};

/* A noted call of a BLAS function. of: its matrices A, B, C, and the numbers that potrf, syevd and qr write. */
typedef struct call {
  void (*run)(const struct call *c);
  bool wide;
  char side, uplo, transa, transb;
  int64_t m, n, k, lda, ldb, ldc; /* k of syevd: number of matrices */
  double alpha, beta;
  const void *A, *B;
  void *C, *w;
  int *info;
} call;

/* ---- elements --------------------------------------------------------------------------------*/

static double get(const call *c, const void *x, int64_t ld, int64_t i, int64_t j) {
  return c->wide ? ((const double *)x)[i + j * ld] : (double)((const float *)x)[i + j * ld];
}
static void put(const call *c, void *x, int64_t ld, int64_t i, int64_t j, double value) {
  if (c->wide) ((double *)x)[i + j * ld] = value;
  if (!c->wide) ((float *)x)[i + j * ld] = (float)value;
}
static double op(const call *c, char trans, const void *x, int64_t ld, int64_t i, int64_t j) {
  return trans == 'T' ? get(c, x, ld, j, i) : get(c, x, ld, i, j);
}
static bool is_stored(char uplo, int64_t i, int64_t j) { return uplo == 'L' ? i >= j : i <= j; }

/* ---- products --------------------------------------------------------------------------------*/

static void run_gemm(const call *c) {
  for (int64_t j = 0; j < c->n; j++) {
    for (int64_t i = 0; i < c->m; i++) {
      double sum = 0.0;
      for (int64_t k = 0; k < c->k; k++) {
        sum += op(c, c->transa, c->A, c->lda, i, k) * op(c, c->transb, c->B, c->ldb, k, j);
      }
      const double old = c->beta == 0.0 ? 0.0 : c->beta * get(c, c->C, c->ldc, i, j);
      put(c, c->C, c->ldc, i, j, c->alpha * sum + old);
    }
  }
}
static void run_syrk(const call *c) {
  for (int64_t j = 0; j < c->n; j++) {
    for (int64_t i = 0; i < c->n; i++) {
      double sum = 0.0;
      if (!is_stored(c->uplo, i, j)) continue;
      for (int64_t k = 0; k < c->k; k++) {
        sum += op(c, c->transa, c->A, c->lda, i, k) * op(c, c->transa, c->A, c->lda, j, k);
      }
      put(c, c->C, c->ldc, i, j, get(c, c->C, c->ldc, i, j) + c->alpha * sum);
    }
  }
}
static double symmetric(const call *c, int64_t i, int64_t j) {
  return is_stored(c->uplo, i, j) ? get(c, c->A, c->lda, i, j) : get(c, c->A, c->lda, j, i);
}
static void run_symm(const call *c) {
  const bool left = c->side == 'L';
  for (int64_t j = 0; j < c->n; j++) {
    for (int64_t i = 0; i < c->m; i++) {
      double sum = 0.0;
      for (int64_t k = 0; k < (left ? c->m : c->n); k++) {
        sum += left ? symmetric(c, i, k) * get(c, c->B, c->ldb, k, j)
                    : get(c, c->B, c->ldb, i, k) * symmetric(c, k, j);
      }
      put(c, c->C, c->ldc, i, j, sum);
    }
  }
}

/* ---- triangles -------------------------------------------------------------------------------*/

/* Solve op(A) x = x in place for one vector x [n] in double, A triangular. */
static void solve_triangle(const call *c, char trans, int64_t n, double *x) {
  const bool forward = (c->uplo == 'L') == (trans == 'N');
  for (int64_t step = 0; step < n; step++) {
    const int64_t i = forward ? step : n - 1 - step;
    double sum = x[i];
    for (int64_t done = 0; done < step; done++) {
      const int64_t k = forward ? done : n - 1 - done;
      sum -= op(c, trans, c->A, c->lda, i, k) * x[k];
    }
    x[i] = sum / get(c, c->A, c->lda, i, i);
  }
}
/* x op(A)^-1 is op(A)'^-1 x'. */
static void run_trsm(const call *c) {
  const bool left = c->side == 'L';
  const int64_t n = left ? c->m : c->n, lines = left ? c->n : c->m;
  const char trans = left ? c->transa : c->transa == 'T' ? 'N' : 'T';
  double *x = malloc((size_t)n * sizeof *x);
  for (int64_t line = 0; line < lines && x != NULL; line++) {
    for (int64_t i = 0; i < n; i++) {
      x[i] = c->alpha * (left ? get(c, c->C, c->ldc, i, line) : get(c, c->C, c->ldc, line, i));
    }
    solve_triangle(c, trans, n, x);
    for (int64_t i = 0; i < n; i++) {
      put(c, c->C, c->ldc, left ? i : line, left ? line : i, x[i]);
    }
  }
  free(x);
}

/* Element (i, j), i >= j, of L, stored as L or as L'. */
static int64_t row_of(const call *c, int64_t i, int64_t j) { return c->uplo == 'L' ? i : j; }
static int64_t col_of(const call *c, int64_t i, int64_t j) { return c->uplo == 'L' ? j : i; }
static double triangle(const call *c, int64_t i, int64_t j) {
  return get(c, c->C, c->lda, row_of(c, i, j), col_of(c, i, j));
}
static void run_potrf(const call *c) {
  *c->info = 0;
  for (int64_t j = 0; j < c->n; j++) {
    for (int64_t i = j; i < c->n; i++) {
      double sum = triangle(c, i, j);
      for (int64_t k = 0; k < j; k++) {
        sum -= triangle(c, i, k) * triangle(c, j, k);
      }
      if (i == j && !(sum > 0.0)) {
        *c->info = (int)j + 1;
        return;
      }
      put(c, c->C, c->lda, row_of(c, i, j), col_of(c, i, j),
          i == j ? sqrt(sum) : sum / triangle(c, j, j));
    }
  }
}
/* X = L^-1, column by column; then X'X. */
static void run_potri(const call *c) {
  const int64_t n = c->n;
  double *X = calloc((size_t)(n * n), sizeof *X);
  *c->info = 0;
  for (int64_t j = 0; j < n && X != NULL; j++) {
    if (triangle(c, j, j) == 0.0) {
      *c->info = (int)j + 1;
      break;
    }
    for (int64_t i = j; i < n; i++) {
      double sum = i == j ? 1.0 : 0.0;
      for (int64_t k = j; k < i; k++) {
        sum -= triangle(c, i, k) * X[k * n + j];
      }
      X[i * n + j] = sum / triangle(c, i, i);
    }
  }
  for (int64_t i = 0; i < n && X != NULL && *c->info == 0; i++) {
    for (int64_t j = 0; j <= i; j++) {
      double sum = 0.0;
      for (int64_t k = i; k < n; k++) {
        sum += X[k * n + i] * X[k * n + j];
      }
      put(c, c->C, c->lda, row_of(c, i, j), col_of(c, i, j), sum);
    }
  }
  free(X);
}

/* ---- eigenvalues, QR -------------------------------------------------------------------------*/

/* Jacobi: rotate each pair of rows and columns until the rest is below rounding (Golub & Van Loan, section 8.5). */
static void rotate_pair(int64_t n, double *S, double *V, int64_t p, int64_t r) {
  const double off = S[p * n + r];
  if (off == 0.0) return;
  const double theta = (S[r * n + r] - S[p * n + p]) / (2.0 * off);
  const double t = (theta < 0.0 ? -1.0 : 1.0) / (fabs(theta) + sqrt(theta * theta + 1.0));
  const double cosine = 1.0 / sqrt(t * t + 1.0), sine = t * cosine;
  for (int64_t k = 0; k < n; k++) { /* columns p and r */
    const double a = S[k * n + p], b = S[k * n + r];
    S[k * n + p] = cosine * a - sine * b;
    S[k * n + r] = sine * a + cosine * b;
  }
  for (int64_t k = 0; k < n; k++) { /* rows p and r; rows of V are eigenvectors */
    const double a = S[p * n + k], b = S[r * n + k], v = V[p * n + k], w = V[r * n + k];
    S[p * n + k] = cosine * a - sine * b;
    S[r * n + k] = sine * a + cosine * b;
    V[p * n + k] = cosine * v - sine * w;
    V[r * n + k] = sine * v + cosine * w;
  }
}
static bool is_diagonal(int64_t n, const double *S) {
  double off = 0.0, all = 0.0;
  for (int64_t i = 0; i < n * n; i++) {
    all += S[i] * S[i];
    if (i % (n + 1) != 0) off += S[i] * S[i];
  }
  return !(off > 1e-30 * all);
}
static void run_syevd_of_one(const call *c) {
  const int64_t n = c->n;
  double *S = malloc((size_t)(2 * n * n) * sizeof *S), *V = S + n * n, most = 0.0;
  *c->info = 0;
  for (int64_t i = 0; i < n * n; i++) {
    if (isnan(get(c, c->C, 1, i, 0))) *c->info = 1; /* no convergence */
    most = fmax(most, fabs(get(c, c->C, 1, i, 0)));
  }
  if (most == 0.0) most = 1.0;
  for (int64_t i = 0; i < n && S != NULL; i++) {
    for (int64_t j = 0; j < n; j++) {
      S[i * n + j] = (i > j ? get(c, c->C, n, i, j) : get(c, c->C, n, j, i)) / most;
      V[i * n + j] = i == j ? 1.0 : 0.0;
    }
  }
  for (int sweep = 0; sweep < 40 && S != NULL && !is_diagonal(n, S); sweep++) {
    for (int64_t p = 0; p < n; p++) {
      for (int64_t r = p + 1; r < n; r++) {
        rotate_pair(n, S, V, p, r);
      }
    }
  }
  for (int64_t i = 0; i < n && S != NULL; i++) {
    /* find the smallest of the remaining eigenvalues */
    int64_t least = -1;
    for (int64_t k = 0; k < n; k++) {
      if (!isnan(V[k * n]) && (least < 0 || S[k * n + k] < S[least * n + least])) least = k;
    }
    put(c, c->w, 1, i, 0, least < 0 ? NAN : most * S[least * n + least]);
    for (int64_t k = 0; k < n; k++) {
      put(c, c->C, n, k, i, least < 0 ? NAN : V[least * n + k]);
    }
    if (least >= 0) V[least * n] = NAN; /* taken */
  }
  free(S);
}

static void run_syevd(const call *c) {
  call one = *c;
  const int64_t size = c->wide ? 8 : 4;
  for (int64_t i = 0; i < c->k; i++) {
    one.C = (char *)c->C + i * c->n * c->n * size;
    one.w = (char *)c->w + i * c->n * size;
    one.info = &c->info[i];
    run_syevd_of_one(&one);
  }
}

/* h <- the unit vector of the reflection that moves x [m] to a multiple of the first unit vector; x of any size. */
static void reflection_of(int64_t m, const double *x, double *h) {
  double most = 0.0, norm = 0.0, rest = 0.0;
  for (int64_t i = 0; i < m; i++) {
    most = fmax(most, fabs(x[i]));
  }
  for (int64_t i = 0; i < m && most > 0.0; i++) {
    h[i] = x[i] / most;
    norm += h[i] * h[i];
  }
  if (most == 0.0) return;
  rest = norm - h[0] * h[0];
  h[0] += h[0] < 0.0 ? -sqrt(norm) : sqrt(norm);
  norm = sqrt(rest + h[0] * h[0]);
  for (int64_t i = 0; i < m; i++) {
    h[i] /= norm;
  }
}
/* Each column [m] of x <- (I - 2 h h') column. */
static void reflect(int64_t m, int64_t from, int64_t n, const double *h, double *x) {
  for (int64_t j = 0; j < n; j++, x += m) {
    double dot = 0.0;
    for (int64_t i = from; i < m; i++) {
      dot += h[i] * x[i];
    }
    for (int64_t i = from; i < m; i++) {
      x[i] -= 2.0 * dot * h[i];
    }
  }
}
/* Q = H_0 H_1 ... of the first n columns of the identity, H_j the reflection of column j. */
static void run_qr(const call *c) {
  const int64_t m = c->m, n = c->n;
  double *v = calloc((size_t)(2 * m * n), sizeof *v), *x = v + m * n;
  *c->info = 0;
  if (v == NULL) return;
  for (int64_t at = 0; at < m * n; at++) {
    x[at] = get(c, c->C, c->lda, at % m, at / m);
  }
  for (int64_t j = 0; j < n; j++) {
    reflection_of(m - j, x + j * m + j, v + j * m + j);
    reflect(m, j, n, v + j * m, x);
  }
  for (int64_t at = 0; at < m * n; at++) {
    x[at] = at % (m + 1) == 0 ? 1.0 : 0.0;
  }
  for (int64_t j = n - 1; j >= 0; j--) {
    reflect(m, j, n, v + j * m, x);
  }
  for (int64_t at = 0; at < m * n; at++) {
    put(c, c->C, c->lda, at % m, at / m, x[at]);
  }
  free(v);
}

standin_spoil *standin_spoils;

/* ---- calls -----------------------------------------------------------------------------------*/

static void run_call(const void *args) {
  call c;
  memcpy(&c, args, sizeof c);
  c.run(&c);
  if (standin_spoils == NULL) return;
  if (c.run == run_potrf) standin_spoils('F', c.wide, c.n, c.C, c.lda, NULL);
  if (c.run == run_potri) standin_spoils('I', c.wide, c.n, c.C, c.lda, NULL);
  if (c.run == run_syevd) standin_spoils('E', c.wide, c.n, c.C, c.n, c.w);
}
static const char *note(dv_blas *b, call c) {
  return standin_note(b->desk, run_call, &c, sizeof c);
}

const char *dv_blas_open(dv_desk *d, dv_blas **out) {
  *out = calloc(1, sizeof **out);
  if (*out == NULL) return "out of memory";
  (*out)->desk = d;
  return NULL;
}
void dv_blas_close(dv_blas *b) { free(b); }

const char *dv_gemm(dv_blas *b, bool wide, char transa, char transb, int64_t m, int64_t n,
                    int64_t k, double alpha, const void *A, int64_t lda, const void *B, int64_t ldb,
                    double beta, void *C, int64_t ldc) {
  return note(b, (call){.run = run_gemm,
                        .wide = wide,
                        .transa = transa,
                        .transb = transb,
                        .m = m,
                        .n = n,
                        .k = k,
                        .alpha = alpha,
                        .A = A,
                        .lda = lda,
                        .B = B,
                        .ldb = ldb,
                        .beta = beta,
                        .C = C,
                        .ldc = ldc});
}
const char *dv_syrk(dv_blas *b, bool wide, char uplo, char trans, int64_t n, int64_t k,
                    double alpha, const void *A, int64_t lda, void *C, int64_t ldc) {
  return note(b, (call){.run = run_syrk,
                        .wide = wide,
                        .uplo = uplo,
                        .transa = trans,
                        .n = n,
                        .k = k,
                        .alpha = alpha,
                        .A = A,
                        .lda = lda,
                        .C = C,
                        .ldc = ldc});
}
const char *dv_symm(dv_blas *b, bool wide, char side, char uplo, int64_t m, int64_t n,
                    const void *A, int64_t lda, const void *B, int64_t ldb, void *C, int64_t ldc) {
  return note(b, (call){.run = run_symm,
                        .wide = wide,
                        .side = side,
                        .uplo = uplo,
                        .m = m,
                        .n = n,
                        .A = A,
                        .lda = lda,
                        .B = B,
                        .ldb = ldb,
                        .C = C,
                        .ldc = ldc});
}
const char *dv_trsm(dv_blas *b, bool wide, char side, char uplo, char trans, int64_t m, int64_t n,
                    double alpha, const void *A, int64_t lda, void *B, int64_t ldb) {
  return note(b, (call){.run = run_trsm,
                        .wide = wide,
                        .side = side,
                        .uplo = uplo,
                        .transa = trans,
                        .m = m,
                        .n = n,
                        .alpha = alpha,
                        .A = A,
                        .lda = lda,
                        .C = B,
                        .ldc = ldb});
}

const char *dv_work_bytes(dv_blas *b, dv_solver what, bool wide, int64_t m, int64_t n,
                          int64_t *bytes) {
  (void)b, (void)what, (void)m;
  /* each call checks this size, so a call without its own work fails */
  *bytes = n * (wide ? 8 : 4);
  return NULL;
}
static const char *check_work(const void *work, int64_t bytes, int64_t needed) {
  return work == NULL || bytes < needed ? "a solver has too little work" : NULL;
}
const char *dv_potrf(dv_blas *b, bool wide, char uplo, int64_t n, void *A, int64_t lda, void *work,
                     int64_t bytes, int *info) {
  const char *error = check_work(work, bytes, n * (wide ? 8 : 4));
  const call c = {
      .run = run_potrf, .wide = wide, .uplo = uplo, .n = n, .C = A, .lda = lda, .info = info};
  return error != NULL ? error : note(b, c);
}
const char *dv_potri(dv_blas *b, bool wide, char uplo, int64_t n, void *A, int64_t lda, void *work,
                     int64_t bytes, int *info) {
  const char *error = check_work(work, bytes, n * (wide ? 8 : 4));
  const call c = {
      .run = run_potri, .wide = wide, .uplo = uplo, .n = n, .C = A, .lda = lda, .info = info};
  return error != NULL ? error : note(b, c);
}
const char *dv_syevd(dv_blas *b, bool wide, int64_t n, void *V, void *w, void *work, int64_t bytes,
                     int *info) {
  const char *error = check_work(work, bytes, n * (wide ? 8 : 4));
  const call c = {.run = run_syevd, .wide = wide, .n = n, .k = 1, .C = V, .w = w, .info = info};
  return error != NULL ? error : note(b, c);
}
int64_t standin_batch_most = INT64_MAX;
const char *dv_batch_bytes(dv_blas *b, bool wide, int64_t n, int64_t count, int64_t *bytes) {
  (void)b;
  *bytes = standin_batch_most == 0      ? -1
           : count > standin_batch_most ? INT64_C(1) << 40
                                        : count * n * (wide ? 8 : 4);
  return NULL;
}
const char *dv_syevd_batch(dv_blas *b, bool wide, int64_t n, int64_t count, void *V, void *w,
                           void *work, int64_t bytes, int *infos) {
  const char *error = check_work(work, bytes, count * n * (wide ? 8 : 4));
  const call c = {
      .run = run_syevd, .wide = wide, .n = n, .k = count, .C = V, .w = w, .info = infos};
  return error != NULL ? error : note(b, c);
}
const char *dv_qr(dv_blas *b, int64_t m, int64_t n, float *A, int64_t lda, float *tau, void *work,
                  int64_t bytes, int *info) {
  const char *error = tau == NULL ? "QR has no tau" : check_work(work, bytes, n * 4);
  const call c = {.run = run_qr, .m = m, .n = n, .C = A, .lda = lda, .info = info};
  return error != NULL ? error : note(b, c);
}
