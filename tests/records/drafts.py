"""Drafts of every shape that a record can take, and logs made of them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import strategies as st

from pyromq.model.message import Draft
from pyromq.records import layout, record

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)

#: A position far from 0, so that a test which forgets the base fails.
BASE = 7 << 40
STORED_AT_MS = 1_700_000_000_123

hosts = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)

#: No separators, no slash, no zero: what is left may be any text.
words = st.text(st.characters(exclude_characters="\x00\x01\x02/", exclude_categories=["Cs"]), min_size=1, max_size=12)

short_topics = st.sampled_from([b"t", b"orders", b"%RETRY%group", "заказы".encode(), b"x" * 127])
long_topics = st.integers(128, 255).map(lambda size: b"L" * size)

_entries = st.tuples(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "__CRC32#", "__CRC32"]) | words, words).map(
    lambda entry: f"{entry[0]}\x01{entry[1]}".encode()
)


@st.composite
def properties(draw: st.DrawFn) -> bytes:
    """Well-formed mostly; with or without the last separator; now and then any bytes at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=60))
    data = b"\x02".join(draw(st.lists(_entries, max_size=5)))
    return data + b"\x02" if data and draw(st.booleans()) else data


transactions = st.sampled_from([0, layout.FLAG_PREPARED, layout.FLAG_COMMITTED, layout.FLAG_ROLLED_BACK])
bodies = st.binary(max_size=200) | st.integers(0, 5000).map(lambda size: b"\xda\xa3 \xa7" * (size // 4))


def _body_forms(body: bytes) -> st.SearchStrategy[bytes | bytearray | memoryview]:
    return st.sampled_from([body, bytearray(body), memoryview(body)])


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """Anything that `check_draft` lets through."""
    return Draft(
        topic=draw(short_topics | long_topics),
        queue_id=draw(st.integers(0, 2**31 - 1)),
        body=draw(bodies.flatmap(_body_forms)),
        properties=draw(properties()),
        user_flag=draw(INT32),
        storage_flags=draw(transactions) | draw(st.sampled_from([0, 1, 2, 0x30, 0x700])),
        born_timestamp_ms=draw(INT64),
        born_host=draw(hosts),
        store_host=draw(hosts),
        reconsume_times=draw(INT32),
        prepared_position=draw(INT64),
    )


def log_of(drafts: Sequence[Draft], *, with_crc: bool = True, base: int = BASE) -> bytes:
    """Records one behind the other, as a segment has them."""
    log = bytearray()
    for number, draft in enumerate(drafts):
        log += record.encode(draft, base + len(log), number, STORED_AT_MS + number, with_crc)
    return bytes(log)


def ordinary_log(rng: random.Random, records: int, *, with_crc: bool = True, base: int = BASE) -> bytes:
    """A log without hypothesis, for mutators that bring their own seed."""
    return log_of(
        [
            Draft(
                topic=rng.choice([b"orders", b"L" * 200]),
                queue_id=rng.randrange(4),
                body=rng.randbytes(rng.randrange(60)),
                properties=rng.choice([b"", b"TAGS\x01TagA\x02", b"KEYS\x01a b\x02UNIQ_KEY\x01u1"]),
                born_host=rng.choice([b"\x0a\0\0\x01\0\0\x1f\x90", bytes(20)]),
            )
            for _ in range(records)
        ],
        with_crc=with_crc,
        base=base,
    )
