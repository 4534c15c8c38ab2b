/* shard_scene.c: see shard_scene.h. */
#include "shard_scene.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"
#include "tap.h"

const scene_layer layer[LAYERS] = {{"up", 0, 1, 5, 7, 0},
                                   {"down", 1, 1, 7, 6, 2},
                                   {"bare", 0, 0, 6, 8, 0},
                                   {"head", -1, 1, 8, 3, 0}};

int32_t group_of(const scene *x, int32_t rank) {
  return x->across ? rank % x->data : rank / x->model;
}
static int32_t member_of(const scene *x, int32_t rank) {
  return x->across ? rank / x->data : rank % x->model;
}

/* Parts of n: 1, 2, 1, 2, ... times n / 3m and what is left over at the end, at least 1 each. */
static int64_t begins(const scene *x, int64_t n, int32_t i) {
  const int32_t of = x->model;
  int64_t at = 0;
  if (i == of) return n;
  if (x->even) return n / of * i + (i < n % of ? i : n % of);
  for (int32_t k = 0; k < i; k++) {
    at += k % 2 == 0 ? 1 : 2;
  }
  return at;
}

int64_t bias_of(const scene *x, int i) { return x->bias && layer[i].bias; }
int64_t samples_of(int32_t group, int64_t call) { return 3 + group + call; }
int64_t positions_of(int i) { return layer[i].positions > 0 ? layer[i].positions : 1; }
double seen(int32_t group, int64_t t, int64_t call, int i, bool grad, int64_t k) {
  return rng_place(t * MICRO + call, group * 8 + i, grad, k);
}

/* ---- a rank ----------------------------------------------------------------------------------*/

part part_of(const scene *x, int32_t rank, int i) {
  const int32_t m = member_of(x, rank);
  const int64_t further = x->skewed && group_of(x, rank) > 0;
  const int64_t all = layer[i].axis == 0 ? layer[i].out : layer[i].in;
  const int64_t from = begins(x, all, m) + (m > 0 ? further : 0);
  const int64_t to = begins(x, all, m + 1) + (m + 1 < x->model ? further : 0);
  part p = {layer[i].in, layer[i].out, 0, 0};
  if (layer[i].axis == 0) {
    p.row = from;
    p.out = to - from;
  } else if (layer[i].axis == 1) {
    p.col = from;
    p.in = to - from;
  }
  return p;
}

typedef struct rank_life {
  scene *x;
  allocator memory;
  int32_t rank, index[LAYERS];
  bool told; /* of what it did wrong */
  fixture f;
  ng_transport model;
  float grad[LAYERS][ROOM], weight[LAYERS][ROOM];
} rank_life;

static bool is_uncut(const rank_life *l) {
  return l->x->uncut || (l->x->without >> l->rank & 1) != 0;
}

static ng_status add(rank_life *l, int i) {
  const part p = part_of(l->x, l->rank, i);
  ng_layer d;
  ng_layer_init(&d, NG_LINEAR, sizeof d);
  d.name = layer[i].name;
  d.in = p.in;
  d.out = p.out;
  d.bias = (int32_t)bias_of(l->x, i);
  d.positions = layer[i].positions;
  d.order = l->x->rows_first ? NG_SAMPLES_FIRST : NG_POSITIONS_FIRST;
  d.shard_axis = is_uncut(l) ? -1 : layer[i].axis;
  ng_status st = ng_add_layer(l->f.p, &d, &l->index[i]);
  plane g = plane_of(l->grad[i], p.out, p.in, NG_F32),
        w = plane_of(l->weight[i], p.out, p.in, NG_F32);
  if (st == NG_OK) st = fixture_bind(&l->f, l->index[i], NG_WEIGHT, &g, &w);
  if (st != NG_OK || d.bias == 0) return st;
  g = plane_of(l->grad[i] + p.out * p.in, 1, p.out, NG_F32);
  w = plane_of(l->weight[i] + p.out * p.in, 1, p.out, NG_F32);
  return fixture_bind(&l->f, l->index[i], NG_BIAS, &g, &w);
}

double initial(int i, int64_t k) { return rng_place(-1, i, 0, k); }

void cut(const scene *x, int32_t rank, int i, const double *whole, float *to) {
  const part p = part_of(x, rank, i);
  const int64_t cols = layer[i].in + bias_of(x, i);
  for (int64_t r = 0; r < p.out; r++) {
    for (int64_t c = 0; c < p.in; c++) {
      to[r * p.in + c] = (float)whole[(p.row + r) * cols + p.col + c];
    }
    if (bias_of(x, i)) to[p.out * p.in + r] = (float)whole[(p.row + r) * cols + cols - 1];
  }
}

void put_part(const scene *x, int32_t rank, int i, const float *from, double *whole) {
  const part p = part_of(x, rank, i);
  const int64_t cols = layer[i].in + bias_of(x, i);
  for (int64_t r = 0; r < p.out; r++) {
    for (int64_t c = 0; c < p.in; c++) {
      whole[(p.row + r) * cols + p.col + c] = (double)from[r * p.in + c];
    }
    if (bias_of(x, i)) whole[(p.row + r) * cols + cols - 1] = (double)from[p.out * p.in + r];
  }
}

/* What it does wrong, in the first call of step 1, stands behind a '|' in the options. */
static bool is_wrong(const rank_life *l, int64_t t, int64_t call, const char *how) {
  return l->x->wrong == l->rank && !l->told && t == 1 && call == 0 &&
         strstr(l->x->options, how) != NULL;
}

static int64_t shown_of(const rank_life *l, int64_t t, int64_t call) {
  return samples_of(group_of(l->x, l->rank), call) + is_wrong(l, t, call, "|rows");
}

static ng_status show(rank_life *l, int64_t t, int64_t call, int i, bool grad) {
  const scene *x = l->x;
  const part p = part_of(x, l->rank, i);
  const int32_t g = group_of(x, l->rank);
  const int64_t B = shown_of(l, t, call), S = positions_of(i);
  const int64_t all = grad ? layer[i].out : layer[i].in, n = grad ? p.out : p.in;
  const int64_t from = grad ? p.row : p.col;
  float a[SEEN];
  for (int64_t b = 0; b < B; b++) {
    for (int64_t s = 0; s < S; s++) {
      const int64_t row = x->rows_first ? b * S + s : s * B + b;
      for (int64_t k = 0; k < n; k++) {
        a[row * n + k] = (float)seen(g, t, call, i, grad, (b * S + s) * all + from + k);
      }
    }
  }
  plane v = plane_of(a, B * S, n, NG_F32);
  if (is_wrong(l, t, call, "|nan") && i == 1 && !grad) a[0] = NAN;
  if (is_wrong(l, t, call, "|shape") && i == 0 && grad) v = plane_of(a, B * S, n + 1, NG_F32);
  return fixture_observe(&l->f, l->index[i], grad ? NULL : &v, grad ? &v : NULL);
}

static ng_status observe(rank_life *l, int64_t t) {
  ng_status worst = NG_OK;
  for (int64_t call = 0; call < MICRO; call++) {
    ng_batch b;
    ng_batch_init(&b, sizeof b);
    b.samples = shown_of(l, t, call);
    b.last = l->x->last && call == MICRO - 1;
    ng_status st = ng_begin(l->f.p, &b);
    if (st != NG_OK) return st;
    for (int k = 0; k < 2 * LAYERS; k++) {
      const bool grad = k >= LAYERS;
      st = show(l, t, call, grad ? 2 * LAYERS - 1 - k : k, grad);
      if (st < NG_OK) return st;
      if (st > worst) worst = st;
    }
  }
  return worst;
}

static ng_status live(rank_life *l, ng_transport *world) {
  scene *x = l->x;
  ng_status st = ranks_grid_transport(&x->grid, l->rank, !x->across, &l->model);
  if (st != NG_OK) return st;
  const bool taps = x->fail[0] + x->fail[1] > 0;
  const bool me = l->rank == x->wrong;
  /* Without start and wait: everything is done when it is posted. */
  tap t[2] = {{.inner = *world, .fail_at = me ? x->fail[0] : 0},
              {.inner = l->model, .fail_at = me ? x->fail[1] : 0}};
  const ng_transport with[2] = {tapped(&t[0], NO_START), tapped(&t[1], NO_START)};
  ng_context_config c = allocator_config(&l->memory);
  c.threads = 1;
  c.model_group = is_uncut(l) ? NULL : taps ? &with[1] : &l->model;
  char options[256];
  (void)snprintf(options, sizeof options, "%.*s", (int)strcspn(x->options, "|"), x->options);
  st = fixture_open(&l->f, options,
                    &(fixture_how){.config = &c, .transport = taps ? &with[0] : world});
  for (int i = 0; i < LAYERS && st == NG_OK; i++) {
    double w[ROOM];
    for (int64_t k = 0; k < ROOM; k++)
      w[k] = x->start != NULL ? x->start[i][k] : initial(i, k);
    cut(l->x, l->rank, i, w, l->weight[i]);
    st = add(l, i);
  }
  if (st == NG_OK) st = ng_ready(l->f.p);
  if (st == NG_OK && x->load != NULL) st = ng_load(l->f.p, x->load);
  if (st == NG_OK && x->again != NULL) st = ng_save(l->f.p, x->again);
  if (me && x->starve > 0) l->memory.fail_at = l->memory.calls + x->starve;
  const bool sgd = strstr(x->options, "=sgd") != NULL,
             fused = sgd || strstr(x->options, "=adamw") != NULL;
  for (int64_t s = x->first; s < STEPS && st >= NG_OK; s++) {
    ng_status seen_as = observe(l, s);
    x->shown[l->rank][s] = seen_as;
    if (seen_as < NG_OK && taps) return seen_as;
    if (seen_as < NG_OK) { /* told, and shown again */
      x->status[l->rank][s] = seen_as;
      (void)snprintf(x->why[l->rank], sizeof x->why[0], "%s", ng_last_error(l->f.ctx));
      st = ng_reset_batch(l->f.p);
      if (st != NG_OK) return st;
      l->told = x->starve == 0;
      seen_as = observe(l, s);
      if (seen_as != NG_OK) return seen_as;
    }
    for (int i = 0; i < LAYERS; i++)
      cut(l->x, l->rank, i, x->D[s][i], l->grad[i]);
    ng_sgd how = fixture_sgd(0.1, 0.9);
    how.weight_decay = sgd ? 0.01 : 0.0;
    st = fixture_step(&l->f, &how);
    if (st >= NG_OK && s == x->first + 1) {
      ng_status saved = x->save != NULL ? ng_save(l->f.p, x->save) : NG_OK;
      if (saved == NG_OK && x->parts != NULL) saved = ng_save_parts(l->f.p, x->parts);
      if (saved != NG_OK) return saved;
    }
    if (x->status[l->rank][s] == NG_OK) x->status[l->rank][s] = st;
    ng_report r = {.struct_size = sizeof r};
    if (ng_report_read(l->f.p, &r) == NG_OK) x->nu[l->rank][s] = r.clip;
    memcpy(x->out[l->rank][s], fused ? l->weight : l->grad, sizeof l->grad);
  }
  if (st >= NG_OK && x->look != NULL) st = x->look(l->f.p, l->rank, x->look_arg);
  return st;
}

static ng_status run_rank(int32_t rank, ng_transport *t, void *arg) {
  scene *x = arg;
  rank_life l;
  memset(&l, 0, sizeof l);
  l.x = x;
  l.rank = rank;
  const ng_status st = live(&l, t);
  if (rank == x->wrong && x->starve > 0) x->starved = l.memory.calls >= l.memory.fail_at;
  if (x->why[rank][0] == 0) {
    (void)snprintf(x->why[rank], sizeof x->why[0], "%s",
                   l.f.message[0] != 0 ? l.f.message
                   : l.f.ctx != NULL   ? ng_last_error(l.f.ctx)
                                       : "");
  }
  fixture_close(&l.f);
  ranks_grid_release(&l.model);
  if (l.memory.held == 0) return st;
  (void)snprintf(x->why[rank], sizeof x->why[0], "%lld bytes were not given back",
                 (long long)l.memory.held);
  return NG_ERR_STATE;
}

ng_status play(scene *x, ng_status each[RANKS]) {
  const int32_t W = x->data * x->model;
  for (int s = 0; s < STEPS; s++) {
    for (int i = 0; i < LAYERS; i++) {
      for (int64_t k = 0; k < ROOM; k++)
        x->D[s][i][k] = rng_place(s, -2, i, k);
    }
  }
  const int32_t cols = x->across ? x->data : x->model;
  if (ranks_grid_open(&x->grid, W / cols, cols) != NG_OK) return NG_ERR_NOMEM;
  const ng_status st = ranks_run(W, run_rank, x, each);
  ranks_grid_close(&x->grid);
  for (int32_t r = 0; r < W; r++) {
    ranks_show(r, x->out[r], sizeof x->out[r]);
    ranks_show(r, x->nu[r], sizeof x->nu[r]);
  }
  return st;
}

bool has_ranks(int32_t ranks) {
#if defined(NG_TEST_MPI)
  return ranks <= ranks_there();
#else
  return ranks <= RANKS;
#endif
}

scene *begin(const scene *how) {
  scene *x = malloc(sizeof *x);
  if (x != NULL) *x = *how;
  return x;
}

scene usual_scene(const char *options) {
  return (scene){
      .options = options, .data = 2, .model = 2, .bias = true, .rows_first = true, .wrong = -1};
}

scene *played(const scene *how) {
  scene *x = begin(how);
  ng_status each[RANKS];
  if (play(x, each) == NG_OK) return x;
  for (int32_t r = 0; r < x->data * x->model; r++)
    print_message("rank %d: %d %s\n", r, each[r], x->why[r]);
  fail_msg("%s, data %d model %d", x->options, x->data, x->model);
  return NULL;
}
