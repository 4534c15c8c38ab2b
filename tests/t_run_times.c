/* t_run_times.c: the times that a training run tells of, by a clock of the test's own: whatever a step
 * does takes a time that is known, longer in every step, and nothing else takes any.  The linker puts the
 * fakes between (--wrap in CMakeLists.txt). */
#include "common/cli.h"
#include "train/checkpoint.h"
#include "train/feed.h"
#include "train/progress.h"
#include "trained.h"
#include "trainer_help.h"

#include "natgrad.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

enum { FEED = 1, FORWARD = 2, BACKWARD = 4, SEEN_IN = 8, SEEN_OUT = 32, STEP = 16 };
enum { EVALUATION = 1 << 20, SAVING = 1 << 22 }; /* left out of all times */
enum { SKIPPED = 3, RESCUED = 2, UNOBSERVED = 1, WATCHED = 16 };

static struct {
  double now, all; /* all: what the library's first station has taken */
  double unit;     /* the number of the step: each takes longer than the one before */
  double speed[WATCHED];
  int epochs;
} fake;

double __wrap_ng_now_ms(void);
double __wrap_ng_now_ms(void) { return fake.now; }

int __real_feed_train(feed *f, int64_t step, int64_t micro);
int __wrap_feed_train(feed *f, int64_t step, int64_t micro);
int __wrap_feed_train(feed *f, int64_t step, int64_t micro) {
  fake.unit = (double)(step + 1);
  fake.now += FEED * fake.unit;
  return __real_feed_train(f, step, micro);
}

int __real_nn_forward(nn *n, nn_mode mode, const float *x, int64_t samples, uint64_t step,
                      const nn_watch *watch);
int __wrap_nn_forward(nn *n, nn_mode mode, const float *x, int64_t samples, uint64_t step,
                      const nn_watch *watch);
int __wrap_nn_forward(nn *n, nn_mode mode, const float *x, int64_t samples, uint64_t step,
                      const nn_watch *watch) {
  fake.now += mode == NN_TRAIN ? FORWARD * fake.unit : EVALUATION;
  return __real_nn_forward(n, mode, x, samples, step, watch);
}

int __real_nn_backward(nn *n, bool params, const nn_watch *watch);
int __wrap_nn_backward(nn *n, bool params, const nn_watch *watch);
int __wrap_nn_backward(nn *n, bool params, const nn_watch *watch) {
  fake.now += BACKWARD * fake.unit;
  return __real_nn_backward(n, params, watch);
}

ng_status __real_ng_observe_input(ng_precond *p, int32_t i, const ng_array *a, ng_loan loan);
ng_status __wrap_ng_observe_input(ng_precond *p, int32_t i, const ng_array *a, ng_loan loan);
ng_status __wrap_ng_observe_input(ng_precond *p, int32_t i, const ng_array *a, ng_loan loan) {
  fake.now += SEEN_IN * fake.unit;
  return __real_ng_observe_input(p, i, a, loan);
}

ng_status __real_ng_observe_output_grad(ng_precond *p, int32_t i, const ng_array *g, ng_loan loan);
ng_status __wrap_ng_observe_output_grad(ng_precond *p, int32_t i, const ng_array *g, ng_loan loan);
ng_status __wrap_ng_observe_output_grad(ng_precond *p, int32_t i, const ng_array *g, ng_loan loan) {
  fake.now += SEEN_OUT * fake.unit;
  return __real_ng_observe_output_grad(p, i, g, loan);
}

ng_status __real_ng_step_sgd(ng_precond *p, const ng_sgd *groups, int32_t n);
ng_status __wrap_ng_step_sgd(ng_precond *p, const ng_sgd *groups, int32_t n);
ng_status __wrap_ng_step_sgd(ng_precond *p, const ng_sgd *groups, int32_t n) {
  const ng_status st = __real_ng_step_sgd(p, groups, n);
  fake.now += STEP * fake.unit;
  fake.all += STEP * fake.unit;
  if (st != NG_OK) return st;
  const int step = (int)fake.unit;
  return step <= SKIPPED                          ? NG_SKIPPED
         : step <= SKIPPED + RESCUED              ? NG_RESCUED
         : step <= SKIPPED + RESCUED + UNOBSERVED ? NG_UNOBSERVED
                                                  : NG_OK;
}

ng_status __real_ng_report_station(const ng_precond *p, int32_t i, ng_station_report *out);
ng_status __wrap_ng_report_station(const ng_precond *p, int32_t i, ng_station_report *out);
ng_status __wrap_ng_report_station(const ng_precond *p, int32_t i, ng_station_report *out) {
  const ng_status st = __real_ng_report_station(p, i, out);
  out->total_ms = (double)(i + 1) * fake.all;
  return st;
}

int __real_checkpoint_save(const checkpoint *c, const char *config, bool in_parts);
int __wrap_checkpoint_save(const checkpoint *c, const char *config, bool in_parts);
int __wrap_checkpoint_save(const checkpoint *c, const char *config, bool in_parts) {
  fake.now += SAVING;
  return __real_checkpoint_save(c, config, in_parts);
}

void __real_progress_epoch(progress *p, const train_epoch *e, double samples_per_second);
void __wrap_progress_epoch(progress *p, const train_epoch *e, double samples_per_second);
void __wrap_progress_epoch(progress *p, const train_epoch *e, double samples_per_second) {
  fake.speed[fake.epochs++ % WATCHED] = samples_per_second;
  __real_progress_epoch(p, e, samples_per_second);
}

/* ---- times -----------------------------------------------------------------------------------*/

/* All lines of a log: by station the mean since the last line of that event, of what the fakes took. */
static void times_are(const trained *r) {
  int last[2] = {0, 0};
  for (int i = 0; i < r->lines; i++) {
    const ngio_value *l = r->line[i], *ms = ngio_get(l, "ms");
    const int step = (int)number_of(l, "step"), event = is_event(l, "step")    ? 0
                                                        : is_event(l, "epoch") ? 1
                                                                               : 2;
    const int from = event == 2 ? 0 : last[event];
    const double unit = (step + from + 1) / 2.0; /* mean of from + 1 ... step */
    const double total = step * (step + 1) / 2.0;
    int k = 0;
    if (event < 2) last[event] = step;
    for (const ngio_value *v = ngio_first(ms); v != NULL; v = ngio_next(ms, v)) {
      const char *name = v->key;
      static const char *const own[] = {"data", "forward", "backward", "observe"};
      static const double cost[] = {FEED, FORWARD, BACKWARD, SEEN_IN + SEEN_OUT};
      if (k < 4) assert_string_equal(name, own[k]);
      const double expected = unit * (k < 4 ? cost[k] : (k - 3) * STEP), got = ngio_number_of(v);
      if (fabs(got - expected) > 1e-4) /* four decimals are written */
        fail_msg("%s of step %d: %g ms instead of %g", name, step, got, expected);
      k++;
    }
    assert_true(k > 4); /* the trainer's, then the library's stations */
    assert_non_null(ngio_get(ms, "emit"));
    if (event > 0) {
      must_be_near(l, "seconds",
                   1e-3 * total * (FEED + FORWARD + BACKWARD + SEEN_IN + SEEN_OUT + STEP), 1e-12);
    }
  }
}

static void speeds_are(int first, const int *step, int n) {
  assert_int_equal(fake.epochs, n);
  for (int i = 0; i < n; i++) {
    double seconds = 0.0;
    for (int k = first + 1; k <= step[i]; k++)
      seconds += 1e-3 * k * (FEED + FORWARD + BACKWARD + SEEN_IN + SEEN_OUT + STEP);
    const double expected = (step[i] - first) * 8 / seconds;
    if (fabs(fake.speed[i] - expected) > 1e-9 * expected)
      fail_msg("at step %d: %g samples/s instead of %g", step[i], fake.speed[i], expected);
  }
}

static void start_clock(void) { memset(&fake, 0, sizeof fake); }

/* One layer, observed in every step; 4 steps an epoch, 10 in all, in one go and in two. */
static void times_by_another_clock(void **state) {
  (void)state;
#define TIMED "model=logreg method=natgrad stat_period=1 batch=8 log-every=2 lr-schedule=constant "
  data_set d;
  trained one, two;
  assert_int_equal(data_open("synthetic:classes=4,features=6,train=32,test=20", &d), CLI_OK);
  start_clock();
  train(&d, "times", TIMED "steps=10 checkpoint-every=3", &one);
  times_are(&one);
  speeds_are(0, (const int[]){4, 8, 10}, 3);
  assert_true(fabs(one.r.station[0].ms - 55.0 * FEED) < 1e-9);
  drop_trained(&one);
  start_clock();
  train(&d, "halves", TIMED "steps=6", &two);
  times_are(&two);
  drop_trained(&two);
  start_clock();
  train(&d, "halves", TIMED "steps=10 resume=true", &two);
  times_are(&two);
  speeds_are(6, (const int[]){8, 10}, 2);
  /* Counts of the first half are in the second's. */
  const ngio_value *end = last_event(&two, "end");
  must_be_near(end, "skipped", SKIPPED, 0);
  must_be_near(end, "rescued", RESCUED, 0);
  must_be_near(end, "unobserved", UNOBSERVED, 0);
  assert_true(two.r.skipped == SKIPPED && two.r.rescued == RESCUED && two.r.first == 6);
  assert_true(two.r.unobserved == UNOBSERVED);
  drop_trained(&two);
  data_close(&d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(times_by_another_clock),
  };
  return cmocka_run_group_tests(tests, make_scratch, drop_scratch);
}
