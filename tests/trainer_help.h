/* trainer_help.h: helpers for tests of the trainer: files, messages on stderr, settings. */
#ifndef TESTS_TRAINER_HELP_H
#define TESTS_TRAINER_HELP_H

#include "folder.h"
#include "train/settings.h"

/* Write a file of the folder. */
void put_file(const char *name, const void *bytes, size_t n);
/* Write an npy file of version 1; `shape` is text as "3, 4". */
void put_npy(const char *name, const char *type, const char *shape, const void *values, size_t n);

/* Redirect stderr to a file; read the file and restore stderr. */
void capture_stderr(void);
const char *captured_stderr(void);

/* data_open of this set fails with a one-line message that contains `says`, and leaves an empty set. */
void must_refuse_set(const char *set, const char *says);

void must_set(settings *s, const char *name, const char *value);
void must_set_line(settings *s, const char *line); /* "name=value ..." */

#endif
