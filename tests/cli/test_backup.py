"""`pyromq backup` and `pyromq restore`, as a person or a script meets them."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import pyromq.testing
from cli.support.programs import Program
from cli.support.terminals import CTRL_C, Terminal
from pyromq import Message, Producer
from pyromq.backup.history import newest, wanted
from pyromq.backup.target import LocalTarget
from pyromq.cli.app import app
from pyromq.testing import LocalBroker
from store.small_store import MESSAGES, fill, flip, make_store, open_store


def pyromq_(*arguments: str | Path, answer: str = "") -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)), input=answer, env={"COLUMNS": "200"})


def ok(*arguments: str | Path) -> str:
    result = pyromq_(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def send(mq: LocalBroker, count: int) -> None:
    async def story() -> None:
        async with Producer(mq.name_servers, group="producers") as producer:
            for number in range(count):
                await producer.send(Message("orders", b"%04d" % number + b"x" * 1000))

    asyncio.run(story())


@pytest.fixture
def store(tmp_path: Path) -> Path:
    make_store(tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture(scope="module")
def mq() -> Iterator[LocalBroker]:
    with pyromq.testing.broker(topics={"orders": 2}) as broker:
        send(broker, 50)
        yield broker


# --- a directory -----------------------------------------------------------------------------------------------------


def test_a_directory_is_saved_listed_verified_and_restored(store: Path, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    assert f"Added {MESSAGES} messages" in ok("backup", target, "--from-store", store)
    assert "Nothing has changed since manifest 1" in ok("backup", "make", target, "--from-store", store)
    opened = open_store(store)
    fill(opened, 10)
    opened.close()
    report = json.loads(ok("backup", target, "--from-store", store, "--json"))
    assert (report["records"], report["manifest"]["number"]) == (10, 2)
    shown = ok("backup", "list", target)
    assert "2 runs of store" in shown
    assert [run["new_records"] for run in json.loads(ok("backup", "list", target, "--json"))] == [MESSAGES, 10]
    assert f"{MESSAGES + 10} messages in" in ok("backup", "verify", target)
    assert "is whole" in ok("backup", "verify", target, "--manifest", "1")
    assert f"has {MESSAGES + 10} messages" in ok("restore", target, tmp_path / "all")
    assert f"has {MESSAGES} messages" in ok("restore", target, tmp_path / "first", "--manifest", "1")
    end = wanted(LocalTarget(target), 1).end
    half = json.loads(ok("restore", target, tmp_path / "half", "--until-position", str(end // 2), "--json"))
    assert 0 < half["end"] <= end // 2
    assert json.loads(ok("store", "inspect", tmp_path / "all", "--json"))["log"]["start"] == 0


def test_a_directory_with_something_in_it_is_never_restored_to(store: Path, tmp_path: Path) -> None:
    ok("backup", tmp_path / "backup", "--from-store", store)
    result = pyromq_("restore", tmp_path / "backup", store)
    assert result.exit_code == 1
    assert "is not empty" in result.stderr


def test_damage_names_the_chunk_and_what_to_do(store: Path, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    ok("backup", target, "--from-store", store)
    [chunk, *_] = sorted((target / "log" / "0001").iterdir())
    flip(chunk, 700)
    result = pyromq_("backup", "verify", target)
    assert result.exit_code == 1
    assert chunk.name in result.stdout
    assert "another copy of the backup" in result.stderr
    result = pyromq_("restore", target, tmp_path / "new")
    assert result.exit_code == 1
    assert chunk.name in result.stderr
    assert not (tmp_path / "new").exists(), "what failed leaves nothing"
    assert "use another copy of the backup, or an older manifest" in " ".join(result.stderr.split())
    flip(target / "manifests" / "00000001.json", 100)
    result = pyromq_("backup", "list", target)
    assert (result.exit_code, "damaged" in result.stdout) == (1, True)


def test_old_messages_are_pruned_when_somebody_agrees(store: Path, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    ok("backup", target, "--from-store", store)
    before = ["backup", "prune", target, "--before", "2030-01-01 00:00"]
    refused = pyromq_(*before)
    assert refused.exit_code == 1
    assert "nothing was done" in refused.stderr
    assert "Removed" in ok(*before, "--yes")
    assert len(newest(LocalTarget(target)).chunks) == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["backup", "T"], "say what is backed up"),
        (["backup", "T", "--from-store", "S", "--broker", "a"], "not both"),
        (["backup", "T", "--from-store", "S", "--follow"], "--follow is for a running broker"),
        (["backup", "T", "--from-store", "nowhere"], "nowhere"),
        (["backup", "list", "T"], "there is no backup in"),
        (["backup", "verify", "T"], "there is no backup in"),
        (["restore", "T", "new"], "there is no backup in"),
        (["restore", "T", "new", "--until", "1h", "--until-position", "3"], "not both"),
        (["backup", "T", "--ha-address", "here"], "an address is host:port"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = pyromq_(*arguments)
    assert result.exit_code in (1, 2)
    assert sentence in " ".join(result.output.replace("│", " ").split())
    assert not (tmp_path / "T" / "manifests").exists()


def test_a_place_inside_the_store_is_no_place(store: Path) -> None:
    result = pyromq_("backup", store / "backup", "--from-store", store)
    assert result.exit_code == 1
    assert "would be lost with it" in result.stderr


# --- a running broker ------------------------------------------------------------------------------------------------


def test_a_broker_is_saved_by_its_name_its_address_or_its_replication_port(mq: LocalBroker, tmp_path: Path) -> None:
    host, _, port = mq.broker_address.rpartition(":")
    ways = {
        "name": ["--broker", "broker-a", "-n", mq.name_servers],
        "address": ["--broker", mq.broker_address],
        "port": ["--ha-address", f"{host}:{int(port) + 1}"],
    }
    for name, way in ways.items():
        assert "every record verified" in ok("backup", tmp_path / name, *way)
        assert "is whole" in ok("backup", "verify", tmp_path / name)
        assert json.loads(ok("backup", "list", tmp_path / name, "--json"))[0]["source"] == "broker-a"
    assert "messages in" in ok("restore", tmp_path / "name", tmp_path / "store")


def test_nobody_there_is_said(tmp_path: Path) -> None:
    result = pyromq_("backup", tmp_path / "backup", "--broker", "127.0.0.1:1")
    assert result.exit_code == 1
    assert "nobody answers at 127.0.0.1:1" in result.stderr


def test_who_follows_is_stopped_by_ctrl_c_and_says_what_there_is(mq: LocalBroker, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    arguments = ["backup", target, "--broker", mq.broker_address, "--follow", "--every", "1"]
    with Program(*arguments, cwd=tmp_path) as program:
        _until_there(program, target)
        assert program.stop(signal.SIGINT) == 0
        assert "every record verified" in program.out
    assert "is whole" in ok("backup", "verify", target)
    shutil.rmtree(target)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_who_follows_adds_what_came_since_the_last_time_before_it_stops(
    mq: LocalBroker, tmp_path: Path, how: signal.Signals
) -> None:
    target = tmp_path / "backup"
    with Program("backup", target, "--broker", mq.broker_address, "--follow", cwd=tmp_path) as program:
        program.until("following, every 60 s; Ctrl-C adds what is new, and stops")
        before = wanted(LocalTarget(target)).records
        send(mq, 7)
        assert program.stop(how) == 0
        assert "every record verified" in program.out
    assert wanted(LocalTarget(target)).records == before + 7


def test_on_a_terminal_no_bar_stands_still_while_it_follows(mq: LocalBroker, tmp_path: Path) -> None:
    arguments = ["backup", tmp_path / "backup", "--broker", mq.broker_address, "--follow"]
    with Terminal(*arguments, cwd=tmp_path) as terminal:
        terminal.until("following, every 60 s")
        terminal.type(CTRL_C)
        assert terminal.wait() == 0
    assert "Saving" not in terminal.said.partition("following")[2]
    assert "verified" in terminal.said


def test_a_backup_that_lacks_a_chunk_gets_no_more_of_them(store: Path, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    ok("backup", target, "--from-store", store)
    [first, *_] = sorted((target / "log" / "0001").iterdir())
    kept = first.read_bytes()
    for damage, words in ((first.unlink, "is missing"), (lambda: first.write_bytes(kept[:-1]), "was saved with")):
        damage()
        result = pyromq_("backup", target, "--from-store", store)
        assert result.exit_code == 1
        said = " ".join(result.stderr.split())
        assert words in said
        assert "--new-series" in said
    first.write_bytes(kept)
    assert "Nothing has changed" in ok("backup", target, "--from-store", store)


def test_a_file_is_no_place_for_a_backup_and_a_restored_store_says_how_it_is_started(
    store: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    result = pyromq_("backup", tmp_path / "file", "--from-store", store)
    assert (result.exit_code, "is a file, and a backup is a directory" in " ".join(result.stderr.split())) == (1, True)
    ok("backup", tmp_path / "backup", "--from-store", store)
    assert f"`pyromq broker --store {tmp_path / 'new'}`" in ok("restore", tmp_path / "backup", tmp_path / "new")
    refused = pyromq_("up", "--data-dir", tmp_path / "new")
    assert refused.exit_code == 1
    assert "is itself a store" in refused.stderr
    early = pyromq_("restore", tmp_path / "backup", tmp_path / "early", "--until", "2001-01-01 00:00")
    assert (early.exit_code, " ms," in early.stderr) == (1, False)


def _until_there(program: Program, target: Path) -> None:
    async def there() -> None:
        async with asyncio.timeout(30):
            while newest(LocalTarget(target)) is None:
                assert program.process.poll() is None, program.err
                await asyncio.sleep(0.02)

    asyncio.run(there())
