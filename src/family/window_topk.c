/* window_topk.c: the store of the k largest elements of a gradient g plus its error feedback e: EFCP's sparse M-FAC
 * (Modoranu et al. 2023, arXiv 2306.06098), error feedback as in Seide et al. 2014.
 *
 *     a = e + g;  row <- the k largest |a|, rounded to window_dtype;  e <- a - row
 *
 * k is the number of entries per part (topk), per parameter (topk-layer) or per block of 32,768 elements (topk-block).
 * Of equal magnitudes the first are selected.  Masked elements do not count for k; unused entries have the value 0.
 *
 * A row is k values, their 16-bit indices within blocks, ascending, and the position where each block begins. */
#include "family/window.h"

enum { BLOCK = NG_FLAT_BLOCK };

typedef struct topk_rows {
  /* number of entries of a row: on this rank, on all ranks, on lower ranks */
  int64_t k, k_all, k_before;
  /* All ranks select k of all elements jointly.  A slice may have any number of entries, so every rank stores whole rows,
   * with row_blocks blocks; its own blocks begin at `first_block`. */
  bool is_joint;
  int32_t row_blocks, first_block;
  ng_window_joint selection;
  int64_t *cut; /* [3, ranks + 1] slices: of values, of indices (in bytes), of blocks */
  int32_t groups, blocks, all_blocks, pieces;
  ng_largest *group;        /* the elements from which a step selects, in flat order */
  ng_flat_pass *count_pass; /* the passes that count the selectable elements of each group */
  /* ranges of count_pass: a border between groups may divide a range in two */
  ng_flat_range *cut_range;
  double *selectable; /* [groups, 3] results of count_pass */
  ng_flat_range *block;
  ng_dtype value_dtype;
  uint16_t *index_in_block; /* [places, k] the index of each value */
  char *value;              /* [places, k] the values of each row */
  int32_t *block_begin; /* [places, row_blocks] position of a block's first entry, over all ranks */
  float *error, *next_error; /* [d] error feedback before and after this step */
  float gradient_factor;     /* factor of the gradient g in a = e + by g */
  int32_t *count;            /* [pieces, NG_LARGEST_COUNTS] scratch */
  double *tile;              /* [pieces, BLOCK] scratch */
} topk_rows;

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

/* Return k of a top-k selection from n elements: window_density if above 1; else window_density * n, rounded down
 * (window_store = topk-block: rounded up). */
static int64_t count_selected(const ng_block *b, int64_t n) {
  const double density = b->base.window_density;
  const double k = density > 1.0 ? density : density * (double)n;
  const bool up = b->base.window_store == NG_STORE_TOPK_BLOCK && (double)(int64_t)k < k;
  return ng_max64(1, ng_min64(n, (int64_t)k + up));
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
  topk_rows *s = w->state;
  const bool fill = s->block != NULL, by_block = b->base.window_store == NG_STORE_TOPK_BLOCK;
  const int32_t ranks = b->ctx->ranks + 1;
  int32_t owner = 0; /* 1 + the rank whose slice contains the beginning of the current block */
  run_of_elements run;
  s->is_joint = selects_jointly(b);
  s->k = s->k_all = s->groups = s->blocks = s->all_blocks = s->first_block = 0;
  memset(s->cut, 0, (size_t)(3 * ranks) * sizeof *s->cut);
  for (int32_t i = 0; find_next_run(b, &i, &run);) {
    for (int64_t at = 0; at < run.n; at += BLOCK) {
      const int64_t n = ng_min64(BLOCK, run.n - at), from = run.at + at - w->first_element;
      const bool here = from >= 0 && from < w->d, chosen = by_block || at == 0;
      ng_largest g = {.n = by_block ? n : run.n};
      g.size = chosen ? count_selected(b, g.n) : 0;
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
  topk_rows *s = w->state = ng_object(b->p, sizeof *s);
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
  topk_rows *s = w->state;
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
  const topk_rows *s = ng_window_of(b)->state;
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

/* ---- parameters without a gradient ------------------------------------------------------------ */

/* next_error <- by g, but -e for excluded parameters: then e + next_error = 0, and their error feedback is not sent. */
static void save_excluded(ng_block *b) {
  topk_rows *s = ng_window_of(b)->state;
  const double by = ng_window_of(b)->input_scale;
  const bool out = ng_window_has_excluded(b);
  const ng_flat_pass p = {.op = NG_FLAT_SCALE, .to = s->next_error, .v = s->error, .take = by};
  if (out) ng_window_run_pass(b, p);
  s->gradient_factor = out ? 1.0F : (float)by;
}

static void restore_excluded(ng_block *b) {
  topk_rows *s = ng_window_of(b)->state;
  const ng_flat_pass p = {.op = NG_FLAT_CLEAR, .to = s->next_error, .v = s->error};
  if (ng_window_has_excluded(b)) ng_window_run_pass(b, p);
}

/* ---- selecting alone -------------------------------------------------------------------------*/

/* Describe n elements from element `at` of this rank on, of which a step selects k. They become entries `to`, `to` + 1, ...
 * of the row at head, up to entry `to` + size. Block `block` of the row begins with them. The selected indices use the
 * memory of u, which is unused before `precondition`. */
static ng_largest describe_group(const ng_window *w, int64_t at, int64_t n, int64_t to,
                                 int64_t size, int64_t block) {
  const topk_rows *s = w->state;
  const int64_t entry = ng_window_head(w) * s->k + to;
  return (ng_largest){.x = s->next_error + at,
                      .n = n,
                      .k = size,
                      .error = s->error + at,
                      .by = s->gradient_factor,
                      .chosen = (int32_t *)(void *)w->u + at,
                      .dtype = s->value_dtype,
                      .value = s->value + entry * ng_dtype_size(s->value_dtype),
                      .index = s->index_in_block + entry,
                      .begin = s->block_begin + ng_window_head(w) * s->row_blocks + block,
                      .blocks = (n + BLOCK - 1) / BLOCK,
                      .first = s->k_before + to,
                      .size = size};
}

/* Return whether a step selects from fewer elements than the window has: some are masked or excluded. */
static bool has_unselectable(const ng_block *b) {
  return ng_window_of(b)->mask != NULL || ng_window_has_excluded(b);
}

/* Write the ranges of the elements [at, at + n) to `to`; return their number. */
static int64_t cut_ranges(const ng_block *b, int64_t at, int64_t n, ng_flat_range *to) {
  const ng_window *w = ng_window_of(b);
  int64_t ranges = 0, chunks = 0;
  for (int32_t i = 0; i < w->segments; i++) {
    ng_flat_range r = w->flat[i];
    const int64_t from = ng_max64(at, r.at), end = ng_min64(at + n, r.at + r.n);
    if (from >= end) continue;
    r.is_excluded = b->segment[w->segment_order[i]].slot->is_excluded;
    r.at = from;
    r.n = end - from;
    r.first_chunk = chunks;
    chunks += ng_count_range_chunks(r.n);
    to[ranges++] = r;
  }
  return ranges;
}

/* Count the selectable elements of all groups, with one wait; set k of the groups. */
static void count_selectable(ng_block *b) {
  const ng_window *w = ng_window_of(b);
  const topk_rows *s = w->state;
  ng_queue *q = b->ctx->queue;
  ng_flat_range *range = s->cut_range;
  double *unit = w->sums;
  for (int64_t i = 0, at = 0; i < s->groups; at += s->group[i++].n) {
    const int64_t n = cut_ranges(b, at, s->group[i].n, range);
    s->count_pass[i] = (ng_flat_pass){.op = NG_FLAT_COUNT,
                                      .range = range,
                                      .ranges = n,
                                      .mask = w->mask,
                                      .partial_sums = unit,
                                      .out = s->selectable + 3 * i};
    unit += 3 * (int64_t)ng_count_list_chunks(range, n);
    range += n;
  }
  ng_kernels(q)->run_flat_passes(q, s->count_pass, s->groups);
  ng_queue_wait(q);
  for (int32_t i = 0; i < s->groups; i++) {
    const double *count = ng_read_numbers(q, s->selectable + 3 * (int64_t)i);
    s->group[i].k = count_selected(b, (int64_t)*count);
  }
}

/* Describe the groups.  k is the number of entries of a row, unless elements are masked or excluded; it is computed in
 * every step, because a load may change the mask. */
static void describe_groups(ng_block *b) {
  const ng_window *w = ng_window_of(b);
  const topk_rows *s = w->state;
  int64_t at = 0, to = 0, block = 0;
  for (int32_t i = 0; i < s->groups; i++) {
    const int64_t n = s->group[i].n, size = s->group[i].size;
    s->group[i] = describe_group(w, at, n, to, size, block);
    at += n;
    to += size;
    block += s->group[i].blocks;
  }
  if (has_unselectable(b)) count_selectable(b);
}

static void enter_row(ng_block *b) {
  const topk_rows *s = ng_window_of(b)->state;
  ng_queue *q = b->ctx->queue;
  save_excluded(b);
  describe_groups(b);
  ng_kernels(q)->select_largest(q, s->group, s->groups, s->count);
  ng_kernels(q)->store_largest(q, s->group, s->groups);
  restore_excluded(b);
}

/* ---- selecting together ----------------------------------------------------------------------*/

/* Each rank has a slice of the elements.  From sums over ranks of small histograms, every rank finds the selection that
 * one rank with all elements would make.  Of equal magnitudes the lower rank comes first, as in the flat order.
 *
 *   round 0       sum the histograms of first digits (11 bits)
 *   round 1, 2    sum the histograms of the next digit (10 bits) of keys that begin like the k-th largest key
 *   round 3       gather from each rank the numbers of keys above and equal to the k-th largest key
 *   round 4       each rank lists its selected elements */

enum { FIRST_DIGITS = 11, DIGITS = 10 };

int64_t ng_window_joint_count(int32_t round, int32_t ranks) {
  return round == 0 ? 1 << FIRST_DIGITS : round < 3 ? 1 << DIGITS : 2 * (int64_t)ranks;
}

/* Return the bin of the k-th largest key, from counts over all ranks; *k <- its rank within the bin. */
static uint32_t find_bin(const double *count, int32_t bins, int64_t *k) {
  int32_t bin = bins - 1;
  while (bin > 0 && (int64_t)count[bin] < *k) {
    *k -= (int64_t)count[bin--];
  }
  return (uint32_t)bin;
}

/* List this rank's keys above the k-th largest key, and those among the first equal keys of all ranks. */
static void list_selected(ng_queue *q, ng_window_joint *j, const double *count) {
  int64_t rest = j->order_in_prefix;
  j->selected_below = 0;
  for (int32_t r = 0; r <= j->this_rank; r++) {
    j->of.equal = ng_min64((int64_t)count[2 * r + 1], rest);
    rest -= j->of.equal;
    if (r < j->this_rank) j->selected_below += (int64_t)count[2 * r] + j->of.equal;
  }
  j->of.selected = &j->selected;
  ng_kernels(q)->collect_largest(q, &j->of, 1);
  ng_queue_wait(q);
}

void ng_window_joint_round(ng_queue *q, ng_window_joint *j, int32_t round, int32_t ranks,
                           double *x) {
  ng_largest *of = &j->of;
  if (round == 0) j->order_in_prefix = of->k;
  if (round == 1) of->prefix = find_bin(x, 1 << FIRST_DIGITS, &j->order_in_prefix);
  if (round == 2 || round == 3)
    of->prefix = of->prefix << DIGITS | find_bin(x, 1 << DIGITS, &j->order_in_prefix);
  if (round > 0) of->error = NULL; /* round 0 has added the error */
  if (round == NG_WINDOW_JOINT_ROUNDS) {
    list_selected(q, j, x);
    return;
  }
  memset(x, 0, (size_t)ng_window_joint_count(round, ranks) * sizeof *x);
  of->digits = round == 0 ? FIRST_DIGITS : round < 3 ? DIGITS : 0;
  of->shift = round == 0 ? 2 * DIGITS : round == 1 ? DIGITS : 0;
  of->count = round == 3 ? x + 2 * j->this_rank : x;
  ng_kernels(q)->count_largest(q, of, 1);
  ng_queue_wait(q);
}

/* Describe n entries of the row at head, from entry `first` on, and the doubles from x[first] on that hold them, packed,
 * while ranks add them. */
static ng_largest_pack describe_pack(const ng_window *w, int64_t first, int64_t n, double *x) {
  const ng_largest row = describe_group(w, 0, 0, first, n, 0);
  return (ng_largest_pack){
      .dtype = row.dtype, .n = n, .value = row.value, .index = row.index, .entry = x + first};
}

/* x <- entries of this rank, 0 for entries of other ranks; then the number of entries in each block. */
static void write_entries(const ng_block *b, double *x) {
  const ng_window *w = ng_window_of(b);
  topk_rows *s = w->state;
  ng_queue *q = b->ctx->queue;
  const int64_t n = s->selection.selected, below = s->selection.selected_below;
  const ng_largest mine = describe_group(w, 0, w->d, below, n, s->first_block);
  const ng_largest_pack p = describe_pack(w, below, n, x);
  memset(x, 0, (size_t)(s->k + s->all_blocks) * sizeof *x);
  ng_kernels(q)->store_largest(q, &mine, 1);
  ng_kernels(q)->pack_largest(q, &p, 1);
  ng_queue_wait(q);
  for (int32_t i = 0; i < s->blocks; i++) {
    const int64_t end = i + 1 < s->blocks ? mine.begin[i + 1] : below + n;
    x[s->k + s->first_block + i] = (double)(end - mine.begin[i]);
  }
}

static void read_entries(const ng_block *b, double *x) {
  const ng_window *w = ng_window_of(b);
  const topk_rows *s = w->state;
  ng_queue *q = b->ctx->queue;
  int32_t *begin = s->block_begin + ng_window_head(w) * s->row_blocks, at = 0;
  ng_largest_pack p = describe_pack(w, 0, s->k, x);
  p.unpacks = true;
  ng_kernels(q)->pack_largest(q, &p, 1);
  ng_queue_wait(q);
  for (int32_t i = 0; i < s->row_blocks; i++) {
    begin[i] = at;
    at += (int32_t)x[s->k + i];
  }
}

static void select_topk(ng_block *b, int32_t round, double *x) {
  const ng_window *w = ng_window_of(b);
  topk_rows *s = w->state;
  if (round == 0) {
    save_excluded(b);
    s->selection =
        (ng_window_joint){.of = describe_group(w, 0, w->d, 0, s->k, 0), .this_rank = b->ctx->rank};
  }
  /* x[included], after the counts of round 0: the number of unmasked, included elements. */
  const int64_t included = ng_window_joint_count(0, b->ctx->ranks);
  if (round == 1 && has_unselectable(b)) {
    s->selection.of.k = s->selection.order_in_prefix =
        ng_min64(s->k, count_selected(b, (int64_t)x[included]));
  }
  if (round == 0) ng_window_run_pass(b, (ng_flat_pass){.op = NG_FLAT_COUNT});
  if (round <= NG_WINDOW_JOINT_ROUNDS)
    ng_window_joint_round(b->ctx->queue, &s->selection, round, b->ctx->ranks, x);
  if (round == 0) x[included] = w->results[3 * NG_FLAT_COUNT];
  if (round == NG_WINDOW_JOINT_ROUNDS) {
    write_entries(b, x);
    restore_excluded(b);
  }
  if (round > NG_WINDOW_JOINT_ROUNDS) read_entries(b, x);
}

/* ---- life ------------------------------------------------------------------------------------*/

/* The vector that enters; after `enter`, the residual. */
static float *next_error_feedback(ng_block *b) {
  return ((topk_rows *)ng_window_of(b)->state)->next_error;
}

static void keep_error_feedback(ng_block *b) {
  topk_rows *s = ng_window_of(b)->state;
  ng_window_swap_vectors(&s->error, &s->next_error);
}

static int32_t list_fields(const ng_block *b, ng_field *f) {
  const ng_window *w = ng_window_of(b);
  const topk_rows *s = w->state;
  const int32_t owner = b->owner, ranks = b->ctx->ranks + 1;
  f[0] = ng_field_plain("values", s->value_dtype, w->places, s->k_all, s->value, owner);
  f[1] = ng_field_plain("indices", NG_U8, w->places, 2 * s->k_all, s->index_in_block,
                        owner); /* indices within a block have 16 bits */
  f[2] = ng_field_plain("begins", NG_I32, w->places, s->all_blocks, s->block_begin, owner);
  f[3] = ng_window_field(b, "error", NG_F32, 1, s->error);
  for (int i = 0; i < 3 && w->is_sliced && !s->is_joint; i++) {
    f[i].slice = s->cut + i * ranks;
  }
  return 4;
}

const ng_window_store ng_window_topk_store = {
    .name = "topk",
    .max_elements = INT32_MAX,
    .nearest_border = nearest_border,
    .request_memory = request_memory,
    .entering_vector = next_error_feedback,
    .enter_row = enter_row,
    .select_topk = select_topk,
    .describe_rows = describe_rows,
    .end_step = keep_error_feedback,
    .list_fields = list_fields,
};
