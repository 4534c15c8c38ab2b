/* kronecker_embedding.c: an embedding, W [tokens, features]: A is exact and diagonal, G as of a linear layer.
 *
 * In: token numbers and output gradients.  Out: PD = (A + d_A)^-1 D (G + d_G)^-1, a row a token.
 *
 * An embedding is a linear layer whose inputs are unit vectors, so A = E[a a'] is diagonal: how often each
 * token is shown, on the scale that A has in the options.  It is kept as a vector; solving it is a division.
 * What is a row of a linear layer's gradient is a column here, as torch.nn.Embedding has its weight.
 *
 *     cholesky   rows of D (G + d_G I)^-1, times t_v = 1 / (A_v + d_A) of solve time
 *     eigen      U = D Q; U_vj / ((A_v + on_A) (e_j + on_G) + on_both); times Q'
 */
#include "family/kronecker.h"

#include <math.h>

/* ---- geometry, memory ------------------------------------------------------------------------*/

static bool fits(const ng_settings *o, const ng_entry *e) {
  return !e->tensor && e->d.kind == NG_EMBEDDING && ng_is(o->family, "kronecker");
}

static ng_status check(const ng_options *o, const ng_settings *s, char *message, size_t size) {
  if (s->solver == NG_SOLVER_PRODUCT || s->positions == NG_POSITIONS_REDUCE) {
    const bool product = s->solver == NG_SOLVER_PRODUCT;
    return ng_fail_to(
        message, size, NG_ERR_ARG,
        "%s is not for embeddings; take %s, or register the weight with ng_add_tensor",
        product ? "solver = product" : "positions = reduce",
        product ? "cholesky or eigen" : "expand");
  }
  return ng_family_kronecker.check(o, s, message, size);
}

static ng_status create(ng_block *b) {
  const ng_layer *d = &b->entry->d;
  const ng_status st = ng_kron_create_embedding(b);
  if (st != NG_OK) return st;
  const int at = snprintf(b->entry->why, sizeof b->entry->why, "A diagonal of %lld, G %lldx%lld",
                          (long long)d->in, (long long)d->out, (long long)d->out);
  const int32_t parts = ng_kron_of(b)->side[NG_SIDE_G].parts;
  if (parts > 1) {
    (void)snprintf(b->entry->why + at, sizeof b->entry->why - (size_t)at,
                   ", which is cut into %d diagonal blocks", parts);
  }
  return NG_OK;
}

static ng_status statistics(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  const ng_status st = ng_kron_statistics(b);
  if (st != NG_OK) return st;
  ng_stat *a = k->side[NG_SIDE_A].stat;
  a->symmetric = false;
  a->kept = NG_F32;
  a->part->rows = 1;
  a->part->cols = a->part->diagonal = a->part->channels = k->vocabulary;
  return NG_OK;
}

/* Rows of D that are taken at once. */
enum { ROWS = 256 };

static int64_t widest_result(const ng_kron *k) {
  int64_t most = 0;
  for (int32_t i = 0; i < k->side[NG_SIDE_G].parts && k->inverse_dtype != NG_F32; i++) {
    const int64_t n = k->side[NG_SIDE_G].part[i].n;
    most = ng_max64(most, k->eigen ? n * n : ng_sym_count(n));
  }
  return most;
}

/* Scratch of `measure`: D, T, a result as f32, sums of rows. */
static int64_t apply_scratch(const ng_kron *k) {
  return 2 * ng_round16(ROWS * k->q) + ng_round16(widest_result(k)) + ng_round16(6 * ROWS);
}

static ng_status plan(ng_block *b, ng_plan *plan) {
  ng_kron *k = ng_kron_of(b);
  ng_side *a = &k->side[NG_SIDE_A], *g = &k->side[NG_SIDE_G];
  const int64_t size = ng_dtype_size(k->inverse_dtype), real = (int64_t)sizeof(float);
  if (b->holds) {
    a->says = ng_plan_result(plan, a->stat->owner, ng_kron_says(k, NG_SIDE_A) * real);
    k->token = ng_plan_result(plan, a->stat->owner, k->vocabulary * real);
    g->says = ng_plan_result(plan, g->stat->owner, ng_kron_says(k, NG_SIDE_G) * real);
  }
  for (int32_t i = 0; i < g->parts; i++) {
    ng_part *part = &g->part[i];
    part->is_factor = ng_kron_keeps_factor(b, part->n, k->vocabulary);
    if (!b->holds) continue;
    if (k->eigen) {
      part->V = ng_plan_result(plan, g->stat->owner, part->n * part->n * size);
      part->d = ng_plan_result(plan, g->stat->owner, part->n * real);
    } else {
      part->R = ng_plan_result(plan, g->stat->owner, ng_sym_count(part->n) * size);
    }
  }
  if (b->holds && k->eigen && b->base.prediv) {
    k->prediv = ng_plan_result(plan, g->stat->owner, k->vocabulary * k->q * size);
  }
  ng_plan_direction(plan, b, k->vocabulary * k->q);
  const int64_t shown = ng_max64(k->vocabulary, ng_rows_scratch(g->part[0].n + 1));
  const int64_t floats = ng_max64(ng_max64(shown, ng_kron_solve_scratch(b)), apply_scratch(k));
  ng_plan_scratch(plan, ng_times(floats, real));
  return NG_OK;
}

/* ---- the statistic ---------------------------------------------------------------------------*/

/* How often each token is shown in the first `take` samples; -1, or the place of one that is wrong. */
static int64_t count_tokens(const ng_view *v, int64_t take, int64_t vocabulary, int32_t *count) {
  memset(count, 0, (size_t)vocabulary * sizeof *count);
  for (int64_t n = 0; n < v->samples; n++) {
    for (int64_t s = 0; s < v->positions; s++) {
      const void *at = ng_view_at(v, n, s, 0);
      const int64_t t = v->dtype == NG_I32 ? *(const int32_t *)at : *(const int64_t *)at;
      if (t == NG_NO_TOKEN) continue;
      if (t < 0 || t >= vocabulary) return n * v->positions + s;
      if (n < take) count[t]++;
    }
  }
  return -1;
}

/* Whole numbers first, so that no count is lost beside a large sum. */
ng_status ng_kron_observe_tokens(ng_block *b, const ng_obs *o, double alpha) {
  const ng_kron *k = ng_kron_of(b);
  const ng_stat *s = k->side[NG_SIDE_A].stat;
  int32_t *count = ng_scratch(b);
  const int64_t at = count_tokens(&o->v, s->take, k->vocabulary, count);
  if (at >= 0) {
    const void *x = ng_view_at(&o->v, at / o->positions, at % o->positions, 0);
    return ng_fail(b->ctx, NG_ERR_ARG,
                   "layer '%s': token %lld of sample %lld is %lld, expected 0 to %lld", b->name,
                   (long long)(at % o->positions), (long long)(at / o->positions),
                   (long long)(o->v.dtype == NG_I32 ? *(const int32_t *)x : *(const int64_t *)x),
                   (long long)k->vocabulary - 1);
  }
  ng_stat_retain(b->ctx->queue, s);
  ng_queue_wait(b->ctx->queue);
  float *sum = s->part->sum;
  for (int64_t v = 0; v < k->vocabulary; v++) {
    if (count[v] != 0) sum[v] = (float)((double)sum[v] + alpha * s->mix.fresh * (double)count[v]);
  }
  return NG_OK;
}

/* ---- solve -----------------------------------------------------------------------------------*/

/* The mean of A, its shift included; false: it is not finite. */
bool ng_kron_token_mean(const ng_block *b, double *mean) {
  const ng_kron *k = ng_kron_of(b);
  const ng_side *s = &k->side[NG_SIDE_A];
  const float *A = s->stat->part->average;
  double sum = 0.0;
  for (int64_t v = 0; v < k->vocabulary; v++) {
    sum += (double)A[v];
  }
  *mean = sum / (double)k->vocabulary + s->shift[0];
  return sum - sum == 0.0;
}

/* 1 / (A_v + d) of every token; false: one of them is no positive f32. */
static bool divide_tokens(const ng_kron *k, const float *A, double d, float *out) {
  for (int64_t v = 0; v < k->vocabulary; v++) {
    out[v] = (float)(1.0 / ((double)A[v] + d));
    if (!(out[v] > 0.0f) || !(out[v] - out[v] == 0.0f)) return false;
  }
  return true;
}

/* The results of A, on its owner; returns the rung.  Damping x 10, at most 3 times, then the last result. */
int32_t ng_kron_solve_tokens(const ng_block *b, double shift, double on, bool finite) {
  ng_kron *k = ng_kron_of(b);
  const float *A = k->side[NG_SIDE_A].stat->part->average;
  float *room = ng_scratch(b);
  int32_t rung = finite ? 0 : NG_RUNG_DOUBLE;
  if (k->eigen && finite) {
    for (int64_t v = 0; v < k->vocabulary; v++) {
      const double x = (double)A[v] + shift;
      k->token[v] = x <= b->opt.eigen_floor || x < 0.0 ? 0.0f : (float)x;
    }
    return 0;
  }
  for (; rung < NG_RUNG_DOUBLE; rung++, on *= 10.0) {
    if (divide_tokens(k, A, shift + on, room)) break;
  }
  if (rung == NG_RUNG_DOUBLE) return k->token_good ? NG_RUNG_LAST : NG_RUNG_PLAIN;
  memcpy(k->token, room, (size_t)k->vocabulary * sizeof *room);
  return rung;
}

/* The roles of rows and columns are exchanged: rows are tokens. */
static ng_spectrum spectrum(const ng_block *b, const ng_part *g, int64_t row, double lambda) {
  const ng_kron *k = ng_kron_of(b);
  const ng_part a = {.d = k->token + row};
  const ng_spectrum s = ng_kron_spectrum(b, g, &a, lambda);
  return (ng_spectrum){.g = s.a, .a = s.g, .on_g = s.on_a, .on_a = s.on_g, .on_both = s.on_both};
}

void ng_kron_predivide_tokens(ng_block *b, double lambda) {
  const ng_kron *k = ng_kron_of(b);
  const ng_side *g = &k->side[NG_SIDE_G];
  ng_queue *q = b->ctx->queue;
  for (int32_t i = 0; i < g->parts; i++) {
    char *to = (char *)k->prediv + g->part[i].at * ng_dtype_size(k->inverse_dtype);
    ng_on(q)->invert_spectrum(q, k->vocabulary, g->part[i].n, spectrum(b, &g->part[i], 0, lambda),
                              to, k->inverse_dtype, k->q);
  }
}

/* ---- PD --------------------------------------------------------------------------------------*/

static const float *as_f32(const ng_block *b, const void *stored, int64_t n, float *room) {
  const ng_kron *k = ng_kron_of(b);
  ng_queue *q = b->ctx->queue;
  if (k->inverse_dtype == NG_F32) return stored;
  ng_on(q)->widen(q, n, stored, k->inverse_dtype, room);
  return room;
}

/* T = D (G + d)^-1, then each row times its t. */
static void apply_cholesky(const ng_block *b, int64_t row, int64_t rows, const float *D, float *to,
                           float *room) {
  const ng_kron *k = ng_kron_of(b);
  const ng_side *g = &k->side[NG_SIDE_G];
  ng_queue *q = b->ctx->queue;
  for (int32_t i = 0; i < g->parts; i++) {
    const ng_part *p = &g->part[i];
    const ng_sym S = {(float *)(uintptr_t)as_f32(b, p->R, ng_sym_count(p->n), room), p->n};
    if (p->is_factor) {
      ng_on(q)->copy(q, rows, p->n, D + p->at, k->q, to + p->at, k->q);
      ng_on(q)->solve_right(q, S, rows, to + p->at, k->q);
    } else {
      ng_on(q)->mul_right(q, S, rows, D + p->at, k->q, to + p->at, k->q);
    }
  }
  ng_queue_wait(q);
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t c = 0; c < k->q; c++) {
      to[r * k->q + c] *= k->token[row + r];
    }
  }
}

/* `from` times Q, or its transpose, of each part. */
static void turn(const ng_block *b, int64_t rows, const float *from, float *to, bool back,
                 float *room) {
  const ng_kron *k = ng_kron_of(b);
  const ng_side *g = &k->side[NG_SIDE_G];
  ng_queue *q = b->ctx->queue;
  for (int32_t i = 0; i < g->parts; i++) {
    const ng_part *p = &g->part[i];
    const float *V = as_f32(b, p->V, p->n * p->n, room); /* row j is eigenvector j */
    ng_on(q)->gemm(q, false, !back, rows, p->n, p->n, 1.0f, from + p->at, k->q, V, p->n, 0.0f,
                   to + p->at, k->q);
  }
}

static void apply_eigen(const ng_block *b, int64_t row, int64_t rows, const float *D, float *T,
                        float *to, float *room) {
  const ng_kron *k = ng_kron_of(b);
  const ng_side *g = &k->side[NG_SIDE_G];
  ng_queue *q = b->ctx->queue;
  turn(b, rows, D, T, false, room);
  if (k->prediv != NULL) {
    const char *R = (const char *)k->prediv + row * k->q * ng_dtype_size(k->inverse_dtype);
    ng_on(q)->times(q, rows * k->q, T, R, k->inverse_dtype);
  }
  for (int32_t i = 0; i < g->parts && k->prediv == NULL; i++) {
    const ng_part *p = &g->part[i];
    ng_on(q)->divide(q, rows, p->n, spectrum(b, p, row, b->opt.damping), T + p->at, k->q);
  }
  turn(b, rows, T, to, true, room);
}

/* A gradient that is not finite leaves zeros; without results PD = D. */
static ng_status measure(ng_block *b) {
  const ng_kron *k = ng_kron_of(b);
  ng_queue *q = b->ctx->queue;
  float *D = ng_scratch(b), *T = D + ng_round16(ROWS * k->q), *room = T + ng_round16(ROWS * k->q);
  double *sums = (double *)(void *)(room + ng_round16(widest_result(k)));
  for (int64_t row = 0; row < k->vocabulary; row += ROWS) {
    const int64_t rows = ng_min64(ROWS, k->vocabulary - row);
    float *to = b->direction + row * k->q;
    for (int64_t r = 0; r < rows; r++) {
      ng_slot_read(b->segment[0].slot, row + r, 0, k->q, D + r * k->q);
    }
    if (!ng_all_finite(D, NG_F32, rows * k->q)) {
      memset(b->direction, 0, (size_t)(k->vocabulary * k->q) * sizeof *b->direction);
      return ng_fail(b->ctx, NG_SKIPPED, "layer '%s': its gradient is not finite", b->name);
    }
    if (!k->good) {
      ng_on(q)->copy(q, rows, k->q, D, k->q, to, k->q);
    } else if (k->eigen) {
      apply_eigen(b, row, rows, D, T, to, room);
    } else {
      apply_cholesky(b, row, rows, D, to, room);
    }
    ng_on(q)->row_sums(q, rows, k->q, to, k->q, D, k->q, sums);
    ng_queue_wait(q);
    const double *sum = ng_numbers_read(q, sums);
    for (int64_t r = 0; r < rows; r++, sum += 3) {
      b->inner += sum[0];
      b->d2 += sum[1];
      b->pd2 += sum[2];
    }
  }
  return NG_OK;
}

static void emit_tile(const ng_block *b, const ng_tile *t, double factor, const ng_sink *sink) {
  const ng_kron *k = ng_kron_of(b);
  for (int64_t r = t->row; r < t->row + t->rows; r++) {
    const ng_pair pair = {.scale = factor, .values = b->direction + r * k->q + t->col};
    ng_put(sink, t->slot, r, t->col, t->cols, &pair);
  }
}

/* ---- state -----------------------------------------------------------------------------------*/

static ng_status fields(ng_block *b, ng_field_visit visit, void *arg) {
  const ng_kron *k = ng_kron_of(b);
  ng_field f = ng_field_plain(k->eigen ? "A_eigenvalues" : "A_inverse", NG_F32, 1, k->vocabulary,
                              k->token, k->side[NG_SIDE_A].stat->owner);
  const ng_status st = visit(arg, &f);
  if (st != NG_OK) return st;
  return ng_kron_fields(b, visit, arg);
}

const ng_family ng_family_embedding = {
    .version = NG_FAMILY_VERSION,
    .name = "embedding",
    .sees = NG_SEES_INPUT | NG_SEES_OUTGRAD,
    .scope = NG_SCOPE_LAYER,
    .fits = fits,
    .check = check,
    .create = create,
    .destroy = ng_kron_destroy,
    .statistics = statistics,
    .plan = plan,
    .observe = ng_kron_observe,
    .measure = measure,
    .emit_tile = emit_tile,
    .fields = fields,
    .numbers = ng_kron_numbers,
    .solve = ng_kron_solve,
    .shared = ng_kron_shared,
    .tell = ng_kron_tell,
    .report = ng_kron_report,
};
