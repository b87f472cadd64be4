"""The content of commands, for hypothesis; and malformed frames."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from hypothesis import strategies as st

from pyromq.wire.command import FLAG_ANSWER, FLAG_ONE_WAY, LANGUAGES, Command, Serialization

INT32 = st.integers(-(2**31), 2**31 - 1)
#: Whatever UTF-8 can say: NUL, separators, other planes; no half surrogate pairs.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)

#: Codes that both forms of a header can carry.
CODES = st.one_of(st.integers(0, 0x7FFF), st.sampled_from([200050, 200051, 200151]))


@st.composite
def commands(draw: st.DrawFn, serialization: Serialization | None = None) -> Command:
    flags = draw(st.sampled_from([0, FLAG_ONE_WAY, FLAG_ANSWER, 1 << 20]))
    return Command(
        code=draw(st.integers(0, 0x7FFF) if flags & FLAG_ANSWER else CODES.filter(lambda code: not 3400 < code < 3600)),
        fields=draw(st.dictionaries(TEXT, TEXT, max_size=8)),
        body=draw(st.binary(max_size=200)),
        correlation_id=draw(INT32),
        flags=flags,
        reason=draw(st.none() | TEXT.filter(bool)),
        language=draw(st.sampled_from(LANGUAGES)),
        version=draw(st.integers(0, 0x7FFF)),
        serialization=draw(st.sampled_from(Serialization)) if serialization is None else serialization,
    )


def cut_up(data: bytes, cuts: list[int]) -> list[bytes]:
    """The bytes in chunks that end at the given places."""
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@contextmanager
def only(*kinds: type[Exception]) -> Iterator[None]:
    """Nothing is raised, or one of these with a sentence that fits into a log line."""
    try:
        yield
    except kinds as error:
        check_sentence(str(error))


def check_sentence(sentence: str) -> None:
    assert 10 < len(sentence) < 300
    assert sentence.isprintable()
