/* norm.c: the norm family: gamma and beta of batch, layer and group norms beside any layer-wise method.
 *
 * In: a norm layer.  Out: PD = (F + d I)^-1 D, D the gradient of gamma and beta, F the second moment of their
 * gradients of single samples (norm.h), d = damping x norm_damping.
 *
 *     unit      of each channel the 2x2 block of its gamma and its beta, inverted where it is applied
 *               (Osawa et al. 2020, SP-NGD, arXiv 2002.06015)
 *     diagonal  (Osawa et al. 2019, arXiv 1811.12019)
 *     full      all channels together (norm_full.c): what chainerkfac, the code of both, has
 *
 * Unit and diagonal blocks solve nothing: PD is made from the averages in every step, with the damping of
 * that step, in one loop over the channels. */
#include "family/norm.h"

#include <math.h>

/* ---- geometry, memory ------------------------------------------------------------------------*/

static bool takes(const ng_entry *e) { return !e->tensor && e->d.kind == NG_NORM; }

static bool fits(const ng_settings *o, const ng_entry *e) {
  return takes(e) && (o->norm_block == NG_NORM_UNIT || o->norm_block == NG_NORM_DIAGONAL);
}

/* Any method has norm blocks, so what only its own family has is no business of theirs. */
ng_status ng_norm_check(const ng_options *o, const ng_settings *s, char *message, size_t size) {
  if (s->solver != NG_SOLVER_PRODUCT) return NG_OK;
  return ng_fail_to(message, size, NG_ERR_ARG,
                    "norm_block = %s: solver = product inverts nothing; take norm_block = none",
                    o->norm_block);
}

void ng_norm_destroy(ng_block *b) {
  ng_object_free(b->p, b->state, sizeof(ng_norm));
  b->state = NULL;
}

ng_status ng_norm_create(ng_block *b) {
  static const char *const kind[] = {
      [NG_NORM_UNIT] = "units of 2x2", [NG_NORM_FULL] = "full", [NG_NORM_DIAGONAL] = "diagonal"};
  const ng_layer *d = &b->entry->d;
  ng_norm *k = ng_object(b->p, sizeof *k);
  if (k == NULL) return ng_fail(b->ctx, NG_ERR_NOMEM, "no memory for the block of '%s'", b->name);
  b->state = k;
  k->of = (ng_norm_of){.kind = d->norm_kind,
                       .input = d->norm_input,
                       .eps = d->norm_eps,
                       .channels = d->in,
                       .groups = d->groups,
                       .gamma = d->norm_no_weight == 0,
                       .beta = d->bias != 0};
  k->width = (int64_t)b->entry->slots * d->in;
  k->full = b->base.norm_block == NG_NORM_FULL;
  if (!k->of.gamma) b->sees &= ~(uint32_t)NG_SEES_INPUT;
  if (k->full && !ng_linalg_fits(k->width)) {
    return ng_fail(b->ctx, NG_ERR_ARG,
                   "layer '%s': a norm block of order %lld is beyond 32-bit LAPACK; take "
                   "norm_block = unit",
                   b->name, (long long)k->width);
  }
  const bool single = b->entry->slots == 1 && !k->full;
  (void)snprintf(b->entry->why, sizeof b->entry->why, "F %lldx%lld, %s", (long long)k->width,
                 (long long)k->width, single ? "diagonal" : kind[b->base.norm_block]);
  return NG_OK;
}

static ng_status statistics(ng_block *b) {
  ng_norm *k = ng_norm_of_block(b);
  ng_status st = ng_block_take_stats(b, 1);
  if (st != NG_OK) return st;
  ng_stat *s = b->stat;
  s->name = "F";
  s->sees = NG_SEES_OUTGRAD;
  s->with = k->of.gamma ? NG_SEES_INPUT : 0;
  s->symmetric = k->full;
  /* What rounding F to f32 loses is its condition times 6e-8, and F is often all but singular: a batch has fewer
   * samples than F has rows. */
  if (k->full && k->width <= NG_SMALL_SOLVE) s->kept = s->wire = NG_F64;
  s->rule.averaged = true;
  s->shift = b->base.damping_leak ? &k->shift : NULL;
  st = ng_stat_take_parts(b, s, 1, 1);
  if (st != NG_OK) return st;
  const bool units = b->base.norm_block == NG_NORM_UNIT && b->entry->slots == 2;
  s->part->rows = k->full ? k->width : 1;
  s->part->cols = s->part->channels = k->width + (units ? k->of.channels : 0);
  s->part->diagonal = k->width;
  return NG_OK;
}

static ng_status plan(ng_block *b, ng_plan *plan) {
  const ng_norm *k = ng_norm_of_block(b);
  ng_plan_direction(plan, b, k->width);
  ng_plan_scratch(plan,
                  ng_max64(ng_norm_scratch(b), ng_round16(k->width) * (int64_t)sizeof(float)));
  return NG_OK;
}

ng_status ng_norm_numbers(ng_block *b, ng_number_visit visit, void *arg) {
  ng_number n = {.name = "F_leak.0", .value = &ng_norm_of_block(b)->shift};
  return b->base.damping_leak ? visit(arg, &n) : NG_OK;
}

/* ---- PD --------------------------------------------------------------------------------------*/

bool ng_norm_read(const ng_block *b, float *D) {
  const ng_norm *k = ng_norm_of_block(b);
  for (int32_t i = 0; i < b->segments; i++) {
    ng_slot_read(b->segment[i].slot, 0, 0, k->of.channels, D + i * k->of.channels);
  }
  return ng_all_finite(D, NG_F32, k->width);
}

void ng_norm_measured(ng_block *b, const float *D) {
  b->inner = b->d2 = b->pd2 = 0.0;
  for (int64_t i = 0; i < ng_norm_of_block(b)->width; i++) {
    const double x = (double)D[i], y = (double)b->direction[i];
    b->inner += x * y;
    b->d2 += x * x;
    b->pd2 += y * y;
  }
}

/* Gamma and beta of one channel: PD = [gg gb; gb bb]^-1 D.  With f32 averages gb^2 may be above gg bb by
 * rounding: the determinant counts only where it is more than that. */
static bool solve_unit(double gg, double bb, double gb, const double D[2], double PD[2]) {
  const double SURE = 0x1p-22, whole = gg * bb, det = whole - gb * gb;
  if (!(det > SURE * whole)) return false;
  PD[0] = (bb * D[0] - gb * D[1]) / det;
  PD[1] = (gg * D[1] - gb * D[0]) / det;
  return true;
}

/* Channel by channel: damping x 10, at most 3 times, then the gradient as it is. */
static int32_t units(const ng_block *b, const float *F, double d, const float *D, float *out) {
  const int64_t C = ng_norm_of_block(b)->of.channels;
  int32_t worst = 0;
  for (int64_t c = 0; c < C; c++) {
    const double in[2] = {(double)D[c], (double)D[C + c]};
    double pd[2], shift = d;
    int32_t rung = 0;
    while (rung < 4 && !solve_unit((double)F[c] + shift, (double)F[C + c] + shift,
                                   (double)F[2 * C + c], in, pd)) {
      shift *= 10.0;
      rung++;
    }
    out[c] = rung < 4 ? (float)pd[0] : D[c];
    out[C + c] = rung < 4 ? (float)pd[1] : D[C + c];
    if (rung > worst) worst = rung;
  }
  return worst;
}

static void count(ng_block *b, int32_t rung) {
  if (rung > 0) b->p->rescued[rung < 4 ? NG_RESCUE_DAMPING : NG_RESCUE_PLAIN]++;
}

/* What leaks is added once to an average, and stays until that is moved. */
static double damped(ng_block *b) {
  ng_norm *k = ng_norm_of_block(b);
  if (!b->base.damping_leak) return ng_norm_damping(b);
  if (k->shift == 0.0) k->shift = ng_norm_damping(b);
  return k->shift;
}

static ng_status measure(ng_block *b) {
  ng_norm *k = ng_norm_of_block(b);
  const float *F = b->stat->part->average;
  float *D = ng_scratch(b);
  if (!ng_norm_read(b, D)) {
    memset(b->direction, 0, (size_t)k->width * sizeof *b->direction);
    return ng_fail(b->ctx, NG_SKIPPED, "layer '%s': its gradient is not finite", b->name);
  }
  const double d = k->damped = damped(b);
  k->rung = 0;
  if (b->stat->part->cols > k->width) {
    k->rung = units(b, F, d, D, b->direction);
  } else {
    for (int64_t i = 0; i < k->width; i++) {
      b->direction[i] = (float)((double)D[i] / ((double)F[i] + d));
    }
  }
  count(b, k->rung);
  ng_norm_measured(b, D);
  return k->rung > 0 ? NG_RESCUED : NG_OK;
}

void ng_norm_emit_tile(const ng_block *b, const ng_tile *t, double factor, const ng_sink *sink) {
  const ng_pair pair = {.scale = factor,
                        .values = b->direction + b->segment[t->segment].at + t->col};
  ng_put(sink, t->slot, 0, t->col, t->cols, &pair);
}

static void report(const ng_block *b, ng_layer_report *r) {
  const ng_norm *k = ng_norm_of_block(b);
  if (!b->holds) return;
  r->rung = k->rung < 4 ? k->rung : 6;
  r->damping_f = k->damped;
}

const ng_family ng_family_norm = {
    .version = NG_FAMILY_VERSION,
    .name = "norm",
    .sees = NG_SEES_INPUT | NG_SEES_OUTGRAD,
    .scope = NG_SCOPE_LAYER,
    .scans = true,
    .fits = fits,
    .check = ng_norm_check,
    .create = ng_norm_create,
    .destroy = ng_norm_destroy,
    .statistics = statistics,
    .plan = plan,
    .observe = ng_norm_observe,
    .measure = measure,
    .emit_tile = ng_norm_emit_tile,
    .numbers = ng_norm_numbers,
    .report = report,
};

/* ---- full: its solve is in norm_full.c ---- */

static bool fits_full(const ng_settings *o, const ng_entry *e) {
  return takes(e) && o->norm_block == NG_NORM_FULL;
}

const ng_family ng_family_norm_full = {
    .version = NG_FAMILY_VERSION,
    .name = "norm-full",
    .sees = NG_SEES_INPUT | NG_SEES_OUTGRAD,
    .scope = NG_SCOPE_LAYER,
    .fits = fits_full,
    .check = ng_norm_check,
    .create = ng_norm_create,
    .destroy = ng_norm_destroy,
    .statistics = statistics,
    .plan = ng_norm_full_plan,
    .observe = ng_norm_observe,
    .measure = ng_norm_full_measure,
    .emit_tile = ng_norm_emit_tile,
    .fields = ng_norm_full_fields,
    .numbers = ng_norm_numbers,
    .solve = ng_norm_full_solve,
    .shared = ng_norm_full_shared,
    .report = ng_norm_full_report,
};
