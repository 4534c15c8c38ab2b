/* t_damaged: files that are no images, as ranks find them: each is counted once and named once, all ranks know
 * the same, more than 1 % ends all of them with one line, and a checkpoint's list is read back. */
#include "ranks.h"
#include "train/damaged.h"
#include "train/feed.h"
#include "trainer_help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 300 files, the last 50 of the test split: 3 may be no good. */
enum { TRAIN = 250, FILES = 300, RANKS = 4 };

static char *paths[FILES];
static atomic_uchar told[FILES];
static image_set set;
static image_list train, tests;
static data_set data;

static void name_files(void) {
  static char names[FILES][24];
  for (int i = 0; i < FILES; i++) {
    (void)snprintf(names[i], sizeof names[i], "file%d.", i);
    paths[i] = names[i];
    atomic_store(&told[i], 0);
  }
  set = (image_set){.total = FILES, .told = told};
  train = (image_list){paths, 0};
  tests = (image_list){paths + TRAIN, TRAIN};
  data = (data_set){.name = "images", .images = &set};
}

/* Files that rank r finds in round k; -1: none. */
typedef struct scene {
  int round[2][RANKS][2];
  int rounds, size, rc[RANKS];
  int32_t count[RANKS];
  char *text[RANKS];
  atomic_bool once;
} scene;

static ng_status find_them(int32_t rank, ng_transport *t, void *arg) {
  scene *s = arg;
  damaged a;
  const run_ranks r = ranks_of(t);
  cli_report_once(&s->once);
  damaged_create(&data, &a);
  for (int k = 0; k < s->rounds && s->rc[rank] == CLI_OK; k++) {
    for (int i = 0; i < 2; i++) {
      const int file = s->round[k][rank][i];
      if (file < 0) continue;
      const bool of_train = file < TRAIN;
      damaged_found(&a, of_train ? &train : &tests, of_train ? file : file - TRAIN, "it is empty");
    }
    double n = a.n_found;
    if (ranks_sum(&r, &n, 1) != CLI_OK) return NG_ERR_COMM;
    s->rc[rank] = damaged_agree(&a, &r, (int64_t)n);
  }
  s->count[rank] = a.count;
  s->text[rank] = damaged_text(&a);
  damaged_free(&a);
  cli_report_once(NULL);
  return NG_OK;
}

static int lines_with(const char *text, const char *what) {
  int n = 0;
  for (const char *at = text; (at = strstr(at, what)) != NULL; at++)
    n++;
  return n;
}

/* What is said stays until the next call. */
static const char *play(scene *s, int rounds) {
  s->rounds = rounds;
  atomic_store(&s->once, false);
  name_files();
  quiet();
  const ng_status st = ranks_run(RANKS, find_them, s, NULL);
  const char *line = said();
  assert_int_equal(st, NG_OK);
  for (int r = 1; r < RANKS; r++) {
    assert_int_equal(s->rc[r], s->rc[0]);
    assert_int_equal(s->count[r], s->count[0]);
    assert_int_equal(s->text[r] == NULL, s->text[0] == NULL);
    if (s->text[0] != NULL) assert_string_equal(s->text[r], s->text[0]);
  }
  return line;
}

static void end(scene *s) {
  for (int r = 0; r < RANKS; r++)
    free(s->text[r]);
}

/* 7 and 299 are met by two ranks at once, 7 in the next round by a third one, too, and twice by one. */
static void each_is_counted_and_named_once(void **state) {
  (void)state;
  scene s = {
      .round = {{{7, -1}, {-1, -1}, {299, 7}, {299, -1}}, {{-1, -1}, {7, 7}, {30, -1}, {7, -1}}}};
  const char *line = play(&s, 2);
  assert_int_equal(s.rc[0], CLI_OK);
  assert_int_equal(s.count[0], 3);
  assert_string_equal(s.text[0], "7,30,299");
  assert_int_equal(lines_with(line, "\n"), 3);
  assert_int_equal(lines_with(line, "natgrad: file7.: left out, 1 of 300: it is empty"), 1);
  assert_int_equal(lines_with(line, "natgrad: file299.: left out, 2 of 300: it is empty"), 1);
  assert_int_equal(lines_with(line, "natgrad: file30.: left out, 3 of 300: it is empty"), 1);
  end(&s);
}

static void too_many_of_all_ranks_ends_all_with_one_line(void **state) {
  (void)state;
  scene s = {
      .round = {{{1, -1}, {2, -1}, {3, -1}, {4, 5}}, {{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}}}};
  const char *line = play(&s, 2);
  assert_int_equal(s.rc[0], CLI_BAD);
  assert_int_equal(lines_with(line, "\n"), 4);
  assert_int_equal(lines_with(line, "left out"), 3);
  assert_int_equal(
      lines_with(line, "natgrad: --data: images: 4 of 300 files are unreadable, more than 1 %; "
                       "the last is file4.: it is empty\n"),
      1);
  end(&s);
}

/* One that is known is not said again: by the next run of this process, and by one that goes on. */
static void what_is_known_stays_known(void **state) {
  (void)state;
  damaged a, b;
  char *text;
  const run_ranks one = {.size = 1};
  name_files();
  damaged_create(&data, &a);
  assert_null(damaged_text(&a));
  assert_true(damaged_read(&a, "3,299"));
  damaged_found(&a, &tests, 49, "twice");
  assert_int_equal(a.n_found, 0);
  damaged_found(&a, &train, 9, "new");
  quiet();
  const int rc = damaged_agree(&a, &one, 1);
  assert_string_equal(said(), "natgrad: file9.: left out, 3 of 300: new\n");
  assert_int_equal(rc, CLI_OK);
  text = damaged_text(&a);
  assert_string_equal(text, "3,9,299");
  free(text);
  damaged_create(&data, &b);
  assert_int_equal(b.count, 3);
  assert_false(damaged_too_many(&b));
  damaged_found(&b, &train, 200, "the fourth");
  assert_true(damaged_too_many(&b));
  damaged_free(&a);
  damaged_free(&b);
  name_files();
  static const char *const bad[] = {
      "", "3,", ",3", "3,300", "-1", "3 ", "x", "3;4", "99999999999999999999"};
  damaged_create(&data, &a);
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    if (damaged_read(&a, bad[i]) || a.count != 0) fail_msg("'%s' was taken", bad[i]);
  }
  damaged_free(&a);
}

/* Rank 0 reads the checkpoint. */
static ng_status hear(int32_t rank, ng_transport *t, void *arg) {
  damaged *a = arg;
  const run_ranks r = ranks_of(t);
  return damaged_share(&a[rank], &r) == CLI_OK ? NG_OK : NG_ERR_COMM;
}

static void ranks_hear_of_a_checkpoint(void **state) {
  (void)state;
  damaged a[RANKS];
  for (int turn = 0; turn < 2; turn++) {
    name_files();
    for (int r = 0; r < RANKS; r++)
      damaged_create(&data, &a[r]);
    if (turn == 1) assert_true(damaged_read(&a[0], "5,251"));
    assert_int_equal(ranks_run(RANKS, hear, a, NULL), NG_OK);
    for (int r = 0; r < RANKS; r++) {
      assert_int_equal(a[r].count, 2 * turn);
      assert_true((a[r].known[5] != 0) == (turn == 1) && (a[r].known[251] != 0) == (turn == 1));
      damaged_free(&a[r]);
    }
  }
}

int main(void) {
  const struct CMUnitTest all[] = {
      cmocka_unit_test(each_is_counted_and_named_once),
      cmocka_unit_test(too_many_of_all_ranks_ends_all_with_one_line),
      cmocka_unit_test(what_is_known_stays_known),
      cmocka_unit_test(ranks_hear_of_a_checkpoint),
  };
  return cmocka_run_group_tests(all, make_scratch, drop_scratch);
}
