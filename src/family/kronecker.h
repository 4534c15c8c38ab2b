/* kronecker.h: the state of a Kronecker block, shared by kronecker.c (geometry, memory, state),
 * kronecker_stats.c (A and G), kronecker_embedding.c (layers whose A is a vector), kronecker_solve.c (results of a block), kronecker_part.c (of one matrix, the ladder) and kronecker_apply.c (PD).
 *
 * A block is `groups` independent pairs (A_g, G_g); each of A_g, G_g may be cut into diagonal parts
 * (factor_blocks, max_factor).  A part is one symmetric matrix.  The gradient of group g is q rows
 * of p columns; internal columns are (part, kernel offset, channel of the part), bias last.
 *
 * A and G are a statistic each, with parts in the order of the parts here; they may have different
 * owners, so what an owner makes and tells is kept by side. */
#ifndef NG_KRONECKER_H
#define NG_KRONECKER_H

#include "family/family.h"

enum { NG_SIDE_A = 0, NG_SIDE_G = 1 };

typedef struct ng_part {
  int32_t group;
  int64_t lo, hi; /* channels of the layer: A inputs, G outputs */
  int64_t n;      /* order of the matrix                                                          */
  int64_t at;     /* A: first column in the group's p; G: first row in the layer's `out`          */
  bool one;       /* A: holds the homogeneous coordinate                                          */
  void *R;        /* cholesky: inverse, or L; product: the average; ng_sym order; inverse_dtype   */
  void *V;        /* eigen: row i is eigenvector i; [n,n]; inverse_dtype                          */
  float *d;       /* eigen: [n]                                                                   */
  bool is_factor; /* R holds L                                                                    */
  bool good;      /* R, or V and d, hold a result that passed its checks                          */
  /* left by the queue, read after waiting for it: of factor and invert; of the average */
  int info[2], finite;
  double trace, largest;
} ng_part;

/* What the owner of a side says beside the matrices: the worst rung of its parts, the damping of group
 * 0, then pi of each group, then for each part whether it holds a result. */
enum { NG_SAYS_RUNG, NG_SAYS_DAMPING, NG_SAYS_PI };

typedef struct ng_side {
  int32_t parts, each; /* in all, in a group */
  ng_part *part;
  ng_stat *stat;
  float *says;   /* ng_kron_says(k, side) numbers, at the head of its results                     */
  double *shift; /* [groups] damping_leak: the shift that sits in the owner's average             */
} ng_side;

typedef struct ng_kron {
  int64_t groups, offsets; /* kernel offsets: kh*kw, 1 for linear */
  int64_t p, q, out;       /* columns and rows of a group's gradient, q * groups                  */
  int32_t *map; /* internal column -> column of the weight; the bias -> p - 1; NULL: as they are */
  int32_t *unmap; /* column of the weight -> internal column                             */
  ng_side side[2];
  ng_conv conv; /* of the image that was told; each observation has its own size */
  bool eigen;
  bool product; /* solver = product: R is the average, and `direction` is H = G D A */
  ng_dtype inverse_dtype;
  void *prediv; /* [out, p], inverse_dtype                                                       */
  bool good; /* every part has a result: else the gradient stays plain                            */
  /* An embedding: A has no parts but a vector of so many numbers; q and out are its features, its gradient is
   * [vocabulary, q].  Else 0. */
  int64_t vocabulary;
  float *token;    /* [vocabulary], results of A: 1 / (A_v + d), eigen: A_v */
  bool token_good; /* ... that passed their checks                         */
} ng_kron;

static inline ng_kron *ng_kron_of(const ng_block *b) { return b->state; }
static inline int64_t ng_kron_says(const ng_kron *k, int side) {
  return NG_SAYS_PI + k->groups +
         (k->vocabulary > 0 && side == NG_SIDE_A ? 1 : k->side[side].parts);
}
/* The running average of a part, as it is stored. */
static inline void *ng_kron_average(const ng_side *s, const ng_part *part) {
  return s->stat->part[part - s->part].average;
}
/* Both sides are solved by one rank, which can then divide ahead for all (prediv). */
static inline bool ng_kron_together(const ng_kron *k) {
  return k->side[NG_SIDE_A].stat->owner == k->side[NG_SIDE_G].stat->owner;
}

/* Rungs of the ladder: 0 as asked, 1 to 3 damping times 10, 100, 1000, then these; ng_layer_report.rung. */
enum { NG_RUNG_DOUBLE = NG_DAMPED_DOUBLE, NG_RUNG_LAST = 5, NG_RUNG_PLAIN = 6 };
/* R, or V and d, of a part, on the owner of its side; returns the rung.  `shift` sits in the average,
 * `on` is the damping of now. */
int32_t ng_kron_solve_part(const ng_block *b, const ng_side *s, ng_part *part, double shift,
                           double on);

/* kronecker.c: entries of its table that the one for embeddings shares. */
ng_status ng_kron_create_embedding(ng_block *b);
void ng_kron_destroy(ng_block *b);
ng_status ng_kron_statistics(ng_block *b);
ng_status ng_kron_fields(ng_block *b, ng_field_visit visit, void *arg);
ng_status ng_kron_numbers(ng_block *b, ng_number_visit visit, void *arg);

/* kronecker_embedding.c: A of an embedding, where it is not made of parts.  alpha: the weight of one token. */
ng_status ng_kron_observe_tokens(ng_block *b, const ng_obs *o, double alpha);
bool ng_kron_token_mean(const ng_block *b, double *mean);
int32_t ng_kron_solve_tokens(const ng_block *b, double shift, double on, bool finite);
void ng_kron_predivide_tokens(ng_block *b, double lambda);

ng_status ng_kron_observe(ng_block *b, const ng_obs *o);
int64_t ng_kron_room(const ng_block *b, const ng_obs *o);
/* The convolution at the size of an observation. */
ng_conv ng_kron_conv(const ng_kron *k, const ng_obs *o);
void ng_kron_tell(ng_block *b, int32_t stat, double *mean);
ng_status ng_kron_solve(ng_block *b);
void ng_kron_shared(ng_block *b, bool fresh);
ng_status ng_kron_measure(ng_block *b);
void ng_kron_norms(ng_block *b, double *pd2);
void ng_kron_emit_tile(const ng_block *b, const ng_tile *t, double factor, const ng_sink *sink);
void ng_kron_report(const ng_block *b, ng_layer_report *report);
int64_t ng_kron_solve_scratch(const ng_block *b); /* floats */
int64_t ng_kron_apply_scratch(const ng_block *b); /* floats */

/* cholesky: keep L and solve, or the inverse?  `n` of the part, `m` columns it is applied to. */
bool ng_kron_keeps_factor(const ng_block *b, int64_t n, int64_t m);
/* Damping of both sides at `lambda`, from the split and the pi of the last solve. */
void ng_kron_split(const ng_block *b, double lambda, double pi, double *on_a, double *on_g);
/* eigen: what divides the block of PD that belongs to these two, at `lambda`. */
ng_spectrum ng_kron_spectrum(const ng_block *b, const ng_part *g, const ng_part *a, double lambda);

#endif
