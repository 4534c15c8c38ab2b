/* t_bindings.c: when bindings expire, lists of bindings, missing gradients and frozen layers.
 *
 * The weights of an excluded layer keep their bits; all other weights have the bits of a run without that layer. */
#include "unit_test.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bound.h"
#include "ranks.h"
#include "stream.h"

/* ---- expiry ----------------------------------------------------------------------------------*/

static void bindings_of_one_step_expire(void **state) {
  for (int32_t k = 0; k < ENTRIES; k++) {
    for (int weight = 0; weight < 2; weight++) {
      model m;
      fixture_ok(&m.f, open_model(&m, "damping=0.1 update=sgd", NULL));
      const ng_array a = entry_array(weight ? m.weight[k] : m.grad[k], k);
      ng_binding b = {k, NG_WEIGHT, weight ? NULL : &a, weight ? &a : NULL, NG_ONE_STEP};
      fixture_ok(&m.f, ng_bind(m.f.p, &b, 1));
      draw_gradients(&m, 0);
      fixture_ok(&m.f, observe_layers(&m, 0, 3));
      fixture_ok(&m.f, step_sgd(&m));
      draw_gradients(&m, 1);
      model before = m;
      fixture_ok(&m.f, observe_layers(&m, 1, 3));
      fixture_fails(&m.f, step_sgd(&m), NG_ERR_STATE, "has expired (NG_ONE_STEP)");
      assert_non_null(strstr(ng_last_error(m.f.ctx), k == GAMMA ? "gamma"
                                                     : k == FC1 ? "fc1"
                                                                : "fc2"));
      assert_memory_equal(before.weight, m.weight, sizeof m.weight);
      assert_memory_equal(before.grad, m.grad, sizeof m.grad);
      /* after ng_bind the step succeeds with the same observations; bindings with NG_HOLD are still valid */
      fixture_ok(&m.f, ng_bind(m.f.p, &b, 1));
      fixture_ok(&m.f, step_sgd(&m));
      fixture_close(&m.f);
    }
  }
}

/* A skipped step ends a binding; a rejected call does not. */
static void skipped_steps_end_a_binding(void **state) {
  model m;
  fixture_ok(&m.f, open_model(&m, "damping=0.1", NULL));
  fixture_ok(&m.f, bind_entry(&m, FC1, m.grad[FC1], NULL, NG_ONE_STEP));
  draw_gradients(&m, 0);
  fixture_fails(&m.f, ng_step(m.f.p, 0.1), NG_ERR_STATE, "never observed");
  fixture_ok(&m.f, observe_layers(&m, 0, 3));
  m.grad[FC2][0] = NAN;
  assert_int_equal(ng_step(m.f.p, 0.1), NG_SKIPPED);
  draw_gradients(&m, 0);
  fixture_ok(&m.f, observe_layers(&m, 0, 3));
  fixture_fails(&m.f, ng_step(m.f.p, 0.1), NG_ERR_STATE, "'fc1.weight'");
  fixture_close(&m.f);
}

/* Every step has newly allocated gradients, and the old ones are freed.  The address sanitizer finds stale accesses. */
static void each_step_may_bind_new_gradient_arrays(void **state) {
  enum { STEPS = 10000 };
  const char *const settings[] = {"damping=0.1 update=sgd solve_period=50 stat_period=10",
                                  "method=eva damping=0.1 update=sgd"};
  for (int way = 0; way < 2; way++) {
    model m, d;
    fixture_ok(&m.f, open_model(&m, settings[way], NULL));
    fixture_ok(&d.f, open_model(&d, settings[way], NULL));
    for (int32_t t = 0; t < STEPS; t++) {
      float *grad[ENTRIES];
      ng_array a[ENTRIES];
      ng_binding list[ENTRIES];
      draw_gradients(&d, t % 50);
      for (int32_t k = 0; k < ENTRIES; k++) {
        grad[k] = malloc((size_t)count[k] * sizeof(float));
        memcpy(grad[k], d.grad[k], (size_t)count[k] * sizeof(float));
        a[k] = entry_array(grad[k], k);
        list[k] = (ng_binding){k, NG_WEIGHT, &a[k], NULL, NG_ONE_STEP};
      }
      fixture_ok(&m.f, ng_bind(m.f.p, list, ENTRIES));
      fixture_ok(&m.f, observe_layers(&m, t % 50, 3));
      fixture_ok(&d.f, observe_layers(&d, t % 50, 3));
      fixture_ok(&m.f, step_sgd(&m));
      fixture_ok(&d.f, step_sgd(&d));
      for (int32_t k = 0; k < ENTRIES; k++) {
        free(grad[k]);
      }
      if (t % 7 == 3) assert_int_equal(step_sgd(&m), NG_ERR_STATE); /* expired */
    }
    assert_memory_equal(m.weight, d.weight, sizeof m.weight);
    fixture_close(&m.f);
    fixture_close(&d.f);
  }
}

/* ---- lists -----------------------------------------------------------------------------------*/

static void a_list_is_bound_whole_or_not(void **state) {
  model m;
  float other[ENTRIES][MID * IN] = {{0}};
  fixture_ok(&m.f, open_model(&m, "damping=0.1 update=sgd", NULL));
  ng_array a[ENTRIES], bad;
  ng_binding list[ENTRIES];
  for (int32_t k = 0; k < ENTRIES; k++) {
    a[k] = entry_array(other[k], k);
    list[k] = (ng_binding){k, NG_WEIGHT, &a[k], &a[k], NG_HOLD};
  }
  for (int way = 0; way < 7; way++) {
    ng_binding *last = &list[ENTRIES - 1];
    const ng_binding right = *last;
    bad = a[ENTRIES - 1];
    last->grad = &bad;
    if (way == 0) bad.room[1] = 4;
    if (way == 1) bad.dtype = NG_I64;
    if (way == 2) bad.mem = NG_DEVICE;
    if (way == 3) bad.room[5] = 0;
    if (way == 4) last->index = 3;
    if (way == 5) last->param = NG_BIAS;
    if (way == 6) last->hold = (ng_hold)0;
    static const ng_status want[7] = {NG_ERR_SHAPE, NG_ERR_ARG, NG_ERR_ABSENT, NG_ERR_SHAPE,
                                      NG_ERR_ARG,   NG_ERR_ARG, NG_ERR_ARG};
    static const char *const word[7] = {"[1, 4]",     "i64",  "device",   "share memory",
                                        "index is 3", "bias", "hold is 0"};
    fixture_fails(&m.f, ng_bind(m.f.p, list, ENTRIES), want[way], word[way]);
    *last = right;
  }
  draw_gradients(&m, 0);
  fixture_ok(&m.f, observe_layers(&m, 0, 3));
  fixture_ok(&m.f, step_sgd(&m));
  for (int32_t k = 0; k < ENTRIES; k++) { /* nothing in the refused lists was bound */
    for (int64_t i = 0; i < count[k]; i++) {
      assert_true(other[k][i] == 0.0f);
    }
  }
  fixture_close(&m.f);
}

/* ---- missing gradients -----------------------------------------------------------------------*/

static void mark_missing(model *m, int32_t k) {
  const ng_array none = ng_array_vector(NULL, 1, NG_F32);
  const ng_binding b = {k, NG_WEIGHT, &none, NULL, NG_HOLD};
  fixture_ok(&m->f, ng_bind(m->f.p, &b, 1));
}

/* A layer or the tensor has no gradient. */
static void missing_gradients_keep_weights(void **state) {
  static const char *const methods[] = {
      "damping=0.1", "method=kaisa damping=0.1", "method=eva damping=0.1",
      "damping=0.1 clip=ratio clip_bound=0.1", "damping=0.1 clip=rms clip_bound=0.1"};
  for (size_t a = 0; a < sizeof methods / sizeof methods[0]; a++) {
    for (int32_t k = 0; k < ENTRIES; k++) {
      char text[200];
      model m, without;
      (void)snprintf(text, sizeof text, "%s update=adamw missing=refuse", methods[a]);
      fixture_ok(&m.f, open_model(&m, text, NULL));
      mark_missing(&m, k);
      draw_gradients(&m, 0);
      const model ready = m;
      fixture_ok(&m.f, observe_layers(&m, 0, k < GAMMA ? 3U & ~(1U << k) : 3));
      fixture_fails(&m.f, step_sgd(&m), NG_ERR_STATE, "is not bound");
      assert_memory_equal(m.weight, ready.weight, sizeof m.weight);
      fixture_close(&m.f);

      (void)snprintf(text, sizeof text, "%s update=adamw missing=keep", methods[a]);
      fixture_ok(&m.f, open_model(&m, text, NULL));
      (void)snprintf(text, sizeof text, "%s update=adamw%s", methods[a],
                     k == FC1   ? " skip_layers=fc1"
                     : k == FC2 ? " skip_layers=fc2"
                                : "");
      fixture_ok(&without.f, open_model(&without, text, NULL));
      mark_missing(&m, k);
      for (int32_t t = 0; t < 3; t++) {
        model before = m;
        draw_gradients(&m, t);
        draw_gradients(&without, t);
        const unsigned seen = k < GAMMA ? 3U & ~(1U << k) : 3;
        fixture_ok(&m.f, observe_layers(&m, t, seen));
        fixture_ok(&without.f, observe_layers(&without, t, seen));
        fixture_ok(&m.f, step_sgd(&m));
        fixture_ok(&without.f, step_sgd(&without));
        assert_memory_equal(m.weight[k], before.weight[k], sizeof m.weight[k]);
        for (int32_t i = 0; i < ENTRIES; i++) {
          if (i != k) assert_memory_equal(m.weight[i], without.weight[i], sizeof m.weight[i]);
        }
        assert_int_equal(fixture_report(&m.f).kept, 1);
        assert_int_equal(fixture_layer_report(&m.f, k).kept, t + 1);
      }
      /* a bound gradient ends the exclusion */
      fixture_ok(&m.f, bind_entry(&m, k, m.grad[k], NULL, NG_HOLD));
      draw_gradients(&m, 9);
      model before = m;
      fixture_ok(&m.f, observe_layers(&m, 9, 3));
      fixture_ok(&m.f, step_sgd(&m));
      assert_memory_not_equal(m.weight[k], before.weight[k], (size_t)count[k] * sizeof(float));
      assert_int_equal(fixture_report(&m.f).kept, 0);
      assert_int_equal(fixture_layer_report(&m.f, k).kept, 3);
      fixture_close(&m.f);
      fixture_close(&without.f);
    }
  }
}

/* missing = keep accepts a layer without gradients.  An expired binding is an error.  A gradient of only the weight or
 * only the bias of a layer is an error, too. */
static void an_expired_binding_is_no_missing_gradient(void **state) {
  model m;
  fixture_ok(&m.f, open_model(&m, "damping=0.1 missing=keep", NULL));
  fixture_ok(&m.f, bind_entry(&m, FC1, m.grad[FC1], NULL, NG_ONE_STEP));
  draw_gradients(&m, 0);
  fixture_ok(&m.f, observe_layers(&m, 0, 3));
  fixture_ok(&m.f, ng_step(m.f.p, 0.1));
  fixture_ok(&m.f, observe_layers(&m, 1, 3));
  fixture_fails(&m.f, ng_step(m.f.p, 0.1), NG_ERR_STATE,
                "'fc1.weight': the binding of the gradient has expired");
  fixture_close(&m.f);
  fixture f;
  float w[4] = {0}, b[2] = {0};
  fixture_ok(&f, fixture_open(&f, "damping=0.1 missing=keep", NULL));
  fixture_ok(&f, ng_add_linear(f.p, "fc", 2, 2, 1, NULL));
  const ng_array gw = ng_array_matrix(w, 2, 2, NG_F32), gb = ng_array_vector(b, 2, NG_F32);
  for (int part = 0; part < 2; part++) {
    const ng_array none = ng_array_vector(NULL, 1, NG_F32);
    const ng_binding list[2] = {{0, NG_WEIGHT, part == 0 ? &none : &gw, NULL, NG_HOLD},
                                {0, NG_BIAS, part == 0 ? &gb : &none, NULL, NG_HOLD}};
    if (part == 0) fixture_ok(&f, ng_ready(f.p));
    fixture_ok(&f, ng_bind(f.p, list, 2));
    fixture_fails(&f, ng_step(f.p, 0.1), NG_ERR_STATE,
                  part == 0 ? "gradient of its weight is not bound"
                            : "gradient of its bias is not bound");
  }
  fixture_close(&f);
}

/* ---- frozen layers ---------------------------------------------------------------------------*/

/* t_left_out.c tests that the weights do not change. */
static void frozen_layers_are_reported(void **state) {
  model m;
  fixture_ok(&m.f, open_model(&m, "damping=0.1 update=sgd", NULL));
  for (int32_t t = 0; t < 1 + 2 * ENTRIES; t++) { /* each entry is frozen for one step */
    const int32_t k = t / 2;
    const bool frozen = t % 2 == 1;
    fixture_ok(&m.f, ng_freeze(m.f.p, k % ENTRIES, frozen));
    if (frozen) mark_missing(&m, k);
    if (k < GAMMA) assert_int_equal(ng_wants(m.f.p, k), !frozen);
    assert_int_equal(fixture_layer_report(&m.f, k % ENTRIES).frozen, frozen);
    draw_gradients(&m, t);
    const model before = m;
    fixture_ok(&m.f,
               observe_layers(&m, t, 3)); /* the library ignores observations of a frozen layer */
    fixture_ok(&m.f, step_sgd(&m));
    if (!frozen) continue;
    assert_memory_equal(m.weight[k], before.weight[k], sizeof m.weight[k]);
    assert_int_equal(fixture_report(&m.f).kept, 0);
    fixture_ok(&m.f, ng_freeze(m.f.p, k, 0));
    fixture_ok(&m.f, bind_entry(&m, k, m.grad[k], NULL, NG_HOLD));
  }
  fixture_close(&m.f);
  fixture f;
  fixture_ok(&f, fixture_open(&f, "damping=0.1", NULL));
  ng_layer l = layer_of(NG_LINEAR, "ice", 2, 2);
  l.frozen = 1;
  fixture_ok(&f, ng_add_layer(f.p, &l, NULL));
  fixture_fails(&f, ng_freeze(f.p, 0, 0), NG_ERR_STATE, "'ice' was registered as frozen");
  fixture_close(&f);
}

/* The library counts updates of each parameter, as PyTorch does, and saves the counts: with a gradient of 1 the first
 * step of AdamW is lr, and the buffer of SGD starts as the gradient. */
static ng_status open_pair(fixture *f, const char *update, float g[2], float w[2]) {
  char text[64];
  (void)snprintf(text, sizeof text, "update=%s", update);
  ng_status st = fixture_open(f, text, &(fixture_how){.threads = 1});
  for (int32_t k = 0; k < 2 && st == NG_OK; k++) {
    st = ng_add_tensor(f->p, k == 0 ? "always" : "late", 1, NULL);
    const ng_array a = ng_array_vector(&g[k], 1, NG_F32), b = ng_array_vector(&w[k], 1, NG_F32);
    const ng_binding bind = {k, NG_WEIGHT, &a, &b, NG_HOLD};
    if (st == NG_OK) st = ng_bind(f->p, &bind, 1);
  }
  return st == NG_OK ? ng_ready(f->p) : st;
}

static ng_status take_update(fixture *f, bool adamw) {
  ng_sgd s;
  ng_adamw a;
  ng_sgd_init(&s, sizeof s);
  ng_adamw_init(&a, sizeof a);
  s.lr = a.lr = 0.1;
  s.momentum = 0.9;
  s.dampening = 0.5;
  a.weight_decay = 0;
  return adamw ? ng_step_adamw(f->p, &a, 1) : ng_step_sgd(f->p, &s, 1);
}

static void updates_are_counted_by_parameter(void **state) {
  for (int way = 0; way < 4; way++) {
    const bool adamw = way % 2 == 0, saved = way / 2 == 1;
    float g[2] = {1, 1}, w[2] = {0, 0};
    float *at = w;
    fixture f, again;
    stream b = {.n = 0};
    fixture_ok(&f, open_pair(&f, adamw ? "adamw" : "sgd", g, w));
    float path[2][3];
    for (int t = 0; t < 13; t++) {
      fixture_ok(&f, ng_freeze(f.p, 1, t < 10));
      fixture_ok(&f, take_update(&f, adamw));
      if (t < 3) path[0][t] = at[0];
      if (t == 5) { /* a skipped step does not count for the other parameter */
        g[0] = NAN;
        assert_int_equal(take_update(&f, adamw), NG_SKIPPED);
        g[0] = 1;
      }
      if (t < 10) assert_true(at[1] == 0.0f);
      if (t >= 10) path[1][t - 10] = at[1];
      if (saved && t == 10) {
        fixture_ok(&f, ng_save_to(f.p, stream_write, &b));
        fixture_ok(&again, open_pair(&again, adamw ? "adamw" : "sgd", g, w));
        fixture_ok(&again, ng_load_from(again.p, stream_read, &b));
        fixture_close(&f);
        f = again;
      }
    }
    assert_memory_equal(path[0], path[1], sizeof path[0]);
    assert_true(fabs((double)path[1][0] + 0.1) < 1e-7); /* AdamW's eps is 1e-8 */
    fixture_close(&f);
    stream_free(&b);
  }
}

/* ---- ranks -----------------------------------------------------------------------------------*/

typedef struct odd {
  int what; /* 0: no gradient, 1: frozen, on the last rank only; 2, 3: the same on all ranks */
  char message[3][256];
  ng_status st[3];
} odd;

static ng_status run_odd_rank(int32_t rank, ng_transport *t, void *arg) {
  odd *o = arg;
  model m;
  const bool mine = o->what >= 2 || rank == 2;
  ng_status st = open_model(&m, "damping=0.1 missing=keep", t);
  const ng_array none = ng_array_vector(NULL, 1, NG_F32);
  const ng_binding b = {FC2, NG_WEIGHT, &none, NULL, NG_HOLD};
  if (st == NG_OK && mine && o->what % 2 == 0) st = ng_bind(m.f.p, &b, 1);
  if (st == NG_OK && mine && o->what % 2 == 1) st = ng_freeze(m.f.p, FC2, 1);
  draw_gradients(&m, 0);
  if (st == NG_OK) st = observe_layers(&m, rank, 3);
  if (st == NG_OK) st = ng_step(m.f.p, 0.1);
  (void)snprintf(o->message[rank], sizeof o->message[0], "%s", ng_last_error(m.f.ctx));
  o->st[rank] = st;
  fixture_close(&m.f);
  return NG_OK;
}

static void ranks_must_exclude_the_same_layers(void **state) {
  for (int what = 0; what < 4; what++) {
    odd o = {.what = what};
    assert_int_equal(ranks_run(3, run_odd_rank, &o, NULL), NG_OK);
    for (int rank = 0; rank < 3; rank++) {
      assert_int_equal(o.st[rank], what < 2 ? NG_ERR_STATE : NG_OK);
      if (what < 2) assert_non_null(strstr(o.message[rank], "on 1 of 3 ranks"));
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bindings_of_one_step_expire),
      cmocka_unit_test(skipped_steps_end_a_binding),
      cmocka_unit_test(each_step_may_bind_new_gradient_arrays),
      cmocka_unit_test(a_list_is_bound_whole_or_not),
      cmocka_unit_test(missing_gradients_keep_weights),
      cmocka_unit_test(an_expired_binding_is_no_missing_gradient),
      cmocka_unit_test(frozen_layers_are_reported),
      cmocka_unit_test(ranks_must_exclude_the_same_layers),
      cmocka_unit_test(updates_are_counted_by_parameter),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
