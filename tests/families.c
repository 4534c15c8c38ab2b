/* families.c: see families.h. */
#include "families.h"
#include "late.h"
#include "kernel/kernel.h"
#include "ranks.h"
#include "unit_test.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layer_oracle.h"
#include "window_oracle.h"

/* ---- predictions -----------------------------------------------------------------------------*/

static void predict_kronecker(const test_case *s, const ng_options *o, case_result *out) {
  case_predict(s, o, out, NULL);
}

/* P = D + k G D A of one layer, with A and G of the oracle after the step. */
static void multiply_by_factors(const oracle *o, const test_case *s, int32_t l, double k,
                                const double *D, double *P) {
  const int64_t groups = s->layer[l].kind == NG_CONV2D ? s->layer[l].groups : 1;
  const int64_t q = s->layer[l].out / groups, p = oracle_columns(&s->layer[l]);
  double *GD = zeros(q * p);
  int64_t n;
  for (int64_t g = 0; g < groups; g++, D += q * p, P += q * p) {
    const double *A = oracle_factor(o, 0, l, g, false, &n),
                 *G = oracle_factor(o, 0, l, g, true, &n);
    dense_product(false, false, q, p, q, G, D, GD);
    dense_product(false, false, q, p, p, GD, A, GD);
    for (int64_t i = 0; i < q * p; i++)
      P[i] = D[i] + k * GD[i];
  }
  free(GD);
}

/* solver = product: factors come from the oracle, which runs the first step, the first two, ... */
static void predict_product(const test_case *s, const ng_options *opt, case_result *out) {
  ng_options factors = *opt;
  fixture_set(&factors, "solver", "cholesky");
  fixture_set_real(&factors, "radius", 0);
  memset(out, 0, sizeof *out);
  for (int32_t t = 0; t < s->steps; t++) {
    test_case part = *s;
    case_result inverted;
    oracle *o;
    double d2 = 0;
    part.steps = t + 1;
    case_predict(&part, &factors, &inverted, &o);
    for (int32_t l = 0; l < s->layers; l++)
      d2 += v_dot(s->D[t][l], s->D[t][l], s->layer[l].frozen ? 0 : case_weight_count(s, l));
    for (int32_t l = 0; l < s->layers; l++) {
      const int64_t n = case_weight_count(s, l);
      const double *D = s->D[t][l];
      double *P = out->P[t][l] = zeros(n);
      memcpy(P, D, sizeof(double) * (size_t)n);
      out->condition[t][l] = 1; /* <D, G D A> >= 0: no cancellation in the sum */
      if (s->layer[l].frozen) continue;
      multiply_by_factors(o, s, l, d2 > 0 ? opt->base.radius / sqrt(d2) : 0, D, P);
      out->inner[t] += v_dot(P, D, n);
    }
    out->nu[t] = 1; /* clip = none */
    case_free_result(&inverted);
    oracle_destroy(&o);
  }
}

static void predict_kronecker_norms(const test_case *s, const ng_options *o, case_result *out) {
  norm_predict(s, o, predict_kronecker, out);
}

static void predict_rankone_norms(const test_case *s, const ng_options *o, case_result *out) {
  norm_predict(s, o, rankone_predict, out);
}

/* Adam in the eigenbases of A and G, with a dense float64 iteration: the rows of Q[l][side][group] are the vectors. Vector i
 * starts as unit vector i in the internal order of columns: kernel position, then channel, then the bias. */
typedef struct rotated_adam {
  double *Q[CASE_LAYERS][2], *M[CASE_LAYERS], *V[CASE_LAYERS];
  double *C[CASE_LAYERS],
      /* the parts S and C of A = S (x) C: their bases, from which the basis Q of A is computed */
      *S[CASE_LAYERS];
} rotated_adam;

static int64_t internal_column(const ng_layer *l, int64_t i) {
  const int64_t taps = l->kind == NG_CONV2D ? l->kernel[0] * l->kernel[1] : 1;
  const int64_t channels = l->kind == NG_CONV2D ? l->in / l->groups : l->in;
  return i < taps * channels ? i % channels * taps + i / channels : i;
}

/* Rows of Q <- the Gram-Schmidt vectors (in order, twice) of (F + shift I) q_i. Return the largest over the least divisor. */
static double iterate_basis(const double *F, int64_t n, double relative, double *Q) {
  double *X = zeros(n * n), trace = 0, least = INFINITY;
  for (int64_t i = 0; i < n; i++)
    trace += F[i * (n + 1)];
  const double shift = relative * trace / (double)n;
  dense_product(false, false, n, n, n, Q, F, X);
  for (int64_t i = 0; i < n && trace > 0; i++) {
    double *x = X + i * n;
    for (int64_t c = 0; c < n; c++)
      x[c] += shift * Q[i * n + c];
    for (int64_t k = 0; k < 2 * i; k++) {
      const double *other = X + k % i * n, along = v_dot(other, x, n);
      for (int64_t c = 0; c < n; c++)
        x[c] -= along * other[c];
    }
    const double norm = sqrt(v_dot(x, x, n));
    least = fmin(least, norm);
    for (int64_t c = 0; c < n; c++)
      x[c] /= norm;
  }
  if (trace > 0) memcpy(Q, X, sizeof *Q * (size_t)(n * n));
  free(X);
  return trace > 0 ? (trace + shift) / least : 1;
}

static double *unit_basis(int64_t n) {
  double *Q = zeros(n * n);
  for (int64_t i = 0; i < n; i++)
    Q[i * (n + 1)] = 1;
  return Q;
}

/* Iterate the bases of C and S, diagonal blocks of F [p, p]; Q <- their product. A published column is (channel, position). */
static double iterate_spatial(const ng_layer *l, const double *F, int64_t p, double relative,
                              double **C, double **S, double *Q) {
  const int64_t ch = l->in, taps = l->kernel[0] * l->kernel[1];
  double *block[2] = {zeros(ch * ch), zeros(taps * taps)};
  if (*C == NULL) *C = unit_basis(ch);
  if (*S == NULL) *S = unit_basis(taps);
  for (int64_t i = 0; i < ch * ch; i++)
    block[0][i] = F[i / ch * p + i % ch];
  for (int64_t i = 0; i < taps * taps; i++)
    block[1][i] = F[(ch + i / taps) * p + ch + i % taps];
  const double worst =
      fmax(iterate_basis(block[0], ch, relative, *C), iterate_basis(block[1], taps, relative, *S));
  for (int64_t i = 0; i < taps * ch; i++) {
    for (int64_t j = 0; j < taps * ch; j++)
      Q[i * p + j] = (*S)[i / ch * taps + j % taps] * (*C)[i % ch * ch + j / taps];
  }
  free(block[0]);
  free(block[1]);
  return worst;
}

/* Y = Q_G' X Q_A, or back. */
static void rotate_by_bases(bool back, int64_t q, int64_t p, const double *G, const double *A,
                            const double *X, double *Y) {
  dense_product(back, false, q, p, q, G, X, Y);
  dense_product(false, !back, q, p, p, Y, A, Y);
}

static void predict_layer_adam(const test_case *s, const oracle *o, const ng_options *factors,
                               const ng_settings *how, int32_t t, int32_t l, rotated_adam *r,
                               case_result *out) {
  const bool spatial = oracle_is_spatial(factors, &s->layer[l]);
  const int64_t groups = s->layer[l].kind == NG_CONV2D ? s->layer[l].groups : 1;
  const int64_t q = s->layer[l].out / groups, p = oracle_columns(&s->layer[l]);
  const int64_t count = case_weight_count(s, l), size[2] = {p, q};
  double *U = zeros(q * p), *T = zeros(q * p), worst = 1;
  if (r->M[l] == NULL) {
    r->M[l] = zeros(count);
    r->V[l] = zeros(count);
    for (int side = 0; side < 2; side++) {
      const int64_t n = size[side];
      r->Q[l][side] = zeros(groups * n * n);
      for (int64_t i = 0; i < groups * n; i++) {
        const int64_t one = side == 0 ? internal_column(&s->layer[l], i % n) : i % n;
        r->Q[l][side][i * n + one] = 1;
      }
    }
  }
  for (int64_t g = 0; g < groups; g++) {
    const double *D = s->D[t][l] + g * q * p;
    double *P = out->P[t][l] + g * q * p, *M = r->M[l] + g * q * p, *V = r->V[l] + g * q * p;
    double *Q[2];
    for (int side = 0; side < 2; side++) {
      int64_t n;
      const double *F = oracle_factor(o, 0, l, g, side == 1, &n);
      Q[side] = r->Q[l][side] + g * size[side] * size[side];
      const double c = spatial && side == 0 ? iterate_spatial(&s->layer[l], F, p, how->damping,
                                                              &r->C[l], &r->S[l], Q[0])
                                            : iterate_basis(F, n, how->damping, Q[side]);
      worst = fmax(worst, c);
    }
    rotate_by_bases(false, q, p, Q[1], Q[0], D, U);
    for (int64_t i = 0; i < q * p; i++) {
      M[i] = how->first_decay * M[i] + (1 - how->first_decay) * D[i];
      V[i] = how->second_decay * V[i] + (1 - how->second_decay) * U[i] * U[i];
    }
    rotate_by_bases(false, q, p, Q[1], Q[0], M, T);
    for (int64_t i = 0; i < q * p; i++)
      T[i] = T[i] / (1 - pow(how->first_decay, t + 1)) /
             (sqrt(V[i] / (1 - pow(how->second_decay, t + 1))) + how->moment_epsilon);
    rotate_by_bases(true, q, p, Q[1], Q[0], T, P);
  }
  out->condition[t][l] = worst;
  free(U);
  free(T);
}

/* Factors come from the oracle, as in predict_product. */
static void predict_rotated_adam(const test_case *s, const ng_options *opt, case_result *out) {
  ng_options factors = *opt;
  ng_settings how = opt->base;
  rotated_adam r = {0};
  fixture_set(&factors, "solver", "cholesky");
  memset(out, 0, sizeof *out);
  for (int32_t t = 0; t < s->steps; t++) {
    test_case part = *s;
    case_result inverted;
    oracle *o;
    if (s->damping[t] > 0) how.damping = s->damping[t];
    part.steps = t + 1;
    case_predict(&part, &factors, &inverted, &o);
    for (int32_t l = 0; l < s->layers; l++) {
      out->P[t][l] = zeros(case_weight_count(s, l));
      predict_layer_adam(s, o, &factors, &how, t, l, &r, out);
      out->inner[t] += v_dot(out->P[t][l], s->D[t][l], case_weight_count(s, l));
    }
    out->nu[t] = fmin(1, sqrt(how.kl_clip / (0.01 * fabs(out->inner[t]))));
    if (how.clip != NG_CLIP_KL || out->inner[t] == 0) out->nu[t] = 1;
    for (int32_t l = 0; l < s->layers; l++) {
      for (int64_t i = 0; i < case_weight_count(s, l); i++)
        out->P[t][l][i] *= out->nu[t];
    }
    case_free_result(&inverted);
    oracle_destroy(&o);
  }
  for (int32_t l = 0; l < s->layers; l++) {
    double *all[] = {r.Q[l][0], r.Q[l][1], r.M[l], r.V[l], r.C[l], r.S[l]};
    for (int i = 0; i < 6; i++)
      free(all[i]);
  }
}

/* ---- the table -------------------------------------------------------------------------------*/

/* A damping that gives a good condition, an average over steps, a clip factor below 1. */
#define USUAL " damping=0.1 stat_decay=0.6 clip=kl kl_clip=0.01"
#define NATGRAD(more) "method=natgrad solve_period=1" USUAL more

#define KFAC_ADAM(more)                                                                            \
  "method=kfac-adam first_decay=0.8 second_decay=0.7 moment_epsilon=0.1" USUAL more

/* A window that drops its first row at the fourth step. */
#define WINDOW(more) " window=3 clip=kl kl_clip=0.01 " more

/* Promises of methods that invert vectors; promises of methods that invert factors. */
#define INVERSE (LINEAR | SYMMETRIC | IN_GROUPS)
#define FACTORS (INVERSE | HALVES | FRACTIONS | READS_INPUT | READS_OUTPUT)

/* `tail`, from |F| < 1e3 for the factors of these tests and lambda = 1e10: |A| |G| / lambda for joint (and for
 * vectors), |F| / sqrt(lambda) for pi, |F| / lambda for full. */
#define JOINT 1e-4
#define PI 1e-2
#define FULL 1e-7

#define WHOLE .calls = ANY_PARTS, .shards = ANY_PARTS, .repeat = 1, .knob = "damping"
#define SPLIT(by, most) .power = 1, .tail = (most), .predict = (by), .growth = 64
#define ROLLING .predict = window_predict, .growth = 64

static const family families[] = {
    {"natgrad, eigen, joint", NATGRAD(" solver=eigen damping_split=joint"),
     FACTORS | SOLVES | SCALES, WHOLE, SPLIT(predict_kronecker, JOINT)},
    {"natgrad, eigen, pi", NATGRAD(" solver=eigen damping_split=pi"), FACTORS | SOLVES | SCALES,
     WHOLE, SPLIT(predict_kronecker, PI)},
    {"natgrad, eigen, full", NATGRAD(" solver=eigen damping_split=full"), FACTORS | SOLVES, WHOLE,
     .power = 2, .tail = FULL, .predict = predict_kronecker, .growth = 64},
    {"natgrad, cholesky, pi", NATGRAD(" damping_split=pi"), FACTORS | SOLVES | SCALES, WHOLE,
     SPLIT(predict_kronecker, PI)},
    {"natgrad, cholesky, full", NATGRAD(" damping_split=full"), FACTORS | SOLVES, WHOLE, .power = 2,
     .tail = FULL, .predict = predict_kronecker, .growth = 64},
    {"natgrad, spatial factors", NATGRAD(" spatial=factored"), FACTORS | SOLVES | SCALES, WHOLE,
     SPLIT(predict_kronecker, PI)},
    {"kaisa", "method=kaisa" USUAL, FACTORS | SCALES, .calls = EVEN_SUMS, .shards = EVEN_SUMS,
     .repeat = 4, .knob = "damping", SPLIT(predict_kronecker, JOINT)},
    {"kaisa, inverse", "method=kaisa solver=cholesky damping_split=full" USUAL, FACTORS,
     .calls = EVEN_SUMS, .shards = EVEN_SUMS, .knob = "damping", .power = 2, .tail = FULL,
     .predict = predict_kronecker, .growth = 64},
    {"mpd-kfac", "method=mpd-kfac" USUAL, FACTORS | SCALES, .calls = NO_PARTS, .shards = EVEN_MEANS,
     .repeat = 1, .knob = "damping", SPLIT(predict_kronecker, JOINT)},
    {"mpd-kfac, inverse",
     "method=mpd-kfac solver=cholesky eigen_floor=0 damping_split=pi damping_leak=owner" USUAL,
     FACTORS | SCALES, .calls = NO_PARTS, .shards = EVEN_MEANS, .repeat = 1, .knob = "damping",
     SPLIT(predict_kronecker, PI)},
    {"dp-kfac", "method=dp-kfac" USUAL, FACTORS | SCALES, .calls = NO_PARTS, .shards = NO_PARTS,
     .repeat = 1, .knob = "damping", SPLIT(predict_kronecker, JOINT)},
    {"dp-kfac, inverse",
     "method=dp-kfac solver=cholesky eigen_floor=0 damping_split=pi damping_leak=owner" USUAL,
     FACTORS | SCALES, .calls = NO_PARTS, .shards = NO_PARTS, .repeat = 1, .knob = "damping",
     SPLIT(predict_kronecker, PI)},
    {"eva-kfac", "method=eva-kfac" USUAL, FACTORS | SCALES | ALIKE, .calls = NO_PARTS,
     .shards = EVEN_SUMS, .repeat = 4, .knob = "damping", SPLIT(predict_kronecker, PI)},
    {"sam", "method=sam stat_decay=0.6 radius=0.5",
     IN_GROUPS | FRACTIONS | SCALES | ALIKE | READS_INPUT | READS_OUTPUT, .calls = NO_PARTS,
     .shards = EVEN_SUMS, .repeat = 4, .knob = "radius", .predict = predict_product, .growth = 64},
    {"spngd", "method=spngd" USUAL, FACTORS | SOLVES | SCALES, WHOLE, SPLIT(predict_kronecker, PI)},
    {"eva", "method=eva" USUAL, INVERSE | VECTORS | SCALES | READS_INPUT | READS_OUTPUT,
     .calls = NO_PARTS, .shards = EVEN_SUMS, .repeat = 4, .knob = "damping", .power = 1,
     .tail = JOINT, .predict = rankone_predict, .growth = RANKONE_GROWTH},
    {"eva-natgrad", "method=eva-natgrad" USUAL,
     INVERSE | VECTORS | SOLVES | SCALES | READS_INPUT | READS_OUTPUT, WHOLE, .power = 1,
     .tail = JOINT, .predict = rankone_predict, .growth = RANKONE_GROWTH},
    {"eva-f", "method=eva-f" USUAL, INVERSE | VECTORS | READS_INPUT, .calls = NO_PARTS,
     .shards = EVEN_SUMS, .repeat = 1, .knob = "damping", .power = 1, .tail = JOINT,
     .predict = rankone_predict, .growth = RANKONE_GROWTH},
    {"adasgd", "method=adasgd damping=0.1", VECTORS, WHOLE, .predict = rankone_predict,
     .growth = RANKONE_GROWTH},
    {"mfac", "method=mfac" WINDOW("damping=0.1"), EVERYONE, WHOLE, .predict = window_predict,
     .growth = WINDOW_GROWTH},
    {"mfac, momentum",
     "method=mfac" WINDOW("damping=0.1 window_momentum=0.6 window_momentum_form=heavy-ball"),
     EVERYONE, WHOLE, .predict = window_predict, .growth = WINDOW_GROWTH},
    {"mfac, parameters",
     "method=mfac" WINDOW("damping=0.1 window_scope=parameter window_dtype=bf16"), SHAPED, WHOLE,
     .predict = window_predict, .growth = WINDOW_GROWTH},
    {"ggt", "method=ggt" WINDOW("damping=0.5 window_momentum=0.5 window_forget=0.9"), EVERYONE,
     WHOLE, ROLLING},
    {"efcp", "method=efcp" WINDOW("damping=0.1 window_density=0.3 window_store=topk-layer"), SHAPED,
     WHOLE, ROLLING},
    {"efcp, rest added, bf16",
     "method=efcp" WINDOW(
         "damping=0.1 window_density=0.3 window_fill=added window_dtype=bf16 window_momentum=0.5"),
     SHAPED, WHOLE, ROLLING},
    {"sparse-ggt",
     "method=sparse-ggt" WINDOW("damping=0.5 window_density=0.3 window_store=topk-layer"), SHAPED,
     WHOLE, ROLLING},
    {"lowrank-mfac", "method=lowrank-mfac" WINDOW("damping=0.1 window_rank=2 window_momentum=0.3"),
     SHAPED, WHOLE, .growth = 8},
    {"efcp, filled",
     "method=efcp" WINDOW(
         "damping=0.1 window_density=0.3 window_store=topk-layer window_fill=error "
         "window_empty=0.5"),
     SHAPED, WHOLE, ROLLING},
    {"topk-sgd",
     "method=topk-sgd clip=kl kl_clip=0.01 window_density=0.3 window_store=topk-layer "
     "window_momentum=0.6",
     SHAPED, WHOLE, ROLLING},
    {"topk-adam",
     "method=topk-adam clip=kl kl_clip=0.01 window_density=0.3 window_store=topk-layer damping=0.1 "
     "statistics=sharded",
     SHAPED, WHOLE, ROLLING},
    {"topk-adagrad",
     "method=topk-adagrad clip=kl kl_clip=0.01 window_density=0.3 window_store=topk-layer "
     "damping=0.1",
     SHAPED, WHOLE, ROLLING},
    {"mfac, sharded",
     "method=mfac" WINDOW("damping=0.1 statistics=sharded window_momentum=0.6 stat_period=2"),
     EVERYONE, WHOLE, ROLLING},
    {"ggt, sharded",
     "method=ggt" WINDOW("damping=0.5 statistics=sharded window_momentum=0.5 window_forget=0.9"),
     EVERYONE, WHOLE, ROLLING},
    {"efcp, sharded",
     "method=efcp" WINDOW("damping=0.1 statistics=sharded window_density=0.3 "
                          "window_store=topk-layer window_fill=added"),
     SHAPED, WHOLE, ROLLING},
    {"efcp, sharded, of all",
     "method=efcp" WINDOW("damping=0.1 statistics=sharded window_density=0.3 window_fill=added"),
     SHAPED, WHOLE, ROLLING},
    {"sparse-ggt, forgetting, sharded",
     "method=sparse-ggt" WINDOW("damping=0.5 statistics=sharded window_density=0.3 "
                                "window_store=topk-layer window_forget=0.9 "
                                "window_momentum=0.5 window_momentum_form=gradient"),
     SHAPED, WHOLE, ROLLING},
    {"lowrank-mfac, sharded",
     "method=lowrank-mfac" WINDOW("damping=0.1 statistics=sharded window_rank=2"), SHAPED, WHOLE,
     .growth = 8},
    {"natgrad, diagonal G", NATGRAD(" output_factor=diagonal"), FACTORS | SCALES, WHOLE,
     SPLIT(predict_kronecker, PI)},
    {"natgrad, norm units and tokens", NATGRAD(" norm_block=unit"),
     FACTORS | SCALES | NORMS | TOKENS, WHOLE, SPLIT(predict_kronecker_norms, PI)},
    {"natgrad, full norms and tokens",
     NATGRAD(" solver=eigen damping_split=joint norm_block=full norm_damping=16"),
     FACTORS | SCALES | NORMS | TOKENS, WHOLE, SPLIT(predict_kronecker_norms, JOINT)},
    {"natgrad, diagonal norms", NATGRAD(" norm_block=diagonal norm_damping=16"),
     FACTORS | SCALES | NORMS, WHOLE, SPLIT(predict_kronecker_norms, PI)},
    {"eva-natgrad, norm units", "method=eva-natgrad norm_block=unit" USUAL,
     INVERSE | VECTORS | SCALES | READS_INPUT | READS_OUTPUT | NORMS, WHOLE,
     SPLIT(predict_rankone_norms, JOINT)},
    {"eva-natgrad, full norms", "method=eva-natgrad norm_block=full norm_damping=16" USUAL,
     INVERSE | VECTORS | SCALES | READS_INPUT | READS_OUTPUT | NORMS, WHOLE,
     SPLIT(predict_rankone_norms, JOINT)},
    {"eva-natgrad, diagonal norms", "method=eva-natgrad norm_block=diagonal" USUAL,
     INVERSE | VECTORS | SCALES | READS_INPUT | READS_OUTPUT | NORMS, WHOLE,
     SPLIT(predict_rankone_norms, JOINT)},
    {"spngd, raw batch norms and tokens", "method=spngd" USUAL,
     (FACTORS & ~FRACTIONS) | SCALES | NORMS | RAW | TOKENS, .calls = NO_PARTS, .shards = NO_PARTS,
     .repeat = 1, .knob = "damping", SPLIT(predict_kronecker_norms, PI)},
    {"kfac-adam", KFAC_ADAM(" spatial=full"), FRACTIONS | READS_INPUT | READS_OUTPUT,
     .calls = ANY_PARTS, .shards = ANY_PARTS, .knob = "damping", .predict = predict_rotated_adam,
     .growth = 64},
    {"kfac-adam, spatial factors", KFAC_ADAM(" spatial=factored"),
     FRACTIONS | READS_INPUT | READS_OUTPUT, .calls = ANY_PARTS, .shards = ANY_PARTS,
     .knob = "damping", .predict = predict_rotated_adam, .growth = 64},
    {"kfac-adam, norms and tokens", KFAC_ADAM(" spatial=full"),
     FRACTIONS | READS_INPUT | READS_OUTPUT | NORMS | TOKENS, .calls = ANY_PARTS,
     .shards = ANY_PARTS, .knob = "damping", .growth = 4000},
    {"ekfac", "method=ekfac solve_period=1" USUAL, FACTORS & ~FRACTIONS & ~HALVES, WHOLE,
     SPLIT(predict_kronecker, JOINT)},
    {"natgrad beside a window", NATGRAD(" per_layer='linear: method=mfac damping=0.1 window=3'"),
     FRACTIONS | SHAPED | READS_INPUT | READS_OUTPUT, WHOLE, .growth = 1000},
    {"adam", "method=adam adam_lr=0.5 moment_epsilon=0.01 clip=kl kl_clip=0.01", SHAPED, WHOLE,
     .predict = adam_predict, .growth = 8},
    {"adam, norms and tokens", "method=adam first_decay=0 moment_epsilon=0.1",
     SHAPED | NORMS | TOKENS, WHOLE, .predict = adam_predict, .growth = 8},
    {"muon", "method=muon adam_lr=1", SHAPED | FRACTIONS, WHOLE, .predict = muon_predict,
     .growth = MUON_GROWTH},
    {"torch-muon, norms and tokens",
     "method=torch-muon muon_momentum=0.5 muon_nesterov=0 muon_scale=rms muon_epsilon=0.1 "
     "first_decay=0",
     SHAPED | FRACTIONS | NORMS | TOKENS, WHOLE, .predict = muon_predict, .growth = MUON_GROWTH},
    {"newton-muon", "method=newton-muon solve_period=1 stat_decay=0.6 clip=kl kl_clip=0.01",
     SHAPED | FRACTIONS | HALVES | READS_INPUT, .calls = ANY_PARTS, .shards = ANY_PARTS,
     .knob = "damping", .predict = newton_muon_predict, .growth = MUON_GROWTH},
    {"newton-muon, blocks",
     "method=newton-muon solve_period=1 stat_decay=0.6 factor_blocks=2 muon_nesterov=0",
     SHAPED | FRACTIONS | READS_INPUT, .calls = ANY_PARTS, .shards = ANY_PARTS, .knob = "damping",
     .predict = newton_muon_predict, .growth = MUON_GROWTH},
    {"muon beside a window", "method=muon per_layer='conv2d: method=mfac damping=0.1 window=3'",
     SHAPED, WHOLE, .growth = 1000},
    {"soap", "method=soap solve_period=2 moment_epsilon=0.01 clip=kl kl_clip=0.01",
     FRACTIONS | SHAPED | LATE, WHOLE, .growth = 8},
    {"soap-natgrad, norms and tokens",
     "method=soap-natgrad vector_factor=1 max_axis=6 clip=kl kl_clip=0.01",
     FRACTIONS | SHAPED | LATE | NORMS | TOKENS, WHOLE, .growth = 8},
    {"shampoo", "method=shampoo damping=0.1 clip=kl kl_clip=0.01", FRACTIONS | SHAPED, WHOLE,
     .growth = 8},
    {"shampoo, norms and tokens",
     "method=shampoo damping=0.1 stat_decay=0.9 max_axis=4 kept_axes=2 grafting=adam "
     "solve_period=2 moment_epsilon=0.01",
     FRACTIONS | SHAPED | NORMS | TOKENS, WHOLE, .growth = 8},
    {"kl-shampoo", "method=kl-shampoo damping=0.1 solve_period=1", FRACTIONS | SHAPED, WHOLE,
     .growth = 8},
    {"shampoo, bases",
     "method=shampoo gram_form=eigen stat_decay=0.9 damping=0.01 kept_axes=2 vector_factor=1",
     FRACTIONS | SHAPED | NORMS, WHOLE, .growth = 8},
    {"mfac, norms and tokens", "method=mfac" WINDOW("damping=0.1"), NORMS | TOKENS, WHOLE,
     .predict = window_predict, .growth = WINDOW_GROWTH},
};
enum { FAMILIES = sizeof families / sizeof families[0] };

/* ---- running properties ----------------------------------------------------------------------*/

/* Return whether NG_TEST_MULT, if below 1, draws row `row` of a property. */
static bool is_drawn(const property *p, int row) {
  const char *share = getenv("NG_TEST_MULT");
  rng r = {test_seed() + (uint64_t)row};
  for (const char *c = p->name; *c != '\0'; c++) {
    r.state = rng_mix(r.state + (uint64_t)*c);
  }
  return share == NULL || rng_real(&r) < strtod(share, NULL);
}

/* On every backend. If NG_LINALG is set: on this backend only. */
static void check_property(void **state) {
  const property *p = *state;
  const char *only = getenv("NG_LINALG");
  int rows = 0;
  for (const family *f = families; f < families + FAMILIES; f++) {
    const unsigned promises = f->promises | (f->predict != NULL ? PREDICTED : 0);
    if ((promises & p->promise) != p->promise) continue;
    for (int32_t i = 0; only == NULL ? test_backend(i) != NULL : i < 1; i++, rows++) {
      if (!is_drawn(p, rows)) continue;
      p->check(&(variant){f, only != NULL ? only : test_backend(i)->name});
    }
  }
  if (rows == 0) fail_msg("no row promises it");
}

static void every_method_has_a_row(void **state) {
  for (int32_t i = 0; i < ng_method_count(); i++) {
    ng_method_info m = {.struct_size = sizeof m};
    bool found = false;
    assert_int_equal(ng_method_at(i, &m), NG_OK);
    for (const family *f = families; f < families + FAMILIES; f++)
      found = found || strcmp(v_options(&(variant){f, NULL}).base.method, m.name) == 0;
    if (!found) fail_msg("method %s", m.name);
  }
}

/* A function of OpenBLAS; NULL with another BLAS.  Ranks are threads here; with threads of BLAS the tests take four
 * times as long on two processors. */
void openblas_set_num_threads(int n) __attribute__((weak));

int properties_main(const char *group, const property *list, size_t n) {
  struct CMUnitTest tests[32] = {{"every method has a row", every_method_has_a_row, 0, 0, 0}};
  if (n >= sizeof tests / sizeof tests[0]) return 1;
  if (openblas_set_num_threads) openblas_set_num_threads(1);
  for (size_t i = 0; i < n; i++) {
    tests[i + 1].name = list[i].name;
    tests[i + 1].test_func = check_property;
    tests[i + 1].initial_state = (void *)(uintptr_t)&list[i];
  }
  return ranks_run_tests(group, tests, n + 1);
}
