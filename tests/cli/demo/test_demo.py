"""`pyromq demo` as a person runs it: on a terminal, in a pipe, for a script, with Ctrl-C in the middle."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.support.outcomes import outcome
from cli.support.programs import Program, name_server_of, run, up
from cli.support.terminals import CTRL_C, Terminal
from pyromq.admin.admin import Admin
from pyromq.cli.app import app
from pyromq.cli.demo import command
from pyromq.demo.outcome import Outcome
from pyromq.demo.script import LEAST_SECONDS
from pyromq.demo.services import KINDS, REGISTRATION_SECONDS, SPREAD

SHORT = ("demo", "--seconds", str(LEAST_SECONDS))
SHOW_SCREEN, HIDE_SCREEN, SHOW_CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
#: What a visitor of the old sign-up waits for at the very least.
IN_LINE_MS = 1000 * (1 - SPREAD) * (REGISTRATION_SECONDS + sum(kind.seconds for kind in KINDS))


class Told:
    """A short performance, with everything it leaves."""

    def __init__(self, home: Path) -> None:
        self.temporary = home / "temporary"
        self.temporary.mkdir()
        self.done = run(*SHORT, "--json", cwd=home, TMPDIR=str(self.temporary))
        self.result: dict[str, Any] = json.loads(self.done.out)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return Told(tmp_path_factory.mktemp("demo"))


# --- what it measures ------------------------------------------------------------------------------------------------


def test_it_ends_well_and_says_nothing_but_the_result(told: Told) -> None:
    assert (told.done.code, told.done.err) == (0, "")
    assert list(told.temporary.iterdir()) == []


def test_in_line_a_visitor_waits_for_every_service_and_with_a_queue_for_none(told: Told) -> None:
    in_line, queued = told.result["sign_up"]["in_line"], told.result["sign_up"]["with_queue"]
    assert in_line["p50_ms"] >= IN_LINE_MS
    assert REGISTRATION_SECONDS * (1 - SPREAD) * 1000 <= queued["p50_ms"] < in_line["p50_ms"] / 2
    assert queued["per_second"] > 1.5 * in_line["per_second"]
    for lane in (in_line, queued):
        assert lane["p50_ms"] <= lane["p99_ms"] <= lane["max_ms"] * 1.02
        assert lane["done"] == lane["came"] > 0


def test_the_queue_levels_the_burst(told: Told) -> None:
    burst = told.result["burst"]
    in_line, queued = burst["lanes"]["in_line"], burst["lanes"]["with_queue"]
    assert burst["burst_per_second"] == 10 * burst["usual_per_second"]
    assert in_line["came"] == queued["came"] == queued["done"]
    assert in_line["p99_ms"] > 1.3 * told.result["sign_up"]["in_line"]["p50_ms"]
    assert queued["p50_ms"] < in_line["p50_ms"] / 2
    assert burst["backlog"]["peak"] > 10
    assert 0 < burst["backlog"]["drained_s"] < 20


def test_a_service_that_is_stopped_costs_sign_ups_in_line_and_none_with_a_queue(told: Told) -> None:
    outage = told.result["outage"]
    assert outage["lanes"]["in_line"]["failed"] > 0
    assert outage["lanes"]["with_queue"]["failed"] == 0
    assert outage["backlog"]["service"] == "coupon"
    assert outage["backlog"]["peak"] >= 3


def test_nothing_is_lost(told: Told) -> None:
    messages = told.result["messages"]
    lanes = [told.result["sign_up"], told.result["burst"]["lanes"], told.result["outage"]["lanes"]]
    done = sum(each["with_queue"]["done"] for each in lanes)
    assert messages["acknowledged"] == done + 1  # the first one is in no act
    assert 0 < messages["send_p50_ms"] <= messages["send_p99_ms"]
    assert set(messages["services"]) == {kind.name for kind in KINDS}
    for account in messages["services"].values():
        assert account["lost"] == 0
        assert account["handled"] == messages["acknowledged"]


# --- how it is shown -------------------------------------------------------------------------------------------------


def test_in_a_pipe_it_is_lines(tmp_path: Path) -> None:
    done = run(*SHORT, cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.out
    assert [f"act {act}: " in done.out for act in (1, 2, 3, 4)] == [True] * 4
    assert re.search(r"with a queue: \d+ signed up, p50 [\d.]+ m?s", done.out)
    assert "nothing lost" in done.out
    assert "Try next" in done.out


def test_on_a_terminal_it_moves_and_leaves_the_summary(tmp_path: Path) -> None:
    with Terminal(*SHORT, cwd=tmp_path) as terminal:
        assert terminal.wait() == 0
    before, _, after = terminal.said.rpartition(HIDE_SCREEN)
    assert SHOW_SCREEN in before
    assert all(f"act {act} of 4" in ESCAPE.sub("", before) for act in (1, 2, 3, 4))
    assert SHOW_CURSOR in terminal.said
    assert "nothing lost" in ESCAPE.sub("", after)


def test_ctrl_c_in_the_middle_gives_the_terminal_back(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with Terminal("demo", cwd=tmp_path, TMPDIR=str(temporary)) as terminal:
        terminal.until("act 1 of 4")
        terminal.type(CTRL_C)
        assert terminal.wait() == 130
    after = terminal.said.rpartition(HIDE_SCREEN)[2]
    assert "Stopped. Nothing is left behind." in after
    assert "Traceback" not in terminal.said
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("act", [2, 4])
def test_a_signal_in_any_act_stops_it_cleanly(tmp_path: Path, act: int) -> None:
    with Program(*SHORT, cwd=tmp_path, TMPDIR=str(tmp_path)) as program:
        program.until(f"act {act}: ")
        assert program.stop(signal.SIGTERM if act == 2 else signal.SIGINT) == 130
    assert program.err == "Stopped. Nothing is left behind.\n"
    assert list(tmp_path.iterdir()) == []


# --- on a cluster ----------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    with up(tmp_path) as program:
        yield name_server_of(program)
        assert program.stop() == 0


def test_a_cluster_that_is_there_can_be_used_and_keeps_nothing_of_it(tmp_path: Path, cluster: str) -> None:
    done = run(*SHORT, "--json", "--name-servers", cluster, cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["messages"]["acknowledged"] > 0

    async def left() -> list[str]:
        async with Admin(cluster) as admin:
            names = [*(one.name for one in await admin.topics.list()), *(one.name for one in await admin.groups.list())]
            return [name for name in names if "demo-signups" in name]

    assert asyncio.run(left()) == []


def test_a_cluster_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    done = run("demo", "--fast", "--name-servers", "127.0.0.1:1", cwd=tmp_path)
    assert done.code == 1
    assert done.err.startswith("error: ")
    assert len(done.err.splitlines()) == 1


def test_a_terminal_without_room_gets_lines(tmp_path: Path) -> None:
    with Terminal("demo", "--fast", cwd=tmp_path, columns=60) as terminal:
        terminal.until("act 1: ")
        terminal.type(CTRL_C)
        assert terminal.wait() == 130
    assert SHOW_SCREEN not in terminal.said


# --- when something is lost ------------------------------------------------------------------------------------------


def test_a_lost_message_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def loses_two(*_: object) -> Outcome:
        return outcome(lost=2)

    monkeypatch.setattr(command, "_perform", loses_two)
    done = CliRunner().invoke(app, ["demo"])
    assert done.exit_code == 1
    assert "lost: 2 at SMS" in done.output
    assert "nothing lost" not in done.output
