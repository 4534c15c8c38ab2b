/* t_growth.c: describing a model, and asking about it, costs in proportion to its layers.  Sixteen times the layers take
 * some twenty times the processor's time, fifty where the larger model leaves a cache, and more than two hundred where
 * something goes through all of them for each: a hundred are allowed.  The least of several models, of the program's
 * own time, one thread; more models are made as long as a limit is passed, so that other programs count little. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fixture.h"

enum { FEW = 1000, MANY = 16 * FEW, RUNS = 12 };
enum { ADD, EXPLAIN, REPORT, PARTS };
static const double limit = 100.0;
static const char *const part_name[PARTS] = {"adding layers", "ng_explain", "ng_report_statistic"};

static void note(double *least, clock_t begun) {
  const double s = (double)(clock() - begun) / CLOCKS_PER_SEC;
  if (s < *least) *least = s;
}

/* Layers of one parameter and of two, and tensors; each row and each statistic is that of its own layer. */
static void live(int32_t layers, double least[PARTS]) {
  fixture f;
  char name[32];
  fixture_ok(&f, fixture_open(&f, "clip=none", &(fixture_how){.threads = 1}));
  clock_t begun = clock();
  for (int32_t i = 0; i < layers; i++) {
    (void)snprintf(name, sizeof name, "l%d", (int)i);
    if (i % 3 == 2)
      fixture_ok(&f, ng_add_tensor(f.p, name, 1, NULL));
    else
      fixture_ok(&f, ng_add_linear(f.p, name, 1, 1, i % 3, NULL));
  }
  note(&least[ADD], begun);
  assert_int_equal(ng_add_tensor(f.p, "l7", 1, NULL), NG_ERR_ARG);
  assert_non_null(strstr(ng_last_error(f.ctx), "'l7' is taken by index 7"));
  fixture_ok(&f, ng_ready(f.p));

  begun = clock();
  ng_explain_row row = {.struct_size = sizeof row};
  int32_t index = 0, slot = 0;
  for (int32_t i = 0; i < ng_explain_count(f.p); i++) {
    fixture_ok(&f, ng_explain(f.p, i, &row));
    if (row.index != index) fail_msg("row %d is of layer %d, not %d", i, row.index, index);
    slot = index % 3 == 1 && slot == 0 ? 1 : 0;
    index += slot == 0;
  }
  note(&least[EXPLAIN], begun);
  assert_int_equal(index, layers);

  begun = clock();
  ng_report all = {.struct_size = sizeof all};
  ng_statistic_report one = {.struct_size = sizeof one};
  fixture_ok(&f, ng_report_read(f.p, &all));
  index = 0;
  for (int32_t i = 0; i < all.statistics; i++) {
    fixture_ok(&f, ng_report_statistic(f.p, i, &one));
    (void)snprintf(name, sizeof name, "l%d", (int)index);
    if (strcmp(one.layer, name) != 0 || strcmp(one.name, i % 2 == 0 ? "A" : "G") != 0)
      fail_msg("statistic %d is %s of %s, not of %s", i, one.name, one.layer, name);
    if (i % 2 == 1) index += 1 + index % 3;
  }
  note(&least[REPORT], begun);
  assert_int_equal(all.statistics, 2 * (layers - layers / 3));
  fixture_close(&f);
}

static int passed_limits(const double few[PARTS], const double many[PARTS], bool tell) {
  int slow = 0;
  for (int k = 0; k < PARTS; k++) {
    if (many[k] <= limit * few[k]) continue;
    slow++;
    if (!tell) continue;
    print_error("%s: %.2f ms for %d layers and %.2f for %d, %.0f times, expected at most %.0f\n",
                part_name[k], 1e3 * few[k], FEW, 1e3 * many[k], MANY, many[k] / few[k], limit);
  }
  return slow;
}

static void in_proportion(void **state) {
  (void)state;
  double few[PARTS], many[PARTS];
  for (int k = 0; k < PARTS; k++)
    few[k] = many[k] = 1e9;
  for (int i = 0; i < RUNS; i++) {
    live(FEW, few);
    live(MANY, many);
    if (passed_limits(few, many, false) == 0) break;
  }
  assert_int_equal(passed_limits(few, many, true), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(in_proportion)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
