"""The official Java client, for tests that read as stories: producers, consumers and `mqadmin` in one JVM.

Each object here is a name for a client that lives in the JVM (see java/ClientDriver.java); it is closed when its `with`
ends, in the background. What a broker or the client refuses is an `ApacheFailed` that holds the client's own words.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar

from interop.support.apache import JavaProgram, Line, toolchain
from interop.support.cluster import Cluster
from late import before

T = TypeVar("T")

BROKER_NAME = "interop"
CLUSTER_NAME = "InteropCluster"
#: Long enough for a busy machine: nothing waits this long when all is well.
PATIENCE_S = 30.0
#: Short intervals for what a client may miss at first; by default it looks again only after half a minute. A consumer
#: misses the route of its retry topic, which its own first heartbeat makes; and its first change of queues makes its
#: subscription newer than the broker's, which it may fail to say at once and is then not served.
ALERT = {"pollNameServerInterval": 1000, "heartbeatBrokerInterval": 1000}
CONSUMER = {**ALERT, "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}
#: A push consumer that is closed first finishes what its listener has begun.
PUSH = {**CONSUMER, "awaitTerminationMillisWhenShutdown": 5000}


def message(topic: str, body: str, **fields: object) -> Line:
    """Fields: tags, keys, flag, delayLevel, properties, repeat (how many times the body is repeated)."""
    return {"topic": topic, "body": body, **fields}


def numbered(topic: str, count: int, **fields: object) -> list[Line]:
    return [message(topic, str(number), **fields) for number in range(count)]


def bodies(received: Iterable[Line]) -> list[str]:
    return [line["body"] for line in received]


def eventually(what: Callable[[], T], holds: Callable[[T], bool], patience_s: float = PATIENCE_S) -> T:
    """Asks again until it holds; fails with the last answer."""
    deadline = time.monotonic() + patience_s
    while not holds(answer := what()):
        before(deadline, f"still {answer!r} after {patience_s} s")
        time.sleep(0.05)
    return answer


class JavaClient(JavaProgram):
    """One JVM with any number of clients of one cluster."""

    main = "ClientDriver"

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(toolchain(self.main), cluster.namesrv_address, cluster.broker_address)
        self._names = itertools.count()
        self.broker_address = cluster.broker_address
        self.await_broker()

    def await_broker(self) -> None:
        self.ask("admin.await", timeoutMs=30_000)

    def sigkill(self) -> None:
        """The end that a consumer does not get to announce."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def producer(self, group: str = "producers", *, transactional: bool = False, **settings: object) -> Producer:
        name = self._name("producer")
        self.ask("producer.open", name=name, group=group, transactional=transactional, set=settings)
        return Producer(self, name)

    def push(self, group: str, *subscriptions: Line, **fields: object) -> PushConsumer:
        """Fields: orderly, failures, delayLevel, pauseMs, replyWith; `set` holds settings of the client."""
        name = self._name("push")
        settings = {**PUSH, **fields.pop("set", {})}  # type: ignore[dict-item]
        self.ask("push.open", name=name, group=group, subscribe=subscriptions, set=settings, **fields)
        return PushConsumer(self, name)

    def lite(self, group: str, **fields: object) -> LitePullConsumer:
        name = self._name("lite")
        settings = {**CONSUMER, **fields.pop("set", {})}  # type: ignore[dict-item]
        self.ask("lite.open", name=name, group=group, set=settings, **fields)
        return LitePullConsumer(self, name)

    def pull(self, group: str, **fields: object) -> PullConsumer:
        name = self._name("pull")
        self.ask("pull.open", name=name, group=group, **fields)
        return PullConsumer(self, name)

    def create_topic(self, topic: str, queues: int = 4, **fields: object) -> None:
        self.ask("admin.topic", topic=topic, queues=queues, **fields)

    def create_group(self, group: str, **settings: object) -> None:
        self.ask("admin.group", group=group, set=settings)

    def offsets(self, topic: str) -> list[Line]:
        return self.ask("admin.offsets", topic=topic)

    def stored(self, topic: str) -> int:
        """Return the number of readable messages of a topic that never lost one."""
        return sum(line["max"] for line in self.offsets(topic))

    def mqadmin(self, *arguments: str) -> str:
        """Return the command's output; a failure is a stack trace in it."""
        [answer] = self.ask("admin.mqadmin", arguments=arguments)
        said: str = answer["said"]
        return said

    def _name(self, kind: str) -> str:
        return f"{kind}-{next(self._names)}"


class Client:
    """A client in the JVM, under its name."""

    kind: str

    def __init__(self, java: JavaClient, name: str) -> None:
        self._java = java
        self.name = name

    def ask(self, do: str, **fields: object) -> list[Line]:
        return self._java.ask(f"{self.kind}.{do}", name=self.name, **fields)

    def close(self) -> None:
        """Returns when the client is gone and the broker was told."""
        self.ask("close", wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A client may be closed already, and the JVM may be what failed: then its error is the one to see.
        with contextlib.suppress(Exception):
            self.ask("close", wait=False)


class Producer(Client):
    kind = "producer"

    def send(self, *messages: Line, how: str = "sync", **fields: object) -> list[Line]:
        """Ways: sync, async, oneway, batch, queue (with broker and queueId), selected (by the key)."""
        return self.ask("send", messages=messages, how=how, **fields)

    def send_to_queue(self, queue_id: int, *messages: Line) -> list[Line]:
        return self.send(*messages, how="queue", broker=BROKER_NAME, queueId=queue_id)

    def transact(self, topic: str, body: str, local: str, check: str = "unknown", **fields: object) -> Line:
        """`local` and `check` are commit, rollback or unknown; `check` may be a list of them, with commas."""
        properties = {"local": local, "check": check}
        [sent] = self.ask("transaction", messages=[message(topic, body, properties=properties, **fields)])
        return sent

    def checks(self) -> list[Line]:
        """Return the transactions that brokers have checked with this producer so far."""
        return self.ask("checks")

    def request(self, wanted: Line, timeout_ms: int, *, asynchronous: bool = False) -> Line:
        [reply] = self.ask("request", message=wanted, timeoutMs=timeout_ms, **{"async": asynchronous})
        return reply

    def start_flood(self, topic: str, pause_ms: int) -> None:
        self.ask("flood", topic=topic, pauseMs=pause_ms)

    def end_flood(self) -> Line:
        [flooded] = self.ask("flooded")
        return flooded


class PushConsumer(Client):
    kind = "push"

    def received(self, count: int, within_s: float = PATIENCE_S) -> list[Line]:
        """All that arrived so far, as soon as it is `count` messages or the time is up."""
        return self.ask("received", count=count, timeoutMs=int(within_s * 1000))

    def nothing_more(self, count: int, for_s: float = 1.0) -> list[Line]:
        """Exactly `count` messages, and no other for a while."""
        arrived = self.received(count)
        assert len(arrived) == count, f"{bodies(arrived)} instead of {count} messages"
        assert bodies(self.received(count + 1, within_s=for_s)) == bodies(arrived)
        return arrived

    def owned(self) -> set[int]:
        return {line["queueId"] for line in self.ask("owned")}

    def client_id(self) -> str:
        [answer] = self.ask("client")
        client_id: str = answer["clientId"]
        return client_id


class OffsetAsker(Client):
    """The requests about a queue that both kinds of pulling consumers answer."""

    def offset(self, what: str, topic: str, queue_id: int, **fields: object) -> int:
        [answer] = self.ask(what, topic=topic, broker=BROKER_NAME, queueId=queue_id, **fields)
        offset: int = answer["offset"]
        return offset

    def at(self, do: str, topic: str, queue_id: int, **fields: object) -> list[Line]:
        return self.ask(do, topic=topic, broker=BROKER_NAME, queueId=queue_id, **fields)


class LitePullConsumer(OffsetAsker):
    kind = "lite"

    def poll(self, count: int, within_s: float = PATIENCE_S) -> list[Line]:
        return self.ask("poll", count=count, timeoutMs=int(within_s * 1000))

    def assign(self, topic: str, queue_ids: Sequence[int]) -> None:
        self.ask("assign", topic=topic, queueIds=queue_ids)


class PullConsumer(OffsetAsker):
    kind = "pull"

    def pull(self, topic: str, queue_id: int, offset: int, most: int = 32, **fields: object) -> Line:
        [answer] = self.at("pull", topic, queue_id, **{"offset": offset, "max": most, "tags": "*", **fields})
        return answer


def everything(topic: str) -> Line:
    return {"topic": topic, "tags": "*"}


def tagged(topic: str, tags: str) -> Line:
    return {"topic": topic, "tags": tags}


def where(topic: str, sql: str) -> Line:
    return {"topic": topic, "sql": sql}


#: The settings of these stories' brokers, in RocketMQ's own names; every wait is short.
CONF: Mapping[str, str] = {
    "enablePropertyFilter": "true",
    "autoCreateSubscriptionGroup": "true",
    "traceTopicEnable": "true",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "transactionCheckMax": "3",
    # Apache's broker writes decisions this late; until then it checks transactions that are decided.
    "transactionOpBatchInterval": "100",
    "mappedFileSizeCommitLog": str(64 << 20),
}
