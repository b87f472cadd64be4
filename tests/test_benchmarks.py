"""The benchmark beside Apache RocketMQ: what it reads is what was said, and its verdicts follow from its samples."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))

from broker_vs_rocketmq import loads, measure, remoting, report  # noqa: E402
from broker_vs_rocketmq.loads import LOADS, OURS, THEIRS  # noqa: E402

LINE = "send 51234 msg/s  52.5 MB/s  errors 0  request p50 4.100 ms  p99 9.250 ms  p99.9 21.000 ms  total 640425\n"
PULL, SEND = LOADS[0], LOADS[1]


def sample(system: str, rate: float, cpu_us: float, p999: float, number: int = 1, errors: int = 0) -> measure.Sample:
    result = measure.Result(rate, p50=0.5, p99=2.0, p999=p999, errors=errors, total=1000)
    return measure.Sample(SEND.name, system, number, result, cpu_us)


def verdicts(samples: list[measure.Sample], kernel: str = "compiled") -> dict[str, bool | None]:
    return {check.what.rpartition(": ")[2]: check.met for check in report.checks(LOADS, samples, [], kernel)}


# --- Reading -------------------------------------------------------------------------------------------------------


def test_a_generator_line_is_read_whole() -> None:
    assert measure.parse(LINE) == measure.Result(51234, 4.1, 9.25, 21.0, errors=0, total=640425)


def test_the_first_refusal_is_kept_in_the_brokers_words() -> None:
    result = measure.parse(LINE.replace("errors 0", "errors 7"), "rmqload: send refused: busy\nrmqload: again\n")
    assert (result.errors, result.refusal) == (7, "rmqload: send refused: busy")


def test_anything_else_is_an_error_that_shows_it() -> None:
    with pytest.raises(measure.GeneratorFailed, match="Segmentation"):
        measure.parse("Segmentation fault")


def test_processor_time_is_found_behind_a_name_with_brackets() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    stat = f"77 (a) strange (name) S 1 2 3 4 5 6 7 8 9 10 {3 * ticks} {2 * ticks} 0 0 20 0 1 0 99"
    assert measure.cpu_seconds(stat) == 5


def test_our_own_process_has_used_time_and_memory() -> None:
    assert measure.cpu_seconds(Path("/proc/self/stat").read_text()) > 0
    resident, anonymous = measure.memory_mib(Path("/proc/self/status").read_text())
    assert resident > anonymous > 1


# --- The generator -------------------------------------------------------------------------------------------------


def answer_everything(listener: socket.socket) -> None:
    """A broker that says yes to each frame of one connection, until it is closed."""
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as frames:
        while len(prefix := frames.read(4)) == 4:
            frame = frames.read(struct.unpack(">i", prefix)[0])
            (header_size,) = struct.unpack_from(">i", frame)
            header = json.loads(frame[4 : 4 + header_size])
            answer = json.dumps({"code": 0, "flag": 1, "opaque": header["opaque"]}, separators=(",", ":")).encode()
            connection.sendall(struct.pack(">ii", 4 + len(answer), len(answer)) + answer)


@pytest.fixture
def broker_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=answer_everything, args=(listener,))
        server.start()
        yield listener.getsockname()[1]
        server.join(10)


@pytest.mark.skipif(shutil.which("cc") is None, reason="the generator needs a C compiler")
def test_what_the_generator_prints_is_what_is_read(tmp_path: Path, broker_port: int) -> None:
    program = measure.build_generator(tmp_path)
    options = ["--port", str(broker_port), "--conns", "1", "--window", "1", "--seconds", "20", "--count", "200"]
    said = subprocess.run([program, "send", *options], capture_output=True, text=True, timeout=30, check=True).stdout
    result = measure.parse(said)
    assert result.total == 200
    assert result.rate > 0
    assert result.p50 <= result.p99 <= result.p999


def test_the_harness_makes_topics_and_sends_over_the_same_protocol(broker_port: int) -> None:
    remoting.ask(broker_port, remoting.create_topic("bench", 8))


# --- Verdicts ------------------------------------------------------------------------------------------------------


def test_medians_decide_and_the_best_is_beside_them() -> None:
    rates = [90_000, 300_000, 150_000]
    found = report.summary([sample(OURS, rate, 5, 1, number) for number, rate in enumerate(rates)])
    assert (found.rate, found.best_rate) == (150_000, 300_000)


def test_everything_met() -> None:
    met = verdicts([sample(OURS, 300_000, 5, 10), sample(THEIRS, 60_000, 45, 20)])
    assert met == {"speed": True, "processor time": True, "p99.9": True, "messages": True}


def test_each_figure_fails_alone() -> None:
    theirs = sample(THEIRS, 60_000, 40, 20)
    assert verdicts([sample(OURS, 179_000, 5, 10), theirs])["speed"] is False
    assert verdicts([sample(OURS, 300_000, 11, 10), theirs])["processor time"] is False
    assert verdicts([sample(OURS, 300_000, 5, 21), theirs])["p99.9"] is False
    assert verdicts([sample(OURS, 300_000, 5, 10, errors=1), theirs])["our refusals"] is False


def test_three_times_a_slow_machine_is_not_enough() -> None:
    met = verdicts([sample(OURS, 90_000, 5, 10), sample(THEIRS, 20_000, 45, 20)])
    assert (met["speed"], met["messages"]) == (True, False)


def test_the_readable_form_is_asked_for_speed_alone() -> None:
    met = verdicts([sample(OURS, 61_000, 50, 90), sample(THEIRS, 60_000, 45, 20)], kernel="python")
    assert met == {"speed": True, "processor time": None, "p99.9": None}


def test_start_and_memory_are_judged_by_the_worst_life() -> None:
    lives = [measure.Footprint(OURS, "async", number, 0.4 + number / 2, 500, 140 + 20 * number) for number in range(2)]
    assert [check.met for check in report.footprint_checks(lives[:1], "compiled", loaded=True)] == [True, True]
    assert [check.met for check in report.footprint_checks(lives, "compiled", loaded=True)] == [True, False]
    assert len(report.footprint_checks(lives, "compiled", loaded=False)) == 1


def test_a_load_that_was_run_on_one_side_only_has_no_verdict() -> None:
    assert report.summaries([sample(OURS, 1, 1, 1)], SEND) is None
    assert verdicts([sample(OURS, 1, 1, 1)]) == {}


# --- Tables and selections -----------------------------------------------------------------------------------------


def test_tables_have_a_cell_for_each_column_and_json_holds_everything() -> None:
    samples = [sample(OURS, 300_000, 5, 10), sample(THEIRS, 60_000, 45, 20)]
    life = [measure.Footprint(OURS, "async", 1, 0.5, 500, 40)]
    checks = report.checks(LOADS, samples, life, "compiled")
    assert {len(row) for row in report.load_rows(LOADS, samples)} == {len(report.LOAD_COLUMNS)}
    assert {len(row) for row in report.footprint_rows(life)} == {len(report.FOOTPRINT_COLUMNS)}
    assert {len(row) for row in report.check_rows(checks)} == {len(report.CHECK_COLUMNS)}
    facts = json.loads(json.dumps(report.as_json({"rounds": 1}, LOADS, samples, life, checks)))
    assert facts["loads"][SEND.name][OURS]["rate"] == 300_000
    assert len(facts["samples"]) == 2


def test_loads_are_told_apart_by_their_names() -> None:
    assert len({load.name for load in LOADS}) == len(LOADS)


def test_a_selection_starts_only_what_it_needs() -> None:
    assert loads.selected("all") == list(LOADS)
    assert loads.selected("pulls") == [PULL]
    assert loads.flushes("sends") == ["async", "sync"]
    assert (loads.selected("start"), loads.flushes("start")) == ([], ["async"])
    assert all(loads.selected(only) for only in loads.SELECTIONS if only != "start")
