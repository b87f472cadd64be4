"""`pyromq store …`, as a person or a script meets them."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pyromq.cli.app import app
from pyromq.cli.output import show_warnings
from pyromq.config import StoreConfig
from pyromq.model.message import Draft
from pyromq.store.durability.checkpoint import RecoverPointFile
from pyromq.store.message_store import MessageStore

run = CliRunner()
MESSAGES = 40


def pyromq(*arguments: str | Path, answer: str = "") -> Result:
    return run.invoke(app, list(map(str, arguments)), input=answer)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two topics, closed cleanly; no keys, so there is no index to make."""
    with MessageStore(StoreConfig(root=tmp_path / "data", segment_bytes=16 * 1024)) as store:
        for number in range(MESSAGES):
            store.append([Draft((b"orders", b"payments")[number % 2], number % 4 // 2, b"x" * 500)])
    return tmp_path / "data"


@pytest.fixture
def long_store(store: Path) -> Path:
    """The same, with five segments."""
    with MessageStore(StoreConfig(root=store, segment_bytes=16 * 1024)) as opened:
        for number in range(80):
            opened.append([Draft(b"orders", number % 4, b"x" * 500)])
    return store


def log_end(store: Path) -> int:
    return int(json.loads(pyromq("store", "inspect", store, "--json").stdout)["log"]["end"])


def damage(store: Path, position: int) -> Path:
    path = store / "commitlog" / f"{position - position % (16 * 1024):020d}"
    data = bytearray(path.read_bytes())
    data[position % (16 * 1024)] ^= 1
    path.write_bytes(data)
    return path


def record_positions(store: Path) -> list[int]:
    with MessageStore(StoreConfig(root=store, segment_bytes=16 * 1024)) as opened:
        return sorted(
            entry.position
            for queue in opened.queues
            for offset in range(queue.max_offset)
            if (entry := queue.entry(offset)) is not None
        )


# --- inspect ---------------------------------------------------------------------------------------------------------


def test_inspect_shows_tables(store: Path) -> None:
    result = pyromq("store", "inspect", store)
    assert result.exit_code == 0
    for word in ("clean", "40 in 2 topics", "orders", "payments", "segments of 16.0 KiB", "recover point"):
        assert word in result.stdout
    assert "\x1b" not in result.stdout


def test_inspect_speaks_json(store: Path) -> None:
    result = pyromq("store", "inspect", store, "--json")
    found = json.loads(result.stdout)
    assert found["messages"] == MESSAGES
    assert found["clean"] is True
    assert [(topic["name"], topic["messages"]) for topic in found["topics"]] == [("orders", 20), ("payments", 20)]
    assert result.stderr == ""


def test_inspect_one_topic(store: Path) -> None:
    result = pyromq("store", "inspect", store, "--topic", "orders")
    assert "max offset" in result.stdout
    assert "payments" not in result.stdout


@pytest.mark.parametrize("command", ["inspect", "verify", "recover"])
def test_what_is_no_store_is_one_sentence_and_is_left_alone(tmp_path: Path, command: str) -> None:
    result = pyromq("store", command, tmp_path)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert "is no store" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_missing_argument_is_a_usage_error() -> None:
    assert pyromq("store", "inspect").exit_code == 2


# --- verify ----------------------------------------------------------------------------------------------------------


def test_verify_an_intact_store(store: Path) -> None:
    result = pyromq("store", "verify", store)
    assert result.exit_code == 0
    assert "intact" in result.stdout
    assert "40 records" in result.stdout


def test_verify_names_the_damage_and_the_way_out(store: Path) -> None:
    position = record_positions(store)[10]
    path = damage(store, position + 200)
    result = pyromq("store", "verify", store)
    assert result.exit_code == 1
    assert f"--truncate-at {position}" in result.stdout
    found = json.loads(pyromq("store", "verify", store, "--json").stdout)
    assert found["ok"] is False
    assert found["findings"] == [
        {
            "file": str(path.relative_to(store)),
            "position": position,
            "what": "the record's CRC does not match",
            "severity": "error",
        }
    ]


def test_a_damaged_queue_is_mended_by_recover(store: Path) -> None:
    path = store / "consumequeue" / "orders" / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[47] ^= 4
    path.write_bytes(data)
    result = pyromq("store", "verify", store)
    assert result.exit_code == 1
    assert "--rebuild-queues" in result.stdout
    assert pyromq("store", "recover", store, "--rebuild-queues").exit_code == 0
    assert pyromq("store", "verify", store).exit_code == 0


def gap(store: Path) -> tuple[Path, int]:
    """The second segment is gone; and where it began."""
    path = sorted((store / "commitlog").iterdir())[1]
    path.unlink()
    return store, int(path.name)


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_gap_is_said_first_and_the_advice_works(long_store: Path, tmp_path: Path, command: str) -> None:
    store, position = gap(long_store)
    result = pyromq("store", command, store)
    assert result.exit_code == 1
    assert "nothing to recover" not in result.stdout
    assert "from a backup or a replica" in result.stdout
    if command == "inspect":
        assert "damaged, closed cleanly: a start would be refused; 1 problem" in result.stdout.splitlines()[1]
    assert pyromq("store", "recover", store).exit_code == 1
    # As it is said there.
    first, commit_log, advised = re.findall(
        r"move (\d{20}) and all behind it .*? from (\S+) elsewhere, then run `pyromq (.*?)`", result.stdout
    )[0]
    assert advised == f"store recover {store} --truncate-at {position}"
    for path in Path(commit_log).iterdir():
        if path.name >= first:
            path.rename(tmp_path / path.name)
    assert pyromq(*advised.split(), "--yes").exit_code == 0
    assert pyromq("store", "verify", store).exit_code == 0
    assert pyromq("store", "inspect", store).exit_code == 0
    assert log_end(store) == position


def test_a_gap_in_json(long_store: Path) -> None:
    store, position = gap(long_store)
    result = pyromq("store", "inspect", store, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert [(each["kind"], each["position"]) for each in found["problems"]] == [("missing", position)]
    assert f"--truncate-at {position}" in found["refusal"]["way_out"]
    result = pyromq("store", "verify", store, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["refusal"] == found["refusal"]


@pytest.mark.parametrize("which", [0, 1, -1])
def test_the_advice_for_a_short_segment_works(long_store: Path, tmp_path: Path, which: int) -> None:
    store = long_store
    path = sorted((store / "commitlog").iterdir())[which]
    path.write_bytes(path.read_bytes()[:5000])
    result = pyromq("store", "inspect", store)
    assert result.exit_code == 1
    advised = re.findall(r"`pyromq (.*?)`", result.stdout)[0]
    for each in list(path.parent.iterdir()):
        if each == path or (which and each.name > path.name):
            each.rename(tmp_path / each.name)
    assert pyromq(*advised.split(), "--yes").exit_code == 0
    assert pyromq("store", "verify", store).exit_code == 0


def test_a_stray_file_is_a_problem_in_the_state(store: Path) -> None:
    (store / "commitlog" / "notes.txt").write_text("mine")
    result = pyromq("store", "inspect", store)
    assert result.exit_code == 1
    assert "a start would be refused" in result.stdout.splitlines()[1]
    assert f"Move {store / 'commitlog' / 'notes.txt'} elsewhere" in result.stdout
    (store / "commitlog" / "notes.txt").unlink()
    (store / "consumequeue" / "orders" / "0" / "notes.txt").write_text("mine")
    result = pyromq("store", "inspect", store)
    assert result.exit_code == 0
    assert "closed cleanly; 1 problem" in result.stdout.splitlines()[1]


# --- names from anywhere ---------------------------------------------------------------------------------------------

EVIL = "\x1b]0;owned\x07\x1b[31mred\r\nnext\x9b2J\u202e\\\\[bold]\x7f"


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    with MessageStore(StoreConfig(root=tmp_path / EVIL, segment_bytes=16 * 1024)) as store:
        store.append([Draft(EVIL.encode(), 0, b"x"), Draft(b"no text \xff\x1b", 0, b"x")])
        store.dispatch()
    return tmp_path / EVIL


def assert_harmless(result: Result) -> None:
    for text in (result.stdout, result.stderr):
        assert not {each for each in text if not each.isprintable()} - {"\n"}, text
        assert "next" not in {line.strip().split(" ")[0] for line in text.splitlines()}, "a name makes no new line"


def test_names_have_no_power_over_the_terminal(evil: Path) -> None:
    result = pyromq("store", "inspect", evil)
    assert result.exit_code == 0, result.output
    assert_harmless(result)
    assert r"\x1b]0;owned\x07\x1b[31mred\r\nnext\x9b2J\u202e\\[bold]\x7f" in result.stdout
    assert r"no text \xff\x1b" in result.stdout
    assert_harmless(pyromq("store", "inspect", evil, "--topic", EVIL))
    assert_harmless(pyromq("store", "inspect", evil, "--topic", EVIL + "!"))
    queue = evil / "consumequeue" / EVIL / "0" / f"{0:020d}"
    with queue.open("r+b") as file:
        file.write(b"\x55" * 20)
    (evil / "commitlog" / EVIL).touch()
    for command in ("inspect", "verify", "recover"):
        result = pyromq("store", command, evil)
        assert result.exit_code == 1
        assert r"\x1b]0;owned" in result.output
        assert_harmless(result)
    (evil / "commitlog" / EVIL).unlink()
    (evil / "abort").touch()
    assert_harmless(pyromq("store", "recover", evil))


def test_json_keeps_names_as_they_are(evil: Path) -> None:
    result = pyromq("store", "inspect", evil, "--json")
    assert "\x1b" not in result.stdout
    assert EVIL in [topic["name"] for topic in json.loads(result.stdout)["topics"]]


def test_warnings_have_no_power_over_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show_warnings()
    logging.getLogger("pyromq.store").warning("queue %s", EVIL)
    said = capsys.readouterr().err
    assert said.startswith(r"WARNING: queue \x1b]0;owned\x07")
    assert said.count("\n") == 1
    assert "\x1b" not in said


# --- recover ---------------------------------------------------------------------------------------------------------


def test_recover_completes_what_a_killed_broker_left(store: Path) -> None:
    end = log_end(store)
    path = store / "commitlog" / f"{end - end % (16 * 1024):020d}"
    data = bytearray(path.read_bytes())
    data[end % (16 * 1024) : end % (16 * 1024) + 30] = b"\x55" * 30
    path.write_bytes(data)
    (store / "abort").write_bytes(b"4711")
    assert "not closed by process 4711" in pyromq("store", "inspect", store).stdout
    assert pyromq("store", "verify", store).exit_code == 0
    result = pyromq("store", "recover", store, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (found["clean"], found["bytes_cut"], found["log_end"], found["messages"]) == (False, 30, end, MESSAGES)
    assert "clean" in pyromq("store", "inspect", store).stdout
    assert "cutoff" in pyromq("store", "inspect", store).stdout


def test_recover_refuses_damage_and_names_the_way_out(store: Path) -> None:
    """The recover point of a run that was killed: everything below it was on the disk."""
    position = record_positions(store)[30]
    damage(store, position + 200)
    opened = MessageStore(StoreConfig(root=store, segment_bytes=16 * 1024))
    point = RecoverPointFile(opened.disk, opened.paths.recover_point)
    good = point.load()
    assert good is not None
    point.save(replace(good, queues_to=0, clean=False))
    point.close()
    (store / "abort").write_bytes(b"4711")
    result = pyromq("store", "recover", store)
    assert result.exit_code == 1
    assert f"--truncate-at {position}" in result.stderr
    assert "Traceback" not in result.output
    result = pyromq("store", "recover", store, "--truncate-at", str(position), "--yes")
    assert result.exit_code == 0, result.output
    assert "9 readable messages" in result.stderr
    assert pyromq("store", "verify", store).exit_code == 0
    assert log_end(store) == position


def test_giving_up_messages_is_asked_for_first(store: Path) -> None:
    position = record_positions(store)[30]
    result = pyromq("store", "recover", store, "--truncate-at", str(position), answer="n\n")
    assert result.exit_code == 1
    assert "10 readable messages" in result.stderr
    assert "nothing was changed" in result.stderr
    assert json.loads(pyromq("store", "inspect", store, "--json").stdout)["messages"] == MESSAGES
    result = pyromq("store", "recover", store, "--truncate-at", str(position), "--yes", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["given_up"]["messages"] == 10
    assert found["log_end"] == position
    assert found["messages"] == 30
    assert pyromq("store", "verify", store).exit_code == 0


def test_a_position_inside_a_record_is_refused(store: Path) -> None:
    position = record_positions(store)[30]
    result = pyromq("store", "recover", store, "--truncate-at", str(position + 1), "--yes")
    assert result.exit_code == 1
    assert "no record begins there" in result.stderr
    assert "Traceback" not in result.output
    assert json.loads(pyromq("store", "inspect", store, "--json").stdout)["messages"] == MESSAGES


def test_a_store_in_use_can_be_looked_at_but_not_recovered(store: Path) -> None:
    with MessageStore(StoreConfig(root=store, segment_bytes=16 * 1024)):
        assert f"in use by process {os.getpid()}" in pyromq("store", "inspect", store).stdout
        assert pyromq("store", "verify", store).exit_code == 0
        result = pyromq("store", "recover", store)
        assert result.exit_code == 1
        assert f"in use by process {os.getpid()}" in result.stderr


# --- as a process ---------------------------------------------------------------------------------------------------


def test_the_command_as_a_process(store: Path) -> None:
    position = record_positions(store)[5]
    damage(store, position + 200)
    command = [sys.executable, "-m", "pyromq", "store", "verify", str(store), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert json.loads(done.stdout)["findings"][0]["position"] == position
    assert done.stderr == ""
