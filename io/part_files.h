/* part_files.h: the names of the files of a state in parts, and the removal of old parts.
 *
 *   PATH                    the first part, with the list of all parts
 *   PATH.<id>-<r>of<n>      the other parts; <id>: the checksum of this list, 8 digits
 *
 * The metadata of the other parts begins with NGIO_PART: "r of n" and NGIO_PART_WHOLE: "<id>".  A file of another
 * program may have such a name, so a file is removed only if its metadata agrees with its name. */
#ifndef NGIO_PART_FILES_H
#define NGIO_PART_FILES_H

#include "io.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NGIO_PART "natgrad.part"
#define NGIO_PART_WHOLE "natgrad.whole"
/* NGIO_PART_ROOM: capacity for the suffix ".<id>-<r>of<n>" or the text "r of n"; NGIO_PART_ID: digits of an id. */
enum { NGIO_PART_ROOM = 64, NGIO_PART_ID = 8 };

/* Write the path of part `part` of `parts` to `out`, which has size = strlen(path) + NGIO_PART_ROOM bytes; part 0 has
 * the path itself. */
void ngio_part_path(char *out, size_t size, const char *path, const char *id, int32_t part,
                    int32_t parts);
void ngio_part_text(char out[NGIO_PART_ROOM], int32_t part, int32_t parts); /* writes "r of n" */

/* Return 1 if `end`, a file name without "PATH.", is the suffix of a part; with `unfinished` also if it is the suffix
 * of the temporary file of a part that is being written. */
int ngio_is_part_name(const char *end, int unfinished);

/* Return the capacity of a buffer for the path of any file in the folder of `path`. */
size_t ngio_parts_room(const char *path);
/* Remove the parts of `path`, finished or not, whose id differs from `id` (NULL: all parts).  Remove only regular files
 * whose metadata agrees with their name; keep an unfinished file that a writer has locked.  The caller must exclude
 * other writers of `path`: ngio_writer_finish_and_sweep holds the lock of `path`. `room`: ngio_parts_room bytes. */
void ngio_parts_sweep(const char *path, const char *id, char *room);

#ifdef __cplusplus
}
#endif
#endif
