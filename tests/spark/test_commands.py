"""`pyromq spark …` from the command to the report: what it prints, how it ends, and what it keeps from the terminal.

Most of them run in this process, where a session is already there. The last runs as a person would, from the start of
Spark on.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from cli.support import programs
from pyromq.cli.app import app
from pyromq.sync import Message, Producer
from pyromq.testing import BrokerProcess

pytestmark = pytest.mark.spark

MESSAGES = 40


def pyromq(*arguments: str | Path, answer: str = "") -> Result:
    return CliRunner().invoke(app, ["spark", *map(str, arguments)], input=answer)


@pytest.fixture(scope="module")
def topic(mq: BrokerProcess) -> str:
    mq.create_topic("commands", 2)
    with Producer(mq.name_servers, group="commands") as producer:
        for number in range(MESSAGES):
            producer.send(Message("commands", f"order {number}", tags="paid" if number % 4 == 0 else "created"))
    return "commands"


@pytest.fixture(autouse=True)
def _cluster(monkeypatch: pytest.MonkeyPatch, mq: BrokerProcess, spark: SparkSession) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", mq.name_servers)


def test_a_topic_goes_to_a_lake_and_comes_back(topic: str, mq: BrokerProcess, tmp_path: Path) -> None:
    archived = pyromq("archive", tmp_path / "lake", "--topic", topic, "--json")
    assert archived.exit_code == 0, archived.output
    assert json.loads(archived.stdout)["rows"] == MESSAGES
    again = pyromq("archive", tmp_path / "lake", "--topic", topic)
    assert again.stdout.startswith("0 messages"), "it knows what it has"
    mq.create_topic("commands-again", 2)
    replayed = pyromq("replay", tmp_path / "lake", "--to", "commands-again", "--where", "tags = 'paid'")
    assert re.match(r"10 messages of \d queues? in .+: 10 to commands-again", replayed.stdout), replayed.output


def test_a_replay_to_where_it_came_from_is_asked_about(topic: str, tmp_path: Path) -> None:
    asked = pyromq("replay", tmp_path / "lake")
    assert asked.exit_code == 1
    assert "into the topics it came from" in asked.stderr
    assert "--yes" in asked.stderr


def test_a_page_about_a_topic(topic: str, tmp_path: Path) -> None:
    looked = pyromq("insight", tmp_path / "report", "--topic", topic)
    assert looked.exit_code == 0, looked.output
    assert f"page    {tmp_path}/report/insight.html" in looked.stdout
    assert "<html" in (tmp_path / "report" / "insight.html").read_text(encoding="utf-8")


def test_a_store_is_backed_up_checked_and_restored(topic: str, mq: BrokerProcess, tmp_path: Path) -> None:
    store, backup, restored = mq.data_dir / "store", tmp_path / "backup", tmp_path / "restored"
    made = pyromq("backup", store, backup)
    assert made.exit_code == 0, made.output
    assert "every record verified" in made.stdout
    checked = pyromq("audit", backup, "--json")
    assert checked.exit_code == 0, checked.output
    assert json.loads(checked.stdout)["errors"] == 0
    put_back = pyromq("restore", backup, restored)
    assert put_back.exit_code == 0, put_back.output
    assert "Start a broker on it" in put_back.stdout
    assert "are the same" in pyromq("audit", backup, "--against", restored).stdout
    rebuilt = pyromq("rebuild", restored)
    assert rebuilt.exit_code == 0, rebuilt.output
    assert "ready to be started" in rebuilt.stdout
    assert pyromq("audit", restored).exit_code == 0


def test_damage_is_found_and_ends_with_1(topic: str, mq: BrokerProcess, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    pyromq("backup", mq.data_dir / "store", backup)
    chunk = max((path for path in backup.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    data = bytearray(chunk.read_bytes())
    data[100] ^= 1
    chunk.write_bytes(data)
    checked = pyromq("audit", backup)
    assert checked.exit_code == 1
    assert "1 errors" in checked.stdout


def test_what_was_sent_beside_what_was_consumed(topic: str, mq: BrokerProcess, tmp_path: Path) -> None:
    (tmp_path / "consumed.txt").write_text("nobody-sent-this\n", encoding="utf-8")
    compared = pyromq("audit", mq.data_dir / "store", "--consumed", tmp_path / "consumed.txt", "--topic", topic)
    assert compared.exit_code == 1
    assert f"{MESSAGES} ids were sent and 1 consumed: {MESSAGES} are missing, 1 were never sent" in compared.stdout
    assert "never sent: nobody-sent-this" in compared.stdout
    unnamed = pyromq("audit", mq.data_dir / "store", "--consumed", tmp_path / "consumed.txt")
    assert unnamed.exit_code == 2
    assert "--topic" in unnamed.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["archive", "LAKE"], "one of topics and pattern says what to archive"),
        (["archive", "LAKE", "-t", "commands", "--format", "hudi"], "one of parquet, delta, iceberg"),
        (["archive", "LAKE", "-t", "no-such-topic"], "no-such-topic"),
        (["archive", "LAKE", "-t", "commands", "-n", "127.0.0.1:1"], "no name server answers"),
        (["archive", "LAKE", "-t", "commands", "--conf", "nonsense"], "write it as key=value"),
        (["replay", "LAKE", "--to", "commands"], "there is no lake at"),
        (["backup", "nowhere", "LAKE"], "nowhere"),
        (["audit", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_told_in_a_sentence(arguments: list[str], said: str, topic: str, tmp_path: Path) -> None:
    done = pyromq(*(str(tmp_path / "lake") if word == "LAKE" else word for word in arguments))
    assert done.exit_code == 1
    assert said in done.stderr
    assert "Traceback" not in done.output
    assert "\tat " not in done.output, "no Java"
    assert done.stderr.count("\n") <= 2, done.stderr


# --- as processes ----------------------------------------------------------------------------------------------------


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    blocked = tmp_path / "sitecustomize.py"
    blocked.write_text("import sys\nsys.modules['pyspark'] = None\n", encoding="utf-8")
    done = programs.run("spark", "audit", "store", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert (done.code, done.out) == (1, "")
    assert done.err == 'error: this needs Spark, which is not installed: pip install "pyromq[spark]"\n'


def test_without_java_it_says_so(tmp_path: Path) -> None:
    bin_directory = Path(sys.executable).parent
    done = programs.run("spark", "audit", "store", cwd=tmp_path, PATH=str(bin_directory), JAVA_HOME="")
    assert done.code == 1
    assert "Spark needs Java 17 or newer" in done.err
    assert "Traceback" not in done.err


def test_ctrl_c_ends_a_job_in_the_middle(topic: str, mq: BrokerProcess, tmp_path: Path) -> None:
    with programs.Program(
        "spark", "insight", "report", "--topic", topic, "--master", "local[1]", cwd=tmp_path,
        NAMESRV_ADDR=mq.name_servers,
    ) as program:  # fmt: skip
        program.until("looking for the first and the last message", seconds=120)
        assert program.stop(signal.SIGINT) == 130
    assert program.out == ""
    assert program.err.splitlines()[-1] == "stopped before it was done: what was finished is kept"
    assert "Traceback" not in program.err


def test_as_a_person_runs_it(topic: str, mq: BrokerProcess, tmp_path: Path) -> None:
    """Nothing of Spark's own noise is seen, a script gets JSON and nothing else, and Ctrl-C ends it in order."""
    with programs.Program(
        "spark", "archive", "lake", "--topic", topic, "--follow", "--every", "0.5", "--json", "--master", "local[1]",
        cwd=tmp_path, NAMESRV_ADDR=mq.name_servers,
    ) as program:  # fmt: skip
        program.until(r"messages archived: 40 of 40", seconds=120)
        assert program.stop(signal.SIGINT) == 0
    assert json.loads(program.out)["rows"] == MESSAGES
    assert program.err.splitlines() == [
        "starting Spark",
        f"messages archived: {MESSAGES} of {MESSAGES}",
        "stopping after what is under way; once more ends it at once",
    ]
