/* pruning.c: see pruning.h. */
#include "pruning.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one step --------------------------------------------------------------------------------*/

typedef struct scored {
  double score;
  int64_t at;
} scored;

static int by_score(const void *a, const void *b) {
  const scored *x = a, *y = b;
  if (x->score != y->score) return x->score < y->score ? -1 : 1;
  return x->at < y->at ? -1 : 1;
}

/* Mark the weights to prune. */
static void choose(const pruning_set *s, const double *score) {
  scored *list = cli_take((size_t)s->n, sizeof *list);
  memset(s->gone, 0, (size_t)s->n * sizeof *s->gone);
  for (int64_t i = 0; i < s->n; i++)
    list[i] = (scored){score[i], i};
  qsort(list, (size_t)s->n, sizeof *list, by_score);
  for (int64_t i = 0; i < s->drop; i++)
    s->gone[list[i].at] = true;
  free(list);
}

static int open_fisher(ng_context *ctx, const pruning *how, const pruning_set *s, ng_fisher **out) {
  const int64_t size = how->block > 0 ? how->block : s->n, blocks = (s->n + size - 1) / size;
  int64_t *end = cli_take((size_t)blocks, sizeof *end);
  for (int64_t b = 0; b < blocks; b++)
    end[b] = b + 1 < blocks ? (b + 1) * size : s->n;
  const ng_array rows =
      ng_array_matrix((void *)(uintptr_t)s->G, how->gradients, s->n, NG_F32); /* only read */
  const ng_status st = ng_fisher_create(ctx, &rows, how->damping, end, blocks, out);
  free(end);
  return st == NG_OK ? CLI_OK : cli_bad("prune: %s", ng_last_error(ctx));
}

int pruning_step(ng_context *ctx, const pruning *how, const pruning_set *s) {
  const bool mfac = how->score == PRUNING_MFAC;
  double *score = cli_take((size_t)s->n, sizeof *score), *diagonal = NULL;
  ng_fisher *f = NULL;
  int rc = mfac ? open_fisher(ctx, how, s, &f) : CLI_OK;
  if (rc == CLI_OK && mfac) {
    diagonal = cli_take((size_t)s->n, sizeof *diagonal);
    if (ng_fisher_diagonal(f, diagonal) != NG_OK) rc = cli_bad("prune: %s", ng_last_error(ctx));
  }
  for (int64_t i = 0; i < s->n && rc == CLI_OK; i++)
    score[i] = mfac ? s->w[i] * s->w[i] / (2.0 * diagonal[i]) : fabs(s->w[i]);
  if (rc == CLI_OK) choose(s, score);
  double *t = score; /* reuse the array */
  for (int64_t i = 0; i < s->n && rc == CLI_OK && mfac; i++)
    t[i] = s->gone[i] ? -s->w[i] / diagonal[i] : 0.0;
  if (rc == CLI_OK && mfac && ng_fisher_solve(f, t, t) != NG_OK)
    rc = cli_bad("prune: %s", ng_last_error(ctx));
  for (int64_t i = 0; i < s->n && rc == CLI_OK; i++)
    s->w[i] = s->gone[i] ? 0.0 : s->w[i] + (mfac ? t[i] : 0.0);
  ng_fisher_destroy(&f);
  free(diagonal);
  free(score);
  return rc;
}

/* ---- a network -------------------------------------------------------------------------------*/

typedef struct pruned {
  nn *net;
  int64_t all, began, left; /* weights; pruned at the start; remaining */
  bool *dead;               /* [all] */
} pruned;

pruning_count pruning_counted(const nn *net) {
  pruning_count c = {0, 0};
  for (int i = 0; i < nn_params(net); i++) {
    const nn_param *p = nn_param_at(net, i);
    for (int64_t k = 0; k < p->count && p->role == NN_WEIGHT; k++) {
      c.weights++;
      c.zeros += p->value[k] == 0.0F;
    }
  }
  return c;
}

int64_t pruning_share(int64_t d, int64_t began, int64_t zeros, double sparsity, int64_t k,
                      int64_t K) {
  const double was = (double)(d - began) / (double)d, wanted = 1.0 - sparsity;
  if (wanted >= was) return 0;
  const double left = was * pow(wanted / was, (double)k / (double)K);
  /* 1e-9: rounding must not lose a weight */
  const int64_t gone = (int64_t)((double)d * (1.0 - (k == K ? wanted : left)) + 1e-9);
  return gone > zeros ? gone - zeros : 0;
}

/* Gather the remaining weights (`value`) or gradients of all layers into x. */
static void gather(const pruned *p, bool value, float *x) {
  const bool *dead = p->dead;
  for (int i = 0; i < nn_params(p->net); i++) {
    const nn_param *q = nn_param_at(p->net, i);
    for (int64_t k = 0; k < q->count && q->role == NN_WEIGHT; k++) {
      if (!*dead++) *x++ = value ? q->value[k] : q->grad[k];
    }
  }
}

static void scatter(pruned *p, const double *w, const bool *gone) {
  bool *dead = p->dead;
  for (int i = 0; i < nn_params(p->net); i++) {
    const nn_param *q = nn_param_at(p->net, i);
    for (int64_t k = 0; k < q->count && q->role == NN_WEIGHT; k++, dead++) {
      if (*dead) continue;
      q->value[k] = (float)*w++;
      *dead = *gone++;
      p->left -= *dead;
    }
  }
}

/* Weights that are 0 count as pruned. */
static void find_dead(pruned *p) {
  bool *dead = p->dead;
  for (int i = 0; i < nn_params(p->net); i++) {
    const nn_param *q = nn_param_at(p->net, i);
    for (int64_t k = 0; k < q->count && q->role == NN_WEIGHT; k++)
      *dead++ = q->value[k] == 0.0F;
  }
}

static int collect(const pruned *p, const pruning *how, bool reconstructs, feed *f, int64_t from,
                   float *G) {
  nn *net = p->net;
  int rc = CLI_OK;
  for (int64_t i = 0; i < how->gradients && rc == CLI_OK; i++) {
    rc = feed_train(f, from + i, 0);
    if (rc == CLI_OK) rc = nn_forward(net, NN_TRAIN, f->x, f->batch, (uint64_t)(from + i), NULL);
    if (rc != CLI_OK) break;
    (void)nn_loss(net, NN_TRAIN, reconstructs ? NULL : f->labels, reconstructs ? f->x : NULL, NULL);
    rc = nn_backward(net, true, NULL);
    gather(p, false, G + i * p->left);
  }
  return rc;
}

static int one_step(ng_context *ctx, const pruning *how, bool reconstructs, feed *f, int64_t k,
                    pruned *p) {
  const int64_t drop =
      pruning_share(p->all, p->began, p->all - p->left, how->sparsity, k, how->steps);
  const size_t left = (size_t)p->left;
  int rc = CLI_OK;
  if (drop == 0) return rc;
  float *x = cli_take(left, sizeof *x), *G = NULL;
  double *w = cli_take(left, sizeof *w);
  bool *gone = cli_take(left, sizeof *gone);
  if (how->score == PRUNING_MFAC) {
    G = cli_take(left * (size_t)how->gradients, sizeof *G);
    rc = collect(p, how, reconstructs, f, (k - 1) * how->gradients, G);
  }
  gather(p, true, x);
  for (size_t i = 0; i < left; i++)
    w[i] = (double)x[i];
  const pruning_set s = {.n = p->left, .drop = drop, .G = G, .w = w, .gone = gone};
  if (rc == CLI_OK) rc = pruning_step(ctx, how, &s);
  if (rc == CLI_OK) scatter(p, w, gone);
  free(gone);
  free(w);
  free(G);
  free(x);
  return rc;
}

int pruning_run(ng_context *ctx, const pruning *how, bool reconstructs, feed *f, nn *net) {
  const pruning_count c = pruning_counted(net);
  pruned p = {net, c.weights, c.zeros, c.weights - c.zeros,
              cli_take((size_t)c.weights, sizeof *p.dead)};
  int rc = CLI_OK;
  find_dead(&p);
  nn_fix_norms(net, true);
  for (int64_t k = 1; k <= how->steps && rc == CLI_OK; k++)
    rc = one_step(ctx, how, reconstructs, f, k, &p);
  nn_fix_norms(net, false);
  free(p.dead);
  return rc;
}
