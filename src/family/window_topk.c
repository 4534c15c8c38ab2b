/* window_topk.c: the store of the k largest entries of a gradient and what was left of it before: EFCP's
 * sparse M-FAC (Modoranu et al. 2023, arXiv 2306.06098), error feedback as in Seide et al. 2014.
 *
 *     a = e + g;  row <- the k largest |a|, rounded as they are kept;  e <- a - row
 *
 * so what was sent and what is kept is all that came.  window_topk: k of each part, of each parameter, or of
 * each block of 32,768 elements.  Of equal entries the first ones win.
 *
 * With a mask k is of what takes part; there is room for k of all, and what of it is not used, behind the entries of a
 * group, is of value 0.  A row is k values, their places in blocks as 16-bit numbers, ascending, and where each block begins.  Both
 * products go block by block: a tile of x in f32, or of doubles to add to, stays in the second cache while the same
 * block of all rows passes by; its entries lie far apart, so memory is asked for those of rows to come.  The sum
 * is made where it is chosen from (window_largest.c): one pass over e and g in memory. */
#include "family/window.h"

#include "simd.h"

enum { BLOCK = NG_WINDOW_BLOCK, WIDE = 2 * BLOCK, ROWS_AHEAD = 4, VALUES = 256 };

/* Elements [at, at + n): what is chosen from, or a block of one part. */
typedef struct range {
  int64_t at, n, k, first; /* k of them, first in a row */
  int32_t part;
} range;

typedef struct topk {
  int64_t k, all, before; /* of a row: here, on all ranks, on the ranks before this one */
  /* The k largest of all that ranks have slices of.  Any number of them may lie in one slice, so every rank keeps whole rows:
   * k of them, all blocks; its blocks for products begin at `first`. */
  bool joint;
  int32_t row_blocks, first;
  ng_window_joint choice;
  int64_t *cut; /* [3, ranks + 1] slices of values, of indices as bytes, of blocks */
  int32_t groups, blocks, all_blocks, pieces;
  range *group, *block;
  ng_dtype type;
  uint16_t *index;     /* [places, k] */
  char *value;         /* [places, k] */
  int32_t *begin;      /* [places, blocks] in a row of all ranks */
  float *error, *next; /* [d] */
  int32_t *count;      /* [pieces, NG_WINDOW_COUNTS] */
  double *tile;        /* [pieces, BLOCK] */
} topk;

/* ---- geometry --------------------------------------------------------------------------------*/

/* The next run of elements, of those of all ranks, in which blocks are cut: a parameter, or a part. */
static bool next_run(const ng_block *b, int32_t *i, range *run) {
  const ng_window *w = ng_window_of(b);
  if (*i == w->segments) return false;
  const ng_window_view *first = &w->view[w->order[*i]];
  *run = (range){.at = first->flat, .part = first->part};
  do {
    const ng_segment *g = &b->segment[w->order[(*i)++]];
    run->n += g->to - g->from;
  } while (b->base.window_topk != NG_TOPK_LAYER && *i < w->segments &&
           w->view[w->order[*i]].part == run->part);
  return true;
}

static bool is_joint(const ng_block *b) {
  return ng_window_of(b)->sliced && b->base.window_topk == NG_TOPK_GLOBAL &&
         b->base.window_scope == NG_WINDOW_MODEL;
}

static int64_t cut_at(const ng_block *b, int64_t at) {
  int64_t best = 0;
  range run;
  for (int32_t i = 0; next_run(b, &i, &run);) {
    const bool blocks = b->base.window_topk == NG_TOPK_BLOCK || is_joint(b);
    const int64_t step = blocks ? BLOCK : run.n;
    for (int64_t k = step; k < run.n + step; k += step) {
      const int64_t end = run.at + ng_min64(k, run.n);
      if (at - best > (end > at ? end - at : at - end)) best = end;
    }
  }
  return best;
}

/* Where the numbers of each rank begin: `more` belong to elements from `at` on. */
static void move_cut(const ng_block *b, int64_t *cut, int64_t at, int64_t more) {
  const ng_window *w = ng_window_of(b);
  for (int32_t r = 0; r <= b->ctx->ranks && w->sliced; r++) {
    if (at < w->cut[r]) cut[r] += more;
  }
}

/* Groups and blocks of this rank, and how many numbers the others have.  Counts first (s->block NULL), then
 * fills. */
static void lay_out(ng_block *b) {
  const ng_window *w = ng_window_of(b);
  topk *s = w->own;
  const bool fill = s->block != NULL, by_block = b->base.window_topk == NG_TOPK_BLOCK;
  const int32_t ranks = b->ctx->ranks + 1;
  range run;
  s->joint = is_joint(b);
  s->k = s->all = s->groups = s->blocks = s->all_blocks = s->first = 0;
  memset(s->cut, 0, (size_t)(3 * ranks) * sizeof *s->cut);
  for (int32_t i = 0; next_run(b, &i, &run);) {
    for (int64_t at = 0; at < run.n; at += BLOCK) {
      range r = {run.at + at, ng_min64(BLOCK, run.n - at), 0, s->k, run.part};
      const bool here = r.at >= w->from && r.at < w->from + w->d;
      const bool chosen = by_block || at == 0;
      range g = by_block ? r : run;
      g.k = chosen ? ng_window_entries(b, g.n) : 0;
      g.first = s->k;
      g.at -= w->from;
      if (s->joint && here && s->blocks == 0) s->first = s->all_blocks;
      if (fill && here && chosen && !s->joint) s->group[s->groups] = g;
      r.at -= w->from;
      if (fill && here) s->block[s->blocks] = r;
      move_cut(b, s->cut, r.at + w->from, g.k);
      move_cut(b, s->cut + ranks, r.at + w->from, 2 * g.k);
      move_cut(b, s->cut + 2 * ranks, r.at + w->from, 1);
      s->groups += here && chosen && !s->joint;
      s->blocks += here;
      s->k += here || s->joint ? g.k : 0;
      s->all += g.k;
      s->all_blocks++;
    }
  }
  s->before = s->joint ? 0 : s->cut[b->ctx->rank];
  s->row_blocks = s->joint ? s->all_blocks : s->blocks;
}

static void release(ng_block *b) {
  topk *s = ng_window_of(b)->own;
  ng_object_free(b->p, s->group, (size_t)(s->groups + 1) * sizeof *s->group);
  ng_object_free(b->p, s->block, (size_t)(s->blocks + 1) * sizeof *s->block);
  ng_object_free(b->p, s->cut, (size_t)(3 * (b->ctx->ranks + 1)) * sizeof *s->cut);
  ng_object_free(b->p, s, sizeof *s);
  ng_window_of(b)->own = NULL;
}

static ng_status make(ng_block *b) {
  ng_window *w = ng_window_of(b);
  topk *s = w->own = ng_object(b->p, sizeof *s);
  if (s != NULL) s->cut = ng_object(b->p, (size_t)(3 * (b->ctx->ranks + 1)) * sizeof *s->cut);
  if (s == NULL || s->cut == NULL) {
    return ng_fail(b->ctx, NG_ERR_NOMEM, "no memory for the block of '%s'", b->name);
  }
  s->type = b->base.window_dtype;
  s->pieces = ng_threads_of(b->ctx);
  lay_out(b);
  s->group = ng_object(b->p, (size_t)(s->groups + 1) * sizeof *s->group);
  s->block = ng_object(b->p, (size_t)(s->blocks + 1) * sizeof *s->block);
  if (s->block == NULL || s->group == NULL) {
    return ng_fail(b->ctx, NG_ERR_NOMEM, "no memory for the block of '%s'", b->name);
  }
  lay_out(b);
  w->units = s->blocks;
  b->rounds = s->joint ? NG_WINDOW_JOINT_ROUNDS + 1 : 0;
  for (int32_t r = 0; r < NG_WINDOW_JOINT_ROUNDS && s->joint; r++) {
    b->round[r] = ng_window_joint_room(r, b->ctx->ranks) + (r == 0);
  }
  b->round[NG_WINDOW_JOINT_ROUNDS] = s->joint ? s->k + s->all_blocks : 0;
  return NG_OK;
}

static ng_status plan(ng_block *b, ng_plan *plan) {
  ng_window *w = ng_window_of(b);
  if (w->all > INT32_MAX) {
    return ng_fail(b->ctx, NG_ERR_ARG, "window_store = topk: %lld parameters, at most %d",
                   (long long)w->all, INT32_MAX);
  }
  const ng_status st = w->own == NULL ? make(b) : NG_OK;
  if (st != NG_OK) return st;
  topk *s = w->own;
  const int64_t vector = ng_max64(1, w->d) * (int64_t)sizeof(float);
  const int64_t all = ng_times(w->places, ng_max64(1, s->k)), blocks = ng_max64(1, s->row_blocks);
  s->index = ng_plan_take(plan, NG_USE_FACTORS, ng_times(all, (int64_t)sizeof *s->index));
  s->value = ng_plan_take(plan, NG_USE_FACTORS, ng_times(all, ng_dtype_size(s->type)));
  s->begin = ng_plan_take(plan, NG_USE_FACTORS, w->places * blocks * (int64_t)sizeof *s->begin);
  s->error = ng_plan_take(plan, NG_USE_FACTORS, vector);
  s->next = ng_plan_take(plan, NG_USE_SUMS, vector);
  s->count =
      ng_plan_take(plan, NG_USE_SUMS, s->pieces * NG_WINDOW_COUNTS * (int64_t)sizeof *s->count);
  s->tile = ng_plan_take(plan, NG_USE_SUMS, s->pieces * BLOCK * (int64_t)sizeof *s->tile);
  return NG_OK;
}

/* ---- choosing --------------------------------------------------------------------------------*/

static float *target(ng_block *b) { return ((topk *)ng_window_of(b)->own)->next; }

static ng_window_sum sum_of(const ng_window *w, const range *g) {
  const topk *s = w->own;
  return (ng_window_sum){s->next + g->at, s->error + g->at, (float)w->scale};
}

/* u is not needed before the direction: its bytes hold the candidates. */
static int32_t *chosen_of(const ng_window *w, const range *g) {
  return (int32_t *)(void *)w->u + g->at;
}

/* One that is as large as many blocks is for all threads. */
static bool is_wide(const topk *s, const range *g) {
  return s->pieces > 1 && g->n >= s->pieces * WIDE;
}

static void choose_piece(void *arg, int32_t piece) {
  ng_block *b = arg;
  const ng_window *w = ng_window_of(b);
  const topk *s = w->own;
  int64_t from, to;
  ng_share(s->groups, s->pieces, piece, &from, &to);
  for (int64_t i = from; i < to; i++) {
    const range *g = &s->group[i];
    const ng_window_sum v = sum_of(w, g);
    if (is_wide(s, g)) continue;
    ng_window_largest(&v, g->n, g->k, s->count + (int64_t)piece * NG_WINDOW_COUNTS,
                      chosen_of(w, g));
  }
}

static void choose(ng_block *b) {
  const ng_window *w = ng_window_of(b);
  const topk *s = w->own;
  ng_parallel(b->ctx, s->pieces, choose_piece, b);
  for (int32_t i = 0; i < s->groups; i++) {
    const range *g = &s->group[i];
    const ng_window_sum v = sum_of(w, g);
    if (!is_wide(s, g)) continue;
    ng_window_largest_wide(b->ctx, &v, g->n, g->k, s->pieces, s->count, chosen_of(w, g));
  }
}

/* n chosen entries, rounded as they are kept, to a row's places from `to` on; what rounding leaves stays. */
static void keep_values(const topk *s, int64_t head, int64_t to, float *a, const int32_t *chosen,
                        int64_t n) {
  char *value = s->value + (head * s->k + to) * ng_dtype_size(s->type);
  float exact[VALUES], rounded[VALUES];
  for (int64_t j = 0; j < n; j++) {
    exact[j] = a[chosen[j]];
  }
  ng_from_f32(value, s->type, exact, n);
  ng_to_f32(rounded, value, s->type, n);
  for (int64_t j = 0; j < n; j++) {
    a[chosen[j]] = exact[j] - rounded[j];
  }
}

static void write_row(ng_window *w) {
  const topk *s = w->own;
  const int64_t head = ng_window_head(w);
  uint16_t *index = s->index + head * s->k;
  int32_t *begin = s->begin + head * s->row_blocks, block = 0;
  if (s->blocks > 0) begin[0] = (int32_t)s->before;
  for (int32_t i = 0; i < s->groups; i++) {
    const range *g = &s->group[i];
    const int32_t *chosen = chosen_of(w, g);
    for (int64_t j = 0; j < g->k; j++) {
      const int64_t at = g->at + chosen[j], to = g->first + j;
      while (at >= s->block[block].at + s->block[block].n) {
        begin[++block] = (int32_t)(s->before + to);
      }
      index[to] = (uint16_t)(at - s->block[block].at);
    }
    for (int64_t j = 0; j < g->k; j += VALUES) {
      keep_values(s, head, g->first + j, s->next + g->at, chosen + j, ng_min64(VALUES, g->k - j));
    }
  }
  for (block++; block < s->blocks; block++) {
    begin[block] = (int32_t)(s->before + s->k);
  }
}

/* Whenever something enters: the mask may have come from a state since. */
static void count_groups(ng_block *b) {
  const ng_window *w = ng_window_of(b);
  const topk *s = w->own;
  for (int32_t i = 0; i < s->groups && w->mask != NULL; i++) {
    range *g = &s->group[i];
    g->k = ng_window_entries(b, ng_window_unmasked(w, g->at, g->n));
  }
}

static void enter(ng_block *b) {
  count_groups(b);
  choose(b);
  write_row(ng_window_of(b));
}

/* ---- choosing together -----------------------------------------------------------------------*/

/* An entry is one exact double: the bits of its value, and its place in its block above them.  In a sum over ranks all
 * but one say 0.  Behind all entries: how many there are in each block. */
static void put_entries(const ng_block *b, double *x) {
  const ng_window *w = ng_window_of(b);
  const topk *s = w->own;
  const ng_window_joint *j = &s->choice;
  const size_t size = (size_t)ng_dtype_size(s->type);
  const int64_t head = ng_window_head(w);
  int32_t block = 0;
  memset(x, 0, (size_t)(s->k + s->all_blocks) * sizeof *x);
  for (int64_t i = 0; i < j->m; i += VALUES) {
    keep_values(s, head, j->before + i, s->next, j->chosen + i, ng_min64(VALUES, j->m - i));
  }
  for (int64_t i = 0; i < j->m; i++) {
    const int64_t to = j->before + i;
    uint32_t bits = 0; /* of bf16 the first half, in memory */
    memcpy(&bits, s->value + (size_t)(head * s->k + to) * size, size);
    while (j->chosen[i] >= s->block[block].at + s->block[block].n) {
      block++;
    }
    x[to] = (double)bits + 0x1p32 * (double)(j->chosen[i] - s->block[block].at);
    x[s->k + s->first + block] += 1.0;
  }
}

static void take_entries(const ng_block *b, const double *x) {
  const ng_window *w = ng_window_of(b);
  const topk *s = w->own;
  const size_t size = (size_t)ng_dtype_size(s->type);
  const int64_t head = ng_window_head(w);
  int32_t *begin = s->begin + head * s->row_blocks;
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

static void choose_jointly(ng_block *b, int32_t round, double *x) {
  const ng_window *w = ng_window_of(b);
  topk *s = w->own;
  if (round == 0) {
    const ng_window_sum v = {s->next, s->error, (float)w->scale};
    ng_window_add_error(&v, w->d);
    s->choice = (ng_window_joint){.x = s->next,
                                  .n = w->d,
                                  .k = s->k,
                                  .rank = b->ctx->rank,
                                  .chosen = (int32_t *)(void *)w->u};
  }
  /* Behind the counts of the first round: of how many elements k is. */
  const int64_t behind = ng_window_joint_room(0, b->ctx->ranks);
  if (round == 1 && w->mask != NULL) {
    s->choice.k = s->choice.rest = ng_min64(s->k, ng_window_entries(b, (int64_t)x[behind]));
  }
  if (round <= NG_WINDOW_JOINT_ROUNDS) ng_window_joint_round(&s->choice, round, b->ctx->ranks, x);
  if (round == 0) x[behind] = w->mask != NULL ? (double)ng_window_unmasked(w, 0, w->d) : 0.0;
  if (round == NG_WINDOW_JOINT_ROUNDS) put_entries(b, x);
  if (round > NG_WINDOW_JOINT_ROUNDS) take_entries(b, x);
}

/* ---- products --------------------------------------------------------------------------------*/

/* The entries of a row in a block.  From a file they may be any numbers: never beyond row and block. */
typedef struct run {
  const uint16_t *index;
  const char *value;
  int64_t n;
} run;

static run run_of(const topk *s, int64_t place, int64_t block) {
  const int32_t *begin = s->begin + place * s->row_blocks + s->first + block;
  const int64_t end = s->first + block + 1 < s->row_blocks ? begin[1] - s->before : s->k;
  const int64_t from = ng_max64(0, ng_min64(begin[0] - s->before, s->k));
  const int64_t to = ng_max64(from, ng_min64(end, s->k)), at = place * s->k + from;
  return (run){s->index + at, s->value + at * ng_dtype_size(s->type), to - from};
}

/* Asks for the lines of a run that is needed soon. */
static void fetch_run(const run *r, ng_dtype t) {
  NG_FETCH_LINES(r->index, r->n * (int64_t)sizeof *r->index);
  NG_FETCH_LINES(r->value, r->n * ng_dtype_size(t));
}

/* The entries of the j-th row in use in a block, of a loop over all of them. */
static run next_of(const ng_window *w, int64_t j, int64_t block) {
  const topk *s = w->own;
  if (j + ROWS_AHEAD < w->uses) {
    const run ahead = run_of(s, w->used[j + ROWS_AHEAD], block);
    fetch_run(&ahead, s->type);
  }
  return run_of(s, w->used[j], block);
}

typedef struct job {
  ng_block *b;
  const float *x;
  double by;
} job;

static void product_piece(void *arg, int32_t piece) {
  const job *p = arg;
  ng_window *w = ng_window_of(p->b);
  const topk *s = w->own;
  float *tile = (float *)(void *)(s->tile + (int64_t)piece * BLOCK); /* a row is exact in f32 */
  int64_t from, to;
  ng_share(s->blocks, s->pieces, piece, &from, &to);
  for (int64_t i = from; i < to; i++) {
    const range *k = &s->block[i];
    if (p->x == NULL) {
      const run own = run_of(s, ng_window_head(w), i);
      memset(tile, 0, (size_t)k->n * sizeof *tile);
      ng_window_sparse_put(tile, own.index, own.value, s->type, own.n);
    } else {
      memcpy(tile, p->x + k->at, (size_t)k->n * sizeof *tile);
    }
    for (int64_t j = 0; j < w->uses; j++) {
      const run r = next_of(w, j, i);
      w->partial[i * w->places + w->used[j]] =
          ng_window_sparse_dot(tile, r.index, r.value, s->type, r.n);
    }
  }
}

static void products(ng_block *b, const float *x, double *k) {
  ng_window *w = ng_window_of(b);
  const topk *s = w->own;
  job p = {b, x, 0.0};
  ng_parallel(b->ctx, s->pieces, product_piece, &p);
  for (int32_t i = 0; i < s->blocks; i++) {
    for (int64_t j = 0; j < w->uses; j++) {
      k[s->block[i].part * w->places + w->used[j]] += w->partial[i * w->places + w->used[j]];
    }
  }
}

static void combine_piece(void *arg, int32_t piece) {
  const job *p = arg;
  ng_window *w = ng_window_of(p->b);
  const topk *s = w->own;
  double *tile = s->tile + (int64_t)piece * BLOCK;
  int64_t from, to;
  ng_share(s->blocks, s->pieces, piece, &from, &to);
  for (int64_t i = from; i < to; i++) {
    const range *k = &s->block[i];
    const double *c = w->part[k->part].c;
    float *u = w->u + k->at;
    memset(tile, 0, (size_t)k->n * sizeof *tile);
    for (int64_t e = 0; e < k->n && p->by != 0.0; e++) {
      tile[e] = p->by * (double)u[e];
    }
    for (int64_t j = 0; j < w->uses; j++) {
      const run r = next_of(w, j, i);
      ng_window_sparse_add(tile, r.index, r.value, s->type, r.n, c[w->used[j]]);
    }
    for (int64_t e = 0; e < k->n; e++) {
      u[e] = (float)tile[e];
    }
  }
}

static void combine(ng_block *b, double by) {
  const topk *s = ng_window_of(b)->own;
  job p = {b, NULL, by};
  ng_parallel(b->ctx, s->pieces, combine_piece, &p);
}

/* ---- life ------------------------------------------------------------------------------------*/

static void drop(ng_block *b, int64_t place) {
  const topk *s = ng_window_of(b)->own;
  const size_t k = (size_t)s->k, size = (size_t)ng_dtype_size(s->type);
  memset(s->index + place * s->k, 0, k * sizeof *s->index);
  memset(s->value + (size_t)place * k * size, 0, k * size);
  memset(s->begin + place * s->row_blocks, 0, (size_t)s->row_blocks * sizeof *s->begin);
}

static float *left(ng_block *b) { return ((topk *)ng_window_of(b)->own)->next; }

static void taken(ng_block *b) {
  topk *s = ng_window_of(b)->own;
  float *error = s->next;
  s->next = s->error;
  s->error = error;
}

static ng_status fields(ng_block *b, ng_field_visit visit, void *arg) {
  const ng_window *w = ng_window_of(b);
  const topk *s = w->own;
  const int32_t owner = b->owner, ranks = b->ctx->ranks + 1;
  ng_field f[] = {
      ng_field_plain("values", s->type, w->places, s->all, s->value, owner),
      ng_field_plain("indices", NG_U8, w->places, 2 * s->all, s->index, owner), /* 16 bits each */
      ng_field_plain("begins", NG_I32, w->places, s->all_blocks, s->begin, owner),
      ng_window_field(b, "error", NG_F32, 1, s->error)};
  ng_status st = NG_OK;
  for (int i = 0; i < 4 && st == NG_OK; i++) {
    if (i < 3 && w->sliced && !s->joint) f[i].slice = s->cut + i * ranks;
    st = visit(arg, &f[i]);
  }
  return st;
}

const ng_window_store ng_window_topk_store = {
    .name = "topk",
    .cut_at = cut_at,
    .plan = plan,
    .target = target,
    .enter = enter,
    .choose = choose_jointly,
    .products = products,
    .combine = combine,
    .drop = drop,
    .left = left,
    .taken = taken,
    .release = release,
    .fields = fields,
};
