/* t_bench.c: all figures and lower bounds of `natgrad bench`, with a clock of the test's own: fakes of BLAS, of the
 * network's passes and of the library's steps advance it by known times.  The linker puts the fakes in place; those
 * of BLAS have other names (CMakeLists.txt). */
#include "bench.h"
#include "common/blas.h"
#include "commands.h"
#include "floors.h"
#include "nn/nn.h"
#include "trainer_help.h"

#include "natgrad.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the fakes -------------------------------------------------------------------------------*/

/* Asking for the time takes TICK; sgemm a nanosecond for two operations, the others a number of ms for an order,
 * twice or three times as much in two runs of three. */
static const double TICK = 0.5;
enum { SPOTRF = 1, SPOTRI = 100 };

static struct {
  double now;
  int64_t asked;
  int steps, sgd_steps, forwards, backwards;
  int passes_a_round, steps_a_round;
} fake;

static double run_slow(void) {
  return (double)((fake.asked + 1) / 2 % 3 + 1);
} /* two questions a run */

/* The times of rounds: the first is the warm-up, the median of the others is 2.5. */
enum { REPEATS = 4 };
static const double MEDIAN = 2.5;
static double taken(int call, int calls_a_round) {
  static const double each[1 + REPEATS] = {50, 4, 1, 3, 2};
  return each[call / calls_a_round % (1 + REPEATS)];
}

double __wrap_ng_now_ms(void);
double __wrap_ng_now_ms(void) {
  fake.asked++;
  return fake.now += TICK;
}

void sgemm_(const char *transa, const char *transb, const int *m, const int *n, const int *k,
            const float *alpha, const float *a, const int *lda, const float *b, const int *ldb,
            const float *beta, float *c, const int *ldc, size_t la, size_t lb) {
  (void)transa, (void)transb, (void)alpha, (void)a, (void)lda, (void)b, (void)ldb, (void)beta;
  (void)c, (void)ldc, (void)la, (void)lb;
  fake.now += 2e-6 * *m * *n * *k * run_slow();
}

void spotrf_(const char *uplo, const int *n, float *a, const int *lda, int *info, size_t lu) {
  (void)uplo, (void)a, (void)lda, (void)lu;
  fake.now += SPOTRF * *n * run_slow();
  *info = 0;
}

void spotri_(const char *uplo, const int *n, float *a, const int *lda, int *info, size_t lu) {
  (void)uplo, (void)a, (void)lda, (void)lu;
  fake.now += SPOTRI * *n * run_slow();
  *info = 0;
}

ng_status __real_ng_step(ng_precond *p, double lr);
ng_status __wrap_ng_step(ng_precond *p, double lr);
ng_status __wrap_ng_step(ng_precond *p, double lr) {
  fake.now += taken(fake.steps++, fake.steps_a_round);
  return __real_ng_step(p, lr);
}

ng_status __real_ng_step_sgd(ng_precond *p, const ng_sgd *groups, int32_t n);
ng_status __wrap_ng_step_sgd(ng_precond *p, const ng_sgd *groups, int32_t n);
ng_status __wrap_ng_step_sgd(ng_precond *p, const ng_sgd *groups, int32_t n) {
  fake.now += taken(fake.sgd_steps++, fake.steps_a_round);
  return __real_ng_step_sgd(p, groups, n);
}

/* Layer i: 1, 10 and 100 times i + 1 times what the step took. */
ng_status __real_ng_report_layer(const ng_precond *p, int32_t i, ng_layer_report *out);
ng_status __wrap_ng_report_layer(const ng_precond *p, int32_t i, ng_layer_report *out);
ng_status __wrap_ng_report_layer(const ng_precond *p, int32_t i, ng_layer_report *out) {
  const ng_status st = __real_ng_report_layer(p, i, out);
  out->observe_ms = (i + 1) * taken(fake.steps - 1, fake.steps_a_round);
  out->solve_ms = 10 * out->observe_ms;
  out->measure_ms = 100 * out->observe_ms;
  return st;
}

int __real_nn_forward(nn *n, nn_mode mode, const float *x, int64_t samples, uint64_t step,
                      const nn_watch *watch);
int __wrap_nn_forward(nn *n, nn_mode mode, const float *x, int64_t samples, uint64_t step,
                      const nn_watch *watch);
int __wrap_nn_forward(nn *n, nn_mode mode, const float *x, int64_t samples, uint64_t step,
                      const nn_watch *watch) {
  fake.now += 10 * taken(fake.forwards++, fake.passes_a_round);
  return __real_nn_forward(n, mode, x, samples, step, watch);
}

int __real_nn_backward(nn *n, bool params, const nn_watch *watch);
int __wrap_nn_backward(nn *n, bool params, const nn_watch *watch);
int __wrap_nn_backward(nn *n, bool params, const nn_watch *watch) {
  fake.now += 100 * taken(fake.backwards++, fake.passes_a_round);
  return __real_nn_backward(n, params, watch);
}

/* ---- a bench ---------------------------------------------------------------------------------*/

enum { LINES = 60, WORDS = 16 };
static ngio_json *json[LINES];
static const ngio_value *line[LINES];
static int lines;

/* A layer of the list: linear with `high` positions where there is no kernel; the others differ from a
 * 1 x 1 kernel in one thing each, so that patches have to be cut out, or in nothing. */
typedef struct layer {
  const char *name;
  int in, out, kernel[2], stride[2], padding[2], high, wide;
  double p, q, positions;
  bool bias, patches;
} layer;
static const layer list[] = {{"c", 3, 8, {3, 3}, {1, 1}, {1, 1}, 8, 6, 27, 8, 48, false, true},
                             {"d", 8, 5, {1, 3}, {1, 2}, {0, 0}, 8, 8, 25, 5, 24, true, true},
                             {"one", 8, 5, {1, 1}, {1, 1}, {0, 0}, 7, 7, 8, 5, 49, false, false},
                             {"s", 10, 7, {0, 0}, {0, 0}, {0, 0}, 4, 0, 10, 7, 4, false, false},
                             {"f", 20, 10, {0, 0}, {0, 0}, {0, 0}, 1, 0, 21, 10, 1, true, false},
                             {"high", 3, 4, {3, 1}, {1, 1}, {0, 0}, 5, 4, 9, 4, 12, false, true},
                             {"wide", 3, 4, {1, 3}, {1, 1}, {0, 0}, 5, 4, 9, 4, 10, false, true},
                             {"down", 3, 4, {1, 1}, {2, 1}, {0, 0}, 5, 4, 3, 4, 12, false, true},
                             {"along", 3, 4, {1, 1}, {1, 2}, {0, 0}, 5, 4, 3, 4, 10, false, true},
                             {"above", 3, 4, {1, 1}, {1, 1}, {1, 0}, 5, 4, 3, 4, 28, false, true},
                             {"beside", 3, 4, {1, 1}, {1, 1}, {0, 1}, 5, 4, 3, 4, 30, false, true},
                             {"e", 3, 4, {3, 3}, {1, 1}, {1, 1}, 8, 6, 27, 4, 48, false, true}};
enum { LAYERS = sizeof list / sizeof list[0], BATCH = 4 };

static const char *list_file(void) {
  static char path[512];
  (void)snprintf(path, sizeof path, "%s", in_folder("list.json"));
  FILE *f = fopen(path, "w");
  assert_non_null(f);
  for (int i = 0; i < LAYERS; i++) {
    const layer *l = &list[i];
    (void)fprintf(f, "%s{\"name\": \"%s\", \"in\": %d, \"out\": %d, \"bias\": %s, ",
                  i > 0 ? ",\n" : "[", l->name, l->in, l->out, l->bias ? "true" : "false");
    if (l->kernel[0] > 0) {
      (void)fprintf(f,
                    "\"kind\": \"conv2d\", \"kernel\": [%d, %d], \"stride\": [%d, %d], "
                    "\"padding\": [%d, %d], \"image\": [%d, %d]}",
                    l->kernel[0], l->kernel[1], l->stride[0], l->stride[1], l->padding[0],
                    l->padding[1], l->high, l->wide);
    } else {
      (void)fprintf(f, "\"kind\": \"linear\", \"positions\": %d}", l->high);
    }
  }
  (void)fputs("]\n", f);
  assert_int_equal(fclose(f), 0);
  return path;
}

/* `words`: the command line after "bench", LIST for the file of layers. */
static void play(const char *words) {
  char copy[256], *argv[WORDS] = {(char *)(uintptr_t) "bench"}, *rest = NULL, text[1024];
  int argc = 1;
  (void)snprintf(copy, sizeof copy, "%s", words);
  for (char *w = strtok_r(copy, " ", &rest); w != NULL; w = strtok_r(NULL, " ", &rest))
    argv[argc++] = strcmp(w, "LIST") == 0 ? (char *)(uintptr_t)list_file() : w;
  memset(&fake, 0, sizeof fake);
  const bool norms =
      strstr(words, "resnet20") != NULL; /* a second pass; two steps of the norm blocks */
  fake.passes_a_round = fake.steps_a_round = norms ? 2 : 1;
  char path[512];
  (void)snprintf(path, sizeof path, "%s", in_folder("stdout"));
  (void)fflush(stdout);
  const int was = dup(STDOUT_FILENO), to = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  assert_true(was >= 0 && to >= 0);
  (void)dup2(to, STDOUT_FILENO);
  const int rc = cli_bench.run(&cli_bench, argc, argv);
  (void)fflush(stdout);
  (void)dup2(was, STDOUT_FILENO);
  (void)close(was);
  (void)close(to);
  assert_int_equal(rc, CLI_OK);
  FILE *f = fopen(path, "r");
  assert_non_null(f);
  for (lines = 0; fgets(text, sizeof text, f) != NULL; lines++) {
    assert_true(lines < LINES);
    assert_int_equal(cli_json_parse("the bench", text, strlen(text), &json[lines]), CLI_OK);
    line[lines] = ngio_json_root(json[lines]);
  }
  (void)fclose(f);
}

static void forget(void) {
  for (int i = 0; i < lines; i++)
    ngio_json_free(&json[i]);
  lines = 0;
}

/* JSON has six digits. */
static void figure(const ngio_value *o, const char *of, const char *key, double expected) {
  const ngio_value *v = ngio_get(o, key);
  if (!ngio_is_number(v)) fail_msg("%s: no number '%s'", of, key);
  const double got = ngio_number_of(v);
  if (!(fabs(got - expected) <= 1e-5 * fabs(expected)))
    fail_msg("%s: %s is %.7g instead of %.7g", of, key, got, expected);
}

static const ngio_value *case_of(const char *name) {
  for (int i = 0; i < lines; i++) {
    const char *is = ngio_text_of(ngio_get(line[i], "case"));
    if (is != NULL && strcmp(is, name) == 0) return line[i];
  }
  fail_msg("no case '%s'", name);
  return NULL;
}

/* ---- expected lower bounds --------------------------------------------------------------------*/

static double gflops(void) {
  const double work = 2e-6 * 4096 * 4096 * 4096;
  return work / (work + TICK);
}
static double copy_gbs(void) { return 2e-6 * 4 * (double)floor_cache() / TICK; }

static double statistics_of(const layer *l) {
  const double patches = l->positions * l->in * l->kernel[0] * l->kernel[1];
  const double copied = l->patches ? BATCH * (l->in * l->high * l->wide + patches) : 0;
  return 4e-6 * copied / copy_gbs() +
         1e-6 * BATCH * l->positions * (l->p * (l->p + 1) + l->q * (l->q + 1)) / gflops();
}
static double apply_of(const layer *l) {
  return 2e-6 * (l->q * l->p * l->p + l->q * l->q * l->p) / gflops();
}

/* `each`: ms for each order in the solve; 0: no bound. */
static void kfac(const char *words, double each, double applies) {
  static const char *const part[] = {"statistics", "solve", "apply"};
  double sum[3] = {0.0};
  char name[64];
  play(words);
  assert_int_equal(lines, 1 + 3 * (LAYERS + 1) + 1);
  const ngio_value *machine = ngio_get(line[0], "machine");
  figure(machine, "machine", "sgemm_gflops", gflops());
  figure(machine, "machine", "copy_gbs", copy_gbs());
  figure(machine, "machine", "threads", cli_cores());
  figure(machine, "machine", "repeat", REPEATS);
  for (int i = 0; i < LAYERS; i++) {
    const double floor[] = {statistics_of(&list[i]),
                            each > 0 ? each * (list[i].p + list[i].q) + 2 * TICK : 0,
                            applies * apply_of(&list[i])};
    const double median[] = {(i + 1) * MEDIAN, 10 * (i + 1) * MEDIAN, 100 * (i + 1) * MEDIAN};
    for (int k = 0; k < 3; k++) {
      (void)snprintf(name, sizeof name, "list.json/4/%s/%s", list[i].name, part[k]);
      if (floor[k] > 0) figure(case_of(name), name, "floor_ms", floor[k]);
      if (floor[k] == 0) assert_true(ngio_is(ngio_get(case_of(name), "floor_ms"), NGIO_NULL));
      figure(case_of(name), name, "median_ms", median[k]);
      sum[k] += floor[k];
    }
  }
  for (int k = 0, scale = 1; k < 3; k++, scale *= 10) {
    (void)snprintf(name, sizeof name, "list.json/4/sum/%s", part[k]);
    if (sum[k] > 0) figure(case_of(name), name, "floor_ms", sum[k]);
    figure(case_of(name), name, "median_ms", scale * MEDIAN * LAYERS * (LAYERS + 1) / 2);
  }
  figure(case_of("list.json/4/sum/step"), "step", "median_ms", MEDIAN + TICK);
  assert_true(ngio_is(ngio_get(case_of("list.json/4/sum/step"), "floor_ms"), NGIO_NULL));
  forget();
}

static void kfac_figures(void **state) {
  (void)state;
  kfac("kfac --model LIST --batch 4 --repeat 4 --json", SPOTRF + SPOTRI, 1);
  kfac("kfac --model LIST --batch 4 --repeat 4 --json --method kaisa --solver eigen", 0, 2);
}

/* 12 bytes a parameter to precondition, 24 with the update. */
static void eva_figures(void **state) {
  (void)state;
  const int64_t count = 50000 / 4608 * 4608; /* whole rows of 4608 */
  play("fused-eva --model 50000 --repeat 4 --json");
  static const struct {
    const char *name;
    double bytes;
  } want[] = {{"50000/precondition", 12}, {"50000/with sgd", 24}};
  assert_int_equal(lines, 3);
  for (int i = 0; i < 2; i++) {
    const ngio_value *o = case_of(want[i].name);
    figure(o, want[i].name, "floor_ms", 1e-6 * want[i].bytes * (double)count / copy_gbs());
    figure(o, want[i].name, "median_ms", MEDIAN + TICK);
    figure(o, want[i].name, "parameters", (double)count);
  }
  forget();
}

/* Multiplications of LeNet by hand: 24 x 24 of 25 to 20; 8 x 8 of 500 to 50; 800 to 500; 500 to 10.  The
 * first layer needs no gradient of its input. */
static void train_figures(void **state) {
  (void)state;
  const double conv1 = 576 * 25 * 20, all = conv1 + 64 * 500 * 50 + 800 * 500 + 500 * 10;
  const double rate = gflops() * 1e6;
  play("train --model lenet --batch 3 --repeat 4 --json");
  assert_int_equal(lines, 4);
  const double forward = 2 * 3 * all / rate, backward = 2 * 3 * (2 * all - conv1) / rate;
  figure(case_of("forward"), "forward", "floor_ms", forward);
  figure(case_of("loss and backward"), "backward", "floor_ms", backward);
  figure(case_of("both"), "both", "floor_ms", forward + backward);
  figure(case_of("forward"), "forward", "median_ms", 10 * MEDIAN + TICK);
  figure(case_of("loss and backward"), "backward", "median_ms", 100 * MEDIAN + TICK);
  figure(case_of("both"), "both", "median_ms", 110 * MEDIAN + 2 * TICK);
  forget();
}

/* The 21 norms of ResNet-20 have two arrays each, observed a tick apart.  Floats of one array and sample: 7 norms of 16
 * channels of 32 x 32, 7 of 32 of 16 x 16, 7 of 64 of 8 x 8. */
static void norm_figures(void **state) {
  (void)state;
  const double arrays = 2 * 21, floats = 7 * (16 * 1024 + 32 * 256 + 64 * 64);
  play("train --model resnet20 --batch 2 --repeat 4 --json");
  assert_int_equal(lines, 6);
  figure(case_of("both"), "both", "median_ms", 110 * MEDIAN + 2 * TICK);
  figure(case_of("norm blocks"), "norm blocks", "median_ms", (arrays + 1) * TICK + MEDIAN);
  figure(case_of("norm blocks, stale"), "norm blocks, stale", "median_ms", TICK + MEDIAN);
  figure(case_of("norm blocks"), "norm blocks", "floor_ms", 4e-6 * 2 * 2 * floats / copy_gbs());
  figure(case_of("norm blocks"), "norm blocks", "least_ms", (arrays + 1) * TICK + 1);
  figure(case_of("norm blocks"), "norm blocks", "spread_ms", 1); /* of 1, 2, 3, 4: from 2 to 3 */
  forget();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(kfac_figures),
      cmocka_unit_test(eva_figures),
      cmocka_unit_test(train_figures),
      cmocka_unit_test(norm_figures),
  };
  if (!floors_possible()) {
    (void)puts("skipped: no BLAS, no floors");
    return 77;
  }
  return cmocka_run_group_tests(tests, make_scratch, drop_scratch);
}
