/* plan_cost.c: estimate the cost of a strategy.
 *
 * Bytes, messages and orders of factors come from ng_plan_ranks, as in a run. Seconds are the time of the slowest rank:
 * products at the rate `gemm`, factorisations at the rate `solve`, messages by latency and bandwidth. No work overlaps
 * (a run that overlaps messages with the backward pass, ng_batch.last, is faster).
 *
 * p and q are the orders of A and G of a layer, or of one group of a convolution; B counts the samples of a rank, W the
 * ranks. For an embedding p = 0: its A is the diagonal of token counts. Products of norms are not counted.
 *
 *   forward, backward   3 * 2 B sum(positions p q) / gemm
 *   observe             B sum(positions (p(p+1) + q(q+1))) / gemm, times the rank's share of the bytes of all sums; for
 *                       A = S (x) C this is an upper bound
 *   solve               k n^3 / solve over the factors (order n) of a rank; k = 1 for Cholesky and inverse, 9 for
 *                       eigenvectors
 *   apply               2 q p (p + q) / gemm over the blocks of a rank; twice as much in an eigenbasis
 *   a sum of n bytes    the faster of recursive halving and doubling (Rabenseifner's), 2 log2(W) latency + 2 (W-1)/W n
 *                       / bandwidth, and recursive doubling, log2(W) (latency + n / bandwidth) (Thakur, Rabenseifner &
 *                       Gropp 2005)
 *   a sum to owners     log2(W) latency + (W-1)/W n / bandwidth, recursive halving (the same paper); messages of
 *                       statistics overlap each other, so one latency is counted for all
 *   a broadcast         log2(W) latency + n / bandwidth: the message goes down a tree in pieces
 *   shards of layers    in groups of M ranks: a gather by recursive doubling, log2(M) latency + (M-1)/M n / bandwidth,
 *                       plus a small sum for each observed shard. The ranks of a group share the products of a sharded
 *                       layer, and each gradient is summed over W/M ranks */
#include "plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const plan_part_name[PLAN_PARTS] = {"gradients", "observe", "sums",    "solve",
                                                "share",     "apply",   "deliver", "weights",
                                                "small",     "shards"};

double plan_estimate_sum(const plan_machine *m, int32_t ranks, double bytes, double messages) {
  if (ranks < 2 || bytes <= 0) return 0.0;
  const double W = ranks, steps = ceil(log2(W));
  const double halves = 2 * steps * m->latency * messages + 2 * (W - 1) / W * bytes / m->bandwidth;
  const double whole = steps * (messages * m->latency + bytes / m->bandwidth);
  return halves < whole ? halves : whole;
}

/* The same of reduce-scatters. */
static double estimate_scatter(const plan_machine *m, int32_t ranks, double bytes,
                               double messages) {
  if (ranks < 2 || bytes <= 0) return 0.0;
  return ceil(log2((double)ranks)) * messages * m->latency +
         (ranks - 1.0) / ranks * bytes / m->bandwidth;
}

double plan_estimate_broadcast(const plan_machine *m, int32_t ranks, double bytes,
                               double messages) {
  if (ranks < 2 || bytes <= 0) return 0.0;
  return ceil(log2((double)ranks)) * messages * m->latency + bytes / m->bandwidth;
}

static int report(ng_context *ctx, const plan_strategy *s, const char *what) {
  return cli_fail("plan: %s: %s: %s", s->name, what, ng_last_error(ctx));
}

static int create_options(const plan_task *w, const plan_strategy *s, ng_options **out) {
  char line[300], why[512] = "";
  (void)snprintf(line, sizeof line, "%s stat_period=%lld solve_period=%lld", s->options,
                 (long long)w->period[0], (long long)w->period[1]);
  ng_status st = ng_options_create(line, why, sizeof why, out);
  if (st != NG_OK) return cli_fail("plan: %s: options: %s", s->name, why);
  return s->is_natgrad && w->args != NULL ? cli_set_options(w->args, *out) : CLI_OK;
}

/* Return true if the method has norm blocks. Then norms and embeddings are added as layers, else as tensors, as in
 * natgrad train and in the PyTorch front. */
static bool has_norm_blocks(ng_precond *p) {
  char block[16] = "";
  return ng_get(p, "norm_block", block, sizeof block) != NG_OK || strcmp(block, "none") != 0;
}

static int32_t count_layer_tensors(ng_precond *p, const shape *l) {
  if (!(l->is_norm || l->is_embedding) || has_norm_blocks(p)) return 0;
  return l->is_norm ? 2 : 1;
}

static ng_status add_layer_tensors(ng_precond *p, const shape *l, int32_t tensors) {
  static const char *const part[] = {"weight", "bias"};
  ng_status st = NG_OK;
  for (int32_t k = 0; k < tensors && st == NG_OK; k++) {
    char name[sizeof l->name + 8];
    (void)snprintf(name, sizeof name, "%s.%s", l->name, part[k]);
    st = ng_add_tensor(p, name, l->is_norm ? l->in : l->in * l->out, NULL);
  }
  return st;
}

static int add_layers(ng_context *ctx, const plan_task *w, const plan_strategy *s, ng_precond **p) {
  ng_options *o = NULL;
  int rc = create_options(w, s, &o);
  if (rc == CLI_OK && ng_precond_create_from(ctx, o, p) != NG_OK) rc = report(ctx, s, "options");
  ng_options_destroy(&o);
  if (rc != CLI_OK) return rc;
  ng_status st = NG_OK;
  for (int i = 0; i < w->model->n; i++) {
    const shape *l = &w->model->layer[i];
    ng_layer layer;
    const int32_t tensors = count_layer_tensors(*p, l);
    if (tensors > 0) {
      st = add_layer_tensors(*p, l, tensors);
    } else {
      shapes_set_layer(l, &layer);
      st = ng_add_layer(*p, &layer, NULL);
    }
    if (st < 0) return report(ctx, s, l->name);
  }
  return CLI_OK;
}

static int shard_layers(ng_context *ctx, const plan_task *w, const plan_strategy *s,
                        ng_precond *p) {
  int32_t index = 0;
  for (int i = 0; i < w->model->n && w->group_ranks > 1; i++) {
    const shape *l = &w->model->layer[i];
    const int32_t tensors = count_layer_tensors(p, l);
    if (l->split != SPLIT_NONE &&
        ng_plan_shard(p, index, l->split == SPLIT_OUTPUT ? 0 : 1, (int32_t)w->group_ranks) != NG_OK)
      return report(ctx, s, "--model-parallel");
    index += tensors > 0 ? tensors : 1;
  }
  return CLI_OK;
}

typedef struct totals {
  bool tables;               /* the method has statistics of embeddings */
  double solve, apply, sums; /* largest solve_cost, apply_cost and bytes of sums of any rank */
} totals;

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static int read_rank_plans(ng_context *ctx, const plan_strategy *s, ng_precond *p, int32_t ranks,
                           totals *t, plan_cost *out) {
  ng_rank_plan *all = cli_alloc((size_t)ranks, sizeof *all);
  out->held_least = INT64_MAX;
  for (int32_t r = 0; r < ranks; r++)
    all[r] = (ng_rank_plan){.struct_size = sizeof all[r]};
  const int rc = ng_plan_ranks(p, ranks, 0, ranks, all) == NG_OK ? CLI_OK : report(ctx, s, "ranks");
  for (int32_t r = 0; r < ranks && rc == CLI_OK; r++) {
    const ng_rank_plan plan = all[r];
    const int64_t held = plan.factors + plan.sums + plan.results + plan.direction + plan.moments;
    out->held_most = larger(out->held_most, held);
    if (held < out->held_least) out->held_least = held;
    out->held_mean += (double)held / ranks;
    if (plan.solve_cost > t->solve) t->solve = plan.solve_cost;
    if (plan.apply_cost > t->apply) t->apply = plan.apply_cost;
    if ((double)plan.sums > t->sums) t->sums = (double)plan.sums;
    out->largest.workers = plan.workers;
#define MOST(field) out->largest.field = larger(out->largest.field, plan.field)
    MOST(check_bytes);
    MOST(agree_bytes);
    MOST(trace_bytes);
    MOST(sums_bytes);
    MOST(sums_messages);
    MOST(scatter_bytes);
    MOST(scatter_messages);
    MOST(share_bytes);
    MOST(share_messages);
    MOST(deliver_bytes);
    MOST(deliver_messages);
    MOST(weights_bytes);
    MOST(weights_messages);
    MOST(shards_bytes);
    MOST(shards_messages);
    MOST(verdict_bytes);
    MOST(observed_bytes);
#undef MOST
  }
  free(all);
  return rc;
}

/* Compute seconds and bytes of sharded layers: in each step the gradients; every stat_period steps the observations,
 * with a small message that agrees on their status. */
static void estimate_shards(const plan_task *w, const ng_rank_plan *r, double *seconds,
                            plan_cost *out) {
  const plan_machine *m = &w->machine;
  const double F = (double)w->period[0], M = (double)w->group_ranks, hops = ceil(log2(M));
  const double observed = (double)w->batch * (double)r->observed_bytes;
  double layers = 0.0;
  for (int i = 0; i < w->model->n; i++)
    layers += w->model->layer[i].split != SPLIT_NONE;
  out->shards_bytes = r->shards_bytes + r->verdict_bytes + w->batch * r->observed_bytes;
  *seconds = hops * m->latency * (double)r->shards_messages +
             (M - 1) / M * (double)r->shards_bytes / m->bandwidth;
  if (r->observed_bytes == 0) return;
  *seconds += (2 * hops * m->latency * layers +
               ((M - 1) / M * observed + hops * (double)r->verdict_bytes) / m->bandwidth) /
              F;
}

static void estimate_times(const plan_task *w, bool eigen, int32_t ranks, const totals *t,
                           double all_sums, plan_cost *out) {
  const plan_machine *m = &w->machine;
  const double F = (double)w->period[0], I = (double)w->period[1], B = (double)w->batch;
  const ng_rank_plan *r = &out->largest;
  const int32_t columns = ranks / r->workers;
  double products = 0.0, squares = 0.0, weights = 0.0, s[PLAN_PARTS] = {0};
  for (int i = 0; i < w->model->n; i++) {
    const shape *l = &w->model->layer[i];
    const double share = l->split == SPLIT_NONE ? 1 : (double)w->group_ranks; /* number of shards */
    const double p = (double)l->p, q = (double)l->q, rows = B * (double)l->positions / share;
    const double groups = l->groups > 1 ? (double)l->groups : 1;
    products += 2 * rows * groups * p * q;
    if (!l->is_embedding || t->tables) squares += rows * groups * (p * (p + 1) + q * (q + 1));
    weights += 4 / share *
               (l->is_norm        ? 2 * (double)l->in /* gamma, beta */
                : l->is_embedding ? (double)l->in * q
                                  : groups * p * q);
  }
  s[PLAN_GRADIENT] = plan_estimate_sum(m, ranks / (int32_t)w->group_ranks, weights, 1);
  s[PLAN_OBSERVE] = squares * (all_sums > 0 ? t->sums / all_sums : 1.0) / m->gemm / F;
  s[PLAN_SUMS] =
      (plan_estimate_sum(m, ranks, (double)(r->sums_bytes - r->scatter_bytes),
                         r->sums_messages > r->scatter_messages ? 1 : 0) +
       estimate_scatter(m, ranks, (double)r->scatter_bytes, r->scatter_messages > 0 ? 1 : 0)) /
      F;
  s[PLAN_SOLVE] = (eigen ? 9 : 1) * t->solve / m->solve / I;
  s[PLAN_SHARE] =
      plan_estimate_broadcast(m, r->workers, (double)r->share_bytes, (double)r->share_messages) / I;
  s[PLAN_APPLY] = (eigen ? 4 : 2) * t->apply / m->gemm;
  s[PLAN_DELIVER] =
      plan_estimate_broadcast(m, columns, (double)r->deliver_bytes, (double)r->deliver_messages);
  s[PLAN_WEIGHTS] =
      plan_estimate_broadcast(m, ranks, (double)r->weights_bytes, (double)r->weights_messages);
  s[PLAN_SMALL] = plan_estimate_sum(m, ranks, (double)r->check_bytes, 1) +
                  plan_estimate_sum(m, ranks, (double)r->agree_bytes, 1) +
                  plan_estimate_sum(m, r->workers, (double)r->trace_bytes, r->trace_bytes > 0) / I;
  estimate_shards(w, r, &s[PLAN_SHARDS], out);
  out->compute = 1e3 * 3 * products / m->gemm;
  out->sent = (double)r->sums_bytes / F + (double)r->share_bytes / I + (double)r->deliver_bytes +
              (double)r->weights_bytes + (double)(r->check_bytes + r->agree_bytes) +
              (double)r->trace_bytes / I + (double)r->shards_bytes +
              (double)(out->shards_bytes - r->shards_bytes) / F;
  for (int i = 0; i < PLAN_PARTS; i++) {
    out->ms[i] = 1e3 * s[i];
    if (i != PLAN_GRADIENT) out->added += out->ms[i];
  }
  out->step = out->compute + out->ms[PLAN_GRADIENT] + out->added;
}

int plan_estimate_cost(const plan_task *w, const plan_strategy *s, int32_t ranks, plan_cost *out) {
  ng_context_config config;
  ng_context *ctx = NULL;
  ng_precond *p = NULL;
  totals t;
  ng_rank_plan whole = {.struct_size = sizeof whole}; /* plan of one rank, which has all sums */
  memset(&t, 0, sizeof t);
  memset(out, 0, sizeof *out);
  out->largest.workers = 1;
  ng_context_config_init(&config, sizeof config);
  config.threads = 1;
  int rc = cli_create_context(&config, &ctx);
  if (rc != CLI_OK) return rc;
  rc = add_layers(ctx, w, s, &p);
  if (rc == CLI_OK) t.tables = has_norm_blocks(p);
  if (rc == CLI_OK && ng_plan_ranks(p, 1, 0, 1, &whole) != NG_OK) rc = report(ctx, s, "one rank");
  if (rc == CLI_OK) rc = shard_layers(ctx, w, s, p);
  if (rc == CLI_OK) rc = read_rank_plans(ctx, s, p, ranks, &t, out);
  if (rc == CLI_OK) {
    char solver[32] = "";
    if (ng_get(p, "solver", solver, sizeof solver) != NG_OK) rc = report(ctx, s, "solver");
    estimate_times(w, strncmp(solver, "eigen", 5) == 0, ranks, &t, (double)whole.sums, out);
  }
  ng_precond_destroy(&p);
  ng_context_destroy(&ctx);
  return rc;
}
