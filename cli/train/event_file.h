/* event_file.h: TensorBoard event files, made in memory. */
#ifndef EVENT_FILE_H
#define EVENT_FILE_H

#include <stddef.h>
#include <stdint.h>

typedef struct event_file {
  unsigned char *bytes;
  size_t size, room;
} event_file;

/* Write the first record, which gives the format. */
void event_file_begin(event_file *f, double wall_time);
/* Add a scalar; TensorBoard stores values as f32. */
void event_file_scalar(event_file *f, double wall_time, int64_t step, const char *tag,
                       double value);
void event_file_free(event_file *f);

uint32_t event_file_crc(const void *bytes, size_t n); /* CRC-32C, public for its test */

#endif
