"""A history put in order: each message with its outcomes, each queue with its known content.

Faults of single events are found on the way: a message without a send (H2), an offset with two messages
(H3), an impossible record (H0).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TypeAlias

from pyromq.model.queue import MessageQueue
from pyromq.testing.history.events import (
    Committed,
    DeadLettered,
    Decided,
    Delivered,
    Event,
    Fault,
    Handled,
    QueueEnd,
    Read,
    Reset,
    SendCalled,
    SendFailed,
    SendOk,
    SendUnknown,
    Subscribed,
)
from pyromq.testing.history.report import Report

Sighting: TypeAlias = Read | Delivered
GroupEvent: TypeAlias = Delivered | Handled | DeadLettered | Committed | Reset | Fault
Outcome: TypeAlias = SendOk | SendFailed | SendUnknown


class Sent:
    """One message: how its send went, and where it was seen."""

    __slots__ = ("called", "decisions", "first_seen", "outcome", "places", "seen_at")

    def __init__(self, called: SendCalled) -> None:
        self.called = called
        self.outcome: Outcome | None = None
        self.decisions: list[Decided] = []
        #: Its offsets in queues of its topic.
        self.places: set[tuple[MessageQueue, int]] = set()
        self.first_seen: Sighting | None = None
        self.seen_at = 0.0

    @property
    def ack(self) -> SendOk | None:
        return self.outcome if isinstance(self.outcome, SendOk) else None

    @property
    def is_plain(self) -> bool:
        """Neither delayed nor half: it is read where it was acknowledged."""
        return self.called.due is None and not self.called.transaction

    def is_owed(self, at: float) -> bool:
        """It must be seen by this time."""
        if self.ack is None or (self.called.due is not None and self.called.due > at):
            return False
        return not self.called.transaction or any(one.commit for one in self.decisions)

    def __str__(self) -> str:
        return f"message {self.called.message_id} of {self.called.topic}"


class Place:
    """The known message at one offset of a queue, and the event that showed it."""

    __slots__ = ("event", "message_id", "was_read")

    def __init__(self, message_id: str, event: Event) -> None:
        self.message_id = message_id
        self.event = event
        self.was_read = False


class Facts:
    """Reads a history once."""

    def __init__(self, events: Iterable[Event], report: Report) -> None:
        self.report = report
        self.counts = report.counts
        self.by_op: dict[int, Sent] = {}
        self.by_id: dict[str, Sent] = {}
        self.queues: defaultdict[MessageQueue, dict[int, Place]] = defaultdict(dict)
        #: Queues that were read as a log.
        self.read_queues: set[MessageQueue] = set()
        self.reads: defaultdict[tuple[str, MessageQueue], list[Read]] = defaultdict(list)
        self.acks: defaultdict[MessageQueue, list[SendOk]] = defaultdict(list)
        self.ends: list[QueueEnd] = []
        self.subscriptions: defaultdict[str, list[Subscribed]] = defaultdict(list)
        self.of_groups: defaultdict[str, list[GroupEvent]] = defaultdict(list)
        self.resets = 0
        #: The time of the last event.
        self.ended_at = 0.0
        #: Those that make a broker forget: they are part of every group's story.
        self._forgetting: list[Fault] = []
        take = {
            SendCalled: self._called, SendOk: self._outcome, SendFailed: self._outcome, SendUnknown: self._outcome,
            Decided: self._decided, Read: self._read, QueueEnd: self.ends.append, Subscribed: self._subscribed,
            Delivered: self._delivered, Handled: self._handled, DeadLettered: self._dead_lettered,
            Committed: self._group, Reset: self._reset, Fault: self._fault,
        }  # fmt: skip
        for event in events:
            self.counts.events += 1
            take[type(event)](event)  # type: ignore[operator]
            if event.at > self.ended_at:
                self.ended_at = event.at
        self.counts.unknown = self.counts.sends - self.counts.acknowledged - self.counts.failed

    @property
    def is_fault_free(self) -> bool:
        return not self.counts.faults and not self.counts.unknown and not self.resets

    # --- sends -------------------------------------------------------------------------------------------------------

    def _called(self, event: SendCalled) -> None:
        self.counts.sends += 1
        if event.op in self.by_op or event.message_id in self.by_id:
            self.report.found("H0", f"message {event.message_id} or its number {event.op} was sent before", event)
            return
        self.by_op[event.op] = self.by_id[event.message_id] = Sent(event)

    def _outcome(self, event: Outcome) -> None:
        sent = self.by_op.get(event.op)
        if sent is None or sent.outcome is not None:
            why = "was never called" if sent is None else "has an outcome already"
            self.report.found("H0", f"the send with number {event.op} {why}", event)
            return
        sent.outcome = event
        if isinstance(event, SendOk):
            self.counts.acknowledged += 1
            if sent.is_plain:
                self._acknowledged(sent, event)
        elif isinstance(event, SendFailed):
            self.counts.failed += 1

    def _acknowledged(self, sent: Sent, event: SendOk) -> None:
        self.acks[event.queue].append(event)
        known = self._place(event.queue, event.offset, sent.called.message_id, event)
        if isinstance(known.event, SendOk) and known.event is not event:
            self.report.found("H3", f"{_where(event)} was given out twice", known.event, event)

    def _decided(self, event: Decided) -> None:
        sent = self.by_op.get(event.op)
        if sent is None or not sent.called.transaction:
            self.report.found("H0", f"number {event.op}, which was decided, is no half message", event)
            return
        sent.decisions.append(event)

    # --- observations ------------------------------------------------------------------------------------------------

    def _place(self, queue: MessageQueue, offset: int, message_id: str, event: SendOk | Sighting) -> Place:
        places = self.queues[queue]
        known = places.get(offset)
        if known is None:
            known = places[offset] = Place(message_id, event)
        elif known.message_id != message_id:
            self.report.found(
                "H3", f"{_where(event)} has message {known.message_id}, and then {message_id}", known.event, event
            )
        return known

    def _seen(self, event: Sighting, at: float) -> None:
        sent = self.by_id.get(event.message_id)
        if sent is None:
            self.report.found("H2", f"nobody sent message {event.message_id}, found at {_where(event)}", event)
            return
        called = sent.called
        if event.digest and called.digest and event.digest != called.digest:
            self.report.found("H2", f"{sent} has another body at {_where(event)} than it was sent with", called, event)
        if isinstance(sent.outcome, SendFailed):
            self.report.found("H2", f"{sent} is there, and its sender was told that it is not", sent.outcome, event)
        if sent.first_seen is None or at < sent.seen_at:
            sent.first_seen, sent.seen_at = event, at
        if event.queue.topic == called.topic:
            sent.places.add((event.queue, event.offset))
            if called.queue is not None and called.queue != event.queue:
                self.report.found("H2", f"{sent} was sent to another queue than {_where(event)}", called, event)
        elif not event.queue.topic.startswith("%"):  # those of retries and dead letters
            self.report.found("H2", f"{sent} was found in another topic, at {_where(event)}", called, event)

    def _read(self, event: Read) -> None:
        self.counts.reads += 1
        self.reads[event.client, event.queue].append(event)
        self.read_queues.add(event.queue)
        self._place(event.queue, event.offset, event.message_id, event).was_read = True
        self._seen(event, event.at if event.stored_at is None else event.stored_at)

    # --- groups ------------------------------------------------------------------------------------------------------

    def _subscribed(self, event: Subscribed) -> None:
        self.subscriptions[event.group].append(event)

    def _group(self, event: Delivered | Handled | DeadLettered | Committed | Reset) -> None:
        story = self.of_groups.get(event.group)
        if story is None:
            story = self.of_groups[event.group] = list(self._forgetting)
        story.append(event)

    def _delivered(self, event: Delivered) -> None:
        self.counts.deliveries += 1
        self._group(event)
        self._place(event.queue, event.offset, event.message_id, event)
        self._seen(event, event.at)

    def _handled(self, event: Handled) -> None:
        self.counts.handled += 1
        self._group(event)

    def _dead_lettered(self, event: DeadLettered) -> None:
        self.counts.dead_lettered += 1
        self._group(event)

    def _reset(self, event: Reset) -> None:
        self.resets += 1
        self._group(event)

    def _fault(self, event: Fault) -> None:
        self.counts.faults += 1
        if event.forgets_progress:
            self._forgetting.append(event)
            for story in self.of_groups.values():
                story.append(event)


def _where(event: SendOk | Sighting) -> str:
    queue = event.queue
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id} offset {event.offset}"
