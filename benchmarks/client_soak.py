"""A long life of one producer and one push consumer against `pyromq up`: nothing is lost, and memory stays flat.

    python benchmarks/client_soak.py --minutes 30 --rate 1000

Every message has a number; one in a thousand fails in its handler at first and has to come again. The anonymous memory
of both processes (what they allocated, without the files they map, which the system takes back) is sampled; after a
warm-up a line is fitted through it, and what it grew by along that line has to stay below `--growth` MiB. Exits with 1
when it does not, or when an acknowledged message did not reach the handler.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import linear_regression

from common import BODY, show, work_directory

from pyromq import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage
from pyromq.errors import PyroMQError
from pyromq.testing.brokers.ports import free_broker_port, free_port

RESULTS = Path("build/bench")
TOPIC, GROUP = "soak", "soak-readers"
#: The share of a run that does not count: caches fill, buffers find their size.
WARM_SHARE = 0.25
#: Samples of one run.
SAMPLES = 120
TICK_S = 0.01
FAILS_AT_FIRST = 1000
START_TIMEOUT_S = 20.0
STRAGGLERS_S = 60.0
END_TIMEOUT_S = 20.0

#: What is known of a message. Never 0: the pages of the table have to be there from the start, to be no growth.
NOT_SENT, ACKNOWLEDGED, HANDLED = 1, 2, 4


class HandlerFails(Exception):
    """Raised on purpose: the message has to come again."""


# --- Judging ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one process at one moment, in MiB."""

    at_s: float
    resident: float
    anonymous: float


def memory(at_s: float, status: str) -> Memory:
    """From the text of /proc/PID/status."""
    kib = dict(re.findall(r"^(VmRSS|RssAnon):\s+(\d+) kB$", status, re.MULTILINE))
    return Memory(at_s, int(kib["VmRSS"]) / 1024, int(kib["RssAnon"]) / 1024)


def growth_mib(samples: Sequence[Memory]) -> float:
    """Along the line through the samples after the warm-up, from its beginning to its end."""
    begin = samples[0].at_s + WARM_SHARE * (samples[-1].at_s - samples[0].at_s)
    counted = [one for one in samples if one.at_s >= begin]
    if len(counted) < 2:
        return 0.0
    slope, _ = linear_regression([one.at_s for one in counted], [one.anonymous for one in counted])
    return slope * (counted[-1].at_s - counted[0].at_s)


@dataclass(slots=True)
class Soak:
    """What happened so far."""

    table: bytearray
    handled_again: int = 0
    failed_sends: list[str] = field(default_factory=list)
    memories: dict[str, list[Memory]] = field(default_factory=lambda: {"client": [], "broker": []})

    def count(self, state: int) -> int:
        return sum(self.table.count(value) for value in range(8) if value & state)

    @property
    def lost(self) -> int:
        return self.table.count(NOT_SENT | ACKNOWLEDGED)

    def handled(self, number: int) -> None:
        self.handled_again += bool(self.table[number] & HANDLED)
        self.table[number] |= HANDLED


def complaints(soak: Soak, growth_max: float) -> list[str]:
    """Why the run failed; nothing when it did not."""
    found = []
    if soak.lost:
        found.append(f"{soak.lost} acknowledged messages did not reach the handler")
    if soak.failed_sends:
        found.append(f"{len(soak.failed_sends)} sends failed; the first: {soak.failed_sends[0]}")
    if not soak.count(ACKNOWLEDGED):
        found.append("nothing was acknowledged")
    for who, samples in soak.memories.items():
        if (grown := growth_mib(samples)) > growth_max:
            found.append(f"the {who} grew by {grown:.1f} MiB, more than {growth_max:g}")
    return found


# --- Running ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def broker(directory: Path) -> Iterator[tuple[str, int]]:
    """`pyromq up` on free ports: its name server's address and its pid."""
    name_server, port = free_port(), free_broker_port()
    options = ["--data-dir", str(directory / "data"), "--nameserver-port", str(name_server), "--broker-port", str(port)]
    process = subprocess.Popen([sys.executable, "-m", "pyromq", "up", *options], stdout=subprocess.DEVNULL)
    try:
        yield f"127.0.0.1:{name_server}", process.pid
    finally:
        process.terminate()
        process.wait(END_TIMEOUT_S)


async def first_send(producer: Producer) -> None:
    """The broker is starting."""
    limit = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            await producer.send(Message(TOPIC, b"%016d" % 0 + BODY[16:], tags="first"))
        except PyroMQError:
            if time.monotonic() > limit:
                raise
            await asyncio.sleep(TICK_S)
        else:
            return


async def send_all(producer: Producer, soak: Soak, rate: int) -> None:
    """At an even rate; the sends of one tick are under way together."""

    async def send(number: int) -> None:
        try:
            await producer.send(Message(TOPIC, b"%016d" % number + BODY[16:], keys=f"k-{number}"))
        except PyroMQError as error:
            soak.failed_sends.append(f"{type(error).__name__}: {error}")
        else:
            soak.table[number] |= ACKNOWLEDGED

    began, sent = time.monotonic(), 0
    async with asyncio.TaskGroup() as tasks:
        while sent < len(soak.table):
            due = min(len(soak.table), int((time.monotonic() - began) * rate))
            for number in range(sent, due):
                tasks.create_task(send(number))
            sent = due
            await asyncio.sleep(TICK_S)


async def sample_memory(soak: Soak, broker_pid: int, every_s: float) -> None:
    began = time.monotonic()
    while True:
        for who, pid in (("client", os.getpid()), ("broker", broker_pid)):
            text = Path(f"/proc/{pid}/status").read_text("utf-8")  # noqa: ASYNC240  not a file on a disk
            soak.memories[who].append(memory(time.monotonic() - began, text))
        await asyncio.sleep(every_s)


async def run(name_server: str, broker_pid: int, seconds: float, rate: int) -> Soak:
    soak = Soak(bytearray([NOT_SENT]) * int(seconds * rate))
    consumer = PushConsumer(name_server, group=GROUP, consume_from=ConsumeFrom.FIRST, retry_delay=1)

    @consumer.on(TOPIC)
    async def handle(message: ReceivedMessage) -> None:
        if message.tags == "first":
            return
        number = int(message.body[:16])
        if number % FAILS_AT_FIRST == 0 and message.delivery_attempt == 1:
            raise HandlerFails(f"message {number} is to come again")
        soak.handled(number)

    async with Producer(name_server, group="soak-writers") as producer:
        await first_send(producer)
        async with consumer:
            sampling = asyncio.create_task(sample_memory(soak, broker_pid, seconds / SAMPLES))
            await send_all(producer, soak, rate)
            sampling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sampling
            await stragglers(soak)
    return soak


def not_on_purpose(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], HandlerFails))


async def stragglers(soak: Soak) -> None:
    """Messages that failed at first come a while later."""
    for _ in range(int(STRAGGLERS_S / TICK_S)):
        if not soak.lost:
            return
        await asyncio.sleep(TICK_S)


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("client_soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30, help="(30)")
    parser.add_argument("--rate", type=int, default=1000, help="messages a second (1000)")
    parser.add_argument("--growth", type=float, default=8, help="MiB that a process may grow by (8)")
    return parser.parse_args(arguments)


def publish(soak: Soak, chosen: argparse.Namespace, found: Sequence[str]) -> Path:
    rows: list[tuple[str, ...]] = []
    for who, samples in soak.memories.items():
        first, last = samples[len(samples) // 4], samples[-1]
        sizes = (
            f"{first.anonymous:.1f}",
            f"{last.anonymous:.1f}",
            f"{growth_mib(samples):+.2f}",
            f"{last.resident:.0f}",
        )
        rows.append((who, *sizes))
    columns = ("process", "anonymous MiB, warmed up", "at the end", "growth fitted", "resident")
    show(f"{chosen.minutes:g} minutes at {chosen.rate:,} messages/s", rows, columns)
    counts = {"acknowledged": soak.count(ACKNOWLEDGED), "handled": soak.count(HANDLED), "lost": soak.lost}
    counts["handled_again"] = soak.handled_again
    print("  ".join(f"{name} {value:,}" for name, value in counts.items()))
    facts = {"setting": vars(chosen), **counts, "complaints": list(found)}
    memories = {who: [asdict(one) for one in samples] for who, samples in soak.memories.items()}
    RESULTS.mkdir(parents=True, exist_ok=True)
    file = RESULTS / f"client_soak-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    file.write_text(json.dumps({**facts, "memory": memories}, indent=1) + "\n", "utf-8")
    return file


def main(arguments: list[str] | None = None) -> int:
    chosen = options(arguments)
    logging.getLogger("pyromq.client").addFilter(not_on_purpose)
    with work_directory() as directory, broker(directory) as (name_server, pid):
        soak = asyncio.run(run(name_server, pid, chosen.minutes * 60, chosen.rate))
    found = complaints(soak, chosen.growth)
    file = publish(soak, chosen, found)
    for complaint in found:
        print(f"FAILED: {complaint}")
    print(f"everything is in {file}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
