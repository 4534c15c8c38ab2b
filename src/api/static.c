/* static.c: the public functions ng_fisher_*: the Fisher matrix of given gradients.  They check arguments and call
 * linalg/. */
#include "core/core.h"
#include "linalg/linalg.h"

#include <math.h>

static ng_status check_rows(ng_context *ctx, const ng_array *g, ng_strided *rows) {
  const char *wrong = g->mem == NG_HOST ? ng_array_read(g, rows) : "it is not on the host";
  if (wrong == NULL && (rows->dtype != NG_F32 || rows->ndim != 2)) wrong = "expected [m, d] in f32";
  if (wrong == NULL && rows->shape[1] > 1 && rows->stride[1] != 1)
    wrong = "the elements of a gradient must be contiguous";
  if (wrong == NULL && rows->data == NULL) wrong = "its data is NULL";
  if (wrong != NULL) return ng_fail(ctx, NG_ERR_SHAPE, "ng_fisher_create: gradients: %s", wrong);
  for (int64_t r = 0; r < rows->shape[0]; r++) {
    const float *row = (const float *)rows->data + r * rows->stride[0];
    if (ng_are_finite(row, NG_F32, rows->shape[1])) continue;
    return ng_fail(ctx, NG_ERR_ARG, "ng_fisher_create: gradient %lld is not finite", (long long)r);
  }
  return NG_OK;
}

static ng_status check_blocks(ng_context *ctx, const int64_t *end, int64_t blocks, int64_t d) {
  if (end == NULL && blocks != 1) {
    return ng_fail(ctx, NG_ERR_ARG, "ng_fisher_create: end is NULL, expected 1 block, got %lld",
                   (long long)blocks);
  }
  if (blocks < 1 || blocks > d) {
    return ng_fail(ctx, NG_ERR_ARG, "ng_fisher_create: %lld blocks, expected 1 to %lld",
                   (long long)blocks, (long long)d);
  }
  for (int64_t b = 0; b < blocks && end != NULL; b++) {
    const int64_t before = b == 0 ? 0 : end[b - 1];
    if (end[b] > before && (b < blocks - 1 ? end[b] < d : end[b] == d)) continue;
    return ng_fail(
        ctx, NG_ERR_ARG,
        "ng_fisher_create: end[%lld] is %lld, expected ascending ends, the last one %lld",
        (long long)b, (long long)end[b], (long long)d);
  }
  return NG_OK;
}

ng_status ng_fisher_create(ng_context *ctx, const ng_array *gradients, double damping,
                           const int64_t *end, int64_t blocks, ng_fisher **out) {
  ng_strided rows;
  if (out != NULL) *out = NULL;
  if (ctx == NULL) return NG_ERR_ARG;
  if (ng_enter(ctx) != NG_OK) return NG_ERR_STATE;
  if (out == NULL || gradients == NULL) {
    return ng_fail(ctx, NG_ERR_ARG, "ng_fisher_create: %s is NULL",
                   out == NULL ? "out" : "gradients");
  }
  if (!(damping > 0.0) || !isfinite(damping)) {
    return ng_fail(ctx, NG_ERR_ARG, "ng_fisher_create: damping is %g, expected more than 0",
                   damping);
  }
  ng_status st = check_rows(ctx, gradients, &rows);
  if (st == NG_OK) st = check_blocks(ctx, end, blocks, rows.shape[1]);
  return st == NG_OK ? ng_fisher_make(ctx, &rows, damping, end, blocks, out) : st;
}

static ng_status check_fisher_call(const ng_fisher *f, const char *call, const void *out) {
  if (f == NULL) return NG_ERR_ARG;
  ng_context *ctx = ng_fisher_context(f);
  if (ng_enter(ctx) != NG_OK) return NG_ERR_STATE;
  return out != NULL ? NG_OK : ng_fail(ctx, NG_ERR_ARG, "%s: out is NULL", call);
}

ng_status ng_fisher_solve(ng_fisher *f, const double *x, double *out) {
  const ng_status st = check_fisher_call(f, "ng_fisher_solve", out);
  if (st != NG_OK) return st;
  ng_context *ctx = ng_fisher_context(f);
  if (x == NULL) return ng_fail(ctx, NG_ERR_ARG, "ng_fisher_solve: x is NULL");
  if (!ng_are_finite(x, NG_F64, ng_fisher_size(f))) {
    return ng_fail(ctx, NG_ERR_ARG, "ng_fisher_solve: x is not finite");
  }
  ng_fisher_apply(f, x, out);
  return NG_OK;
}

ng_status ng_fisher_diagonal(ng_fisher *f, double *out) {
  const ng_status st = check_fisher_call(f, "ng_fisher_diagonal", out);
  if (st == NG_OK) ng_fisher_inverse_diagonal(f, out);
  return st;
}

void ng_fisher_destroy(ng_fisher **fisher) {
  if (fisher == NULL || *fisher == NULL) return;
  ng_fisher *f = *fisher;
  *fisher = NULL;
  ng_fisher_free(f);
}
