/* kronecker_stats.c: add observations to A and G.
 *
 * In: checked views of inputs and output gradients. Out: in every part, S <- old S + fresh alpha (sum over rows r of
 * r r'). alpha comes from the table below, old and fresh from the statistic (stat/stat.h). The scalings of the
 * published programs are values of stat_scale (docs/algorithms.md). */
#include "family/kronecker.h"

#include <math.h>

/* ---- the scale table -------------------------------------------------------------------------
 * The table has alpha. B: samples used; S: positions of a sample; N = B S; c: samples of the micro-batch for a mean
 * loss, 1 for a sum.
 *
 *             linear, expand     linear, reduce      convolution (expand)
 *             A        G         A       G           A          G
 * textbook    1/B      c^2/(BS)  1/B     c^2/B       1/B        c^2/(BS)
 * kaisa       1/N      1/N       1/B     1/B         1/(B S^3)  1/(B S^3)
 * mpd-kfac    1/N      B^2/N     1/B     B           1/(B S^2)  B S
 *
 * If ranks share a micro-batch, (u B_all)^2 replaces B^2 in G of mpd-kfac, and G of kaisa is multiplied by u^2. B_all:
 * samples used on all ranks; u: this rank's share of the samples for a mean loss, 1 for a sum (ng_obs_share).
 * Every G is divided by loss_scale^2. With reduce, rows of A are means over positions; rows of G are sums (textbook:
 * KFAC-reduce, Eschenhagen et al. 2023) or means (kaisa, mpd-kfac). */
typedef struct call_scale {
  double alpha;
  int reduce; /* a row is: 0 one position, 1 the mean, 2 the sum over the positions of a sample */
} call_scale;

static call_scale scale_of(const ng_block *b, const ng_obs *o, const ng_stat *stat) {
  const bool conv = b->entry->d.kind == NG_CONV2D, grad = o->kind == NG_OBSERVED_OUTGRAD;
  const bool textbook = b->base.stat_scale == NG_SCALE_TEXTBOOK ||
                        b->base.stat_scale == NG_SCALE_CHAINERKFAC,
             kaisa = b->base.stat_scale == NG_SCALE_KAISA;
  const double B = (double)stat->samples, S = (double)o->positions, u = ng_obs_share(o);
  const double all = (double)stat->samples_all * u;
  const double c = o->reduction == NG_MEAN ? (double)o->samples : 1.0;
  call_scale s = {0.0, 0};
  if (b->base.positions == NG_POSITIONS_REDUCE && o->positions > 1 &&
      (!conv || textbook || kaisa)) {
    s.reduce = grad && textbook ? 2 : 1;
  }
  const double rows = s.reduce != 0 ? B : B * S;
  if (!grad) {
    s.alpha = textbook ? 1.0 / B : 1.0 / rows;
    if (conv && kaisa && s.reduce == 0) s.alpha = 1.0 / (B * S * S * S);
    if (conv && !kaisa && !textbook) s.alpha = 1.0 / (B * S * S);
  } else {
    s.alpha = textbook ? c * c / rows : kaisa ? u * u / rows : all * all / rows;
    if (conv && kaisa && s.reduce == 0) s.alpha = u * u / (B * S * S * S);
    if (conv && !kaisa && !textbook) s.alpha = all * all / B * S;
    s.alpha /= o->loss_scale * o->loss_scale;
  }
  return s;
}

/* ---- observe ---------------------------------------------------------------------------------*/

/* Add the Gram matrix of the rows or patches to every part. The parts of one call share the scratch. */
static void add_grams(ng_block *b, const ng_obs *o, const ng_side *side, call_scale c) {
  enum { LIST = 16 };
  ng_queue *q = b->ctx->queue;
  const ng_stat *s = side->stat;
  const bool patches = b->entry->d.kind == NG_CONV2D && o->kind == NG_OBSERVED_INPUT;
  const ng_gram all = {.x = o->view,
                       .samples = s->samples,
                       .reduce = c.reduce,
                       .conv = ng_obs_conv(&ng_kron_of(b)->conv, o),
                       .alpha = c.alpha * s->mix.fresh};
  ng_gram list[LIST];
  for (int32_t i = 0, n; i < side->parts; i += n) {
    n = (int32_t)ng_min64(LIST, side->parts - i);
    for (int32_t k = 0; k < n; k++) {
      const ng_part *part = &side->part[i + k];
      list[k] = all;
      list[k].c0 = part->lo;
      list[k].c1 = part->hi;
      list[k].has_ones = part->has_bias;
      list[k].S = (ng_sym){s->part[i + k].sum, side->matrix[i + k].n};
      list[k].S64 = ng_stat_is_double(s) ? s->part[i + k].sum : NULL;
    }
    if (patches) {
      ng_kernels(q)->add_conv_grams(q, list, n, ng_scratch(b));
    } else {
      ng_kernels(q)->add_row_grams(q, list, n, ng_scratch(b));
    }
  }
}

/* Return whether o is an output gradient and every part of G has order 1, as with output_factor = diagonal. */
static bool is_diagonal_factor(const ng_obs *o, const ng_side *side) {
  return o->kind == NG_OBSERVED_OUTGRAD && side->parts > 1 && side->parts == o->view.columns;
}

static void add_diagonal(ng_block *b, const ng_obs *o, const ng_side *side, call_scale c) {
  ng_queue *q = b->ctx->queue;
  const ng_stat *s = side->stat;
  double *x = ng_scratch(b);
  const ng_squares squares = {.x = o->view, .samples = s->samples, .reduce = c.reduce, .out = x};
  const double alpha = c.alpha * s->mix.fresh;
  const ng_dtype t = s->sum_dtype;
  const ng_accumulation add = {.x = x,
                               .n = side->parts,
                               .count = side->parts,
                               .stride = ((char *)s->part[1].sum - (char *)s->part->sum) /
                                         ng_dtype_size(t),
                               .S = s->part->sum,
                               .dtype = t,
                               .old = 1.0,
                               /* round alpha to f32, as ng_gram.alpha does */
                               .fresh = t == NG_F64 ? alpha : (double)(float)alpha,
                               .adds_nan = o->is_late};
  /* a NaN or Inf of any column must reach the sum: accumulate looks at the first number only */
  ng_kernels(q)->sum_squares(q, &squares, 1);
  ng_kernels(q)->accumulate(q, &add, 1);
}

/* Add to A of an embedding. */
static ng_status add_tokens(ng_block *b, const ng_obs *o, const ng_side *side, double alpha) {
  const ng_stat *s = side->stat;
  const int64_t vocabulary = side->matrix->n;
  double *count = ng_scratch(b);
  const ng_tokens tokens = {o->view, s->samples, vocabulary, count};
  ng_kernels(b->ctx->queue)->count_tokens(b->ctx->queue, &tokens, 1);
  const double c = alpha * s->mix.fresh;
  if (ng_stat_add(b->ctx->queue, s, count, vocabulary, c, 0.0) == NG_OK) return NG_OK;
  const int64_t at = (int64_t)count[vocabulary];
  int64_t token;
  memcpy(&token, &count[vocabulary + 1], sizeof token);
  return ng_fail(b->ctx, NG_ERR_ARG,
                 "layer '%s': token %lld of sample %lld is %lld, expected 0 to %lld", b->name,
                 (long long)(at % o->positions), (long long)(at / o->positions), (long long)token,
                 (long long)vocabulary - 1);
}

ng_status ng_kron_observe(ng_block *b, const ng_obs *o) {
  const ng_side *side = &ng_kron_of(b)->side[o->kind == NG_OBSERVED_OUTGRAD];
  const ng_stat *s = side->stat;
  if (ng_kron_of(b)->rows != NULL) ng_kron_rows_store(b, o, s);
  if (!s->is_due) return NG_OK; /* only the rows were wanted */
  const call_scale c = scale_of(b, o, s);
  if (side->matrix->form == NG_FORM_DIAGONAL) return add_tokens(b, o, side, c.alpha);
  ng_stat_scale_old(b->ctx->queue, s);
  if (is_diagonal_factor(o, side)) {
    add_diagonal(b, o, side, c);
  } else if (ng_kron_of(b)->spatial != NULL && o->kind == NG_OBSERVED_INPUT) {
    ng_spatial_observe(b, o, c.alpha);
  } else {
    add_grams(b, o, side, c);
  }
  return NG_OK;
}
