"""The decision over the rows of a transactional batch: one message in an internal topic. Pure.

A batch of a query is *decided* by the first message that says so, in the one queue that all messages of this query are
in. It names, for each partition, the attempt whose rows count. Everything else follows from it: the holder of a half of
a batch, or a broker's check, commits it when it is one of a named attempt and rolls it back when the batch was decided
without it. Batches are decided in their order, so a decision for a later one says that all before it are decided.

A half carries a stamp: query, batch, partition, attempt, and its number within the attempt. An attempt is one run of
one task: its name is random, because Spark's own numbers restart in every application. When a half was
sent and no answer came, it is sent again under another number, and the number whose fate is unknown is *void*: should
it have been stored after all, it is rolled back.

Two drivers may write decisions for one batch at the same time (one was thought dead). Each says up to which offset its
writer had looked (`after`); so a reader knows how far back another one could stand that counts instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from pyromq.client.transaction_producer import Decision as End
from pyromq.errors import WrongShape
from pyromq.records.property_names import BATCH_STAMP

TOPIC = "PYROMQ_SPARK_DECISIONS"
#: Never to change: it says in which queue the decisions of a query are.
QUEUES = 8
#: The property that has the stamp.
STAMP = BATCH_STAMP
VERSION = 1


class Stamp(NamedTuple):
    """Whose half it is."""

    query: str
    batch: int
    partition: int
    attempt: str
    serial: int

    def __str__(self) -> str:
        return ":".join(map(str, self))


def parse_stamp(text: str) -> Stamp:
    """Raises ValueError."""
    query, batch, partition, attempt, serial = text.split(":")
    return Stamp(query, int(batch), int(partition), attempt, int(serial))


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a task, whose rows count."""

    name: str
    #: The halves it sent, and the numbers of those whose fate is unknown.
    sent: int
    void: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class BatchDecision:
    query: str
    batch: int
    #: By partition.
    attempts: Mapping[int, Attempt]
    #: Before this offset its writer had found no decision for the batch.
    after: int = 0
    #: Its offset; -1 before it is stored.
    offset: int = field(default=-1, compare=False)

    def includes(self, stamp: Stamp) -> bool:
        attempt = self.attempts.get(stamp.partition)
        return (
            attempt is not None
            and (stamp.query, stamp.batch) == (self.query, self.batch)
            and attempt.name == stamp.attempt
            and stamp.serial not in attempt.void
        )


def end_of(stamp: Stamp, decision: BatchDecision | None, *, is_past: bool) -> End:
    """Return the fate of a half. `is_past`: the batch is over, decided with or without a message of its own."""
    if decision is not None:
        return End.COMMIT if decision.includes(stamp) else End.ROLLBACK
    return End.ROLLBACK if is_past else End.UNKNOWN


# --- where and how it is written -------------------------------------------------------------------------------------


def queue_of(query: str) -> int:
    return crc32(query.encode()) % QUEUES


def tag_of(query: str) -> str:
    """Brokers look for the messages of a query by this; others may have the same."""
    return f"q{crc32(query.encode()[::-1]):08x}"


def key_of(query: str, batch: int) -> str:
    return f"{query}:{batch}"


def encode(decision: BatchDecision) -> bytes:
    attempts = {
        str(partition): [one.name, one.sent, *([sorted(one.void)] if one.void else [])]
        for partition, one in sorted(decision.attempts.items())
    }
    form = {
        "v": VERSION, "kind": "decision", "query": decision.query, "batch": decision.batch, "after": decision.after,
        "attempts": attempts,
    }  # fmt: skip
    return json.dumps(form, separators=(",", ":")).encode()


def decode(body: bytes, offset: int) -> BatchDecision | None:
    """None for a message of another kind. Raises WrongShape for what cannot be understood: guessing would lose rows."""
    try:
        form = json.loads(body)
        if form["kind"] != "decision":
            return None
        if form["v"] > VERSION:
            raise WrongShape(
                f"a newer version of PyroMQ wrote the message at offset {offset} of {TOPIC}: update this one"
            )
        attempts = {
            int(partition): Attempt(name, sent, frozenset(*void))
            for partition, (name, sent, *void) in form["attempts"].items()
        }
        return BatchDecision(form["query"], form["batch"], attempts, form["after"], offset)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise WrongShape(
            f"the message at offset {offset} of {TOPIC} is no decision, and nothing else is to be in it"
        ) from None


@dataclass(frozen=True, slots=True)
class Layout:
    """The queues of a topic as a writer found them first: rows that are written again go to the same."""

    query: str
    topic: str
    queues: tuple[tuple[str, int], ...]
    offset: int = field(default=-1, compare=False)


def encode_layout(layout: Layout) -> bytes:
    form = {"v": VERSION, "kind": "queues", "query": layout.query, "topic": layout.topic, "queues": layout.queues}
    return json.dumps(form, separators=(",", ":")).encode()


def decode_layout(body: bytes, offset: int) -> Layout | None:
    """None for a message of another kind. Raises WrongShape."""
    try:
        form = json.loads(body)
        if form["kind"] != "queues":
            return None
        queues = tuple((str(broker), int(queue_id)) for broker, queue_id in form["queues"])
        return Layout(form["query"], form["topic"], queues, offset)
    except (ValueError, KeyError, TypeError):
        raise WrongShape(f"the message at offset {offset} of {TOPIC} cannot be understood") from None


class View:
    """The decisions of one query, as far as its queue has been read: all from `start` up to `end`.

    The writer of a decision had read everything before its `after`, and had found no decision for this batch or a later
    one there. So when `start` is not behind that, nothing before `start` can be about this batch or a later one.
    """

    def __init__(self, at: int) -> None:
        self.start = at
        self.end = at
        #: The loop's time when the end was read.
        self.fresh = 0.0
        self._decisions: dict[int, BatchDecision] = {}

    def add(self, decision: BatchDecision) -> None:
        """Of several for one batch the first in the queue counts."""
        known = self._decisions.get(decision.batch)
        if known is None or decision.offset < known.offset:
            self._decisions[decision.batch] = decision

    @property
    def last(self) -> BatchDecision | None:
        return self._decisions[max(self._decisions)] if self._decisions else None

    def of(self, batch: int) -> BatchDecision | None:
        return self._decisions.get(batch)

    def is_enough(self, batch: int) -> bool:
        """Return whether messages before `start` cannot affect this batch and later ones."""
        if self.start == 0:
            return True
        return any(known <= batch and self.start <= one.after for known, one in self._decisions.items())

    def is_past(self, batch: int) -> bool:
        """A later batch is decided, and nothing that could have decided this one was overlooked or has been deleted."""
        return self.last is not None and self.last.batch > batch and self.is_enough(batch)

    def forget(self, keep: int) -> None:
        """Keep the newest `most`; earlier ones are read again on request."""
        for batch in sorted(self._decisions)[:-keep]:
            self.start = max(self.start, self._decisions.pop(batch).offset + 1)
