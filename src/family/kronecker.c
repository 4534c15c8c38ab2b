/* kronecker.c: the Kronecker family: geometry, memory, state, and its operation table.
 *
 * In: a layer with its options.  Out: the parts of A and G with their orders, where each lies in
 * memory, and what of them is saved.
 *
 * The Fisher block of a layer is approximated by A (x) G, A the second moment of its inputs (a 1
 * appended for the bias), G that of its output gradients (Martens & Grosse 2015, arXiv 1503.05671,
 * section 3; convolutions: Grosse & Martens 2016, arXiv 1602.01407).  With D [q, p] the gradient,
 * bias last,
 *
 *     (A (x) G)^-1 vec(D) = vec(G^-1 D A^-1)
 *
 * so two small matrices are inverted in place of one of order p q.  kronecker_stats.c makes the
 * running averages, kronecker_solve.c inverts them, kronecker_apply.c makes PD and emits it.
 *
 * Inside, the columns of a convolution are (kernel offset, channel): the blocks of one displacement
 * are then contiguous (stat/gram_shift.c).  The weight has (channel, kernel offset); `map` goes
 * between, and files have the order of the weight (state/field_order.c).  Averages, inverses and
 * eigenvectors depend on the order by a permutation only, so nothing else needs to know it; a
 * triangular factor is another one in another order, and stays in its own. */
#include "family/kronecker.h"

/* ---- geometry --------------------------------------------------------------------------------*/

/* Parts of one side in one group: at least factor_blocks, none wider than max_factor, cut between
 * channels; sizes differ by at most one channel, the larger first; the bias joins the last.  A cut
 * between kernel offsets would tear a patch apart, so with a channel a part it ends, even if one
 * channel's offsets alone are wider than max_factor.  `first` is the widest part without a bias,
 * `last` the one with it. */
static int64_t count_parts(const ng_settings *o, int64_t channels, int64_t offsets, bool one) {
  int64_t low = ng_min64(o->factor_blocks, channels), high = o->max_factor > 0 ? channels : low;
  while (low < high) { /* neither width grows with k */
    const int64_t k = low + (high - low) / 2;
    const int64_t first = offsets * ((channels + k - 1) / k), last = offsets * (channels / k) + one;
    if (ng_max64(first, last) <= o->max_factor) {
      high = k;
    } else {
      low = k + 1;
    }
  }
  return low;
}

static ng_status no_memory(ng_block *b) {
  return ng_fail(b->ctx, NG_ERR_NOMEM, "no memory for the block of '%s'", b->entry->d.name);
}

/* The parts of all groups, group after group.  `at` says where a part meets the gradient: columns
 * are counted inside a group (all groups have the same p), rows over the whole layer, because D
 * [out, p] has the groups below each other.  A factor beyond 32-bit LAPACK is refused here, where
 * the layer has a name, and not in the middle of a step. */
static ng_status make_side(ng_block *b, int which, int64_t channels, bool one) {
  ng_kron *k = ng_kron_of(b);
  ng_side *s = &k->side[which];
  const int64_t offsets = which == NG_SIDE_A ? k->offsets : 1;
  const bool diagonal = which == NG_SIDE_G && b->base.output_factor == NG_OUTPUT_DIAGONAL;
  const int64_t each = diagonal ? channels : count_parts(&b->base, channels, offsets, one);
  if (each * k->groups > NG_LISTED) {
    return ng_fail(b->ctx, NG_ERR_ARG, "layer '%s': %lld diagonal blocks of %s, at most %lld; %s",
                   b->entry->d.name, (long long)(each * k->groups), which == NG_SIDE_A ? "A" : "G",
                   (long long)NG_LISTED,
                   diagonal ? "leave output_factor at full"
                            : "take a larger max_factor or smaller factor_blocks");
  }
  s->each = (int32_t)each;
  s->parts = (int32_t)(each * k->groups);
  s->part = ng_object(b->p, (size_t)s->parts * sizeof *s->part);
  s->shift = ng_object(b->p, (size_t)k->groups * sizeof *s->shift);
  if (s->part == NULL || s->shift == NULL) return no_memory(b);
  for (int64_t g = 0; g < k->groups; g++) {
    int64_t channel = g * channels, column = 0;
    for (int64_t i = 0; i < each; i++) {
      ng_part *part = &s->part[g * each + i];
      const int64_t width = channels / each + (i < channels % each ? 1 : 0);
      part->group = (int32_t)g;
      part->lo = channel;
      part->hi = channel += width;
      part->one = one && i == each - 1;
      part->n = offsets * width + part->one;
      part->at = which == NG_SIDE_A ? column : part->lo;
      column += part->n;
      if (!ng_linalg_fits(part->n)) {
        return ng_fail(b->ctx, NG_ERR_ARG,
                       "layer '%s': a factor of order %lld is beyond 32-bit LAPACK; set max_factor",
                       b->entry->d.name, (long long)part->n);
      }
    }
  }
  return NG_OK;
}

static void fill_map(ng_kron *k) {
  const int64_t channels = k->side[NG_SIDE_A].part[0].lo;
  for (int32_t i = 0; i < k->side[NG_SIDE_A].each; i++) {
    const ng_part *part = &k->side[NG_SIDE_A].part[i];
    const int64_t width = part->hi - part->lo;
    for (int64_t o = 0; o < k->offsets; o++) {
      for (int64_t c = 0; c < width; c++) {
        k->map[part->at + o * width + c] = (int32_t)((part->lo - channels + c) * k->offsets + o);
      }
    }
    if (part->one) k->map[part->at + part->n - 1] = (int32_t)(k->p - 1);
  }
  for (int64_t c = 0; c < k->p; c++) {
    k->unmap[k->map[c]] = (int32_t)c;
  }
}

/* Where columns are permuted: one offset a channel is in order as it is.  Group 0 stands for all: the weight of a
 * group has the same columns as that of any other. */
static ng_status make_map(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  if (k->offsets == 1) return NG_OK;
  if (k->p > NG_LISTED) {
    return ng_fail(b->ctx, NG_ERR_ARG,
                   "layer '%s': its weight has %lld columns, at most %lld of a convolution with A",
                   b->entry->d.name, (long long)k->p, (long long)NG_LISTED);
  }
  k->map = ng_object(b->p, (size_t)k->p * sizeof *k->map);
  k->unmap = ng_object(b->p, (size_t)k->p * sizeof *k->unmap);
  if (k->map == NULL || k->unmap == NULL) return no_memory(b);
  fill_map(k);
  return NG_OK;
}

/* What is known without memory for it: decided by base, which no schedule moves, because sizes must
 * not depend on the step.  After a failure half way destroy is called, and finds what there is. */
static ng_status create(ng_block *b) {
  const ng_layer *d = &b->entry->d;
  ng_kron *k = ng_object(b->p, sizeof *k);
  if (k == NULL) return no_memory(b);
  b->state = k;
  const bool conv = d->kind == NG_CONV2D;
  k->groups = conv ? d->groups : 1;
  k->offsets = conv ? d->kernel[0] * d->kernel[1] : 1;
  k->out = d->out;
  k->q = d->out / k->groups;
  k->p = d->in / k->groups * k->offsets + d->bias;
  k->eigen = b->base.solver == NG_SOLVER_EIGEN;
  k->product = b->ascends = b->base.solver == NG_SOLVER_PRODUCT;
  k->inverse_dtype = b->base.inverse_dtype;
  /* PD = D + k H of these blocks and G^-1 D A^-1 of the others have no common scale for the
   * clip. */
  if (k->product != (b->p->base.solver == NG_SOLVER_PRODUCT)) {
    return ng_fail(b->ctx, NG_ERR_ARG,
                   "layer '%s': solver = %s beside %s: product is for all layers or for none",
                   d->name, ng_choice_text(NG_OPTION_solver, (int32_t)b->base.solver),
                   b->p->opt.solver);
  }
  if (conv) {
    k->conv = (ng_conv){.channels = d->in,
                        .height = d->image[0],
                        .width = d->image[1],
                        .oh = b->entry->oh,
                        .ow = b->entry->ow,
                        .out = d->out};
    for (int i = 0; i < 2; i++) {
      k->conv.kernel[i] = d->kernel[i];
      k->conv.stride[i] = d->stride[i];
      k->conv.padding[i] = d->padding[i];
      k->conv.dilation[i] = d->dilation[i];
    }
  }
  ng_status st = make_side(b, NG_SIDE_A, d->in / k->groups, d->bias != 0);
  if (st == NG_OK) st = make_side(b, NG_SIDE_G, k->q, false);
  if (st == NG_OK) st = make_map(b);
  if (st != NG_OK) return st;
  /* For people: ng_explain shows it. */
  int at = snprintf(b->entry->why, sizeof b->entry->why, "A %lldx%lld, G %lldx%lld",
                    (long long)k->p, (long long)k->p, (long long)k->q, (long long)k->q);
  if (k->groups > 1) {
    at += snprintf(b->entry->why + at, sizeof b->entry->why - (size_t)at, ", %lld groups",
                   (long long)k->groups);
  }
  if (k->side[0].each > 1 || k->side[1].each > 1) {
    (void)snprintf(b->entry->why + at, sizeof b->entry->why - (size_t)at,
                   ", cut into %d and %d diagonal blocks", k->side[0].each, k->side[1].each);
  }
  return NG_OK;
}

/* A is a vector, of which there are no parts (kronecker_embedding.c); G as of any layer. */
ng_status ng_kron_create_embedding(ng_block *b) {
  const ng_layer *d = &b->entry->d;
  ng_kron *k = ng_object(b->p, sizeof *k);
  if (k == NULL) return no_memory(b);
  b->state = k;
  k->groups = k->offsets = 1;
  k->vocabulary = d->in;
  k->p = k->q = k->out = d->out;
  k->eigen = b->base.solver == NG_SOLVER_EIGEN;
  k->inverse_dtype = b->base.inverse_dtype;
  k->side[NG_SIDE_A].shift = ng_object(b->p, sizeof(double));
  return k->side[NG_SIDE_A].shift == NULL ? no_memory(b) : make_side(b, NG_SIDE_G, d->out, false);
}

/* Objects only: averages, sums and results are in the arenas, which go in one piece. */
void ng_kron_destroy(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  if (k == NULL) return;
  for (int i = 0; i < 2; i++) {
    ng_object_free(b->p, k->side[i].part, (size_t)k->side[i].parts * sizeof(ng_part));
    ng_object_free(b->p, k->side[i].shift, (size_t)k->groups * sizeof(double));
  }
  ng_object_free(b->p, k->map, (size_t)k->p * sizeof *k->map);
  ng_object_free(b->p, k->unmap, (size_t)k->p * sizeof *k->unmap);
  ng_object_free(b->p, k, sizeof *k);
  b->state = NULL;
}

/* Layers only: a tensor has no inputs and outputs.  By name, so that a family of the caller's with
 * other wishes may be asked first. */
static bool fits(const ng_settings *o, const ng_entry *e) {
  return !e->tensor && e->d.kind != NG_NORM && e->d.kind != NG_EMBEDDING &&
         ng_is(o->family, "kronecker");
}

/* Nothing is inverted: what damps an inverse must hold its default. */
static ng_status check_product(const ng_options *o, char *message, size_t size) {
  static const ng_option_id damps[] = {NG_OPTION_damping, NG_OPTION_damping_split,
                                       NG_OPTION_damping_leak};
  for (int i = 0; i < 3; i++) {
    const ng_option_row *row = &ng_option_table[damps[i]];
    char value[64];
    if (ng_option_write(row, o, value, sizeof value) && ng_is(value, row->standard)) continue;
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "%s = %s: solver = product inverts nothing; leave it at %s", row->name, value,
                      row->standard);
  }
  return NG_OK;
}

/* An option that could have no effect beside the others is refused, unless it holds the value that
 * means nothing: a run whose options say joint damping must not quietly be one with another.  The
 * text of a refusal names the option and what to set, since who reads it has a command line and no
 * source. */
static ng_status check(const ng_options *o, const ng_settings *s, char *message, size_t size) {
  const bool eigen = s->solver == NG_SOLVER_EIGEN, joint = s->damping_split == NG_SPLIT_JOINT;
  const ng_status st = ng_family_check_others("kronecker", o, message, size);
  if (st != NG_OK) return st;
  if (s->stat_scale == NG_SCALE_EVA) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "stat_scale = eva: method %s takes textbook, kaisa or mpd-kfac", o->method);
  }
  /* lambda on the products of eigenvalues (Pauloski et al. 2021, arXiv 2107.01739) is no shift of A
   * or of G, so Cholesky has nothing to add it to. */
  if (joint && !eigen) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "damping_split = joint needs solver = eigen; with %s take pi or full",
                      o->solver);
  }
  if (s->prediv && !eigen) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "prediv = 1 needs solver = eigen; with %s set prediv = 0", o->solver);
  }
  if (s->eigen_floor > 0 && !eigen) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "eigen_floor = %g needs solver = eigen; with %s set eigen_floor = 0",
                      s->eigen_floor, o->solver);
  }
  if (s->solver != NG_SOLVER_CHOLESKY && s->cholesky_form != NG_FORM_AUTO) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "cholesky_form = %s needs solver = cholesky; with %s leave it at auto",
                      o->cholesky_form, o->solver);
  }
  if ((s->solver == NG_SOLVER_PRODUCT) != (s->radius > 0)) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "radius = %g with solver = %s: product needs a radius above 0, the others 0",
                      s->radius, o->solver);
  }
  /* What leaks is the shift that the published inverse solver leaves in its stored factor. */
  if (s->damping_leak && joint) {
    return ng_fail_to(
        message, size, NG_ERR_ARG,
        "damping_leak = 1 needs damping_split = pi or full: a joint damping shifts no "
        "factor");
  }
  /* Kernels add to f32 only, and with fold = direct the average is what they add to. */
  if (s->fold == NG_FOLD_DIRECT && s->factor_dtype != NG_F32) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "fold = direct adds in f32 and needs factor_dtype = f32, it is %s",
                      o->factor_dtype);
  }
  /* The eigenvalues may be 0, so 1 / damping is what has to fit. */
  if (s->solver == NG_SOLVER_EIGEN && s->prediv && s->inverse_dtype == NG_F16 &&
      ng_schedule_least(o, NG_OPTION_damping) * ng_dtype_most(NG_F16) < 1.0) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "prediv = 1 keeps up to 1 / damping, which inverse_dtype = f16 holds from a "
                      "damping of 1.53e-5 on, it is %g%s",
                      ng_schedule_least(o, NG_OPTION_damping),
                      s->damping * ng_dtype_most(NG_F16) < 1.0 ? "" : " by its schedule");
  }
  return s->solver == NG_SOLVER_PRODUCT ? check_product(o, message, size) : NG_OK;
}

/* ---- statistics, memory ----------------------------------------------------------------------*/

/* Only shapes and names: weights, averages and owners are the engine's (stat/stat.h,
 * step/ready.c). */
ng_status ng_kron_statistics(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  ng_status st = ng_block_take_stats(b, 2);
  b->tells = k->groups;
  for (int side = 0; side < 2 && st == NG_OK; side++) {
    ng_side *of = &k->side[side];
    ng_stat *s = of->stat = &b->stat[side];
    s->name = side == NG_SIDE_A ? "A" : "G";
    s->sees = side == NG_SIDE_A ? NG_SEES_INPUT : NG_SEES_OUTGRAD;
    s->symmetric = s->rule.averaged = true;
    s->kept = b->base.factor_dtype;
    s->shift = b->base.damping_leak ? of->shift : NULL;
    st = ng_stat_take_parts(b, s, (int32_t)k->groups, of->part == NULL ? 1 : of->each);
    for (int32_t i = 0; i < of->parts && st == NG_OK; i++) {
      s->part[i].rows = s->part[i].cols = of->part[i].n;
      s->part[i].offsets = side == NG_SIDE_A ? k->offsets : 1;
      s->part[i].channels = of->part[i].hi - of->part[i].lo;
    }
  }
  return st;
}

/* Part 0 is the widest without the bias: parts are cut with the larger first, hence the + 1. */
static int64_t observe_scratch(const ng_block *b, const ng_conv *conv) {
  const ng_kron *k = ng_kron_of(b);
  const ng_part *a = &k->side[NG_SIDE_A].part[0], *g = &k->side[NG_SIDE_G].part[0];
  if (b->entry->d.kind == NG_LINEAR) return ng_rows_scratch(ng_max64(a->n, g->n) + 1);
  if (conv->height == 0) return 0; /* no size was told: the first observation takes it */
  return ng_conv_scratch(b->ctx, conv, a->hi - a->lo, g->hi - g->lo);
}

/* Of an output gradient the size of the input is not known, nor needed: it is read pixel by pixel. */
ng_conv ng_kron_conv(const ng_kron *k, const ng_obs *o) {
  ng_conv c = k->conv;
  c.oh = o->out[0];
  c.ow = o->out[1];
  c.height = o->size[0];
  c.width = o->size[1];
  return c;
}

int64_t ng_kron_room(const ng_block *b, const ng_obs *o) {
  const ng_kron *k = ng_kron_of(b);
  const ng_part *g = &k->side[NG_SIDE_G].part[0];
  if (b->entry->d.kind == NG_LINEAR) return 0;
  if (o->what == NG_SEES_OUTGRAD) return ng_rows_scratch(g->hi - g->lo) * (int64_t)sizeof(float);
  const ng_conv c = ng_kron_conv(k, o);
  return ng_times(observe_scratch(b, &c), (int64_t)sizeof(float));
}

/* Results of a side lie in its owner's run, `says` at its head, matrices behind it: what an owner
 * tells its column is then one message, and the words arrive with the numbers that they are about.
 * Called twice, so pointers of the counting pass are NULL; which form a Cholesky result has is the
 * same both times.  prediv needs both spectra, so it goes with G, which is solved last. */
static ng_status plan(ng_block *b, ng_plan *plan) {
  ng_kron *k = ng_kron_of(b);
  const int64_t size = ng_dtype_size(k->inverse_dtype);
  for (int side = 0; side < 2; side++) {
    ng_side *s = &k->side[side];
    const int32_t owner = s->stat->owner;
    const int64_t applied = side == NG_SIDE_A ? k->q : k->p;
    if (b->holds) {
      s->says = ng_plan_result(plan, owner, ng_kron_says(k, side) * (int64_t)sizeof(float));
    }
    for (int32_t i = 0; i < s->parts; i++) {
      ng_part *part = &s->part[i];
      part->is_factor = ng_kron_keeps_factor(b, part->n, applied);
      if (!b->holds) continue;
      if (k->eigen) {
        part->V = ng_plan_result(plan, owner, part->n * part->n * size);         /* [n, n] */
        part->d = ng_plan_result(plan, owner, part->n * (int64_t)sizeof(float)); /* [n] */
      } else {
        part->R = ng_plan_result(plan, owner, ng_sym_count(part->n) * size); /* one triangle */
      }
    }
  }
  if (b->holds && k->eigen && b->base.prediv) {
    k->prediv = ng_plan_result(plan, k->side[NG_SIDE_G].stat->owner, k->out * k->p * size);
  }
  ng_plan_direction(plan, b, k->out * k->p);
  const int64_t floats = ng_max64(ng_max64(observe_scratch(b, &k->conv), ng_kron_solve_scratch(b)),
                                  ng_kron_apply_scratch(b));
  ng_plan_scratch(plan, ng_times(floats, (int64_t)sizeof(float)));
  return NG_OK;
}

/* ---- state -----------------------------------------------------------------------------------*/

/* Arrays of one part: "A_inverse", "G.1_eigenvectors".  These names are in files: keep them. */
static ng_field field_of(const ng_kron *k, int side, int32_t i, const char *suffix, ng_dtype t,
                         int64_t rows, int64_t cols, void *data) {
  const ng_side *s = &k->side[side];
  ng_field f = ng_field_plain(s->stat->name, t, rows, cols, data, s->stat->owner);
  if (s->parts > 1) {
    ng_name_add(f.name, sizeof f.name, ".");
    ng_name_count(f.name, sizeof f.name, i);
  }
  ng_name_add(f.name, sizeof f.name, suffix);
  return f;
}

/* Results are saved although the averages could be solved anew: a resumed run would otherwise solve
 * at another step than the one that was not interrupted, and give other bits. */
static ng_status visit_part(const ng_kron *k, int side, int32_t i, ng_field_visit visit,
                            void *arg) {
  const ng_part *part = &k->side[side].part[i];
  const int64_t n = part->n;
  if (k->eigen) {
    ng_field f = field_of(k, side, i, "_eigenvectors", k->inverse_dtype, n, n, part->V);
    f.col_offsets = k->side[side].stat->part[i].offsets; /* rows count eigenvectors */
    f.col_channels = part->hi - part->lo;
    const ng_status st = visit(arg, &f);
    if (st != NG_OK) return st;
    f = field_of(k, side, i, "_eigenvalues", NG_F32, 1, n, part->d);
    return visit(arg, &f);
  }
  const char *suffix = k->product ? "_copy" : part->is_factor ? "_cholesky" : "_inverse";
  ng_field f = field_of(k, side, i, suffix, k->inverse_dtype, n, n, part->R);
  f.sym = true;
  if (!part->is_factor) { /* a triangular factor belongs to its order of rows: kept as it is */
    f.row_offsets = f.col_offsets = k->side[side].stat->part[i].offsets;
    f.row_channels = f.col_channels = part->hi - part->lo;
  }
  return visit(arg, &f);
}

/* In the same order on every rank, those that hold nothing included: data is NULL there, and the
 * owner broadcasts what rank 0 writes. */
ng_status ng_kron_fields(ng_block *b, ng_field_visit visit, void *arg) {
  const ng_kron *k = ng_kron_of(b);
  ng_status st = NG_OK;
  for (int side = 0; side < 2 && st == NG_OK; side++) {
    const ng_side *s = &k->side[side];
    for (int32_t i = 0; i < s->parts && st == NG_OK; i++) {
      st = visit_part(k, side, i, visit, arg);
    }
    if (st != NG_OK) return st;
    ng_field f = ng_field_plain(side == NG_SIDE_A ? "A_solve" : "G_solve", NG_F32, 1,
                                ng_kron_says(k, side), s->says, s->stat->owner);
    st = visit(arg, &f);
  }
  if (st != NG_OK || !k->eigen || !b->base.prediv) return st;
  /* in the eigenbases: no order but that of the eigenvectors */
  ng_field f =
      ng_field_plain("prediv", k->inverse_dtype, k->vocabulary > 0 ? k->vocabulary : k->out, k->p,
                     k->prediv, k->side[NG_SIDE_G].stat->owner);
  return visit(arg, &f);
}

/* The shift that waits in the averages: it is not in the arrays, so that those are the same on all
 * ranks (docs/algorithms.md, damping_leak). */
ng_status ng_kron_numbers(ng_block *b, ng_number_visit visit, void *arg) {
  ng_kron *k = ng_kron_of(b);
  ng_status st = NG_OK;
  for (int i = 0; i < 2; i++) {
    for (int64_t g = 0; g < k->groups && st == NG_OK && b->base.damping_leak; g++) {
      ng_number n = {.value = &k->side[i].shift[g], .stat = k->side[i].stat};
      ng_name_add(n.name, sizeof n.name, k->side[i].stat->name);
      ng_name_add(n.name, sizeof n.name, "_leak.");
      ng_name_count(n.name, sizeof n.name, g);
      st = visit(arg, &n);
    }
  }
  return st;
}

const ng_family ng_family_kronecker = {
    .shards = true,
    .version = NG_FAMILY_VERSION,
    .name = "kronecker",
    .sees = NG_SEES_INPUT | NG_SEES_OUTGRAD,
    .scope = NG_SCOPE_LAYER,
    .fits = fits,
    .check = check,
    .create = create,
    .destroy = ng_kron_destroy,
    .statistics = ng_kron_statistics,
    .plan = plan,
    .observe = ng_kron_observe,
    .measure = ng_kron_measure,
    .emit_tile = ng_kron_emit_tile,
    .room = ng_kron_room,
    .norms = ng_kron_norms,
    .fields = ng_kron_fields,
    .numbers = ng_kron_numbers,
    .solve = ng_kron_solve,
    .shared = ng_kron_shared,
    .tell = ng_kron_tell,
    .report = ng_kron_report,
};
