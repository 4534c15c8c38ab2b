/* window_topk.c: the store of the k largest elements of a gradient g plus its error feedback e: EFCP's sparse M-FAC
 * (Modoranu et al. 2023, arXiv 2306.06098), error feedback as in Seide et al. 2014.
 *
 *     a = e + g;  row <- the k largest |a|, rounded to window_dtype;  e <- a - row
 *
 * k is the number of entries per part (topk), per parameter (topk-layer) or per block of 32,768 elements (topk-block).
 * Of equal magnitudes the first are selected.  Masked elements do not count for k; unused entries have the value 0.
 *
 * A row is k values, their 16-bit indices within blocks, ascending, and the position where each block begins. */
#include "family/window_topk.h"

enum { BLOCK = NG_FLAT_BLOCK };

/* ---- geometry --------------------------------------------------------------------------------*/

/* Elements [at, at + n) in the flat order of all ranks; part: index in ng_window.part. */
typedef struct run_of_elements {
  int64_t at, n;
  int32_t part;
} run_of_elements;

/* *run <- the next run of elements of all ranks: a parameter (topk-layer) or a part; false: there was no next run. */
static bool find_next_run(const ng_block *b, int32_t *i, run_of_elements *run) {
  const ng_window *w = ng_window_of(b);
  if (*i == w->segments) return false;
  const ng_window_segment *first = &w->segment[w->segment_order[*i]];
  *run = (run_of_elements){.at = first->global_begin, .part = first->part};
  do {
    run->n += b->segment[w->segment_order[(*i)++]].count;
  } while (b->base.window_store != NG_STORE_TOPK_LAYER && *i < w->segments &&
           w->segment[w->segment_order[*i]].part == run->part);
  return true;
}

static bool selects_jointly(const ng_block *b) {
  return ng_window_of(b)->is_sliced && b->base.window_store == NG_STORE_TOPK &&
         b->base.window_scope == NG_WINDOW_MODEL;
}

/* Return the end of a block or run that is nearest to `at`; if two are equally near, the first. */
static int64_t nearest_border(const ng_block *b, int64_t at) {
  const bool blocks = b->base.window_store == NG_STORE_TOPK_BLOCK || selects_jointly(b);
  int64_t best = 0;
  run_of_elements run;
  for (int32_t i = 0; find_next_run(b, &i, &run);) {
    const int64_t step = blocks ? BLOCK : run.n;
    const int64_t below = ng_max64(0, ng_min64(at - run.at, run.n - 1)) / step * step;
    const int64_t end[] = {run.at + ng_max64(step, below), run.at + below + step};
    for (int k = 0; k < 2; k++) {
      const int64_t x = ng_min64(end[k], run.at + run.n);
      if (at - best > (x > at ? x - at : at - x)) best = x;
    }
  }
  return best;
}

/* Lay out the groups and blocks of this rank, the slices of all ranks.  s->block NULL: only count; else fill lists. */
static void set_layout(ng_block *b) {
  const ng_window *w = ng_window_of(b);
  ng_topk_rows *s = w->state;
  const bool fill = s->block != NULL, by_block = b->base.window_store == NG_STORE_TOPK_BLOCK;
  const int32_t ranks = b->ctx->ranks + 1;
  int32_t owner = 0; /* 1 + the rank in whose slice a block begins */
  run_of_elements run;
  s->is_joint = selects_jointly(b);
  s->k = s->k_all = s->groups = s->blocks = s->all_blocks = s->first_block = 0;
  memset(s->cut, 0, (size_t)(3 * ranks) * sizeof *s->cut);
  for (int32_t i = 0; find_next_run(b, &i, &run);) {
    for (int64_t at = 0; at < run.n; at += BLOCK) {
      const int64_t n = ng_min64(BLOCK, run.n - at), from = run.at + at - w->first_element;
      const bool here = from >= 0 && from < w->d, chosen = by_block || at == 0;
      ng_largest g = {.n = by_block ? n : run.n, .dtype = s->value_dtype};
      g.size = chosen ? ng_window_topk_size(b, g.n) : 0;
      g.blocks = (g.n + BLOCK - 1) / BLOCK;
      if (s->is_joint && here && s->blocks == 0) s->first_block = s->all_blocks;
      if (fill && here && chosen && !s->is_joint) s->group[s->groups] = g;
      if (fill && here) s->block[s->blocks] = (ng_flat_range){.at = from, .n = n, .part = run.part};
      while (w->is_sliced && run.at + at >= w->cut[owner]) {
        owner++;
      }
      s->cut[owner] += w->is_sliced ? g.size : 0;
      s->cut[ranks + owner] += w->is_sliced ? 2 * g.size : 0;
      s->cut[2 * ranks + owner] += w->is_sliced;
      s->groups += here && chosen && !s->is_joint;
      s->blocks += here;
      s->k += here || s->is_joint ? g.size : 0;
      s->k_all += g.size;
      s->all_blocks++;
    }
  }
  for (int32_t i = 1; i < 3 * ranks; i++) {
    if (i % ranks != 0) s->cut[i] += s->cut[i - 1];
  }
  s->k_before = s->is_joint ? 0 : s->cut[b->ctx->rank];
  s->row_blocks = s->is_joint ? s->all_blocks : s->blocks;
}

static ng_status create_rows(ng_block *b) {
  ng_window *w = ng_window_of(b);
  ng_topk_rows *s = w->state = ng_object(b->p, sizeof *s);
  if (s != NULL) s->cut = ng_object(b->p, (size_t)(3 * (b->ctx->ranks + 1)) * sizeof *s->cut);
  if (s == NULL || s->cut == NULL) return NG_ERR_NOMEM;
  s->value_dtype = b->base.window_dtype;
  s->pieces = b->ctx->config.threads;
  set_layout(b);
  s->group = ng_object(b->p, (size_t)(s->groups + 1) * sizeof *s->group);
  s->block = ng_object(b->p, (size_t)(s->blocks + 1) * sizeof *s->block);
  const size_t groups = (size_t)(s->groups + 1);
  s->count_pass = ng_object(b->p, groups * sizeof *s->count_pass);
  s->cut_range = ng_object(b->p, (groups + (size_t)w->segments) * sizeof *s->cut_range);
  s->selectable = ng_object(b->p, 3 * groups * sizeof *s->selectable);
  if (ng_objects_status(b->p) != NG_OK) return NG_ERR_NOMEM;
  set_layout(b);
  w->units = s->blocks;
  b->topk_rounds = s->is_joint ? NG_WINDOW_JOINT_ROUNDS + 1 : 0;
  for (int32_t r = 0; r < NG_WINDOW_JOINT_ROUNDS && s->is_joint; r++) {
    b->topk_counts[r] = ng_window_joint_count(r, b->ctx->ranks) + (r == 0);
  }
  b->topk_counts[NG_WINDOW_JOINT_ROUNDS] = s->is_joint ? s->k + s->all_blocks : 0;
  return NG_OK;
}

static ng_status request_memory(ng_block *b, ng_plan *plan) {
  ng_window *w = ng_window_of(b);
  const ng_status st = w->state == NULL ? create_rows(b) : NG_OK;
  if (st != NG_OK) return st;
  ng_topk_rows *s = w->state;
  const int64_t vector = ng_max64(1, w->d) * (int64_t)sizeof(float);
  const int64_t all = ng_times(w->places, ng_max64(1, s->k)), blocks = ng_max64(1, s->row_blocks);
  s->index_in_block =
      ng_plan_take(plan, NG_USE_FACTORS, ng_times(all, (int64_t)sizeof *s->index_in_block));
  s->value = ng_plan_take(plan, NG_USE_FACTORS, ng_times(all, ng_dtype_size(s->value_dtype)));
  s->block_begin =
      ng_plan_take(plan, NG_USE_FACTORS, w->places * blocks * (int64_t)sizeof *s->block_begin);
  s->error = ng_plan_take(plan, NG_USE_FACTORS, vector);
  s->next_error = ng_plan_take(plan, NG_USE_SUMS, vector);
  s->count =
      ng_plan_take(plan, NG_USE_SUMS, s->pieces * NG_LARGEST_COUNTS * (int64_t)sizeof *s->count);
  s->tile = ng_plan_take(plan, NG_USE_SUMS, s->pieces * BLOCK * (int64_t)sizeof *s->tile);
  return NG_OK;
}

static ng_rows describe_rows(ng_block *b) {
  const ng_topk_rows *s = ng_window_of(b)->state;
  return (ng_rows){.kind = NG_ROWS_SPARSE,
                   .dtype = s->value_dtype,
                   .range = s->block,
                   .ranges = s->blocks,
                   .value = s->value,
                   .stride = s->k,
                   .index = s->index_in_block,
                   .begin = s->block_begin,
                   .blocks = s->row_blocks,
                   .first_block = s->first_block,
                   .before = s->k_before,
                   .tile = s->tile};
}

/* ---- life ------------------------------------------------------------------------------------*/

/* The vector that enters; after `enter`, the residual. */
static float *next_error_feedback(ng_block *b) {
  return ((ng_topk_rows *)ng_window_of(b)->state)->next_error;
}

static void keep_error_feedback(ng_block *b) {
  ng_topk_rows *s = ng_window_of(b)->state;
  ng_window_swap(&s->error, &s->next_error);
}

static ng_status visit_fields(ng_block *b, ng_field_visit visit, void *arg) {
  const ng_window *w = ng_window_of(b);
  const ng_topk_rows *s = w->state;
  const int32_t owner = b->owner, ranks = b->ctx->ranks + 1;
  ng_field f[] = {ng_field_plain("values", s->value_dtype, w->places, s->k_all, s->value, owner),
                  ng_field_plain("indices", NG_U8, w->places, 2 * s->k_all, s->index_in_block,
                                 owner), /* 16 bits each */
                  ng_field_plain("begins", NG_I32, w->places, s->all_blocks, s->block_begin, owner),
                  ng_window_field(b, "error", NG_F32, 1, s->error)};
  ng_status st = NG_OK;
  for (int i = 0; i < 4 && st == NG_OK; i++) {
    if (i < 3 && w->is_sliced && !s->is_joint) f[i].slice = s->cut + i * ranks;
    st = visit(arg, &f[i]);
  }
  return st;
}

const ng_window_store ng_window_topk_store = {
    .name = "topk",
    .max_elements = INT32_MAX,
    .nearest_border = nearest_border,
    .request_memory = request_memory,
    .entering_vector = next_error_feedback,
    .enter_row = ng_window_topk_enter,
    .select_topk = ng_window_topk_select,
    .describe_rows = describe_rows,
    .residual = next_error_feedback,
    .end_step = keep_error_feedback,
    .visit_fields = visit_fields,
};
