/* t_parts_sweep.c: saving deletes old parts of the same state and no other file: neither files that another job
 * writes to the same path at that moment, nor unrelated files with similar names.
 *
 * This program replaces opendir and rename, so that another job saves at the two worst moments: when old parts are
 * listed, and between the rename and the listing. */
#include "unit_test.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ranks.h"
#include "safetensors.h"
#include "state_help.h"

enum { RANKS = 3 };

/* ---- another job that saves at the same time -------------------------------------------------*/

static struct {
  enum { NOWHERE, AT_OPENDIR, AT_RENAME } at;
  transfer job;
  ng_status got;
} other;

static void let_other_job_save(void) {
  other.at =
      NOWHERE; /* the other job calls opendir and rename, too: do not start it again from there */
  other.got = ranks_run(RANKS, run_transfer, &other.job, NULL);
}

DIR *opendir(const char *name) {
  DIR *(*real)(const char *);
  *(void **)(void *)&real = dlsym(RTLD_NEXT, "opendir");
  if (other.at == AT_OPENDIR) let_other_job_save();
  return real(name);
}

int rename(const char *from, const char *to) {
  int (*real)(const char *, const char *);
  *(void **)(void *)&real = dlsym(RTLD_NEXT, "rename");
  const int done = real(from, to);
  if (other.at == AT_RENAME && strcmp(to, other.job.parts) == 0) let_other_job_save();
  return done;
}

static void must_load(const char *file, int32_t ranks) {
  must_transfer(ranks, (transfer){.load = file});
}

static void two_jobs_may_save_to_one_name(void **state) {
  const path a = path_of("a");
  for (int first = 0; first < 2; first++) { /* the first job saves parts, then one file */
    for (int late = 0; late < 2; late++) {
      /* late = 0: the other job runs while old parts are listed; late = 1: before they are listed */
      must_transfer(RANKS, (transfer){.parts = a.text, .steps = 1});
      other.job = (transfer){.parts = a.text, .steps = 3};
      other.got = NG_ERR_COMM;
      other.at = late == 0 ? AT_OPENDIR : AT_RENAME;
      must_transfer(RANKS, first == 0 ? (transfer){.parts = a.text, .steps = 2}
                                      : (transfer){.one = a.text, .steps = 2});
      /* late = 0: the first job holds the lock, so the other job fails; late = 1: the other job saves completely, and
       * last */
      assert_int_equal(other.got, late == 0 ? NG_ERR_FILE : NG_OK);
      must_load(a.text, RANKS);
      must_load(a.text, 1);
      assert_int_equal(list_folder().n, late == 0 && first == 1 ? 1 : RANKS);
      clear_folder();
    }
  }
}

/* ---- files that a save deletes ---------------------------------------------------------------*/

static void put_file(const char *name, const void *bytes, size_t n) {
  write_file(path_of(name).text, bytes, n);
}

static bool file_exists(const char *name) {
  struct stat at;
  return lstat(path_of(name).text, &at) == 0;
}

static void save_parts(const char *name, int32_t steps) {
  const path file = path_of(name);
  must_transfer(RANKS, (transfer){.parts = file.text, .steps = steps});
}

static void save_one_file(const char *name, int32_t ranks) {
  const path file = path_of(name);
  must_transfer(ranks, (transfer){.one = file.text, .steps = 2});
}

static void only_old_parts_of_the_same_state_are_deleted(void **state) {
  size_t n;
  save_parts("a", 1);
  const path early = file_of_part("a", 1, RANKS);
  const char *name = strrchr(early.text, '/') + 1;
  unsigned char *part = read_file(early.text, &n);
  char swapped[256], elsewhere[256], passing[256], cut[256], begun[256];
  (void)snprintf(swapped, sizeof swapped, "%.*s-2of3", 10, name);
  (void)snprintf(elsewhere, sizeof elsewhere, "a%s", name);
  (void)snprintf(passing, sizeof passing, "%s.natgrad-part", name);
  (void)snprintf(cut, sizeof cut, "%.*s-1of30.natgrad-part", 10, name);
  (void)snprintf(begun, sizeof begun, "%.*s-2of3.natgrad-part", 10, name);
  save_parts("a", 2);
  assert_int_equal(list_folder().n, RANKS);

  /* No parts of this state: files with other contents or names, of another state, not regular, being written. */
  put_file("a.01234567-1of3", "", 0);
  put_file("a.01234568-1of3", "a letter", 8);
  put_file("a.01234569-1of3.natgrad-part", "a letter, longer than the length", 32);
  put_file("a.01234567-1of", part, n);
  put_file("a.01234567-1of3.bak", part, n);
  put_file("a.0123456-1of3", part, n);
  put_file("a.0123456a-1of3", part, n);
  put_file(elsewhere, part, n);
  put_file(swapped, part, n);
  save_one_file("a.0123abcd-1of2", 1);
  assert_int_equal(symlink("swapped", path_of("a.0123456b-1of3").text), 0);
  assert_int_equal(mkfifo(path_of("a.0123456c-1of3").text, 0666), 0);
  assert_int_equal(mkfifo(path_of("a.0123456d-1of3.natgrad-part").text, 0666), 0);
  assert_int_equal(mkdir(path_of("a.0123456e-1of3").text, 0777), 0);
  ngio_writer *busy;
  assert_int_equal(
      ngio_writer_create(path_of("a.0123456f-1of3").text, NULL, 0, NULL, 0, &busy, NULL, 0),
      NGIO_OK);
  const names others = list_folder();
  /* Create old parts of this state, and partial files of a killed rank. */
  put_file(name, part, n);
  put_file(passing, part, n);
  put_file(cut, "", 0);
  put_file(begun, part, 40);
  free(part);
  assert_int_equal(list_folder().n, others.n + 4);
  save_parts("a", 2);
  const names after = list_folder();
  for (int32_t i = 0; i < others.n; i++) {
    if (!file_exists(others.text[i])) fail_msg("%s was deleted", others.text[i]);
  }
  for (int32_t i = 0; i < after.n; i++) {
    if (i >= others.n || strcmp(after.text[i], others.text[i]) != 0)
      fail_msg("%s was not deleted", after.text[i]);
  }
  must_load(path_of("a").text, 2);
  must_load(path_of("a.0123abcd-1of2").text, 2);
  ngio_writer_abandon(&busy);
  clear_folder();
}

static void one_file_replaces_parts(void **state) {
  for (int32_t ranks = 1; ranks <= RANKS; ranks += RANKS - 1) {
    save_parts("a", 1);
    save_parts("b", 1);
    save_one_file("a", ranks);
    assert_int_equal(list_folder().n, 1 + RANKS);
    must_load(path_of("a").text, 2);
    must_load(path_of("b").text, 2);
    clear_folder();
  }
}

/* Relative paths, and a path with a doubled slash. */
static void parts_under_any_spelling_of_a_path_are_deleted(void **state) {
  char was[4096], twice[160];
  assert_non_null(getcwd(was, sizeof was));
  assert_int_equal(chdir(test_folder), 0);
  (void)snprintf(twice, sizeof twice, "%s//a", test_folder);
  const char *const name[] = {"a", "./a", twice};
  for (int i = 0; i < 3; i++) {
    for (int32_t steps = 1; steps < 3; steps++) {
      must_transfer(RANKS, (transfer){.parts = name[i], .steps = steps});
      assert_int_equal(list_folder().n, RANKS);
    }
  }
  assert_int_equal(chdir(was), 0);
  must_load(path_of("a").text, 2);
  clear_folder();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(two_jobs_may_save_to_one_name),
      cmocka_unit_test(only_old_parts_of_the_same_state_are_deleted),
      cmocka_unit_test(one_file_replaces_parts),
      cmocka_unit_test(parts_under_any_spelling_of_a_path_are_deleted),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_empty_folder);
}
