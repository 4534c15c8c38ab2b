/* linalg.h: a queue, symmetric matrices, and the operations on both.
 *
 * An ng_queue contains the table of a linear algebra and the threads of its loops. Every entry of
 * the table takes the queue first and *enqueues*: it may return before the work is done, and works
 * in the order of calls. Numeric results (LAPACK's info, a dot product, a trace) are written to
 * memory that the caller names and a device can write: not to the caller's stack. The host may
 *   - read what an entry wrote, or write what an entry reads, only after ng_queue_wait;
 *   - read infos and numbers only through ng_info_read and ng_numbers_read. With NG_DEBUG an assertion there detects a missing wait, on a CPU as well.
 * A device implements the same table. The device of tests/t_queue.c does all work as late as
 * allowed.
 *
 * ng_sym owns symmetric storage: LAPACK's rectangular full packed format, TRANSR = 'N', UPLO = 'L'
 * in column-major words, n(n+1)/2 floats. With h = (n+1)/2 columns (rounded up) and leading
 * dimension ld = n + (n even), element (i, j), i >= j, is
 *     j <  h:  a[(i + (n even)) + j * ld]
 *     j >= h:  a[(j - h) + (i - h + (n odd)) * ld]
 * so a block that does not cross column h is a strided rectangle, plain (j < h) or transposed. Only
 * linalg/ indexes this storage.
 *
 * All other matrices are row-major with a leading dimension. Callers check that sizes fit 32 bits
 * (ng_linalg_fits). */
#ifndef NG_LINALG_H
#define NG_LINALG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "natgrad.h"

/* ---- the queue -------------------------------------------------------------------------------*/

typedef struct ng_linalg_ops ng_linalg_ops;

typedef struct ng_queue {
  const ng_linalg_ops *la;
  /* Call task(arg, i) for i in [0, n) and return when all are done; NULL: one after the other. */
  void (*run)(void *executor, int32_t n, void (*task)(void *arg, int32_t i), void *arg);
  void *executor;
  int32_t threads; /* pieces for a loop */
  int64_t pending; /* entries since the last wait */
} ng_queue;

/* The table, for one entry: ng_on(q)->factor(q, S, &info). Counts the entry as pending. Only on the
 * thread that owns the queue, not inside a task. */
static inline const ng_linalg_ops *ng_on(ng_queue *q) {
  q->pending++;
  return q->la;
}
/* Wait for all entries: their results may be read and their inputs changed. */
void ng_queue_wait(ng_queue *q);
static inline bool ng_queue_settled(const ng_queue *q) { return q->pending == 0; }
/* Results of entries, after a wait. */
int ng_info_read(const ng_queue *q, const int *info);
const double *ng_numbers_read(const ng_queue *q, const double *numbers);
/* For entries: run pieces through the executor. */
void ng_queue_run(const ng_queue *q, int32_t n, void (*task)(void *arg, int32_t i), void *arg);

/* ---- symmetric storage -----------------------------------------------------------------------*/

typedef struct ng_sym {
  float *a;
  int64_t n;
} ng_sym;

static inline int64_t ng_sym_count(int64_t n) { return n * (n + 1) / 2; }
/* Position of (i, j) = (j, i). */
static inline int64_t ng_sym_at(int64_t n, int64_t i, int64_t j) {
  const int64_t h = (n + 1) / 2, odd = n & 1, ld = n + 1 - odd;
  const int64_t row = i > j ? i : j, col = i > j ? j : i;
  return col < h ? 1 - odd + row + col * ld : col - h + (row - h + odd) * ld;
}

static inline float ng_sym_get(ng_sym S, int64_t i, int64_t j) { return S.a[ng_sym_at(S.n, i, j)]; }

/* A piece of a block of a symmetric matrix: its element (r, c), element (row + r, col + c) of the
 * matrix, is a[r * rs + c * cs] (one of rs, cs is 1). `diagonal`: rows == cols, row == col, and
 * only r >= c exists. */
typedef struct ng_piece {
  float *a;
  int64_t row, col, rows, cols, rs, cs;
  bool diagonal;
} ng_piece;
/* Cut the lower part of block [r0, r0+m) x [c0, c0+k) (r0 >= c0 + k, or r0 == c0 and m == k) into
 * at most 3 pieces; return their number. */
int32_t ng_sym_pieces(ng_sym s, int64_t r0, int64_t m, int64_t c0, int64_t k, ng_piece out[3]);

/* ---- operations ------------------------------------------------------------------------------*/

/* Eigenvalues that divide a matrix in the eigenbases. The divisor of entry (r, c) is
 *     (g[r] + on_g) (a[c] + on_a) + on_both. */
typedef struct ng_spectrum {
  const float *g, *a;
  double on_g, on_a, on_both;
} ng_spectrum;

/* Operations of one implementation, all required. Inputs are valid. dtypes are f32, bf16 or f16,
 * for stored vectors and symmetric matrices. */
struct ng_linalg_ops {
  const char *name;
  void (*wait)(ng_queue *q); /* through ng_queue_wait only */

  /* ---- matrices ---- */
  /* C [m,n] = alpha op(A) op(B) + beta C;  op(A) is [m,k], op(B) [k,n].  beta == 0 never reads C.
   */
  void (*gemm)(ng_queue *q, bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha,
               const float *A, int64_t lda, const float *B, int64_t ldb, float beta, float *C,
               int64_t ldc);
  /* S[r0:r0+m, r0:r0+m] += alpha X'X, X [rows, m].  One triangle of work. */
  void (*add_gram)(ng_queue *q, ng_sym S, int64_t r0, int64_t m, const float *X, int64_t rows,
                   int64_t ldx, float alpha);
  /* S[r, c0:c0+k] += alpha v, r >= c0+k-1: the row of the bias. */
  void (*add_row)(ng_queue *q, ng_sym S, int64_t r, int64_t c0, int64_t k, const float *v,
                  float alpha);
  /* Cholesky S = L L' in place, then its inverse from L in place.  *info: 0, or LAPACK's info. */
  void (*factor)(ng_queue *q, ng_sym S, int *info);
  void (*invert)(ng_queue *q, ng_sym L, int *info);
  /* B [m,n] <- B (L L')^-1 and B [n,m] <- (L L')^-1 B, L from factor. */
  void (*solve_right)(ng_queue *q, ng_sym L, int64_t m, float *B, int64_t ldb);
  void (*solve_left)(ng_queue *q, ng_sym L, int64_t m, float *B, int64_t ldb);
  /* C [m,n] = B S, B [m,n]   and   C [n,m] = S B, B [n,m].  C does not overlap B. */
  void (*mul_right)(ng_queue *q, ng_sym S, int64_t m, const float *B, int64_t ldb, float *C,
                    int64_t ldc);
  void (*mul_left)(ng_queue *q, ng_sym S, int64_t m, const float *B, int64_t ldb, float *C,
                   int64_t ldc);
  /* Eigen: V [n,n] in: full symmetric; out: row i is the eigenvector of w[i], ascending.  `work`
   * has eigen_work(n) bytes, 64-aligned.  *info: 0, or LAPACK's. */
  void (*eigen)(ng_queue *q, int64_t n, float *V, float *w, void *work, int *info);
  int64_t (*eigen_work)(const ng_queue *q, int64_t n);
  /* The same in double, for the ladder and for small systems; `a` in ng_sym order. solve64: x <- (L
   * L')^-1 x, L from factor64. */
  void (*factor64)(ng_queue *q, int64_t n, double *a, int *info);
  void (*invert64)(ng_queue *q, int64_t n, double *a, int *info);
  void (*solve64)(ng_queue *q, int64_t n, const double *a, double *x);
  void (*eigen64)(ng_queue *q, int64_t n, double *V, double *w, void *work, int *info);
  int64_t (*eigen64_work)(const ng_queue *q, int64_t n);

  /* ---- symmetric storage of order n, any dtype ---- */
  void (*shift)(ng_queue *q, int64_t n, void *S, ng_dtype t, double d);          /* S += d I */
  void (*trace)(ng_queue *q, int64_t n, const void *S, ng_dtype t, double *out); /* in double */
  void (*unpack)(ng_queue *q, ng_sym S, float *full, int64_t ld); /* both triangles */

  /* ---- vectors of n elements; symmetric storage is one of ng_sym_count(n) ---- */
  void (*widen)(ng_queue *q, int64_t n, const void *x, ng_dtype t, float *to);
  void (*narrow)(ng_queue *q, int64_t n, const float *x, void *to, ng_dtype t);
  /* x <- (float)(by x), the product in double; by == 0: zeros, also for Inf and NaN. */
  void (*scale)(ng_queue *q, int64_t n, float *x, double by);
  /* F <- keep F + c S, S <- 0: in f32, then rounded to the dtype of F; and in double. */
  void (*fold)(ng_queue *q, int64_t n, void *F, ng_dtype t, float *S, float keep, float c);
  void (*fold_wide)(ng_queue *q, int64_t n, float *F, float *S, double keep, double c);
  /* *out: 1 if no element is Inf or NaN, else 0. */
  void (*finite)(ng_queue *q, int64_t n, const void *x, ng_dtype t, int *out);
  /* *out: the largest |element|, ignoring NaN (use `finite`). */
  void (*largest)(ng_queue *q, int64_t n, const void *x, ng_dtype t, double *out);

  /* ---- rows of a matrix ---- */
  void (*copy)(ng_queue *q, int64_t rows, int64_t cols, const float *x, int64_t ldx, float *to,
               int64_t ldt);
  /* U [rows,cols] <- U / spectrum: quotients in double. */
  void (*divide)(ng_queue *q, int64_t rows, int64_t cols, ng_spectrum s, float *U, int64_t ldu);
  /* out [rows,3]: <P_r, D_r>, |D_r|^2, |P_r|^2 of each row; and *out = |X|^2: in double, in an
   * order independent of threads and vector width. */
  void (*row_sums)(ng_queue *q, int64_t rows, int64_t cols, const float *P, int64_t ldp,
                   const float *D, int64_t ldd, double *out);
  void (*norm2)(ng_queue *q, int64_t rows, int64_t cols, const void *X, ng_dtype t, int64_t ldx,
                double *out);
};

extern const ng_linalg_ops ng_linalg_ref; /* naive loops in double: the oracle */
#if defined(NG_HAVE_BLAS)
extern const ng_linalg_ops ng_linalg_cpu; /* BLAS and LAPACK by their Fortran symbols */
#endif

/* A BLAS symbol, and its name as text. In a wheel the symbols have a prefix, so that they do not
 * meet another BLAS in the process: scipy_sgemm_ (NG_BLAS_PREFIX = scipy_, cmake/wheel.cmake). */
#if defined(NG_BLAS_PREFIX)
#define NG_BLAS_PASTE2(prefix, name) prefix##name
#define NG_BLAS_PASTE(prefix, name) NG_BLAS_PASTE2(prefix, name)
#define NG_BLAS_NAME(name) NG_BLAS_PASTE(NG_BLAS_PREFIX, name)
#else
#define NG_BLAS_NAME(name) name
#endif
#define NG_BLAS_TEXT2(name) #name
#define NG_BLAS_TEXT1(name) NG_BLAS_TEXT2(name)
#define NG_BLAS_TEXT(name) NG_BLAS_TEXT1(NG_BLAS_NAME(name))

/* By name; NULL if unknown or not built in. NULL name: the fastest. */
const ng_linalg_ops *ng_linalg_find(const char *name);
bool ng_linalg_fits(
    int64_t n); /* whether 32-bit BLAS and LAPACK, work sizes included, accept the order */

/* Describe the loaded BLAS: name, version text, kernel name, threads; "" and 0 if unknown. */
void ng_blas_describe(char *name, size_t name_size, char *kernel, size_t kernel_size,
                      int32_t *threads);
/* "" or a hint ("OPENBLAS_CORETYPE=SkylakeX would use AVX-512 kernels on this processor"). */
void ng_blas_hint(char *hint, size_t size);

/* ---- damped.c: (F + d I)^-1 ------------------------------------------------------------------*/

typedef struct ng_damped {
  int64_t n;
  const void *F;   /* ng_sym order, finite; f64: all arithmetic is in double */
  ng_dtype kept;   /* dtype of F */
  void *R;         /* out: the inverse, or L of F + d I = L L', in ng_sym order */
  ng_dtype stored; /* dtype of R; f64 only if F is f64 */
  bool is_factor;
  int *info;       /* [2] memory of the queue */
  double *largest; /* memory of the queue, if `stored` is not f32 */
} ng_damped;

/* Compute R and return the rung that passed the checks: 0 as asked, 1 to 3 with d times 10, 100,
 * 1000, then in double with d; NONE: none passed, and R is unchanged. */
enum { NG_DAMPED_DOUBLE = 4, NG_DAMPED_NONE = 5 };
/* Up to this order Cholesky and its solves are in double, in every implementation. */
enum { NG_SMALL_SOLVE = 128 };
int32_t ng_damped_solve(ng_queue *q, const ng_damped *m, double d, float *scratch);
int64_t ng_damped_scratch(int64_t n); /* floats */
/* F of `kept` as f32: in place, or enqueued to be in `room`. */
ng_sym ng_sym_load(ng_queue *q, int64_t n, const void *F, ng_dtype kept, float *room);
/* Whether n numbers are in the range of t (f16 ends at 65504); `largest`: memory of the queue. */
bool ng_fits_dtype(ng_queue *q, int64_t n, const float *x, ng_dtype t, double *largest);

/* ---- fisher.c: lambda I + G'G / m of given rows, inverted: ng_fisher of natgrad.h ---------------*/

struct ng_strided;
/* Rows [m, d] of finite f32, damping > 0, ends as the header says (NULL: d). */
ng_status ng_fisher_make(ng_context *ctx, const struct ng_strided *rows, double damping,
                         const int64_t *end, int64_t blocks, ng_fisher **out);
void ng_fisher_free(ng_fisher *f);
ng_context *ng_fisher_context(const ng_fisher *f);
int64_t ng_fisher_size(const ng_fisher *f); /* d */
void ng_fisher_apply(ng_fisher *f, const double *x, double *out);
void ng_fisher_inverse_diagonal(ng_fisher *f, double *out);

/* ---- sym.c: element by element, now and here: for the host, on what the queue has left alone ----*/
void ng_sym_unpack(ng_sym S, float *full, int64_t ld);    /* both triangles     */
void ng_sym_vector(ng_sym S, const double *x, double *y); /* y = S x, in double */

#endif
