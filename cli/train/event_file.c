/* event_file.c: TensorBoard event files with scalars, without protobuf and TensorFlow.
 *
 * A file is a sequence of records (TensorFlow, core/lib/io/record_writer.h):
 *   length u64 | masked CRC-32C of the length u32 | data | masked CRC-32C of the data u32
 * all little-endian; masked: rotated right by 15, plus 0xa282ead8. The data are protobuf messages
 * (core/util/event.proto, core/framework/summary.proto):
 *   Event   1 wall_time double, 2 step int64, 3 file_version string, 5 summary Summary
 *   Summary 1 value Value;  Value 1 tag string, 2 simple_value float */
#include "event_file.h"
#include "common/cli.h"

#include <stdlib.h>
#include <string.h>

/* CRC-32C bit by bit: an export has thousands of records, not millions. */
uint32_t event_file_crc(const void *bytes, size_t n) {
  const unsigned char *b = bytes;
  uint32_t crc = 0xffffffffu;
  for (size_t i = 0; i < n; i++) {
    crc ^= b[i];
    for (int k = 0; k < 8; k++)
      crc = (crc >> 1) ^ (0x82f63b78u & (0u - (crc & 1u)));
  }
  return ~crc;
}

static uint32_t masked(const void *bytes, size_t n) {
  const uint32_t crc = event_file_crc(bytes, n);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

static void put(event_file *f, const void *bytes, size_t n) {
  if (f->size + n > f->room) {
    const size_t room = 2 * (f->size + n) + 4096;
    unsigned char *more = cli_take(room, 1);
    if (f->size > 0) memcpy(more, f->bytes, f->size);
    free(f->bytes);
    f->bytes = more;
    f->room = room;
  }
  memcpy(f->bytes + f->size, bytes, n);
  f->size += n;
}

static void put_varint(event_file *f, uint64_t v) {
  do {
    const unsigned char byte = (unsigned char)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
    put(f, &byte, 1);
    v >>= 7;
  } while (v > 0);
}

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 }; /* protobuf's wire types */

static void put_key(event_file *f, unsigned field, unsigned type) {
  put_varint(f, (uint64_t)field << 3 | type);
}

static void put_bytes(event_file *f, unsigned field, const void *bytes, size_t n) {
  put_key(f, field, BYTES);
  put_varint(f, n);
  put(f, bytes, n);
}

static void put_record(event_file *f, const event_file *data) {
  const uint64_t n = data->size;
  const uint32_t head = masked(&n, sizeof n), body = masked(data->bytes, data->size);
  put(f, &n, sizeof n);
  put(f, &head, sizeof head);
  put(f, data->bytes, data->size);
  put(f, &body, sizeof body);
}

static void put_time(event_file *event, double wall_time) {
  put_key(event, 1, FIXED64);
  put(event, &wall_time, sizeof wall_time);
}

void event_file_begin(event_file *f, double wall_time) {
  static const char version[] = "brain.Event:2";
  event_file event = {0};
  memset(f, 0, sizeof *f);
  put_time(&event, wall_time);
  put_bytes(&event, 3, version, sizeof version - 1);
  put_record(f, &event);
  event_file_free(&event);
}

void event_file_scalar(event_file *f, double wall_time, int64_t step, const char *tag,
                       double value) {
  event_file event = {0}, summary = {0}, one = {0};
  const float narrow = (float)value;
  put_bytes(&one, 1, tag, strlen(tag));
  put_key(&one, 2, FIXED32);
  put(&one, &narrow, sizeof narrow);
  put_bytes(&summary, 1, one.bytes, one.size);
  put_time(&event, wall_time);
  put_key(&event, 2, VARINT);
  put_varint(&event, (uint64_t)step);
  put_bytes(&event, 5, summary.bytes, summary.size);
  put_record(f, &event);
  event_file_free(&one);
  event_file_free(&summary);
  event_file_free(&event);
}

void event_file_free(event_file *f) {
  free(f->bytes);
  memset(f, 0, sizeof *f);
}
