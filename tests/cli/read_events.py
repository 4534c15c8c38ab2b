"""Reads TensorBoard event files with nothing but the standard library, independently of
cli/train/event_file.c: records by their published framing, CRC-32C from a table made here, messages
by protobuf's wire format.  Prints "wall_time step tag value" a line; any mistake ends it.

    python3 read_events.py FILE
"""

import struct
import sys

TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = (byte >> 1) ^ 0x82F63B78 if byte & 1 else byte >> 1
    TABLE.append(byte)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    at = 0
    while at < len(data):
        if len(data) - at < 12:
            sys.exit("a record is cut off")
        length, check = struct.unpack_from("<QI", data, at)
        if check != masked(data[at : at + 8]):
            sys.exit("wrong checksum of a length")
        body = data[at + 12 : at + 12 + length]
        if len(data) < at + 16 + length:
            sys.exit("a record is cut off")
        if struct.unpack_from("<I", data, at + 12 + length)[0] != masked(body):
            sys.exit("wrong checksum of a record")
        yield body
        at += 16 + length


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value = struct.unpack_from("<d" if kind == 1 else "<f", data, at)[0]
            at += size
        elif kind == 2:
            size, at = varint(data, at)
            value = data[at : at + size]
            if len(value) != size:
                sys.exit("a field is cut off")
            at += size
        else:
            sys.exit(f"wire type {kind}")
        yield key >> 3, kind, value


assert crc32c(b"123456789") == 0xE3069283
for number, record in enumerate(records(open(sys.argv[1], "rb").read())):
    event = {field: value for field, _, value in fields(record)}
    if number == 0:
        if event.get(3) != b"brain.Event:2":
            sys.exit("the first record does not say brain.Event:2")
        continue
    for field, kind, value in fields(event[5]):
        if (field, kind) != (1, 2):
            sys.exit(f"summary has field {field}")
        scalar = {k: v for k, _, v in fields(value)}
        print(f"{event[1]:.3f} {event.get(2, 0)} {scalar[1].decode()} {scalar[2]:.7g}")
