"""No request holds the event loop: for every code of broker and name server, the largest bodies that a client may send,
and answers over large tables. Measured is the CPU time of one step of the loop: all others wait for as long."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterator
from functools import cache

import orjson
import pytest

from broker.support.watched_servers import Asking, WatchedServers
from late import in_time
from pyromq.model.data_version import DataVersion
from pyromq.model.topic import TopicConfig
from pyromq.records.batch import encode_batch
from pyromq.wire.bodies.routes import TopicConfigs, encode_registration
from pyromq.wire.body_limits import max_body_bytes
from pyromq.wire.codes import RequestCode, ResponseCode, code_name
from pyromq.wire.command import Command
from pyromq.wire.requests import admin as ask
from pyromq.wire.requests import nameserver, roles
from pyromq.wire.requests.client import (
    GetMaxOffset,
    PullMessage,
    Request,
    SendMessage,
    UpdateConsumerOffset,
    known_requests,
)

#: The maximum time of one step: others wait no longer than that for their turn.
STEP_SECONDS = 0.1
MIB = 1 << 20
FRAME = 16 * MIB - 8192
QUEUES = 4096
KINDS = known_requests()
assert roles
#: Would end the broker, or change what it is.
ROLES = {RequestCode.PROMOTE_BROKER, RequestCode.STEP_DOWN, RequestCode.RESTART_BROKER}


@dataclasses.dataclass
class Scene:
    servers: WatchedServers
    broker: Asking
    names: Asking
    ports: tuple[int, int]

    def check(self, what: str) -> None:
        in_time(self.servers.longest_s, STEP_SECONDS, what)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    servers = WatchedServers(tmp_path_factory.mktemp("every"))
    with servers.running() as ports:
        scene = Scene(servers, Asking(ports[0]), Asking(ports[1]), ports)
        _fill(scene)
        gc.collect()
        gc.freeze()  # the heap of all tests is no part of what a request costs
        yield scene
        gc.unfreeze()
        scene.broker.close()
        scene.names.close()


def _fill(scene: Scene) -> None:
    """A topic with many queues, many topics and groups, progress, messages with properties, key-value settings."""
    topics = [{"topicName": f"t{number}", "readQueueNums": 8, "writeQueueNums": 8} for number in range(2000)]
    topics.append({"topicName": "big", "readQueueNums": QUEUES, "writeQueueNums": QUEUES})
    groups = [{"groupName": f"g{number}"} for number in range(2000)]
    requests: list[Request] = [
        ask.UpdateTopicList(body=orjson.dumps({"topicConfigList": topics})),
        ask.UpdateGroupList(body=orjson.dumps({"groupConfigList": groups})),
    ]
    for request in requests:
        assert scene.broker.ask(request).code == ResponseCode.SUCCESS
    for group in range(3):
        for number in range(QUEUES):
            scene.broker.put(UpdateConsumerOffset(group=f"g{group}", topic="big", queue_id=number, offset=0))
        assert scene.broker.ask(GetMaxOffset(topic="big", queue_id=0)).code == ResponseCode.SUCCESS
    messages = [(0, b"x", b"a\x01%d\x02b\x01some text to look for\x02" % number) for number in range(1000)]
    answer = scene.broker.ask(_batch(encode_batch(messages), "sql"))
    assert answer.code == ResponseCode.SUCCESS, answer.reason
    for number in range(16):
        value = "x" * 200_000
        kv = nameserver.PutKv(namespace="settings", key=f"k{number}", value=value)
        assert scene.names.ask(kv).code == ResponseCode.SUCCESS
    scene.servers.longest_s = 0.0


def _batch(body: bytes, topic: str) -> SendMessage:
    return SendMessage(producer_group="p", topic=topic, queue_id=0, batch=True, body=body, default_topic_queues=1)


@cache
def _shapes(size: int) -> tuple[bytes, ...]:
    """Bodies of at most this size that cost much to read: many small values, keys without quotes, lines, nesting."""
    many = b",".join(b'"%d":0' % number for number in range(size // 12))
    return (
        b"[" + b"[]," * (size // 3 - 2) + b"[]]",
        b"{" + b"0:[]," * (size // 5 - 2) + b"0:1}",
        b"{" + many + b"}",
        b"a\n" * (size // 2),
        b"\\\n" * (size // 2),
        b"[" * size,
        bytes(size),
    )


def _fields(kind: type[Request]) -> dict[str, str]:
    known = {
        "topic": "big", "topics": ";".join(["big"] * 1000), "group": "g0", "consumerGroup": "g0", "queueId": "0",
        "b": "big", "a": "p", "producerGroup": "p", "e": "0", "i": "", "properties": "", "f": "0", "sysFlag": "0",
        "m": "true", "batch": "true", "suspendTimeoutMillis": "1", "brokerName": "b",
        "compressed": "false", "bodyCrc32": "0",
    }  # fmt: skip
    usual = {"text": "a;" * 500, "true or false": "true"}
    found: dict[str, str] = {}
    for field in dataclasses.fields(kind):
        for form in ("name", "short"):
            name = field.metadata.get(form)
            if name:
                found[name] = known.get(name, usual.get(field.metadata["kind"].what, "1"))
    return found


@pytest.mark.parametrize("code", sorted(KINDS.keys() - ROLES), ids=code_name)
def test_no_body_holds_the_loop(scene: Scene, code: int) -> None:
    limit = max_body_bytes(code)
    bodies = [b"", *_shapes(FRAME)[:1]] if limit is not None else []
    bodies += _shapes(FRAME if limit is None else min(limit, FRAME))
    scene.servers.longest_s = 0.0
    for port in scene.ports:
        for body in bodies:
            asking = Asking(port)
            asking.ask(Command(code=code, fields=_fields(KINDS[code]), body=body))
            asking.close()
            scene.check(f"{code_name(code)} with {len(body)} bytes that begin with {body[:8]!r}")


LONG = " OR ".join(f"b = 'x{number}'" for number in range(1000))
SUBSCRIPTIONS = [
    {"topic": f"t{number}", "subString": f"a > {number} AND b < 2", "expressionType": "SQL92"} for number in range(4000)
]
LISTED = [{"topic": "big", "brokerName": "b", "queueId": number % QUEUES} for number in range(16_000)]


def _named(topic: str, count: int) -> bytes:
    return orjson.dumps({"topicConfigList": [{"topicName": f"{topic}{number}"} for number in range(count)]})


COSTLY: dict[str, list[Command | Request]] = {
    "the same topic named again and again": [ask.GetConsumeStats(group="g0", topics=";".join(["big"] * 60))] * 5,
    "pipelined statistics of a topic": [ask.GetTopicStats(topic="big")] * 20,
    "pipelined statistics of a group": [ask.GetConsumeStats(group="g0", topic="big")] * 20,
    "statistics of all groups": [ask.GetBrokerConsumeStats()] * 2,
    "times of many queues": [ask.QueryTimeSpan(topic="big", group="g0")] * 5,
    "all topics": [ask.GetAllTopics()] * 5,
    "all groups": [ask.GetAllGroups()] * 5,
    "all offsets": [ask.GetAllOffsets()] * 5,
    "a group is set back in many queues": [
        ask.ResetOffset(group="g0", topic="big", timestamp_ms=-1, force=True, queue_id=-1, offset=-1)
    ],
    "offsets are copied": [ask.CloneOffsets(source="g0", target="g1", offline=True)],
    "offsets are compared": [ask.QueryCorrectionOffset(topic="big", compare_group="g0", filter_groups="g9")],
    "a long list of topics": [ask.UpdateTopicList(body=_named("more", 5000))],
    "a long list of groups": [
        ask.UpdateGroupList(body=orjson.dumps({"groupConfigList": [{"groupName": f"m{n}"} for n in range(5000)]}))
    ],
    "pulls by a long expression": [
        PullMessage(
            group="g0",
            topic="sql",
            queue_id=0,
            offset=0,
            max_messages=32,
            flags=4,
            suspend_ms=0,
            subscription=LONG,
            expression_type="SQL92",
        )
    ]
    * 20,
    "a heartbeat with many expressions": [
        Command(
            code=RequestCode.HEART_BEAT,
            body=orjson.dumps(
                {"clientID": "a", "consumerDataSet": [{"groupName": "g0", "subscriptionDataSet": SUBSCRIPTIONS}]}
            ),
        )
    ],
    "a heartbeat with many groups": [
        Command(
            code=RequestCode.HEART_BEAT,
            body=orjson.dumps({"clientID": "b", "consumerDataSet": [{"groupName": f"h{n}"} for n in range(1000)]}),
        )
    ],
    "many locks": [
        Command(code=code, body=orjson.dumps({"consumerGroup": "g0", "clientId": "c", "mqSet": LISTED}))
        for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ)
    ],
    "a batch of empty messages": [_batch(encode_batch([(0, b"", b"")] * 190_000), "empty")],
    "batches of as many messages as are taken": [_batch(encode_batch([(0, b"", b"")] * 7000), "empty")] * 3,
    "an unknown setting with a long name": [ask.UpdateBrokerConfig(body=b"x" * 60_000 + b"=1")],
    "many unknown settings": [ask.UpdateBrokerConfig(body=b"".join(b"x%d=1\n" % n for n in range(190)))],
}


@pytest.mark.parametrize("name", COSTLY)
def test_no_work_holds_the_loop(scene: Scene, name: str) -> None:
    asking = Asking(scene.ports[0])
    scene.servers.longest_s = 0.0
    for request in COSTLY[name]:
        asking.put(request)
    for _ in COSTLY[name]:
        asking.take()
    asking.close()
    scene.check(name)


NAMES: dict[str, Request] = {
    "all key-value settings": nameserver.GetKvList(namespace="settings"),
    "all topics": nameserver.GetTopicList(),
    "the cluster": nameserver.GetClusterInfo(),
}


REGISTERED = [TopicConfig(f"registered-topic-{number}") for number in range(30_000)]


@pytest.mark.parametrize("compressed", [False, True])
def test_a_broker_with_many_topics_registers_in_slices(scene: Scene, compressed: bool) -> None:
    body = encode_registration(TopicConfigs(DataVersion(counter=1), tuple(REGISTERED)), compressed=compressed)
    request = nameserver.RegisterBroker(
        cluster="c", broker_name="many", broker_id=0, address=f"10.0.0.{int(compressed)}:10911", body=body,
        compressed=compressed,
    )  # fmt: skip
    asking = Asking(scene.ports[1])
    scene.servers.longest_s = 0.0
    assert asking.ask(request).code == ResponseCode.SUCCESS
    scene.check("a registration")
    for question in NAMES.values():
        asking.ask(question)
    scene.check("what a name server tells of many topics")
    asking.close()


@pytest.mark.parametrize("name", NAMES)
def test_no_answer_of_a_name_server_holds_the_loop(scene: Scene, name: str) -> None:
    scene.servers.longest_s = 0.0
    scene.names.ask(NAMES[name])
    scene.check(name)
