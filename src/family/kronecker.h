/* kronecker.h: the state of a Kronecker block.
 *
 *   kronecker.c        geometry, memory, state, and the operation tables
 *   kronecker_stats.c  adding observations to A and G
 *   kronecker_solve.c  damping; solving all parts of a block
 *   kronecker_apply.c  computing PD (twosided/)
 *   kronecker_spatial.c  all of these for A = S (x) C (spatial = factored)
 *   kronecker_rows.c   PD of a linear layer from its rows (gradient_rows)
 *   kronecker_factors.c  A and G in the published order
 *   kronecker_adam.c   a second family: Adam in the eigenbases of A and G
 *   kronecker_ekfac.c  a third family: EKFAC, second moments of samples in the eigenbases
 *   kronecker_muon.c   a fourth family: Newton-Muon, A alone, then Muon
 *
 * A block is `groups` independent pairs (A_g, G_g). Options cut A_g and G_g into diagonal blocks, the parts
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
 * A and G are one statistic each. Their owners may differ, so each side has its own results. */
#ifndef NG_KRONECKER_H
#define NG_KRONECKER_H

#include "family/family.h"
#include "twosided/twosided.h"

enum { NG_SIDE_A = 0, NG_SIDE_G = 1 };

typedef struct ng_part {
  int64_t lo, hi;  /* channels [lo, hi) of the layer's input (for A) or output (for G) */
  bool has_bias;   /* A: the last row and column belong to the 1 appended for the bias */
  int32_t of_stat; /* index of the part in the statistic, whose average this is */
} ng_part;

/* Indices of ng_side.solve_info, which the owner of a side sends with its results: the highest rung of the side's parts, the
 * damping of group 0, pi of each group, and for each part 1 if its result is good, else 0; with inverse_dtype = f64 also
 * the rounding error of each pi. */
enum { NG_INFO_RUNG, NG_INFO_DAMPING, NG_INFO_PI };

typedef struct ng_side {
  int32_t parts, group_parts; /* number of parts of all groups; number of parts of one group */
  ng_part *part;
  ng_matrix *matrix; /* the matrix of each part */
  ng_stat *stat;
  float *solve_info;
  double *shift; /* [groups] damping_leak: damping of earlier solves, which the next fold adds */
} ng_side;

/* The state of spatial = factored. Side A has, for each group, the matrices e_i C of every kernel position i and diagonal block of
 * C, then the matrix of order 1 of the bias. */
typedef struct ng_spatial {
  int64_t channels, blocks; /* number of channels of a group; number of diagonal blocks of C */
  /* number of matrices of each block of C: one for each kernel position, or 1 with moments */
  int64_t copies;
  bool has_bias;
  ng_matrix *S;                         /* [groups] one struct per group */
  ng_matrix *left, *right, *bias_right; /* the matrices on both sides; with moments NULL */
  /* rotated: G with e_i C for all kernel positions and groups; bias: G with the matrix of the bias */
  ng_twosided rotated, bias;
} ng_spatial;

typedef struct ng_kron {
  bool is_double;          /* inverse_dtype = f64: results, D and `direction` are in double */
  int64_t groups, offsets; /* offsets: kernel height * width of a convolution, else 1 */
  int64_t p, q, outputs;   /* columns and rows of a group's gradient; out = q * groups */
  int32_t *map;   /* internal column -> column of the weight; the bias -> p - 1; NULL: identity */
  int32_t *unmap; /* column of the weight -> internal column */
  ng_side side[2];
  int32_t
      sides; /* 1: the family does not observe output gradients, so G is the identity (NG_FORM_ABSENT) without a statistic */
  ng_side *left, *right;
  ng_twosided both; /* `left` and `right` as matrices for twosided/ */
  /* state of spatial = factored, in which only both.is_good is used; NULL: A is full */
  ng_spatial *spatial;
  ng_conv conv; /* geometry at the declared image size; ng_obs_conv sets the observed size */
  bool is_eigen;
  bool is_product; /* solver = product: R is the average, and `direction` is H = G D A */
  double lambda;   /* eigen-prediv: the damping of the last solve */
  ng_direction_sums *sums;
  struct ng_kron_rows *rows;   /* state of kronecker_rows.c; NULL: rows are not stored */
  struct ng_kron_adam *adam;   /* state of kronecker_adam.c; NULL: another family */
  struct ng_kron_ekfac *ekfac; /* state of kronecker_ekfac.c; NULL: another family */
  struct ng_kron_muon *muon;   /* state of kronecker_muon.c; NULL: another family */
} ng_kron;

static inline ng_kron *ng_kron_of(const ng_block *b) { return b->state; }
static inline int64_t ng_kron_info_count(const ng_kron *k, const ng_side *s) {
  return NG_INFO_PI + k->groups + s->parts + (k->is_double ? k->groups : 0);
}
static inline int64_t ng_kron_direction_floats(const ng_kron *k) {
  return k->outputs * k->p * (k->is_double ? 2 : 1);
}

/* Parts of accepts_entry and check_options of families with factors. */
static inline bool ng_kron_is_linear_or_conv(const ng_entry *e) {
  return !e->is_tensor && (e->d.kind == NG_LINEAR || e->d.kind == NG_CONV2D);
}
static inline ng_refusal ng_kron_refuse_eva_scale(const ng_settings *s) {
  return (ng_refusal){s->stat_scale == NG_SCALE_EVA, NG_OPTION_stat_scale,
                      ": a method with factors supports textbook, kaisa, mpd-kfac and chainerkfac"};
}

/* Entries of ng_family that families with factors share. */
ng_status ng_kron_create_state(ng_block *b);
ng_status ng_kron_declare_statistics(ng_block *b);
ng_status ng_kron_request_memory(ng_block *b, ng_plan *plan);
int64_t ng_kron_observation_scratch(const ng_block *b, const ng_obs *o);
ng_status ng_kron_observe(ng_block *b, const ng_obs *o);
void ng_kron_visit_fields(ng_block *b, ng_field_visit visit, void *arg);
void ng_kron_write_traces(ng_block *b, int32_t stat, double *mean);
ng_status ng_kron_solve(ng_block *b, ng_solve_phase phase);
int32_t ng_kron_climb_side(ng_block *b, ng_side *s); /* return the highest rung */
void ng_kron_read_results(ng_block *b);
void ng_kron_precondition(ng_block *b);
ng_status ng_kron_read_sums(ng_block *b);
void ng_kron_emit(const ng_block *b, int32_t segment, int32_t g, double factor, ng_direction *e);
void ng_kron_write_report(const ng_block *b, ng_layer_report *report);
void ng_kron_write_factors(ng_block *b, ng_factors *f); /* kronecker_factors.c */
int64_t ng_kron_apply_scratch(const ng_block *b);       /* floats */
/* D <- rows [row, row + rows) of the gradients in internal column order, the bias last, in f32 or double. Set
 * ng_kron.sums->finite to 0 if an element is not finite. */
void ng_kron_read_rows(const ng_block *b, int64_t row, int64_t rows, void *D);

/* Return which result a part of order n stores; cholesky: the cheaper of an inverse and L, applied to m columns a step. */
ng_result ng_kron_result(const ng_block *b, int64_t n, int64_t m);
/* kronecker.c, used by kronecker_spatial.c */
int64_t ng_kron_count_parts(const ng_settings *o, int64_t channels, int64_t offsets, bool one);
ng_status ng_kron_alloc_parts(ng_block *b, ng_side *s, int64_t each);
ng_status ng_kron_set_matrix(const ng_block *b, const ng_side *s, ng_matrix *m, int64_t n);

/* Functions of kronecker_spatial.c, in the order in which a step calls them. Scratch sizes are in floats. */
bool ng_kron_is_spatial(const ng_block *b);
ng_status ng_spatial_create(ng_block *b);
ng_status ng_spatial_declare_parts(ng_block *b);
void ng_spatial_link(ng_kron *k);
int64_t ng_spatial_observe_scratch(const ng_block *b, const ng_conv *conv);
int64_t ng_spatial_request_results(const ng_block *b, ng_plan *plan);
void ng_spatial_visit_results(const ng_kron *k, ng_field_visit visit, void *arg);
void ng_spatial_observe(ng_block *b, const ng_obs *o, double alpha);
void ng_spatial_measure(const ng_block *b);
bool ng_spatial_set_scales(const ng_block *b, int64_t group);
int64_t ng_spatial_apply_scratch(const ng_kron *k);
/* to <- the gradient of the weight [taps, outputs, channels]; bias <- the gradient of the bias. */
void ng_spatial_read_gradient(ng_block *b, float *to, float *bias);
void ng_spatial_precondition(ng_block *b);
void ng_spatial_describe(const ng_block *b, bool is_bias, ng_direction *e);

/* kronecker_rows.c. create: set k->rows if the option gradient_rows has an effect on the block. request, in request_memory:
 * after the memory of the results. store: copy an observation of a statistic s. apply: out <- PD of D, and return true, if D is
 * the product of the stored rows; scratch: ng_kron_rows_scratch floats. */
ng_status ng_kron_rows_create(ng_block *b);
void ng_kron_rows_request(ng_block *b, ng_plan *plan);
void ng_kron_rows_set_initial(const ng_block *b);
bool ng_kron_rows_wanted(const ng_block *b);
void ng_kron_rows_store(ng_block *b, const ng_obs *o, const ng_stat *s);
int64_t ng_kron_rows_scratch(const ng_block *b); /* floats */
bool ng_kron_rows_apply(const ng_block *b, const float *D, float *out, float *scratch);

/* eigen: set the damping of each group in k->both. */
void ng_kron_set_damping(const ng_block *b);

#endif
