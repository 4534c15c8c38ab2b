/* bound.c: see bound.h. */
#include "unit_test.h"

#include <string.h>

#include "bound.h"
#include "draw.h"

const int64_t count[ENTRIES] = {MID * IN, OUT *MID, 5};
static const int64_t rows[ENTRIES] = {MID, OUT, 1};

ng_array entry_array(float *x, int32_t k) {
  return ng_array_matrix(x, rows[k], count[k] / rows[k], NG_F32);
}

static ng_status add_entries(ng_precond *p) {
  ng_status st = ng_add_linear(p, "fc1", IN, MID, 0, NULL);
  if (st == NG_OK) st = ng_add_linear(p, "fc2", MID, OUT, 0, NULL);
  return st == NG_OK ? ng_add_tensor(p, "gamma", 5, NULL) : st;
}

ng_status bind_entry(model *m, int32_t k, float *grad, float *weight, ng_hold hold) {
  const ng_array g = entry_array(grad, k), w = entry_array(weight, k);
  const ng_binding b = {k, NG_WEIGHT, &g, weight == NULL ? NULL : &w, hold};
  return ng_bind(m->f.p, &b, 1);
}

ng_status open_model(model *m, const char *options, const ng_transport *t) {
  memset(m, 0, sizeof *m);
  ng_status st = fixture_open(&m->f, options, &(fixture_how){.threads = 1, .transport = t});
  if (st == NG_OK) st = add_entries(m->f.p);
  for (int32_t k = 0; k < ENTRIES && st == NG_OK; k++) {
    for (int64_t i = 0; i < count[k]; i++) {
      m->weight[k][i] = draw_at(k, i);
    }
    st = bind_entry(m, k, m->grad[k], m->weight[k], NG_HOLD);
  }
  return st == NG_OK ? ng_ready(m->f.p) : st;
}

void draw_gradients(model *m, int32_t t) {
  for (int32_t k = 0; k < ENTRIES; k++) {
    for (int64_t i = 0; i < count[k]; i++) {
      m->grad[k][i] = draw_at(100 * (t + 1) + k, i);
    }
  }
}

ng_status observe_layers(model *m, int32_t t, unsigned which) {
  static const int64_t in[2] = {IN, MID}, out[2] = {MID, OUT};
  ng_status st = fixture_begin(&m->f, B);
  for (int32_t k = 0; k < 2 && st == NG_OK; k++) {
    float a[B * MID], g[B * MID];
    for (int64_t i = 0; i < B * MID; i++) {
      a[i] = draw_at(1000 * (t + 1) + k, i);
      g[i] = draw_at(1000 * (t + 1) + 10 + k, i);
    }
    const plane x = plane_of(a, B, in[k], NG_F32), y = plane_of(g, B, out[k], NG_F32);
    if ((which >> k & 1U) != 0) st = fixture_observe(&m->f, k, &x, &y);
  }
  return st;
}

ng_status step_sgd(model *m) {
  const ng_sgd s = fixture_sgd(0.1, 0.9);
  return fixture_step(&m->f, &s);
}
