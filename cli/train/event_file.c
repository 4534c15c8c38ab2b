/* event_file.c: TensorBoard event files with scalars, without protobuf and TensorFlow.
 *
 * A file is a sequence of records (TensorFlow, core/lib/io/record_writer.h):
 *   length u64 | masked CRC-32C of the length u32 | data | masked CRC-32C of the data u32
 * all little-endian; masked: rotated right by 15, plus 0xa282ead8. The data are protobuf messages
 * (core/util/event.proto, core/framework/summary.proto):
 *   Event   1 wall_time double, 2 step int64, 3 file_version string, 5 summary Summary
 *   Summary 1 value Value;  Value 1 tag string, 2 simple_value float */
#include "event_file.h"

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

static void put_varint(ngio_out *f, uint64_t v) {
  do {
    const unsigned char byte = (unsigned char)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
    ngio_out_bytes(f, &byte, 1);
    v >>= 7;
  } while (v > 0);
}

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 }; /* protobuf's wire types */

static void put_key(ngio_out *f, unsigned field, unsigned type) {
  put_varint(f, (uint64_t)field << 3 | type);
}

static void put_bytes(ngio_out *f, unsigned field, const void *bytes, size_t n) {
  put_key(f, field, BYTES);
  put_varint(f, n);
  ngio_out_bytes(f, bytes, n);
}

/* Add the record and free its data. */
static void put_record(ngio_out *f, ngio_out *data) {
  const uint64_t n = data->used;
  const uint32_t head = masked(&n, sizeof n), body = masked(data->text, data->used);
  ngio_out_bytes(f, &n, sizeof n);
  ngio_out_bytes(f, &head, sizeof head);
  ngio_out_bytes(f, data->text, data->used);
  ngio_out_bytes(f, &body, sizeof body);
  f->lost = f->lost || data->lost;
  ngio_out_free(data);
}

static void put_time(ngio_out *event, double wall_time) {
  put_key(event, 1, FIXED64);
  ngio_out_bytes(event, &wall_time, sizeof wall_time);
}

void event_file_begin(ngio_out *f, double wall_time) {
  static const char version[] = "brain.Event:2";
  ngio_out event = {0};
  put_time(&event, wall_time);
  put_bytes(&event, 3, version, sizeof version - 1);
  put_record(f, &event);
}

void event_file_scalar(ngio_out *f, double wall_time, int64_t step, const char *tag, double value) {
  ngio_out event = {0}, summary = {0}, one = {0};
  const float narrow = (float)value;
  put_bytes(&one, 1, tag, strlen(tag));
  put_key(&one, 2, FIXED32);
  ngio_out_bytes(&one, &narrow, sizeof narrow);
  put_time(&event, wall_time);
  put_key(&event, 2, VARINT);
  put_varint(&event, (uint64_t)step);
  put_bytes(&summary, 1, one.text, one.used);
  put_bytes(&event, 5, summary.text, summary.used);
  put_record(f, &event);
  ngio_out_free(&one);
  ngio_out_free(&summary);
}
