/* core.h: services for all folders of src/.
 *
 * In:   the caller's allocator, executor and log (ng_context_config), statuses and messages.
 * Out:  counted memory, loops over threads, error messages, the clock, 16-bit floats, text.
 * May call: base/ only. */
#ifndef NG_CORE_H
#define NG_CORE_H

#include "natgrad.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "pool.h"

#define NG_ALIGN 64
#define NG_MESSAGE 512

/* For functions that acquire resources: store a failed status in `st` and jump to `done:`, which
 * releases the resources. */
#define NG_TRY(call)                                                                               \
  do {                                                                                             \
    st = (call);                                                                                   \
    if (st < NG_OK) goto done;                                                                     \
  } while (0)

/* Internal invariants; never the caller's input. */
#if defined(NG_DEBUG)
#include <assert.h>
#define NG_ASSERT(x) assert(x)
#else
#define NG_ASSERT(x) ((void)sizeof(!(x)))
#endif

#if defined(__GNUC__)
#define NG_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define NG_PRINTF(f, a)
#endif

static inline bool ng_is(const char *a, const char *b) { return strcmp(a, b) == 0; }
static inline int64_t ng_min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t ng_max64(int64_t a, int64_t b) { return a > b ? a : b; }

/* Sizes from the caller are not bounded.  Sums and products saturate at NG_MOST: an allocation of that size
 * fails, and sums of a few saturated sizes do not overflow. */
#define NG_MOST (INT64_C(1) << 56)
static inline int64_t ng_times(int64_t a, int64_t b) {
  int64_t r;
  return __builtin_mul_overflow(a, b, &r) || r > NG_MOST ? NG_MOST : r;
}
static inline int64_t ng_plus(int64_t a, int64_t b) {
  int64_t r;
  return __builtin_add_overflow(a, b, &r) || r > NG_MOST ? NG_MOST : r;
}

/* ---- memory.c, status.c ------------------------------------------------------------------------------*/

enum { NG_FAMILIES_MAX = 16 };
/* Defined in other folders. */
struct ng_family;
struct ng_block;
struct ng_stat;
struct ng_queue;
struct ng_comm;

struct ng_context {
  ng_context_config config; /* with the actual alloc, free, threads, log_level */
  ng_pool *pool; /* NULL with the caller's executor or one thread                       */
  struct ng_queue *queue;
  struct ng_comm *comm;
  struct ng_comm *model;  /* ranks with shards of the same layers; NULL: not given */
  struct ng_comm *stages; /* one rank of each pipeline stage; NULL: one stage */
  int32_t rank, ranks;    /* copies of comm->rank and comm->size */
  const struct ng_family *family[NG_FAMILIES_MAX]; /* registered; the last is asked first */
  int32_t families;
  void (*place)(struct ng_block *b,
                struct ng_stat *s); /* NULL, except in tests that place statistics */
  int64_t bytes, peak, calls;
  int64_t process; /* the process that created the context */
  volatile unsigned char
      *mark; /* 1 in this process, 0 in a forked child; NULL: compare process numbers */
  size_t mark_bytes;
  bool failed; /* error[] holds the first failure of the current call */
  char error[NG_MESSAGE];
};

/* The default allocator; 64-byte aligned. */
void *ng_plain_alloc(void *user, size_t bytes);
void ng_plain_free(void *user, void *ptr, size_t bytes);

/* Allocate counted, 64-byte aligned memory, not zeroed. NULL: no memory. */
void *ng_alloc(ng_context *ctx, size_t bytes);
void ng_free(ng_context *ctx, void *ptr, size_t bytes);

/* Every public function that can fail calls ng_enter first and returns its status if that is not NG_OK.
 * ng_enter clears the old message and refuses a forked child of the process that created the context.  ng_fail
 * keeps the first message since then and returns `status`.  A message names the argument and its value. */
NG_CHECKED ng_status ng_enter(ng_context *ctx);
ng_status ng_fail(ng_context *ctx, ng_status status, const char *format, ...) NG_PRINTF(3, 4);

/* Print a message without control characters, '?' instead. */
void ng_print_line(char *line, size_t size, const char *format, va_list args) NG_PRINTF(3, 0);

/* The same for functions without a context: writes to the caller's buffer (may be NULL). */
ng_status ng_fail_to(char *message, size_t size, ng_status status, const char *format, ...)
    NG_PRINTF(4, 5);

/* process.c: ng_process_same returns false in a forked child. ng_enter calls it; functions
 * without a status call it themselves. */
void ng_process_mark(ng_context *ctx);
void ng_process_unmark(ng_context *ctx);
bool ng_process_same(const ng_context *ctx);

/* For structs with struct_size as first member. take: check *src (at least `least` bytes,
 * unknown tail zero) and copy its fields to *dst. give: copy *src, at most the struct_size of *dst.
 * */
ng_status ng_take_struct(void *dst, size_t ours, const void *src, size_t least, const char *what,
                         char *message, size_t size);
ng_status ng_give_struct(void *dst, const void *src, size_t ours);

/* Statuses of many ranks in one sum: one number for each status from -8 to 7. */
enum { NG_CODES = 16 };
void ng_codes_put(double code[NG_CODES], ng_status st);
int ng_codes_count(const double code[NG_CODES],
                   ng_status st); /* the number of ranks with this status */
/* Return the most negative status of any rank, else the largest note. */
ng_status ng_codes_worst(const double code[NG_CODES]);

/* Pass a line to the log callback, if `level` is wanted.  Form: "step: n = 12 clip = 0.031". */
void ng_log(ng_context *ctx, ng_log_level level, const char *format, ...) NG_PRINTF(3, 4);

/* Call task(arg, i) for i in [0, n) and return when all are done. The same i usually runs on the
 * same thread. */
void ng_parallel(ng_context *ctx, int32_t n, void (*task)(void *arg, int32_t i), void *arg);
int32_t ng_threads_of(const ng_context *ctx); /* number of threads of a loop */

/* The number of pieces for a loop over `floats` numbers; piece i of ng_share is [*from, *to). */
int32_t ng_pieces(const ng_context *ctx, int64_t floats);
void ng_share(int64_t n, int32_t pieces, int32_t i, int64_t *from, int64_t *to);
static inline int64_t ng_round16(int64_t floats) { return (floats + 15) / 16 * 16; }

/* ---- text.c: words in messages ---------------------------------------------------------------*/

/* Return the name nearest to `word` (base/words.h), or NULL.  at(i) returns name i. */
const char *ng_nearest(const char *word, const char *(*at)(int32_t i), int32_t n);

/* Append a text or a number to `name`, truncated to `size`.  Faster than snprintf, for 100,000 names. */
void ng_name_add(char *name, size_t size, const char *more);
void ng_name_count(char *name, size_t size, int64_t count); /* not negative */
bool ng_same_word(const char *a, const char *b);            /* compare ASCII texts without case */
/* `text`, shortened for a message. */
typedef struct ng_quoted {
  char text[64];
} ng_quoted;
ng_quoted ng_quote(const char *text);

/* Whether `word` is an item of a list "a|b|c". */
bool ng_in_list(const char *list, const char *word);
/* The nearest item as "; did you mean 'x'?", or "". */
typedef struct ng_hint {
  char text[80];
} ng_hint;
ng_hint ng_hint_of(const char *nearest);
ng_hint ng_hint_list(const char *word, const char *list);

/* ---- convert.c: f32, bf16, f16 ---------------------------------------------------------------*/

float ng_bf16_to_f32(uint16_t h);
uint16_t ng_f32_to_bf16(float f); /* round to nearest even; NaN stays NaN */
float ng_f16_to_f32(uint16_t h);
uint16_t ng_f32_to_f16(float f); /* round to nearest even; subnormals; overflow is Inf */

/* n elements; dtype f32, bf16 or f16. */
void ng_to_f32(float *dst, const void *src, ng_dtype t, int64_t n);
void ng_from_f32(void *dst, ng_dtype t, const float *src, int64_t n);
bool ng_all_finite(const void *src, ng_dtype t, int64_t n); /* any dtype */
/* Return the bits of the largest |x|, 0 if n is 0.  Bits compare as magnitudes do; from NG_INF_BITS on a value is
 * not finite. */
#define NG_INF_BITS UINT32_C(0x7f800000)
uint32_t ng_most_bits(const float *x, int64_t n);
uint32_t ng_most_bits_of(const void *x, ng_dtype t, int64_t n); /* as f32 */
float ng_float_of_bits(uint32_t bits);
double ng_dtype_most(ng_dtype t); /* the largest finite number of f32, bf16 or f16 */

/* ---- array.c: arrays with strides ------------------------------------------------------------*/

/* A checked array with its own copies of extents and strides. */
typedef struct ng_strided {
  void *data;
  ng_dtype dtype;
  int32_t ndim;
  int64_t shape[NG_DIMS], stride[NG_DIMS];
} ng_strided;

/* Check an array; return NULL or an error text.  No index into an accepted array overflows. */
const char *ng_array_take(const ng_array *a, ng_strided *out);
/* Return whether the strides prove that no two elements share memory, as outputs require. */
bool ng_strided_distinct(const ng_strided *s);
double ng_strided_most(ng_context *ctx, const ng_strided *s); /* the largest |x|; Inf: not finite */
/* Merge axes that are contiguous with each other, drop extents of 1; return the number of axes. */
int32_t ng_axes_join(int32_t n, int64_t *extent, int64_t *step);

/* "[4, 3, 8, 8]", for messages. */
typedef struct ng_shape_text {
  char text[160];
} ng_shape_text;
ng_shape_text ng_strided_shape(const ng_strided *s);

/* transpose.c: dst[j * ldd + i] = src[i * lds + j], i < m, j < n. */
void ng_transpose(const float *src, int64_t lds, int64_t m, int64_t n, float *dst, int64_t ldd);

/* Convert n elements `step` apart to f32, and back; dtype f32, bf16 or f16. */
enum { NG_LINE = 512 };
void ng_gather(float *out, const void *from, ng_dtype t, int64_t step, int64_t n);
void ng_scatter(void *to, ng_dtype t, int64_t step, const float *x, int64_t n);

#endif
