"""Group commit: writers that each append one 1 KiB message and wait until it is on the disk, again and again.

Goal: 20 k messages a second with 64 writers. Limit: raw `fdatasync` of a file with one dirty page, times the writers.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from common import SCALE, drafts, seconds_of, share, show, thousands, warmed_mapping, work_directory

from pyromq.config import FlushConfig, StoreConfig
from pyromq.store.message_store import MessageStore

SECONDS = 3 * SCALE


async def measure(root: Path, writers: int) -> tuple[float, float, float]:
    """Messages a second, p50 and p99 of a sync in ms."""
    store = MessageStore(StoreConfig(root=root, flush=FlushConfig(sync=True)))
    done = 0
    async with store.running():
        stop = time.monotonic() + SECONDS

        async def writer(number: int) -> None:
            nonlocal done
            message = drafts(1, queues=1)
            message[0].queue_id = number % 8
            while time.monotonic() < stop:
                receipt = store.append(message)[0]
                await store.wait_synced(receipt)
                done += 1

        started = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for number in range(writers):
                tasks.create_task(writer(number))
        seconds = time.monotonic() - started
        flush = store.telemetry.histogram("pyromq_store_flush_seconds")
    return done / seconds, flush.quantile(0.5) * 1000, flush.quantile(0.99) * 1000


def raw_syncs_per_second(directory: Path) -> float:
    mapping, fd = warmed_mapping(directory, 64 << 20)
    os.fdatasync(fd)
    count = 500

    def sync_pages() -> None:
        for number in range(count):
            mapping[number * 4096] = 1
            os.fdatasync(fd)

    rate = count / seconds_of(sync_pages)
    mapping.close()
    os.close(fd)
    (directory / "limit").unlink()
    return rate


def main() -> None:
    rows: list[tuple[str, ...]] = []
    with work_directory() as directory:
        for writers in (1, 8, 64, 256):
            rate, p50, p99 = asyncio.run(measure(directory / f"writers-{writers}", writers))
            limit = raw_syncs_per_second(directory) * writers
            rows.append(
                (f"{writers} writers", thousands(rate), f"{p50:.2f} ms", f"{p99:.2f} ms", thousands(limit),
                 share(rate, limit))
            )  # fmt: skip
    show(
        "Sync flush, group commit, 1 KiB bodies",
        rows,
        ("", "messages", "sync p50", "p99", "fdatasync × writers", "share"),
    )


if __name__ == "__main__":
    main()
