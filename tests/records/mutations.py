"""Ways to spoil a log. With the same `random.Random` the same damage."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from pyromq.records import layout
from records.drafts import BASE, ordinary_log

#: Lengths that have hurt parsers: negative, huge, just around the smallest record, HTTP and TLS read as a length.
_LENGTHS = [0, 1, 7, 8, 90, 91, 92, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFF8, 0x47455420, 0x16030100]
_MAGICS = [layout.MAGIC_V1, layout.MAGIC_V2, layout.MAGIC_BLANK, 0]
_BODY_LENGTH_AT = 84


def _flip_bits(rng: random.Random, log: bytearray) -> None:
    for _ in range(rng.randint(1, 8)):
        log[rng.randrange(len(log))] ^= 1 << rng.randrange(8)


def _length_bomb(rng: random.Random, log: bytearray) -> None:
    """A length where a length is, or anywhere."""
    at = rng.choice([0, _BODY_LENGTH_AT, rng.randrange(len(log))])
    log[at : at + 4] = struct.pack(">I", rng.choice(_LENGTHS))


def _magic_anywhere(rng: random.Random, log: bytearray) -> None:
    at = rng.randrange(len(log))
    log[at : at + 4] = struct.pack(">I", rng.choice(_MAGICS))


def _magic_at_the_end(rng: random.Random, log: bytearray) -> None:
    """The head of a record, or a part of it, and nothing behind it."""
    head = struct.pack(">II", rng.choice(_LENGTHS), rng.choice(_MAGICS))
    log += head[: rng.randint(1, 8)] + bytes(rng.choice([0, 0, 82, 83]))


def _cut(rng: random.Random, log: bytearray) -> None:
    del log[rng.randrange(len(log)) :]


def _cut_out(rng: random.Random, log: bytearray) -> None:
    start = rng.randrange(len(log))
    del log[start : start + rng.randint(1, 64)]


def _repeat(rng: random.Random, log: bytearray) -> None:
    """The same bytes twice: a record that is not at its position."""
    start = rng.randrange(len(log))
    log[start:start] = log[start : start + rng.randint(1, 200)]


def _zero(rng: random.Random, log: bytearray) -> None:
    start = rng.randrange(len(log))
    end = min(start + rng.choice([1, 8, 512]), len(log))
    log[start:end] = bytes(end - start)


def _noise(rng: random.Random, log: bytearray) -> None:
    start = rng.randrange(len(log))
    end = min(start + rng.randint(1, 40), len(log))
    log[start:end] = rng.randbytes(end - start)


def _record_inside(rng: random.Random, log: bytearray) -> None:
    """A whole record, right for its place, where no record should begin."""
    at = rng.randrange(len(log))
    fake = ordinary_log(rng, 1, base=BASE + at)
    log[at : at + len(fake)] = fake


MUTATIONS: list[Callable[[random.Random, bytearray], None]] = [
    _flip_bits, _length_bomb, _magic_anywhere, _magic_at_the_end, _cut, _cut_out, _repeat, _zero, _noise,
    _record_inside,
]  # fmt: skip


def mutate(rng: random.Random, log: bytes) -> bytes:
    """One to three kinds of damage."""
    spoiled = bytearray(log)
    for mutation in rng.choices(MUTATIONS, k=rng.randint(1, 3)):
        if spoiled:
            mutation(rng, spoiled)
    return bytes(spoiled)
