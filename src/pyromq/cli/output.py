"""Output of the command line: tables for people, JSON for scripts, one sentence for an error.

Results go to stdout, everything else (progress, warnings, errors) to stderr, so that a pipe gets results only. Colours
and bars appear on a terminal only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn, TextIO

import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from typer.core import TyperGroup

from pyromq.errors import PyroMQError


class FriendlyGroup(TyperGroup):
    """Says what went wrong in one sentence. A traceback is for mistakes of ours."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # `pyromq … | head`: the reader has what it wanted
            raise
        except (PyroMQError, OSError) as error:
            fail(sentence(error))


def fail(what: str, code: int = 1) -> NoReturn:
    """Say it on stderr and stop."""
    note(f"[bold red]error:[/] {escaped(what)}")
    raise typer.Exit(code)


def sentence(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def stdout() -> Console:
    return _console(sys.stdout)


def stderr() -> Console:
    return _console(sys.stderr)


def _console(stream: TextIO) -> Console:
    """As wide as the terminal; wide enough for whole lines where there is none."""
    console = Console(file=stream, highlight=False)
    if not console.is_terminal:
        console.width = 240
    return console


def visible(text: object) -> str:
    """On one line and without power over a terminal: names come from files, and files from anywhere."""
    return "".join(each if each.isprintable() and each != "\\" else _as_escape(each) for each in str(text))


def _as_escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name that is no text
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")


def escaped(text: object) -> str:
    """Visible, and no markup: square brackets in names and paths are nothing but that."""
    return visible(text).replace("[", r"\[")


def show_warnings() -> None:
    """Show warnings of the store on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine("%(levelname)s: %(message)s"))
    # Of a connection that broke the command says itself what it means.
    handler.addFilter(lambda record: not record.name.startswith("pyromq.net"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


class _OneLine(logging.Formatter):
    """Messages name topics and files as well."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return visible(super().formatMessage(record))


# --- for scripts -----------------------------------------------------------------------------------------------------


def print_json(value: object) -> None:
    sys.stdout.write(json.dumps(plain(value), indent=2) + "\n")


def print_json_line(value: object) -> None:
    """One of many that come one after the other: each on its line, at once."""
    sys.stdout.write(json.dumps(plain(value)) + "\n")
    sys.stdout.flush()


def plain(value: Any) -> Any:
    """Dataclasses, named tuples, paths and enums as JSON has them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


# --- for people ------------------------------------------------------------------------------------------------------


def facts() -> Table:
    """Two columns: what, and how much."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def listing(*columns: str, numbers: tuple[str, ...] = (), prose: str | None = None) -> Table:
    """Rows of the same kind; `numbers` line up on the right, and with `prose` only that column is broken into lines."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        keep = column in numbers or (prose is not None and column != prose)
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold", no_wrap=keep)
    return table


def size(amount: int) -> str:
    """1536 → 1.5 KiB."""
    value, unit = float(amount), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{amount} B" if unit == "B" else f"{value:.1f} {unit}"


def number(value: int) -> str:
    """1234567 → 1,234,567."""
    return f"{value:,}"


def plural(amount: int, one: str, many: str | None = None) -> str:
    return f"{amount:,} {one if amount == 1 else many or one + 's'}"


def moment(timestamp_ms: int | None) -> str:
    """Local time; a dash for none."""
    if not timestamp_ms:
        return "-"
    try:
        return f"{datetime.fromtimestamp(timestamp_ms / 1000).astimezone():%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"


def duration(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def ago(timestamp_ms: int | None, now_ms: int) -> str:
    """Return the age in the largest fitting unit; a dash for never."""
    if not timestamp_ms:
        return "-"
    seconds = max(now_ms - timestamp_ms, 0) // 1000
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} s ago"


def rate(per_second: float) -> str:
    """Messages in a second."""
    return "0" if per_second <= 0 else f"{per_second:,.1f}" if per_second < 100 else f"{per_second:,.0f}"


def note(text: str) -> None:
    """Print a remark on stderr: wrapped on a terminal, as one line elsewhere."""
    console = stderr()
    console.print(text, soft_wrap=not console.is_terminal)


def agree(will_do: str, *, yes: bool) -> None:
    """Ask for confirmation before an action. Without a terminal `yes` is required."""
    note(f"[bold]This will[/] {escaped(will_do)}")
    if yes:
        return
    if not sys.stdin.isatty():
        fail("nothing was done: there is no terminal to ask on, so say --yes if you mean it")
    try:
        agreed = typer.confirm("Go on?", err=True)
    except typer.Abort:  # Ctrl-C
        fail("nothing was done", 130)
    if not agreed:
        fail("nothing was done")


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Something moves on stderr while it is done. Nothing where there is no terminal."""
    console = stderr()
    if not console.is_terminal:
        yield
        return
    with console.status(escaped(what)):
        yield


@contextlib.contextmanager
def counting_bar(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on stderr that is moved by how many more are done. Nothing where there is no terminal."""
    console = stderr()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda more: bar.advance(task, more)


@contextlib.contextmanager
def progress_bar(what: str, *, gone_when_done: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr until the block ends; `(done, total)` in bytes moves it. Nothing where there is no terminal.

    `gone_when_done` hides the bar between two runs of a continuous job.
    """
    console = stderr()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(
            task, completed=done, total=total, visible=done < total or not gone_when_done
        )


def show_report(report: Any, as_json: bool) -> None:
    """As sentences; for scripts, everything that it has."""
    if as_json:
        print_json(report)
        return
    console = stdout()
    for sentence in report.sentences():
        console.print(escaped(sentence), soft_wrap=not console.is_terminal)
