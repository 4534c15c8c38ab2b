/* part_files.c: see part_files.h. */
#include "part_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char temporary_end[] = ".natgrad-part";

/* ---- names -----------------------------------------------------------------------------------*/

void ngio_part_path(char *out, size_t size, const char *path, const char *id, int32_t part,
                    int32_t parts) {
  if (part == 0) {
    (void)snprintf(out, size, "%s", path);
  } else {
    (void)snprintf(out, size, "%s.%s-%ldof%ld", path, id, (long)part, (long)parts);
  }
}

void ngio_part_text(char out[NGIO_PART_ROOM], int32_t part, int32_t parts) {
  (void)snprintf(out, NGIO_PART_ROOM, "%ld of %ld", (long)part, (long)parts);
}

static const char *skip_digits(const char *c) {
  const size_t n = strspn(c, "0123456789");
  return n > 0 ? c + n : NULL;
}

int ngio_is_part_name(const char *end, int unfinished) {
  const char *c = end + NGIO_PART_ID;
  if (strspn(end, "0123456789abcdef") != NGIO_PART_ID || *c != '-' ||
      (c = skip_digits(c + 1)) == NULL || strncmp(c, "of", 2) != 0 ||
      (c = skip_digits(c + 2)) == NULL) {
    return 0;
  }
  return *c == 0 || (unfinished && strcmp(c, temporary_end) == 0);
}

size_t ngio_parts_room(const char *path) {
  return strlen(path) + sizeof((struct dirent *)NULL)->d_name + 1;
}

/* Call each() for every file that is named like a part of `path`, with its path in `room` (ngio_parts_room bytes),
 * until each() returns another value than 0; return this value, or 0.  An unreadable folder counts as empty. */
static int for_parts(const char *path, char *room, int (*each)(void *user, const char *name),
                     void *user) {
  const char *slash = strrchr(path, '/'), *base = slash != NULL ? slash + 1 : path;
  const size_t own = strlen(base), before = (size_t)(base - path);
  int said = 0;
  memcpy(room, path, before);
  memcpy(room + before, before > 0 ? "" : ".", before > 0 ? 1 : 2);
  DIR *d = opendir(room);
  for (const struct dirent *e; d != NULL && said == 0 && (e = readdir(d)) != NULL;) {
    if (strncmp(e->d_name, base, own) != 0 || e->d_name[own] != '.' ||
        !ngio_is_part_name(e->d_name + own + 1, 1)) {
      continue;
    }
    (void)stpcpy(room + before, e->d_name);
    said = each(user, room);
  }
  if (d != NULL) (void)closedir(d);
  return said;
}

/* ---- removal ---------------------------------------------------------------------------------*/

/* Return 1 if the metadata of the open file agrees with its name; `end`: the name without "PATH.".  The writer puts
 * this metadata first, after the length of the header, so an unfinished file (`unfinished`) may end before or in this
 * metadata. */
static int is_part(int fd, const char *end, int unfinished) {
  char says[NGIO_PART_ROOM], want[3 * NGIO_PART_ROOM], is[8 + sizeof want];
  char *after = NULL;
  const long part = strtol(end + NGIO_PART_ID + 1, &after, 10);
  const long parts = strtol(after + 2, NULL, 10);
  ngio_part_text(says, (int32_t)part, (int32_t)parts);
  const int put = snprintf(want, sizeof want, "{\"__metadata__\":{\"%s\":\"%s\",\"%s\":\"%.*s\"",
                           NGIO_PART, says, NGIO_PART_WHOLE, NGIO_PART_ID, end);
  const ssize_t got = pread(fd, is, (size_t)put + 8, 0);
  if (put >= (int)sizeof want || got < 0 || (!unfinished && got < put + 8)) return 0;
  return got <= 8 || memcmp(is + 8, want, (size_t)got - 8) == 0;
}

typedef struct sweep {
  const char *path, *id;
} sweep;

static int remove_if_old_part(void *user, const char *name) {
  const sweep *s = user;
  const char *end = name + strlen(s->path) + 1;
  const int unfinished = !ngio_is_part_name(end, 0);
  struct stat at, named;
  if (s->id != NULL && strncmp(end, s->id, NGIO_PART_ID) == 0) return 0;
  /* open for writing, because some file systems lock no other files */
  const int fd =
      open(name, (unfinished ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return 0;
  const int mine = fstat(fd, &at) == 0 && S_ISREG(at.st_mode) &&
                   (!unfinished || flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) &&
                   is_part(fd, end, unfinished) && lstat(name, &named) == 0 &&
                   named.st_ino == at.st_ino && named.st_dev == at.st_dev;
  if (mine) (void)unlink(name);
  (void)close(fd);
  return 0;
}

void ngio_parts_sweep(const char *path, const char *id, char *room) {
  sweep s = {path, id};
  (void)for_parts(path, room, remove_if_old_part, &s);
}
