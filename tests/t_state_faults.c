/* t_state_faults.c: faults outside the file: calls out of order, invalid paths, a full disk, failing ranks, a
 * failing transport.  The earlier file stays, nothing changes, and all ranks return the same status. */
#include "unit_test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "model/model.h"
#include "ranks.h"
#include "safetensors.h"
#include "state_help.h"
#include "tap.h"

enum { RANKS = 3 };

/* ---- order of calls, paths -------------------------------------------------------------------*/

static void states_need_a_ready_model(void **state) {
  sim s;
  const path file = path_of("file");
  fixture f;
  fixture_ok(&f, fixture_open(&f, "", NULL));
  fixture_fails(&f, ng_save(f.p, file.text), NG_ERR_STATE, "ng_ready");
  assert_int_equal(ng_load(f.p, file.text), NG_ERR_STATE);
  fixture_close(&f);
  open_and_step(&s, &plain, 2);
  fixture_fails(&s.f, ng_load(s.p, ""), NG_ERR_ARG, "path");
  assert_int_equal(ng_save(s.p, file.text), NG_OK);
  assert_int_equal(sim_begin(&s, 2), NG_OK);
  fixture_fails(&s.f, ng_save(s.p, file.text), NG_ERR_STATE, "ng_begin");
  assert_int_equal(ng_load(s.p, file.text), NG_ERR_STATE);
  assert_int_equal(ng_reset_batch(s.p), NG_OK);
  assert_int_equal(ng_load(s.p, file.text), NG_OK);
  sim_close(&s);
  assert_int_equal(unlink(file.text), 0);
}

/* The save fails with a message that contains `says`, and changes nothing. */
static void expect_refused_save(sim *s, const char *file, const char *says) {
  const uint64_t before = sim_fingerprint(s); /* the fingerprint covers allocated memory */
  assert_int_equal(ng_save(s->p, file), NG_ERR_FILE);
  const char *message = ng_last_error(s->ctx);
  if (strstr(message, says) == NULL) fail_msg("message \"%s\" lacks \"%s\"", message, says);
  if (sim_fingerprint(s) != before)
    fail_msg("the call failed with \"%s\" and changed the state", message);
}

/* Counters above 2^53 could not be read back, so they are not saved over an earlier state. */
static void counters_above_doubles_are_not_saved(void **state) {
  sim s;
  const path file = path_of("file");
  open_and_step(&s, &plain, 2);
  s.p->steps = INT64_C(1) << 53;
  assert_int_equal(ng_save(s.p, file.text), NG_OK);
  assert_int_equal(ng_load(s.p, file.text), NG_OK);
  assert_true(sim_step(&s, 2) >= NG_OK);
  expect_refused_save(&s, file.text, "number of steps exceeds 2^53");
  assert_int_equal(ng_load(s.p, file.text), NG_OK);
  assert_int_equal(s.p->steps, INT64_C(1) << 53);
  sim_close(&s);
  assert_int_equal(unlink(file.text), 0);
}

static void unwritable_paths_are_refused(void **state) {
  sim s;
  const path sub = path_of("none/file");
  open_and_step(&s, &plain, 2);
  expect_refused_save(&s, sub.text, strerror(ENOENT));
  expect_refused_save(&s, "/dev/full", "not a regular file");
  expect_refused_save(&s, test_folder, "not a regular file");
  expect_refused_save(&s, "/proc/self/natgrad-test", "cannot write");
  sim_close(&s);
}

/* ---- ranks fail together ---------------------------------------------------------------------*/

enum { LOAD_DAMAGED, SAVE_NOWHERE, SAVE_ON_A_FULL_DISK, SAVE_BETWEEN, FAILURES };

typedef struct common_faults {
  const char *good, *bad, *nowhere;
  rlim_t limit; /* number of bytes after which the disk is full */
  char message[RANKS][FAILURES][512];
  bool changed[RANKS];
} common_faults;

/* Save while the disk of rank 0 is full and the other ranks still send. */
static ng_status save_on_a_full_disk(sim *s, const common_faults *x) {
  struct rlimit unlimited = {0, 0};
  if (s->rank != 0) return ng_save(s->p, x->good);
  if (getrlimit(RLIMIT_FSIZE, &unlimited) != 0) return NG_ERR_STATE;
  const struct rlimit tight = {.rlim_cur = x->limit, .rlim_max = unlimited.rlim_max};
  const bool set = setrlimit(RLIMIT_FSIZE, &tight) == 0;
  const ng_status st = ng_save(s->p, x->good);
  return setrlimit(RLIMIT_FSIZE, &unlimited) == 0 && set ? st : NG_ERR_STATE;
}

static ng_status fail_together(int32_t rank, ng_transport *t, void *arg) {
  common_faults *x = arg;
  sim s;
  ng_status st = sim_open(&s, &spread, t, NULL);
  for (int64_t i = 0; i < 3 && st >= NG_OK; i++)
    st = sim_step(&s, i);
  const uint64_t before = st >= NG_OK ? sim_fingerprint(&s) : 0;
  for (int k = 0; k < FAILURES && st >= NG_OK; k++) {
    /* SAVE_BETWEEN: only rank 1 has begun a micro-batch */
    const bool between = k == SAVE_BETWEEN && rank == 1;
    if (between) st = sim_begin(&s, 3);
    const ng_status got = k == LOAD_DAMAGED          ? ng_load(s.p, x->bad)
                          : k == SAVE_ON_A_FULL_DISK ? save_on_a_full_disk(&s, x)
                          : k == SAVE_NOWHERE        ? ng_save(s.p, x->nowhere)
                                                     : ng_save(s.p, x->good);
    (void)snprintf(x->message[rank][k], 512, "%s", ng_last_error(s.ctx));
    if (between && st == NG_OK) st = ng_reset_batch(s.p);
    if (got != (k == SAVE_BETWEEN ? NG_ERR_STATE : NG_ERR_FILE)) st = NG_ERR_STATE;
  }
  x->changed[rank] = st >= NG_OK && sim_fingerprint(&s) != before;
  if (st >= NG_OK) st = ng_load(s.p, x->good);
  if (st >= NG_OK) st = sim_step(&s, 3);
  sim_close(&s);
  return st;
}

static void ranks_fail_together(void **state) {
  const path good = path_of("good"), bad = path_of("bad"), nowhere = path_of("no/where"),
             copy = path_of("copy");
  const char *const messages[FAILURES] = {"is damaged", strerror(ENOENT), strerror(EFBIG),
                                          "between ng_begin and a step"};
  common_faults x = {.good = good.text, .bad = bad.text, .nowhere = nowhere.text};
  size_t n;
  must_transfer(1, (transfer){.steps = 3, .one = good.text});
  unsigned char *bytes = read_file(good.text, &n);
  write_file(copy.text, bytes, n);
  bytes[n - 1] ^= 1; /* damage a byte that rank 0 reads while the other ranks wait */
  write_file(bad.text, bytes, n);
  free(bytes);
  void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
  for (int i = 0; i < 10; i++) {
    x.limit = (rlim_t)((n - 2000) * (size_t)i / 9);
    assert_int_equal(ranks_run(RANKS, fail_together, &x, NULL), NG_OK);
    for (int r = 0; r < RANKS; r++) {
      for (int k = 0; k < FAILURES; k++) {
        assert_string_equal(x.message[r][k], x.message[0][k]);
        assert_non_null(strstr(x.message[r][k], messages[k]));
      }
      assert_false(x.changed[r]);
    }
    assert_same_file(good.text, copy.text);
    assert_int_equal(access(path_of("good.natgrad-part").text, F_OK), -1);
  }
  (void)signal(SIGXFSZ, handler);
  clear_folder();
}

/* ---- the transport fails ---------------------------------------------------------------------*/

typedef struct broken_transport {
  const char *file;
  bool loading;
  int32_t who; /* the rank whose transport fails */
  int64_t k;   /* number of the call of the save or load that fails */
  bool completed[RANKS];
} broken_transport;

static ng_status fail_at_call(int32_t rank, ng_transport *t, void *arg) {
  broken_transport *x = arg;
  tap between = {.inner = *t};
  const ng_transport mine = tap_transport(&between, NO_START);
  sim s;
  ng_status st = sim_open(&s, &spread, &mine, NULL);
  for (int64_t i = 0; i < 2 && st >= NG_OK; i++) {
    st = sim_step(&s, i);
  }
  if (st >= NG_OK) st = ng_save(s.p, x->file);
  if (st >= NG_OK) {
    int64_t before = 0, after = 0;
    ng_context_allocated(s.ctx, &before, NULL, NULL);
    const int64_t calls = between.calls;
    if (rank == x->who) between.fail_at = calls + x->k;
    const ng_status got = x->loading ? ng_load(s.p, x->file) : ng_save(s.p, x->file);
    ng_context_allocated(s.ctx, &after, NULL, NULL);
    x->completed[rank] = got == NG_OK;
    if (before != after) st = NG_ERR_NOMEM;
    if (got != NG_OK && got != NG_ERR_COMM) st = NG_ERR_STATE;
    /* after its first failure the transport fails in every call */
    if (got == NG_ERR_COMM && ng_save(s.p, x->file) != NG_ERR_COMM) st = NG_ERR_STATE;
  }
  sim_close(&s);
  return st < NG_OK ? st : NG_OK;
}

static void failing_transports_fail_all_ranks(void **state) {
  const path file = path_of("file"), part = path_of("file.natgrad-part");
  for (int loading = 0; loading < 2; loading++) {
    for (int32_t who = 0; who < 2; who++) {
      int64_t k = 1;
      for (;; k++) {
        broken_transport x = {.file = file.text, .loading = loading != 0, .who = who, .k = k};
        const ng_status st = ranks_run(RANKS, fail_at_call, &x, NULL);
        if (st != NG_OK) fail_msg("call %d of rank %d: %s", (int)k, who, ng_status_name(st));
        for (int r = 1; r < RANKS; r++) {
          assert_int_equal(x.completed[r], x.completed[0]);
        }
        assert_int_equal(access(part.text, F_OK), -1);
        ngio_tensors *f = must_read_tensors(file.text);
        ngio_tensors_close(&f);
        if (x.completed[0]) break;
      }
      assert_true(k > 5); /* the number of collectives */
    }
  }
  assert_int_equal(unlink(file.text), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(states_need_a_ready_model),
      cmocka_unit_test(unwritable_paths_are_refused),
      cmocka_unit_test(counters_above_doubles_are_not_saved),
      cmocka_unit_test(ranks_fail_together),
      cmocka_unit_test(failing_transports_fail_all_ranks),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_empty_folder);
}
