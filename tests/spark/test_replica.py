"""History read from a slave, so that its master keeps its memory for live consumers: all of it, even if the slave fails
during the read. Real brokers, each in a process of its own, and a real Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chaos.support.server import SETTINGS, Server
from pyromq.model.queue import MessageQueue
from pyromq.testing.brokers.asking import ask
from pyromq.testing.brokers.ports import free_port
from pyromq.wire.bodies.routes import TopicRoute, decode_kv_table
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.admin import GetRuntimeInfo, UpdateTopic
from pyromq.wire.requests.client import GetMaxOffset
from pyromq.wire.requests.nameserver import GetRoute
from spark.support.filling import fill, fill_evenly, numbered
from spark.support.reading import numbers, table
from spark.support.sink_scene import LONG_S, beside

pytestmark = pytest.mark.spark

TOPIC, QUEUES, EACH = "orders", 2, 2000
TOTAL = QUEUES * EACH
#: Small files, so that history has many; and everything but the last message is old to this master.
BROKER = """
name = "broker-a"
role = "{role}"
broker_id = {broker_id}
name_servers = ["127.0.0.1:{name_server}"]
vip_channel = false
register_interval_ms = 500
replication.listen_port = {ha_port}
replication.metadata_interval_ms = 200
replication.read_from_slaves = true
replication.memory_percent = 0
"""


class Pair:
    """A master and its slave. The slave may be killed, stopped for a while, and started again."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.names = Server(self._made("names"), settings="", program="nameserver")
        self.master, self.slave = self._broker("ASYNC_MASTER", 0), self._broker("SLAVE", 1)

    def _made(self, name: str) -> Path:
        directory = self._home / name
        directory.mkdir()
        return directory

    def _broker(self, role: str, broker_id: int) -> Server:
        more = BROKER.format(role=role, broker_id=broker_id, name_server=self.names.port, ha_port=free_port())
        return Server(self._made(role.lower()), settings=more + SETTINGS.replace("16777216", "1048576"))

    @property
    def name_servers(self) -> str:
        return f"127.0.0.1:{self.names.port}"

    def served(self) -> tuple[int, ...]:
        """Messages that the brokers that run have given to readers; they count once a second."""
        threading.Event().wait(1.3)
        running = [broker for broker in (self.master, self.slave) if broker.is_running()]
        answers = [ask(f"127.0.0.1:{broker.port}", GetRuntimeInfo()) for broker in running]
        return tuple(int(decode_kv_table(answer.body)["msgGetTotalTodayNow"]) for answer in answers)

    def end_of(self, broker: Server, queue_id: int) -> int:
        answer = ask(f"127.0.0.1:{broker.port}", GetMaxOffset(topic=TOPIC, queue_id=queue_id))
        return int(answer.fields["offset"]) if answer.code == ResponseCode.SUCCESS else -1

    def is_known(self) -> None:
        """Wait until routes name the slave."""
        pause = threading.Event()
        for _ in range(int(LONG_S / 0.02)):
            answer = ask(self.name_servers, GetRoute(topic=TOPIC))
            if answer.code == ResponseCode.SUCCESS and 1 in TopicRoute.decode(answer.body).brokers[0].addresses:
                return
            pause.wait(0.02)
        raise AssertionError(f"the name server does not know the slave:\n{self.slave.tail()}")

    def level(self, each: int) -> None:
        """Wait until the slave has this many messages of each queue."""
        pause = threading.Event()
        for _ in range(int(LONG_S / 0.02)):
            if all(self.end_of(self.slave, queue_id) >= each for queue_id in range(QUEUES)):
                return
            pause.wait(0.02)  # a slave sends no event here
        raise AssertionError(f"the slave is behind:\n{self.slave.tail()}")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """With 4000 messages of 1 KB: number n is at offset n // 2 of queue n % 2."""
    made = Pair(tmp_path_factory.mktemp("pair"))
    with ExitStack() as running:
        for server in (made.names, made.master, made.slave):
            running.enter_context(server)
        topic = UpdateTopic(topic=TOPIC, read_queues=QUEUES, write_queues=QUEUES, permission=6)
        assert ask(f"127.0.0.1:{made.master.port}", topic).code == ResponseCode.SUCCESS
        made.level(0)
        made.is_known()
        fill_evenly(made.name_servers, TOPIC, QUEUES, EACH, size=1000)
        made.level(EACH)
        yield made


def test_history_is_read_from_the_slave(spark: SparkSession, pair: Pair) -> None:
    master, slave = pair.served()
    assert numbers(table(spark, pair.name_servers, TOPIC, readFrom="replica")) == list(range(TOTAL))
    assert pair.served() == (master, slave + TOTAL)
    assert numbers(table(spark, pair.name_servers, TOPIC, readFrom="master")) == list(range(TOTAL))
    assert pair.served() == (master + TOTAL, slave + TOTAL)


def test_a_master_sends_readers_of_old_messages_to_its_slave(spark: SparkSession, pair: Pair) -> None:
    """The master suggests it with its first answers; no option is needed."""
    _, before = pair.served()
    assert numbers(table(spark, pair.name_servers, TOPIC, pullBytes="64k", pullInFlight="1")) == list(range(TOTAL))
    assert pair.served()[1] - before > TOTAL // 2


def test_a_slave_that_dies_in_the_middle_leaves_no_hole(spark: SparkSession, pair: Pair) -> None:
    """Nor does one that is behind: what it does not have, the master gives."""
    master, _ = pair.served()
    files, pause = pair.slave.open_files(), threading.Event()

    def kill_in_the_middle() -> None:
        while pair.slave.open_files() <= files:  # until a reader connects
            pause.wait(0.002)
        some = pair.slave.processor_seconds() + 0.05  # and has been given some hundred messages of the thousands
        while pair.slave.processor_seconds() < some:
            pause.wait(0.002)
        pair.slave.kill()

    # A message with each request, one request at a time; and not over connections that an earlier query has left.
    slowly = {"readFrom": "replica", "pullBytes": "1k", "pullInFlight": "1", "client.callTimeoutMs": "9999"}
    with beside(kill_in_the_middle):
        assert numbers(table(spark, pair.name_servers, TOPIC, **slowly)) == list(range(TOTAL))
    assert not pair.slave.is_running()
    assert 0 < pair.served()[0] - master < TOTAL
    for queue_id in range(QUEUES):
        queue = MessageQueue(TOPIC, "broker-a", queue_id)
        fill(pair.name_servers, queue, numbered(TOPIC, TOTAL + queue_id * 50, TOTAL + queue_id * 50 + 50))
    again = table(spark, pair.name_servers, TOPIC, readFrom="replica")
    assert numbers(again) == list(range(TOTAL + 100))
