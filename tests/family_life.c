/* family_life.c: see family_life.h. */
#include "plane.h"
#include "family_life.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "draw.h"
#include "ranks.h"

const entry model[ENTRIES] = {
    [FC] = {"fc", 6, 4, 24, 4},         [CONV] = {"conv", 2, 3, 2 * 3 * 9, 0},
    [R1] = {"r1", 5, 3, 15, 3},         [TOY] = {"toy", 0, 0, 130, 0},
    [TOY2] = {"toy2", 0, 0, 7, 0},      [ALL] = {"all", 0, 0, 90, 0},
    [ALL_FC] = {"all.fc", 5, 6, 30, 6}, [PLAIN] = {"plain", 0, 0, 11, 0},
};

void draw(float *x, int64_t n, int32_t step, int32_t at) {
  rng r = {test_seed() ^ (uint64_t)(step * 100 + at)};
  for (int64_t i = 0; i < n; i++) {
    x[i] = (float)rng_value(&r);
  }
}

static ng_status add(ng_precond *p, const entry *e) {
  int32_t index;
  if (e->out == 0) return ng_add_tensor(p, e->name, e->weights, &index);
  if (e == &model[CONV]) return plane_conv2d(p, e->name, e->in, e->out, 3, 1, 1, 5, 5, 0, &index);
  return ng_add_linear(p, e->name, e->in, e->out, 1, &index);
}

static ng_status bind(ng_precond *p, int32_t i, float *grad) {
  const entry *e = &model[i];
  const int64_t rows = e->out == 0 ? 1 : e->out;
  const plane w = plane_of(grad, rows, e->weights / rows, NG_F32);
  const plane b = plane_of(grad + e->weights, 1, e->biases, NG_F32);
  const ng_status st = plane_bind_grad(p, i, NG_WEIGHT, &w);
  return st == NG_OK && e->biases > 0 ? plane_bind_grad(p, i, NG_BIAS, &b) : st;
}

static ng_status show(ng_precond *p, int32_t i, int32_t step) {
  float a[SHOWN], g[SHOWN];
  const entry *e = &model[i];
  const int64_t pixels = i == CONV ? 25 : 1;
  if (e->out == 0 || i == ALL_FC) return NG_OK;
  draw(a, B * e->in * pixels, step, 20 + i);
  draw(g, B * e->out * pixels, step, 40 + i);
  plane in = plane_of(a, B, e->in, NG_F32), out = plane_of(g, B, e->out, NG_F32);
  if (i == CONV) {
    in = plane_images(a, PLANE_NCHW, B, e->in, 5, 5, NG_F32);
    out = plane_images(g, PLANE_NCHW, B, e->out, 5, 5, NG_F32);
  }
  const ng_status st = plane_input(p, i, &in, NG_COPY);
  return st == NG_OK ? plane_output_grad(p, i, &out, NG_COPY) : st;
}

/* ---- a transport that is in no hurry ---------------------------------------------------------*/

/* start only notes what is wanted; wait does it: as late as it may, in the same order on all ranks. */
typedef struct lazy {
  ng_transport inner;
  int32_t under_way;
} lazy;

static ng_status lazy_run(void *user, const ng_collective *c) {
  return ((lazy *)user)->inner.run(((lazy *)user)->inner.user, c);
}
static ng_status lazy_start(void *user, const ng_collective *c, void **request) {
  ((lazy *)user)->under_way++;
  memcpy(request, &c, sizeof c);
  return NG_OK;
}
static ng_status lazy_wait(void *user, void *request) {
  ((lazy *)user)->under_way--;
  return lazy_run(user, request);
}
static ng_status lazy_group(void *user, const int32_t *ranks, int32_t n, void **group) {
  return ((lazy *)user)->inner.group_create(((lazy *)user)->inner.user, ranks, n, group);
}
static void lazy_ungroup(void *user, void *group) {
  ((lazy *)user)->inner.group_destroy(((lazy *)user)->inner.user, group);
}
static void lazy_abort(void *user) { ((lazy *)user)->inner.abort(((lazy *)user)->inner.user); }

/* ---- living ----------------------------------------------------------------------------------*/

static ng_status one_step(life *l, int32_t rank, ng_precond *p, int32_t step, lazy *wire,
                          int32_t bad) {
  float *grad = &l->out[rank][step][0][0];
  ng_batch batch;
  ng_batch_init(&batch, sizeof batch);
  batch.samples = B;
  batch.last = l->post && (l->post_until == 0 || step < l->post_until);
  ng_status st = ng_begin(p, &batch);
  for (int32_t k = 0; k < ENTRIES && st == NG_OK; k++) {
    const int32_t i = batch.last ? ENTRIES - 1 - k : k; /* as backward goes */
    float *mine = grad + i * PARAMETERS;
    draw(mine, model[i].weights + model[i].biases, step, i);
    if (step == l->bad_step && i == bad) mine[model[i].weights - 1] = NAN;
    st = bind(p, i, mine);
    if (st == NG_OK) st = show(p, i, step);
    if (st == NG_OK && batch.last && i == FC) {
      l->in_flight[rank] += wire->under_way;
      l->again[rank] = show(p, FC, step) == NG_ERR_STATE;
    }
  }
  if (st == NG_OK && l->hook != NULL) st = l->hook(rank, p, step);
  return st == NG_OK ? ng_step(p, 0.1) : st;
}

/* Gradients that are not what was drawn. */
static int32_t changed(const life *l, int32_t rank, int32_t step) {
  int32_t n = 0;
  for (int32_t i = 0; i < ENTRIES; i++) {
    float d[PARAMETERS];
    draw(d, model[i].weights + model[i].biases, step, i);
    for (int64_t e = 0; e < model[i].weights + model[i].biases; e++) {
      const float x = l->out[rank][step][i][e];
      n += x - x == 0.0f && memcmp(&x, &d[e], sizeof x) != 0;
    }
  }
  return n;
}

static void look_at(life *l, int32_t rank, const ng_precond *p) {
  ng_explain_row row = {.struct_size = sizeof row};
  ng_layer_report report = {.struct_size = sizeof report};
  for (int32_t i = 0; ng_explain(p, i, &row) == NG_OK; i++) {
    (void)snprintf(l->explained[rank][row.index], sizeof l->explained[0][0], "%s", row.family);
    if (i + 1 == ng_explain_count(p)) break;
  }
  if (l->plain) return;
  for (int32_t i = 0; i < p->blocks; i++) {
    if (p->block[i]->family == &toy_total) l->commits[rank] = toy_total_commits(p->block[i]);
  }
  if (ng_report_layer(p, ALL, &report) == NG_OK) l->reported[rank] = report.pi;
}

ng_status life_of(int32_t rank, ng_transport *t, void *arg) {
  life *l = arg;
  const ng_family beside = toy_beside();
  ng_context_config c;
  ng_context *ctx = NULL;
  ng_precond *p = NULL;
  char *why = l->why[rank];
  lazy wire = {.inner = *t};
  ng_transport slow = *t;
  slow.user = &wire;
  slow.run = lazy_run;
  slow.start = lazy_start;
  slow.wait = lazy_wait;
  slow.test = NULL;
  slow.abort = lazy_abort;
  if (slow.group_create != NULL) {
    slow.group_create = lazy_group;
    slow.group_destroy = lazy_ungroup;
  }
  ng_context_config_init(&c, sizeof c);
  c.threads = 1 + rank % 2;
  c.linalg = "ref";
  if (l->ranks > 1) c.transport = l->post ? &slow : t;
  ng_status st = ng_context_create(NG_VERSION, &c, why, 256, &ctx);
  const ng_family *const toy[] = {&toy_diagonal, &toy_total, &beside};
  for (int i = 0; i < 3 && st == NG_OK && !l->plain; i++) {
    st = ng_family_register(ctx, toy[i], why, 256);
  }
  if (st == NG_OK && l->extra != NULL) st = ng_family_register(ctx, l->extra, why, 256);
  if (st == NG_OK) ctx->place = l->place;
  if (st == NG_OK) st = ng_precond_create(ctx, l->set, &p);
  for (int32_t i = 0; i < ENTRIES && st == NG_OK; i++) {
    st = add(p, &model[i]);
  }
  if (st == NG_OK) st = ng_ready(p);
  if (st == NG_OK && l->load != NULL) st = ng_load(p, l->load);
  for (int32_t step = l->load != NULL ? 2 : 0; step < STEPS && st == NG_OK; step++) {
    if (step == 2 && l->save != NULL) st = ng_save(p, l->save);
    if (st == NG_OK) st = one_step(l, rank, p, step, &wire, l->bad_entry);
    l->status[rank][step] = st;
    if (st == NG_SKIPPED) { /* and again, as it should have been */
      l->changed[rank] += changed(l, rank, step);
      (void)snprintf(why, 256, "%s", ng_last_error(ctx));
      st = one_step(l, rank, p, step, &wire, -1);
    }
    ng_report r = {.struct_size = sizeof r};
    if (st == NG_OK) st = ng_report_read(p, &r);
    l->clip[rank][step] = r.clip;
  }
  if (st < NG_OK && why[0] == 0) (void)snprintf(why, 256, "%s", ng_last_error(ctx));
  if (st == NG_OK) look_at(l, rank, p);
  ng_precond_destroy(&p);
  ng_context_destroy(&ctx);
  return st;
}

life *new_life(const char *set, int32_t ranks) {
  life *l = calloc(1, sizeof *l);
  assert_non_null(l);
  l->set = set;
  l->ranks = ranks;
  l->bad_step = l->bad_entry = -1;
  return l;
}

/* Every rank ends well and with the same bits. */
life *lived(life *l) {
  if (ranks_run(l->ranks, life_of, l, NULL) != NG_OK) {
    for (int32_t r = 0; r < l->ranks; r++) {
      print_error("%s, rank %d: %s\n", l->set, r, l->why[r]);
    }
    fail();
  }
  for (int32_t r = 1; r < l->ranks; r++) {
    assert_memory_equal(l->out[0], l->out[r], sizeof l->out[0]);
    assert_memory_equal(l->clip[0], l->clip[r], sizeof l->clip[0]);
  }
  return l;
}

void same_from(const life *x, const life *y, int32_t step) {
  assert_memory_equal(x->out[0][step], y->out[0][step],
                      sizeof x->out[0][0] * (size_t)(STEPS - step));
}
