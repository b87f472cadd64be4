"""Frames of a replication connection, byte for byte as RocketMQ's own brokers have them. No input or output.

    replica → primary   8 bytes    the position where its log ends: at first, after every append, as a sign of life
    primary → replica   12 bytes   the position of the bytes and their length; then that many bytes of the log
                                   a length of 0 is a sign of life

A follower of ours begins with a handshake, to a primary of ours alone: see `handshake`. One that does not know where
the broker of the primary answers asks on a connection of its own: see `address_question`.

Two words more are ours. A replica that wants to be sent no more than it asks for says −n, "n more bytes". One that
copies for itself alone (a backup) says −1 before its first position: it does not count as a copy, and is sent the
ranges it asks for. RocketMQ's replicas never say either, and its primaries do not understand them.

The readers take bytes as they come, in any pieces, and never hold more than one frame.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from pyromq.errors import BadFrame

REPORT = struct.Struct(">q")
PUSH = struct.Struct(">qi")

#: The first word of one that is no replica: nothing that it reports is taken for a copy.
OBSERVER = -1

#: The first word of a handshake: no position, and no number of bytes that anybody asks for.
HELLO = -0x50_79_72_6F_4D_51_48_31
#: The word of a follower that asks whether a primary of ours is there, and of the answer: see `address_question`.
IS_OURS = -0x50_79_72_6F_4D_51_57_31
#: Bytes of one frame of a handshake.
MAX_HELLO = 128 << 10

#: RocketMQ's replicas read into a buffer of 4 MiB that must hold a whole frame.
MAX_PUSH = (4 << 20) - PUSH.size


class Push(NamedTuple):
    """Bytes of the log. Without bytes: a sign of life, with the position that the primary has reached for us."""

    position: int
    data: memoryview

    @property
    def end(self) -> int:
        return self.position + len(self.data)


def encode_report(position: int) -> bytes:
    return REPORT.pack(position)


def encode_observer() -> bytes:
    """To be said first: what follows is no replica's word."""
    return REPORT.pack(OBSERVER)


def encode_grant(more: int) -> bytes:
    """Encode a grant: the primary may send `more` bytes."""
    assert more > 0
    return REPORT.pack(-more)


def push_head(position: int, length: int) -> bytes:
    """The bytes of the log follow it: they are not copied to be framed."""
    return PUSH.pack(position, length)


class Words(NamedTuple):
    """All words of a replica in one read."""

    #: The first position among them; None: there was none.
    first: int | None = None
    #: The newest: older ones say nothing more.
    newest: int | None = None
    #: Further bytes that the primary may send.
    granted: int = 0
    #: It has said that it is no replica.
    observes: bool = False


class ReportReader:
    """The primary's ear."""

    __slots__ = ("_knows_position", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._knows_position = False

    def feed(self, data: bytes) -> Words:
        """Decode the whole words. Raises BadFrame if the first one is no position."""
        if self._knows_position and len(data) == REPORT.size and not self._rest:  # one report, as nearly always
            (word,) = REPORT.unpack(data)
            return Words(word, word, 0, False) if word >= 0 else Words(None, None, -word, False)
        data = self._rest + data
        whole = len(data) - len(data) % REPORT.size
        self._rest = data[whole:]
        first: int | None = None
        newest: int | None = None
        granted = 0
        observes = False
        for (word,) in REPORT.iter_unpack(data[:whole]):
            if word >= 0:
                first, newest = word if first is None else first, word
            elif first is None and not self._knows_position and word == OBSERVER:
                observes = True
            elif first is None and not self._knows_position:
                raise BadFrame(f"a replica says first that its log ends at {word}: it is no replica, or a broken one")
            else:
                granted -= word
        self._knows_position |= first is not None
        return Words(first, newest, granted, observes)


class PushReader:
    """Decodes frames from a primary. A frame is returned when it is whole.

    Bytes are received directly into `space`; a frame is a view of it, and only the beginning of a partial one is ever
    moved.
    """

    __slots__ = ("_end", "_max_push", "_start", "_view")

    def __init__(self, max_push: int = MAX_PUSH) -> None:
        self._view = memoryview(bytearray(max_push + PUSH.size))
        self._max_push = max_push
        self._start = self._end = 0

    def space(self) -> memoryview:
        """Return the buffer for the next bytes. The views that `next` gave are no longer valid."""
        if self._start:
            kept = self._end - self._start
            self._view[:kept] = self._view[self._start : self._end]
            self._start, self._end = 0, kept
        return self._view[self._end :]

    def filled(self, count: int) -> None:
        self._end += count

    def next(self) -> Push | None:
        """The next whole frame. Raises BadFrame."""
        if self._end - self._start < PUSH.size:
            return None
        position, length = PUSH.unpack_from(self._view, self._start)
        is_handshake = position == HELLO and length <= MAX_HELLO
        if (position < 0 and not is_handshake) or not 0 <= length <= self._max_push:
            raise BadFrame(
                f"a primary announces {length} bytes at position {position}; a frame has 0 to {self._max_push} bytes, "
                "at a position that is not negative: is this the replication port of a broker?"
            )
        begin = self._start + PUSH.size
        if self._end - begin < length:
            return None
        self._start = begin + length
        return Push(position, self._view[begin : begin + length])

    def feed(self, data: bytes | memoryview) -> Iterator[Push]:
        """For bytes that are somewhere else already. A frame is good until the next one is asked for."""
        while data:
            space = self.space()
            part = data[: len(space)]
            space[: len(part)] = part
            self.filled(len(part))
            data = data[len(part) :]
            while (push := self.next()) is not None:
                yield push
