/* t_option_settings.c: options as the rooms read them: ids, rows and fields in step, choices as
 * enums, sets of any size, and which value holds: the model's, after ng_set, a layer's own. */
#include "options_help.h"
#include "settings_number.h"

#include "step/step.h"
#include "option/option.h"

/* What an option does is shown in t_option_effects*.c, what texts are accepted in t_options.c; here
 * it is that nothing gets lost between the text and the field that a room reads. */

static char message[512];

/* ---- one list --------------------------------------------------------------------------------*/

/* The ids are places in the table, and the table has no hole. */
static void ids_are_rows(void **state) {
  (void)state;
  /* by the list, not by the table: a row that is missing would not be walked */
#define CHECK(kind, field, ctype)                                                                  \
  assert_non_null(ng_option_table[NG_OPTION_##field].name);                                        \
  assert_string_equal(ng_option_name(NG_OPTION_##field), #field);                                  \
  assert_int_equal(ng_option_find(#field), NG_OPTION_##field);                                     \
  assert_int_equal(ng_option_table[NG_OPTION_##field].type, NG_OPTION_##kind);                     \
  assert_true(ng_option_table[NG_OPTION_##field].offset == offsetof(ng_options, field));
  NG_OPTION_LIST(CHECK)
#undef CHECK
  assert_int_equal(ng_option_count(), NG_OPTION_COUNT);
}

/* Every choice as text becomes its enum and is named by it; the list for people has the
 * same ones. */
static void choices_are_enums(void **state) {
  (void)state;
  for (int32_t i = 0; i < NG_OPTION_COUNT; i++) {
    const ng_option_row *row = &ng_option_table[i];
    size_t letters = 0; /* of all choices, with a bar or the end after each */
    if (row->type != NG_OPTION_CHOICE) continue;
    for (int32_t v = 0; v < NG_CHOICES_MAX; v++) {
      ng_options o = standard_options();
      ng_settings s;
      if (row->choice[v] == NULL) continue;
      assert_int_equal(ng_options_set(&o, row->name, row->choice[v], NULL, 0), NG_OK);
      ng_settings_of(&o, &s);
      assert_true(settings_number(&s, (ng_option_id)i) == (double)v);
      assert_string_equal(ng_choice_text((ng_option_id)i, v), row->choice[v]);
      assert_int_equal(ng_option_chosen(&o, (ng_option_id)i), v);
      assert_true(ng_in_list(row->choices, row->choice[v]));
      letters += strlen(row->choice[v]) + 1;
    }
    assert_int_equal(letters, strlen(row->choices) + 1);
  }
  /* and nothing else does */
  assert_int_equal(ng_option_choice(&ng_option_table[NG_OPTION_solver], "choleski"), -1);
}

/* Fields other than choices are the same numbers; texts stay where they are. */
static void settings_are_the_options(void **state) {
  (void)state;
  ng_options o = standard_options();
  ng_settings s;
  assert_int_equal(ng_options_set(&o, "method", "mpd-kfac", NULL, 0), NG_OK);
  fixture_real(&o, "prediv", 1);
  fixture_set(&o, "skip_layers", "fc");
  ng_settings_of(&o, &s);
  assert_string_equal(s.family, "kronecker");
  assert_true(s.solver == NG_SOLVER_EIGEN && s.calls == NG_CALLS_LAST);
  assert_true(s.factor_dtype == NG_F32 && s.stat_scale == NG_SCALE_MPD_KFAC);
  for (int32_t i = 0; i < NG_OPTION_COUNT; i++) {
    const ng_option_row *row = &ng_option_table[i];
    if (row->type == NG_OPTION_CHOICE || row->type == NG_OPTION_TEXT) continue;
    assert_true(settings_number(&s, (ng_option_id)i) == ng_option_number(row, &o));
  }
  /* the method decides the family */
  assert_int_equal(ng_options_set(&o, "method", "eva", NULL, 0), NG_OK);
  ng_settings_of(&o, &s);
  assert_string_equal(s.family, "rankone");
}

/* ---- sets ------------------------------------------------------------------------------------*/

/* As many options as nobody has yet: members do not meet across words, nor at their edges. */
static void sets_beyond_a_word(void **state) {
  (void)state;
  enum { MANY = 200 };
  uint64_t word[NG_BIT_WORDS(MANY)];
  assert_int_equal(NG_BIT_WORDS(1), 1);
  assert_int_equal(NG_BIT_WORDS(64), 1);
  assert_int_equal(NG_BIT_WORDS(65), 2);
  assert_int_equal(sizeof word, 4 * sizeof(uint64_t));
  for (int32_t i = 0; i < MANY; i++) {
    memset(word, 0, sizeof word);
    ng_bits_add(word, i); /* twice is once */
    ng_bits_add(word, i);
    for (int32_t k = 0; k < MANY; k++) {
      assert_int_equal(ng_bits_has(word, k), i == k);
    }
  }
  for (int32_t i = 0; i < MANY; i++) {
    ng_bits_add(word, i);
  }
  for (int32_t k = 0; k < MANY; k++) {
    assert_true(ng_bits_has(word, k));
  }
  assert_true(sizeof(ng_option_mask) * 8 >= NG_OPTION_COUNT);
}

/* ---- which value holds when ------------------------------------------------------------------*/

/* Two layers, the second with a damping of its own. */
/* A block's own values must survive ng_set, so one of each kind of number. */
static ng_precond *two_layers(ng_context *ctx, const ng_options *o) {
  ng_precond *p = NULL;
  ng_layer l;
  int32_t index = 0;
  assert_int_equal(ng_precond_create_from(ctx, o, &p), NG_OK);
  assert_int_equal(ng_add_linear(p, "a", 3, 2, 1, &index), NG_OK);
  ng_layer_init(&l, NG_LINEAR, sizeof l);
  l.name = "b";
  l.in = l.out = 2;
  l.options = "damping=0.5 solve_period=4";
  assert_int_equal(ng_add_layer(p, &l, &index), NG_OK);
  assert_int_equal(ng_ready(p), NG_OK);
  return p;
}

/* ng_set changes the model and a layer without values of its own. */
static void model_and_layers(void **state) {
  (void)state;
  ng_context_config config;
  ng_context *ctx = NULL;
  ng_options o = standard_options();
  ng_context_config_init(&config, sizeof config);
  config.threads = 1;
  assert_int_equal(ng_context_create(NG_VERSION, &config, message, sizeof message, &ctx), NG_OK);
  ng_precond *p = two_layers(ctx, &o);
  const ng_settings *a = &p->block[0]->base, *b = &p->block[1]->base;
  assert_true(p->base.damping == 0.1 && a->damping == 0.1 && b->damping == 0.5);
  assert_true(p->base.solve_period == 10 && a->solve_period == 10 && b->solve_period == 4);
  assert_int_equal(ng_set(p, "damping", "0.3"), NG_OK);
  assert_true(p->base.damping == 0.3 && a->damping == 0.3 && p->opt.damping == 0.3);
  assert_true(b->damping == 0.5);
  assert_int_equal(ng_set(p, "clip", "rms"), NG_ERR_ARG); /* it needs a bound: nothing changed */
  assert_true(p->base.clip == NG_CLIP_KL && b->clip == NG_CLIP_KL);
  assert_int_equal(ng_set(p, "clip", "none"), NG_OK);
  assert_true(p->base.clip == NG_CLIP_NONE && a->clip == NG_CLIP_NONE);
  ng_precond_destroy(&p);
  ng_context_destroy(&ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ids_are_rows),
      cmocka_unit_test(choices_are_enums),
      cmocka_unit_test(settings_are_the_options),
      cmocka_unit_test(sets_beyond_a_word),
      cmocka_unit_test(model_and_layers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
