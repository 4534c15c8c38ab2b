/* disk.h: files of a run directory: whole or not at all. */
#ifndef DISK_H
#define DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All CLI_BAD, told in one line that names the path. */

/* `path` becomes these bytes, or stays what it was: written to PATH.natgrad-part, flushed to the disk,
 * renamed; the folder is flushed.  What is there and no regular file, a link among them, is refused. */
int disk_write(const char *path, const void *bytes, size_t size);
/* The same for a name that the user gave: what a link points to is replaced, a device or a pipe is
 * written to as it is. */
int disk_export(const char *path, const void *bytes, size_t size);
/* What is there is a regular file, and no link to one. */
int disk_regular(const char *path);
/* A regular file for reading, through links. */
int disk_open(const char *path, int *fd);
/* The whole of it, 0-terminated, for free(). */
int disk_read(const char *path, char **out);
/* `from` becomes `to`, on the disk when CLI_OK. */
int disk_give_name(const char *from, const char *to);
/* A regular file, and no link, is removed; tells nobody. */
void disk_remove(const char *path);
/* A folder, and those above it, unless it is there. */
int disk_folder(const char *path);
/* The same for one of our own inside another: a link to a folder is none. */
int disk_own_folder(const char *path);
uint32_t disk_crc(const void *bytes, size_t size); /* CRC-32, as zlib has it */
bool disk_exists(const char *path);
/* Two programs in one folder would write the same files: `who` ("train") holds it until *fd is closed
 * or the program ends, however it does.  *fd is -1 where folders cannot be held, or are not there. */
int disk_lock(const char *dir, const char *who, int *fd);

#endif
