"""The connected clients, and questions that the broker hands on to them."""

from __future__ import annotations

import asyncio

import orjson

from broker.support.admin_parts import AdminParts
from broker.support.fakes import STORE_HOST, FakePeer
from pyromq.broker.state.clients import Member
from pyromq.errors import BadRequest, CallTimeout, ConsumerOffline, OffsetNotFound
from pyromq.records.message_id import encode_message_id
from pyromq.store.message_store import decode
from pyromq.wire.command import Command
from pyromq.wire.fastjson import ObjectKeyed
from pyromq.wire.requests import admin as ask
from pyromq.wire.requests.client import Request


class SlowPeer(FakePeer):
    async def call(self, request: Request, timeout_s: float) -> Command:
        raise CallTimeout(f"{self.address} has not answered for {timeout_s} s")


def test_the_members_of_a_group_and_what_they_want() -> None:
    parts = AdminParts()
    parts.consumer("c1", tags="A || B")
    parts.consumer("c22", tags="A || B")
    parts.consumer("c22", tags="A || B")  # the same client on a new connection
    told = parts.told(ask.GetConsumerConnections(group="shop"))
    assert told["connectionSet"] == [
        {"clientId": "c1", "clientAddr": "10.0.0.1:1002", "language": "JAVA", "version": 513},
        {"clientId": "c22", "clientAddr": "10.0.0.1:1003", "language": "JAVA", "version": 513},
    ]
    assert told["subscriptionTable"] == {
        "orders": {
            "classFilterMode": False, "codeSet": [65, 66], "expressionType": "TAG", "subString": "A || B",
            "subVersion": 7, "tagsSet": ["A", "B"], "topic": "orders",
        }
    }  # fmt: skip
    assert (told["consumeType"], told["messageModel"], told["consumeFromWhere"]) == (
        "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET",
    )  # fmt: skip
    assert parts.ask(ask.GetConsumerConnections(group="none")).code == ConsumerOffline.code


def test_what_a_group_subscribes_to() -> None:
    parts = AdminParts()
    parts.consumer()
    told = parts.told(ask.QuerySubscription(group="shop", topic="orders"))
    assert (told["group"], told["topic"], told["subscriptionData"]["subString"]) == ("shop", "orders", "*")
    assert parts.told(ask.QuerySubscription(group="shop", topic="none")) == {"group": "shop", "topic": "none"}


def test_producers_by_group_and_all_of_them() -> None:
    parts = AdminParts()
    parts.producers.seen("makers", Member(FakePeer("10.0.0.2:77"), "p1", "GO", 400, 123))
    told = parts.told(ask.GetProducerConnections(group="makers"))
    assert told == {
        "connectionSet": [{"clientId": "p1", "clientAddr": "10.0.0.2:77", "language": "GO", "version": 400}]
    }
    everybody = parts.told(ask.GetAllProducers())
    assert everybody == {
        "data": {
            "makers": [
                {"clientId": "p1", "remoteIP": "10.0.0.2:77", "language": "GO", "version": 400,
                 "lastUpdateTimestamp": 123}
            ]
        }
    }  # fmt: skip
    assert parts.ask(ask.GetProducerConnections(group="none")).code == 1


def test_a_client_is_asked_how_it_runs_and_its_answer_is_handed_back_as_it_is() -> None:
    parts = AdminParts()
    peer = parts.consumer()
    peer.answers.append(Command(code=0, body=b'{"mqTable":{{"queueId":0}:{}}}', fields={"more": "1"}))
    answer = parts.ask(ask.GetRunningInfo(group="shop", client_id="c1", with_stacks=True))
    assert (answer.code, answer.body, answer.more) == (0, b'{"mqTable":{{"queueId":0}:{}}}', {"more": "1"})
    assert peer.called == [ask.GetRunningInfo(group="shop", client_id="c1", with_stacks=True)]


def test_a_client_that_is_not_there_or_does_not_answer() -> None:
    parts = AdminParts()
    offline = parts.ask(ask.GetRunningInfo(group="shop", client_id="c1"))
    assert (offline.code, "not online" in str(offline.reason)) == (1, True)
    parts.consumer()  # answers nothing
    assert parts.ask(ask.GetRunningInfo(group="shop", client_id="c1")).code == 1
    group = parts.consumers.get("shop")
    assert group is not None
    slow = SlowPeer()
    group.members[slow] = Member(slow, "slow", "JAVA", 513, 0)
    assert parts.ask(ask.GetRunningInfo(group="shop", client_id="slow")).code == 207


def test_a_message_is_consumed_directly() -> None:
    parts = AdminParts()
    parts.make_topic()
    parts.make_group()
    (receipt,) = parts.send(1)
    peer = parts.consumer()
    peer.answers.append(Command(code=0, body=b'{"consumeResult":"CR_SUCCESS"}'))
    message_id = encode_message_id(STORE_HOST, receipt.position)
    request = ask.ConsumeDirectly(group="shop", client_id="c1", message_id=message_id, topic="orders")
    assert parts.ask(request).body == b'{"consumeResult":"CR_SUCCESS"}'
    (handed_on,) = peer.called
    assert isinstance(handed_on, ask.ConsumeDirectly)
    assert (handed_on.broker_name, handed_on.topic_flags, handed_on.group_flags) == ("broker-a", 0, 0)
    assert decode(memoryview(handed_on.body)).body == b"0"


def test_a_message_that_is_not_here_is_not_consumed() -> None:
    parts = AdminParts()
    peer = parts.consumer()
    nowhere = encode_message_id(STORE_HOST, 12345)  # type: ignore[arg-type]
    for message_id in (nowhere, "no id"):
        request = ask.ConsumeDirectly(group="shop", client_id="c1", message_id=message_id)
        assert parts.ask(request).code == OffsetNotFound.code
    assert parts.ask(ask.ConsumeDirectly(group="shop")).code == BadRequest.code
    assert peer.called == []


def test_clients_tell_how_far_they_are_by_their_own_account() -> None:
    parts = AdminParts()
    body = b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:42}}'
    parts.consumer("c1").answers.append(Command(code=0, body=body))
    parts.consumer("c22").answers.append(Command(code=0, body=b"not json"))
    parts.consumer("c333")  # does not answer
    told = parts.told(ask.GetConsumerStatus(topic="orders", group="shop"))
    queue = {"brokerName": "broker-a", "queueId": 0, "topic": "orders"}
    assert told["consumerTable"] == {"c1": ObjectKeyed(((queue, 42),)), "c22": {}}
    assert parts.ask(ask.GetConsumerStatus(topic="orders", group="none")).code == 1
    assert parts.ask(ask.GetConsumerStatus(topic="orders", group="shop", client_id="other")).code == 1


def test_one_slow_client_does_not_hold_up_the_answers_of_others() -> None:
    parts = AdminParts()

    async def story() -> None:
        waiting = asyncio.create_task(parts.answer(ask.GetConsumerStatus(topic="orders", group="shop")))
        other = await parts.answer(ask.GetConsumerConnections(group="shop"))
        assert other.code == 0
        assert orjson.loads(bytes((await waiting).body)) == {"consumerTable": {}, "messageQueueTable": {}}  # type: ignore[arg-type]

    parts.consumer()
    asyncio.run(story())
