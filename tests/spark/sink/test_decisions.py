"""One decision for each batch, for every writer and every reader, from any first offset of a reader."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.client.transaction_producer import Decision as End
from pyromq.errors import NotNow, WrongShape
from pyromq.spark.sink.decisions import (
    QUEUES,
    Attempt,
    BatchDecision,
    Layout,
    Stamp,
    View,
    decode,
    decode_layout,
    encode,
    encode_layout,
    end_of,
    parse_stamp,
    queue_of,
    tag_of,
)
from pyromq.spark.sink.identity import BATCH_PROPERTY, QUERY_PROPERTY, identity_of

names = st.text("abcdef0123456789-", min_size=1, max_size=12)
attempts = st.builds(Attempt, names, st.integers(0, 1000), st.frozensets(st.integers(0, 1000), max_size=5))
decisions = st.builds(
    BatchDecision, names, st.integers(0, 10**12), st.dictionaries(st.integers(0, 999), attempts), st.integers(0, 10**12)
)


@settings(deadline=None)
@given(decisions, st.integers(0, 10**9))
def test_a_decision_is_read_as_it_was_written(decision: BatchDecision, offset: int) -> None:
    found = decode(encode(decision), offset)
    assert found == decision
    assert found is not None
    assert found.offset == offset


@settings(deadline=None)
@given(st.builds(Stamp, names, st.integers(0, 10**9), st.integers(0, 10**4), names, st.integers(0, 10**9)))
def test_a_stamp_is_read_as_it_was_written(stamp: Stamp) -> None:
    assert parse_stamp(str(stamp)) == stamp


@pytest.mark.parametrize("text", ["", "a:b", "q:1:2:a:x", "q:1:2:a:3:4"])
def test_what_is_no_stamp_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_stamp(text)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"kind":"decision","v":1}', b'{"kind":"decision","v":2}', b"\xff"]
)
def test_what_is_no_decision_is_not_guessed_at(body: bytes) -> None:
    with pytest.raises(WrongShape, match="offset 7"):
        decode(body, 7)


def test_a_layout_stands_beside_decisions() -> None:
    layout = Layout("q", "orders", (("broker-a", 0), ("broker-a", 1)))
    assert decode_layout(encode_layout(layout), 3) == layout
    assert decode(encode_layout(layout), 3) is None
    assert decode_layout(encode(BatchDecision("q", 1, {})), 3) is None


def test_where_a_query_is_never_changes() -> None:
    """These numbers are in brokers: another one for a name would overlook its decisions."""
    assert (QUEUES, queue_of("3f1c"), tag_of("3f1c")) == (8, 1, "qa109a561")


# --- what becomes of a half ------------------------------------------------------------------------------------------

DECIDED = BatchDecision("q", 5, {0: Attempt("a", 10, frozenset({3})), 1: Attempt("b", 10)})


@pytest.mark.parametrize(
    ("stamp", "end"),
    [
        (Stamp("q", 5, 0, "a", 2), End.COMMIT),
        (Stamp("q", 5, 1, "b", 3), End.COMMIT),
        (Stamp("q", 5, 0, "a", 3), End.ROLLBACK),  # it was sent again under another number
        (Stamp("q", 5, 0, "b", 2), End.ROLLBACK),
        (Stamp("q", 5, 2, "a", 2), End.ROLLBACK),
    ],
)
def test_a_half_is_committed_when_the_decision_names_its_attempt(stamp: Stamp, end: End) -> None:
    assert end_of(stamp, DECIDED, is_past=False) is end


def test_without_a_decision_a_half_waits_unless_its_batch_is_past() -> None:
    stamp = Stamp("q", 5, 0, "a", 2)
    assert end_of(stamp, None, is_past=False) is End.UNKNOWN
    assert end_of(stamp, None, is_past=True) is End.ROLLBACK


# --- reading ---------------------------------------------------------------------------------------------------------


class Queue:
    """The queue of one query, and drivers that follow the rules, at any time between each other."""

    def __init__(self) -> None:
        self.written: list[BatchDecision] = []

    def look(self, batch: int) -> int | None:
        """Return the end of a driver's reading; None if the batch or a later one is decided already."""
        return None if any(one.batch >= batch for one in self.written) else len(self.written)

    def write(self, batch: int, after: int, attempt: str) -> None:
        offset = len(self.written)
        self.written.append(BatchDecision("q", batch, {0: Attempt(attempt, 1)}, after, offset))

    def first(self, batch: int) -> BatchDecision | None:
        return next((one for one in self.written if one.batch == batch), None)


@settings(deadline=None)
@given(data=st.data(), steps=st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=40))
def test_every_reader_finds_the_same_decision(data: st.DataObject, steps: list[tuple[bool, int]]) -> None:
    queue, looked = Queue(), list[tuple[int, int]]()
    for number, (is_look, batch) in enumerate(steps):
        if is_look:
            after = queue.look(batch)
            if after is not None:
                looked.append((batch, after))
        elif looked:
            queue.write(*looked.pop(batch % len(looked)), f"a{number}")
    end = len(queue.written)
    batch = data.draw(st.integers(0, 7))
    view = View(end)
    while view.start > 0 and not view.is_enough(batch):
        start = max(view.start - data.draw(st.integers(1, 4)), 0)
        for decision in queue.written[start : view.start]:
            view.add(decision)
        view.start = start
    found, first = view.of(batch), queue.first(batch)
    assert (found and found.offset) == (first and first.offset)
    highest = max((one.batch for one in queue.written), default=None)
    assert (view.last and view.last.batch) == highest
    assert view.is_past(batch) == (highest is not None and highest > batch)


def test_a_reader_keeps_the_newest_and_reads_the_rest_again() -> None:
    queue = Queue()
    for batch in range(100):
        queue.write(batch, batch, "a")
    view = View(0)
    for decision in queue.written:
        view.add(decision)
    view.end = 100
    view.forget(10)
    assert view.of(89) is None
    assert not view.is_enough(89)
    assert view.is_enough(90)
    assert view.of(90) is not None


def test_what_retention_deleted_is_not_taken_for_undecided() -> None:
    """Only a later decision is left: the decision of the batch before it is unknown."""
    view = View(50)
    view.add(BatchDecision("q", 9, {}, 50, 50))
    view.end = 51
    assert not view.is_past(8)
    assert view.is_past(9) is False


# --- who writes ------------------------------------------------------------------------------------------------------


class Task:
    def __init__(self, **properties: str) -> None:
        self.properties = properties

    def partitionId(self) -> int:
        return 3

    def getLocalProperty(self, key: str) -> str | None:
        return self.properties.get(key)


def test_a_task_of_a_stream_is_named_by_spark() -> None:
    task = Task(**{QUERY_PROPERTY: "8a-b", BATCH_PROPERTY: "17"})
    identity = identity_of(task, None, "x1")
    assert identity == ("8a-b", 17, 3, "x1")
    assert identity.writer == "8a-b/3"
    assert str(identity.stamp) == "8a-b:17:3:x1:0"


def test_a_task_of_a_batch_is_named_by_its_job() -> None:
    task = Task(**{QUERY_PROPERTY: "8a-b", BATCH_PROPERTY: "17"})
    assert identity_of(task, ("nightly", 4), "x1") == ("nightly", 4, 3, "x1")


@pytest.mark.parametrize("task", [None, Task(), Task(**{QUERY_PROPERTY: "8a-b"})])
def test_a_task_that_has_no_name_does_not_write(task: Task | None) -> None:
    with pytest.raises(NotNow):
        identity_of(task, None, "x1")
