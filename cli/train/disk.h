/* disk.h: files of a run directory; each file is complete or absent. */
#ifndef DISK_H
#define DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Functions that return int return CLI_OK, or CLI_BAD after one line on stderr that names the path. */

/* Replace the file `path` by these bytes, or leave the file unchanged: write PATH.natgrad-part, flush and rename the
 * part, flush the folder.
 * If `path` exists and is no regular file (a link, for instance), refuse. */
int disk_write(const char *path, const void *bytes, size_t size);
/* As disk_write, with the text that print(f, what) writes. */
int disk_print(const char *path, void (*print)(FILE *f, const void *what), const void *what);
/* Check that `path` is a regular file, not a link, or does not exist. */
int disk_check(const char *path);
/* Read a whole text file into *out, 0-terminated; the caller frees *out with free(). */
int disk_read(const char *path, char **out);
/* Remove `path` if it is a regular file, not a link; print no messages. */
void disk_remove(const char *path);
/* If the folder does not exist, create the folder and its parents. */
int disk_make_folder(const char *path);
/* Create a folder inside a run directory; refuse a link. */
int disk_make_own_folder(const char *path);
uint32_t disk_compute_crc(const void *bytes, size_t size); /* CRC-32 as in zlib */
bool disk_exists(const char *path);
/* Lock the folder against a second program until *fd is closed or the program ends; `who` ("train") is the command
 * that the message names. If the folder does not exist or cannot be locked, *fd is -1. */
int disk_lock(const char *dir, const char *who, int *fd);

#endif
