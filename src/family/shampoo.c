/* shampoo.c: Shampoo: a gradient times roots of the Gram matrices of its axes (Gupta et al. 2018, arXiv 1802.09568, as
 * facebookresearch/optimizers computes it: Shi et al. 2023, arXiv 2309.06497).
 *
 * In: gradients. Of a piece of a parameter (families_pieces.c) with the gradient D and K axes, L_k of axis k the sum (stat_decay
 * = 1) or average of D_(k) D_(k)'; t counts the steps of the model from 1, also for a block without a gradient:
 *
 *     X_k = (L_k / c + damping I)^(-1/(2K)),   c = 1 - stat_decay^t, or 1 for a sum
 * or with the exponents of root_exponents; root_trace divides L_k / c by the square root of its trace first.
 *
 *     F = (beta3 M + (1 - beta3) D) / (1 - beta3 beta1^(t-1)),   M <- beta1 M + (1 - beta1) D
 *     PD = P |S| / |P|,   P = F times all X_k,   S the step that `grafting` selects; without grafting PD = P
 *
 * gram_form = kl (Lin et al. 2025, arXiv 2509.03378): with the L_j of all other axes and their roots X_j,
 *
 *     L_k <- stat_decay L_k + (1 - stat_decay) T_(k) T_(k)' / m,   T = D times all X_j, j != k;  m the product of their lengths
 *     X_k = (L_k + damping tr(L_k) / n_k I)^(-1/2)
 *
 * L_1 x L_2 has the scale of D D'. So L_k starts from s^(2/K) I, with s the root mean square of the first gradient that is
 * not zero: from L = 0 the matrices would need hundreds of steps. Between this gradient and the next solve X_j is s^(-1/K) I,
 * with the s of each gradient, so PD = F / s.
 *
 * with beta1 = first_decay, beta3 = filter_decay, or 0 if beta1 = 0. Before solve_start PD = S, without grafting F.
 * With stat_period c counts the steps of L only. L_k, X_k, M and V belong to the owner of the block. */
#include "family/axes.h"

#include <math.h>

enum { SUM_INNER, SUM_D2, SUM_P2, SUM_S2, SUMS }; /* <P, D>, |D|^2, |P|^2, |S|^2 of a piece */

typedef struct ng_shampoo {
  ng_grams grams; /* list: the pieces; matrix: L_k, R: X_k; moments: M, and V if grafting has one */
  bool has_roots;
  double *sums, *by; /* [pieces, SUMS]; [pieces] factor of P */
  double *size;      /* kl: [pieces] s where X_j is s^(-1/K) I, else 0 */
  bool has_started;  /* kl: no L_k is 0 */
} ng_shampoo;

static ng_shampoo *shampoo_of_block(const ng_block *b) { return b->state; }

static bool is_kl(const ng_block *b) { return b->base.gram_form == NG_GRAMS_KL; }

/* V is in the eigenbases of L; R of a matrix is the basis. */
static bool has_bases(const ng_block *b) { return b->base.gram_form >= NG_GRAMS_EIGEN; }

static bool has_second_moment(const ng_block *b) {
  return b->base.grafting >= NG_GRAFT_ADAM || has_bases(b);
}

/* Return t. */
static double step_of_block(const ng_block *b) { return (double)b->p->steps + 1.0; }

/* ---- geometry, memory ------------------------------------------------------------------------*/

static bool accepts_entry(const ng_settings *o, const ng_entry *e) {
  (void)e;
  return ng_is(o->family, "shampoo");
}

static ng_status check_options(const ng_options *o, char *message, size_t size) {
  static const ng_option_id unused[] = {NG_OPTION_basis_moments, NG_OPTION_normalize,
                                        NG_OPTION_adam_lr, NG_OPTION_vector_factor};
  const bool bases = o->base.gram_form >= NG_GRAMS_EIGEN;
  const ng_refusal list[] = {{o->base.stat_start != NG_START_ZERO, NG_OPTION_stat_start,
                              ": the bias correction of L requires zero"},
                             {o->base.refresh_tolerance > 0.0, NG_OPTION_refresh_tolerance,
                              ": the bias correction of L requires a fixed stat_period; set 0"},
                             {o->base.gram_form == NG_GRAMS_KL && o->base.stat_decay == 1.0,
                              NG_OPTION_stat_decay, ": gram_form = kl requires a value below 1"},
                             {o->base.gram_form == NG_GRAMS_KL && o->base.root_trace,
                              NG_OPTION_root_trace, ": gram_form = kl requires 0"},
                             {o->base.gram_form == NG_GRAMS_KL && o->root_exponents[0] != 0,
                              NG_OPTION_root_exponents, ": gram_form = kl has the exponent 1/2"},
                             {bases && o->base.grafting != NG_GRAFT_NONE, NG_OPTION_grafting,
                              ": gram_form = eigen and qr require none"}};
  ng_status st = ng_family_check_others(
      NG_TRAIT_AXES | NG_TRAIT_ROOTS | NG_TRAIT_MOMENTS | NG_TRAIT_SOLVES, o, message, size);
  if (st == NG_OK) st = ng_family_check_list(list, 6, o, message, size);
  return st == NG_OK ? ng_family_check_unused(unused, bases ? 3 : 4,
                                              "Shampoo does not use this option", o, message, size)
                     : st;
}

static ng_status set_matrices(ng_block *b) {
  ng_shampoo *k = shampoo_of_block(b);
  int64_t largest = 0;
  for (int32_t i = 0; i < k->grams.count; i++) {
    const ng_axes *a = &k->grams.list[i].axes;
    for (int32_t axis = 0; axis < a->count; axis++) {
      const int32_t part = k->grams.list[i].part[axis];
      double e;
      (void)ng_exponents_find(b->p->opt.root_exponents, a->count, axis, &e);
      if (part < 0) continue;
      k->grams.matrix[part] = (ng_matrix){.result = has_bases(b) ? NG_RESULT_EIGEN : NG_RESULT_ROOT,
                                          .n = a->length[axis],
                                          .p = e > 0.0    ? 1.0 / e
                                               : is_kl(b) ? 2.0
                                                          : 2.0 * a->count,
                                          .scale = 1.0,
                                          .average_dtype = NG_F32,
                                          .result_dtype = NG_F32};
      largest = ng_max64(largest, a->length[axis]);
    }
  }
  (void)snprintf(b->entry->why, sizeof b->entry->why, "L: %d matrices up to %lldx%lld of %d pieces",
                 k->grams.matrices, (long long)largest, (long long)largest, k->grams.count);
  return ng_grams_check_orders(b, "lower max_axis");
}

static ng_status create_state(ng_block *b) {
  ng_shampoo *k = b->state = ng_object(b->p, sizeof *k);
  const int64_t pieces = ng_pieces_count(b);
  if (k == NULL) return NG_ERR_NOMEM;
  if (pieces > NG_LIST_MOST / NG_AXES_MOST) {
    return ng_fail(b->ctx, NG_ERR_ARG,
                   "layer '%s': max_axis = %lld cuts it into more than %lld pieces; raise max_axis",
                   b->name, (long long)b->base.max_axis, (long long)(NG_LIST_MOST / NG_AXES_MOST));
  }
  k->grams.count = (int32_t)pieces;
  k->grams.list = ng_object(b->p, (size_t)pieces * sizeof *k->grams.list);
  k->grams.matrix = ng_object(b->p, (size_t)pieces * NG_AXES_MOST * sizeof *k->grams.matrix);
  k->sums = ng_object(b->p, (size_t)pieces * SUMS * sizeof *k->sums);
  k->by = ng_object(b->p, (size_t)pieces * sizeof *k->by);
  k->size = ng_object(b->p, (size_t)pieces * sizeof *k->size);
  if (ng_objects_status(b->p) != NG_OK) return NG_ERR_NOMEM;
  b->matrices = k->grams.matrices = ng_pieces_of_block(b, k->grams.list);
  if (b->matrices == 0) {
    b->solves = false;
    b->observed = 0;
  }
  const ng_status st = set_matrices(b);
  return st == NG_OK ? ng_moments_create(b, &k->grams.moments) : st;
}

/* Return the floats of scratch for one piece of a parameter: its D, F, S, P (formulas above), the scratch of twosided/, all X_k
 * as full matrices. */
static int64_t piece_scratch(const ng_axes *a) {
  int64_t floats = ng_axes_scratch(a);
  for (int32_t i = 0; i < 4; i++) {
    floats = ng_plus(floats, ng_round16(ng_axes_elements(a)));
  }
  return floats;
}

/* Scratch: D, F and S of the block, then the scratch of a piece. */
static int64_t scratch_floats(const ng_block *b) {
  const ng_shampoo *k = shampoo_of_block(b);
  int64_t most = ng_axes_block_scratch(b, k->grams.list, k->grams.count);
  for (int32_t i = 0; i < k->grams.count; i++) {
    most = ng_max64(most, piece_scratch(&k->grams.list[i].axes));
  }
  most = ng_plus(most, ng_times(3, ng_round16(ng_axes_elements_of_block(b))));
  for (int32_t i = 0; i < k->grams.matrices; i++) {
    most = ng_max64(most, ng_matrix_scratch(b->ctx->queue, &k->grams.matrix[i]));
  }
  return most;
}

static int32_t owner_of_block(const ng_block *b) {
  return b->matrices > 0 ? b->stat->owner : b->owner;
}

static ng_status request_memory(ng_block *b, ng_plan *plan) {
  ng_shampoo *k = shampoo_of_block(b);
  const int64_t real = (int64_t)sizeof(float);
  const int64_t all = ng_axes_elements_of_block(b);
  const int32_t owner = owner_of_block(b);
  if (b->is_worker && b->solves) k->grams.info = ng_plan_result(plan, owner, NG_GRAMS_INFO * real);
  for (int32_t i = 0; i < k->grams.matrices && b->is_worker; i++) {
    ng_matrix *m = &k->grams.matrix[i];
    m->R = ng_plan_result(plan, owner, ng_matrix_count(m) * real);
    if (has_bases(b)) m->d = ng_plan_result(plan, owner, m->n * real);
  }
  if (b->is_worker) {
    ng_moments_request(plan, &k->grams.moments, has_second_moment(b) ? 2 : 1, NG_USE_MOMENTS,
                       NG_USE_MOMENTS);
  }
  if (b->solves) {
    ng_plan_direction(plan, b, NG_BY_FAMILY, all);
  } else {
    b->direction = ng_plan_take(plan, NG_USE_MOMENTS, all * real);
  }
  ng_plan_scratch(plan, ng_times(scratch_floats(b), real));
  return NG_OK;
}

static ng_status set_initial_values(ng_block *b) {
  const ng_shampoo *k = shampoo_of_block(b);
  ng_queue *q = b->ctx->queue;
  for (int32_t i = 0; i < k->grams.matrices && b->is_worker; i++) {
    const ng_matrix *m = &k->grams.matrix[i];
    float *R = m->R;
    if (!has_bases(b)) ng_linalg(q)->shift_diagonal(q, m->n, R, NG_F32, false, 1.0);
    for (int64_t j = 0; j < m->n && has_bases(b); j++) {
      R[j * (m->n + 1)] = 1.0F;
    }
  }
  ng_queue_wait(q);
  return NG_OK;
}

/* ---- statistics ------------------------------------------------------------------------------*/

/* Enqueue: the bases of *axes <- the roots X_k of a piece, unpacked to X. */
static void unpack_roots(const ng_block *b, const ng_axes_parameter *p, ng_axes *axes, float *X) {
  ng_queue *q = b->ctx->queue;
  for (int32_t axis = 0; axis < axes->count; axis++) {
    if (p->part[axis] < 0) continue;
    const ng_matrix *m = &ng_grams_of_block(b)->matrix[p->part[axis]];
    ng_linalg(q)->unpack(q, m->n, m->R, NG_F32, X, m->n);
    axes->basis[axis] = X;
    X += ng_round16(m->n * m->n);
  }
}

static bool has_piece_roots(const ng_shampoo *k, const ng_axes_parameter *p) {
  return k->has_roots && *(const float *)k->grams.matrix[p->part[0]].R != 0.0F;
}

/* kl: set `size` of all pieces with the gradient D; is_new: L_k of the piece is 0. */
static bool measure_start(ng_block *b, const float *D, float *room, int32_t i) {
  ng_shampoo *k = shampoo_of_block(b);
  ng_queue *q = b->ctx->queue;
  const ng_axes_parameter *p = &k->grams.list[i];
  const int64_t n = ng_axes_elements(&p->axes);
  ng_matrix *m = &k->grams.matrix[p->part[0]];
  double *d2 = k->sums + (int64_t)SUMS * i + SUM_D2;
  k->size[i] = 0.0;
  const bool has_roots = has_piece_roots(k, p);
  if (k->has_started && has_roots) return false;
  m->F = b->stat->part[p->part[0]].average;
  ng_linalg(q)->sum_squares(q, 1, n, ng_piece_gather(q, p, D, room), NG_F32, n, d2);
  ng_matrix_measure(q, m);
  ng_queue_wait(q);
  const bool is_new = *ng_read_numbers(q, &m->trace) == 0.0;
  const double size = sqrt(*ng_read_numbers(q, d2) / (double)n);
  if (isfinite(size) && (is_new || !has_roots)) k->size[i] = size;
  return is_new;
}

/* kl: add the matrices of piece i to the sums. */
static bool add_kl_grams(ng_block *b, int32_t i, const float *D, float *scratch) {
  ng_shampoo *k = shampoo_of_block(b);
  ng_queue *q = b->ctx->queue;
  const ng_axes_parameter *p = &k->grams.list[i];
  const int64_t n = ng_axes_elements(&p->axes), room = ng_round16(n);
  const double fresh = b->stat->mix.fresh, decay = b->base.stat_decay, count = p->axes.count;
  ng_axes axes = p->axes;
  float *T = scratch + room, *rest = scratch + 4 * room;
  const bool is_new = measure_start(b, D, scratch, i);
  const double size = k->size[i], by = size > 0.0 ? pow(size, -2.0 * (count - 1.0) / count) : 1.0;
  D = ng_piece_gather(q, p, D, scratch);
  if (size == 0.0 && has_piece_roots(k, p)) unpack_roots(b, p, &axes, rest + room);
  for (int32_t axis = 0; axis < axes.count; axis++) {
    const int64_t length = axes.length[axis];
    float *sum = b->stat->part[p->part[axis]].sum;
    ng_axes others = axes;
    others.basis[axis] = NULL;
    ng_axes_rotate(q, &others, false, D, T, rest);
    ng_axes_add_gram(q, &axes, axis, T, (float)(fresh * by * (double)length / (double)n), sum,
                     scratch + 2 * room);
    if (is_new && size > 0.0) {
      ng_linalg(q)->shift_diagonal(q, length, sum, NG_F32, false,
                                   fresh * decay / (1.0 - decay) * pow(size, 2.0 / count));
    }
  }
  return !is_new;
}

static ng_status observe(ng_block *b, const ng_obs *o) {
  ng_shampoo *k = shampoo_of_block(b);
  float *D = ng_scratch(b);
  bool started = true;
  if (!is_kl(b)) return ng_grams_observe(b, o);
  ng_grams_read(b, D);
  for (int32_t i = 0; i < k->grams.count; i++) {
    started = add_kl_grams(b, i, D, D + ng_round16(ng_axes_elements_of_block(b))) && started;
  }
  k->has_started = started;
  return NG_OK;
}

/* ---- solve -----------------------------------------------------------------------------------*/

/* Return c. With stat_period L has the gradients of fewer steps. */
static double bias_of_average(const ng_block *b) {
  if (!b->base.bias_correction || is_kl(b) || b->base.stat_decay == 1.0) return 1.0;
  return 1.0 - pow(b->base.stat_decay, (double)(1 + b->p->steps / b->base.stat_period));
}

/* If a decomposition fails, the old X_k stays. */
static ng_status solve(ng_block *b, ng_solve_phase phase) {
  ng_shampoo *k = shampoo_of_block(b);
  const double c = bias_of_average(b), damping = b->base.damping;
  const bool is_traced = is_kl(b) || b->base.root_trace;
  int32_t worst = 0;
  if (!b->has_averages) return NG_OK;
  for (int32_t i = 0; i < k->grams.matrices; i++) {
    ng_matrix *m = &k->grams.matrix[i];
    m->F = b->stat->part[i].average;
    if (has_bases(b)) {
      const int32_t rung = ng_grams_solve_basis(b, m, phase, damping * c);
      worst = rung > worst ? rung : worst;
      continue;
    }
    if (phase == NG_SOLVE_MEASURE && is_traced) ng_matrix_measure(b->ctx->queue, m);
    if (phase == NG_SOLVE_LIST) {
      const double trace = is_traced ? *ng_read_numbers(b->ctx->queue, &m->trace) : 0.0;
      const double mean = is_kl(b) ? trace / (double)m->n : 1.0;
      m->scale = b->base.root_trace ? 1.0 / (c * sqrt(fmax(trace / c, damping))) : 1.0 / c;
      ng_block_list_matrix(b, m, 0.0, mean > 0.0 ? damping * mean : 1.0, 0.0); /* L = 0: X = I */
    }
    if (phase != NG_SOLVE_CLIMB) continue;
    const int32_t rung = ng_matrix_retry(b->ctx->queue, m, ng_scratch(b));
    worst = rung > worst ? rung : worst;
    if (is_kl(b) && *ng_read_numbers(b->ctx->queue, &m->trace) == 0.0) {
      ng_linalg(b->ctx->queue)->scale(b->ctx->queue, ng_matrix_count(m), m->R, NG_F32, 0.0);
      ng_queue_wait(b->ctx->queue); /* the next retry reads */
    }
  }
  return phase == NG_SOLVE_CLIMB ? ng_grams_store_rung(b, worst) : NG_OK;
}

static void read_results(ng_block *b) {
  ng_shampoo *k = shampoo_of_block(b);
  k->has_started = false; /* a loaded L_k may be 0 */
  k->has_roots = k->grams.info[NG_GRAMS_WERE_GOOD] != 0.0F;
}

/* ---- the direction ---------------------------------------------------------------------------*/

/* Return 1 / (1 - beta3 beta1^(t-1)), by which S of sgd, and P, must still be multiplied. */
static double filter_scale(const ng_block *b) {
  const double beta1 = b->base.first_decay;
  if (!b->base.bias_correction || beta1 == 0.0) return 1.0;
  return 1.0 / (1.0 - b->base.filter_decay * pow(beta1, step_of_block(b) - 1.0));
}

/* Enqueue F, without filter_scale, the new M and V, and S; S is D on entry. Without V S becomes F. */
static void filter(ng_block *b, const float *D, float *F, float *S) {
  ng_shampoo *k = shampoo_of_block(b);
  ng_moments *m = &k->grams.moments;
  const ng_settings *o = &b->base;
  const bool sums = o->grafting == NG_GRAFT_ADAGRAD;
  const double beta3 = o->first_decay > 0.0 ? o->filter_decay : 0.0;
  const double c =
      o->grafting == NG_GRAFT_ADAM ? 1.0 - pow(o->second_decay, step_of_block(b)) : 1.0;
  ng_moments_add(b, m, D, o->first_decay);
  ng_moments_pass(b, m,
                  (ng_flat_pass){.op = NG_FLAT_ADAM,
                                 .to = F,
                                 .v = m->moment[0],
                                 .x = S,
                                 .s = m->moment[1],
                                 .next_s = m->next[1],
                                 .old = beta3,
                                 .take = 1.0 - beta3,
                                 .forget = sums ? 1.0 : o->second_decay,
                                 .add = sums ? 1.0 : 1.0 - o->second_decay,
                                 .m = filter_scale(b),
                                 .m2 = 1.0 / c,
                                 .eps = o->moment_epsilon});
}

/* Enqueue P of piece i, in `direction`, and its sums. */
static void precondition_piece(ng_block *b, int32_t i, const float *D, const float *F,
                               const float *S, float *scratch) {
  ng_shampoo *k = shampoo_of_block(b);
  ng_queue *q = b->ctx->queue;
  const ng_axes_parameter *p = &k->grams.list[i];
  const int64_t n = ng_axes_elements(&p->axes), room = ng_round16(n);
  ng_axes axes = p->axes;
  double *sums = k->sums + (int64_t)SUMS * i;
  float *P = p->is_cut ? scratch + 3 * room : b->direction + p->at, *rest = scratch + 4 * room;
  D = ng_piece_gather(q, p, D, scratch);
  F = ng_piece_gather(q, p, F, scratch + room);
  S = ng_piece_gather(q, p, S, scratch + 2 * room);
  if (k->has_roots && (!is_kl(b) || has_piece_roots(k, p))) unpack_roots(b, p, &axes, rest + room);
  ng_axes_rotate(q, &axes, false, k->has_roots || b->base.grafting == NG_GRAFT_NONE ? F : S, P,
                 rest);
  ng_linalg(q)->sum_row_products(q, 1, n, P, n, D, n, sums);
  ng_linalg(q)->sum_squares(q, 1, n, S, NG_F32, n, sums + SUM_S2);
  ng_piece_scatter(q, p, P, b->direction);
}

static void precondition(ng_block *b) {
  ng_shampoo *k = shampoo_of_block(b);
  ng_queue *q = b->ctx->queue;
  const int64_t all = ng_axes_elements_of_block(b), room = ng_round16(all);
  float *D = ng_scratch(b), *F = D + room, *S = F + room;
  k->grams.total = (ng_direction_sums){.finite = 1};
  ng_axes_read_gradients(b, D, &k->grams.total.finite);
  if (has_bases(b)) {
    ng_grams_precondition(b, D, F, S, filter_scale(b));
    for (int32_t i = 0; i < k->grams.count; i++) {
      const ng_axes_parameter *p = &k->grams.list[i];
      const int64_t n = ng_axes_elements(&p->axes);
      const float *P = ng_piece_gather(q, p, b->direction, S + room),
                  *from = ng_piece_gather(q, p, D, S + room + ng_round16(n));
      ng_linalg(q)->sum_row_products(q, 1, n, P, n, from, n, k->sums + (int64_t)SUMS * i);
    }
    return;
  }
  ng_linalg(q)->copy_rows(q, 1, all, D, all, S, all);
  filter(b, D, F, S);
  for (int32_t i = 0; i < k->grams.count; i++) {
    precondition_piece(b, i, D, F, S, S + room);
  }
}

/* Return the factor of P of piece i. kl: before its first root P is F / s. */
static double scale_of_piece(const ng_block *b, int32_t i) {
  const ng_shampoo *k = shampoo_of_block(b);
  const double *sums = ng_read_numbers(b->ctx->queue, k->sums + (int64_t)SUMS * i);
  double by = filter_scale(b);
  if (has_bases(b)) return 1.0;
  if (is_kl(b) && k->has_roots && !has_piece_roots(k, &k->grams.list[i])) {
    const double n = (double)ng_axes_elements(&k->grams.list[i].axes);
    by *= sums[SUM_D2] > 0.0 ? sqrt(n / sums[SUM_D2]) : 0.0;
  }
  const double S = sqrt(sums[SUM_S2]) * (has_second_moment(b) ? 1.0 : by);
  if (!k->has_roots) return has_second_moment(b) ? 1.0 : by;
  return b->base.grafting == NG_GRAFT_NONE ? by : by * S / (by * sqrt(sums[SUM_P2]) + 1e-16);
}

static ng_status read_sums(ng_block *b) {
  ng_shampoo *k = shampoo_of_block(b);
  for (int32_t i = 0; i < k->grams.count; i++) {
    const double *sums = ng_read_numbers(b->ctx->queue, k->sums + (int64_t)SUMS * i);
    const double by = k->by[i] = scale_of_piece(b, i);
    k->grams.total.total[0] += by * sums[SUM_INNER];
    k->grams.total.total[1] += sums[SUM_D2];
    k->grams.total.total[2] += by * by * sums[SUM_P2];
  }
  const ng_status st = ng_block_read_sums(b, &k->grams.total, ng_axes_elements_of_block(b));
  for (int32_t i = 0; i < k->grams.count && st != NG_OK; i++) {
    k->by[i] = 0.0;
  }
  return st;
}

static void scale_direction(ng_block *b) {
  const ng_shampoo *k = shampoo_of_block(b);
  ng_queue *q = b->ctx->queue;
  for (int32_t i = 0; i < k->grams.count; i++) {
    const ng_axes_parameter *p = &k->grams.list[i];
    if (k->by[i] == 1.0) continue;
    float *P = (float *)(uintptr_t)ng_piece_gather(q, p, b->direction, ng_scratch(b));
    ng_linalg(q)->scale(q, ng_axes_elements(&p->axes), P, NG_F32, k->by[i]);
    ng_piece_scatter(q, p, P, b->direction);
  }
}

static void end_step(ng_block *b, bool step_counts) {
  ng_moments_end_step(&shampoo_of_block(b)->grams.moments, step_counts);
}

/* ---- state, report ---------------------------------------------------------------------------*/

static void visit_fields(ng_block *b, ng_field_visit visit, void *arg) {
  const ng_shampoo *k = shampoo_of_block(b);
  for (int32_t i = 0; i < k->grams.matrices; i++) {
    const int64_t n = k->grams.matrix[i].n;
    const char *suffix = has_bases(b) ? "_basis" : "_root";
    ng_field f = ng_part_field(b->stat, i, suffix, NG_F32, n, n, k->grams.matrix[i].R);
    f.is_symmetric = !has_bases(b);
    visit(arg, &f);
  }
  ng_moments_visit(b, &k->grams.moments, has_second_moment(b) ? 2 : 1, owner_of_block(b), false,
                   visit, arg);
  if (!b->solves) return;
  ng_field f = ng_field_plain("L_solve", NG_F32, 1, NG_GRAMS_INFO, k->grams.info, b->stat->owner);
  visit(arg, &f);
}

const ng_family ng_family_shampoo = {
    .name = "shampoo",
    .observed = NG_OBSERVED_FLATGRAD,
    .traits = NG_TRAIT_AXES | NG_TRAIT_ROOTS | NG_TRAIT_MOMENTS | NG_TRAIT_SOLVES,
    .accepts_entry = accepts_entry,
    .check_options = check_options,
    .create_state = create_state,
    .declare_statistics = ng_grams_declare,
    .request_memory = request_memory,
    .set_initial_values = set_initial_values,
    .observe = observe,
    .check_gradients_finite = ng_grams_check_gradients,
    .solve = solve,
    .read_results = read_results,
    .precondition = precondition,
    .read_sums = read_sums,
    .scale_direction = scale_direction,
    .emit = ng_block_emit_direction,
    .end_step = end_step,
    .visit_fields = visit_fields,
    .write_report = ng_grams_write_report,
};
