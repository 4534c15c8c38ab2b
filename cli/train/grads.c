/* grads.c: sum gradients over micro-batches and ranks; grads.h explains buckets. */
#include "grads.h"

#include <stdlib.h>
#include <string.h>

/* Assign the parameters to buckets, from the last parameter to the first. */
static void make_buckets(grads *g, double cap) {
  int64_t from = nn_count_weights(g->net);
  g->list = cli_alloc((size_t)nn_count_params(g->net), sizeof *g->list);
  for (int i = nn_count_params(g->net) - 1; i >= 0; i--) {
    const int64_t n = nn_get_param(g->net, i)->count;
    grad_bucket *b = g->buckets > 0 ? &g->list[g->buckets - 1] : NULL;
    from -= n;
    if (b == NULL || (double)((b->count + n) * (int64_t)sizeof(float)) > cap) {
      b = &g->list[g->buckets++];
      b->count = 0;
    }
    b->first = i;
    b->from = from;
    b->count += n;
  }
}

/* Post the sums of complete buckets, and test the oldest posted sum: a transport may make progress only when called. */
static int post_buckets(grads *g) {
  int rc = CLI_OK;
  for (; g->posted < g->buckets && g->list[g->posted].first >= g->added && rc == CLI_OK;
       g->posted++) {
    grad_bucket *b = &g->list[g->posted];
    rc = ranks_start_sum(g->ranks, g->sum + b->from, b->count, &b->request);
  }
  while (g->waited < g->posted && rc == CLI_OK) {
    bool done = false;
    rc = ranks_test_sum(g->ranks, &g->list[g->waited].request, &done);
    if (!done) break;
    g->waited++;
  }
  return rc;
}

/* Add the gradients of the parameters >= `first`, which the backward pass has just computed, to the sum. */
static int add_ready_gradients(void *user, int first) {
  grads *g = user;
  const float share = (float)(g->share / (double)g->batches);
  while (g->added > first) {
    const nn_param *p = nn_get_param(g->net, --g->added);
    g->at -= p->count;
    float *to = g->sum + g->at;
    for (int64_t k = 0; k < p->count; k++)
      to[k] = (g->batch > 0 ? to[k] : 0.0F) + share * p->grad[k];
  }
  return g->batch == g->batches - 1 ? post_buckets(g) : CLI_OK;
}

int grads_create(nn *net, const run_ranks *ranks, int64_t batches, double share, double cap,
                 grads *out) {
  *out = (grads){.net = net, .ranks = ranks, .batches = batches, .share = share};
  if (batches < 2 && ranks->size == 1) return CLI_OK;
  out->sum = malloc((size_t)nn_count_weights(net) * sizeof *out->sum);
  if (out->sum == NULL)
    return cli_fail("no memory for the gradients of %lld weights",
                    (long long)nn_count_weights(net));
  if (ranks->size > 1) make_buckets(out, cap);
  nn_watch_gradients(net, add_ready_gradients, out);
  return CLI_OK;
}

void grads_free(grads *g) {
  free(g->sum);
  free(g->list);
  memset(g, 0, sizeof *g);
}

void grads_begin(grads *g, int64_t batch) {
  if (g->sum == NULL) return;
  g->batch = batch;
  g->added = nn_count_params(g->net);
  g->at = nn_count_weights(g->net);
  g->posted = g->waited = 0;
}

int grads_end(grads *g) {
  const float *from = g->sum;
  for (; g->waited < g->buckets; g->waited++)
    if (ranks_wait_sum(g->ranks, &g->list[g->waited].request) != CLI_OK) return CLI_BAD;
  for (int i = 0; from != NULL && i < nn_count_params(g->net); i++) {
    const nn_param *p = nn_get_param(g->net, i);
    memcpy(p->grad, from, (size_t)p->count * sizeof *from);
    from += p->count;
  }
  return CLI_OK;
}
