"""What every worker does alike: read its task, do one kind of work, and say what came of it as one line of JSON.

A worker is a script of its own process, run by the Python that has the client it drives, so nothing here needs more
than the standard library; uvloop is used where it is installed, for every client on asyncio. The kinds of work:

    window    acknowledged sends with the client's own pipelining     {"count", "seconds", "cpu_seconds"}
    one       sends one at a time                                      {"count", "seconds", "cpu_seconds"}
    latency   sends at an even rate, and the wait of the handler       {"count", "lost", "p50_ms", "p99_ms"}
    fill      a number of messages sent as fast as it goes             {"count", "seconds"}
    backlog   that many consumed, with progress committed              {"count", "seconds", "cpu_seconds"}
    first     one message sent and received, once told to begin        {"count", "seconds"}
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import os
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

BODY_BYTES = 1024
STAMP = struct.Struct("<d")
#: A client that has sent nothing or found nothing for so long does not work.
STUCK_S = 90.0
#: How long after the last send a handler may still be waiting.
STRAGGLERS_S = 5.0
RETRY_S = 0.01


@dataclass(frozen=True)
class Task:
    """What the harness asks for. `options` are a contestant's own."""

    work: str
    address: str
    topic: str
    group: str = "bench"
    seconds: float = 5.0
    warm: float = 1.0
    count: int = 0
    rate: int = 500
    options: str = ""

    def as_arguments(self) -> list[str]:
        return [text for name, value in asdict(self).items() for text in (f"--{name}", str(value))]


def task_of(arguments: list[str]) -> Task:
    parser = argparse.ArgumentParser()
    for field in fields(Task):
        kind = {"float": float, "int": int}.get(str(field.type), str)
        parser.add_argument(f"--{field.name}", type=kind)
    return Task(**vars(parser.parse_args(arguments)))


Work = Callable[[Task], Any]


def run(works: Mapping[str, Work]) -> None:
    """The whole life of a worker."""
    task = task_of(sys.argv[1:])
    if task.work == "first":
        wait_for_the_word()
    began = time.perf_counter()
    result = works[task.work](task)
    if inspect.iscoroutine(result):
        result = run_loop(result)
    if task.work == "first":
        result = {"count": 1, "seconds": time.perf_counter() - began}
    print(json.dumps(result), flush=True)
    # Clients may have threads that wait for servers which are about to be ended; what was measured has been said.
    os._exit(0)


def wait_for_the_word() -> None:
    """Everything is imported: say so, and go on when the servers are being started."""
    print("ready", flush=True)
    sys.stdin.readline()


def run_loop(work: Any) -> Any:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


# --- Counting --------------------------------------------------------------------------------------------------------


class Span:
    """Counts what is acknowledged within a span of time, after a warm-up, and this process' time for it."""

    def __init__(self, task: Task) -> None:
        self.begin = time.perf_counter() + task.warm
        self.end = self.begin + task.seconds
        self.count = 0
        self._cpu_begin = self._cpu_end = 0.0

    def acknowledged(self, number: int = 1) -> bool:
        """Whether there is time for more."""
        now = time.perf_counter()
        if now < self.begin:
            return True
        if now >= self.end:
            self._cpu_end = self._cpu_end or time.process_time()
            return False
        if not self.count:
            self._cpu_begin = time.process_time()
        self.count += number
        return True

    def result(self) -> dict[str, float]:
        cpu = (self._cpu_end or time.process_time()) - self._cpu_begin
        return {"count": self.count, "seconds": self.end - self.begin, "cpu_seconds": cpu}


def body(number: int = 0) -> bytes:
    """1 KiB that differs from message to message at its beginning only; not worth compressing for anybody."""
    return b"%016d" % number + FILLER


FILLER = os.urandom(BODY_BYTES - 16)


# --- Async clients ---------------------------------------------------------------------------------------------------


async def many(send: Callable[[bytes], Awaitable[Any]], task: Task, window: int) -> dict[str, float]:
    """`window` tasks, each of which awaits its send before the next: as many are under way at any time."""
    span = Span(task)
    payload = body()

    async def sender() -> None:
        await send(payload)
        while span.acknowledged():
            await send(payload)

    await asyncio.gather(*(sender() for _ in range(window)))
    return span.result()


async def fill_many(send: Callable[[bytes], Awaitable[Any]], task: Task, window: int) -> dict[str, float]:
    began = time.perf_counter()
    numbers = iter(range(task.count))

    async def sender() -> None:
        for number in numbers:
            await send(body(number))

    await asyncio.gather(*(sender() for _ in range(window)))
    return {"count": task.count, "seconds": time.perf_counter() - began}


async def paced(send: Callable[[bytes], Awaitable[Any]], waits: Waits, task: Task) -> dict[str, float]:
    """Sends at an even rate, without waiting for acknowledgements, until every message was handled."""
    under_way = set()
    began = time.perf_counter()
    for number in range(total := int((task.warm + task.seconds) * task.rate)):
        await asyncio.sleep(max(0.0, began + number / task.rate - time.perf_counter()))
        sending = asyncio.ensure_future(send(stamped(number)))
        under_way.add(sending)
        sending.add_done_callback(under_way.discard)
    await asyncio.gather(*under_way)
    for _ in range(int(STRAGGLERS_S / RETRY_S)):
        if len(waits.seconds) >= total:
            break
        await asyncio.sleep(RETRY_S)
    return waits.result(total)


async def persist(attempt: Callable[[], Awaitable[Any]], timeout_s: float = 10.0) -> Any:
    """Until it works: servers are starting."""
    limit = time.perf_counter() + STUCK_S
    while True:
        try:
            async with asyncio.timeout(timeout_s):
                return await attempt()
        except Exception:  # whatever a client raises while nobody answers
            if time.perf_counter() > limit:
                raise
            await asyncio.sleep(RETRY_S)


# --- Latency ---------------------------------------------------------------------------------------------------------


def stamped(number: int) -> bytes:
    """A body that says when it was handed to the client."""
    return STAMP.pack(time.perf_counter()) + b"%08d" % number + FILLER


class Waits:
    """From the call of send until the handler has the message, all on one clock of one process."""

    def __init__(self, task: Task) -> None:
        self.seconds: list[float] = []
        self._skipped = int(task.warm * task.rate)

    def handled(self, received: bytes) -> None:
        self.seconds.append(time.perf_counter() - STAMP.unpack_from(received)[0])

    def result(self, total: int) -> dict[str, float]:
        counted = sorted(self.seconds[self._skipped :])
        if not counted:
            raise SystemExit("no message reached the handler")
        return {
            "count": len(counted),
            "lost": total - len(self.seconds),
            "p50_ms": counted[len(counted) // 2] * 1000,
            "p99_ms": counted[len(counted) * 99 // 100] * 1000,
        }


# --- Clients with threads of their own -------------------------------------------------------------------------------


def paced_blocking(send: Callable[[bytes], Any], waits: Waits, task: Task) -> dict[str, float]:
    began = time.perf_counter()
    for number in range(total := int((task.warm + task.seconds) * task.rate)):
        time.sleep(max(0.0, began + number / task.rate - time.perf_counter()))
        send(stamped(number))
    for _ in range(int(STRAGGLERS_S / RETRY_S)):
        if len(waits.seconds) >= total:
            break
        time.sleep(RETRY_S)
    return waits.result(total)


def persist_blocking(attempt: Callable[[], Any]) -> Any:
    limit = time.perf_counter() + STUCK_S
    while True:
        try:
            return attempt()
        except Exception:  # whatever a client raises while nobody answers
            if time.perf_counter() > limit:
                raise
            time.sleep(RETRY_S)


class Backlog:
    """From the first message until the progress behind the last one is committed."""

    def __init__(self, task: Task) -> None:
        self.left = task.count
        self._count = task.count
        self._began = self._cpu_begin = 0.0

    def handled(self, number: int = 1) -> bool:
        """Whether there are more to come."""
        if not self._began:
            self._began, self._cpu_begin = time.perf_counter(), time.process_time()
        self.left -= number
        return self.left > 0

    def committed(self) -> dict[str, float]:
        seconds, cpu = time.perf_counter() - self._began, time.process_time() - self._cpu_begin
        return {"count": self._count - self.left, "seconds": seconds, "cpu_seconds": cpu}
