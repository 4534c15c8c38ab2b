/* safetensors_write.c: write safetensors files.
 *
 * The result is a complete file, or an error and the unchanged earlier file.  The writer locks and writes
 * PATH.natgrad-part, flushes it to the disk, renames it to PATH, and flushes the folder.  So PATH is a complete file at
 * every moment.  A stream gets the same bytes.
 *
 * Bytes are written in order and once, as a stream requires, so the header must be complete before the data. */
#include "json.h"
#include "part_files.h"
#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct ngio_writer {
  char *path;       /* path of the file, or label of the stream */
  char *part;       /* temporary name of the file */
  int fd;           /* -1: a stream, or not open */
  ngio_write write; /* callback that writes a stream; NULL: the writer writes a file */
  void *user;
  int64_t expect;  /* number of bytes of data that the header announces */
  int64_t written; /* number of bytes of data that ngio_writer_put has received */
  int flushed;     /* every byte is on the disk */
  char *held;      /* file: buffer for bytes that are not yet written */
  /* file: buffer for paths of other files in the same folder (ngio_parts_room) */
  char *other;
  int64_t holds;          /* bytes in `held` */
  int64_t given, started; /* file: bytes passed to write(); bytes whose writeback was started */
};

/* capacity of `held`; number of bytes after which writeback is started again */
enum { HELD = 1 << 18, AHEAD = 1 << 22 };
static const char part_end[] = ".natgrad-part";

/* Append the header entry of a tensor, and advance w->expect by the bytes of its data. */
static ngio_status add_tensor(ngio_writer *w, ngio_out *o, const ngio_tensor *t, char *message,
                              size_t size) {
  if (!t->name || !*t->name || strcmp(t->name, "__metadata__") == 0)
    return ngio_say(message, size, NGIO_ERR_ARG, "%s: a tensor cannot be named '%s'", w->path,
                    t->name ? t->name : "");
  int64_t bytes = -1;
  if (t->ndim >= 0 && t->ndim <= NGIO_MAX_DIMS) bytes = ngio_bytes_of(t->dtype, t->shape, t->ndim);
  if (bytes < 0 || bytes > INT64_MAX - w->expect)
    return ngio_say(message, size, NGIO_ERR_ARG, "%s: tensor '%s': bad dtype or shape", w->path,
                    ngio_printable(t->name).text);
  /* the reader refuses unaligned tensors */
  if (w->expect % ngio_dtype_size(t->dtype) != 0)
    return ngio_say(message, size, NGIO_ERR_ARG, "%s: tensor '%s': wider dtypes go first", w->path,
                    ngio_printable(t->name).text);
  if (!ngio_is_utf8(t->name))
    return ngio_say(message, size, NGIO_ERR_ARG, "%s: tensor '%s': its name is not UTF-8", w->path,
                    ngio_printable(t->name).text);
  ngio_put_key(o, t->name);
  ngio_out_put(o, "{\"dtype\":\"");
  ngio_out_put(o, ngio_dtype_name(t->dtype));
  ngio_out_put(o, "\",\"shape\":[");
  for (int32_t i = 0; i < t->ndim; i++)
    ngio_put_integer(o, NULL, t->shape[i]);
  ngio_out_put(o, "],\"data_offsets\":[");
  ngio_put_integer(o, NULL, w->expect);
  ngio_put_integer(o, NULL, w->expect += bytes);
  ngio_out_put(o, "]}");
  return NGIO_OK;
}

static ngio_status add_texts(const ngio_writer *w, ngio_out *o, const ngio_text *text,
                             int32_t texts, char *message, size_t size) {
  ngio_open(o, "__metadata__", '{');
  for (int32_t i = 0; i < texts; i++) {
    if (!ngio_is_utf8(text[i].key) || !ngio_is_utf8(text[i].value))
      return ngio_say(message, size, NGIO_ERR_ARG, "%s: metadata '%s' is not UTF-8", w->path,
                      ngio_printable(text[i].key).text);
    ngio_put_key(o, text[i].key);
    ngio_out_string(o, text[i].value);
  }
  ngio_shut(o, '}');
  return NGIO_OK;
}

/* Write length and header, padded with blanks so that the data starts at a multiple of 8. */
static ngio_status write_header(ngio_writer *w, ngio_out *o, const ngio_tensor *tensors, int32_t n,
                                const ngio_text *text, int32_t texts, char *message, size_t size) {
  ngio_status st = NGIO_OK;
  ngio_out_put(o, "        {"); /* room for the length */
  if (texts > 0) st = add_texts(w, o, text, texts, message, size);
  for (int32_t t = 0; t < n && st == NGIO_OK; t++)
    st = add_tensor(w, o, &tensors[t], message, size);
  if (st != NGIO_OK) return st;
  ngio_out_put(o, "}");
  while (o->used % 8 != 0 && !o->lost)
    ngio_out_put(o, " ");
  if (o->lost)
    return ngio_say(message, size, NGIO_ERR_NOMEM, "%s: no memory for the header", w->path);
  for (int i = 0; i < 8; i++)
    o->text[i] = (char)(unsigned char)((uint64_t)(o->used - 8) >> (8 * i));
  return NGIO_OK;
}

static ngio_status write_to_stream(const ngio_writer *w, const void *data, int64_t n, char *message,
                                   size_t size) {
  const int32_t said = n > 0 ? w->write(w->user, data, n) : 0;
  if (said == 0) return NGIO_OK;
  return ngio_say(message, size, NGIO_ERR_FILE, "%s: the writer failed (%ld)", w->path, (long)said);
}

/* Let the operating system begin to write to the disk now, so that the final fsync waits less.  Ignore errors, because
 * fsync reports them. */
static void start_writeback(ngio_writer *w) {
  if (w->given - w->started < AHEAD) return;
#ifdef SYNC_FILE_RANGE_WRITE
  (void)sync_file_range(w->fd, w->started, w->given - w->started, SYNC_FILE_RANGE_WRITE);
#endif
  w->started = w->given;
}

static ngio_status write_to_file(ngio_writer *w, const char *at, int64_t n, char *message,
                                 size_t size) {
  while (n > 0) {
    size_t piece = n > (int64_t)1 << 30 ? (size_t)1 << 30 : (size_t)n;
    ssize_t put = write(w->fd, at, piece);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0)
      return ngio_say(message, size, NGIO_ERR_FILE, "%s: cannot write: %s", w->path,
                      put < 0 ? strerror(errno) : "no space");
    at += put;
    n -= put;
    w->given += put;
    start_writeback(w);
  }
  return NGIO_OK;
}

static ngio_status flush_held_bytes(ngio_writer *w, char *message, size_t size) {
  const int64_t n = w->holds;
  w->holds = 0;
  return write_to_file(w, w->held, n, message, size);
}

/* Write n bytes.  A state has tens of thousands of small arrays, so collect small pieces of a file in `held`. */
static ngio_status append_bytes(ngio_writer *w, const void *data, int64_t n, char *message,
                                size_t size) {
  ngio_status st = NGIO_OK;
  if (w->write != NULL) return write_to_stream(w, data, n, message, size);
  if (n > HELD - w->holds) st = flush_held_bytes(w, message, size);
  if (st != NGIO_OK) return st;
  if (n >= HELD) return write_to_file(w, data, n, message, size);
  if (n > 0) memcpy(w->held + w->holds, data, (size_t)n);
  w->holds += n;
  return NGIO_OK;
}

/* Open and lock PATH.natgrad-part, a reserved name.  The file of a killed writer has no lock: overwrite this file.  If
 * another writer renames the file between open and lock, open the path again. */
static ngio_status open_temporary_file(ngio_writer *w, char *message, size_t size) {
  struct stat target, mine, named;
  if (stat(w->path, &target) == 0 && !S_ISREG(target.st_mode))
    return ngio_say(message, size, NGIO_ERR_FILE, "%s: exists and is not a regular file", w->path);
  for (int attempt = 0; attempt < 100; attempt++) {
    int fd = open(w->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (fd < 0 && errno == EINTR) continue;
    if (fd < 0)
      return ngio_say(message, size, NGIO_ERR_FILE, "%s: cannot write: %s", w->path,
                      strerror(errno));
    if (fstat(fd, &mine) != 0 || !S_ISREG(mine.st_mode)) {
      (void)close(fd);
      return ngio_say(message, size, NGIO_ERR_FILE,
                      "%s.natgrad-part: exists and is not a regular file", w->path);
    }
    /* On file systems without locks (some network file systems), flock fails with another errno; then continue without
     * a lock. */
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      (void)close(fd);
      return ngio_say(message, size, NGIO_ERR_FILE, "%s: another program is writing it", w->path);
    }
    if (stat(w->part, &named) != 0 || named.st_ino != mine.st_ino || named.st_dev != mine.st_dev) {
      (void)close(fd);
      continue;
    }
    w->fd = fd;
    if (ftruncate(fd, 0) != 0)
      return ngio_say(message, size, NGIO_ERR_FILE, "%s: cannot write: %s", w->path,
                      strerror(errno));
    return NGIO_OK;
  }
  return ngio_say(message, size, NGIO_ERR_FILE, "%s: another program keeps writing it", w->path);
}

/* Create a writer of a file (`write` NULL) or a stream, with all memory that it needs, and write the header. */
static ngio_status create_writer(const char *path, ngio_write write, void *user,
                                 const ngio_tensor *tensors, int32_t n, const ngio_text *text,
                                 int32_t texts, ngio_writer **out, char *message, size_t size) {
  const size_t name = strlen(path) + sizeof part_end;
  ngio_out o = {0};
  ngio_writer *w = *out = calloc(1, sizeof *w);
  if (w) {
    w->fd = -1;
    w->write = write;
    w->user = user;
    w->path = malloc(2 * name);
    w->held = malloc(HELD);
    w->other = malloc(ngio_parts_room(path));
  }
  if (!w || !w->path || !w->held || !w->other) {
    ngio_writer_abandon(out);
    return ngio_say(message, size, NGIO_ERR_NOMEM, "%s: no memory", path);
  }
  w->part = w->path + name;
  (void)stpcpy(w->path, path);
  (void)stpcpy(stpcpy(w->part, path), part_end);
  ngio_status st = write_header(w, &o, tensors, n, text, texts, message, size);
  if (st == NGIO_OK && write == NULL) st = open_temporary_file(w, message, size);
  if (st == NGIO_OK) st = append_bytes(w, o.text, (int64_t)o.used, message, size);
  ngio_out_free(&o);
  if (st != NGIO_OK) ngio_writer_abandon(out);
  return st;
}

ngio_status ngio_writer_create(const char *path, const ngio_tensor *tensors, int32_t n,
                               const ngio_text *text, int32_t texts, ngio_writer **out,
                               char *message, size_t size) {
  *out = NULL;
  if (!path || !*path) return ngio_say(message, size, NGIO_ERR_FILE, "no path given");
  return create_writer(path, NULL, NULL, tensors, n, text, texts, out, message, size);
}

ngio_status ngio_writer_stream(const char *label, ngio_write write, void *user,
                               const ngio_tensor *tensors, int32_t n, const ngio_text *text,
                               int32_t texts, ngio_writer **out, char *message, size_t size) {
  *out = NULL;
  if (write == NULL) return ngio_say(message, size, NGIO_ERR_ARG, "%s: no writer given", label);
  return create_writer(label, write, user, tensors, n, text, texts, out, message, size);
}

ngio_status ngio_writer_put(ngio_writer *w, const void *data, int64_t bytes, char *message,
                            size_t size) {
  if (bytes < 0 || bytes > w->expect - w->written)
    return ngio_say(message, size, NGIO_ERR_ARG, "%s: more data than announced", w->path);
  ngio_status st = append_bytes(w, data, bytes, message, size);
  if (st == NGIO_OK) w->written += bytes;
  return st;
}

/* Flush the folder after the rename.  Report only EIO, a failing disk: some file systems cannot flush a folder
 * (EINVAL), and some folders cannot be read (EACCES). */
static ngio_status sync_folder(const ngio_writer *w, char *message, size_t size) {
  const char *slash = strrchr(w->path, '/');
  ngio_status st = NGIO_OK;
  (void)stpcpy(w->other, slash ? w->path : ".");
  if (slash) w->other[slash == w->path ? 1 : slash - w->path] = 0;
  const int fd = open(w->other, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0 && fsync(fd) != 0 && errno == EIO)
    st = ngio_say(message, size, NGIO_ERR_FILE, "%s: cannot flush its folder: %s", w->path,
                  strerror(errno));
  if (fd >= 0) (void)close(fd);
  return st;
}

ngio_status ngio_writer_flush(ngio_writer *w, char *message, size_t size) {
  if (w->written != w->expect)
    return ngio_say(message, size, NGIO_ERR_ARG, "%s: %lld bytes of data, %lld were announced",
                    w->path, (long long)w->written, (long long)w->expect);
  if (w->write != NULL || w->flushed) return NGIO_OK;
  const ngio_status st = flush_held_bytes(w, message, size);
  if (st == NGIO_OK && fsync(w->fd) != 0)
    return ngio_say(message, size, NGIO_ERR_FILE, "%s: cannot flush: %s", w->path, strerror(errno));
  w->flushed = st == NGIO_OK;
  return st;
}

/* After the rename, create and lock PATH.natgrad-part again, which excludes other writers; then remove old parts.  If
 * another writer has replaced PATH since the rename (`done` is the renamed file), that writer removes the parts. */
static void remove_old_parts(ngio_writer *w, int done, const char *id) {
  struct stat mine, named;
  if (open_temporary_file(w, NULL, 0) != NGIO_OK) return;
  if (fstat(done, &mine) == 0 && stat(w->path, &named) == 0 && mine.st_ino == named.st_ino &&
      mine.st_dev == named.st_dev) {
    ngio_parts_sweep(w->path, id, w->other);
  }
}

/* Finish the file, then remove the parts of other states; `id` NULL: remove none. */
ngio_status ngio_writer_finish_and_sweep(ngio_writer **writer, const char *id, char *message,
                                         size_t size) {
  ngio_writer *w = *writer;
  int done = -1;
  ngio_status st = ngio_writer_flush(w, message, size);
  if (st != NGIO_OK || w->write != NULL) goto done;
  /* Rename while the lock is held: the next writer then creates another file. */
  if (rename(w->part, w->path) != 0) {
    st = ngio_say(message, size, NGIO_ERR_FILE, "%s: cannot write: %s", w->path, strerror(errno));
    goto done;
  }
  done = w->fd;
  w->fd = -1;
  st = sync_folder(w, message, size);
  if (st == NGIO_OK && id != NULL) remove_old_parts(w, done, id);
done:
  if (done >= 0) (void)close(done);
  ngio_writer_abandon(writer);
  return st;
}

ngio_status ngio_writer_finish(ngio_writer **writer, char *message, size_t size) {
  return ngio_writer_finish_and_sweep(writer, NULL, message, size);
}

void ngio_writer_abandon(ngio_writer **writer) {
  ngio_writer *w = *writer;
  if (!w) return;
  if (w->fd >= 0) {
    (void)unlink(w->part);
    (void)close(w->fd);
  }
  free(w->other);
  free(w->held);
  free(w->path);
  free(w);
  *writer = NULL;
}

ngio_status ngio_tensors_write(const char *path, const ngio_tensor *tensors, int32_t n,
                               const ngio_text *text, int32_t texts, char *message, size_t size) {
  ngio_writer *w = NULL;
  ngio_status st = NGIO_OK;
  ngio_tensor *order = calloc((size_t)n + 1, sizeof *order);
  int32_t placed = 0;
  if (!order) return ngio_say(message, size, NGIO_ERR_NOMEM, "%s: no memory", path ? path : "");
  for (int64_t width = 8; width >= 0; width = width > 1 ? width / 2 : width - 1) {
    for (int32_t i = 0; i < n; i++) {
      if (ngio_dtype_size(tensors[i].dtype) == width) order[placed++] = tensors[i];
    }
  }
  st = ngio_writer_create(path, order, n, text, texts, &w, message, size);
  for (int32_t i = 0; st == NGIO_OK && i < n; i++) {
    int64_t bytes = ngio_bytes_of(order[i].dtype, order[i].shape, order[i].ndim);
    st = ngio_writer_put(w, order[i].data, bytes, message, size);
  }
  if (st == NGIO_OK) st = ngio_writer_finish(&w, message, size);
  ngio_writer_abandon(&w);
  free(order);
  return st;
}
