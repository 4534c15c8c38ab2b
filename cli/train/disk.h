/* disk.h: files of a run directory: whole or not at all. */
#ifndef DISK_H
#define DISK_H

#include <stdbool.h>
#include <stddef.h>

/* All CLI_BAD, told in one line that names the path. */

/* `path` becomes these bytes, or stays what it was: written to PATH.part, flushed to the disk,
 * renamed; the folder is flushed.  A device or a pipe is written to as it is. */
int disk_write(const char *path, const void *bytes, size_t size);
/* The whole file, 0-terminated, for free(). */
int disk_read(const char *path, char **out);
/* A folder, and those above it, unless it is there. */
int disk_folder(const char *path);
bool disk_exists(const char *path);
/* Two programs in one folder would write the same files: `who` ("train") holds it until *fd is closed
 * or the program ends, however it does.  *fd is -1 where folders cannot be held, or are not there. */
int disk_lock(const char *dir, const char *who, int *fd);

#endif
