/* crc.h: CRC-32, as zlib has it, at the speed of memory where the processor multiplies without carries. */
#ifndef NG_CRC_H
#define NG_CRC_H

#include <stddef.h>
#include <stdint.h>

/* `crc` 0 to begin with, or what the bytes before these gave: zlib's crc32_z. */
uint32_t ng_crc32(uint32_t crc, const void *data, size_t bytes);

#endif
