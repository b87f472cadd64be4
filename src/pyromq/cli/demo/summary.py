"""Summary of the demo: the measured figures with and without a queue, and next steps."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pyromq.cli import output
from pyromq.cli.output import number, plural
from pyromq.demo.outcome import Backlog, Compared, LaneFigures, Messages, Outcome

IN_LINE, QUEUED = "in line", "with a queue"


def summary(outcome: Outcome, program: str) -> RenderableType:
    """`program` is how a shell finds this one."""
    title = Text.assemble(("PyroMQ", "bold orange1"), ("  the sign-up story, as it was measured just now", "dim"))
    whole = Group(title, _table(outcome), verdict(outcome.messages), Text(), next_steps(program))
    return Padding(whole, (0, 2), expand=False)


def _table(outcome: Outcome) -> Table:
    sign_up, burst, outage, messages = outcome.sign_up, outcome.burst, outcome.outage, outcome.messages
    table = output.listing("", IN_LINE, QUEUED, "", numbers=(IN_LINE, QUEUED))
    table.columns[1].style, table.columns[2].style = "red", "bold green"
    more = sign_up.with_queue.per_second / max(sign_up.in_line.per_second, 0.1)
    table.add_row("sign-up, p50 / p99", *_both(sign_up, _latencies), f"{outcome.times_sooner:.1f} times sooner")
    table.add_row("  a second", *_both(sign_up, _per_second), f"{more:.1f} times as many")
    table.add_row("  its message", "", f"{messages.send_p50_ms:.1f} / {messages.send_p99_ms:.1f} ms", "acknowledged")
    table.add_row("burst, p50 / p99", *_both(burst.lanes, _latencies))
    table.add_row("  visitors who left", *_both(burst.lanes, _left))
    table.add_row("  longest backlog", "", *_waited(burst.backlog))
    table.add_row(f"{outage.backlog.service} down: failed", *_both(outage.lanes, _failed))
    table.add_row("  its backlog", "", *_waited(outage.backlog))
    return table


def _both(lanes: Compared, show: Callable[[LaneFigures], str]) -> tuple[str, str]:
    return show(lanes.in_line), show(lanes.with_queue)


def _latencies(lane: LaneFigures) -> str:
    return f"{lane.p50_ms:,.0f} / {lane.p99_ms:,.0f} ms"


def _per_second(lane: LaneFigures) -> str:
    return f"{lane.per_second:.0f}"


def _left(lane: LaneFigures) -> str:
    return f"{number(lane.gave_up)} of {number(lane.came)}"


def _failed(lane: LaneFigures) -> str:
    return f"{number(lane.failed)} of {number(lane.came)}"


def _waited(backlog: Backlog) -> tuple[str, str]:
    return number(backlog.peak), f"gone after {backlog.drained_s:.1f} s"


def verdict(messages: Messages) -> Text:
    """Is anything missing?"""
    amount = plural(messages.acknowledged, "message")
    if messages.lost:
        return Text.assemble(("✗ ", "bold red"), f"{amount} sent; ", (lost(messages), "bold red"))
    again = f" ({plural(messages.twice, 'time')} twice)" if messages.twice else " once"
    how = f"{amount} sent, each handled{again} by each service: "
    return Text.assemble(("✓ ", "bold green"), how, ("nothing lost", "bold green"))


def lost(messages: Messages) -> str:
    missing = {name: account.lost for name, account in messages.services.items() if account.lost}
    return "lost: " + ", ".join(f"{number(count)} at {name}" for name, count in missing.items())


def next_steps(program: str) -> RenderableType:
    table = output.facts()
    for command, what in (
        ("up", "your own broker"),
        ('send hello "my first message"', "in another terminal"),
        ("consume hello", "there it is"),
        ("bench --embedded", "how fast is it here?"),
    ):
        table.add_row(Text(f"{program} {command}", "bold"), Text(what, "dim"))
    return Group(Text("Try next", "bold"), table)
