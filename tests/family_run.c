/* family_run.c: see family_run.h. */
#include "family_run.h"
#include "draw.h"
#include "fixture.h"
#include "ranks.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 4, SIDE = 5, MOST_OBSERVED = SAMPLES * 6 * SIDE * SIDE };

static void draw_values(float *x, int64_t n, int32_t step, int32_t key) {
  rng r = {test_seed() ^ (uint64_t)(step * 100 + key)};
  rng_fill(&r, x, n);
}

static int64_t weight_count(const family_entry *e) {
  return e->in * (e->out == 0 ? 1 : e->out) * (e->is_conv ? 9 : 1);
}

int64_t family_gradient_count(const family_model *m, int32_t i) {
  return weight_count(&m->entry[i]) + (m->entry[i].bias ? m->entry[i].out : 0);
}

void family_draw_gradients(const family_model *m, int32_t step, int32_t i, float *x) {
  draw_values(x, family_gradient_count(m, i), step, i);
  if (m->adjust != NULL) m->adjust(i, x);
}

static ng_status add_entry(ng_precond *p, const family_entry *e) {
  int32_t index;
  if (e->out == 0) return ng_add_tensor(p, e->name, e->in, &index);
  if (e->is_conv)
    return plane_add_conv2d(p, e->name, e->in, e->out, 3, 1, 1, SIDE, SIDE, e->bias, &index);
  return ng_add_linear(p, e->name, e->in, e->out, e->bias, &index);
}

static ng_status bind_gradient(ng_precond *p, int32_t i, const family_entry *e, float *grad) {
  const int64_t rows = e->out == 0 ? 1 : e->out;
  const plane w = plane_of(grad, rows, weight_count(e) / rows, NG_F32);
  const plane b = plane_of(grad + weight_count(e), 1, e->out, NG_F32);
  const ng_status st = plane_bind_grad(p, i, NG_WEIGHT, &w);
  return st == NG_OK && e->bias ? plane_bind_grad(p, i, NG_BIAS, &b) : st;
}

static ng_status observe_entry(fixture *f, int32_t i, const family_entry *e, int32_t step) {
  float a[MOST_OBSERVED], g[MOST_OBSERVED];
  const int64_t pixels = e->is_conv ? SIDE * SIDE : 1;
  if (e->out == 0 || e->silent) return NG_OK;
  draw_values(a, SAMPLES * e->in * pixels, step, 20 + i);
  draw_values(g, SAMPLES * e->out * pixels, step, 40 + i);
  plane in = plane_of(a, SAMPLES, e->in, NG_F32), out = plane_of(g, SAMPLES, e->out, NG_F32);
  if (e->is_conv) {
    in = plane_images(a, PLANE_NCHW, SAMPLES, e->in, SIDE, SIDE, NG_F32);
    out = plane_images(g, PLANE_NCHW, SAMPLES, e->out, SIDE, SIDE, NG_F32);
  }
  return fixture_observe(f, i, &in, &out);
}

static ng_status try_step(family_run *run, int32_t rank, fixture *f, int32_t step, int32_t bad) {
  const family_model *m = run->model;
  ng_status st = fixture_begin(f, SAMPLES);
  for (int32_t i = 0; i < m->entries && st == NG_OK; i++) {
    float *grad = run->out[rank][step][i];
    family_draw_gradients(m, step, i, grad);
    if (i == bad) grad[weight_count(&m->entry[i]) - 1] = NAN;
    st = bind_gradient(f->p, i, &m->entry[i], grad);
    if (st == NG_OK) st = observe_entry(f, i, &m->entry[i], step);
  }
  if (st == NG_OK && run->before_step != NULL) st = run->before_step(rank, f->p, step);
  return st == NG_OK ? ng_step(f->p, 0.1) : st;
}

/* Count the gradient elements that a skipped step changed: finite, and different from family_draw_gradients. */
static int32_t count_changed(const family_run *run, int32_t rank, int32_t step) {
  int32_t n = 0;
  for (int32_t i = 0; i < run->model->entries; i++) {
    float d[FAMILY_NUMBERS];
    family_draw_gradients(run->model, step, i, d);
    for (int64_t k = 0; k < family_gradient_count(run->model, i); k++) {
      const float x = run->out[rank][step][i][k];
      n += isfinite(x) && memcmp(&x, &d[k], sizeof x) != 0;
    }
  }
  return n;
}

/* Take a step; repeat a skipped step without the NaN. */
static ng_status take_step(family_run *run, int32_t rank, fixture *f, int32_t step) {
  const bool is_bad = step == run->bad_step;
  ng_status st = try_step(run, rank, f, step, is_bad ? run->bad_entry : -1);
  run->status[rank][step] = st;
  if (is_bad && st != NG_SKIPPED) return st < NG_OK ? st : NG_ERR_STATE;
  if (is_bad) {
    run->changed[rank] += count_changed(run, rank, step);
    st = try_step(run, rank, f, step, -1);
  }
  ng_report r = {.struct_size = sizeof r};
  if (st == NG_OK) st = ng_report_read(f->p, &r);
  run->clip[rank][step] = r.clip;
  return st;
}

static ng_status read_reports(family_run *run, int32_t rank, const ng_precond *p) {
  ng_explain_row row = {.struct_size = sizeof row};
  ng_status st = NG_OK;
  for (int32_t i = 0; i < ng_explain_count(p) && st == NG_OK; i++) {
    st = ng_explain(p, i, &row);
    (void)snprintf(run->family[rank][row.index], sizeof run->family[0][0], "%s", row.family);
  }
  for (int32_t i = 0; i < run->model->entries && st == NG_OK; i++) {
    run->report[rank][i].struct_size = sizeof run->report[0][0];
    st = ng_report_layer(p, i, &run->report[rank][i]);
  }
  if (st == NG_OK && run->after_last_step != NULL) run->after_last_step(rank, p);
  return st;
}

static ng_status run_rank(int32_t rank, ng_transport *t, void *arg) {
  family_run *run = arg;
  const family_model *m = run->model;
  fixture f;
  const fixture_how how = {
      .linalg = run->linalg, .threads = 1 + rank % 2, .transport = run->ranks > 1 ? t : NULL};
  ng_status st = fixture_open(&f, run->set, &how);
  for (int32_t i = 0; st == NG_OK && run->families[i] != NULL; i++)
    ng_family_register(f.ctx, run->families[i]);
  if (st == NG_OK && run->extra != NULL) ng_family_register(f.ctx, run->extra);
  if (st == NG_OK) f.ctx->set_test_owner = run->place;
  for (int32_t i = 0; i < m->entries && st == NG_OK; i++)
    st = add_entry(f.p, &m->entry[i]);
  if (st == NG_OK) st = ng_ready(f.p);
  if (st == NG_OK && run->load != NULL) st = ng_load(f.p, run->load);
  for (int32_t step = run->load != NULL ? m->saved : 0; step < m->steps && st == NG_OK; step++) {
    if (step == m->saved && run->save != NULL) st = ng_save(f.p, run->save);
    if (st == NG_OK) st = take_step(run, rank, &f, step);
  }
  if (st == NG_OK) st = read_reports(run, rank, f.p);
  (void)snprintf(run->message[rank], 256, "%.255s", fixture_message(&f));
  fixture_close(&f);
  return st;
}

family_run *family_new_run(const family_model *m, const ng_family *const *families, const char *set,
                           int32_t ranks) {
  family_run *run = calloc(1, sizeof *run);
  assert_non_null(run);
  run->model = m;
  run->families = families;
  run->set = set;
  run->linalg = "ref";
  run->ranks = ranks;
  run->bad_step = run->bad_entry = -1;
  return run;
}

ng_status family_train(family_run *run) { return ranks_run(run->ranks, run_rank, run, NULL); }

family_run *family_must_train(family_run *run) {
  if (family_train(run) != NG_OK) {
    for (int32_t r = 0; r < run->ranks; r++)
      print_error("%s, rank %d: %s\n", run->set, r, run->message[r]);
    fail();
  }
  for (int32_t r = 1; r < run->ranks; r++) {
    assert_memory_equal(run->out[0], run->out[r], sizeof run->out[0]);
    assert_memory_equal(run->clip[0], run->clip[r], sizeof run->clip[0]);
  }
  return run;
}

void family_must_match_from(const family_run *x, const family_run *y, int32_t step) {
  assert_memory_equal(x->out[0][step], y->out[0][step],
                      sizeof x->out[0][0] * (size_t)(x->model->steps - step));
}

void family_runs_must_match(family_run *x, family_run *y, int32_t step) {
  (void)family_must_train(x);
  (void)family_must_train(y);
  family_must_match_from(x, y, step);
  free(x);
  free(y);
}

void family_must_be_close(const family_run *x, const family_run *y) {
  for (int32_t step = 0; step < x->model->steps; step++) {
    for (int32_t i = 0; i < x->model->entries; i++) {
      double most = 0, gap = 0;
      for (int64_t k = 0; k < family_gradient_count(x->model, i); k++) {
        most = fmax(most, fabs((double)y->out[0][step][i][k]));
        gap = fmax(gap, fabs((double)x->out[0][step][i][k] - (double)y->out[0][step][i][k]));
      }
      assert_true(gap <= 1e-5 * most);
    }
  }
}
