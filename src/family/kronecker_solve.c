/* kronecker_solve.c: compute inverses, Cholesky factors or eigenbases from running averages.
 *
 * The owner of a side solves each part F separately:
 *   cholesky   (F + d I)^-1, or L of F + d I = L L' where that is cheaper
 *   eigen      F = Q diag(e) Q', eigenvalues at or below eigen_floor set to 0
 *   product    F itself
 * damping_split gives d: full d_A = d_G = lambda; pi d_A = sqrt(lambda) pi, d_G = sqrt(lambda) / pi with
 * pi = sqrt((tr A / p) / (tr G / q)) (Martens & Grosse 2015, section 6.3); root is pi = 1.
 *
 * A failed solve climbs the ladder, and each rung is counted for ng_report:
 *   damping x 10, at most 3 times -> double precision -> last good result -> plain gradient
 *
 * In: the averages that this rank keeps; in b->traces the mean eigenvalues of averages that other ranks keep. Out:
 * results, `solve_info`, counted rungs. No function here is a collective. */
#include "family/kronecker.h"

#include <math.h>

/* The return value determines the size of the result and the name of its field in files. */
ng_result ng_kron_result(const ng_block *b, int64_t n, int64_t m) {
  const ng_kron *k = ng_kron_of(b);
  if (k->is_eigen || k->is_product) return k->is_eigen ? NG_RESULT_EIGEN : NG_RESULT_COPY;
  /* An inverse needs 2 n^3 / 3 more operations in each solve. L needs the time of n^2 m more operations in each step: two
   * triangular solves and one symmetric product are both 2 n^2 m operations, but the solves run at two thirds of the rate.
   * So store L if 2 n^3 / 3 > solve_period n^2 m; in double always store the inverse. */
  const bool keeps =
      !k->is_double && 2.0 * (double)n > 3.0 * (double)b->base.solve_period * (double)m;
  return keeps ? NG_RESULT_CHOLESKY : NG_RESULT_INVERSE;
}

/* on[side] <- the damping of each side. pi: among all d_A d_G = lambda, shifts proportional to the mean eigenvalue of each factor minimise the trace norm of
 * the cross terms d_A I (x) G + d_G A (x) I (Martens & Grosse 2015, section 6.3). */
static void split_damping(const ng_block *b, double lambda, double pi, double on[2]) {
  on[NG_SIDE_A] = on[NG_SIDE_G] = 0.0;
  if (ng_kron_of(b)->is_product) return;
  if (b->base.damping_split == NG_SPLIT_FULL) {
    on[NG_SIDE_A] = on[NG_SIDE_G] = lambda;
  } else if (b->base.damping_split == NG_SPLIT_ROOT) {
    on[NG_SIDE_A] = on[NG_SIDE_G] = sqrt(lambda);
  } else if (b->base.damping_split == NG_SPLIT_PI) {
    on[NG_SIDE_A] = sqrt(lambda) * pi;
    on[NG_SIDE_G] = sqrt(lambda) / pi;
  }
}

/* Return the rounding errors of pi, the last numbers of solve_info. */
static float *pi_rounding_errors(const ng_kron *k, const ng_side *s) {
  return s->solve_info + ng_kron_info_count(k, s) - k->groups;
}

/* With eigenvalues d_G, d_A the divisors are d_G d_A + lambda (joint) or (d_G + damping_g) (d_A + damping_a). eigen-prediv uses
 * lambda of the last solve, as compute_eigenvalue_outer_product of KAISA. pi is the value that the owner of G computed,
 * so that all ranks with results use the same pi. */
void ng_kron_set_damping(const ng_block *b) {
  const ng_kron *k = ng_kron_of(b);
  const double lambda = b->base.solver == NG_SOLVER_EIGEN_PREDIV ? k->lambda : b->base.damping;
  for (int64_t g = 0; g < k->groups && k->is_eigen; g++) {
    const ng_side *side = &k->side[NG_SIDE_G];
    double on[2], pi = (double)side->solve_info[NG_INFO_PI + g];
    if (k->is_double) pi += (double)pi_rounding_errors(k, side)[g];
    split_damping(b, lambda, pi, on);
    k->both.damping[g] = (ng_spectrum){
        .damping_g = on[k->left - k->side],
        .damping_a = on[k->right - k->side],
        .damping_both = b->base.damping_split == NG_SPLIT_JOINT ? lambda : 0.0,
    };
  }
}

/* ---- the block -------------------------------------------------------------------------------*/

/* Return whether a side must be solved. With refresh_tolerance > 0, a side whose average has not changed since the last
 * solve keeps its results and its pi. */
static bool must_solve(const ng_block *b, const ng_stat *s) {
  return !s->stale.enabled || !b->was_solved || s->is_new;
}

static bool solves_here(const ng_block *b, const ng_side *s) {
  return s->stat->owner == b->ctx->rank && must_solve(b, s->stat);
}

/* Enqueue `trace` and `finite` of the averages that this rank keeps. pi uses the traces of both sides, so ng_kron_solve must
 * know whether they are finite. */
static void measure_averages(const ng_block *b) {
  const ng_kron *k = ng_kron_of(b);
  for (int side = 0; side < 2; side++) {
    const ng_side *s = &k->side[side];
    for (int32_t i = 0; i < s->parts && s->stat->has_average; i++) {
      s->matrix[i].F = s->stat->part[s->part[i].of_stat].average;
      ng_matrix_measure(b->ctx->queue, &s->matrix[i]);
    }
  }
  if (k->spatial != NULL && k->right->stat->has_average && solves_here(b, k->right))
    ng_spatial_measure(b);
}

/* *mean <- mean eigenvalue of side s in a group, plus its leaked shift; return false if an entry is not finite. */
static bool mean_eigenvalue(const ng_block *b, const ng_side *s, int32_t group, double *mean) {
  const ng_queue *q = b->ctx->queue;
  double trace = 0.0;
  int64_t n = 0;
  bool finite = true;
  for (int32_t i = group * s->group_parts; i < (group + 1) * s->group_parts; i++) {
    finite = finite && ng_read_info(q, &s->matrix[i].finite) != 0;
    trace += *ng_read_numbers(q, &s->matrix[i].trace);
    n += s->matrix[i].n;
  }
  *mean = trace / (double)n + s->shift[group];
  return finite;
}

/* Return the smallest damping of any eigenvector of a side: on[side], or with joint damping lambda / (trace of the
 * other side), because the trace bounds the largest eigenvalue of the other side. */
static double least_damping(const ng_block *b, int side, int32_t group, const double mean[2],
                            const double on[2]) {
  const ng_side *other = &ng_kron_of(b)->side[1 - side];
  double n = 0.0;
  if (b->base.damping_split != NG_SPLIT_JOINT) return on[side];
  for (int32_t i = group * other->group_parts; i < (group + 1) * other->group_parts; i++) {
    n += (double)other->matrix[i].n;
  }
  return b->base.damping / (n * mean[1 - side]);
}

/* Write the mean eigenvalues of side `stat`, which the owner of the other side needs for pi. */
void ng_kron_write_traces(ng_block *b, int32_t stat, double *mean) {
  ng_kron *k = ng_kron_of(b);
  for (int32_t group = 0; group < k->groups; group++) {
    (void)mean_eigenvalue(b, &k->side[stat], group, &mean[group]);
  }
}

/* Return pi, or 1 if pi would be 0, Inf or NaN; with 1 the product of both shifts is still lambda. */
static double compute_pi(const double mean[2]) {
  const double pi = sqrt(mean[NG_SIDE_A] / mean[NG_SIDE_G]);
  const bool sound = mean[NG_SIDE_A] > 0.0 && mean[NG_SIDE_G] > 0.0 && pi - pi == 0.0 && pi > 0.0;
  return sound ? pi : 1.0;
}

/* List the matrices of a group, unless their side is not finite. Every rank that keeps the averages computes the same traces,
 * pi and shifts, but only the owner of a side solves it. So no rank waits for pi, and with damping_leak the shifts are
 * equal on all ranks. (In the published program only the owner's average is shifted, until the next reduction.) If only its
 * owner keeps a side, b->traces has the means of both sides. */
static void list_group(ng_block *b, int32_t group) {
  ng_kron *k = ng_kron_of(b);
  double mean[2], on[2];
  bool finite[2];
  for (int i = 0; i < 2; i++) {
    finite[i] = k->side[i].stat->has_average && mean_eigenvalue(b, &k->side[i], group, &mean[i]);
    if (b->traces != NULL) mean[i] = b->traces[i * b->traces_per_stat + group];
  }
  if (k->spatial != NULL && solves_here(b, k->right))
    finite[NG_SIDE_A] = finite[NG_SIDE_A] && ng_spatial_set_scales(b, group);
  const double pi = compute_pi(mean);
  split_damping(b, b->base.damping, pi, on);
  for (int i = 0; i < 2; i++) {
    ng_side *s = &k->side[i];
    const double d = k->is_eigen ? least_damping(b, i, group, mean, on) : on[i];
    for (int32_t j = group * s->group_parts; solves_here(b, s) && j < (group + 1) * s->group_parts;
         j++) {
      if (finite[i]) {
        ng_block_list_matrix(b, &s->matrix[j], s->shift[group], d, b->base.eigen_floor);
      } else {
        s->matrix[j].finite = 0;
      }
    }
    if (solves_here(b, s)) s->solve_info[NG_INFO_PI + group] = (float)pi;
    if (solves_here(b, s) && k->is_double)
      pi_rounding_errors(k, s)[group] = (float)(pi - (double)(float)pi);
    if (solves_here(b, s) && group == 0) s->solve_info[NG_INFO_DAMPING] = (float)on[i];
    if (b->base.damping_leak && s->stat->has_average && must_solve(b, s->stat))
      s->shift[group] += on[i];
  }
}

/* Climb the ladder for the matrices of a side on its owner. */
int32_t ng_kron_climb_side(ng_block *b, ng_side *s) {
  const ng_kron *k = ng_kron_of(b);
  int32_t worst = 0;
  for (int32_t j = 0; j < s->parts; j++) {
    ng_matrix *m = &s->matrix[j];
    int32_t rung = NG_DAMPED_NONE;
    if (m->finite != 0) rung = ng_matrix_retry(b->ctx->queue, m, ng_scratch(b));
    if (rung == NG_DAMPED_NONE) rung = m->is_good ? NG_RUNG_LAST : NG_RUNG_PLAIN;
    ng_count_rung(b->p, rung);
    m->is_good = m->is_good || rung < NG_RUNG_LAST;
    worst = rung > worst ? rung : worst;
    s->solve_info[NG_INFO_PI + k->groups + j] = m->is_good ? 1.0f : 0.0f;
  }
  s->solve_info[NG_INFO_RUNG] = (float)worst;
  return worst;
}

ng_status ng_kron_solve(ng_block *b, ng_solve_phase phase) {
  ng_kron *k = ng_kron_of(b);
  int32_t worst = 0;
  k->lambda = b->base.damping;
  if (!b->has_averages && b->traces == NULL) return NG_OK;
  if (phase == NG_SOLVE_MEASURE) measure_averages(b);
  for (int32_t group = 0; group < k->groups && phase == NG_SOLVE_LIST; group++) {
    list_group(b, group);
  }
  for (int i = 0; i < 2 && phase == NG_SOLVE_CLIMB; i++) {
    const int32_t rung = solves_here(b, &k->side[i]) ? ng_kron_climb_side(b, &k->side[i]) : 0;
    worst = rung > worst ? rung : worst;
  }
  return worst > 0 ? NG_RESCUED : NG_OK;
}

/* Set is_good of each part, and of `both`, from solve_info. */
void ng_kron_read_results(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  k->both.is_good = true;
  for (int i = 0; i < k->sides; i++) {
    ng_side *s = &k->side[i];
    for (int32_t j = 0; j < s->parts; j++) {
      s->matrix[j].is_good = s->solve_info[NG_INFO_PI + k->groups + j] != 0.0f;
      k->both.is_good = k->both.is_good && s->matrix[j].is_good;
    }
  }
}

void ng_kron_write_report(const ng_block *b, ng_layer_report *r) {
  const ng_kron *k = ng_kron_of(b);
  if (!b->is_worker) return;
  for (int i = 0; i < k->sides; i++) {
    const int32_t known = ng_rung_from_float(k->side[i].solve_info[NG_INFO_RUNG]);
    r->rung = known > r->rung ? known : r->rung;
  }
  r->pi = (double)k->side[NG_SIDE_A].solve_info[NG_INFO_PI];
  r->damping_a = (double)k->side[NG_SIDE_A].solve_info[NG_INFO_DAMPING];
  if (k->sides == 2) r->damping_g = (double)k->side[NG_SIDE_G].solve_info[NG_INFO_DAMPING];
}
