/* parts.h: the files of a state that every rank has written its own of (ng_save_parts), named as in part_files.h.
 *
 * In:   the name of rank 0's, and what a manifest says of it.
 * Out:  the names of the others; whether they are what they should be, which their content is when the library
 *       has read them. */
#ifndef PARTS_H
#define PARTS_H

#include "manifest.h"

/* In latest.json a file of `parts` 0 is alone; all functions take that as nothing to do. */

/* Of the state at `path`, which `ranks` ranks have just written: the id; told. */
int parts_look(const char *path, int32_t ranks, manifest_file *f);
char *parts_path(const char *path, const manifest_file *f, int32_t r); /* for free() */
/* Rank r's is there, a regular file and no link, and of this state; says nothing. */
bool parts_is(const char *path, const manifest_file *f, int32_t r);
/* All of them are under `path`, or are under `next` and get their names; CLI_BAD, told by name. */
int parts_find(const char *path, const char *next, const manifest_file *f, int64_t step);
/* All of them can be renamed: no name is somebody else's; told. */
int parts_free(const char *path, const manifest_file *f);
int parts_rename(const char *next, const char *path, const manifest_file *f);
void parts_remove(const char *path, const manifest_file *f);

/* Whatever has the name of a part of `path`, also of one that is being written: none but regular files; CLI_BAD, told. */
int parts_regular(const char *path);
void parts_sweep(const char *path); /* ngio_parts_sweep, of all of them */

#endif
