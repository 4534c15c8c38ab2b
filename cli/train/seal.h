/* seal.h: JSON files of a run that tell whether they were edited: their last member is "crc32", the CRC-32
 * of everything before it. */
#ifndef SEAL_H
#define SEAL_H

#include "json.h"

#include <stdbool.h>

/* Close the object `o`, which has `indent`, add its checksum, write the file as disk_write does, free `o`. */
int seal_write(const char *path, ngio_out *o);
/* A checksum as eight hexadecimal digits, written and compared. */
void seal_put(ngio_out *o, const char *key, uint32_t crc);
bool seal_is(const ngio_value *v, uint32_t crc);
/* Is the last line of this text what seal_write makes of the others? */
bool seal_holds(const char *text);

#endif
