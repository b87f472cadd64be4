"""A broker that was moved over with its file, whose log is on a disk of its own; and the tools for such a store."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cli.support.programs import Program, run, up

STORE = """storePathRootDir = moved
storePathCommitLog = fast/log
mappedFileSizeCommitLog = 1048576
autoCreateTopicEnable = true
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "broker.conf").write_text(STORE, encoding="utf-8")
    return tmp_path


def started(home: Path) -> Program:
    """`up` has a data directory of its own; the file's lines for the store win over nothing but that."""
    return Program("broker", "--config", "broker.conf", "--port", "0", cwd=home)


def test_a_broker_keeps_its_log_where_its_file_says(home: Path) -> None:
    with up(home, "--config", "broker.conf", "--data-dir", "data") as program:
        name_server = program.until(r"name server +(127\.0\.0\.1:\d+)\n")[1]
        assert run("send", "orders", "hello", "-n", name_server, cwd=home).code == 0
        assert program.stop() == 0
    assert sorted(each.name for each in (home / "fast" / "log").iterdir() if each.is_file()) == ["0" * 20]
    view = json.loads(run("store", "inspect", "data/store", "--json", cwd=home).out)
    assert (view["messages"], view["log"]["apart"]) == (1, str(home / "fast" / "log"))
    shown = run("store", "inspect", "data/store", cwd=home, COLUMNS="300").out
    assert re.search(rf"log's directory +{home}/fast/log; disk \d+% of", shown)
    (home / "data" / "store" / "logdirectory").unlink()
    assert run("store", "verify", "data/store", cwd=home).code == 1
    for command in ("verify", "inspect", "recover"):
        assert run("store", command, "data/store", "--commit-log", "fast/log", cwd=home).code == 0
    assert run("store", "verify", "data/store", cwd=home).code == 0, "recover has noted the place"


def test_a_second_broker_with_the_same_log_is_refused(home: Path) -> None:
    with started(home) as first:
        first.until("PyroMQ is up")
        second = run("broker", "--config", "broker.conf", "--store", "another", "--port", "0", cwd=home)
        assert second.code == 1
        assert re.search(r"fast/log is in use by process \d+; stop it first", second.err)
        assert first.stop() == 0


def test_a_log_directory_that_cannot_be_used(home: Path) -> None:
    (home / "fast").write_text("in the way", encoding="utf-8")
    done = run("broker", "--config", "broker.conf", "--port", "0", cwd=home)
    assert done.code != 0
    assert "fast/log cannot be used: there is a file where a directory should be" in done.err
