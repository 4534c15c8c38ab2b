/* kronecker.h: the state of a Kronecker block, shared by kronecker.c (statistics),
 * kronecker_solve.c (results, the ladder) and kronecker_apply.c (PD, emit).
 *
 * A block is `groups` independent pairs (A_g, G_g); each of A_g, G_g may be cut into diagonal parts
 * (factor_blocks, max_factor).  A part is one symmetric matrix.  The gradient of group g is q rows
 * of p columns; internal columns are (part, kernel offset, channel of the part), bias last. */
#ifndef NG_KRONECKER_H
#define NG_KRONECKER_H

#include "model/model.h"
#include "stat/gram.h"
#include "stat/average.h"

enum { NG_SIDE_A = 0, NG_SIDE_G = 1 };

typedef struct ng_part {
  int32_t group;
  int64_t lo, hi; /* channels of the layer: A inputs, G outputs */
  int64_t n;  /* order of the matrix                                                           */
  int64_t at; /* A: first column in the group's p; G: first row in the layer's `out`           */
  bool one;   /* A: holds the homogeneous coordinate                                           */
  void *F;    /* running average, factor_dtype                                                 */
  ng_sym S;   /* this step's sum, f32; fold = direct: F                                        */
  void *R;    /* cholesky: inverse, or L; product: F; ng_sym order; inverse_dtype              */
  void *V;    /* eigen: row i is eigenvector i; [n,n]; inverse_dtype                           */
  float *d;   /* eigen: [n]                                                                    */
  bool is_factor; /* R holds L */
  bool good; /* R, or V and d, hold a result that passed its checks                           */
  int info[2], finite; /* left by the queue, read after waiting for it; info of factor and invert */
  double trace;
} ng_part;

typedef struct ng_side {
  int32_t parts, each; /* in all, in a group */
  ng_part *part;
  ng_average average;
  double *leak; /* [groups]: damping_leak: shift that sits in the owner's average           */
} ng_side;

/* What the owner tells its column beside the matrices: these, then one pi a group, then for each
 * part (A's, G's) whether it holds a result. */
enum { NG_TOLD_RUNG, NG_TOLD_A, NG_TOLD_G, NG_TOLD_PI };

typedef struct ng_kron {
  int64_t groups, offsets; /* kernel offsets: kh*kw, 1 for linear */
  int64_t p, q, out; /* columns and rows of a group's gradient, q * groups                   */
  int32_t *map;      /* internal column -> column of the weight; the bias -> p - 1           */
  ng_side side[2];
  ng_conv conv;
  bool eigen, direct;
  bool product; /* solver = product: R is a copy of F, and `direction` is H = G D A */
  ng_dtype factor_dtype, inverse_dtype;
  float *told;      /* ng_kron_told(k) floats at the head of the results                    */
  void *prediv;     /* [out, p], inverse_dtype                                              */
  float *direction; /* [out, p]                                                             */
  float *scratch;
  bool good; /* every part has a result: else the gradient stays plain               */
} ng_kron;

static inline ng_kron *ng_kron_of(const ng_block *b) { return b->state; }
static inline int64_t ng_kron_told(const ng_kron *k) {
  return NG_TOLD_PI + k->groups + k->side[NG_SIDE_A].parts + k->side[NG_SIDE_G].parts;
}
static inline int64_t ng_floats(int64_t n) { return (n + 15) / 16 * 16; } /* keeps pieces aligned */

ng_status ng_kron_observe(ng_block *b, const ng_obs *o);
void ng_kron_weights(ng_block *b, double w[4], bool set);
void ng_kron_scale(ng_block *b);
float *ng_kron_message(ng_block *b, int64_t *count);
ng_status ng_kron_fold(ng_block *b);
void ng_kron_forget(ng_block *b);
ng_status ng_kron_solve(ng_block *b);
void ng_kron_shared(ng_block *b);
ng_status ng_kron_measure(ng_block *b);
void ng_kron_norms(ng_block *b, double pd2[2]);
ng_status ng_kron_emit(ng_block *b, const double factor[2], const ng_sink *sink);
int64_t ng_kron_solve_scratch(const ng_block *b); /* floats */
int64_t ng_kron_apply_scratch(const ng_block *b); /* floats */

/* cholesky: keep L and solve, or the inverse?  `n` of the part, `m` columns it is applied to. */
bool ng_kron_keeps_factor(const ng_block *b, int64_t n, int64_t m);
/* Damping of both sides at `lambda`, from the split and the pi of the last solve. */
void ng_kron_split(const ng_block *b, double lambda, double pi, double *on_a, double *on_g);
/* eigen: what divides the block of PD that belongs to these two, at `lambda`. */
ng_spectrum ng_kron_spectrum(const ng_block *b, const ng_part *g, const ng_part *a, double lambda);

#endif
