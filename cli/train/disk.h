/* disk.h: files of a run directory, complete or absent. */
#ifndef DISK_H
#define DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Functions that return int return CLI_OK, or CLI_BAD after one line on stderr that names the path. */

/* Replace `path` by these bytes, or leave it unchanged: write PATH.natgrad-part, flush, rename, flush the folder.
 * If `path` exists and is no regular file (a link, for instance), refuse. */
int disk_write(const char *path, const void *bytes, size_t size);
/* The same with the text that `print` writes about `what`. */
int disk_print(const char *path, void (*print)(FILE *f, const void *what), const void *what);
/* Check that `path` is a regular file, not a link, or does not exist. */
int disk_regular(const char *path);
/* Open a regular file for reading; links are followed. */
int disk_open(const char *path, int *fd);
/* Read the whole text; 0-terminated, for free(). */
int disk_read(const char *path, char **out);
/* Remove a regular file, not a link; without messages. */
void disk_remove(const char *path);
/* Create a folder and its parents, unless it exists. */
int disk_folder(const char *path);
/* The same for a folder inside a run directory: a link is refused. */
int disk_own_folder(const char *path);
uint32_t disk_crc(const void *bytes, size_t size); /* CRC-32, as zlib has it */
bool disk_exists(const char *path);
/* Lock the folder against a second program until *fd is closed or the program ends; `who` ("train") is for the
 * message. *fd is -1 where folders cannot be locked or do not exist. */
int disk_lock(const char *dir, const char *who, int *fd);

#endif
