/* crc.h: CRC-32 as in zlib, at memory speed on processors with carry-less multiplication. */
#ifndef NG_CRC_H
#define NG_CRC_H

#include <stddef.h>
#include <stdint.h>

/* Continue `crc`, the CRC of the preceding bytes (0: none), over `bytes` bytes, as zlib's crc32_z. */
uint32_t ng_crc32(uint32_t crc, const void *data, size_t bytes);

#endif
