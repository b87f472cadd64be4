"""One consumer group's story: what it was given, in which order, and how its progress moved (H4, H5, H6, H11)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set

from pyromq.model.queue import MessageQueue
from pyromq.testing.history.events import Committed, DeadLettered, Delivered, Fault, Handled, Reset, Subscribed
from pyromq.testing.history.facts import Facts, GroupEvent, Sent


class _Queue:
    """One queue, as one group goes through it."""

    __slots__ = ("given", "highest", "last_commit", "settled", "to_check", "under_way")

    def __init__(self) -> None:
        self.given: set[int] = set()
        #: Handled, well or not: a redelivery comes from another topic.
        self.settled: set[int] = set()
        self.highest: Delivered | None = None
        #: Given and not done, of a group that handles in order.
        self.under_way: dict[int, Delivered] = {}
        self.last_commit: Committed | None = None
        #: Offsets that progress has not passed yet, the highest first; None before the first commit.
        self.to_check: list[int] | None = None


class GroupStory:
    """Goes through the events of one group once."""

    def __init__(self, facts: Facts, group: str, passed: Set[tuple[str, MessageQueue, int]] = frozenset()) -> None:
        self._facts = facts
        self._may_pass = {(queue, offset) for one, queue, offset in passed if one == group}
        self._report = facts.report
        self._group = group
        self._subscriptions = {one.topic: one for one in facts.subscriptions[group]}
        self._queues: defaultdict[MessageQueue, _Queue] = defaultdict(_Queue)
        #: By message, whether it was asked for again after it was given.
        self._asked_again: dict[str, bool] = {}
        self._done: set[str] = set()
        self._last_place: dict[str, tuple[MessageQueue, int]] = {}
        self._latest_of_key: dict[tuple[str, str], Delivered] = {}
        self._tells_handling = any(isinstance(event, Handled) for event in facts.of_groups[group])

    def check(self, *, drained: bool) -> None:
        for event in self._facts.of_groups[self._group]:
            self._take(event)
        if drained:
            for sent in self._wanted():
                if sent.called.message_id not in self._done:
                    self._never_done(sent)

    def _take(self, event: GroupEvent) -> None:
        match event:
            case Delivered():
                self._delivered(event)
            case Handled():
                self._handled(event)
            case DeadLettered():
                self._dead_lettered(event)
            case Committed():
                self._committed(event)
            case Reset():
                self._queues[event.queue].last_commit = None
            case Fault():
                for queue in self._queues.values():
                    queue.last_commit = None

    # --- what it was given -------------------------------------------------------------------------------------------

    def _delivered(self, event: Delivered) -> None:
        self._count_duplicate(event)
        queue = self._queues[event.queue]
        subscription = self._subscriptions.get(event.queue.topic)
        if subscription is not None and subscription.ordered:
            self._check_order(event, queue)
        queue.given.add(event.offset)
        if not self._tells_handling:
            self._done.add(event.message_id)
            queue.settled.add(event.offset)

    def _count_duplicate(self, event: Delivered) -> None:
        if self._asked_again.get(event.message_id) is False:
            self._facts.counts.delivered_duplicates += 1
            if self._facts.is_fault_free:
                self._report.found(
                    "H6", f"{self._group} was given message {event.message_id} again without any fault", event
                )
        self._asked_again[event.message_id] = False

    def _check_order(self, event: Delivered, queue: _Queue) -> None:
        self._last_place[event.message_id] = (event.queue, event.offset)
        if event.offset not in queue.given:
            if queue.highest is not None and event.offset < queue.highest.offset:
                self._out_of_order(event, queue.highest, "which is behind it in the queue")
            else:
                queue.highest = event
            self._check_key(event)
        for offset in [offset for offset in queue.under_way if offset < event.offset]:
            self._out_of_order(event, queue.under_way.pop(offset), "which is before it and was not done")
        queue.under_way[event.offset] = event

    def _check_key(self, event: Delivered) -> None:
        """Each was acknowledged before the next was sent: so they are handled one after the other, in any queue.

        The place that was acknowledged counts: what a line held back for a while is stored once more when it arrives.
        """
        sent = self._facts.by_id.get(event.message_id)
        if sent is None or sent.ack is None or not sent.called.key or sent.called.sequence < 0:
            return
        if (sent.ack.queue, sent.ack.offset) != (event.queue, event.offset):
            return
        key = (sent.called.client, sent.called.key)
        latest = self._latest_of_key.get(key)
        if latest is not None:
            later = self._facts.by_id[latest.message_id]
            if later.called.sequence > sent.called.sequence:
                if sent.ack.at <= later.called.at:
                    self._out_of_order(event, latest, "which was sent after it with the same key")
                return
        self._latest_of_key[key] = event

    def _out_of_order(self, event: Delivered, other: Delivered, why: str) -> None:
        self._report.found(
            "H4", f"{self._group} was given message {event.message_id} after {other.message_id}, {why}", other, event
        )

    def _handled(self, event: Handled) -> None:
        queue = self._queues[event.queue]
        if event.offset not in queue.given:
            self._report.found("H0", f"message {event.message_id} was handled and never delivered", event)
        queue.settled.add(event.offset)
        self._asked_again[event.message_id] = event.again
        if not event.again:
            queue.under_way.pop(event.offset, None)
            self._done.add(event.message_id)

    def _dead_lettered(self, event: DeadLettered) -> None:
        self._done.add(event.message_id)
        place = self._last_place.get(event.message_id)
        if place is not None:
            self._queues[place[0]].under_way.pop(place[1], None)

    # --- how its progress moved --------------------------------------------------------------------------------------

    def _committed(self, event: Committed) -> None:
        queue = self._queues[event.queue]
        last = queue.last_commit
        if last is not None and event.offset < last.offset:
            self._report.found(
                "H11", f"{self._group}'s progress in {event.queue} went back from {last.offset} to {event.offset}",
                last, event,
            )  # fmt: skip
        queue.last_commit = event
        if queue.to_check is None:
            queue.to_check = sorted(self._wanted_offsets(event.queue), reverse=True)
        while queue.to_check and queue.to_check[-1] < event.offset:
            self._passed(event, queue, queue.to_check.pop())

    def _wanted_offsets(self, queue: MessageQueue) -> Iterator[int]:
        subscription = self._subscriptions.get(queue.topic)
        if subscription is None:
            return
        for offset, place in self._facts.queues[queue].items():
            sent = self._facts.by_id.get(place.message_id)
            if sent is not None and _is_wanted(sent, subscription) and (queue, offset) not in self._may_pass:
                yield offset

    def _passed(self, event: Committed, queue: _Queue, offset: int) -> None:
        place = self._facts.queues[event.queue][offset]
        if offset not in queue.given:
            why = "never given to it"
        elif offset not in queue.settled:
            why = "given to it and not handled"
        else:
            return
        self._report.found(
            "H5", f"{self._group}'s progress passed message {place.message_id}, which was by then {why}",
            place.event, event,
        )  # fmt: skip

    def _wanted(self) -> Iterator[Sent]:
        """Return the messages it must have handled in the end."""
        for sent in self._facts.by_id.values():
            subscription = self._subscriptions.get(sent.called.topic)
            if subscription is None or not sent.is_owed(self._facts.ended_at) or sent.ack is None:
                continue
            if _is_wanted(sent, subscription) and (sent.ack.queue, sent.ack.offset) not in self._may_pass:
                yield sent

    def _never_done(self, sent: Sent) -> None:
        was_given = sent.called.message_id in self._asked_again
        what = "was given and never handled" if was_given else "was never given"
        self._report.found("H5", f"{self._group} {what} {sent}", sent.called, *([sent.ack] if sent.ack else []))


def _is_wanted(sent: Sent, subscription: Subscribed) -> bool:
    return subscription.from_first or sent.called.at >= subscription.at
