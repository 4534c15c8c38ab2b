/* disk.c: files of a run directory.  A run is killed at any moment; what bears a file's final name
 * is complete. */
#include "disk.h"
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

bool disk_exists(const char *path) {
  struct stat st;
  return lstat(path, &st) == 0;
}

static bool write_all(int fd, const char *bytes, size_t size) {
  while (size > 0) {
    const ssize_t n = write(fd, bytes, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes += n;
    size -= (size_t)n;
  }
  return true;
}

static bool flush_folder(const char *path) {
  char *folder = cli_join(path, "");
  char *slash = strrchr(folder, '/'); /* the one that disk_join put */
  *slash = 0;
  slash = strrchr(folder, '/');
  if (slash != NULL) slash[slash == folder] = 0;
  const int fd = open(slash != NULL ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool done = fd >= 0 && fsync(fd) == 0;
  if (fd >= 0) (void)close(fd);
  free(folder);
  return done;
}

/* Neither flushed nor renamed: a device, a pipe. */
static int write_through(const char *path, const void *bytes, size_t size) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  bool done = fd >= 0 && write_all(fd, bytes, size);
  int why = errno;
  if (fd >= 0 && close(fd) != 0 && done) {
    done = false;
    why = errno;
  }
  return done ? CLI_OK : cli_bad("%s: cannot be written: %s", path, strerror(why));
}

static int replace(const char *path, const void *bytes, size_t size) {
  const size_t n = strlen(path) + sizeof ".part";
  char *part = cli_take(n, 1);
  (void)snprintf(part, n, "%s.part", path);
  const int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  bool done = fd >= 0 && write_all(fd, bytes, size) && fsync(fd) == 0;
  int why = errno;
  if (fd >= 0 && close(fd) != 0 && done) {
    done = false;
    why = errno;
  }
  if (done && (rename(part, path) != 0 || !flush_folder(path))) {
    done = false;
    why = errno;
  }
  if (!done && fd >= 0) (void)unlink(part);
  free(part);
  return done ? CLI_OK : cli_bad("%s: cannot be written: %s", path, strerror(why));
}

int disk_write(const char *path, const void *bytes, size_t size) {
  struct stat st;
  if (stat(path, &st) != 0) return replace(path, bytes, size);
  if (!S_ISREG(st.st_mode)) return write_through(path, bytes, size);
  char *file = realpath(path, NULL); /* what a link points to is replaced, not the link */
  const int rc = replace(file != NULL ? file : path, bytes, size);
  free(file);
  return rc;
}

int disk_lock(const char *dir, const char *who, int *fd) {
  *fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (*fd < 0 || flock(*fd, LOCK_EX | LOCK_NB) == 0) return CLI_OK;
  const bool taken = errno == EWOULDBLOCK;
  (void)close(*fd);
  *fd = -1;
  return taken ? cli_bad("--out: another natgrad %s is at work in %s", who, dir) : CLI_OK;
}

int disk_read(const char *path, char **out) {
  *out = NULL;
  FILE *f = fopen(path, "rb");
  if (f == NULL) return cli_bad("%s: cannot be read: %s", path, strerror(errno));
  size_t n = 0, room = 4096;
  char *text = cli_take(room, 1);
  for (size_t got; (got = fread(text + n, 1, room - n - 1, f)) > 0;) {
    n += got;
    if (n + 1 < room) continue;
    char *more = cli_take(room * 2, 1);
    memcpy(more, text, n);
    free(text);
    text = more;
    room *= 2;
  }
  text[n] = 0;
  const bool failed = ferror(f) != 0;
  const int why = errno;
  (void)fclose(f);
  if (failed) {
    free(text);
    return cli_bad("%s: cannot be read: %s", path, strerror(why));
  }
  *out = text;
  return CLI_OK;
}

int disk_folder(const char *path) {
  char *part = cli_join(path, "");
  int why = 0;
  for (char *c = part + 1; *c != 0; c++) {
    if (*c != '/') continue;
    *c = 0;
    why = mkdir(part, 0777) == 0 || errno == EEXIST ? 0 : errno;
    *c = '/';
    if (why != 0) break;
  }
  free(part);
  struct stat st;
  if (why == 0 && (stat(path, &st) != 0 || !S_ISDIR(st.st_mode))) why = ENOTDIR;
  if (why == 0) return CLI_OK;
  return cli_bad("%s: cannot be made a folder: %s", path, strerror(why));
}
