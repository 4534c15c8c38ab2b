/* window.h: the state of a window's block, shared by window.c (the block), window_solve.c (functions of
 * the Gram matrix), window_flat.c (arrays over all parameters, loops) and the stores, window_*.c.
 *
 * A window holds the last m gradients of the parameters of one *part* (all of them, a group, one parameter),
 * as rows of a store with m + 1 places: the place at `head` is free and takes the row of the coming step,
 * so that a step that does not count has changed nothing.  When it counts, head moves on, and the row that
 * it then points at, the oldest of m + 1, is dropped.
 *
 * A store gives three products; everything else is a function of the m x m Gram matrix:
 *
 *     enter      a vector of d numbers becomes the row at head
 *     products   k = G x, of every row with x or with the row at head, in double
 *     combine    u = by u + G' c, in double, rounded once
 *
 * Flat order: the elements of one part lie together, segment after segment, row after row.  A rank may have
 * a slice of it only (statistics = sharded); then d, and every place below, are of its slice. */
#ifndef NG_WINDOW_H
#define NG_WINDOW_H

#include "family/family.h"

/* Elements of a chunk, in which loops over all parameters are cut, and of a line of doubles. */
enum { NG_WINDOW_CHUNK = 8192, NG_WINDOW_LINE = 2048 };

/* Elements of a block of sparse rows, in which a place is a 16-bit number. */
enum { NG_WINDOW_BLOCK = 32768 };

/* Part of a segment: elements [from, from + n) of its slot, at `at` in flat order. */
typedef struct ng_window_chunk {
  int32_t segment, part;
  int64_t from, n, at;
} ng_window_chunk;

/* What of a segment is here, from element `from` of its slot on; flat: where all of it begins among the elements
 * of all ranks. */
typedef struct ng_window_view {
  int32_t part;
  int64_t flat, from, at, n;
} ng_window_view;

typedef struct ng_window_part {
  int64_t at, n;              /* its elements in flat order                        */
  double *gram;               /* [places, places]                                  */
  double *c;                  /* [places] coefficients of the rows in the direction */
  double by;                  /* ... and of x                           */
  double *factor;             /* [places, places] the Cholesky factor; NULL: none is kept */
  double *along, *next_along; /* [places] of each row in the average x; after this step */
} ng_window_part;

typedef struct ng_window_store {
  const char *name;
  int64_t most; /* elements of all ranks; 0: any number */
  /* Where near `at`, of all elements, a slice may begin; rises with it.  NULL: anywhere. */
  int64_t (*cut_at)(const ng_block *b, int64_t at);
  /* Geometry that the options decide, and its memory; called twice, as a family's plan. */
  ng_status (*plan)(ng_block *b, ng_plan *plan);
  float *(*target)(ng_block *b); /* where the vector that enters is put; [d] */
  void (*enter)(ng_block *b);    /* what is there becomes the row at head    */
  /* The same where ranks choose together, b->rounds > 0: see ng_family.choose. */
  void (*choose)(ng_block *b, int32_t round, double *x);
  /* k [parts, places]: <row, x> of the rows in use and of head; x NULL: with the row at head. */
  void (*products)(ng_block *b, const float *x, double *k);
  /* u <- by u + sum over places of c row, by and c of each part. */
  void (*combine)(ng_block *b);
  void (*drop)(ng_block *b, int64_t place); /* the row there becomes zeros    */
  float *(*left)(
      ng_block *b); /* [d] what stays of what entered, if the step counts; NULL: nothing, and
                       window_check.c refuses window_fill = error */
  void (*taken)(ng_block *b); /* the step with the row at head counted; NULL: nothing moves */
  void (*begin)(ng_block *b); /* ng_ready: initial values; NULL: zeros        */
  void (*release)(ng_block *b);
  ng_status (*fields)(ng_block *b, ng_field_visit visit, void *arg);
} ng_window_store;
extern const ng_window_store ng_window_dense, ng_window_topk_store, ng_window_lowrank_store;

typedef struct ng_window {
  const ng_window_store *store;
  int64_t d, m, places; /* elements; rows; m + 1 */
  int64_t all, from;    /* elements of all ranks; the first of this one    */
  int32_t parts, chunks, segments;
  bool sliced;  /* this rank has a slice */
  int64_t *cut; /* [ranks + 1] of slices */
  ng_window_part *part;
  ng_window_view *view; /* [segments] */
  int32_t *order;       /* [segments] in flat order */
  int64_t *first;       /* [segments] the first chunk of each, in flat order */
  double scale;         /* of what enters, beside what was left before       */
  double head, count;   /* the free place; rows in use                       */
  double factored,
      next_factored;  /* the damping in part->factor, 0: there is none; after this step */
  bool replaced;      /* this step wrote factors anew */
  double lr, next_lr; /* of the step in which the newest row entered; of this one */
  double updates;     /* of Adam */
  float *s, *next_s;  /* [d] second moments; their next values */
  bool emptied;       /* this step drops all rows but its own              */
  int64_t overflowed; /* elements of this step that kept their old value */
  float *x;           /* [d] the vector that entered                       */
  float *u;           /* [d] the direction; a slice of b->whole, if there are slices */
  float *v, *next_v;  /* [d] what momentum keeps, of an average the part r; its next value */
  uint8_t *mask;      /* [d] 1: takes part; NULL: all do                   */
  double *sums;       /* [chunks, 4] of the flat loops                     */
  double *partial;    /* [units, places] of a store's products             */
  double *row;        /* [parts, places] products that are not in the statistic */
  int64_t *used;      /* [places] the places of the solve, and how many    */
  int64_t uses;
  int64_t units; /* pieces of a store's products                      */
  void *own;     /* the store's                                       */
} ng_window;

static inline ng_window *ng_window_of(const ng_block *b) { return b->state; }
/* From a file they may be any number. */
static inline int64_t ng_window_number(double x, int64_t most) {
  return x >= 0.0 && x <= (double)most ? (int64_t)x : 0;
}
static inline int64_t ng_window_head(const ng_window *w) {
  return ng_window_number(w->head, w->places - 1);
}
static inline int64_t ng_window_count(const ng_window *w) {
  return ng_window_number(w->count, w->m);
}

/* A store that leaves nothing of what enters has nothing that a later lr would find: there lr is left out. */
static inline bool ng_window_feeds_lr(const ng_block *b) {
  return b->base.window_feedback_lr && ng_window_of(b)->store->left != NULL;
}

/* ---- window_cut.c ----------------------------------------------------------------------------*/

ng_status ng_window_cut(ng_block *b); /* w->store is set */
void ng_window_uncut(ng_block *b);    /* also after a cut that failed half way */
/* Chunk i of w->chunks: made when it is asked for, since a list of them would grow with the model. */
ng_window_chunk ng_window_chunk_at(const ng_window *w, int32_t i);
/* The nearest border of two parameters, in flat order of all elements: a store's cut_at. */
int64_t ng_window_cut_at_segment(const ng_block *b, int64_t at);
/* Of one number an element and row; and of so many of a slice, cut where `cut` says. */
ng_field ng_window_field(const ng_block *b, const char *name, ng_dtype t, int64_t rows, void *data);

/* ---- window_flat.c ---------------------------------------------------------------------------*/

/* Parameters that have no part in this step: their numbers count as zeros in the row and in x, they have no
 * direction, and what is kept for them (error feedback, momentum, moments, the last Q) stays as it is. */
static inline bool ng_window_is_out(const ng_block *b, const ng_window_chunk *c) {
  return b->segment[c->segment].slot->out;
}
bool ng_window_some_out(const ng_block *b);
void ng_window_clear_out(ng_block *b, float *to); /* 0 there */
/* One task a chunk. */
void ng_window_each(ng_block *b, void (*task)(ng_block *b, int32_t chunk));
/* to <- gradients, and 0 where the mask is, or a parameter is out; to <- to + decay weights.  False: one is not finite. */
bool ng_window_gather(ng_block *b, float *to);
bool ng_window_decay(ng_block *b, double decay, float *to);
/* NG_SKIPPED: an element of x is so large that error feedback or momentum should not keep it. */
ng_status ng_window_bounded(ng_block *b, float *x);
/* The sum of w->sums [chunks], of whole numbers. */
int64_t ng_window_total(const ng_window *w);
/* mask <- 1 where the weight is not 0; how many of elements [at, at + n) take part. */
void ng_window_mark(ng_block *b);
int64_t ng_window_taking(const ng_block *b, int64_t at, int64_t n);
/* How many top-k keeps of n.  Published: above 1 window_density is their number; cut, but rounded up of a block. */
int64_t ng_window_entries(const ng_block *b, int64_t n);
/* u <- the gradient, or with `error` that, where u is 0; what was taken from `error` is 0 there. */
void ng_window_replace(ng_block *b, float *error);
/* Sums over all chunks of g u, g g, u u, g as bound. */
void ng_window_measure(ng_block *b, double out[3]);
/* ---- window_rows.c ---------------------------------------------------------------------------*/

/* <x, y> of n floats in double; acc [n] += c x; the order of additions does not depend on who asks. */
double ng_window_dot(const float *x, const float *y, int64_t n);
void ng_window_add(double *acc, const float *x, int64_t n, double c);
/* The same of four rows in f32 or bf16 at once, and of 4 or 8; `next`: the rows that come after them, asked for
 * before these end (not read: they may be any). */
void ng_window_dots(const void *const row[4], const void *const next[4], ng_dtype type,
                    const float *y, int64_t n, double out[4]);
void ng_window_sums(double *acc, const void *const *row, const void *const *next, ng_dtype type,
                    int rows, int64_t n, const double *c);
/* Entries of a sparse row in one block, values in f32 or bf16: <row, tile>, tile += row, and
 * tile += c row.  An index beyond the block, of a file, is taken modulo its size. */
double ng_window_sparse_dot(const float *tile, const uint16_t *index, const void *value,
                            ng_dtype type, int64_t n);
void ng_window_sparse_put(float *tile, const uint16_t *index, const void *value, ng_dtype type,
                          int64_t n);
void ng_window_sparse_add(double *tile, const uint16_t *index, const void *value, ng_dtype type,
                          int64_t n, double c);

/* ---- window_largest.c ------------------------------------------------------------------------*/

enum { NG_WINDOW_BINS = 2048, NG_WINDOW_COUNTS = 4 * NG_WINDOW_BINS };
/* x <- error + by x, or as it is (error NULL). */
typedef struct ng_window_sum {
  float *x;
  const float *error;
  float by;
} ng_window_sum;
/* The k largest |x| of n of that sum, as ascending numbers in `chosen`, which has room for n; of equal ones the first.
 * count [NG_WINDOW_COUNTS]: scratch. */
void ng_window_largest(const ng_window_sum *v, int64_t n, int64_t k, int32_t *count,
                       int32_t *chosen);
/* The same, in pieces by several threads; count [pieces, NG_WINDOW_COUNTS]. */
void ng_window_largest_wide(ng_context *ctx, const ng_window_sum *v, int64_t n, int64_t k,
                            int32_t pieces, int32_t *count, int32_t *chosen);

static inline uint32_t ng_window_key(float x) { /* ordered as |x|, 31 bits */
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits & 0x7fffffffU;
}
void ng_window_add_error(const ng_window_sum *v, int64_t n); /* the sum alone */

enum { NG_WINDOW_JOINT_ROUNDS = 4 };
typedef struct ng_window_joint {
  const float *x; /* [n] this rank's elements */
  int64_t n, k;   /* k of those of all ranks  */
  int32_t rank;
  uint32_t top;      /* what is known of the key of the k-th largest                    */
  int64_t rest;      /* which it is of those that begin so                              */
  int32_t *chosen;   /* [n] -> [m] places in x, ascending                               */
  int64_t m, before; /* chosen here, and by the ranks before this one                   */
} ng_window_joint;
/* Numbers of a round, which are summed over ranks; round r takes the sums of the one before in x and puts its own,
 * round NG_WINDOW_JOINT_ROUNDS only takes. */
int64_t ng_window_joint_room(int32_t round, int32_t ranks);
void ng_window_joint_round(ng_window_joint *j, int32_t round, int32_t ranks, double *x);

/* ---- window_moments.c ------------------------------------------------------------------------*/

/* to <- old v + take x; v where a parameter is out. */
void ng_window_mix(ng_block *b, float *to, const float *v, const float *x, double old, double take);
static inline bool ng_window_is_first(const ng_settings *s) {
  return s->window_function == NG_WINDOW_STEP || s->window_function == NG_WINDOW_ADAM ||
         s->window_function == NG_WINDOW_ADAGRAD;
}
void ng_window_sent(ng_block *b,
                    double by);           /* u <- the row at head over `by`; uses that row alone */
void ng_window_first_enter(ng_block *b);  /* x <- the vector that enters instead */
void ng_window_first_direct(ng_block *b); /* u <- the direction of what was sent */
void ng_window_first_taken(ng_block *b);  /* the step counts                     */
bool ng_window_averages(const ng_block *b);
/* u <- what of x is not along the rows in use; changes which those are. */
ng_status ng_window_average(ng_block *b, bool fresh);
/* |r| of this step is known. */
void ng_window_average_rounds(const ng_block *b, ng_window_part *p, double size);
void ng_window_average_taken(ng_block *b);
/* window.c: to <- a gradient that is not to enter, if that may be. */
ng_status ng_window_take(ng_block *b, float *to);

/* ---- window_gram.c ---------------------------------------------------------------------------*/

/* w->used: with the row at head, or without. */
void ng_window_use(ng_window *w, bool fresh);
void ng_window_put_row(ng_window *w, const double *row);
void ng_window_clear_row(ng_window *w, int64_t place);

bool ng_window_factor_append(const ng_window *w, ng_window_part *p, double lambda, double M,
                             double *y);
void ng_window_factor_keep(const ng_window *w, ng_window_part *p, const double *S);
void ng_window_factor_solve(const ng_window *w, const ng_window_part *p, bool last, double *z);
void ng_window_factor_commit(ng_window *w, bool taken);

/* ---- window_check.c --------------------------------------------------------------------------*/

ng_status ng_window_check(const ng_options *o, const ng_settings *s, char *message, size_t size);

/* ---- window_solve.c --------------------------------------------------------------------------*/

int64_t ng_window_scratch(const ng_block *b); /* bytes */
/* The coefficients c and by of all parts, such that by r + G' c is the direction of the row at head (k NULL), or of
 * r + G' next_along: k [parts, places] are the products of r, and its square at the unused place.  `rest`: the caller
 * adds (gradient - row) / damping.  NG_RESCUED: at least one part needed more damping. */
ng_status ng_window_solve(ng_block *b, const double *k, bool rest);
/* The one place of m + 1 that the step neither reads nor writes. */
int64_t ng_window_unused(const ng_window *w);
/* u <- by u + G' c, with one `by` for all parts. */
void ng_window_combine(ng_block *b, double by);

#endif
