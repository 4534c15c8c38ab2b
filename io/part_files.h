/* part_files.h: the names of the files of a state in parts, and the removal of old parts.
 *
 *   PATH                    the first part, with the list of all parts
 *   PATH.<id>-<r>of<n>      the other parts; <id>: the checksum of this list, 8 digits
 *
 * The metadata of these other parts begins with NGIO_PART, "r of n", and NGIO_PART_WHOLE, "<id>".  Any file may
 * have such a name, so only files whose metadata agrees with their name are removed.
 *
 * In: a path.  Out: names; removal of parts that no state needs. */
#ifndef NGIO_PART_FILES_H
#define NGIO_PART_FILES_H

#include "io.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NGIO_PART "natgrad.part"
#define NGIO_PART_WHOLE "natgrad.whole"
/* Bytes for the suffix of a path and for "r of n"; digits of an id. */
enum { NGIO_PART_ROOM = 64, NGIO_PART_ID = 8 };

/* Write the path of a part to `out`, which has strlen(path) + NGIO_PART_ROOM bytes; part 0 has
 * the path itself. */
void ngio_part_path(char *out, size_t size, const char *path, const char *id, int32_t part,
                    int32_t parts);
void ngio_part_says(char out[NGIO_PART_ROOM], int32_t part, int32_t parts); /* "r of n" */

/* Whether `end` is a suffix of a part's name after PATH and a point; with `passing` also of a
 * part that is being written. */
int ngio_part_named(const char *end, int passing);

/* Bytes for the name of any file in the folder of `path`. */
size_t ngio_parts_room(const char *path);
/* Call each() with the name, in `room`, of every file beside `path` that is named like a part, until each() does not
 * return 0.  An unreadable folder counts as empty. */
int ngio_parts_each(const char *path, char *room, int (*each)(void *user, const char *name),
                    void *user);

/* Remove the parts of `path` with another id than `id` (NULL: all parts), and unfinished files
 * of killed ranks. Only regular files whose metadata agrees with their name are removed; a locked
 * file is being written and stays. The caller must exclude other writers of `path`, as
 * ngio_writer_finish_whole and the owner of a folder do. */
void ngio_parts_sweep(const char *path, const char *id, char *room);

#ifdef __cplusplus
}
#endif
#endif
