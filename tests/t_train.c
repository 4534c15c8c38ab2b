/* t_train.c: parts of the trainer below a run: threads, the order of samples, a step without observations.  Other
 * tests: schedules t_schedule.c, logs and files t_disk.c, settings t_settings.c, whole runs tests/cli/train.sh and
 * resume.sh. */
#include "nn/models.h"
#include "train/feed.h"
#include "train/precond.h"
#include "trainer_help.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- threads ---------------------------------------------------------------------------------*/

/* NG_THREADS sets the threads of the library's loops and of the trainer, with the same rules. */
static void trainer_and_library_use_the_same_threads(void **state) {
  const char *kept = getenv("NG_THREADS");
  char before[32] = "";
  (void)snprintf(before, sizeof before, "%s", kept != NULL ? kept : "");
  int threads = 0;
  ng_context *ctx = NULL;
  assert_int_equal(setenv("NG_THREADS", "3", 1), 0);
  assert_int_equal(cli_read_thread_count(&threads), CLI_OK);
  assert_int_equal(threads, 3);
  assert_int_equal(ng_context_create(NG_VERSION, NULL, NULL, 0, &ctx), NG_OK);
  assert_int_equal(ng_context_threads(ctx), 3);
  ng_context_destroy(&ctx);
  assert_int_equal(ng_context_threads(NULL), 1);
  assert_int_equal(setenv("NG_THREADS", "1025", 1), 0);
  capture_stderr();
  assert_int_equal(cli_read_thread_count(&threads), CLI_BAD);
  assert_string_equal(captured_stderr(),
                      "natgrad: NG_THREADS is '1025', expected a whole number from 1 to 1024\n");
  assert_int_equal(setenv("NG_THREADS", "", 1), 0);
  assert_int_equal(cli_read_thread_count(&threads), CLI_OK);
  assert_int_equal(threads, cli_count_cores());
  if (kept != NULL) {
    assert_int_equal(setenv("NG_THREADS", before, 1), 0);
  } else {
    assert_int_equal(unsetenv("NG_THREADS"), 0);
  }
}

/* ---- the order of samples --------------------------------------------------------------------*/

/* Row i is (i, 2 i) with label i mod 5.  53 rows in batches of 8 leave out 5 rows per epoch. */
enum { ROWS = 53, BATCH = 8, EACH = ROWS / BATCH };
static void batches_cover_an_epoch(void **state) {
  float reals[2 * ROWS], shift[2] = {0, 0}, scale[2] = {1, 1};
  int32_t labels[ROWS];
  for (int i = 0; i < ROWS; i++) {
    reals[2 * i] = (float)i;
    reals[2 * i + 1] = (float)(2 * i);
    labels[i] = i % 5;
  }
  const data_split split = {.n = ROWS, .reals = reals, .labels = labels};
  const data_set d = {.name = "rows",
                      .height = 1,
                      .width = 1,
                      .channels = 2,
                      .classes = 5,
                      .scale = {scale, scale},
                      .shift = {shift, shift},
                      .train = split,
                      .test = split};
  ng_pool *pool = ng_pool_create(3, NULL);
  assert_non_null(pool);
  settings s;
  settings_init(&s);
  must_set(&s, "batch", "8");
  feed f, alone;
  assert_int_equal(feed_create(&s, &d, NULL, false, pool, &f), CLI_OK);
  assert_int_equal(feed_create(&s, &d, NULL, false, NULL, &alone), CLI_OK);
  assert_true(f.per_epoch == EACH);
  float first[BATCH];
  for (int64_t epoch = 0; epoch < 4; epoch++) {
    int seen[ROWS] = {0};
    for (int64_t k = 0; k < EACH; k++) {
      assert_int_equal(feed_fill_train(&f, epoch * EACH + k, 0), CLI_OK);
      for (int i = 0; i < BATCH; i++) {
        const int row = (int)lroundf(f.x[2 * i]);
        assert_in_range(row, 0, ROWS - 1);
        assert_true(f.x[2 * i + 1] == (float)(2 * row) && f.labels[i] == row % 5);
        assert_int_equal(seen[row]++, 0);
        if (k == 0 && epoch == 0) first[i] = f.x[2 * i];
      }
    }
    if (epoch == 0) continue;
    assert_int_equal(feed_fill_train(&f, epoch * EACH, 0), CLI_OK);
    int same = 0;
    for (int i = 0; i < BATCH; i++)
      same += f.x[2 * i] == first[i];
    assert_true(same <
                BATCH); /* the first batches of two epochs are equal by chance once in 53!/45! */
  }
  /* A feed without a pool, started at any step, gives the same batches. */
  static const int64_t step[] = {17, 3, 23, 0};
  for (size_t i = 0; i < sizeof step / sizeof step[0]; i++) {
    assert_int_equal(feed_fill_train(&f, step[i], 0), CLI_OK);
    assert_int_equal(feed_fill_train(&alone, step[i], 0), CLI_OK);
    assert_memory_equal(f.x, alone.x, 2 * BATCH * sizeof(float));
    assert_memory_equal(f.labels, alone.labels, BATCH * sizeof(int32_t));
  }
  int32_t good = 0;
  assert_int_equal(feed_fill_test(&f, 48, 5, &good), CLI_OK);
  assert_int_equal(good, 5);
  for (int i = 0; i < 5; i++)
    assert_true(f.x[2 * i] == (float)(48 + i) && f.labels[i] == (48 + i) % 5);
  feed_free(&f);
  feed_free(&alone);
  capture_stderr();
  must_set(&s, "batch", "54");
  int rc = feed_create(&s, &d, NULL, false, NULL, &f);
  assert_non_null(strstr(captured_stderr(), "--batch: 54 samples, but rows has 53 to train on"));
  assert_int_equal(rc, CLI_BAD);
  must_set(&s, "batch", "8");
  must_set(&s, "augment", "flip");
  capture_stderr();
  rc = feed_create(&s, &d, NULL, false, NULL, &f);
  assert_non_null(strstr(captured_stderr(), "--augment: flip needs images"));
  assert_int_equal(rc, CLI_BAD);
  settings_free(&s);
  ng_pool_destroy(pool);
}

/* A text has a label for each character of a sample, also if several threads fill the batch. */
static void batches_of_text_have_all_labels(void **state) {
  enum { CONTEXT = 3, N = 20, SIZE = 6 };
  uint8_t tokens[N * CONTEXT];
  int32_t labels[N * CONTEXT];
  float scale = 1.0F, shift = 0.0F;
  for (int i = 0; i < N * CONTEXT; i++) {
    tokens[i] = (uint8_t)i;
    labels[i] = i + 1;
  }
  const data_split split = {.n = N, .bytes = tokens, .labels = labels};
  const data_set d = {.name = "text",
                      .height = 1,
                      .width = CONTEXT,
                      .channels = 1,
                      .context = CONTEXT,
                      .classes = N * CONTEXT + 1,
                      .scale = {&scale, &scale},
                      .shift = {&shift, &shift},
                      .train = split,
                      .test = split};
  ng_pool *pool = ng_pool_create(3, NULL);
  settings s;
  settings_init(&s);
  must_set(&s, "batch", "6");
  feed f;
  assert_int_equal(feed_create(&s, &d, NULL, false, pool, &f), CLI_OK);
  for (int round = 0; round < 2; round++) { /* training samples, test samples */
    int32_t good = 0;
    if (round == 0) assert_int_equal(feed_fill_train(&f, 1, 0), CLI_OK);
    if (round == 1) assert_int_equal(feed_fill_test(&f, 7, SIZE, &good), CLI_OK);
    for (int i = 0; i < SIZE * CONTEXT; i++) {
      assert_true(f.x[i] == f.x[i / CONTEXT * CONTEXT] + (float)(i % CONTEXT));
      assert_true((float)f.labels[i] == f.x[i] + 1.0F);
    }
    assert_true(round == 0 || f.x[0] == (float)(7 * CONTEXT));
  }
  feed_free(&f);
  static const char *const refused[][3] = {
      {"mixup-alpha", "0.2", "--mixup-alpha: needs images or features, text has tokens"},
      {"augment", "crop", "--augment: crop needs images, text has none"},
      {"erase-rate", "0.5", "--erase-rate: needs images, text has none"}};
  for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
    settings_free(&s);
    settings_init(&s);
    must_set(&s, "batch", "6");
    must_set(&s, refused[i][0], refused[i][1]);
    capture_stderr();
    const int rc = feed_create(&s, &d, NULL, false, pool, &f);
    assert_non_null(strstr(captured_stderr(), refused[i][2]));
    assert_int_equal(rc, CLI_BAD);
  }
  settings_free(&s);
  ng_pool_destroy(pool);
}

/* ---- a step ----------------------------------------------------------------------------------*/

/* If no layer was observed although statistics were due, the step is counted and reported once, without an error. */
static void unobserved_steps_are_reported(void **state) {
  enum { SAMPLES = 4, FEATURES = 3, CLASSES = 2 };
  const model_task task = {.input = {1, 1, FEATURES}, .classes = CLASSES, .dropout = -1.0};
  const float x[SAMPLES * FEATURES] = {1, 2, -1, 0.5f, 1, 0, -2, 1, 1, 0.25f, 3, -1};
  const int32_t labels[SAMPLES] = {0, 1, 1, 0};
  bool reconstructs = false, wants = false;
  settings s;
  precond *p = NULL;
  settings_init(&s);
  must_set(&s, "method", "natgrad");
  must_set(&s, "stat_period", "1");
  nn *net = nn_create(NULL, 1);
  assert_int_equal(model_build("logreg", &task, net, &reconstructs), CLI_OK);
  assert_int_equal(nn_prepare(net, SAMPLES), CLI_OK);
  assert_int_equal(precond_create(&s, NULL, net, NULL, &p), CLI_OK);
  for (int step = 0; step < 3; step++) {
    precond_outcome outcome = {true, true, step != 1};
    assert_int_equal(precond_begin_batch(p, SAMPLES, true, &wants), CLI_OK);
    assert_true(wants);
    const nn_watch *watch = step == 1 ? NULL : precond_get_watch(p);
    assert_int_equal(nn_forward(net, NN_TRAIN, x, SAMPLES, (uint64_t)step, watch), CLI_OK);
    (void)nn_compute_loss(net, NN_TRAIN, labels, NULL, NULL);
    assert_int_equal(nn_backward(net, true, watch), CLI_OK);
    capture_stderr();
    const int rc = precond_step(p, 0.1, s.momentum, &outcome);
    const char *line = captured_stderr();
    assert_int_equal(rc, CLI_OK);
    assert_false(outcome.skipped || outcome.rescued);
    assert_true(outcome.unobserved == (step == 1));
    assert_true((strstr(line, "NG_UNOBSERVED") != NULL) == (step == 1));
  }
  precond_destroy(&p);
  nn_destroy(&net);
  settings_free(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(trainer_and_library_use_the_same_threads),
      cmocka_unit_test(batches_cover_an_epoch),
      cmocka_unit_test(batches_of_text_have_all_labels),
      cmocka_unit_test(unobserved_steps_are_reported),
  };
  return cmocka_run_group_tests(tests, make_folder, delete_folder);
}
