/* window_lowrank.c: the store of low-rank rows.  A gradient g [r, c] plus its error feedback e is stored as P Q' of
 * rank at most window_rank (EFCP's low-rank M-FAC, arXiv 2306.06098), from one power iteration of PowerSGD (Vogels et
 * al. 2019, arXiv 1905.13727) that starts with the last Q:
 *
 *     a = e + g;  P <- orthonormal columns of a Q;  Q <- a' P;  row <- P Q';  e <- a - row
 *
 * Biases and tensors are stored whole.  The first Q is random, then one iteration with a = weights, if bound at
 * ng_ready.
 *
 * e and the last Q are stored as two f32 each (48 bits), and P of a step is in double: f32 rounding errors would grow
 * over many power iterations and by 1 / lambda.  Rows are f32, so row + e = a up to the rounding of P and Q.  P and Q
 * are stored column after column. */
#include "family/window.h"

#include <float.h>
#include <math.h>

typedef struct lowrank {
  int64_t floats;             /* floats of a row on this rank */
  int64_t all, *cut;          /* floats of a row on all ranks; [ranks + 1] the slices of ranks */
  ng_low_rank_shape *factors; /* [segments] in flat order */
  ng_low_rank *power;         /* [segments] the power iterations of a step */
  float *rows;                /* [places, floats] */
  float *rest, *next_rest;    /* [floats] low part of Q of the newest row; of the row at head */
  float *error, *next;        /* [d] e before and after this step */
  float *error_rest, *next_error_rest; /* [d] low parts of error and next */
  double *work;                        /* [floats] P and Q of this step */
  int32_t finite; /* read_gradients needs a place for this result; sum_squares tells the same */
} lowrank;

static inline float *factors_address(const lowrank *s, int64_t place, const ng_low_rank_shape *v) {
  return s->rows + place * s->floats + v->at;
}

/* ---- geometry --------------------------------------------------------------------------------*/

static int64_t rank_of_segment(const ng_block *b, int32_t k) {
  const ng_slot *slot = b->segment[k].slot;
  const int64_t r = slot->rows, c = slot->cols;
  return r > 1 ? ng_min64(b->base.window_rank, ng_min64(r, c)) : 0;
}

static int64_t floats_of_segment(const ng_block *b, int32_t k) {
  const ng_slot *slot = b->segment[k].slot;
  const int64_t rank = rank_of_segment(b, k);
  return rank > 0 ? rank * (slot->rows + slot->cols) : slot->rows * slot->cols;
}

/* Set the shapes of this rank's parameters and the slices of all ranks.  No parameter is divided between ranks. */
static ng_status create_factors(ng_block *b) {
  ng_window *w = ng_window_of(b);
  lowrank *s = w->state = ng_object(b->p, sizeof *s);
  if (s == NULL) return NG_ERR_NOMEM;
  s->factors = ng_object(b->p, (size_t)w->segments * sizeof *s->factors);
  s->cut = ng_object(b->p, (size_t)(b->ctx->ranks + 1) * sizeof *s->cut);
  s->power = ng_object(b->p, (size_t)w->segments * sizeof *s->power);
  if (ng_objects_status(b->p) != NG_OK) return NG_ERR_NOMEM;
  for (int32_t i = 0; i < w->segments; i++) {
    const int32_t k = w->segment_order[i];
    const ng_slot *slot = b->segment[k].slot;
    s->all += floats_of_segment(b, k);
    for (int32_t r = 0; r <= b->ctx->ranks && w->is_sliced; r++) {
      if (w->segment[k].global_begin < w->cut[r]) s->cut[r] = s->all;
    }
    if (w->flat[i].n == 0) continue;
    s->factors[i] = (ng_low_rank_shape){slot->rows, slot->cols, rank_of_segment(b, k), s->floats};
    s->floats += floats_of_segment(b, k);
  }
  w->units = w->segments;
  return NG_OK;
}

static ng_status request_memory(ng_block *b, ng_plan *plan) {
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

/* ---- entering --------------------------------------------------------------------------------*/

/* The vector that enters; after `enter_row`, the high part of the next error feedback. */
static float *next_error_feedback(ng_block *b) { return ((lowrank *)ng_window_of(b)->state)->next; }

/* Describe the power iteration of flat segment i, with the last Q at place `last`. */
static ng_low_rank describe_iteration(const ng_block *b, int32_t i, int64_t last) {
  const ng_window *w = ng_window_of(b);
  const lowrank *s = w->state;
  const ng_low_rank_shape *v = &s->factors[i];
  const int64_t at = w->flat[i].at;
  return (ng_low_rank){.shape = *v,
                       .is_excluded = b->segment[w->segment_order[i]].slot->is_excluded,
                       .by = w->input_scale,
                       .a = {s->next + at, s->next_error_rest + at},
                       .e = {s->error + at, s->error_rest + at},
                       .from = {factors_address(s, last, v), s->rest + v->at},
                       .to = {factors_address(s, ng_window_head(w), v), s->next_rest + v->at},
                       .work = s->work + v->at};
}

static void enter_row(ng_block *b) {
  const ng_window *w = ng_window_of(b);
  lowrank *s = w->state;
  for (int32_t i = 0; i < w->segments; i++) {
    s->power[i] = describe_iteration(b, i, (ng_window_head(w) + w->places - 1) % w->places);
  }
  ng_kernels(b->ctx->queue)->iterate_low_rank(b->ctx->queue, s->power, w->segments);
}

static ng_rows describe_rows(ng_block *b) {
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

/* Fill a Q with random numbers; the seed is the FNV-1a hash of the name. */
static void fill_random(const char *name, float *Q, int64_t n) {
  uint64_t state = UINT64_C(14695981039346656037);
  for (const char *c = name; *c != 0; c++) {
    state = (state ^ (unsigned char)*c) * UINT64_C(1099511628211);
  }
  for (int64_t k = 0; k < n; k++) {
    Q[k] = random_normal(&state);
  }
}

/* Write the first Q to the last place, where the first step reads the last Q: random numbers, then one iteration with
 * the weights. */
static void set_initial_values(ng_block *b) {
  const ng_window *w = ng_window_of(b);
  lowrank *s = w->state;
  ng_queue *q = b->ctx->queue;
  int64_t n = 0, some = 0;
  for (int32_t i = 0; i < w->segments; i++) {
    const ng_slot *slot = b->segment[w->segment_order[i]].slot;
    ng_low_rank first = describe_iteration(b, i, w->places - 1);
    const ng_low_rank_shape *v = &first.shape;
    const ng_read weight = {.D = {&slot->weight, 0, v->rows, 0, v->cols},
                            .to = first.a.x,
                            .to_row = v->cols,
                            .to_col = 1,
                            .finite = &s->finite};
    fill_random(slot->name, first.from.x + v->rank * v->rows, v->rank * v->cols);
    if (v->rank == 0 || slot->weight.data == NULL) continue;
    ng_kernels(q)->read_gradients(q, &weight, 1);
    ng_linalg(q)->sum_squares(q, v->rows, v->cols, first.a.x, NG_F32, v->cols, w->sums + n);
    first.to = first.from;
    first.e.x = NULL;
    first.is_excluded = false;
    s->power[n++] = first;
  }
  ng_queue_wait(q);
  for (int64_t i = 0; i < n; i++) {
    /* skip weights so large that Q, with |Q| <= |x|, may overflow f32 */
    if (sqrt(*ng_read_numbers(q, w->sums + i)) <= (double)FLT_MAX) s->power[some++] = s->power[i];
  }
  ng_kernels(q)->iterate_low_rank(q, s->power, some);
  ng_queue_wait(q);
  for (int64_t i = 0; i < some; i++) {
    const ng_low_rank_shape *v = &s->power[i].shape;
    memset(s->power[i].to.x, 0, (size_t)(v->rank * v->rows) * sizeof(float));
  }
}

static void keep_error_feedback(ng_block *b) {
  lowrank *s = ng_window_of(b)->state;
  ng_window_swap_vectors(&s->error, &s->next);
  ng_window_swap_vectors(&s->error_rest, &s->next_error_rest);
  ng_window_swap_vectors(&s->rest, &s->next_rest);
}

static int32_t list_fields(const ng_block *b, ng_field *f) {
  const ng_window *w = ng_window_of(b);
  const lowrank *s = w->state;
  f[0] = ng_field_plain("factors", NG_F32, w->places, s->all, s->rows, b->owner);
  f[1] = ng_window_field(b, "error", NG_F32, 1, s->error);
  f[2] = ng_field_plain("factors_rest", NG_F32, 1, s->all, s->rest, b->owner);
  f[3] = ng_window_field(b, "error_rest", NG_F32, 1, s->error_rest);
  if (w->is_sliced) f[0].slice = f[2].slice = s->cut;
  return 4;
}

const ng_window_store ng_window_lowrank_store = {
    .name = "lowrank",
    .nearest_border = ng_window_nearest_segment,
    .request_memory = request_memory,
    .set_initial_values = set_initial_values,
    .entering_vector = next_error_feedback,
    .enter_row = enter_row,
    .describe_rows = describe_rows,
    .end_step = keep_error_feedback,
    .list_fields = list_fields,
};
