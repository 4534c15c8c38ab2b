/* io_check.h: checks of the tests of file formats: the message of the last call, tensors that were read. */
#ifndef TESTS_IO_CHECK_H
#define TESTS_IO_CHECK_H

#include "folder.h"
#include "safetensors.h"

extern char message[512];              /* handed to every reader and writer */
void expect_message(const char *part); /* it has this part, and one line */

/* What a reader returned must hold together whatever the file was. */
void assert_consistent(const ngio_tensors *f, size_t file_bytes);

#endif
