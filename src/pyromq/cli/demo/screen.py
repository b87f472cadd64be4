"""One moment of the demo on a terminal of 80 by 24 characters or more. Every figure comes from a frame."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pyromq.cli.demo.charts import columns, parts
from pyromq.cli.output import duration, number
from pyromq.demo.frame import Frame, LaneView, ServiceView

ACTS = 4
#: Size of the layout; charts get taller with more lines.
LEAST_COLUMNS, LEAST_LINES = 80, 24
IN_LINE, QUEUED = "red", "green"
COLOURS = {
    "register": "bright_black", "SMS": "cyan", "push": "blue", "coupon": "magenta", "gift": "yellow",
    "send": "bright_green",
}  # fmt: skip
#: Backlogs below this look small, because they are.
SMALL_BACKLOG = 40


def screen(frame: Frame, width: int, height: int) -> RenderableType:
    """All of it, for a terminal of this size."""
    spare = max(0, height - LEAST_LINES)
    taller = min(4, spare // 3) + (2 if frame.act == 1 else 0)
    blocks: list[RenderableType] = [_header(frame), Text(), *_lanes(frame, width, 2 + taller)]
    blocks.append(Text.assemble(("now  ", "dim"), (frame.now, "bold")))
    if frame.traffic:
        blocks += [Text(), *_services(frame, width - 4, 2 if spare >= 8 else 1), Text()]
    else:
        blocks += [Text(), *_way(frame), *_where_time_goes(frame, width - 4), *_services(frame, width - 4, 1)]
    blocks += _findings(frame.findings)
    return Padding(Group(*blocks), (0, 2))


def _header(frame: Frame) -> RenderableType:
    head = Table.grid(expand=True)
    head.add_column()
    head.add_column(justify="right")
    dots = " ".join("●" if act <= frame.act else "○" for act in range(1, ACTS + 1))
    clock = f"{int(frame.elapsed_s) // 60}:{int(frame.elapsed_s) % 60:02d}"
    head.add_row(
        Text.assemble(("PyroMQ", "bold orange1"), (f"  a real broker, found at {frame.name_servers}", "dim")),
        Text.assemble((dots, "orange1"), (f"  act {frame.act} of {ACTS}  {clock}", "dim")),
    )
    return Group(head, Text(frame.title, "bold"), Text(frame.told))


# --- the two ways to sign up -----------------------------------------------------------------------------------------


def _lanes(frame: Frame, width: int, chart_height: int) -> list[RenderableType]:
    shown = [(view, style) for view, style in ((frame.in_line, IN_LINE), (frame.queued, QUEUED)) if view]
    top = max((max(view.history, default=0.0) for view, _ in shown), default=0.0)
    inside = (width - 4) // max(len(shown), 1) - 4
    row = Table.grid(expand=True)
    for _ in shown:
        row.add_column(ratio=1)
    row.add_row(*(_lane(view, style, inside, top, chart_height) for view, style in shown))
    return [row]


def _lane(view: LaneView, style: str, width: int, top: float, chart_height: int) -> Panel:
    colour = style if view.is_live else "dim"
    figures = Text.assemble(
        ("p50 ", "dim"),
        (_time(view.p50_s), f"bold {colour}"),
        ("   p99 ", "dim"),
        (_time(view.p99_s), f"bold {colour}"),
    )
    speed = Text.assemble(
        (number(view.done), "bold"), (" signed up, ", "dim"), (f"{view.rate:.0f}", "bold"), (" a second", "dim")
    )
    return Panel(
        Group(figures, *columns(view.history, width, top, colour, chart_height), speed, _troubles(view)),
        title=Text(view.name if view.is_live else f"{view.name}, as it was", f"bold {colour}"),
        title_align="left",
        border_style=colour,
    )


def _troubles(view: LaneView) -> Text:
    shown = Text(no_wrap=True)
    for amount, what in ((view.waiting, "waiting"), (view.failed, "failed"), (view.gave_up, "left")):
        style = "bold red" if amount and what != "waiting" else "dim"
        shown.append(f"{number(amount)} {what}  ", style)
    return shown


def _time(seconds: float) -> str:
    return duration(seconds) if seconds else "-"


def _way(frame: Frame) -> list[RenderableType]:
    """Return the diagram of the services."""
    services = [Text(name, COLOURS[name]) for name in list(COLOURS)[1:5]]
    visitor, welcome, queue = ("visitor ──► ", "dim"), Text("welcome!", "bold"), ("queue", COLOURS["send"])
    if frame.queued is None:
        return [Text.assemble(visitor, Text(" ──► ").join([Text("register"), *services, welcome])), Text()]
    return [
        Text.assemble(visitor, "register ──► ", queue, " ──► ", welcome),
        Text.assemble(" " * 27, "└──► ", Text("  ").join(services), ("  each when it can", "dim")),
    ]


def _where_time_goes(frame: Frame, width: int) -> list[RenderableType]:
    """A bar for each way to sign up, on the same scale; what the parts are is written below the live one."""
    shown = [view for view in (frame.in_line, frame.queued) if view and view.steps]
    whole = max((sum(view.steps.values()) for view in shown), default=0.0)
    rows: list[RenderableType] = []
    for view in shown:
        values = [(name, seconds, COLOURS[name]) for name, seconds in view.steps.items()]
        bar, labels = parts(values, width - 14, whole)
        rows.append(Text.assemble((f"{view.name:<13} ", "dim"), bar))
        if view.is_live:
            rows.append(Text.assemble(" " * 14, labels))
    return rows


# --- behind the queue ------------------------------------------------------------------------------------------------


def _services(frame: Frame, width: int, chart_height: int) -> list[RenderableType]:
    """Over the same time: who came, and how many of their messages waited for each service."""
    chart = width - 36
    rows: list[RenderableType] = []
    if frame.traffic:
        label = Text.assemble(("  visitors  ", "dim"))
        rows.append(
            Text.assemble(
                label,
                columns(frame.traffic, chart, max(frame.traffic), "white")[0],
                f"  {frame.traffic[-1]:>5.0f} a second",
            )
        )
    top = max([SMALL_BACKLOG, *(one.peak for one in frame.services)])
    for one in frame.services:
        rows += _service(one, chart, top, chart_height if frame.traffic else 1)
    return rows


def _service(view: ServiceView, chart: int, top: int, chart_height: int) -> Sequence[Text]:
    sign = Text("● ", "green") if view.is_up else Text("■ ", "bold red")
    rows = columns(view.history, chart, top, COLOURS[view.name] if view.is_up else "red", chart_height)
    state = Text.assemble(
        (f"  {number(view.backlog):>5}", "bold"), (" waiting", "dim"),
        (f" {view.rate:>4.0f}/s" if view.is_up else " stopped", "dim" if view.is_up else "bold red"),
    )  # fmt: skip
    above = [Text.assemble(" " * 12, row) for row in rows[:-1]]
    return [*above, Text.assemble(sign, (f"{view.name:<10}", "" if view.is_up else "bold red"), rows[-1], state)]


def _findings(findings: Sequence[str]) -> list[Text]:
    return [Text.assemble((f"✓ act {act}  ", "green"), (line, "dim")) for act, line in enumerate(findings, 1)]
