/* late.c: see late.h.
 *
 * LATEn defines, for an entry with a queue and n arguments, a struct of the arguments, a function that runs the call,
 * and the entry that stores it. */
#include "late.h"

#include <stdlib.h>
#include <string.h>

#include "kernel/tiles.h"

typedef struct note {
  struct note *next;
  void (*work)(ng_queue *q, const void *record);
  void *record;
} note;

static _Thread_local note *first, **end;
static _Thread_local int64_t waiting;

/* An allocation of the exact size, so a sanitizer finds later reads. */
static void store_call(void (*work)(ng_queue *q, const void *record), const void *record,
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

/* The backend that does the work of a late queue. */
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

/* What an entry writes. */
static _Thread_local const char *name_of_entry;
static void BYTES(const void *at, int64_t bytes) { late_forbid(name_of_entry, at, bytes); }
#define FLOATS(x, n) BYTES(x, (n)*4)
#define DOUBLES(x, n) BYTES(x, (n)*8)
#define INFO(x) BYTES(x, sizeof(int))
#define SYM(S) FLOATS((S).a, ng_sym_count((S).n))
#define MATRIX(x, rows, cols, ld) FLOATS(x, (rows) > 0 ? ((rows)-1) * (ld) + (cols) : 0)
#define NAMED(e, ...) name_of_entry = #e, __VA_ARGS__

/* clang-format off */
#define WORK(e, ...)                                                                               \
  static void e##_work(ng_queue *q, const void *record) {                                          \
    const e##_args *x = record;                                                                    \
    q->backend->linalg->e(q, __VA_ARGS__);                                                                     \
  }
#define NOTE(e, ...)                                                                               \
  const e##_args x = {__VA_ARGS__};                                                                \
  store_call(e##_work, &x, sizeof x)
#define LATE2(e, A, B, ...)                                                                        \
  typedef struct { A a; B b; } e##_args;                                                           \
  WORK(e, x->a, x->b)                                                                              \
  static void late_##e(ng_queue *q, A a, B b) { NOTE(e, a, b); NAMED(e, __VA_ARGS__); }
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

typedef int64_t i64;
typedef const float *in;
typedef const void *in_any;
LATE7(add_gram, ng_sym, i64, i64, in, i64, i64, float, SYM(a))
LATE6(add_row, ng_sym, i64, i64, i64, in, float, SYM(a))
LATE2(factor, ng_sym, int *, SYM(a), INFO(b))
LATE2(invert, ng_sym, int *, SYM(a), INFO(b))
LATE4(solve_right, ng_sym, i64, float *, i64, MATRIX(c, b, a.n, d))
LATE4(solve_left, ng_sym, i64, float *, i64, MATRIX(c, a.n, b, d))
LATE6(mul_right, ng_sym, i64, in, i64, float *, i64, MATRIX(f, b, a.n, g))
LATE6(mul_left, ng_sym, i64, in, i64, float *, i64, MATRIX(f, a.n, b, g))
LATE5(eigen, i64, float *, float *, void *, int *, FLOATS(b, a * a), FLOATS(c, a), INFO(f))
LATE3(factor64, i64, double *, int *, DOUBLES(b, ng_sym_count(a)), INFO(c))
LATE3(invert64, i64, double *, int *, DOUBLES(b, ng_sym_count(a)), INFO(c))
LATE3(solve64, i64, const double *, double *, DOUBLES(c, a))
LATE5(eigen64, i64, double *, double *, void *, int *, DOUBLES(b, a * a), DOUBLES(c, a), INFO(f))
LATE6(qr, i64, i64, float *, i64, void *, int *, MATRIX(c, b, a, d), INFO(g))
LATE5(power, i64, in, double, double, float *, FLOATS(f, a))
LATE6(divide_by, i64, float *, in, double, bool, double, FLOATS(b, a))
LATE4(shift, i64, void *, ng_dtype, double, BYTES(b, ng_sym_count(a) * ng_dtype_size(c)))
LATE5(trace, i64, in_any, ng_dtype, bool, double *, DOUBLES(f, 1))
LATE3(unpack, ng_sym, float *, i64, MATRIX(b, a.n, a.n, c))
LATE4(widen, i64, in_any, ng_dtype, float *, FLOATS(d, a))
LATE4(narrow, i64, in, void *, ng_dtype, BYTES(c, a * ng_dtype_size(d)))
LATE3(scale, i64, float *, double, FLOATS(b, a))
LATE6(fold, i64, void *, ng_dtype, float *, float, float, BYTES(b, a * ng_dtype_size(c)), FLOATS(d, a))
LATE5(fold_wide, i64, float *, float *, double, double, FLOATS(b, a), FLOATS(c, a))
LATE5(fold64, i64, double *, double *, double, double, DOUBLES(b, a), DOUBLES(c, a))
LATE3(scale64, i64, double *, double, DOUBLES(b, a))
LATE3(raise, i64, float *, double, FLOATS(b, a))
LATE4(finite, i64, in_any, ng_dtype, int *, INFO(d))
LATE4(largest, i64, in_any, ng_dtype, double *, DOUBLES(d, 1))
LATE6(copy, i64, i64, in, i64, float *, i64, MATRIX(f, a, b, g))
LATE5(divide, i64, i64, ng_spectrum, float *, i64, MATRIX(d, a, b, f))
LATE7(row_sums, i64, i64, in, i64, in, i64, double *, DOUBLES(h, 3 * a))
LATE6(norm2, i64, i64, in_any, ng_dtype, i64, double *, DOUBLES(g, 1))
LATE3(unpack64, i64, const double *, double *, DOUBLES(c, a * a))
LATE5(divide64, i64, i64, ng_spectrum, double *, i64, DOUBLES(d, (a - 1) * f + b))
LATE4(scale_rows64, i64, i64, const double *, double *, DOUBLES(d, a * b))
LATE4(sums64, i64, const double *, const double *, double *, DOUBLES(d, 3))
LATE3(add_sums, i64, const double *, double *, DOUBLES(c, 3))
LATE7(mul_diagonal, i64, i64, in, in, in, float *, i64, MATRIX(g, a, b, h))
LATE7(mul64, i64, const double *, i64, i64, i64, in, float *, FLOATS(h, (a - 1) * d + (c - 1) * f + 1))
/* clang-format on */

typedef struct gemm_args {
  bool ta, tb;
  int64_t m, n, k, lda, ldb, ldc;
  float alpha, beta, *C;
  const float *A, *B;
} gemm_args;

static void gemm_work(ng_queue *q, const void *record) {
  const gemm_args *x = record;
  q->backend->linalg->gemm(q, x->ta, x->tb, x->m, x->n, x->k, x->alpha, x->A, x->lda, x->B, x->ldb,
                           x->beta, x->C, x->ldc);
}

static void late_gemm(ng_queue *q, bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha,
                      const float *A, int64_t lda, const float *B, int64_t ldb, float beta,
                      float *C, int64_t ldc) {
  NOTE(gemm, ta, tb, m, n, k, lda, ldb, ldc, alpha, beta, C, A, B);
  NAMED(gemm, MATRIX(C, m, n, ldc));
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
    NAMED(solve, BYTES(m->R, count * ng_dtype_size(m->result_dtype)), INFO(&m->taken));
    if (m->d != NULL) FLOATS(m->d, m->n);
    if (m->d64 != NULL) DOUBLES(m->d64, m->n);
  }
}

typedef struct gemm64_args {
  bool ta, tb;
  int64_t m, n, k, lda, ldb, ldc;
  double *C;
  const double *A, *B;
} gemm64_args;

static void gemm64_work(ng_queue *q, const void *record) {
  const gemm64_args *x = record;
  q->backend->linalg->gemm64(q, x->ta, x->tb, x->m, x->n, x->k, x->A, x->lda, x->B, x->ldb, x->C,
                             x->ldc);
}

static void late_gemm64(ng_queue *q, bool ta, bool tb, int64_t m, int64_t n, int64_t k,
                        const double *A, int64_t lda, const double *B, int64_t ldb, double *C,
                        int64_t ldc) {
  NOTE(gemm64, ta, tb, m, n, k, lda, ldb, ldc, C, A, B);
  NAMED(gemm64, DOUBLES(C, (m - 1) * ldc + n));
}

/* Sizes do not depend on earlier calls. */
static int64_t late_eigen_work(const ng_queue *q, int64_t n) {
  return under(q)->linalg->eigen_work(q, n);
}
static int64_t late_qr_work(const ng_queue *q, int64_t m, int64_t n) {
  return under(q)->linalg->qr_work(q, m, n);
}
static int64_t late_eigen64_work(const ng_queue *q, int64_t n) {
  return under(q)->linalg->eigen64_work(q, n);
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
    .solve = late_solve,
    .power = late_power,
    .divide_by = late_divide_by,
    .factor64 = late_factor64,
    .invert64 = late_invert64,
    .solve64 = late_solve64,
    .eigen64 = late_eigen64,
    .eigen64_work = late_eigen64_work,
    .shift = late_shift,
    .trace = late_trace,
    .unpack = late_unpack,
    .widen = late_widen,
    .narrow = late_narrow,
    .scale = late_scale,
    .fold = late_fold,
    .fold_wide = late_fold_wide,
    .fold64 = late_fold64,
    .scale64 = late_scale64,
    .raise = late_raise,
    .finite = late_finite,
    .largest = late_largest,
    .copy = late_copy,
    .divide = late_divide,
    .row_sums = late_row_sums,
    .norm2 = late_norm2,
    .add_sums = late_add_sums,
    .mul_diagonal = late_mul_diagonal,
    .mul64 = late_mul64,
    .gemm64 = late_gemm64,
    .unpack64 = late_unpack64,
    .divide64 = late_divide64,
    .scale_rows64 = late_scale_rows64,
    .sums64 = late_sums64,
};

/* ---- kernels ---------------------------------------------------------------------------------*/

/* The arguments of an entry: copies of its lists, and the addresses of its results. */
typedef struct call {
  int64_t n;
  void *list, *second;
  void *parts, *out;
  ng_ratios ratios;
} call;

static void *copy_of(const void *list, int64_t n, size_t size) {
  void *copy = list == NULL ? NULL : malloc((size_t)n * size + 1);
  if (copy != NULL) memcpy(copy, list, (size_t)n * size);
  return copy;
}

static void drop(const call *x) {
  free(x->list);
  free(x->second);
}

/* ENTRY defines the function that runs a noted call of an entry; the call is `x`. */
#define ENTRY(e, ...)                                                                              \
  static void run_##e(ng_queue *q, const void *record) {                                           \
    const call *x = record;                                                                        \
    q->backend->kernels->e(q, __VA_ARGS__);                                                        \
    drop(x);                                                                                       \
  }
#define CALL(e, ...)                                                                               \
  const call x = {__VA_ARGS__};                                                                    \
  store_call(run_##e, &x, sizeof x)

/* What kernels write; scratch and bound arrays are left out. */
static void wrote_measure(const ng_measure *m, int64_t n) {
  for (const ng_measure *stop = m + n; m < stop; m++) {
    DOUBLES(m->out, m->t != NULL ? 3 : 2);
    if (m->t != NULL) DOUBLES(m->t, m->D.rows);
  }
}
static void wrote_read(const ng_read *r, int64_t n) {
  for (const ng_read *stop = r + n; r < stop; r++) {
    const int64_t last = r->map != NULL ? r->D.cols - 1 : (r->D.cols - 1) * r->to_col;
    const int64_t count = (r->D.rows - 1) * r->to_row + last + 1;
    BYTES(r->to_double != NULL ? (void *)r->to_double : (void *)r->to,
          count * (r->to_double != NULL ? 8 : 4));
    INFO(r->finite);
  }
}
static void wrote_gram_rows(const ng_gram *g, int64_t n) {
  for (const ng_gram *stop = g + n; g < stop; g++) {
    if (g->S64 == NULL) SYM(g->S);
    if (g->S64 != NULL) DOUBLES(g->S64, ng_sym_count(g->S.n));
  }
}
#define wrote_gram_conv wrote_gram_rows
static void wrote_box_sums(const ng_box *b, int64_t n) {
  for (const ng_box *stop = b + n; b < stop; b++) {
    DOUBLES(b->out, b->conv.channels * ng_conv_taps(&b->conv));
  }
}
static void wrote_norm_squares(const ng_norm_sum *k, int64_t n) {
  for (const ng_norm_sum *stop = k + n; k < stop; k++) {
    DOUBLES(k->X, ng_norm_width(&k->layer));
  }
}
static void wrote_norm_gram(const ng_norm_sum *k, int64_t n) {
  for (const ng_norm_sum *stop = k + n; k < stop; k++) {
    BYTES(k->S, ng_sym_count(ng_norm_width(&k->layer)) * ng_dtype_size(k->dtype));
  }
}
static void wrote_flat(const ng_flat_pass *p, int64_t n) {
  for (const ng_flat_pass *stop = p + n; p < stop; p++) {
    const bool x = p->op == NG_FLAT_ADAM || p->op == NG_FLAT_FILL;
    const bool next_s = p->op == NG_FLAT_ADAM || p->op == NG_FLAT_DIVIDE;
    DOUBLES(p->out, 3);
    for (int64_t i = 0; i < p->ranges; i++) {
      const int64_t at = p->range[i].at, count = p->range[i].n;
      if (p->to != NULL && p->op != NG_FLAT_MEASURE) FLOATS(p->to + at, count);
      if (p->x != NULL && x) FLOATS(p->x + at, count);
      if (p->next_s != NULL && next_s) FLOATS(p->next_s + at, count);
      if (p->op == NG_FLAT_MASK) BYTES(p->mask + at, count);
    }
  }
}
static void wrote_row_products(const ng_rows *G, int64_t n) {
  for (const ng_rows *stop = G + n; G < stop; G++) {
    for (int64_t i = 0; i < G->ranges; i++) {
      DOUBLES(G->k + G->range[i].part * G->places, G->places);
    }
  }
}
static void wrote_row_combine(const ng_rows *G, int64_t n) {
  for (const ng_rows *stop = G + n; G < stop; G++) {
    for (int64_t i = 0; i < G->ranges; i++) {
      FLOATS(G->u + G->range[i].at, G->range[i].n);
    }
  }
}
static void wrote_copy(const ng_copy *c, int64_t n) {
  for (const ng_copy *stop = c + n; c < stop; c++) {
    int64_t last = 0;
    for (int32_t a = 0; a < c->from.ndim; a++) {
      last += (c->from.shape[a] - 1) * c->to_stride[a];
    }
    BYTES(c->to, (last + 1) * ng_dtype_size(c->from.dtype));
  }
}
static void wrote_wire(const ng_wire *w, int64_t n) {
  for (const ng_wire *stop = w + n; w < stop; w++) {
    FLOATS(w->x, w->n);
  }
}
static void wrote_change(const ng_change *c, int64_t n) {
  for (const ng_change *stop = c + n; c < stop; c++) {
    DOUBLES(c->out, 2);
  }
}
static void wrote_largest_select(const ng_largest *v, int64_t n) {
  for (const ng_largest *stop = v + n; v < stop; v++) {
    if (v->error != NULL) FLOATS(v->x, v->n);
    FLOATS(v->chosen, v->n);
  }
}
static void wrote_largest_count(const ng_largest *v, int64_t n) {
  for (const ng_largest *stop = v + n; v < stop; v++) {
    if (v->error != NULL) FLOATS(v->x, v->n);
    DOUBLES(v->count, v->digits == 0 ? 2 : 1 << v->digits);
  }
}
static void wrote_largest_collect(const ng_largest *v, int64_t n) {
  for (const ng_largest *stop = v + n; v < stop; v++) {
    FLOATS(v->chosen, v->n);
    DOUBLES(v->selected, 1);
  }
}
static void wrote_largest_store(const ng_largest *v, int64_t n) {
  for (const ng_largest *stop = v + n; v < stop; v++) {
    FLOATS(v->x, v->n);
    BYTES(v->value, v->size * ng_dtype_size(v->dtype));
    BYTES(v->index, v->size * 2);
    FLOATS(v->begin, v->blocks);
  }
}
static void wrote_largest_pack(const ng_largest_pack *p, int64_t n) {
  for (const ng_largest_pack *stop = p + n; p < stop; p++) {
    if (!p->unpacks) {
      DOUBLES(p->entry, p->n);
      continue;
    }
    BYTES(p->value, p->n * ng_dtype_size(p->dtype));
    BYTES(p->index, p->n * 2);
  }
}
static void wrote_low_rank(const ng_low_rank *w, int64_t n) {
  for (const ng_low_rank *stop = w + n; w < stop; w++) {
    const ng_factors *v = &w->shape;
    const int64_t all = v->rows * v->cols, count = v->rank * (v->rows + v->cols);
    FLOATS(w->a.x, all);
    FLOATS(w->a.rest, all);
    FLOATS(w->to.x, v->rank > 0 ? count : all);
    FLOATS(w->to.rest, count);
  }
}

/* An entry with a list and scratch. */
#define LIST(e, T, S)                                                                              \
  ENTRY(e, x->list, x->n, x->parts)                                                                \
  static void late_##e(ng_queue *q, const T *list, int64_t n, S *scratch) {                        \
    CALL(e, .n = n, .list = copy_of(list, n, sizeof *list), .parts = scratch);                     \
    NAMED(e, wrote_##e(list, n));                                                                  \
  }

ENTRY(scan, x->list, x->n, x->out)
static void late_scan(ng_queue *q, const ng_strided *a, int64_t n, double *out) {
  CALL(scan, .n = n, .list = copy_of(a, n, sizeof *a), .out = out);
  NAMED(scan, DOUBLES(out, n));
}
LIST(measure, ng_measure, double)
ENTRY(finite, x->list, x->n, x->out)
static void late_all_finite(ng_queue *q, const ng_region *a, int64_t n, int32_t *out) {
  CALL(finite, .n = n, .list = copy_of(a, n, sizeof *a), .out = out);
  NAMED(finite, FLOATS(out, n));
}
ENTRY(read, x->list, x->n)
static void late_read(ng_queue *q, const ng_read *r, int64_t n) {
  CALL(read, .n = n, .list = copy_of(r, n, sizeof *r));
  NAMED(read, wrote_read(r, n));
}
ENTRY(emit, x->list, x->n)
static void late_emit(ng_queue *q, const ng_direction *e, int64_t n) {
  CALL(emit, .n = n, .list = copy_of(e, n, sizeof *e));
}
ENTRY(store, x->list, x->second, x->n)
static void late_store(ng_queue *q, const ng_direction *e, float *const *to, int64_t n) {
  CALL(store, .n = n, .list = copy_of(e, n, sizeof *e), .second = copy_of(to, n, sizeof *to));
  for (int64_t i = 0; i < n; i++) {
    NAMED(store, FLOATS(to[i], e[i].D.rows * e[i].D.cols));
  }
}
ENTRY(norm2, x->list, x->n, x->parts, x->out)
static void late_norms(ng_queue *q, const ng_direction *e, int64_t n, double *parts, double *out) {
  CALL(norm2, .n = n, .list = copy_of(e, n, sizeof *e), .parts = parts, .out = out);
  NAMED(norm2, DOUBLES(out, n));
}
ENTRY(update, x->list, x->second, x->n)
static void late_update(ng_queue *q, const ng_direction *e, const ng_weight_update *s, int64_t n) {
  CALL(update, .n = n, .list = copy_of(e, n, sizeof *e), .second = copy_of(s, n, sizeof *s));
}
ENTRY(ratios, x->list, x->second, x->n, &x->ratios)
static void late_ratios(ng_queue *q, const ng_direction *e, const ng_weight_update *s, int64_t n,
                        const ng_ratios *r) {
  CALL(ratios, .n = n, .list = copy_of(e, n, sizeof *e), .second = copy_of(s, n, sizeof *s),
       .ratios = *r);
}
LIST(gram_rows, ng_gram, float)
LIST(gram_conv, ng_gram, float)
LIST(box_sums, ng_box, double)
ENTRY(square_sums, x->list, x->n)
static void late_square_sums(ng_queue *q, const ng_squares *s, int64_t n) {
  CALL(square_sums, .n = n, .list = copy_of(s, n, sizeof *s));
}
LIST(norm_squares, ng_norm_sum, void)
LIST(norm_gram, ng_norm_sum, void)
#define LIST_ALONE(e, T)                                                                           \
  ENTRY(e, x->list, x->n)                                                                          \
  static void late_##e(ng_queue *q, const T *list, int64_t n) {                                    \
    CALL(e, .n = n, .list = copy_of(list, n, sizeof *list));                                       \
    NAMED(e, wrote_##e(list, n));                                                                  \
  }
/* The caller may change lists of the host (flat.h) when the entry has returned. */
static void *copy_to(char **at, const void *list, int64_t n, size_t size) {
  void *copy = *at;
  if (list == NULL) return NULL;
  memcpy(copy, list, (size_t)n * size);
  *at += (size_t)n * size;
  return copy;
}
ENTRY(flat, x->list, x->n)
static void late_flat(ng_queue *q, const ng_flat_pass *list, int64_t n) {
  ng_flat_pass *copy = copy_of(list, n, sizeof *copy);
  int64_t ranges = 0;
  for (int64_t i = 0; i < n; i++) {
    ranges += list[i].ranges;
  }
  char *second = malloc((size_t)ranges * sizeof(ng_flat) + 1), *at = second;
  for (int64_t i = 0; i < n; i++) {
    copy[i].range = copy_to(&at, list[i].range, list[i].ranges, sizeof(ng_flat));
  }
  CALL(flat, .n = n, .list = copy, .second = second);
  NAMED(flat, wrote_flat(list, n));
}
static call rows_of(const ng_rows *list, int64_t n) {
  ng_rows *copy = copy_of(list, n, sizeof *copy);
  size_t most = 1;
  for (int64_t i = 0; i < n; i++) {
    const ng_rows *G = &list[i];
    most += (size_t)G->ranges * (sizeof *G->range + (size_t)G->places * 8 + 8);
    most += (size_t)G->used * sizeof *G->place;
  }
  char *second = malloc(most), *at = second;
  for (int64_t i = 0; i < n; i++) {
    const ng_rows *G = &list[i];
    int64_t parts = 0;
    for (int64_t k = 0; k < G->ranges; k++) {
      parts = ng_max64(parts, G->range[k].part + 1);
    }
    copy[i].range = copy_to(&at, G->range, G->ranges, sizeof *G->range);
    copy[i].place = copy_to(&at, G->place, G->used, sizeof *G->place);
    copy[i].c = copy_to(&at, G->c, parts * G->places, sizeof *G->c);
    copy[i].by = copy_to(&at, G->by, parts, sizeof *G->by);
  }
  return (call){.n = n, .list = copy, .second = second};
}
ENTRY(row_products, x->list, x->n)
static void late_row_products(ng_queue *q, const ng_rows *G, int64_t n) {
  const call x = rows_of(G, n);
  store_call(run_row_products, &x, sizeof x);
  NAMED(row_products, wrote_row_products(G, n));
}
ENTRY(row_combine, x->list, x->n)
static void late_row_combine(ng_queue *q, const ng_rows *G, int64_t n) {
  const call x = rows_of(G, n);
  store_call(run_row_combine, &x, sizeof x);
  NAMED(row_combine, wrote_row_combine(G, n));
}
LIST(largest_select, ng_largest, int32_t)
LIST_ALONE(largest_count, ng_largest)
LIST_ALONE(largest_collect, ng_largest)
LIST_ALONE(largest_store, ng_largest)
LIST_ALONE(largest_pack, ng_largest_pack)
ENTRY(copy, x->list, x->n)
static void late_copies(ng_queue *q, const ng_copy *list, int64_t n) {
  CALL(copy, .n = n, .list = copy_of(list, n, sizeof *list));
  NAMED(copy, wrote_copy(list, n));
}
LIST_ALONE(wire, ng_wire)
LIST_ALONE(change, ng_change)
LIST_ALONE(low_rank, ng_low_rank)

static const ng_kernel_ops late_kernels = {
    .tiles = ng_tiles_of,
    .scan = late_scan,
    .measure = late_measure,
    .finite = late_all_finite,
    .read = late_read,
    .emit = late_emit,
    .store = late_store,
    .norm2 = late_norms,
    .update = late_update,
    .ratios = late_ratios,
    .gram_rows = late_gram_rows,
    .gram_conv = late_gram_conv,
    .box_sums = late_box_sums,
    .square_sums = late_square_sums,
    .norm_squares = late_norm_squares,
    .norm_gram = late_norm_gram,
    .flat = late_flat,
    .row_products = late_row_products,
    .row_combine = late_row_combine,
    .largest_select = late_largest_select,
    .largest_count = late_largest_count,
    .largest_collect = late_largest_collect,
    .largest_store = late_largest_store,
    .largest_pack = late_largest_pack,
    .copy = late_copies,
    .wire = late_wire,
    .change = late_change,
    .low_rank = late_low_rank,
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

const ng_backend *test_backend(int32_t i) {
  const ng_backend *b = ng_backend_at(i);
  return b == NULL && (i == 0 || ng_backend_at(i - 1) != NULL) ? &late_ref.backend : b;
}
