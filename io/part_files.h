/* part_files.h: the files of a state that is in parts: how they are called, whose they are, and when they go.
 *
 *   PATH                   the first, which says what belongs together
 *   PATH.<id>-<r>of<n>     the others; <id>: the checksum of what PATH says, 8 digits
 *
 * In the metadata of a part that is not the first stand NGIO_PART, "r of n", and NGIO_PART_WHOLE, "<id>", in front of
 * everything else.  A name may be anybody's: nothing is removed that does not say this of itself.
 *
 * In:  a path.
 * Out: names; parts that no whole needs are removed. */
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

/* Into `out`, of strlen(path) + NGIO_PART_ROOM; part 0 has the path itself. */
void ngio_part_path(char *out, size_t size, const char *path, const char *id, int32_t part,
                    int32_t parts);
void ngio_part_says(char out[NGIO_PART_ROOM], int32_t part, int32_t parts); /* "r of n" */

/* Is that what stands behind PATH and a point in the name of a part?  With `passing` also the name under which one is
 * being written. */
int ngio_part_named(const char *end, int passing);

/* Bytes for the name of any file in the folder of `path`. */
size_t ngio_parts_room(const char *path);
/* Call each() with the name, in `room`, of every file beside `path` that is named like a part, until each() does not
 * return 0.  An unreadable folder counts as empty. */
int ngio_parts_each(const char *path, char *room, int (*each)(void *user, const char *name),
                    void *user);

/* Remove the parts of `path` that belong to another whole than `id` (NULL: every part), and the unfinished files of
 * killed ranks.  Only regular files whose first bytes agree with their name are removed; a locked file is being written
 * and stays.  The caller must keep other writers of `path` away, as ngio_writer_finish_whole and the owner of a folder
 * do. */
void ngio_parts_sweep(const char *path, const char *id, char *room);

#ifdef __cplusplus
}
#endif
#endif
