/* t_idle.c: ng_options_idle returns exactly the options without an effect, and names the option that they need.
 *
 * Run with other values of each option.  An idle option changes no bit.  For every kind of window, a window option
 * that is not idle has at least one value that changes the directions, or all its values are refused. */
#include "options_help.h"

enum { B = 2, ROWS = 6, COLS = 5, D = ROWS * COLS + ROWS + 4, STEPS = 7 };

typedef struct directions {
  float P[STEPS][D];
} directions;

/* Train with a learning rate that falls by more than half, weights that are 0, and two groups. */
static void train_with_options(const ng_options *o, directions *l) {
  float g[D], w[D], x[B * COLS], y[B * ROWS];
  fixture f;
  const plane in = plane_of(x, B, COLS, NG_F32), out = plane_of(y, B, ROWS, NG_F32);
  static const fixture_entry entries[] = {{"fc", ROWS, COLS, true}, {"scale", 1, 4, false}};
  for (int i = 0; i < D; i++)
    w[i] = i % 4 == 0 ? 0.0F : 0.125F * (float)(i % 7) - 0.4F;
  fixture_ok(&f, fixture_open_options(&f, o, NULL));
  fixture_ok(&f, fixture_add_entries(&f, entries, 2, g, w));
  fixture_ok(&f, ng_set_group(f.p, 1, NG_WEIGHT, 1));
  fixture_ok(&f, ng_ready(f.p));
  for (int t = 0; t < STEPS; t++) {
    for (int i = 0; i < D; i++) {
      rng r = {(uint64_t)(t * D + i)};
      g[i] = (float)(2 * rng_real(&r) - 1);
    }
    for (int i = 0; i < B * COLS; i++)
      x[i] = (float)((i * 5 + t) % 7) - 3;
    for (int i = 0; i < B * ROWS; i++)
      y[i] = 0.5F * (float)((i * 3 + t) % 5) - 1;
    if (ng_wants(f.p, 0)) fixture_ok(&f, fixture_begin_and_observe(&f, B, 0, &in, &out));
    const ng_status st = ng_step(f.p, t < 4 ? 0.5 : 0.2);
    if (st != NG_RESCUED) fixture_ok(&f, st);
    memcpy(l->P[t], g, sizeof g);
  }
  fixture_close(&f);
}

/* Train with all other values of an option.  tried: accepted values; changed: values that give other bits. */
static void try_all_values(const ng_options *o, const ng_option_info *info,
                           const directions *standard, int *tried, int *changed) {
  static const char *const number[] = {"1", "2", "0.25", "0", "0.9", "5"};
  static directions other;
  char before[64], word[64], message[512];
  const char *choice = info->choices;
  assert_int_equal(ng_options_get(o, info->name, before, sizeof before), NG_OK);
  *tried = *changed = 0;
  for (int i = 0; info->type == NG_OPTION_CHOICE ? choice[0] != 0 : i < 6; i++) {
    const size_t n = strcspn(choice, "|");
    ng_options now = *o;
    (void)snprintf(word, sizeof word, "%.*s", (int)n, choice);
    if (info->type == NG_OPTION_CHOICE) choice += n + (choice[n] != 0);
    const char *value = info->type == NG_OPTION_CHOICE ? word : number[i];
    if (strcmp(value, before) == 0 ||
        ng_options_set(&now, info->name, value, message, sizeof message) != NG_OK ||
        ng_options_check(&now, message, sizeof message) != NG_OK)
      continue;
    train_with_options(&now, &other);
    ++*tried;
    *changed += memcmp(standard->P, other.P, sizeof other.P) != 0;
  }
}

static const char *const setups[] = {
    "method=natgrad clip=none",
    "method=natgrad clip=kl",
    "method=eva clip=rescale",
    "method=adasgd clip=none",
    "method=mfac",
    "method=mfac window_momentum=0.5",
    "method=mfac window_momentum=0.5 window_momentum_form=gradient window_decay=0.1",
    "method=mfac window_decay_form=none",
    "method=ggt window_momentum=0 window_forget=1",
    "method=ggt",
    "method=efcp window_density=0.3 window_momentum=0",
    "method=efcp window_density=0.3 window_decay=0.1",
    "method=efcp window_store=dense",
    "method=sparse-ggt window_density=0.3",
    "method=lowrank-mfac",
    "method=lowrank-mfac window_momentum=0.5 window_rank=2",
    "method=topk-sgd window_density=0.3",
    "method=topk-sgd window_density=0.3 window_momentum=0.5 window_decay=0.1",
    "method=topk-sgd window_store=dense",
    "method=topk-sgd window_store=lowrank",
    "method=topk-adam window_density=0.3",
    "method=topk-adam window_store=dense",
    "method=topk-adagrad window_density=0.3",
    "method=topk-adagrad window_store=dense",
};

static void idle_options_have_no_effect(void **state) {
  static directions standard;
  int idle = 0, bad = 0;
  for (size_t k = 0; k < sizeof setups / sizeof setups[0]; k++) {
    char line[300];
    const bool first = strstr(setups[k], "topk-") != NULL, window = first || k > 3;
    (void)snprintf(line, sizeof line, "%s%s", setups[k],
                   first || !window ? "" : " window=3 damping=0.1");
    const ng_options o = fixture_parse_options(line);
    train_with_options(&o, &standard);
    for (int32_t i = 0; i < ng_option_count(); i++) {
      ng_option_info info = {.struct_size = sizeof info};
      char must_need[128];
      int tried, changed;
      assert_int_equal(ng_option_at(i, &info), NG_OK);
      assert_int_equal(ng_options_idle(&o, info.name, must_need, sizeof must_need), NG_OK);
      const bool known =
          window && (strcmp(info.trait, "a window") == 0 || strcmp(info.name, "damping") == 0);
      if (must_need[0] == 0 && !known) continue;
      try_all_values(&o, &info, &standard, &tried, &changed);
      idle += must_need[0] != 0;
      if (must_need[0] != 0 ? changed == 0 : tried == 0 || changed > 0) continue;
      bad++;
      print_message("%s: %s needs '%s', %d of %d values change something\n", line, info.name,
                    must_need, changed, tried);
    }
  }
  assert_int_equal(bad, 0);
  assert_true(idle > 60);
}

/* ---- what an idle option needs ---------------------------------------------------------------*/

static ng_options options_of_method(const char *name) {
  ng_options o = standard_options();
  fixture_set(&o, "method", name);
  return o;
}

static void must_need(const ng_options *o, const char *option, const char *expected) {
  char text[128] = "x";
  assert_int_equal(ng_options_idle(o, option, text, sizeof text), NG_OK);
  if (strcmp(text, expected) != 0) fail_msg("%s needs '%s', expected '%s'", option, text, expected);
}

static void idle_options_name_what_they_need(void **state) {
  static const char *const clip[] = {"kl", "rescale", "norm", "ratio", "rms", "value", "none"};
  ng_options o = standard_options();
  for (int i = 0; i < 7; i++) {
    fixture_set(&o, "clip", clip[i]);
    must_need(&o, "kl_clip", i == 0 ? "" : "clip = kl");
    must_need(&o, "kl-clip", i == 0 ? "" : "clip = kl");
    must_need(&o, "clip_bound", i >= 2 && i <= 5 ? "" : "clip = norm, ratio, rms or value");
    must_need(&o, "damping", "");
    must_need(&o, "clip", "");
  }
  o = options_of_method("mfac");
  must_need(&o, "window_fill", "window_store = topk, topk-layer, topk-block or lowrank");
  must_need(&o, "window_momentum_form", "window_momentum above 0");
  must_need(&o, "window_scope", "");
  o = options_of_method("lowrank-mfac");
  must_need(&o, "window_fill", "");
  o = options_of_method("topk-sgd");
  must_need(&o, "damping", "window_function = mfac, mfac-filled, ggt, adam or adagrad");
  must_need(&o, "window_scope", "");
  fixture_set(&o, "window_store", "dense");
  must_need(&o, "window_scope",
            "window_function = mfac, mfac-filled or ggt, or window_store = topk, topk-layer or "
            "topk-block");
  o = options_of_method("topk-adam");
  must_need(&o, "damping", "");
  o = options_of_method("natgrad");
  o = options_of_method("eva");
  must_need(&o, "stat_decay", "");
  fixture_set(&o, "sides", "input");
  must_need(&o, "stat_decay", "");
  fixture_set(&o, "sides", "none");
  must_need(&o, "stat_decay", "sides = both or input");
  must_need(&o, "stat_batch", "sides = both or input");
  must_need(&o, "sides", "");

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
    ng_options o = options_of_method("adasgd"); /* sides = none */
    char text[128], begins[64];
    fixture_set(&o, "solver", "eigen");
    fixture_set(&o, "clip", "rescale");
    fixture_set(&o, "placement", "spngd");
    fixture_set(&o, "window_function", "step");
    fixture_set(&o, "window_decay_form", "none");
    fixture_set(&o, "muon_coefficients", "quintic");
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
      cmocka_unit_test(idle_options_have_no_effect),
      cmocka_unit_test(idle_options_name_what_they_need),
      cmocka_unit_test(needs_is_the_option_of_the_sentence),
  };
  return cmocka_run_group_tests_name("idle options", tests, NULL, NULL);
}
