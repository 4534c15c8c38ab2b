/* t_parts_faults.c: parts that are missing, mixed, renamed, edited or truncated; a full disk on one rank; a rank
 * whose transport or allocator fails.  All ranks return the same status, the message names the file, and the
 * earlier state is unchanged in memory and on disk. */
#include "unit_test.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ranks.h"
#include "safetensors.h"
#include "state_help.h"
#include "tap.h"

enum { RANKS = 3 };

static path find_part(const char *base, int32_t r) { return file_of_part(base, r, RANKS); }

/* ---- ranks that save or load -----------------------------------------------------------------*/

static void save_parts(const char *base, int32_t steps) {
  const path file = path_of(base);
  must_transfer(RANKS, (transfer){.parts = file.text, .steps = steps});
}

static void must_load_parts(const char *base) {
  const path file = path_of(base);
  for (int32_t n = 1; n <= RANKS; n++)
    must_transfer(n, (transfer){.load = file.text});
}

/* Load on 1 to RANKS ranks after one step.  The refused load must not change the model. */
static void expect_refused_parts(const char *base, const char *message) {
  const path file = path_of(base);
  for (int32_t n = 1; n <= RANKS; n++) {
    transfer x = {.load = file.text, .steps = 1, .says = message};
    ng_status each[RANKS];
    assert_int_equal(ranks_run(n, run_transfer, &x, each), NG_ERR_FILE);
    for (int32_t r = 0; r < n; r++) {
      assert_int_equal(each[r], NG_ERR_FILE);
      assert_false(x.wrong_refusal[r]);
    }
  }
}

/* ---- missing, foreign and edited parts -------------------------------------------------------*/

static void rename_file(const char *from, const char *to) { assert_int_equal(rename(from, to), 0); }

static void foreign_parts_are_refused(void **state) {
  const path aside = path_of("aside");
  save_parts("a", 2);
  save_parts("b", 3);
  must_load_parts("a");
  for (int32_t r = 1; r < RANKS; r++) { /* missing */
    const path p = find_part("a", r);
    rename_file(p.text, aside.text);
    expect_refused_parts("a", p.text);
    rename_file(aside.text, p.text);
  }
  const path one = find_part("a", 1), two = find_part("a", 2), other = find_part("b", 1);
  rename_file(one.text, aside.text); /* exchange two parts, then use a part of another state */
  rename_file(two.text, one.text);
  rename_file(aside.text, two.text);
  expect_refused_parts("a", "is a part of another state");
  rename_file(one.text, aside.text);
  rename_file(two.text, one.text);
  rename_file(aside.text, two.text);
  must_load_parts("a");
  rename_file(one.text, aside.text);
  rename_file(other.text, one.text);
  char message[256];
  (void)snprintf(message, sizeof message, "%s: is a part of another state", one.text);
  expect_refused_parts("a", message);
  rename_file(one.text, other.text);
  rename_file(aside.text, one.text);
  expect_refused_parts("a.none", "a.none");
  const char *name = strrchr(two.text, '/') + 1; /* a single part */
  expect_refused_parts(name, "is part 2 of 3 of a state");
  must_load_parts("a");
  must_load_parts("b");
  clear_folder();
}

/* One layer has one owner.  Parts of other ranks have no arrays, but a load still needs them. */
static void parts_without_arrays_are_required(void **state) {
  static const sim_setup small = {
      .method = "natgrad", .set = "grad_worker_fraction=0", .vary = SIM_SMALL};
  const path a = path_of("a");
  must_transfer(RANKS, (transfer){.how = &small, .parts = a.text, .steps = 1});
  must_transfer(1, (transfer){.how = &small, .load = a.text});
  int32_t empty = 0;
  for (int32_t r = 1; r < RANKS; r++) {
    const path p = find_part("a", r);
    ngio_tensors *file = must_read_tensors(p.text);
    empty += ngio_tensors_count(file) == 0;
    ngio_tensors_close(&file);
    assert_int_equal(unlink(p.text), 0);
    transfer x = {.how = &small, .load = a.text, .says = p.text};
    assert_int_equal(ranks_run(2, run_transfer, &x, NULL), NG_ERR_FILE);
    assert_false(x.wrong_refusal[0] || x.wrong_refusal[1]);
    must_transfer(RANKS, (transfer){.how = &small, .parts = a.text, .steps = 1});
  }
  assert_true(empty > 0);
  clear_folder();
}

/* In each part, flip one bit in the manifest, in the header or in the data; the load must fail. */
static void edited_parts_are_refused(void **state) {
  save_parts("a", 2);
  for (int32_t r = 0; r < RANKS; r++) {
    const path p = find_part("a", r);
    size_t n;
    unsigned char *bytes = read_file(p.text, &n);
    uint64_t head = 0;
    for (int i = 7; i >= 0; i--)
      head = head << 8 | bytes[i];
    const size_t at[] = {8 + (size_t)head / 3, 8 + (size_t)head, (8 + (size_t)head + n) / 2, n - 1};
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
      bytes[at[i]] ^= 0x20;
      write_file(p.text, bytes, n);
      expect_refused_parts("a", p.text);
      bytes[at[i]] ^= 0x20;
    }
    write_file(p.text, bytes, n - 4);
    expect_refused_parts("a", p.text);
    write_file(p.text, bytes, n);
    free(bytes);
  }
  must_load_parts("a");
  clear_folder();
}

/* ---- a disk that is full ---------------------------------------------------------------------*/

static int64_t get_file_size(const char *name) {
  struct stat at;
  assert_int_equal(stat(name, &at), 0);
  return (int64_t)at.st_size;
}

/* The largest part does not fit on the disk, or one part cannot be created. */
static void a_part_that_does_not_fit_leaves_the_old_state(void **state) {
  int64_t most = 0;
  save_parts("new", 3);
  for (int32_t r = 0; r < RANKS; r++) {
    const int64_t n = get_file_size(find_part("new", r).text);
    most = n > most ? n : most;
  }
  const path a = path_of("a");
  char blocked[200];
  (void)snprintf(blocked, sizeof blocked, "%s/a%s.natgrad-part", test_folder,
                 find_part("new", 1).text + strlen(path_of("new").text));
  clear_folder();
  save_parts("a", 2);
  const names before = list_folder();
  struct rlimit was, less;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
  for (int turn = 0; turn < 2; turn++) {
    ng_status each[RANKS];
    transfer x = {.parts = a.text, .steps = 3, .says = turn == 0 ? "cannot" : "1of3"};
    less = was;
    less.rlim_cur = (rlim_t)most - 1;
    if (turn == 0) {
      (void)signal(SIGXFSZ, SIG_IGN);
      assert_int_equal(setrlimit(RLIMIT_FSIZE, &less), 0);
    } else {
      assert_int_equal(mkdir(blocked, 0777), 0);
    }
    (void)ranks_run(RANKS, run_transfer, &x, each);
    if (turn == 0) {
      assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
      (void)signal(SIGXFSZ, SIG_DFL);
    } else {
      assert_int_equal(rmdir(blocked), 0);
    }
    for (int32_t r = 0; r < RANKS; r++) {
      assert_int_equal(each[r], NG_ERR_FILE);
      assert_false(x.wrong_refusal[r]);
    }
    const names now = list_folder();
    assert_int_equal(now.n, before.n);
    assert_memory_equal(now.text, before.text, sizeof now.text[0] * (size_t)now.n);
    must_load_parts("a");
  }
  clear_folder();
}

/* ---- a failing transport, a failing allocator ------------------------------------------------*/

typedef struct rank_fault {
  const char *file;
  bool loading, memory;
  int32_t who;
  int64_t k; /* number of the call at which the transport or allocator fails */
  ng_status got[RANKS];
} rank_fault;

static ng_status fail_one_rank(int32_t rank, ng_transport *t, void *arg) {
  rank_fault *x = arg;
  const bool memory = rank == x->who && x->memory, gone = rank == x->who && !x->memory;
  tap between = {.inner = *t};
  allocator mine = {0};
  const ng_transport with = tap_transport(&between, NO_START);
  const ng_context_config config = allocator_config(&mine);
  sim s;
  ng_status st = sim_open(&s, &spread, x->memory ? t : &with, &config);
  for (int64_t i = 0; i < 3 && st >= NG_OK; i++)
    st = sim_step(&s, i);
  if (st >= NG_OK) {
    const int64_t held = mine.held;
    const uint64_t was = sim_fingerprint(&s);
    if (gone) between.fail_at = between.calls + x->k;
    if (memory) mine.fail_at = mine.calls + x->k;
    x->got[rank] = x->loading ? ng_load(s.p, x->file) : ng_save_parts(s.p, x->file);
    const bool failed = x->got[rank] != NG_OK;
    if (x->memory && (mine.held != held || (failed && sim_fingerprint(&s) != was)))
      st = NG_ERR_STATE;
    if (memory && failed && strstr(ng_last_error(s.ctx), "no memory") == NULL) st = NG_ERR_STATE;
  }
  sim_close(&s);
  return st < NG_OK || mine.held == 0 ? st : NG_ERR_STATE;
}

/* A rank fails at each message or allocation of a save or load.  All ranks return the same status, one whole state
 * exists, and no memory is lost. */
static void a_failing_rank_fails_all_and_loses_nothing(void **state) {
  const path a = path_of("a");
  for (int way = 0; way < 8; way++) {
    rank_fault x = {
        .file = a.text, .memory = way >= 4, .loading = way / 2 % 2 != 0, .who = way % 2};
    const ng_status expected = x.memory ? NG_ERR_NOMEM : NG_ERR_COMM;
    bool completed = false;
    save_parts("a", 2);
    while (!completed) {
      x.k++;
      assert_true(ranks_run(RANKS, fail_one_rank, &x, NULL) >= NG_OK);
      completed = x.got[x.who] == NG_OK;
      for (int32_t r = 0; r < RANKS; r++)
        assert_int_equal(x.got[r], completed ? NG_OK : expected);
      if (!x.memory) {
        must_load_parts("a");
        save_parts("a", 2); /* deletes partial files */
      }
      assert_int_equal(list_folder().n, RANKS);
    }
    assert_true(x.k > 5);
    must_load_parts("a");
  }
  clear_folder();
}

/* If hosts do not share their folder, rank 0 does not find the parts of others; the earlier state stays. */
static void hosts_need_a_shared_folder(void **state) {
  const path file = path_of("state"), other = path_of("other");
  save_parts("state", 2);
  const path before = find_part("state", RANKS - 1);
  transfer x = {.parts = file.text,
                .last_part = other.text,
                .steps = 3,
                .says = "all ranks need a shared folder"};
  assert_int_equal(ranks_run(RANKS, run_transfer, &x, NULL), NG_ERR_FILE);
  for (int32_t r = 0; r < RANKS; r++)
    assert_int_equal(x.wrong_refusal[r], 0);
  assert_int_equal(access(before.text, F_OK), 0);
  must_load_parts("state");
  clear_folder();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(foreign_parts_are_refused),
      cmocka_unit_test(edited_parts_are_refused),
      cmocka_unit_test(parts_without_arrays_are_required),
      cmocka_unit_test(a_part_that_does_not_fit_leaves_the_old_state),
      cmocka_unit_test(a_failing_rank_fails_all_and_loses_nothing),
      cmocka_unit_test(hosts_need_a_shared_folder),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_empty_folder);
}
