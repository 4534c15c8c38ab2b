/* io.c: read bytes of a file, of memory or of a stream; write messages; allocate memory for data.
 *
 * A read returns exactly the requested bytes; a short read is an error.  Files are read, not mapped: if another process
 * truncates a mapped file, the program that mapped it gets a signal. */
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "natgrad's files are little-endian and are read without swapping"
#endif

static const struct {
  const char *name;
  int64_t size;
} dtype[] = {[NGIO_F32] = {"F32", 4},   [NGIO_F64] = {"F64", 8}, [NGIO_F16] = {"F16", 2},
             [NGIO_BF16] = {"BF16", 2}, [NGIO_I32] = {"I32", 4}, [NGIO_I64] = {"I64", 8},
             [NGIO_U8] = {"U8", 1}};

static int is_known_dtype(ngio_dtype t) { return t >= NGIO_F32 && t <= NGIO_U8; }
int64_t ngio_dtype_size(ngio_dtype t) { return is_known_dtype(t) ? dtype[t].size : 0; }
const char *ngio_dtype_name(ngio_dtype t) { return is_known_dtype(t) ? dtype[t].name : NULL; }

int64_t ngio_bytes_of(ngio_dtype t, const int64_t *shape, int32_t ndim) {
  int64_t bytes = ngio_dtype_size(t);
  if (bytes == 0) return -1;
  /* If an extent is 0, the product is 0, but the other extents must be valid, too. */
  int64_t zero = 0;
  for (int32_t i = 0; i < ndim; i++) {
    if (shape[i] < 0) return -1;
    if (shape[i] == 0) {
      zero = 1;
    } else if (bytes > INT64_MAX / shape[i]) {
      return -1;
    } else {
      bytes *= shape[i];
    }
  }
  return zero ? 0 : bytes;
}

ngio_status ngio_say(char *message, size_t size, ngio_status st, const char *format, ...) {
  if (message && size > 0) {
    va_list args;
    va_start(args, format);
    (void)vsnprintf(message, size, format, args);
    va_end(args);
  }
  return st;
}

ngio_printable_text ngio_printable(const char *text) {
  ngio_printable_text q;
  size_t n = 0;
  for (; text[n] != 0 && n + 1 < sizeof q.text; n++) {
    unsigned char c = (unsigned char)text[n];
    q.text[n] = (c < 32 || c == 127) ? '?' : (char)c;
  }
  q.text[n] = 0;
  return q;
}

/* RFC 3629 forbids overlong forms, surrogates, and code points above U+10FFFF. */
int ngio_is_utf8(const char *text) {
  const unsigned char *c = (const unsigned char *)text, *end = c + strlen(text);
  while (*c != 0) {
    uint64_t eight = 0;
    if (end - c >= 8) memcpy(&eight, c, 8);
    if (end - c >= 8 && (eight & UINT64_C(0x8080808080808080)) == 0) { /* ASCII */
      c += 8;
      continue;
    }
    int more = *c < 0x80 ? 0 : *c >= 0xc2 && *c < 0xe0 ? 1 : *c >= 0xe0 && *c < 0xf0 ? 2 : 3;
    if ((*c >= 0x80 && *c < 0xc2) || *c > 0xf4) return 0;
    if ((*c == 0xe0 && c[1] < 0xa0) || (*c == 0xed && c[1] > 0x9f) || (*c == 0xf0 && c[1] < 0x90) ||
        (*c == 0xf4 && c[1] > 0x8f))
      return 0;
    for (c++; more > 0; more--, c++) {
      /* also true at the terminating 0, so the loop ends there */
      if ((*c & 0xc0) != 0x80) return 0;
    }
  }
  return 1;
}

ngio_status ngio_source_open(ngio_source *s, const char *path, char *message, size_t size) {
  memset(s, 0, sizeof *s);
  s->label = path ? path : "(no path)";
  s->fd = -1;
  if (!path || !*path) return ngio_say(message, size, NGIO_ERR_FILE, "no path given");
  /* Without O_NONBLOCK, open of a pipe would wait for a writer. */
  int fd;
  do {
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return ngio_say(message, size, NGIO_ERR_FILE, "%s: %s", path, strerror(errno));
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    (void)close(fd);
    return ngio_say(message, size, NGIO_ERR_FILE, "%s: not a regular file", path);
  }
  s->fd = fd;
  s->size = (int64_t)info.st_size;
  return NGIO_OK;
}

void ngio_source_memory(ngio_source *s, const char *label, const void *bytes, size_t n) {
  memset(s, 0, sizeof *s);
  s->label = label;
  s->fd = -1;
  s->memory = (const unsigned char *)bytes;
  s->size = (int64_t)n;
}

void ngio_source_stream(ngio_source *s, const char *label, ngio_read read, void *user) {
  memset(s, 0, sizeof *s);
  s->label = label;
  s->fd = -1;
  s->size = -1;
  s->read = read;
  s->user = user;
}

/* Call the stream's `read` until n bytes have arrived: it may return fewer bytes than requested. */
static ngio_status read_stream(ngio_source *s, char *to, int64_t n, char *message, size_t size) {
  while (n > 0) {
    const int64_t got = s->read(s->user, to, n);
    if (got < 0)
      return ngio_say(message, size, NGIO_ERR_FILE, "%s: the reader failed (%lld)", s->label,
                      (long long)got);
    if (got == 0) return ngio_say(message, size, NGIO_ERR_FILE, "%s: ends too early", s->label);
    if (got > n)
      return ngio_say(message, size, NGIO_ERR_FILE,
                      "%s: the reader returned %lld, expected at most the %lld requested bytes",
                      s->label, (long long)got, (long long)n);
    to += got;
    s->at += got;
    n -= got;
  }
  return NGIO_OK;
}

ngio_status ngio_source_end(ngio_source *s, char *message, size_t size) {
  char more;
  if (s->read == NULL) return NGIO_OK;
  const int64_t got = s->read(s->user, &more, 1);
  if (got == 0) return NGIO_OK;
  if (got < 0)
    return ngio_say(message, size, NGIO_ERR_FILE, "%s: the reader failed (%lld)", s->label,
                    (long long)got);
  return ngio_say(message, size, NGIO_ERR_FILE, "%s: has data after its last byte, %lld", s->label,
                  (long long)s->at);
}

static ngio_status read_file(const ngio_source *s, int64_t offset, char *to, int64_t n,
                             char *message, size_t size) {
  while (n > 0) {
    size_t piece = n > (int64_t)1 << 30 ? (size_t)1 << 30 : (size_t)n;
    ssize_t got = pread(s->fd, to, piece, (off_t)offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ngio_say(message, size, NGIO_ERR_FILE, "%s: %s", s->label, strerror(errno));
    if (got == 0)
      return ngio_say(message, size, NGIO_ERR_FILE, "%s: was truncated while being read", s->label);
    to += got;
    offset += got;
    n -= got;
  }
  return NGIO_OK;
}

/* A large read has at most LANES pieces for threads; their size is a multiple of LARGE bytes, a large page. */
enum { LANES = 16, LARGE = 1 << 21 };

typedef struct lanes {
  const ngio_source *s;
  int64_t offset, n, piece;
  char *to;
  struct {
    ngio_status st;
    char message[256];
  } said[LANES];
} lanes;

static void read_piece(void *arg, int32_t i) {
  lanes *l = (lanes *)arg;
  const int64_t at = i * l->piece;
  const int64_t n = l->n - at < l->piece ? l->n - at : l->piece;
  if (n <= 0) return;
  l->said[i].st =
      read_file(l->s, l->offset + at, l->to + at, n, l->said[i].message, sizeof l->said[i].message);
}

static ngio_status read_in_parallel(const ngio_source *s, int64_t offset, char *to, int64_t n,
                                    char *message, size_t size) {
  lanes l = {.s = s, .offset = offset, .n = n, .to = to};
  l.piece = (n / LANES / LARGE + 1) * LARGE;
  s->threads.all(s->threads.user, LANES, read_piece, &l);
  for (int i = 0; i < LANES; i++) {
    if (l.said[i].st != NGIO_OK)
      return ngio_say(message, size, l.said[i].st, "%s", l.said[i].message);
  }
  return NGIO_OK;
}

ngio_status ngio_source_read(ngio_source *s, int64_t offset, void *to, int64_t n, char *message,
                             size_t size) {
  if (s->read != NULL) {
    if (offset == s->at) return read_stream(s, to, n, message, size);
    return ngio_say(message, size, NGIO_ERR_ARG, "%s: a stream can only be read in order",
                    s->label);
  }
  if (offset < 0 || n < 0 || offset > s->size || n > s->size - offset)
    return ngio_say(message, size, NGIO_ERR_FILE, "%s: ends too early", s->label);
  if (s->fd < 0) {
    if (n > 0) memcpy(to, s->memory + offset, (size_t)n);
    return NGIO_OK;
  }
  if (s->threads.all != NULL && n >= 2 * (int64_t)LARGE)
    return read_in_parallel(s, offset, to, n, message, size);
  return read_file(s, offset, to, n, message, size);
}

void ngio_source_close(ngio_source *s) {
  if (s->fd >= 0) (void)close(s->fd);
  s->fd = -1;
}
