"""Scan of the log with every check (lengths, positions, whole-record CRC), as recovery and `store verify` do it.

Goal: 1 GiB a second. Limits: the CRC alone over one long block; copying the memory once, to where there is room. A scan
only reads, and a copy writes as well: that share can pass 100 %.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from common import BODY, SCALE, drafts, share, show

from pyromq.records import record
from pyromq.records.checksum import crc32
from pyromq.records.scan import COMPILED, scan, scan_readable

GIB = 1 << 30


def a_log(size: int, body: bytes) -> memoryview:
    draft = drafts(1, body)[0]
    log = bytearray()
    while len(log) < size:
        log += record.encode(draft, len(log), 0, 1_700_000_000_000, True)
    return memoryview(log)


def copier(log: memoryview) -> Callable[[], None]:
    """Copies into memory that is there and was touched: neither allocating nor faults are measured."""
    room = memoryview(bytearray(len(log)))
    room[::4096] = b"\1" * len(range(0, len(log), 4096))

    def copy() -> None:
        room[:] = log

    return copy


def best_rate(size: int, work: object) -> float:
    best = 0.0
    for _ in range(3):
        started = time.perf_counter()
        work()  # type: ignore[operator]
        best = max(best, size / (time.perf_counter() - started))
    return best


def main() -> None:
    rows: list[tuple[str, ...]] = []
    for name, body, size in (("1 KiB", BODY, 256 << 20), ("128 B", BODY[:128], 64 << 20)):
        log = a_log(int(size * SCALE), body)
        crc_limit = best_rate(len(log), lambda log=log: crc32(log, 0))
        copy_limit = best_rate(len(log), copier(log))
        forms = [("compiled", scan)] if COMPILED else []
        for form, function in (*forms, ("readable", scan_readable)):
            part = log if form == "compiled" else log[: len(log) // 16]
            rate = best_rate(len(part), lambda f=function, p=part: f(p, 0, len(p), 0, True))
            rows.append(
                (f"{name}, {form}", f"{rate / GIB:.2f} GiB/s", f"{crc_limit / GIB:.1f} GiB/s", share(rate, crc_limit),
                 f"{copy_limit / GIB:.1f} GiB/s", share(rate, copy_limit))
            )  # fmt: skip
    show(
        f"Scan with CRC, {os.cpu_count()} cores, one used", rows, ("", "scan", "CRC alone", "share", "memcpy", "share")
    )


if __name__ == "__main__":
    main()
