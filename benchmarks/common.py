"""What the benchmarks share: a directory to work in, drafts to append, and a table to print.

Every benchmark prints, beside its own figure, a physical limit taken in the same run on the same file system, and our
share of it: machines differ, ratios travel. `PYROMQ_BENCH_DIR` names another disk; `PYROMQ_BENCH_SCALE=0.1` is quick.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from pyromq.files import platform
from pyromq.model.message import Draft
from pyromq.testing import BrokerProcess

SCALE = float(os.environ.get("PYROMQ_BENCH_SCALE", "1"))
BODY = bytes(range(256)) * 4


@contextlib.contextmanager
def work_directory() -> Iterator[Path]:
    base = Path(os.environ.get("PYROMQ_BENCH_DIR", "build/bench"))
    base.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(dir=base))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def drafts(count: int, body: bytes = BODY, queues: int = 4) -> list[Draft]:
    """Messages as a client sends them: a tag, a key, a unique key."""
    return [
        Draft(
            b"benchmark",
            number % queues,
            body,
            b"TAGS\x01tagA\x02KEYS\x01order-%d\x02UNIQ_KEY\x017F0000010A2F18B4AAC2%012X\x02" % (number, number),
            born_timestamp_ms=1_700_000_000_000,
        )
        for number in range(count)
    ]


def seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def warmed_mapping(directory: Path, size: int) -> tuple[mmap.mmap, int]:
    """A file of real blocks whose pages are ready for writing, and its descriptor."""
    fd = os.open(directory / "limit", os.O_RDWR | os.O_CREAT, 0o644)
    platform.allocate(fd, 0, size)
    mapping = mmap.mmap(fd, size)
    platform.warm(platform.address_of(mapping), 0, size)
    return mapping, fd


def memcpy_bytes_per_second(directory: Path, block: int) -> float:
    """How fast bytes can be copied into warmed page cache, in blocks of a size."""
    size = 256 << 20
    mapping, fd = warmed_mapping(directory, size)
    data = os.urandom(block)
    view = memoryview(mapping)

    def copy() -> None:
        for at in range(0, size - block, block):
            view[at : at + block] = data

    seconds = min(seconds_of(copy) for _ in range(3))
    view.release()
    mapping.close()
    os.close(fd)
    (directory / "limit").unlink()
    return size / seconds


def show(title: str, rows: list[tuple[str, ...]], columns: tuple[str, ...]) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column(columns[0])
    for column in columns[1:]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    Console(width=110).print(table)


def thousands(value: float) -> str:
    return f"{value / 1000:,.0f} k/s"


def share(value: float, limit: float) -> str:
    return f"{value / limit:.0%}"


# --- what Spark costs beside a broker --------------------------------------------------------------------------------


def processor_seconds(pid: int) -> float:
    """Processor time of a process and of those that it started, so far."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
        children: set[str] = set()
        for task in Path(f"/proc/{pid}/task").iterdir():
            children |= set((task / "children").read_text("ascii").split())
    except OSError:  # it has ended meanwhile
        return 0.0
    own = sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    return own + sum(processor_seconds(int(child)) for child in children)


class Cost(NamedTuple):
    rate: float
    #: Messages for a second of Spark's processor time.
    per_core: float
    #: Processor seconds of the broker, for each second.
    broker: float


def best_cost(work: Callable[[], object], rows: int, mq: BrokerProcess, times: int = 3) -> Cost:
    """The run that cost Spark, which this process started, least."""
    found = []
    for _ in range(times):
        broker, spark, started = processor_seconds(mq.pid), processor_seconds(os.getpid()), time.perf_counter()
        work()
        seconds = time.perf_counter() - started
        broker = processor_seconds(mq.pid) - broker
        spark = processor_seconds(os.getpid()) - spark - broker
        found.append(Cost(rows / seconds, rows / spark, broker / seconds))
    return max(found, key=lambda one: one.per_core)
