/* kronecker_stats.c: from observations to running averages.
 *
 * In come checked views of inputs and output gradients; each call adds
 *     S += w alpha sum_rows r r'
 * with alpha from the scale table below and w the weight of the call; the check station sums w over
 * ranks, the statistics station sums S, and fold makes
 *     F <- keep F + (1 - keep) S / sum(w),  keep = rho.
 * fold = direct leaves S out and adds straight into F.  The published programs' scales, starts and
 * call rules are options of the same code (docs/algorithms.md has the table). */
#include "family/kronecker.h"

#include "core/core.h"

/* ---- the scale table -------------------------------------------------------------------------
 * A fresh factor of one call is alpha * (raw sum of rows); B samples taken, S positions, N = B S.
 *
 *             linear, expand     linear, reduce      convolution (expand)
 *             A        G         A       G           A          G
 * textbook    1/B      c^2/(BS)  1/B     c^2/B       1/B        c^2/(BS)     c: B of the whole
 * kaisa       1/N      1/N       1/B     1/B         1/(B S^3)  1/(B S^3)    micro-batch for a mean
 * mpd-kfac    1/N      B^2/N     1/B     B           1/(B S^2)  B S          loss, 1 for a sum
 *
 * all G divided by loss_scale^2.  reduce: A rows are means over positions; G rows are sums
 * (textbook: KFAC-reduce, Eschenhagen et al. 2023) or means (as published). */
typedef struct call_scale {
  double alpha;
  int reduce;
} call_scale;

static call_scale scale_of(const ng_block *b, const ng_obs *o, int64_t take) {
  const bool conv = b->entry->d.kind == NG_CONV2D;
  const bool textbook = ng_is(b->opt.stat_scale, "textbook"),
             kaisa = ng_is(b->opt.stat_scale, "kaisa");
  const double B = (double)take, S = (double)o->positions;
  const double c = o->reduction == NG_MEAN ? (double)o->samples : 1.0;
  call_scale s = {0.0, 0};
  if (ng_is(b->opt.positions, "reduce") && o->positions > 1 && (!conv || textbook || kaisa)) {
    s.reduce = o->grad && textbook ? 2 : 1;
  }
  const double rows = s.reduce != 0 ? B : B * S;
  if (!o->grad) {
    s.alpha = textbook ? 1.0 / B : 1.0 / rows;
    if (conv && kaisa && s.reduce == 0) s.alpha = 1.0 / (B * S * S * S);
    if (conv && !kaisa && !textbook) s.alpha = 1.0 / (B * S * S);
  } else {
    s.alpha = textbook ? c * c / rows : kaisa ? 1.0 / rows : B * B / rows;
    if (conv && kaisa && s.reduce == 0) s.alpha = 1.0 / (B * S * S * S);
    if (conv && !kaisa && !textbook) s.alpha = B * S;
    s.alpha /= o->loss_scale * o->loss_scale;
  }
  return s;
}

/* ---- observe ---------------------------------------------------------------------------------*/

static void add_rows(ng_block *b, const ng_obs *o, int64_t take, call_scale c, double weight) {
  ng_kron *k = ng_kron_of(b);
  const ng_side *s = &k->side[o->grad];
  const float alpha = (float)(c.alpha * weight);
  for (int32_t i = 0; i < s->parts; i++) {
    const ng_part *part = &s->part[i];
    if (b->entry->d.kind == NG_CONV2D && !o->grad) {
      ng_conv_input_stats(b->p->ctx, &k->conv, &o->v, take, part->lo, part->hi, part->one, c.reduce,
                          alpha, part->S, k->scratch);
    } else if (b->entry->d.kind == NG_CONV2D) {
      ng_conv_grad_stats(b->p->ctx, &k->conv, &o->v, take, part->lo, part->hi, c.reduce, alpha,
                         part->S, k->scratch);
    } else {
      const ng_rows rows = {.v = o->v,
                            .samples = o->samples,
                            .positions = o->positions,
                            .order = b->entry->d.order,
                            .take = take,
                            .c0 = part->lo,
                            .c1 = part->hi,
                            .one = part->one,
                            .reduce = c.reduce};
      ng_rows_stats(b->p->ctx, &rows, alpha, part->S, k->scratch);
    }
  }
}

static void scale_side(ng_side *s, double by) {
  for (int32_t i = 0; i < s->parts; i++) {
    ng_sym m = s->part[i].S;
    if (by == 0.0) {
      ng_sym_zero(m);
    } else {
      for (int64_t j = 0; j < ng_sym_count(m.n); j++) {
        m.a[j] = (float)(by * (double)m.a[j]);
      }
    }
  }
}

ng_status ng_kron_observe(ng_block *b, const ng_obs *o) {
  ng_kron *k = ng_kron_of(b);
  ng_side *s = &k->side[o->grad];
  const int64_t take = ng_average_take(b, o);
  const call_scale c = scale_of(b, o, take);
  if (k->direct) {
    const double rho = ng_average_rho(b, &s->average);
    if (s->average.w > 0.0) {
      return ng_fail(b->p->ctx, NG_ERR_STATE,
                     "layer '%s': its %s was observed a second time in this step; fold = direct "
                     "allows one observation, fold = sum any number",
                     b->entry->d.name, o->grad ? "output gradient" : "input");
    }
    scale_side(s, rho);
    add_rows(b, o, take, c, 1.0 - rho);
    s->average.w = ng_average_weight(b, take);
    s->average.keep = rho;
    return NG_OK;
  }
  const ng_mix mix = ng_average_call(b, &s->average, take);
  if (mix.old != 1.0) scale_side(s, mix.old);
  add_rows(b, o, take, c, mix.fresh);
  return NG_OK;
}

/* ---- weights, scale, fold --------------------------------------------------------------------*/

void ng_kron_weights(ng_block *b, double w[4], bool set) {
  ng_kron *k = ng_kron_of(b);
  ng_average_weights(&k->side[NG_SIDE_A].average, &k->side[NG_SIDE_G].average, w, set);
}

void ng_kron_scale(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  for (int i = 0; i < 2; i++) {
    ng_side *s = &k->side[i];
    if (k->direct) {
      /* nobody saw this side: the average must pass through the sum unchanged */
      if (s->average.total > 0.0) {
        scale_side(s, s->average.w / s->average.total);
      } else if (b->p->ctx->rank != 0) {
        scale_side(s, 0.0);
      }
    } else {
      const double own = ng_average_own(b, &s->average);
      if (own != 1.0) scale_side(s, own);
    }
  }
}

float *ng_kron_message(ng_block *b, int64_t *count) {
  const ng_kron *k = ng_kron_of(b);
  if (!(k->side[0].average.total > 0.0) && !(k->side[1].average.total > 0.0)) return NULL;
  const ng_part *last = &k->side[1].part[k->side[1].parts - 1];
  float *from = k->side[0].part[0].S.a;
  *count = last->S.a + ng_sym_count(last->n) - from;
  return from;
}

/* F <- keep F + c S in the stored dtype, S <- 0, in pieces. */
typedef struct fold_job {
  char *F;
  float *S;
  ng_dtype t;
  int64_t n, chunk;
  float keep, c;
} fold_job;

static void fold_piece(void *arg, int32_t piece) {
  const fold_job *j = arg;
  const int64_t to = ng_min64(j->n, (piece + 1) * j->chunk);
  float tile[256];
  for (int64_t i = piece * j->chunk; i < to;) {
    const int64_t n = j->t == NG_F32 ? to - i : ng_min64(256, to - i);
    float *F = j->t == NG_F32 ? (float *)(void *)j->F + i : tile;
    if (j->t != NG_F32) ng_to_f32(tile, j->F + i * 2, j->t, n);
    for (int64_t e = 0; e < n; e++) {
      F[e] = j->keep * F[e] + j->c * j->S[i + e];
    }
    if (j->t != NG_F32) ng_from_f32(j->F + i * 2, j->t, tile, n);
    memset(j->S + i, 0, (size_t)n * sizeof *j->S);
    i += n;
  }
}

static void fold_part(ng_context *ctx, const ng_part *part, ng_dtype t, double keep, double c) {
  fold_job j = {part->F, part->S.a, t, ng_sym_count(part->n), 0, (float)keep, (float)c};
  const int32_t pieces = j.n < 16384 ? 1 : ng_threads_of(ctx);
  j.chunk = ng_floats((j.n + pieces - 1) / pieces);
  ng_parallel(ctx, pieces, fold_piece, &j);
}

static void shift_part(const ng_part *part, ng_dtype t, double by) {
  for (int64_t i = 0; i < part->n; i++) {
    float x;
    char *at = (char *)part->F + ng_sym_at(part->n, i, i) * ng_dtype_size(t);
    ng_to_f32(&x, at, t, 1);
    x = (float)((double)x + by);
    ng_from_f32(at, t, &x, 1);
  }
}

static bool sums_finite(const ng_side *s) {
  for (int32_t i = 0; i < s->parts; i++) {
    if (!ng_sym_finite(s->part[i].S)) return false;
  }
  return true;
}

static void forget_side(ng_kron *k, ng_side *s) {
  if (!k->direct && (s->average.w > 0.0 || s->average.total > 0.0)) scale_side(s, 0.0);
  ng_average_close(&s->average);
}

/* Sums may overflow although every value was finite: then this side keeps its average. */
ng_status ng_kron_fold(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  const bool all = ng_is(b->opt.statistics, "all");
  ng_status st = NG_OK;
  for (int i = 0; i < 2; i++) {
    ng_side *s = &k->side[i];
    if (!(s->average.total > 0.0)) continue;
    const ng_mix mix = ng_average_fold(b, &s->average);
    if (!k->direct && !sums_finite(s)) {
      st = ng_fail(b->p->ctx, NG_SKIPPED, "layer '%s': the sum of %s overflowed", b->entry->d.name,
                   i == NG_SIDE_A ? "inputs" : "output gradients");
      forget_side(k, s);
      continue;
    }
    for (int32_t j = 0; b->opt.damping_leak && j < s->parts; j++) {
      /* direct: the old average was multiplied by keep when the sample was added */
      const double ranks = all ? b->p->ctx->ranks : 1, by = s->leak[s->part[j].group] / ranks;
      shift_part(&s->part[j], k->factor_dtype, k->direct ? mix.old * by : by);
    }
    memset(s->leak, 0, (size_t)k->groups * sizeof *s->leak);
    for (int32_t j = 0; j < s->parts && !k->direct; j++) {
      fold_part(b->p->ctx, &s->part[j], k->factor_dtype, mix.old, mix.fresh);
    }
    s->average.started = true;
    ng_average_close(&s->average);
  }
  return st;
}

void ng_kron_forget(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  if (!b->holds_stats) return;
  forget_side(k, &k->side[0]);
  forget_side(k, &k->side[1]);
}
