/* kronecker.h: the state of a Kronecker block.
 *
 *   kronecker.c        geometry, memory, state, and the operation tables
 *   kronecker_stats.c  observations into A and G
 *   kronecker_part.c   the result of one matrix, with the ladder
 *   kronecker_solve.c  the results of a block
 *   kronecker_apply.c  PD
 *
 * A block is `groups` independent pairs (A_g, G_g). Options cut A_g and G_g into diagonal parts
 * (factor_blocks, max_factor). A part is one symmetric matrix, or one diagonal matrix stored as a vector.
 *
 * The gradient of a group has q rows and p columns. One side multiplies it from the left (`left`), the
 * other from the right:
 *
 *                   rows D       left          right
 *     linear, conv  outputs      G             A
 *     embedding     tokens       A, diagonal   G
 *
 * The internal order of the columns of a convolution is (part, kernel offset, channel), bias last.
 *
 * A and G are one statistic each. They may have different owners, so each side has its own results. */
#ifndef NG_KRONECKER_H
#define NG_KRONECKER_H

#include "family/family.h"

enum { NG_SIDE_A = 0, NG_SIDE_G = 1 };

typedef struct ng_part {
  int32_t group;
  int64_t lo, hi; /* channels of the layer: A inputs, G outputs */
  int64_t n;      /* order of the matrix */
  int64_t at;     /* left: first of all rows; right: first column in the group */
  bool has_one;   /* A: the last row and column belong to the 1 appended for the bias */
  bool diagonal;  /* the average is a vector [n], and `d` is the only result */
  bool is_factor; /* R contains L */
  bool good;      /* the result passed its checks */
  void *R;  /* inverse, or L if is_factor; solver = product: the average; ng_sym, inverse_dtype */
  void *V;  /* eigen: row i is eigenvector i; [n,n]; inverse_dtype */
  float *d; /* [n] eigen: eigenvalues; cholesky of a diagonal part: its inverse */
  /* Written by the queue, read after a wait: LAPACK's info; about the average. */
  int info[2], finite;
  double trace, largest;
} ng_part;

/* `says`, which the owner of a side sends with its results: the highest rung of its parts, the damping of
 * group 0, pi of each group, and for each part whether its result is good. */
enum { NG_SAYS_RUNG, NG_SAYS_DAMPING, NG_SAYS_PI };

typedef struct ng_side {
  int32_t parts, each; /* of all groups, of one group */
  ng_part *part;
  ng_stat *stat;
  float *says;
  double *shift; /* [groups] damping_leak: shift contained in the owner's average */
} ng_side;

typedef struct ng_kron {
  int64_t groups, offsets; /* kernel offsets: kh*kw; 1 unless a convolution */
  int64_t p, q, out;       /* columns and rows of a group's gradient; out = q * groups */
  int32_t *map;   /* internal column -> column of the weight; the bias -> p - 1; NULL: identity */
  int32_t *unmap; /* column of the weight -> internal column */
  ng_side side[2];
  ng_side *left, *right;
  ng_conv conv; /* of the declared image; each observation has its own size */
  bool eigen;
  bool product; /* solver = product: R is the average, and `direction` is H = G D A */
  ng_dtype inverse_dtype;
  double lambda; /* eigen-prediv: the damping of the last solve */
  bool good;     /* every part has a result; otherwise PD = D */
} ng_kron;

static inline ng_kron *ng_kron_of(const ng_block *b) { return b->state; }
static inline int64_t ng_kron_says(const ng_side *s, int64_t groups) {
  return NG_SAYS_PI + groups + s->parts;
}
/* The running average of a part, as stored. */
static inline void *ng_kron_average(const ng_side *s, const ng_part *part) {
  return s->stat->part[part - s->part].average;
}

/* Compute R, or V and d, of a part, on the owner of its side. Return the rung. The average contains `shift`;
 * `on` is the present damping of the
 * side; if joint, the smallest that a direction meets. */
int32_t ng_kron_solve_part(const ng_block *b, const ng_side *s, ng_part *part, double shift,
                           double on);

ng_status ng_kron_observe(ng_block *b, const ng_obs *o);
int64_t ng_kron_room(const ng_block *b, const ng_obs *o);
void ng_kron_put_traces(ng_block *b, int32_t stat, double *mean);
ng_status ng_kron_solve(ng_block *b);
void ng_kron_shared(ng_block *b, bool fresh);
ng_status ng_kron_measure(ng_block *b);
void ng_kron_norms(ng_block *b, double *pd2);
void ng_kron_emit_tile(const ng_block *b, const ng_tile *t, double factor, const ng_sink *sink);
void ng_kron_report(const ng_block *b, ng_layer_report *report);
int64_t ng_kron_solve_scratch(const ng_block *b); /* floats */
int64_t ng_kron_apply_scratch(const ng_block *b); /* floats */

/* cholesky: keep L and solve, or keep the inverse? `n`: order of the part, `m`: columns it multiplies. */
bool ng_kron_keeps_factor(const ng_block *b, int64_t n, int64_t m);
/* The damping of both sides at `lambda`, from damping_split and pi. */
void ng_kron_split(const ng_block *b, double lambda, double pi, double on[2]);
/* eigen: the divisor of the entries of PD that a left and a right part share. */
ng_spectrum ng_kron_spectrum(const ng_block *b, const ng_part *left, const ng_part *right);
/* The right parts of the group of a left part: the first; there are k->right->each. */
static inline const ng_part *ng_kron_opposite(const ng_kron *k, const ng_part *left) {
  return &k->right->part[left->group * k->right->each];
}

#endif
