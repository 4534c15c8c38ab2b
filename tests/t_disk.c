/* t_disk.c: files of a training run: the log, truncated and read back; complete files or none; folders. */
#include "train/disk.h"
#include "train/log.h"
#include "trainer_help.h"
#include "unit_test.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static void the_log_is_truncated_and_read(void **state) {
  char path[512];
  (void)snprintf(path, sizeof path, "%s", in_folder("log.jsonl"));
  train_station station[2] = {{.name = "forward", .ms = 10.0}, {.name = "emit", .ms = 4.0}};
  log_times t = {station, 2, 4};
  run_log *l = NULL;
  assert_int_equal(log_create(path, &l), CLI_OK);
  const train_epoch e[2] = {{1, 4, 0.1, 1.0 / 3.0, 0.5, 0.7, 2.0 / 3.0, 1.5},
                            {2, 8, 0.1, 0.1, 0.9, (double)NAN, (double)NAN, 3.0}};
  assert_int_equal(
      log_write_step(l, 3, 1, (const train_number[]){{"lr", 0.1}, {"train_loss", 0.4}}, 2, &t),
      CLI_OK);
  assert_int_equal(log_write_epoch(l, &e[0], &t), CLI_OK);
  int64_t bytes = 0, longer = 0;
  uint32_t crc = 0, crc_longer = 0;
  assert_int_equal(log_flush(l, &bytes, &crc), CLI_OK);
  station[0].ms = 18.0;
  t.steps = 8;
  assert_int_equal(log_write_epoch(l, &e[1], &t), CLI_OK);
  assert_int_equal(log_flush(l, &longer, &crc_longer), CLI_OK);
  assert_int_equal(log_close(&l), CLI_OK);
  assert_true(bytes > 0 && longer > bytes);

  train_epoch *all = NULL;
  int n = 0;
  assert_int_equal(log_read_epochs(path, longer, &all, &n), CLI_OK);
  assert_int_equal(n, 2);
  assert_true(all[0].epoch == 1 && all[0].step == 4 && all[0].lr == e[0].lr);
  assert_true(all[0].train_loss == e[0].train_loss && all[0].test_accuracy == e[0].test_accuracy);
  assert_true(all[0].train_accuracy == e[0].train_accuracy && all[0].test_loss == e[0].test_loss);
  assert_true(all[0].seconds == e[0].seconds);
  assert_true(all[1].epoch == 2 && all[1].step == 8 && isnan(all[1].test_loss));
  free(all);
  assert_int_equal(log_read_epochs(path, bytes, &all, &n), CLI_OK);
  assert_int_equal(n, 1);
  free(all);

  char *whole = NULL, *again = NULL;
  assert_int_equal(disk_read_text(path, &whole), CLI_OK);
  assert_non_null(strstr(whole, "\"forward\": 2.0000")); /* (18 - 10) ms over 4 steps */
  station[0].ms = 10.0; /* truncate after the first epoch and write again: the same bytes */
  t.steps = 4;
  assert_int_equal(log_reopen(path, bytes, &t, &l), CLI_OK);
  station[0].ms = 18.0;
  t.steps = 8;
  assert_int_equal(log_write_epoch(l, &e[1], &t), CLI_OK);
  int64_t same = 0;
  uint32_t crc_same = 0;
  assert_int_equal(log_flush(l, &same, &crc_same), CLI_OK);
  assert_true(same == longer && crc_same == crc_longer);
  assert_int_equal(log_close(&l), CLI_OK);
  assert_int_equal(disk_read_text(path, &again), CLI_OK);
  assert_string_equal(whole, again);
  assert_int_equal(crc_longer, disk_compute_crc(whole, (size_t)longer));
  assert_int_equal(crc, disk_compute_crc(whole, (size_t)bytes));
  assert_int_equal(log_check_crc(path, bytes, crc, "checkpoint-8"), CLI_OK);
  assert_int_equal(log_check_crc(path, longer, crc_longer, "checkpoint-8"), CLI_OK);
  capture_stderr();
  assert_int_equal(log_check_crc(path, longer, crc, "checkpoint-8"), CLI_BAD);
  assert_non_null(strstr(captured_stderr(), "log.jsonl: does not belong to checkpoint-8"));
  free(whole);
  free(again);
  capture_stderr();
  assert_int_equal(log_check_crc(path, longer + 1, crc, "checkpoint-8"), CLI_BAD);
  assert_non_null(strstr(captured_stderr(), "the checkpoint was made when the log had"));
}

/* RLIMIT_FSIZE simulates a full disk. */
static void a_full_disk_is_an_error(void **state) {
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
  capture_stderr();
  void (*const handler)(int) = signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
  int rc = log_write_step(l, 1, 1, (const train_number[]){{"lr", 0.1}, {"train_loss", 0.4}}, 2, &t);
  if (rc == CLI_OK) rc = log_flush(l, &bytes, &crc);
  (void)setrlimit(RLIMIT_FSIZE, &was); /* restore the limit before other output goes to a file */
  (void)signal(SIGXFSZ, handler);
  log_close_quietly(&l);
  (void)captured_stderr();
  assert_int_equal(rc, CLI_BAD);
  capture_stderr();
  assert_int_equal(log_create("/dev/null", &l), CLI_BAD);
  assert_non_null(
      strstr(captured_stderr(), "/dev/null: is a device or a socket, expected a regular file"));
}

/* Writing does not follow links or wait for pipes. */
static void only_regular_files_are_opened(void **state) {
  char path[512], target[512], *text = NULL;
  (void)snprintf(path, sizeof path, "%s", in_folder("odd"));
  (void)snprintf(target, sizeof target, "%s", in_folder("target"));
  assert_int_equal(disk_write_file(target, "kept", 4), CLI_OK);
  assert_int_equal(symlink(target, path), 0);
  capture_stderr();
  assert_int_equal(disk_write_file(path, "new", 3), CLI_BAD);
  assert_non_null(strstr(captured_stderr(), "odd: is a symbolic link, expected a regular file"));
  disk_remove_file(path);
  assert_true(disk_exists(path));
  assert_int_equal(disk_read_text(path, &text), CLI_OK); /* reading follows links */
  assert_string_equal(text, "kept");
  free(text);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(mkfifo(path, 0600), 0);
  capture_stderr();
  assert_int_equal(disk_read_text(path, &text), CLI_BAD);
  assert_non_null(strstr(captured_stderr(), "odd: not a regular file"));
  capture_stderr();
  assert_int_equal(disk_write_file(path, "new", 3), CLI_BAD);
  assert_non_null(strstr(captured_stderr(), "odd: is a pipe, expected a regular file"));
  disk_remove_file(path);
  assert_true(disk_exists(path));
}

/* Only one run has the lock; a refused run gets no descriptor. */
static void a_folder_is_locked(void **state) {
  char path[512];
  int first = -1, second = -1;
  (void)snprintf(path, sizeof path, "%s", in_folder("locked"));
  assert_int_equal(disk_make_folder(path), CLI_OK);
  assert_int_equal(disk_lock_folder(path, "train", &first), CLI_OK);
  assert_true(first >= 0);
  capture_stderr();
  const int rc = disk_lock_folder(path, "train", &second);
  assert_non_null(strstr(captured_stderr(), "--out: another natgrad train is running in "));
  assert_int_equal(rc, CLI_BAD);
  assert_int_equal(second, -1);
  assert_int_equal(close(first), 0);
  assert_int_equal(disk_lock_folder(path, "train", &second), CLI_OK);
  assert_true(second >= 0);
  assert_int_equal(close(second), 0);
}

/* ---- files -----------------------------------------------------------------------------------*/

/* Simulated failures of rename and close. */
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
/* Visible, because the thread sanitizer also calls this function. */
__attribute__((visibility("default"))) int __wrap_close(int fd);
int __wrap_close(int fd) {
  const int rc = __real_close(fd);
  if (!bad_close) return rc;
  errno = EIO;
  return -1;
}

/* An error of close is an error of writing. */
static void must_fail_to_close(const char *path) {
  capture_stderr();
  bad_close = true;
  const int rc = disk_write_file(path, "three", 5);
  bad_close = false;
  assert_non_null(strstr(captured_stderr(), "cannot be written: Input/output error"));
  assert_int_equal(rc, CLI_BAD);
}

static void files_are_written_whole_or_not(void **state) {
  char *text = NULL, path[512];
  (void)snprintf(path, sizeof path, "%s", in_folder("a/b/c"));
  assert_int_equal(disk_make_folder(path), CLI_OK);
  assert_int_equal(disk_make_folder(path), CLI_OK);
  char *file = cli_join(path, "f");
  assert_int_equal(disk_write_file(file, "one", 3), CLI_OK);
  assert_int_equal(disk_write_file(file, "two and more", 12), CLI_OK);
  assert_int_equal(disk_read_text(file, &text), CLI_OK);
  assert_string_equal(text, "two and more");
  free(text);
  char *part = cli_join(path, "f.natgrad-part");
  assert_false(disk_exists(part));
  must_fail_to_close(file);
  assert_false(disk_exists(part));
  no_rename = true;
  capture_stderr();
  const int rc = disk_write_file(file, "three", 5);
  no_rename = false;
  assert_non_null(strstr(captured_stderr(), "c/f: cannot be written: Permission denied"));
  assert_int_equal(rc, CLI_BAD);
  assert_false(disk_exists(part));
  assert_int_equal(mkdir(part, 0700), 0); /* a folder with the name of the temporary file */
  capture_stderr();
  assert_int_equal(disk_write_file(file, "three", 5), CLI_BAD);
  assert_non_null(
      strstr(captured_stderr(), "c/f.natgrad-part: is a folder, expected a regular file"));
  assert_int_equal(disk_read_text(file, &text), CLI_OK);
  assert_string_equal(text, "two and more");
  free(text);
  capture_stderr();
  assert_int_equal(disk_make_folder(file), CLI_BAD);
  assert_non_null(strstr(captured_stderr(), "c/f: the folder cannot be created"));
  free(file);
  free(part);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_log_is_truncated_and_read),  cmocka_unit_test(a_full_disk_is_an_error),
      cmocka_unit_test(only_regular_files_are_opened),  cmocka_unit_test(a_folder_is_locked),
      cmocka_unit_test(files_are_written_whole_or_not),
  };
  return cmocka_run_group_tests(tests, make_folder, delete_folder);
}
