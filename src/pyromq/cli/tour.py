"""`pyromq try`: what the store can do, shown on a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pyromq.cli import output
from pyromq.cli.output import duration, escaped, number, plural
from pyromq.cli.store import require_directory
from pyromq.clock import SystemClock
from pyromq.config import MIB, StoreConfig
from pyromq.model.message import LOCALHOST, AppendedAt, Draft
from pyromq.records.message_id import encode_message_id
from pyromq.records.properties import encode_properties
from pyromq.store.inspect import detect
from pyromq.store.message_store import MessageStore, decode

TOPIC = "sign-ups"
QUEUES = 4
MESSAGES = 5000
FLUSH_EVERY = 500
#: Seconds that only grow.
monotonic = SystemClock().monotonic
BODY = b'{"user": "someone@example.org", "plan": "free"}'.ljust(512)


def tour(
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where the store is made.")] = Path("pyromq-tour"),
) -> None:
    """A short tour: append a few thousand messages, read them back, see how fast it was.

    Run it again and it goes on with the same store.
    """
    require_directory(directory)
    console = output.stdout()
    is_new = not (directory / "commitlog").exists()
    config = StoreConfig(root=directory, segment_bytes=64 * MIB) if is_new else detect(directory)
    with MessageStore(config) as store:
        _show_start(console, store, is_new)
        started_ms = store.clock.now_ms()
        receipts = _append(console, store)
        _read_back(console, store, receipts, started_ms)
    console.print(f"\nClosed cleanly. Look inside:  [bold]pyromq store inspect {escaped(directory)}[/]")
    console.print(f"Check every byte:             [bold]pyromq store verify {escaped(directory)}[/]")
    console.print("Run this again, and it goes on where it stopped.")


def _show_start(console: Console, store: MessageStore, is_new: bool) -> None:
    report = store.report
    if is_new:
        console.print(f"A new store in [bold]{escaped(store.config.root)}[/]")
        return
    state = "it was closed cleanly" if report.clean else "it was not closed, and was recovered"
    console.print(
        f"The store in [bold]{escaped(store.config.root)}[/] opened in {duration(report.seconds)}: {state}, "
        f"{plural(report.records_scanned, 'record')} had to be checked"
    )


def _append(console: Console, store: MessageStore) -> list[AppendedAt]:
    """One message at a time, as a broker with a single slow client would."""
    receipts: list[AppendedAt] = []
    appends: list[float] = []
    flushes: list[float] = []
    run = f"{store.clock.now_ms():x}"
    for count in range(MESSAGES):
        draft = _draft(run, count, store.clock.now_ms())
        started = monotonic()
        receipts += store.append([draft])
        appends.append(monotonic() - started)
        if count % FLUSH_EVERY == FLUSH_EVERY - 1:
            started = monotonic()
            store.flush()
            flushes.append(monotonic() - started)
    started = monotonic()
    store.dispatch()
    dispatched = monotonic() - started
    console.print(f"\n[bold]Appended {number(MESSAGES)} messages of {len(BODY)} bytes, one by one[/]")
    table = output.facts()
    table.add_row("appends", f"{number(int(MESSAGES / sum(appends)))} per second")
    table.add_row("append, p50 / p99", f"{duration(_share(appends, 0.5))} / {duration(_share(appends, 0.99))}")
    table.add_row("flush to disk, p50 / max", f"{duration(_share(flushes, 0.5))} / {duration(max(flushes))}")
    table.add_row("queues and index", f"written in {duration(dispatched)}")
    console.print(table)
    return receipts


def _draft(run: str, count: int, now_ms: int) -> Draft:
    properties = encode_properties(
        {"TAGS": "free" if count % 3 else "paid", "KEYS": f"user-{run}-{count}", "UNIQ_KEY": f"{run}{count:08X}"}
    )
    return Draft(TOPIC.encode(), count % QUEUES, BODY, properties, born_timestamp_ms=now_ms)


def _share(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


def _read_back(console: Console, store: MessageStore, receipts: list[AppendedAt], started_ms: int) -> None:
    middle = receipts[MESSAGES // 2]
    wanted = decode(store.message_at(middle.position))
    console.print("\n[bold]Read back[/]")
    table = output.facts()
    for queue in range(QUEUES):
        first, end = store.min_offset(TOPIC, queue), store.max_offset(TOPIC, queue)
        table.add_row(f"queue {queue}", f"offsets {number(first)} to {number(end - 1)}, {_drain(store, queue)}")
    started = monotonic()
    found = store.query(TOPIC, wanted.keys[0])
    table.add_row("by key", _found(len(found), f"with key {wanted.keys[0]}", started))
    started = monotonic()
    message_id = encode_message_id(LOCALHOST, middle.position)
    same = bytes(store.message_by_id(message_id)) == bytes(found[0]) if found else False
    table.add_row("by id", _found(int(same), f"with id {message_id}", started))
    started = monotonic()
    offset = store.offset_at(TOPIC, 0, started_ms)
    table.add_row("by time", _found(store.max_offset(TOPIC, 0) - offset, "in queue 0 since this run began", started))
    console.print(table)


def _drain(store: MessageStore, queue: int) -> str:
    offset, count, started = store.min_offset(TOPIC, queue), 0, monotonic()
    while offset < store.max_offset(TOPIC, queue):
        result = store.read(TOPIC, queue, offset, max_messages=256, max_bytes=1 << 20)
        offset, count = result.next_offset, count + len(result.records)
    return f"{number(count)} read in {duration(monotonic() - started)}"


def _found(count: int, where: str, started: float) -> str:
    return f"{plural(count, 'message')} {where}, {duration(monotonic() - started)}"
