/* late.c: the queue, the linear algebra and the backends of late.h; late_kernels.c has the kernels.
 *
 * LATEn defines, for an entry with a queue and n arguments, a struct of the arguments, a function that runs the call,
 * and the entry that stores it. */
#include "late.h"

#include <stdlib.h>
#include <string.h>

#include "late_calls.h"

typedef struct note {
  struct note *next;
  void (*work)(ng_queue *q, const void *record);
  void *record;
} note;

static _Thread_local note *first, **end;
static _Thread_local int64_t waiting;

/* An allocation of the exact size, so a sanitizer finds later reads. */
void late_store_call(void (*work)(ng_queue *q, const void *record), const void *record,
                     size_t size) {
  note *n = malloc(sizeof *n);
  void *copy = malloc(size);
  if (n == NULL || copy == NULL) abort();
  memcpy(copy, record, size);
  *n = (note){NULL, work, copy};
  if (first == NULL) end = &first;
  *end = n;
  end = &n->next;
  waiting++;
}

/* Return the backend that runs the calls of a late queue. */
static const ng_backend *under(const ng_queue *q) {
  return ((const late_backend *)(const void *)q->backend)->under;
}

static void late_wait(ng_queue *q) {
  ng_queue now = *q;
  now.backend = under(q);
  late_allow();
  while (first != NULL) {
    note *n = first;
    first = n->next;
    n->work(&now, n->record);
    free(n->record);
    free(n);
    waiting--;
  }
}

_Thread_local const char *late_entry;

/* clang-format off */
#define WORK(e, ...)                                                                               \
  static void e##_work(ng_queue *q, const void *record) {                                          \
    const e##_args *x = record;                                                                    \
    q->backend->linalg->e(q, __VA_ARGS__);                                                                     \
  }
#define NOTE(e, ...)                                                                               \
  const e##_args x = {__VA_ARGS__};                                                                \
  late_store_call(e##_work, &x, sizeof x)
#define LATE3(e, A, B, C, ...)                                                                     \
  typedef struct { A a; B b; C c; } e##_args;                                                      \
  WORK(e, x->a, x->b, x->c)                                                                        \
  static void late_##e(ng_queue *q, A a, B b, C c) { NOTE(e, a, b, c); NAMED(e, __VA_ARGS__); }
#define LATE4(e, A, B, C, D, ...)                                                                  \
  typedef struct { A a; B b; C c; D d; } e##_args;                                                 \
  WORK(e, x->a, x->b, x->c, x->d)                                                                  \
  static void late_##e(ng_queue *q, A a, B b, C c, D d) { NOTE(e, a, b, c, d); NAMED(e, __VA_ARGS__); }
#define LATE5(e, A, B, C, D, E, ...)                                                               \
  typedef struct { A a; B b; C c; D d; E f; } e##_args;                                            \
  WORK(e, x->a, x->b, x->c, x->d, x->f)                                                            \
  static void late_##e(ng_queue *q, A a, B b, C c, D d, E f) { NOTE(e, a, b, c, d, f); NAMED(e, __VA_ARGS__); }
#define LATE6(e, A, B, C, D, E, F, ...)                                                            \
  typedef struct { A a; B b; C c; D d; E f; F g; } e##_args;                                       \
  WORK(e, x->a, x->b, x->c, x->d, x->f, x->g)                                                      \
  static void late_##e(ng_queue *q, A a, B b, C c, D d, E f, F g) { NOTE(e, a, b, c, d, f, g); NAMED(e, __VA_ARGS__); }
#define LATE7(e, A, B, C, D, E, F, G, ...)                                                         \
  typedef struct { A a; B b; C c; D d; E f; F g; G h; } e##_args;                                  \
  WORK(e, x->a, x->b, x->c, x->d, x->f, x->g, x->h)                                                \
  static void late_##e(ng_queue *q, A a, B b, C c, D d, E f, F g, G h) {                           \
    NOTE(e, a, b, c, d, f, g, h);                                                                  \
    NAMED(e, __VA_ARGS__);                                                                         \
  }
#define LATE8(e, A, B, C, D, E, F, G, H, ...)                                                      \
  typedef struct { A a; B b; C c; D d; E f; F g; G h; H k; } e##_args;                             \
  WORK(e, x->a, x->b, x->c, x->d, x->f, x->g, x->h, x->k)                                          \
  static void late_##e(ng_queue *q, A a, B b, C c, D d, E f, F g, G h, H k) {                      \
    NOTE(e, a, b, c, d, f, g, h, k);                                                               \
    NAMED(e, __VA_ARGS__);                                                                         \
  }

typedef int64_t i64;
typedef const float *in;
typedef const void *in_any;
LATE7(add_gram, ng_sym, i64, i64, in, i64, i64, float, SYM(a))
LATE6(add_row, ng_sym, i64, i64, i64, in, float, SYM(a))
LATE4(factor, i64, void *, ng_dtype, int *, BYTES(b, ng_sym_count(a) * ng_dtype_size(c)), INFO(d))
LATE4(invert, i64, void *, ng_dtype, int *, BYTES(b, ng_sym_count(a) * ng_dtype_size(c)), INFO(d))
LATE6(solve_right, i64, in_any, ng_dtype, i64, void *, i64, BYTES(f, ((d - 1) * g + a) * ng_dtype_size(c)))
LATE4(solve_left, ng_sym, i64, float *, i64, MATRIX(c, a.n, b, d))
LATE6(mul_right, ng_sym, i64, in, i64, float *, i64, MATRIX(f, b, a.n, g))
LATE6(mul_left, ng_sym, i64, in, i64, float *, i64, MATRIX(f, a.n, b, g))
LATE6(eigen, i64, void *, ng_dtype, void *, void *, int *, BYTES(b, a * a * ng_dtype_size(c)), BYTES(d, a * ng_dtype_size(c)), INFO(g))
LATE6(qr, i64, i64, float *, i64, void *, int *, MATRIX(c, b, a, d), INFO(g))
LATE5(shift_diagonal, i64, void *, ng_dtype, bool, double, BYTES(b, (d ? a : ng_sym_count(a)) * ng_dtype_size(c)))
LATE5(trace, i64, in_any, ng_dtype, bool, double *, DOUBLES(f, 1))
LATE5(unpack, i64, in_any, ng_dtype, void *, i64, BYTES(d, ((a - 1) * f + a) * ng_dtype_size(c)))
LATE4(widen, i64, in_any, ng_dtype, float *, FLOATS(d, a))
LATE4(narrow, i64, in, void *, ng_dtype, BYTES(c, a * ng_dtype_size(d)))
LATE4(scale, i64, void *, ng_dtype, double, BYTES(b, a * ng_dtype_size(c)))
LATE6(fold, i64, void *, ng_dtype, float *, float, float, BYTES(b, a * ng_dtype_size(c)), FLOATS(d, a))
LATE6(fold_wide, i64, void *, void *, ng_dtype, double, double, BYTES(b, a * ng_dtype_size(d)), BYTES(c, a * ng_dtype_size(d)))
LATE4(check_finite, i64, in_any, ng_dtype, int *, INFO(d))
LATE4(find_largest, i64, in_any, ng_dtype, double *, DOUBLES(d, 1))
LATE6(copy_rows, i64, i64, in, i64, float *, i64, MATRIX(f, a, b, g))
LATE6(divide, i64, i64, ng_spectrum, void *, ng_dtype, i64, BYTES(d, ((a - 1) * g + b) * ng_dtype_size(f)))
LATE7(sum_row_products, i64, i64, in, i64, in, i64, double *, DOUBLES(h, 3 * a))
LATE6(sum_squares, i64, i64, in_any, ng_dtype, i64, double *, DOUBLES(g, 1))
LATE4(add_sums64, i64, const double *, const double *, double *, DOUBLES(d, 3))
LATE3(add_rows_of_sums, i64, const double *, double *, DOUBLES(c, 3))
LATE8(mul_diagonal, bool, i64, i64, in_any, ng_dtype, in_any, void *, i64, BYTES(h, ((b - 1) * k + c) * ng_dtype_size(f)))
LATE7(multiply_sym64, i64, const double *, i64, i64, i64, in, float *, FLOATS(h, (a - 1) * d + (c - 1) * f + 1))
/* clang-format on */

typedef struct gemm_args {
  ng_dtype t;
  bool ta, tb;
  int64_t m, n, k, lda, ldb, ldc;
  double alpha, beta;
  void *C;
  const void *A, *B;
} gemm_args;

static void gemm_work(ng_queue *q, const void *record) {
  const gemm_args *x = record;
  q->backend->linalg->gemm(q, x->t, x->ta, x->tb, x->m, x->n, x->k, x->alpha, x->A, x->lda, x->B,
                           x->ldb, x->beta, x->C, x->ldc);
}

static void late_gemm(ng_queue *q, ng_dtype t, bool ta, bool tb, int64_t m, int64_t n, int64_t k,
                      double alpha, const void *A, int64_t lda, const void *B, int64_t ldb,
                      double beta, void *C, int64_t ldc) {
  NOTE(gemm, t, ta, tb, m, n, k, lda, ldb, ldc, alpha, beta, C, A, B);
  NAMED(gemm, BYTES(C, ((m - 1) * ldc + n) * ng_dtype_size(t)));
}

typedef struct solve_args {
  ng_matrix **list;
  int64_t n;
  float *scratch;
} solve_args;

static void solve_work(ng_queue *q, const void *record) {
  const solve_args *x = record;
  q->backend->linalg->solve(q, x->list, x->n, x->scratch);
  free(x->list);
}

static void late_solve(ng_queue *q, ng_matrix *const *list, int64_t n, float *scratch) {
  ng_matrix **copy = malloc((size_t)n * sizeof *copy + 1);
  if (copy == NULL) abort();
  memcpy(copy, list, (size_t)n * sizeof *copy);
  NOTE(solve, copy, n, scratch);
  for (int64_t i = 0; i < n; i++) {
    const ng_matrix *m = copy[i];
    const int64_t count = m->form != NG_FORM_SYMMETRIC   ? 0
                          : m->result == NG_RESULT_EIGEN ? m->n * m->n
                                                         : ng_sym_count(m->n);
    NAMED(solve, BYTES(m->R, count * ng_dtype_size(m->result_dtype)));
    if (m->d != NULL) BYTES(m->d, m->n * (m->result_dtype == NG_F64 ? 8 : 4));
  }
  for (int64_t i = 0; i < n; i++) {
    /* last, because the loop above reads structs that lie on these pages */
    INFO(&copy[i]->accepted);
  }
}

typedef struct newton_schulz_args {
  ng_newton_schulz *list;
  int64_t n;
  float *scratch;
} newton_schulz_args;

static void newton_schulz_work(ng_queue *q, const void *record) {
  const newton_schulz_args *x = record;
  q->backend->linalg->newton_schulz(q, x->list, x->n, x->scratch);
  free(x->list);
}

static void late_newton_schulz(ng_queue *q, const ng_newton_schulz *list, int64_t n,
                               float *scratch) {
  ng_newton_schulz *copy = malloc((size_t)n * sizeof *copy + 1);
  if (copy == NULL) abort();
  memcpy(copy, list, (size_t)n * sizeof *copy);
  NOTE(newton_schulz, copy, n, scratch);
  for (int64_t i = 0; i < n; i++)
    NAMED(newton_schulz, FLOATS(list[i].X, list[i].rows * list[i].cols));
}

/* Sizes do not depend on earlier calls. */
static int64_t late_eigen_work(const ng_queue *q, int64_t n, ng_dtype t) {
  return under(q)->linalg->eigen_work(q, n, t);
}
static int64_t late_qr_work(const ng_queue *q, int64_t m, int64_t n) {
  return under(q)->linalg->qr_work(q, m, n);
}

static const ng_linalg_ops late_linalg = {
    .gemm = late_gemm,
    .add_gram = late_add_gram,
    .add_row = late_add_row,
    .factor = late_factor,
    .invert = late_invert,
    .solve_right = late_solve_right,
    .solve_left = late_solve_left,
    .mul_right = late_mul_right,
    .mul_left = late_mul_left,
    .eigen = late_eigen,
    .eigen_work = late_eigen_work,
    .qr = late_qr,
    .qr_work = late_qr_work,
    .newton_schulz = late_newton_schulz,
    .solve = late_solve,
    .shift_diagonal = late_shift_diagonal,
    .trace = late_trace,
    .unpack = late_unpack,
    .widen = late_widen,
    .narrow = late_narrow,
    .scale = late_scale,
    .fold = late_fold,
    .fold_wide = late_fold_wide,
    .check_finite = late_check_finite,
    .find_largest = late_find_largest,
    .copy_rows = late_copy_rows,
    .divide = late_divide,
    .sum_row_products = late_sum_row_products,
    .sum_squares = late_sum_squares,
    .add_rows_of_sums = late_add_rows_of_sums,
    .mul_diagonal = late_mul_diagonal,
    .multiply_sym64 = late_multiply_sym64,
    .add_sums64 = late_add_sums64,
};

#define LATE(real, linalg_of_host)                                                                 \
  {                                                                                                \
    .backend = {.name = "late",                                                                    \
                .linalg = &late_linalg,                                                            \
                .host = (linalg_of_host),                                                          \
                .kernels = &late_kernels,                                                          \
                .alloc = late_alloc,                                                               \
                .free = late_free,                                                                 \
                .open = late_open,                                                                 \
                .wait = late_wait},                                                                \
    .under = (real)                                                                                \
  }
const late_backend late_ref = LATE(&ng_backend_ref, &ng_linalg_ref);
late_backend late_over(const ng_backend *real) { return (late_backend)LATE(real, real->host); }

int64_t late_waiting(void) { return waiting; }

const ng_backend *const more_backends[] = {&late_ref.backend, NULL};

const ng_backend *test_backend(int32_t i) {
  for (int32_t n = 0; n <= i; n++) {
    if (ng_backend_at(n) == NULL) return more_backends[i - n];
  }
  return ng_backend_at(i);
}
