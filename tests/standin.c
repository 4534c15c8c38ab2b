/* standin.c: a device for tests: the host runs the kernels of cuda/kernels.cu. standin_desk.c has the operations of cuda/desk.h.
 *
 * The threads of a block are fibers of one thread of the host. A thread runs until a barrier or a shuffle, or to its
 * end; the fiber of a thread that has ended starts the next thread of the warp. A warp goes on when all its 32 threads
 * are at a shuffle, a block when all its threads are at a barrier. If a thread ends, or waits elsewhere, while others
 * wait for it, the launch fails with a text that names the kernel. One launch runs its blocks forward, the next
 * backward, the next in a random order. Shared memory is NaN at the begin of a block. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "standin.h"

#include "kernels.cu"

#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

enum { MOST_THREADS = 1024, WARP = 32, STACK = 64 << 10 };

typedef enum thread_state { NEW, READY, AT_BARRIER, AT_SHUFFLE, ENDED } thread_state;
typedef struct fiber {
  standin_place at; /* where the fiber resumes */
  char *stack;
} fiber;

int64_t standin_block;
int32_t standin_thread, standin_threads;
static fiber fibers[MOST_THREADS], *current;
static fiber *fiber_of[MOST_THREADS];  /* of each thread that is not NEW */
static uint8_t states[MOST_THREADS];   /* thread_state */
static double lanes[2][MOST_THREADS];  /* the values of a shuffle */
static uint8_t shuffles[MOST_THREADS]; /* the number of each thread */
static standin_place scheduler;
static void (*body)(void **);
static void **body_args;
static char fault[200];

/* ---- fibers ----------------------------------------------------------------------------------*/

/* Leave the fiber; return when the scheduler resumes it. Jumps are ten times faster than swapcontext, which makes system
 * calls. */
STANDIN_JUMPS static void leave_fiber(void) {
  if (STANDIN_SET(current->at) == 0) STANDIN_JUMP(scheduler);
}
static void wait_for_others(thread_state state) {
  states[standin_thread] = (uint8_t)state;
  leave_fiber();
}

void standin_barrier(void) { wait_for_others(AT_BARRIER); }

/* Every lane writes its value, waits, and reads a value. The next shuffle writes to the other array, so that no value is
 * overwritten too early. */
double standin_shuffle_down(double x, int32_t by) {
  const int32_t me = standin_thread;
  double *lane = lanes[shuffles[me]++ % 2];
  lane[me] = x;
  wait_for_others(AT_SHUFFLE);
  return me % WARP + by < WARP ? lane[me + by] : x;
}

/* Run a thread of a block, then the next threads of its warp, until a new fiber has started one; wait for another block. */
static void run_fiber(void) {
  for (;;) {
    leave_fiber();
    const int32_t from = standin_thread, to = from / WARP * WARP + WARP;
    fiber *me = current;
    for (int32_t i = from; i < to && states[i] == NEW; i++) {
      standin_thread = i;
      fiber_of[i] = me;
      body(body_args);
      states[i] = ENDED;
    }
  }
}

/* Make the stack of a fiber, and run the fiber until it waits for a block. */
STANDIN_JUMPS static bool make_fiber(fiber *f) {
  ucontext_t made, here;
  if (f->stack != NULL) return true;
  f->stack = malloc(STACK);
  if (f->stack == NULL || getcontext(&made) != 0) return false;
  made.uc_stack.ss_sp = f->stack;
  made.uc_stack.ss_size = STACK;
  made.uc_link = NULL;
  makecontext(&made, run_fiber, 0);
  current = f;
  if (STANDIN_SET(scheduler) == 0) (void)swapcontext(&here, &made);
  return true;
}

/* A new thread i starts on fiber i, which is idle: earlier threads of the warp have started on earlier fibers. */
STANDIN_JUMPS static void continue_thread(int32_t i) {
  standin_thread = i;
  current = states[i] == NEW ? &fibers[i] : fiber_of[i];
  if (STANDIN_SET(scheduler) == 0) STANDIN_JUMP(current->at);
}

/* ---- blocks ----------------------------------------------------------------------------------*/

static int32_t count_threads(int32_t from, int32_t to, thread_state state) {
  int32_t n = 0;
  for (int32_t i = from; i < to; i++) {
    n += states[i] == state ? 1 : 0;
  }
  return n;
}
static void set_threads(int32_t from, int32_t to, thread_state state) {
  memset(states + from, state, (size_t)(to - from));
}

/* Run each warp up to its next barrier, in the chosen order, so that warps are as far apart as barriers allow.  Then
 * resume the block if all its threads wait; return false if they do not. */
static bool advance_block(int32_t threads, standin_order order) {
  for (int32_t k = 0; k < threads; k += WARP) {
    const int32_t w = order == STANDIN_FORWARD ? k : threads - WARP - k;
    do {
      for (int32_t i = w; i < w + WARP; i++) {
        if (states[i] <= READY) continue_thread(i);
      }
      if (count_threads(w, w + WARP, AT_SHUFFLE) == WARP) set_threads(w, w + WARP, READY);
    } while (states[w] == READY);
  }
  if (count_threads(0, threads, AT_BARRIER) != threads) return false;
  set_threads(0, threads, READY);
  return true;
}

/* After a failed launch the fibers are in the middle of a kernel. */
void standin_forget_fibers(void) {
  for (int32_t i = 0; i < MOST_THREADS; i++) {
    free(fibers[i].stack);
    fibers[i].stack = NULL;
  }
}

/* NG_SHARED puts shared memory into a section of its own. */
extern char __start_standin_shared[], __stop_standin_shared[];

static const char *run_block(const char *name, int32_t threads, standin_order order) {
  memset(__start_standin_shared, 0xff, (size_t)(__stop_standin_shared - __start_standin_shared));
  set_threads(0, threads, NEW);
  memset(shuffles, 0, (size_t)threads);
  while (advance_block(threads, order)) {
  }
  const int32_t ended = count_threads(0, threads, ENDED);
  if (ended == threads) return NULL;
  (void)snprintf(fault, sizeof fault,
                 "%s, block %lld: %d threads wait at a barrier and %d at a shuffle, but %d ended",
                 name, (long long)standin_block, (int)count_threads(0, threads, AT_BARRIER),
                 (int)count_threads(0, threads, AT_SHUFFLE), (int)ended);
  standin_forget_fibers();
  return fault;
}

/* Return block i of n in the chosen order; random: a linear congruential sequence modulo a power of 2, without >= n. */
static int64_t block_at(standin_order order, int64_t i, int64_t n, int64_t *state) {
  if (order == STANDIN_FORWARD) return i;
  if (order == STANDIN_BACKWARD) return n - 1 - i;
  int64_t power = 1;
  while (power < n) {
    power *= 2;
  }
  do {
    *state = (int64_t)(((uint64_t)*state * 5 + 7) % (uint64_t)power);
  } while (*state >= n);
  return *state;
}

const char *standin_run(const char *name, void (*kernel)(void **), standin_order order,
                        int64_t blocks, int32_t threads, void **args) {
  int64_t state = 0;
  body = kernel;
  body_args = args;
  standin_threads = threads;
  for (int32_t i = 0; i < threads; i++) {
    if (!make_fiber(&fibers[i])) return "out of memory";
  }
  for (int64_t i = 0; i < blocks; i++) {
    standin_block = block_at(order, i, blocks, &state);
    const char *error = run_block(name, threads, order);
    if (error != NULL) return error;
  }
  return NULL;
}

/* ---- kernels ---------------------------------------------------------------------------------*/

/* CALLn(kernel, types) defines run_kernel, which reads n arguments from their addresses, and their sizes. */
#define A(T, i) (*(T *)args[i])
#define SIZES(k, ...) static const size_t sizes_##k[] = {__VA_ARGS__};
#define CALL1(k, a)                                                                                \
  static void run_##k(void **args) { k(A(a, 0)); }                                                 \
  SIZES(k, sizeof(a))
#define CALL2(k, a, b)                                                                             \
  static void run_##k(void **args) { k(A(a, 0), A(b, 1)); }                                        \
  SIZES(k, sizeof(a), sizeof(b))
#define CALL3(k, a, b, c)                                                                          \
  static void run_##k(void **args) { k(A(a, 0), A(b, 1), A(c, 2)); }                               \
  SIZES(k, sizeof(a), sizeof(b), sizeof(c))
#define CALL4(k, a, b, c, d)                                                                       \
  static void run_##k(void **args) { k(A(a, 0), A(b, 1), A(c, 2), A(d, 3)); }                      \
  SIZES(k, sizeof(a), sizeof(b), sizeof(c), sizeof(d))
#define CALL5(k, a, b, c, d, e)                                                                    \
  static void run_##k(void **args) { k(A(a, 0), A(b, 1), A(c, 2), A(d, 3), A(e, 4)); }             \
  SIZES(k, sizeof(a), sizeof(b), sizeof(c), sizeof(d), sizeof(e))
#define CALL6(k, a, b, c, d, e, f)                                                                 \
  static void run_##k(void **args) { k(A(a, 0), A(b, 1), A(c, 2), A(d, 3), A(e, 4), A(f, 5)); }    \
  SIZES(k, sizeof(a), sizeof(b), sizeof(c), sizeof(d), sizeof(e), sizeof(f))
#define CALL7(k, a, b, c, d, e, f, g)                                                              \
  static void run_##k(void **args) {                                                               \
    k(A(a, 0), A(b, 1), A(c, 2), A(d, 3), A(e, 4), A(f, 5), A(g, 6));                              \
  }                                                                                                \
  SIZES(k, sizeof(a), sizeof(b), sizeof(c), sizeof(d), sizeof(e), sizeof(f), sizeof(g))
#define CALL8(k, a, b, c, d, e, f, g, h)                                                           \
  static void run_##k(void **args) {                                                               \
    k(A(a, 0), A(b, 1), A(c, 2), A(d, 3), A(e, 4), A(f, 5), A(g, 6), A(h, 7));                     \
  }                                                                                                \
  SIZES(k, sizeof(a), sizeof(b), sizeof(c), sizeof(d), sizeof(e), sizeof(f), sizeof(g), sizeof(h))
#define CALL9(k, a, b, c, d, e, f, g, h, i)                                                        \
  static void run_##k(void **args) {                                                               \
    k(A(a, 0), A(b, 1), A(c, 2), A(d, 3), A(e, 4), A(f, 5), A(g, 6), A(h, 7), A(i, 8));            \
  }                                                                                                \
  SIZES(k, sizeof(a), sizeof(b), sizeof(c), sizeof(d), sizeof(e), sizeof(f), sizeof(g), sizeof(h), \
        sizeof(i))
typedef const int64_t *starts;
typedef int64_t i64;
CALL4(dv_measure_tiles, const dv_measure *, starts, i64, double *)
CALL3(dv_measure_rows, const dv_measure *, starts, i64)
CALL1(dv_measure_add_squares_of_t, const dv_measure *)
CALL5(dv_add_tiles, const dv_measure *, starts, int32_t, const double *, double *)
CALL3(dv_scan_tiles, const dv_array *, starts, i64)
CALL3(dv_fill, int32_t *, i64, int32_t)
CALL3(dv_read_tiles, const dv_read *, starts, i64)
CALL3(dv_emit_tiles, const dv_direction *, starts, i64)
CALL3(dv_store_tiles, const dv_direction *, starts, i64)
CALL4(dv_norm2_tiles, const dv_direction *, starts, i64, double *)
CALL5(dv_update_tiles, const dv_direction *, const dv_update *, starts, i64, const int32_t *)
CALL1(dv_ratio_begin, double *)
CALL8(dv_ratio_tiles, const dv_direction *, const dv_update *, starts, i64, const dv_ratios *,
      double *, int32_t, int32_t)
CALL2(dv_eva_fold, const dv_mean *, const dv_eva_numbers *)
CALL2(dv_eva_clip_and_scale, const dv_eva *, dv_eva_numbers *)
CALL1(dv_box_channels, dv_sum)
CALL3(dv_square_columns, const dv_sum *, starts, i64)
CALL3(dv_gram_squares, const dv_gram *, starts, i64)
CALL4(dv_gram_pack, const dv_gram *, i64, i64, float *)
CALL3(dv_gram_rows64, const dv_gram *, starts, i64)
CALL2(dv_norm_moments, const dv_norm *, double *)
CALL3(dv_norm_gradients, const dv_norm *, const double *, double *)
CALL4(dv_norm_squares, const dv_norm *, const double *, double *, int32_t *)
CALL2(dv_norm_report_nonfinite, const int32_t *, double *)
CALL5(dv_norm_gram, const dv_norm *, const double *, double, void *, int32_t)
typedef const char *in;
CALL5(dv_convert, i64, in, int32_t, char *, int32_t)
CALL4(dv_scale, i64, char *, int32_t, double)
CALL6(dv_fold, i64, char *, int32_t, float *, float, float)
CALL6(dv_fold_wide, i64, char *, char *, int32_t, double, double)
CALL4(dv_find_nonfinite, i64, in, int32_t, int32_t *)
CALL4(dv_find_largest, i64, in, int32_t, double *)
CALL7(dv_add_row, i64, float *, i64, i64, i64, const float *, float)
CALL5(dv_shift_diagonal, i64, char *, int32_t, int32_t, double)
CALL5(dv_trace, i64, in, int32_t, int32_t, double *)
CALL6(dv_unpack, i64, in, int32_t, char *, int32_t, i64)
CALL7(dv_convert_rows, i64, in, int32_t, i64, char *, int32_t, i64)
CALL9(dv_divide, i64, in, in, double, double, double, char *, int32_t, i64)
CALL7(dv_mul_diagonal, int32_t, i64, in, int32_t, in, char *, i64)
CALL6(dv_sum_row_products, i64, const float *, i64, const float *, i64, double *)
CALL3(dv_add_rows_of_sums, i64, const double *, double *)
CALL4(dv_add_products, i64, const double *, const double *, double *)
CALL6(dv_square_tiles, i64, i64, in, int32_t, i64, double *)
CALL3(dv_add_parts, i64, const double *, double *)
CALL7(dv_multiply_sym64, i64, const double *, i64, i64, i64, const float *, float *)
CALL3(dv_count_tokens, const dv_tokens *, starts, i64)
CALL2(dv_report_token, const dv_tokens *, i64)
CALL1(dv_accumulate, dv_accumulation)
CALL3(dv_copy_elements, const dv_copy_of *, starts, i64)
CALL4(dv_change_tiles, const dv_change *, starts, i64, double *)
CALL4(dv_add_changes, const dv_change *, starts, i64, const double *)
CALL4(dv_spatial_sums, const dv_gram *, starts, i64, double *)
CALL5(dv_spatial_add, const dv_gram *, starts, starts, i64, const double *)
CALL5(dv_flat_pass, const dv_flat *, const dv_flat_range *, starts, i64, double *)
CALL3(dv_join_infos, const int32_t *, i64, int32_t *)
CALL1(dv_solve_take_column, const dv_solve *)
CALL1(dv_solve_residual, const dv_solve *)
CALL1(dv_solve_accept, const dv_solve *)
CALL1(dv_solve_check_pairs, const dv_solve *)
CALL1(dv_solve_accept_pairs, const dv_solve *)
CALL1(dv_solve_store_eigenvalues, const dv_solve *)
CALL1(dv_solve_roots, const dv_solve *)
CALL1(dv_solve_check_range, const dv_solve *)
CALL1(dv_solve_store, const dv_solve *)
CALL1(dv_solve_diagonal, const dv_solve *)
CALL1(dv_solve_small, const dv_solve *)

#define KERNEL(k)                                                                                  \
  { #k, run_##k, sizes_##k, sizeof sizes_##k / sizeof sizes_##k[0] }
static const struct {
  const char *name;
  void (*run)(void **args);
  const size_t *size;
  size_t args;
} kernels[] = {KERNEL(dv_measure_tiles),
               KERNEL(dv_measure_rows),
               KERNEL(dv_measure_add_squares_of_t),
               KERNEL(dv_add_tiles),
               KERNEL(dv_scan_tiles),
               KERNEL(dv_fill),
               KERNEL(dv_read_tiles),
               KERNEL(dv_emit_tiles),
               KERNEL(dv_store_tiles),
               KERNEL(dv_norm2_tiles),
               KERNEL(dv_update_tiles),
               KERNEL(dv_ratio_begin),
               KERNEL(dv_ratio_tiles),
               KERNEL(dv_eva_fold),
               KERNEL(dv_eva_clip_and_scale),
               KERNEL(dv_box_channels),
               KERNEL(dv_square_columns),
               KERNEL(dv_gram_squares),
               KERNEL(dv_gram_pack),
               KERNEL(dv_gram_rows64),
               KERNEL(dv_norm_moments),
               KERNEL(dv_norm_gradients),
               KERNEL(dv_norm_squares),
               KERNEL(dv_norm_report_nonfinite),
               KERNEL(dv_norm_gram),
               KERNEL(dv_convert),
               KERNEL(dv_scale),
               KERNEL(dv_fold),
               KERNEL(dv_fold_wide),
               KERNEL(dv_find_nonfinite),
               KERNEL(dv_find_largest),
               KERNEL(dv_add_row),
               KERNEL(dv_shift_diagonal),
               KERNEL(dv_trace),
               KERNEL(dv_unpack),
               KERNEL(dv_convert_rows),
               KERNEL(dv_divide),
               KERNEL(dv_mul_diagonal),
               KERNEL(dv_sum_row_products),
               KERNEL(dv_add_rows_of_sums),
               KERNEL(dv_add_products),
               KERNEL(dv_square_tiles),
               KERNEL(dv_add_parts),
               KERNEL(dv_multiply_sym64),
               KERNEL(dv_count_tokens),
               KERNEL(dv_report_token),
               KERNEL(dv_accumulate),
               KERNEL(dv_copy_elements),
               KERNEL(dv_change_tiles),
               KERNEL(dv_add_changes),
               KERNEL(dv_spatial_sums),
               KERNEL(dv_spatial_add),
               KERNEL(dv_flat_pass),
               KERNEL(dv_join_infos),
               KERNEL(dv_solve_take_column),
               KERNEL(dv_solve_residual),
               KERNEL(dv_solve_accept),
               KERNEL(dv_solve_check_pairs),
               KERNEL(dv_solve_accept_pairs),
               KERNEL(dv_solve_store_eigenvalues),
               KERNEL(dv_solve_roots),
               KERNEL(dv_solve_check_range),
               KERNEL(dv_solve_store),
               KERNEL(dv_solve_diagonal),
               KERNEL(dv_solve_small)};

int32_t standin_find_kernel(const char *name) {
  for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
    if (strcmp(kernels[i].name, name) == 0) return (int32_t)i;
  }
  return -1;
}
const char *standin_kernel_name(int32_t kernel) { return kernels[kernel].name; }
void standin_copy_args(int32_t kernel, void **args, char *to) {
  void *place[STANDIN_MOST_ARGS];
  standin_place_args(kernel, to, place);
  for (size_t i = 0; i < kernels[kernel].args; i++) {
    memcpy(place[i], args[i], kernels[kernel].size[i]);
  }
}
void standin_place_args(int32_t kernel, char *at, void **place) {
  for (size_t i = 0; i < kernels[kernel].args; i++) {
    place[i] = at;
    at += (kernels[kernel].size[i] + 7) / 8 * 8;
  }
}
const char *standin_run_kernel(int32_t kernel, standin_order order, int64_t blocks, int32_t threads,
                               void **args) {
  return standin_run(kernels[kernel].name, kernels[kernel].run, order, blocks, threads, args);
}
