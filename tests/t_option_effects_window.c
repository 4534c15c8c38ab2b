/* t_option_effects_window.c: the options of windows, and of what is measured; see effects.h. */
#include "effects.h"

#define MFAC "method=mfac window=2 damping=0.1; "
/* Two settings: the first `same` steps have the same bits, the ones behind differ. */
static void windows_differ(const char *one, const char *two, int32_t same) {
  const run a = with(one), b = with(two);
  for (int32_t step = 0; step < usual.steps; step++) {
    if (step < same) {
      assert_within(gap_at(&a, &b, step), 0);
    } else {
      assert_differ(gap_at(&a, &b, step));
    }
  }
}

/* One more gradient is seen in the second step; the divisor from the first. */
static void effect_window(void **state) {
  (void)state;
  windows_differ(MFAC "window_divisor=filled window=1", MFAC "window_divisor=filled window=2", 1);
  windows_differ(MFAC "window_divisor=filled window=2", MFAC "window_divisor=filled window=3", 2);
  windows_differ(MFAC "window=2", MFAC "window=3", 0);
}

static void effect_window_function(void **state) {
  static const char *const first[] = {"step", "adam", "adagrad"};
  (void)state;
  for (int i = 0; i < 3; i++) { /* of one gradient, dense */
    char one[100], two[100];
    (void)snprintf(one, sizeof one, "method=mfac damping=0.1 window=1 window_function=%s",
                   first[i]);
    (void)snprintf(two, sizeof two, "method=mfac damping=0.1 window=1 window_function=%s",
                   first[(i + 1) % 3]);
    windows_differ(one, two, 0);
  }
  windows_differ(MFAC "window_function=mfac", MFAC "window_function=ggt", 0);
}

static void effect_window_scope(void **state) {
  (void)state;
  windows_differ(MFAC "window_scope=model", MFAC "window_scope=parameter", 0);
}

/* 2^-9 of rounding, and no more. */
static void effect_window_dtype(void **state) {
  (void)state;
  const run a = with(MFAC "window_dtype=f32"), b = with(MFAC "window_dtype=bf16");
  assert_differ(gap(&a, &b));
  assert_within(gap(&a, &b), 0.02);
  assert_true(b.rank[0].factors < a.rank[0].factors);
}

static void effect_window_divisor(void **state) {
  (void)state;
  const run a = with(MFAC "window_divisor=window"), b = with(MFAC "window_divisor=filled");
  assert_differ(gap_at(&a, &b, 0));
  assert_within(gap_at(&a, &b, 1), 0); /* the window is full */
}

static void effect_window_forget(void **state) {
  (void)state;
  const char *const ggt = "method=ggt window=2 damping=0.1 window_forget=0.5";
  windows_differ("method=ggt window=2 damping=0.1", ggt, 1);
}

static void effect_window_momentum(void **state) {
  (void)state;
  windows_differ(MFAC "window_momentum=0.5", MFAC "window_momentum=0.6", 0);
  windows_differ(MFAC, MFAC "window_momentum=0.5 window_momentum_form=heavy-ball", 1);
}

static void effect_window_momentum_form(void **state) {
  (void)state;
  windows_differ(MFAC "window_momentum=0.5 window_momentum_form=average",
                 MFAC "window_momentum=0.5 window_momentum_form=heavy-ball", 0);
  const run a = with(MFAC "window_momentum=0.5 window_momentum_form=average");
  const run b = with(MFAC "window_momentum=0.5 window_momentum_form=gradient");
  assert_within(gap_at(&a, &b, 0), 1e-5); /* P is linear: the same but for rounding */
  assert_differ(gap_at(&a, &b, 1));       /* the average of u, or P now of the average */
}

static void effect_window_decay(void **state) {
  (void)state;
  windows_differ(MFAC, MFAC "window_decay=0.1", 0);
  windows_differ(MFAC "window_decay=0.1", MFAC "window_decay=0.2", 0);
}

static void effect_window_decay_form(void **state) {
  (void)state;
  windows_differ(MFAC "window_decay=0.1 window_decay_form=gradient",
                 MFAC "window_decay=0.1 window_decay_form=direction", 0);
  windows_differ(MFAC, MFAC "window_decay=0.1 window_decay_form=none", usual.steps);
}

/* All weights but those of fc1 are 0. */
static void effect_window_mask(void **state) {
  (void)state;
  run a = usual, b = usual;
  a.settings = MFAC "window_mask=0";
  b.settings = MFAC "window_mask=1";
  a.only_fc1 = b.only_fc1 = true;
  a = play(a);
  b = play(b);
  assert_differ(gap_of(&a, &b, 0, FC1)); /* the norm of the gradient is another */
  for (int32_t step = 0; step < usual.steps; step++) {
    for (int64_t k = 0; k < TOTAL; k++) {
      const bool in = k >= layer[FC1].at && k < layer[FC2].at;
      assert_true((b.rank[0].P[step][k] != 0) == in);
    }
  }
}

#define TOPK MFAC "window_store=topk window_density=0.3; "
#define LOWRANK MFAC "window_store=lowrank window_rank=2; "
/* Entries that are not 0 in the first step. */
static int32_t sent(const run *r, int64_t from, int64_t to) {
  int32_t n = 0;
  for (int64_t k = from; k < to; k++) {
    n += r->rank[0].P[0][k] != 0;
  }
  return n;
}

static void effect_window_store(void **state) {
  (void)state;
  windows_differ(MFAC "window_store=dense", TOPK, 0);
  windows_differ(MFAC "window_store=dense", MFAC "window_store=lowrank", 0);
  windows_differ(TOPK, MFAC "window_store=lowrank", 0);
}

static void effect_window_density(void **state) {
  (void)state;
  const run a = with(TOPK "window_density=0.1"), b = with(TOPK "window_density=0.5");
  assert_int_equal(sent(&a, 0, TOTAL), 13);
  assert_int_equal(sent(&b, 0, TOTAL), 65);
  const run all = with(TOPK "window_density=1"), dense = with(MFAC);
  assert_within(gap(&all, &dense), 1e-6);
}

/* fc1 has 35 numbers and conv 76, with biases of 5 and 4. */
static void effect_window_topk(void **state) {
  (void)state;
  const run a = with(TOPK "window_topk=global"), b = with(TOPK "window_topk=layer"),
            c = with(TOPK "window_topk=block");
  assert_int_equal(sent(&a, 0, TOTAL), 39);
  assert_int_equal(sent(&b, layer[FC1].at, layer[FC1].at + 30), 9);
  assert_int_equal(sent(&b, layer[FC1].at + 30, layer[FC2].at), 1);
  assert_int_equal(sent(&b, layer[CONV].at, layer[FC1].at), 21 + 1);
  assert_int_equal(sent(&c, 0, TOTAL), 40); /* one block, rounded up */
}

static void effect_window_rest(void **state) {
  (void)state;
  windows_differ(TOPK "window_rest=kept", TOPK "window_rest=added", 0);
  windows_differ(LOWRANK "window_rest=kept", LOWRANK "window_rest=added", 0);
  const run a = with(TOPK "window_rest=added");
  assert_int_equal(sent(&a, 0, TOTAL), TOTAL);
}

/* Of the first three steps of a window of two, the first two fill it.  Where sparse directions are 0, they
 * have the gradient's numbers; or what was left out, which is then gone: what later steps send differs. */
static void effect_window_fill(void **state) {
  (void)state;
  const run none = with(TOPK), gradient = with(TOPK "window_fill=gradient"),
            error = with(TOPK "window_fill=error"), rest = with(TOPK "window_fill=rest"),
            added = with(TOPK "window_rest=added");
  float D[TOTAL];
  gradient_of(0, D);
  for (int64_t k = 0; k < TOTAL; k++) {
    const float x = none.rank[0].P[0][k];
    assert_true(gradient.rank[0].P[0][k] == (x == 0 ? D[k] : x));
    assert_true(error.rank[0].P[0][k] == (x == 0 ? D[k] : x)); /* all that was left is D */
  }
  for (int32_t step = 0; step < 2; step++) {
    assert_within(gap_at(&added, &rest, step), 0);
    assert_differ(gap_at(&none, &error, step));
  }
  assert_within(gap_at(&none, &gradient, 2), 0);
  assert_within(gap_at(&none, &rest, 2), 0);
  assert_differ(gap_at(&none, &error, 2)); /* less was left */
  assert_differ(gap_at(&gradient, &error, 1));
  int32_t zeros = 0;
  for (int64_t k = 0; k < TOTAL; k++)
    zeros += error.rank[0].P[2][k] == 0;
  assert_true(zeros > 0);
}

/* An lr that falls to a tenth: the third gradient is alone, as the first one was; one that falls less is
 * none. */
static void effect_window_empty(void **state) {
  (void)state;
  run one = usual, kept = usual, emptied = usual, less = usual;
  one.settings = MFAC "window=1 window_divisor=filled clip=none";
  kept.settings = MFAC "window_divisor=filled clip=none";
  emptied.settings = MFAC "window_divisor=filled clip=none window_empty=0.1";
  less.settings = MFAC "window_divisor=filled clip=none window_empty=0.09";
  kept.last_lr = emptied.last_lr = less.last_lr = 0.1;
  one = play(one);
  kept = play(kept);
  emptied = play(emptied);
  less = play(less);
  for (int32_t step = 0; step < 2; step++)
    assert_within(gap_at(&kept, &emptied, step), 0);
  assert_differ(gap_at(&kept, &emptied, 2));
  assert_within(gap_at(&one, &emptied, 2), 0);
  assert_within(gap_at(&kept, &less, 2), 0);
}

/* Every lr is 1 here; of half of it, what entered is half as large. */
static void effect_window_feedback_lr(void **state) {
  (void)state;
  static const char *const settings[][2] = {
      {TOPK "window_feedback_lr=1 clip=none", TOPK "window_feedback_lr=0 clip=none"},
      {LOWRANK "window_feedback_lr=1 clip=none", LOWRANK "window_feedback_lr=0 clip=none"}};
  for (int i = 0; i < 2; i++) {
    run a = usual, b = usual, c = usual;
    a.settings = c.settings = settings[i][0];
    b.settings = settings[i][1];
    a.lr = 0.5;
    a = play(a);
    b = play(b);
    c = play(c);
    assert_differ(gap_at(&a, &b, 0));
    assert_within(gap_at(&c, &b, 0), 0);
  }
}

static void effect_window_rank(void **state) {
  (void)state;
  windows_differ(MFAC "window_store=lowrank window_rank=1",
                 MFAC "window_store=lowrank window_rank=2", 0);
  const run all = with(MFAC "window_store=lowrank window_rank=18"), dense = with(MFAC);
  assert_within(gap(&all, &dense), 1e-5);
}

/* The same bits leave; only one run knows that both elements became half as large. */
static void effect_quantify(void **state) {
  (void)state;
  const run off = with("method=natgrad quantify=0"), on = with("method=natgrad quantify=1");
  assert_within(gap(&off, &on), 0);
  for (int k = 0; k < 2; k++) {
    fixture f;
    ng_report r;
    float g[2] = {1, -2};
    const plane v = plane_of(g, 1, 2, NG_F32);
    fixture_ok(&f, fixture_open(&f,
                                "method=mfac window=1 window_function=step window_momentum=0.5 "
                                "damping=1 clip=none",
                                NULL));
    fixture_ok(&f, ng_set(f.p, "quantify", k == 0 ? "0" : "1"));
    fixture_ok(&f, fixture_tensor(&f, "w", &v, NULL));
    fixture_ok(&f, ng_ready(f.p));
    fixture_ok(&f, ng_step(f.p, 1.0));
    r = (ng_report){.struct_size = sizeof r};
    fixture_ok(&f, ng_report_read(f.p, &r));
    assert_true(r.scaled == 2 * k && fabs(r.scaling_max - 0.5 * k) < 1e-7);
    fixture_close(&f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(effect_window),          cmocka_unit_test(effect_window_function),
      cmocka_unit_test(effect_window_scope),    cmocka_unit_test(effect_window_dtype),
      cmocka_unit_test(effect_window_divisor),  cmocka_unit_test(effect_window_forget),
      cmocka_unit_test(effect_window_momentum), cmocka_unit_test(effect_window_momentum_form),
      cmocka_unit_test(effect_window_decay),    cmocka_unit_test(effect_window_decay_form),
      cmocka_unit_test(effect_window_mask),     cmocka_unit_test(effect_window_store),
      cmocka_unit_test(effect_window_density),  cmocka_unit_test(effect_window_topk),
      cmocka_unit_test(effect_window_rest),     cmocka_unit_test(effect_window_feedback_lr),
      cmocka_unit_test(effect_window_rank),     cmocka_unit_test(effect_window_fill),
      cmocka_unit_test(effect_window_empty),    cmocka_unit_test(effect_quantify),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
