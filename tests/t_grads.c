/* t_grads.c: ranks send gradients in buckets during backward.  Sums have the bits of a direct sum for every bucket
 * size; the number and time of messages; after a non-finite loss of one rank, or a transport that fails at call k, for
 * every k, all ranks end with the same result, and none hangs (ranks.h has a timeout). */
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cli.h"
#include "ranks.h"
#include "tap.h"
#include "train/grads.h"
#include "train/train.h"
#include "trainer_help.h"

enum { RANKS = 3, LAYERS = 3, PARAMS = 2 * LAYERS, IN = 7, WIDE = 11, OUT = 3, B = 4, MICRO = 2 };
enum { WEIGHTS = IN * WIDE + WIDE + WIDE * WIDE + WIDE + WIDE * OUT + OUT };

/* ---- sums ----------------------------------------------------------------------------------------*/

typedef struct sums {
  double cap;
  tap_way wire;
  float own[RANKS][MICRO][WEIGHTS], out[RANKS][WEIGHTS];
  int starts[RANKS], before_first[RANKS]; /* starts before the output gradient of the first layer */
  int64_t count[RANKS][TAP_STARTS];
} sums;

static const double share[RANKS] = {0.25, 0.35, 0.4};

static nn *new_three_layer_net(void) {
  nn *n = nn_create(NULL, 5);
  int x = nn_add_input(n, (nn_shape){1, 1, IN});
  x = nn_add_tanh(n, nn_add_linear(n, "a", x, WIDE, true));
  x = nn_add_tanh(n, nn_add_linear(n, "b", x, WIDE, true));
  (void)nn_add_linear(n, "c", x, OUT, true);
  return nn_prepare(n, B) == CLI_OK ? n : NULL;
}

static void copy_grads(const nn *n, float *to) {
  for (int i = 0; i < nn_count_params(n); i++) {
    const nn_param *p = nn_get_param(n, i);
    memcpy(to, p->grad, (size_t)p->count * sizeof *to);
    to += p->count;
  }
}

typedef struct first_layer_watch {
  const tap *wire;
  int starts;
} first_layer_watch;

static int record_starts(void *user, int layer, const float *x, int64_t samples, int64_t columns,
                         bool grad) {
  first_layer_watch *e = user;
  if (grad && layer == 0) e->starts = e->wire->starts;
  return 0;
}

static int run_batch(nn *n, int32_t rank, int micro, const nn_watch *watch) {
  float x[B * IN];
  int32_t label[B];
  for (int i = 0; i < B * IN; i++)
    x[i] = (float)sin(1.0 + i * 3.7 + rank * 11.0 + micro * 29.0);
  for (int i = 0; i < B; i++)
    label[i] = (i + rank + micro) % OUT;
  int rc = nn_forward(n, NN_TRAIN, x, B, 0, NULL);
  (void)nn_compute_loss(n, NN_TRAIN, label, NULL, NULL);
  return rc == 0 ? nn_backward(n, true, watch) : rc;
}

static ng_status sum_gradients(int32_t rank, ng_transport *t, void *arg) {
  sums *s = arg;
  tap line = {.inner = *t};
  const ng_transport table = tap_transport(&line, s->wire);
  const run_ranks ranks = ranks_from_transport(&table);
  first_layer_watch e = {&line, -1};
  const nn_watch watch = {&e, record_starts};
  nn *plain = new_three_layer_net(), *n = new_three_layer_net();
  grads g;
  int rc = plain != NULL && n != NULL ? grads_create(n, &ranks, MICRO, share[rank], s->cap, &g)
                                      : CLI_BAD;
  for (int i = 0; i < MICRO && rc == CLI_OK; i++) {
    rc = run_batch(plain, rank, i, NULL);
    copy_grads(plain, s->own[rank][i]);
    grads_begin(&g, i);
    if (rc == CLI_OK) rc = run_batch(n, rank, i, &watch);
    if (i < MICRO - 1 && line.starts > 0) rc = CLI_BAD; /* no bucket is complete */
  }
  if (rc == CLI_OK) rc = grads_end(&g);
  copy_grads(n, s->out[rank]);
  s->starts[rank] = line.starts;
  s->before_first[rank] = e.starts;
  memcpy(s->count[rank], line.count, sizeof line.count);
  grads_free(&g);
  nn_destroy(&plain);
  nn_destroy(&n);
  return rc == CLI_OK ? NG_OK : NG_ERR_STATE;
}

/* Messages are f32; ranks sum in double, in rank order, and round once. */
static float expected_sum(const sums *s, int k) {
  double all = 0.0;
  for (int r = 0; r < RANKS; r++) {
    const float part = (float)(share[r] / MICRO);
    float mine = 0.0F;
    for (int i = 0; i < MICRO; i++)
      mine += part * s->own[r][i][k];
    all += (double)mine;
  }
  return (float)all;
}

/* Elements of every message: parameters from the last to the first are c.bias, c.weight, ... a.weight. */
static const struct {
  double cap;
  int messages, before_first;
  int64_t count[PARAMS];
} cut_at[] = {
    {0.0, 6, 4, {3, 33, 11, 121, 11, 77}},      /* cap 0: one parameter per message */
    {4.0 * 36, 5, 3, {36, 11, 121, 11, 77}},    /* exactly weight and bias       */
    {4.0 * 35, 6, 4, {3, 33, 11, 121, 11, 77}}, /* one element too few for weight and bias */
    {4.0 * 168, 2, 1, {168, 88}},
    {1e9, 1, 0, {WEIGHTS}},
};

static void buckets_do_not_change_the_sums(void **state) {
  sums *s = calloc(1, sizeof *s);
  assert_non_null(s);
  for (size_t c = 0; c < sizeof cut_at / sizeof cut_at[0]; c++) {
    for (tap_way w = WHOLE; w < TAP_WAYS; w++) {
      s->cap = cut_at[c].cap;
      s->wire = w;
      assert_int_equal(ranks_run(RANKS, sum_gradients, s, NULL), NG_OK);
      for (int r = 0; r < RANKS; r++) {
        for (int k = 0; k < WEIGHTS; k++) {
          const float want = expected_sum(s, k);
          if (memcmp(&s->out[r][k], &want, sizeof want) != 0)
            fail_msg("cap %g, rank %d, weight %d: %.9g, expected %.9g", s->cap, r, k,
                     (double)s->out[r][k], (double)want);
        }
        if (w == NO_START) continue;
        assert_int_equal(s->starts[r], cut_at[c].messages);
        assert_int_equal(s->before_first[r], cut_at[c].before_first);
        for (int i = 0; i < cut_at[c].messages; i++)
          assert_int_equal(s->count[r][i], cut_at[c].count[i]);
      }
    }
  }
  free(s);
}

/* ---- runs ----------------------------------------------------------------------------------------*/

typedef struct training_runs {
  settings s;
  data_set d;
  tap_way wire;
  /* on the last rank: number of the call that fails; number of calls so far */
  int64_t fail_at, calls;
  int rc[RANKS];
  bool diverged[RANKS];
  int64_t steps[RANKS];
} training_runs;

static ng_status train_rank(int32_t rank, ng_transport *t, void *arg) {
  static const train_output nothing = {.label = ""};
  training_runs *l = arg;
  tap line = {.inner = *t, .fail_at = rank == RANKS - 1 ? l->fail_at : 0};
  const ng_transport table = tap_transport(&line, l->wire);
  train_result r;
  l->rc[rank] = train_run_rank(&table, &l->s, &l->d, &nothing, &r);
  if (l->rc[rank] == CLI_OK) {
    l->diverged[rank] = r.diverged;
    l->steps[rank] = r.steps;
    train_result_free(&r);
  }
  if (rank == RANKS - 1) l->calls = line.calls;
  return NG_OK;
}

static void begin_runs(training_runs *l, const char *method, const char *micro) {
  memset(l, 0, sizeof *l);
  settings_init(&l->s);
  must_set(&l->s, "model", "mlp");
  must_set(&l->s, "method", method);
  must_set(&l->s, "batch", "6");
  must_set(&l->s, "steps", "2");
  must_set(&l->s, "acc-iters", micro);
  must_set(&l->s, "bucket-mb", "0.001");
  assert_int_equal(data_open("synthetic:classes=3,features=6,train=36,test=6,seed=2", &l->d),
                   CLI_OK);
}

static void end_runs(training_runs *l) {
  data_close(&l->d);
  settings_free(&l->s);
}

/* All ranks end with the same code, whichever call fails. */
static void fail_each_call(const char *method, tap_way w) {
  training_runs l;
  begin_runs(&l, method, "2");
  l.wire = w;
  assert_int_equal(ranks_run(RANKS, train_rank, &l, NULL), NG_OK);
  for (int r = 0; r < RANKS; r++)
    assert_true(l.rc[r] == CLI_OK && l.steps[r] == 2);
  const int64_t calls = l.calls;
  assert_true(calls > 20);
  for (int64_t k = 1; k <= calls; k++) {
    l.fail_at = k;
    capture_stderr();
    const ng_status st = ranks_run(RANKS, train_rank, &l, NULL);
    const char *words = captured_stderr();
    assert_int_equal(st, NG_OK);
    const bool came = l.calls >= k; /* the number of tests depends on timing */
    for (int r = 0; r < RANKS; r++) {
      if (l.rc[r] == (came ? CLI_BAD : CLI_OK)) continue;
      fail_msg("%s, wire %d: call %d of %d failed: rank %d ended with %d: %s", method, (int)w,
               (int)k, (int)calls, r, l.rc[r], words);
    }
  }
  end_runs(&l);
}

static void every_failing_call_ends_all_ranks(void **state) {
  fail_each_call("natgrad", WHOLE);
  fail_each_call("sgd", NO_START);
}

/* The loss of one rank is not finite, in the first or the last micro-batch of a step: the other ranks get
 * the error after all have sent their buckets. */
static void a_diverging_rank_ends_all_ranks(void **state) {
  static const char *const method[] = {"natgrad", "mfac", "sgd"};
  for (int m = 0; m < 3; m++) {
    for (int32_t sample = 0; sample < 36; sample += 11) {
      training_runs l;
      begin_runs(&l, method[m], "2");
      must_set(&l.s, "epochs", "1"); /* one epoch, so all samples are used */
      ((float *)(uintptr_t)l.d.train.reals)[6 * sample] = NAN;
      capture_stderr();
      const ng_status st = ranks_run(RANKS, train_rank, &l, NULL);
      const char *words = captured_stderr();
      assert_int_equal(st, NG_OK);
      for (int r = 0; r < RANKS; r++) {
        if (l.rc[r] != CLI_OK || !l.diverged[r] || l.steps[r] != l.steps[0])
          fail_msg("%s, sample %d: rank %d: status %d, diverged %d, %d steps: %s", method[m],
                   (int)sample, r, l.rc[r], (int)l.diverged[r], (int)l.steps[r], words);
      }
      end_runs(&l);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(buckets_do_not_change_the_sums),
      cmocka_unit_test(every_failing_call_ends_all_ranks),
      cmocka_unit_test(a_diverging_rank_ends_all_ranks),
  };
  (void)unsetenv("NG_METHOD");
  (void)setenv("OPENBLAS_NUM_THREADS", "1", 1);
  (void)setenv("NG_THREADS", "1", 1);
  return cmocka_run_group_tests(tests, make_folder, delete_folder);
}
