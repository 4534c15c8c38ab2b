/* t_option_questions.c: what a program may ask of options before it makes anything: which layers they
 * leave out, and which of them have no effect.  Each answer is held against what a model then does. */
#include "plane.h"
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

static const char *skip_of(const ng_options *o, const ng_layer *l) {
  const char *by = NULL;
  assert_int_equal(ng_options_skip(o, l, &by, message, sizeof message), NG_OK);
  return by;
}

/* The answer is what ng_ready does and ng_explain then tells. */
static void skipped_as_asked(void **state) {
  (void)state;
  static const char *const pattern[] = {"",      "fc*",      "fc1",         "linear",     "Conv2d",
                                        "conv*", "*",        "[Ll]in*",     "a*,b*",      "?c1",
                                        "*2*",   "linear/5", "a*,linear/2", "linear/[27]"};
  const ng_layer layer[] = {linear("fc1", 2), conv("conv2", 2), linear("a.head", 5),
                            conv("stem", 7)};
  enum { LAYERS = sizeof layer / sizeof layer[0] };
  int32_t found[2] = {0, 0}, unused = 0;
  ng_context *ctx = NULL;
  assert_int_equal(ng_context_create(NG_VERSION, NULL, message, sizeof message, &ctx), NG_OK);
  for (size_t i = 0; i < sizeof pattern / sizeof pattern[0]; i++) {
    ng_options o = standard_options();
    ng_precond *p = NULL;
    set(&o, "skip_layers", pattern[i]);
    assert_int_equal(ng_precond_create_from(ctx, &o, &p), NG_OK);
    for (int32_t k = 0, index; k < LAYERS; k++)
      assert_int_equal(ng_add_layer(p, &layer[k], &index), NG_OK);
    assert_int_equal(ng_ready(p), NG_OK);
    assert_true(ng_explain_count(p) >= LAYERS); /* no bias; behind: globs without a layer */
    for (int32_t k = LAYERS; k < ng_explain_count(p); k++) {
      ng_explain_row row = {.struct_size = sizeof row};
      assert_int_equal(ng_explain(p, k, &row), NG_OK);
      assert_string_equal(row.why, "skip_layers: this glob matches no layer");
      assert_int_equal(row.index, -1);
      assert_contains(pattern[i], row.name);
      unused++;
    }
    for (int32_t k = 0; k < LAYERS; k++) {
      ng_explain_row row = {.struct_size = sizeof row};
      const char *by = skip_of(&o, &layer[k]);
      assert_int_equal(ng_explain(p, k, &row), NG_OK);
      assert_int_equal(row.covered, by[0] == 0);
      if (by[0] != 0) assert_contains(row.why, by);
      found[by[0] != 0]++;
    }
    ng_precond_destroy(&p);
  }
  ng_context_destroy(&ctx);
  assert_true(found[0] > 0 && found[1] > 0 && unused > 0);
}

static void skip_refuses(void **state) {
  (void)state;
  ng_options o = standard_options();
  ng_layer l = linear("fc", 4);
  const char *by = "x";
  set(&o, "skip_layers", "linear/4");
  assert_string_equal(skip_of(&o, &l), "skip_layers");
  l.struct_size = offsetof(ng_layer, bias); /* of an older header */
  assert_string_equal(skip_of(&o, &l), "skip_layers");
  l.kind = NG_EMBEDDING; /* no linear layer */
  assert_string_equal(skip_of(&o, &l), "");
  l.kind = NG_LINEAR;
  l.struct_size = 8;
  assert_int_equal(ng_options_skip(&o, &l, &by, message, sizeof message), NG_ERR_ARG);
  assert_contains(message, "ng_layer");
  assert_string_equal(by, "");
  l = linear(NULL, 4);
  assert_int_equal(ng_options_skip(&o, &l, &by, message, sizeof message), NG_ERR_ARG);
  assert_contains(message, "name");
}

/* ---- options without effect ------------------------------------------------------------------*/

static void needs(const ng_options *o, const char *option, const char *expected) {
  char text[64] = "x";
  assert_int_equal(ng_options_idle(o, option, text, sizeof text), NG_OK);
  if (strcmp(text, expected) == 0) return;
  print_error("%s needs '%s', expected '%s'\n", option, text, expected);
  fail();
}

static void idle_options(void **state) {
  (void)state;
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
  needs(&o, "window_fill", "window_store = topk or lowrank");
  needs(&o, "window_momentum_form", "window_momentum above 0");
  needs(&o, "window_scope", "");
  o = method("lowrank-mfac");
  needs(&o, "window_fill", "");
  o = method("topk-sgd");
  needs(&o, "damping", "window_function = mfac, ggt, adam or adagrad");
  needs(&o, "window_scope", "");
  set(&o, "window_store", "dense");
  needs(&o, "window_scope", "window_function = mfac or ggt, or window_store = topk");
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

  char text[64];
  assert_int_equal(ng_options_idle(&o, "stat_decay", text, 22), NG_OK);
  assert_int_equal(ng_options_idle(&o, "stat_decay", text, 21), NG_ERR_ARG);
  assert_string_equal(text, "");
  assert_int_equal(ng_options_idle(&o, "stat_decay", text, 3), NG_ERR_ARG);
  assert_int_equal(ng_options_idle(&o, "no_such_option", text, sizeof text), NG_ERR_ARG);
}

/* ng_option_info.needs names the option that the sentence begins with, and only where there is one. */
static void needs_are_named(void **state) {
  (void)state;
  int32_t named = 0;
  for (int32_t i = 0; i < ng_option_count(); i++) {
    const ng_option_info info = option_info(i);
    ng_options o = method("adasgd"); /* sides = none */
    char text[64], begins[64];
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

/* Two steps of a small layer. */
static void gradient_of(ng_context *ctx, const ng_options *o, float out[12]) {
  ng_precond *p = NULL;
  ng_batch b;
  int32_t fc = -1;
  float a[6], g[8], w[12];
  for (int i = 0; i < 12; i++)
    w[i] = 0.1F * (float)(i + 1);
  const plane va = plane_of(a, 2, 3, NG_F32), vg = plane_of(g, 2, 4, NG_F32);
  const plane grad = plane_of(out, 4, 3, NG_F32), weight = plane_of(w, 4, 3, NG_F32);
  assert_int_equal(ng_precond_create_from(ctx, o, &p), NG_OK);
  assert_int_equal(ng_add_linear(p, "fc", 3, 4, 0, &fc), NG_OK);
  assert_int_equal(plane_bind_grad(p, fc, NG_WEIGHT, &grad), NG_OK);
  assert_int_equal(plane_bind_weight(p, fc, NG_WEIGHT, &weight), NG_OK);
  assert_int_equal(ng_ready(p), NG_OK);
  ng_batch_init(&b, sizeof b);
  b.samples = 2;
  for (int step = 0; step < 2; step++) {
    for (int i = 0; i < 6; i++)
      a[i] = (float)((i * 5 + step) % 7) - 3;
    for (int i = 0; i < 8; i++)
      g[i] = 0.5F * (float)((i * 3 + step) % 5) - 1;
    for (int i = 0; i < 12; i++)
      out[i] = (float)((i * 7 + step) % 11) - 5;
    assert_int_equal(ng_begin(p, &b), NG_OK);
    if (ng_wants(p, fc)) {
      assert_int_equal(plane_input(p, fc, &va, NG_COPY), NG_OK);
      assert_int_equal(plane_output_grad(p, fc, &vg, NG_COPY), NG_OK);
    }
    assert_int_equal(ng_step(p, 0.5), NG_OK);
  }
  ng_precond_destroy(&p);
}

/* Some value that is neither the one in *o nor refused beside the others. */
static bool other_value(ng_options *o, const ng_option_info *info) {
  static const char *const number[] = {"1", "2", "0.25", "0"};
  char before[64], word[64];
  assert_int_equal(ng_options_get(o, info->name, before, sizeof before), NG_OK);
  const char *choice = info->choices;
  for (int i = 0; info->type == NG_OPTION_CHOICE ? choice[0] != 0 : i < 4; i++) {
    const size_t n = strcspn(choice, "|");
    ng_options changed = *o;
    (void)snprintf(word, sizeof word, "%.*s", (int)n, choice);
    if (info->type == NG_OPTION_CHOICE) choice += n + (choice[n] != 0);
    const char *value = info->type == NG_OPTION_CHOICE ? word : number[i];
    if (strcmp(value, before) == 0 ||
        ng_options_set(&changed, info->name, value, message, sizeof message) != NG_OK ||
        ng_options_check(&changed, message, sizeof message) != NG_OK) {
      continue;
    }
    *o = changed;
    return true;
  }
  return false;
}

/* What is idle may be anything: the same bits come out. */
static void idle_means_no_effect(void **state) {
  (void)state;
  static const char *const set_up[][3] = {{"natgrad", "clip", "none"},
                                          {"natgrad", "clip", "kl"},
                                          {"eva", "clip", "rescale"},
                                          {"adasgd", "clip", "none"},
                                          {"topk-sgd", "clip", "none"}};
  ng_context *ctx = NULL;
  int32_t tried = 0;
  assert_int_equal(ng_context_create(NG_VERSION, NULL, message, sizeof message, &ctx), NG_OK);
  for (int k = 0; k < 5; k++) {
    for (int32_t i = 0; i < ng_option_count(); i++) {
      const ng_option_info info = option_info(i);
      ng_options o = method(set_up[k][0]);
      char text[64];
      float x[12], y[12];
      set(&o, set_up[k][1], set_up[k][2]);
      assert_int_equal(ng_options_idle(&o, info.name, text, sizeof text), NG_OK);
      ng_options changed = o;
      if (text[0] == 0 || !other_value(&changed, &info)) continue;
      gradient_of(ctx, &o, x);
      gradient_of(ctx, &changed, y);
      if (memcmp(x, y, sizeof x) != 0) fail_msg("%s has an effect without %s", info.name, text);
      tried++;
    }
  }
  ng_context_destroy(&ctx);
  assert_true(tried >= 12); /* both bounds, and the statistics that rank one has */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(skipped_as_asked),     cmocka_unit_test(skip_refuses),
      cmocka_unit_test(idle_options),         cmocka_unit_test(needs_are_named),
      cmocka_unit_test(idle_means_no_effect),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
