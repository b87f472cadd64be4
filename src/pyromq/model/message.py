"""A message on its way into the log, and a message as the log has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pyromq.model.ids import LogPosition, QueueOffset

#: A host and port as stored in a record: 4 or 16 bytes of address, 4 bytes of port, big-endian.
PackedHost = bytes

LOCALHOST: PackedHost = b"\x7f\x00\x00\x01\x00\x00\x00\x00"


@dataclass(slots=True)
class Draft:
    """A message ready to be appended: all but what the log decides (position, queue offset, store time).

    Topic and properties are bytes as they stand in the record, so that a broker which received them as bytes
    never makes strings of them. `properties` is in record form (see `records.properties`).
    """

    topic: bytes
    queue_id: int
    body: bytes | bytearray | memoryview
    properties: bytes = b""
    user_flag: int = 0
    storage_flags: int = 0
    born_timestamp_ms: int = 0
    born_host: PackedHost = LOCALHOST
    store_host: PackedHost = LOCALHOST
    reconsume_times: int = 0
    prepared_position: int = 0


class AppendedAt(NamedTuple):
    """The place of an appended message."""

    position: LogPosition
    size: int
    queue_offset: QueueOffset

    @property
    def end(self) -> LogPosition:
        """The first position after the record: what a watermark must reach for a promise to hold."""
        return LogPosition(self.position + self.size)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A record of the commit log, decoded. Body and properties are copies: they outlive the segment."""

    position: LogPosition
    size: int
    topic: str
    queue_id: int
    queue_offset: QueueOffset
    body: bytes
    body_crc: int
    properties: dict[str, str]
    user_flag: int
    storage_flags: int
    born_timestamp_ms: int
    born_host: PackedHost
    store_timestamp_ms: int
    store_host: PackedHost
    reconsume_times: int
    prepared_position: int

    @property
    def tags(self) -> str | None:
        return self.properties.get("TAGS")

    @property
    def keys(self) -> list[str]:
        return self.properties.get("KEYS", "").split()

    @property
    def unique_key(self) -> str | None:
        return self.properties.get("UNIQ_KEY")
