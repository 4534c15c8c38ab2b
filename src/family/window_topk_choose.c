/* window_topk_choose.c: select the elements that enter a top-k row.
 *
 * In: the gradient g in `next`, the error feedback e in `error`.  Out: the row at head (k values, their indices in
 * blocks, the begin of each block), and the new residual in `next`.  Each rank selects in its own groups; if one group
 * spans all slices, all ranks select jointly (window_largest.c).  ng_window_select_largest adds e to g. */
#include "family/window_topk.h"

enum { WIDE = 2 * NG_WINDOW_BLOCK, VALUES = 256 };

/* ---- choosing --------------------------------------------------------------------------------*/

static ng_window_sum sum_of(const ng_window *w, const ng_window_range *g) {
  const ng_topk_rows *s = w->state;
  return (ng_window_sum){s->next_error + g->at, s->error + g->at, s->gradient_factor};
}

/* Return the memory for the selected indices of group g: part of u, which is unused before `measure`. */
static int32_t *selected_of(const ng_window *w, const ng_window_range *g) {
  return (int32_t *)(void *)w->u + g->at;
}

/* Return whether a group is so large that all threads work on its selection. */
static bool is_wide(const ng_topk_rows *s, const ng_window_range *g) {
  return s->pieces > 1 && g->n >= s->pieces * WIDE;
}

static void select_piece(void *arg, int32_t piece) {
  ng_block *b = arg;
  const ng_window *w = ng_window_of(b);
  const ng_topk_rows *s = w->state;
  int64_t from, to;
  ng_piece_bounds(s->groups, s->pieces, piece, &from, &to);
  for (int64_t i = from; i < to; i++) {
    const ng_window_range *g = &s->group[i];
    const ng_window_sum v = sum_of(w, g);
    if (is_wide(s, g)) continue;
    ng_window_select_largest(b->ctx, &v, g->n, g->k, 1,
                             s->count + (int64_t)piece * NG_WINDOW_COUNTS, selected_of(w, g));
  }
}

static void select_groups(ng_block *b) {
  const ng_window *w = ng_window_of(b);
  const ng_topk_rows *s = w->state;
  ng_parallel(b->ctx, s->pieces, select_piece, b);
  for (int32_t i = 0; i < s->groups; i++) {
    const ng_window_range *g = &s->group[i];
    const ng_window_sum v = sum_of(w, g);
    if (!is_wide(s, g)) continue;
    ng_window_select_largest(b->ctx, &v, g->n, g->k, s->pieces, s->count, selected_of(w, g));
  }
}

/* Store the n chosen elements of a, rounded to s->type, from entry `to` of the row on; a <- the rounding errors. */
static void store_values(const ng_topk_rows *s, int64_t head, int64_t to, float *a,
                         const int32_t *chosen, int64_t n) {
  char *value = s->value + (head * s->k + to) * ng_dtype_size(s->value_dtype);
  float exact[VALUES], rounded[VALUES];
  for (int64_t j = 0; j < n; j++) {
    exact[j] = a[chosen[j]];
  }
  ng_from_f32(value, s->value_dtype, exact, n);
  ng_to_f32(rounded, value, s->value_dtype, n);
  for (int64_t j = 0; j < n; j++) {
    a[chosen[j]] = exact[j] - rounded[j];
  }
}

static void write_row(ng_window *w) {
  const ng_topk_rows *s = w->state;
  const int64_t head = ng_window_head(w);
  uint16_t *index = s->index + head * s->k;
  int32_t *begin = s->block_begin + head * s->row_blocks, block = 0;
  if (s->blocks > 0) begin[0] = (int32_t)s->k_before;
  for (int32_t i = 0; i < s->groups; i++) {
    const ng_window_range *g = &s->group[i];
    const int32_t *chosen = selected_of(w, g);
    for (int64_t j = 0; j < g->k; j++) {
      const int64_t at = g->at + chosen[j], to = g->first + j;
      while (at >= s->block[block].at + s->block[block].n) {
        begin[++block] = (int32_t)(s->k_before + to);
      }
      index[to] = (uint16_t)(at - s->block[block].at);
    }
    for (int64_t j = 0; j < g->k; j += VALUES) {
      store_values(s, head, g->first + j, s->next_error + g->at, chosen + j,
                   ng_min64(VALUES, g->k - j));
    }
  }
  for (block++; block < s->blocks; block++) {
    begin[block] = (int32_t)(s->k_before + s->k);
  }
}

/* ---- parameters without a gradient ------------------------------------------------------------ */

/* next <- by g, but -e for excluded parameters: then e + next = 0, and their error feedback is not sent. */
static void save_excluded(ng_block *b) {
  ng_topk_rows *s = ng_window_of(b)->state;
  const double by = ng_window_of(b)->input_scale;
  const bool out = ng_window_has_excluded(b);
  ng_flat_pass p = {.op = NG_FLAT_SAVE, .to = s->next_error, .v = s->error, .take = by};
  if (out) ng_window_pass(b, &p);
  s->gradient_factor = out ? 1.0F : (float)by;
}

static void restore_excluded(ng_block *b) {
  ng_topk_rows *s = ng_window_of(b)->state;
  ng_flat_pass p = {.op = NG_FLAT_CLEAR, .to = s->next_error, .v = s->error};
  if (ng_window_has_excluded(b)) ng_window_pass(b, &p);
}

/* Set k of each group from its unmasked, included elements; in every step, because a load may change the mask. */
static void count_groups(ng_block *b) {
  const ng_window *w = ng_window_of(b);
  ng_topk_rows *s = w->state;
  const bool some = w->mask != NULL || ng_window_has_excluded(b);
  for (int32_t i = 0; i < s->groups && (some || s->k_excludes); i++) {
    ng_window_range *g = &s->group[i];
    g->k = ng_window_topk_size(b, ng_window_count_selectable(b, g->at, g->n));
  }
  s->k_excludes = some;
}

void ng_window_topk_enter(ng_block *b) {
  count_groups(b);
  save_excluded(b);
  select_groups(b);
  write_row(ng_window_of(b));
  restore_excluded(b);
}

/* ---- choosing together -----------------------------------------------------------------------*/

/* x <- entries of this rank, 0 for entries of other ranks; then the number of entries in each block.  An entry is one
 * exact double: the bits of the value + 2^32 * index in the block. */
static void write_entries(const ng_block *b, double *x) {
  const ng_window *w = ng_window_of(b);
  const ng_topk_rows *s = w->state;
  const ng_window_joint *j = &s->selection;
  const size_t size = (size_t)ng_dtype_size(s->value_dtype);
  const int64_t head = ng_window_head(w);
  int32_t block = 0;
  memset(x, 0, (size_t)(s->k + s->all_blocks) * sizeof *x);
  for (int64_t i = 0; i < j->selected; i += VALUES) {
    store_values(s, head, j->selected_below + i, s->next_error, j->chosen + i,
                 ng_min64(VALUES, j->selected - i));
  }
  for (int64_t i = 0; i < j->selected; i++) {
    const int64_t to = j->selected_below + i;
    uint32_t bits = 0; /* bf16 sets the low 16 bits */
    memcpy(&bits, s->value + (size_t)(head * s->k + to) * size, size);
    while (j->chosen[i] >= s->block[block].at + s->block[block].n) {
      block++;
    }
    x[to] = (double)bits + 0x1p32 * (double)(j->chosen[i] - s->block[block].at);
    x[s->k + s->first_block + block] += 1.0;
  }
}

static void read_entries(const ng_block *b, const double *x) {
  const ng_window *w = ng_window_of(b);
  const ng_topk_rows *s = w->state;
  const size_t size = (size_t)ng_dtype_size(s->value_dtype);
  const int64_t head = ng_window_head(w);
  int32_t *begin = s->block_begin + head * s->row_blocks;
  for (int64_t i = 0; i < s->k; i++) {
    const uint64_t entry = (uint64_t)x[i];
    const uint32_t bits = (uint32_t)(entry & 0xffffffffU);
    memcpy(s->value + (size_t)(head * s->k + i) * size, &bits, size);
    s->index[head * s->k + i] = (uint16_t)(entry >> 32);
  }
  int32_t at = 0;
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
    const ng_window_sum v = {s->next_error, s->error, s->gradient_factor};
    ng_window_add_error(&v, w->d);
    s->selection = (ng_window_joint){.x = s->next_error,
                                     .n = w->d,
                                     .k = s->k,
                                     .rank = b->ctx->rank,
                                     .chosen = (int32_t *)(void *)w->u};
  }
  /* x[included], after the counts of round 0: the number of unmasked, included elements. */
  const int64_t included = ng_window_joint_count(0, b->ctx->ranks);
  const bool some = w->mask != NULL || ng_window_has_excluded(b);
  if (round == 1 && some) {
    s->selection.k = s->selection.rank_in_prefix =
        ng_min64(s->k, ng_window_topk_size(b, (int64_t)x[included]));
  }
  if (round <= NG_WINDOW_JOINT_ROUNDS)
    ng_window_joint_round(&s->selection, round, b->ctx->ranks, x);
  if (round == 0) x[included] = some ? (double)ng_window_count_selectable(b, 0, w->d) : 0.0;
  if (round == NG_WINDOW_JOINT_ROUNDS) {
    write_entries(b, x);
    restore_excluded(b);
  }
  if (round > NG_WINDOW_JOINT_ROUNDS) read_entries(b, x);
}
