"""`pyromq doctor` and `pyromq --version`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from pyromq import __version__
from pyromq.cli.app import app
from pyromq.cli.servers import doctor

run = CliRunner()


def test_the_version() -> None:
    result = run.invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"pyromq {__version__}\n")


def test_the_doctor_tells_what_is_active() -> None:
    result = run.invoke(app, ["doctor"])
    assert result.exit_code == 0
    for word in ("PyroMQ", "Python", "kernel: records", "CRC library", "uvloop", "fallocate", "open files", "memory"):
        assert word in result.stdout
    assert "\x1b" not in result.stdout


def test_the_doctor_speaks_json() -> None:
    result = run.invoke(app, ["doctor", "--json"])
    found = json.loads(result.stdout)
    assert set(found["kernel"]) == {"records", "queues", "reading", "key index", "sends and pulls", "spark"}
    assert {"name", "value", "good", "advice"} == set(found["checks"][0])
    assert result.stderr == ""


def test_what_is_missing_comes_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor.checksum, "LIBRARY", "zlib")
    monkeypatch.setattr(doctor, "rooms", lambda: {"records": False})
    advice = {check.name: check.advice for check in doctor.checks() if check.good is False}
    assert "pip install uvloop" in advice["uvloop"]
    assert "isal" in advice["CRC library"]
    assert "compiler" in advice["kernel: records"]


def test_an_unknown_command_is_a_usage_error() -> None:
    assert run.invoke(app, ["fly"]).exit_code == 2
