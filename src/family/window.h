/* window.h: the state of a window block, shared by window.c (the block), window_solve.c (functions of the Gram
 * matrix), window_gram.c, window_moments.c and the stores.
 *
 * A window is a matrix G whose rows are the last m gradients of a *part*: all parameters, a group, or one parameter.  A
 * store holds the rows in m + 1 places.  The place `head` is free: the row of the coming step enters there, so a
 * skipped step changes no other row.  If the step counts, head moves to the next place, whose oldest row is dropped.
 *
 * A store has three operations; all other computations use the m x m Gram matrix K = G G':
 *
 *     enter      store a vector of d elements as the row at head
 *     product    k <- G x in double, where x is any vector or the row at head
 *     combine    u <- by u + G' c in double, rounded once
 *
 * Flat order: the elements of one part are contiguous, segment after segment, row after row.  If statistics = sharded,
 * each rank has a slice of the flat order; d and all positions in flat order then count from the start of the slice. */
#ifndef NG_WINDOW_H
#define NG_WINDOW_H

#include "family/family.h"

/* A segment: its part, and its first element in the flat order of all ranks. */
typedef struct ng_window_segment {
  int32_t part;
  int64_t global_begin;
} ng_window_segment;

typedef struct ng_window_part {
  double *gram;    /* [places, places] the Gram matrix */
  double *c;       /* [places] coefficients of the rows in the direction u_scale u + G' c */
  double *u_scale; /* points into ng_window.u_scales */
  double *factor;  /* [places, places] Cholesky factor of S (window_gram.c); NULL: not stored */
  /* [places] coefficients of the rows in the average x: before and after this step; NULL: x is no average. */
  double *row_coefficient, *next_row_coefficient;
} ng_window_part;

enum { NG_WINDOW_FIELDS = 4 };
typedef struct ng_window_store {
  const char *name;
  int64_t max_elements; /* largest number of elements on all ranks; 0: no limit */
  /* Return the allowed slice border nearest to `at` (flat order of all ranks), monotonic in `at`.  NULL: any border. */
  int64_t (*nearest_border)(const ng_block *b, int64_t at);
  /* Request memory, in both passes of ng_plan. */
  ng_status (*request_memory)(ng_block *b, ng_plan *plan);
  /* [d] The caller writes the vector that enters here. After enter_row, a store with error feedback (all except dense) has
   * the residual of this step here. */
  float *(*entering_vector)(ng_block *b);
  void (*enter_row)(ng_block *b); /* store the entering vector as the row at head */
  /* Replaces `enter_row` if b->topk_rounds > 0: all ranks select entries together (ng_family.select_topk). */
  void (*select_topk)(ng_block *b, int32_t round, double *x);
  ng_rows (*describe_rows)(ng_block *b);   /* describe the rows, without the fields of the window */
  void (*end_step)(ng_block *b);           /* the step counts; NULL: nothing to do */
  void (*set_initial_values)(ng_block *b); /* set initial values in ng_ready; NULL: zeros */
  /* Describe the saved arrays in `f`, at most NG_WINDOW_FIELDS; return their number. */
  int32_t (*list_fields)(const ng_block *b, ng_field *f);
} ng_window_store;
extern const ng_window_store ng_window_dense, ng_window_topk_store, ng_window_lowrank_store;

typedef struct ng_window {
  const ng_window_store *store;
  /* number of elements on this rank; rows of a full window; places, m + 1 */
  int64_t d, m, places;
  /* number of elements of all ranks; index of this rank's first element */
  int64_t d_all, first_element;
  int32_t parts, chunks, segments;
  bool is_sliced; /* statistics = sharded with several ranks: this rank has a slice */
  int64_t *cut;   /* [ranks + 1] rank r has the elements [cut[r], cut[r + 1]) */
  ng_window_part *part;
  ng_window_segment *segment; /* [segments] */
  int32_t *segment_order;     /* [segments] segment numbers in flat order */
  ng_flat_range *flat;        /* [segments] the elements of segments in flat order */
  double *u_scales;           /* [parts] factors of u in the direction */
  /* factor of the vector that enters: lr with window_feedback_lr, otherwise 1 */
  double input_scale;
  double head, count; /* the free place; number of rows in the window */
  /* damping of part->factor, 0: no factor; its damping after this step */
  double factor_damping, next_factor_damping;
  bool has_new_factor; /* this step computed and stored a whole factor */
  /* learning rate in the step of the newest row; learning rate of this step */
  double lr, next_lr;
  double updates;         /* number of Adam steps */
  float *s, *next_s;      /* [d] second moments before and after this step */
  bool drops_rows;        /* this step drops all rows except its own (window_empty) */
  ng_status solve_status; /* status of the solve in this step */
  float *x;               /* [d] the vector that entered */
  float *u;               /* [d] the direction; if sliced, a slice of b->whole_direction */
  float *v, *next_v;      /* [d] momentum, or r of an average x; before and after this step */
  uint8_t *mask;          /* [d] 0: the weight is masked (window_mask); NULL: no mask */
  double *results;        /* [NG_FLAT_OPS, 3] result of the last pass of each kind in this step */
  double *sums;          /* scratch: 3 sums of each chunk of a pass and of each unit of the store */
  double *unit_products; /* [units, places] products of each unit of the store */
  double *work;          /* memory of window_solve.c for the host */
  /* [rows] places of the rows in use, oldest first; number of rows in use */
  int64_t *row_place, rows;
  int32_t units; /* chunks or ranges for which a store computes products separately */
  void *state;   /* state of the store */
} ng_window;

static inline ng_window *ng_window_of(const ng_block *b) { return b->state; }
/* Convert a number to an index from 0 to `most`; in a loaded file the number may be out of range. */
static inline int64_t ng_window_index(double x, int64_t most) {
  return x >= 0.0 && x <= (double)most ? (int64_t)x : 0;
}
static inline int64_t ng_window_head(const ng_window *w) {
  return ng_window_index(w->head, w->places - 1);
}
static inline int64_t ng_window_count(const ng_window *w) {
  return ng_window_index(w->count, w->m);
}

/* Swap an array of the last counted step with the array of this step. */
static inline void ng_window_swap_vectors(float **a, float **b) {
  float *was = *a;
  *a = *b;
  *b = was;
}

/* Return whether lr times the vector enters (window_feedback_lr). A dense store has no residual and ignores the option. */
static inline bool ng_window_feeds_lr(const ng_block *b) {
  return b->base.window_feedback_lr && b->base.window_store != NG_STORE_DENSE;
}

/* ---- window_cut.c ----------------------------------------------------------------------------*/

ng_status ng_window_set_layout(ng_block *b); /* set the layout; the caller has set w->store */
/* For ng_window_store.nearest_border: return the border between two parameters that is nearest to `at`. */
int64_t ng_window_nearest_segment(const ng_block *b, int64_t at);
/* Return a field of `rows` rows with one number per element of the window. */
ng_field ng_window_field(const ng_block *b, const char *name, ng_dtype t, int64_t rows, void *data);

/* ---- window_topk.c -------------------------------------------------------------------------*/

/* A selection over all ranks.  `of`: the elements of this rank, and the known leading digits of the k-th largest key. */
enum { NG_WINDOW_JOINT_ROUNDS = 4 };
typedef struct ng_window_joint {
  ng_largest of;
  int32_t this_rank;
  int64_t
      order_in_prefix; /* Of the keys that begin with these digits, the k-th largest key is number `order_in_prefix`,
                        * from the largest. */
  /* number of elements selected on this rank; on all lower ranks together */
  int64_t selected, selected_below;
} ng_window_joint;
/* Return the number of doubles that round `round` sums over ranks. */
int64_t ng_window_joint_count(int32_t round, int32_t ranks);
/* Read from x the sums of the previous round and, except in round NG_WINDOW_JOINT_ROUNDS, write this rank's numbers. */
void ng_window_joint_round(ng_queue *q, ng_window_joint *j, int32_t round, int32_t ranks,
                           double *x);

/* ---- window_moments.c ------------------------------------------------------------------------*/

/* An excluded parameter's elements of the row, x and the direction are 0, and its error feedback, momentum, moments and
 * Q stay unchanged. */
bool ng_window_has_excluded(const ng_block *b); /* some parameter is excluded in this step */
/* Enqueue a pass; fill the fields that all passes share.  The result goes to w->results. */
void ng_window_run_pass(ng_block *b, ng_flat_pass p);
/* to <- the bound gradients, 0 for masked and excluded elements; window_decay_form = gradient: plus window_decay times
 * the weights. */
void ng_window_read_gradients(ng_block *b, float *to);
/* After a wait: NG_SKIPPED if an element that ng_window_read_gradients read is not finite, or too large for error
 * feedback or momentum (STORED_MOST). */
ng_status ng_window_check_gradients(const ng_block *b);
/* Return whether window_decay is used in this form. */
bool ng_window_has_decay(const ng_block *b, ng_decay_form form);
void ng_window_copy_vector(ng_block *b, const float *x, float *to); /* to <- x */
/* to <- old * v + take * x; excluded parameters: to <- v. */
void ng_window_mix_vectors(ng_block *b, float *to, const float *v, float *x, double old,
                           double take);
static inline bool ng_window_is_adaptive(const ng_settings *s) {
  return s->window_function == NG_WINDOW_STEP || s->window_function == NG_WINDOW_ADAM ||
         s->window_function == NG_WINDOW_ADAGRAD;
}
/* u <- by u + factor times the row at head; overwrites row_place and rows. */
void ng_window_add_head(ng_block *b, double by, double factor);
/* Replace the gradient in w->x by the vector that enters. */
void ng_window_compute_adaptive_input(ng_block *b);
void ng_window_compute_adaptive_direction(
    ng_block *b); /* u <- the direction of a first-order method, from the row at head */
void ng_window_commit_adaptive(ng_block *b);    /* the step counts: store the next second moments */
bool ng_window_x_is_average(const ng_block *b); /* window_momentum_form = gradient */
/* u <- r of the average x = r + G' b; overwrites row_place and rows. */
void ng_window_compute_average(ng_block *b, bool fresh);
/* Update the bound of the rounding error of r; size: |r| in this step. */
void ng_window_add_average_error(const ng_block *b, ng_window_part *p, double size);
void ng_window_commit_average(ng_block *b); /* the step counts: store next_row_coefficient */

/* ---- window_gram.c ---------------------------------------------------------------------------*/

/* w->row_place, w->rows <- the places of the rows that entered `oldest` to `newest` steps ago; 0: the row at head. */
void ng_window_list_ages(ng_window *w, int64_t oldest, int64_t newest);
/* w->row_place, w->rows <- the places of the rows in use, oldest first.  fresh: with the row at head, and without the
 * oldest of m + 1 rows. */
void ng_window_list_used(ng_window *w, bool fresh);
void ng_window_set_gram_row(ng_window *w, const double *row);
void ng_window_clear_gram_row(ng_window *w, int64_t place);

ng_ring ng_window_factor_ring(const ng_window *w,
                              const ng_window_part *p); /* p->factor, rows in use */
/* Update p->factor of all parts at the end of a step with a row at head. */
void ng_window_commit_factor(ng_window *w, bool step_counts);

/* ---- window_check.c --------------------------------------------------------------------------*/

ng_status ng_window_check_options(const ng_options *o, char *message, size_t size);

/* ---- window_solve.c --------------------------------------------------------------------------*/

int64_t ng_window_work_bytes(const ng_block *b); /* bytes of ng_window.work */
/* Set c and u_scale of all parts such that u_scale r + G' c is the direction of x.  k NULL: x is the row at head; else
 * x = r + G' next_row_coefficient (NULL: x = r), and k [parts, places] has <row, r>, at the unused place <r, r>.  rest:
 * the caller adds (gradient - row) / damping.  NG_RESCUED: a part raised its damping or uses the plain gradient. */
ng_status ng_window_solve(ng_block *b, const double *k, bool rest);
/* Return a place that this step neither reads nor writes: one of the m + 1 places has no row in use. */
int64_t ng_window_unused_place(const ng_window *w);
/* u <- by u + G' c, with c of each part. */
void ng_window_combine_rows(ng_block *b, double by);

#endif
