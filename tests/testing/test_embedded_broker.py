"""A broker for a test: real, quick, as many as one likes, and gone without a trace."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

import pyromq.testing
from late import in_time
from pyromq.errors import ConfigError, NotNow, ServiceError, StoreFenced, Unreachable
from pyromq.net.address import parse_address
from pyromq.testing import FaultProxy
from pyromq.testing.brokers.asking import ask
from pyromq.testing.brokers.ports import free_port
from pyromq.wire.bodies.routes import TopicRoute
from pyromq.wire.codes import ResponseCode
from pyromq.wire.frames import encode_frame
from pyromq.wire.requests.client import PullMessage, encode_request
from pyromq.wire.requests.nameserver import GetRoute
from testing.simple_client import read, send

OPEN_FILES = Path("/proc/self/fd")


@pytest.fixture
def no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads, files, sockets and log handlers are as before."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pyromq.testing.broker():  # imports and caches of the first broker are not leaks
        pass

    def traces() -> tuple[object, ...]:
        files = len(list(OPEN_FILES.iterdir()))
        return threading.enumerate(), files, logging.getLogger().handlers[:], list(tmp_path.iterdir())

    before = traces()
    yield
    assert traces() == before


def route(name_servers: str, topic: str) -> TopicRoute:
    answer = ask(name_servers, GetRoute(topic=topic))
    assert answer.code == ResponseCode.SUCCESS, answer.reason
    return TopicRoute.decode(answer.body)


@pytest.mark.usefixtures("no_trace")
def test_what_is_sent_is_read() -> None:
    with pyromq.testing.broker() as mq:
        assert send(mq, "orders", b"one coffee") == 0
        assert send(mq, "orders", b"one tea") == 1
        assert read(mq, "orders") == [b"one coffee", b"one tea"]
        assert mq.is_running
        assert (mq.data_dir / "store" / "commitlog").is_dir()
    assert not mq.is_running


@pytest.mark.usefixtures("no_trace")
def test_it_starts_and_stops_well_under_a_second() -> None:
    seconds: list[float] = []
    for _ in range(5):
        began = perf_counter()
        with pyromq.testing.broker(topics={"orders": 4}):
            pass
        seconds.append(perf_counter() - began)
    in_time(min(seconds), 0.5)


@pytest.mark.usefixtures("no_trace")
def test_topics_are_known_when_the_block_begins() -> None:
    with pyromq.testing.broker(topics={"orders": 3, "payments": 1}, auto_create_topics=False) as mq:
        orders = route(mq.name_servers, "orders")
        assert orders.queues[0].write_queues == 3
        assert list(orders.brokers[0].addresses.values()) == [mq.broker_address]
        assert route(mq.name_servers, "payments").queues[0].read_queues == 1
        with pytest.raises(AssertionError, match="not exist"):
            send(mq, "never-made", b"")
        mq.create_topic("made-later", 2)
        assert route(mq.name_servers, "made-later").queues[0].write_queues == 2


def test_topics_may_be_given_by_name_only() -> None:
    with pyromq.testing.broker(topics=["orders"]) as mq:
        assert route(mq.name_servers, "orders").queues[0].write_queues == 4


@pytest.mark.usefixtures("no_trace")
def test_a_restart_keeps_ports_and_data() -> None:
    with pyromq.testing.broker() as mq:
        send(mq, "orders", b"before")
        addresses = mq.name_servers, mq.broker_address
        mq.restart()
        assert (mq.name_servers, mq.broker_address) == addresses
        send(mq, "orders", b"after")
        assert read(mq, "orders") == [b"before", b"after"]


@pytest.mark.usefixtures("no_trace")
def test_a_stopped_one_is_not_reached_until_it_is_started() -> None:
    with pyromq.testing.broker(topics=["orders"]) as mq:
        mq.stop()
        assert not mq.is_running
        with pytest.raises(Unreachable):
            send(mq, "orders", b"")
        mq.start()
        assert send(mq, "orders", b"back") == 0


@pytest.mark.usefixtures("no_trace")
def test_several_side_by_side_know_nothing_of_each_other() -> None:
    with ExitStack() as stack:
        brokers = [stack.enter_context(pyromq.testing.broker()) for _ in range(3)]
        for number, mq in enumerate(brokers):
            send(mq, "orders", b"%d" % number)
        assert [read(mq, "orders") for mq in brokers] == [[b"0"], [b"1"], [b"2"]]


def test_two_brokers_of_one_cluster() -> None:
    with pyromq.testing.broker(topics=["orders"]) as first:
        joined = {"name": "broker-b", "name_servers": [first.name_servers]}
        with pyromq.testing.broker(topics=["orders"], config=joined) as second:
            brokers = route(first.name_servers, "orders").brokers
            found = {broker.name: list(broker.addresses.values()) for broker in brokers}
            assert found == {"broker-a": [first.broker_address], "broker-b": [second.broker_address]}


@pytest.mark.usefixtures("no_trace")
def test_the_callers_loop_goes_on_while_one_starts() -> None:
    async def story() -> None:
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0)

        heart = asyncio.create_task(beat())
        async with pyromq.testing.broker() as mq:
            assert beats > 3
            await asyncio.to_thread(send, mq, "orders", b"hello")
            assert read(mq, "orders") == [b"hello"]  # blocking is possible too: the broker has a thread of its own
        heart.cancel()

    asyncio.run(story())


@pytest.mark.usefixtures("no_trace")
def test_a_start_that_is_cancelled_is_undone() -> None:
    async def story() -> None:
        async def use() -> None:
            async with pyromq.testing.broker():
                raise AssertionError("it was cancelled before")

        task = asyncio.create_task(use())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())


def test_a_given_directory_is_kept(tmp_path: Path) -> None:
    home = tmp_path / "not" / "there" / "yet"
    with pyromq.testing.broker(data_dir=home) as mq:
        send(mq, "orders", b"kept")
        assert mq.data_dir == home
    with pyromq.testing.broker(data_dir=str(home)) as mq:
        assert read(mq, "orders") == [b"kept"]


def test_settings_and_a_port_of_ones_own() -> None:
    port = free_port()
    with pyromq.testing.broker(flush="sync", config={"store.max_body_bytes": 100, "listen_port": port}) as mq:
        assert mq.broker_address == f"127.0.0.1:{port}"
        send(mq, "orders", b"x" * 100)
        with pytest.raises(AssertionError, match="100"):
            send(mq, "orders", b"x" * 101)


def test_a_little_room_is_enough() -> None:
    with pyromq.testing.broker() as mq:
        send(mq, "orders", b"hello")
        used = sum(path.stat().st_blocks * 512 for path in mq.data_dir.rglob("*") if path.is_file())
        assert used < 64 << 20


def test_environment_variables_are_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYROMQ_BROKER_NAME", "of-this-machine")
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    with pyromq.testing.broker(topics=["orders"]) as mq:
        assert route(mq.name_servers, "orders").brokers[0].name == "broker-a"


def test_behind_a_proxy_clients_are_told_the_proxys_address() -> None:
    async def story() -> None:
        async with FaultProxy() as proxy, pyromq.testing.broker(topics=["orders"], advertise=proxy.address) as mq:
            proxy.target = mq.broker_address
            assert mq.broker_address != proxy.address
            [told] = route(mq.name_servers, "orders").brokers[0].addresses.values()
            assert told == proxy.address
            found = await asyncio.to_thread(ask, told, GetRoute(topic="orders"))
            assert found.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "the broker has answered, through the proxy"
            assert proxy.accepted == 1

    asyncio.run(story())


# --- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"flush": "never"}, 'flush = \'never\' cannot work: it is "async" or "sync"'),
        ({"topics": "orders"}, 'give a list, \\["orders"\\]'),
        ({"topics": {"orders": 0}}, "topic orders with 0 queues cannot work"),
        ({"advertise": "nowhere"}, "advertise = 'nowhere' cannot work: an address is host:port"),
        ({"config": {"store.root": "x"}}, "store.root cannot be set in config: give data_dir instead"),
        ({"config": {"max_pul_bytes": 1}}, "there is no setting max_pul_bytes; did you mean max_pull_bytes?"),
        ({"config": {"max_pull_bytes": 0}}, "max_pull_bytes = 0 cannot work"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        pyromq.testing.broker(**asked)


@pytest.mark.usefixtures("no_trace")
def test_a_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pyromq.testing.broker() as mq:
        port = int(mq.broker_address.rpartition(":")[2])
        with pytest.raises(ConfigError, match="another program listens there"):
            pyromq.testing.broker(config={"listen_port": port}).__enter__()
        with pytest.raises(ServiceError, match="was not made"):
            pyromq.testing.broker(topics=["no spaces, please"]).__enter__()


def test_it_says_when_it_cannot_be_used() -> None:
    mq = pyromq.testing.broker()
    for ask_it in (lambda: mq.name_servers, lambda: mq.broker_address, lambda: mq.data_dir):
        with pytest.raises(NotNow):
            ask_it()
    with mq, pytest.raises(NotNow, match="runs already"):
        mq.start()
    with pytest.raises(NotNow, match="make another one"):
        mq.start()
    mq.close()  # once more does no harm


def test_a_store_that_fails_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test whose broker broke must not pass unnoticed."""
    from pyromq.broker.broker import Broker

    async def fails(_: Broker) -> None:
        raise StoreFenced(OSError(5, "the disk is gone"))

    monkeypatch.setattr(Broker, "wait_failed", fails)
    with pytest.raises(StoreFenced, match="the disk is gone"), pyromq.testing.broker() as mq:
        assert mq.is_running


def test_importing_it_costs_nothing() -> None:
    code = (
        "import sys, pyromq.testing.pytest_plugin\n"
        "ours = {name for name in sys.modules if name.startswith('pyromq.')}\n"
        "assert ours == {'pyromq.testing', 'pyromq.testing.pytest_plugin'}, ours\n"
        "assert pyromq.testing.SimDisk.__name__ == 'SimDisk'\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_every_public_name_is_there() -> None:
    for name in pyromq.testing.__all__:
        assert getattr(pyromq.testing, name)
    with pytest.raises(AttributeError):
        _ = pyromq.testing.nothing


@pytest.mark.usefixtures("no_trace")
def test_clients_that_stay_connected_hold_up_nothing() -> None:
    """One that waits for a message, and one that never says anything."""
    waits = PullMessage(
        group="readers", topic="orders", queue_id=0, offset=0, max_messages=1, flags=6, suspend_ms=60_000,
        subscription="*", expression_type="TAG",
    )  # fmt: skip
    with socket.socket() as waiting, socket.socket() as silent:
        with pyromq.testing.broker(topics=["orders"]) as mq:
            waiting.connect(parse_address(mq.broker_address))
            silent.connect(parse_address(mq.broker_address))
            waiting.sendall(encode_frame(encode_request(waits, 1)))
            send(mq, "payments", b"a round trip behind it")
            began = perf_counter()
        in_time(perf_counter() - began, 2)
