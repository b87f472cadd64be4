"""`pyromq send` and `pyromq consume` against a server of their own."""

from __future__ import annotations

import itertools
import signal
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.support.programs import SECONDS, Done, Program, command, environment, name_server_of, run, up
from pyromq.cli.messages.views import body_text
from pyromq.client.received import split_records
from pyromq.clock import ManualClock
from pyromq.config import StoreConfig
from pyromq.model.message import Draft
from pyromq.model.queue import MessageQueue
from pyromq.store.message_store import MessageStore

NUMBERS = itertools.count(1)


class Cluster:
    def __init__(self, home: Path, name_server: str) -> None:
        self.home = home
        self.name_server = name_server

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Done:
        return run(*arguments, cwd=self.home, stdin=stdin, NAMESRV_ADDR=self.name_server)

    def start(self, *arguments: str) -> Program:
        return Program(*arguments, cwd=self.home, NAMESRV_ADDR=self.name_server)


@pytest.fixture(scope="module")
def pyromq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("messages")
    with up(home) as program:
        yield Cluster(home, name_server_of(program))
        assert program.stop() == 0
        assert program.err == ""


@pytest.fixture
def topic() -> str:
    return f"topic-{next(NUMBERS)}"


def test_what_is_sent_is_consumed_with_its_tag(pyromq: Cluster, topic: str) -> None:
    sent = pyromq("send", topic, *"abcdefghij", "--tag", "T", "--key", "k")
    assert (sent.code, sent.err, len(sent.out.splitlines())) == (0, "", 10)
    shown = pyromq("consume", topic, "--count", "10", "--tag", "T || U")
    assert sorted(line.split("  ")[1] for line in shown.out.splitlines()) == list("abcdefghij")
    assert all(" [T]  " in line for line in shown.out.splitlines())


def test_a_delayed_message_has_no_place_yet(pyromq: Cluster, topic: str) -> None:
    sent = pyromq("send", topic, "x", "--delay-level", "1")
    assert sent.out.startswith(f"sent to {topic}, to be delivered later  id ")


def test_lines_from_a_pipe_may_hold_anything(pyromq: Cluster, topic: str) -> None:
    assert pyromq("send", topic, "-", stdin="größe ☕\n".encode() + b"\xff\x00\x1b[2J\n[bold]\r\n\nlast").code == 0
    shown = pyromq("consume", topic, "--count", "4")
    bodies = {line.split("  ", 1)[1] for line in shown.out.splitlines()}
    assert bodies == {"größe ☕", r"\xff\x00\x1b[2J", "[bold]", "last"}  # an empty line is no message


def test_a_topic_that_is_not_there_yet_is_waited_for(pyromq: Cluster, topic: str) -> None:
    with pyromq.start("consume", topic, "--count", "1", "--new-only") as consumer:
        consumer.until(f"no broker has a topic '{topic}' that may be read: waiting for it")
        assert pyromq("send", topic, "at last").code == 0
        assert consumer.wait() == 0
    assert consumer.out == "queue 0 offset 0  at last\n"


def test_only_what_is_new(pyromq: Cluster, topic: str) -> None:
    """One queue is written twice, so the second message is behind the first."""
    assert pyromq("send", topic, "old").code == 0
    with pyromq.start("consume", topic, "--new-only") as consumer, pyromq.start("consume", topic) as everything:
        everything.until("old")
        for number in itertools.count():
            assert pyromq("send", topic, f"new {number}").code == 0
            if "new" in consumer.out:
                break
        consumer.until("new")
        assert "old" not in consumer.out
        assert consumer.stop(signal.SIGINT) == 0
        assert everything.stop(signal.SIGINT) == 0
    assert consumer.err == ""


def test_the_end_of_a_pipe_ends_it(pyromq: Cluster, topic: str) -> None:
    """Like `pyromq consume … | head -1`, with nothing coming after the first line."""
    assert pyromq("send", topic, "only").code == 0
    with subprocess.Popen(
        command(["consume", topic]), cwd=pyromq.home, env=environment(NAMESRV_ADDR=pyromq.name_server),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == b"queue 0 offset 0  only\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(SECONDS) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["send", "bad topic!", "x"], "the topic 'bad topic!' may have only letters, digits"),
        (["send", "t", "x", "-n", "127.0.0.1:1"], "no name server answers: nobody answers at 127.0.0.1:1"),
        (["consume", "t", "-n", "a;b"], "'a' is no address of a name server: it is host:port"),
        (["consume", "t", "-n", " ; "], "no name server is given: use --name-servers"),
        (["send", "t", "x" * (4 << 20)], ""),
    ],
    ids=["topic", "nobody", "no address", "none", "too large"],
)
def test_what_goes_wrong_is_one_sentence(pyromq: Cluster, arguments: list[str], sentence: str) -> None:
    if len(arguments[-1]) > 1000:  # too long for a command line as well
        done = pyromq("send", "t", "-", stdin=b"x" * (4 << 20) + b"x\n")
    else:
        done = pyromq(*arguments)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"error: {sentence}")
    assert len(done.err.splitlines()) == 1


def test_a_wrong_filter_is_one_sentence(pyromq: Cluster, topic: str) -> None:
    assert pyromq("send", topic, "x").code == 0
    done = pyromq("consume", topic, "--tag", "||")
    assert (done.code, len(done.err.splitlines())) == (1, 1)
    assert "the filter expression is wrong" in done.err


def test_compressed_bodies_are_unpacked(tmp_path: Path) -> None:
    zipped, unknown = 1, 1 | 7 << 8
    drafts = [
        Draft(b"t", 0, zlib.compress(b"small"), storage_flags=zipped),
        Draft(b"t", 0, zlib.compress(bytes(100 << 20)), storage_flags=zipped),
        Draft(b"t", 0, b"no zlib", storage_flags=zipped),
        Draft(b"t", 0, b"?", storage_flags=unknown),
    ]
    with MessageStore(StoreConfig(root=tmp_path, segment_bytes=1 << 20), clock=ManualClock(1)) as store:
        store.append(drafts)
        store.dispatch()
        body = b"".join(bytes(view) for view in store.read("t", 0, 0).records)
    small, *unreadable = map(body_text, split_records(body, MessageQueue("t", "broker-a", 0)))
    assert small == "small"
    assert [text[0] + text[-1] for text in unreadable] == ["()"] * 3  # a sentence in the place of the body
