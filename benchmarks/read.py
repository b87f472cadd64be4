"""Sequential read of a queue as views of the log, without copying.

Goal: 1 M messages a second. Limit: reading the same bytes with `read` from the page cache. `read` copies them and
views copy nothing, so the share can pass 100 %.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from common import SCALE, drafts, share, show, thousands, work_directory

from pyromq.config import StoreConfig
from pyromq.store.message_store import MessageStore


def read_all(store: MessageStore, batch: int) -> float:
    """Messages a second over all queues."""
    count = 0
    started = time.perf_counter()
    for queue in store.queues:
        offset = 0
        while (
            result := store.read("benchmark", queue.id.number, offset, max_messages=batch, max_bytes=1 << 30)
        ).records:
            count += len(result.records)
            offset = result.next_offset
    return count / (time.perf_counter() - started)


def read_bandwidth(path: Path, size: int) -> float:
    buffer = bytearray(1 << 20)
    with path.open("rb", buffering=0) as file:
        started = time.perf_counter()
        done = 0
        while done < size and (got := file.readinto(buffer)):
            done += got
    return done / (time.perf_counter() - started)


def main() -> None:
    rows: list[tuple[str, ...]] = []
    with work_directory() as directory:
        config = StoreConfig(root=directory / "store")
        store = MessageStore(config)
        store.open()
        messages = drafts(256)
        for _ in range(int(1500 * SCALE) or 1):
            receipts = store.append(messages)
        store.dispatch()
        size = receipts[-1].size
        written = int(store.log.end)
        log_file = store.log.files.segments[0].path
        limit = read_bandwidth(log_file, min(written, os.path.getsize(log_file))) / size
        for batch in (32, 1000):
            rate = max(read_all(store, batch) for _ in range(3))
            rows.append((f"{batch} a read, written here", thousands(rate), thousands(limit), share(rate, limit)))
        store.close()
        store = MessageStore(config)
        store.open()
        for batch in (32, 1000):
            rate = max(read_all(store, batch) for _ in range(3))
            rows.append(
                (f"{batch} a read, found on disk (CRC checked)", thousands(rate), thousands(limit), share(rate, limit))
            )
        store.close()
    show("Sequential read as views, 1 KiB bodies", rows, ("", "messages", "`read` of the bytes", "share"))


if __name__ == "__main__":
    main()
