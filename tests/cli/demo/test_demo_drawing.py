"""What the demo draws, for any figures: it fits the terminal, keeps its scale, and says what the frame says."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType

from cli.support.outcomes import outcome
from pyromq.cli.demo.charts import columns, parts, resampled
from pyromq.cli.demo.lines import line
from pyromq.cli.demo.screen import screen
from pyromq.cli.demo.summary import summary
from pyromq.demo.frame import Frame, LaneView, ServiceView
from pyromq.demo.services import KINDS
from pyromq.demo.story import TITLES

STEPS = {"register": 0.05, **{kind.name: kind.seconds for kind in KINDS}}
COUNTS = st.integers(0, 99_999)
SECONDS = st.floats(0, 100)


def drawn(what: RenderableType, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return [row.rstrip() for row in console.file.getvalue().splitlines()]


@st.composite
def lanes(draw: st.DrawFn, name: str, steps: dict[str, float], *, is_live: bool = True) -> LaneView:
    return LaneView(
        name=name, done=draw(COUNTS), rate=draw(st.floats(0, 9_999)), p50_s=draw(SECONDS), p99_s=draw(SECONDS),
        waiting=draw(st.integers(0, 9_999)), failed=draw(st.integers(0, 9_999)), gave_up=draw(st.integers(0, 9_999)),
        history=tuple(draw(st.lists(SECONDS, max_size=120))), steps=steps, is_live=is_live,
    )  # fmt: skip


@st.composite
def services(draw: st.DrawFn, name: str) -> ServiceView:
    history = draw(st.lists(st.integers(0, 9_999), max_size=120))
    return ServiceView(
        name, draw(st.booleans()), history[-1] if history else 0, max(history, default=0), draw(COUNTS),
        draw(st.floats(0, 999)), tuple(history),
    )  # fmt: skip


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    act = draw(st.integers(1, 4))
    return Frame(
        act=act, title=TITLES[act - 1], told="A sentence of about this length. " * 4, now="now",
        name_servers="127.0.0.1:9876",
        elapsed_s=draw(st.floats(0, 3600)), in_line=draw(lanes("in line", STEPS, is_live=act != 2)),
        queued=None if act == 1 else draw(lanes("with a queue", {"register": 0.05, "send": 0.001})),
        services=() if act == 1 else tuple(draw(services(kind.name)) for kind in KINDS),
        traffic=tuple(draw(st.lists(st.sampled_from([20.0, 200.0]), min_size=1, max_size=120))) if act > 2 else (),
        findings=("in line  200 ms", "with a queue  50 ms", "burst")[: act - 1],
    )  # fmt: skip


# --- the screen ------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(frames(), st.sampled_from([(80, 24), (100, 30), (120, 40), (200, 60)]))
def test_every_moment_fits_the_terminal(frame: Frame, size: tuple[int, int]) -> None:
    rows = drawn(screen(frame, *size), size[0])
    assert len(rows) <= size[1]
    assert max(map(cell_len, rows)) <= size[0]
    assert f"act {frame.act} of 4" in rows[0]
    for view in frame.services:
        assert any(view.name in row and f"{view.backlog:,} waiting" in row for row in rows)


def test_trouble_and_a_stopped_service_are_seen() -> None:
    lane = LaneView("in line", done=3, failed=7, gave_up=2, waiting=1)
    down = ServiceView("coupon", is_up=False, backlog=42, peak=42, handled=9, rate=0.0, history=(1, 20, 42))
    text = "\n".join(
        drawn(screen(Frame(4, "t", "told", "now", 1.0, in_line=lane, services=(down,), traffic=(20.0,)), 80, 24))
    )
    assert "7 failed" in text
    assert "2 left" in text
    assert "42 waiting stopped" in text


# --- charts ----------------------------------------------------------------------------------------------------------


def test_a_chart_has_the_shape_of_its_values() -> None:
    assert columns([0, 1, 4, 8], 6, 8, "red")[0].plain == " ▁▄█  "
    upper, lower = columns([2, 8, 16], 3, 16, "red", height=2)
    assert (upper.plain, lower.plain) == ("  █", "▂██")


def test_what_is_there_at_all_is_seen() -> None:
    assert columns([0.001], 1, 1000, "red")[0].plain == "▁"


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.integers(1, 80))
def test_fewer_columns_keep_the_peaks_and_their_order(values: list[float], width: int) -> None:
    shown = resampled(values, width)
    assert len(shown) == min(width, len(values))
    assert max(shown) == max(values)
    assert shown[-1] >= values[-1]


def test_parts_share_the_width_and_say_what_fits() -> None:
    bar, labels = parts([("register", 0.05, "white"), ("SMS", 0.045, "cyan"), ("x", 0.005, "red")], 40, 0.1)
    assert bar.plain == "█" * 40
    assert labels.plain.split() == ["register", "50", "SMS", "45", "x"]
    assert len(labels.plain) <= 40


def test_a_short_bar_has_room_for_its_last_name() -> None:
    bar, labels = parts([("register", 0.05, "white"), ("send", 0.0006, "green")], 60, 0.2)
    assert len(bar.plain) == 16
    assert labels.plain.rstrip().endswith("send 0.6")


# --- lines and the end -----------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(frames())
def test_a_line_says_what_the_screen_shows(frame: Frame) -> None:
    text = line(frame)
    assert "\n" not in text
    for view in frame.services:
        assert f"{view.name} {view.backlog:,}" in text


def test_the_summary_fits_and_says_that_nothing_is_lost() -> None:
    rows = drawn(summary(outcome(), "pyromq"))
    assert len(rows) <= 24
    assert any("burst, p50 / p99" in row and "1,046 / 1,996 ms" in row for row in rows)
    assert any("visitors who left" in row and "537 of 1,004" in row and "0 of 640" in row for row in rows)
    assert any("205 / 232 ms" in row and "51 / 59 ms" in row and "4.0 times sooner" in row for row in rows)
    assert any("1,800 messages sent, each handled once by each service: nothing lost" in row for row in rows)


@pytest.mark.parametrize(("found", "said"), [({"lost": 3}, "lost: 3 at SMS"), ({"twice": 2}, "(2 times twice)")])
def test_the_summary_says_what_was_lost_or_came_twice(found: dict[str, int], said: str) -> None:
    assert said in "\n".join(drawn(summary(outcome(**found), "pyromq")))
