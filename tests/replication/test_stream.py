"""Both ends of a connection, and whatever may run between them, without a connection."""

from __future__ import annotations

from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.config.members import ConfiguredMember
from pyromq.errors import BadFrame, DiskFull, OffsetNotFound
from pyromq.records import layout
from pyromq.replication.admission import Admission, Greeting
from pyromq.replication.arrival import MOST_RECORD, StreamDamaged
from pyromq.replication.followers import Followers, SyncRule
from pyromq.replication.frames import encode_grant, encode_report, push_head
from pyromq.replication.stream import (
    Ahead,
    Gap,
    LeftBehind,
    PrimaryStream,
    ReplicaStream,
    Silence,
    Span,
    StreamTimes,
)
from replication.memory_log import SEGMENT, MemoryLog, a_log

TIMES = StreamTimes(heartbeat=5_000, housekeeping=20_000, hello=10_000)
RECORDS = a_log([b"%03d" % number * 20 for number in range(30)])


class Pair:
    """A connection that carries everything at once."""

    def __init__(
        self, primary: MemoryLog, replica: MemoryLog, *, batch: int = 1 << 20, whole_log: bool = True, window: int = 0
    ) -> None:
        self.primary_log = primary
        self.replica_log = replica
        member = ConfiguredMember(1, "10.0.0.2:10911")
        self.giving = PrimaryStream(
            "r", primary, batch_bytes=batch, whole_log=whole_log, times=TIMES, now_ms=0,
            greeting=Greeting(Admission(primary, members=[member]), member.host),
        )  # fmt: skip
        self.taking = ReplicaStream(replica, times=TIMES, now_ms=0, window_bytes=window or None)
        self.followers = Followers()

    def hear(self, said: bytes, now_ms: int = 0) -> None:
        self.followers = self.giving.received(said, self.followers, now_ms)

    def hello(self) -> None:
        self.hear(self.taking.hello(0))

    def push(self, now_ms: int = 0) -> bytes:
        """The next frame, or nothing."""
        span = self.giving.next_span(now_ms)
        if span is None:
            return b""
        self.followers = self.giving.sent(span, self.followers, now_ms)
        return push_head(*span) + bytes(self.primary_log.log_bytes(span.position, span.length)[: span.length])

    def run(self, now_ms: int = 0) -> None:
        while data := self.push(now_ms):
            self.taking.received(data, now_ms)
            self.hear(self.taking.report(now_ms), now_ms)

    @property
    def reported(self) -> int:
        return self.followers.by_name["r"].reported


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=20),
    st.integers(50, 3000),
    st.lists(st.integers(1, 500), min_size=1, max_size=5),
)
def test_the_copy_is_the_log_wherever_frames_and_pieces_end(sizes: list[int], batch: int, pieces: list[int]) -> None:
    log = a_log([bytes([size % 250]) * size for size in sizes])
    pair = Pair(MemoryLog(log), MemoryLog(), batch=batch)
    pair.hello()
    piece_sizes = cycle(pieces)
    while frame := pair.push():
        while frame:
            piece = next(piece_sizes)
            pair.taking.received(frame[:piece], 0)
            frame = frame[piece:]
        assert log.startswith(bytes(pair.replica_log.data))
        pair.hear(pair.taking.report(0))
    assert bytes(pair.replica_log.data) == log
    assert pair.reported == len(log)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 29), st.integers(1, 500))
def test_a_copy_goes_on_at_any_record(have: int, batch: int) -> None:
    log = a_log([b"x" * 50] * 30)
    known = len(a_log([b"x" * 50] * have))
    pair = Pair(MemoryLog(log), MemoryLog(log[:known]), batch=batch)
    pair.hello()
    first = pair.push()
    assert first.startswith(known.to_bytes(8, "big"))
    pair.taking.received(first, 0)
    pair.run()
    assert bytes(pair.replica_log.data) == log


def test_a_replica_of_a_log_that_grows_all_the_time_is_level_when_it_has_what_was_there() -> None:
    log = a_log([b"x" * 50] * 30)
    pair = Pair(MemoryLog(log[: len(a_log([b"x" * 50] * 20))]), MemoryLog())
    pair.hello()
    while frame := pair.push(now_ms=1):
        pair.taking.received(frame, 1)
    pair.primary_log.data[:] = log  # before its word is heard
    pair.hear(pair.taking.report(7), 7)
    assert pair.followers.by_name["r"].level_ms == 1, "it has what there was when it was sent"
    pair.hear(encode_report(pair.replica_log.copy_end), 9)
    assert pair.followers.by_name["r"].level_ms == 1, "there is more now, and it has none of that"
    while frame := pair.push(now_ms=20):
        pair.taking.received(frame, 20)
    pair.hear(pair.taking.report(30), 30)
    assert pair.followers.by_name["r"].level_ms == 30, "it has everything now"


def test_a_replica_that_is_always_a_little_behind_is_in_sync_and_one_that_hangs_is_not() -> None:
    size = len(a_log([b"x" * 50]))
    log = a_log([b"x" * 50] * 100)
    rule = SyncRule(max_gap=1 << 20, max_silence_ms=100)
    pair = Pair(MemoryLog(log[: 3 * size]), MemoryLog(), batch=size)  # a frame has one record
    pair.hello()
    for turn in range(1, 60):
        now_ms = 10 * turn
        pair.primary_log.data[:] = log[: (3 + turn) * size]
        pair.taking.received(pair.push(now_ms=now_ms), now_ms)
        pair.hear(pair.taking.report(now_ms), now_ms)
        assert pair.followers.by_name["r"].lag(pair.primary_log.log_end) > 0
        assert pair.followers.in_sync(rule, pair.primary_log.log_end, now_ms)
    for turn in range(60, 80):
        pair.primary_log.data[:] = log[: (3 + turn) * size]
        pair.push(now_ms=10 * turn)
        pair.hear(encode_report(pair.reported), 10 * turn)
    assert not pair.followers.in_sync(rule, pair.primary_log.log_end, 790)


def test_only_one_that_asks_for_what_it_is_sent_is_waited_for() -> None:
    pushed, asking = Pair(MemoryLog(RECORDS), MemoryLog()), Pair(MemoryLog(RECORDS), MemoryLog(), window=500)
    assert pushed.giving.waits_for_word, "nothing is known of it"
    pushed.hello()
    asking.hello()
    assert (pushed.giving.waits_for_word, asking.giving.waits_for_word) == (False, True)
    assert not pushed.giving.is_level
    pushed.run()
    assert pushed.giving.is_level


def test_a_first_word_is_a_report_too_and_says_nothing_that_is_not_safe() -> None:
    replica = MemoryLog(RECORDS, sync=True)
    replica.synced = 0
    with pytest.raises(AssertionError, match="not safe"):
        ReplicaStream(replica, times=TIMES, now_ms=0).hello(0)


def test_a_copy_that_promises_the_disk_reports_what_is_on_it() -> None:
    pair = Pair(MemoryLog(RECORDS), MemoryLog(sync=True))
    pair.hello()
    pair.run()
    assert bytes(pair.replica_log.data) == RECORDS
    assert pair.reported == 0
    pair.replica_log.synced = 300
    pair.hear(pair.taking.report(0))
    assert pair.reported == 300


def test_a_copy_whose_disk_is_slow_still_gives_signs_of_life() -> None:
    pair = Pair(MemoryLog(RECORDS), MemoryLog(sync=True))
    pair.hello()
    pair.run()
    assert pair.taking.report(4_999) == b""
    assert pair.taking.report(5_000) == encode_report(0)


# --- where a copy begins ---------------------------------------------------------------------------------------------


def test_an_empty_copy_begins_where_the_log_does_and_has_nothing_below() -> None:
    pair = Pair(MemoryLog(a_log([b"x"] * 9, 4 * SEGMENT), 4 * SEGMENT), MemoryLog())
    pair.hello()
    assert pair.followers.replicated(2, pair.primary_log.log_end) == 0
    pair.run()
    assert pair.replica_log.start == 4 * SEGMENT
    assert pair.replica_log.data == pair.primary_log.data
    assert pair.reported == pair.primary_log.log_end


def test_an_empty_copy_may_give_signs_of_life_while_there_is_nothing_to_copy() -> None:
    pair = Pair(MemoryLog(b"", 4 * SEGMENT), MemoryLog())
    pair.hello()
    pair.hear(pair.taking.report(5_000), 5_000)
    pair.taking.received(pair.push(5_000), 5_000)
    assert pair.reported == 0


def test_a_primary_may_begin_with_its_last_file_as_rocketmq_does() -> None:
    pair = Pair(MemoryLog(RECORDS), MemoryLog(), whole_log=False)
    pair.hello()
    pair.run()
    assert pair.replica_log.start == pair.primary_log.last_segment_start > 0
    assert pair.reported == len(RECORDS)


def test_segments_of_another_size_are_named() -> None:
    with pytest.raises(Gap, match="same segment size"):
        ReplicaStream(MemoryLog(), times=TIMES, now_ms=0).received(push_head(1000, 1) + b"x", 0)


def test_a_copy_that_was_away_too_long_is_told_where_the_log_begins() -> None:
    primary = MemoryLog(RECORDS)
    primary.remove_below(SEGMENT)
    pair = Pair(primary, MemoryLog(a_log([b"000" * 20])))
    pair.hello()
    assert pair.followers.replicated(2, primary.log_end) < SEGMENT
    with pytest.raises(LeftBehind, match=f"begins at {SEGMENT}") as caught:
        pair.taking.received(pair.push(), 0)
    assert caught.value.position == SEGMENT
    assert len(pair.replica_log.data) < SEGMENT


def test_bytes_that_retention_removed_while_they_were_due_end_the_connection() -> None:
    pair = Pair(MemoryLog(RECORDS), MemoryLog(), batch=100)
    pair.hello()
    pair.taking.received(pair.push(), 0)
    pair.primary_log.remove_below(SEGMENT)
    with pytest.raises(OffsetNotFound):
        pair.push()


def test_a_longer_copy_is_not_served_and_sees_why() -> None:
    primary, replica = MemoryLog(RECORDS[:SEGMENT]), MemoryLog(RECORDS)
    pair = Pair(primary, replica)
    with pytest.raises(Ahead, match=str(len(RECORDS))):
        pair.hello()
    with pytest.raises(Ahead, match="ours"):
        pair.taking.received(push_head(primary.log_end, 0), 0)


# --- invalid input ---------------------------------------------------------------------------------------------------


def test_a_flipped_bit_stops_the_stream_and_what_was_good_before_it_is_kept() -> None:
    pair = Pair(MemoryLog(RECORDS), MemoryLog())
    pair.hello()
    frame = bytearray(pair.push())
    size = len(a_log([b"000" * 20]))
    frame[12 + 3 * size + 60] ^= 1
    with pytest.raises(StreamDamaged) as caught:
        pair.taking.received(bytes(frame), 0)
    assert bytes(pair.replica_log.data) == RECORDS[: 3 * size]
    text = str(caught.value)
    assert str(3 * size) in text
    assert "memory" in text
    assert RECORDS[3 * size : 3 * size + 8].hex(" ") in text, "what came"
    assert RECORDS[3 * size - 8 : 3 * size].hex(" ") in text, "what we have before it"


@settings(deadline=None, max_examples=60)
@given(st.integers(1, len(RECORDS) - 1), st.integers(0, 7), st.integers(1, 500))
def test_a_flipped_bit_is_never_appended_however_frames_end(place: int, bit: int, batch: int) -> None:
    damaged = bytearray(RECORDS)
    damaged[place] ^= 1 << bit
    pair = Pair(MemoryLog(bytes(damaged)), MemoryLog(), batch=batch)
    pair.hello()
    damage: StreamDamaged | None = None
    try:
        pair.run()
    except StreamDamaged as error:
        damage = error
    got = bytes(pair.replica_log.data)
    if damage is not None:
        assert damage.position == len(got) <= place
        assert RECORDS.startswith(got)
    else:
        assert RECORDS.startswith(got) or got == bytes(damaged), "a bit in a blank, or a record that never gets whole"


def test_a_blank_that_lies_about_its_length_is_damage_at_its_place() -> None:
    good = a_log([b"x" * 100])
    log = good + layout.BLANK.pack(100, layout.MAGIC_BLANK)
    copy = MemoryLog()
    with pytest.raises(StreamDamaged) as caught:
        ReplicaStream(copy, times=TIMES, now_ms=0).received(push_head(0, len(log)) + log, 0)
    assert caught.value.position == len(good)
    assert bytes(copy.data) == good


@pytest.mark.parametrize("magic", [layout.MAGIC_V1, layout.MAGIC_BLANK])
def test_a_record_that_claims_the_world_is_not_waited_for(magic: int) -> None:
    log = MemoryLog()
    log.segment_bytes = 1 << 30
    head = layout.BLANK.pack(MOST_RECORD + 1 if magic == layout.MAGIC_V1 else 1 << 30, magic)
    with pytest.raises(StreamDamaged):
        ReplicaStream(log, times=TIMES, now_ms=0).received(push_head(0, len(head)) + head, 0)


def test_bytes_from_another_place_are_not_appended() -> None:
    pair = Pair(MemoryLog(RECORDS), MemoryLog(), batch=300)
    pair.hello()
    pair.taking.received(pair.push(), 0)
    with pytest.raises(Gap, match="position 700"):
        pair.taking.received(push_head(700, 1) + b"x", 0)


def test_a_full_disk_ends_the_connection_and_the_next_one_goes_on() -> None:
    primary, replica = MemoryLog(RECORDS), MemoryLog()
    pair = Pair(primary, replica, batch=500)
    pair.hello()
    pair.taking.received(pair.push(), 0)
    replica.refusal = DiskFull("there is no room")
    with pytest.raises(DiskFull):
        pair.taking.received(pair.push(), 0)
    pair = Pair(primary, replica)
    pair.hello()
    pair.run()
    assert bytes(replica.data) == RECORDS


# --- strangers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("claim", [1, len(RECORDS), 2**62])
def test_whoever_claims_more_than_it_was_sent_is_not_believed(claim: int) -> None:
    pair = Pair(MemoryLog(RECORDS), MemoryLog())
    pair.hear(encode_report(0))
    with pytest.raises(BadFrame, match="not believed"):
        pair.hear(encode_report(claim))
    assert pair.followers.replicated(2, len(RECORDS)) == 0


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=200), st.integers(0, 3))
def test_any_bytes_of_a_stranger_are_refused_or_harmless(data: bytes, sent: int) -> None:
    pair = Pair(MemoryLog(RECORDS), MemoryLog(), batch=100)
    pair.hear(encode_report(0))
    for _ in range(sent):
        pair.push()
    before = pair.followers.by_name["r"]
    try:
        pair.hear(data)
    except BadFrame:
        return
    after = pair.followers.by_name["r"]
    assert before.reported <= after.reported <= before.sent


def test_who_says_nothing_is_sent_away() -> None:
    pair = Pair(MemoryLog(RECORDS), MemoryLog())
    pair.hear(b"abc", 9_000)
    assert pair.giving.next_span(10_000) is None
    with pytest.raises(Silence, match="no replica"):
        pair.giving.check_silence(10_001)


def test_both_ends_notice_silence_and_neither_while_the_other_lives() -> None:
    pair = Pair(MemoryLog(RECORDS), MemoryLog())
    pair.hello()
    pair.run()
    for now_ms in range(5_000, 60_000, 5_000):
        pair.taking.received(pair.push(now_ms), now_ms)
        pair.hear(pair.taking.report(now_ms), now_ms)
    with pytest.raises(Silence):
        pair.giving.check_silence(75_001)
    with pytest.raises(Silence):
        pair.taking.report(75_001)


def test_a_record_whose_rest_never_comes_is_not_waited_for_because_the_primary_lives() -> None:
    pair = Pair(MemoryLog(RECORDS), MemoryLog(), batch=100)
    pair.hello()
    pair.taking.received(pair.push(), 0)
    for now_ms in range(5_000, 25_000, 5_000):
        pair.taking.received(push_head(100, 0), now_ms)
        assert pair.taking.report(now_ms)
    with pytest.raises(Silence, match="rest of the record"):
        pair.taking.report(25_000)


# --- asking for more -------------------------------------------------------------------------------------------------


def test_who_asks_is_sent_what_it_asked_for_and_no_more() -> None:
    pair = Pair(MemoryLog(RECORDS), MemoryLog())
    pair.hear(encode_report(0) + encode_grant(300))
    assert len(pair.push()) == 12 + 300
    assert pair.push() == b""
    pair.hear(encode_grant(50) + encode_grant(10))
    assert pair.giving.next_span(0) == Span(300, 60)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 3000), st.integers(1, 3000))
def test_a_window_paces_the_stream_and_nothing_is_missing(window: int, batch: int) -> None:
    pair = Pair(MemoryLog(RECORDS), MemoryLog(), batch=batch, window=window)
    pair.hello()
    on_the_way = 0
    while data := pair.push():
        on_the_way = len(data) - 12
        assert on_the_way <= window
        pair.taking.received(data, 0)
        pair.hear(pair.taking.report(0))
    assert bytes(pair.replica_log.data) == RECORDS


def test_a_window_that_is_used_up_still_lets_signs_of_life_through() -> None:
    pair = Pair(MemoryLog(RECORDS), MemoryLog())
    pair.hear(encode_report(0) + encode_grant(100))
    pair.push()
    assert pair.giving.next_span(4_999) is None
    assert pair.giving.next_span(5_000) == Span(100, 0)
