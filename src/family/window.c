/* window.c: the window family: M-FAC and GGT over all parameters at once, or over each.
 *
 *   observe   store the gradient (plus window_decay times the weights) as the row at head; the block's statistic is
 *             the new row of the Gram matrix: products of this row with the rows in use, in double
 *   precondition, read_sums   compute coefficients from the Gram matrix (window_solve.c), the direction
 *             u = by x + G' c, momentum, and <D, u>, |D|^2, |u|^2
 *   emit      describe u
 *   end_step  if the step counts, advance head and momentum; the row at head is then unused
 *
 * In steps that stat_period leaves out, no row enters and x is the gradient.  All ranks have the same gradients, so
 * each rank computes all elements or, with statistics = sharded, its slice.
 *
 * window_momentum mu, v from 0: average u <- mu v + (1 - mu) u, v <- u; heavy-ball u <- mu v + u, v <- u; gradient
 * x <- mu v + (1 - mu) x, v <- x, where u is the direction of the new x (GGT's beta1). */
#include "family/window.h"

static bool accepts_entry(const ng_settings *o, const ng_entry *e) {
  (void)e;
  return ng_is(o->family, "window");
}

/* ---- geometry --------------------------------------------------------------------------------*/

static ng_status create_state(ng_block *b) {
  ng_window *w = b->state = ng_object(b->p, sizeof *w);
  if (w == NULL) return NG_ERR_NOMEM;
  if (!ng_blas_accepts_order(b->base.window)) {
    return ng_fail(b->ctx, NG_ERR_ARG, "window = %lld: exceeds 32-bit LAPACK",
                   (long long)b->base.window);
  }
  w->store = b->base.window_store == NG_STORE_DENSE     ? &ng_window_dense
             : b->base.window_store == NG_STORE_LOWRANK ? &ng_window_lowrank_store
                                                        : &ng_window_topk_store;
  w->m = b->base.window;
  w->places = w->m + 1;
  w->row_place = ng_object(b->p, (size_t)w->places * sizeof *w->row_place);
  return w->row_place == NULL ? NG_ERR_NOMEM : ng_window_set_layout(b);
}

/* "row": the new rows of the Gram matrices.  "along": <row, x> for an x that is not the row at head. */
static ng_status declare_statistics(ng_block *b) {
  static const char *const name[] = {"row", "along"};
  const ng_window *w = ng_window_of(b);
  ng_status st = ng_block_alloc_stats(b, 2);
  for (int32_t i = 0; i < b->stats && st == NG_OK; i++) {
    ng_stat *s = &b->stat[i];
    st = ng_stat_alloc_parts(b, s, 1, 1);
    if (st != NG_OK) return st;
    s->name = name[i];
    s->observed = NG_OBSERVED_FLATGRAD;
    s->sum_dtype = NG_F64;
    s->spread = w->is_sliced ? NG_SPREAD_ALL : NG_SPREAD_SAME;
    s->every_step = i == 1 || ng_window_is_adaptive(&b->base);
    s->own_message = true;
    s->part->rows = w->parts;
    s->part->cols = w->places;
  }
  if (w->is_sliced) b->slice = w->cut;
  return st;
}

static double *request_doubles(ng_plan *plan, ng_use use, int64_t a, int64_t b) {
  return ng_plan_take(plan, use, ng_times(ng_times(a, b), (int64_t)sizeof(double)));
}

static float *request_vector(ng_plan *plan, ng_use use, const ng_window *w) {
  return ng_plan_take(plan, use, ng_times(ng_max64(1, w->d), (int64_t)sizeof(float)));
}

static void request_part_memory(ng_block *b, ng_plan *plan) {
  ng_window *w = ng_window_of(b);
  const bool mfac = ng_is_mfac(b->base.window_function), average = ng_window_x_is_average(b);
  const int64_t row = w->places, square = ng_times(row, row);
  double *gram = request_doubles(plan, NG_USE_FACTORS, w->parts, square);
  double *c = request_doubles(plan, NG_USE_SUMS, w->parts, row);
  double *factor = mfac ? request_doubles(plan, NG_USE_FACTORS, w->parts, square) : NULL;
  double *now = average ? request_doubles(plan, NG_USE_FACTORS, w->parts, row) : NULL;
  double *next = average ? request_doubles(plan, NG_USE_SUMS, w->parts, row) : NULL;
  for (int32_t i = 0; i < w->parts && gram != NULL; i++) {
    ng_window_part *p = &w->part[i];
    p->gram = gram + i * square;
    p->c = c + i * row;
    if (mfac) p->factor = factor + i * square;
    if (average) p->row_coefficient = now + i * row;
    if (average) p->next_row_coefficient = next + i * row;
  }
}

static ng_status request_memory(ng_block *b, ng_plan *plan) {
  ng_window *w = ng_window_of(b);
  const bool first = ng_window_is_adaptive(&b->base),
             adam = b->base.window_function == NG_WINDOW_ADAM;
  const bool momentum = b->base.window_momentum > 0.0 || adam;
  const ng_status st = w->store->request_memory(b, plan);
  if (st != NG_OK) return st;
  request_part_memory(b, plan);
  if (b->base.window_mask) w->mask = ng_plan_take(plan, NG_USE_FACTORS, ng_max64(1, w->d));
  if (w->is_sliced) {
    b->whole_direction =
        ng_plan_take(plan, NG_USE_SUMS, ng_times(w->d_all, (int64_t)sizeof(float)));
    w->u = b->whole_direction == NULL ? NULL : b->whole_direction + w->first_element;
  } else {
    w->u = request_vector(plan, NG_USE_SUMS, w);
  }
  if (momentum) w->v = request_vector(plan, NG_USE_FACTORS, w);
  if (adam || b->base.window_function == NG_WINDOW_ADAGRAD) {
    w->s = request_vector(plan, NG_USE_FACTORS, w);
    w->next_s = request_vector(plan, NG_USE_SUMS, w);
  }
  /* Otherwise commit swaps u and v. A slice of u is in b->whole_direction, so it cannot be swapped. */
  if (momentum && (first || w->is_sliced || b->base.window_momentum_form == NG_MOMENTUM_GRADIENT)) {
    w->next_v = request_vector(plan, NG_USE_SUMS, w);
  }
  w->results = request_doubles(plan, NG_USE_SUMS, NG_FLAT_OPS, 3);
  w->sums = request_doubles(plan, NG_USE_SUMS, w->chunks + w->units, 3);
  w->unit_products = request_doubles(plan, NG_USE_SUMS, w->units, w->places);
  w->work = ng_plan_take(plan, NG_USE_SUMS, ng_window_work_bytes(b));
  return NG_OK;
}

static ng_status set_initial_values(ng_block *b) {
  const ng_window *w = ng_window_of(b);
  for (int32_t k = 0; k < b->segments && w->mask != NULL; k++) {
    const ng_slot *s = b->segment[k].slot;
    if (s->weight.data != NULL) continue;
    return ng_fail(b->ctx, NG_ERR_STATE,
                   "'%s': its weight is not bound, and window_mask needs it at ng_ready", s->name);
  }
  if (w->mask != NULL) ng_window_run_pass(b, (ng_flat_pass){.op = NG_FLAT_MASK});
  if (w->store->set_initial_values != NULL) w->store->set_initial_values(b);
  ng_queue_wait(b->ctx->queue);
  return NG_OK;
}

static ng_status check_weights_bound(const ng_block *b) {
  for (int32_t k = 0; k < b->segments && b->base.window_decay > 0.0; k++) {
    const ng_slot *s = b->segment[k].slot;
    if (b->base.window_decay_form == NG_DECAY_NONE || s->weight.data != NULL || s->is_excluded)
      continue;
    return ng_fail(b->ctx, NG_ERR_STATE, "'%s': its weight is not bound, and window_decay needs it",
                   s->name);
  }
  return NG_OK;
}

/* ---- the rows of a step ----------------------------------------------------------------------*/

static ng_rows rows_in_use(ng_block *b) {
  const ng_window *w = ng_window_of(b);
  ng_rows G = w->store->describe_rows(b);
  G.places = w->places;
  G.used = w->rows;
  G.head = ng_window_head(w);
  G.place = w->row_place;
  G.partial_sums = w->unit_products;
  return G;
}

/* u <- by u + G' c, with by and c of each part. */
static void combine_rows(ng_block *b) {
  const ng_window *w = ng_window_of(b);
  ng_rows G = rows_in_use(b);
  G.c = w->part->c;
  G.by = w->u_scales;
  G.u = w->u;
  ng_kernels(b->ctx->queue)->combine_rows(b->ctx->queue, &G, 1);
}

void ng_window_combine_rows(ng_block *b, double by) {
  ng_window *w = ng_window_of(b);
  for (int32_t i = 0; i < w->parts; i++) {
    *w->part[i].u_scale = by;
  }
  combine_rows(b);
}

/* Return whether x is the row at head; the Gram matrix then has the products of x. */
static bool is_x_the_head_row(const ng_block *b, bool fresh) {
  return fresh && !ng_window_x_is_average(b);
}

/* u <- the gradient x, or, if x is an average r + G'b, its part r (window.h). */
static void copy_x_or_r(ng_block *b, bool fresh) {
  ng_window *w = ng_window_of(b);
  if (ng_window_x_is_average(b)) {
    ng_window_compute_average(b, fresh);
  } else {
    ng_window_read_gradients(b, w->u);
  }
  ng_window_list_used(w, fresh);
}

/* k [parts, places] += <row, x> for all rows in use; x NULL: x is the row at head. */
static void add_row_products(ng_block *b, const float *x, double *k) {
  const ng_window *w = ng_window_of(b);
  ng_rows G = rows_in_use(b);
  G.x = x == NULL && G.kind == NG_ROWS_WHOLE ? w->x : x;
  G.k = k;
  ng_kernels(b->ctx->queue)->multiply_rows(b->ctx->queue, &G, 1);
}

/* k [parts, places] += <row, u> for all rows in use, and <u, u> at the unused place. */
static void add_vector_products(ng_block *b, double *k) {
  const ng_window *w = ng_window_of(b);
  const int64_t unused = ng_window_unused_place(w);
  const ng_rows one = {.kind = NG_ROWS_WHOLE,
                       .dtype = NG_F32,
                       .range = w->flat,
                       .ranges = w->segments,
                       .places = w->places,
                       .used = 1,
                       .place = &unused,
                       .value = w->u,
                       .partial_sums = w->sums,
                       .x = w->u,
                       .k = k};
  add_row_products(b, w->u, k);
  ng_kernels(b->ctx->queue)->multiply_rows(b->ctx->queue, &one, 1);
}

/* Add the new Gram row to its statistic, and the products with x unless x is the row at head.  If sliced, products are
 * sums over ranks, which the engine forms before `precondition`. */
static void add_all_products(ng_block *b, bool fresh) {
  if (ng_window_is_adaptive(&b->base)) return;
  if (fresh) add_row_products(b, NULL, b->stat->part->sum);
  if (is_x_the_head_row(b, fresh)) return;
  copy_x_or_r(b, fresh);
  add_vector_products(b, b->stat[1].part->sum);
}

/* Store the gradient as the row at head.  If ranks select entries jointly, the row enters in select_topk, after `check`
 * found all gradients finite. */
static void enter_gradient(ng_block *b, double lr) {
  ng_window *w = ng_window_of(b);
  w->next_lr = lr;
  w->input_scale = ng_window_feeds_lr(b) ? lr : 1.0;
  w->x = w->store->entering_vector(b);
  ng_window_read_gradients(b, w->x);
  if (ng_window_is_adaptive(&b->base)) ng_window_compute_adaptive_input(b);
  b->is_selecting = b->topk_rounds > 0;
  if (!b->is_selecting) w->store->enter_row(b);
}

/* After a skipped step: the place at head may hold numbers that are not finite, which ng_load refuses, so enter zeros.  No
 * other array that the step has written is saved or read in a later step. */
static void zero_head_row(ng_block *b) {
  ng_window *w = ng_window_of(b);
  ng_queue *q = b->ctx->queue;
  w->x = w->store->entering_vector(b);
  ng_linalg(q)->scale(q, w->d, w->x, NG_F32, 0.0);
  w->store->enter_row(b);
  ng_queue_wait(q);
}

static ng_status check_gradients_finite(ng_block *b) {
  const ng_status st = ng_window_check_gradients(b);
  if (st != NG_OK) zero_head_row(b);
  return st;
}

static ng_status observe(ng_block *b, const ng_obs *o) {
  ng_window *w = ng_window_of(b);
  const bool fresh = b->stat->is_due;
  const ng_status st = check_weights_bound(b);
  b->is_selecting = false;
  memset(w->results, 0, 3 * NG_FLAT_OPS * sizeof *w->results);
  if (st != NG_OK) return st;
  w->drops_rows = fresh && w->lr > 0.0 && o->lr <= b->base.window_empty * w->lr;
  ng_window_list_used(w, fresh);
  if (fresh) enter_gradient(b, o->lr);
  if (!b->is_selecting) add_all_products(b, fresh);
  return NG_OK;
}

static void select_topk(ng_block *b, int32_t round, double *x) {
  ng_window *w = ng_window_of(b);
  w->store->select_topk(b, round, x);
  ng_window_list_used(w, true);
  if (round == b->topk_rounds) add_all_products(b, true);
}

/* ---- the direction ---------------------------------------------------------------------------*/

/* Return whether window_fill is `how` and the window is not full. */
static bool has_partial_fill(const ng_block *b, ng_window_fill how) {
  const ng_window *w = ng_window_of(b);
  return b->base.window_fill == how && (w->drops_rows || ng_window_count(w) < w->m);
}

/* u <- gradient - row at head. The two nearly cancel, so the caller adds decay only after this difference is rounded. */
static void subtract_stored(ng_block *b) {
  ng_window *w = ng_window_of(b);
  ng_window_read_gradients(b, w->u);
  ng_window_add_head(b, 1.0, -1.0);
  ng_window_list_used(w, true);
}

/* Elements that become non-finite here are found by the sums that `read_sums` reads. */
static void add_decay(ng_block *b, double decay) {
  ng_window_run_pass(b,
                     (ng_flat_pass){.op = NG_FLAT_DECAY, .to = ng_window_of(b)->u, .take = decay});
}

static void compute_row_direction(ng_block *b) {
  ng_window *w = ng_window_of(b);
  ng_queue *q = b->ctx->queue;
  const bool rest = b->base.window_fill == NG_FILL_ADDED || has_partial_fill(b, NG_FILL_REST);
  const bool decay = ng_window_has_decay(b, NG_DECAY_DIRECTION);
  if (rest && decay) subtract_stored(b);
  w->solve_status = ng_window_solve(b, NULL, rest);
  if (rest && !decay) { /* add (gradient - row) / damping in the same combination */
    ng_window_read_gradients(b, w->u);
    for (int32_t i = 0; i < w->parts; i++) {
      w->part[i].c[ng_window_head(w)] -= 1.0 / b->base.damping;
    }
  } else if (!rest && decay) {
    ng_linalg(q)->scale(q, w->d, w->u, NG_F32, 0.0);
  }
  if (decay) add_decay(b, b->base.window_decay);
  ng_window_combine_rows(b, rest || decay ? 1.0 / b->base.damping : 0.0);
  const bool error = has_partial_fill(b, NG_FILL_ERROR);
  if (!error && !has_partial_fill(b, NG_FILL_GRADIENT)) return;
  ng_window_run_pass(b, (ng_flat_pass){.op = NG_FLAT_FILL, .to = w->u, .x = error ? w->x : NULL});
}

/* u <- the direction of an x that is not the row at head. */
static void compute_x_direction(ng_block *b) {
  ng_window_of(b)->solve_status = ng_window_solve(b, b->stat[1].part->sum, false);
  combine_rows(b);
  /* Add decay / lambda last: inside x, decay would be rounded together with g, before most of x / lambda cancels. */
  if (ng_window_has_decay(b, NG_DECAY_DIRECTION))
    add_decay(b, b->base.window_decay / b->base.damping);
}

static void precondition(ng_block *b) {
  ng_window *w = ng_window_of(b);
  const bool fresh = b->stat->w > 0.0, adaptive = ng_window_is_adaptive(&b->base);
  const double mu = b->base.window_momentum;
  w->solve_status = NG_OK;
  ng_window_list_used(w, fresh);
  if (fresh) ng_window_set_gram_row(w, b->stat->part->sum);
  if (adaptive) {
    ng_window_compute_adaptive_direction(b);
  } else if (is_x_the_head_row(b, fresh)) {
    compute_row_direction(b);
  } else {
    compute_x_direction(b);
  }
  if (mu > 0.0 && !adaptive && b->base.window_momentum_form != NG_MOMENTUM_GRADIENT) {
    const bool average = b->base.window_momentum_form == NG_MOMENTUM_AVERAGE;
    ng_window_mix_vectors(b, w->u, w->v, w->u, mu, average ? 1.0 - mu : 1.0);
    if (w->next_v != NULL) ng_window_copy_vector(b, w->u, w->next_v);
  }
  ng_window_run_pass(b, (ng_flat_pass){.op = NG_FLAT_MEASURE, .to = w->u});
}

static ng_status read_sums(ng_block *b) {
  const ng_window *w = ng_window_of(b);
  const double *result = ng_read_numbers(b->ctx->queue, w->results);
  const double *sum = result + 3 * NG_FLAT_MEASURE;
  if (!(sum[1] - sum[1] == 0.0)) {
    return ng_fail(b->ctx, NG_SKIPPED, "%s: a gradient is not finite", b->name);
  }
  b->inner = sum[0];
  b->d2 = sum[1];
  b->pd2 = sum[2];
  const double kept = result[3 * NG_FLAT_MIX] + result[3 * NG_FLAT_ADAM] +
                      result[3 * NG_FLAT_LIMIT] + result[3 * NG_FLAT_DIVIDE];
  if (kept == 0.0) return w->solve_status;
  return ng_fail(b->ctx, NG_RESCUED,
                 "%s: elements of momentum or error feedback that are not finite kept their old "
                 "value (elements: %lld)",
                 b->name, (long long)kept);
}

static void emit(const ng_block *b, int32_t segment, int32_t g, double factor, ng_direction *e) {
  const ng_window *w = ng_window_of(b);
  const int64_t cols = b->segment[segment].slot->cols;
  (void)g, (void)factor;
  e->is_stored = true;
  e->u = (w->is_sliced ? b->whole_direction : w->u) + w->segment[segment].global_begin +
         e->D.row * cols + e->D.col;
  e->u_row = cols;
}

/* ---- life ------------------------------------------------------------------------------------*/

/* Drop all rows except the one at head. */
static void drop_other_rows(ng_window *w) {
  for (int64_t place = 0; place < w->places; place++) {
    if (place != ng_window_head(w)) ng_window_clear_gram_row(w, place);
  }
  w->count = 0.0;
}

static void end_step(ng_block *b, bool step_counts) {
  ng_window *w = ng_window_of(b);
  const bool fresh = b->stat->w > 0.0;
  if (step_counts && w->v != NULL)
    ng_window_swap_vectors(&w->v, w->next_v != NULL ? &w->next_v : &w->u);
  if (step_counts && fresh && ng_window_is_adaptive(&b->base)) ng_window_commit_adaptive(b);
  if (step_counts && ng_window_x_is_average(b)) ng_window_commit_average(b);
  if (fresh) ng_window_commit_factor(w, step_counts);
  if (step_counts && fresh) {
    const bool idle = ng_window_is_adaptive(&b->base) && w->input_scale == 0.0;
    if (w->store->end_step != NULL && !idle) w->store->end_step(b);
    if (w->drops_rows) drop_other_rows(w);
    w->head = (double)((ng_window_head(w) + 1) % w->places);
    w->count = (double)ng_min64(ng_window_count(w) + 1, w->m);
    w->lr = w->next_lr;
  }
  w->drops_rows = false;
  if (!step_counts) zero_head_row(b);
  if (!step_counts || fresh) ng_window_clear_gram_row(w, ng_window_head(w));
}

static void visit_fields(ng_block *b, ng_field_visit visit, void *arg) {
  const ng_window *w = ng_window_of(b);
  const int64_t n = w->places, all = w->parts * n;
  ng_field f[NG_WINDOW_FIELDS + 6];
  int32_t fields = w->store->list_fields(b, f);
  f[fields++] = ng_field_plain("gram", NG_F64, all, n, w->part->gram, b->owner);
  f[fields++] = ng_field_plain("factor", NG_F64, all, n, w->part->factor, b->owner);
  f[fields++] = ng_field_plain("along", NG_F64, w->parts, n, w->part->row_coefficient, b->owner);
  f[fields++] = ng_window_field(b, "momentum", NG_F32, 1, w->v);
  f[fields] = ng_window_field(b, "second", NG_F32, 1, w->s);
  f[fields++].is_nonnegative = true;
  f[fields++] = ng_window_field(b, "mask", NG_U8, 1, w->mask);
  for (int32_t i = 0; i < fields; i++) {
    if (f[i].data != NULL) visit(arg, &f[i]);
  }
}

static void visit_numbers(ng_block *b, ng_number_visit visit, void *arg) {
  ng_window *w = ng_window_of(b);
  const ng_settings *o = &b->base;
  const bool saved[] = {true, true, ng_is_mfac(o->window_function), o->window_empty > 0.0,
                        o->window_function == NG_WINDOW_ADAM};
  ng_number n[] = {{.name = "head", .value = &w->head},
                   {.name = "count", .value = &w->count},
                   {.name = "factored", .value = &w->factor_damping},
                   {.name = "lr", .value = &w->lr},
                   {.name = "updates", .value = &w->updates}};
  for (int i = 0; i < 5; i++) {
    if (saved[i]) visit(arg, &n[i]);
  }
}

const ng_family ng_family_window = {
    .name = "window",
    .traits = NG_TRAIT_WINDOW,
    .observed = NG_OBSERVED_FLATGRAD,
    .scope = NG_SCOPE_MODEL,
    .detects_nonfinite = true,
    .can_exclude = true,
    .accepts_entry = accepts_entry,
    .check_options = ng_window_check_options,
    .create_state = create_state,
    .declare_statistics = declare_statistics,
    .request_memory = request_memory,
    .observe = observe,
    .check_gradients_finite = check_gradients_finite,
    .precondition = precondition,
    .read_sums = read_sums,
    .select_topk = select_topk,
    .emit = emit,
    .set_initial_values = set_initial_values,
    .visit_fields = visit_fields,
    .visit_numbers = visit_numbers,
    .end_step = end_step,
};
