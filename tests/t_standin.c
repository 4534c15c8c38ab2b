/* t_standin.c: the stand-in of a device (standin.c) runs blocks in every order, and finds threads that do not meet. */
#include "unit_test.h"

#include <string.h>

#include "standin.h"

enum { THREADS = 64, BLOCKS = 13 };
static int32_t ran[BLOCKS], last;
static double values[THREADS];

static void count_block(void **args) {
  if (standin_thread != 0) return;
  ran[standin_block]++;
  last = (int32_t)standin_block;
}

/* Every block runs once, and the last block depends on the order. */
static void every_order_runs_every_block(void **state) {
  int32_t ends[STANDIN_ORDERS];
  for (int order = 0; order < STANDIN_ORDERS; order++) {
    memset(ran, 0, sizeof ran);
    assert_null(standin_run("count", count_block, (standin_order)order, BLOCKS, THREADS, NULL));
    for (int i = 0; i < BLOCKS; i++) {
      assert_int_equal(ran[i], 1);
    }
    ends[order] = last;
  }
  assert_int_equal(ends[STANDIN_FORWARD], BLOCKS - 1);
  assert_int_equal(ends[STANDIN_BACKWARD], 0);
}

/* Each thread reads the value that its neighbour wrote: without the barrier thread 0 reads 0. */
static void read_neighbour(void **args) {
  const int32_t me = standin_thread;
  values[me] = me + 1.0;
  standin_barrier();
  const double next = values[(me + 1) % THREADS];
  standin_barrier();
  values[me] = next;
}
static void add_lanes(void **args) {
  const int32_t me = standin_thread;
  values[me] = (double)me + standin_shuffle_down((double)me, 16);
}
static void barriers_and_shuffles_synchronise(void **state) {
  assert_null(standin_run("neighbour", read_neighbour, STANDIN_FORWARD, 2, THREADS, NULL));
  for (int i = 0; i < THREADS; i++) {
    assert_true(values[i] == (i + 1) % THREADS + 1.0);
  }
  assert_null(standin_run("lanes", add_lanes, STANDIN_FORWARD, 1, THREADS, NULL));
  for (int i = 0; i < THREADS; i++) {
    assert_true(values[i] == (i % 32 < 16 ? 2.0 * i + 16.0 : 2.0 * i));
  }
}

/* Kernels whose threads do not all reach a barrier or a shuffle.  They fail by name; the next launch works. */
static void leave_before_barrier(void **args) {
  if (standin_thread != 5) standin_barrier();
}
static void leave_before_shuffle(void **args) {
  if (standin_thread != 5) (void)standin_shuffle_down(1.0, 1);
}
static void wait_at_two_places(void **args) {
  if (standin_thread < 5) {
    standin_barrier();
  } else {
    (void)standin_shuffle_down(1.0, 1);
  }
}
static void threads_that_do_not_meet_are_found(void **state) {
  static void (*const wrong[])(void **) = {leave_before_barrier, leave_before_shuffle,
                                           wait_at_two_places};
  for (int i = 0; i < 3; i++) {
    const char *error = standin_run("wrong", wrong[i], STANDIN_FORWARD, 2, THREADS, NULL);
    assert_non_null(error);
    assert_non_null(strstr(error, "wrong, block 0"));
    assert_null(standin_run("count", count_block, STANDIN_FORWARD, 1, THREADS, NULL));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_order_runs_every_block),
      cmocka_unit_test(barriers_and_shuffles_synchronise),
      cmocka_unit_test(threads_that_do_not_meet_are_found),
  };
  return cmocka_run_group_tests_name("standin", tests, NULL, NULL);
}
