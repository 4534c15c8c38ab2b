/* t_option_questions.c: which layers skip_layers excludes, and which options are idle (t_idle tests the effects). */
#include "options_help.h"

#include <stdbool.h>

static char message[512];

static void set(ng_options *o, const char *name, const char *value) {
  if (ng_options_set(o, name, value, message, sizeof message) == NG_OK) return;
  print_error("%s\n", message);
  fail();
}

static ng_options method(const char *name) {
  ng_options o = standard_options();
  assert_int_equal(ng_options_set(&o, "method", name, message, sizeof message), NG_OK);
  return o;
}

/* ---- layers that are left out ----------------------------------------------------------------*/

static ng_layer linear(const char *name, int64_t out) {
  ng_layer l;
  ng_layer_init(&l, NG_LINEAR, sizeof l);
  l.name = name;
  l.in = 3;
  l.out = out;
  return l;
}

static ng_layer conv(const char *name, int64_t out) {
  ng_layer l = linear(name, out);
  l.kind = NG_CONV2D;
  l.image[0] = l.image[1] = 4;
  return l;
}

/* A 1 for each layer that the globs match. */
static void skip_layers_excludes_matching_layers(void **state) {
  static const char *const skip[][2] = {{"", "0000"},
                                        {"fc*", "1000"},
                                        {"fc1", "1000"},
                                        {"linear", "1010"},
                                        {"Conv2d", "0101"},
                                        {"conv*", "0101"},
                                        {"*", "1111"},
                                        {"[Ll]in*", "1010"},
                                        {"a*,b*", "0010"},
                                        {"?c1", "1000"},
                                        {"*2*", "0101"},
                                        {"linear/5", "0010"},
                                        {"a*,linear/2", "1010"},
                                        {"linear/[27]", "1000"}};
  const ng_layer layer[] = {linear("fc1", 2), conv("conv2", 2), linear("a.head", 5),
                            conv("stem", 7)};
  enum { LAYERS = sizeof layer / sizeof layer[0] };
  int32_t unused = 0;
  ng_context *ctx = NULL;
  assert_int_equal(ng_context_create(NG_VERSION, NULL, message, sizeof message, &ctx), NG_OK);
  for (size_t i = 0; i < sizeof skip / sizeof skip[0]; i++) {
    ng_options o = standard_options();
    ng_precond *p = NULL;
    set(&o, "skip_layers", skip[i][0]);
    assert_int_equal(ng_precond_create_from(ctx, &o, &p), NG_OK);
    for (int32_t k = 0, index; k < LAYERS; k++)
      assert_int_equal(ng_add_layer(p, &layer[k], &index), NG_OK);
    assert_int_equal(ng_ready(p), NG_OK);
    /* layers without bias; then globs without a layer */
    assert_true(ng_explain_count(p) >= LAYERS);
    for (int32_t k = LAYERS; k < ng_explain_count(p); k++) {
      ng_explain_row row = {.struct_size = sizeof row};
      assert_int_equal(ng_explain(p, k, &row), NG_OK);
      assert_string_equal(row.why, "skip_layers: this glob matches no layer");
      assert_int_equal(row.index, -1);
      assert_contains(skip[i][0], row.name);
      unused++;
    }
    for (int32_t k = 0; k < LAYERS; k++) {
      ng_explain_row row = {.struct_size = sizeof row};
      const bool skipped = skip[i][1][k] == '1';
      assert_int_equal(ng_explain(p, k, &row), NG_OK);
      assert_int_equal(row.covered, !skipped);
      if (skipped) assert_contains(row.why, "matches skip_layers");
    }
    ng_precond_destroy(&p);
  }
  ng_context_destroy(&ctx);
  assert_true(unused > 0);
}

/* ---- options without effect ------------------------------------------------------------------*/

static void needs(const ng_options *o, const char *option, const char *expected) {
  char text[128] = "x";
  assert_int_equal(ng_options_idle(o, option, text, sizeof text), NG_OK);
  if (strcmp(text, expected) == 0) return;
  print_error("%s needs '%s', expected '%s'\n", option, text, expected);
  fail();
}

static void idle_options_name_what_they_need(void **state) {
  static const char *const clip[] = {"kl", "rescale", "norm", "ratio", "rms", "value", "none"};
  ng_options o = standard_options();
  for (int i = 0; i < 7; i++) {
    set(&o, "clip", clip[i]);
    needs(&o, "kl_clip", i == 0 ? "" : "clip = kl");
    needs(&o, "kl-clip", i == 0 ? "" : "clip = kl");
    needs(&o, "clip_bound", i >= 2 && i <= 5 ? "" : "clip = norm, ratio, rms or value");
    needs(&o, "damping", "");
    needs(&o, "clip", "");
  }
  o = method("mfac");
  needs(&o, "window_fill", "window_store = topk, topk-layer, topk-block or lowrank");
  needs(&o, "window_momentum_form", "window_momentum above 0");
  needs(&o, "window_scope", "");
  o = method("lowrank-mfac");
  needs(&o, "window_fill", "");
  o = method("topk-sgd");
  needs(&o, "damping", "window_function = mfac, mfac-filled, ggt, adam or adagrad");
  needs(&o, "window_scope", "");
  set(&o, "window_store", "dense");
  needs(&o, "window_scope",
        "window_function = mfac, mfac-filled or ggt, or window_store = topk, topk-layer or "
        "topk-block");
  o = method("topk-adam");
  needs(&o, "damping", "");
  o = method("natgrad");
  o = method("eva");
  needs(&o, "stat_decay", "");
  set(&o, "sides", "input");
  needs(&o, "stat_decay", "");
  set(&o, "sides", "none");
  needs(&o, "stat_decay", "sides = both or input");
  needs(&o, "stat_batch", "sides = both or input");
  needs(&o, "sides", "");

  char text[128];
  assert_int_equal(ng_options_idle(&o, "stat_decay", text, 22), NG_OK);
  assert_int_equal(ng_options_idle(&o, "stat_decay", text, 21), NG_ERR_ARG);
  assert_string_equal(text, "");
  assert_int_equal(ng_options_idle(&o, "stat_decay", text, 3), NG_ERR_ARG);
  assert_int_equal(ng_options_idle(&o, "no_such_option", text, sizeof text), NG_ERR_ARG);
}

/* ng_option_info.needs names the option at the start of the sentence, if there is one. */
static void needs_is_the_option_of_the_sentence(void **state) {
  int32_t named = 0;
  for (int32_t i = 0; i < ng_option_count(); i++) {
    const ng_option_info info = option_info(i);
    ng_options o = method("adasgd"); /* sides = none */
    char text[128], begins[64];
    set(&o, "clip", "rescale");
    set(&o, "placement", "spngd");
    set(&o, "window_function", "step");
    set(&o, "window_decay_form", "none");
    assert_int_equal(ng_options_idle(&o, info.name, text, sizeof text), NG_OK);
    assert_int_equal(text[0] != 0, info.needs[0] != 0);
    (void)snprintf(begins, sizeof begins, "%s ", info.needs);
    if (info.needs[0] != 0) assert_memory_equal(text, begins, strlen(begins));
    named += info.needs[0] != 0;
  }
  assert_true(named > 10);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(skip_layers_excludes_matching_layers),
      cmocka_unit_test(idle_options_name_what_they_need),
      cmocka_unit_test(needs_is_the_option_of_the_sentence),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
