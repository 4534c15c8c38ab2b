/* window.h: the state of a window block, shared by window.c (the block), window_solve.c (functions of the Gram
 * matrix), window_gram.c, window_moments.c, window_flat.c (loops over all parameters) and the stores.
 *
 * A window holds the last m gradients of one *part*: all parameters, a group, or one parameter.  The rows are in a
 * store with m + 1 places.  The place at `head` is free and takes the row of the coming step, so a skipped step changes
 * nothing.  When a step counts, head moves on and the oldest row, which is then at head, is dropped.
 *
 * A store has three products; everything else is a function of the m x m Gram matrix:
 *
 *     enter      a vector of d elements becomes the row at head
 *     products   k = G x, x any vector or the row at head, in double
 *     combine    u = by u + G' c, in double, rounded once
 *
 * Flat order: the elements of one part are contiguous, segment after segment, row after row.  With statistics =
 * sharded each rank has a slice; d and all positions then refer to the slice. */
#ifndef NG_WINDOW_H
#define NG_WINDOW_H

#include "family/family.h"

/* Elements of a chunk, the unit of loops over all parameters, and of a line of doubles. */
enum { NG_WINDOW_CHUNK = 8192, NG_WINDOW_LINE = 2048 };

/* Elements of a block of sparse rows: an index in it has 16 bits. */
enum { NG_WINDOW_BLOCK = 32768 };

/* Part of a segment: elements [from, from + n) of its slot, at `at` in flat order. */
typedef struct ng_window_chunk {
  int32_t segment, part;
  int64_t from, n, at;
} ng_window_chunk;

/* The slice of a segment on this rank: n elements from element `from` of its parameter, at `at` in flat order.  flat: where
 * the segment begins in the flat order of all ranks. */
typedef struct ng_window_view {
  int32_t part;
  int64_t flat, from, at, n;
} ng_window_view;

typedef struct ng_window_part {
  int64_t at, n;  /* its elements in flat order                        */
  double *gram;   /* [places, places]                                  */
  double *c;      /* [places] coefficients of the rows in the direction */
  double by;      /* ... and of x                           */
  double *factor; /* [places, places] the Cholesky factor; NULL: none is kept */
  double *row_coefficient,
      *next_row_coefficient; /* [places] coefficient of each row in the average x */
} ng_window_part;

/* x NULL: the row at head. */
typedef struct ng_window_product {
  ng_block *b;
  const float *x;
} ng_window_product;

struct ng_window;
typedef struct ng_window_store {
  const char *name;
  int64_t most; /* elements of all ranks; 0: any number */
  /* The slice border nearest to `at`, in the flat order of all ranks; monotonic.  NULL: any position. */
  int64_t (*cut_at)(const ng_block *b, int64_t at);
  /* Sizes and memory; called twice, as ng_family.plan. */
  ng_status (*plan)(ng_block *b, ng_plan *plan);
  float *(*target)(ng_block *b); /* [d] where the caller writes the vector that enters */
  void (*enter)(ng_block *b);    /* the vector in target becomes the row at head */
  /* The same by rounds of sums over ranks, if b->rounds > 0: see ng_family.select_topk. */
  void (*select_topk)(ng_block *b, int32_t round, double *x);
  /* w->pieces tasks (arg: ng_window_product) write <row, x> of the rows in use to w->partial, for each unit. */
  void (*product)(void *arg, int32_t piece);
  int32_t (*part_of)(const struct ng_window *w, int32_t unit);
  /* u <- by u + sum over places of c row, by and c of each part. */
  void (*combine)(ng_block *b);
  void (*drop)(ng_block *b, int64_t place); /* the row becomes zeros */
  float *(*residual)(
      ng_block *b); /* [d] the residual after the row at head; NULL: this store has none */
  void (*commit)(ng_block *b); /* the step counts; NULL: nothing to do */
  void (*begin)(ng_block *b);  /* ng_ready: initial values; NULL: zeros        */
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
  double scale;         /* factor of the gradient that enters; error feedback enters unscaled */
  double head, count;   /* the free place; rows in the window */
  double factored,
      next_factored;  /* the damping in part->factor, 0: there is none; after this step */
  bool replaced;      /* this step factorised S again */
  double lr, next_lr; /* of the newest row; of this step */
  double updates;     /* of Adam */
  float *s, *next_s;  /* [d] second moments; their next values */
  bool drops_rows;    /* this step drops all rows but its own (window_empty) */
  int64_t overflowed; /* elements of this step that kept their old value */
  float *x;           /* [d] the vector that entered                       */
  float *u;           /* [d] the direction; a slice of b->whole, if there are slices */
  float *v, *next_v;  /* [d] momentum, or the part r of an average; after this step */
  uint8_t *mask;      /* [d] 1: takes part; NULL: all do                   */
  double *sums;       /* [chunks, 4] of the flat loops                     */
  double *partial;    /* [units, places] products of a store's units       */
  double *row;        /* [parts, places] products that are not in the statistic */
  int64_t *used;      /* [places] the places of the rows in use, oldest first; how many */
  int64_t uses;
  int32_t units, pieces; /* of a store's products; tasks that compute them */
  void *own;             /* the store's                                       */
} ng_window;

static inline ng_window *ng_window_of(const ng_block *b) { return b->state; }
/* Numbers from a state file may be out of range. */
static inline int64_t ng_window_number(double x, int64_t most) {
  return x >= 0.0 && x <= (double)most ? (int64_t)x : 0;
}
static inline int64_t ng_window_head(const ng_window *w) {
  return ng_window_number(w->head, w->places - 1);
}
static inline int64_t ng_window_count(const ng_window *w) {
  return ng_window_number(w->count, w->m);
}

/* A dense store has no residual that a later lr would send, so lr does not enter. */
static inline bool ng_window_feeds_lr(const ng_block *b) {
  return b->base.window_feedback_lr && ng_window_of(b)->store->residual != NULL;
}

/* ---- window_cut.c ----------------------------------------------------------------------------*/

ng_status ng_window_cut(ng_block *b); /* w->store is set */
/* Chunk i of w->chunks; computed, since a list would grow with the model. */
ng_window_chunk ng_window_chunk_at(const ng_window *w, int32_t i);
/* A store's cut_at: the nearest border of two parameters. */
int64_t ng_window_cut_at_segment(const ng_block *b, int64_t at);
/* A field with one number per element and row. */
ng_field ng_window_field(const ng_block *b, const char *name, ng_dtype t, int64_t rows, void *data);

/* ---- window_flat.c ---------------------------------------------------------------------------*/

/* A parameter without a gradient in this step: its elements are zeros in the row and in x, and have no direction. Its
 * error feedback, momentum, moments and Q stay. */
static inline bool ng_window_is_out(const ng_block *b, const ng_window_chunk *c) {
  return b->segment[c->segment].slot->out;
}
bool ng_window_some_out(const ng_block *b);
void ng_window_clear_excluded(ng_block *b, float *to); /* zeros for such parameters */
void ng_window_each(ng_block *b, void (*task)(ng_block *b, int32_t chunk));
/* to <- gradients, with zeros where masked or excluded.  NG_SKIPPED: an element is not finite, or so large that error
 * feedback or momentum should not keep it. */
ng_status ng_window_gather(ng_block *b, float *to);
/* to <- to + decay weights.  False: an element is not finite. */
bool ng_window_decay(ng_block *b, double decay, float *to);
/* The sum of w->sums [chunks], of whole numbers. */
int64_t ng_window_total(const ng_window *w);
/* mask <- 1 where the weight is not 0; the number of unmasked, included elements in [at, at + n). */
void ng_window_make_mask(ng_block *b);
int64_t ng_window_taking(const ng_block *b, int64_t at, int64_t n);
/* How many of n elements top-k keeps.  window_density above 1 is that number; a fraction rounds down, per block up. */
int64_t ng_window_entries(const ng_block *b, int64_t n);
/* Where u is 0: u <- the gradient, or `error`, which becomes 0. */
void ng_window_replace(ng_block *b, float *error);
/* Sums over all chunks of g u, g g, u u, g as bound. */
void ng_window_measure(ng_block *b, double out[3]);
/* ---- window_rows.c ---------------------------------------------------------------------------*/

/* <x, y> in double; acc [n] += c x.  The order of additions does not depend on the caller. */
double ng_window_dot(const float *x, const float *y, int64_t n);
void ng_window_add(double *acc, const float *x, int64_t n, double c);
/* The same for four rows in f32 or bf16, and for 4 or 8.  `next`: addresses to prefetch, the rows of the next call. */
void ng_window_dots(const void *const row[4], const void *const next[4], ng_dtype type,
                    const float *y, int64_t n, double out[4]);
void ng_window_sums(double *acc, const void *const *row, const void *const *next, ng_dtype type,
                    int rows, int64_t n, const double *c);
/* Entries of a sparse row in one block: <row, tile>, tile += row, tile += c row.  Indices from a state file are taken
 * modulo the block size. */
double ng_window_sparse_dot(const float *tile, const uint16_t *index, const void *value,
                            ng_dtype type, int64_t n);
void ng_window_sparse_put(float *tile, const uint16_t *index, const void *value, ng_dtype type,
                          int64_t n);
void ng_window_sparse_add(double *tile, const uint16_t *index, const void *value, ng_dtype type,
                          int64_t n, double c);

/* ---- window_largest.c ------------------------------------------------------------------------*/

enum { NG_WINDOW_BINS = 2048, NG_WINDOW_COUNTS = 4 * NG_WINDOW_BINS };
/* x <- error + by x; x if error is NULL. */
typedef struct ng_window_sum {
  float *x;
  const float *error;
  float by;
} ng_window_sum;
/* chosen <- the indices of the k largest |x| of n, ascending; of equal ones the first.  chosen: room for n;
 * count [pieces, NG_WINDOW_COUNTS]: scratch. */
void ng_window_largest(ng_context *ctx, const ng_window_sum *v, int64_t n, int64_t k,
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
  int64_t n, k;   /* k are selected over all ranks */
  int32_t rank;
  uint32_t top;      /* the leading digits of the k-th largest key */
  int64_t rest;      /* its order among the keys with these digits */
  int32_t *chosen;   /* [n] -> [m] places in x, ascending                               */
  int64_t m, before; /* chosen on this rank; on the ranks before */
} ng_window_joint;
/* Size of the sums of a round.  Round r reads the sums of the round before from x and writes its own; round
 * NG_WINDOW_JOINT_ROUNDS only reads. */
int64_t ng_window_joint_room(int32_t round, int32_t ranks);
void ng_window_joint_round(ng_window_joint *j, int32_t round, int32_t ranks, double *x);

/* ---- window_moments.c ------------------------------------------------------------------------*/

/* to <- old v + take x; v for excluded parameters. */
void ng_window_mix(ng_block *b, float *to, const float *v, const float *x, double old, double take);
static inline bool ng_window_is_first(const ng_settings *s) {
  return s->window_function == NG_WINDOW_STEP || s->window_function == NG_WINDOW_ADAM ||
         s->window_function == NG_WINDOW_ADAGRAD;
}
/* u <- the row at head over `by`; uses that row alone */
void ng_window_sent(ng_block *b, double by);
void ng_window_first_enter(ng_block *b);      /* x <- the vector that enters instead */
void ng_window_first_direct(ng_block *b);     /* u <- the direction of the sent row */
void ng_window_first_taken(ng_block *b);      /* the step counts                     */
bool ng_window_x_averaged(const ng_block *b); /* is x a running average (window_momentum)? */
/* u <- r of x = r + G' b; changes the rows in use. */
ng_status ng_window_average(ng_block *b, bool fresh);
/* |r| of this step is known. */
void ng_window_average_rounds(const ng_block *b, ng_window_part *p, double size);
void ng_window_average_taken(ng_block *b);
/* window.c: to <- gradients, and window_decay in its form gradient. */
ng_status ng_window_take(ng_block *b, float *to);

/* ---- window_gram.c ---------------------------------------------------------------------------*/

/* w->used <- the rows in use; fresh: with the row at head. */
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
 * r + G' next_row_coefficient: k [parts, places] are the products of r, and its square at the unused place.  `rest`: the caller
 * adds (gradient - row) / damping.  NG_RESCUED: at least one part needed more damping. */
ng_status ng_window_solve(ng_block *b, const double *k, bool rest);
/* The one place of m + 1 that the step neither reads nor writes. */
int64_t ng_window_unused(const ng_window *w);
/* u <- by u + G' c, with one `by` for all parts. */
void ng_window_combine(ng_block *b, double by);

#endif
