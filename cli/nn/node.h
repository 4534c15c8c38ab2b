/* node.h: internals of cli/nn/: a node, the table of its kind, the network.
 *
 * graph.c makes and runs nodes; each kind is a table of functions (nn_op) in its own file.  A new kind needs a file
 * with an nn_op, a constructor in nn.h, and a row in tests/t_nn.c.
 *
 * Memory plan.  The output `out` of a node is valid from forward to backward.  A node works in place (its `out` is
 * the `out` of its input) if its kind allows this, its input has one reader, and the kind of the input does not need
 * its output in backward.  `grad` (d loss / d out) is valid from the first backward of a reader to the backward of
 * the node; plan.c lets gradients of disjoint lifetimes share memory.  A node that works in place shares the
 * gradient, too. */
#ifndef NN_NODE_H
#define NN_NODE_H

#include "nn.h"

#include <stdio.h>

typedef struct node node;

typedef struct nn_op {
  const char *name;
  bool in_place;         /* forward can overwrite the first input, backward the output gradient */
  bool needs_output;     /* backward reads the node's `out`, so no reader may work in place */
  bool batch_statistics; /* normalizes by the batch: training needs two values a channel         */
  void (*forward)(nn *n, node *v, int64_t samples, nn_mode mode);
  /* Compute the gradient of each input i from v->grad: write it, or add it if v->adds[i]; skip it if it is NULL.  If
   * `params`, also write the gradients of the parameters. */
  void (*backward)(nn *n, node *v, int64_t samples, bool params);
  /* Return the bytes of n->scratch that a call needs, for n->batch samples; NULL: 0.  All nodes use the same
   * scratch. */
  int64_t (*scratch)(const nn *n, const node *v);
  /* Return the bytes of v->saved, memory of this node only (64-byte aligned, initially zero); NULL: 0. */
  int64_t (*saved)(const nn *n, const node *v);
} nn_op;

struct node {
  const nn_op *op;
  int number;
  int input[2]; /* -1: none */
  nn_shape shape;
  int layer;    /* index in n->layers; -1: none */
  int norm;     /* index in n->norms; -1: none */
  int param[2]; /* indices of weight and bias, or gamma and beta; -1: none */
  int buffer;   /* index of the running mean; -1: none */
  int64_t kernel, stride, padding;
  double rate; /* of dropout */
  /* set by plan.c */
  int readers;         /* nodes that have this node as input */
  bool works_in_place; /* the node works in place */
  bool adds[2];        /* backward adds to the gradient of input i: another reader has written it */
  bool wants_grad;     /* this node, or a node before it on a path to it, has parameters */
  float *out, *grad;   /* grad NULL: not needed */
  void *saved;
};

struct nn {
  ng_pool *pool;
  int threads, blas_threads;
  uint64_t seed, step;
  int64_t batch, samples; /* largest batch; samples of the last forward */
  double norm_keep;       /* nn_set_norm_keep */
  int64_t first;          /* nn_set_first_sample */
  node *nodes;
  int n_nodes;
  nn_param *params;
  int n_params;
  nn_buffer *buffers;
  int n_buffers;
  nn_layer *layers;
  int n_layers;
  nn_norm_layer *norms;
  int n_norms;
  nn_initializer start;
  nn_loss_kind loss;
  double label_smoothing;
  bool trained;                        /* the last forward had mode NN_TRAIN */
  bool fixed_norms;                    /* nn_fix_norms */
  float *loss_grad;                    /* = grad of the last node */
  nn_gradients_ready *gradients_ready; /* nn_watch_gradients, or NULL */
  void *ready_user;
  void *scratch;
  int64_t scratch_bytes;
  void *memory; /* all memory of nn_ready */
  int64_t bytes;
  char error[256];
};

/* For constructors.  nn_add_node returns NULL after a mistake; the constructor then returns -1. */
node *nn_add_node(nn *n, const nn_op *op, int x, int y, nn_shape shape);
int nn_add_param(nn *n, const char *name, const char *suffix, nn_role role, int layer, int ndim,
                 const int64_t *shape);
int nn_add_buffer(nn *n, const char *name, const char *suffix, int64_t count);
/* Add a layer, its weight of this shape and, if it has one, its bias to node v; return the node's number. */
int nn_add_layer(nn *n, node *v, const char *name, const nn_layer *layer, int ndim,
                 const int64_t *shape);
int nn_add_norm(nn *n, const nn_norm_layer *norm);
/* Store the message of the first mistake; return -1. */
__attribute__((format(printf, 2, 3))) int nn_fail(nn *n, const char *format, ...);

/* plan.c: allocate n->memory and set all pointers into it; return false if there is no memory.  share = false (for the
 * oracle of the tests): no node works in place, and no two gradients share memory. */
bool nn_allocate(nn *n, bool share);
/* init.c: set the initial values of all parameters and buffers, from n->seed. */
void nn_init_parameters(nn *n);

/* For kinds.  Return input i of node v. */
static inline node *input_of(nn *n, const node *v, int i) { return &n->nodes[v->input[i]]; }
/* Run task(arg, i) for i in [0, pieces) on the pool.  The pieces depend only on the size of the work and on
 * n->threads, so sums over pieces are reproducible. */
void nn_parallel(nn *n, int32_t pieces, void (*task)(void *arg, int32_t i), void *arg);
/* Return the number of pieces for `elements` cheap operations.  nn_slice sets [*from, *to) to the range of piece i of
 * `count` elements; ranges begin at multiples of `unit`. */
int32_t nn_count_pieces(const nn *n, int64_t elements);
void nn_slice(int64_t count, int32_t pieces, int32_t i, int64_t unit, int64_t *from, int64_t *to);

/* linear.c: set sums[k] to the sum of column k of x [rows, columns]. */
void nn_sum_columns(const float *x, int64_t rows, int64_t columns, float *sums);

/* gemm.c: C [m, n] = alpha op(A) op(B) + beta C, row-major; ta, tb: op transposes.  Without BLAS: nn_gemm_plain. */
void nn_gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
             int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
/* Set OpenBLAS to one thread a call, so that several threads may call OpenBLAS in parallel; false: not possible.
 * nn_blas_restore_threads restores the number of threads.  Call both on the main thread, and do not nest the calls. */
bool nn_blas_use_one_thread(nn *n);
void nn_blas_restore_threads(nn *n);
/* Compute nn_gemm by plain loops with sums in double; the oracle of the tests. */
void nn_gemm_plain(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                   int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

#endif
