/* kronecker_rows.c: gradient_rows: PD of a linear layer from the rows of its inputs and output gradients.
 *
 * The gradient of a linear layer is D = c g' a, with the inputs a [R, p] (the last column is 1 if there is a bias) and the output
 * gradients g [R, q] of all R rows (samples times positions) of a step. c is 1 unless the caller has scaled the gradient, as a
 * loss scaler or a clip by the norm does. A and G are symmetric, so
 *
 *     PD = G^-1 D A^-1 = c (g G^-1)' (a A^-1)
 *
 * which takes 2 R (p^2 + q^2 + p q) operations instead of 2 p q (p + q): with few rows, a small part.
 *
 * `observe` copies the rows. The caller may have changed the gradient (weight decay, a clip by value), or rows may be missing. So
 * before the rows are used, both formulas are compared for 4 fixed random vectors v: first D v and c g' a v, which also gives c
 * by least squares; then G^-1 D A^-1 v and c G^-1 g' a A^-1 v, because the inverses may amplify a small change of D. For random
 * v the mean of |E v|^2 is in proportion to |E|^2, E: the difference of two matrices. If a comparison fails, PD is computed from D.
 *
 * The host decides, so a backend with a device does not use the rows. On several ranks D is a mean over ranks. */
#include "family/kronecker.h"

enum { VECTORS = 4 };
/* Largest relative differences of D v and of PD v. The rounding errors of D are below 1e-6; the inverses amplify them. */
static const double MOST_OF_D = 1e-5, MOST_OF_PD = 1e-3;

struct ng_kron_rows {
  int64_t capacity; /* rows for which memory is planned; 0 on several ranks */
  /* of inputs and of output gradients: number of rows, or more than `capacity`: too many; number of counted steps at that time */
  int64_t count[2], step[2];
  bool failed;                  /* PD was last computed from D although rows were stored */
  float *a, *g;                 /* [capacity, p], [capacity, q] */
  ng_place place;               /* of the last observed array; queued work may read it */
  float *v;                     /* [VECTORS, p] random numbers in [-1, 1) */
  double *sums;                 /* [2, 3] the inner product and the squared norms of two vectors */
  ng_matrix G, identity;        /* G: the matrix of side G, which here multiplies columns */
  ng_twosided times_A, times_G; /* x A^-1 and x G^-1 */
};

/* Return for how many rows PD takes at most 0.6 of the operations of G^-1 D A^-1. */
static int64_t most_rows(const ng_kron *k) {
  const double p = (double)k->p, q = (double)k->q;
  return (int64_t)(0.6 * p * q * (p + q) / (p * p + q * q + p * q));
}

ng_status ng_kron_rows_create(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  const ng_entry *e = b->entry;
  const int64_t capacity = ng_min64(b->base.gradient_rows, most_rows(k));
  if (e->d.kind != NG_LINEAR || e->registered != NULL || b->base.solver != NG_SOLVER_CHOLESKY ||
      k->is_double || capacity == 0 || k->left->parts > 1 || k->right->parts > 1 ||
      b->ctx->queue->backend->under != NULL) {
    return NG_OK;
  }
  struct ng_kron_rows *r = k->rows = ng_object(b->p, sizeof *r);
  if (r == NULL) return NG_ERR_NOMEM;
  r->capacity = capacity;
  r->sums = ng_object(b->p, 6 * sizeof *r->sums);
  return ng_objects_status(b->p);
}

/* Called after the memory of the results is known. */
void ng_kron_rows_request(ng_block *b, ng_plan *plan) {
  ng_kron *k = ng_kron_of(b);
  struct ng_kron_rows *r = k->rows;
  const int64_t row = (int64_t)sizeof(float) * (b->ctx->ranks == 1 ? r->capacity : 0);
  r->a = ng_plan_take(plan, NG_USE_MOMENTS, ng_times(row, k->p));
  r->g = ng_plan_take(plan, NG_USE_MOMENTS, ng_times(row, k->q));
  r->v = ng_plan_take(plan, NG_USE_MOMENTS,
                      ng_times(row == 0 ? 0 : VECTORS * (int64_t)sizeof(float), k->p));
  r->identity = (ng_matrix){.form = NG_FORM_ABSENT, .result = k->right->matrix->result};
  r->G = *k->left->matrix;
  r->times_A = (ng_twosided){.groups = 1,
                             .rows = r->capacity,
                             .cols = k->p,
                             .left = &r->identity,
                             .right = k->right->matrix,
                             .left_count = 1,
                             .right_count = 1,
                             .is_good = true};
  r->times_G = r->times_A;
  r->times_G.cols = k->q;
  r->times_G.right = &r->G;
}

/* Set the column of the bias, and v. */
void ng_kron_rows_set_initial(const ng_block *b) {
  const ng_kron *k = ng_kron_of(b);
  const struct ng_kron_rows *r = k->rows;
  if (r->a == NULL) return;
  for (int64_t i = 0; i < r->capacity && k->p > b->entry->d.in; i++) {
    r->a[i * k->p + k->p - 1] = 1.0f;
  }
  uint64_t random = 1;
  for (int64_t i = 0; i < k->p * VECTORS; i++) {
    random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407); /* Knuth */
    r->v[i] = (float)((double)(random >> 32) * 0x1p-31 - 1.0);
  }
}

/* ---- observe ---------------------------------------------------------------------------------*/

/* Return whether the block stores rows in a step in which no statistic is due. If PD was last computed from D, the block stores
 * rows again in the next step with due statistics. */
bool ng_kron_rows_wanted(const ng_block *b) {
  const struct ng_kron_rows *r = ng_kron_of(b)->rows;
  return r != NULL && r->a != NULL && !r->failed;
}

/* Set the distance between rows, if all rows of the view have one distance, and return true. */
static bool find_row_stride(const ng_view *v, int64_t *stride) {
  const bool samples_first = v->sample_stride == v->positions * v->position_stride;
  *stride = v->positions == 1 || !samples_first ? v->sample_stride : v->position_stride;
  return v->positions == 1 ||
         (v->axes == 0 && (samples_first || v->position_stride == v->samples * v->sample_stride));
}

/* Copy the rows of an observation behind the rows that this step has so far. */
void ng_kron_rows_store(ng_block *b, const ng_obs *o, const ng_stat *s) {
  const ng_kron *k = ng_kron_of(b);
  struct ng_kron_rows *r = k->rows;
  const ng_view *v = &o->view;
  const bool is_input = o->kind == NG_OBSERVED_INPUT;
  int64_t *count = &r->count[!is_input], *step = &r->step[!is_input];
  const bool is_first = *step != b->p->steps || (s->is_due && s->w == 0.0);
  const int64_t width = is_input ? k->p : k->q, from = is_first ? 0 : *count;
  const int64_t rows = v->samples * v->positions;
  r->place = (ng_place){.data = (void *)(uintptr_t)v->data,
                        .dtype = v->dtype,
                        .has_dense_rows = v->column_stride == 1,
                        .axes = 1,
                        .extent = {v->columns},
                        .stride = {v->column_stride}};
  *step = b->p->steps;
  *count = r->capacity + 1;
  if (r->a == NULL || rows > r->capacity - from || !find_row_stride(v, &r->place.row_stride))
    return;
  *count = from + rows;
  const ng_read read = {.D = {&r->place, 0, rows, 0, v->columns},
                        .to = (is_input ? r->a : r->g) + from * width,
                        .to_row = width,
                        .to_col = 1,
                        .finite = &k->sums->finite}; /* not read */
  ng_kernels(b->ctx->queue)->read_gradients(b->ctx->queue, &read, 1);
}

/* ---- apply -----------------------------------------------------------------------------------*/

/* Offsets of the scratch of ng_kron_rows_apply, in floats. The first VECTORS rows of x are v, the others v A^-1. */
typedef struct rows_scratch {
  int64_t x, u, w, xa, Gu, Gw, aA, gG, apply, end;
} rows_scratch;

static rows_scratch lay_out_scratch(const ng_kron *k) {
  const struct ng_kron_rows *r = k->rows;
  const int64_t R = r->capacity, n = VECTORS, q = ng_round16(ng_times(2 * n, k->q));
  rows_scratch s = {.x = 0};
  s.u = s.x + ng_round16(ng_times(2 * n, k->p));
  s.w = s.u + q;
  s.xa = s.w + q;
  s.Gu = s.xa + ng_round16(ng_times(2 * n, R));
  s.Gw = s.Gu + q;
  s.aA = s.Gw + q;
  s.gG = s.aA + ng_round16(ng_times(R, k->p));
  s.apply = s.gG + ng_round16(ng_times(R, k->q));
  const int64_t rows = ng_max64(R, n);
  s.end = s.apply +
          ng_max64(ng_twosided_scratch(&r->times_A, rows), ng_twosided_scratch(&r->times_G, rows));
  return s;
}

int64_t ng_kron_rows_scratch(const ng_block *b) {
  const ng_kron *k = ng_kron_of(b);
  return k->rows == NULL || b->ctx->ranks > 1 ? 0 : lay_out_scratch(k).end;
}

/* Return whether |u - c w| <= most |u|, from <w, u>, |u|^2 and |w|^2. A NaN is not equal. */
static bool are_equal(const double *sums, double c, double most) {
  return sums[1] - 2.0 * c * sums[0] + c * c * sums[2] <= most * most * sums[1];
}

/* Return c of D = c g' a; 0: D differs from every c g' a, or is 0. */
static double find_factor(const ng_block *b, const float *D, const rows_scratch *s,
                          float *scratch) {
  const ng_kron *k = ng_kron_of(b);
  const struct ng_kron_rows *r = k->rows;
  ng_queue *q = b->ctx->queue;
  float *x = scratch + s->x, *u = scratch + s->u, *w = scratch + s->w, *xa = scratch + s->xa;
  float *Gu = scratch + s->Gu, *Gw = scratch + s->Gw, *apply = scratch + s->apply;
  const int64_t R = r->count[0], n = VECTORS, Q = n * k->q;
  ng_linalg(q)->copy_rows(q, n, k->p, r->v, k->p, x, k->p);
  ng_twosided_apply(q, &r->times_A, 0, n, r->v, x + n * k->p, apply);
  ng_linalg(q)->gemm(q, NG_F32, false, true, 2 * n, k->q, k->p, 1.0, x, k->p, D, k->p, 0.0, u,
                     k->q);
  ng_linalg(q)->gemm(q, NG_F32, false, true, 2 * n, R, k->p, 1.0, x, k->p, r->a, k->p, 0.0, xa, R);
  ng_linalg(q)->gemm(q, NG_F32, false, false, 2 * n, k->q, R, 1.0, xa, R, r->g, k->q, 0.0, w, k->q);
  ng_twosided_apply(q, &r->times_G, 0, n, u + Q, Gu, apply);
  ng_twosided_apply(q, &r->times_G, 0, n, w + Q, Gw, apply);
  ng_linalg(q)->sum_row_products(q, 1, Q, w, Q, u, Q, r->sums);
  ng_linalg(q)->sum_row_products(q, 1, Q, Gw, Q, Gu, Q, r->sums + 3);
  ng_queue_wait(q);
  const double *sums = ng_read_numbers(q, r->sums), c = sums[2] > 0.0 ? sums[0] / sums[2] : 0.0;
  return are_equal(sums, c, MOST_OF_D) && are_equal(sums + 3, c, MOST_OF_PD) ? c : 0.0;
}

bool ng_kron_rows_apply(const ng_block *b, const float *D, float *out, float *scratch) {
  const ng_kron *k = ng_kron_of(b);
  struct ng_kron_rows *r = k->rows;
  ng_queue *q = b->ctx->queue;
  const int64_t R = r->count[0], steps = b->p->steps;
  if (r->step[0] != steps || r->step[1] != steps || !k->both.is_good) return false;
  const rows_scratch s = lay_out_scratch(k);
  const bool fits = R == r->count[1] && R > 0 && R <= r->capacity;
  const double c = fits ? find_factor(b, D, &s, scratch) : 0.0;
  r->failed = c == 0.0;
  if (r->failed) return false;
  float *aA = scratch + s.aA, *gG = scratch + s.gG;
  ng_twosided_apply(q, &r->times_A, 0, R, r->a, aA, scratch + s.apply);
  ng_twosided_apply(q, &r->times_G, 0, R, r->g, gG, scratch + s.apply);
  ng_linalg(q)->gemm(q, NG_F32, true, false, k->q, k->p, R, c, gG, k->q, aA, k->p, 0.0, out, k->p);
  return true;
}
