/* disk.h: files of a run directory: whole or not at all. */
#ifndef DISK_H
#define DISK_H

#include <stdbool.h>
#include <stddef.h>

/* All CLI_BAD, told in one line that names the path. */

/* `path` becomes these bytes, or stays what it was: written to PATH.part, flushed to the disk,
 * renamed; the folder is flushed. */
int disk_write(const char *path, const void *bytes, size_t size);
/* The whole file, 0-terminated, for free(). */
int disk_read(const char *path, char **out);
/* A folder, and those above it, unless it is there. */
int disk_folder(const char *path);
bool disk_exists(const char *path);
/* "dir/name", for free(). */
char *disk_join(const char *dir, const char *name);

#endif
