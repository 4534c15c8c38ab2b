/* node.h: internals of cli/nn/: nodes, the functions of each kind of node, the network.
 *
 * graph.c adds and runs nodes. A kind of node (convolution, ReLU, ...) is a table of functions (nn_op) in its own
 * file. A new kind needs a file with an nn_op, a constructor in nn.h, and a row in tests/t_nn.c.
 *
 * Memory. The output `out` of a node is valid from its forward to its backward pass. A node works in place, which
 * means that its `out` is the `out` of its input, under three conditions: its kind allows this, no other node reads
 * the input, and the kind of the input does not need its output in backward. `grad` (d loss / d out) is valid from
 * the first backward of a reader of the node to the backward of the node. plan.c lets gradients share memory if they
 * are valid at different times. A node that works in place also shares the gradient of its input. */
#ifndef NN_NODE_H
#define NN_NODE_H

#include "nn.h"

#include <stdio.h>

typedef struct node node;

typedef struct nn_op {
  const char *name;
  /* forward can overwrite the first input with the output, and backward the output gradient with the input gradient */
  bool in_place;
  /* backward reads `out`, or `out` is the input of the network, so no other node may overwrite it */
  bool needs_output;
  /* the node normalises by statistics of the batch, so it needs two values a channel */
  bool batch_statistics;
  void (*forward)(nn *n, node *v, int64_t samples, nn_mode mode);
  /* From v->grad compute the gradient of each input i, unless it is NULL: overwrite it, or add to it if v->adds[i].
   * If `params`, also write the gradients of the parameters. */
  void (*backward)(nn *n, node *v, int64_t samples, bool params);
  /* Return the bytes of n->scratch, shared by all nodes, that a pass of n->batch samples needs; NULL: 0. */
  int64_t (*scratch)(const nn *n, const node *v);
  /* Return the bytes of v->saved, which only this node uses (64-byte aligned, initially zero); NULL: 0. */
  int64_t (*saved)(const nn *n, const node *v);
} nn_op;

struct node {
  const nn_op *op;
  int number;   /* index in n->nodes */
  int input[2]; /* -1: none */
  nn_shape shape;
  int layer;    /* index in n->layers; -1: none */
  int norm;     /* index in n->norms; -1: none */
  int param[2]; /* parameters: weight and bias, or gamma and beta; -1: none */
  int buffer;   /* buffer of the running mean (the next: variance); -1: none */
  int64_t kernel, stride, padding, heads;
  double rate; /* dropout rate */
  /* set by plan.c */
  int readers;         /* number of nodes that have this node as input */
  bool works_in_place; /* the node works in place */
  /* backward adds to the gradient of input i, because another reader of the input has written it before */
  bool adds[2];
  bool needs_grad;   /* this node, or a node it depends on, has parameters */
  float *out, *grad; /* output and its gradient; grad is NULL if no parameter needs it */
  void *saved;       /* values that backward reads, nn_op.saved(n, v) bytes */
};

struct nn {
  ng_pool *pool;
  /* number of threads of the pool; number of BLAS threads that nn_blas_restore_threads sets again */
  int threads, blas_threads;
  uint64_t seed, step;
  int64_t batch, samples; /* largest batch; number of samples of the last forward */
  double norm_decay;      /* decay of running statistics (nn_set_norm_decay) */
  int64_t first;          /* number of this rank's first sample (nn_set_first_sample) */
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
  nn_initializer initializer;
  double deviation;  /* standard deviation of the distribution NN_NORMAL */
  nn_loss_kind loss; /* set by nn_set_loss */
  double label_smoothing;
  bool trained;                           /* the last forward had mode NN_TRAIN */
  bool has_frozen_norms;                  /* use running statistics (nn_freeze_norms) */
  float *loss_grad;                       /* gradient of the last node's output */
  nn_on_gradients_ready *gradients_ready; /* set by nn_watch_gradients, or NULL */
  void *gradients_ready_user;
  void *scratch;
  int64_t scratch_bytes;
  void *memory;    /* allocated by nn_prepare: parameters, outputs, gradients, scratch */
  int64_t bytes;   /* size of the memory */
  char error[256]; /* message of the first mistake of a constructor */
};

/* Used by constructors. After a mistake nn_add_node returns NULL, and the constructor returns -1. */
node *nn_add_node(nn *n, const nn_op *op, int x, int y, nn_shape shape);
int nn_add_buffer(nn *n, const char *name, const char *suffix, int64_t count);
/* Add a layer to node v, with a weight of this shape and a bias if layer->bias; return the node's number. */
int nn_add_layer(nn *n, node *v, const char *name, const nn_layer *layer, int ndim,
                 const int64_t *shape);
/* Add a norm to node v, with gamma and beta; return the node's number. */
int nn_add_norm_layer(nn *n, node *v, const char *name, bool is_layer_norm, double eps);
/* Store the message of the first mistake; return -1. */
__attribute__((format(printf, 2, 3))) int nn_fail(nn *n, const char *format, ...);

/* plan.c: allocate n->memory and set all pointers into it; false: there is no memory. With reuses_gradients = false (the oracle
 * of the tests) no node works in place, and no two gradients share memory. */
bool nn_allocate(nn *n, bool reuses_gradients);
/* init.c: set the initial values of all parameters and buffers, from n->seed. */
void nn_init_parameters(nn *n);

/* Used by kinds of nodes. Return input i of node v. */
static inline node *get_input(nn *n, const node *v, int i) { return &n->nodes[v->input[i]]; }
/* Run task(arg, i) for i in [0, pieces) on the pool. The number of pieces depends only on the size of the work and
 * on n->threads, so a sum over pieces has the same bits in every run. */
void nn_run_pieces(nn *n, int32_t pieces, void (*task)(void *arg, int32_t i), void *arg);
/* nn_count_pieces: return into how many pieces to cut `elements` cheap operations. nn_find_range: set [*from, *to) to
 * the range of piece i of n elements; ranges begin at multiples of `unit`. */
int32_t nn_count_pieces(const nn *n, int64_t elements);
void nn_find_range(int64_t n, int32_t pieces, int32_t i, int64_t unit, int64_t *from, int64_t *to);

/* linear.c: set sums[k] to the sum of column k of x [rows, columns]. */
void nn_sum_columns(const float *x, int64_t rows, int64_t columns, float *sums);

/* gemm.c: C [m, n] = alpha op(A) op(B) + beta C, row-major; ta, tb: op transposes. Without BLAS: nn_gemm_plain. */
void nn_gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
             int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
/* nn_blas_use_one_thread: set OpenBLAS to one thread a call, so that several threads may call OpenBLAS in parallel;
 * false: the BLAS has no such setting, or n has one thread. nn_blas_restore_threads: restore the previous number.
 * Call both on the main thread; do not nest the calls. */
bool nn_blas_use_one_thread(nn *n);
void nn_blas_restore_threads(nn *n);
/* The same product by plain loops, with sums in double: the oracle of the tests. */
void nn_gemm_plain(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                   int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

#endif
