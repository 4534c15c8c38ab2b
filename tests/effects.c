/* effects.c: see effects.h. */
#include "effects.h"

#include "draw.h"
#include "ranks.h"

/* ---- the model and its data ------------------------------------------------------------------*/

const struct effects_layer layer[LAYERS] = {
    {"conv", NG_CONV2D, 4, 18, 4, 2, 4, 5, 4, 0},
    {"fc1", NG_LINEAR, 5, 6, 5, 6, 5, 3, 1, 76},
    {"fc2", NG_LINEAR, 4, 5, 0, 5, 4, 3, 1, 111},
    {"bn", NG_NORM, 1, 2, 2, 2, 2, 2, 1, 131},
};

/* A number in [-1, 1) for every place: the finaliser of SplitMix64. */
static float draw_number(int64_t step, int64_t rank, int64_t call, int64_t what, int64_t i) {
  uint64_t z = (uint64_t)((((step * 8 + rank) * 8 + call) * 16 + what) * 4096 + i) + 1;
  z = rng_mix(z * UINT64_C(0x9e3779b97f4a7c15));
  return (float)((double)(z >> 40) / (1 << 23) - 1.0);
}

const run usual = {.ranks = 1, .own_layer = FC1, .step = "gradient"};

#define TRY(call)                                                                                  \
  do {                                                                                             \
    const ng_status status_ = (call);                                                              \
    if (status_ < 0 || status_ == NG_SKIPPED) return status_;                                      \
    if (status_ > r->st) r->st = status_;                                                          \
  } while (0)

static ng_status add_layers(const run *what, struct outcome *r, ng_precond *p) {
  for (int32_t i = 0; i < LAYERS; i++) {
    ng_layer l = layer_of(layer[i].kind, layer[i].name, layer[i].in, i == BN ? 0 : layer[i].out);
    int32_t index;
    l.bias = layer[i].bias > 0;
    if (i == CONV) {
      l.kernel[0] = l.kernel[1] = 3;
      l.padding[0] = l.padding[1] = 1;
      l.image[0] = layer[i].high;
      l.image[1] = layer[i].wide;
    }
    if (i == what->own_layer) l.options = what->layer_options;
    TRY(ng_add_layer(p, &l, &index));
  }
  return NG_OK;
}

/* Bind all layers; `gradient` and `weight` hold the arrays of all layers. */
static ng_status bind_arrays(struct outcome *r, fixture *f, float *gradient, float *weight) {
  for (int32_t i = 0; i < LAYERS; i++) {
    for (int k = 0; k < 1 + (layer[i].bias > 0); k++) {
      const int64_t rows = k == 0 ? layer[i].rows : 1;
      const int64_t cols = k == 0 ? layer[i].cols : layer[i].bias;
      const int64_t at = layer[i].offset + (k == 0 ? 0 : layer[i].rows * layer[i].cols);
      const plane g = plane_of(gradient + at, rows, cols, NG_F32);
      const plane w = plane_of(weight + at, rows, cols, NG_F32);
      TRY(fixture_bind(f, i, k == 0 ? NG_WEIGHT : NG_BIAS, &g, &w));
    }
  }
  return NG_OK;
}

/* Observe one of the two micro-batches of a step: 4 samples, then 2. */
static ng_status observe_batch(struct outcome *r, fixture *f, int32_t rank, int32_t step,
                               int32_t call) {
  float seen[2][MOST_OBSERVED];
  const int64_t B = call == 0 ? 4 : 2;
  TRY(fixture_begin(f, B));
  r->quantity[WANTED] += ng_wants(f->p, FC1);
  for (int32_t i = 0; i < LAYERS; i++) {
    if (ng_wants(f->p, i) == 0) continue;
    for (int k = 0; k < 2; k++) {
      float *a = seen[k];
      const int64_t columns = k == 0 ? layer[i].in : layer[i].out, high = layer[i].high;
      const int64_t n = B * columns * high * layer[i].wide;
      for (int64_t j = 0; j < n; j++)
        a[j] = draw_number(step, rank, call, 2 * i + k, j) / (k == 0 ? 1 : (float)B);
      const plane v = layer[i].kind == NG_LINEAR
                          ? plane_of(a, B * high, columns, NG_F32)
                          : plane_images(a, PLANE_NCHW, B, columns, high, layer[i].wide, NG_F32);
      TRY(k == 0 ? plane_observe_input(f->p, i, &v, i == BN ? NG_BORROW : NG_COPY)
                 : plane_observe_output_grad(f->p, i, &v, NG_COPY));
    }
  }
  return NG_OK;
}

/* Call the step that `what->step` names, which fails if the option `update` has another value. */
static ng_status take_step(const run *what, ng_precond *p, int32_t step) {
  const ng_sgd s = fixture_sgd(1, 0.9);
  ng_adamw a;
  ng_adamw_init(&a, sizeof a);
  a.lr = 1;
  if (strcmp(what->step, "sgd") == 0) return ng_step_sgd(p, &s, 1);
  if (strcmp(what->step, "adamw") == 0) return ng_step_adamw(p, &a, 1);
  if (step == STEPS - 1 && what->last_lr > 0) return ng_step(p, what->last_lr);
  return ng_step(p, what->lr > 0 ? what->lr : 1.0);
}

void fill_gradient(int32_t step, float *D) {
  for (int64_t i = 0; i < TOTAL; i++)
    D[i] = draw_number(step, 7, 0, 15, i);
}

static ng_status read_reports(struct outcome *r, ng_precond *p) {
  ng_report report = {.struct_size = sizeof report};
  TRY(ng_report_read(p, &report));
  r->quantity[SUMS] = report.sums;
  r->quantity[FACTORS] = report.factors;
  r->quantity[RESULTS] = report.results;
  r->quantity[MOMENTS] = report.moments;
  r->quantity[SCALED] = report.scaled;
  for (int32_t i = 0; i < report.stations; i++) {
    ng_station_report s = {.struct_size = sizeof s};
    TRY(ng_report_station(p, i, &s));
    if (strcmp(s.name, "statistics") != 0) continue;
    r->quantity[SENT] = s.total_bytes;
    r->quantity[MESSAGES] = s.total_messages;
  }
  return NG_OK;
}

static ng_status run_steps(const run *what, struct outcome *r, fixture *f, int32_t rank) {
  float gradient[TOTAL], weight[TOTAL];
  for (int64_t i = 0; i < TOTAL; i++) {
    const bool zero = what->only_fc1 && (i < layer[FC1].offset || i >= layer[FC2].offset);
    weight[i] = zero ? 0 : draw_number(0, 6, 0, 14, i);
  }
  TRY(add_layers(what, r, f->p));
  TRY(bind_arrays(r, f, gradient, weight));
  TRY(ng_ready(f->p));
  for (int32_t step = 0; step < STEPS; step++) {
    if (step == 1 && what->set != NULL) TRY(ng_set(f->p, what->set, what->value));
    for (int32_t call = 0; call < 2; call++)
      TRY(observe_batch(r, f, rank, step, call));
    fill_gradient(step, gradient);
    TRY(take_step(what, f->p, step));
    ng_report report = {.struct_size = sizeof report};
    TRY(ng_report_read(f->p, &report));
    r->nu[step] = report.clip;
    memcpy(r->P[step], gradient, sizeof gradient);
    memcpy(r->weight[step], weight, sizeof weight);
  }
  return read_reports(r, f->p);
}

static ng_status run_rank(int32_t rank, ng_transport *t, void *arg) {
  run *what = arg;
  struct outcome *r = &what->rank[rank];
  const fixture_how how = {.threads = 1, .transport = t};
  fixture f;
  memset(r, 0, sizeof *r);
  ng_status st = fixture_open(&f, what->settings, &how);
  if (st == NG_OK) st = run_steps(what, r, &f, rank);
  if (st < 0) {
    (void)snprintf(r->message, sizeof r->message, "%s",
                   f.p == NULL ? f.message : ng_last_error(f.ctx));
    r->st = st;
  }
  fixture_close(&f);
  return st;
}

ng_status try_run(run *what) {
  if (what->ranks > 1) return ranks_run(what->ranks, run_rank, what, NULL);
  const ng_status st = run_rank(0, NULL, what);
  return st < 0 ? st : what->rank[0].st;
}

run must_run(run what) {
  const ng_status st = try_run(&what);
  if (st != NG_OK) fail_msg("%s: %s: %s", what.settings, ng_status_name(st), what.rank[0].message);
  for (int32_t r = 1; r < what.ranks; r++) {
    assert_memory_equal(what.rank[r].P, what.rank[0].P, sizeof what.rank[0].P);
    assert_memory_equal(what.rank[r].weight, what.rank[0].weight, sizeof what.rank[0].weight);
  }
  return what;
}

run must_run_with(const char *settings) {
  run r = usual;
  r.settings = settings;
  return must_run(r);
}

/* ---- differences -----------------------------------------------------------------------------*/

static int64_t end_of_layer(int32_t i) { return i + 1 < LAYERS ? layer[i + 1].offset : TOTAL; }

double layer_gap(const run *a, const run *b, int32_t step, int32_t i) {
  double gap = 0, most = 0;
  for (int64_t k = layer[i].offset; k < end_of_layer(i); k++) {
    const double x = (double)a->rank[0].P[step][k], y = (double)b->rank[0].P[step][k];
    if (!isfinite(x) || !isfinite(y)) return INFINITY;
    gap = fmax(gap, fabs(x - y));
    most = fmax(most, fabs(x));
  }
  return most > 0 ? gap / most : gap;
}

double step_gap(const run *a, const run *b, int32_t step) {
  double gap = 0;
  for (int32_t i = 0; i < LAYERS; i++)
    gap = fmax(gap, layer_gap(a, b, step, i));
  return gap;
}
