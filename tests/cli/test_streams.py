"""Output in any encoding, and signals that a server may get: no traceback, and no end but a clean one."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.support.programs import Program, command, environment, run
from pyromq.cli import streams

ASCII = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_every_character_can_be_printed(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    streams.take_all_characters()
    print("✓ 3 µs … │ grüße \U0001f600 \udcff")
    sys.stdout.flush()
    written = raw.getvalue()
    if encoding == "ascii":
        assert written == rb"ok 3 us ... | gr\xfc\xdfe \U0001f600 \udcff" + b"\n"
    else:
        assert written.endswith(b"\\udcff\n")


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["bench", "--help"], ["topic", "--help"], ["doctor"], ["send", "t\udcc3\udcb3pic", "x"]],
    ids=lambda words: words[0],
)
def test_commands_print_to_an_ascii_terminal(arguments: list[str], tmp_path: Path) -> None:
    done = run(*arguments, cwd=tmp_path, **ASCII)
    assert "Traceback" not in done.err
    assert "UnicodeEncodeError" not in done.err
    assert done.out.isascii()


@pytest.mark.parametrize("arguments", [["consume"], ["tail"], ["consume", "-g", "group"]], ids=" ".join)
def test_a_topic_that_cannot_be_is_not_waited_for(arguments: list[str], tmp_path: Path) -> None:
    done = run(*arguments, "hello world?*", "-n", "127.0.0.1:1", cwd=tmp_path)
    assert done.code == 1
    assert "may have only letters, digits" in done.err


def test_a_group_that_cannot_be_is_not_waited_for(tmp_path: Path) -> None:
    done = run("consume", "hello", "-g", "a b", "-n", "127.0.0.1:1", cwd=tmp_path)
    assert (done.code, "the group 'a b'" in done.err) == (1, True)


def broker(cwd: Path) -> Program:
    return Program("broker", "--port", "0", cwd=cwd)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGXCPU], ids=lambda one: one.name
)
def test_these_signals_stop_a_broker_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    with broker(tmp_path) as program:
        program.until("PyroMQ is up")
        assert program.stop(number) == 0
        assert "stopped cleanly" in program.err
    assert not (tmp_path / "pyromq-data/store/abort").exists()


def test_these_signals_are_logged_and_ignored(tmp_path: Path) -> None:
    with broker(tmp_path) as program:
        program.until("PyroMQ is up")
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            program.process.send_signal(number)
            program.until(f"{number.name} is ignored")
        assert program.stop(signal.SIGTERM) == 0


@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="this system has no real-time signals")
def test_no_signal_ends_a_broker_but_those_that_stop_it_and_faults(tmp_path: Path) -> None:
    """SIGKILL and SIGSTOP cannot be caught; the others left out are faults of the program, which leave a core."""
    ends = {"SIGKILL", "SIGSTOP", "SIGINT", "SIGTERM", "SIGQUIT", "SIGXCPU", "SIGPWR"}
    faults = {"SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV", "SIGSYS"}
    stops = {"SIGTSTP", "SIGTTIN", "SIGTTOU"}
    with broker(tmp_path) as program:
        program.until("PyroMQ is up")
        for number in signal.valid_signals():
            if not isinstance(number, signal.Signals) or number.name not in ends | faults | stops:
                program.process.send_signal(number)
        assert program.stop(signal.SIGTERM) == 0
        assert "stopped cleanly" in program.err
    assert not (tmp_path / "pyromq-data/store/abort").exists()


def test_a_broker_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    process = subprocess.Popen(
        ["nohup", *command(["broker", "--port", "0"])], cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert any(b"PyroMQ is up" in line for line in process.stdout)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
        assert process.wait(30) == 0
        assert b"stopped cleanly" in rest
    finally:
        process.kill()
        process.wait()
