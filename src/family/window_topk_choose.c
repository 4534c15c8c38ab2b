/* window_topk_choose.c: select the elements that enter a top-k row.
 *
 * In: the gradient g in `next_error`, the error feedback e in `error`.  Out: the row at head (k values, their indices in
 * blocks, the begin of each block), and the new residual in `next_error`.  Each rank selects in its own groups; if one group
 * spans all slices, all ranks select jointly. */
#include "family/window_topk.h"

/* ---- parameters without a gradient ------------------------------------------------------------ */

/* next_error <- by g, but -e for excluded parameters: then e + next_error = 0, and their error feedback is not sent. */
static void save_excluded(ng_block *b) {
  ng_topk_rows *s = ng_window_of(b)->state;
  const double by = ng_window_of(b)->input_scale;
  const bool out = ng_window_has_excluded(b);
  const ng_flat_pass p = {.op = NG_FLAT_SCALE, .to = s->next_error, .v = s->error, .take = by};
  if (out) ng_window_pass(b, p);
  s->gradient_factor = out ? 1.0F : (float)by;
}

static void restore_excluded(ng_block *b) {
  ng_topk_rows *s = ng_window_of(b)->state;
  const ng_flat_pass p = {.op = NG_FLAT_CLEAR, .to = s->next_error, .v = s->error};
  if (ng_window_has_excluded(b)) ng_window_pass(b, p);
}

/* ---- selecting alone -------------------------------------------------------------------------*/

/* Return a group that begins at element `at`; its selected elements become entries `to`, `to` + 1, ... of the row at head.
 * The selected indices use the memory of u, which is unused before `precondition`. */
static ng_largest describe_group(const ng_window *w, int64_t at, int64_t to) {
  const ng_topk_rows *s = w->state;
  const int64_t entry = ng_window_head(w) * s->k + to;
  return (ng_largest){.x = s->next_error + at,
                      .error = s->error + at,
                      .by = s->gradient_factor,
                      .chosen = (int32_t *)(void *)w->u + at,
                      .dtype = s->value_dtype,
                      .value = s->value + entry * ng_dtype_size(s->value_dtype),
                      .index = s->index_in_block + entry,
                      .first = s->k_before + to};
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
  const ng_topk_rows *s = w->state;
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
    s->group[i].k = ng_window_topk_size(b, (int64_t)*count);
  }
}

/* Describe the groups.  k is the number of entries of a row, unless elements are masked or excluded; it is computed in
 * every step, because a load may change the mask. */
static void describe_groups(ng_block *b) {
  const ng_window *w = ng_window_of(b);
  const ng_topk_rows *s = w->state;
  int32_t *begin = s->block_begin + ng_window_head(w) * s->row_blocks;
  int64_t at = 0, to = 0;
  for (int32_t i = 0; i < s->groups; i++) {
    const ng_largest g = s->group[i];
    s->group[i] = describe_group(w, at, to);
    s->group[i].n = g.n;
    s->group[i].size = g.size;
    s->group[i].blocks = g.blocks;
    s->group[i].begin = begin;
    s->group[i].k = g.size;
    at += g.n;
    to += g.size;
    begin += g.blocks;
  }
  if (has_unselectable(b)) count_selectable(b);
}

void ng_window_topk_enter(ng_block *b) {
  const ng_topk_rows *s = ng_window_of(b)->state;
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
  int64_t rest = j->rank_in_prefix;
  j->selected_below = 0;
  for (int32_t r = 0; r <= j->rank; r++) {
    j->of.equal = ng_min64((int64_t)count[2 * r + 1], rest);
    rest -= j->of.equal;
    if (r < j->rank) j->selected_below += (int64_t)count[2 * r] + j->of.equal;
  }
  j->of.selected = &j->selected;
  ng_kernels(q)->collect_largest(q, &j->of, 1);
  ng_queue_wait(q);
}

void ng_window_joint_round(ng_queue *q, ng_window_joint *j, int32_t round, int32_t ranks,
                           double *x) {
  ng_largest *of = &j->of;
  if (round == 0) j->rank_in_prefix = of->k;
  if (round == 1) of->prefix = find_bin(x, 1 << FIRST_DIGITS, &j->rank_in_prefix);
  if (round == 2 || round == 3)
    of->prefix = of->prefix << DIGITS | find_bin(x, 1 << DIGITS, &j->rank_in_prefix);
  if (round > 0) of->error = NULL; /* round 0 has added the error */
  if (round == NG_WINDOW_JOINT_ROUNDS) {
    list_selected(q, j, x);
    return;
  }
  memset(x, 0, (size_t)ng_window_joint_count(round, ranks) * sizeof *x);
  of->digits = round == 0 ? FIRST_DIGITS : round < 3 ? DIGITS : 0;
  of->shift = round == 0 ? 2 * DIGITS : round == 1 ? DIGITS : 0;
  of->count = round == 3 ? x + 2 * j->rank : x;
  ng_kernels(q)->count_largest(q, of, 1);
  ng_queue_wait(q);
}

/* Describe n entries of the row at head, from entry `first` on, and the doubles from x[first] on that hold them, packed,
 * while ranks add them. */
static ng_largest_pack describe_pack(const ng_window *w, int64_t first, int64_t n, double *x) {
  const ng_largest row = describe_group(w, 0, first);
  return (ng_largest_pack){
      .dtype = row.dtype, .n = n, .value = row.value, .index = row.index, .entry = x + first};
}

/* x <- entries of this rank, 0 for entries of other ranks; then the number of entries in each block. */
static void write_entries(const ng_block *b, double *x) {
  const ng_window *w = ng_window_of(b);
  ng_topk_rows *s = w->state;
  ng_queue *q = b->ctx->queue;
  const int64_t n = s->selection.selected, below = s->selection.selected_below;
  ng_largest mine = describe_group(w, 0, below);
  const ng_largest_pack p = describe_pack(w, below, n, x);
  memset(x, 0, (size_t)(s->k + s->all_blocks) * sizeof *x);
  mine.k = mine.size = n;
  mine.blocks = s->blocks;
  mine.begin = s->block_begin + ng_window_head(w) * s->row_blocks + s->first_block;
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
  const ng_topk_rows *s = w->state;
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

void ng_window_topk_select(ng_block *b, int32_t round, double *x) {
  const ng_window *w = ng_window_of(b);
  ng_topk_rows *s = w->state;
  if (round == 0) {
    save_excluded(b);
    s->selection = (ng_window_joint){.of = describe_group(w, 0, 0), .rank = b->ctx->rank};
    s->selection.of.n = w->d;
    s->selection.of.k = s->k;
  }
  /* x[included], after the counts of round 0: the number of unmasked, included elements. */
  const int64_t included = ng_window_joint_count(0, b->ctx->ranks);
  if (round == 1 && has_unselectable(b)) {
    s->selection.of.k = s->selection.rank_in_prefix =
        ng_min64(s->k, ng_window_topk_size(b, (int64_t)x[included]));
  }
  if (round == 0) ng_window_pass(b, (ng_flat_pass){.op = NG_FLAT_COUNT});
  if (round <= NG_WINDOW_JOINT_ROUNDS)
    ng_window_joint_round(b->ctx->queue, &s->selection, round, b->ctx->ranks, x);
  if (round == 0) x[included] = w->results[3 * NG_FLAT_COUNT];
  if (round == NG_WINDOW_JOINT_ROUNDS) {
    write_entries(b, x);
    restore_excluded(b);
  }
  if (round > NG_WINDOW_JOINT_ROUNDS) read_entries(b, x);
}
