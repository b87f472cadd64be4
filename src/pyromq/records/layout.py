"""Where every field of a commit-log record is. The one place that knows; all integers are big-endian.

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

QUEUE_OFFSET_AT = 20
POSITION_AT = 28

HOST_V4 = 8
HOST_V6 = 20

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


def has_queue_offset(storage_flags: int) -> bool:
    """Prepared and rolled-back halves are in the log but in no queue."""
    return storage_flags & FLAG_TRANSACTION_MASK in (0, FLAG_COMMITTED)
