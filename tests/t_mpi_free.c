/* t_mpi_free.c: all ranks of a transport over MPI free its communicators, or none does, whatever comes late.
 *
 * MPI_Comm_free is counted, and messages by which ranks give up are held back: both stand between natgrad and MPI, by MPI's
 * own profiling interface.  A communicator that some free and others do not costs nothing with the MPIs at hand, and is an error
 * all the same. */
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

enum { MOST = 8, ALARM = 1 /* its tag in mpi_leave.c */, FAREWELL };

static int freed;    /* communicators of natgrad, by this process */
static long held_ms; /* how late messages of the tag `held` leave */
static int held;

int MPI_Comm_free(MPI_Comm *comm) {
  char name[MPI_MAX_OBJECT_NAME] = "";
  int length;
  if (*comm != MPI_COMM_NULL) (void)PMPI_Comm_get_name(*comm, name, &length);
  freed += strncmp(name, "natgrad", 7) == 0;
  return PMPI_Comm_free(comm);
}

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request) {
  const struct timespec late = {0, held_ms * 1000000};
  if (held_ms > 0 && tag == held) (void)nanosleep(&late, NULL);
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

static ng_status sum(const ng_transport *t, void *group, double *x) {
  const ng_collective c = {.struct_size = sizeof c,
                           .kind = NG_ALL_REDUCE,
                           .dtype = NG_F64,
                           .mem = NG_HOST,
                           .group = group,
                           .count = 1,
                           .send = x,
                           .recv = x};
  *x = 1.0;
  return t->run(t->user, &c);
}

static ng_status all_of(const ng_transport *like, ng_transport *out) {
  int list[MOST];
  for (int32_t r = 0; r < like->size; r++)
    list[r] = r;
  return ranks_group(like->size, list, out);
}

/* Leaves, and how many communicators all ranks have freed for it; `late` ranks hold their messages of this tag back. */
static ng_status leave(ng_transport *t, int tag, bool late, int each[MOST]) {
  freed = 0;
  held = tag;
  held_ms = late ? 30 : 0;
  ng_mpi_release(t);
  held_ms = 0;
  return MPI_Allgather(&freed, 1, MPI_INT, each, 1, MPI_INT, MPI_COMM_WORLD) == MPI_SUCCESS
             ? NG_OK
             : NG_ERR_COMM;
}

static ng_status the_same(const char *what, const int *each, int32_t n, int expected) {
  for (int32_t r = 0; r < n; r++) {
    if (each[r] == expected) continue;
    fprintf(stderr, "%s: rank %d freed %d communicators, expected %d\n", what, (int)r, each[r],
            expected);
    return NG_ERR_STATE;
  }
  return NG_OK;
}

/* ---- all -------------------------------------------------------------------------------------*/

/* Whoever says farewell last: both that have the transport's name. */
static ng_status one_after_the_other(int32_t rank, ng_transport *t, void *arg) {
  const int32_t two[2] = {0, 1};
  (void)arg;
  for (int32_t late = 0; late < t->size; late++) {
    ng_transport a;
    int each[MOST];
    double x;
    void *pair;
    ng_status st = all_of(t, &a);
    if (st == NG_OK) st = a.group_create(a.user, two, 2, &pair);
    if (st == NG_OK) st = sum(&a, NULL, &x);
    if (st == NG_OK && pair != NULL) st = sum(&a, pair, &x);
    if (st == NG_OK) st = leave(&a, FAREWELL, rank == late, each);
    if (st == NG_OK) st = the_same("a farewell that comes late", each, t->size, 2);
    if (st != NG_OK) return st;
  }
  return NG_OK;
}

static void all_free(void **state) {
  (void)state;
  assert_int_equal(ranks_run(ranks_there(), one_after_the_other, NULL, NULL), NG_OK);
}

/* ---- none ------------------------------------------------------------------------------------*/

/* Two ranks do not part as friends, since one has left before the other's broadcast, which waits for nobody.  They hear of it
 * from each other, and the others late: those have good farewells of both by then, and wait all the same. */
static ng_status a_broadcast_too_many(int32_t rank, ng_transport *t, void *arg) {
  const int32_t last[2] = {t->size - 2, t->size - 1};
  (void)arg;
  for (int32_t root = 0; root < 2; root++) {
    ng_transport a;
    int each[MOST];
    double x = 1.0;
    void *pair;
    ng_status st = all_of(t, &a);
    if (st == NG_OK) st = a.group_create(a.user, last, 2, &pair);
    if (st != NG_OK) return st;
    const ng_collective c = {.struct_size = sizeof c,
                             .kind = NG_BROADCAST,
                             .dtype = NG_F64,
                             .mem = NG_HOST,
                             .root = last[root],
                             .group = pair,
                             .count = 1,
                             .send = &x,
                             .recv = &x};
    if (rank == last[root]) st = a.run(a.user, &c);
    if (st == NG_ERR_COMM)
      st = NG_OK; /* it has heard the other's farewell before its message had left */
    if (st == NG_OK) st = leave(&a, ALARM, rank >= last[0], each);
    if (st == NG_OK) st = the_same("a broadcast too many", each, t->size, 0);
    if (st != NG_OK) return st;
  }
  return NG_OK;
}

static void heard_late(void **state) {
  (void)state;
  if (ranks_there() == 2) skip(); /* each of two hears of it from the other's number */
  assert_int_equal(ranks_run(ranks_there(), a_broadcast_too_many, NULL, NULL), NG_OK);
}

/* One gives up on two transports; each rank hears of it as it leaves them, in an order of its own: some are in one
 * while others are in the other, and nobody waits for ever. */
static ng_status any_order(int32_t rank, ng_transport *t, void *arg) {
  (void)arg;
  for (int32_t k = 0; k < 2 * t->size; k++) {
    ng_transport a[2];
    int each[MOST];
    ng_status st = all_of(t, &a[0]);
    if (st == NG_OK) st = all_of(t, &a[1]);
    if (st != NG_OK) return st;
    freed = 0;
    held = ALARM;
    held_ms = 10;
    for (int i = 0; i < 2 && rank == k / 2; i++)
      a[i].abort(a[i].user);
    held_ms = 0;
    const int first = (rank + k) % 2;
    ng_mpi_release(&a[first]);
    ng_mpi_release(&a[1 - first]);
    if (MPI_Allgather(&freed, 1, MPI_INT, each, 1, MPI_INT, MPI_COMM_WORLD) != MPI_SUCCESS)
      return NG_ERR_COMM;
    st = the_same("in an order of its own", each, t->size, 0);
    if (st != NG_OK) return st;
  }
  return NG_OK;
}

static void in_any_order(void **state) {
  (void)state;
  assert_int_equal(ranks_run(ranks_there(), any_order, NULL, NULL), NG_OK);
}

int main(void) {
  ranks_begin();
  const struct CMUnitTest tests[] = {cmocka_unit_test(all_free), cmocka_unit_test(heard_late),
                                     cmocka_unit_test(in_any_order)};
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  ranks_end();
  return failed;
}
