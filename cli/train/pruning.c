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

static void choose(const double *score, int64_t from, int64_t to, int64_t drop, bool *gone) {
  if (drop < 1) return;
  scored *list = cli_take((size_t)(to - from), sizeof *list);
  for (int64_t i = from; i < to; i++)
    list[i - from] = (scored){score[i], i};
  qsort(list, (size_t)(to - from), sizeof *list, by_score);
  for (int64_t i = 0; i < drop; i++)
    gone[list[i].at] = true;
  free(list);
}

/* Ends of the *blocks diagonal blocks of F, for free(). */
static int64_t *blocks_of(const pruning *how, const pruning_set *s, int64_t *blocks) {
  const int64_t fixed = how->block > 0 ? how->block : s->n;
  const int64_t most = how->block == PRUNING_LAYERS ? s->layers : (s->n + fixed - 1) / fixed;
  int64_t *end = cli_take((size_t)most, sizeof *end);
  *blocks = 0;
  if (how->block != PRUNING_LAYERS) {
    for (int64_t at = fixed; *blocks < most; at += fixed)
      end[(*blocks)++] = at < s->n ? at : s->n;
    return end;
  }
  for (int l = 0; l < s->layers; l++) {
    if (s->end[l] > (l == 0 ? 0 : s->end[l - 1])) end[(*blocks)++] = s->end[l];
  }
  return end;
}

static int open_fisher(ng_context *ctx, const pruning *how, const pruning_set *s, ng_fisher **out) {
  int64_t blocks;
  int64_t *end = blocks_of(how, s, &blocks);
  const ng_array rows =
      ng_array_matrix((void *)(uintptr_t)s->G, how->gradients, s->n, NG_F32); /* only read */
  const ng_status st = ng_fisher_create(ctx, &rows, how->damping, end, blocks, out);
  free(end);
  return st == NG_OK ? CLI_OK : cli_bad("prune: %s", ng_last_error(ctx));
}

static void choose_all(const pruning *how, const pruning_set *s, const double *score) {
  memset(s->gone, 0, (size_t)s->n * sizeof *s->gone);
  if (!how->layerwise) {
    choose(score, 0, s->n, s->drop[0], s->gone);
    return;
  }
  for (int l = 0; l < s->layers; l++)
    choose(score, l == 0 ? 0 : s->end[l - 1], s->end[l], s->drop[l], s->gone);
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
  if (rc == CLI_OK) choose_all(how, s, score);
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
  const nn_param **layer; /* [layers] its weights */
  int layers;
  int64_t all, left;
  int64_t *first, *zeros; /* [layers] offset of the weights; pruned weights */
  int64_t *began;         /* [layers] pruned at the start */
  bool *dead;             /* [all] */
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

static void open_pruned(nn *net, pruned *p) {
  const int n = nn_params(net);
  *p = (pruned){.net = net,
                .layer = cli_take((size_t)n, sizeof *p->layer),
                .first = cli_take((size_t)n, sizeof *p->first),
                .zeros = cli_take((size_t)n, sizeof *p->zeros),
                .began = cli_take((size_t)n, sizeof *p->began),
                .dead = cli_take((size_t)nn_weights(net), sizeof *p->dead)};
  for (int i = 0; i < n; i++) {
    const nn_param *q = nn_param_at(net, i);
    if (q->role != NN_WEIGHT) continue;
    p->first[p->layers] = p->all;
    for (int64_t k = 0; k < q->count; k++) {
      p->dead[p->all + k] = q->value[k] == 0.0F;
      p->zeros[p->layers] += p->dead[p->all + k];
    }
    p->began[p->layers] = p->zeros[p->layers];
    p->left += q->count - p->zeros[p->layers];
    p->all += q->count;
    p->layer[p->layers++] = q;
  }
}

static void free_pruned(pruned *p) {
  free(p->layer);
  free(p->first);
  free(p->zeros);
  free(p->began);
  free(p->dead);
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
  for (int l = 0; l < p->layers; l++) {
    const nn_param *q = p->layer[l];
    for (int64_t k = 0; k < q->count; k++) {
      if (!p->dead[p->first[l] + k]) *x++ = value ? q->value[k] : q->grad[k];
    }
  }
}

static void scatter(pruned *p, const double *w, const bool *gone) {
  for (int l = 0; l < p->layers; l++) {
    const nn_param *q = p->layer[l];
    for (int64_t k = 0; k < q->count; k++) {
      bool *dead = &p->dead[p->first[l] + k];
      if (*dead) continue;
      q->value[k] = (float)*w++;
      *dead = *gone++;
      p->zeros[l] += *dead;
      p->left -= *dead;
    }
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
  int64_t *end = cli_take((size_t)p->layers, sizeof *end),
          *drop = cli_take((size_t)p->layers, sizeof *drop);
  int64_t at = 0, began = 0, all = 0;
  for (int l = 0; l < p->layers; l++) {
    at += p->layer[l]->count - p->zeros[l];
    end[l] = at;
    began += p->began[l];
    drop[l] =
        pruning_share(p->layer[l]->count, p->began[l], p->zeros[l], how->sparsity, k, how->steps);
    all += drop[l];
  }
  if (!how->layerwise)
    all = drop[0] = pruning_share(p->all, began, p->all - p->left, how->sparsity, k, how->steps);
  const size_t left = (size_t)p->left;
  float *x = all > 0 ? cli_take(left, sizeof *x) : NULL, *G = NULL;
  int rc = CLI_OK;
  if (all > 0 && how->score == PRUNING_MFAC) {
    G = cli_take(left * (size_t)how->gradients, sizeof *G);
    rc = collect(p, how, reconstructs, f, (k - 1) * how->gradients, G);
  }
  if (rc == CLI_OK && all > 0) {
    double *w = cli_take(left, sizeof *w);
    bool *gone = cli_take(left, sizeof *gone);
    gather(p, true, x);
    for (size_t i = 0; i < left; i++)
      w[i] = (double)x[i];
    const pruning_set s = {
        .n = p->left, .layers = p->layers, .end = end, .drop = drop, .G = G, .w = w, .gone = gone};
    rc = pruning_step(ctx, how, &s);
    if (rc == CLI_OK) scatter(p, w, gone);
    free(gone);
    free(w);
  }
  free(G);
  free(x);
  free(drop);
  free(end);
  return rc;
}

int pruning_run(ng_context *ctx, const pruning *how, bool reconstructs, feed *f, nn *net) {
  pruned p;
  int rc = CLI_OK;
  open_pruned(net, &p);
  nn_fix_norms(net, true);
  for (int64_t k = 1; k <= how->steps && rc == CLI_OK; k++)
    rc = one_step(ctx, how, reconstructs, f, k, &p);
  nn_fix_norms(net, false);
  free_pruned(&p);
  return rc;
}
