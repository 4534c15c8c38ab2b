/* t_mpi_leave.c: ranks that leave an MPI transport before other ranks are done, or after a rank aborts.
 *
 * No rank hangs (ranks.c has the watchdog).  A rank that waits for a rank that has left gets an error, and the
 * next transport of the same ranks works.  Either all ranks of a transport free its communicators or none does,
 * whatever message is late.
 *
 * MPI's profiling interface counts MPI_Comm_free and delays messages.  If only some ranks free a communicator, the
 * installed MPIs do not fail, but it is an error. */
#include "unit_test.h"

#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "draw.h"
#include "natgrad.h"
#include "natgrad_mpi.h"
#include "ranks.h"

enum {
  MOST = 8,
  CALLS = 6,
  LARGE = 5000,
  TIMES = 200,
  ALARM = 1 /* tag of the alarm in mpi_leave.c */,
  FAREWELL
};

static ng_collective make_collective(ng_coll_kind kind, int32_t root, void *group, double *x,
                                     int64_t count) {
  return (ng_collective){.struct_size = sizeof(ng_collective),
                         .kind = kind,
                         .dtype = NG_F64,
                         .mem = NG_HOST,
                         .root = root,
                         .group = group,
                         .count = count,
                         .send = x,
                         .recv = x};
}

/* Set x[0] to x[count-1] to the sum of rank + 1 over `group`; NULL: all ranks. */
static ng_status sum_rank_numbers(const ng_transport *t, void *group, double *x, int64_t count) {
  const ng_collective c = make_collective(NG_ALL_REDUCE, 0, group, x, count);
  for (int64_t i = 0; i < count; i++)
    x[i] = t->rank + 1;
  return t->run(t->user, &c);
}

/* A transport of the first n ranks. */
static ng_status create_transport(int32_t n, ng_transport *out) {
  int list[MOST];
  for (int32_t r = 0; r < n; r++)
    list[r] = r;
  return ranks_make_group(n, list, out);
}

static double expected_sum(const ng_transport *t) { return t->size * (t->size + 1) / 2.0; }

static void sleep_ms(long ms) {
  const struct timespec some = {0, ms * 1000000};
  (void)nanosleep(&some, NULL);
}

/* Report a complete message only after `late_by` further calls. */
static int64_t late_by;

int MPI_Test(MPI_Request *request, int *done, MPI_Status *status) {
  *done = 0;
  if (late_by > 0 && late_by-- % 16 != 0) return MPI_SUCCESS;
  if (late_by > 0) sleep_ms(1);
  return late_by > 0 ? MPI_SUCCESS : PMPI_Test(request, done, status);
}

static int freed_comms; /* communicators of natgrad that this process freed */
static long delay_ms;   /* delay before messages of the tag delayed_tag */
static int delayed_tag;

int MPI_Comm_free(MPI_Comm *comm) {
  char name[MPI_MAX_OBJECT_NAME] = "";
  int length;
  if (*comm != MPI_COMM_NULL) (void)PMPI_Comm_get_name(*comm, name, &length);
  freed_comms += strncmp(name, "natgrad", 7) == 0;
  return PMPI_Comm_free(comm);
}

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request) {
  if (delay_ms > 0 && tag == delayed_tag) sleep_ms(delay_ms);
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

/* ---- before other ranks are done -------------------------------------------------------------*/

typedef struct early {
  int32_t who, calls; /* rank `who` leaves after this number of calls */
  bool wrong[MOST];
} early;

/* Call k: sums over all ranks, short and long, and over a group; creation of groups. */
static ng_status perform_call(const ng_transport *t, int32_t k, void **pair, bool *wrong) {
  static double x[LARGE];
  const int32_t two[2] = {0, 1}, ends[2] = {0, t->size - 1};
  const int64_t n = k == 4 ? LARGE : 3;
  void *more = NULL;
  if (k == 1) return t->group_create(t->user, two, 2, pair);
  if (k == 3) return t->group_create(t->user, ends, 2, &more);
  if (k == 2 && *pair == NULL) return NG_OK;
  const ng_status st = sum_rank_numbers(t, k == 2 ? *pair : NULL, x, n);
  const double right = k == 2 ? 3.0 : expected_sum(t);
  for (int64_t i = 0; i < n && st == NG_OK; i++)
    *wrong = *wrong || x[i] != right;
  return st;
}

static ng_status leave_early(int32_t rank, ng_transport *t, void *arg) {
  early *x = arg;
  void *pair = NULL;
  ng_status st = NG_OK;
  for (int32_t k = 0; k < CALLS && st == NG_OK; k++) {
    if (rank == x->who && k == x->calls) break;
    st = perform_call(t, k, &pair, &x->wrong[rank]);
  }
  return st;
}

static void a_rank_that_leaves_early_fails_the_others(void **state) {
  const int32_t W = ranks_process_count();
  for (int32_t who = 0; who < W; who++) {
    for (int32_t calls = 0; calls <= CALLS; calls++) {
      early x = {.who = who, .calls = calls};
      ng_status each[MOST];
      (void)ranks_run(W, leave_early, &x, each);
      for (int32_t r = 0; r < W; r++) {
        assert_false(x.wrong[r]);
        const bool told = calls < CALLS && r != who;
        if (each[r] != (told ? NG_ERR_COMM : NG_OK))
          fail_msg("rank %d left after %d calls: rank %d returned %d", who, calls, r, (int)each[r]);
      }
    }
  }
}

/* ---- random calls ----------------------------------------------------------------------------*/

typedef struct random_calls {
  uint64_t seed;
  int32_t who, at; /* rank `who` aborts or leaves before call `at` */
  bool wrong[MOST];
} random_calls;

/* Sums over all ranks or two, short and long, at once or later; the last sum is over all ranks. */
static ng_status make_random_calls(int32_t rank, ng_transport *t, void *arg) {
  random_calls *x = arg;
  static double sum[CALLS + 1][LARGE];
  const int32_t ends[2] = {0, t->size - 1};
  rng r = {x->seed};
  void *pair = NULL, *request[CALLS + 1] = {NULL};
  ng_collective c[CALLS + 1];
  double right[CALLS + 1];
  int64_t n[CALLS + 1] = {0};
  ng_status st = t->group_create(t->user, ends, 2, &pair);
  for (int32_t k = 0; k <= CALLS && st == NG_OK; k++) {
    const bool of_pair = k < CALLS && rng_below(&r, 3) == 0, later = rng_below(&r, 2) != 0;
    const int64_t count = rng_below(&r, 3) == 0 ? rng_between(&r, 1, LARGE) : rng_between(&r, 1, 9);
    const bool fails = rng_below(&r, 2) != 0;
    if (rank == x->who && k == x->at) return fails ? NG_ERR_ARG : NG_OK;
    if (of_pair && pair == NULL) continue;
    n[k] = count;
    right[k] = of_pair ? t->size + 1.0 : expected_sum(t);
    for (int64_t i = 0; i < count; i++)
      sum[k][i] = rank + 1;
    c[k] = make_collective(NG_ALL_REDUCE, 0, of_pair ? pair : NULL, sum[k], count);
    st = later ? t->start(t->user, &c[k], &request[k]) : t->run(t->user, &c[k]);
  }
  for (int32_t k = 0; k <= CALLS && st == NG_OK; k++) {
    if (request[k] != NULL) st = t->wait(t->user, request[k]);
    for (int64_t i = 0; i < n[k] && st == NG_OK; i++)
      x->wrong[rank] = x->wrong[rank] || sum[k][i] != right[k];
  }
  return st;
}

static void random_faults_end_all_ranks(void **state) {
  rng r = {test_seed()};
  const int64_t tries = test_repetitions(60);
  for (int64_t k = 0; k < tries; k++) {
    const int32_t W = (int32_t)rng_between(&r, 2, ranks_process_count());
    random_calls x = {.seed = rng_next(&r),
                      .who = (int32_t)rng_below(&r, W),
                      .at = (int32_t)rng_below(&r, 2 * CALLS)};
    ng_status each[MOST];
    (void)ranks_run(W, make_random_calls, &x, each);
    for (int32_t q = 0; q < W; q++) {
      assert_false(x.wrong[q]);
      if (q != x.who && each[q] != (x.at <= CALLS ? NG_ERR_COMM : NG_OK))
        fail_msg("try %d: rank %d stopped before call %d: rank %d of %d returned %d", (int)k, x.who,
                 x.at, q, W, (int)each[q]);
    }
  }
}

/* ---- after a rank aborts ---------------------------------------------------------------------*/

/* All ranks complete a sum; the last rank aborts late.  The other ranks then make a new transport without it. */
static ng_status abort_late(int32_t rank, ng_transport *t, void *arg) {
  const int32_t W = t->size;
  for (int k = 0; k < TIMES / 4; k++) {
    ng_transport a, b = {.struct_size = 0};
    double x = 0.0;
    ng_status st = create_transport(W, &a);
    if (st == NG_OK) st = sum_rank_numbers(&a, NULL, &x, 1);
    if (st == NG_OK && x != expected_sum(t)) st = NG_ERR_STATE;
    if (st != NG_OK) return st;
    /* after this sum no rank waits in a collective of `a` */
    st = sum_rank_numbers(t, NULL, &x, 1);
    if (st != NG_OK) return st;
    if (rank == W - 1) {
      sleep_ms(5);
      a.abort(a.user);
    }
    ng_mpi_release(&a);
    if (rank == W - 1) continue;
    st = create_transport(W - 1, &b);
    if (st == NG_OK) st = sum_rank_numbers(&b, NULL, &x, 1);
    ng_mpi_release(&b);
    if (st != NG_OK || x != expected_sum(t) - W) return NG_ERR_STATE;
  }
  return NG_OK;
}

/* Rank 0 leaves without waiting for its request.  The other ranks do not wait for the rest of its message. */
static ng_status leave_with_request(int32_t rank, ng_transport *t, void *arg) {
  static double x[2 * LARGE];
  ng_collective c = make_collective(NG_ALL_REDUCE, 0, NULL, x, LARGE);
  void *request;
  ng_status st = t->start(t->user, &c, &request);
  if (st != NG_OK || rank == 0) return st;
  st = t->wait(t->user, request);
  c.send = c.recv = x + LARGE;
  return st == NG_OK ? t->run(t->user, &c) : st;
}

static void ranks_may_leave_with_a_pending_request(void **state) {
  ng_status each[MOST];
  (void)ranks_run(ranks_process_count(), leave_with_request, NULL, each);
  for (int32_t r = 0; r < ranks_process_count(); r++)
    assert_int_equal(each[r], r == 0 ? NG_OK : NG_ERR_COMM);
}

/* The last rank leaves at once.  The other ranks get the error while they wait for each other, and then sum over all
 * ranks. */
static ng_status sum_while_one_rank_leaves(int32_t rank, ng_transport *t, void *arg) {
  int32_t rest[MOST];
  const int32_t n = t->size - 1;
  double x;
  void *group;
  for (int32_t r = 0; r < n; r++)
    rest[r] = r;
  ng_status st = t->group_create(t->user, rest, n, &group);
  if (st != NG_OK || rank == n) return st;
  for (int32_t late = 0; late < 2 && st == NG_OK; late++) {
    if (rank == late) sleep_ms(100);
    st = sum_rank_numbers(t, group, &x, 1);
    if (st == NG_OK && x != n * (n + 1) / 2.0) st = NG_ERR_STATE;
  }
  return st == NG_OK ? sum_rank_numbers(t, NULL, &x, 1) : st;
}

static void ranks_learn_of_a_leave_while_they_wait(void **state) {
  ng_status each[MOST];
  const int32_t W = ranks_process_count();
  if (W == 2) skip();
  (void)ranks_run(W, sum_while_one_rank_leaves, NULL, each);
  for (int32_t r = 0; r < W; r++)
    assert_int_equal(each[r], r == W - 1 ? NG_OK : NG_ERR_COMM);
}

/* One rank has its sum and aborts, like a program that ends after an agreed decision.  The other ranks get the
 * sum, too, however late it is, and an error at the next collective.  The root of a broadcast is done at once. */
typedef struct agreed {
  int32_t who;
  ng_coll_kind kind;
} agreed;

static ng_status abort_after_agreement(int32_t rank, ng_transport *t, void *arg) {
  const agreed *a = arg;
  double x = rank == a->who ? 7.0 : 1.0;
  const ng_collective c = make_collective(a->kind, a->who, NULL, &x, 1);
  const double right = a->kind == NG_BROADCAST ? 7.0 : t->size + 6.0;
  if (rank != a->who) late_by = 16 * 100;
  ng_status st = t->run(t->user, &c);
  late_by = 0;
  if (st != NG_OK || x != right) return NG_ERR_STATE;
  if (rank == a->who) t->abort(t->user);
  return sum_rank_numbers(t, NULL, &x, 1);
}

static void an_abort_after_agreement_loses_no_result(void **state) {
  const int32_t W = ranks_process_count();
  for (int32_t who = 0; who < 2 * W; who++) {
    agreed a = {.who = who / 2, .kind = who % 2 == 0 ? NG_ALL_REDUCE : NG_BROADCAST};
    ng_status each[MOST];
    (void)ranks_run(W, abort_after_agreement, &a, each);
    for (int32_t r = 0; r < W; r++) {
      if (each[r] != NG_ERR_COMM)
        fail_msg("rank %d aborted after %s: rank %d returned %d", who / 2,
                 a.kind == NG_BROADCAST ? "its broadcast" : "the sum", r, (int)each[r]);
    }
  }
}

/* ---- groups ----------------------------------------------------------------------------------*/

/* The same ranks form the same group and need no further communicator. */
static ng_status create_same_group_again(int32_t rank, ng_transport *t, void *arg) {
  const int32_t two[2] = {0, 1};
  void *first = NULL, *g;
  for (int k = 0; k < TIMES * 50; k++) {
    double x = 0.0;
    ng_status st = t->group_create(t->user, two, 2, &g);
    if (st != NG_OK) return st;
    if ((g != NULL) != (rank < 2) || (k > 0 && g != first)) return NG_ERR_STATE;
    first = g;
    if (g != NULL && k % 50 == 0) {
      st = sum_rank_numbers(t, g, &x, 1);
      if (st != NG_OK || x != 3.0) return NG_ERR_STATE;
    }
    if (g != NULL) t->group_destroy(t->user, g);
  }
  return NG_OK;
}

/* Leave t, and gather how many communicators each rank freed; a `late` rank delays its messages of this tag. */
static ng_status leave_and_count_freed(ng_transport *t, int tag, bool late, int each[MOST]) {
  freed_comms = 0;
  delayed_tag = tag;
  delay_ms = late ? 30 : 0;
  ng_mpi_release(t);
  delay_ms = 0;
  return MPI_Allgather(&freed_comms, 1, MPI_INT, each, 1, MPI_INT, MPI_COMM_WORLD) == MPI_SUCCESS
             ? NG_OK
             : NG_ERR_COMM;
}

static ng_status expect_freed(const char *what, const int *each, int32_t n, int expected) {
  for (int32_t r = 0; r < n; r++) {
    if (each[r] == expected) continue;
    fprintf(stderr, "%s: rank %d freed %d communicators, expected %d\n", what, (int)r, each[r],
            expected);
    return NG_ERR_STATE;
  }
  return NG_OK;
}

/* ---- communicators: all are freed ------------------------------------------------------------*/

/* Each rank in turn sends its farewell last; both communicators of the transport are freed. */
static ng_status leave_one_by_one(int32_t rank, ng_transport *t, void *arg) {
  const int32_t two[2] = {0, 1};
  for (int32_t late = 0; late < t->size; late++) {
    ng_transport a;
    int each[MOST];
    double x;
    void *pair;
    ng_status st = create_transport(t->size, &a);
    if (st == NG_OK) st = a.group_create(a.user, two, 2, &pair);
    if (st == NG_OK) st = sum_rank_numbers(&a, NULL, &x, 1);
    if (st == NG_OK && pair != NULL) st = sum_rank_numbers(&a, pair, &x, 1);
    if (st == NG_OK) st = leave_and_count_freed(&a, FAREWELL, rank == late, each);
    if (st == NG_OK) st = expect_freed("a farewell that comes late", each, t->size, 2);
    if (st != NG_OK) return st;
  }
  return NG_OK;
}

/* ---- communicators: none is freed ------------------------------------------------------------*/

/* One of two ranks leaves before the other rank's broadcast, which waits for no rank.  Both then leave as after an
 * abort, and each sends the error to all ranks.  The remaining ranks already have regular farewells of both ranks,
 * but wait for the error. */
static ng_status leave_before_a_broadcast(int32_t rank, ng_transport *t, void *arg) {
  const int32_t last[2] = {t->size - 2, t->size - 1};
  for (int32_t k = 0; k < TIMES / 10; k++) {
    const int32_t root = k % 2;
    ng_transport a;
    int each[MOST];
    double x = 1.0;
    void *pair;
    ng_status st = create_transport(t->size, &a);
    if (st == NG_OK) st = a.group_create(a.user, last, 2, &pair);
    if (st != NG_OK) return st;
    const ng_collective c = make_collective(NG_BROADCAST, last[root], pair, &x, 1);
    if (rank == last[root]) st = a.run(a.user, &c);
    if (st == NG_ERR_COMM) st = NG_OK; /* the other rank's farewell came first */
    if (st == NG_OK) st = leave_and_count_freed(&a, ALARM, rank >= last[0], each);
    /* with two ranks, each finds the failure in the number of the other rank's farewell */
    if (st == NG_OK && t->size > 2) st = expect_freed("a broadcast too many", each, t->size, 0);
    if (st != NG_OK) return st;
    if (rank >= last[0]) continue;
    ng_transport b = {.struct_size = 0};
    st = create_transport(t->size - 2, &b);
    if (st == NG_OK) st = sum_rank_numbers(&b, NULL, &x, 1);
    ng_mpi_release(&b);
    if (st != NG_OK || x != last[0] * (last[0] + 1) / 2.0) return NG_ERR_STATE;
  }
  return NG_OK;
}

/* One rank aborts two transports.  The other ranks leave them in different orders, so some are in the first while
 * others are in the second.  No rank waits for ever. */
static ng_status leave_in_any_order(int32_t rank, ng_transport *t, void *arg) {
  for (int32_t k = 0; k < 2 * t->size; k++) {
    ng_transport a[2];
    int each[MOST];
    ng_status st = create_transport(t->size, &a[0]);
    if (st == NG_OK) st = create_transport(t->size, &a[1]);
    if (st != NG_OK) return st;
    freed_comms = 0;
    delayed_tag = ALARM;
    delay_ms = 10;
    for (int i = 0; i < 2 && rank == k / 2; i++)
      a[i].abort(a[i].user);
    delay_ms = 0;
    const int first = (rank + k) % 2;
    ng_mpi_release(&a[first]);
    ng_mpi_release(&a[1 - first]);
    if (MPI_Allgather(&freed_comms, 1, MPI_INT, each, 1, MPI_INT, MPI_COMM_WORLD) != MPI_SUCCESS)
      return NG_ERR_COMM;
    st = expect_freed("in an order of its own", each, t->size, 0);
    if (st != NG_OK) return st;
  }
  return NG_OK;
}

/* Cases in which every rank returns NG_OK. */
static const rank_fn good[] = {abort_late, create_same_group_again, leave_one_by_one,
                               leave_before_a_broadcast, leave_in_any_order};

static void all_ranks_succeed(void **state) {
  assert_int_equal(ranks_run(ranks_process_count(), *(const rank_fn *)*state, NULL, NULL), NG_OK);
}

#define GOOD(name, i)                                                                              \
  { name, all_ranks_succeed, NULL, NULL, (void *)(uintptr_t)&good[i] }

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_rank_that_leaves_early_fails_the_others),
      cmocka_unit_test(random_faults_end_all_ranks),
      GOOD("leaving while another rank aborts", 0),
      cmocka_unit_test(ranks_may_leave_with_a_pending_request),
      GOOD("the same ranks are the same group", 1),
      cmocka_unit_test(ranks_learn_of_a_leave_while_they_wait),
      cmocka_unit_test(an_abort_after_agreement_loses_no_result),
      GOOD("communicators are freed by all ranks", 2),
      GOOD("ranks learn of a leave after a broadcast", 3),
      GOOD("two transports are left in any order", 4),
  };
  return RANKS_TESTS("mpi_leave", tests);
}
