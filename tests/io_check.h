/* io_check.h: checks of the tests of file formats: the message of the last call, tensors that were read. */
#ifndef TESTS_IO_CHECK_H
#define TESTS_IO_CHECK_H

#include "folder.h"
#include "safetensors.h"

extern char message[512]; /* buffer for every reader and writer */
/* check that the message is one line and contains this text */
void expect_message(const char *part);

/* The tensors of a reader are consistent, also if the file was damaged. */
void assert_consistent(const ngio_tensors *f, size_t file_bytes);

#endif
