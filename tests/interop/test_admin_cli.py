"""The command line and the admin client behind it, the same stories against PyroMQ's broker and Apache RocketMQ's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cli.support.cluster_scene import Shell
from interop.support.cluster import Cluster
from interop.support.loopback import run_inside
from interop.support.python_client import push, tell
from interop.support.referees import REFEREES, refereed
from pyromq import Admin, Producer, PushConsumer

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module", params=REFEREES)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Each referee, started once for all stories."""
    with refereed(request.param, tmp_path_factory.mktemp(request.param) / "store") as running:
        yield running


@pytest.fixture
def shell(cluster: Cluster) -> Shell:
    return Shell(cluster.namesrv_address)


def test_the_life_of_a_topic(shell: Shell, topic: str) -> None:
    def story() -> None:
        shell.ok("topic", "create", topic, "--queues", "2", "--type", "FIFO")
        shell.ok("send", topic, "one", "two", "three", "--key", "k", "--tag", "T")
        listed = {one["topic"]: one for one in shell.json("topic", "list", "--counts")}
        assert listed[topic]["messages"] == 3
        assert all(one["kind"] == "normal" for one in listed.values())
        described = shell.json("topic", "describe", topic)
        assert [(one["queue"], one["messages"]) for one in described["queues"]] == [(0, 2), (1, 1)]
        assert described["brokers"][0]["attributes"] == {"message.type": "FIFO"}
        shell.ok("topic", "update", topic, "--write-queues", "1")
        assert shell.json("topic", "describe", topic)["brokers"][0]["write_queues"] == 1
        shell.ok("topic", "delete", topic, "--yes")
        assert shell("topic", "describe", topic).exit_code == 1

    run_inside(story)


def test_groups_are_made_and_moved(shell: Shell, topic: str, group: str) -> None:
    def story() -> None:
        shell.ok("topic", "create", topic, "--queues", "1")
        shell.ok("send", topic, "one", "two", "three")
        shell.ok("group", "create", group, "--max-retries", "2")
        assert shell.json("group", "update", group, "--disable")["max_retries"] == 2
        shell.ok("group", "update", group, "--enable")
        shell.ok("consumer", "reset", group, topic, "--offset", "1", "--yes")
        assert shell.json("consumer", "lag", group)["lag"] == 2
        shell.ok("consumer", "reset", group, topic, "--to", "1h", "--yes")
        assert shell.json("consumer", "lag", group)["lag"] == 3
        shell.ok("consumer", "clone", group, f"{group}-2", topic, "--yes")
        shell.ok("consumer", "skip", group, topic, "--yes")
        lags = {one["group"]: one["lag"] for one in shell.json("consumer", "list")}
        assert lags[group] == 0
        shell.ok("group", "delete", group, "--yes")
        assert shell("group", "describe", group).exit_code == 1

    run_inside(story)


def test_messages_are_found(shell: Shell, topic: str) -> None:
    def story() -> None:
        shell.ok("topic", "create", topic, "--queues", "2")
        sent, *_ = shell.lines("send", topic, "one", "two", "--key", "k", "--property", "colour=red")
        for command in (["show", sent["offset_message_id"]], ["show", sent["message_id"], "--topic", topic]):
            found = shell.json("message", *command)
            assert (found["body"], found["keys"], found["properties"]["colour"]) == ("one", ["k"], "red")
        bodies = [
            [one["body"] for one in shell.json("message", *command)]
            for command in (["find", topic, "--key", "k"], ["find", topic, "--since", "5m"], ["peek", topic])
        ]
        assert bodies == [["one", "two"]] * 3
        assert [one["body"] for one in shell.lines("tail", topic, "--no-follow", "--last", "1")] == ["two"]
        assert sorted(one["body"] for one in shell.lines("consume", topic, "--count", "2")) == ["one", "two"]

    run_inside(story)


def test_dead_letters_are_replayed(shell: Shell, topic: str, group: str) -> None:
    def story() -> None:
        shell.ok("topic", "create", topic, "--queues", "1")
        shell.ok("group", "create", group)
        shell.ok("send", topic, "one", "two", "three")
        shell.bury(topic, group)
        assert [one["body"] for one in shell.json("dlq", "show", group)] == ["one", "two", "three"]
        assert len(shell.lines("dlq", "replay", group, "--count", "2", "--yes")) == 2
        (found,) = [one for one in shell.json("dlq", "list") if one["group"] == group]
        assert (found["messages"], found["waiting"]) == (3, 1)
        shell.ok("dlq", "replay", group, "--rate", "0", "--yes")
        assert [one["body"] for one in shell.json("message", "peek", topic)] == ["one", "two", "three"] * 2
        shell.ok("dlq", "replay", group, "--again", "--count", "1", "--only-group", "--yes")
        received = shell.lines("consume", topic, "--group", group, "--count", "7")
        assert len(received) == 7, "six of the topic, and one for the group alone"

    run_inside(story)


def test_brokers_tell_of_themselves(shell: Shell) -> None:
    def story() -> None:
        (broker,) = shell.json("cluster")
        assert (broker["broker"], broker["version"], broker["problem"]) == ("interop", "5.5.0", None)
        shell.ok("broker", "set", "interop", "fileReservedTime=71", "--yes")
        assert shell.json("broker", "config", "interop", "--search", "fileReserved")["fileReservedTime"] == "71"
        assert shell("broker", "set", "interop", "noSuchSetting=1", "--yes").exit_code == 1
        checks = {one["name"]: one["good"] for one in shell.json("doctor", "-n", shell.name_servers)["checks"]}
        assert checks["name server"]
        assert checks["clock of interop"]

    run_inside(story)


def test_a_consumer_at_work_gets_messages_again(cluster: Cluster, topic: str, group: str) -> None:
    async def story() -> None:
        servers = cluster.namesrv_address
        consumer, inbox = push(servers, group, topic)
        async with Admin(servers) as admin, Producer(servers, group="producers") as producer:
            await admin.topics.create(topic, queues=1)
            await producer.send(topic, b"one")
            async with consumer:
                await inbox.received(1)
                await admin.consumers.reset(group, topic, "earliest")
                await producer.send(topic, b"two")
                await inbox.received(3)
        assert inbox.bodies == ["one", "one", "two"]

    tell(story)


def test_who_is_connected(cluster: Cluster, topic: str, group: str) -> None:
    async def story() -> None:
        servers = cluster.namesrv_address
        async with Admin(servers) as admin:
            await admin.topics.create(topic, queues=2)
            consumer = PushConsumer(servers, group=group)
            consumer.subscribe(topic, lambda message: None, tags="A || B")
            async with consumer, Producer(servers, group=f"producers-{topic}") as producer:
                await producer.send(topic, b"x")
                await producer._session.heartbeat()
                members = await admin.consumers.members(group)
                assert [one.client_id for one in members.clients] == [consumer.client_id]
                assert [one.expression for one in members.subscriptions if one.topic == topic] == ["A || B"]
                info = await admin.consumers.running_info(group, consumer.client_id)
                assert {one.queue.queue_id for one in info.queues if one.queue.topic == topic} == {0, 1}
                (sender,) = (await admin.consumers.producers(f"producers-{topic}"))[f"producers-{topic}"]
                assert sender.client_id == producer.client_id
                assert f"producers-{topic}" in await admin.consumers.producers()

    tell(story)
