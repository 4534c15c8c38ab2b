/* window_lowrank.c: the store of low-rank rows.  A gradient g [r, c] plus its error feedback e is stored as P Q' of
 * rank at most window_rank (EFCP's low-rank M-FAC, arXiv 2306.06098), from one power iteration of PowerSGD (Vogels et
 * al. 2019, arXiv 1905.13727) that starts with the last Q:
 *
 *     a = e + g;  P <- orthonormal columns of a Q;  Q <- a' P;  row <- P Q';  e <- a - row
 *
 * Biases and tensors are stored whole.  Gram-Schmidt orthonormalises P in double, column by column: p / (|p| + 1e-8) as
 * published.  If a column p is only the rounding error of earlier columns, or their 1e-8, p becomes 0; the published
 * code scales p to length 1.  The first Q is random, then one iteration with a = weights, if bound at ng_ready.
 *
 * e and the last Q are stored as two f32 each (48 bits), and P of a step is in double: f32 rounding errors would grow
 * over many power iterations and by 1 / lambda.  Rows are f32, so row + e = a up to the rounding of P and Q.
  P and Q are
 * stored column after column. */
#include "family/window.h"

#include <float.h>
#include <math.h>

typedef struct lowrank {
  int64_t floats;          /* floats of a row on this rank */
  int64_t all, *cut;       /* floats of a row on all ranks; [ranks + 1] the slices of ranks */
  ng_factors *factors;     /* [segments] in flat order */
  float *rows;             /* [places, floats] */
  float *rest, *next_rest; /* [floats] low part of Q of the newest row; of the row at head */
  float *error, *next;     /* [d] e before and after this step */
  float *error_rest, *next_error_rest; /* [d] low parts of error and next */
  double *work;                        /* [floats] P and Q of this step */
} lowrank;

/* An array of 48-bit numbers x_i + rest_i, two f32 each. */
typedef struct pair {
  float *x, *rest;
} pair;

static inline void split(double y, float *x, float *rest) {
  *x = (float)y;
  *rest = (float)(y - (double)*x);
}

static inline float *factors_at(const lowrank *s, int64_t place, const ng_factors *v) {
  return s->rows + place * s->floats + v->at;
}

/* ---- geometry --------------------------------------------------------------------------------*/

static int64_t rank_of(const ng_block *b, int32_t k) {
  const ng_slot *slot = b->segment[k].slot;
  const int64_t r = slot->rows, c = slot->cols;
  return r > 1 ? ng_min64(b->base.window_rank, ng_min64(r, c)) : 0;
}

static int64_t floats_of(const ng_block *b, int32_t k) {
  const ng_slot *slot = b->segment[k].slot;
  const int64_t rank = rank_of(b, k);
  return rank > 0 ? rank * (slot->rows + slot->cols) : slot->rows * slot->cols;
}

/* Set the shapes of this rank's parameters and the slices of all ranks.  No parameter is divided between ranks. */
static ng_status create_factors(ng_block *b) {
  ng_window *w = ng_window_of(b);
  lowrank *s = w->state = ng_object(b->p, sizeof *s);
  if (s != NULL) s->factors = ng_object(b->p, (size_t)w->segments * sizeof *s->factors);
  if (s != NULL) s->cut = ng_object(b->p, (size_t)(b->ctx->ranks + 1) * sizeof *s->cut);
  if (s == NULL || s->factors == NULL || s->cut == NULL) {
    return NG_ERR_NOMEM;
  }
  for (int32_t i = 0; i < w->segments; i++) {
    const int32_t k = w->segment_order[i];
    const ng_slot *slot = b->segment[k].slot;
    s->all += floats_of(b, k);
    for (int32_t r = 0; r <= b->ctx->ranks && w->sliced; r++) {
      if (w->view[k].at_all < w->cut[r]) s->cut[r] = s->all;
    }
    if (w->view[k].n == 0) continue;
    s->factors[i] = (ng_factors){slot->rows, slot->cols, rank_of(b, k), s->floats};
    s->floats += floats_of(b, k);
  }
  w->units = w->segments;
  return NG_OK;
}

static ng_status plan(ng_block *b, ng_plan *plan) {
  ng_window *w = ng_window_of(b);
  const ng_status st = w->state == NULL ? create_factors(b) : NG_OK;
  if (st != NG_OK) return st;
  lowrank *s = w->state;
  const int64_t each = (int64_t)sizeof(float), vector = ng_times(ng_max64(1, w->d), each);
  const int64_t row = ng_max64(1, s->floats);
  s->rows = ng_plan_take(plan, NG_USE_FACTORS, ng_times(ng_times(w->places, row), each));
  s->error = ng_plan_take(plan, NG_USE_FACTORS, vector);
  s->error_rest = ng_plan_take(plan, NG_USE_FACTORS, vector);
  s->next = ng_plan_take(plan, NG_USE_SUMS, vector);
  s->next_error_rest = ng_plan_take(plan, NG_USE_SUMS, vector);
  s->rest = ng_plan_take(plan, NG_USE_FACTORS, ng_times(row, each));
  s->next_rest = ng_plan_take(plan, NG_USE_SUMS, ng_times(row, each));
  s->work = ng_plan_take(plan, NG_USE_SUMS, ng_times(row, (int64_t)sizeof *s->work));
  return NG_OK;
}

/* ---- one step of power iteration -------------------------------------------------------------*/

static double dot(const double *x, const double *y, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; i++) {
    sum += x[i] * y[i];
  }
  return sum;
}

/* Orthonormalise the columns of P, which are stored as rows of [rank, rows], in order; dependent columns become 0. */
static void orthonormal(const ng_factors *v, double *P) {
  const int64_t n = v->rows;
  for (int64_t a = 0; a < v->rank; a++) {
    double *p = P + a * n;
    double lost = 1e-10 * sqrt(dot(p, p, n));
    for (int64_t c = 0; c < a; c++) {
      const double along = dot(p, P + c * n, n);
      lost += 2.0 * fabs(along) * (1.0 - dot(P + c * n, P + c * n, n));
      for (int64_t i = 0; i < n; i++) {
        p[i] -= along * P[c * n + i];
      }
    }
    const double left = sqrt(dot(p, p, n));
    const double by = left > lost ? 1.0 / (left + 1e-8) : 0.0;
    for (int64_t i = 0; i < n; i++) {
      p[i] *= by;
    }
  }
}

static double dot_pairs(pair x, int64_t at, pair y, int64_t from, int64_t n) {
  return ng_row_dot(x.x + at, y.x + from, n) + ng_row_dot(x.rest + at, y.x + from, n) +
         ng_row_dot(x.x + at, y.rest + from, n);
}

/* to <- column a of Q, corrected for the rounding of P to f32: with R the rounded P and E = R - P, store
 * Q_a - sum over c of <R_a, E_c> Q_c.  Then R times the stored Q' equals P Q' in the span of R's columns. */
static void round_column(const ng_factors *v, int64_t a, const double *work, pair from, pair to) {
  const int64_t behind = v->rank * v->rows, n = v->cols;
  const double *P = work, *Q = work + behind;
  const float *p = to.x + a * v->rows;
  double acc[NG_WINDOW_LINE];
  /* column a of P is 0: keep the old column of Q, with which the next step starts */
  const bool none = dot(P + a * v->rows, P + a * v->rows, v->rows) == 0.0;
  for (int64_t at = 0, k; at < n; at += k) {
    k = ng_min64(NG_WINDOW_LINE, n - at);
    memcpy(acc, Q + a * n + at, (size_t)k * sizeof *acc);
    for (int64_t c = 0; c < v->rank && !none; c++) {
      double along = 0.0;
      for (int64_t r = 0; r < v->rows; r++) {
        along += (double)p[r] * ((double)to.x[c * v->rows + r] - P[c * v->rows + r]);
      }
      for (int64_t i = 0; i < k; i++) {
        acc[i] -= along * Q[c * n + at + i];
      }
    }
    for (int64_t i = 0; i < k; i++) {
      const int64_t q = behind + a * n + at + i;
      const double before = (double)from.x[q] + (double)from.rest[q];
      to.x[q] = (float)(none ? before : acc[i]);
      to.rest[q] = (float)((none ? before : Q[a * n + at + i]) - (double)to.x[q]);
    }
  }
}

static void advance(const ng_factors *v, pair x, pair from, pair to, double *work) {
  const int64_t behind = v->rank * v->rows;
  double *P = work, *Q = work + behind;
  for (int64_t a = 0; a < v->rank; a++) {
    for (int64_t r = 0; r < v->rows; r++) {
      P[a * v->rows + r] = dot_pairs(x, r * v->cols, from, behind + a * v->cols, v->cols);
    }
  }
  orthonormal(v, P);
  memset(Q, 0, (size_t)(v->rank * v->cols) * sizeof *Q);
  for (int64_t a = 0; a < v->rank; a++) {
    for (int64_t r = 0; r < v->rows; r++) {
      const double p = P[a * v->rows + r];
      to.x[a * v->rows + r] = (float)p;
      ng_row_add(Q + a * v->cols, x.x + r * v->cols, v->cols, p);
      ng_row_add(Q + a * v->cols, x.rest + r * v->cols, v->cols, p);
    }
  }
  for (int64_t a = 0; a < v->rank; a++) {
    round_column(v, a, work, from, to);
  }
}

static void subtract(const ng_factors *v, const double *work, pair x) {
  double acc[NG_WINDOW_LINE];
  for (int64_t r = 0; r < v->rows; r++) {
    for (int64_t c = 0, n; c < v->cols; c += n) {
      float *hi = x.x + r * v->cols + c, *lo = x.rest + r * v->cols + c;
      n = ng_min64(NG_WINDOW_LINE, v->cols - c);
      for (int64_t i = 0; i < n; i++) {
        acc[i] = (double)hi[i] + (double)lo[i];
      }
      for (int64_t a = 0; a < v->rank; a++) {
        const double p = work[a * v->rows + r], *Q = work + v->rank * v->rows + a * v->cols + c;
        for (int64_t i = 0; i < n; i++) {
          acc[i] -= p * Q[i];
        }
      }
      for (int64_t i = 0; i < n; i++) {
        split(acc[i], &hi[i], &lo[i]);
      }
    }
  }
}

/* ---- entering --------------------------------------------------------------------------------*/

static float *input(ng_block *b) { return ((lowrank *)ng_window_of(b)->state)->next; }

static void enter_segment(void *arg, int32_t segment) {
  ng_block *b = arg;
  ng_window *w = ng_window_of(b);
  const lowrank *s = w->state;
  const int32_t k = w->segment_order[segment];
  const ng_factors *v = &s->factors[segment];
  const int64_t head = ng_window_head(w), last = (head + w->places - 1) % w->places;
  const int64_t n = v->rows * v->cols, at = w->flat[segment].at;
  const pair x = {s->next + at, s->next_error_rest + at}, e = {s->error + at, s->error_rest + at};
  const pair from = {factors_at(s, last, v), s->rest + v->at};
  const pair to = {factors_at(s, head, v), s->next_rest + v->at};
  if (v->rank == 0) { /* stored whole: the residual is 0 */
    for (int64_t i = 0; i < n; i++) {
      to.x[i] = (float)w->input_scale * x.x[i];
      x.x[i] = x.rest[i] = 0.0F;
    }
    return;
  }
  if (b->segment[k]
          .slot->is_excluded) { /* excluded: P <- 0; Q and the error stay for the next step */
    const int64_t P = v->rank * v->rows, Q = v->rank * v->cols;
    memset(to.x, 0, (size_t)P * sizeof *to.x);
    memcpy(to.x + P, from.x + P, (size_t)Q * sizeof *to.x);
    memcpy(to.rest, from.rest, (size_t)(P + Q) * sizeof *to.rest);
    memcpy(x.x, e.x, (size_t)n * sizeof *x.x);
    memcpy(x.rest, e.rest, (size_t)n * sizeof *x.rest);
    return;
  }
  for (int64_t i = 0; i < n; i++) {
    split((double)e.x[i] + (double)e.rest[i] + w->input_scale * (double)x.x[i], &x.x[i],
          &x.rest[i]);
  }
  advance(v, x, from, to, s->work + v->at);
  subtract(v, s->work + v->at, x);
}

static void enter(ng_block *b) { ng_parallel(b->ctx, b->segments, enter_segment, b); }

static ng_rows rows(ng_block *b) {
  const ng_window *w = ng_window_of(b);
  const lowrank *s = w->state;
  return (ng_rows){.kind = NG_ROWS_LOW_RANK,
                   .dtype = NG_F32,
                   .range = w->flat,
                   .ranges = w->segments,
                   .value = s->rows,
                   .stride = s->floats,
                   .factors = s->factors};
}

/* ---- life ------------------------------------------------------------------------------------*/

/* Return about an N(0, 1) number: the sum of 12 uniform numbers of SplitMix64 (Steele, Lea & Flood 2014) minus 6. */
static float random_normal(uint64_t *state) {
  double sum = -6.0;
  for (int k = 0; k < 12; k++) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    sum += (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
  }
  return (float)sum;
}

/* Write the first Q to the place before head, where the first step reads the last Q. */
static void begin(ng_block *b) {
  ng_window *w = ng_window_of(b);
  const lowrank *s = w->state;
  for (int32_t at = 0; at < b->segments; at++) {
    const int32_t k = w->segment_order[at];
    const ng_factors *v = &s->factors[at];
    uint64_t state = UINT64_C(14695981039346656037); /* the seed is the FNV-1a hash of the name */
    for (const char *c = b->segment[k].slot->name; *c != 0; c++) {
      state = (state ^ (unsigned char)*c) * UINT64_C(1099511628211);
    }
    const ng_place *from = &b->segment[k].slot->weight;
    float *f = factors_at(s, w->places - 1, v), *x = s->next + w->view[k].at;
    for (int64_t i = v->rank * v->rows; i < v->rank * (v->rows + v->cols); i++) {
      f[i] = random_normal(&state);
    }
    if (v->rank == 0 || from->data == NULL) continue;
    for (int64_t r = 0; r < v->rows; r++) {
      for (int64_t c = 0, n; c < v->cols; c += n) {
        n = ng_min64(NG_LINE, v->cols - c);
        ng_place_read(from, r, c, n, x + r * v->cols + c);
      }
    }
    /* skip weights so large that Q, with |Q| <= |x|, may overflow f32 */
    if (!(sqrt(ng_row_dot(x, x, v->rows * v->cols)) <= (double)FLT_MAX)) continue;
    const pair first = {f, s->rest + v->at};
    advance(v, (pair){x, s->next_error_rest + w->view[k].at}, first, first, s->work + v->at);
    memset(f, 0, (size_t)(v->rank * v->rows) * sizeof *f);
  }
}

static void clear_row(ng_block *b, int64_t place) {
  const lowrank *s = ng_window_of(b)->state;
  memset(s->rows + place * s->floats, 0, (size_t)s->floats * sizeof *s->rows);
}

/* Return the high part of the next error feedback, without its low part next_error_rest. */
static float *residual(ng_block *b) { return ((lowrank *)ng_window_of(b)->state)->next; }

static void swap(float **a, float **b) {
  float *was = *a;
  *a = *b;
  *b = was;
}

static void commit_row(ng_block *b) {
  lowrank *s = ng_window_of(b)->state;
  swap(&s->next, &s->error);
  swap(&s->next_error_rest, &s->error_rest);
  swap(&s->next_rest, &s->rest);
}

static ng_status fields(ng_block *b, ng_field_visit visit, void *arg) {
  const ng_window *w = ng_window_of(b);
  const lowrank *s = w->state;
  ng_field f = ng_field_plain("factors", NG_F32, w->places, s->all, s->rows, b->owner);
  ng_field e = ng_window_field(b, "error", NG_F32, 1, s->error);
  ng_field q = ng_field_plain("factors_rest", NG_F32, 1, s->all, s->rest, b->owner);
  ng_field r = ng_window_field(b, "error_rest", NG_F32, 1, s->error_rest);
  if (w->sliced) f.slice = q.slice = s->cut;
  ng_status st = visit(arg, &f);
  if (st == NG_OK) st = visit(arg, &e);
  if (st == NG_OK) st = visit(arg, &q);
  return st == NG_OK ? visit(arg, &r) : st;
}

const ng_window_store ng_window_lowrank_store = {
    .name = "lowrank",
    .nearest_border = ng_window_nearest_segment,
    .plan = plan,
    .begin = begin,
    .input = input,
    .enter = enter,
    .rows = rows,
    .clear_row = clear_row,
    .residual = residual,
    .commit = commit_row,
    .fields = fields,
};
