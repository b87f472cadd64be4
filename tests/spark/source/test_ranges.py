"""The range of each task."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pyromq.model.queue import MessageQueue
from pyromq.spark.source.offsets import Span
from pyromq.spark.source.ranges import SMALL, split


def queue(number: int) -> MessageQueue:
    return MessageQueue("t", "a", number)


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    sizes = draw(st.lists(st.integers(0, 5000), max_size=8))
    starts = draw(st.lists(st.integers(0, 10**6), min_size=len(sizes), max_size=len(sizes)))
    return [
        Span(queue(number), start, start + size) for number, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]


MAYBE = st.none() | st.integers(1, 40)


@given(spans(), MAYBE, st.none() | st.integers(1, 3000))
def test_every_message_is_read_once(given_spans: list[Span], min_pieces: int | None, most: int | None) -> None:
    pieces = split(given_spans, min_pieces=min_pieces, max_records=most)
    edges: Counter[tuple[MessageQueue, int]] = Counter()
    for piece in pieces:
        assert piece
        for span in piece:
            assert span.count > 0
            edges[span.queue, span.start] += 1
            edges[span.queue, span.end] -= 1
    for span in given_spans:
        if span.count:
            edges[span.queue, span.start] -= 1
            edges[span.queue, span.end] += 1
    assert not any(edges.values())


@given(spans(), st.integers(1, 40))
def test_there_are_enough_tasks(given_spans: list[Span], wanted: int) -> None:
    total = sum(span.count for span in given_spans)
    assert len(split(given_spans, min_pieces=wanted)) >= min(wanted, total)


@given(spans(), MAYBE, st.integers(1, 3000))
def test_no_task_is_too_large(given_spans: list[Span], min_pieces: int | None, most: int) -> None:
    for piece in split(given_spans, min_pieces=min_pieces, max_records=most):
        assert sum(span.count for span in piece) <= most


def test_one_task_for_each_queue() -> None:
    large = [Span(queue(number), 0, SMALL) for number in range(3)]
    assert sorted(split(large)) == [(span,) for span in large]


def test_a_few_messages_here_and_there_share_a_task() -> None:
    few = [Span(queue(number), 0, 3) for number in range(100)]
    assert split(few) == [tuple(few)]


def test_nothing_makes_no_task() -> None:
    assert split([]) == split([Span(queue(0), 5, 5)], min_pieces=9) == []
