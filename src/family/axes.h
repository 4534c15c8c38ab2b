/* axes.h: gradients as tensors with a Gram matrix for each axis; for the families soap and shampoo.
 *
 * In: a block of a layer or tensor, with the options max_axis, merge_axes, kept_axes, vector_factor. Out: the axes of each
 * parameter, or of each piece of a parameter (families_pieces.c), and one statistic `L`, whose part i is the sum or average of
 * D_(k) D_(k)' for one axis k of one parameter or piece.
 *
 * Gradients are equal on all ranks, so the owner of a block computes L itself: no sum is sent. */
#ifndef NG_FAMILY_AXES_H
#define NG_FAMILY_AXES_H

#include "family/family.h"
#include "twosided/twosided.h"

enum { NG_AXES_PARAMETERS = 2, NG_AXES_MATRICES = NG_AXES_PARAMETERS * NG_AXES_MOST };

/* A parameter or a piece of one: its axes, and the part of L of each axis; -1: the axis has no matrix. */
typedef struct ng_axes_parameter {
  ng_axes axes;
  int32_t part[NG_AXES_MOST];
  int32_t segment;
  int64_t at;                   /* first element of the piece in the block */
  int64_t stride[NG_AXES_MOST]; /* strides of its axes in the block */
  bool is_cut;                  /* true: the elements of the piece are not adjacent in memory */
} ng_axes_parameter;

/* The first member of the state of a block: matrices of a list of parameters or pieces. */
enum { NG_GRAMS_RUNG, NG_GRAMS_WERE_GOOD, NG_GRAMS_INFO };
typedef struct ng_grams {
  ng_axes_parameter *list;
  int32_t count, matrices;
  ng_matrix *matrix;  /* [matrices] */
  ng_moments moments; /* M and V */
  float *info;        /* [NG_GRAMS_INFO] result of the last solve; NULL: none */
  ng_direction_sums total;
} ng_grams;
static inline ng_grams *ng_grams_of_block(const ng_block *b) { return b->state; }

/* Set the axes of the parameter of a segment, merged as the options say. Return whether the parameter is a vector. */
bool ng_axes_of_segment(const ng_block *b, int32_t segment, ng_axes *a);
/* Set `parameter` of each segment; return the number of matrices. */
int32_t ng_axes_of_block(const ng_block *b, ng_axes_parameter parameter[NG_AXES_PARAMETERS]);
/* Enqueue: D <- the gradients of all segments, f32, row after row; *finite <- 0 if an element is not finite. */
void ng_axes_read_gradients(const ng_block *b, float *D, int32_t *finite);
/* Entries of a family (family.h), for a block whose state begins with ng_grams:
 *     declare_statistics, write_report
 *     observe                 add fresh D_(k) D_(k)' to the sums of L
 *     check_gradients_finite  NG_SKIPPED if D is not finite, or |D|^2, which bounds the entries of D D', exceeds f32. Every owner
 *                             decides before any sum is folded, so a skipped step changes no L. */
ng_status ng_grams_declare(ng_block *b);
ng_status ng_grams_observe(ng_block *b, const ng_obs *o);
ng_status ng_grams_check_gradients(ng_block *b);
void ng_grams_write_report(const ng_block *b, ng_layer_report *report);
/* The part of ng_grams_observe before the products: enqueue D <- the gradients, |D|^2, and the scaling of the old sums. */
void ng_grams_read(ng_block *b, float *D);
/* Store the rung of a solve; return the status of the entry `solve`. */
ng_status ng_grams_store_rung(ng_block *b, int32_t rung);
/* Return NG_ERR_ARG if a matrix exceeds 32-bit LAPACK; `advice` ends the message. */
ng_status ng_grams_check_orders(const ng_block *b, const char *advice);
int64_t ng_axes_elements_of_block(const ng_block *b);
/* Return the floats of scratch for the functions above: D, a piece, then the scratch of twosided/. */
int64_t ng_axes_block_scratch(const ng_block *b, const ng_axes_parameter *list, int32_t count);
/* Append ".weight" or ".bias" to the name of a field. */
void ng_axes_name_field(const ng_segment *s, ng_field *f);
/* Write "L 6x6, 5x5; moments 30" for ng_explain. */
void ng_axes_describe(ng_block *b, const ng_axes_parameter *parameter);

/* ---- families_bases.c: gram_form = eigen, qr; R of a matrix is a basis ----------------------------*/

/* Compute the basis of a matrix in the phases of `solve`; return the rung, 0 before NG_SOLVE_CLIMB. qr: of L + shift I. */
int32_t ng_grams_solve_basis(ng_block *b, ng_matrix *m, ng_solve_phase phase, double shift);
/* Enqueue, for a list of pieces, b->direction <- filter_scale times F in the bases, over sqrt(V / c) + damping, rotated back; the
 * new M and V. F, S: scratch, after S for one piece. */
void ng_grams_precondition(ng_block *b, float *D, float *F, float *S, double filter_scale);

/* ---- families_pieces.c: parameters with each axis cut after every max_axis elements --------------*/

/* Return the number of pieces of all parameters of a block. Set them, row-major in each parameter; return the number of
 * matrices. Each axis of a piece has one, also an axis of length 1, except with the exponent 0; with a
 * basis form (eigen, qr) vectors have one if vector_factor. */
int64_t ng_pieces_count(const ng_block *b);
int32_t ng_pieces_of_block(const ng_block *b, ng_axes_parameter *piece);
/* Return the elements of a piece, row-major: in `all`, the elements of the block, or if they are not adjacent in `room`, to
 * which a copy is enqueued. */
const float *ng_piece_gather(ng_queue *q, const ng_axes_parameter *p, const float *all,
                             float *room);
void ng_piece_scatter(ng_queue *q, const ng_axes_parameter *p, const float *piece, float *all);

#endif
