/* t_compare.c: computations of `natgrad compare` with given runs: statistics, targets, the best point of a grid;
 * parsing of lists and grids; tables.  tests/cli/compare.sh tests whole comparisons. */
#include "train/compare.h"
#include "train/table.h"
#include "trainer_help.h"
#include "unit_test.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void must_be_near(double got, double expected, double tolerance) {
  if (!(fabs(got - expected) <= tolerance)) fail_msg("%.17g, expected %.17g", got, expected);
}

/* ---- statistics ------------------------------------------------------------------------------*/

/* Sums of a few doubles of similar magnitude. */
#define NEAR 1e-12

static void statistics_match_hand_results(void **state) {
  /* 2 4 4 4 5 5 7 9: mean 5, squares sum to 32, so 32 / 7. */
  const double x[] = {2, 4, 4, (double)NAN, 4, 5, 5, 7, 9};
  const spread s = compare_compute_spread(x, 9);
  assert_int_equal(s.n, 8);
  must_be_near(s.mean, 5.0, NEAR);
  must_be_near(s.deviation, 2.1380899352993952, NEAR);
  must_be_near(s.min, 2.0, 0);
  must_be_near(s.max, 9.0, 0);
  const spread one = compare_compute_spread(x, 1), none = compare_compute_spread(x + 3, 1);
  assert_int_equal(one.n, 1);
  assert_true(isnan(one.deviation));
  must_be_near(one.mean, 2.0, 0);
  assert_int_equal(none.n, 0);
  assert_true(isnan(none.mean) && isnan(none.min) && isnan(none.max));
  /* 1e8 + {1, 2, 3}: a variance in one pass would be 0 or negative. */
  const double close[] = {1e8 + 1, 1e8 + 2, 1e8 + 3};
  must_be_near(compare_compute_spread(close, 3).deviation, 1.0, 1e-7);
}

/* Return a run of `n` epochs of one second, with these losses and accuracies. */
static train_result make_run(int n, const double *loss, const double *accuracy) {
  train_result r = {.epochs = n, .epoch = cli_alloc((size_t)n, sizeof(train_epoch))};
  for (int i = 0; i < n; i++) {
    r.epoch[i] = (train_epoch){.epoch = i + 1,
                               .step = 10 * (i + 1),
                               .seconds = 1.0 * (i + 1),
                               .train_loss = loss[i],
                               .test_loss = 2.0 * loss[i],
                               .train_accuracy = accuracy[i] / 2.0,
                               .test_accuracy = accuracy[i]};
  }
  return r;
}

static void targets_are_reached_at_the_first_epoch(void **state) {
  const double loss[] = {4, 2, 1}, acc1[] = {0.5, 0.75, 0.625}, acc2[] = {0.25, 0.5, 1.0};
  train_result run[3] = {make_run(3, loss, acc1), make_run(3, loss, acc2), make_run(2, loss, acc1)};
  must_be_near(compare_find_best(TEST_ACCURACY, &run[0]), 0.75, 0);
  must_be_near(compare_find_best(TRAIN_ACCURACY, &run[0]), 0.375, 0);
  must_be_near(compare_find_best(TRAIN_LOSS, &run[0]), 1.0, 0);
  must_be_near(compare_find_best(TEST_LOSS, &run[0]), 2.0, 0);
  assert_int_equal(compare_find_target_epoch(TEST_ACCURACY, &run[0], 0.75), 1); /* equal counts */
  assert_int_equal(compare_find_target_epoch(TEST_ACCURACY, &run[0], 0.76), -1);
  assert_int_equal(compare_find_target_epoch(TEST_LOSS, &run[0], 4.5), 1);
  assert_int_equal(compare_find_target_epoch(TEST_ACCURACY, &run[0], (double)NAN), -1);
  assert_true(isnan(compare_find_best(TEST_ACCURACY, &(train_result){.epochs = 0})));

  /* Means of two runs: 0.375, 0.625, 0.8125.  The third diverged and does not count. */
  run[2].diverged = true;
  plot_curve curve[2] = {compare_make_curve(TEST_ACCURACY, run, 3),
                         compare_make_curve(TEST_ACCURACY, &run[2], 1)};
  const plot_point *point = curve[0].point;
  assert_int_equal(curve[0].n, 3);
  must_be_near(point[1].score.mean, 0.625, NEAR);
  must_be_near(point[1].score.min, 0.5, 0);
  must_be_near(point[1].score.max, 0.75, 0);
  must_be_near(point[2].loss.mean, 1.0, NEAR);
  must_be_near(point[2].seconds, 3.0, NEAR);
  must_be_near(point[2].epoch, 3.0, 0);
  /* Without other runs the curve of a diverged run ends at its last epoch. */
  assert_true(!curve[0].diverged && curve[1].diverged && curve[1].n == 2);
  /* The best means are 0.8125 and 0.75. */
  must_be_near(compare_find_target(TEST_ACCURACY, curve, 2), 0.8125, NEAR);
  curve[1].diverged = false;
  must_be_near(compare_find_target(TEST_ACCURACY, curve, 2), 0.75, NEAR);
  must_be_near(compare_find_target(TEST_ACCURACY, curve, 1), 0.8125, NEAR);
  must_be_near(compare_find_target(TEST_LOSS, curve, 2), 0.5, NEAR); /* the larger minimum */
  assert_true(isnan(compare_find_target(TEST_ACCURACY, curve, 0)));
  for (int i = 0; i < 3; i++)
    train_result_free(&run[i]);
  free(curve[0].point);
  free(curve[1].point);
}

static void best_point_has_the_best_score(void **state) {
  const double low[] = {3, 1}, high[] = {3, 2}, good[] = {0.5, 0.9}, bad[] = {0.5, 0.8};
  train_result r[5] = {make_run(2, low, bad),
                       make_run(2, high, good),
                       make_run(2, low, good),
                       make_run(2, low, good),
                       {.diverged = true}};
  /* points are compared by score, then by loss, then by their order */
  assert_int_equal(compare_choose_point(r, 5, 1, false), 2);
  assert_int_equal(compare_choose_point(r, 2, 1, false), 1);
  /* `true`: the smallest validation loss decides */
  assert_int_equal(compare_choose_point(r, 2, 1, true), 0);
  r[2].diverged = r[3].diverged = true; /* a diverged run is never the best */
  assert_int_equal(compare_choose_point(r, 5, 1, false), 1);
  assert_int_equal(compare_choose_point(r + 2, 3, 1, false), 0);
  for (int i = 0; i < 5; i++)
    train_result_free(&r[i]);
}

/* Two points with two seeds: the best single run belongs to the other point. */
static void best_point_has_the_best_mean(void **state) {
  const double loss[] = {3, 1}, high[] = {0.5, 0.9}, low[] = {0.5, 0.6}, even[] = {0.5, 0.8};
  train_result r[4] = {make_run(2, loss, high), make_run(2, loss, low), make_run(2, loss, even),
                       make_run(2, loss, even)};
  assert_int_equal(compare_choose_point(r, 2, 2, false), 1); /* 0.75 and 0.8 */
  /* one of the two runs of point 1 has diverged */
  r[2].diverged = true;
  assert_int_equal(compare_choose_point(r, 2, 2, false), 0);
  /* all runs of point 0 have diverged, so point 1 with one good run comes first */
  r[0].diverged = r[1].diverged = true;
  assert_int_equal(compare_choose_point(r, 2, 2, false), 1);
  r[0].diverged = false; /* the score of point 0 is 0.9, from its only run that did not diverge */
  assert_int_equal(compare_choose_point(r, 2, 2, false), 0);
  for (int i = 0; i < 4; i++)
    train_result_free(&r[i]);
}

/* ---- pairs -----------------------------------------------------------------------------------*/

/* Tabulated quantiles of Student's distribution at 0.975, with nine digits. */
static void student_quantiles_match_tables(void **state) {
  static const struct {
    int freedom;
    double t;
  } known[] = {{1, 12.7062047362}, {2, 4.30265272991}, {3, 3.18244630528},  {4, 2.77644510520},
               {5, 2.57058183661}, {9, 2.26215716280}, {29, 2.04522964213}, {999, 1.96234146113}};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
    must_be_near(compare_compute_quantile(known[i].freedom), known[i].t, 1e-9);
  assert_true(isnan(compare_compute_quantile(0)));
}

static void paired_differences_match_by_hand(void **state) {
  /* Final losses 1 2 3 4 5 and 0.5 1.75 2.25 4 4: differences 1/2 1/4 3/4 0 1, mean 1/2, squares sum to 5/8;
   * half of the interval is 2.776445105 sqrt(5/8 / 4 / 5) = 0.4908107897.  Test losses are twice as large;
   * the best accuracy, not the last, differs by 1/8 every time. */
  const double loss[][2] = {{9, 1}, {9, 2}, {9, 3}, {9, 4}, {9, 5}};
  const double less[][2] = {{8, 0.5}, {8, 1.75}, {8, 2.25}, {8, 4}, {8, 4}};
  const double accuracy[][2] = {{0.5, 0.25}, {0.5, 0.25}, {0.25, 0.5}, {0.5, 0.5}, {0.75, 0}};
  const double more[][2] = {{0.625, 0}, {0, 0.625}, {0.625, 0.5}, {0.625, 0}, {0.875, 0.75}};
  train_result base[6], run[6];
  for (int i = 0; i < 5; i++) {
    base[i] = make_run(2, loss[i], accuracy[i]);
    run[i] = make_run(2, less[i], more[i]);
  }
  base[5] = make_run(2, loss[0], accuracy[0]);
  run[5] = make_run(2, less[4], more[0]); /* diverged: no pair */
  run[5].diverged = true;
  difference d = compare_compute_difference(TEST_ACCURACY, END_TRAIN_LOSS, run, base, 6);
  assert_int_equal(d.n, 5);
  must_be_near(d.mean, -0.5, NEAR);
  must_be_near(d.low, -0.5 - 0.4908107897, 1e-9);
  must_be_near(d.high, -0.5 + 0.4908107897, 1e-9);
  d = compare_compute_difference(TEST_ACCURACY, END_TEST_LOSS, run, base, 6);
  must_be_near(d.mean, -1.0, NEAR);
  must_be_near(d.high, -1.0 + 2.0 * 0.4908107897, 2e-9);
  d = compare_compute_difference(TEST_ACCURACY, END_BEST_ACCURACY, run, base, 5);
  must_be_near(d.mean, 0.125, NEAR);
  must_be_near(d.low, 0.125, NEAR);
  d = compare_compute_difference(TRAIN_ACCURACY, END_BEST_ACCURACY, run, base, 5); /* half */
  must_be_near(d.mean, 0.0625, NEAR);
  base[0].diverged = true; /* a diverged run of the baseline: no pair */
  assert_int_equal(compare_compute_difference(TEST_ACCURACY, END_TRAIN_LOSS, run, base, 6).n, 4);
  d = compare_compute_difference(TEST_ACCURACY, END_TRAIN_LOSS, run + 1, base + 1, 1);
  assert_int_equal(d.n, 1);
  must_be_near(d.mean, -0.25, NEAR);
  assert_true(isnan(d.low) && isnan(d.high));
  d = compare_compute_difference(TEST_ACCURACY, END_TRAIN_LOSS, run, base, 1);
  assert_true(d.n == 0 && isnan(d.mean));
  base[0].diverged = false;

  compare_method m[2] = {{.label = "sgd", .run = base}, {.label = "efcp", .run = run}};
  compare_plan p = {.methods = 2, .method = m, .seeds = 6};
  table t;
  char *text = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&text, &size);
  assert_non_null(f);
  compare_print_differences(&p, f);
  compare_fill_difference_table(&p, &t);
  table_print(&t, f);
  table_free(&t);
  compare_method swapped[2] = {m[1], m[0]};
  p.method = swapped;
  p.seeds = 1;
  compare_print_differences(&p, f);
  p.metric = TRAIN_LOSS;
  compare_fill_difference_table(&p, &t);
  table_print(&t, f);
  table_free(&t);
  (void)fclose(f);
  assert_string_equal(
      text, "difference to sgd of the same seed: mean and its 95 % interval (Student's t)\n"
            "method  pairs      final training loss          final test loss  "
            "  best accuracy, points\n"
            "efcp        5  -0.500 [-0.991, -0.009]  -1.000 [-1.982, -0.018]  "
            "+12.50 [+12.50, +12.50]\n"
            "difference to efcp of the same seed: mean\n"
            "method  pairs  final training loss\n"
            "sgd         1                 +0.5\n");
  free(text);
  for (int i = 0; i < 6; i++) {
    train_result_free(&base[i]);
    train_result_free(&run[i]);
  }
}

/* ---- lists and grids -------------------------------------------------------------------------*/

static int parse_list(compare_plan *p, const char *list) {
  memset(p, 0, sizeof *p);
  settings_init(&p->base);
  p->seeds = 1;
  p->notes = open_memstream(&p->note, &p->note_size);
  return compare_parse_methods(p, list);
}

static void method_lists_are_parsed(void **state) {
  compare_plan p;
  assert_int_equal(
      parse_list(&p, "sgd:lr-schedule=step:5,8@0.5,momentum=0.5, natgrad:lr=0.25,damping=0.01,"
                     "kaisa,natgrad,natgrad:clip=none"),
      CLI_OK);
  const char *label[] = {"sgd", "natgrad", "kaisa", "natgrad-2", "natgrad-3"};
  assert_int_equal(p.methods, 5);
  for (int i = 0; i < 5; i++)
    assert_string_equal(p.method[i].label, label[i]);
  assert_string_equal(p.method[0].s.lr_schedule, "step:5,8@0.5");
  must_be_near(p.method[0].s.momentum, 0.5, 0);
  must_be_near(p.method[1].s.momentum, 0.9, 0);
  must_be_near(p.method[1].s.lr, 0.25, 0);
  assert_int_equal(p.method[1].s.n_library, 1);
  assert_string_equal(p.method[1].s.library[0].value, "0.01");
  assert_int_equal(p.method[2].s.n_library, 0);
  assert_string_equal(p.method[3].s.method, "natgrad");
  assert_int_equal(p.method[4].n_own_settings, 1);
  compare_plan_free(&p);

  static const struct {
    const char *list, *message;
  } wrong[] = {
      {"", "natgrad: --methods: expected name or name:option=value, separated by ','\n"},
      {"sgd,", "natgrad: --methods: expected name or name:option=value, separated by ','\n"},
      {"lr=3,sgd", "natgrad: --methods: 'lr=3', expected a method before it\n"},
      {"sgd,kasia", "natgrad: --methods: unknown method 'kasia'; the nearest is kaisa\n"},
      {"sgd:", "natgrad: --methods: sgd: '', expected option=value\n"},
      {"sgd:lr", "natgrad: --methods: sgd: 'lr', expected option=value\n"},
      {"sgd:lr=-1", "natgrad: --methods: sgd: lr: '-1' is no number from 0 to 1e+06\n"},
      {"sgd:seed=3", "natgrad: --methods: sgd: seed is the same for all methods\n"},
      {"sgd:damping=0.1", "natgrad: --methods: sgd: damping has no effect\n"},
      {"adamw:momentum=0.1", "natgrad: --methods: adamw: momentum has no effect\n"},
      {"natgrad:dampnig=1",
       "natgrad: --methods: natgrad: dampnig: unknown setting; the nearest is damping\n"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    capture_stderr();
    const int rc = parse_list(&p, wrong[i].list);
    assert_string_equal(captured_stderr(), wrong[i].message);
    assert_int_equal(rc, CLI_BAD);
    compare_plan_free(&p);
  }
}

static void settings_that_a_method_ignores_are_reported(void **state) {
  compare_plan p;
  memset(&p, 0, sizeof p);
  settings_init(&p.base);
  p.notes = open_memstream(&p.note, &p.note_size);
  assert_int_equal(settings_set_or_report(&p.base, NULL, "damping", "0.5"), CLI_OK);
  assert_int_equal(settings_set_or_report(&p.base, NULL, "fisher", "sampled"), CLI_OK);
  assert_int_equal(compare_parse_methods(&p, "sgd,natgrad"), CLI_OK);
  assert_int_equal(p.method[0].s.n_library, 0);
  assert_string_equal(p.method[0].s.fisher, "empirical");
  assert_int_equal(p.method[1].s.n_library, 1);
  assert_string_equal(p.method[1].s.fisher, "sampled");
  (void)fflush(p.notes);
  assert_string_equal(p.note, "sgd: fisher has no effect\nsgd: damping has no effect\n");
  compare_plan_free(&p);
}

static void grids_multiply_the_methods(void **state) {
  compare_plan p;
  assert_int_equal(parse_list(&p, "natgrad,sgd,natgrad:damping=0.5"), CLI_OK);
  assert_int_equal(compare_add_grid(&p, "lr=0.1,0.3,1"), CLI_OK);
  assert_int_equal(compare_add_grid(&p, "damping=0.01,0.001"), CLI_OK);
  assert_int_equal(compare_add_grid(&p, "nesterov=true,false"), CLI_OK);
  static const int points[] = {
      12, 6, 6}; /* sgd has no damping; a damping given for the method replaces the grid */
  for (int i = 0; i < 3; i++) {
    assert_int_equal(compare_count_points(&p, &p.method[i]), CLI_OK);
    assert_int_equal(p.method[i].points, points[i]);
    assert_int_equal(p.method[i].use[1], i == 0);
  }
  for (int k = 0; k < 12; k++) { /* every combination, in order */
    assert_int_equal(compare_find_value(&p, &p.method[0], k, 0), k / 4);
    assert_int_equal(compare_find_value(&p, &p.method[0], k, 1), k / 2 % 2);
    assert_int_equal(compare_find_value(&p, &p.method[0], k, 2), k % 2);
  }
  for (int k = 0; k < 6; k++)
    assert_int_equal(compare_find_value(&p, &p.method[1], k, 0), k / 2);
  assert_int_equal(compare_find_edge(&p.grid[0], 0), -1);
  assert_int_equal(compare_find_edge(&p.grid[0], 1), 0);
  assert_int_equal(compare_find_edge(&p.grid[0], 2), 1);
  assert_int_equal(compare_find_edge(&p.grid[1], 0),
                   1); /* the edge is found by value, not by position */
  assert_int_equal(compare_find_edge(&p.grid[2], 0), 0);
  compare_plan_free(&p);

  static const char *const wrong[][2] = {
      {"lr", "natgrad: --grid: 'lr', expected option=a,b,c\n"},
      {"lr=", "natgrad: --grid: 'lr=', expected option=a,b,c\n"},
      {"=3", "natgrad: --grid: '=3', expected option=a,b,c\n"},
      {"lr=1,,2", "natgrad: --grid: lr: '' is no number from 0 to 1e+06\n"},
      {"lr=1,x", "natgrad: --grid: lr: 'x' is no number from 0 to 1e+06\n"},
      {"lr=1,2,1", "natgrad: --grid: lr has '1' twice\n"},
      {"seed=1,2", "natgrad: --grid: seed is the same for all runs\n"},
      {"epochs=1,2", "natgrad: --grid: epochs is the same for all runs\n"},
      {"lrr=1", "natgrad: --grid: lrr: unknown setting; the nearest is lr\n"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    assert_int_equal(parse_list(&p, "sgd"), CLI_OK);
    capture_stderr();
    const int rc = compare_add_grid(&p, wrong[i][0]);
    assert_string_equal(captured_stderr(), wrong[i][1]);
    assert_int_equal(rc, CLI_BAD);
    compare_plan_free(&p);
  }
  assert_int_equal(parse_list(&p, "sgd"), CLI_OK);
  assert_int_equal(compare_add_grid(&p, "weight-decay=0,1"), CLI_OK);
  capture_stderr();
  assert_int_equal(compare_add_grid(&p, "weight_decay=2"), CLI_BAD);
  assert_string_equal(captured_stderr(), "natgrad: --grid: weight_decay is given twice\n");
  compare_plan_free(&p);
}

/* ---- files -----------------------------------------------------------------------------------*/

static void tables_align_their_columns(void **state) {
  table t;
  table_begin(&t, (const char *const[]){"method", "epochs", "best %", "settings", NULL});
  table_add_row(&t);
  table_put(&t, 0, "sgd");
  table_put(&t, 1, "%d", 12);
  table_put(&t, 2, "93.15 ± 0.42");
  table_add_row(&t);
  table_put(&t, 0, "natgrad|2");
  table_put(&t, 1, "-");
  table_put(&t, 2, "9.00 ± 10.00");
  table_put(&t, 3, "lr 0.1");
  char *text = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&text, &size);
  assert_non_null(f);
  table_print(&t, f);
  (void)fclose(f);
  assert_string_equal(text, "method     epochs        best %  settings\n"
                            "sgd            12  93.15 ± 0.42\n"
                            "natgrad|2       -  9.00 ± 10.00  lr 0.1\n");
  free(text);
  table_free(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(statistics_match_hand_results),
      cmocka_unit_test(targets_are_reached_at_the_first_epoch),
      cmocka_unit_test(best_point_has_the_best_score),
      cmocka_unit_test(best_point_has_the_best_mean),
      cmocka_unit_test(method_lists_are_parsed),
      cmocka_unit_test(settings_that_a_method_ignores_are_reported),
      cmocka_unit_test(grids_multiply_the_methods),
      cmocka_unit_test(student_quantiles_match_tables),
      cmocka_unit_test(paired_differences_match_by_hand),
      cmocka_unit_test(tables_align_their_columns),
  };
  return cmocka_run_group_tests(tests, make_folder, delete_folder);
}
