/* io.h: what the file readers and writers share.
 *
 * io/ is a small static library.  It knows neither the engine nor the command line, and both use
 * it: the engine for its state, the command line for recordings.  Every function that can fail
 * returns an ngio_status and writes one line to the caller's buffer (`message` may be NULL); text
 * that comes out of a file is cleaned of control characters before it is quoted there.
 *
 * Files are little-endian; the host must be little-endian, too.
 */
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
  NGIO_ERR_FILE = -1, /* unreadable, damaged, of another kind, or not writable                   */
  NGIO_ERR_NOMEM = -2,
  NGIO_ERR_ARG = -3 /* the caller asked for something that cannot be written                   */
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

int64_t ngio_dtype_size(ngio_dtype t);     /* 0 for an unknown one */
const char *ngio_dtype_name(ngio_dtype t); /* as in safetensors: "F32"; NULL */

/* Where the (large) payload of a file is put.  NULL stands for the C library.  `take` returns at
 * least 8-byte aligned memory or NULL; `give` gets the size that was asked for. */
typedef struct ngio_alloc {
  void *(*take)(void *user, size_t bytes);
  void (*give)(void *user, void *ptr, size_t bytes);
  void *user;
} ngio_alloc;

/* ---- for the readers and writers inside io/ --------------------------------------------------*/

/* A caller's stream.  read: bytes given, at most `bytes`; 0 at the end; < 0 failed.  write: 0, or it
 * failed. */
typedef int64_t (*ngio_read)(void *user, void *data, int64_t bytes);
typedef int32_t (*ngio_write)(void *user, const void *data, int64_t bytes);

/* The owner's threads: each(arg, i) for i from 0 to n - 1, side by side, until all are done. */
typedef struct ngio_threads {
  void (*all)(void *user, int32_t n, void (*each)(void *arg, int32_t i), void *arg);
  void *user;
} ngio_threads;

/* Bytes that can be read at any offset, an open file or a piece of memory; or only one after the
 * other, from a stream. */
typedef struct ngio_source {
  const char *label; /* for messages: the path                                                    */
  int fd;            /* -1: memory or a stream                                                    */
  const unsigned char *memory;
  int64_t size; /* of a stream, which does not say: -1                                       */
  ngio_read read;
  void *user;
  int64_t at; /* of a stream: bytes taken                                                    */
  ngio_threads
      threads; /* of a file, may be set after it was opened: they read large pieces together */
} ngio_source;

ngio_status ngio_source_open(ngio_source *s, const char *path, char *message, size_t size);
void ngio_source_memory(ngio_source *s, const char *label, const void *bytes, size_t n);
void ngio_source_stream(ngio_source *s, const char *label, ngio_read read, void *user);
/* All n bytes, or an error.  A stream is read in order: offset is where it stands. */
ngio_status ngio_source_read(ngio_source *s, int64_t offset, void *to, int64_t n, char *message,
                             size_t size);
/* Fail if the stream has more bytes; the size of a file is known from the start. */
ngio_status ngio_source_end(ngio_source *s, char *message, size_t size);
void ngio_source_close(ngio_source *s);

/* alloc NULL: the C library.  Zero bytes is a valid size. */
void *ngio_take(const ngio_alloc *alloc, int64_t bytes);
void ngio_give(const ngio_alloc *alloc, void *ptr, int64_t bytes);

/* Product of the shape times the element size; -1 if a number is negative or does not fit. */
int64_t ngio_bytes_of(ngio_dtype t, const int64_t *shape, int32_t ndim);

#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
ngio_status
ngio_say(char *message, size_t size, ngio_status st, const char *format, ...);

/* Of the 8 bytes at text, which has so many: how many of the first stand for themselves in a JSON string,
 * which are neither a quote, a backslash nor a control character.  A borrow of one of the subtractions goes
 * upward only, so the lowest mark is right. */
static inline int ngio_plain(const char *text) {
  const uint64_t each = UINT64_C(0x0101010101010101), high = 0x80 * each;
  uint64_t x;
  memcpy(&x, text, 8);
  const uint64_t quote = x ^ '"' * each, slash = x ^ '\\' * each;
  const uint64_t mark =
      (((x - 0x20 * each) & ~x) | ((quote - each) & ~quote) | ((slash - each) & ~slash)) & high;
  return mark == 0 ? 8 : __builtin_ctzll(mark) >> 3;
}

/* JSON takes nothing else. */
int ngio_is_utf8(const char *text);

/* `text` fit for a message: cut to 79 bytes, control characters replaced. */
typedef struct ngio_quoted {
  char text[80];
} ngio_quoted;
ngio_quoted ngio_quote(const char *text);

#ifdef __cplusplus
}
#endif
#endif
