"""The benchmarks: they read the reported figures, their verdicts follow from their samples, and they run."""

from __future__ import annotations

import contextlib
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
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import client_soak  # noqa: E402
from broker_vs_rocketmq import loads, measure, remoting, report  # noqa: E402
from broker_vs_rocketmq.loads import LOADS, OURS, THEIRS  # noqa: E402
from client_vs_peers import __main__ as client_bench  # noqa: E402
from client_vs_peers import contestants, getting, running  # noqa: E402
from client_vs_peers import report as client_report  # noqa: E402
from client_vs_peers.workers import shape  # noqa: E402
from replication_vs_rocketmq import __main__ as replication_bench  # noqa: E402
from replication_vs_rocketmq import measure as replication_measure  # noqa: E402
from replication_vs_rocketmq import report as replication_report  # noqa: E402
from replication_vs_rocketmq.log_eye import LogEye, queue_has  # noqa: E402
from replication_vs_rocketmq.wanted import ALONE, ASYNC, MODES, SYNC  # noqa: E402

from pyromq.config import StoreConfig  # noqa: E402
from pyromq.model.message import Draft  # noqa: E402
from pyromq.store.message_store import MessageStore  # noqa: E402

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
    # One that has counted enough ends with answers under way, and that is a reset.
    with connection, connection.makefile("rb") as frames, contextlib.suppress(ConnectionError):
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
    assert 200 <= result.total < 250, "answers that are there when it has enough are counted as well"
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


# --- The client and its peers: workers' reports --------------------------------------------------------------------

WINDOW, LATENCY = (next(line for line in contestants.LINES if line.key == key) for key in ("window", "latency"))


def rate(who: str, value: float, number: int = 1) -> running.Sample:
    return running.Sample("window", who, number, {"rate": value})


def test_a_worker_is_told_its_task_on_its_command_line() -> None:
    task = shape.Task("backlog", "127.0.0.1:9876", "bench-1", seconds=0.5, count=100, options="each")
    assert shape.task_of(task.as_arguments()) == task


def test_only_what_is_acknowledged_within_the_span_counts() -> None:
    warming = shape.Span(shape.Task("window", "", "", seconds=60, warm=60))
    assert (warming.acknowledged(), warming.count) == (True, 0)
    measuring = shape.Span(shape.Task("window", "", "", seconds=60, warm=0))
    assert (measuring.acknowledged(500), measuring.count) == (True, 500)
    over = shape.Span(shape.Task("window", "", "", seconds=0, warm=0))
    assert (over.acknowledged(), over.count) == (False, 0)


def test_waits_are_percentiles_without_the_warm_up() -> None:
    waits = shape.Waits(shape.Task("latency", "", "", warm=1, rate=10))
    waits.seconds = [9.0] * 10 + [0.001 * number for number in range(1, 101)]
    expected = {"count": 100, "lost": 0, "p50_ms": 51.0, "p99_ms": 100.0}
    assert waits.result(110) == pytest.approx(expected)


def test_bodies_are_one_kibibyte_and_tell_when_they_were_sent() -> None:
    waits = shape.Waits(shape.Task("latency", "", "", warm=0))
    waits.handled(shape.stamped(1))
    assert 0 <= waits.seconds[0] < 5
    assert {len(shape.body(7)), len(shape.stamped(7))} == {shape.BODY_BYTES}


def test_figures_are_rates_or_the_times_themselves() -> None:
    worked = {"count": 500, "seconds": 2.0, "cpu_seconds": 0.01}
    assert running.figures_of(WINDOW, worked) == pytest.approx({"rate": 250, "cpu_us": 20})
    said = {"count": 9, "lost": 0, "p50_ms": 0.5, "p99_ms": 1.5}
    assert running.figures_of(LATENCY, said) == {"p50_ms": 0.5, "p99_ms": 1.5}
    with pytest.raises(running.WorkerFailed, match="3 messages did not reach"):
        running.figures_of(LATENCY, {**said, "lost": 3})


def test_a_worker_that_dies_is_a_failure_that_shows_its_words() -> None:
    broken = contestants.Contestant("x", "X", "x", "no_such_driver.py", (), "", "", 0)
    started = running.worker(Path(sys.executable), broken, shape.Task("one", "", ""))
    with started as worker, pytest.raises(running.WorkerFailed, match="no_such_driver"):
        worker.result()


# --- The client and its peers: verdicts ----------------------------------------------------------------------------


def test_ratios_are_to_ours_and_medians_decide() -> None:
    ours, kafka = contestants.BY_KEY["pyromq"], contestants.BY_KEY["confluent"]
    samples = [rate("pyromq", value) for value in (10_000, 90_000, 50_000)] + [rate("confluent", 100_000)]
    first, second = client_report.rows([WINDOW], [ours, kafka], samples)
    assert first[1:] == ("PyroMQ", "50,000", "90,000", "1.00", "")
    assert second[1:] == ("confluent-kafka", "100,000", "100,000", "2.00", "")
    assert {len(first), len(second)} == {len(client_report.COLUMNS)}


def test_who_is_ahead_is_named_with_what_differs() -> None:
    ours, batching, kafka = (contestants.BY_KEY[key] for key in ("pyromq", "pyromq-batch", "confluent"))
    samples = [rate("pyromq", 40_000), rate("pyromq-batch", 160_000), rate("confluent", 150_000)]
    assert client_report.notes([WINDOW], [ours, batching, kafka], samples) == []
    (note,) = client_report.notes([WINDOW], [ours, kafka], samples[::2])
    assert "confluent-kafka is ahead" in note
    assert contestants.WHAT_DIFFERS["window", "confluent"] in note


def test_a_lower_time_is_ahead() -> None:
    times = [(key, {"p50_ms": p50, "p99_ms": 1.0}) for key, p50 in (("pyromq", 0.7), ("redis", 0.5), ("nats", 0.8))]
    samples = [running.Sample("latency", key, 1, figures) for key, figures in times]
    assert client_report.ahead(samples, LATENCY, "redis")
    assert not client_report.ahead(samples, LATENCY, "nats")


def test_what_is_wanted_of_the_client_is_met_or_not() -> None:
    met = {
        row[0]: row[-1] for row in client_report.verdict_rows([rate("pyromq", 40_000), rate("pyromq-batch", 90_000)])
    }
    assert met == {"window: rate": "yes", "window with auto_batch: rate": "NO"}


def test_a_failure_stands_in_the_table_and_in_the_file() -> None:
    nats = contestants.BY_KEY["nats"]
    failed = [running.Sample("window", "nats", 1, failure="ended with 1: no server")]
    assert client_report.rows([WINDOW], [nats], failed)[0][2] == "failed"
    facts = json.loads(json.dumps(client_report.as_json({}, [WINDOW], [nats], failed, {"redis": "no apt-get"})))
    assert (facts["notes"], facts["absent"]) == (
        ["nats failed on window: ended with 1: no server"],
        {"redis": "no apt-get"},
    )


def test_lines_and_peers_are_chosen_by_name() -> None:
    assert [line.key for line in contestants.selected_lines("one,window")] == ["window", "one"]
    assert {one.server for one in contestants.selected_contestants("none")} == {"pyromq"}
    assert len(contestants.selected_contestants(None)) == len(contestants.CONTESTANTS)
    with pytest.raises(ValueError, match="no such peer: rabbit; there are rocketmq"):
        contestants.selected_contestants("rabbit")
    with pytest.raises(ValueError, match="no such line"):
        contestants.selected_lines("windows")


def test_whoever_cannot_be_had_is_named_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    measured = client_bench.Measurement(client_bench.options(["--cache", str(tmp_path), "--peers", "nats,redis"]))
    measured.fetch()
    assert measured.absent == {"nats": "go is not on PATH", "redis": "apt-get is not on PATH"}
    assert {one.server for one in measured.contestants} == {"pyromq"}


def test_what_was_not_fetched_whole_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fetch(command: list[str], directory: Path | None = None, **environment: str) -> None:
        asked.append(command)
        if len(asked) == 1:
            raise getting.CannotBeHad("the network went away")

    monkeypatch.setattr(getting, "_run", fetch)
    monkeypatch.setattr(getting.shutil, "which", lambda name: f"/bin/{name}" if name == "go" else None)
    cache = getting.Cache(tmp_path)
    with pytest.raises(getting.CannotBeHad, match="went away"):
        cache.nats_server()
    programs = {cache.nats_server().path, cache.nats_server().path}
    assert (len(asked), len(programs)) == (2, 1)


@pytest.mark.slow
def test_the_client_benchmark_runs(tmp_path: Path) -> None:
    """Ours alone: peers have to be fetched."""
    command = ["-m", "client_vs_peers", "--rounds", "1", "--seconds", "0.2", "--warm", "0", "--peers", "none"]
    said = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'benchmarks'}{os.pathsep}{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    ).stdout
    (file,) = (tmp_path / "build" / "bench").glob("client_vs_peers-*.json")
    facts = json.loads(file.read_text("utf-8"))
    assert [one["failure"] for one in facts["samples"] if one["failure"]] == [], said
    measured = {(one["line"], one["contestant"]) for one in facts["samples"]}
    ours = contestants.selected_contestants("none")
    assert measured == {(line, one.key) for one in ours for line in one.lines}
    assert len(facts["wanted"]) == len(contestants.WANTED)


# --- What copies cost ------------------------------------------------------------------------------------------------

COPIED = replication_bench.LOADS[0]


def copied(mode: str, rate: float, master_us: float, slave_us: float = 1.0, system: str = OURS, turn: int = 1) -> Any:
    return replication_measure.Sample(COPIED.name, system, mode, turn, rate, 2.0, 0, master_us, slave_us)


THREE_MODES = [copied(ALONE, 200_000, 2.0, 0.0), copied(ASYNC, 100_000, 2.08), copied(SYNC, 95_000, 2.2)]


def copying_verdicts(cores: int) -> dict[str, bool | None]:
    found = replication_report.checks(THREE_MODES, [], [], cores)
    return {check.what.partition(": ")[2]: check.met for check in found}


def test_a_master_with_cores_to_spare_is_judged_by_its_throughput_and_another_by_its_processor_time() -> None:
    assert copying_verdicts(2) == {
        "async beside alone, throughput lost": None,
        "async beside alone, master's processor time": True,
        "sync beside async, throughput lost": None,
        "sync beside async, master's processor time": True,
    }
    assert copying_verdicts(8) == {
        "async beside alone, throughput lost": False,
        "async beside alone, master's processor time": None,
        "sync beside async, throughput lost": True,
        "sync beside async, master's processor time": None,
    }


def test_what_a_mode_costs_is_told_from_masters_that_were_loaded_one_after_the_other() -> None:
    """The machine is slow in the second turn, and something else runs in the third."""
    took = [(2.0, 2.1), (6.0, 6.3), (2.0, 9.0)]
    samples = [
        copied(mode, 100_000, us, turn=turn)
        for turn, both in enumerate(took)
        for mode, us in zip((ALONE, ASYNC), both, strict=True)
    ]
    found = replication_report.cost(samples, COPIED.name, OURS, ASYNC, ALONE)
    assert found is not None
    assert found.master == pytest.approx(0.05)
    assert replication_report.cost(samples, COPIED.name, OURS, SYNC, ASYNC) is None


def test_lag_and_catch_up_are_judged_by_ours_alone() -> None:
    lags = [replication_measure.Lag(name, 1, 50_000, 2.0, p99, 30.0, 9) for name, p99 in ((OURS, 19.0), (THEIRS, 99.0))]
    copies = [
        replication_measure.CatchUp(name, 1, 1000.0, s, 0.1, 1.0, 1.0) for name, s in ((OURS, 2.5), (THEIRS, 1.0))
    ]
    assert [check.met for check in replication_report.checks([], lags, copies, 2)] == [True, False]
    rows = replication_report.other_rows(lags, copies)
    assert {len(row) for row in rows} == {len(replication_report.OTHER_COLUMNS)}
    assert ("catch-up, MB/s", "400", "1,000") in rows


def test_tables_of_copies_have_a_cell_for_each_column_and_json_holds_everything() -> None:
    samples = [*THREE_MODES, copied(ALONE, 50_000, 30.0, system=THEIRS)]
    assert {len(row) for row in replication_report.load_rows(samples)} == {len(replication_report.LOAD_COLUMNS)}
    (first, second) = replication_report.cost_rows(samples)
    assert {len(first), len(second)} == {len(replication_report.COST_COLUMNS)}
    assert first[2:] == ("async beside alone", "+50.0 %", "+4.0 %")
    found = replication_report.checks(samples, [], [], 2)
    facts = json.loads(json.dumps(replication_report.as_json({}, samples, [], [], found)))
    assert (len(facts["samples"]), len(facts["checks"])) == (4, len(found))


def test_what_is_in_a_log_and_in_its_queues_is_seen_from_outside(tmp_path: Path) -> None:
    eye = LogEye(tmp_path / "commitlog")
    assert eye.stored_at() == [], "there is no file yet"
    drafts = [Draft(b"seen", number % 2, b"x" * 500, b"TAGS\x01t\x02") for number in range(400)]
    with MessageStore(StoreConfig(root=tmp_path, segment_bytes=64 << 10)) as store:
        store.append(drafts)
        store.dispatch()
        end = store.marks.appended.value
        assert end > 3 * store.config.segment_bytes
        times = eye.stored_at()
        assert (len(times), eye.position, eye.queue_offsets) == (400, end, {0: 199, 1: 199})
        assert abs(times[-1] - store.clock.now_ms()) < 60_000
        assert (eye.has(end), eye.has(end + 100)) == (True, False)
        assert (queue_has(tmp_path, "seen", 1, 199), queue_has(tmp_path, "seen", 1, 200)) == (True, False)
        store.append(drafts[:1])
        assert len(eye.stored_at()) == 1
    eye.close()


def test_steps_of_the_replication_benchmark_are_chosen_by_name() -> None:
    assert replication_bench.options(["--steps", "lag,loads"]).steps == ["lag", "loads"]
    with pytest.raises(SystemExit):
        replication_bench.options(["--steps", "lags"])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="the generator needs a C compiler")
def test_the_replication_benchmark_runs(tmp_path: Path) -> None:
    """Our pair alone, and short: figures come out, whatever they are."""
    command = ["-m", "replication_vs_rocketmq", "--systems", "ours", "--rounds", "1", "--turns", "1"]
    brief = ["--seconds", "0.5", "--fill", "3000", "--rate", "2000"]
    said = subprocess.run(
        [sys.executable, *command, *brief],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'benchmarks'}{os.pathsep}{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    (file,) = (tmp_path / "build" / "bench").glob("replication_vs_rocketmq-*.json")
    facts = json.loads(file.read_text("utf-8"))
    measured = {(one["load"], one["mode"]) for one in facts["samples"]}
    assert measured == {(load.name, mode) for load in replication_bench.LOADS for mode in MODES}
    assert {one["errors"] for one in facts["samples"]} == {0}, said.stdout
    assert (len(facts["lags"]), len(facts["catch_ups"])) == (1, 1)
    assert facts["catch_ups"][0]["megabytes"] > 3


# --- The soak --------------------------------------------------------------------------------------------------------


def memories(*anonymous: float) -> list[client_soak.Memory]:
    return [client_soak.Memory(float(second), 100.0, mib) for second, mib in enumerate(anonymous)]


def test_growth_is_read_off_a_line_after_the_warm_up() -> None:
    warming = [10, 40, 70, 100]
    assert client_soak.growth_mib(memories(*warming, *[100] * 12)) == pytest.approx(0)
    assert client_soak.growth_mib(memories(*warming, *range(100, 112))) == pytest.approx(11)
    assert client_soak.growth_mib(memories(*warming, *[100, 104] * 6)) < 2  # a sawtooth is flat


def test_a_soak_fails_for_what_is_lost_and_for_what_grows() -> None:
    soak = client_soak.Soak(bytearray([client_soak.NOT_SENT]) * 3)
    for number in (0, 1):
        soak.table[number] |= client_soak.ACKNOWLEDGED
    soak.memories = {"client": memories(*[20] * 20), "broker": memories(*range(20, 40))}
    soak.handled(1)
    soak.handled(1)
    assert (soak.lost, soak.handled_again) == (1, 1)
    lost, grown = client_soak.complaints(soak, growth_max=8)
    assert lost == "1 acknowledged messages did not reach the handler"
    assert grown.startswith("the broker grew by 1")
    soak.handled(0)
    assert client_soak.complaints(soak, growth_max=20) == []


def test_a_message_that_was_never_acknowledged_is_not_lost() -> None:
    soak = client_soak.Soak(bytearray([client_soak.NOT_SENT]) * 3)
    soak.memories = {"client": memories(1), "broker": memories(1)}
    assert soak.lost == 0
    assert client_soak.complaints(soak, growth_max=8) == ["nothing was acknowledged"]


@pytest.mark.slow
def test_the_soak_runs_and_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = client_soak.main(["--minutes", "0.05", "--rate", "500", "--growth", "32"])
    assert ended == 0, capsys.readouterr().out
    assert "acknowledged 1,500  handled 1,500  lost 0" in capsys.readouterr().out
