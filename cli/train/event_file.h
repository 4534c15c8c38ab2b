/* event_file.h: TensorBoard event files, made in memory. */
#ifndef EVENT_FILE_H
#define EVENT_FILE_H

#include "json.h"

/* Write the first record, which gives the format. */
void event_file_begin(ngio_out *f, double wall_time);
/* Add a scalar; TensorBoard stores values as f32. */
void event_file_scalar(ngio_out *f, double wall_time, int64_t step, const char *tag, double value);

uint32_t event_file_crc(const void *bytes, size_t n); /* CRC-32C, public for its test */

#endif
