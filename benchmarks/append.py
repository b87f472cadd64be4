"""Append with dispatch: 1 KiB messages into the log, their queues and the key index, on one thread.

Goal: 400 k messages a second. Limit: copying the same bytes into warmed page cache.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from common import SCALE, drafts, memcpy_bytes_per_second, share, show, thousands, work_directory

from pyromq.config import MIB, StoreConfig
from pyromq.store.message_store import MessageStore
from pyromq.store.queues.queue_cursor import COMPILED

ROUNDS = 5


def measure(root: Path, batch: int, total: int) -> tuple[float, float, int]:
    """Messages a second (best of some rounds), p99 of one append call in µs, record size."""
    store = MessageStore(StoreConfig(root=root, prefault_bytes=256 * MIB))
    store.open()
    messages = drafts(batch)
    best = 0.0
    size = store.append(messages)[-1].size
    for _ in range(ROUNDS):
        calls = max(total // batch // ROUNDS, 1)
        started = time.perf_counter()
        for _ in range(calls):
            store.append(messages)
            store.dispatch()
        best = max(best, calls * batch / (time.perf_counter() - started))
    p99 = store.telemetry.histogram("pyromq_store_append_seconds").quantile(0.99)
    store.close()
    return best, p99 * 1e6, size


def main() -> None:
    rows: list[tuple[str, ...]] = []
    total = int((400_000 if COMPILED else 60_000) * SCALE)
    with work_directory() as directory:
        for batch in (1, 32, 256):
            rate, p99, size = measure(directory / f"batch-{batch}", batch, total // (8 if batch == 1 else 1))
            per_record = memcpy_bytes_per_second(directory, size) / size
            in_blocks = memcpy_bytes_per_second(directory, 256 * 1024) / size
            rows.append(
                (f"batches of {batch}", thousands(rate), f"{p99:.0f} µs", thousands(per_record),
                 share(rate, per_record), thousands(in_blocks), share(rate, in_blocks))
            )  # fmt: skip
    show(
        f"Append + queues + index, 1 KiB bodies, {'compiled' if COMPILED else 'readable'} form, "
        f"{len(os.sched_getaffinity(0))} core(s)",
        rows,
        ("", "messages", "p99 a call", "memcpy by record", "share", "memcpy 256 KiB", "share"),
    )


if __name__ == "__main__":
    main()
