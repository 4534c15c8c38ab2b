/* t_train.c: the trainer's rooms that need no network: the learning rate against its formulas, the
 * order of samples, the log, files.  Settings are in t_settings.c, whole runs in tests/cli/train.sh
 * and resume.sh. */
#include "nn/models.h"
#include "train/disk.h"
#include "train/feed.h"
#include "train/log.h"
#include "train/lr.h"
#include "train/precond.h"
#include "trainer_help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- lr --------------------------------------------------------------------------------------*/

/* Rounding of a few operations on numbers up to 1. */
#define NEAR 1e-14

static void check_lr(const char *schedule, const char *warm_up, double epoch, double total,
                     double expected) {
  settings s;
  settings_init(&s);
  must_set(&s, "lr", "0.5");
  must_set(&s, "lr-schedule", schedule);
  must_set(&s, "warm-up", warm_up);
  const double got = lr_at(&s, epoch, total);
  if (fabs(got - 0.5 * expected) > NEAR)
    fail_msg("%s at %g of %g: %.17g instead of %.17g", schedule, epoch, total, got, 0.5 * expected);
  settings_free(&s);
}

static void lr_follows_its_formulas(void **state) {
  (void)state;
  check_lr("constant", "0", 7.5, 10, 1);
  check_lr("step:3,6", "0", 2.999, 10, 1);
  check_lr("step:3,6", "0", 3, 10, 0.1);
  check_lr("step:3,6", "0", 9, 10, 0.01);
  check_lr("step:0.5,6@0.2", "0", 0.5, 10, 0.2);
  check_lr("step:3,6@0.5", "0", 6, 10, 0.25);
  check_lr("cosine", "0", 0, 10, 1);
  check_lr("cosine", "0", 2.5, 10, 0.5 * (1 + sqrt(0.5)));
  check_lr("cosine", "0", 5, 10, 0.5);
  check_lr("cosine", "0", 10, 10, 0);
  check_lr("cosine:0.2", "0", 10, 10, 0.2);
  check_lr("cosine:0.2", "0", 5, 10, 0.6);
  check_lr("linear", "0", 4, 10, 0.6);
  check_lr("linear:0.5", "0", 10, 10, 0.5);
  check_lr("linear:0.5", "0", 5, 10, 0.75);
  check_lr("polynomial:2", "0", 5, 10, 0.25);
  check_lr("polynomial:0.5", "0", 7.5, 10, 0.5);
  check_lr("polynomial:2@2,6", "0", 1.999, 5, 1);
  check_lr("polynomial:2@2,6", "0", 4, 5, 0.25);
  check_lr("polynomial:2@2,6", "0", 6, 10, 0.25);  /* END is at least the run's */
  check_lr("polynomial:1@0,20", "4", 2, 10, 0.45); /* rises while it falls */
  check_lr("cyclic:4", "0", 0, 10, 0.1);
  check_lr("cyclic:4", "0", 1, 10, 0.55);
  check_lr("cyclic:4", "0", 2, 10, 1);
  check_lr("cyclic:4@0.4", "0", 3, 10, 0.7);
  check_lr("cyclic:4@0.4", "0", 8, 10, 0.4);
  /* With a warm-up the rest is stretched over what remains. */
  check_lr("constant", "2", 0, 10, 0);
  check_lr("constant", "2", 0.5, 10, 0.25);
  check_lr("constant", "2", 2, 10, 1);
  check_lr("cosine", "2", 1, 10, 0.5);
  check_lr("cosine", "2", 2, 10, 1);
  check_lr("cosine", "2", 6, 10, 0.5);
  check_lr("linear", "2", 4, 10, 0.75);
  check_lr("polynomial:3", "2", 6, 10, 0.125);
  check_lr("step:1,3", "2", 1, 10, 0.05);
  check_lr("step:1,3", "2", 2.5, 10, 0.1);
  check_lr("linear", "20", 5, 10, 0.25); /* a run that ends in its warm-up */
}

/* No schedule but step jumps, and none leaves [0, lr]. */
static void lr_is_continuous_and_bounded(void **state) {
  (void)state;
  static const char *const schedule[] = {"constant",         "cosine",       "cosine:0.1",
                                         "linear",           "linear:0.3",   "polynomial:1",
                                         "polynomial:2.5",   "cyclic:3@0.2", "cyclic:0.5",
                                         "step:2,4,7.5@0.5", "step:1"};
  enum { STEPS = 10000 };
  for (size_t k = 0; k < sizeof schedule / sizeof schedule[0]; k++) {
    for (int w = 0; w < 2; w++) {
      settings s;
      settings_init(&s);
      must_set(&s, "lr", "1");
      must_set(&s, "lr-schedule", schedule[k]);
      must_set(&s, "warm-up", w == 1 ? "1.5" : "0");
      int jumps = 0;
      double last = lr_at(&s, 0, 10);
      for (int i = 1; i <= STEPS; i++) {
        const double lr = lr_at(&s, 10.0 * i / STEPS, 10);
        assert_true(lr >= 0 && lr <= 1 + NEAR);
        /* The steepest is cyclic:0.5, 1.8 in half a period of 0.25: 0.0036 a step. */
        jumps += fabs(lr - last) > 0.005;
        last = lr;
      }
      const int expected = strncmp(schedule[k], "step:2", 6) == 0 ? 3 : schedule[k][0] == 's';
      if (jumps != expected) fail_msg("%s jumps %d times", schedule[k], jumps);
      settings_free(&s);
    }
  }
}

static void lr_schedules_are_read_strictly(void **state) {
  (void)state;
  static const char *const bad[] = {"",
                                    "cosin",
                                    "step",
                                    "step:",
                                    "step:3,2",
                                    "step:0",
                                    "step:1,",
                                    "step:1@",
                                    "step:1@2",
                                    "step:1@0.1x",
                                    "step:1;2",
                                    "cosine:",
                                    "cosine:2",
                                    "cosine:-0.1",
                                    "cosine:0.1,2",
                                    "constant:",
                                    "constant:1",
                                    "polynomial",
                                    "cyclic",
                                    "cyclic:0",
                                    "cyclic:nan",
                                    "cyclic:2@1.5",
                                    "polynomial:x",
                                    "linear:inf",
                                    "step:nan",
                                    "constant ",
                                    "cyclic:2@",
                                    "polynomial:-1",
                                    "polynomial:2@",
                                    "polynomial:2@1",
                                    "polynomial:2@3,3",
                                    "polynomial:2@1,2,3",
                                    "polynomial:2@-1,3"};
  char message[256];
  lr_schedule l;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    message[0] = 0;
    if (lr_parse(bad[i], &l, message, sizeof message) != CLI_BAD || message[0] == 0)
      fail_msg("'%s' is taken", bad[i]);
  }
  char many[512] = "step:1"; /* one more than there is room for */
  for (int i = 2; i <= LR_POINTS + 1; i++) {
    const size_t n = strlen(many);
    (void)snprintf(many + n, sizeof many - n, ",%d", i);
  }
  assert_int_equal(lr_parse(many, &l, message, sizeof message), CLI_BAD);
  *strrchr(many, ',') = 0;
  assert_int_equal(lr_parse(many, &l, message, sizeof message), CLI_OK);
  assert_int_equal(l.points, LR_POINTS);
}

static void lr_default_is_the_update_s(void **state) {
  (void)state;
  settings s;
  settings_init(&s);
  assert_true(settings_lr(&s) == 0.03);
  must_set(&s, "optimizer", "adamw");
  assert_true(settings_lr(&s) == 0.001);
  must_set(&s, "method", "sgd");
  assert_true(settings_lr(&s) == 0.03);
  must_set(&s, "method", "adamw");
  assert_true(settings_lr(&s) == 0.001);
  must_set(&s, "method", "eva");
  assert_true(settings_lr(&s) == 0.001);
  must_set(&s, "optimizer", "sgd");
  assert_true(settings_lr(&s) == 0.03 * 0.03);
  must_set(&s, "damping", "0.5");
  assert_true(settings_lr(&s) == 0.03 * 0.5);
  must_set(&s, "method", "kaisa");
  assert_true(settings_lr(&s) == 0.03);
  static const struct {
    const char *method;
    double lr;
  } window[] = {{"mfac", 0.0001},      {"efcp", 0.0001},      {"lowrank-mfac", 0.0001},
                {"ggt", 0.03},         {"sparse-ggt", 0.03},  {"topk-sgd", 0.03},
                {"topk-adam", 0.0001}, {"topk-adagrad", 0.03}};
  for (size_t i = 0; i < sizeof window / sizeof *window; i++) {
    must_set(&s, "method", window[i].method);
    assert_true(settings_lr(&s) == window[i].lr);
  }
  must_set(&s, "method", "kaisa");
  must_set(&s, "optimizer", "adamw");
  must_set(&s, "lr", "0.25");
  assert_true(settings_lr(&s) == 0.25);
  must_set(&s, "lr", "default");
  assert_true(settings_lr(&s) == 0.001);
  settings_free(&s);
}

/* ---- threads ---------------------------------------------------------------------------------*/

/* The same variable, read by the same code, means the library's loops and the trainer's. */
static void threads_are_the_library_s(void **state) {
  (void)state;
  const char *kept = getenv("NG_THREADS");
  char before[32] = "";
  (void)snprintf(before, sizeof before, "%s", kept != NULL ? kept : "");
  int threads = 0;
  ng_context *ctx = NULL;
  assert_int_equal(setenv("NG_THREADS", "3", 1), 0);
  assert_int_equal(cli_threads(&threads), CLI_OK);
  assert_int_equal(threads, 3);
  assert_int_equal(ng_context_create(NG_VERSION, NULL, NULL, 0, &ctx), NG_OK);
  assert_int_equal(ng_context_threads(ctx), 3);
  ng_context_destroy(&ctx);
  assert_int_equal(ng_context_threads(NULL), 1);
  assert_int_equal(setenv("NG_THREADS", "1025", 1), 0);
  quiet();
  assert_int_equal(cli_threads(&threads), CLI_BAD);
  assert_string_equal(said(),
                      "natgrad: NG_THREADS is '1025', expected a whole number from 1 to 1024\n");
  assert_int_equal(setenv("NG_THREADS", "", 1), 0);
  assert_int_equal(cli_threads(&threads), CLI_OK);
  assert_int_equal(threads, cli_cores());
  if (kept != NULL) {
    assert_int_equal(setenv("NG_THREADS", before, 1), 0);
  } else {
    assert_int_equal(unsetenv("NG_THREADS"), 0);
  }
}

/* ---- the order of samples --------------------------------------------------------------------*/

/* Row i is (i, 2 i), its label i mod 5; 53 rows in batches of 8 leave 5 out of an epoch. */
enum { ROWS = 53, BATCH = 8, EACH = ROWS / BATCH };
static void batches_cover_an_epoch(void **state) {
  (void)state;
  float reals[2 * ROWS], mean[2] = {0, 0}, deviation[2] = {1, 1};
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
                      .mean = mean,
                      .deviation = deviation,
                      .statistics = 2,
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
      assert_int_equal(feed_train(&f, epoch * EACH + k, 0), CLI_OK);
      for (int i = 0; i < BATCH; i++) {
        const int row = (int)lroundf(f.x[2 * i]);
        assert_in_range(row, 0, ROWS - 1);
        assert_true(f.x[2 * i + 1] == (float)(2 * row) && f.labels[i] == row % 5);
        assert_int_equal(seen[row]++, 0);
        if (k == 0 && epoch == 0) first[i] = f.x[2 * i];
      }
    }
    if (epoch == 0) continue;
    assert_int_equal(feed_train(&f, epoch * EACH, 0), CLI_OK);
    int same = 0;
    for (int i = 0; i < BATCH; i++)
      same += f.x[2 * i] == first[i];
    assert_true(same < BATCH); /* all in their place by chance: 1 in 53!/45! */
  }
  /* Begun anywhere, and without a pool: the same. */
  static const int64_t step[] = {17, 3, 23, 0};
  for (size_t i = 0; i < sizeof step / sizeof step[0]; i++) {
    assert_int_equal(feed_train(&f, step[i], 0), CLI_OK);
    assert_int_equal(feed_train(&alone, step[i], 0), CLI_OK);
    assert_memory_equal(f.x, alone.x, 2 * BATCH * sizeof(float));
    assert_memory_equal(f.labels, alone.labels, BATCH * sizeof(int32_t));
  }
  int32_t good = 0;
  assert_int_equal(feed_test(&f, 48, 5, &good), CLI_OK);
  assert_int_equal(good, 5);
  for (int i = 0; i < 5; i++)
    assert_true(f.x[2 * i] == (float)(48 + i) && f.labels[i] == (48 + i) % 5);
  feed_free(&f);
  feed_free(&alone);
  quiet();
  must_set(&s, "batch", "54");
  int rc = feed_create(&s, &d, NULL, false, NULL, &f);
  assert_non_null(strstr(said(), "--batch: 54 samples, but rows has 53 to train on"));
  assert_int_equal(rc, CLI_BAD);
  must_set(&s, "batch", "8");
  must_set(&s, "augment", "flip");
  quiet();
  rc = feed_create(&s, &d, NULL, false, NULL, &f);
  assert_non_null(strstr(said(), "--augment: flip needs images"));
  assert_int_equal(rc, CLI_BAD);
  settings_free(&s);
  ng_pool_destroy(pool);
}

/* ---- log and files ---------------------------------------------------------------------------*/

static void the_log_is_cut_and_read_back(void **state) {
  (void)state;
  char path[512];
  (void)snprintf(path, sizeof path, "%s", in_folder("log.jsonl"));
  train_station station[2] = {{"forward", 10.0}, {"emit", 4.0}};
  log_times t = {station, 2, 4};
  run_log *l = NULL;
  assert_int_equal(log_create(path, &l), CLI_OK);
  const train_epoch e[2] = {{1, 4, 0.1, 1.0 / 3.0, 0.5, 0.7, 2.0 / 3.0, 1.5},
                            {2, 8, 0.1, 0.1, 0.9, (double)NAN, (double)NAN, 3.0}};
  assert_int_equal(
      log_write_step(
          l,
          &(log_step){.step = 3, .epoch = 1, .lr = 0.1, .loss = 0.4, .accuracy = 0.5, .clip = 1.0},
          &t),
      CLI_OK);
  assert_int_equal(log_write_epoch(l, &e[0], &t), CLI_OK);
  int64_t bytes = 0, longer = 0;
  uint32_t crc = 0, crc_longer = 0;
  assert_int_equal(log_sync(l, &bytes, &crc), CLI_OK);
  station[0].total_ms = 18.0;
  t.steps = 8;
  assert_int_equal(log_write_epoch(l, &e[1], &t), CLI_OK);
  assert_int_equal(log_sync(l, &longer, &crc_longer), CLI_OK);
  assert_int_equal(log_close(&l), CLI_OK);
  assert_true(bytes > 0 && longer > bytes);

  train_epoch *all = NULL;
  int n = 0;
  assert_int_equal(log_epochs(path, longer, &all, &n), CLI_OK);
  assert_int_equal(n, 2);
  assert_true(all[0].epoch == 1 && all[0].step == 4 && all[0].lr == e[0].lr);
  assert_true(all[0].train_loss == e[0].train_loss && all[0].test_accuracy == e[0].test_accuracy);
  assert_true(all[0].train_accuracy == e[0].train_accuracy && all[0].test_loss == e[0].test_loss);
  assert_true(all[0].seconds == e[0].seconds);
  assert_true(all[1].epoch == 2 && all[1].step == 8 && isnan(all[1].test_loss));
  free(all);
  assert_int_equal(log_epochs(path, bytes, &all, &n), CLI_OK);
  assert_int_equal(n, 1);
  free(all);

  char *whole = NULL, *again = NULL;
  assert_int_equal(disk_read(path, &whole), CLI_OK);
  assert_non_null(strstr(whole, "\"forward\": 2.0000")); /* (18 - 10) ms over 4 steps */
  station[0].total_ms = 10.0; /* cut after the first epoch and told again: the same bytes */
  t.steps = 4;
  assert_int_equal(log_reopen(path, bytes, crc, &t, &l), CLI_OK);
  station[0].total_ms = 18.0;
  t.steps = 8;
  assert_int_equal(log_write_epoch(l, &e[1], &t), CLI_OK);
  int64_t same = 0;
  uint32_t crc_same = 0;
  assert_int_equal(log_sync(l, &same, &crc_same), CLI_OK);
  assert_true(same == longer && crc_same == crc_longer);
  assert_int_equal(log_close(&l), CLI_OK);
  assert_int_equal(disk_read(path, &again), CLI_OK);
  assert_string_equal(whole, again);
  assert_int_equal(crc_longer, disk_crc(whole, (size_t)longer));
  assert_int_equal(crc, disk_crc(whole, (size_t)bytes));
  assert_int_equal(log_check(path, bytes, crc), CLI_OK);
  assert_int_equal(log_check(path, longer, crc_longer), CLI_OK);
  quiet();
  assert_int_equal(log_check(path, longer, crc), CLI_BAD);
  assert_non_null(strstr(said(), "log.jsonl: does not belong to checkpoint/latest.json"));
  free(whole);
  free(again);
  quiet();
  assert_int_equal(log_reopen(path, longer + 1, crc, &t, &l), CLI_BAD);
  assert_non_null(strstr(said(), "the checkpoint was made when there were"));
}

/* A limit to the size of a file stands for the full disk. */
static void a_full_disk_is_an_error(void **state) {
  (void)state;
  char path[512];
  (void)snprintf(path, sizeof path, "%s", in_folder("full.jsonl"));
  struct rlimit was, little;
  run_log *l = NULL;
  int64_t bytes;
  uint32_t crc;
  const log_times t = {NULL, 0, 1};
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
  little = was;
  little.rlim_cur = 16;
  assert_int_equal(log_create(path, &l), CLI_OK);
  quiet();
  void (*const handler)(int) = signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
  int rc = log_write_step(
      l, &(log_step){.step = 1, .epoch = 1, .lr = 0.1, .loss = 0.4, .accuracy = 0.5, .clip = 1.0},
      &t);
  if (rc == CLI_OK) rc = log_sync(l, &bytes, &crc);
  (void)setrlimit(RLIMIT_FSIZE, &was); /* before anything else is said into a file */
  (void)signal(SIGXFSZ, handler);
  log_drop(&l);
  (void)said();
  assert_int_equal(rc, CLI_BAD);
  quiet();
  assert_int_equal(log_create("/dev/null", &l), CLI_BAD);
  assert_non_null(strstr(said(), "/dev/null: is a device or a socket, expected a regular file"));
}

/* Nothing is followed and nothing is waited for. */
static void only_regular_files(void **state) {
  (void)state;
  char path[512], target[512], *text = NULL;
  (void)snprintf(path, sizeof path, "%s", in_folder("odd"));
  (void)snprintf(target, sizeof target, "%s", in_folder("target"));
  assert_int_equal(disk_write(target, "kept", 4), CLI_OK);
  assert_int_equal(symlink(target, path), 0);
  quiet();
  assert_int_equal(disk_write(path, "new", 3), CLI_BAD);
  assert_non_null(strstr(said(), "odd: is a symbolic link, expected a regular file"));
  disk_remove(path);
  assert_true(disk_exists(path));
  assert_int_equal(disk_read(path, &text), CLI_OK); /* what only is read may lie elsewhere */
  assert_string_equal(text, "kept");
  free(text);
  assert_int_equal(disk_export(path, "new", 3), CLI_OK);
  assert_int_equal(disk_read(target, &text), CLI_OK);
  assert_string_equal(text, "new");
  free(text);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(mkfifo(path, 0600), 0);
  quiet();
  assert_int_equal(disk_read(path, &text), CLI_BAD);
  assert_non_null(strstr(said(), "odd: cannot be read: not a regular file"));
  quiet();
  assert_int_equal(disk_write(path, "new", 3), CLI_BAD);
  assert_non_null(strstr(said(), "odd: is a pipe, expected a regular file"));
  disk_remove(path);
  assert_true(disk_exists(path));
}

/* One at a time; who is refused holds nothing that he could close. */
static void a_folder_is_locked(void **state) {
  (void)state;
  char path[512];
  int first = -1, second = -1;
  (void)snprintf(path, sizeof path, "%s", in_folder("locked"));
  assert_int_equal(disk_folder(path), CLI_OK);
  assert_int_equal(disk_lock(path, "train", &first), CLI_OK);
  assert_true(first >= 0);
  quiet();
  const int rc = disk_lock(path, "train", &second);
  assert_non_null(strstr(said(), "--out: another natgrad train is at work in "));
  assert_int_equal(rc, CLI_BAD);
  assert_int_equal(second, -1);
  assert_int_equal(close(first), 0);
  assert_int_equal(disk_lock(path, "train", &second), CLI_OK);
  assert_true(second >= 0);
  assert_int_equal(close(second), 0);
}

/* A disk that writes and then refuses the last act. */
static bool no_rename;
int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to) {
  if (!no_rename) return __real_rename(from, to);
  errno = EACCES;
  return -1;
}

static bool bad_close;
int __real_close(int fd);
/* Visible: the library of the thread sanitizer calls it, too. */
__attribute__((visibility("default"))) int __wrap_close(int fd);
int __wrap_close(int fd) {
  const int rc = __real_close(fd);
  if (!bad_close) return rc;
  errno = EIO;
  return -1;
}

/* What the disk says when a file is closed is part of writing it. */
static void must_fail_to_close(const char *path) {
  quiet();
  bad_close = true;
  const int rc = disk_export(path, "three", 5);
  bad_close = false;
  assert_non_null(strstr(said(), "cannot be written: Input/output error"));
  assert_int_equal(rc, CLI_BAD);
}

static void files_are_written_whole_or_not(void **state) {
  (void)state;
  char *text = NULL, path[512];
  (void)snprintf(path, sizeof path, "%s", in_folder("a/b/c"));
  assert_int_equal(disk_folder(path), CLI_OK);
  assert_int_equal(disk_folder(path), CLI_OK);
  char *file = cli_join(path, "f");
  assert_int_equal(disk_write(file, "one", 3), CLI_OK);
  assert_int_equal(disk_write(file, "two and more", 12), CLI_OK);
  assert_int_equal(disk_read(file, &text), CLI_OK);
  assert_string_equal(text, "two and more");
  free(text);
  char *part = cli_join(path, "f.natgrad-part");
  assert_false(disk_exists(part));
  must_fail_to_close(file);
  must_fail_to_close("/dev/null"); /* no file to replace: written through */
  assert_false(disk_exists(part));
  no_rename = true;
  quiet();
  const int rc = disk_write(file, "three", 5);
  no_rename = false;
  assert_non_null(strstr(said(), "c/f: cannot be written: Permission denied"));
  assert_int_equal(rc, CLI_BAD);
  assert_false(disk_exists(part));
  assert_int_equal(mkdir(part, 0700), 0); /* in the way of the next */
  quiet();
  assert_int_equal(disk_write(file, "three", 5), CLI_BAD);
  assert_non_null(strstr(said(), "c/f.natgrad-part: is a folder, expected a regular file"));
  assert_int_equal(disk_read(file, &text), CLI_OK);
  assert_string_equal(text, "two and more");
  free(text);
  quiet();
  assert_int_equal(disk_folder(file), CLI_BAD);
  assert_non_null(strstr(said(), "c/f: cannot be made a folder"));
  free(file);
  free(part);
}

/* A step of which no layer was observed, though it was due, is no error: it is counted, and said once. */
static void steps_say_what_was_not_observed(void **state) {
  enum { SAMPLES = 4, FEATURES = 3, CLASSES = 2 };
  const model_task task = {.input = {1, 1, FEATURES}, .classes = CLASSES, .dropout = -1.0};
  const float x[SAMPLES * FEATURES] = {1, 2, -1, 0.5f, 1, 0, -2, 1, 1, 0.25f, 3, -1};
  const int32_t labels[SAMPLES] = {0, 1, 1, 0};
  bool reconstructs = false, wants = false;
  settings s;
  precond *p = NULL;
  (void)state;
  settings_init(&s);
  must_set(&s, "method", "natgrad");
  must_set(&s, "stat_period", "1");
  nn *net = nn_create(NULL, 1);
  assert_int_equal(model_build("logreg", &task, net, &reconstructs), CLI_OK);
  assert_int_equal(nn_ready(net, SAMPLES), CLI_OK);
  assert_int_equal(precond_create(&s, NULL, net, NULL, &p), CLI_OK);
  for (int step = 0; step < 3; step++) {
    unsigned outcome = 99;
    assert_int_equal(precond_begin(p, SAMPLES, true, &wants), CLI_OK);
    assert_true(wants);
    const nn_watch *watch = step == 1 ? NULL : precond_watch(p);
    assert_int_equal(nn_forward(net, NN_TRAIN, x, SAMPLES, (uint64_t)step, watch), CLI_OK);
    (void)nn_loss(net, NN_TRAIN, labels, NULL, NULL);
    assert_int_equal(nn_backward(net, true, watch), CLI_OK);
    quiet();
    const int rc = precond_step(p, 0.1, &outcome);
    const char *line = said();
    assert_int_equal(rc, CLI_OK);
    assert_int_equal(outcome, step == 1 ? PRECOND_UNOBSERVED : 0);
    assert_true((strstr(line, "NG_UNOBSERVED") != NULL) == (step == 1));
  }
  precond_destroy(&p);
  nn_destroy(&net);
  settings_free(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lr_follows_its_formulas),
      cmocka_unit_test(lr_is_continuous_and_bounded),
      cmocka_unit_test(lr_schedules_are_read_strictly),
      cmocka_unit_test(lr_default_is_the_update_s),
      cmocka_unit_test(threads_are_the_library_s),
      cmocka_unit_test(batches_cover_an_epoch),
      cmocka_unit_test(the_log_is_cut_and_read_back),
      cmocka_unit_test(a_full_disk_is_an_error),
      cmocka_unit_test(only_regular_files),
      cmocka_unit_test(a_folder_is_locked),
      cmocka_unit_test(files_are_written_whole_or_not),
      cmocka_unit_test(steps_say_what_was_not_observed),
  };
  return cmocka_run_group_tests(tests, make_scratch, drop_scratch);
}
