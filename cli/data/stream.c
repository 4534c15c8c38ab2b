/* stream.c: read a file from start to end, plain or gzip, so that a reader can check the header before it allocates. A
 * gzip file (RFC 1952) has one or several members. zlib ignores other bytes after the last member, as gzip does. */
#include "readers.h"

#include "common/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum {
  PIECE = 1 << 16,
  RATIO = 1032
}; /* bytes read at once; largest compression ratio of deflate */

struct data_stream {
  const char *path;
  gzFile file;
  int64_t size; /* size of the file */
  bool zipped;
};

int data_stream_open(const char *path, bool plain, data_stream **out) {
  *out = NULL;
  char message[512];
  ngio_source source;
  if (ngio_source_open(&source, path, message, sizeof message) != NGIO_OK)
    return cli_fail("--data: %s", message);
  unsigned char mark[2] = {0, 0};
  const bool zipped = pread(source.fd, mark, 2, 0) == 2 && mark[0] == 0x1f && mark[1] == 0x8b;
  const gzFile file = zipped && plain ? NULL : gzdopen(source.fd, "rb"); /* now owns source.fd */
  if (file == NULL) {
    ngio_source_close(&source);
    return zipped && plain
               ? cli_fail("--data: %s: is compressed; expected an uncompressed file (gunzip it)",
                          path)
               : cli_fail("--data: %s: no memory", path);
  }
  (void)gzbuffer(file, PIECE);
  data_stream *s = *out = cli_alloc(1, sizeof *s);
  *s = (data_stream){path, file, source.size, zipped};
  return CLI_OK;
}

void data_stream_close(data_stream **s) {
  if (*s == NULL) return;
  (void)gzclose((*s)->file);
  free(*s);
  *s = NULL;
}

bool data_stream_is_gzip(const data_stream *s) { return s->zipped; }

int64_t data_stream_bound_bytes(const data_stream *s) {
  if (!s->zipped) return s->size;
  return s->size < INT64_MAX / RATIO ? s->size * RATIO : INT64_MAX;
}

/* Read up to n bytes, and return the number read; 0: end of the file; -1: error, reported. */
static int64_t read_up_to(const data_stream *s, void *to, int64_t n) {
  const int got = gzread(s->file, to, (unsigned)(n < 1 << 30 ? n : 1 << 30));
  int code = Z_OK;
  const char *why = gzerror(s->file, &code); /* "<fd:N>: reason" */
  if (got > 0 || code == Z_OK || code == Z_STREAM_END) return got;
  if (code == Z_ERRNO) {
    (void)cli_fail("--data: %s: %s", s->path, strerror(errno));
    return -1;
  }
  const char *reason = strstr(why, ": ");
  (void)cli_fail("--data: %s: damaged or cut short (%s)", s->path,
                 reason != NULL ? reason + 2 : why);
  return -1;
}

int data_stream_read(data_stream *s, void *to, int64_t n) {
  unsigned char *at = to;
  for (int64_t left = n; left > 0;) {
    const int64_t got = read_up_to(s, at, left);
    if (got < 0) return CLI_BAD;
    if (got == 0)
      return cli_fail("--data: %s: cut short: %lld bytes are missing", s->path, (long long)left);
    at += got;
    left -= got;
  }
  return CLI_OK;
}

int data_stream_check_end(data_stream *s) {
  unsigned char more;
  const int64_t got = read_up_to(s, &more, 1);
  if (got > 0) return cli_fail("--data: %s: has more bytes than its header says", s->path);
  return got == 0 ? CLI_OK : CLI_BAD;
}
