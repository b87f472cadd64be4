"""Which messages of a writer are repeats: the numbers that writers give their messages, and what is decided by them.

A writer that sends again what it has no answer to must not have it stored twice. So it gives each message its name
(`PYROMQ_WRITER`) and a number (`PYROMQ_SEQUENCE`, `<batch>:<index>`; the index counts 0, 1, 2 … within a batch and a
queue). Of each stream (topic, queue, writer) the newest stored number is known, and each message is one of these:

    not above the newest                          a repeat: it is acknowledged and not stored
    the next of the same batch                    it is stored
    the first of a later batch, or of a new one   it is stored
    any other                                     refused: a message before it is missing

So what a stream has in the log is its messages in order, each once, whatever was sent how often. Pure: the clock and
the log are the caller's. The table moves only by `stored`, after the append; a number that it holds is in the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from pyromq.broker import properties
from pyromq.errors import IllegalMessage, NotNow, OutOfSequence
from pyromq.model import names
from pyromq.records import layout, property_names

WRITER = property_names.WRITER.encode()
SEQUENCE = property_names.SEQUENCE.encode()
#: A run of properties without it needs no closer look.
MARKER = property_names.OWN_PREFIX.encode()

MAX_WRITER_BYTES = 255
#: A signed 64-bit number has room for them.
MAX_DIGITS = 18
#: Streams that are remembered at once, some 40 MB. A new one is refused then: to forget another would let its repeats
#: in, and nobody would notice.
MAX_STREAMS = 100_000


class Stream(NamedTuple):
    """Messages of one writer in one queue."""

    topic: bytes
    queue_id: int
    writer: bytes


class Numbered(NamedTuple):
    """A message, as far as decisions need it."""

    stream: Stream
    batch: int
    number: int


class Newest(NamedTuple):
    """The last message of a stream that is in the log."""

    batch: int
    number: int
    stored_ms: int


_NONE = Newest(-1, -1, 0)


class Sequences:
    """The newest number of each stream; the stream that rested longest comes first."""

    def __init__(self, remember_ms: int) -> None:
        self.remember_ms = remember_ms
        #: How often something changed.
        self.changes = 0
        self._newest: dict[Stream, Newest] = {}

    def __len__(self) -> int:
        return len(self._newest)

    def newest(self, stream: Stream) -> Newest | None:
        return self._newest.get(stream)

    def entries(self) -> list[tuple[Stream, Newest]]:
        """All of it, as it is now."""
        return list(self._newest.items())

    def decide(self, messages: Sequence[Numbered], now_ms: int) -> list[int]:
        """Which of these messages, one behind the other, are to be stored: their places; the others are repeats.

        Raises OutOfSequence, and NotNow when there are too many streams; then none may be stored.
        """
        ahead: dict[Stream, tuple[int, int]] = {}
        fresh: list[int] = []
        for place, (stream, batch, index) in enumerate(messages):
            known_batch, known_index = ahead.get(stream) or self._newest.get(stream, _NONE)[:2]
            if batch < known_batch or (batch == known_batch and index <= known_index):
                continue
            expected = known_index + 1 if batch == known_batch else 0
            if index != expected:
                raise OutOfSequence(_missing(stream, batch, index, expected), f"{batch}:{expected}")
            ahead[stream] = batch, index
            fresh.append(place)
        self._require_room(sum(stream not in self._newest for stream in ahead), now_ms)
        return fresh

    def _require_room(self, new: int, now_ms: int) -> None:
        if new and len(self._newest) + new > MAX_STREAMS:
            self.forget_old(now_ms)
            if len(self._newest) + new > MAX_STREAMS:
                raise NotNow(
                    f"{len(self._newest)} writers are remembered, each for every queue it writes to, and there is no "
                    "room for one more: use fewer writers or queues, or have them forgotten sooner "
                    "(writers_remembered_hours)"
                )

    def stored(self, messages: Iterable[Numbered], stored_ms: int) -> None:
        """These are in the log. What is known of a stream only grows: a copy of an older message changes nothing."""
        last = {stream: (batch, index) for stream, batch, index in messages}
        for stream, number in last.items():
            known = self._newest.get(stream)
            if known is None or known[:2] < number:
                self._newest.pop(stream, None)
                self._newest[stream] = Newest(*number, stored_ms)
                self.changes += 1

    def restore(self, entries: Iterable[tuple[Stream, Newest]]) -> None:
        """Begin with what was saved, and nothing else."""
        self._newest = dict(entries)
        self.changes += 1

    def forget_old(self, now_ms: int) -> None:
        """Forget the streams that rested for too long."""
        old: list[Stream] = []
        for stream, newest in self._newest.items():
            if newest.stored_ms >= now_ms - self.remember_ms:
                break
            old.append(stream)
        self._forget(old)

    def forget_topic(self, topic: bytes) -> bool:
        """The topic was removed: what comes for a new one of that name is no repeat. False: nothing was known of it."""
        gone = [stream for stream in self._newest if stream.topic == topic]
        self._forget(gone)
        return bool(gone)

    def _forget(self, streams: list[Stream]) -> None:
        for stream in streams:
            del self._newest[stream]
        self.changes += len(streams)


def _missing(stream: Stream, batch: int, index: int, expected: int) -> str:
    writer = stream.writer.decode(errors="replace")
    return (
        f"a message before this one is missing: of the writer {writer} this queue has batch {batch} up to index "
        f"{expected - 1}, and {batch}:{index} cannot follow; send again from {batch}:{expected} on"
        if expected
        else f"a message before this one is missing: of the writer {writer} this queue has nothing of batch {batch}, "
        f"and {batch}:{index} cannot be its first; send again from {batch}:0 on"
    )


# --- how the numbers are written -------------------------------------------------------------------------------------


def are_counted(topic: bytes) -> bool:
    """Do numbers matter in this topic? What consumers send back keeps those of the message that it was."""
    return not topic.startswith((names.RETRY_PREFIX.encode(), names.DEAD_LETTER_PREFIX.encode()))


#: Both properties as most writers have them: one behind the other.
_USUAL = re.compile(
    rb"(?:\A|\x02)PYROMQ_WRITER\x01([^\x01\x02\x80-\xff]{1,255})"
    rb"\x02PYROMQ_SEQUENCE\x01([0-9]{1,18}):([0-9]{1,18})(?:\x02|\Z)"
)


def numbered(topic: bytes, queue_id: int, run: bytes) -> Numbered | None:
    """The number among a message's properties; None when it has none. Raises IllegalMessage."""
    markers = run.count(MARKER)
    if not markers:
        return None
    usual = _USUAL.search(run) if markers == 2 else None
    if usual is None:
        return _closely_read(topic, queue_id, run)
    writer, batch, number = usual.groups()
    return Numbered(_stream(topic, queue_id, writer), int(batch), int(number))


#: Thousands of messages have the same.
_stream = lru_cache(1024)(Stream)


def _closely_read(topic: bytes, queue_id: int, run: bytes) -> Numbered | None:
    """Whatever the properties are. Raises IllegalMessage."""
    writer, sequence = properties.get(run, WRITER), properties.get(run, SEQUENCE)
    if writer is None and sequence is None:
        return None
    if writer is None or sequence is None:
        raise IllegalMessage(f"a numbered message has both {WRITER.decode()} and {SEQUENCE.decode()}")
    if len(writer) > MAX_WRITER_BYTES or not _is_text(writer):
        raise IllegalMessage(f"the name of a writer is text of at most {MAX_WRITER_BYTES} bytes")
    batch, _, index = sequence.partition(b":")
    if not (batch.isdigit() and index.isdigit() and len(batch) <= MAX_DIGITS and len(index) <= MAX_DIGITS):
        raise IllegalMessage(
            f"{SEQUENCE.decode()} is <batch>:<index>, two numbers of at most {MAX_DIGITS} digits, not {sequence[:50]!r}"
        )
    return Numbered(Stream(topic, queue_id, writer), int(batch), int(index))


def _is_text(name: bytes) -> bool:
    if name.isascii():
        return True
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def numbered_record(topic: bytes, queue_id: int, run: bytes) -> Numbered | None:
    """The number of a record of the log; None: it has none that counts. A delayed message counts where it will be."""
    try:
        if topic == layout.SCHEDULE_TOPIC:
            topic = properties.get(run, properties.REAL_TOPIC) or b""
            queue_id = properties.get_int(run, properties.REAL_QUEUE) or 0
        is_own = names.is_system_topic(topic.decode(errors="replace"))
        return None if is_own or not are_counted(topic) else numbered(topic, queue_id, run)
    except IllegalMessage:
        return None  # no number was ever decided on: it came by another way
