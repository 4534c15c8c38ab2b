/* t_mpi_leave.c: ranks that leave a transport over MPI: before others are done, while one gives up.
 *
 * Nobody hangs (ranks.c has the watchdog), who waits for a rank that has left is told, and whatever happened, the next
 * transport of the same ranks works. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "natgrad.h"
#include "natgrad_mpi.h"
#include "ranks.h"

enum { MOST = 8, CALLS = 6, LARGE = 5000, TIMES = 200 };

/* x becomes the sum over `group`, NULL for all, of one number a rank, `count` times. */
static ng_status sum(const ng_transport *t, void *group, double *x, int64_t count) {
  const ng_collective c = {.struct_size = sizeof c,
                           .kind = NG_ALL_REDUCE,
                           .dtype = NG_F64,
                           .mem = NG_HOST,
                           .group = group,
                           .count = count,
                           .send = x,
                           .recv = x};
  for (int64_t i = 0; i < count; i++)
    x[i] = t->rank + 1;
  return t->run(t->user, &c);
}

static double of_all(const ng_transport *t) { return t->size * (t->size + 1) / 2.0; }

static void nap(long ms) {
  const struct timespec some = {0, ms * 1000000};
  (void)nanosleep(&some, NULL);
}

/* Messages of collectives come late: those that are complete are told so only after so many questions. */
static int64_t late_by;

int MPI_Test(MPI_Request *request, int *done, MPI_Status *status) {
  *done = 0;
  if (late_by > 0 && late_by-- % 16 != 0) return MPI_SUCCESS;
  if (late_by > 0) nap(1);
  return late_by > 0 ? MPI_SUCCESS : PMPI_Test(request, done, status);
}

/* ---- before others are done ------------------------------------------------------------------*/

typedef struct early {
  int32_t who, calls; /* it leaves after so many calls */
  bool wrong[MOST];
} early;

/* Sums in one collective and in two, over all and over a group; groups are calls, too. */
static ng_status call(const ng_transport *t, int32_t k, void **pair, bool *wrong) {
  static double x[LARGE];
  const int32_t two[2] = {0, 1}, ends[2] = {0, t->size - 1};
  const int64_t n = k == 4 ? LARGE : 3;
  void *more = NULL;
  if (k == 1) return t->group_create(t->user, two, 2, pair);
  if (k == 3) return t->group_create(t->user, ends, 2, &more);
  if (k == 2 && *pair == NULL) return NG_OK;
  const ng_status st = sum(t, k == 2 ? *pair : NULL, x, n);
  const double right = k == 2 ? 3.0 : of_all(t);
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
    st = call(t, k, &pair, &x->wrong[rank]);
  }
  return st;
}

static void before_others(void **state) {
  (void)state;
  const int32_t W = ranks_there();
  for (int32_t who = 0; who < W; who++) {
    for (int32_t calls = 0; calls <= CALLS; calls++) {
      early x = {.who = who, .calls = calls};
      ng_status each[MOST];
      (void)ranks_run(W, leave_early, &x, each);
      for (int32_t r = 0; r < W; r++) {
        assert_false(x.wrong[r]);
        const bool told = calls < CALLS && r != who;
        if (each[r] != (told ? NG_ERR_COMM : NG_OK))
          fail_msg("rank %d left after %d calls: rank %d has %d", who, calls, r, (int)each[r]);
      }
    }
  }
}

/* ---- while one gives up ----------------------------------------------------------------------*/

/* All are done with it but the last, which gives up late; then others make something new without it. */
static ng_status give_up_late(int32_t rank, ng_transport *t, void *arg) {
  (void)arg;
  const int32_t W = t->size;
  int list[MOST];
  for (int32_t r = 0; r < W; r++)
    list[r] = r;
  for (int k = 0; k < TIMES / 4; k++) {
    ng_transport a, b = {.struct_size = 0};
    double x = 0.0;
    ng_status st = ranks_group(W, list, &a);
    if (st == NG_OK) st = sum(&a, NULL, &x, 1);
    if (st == NG_OK && x != of_all(t)) st = NG_ERR_STATE;
    if (st != NG_OK) return st;
    /* All have the sum: who still waited for it would be told. */
    st = sum(t, NULL, &x, 1);
    if (st != NG_OK) return st;
    if (rank == W - 1) {
      nap(5);
      a.abort(a.user);
    }
    ng_mpi_release(&a);
    if (rank == W - 1) continue;
    st = ranks_group(W - 1, list, &b);
    if (st == NG_OK) st = sum(&b, NULL, &x, 1);
    ng_mpi_release(&b);
    if (st != NG_OK || x != of_all(t) - W) return NG_ERR_STATE;
  }
  return NG_OK;
}

static void while_one_gives_up(void **state) {
  (void)state;
  assert_int_equal(ranks_run(ranks_there(), give_up_late, NULL, NULL), NG_OK);
}

/* A request that was never waited for: the others do not wait for what its rank would have to go on with. */
static ng_status left_under_way(int32_t rank, ng_transport *t, void *arg) {
  static double x[2 * LARGE];
  (void)arg;
  ng_collective c = {.struct_size = sizeof c,
                     .kind = NG_ALL_REDUCE,
                     .dtype = NG_F64,
                     .mem = NG_HOST,
                     .count = LARGE,
                     .send = x,
                     .recv = x};
  void *request;
  ng_status st = t->start(t->user, &c, &request);
  if (st != NG_OK || rank == 0) return st;
  st = t->wait(t->user, request);
  c.send = c.recv = x + LARGE;
  return st == NG_OK ? t->run(t->user, &c) : st;
}

static void with_requests(void **state) {
  (void)state;
  ng_status each[MOST];
  (void)ranks_run(ranks_there(), left_under_way, NULL, each);
  for (int32_t r = 0; r < ranks_there(); r++)
    assert_int_equal(each[r], r == 0 ? NG_OK : NG_ERR_COMM);
}

/* Rank 1 leaves before a broadcast of rank 0, which waits for nobody: those two part as if one had given up, and no
 * other rank frees what they still have. */
static ng_status leave_broadcast(int32_t rank, ng_transport *t, void *arg) {
  const int32_t two[2] = {0, 1};
  int list[MOST];
  (void)arg;
  for (int32_t r = 0; r < t->size; r++)
    list[r] = r;
  for (int k = 0; k < TIMES / 4; k++) {
    ng_transport a, b = {.struct_size = 0};
    const double of_rest = (t->size - 2) * (t->size - 1) / 2.0;
    double x[3] = {1.0, 2.0, 3.0};
    void *pair;
    ng_status st = ranks_group(t->size, list, &a);
    if (st == NG_OK) st = a.group_create(a.user, two, 2, &pair);
    if (st != NG_OK) return st;
    const ng_collective c = {.struct_size = sizeof c,
                             .kind = NG_BROADCAST,
                             .dtype = NG_F64,
                             .mem = NG_HOST,
                             .group = pair,
                             .count = 3,
                             .send = x,
                             .recv = x};
    if (rank == 0) st = a.run(a.user, &c);
    ng_mpi_release(&a);
    if (rank < 2) continue;
    st = ranks_group(t->size - 2, list + 2, &b);
    if (st == NG_OK) st = sum(&b, NULL, x, 1);
    ng_mpi_release(&b);
    if (st != NG_OK || x[0] != of_rest) return NG_ERR_STATE;
  }
  return NG_OK;
}

static void before_a_broadcast(void **state) {
  (void)state;
  assert_int_equal(ranks_run(ranks_there(), leave_broadcast, NULL, NULL), NG_OK);
}

/* The last rank leaves at once; the others hear of it while they wait for each other, and then call all. */
static ng_status heard_between(int32_t rank, ng_transport *t, void *arg) {
  int32_t rest[MOST];
  const int32_t n = t->size - 1;
  double x;
  void *group;
  (void)arg;
  for (int32_t r = 0; r < n; r++)
    rest[r] = r;
  ng_status st = t->group_create(t->user, rest, n, &group);
  if (st != NG_OK || rank == n) return st;
  for (int32_t late = 0; late < 2 && st == NG_OK; late++) {
    if (rank == late) nap(100);
    st = sum(t, group, &x, 1);
    if (st == NG_OK && x != n * (n + 1) / 2.0) st = NG_ERR_STATE;
  }
  return st == NG_OK ? sum(t, NULL, &x, 1) : st;
}

static void heard_before(void **state) {
  (void)state;
  ng_status each[MOST];
  const int32_t W = ranks_there();
  if (W == 2) skip();
  (void)ranks_run(W, heard_between, NULL, each);
  for (int32_t r = 0; r < W; r++)
    assert_int_equal(each[r], r == W - 1 ? NG_OK : NG_ERR_COMM);
}

/* One has its sum and gives up, as a program does that ends with what all agreed upon; the others have theirs, too, however
 * late it comes, and are told at the next one.  Of a broadcast the root has all at once. */
typedef struct agreed {
  int32_t who;
  ng_coll_kind kind;
} agreed;

static ng_status give_up_agreed(int32_t rank, ng_transport *t, void *arg) {
  const agreed *a = arg;
  double x = rank == a->who ? 7.0 : 1.0;
  const ng_collective c = {.struct_size = sizeof c,
                           .kind = a->kind,
                           .dtype = NG_F64,
                           .mem = NG_HOST,
                           .root = a->who,
                           .count = 1,
                           .send = &x,
                           .recv = &x};
  const double right = a->kind == NG_BROADCAST ? 7.0 : t->size + 6.0;
  if (rank != a->who) late_by = 16 * 100;
  ng_status st = t->run(t->user, &c);
  late_by = 0;
  if (st != NG_OK || x != right) return NG_ERR_STATE;
  if (rank == a->who) t->abort(t->user);
  return sum(t, NULL, &x, 1);
}

static void after_an_agreement(void **state) {
  (void)state;
  const int32_t W = ranks_there();
  for (int32_t who = 0; who < 2 * W; who++) {
    agreed a = {.who = who / 2, .kind = who % 2 == 0 ? NG_ALL_REDUCE : NG_BROADCAST};
    ng_status each[MOST];
    (void)ranks_run(W, give_up_agreed, &a, each);
    for (int32_t r = 0; r < W; r++) {
      if (each[r] != NG_ERR_COMM)
        fail_msg("rank %d gave up after %s: rank %d has %d", who / 2,
                 a.kind == NG_BROADCAST ? "its broadcast" : "the sum", r, (int)each[r]);
    }
  }
}

/* ---- groups ----------------------------------------------------------------------------------*/

/* The same ranks again are the same group, and cost no communicator. */
static ng_status again(int32_t rank, ng_transport *t, void *arg) {
  const int32_t two[2] = {0, 1};
  void *first = NULL, *g;
  (void)arg;
  for (int k = 0; k < TIMES * 50; k++) {
    double x = 0.0;
    ng_status st = t->group_create(t->user, two, 2, &g);
    if (st != NG_OK) return st;
    if ((g != NULL) != (rank < 2) || (k > 0 && g != first)) return NG_ERR_STATE;
    first = g;
    if (g != NULL && k % 50 == 0) {
      st = sum(t, g, &x, 1);
      if (st != NG_OK || x != 3.0) return NG_ERR_STATE;
    }
    if (g != NULL) t->group_destroy(t->user, g);
  }
  return NG_OK;
}

static void same_group(void **state) {
  (void)state;
  assert_int_equal(ranks_run(ranks_there(), again, NULL, NULL), NG_OK);
}

int main(void) {
  ranks_begin();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(before_others),      cmocka_unit_test(while_one_gives_up),
      cmocka_unit_test(with_requests),      cmocka_unit_test(same_group),
      cmocka_unit_test(before_a_broadcast), cmocka_unit_test(heard_before),
      cmocka_unit_test(after_an_agreement),
  };
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  ranks_end();
  return failed;
}
