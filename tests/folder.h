/* folder.h: a temporary folder for the files of one test program. */
#ifndef TESTS_FOLDER_H
#define TESTS_FOLDER_H

#include <stddef.h>

extern char test_folder[64];

/* Fixtures of a group of tests: remove_empty_folder fails if the folder has files, delete_folder deletes them. */
int make_folder(void **state);
int remove_empty_folder(void **state);
int delete_folder(void **state);

/* return the path of the file; it is valid for the next seven calls */
const char *in_folder(const char *name);
void write_file(const char *path, const void *bytes, size_t n);
unsigned char *read_file(const char *path, size_t *n);    /* free() */
struct ngio_tensors *must_read_tensors(const char *path); /* ngio_tensors_close */

#endif
