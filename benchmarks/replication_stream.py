"""Catch-up of a cold replica: how fast a log goes from one store to another over a loopback connection.

    python benchmarks/replication_stream.py [--mib 512] [--body 1024]

Two processes, as in life: the primary holds a log that is in memory, the replica begins with nothing and checks,
appends and dispatches every record. Shown are MB/s and the processor time of each side per MB.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from pyromq.clock import SystemClock
from pyromq.config import StoreConfig
from pyromq.model.message import Draft
from pyromq.replication.primary import Primary
from pyromq.replication.replica import Replica
from pyromq.store.message_store import MessageStore
from pyromq.store.store_log import StoreLog

MB = 1_000_000


def a_config(root: Path) -> StoreConfig:
    return StoreConfig(root=root, segment_bytes=256 << 20, index_enabled=False)


async def lead(root: Path, mib: int, body: int, pipe: Connection) -> None:
    async with MessageStore(a_config(root)).running() as store:
        drafts = [Draft(b"t", number % 4, b"x" * body) for number in range(1000)]
        while store.log.end < mib << 20:
            store.append(drafts)
            await asyncio.sleep(0)
        store.flush()
        primary = Primary(StoreLog(store), SystemClock(), lambda followers: None)
        store.marks.written.listen(lambda _: primary.log_grew())
        async with primary.serving("127.0.0.1", 0):
            cpu = time.process_time()
            pipe.send((primary.port, store.log.end))
            await asyncio.to_thread(pipe.recv)
            pipe.send(time.process_time() - cpu)


async def follow(root: Path, port: int, end: int, dispatches: bool) -> tuple[float, float]:
    """Seconds, and seconds of the processor."""
    async with MessageStore(a_config(root)).running() as store:
        store.follow()
        if not dispatches:
            store._dispatch_later = lambda: None  # type: ignore[method-assign]
        replica = Replica(StoreLog(store), SystemClock())
        store.marks.synced.listen(lambda _: replica.copy_became_safer())
        replica.follow(f"127.0.0.1:{port}")
        started, cpu = time.perf_counter(), time.process_time()
        task = asyncio.get_running_loop().create_task(replica.run())
        await store.marks.appended.wait(end)
        seconds, busy = time.perf_counter() - started, time.process_time() - cpu
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return seconds, busy


def primary_process(root: Path, mib: int, body: int, pipe: Connection) -> None:
    asyncio.run(lead(root, mib, body, pipe))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="length of the log")
    parser.add_argument("--body", type=int, default=1024, help="bytes in a message")
    parser.add_argument("--directory", type=Path, help="where both stores are made (a directory in memory, say)")
    parser.add_argument("--log-only", action="store_true", help="without the replica's own queues")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as scratch:
        ours, theirs = multiprocessing.Pipe()
        root = Path(scratch)
        process = multiprocessing.get_context("spawn").Process(
            target=primary_process, args=(root / "a", arguments.mib, arguments.body, theirs)
        )
        process.start()
        port, end = ours.recv()
        seconds, busy = asyncio.run(follow(root / "b", port, end, not arguments.log_only))
        ours.send(None)
        primary_busy = ours.recv()
        process.join()
    size = end / MB
    print(f"{size:.0f} MB of messages of {arguments.body} bytes in {seconds:.2f} s: {size / seconds:.0f} MB/s")
    print(f"processor time per MB: replica {busy / size * 1e3:.2f} ms, primary {primary_busy / size * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
