"""`pyromq bench`: throughput and latency of a cluster.

The load uses the public client, so the figures are those of a Python program. RocketMQ's benchmark calls the messages
per second TPS and the latency of a send RT. The exit code is 1 if no message was sent or received, or if an
acknowledged message did not arrive; 130 after Ctrl-C, with the figures so far.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from pyromq.admin.admin import Admin
from pyromq.cli import output
from pyromq.cli.connecting import AsJson, NameServers, require
from pyromq.cli.messages.bench_load import MARK, Load, Receiving, Sending, Span, monotonic
from pyromq.cli.output import duration, number, plural
from pyromq.cli.reaching import DEFAULT_NAME_SERVER, connection
from pyromq.cli.running import INTERRUPTED, Interrupted, beside, run_interruptible
from pyromq.client.group.starting_point import ConsumeFrom
from pyromq.client.message import Message
from pyromq.client.producer import Producer
from pyromq.client.push_consumer import PushConsumer
from pyromq.errors import ConfigError, PyroMQError
from pyromq.metrics import Histogram
from pyromq.testing import broker

USUAL_SECONDS = 10.0
QUEUES = 8
#: Messages per call of the handler.
HANDLED_AT_ONCE = 1024
#: Stop waiting after this long without a message.
IDLE_SECONDS = 5.0
ROWS = ("messages", "a second", "MiB/s", "mean", "p50", "p90", "p99", "p99.9", "max")
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}


class Mode(StrEnum):
    SEND = "send"
    CONSUME = "consume"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Latency:
    """In milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float
    p99_9: float
    max: float


@dataclass(frozen=True, slots=True)
class Flow:
    """One direction."""

    messages: int
    seconds: float
    per_second: float
    mib_per_second: float
    latency_ms: Latency


@dataclass(frozen=True, slots=True)
class Figures:
    topic: str
    size: int
    concurrency: int
    batch: int
    send: Flow | None
    receive: Flow | None
    #: Requests that failed, by the name of the error.
    errors: dict[str, int]
    #: Acknowledged messages that did not arrive, and deliveries of messages that had arrived already.
    missing: int
    twice: int
    interrupted: bool


class Bench:
    """One run. Its figures can be read at any time."""

    def __init__(self, load: Load, mode: Mode, auto_batch: bool) -> None:
        self.load = load
        self.mode = mode
        self.auto_batch = auto_batch
        self.sending: Sending | None = None
        self.receiving: Receiving | None = None
        self.has_waited = False

    async def run(self, name_servers: str, connected: dict[str, Any], group: str) -> None:
        gc.freeze()
        async with contextlib.AsyncExitStack() as open_clients:
            if self.mode is not Mode.SEND:
                await open_clients.enter_async_context(self._consumer(name_servers, connected, group))
            if self.mode is Mode.CONSUME:
                await self._receive()
                return
            producer = Producer(name_servers, **connected, group="pyromq-bench", auto_batch=self.auto_batch)
            await open_clients.enter_async_context(producer)
            # The first message finds the way, and is not counted.
            await producer.send(Message(self.load.topic, b"the first one"))
            self.sending = Sending(producer, self.load)
            await self.sending.run()
            await self._receive_all()

    def _consumer(self, name_servers: str, connected: dict[str, Any], group: str) -> PushConsumer:
        self.receiving = Receiving(is_own_load=self.mode is Mode.BOTH)
        start = ConsumeFrom.FIRST
        consumer = PushConsumer(name_servers, **connected, group=group, concurrency=QUEUES, consume_from=start)
        consumer.subscribe(self.load.topic, self.receiving, batch=HANDLED_AT_ONCE)
        return consumer

    async def _receive(self) -> None:
        assert self.receiving is not None
        receiving, most = self.receiving, self.load.messages
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.load.seconds):
                await receiving.until(lambda: most is not None and receiving.received.count >= most, IDLE_SECONDS)

    async def _receive_all(self) -> None:
        """Return whether acknowledged messages have not arrived yet."""
        if self.sending is not None and self.receiving is not None:
            sent, received = self.sending.acknowledged, self.receiving.received
            await self.receiving.until(lambda: received.count >= sent.count, IDLE_SECONDS)
            self.has_waited = True

    # --- what it found -----------------------------------------------------------------------------------------------

    def figures(self, *, interrupted: bool) -> Figures:
        load, sending, receiving = self.load, self.sending, self.receiving
        sent = sending.acknowledged.count if sending else 0
        received = receiving.received.count if receiving else 0
        return Figures(
            topic=load.topic,
            size=load.size,
            concurrency=load.concurrency,
            batch=load.batch,
            send=_flow(sending.acknowledged, sent * load.size, sending.latencies) if sending else None,
            receive=_flow(receiving.received, receiving.bytes, receiving.latencies) if receiving else None,
            errors=dict(sending.errors) if sending else {},
            missing=max(0, sent - received) if self.has_waited else 0,
            twice=receiving.twice if receiving else 0,
            interrupted=interrupted,
        )

    def progress(self) -> tuple[int, float]:
        """Return the number of finished messages and their share of the total."""
        part = self.sending.acknowledged if self.sending else self.receiving.received if self.receiving else Span()
        by_time = part.seconds / self.load.seconds if self.load.seconds else 0.0
        by_count = part.count / self.load.messages if self.load.messages else 0.0
        return part.count, min(1.0, max(by_time, by_count))


def _flow(span: Span, size: int, latencies: Histogram) -> Flow:
    mean = latencies.total / latencies.count if latencies.count else 0.0
    shares = [latencies.quantile(share) for share in PERCENTILES.values()]
    latency = Latency(*(round(one * 1000, 3) for one in (mean, *shares, latencies.largest)))
    mib = size / span.seconds / (1 << 20) if span.count else 0.0
    return Flow(span.count, round(span.seconds, 3), round(span.per_second, 1), round(mib, 2), latency)


# --- the command -----------------------------------------------------------------------------------------------------


def bench(
    mode: Annotated[Mode, typer.Option("--mode", help="Measure sends, consumption or both.")] = Mode.BOTH,
    messages: Annotated[
        int | None, typer.Option("--messages", min=1, help="Stop after this many messages.", show_default=False)
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", min=0.1, help=f"Stop after this many seconds; {USUAL_SECONDS:g} unless --messages is given."
        ),
    ] = None,
    size: Annotated[int, typer.Option("--size", min=MARK.size, max=4 << 20, help="Bytes of a body.")] = 1024,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, max=65_536, help="Concurrent sends.")] = 256,
    batch: Annotated[int, typer.Option("--batch", min=1, max=4096, help="Messages in one request.")] = 1,
    auto_batch: Annotated[bool, typer.Option("--auto-batch", help="Let the producer batch single sends.")] = False,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.1, help="Messages per second. Default: no limit.")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Use this topic. Default: a temporary one.")] = None,
    embedded: Annotated[
        bool,
        typer.Option("--embedded", help="Start a broker in another process for the measurement."),
    ] = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
    as_json: AsJson = False,
) -> None:
    """Measure a cluster: messages per second, and latency from send to acknowledgement and to handler.

    Works with PyroMQ and with Apache RocketMQ. --concurrency 1 measures the latency of single sends; --rate the latency
    below saturation. Ctrl-C ends it with the figures so far.
    """
    if mode is Mode.CONSUME and (topic is None or embedded):
        raise ConfigError("there is nothing to consume: give a --topic that has messages", "topic")
    if seconds is None and messages is None:
        seconds = USUAL_SECONDS
    run = f"pyromq-bench-{secrets.token_hex(3)}"
    load = Load(
        topic=topic or run,
        messages=messages,
        seconds=seconds,
        size=size,
        concurrency=concurrency,
        batch=batch,
        rate=rate,
    )
    work = Bench(load, mode, auto_batch)
    interrupted = False
    try:
        run_interruptible(lambda: _run(work, None if embedded else require(name_servers), run, keep_topic=bool(topic)))
    except Interrupted:
        interrupted = True
    figures = work.figures(interrupted=interrupted)
    output.print_json(figures) if as_json else _show(figures)
    _judge(figures)


async def _run(work: Bench, name_servers: str | None, run: str, *, keep_topic: bool) -> None:
    connected: dict[str, Any] = {} if name_servers is None else {**connection()}
    async with (
        _cluster(name_servers) as addresses,
        Admin(addresses, **connected) as admin,
        _made_for(admin, work, run, keep_topic=keep_topic),
        beside(_show_progress(work)),
    ):
        await work.run(addresses, connected, run)


@contextlib.asynccontextmanager
async def _cluster(name_servers: str | None) -> AsyncIterator[str]:
    if name_servers is not None:
        yield name_servers
        return
    async with broker(process=True) as embedded:
        yield embedded.name_servers


@contextlib.asynccontextmanager
async def _made_for(admin: Admin, work: Bench, group: str, *, keep_topic: bool) -> AsyncIterator[None]:
    """A topic and a group that are there for this run only."""
    made: list[tuple[Callable[[str], Awaitable[object]], str]] = []
    try:
        if not keep_topic:
            await admin.topics.create(work.load.topic, queues=QUEUES)
            made.append((admin.topics.delete, work.load.topic))
        if work.mode is not Mode.SEND:
            await admin.groups.create(group)
            made.append((admin.groups.delete, group))
        yield
    finally:
        for delete, name in reversed(made):
            with contextlib.suppress(PyroMQError):  # the figures matter more than the cleanup
                await delete(name)


# --- output ----------------------------------------------------------------------------------------------------------


async def _show_progress(work: Bench) -> None:
    console = output.stderr()
    if not console.is_terminal:
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[speed]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task(work.mode.value, total=1.0, speed="")
        before, at = 0, monotonic()
        while True:
            await asyncio.sleep(0.25)
            done, share = work.progress()
            now = monotonic()
            bar.update(task, completed=share, speed=f"{number(done)}  {output.rate((done - before) / (now - at))}/s")
            bar.refresh()
            before, at = done, now


def _show(figures: Figures) -> None:
    console = output.stdout()
    flows = {"send": figures.send, "receive": figures.receive}
    shown = {name: _column(flow) for name, flow in flows.items() if flow is not None}
    table = output.listing("", *shown, numbers=tuple(shown))
    for row in zip(ROWS, *shown.values(), strict=True):
        table.add_row(*row)
    console.print(table)
    if figures.errors:
        kinds = ", ".join(f"{number(count)} × {kind}" for kind, count in figures.errors.items())
        console.print(f"[red]failed requests:[/] {kinds}")
    if figures.twice:
        console.print(f"{plural(figures.twice, 'message')} came twice")
    console.print(
        f"[dim]{figures.size} bytes each, {plural(figures.concurrency, 'send')} under way at the same time[/]"
    )
    console.print("[dim]times: send until it is acknowledged, receive from send to handler[/]")


def _column(flow: Flow) -> list[str]:
    latency = flow.latency_ms
    times = (latency.mean, latency.p50, latency.p90, latency.p99, latency.p99_9, latency.max)
    return [
        number(flow.messages), number(round(flow.per_second)), f"{flow.mib_per_second:.1f}",
        *(duration(each / 1000) for each in times),
    ]  # fmt: skip


def _judge(figures: Figures) -> None:
    if figures.interrupted:
        raise typer.Exit(INTERRUPTED)
    if figures.missing:
        output.fail(f"{plural(figures.missing, 'message')} that the broker had acknowledged did not arrive")
    if not any(flow.messages for flow in (figures.send, figures.receive) if flow is not None):
        output.fail("no message went through; `pyromq doctor` and the broker's log may tell why")
