/* io_check.h: what the tests of file formats share: a folder of their own, files in it, the message
 * of what was called last, what must hold of tensors that were read. */
#ifndef TESTS_IO_CHECK_H
#define TESTS_IO_CHECK_H

#include <stddef.h>

#include "safetensors.h"

extern char message[512];              /* handed to every reader and writer */
void expect_message(const char *part); /* it has this part, and one line */

/* Fixtures of a group; the second succeeds only if the tests left nothing behind. */
extern char folder[64];
int make_folder(void **state);
int drop_folder(void **state);

const char *in_folder(const char *name); /* its path, good for the next seven calls */
void spill(const char *path, const void *bytes, size_t n);
unsigned char *slurp(const char *path, size_t *n); /* free() */

/* What a reader returned must hold together whatever the file was. */
void assert_consistent(const ngio_tensors *f, size_t file_bytes);

#endif
