/* linalg.h: a queue, symmetric matrices, and a table of operations on matrices and vectors.
 *
 * An ng_queue has the tables of a backend and the threads of its loops. Every entry of a table takes the
 * queue first and enqueues its work: it may return before the work is done. Work is done in the order of calls. Numeric
 * results (LAPACK's info, a dot product, a trace) are written to memory that the caller names and a device can write,
 * not to the caller's stack. The host may
 *   - read what an entry wrote, or write what an entry reads, only after ng_queue_wait;
 *   - read infos and numbers only by ng_read_info and ng_read_numbers, which with NG_DEBUG assert that the host waited.
 * A device implements the same tables. The backend of tests/late.c does all work as late as allowed.
 *
 * ng_sym is LAPACK's rectangular full packed format, TRANSR = 'N', UPLO = 'L', of a symmetric matrix of order n, read
 * column-major: n(n+1)/2 floats. With h = n/2 rounded up and ld = n + (n even), element (i, j), i >= j, is
 *     j <  h:  a[(i + (n even)) + j * ld]
 *     j >= h:  a[(j - h) + (i - h + (n odd)) * ld]
 * with (n even) and (n odd) 0 or 1. So a block of the matrix on one side of column h is a strided rectangle: plain if j <
 * h, transposed if j >= h. Other rooms index this storage only by ng_sym_at.
 *
 * All other matrices are row-major with a leading dimension. Before a call, the caller checks with ng_blas_accepts_order that
 * the sizes fit 32 bits. */
#ifndef NG_LINALG_H
#define NG_LINALG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "natgrad.h"

/* ---- convert.c: f32, f64, bf16, f16 ----------------------------------------------------------*/

float ng_bf16_to_f32(uint16_t h);
uint16_t ng_f32_to_bf16(float f); /* round to nearest even; NaN gives NaN */
float ng_f16_to_f32(uint16_t h);
uint16_t ng_f32_to_f16(float f); /* round to nearest even, also to subnormals; overflow gives Inf */

/* Convert n elements from or to dtype `t`: f32, f64, bf16 or f16. */
void ng_to_f32(float *dst, const void *src, ng_dtype t, int64_t n);
void ng_from_f32(void *dst, ng_dtype t, const float *src, int64_t n);
double ng_element_at(const void *x, ng_dtype t, int64_t i); /* element i of f32, f64, bf16 or f16 */
/* The same, inline, for f32 and f64. */
static inline double ng_number_at(const void *x, ng_dtype t, int64_t i) {
  return t == NG_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}
static inline void ng_set_number(void *x, ng_dtype t, int64_t i, double value) {
  if (t == NG_F64) {
    ((double *)x)[i] = value;
  } else {
    ((float *)x)[i] = (float)value;
  }
}
bool ng_are_finite(const void *src, ng_dtype t, int64_t n); /* `t` may be any dtype */
/* Return the bits, as f32, of the largest |x[i]| of n elements; 0 if n = 0. A larger magnitude has larger bits; bits >=
 * NG_INF_BITS are Inf or NaN. */
#define NG_INF_BITS UINT32_C(0x7f800000)
uint32_t ng_find_largest_bits(const void *x, ng_dtype t, int64_t n); /* `t`: f32, bf16 or f16 */
float ng_float_of_bits(uint32_t bits);
/* Return the largest finite number of f32, bf16 or f16. */
static inline double ng_dtype_largest(ng_dtype t) {
  return t == NG_F16 ? 65504.0 : t == NG_BF16 ? 0x1.fep127 : 0x1.fffffep127;
}

/* ---- the queue -------------------------------------------------------------------------------*/

typedef struct ng_linalg_ops ng_linalg_ops;
typedef struct ng_queue ng_queue;

/* A backend: memory, a queue, a linear algebra and kernels. A context selects a backend by name (kernel/backend.c). */
typedef struct ng_backend {
  const char *name;
  const ng_linalg_ops *linalg;
  /* a table whose entries are done when they return, for small systems that the host solves */
  const ng_linalg_ops *host;
  const struct ng_kernel_ops *kernels; /* kernel/kernel.h */
  /* With a device: the backend of the host that computes entries without a kernel; otherwise NULL. */
  const struct ng_backend *under;
  /* Memory of a context without an allocator of its caller (ng_context_config): 64-byte aligned, for host and tables. user:
   * ng_queue.device. */
  void *(*alloc)(void *user, size_t bytes);
  void (*free)(void *user, void *ptr, size_t bytes);
  /* Prepare a queue that begins to use the backend, and end its use, also after an error; wait until the entries are
   * done (called by ng_queue_wait only). NULL: nothing to do. open returns NULL, or the text of an error. */
  const char *(*open)(ng_queue *q);
  void (*close)(ng_queue *q);
  void (*wait)(ng_queue *q);
  /* Return the text of the first error of an entry, or NULL. After an error no entry works. NULL: entries have no errors. */
  const char *(*error)(const ng_queue *q);
  /* Name the blocks of the work that follows, from `first` to `last`, for texts of errors; NULL: no block. NULL: entries have no
   * errors. */
  void (*name_blocks)(ng_queue *q, const char *first, const char *last);
  /* Return whether the device can read and write this memory of the caller. NULL: the backend has no device. */
  bool (*can_access)(const ng_queue *q, const void *at);
} ng_backend;

/* The caller's allocator of memory that only the device accesses (ng_context_config.device_alloc). alloc NULL: the backend allocates. */
typedef struct ng_device_memory {
  void *(*alloc)(void *user, size_t bytes);
  void (*free)(void *user, void *ptr, size_t bytes);
  void *user;
} ng_device_memory;

enum { NG_WAIT_PLACES = 8 };

struct ng_queue {
  const ng_backend *backend;
  /* Call task(arg, i) for i in [0, n) and return when all tasks are done. NULL: run the tasks one after the other. */
  void (*run)(void *executor, int32_t n, void (*task)(void *arg, int32_t i), void *arg);
  void *executor;
  int32_t threads; /* number of threads, and of the pieces of a loop */
  /* Set or return the number of threads of BLAS in this process; set NULL: not known, or not cheap */
  void (*set_blas_threads)(int threads);
  int (*get_blas_threads)(void);
  int64_t pending; /* number of entries called since the last wait */
  /* state of a backend with a device (cuda/backend.h); NULL: the backend computes on the host */
  struct ng_device *device;
  int32_t device_index; /* number of the device; `open` reads this and the next two fields */
  /* the caller's stream, for all work of the device; NULL: the queue creates a stream */
  void *stream;
  ng_device_memory memory;
  bool is_out_of_memory; /* `open` failed because memory is missing */
  /* Number of waits with pending entries since the last reset (take.c), and the functions that waited first. */
  int64_t waits;
  const char *wait_place[NG_WAIT_PLACES];
};

/* Return the table for one call: ng_linalg(q)->factor(q, n, S, t, &info), and count the call as pending. Only the thread that
 * owns the queue may call ng_linalg; a task may not. */
static inline const ng_linalg_ops *ng_linalg(ng_queue *q) {
  q->pending++;
  return q->backend->linalg;
}
/* Return the table without counting a call: for sizes, and for entries that call other entries. */
static inline const ng_linalg_ops *ng_linalg_uncounted(const ng_queue *q) {
  return q->backend->linalg;
}
/* Wait until all entries are done. Then the host may read their results and change their inputs. */
#define ng_queue_wait(q) ng_queue_wait_at((q), __func__)
void ng_queue_wait_at(ng_queue *q, const char *place);
static inline void ng_queue_name_blocks(ng_queue *q, const char *first, const char *last) {
  if (q->backend->name_blocks != NULL) q->backend->name_blocks(q, first, last);
}
/* Return the text of the first error of the device, which later work does not change, or NULL. */
static inline const char *ng_queue_error(const ng_queue *q) {
  return q->backend->error == NULL ? NULL : q->backend->error(q);
}
static inline bool ng_queue_is_settled(const ng_queue *q) { return q->pending == 0; }
/* Return numbers that an entry wrote, after a wait; with NG_DEBUG, fail if entries are pending. */
int ng_read_info(const ng_queue *q, const int *info);
const double *ng_read_numbers(const ng_queue *q, const double *numbers);
/* Return into how many pieces a loop over `floats` numbers should be cut: 1, or one for each thread. */
int32_t ng_queue_pieces(const ng_queue *q, int64_t floats);
/* Call task(arg, i) for i in [0, n) on the threads of the queue, or on the calling thread if q is NULL. Return when all
 * tasks are done, so a task may use the stack of its caller. A task must not call this function with a queue. */
void ng_queue_run(const ng_queue *q, int32_t n, void (*task)(void *arg, int32_t i), void *arg);

/* ---- symmetric storage -----------------------------------------------------------------------*/

typedef struct ng_sym {
  float *a;
  int64_t n;
} ng_sym;

static inline int64_t ng_sym_count(int64_t n) { return n * (n + 1) / 2; }
/* Return the position of elements (i, j) and (j, i). */
static inline int64_t ng_sym_at(int64_t n, int64_t i, int64_t j) {
  const int64_t h = (n + 1) / 2, odd = n & 1, ld = n + 1 - odd;
  const int64_t row = i > j ? i : j, col = i > j ? j : i;
  return col < h ? 1 - odd + row + col * ld : col - h + (row - h + odd) * ld;
}

static inline float ng_sym_get(ng_sym S, int64_t i, int64_t j) { return S.a[ng_sym_at(S.n, i, j)]; }

/* A rectangle of a symmetric matrix on one side of column h. Its element (r, c) is element (row + r, col + c) of the
 * matrix, at a[r * row_stride + c * col_stride]; row_stride or col_stride is 1. `diagonal`: rows == cols, row == col, and only r >= c is stored. */
typedef struct ng_sym_piece {
  float *a;
  int64_t row, col, rows, cols, row_stride, col_stride;
  bool diagonal;
} ng_sym_piece;
/* Cut the block of rows [r0, r0+m) and columns [c0, c0+k), without elements above the diagonal, into at most 3 pieces;
 * return their number. The block must be below the diagonal (r0 >= c0 + k) or on it (r0 == c0, m == k). */
int32_t ng_sym_cut(ng_sym s, int64_t r0, int64_t m, int64_t c0, int64_t k, ng_sym_piece out[3]);

/* ---- matrices with a result -------------------------------------------------------------------*/

typedef enum ng_form { NG_FORM_SYMMETRIC, NG_FORM_DIAGONAL, NG_FORM_ABSENT } ng_form;

/* What a solve computes. A diagonal matrix has d = the diagonal of the result. */
typedef enum ng_result {
  NG_RESULT_INVERSE,  /* R = (F + d I)^-1 */
  NG_RESULT_CHOLESKY, /* R = L of F + d I = L L'; diagonal: as INVERSE */
  NG_RESULT_EIGEN,    /* F = Q diag(e) Q', Q = R': row i of R is the eigenvector of d[i] */
  NG_RESULT_COPY,     /* R = F */
  NG_RESULT_ROOT /* R = (F + d I)^(-1/p), p > 0 any real number; if the least eigenvalue e of F is negative, with d - e */
} ng_result;

/* A symmetric or diagonal matrix, or the identity, with its result. */
typedef struct ng_matrix {
  ng_form form;
  ng_result result;
  const char *name; /* the block, for errors of a device, or NULL */
  bool is_good;     /* set by the caller of `solve`: R has a result that passed its checks */
  int64_t n;        /* order */
  int64_t row, col; /* used by twosided/: first row and column of D that the matrix multiplies */
  double p;         /* root: see NG_RESULT_ROOT */
  const void *F;    /* the average, in ng_sym order; diagonal: [n], f32 */
  double
      scale; /* inverse, Cholesky factor, root of a symmetric matrix: F stands for scale F; others: 1 */
  ng_dtype average_dtype, result_dtype; /* result_dtype f64: INVERSE and EIGEN only */
  /* [ng_matrix_count] the result, of result_dtype: [n, n] eigenvectors, otherwise in ng_sym order */
  void *R;
  /* [n], f64 if result_dtype is f64, else f32. Symmetric: eigenvalues, or NULL; diagonal: see ng_result. */
  void *d;
  /* The present solve: d = shift + damping. Eigen: `damping` is the smallest damping of any eigenvector; `shift` is added to
   * the eigenvalues; sums at or below `floor` become 0. */
  double shift, damping, floor;
  bool uses_double; /* the ladder has reached double precision */
  /* Numbers that the queue writes. finite and trace describe F; for `accepted` see ng_linalg_ops.solve. */
  int info, finite, accepted;
  double trace, largest_eigenvalue;
} ng_matrix;

/* Eigenvalues computed in f32 have an error of about 2^-24 of the largest eigenvalue. Return whether this error exceeds 1e-2 of the
 * damping: then the weight 1 / (e + damping) of a small eigenvalue e would be wrong, and eigenvalues are computed in double. */
static inline bool ng_eigen_needs_double(double largest, double damping) {
  return 0x1p-24 * largest > 1e-2 * damping;
}

/* ---- operations ------------------------------------------------------------------------------*/

/* The divisors (g[r] + damping_g) (a[c] + damping_a) + damping_both of the entries (r, c) of a matrix in the eigenbases of G and A; g, a:
 * eigenvalues (NULL: all 1), of the dtype of the matrix; damping_g, damping_a, damping_both: damping. */
typedef struct ng_spectrum {
  const void *g, *a;
  double damping_g, damping_a, damping_both;
} ng_spectrum;

/* How the Newton-Schulz iteration rounds: not below f32; to bf16 after every operation; to bf16 after each of the three
 * products with its sum. Sums of products are in f32 or double. */
typedef enum ng_ns_rounding { NG_NS_EXACT, NG_NS_EACH, NG_NS_FUSED } ng_ns_rounding;
/* X <- scale f(X): the Newton-Schulz iteration towards U V' of X = U S V' (Jordan et al. 2024). X of rows x cols; with W = X or
 * X' so that W has at most as many rows as columns,
 *     W <- W / (|W| + epsilon), or with `bounds_norm` W / max(|W|, epsilon)
 *     `steps` times, with (a, b, c) = coefficients[i]:   A = W W',  W <- a W + (b A + c A A) W
 * With NG_NS_FUSED the scale is applied after the last rounding, with NG_NS_EACH before. */
typedef struct ng_newton_schulz {
  float *X; /* [rows, cols], dense */
  int64_t rows, cols;
  const double (*coefficients)[3]; /* in host memory, which must stay valid until ng_queue_wait */
  int32_t steps;
  bool bounds_norm;
  double epsilon, scale;
  ng_ns_rounding rounding;
} ng_newton_schulz;
/* Floats of scratch: three matrices of order n, n the smaller of rows and cols, and one of rows x cols. With `rounding`,
 * both sides are padded to a multiple of 32 (the blocks of bf16.h). */
static inline int64_t ng_newton_schulz_scratch(const ng_newton_schulz *x) {
  const int64_t side = x->rounding == NG_NS_EXACT ? 1 : 32;
  const int64_t rows = (x->rows + side - 1) / side * side;
  const int64_t cols = (x->cols + side - 1) / side * side;
  const int64_t n = rows < cols ? rows : cols;
  return 3 * n * n + rows * cols;
}

/* The operations of one implementation; every entry is required. Callers pass valid inputs. `t` is the dtype of all void
 * pointers of an entry: f32 or f64 for matrices, f32, bf16 or f16 for stored vectors and symmetric matrices. */
struct ng_linalg_ops {
  /* ---- matrices ---- */
  /* C [m,n] = alpha op(A) op(B) + beta C, op(A) [m,k], op(B) [k,n], transposed if ta, tb. beta == 0: C is not read. */
  void (*gemm)(ng_queue *q, ng_dtype t, bool ta, bool tb, int64_t m, int64_t n, int64_t k,
               double alpha, const void *A, int64_t lda, const void *B, int64_t ldb, double beta,
               void *C, int64_t ldc);
  /* S[r0:r0+m, r0:r0+m] += alpha X'X, X [rows, m]. Only one triangle is computed. */
  void (*add_gram)(ng_queue *q, ng_sym S, int64_t r0, int64_t m, const float *X, int64_t rows,
                   int64_t ldx, float alpha);
  /* S[r, c0:c0+k] += alpha v, r >= c0+k-1, v [k]: for the row of the bias. */
  void (*add_row)(ng_queue *q, ng_sym S, int64_t r, int64_t c0, int64_t k, const float *v,
                  float alpha);
  /* factor: S = L L' in place (Cholesky). invert: (L L')^-1 from L in place. *info: 0, or LAPACK's info. S and L are in
   * ng_sym order. */
  void (*factor)(ng_queue *q, int64_t n, void *S, ng_dtype t, int *info);
  void (*invert)(ng_queue *q, int64_t n, void *L, ng_dtype t, int *info);
  /* solve_right: B [m,n] <- B (L L')^-1. solve_left: B [n,m] <- (L L')^-1 B. L [n,n] from factor. */
  void (*solve_right)(ng_queue *q, int64_t n, const void *L, ng_dtype t, int64_t m, void *B,
                      int64_t ldb);
  void (*solve_left)(ng_queue *q, ng_sym L, int64_t m, float *B, int64_t ldb);
  /* mul_right: C [m,n] = B S, B [m,n]. mul_left: C [n,m] = S B, B [n,m]. C must not overlap B. */
  void (*mul_right)(ng_queue *q, ng_sym S, int64_t m, const float *B, int64_t ldb, float *C,
                    int64_t ldc);
  void (*mul_left)(ng_queue *q, ng_sym S, int64_t m, const float *B, int64_t ldb, float *C,
                   int64_t ldc);
  /* eigen: V [n,n] on entry a full symmetric matrix; on return row i is the eigenvector of w[i], w ascending. `work`:
   * eigen_work(n, t) bytes, aligned to 64. *info: 0, or LAPACK's info. */
  void (*eigen)(ng_queue *q, int64_t n, void *V, ng_dtype t, void *w, void *work, int *info);
  int64_t (*eigen_work)(const ng_queue *q, int64_t n, ng_dtype t);
  /* qr: X [n, m], n <= m, is A' of a matrix A [m, n]. X <- Q' of A = Q R by Householder reflections, for any rank of A.
   * `work`: qr_work(m, n) bytes, aligned to 64. *info: 0, or LAPACK's info. */
  void (*qr)(ng_queue *q, int64_t m, int64_t n, float *X, int64_t ldx, void *work, int *info);
  int64_t (*qr_work)(const ng_queue *q, int64_t m, int64_t n);

  /* newton_schulz.c: X of n descriptors, one after the other. scratch: ng_newton_schulz_scratch of the largest. */
  void (*newton_schulz)(ng_queue *q, const ng_newton_schulz *list, int64_t n, float *scratch);
  /* Compute the results of n finite matrices. If a result passes its checks, store it and set accepted = 1; otherwise the
   * stored result stays, and accepted = 0. The matrices are independent, so a device may compute equal orders at once, and
   * `cpu` computes small ones in threads. scratch: floats, at least ng_solve_scratch of each matrix. */
  void (*solve)(ng_queue *q, ng_matrix *const *list, int64_t n, float *scratch);

  /* ---- symmetric storage of order n; diagonal: only the diagonal [n] is stored; `t`: also f64 ---- */
  /* S += d I. */
  void (*shift_diagonal)(ng_queue *q, int64_t n, void *S, ng_dtype t, bool diagonal, double d);
  /* *out: the trace, in double. */
  void (*trace)(ng_queue *q, int64_t n, const void *S, ng_dtype t, bool diagonal, double *out);
  /* full [n,ld] = S; `t`: f32 or f64. */
  void (*unpack)(ng_queue *q, int64_t n, const void *S, ng_dtype t, void *full, int64_t ld);

  /* ---- vectors of n elements; symmetric storage is one of ng_sym_count(n) ---- */
  void (*widen)(ng_queue *q, int64_t n, const void *x, ng_dtype t, float *to);
  void (*narrow)(ng_queue *q, int64_t n, const float *x, void *to, ng_dtype t);
  /* x <- by x, in double, then rounded to `t`: f32 or f64. If by == 0, x becomes 0, also where it was Inf or NaN. */
  void (*scale)(ng_queue *q, int64_t n, void *x, ng_dtype t, double by);
  /* F <- keep F + c S, then S <- 0. fold: in f32, then rounded to the dtype t of F. fold_wide: in double, then rounded
   * to the dtype t of F and S: f32 or f64. */
  void (*fold)(ng_queue *q, int64_t n, void *F, ng_dtype t, float *S, float keep, float c);
  void (*fold_wide)(ng_queue *q, int64_t n, void *F, void *S, ng_dtype t, double keep, double c);
  /* *out: 1 if no element is Inf or NaN, else 0. The next two entries take f64, too. */
  void (*check_finite)(ng_queue *q, int64_t n, const void *x, ng_dtype t, int *out);
  /* *out: the largest |element| of x, ignoring NaN (call check_finite to detect NaN). */
  void (*find_largest)(ng_queue *q, int64_t n, const void *x, ng_dtype t, double *out);

  /* ---- rows of a matrix ---- */
  void (*copy_rows)(ng_queue *q, int64_t rows, int64_t cols, const float *x, int64_t ldx, float *to,
                    int64_t ldt);
  /* U [rows,cols] <- U / s (ng_spectrum), in double, then rounded to `t`: f32 or f64. */
  void (*divide)(ng_queue *q, int64_t rows, int64_t cols, ng_spectrum s, void *U, ng_dtype t,
                 int64_t ldu);
  /* sum_row_products: out [rows,3] = <P_r, D_r>, |D_r|^2, |P_r|^2 of row r of P and D. sum_squares: *out = |X|^2.
   * Sums are in double, in an order independent of threads and vector width. */
  void (*sum_row_products)(ng_queue *q, int64_t rows, int64_t cols, const float *P, int64_t ldp,
                           const float *D, int64_t ldd, double *out);
  void (*sum_squares)(ng_queue *q, int64_t rows, int64_t cols, const void *X, ng_dtype t,
                      int64_t ldx, double *out);
  /* In double: total [3] += <P, D>, |D|^2, |P|^2 of n elements. */
  void (*add_sums64)(ng_queue *q, int64_t n, const double *P, const double *D, double *total);
  /* total [3] += the rows of sums [rows,3], row after row. */
  void (*add_rows_of_sums)(ng_queue *q, int64_t rows, const double *sums, double *total);
  /* y [rows,cols] <- x, row r times d[r] if left, else column c times d[c]; `t`: f32 or f64, of all arrays. */
  void (*mul_diagonal)(ng_queue *q, bool left, int64_t rows, int64_t cols, const void *d,
                       ng_dtype t, const void *x, void *y, int64_t ld);
  /* y_j <- S x_j for `lines` vectors, in double, S of order n; element i of x_j is x[i within + j between], as in y. */
  void (*multiply_sym64)(ng_queue *q, int64_t n, const double *S, int64_t lines, int64_t within,
                         int64_t between, const float *x, float *y);
};

extern const ng_linalg_ops ng_linalg_ref; /* naive loops in double: the oracle */
#if defined(NG_HAVE_BLAS)
extern const ng_linalg_ops ng_linalg_cpu; /* calls BLAS and LAPACK by their Fortran symbols */
#endif

/* NG_BLAS_NAME: a BLAS symbol; NG_BLAS_TEXT: its name as a string. In a Python wheel the symbols have a prefix, so that
 * they do not clash with another BLAS in the process: scipy_sgemm_ (NG_BLAS_PREFIX = scipy_, cmake/wheel.cmake). */
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

bool ng_blas_accepts_order(
    int64_t n); /* whether 32-bit BLAS and LAPACK accept order n, work sizes included */

/* The loaded BLAS: name and version ("unknown": not known), name of its kernels, number of threads (0: not known), and a
 * hint how to make the BLAS faster, or "". */
typedef struct ng_blas_info {
  char name[256], kernel[64];
  int32_t threads;
  const char *hint;
} ng_blas_info;
ng_blas_info ng_blas_describe(void);
const char *ng_bf16_describe(void); /* the instructions of products in bf16 (bf16.h) */
/* ng_backend.open of `cpu`: find the functions for the threads of BLAS. */
const char *ng_blas_open(ng_queue *q);

/* ---- results.c: solves -----------------------------------------------------------------------*/

/* Up to this order every implementation computes Cholesky factors, inverses and solves in double. */
enum { NG_SMALL_SOLVE = 128 };
int64_t ng_solve_scratch(const ng_queue *q, const ng_matrix *m); /* floats */
/* Rungs of the ladder of twosided/. 0: damping d; 1 to 3: d times 10, 100, 1000; NG_DAMPED_DOUBLE: d, in double.
 * NG_DAMPED_NONE: no result passed the checks, and R is unchanged. */
enum { NG_DAMPED_DOUBLE = 4, NG_DAMPED_NONE = 5 };

/* ---- ring.c: a Cholesky factor whose rows enter and leave, computed by the calling thread at once ----------------*/

/* The factor L of S = L L' [n, n], in the memory of a ring of `places` places. Row k of S, the oldest first, belongs to
 * place[k]. Entries of unused places are 0. */
typedef struct ng_ring {
  double *L; /* [places, places] L[column's place][row's place] */
  int64_t places;
  const int64_t *place; /* [n], consecutive around the ring */
  int64_t n;
} ng_ring;
/* Append row n - 1 to L. row [places]: its entries of S, by place; they are overwritten. Return false, with L unchanged, if
 * the square of the new diagonal entry of L is below `least` or not finite. */
bool ng_ring_append(const ng_ring *r, double least, double *row);
void ng_ring_store(const ng_ring *r, const double *L); /* store a factor in ng_sym order */
/* z [places] <- S^-1 z. last: z is 0 except at the place of row n - 1. */
void ng_ring_solve(const ng_ring *r, bool last, double *z);
void ng_ring_drop(const ng_ring *r);                 /* remove row 0 */
void ng_ring_clear(const ng_ring *r, int64_t place); /* set the row and column of a place to 0 */

/* ---- fisher.c: lambda I + G'G / m of given rows, inverted: ng_fisher of natgrad.h ---------------*/

struct ng_strided;
/* Factor the diagonal blocks of lambda I + G'G / m. rows: G [m, d], finite f32, whose memory must stay valid; damping:
 * lambda > 0; end [blocks]: the ends of the blocks as in ng_fisher_create (NULL: one block). */
ng_status ng_fisher_make(ng_context *ctx, const struct ng_strided *rows, double damping,
                         const int64_t *end, int64_t blocks, ng_fisher **out);
void ng_fisher_free(ng_fisher *f);
ng_context *ng_fisher_context(const ng_fisher *f);
int64_t ng_fisher_size(const ng_fisher *f); /* d */
void ng_fisher_apply(ng_fisher *f, const double *x, double *out);
void ng_fisher_inverse_diagonal(ng_fisher *f, double *out);

/* ---- sym.c: computed by the calling thread at once, on matrices that no pending entry uses -------------------*/
void ng_sym_unpack(ng_sym S, float *full, int64_t ld); /* full [n, ld] = S */
/* y = S x in double, S of order n in f32 or f64 */
void ng_sym_vector(int64_t n, const void *S, ng_dtype t, const double *x, double *y);

#endif
