/* pruning.c: prune a network in steps; pruning.h has the formulas. */
#include "pruning.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct scored {
  double score;
  int64_t at;
} scored;

static int compare_scores(const void *a, const void *b) {
  const scored *x = a, *y = b;
  if (x->score != y->score) return x->score < y->score ? -1 : 1;
  return x->at < y->at ? -1 : 1;
}

/* Set s->pruned for the s->drop weights with the smallest scores. */
static void mark_smallest(const pruning_set *s, const double *score) {
  scored *list = cli_alloc((size_t)s->n, sizeof *list);
  memset(s->pruned, 0, (size_t)s->n * sizeof *s->pruned);
  for (int64_t i = 0; i < s->n; i++)
    list[i] = (scored){score[i], i};
  qsort(list, (size_t)s->n, sizeof *list, compare_scores);
  for (int64_t i = 0; i < s->drop; i++)
    s->pruned[list[i].at] = true;
  free(list);
}

static int open_fisher(ng_context *ctx, const pruning *how, const pruning_set *s, ng_fisher **out) {
  const int64_t size = how->block > 0 ? how->block : s->n, blocks = (s->n + size - 1) / size;
  int64_t *end = cli_alloc((size_t)blocks, sizeof *end);
  for (int64_t b = 0; b < blocks; b++)
    end[b] = b + 1 < blocks ? (b + 1) * size : s->n;
  const ng_array rows = ng_array_matrix((void *)(uintptr_t)s->G, how->gradients, s->n,
                                        NG_F32); /* the library only reads G */
  const ng_status st = ng_fisher_create(ctx, &rows, how->damping, end, blocks, out);
  free(end);
  return st == NG_OK ? CLI_OK : cli_fail("prune: %s", ng_last_error(ctx));
}

int pruning_prune_step(ng_context *ctx, const pruning *how, const pruning_set *s) {
  const bool mfac = how->score == PRUNING_MFAC;
  double *score = cli_alloc((size_t)s->n, sizeof *score), *diagonal = NULL;
  ng_fisher *f = NULL;
  int rc = mfac ? open_fisher(ctx, how, s, &f) : CLI_OK;
  if (rc == CLI_OK && mfac) {
    diagonal = cli_alloc((size_t)s->n, sizeof *diagonal);
    if (ng_fisher_diagonal(f, diagonal) != NG_OK) rc = cli_fail("prune: %s", ng_last_error(ctx));
  }
  for (int64_t i = 0; i < s->n && rc == CLI_OK; i++)
    score[i] = mfac ? s->w[i] * s->w[i] / (2.0 * diagonal[i]) : fabs(s->w[i]);
  if (rc == CLI_OK) mark_smallest(s, score);
  double *t = score; /* reuses the memory of score */
  for (int64_t i = 0; i < s->n && rc == CLI_OK && mfac; i++)
    t[i] = s->pruned[i] ? -s->w[i] / diagonal[i] : 0.0;
  if (rc == CLI_OK && mfac && ng_fisher_solve(f, t, t) != NG_OK)
    rc = cli_fail("prune: %s", ng_last_error(ctx));
  for (int64_t i = 0; i < s->n && rc == CLI_OK; i++)
    s->w[i] = s->pruned[i] ? 0.0 : s->w[i] + (mfac ? t[i] : 0.0);
  ng_fisher_destroy(&f);
  free(diagonal);
  free(score);
  return rc;
}

pruning_count pruning_count_zeros(const nn *net) {
  pruning_count c = {0, 0};
  for (int i = 0; i < nn_count_params(net); i++) {
    const nn_param *p = nn_get_param(net, i);
    for (int64_t k = 0; k < p->count && p->role == NN_WEIGHT; k++) {
      c.weights++;
      c.zeros += p->value[k] == 0.0F;
    }
  }
  return c;
}

int64_t pruning_compute_step_count(int64_t d, int64_t began, int64_t zeros, double sparsity,
                                   int64_t k, int64_t K) {
  const double was = (double)(d - began) / (double)d, wanted = 1.0 - sparsity;
  if (wanted >= was) return 0;
  const double left = was * pow(wanted / was, (double)k / (double)K);
  /* 1e-9: if the exact product is an integer, rounding must not make it smaller. */
  const int64_t pruned = (int64_t)((double)d * (1.0 - (k == K ? wanted : left)) + 1e-9);
  return pruned > zeros ? pruned - zeros : 0;
}

/* Copy the values (`value`) or the gradients of the remaining weights, which are not 0, into x. */
static void gather_weights_or_grads(const nn *net, bool value, float *x) {
  for (int i = 0; i < nn_count_params(net); i++) {
    const nn_param *q = nn_get_param(net, i);
    for (int64_t k = 0; k < q->count && q->role == NN_WEIGHT; k++)
      if (q->value[k] != 0.0F) *x++ = value ? q->value[k] : q->grad[k];
  }
}

/* Set the remaining weights of the network, which are not 0, to w. */
static void write_weights(nn *net, const double *w) {
  for (int i = 0; i < nn_count_params(net); i++) {
    const nn_param *q = nn_get_param(net, i);
    for (int64_t k = 0; k < q->count && q->role == NN_WEIGHT; k++)
      if (q->value[k] != 0.0F) q->value[k] = (float)*w++;
  }
}

/* Compute the how->gradients rows of G; each row has the `left` gradients of the remaining weights for one batch. */
static int collect_gradients(const pruning *how, bool reconstructs, feed *f, int64_t from, nn *net,
                             int64_t left, float *G) {
  int rc = CLI_OK;
  for (int64_t i = 0; i < how->gradients && rc == CLI_OK; i++) {
    rc = feed_fill_train(f, from + i, 0);
    if (rc == CLI_OK) rc = nn_forward(net, NN_TRAIN, f->x, f->batch, (uint64_t)(from + i), NULL);
    if (rc != CLI_OK) break;
    (void)nn_compute_loss(net, NN_TRAIN, reconstructs ? NULL : f->labels,
                          reconstructs ? f->x : NULL, NULL);
    rc = nn_backward(net, true, NULL);
    gather_weights_or_grads(net, false, G + i * left);
  }
  return rc;
}

/* Prune step k of the network. `began`: number of weights that were 0 at the start. */
static int prune_network_step(ng_context *ctx, const pruning *how, bool reconstructs, feed *f,
                              int64_t k, int64_t began, nn *net) {
  const pruning_count c = pruning_count_zeros(net);
  const int64_t left = c.weights - c.zeros;
  pruning_set s = {.n = left};
  s.drop = pruning_compute_step_count(c.weights, began, c.zeros, how->sparsity, k, how->steps);
  int rc = CLI_OK;
  if (s.drop == 0) return rc;
  float *x = cli_alloc((size_t)left, sizeof *x), *G = NULL;
  s.w = cli_alloc((size_t)left, sizeof *s.w);
  s.pruned = cli_alloc((size_t)left, sizeof *s.pruned);
  if (how->score == PRUNING_MFAC) {
    s.G = G = cli_alloc((size_t)(left * how->gradients), sizeof *G);
    rc = collect_gradients(how, reconstructs, f, (k - 1) * how->gradients, net, left, G);
  }
  gather_weights_or_grads(net, true, x);
  for (int64_t i = 0; i < left; i++)
    s.w[i] = (double)x[i];
  if (rc == CLI_OK) rc = pruning_prune_step(ctx, how, &s);
  if (rc == CLI_OK) write_weights(net, s.w);
  free(s.pruned);
  free(s.w);
  free(G);
  free(x);
  return rc;
}

int pruning_run(ng_context *ctx, const pruning *how, bool reconstructs, feed *f, nn *net) {
  const int64_t began = pruning_count_zeros(net).zeros;
  int rc = CLI_OK;
  nn_freeze_norms(net, true);
  for (int64_t k = 1; k <= how->steps && rc == CLI_OK; k++)
    rc = prune_network_step(ctx, how, reconstructs, f, k, began, net);
  nn_freeze_norms(net, false);
  return rc;
}
