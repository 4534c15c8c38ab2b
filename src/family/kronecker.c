/* kronecker.c: the Kronecker family: geometry, memory, state, operation tables.
 *
 * In: a layer with its options. Out: the parts of A and G, their addresses, their fields in files.
 *
 * The Fisher block of a layer is approximated by A (x) G (Martens & Grosse 2015, arXiv 1503.05671,
 * section 3; convolutions: Grosse & Martens 2016, arXiv 1602.01407). A is the second moment of the inputs,
 * with a 1 appended for the bias. G is the second moment of the output gradients. With the gradient
 * D [q, p], bias last,
 *
 *     (A (x) G)^-1 vec(D) = vec(G^-1 D A^-1)
 *
 * so two small matrices are inverted instead of one of order p q.
 *
 * An embedding W [tokens, features] is a linear layer whose inputs are unit vectors, so A = E[a a'] is
 * exactly diagonal: the frequency of each token. torch.nn.Embedding stores W transposed, so here A
 * multiplies from the left: PD = (A + d_A)^-1 D (G + d_G)^-1.
 *
 * The internal column order of a convolution is (kernel offset, channel), so that the blocks of one displacement
 * are contiguous (kernel/gram_shift.c). The weight's column order is (channel, kernel offset). `map` converts from one
 * to the other. Files use the weight's order (state/field_order.c): averages, inverses and eigenvectors are permuted.
 * A triangular factor stays in the internal order, because permuted it is no longer triangular. */
#include "family/kronecker.h"

/* ---- geometry --------------------------------------------------------------------------------*/

/* Return the number of parts of one side in one group: at least factor_blocks, and no part wider than max_factor. All
 * kernel offsets of a channel are in one part, so a part of one channel may exceed max_factor. Widths differ by at most
 * one channel, wider parts first; the bias is in the last part. `first`: order of the first part; `last`: of the last
 * part, with the bias (one). */
int64_t ng_kron_count_parts(const ng_settings *o, int64_t channels, int64_t offsets, bool one) {
  int64_t k = ng_min64(o->factor_blocks, channels);
  for (; k < channels && o->max_factor > 0; k++) {
    const int64_t first = offsets * ((channels + k - 1) / k), last = offsets * (channels / k) + one;
    if (ng_max64(first, last) <= o->max_factor) break;
  }
  return k;
}

/* Allocate the parts of a side, `each` in a group. */
ng_status ng_kron_alloc_parts(ng_block *b, ng_side *s, int64_t each) {
  const ng_kron *k = ng_kron_of(b);
  const bool is_A = s == &k->side[NG_SIDE_A];
  const bool single = !is_A && b->base.output_factor == NG_OUTPUT_DIAGONAL;
  if (each * k->groups > NG_LIST_MOST) {
    return ng_fail(b->ctx, NG_ERR_ARG, "layer '%s': %lld diagonal blocks of %s, at most %lld; %s",
                   b->entry->d.name, (long long)(each * k->groups), is_A ? "A" : "G",
                   (long long)NG_LIST_MOST,
                   single ? "leave output_factor at full"
                          : "take a larger max_factor or smaller factor_blocks");
  }
  s->group_parts = (int32_t)each;
  s->parts = (int32_t)(each * k->groups);
  s->part = ng_object(b->p, (size_t)s->parts * sizeof *s->part);
  s->matrix = ng_object(b->p, (size_t)s->parts * sizeof *s->matrix);
  s->shift = ng_object(b->p, (size_t)k->groups * sizeof *s->shift);
  return ng_objects_status(b->p);
}

/* Set the matrix of a part of order n; fail if it is too large for 32-bit LAPACK. */
ng_status ng_kron_set_matrix(const ng_block *b, const ng_side *s, ng_matrix *m, int64_t n) {
  const ng_kron *k = ng_kron_of(b);
  m->n = n;
  m->scale = 1.0;
  m->average_dtype = m->form == NG_FORM_DIAGONAL ? NG_F32 : b->base.factor_dtype;
  m->result_dtype = b->base.inverse_dtype;
  m->result = ng_kron_result(b, n, s == k->right ? k->q : k->p);
  if (m->form != NG_FORM_SYMMETRIC || ng_blas_accepts_order(n)) return NG_OK;
  return ng_fail(b->ctx, NG_ERR_ARG,
                 "layer '%s': a factor of order %lld exceeds 32-bit LAPACK; set max_factor",
                 b->entry->d.name, (long long)n);
}

/* Create the parts of all groups, group after group. */
static ng_status create_side(ng_block *b, int which, int64_t channels, bool one) {
  ng_kron *k = ng_kron_of(b);
  ng_side *s = &k->side[which];
  const int64_t offsets = which == NG_SIDE_A ? k->offsets : 1;
  const bool diagonal = which == NG_SIDE_A && b->entry->d.kind == NG_EMBEDDING;
  const bool absent = which == NG_SIDE_G && k->sides == 1;
  const bool right = s == k->right;
  const bool single = which == NG_SIDE_G && b->base.output_factor == NG_OUTPUT_DIAGONAL;
  const int64_t each = diagonal || absent ? 1
                       : single           ? channels
                                          : ng_kron_count_parts(&b->base, channels, offsets, one);
  ng_status st = ng_kron_alloc_parts(b, s, each);
  for (int64_t g = 0; g < k->groups && st == NG_OK; g++) {
    int64_t channel = g * channels, column = 0;
    for (int64_t i = 0; i < each && st == NG_OK; i++) {
      ng_part *part = &s->part[g * each + i];
      ng_matrix *m = &s->matrix[g * each + i];
      const int64_t width = channels / each + (i < channels % each ? 1 : 0);
      part->lo = channel;
      part->hi = channel += width;
      part->has_bias = one && i == each - 1;
      m->form = diagonal ? NG_FORM_DIAGONAL : absent ? NG_FORM_ABSENT : NG_FORM_SYMMETRIC;
      part->of_stat = (int32_t)(g * each + i);
      st = ng_kron_set_matrix(b, s, m, offsets * width + part->has_bias);
      m->row = right ? g * k->q : part->lo;
      m->col = right ? column : 0;
      column += m->n;
    }
  }
  return st;
}

static void fill_column_map(ng_kron *k) {
  const int64_t channels = k->side[NG_SIDE_A].part[0].lo;
  for (int32_t i = 0; i < k->side[NG_SIDE_A].group_parts; i++) {
    const ng_part *part = &k->side[NG_SIDE_A].part[i];
    const int64_t width = part->hi - part->lo, column = k->right->matrix[i].col;
    for (int64_t o = 0; o < k->offsets; o++) {
      for (int64_t c = 0; c < width; c++) {
        k->map[column + o * width + c] = (int32_t)((part->lo - channels + c) * k->offsets + o);
      }
    }
    if (part->has_bias) k->map[k->p - 1] = (int32_t)(k->p - 1);
  }
  for (int64_t c = 0; c < k->p; c++) {
    k->unmap[k->map[c]] = (int32_t)c;
  }
}

/* All groups have the same column order, so one map is enough. */
static ng_status create_column_map(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  if (k->offsets == 1 || k->spatial != NULL) return NG_OK;
  if (k->p > NG_LIST_MOST) {
    return ng_fail(b->ctx, NG_ERR_ARG,
                   "layer '%s': its weight has %lld columns, at most %lld for a convolution",
                   b->entry->d.name, (long long)k->p, (long long)NG_LIST_MOST);
  }
  k->map = ng_object(b->p, (size_t)k->p * sizeof *k->map);
  k->unmap = ng_object(b->p, (size_t)k->p * sizeof *k->unmap);
  if (k->map == NULL || k->unmap == NULL) return NG_ERR_NOMEM;
  fill_column_map(k);
  return NG_OK;
}

/* Write "A 10x10, G 5x5, 2 groups, cut into 3 and 1 diagonal blocks" for ng_explain. */
static void describe_block(ng_block *b) {
  const ng_kron *k = ng_kron_of(b);
  const int64_t a = k->left == &k->side[NG_SIDE_A] ? k->outputs : k->p;
  const int64_t g = k->left == &k->side[NG_SIDE_A] ? k->p : k->q;
  char *const why = b->entry->why;
  const size_t size = sizeof b->entry->why;
  int at = k->spatial != NULL
               ? snprintf(why, size, "A = S %lldx%lld (x) C %lldx%lld", (long long)k->offsets,
                          (long long)k->offsets, (long long)k->spatial->channels,
                          (long long)k->spatial->channels)
           : k->side[NG_SIDE_A].matrix->form == NG_FORM_DIAGONAL
               ? snprintf(why, size, "A diagonal of %lld", (long long)a)
               : snprintf(why, size, "A %lldx%lld", (long long)a, (long long)a);
  at += snprintf(why + at, size - (size_t)at, ", G %lldx%lld", (long long)g, (long long)g);
  if (k->groups > 1) {
    at += snprintf(why + at, size - (size_t)at, ", %lld groups", (long long)k->groups);
  }
  if (k->side[NG_SIDE_A].group_parts > 1 || k->side[NG_SIDE_G].group_parts > 1) {
    (void)snprintf(why + at, size - (size_t)at, ", cut into %d and %d diagonal blocks",
                   k->side[NG_SIDE_A].group_parts, k->side[NG_SIDE_G].group_parts);
  }
}

static ng_status check_embedding(const ng_block *b) {
  const bool product = b->base.solver == NG_SOLVER_PRODUCT;
  if (b->entry->registered != NULL) {
    return ng_fail(b->ctx, NG_ERR_ABSENT,
                   "layer '%s': embeddings cannot be sharded (shard_axis); "
                   "register the weight with ng_add_tensor, or name the layer in skip_layers",
                   b->name);
  }
  if (!product && b->base.positions != NG_POSITIONS_REDUCE) return NG_OK;
  return ng_fail(b->ctx, NG_ERR_ARG,
                 "layer '%s': %s is not for embeddings; take %s, or register the weight with "
                 "ng_add_tensor",
                 b->name, product ? "solver = product" : "positions = reduce",
                 product ? "cholesky or eigen" : "expand");
}

ng_status ng_kron_create_state(ng_block *b) {
  const ng_layer *d = &b->entry->d;
  ng_kron *k = ng_object(b->p, sizeof *k);
  if (k == NULL) return NG_ERR_NOMEM;
  b->state = k;
  const bool conv = d->kind == NG_CONV2D, embedding = d->kind == NG_EMBEDDING,
             bias = d->bias != 0 && !b->family->takes_weight_only;
  k->sides = (b->family->observed & NG_OBSERVED_OUTGRAD) != 0 ? 2 : 1;
  k->groups = conv ? d->groups : 1;
  k->offsets = conv ? d->kernel[0] * d->kernel[1] : 1;
  k->left = &k->side[embedding ? NG_SIDE_A : NG_SIDE_G];
  k->right = &k->side[embedding ? NG_SIDE_G : NG_SIDE_A];
  k->outputs = embedding ? d->in : d->out;
  k->q = k->outputs / k->groups;
  k->p = embedding ? d->out : d->in / k->groups * k->offsets + bias;
  k->is_eigen = ng_is_eigen(b->base.solver);
  k->is_product = b->base.solver == NG_SOLVER_PRODUCT;
  k->is_double = b->base.inverse_dtype == NG_F64;
  /* The clip needs one scale for all blocks: PD = D + k H (product) and PD = G^-1 D A^-1 have different scales. */
  if (k->is_product != (b->p->opt.base.solver == NG_SOLVER_PRODUCT)) {
    return ng_fail(
        b->ctx, NG_ERR_ARG,
        "layer '%s': solver = %s and the model's %s: use product in all layers or in none", d->name,
        ng_choice_text(NG_OPTION_solver, (int32_t)b->base.solver),
        ng_choice_text(NG_OPTION_solver, (int32_t)b->p->opt.base.solver));
  }
  if (k->is_double && b->entry->registered != NULL) {
    return ng_fail(b->ctx, NG_ERR_ABSENT,
                   "layer '%s': sharded layers gather gradients in f32; set inverse_dtype = f32",
                   b->name);
  }
  k->conv = ng_layer_conv(b->entry, false);
  ng_status st = embedding ? check_embedding(b) : NG_OK;
  if (st == NG_OK) st = create_side(b, NG_SIDE_G, d->out / k->groups, false);
  if (st == NG_OK && ng_kron_is_spatial(b)) {
    st = ng_spatial_create(b);
  } else if (st == NG_OK) {
    st = create_side(b, NG_SIDE_A, d->in / k->groups, bias);
  }
  if (st == NG_OK) st = create_column_map(b);
  if (st != NG_OK) return st;
  k->both =
      (ng_twosided){.groups = k->groups, .rows = k->q, .cols = k->p, .is_double = k->is_double};
  k->both.left = k->left->matrix;
  k->both.right = k->right->matrix;
  k->both.left_count = k->left->group_parts;
  k->both.right_count = k->right->group_parts;
  b->matrices = k->left->parts + k->right->parts;
  k->both.damping = ng_object(b->p, (size_t)k->groups * sizeof *k->both.damping);
  k->sums = ng_object(b->p, sizeof *k->sums);
  describe_block(b);
  return ng_objects_status(b->p);
}

static ng_status create_state(ng_block *b) {
  const ng_status st = ng_kron_create_state(b);
  return st == NG_OK ? ng_kron_rows_create(b) : st;
}

static ng_status set_initial_values(ng_block *b) {
  if (ng_kron_of(b)->rows != NULL) ng_kron_rows_set_initial(b);
  return NG_OK;
}

static bool accepts_entry(const ng_settings *o, const ng_entry *e) {
  return !e->is_tensor && e->d.kind != NG_NORM && ng_is(o->family, "kronecker");
}

/* Fail if an option has no effect together with the other options, unless it has its neutral value. */
static ng_status check_options(const ng_options *o, char *message, size_t size) {
  const ng_settings *s = &o->base;
  static const ng_option_id damps[] = {NG_OPTION_damping, NG_OPTION_damping_split,
                                       NG_OPTION_damping_leak};
  const bool eigen = ng_is_eigen(s->solver), product = s->solver == NG_SOLVER_PRODUCT;
  const bool joint = s->damping_split == NG_SPLIT_JOINT;
  const ng_refusal list[] = {
      ng_kron_refuse_eva_scale(s),
      /* joint adds lambda to d_G d_A' (Pauloski et al. 2021, arXiv 2107.01739), which is no shift of A or of G. */
      {joint && !eigen, NG_OPTION_damping_split,
       " needs solver = eigen or eigen-prediv; other solvers take pi or full"},
      {product && s->inverse_dtype == NG_F64, NG_OPTION_inverse_dtype,
       ": solver = product inverts nothing; set f32, bf16 or f16"},
      {s->eigen_floor > 0 && !eigen, NG_OPTION_eigen_floor,
       " needs solver = eigen or eigen-prediv"},
      {product != (s->radius > 0), NG_OPTION_radius,
       ": solver = product needs a radius above 0, other solvers 0"},
      /* damping_leak: the published inverse solver leaves its shift in the stored factor. */
      {s->damping_leak && joint, NG_OPTION_damping_leak,
       " needs damping_split = pi or full: a joint damping shifts no factor"},
  };
  ng_status st = ng_family_check_others(NG_TRAIT_FACTORS | NG_TRAIT_SOLVES, o, message, size);
  if (st == NG_OK) {
    st = ng_family_check_list(list, sizeof list / sizeof list[0], o, message, size);
  }
  if (st != NG_OK || !product) return st;
  return ng_family_check_unused(damps, 3, "solver = product inverts nothing", o, message, size);
}

/* ---- statistics, memory ----------------------------------------------------------------------*/

ng_status ng_kron_declare_statistics(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  ng_status st = ng_block_alloc_stats(b, k->ekfac != NULL ? 3 : k->sides);
  b->traces_per_stat = k->groups;
  for (int side = 0; side < k->sides && st == NG_OK; side++) {
    ng_side *of = &k->side[side];
    const bool diagonal = of->matrix->form == NG_FORM_DIAGONAL;
    ng_stat *s = of->stat = &b->stat[side];
    s->name = side == NG_SIDE_A ? "A" : "G";
    s->observed = side == NG_SIDE_A ? NG_OBSERVED_INPUT : NG_OBSERVED_OUTGRAD;
    s->symmetric = !diagonal;
    s->rule.averaged = true;
    s->average_dtype = of->matrix->average_dtype;
    if (s->average_dtype == NG_F64) s->sum_dtype = NG_F64;
    s->shift = b->base.damping_leak ? of->shift : NULL;
    if (side == NG_SIDE_A && k->spatial != NULL) {
      st = ng_spatial_declare_parts(b);
      continue;
    }
    st = ng_stat_alloc_parts(b, s, (int32_t)k->groups, of->group_parts);
    for (int32_t i = 0; i < of->parts && st == NG_OK; i++) {
      s->part[i].cols = of->matrix[i].n;
      s->part[i].rows = diagonal ? 1 : of->matrix[i].n;
      s->part[i].diagonal = diagonal ? of->matrix[i].n : 0;
      s->part[i].offsets = side == NG_SIDE_A ? k->offsets : 1;
      s->part[i].channels = of->part[i].hi - of->part[i].lo;
    }
  }
  return st;
}

/* Return floats. Part 0 is the widest part; only a last part with the bias may have one row more, hence the + 1.
 * Tokens are counted in doubles. */
static int64_t observation_floats(const ng_block *b, const ng_conv *conv) {
  const ng_kron *k = ng_kron_of(b);
  const ng_part *a = &k->side[NG_SIDE_A].part[0], *g = &k->side[NG_SIDE_G].part[0];
  const int64_t n[2] = {k->side[NG_SIDE_A].matrix->n, k->side[NG_SIDE_G].matrix->n};
  if (b->entry->d.kind == NG_EMBEDDING)
    return ng_max64(ng_times(2, n[0] + 2), ng_gram_rows_scratch(n[1] + 1));
  if (k->spatial != NULL) return ng_spatial_observe_scratch(b, conv);
  if (b->entry->d.kind == NG_LINEAR) return ng_gram_rows_scratch(ng_max64(n[0], n[1]) + 1);
  if (conv->height == 0) return 0; /* undeclared size: the first observation allocates */
  return ng_gram_conv_scratch(b->ctx->queue, conv, a->hi - a->lo, g->hi - g->lo);
}

/* The scratch of an output gradient does not depend on the image size, because pixels are added as rows. */
int64_t ng_kron_observation_scratch(const ng_block *b, const ng_obs *o) {
  const ng_kron *k = ng_kron_of(b);
  const ng_part *g = &k->side[NG_SIDE_G].part[0];
  if (b->entry->d.kind != NG_CONV2D) return 0;
  if (o->kind == NG_OBSERVED_OUTGRAD)
    return ng_gram_rows_scratch(g->hi - g->lo) * (int64_t)sizeof(float);
  const ng_conv c = ng_obs_conv(&k->conv, o);
  return ng_times(observation_floats(b, &c), (int64_t)sizeof(float));
}

/* The results of a side are contiguous, solve_info first, so that one message sends the side. In the counting
 * pass all pointers are NULL. */
ng_status ng_kron_request_memory(ng_block *b, ng_plan *plan) {
  ng_kron *k = ng_kron_of(b);
  const int64_t real = (int64_t)sizeof(float);
  if (k->spatial != NULL) ng_spatial_link(k);
  int64_t floats = observation_floats(b, &k->conv);
  for (int side = 0; side < k->sides; side++) {
    ng_side *s = &k->side[side];
    const int32_t owner = s->stat->owner;
    if (b->is_worker) s->solve_info = ng_plan_result(plan, owner, ng_kron_info_count(k, s) * real);
    for (int32_t i = 0; i < s->parts; i++) {
      ng_matrix *m = &s->matrix[i];
      const bool diagonal = m->form == NG_FORM_DIAGONAL;
      if (s->stat->has_average) floats = ng_max64(floats, ng_matrix_scratch(b->ctx->queue, m));
      if (!b->is_worker) continue;
      if (!diagonal) {
        m->R = ng_plan_result(plan, owner, ng_matrix_count(m) * ng_dtype_size(m->result_dtype));
      }
      if (k->is_eigen || diagonal) {
        m->d = ng_plan_result(plan, owner, m->n * ng_dtype_size(k->is_double ? NG_F64 : NG_F32));
      }
    }
  }
  if (k->spatial != NULL) {
    floats = ng_max64(floats, ng_spatial_request_results(b, plan));
    ng_spatial_link(k);
  }
  if (k->rows != NULL) ng_kron_rows_request(b, plan);
  floats = ng_max64(floats, ng_kron_apply_scratch(b));
  ng_plan_direction(plan, b, NG_BY_FAMILY, ng_kron_direction_floats(k));
  ng_plan_scratch(plan, ng_times(floats, real));
  return NG_OK;
}

/* ---- state -----------------------------------------------------------------------------------*/

/* Files contain the results of the last solve: a resumed run must solve at the same steps as an uninterrupted run. */
static void visit_part_results(const ng_kron *k, int side, int32_t i, ng_field_visit visit,
                               void *arg) {
  static const char *const suffix[] = {[NG_RESULT_INVERSE] = "_inverse",
                                       [NG_RESULT_CHOLESKY] = "_cholesky",
                                       [NG_RESULT_EIGEN] = "_eigenvectors",
                                       [NG_RESULT_COPY] = "_copy"};
  const ng_matrix *m = &k->side[side].matrix[i];
  const ng_stat *s = k->side[side].stat;
  const int64_t n = m->n;
  if (m->form != NG_FORM_DIAGONAL) {
    ng_field f = ng_part_field(s, i, suffix[m->result], m->result_dtype, n, n, m->R);
    f.is_symmetric = !k->is_eigen;
    if (m->result != NG_RESULT_CHOLESKY) { /* a triangular factor stays in internal order */
      f.col_offsets = s->part[k->side[side].part[i].of_stat].offsets;
      f.col_channels = s->part[k->side[side].part[i].of_stat].channels;
    }
    if (f.is_symmetric) { /* a row of eigenvectors is one eigenvector: only columns are permuted */
      f.row_offsets = f.col_offsets;
      f.row_channels = f.col_channels;
    }
    visit(arg, &f);
    if (!k->is_eigen) return;
  }
  ng_field f = ng_part_field(s, i, k->is_eigen ? "_eigenvalues" : "_inverse",
                             k->is_double ? NG_F64 : NG_F32, 1, n, m->d);
  visit(arg, &f);
}

/* Every rank visits the same fields in the same order, because the owner of a field broadcasts it and rank 0 writes it.
 * `data` is NULL on ranks that do not hold the field. */
void ng_kron_visit_fields(ng_block *b, ng_field_visit visit, void *arg) {
  const ng_kron *k = ng_kron_of(b);
  for (int side = 0; side < k->sides; side++) {
    const ng_side *s = &k->side[side];
    for (int32_t i = 0; i < s->parts; i++) {
      visit_part_results(k, side, i, visit, arg);
    }
    if (side == NG_SIDE_A && k->spatial != NULL) ng_spatial_visit_results(k, visit, arg);
    ng_field f = ng_field_plain(side == NG_SIDE_A ? "A_solve" : "G_solve", NG_F32, 1,
                                ng_kron_info_count(k, s), s->solve_info, s->stat->owner);
    visit(arg, &f);
  }
}

/* Visit shifts as numbers, because arrays with shifts would differ between ranks (docs/algorithms.md, damping_leak). */
static void visit_numbers(ng_block *b, ng_number_visit visit, void *arg) {
  ng_kron *k = ng_kron_of(b);
  ng_number lambda = {
      .name = "prediv_damping", .value = &k->lambda, .stat = k->side[NG_SIDE_G].stat};
  if (b->base.solver == NG_SOLVER_EIGEN_PREDIV) visit(arg, &lambda);
  for (int i = 0; i < 2; i++) {
    for (int64_t g = 0; g < k->groups && b->base.damping_leak; g++) {
      ng_number n = {.value = &k->side[i].shift[g], .stat = k->side[i].stat};
      ng_name_append(n.name, sizeof n.name, k->side[i].stat->name);
      ng_name_append(n.name, sizeof n.name, "_leak.");
      ng_name_append_number(n.name, sizeof n.name, g);
      visit(arg, &n);
    }
  }
}

const ng_family ng_family_kronecker = {
    .can_shard = true,
    .name = "kronecker",
    .traits = NG_TRAIT_FACTORS | NG_TRAIT_SOLVES,
    .observed = NG_OBSERVED_INPUT | NG_OBSERVED_OUTGRAD,
    .accepts_entry = accepts_entry,
    .check_options = check_options,
    .create_state = create_state,
    .set_initial_values = set_initial_values,
    .declare_statistics = ng_kron_declare_statistics,
    .request_memory = ng_kron_request_memory,
    .observe = ng_kron_observe,
    .wants_arrays = ng_kron_rows_wanted,
    .precondition = ng_kron_precondition,
    .read_sums = ng_kron_read_sums,
    .emit = ng_kron_emit,
    .observation_scratch = ng_kron_observation_scratch,
    .visit_fields = ng_kron_visit_fields,
    .visit_numbers = visit_numbers,
    .solve = ng_kron_solve,
    .read_results = ng_kron_read_results,
    .write_traces = ng_kron_write_traces,
    .write_report = ng_kron_write_report,
    .write_factors = ng_kron_write_factors,
};
