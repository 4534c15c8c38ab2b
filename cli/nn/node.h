/* node.h: internals of cli/nn/: a node, the table of its kind, the network.
 *
 * graph.c makes and runs nodes; each kind is a table of functions in its own file.  To add a kind: a file with an nn_op,
 * a constructor in nn.h, a row in tests/t_nn.c.
 *
 * Memory plan.  `out` of a node lives from forward to backward.  A node works in place (out is its input's) if its kind
 * allows it, its input has one reader, and the input's kind does not need its output in backward.  `grad`
 * (d loss / d out) lives from the backward of the first reader to the node's own; plan.c lets gradients of disjoint
 * lifetimes share memory.  A node that works in place also shares its gradient. */
#ifndef NN_NODE_H
#define NN_NODE_H

#include "nn.h"

#include <stdio.h>

typedef struct node node;

typedef struct nn_op {
  const char *name;
  bool in_place;     /* can write over its first input, and its gradient over its output's        */
  bool needs_output; /* backward reads its own out: no reader may work in place                   */
  bool batch_statistics; /* normalizes by the batch: training needs two values a channel         */
  void (*forward)(nn *n, node *v, int64_t samples, nn_mode mode);
  /* From v->grad to the gradients of its inputs (written, or added if v->adds[i]; skipped if NULL) and, if
   * `params`, of its parameters (written). */
  void (*backward)(nn *n, node *v, int64_t samples, bool params);
  /* Bytes of n->scratch for batches of n->batch; NULL: none.  All nodes share it between calls. */
  int64_t (*scratch)(const nn *n, const node *v);
  /* Bytes of v->kept (zeroed once, 64-byte aligned), private to the node; NULL: none. */
  int64_t (*kept)(const nn *n, const node *v);
} nn_op;

struct node {
  const nn_op *op;
  int number;
  int input[2]; /* -1: none */
  nn_shape shape;
  int layer;    /* -1: none */
  int norm;     /* -1: none */
  int param[2]; /* weight and bias, gamma and beta; -1: none */
  int buffer;   /* the first of its buffers; -1: none        */
  int64_t kernel, stride, padding;
  double rate;
  /* of plan.c */
  int readers;
  bool shares; /* works in place */
  bool adds[2];
  bool wants_grad;   /* some parameter lies at or before it */
  float *out, *grad; /* grad NULL: not needed */
  void *kept;
};

struct nn {
  ng_pool *pool;
  int threads, blas_threads;
  uint64_t seed, step;
  int64_t batch, samples; /* largest batch; samples of the last forward */
  double norm_keep;       /* nn_set_norm_keep */
  int64_t first;          /* nn_set_first */
  node *nodes;
  int n_nodes, room_nodes;
  nn_param *params;
  int n_params, room_params;
  nn_buffer *buffers;
  int n_buffers, room_buffers;
  nn_layer *layers;
  int n_layers, room_layers;
  nn_norm_layer *norms;
  int n_norms, room_norms;
  nn_start start;
  nn_loss_kind loss;
  double label_smoothing;
  bool trained;     /* the last forward was one of training */
  bool fixed_norms; /* nn_fix_norms */
  float *loss_grad; /* = grad of the last node */
  nn_made *made;    /* nn_on_gradients, or NULL */
  void *made_user;
  void *scratch;
  int64_t scratch_bytes;
  void *memory; /* all memory of nn_ready */
  int64_t bytes;
  char error[256];
};

/* For constructors.  nn_node returns NULL after a mistake; the constructor then returns -1. */
node *nn_node(nn *n, const nn_op *op, int x, int y, nn_shape shape);
int nn_param_add(nn *n, const char *name, const char *suffix, nn_role role, int layer, int ndim,
                 const int64_t *shape);
int nn_buffer_add(nn *n, const char *name, const char *suffix, int64_t count);
/* Add a layer, its weight of this shape and, if it has one, its bias to node v; return the node's number. */
int nn_layer_add(nn *n, node *v, const char *name, const nn_layer *layer, int ndim,
                 const int64_t *shape);
int nn_norm_add(nn *n, const nn_norm_layer *norm);
__attribute__((format(printf, 2, 3))) int nn_fail(nn *n, const char *format, ...); /* -1 */

/* init.c: the initial values of all parameters and buffers, from n->seed. */
void nn_init(nn *n);

/* For kinds. */
static inline node *nn_in(nn *n, const node *v, int i) { return &n->nodes[v->input[i]]; }
/* task(arg, i) for i in [0, pieces) on the pool.  Pieces depend on the work and n->threads only, so sums over pieces are
 * reproducible. */
void nn_parallel(nn *n, int32_t pieces, void (*task)(void *arg, int32_t i), void *arg);
/* The number of pieces for `elements` cheap operations; the range [from, to) of piece i, in whole `unit`s. */
int32_t nn_pieces(const nn *n, int64_t elements);
void nn_range(int64_t count, int32_t pieces, int32_t i, int64_t unit, int64_t *from, int64_t *to);

/* linear.c: sums[k] = sum over rows of x [rows, columns]. */
void nn_column_sums(const float *x, int64_t rows, int64_t columns, float *sums);

/* gemm.c: row-major C = alpha op(A) op(B) + beta C, by BLAS, or by plain loops without one. */
void nn_gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
             int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
/* Set BLAS to one thread a call, so that several threads may call it at once; false: not possible.  nn_gemm_together
 * undoes it.  Not nested, main thread only. */
bool nn_gemm_alone(nn *n);
void nn_gemm_together(nn *n);
/* The plain loops, the oracle of the tests: sums in double. */
void nn_gemm_plain(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                   int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

#endif
