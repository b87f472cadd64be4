"""Records as the decoder gets them, and what their columns must hold."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import strategies as st

from pyromq.model.message import Draft
from pyromq.records.compression import compress
from records.drafts import BASE, drafts, log_of

#: Invalid UTF-8, repeated names, an entry without a value: properties that a careless producer sends.
ODD_PROPERTIES = [
    b"TAGS\x01\xff\xfe\x02KEYS\x01ok",
    b"TAGS\x01one\x02TAGS\x01two\x02",
    b"\xff\x01a\x02\xfe\x01b\x02",
    b"TAGS\x01\x02\x01x\x02\x02KEYS\x01k",
    b"UNIQ_KEY\x01\xed\xa0\x80\x02",
    b"UNIQ_KEY\x01a\x01b\x02__CRC32#\x01mine\x02x\x01y",
    b"".join(b"p%d\x01%d\x02" % (number % 90, number) for number in range(100)),
    b"\x01" * 30,
    b"TAGS",
    "имя\x01значение\x02TAGS\x01тег🙂".encode(),
]

odd_properties = st.sampled_from(ODD_PROPERTIES)


@st.composite
def compressed_drafts(draw: st.DrawFn) -> Draft:
    """A body that is compressed, or says so."""
    draft = draw(drafts())
    body, flags = compress(bytes(draft.body) * 3 + bytes(50), draw(st.sampled_from(["zlib", "lz4", "zstd"])))
    draft.body = body[: draw(st.sampled_from([len(body), len(body) // 2]))]
    draft.storage_flags |= flags
    return draft


@st.composite
def odd_drafts(draw: st.DrawFn) -> Draft:
    draft = draw(drafts())
    draft.properties = draw(odd_properties)
    draft.topic = draw(st.sampled_from([draft.topic, b"\xff\xfeodd", b"\xed\xa0\x80"]))
    return draft


any_drafts = drafts() | odd_drafts() | compressed_drafts()


def ordinary(number: int, *, body: bytes = b"", topic: bytes = b"orders") -> Draft:
    """As a client sends it."""
    return Draft(
        topic,
        number % 4,
        body or b"body of %d" % number,
        b"TAGS\x01tag%d\x02KEYS\x01order-%d\x02UNIQ_KEY\x01ID%06d\x02" % (number % 3, number, number),
        born_timestamp_ms=1_700_000_000_000 + number,
        born_host=b"\x0a\x00\x00\x07\x00\x00\x1f\x90",
        store_host=b"\x0a\x00\x00\x08\x00\x00\x2a\x9f",
    )


def spoiled(rng: random.Random, log: bytes) -> bytes:
    """Cut off somewhere, or with some bits turned."""
    damaged = bytearray(log)
    for _ in range(rng.randint(1, 6)):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged[: rng.randrange(len(damaged) + 1)]) if rng.random() < 0.4 else bytes(damaged)


def a_log(some: Sequence[Draft], *, base: int = BASE, with_crc: bool = True) -> bytes:
    return log_of(some, base=base, with_crc=with_crc)
