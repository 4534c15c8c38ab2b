/* shard_run.c: see shard_run.h. */
#include "shard_run.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"
#include "tap.h"

const sharded_layer layer[LAYERS] = {{"up", 0, 1, 5, 7, 0},
                                     {"down", 1, 1, 7, 6, 2},
                                     {"bare", 0, 0, 6, 8, 0},
                                     {"head", -1, 1, 8, 3, 0}};

int32_t model_group_of(const shard_run *x, int32_t rank) {
  return x->data_adjacent ? rank % x->data : rank / x->model;
}
static int32_t member_of(const shard_run *x, int32_t rank) {
  return x->data_adjacent ? rank / x->data : rank % x->model;
}

/* Return the first of n rows of shard i: sizes 1, 2, 1, 2, ..., and the remainder in the last shard. */
static int64_t shard_start(const shard_run *x, int64_t n, int32_t i) {
  const int32_t of = x->model;
  int64_t at = 0;
  if (i == of) return n;
  if (x->even) return n / of * i + (i < n % of ? i : n % of);
  for (int32_t k = 0; k < i; k++) {
    at += k % 2 == 0 ? 1 : 2;
  }
  return at;
}

bool has_bias(const shard_run *x, int i) { return x->bias && layer[i].bias; }
int64_t sample_count(int32_t group, int64_t call) { return 3 + group + call; }
int64_t position_count(int i) { return layer[i].positions > 0 ? layer[i].positions : 1; }
double observed_value(int32_t group, int64_t t, int64_t call, int i, bool grad, int64_t k) {
  return rng_value_at(t * MICRO + call, group * 8 + i, grad, k);
}

/* ---- a rank ----------------------------------------------------------------------------------*/

shard shard_of(const shard_run *x, int32_t rank, int i) {
  const int32_t m = member_of(x, rank);
  const int64_t further = x->skewed && model_group_of(x, rank) > 0;
  const int64_t all = layer[i].axis == 0 ? layer[i].out : layer[i].in;
  const int64_t from = shard_start(x, all, m) + (m > 0 ? further : 0);
  const int64_t to = shard_start(x, all, m + 1) + (m + 1 < x->model ? further : 0);
  shard p = {layer[i].in, layer[i].out, 0, 0};
  if (layer[i].axis == 0) {
    p.row = from;
    p.out = to - from;
  } else if (layer[i].axis == 1) {
    p.col = from;
    p.in = to - from;
  }
  return p;
}

typedef struct rank_run {
  shard_run *x;
  allocator memory;
  int32_t rank, index[LAYERS];
  bool corrected; /* the fault is over */
  fixture f;
  ng_transport model;
  float grad[LAYERS][MOST_WEIGHTS], weight[LAYERS][MOST_WEIGHTS];
} rank_run;

static bool has_whole_layers(const rank_run *run) {
  return run->x->whole || (run->x->unsharded >> run->rank & 1) != 0;
}

static ng_status add_shard(rank_run *run, int i) {
  const shard p = shard_of(run->x, run->rank, i);
  ng_layer d = layer_of(NG_LINEAR, layer[i].name, p.in, p.out);
  d.bias = (int32_t)has_bias(run->x, i);
  d.positions = layer[i].positions;
  d.order = run->x->rows_first ? NG_SAMPLES_FIRST : NG_POSITIONS_FIRST;
  d.shard_axis = has_whole_layers(run) ? -1 : layer[i].axis;
  ng_status st = ng_add_layer(run->f.p, &d, &run->index[i]);
  plane g = plane_of(run->grad[i], p.out, p.in, NG_F32),
        w = plane_of(run->weight[i], p.out, p.in, NG_F32);
  if (st == NG_OK) st = fixture_bind(&run->f, run->index[i], NG_WEIGHT, &g, &w);
  if (st != NG_OK || d.bias == 0) return st;
  g = plane_of(run->grad[i] + p.out * p.in, 1, p.out, NG_F32);
  w = plane_of(run->weight[i] + p.out * p.in, 1, p.out, NG_F32);
  return fixture_bind(&run->f, run->index[i], NG_BIAS, &g, &w);
}

double initial_weight(int i, int64_t k) { return rng_value_at(-1, i, 0, k); }

/* Return the index in the whole layer of element k of a shard, whose bias follows the weights. */
static int64_t index_in_whole(const shard_run *x, const shard *p, int i, int64_t k) {
  const int64_t cols = layer[i].in + has_bias(x, i), weights = p->out * p->in;
  return k < weights ? (p->row + k / p->in) * cols + p->col + k % p->in
                     : (p->row + k - weights + 1) * cols - 1;
}

void copy_shard(const shard_run *x, int32_t rank, int i, const double *whole, float *to) {
  const shard p = shard_of(x, rank, i);
  for (int64_t k = 0; k < p.out * (p.in + has_bias(x, i)); k++)
    to[k] = (float)whole[index_in_whole(x, &p, i, k)];
}

void store_shard(const shard_run *x, int32_t rank, int i, const float *from, double *whole) {
  const shard p = shard_of(x, rank, i);
  for (int64_t k = 0; k < p.out * (p.in + has_bias(x, i)); k++)
    whole[index_in_whole(x, &p, i, k)] = (double)from[k];
}

static bool has_fault(const rank_run *run, int64_t t, int64_t call, const char *how) {
  return run->x->bad_rank == run->rank && !run->corrected && t == 1 && call == 0 &&
         strstr(run->x->options, how) != NULL;
}

static int64_t observed_samples(const rank_run *run, int64_t t, int64_t call) {
  return sample_count(model_group_of(run->x, run->rank), call) + has_fault(run, t, call, "|rows");
}

static ng_status observe_array(rank_run *run, int64_t t, int64_t call, int i, bool grad) {
  const shard_run *x = run->x;
  const shard p = shard_of(x, run->rank, i);
  const int32_t g = model_group_of(x, run->rank);
  const int64_t B = observed_samples(run, t, call), S = position_count(i);
  const int64_t all = grad ? layer[i].out : layer[i].in, n = grad ? p.out : p.in;
  const int64_t from = grad ? p.row : p.col;
  float a[MOST_OBSERVED];
  for (int64_t b = 0; b < B; b++) {
    for (int64_t s = 0; s < S; s++) {
      const int64_t row = x->rows_first ? b * S + s : s * B + b;
      for (int64_t k = 0; k < n; k++) {
        a[row * n + k] = (float)observed_value(g, t, call, i, grad, (b * S + s) * all + from + k);
      }
    }
  }
  plane v = plane_of(a, B * S, n, NG_F32);
  if (has_fault(run, t, call, "|nan") && i == 1 && !grad) a[0] = NAN;
  if (has_fault(run, t, call, "|shape") && i == 0 && grad) v = plane_of(a, B * S, n + 1, NG_F32);
  return fixture_observe(&run->f, run->index[i], grad ? NULL : &v, grad ? &v : NULL);
}

static ng_status observe_batches(rank_run *run, int64_t t) {
  ng_status worst = NG_OK;
  for (int64_t call = 0; call < MICRO; call++) {
    ng_batch b = batch_of(observed_samples(run, t, call));
    b.last = run->x->last && call == MICRO - 1;
    ng_status st = ng_begin(run->f.p, &b);
    if (st != NG_OK) return st;
    for (int k = 0; k < 2 * LAYERS; k++) {
      const bool grad = k >= LAYERS;
      st = observe_array(run, t, call, grad ? 2 * LAYERS - 1 - k : k, grad);
      if (st < NG_OK) return st;
      if (st > worst) worst = st;
    }
  }
  return worst;
}

static ng_status run_steps(rank_run *run, ng_transport *world) {
  shard_run *x = run->x;
  ng_status st = ranks_grid_transport(&x->grid, run->rank, !x->data_adjacent, &run->model);
  if (st != NG_OK) return st;
  const bool taps = x->fail[0] + x->fail[1] > 0;
  const bool me = run->rank == x->bad_rank;
  /* Without start and wait a collective completes when it is posted. */
  tap t[2] = {{.inner = *world, .fail_at = me ? x->fail[0] : 0},
              {.inner = run->model, .fail_at = me ? x->fail[1] : 0}};
  const ng_transport with[2] = {tap_transport(&t[0], NO_START), tap_transport(&t[1], NO_START)};
  ng_context_config c = allocator_config(&run->memory);
  c.threads = 1;
  c.model_group = has_whole_layers(run) ? NULL : taps ? &with[1] : &run->model;
  char options[256];
  (void)snprintf(options, sizeof options, "%.*s", (int)strcspn(x->options, "|"), x->options);
  st = fixture_open(&run->f, options,
                    &(fixture_how){.config = &c, .transport = taps ? &with[0] : world});
  for (int i = 0; i < LAYERS && st == NG_OK; i++) {
    double w[MOST_WEIGHTS];
    for (int64_t k = 0; k < MOST_WEIGHTS; k++)
      w[k] = x->start != NULL ? x->start[i][k] : initial_weight(i, k);
    copy_shard(run->x, run->rank, i, w, run->weight[i]);
    st = add_shard(run, i);
  }
  if (st == NG_OK) st = ng_ready(run->f.p);
  if (st == NG_OK && x->load != NULL) st = ng_load(run->f.p, x->load);
  if (st == NG_OK && x->resave != NULL) st = ng_save(run->f.p, x->resave);
  if (me && x->failing_alloc > 0) run->memory.fail_at = run->memory.calls + x->failing_alloc;
  const bool sgd = strstr(x->options, "=sgd") != NULL,
             fused = sgd || strstr(x->options, "=adamw") != NULL;
  for (int64_t s = x->first_step; s < STEPS && st >= NG_OK; s++) {
    ng_status observed = observe_batches(run, s);
    x->observed[run->rank][s] = observed;
    if (observed < NG_OK && taps) return observed;
    if (observed < NG_OK) { /* reset the batch and observe without the fault */
      x->status[run->rank][s] = observed;
      (void)snprintf(x->message[run->rank], sizeof x->message[0], "%s", ng_last_error(run->f.ctx));
      st = ng_reset_batch(run->f.p);
      if (st != NG_OK) return st;
      run->corrected = x->failing_alloc == 0;
      observed = observe_batches(run, s);
      if (observed != NG_OK) return observed;
    }
    for (int i = 0; i < LAYERS; i++)
      copy_shard(run->x, run->rank, i, x->D[s][i], run->grad[i]);
    ng_sgd how = fixture_sgd(0.1, 0.9);
    how.weight_decay = sgd ? 0.01 : 0.0;
    st = fixture_step(&run->f, &how);
    if (st >= NG_OK && s == x->first_step + 1) {
      ng_status saved = x->save != NULL ? ng_save(run->f.p, x->save) : NG_OK;
      if (saved == NG_OK && x->parts != NULL) saved = ng_save_parts(run->f.p, x->parts);
      if (saved != NG_OK) return saved;
    }
    if (x->status[run->rank][s] == NG_OK) x->status[run->rank][s] = st;
    ng_report r = {.struct_size = sizeof r};
    if (ng_report_read(run->f.p, &r) == NG_OK) x->nu[run->rank][s] = r.clip;
    memcpy(x->out[run->rank][s], fused ? run->weight : run->grad, sizeof run->grad);
  }
  if (st >= NG_OK && x->check != NULL) st = x->check(run->f.p, run->rank, x->check_arg);
  return st;
}

static ng_status run_rank(int32_t rank, ng_transport *t, void *arg) {
  shard_run *x = arg;
  rank_run run;
  memset(&run, 0, sizeof run);
  run.x = x;
  run.rank = rank;
  const ng_status st = run_steps(&run, t);
  if (rank == x->bad_rank && x->failing_alloc > 0)
    x->alloc_failed = run.memory.calls >= run.memory.fail_at;
  if (x->message[rank][0] == 0) {
    (void)snprintf(x->message[rank], sizeof x->message[0], "%s",
                   run.f.message[0] != 0 ? run.f.message
                   : run.f.ctx != NULL   ? ng_last_error(run.f.ctx)
                                         : "");
  }
  fixture_close(&run.f);
  ranks_grid_release(&run.model);
  if (run.memory.held == 0) return st;
  (void)snprintf(x->message[rank], sizeof x->message[0], "%lld bytes were not freed",
                 (long long)run.memory.held);
  return NG_ERR_STATE;
}

ng_status train(shard_run *x, ng_status each[RANKS]) {
  const int32_t W = x->data * x->model;
  for (int s = 0; s < STEPS; s++) {
    for (int i = 0; i < LAYERS; i++) {
      for (int64_t k = 0; k < MOST_WEIGHTS; k++)
        x->D[s][i][k] = rng_value_at(s, -2, i, k);
    }
  }
  const int32_t cols = x->data_adjacent ? x->data : x->model;
  if (ranks_grid_open(&x->grid, W / cols, cols) != NG_OK) return NG_ERR_NOMEM;
  const ng_status st = ranks_run(W, run_rank, x, each);
  ranks_grid_close(&x->grid);
  for (int32_t r = 0; r < W; r++) {
    ranks_broadcast_bytes(r, x->out[r], sizeof x->out[r]);
    ranks_broadcast_bytes(r, x->nu[r], sizeof x->nu[r]);
  }
  return st;
}

bool has_ranks(int32_t ranks) {
#if defined(NG_TEST_MPI)
  return ranks <= ranks_process_count();
#else
  return ranks <= RANKS;
#endif
}

shard_run *new_run(const shard_run *how) {
  shard_run *x = malloc(sizeof *x);
  if (x != NULL) *x = *how;
  return x;
}

shard_run default_run(const char *options) {
  return (shard_run){
      .options = options, .data = 2, .model = 2, .bias = true, .rows_first = true, .bad_rank = -1};
}

shard_run *trained_run(const shard_run *how) {
  shard_run *x = new_run(how);
  ng_status each[RANKS];
  if (train(x, each) == NG_OK) return x;
  for (int32_t r = 0; r < x->data * x->model; r++)
    print_message("rank %d: %d %s\n", r, each[r], x->message[r]);
  fail_msg("%s, data %d model %d", x->options, x->data, x->model);
  return NULL;
}
