/* io.h: shared by the readers and writers of files.
 *
 * io/ is a small static library, independent of the engine and of the command line.  The engine uses it for its state,
 * the command line for recordings.  Every function that can fail returns an ngio_status and writes one line to the
 * caller's buffer (`message` may be NULL); text from a file is quoted there without control characters.  Files are
 * little-endian; the host must be little-endian, too. */
#ifndef NGIO_IO_H
#define NGIO_IO_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ngio_status {
  NGIO_OK = 0,
  NGIO_ERR_FILE = -1, /* file unreadable, damaged, of another format, or not writable */
  NGIO_ERR_NOMEM = -2,
  NGIO_ERR_ARG = -3 /* the caller's data cannot be written */
} ngio_status;

/* The values equal the values of ng_dtype; src/state/work.c asserts it. */
typedef enum ngio_dtype {
  NGIO_F32 = 1,
  NGIO_F64 = 2,
  NGIO_F16 = 3,
  NGIO_BF16 = 4,
  NGIO_I32 = 5,
  NGIO_I64 = 6,
  NGIO_U8 = 7
} ngio_dtype;

#define NGIO_MAX_DIMS 8

int64_t ngio_dtype_size(ngio_dtype t); /* bytes; 0: unknown dtype */
/* return the name in safetensors files, such as "F32"; NULL: unknown dtype */
const char *ngio_dtype_name(ngio_dtype t);

/* Allocator for the data of a file; NULL: malloc and free. `take` returns memory that is aligned to at least 8 bytes,
 * or NULL; `give` frees it and gets the size that was passed to `take`. */
typedef struct ngio_alloc {
  void *(*take)(void *user, size_t bytes);
  void (*give)(void *user, void *ptr, size_t bytes);
  void *user;
} ngio_alloc;

/* ---- for the readers and writers inside io/ --------------------------------------------------*/

/* Functions of a caller's stream. ngio_read returns the number of bytes read, at most `bytes`; 0 at the end; < 0 on
 * failure. ngio_write returns 0, or another value on failure. */
typedef int64_t (*ngio_read)(void *user, void *data, int64_t bytes);
typedef int32_t (*ngio_write)(void *user, const void *data, int64_t bytes);

/* The caller's threads: all() runs each(arg, i) for i in [0, n) and waits until all have returned. */
typedef struct ngio_threads {
  void (*all)(void *user, int32_t n, void (*each)(void *arg, int32_t i), void *arg);
  void *user;
} ngio_threads;

/* What a reader reads from: a file or memory, at any offset; or a stream, in order only. */
typedef struct ngio_source {
  const char *label; /* name of the source in messages, such as the path */
  int fd;            /* -1: memory or a stream */
  const unsigned char *memory;
  int64_t size; /* -1: a stream of unknown size */
  ngio_read read;
  void *user;
  int64_t at;           /* stream: number of bytes read so far */
  ngio_threads threads; /* file: the caller may set threads that read large pieces in parallel */
} ngio_source;

ngio_status ngio_source_open(ngio_source *s, const char *path, char *message, size_t size);
void ngio_source_memory(ngio_source *s, const char *label, const void *bytes, size_t n);
void ngio_source_stream(ngio_source *s, const char *label, ngio_read read, void *user);
/* Read exactly n bytes. For a stream, offset must be its present position. */
ngio_status ngio_source_read(ngio_source *s, int64_t offset, void *to, int64_t n, char *message,
                             size_t size);
/* Return an error if a stream has more bytes; for a file or memory, return NGIO_OK. */
ngio_status ngio_source_end(ngio_source *s, char *message, size_t size);
void ngio_source_close(ngio_source *s);

/* Return the bytes of an array; -1 if t is unknown, an extent is negative, or the product overflows. */
int64_t ngio_bytes_of(ngio_dtype t, const int64_t *shape, int32_t ndim);

#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
ngio_status
ngio_say(char *message, size_t size, ngio_status st, const char *format, ...);

/* Return the number of bytes before the first of the 8 bytes at `text` that needs an escape in a JSON string (a quote,
 * backslash or control character).  Each subtraction marks such bytes by their high bit.  It may borrow from higher
 * bytes and mark them wrongly, so only the lowest mark counts. */
static inline int ngio_bytes_before_escape(const char *text) {
  const uint64_t each = UINT64_C(0x0101010101010101), high = 0x80 * each;
  uint64_t x;
  memcpy(&x, text, 8);
  const uint64_t quote = x ^ '"' * each, slash = x ^ '\\' * each;
  const uint64_t mark =
      (((x - 0x20 * each) & ~x) | ((quote - each) & ~quote) | ((slash - each) & ~slash)) & high;
  return mark == 0 ? 8 : __builtin_ctzll(mark) >> 3;
}

/* Return 1 if `text` is valid UTF-8, as JSON requires; else 0. */
int ngio_is_utf8(const char *text);

/* Copy at most 79 bytes of `text` for a message and replace control characters by '?'. */
typedef struct ngio_printable_text {
  char text[80];
} ngio_printable_text;
ngio_printable_text ngio_printable(const char *text);

#ifdef __cplusplus
}
#endif
#endif
