"""Offsets as Spark keeps them: one text for one place, and rules that give the same when they are asked again."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import ConfigError
from pyromq.model.queue import MessageQueue
from pyromq.spark.source.offsets import Span, beginning, is_beginning, positions, spans_between, to_form

NAMES = st.text("abcXYZ0189_-", min_size=1, max_size=8)
QUEUES = st.builds(MessageQueue, NAMES, NAMES, st.integers(0, 100))
PLACES = st.dictionaries(QUEUES, st.integers(0, 2**63 - 1), max_size=8)


@given(PLACES)
def test_what_is_written_is_read_back(places: dict[MessageQueue, int]) -> None:
    text = json.dumps(to_form(places))
    assert positions(json.loads(text)) == places


@given(PLACES, st.randoms())
def test_the_same_place_has_the_same_text(places: dict[MessageQueue, int], chance) -> None:
    items = list(places.items())
    chance.shuffle(items)
    assert json.dumps(to_form(dict(items))) == json.dumps(to_form(places))


@given(PLACES)
def test_a_text_that_was_read_is_written_the_same(places: dict[MessageQueue, int]) -> None:
    text = json.dumps(to_form(places))
    assert json.dumps(to_form(positions(json.loads(text)))) == text


def test_a_beginning_is_a_constant() -> None:
    assert json.dumps(beginning("latest")) == '{"v": 1, "init": "latest"}'
    assert is_beginning(beginning("group"))
    assert not is_beginning(to_form({}))
    assert positions(beginning("latest")) == {}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=10), inside, max_size=3),
)


@given(JSON | st.fixed_dictionaries({"v": st.just(1), "q": JSON}))
def test_a_strange_checkpoint_is_read_or_refused(form: object) -> None:
    try:
        found = positions(form)  # type: ignore[arg-type]
    except ConfigError:
        return
    assert all(offset >= 0 for offset in found.values())


@pytest.mark.parametrize(
    "form", [{}, {"v": 2, "q": {}}, {"q": {}}, {"v": 1}, {"v": 1, "q": {"t@a@0": -1}}, {"v": 1, "q": {"t": 5}}]
)
def test_not_ours(form: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="another query"):
        positions(form)


A, B, C = (MessageQueue("t", "a", number) for number in range(3))


def test_a_batch_reads_what_is_between_two_offsets() -> None:
    assert spans_between({A: 5, B: 7}, {A: 9, B: 7}) == [Span(A, 5, 9)]


def test_a_queue_that_is_new_in_a_batch_is_read_by_the_next() -> None:
    assert spans_between({A: 5}, {A: 6, B: 100}) == [Span(A, 5, 6)]


def test_a_queue_that_went_back_is_read_by_the_next() -> None:
    assert spans_between({A: 500}, {A: 3}) == []


def test_a_queue_that_only_the_start_knows_has_nothing() -> None:
    assert spans_between({A: 5, B: 1}, {A: 6}) == [Span(A, 5, 6)]


@given(PLACES, PLACES)
def test_batches_that_follow_each_other_neither_miss_nor_repeat(first: dict, more: dict) -> None:
    """Along any chain of offsets in which queues only go forward, every offset behind the first is read once."""
    chain = [first, first | {queue: max(offset, first.get(queue, 0)) for queue, offset in more.items()}]
    chain.append({queue: min(offset + 10, 2**63 - 1) for queue, offset in chain[-1].items()})
    read: dict[MessageQueue, list[Span]] = {}
    for start, end in pairwise(chain):
        for span in spans_between(start, end):
            read.setdefault(span.queue, []).append(span)
    for queue, spans in read.items():
        assert all(one.end == other.start for one, other in pairwise(spans))
        assert spans[-1].end == chain[-1][queue]
