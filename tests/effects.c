/* effects.c: see effects.h. */
#include "effects.h"

#include "draw.h"
#include "ranks.h"

/* ---- the model and its data ------------------------------------------------------------------*/

const struct effects_layer layer[LAYERS] = {
    {"conv", 4, 18, 1, 40, 80, 40, 80, 1, 0},
    {"fc1", 5, 6, 1, 18, 15, 6, 5, 3, 76},
    {"fc2", 4, 5, 0, 15, 12, 5, 4, 3, 111},
};

/* A number in [-1, 1) for every place: the finaliser of SplitMix64. */
float data(int64_t step, int64_t rank, int64_t call, int64_t what, int64_t i) {
  uint64_t z = (uint64_t)((((step * 8 + rank) * 8 + call) * 16 + what) * 4096 + i) + 1;
  z = rng_mix(z * UINT64_C(0x9e3779b97f4a7c15));
  return (float)((double)(z >> 40) / (1 << 23) - 1.0);
}

const run usual = {
    .ranks = 1, .steps = 3, .calls = 2, .samples = {4, 2}, .step = "gradient", .odd_rank = -1};

#define TRY(call)                                                                                  \
  do {                                                                                             \
    const ng_status status_ = (call);                                                              \
    if (status_ < 0 || status_ == NG_SKIPPED) return status_;                                      \
    if (status_ > r->st) r->st = status_;                                                          \
  } while (0)

static ng_status describe(const run *what, struct outcome *r, ng_precond *p) {
  for (int32_t i = 0; i < LAYERS; i++) {
    ng_layer l;
    int32_t index;
    ng_layer_init(&l, i == CONV ? NG_CONV2D : NG_LINEAR, sizeof l);
    l.name = layer[i].name;
    l.in = i == CONV ? 2 : layer[i].cols;
    l.out = layer[i].rows;
    l.bias = (int32_t)layer[i].bias;
    if (i == CONV) {
      l.kernel[0] = l.kernel[1] = 3;
      l.padding[0] = l.padding[1] = 1;
      l.image[0] = 5;
      l.image[1] = 4;
    }
    if (i == FC1) l.options = what->layer_options;
    TRY(ng_add_layer(p, &l, &index));
  }
  return NG_OK;
}

/* Gradients and weights of all layers are one array each. */
static ng_status bind(struct outcome *r, fixture *f, float *gradient, float *weight) {
  for (int32_t i = 0; i < LAYERS; i++) {
    const int64_t n = layer[i].rows * layer[i].cols;
    for (int k = 0; k < 1 + (int)layer[i].bias; k++) {
      const ng_param which = k == 0 ? NG_WEIGHT : NG_BIAS;
      const int64_t rows = k == 0 ? layer[i].rows : 1,
                    cols = k == 0 ? layer[i].cols : layer[i].rows;
      const int64_t at = layer[i].at + (k == 0 ? 0 : n);
      const plane g = plane_of(gradient + at, rows, cols, NG_F32);
      const plane w = plane_of(weight + at, rows, cols, NG_F32);
      TRY(fixture_bind(f, i, which, &g, &w));
    }
  }
  return NG_OK;
}

static ng_status show(const run *what, struct outcome *r, fixture *f, int32_t rank, int32_t step,
                      int32_t call) {
  float a[SEEN_MAX];
  const int64_t B = what->samples[call], other = rank == what->odd_rank ? 4 : rank;
  TRY(fixture_begin(f, B));
  r->wanted[step] = ng_wants(f->p, FC1);
  for (int32_t i = 0; i < LAYERS; i++) {
    if (ng_wants(f->p, i) == 0) continue;
    for (int k = 0; k < 2; k++) {
      const int64_t n = B * (k == 0 ? layer[i].in : layer[i].out);
      for (int64_t j = 0; j < n; j++) {
        a[j] = data(step, other, call, 2 * i + k, j) / (k == 0 ? 1 : (float)B);
      }
      const int64_t seen = k == 0 ? layer[i].seen_in : layer[i].seen_out;
      const plane v = i == CONV ? plane_images(a, PLANE_NCHW, B, seen / 20, 5, 4, NG_F32)
                                : plane_of(a, B * layer[i].seen_rows, seen, NG_F32);
      TRY(fixture_observe(f, i, k == 0 ? &v : NULL, k == 0 ? NULL : &v));
    }
  }
  return NG_OK;
}

/* The step that the run names, and not the option, so that they can differ. */
static ng_status one_step(const run *what, ng_precond *p, int32_t step) {
  const ng_sgd s = fixture_sgd(1, 0.9);
  ng_adamw a;
  ng_adamw_init(&a, sizeof a);
  a.lr = 1;
  if (strcmp(what->step, "sgd") == 0) return ng_step_sgd(p, &s, 1);
  if (strcmp(what->step, "adamw") == 0) return ng_step_adamw(p, &a, 1);
  if (step == what->steps - 1 && what->last_lr > 0) return ng_step(p, what->last_lr);
  return ng_step(p, what->lr > 0 ? what->lr : 1.0);
}

void gradient_of(int32_t step, float *D) {
  for (int64_t i = 0; i < TOTAL; i++) {
    D[i] = data(step, 7, 0, 15, i);
  }
}

static ng_status look(struct outcome *r, ng_precond *p) {
  ng_report held = {.struct_size = sizeof held};
  TRY(ng_report_read(p, &held));
  r->sums = held.sums;
  r->factors = held.factors;
  r->results = held.results;
  r->moments = held.moments;
  for (int32_t i = 0; i < ng_explain_count(p); i++) {
    ng_explain_row e = {.struct_size = sizeof e};
    TRY(ng_explain(p, i, &e));
    r->covered[e.index] = e.covered;
    r->owner[e.index] = e.owner;
    (void)snprintf(r->why[e.index], sizeof r->why[0], "%s", e.why);
  }
  ng_report report = {.struct_size = sizeof report};
  TRY(ng_report_read(p, &report));
  for (int32_t i = 0; i < report.stations; i++) {
    ng_station_report s = {.struct_size = sizeof s};
    TRY(ng_report_station(p, i, &s));
    if (strcmp(s.name, "statistics") == 0) {
      r->sums_bytes = s.total_bytes;
      r->sums_messages = s.total_messages;
    }
    if (strcmp(s.name, "share") == 0) r->share_bytes = s.total_bytes;
    if (strcmp(s.name, "deliver") == 0) r->deliver_bytes = s.total_bytes;
  }
  return NG_OK;
}

static ng_status play_on(const run *what, struct outcome *r, fixture *f, int32_t rank) {
  float gradient[TOTAL], weight[TOTAL];
  for (int64_t i = 0; i < TOTAL; i++) {
    const bool other = what->only_fc1 && (i < layer[FC1].at || i >= layer[FC2].at);
    weight[i] = other ? 0 : data(0, 6, 0, 14, i);
  }
  TRY(describe(what, r, f->p));
  TRY(bind(r, f, gradient, weight));
  TRY(ng_ready(f->p));
  for (int32_t step = 0; step < what->steps; step++) {
    if (step == 1 && what->set_option != NULL) TRY(ng_set(f->p, what->set_option, what->set_value));
    for (int32_t call = 0; call < what->calls; call++) {
      TRY(show(what, r, f, rank, step, call));
    }
    gradient_of(step, gradient);
    TRY(one_step(what, f->p, step));
    ng_report report = {.struct_size = sizeof report};
    TRY(ng_report_read(f->p, &report));
    r->nu[step] = report.clip;
    memcpy(r->P[step], gradient, sizeof gradient);
    memcpy(r->weight[step], weight, sizeof weight);
  }
  return look(r, f->p);
}

static ng_status play_rank(int32_t rank, ng_transport *t, void *arg) {
  run *what = arg;
  struct outcome *r = &what->rank[rank];
  const fixture_how how = {.threads = 1, .transport = t};
  fixture f;
  r->st = NG_OK;
  ng_status st = fixture_open(&f, what->settings == NULL ? "" : what->settings, &how);
  if (st == NG_OK) st = play_on(what, r, &f, rank);
  if (st < 0) {
    (void)snprintf(r->message, sizeof r->message, "%s",
                   f.ctx == NULL ? f.message : ng_last_error(f.ctx));
    r->st = st;
  }
  fixture_close(&f);
  return st;
}

ng_status try_play(run *what) {
  if (what->ranks == 1) {
    const ng_status st = play_rank(0, NULL, what);
    return st < 0 ? st : what->rank[0].st;
  }
  return ranks_run(what->ranks, play_rank, what, NULL);
}

run play(run what) {
  const ng_status st = try_play(&what);
  if (st != NG_OK) {
    print_error("%s: %s: %s\n", what.settings == NULL ? "" : what.settings, ng_status_name(st),
                what.rank[0].message);
  }
  assert_int_equal(st, NG_OK);
  return what;
}

run with(const char *settings) {
  run r = usual;
  r.settings = settings;
  return play(r);
}

/* ---- differences -----------------------------------------------------------------------------*/

int64_t end_of(int32_t i) { return i + 1 < LAYERS ? layer[i + 1].at : TOTAL; }

double gap_of(const run *a, const run *b, int32_t step, int32_t i) {
  double gap = 0, most = 0;
  for (int64_t k = layer[i].at; k < end_of(i); k++) {
    const double x = (double)a->rank[0].P[step][k], y = (double)b->rank[0].P[step][k];
    if (!isfinite(x) || !isfinite(y)) return INFINITY;
    gap = fmax(gap, fabs(x - y));
    most = fmax(most, fabs(x));
  }
  return most > 0 ? gap / most : gap;
}

double gap_at(const run *a, const run *b, int32_t step) {
  double gap = 0;
  for (int32_t i = 0; i < LAYERS; i++) {
    gap = fmax(gap, gap_of(a, b, step, i));
  }
  return gap;
}

double gap(const run *a, const run *b) {
  double most = 0;
  for (int32_t step = 0; step < a->steps; step++) {
    most = fmax(most, gap_at(a, b, step));
  }
  return most;
}

void assert_all_differ(const char *first, const char *second, const char *third) {
  const run a = with(first), b = with(second), c = with(third);
  for (int32_t step = 0; step < usual.steps; step++) {
    assert_differ(gap_at(&a, &b, step));
    assert_differ(gap_at(&b, &c, step));
    assert_differ(gap_at(&a, &c, step));
  }
}

run on_two(const char *settings, int32_t odd_rank) {
  run r = usual;
  r.ranks = 2;
  r.settings = settings;
  r.odd_rank = odd_rank;
  r = play(r);
  assert_memory_equal(r.rank[0].P, r.rank[1].P, sizeof r.rank[0].P); /* ranks stay together */
  return r;
}
