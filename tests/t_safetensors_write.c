/* t_safetensors_write.c: the writer of safetensors: round trips, misuse, invalid paths (also for the readers of
 * safetensors and npy), a full disk, files of killed and of running writers. */
#include "unit_test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io_check.h"
#include "stream.h"
#include "npy.h"

static const float three[] = {1.5f, -0.0f, 3e38f};
static const double two[] = {1.0 / 3.0, -2.0};
static const uint16_t half[] = {0x3e00, 0xc000, 1, 2};
static const int64_t big[] = {INT64_MIN};
static const int32_t word[] = {-7};
static const uint8_t byte[] = {9, 8, 7};

static int32_t make_sample_tensors(ngio_tensor *t) {
  const ngio_tensor all[] = {
      {"a/byte", NGIO_U8, 1, {3}, byte, 0},
      {"a/float \"quoted\"\n", NGIO_F32, 2, {3, 1}, three, 0},
      {"half", NGIO_F16, 8, {1, 1, 2, 1, 1, 1, 2, 1}, half, 0},
      {"b\xc3\xa9", NGIO_BF16, 2, {2, 2}, half, 0},
      {"number", NGIO_I32, 0, {0}, word, 0},
      {"empty", NGIO_F32, 3, {4, 0, 5}, NULL, 0},
      {"double", NGIO_F64, 1, {2}, two, 0},
      {"long", NGIO_I64, 1, {1}, big, 0},
  };
  memcpy(t, all, sizeof all);
  return (int32_t)(sizeof all / sizeof all[0]);
}

static void written_tensors_are_read_back(void **state) {
  ngio_tensor t[16];
  int32_t n = make_sample_tensors(t);
  const ngio_text text[] = {{"note", "two\nlines, \"quotes\", \\, \xe2\x82\xac"}, {"", ""}};
  const char *path = in_folder("round");
  assert_int_equal(ngio_tensors_write(path, t, n, text, 2, message, sizeof message), NGIO_OK);
  ngio_tensors *f;
  assert_int_equal(ngio_tensors_read(path, NULL, &f, message, sizeof message), NGIO_OK);
  assert_consistent(f, 4096);
  assert_int_equal(ngio_tensors_count(f), n);
  for (int32_t i = 0; i < n; i++) {
    const ngio_tensor *r = ngio_tensors_find(f, t[i].name);
    assert_non_null(r);
    assert_int_equal(r->dtype, t[i].dtype);
    assert_int_equal(r->ndim, t[i].ndim);
    assert_memory_equal(r->shape, t[i].shape, (size_t)t[i].ndim * sizeof t[i].shape[0]);
    if (r->bytes > 0) assert_memory_equal(r->data, t[i].data, (size_t)r->bytes);
  }
  assert_null(ngio_tensors_find(f, "absent"));
  assert_null(ngio_tensors_at(f, n));
  assert_int_equal(ngio_tensors_text_count(f), 2);
  assert_string_equal(ngio_tensors_text(f, "note"), text[0].value);
  assert_string_equal(ngio_tensors_text(f, ""), "");
  assert_null(ngio_tensors_text(f, "other"));
  assert_null(ngio_tensors_text_at(f, 2));
  ngio_tensors_close(&f);
  assert_null(f);
  ngio_tensors_close(&f);

  /* The same content twice gives the same bytes. */
  size_t a, b;
  unsigned char *first = read_file(path, &a);
  assert_int_equal(ngio_tensors_write(path, t, n, text, 2, message, sizeof message), NGIO_OK);
  unsigned char *again = read_file(path, &b);
  assert_int_equal(a, b);
  assert_memory_equal(first, again, a);
  free(first);
  free(again);
  /* a file without tensors and texts */
  assert_int_equal(ngio_tensors_write(path, NULL, 0, NULL, 0, message, sizeof message), NGIO_OK);
  assert_int_equal(ngio_tensors_read(path, NULL, &f, message, sizeof message), NGIO_OK);
  assert_int_equal(ngio_tensors_count(f), 0);
  ngio_tensors_close(&f);
  assert_int_equal(unlink(path), 0);
}

static void tensors_are_written_in_pieces(void **state) {
  const char *path = in_folder("pieces");
  ngio_tensor t[2] = {{"d", NGIO_F64, 1, {2}, NULL, 0}, {"f", NGIO_F32, 1, {3}, NULL, 0}};
  ngio_text text = {"sum", "1234abcd"};
  ngio_writer *w;
  assert_int_equal(ngio_writer_create(path, t, 2, &text, 1, &w, message, sizeof message), NGIO_OK);
  assert_int_equal(ngio_writer_put(w, two, 5, message, sizeof message), NGIO_OK);
  assert_int_equal(ngio_writer_put(w, (const char *)two + 5, 11, message, sizeof message), NGIO_OK);
  assert_int_equal(ngio_writer_put(w, three, 12, message, sizeof message), NGIO_OK);
  assert_int_equal(access(path, F_OK), -1); /* the name appears at the end */
  assert_int_equal(ngio_writer_finish(&w, message, sizeof message), NGIO_OK);
  assert_null(w);
  ngio_tensors *f;
  assert_int_equal(ngio_tensors_read(path, NULL, &f, message, sizeof message), NGIO_OK);
  assert_string_equal(ngio_tensors_text(f, "sum"), "1234abcd");
  assert_memory_equal(ngio_tensors_find(f, "d")->data, two, sizeof two);
  assert_memory_equal(ngio_tensors_find(f, "f")->data, three, sizeof three);
  ngio_tensors_close(&f);

  /* Misuse is refused and leaves the file unchanged. */
  size_t n;
  unsigned char *before = read_file(path, &n);
  assert_int_equal(ngio_writer_create(path, t, 2, NULL, 0, &w, message, sizeof message), NGIO_OK);
  assert_int_equal(ngio_writer_put(w, two, 29, message, sizeof message), NGIO_ERR_ARG);
  assert_int_equal(ngio_writer_put(w, two, 16, message, sizeof message), NGIO_OK);
  assert_int_equal(ngio_writer_finish(&w, message, sizeof message), NGIO_ERR_ARG);
  expect_message("28 were announced");
  assert_null(w);
  ngio_tensor bad[] = {
      {"", NGIO_F32, 1, {1}, three, 0},          {"__metadata__", NGIO_F32, 1, {1}, three, 0},
      {"\xff", NGIO_F32, 1, {1}, three, 0},      {"x", (ngio_dtype)99, 1, {1}, three, 0},
      {"x", NGIO_F32, 1, {-1}, three, 0},        {"x", NGIO_F32, 9, {1}, three, 0},
      {"x", NGIO_F64, 1, {INT64_MAX}, three, 0},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    assert_int_equal(ngio_tensors_write(path, &bad[i], 1, NULL, 0, message, sizeof message),
                     NGIO_ERR_ARG);
  }
  const ngio_tensor late[2] = {{"x", NGIO_U8, 1, {1}, three, 0}, {"y", NGIO_F32, 1, {1}, three, 0}};
  assert_int_equal(ngio_writer_create(path, late, 2, NULL, 0, &w, message, sizeof message),
                   NGIO_ERR_ARG);
  expect_message("'y': wider dtypes go first");
  size_t m;
  unsigned char *after = read_file(path, &m);
  assert_int_equal(n, m);
  assert_memory_equal(before, after, n);
  free(before);
  free(after);
  assert_int_equal(unlink(path), 0);
}

/* The stream gets the bytes of the file in order, and nothing after a failure. */
static void a_stream_receives_the_bytes_of_the_file(void **state) {
  const char *path = in_folder("file");
  const ngio_tensor t[2] = {{"d", NGIO_F64, 1, {2}, two, 0}, {"f", NGIO_F32, 1, {3}, three, 0}};
  const ngio_text text = {"sum", "1234abcd"};
  size_t n;
  assert_int_equal(ngio_tensors_write(path, t, 2, &text, 1, message, sizeof message), NGIO_OK);
  unsigned char *file = read_file(path, &n);
  for (int32_t fail_at = 1; fail_at <= 4; fail_at++) {
    stream s = {.fail_at = fail_at, .says = 7};
    ngio_writer *w;
    ngio_status st = ngio_writer_stream("the sink", stream_write, &s, t, 2, &text, 1, &w, message,
                                        sizeof message);
    assert_true((w == NULL) == (st != NGIO_OK));
    if (st == NGIO_OK) st = ngio_writer_put(w, two, sizeof two, message, sizeof message);
    if (st == NGIO_OK) st = ngio_writer_put(w, three, sizeof three, message, sizeof message);
    if (st == NGIO_OK) st = ngio_writer_finish(&w, message, sizeof message);
    ngio_writer_abandon(&w);
    assert_int_equal(st, fail_at < 4 ? NGIO_ERR_FILE : NGIO_OK);
    if (st != NGIO_OK) expect_message("the sink: the writer failed (7)");
    assert_int_equal(s.calls, fail_at < 4 ? fail_at : 3);
    assert_memory_equal(s.bytes, file, (size_t)s.n);
    if (st == NGIO_OK) assert_int_equal(s.n, n);
    stream_free(&s);
  }
  ngio_writer *w;
  assert_int_equal(ngio_writer_stream("x", NULL, NULL, t, 2, &text, 1, &w, message, sizeof message),
                   NGIO_ERR_ARG);
  assert_null(w);
  free(file);
  assert_int_equal(unlink(path), 0);
}

static void invalid_paths_are_refused(void **state) {
  ngio_tensor t = {"f", NGIO_F32, 1, {3}, three, 0};
  const char *file = in_folder("file");
  write_file(file, "x", 1);
  char under[200];
  (void)snprintf(under, sizeof under, "%s/under", file);
  struct {
    const char *path, *message;
  } places[] = {{NULL, "no path"},
                {"", "no path"},
                {in_folder("absent/file"), strerror(ENOENT)},
                {under, strerror(ENOTDIR)},
                {test_folder, "not a regular file"},
                {"/dev/full", "not a regular file"},
                {"/proc/self/natgrad-test", "cannot write"}};
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
    assert_int_equal(ngio_tensors_write(places[i].path, &t, 1, NULL, 0, message, sizeof message),
                     NGIO_ERR_FILE);
    expect_message(places[i].message);
  }
  assert_int_equal(unlink(file), 0);

  /* A folder without write permission; the superuser may write everywhere. */
  const char *locked = in_folder("locked");
  assert_int_equal(mkdir(locked, 0500), 0);
  if (geteuid() != 0) {
    assert_int_equal(
        ngio_tensors_write(in_folder("locked/f"), &t, 1, NULL, 0, message, sizeof message),
        NGIO_ERR_FILE);
    expect_message(strerror(EACCES));
  }
  assert_int_equal(rmdir(locked), 0);

  /* These paths are no regular files; a pipe must not block the reader. */
  ngio_tensors *f;
  const char *pipe_path = in_folder("pipe");
  assert_int_equal(mkfifo(pipe_path, 0600), 0);
  const char *odd[] = {NULL, "", test_folder, "/dev/zero", pipe_path, in_folder("absent")};
  for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
    assert_int_equal(ngio_tensors_read(odd[i], NULL, &f, message, sizeof message), NGIO_ERR_FILE);
    assert_null(f);
    ngio_npy a;
    assert_int_equal(ngio_npy_read(odd[i], &a, message, sizeof message), NGIO_ERR_FILE);
    assert_null(a.data);
  }
  assert_int_equal(unlink(pipe_path), 0);
}

/* RLIMIT_FSIZE, with its signal ignored, acts like a disk that is full after `limit` bytes. */
static void a_full_disk_leaves_the_old_file(void **state) {
  static float large[5000];
  const char *path = in_folder("full"), *part = in_folder("full.natgrad-part");
  ngio_tensor small = {"f", NGIO_F32, 1, {3}, three, 0};
  ngio_tensor wide = {"wide", NGIO_F32, 1, {5000}, large, 0};
  assert_int_equal(ngio_tensors_write(path, &small, 1, NULL, 0, message, sizeof message), NGIO_OK);
  struct rlimit old, tight;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
  void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
  const rlim_t limits[] = {0, 4, 50, 4096, 20000};
  for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
    tight = old;
    tight.rlim_cur = limits[i];
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    ngio_status st = ngio_tensors_write(path, &wide, 1, NULL, 0, message, sizeof message);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(st, NGIO_ERR_FILE);
    expect_message(strerror(EFBIG));
    assert_int_equal(access(part, F_OK), -1);
    ngio_tensors *f;
    assert_int_equal(ngio_tensors_read(path, NULL, &f, message, sizeof message), NGIO_OK);
    assert_memory_equal(ngio_tensors_find(f, "f")->data, three, sizeof three);
    ngio_tensors_close(&f);
  }
  (void)signal(SIGXFSZ, handler);
  assert_int_equal(unlink(path), 0);
}

static void partial_files_of_writers_are_handled(void **state) {
  ngio_tensor t = {"f", NGIO_F32, 1, {3}, three, 0};
  const char *path = in_folder("again"), *part = in_folder("again.natgrad-part");
  /* The next writer replaces the partial file of a killed writer, whatever its length. */
  char rubbish[3000];
  memset(rubbish, 'x', sizeof rubbish);
  write_file(part, rubbish, sizeof rubbish);
  assert_int_equal(ngio_tensors_write(path, &t, 1, NULL, 0, message, sizeof message), NGIO_OK);
  assert_int_equal(access(part, F_OK), -1);
  ngio_tensors *f;
  assert_int_equal(ngio_tensors_read(path, NULL, &f, message, sizeof message), NGIO_OK);
  ngio_tensors_close(&f);
  /* The partial file of a running writer is refused. */
  ngio_writer *w;
  assert_int_equal(ngio_writer_create(path, &t, 1, NULL, 0, &w, message, sizeof message), NGIO_OK);
  assert_int_equal(ngio_tensors_write(path, &t, 1, NULL, 0, message, sizeof message),
                   NGIO_ERR_FILE);
  expect_message("another program is writing");
  assert_int_equal(ngio_writer_put(w, three, 12, message, sizeof message), NGIO_OK);
  assert_int_equal(ngio_writer_finish(&w, message, sizeof message), NGIO_OK);
  /* A symbolic link with the temporary name is not followed. */
  const char *precious = in_folder("precious");
  write_file(precious, "keep", 4);
  assert_int_equal(symlink(precious, part), 0);
  assert_int_equal(ngio_tensors_write(path, &t, 1, NULL, 0, message, sizeof message),
                   NGIO_ERR_FILE);
  size_t n;
  unsigned char *b = read_file(precious, &n);
  assert_int_equal(n, 4);
  assert_memory_equal(b, "keep", 4);
  free(b);
  assert_int_equal(unlink(part), 0);
  assert_int_equal(unlink(precious), 0);
  assert_int_equal(unlink(path), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(written_tensors_are_read_back),
      cmocka_unit_test(tensors_are_written_in_pieces),
      cmocka_unit_test(a_stream_receives_the_bytes_of_the_file),
      cmocka_unit_test(invalid_paths_are_refused),
      cmocka_unit_test(a_full_disk_leaves_the_old_file),
      cmocka_unit_test(partial_files_of_writers_are_handled),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_empty_folder);
}
