/* disk.h: read and write files of a run directory. At any moment a file is either complete or absent. */
#ifndef DISK_H
#define DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Functions with the type int return CLI_OK, or CLI_BAD after a message that names the path. */

/* Replace the content of the file `path`, or on failure leave the file unchanged: write PATH.natgrad-part, flush it,
 * rename it, flush the folder. If `path` exists and is not a regular file (such as a link), refuse. */
int disk_write_file(const char *path, const void *bytes, size_t size);
/* Like disk_write_file; the content is the text that print(f, what) writes. */
int disk_print_file(const char *path, void (*print)(FILE *f, const void *what), const void *what);
/* Check that `path` is a regular file, not a link, or does not exist. */
int disk_check_regular(const char *path);
/* Read a text file into *out, terminated by 0. The caller calls free(). */
int disk_read_text(const char *path, char **out);
/* Remove `path` if it is a regular file, not a link. Print no message. */
void disk_remove_file(const char *path);
/* Create the folder and its parents, if they do not exist. */
int disk_make_folder(const char *path);
/* Create a folder inside a run directory, if it does not exist. Refuse a link. */
int disk_make_run_subfolder(const char *path);
uint32_t disk_compute_crc(const void *bytes, size_t size); /* the CRC-32 of zlib */
bool disk_exists(const char *path);
/* Lock the folder against a second program until *fd is closed or the program ends. `who` is the command that the
 * message of the second program names. If the folder does not exist or cannot be locked, *fd is -1. */
int disk_lock_folder(const char *dir, const char *who, int *fd);

#endif
