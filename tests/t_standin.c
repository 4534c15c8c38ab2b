/* t_standin.c: the stand-in of a device (standin.c) runs blocks in every order, and finds threads that do not meet. */
#include "unit_test.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "desk.h"
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

/* Shared memory that no thread has written is NaN. */
static double read_first;
static void read_shared(void **args) {
  NG_SHARED double shared[THREADS];
  if (standin_thread == 0) read_first = shared[standin_block];
  shared[standin_thread] = 1.0;
}
static void shared_memory_begins_as_nan(void **state) {
  for (int i = 0; i < 2; i++) {
    assert_null(standin_run("shared", read_shared, STANDIN_FORWARD, 3, THREADS, NULL));
    assert_true(isnan(read_first));
  }
}

/* ---- the desk --------------------------------------------------------------------------------*/

static const char *fill(dv_desk *d, void *to, int64_t n) {
  int32_t value = 7;
  return dv_launch(d, "dv_fill", (n + 255) / 256, 256, (void *[]){&to, &n, &value});
}

/* Work runs at the wait: without a wait the host reads the old number. */
static void work_runs_late(void **state) {
  dv_desk *d;
  void *at;
  assert_null(dv_open(0, NULL, &d));
  assert_null(dv_alloc_host(d, 64, &at));
  const int32_t *number = at;
  assert_null(fill(d, at, 1));
  assert_int_equal(*number, -1);
  assert_null(dv_wait(d));
  assert_int_equal(*number, 7);
  dv_free_host(d, at);
  dv_close(d);
}

/* One stream writes an array that another stream copies twice, or the other way round. Without a wait between the streams, at least one
 * order gives a wrong copy, and at least one gives two different copies. With a wait or one stream, all orders are right. */
static void a_missing_event_is_found(void **state) {
  enum { WAITS, SAME_STREAM, MISSES, WAYS };
  static int handle[2];
  for (int way = 0; way < WAYS; way++) {
    for (int writes_first = 0; writes_first < 2; writes_first++) {
      int wrong = 0, mixed = 0;
      for (int turn = 0; turn < 9; turn++) {
        dv_desk *writer, *reader;
        void *at, *copy;
        assert_null(dv_open(0, &handle[0], &writer));
        assert_null(dv_open(0, &handle[way == SAME_STREAM ? 0 : 1], &reader));
        assert_null(dv_alloc_host(writer, 64, &at));
        assert_null(dv_alloc_host(reader, 64, &copy));
        if (writes_first == 1) assert_null(fill(writer, at, 1));
        for (int i = 0; i < 2 && writes_first == 0; i++) {
          assert_null(dv_copy(reader, (int32_t *)copy + i, at, 4));
        }
        if (way == WAITS) assert_null(dv_wait(writes_first == 1 ? writer : reader));
        for (int i = 0; i < 2 && writes_first == 1; i++) {
          assert_null(dv_copy(reader, (int32_t *)copy + i, at, 4));
        }
        if (writes_first == 0) assert_null(fill(writer, at, 1));
        assert_null(dv_wait(reader));
        assert_null(dv_wait(writer));
        const int32_t *copies = copy, right = writes_first == 1 ? 7 : -1;
        wrong += copies[0] != right;
        mixed += copies[0] != copies[1];
        dv_free_host(writer, at);
        dv_free_host(reader, copy);
        dv_close(writer);
        dv_close(reader);
      }
      assert_int_equal(wrong > 0, way == MISSES);
      assert_int_equal(mixed > 0, way == MISSES);
    }
  }
}

/* A kernel that writes behind an array, or into freed memory, fails by name; the next launch works. */
static void stores_out_of_bounds_are_found(void **state) {
#if defined(__SANITIZE_THREAD__)
  skip(); /* the thread sanitizer does not expect a jump out of a signal handler */
#endif
  dv_desk *d;
  void *at[2];
  assert_null(dv_open(0, NULL, &d));
  for (int i = 0; i < 2; i++) {
    assert_null(dv_alloc(d, 5000, &at[i]));
  }
  assert_null(fill(d, at[0], 1250));
  assert_null(dv_wait(d));
  dv_free(d, at[1]);
  for (int i = 0; i < 2; i++) {
    assert_null(fill(d, at[i],
                     i == 0 ? 1250 + 64 : 1)); /* arrays end at most 256 bytes before a page ends */
    const char *error = dv_wait(d);
    assert_non_null(error);
    assert_non_null(strstr(error, "dv_fill, block"));
    assert_null(fill(d, at[0], 1250));
    assert_null(dv_wait(d));
  }
  dv_free(d, at[0]);
  dv_close(d);
}

/* Memory of the device faults in the host. */
static void the_host_cannot_access_the_device(void **state) {
  dv_desk *d;
  void *at;
  assert_null(dv_open(0, NULL, &d));
  assert_null(dv_alloc(d, 4096, &at));
  const pid_t child = fork();
  if (child == 0) _exit(*(volatile char *)at == 0 ? 1 : 2);
  int status = 0;
  assert_true(child > 0 && waitpid(child, &status, 0) == child);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == STANDIN_FAULT);
  dv_free(d, at);
  dv_close(d);
}

/* The host may access managed memory; the first access after a launch counts. */
static void accesses_of_managed_memory_are_counted(void **state) {
  dv_desk *d;
  void *at;
  assert_null(dv_open(0, NULL, &d));
  assert_null(dv_alloc_managed(d, 4096, &at));
  for (int i = 1; i < 3; i++) {
    assert_null(fill(d, at, 1024));
    assert_null(dv_wait(d));
    assert_int_equal(standin_count(d).migrations, i - 1);
    for (int k = 0; k < 1024; k++) {
      assert_int_equal(((volatile int32_t *)at)[k], 7);
    }
    assert_int_equal(standin_count(d).migrations, i);
  }
  dv_free(d, at);
  dv_close(d);
}

/* A graph must not contain a wait, an allocation or a copy to the host. */
static void captures_refuse_waits(void **state) {
  dv_desk *d;
  void *at, *other;
  char host[64];
  assert_null(dv_open(0, NULL, &d));
  assert_null(dv_alloc(d, 64, &at));
  assert_null(dv_graph_begin(d));
  assert_null(fill(d, at, 1));
  assert_non_null(dv_wait(d));
  assert_non_null(dv_alloc(d, 64, &other));
  assert_non_null(dv_copy(d, host, at, sizeof host));
  assert_null(dv_graph_end(d));
  dv_free(d, at);
  dv_close(d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_order_runs_every_block),
      cmocka_unit_test(barriers_and_shuffles_synchronise),
      cmocka_unit_test(threads_that_do_not_meet_are_found),
      cmocka_unit_test(shared_memory_begins_as_nan),
      cmocka_unit_test(work_runs_late),
      cmocka_unit_test(a_missing_event_is_found),
      cmocka_unit_test(stores_out_of_bounds_are_found),
      cmocka_unit_test(the_host_cannot_access_the_device),
      cmocka_unit_test(accesses_of_managed_memory_are_counted),
      cmocka_unit_test(captures_refuse_waits),
  };
  return cmocka_run_group_tests_name("standin", tests, NULL, NULL);
}
