/* disk.c: read and write files of a run directory. Files under their final names are complete, even after a kill. */
#include "disk.h"
#include "common/cli.h"
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

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

/* Flush a folder. Only EIO is an error: some file systems cannot flush folders, and some folders cannot be read. */
static bool flush_folder(const char *path) {
  char *folder = cli_get_folder(path);
  const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool done = fd < 0 || fsync(fd) == 0 || errno != EIO;
  if (fd >= 0) (void)close(fd);
  free(folder);
  return done;
}

int disk_write_file(const char *path, const void *bytes, size_t size) {
  const size_t n = strlen(path) + sizeof ".natgrad-part";
  char *part = cli_alloc(n, 1);
  (void)snprintf(part, n, "%s.natgrad-part", path);
  if (disk_check_regular(path) != CLI_OK || disk_check_regular(part) != CLI_OK) {
    free(part);
    return CLI_BAD;
  }
  const int fd =
      open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
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
  return done ? CLI_OK : cli_fail("%s: cannot be written: %s", path, strerror(why));
}

int disk_check_regular(const char *path) {
  struct stat st;
  if (lstat(path, &st) != 0 || S_ISREG(st.st_mode)) return CLI_OK;
  return cli_fail("%s: is %s, expected a regular file", path,
                  S_ISLNK(st.st_mode)    ? "a symbolic link"
                  : S_ISDIR(st.st_mode)  ? "a folder"
                  : S_ISFIFO(st.st_mode) ? "a pipe"
                                         : "a device or a socket");
}

int disk_print_file(const char *path, void (*print)(FILE *f, const void *what), const void *what) {
  char *text = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&text, &size);
  if (f != NULL) print(f, what);
  const int rc = f != NULL && fclose(f) == 0 ? disk_write_file(path, text, size)
                                             : cli_fail("%s: no memory", path);
  free(text);
  return rc;
}

void disk_remove_file(const char *path) {
  struct stat st;
  if (lstat(path, &st) == 0 && S_ISREG(st.st_mode)) (void)unlink(path);
}

int disk_lock_folder(const char *dir, const char *who, int *fd) {
  *fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (*fd < 0 || flock(*fd, LOCK_EX | LOCK_NB) == 0) return CLI_OK;
  const bool taken = errno == EWOULDBLOCK;
  (void)close(*fd);
  *fd = -1;
  return taken ? cli_fail("--out: another natgrad %s is running in %s", who, dir) : CLI_OK;
}

int disk_read_text(const char *path, char **out) {
  ngio_source s;
  char message[512] = "";
  *out = NULL;
  if (ngio_source_open(&s, path, message, sizeof message) != NGIO_OK)
    return cli_fail("%s", message);
  char *text = cli_alloc((size_t)s.size + 1, 1);
  const bool read = ngio_source_read(&s, 0, text, s.size, message, sizeof message) == NGIO_OK;
  const bool zero = read && memchr(text, 0, (size_t)s.size) != NULL;
  ngio_source_close(&s);
  if (read && !zero) {
    *out = text;
    return CLI_OK;
  }
  free(text);
  return zero ? cli_fail("%s: contains a zero byte, expected text", path) : cli_fail("%s", message);
}

int disk_make_folder(const char *path) {
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
  return cli_fail("%s: the folder cannot be created: %s", path, strerror(why));
}

int disk_make_run_subfolder(const char *path) {
  struct stat st;
  if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode))
    return cli_fail("%s: is a symbolic link, expected a folder", path);
  return disk_make_folder(path);
}

uint32_t disk_compute_crc(const void *bytes, size_t size) {
  return (uint32_t)crc32_z(crc32_z(0, NULL, 0), bytes, size);
}
