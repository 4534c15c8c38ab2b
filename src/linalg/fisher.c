/* fisher.c: the damped Fisher matrix of m gradients, or its diagonal blocks:
 *
 *     F = lambda I + G'G / m,   G [m, B]: B adjacent coordinates (the block) of each gradient
 *
 * In: gradients in f32, whose memory the caller must not free or change; the ends of the blocks. Out: F^-1 x and the
 * diagonal of F^-1.
 *
 * The published recursion (Frantar, Kurtic & Alistarh 2021, arXiv 2107.03356, section 3.1) stores m vectors of d
 * numbers in addition to the gradients. This file stores one Cholesky factor L of order min(m, B) in double for each
 * block. With e_i column i of I,
 *
 *     m < B    L L' = lambda m I + G G'    F^-1 x = (x - G' (L L')^-1 G x) / lambda
 *                                          [F^-1]_ii = (1 - |L^-1 G e_i|^2) / lambda
 *     else     L L' = F                    F^-1 x = (L L')^-1 x,   [F^-1]_ii = |L^-1 e_i|^2
 *
 * Both forms are equal by the Woodbury identity. All sums are in double, in an order independent of the threads. */
#include "core/core.h"
#include "linalg/linalg.h"

enum { PANEL = 64, LANES = 8, SMALL = 65536 };

struct ng_fisher {
  ng_context *ctx;
  const float *g; /* [m, d], leading dimension ld; memory of the caller */
  int64_t m, d, ld, blocks;
  int64_t most; /* largest order of a factor */
  double damping;
  int64_t *end;   /* [blocks] end of each block */
  int64_t *at;    /* [blocks + 1] offsets in `factor` */
  double *factor; /* L of each block, in ng_sym order */
  double *room;   /* scratch [threads, most, PANEL] for Y; [most] for z */
  int32_t threads;
  size_t bytes; /* size of the allocation */
};

/* A block of F, and the vectors of a call: out = F^-1 x over the block. */
typedef struct block_work {
  ng_fisher *f;
  int64_t from, B, n; /* first coordinate; number of coordinates; order of the factor */
  bool dual;          /* true if m < B: L is then the Cholesky factor of lambda m I + G G' */
  double *L;
  const double *x;
  double *z, *out; /* z [n]: (L L')^-1 G x or (L L')^-1 x */
} block_work;

static block_work block_work_of(ng_fisher *f, int64_t block) {
  const int64_t from = block == 0 ? 0 : f->end[block - 1], B = f->end[block] - from;
  return (block_work){.f = f,
                      .from = from,
                      .B = B,
                      .n = ng_min64(f->m, B),
                      .dual = f->m < B,
                      .L = f->factor + f->at[block],
                      .z = f->room + (int64_t)f->threads * f->most * PANEL};
}

static const float *row_address(const block_work *w, int64_t r) {
  return w->f->g + r * w->f->ld + w->from;
}

/* Run n tasks, on one thread if they compute few products. */
static void run_tasks(block_work *w, int64_t products, int64_t n, void (*task)(void *, int32_t)) {
  ng_queue_run(products >= SMALL ? w->f->ctx->queue : NULL, (int32_t)n, task, w);
}

/* ---- the factors -----------------------------------------------------------------------------*/

/* Return <x, y> for y in f32 or, if `wide`, in double. `wide` is a constant after inlining. */
static inline __attribute__((always_inline)) double dot_product(const float *x, const void *y,
                                                                bool wide, int64_t n) {
  const float *y32 = y;
  const double *y64 = y;
  double sum[LANES] = {0.0};
  for (int64_t i = 0; i + LANES <= n; i += LANES) {
    for (int k = 0; k < LANES; k++) {
      sum[k] += (double)x[i + k] * (wide ? y64[i + k] : (double)y32[i + k]);
    }
  }
  for (int64_t i = n / LANES * LANES; i < n; i++) {
    sum[0] += (double)x[i] * (wide ? y64[i] : (double)y32[i]);
  }
  return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

static void fill_row(const block_work *w, int64_t i) {
  const double m = (double)w->f->m;
  for (int64_t j = 0; j <= i; j++) {
    double v = 0.0;
    if (w->dual) {
      v = dot_product(row_address(w, i), row_address(w, j), false, w->B) +
          (i == j ? w->f->damping * m : 0.0);
    } else {
      for (int64_t r = 0; r < w->f->m; r++) {
        v += (double)row_address(w, r)[i] * (double)row_address(w, r)[j];
      }
      v = v / m + (i == j ? w->f->damping : 0.0);
    }
    w->L[ng_sym_at(w->n, i, j)] = v;
  }
}

/* Fill row i and row n - 1 - i of the triangle. Together they have n + 1 elements, so all tasks take equal time. */
static void fill_rows(void *arg, int32_t i) {
  const block_work *w = arg;
  fill_row(w, i);
  if (w->n - 1 - i != i) fill_row(w, w->n - 1 - i);
}

/* Compute L of the block. Return false if the matrix is not positive definite in double. */
static bool factorise(block_work *w) {
  ng_queue *q = w->f->ctx->queue;
  int info = 0; /* read after the wait below */
  run_tasks(w, w->n * w->n / 2 * (w->dual ? w->B : w->f->m), (w->n + 1) / 2, fill_rows);
  ng_linalg(q)->factor(q, w->n, w->L, NG_F64, &info);
  ng_queue_wait(q);
  if (ng_read_info(q, &info) != 0) return false;
  for (int64_t i = 0; i < w->n; i++) {
    const double d = w->L[ng_sym_at(w->n, i, i)];
    if (!(d > 0.0) || !(d - d == 0.0)) return false;
  }
  return true;
}

/* ---- F^-1 x ----------------------------------------------------------------------------------*/

static void multiply_rows_by_x(void *arg, int32_t r) {
  const block_work *w = arg;
  w->z[r] = dot_product(row_address(w, r), w->x, true, w->B);
}

/* For the coordinates of panel i: out = (x - G' z) / lambda. */
static void subtract_products(void *arg, int32_t i) {
  const block_work *w = arg;
  const int64_t from = (int64_t)i * PANEL, n = ng_min64(PANEL, w->B - from);
  double sum[PANEL] = {0.0};
  for (int64_t r = 0; r < w->f->m; r++) {
    const float *g = row_address(w, r) + from;
    for (int64_t k = 0; k < n; k++) {
      sum[k] += (double)g[k] * w->z[r];
    }
  }
  for (int64_t k = 0; k < n; k++) {
    w->out[from + k] = (w->x[from + k] - sum[k]) / w->f->damping;
  }
}

void ng_fisher_apply(ng_fisher *f, const double *x, double *out) {
  ng_queue *q = f->ctx->queue;
  for (int64_t b = 0; b < f->blocks; b++) {
    block_work w = block_work_of(f, b);
    w.x = x + w.from;
    w.out = out + w.from;
    if (w.dual) {
      run_tasks(&w, w.n * w.B, w.n, multiply_rows_by_x);
    } else {
      memcpy(w.z, w.x, (size_t)w.B * sizeof *w.z);
    }
    ng_linalg(q)->solve_right(q, w.n, w.L, NG_F64, 1, w.z, w.n);
    ng_queue_wait(q);
    if (w.dual) {
      run_tasks(&w, w.n * w.B, (w.B + PANEL - 1) / PANEL, subtract_products);
    } else {
      memcpy(w.out, w.z, (size_t)w.B * sizeof *w.z);
    }
  }
}

/* ---- the diagonal ----------------------------------------------------------------------------*/

/* Y [n, PANEL] <- L^-1 Y; length[k] <- the squared length of column k of the result. */
static void solve_lower_triangle(const block_work *w, double *Y, double length[PANEL]) {
  memset(length, 0, PANEL * sizeof *length);
  for (int64_t i = 0; i < w->n; i++) {
    double *y = Y + i * PANEL;
    for (int64_t j = 0; j < i; j++) {
      const double by = w->L[ng_sym_at(w->n, i, j)], *before = Y + j * PANEL;
      for (int k = 0; k < PANEL; k++) {
        y[k] -= by * before[k];
      }
    }
    const double pivot = 1.0 / w->L[ng_sym_at(w->n, i, i)];
    for (int k = 0; k < PANEL; k++) {
      y[k] *= pivot;
      length[k] += y[k] * y[k];
    }
  }
}

/* Compute the diagonal of F^-1 for coordinates [from, from + n) of the block. If m < B, rounding errors may dominate 1 -
 * |L^-1 G e_i|^2. So the result is at least the lower bound 1 / F_ii <= [F^-1]_ii, F_ii = lambda + |G e_i|^2 / m. */
static void compute_diagonal_panel(const block_work *w, int64_t from, int64_t n, double *Y,
                                   double *out) {
  double length[PANEL], least[PANEL] = {0.0};
  memset(Y, 0, (size_t)(w->n * PANEL) * sizeof *Y);
  for (int64_t r = 0; r < w->f->m && w->dual; r++) {
    for (int64_t k = 0; k < n; k++) {
      const double g = (double)row_address(w, r)[from + k];
      Y[r * PANEL + k] = g;
      least[k] += g * g;
    }
  }
  for (int64_t k = 0; k < n && !w->dual; k++) {
    Y[(from + k) * PANEL + k] = 1.0;
  }
  solve_lower_triangle(w, Y, length);
  const double lambda = w->f->damping;
  for (int64_t k = 0; k < n; k++) {
    const double left = (1.0 - length[k]) / lambda,
                 bound = 1.0 / (lambda + least[k] / (double)w->f->m);
    out[w->from + from + k] = !w->dual ? length[k] : left > bound ? left : bound;
  }
}

typedef struct diagonal {
  ng_fisher *f;
  double *out;
} diagonal;

static void compute_diagonal_panels(void *arg, int32_t thread) {
  const diagonal *a = arg;
  ng_fisher *f = a->f;
  double *Y = f->room + (int64_t)thread * f->most * PANEL;
  for (int64_t b = 0, at = 0; b < f->blocks; b++) {
    const block_work w = block_work_of(f, b);
    for (int64_t from = 0; from < w.B; from += PANEL, at++) {
      if (at % f->threads == thread)
        compute_diagonal_panel(&w, from, ng_min64(PANEL, w.B - from), Y, a->out);
    }
  }
}

void ng_fisher_inverse_diagonal(ng_fisher *f, double *out) {
  diagonal a = {f, out};
  ng_queue_run(f->ctx->queue, f->threads, compute_diagonal_panels, &a);
}

/* ---- create, destroy -------------------------------------------------------------------------*/

ng_context *ng_fisher_context(const ng_fisher *f) { return f->ctx; }
int64_t ng_fisher_size(const ng_fisher *f) { return f->d; }

void ng_fisher_free(ng_fisher *f) { ng_free(f->ctx, f, f->bytes); }

/* One allocation contains the object, `factor`, `room`, `end` and `at`. */
ng_status ng_fisher_make(ng_context *ctx, const ng_strided *rows, double damping,
                         const int64_t *end, int64_t blocks, ng_fisher **out) {
  const int64_t m = rows->shape[0], d = rows->shape[1], threads = ctx->queue->threads;
  int64_t most = 0, factors = 0;
  for (int64_t b = 0, from = 0, to; b < blocks; b++, from = to) {
    to = end == NULL ? d : end[b];
    most = ng_max64(most, ng_min64(m, to - from));
    factors = ng_plus(factors, ng_sym_count(ng_min64(m, to - from)));
  }
  if (!ng_blas_accepts_order(most)) {
    return ng_fail(ctx, NG_ERR_ABSENT, "ng_fisher_create: a block of order %lld is too large",
                   (long long)most);
  }
  const int64_t room = ng_times(threads * PANEL + 1, most), numbers = ng_plus(factors, room);
  const size_t bytes = sizeof(ng_fisher) +
                       (size_t)ng_times(ng_plus(numbers, 2 * blocks + 1), (int64_t)sizeof(double));
  ng_fisher *f = ng_alloc(ctx, bytes);
  if (f == NULL) {
    return ng_fail(ctx, NG_ERR_NOMEM, "ng_fisher_create: no memory for factors (%zu bytes)", bytes);
  }
  double *factor = (double *)(void *)(f + 1);
  int64_t *lists = (int64_t *)(void *)(factor + numbers);
  *f = (ng_fisher){.ctx = ctx,
                   .g = rows->data,
                   .m = m,
                   .d = d,
                   .ld = rows->stride[0],
                   .blocks = blocks,
                   .most = most,
                   .damping = damping,
                   .end = lists,
                   .at = lists + blocks,
                   .factor = factor,
                   .room = factor + factors,
                   .threads = (int32_t)threads,
                   .bytes = bytes};
  f->at[0] = 0;
  for (int64_t b = 0; b < blocks; b++) {
    f->end[b] = end == NULL ? d : end[b];
    block_work w = block_work_of(f, b);
    f->at[b + 1] = f->at[b] + ng_sym_count(w.n);
    if (factorise(&w)) continue;
    ng_fisher_free(f);
    return ng_fail(ctx, NG_ERR_ARG,
                   "ng_fisher_create: damping %g is too small for these gradients: block %lld is "
                   "singular in double",
                   damping, (long long)b);
  }
  *out = f;
  return NG_OK;
}
