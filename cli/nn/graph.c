/* graph.c: build a network node by node, and run it forward and backward. */
#include "common/cli.h"
#include "node.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int nn_fail(nn *n, const char *format, ...) {
  if (n->error[0] != 0) return -1; /* return, so that the message of the first mistake stays */
  va_list args;
  va_start(args, format);
  /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): as in messages.c */
  (void)vsnprintf(n->error, sizeof n->error, format, args);
  va_end(args);
  return -1;
}

void nn_set_first_sample(nn *n, int64_t sample) { n->first = sample; }

void nn_set_norm_decay(nn *n, double keep) { n->norm_decay = keep; }

nn *nn_create(ng_pool *pool, uint64_t seed) {
  nn *n = cli_alloc(1, sizeof *n);
  n->pool = pool;
  n->threads = pool != NULL ? ng_pool_threads(pool) : 1;
  n->seed = seed;
  n->norm_decay = 0.9;
  n->loss = NN_CROSS_ENTROPY;
  return n;
}

void nn_destroy(nn **n) {
  if (n == NULL || *n == NULL) return;
  free((*n)->nodes);
  free((*n)->params);
  free((*n)->buffers);
  free((*n)->layers);
  free((*n)->norms);
  free((*n)->memory);
  free(*n);
  *n = NULL;
}

node *nn_add_node(nn *n, const nn_op *op, int x, int y, nn_shape shape) {
  if (n->error[0] != 0) return NULL;
  if (shape.height < 1 || shape.width < 1 || shape.channels < 1 ||
      shape.height > INT32_MAX / shape.width ||
      shape.channels > INT32_MAX / (shape.height * shape.width)) {
    (void)nn_fail(n, "%s: an output of %lld x %lld x %lld is empty or too large", op->name,
                  (long long)shape.height, (long long)shape.width, (long long)shape.channels);
    return NULL;
  }
  n->nodes = cli_append_zeroed(n->nodes, (size_t)n->n_nodes, sizeof *n->nodes);
  node *v = &n->nodes[n->n_nodes];
  v->op = op;
  v->number = n->n_nodes++;
  v->input[0] = x;
  v->input[1] = y;
  v->shape = shape;
  v->layer = v->norm = v->param[0] = v->param[1] = v->buffer = -1;
  return v;
}

static void write_dotted_name(nn *n, char out[NN_NAME], const char *name, const char *suffix) {
  if (snprintf(out, NN_NAME, "%s%s%s", name, suffix[0] != 0 ? "." : "", suffix) >= NN_NAME)
    (void)nn_fail(n, "%s: the name is longer than %d letters", name, NN_NAME - 1);
}

static int add_param(nn *n, const char *name, const char *suffix, nn_role role, int layer, int ndim,
                     const int64_t *shape) {
  n->params = cli_append_zeroed(n->params, (size_t)n->n_params, sizeof *n->params);
  nn_param *p = &n->params[n->n_params];
  write_dotted_name(n, p->name, name, suffix);
  p->role = role;
  p->initializer = n->initializer;
  p->deviation = n->deviation;
  p->layer = layer;
  p->ndim = ndim;
  p->count = 1;
  for (int i = 0; i < ndim; i++) {
    p->shape[i] = shape[i];
    p->count *= shape[i];
  }
  return n->n_params++;
}

int nn_add_buffer(nn *n, const char *name, const char *suffix, int64_t count) {
  n->buffers = cli_append_zeroed(n->buffers, (size_t)n->n_buffers, sizeof *n->buffers);
  nn_buffer *b = &n->buffers[n->n_buffers];
  write_dotted_name(n, b->name, name, suffix);
  b->count = count;
  return n->n_buffers++;
}

int nn_add_layer(nn *n, node *v, const char *name, const nn_layer *layer, int ndim,
                 const int64_t *shape) {
  n->layers = cli_append_zeroed(n->layers, (size_t)n->n_layers, sizeof *n->layers);
  nn_layer *l = &n->layers[n->n_layers];
  v->layer = n->n_layers++;
  *l = *layer;
  (void)snprintf(l->name, sizeof l->name, "%s", name);
  l->weight_param = add_param(n, name, "weight", NN_WEIGHT, v->layer, ndim, shape);
  l->bias_param = l->has_bias ? add_param(n, name, "bias", NN_BIAS, v->layer, 1, shape) : -1;
  v->param[0] = l->weight_param;
  v->param[1] = l->bias_param;
  return v->number;
}

int nn_add_norm_layer(nn *n, node *v, const char *name, bool is_layer_norm, double eps) {
  const nn_shape s = v->shape;
  v->param[0] = add_param(n, name, "weight", NN_GAMMA, -1, 1, &s.channels);
  v->param[1] = add_param(n, name, "bias", NN_BETA, -1, 1, &s.channels);
  n->norms = cli_append_zeroed(n->norms, (size_t)n->n_norms, sizeof *n->norms);
  nn_norm_layer *l = &n->norms[n->n_norms];
  *l = (nn_norm_layer){.is_layer_norm = is_layer_norm,
                       .channels = s.channels,
                       .height = s.height,
                       .width = s.width,
                       .eps = eps,
                       .gamma_param = v->param[0],
                       .beta_param = v->param[1]};
  (void)snprintf(l->name, sizeof l->name, "%s", name);
  v->norm = n->n_norms++;
  return v->number;
}

static const nn_op input_op = {.name = "input", .needs_output = true};

int nn_add_input(nn *n, nn_shape shape) {
  if (n->n_nodes > 0) return nn_fail(n, "the input must be the first node");
  const node *v = nn_add_node(n, &input_op, -1, -1, shape);
  return v != NULL ? v->number : -1;
}

nn_shape nn_get_shape(const nn *n, int x) {
  const nn_shape none = {0, 0, 0};
  return x < 0 || x >= n->n_nodes ? none : n->nodes[x].shape;
}

int nn_count_params(const nn *n) { return n->n_params; }
const nn_param *nn_get_param(const nn *n, int i) { return &n->params[i]; }
int nn_count_buffers(const nn *n) { return n->n_buffers; }
const nn_buffer *nn_get_buffer(const nn *n, int i) { return &n->buffers[i]; }
int nn_count_layers(const nn *n) { return n->n_layers; }
const nn_layer *nn_get_layer(const nn *n, int i) { return &n->layers[i]; }
int nn_count_norms(const nn *n) { return n->n_norms; }
const nn_norm_layer *nn_get_norm(const nn *n, int i) { return &n->norms[i]; }
int64_t nn_count_bytes(const nn *n) { return n->bytes; }
int64_t nn_count_outputs(const nn *n) { return nn_count_values(n->nodes[n->n_nodes - 1].shape); }
const float *nn_get_output(const nn *n) { return n->nodes[n->n_nodes - 1].out; }

int64_t nn_count_weights(const nn *n) {
  int64_t sum = 0;
  for (int i = 0; i < n->n_params; i++)
    sum += n->params[i].count;
  return sum;
}

const char *nn_get_error(const nn *n) { return n->error[0] != 0 ? n->error : NULL; }

int64_t nn_find_smallest_batch(const nn *n) {
  int64_t least = 0;
  for (int i = 0; i < n->n_nodes; i++) {
    const node *v = &n->nodes[i];
    if (!v->op->batch_statistics) continue;
    if (v->shape.height * v->shape.width == 1) least = 2;
    if (least == 0) least = 1;
  }
  return least;
}

int nn_prepare(nn *n, int64_t batch) {
  if (n->error[0] == 0 && n->n_nodes < 2) (void)nn_fail(n, "no nodes were added");
  for (int i = 0; i + 1 < n->n_nodes; i++) {
    bool read = false;
    for (int k = i + 1; k < n->n_nodes; k++)
      read = read || n->nodes[k].input[0] == i || n->nodes[k].input[1] == i;
    if (!read)
      (void)nn_fail(n, "no node reads the output of node %d (%s)", i, n->nodes[i].op->name);
  }
  if (n->error[0] != 0) return cli_fail("network: %s", n->error);
  n->batch = batch;
  if (!nn_allocate(n, true))
    return cli_fail("network: no memory for %lld bytes (batch %lld)", (long long)n->bytes,
                    (long long)batch);
  nn_init_parameters(n);
  return CLI_OK;
}

/* ---- on the pool -----------------------------------------------------------------------------*/

void nn_run_pieces(nn *n, int32_t pieces, void (*task)(void *arg, int32_t i), void *arg) {
  if (n->pool != NULL && pieces > 1) {
    ng_pool_run(n->pool, pieces, task, arg);
  } else {
    for (int32_t i = 0; i < pieces; i++)
      task(arg, i);
  }
}

/* A loop with fewer cheap operations than this runs on one thread, because waking a thread would take longer. */
enum { WORTH = 16384 };

int32_t nn_count_pieces(const nn *n, int64_t elements) {
  const int64_t most = elements / WORTH;
  return most < 1 ? 1 : most < n->threads ? (int32_t)most : n->threads;
}

void nn_find_range(int64_t n, int32_t pieces, int32_t i, int64_t unit, int64_t *from, int64_t *to) {
  const int64_t units = (n + unit - 1) / unit;
  *from = units * i / pieces * unit;
  *to = units * (i + 1) / pieces * unit;
  if (*from > n) *from = n;
  if (*to > n) *to = n;
}

/* ---- walking ---------------------------------------------------------------------------------*/

/* If node v is a layer or a norm, call the watch (NULL: none) with an input or output gradient of v. */
static int call_watch(const nn *n, const node *v, const nn_watch *watch, const float *x,
                      nn_shape shape, bool grad) {
  const int layer = v->layer >= 0 ? v->layer : n->n_layers + v->norm;
  if (watch == NULL || (v->layer < 0 && v->norm < 0)) return 0;
  return watch->observe(watch->user, layer, x, n->samples, nn_count_values(shape), grad);
}

void nn_watch_gradients(nn *n, nn_on_gradients_ready *ready, void *user) {
  n->gradients_ready = ready;
  n->gradients_ready_user = user;
}

void nn_freeze_norms(nn *n, bool fixed) { n->has_frozen_norms = fixed; }

int nn_forward(nn *n, nn_mode mode, const float *x, int64_t samples, uint64_t step,
               const nn_watch *watch) {
  n->samples = samples;
  n->step = step;
  n->trained = mode == NN_TRAIN;
  n->nodes[0].out = (float *)(uintptr_t)x; /* the cast drops const; no node writes to the input */
  for (int i = 1; i < n->n_nodes; i++) {
    node *v = &n->nodes[i];
    const node *in = get_input(n, v, 0);
    const int rc = call_watch(n, v, watch, in->out, in->shape, false);
    if (rc != 0) return rc;
    if (samples > 0) v->op->forward(n, v, samples, mode);
  }
  return 0;
}

static void zero_gradients(nn *n, const node *v) {
  for (int k = 0; k < 2; k++) {
    const nn_param *p = v->param[k] >= 0 ? &n->params[v->param[k]] : NULL;
    if (p != NULL) memset(p->grad, 0, (size_t)p->count * sizeof *p->grad);
  }
}

int nn_backward(nn *n, bool params, const nn_watch *watch) {
  for (int i = n->n_nodes - 1; i > 0; i--) {
    node *v = &n->nodes[i];
    if (v->grad == NULL) continue;
    int rc = call_watch(n, v, watch, v->grad, v->shape, true);
    if (rc != 0) return rc;
    if (n->samples > 0) v->op->backward(n, v, n->samples, params);
    if (n->samples == 0 && params) zero_gradients(n, v);
    if (!params || n->gradients_ready == NULL || v->param[0] < 0) continue;
    /* all parameters from this index on are complete, because they are in the order of their nodes */
    rc = n->gradients_ready(n->gradients_ready_user, v->param[0]);
    if (rc != 0) return rc;
  }
  return 0;
}
