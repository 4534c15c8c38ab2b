/* plan.c: allocate the memory of a network as one block.
 *
 * Parameters, their gradients, `saved` and outputs have separate memory, except that a node that works in place
 * shares the output of its input. The gradient of a node's output is in use from the backward of the last reader of
 * the node to the backward of the node. In the order of the backward pass, each such gradient gets the free gap with
 * the lowest address that is large enough (first fit). */
#include "node.h"

#include "common/cli.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64 };

static int64_t round_up(int64_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

static int64_t count_output_bytes(const nn *n, const node *v) {
  return round_up(n->batch * nn_count_values(v->shape) * (int64_t)sizeof(float));
}

/* Set the members readers, needs_grad, works_in_place and adds of all nodes. */
static void set_node_flags(nn *n, bool share) {
  for (int i = 0; i < n->n_nodes; i++)
    n->nodes[i].readers = 0;
  for (int i = 0; i < n->n_nodes; i++) {
    node *v = &n->nodes[i];
    v->needs_grad = v->param[0] >= 0;
    for (int k = 0; k < 2; k++) {
      if (v->input[k] < 0) continue;
      node *in = get_input(n, v, k);
      in->readers++;
      v->needs_grad = v->needs_grad || in->needs_grad;
    }
  }
  for (int i = 1; i < n->n_nodes; i++) {
    node *v = &n->nodes[i];
    const node *in = get_input(n, v, 0);
    v->works_in_place = share && v->op->in_place && in->readers == 1 && !in->op->needs_output;
  }
  /* In backward order, the first reader of a node writes the node's gradient; later readers add to it. */
  bool *written = cli_alloc((size_t)n->n_nodes, sizeof *written);
  for (int i = n->n_nodes - 1; i > 0; i--) {
    node *v = &n->nodes[i];
    for (int k = 0; k < 2; k++) {
      if (v->input[k] < 0) continue;
      v->adds[k] = written[v->input[k]];
      written[v->input[k]] = true;
    }
  }
  free(written);
}

/* ---- gradients: first fit over lifetimes -----------------------------------------------------*/

typedef struct place {
  int node;
  int64_t at, bytes;
} place;

/* A gradient that is in use at one moment of the backward pass. The list is sorted by address. */
typedef struct alive {
  place *list;
  int n;
  int64_t most; /* largest end address so far */
} alive;

static int64_t place_gradient(alive *a, int number, int64_t bytes) {
  int64_t at = 0;
  int slot = 0;
  while (slot < a->n && a->list[slot].at - at < bytes) {
    at = a->list[slot].at + a->list[slot].bytes;
    slot++;
  }
  memmove(&a->list[slot + 1], &a->list[slot], (size_t)(a->n - slot) * sizeof *a->list);
  a->list[slot] = (place){number, at, bytes};
  a->n++;
  if (at + bytes > a->most) a->most = at + bytes;
  return at;
}

static void release_gradient(alive *a, int number) {
  for (int i = 0; i < a->n; i++) {
    if (a->list[i].node != number) continue;
    memmove(&a->list[i], &a->list[i + 1], (size_t)(a->n - i - 1) * sizeof *a->list);
    a->n--;
    return;
  }
}

/* Return the last node of the chain of nodes that work in place on the output of node i. They share one gradient,
 * which place_gradient lists under the number of this last node. */
static int find_last_in_chain(const int *heir, int i) {
  while (heir[i] != i)
    i = heir[i];
  return i;
}

/* Set offset[i] to the offset of the gradient of node i (-1: not needed). Return the bytes of all gradients. */
static int64_t place_gradients(nn *n, bool share, int64_t *offset) {
  alive a = {cli_alloc((size_t)n->n_nodes + 1, sizeof *a.list), 0, 0};
  int *heir = cli_alloc((size_t)n->n_nodes, sizeof *heir);
  for (int i = 0; i < n->n_nodes; i++) {
    heir[i] = i;
    offset[i] = -1;
  }
  for (int i = 1; i < n->n_nodes; i++) {
    if (n->nodes[i].works_in_place)
      heir[n->nodes[i].input[0]] =
          i; /* node i is the only reader of its input, so both gradients can share memory */
  }
  const int last = n->n_nodes - 1;
  if (n->nodes[last].needs_grad)
    offset[last] = place_gradient(&a, last, count_output_bytes(n, &n->nodes[last]));
  for (int i = last; i > 0; i--) {
    const node *v = &n->nodes[i];
    if (offset[i] < 0) continue;
    for (int k = 0; k < 2; k++) {
      const int x = v->input[k];
      if (x <= 0 || !n->nodes[x].needs_grad || offset[x] >= 0) continue;
      offset[x] = v->works_in_place && k == 0
                      ? offset[i]
                      : place_gradient(&a, x, count_output_bytes(n, &n->nodes[x]));
    }
    /* From here on the gradient of v is not needed, unless v works in place: then its input has the same gradient. */
    if (share && !v->works_in_place) release_gradient(&a, find_last_in_chain(heir, i));
  }
  free(a.list);
  free(heir);
  return a.most;
}

/* ---- the block -------------------------------------------------------------------------------*/

typedef struct cursor {
  char *base; /* NULL: only count the bytes */
  int64_t at;
} cursor;

static void *take_memory(cursor *c, int64_t bytes) {
  void *p = c->base != NULL ? c->base + c->at : NULL;
  c->at += round_up(bytes);
  return p;
}

static void assign_memory(nn *n, cursor *c, const int64_t *offset, int64_t gradients) {
  for (int i = 0; i < n->n_params; i++)
    n->params[i].value = take_memory(c, n->params[i].count * (int64_t)sizeof(float));
  for (int i = 0; i < n->n_params; i++)
    n->params[i].grad = take_memory(c, n->params[i].count * (int64_t)sizeof(float));
  for (int i = 0; i < n->n_buffers; i++)
    n->buffers[i].value = take_memory(c, n->buffers[i].count * (int64_t)sizeof(float));
  char *grads = take_memory(c, gradients);
  n->scratch_bytes = 0;
  for (int i = 1; i < n->n_nodes; i++) {
    node *v = &n->nodes[i];
    v->out = v->works_in_place ? get_input(n, v, 0)->out : take_memory(c, count_output_bytes(n, v));
    v->saved = v->op->saved != NULL ? take_memory(c, v->op->saved(n, v)) : NULL;
    v->grad = offset[i] >= 0 && grads != NULL ? (float *)(void *)(grads + offset[i]) : NULL;
    const int64_t wants = v->op->scratch != NULL ? v->op->scratch(n, v) : 0;
    if (wants > n->scratch_bytes) n->scratch_bytes = wants;
  }
  n->scratch = take_memory(c, n->scratch_bytes);
}

bool nn_allocate(nn *n, bool reuses_gradients) {
  int64_t *offset = cli_alloc((size_t)n->n_nodes, sizeof *offset);
  set_node_flags(n, reuses_gradients);
  const int64_t gradients = place_gradients(n, reuses_gradients, offset);
  cursor c = {NULL, 0};
  assign_memory(n, &c, offset, gradients);
  n->bytes = c.at;
  free(n->memory);
  n->memory = aligned_alloc(ALIGN, (size_t)c.at);
  if (n->memory != NULL) {
    memset(n->memory, 0, (size_t)c.at);
    c = (cursor){n->memory, 0};
    assign_memory(n, &c, offset, gradients);
    n->loss_grad = n->nodes[n->n_nodes - 1].grad;
  }
  free(offset);
  return n->memory != NULL;
}
