"""The compiled decoder gives what the readable one gives: for good records, odd ones, and bytes that are none."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq import accelerated
from pyromq.errors import BadRecord
from pyromq.model.message import Draft
from pyromq.records.java_hash import java_text
from pyromq.spark.decode import decoder, reference
from pyromq.spark.decode.columns import NAMES
from pyromq.spark.decode.decoder import MOST_BYTES, Walk
from records.drafts import BASE, ordinary_log
from records.mutations import mutate
from spark.support.records_in_blocks import a_log, any_drafts, ordinary, spoiled

_kernel = pytest.importorskip("pyromq.spark._kernel")
pytestmark = pytest.mark.skipif(accelerated.load("spark") is None, reason="the readable form was asked for")


def readable_walk(log: bytes, start: int, limit: int, base: int | None, at_most: int) -> Walk:
    starts, end, stop = reference.find(memoryview(log), start, limit, base, at_most)
    return Walk(np.array(starts, np.int64), end, stop)


def shown(walk: Walk) -> tuple[list[int], int, object]:
    return walk.starts.tolist(), walk.end, walk.stop


def readable(log: bytes, starts: list[int], names: tuple[str, ...]) -> pa.RecordBatch:
    rows = reference.rows_of(memoryview(log), starts)
    return reference.decode(rows, names, "broker-a", MOST_BYTES)


def outcome(work: Callable[[], object]) -> object:
    try:
        return work()
    except BadRecord as bad:
        return (bad.at, bad.what)


def check_alike(log: bytes, starts: list[int]) -> None:
    """Every column, topics and CRCs of the records at these starts."""
    at = np.array(starts, np.int64)
    found = outcome(lambda: decoder.decode(log, at, NAMES, broker="broker-a"))
    assert found == outcome(lambda: readable(log, starts, NAMES))
    if isinstance(found, pa.RecordBatch):
        found.validate(full=True)
        rows = reference.rows_of(memoryview(log), starts)
        codes, topics = decoder.topic_codes(log, at)
        assert (codes.tolist(), topics) == reference.topic_codes(rows)
        assert _kernel.Records(log, at).first_damaged() == reference.first_damaged(rows)


@given(st.lists(any_drafts, max_size=5), st.booleans())
def test_records_of_every_shape_are_decoded_alike(some: list[Draft], with_crc: bool) -> None:
    log = a_log(some, with_crc=with_crc)
    found = decoder.walk(log, 0, len(log), base=BASE)
    assert shown(found) == shown(readable_walk(log, 0, len(log), BASE, 100))
    check_alike(log, found.starts.tolist())


@given(st.lists(any_drafts, min_size=1, max_size=3), st.sets(st.sampled_from(NAMES), min_size=1))
def test_any_choice_of_columns_is_decoded_alike(some: list[Draft], chosen: set[str]) -> None:
    log = a_log(some)
    names = tuple(sorted(chosen))
    starts = decoder.find_records(log, 0, len(log))
    assert decoder.decode(log, starts, names, broker="broker-a") == readable(log, starts.tolist(), names)


@given(st.lists(any_drafts, min_size=1, max_size=3), st.data())
def test_any_place_may_be_looked_at(some: list[Draft], data: st.DataObject) -> None:
    log = a_log(some)
    start = data.draw(st.integers(0, len(log)))
    limit = data.draw(st.integers(start, len(log)))
    at_most = data.draw(st.integers(0, 3))
    base = data.draw(st.sampled_from([None, BASE, BASE + 1]))
    found = decoder.walk(log, start, limit, base=base, at_most=at_most)
    assert shown(found) == shown(readable_walk(log, start, limit, base, at_most))
    check_alike(log, [data.draw(st.integers(-2, len(log) + 2)) for _ in range(2)])


@given(st.binary(max_size=300))
def test_any_bytes_are_searched_alike(log: bytes) -> None:
    assert shown(decoder.walk(log, 0, len(log))) == shown(readable_walk(log, 0, len(log), None, 100))


@pytest.mark.parametrize("seed", range(4))
def test_damaged_logs_are_decoded_alike_or_refused_alike(seed: int) -> None:
    rng = random.Random(seed)
    good = [ordinary_log(rng, 5, with_crc=with_crc) for with_crc in (True, False)]
    good.append(a_log([ordinary(n) for n in range(4)]))
    for _ in range(250):
        before = rng.choice(good)
        log = mutate(rng, before) if rng.random() < 0.5 else spoiled(rng, before)
        found = decoder.walk(log, 0, len(log))
        assert shown(found) == shown(readable_walk(log, 0, len(log), None, 100))
        check_alike(log, found.starts.tolist())
        check_alike(log, decoder.walk(before, 0, len(before)).starts.tolist())  # the starts before the damage


@given(st.binary(max_size=12) | st.text(max_size=6).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_text_is_judged_as_python_judges_it(data: bytes) -> None:
    """Eight bytes more before it: the kernel looks at whole words first."""
    for topic in (data, b"12345678" + data, b"1234567" + data):
        if topic:
            log = a_log([Draft(topic, 0, b"")])
            assert decoder.decode(log, np.array([0]), ("topic",)).to_pydict() == {"topic": [java_text(topic)]}


def test_every_lead_byte_of_utf8() -> None:
    for first in range(0x80, 0x100):
        for second in (0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0):
            for rest in (b"", b"\x80", b"\x80\x80", b"\x80a"):
                topic = bytes([first, second]) + rest
                log = a_log([Draft(topic, 0, b"")])
                assert decoder.decode(log, np.array([0]), ("topic",)).to_pydict() == {"topic": [java_text(topic)]}


def test_the_kernel_refuses_what_would_lead_it_out_of_its_room() -> None:
    log = a_log([ordinary(0)])
    records = _kernel.Records(log, np.array([0, 5]))
    assert records.bad == 1
    with pytest.raises(RuntimeError, match="split the properties"):
        records.tags(pa.allocate_buffer)
    with pytest.raises(IndexError):
        records.int64s(20, np.empty(0, np.int64))
    for start, limit in [(-1, 5), (3, 2), (0, len(log) + 1)]:
        with pytest.raises(IndexError):
            _kernel.find(log, start, limit, 0, False, np.empty(1, np.int64))
