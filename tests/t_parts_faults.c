/* t_parts_faults.c: parts of a state that are missing, mixed, renamed, edited or cut, a disk that is full for one
 * rank, a rank that is gone at any word: all ranks get the same status, the message names the file, and what
 * was there before, in memory and on the disk, is as it was. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

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
#include "state_scene.h"
#include "tap.h"

enum { RANKS = 3 };

static path part(const char *base, int32_t r) { return file_of_part(base, r, RANKS); }

/* ---- ranks that save, or load and look -------------------------------------------------------*/

static void save(const char *base, int32_t steps) {
  const path file = in_folder(base);
  transfer x = {.parts = file.text, .steps = steps};
  assert_int_equal(ranks_run(RANKS, play_transfer, &x, NULL), NG_OK);
}

static void loads(const char *base) {
  const path file = in_folder(base);
  transfer x = {.load = file.text};
  for (int32_t n = 1; n <= RANKS; n++)
    assert_int_equal(ranks_run(n, play_transfer, &x, NULL), NG_OK);
}

/* On more ranks and on fewer; with a step behind them, which would be gone. */
static void refused(const char *base, const char *says) {
  const path file = in_folder(base);
  for (int32_t n = 1; n <= RANKS; n++) {
    transfer x = {.load = file.text, .steps = 1, .says = says};
    ng_status each[RANKS];
    assert_int_equal(ranks_run(n, play_transfer, &x, each), NG_ERR_FILE);
    for (int32_t r = 0; r < n; r++) {
      assert_int_equal(each[r], NG_ERR_FILE);
      assert_false(x.wrong[r]);
    }
  }
}

/* ---- what is not as it was saved -------------------------------------------------------------*/

static void move(const char *from, const char *to) { assert_int_equal(rename(from, to), 0); }

static void parts_that_do_not_belong(void **state) {
  (void)state;
  const path aside = in_folder("aside");
  save("a", 2);
  save("b", 3);
  loads("a");
  for (int32_t r = 1; r < RANKS; r++) { /* missing */
    const path p = part("a", r);
    move(p.text, aside.text);
    refused("a", p.text);
    move(aside.text, p.text);
  }
  const path one = part("a", 1), two = part("a", 2), other = part("b", 1);
  move(one.text, aside.text); /* one under the name of another: of the same whole, and of another */
  move(two.text, one.text);
  move(aside.text, two.text);
  refused("a", "is a part of another state");
  move(one.text, aside.text);
  move(two.text, one.text);
  move(aside.text, two.text);
  loads("a");
  move(one.text, aside.text);
  move(other.text, one.text);
  char says[256];
  (void)snprintf(says, sizeof says, "%s: is a part of another state", one.text);
  refused("a", says);
  move(one.text, other.text);
  move(aside.text, one.text);
  refused("a.none", "a.none");
  const char *name = strrchr(two.text, '/') + 1; /* a part by itself */
  refused(name, "is part 2 of 3 of a state");
  loads("a");
  loads("b");
  clear_folder();
}

/* One layer, and its owner is one rank: the others have nothing to write, and are missed all the same. */
static void a_part_without_arrays(void **state) {
  (void)state;
  static const sim_setup small = {
      .method = "natgrad", .set = "grad_worker_fraction=0", .vary = SIM_SMALL};
  const path a = in_folder("a");
  transfer x = {.how = &small, .parts = a.text, .steps = 1};
  assert_int_equal(ranks_run(RANKS, play_transfer, &x, NULL), NG_OK);
  x = (transfer){.how = &small, .load = a.text};
  assert_int_equal(ranks_run(1, play_transfer, &x, NULL), NG_OK);
  int32_t empty = 0;
  for (int32_t r = 1; r < RANKS; r++) {
    const path p = part("a", r);
    char message[256];
    ngio_tensors *file;
    assert_int_equal(ngio_tensors_read(p.text, NULL, &file, message, sizeof message), NGIO_OK);
    empty += ngio_tensors_count(file) == 0;
    ngio_tensors_close(&file);
    assert_int_equal(unlink(p.text), 0);
    x = (transfer){.how = &small, .load = a.text, .says = p.text};
    assert_int_equal(ranks_run(2, play_transfer, &x, NULL), NG_ERR_FILE);
    assert_false(x.wrong[0] || x.wrong[1]);
    x = (transfer){.how = &small, .parts = a.text, .steps = 1};
    assert_int_equal(ranks_run(RANKS, play_transfer, &x, NULL), NG_OK);
  }
  assert_true(empty > 0);
  clear_folder();
}

/* Bytes of the manifest, of each header, and of every array. */
static void parts_that_were_edited(void **state) {
  (void)state;
  save("a", 2);
  for (int32_t r = 0; r < RANKS; r++) {
    const path p = part("a", r);
    size_t n;
    unsigned char *bytes = slurp(p.text, &n);
    uint64_t head = 0;
    for (int i = 7; i >= 0; i--)
      head = head << 8 | bytes[i];
    const size_t at[] = {8 + (size_t)head / 3, 8 + (size_t)head, (8 + (size_t)head + n) / 2, n - 1};
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
      FILE *f = fopen(p.text, "r+b");
      assert_non_null(f);
      assert_int_equal(fseek(f, (long)at[i], SEEK_SET), 0);
      assert_int_equal(fputc(bytes[at[i]] ^ 0x20, f) == EOF, 0);
      assert_int_equal(fclose(f), 0);
      refused("a", p.text);
      f = fopen(p.text, "wb");
      assert_non_null(f);
      assert_int_equal(fwrite(bytes, 1, n, f), n);
      assert_int_equal(fclose(f), 0);
    }
    assert_int_equal(truncate(p.text, (off_t)n - 4), 0);
    refused("a", p.text);
    FILE *f = fopen(p.text, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    free(bytes);
  }
  loads("a");
  clear_folder();
}

/* ---- a disk that is full ---------------------------------------------------------------------*/

static int64_t size_of(const char *name) {
  struct stat at;
  assert_int_equal(stat(name, &at), 0);
  return (int64_t)at.st_size;
}

/* Only the largest part does not fit, whichever rank has it; or one cannot be begun. */
static void no_room_for_one(void **state) {
  (void)state;
  int64_t most = 0;
  save("new", 3);
  for (int32_t r = 0; r < RANKS; r++) {
    const int64_t n = size_of(part("new", r).text);
    most = n > most ? n : most;
  }
  const path a = in_folder("a");
  char blocked[200];
  (void)snprintf(blocked, sizeof blocked, "%s/a%s.natgrad-part", folder,
                 part("new", 1).text + strlen(in_folder("new").text));
  clear_folder();
  save("a", 2);
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
    (void)ranks_run(RANKS, play_transfer, &x, each);
    if (turn == 0) {
      assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
      (void)signal(SIGXFSZ, SIG_DFL);
    } else {
      assert_int_equal(rmdir(blocked), 0);
    }
    for (int32_t r = 0; r < RANKS; r++) {
      assert_int_equal(each[r], NG_ERR_FILE);
      assert_false(x.wrong[r]);
    }
    const names now = list_folder();
    assert_int_equal(now.n, before.n);
    assert_memory_equal(now.text, before.text, sizeof now.text[0] * (size_t)now.n);
    loads("a");
  }
  clear_folder();
}

/* ---- a rank that is gone ---------------------------------------------------------------------*/

typedef struct gone {
  const char *file;
  bool loading;
  int32_t who;
  int64_t k; /* its transport fails at this call */
  ng_status got[RANKS];
} gone;

static ng_status leave(int32_t rank, ng_transport *t, void *arg) {
  gone *x = arg;
  tap between = {.inner = *t};
  const ng_transport mine = tapped(&between, NO_START);
  sim s;
  ng_status st = sim_open(&s, &spread, &mine, NULL);
  for (int64_t i = 0; i < 3 && st >= NG_OK; i++)
    st = sim_step(&s, i);
  if (st >= NG_OK) {
    if (rank == x->who) between.fail_at = between.calls + x->k;
    x->got[rank] = x->loading ? ng_load(s.p, x->file) : ng_save_parts(s.p, x->file);
  }
  sim_close(&s);
  return st < NG_OK ? st : NG_OK;
}

/* At any word that ranks say while one saves or loads: all know, and one whole state is there. */
static void a_rank_is_gone(void **state) {
  (void)state;
  const path a = in_folder("a");
  for (int loading = 0; loading < 2; loading++) {
    for (int32_t who = 0; who < 2; who++) {
      int64_t k = 1;
      for (bool through = false; !through; k++) {
        gone x = {.file = a.text, .loading = loading != 0, .who = who, .k = k};
        save("a", 2);
        assert_int_equal(ranks_run(RANKS, leave, &x, NULL), NG_OK);
        through = x.got[who] == NG_OK;
        for (int32_t r = 0; r < RANKS; r++)
          assert_int_equal(x.got[r], through ? NG_OK : NG_ERR_COMM);
        loads("a");
        save("a", 1); /* takes away what is left */
        assert_int_equal(list_folder().n, RANKS);
      }
      assert_true(k > 5);
    }
  }
  clear_folder();
}

/* ---- memory that is not there ----------------------------------------------------------------*/

typedef struct mean_purse {
  int64_t calls, fail_at, held;
} mean_purse;

static void *mean_take(void *user, size_t bytes) {
  mean_purse *p = user;
  if (++p->calls == p->fail_at) return NULL;
  p->held += (int64_t)bytes;
  return aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static void mean_give(void *user, void *ptr, size_t bytes) {
  mean_purse *p = user;
  p->held -= (int64_t)bytes;
  free(ptr);
}

static ng_status starve(int32_t rank, ng_transport *t, void *arg) {
  gone *x = arg;
  mean_purse purse = {0};
  ng_context_config config;
  ng_context_config_init(&config, sizeof config);
  config.alloc = mean_take;
  config.free = mean_give;
  config.alloc_user = &purse;
  sim s;
  ng_status st = sim_open(&s, &spread, t, &config);
  for (int64_t i = 0; i < 3 && st >= NG_OK; i++)
    st = sim_step(&s, i);
  if (st >= NG_OK) {
    const int64_t before = purse.held;
    const uint64_t was = sim_fingerprint(&s);
    if (rank == x->who) purse.fail_at = purse.calls + x->k;
    x->got[rank] = x->loading ? ng_load(s.p, x->file) : ng_save_parts(s.p, x->file);
    if (purse.held != before) st = NG_ERR_STATE;
    if (x->got[rank] != NG_OK && sim_fingerprint(&s) != was) st = NG_ERR_STATE;
    if (rank == x->who && x->got[rank] != NG_OK &&
        strstr(ng_last_error(s.ctx), "no memory") == NULL) {
      st = NG_ERR_STATE;
    }
  }
  sim_close(&s);
  return st < NG_OK || purse.held == 0 ? st : NG_ERR_STATE;
}

/* Each in turn, on one rank: the same status on all, nothing is lost, and it can be tried again. */
static void every_allocation_fails(void **state) {
  (void)state;
  const path a = in_folder("a");
  save("a", 2);
  for (int loading = 0; loading < 2; loading++) {
    for (int32_t who = 0; who < 2; who++) {
      int64_t k = 1;
      for (bool through = false; !through; k++) {
        gone x = {.file = a.text, .loading = loading != 0, .who = who, .k = k};
        assert_true(ranks_run(RANKS, starve, &x, NULL) >= NG_OK);
        through = x.got[who] == NG_OK;
        for (int32_t r = 0; r < RANKS; r++)
          assert_int_equal(x.got[r], through ? NG_OK : NG_ERR_NOMEM);
        assert_int_equal(list_folder().n, RANKS);
      }
      assert_true(k > 5);
    }
  }
  loads("a");
  clear_folder();
}

/* Hosts that do not share their folder: rank 0 does not see what another wrote, and the state before stays. */
static void folders_apart(void **state) {
  (void)state;
  const path file = in_folder("state"), other = in_folder("other");
  save("state", 2);
  const path before = part("state", RANKS - 1);
  transfer x = {.parts = file.text,
                .apart = other.text,
                .steps = 3,
                .says = "all ranks need a shared folder"};
  assert_int_equal(ranks_run(RANKS, play_transfer, &x, NULL), NG_ERR_FILE);
  for (int32_t r = 0; r < RANKS; r++)
    assert_int_equal(x.wrong[r], 0);
  assert_int_equal(access(before.text, F_OK), 0);
  loads("state");
  clear_folder();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(parts_that_do_not_belong),
      cmocka_unit_test(parts_that_were_edited),
      cmocka_unit_test(a_part_without_arrays),
      cmocka_unit_test(no_room_for_one),
      cmocka_unit_test(a_rank_is_gone),
      cmocka_unit_test(every_allocation_fails),
      cmocka_unit_test(folders_apart),
  };
  return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
