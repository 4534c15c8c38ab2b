/* t_comm_faults.c: errors between ranks: invalid transports, calls that do not match, a rank that aborts, a rank whose
 * k-th call fails, for every k.  No rank hangs (ranks.h has a timeout) or writes outside its buffers; all ranks get an
 * error. */
#include "transports.h"
#include "unit_test.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- tables and arguments --------------------------------------------------------------------*/

static ng_status init_with(const ng_transport *t, const char *word) {
  ng_comm c;
  char message[256] = "";
  const ng_status st = ng_comm_init(&c, t, message, sizeof message);
  if (word && !strstr(message, word)) fail_msg("'%s' does not say '%s'", message, word);
  if (st != NG_OK) assert_int_equal(ng_comm_init(&c, t, NULL, 0), st);
  return st;
}

static void invalid_transports_are_refused(void **state) {
  ng_threads *group;
  ng_transport whole, t;
  assert_int_equal(ng_threads_create(2, &group), NG_OK);
  assert_int_equal(ng_threads_transport(group, 1, &whole, sizeof whole), NG_OK);
  assert_int_equal(init_with(&whole, NULL), NG_OK);
#define WITHOUT(field, value, word)                                                                \
  do {                                                                                             \
    t = whole;                                                                                     \
    t.field = (value);                                                                             \
    assert_int_equal(init_with(&t, word), NG_ERR_ARG);                                             \
  } while (0)
  WITHOUT(run, NULL, "run is missing");
  WITHOUT(start, NULL, "wait without start");
  WITHOUT(wait, NULL, "start without wait");
  WITHOUT(group_create, NULL, "group_destroy without group_create");
  WITHOUT(group_destroy, NULL, "group_create without group_destroy");
  whole.start = NULL, whole.wait = NULL;
  WITHOUT(user, whole.user, "test without start and wait");
  assert_int_equal(ng_threads_transport(group, 1, &whole, sizeof whole), NG_OK);
  WITHOUT(size, 0, "size is 0");
  WITHOUT(rank, 2, "rank is 2");
  WITHOUT(rank, -1, "rank is -1");
  WITHOUT(kinds, 1u << NG_ALL_REDUCE, "kinds is 0x2");
  WITHOUT(kinds, 0xffu, "kinds is 0xff");
  WITHOUT(struct_size, 0, "struct_size is 0");
  WITHOUT(struct_size, offsetof(ng_transport, start) - 1, "sizeof(ng_transport)");
#undef WITHOUT

  /* The struct of a newer header: accepted if its unknown part is zero. */
  struct {
    ng_transport t;
    int64_t more;
  } newer = {whole, 0};
  newer.t.struct_size = sizeof newer;
  assert_int_equal(init_with(&newer.t, NULL), NG_OK);
  newer.more = 1;
  assert_int_equal(init_with(&newer.t, "struct_size"), NG_ERR_ARG);

  /* The struct of an older header: bytes after its end are not read. */
  ng_comm c;
  t = whole;
  t.struct_size = offsetof(ng_transport, start);
  assert_int_equal(ng_comm_init(&c, &t, NULL, 0), NG_OK);
  assert_true(c.t.run && !c.t.start && !c.t.wait && !c.t.group_create && !c.t.abort);
  assert_int_equal(c.t.kinds, 1u << NG_ALL_REDUCE | 1u << NG_BROADCAST);
  t.struct_size = offsetof(ng_transport, test);
  assert_int_equal(ng_comm_init(&c, &t, NULL, 0), NG_OK);
  assert_true(c.t.start && c.t.wait && !c.t.test && c.t.abort);
  assert_int_equal(c.rank, 1);
  assert_int_equal(c.size, 2);
  t.name = NULL;
  assert_int_equal(ng_comm_init(&c, &t, NULL, 0), NG_OK);
  assert_string_equal(c.t.name, "user");
  assert_int_equal(c.piece, 1 << 28);

  assert_int_equal(ng_comm_init(&c, NULL, NULL, 0), NG_OK);
  assert_string_equal(c.t.name, "self");
  assert_int_equal(c.size, 1);
  assert_int_equal(c.rank, 0);
  ng_threads_destroy(&group);
}

static void threads_check_their_arguments(void **state) {
  ng_threads *group = (ng_threads *)state;
  ng_transport t;
  assert_int_equal(ng_threads_create(0, &group), NG_ERR_ARG);
  assert_null(group);
  assert_int_equal(ng_threads_create(-1, &group), NG_ERR_ARG);
  assert_int_equal(ng_threads_create(3, &group), NG_OK);
  memset(&t, 0xA5, sizeof t);
  const ng_transport before = t;
  assert_int_equal(ng_threads_transport(group, 3, &t, sizeof t), NG_ERR_ARG);
  assert_int_equal(ng_threads_transport(group, -1, &t, sizeof t), NG_ERR_ARG);
  assert_int_equal(ng_threads_transport(group, 0, NULL, sizeof t), NG_ERR_ARG);
  assert_memory_equal(&t, &before, sizeof t);
  assert_int_equal(ng_threads_transport(group, 2, &t, sizeof t), NG_OK);
  assert_int_equal(t.struct_size, sizeof t);
  assert_int_equal(t.rank, 2);
  assert_int_equal(t.size, 3);
  assert_string_equal(t.name, "threads");
  ng_threads_destroy(&group);
  assert_null(group);
  ng_threads_destroy(&group);
  ng_threads_destroy(NULL);
}

/* ---- threads: calls that do not match --------------------------------------------------------*/

typedef enum oddity {
  ODD_KIND,
  ODD_COUNT,
  ODD_DTYPE,
  ODD_ROOT,
  ODD_COUNTS,
  ODD_LIST,
  ODD_LIST_LENGTH,
  ODD_GROUP,
  ODD_VERSUS_LIST,
  ODDITIES
} oddity;

/* The call of the last rank differs from the calls of the other ranks.  The buffer of 64 elements is larger than any
 * call needs; elements beyond the call must not change. */
static ng_status make_odd_call(const ng_transport *t, oddity what, void *group, double *room) {
  const bool odd = t->rank == t->size - 1;
  int64_t counts[MOST_RANKS] = {1, 1, 1, 1, 1, 1, 1, 1};
  int32_t list[MOST_RANKS] = {0, 1};
  ng_collective c = collective_of(NG_ALL_REDUCE, NG_F64, room, room);
  c.count = 4;
  c.counts = counts;
  switch (what) {
  case ODD_KIND:
    if (odd) c.kind = NG_BROADCAST;
    break;
  case ODD_COUNT:
    if (odd) c.count = 5;
    break;
  case ODD_DTYPE:
    if (odd) c.dtype = NG_F32;
    break;
  case ODD_ROOT:
    c.kind = NG_BROADCAST;
    c.root = odd;
    break;
  case ODD_COUNTS:
    c.kind = NG_REDUCE_SCATTER;
    if (odd) counts[1] = 3;
    break;
  case ODD_LIST:
  case ODD_LIST_LENGTH: {
    void *made;
    if (odd && what == ODD_LIST) list[1] = 2;
    return t->group_create(t->user, list, odd && what == ODD_LIST_LENGTH ? 1 : 2, &made);
  }
  case ODD_GROUP: /* the last rank calls on all ranks, the others on the group: threads.c finds the deadlock */
    if (!odd) c.group = group;
    break;
  case ODD_VERSUS_LIST:
    if (odd) {
      void *made;
      return t->group_create(t->user, list, 2, &made);
    }
    break;
  case ODDITIES:
    break;
  }
  return t->run(t->user, &c);
}

static ng_status check_odd_call(ng_comm *c, const ng_transport *t, const comm_case *how) {
  const oddity what = *(const oddity *)how->arg;
  double room[64];
  int32_t all[MOST_RANKS];
  void *group;
  memcpy(all, all_ranks, sizeof all);
  DO(t->group_create(t->user, all, t->size, &group));
  for (int64_t i = 0; i < 64; i++) {
    room[i] = rank_value(t->rank, i);
  }
  NEED(make_odd_call(t, what, group, room) == NG_ERR_COMM);
  for (int64_t i = 0; i < 64; i++) {
    NEED(room[i] == rank_value(t->rank, i));
  }
  /* All later calls fail, in every group. */
  ng_collective again = collective_of(NG_ALL_REDUCE, NG_F64, room, room);
  void *request;
  again.count = 1;
  NEED(t->run(t->user, &again) == NG_ERR_COMM);
  NEED(t->start(t->user, &again, &request) == NG_ERR_COMM);
  again.group = group;
  NEED(t->run(t->user, &again) == NG_ERR_COMM);
  void *none;
  NEED(t->group_create(t->user, all, t->size, &none) == NG_ERR_COMM && none == NULL);
  t->group_destroy(t->user, group);
  return NG_OK;
}

static void calls_that_differ_fail_on_all_ranks(void **state) {
  for (oddity what = ODD_KIND; what < ODDITIES; what++) {
    for (int32_t n = 3; n <= 5; n += 2) {
      const comm_case how = {.which = THREADS, .n = n, .arg = &what};
      const ng_status st = run_comm_case(&how, check_odd_call, NULL, NULL);
      if (st != NG_OK)
        fail_msg("differing call %d, %d ranks: %s", (int)what, (int)n, ng_status_name(st));
    }
  }
}

/* An invalid call fails on its rank, and then on the others. */
static ng_status check_invalid_call(ng_comm *c, const ng_transport *t, const comm_case *how) {
  const int wrong = *(const int *)how->arg;
  double x[4] = {1, 2, 3, 4};
  int64_t counts[MOST_RANKS] = {1, -1};
  int32_t list[] = {1, 1, t->size};
  ng_collective k = collective_of(NG_ALL_REDUCE, NG_F64, x, x);
  ng_status want = t->rank == 1 ? NG_ERR_ARG : NG_ERR_COMM, st;
  void *made = NULL;
  k.count = 1;
  if (t->rank == 1) {
    if (wrong == 0) k.kind = (ng_coll_kind)5;
    if (wrong == 1) k.kind = (ng_coll_kind)0;
    if (wrong == 2) k.dtype = NG_U8; /* there are no sums of u8 */
    if (wrong == 3) k.dtype = (ng_dtype)99;
    if (wrong == 4) k.count = -1;
    if (wrong == 5) k.kind = NG_BROADCAST, k.root = t->size;
    if (wrong == 6) k.kind = NG_ALL_GATHER, k.counts = NULL;
    if (wrong == 7) k.kind = NG_ALL_GATHER, k.counts = counts;
    if (wrong == 8) k.mem = NG_DEVICE, want = NG_ERR_ABSENT;
  }
  if (t->rank == 1 && wrong >= 9) {
    /* case 9: the ranks are not ascending */
    st = wrong == 9 ? t->group_create(t->user, list, 2, &made)
         : wrong == 10
             ? t->group_create(t->user, list + 1, 2, &made) /* case 10: a rank does not exist */
         : wrong == 11 ? t->group_create(t->user, list, 0, &made)
                       : t->wait(t->user, NULL);
  } else {
    st = t->run(t->user, &k);
  }
  NEED(st == want);
  NEED(x[0] == 1.0 && made == NULL);
  return NG_OK;
}

static void invalid_calls_fail_on_all_ranks(void **state) {
  for (int wrong = 0; wrong <= 12; wrong++) {
    const comm_case how = {.which = LAST_WHICH, .n = at_most_ranks(LAST_WHICH, 3), .arg = &wrong};
    const ng_status st = run_comm_case(&how, check_invalid_call, NULL, NULL);
    if (st != NG_OK) fail_msg("wrong call %d: %s", wrong, ng_status_name(st));
  }
}

/* A rank calls with a group of which it is not a member. */
static ng_status call_foreign_group(ng_comm *c, const ng_transport *t, const comm_case *how) {
  const int32_t list[] = {0, 1};
  void **shared = how->arg;
  double x = 1.0;
  void *made;
  ng_collective k = collective_of(NG_ALL_REDUCE, NG_F64, &x, &x);
  k.count = 1;
  DO(t->group_create(t->user, list, 2, &made));
  NEED((made != NULL) == (t->rank < 2));
  if (t->rank == 0) *shared = made;
  DO(t->run(t->user, &k)); /* rank 2 has already returned from its call */
  if (t->rank == 2) {
    k.group = *shared;
    NEED(t->run(t->user, &k) == NG_ERR_ARG);
  } else {
    NEED(t->run(t->user, &k) == NG_ERR_COMM);
    t->group_destroy(t->user, made);
  }
  return NG_OK;
}

static void a_rank_outside_the_group_is_refused(void **state) {
  void *shared = NULL;
  const comm_case how = {.which = THREADS, .n = 3, .arg = &shared};
  assert_int_equal(run_comm_case(&how, call_foreign_group, NULL, NULL), NG_OK);
}

/* ---- abort -----------------------------------------------------------------------------------*/

/* Rank 0 aborts while others wait for all ranks, for a group, or for a request. */
static ng_status abort_while_others_wait(ng_comm *c, const ng_transport *t, const comm_case *how) {
  const ng_group world = ng_group_world(c);
  const int32_t pair[] = {0, 1};
  const bool grouped = how->which != USER_NO_GROUPS;
  ng_group g = {.index = -1};
  float x[3] = {1, 2, 3};
  ng_request q;
  if (grouped) DO(ng_group_create(c, pair, 2, &g));
  ng_status st = NG_OK;
  if (c->rank == 0) {
    struct timespec nap = {0, 20000000}; /* sleep, so that the other ranks are likely to wait */
    nanosleep(&nap, NULL);
    t->abort(t->user);
    t->abort(t->user); /* a second abort has no effect */
    st = ng_comm_sum(c, &world, x, 3, NG_F32);
  } else if (c->rank == 1 && grouped) {
    st = ng_comm_sum(c, &g, x, 3, NG_F32);
  } else if (c->rank == 2) {
    st = ng_comm_post_sum(c, &world, x, 3, NG_F32, &q);
    if (st == NG_OK) st = ng_comm_wait(c, &q);
  } else {
    st = ng_comm_broadcast(c, &world, x, 3, NG_F32, 0);
  }
  ng_group_destroy(c, &g);
  NEED(st == NG_ERR_COMM);
  NEED(ng_comm_sum(c, &world, x, 3, NG_F32) == NG_ERR_COMM);
  return NG_OK;
}

static void an_abort_ends_every_wait(void **state) {
  for (which w = FIRST_WIRED; w < WHICH; w++) {
    const comm_case how = {.which = w, .n = at_most_ranks(w, 5)};
    assert_int_equal(run_comm_case(&how, abort_while_others_wait, NULL, NULL), NG_OK);
  }
}

/* A rank may free its buffers when its call returns an error, although other ranks are still in the collective.  The
 * buffers are so large that free unmaps them, so a late write ends the program.  Rank 0 aborts while the others do a
 * long sum that all have posted.  The calls go to the transport directly, because the abort of ng_comm waits. */
static ng_status free_after_abort(ng_comm *c, const ng_transport *t, const comm_case *how) {
  enum { MANY = 2000000 }; /* about 20 ms */
  float *x = calloc(MANY, sizeof *x);
  NEED(x);
  ng_collective k = collective_of(NG_ALL_REDUCE, NG_F32, x, x);
  void *request;
  k.count = MANY;
  ng_status st = t->start(t->user, &k, &request);
  if (st == NG_OK && t->rank == 0) {
    struct timespec nap = {0, 1000000};
    nanosleep(&nap, NULL);
    t->abort(t->user);
  } else if (st == NG_OK) {
    st = t->wait(t->user, request);
  }
  free(x);
  return st == NG_ERR_COMM ? NG_OK : st; /* the sum may be complete before the abort */
}

static void buffers_may_be_freed_after_an_error(void **state) {
  for (int turn = 0; turn < 8; turn++) {
    const comm_case how = {.which = LAST_WHICH, .n = at_most_ranks(LAST_WHICH, 5)};
    assert_int_equal(run_comm_case(&how, free_after_abort, NULL, NULL), NG_OK);
  }
}

/* ---- one rank fails at its k-th call ---------------------------------------------------------*/

/* Each kind of collective; all ranks wait for the last one. */
static ng_status run_each_collective(ng_comm *c, ng_group *g, bool groups) {
  const ng_group world = ng_group_world(c);
  const int32_t first[] = {0, 1};
  int64_t counts[MOST_RANKS];
  double x[64];
  float y[2][8];
  ng_request q[2];
  for (int32_t m = 0; m < MOST_RANKS; m++) {
    counts[m] = element_count(1, m);
  }
  memset(x, 0, sizeof x);
  memset(y, 0, sizeof y);
  if (groups) DO(ng_group_create(c, first, 2, g));
  DO(ng_comm_post_sum(c, &world, y[0], 8, NG_F32, &q[0]));
  DO(ng_comm_post_sum(c, &world, y[1], 8, NG_F32, &q[1]));
  DO(ng_comm_test(c, &q[0]));
  DO(ng_comm_broadcast(c, &world, x, 9, NG_U8, 1));
  DO(ng_comm_wait(c, &q[1]));
  DO(ng_comm_gather(c, &world, x, counts, NG_F64));
  DO(ng_comm_gather(c, g, x, counts, NG_F64));
  DO(ng_comm_wait(c, &q[0]));
  DO(scatter_sum(c, &world, x, counts, NG_F64));
  DO(ng_comm_sum(c, g, x, 5, NG_F64));
  return ng_comm_sum(c, &world, x, 5, NG_F64);
}

static ng_status check_failing_call(ng_comm *c, const ng_transport *t, const comm_case *how) {
  const tap *p = t->user;
  ng_group g = {.index = -1};
  const bool groups = how->which != USER_NO_GROUPS && how->n > 2;
  const ng_status st = run_each_collective(c, &g, groups);
  if (st != NG_OK) {
    /* After the error: one abort, and all calls fail without calling the transport. */
    const int64_t calls = p->calls;
    const int64_t counts[MOST_RANKS] = {1, 1, 1, 1, 1, 1, 1, 1};
    const ng_group world = ng_group_world(c);
    const int32_t first[] = {0, 1};
    ng_group none;
    ng_request q;
    double x[MOST_RANKS] = {0};
    NEED(st == NG_ERR_COMM && c->broken && p->aborts == 1);
    NEED(ng_comm_sum(c, &world, x, 1, NG_F64) == NG_ERR_COMM);
    NEED(ng_comm_broadcast(c, &world, x, 1, NG_F64, 0) == NG_ERR_COMM);
    NEED(ng_comm_gather(c, &world, x, counts, NG_F64) == NG_ERR_COMM);
    NEED(scatter_sum(c, &world, x, counts, NG_F64) == NG_ERR_COMM);
    NEED(ng_comm_post_sum(c, &world, x, 1, NG_F64, &q) == NG_ERR_COMM);
    NEED(ng_comm_wait(c, &q) == NG_ERR_COMM);
    NEED(ng_comm_test(c, &q) == NG_ERR_COMM);
    NEED(ng_group_create(c, first, 2, &none) == NG_ERR_COMM);
    NEED(p->calls == calls && p->aborts == 1);
  } else {
    NEED(!c->broken && p->aborts == 0);
  }
  ng_group_destroy(c, &g);
  return st;
}

static void every_failing_call_ends_all_ranks(void **state) {
  static const ng_status with[] = {NG_ERR_DEVICE, NG_ERR_COMM, NG_SKIPPED};
  for (which w = FIRST_WIRED; w < WHICH; w++) {
    for (int32_t n = 2; n <= at_most_ranks(w, 3); n++) {
      for (int32_t culprit = 0; culprit < n; culprit++) {
        int64_t k = 0, tested = 0;
        ng_status st = NG_ERR_COMM;
        while (st != NG_OK) {
          tap taps[MOST_RANKS] = {{.fail_at = 0}};
          ng_status each[MOST_RANKS];
          const comm_case how = {.which = w, .n = n};
          taps[culprit].fail_at = ++k;
          taps[culprit].status = with[k % 3];
          st = run_comm_case(&how, check_failing_call, taps, each);
          tested += taps[culprit].tests;
          for (int32_t r = 0; r < n; r++) {
            if (each[r] != st || (st != NG_OK && st != NG_ERR_COMM)) {
              fail_msg("%s: rank %d of %d failed at call %d, rank %d returned %s", which_name[w],
                       (int)culprit, (int)n, (int)k, (int)r, ng_status_name(each[r]));
            }
          }
          if (st == NG_OK) assert_true(taps[culprit].calls < k);
        }
        assert_true(w != THREADS || tested > 0);
        assert_true(k > 6); /* the number of calls */
      }
    }
  }
}

/* Only threads.c compares the calls of ranks, so the MPI program lacks these tests. */
int main(void) {
  const struct CMUnitTest tests[] = {
#if !defined(NG_TEST_MPI)
    cmocka_unit_test(threads_check_their_arguments),
    cmocka_unit_test(invalid_transports_are_refused),
    cmocka_unit_test(calls_that_differ_fail_on_all_ranks),
    cmocka_unit_test(a_rank_outside_the_group_is_refused),
#endif
    cmocka_unit_test(invalid_calls_fail_on_all_ranks),
    cmocka_unit_test(an_abort_ends_every_wait),
    cmocka_unit_test(buffers_may_be_freed_after_an_error),
    cmocka_unit_test(every_failing_call_ends_all_ranks),
  };
  return RANKS_TESTS("comm_faults", tests);
}
