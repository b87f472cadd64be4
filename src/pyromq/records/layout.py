"""The layout of a commit-log record. The one place that knows it; all integers are big-endian.

    offset  bytes  field
         0      4  total size, this field included
         4      4  magic: V1 (topic length in 1 byte), V2 (in 2 bytes) or BLANK (the rest of the segment is empty)
         8      4  CRC-32 of the body, sign bit cleared
        12      4  queue id
        16      4  user flag
        20      8  queue offset (0 for prepared and rolled-back halves of a transaction)
        28      8  position of this record in the log
        36      4  storage flags
        40      8  born timestamp, ms
        48   8/20  born host: 4 or 16 bytes of address, 4 of port
         .      8  store timestamp, ms
         .   8/20  store host
         .      4  reconsume times
         .      8  position of the prepared half of a transaction
         .    4+n  body
         .  1/2+n  topic, UTF-8
         .    2+n  properties: name 0x01 value 0x02 …; the last one may be the record's own CRC:
               20  `__CRC32#` 0x01, ten digits least significant first, 0x02; covers all that stands before it

A record never crosses a segment's end: when it and 8 more bytes do not fit, a blank (remaining size, BLANK magic)
ends the segment.
"""

from __future__ import annotations

import struct

Buffer = bytes | bytearray | memoryview

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194

#: Everything before the first host, whose length varies.
HEAD = struct.Struct(
    ">I"  # total size
    "I"   # magic
    "I"   # body CRC
    "i"   # queue id
    "i"   # user flag
    "q"   # queue offset
    "q"   # position
    "i"   # storage flags
    "q"   # born timestamp, ms
)  # fmt: skip
#: Between the hosts: the store timestamp.
STORED_AT = struct.Struct(">q")
#: Between the store host and the body.
TAIL = struct.Struct(
    ">i"  # reconsume times
    "q"   # prepared position
    "i"   # body length
)  # fmt: skip
BLANK = struct.Struct(">II")  # remaining size, magic

#: Offsets of the fields of HEAD from the record's first byte.
TOTAL_SIZE_AT = 0
MAGIC_AT = 4
BODY_CRC_AT = 8
QUEUE_ID_AT = 12
USER_FLAG_AT = 16
QUEUE_OFFSET_AT = 20
POSITION_AT = 28
STORAGE_FLAGS_AT = 36
BORN_TIMESTAMP_AT = 40
BORN_HOST_AT = 48
#: Offsets of the fields of TAIL from its first byte.
RECONSUME_TIMES_AT = 0
PREPARED_POSITION_AT = 4
BODY_SIZE_AT = 12

HOST_V4 = 8
HOST_V6 = 20
STORE_TIMESTAMP_SIZE = STORED_AT.size
TAIL_SIZE = TAIL.size
PROPERTIES_LENGTH_SIZE = 2

#: Smallest possible record: V1, IPv4, nothing in it.
SMALLEST_RECORD = HEAD.size + HOST_V4 + STORED_AT.size + HOST_V4 + TAIL.size + 1 + 2

#: Kept free behind every record so that the blank fits.
BLANK_RESERVE = BLANK.size

MAX_TOPIC_V1 = 127
#: RocketMQ allows 127 for a topic and 255 for the retry and dead-letter topics that it derives from a group.
MAX_TOPIC = 255
MAX_PROPERTIES = 32767

CRC_PROPERTY_NAME = b"__CRC32#"
CRC_PROPERTY_SIZE = len(CRC_PROPERTY_NAME) + 1 + 10 + 1

# Storage flags (RocketMQ: sysFlag).
FLAG_COMPRESSED = 1 << 0
FLAG_MULTI_TAGS = 1 << 1
FLAG_TRANSACTION_MASK = 3 << 2
FLAG_PREPARED = 1 << 2
FLAG_COMMITTED = 2 << 2
FLAG_ROLLED_BACK = 3 << 2
FLAG_BORN_HOST_V6 = 1 << 4
FLAG_STORE_HOST_V6 = 1 << 5
FLAG_NEED_UNWRAP = 1 << 6
FLAG_INNER_BATCH = 1 << 7
FLAG_COMPRESSION_MASK = 7 << 8

SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"


_UINT32 = struct.Struct(">I")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


def total_size_of(buffer: Buffer, at: int = 0) -> int:
    """Return the size of the record at `at`, in bytes."""
    return int(_UINT32.unpack_from(buffer, at + TOTAL_SIZE_AT)[0])


def body_crc_of(buffer: Buffer, at: int = 0) -> int:
    return int(_UINT32.unpack_from(buffer, at + BODY_CRC_AT)[0])


def queue_id_of(buffer: Buffer, at: int = 0) -> int:
    return int(_INT32.unpack_from(buffer, at + QUEUE_ID_AT)[0])


def user_flag_of(buffer: Buffer, at: int = 0) -> int:
    return int(_INT32.unpack_from(buffer, at + USER_FLAG_AT)[0])


def queue_offset_of(buffer: Buffer, at: int = 0) -> int:
    return int(_INT64.unpack_from(buffer, at + QUEUE_OFFSET_AT)[0])


def position_of(buffer: Buffer, at: int = 0) -> int:
    """Return the position in the log that the record at `at` says it has."""
    return int(_INT64.unpack_from(buffer, at + POSITION_AT)[0])


def storage_flags_of(buffer: Buffer, at: int = 0) -> int:
    return int(_INT32.unpack_from(buffer, at + STORAGE_FLAGS_AT)[0])


def born_timestamp_of(buffer: Buffer, at: int = 0) -> int:
    """Return the sender's time, in ms."""
    return int(_INT64.unpack_from(buffer, at + BORN_TIMESTAMP_AT)[0])


def has_queue_offset(storage_flags: int) -> bool:
    """Prepared and rolled-back halves are in the log but in no queue."""
    return storage_flags & FLAG_TRANSACTION_MASK in (0, FLAG_COMMITTED)
