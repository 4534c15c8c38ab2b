/* t_option_effects_layers.c: options of single layers: per_layer, and what a layer may have of windows; see
 * effects.h. */
#include "effects.h"

#define PARTS "damping=0.1 window_scope=parameter "
#define MFAC "method=mfac window=2 " PARTS
#define TOPK MFAC "window_store=topk window_density=0.3 "

static bool same_bits(const run *a, const run *b) {
  return memcmp(a->rank[0].P, b->rank[0].P, sizeof a->rank[0].P) == 0;
}

/* fc1 alone is another; of each step, or of some. */
static void only_fc1(const run *base, const run *over, const char *what) {
  double most = 0;
  for (int32_t step = 0; step < usual.steps; step++) {
    most = fmax(most, gap_of(base, over, step, FC1));
    if (gap_of(base, over, step, CONV) > 0 || gap_of(base, over, step, FC2) > 0)
      fail_msg("%s reached another layer", what);
  }
  if (!(most > 0 && most < 1e12)) fail_msg("%s did nothing: %g", what, most);
}

/* The same as ng_layer.options, by name or by kind; the first entry that matches. */
static void effect_per_layer(void **state) {
  (void)state;
#define KFAC "damping=0.1 clip=none solve_period=1 "
  static const char *const one[] = {
      KFAC "per_layer='fc1: damping=3'", KFAC "per_layer='fc1:\tdamping=3 '",
      KFAC "per_layer='[a-f]?1: damping=3; fc*: damping=0.1; conv*: damping=0.1'"};
  run own = usual;
  const run base = with(KFAC);
  own.settings = KFAC;
  own.layer_options = "damping=3";
  own = play(own);
  only_fc1(&base, &own, "damping=3");
  for (int i = 0; i < 3; i++) {
    const run a = with(one[i]);
    assert_true(same_bits(&a, &own));
  }
  const run all = with(KFAC "per_layer='linear: damping=3; Conv2d: damping=3'");
  const run three = with("damping=3 clip=none solve_period=1");
  assert_true(same_bits(&all, &three));
  /* A layer's own line comes first; so fc1 is as it was, and fc2 is not. */
  run mine = usual;
  mine.settings = KFAC "per_layer='fc*: damping=4'";
  mine.layer_options = "damping=3";
  mine = play(mine);
  assert_within(gap_of(&mine, &own, 0, FC1), 0);
  assert_differ(gap_of(&mine, &own, 0, FC2));
}

/* A method of its own: fc1 has the values of that row, whatever the model's are, and the others keep every bit. */
static void method_of_a_layer(void **state) {
  (void)state;
  static const char *const model[] = {"", "solver=eigen damping_split=joint stat_decay=0.5 "};
  static const struct {
    const char *line, *alone;
  } row[] = {
      {"method=mfac window=2 damping=0.1", "method=mfac window=2 damping=0.1"},
      {"method=ggt damping=0.1 window=2", "method=ggt window=2 damping=0.1"},
      {"damping=0.5 window_density=0.3 method=efcp", "method=efcp window_density=0.3 damping=0.5"},
      {"method=eva", "method=eva clip=none"},
      {"method=kaisa solve_period=2", "method=kaisa solve_period=2 clip=none"}};
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
    char base[128], mixed[256], alone[200];
    (void)snprintf(base, sizeof base, "damping=0.2 clip=none %s", model[i % 2]);
    (void)snprintf(mixed, sizeof mixed, "%s per_layer='fc1: %s'", base, row[i].line);
    (void)snprintf(alone, sizeof alone, "%s skip_layers='conv*,fc2'", row[i].alone);
    const run a = with(base), b = with(mixed), c = with(alone);
    only_fc1(&a, &b, mixed);
    for (int32_t step = 0; step < usual.steps; step++)
      assert_within(gap_of(&b, &c, step, FC1), 0);
  }
}

static const struct override {
  const char *text, *settings;
} override[] = {
    {"window=1", MFAC},
    {"window_function=ggt", MFAC},
    {"window_scope=model", MFAC},
    {"window_dtype=bf16", MFAC},
    {"window_divisor=filled", MFAC},
    {"window_forget=0.5", "method=ggt window=2 " PARTS},
    {"window_momentum=0.5", MFAC},
    {"window_momentum_form=heavy-ball", MFAC "window_momentum=0.5"},
    {"window_decay=0.1", MFAC},
    {"window_decay_form=direction", MFAC "window_decay=0.1"},
    {"window_mask=1", NULL}, /* below */
    {"window_store=topk", MFAC},
    {"window_density=0.1", TOPK},
    {"window_topk=block", TOPK},
    {"window_rest=added", TOPK},
    {"window_feedback_lr=1", TOPK},
    {"window_rank=2", MFAC "window_store=lowrank"},
    {"window_fill=gradient", TOPK},
    {"window_empty=0.5", MFAC},
    {"damping=3", MFAC},
    {"stat_period=2", MFAC},
};

/* Every option of windows, given to fc1 alone: it has a window of its own then, and with one for each parameter
 * nothing else may move.  The rate falls before the last step. */
static void windows_of_layers(void **state) {
  (void)state;
  const int32_t n = (int32_t)(sizeof override / sizeof override[0]);
  for (int32_t k = 0; k < n; k++) {
    if (override[k].settings == NULL) continue;
    run r = usual;
    r.settings = override[k].settings;
    r.lr = 0.5;
    r.last_lr = 0.1;
    const run base = play(r);
    r.layer_options = override[k].text;
    const run over = play(r);
    only_fc1(&base, &over, override[k].text);
  }
  for (int32_t i = 0; i < ng_option_count(); i++) {
    ng_option_info info = {.struct_size = sizeof info};
    assert_int_equal(ng_option_at(i, &info), NG_OK);
    if (strcmp(info.family, "window") != 0) continue;
    int32_t found = 0;
    const size_t length = strlen(info.name);
    for (int32_t k = 0; k < n; k++)
      found += strncmp(override[k].text, info.name, length) == 0 && override[k].text[length] == '=';
    if (found != 1 || !info.per_layer) fail_msg("%s", info.name);
  }
}

/* The weights of conv are 0: masked, its direction is 0. */
static void mask_of_a_layer(void **state) {
  (void)state;
  run a = usual, b = usual;
  a.settings = MFAC;
  b.settings = MFAC "per_layer='conv: window_mask=1'";
  a.only_fc1 = b.only_fc1 = true;
  a = play(a);
  b = play(b);
  for (int32_t step = 0; step < usual.steps; step++) {
    assert_within(gap_of(&a, &b, step, FC1), 0);
    assert_within(gap_of(&a, &b, step, FC2), 0);
    for (int64_t k = layer[CONV].at; k < layer[FC1].at; k++)
      assert_true(a.rank[0].P[step][k] != 0 && b.rank[0].P[step][k] == 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(effect_per_layer),
      cmocka_unit_test(method_of_a_layer),
      cmocka_unit_test(windows_of_layers),
      cmocka_unit_test(mask_of_a_layer),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
