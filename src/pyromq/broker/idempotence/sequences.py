"""Finds the repeated messages of a producer by the sequence numbers that producers give their messages.

A writer that sends again what it has no answer to must not have it stored twice. So it gives each message its name
(`PYROMQ_WRITER`) and a number (`PYROMQ_SEQUENCE`, `<batch>:<index>`; the index counts 0, 1, 2 … within a batch and a
queue). Of each stream (topic, queue, writer) the newest stored number is known, and each message is one of these:

    at most the end of the newest batch, or of    a repeat: acknowledged and not stored, once the caller found
    one of the `BATCHES_KEPT` batches before it   the end of that batch in the log
    the next of the newest batch                  it is stored
    the first of a later batch, or of a new one   it is stored
    any other                                     refused: a message before it is missing, or its batch is unknown

So what a stream has in the log is its messages in order, each once, whatever was sent how often. Pure: the clock and
the log are the caller's. The table moves only by `stored`, after the append; a number that it holds is in the log.
Only writers whose identity a broker issued are in it (`writer_identities`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from pyromq.broker.delivery import properties
from pyromq.broker.idempotence.identities import id_of
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
#: in, without being noticed.
MAX_STREAMS = 100_000
#: Batches before the newest whose ends are known, for each stream: a writer repeats its last batch, seldom the one
#: before.
BATCHES_KEPT = 4


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


class BatchEnd(NamedTuple):
    """The last message of a batch that is in the log, and its position there."""

    batch: int
    number: int
    position: int


class Newest(NamedTuple):
    """The last message of a stream that is in the log, and the ends of the batches before, oldest first."""

    batch: int
    number: int
    stored_ms: int
    position: int
    earlier: tuple[BatchEnd, ...] = ()

    @property
    def end(self) -> BatchEnd:
        return BatchEnd(self.batch, self.number, self.position)

    def end_of(self, batch: int) -> BatchEnd | None:
        """Return the end of a batch; None if it is not known."""
        if batch == self.batch:
            return self.end
        return next((end for end in self.earlier if end.batch == batch), None)


class Decision(NamedTuple):
    """The decision about the messages of a request."""

    #: The places of those to be stored.
    fresh: list[int]
    #: The batch ends that the repeats rely on: each must be found in the log.
    repeated: set[tuple[Stream, BatchEnd]]
    #: Streams that are not in the table yet.
    new_streams: int


_NONE = Newest(-1, -1, 0, -1)


class Sequences:
    """The newest number of each stream; the stream that rested longest comes first."""

    def __init__(self, remember_ms: int) -> None:
        self.remember_ms = remember_ms
        #: The number of changes so far.
        self.changes = 0
        self._newest: dict[Stream, Newest] = {}
        #: The number of streams of each id.
        self._per_writer: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._newest)

    def newest(self, stream: Stream) -> Newest | None:
        return self._newest.get(stream)

    def entries(self) -> list[tuple[Stream, Newest]]:
        """All of it, as it is now."""
        return list(self._newest.items())

    def decide(self, messages: Sequence[Numbered], now_ms: int) -> Decision:
        """Return which of these messages, in their order, are to be stored; the others are repeats.

        Raises OutOfSequence, and NotNow when there are too many streams; then none may be stored.
        """
        ahead: dict[Stream, dict[int, int]] = {}
        fresh: list[int] = []
        repeated: set[tuple[Stream, BatchEnd]] = set()
        for place, (stream, batch, index) in enumerate(messages):
            known = self._newest.get(stream, _NONE)
            own = ahead.get(stream)
            if own is not None and index <= own.get(batch, -1):
                continue  # a repeat within this request
            end = known.end_of(batch)
            if end is not None and index <= end.number:
                repeated.add((stream, end))
                continue
            newest_batch = max(own) if own else known.batch
            newest_index = own[newest_batch] if own else known.number
            expected = newest_index + 1 if batch == newest_batch else 0
            if batch < newest_batch or index != expected:
                raise _out_of_sequence(stream, batch, index, newest_batch, newest_index)
            ahead.setdefault(stream, {})[batch] = index
            fresh.append(place)
        new_streams = sum(stream not in self._newest for stream in ahead)
        self._require_room(new_streams, now_ms)
        return Decision(fresh, repeated, new_streams)

    def _require_room(self, new: int, now_ms: int) -> None:
        if new and len(self._newest) + new > MAX_STREAMS:
            self.forget_old(now_ms)
            if len(self._newest) + new > MAX_STREAMS:
                raise NotNow(
                    f"{len(self._newest)} writers are remembered, each for every queue it writes to, and there is no "
                    "room for one more: use fewer writers or queues, or have them forgotten sooner "
                    "(idempotence.retention_hours)"
                )

    def stored(self, messages: Iterable[tuple[Numbered, int]], stored_ms: int) -> None:
        """Note messages that are in the log, each with its position. A copy of an older message changes nothing."""
        last = {(stream, batch): (index, position) for (stream, batch, index), position in messages}
        for (stream, batch), (index, position) in last.items():
            known = self._newest.get(stream)
            if known is None:
                self._newest[stream] = Newest(batch, index, stored_ms, position)
                self._count(stream, 1)
            elif known[:2] < (batch, index):
                earlier = known.earlier
                if batch != known.batch:
                    earlier = (*earlier, known.end)[-BATCHES_KEPT:]
                del self._newest[stream]
                self._newest[stream] = Newest(batch, index, stored_ms, position, earlier)
            else:
                continue
            self.changes += 1

    def restore(self, entries: Iterable[tuple[Stream, Newest]]) -> None:
        """Replace the table with the saved one."""
        self._newest = dict(entries)
        self._per_writer = {}
        for stream in self._newest:
            self._count(stream, 1)
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
        """Forget a removed topic: messages for a new topic of that name are no repeats. False if it was unknown."""
        gone = [stream for stream in self._newest if stream.topic == topic]
        self._forget(gone)
        return bool(gone)

    def _forget(self, streams: list[Stream]) -> None:
        for stream in streams:
            del self._newest[stream]
            self._count(stream, -1)
        self.changes += len(streams)

    def streams_of(self, writer: bytes) -> int:
        """Return how many streams of a writer's id are known."""
        return self._per_writer.get(writer, 0)

    def _count(self, stream: Stream, change: int) -> None:
        writer = id_of(stream.writer) or stream.writer
        count = self._per_writer.get(writer, 0) + change
        if count:
            self._per_writer[writer] = count
        else:
            self._per_writer.pop(writer, None)


def _out_of_sequence(stream: Stream, batch: int, index: int, newest_batch: int, newest_index: int) -> OutOfSequence:
    writer = stream.writer.decode(errors="replace")
    if batch < newest_batch:
        expected = f"{newest_batch}:{newest_index + 1}"
        return OutOfSequence(
            f"{batch}:{index} of the writer {writer} is not known to be stored, and cannot be stored after "
            f"{newest_batch}:{newest_index}: this queue expects {expected}, or the first message of a later batch",
            expected,
        )
    first = newest_index + 1 if batch == newest_batch else 0
    expected = f"{batch}:{first}"
    has = f"batch {batch} up to index {first - 1}" if first else f"nothing of batch {batch}"
    return OutOfSequence(
        f"a message before this one is missing: of the writer {writer} this queue has {has} and expects {expected}, "
        f"not {batch}:{index}; send again from {expected} on",
        expected,
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
    """The number of a record of the log; None: it has none that counts. A delayed message counts where it will be.

    Names that no broker issued do not count: they are of a time before identities were issued.
    """
    try:
        if topic == layout.SCHEDULE_TOPIC:
            topic = properties.get(run, properties.REAL_TOPIC) or b""
            queue_id = properties.get_int(run, properties.REAL_QUEUE) or 0
        is_own = names.is_system_topic(topic.decode(errors="replace"))
        found = None if is_own or not are_counted(topic) else numbered(topic, queue_id, run)
        return None if found is None or id_of(found.stream.writer) is None else found
    except IllegalMessage:
        return None  # no number was ever decided on: it came by another way
