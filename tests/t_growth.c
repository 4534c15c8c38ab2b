/* t_growth.c: describing a model, and asking about it, costs in proportion to its layers.  One model of sixteen thousand
 * takes about the processor's time of sixteen that have them together and are lived in turn, so that both find their
 * memory as far away; 0.7 to 2.8 times were seen, 10 to 60 where something goes through all layers for each.  Both take as long,
 * so other programs stretch both alike: of several rounds one is enough.  One thread. */
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
#include "model/model.h"

enum { FEW = 1000, MODELS = 16, MANY = MODELS * FEW, ROUNDS = 12 };
enum { ADD, EXPLAIN, REPORT, WINDOWS, PARTS };
static const double limit = 5.0;
static const char *const part_name[PARTS] = {"adding layers", "ng_explain", "ng_report_statistic",
                                             "ng_ready, a window for each layer"};

static double since(clock_t begun) { return (double)(clock() - begun) / CLOCKS_PER_SEC; }

static void add(fixture *f, int32_t i) {
  char name[32];
  (void)snprintf(name, sizeof name, "l%d", (int)i);
  if (i % 3 == 2)
    fixture_ok(f, ng_add_tensor(f->p, name, 1, NULL));
  else
    fixture_ok(f, ng_add_linear(f->p, name, 1, 1, i % 3, NULL));
}

/* Each row is that of its own layer; `index`: of this one. */
static void explain(fixture *f, int32_t i, int32_t index) {
  ng_explain_row row = {.struct_size = sizeof row};
  fixture_ok(f, ng_explain(f->p, i, &row));
  if (row.index != index) fail_msg("row %d is of layer %d, not %d", i, row.index, index);
}

static void report(fixture *f, int32_t i, int32_t index) {
  ng_statistic_report one = {.struct_size = sizeof one};
  char name[32];
  fixture_ok(f, ng_report_statistic(f->p, i, &one));
  (void)snprintf(name, sizeof name, "l%d", (int)index);
  if (strcmp(one.layer, name) != 0 || strcmp(one.name, i % 2 == 0 ? "A" : "G") != 0)
    fail_msg("statistic %d is %s of %s, not of %s", i, one.name, one.layer, name);
}

/* Layers of one parameter and of two, and tensors, in so many models: each call is made of all models, then the next. */
static void live(int32_t models, int32_t layers, double took[PARTS]) {
  fixture f[MODELS];
  for (int32_t m = 0; m < models; m++)
    fixture_ok(&f[m], fixture_open(&f[m], "clip=none", &(fixture_how){.threads = 1}));
  clock_t begun = clock();
  for (int32_t i = 0; i < layers; i++) {
    for (int32_t m = 0; m < models; m++)
      add(&f[m], i);
  }
  took[ADD] = since(begun);
  for (int32_t m = 0; m < models; m++) {
    assert_int_equal(ng_add_tensor(f[m].p, "l7", 1, NULL), NG_ERR_ARG);
    assert_non_null(strstr(ng_last_error(f[m].ctx), "'l7' is taken by index 7"));
    fixture_ok(&f[m], ng_ready(f[m].p));
  }

  begun = clock();
  int32_t index = 0, slot = 0;
  for (int32_t i = 0; i < ng_explain_count(f[0].p); i++) {
    for (int32_t m = 0; m < models; m++)
      explain(&f[m], i, index);
    slot = index % 3 == 1 && slot == 0 ? 1 : 0;
    index += slot == 0;
  }
  took[EXPLAIN] = since(begun);
  assert_int_equal(index, layers);

  begun = clock();
  ng_report all = {.struct_size = sizeof all};
  fixture_ok(&f[0], ng_report_read(f[0].p, &all));
  index = 0;
  for (int32_t i = 0; i < all.statistics; i++) {
    for (int32_t m = 0; m < models; m++)
      report(&f[m], i, index);
    if (i % 2 == 1) index += 1 + index % 3;
  }
  took[REPORT] = since(begun);
  assert_int_equal(all.statistics, 2 * (layers - layers / 3));
  for (int32_t m = 0; m < models; m++)
    fixture_close(&f[m]);
}

/* Layers with a line each, and so with a window each, in the order in which they were added. */
static void ready(int32_t models, int32_t layers, double took[PARTS]) {
  fixture f[MODELS];
  ng_explain_row row = {.struct_size = sizeof row};
  for (int32_t m = 0; m < models; m++) {
    fixture_ok(&f[m], fixture_open(&f[m], "method=mfac window=1", &(fixture_how){.threads = 1}));
    for (int32_t i = 0; i < layers; i++) {
      char name[32], line[64];
      ng_layer d;
      (void)snprintf(name, sizeof name, "l%d", (int)i);
      (void)snprintf(line, sizeof line, "damping=%d", (int)(layers - i));
      ng_layer_init(&d, NG_LINEAR, sizeof d);
      d.name = name;
      d.options = line;
      d.in = d.out = 1;
      fixture_ok(&f[m], ng_add_layer(f[m].p, &d, NULL));
    }
  }
  const clock_t begun = clock();
  for (int32_t m = 0; m < models; m++)
    fixture_ok(&f[m], ng_ready(f[m].p));
  took[WINDOWS] = since(begun);
  for (int32_t m = 0; m < models; m++) {
    for (int32_t i = 0; i < layers; i += layers / 7) {
      char block[64];
      (void)snprintf(block, sizeof block, "in block window.l%d of family window", (int)i);
      fixture_ok(&f[m], ng_explain(f[m].p, i, &row));
      assert_string_equal(row.why, block);
      (void)snprintf(block, sizeof block, "window.l%d", (int)i);
      assert_string_equal(f[m].p->block[i]->name, block);
    }
    fixture_close(&f[m]);
  }
}

static void in_proportion(void **state) {
  (void)state;
  double few[PARTS], many[PARTS];
  bool good[PARTS] = {false};
  int left = PARTS;
  for (int i = 0; i < ROUNDS && left > 0; i++) {
    live(MODELS, FEW, few);
    live(1, MANY, many);
    if (!good[WINDOWS]) ready(MODELS, FEW, few);
    if (!good[WINDOWS]) ready(1, MANY, many);
    for (int k = 0; k < PARTS; k++) {
      if (good[k] || many[k] > limit * few[k]) continue;
      good[k] = true;
      left--;
    }
  }
  for (int k = 0; k < PARTS; k++) {
    if (good[k]) continue;
    print_error("%s: %.2f ms for %d models of %d layers and %.2f for one of %d, %.1f times, "
                "expected at most %.0f\n",
                part_name[k], 1e3 * few[k], MODELS, FEW, 1e3 * many[k], MANY, many[k] / few[k],
                limit);
  }
  assert_int_equal(left, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(in_proportion)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
