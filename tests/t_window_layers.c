/* t_window_layers.c: options of windows: which layers share a window (per_layer, ng_layer.options), refused
 * combinations, ng_set, the plan and the state. */
#include "unit_test.h"
#include "fixture.h"
#include "folder.h"

#include <stdio.h>
#include <string.h>

enum { IN = 3, OUT = 2, N = IN * OUT, MOST = 6 };

typedef struct model {
  fixture f;
  float grad[MOST][N];
} model;

/* Add a layer for each letter of `names`; a capital is a tensor. */
static ng_status open_model(model *m, const char *options, const char *names,
                            const fixture_how *how) {
  memset(m, 0, sizeof *m);
  ng_status st = fixture_open(&m->f, options, how);
  for (int i = 0; names[i] != 0 && st == NG_OK; i++) {
    const char name[2] = {names[i], 0};
    const bool tensor = names[i] < 'a';
    const plane g[2] = {plane_of(m->grad[i], OUT, IN, NG_F32), {0}};
    const plane t = plane_of(m->grad[i], 1, N, NG_F32);
    st = tensor ? fixture_add_tensor(&m->f, name, &t, NULL)
                : fixture_add_linear(&m->f, name, g, NULL);
  }
  return st;
}

static const char *get_error(const model *m) {
  return m->f.ctx == NULL ? m->f.message : ng_last_error(m->f.ctx);
}

/* ---- blocks ----------------------------------------------------------------------------------*/

/* Compare "block/family/method" of each parameter, in the order of registration. */
static void expect_blocks(const char *options, const char *names, const char *expected) {
  model m;
  char text[512] = "";
  if (open_model(&m, options, names, NULL) != NG_OK || ng_ready(m.f.p) != NG_OK)
    fail_msg("%s: %s", options, get_error(&m));
  for (int32_t i = 0; i < ng_explain_count(m.f.p); i++) {
    ng_explain_row e = {.struct_size = sizeof e};
    const size_t n = strlen(text);
    assert_int_equal(ng_explain(m.f.p, i, &e), NG_OK);
    const ng_layer_report r = fixture_layer_report(&m.f, e.index);
    assert_string_equal(e.block, r.block);
    assert_string_equal(e.method, r.method);
    (void)snprintf(text + n, sizeof text - n, "%s%s/%s/%s", n > 0 ? " " : "", e.block, e.family,
                   e.method);
  }
  assert_string_equal(text, expected);
  fixture_close(&m.f);
}

/* Layers of one per_layer line share a window, in any order; other lines have other windows; layers without a line
 * use the model's. */
static void layers_of_a_line_share_a_window(void **state) {
  expect_blocks("per_layer='b,c: method=mfac window=3'", "abc",
                "a/kronecker/natgrad window.b/window/mfac window.b/window/mfac");
  expect_blocks("per_layer='b,c: method=mfac window=3'", "cab",
                "window.b/window/mfac a/kronecker/natgrad window.b/window/mfac");
  expect_blocks("method=mfac per_layer='b,d: window=3; c: method=efcp window=3'", "abcde",
                "window/window/mfac window.b/window/mfac window.c/window/efcp window.b/window/mfac "
                "window/window/mfac");
  expect_blocks(
      "per_layer='a: method=mfac; b: method=eva; X: method=ggt; c: norm_damping=2'", "abcXY",
      "window.a/window/mfac b/rankone/eva c/kronecker/natgrad window.X/window/ggt /none/");
  expect_blocks("method=ggt per_layer='linear: method=natgrad'", "aX",
                "a/kronecker/natgrad window/window/ggt");
  expect_blocks("method=mfac skip_layers='*a*,X'", "aXY", "/none/ /none/ window/window/mfac");
  expect_blocks("method=mfac skip_layers=a per_layer='[ab]: window=3'", "abc",
                "/none/ window.b/window/mfac window/window/mfac");
}

/* ---- refused ---------------------------------------------------------------------------------*/

/* Options are refused when they are read or, with `names`, by ng_ready with these layers.  The message about a line of
 * per_layer names per_layer. */
#define NO_ERROR "window_fill = error: window_store = dense"
static void wrong_lines_are_refused(void **state) {
  static const struct {
    const char *options, *names, *message;
  } bad[] = {
      {"per_layer='a'", "", "'a': expected GLOBS: NAME=VALUE"},
      {"per_layer='a:damping=1'", "", "with a blank behind the colon"},
      {"per_layer=': damping=1'", "", "expected GLOBS"},
      {"per_layer='a: damping=1;'", "", "'': expected GLOBS"},
      {"per_layer='(: damping=1'", "", "\"(\": regular expressions are not supported"},
      {"per_layer='a: damping'", "", "'a': 'damping': expected NAME=VALUE"},
      {"per_layer='a: method=mfak'", "", "'a': there is no method 'mfak'"},
      {"per_layer='a: clip=none'", "", "'a': clip holds for the whole model"},
      {"per_layer='a: window=3'", "", "'a': window = 3: method natgrad"},
      {"per_layer='a: method=mfac solver=eigen'", "", "'a': solver = eigen: method mfac"},
      {"per_layer='b: damping=1; a: method=mfac window=0'", "", "'a': "},
      {"per_layer='a: method=mfac method=ggt'", "", "'a': method is given twice"},
      {"per_layer='a: method=dp-kfac'", "", "has statistics = local, which holds"},
      {"method=sam per_layer='a: method=mfac'", "", "has radius = 0, which holds"},
      {"per_layer='a: method=spngd'", "", "which holds for the whole model"},
      {"per_layer='a: method=lowrank-mfac window_rank=0'", "", "'a': window_rank"},
      {"per_layer='x: damping=1'", "ab", "'x' applies to no layer"},
      {"per_layer='a,b: damping=1; b: damping=2'", "ab", "'b' applies to no layer"},
      {"method=mfac stat_decay=0.5", "a", "stat_decay"},
      {"method=mfac window_forget=0.5", "a", "window_forget"},
      {"method=mfac solver=eigen", "a", "solver"},
      {"method=ggt window_fill=added", "a", "window_fill = added"},
      {"method=ggt window_decay=0.1 window_decay_form=direction", "a", "window_decay_form"},
      {"method=lowrank-mfac window_dtype=bf16", "a", "window_dtype"},
      {"method=lowrank-mfac window_mask=1", "a", "window_mask"},
      {"method=ggt window_store=lowrank window_mask=1", "a", "window_mask"},
      {"method=topk-sgd window=2", "a", "window = 1"},
      {"method=topk-adam stat_period=2", "a", "stat_period = 1"},
      {"method=topk-sgd window_forget=0.5", "a", "window_forget = 1"},
      {"method=topk-adagrad window_momentum=0.5", "a", "window_momentum = 0"},
      {"method=topk-adam window_momentum_form=heavy-ball", "a", "window_momentum_form"},
      {"method=ggt window_fill=rest", "a", "window_fill = rest"},
      {"method=efcp window_fill=added window_momentum=0.5 window_momentum_form=gradient", "a",
       "window_momentum_form"},
      {"method=sparse-ggt window_forget=0.9 window_fill=gradient", "a", "window_fill = gradient"},
      {"method=natgrad window=3", "a", "window"},
      {"method=natgrad statistics=sharded", "a", "statistics = sharded: method natgrad"},
      {"method=eva statistics=sharded", "a", "statistics = sharded: method eva"},
      {"method=mfac statistics=local", "a", "statistics = local: method mfac"},
      {"method=mfac statistics=owner", "a", "statistics = owner: method mfac"},
      {"method=efcp window_density=3 window_store=topk-layer", "a",
       "window_density = 3: a number of entries"},
      {"method=efcp window_density=3 window_store=topk-block", "a",
       "window_density = 3: a number of entries"},
      {"method=mfac window_fill=error", "a", NO_ERROR},
      {"method=efcp window_store=dense window_fill=error", "a", NO_ERROR},
      {"method=ggt window_fill=error", "a", NO_ERROR},
      {"per_layer='a*: method=mfac window=4 window_fill=error'", "a", NO_ERROR},
      {"method=efcp window_fill=error per_layer='a*: window_store=dense'", "a", NO_ERROR},
      {"method=mfac per_layer='a*: window_fill=error'", "a", NO_ERROR}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    model m;
    ng_status st = open_model(&m, bad[i].options, bad[i].names, NULL);
    if (st == NG_OK && bad[i].names[0] != 0) st = ng_ready(m.f.p);
    const bool by_layer = strstr(bad[i].options, "per_layer") != NULL;
    if (st >= NG_OK || strstr(get_error(&m), bad[i].message) == NULL ||
        (by_layer && strstr(get_error(&m), "per_layer") == NULL))
      fail_msg("%s: %s '%s', expected '%s'", bad[i].options, ng_status_name(st), get_error(&m),
               bad[i].message);
    fixture_close(&m.f);
  }
  /* A layer must not have the name of a window, and ng_set cannot change per_layer. */
  fixture f;
  float g[N];
  const plane v[2] = {plane_of(g, OUT, IN, NG_F32), {0}};
  fixture_ok(&f, fixture_open(&f, "per_layer='a: method=mfac'", NULL));
  fixture_ok(&f, fixture_add_linear(&f, "a", v, NULL));
  fixture_ok(&f, fixture_add_linear(&f, "window.a", v, NULL));
  fixture_fails(&f, ng_ready(f.p), NG_ERR_ARG, "'window.a': a block of several layers has this");
  assert_int_equal(ng_set(f.p, "per_layer", "a: damping=1"), NG_ERR_STATE);
  fixture_close(&f);
}

/* An option that needs weights is refused with the name of a parameter without weight. */
static void options_that_need_weights_are_refused(void **state) {
  for (int k = 0; k < 2; k++) {
    fixture f;
    float g[3] = {1, 2, 3};
    const plane v = plane_of(g, 1, 3, NG_F32);
    fixture_ok(&f, fixture_open(
                       &f, k ? "method=mfac window_decay=0.1" : "method=mfac window_mask=1", NULL));
    fixture_ok(&f, fixture_add_tensor(&f, "bn1.scale", &v, NULL));
    ng_status st = ng_ready(f.p);
    if (k == 1) {
      fixture_ok(&f, st);
      st = ng_step(f.p, 1);
    }
    fixture_fails(&f, st, NG_ERR_STATE, "bn1.scale");
    fixture_close(&f);
  }
}

/* ---- live options ----------------------------------------------------------------------------*/

static void set_gradients(model *m, int t, int n) {
  for (int i = 0; i < n; i++)
    for (int k = 0; k < N; k++)
      m->grad[i][k] = (float)((k * 7 + i * 3 + t * 5) % 11 - 5);
}

/* ng_set changes the damping of windows that per_layer does not name. A window whose line in per_layer sets a method,
 * but no damping, keeps its damping. */
static void live_damping_skips_windows_in_per_layer(void **state) {
  float out[2][2][5][N];
  const char *options =
      "method=mfac window=3 damping=0.1 window_scope=parameter per_layer='b: method=mfac window=3'";
  for (int k = 0; k < 2; k++) {
    model m;
    assert_int_equal(open_model(&m, options, "ab", NULL), NG_OK);
    fixture_ok(&m.f, ng_ready(m.f.p));
    for (int t = 0; t < 5; t++) {
      set_gradients(&m, t, 2);
      if (k == 1 && t == 3) fixture_ok(&m.f, ng_set(m.f.p, "damping", "0.3"));
      fixture_ok(&m.f, ng_step(m.f.p, 1));
      memcpy(out[k][0][t], m.grad[0], sizeof m.grad[0]);
      memcpy(out[k][1][t], m.grad[1], sizeof m.grad[1]);
    }
    fixture_close(&m.f);
  }
  assert_memory_equal(out[1][1], out[0][1], sizeof out[0][1]);
  assert_memory_equal(out[1][0], out[0][0], 3 * sizeof out[0][0][0]);
  for (int t = 3; t < 5; t++)
    assert_true(memcmp(out[1][0][t], out[0][0][t], sizeof out[0][0][0]) != 0);
}

/* ---- plans and states ------------------------------------------------------------------------*/

/* A plan includes the windows that lines of per_layer create, and leaves the model unchanged. */
static void plans_count_windows_of_lines(void **state) {
  model m;
  ng_rank_plan plan = {.struct_size = sizeof plan};
  assert_int_equal(
      open_model(&m, "per_layer='b,c: method=mfac window=9; d: method=eva'", "abcdX", NULL), NG_OK);
  fixture_ok(&m.f, ng_plan_ranks(m.f.p, 3, 1, 1, &plan));
  assert_int_equal(plan.blocks, 3);
  fixture_ok(&m.f, ng_plan_ranks(m.f.p, 1, 0, 1, &plan));
  fixture_ok(&m.f, ng_ready(m.f.p));
  const ng_report held = fixture_report(&m.f);
  assert_int_equal(plan.factors, held.factors);
  assert_int_equal(plan.sums, held.sums);
  assert_int_equal(plan.results, held.results);
  /* the memory has at least the size of the rows */
  assert_true(plan.factors > 2 * N * 10 * (int64_t)sizeof(float));
  fixture_close(&m.f);
}

/* A state belongs to its lines; other lines are refused by name. */
static void states_belong_to_their_lines(void **state) {
  static const char *const options[] = {"method=mfac window=3 per_layer='b: window=4'",
                                        "method=mfac window=3 per_layer='a: window=4'",
                                        "method=mfac window=3 per_layer='b: window=5'",
                                        "method=mfac window=3"};
  const char *file = in_folder("state");
  model m;
  for (int i = 0; i < 4; i++) {
    assert_int_equal(open_model(&m, options[i], "ab", NULL), NG_OK);
    fixture_ok(&m.f, ng_ready(m.f.p));
    if (i == 0) fixture_ok(&m.f, ng_save(m.f.p, file));
    const ng_status st = ng_load(m.f.p, file);
    assert_int_equal(st, i == 0 ? NG_OK : NG_ERR_FILE);
    if (i > 0) assert_non_null(strstr(ng_last_error(m.f.ctx), "options of layer"));
    fixture_close(&m.f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(layers_of_a_line_share_a_window),
      cmocka_unit_test(wrong_lines_are_refused),
      cmocka_unit_test(options_that_need_weights_are_refused),
      cmocka_unit_test(live_damping_skips_windows_in_per_layer),
      cmocka_unit_test(plans_count_windows_of_lines),
      cmocka_unit_test(states_belong_to_their_lines),
  };
  return cmocka_run_group_tests_name("windows of layers", tests, make_folder, delete_folder);
}
