/* t_images.c: image sets: files, errors, contents of batches; batches do not depend on decoding threads or on the
 * first step of a run. */
#include "data/images.h"
#include "picture_files.h"
#include "common/random.h"
#include "train/feed.h"
#include "trainer_help.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { H = 14, W = 18, SIDE = 10, CLASSES = 3, EACH = 40 };

/* Return pixel (y, x, c) of image n, a PNG of H x W. */
static uint8_t pixel_value(int n, int y, int x, int c) {
  return (uint8_t)(n * 37 + y * 11 + x * 5 + c * 70 + n * x);
}

static void run_shell(const char *format, const char *text) {
  char command[1024];
  (void)snprintf(command, sizeof command, format, in_folder(""), text, text);
  assert_int_equal(system(command), 0);
}

static bool put_image_file(const char *name, int n) {
  uint8_t rows[H * W * 3];
  made m;
  for (int i = 0; i < H * W * 3; i++)
    rows[i] = pixel_value(n, i / 3 / W, i / 3 % W, i % 3);
  if (!make_png(W, H, 2, 8, false, rows, (size_t)W * 3, &m)) return false;
  put_file(name, m.bytes, m.n);
  free(m.bytes);
  return true;
}

/* Write all/train/{ant,bee,cat}/NN.png with image n = class * EACH + i; all/val has image n + 1000, one per class. */
static bool make_image_folder(void) {
  static int state;
  if (state != 0) return state > 0;
  state = -1;
  for (int k = 0; k < CLASSES; k++) {
    static const char *const names[] = {"ant", "bee", "cat"};
    char name[64], folder[64];
    (void)snprintf(folder, sizeof folder, "train/%s all/val/%s", names[k], names[k]);
    run_shell("cd '%s' && mkdir -p all/%s", folder);
    for (int i = 0; i < EACH; i++) {
      (void)snprintf(name, sizeof name, "all/train/%s/%02d.png", names[k], i);
      if (!put_image_file(name, k * EACH + i)) return false;
    }
    (void)snprintf(name, sizeof name, "all/val/%s/x.png", names[k]);
    if (!put_image_file(name, 1000 + k)) return false;
  }
  state = 1;
  return true;
}

static const char *spec_of_folder(const char *path, const char *more) {
  static char text[1024];
  (void)snprintf(text, sizeof text, "images:%s,size=%d%s", in_folder(path), SIDE, more);
  return text;
}

/* ---- files -------------------------------------------------------------------------------------*/

static void folders_are_classes(void **state) {
  data_set d, e;
  if (!make_image_folder()) skip();
  assert_int_equal(data_open(spec_of_folder("all", ""), &d), 0);
  assert_true(d.train.n == CLASSES * EACH && d.test.n == CLASSES && d.classes == CLASSES);
  assert_true(d.height == SIDE && d.width == SIDE && d.channels == 3 && d.images->resize == 12);
  for (int i = 0; i < d.train.n; i++)
    assert_int_equal(d.train.labels[i], i / EACH);
  assert_non_null(strstr(d.train.images->path[EACH + 3], "all/train/bee/03.png"));
  /* The set through symbolic links has the same checksum; a set with another image size has not. */
  run_shell(
      "cd '%s' && mkdir linked && ln -s ../all/train linked/train && ln -s ../all/val linked/%s",
      "val");
  assert_int_equal(data_open(spec_of_folder("linked", ""), &e), 0);
  assert_int_equal(data_compute_crc(&d), data_compute_crc(&e));
  data_close(&e);
  assert_int_equal(data_open(spec_of_folder("all", ",resize=13"), &e), 0);
  assert_int_not_equal(data_compute_crc(&d), data_compute_crc(&e));
  data_close(&e);
  assert_int_equal(data_open(spec_of_folder("all", ",mean=0.5/0.5/0.5"), &e), 0);
  assert_int_not_equal(data_compute_crc(&d), data_compute_crc(&e));
  data_close(&e);
  /* Without train/ a folder is one split; other files are ignored and counted. */
  run_shell(
      "cd '%s' && touch all/train/bee/notes.txt all/train/README && touch all/train/bee/.hid%s",
      "den");
  capture_stderr();
  assert_int_equal(data_open(spec_of_folder("all/train", ""), &e), 0);
  assert_string_equal(captured_stderr(), ""); /* only rank 0 prints messages */
  capture_stderr();
  data_print_notes(&e);
  assert_non_null(strstr(captured_stderr(),
                         "2 files are not named .jpg, .jpeg or .png, left out; the first is "));
  assert_true(e.train.n == CLASSES * EACH && e.test.n == 0);
  data_close(&e);
  run_shell("cd '%s' && rm all/train/bee/notes.txt all/train/REA%s", "DME");
  data_close(&d);
}

static void a_list_file_names_images_and_labels(void **state) {
  data_set d;
  if (!make_image_folder()) skip();
  static const char text[] = "train/ant/00.png 2\n\n  train/bee/01.png\t0  \r\nval/cat/x.png 5\n";
  put_file("all/list", text, sizeof text - 1);
  assert_int_equal(data_open(spec_of_folder("all/list", ""), &d), 0);
  assert_true(d.train.n == 3 && d.classes == 6 && d.train.labels[1] == 0);
  assert_non_null(strstr(d.train.images->path[1], "all/train/bee/01.png"));
  data_close(&d);
  static const char marked[] = "\xef\xbb\xbftrain/ant/00.png 2\ntrain/bee/01.png 0\n";
  put_file("all/marked", marked, sizeof marked - 1);
  assert_int_equal(data_open(spec_of_folder("all/marked", ""), &d), 0);
  assert_true(d.train.n == 2);
  assert_non_null(strstr(d.train.images->path[0], "all/train/ant/00.png"));
  data_close(&d);
  put_file("list", text, sizeof text - 1);
  must_refuse_set(spec_of_folder("list", ""), "train/ant/00.png: No such file or directory");
  char more[600];
  (void)snprintf(more, sizeof more, ",root=%s", in_folder("all"));
  assert_int_equal(data_open(spec_of_folder("list", more), &d), 0);
  data_close(&d);
  const size_t n = strlen(more); /* a test split may have its own folder and labels */
  static const char tested[] = "/ant/00.png 0\nbee/00.png 7\n";
  put_file("all/train/tested", tested + 1, sizeof tested - 2);
  (void)snprintf(more + n, sizeof more - n, ",test=%s", in_folder("all/train/tested"));
  /* `root` applies to both splits */
  must_refuse_set(spec_of_folder("all/list", more), "all/ant/00.png: No such file");
  assert_int_equal(data_open(spec_of_folder("all/list", more + n), &d), 0);
  assert_true(d.train.n == 3 && d.test.n == 2 && d.classes == 8 && d.images->total == 5);
  assert_non_null(strstr(d.test.images->path[1], "all/train/bee/00.png"));
  data_close(&d);
  assert_int_equal(unlink(in_folder("all/train/tested")), 0);
  static const char *const bad[][2] = {
      {"x.png\n", "line 1: expected PATH LABEL"},
      {"x.png -1\n", "line 1: expected PATH LABEL"},
      {"\nx.png 1x\n", "line 2: expected PATH LABEL"},
      {"x.png 65536\n", "expected PATH LABEL"},
      {" 7\n", "expected PATH LABEL"},
      {"", "the list is empty"},
      {"train/ant 3\n", "is a folder"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    put_file("all/bad", bad[i][0], strlen(bad[i][0]));
    must_refuse_set(spec_of_folder("all/bad", ""), bad[i][1]);
  }
}

static void errors_name_the_entry(void **state) {
  if (!make_image_folder()) skip();
  static const char *const bad[][2] = {
      {",queue=1", "queue: '1' is no whole number from 2 to 65536"},
      {",resize=9", "resize=9 is less than size=10"},
      {",sise=9", "unknown setting 'sise'; the nearest is size"},
      {",size", "'size' is no KEY=VALUE"},
      {",size=12", "size is given twice"}, /* spec_of_folder() already gives one size */
      {",mean=0.5/0.5/0.5,std=1/1/1,mean=0.4/0.4/0.4", "mean is given twice"},
      {",mean=", "mean is empty"},
      {",mean=1/2", "mean is '1/2', expected R/G/B"},
      {",std=1/0/1", "std is '1/0/1', expected R/G/B"},
      {",std=/nowhere.npy", "/nowhere.npy"},
      {",root=x", "root= is for lists"},
      {",test=/nowhere", "/nowhere: No such file"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    must_refuse_set(spec_of_folder("all", bad[i][0]), bad[i][1]);
  char small[600];
  (void)snprintf(small, sizeof small, "images:%s,size=1", in_folder("all"));
  must_refuse_set(small, "size: '1' is no whole number from 2 to 4096");
  must_refuse_set("images:", "needs a folder");
  must_refuse_set("images:/nowhere", "/nowhere: No such file or directory");
  must_refuse_set("images:/dev/null", "/dev/null: is neither a folder nor a list");
  static const char *const sets[][3] = {
      {"mkfifo set/a/pipe", "set", "set/a/pipe: is neither a file nor a folder"},
      {"ln -s . set/a/again", "set", "folders deep"},
      {"ln -s .. set/a/up", "set", "folders deep"},
      {"ln -s a set/b", "set", ""}, /* a link, but no cycle */
      {"ln -s gone set/a/x.png", "set", "set/a/x.png: No such file or directory"},
      {"ln -s x.png set/a/x.png", "set", "set/a/x.png: Too many levels of symbolic links"},
      {"mkdir set/empty", "set", "set/empty: the folder of a class has no .jpg, .jpeg or .png"},
      {"rm -r set/a && touch set/x.png", "set", "set: has no folders"},
      {"mkdir -p set/train/c set/val && cp set/a/0.png set/train/c && cp -r set/a set/val", "set",
       "set/val/a: the training split has no such class"},
      {"mkdir -p set/train set/val set/test && cp -r set/a set/train", "set", "val and test"},
  };
  for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
    data_set d;
    run_shell("cd '%s' && rm -rf set && mkdir -p set/a && cp all/val/ant/x.png set/a/0.png && %s",
              sets[i][0]);
    if (sets[i][2][0] != 0) {
      must_refuse_set(spec_of_folder(sets[i][1], ""), sets[i][2]);
    } else {
      assert_int_equal(data_open(spec_of_folder(sets[i][1], ""), &d), 0);
      assert_int_equal(d.train.n, 2);
      data_close(&d);
    }
  }
}

/* ---- contents of batches -----------------------------------------------------------------------*/

static void open_feed(const data_set *d, const char *augment, settings *s, feed *f) {
  settings_init(s);
  must_set(s, "batch", "8");
  must_set(s, "acc-iters", "2");
  must_set(s, "seed", "6");
  must_set(s, "augment", augment);
  assert_int_equal(feed_create(s, d, NULL, false, NULL, f), CLI_OK);
}

/* resize=none: unscaled windows, at the drawn offsets. */
static void unscaled_windows_match_pixels(void **state) {
  data_set d;
  settings s;
  feed f;
  if (!make_image_folder()) skip();
  assert_int_equal(
      data_open(spec_of_folder("all", ",resize=none,mean=0.5/0.4/0.3,std=0.2/0.3/0.4"), &d), 0);
  open_feed(&d, "auto", &s, &f);
  static const double mean[] = {0.5, 0.4, 0.3}, deviation[] = {0.2, 0.3, 0.4};
  int mirrored = 0, last = 0;
  for (int batch = 0; batch < 28; batch++) {
    const uint32_t epoch = (uint32_t)(batch / 14);
    assert_int_equal(feed_fill_train(&f, batch / 2, batch % 2), CLI_OK);
    for (int i = 0; i < 8; i++) {
      uint32_t w[4];
      const int n = f.rows[i];
      assert_int_equal(f.labels[i], n / EACH);
      random_words(6, RANDOM_AUGMENT, epoch, (uint64_t)n, w);
      const int top = (int)floor(w[0] / 4294967296.0 * (H - SIDE + 1));
      const int left = (int)floor(w[1] / 4294967296.0 * (W - SIDE + 1));
      const bool flip = w[2] >= 1U << 31;
      mirrored += flip;
      last += top == H - SIDE;
      for (int k = 0; k < SIDE * SIDE * 3; k++) {
        const int y = k / 3 / SIDE, x = k / 3 % SIDE, c = k % 3;
        const double v = pixel_value(n, top + y, left + (flip ? SIDE - 1 - x : x), c) / 255.0;
        const double want = (v - mean[c]) / deviation[c];
        /* values up to 3 from f32 scale and shift */
        assert_true(fabs((double)f.x[i * SIDE * SIDE * 3 + k] - want) < 2e-6);
      }
    }
  }
  /* of 224 samples, 112 mirrored and 45 at the last offset are expected */
  assert_true(mirrored > 80 && mirrored < 144 && last > 20);
  int32_t good = 0;
  assert_int_equal(feed_fill_test(&f, 1, 2, &good), CLI_OK);
  assert_int_equal(good, 2);
  for (int k = 0; k < SIDE * SIDE * 3; k++) { /* the centre: rows 2 to 11, columns 4 to 13 */
    const double v = pixel_value(1001, 2 + k / 3 / SIDE, 4 + k / 3 % SIDE, k % 3) / 255.0;
    assert_true(fabs((double)f.x[k] - (v - mean[k % 3]) / deviation[k % 3]) < 2e-6);
  }
  feed_free(&f);
  settings_free(&s);
  data_close(&d);
}

/* The published mean image is larger than the window: its upper left part is subtracted. */
static void means_are_read_from_files(void **state) {
  enum { MH = SIDE + 2, MW = SIDE + 5 };
  double mean[3 * MH * MW];
  char more[600];
  data_set d;
  settings s;
  feed f;
  int32_t good;
  if (!make_image_folder()) skip();
  for (int i = 0; i < 3 * MH * MW; i++)
    mean[i] = 100.0 + i % 50;
  put_npy("mean.npy", "<f8", "3, 12, 15", mean, sizeof mean);
  const int n = snprintf(more, sizeof more, ",resize=none,mean=%s", in_folder("mean.npy"));
  const double std[3] = {255, 51, 102};
  put_npy("std.npy", "<f8", "3,", std, sizeof std);
  (void)snprintf(more + n, sizeof more - (size_t)n, ",std=%s", in_folder("std.npy"));
  assert_int_equal(data_open(spec_of_folder("all", more), &d), 0);
  open_feed(&d, "none", &s, &f);
  assert_int_equal(feed_fill_test(&f, 0, 1, &good), CLI_OK);
  for (int k = 0; k < SIDE * SIDE * 3; k++) {
    const int y = k / 3 / SIDE, x = k / 3 % SIDE, c = k % 3;
    const double want = (pixel_value(1000, 2 + y, 4 + x, c) - mean[(c * MH + y) * MW + x]) / std[c];
    assert_true(fabs((double)f.x[k] - want) < 5e-6);
  }
  feed_free(&f);
  settings_free(&s);
  data_close(&d);
  put_npy("mean.npy", "<f8", "3, 9, 10", mean, 270 * sizeof *mean);
  must_refuse_set(spec_of_folder("all", more),
                  "expected mean as f4 or f8 of shape [3], or [3, height, width], both >= size");
}

/* ---- threads, resuming, damage -----------------------------------------------------------------*/

static uint64_t hash_batches(uint64_t sum, const feed *f, int count) {
  const unsigned char *b = (const unsigned char *)f->x;
  for (size_t i = 0; i < (size_t)count * SIDE * SIDE * 3 * sizeof *f->x; i++)
    sum = (sum ^ b[i]) * 1099511628211U;
  for (int i = 0; i < count; i++)
    sum = (sum ^ (uint64_t)f->labels[i]) * 1099511628211U;
  return sum;
}

/* Read three epochs of 7 steps of 2 batches, and test batches between epochs; `first`: the first step. */
static void run_epochs(const char *path, const char *more, int first, uint64_t sums[42]) {
  data_set d;
  settings s;
  feed f;
  assert_int_equal(data_open(spec_of_folder(path, more), &d), 0);
  open_feed(&d, "auto", &s, &f);
  for (int i = first; i < 42; i++) {
    int32_t good = 0;
    assert_int_equal(feed_fill_train(&f, i / 2, i % 2), CLI_OK);
    sums[i] = hash_batches(14695981039346656037U, &f, 8);
    if (i % 5 != 3) continue;
    assert_int_equal(feed_fill_test(&f, 0, 3, &good), CLI_OK);
    sums[i] = hash_batches(sums[i], &f, good);
  }
  feed_free(&f);
  settings_free(&s);
  data_close(&d);
}

static void threads_change_no_bit(void **state) {
  static const char *const more[] = {",threads=1,queue=2", ",threads=4,queue=3",
                                     ",threads=7,queue=64"};
  uint64_t one[42], other[42];
  if (!make_image_folder()) skip();
  run_shell("cd '%s' && rm -rf hurt && cp -r all hurt && head -c 60 all/train/bee/07.png >%s",
            "hurt/train/bee/07.png"); /* one of the 123 files is damaged */
  capture_stderr();
  run_epochs("hurt", ",threads=2", 0, one);
  for (int k = 0; k < 3; k++) {
    run_epochs("hurt", more[k], 0, other);
    assert_memory_equal(one, other, sizeof one);
    run_epochs("hurt", more[k], 17, other); /* stop in the middle of an epoch */
    assert_memory_equal(one + 17, other + 17, 25 * sizeof one[0]);
  }
  data_set d;
  settings s;
  feed f;
  static const int jumps[] = {17, 16, 20, 2, 1, 27}; /* within an epoch and across epochs */
  assert_int_equal(data_open(spec_of_folder("hurt", ""), &d), 0);
  open_feed(&d, "auto", &s, &f);
  for (size_t i = 0; i < sizeof jumps / sizeof jumps[0]; i++) {
    assert_int_equal(feed_fill_train(&f, jumps[i] / 2, jumps[i] % 2), CLI_OK);
    assert_true(hash_batches(14695981039346656037U, &f, 8) == one[jumps[i]]);
  }
  feed_free(&f);
  settings_free(&s);
  data_close(&d);
  assert_non_null(strstr(captured_stderr(), "07.png: unreadable, left out (1 of 123 files): "));
}

/* A damaged file, its replacement, and the message. */
static void damaged_files_are_skipped(void **state) {
  enum { BAD = EACH + 7 };
  data_set d;
  settings s;
  feed f;
  if (!make_image_folder()) skip();
  run_shell("cd '%s' && rm -rf hurt && cp -r all hurt && head -c 60 all/train/bee/07.png >%s",
            "hurt/train/bee/07.png");
  assert_int_equal(data_open(spec_of_folder("hurt", ""), &d), 0);
  open_feed(&d, "none", &s, &f);
  capture_stderr();
  int replaced = 0, late = 0;
  for (int i = 0; i < 42; i++) { /* the message appears once in three epochs */
    const int32_t *order = f.order + i % 14 * 8;
    assert_int_equal(feed_fill_train(&f, i / 2, i % 2), CLI_OK);
    for (int k = 0; k < 8; k++) {
      assert_int_equal(f.rows[k],
                       order[k] == BAD ? order[k + 1] : order[k]); /* replaced by the next image */
      replaced += order[k] == BAD;
      late += order[k] == BAD && k > 0;
    }
  }
  const char *line = captured_stderr();
  assert_true(replaced > 1 && late > 0); /* 8 of 120 are in no batch of an epoch */
  assert_non_null(strstr(line, "hurt/train/bee/07.png: unreadable, left out (1 of 123 files): "));
  assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
  feed_free(&f);
  settings_free(&s);
  data_close(&d);
  /* The test split gets shorter. */
  run_shell("cd '%s' && rm -rf hurt && cp -r all hurt && echo no >%s", "hurt/val/bee/x.png");
  assert_int_equal(data_open(spec_of_folder("hurt", ""), &d), 0);
  open_feed(&d, "none", &s, &f);
  int32_t good = -1;
  capture_stderr();
  assert_int_equal(feed_fill_test(&f, 0, 3, &good), CLI_OK);
  assert_non_null(
      strstr(captured_stderr(), "left out (1 of 123 files): its first bytes are neither"));
  assert_int_equal(good, 2);
  assert_true(f.labels[0] == 0 && f.labels[1] == 2);
  feed_free(&f);
  data_close(&d);
  /* Two of 123 are more than 1 %. */
  run_shell("cd '%s' && cp hurt/val/bee/x.png %s", "hurt/val/ant");
  assert_int_equal(data_open(spec_of_folder("hurt", ""), &d), 0);
  settings_free(&s);
  open_feed(&d, "none", &s, &f);
  capture_stderr();
  assert_int_equal(feed_fill_test(&f, 0, 3, &good), CLI_BAD);
  assert_non_null(
      strstr(captured_stderr(),
             "--data: images: 2 of 123 files are unreadable, more than 1 %; the last is "));
  feed_free(&f);
  settings_free(&s);
  data_close(&d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(folders_are_classes),
      cmocka_unit_test(a_list_file_names_images_and_labels),
      cmocka_unit_test(errors_name_the_entry),
      cmocka_unit_test(unscaled_windows_match_pixels),
      cmocka_unit_test(means_are_read_from_files),
      cmocka_unit_test(threads_change_no_bit),
      cmocka_unit_test(damaged_files_are_skipped),
  };
  return cmocka_run_group_tests(tests, make_folder, delete_folder);
}
