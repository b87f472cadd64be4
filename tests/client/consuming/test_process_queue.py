"""Fetched messages before they are handled: the committable offset, and the buffer limits."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyromq.client.consuming.process_queue import MAX_SPAN, Allowance, ProcessQueue, Run
from pyromq.client.received import ReceivedMessage
from pyromq.model.queue import MessageQueue

QUEUE = MessageQueue("orders", "broker-a", 0)


def message(offset: int) -> ReceivedMessage:
    return ReceivedMessage(struct.pack(">i", 4), 0, 1000, QUEUE, offset)


def fetched(queue: ProcessQueue, *offsets: int, next_offset: int | None = None) -> Run:
    run = queue.add([message(offset) for offset in offsets], next_offset or offsets[-1] + 1, 1000 * len(offsets))
    assert run is not None
    return run


def new_queue(offset: int = 0, messages: int = 100, size: int = 1 << 20) -> ProcessQueue:
    return ProcessQueue(QUEUE, offset, Allowance(messages, size))


def test_progress_is_the_lowest_message_that_is_not_handled() -> None:
    queue = new_queue(10)
    run = fetched(queue, 10, 11, 12, next_offset=15)
    assert queue.committable == 10
    run.finish(1)
    assert queue.committable == 10
    run.finish(0)
    assert queue.committable == 12
    run.finish(2)
    assert queue.committable == 15


def test_a_later_fetch_that_is_handled_first_does_not_count_before_the_earlier_one() -> None:
    queue = new_queue()
    first, second = fetched(queue, 0, 1), fetched(queue, 2, 3)
    for index in (0, 1):
        second.finish(index)
    assert queue.committable == 0
    first.finish(1)
    first.finish(0)
    assert queue.committable == 4


def test_a_fetch_that_finds_nothing_for_us_moves_on() -> None:
    queue = new_queue()
    assert queue.add([], 700, 0) is None
    assert (queue.next_offset, queue.committable) == (700, 700)
    run = fetched(queue, 705)
    assert queue.committable == 705
    assert queue.add([], 900, 0) is None
    assert queue.committable == 705
    run.finish(0)
    assert queue.committable == 900


def test_workers_share_what_is_to_do_and_a_failed_message_is_handed_out_again() -> None:
    queue = new_queue()
    run = fetched(queue, 0, 1, 2)
    (first, _), (second, _) = next(run.todo), next(run.todo)
    assert (first, second) == (0, 1)
    run.again(first)
    assert [index for index, _ in run.todo] == [0, 2]


def test_no_more_is_fetched_when_the_count_or_the_bytes_are_reached() -> None:
    by_count, by_bytes = new_queue(messages=2), new_queue(size=1500)
    for queue in (by_count, by_bytes):
        first = fetched(queue, 0)
        assert queue.has_room
        second = fetched(queue, 1)
        assert not queue.has_room
        second.finish(0)
        first.finish(0)
        assert queue.has_room


def test_queues_share_the_allowance_and_each_may_fetch_once() -> None:
    allowance = Allowance(messages=4, bytes=1 << 20, queues=8)
    queue = ProcessQueue(QUEUE, 0, allowance)
    assert queue.has_room
    fetched(queue, 0)
    assert not queue.has_room


def test_one_message_that_hangs_stops_fetching_after_a_while() -> None:
    queue = new_queue(messages=MAX_SPAN)
    fetched(queue, 0)
    later = fetched(queue, 1, next_offset=MAX_SPAN)
    later.finish(0)
    assert queue.buffered_messages == 1
    assert not queue.has_room


def test_what_ends_after_the_queue_was_given_away_does_not_count() -> None:
    queue = new_queue()
    run = fetched(queue, 0, 1, 2)
    run.finish(0)
    index, _ = next(run.todo)
    queue.drop()
    assert list(run.todo) == []
    run.finish(2)
    run.finish(1)
    assert index == 0
    assert (queue.is_dropped, queue.committable) == (True, 1)


def test_what_is_in_hand_still_counts_when_no_more_is_handed_out() -> None:
    queue = new_queue()
    run = fetched(queue, 0, 1, 2, 3)
    taken = [next(run.todo)[0] for _ in range(2)]
    queue.withdraw()
    assert (list(run.todo), queue.in_hand) == ([], 2)
    for index in taken:
        run.finish(index)
    assert (queue.in_hand, queue.committable) == (0, 2)


def test_whoever_waits_for_room_is_told() -> None:
    told: list[int] = []
    queue = ProcessQueue(QUEUE, 0, Allowance(10, 1 << 20), lambda: told.append(queue.buffered_messages))
    run = fetched(queue, 0, 1)
    run.finish(1)
    assert told == []
    run.finish(0)
    assert (told, queue.handled) == ([0], 2)


def test_seeking_forgets_what_was_fetched() -> None:
    queue = new_queue(100)
    run = fetched(queue, 100, 101)
    queue.seek(50)
    assert (queue.next_offset, queue.committable, list(run.todo)) == (50, 50, [])
    run.finish(0)
    run.finish(1)
    assert queue.committable == 50


class AnyOrder(RuleBasedStateMachine):
    """Fetches and completions in any order, against a plain set of offsets."""

    @initialize(start=st.integers(0, 1000))
    def begin(self, start: int) -> None:
        self.queue = new_queue(start)
        self.open: dict[int, tuple[Run, int]] = {}
        self.last_committable = start

    @rule(gaps=st.lists(st.integers(0, 3), max_size=8), after=st.integers(0, 3))
    def fetch(self, gaps: list[int], after: int) -> None:
        offsets, at = [], self.queue.next_offset
        for gap in gaps:
            offsets.append(at + gap)
            at += gap + 1
        run = self.queue.add([message(offset) for offset in offsets], at + after, 0)
        assert (run is None) == (not offsets)
        for index, offset in enumerate(offsets):
            assert run is not None
            self.open[offset] = (run, index)

    @precondition(lambda self: self.open)
    @rule(choice=st.integers(0, 1000))
    def finish(self, choice: int) -> None:
        offset = sorted(self.open)[choice % len(self.open)]
        run, index = self.open.pop(offset)
        run.finish(index)

    @invariant()
    def tells_the_lowest_that_is_open(self) -> None:
        if hasattr(self, "queue"):
            assert self.queue.committable == min(self.open, default=self.queue.next_offset)
            assert self.queue.buffered_messages == len(self.open)
            assert self.queue.committable >= self.last_committable
            self.last_committable = self.queue.committable


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=50, stateful_step_count=30)


@given(counts=st.lists(st.integers(1, 50), min_size=1, max_size=10))
def test_in_order_all_is_told(counts: list[int]) -> None:
    queue = new_queue(0, messages=10_000)
    for count in counts:
        run = fetched(queue, *range(queue.next_offset, queue.next_offset + count))
        for index, taken in run.todo:
            assert queue.committable == taken.queue_offset
            run.finish(index)
    assert queue.committable == sum(counts)
