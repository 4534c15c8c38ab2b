/* core.h: services for all folders of src/.
 *
 * In:   the caller's allocator, executor and log (ng_context_config); texts, arrays and structs to check.
 * Out:  counted memory, loops over threads, error messages, the clock, text.
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

/* For functions that acquire resources: store the status of `call` in `st`; after an error jump to `done:`, where the
 * function releases the resources. */
#define NG_TRY(call)                                                                               \
  do {                                                                                             \
    st = (call);                                                                                   \
    if (st < NG_OK) goto done;                                                                     \
  } while (0)

/* Check an internal invariant in debug builds.  Errors of the caller return a status instead. */
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
struct ng_family;
struct ng_block;
struct ng_stat;
struct ng_queue;
struct ng_comm;

struct ng_context {
  ng_context_config config; /* with the actual alloc, free, threads, log_level */
  ng_pool *pool; /* threads of ng_parallel; NULL: the caller's executor, or one thread  */
  struct ng_queue *queue;
  struct ng_comm *comm;
  struct ng_comm *model;  /* links ranks with shards of the same layers; NULL: not given */
  struct ng_comm *stages; /* links one rank of each pipeline stage; NULL: one stage */
  int32_t rank, ranks;    /* copies of comm->rank and comm->size */
  const struct ng_family *family[NG_FAMILIES_MAX]; /* a search begins at the last family */
  int32_t families;
  void (*place)(struct ng_block *b,
                struct ng_stat *s); /* sets s->owner in tests of placements; else NULL */
  int64_t bytes, peak, calls;       /* bytes now and at most, successful allocations: ng_alloc */
  int64_t process;                  /* id of the process that created the context */
  volatile unsigned char *mark; /* 1 in `process`, 0 in a forked child; NULL: compare process ids */
  size_t mark_bytes;
  bool failed; /* error[] holds the first failure of the current call */
  char error[NG_MESSAGE];
};

/* The default allocator; 64-byte aligned. */
void *ng_plain_alloc(void *user, size_t bytes);
void ng_plain_free(void *user, void *ptr, size_t bytes);

/* Allocate 64-byte aligned memory that ng_context_allocated counts.  The memory is not zeroed.  NULL: no memory. */
void *ng_alloc(ng_context *ctx, size_t bytes);
void ng_free(ng_context *ctx, void *ptr, size_t bytes);

/* Every public function that can fail calls ng_enter first and returns its status if that is not NG_OK.
 * ng_enter clears the message, and fails in a forked child of the process that created the context.  ng_fail stores
 * the message if it is the first since ng_enter, and returns `status`.  A message names the argument and its value. */
NG_CHECKED ng_status ng_enter(ng_context *ctx);
ng_status ng_fail(ng_context *ctx, ng_status status, const char *format, ...) NG_PRINTF(3, 4);

/* Print a message into `line`; every control character becomes '?'. */
void ng_print_line(char *line, size_t size, const char *format, va_list args) NG_PRINTF(3, 0);

/* ng_fail for functions without a context: write the message to `message`, which may be NULL. */
ng_status ng_fail_to(char *message, size_t size, ng_status status, const char *format, ...)
    NG_PRINTF(4, 5);

/* process.c: ng_process_same returns false in a forked child.  ng_enter and functions without a status call it. */
void ng_process_mark(ng_context *ctx);
void ng_process_unmark(ng_context *ctx);
bool ng_process_same(const ng_context *ctx);

/* For structs with struct_size as first member; `ours` is the library's size of the struct.
 * ng_struct_read: check that *src has at least `least` bytes and no unknown field that is set; copy *src to *dst.
 * ng_struct_write: copy the part of *src that fits the struct_size of *dst. */
ng_status ng_struct_read(void *dst, size_t ours, const void *src, size_t least, const char *what,
                         char *message, size_t size);
ng_status ng_struct_write(void *dst, const void *src, size_t ours);

/* Statuses of all ranks in one sum: code[8 + s] counts the ranks with status s, s from -8 to 7. */
enum { NG_CODES = 16 };
void ng_codes_write(double code[NG_CODES], ng_status st);
int ng_codes_count(const double code[NG_CODES],
                   ng_status st); /* the number of ranks with status `st` */
/* Return the most negative status of any rank.  Without an error return the largest status above NG_OK, or NG_OK. */
ng_status ng_codes_worst(const double code[NG_CODES]);

/* Pass a line to the log callback, if log_level includes `level`.  Form: "step: n = 12 clip = 0.031". */
void ng_log(ng_context *ctx, ng_log_level level, const char *format, ...) NG_PRINTF(3, 4);

/* Call task(arg, i) for each i in [0, n) on the context's threads, and return when all tasks have returned.  In
 * repeated calls the same i usually runs on the same thread. */
void ng_parallel(ng_context *ctx, int32_t n, void (*task)(void *arg, int32_t i), void *arg);
int32_t ng_threads_of(const ng_context *ctx); /* number of threads of ng_parallel */

/* ng_pieces: return the number of pieces of a loop over `floats` numbers.  ng_piece_bounds: set [*from, *to) to the indices
 * of piece i when [0, n) is cut into `pieces`. */
int32_t ng_pieces(const ng_context *ctx, int64_t floats);
void ng_piece_bounds(int64_t n, int32_t pieces, int32_t i, int64_t *from, int64_t *to);
static inline int64_t ng_round16(int64_t floats) { return (floats + 15) / 16 * 16; }

/* ---- text.c: words in messages ---------------------------------------------------------------*/

/* Return the name nearest to `word` (base/words.h), or NULL.  at(i) returns name i. */
const char *ng_nearest(const char *word, const char *(*at)(int32_t i), int32_t n);

/* Append `more` or `count` to `name`, truncated to `size` bytes.  Faster than snprintf, for models with many names. */
void ng_name_append(char *name, size_t size, const char *more);
void ng_name_append_number(char *name, size_t size, int64_t count); /* not negative */
bool ng_same_word(const char *a, const char *b); /* compare ASCII texts without case */
/* Return a copy of `text` for a message; a long text is cut and ends with "...". */
typedef struct ng_quoted {
  char text[64];
} ng_quoted;
ng_quoted ng_quote(const char *text);

/* Return whether `word` is one of the words of a list "a|b|c". */
bool ng_in_list(const char *list, const char *word);
/* Return "; did you mean 'NAME'?", NAME being `nearest` or the word of `list` nearest to `word`; "" without a NAME. */
typedef struct ng_hint {
  char text[80];
} ng_hint;
ng_hint ng_hint_of(const char *nearest);
ng_hint ng_hint_list(const char *word, const char *list);

/* ---- array.c: arrays with strides ------------------------------------------------------------*/

/* An array that ng_array_take has checked, with copies of its extents and strides (in elements). */
typedef struct ng_strided {
  void *data;
  ng_dtype dtype;
  int32_t ndim;
  int64_t shape[NG_DIMS], stride[NG_DIMS];
} ng_strided;

/* Check *a and copy its fields to *out; return NULL or an error text.  No index into an accepted array overflows. */
const char *ng_array_take(const ng_array *a, ng_strided *out);
/* Return whether the strides prove that no two elements share memory.  Arrays that the library writes must pass. */
bool ng_strided_distinct(const ng_strided *s);
/* Sort axes by stride, the largest first. */
void ng_axes_sort(ng_strided *s);
/* Drop axes of extent 1, merge each axis with the previous axis if they are contiguous; return the number of axes. */
int32_t ng_axes_join(int32_t n, int64_t *extent, int64_t *step);

typedef struct ng_shape_text {
  char text[160]; /* "[4, 3, 8, 8]", for messages */
} ng_shape_text;
ng_shape_text ng_strided_shape(const ng_strided *s);

#endif
