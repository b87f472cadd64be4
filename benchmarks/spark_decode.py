"""From commit-log records to Arrow batches, on one core and without Spark: what a decoder can give to Spark at most.

Goal: 1 M messages of 1 KB a second, all columns. Beside it what was measured before there was one: the walk over the
lengths alone, and `struct` with a tuple for each message. Limit: copying the bodies once.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable

import numpy as np
from common import SCALE, drafts, share, show

from pyromq import accelerated
from pyromq.records import layout, record
from pyromq.records.properties import decode_properties
from pyromq.spark.decode import decoder, reference
from pyromq.spark.decode.columns import NAMES

ACCELERATED = accelerated.load("spark")

BODY = bytes(range(250)) * 4
#: The columns that the first measurements had.
EIGHT = ("topic", "queue_id", "queue_offset", "tags", "keys", "properties", "body", "born_ts")
BATCHES = (500, 2000, 5000, 10_000)
CHOICES = {
    "8 columns": EIGHT, "body": ("body",), "properties": ("properties",), "tags": ("tags",),
    "topic and offset": ("topic", "queue_offset"),
}  # fmt: skip
GOAL = 1_000_000
_SIZE_AND_BODY = struct.Struct(">I80xI")


def a_log(messages: int) -> bytes:
    log = bytearray()
    for number, draft in enumerate(drafts(messages, BODY)):
        log += record.encode(draft, len(log), number // 4, 1_700_000_000_000 + number, False)
    return bytes(log)


def rate(messages: int, work: Callable[[], object]) -> float:
    best = 0.0
    for _ in range(3):
        started = time.perf_counter()
        work()
        best = max(best, messages / (time.perf_counter() - started))
    return best


def tuples(log: bytes) -> list[tuple[object, ...]]:
    """The way without Arrow: each message a tuple of Python's objects, the same eight columns."""
    found, at, view = [], 0, memoryview(log)
    while at < len(log):
        head = layout.HEAD.unpack_from(log, at)
        body = at + 88
        body_end = body + _SIZE_AND_BODY.unpack_from(log, at)[1]
        topic_end = body_end + 1 + log[body_end]
        properties = decode_properties(bytes(view[topic_end + 2 : at + head[0]]))
        found.append((
            log[body_end + 1 : topic_end].decode(), head[3], head[5], properties.get("TAGS"), properties.get("KEYS"),
            properties, log[body:body_end], head[8] * 1000,
        ))  # fmt: skip
        at += head[0]
    return found


def decoded(log: bytes, starts: decoder.Starts, names: tuple[str, ...], rows: int) -> None:
    for at in range(0, len(starts), rows):
        decoder.decode(log, starts[at : at + rows], names)


def decoding(log: bytes, starts: decoder.Starts, names: tuple[str, ...], rows: int) -> float:
    return rate(len(starts), lambda: decoded(log, starts, names, rows))


def readable(log: bytes, starts: decoder.Starts, names: tuple[str, ...]) -> None:
    rows = reference.rows_of(memoryview(log), starts)
    reference.decode(rows, names, None, decoder.MOST_BYTES)


def copy_bodies(log: bytes, starts: decoder.Starts, rows: int) -> None:
    """As many bytes as a batch of bodies has, into memory that is used again."""
    room = np.empty(rows * len(BODY), np.uint8)
    source = np.frombuffer(log, np.uint8)
    for at in range(0, len(starts) - rows, rows):
        room[:] = source[starts[at] : starts[at] + len(room)]


def main() -> None:
    count = int(200_000 * SCALE)
    log = a_log(count)
    starts = decoder.find_records(log, 0, len(log))
    few = starts[: count // 20]
    part = log[: int(starts[len(few)])]
    copying = rate(count, lambda: copy_bodies(log, starts, min(5000, count // 2)))
    figures: list[tuple[str, float]] = [("bodies copied, the limit", copying)]
    figures.append(("lengths followed, nothing decoded", rate(count, lambda: decoder.find_records(log, 0, len(log)))))
    figures.append(("CRCs verified", rate(count, lambda: decoder.verify(log, starts))))
    figures.append(("struct, a tuple each, 8 columns", rate(len(few), lambda: tuples(part))))
    figures.append(("readable form, 18 columns", rate(len(few), lambda: readable(part, few, NAMES))))
    if ACCELERATED is not None:
        figures += [
            (f"compiled, 18 columns, batches of {rows}", decoding(log, starts, NAMES, rows)) for rows in BATCHES
        ]
        figures += [(f"compiled, {what}", decoding(log, starts, names, 5000)) for what, names in CHOICES.items()]
    lines = [
        (what, f"{found / 1e6:.2f} M/s", f"{1e9 / found:,.0f} ns", share(found, copying)) for what, found in figures
    ]
    show(
        f"Decoding {len(log) // count}-byte records, {os.cpu_count()} cores, one used; goal {GOAL / 1e6:.0f} M/s",
        lines, ("", "messages", "each", "of the limit"),
    )  # fmt: skip


if __name__ == "__main__":
    main()
