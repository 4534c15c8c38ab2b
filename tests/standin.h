/* standin.h: the macros of cuda/device.h for the host compiler; standin.c runs the kernels. */
#ifndef TESTS_STANDIN_H
#define TESTS_STANDIN_H

#include <math.h>
#include <setjmp.h>
#include <stdbool.h>
#include <string.h>

#define NG_GLOBAL void
#define NG_INLINE static inline
#define NG_ARGUMENT(T) const T
#define NG_SHARED static __attribute__((section("standin_shared")))
#define NG_UNROLL
#define NG_BARRIER() standin_barrier()
#define NG_BLOCK standin_block
#define NG_THREAD standin_thread
#define NG_THREADS standin_threads
#define NG_ADD(at, x) standin_add(at, (int64_t)(x))
#define NG_LARGEST(at, x) standin_largest(at, x)
#define NG_SMALLEST(at, x) standin_smallest(at, x)
#define NG_ADD_DOUBLE(at, x) (*(at) += (x))
#define NG_SHUFFLE_DOWN(x, by) standin_shuffle_down(x, by)
#define NG_FLOAT_OF_BITS(b) standin_float(b)
#define NG_BITS_OF_FLOAT(x) standin_bits32(x)
#define NG_DOUBLE_OF_BITS(b) standin_double(b)
#define NG_BITS_OF_DOUBLE(x) standin_bits64(x)

typedef struct float4 {
  float x, y, z, w;
} float4;

/* Jumps. The sanitizers replace longjmp by a function that clears the shadow of the whole stack (1.3 us instead of 0.07), and that does not
 * know fibers. The jumps of the compiler need neither, because no frame of a fiber is left for ever. STANDIN_JUMPS: before a function
 * that sets a place. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
typedef void *standin_place[5];
#define STANDIN_JUMPS __attribute__((noinline, no_sanitize("address", "thread", "undefined")))
#define STANDIN_SET(at) __builtin_setjmp(at)
/* not in the function that has set the place */
__attribute__((unused)) STANDIN_JUMPS static _Noreturn void STANDIN_JUMP(void **at) {
  __builtin_longjmp(at, 1);
}
#else
typedef jmp_buf standin_place;
#define STANDIN_JUMPS
#define STANDIN_SET(at) _setjmp(at)
#define STANDIN_JUMP(at) _longjmp(at, 1)
#endif

extern int64_t standin_block;
extern int32_t standin_thread, standin_threads;
void standin_barrier(void);
double standin_shuffle_down(double x, int32_t by);

static inline float standin_float(uint32_t b) {
  float x;
  memcpy(&x, &b, sizeof x);
  return x;
}
static inline uint32_t standin_bits32(float x) {
  uint32_t b;
  memcpy(&b, &x, sizeof b);
  return b;
}
static inline double standin_double(uint64_t b) {
  double x;
  memcpy(&x, &b, sizeof x);
  return x;
}
static inline uint64_t standin_bits64(double x) {
  uint64_t b;
  memcpy(&b, &x, sizeof b);
  return b;
}
static inline void standin_add(void *at, int64_t x) { *(int64_t *)at += x; }
static inline void standin_largest(void *at, uint64_t x) {
  uint64_t *to = at;
  if (x > *to) *to = x;
}
static inline void standin_smallest(void *at, uint64_t x) {
  uint64_t *to = at;
  if (x < *to) *to = x;
}

/* The order of blocks; launches use all orders in turn. */
typedef enum standin_order {
  STANDIN_BACKWARD,
  STANDIN_RANDOM,
  STANDIN_FORWARD,
  STANDIN_ORDERS
} standin_order;
/* Run a function as a kernel. Return NULL, or an error text if threads do not meet at a barrier or a shuffle. */
const char *standin_run(const char *name, void (*kernel)(void **), standin_order order,
                        int64_t blocks, int32_t threads, void **args);
/* Free the fibers after a fault in a kernel. */
void standin_forget_fibers(void);
/* The kernels of cuda/kernels.cu by index; standin_find_kernel returns -1 for an unknown name. */
int32_t standin_find_kernel(const char *name);
const char *standin_kernel_name(int32_t kernel);
enum { STANDIN_MOST_ARGS = 9, STANDIN_ARG_BYTES = 512 };
/* standin_copy_args: copy arguments to `to`. standin_place_args: place[i] <- the address of argument i. */
void standin_copy_args(int32_t kernel, void **args, char *to);
void standin_place_args(int32_t kernel, char *at, void **place);
const char *standin_run_kernel(int32_t kernel, standin_order order, int64_t blocks, int32_t threads,
                               void **args);

/* standin_desk.c. STANDIN_FAULT: exit code after a forbidden access of the host. */
enum { STANDIN_FAULT = 71 };
typedef struct standin_counts {
  int64_t launches, copies, zeros, waits, calls; /* calls: of BLAS and solvers */
  int64_t bytes;                                 /* bytes of all copies */
  int64_t device_blocks;                         /* allocations of memory of the device */
  /* number of times that the host accessed managed memory that was on the device */
  int64_t migrations;
} standin_counts;
typedef enum standin_failure {
  STANDIN_NO_FAILURE,
  STANDIN_ALLOCATION,
  STANDIN_LAUNCH,
  STANDIN_CALL, /* of BLAS and solvers */
  STANDIN_WAIT
} standin_failure;
struct dv_desk;
standin_counts standin_count(const struct dv_desk *d);
/* Let one call fail, after `after` more calls of its kind. */
void standin_fail(struct dv_desk *d, standin_failure what, int64_t after);
/* NULL, or called after each factor ('F'), inverse ('I') or eigenproblem ('E') with its result, which it may spoil. */
typedef void standin_spoil(char solver, bool wide, int64_t n, void *A, int64_t lda, void *w);
extern standin_spoil *standin_spoils;
/* Number of matrices that the library decomposes in one call; 0: it has no such call. More need too much work. */
extern int64_t standin_batch_most;
/* Note a call of a function with a copy of its arguments; it runs at dv_wait. */
const char *standin_note(struct dv_desk *d, void (*run)(const void *args), const void *args,
                         size_t bytes);

#endif
