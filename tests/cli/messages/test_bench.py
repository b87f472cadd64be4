"""`pyromq bench` against a server of its own: what it counts is what happened."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.support.programs import Done, Program, name_server_of, run, up
from cli.support.terminals import CTRL_C, Terminal
from pyromq.admin.admin import Admin
from pyromq.cli.messages.bench_load import MARK, WORD, Load, Receiving, Sending, Span, monotonic
from pyromq.client.message import Message
from pyromq.client.producer import Producer
from pyromq.client.received import ReceivedMessage
from pyromq.errors import SendFailed, SystemBusy
from pyromq.metrics import FINE_BOUNDS, Histogram


class Cluster:
    def __init__(self, home: Path, name_server: str) -> None:
        self.home = home
        self.name_server = name_server

    def bench(self, *arguments: str) -> Done:
        return run("bench", *arguments, cwd=self.home, NAMESRV_ADDR=self.name_server)

    def figures(self, *arguments: str) -> dict[str, Any]:
        done = self.bench(*arguments, "--json")
        assert (done.code, done.err) == (0, "")
        return cast("dict[str, Any]", json.loads(done.out))

    def names(self) -> list[str]:
        async def names() -> list[str]:
            async with Admin(self.name_server) as admin:
                topics, groups = await admin.topics.list(), await admin.groups.list()
                return [*(one.name for one in topics), *(one.name for one in groups)]

        return asyncio.run(names())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("bench")
    with up(home) as program:
        yield Cluster(home, name_server_of(program))
        assert program.stop() == 0


def in_order(latency: dict[str, float]) -> bool:
    values = [latency[name] for name in ("p50", "p90", "p99", "p99_9", "max")]
    return all(value > 0 for value in values) and values == sorted(values) and 0 < latency["mean"] <= latency["max"]


# --- what it measures ------------------------------------------------------------------------------------------------


def test_every_message_is_sent_and_received_once(cluster: Cluster) -> None:
    figures = cluster.figures("--messages", "700", "--concurrency", "16", "--size", "200")
    assert figures["send"]["messages"] == figures["receive"]["messages"] == 700
    assert (figures["missing"], figures["twice"], figures["errors"]) == (0, 0, {})
    for flow in (figures["send"], figures["receive"]):
        assert in_order(flow["latency_ms"])
        assert flow["per_second"] == pytest.approx(flow["messages"] / flow["seconds"], rel=0.01)
        assert flow["mib_per_second"] == pytest.approx(flow["per_second"] * 200 / (1 << 20), rel=0.1, abs=0.02)
    assert not [name for name in cluster.names() if "pyromq-bench-" in name]


@pytest.mark.parametrize("how", [("--batch", "64"), ("--auto-batch",)])
def test_batches_send_as_many(cluster: Cluster, how: tuple[str, ...]) -> None:
    figures = cluster.figures("--messages", "500", "--concurrency", "4", *how)
    assert figures["send"]["messages"] == figures["receive"]["messages"] == 500
    assert figures["missing"] == 0


def test_a_rate_is_kept(cluster: Cluster) -> None:
    send = cluster.figures("--mode", "send", "--rate", "100", "--seconds", "1.5")["send"]
    assert 100 <= send["messages"] <= 152
    assert send["per_second"] < 130


def test_a_topic_is_filled_and_read_again(cluster: Cluster) -> None:
    filled = cluster.figures("--mode", "send", "--topic", "bench-backlog", "--messages", "300", "--size", "100")
    assert filled["receive"] is None
    read = cluster.figures("--mode", "consume", "--topic", "bench-backlog", "--messages", "300")
    assert read["send"] is None
    assert read["receive"]["messages"] >= 300
    assert "bench-backlog" in cluster.names()


# --- how it is shown -------------------------------------------------------------------------------------------------


def test_people_get_a_table(cluster: Cluster) -> None:
    done = cluster.bench("--messages", "50")
    assert (done.code, done.err) == (0, "")
    head, _, *rows = (line.split() for line in done.out.splitlines() if line.strip())
    assert head == ["send", "receive"]
    assert rows[0] == ["messages", "50", "50"]
    assert [row[0] for row in rows[3:9]] == ["mean", "p50", "p90", "p99", "p99.9", "max"]
    assert max(map(len, done.out.splitlines())) <= 80


def test_a_terminal_gets_a_bar_too(cluster: Cluster) -> None:
    with Terminal(
        "bench", "--seconds", "1", "--mode", "send", cwd=cluster.home, NAMESRV_ADDR=cluster.name_server
    ) as terminal:
        terminal.until(r"send .*━.*/s")
        assert terminal.wait() == 0
    assert "p99.9" in terminal.said


def test_ctrl_c_ends_it_with_the_figures_so_far(cluster: Cluster) -> None:
    arguments = ("bench", "--seconds", "60", "--rate", "200")
    with Terminal(*arguments, cwd=cluster.home, NAMESRV_ADDR=cluster.name_server) as terminal:
        terminal.until(r"both .*[1-9]\d*  .*/s")
        terminal.type(CTRL_C)
        assert terminal.wait() == 130
    assert "Traceback" not in terminal.said
    assert "p99.9" in terminal.said
    assert not [name for name in cluster.names() if "pyromq-bench-" in name]


# --- without a cluster -----------------------------------------------------------------------------------------------


def test_it_brings_its_own_broker(tmp_path: Path) -> None:
    done = run("bench", "--embedded", "--messages", "100", "--json", cwd=tmp_path, TMPDIR=str(tmp_path))
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["receive"]["messages"] == 100
    assert list(tmp_path.iterdir()) == []


def test_its_own_broker_ends_with_it(tmp_path: Path) -> None:
    with Program("bench", "--embedded", "--rate", "50", "--json", cwd=tmp_path, TMPDIR=str(tmp_path)) as program:
        pause = threading.Event()
        while not list(tmp_path.glob("pyromq-*/store/commitlog")):
            assert program.process.poll() is None
            pause.wait(0.02)  # nobody tells when the broker has made its files
        program.process.send_signal(signal.SIGTERM)
        assert program.wait() == 130
    assert json.loads(program.out)["interrupted"] is True
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--mode", "consume"), "give a --topic that has messages"),
        (("--name-servers", "127.0.0.1:1", "--messages", "1"), "127.0.0.1:1"),
    ],
)
def test_what_cannot_work_is_one_sentence(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = run("bench", *arguments, cwd=tmp_path)
    assert done.code == 1
    assert done.err.startswith("error: ")
    assert said in done.err
    assert len(done.err.splitlines()) == 1


# --- the load --------------------------------------------------------------------------------------------------------


LOAD = Load(topic="t", messages=30, seconds=None, size=100, concurrency=5, batch=1, rate=None)


class FakeProducer:
    """Every third message fails, in turn as certainly not stored and as refused."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.under_way = 0
        self.most_under_way = 0

    async def send(self, message: Message) -> None:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        self.bodies.append(message.body)
        if len(self.bodies) % 6 == 0:
            raise SendFailed("not stored")
        if len(self.bodies) % 3 == 0:
            raise SystemBusy("later")


def test_errors_are_counted_by_their_kind_and_the_rest_goes_on() -> None:
    producer = FakeProducer()
    sending = Sending(cast("Producer", producer), LOAD)
    asyncio.run(sending.run())
    assert sending.acknowledged.count == 20
    assert sending.errors == {"SendFailed": 5, "SystemBusy": 5}
    assert producer.most_under_way == LOAD.concurrency
    assert {len(body) for body in producer.bodies} == {LOAD.size}
    assert sorted(MARK.unpack_from(body)[1] for body in producer.bodies) == list(range(30))


def messages(*numbers: int) -> Sequence[ReceivedMessage]:
    marked = (Message("t", MARK.pack(WORD, number, monotonic() - 0.5)) for number in numbers)
    return cast("Sequence[ReceivedMessage]", [*marked, Message("t", b"somebody else's")])


def test_what_comes_twice_is_counted_once() -> None:
    async def story() -> None:
        receiving = Receiving(is_own_load=True)
        await receiving(messages(0, 1, 2))
        await receiving(messages(2, 70_000, 1_000_000))
        assert receiving.received.count == 5
        assert receiving.twice == 1
        assert receiving.latencies.quantile(0.5) == pytest.approx(0.5, rel=0.1)

    asyncio.run(story())


def test_waiting_ends_when_nothing_comes_any_more() -> None:
    async def story() -> None:
        receiving = Receiving(is_own_load=True)
        asyncio.get_running_loop().call_later(0.05, asyncio.ensure_future, receiving(messages(0)))
        await receiving.until(lambda: receiving.received.count >= 2, idle_s=0.3)
        assert receiving.received.count == 1

    asyncio.run(story())


def test_a_span_goes_from_the_first_to_the_last() -> None:
    span = Span()
    assert (span.seconds, span.per_second) == (0.0, 0.0)
    span.add(1, 10.0, 10.5)
    span.add(3, 10.2, 12.0)
    assert (span.count, span.seconds, span.per_second) == (4, 2.0, 2.0)


@settings(deadline=None)
@given(st.lists(st.floats(2e-6, 100.0), min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.99, 0.999]))
def test_percentiles_are_right_to_one_percent(values: list[float], share: float) -> None:
    histogram = Histogram(FINE_BOUNDS)
    for value in values:
        histogram.record(value)
    exact = sorted(values)[max(0, -(-int(share * 1000) * len(values) // 1000) - 1)]
    assert exact <= histogram.quantile(share) * (1 + 1e-9) <= exact * 1.0101
