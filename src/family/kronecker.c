/* kronecker.c: the Kronecker family: geometry, memory, state, and its operation table.
 *
 * F ~ A (x) G (Martens & Grosse 2015, arXiv 1503.05671; convolutions: Grosse & Martens 2016, arXiv
 * 1602.01407).  kronecker_stats.c makes the running averages, kronecker_solve.c inverts them,
 * kronecker_apply.c makes PD and emits it. */
#include "family/kronecker.h"

#include "core/core.h"

/* ---- geometry --------------------------------------------------------------------------------*/

/* Parts of one side in one group: at least factor_blocks, none wider than max_factor, cut between
 * channels; sizes differ by at most one, the larger first; the bias joins the last. */
static int64_t count_parts(const ng_settings *o, int64_t channels, int64_t offsets, bool one) {
  int64_t k = ng_min64(o->factor_blocks, channels);
  while (o->max_factor > 0 && k < channels) {
    const int64_t first = offsets * ((channels + k - 1) / k), last = offsets * (channels / k) + one;
    if (ng_max64(first, last) <= o->max_factor) break;
    k++;
  }
  return k;
}

static ng_status no_memory(ng_block *b) {
  return ng_fail(b->p->ctx, NG_ERR_NOMEM, "no memory for the block of '%s'", b->entry->d.name);
}

static ng_status make_side(ng_block *b, int which, int64_t channels, bool one) {
  ng_kron *k = ng_kron_of(b);
  ng_side *s = &k->side[which];
  const int64_t offsets = which == NG_SIDE_A ? k->offsets : 1;
  const int64_t each = count_parts(&b->opt, channels, offsets, one);
  s->each = (int32_t)each;
  s->parts = (int32_t)(each * k->groups);
  s->part = ng_object(b->p, (size_t)s->parts * sizeof *s->part);
  s->leak = ng_object(b->p, (size_t)k->groups * sizeof *s->leak);
  if (s->part == NULL || s->leak == NULL) return no_memory(b);
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
        return ng_fail(b->p->ctx, NG_ERR_ARG,
                       "layer '%s': a factor of order %lld is beyond 32-bit LAPACK; set max_factor",
                       b->entry->d.name, (long long)part->n);
      }
    }
  }
  return NG_OK;
}

static void make_map(ng_kron *k) {
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
}

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
  k->eigen = b->opt.solver == NG_SOLVER_EIGEN;
  k->product = b->opt.solver == NG_SOLVER_PRODUCT;
  if (k->product != (b->p->now.solver == NG_SOLVER_PRODUCT)) {
    b->ops->destroy(b);
    return ng_fail(b->p->ctx, NG_ERR_ARG,
                   "layer '%s': solver = %s beside %s: product is for all layers or for none",
                   d->name, ng_choice_text(NG_OPTION_solver, (int32_t)b->opt.solver),
                   b->p->opt.solver);
  }
  k->direct = b->opt.fold == NG_FOLD_DIRECT;
  k->factor_dtype = b->opt.factor_dtype;
  k->inverse_dtype = b->opt.inverse_dtype;
  if (k->direct && k->factor_dtype != NG_F32) {
    b->ops->destroy(b);
    return ng_fail(b->p->ctx, NG_ERR_ARG,
                   "layer '%s': fold = direct adds in f32 and needs factor_dtype = f32, it is %s",
                   d->name, ng_dtype_name(b->opt.factor_dtype));
  }
  if (conv) {
    k->conv = (ng_conv){.channels = d->in,
                        .height = d->image[0],
                        .width = d->image[1],
                        .oh = b->entry->oh,
                        .ow = b->entry->ow,
                        .out = d->out,
                        .layout = d->layout};
    for (int i = 0; i < 2; i++) {
      k->conv.kernel[i] = d->kernel[i];
      k->conv.stride[i] = d->stride[i];
      k->conv.padding[i] = d->padding[i];
      k->conv.dilation[i] = d->dilation[i];
    }
  }
  ng_status st = make_side(b, NG_SIDE_A, d->in / k->groups, d->bias != 0);
  if (st == NG_OK) st = make_side(b, NG_SIDE_G, k->q, false);
  if (st == NG_OK) {
    k->map = ng_object(b->p, (size_t)k->p * sizeof *k->map);
    if (k->map == NULL) st = no_memory(b);
  }
  if (st != NG_OK) {
    b->ops->destroy(b);
    return st;
  }
  make_map(k);
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

static void destroy(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  if (k == NULL) return;
  for (int i = 0; i < 2; i++) {
    ng_object_free(b->p, k->side[i].part, (size_t)k->side[i].parts * sizeof(ng_part));
    ng_object_free(b->p, k->side[i].leak, (size_t)k->groups * sizeof(double));
  }
  ng_object_free(b->p, k->map, (size_t)k->p * sizeof *k->map);
  ng_object_free(b->p, k, sizeof *k);
  b->state = NULL;
}

/* ---- memory ----------------------------------------------------------------------------------*/

static int64_t observe_scratch(const ng_block *b) {
  const ng_kron *k = ng_kron_of(b);
  const ng_part *a = &k->side[NG_SIDE_A].part[0], *g = &k->side[NG_SIDE_G].part[0];
  if (b->entry->d.kind == NG_CONV2D) {
    return ng_conv_scratch(b->p->ctx, &k->conv, a->hi - a->lo, g->hi - g->lo);
  }
  return ng_rows_scratch(ng_max64(a->n, g->n) + 1);
}

static ng_status plan(ng_block *b, ng_plan *plan) {
  ng_kron *k = ng_kron_of(b);
  const int64_t fsize = ng_dtype_size(k->factor_dtype), isize = ng_dtype_size(k->inverse_dtype);
  const int64_t held =
      plan->bytes[NG_USE_FACTORS] + plan->bytes[NG_USE_SUMS] + plan->bytes[NG_USE_RESULTS];
  if (b->holds_result)
    k->told = ng_plan_take(plan, NG_USE_RESULTS, ng_kron_told(k) * (int64_t)sizeof(float));
  for (int side = 0; side < 2; side++) {
    const int64_t applied = side == NG_SIDE_A ? k->q : k->p;
    for (int32_t i = 0; i < k->side[side].parts; i++) {
      ng_part *part = &k->side[side].part[i];
      const int64_t tri = ng_sym_count(part->n);
      part->is_factor = ng_kron_keeps_factor(b, part->n, applied);
      if (b->holds_stats) {
        part->F = ng_plan_take(plan, NG_USE_FACTORS, tri * fsize);
        part->S.n = part->n;
        part->S.a =
            k->direct ? part->F : ng_plan_take(plan, NG_USE_SUMS, tri * (int64_t)sizeof(float));
      }
      if (!b->holds_result) continue;
      if (k->eigen) {
        part->V = ng_plan_take(plan, NG_USE_RESULTS, part->n * part->n * isize);
        part->d = ng_plan_take(plan, NG_USE_RESULTS, part->n * (int64_t)sizeof(float));
      } else {
        part->R = ng_plan_take(plan, NG_USE_RESULTS, tri * isize);
      }
    }
  }
  if (b->holds_result && k->eigen && b->opt.prediv) {
    k->prediv = ng_plan_take(plan, NG_USE_RESULTS, k->out * k->p * isize);
  }
  b->curvature_bytes =
      plan->bytes[NG_USE_FACTORS] + plan->bytes[NG_USE_SUMS] + plan->bytes[NG_USE_RESULTS] - held;
  k->direction = ng_plan_take(plan, NG_USE_DIRECTION, k->out * k->p * (int64_t)sizeof(float));
  const int64_t floats =
      ng_max64(ng_max64(observe_scratch(b), ng_kron_solve_scratch(b)), ng_kron_apply_scratch(b));
  ng_plan_scratch(plan, floats * (int64_t)sizeof(float));
  k->scratch = plan->place ? (float *)(void *)plan->base[NG_USE_SCRATCH] : NULL;
  return NG_OK;
}

static ng_status begin(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  ng_queue *q = b->p->ctx->queue;
  const bool identity = b->opt.stat_start == NG_START_IDENTITY;
  for (int side = 0; side < 2; side++) {
    ng_average_close(&k->side[side].average);
    for (int32_t i = 0; identity && b->holds_stats && i < k->side[side].parts; i++) {
      const ng_part *part = &k->side[side].part[i];
      ng_on(q)->shift(q, part->n, part->F, k->factor_dtype, 1.0); /* memory begins as zeros */
    }
  }
  return NG_OK;
}

/* ---- state -----------------------------------------------------------------------------------*/

static ng_field field_of(const ng_block *b, int side, const ng_part *part, const char *suffix) {
  const ng_kron *k = ng_kron_of(b);
  ng_field f;
  memset(&f, 0, sizeof f);
  if (k->side[side].parts == 1) {
    (void)snprintf(f.name, sizeof f.name, "%c%s", side == NG_SIDE_A ? 'A' : 'G', suffix);
  } else {
    (void)snprintf(f.name, sizeof f.name, "%c.%td%s", side == NG_SIDE_A ? 'A' : 'G',
                   part - k->side[side].part, suffix);
  }
  f.owner = b->owner;
  f.rows = f.cols = part->n;
  f.row_offsets = f.col_offsets = side == NG_SIDE_A ? k->offsets : 1;
  f.row_channels = f.col_channels = part->hi - part->lo;
  return f;
}

static ng_status visit_part(ng_block *b, int side, const ng_part *part, ng_field_visit visit,
                            void *arg) {
  const ng_kron *k = ng_kron_of(b);
  ng_field f = field_of(b, side, part, "");
  f.dtype = k->factor_dtype;
  f.sym = true;
  f.data = part->F;
  ng_status st = visit(arg, &f);
  if (st != NG_OK) return st;
  if (k->eigen) {
    f = field_of(b, side, part, "_eigenvectors");
    f.dtype = k->inverse_dtype;
    f.data = part->V;
    f.row_offsets = 1; /* rows count eigenvectors */
    f.row_channels = part->n;
    st = visit(arg, &f);
    if (st != NG_OK) return st;
    f = field_of(b, side, part, "_eigenvalues");
    f.dtype = NG_F32;
    f.data = part->d;
    f.rows = 1;
    f.row_offsets = f.col_offsets = 1;
    f.row_channels = 1;
    f.col_channels = part->n;
    return visit(arg, &f);
  }
  f = field_of(b, side, part, k->product ? "_copy" : part->is_factor ? "_cholesky" : "_inverse");
  f.dtype = k->inverse_dtype;
  f.data = part->R;
  f.sym = true;
  if (part->is_factor) {
    /* a triangular factor belongs to its order of rows: kept as it is */
    f.row_offsets = f.col_offsets = 1;
    f.row_channels = f.col_channels = part->n;
  }
  return visit(arg, &f);
}

static ng_status fields(ng_block *b, ng_field_visit visit, void *arg) {
  ng_kron *k = ng_kron_of(b);
  for (int side = 0; side < 2; side++) {
    for (int32_t i = 0; i < k->side[side].parts; i++) {
      const ng_status st = visit_part(b, side, &k->side[side].part[i], visit, arg);
      if (st != NG_OK) return st;
    }
  }
  ng_field f;
  memset(&f, 0, sizeof f);
  f.owner = b->owner;
  f.row_offsets = f.col_offsets = 1;
  if (k->eigen && b->opt.prediv) { /* in the eigenbasis: no order but that of the eigenvectors */
    (void)snprintf(f.name, sizeof f.name, "prediv");
    f.dtype = k->inverse_dtype;
    f.data = k->prediv;
    f.rows = f.row_channels = k->out;
    f.cols = f.col_channels = k->p;
    const ng_status st = visit(arg, &f);
    if (st != NG_OK) return st;
  }
  (void)snprintf(f.name, sizeof f.name, "told");
  f.dtype = NG_F32;
  f.data = k->told;
  f.rows = f.row_channels = 1;
  f.cols = f.col_channels = ng_kron_told(k);
  return visit(arg, &f);
}

static ng_status numbers(ng_block *b, ng_number_visit visit, void *arg) {
  ng_kron *k = ng_kron_of(b);
  ng_status st = NG_OK;
  for (int i = 0; i < 2 && st == NG_OK; i++) {
    const char name = i == NG_SIDE_A ? 'A' : 'G';
    double started = k->side[i].average.started;
    ng_number n;
    (void)snprintf(n.name, sizeof n.name, "%c_started", name);
    n.value = &started;
    st = visit(arg, &n);
    k->side[i].average.started = started != 0.0;
    for (int64_t g = 0; g < k->groups && st == NG_OK; g++) {
      (void)snprintf(n.name, sizeof n.name, "%c_leak.%lld", name, (long long)g);
      n.value = &k->side[i].leak[g];
      st = visit(arg, &n);
    }
  }
  return st;
}

const ng_family_ops ng_family_kronecker = {
    .api_version = 1,
    .name = "kronecker",
    .sees = NG_SEES_INPUT | NG_SEES_OUTGRAD,
    .create = create,
    .destroy = destroy,
    .plan = plan,
    .begin = begin,
    .observe = ng_kron_observe,
    .weights = ng_kron_weights,
    .scale = ng_kron_scale,
    .message = ng_kron_message,
    .fold = ng_kron_fold,
    .forget = ng_kron_forget,
    .solve = ng_kron_solve,
    .shared = ng_kron_shared,
    .measure = ng_kron_measure,
    .norms = ng_kron_norms,
    .emit = ng_kron_emit,
    .fields = fields,
    .numbers = numbers,
};
