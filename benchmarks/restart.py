"""Start after kill -9: how long until the store serves, and how that grows with the log.

A child process writes a log of some GiB under load and is killed; then the store is opened and one message appended.
Goal: 5 s with 10 GiB. Limit: plain `read` of the bytes that recovery must look at (`PYROMQ_BENCH_COLD=1`: from disk).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from common import SCALE, drafts, show, work_directory

from pyromq.config import GIB, StoreConfig
from pyromq.store.message_store import MessageStore

WRITER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from common import drafts
from pyromq.config import StoreConfig
from pyromq.store.message_store import MessageStore

async def main():
    store = MessageStore(StoreConfig(root=Path(sys.argv[1])))
    messages = drafts(256)
    async with store.running():
        while True:
            store.append(messages)
            await asyncio.sleep(0)
            if store.log.end >= int(sys.argv[2]):
                print("written", flush=True)
                break
        while True:  # the kill comes under load
            store.append(messages[:16])
            await asyncio.sleep(0)
asyncio.run(main())
"""


def write_and_kill(root: Path, size: int) -> None:
    here = str(Path(__file__).parent)
    child = subprocess.Popen([sys.executable, "-c", WRITER, str(root), str(size), here], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline().strip() == b"written"
    time.sleep(0.3)
    child.send_signal(signal.SIGKILL)
    child.wait()


def seconds_to_read(store: MessageStore, start: int, end: int) -> float:
    """The physical limit: how long plain `read` takes for the bytes that recovery looked at."""
    started = time.perf_counter()
    for segment in store.log.files.segments:
        low, high = max(start, segment.base), min(end, segment.end)
        with segment.path.open("rb", buffering=0) as file:
            file.seek(max(low - segment.base, 0))
            while low < high:
                low += len(file.read(min(1 << 20, high - low)))
    return time.perf_counter() - started


def main() -> None:
    rows: list[tuple[str, ...]] = []
    sizes = [gib * SCALE for gib in (0.25, 1, 2, 5, 10)]
    with work_directory() as directory:
        root = directory / "store"
        for gib in sizes:
            write_and_kill(root, int(gib * GIB))
            cold = os.environ.get("PYROMQ_BENCH_COLD") == "1"
            if cold:
                Path("/proc/sys/vm/drop_caches").write_text("3")
            started = time.perf_counter()
            store = MessageStore(StoreConfig(root=root))
            report = store.open()
            store.append(drafts(1))
            seconds = time.perf_counter() - started
            behind = store.marks.written.value - store.marks.indexed.value
            started = time.perf_counter()
            store.dispatch()
            index_seconds = time.perf_counter() - started
            reading = seconds_to_read(store, report.scanned_from, report.log_end)
            scanned = f"{(report.log_end - report.scanned_from) >> 20} MiB"
            rows.append(
                (f"{report.log_end / GIB:.2f} GiB", f"{seconds:.2f} s", scanned, f"{reading:.2f} s",
                 f"{behind / GIB:.2f} GiB", f"{index_seconds:.2f} s")
            )  # fmt: skip
            store.close()
    show(
        "Start after kill -9 under load",
        rows,
        ("log", "until serving", "scanned", "`read` of that", "index behind", "index complete after"),
    )


if __name__ == "__main__":
    main()
