/* core.h: memory, errors, log, threads, texts and checked arrays, for all folders of src/.
 *
 * In:   the caller's allocator, executor and log callback (ng_context_config); texts, arrays and structs to check.
 * Out:  counted memory, parallel loops, error messages, log lines, checked copies.
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

/* For functions that acquire resources: store the status of `call` in `st`; if the status is an error, jump to the
 * label `done`, where the function releases the resources. */
#define NG_TRY(call)                                                                               \
  do {                                                                                             \
    st = (call);                                                                                   \
    if (st < NG_OK) goto done;                                                                     \
  } while (0)

/* Check an internal invariant, in debug builds only.  An error of the caller returns a status instead. */
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

/* Sizes from the caller are not bounded.  Sums and products saturate at NG_MOST: an allocation of that size fails, and
 * sums of a few saturated sizes do not overflow. */
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
  /* copy of the caller's configuration, with defaults in place of zeros */
  ng_context_config config;
  /* the threads that ng_parallel uses; NULL: ng_parallel calls the caller's executor, or runs on one thread */
  ng_pool *pool;
  struct ng_queue *queue; /* runs kernels and linear algebra */
  struct ng_comm *comm;   /* transport of all ranks */
  /* transport of ng_context_config.model_group; NULL: the model is not sharded */
  struct ng_comm *model;
  /* transport of ng_context_config.stage_group; NULL: there are no pipeline stages */
  struct ng_comm *stages;
  int32_t rank, ranks; /* copies of comm->rank and comm->size */
  /* the families; ng_family_choose tries them from the last one to the first */
  const struct ng_family *family[NG_FAMILIES_MAX];
  int32_t families;
  /* Used by tests of placements only: if not NULL, this function may replace s->owner. */
  void (*set_test_owner)(struct ng_block *b, struct ng_stat *s);
  /* bytes that ng_alloc has allocated: now, and the largest value so far */
  int64_t allocated_bytes, peak_bytes;
  int64_t allocations; /* successful calls of ng_alloc */
  int64_t creator_pid; /* id of the process that created the context */
  /* *fork_mark is 1 in this process, and 0 in a forked child.  NULL: compare process ids instead. */
  volatile unsigned char *fork_mark;
  size_t fork_mark_bytes;
  bool has_failed; /* the current call has failed; error[] has its first message */
  char error[NG_MESSAGE];
};

/* context.c: ng_context_create with more backends (linalg/linalg.h; ended by NULL), which config->linalg may name. */
struct ng_backend;
ng_status ng_context_create_with(const struct ng_backend *const *more, int32_t version,
                                 const ng_context_config *config, char *message, size_t size,
                                 ng_context **out);

/* The allocator of backends on the host: memory of the C library, 64-byte aligned. */
void *ng_plain_alloc(void *user, size_t bytes);
void ng_plain_free(void *user, void *ptr, size_t bytes);

/* Allocate memory with the context's allocator and count its bytes (ng_context_allocated).  The memory is 64-byte
 * aligned and not zeroed.  Return NULL if there is no memory. */
void *ng_alloc(ng_context *ctx, size_t bytes);
void ng_free(ng_context *ctx, void *ptr, size_t bytes);

/* Every public function that can fail calls ng_enter first, and returns if ng_enter fails.  ng_enter clears the message
 * of the last call; it fails in a forked child of the process that created the context.  ng_fail stores a message, if
 * it is the first since ng_enter, and returns `status`. */
NG_CHECKED ng_status ng_enter(ng_context *ctx);
ng_status ng_fail(ng_context *ctx, ng_status status, const char *format, ...) NG_PRINTF(3, 4);

/* Format a message into `line`, with '?' for every control character. */
void ng_print_line(char *line, size_t size, const char *format, va_list args) NG_PRINTF(3, 0);

/* ng_fail for functions without a context: write the message to `message`, which may be NULL. */
ng_status ng_fail_to(char *message, size_t size, ng_status status, const char *format, ...)
    NG_PRINTF(4, 5);

/* process.c: mark the context with the process that creates it; remove the mark.  ng_is_creating_process returns false in a
 * forked child; ng_enter calls it, and public functions that return no status. */
void ng_process_mark(ng_context *ctx);
void ng_process_unmark(ng_context *ctx);
bool ng_is_creating_process(const ng_context *ctx);

/* Copy a public struct, whose first member is struct_size; `ours` is the size of the struct in this library.
 * ng_struct_read: copy the caller's *src to *dst.  Fail if *src has fewer than `least` bytes, or sets a field that this
 * library does not know.  Messages name the struct `what`.
 * ng_struct_write: copy *src to the caller's *dst, as many bytes as the struct_size of *dst says. */
ng_status ng_struct_read(void *dst, size_t ours, const void *src, size_t least, const char *what,
                         char *message, size_t size);
ng_status ng_struct_write(void *dst, const void *src, size_t ours);

/* Ranks exchange their statuses in one sum of doubles.  ng_codes_write: set code[] to this rank's summand.  Summed over
 * ranks, code[8 + s] is the number of ranks with status s, for s from -8 to 7; ng_codes_count returns this number.
 * ng_codes_worst: return the most negative status of any rank; without an error, the largest status. */
enum { NG_CODES = 16 };
void ng_codes_write(double code[NG_CODES], ng_status st);
int ng_codes_count(const double code[NG_CODES], ng_status st);
ng_status ng_codes_worst(const double code[NG_CODES]);

/* Format a line like "step: n = 12 clip = 0.031" and call the log callback, if log_level includes `level`. */
void ng_log(ng_context *ctx, ng_log_level level, const char *format, ...) NG_PRINTF(3, 4);

/* Call task(arg, i) for each i in [0, n) on the context's threads, and return when all tasks have returned.  In
 * repeated calls the same i usually runs on the same thread. */
void ng_parallel(ng_context *ctx, int32_t n, void (*task)(void *arg, int32_t i), void *arg);

/* Divide [0, n) into `pieces` ranges of almost equal length, and set [*from, *to) to range i. */
void ng_piece_bounds(int64_t n, int32_t pieces, int32_t i, int64_t *from, int64_t *to);
static inline int64_t ng_round16(int64_t floats) { return (floats + 15) / 16 * 16; }

/* ---- text.c: words in messages ---------------------------------------------------------------*/

/* Return the one of n names that is nearest to the misspelt `word`, or NULL if none is near.  at(i) returns name i. */
const char *ng_nearest(const char *word, const char *(*at)(int32_t i), int32_t n);

/* Append a text or a number >= 0 to `name`, truncated to `size` bytes.  Faster than snprintf, for models with many
 * names. */
void ng_name_append(char *name, size_t size, const char *more);
void ng_name_append_number(char *name, size_t size, int64_t number);
bool ng_same_word(const char *a, const char *b); /* compare two ASCII texts, ignoring case */

/* A part of a message.  It is returned by value, because a message may have several. */
typedef struct ng_message_text {
  char text[160];
} ng_message_text;
/* Return a copy of `text` for a message; a text of more than 60 bytes is truncated and ends with "...". */
ng_message_text ng_shorten(const char *text);

/* Return whether `word` is one of the words of a list "a|b|c". */
bool ng_in_list(const char *list, const char *word);
/* Return the end of a message, "; did you mean 'NAME'?".  ng_hint_of: NAME is `nearest`; if NULL, return "".
 * ng_hint_list: NAME is the word of the list "a|b|c" that is nearest to `word`; if none is near, return "". */
ng_message_text ng_hint_of(const char *nearest);
ng_message_text ng_hint_list(const char *word, const char *list);

/* ---- array.c: arrays with strides ------------------------------------------------------------*/

/* A checked array of the caller, with copies of its extents and strides (in elements). */
typedef struct ng_strided {
  void *data;
  ng_dtype dtype;
  int32_t ndim;
  int64_t shape[NG_DIMS], stride[NG_DIMS];
} ng_strided;

/* Return whether `t` is a dtype of floating-point numbers. */
static inline bool ng_dtype_is_real(ng_dtype t) { return t >= NG_F32 && t <= NG_BF16; }

/* Check *a and copy its fields to *out.  Return NULL, or the text of an error.  For an accepted array the offset of
 * every element in bytes fits an int64_t. */
const char *ng_array_read(const ng_array *a, ng_strided *out);
/* Return whether the strides prove that no two elements share memory, as an array must that the library writes. */
bool ng_strided_distinct(const ng_strided *s);
/* Sort the axes by stride, the largest stride first. */
void ng_axes_sort(ng_strided *s);
/* Drop axes of extent 1.  Merge two successive axes if one loop can replace both, that is, if the stride of the outer
 * axis is the extent times the stride of the inner axis.  Return the number of axes that remain. */
int32_t ng_axes_join(int32_t n, int64_t *extent, int64_t *step);
ng_message_text ng_strided_shape(const ng_strided *s); /* "[4, 3, 8, 8]" */

#endif
