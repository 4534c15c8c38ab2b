/* kronecker_spatial.c: spatial = factored: A = S (x) C for the weight of a convolution.
 *
 * C [channels, channels] is the second moment of the pixels of the input, times the number of output positions. S [taps, taps]
 * is the second moment of the kernel positions, pooled over pixels and channels (kernel/spatial.c) and divided by its mean
 * diagonal element. The column of the bias is independent: its element of A is the number of output positions. So A has the
 * spatial homogeneity of Grosse & Martens 2016 (arXiv 1602.01407), and the correlation of two inputs is the product of a
 * correlation in space and one of channels.
 *
 * With S = Q' diag(e) Q, the damped inverse is exact:
 *
 *     PD = G^-1 D A^-1:   U = D (Q (x) I);   V_i = G^-1 U_i (e_i C + d_A I)^-1;   PD = V (Q' (x) I)
 *
 * U_i [outputs, channels]: the columns of kernel position i. D, U and V are stored position after position, [taps, outputs,
 * channels], then the column of the bias. A solve factors `taps` matrices of order `channels`, not one of their product.
 *
 * The parts of the statistic A are, group after group: C (or its diagonal blocks), S, and the element of the bias. */
#include "family/kronecker.h"

/* Factoring pays with many channels. Images, of few channels, keep the full A. Moments in eigenbases need whole C and G. */
bool ng_kron_is_spatial(const ng_block *b) {
  const ng_layer *d = &b->entry->d;
  const ng_settings *o = &b->base;
  const bool moments = (b->family->traits & NG_TRAIT_MOMENTS) != 0;
  const bool one_basis = o->factor_blocks == 1 && o->max_factor == 0 && d->groups == 1 &&
                         o->output_factor == NG_OUTPUT_FULL;
  const bool textbook = o->stat_scale == NG_SCALE_TEXTBOOK;
  return o->spatial == NG_SPATIAL_FACTORED && d->kind == NG_CONV2D && textbook &&
         (moments ? one_basis : o->solver == NG_SOLVER_CHOLESKY) && o->inverse_dtype != NG_F64 &&
         o->positions == NG_POSITIONS_EXPAND && o->damping_leak == NG_LEAK_NONE &&
         b->entry->registered == NULL && d->kernel[0] * d->kernel[1] > 1 &&
         d->in / d->groups > ng_min64(d->kernel[0] * d->kernel[1], 9) &&
         d->in / d->groups * d->kernel[0] * d->kernel[1] <= INT32_MAX / d->out;
}

/* ---- geometry --------------------------------------------------------------------------------*/

/* Return the part of the statistic A that has S of a group. */
static ng_stat_part *S_part(const ng_kron *k, int64_t group) {
  const ng_stat *s = k->side[NG_SIDE_A].stat;
  return &s->part[group * (s->parts / k->groups) + k->spatial->blocks];
}

/* Copy the matrices of one side for every kernel position and group. */
static ng_matrix *copy_side(const ng_kron *k, ng_matrix *to, const ng_side *side) {
  const bool is_right = side == k->right;
  const int64_t blocks = is_right ? k->spatial->blocks : side->group_parts;
  for (int64_t i = 0; i < k->offsets * k->groups; i++) {
    const int64_t group = i % k->groups, position = is_right ? i / k->groups : 0;
    for (int64_t j = 0; j < blocks; j++) {
      ng_matrix *m = &to[i * blocks + j];
      *m = side->matrix[group * side->group_parts + position * blocks + j];
      m->row = i * k->q + (is_right ? 0 : m->row - group * k->q);
    }
  }
  return to;
}

/* Create the parts of side A, for each group the blocks of C at every kernel position (moments: C), then the bias. */
static ng_status create_side(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  const ng_spatial *sp = k->spatial;
  ng_side *s = &k->side[NG_SIDE_A];
  const int64_t C_parts = sp->blocks * sp->copies;
  ng_status st = ng_kron_alloc_parts(b, s, C_parts + sp->has_bias);
  for (int32_t i = 0; i < s->parts && st == NG_OK; i++) {
    const int64_t group = i / s->group_parts, j = i % s->group_parts;
    const int64_t block = j < C_parts ? j % sp->blocks : sp->blocks;
    ng_part *part = &s->part[i];
    part->has_bias = j == C_parts;
    part->lo = group * sp->channels + sp->channels / sp->blocks * block +
               ng_min64(block, sp->channels % sp->blocks);
    part->hi = part->lo;
    if (!part->has_bias)
      part->hi += sp->channels / sp->blocks + (block < sp->channels % sp->blocks ? 1 : 0);
    part->of_stat = (int32_t)(group * (sp->blocks + 1 + sp->has_bias) + block + part->has_bias);
    s->matrix[i].col = part->lo - group * sp->channels;
    st = ng_kron_set_matrix(b, s, &s->matrix[i], part->hi - part->lo + part->has_bias);
  }
  return st;
}

ng_status ng_spatial_create(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  ng_spatial *s = k->spatial = ng_object(b->p, sizeof *s);
  if (s == NULL) return NG_ERR_NOMEM;
  const ng_layer *d = &b->entry->d;
  const bool moments = (b->family->traits & NG_TRAIT_MOMENTS) != 0;
  s->channels = d->in / k->groups;
  s->copies = moments ? 1 : k->offsets;
  s->has_bias = d->bias != 0;
  s->blocks = ng_kron_count_parts(&b->base, s->channels, 1, false);
  const int64_t columns = s->channels * k->offsets, sets = moments ? 0 : k->offsets * k->groups;
  k->unmap = ng_object(b->p, (size_t)columns * sizeof *k->unmap);
  s->S = ng_object(b->p, (size_t)k->groups * sizeof *s->S);
  s->left = ng_object(b->p, (size_t)(sets * k->left->group_parts) * sizeof *s->left);
  s->right = ng_object(b->p, (size_t)(sets * s->blocks) * sizeof *s->right);
  s->bias_right = ng_object(b->p, (size_t)k->groups * sizeof *s->bias_right);
  if (ng_objects_status(b->p) != NG_OK) return NG_ERR_NOMEM;
  for (int64_t c = 0; c < columns; c++) {
    k->unmap[c] = (int32_t)(c % k->offsets * k->outputs * s->channels + c / k->offsets);
  }
  for (int64_t g = 0; g < k->groups; g++) {
    s->S[g] = (ng_matrix){.result = NG_RESULT_EIGEN,
                          .n = k->offsets,
                          .scale = 1.0,
                          .average_dtype = b->base.factor_dtype,
                          .result_dtype = NG_F32};
  }
  return create_side(b);
}

/* Called after the memory of the results is known. */
void ng_spatial_link(ng_kron *k) {
  ng_spatial *s = k->spatial;
  if (s->left == NULL) return; /* moments */
  const ng_side *a = k->right;
  s->rotated = (ng_twosided){.groups = k->offsets * k->groups,
                             .rows = k->q,
                             .cols = s->channels,
                             .left = copy_side(k, s->left, k->left),
                             .right = copy_side(k, s->right, k->right),
                             .left_count = k->left->group_parts,
                             .right_count = (int32_t)s->blocks,
                             .is_good = true};
  s->bias = (ng_twosided){.groups = k->groups,
                          .rows = k->q,
                          .cols = 1,
                          .left = k->left->matrix,
                          .right = s->bias_right,
                          .left_count = k->left->group_parts,
                          .right_count = 1,
                          .is_good = true};
  for (int64_t g = 0; g < k->groups && s->has_bias; g++) {
    s->bias_right[g] = a->matrix[(g + 1) * a->group_parts - 1];
    s->bias_right[g].row = g * k->q;
    s->bias_right[g].col = 0;
  }
}

/* ---- statistics ------------------------------------------------------------------------------*/

ng_status ng_spatial_declare_parts(ng_block *b) {
  const ng_kron *k = ng_kron_of(b);
  const ng_side *a = &k->side[NG_SIDE_A];
  ng_stat *s = a->stat;
  const ng_status st = ng_stat_alloc_parts(b, s, (int32_t)k->groups,
                                           (int32_t)k->spatial->blocks + 1 + k->spatial->has_bias);
  for (int32_t i = 0; i < s->parts && st == NG_OK; i++) {
    s->part[i].rows = s->part[i].cols = s->part[i].channels = k->offsets;
  }
  for (int32_t i = 0; i < a->parts && st == NG_OK; i++) {
    ng_stat_part *part = &s->part[a->part[i].of_stat];
    part->rows = part->cols = part->channels = a->matrix[i].n;
    part->matrices = a->part[i].has_bias ? 1 : k->spatial->copies;
  }
  return st;
}

/* Return 0 if the image size is not declared: then the first observation allocates. */
int64_t ng_spatial_observe_scratch(const ng_block *b, const ng_conv *conv) {
  const ng_kron *k = ng_kron_of(b);
  const int64_t rows =
      ng_gram_rows_scratch(ng_max64(k->side[NG_SIDE_A].matrix->n, k->left->matrix->n));
  return conv->height == 0 ? 0 : ng_max64(rows, ng_spatial_scratch(b->ctx->queue, conv));
}

/* Request the memory of the eigenvectors and eigenvalues of S; return the scratch of their solve. */
int64_t ng_spatial_request_results(const ng_block *b, ng_plan *plan) {
  const ng_kron *k = ng_kron_of(b);
  const int32_t owner = k->right->stat->owner;
  for (int64_t g = 0; g < k->groups && b->is_worker; g++) {
    ng_matrix *S = &k->spatial->S[g];
    S->R = ng_plan_result(plan, owner, ng_matrix_count(S) * (int64_t)sizeof(float));
    S->d = ng_plan_result(plan, owner, S->n * (int64_t)sizeof(float));
  }
  return ng_matrix_scratch(b->ctx->queue, k->spatial->S);
}

/* Every row of the eigenvectors is one eigenvector. */
void ng_spatial_visit_results(const ng_kron *k, ng_field_visit visit, void *arg) {
  const ng_stat *s = k->right->stat;
  for (int64_t g = 0; g < k->groups; g++) {
    const ng_matrix *S = &k->spatial->S[g];
    const int32_t i = (int32_t)(S_part(k, g) - s->part);
    ng_field f = ng_part_field(s, i, "_eigenvectors", NG_F32, S->n, S->n, S->R);
    visit(arg, &f);
    f = ng_part_field(s, i, "_eigenvalues", NG_F32, 1, S->n, S->d);
    visit(arg, &f);
  }
}

/* Add an input to A; `alpha`: the factor of a row of the Gram matrix of patches. */
void ng_spatial_observe(ng_block *b, const ng_obs *o, double alpha) {
  const ng_kron *k = ng_kron_of(b);
  const ng_spatial *sp = k->spatial;
  ng_queue *q = b->ctx->queue;
  const ng_side *a = &k->side[NG_SIDE_A];
  const ng_stat *s = a->stat;
  const ng_conv conv = ng_obs_conv(&k->conv, o);
  const double patches = (double)(conv.out_height * conv.out_width);
  const double per_pixel = alpha * s->mix.fresh * patches / (double)(conv.height * conv.width);
  const bool is_double = ng_stat_is_double(s);
  ng_gram gram = {.x = o->view, .samples = s->samples, .conv = conv};
  for (int64_t g = 0; g < k->groups; g++) {
    const ng_stat_part *part = &s->part[g * (s->parts / k->groups)];
    for (int64_t j = 0; j <= sp->blocks; j++, part++) {
      const bool is_S = j == sp->blocks;
      const ng_part *of = &a->part[g * a->group_parts + (is_S ? 0 : j)];
      gram.c0 = is_S ? g * sp->channels : of->lo;
      gram.c1 = is_S ? (g + 1) * sp->channels : of->hi;
      gram.alpha = is_S ? per_pixel / (double)sp->channels : per_pixel;
      gram.S = (ng_sym){part->sum, part->rows};
      gram.S64 = is_double ? part->sum : NULL;
      (is_S ? ng_kernels(q)->add_spatial_grams : ng_kernels(q)->add_row_grams)(q, &gram, 1,
                                                                               ng_scratch(b));
    }
    if (!sp->has_bias) continue;
    ng_linalg(q)->shift_diagonal(q, 1, part->sum, s->sum_dtype, false,
                                 alpha * s->mix.fresh * patches * (double)s->samples);
  }
}

/* ---- solve -----------------------------------------------------------------------------------*/

/* On the owner: enqueue trace, `finite` and the eigenvectors of S. */
void ng_spatial_measure(const ng_block *b) {
  const ng_kron *k = ng_kron_of(b);
  for (int64_t g = 0; g < k->groups; g++) {
    ng_matrix *S = &k->spatial->S[g];
    S->F = S_part(k, g)->average;
    S->uses_double = true;
    ng_matrix_measure(b->ctx->queue, S);
    ng_linalg(b->ctx->queue)->solve(b->ctx->queue, &S, 1, ng_scratch(b));
  }
}

/* Set the scale e_i of the matrices of a group on their owner; return false if S has no eigenvectors. If every input was
 * 0, S and C are 0, and each scale is 1. */
bool ng_spatial_set_scales(const ng_block *b, int64_t group) {
  const ng_kron *k = ng_kron_of(b);
  const ng_queue *q = b->ctx->queue;
  const ng_matrix *S = &k->spatial->S[group];
  ng_matrix *m = &k->right->matrix[group * k->right->group_parts];
  if (ng_read_info(q, &S->finite) == 0 || ng_read_info(q, &S->accepted) == 0) return false;
  const double mean = *ng_read_numbers(q, &S->trace) / (double)k->offsets;
  for (int64_t i = 0; i < k->offsets; i++) {
    for (int64_t j = 0; j < k->spatial->blocks; j++, m++) {
      m->scale = mean > 0.0 ? (double)((const float *)S->d)[i] / mean : 1.0;
    }
  }
  return true;
}

/* ---- apply -----------------------------------------------------------------------------------*/

static int64_t weights(const ng_kron *k) { return k->offsets * k->outputs * k->spatial->channels; }

/* X and Y [out, p]; 3 doubles a row; the scratch of ng_twosided_apply. */
int64_t ng_spatial_apply_scratch(const ng_kron *k) {
  const ng_spatial *s = k->spatial;
  const int64_t most = ng_max64(ng_twosided_scratch(&s->rotated, k->offsets * k->outputs),
                                s->has_bias ? ng_twosided_scratch(&s->bias, k->outputs) : 0);
  return 2 * ng_round16(k->outputs * k->p) + ng_round16(6 * k->outputs) + most;
}

/* to <- from (Q (x) I); back: from (Q' (x) I). */
static void rotate(const ng_block *b, bool back, const float *from, float *to) {
  const ng_kron *k = ng_kron_of(b);
  ng_queue *q = b->ctx->queue;
  const int64_t n = k->q * k->spatial->channels, ld = k->groups * n, taps = k->offsets;
  for (int64_t g = 0; g < k->groups; g++) {
    ng_linalg(q)->gemm(q, NG_F32, back, false, taps, n, taps, 1.0, k->spatial->S[g].R, taps,
                       from + g * n, ld, 0.0, to + g * n, ld);
  }
}

void ng_spatial_read_gradient(ng_block *b, float *to, float *bias) {
  const ng_kron *k = ng_kron_of(b);
  const ng_slot *w = b->segment[0].slot;
  ng_read list[] = {{.D = {&w->grad, 0, k->outputs, 0, w->cols},
                     .to = to,
                     .to_row = k->spatial->channels,
                     .to_col = 1,
                     .map = k->unmap,
                     .finite = &k->sums->finite},
                    {.to = bias, .to_row = 1, .to_col = 1, .finite = &k->sums->finite}};
  if (k->spatial->has_bias) list[1].D = (ng_region){&b->segment[1].slot->grad, 0, 1, 0, k->outputs};
  ng_kernels(b->ctx->queue)->read_gradients(b->ctx->queue, list, b->segments);
}

void ng_spatial_precondition(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  const ng_spatial *s = k->spatial;
  ng_queue *q = b->ctx->queue;
  const int64_t count = k->outputs * k->p, bias = weights(k);
  float *X = ng_scratch(b), *Y = X + ng_round16(count);
  double *sums = (double *)(void *)(Y + ng_round16(count));
  float *scratch = (float *)(void *)sums + ng_round16(6 * k->outputs);
  const bool is_good = k->both.is_good;
  *k->sums = (ng_direction_sums){.finite = 1};
  ng_spatial_read_gradient(b, is_good ? Y : X, X + bias);
  if (is_good) {
    rotate(b, false, Y, X);
    ng_twosided_apply(q, &s->rotated, 0, k->offsets * k->outputs, X, Y, scratch);
    if (s->has_bias) ng_twosided_apply(q, &s->bias, 0, k->outputs, X + bias, Y + bias, scratch);
  }
  const float *PD = is_good ? Y : X;
  ng_linalg(q)->sum_row_products(q, k->outputs, k->p, PD, k->p, X, k->p, sums);
  ng_linalg(q)->add_rows_of_sums(q, k->outputs, sums, k->sums->total);
  if (is_good) rotate(b, true, Y, b->direction);
  const int64_t from = is_good ? bias : 0;
  if (from < count)
    ng_linalg(q)->copy_rows(q, 1, count - from, PD + from, count, b->direction + from, count);
}

void ng_spatial_describe(const ng_block *b, bool is_bias, ng_direction *e) {
  const ng_kron *k = ng_kron_of(b);
  if (is_bias) {
    ng_describe_stored(e, b->direction + weights(k), 0, 1, NULL);
  } else {
    ng_describe_stored(e, b->direction, k->spatial->channels, 1, k->unmap);
  }
}
