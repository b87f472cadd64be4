"""Decisions by the sequence numbers of messages, and their parsing. No store, no clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.support.numbered_scene import WRITER, as_text
from pyromq.broker.idempotence import sequences as sequences_module
from pyromq.broker.idempotence.sequences import BatchEnd, Newest, Numbered, Sequences, Stream, numbered, numbered_record
from pyromq.errors import IllegalMessage, NotNow, OutOfSequence

STREAM = Stream(b"orders", 0, b"query-7/3")
HOUR_MS = 3_600_000


def messages(*found: tuple[int, int], stream: Stream = STREAM) -> list[Numbered]:
    return [Numbered(stream, batch, index) for batch, index in found]


def placed(*found: tuple[int, int], stream: Stream = STREAM, position: int = 0) -> list[tuple[Numbered, int]]:
    return [(one, position + place) for place, one in enumerate(messages(*found, stream=stream))]


def knowing(batch: int, index: int) -> Sequences:
    sequences = Sequences(HOUR_MS)
    sequences.restore([(STREAM, Newest(batch, index, 0, 100, (BatchEnd(4, 50, 90),)))])
    return sequences


# --- decisions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "index"), [(4, 0), (4, 50), (5, 0), (5, 6), (5, 7)], ids=lambda number: str(number))
def test_what_is_not_above_the_end_of_its_batch_is_a_repeat(batch: int, index: int) -> None:
    decision = knowing(5, 7).decide(messages((batch, index)), 0)
    assert decision.fresh == []
    assert decision.repeated == {(STREAM, BatchEnd(4, 50, 90) if batch == 4 else BatchEnd(5, 7, 100))}


@pytest.mark.parametrize(("batch", "index"), [(3, 0), (0, 0), (4, 51), (3, 7)])
def test_a_number_below_the_newest_that_is_not_known_to_be_stored_is_refused(batch: int, index: int) -> None:
    with pytest.raises(OutOfSequence, match=f"{batch}:{index} .* is not known to be stored.* expects 5:8") as refused:
        knowing(5, 7).decide(messages((batch, index)), 0)
    assert refused.value.expected == "5:8"


def test_the_ends_of_the_last_batches_are_kept() -> None:
    sequences = Sequences(HOUR_MS)
    for batch in range(10):
        sequences.stored(placed((batch, 0), (batch, 1), position=batch * 10), batch)
    newest = sequences.newest(STREAM)
    assert newest is not None
    assert newest.end == BatchEnd(9, 1, 91)
    assert newest.earlier == tuple(BatchEnd(batch, 1, batch * 10 + 1) for batch in range(5, 9))
    assert sequences.decide(messages((5, 1), (9, 0), (9, 2)), 0).fresh == [2]
    with pytest.raises(OutOfSequence):
        sequences.decide(messages((4, 0)), 0)


@pytest.mark.parametrize(("batch", "index"), [(5, 8), (6, 0), (100, 0)])
def test_the_next_of_a_batch_and_the_first_of_a_later_one_are_stored(batch: int, index: int) -> None:
    assert knowing(5, 7).decide(messages((batch, index)), 0).fresh == [0]


@pytest.mark.parametrize(("batch", "index", "expected"), [(5, 9, "5:8"), (6, 1, "6:0"), (9, 300, "9:0")])
def test_a_gap_is_refused_and_the_number_that_is_expected_is_told(batch: int, index: int, expected: str) -> None:
    with pytest.raises(OutOfSequence, match="a message before this one is missing") as refused:
        knowing(5, 7).decide(messages((batch, index)), 0)
    assert refused.value.expected == expected
    assert expected in str(refused.value)


def test_a_new_writer_begins_with_the_first_message_of_any_batch() -> None:
    sequences = Sequences(HOUR_MS)
    assert sequences.decide(messages((12, 0), (12, 1)), 0).fresh == [0, 1]
    with pytest.raises(OutOfSequence):
        sequences.decide(messages((12, 1)), 0)


def test_of_several_messages_those_that_are_new_are_stored() -> None:
    assert knowing(5, 7).decide(messages((5, 6), (5, 7), (5, 8), (5, 8), (5, 9), (6, 0)), 0).fresh == [2, 4, 5]


def test_writers_and_queues_do_not_know_of_each_other() -> None:
    sequences = knowing(5, 7)
    other = Stream(b"orders", 1, b"query-7/3")
    mixed = [*messages((5, 8)), *messages((0, 0), stream=other), *messages((5, 7))]
    assert sequences.decide(mixed, 0).fresh == [0, 1]


def test_deciding_changes_nothing_until_the_messages_are_stored() -> None:
    sequences = knowing(5, 7)
    for _ in range(2):
        assert sequences.decide(messages((5, 8), (5, 9)), 0).fresh == [0, 1]
    sequences.stored(placed((5, 8)), 10)
    assert sequences.newest(STREAM) == Newest(5, 8, 10, 0, (BatchEnd(4, 50, 90),))
    assert sequences.decide(messages((5, 8), (5, 9)), 0).fresh == [1]


def test_a_copy_of_an_older_message_does_not_set_a_writer_back() -> None:
    """A delayed message is in the log twice, and consumers send messages back."""
    sequences = knowing(5, 7)
    sequences.stored(placed((5, 3)), 10)
    assert sequences.newest(STREAM) == Newest(5, 7, 0, 100, (BatchEnd(4, 50, 90),))


# --- forgetting ------------------------------------------------------------------------------------------------------


def test_writers_that_rested_too_long_are_forgotten() -> None:
    sequences = Sequences(HOUR_MS)
    streams = [Stream(b"orders", queue, b"w") for queue in range(3)]
    for at_ms, stream in enumerate(streams):
        sequences.stored(placed((0, 0), stream=stream), at_ms)
    sequences.stored(placed((0, 1), stream=streams[0]), 500)
    sequences.forget_old(HOUR_MS + 2)
    assert [stream for stream, _ in sequences.entries()] == [streams[2], streams[0]]


def test_where_too_many_are_remembered_a_new_one_is_refused_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sequences_module, "MAX_STREAMS", 1)
    sequences = knowing(5, 7)
    newcomer = messages((0, 0), stream=Stream(b"orders", 1, b"new"))
    with pytest.raises(NotNow, match=r"idempotence\.retention_hours"):
        sequences.decide(newcomer, HOUR_MS)
    assert sequences.decide(messages((5, 8)), HOUR_MS).fresh == [0]
    assert sequences.decide(newcomer, HOUR_MS + 1).fresh == [0], "the old one has rested for too long"


def test_a_topic_that_is_removed_takes_its_writers_along() -> None:
    sequences = knowing(5, 7)
    assert not sequences.forget_topic(b"payments")
    assert sequences.forget_topic(b"orders")
    assert len(sequences) == 0


# --- how numbers are written -----------------------------------------------------------------------------------------


def run(**properties: str) -> bytes:
    return as_text(properties).encode()


def test_a_number_is_found_wherever_it_stands_among_the_properties() -> None:
    expected = Numbered(Stream(b"orders", 3, b"w/0"), 12, 345)
    usual = run(TAGS="red", PYROMQ_WRITER="w/0", PYROMQ_SEQUENCE="12:345", KEYS="k")
    apart = run(PYROMQ_SEQUENCE="12:345", TAGS="red", PYROMQ_WRITER="w/0")
    for form in (usual, apart, usual.removesuffix(b"\x02"), apart.removesuffix(b"\x02")):
        assert numbered(b"orders", 3, form) == expected
    assert numbered(b"orders", 3, usual + run(PYROMQ_SEQUENCE="12:346")) == expected._replace(number=346)


@pytest.mark.parametrize(
    "properties",
    [b"", run(TAGS="PYROMQ_WRITER"), run(MY_PYROMQ_WRITER="w"), run(PYROMQ_BATCH="1"), b"PYROMQ_WRITER\x01\x02"],
)
def test_most_messages_have_none(properties: bytes) -> None:
    assert numbered(b"orders", 0, properties) is None


@pytest.mark.parametrize(
    "sequence", ["1", ":", "1:", ":1", "-1:0", "1:-1", "1:2:3", "1.0:2", "a:b", "1:" + "9" * 19, " 1:0", "\u0661:0"]
)
def test_what_is_no_number_is_refused(sequence: str) -> None:
    with pytest.raises(IllegalMessage, match="<batch>:<index>"):
        numbered(b"orders", 0, run(PYROMQ_WRITER="w", PYROMQ_SEQUENCE=sequence))


def test_half_of_a_number_is_refused() -> None:
    for properties in (run(PYROMQ_WRITER="w"), run(PYROMQ_SEQUENCE="1:0")):
        with pytest.raises(IllegalMessage, match="both"):
            numbered(b"orders", 0, properties)


@pytest.mark.parametrize("writer", [b"w" * 256, b"\xff\xfe", "ä".encode() * 128])
def test_a_writer_has_a_name_that_a_file_can_hold(writer: bytes) -> None:
    with pytest.raises(IllegalMessage, match="name of a writer"):
        numbered(b"orders", 0, b"PYROMQ_WRITER\x01%b\x02PYROMQ_SEQUENCE\x011:0\x02" % writer)


@given(st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=60))
def test_a_writer_may_be_called_almost_anything(writer: str) -> None:
    found = numbered(b"orders", 0, run(PYROMQ_WRITER=writer, PYROMQ_SEQUENCE="1:0"))
    assert found == Numbered(Stream(b"orders", 0, writer.encode()), 1, 0)


def test_a_record_counts_where_its_message_belongs() -> None:
    own = run(PYROMQ_WRITER=WRITER, PYROMQ_SEQUENCE="1:0")
    delayed = own + run(REAL_TOPIC="orders", REAL_QID="2")
    assert numbered_record(b"orders", 2, own) == numbered_record(b"SCHEDULE_TOPIC_XXXX", 5, delayed)
    for topic in (b"%RETRY%shop", b"%DLQ%shop", b"RMQ_SYS_TRANS_HALF_TOPIC", b"SCHEDULE_TOPIC_XXXX"):
        back = own + run(REAL_TOPIC="%RETRY%shop", REAL_QID="0")
        assert numbered_record(topic, 0, back) is None
    assert numbered_record(b"orders", 0, run(PYROMQ_WRITER=WRITER, PYROMQ_SEQUENCE="x")) is None


def test_a_record_of_a_writer_that_no_broker_issued_does_not_count() -> None:
    """Messages of a time before identities were issued stay readable, and enter no table."""
    assert numbered_record(b"orders", 0, run(PYROMQ_WRITER="query-7/3", PYROMQ_SEQUENCE="999999:0")) is None


# --- in any order ----------------------------------------------------------------------------------------------------


class AnyOrder(RuleBasedStateMachine):
    """A writer that sends any stretch of its batches again and again, over a log that may take only a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.sequences = Sequences(HOUR_MS)
        self.log: list[Numbered] = []

    @rule(
        batch=st.integers(0, 3),
        first=st.integers(0, 6),
        count=st.integers(1, 5),
        queue=st.integers(0, 1),
        room=st.integers(0, 5) | st.none(),
    )
    def send(self, batch: int, first: int, count: int, queue: int, room: int | None) -> None:
        stream = STREAM._replace(queue_id=queue)
        request = messages(*((batch, first + place) for place in range(count)), stream=stream)
        before = self.sequences.entries()
        try:
            fresh = [request[place] for place in self.sequences.decide(request, 0).fresh]
        except OutOfSequence:
            assert self.sequences.entries() == before
            return
        stored = fresh[:room]  # the disk was full then, and the writer got an error
        first_place = len(self.log)
        self.log += stored
        self.sequences.stored([(one, first_place + place) for place, one in enumerate(stored)], 0)
        if len(stored) == len(fresh):
            assert all(one in self.log for one in request), "no repeat is acknowledged that is not stored"

    @rule()
    def restart(self) -> None:
        self.sequences = Sequences(HOUR_MS)
        for place, one in enumerate(self.log):
            self.sequences.stored(((one, place),), 0)

    @invariant()
    def each_stream_is_in_order_and_without_repeats_or_gaps(self) -> None:
        for queue in range(2):
            found = [(one.batch, one.number) for one in self.log if one.stream.queue_id == queue]
            assert found == sorted(set(found))
            for batch in range(4):
                indexes = [index for of_batch, index in found if of_batch == batch]
                assert indexes == list(range(len(indexes)))


TestAnyOrder = AnyOrder.TestCase
