/* curvature.c: the public functions ng_factors_* and ng_curvature_*: they check arguments and call family/ and twosided/. */
#include "family/family.h"
#include "step/step.h"
#include "twosided/twosided.h"

#include <math.h>

/* ---- factors of a layer ----------------------------------------------------------------------*/

static ng_block *find_block(ng_precond *p, int32_t layer) {
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if (b->entry == ng_entry_whole(p->entry[layer]) && b->family->write_factors != NULL) return b;
  }
  return NULL;
}

ng_status ng_factors_read(ng_precond *p, int32_t layer, ng_factors *f) {
  ng_status st = ng_check_callable(p, "ng_factors_read");
  if (st == NG_OK) st = ng_step_check_device(p, "ng_factors_read");
  if (st != NG_OK) return st;
  ng_factors to;
  if (f == NULL || layer < 0 || layer >= p->entries) {
    return ng_fail(p->ctx, NG_ERR_ARG, "ng_factors_read: %s",
                   f == NULL ? "f is NULL" : "there is no such layer");
  }
  char why[NG_MESSAGE];
  if (ng_struct_read(&to, sizeof to, f, sizeof to, "ng_factors", why, sizeof why) != NG_OK)
    return ng_fail(p->ctx, NG_ERR_ARG, "ng_factors_read: %s", why);
  if ((to.left == NULL) != (to.right == NULL)) {
    return ng_fail(p->ctx, NG_ERR_ARG,
                   "ng_factors_read: one of left and right is NULL, expected both or none");
  }
  ng_block *b = find_block(p, layer);
  const char *name = p->entry[layer]->d.name;
  if (b == NULL) {
    return ng_fail(p->ctx, NG_ERR_ABSENT, "layer '%s': its method has no Kronecker factors", name);
  }
  for (int32_t i = 0; i < b->stats && to.left != NULL; i++) {
    if (b->stat[i].has_average && b->stat[i].started) continue;
    return ng_fail(p->ctx, NG_ERR_STATE, "layer '%s': %s of %s", name,
                   b->stat[i].has_average ? "there is no average yet"
                                          : "another rank has the average",
                   b->stat[i].name);
  }
  b->family->write_factors(b, &to);
  return ng_struct_write(f, &to, sizeof to);
}

/* ---- curvature -------------------------------------------------------------------------------*/

static ng_status check_factor(ng_context *ctx, const char *name, const double *F, int64_t groups,
                              int64_t n, bool diagonal) {
  const int64_t each = diagonal ? n : ng_times(n, n);
  if (F == NULL) return ng_fail(ctx, NG_ERR_ARG, "ng_curvature_create: %s is NULL", name);
  if (!ng_are_finite(F, NG_F64, ng_times(groups, each)))
    return ng_fail(ctx, NG_ERR_ARG, "ng_curvature_create: %s is not finite", name);
  for (int64_t g = 0; g < groups && !diagonal; g++) {
    for (int64_t i = 0; i < n; i++) {
      for (int64_t j = 0; j < i; j++) {
        const double *M = F + g * each, scale = fabs(M[i * n + i]) + fabs(M[j * n + j]);
        if (fabs(M[i * n + j] - M[j * n + i]) <= 1e-6 * scale) continue;
        return ng_fail(ctx, NG_ERR_ARG,
                       "ng_curvature_create: %s is not symmetric in row %lld, column %lld", name,
                       (long long)i, (long long)j);
      }
    }
  }
  return NG_OK;
}

ng_status ng_curvature_create(ng_context *ctx, const ng_factors *f, ng_curvature **out) {
  ng_factors of;
  char why[NG_MESSAGE];
  if (out != NULL) *out = NULL;
  if (ctx == NULL) return NG_ERR_ARG;
  if (ng_enter(ctx) != NG_OK) return NG_ERR_STATE;
  if (f == NULL || out == NULL) {
    return ng_fail(ctx, NG_ERR_ARG, "ng_curvature_create: %s is NULL", f == NULL ? "f" : "out");
  }
  if (ng_struct_read(&of, sizeof of, f, sizeof of, "ng_factors", why, sizeof why) != NG_OK)
    return ng_fail(ctx, NG_ERR_ARG, "ng_curvature_create: %s", why);
  if (of.groups < 1 || of.rows < 1 || of.cols < 1) {
    return ng_fail(ctx, NG_ERR_ARG,
                   "ng_curvature_create: groups, rows, cols = %lld, %lld, %lld, expected >= 1",
                   (long long)of.groups, (long long)of.rows, (long long)of.cols);
  }
  ng_status st = check_factor(ctx, "left", of.left, of.groups, of.rows, of.left_diagonal != 0);
  if (st == NG_OK)
    st = check_factor(ctx, "right", of.right, of.groups, of.cols, of.right_diagonal != 0);
  return st == NG_OK ? ng_curvature_make(ctx, &of, out) : st;
}

/* Check the arguments of `call`, and read *m. */
static ng_status check_call(const ng_curvature *c, const char *call, const ng_damped_power *m,
                            ng_curvature_power *to) {
  static const char *const split[] = {"joint", "full", "pi", "root"};
  ng_damped_power of;
  char why[NG_MESSAGE];
  if (c == NULL) return NG_ERR_ARG;
  ng_context *ctx = ng_curvature_context(c);
  if (ng_enter(ctx) != NG_OK) return NG_ERR_STATE;
  if (m == NULL) return ng_fail(ctx, NG_ERR_ARG, "%s: m is NULL", call);
  if (ng_struct_read(&of, sizeof of, m, sizeof of, "ng_damped_power", why, sizeof why) != NG_OK)
    return ng_fail(ctx, NG_ERR_ARG, "%s: %s", call, why);
  if (!(of.damping >= 0.0) || !isfinite(of.damping))
    return ng_fail(ctx, NG_ERR_ARG, "%s: damping = %g: must be >= 0", call, of.damping);
  if (!isfinite(of.power))
    return ng_fail(ctx, NG_ERR_ARG, "%s: power = %g: must be finite", call, of.power);
  *to = (ng_curvature_power){of.damping, of.power, NG_CURVATURE_JOINT};
  while (of.split != NULL && strcmp(of.split, split[to->split]) != 0) {
    if (++to->split < NG_CURVATURE_SPLITS) continue;
    return ng_fail(ctx, NG_ERR_ARG, "%s: split = %s: expected joint, full, pi or root", call,
                   ng_shorten(of.split).text);
  }
  if (to->split != NG_CURVATURE_JOINT && ng_curvature_is_corrected(c))
    return ng_fail(ctx, NG_ERR_ARG, "%s: split = %s: a corrected curvature has only joint", call,
                   split[to->split]);
  if (ng_curvature_is_defined(c, to)) return NG_OK;
  return ng_fail(ctx, NG_ERR_ARG,
                 "%s: damping = %g: the curvature is singular, a power below 0 needs more damping",
                 call, of.damping);
}

ng_status ng_curvature_apply(ng_curvature *c, const ng_damped_power *m, const double *x,
                             int64_t count, double *out) {
  ng_curvature_power how;
  const ng_status st = check_call(c, "ng_curvature_apply", m, &how);
  if (st != NG_OK) return st;
  ng_context *ctx = ng_curvature_context(c);
  if (x == NULL || out == NULL || count < 0) {
    return ng_fail(ctx, NG_ERR_ARG, "ng_curvature_apply: %s",
                   count < 0 ? "count is below 0" : (x == NULL ? "x is NULL" : "out is NULL"));
  }
  if (!ng_are_finite(x, NG_F64, ng_times(count, ng_curvature_count(c))))
    return ng_fail(ctx, NG_ERR_ARG, "ng_curvature_apply: x is not finite");
  ng_curvature_multiply(c, &how, x, count, out);
  return NG_OK;
}

ng_status ng_curvature_diagonal(ng_curvature *c, const ng_damped_power *m, double *out) {
  ng_curvature_power how;
  const ng_status st = check_call(c, "ng_curvature_diagonal", m, &how);
  if (st != NG_OK) return st;
  if (out == NULL)
    return ng_fail(ng_curvature_context(c), NG_ERR_ARG, "ng_curvature_diagonal: out is NULL");
  ng_curvature_write_diagonal(c, &how, out);
  return NG_OK;
}

ng_status ng_curvature_measure(ng_curvature *c, const ng_damped_power *m, double *trace,
                               double *logdet) {
  ng_curvature_power how;
  double sum[2];
  const ng_status st = check_call(c, "ng_curvature_measure", m, &how);
  if (st != NG_OK) return st;
  ng_curvature_sum(c, &how, &sum[0], &sum[1]);
  if (trace != NULL) *trace = sum[0];
  if (logdet != NULL) *logdet = sum[1];
  return NG_OK;
}

static ng_status check_samples(const ng_curvature *c, const char *call, const char *name,
                               const ng_samples *x, ng_samples *to) {
  ng_context *ctx = ng_curvature_context(c);
  char why[NG_MESSAGE];
  if (ng_struct_read(to, sizeof *to, x, sizeof *to, "ng_samples", why, sizeof why) != NG_OK)
    return ng_fail(ctx, NG_ERR_ARG, "%s: %s: %s", call, name, why);
  if (to->samples < 1 || to->positions < 1 || to->left == NULL || to->right == NULL) {
    return ng_fail(ctx, NG_ERR_ARG, "%s: %s has %lld samples, %lld positions%s, expected >= 1",
                   call, name, (long long)to->samples, (long long)to->positions,
                   to->left == NULL || to->right == NULL ? " and an array that is NULL" : "");
  }
  const int64_t all = ng_times(to->samples, to->positions);
  if (ng_are_finite(to->left, NG_F64, ng_times(all, ng_curvature_width(c, true))) &&
      ng_are_finite(to->right, NG_F64, ng_times(all, ng_curvature_width(c, false))))
    return NG_OK;
  return ng_fail(ctx, NG_ERR_ARG, "%s: an array of %s is not finite", call, name);
}

ng_status ng_curvature_scores(ng_curvature *c, const ng_damped_power *m, const ng_samples *x,
                              const ng_samples *y, double *out) {
  ng_curvature_power how;
  ng_samples of_x, of_y;
  ng_status st = check_call(c, "ng_curvature_scores", m, &how);
  if (st != NG_OK) return st;
  if (x == NULL || out == NULL) {
    return ng_fail(ng_curvature_context(c), NG_ERR_ARG, "ng_curvature_scores: %s is NULL",
                   x == NULL ? "x" : "out");
  }
  static const char call[] = "ng_curvature_scores";
  st = check_samples(c, call, "x", x, &of_x);
  if (st == NG_OK && y != NULL) st = check_samples(c, call, "y", y, &of_y);
  if (st == NG_OK) ng_curvature_add_scores(c, &how, &of_x, y != NULL ? &of_y : NULL, out);
  return st;
}

ng_status ng_curvature_correct(ng_curvature *c, const ng_samples *x) {
  ng_samples of;
  if (c == NULL) return NG_ERR_ARG;
  ng_context *ctx = ng_curvature_context(c);
  if (ng_enter(ctx) != NG_OK) return NG_ERR_STATE;
  if (x == NULL) return ng_fail(ctx, NG_ERR_ARG, "ng_curvature_correct: x is NULL");
  const ng_status st = check_samples(c, "ng_curvature_correct", "x", x, &of);
  if (st == NG_OK) ng_curvature_add_squares(c, &of);
  return st;
}

void ng_curvature_destroy(ng_curvature **curvature) {
  if (curvature == NULL || *curvature == NULL) return;
  ng_curvature *c = *curvature;
  *curvature = NULL;
  ng_curvature_free(c);
}
