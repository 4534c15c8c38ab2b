/* seal.h: JSON files of a run that tell whether they were edited: their last member is "crc32", the CRC-32
 * of everything before it. */
#ifndef SEAL_H
#define SEAL_H

#include <stdbool.h>

struct json_t;

/* `o`, a map, which is taken, becomes the file, whole or not at all (disk_write). */
int seal_write(const char *path, struct json_t *o);
/* Is the last line of this text what seal_write makes of the others? */
bool seal_holds(const char *text);

#endif
