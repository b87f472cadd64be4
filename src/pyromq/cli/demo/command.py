"""`pyromq demo`: the sign-up story, live. It needs nothing but this machine, and leaves nothing behind.

On a terminal it is a screen that moves, elsewhere a line for every second. `--json` keeps stdout for the result. The
exit code is 0 when every acknowledged message was handled by every service, 1 when one was lost, 130 after Ctrl-C.
"""

from __future__ import annotations

import contextlib
import logging
import random
import secrets
import sys
from collections.abc import AsyncIterator, Iterator
from logging.handlers import MemoryHandler
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from pyromq.cli import output
from pyromq.cli.connecting import AsJson
from pyromq.cli.demo.lines import say_lines
from pyromq.cli.demo.screen import LEAST_COLUMNS, LEAST_LINES, screen
from pyromq.cli.demo.summary import lost, summary
from pyromq.cli.reaching import connection
from pyromq.cli.running import INTERRUPTED, Interrupted, as_called, beside, run_interruptible
from pyromq.demo.outcome import Outcome
from pyromq.demo.script import FAST_SECONDS, LEAST_SECONDS, USUAL_SECONDS, script_for
from pyromq.demo.stage import Cluster, Stage, cluster_for
from pyromq.demo.story import Story
from pyromq.demo.traffic import Visitors

FRAMES_PER_SECOND = 10
#: The thread that draws must not keep visitors waiting: Python would let it for 5 ms at a time.
SWITCH_SECONDS = 0.0005
#: Warnings that are kept until the screen is free again.
KEPT_WARNINGS = 1000


def demo(
    fast: Annotated[bool, typer.Option("--fast", help=f"Short version, about {FAST_SECONDS:g} seconds.")] = False,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", min=LEAST_SECONDS, max=3600, help=f"Approximate length. Default: {USUAL_SECONDS:g}."),
    ] = None,
    name_servers: Annotated[
        str | None,
        typer.Option("--name-servers", "-n", metavar="HOST:PORT;…", help="Use this cluster. Default: start a broker."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the use of a queue in under a minute: a sign-up with and without one, a burst, an outage.

    Services, broker and messages are real, and every figure is measured live. Ctrl-C stops it at any time.
    """
    console = output.stderr() if as_json else output.stdout()
    length = seconds or (FAST_SECONDS if fast else USUAL_SECONDS)
    cluster = Cluster(name_servers, connection()) if name_servers else None
    try:
        outcome = run_interruptible(lambda: _perform(console, length, cluster))
    except Interrupted:
        output.stderr().print("Stopped. Nothing is left behind.")
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        output.print_json(outcome)
    else:
        console.print(summary(outcome, as_called()))
    if outcome.messages.lost:
        output.fail(f"messages that the broker had acknowledged were not handled; {lost(outcome.messages)}")


async def _perform(console: Console, seconds: float, given: Cluster | None) -> Outcome:
    run, rng = secrets.token_hex(3), random.Random()  # noqa: S311  it makes visitors come when they like
    script, topic = script_for(seconds), f"demo-signups-{run}"
    async with (
        cluster_for(given, topic) as cluster,
        Stage(cluster, topic, script.patience_s, rng).open() as stage,
    ):
        story = Story(stage, script, Visitors(run, rng))
        async with _showing(console, story):
            return await story.tell()


# --- showing ---------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _showing(console: Console, story: Story) -> AsyncIterator[None]:
    """A screen on a terminal that has room for it; else lines, where anybody reads them."""
    if _has_screen(console):
        with _on_screen(console, story):
            yield
    elif console.file is sys.stdout:
        async with beside(say_lines(console, story)):
            yield
    else:
        yield


def _has_screen(console: Console) -> bool:
    width, height = console.size
    return console.is_terminal and not console.is_dumb_terminal and width >= LEAST_COLUMNS and height >= LEAST_LINES


@contextlib.contextmanager
def _on_screen(console: Console, story: Story) -> Iterator[None]:
    """Draw in a background thread; show log lines afterwards."""
    was = sys.getswitchinterval()
    live = Live(
        get_renderable=lambda: screen(story.frame, *console.size),
        console=console,
        refresh_per_second=FRAMES_PER_SECOND,
        screen=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with _log_held_back():
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            with live:
                yield
        finally:
            sys.setswitchinterval(was)


@contextlib.contextmanager
def _log_held_back() -> Iterator[None]:
    root = logging.getLogger()
    was = root.handlers[:]
    held = [MemoryHandler(KEPT_WARNINGS, logging.CRITICAL + 1, target=handler) for handler in was]
    root.handlers[:] = held
    try:
        yield
    finally:
        root.handlers[:] = was
        for handler in held:
            handler.close()
