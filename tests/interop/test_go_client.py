"""The official Go client against our servers: each test is one story that a user could live through.

With PYROMQ_INTEROP_AGAINST=apache the same stories run against Apache's servers, where they must hold as well.
"""

from __future__ import annotations

import json
import re
import signal
import struct
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from interop.support.apache import ToolchainMissing
from interop.support.cluster import Cluster, new_cluster
from interop.support.golang import PATIENCE_S, GoClient, GoFailed, Line, program, until

pytestmark = pytest.mark.interop

CONF = {
    "autoCreateSubscriptionGroup": "true",
    "enablePropertyFilter": "true",
    "traceTopicEnable": "true",
    # A broker asks about an open transaction after a second and every second, not after half a minute.
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    # Apache notes the end of a transaction with a delay, which must be shorter than that or it asks about ended ones.
    "transactionOpBatchInterval": "100",
    # A busy machine is no reason to refuse a message here.
    "waitTimeMillsInSendQueue": "20000",
}
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
BROKER = "interop"
QUEUES = 4
SEND_OK = 0
CONSUME_SUCCESS = 0
COMPRESSED = 0x1
#: Requests of administrators, for which the Go client has no method.
CONSUMERS_OF_GROUP = 38
CONSUMER_CONNECTIONS = 203
RESET_OFFSET = 222
RUNNING_INFO = 307
CONSUME_DIRECTLY = 309
#: Time without an event after which a story takes it as absent.
QUIET_S = 0.5
PRODUCER = "producer"
CONSUMER = "consumer"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    try:
        program()
    except ToolchainMissing as missing:
        pytest.skip(str(missing))
    with new_cluster(tmp_path_factory.mktemp("go-client") / "store", CONF) as running:
        yield running


@dataclass(frozen=True, slots=True)
class Story:
    """A Go client with a producer, and a topic of four queues and a group of its own."""

    go: GoClient
    cluster: Cluster
    topic: str
    group: str

    def message(self, body: str, **fields: object) -> Line:
        return {"topic": self.topic, "body": body, **fields}

    def messages(self, count: int, prefix: str = "") -> list[Line]:
        return [self.message(f"{prefix}{number}") for number in range(count)]

    def listen(self, name: str = CONSUMER, **fields: object) -> None:
        self.go.ask("consumer", **{"name": name, "group": self.group, "topic": self.topic, **fields})

    def listen_again(self, name: str = CONSUMER, **fields: object) -> None:
        """As a member of a group that is known already, and whose retry topic this client therefore finds at once."""
        self.listen("first")
        until(lambda: f"%RETRY%{self.group}" in self.go.ask("topics"), "the group has a retry topic")
        self.go.ask("stop", name="first")
        self.listen(name, **fields)


@pytest.fixture
def story(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Story]:
    topic = re.sub(r"\W", "-", request.node.name).removeprefix("test_")
    with GoClient(cluster.namesrv_address) as go:
        go.create_topic(topic, cluster.broker_address, QUEUES)
        go.ask("producer", name=PRODUCER, group="go-producers")
        yield Story(go, cluster, topic, f"group-of-{topic}")


def bodies(messages: list[Line]) -> list[str]:
    return [message["body"] for message in messages]


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def by_queue(messages: list[Line]) -> dict[int, list[Line]]:
    queues: dict[int, list[Line]] = defaultdict(list)
    for message in messages:
        queues[message["queue"]].append(message)
    return queues


def hears_exactly(go: GoClient, name: str, wanted: list[str]) -> list[Line]:
    """The messages of a consumer that hears these bodies, each once, and after that nothing."""
    go.heard(name, len(wanted))
    heard: list[Line] = go.listener(name, len(wanted) + 1, QUIET_S)["heard"]
    assert sorted(bodies(heard)) == sorted(wanted)
    return heard


def hears_without(go: GoClient, name: str, wanted: list[str], done: list[str]) -> None:
    """A consumer hears these bodies, and none of those that its group is done with."""
    until(lambda: {*wanted} <= {*bodies(go.listener(name)["heard"])}, f"{name} hears {wanted}")
    assert not {*bodies(go.listener(name)["heard"])} & {*done}


# --- Sending -------------------------------------------------------------------------------------------------------


def test_a_sync_send_says_where_the_message_is(story: Story) -> None:
    sent = story.go.send(PRODUCER, story.messages(2 * QUEUES))

    assert {one["status"] for one in sent} == {SEND_OK}
    assert sorted((one["queue"], one["offset"]) for one in sent) == [(q, n) for q in range(QUEUES) for n in range(2)]
    host, port = story.cluster.broker_address.split(":")
    for one in sent:
        address = bytes.fromhex(one["offset_id"])
        assert ".".join(map(str, address[:4])) == host
        assert struct.unpack(">i", address[4:8]) == (int(port),)
        assert one["region"] == "DefaultRegion"
        assert one["trace_on"]

    story.listen()
    heard = hears_exactly(story.go, CONSUMER, numbers(2 * QUEUES))
    where = {one["id"]: (one["queue"], one["offset"], one["offset_id"]) for one in sent}
    assert {one["id"]: (one["queue"], one["offset"], one["offset_id"]) for one in heard} == where


def test_async_sends_are_all_answered(story: Story) -> None:
    sent = story.go.send(PRODUCER, story.messages(200), how="async")
    assert {one["status"] for one in sent} == {SEND_OK}
    assert {(one["queue"], one["offset"]) for one in sent} == {(q, n) for q in range(QUEUES) for n in range(50)}
    story.listen()
    hears_exactly(story.go, CONSUMER, numbers(200))


def test_one_way_sends_reach_a_waiting_consumer_at_once(story: Story) -> None:
    story.listen()
    story.go.send(PRODUCER, story.messages(1))
    story.go.heard(CONSUMER, 1)  # from here on its pulls wait at the broker
    story.go.send(PRODUCER, story.messages(20, "one way "), how="oneway")
    heard = hears_exactly(story.go, CONSUMER, ["0", *(f"one way {number}" for number in range(20))])
    assert max(one["heard_ms"] - one["stored_ms"] for one in heard[1:]) < 2000


def test_a_batch_is_stored_as_single_messages_in_a_row(story: Story) -> None:
    batch = [story.message(str(number), tags=f"t{number % 2}", properties={"n": str(number)}) for number in range(10)]
    [sent] = story.go.send(PRODUCER, batch, how="batch")
    assert (sent["status"], sent["offset"]) == (SEND_OK, 0)

    story.listen()
    heard = sorted(hears_exactly(story.go, CONSUMER, numbers(10)), key=lambda one: one["offset"])
    assert bodies(heard) == numbers(10)
    assert [one["offset"] for one in heard] == list(range(10))
    assert {one["queue"] for one in heard} == {sent["queue"]}
    assert [one["tags"] for one in heard] == [f"t{number % 2}" for number in range(10)]
    assert [one["properties"]["n"] for one in heard] == numbers(10)
    assert sent["offset_id"].split(",") == [one["offset_id"] for one in heard]


def test_a_topic_is_made_by_the_first_send_to_it(story: Story) -> None:
    new = f"{story.topic}-unheard-of"
    sent = story.go.send(PRODUCER, [{"topic": new, "body": str(number)} for number in range(QUEUES)])
    assert {one["queue"] for one in sent} == set(range(QUEUES))
    until(lambda: new in story.go.ask("topics"), "the name server knows the topic")
    story.listen(topic=new)
    hears_exactly(story.go, CONSUMER, numbers(QUEUES))


def test_tags_keys_and_properties_come_with_the_message(story: Story) -> None:
    properties = {"color": "größe 🚀", "empty-ish": " ", "number": "42"}
    described = story.message("☕", tags="hot", keys=["order-1", "order-2"], properties=properties)
    [sent] = story.go.send(PRODUCER, [described])
    story.listen()
    [heard] = hears_exactly(story.go, CONSUMER, ["☕"])
    assert (heard["tags"], heard["keys"]) == ("hot", "order-1 order-2")
    assert properties.items() <= heard["properties"].items()
    assert heard["properties"]["UNIQ_KEY"] == sent["id"]
    assert heard["properties"]["CLUSTER"] == "InteropCluster"


def test_a_sharding_key_keeps_its_messages_in_one_queue(story: Story) -> None:
    story.go.ask("producer", name="sharding", group="go-sharding", selector="hash")
    keys = ["red", "green", "blue", "black", "white", "grey"]
    for key in keys:
        story.go.send("sharding", [story.message(f"{key} {turn}", shardingKey=key) for turn in range(5)])
    story.listen()
    heard = story.go.heard(CONSUMER, 5 * len(keys))
    for key in keys:
        ours = sorted((one for one in heard if one["body"].startswith(key)), key=lambda one: one["offset"])
        assert bodies(ours) == [f"{key} {turn}" for turn in range(5)]
        assert len(by_queue(ours)) == 1
        assert {one["properties"]["SHARDING_KEY"] for one in ours} == {key}
    assert len(by_queue(heard)) > 1


def test_a_long_body_travels_compressed(story: Story) -> None:
    long = "a body that is longer than four kibibytes, " * 200
    story.go.send(PRODUCER, [story.message(long), story.message("short")])
    story.listen()
    flags = {one["body"]: one["sys_flag"] & COMPRESSED for one in hears_exactly(story.go, CONSUMER, [long, "short"])}
    assert flags == {long: COMPRESSED, "short": 0}


def test_binary_headers_are_understood_and_answered(story: Story) -> None:
    with GoClient(story.cluster.namesrv_address, binary_headers=True) as go:
        go.ask("producer", name="binary", group="go-binary")
        described = story.message("☕", tags="größe", keys=["🔑"], properties={"n": "1"})
        sent = [*go.send("binary", [described]), *go.send("binary", story.messages(5), how="async")]
        go.send("binary", story.messages(5, "batched "), how="batch")
        assert {one["status"] for one in sent} == {SEND_OK}
        go.ask("consumer", name=CONSUMER, group=story.group, topic=story.topic)
        wanted = ["☕", *numbers(5), *(f"batched {number}" for number in range(5))]
        heard = hears_exactly(go, CONSUMER, wanted)
        [first] = [one for one in heard if one["body"] == "☕"]
        assert (first["tags"], first["keys"], first["properties"]["n"]) == ("größe", "🔑", "1")
        assert story.topic in go.ask("topics")


# --- Filters and starting points -----------------------------------------------------------------------------------


def test_a_consumer_hears_only_the_tags_it_asks_for(story: Story) -> None:
    story.listen(tags="red || blue")
    tags = ["red", "green", "blue", ""]
    story.go.send(PRODUCER, [story.message(f"{turn}{tag}", tags=tag) for turn in range(5) for tag in tags])
    wanted = [f"{turn}{tag}" for turn in range(5) for tag in ("red", "blue")]
    hears_exactly(story.go, CONSUMER, wanted)


def test_a_consumer_hears_only_what_its_sql_is_true_of(story: Story) -> None:
    story.listen(sql="(price BETWEEN 10 AND 20 OR name IN ('gift', 'sample')) AND TAGS IS NOT NULL AND blocked IS NULL")
    offers = {
        "too cheap": {"price": "9.5"},
        "cheap": {"price": "10"},
        "dear": {"price": "20"},
        "too dear": {"price": "20.01"},
        "a gift": {"price": "0", "name": "gift"},
        "another name": {"name": "toy"},
        "no number": {"price": "fifteen"},
        "blocked": {"price": "15", "blocked": "TRUE"},
        "nothing": {},
    }
    story.go.send(PRODUCER, [story.message(body, tags="t", properties=has) for body, has in offers.items()])
    story.go.send(PRODUCER, [story.message("no tag", properties={"price": "15"})])
    hears_exactly(story.go, CONSUMER, ["cheap", "dear", "a gift"])


def test_a_new_group_starts_at_the_beginning_of_a_young_topic(story: Story) -> None:
    """Even where it asks for the end: the broker gives it offset 0 as long as nothing of the topic was cleaned away."""
    story.go.send(PRODUCER, story.messages(8))
    for where in ("first", "last"):
        story.listen(where, group=f"{story.group}-{where}", **{"from": where})
        hears_exactly(story.go, where, numbers(8))


def test_each_consumer_that_broadcasts_starts_where_it_wants_and_hears_everything_after(story: Story) -> None:
    story.go.send(PRODUCER, story.messages(8, "old "))
    second = int(time.time()) + 1
    time.sleep(second - time.time())  # the client tells the time in whole seconds
    story.go.send(PRODUCER, story.messages(8, "new "))

    at = time.strftime("%Y%m%d%H%M%S", time.gmtime(second))
    for name, where in (("all", "first"), ("newer", "timestamp"), ("newest", "last")):
        story.listen(name, broadcasting=True, at=at, **{"from": where})
    old, new = ([f"{age} {number}" for number in range(8)] for age in ("old", "new"))
    hears_exactly(story.go, "all", old + new)
    hears_exactly(story.go, "newer", new)
    hears_exactly(story.go, "newest", [])

    story.go.send(PRODUCER, story.messages(8, "last "))
    last = [f"last {number}" for number in range(8)]
    hears_exactly(story.go, "all", old + new + last)
    hears_exactly(story.go, "newer", new + last)
    hears_exactly(story.go, "newest", last)


# --- Groups --------------------------------------------------------------------------------------------------------


def owners(story: Story, names: list[str], prefix: str) -> dict[str, set[int]]:
    """Which queues each consumer hears now, found with two messages to each queue."""
    story.go.send(PRODUCER, story.messages(2 * QUEUES, prefix))
    wanted = {f"{prefix}{number}" for number in range(2 * QUEUES)}
    found: dict[str, list[Line]] = {}

    def all_came() -> bool:
        for name in names:
            found[name] = [one for one in story.go.listener(name)["heard"] if one["body"] in wanted]
        return {body for heard in found.values() for body in bodies(heard)} == wanted

    until(all_came, f"somebody hears each of {prefix!r}")
    return {name: set(by_queue(heard)) for name, heard in found.items()}


def test_two_consumers_share_the_queues_until_one_leaves(story: Story) -> None:
    story.listen("anna")
    assert owners(story, ["anna"], "alone ") == {"anna": set(range(QUEUES))}

    story.listen("bert")
    halves = [{0, 1}, {2, 3}]
    rounds = (owners(story, ["anna", "bert"], f"round {number} ") for number in range(100))
    shared = next(found for found in rounds if sorted(found.values(), key=min) == halves)
    assert shared == owners(story, ["anna", "bert"], "settled ")

    story.go.ask("stop", name="bert")
    assert owners(story, ["anna"], "alone again ") == {"anna": set(range(QUEUES))}


def test_where_a_killed_consumer_stopped_another_goes_on(story: Story, tmp_path: Path) -> None:
    old, new = ([f"{age} {number}" for number in range(200)] for age in ("old", "new"))
    diary = tmp_path / "diary"  # the messages it took until it died
    with GoClient(story.cluster.namesrv_address) as doomed:
        doomed.ask(
            "consumer", name=CONSUMER, group=story.group, topic=story.topic, slowMs=20, pullBatch=8, diary=str(diary)
        )
        story.go.send(PRODUCER, map(story.message, old), how="async")
        doomed.heard(CONSUMER, len(old))
        story.go.send(PRODUCER, map(story.message, new), how="async")
        doomed.heard(CONSUMER, len(old) + len(new) // 4)
        doomed.kill()
    before = diary.read_text("utf-8").splitlines()
    assert len(before) < len(old) + len(new)

    story.listen("heir")
    until(
        lambda: {*before, *bodies(story.go.listener("heir")["heard"])} == {*old, *new},
        "every message is taken by one of the two",
    )
    again = bodies(story.go.listener("heir")["heard"])
    assert len(again) < len(old) + len(new), "the progress that the pulls told the broker of is lost"


def test_progress_is_kept_when_a_consumer_leaves(story: Story) -> None:
    """Its pulls tell the broker of its progress. What it says last may be lost when it closes its connection."""
    early, middle, late = (numbers(8), [f"middle {n}" for n in range(8)], [f"late {n}" for n in range(8)])
    story.listen("leaver")
    for wave in (early, middle):
        story.go.send(PRODUCER, map(story.message, wave))
        story.go.heard("leaver", len(wave))
    hears_exactly(story.go, "leaver", early + middle)
    story.go.ask("stop", name="leaver")

    story.go.send(PRODUCER, map(story.message, late))
    story.listen("successor")
    hears_without(story.go, "successor", late, early)


def test_an_ordered_consumer_takes_each_queue_message_by_message(story: Story) -> None:
    story.go.ask("producer", name="ordered", group="go-ordered", selector="hash")
    keys, turns = ["red", "green", "blue", "black"], 5
    for turn in range(turns):
        story.go.send("ordered", [story.message(f"{key} {turn}", shardingKey=key) for key in keys])
    story.listen(orderly=True, slowMs=5, failBelow=1)  # each is refused once, and comes again before the next
    story.go.heard(CONSUMER, len(keys) * turns)

    state = story.go.listener(CONSUMER)
    assert state["crowd"] == 1
    for queue in by_queue(state["heard"]).values():
        assert [one["offset"] for one in queue] == list(range(len(queue)))
    assert sorted(bodies(state["refused"])) == sorted(bodies(state["heard"]))

    middle, last = ([f"{key} {when}" for key in keys] for when in ("in between", "last"))
    story.go.send("ordered", [story.message(body, shardingKey=body.split()[0]) for body in middle])
    story.go.heard(CONSUMER, len(keys) * (turns + 1))
    story.go.ask("stop", name=CONSUMER)  # which gives its locks back
    story.go.send("ordered", [story.message(body, shardingKey=body.split()[0]) for body in last])
    story.listen("successor", orderly=True)
    hears_without(story.go, "successor", last, bodies(state["heard"]))


# --- Pulling -------------------------------------------------------------------------------------------------------


def test_a_pull_consumer_polls_and_acknowledges(story: Story) -> None:
    story.go.send(PRODUCER, story.messages(40))
    puller = {"group": story.group, "topic": story.topic}
    story.go.ask("pull consumer", name="puller", **puller)
    polled = story.go.ask("poll", name="puller", count=40, timeoutMs=int(PATIENCE_S * 1000))
    assert sorted(bodies(polled)) == sorted(numbers(40))
    story.go.ask("persist offsets", name="puller", topic=story.topic)
    story.go.ask("stop", name="puller")

    story.go.send(PRODUCER, story.messages(4, "more "))
    story.go.ask("pull consumer", name="successor", **puller)
    polled = story.go.ask("poll", name="successor", count=4, timeoutMs=int(PATIENCE_S * 1000))
    assert sorted(bodies(polled)) == [f"more {number}" for number in range(4)]


def test_a_pull_consumer_reads_a_queue_from_any_offset(story: Story) -> None:
    story.go.ask("producer", name="exact", group="go-exact", selector="manual")
    story.go.send("exact", [story.message(str(number), queue=2, broker=BROKER) for number in range(10)])
    story.go.ask("pull consumer", name="puller", group=story.group, topic=story.topic)
    queue = {"name": "puller", "topic": story.topic, "broker": BROKER, "queue": 2}

    def pull_from(offset: int, count: int) -> Line:
        pulled: Line = story.go.ask("pull from", **queue, offset=offset, count=count)
        return pulled

    pulled = pull_from(3, 4)
    assert bodies(pulled["messages"]) == ["3", "4", "5", "6"]
    assert (pulled["status"], pulled["min"], pulled["next"], pulled["max"]) == ("found", 0, 7, 10)
    assert bodies(pull_from(7, 32)["messages"]) == ["7", "8", "9"]
    beyond = pull_from(1000, 1)
    assert (beyond["status"], beyond["next"], beyond["messages"]) == ("offset illegal", 10, [])


def test_a_pull_consumer_keeps_its_own_progress(story: Story) -> None:
    topic = f"{story.topic}-1"  # of one queue, because the client pulls from its queues in turn
    story.go.create_topic(topic, story.cluster.broker_address, queues=1)
    story.go.send(PRODUCER, [{"topic": topic, "body": str(number)} for number in range(6)])
    story.go.ask("pull consumer", name="puller", group=story.group, topic=topic)
    queue = {"name": "puller", "topic": topic, "broker": BROKER, "queue": 0}

    assert bodies(story.go.ask("pull", name="puller", count=4)["messages"]) == numbers(4)
    story.go.ask("update offset", **queue, offset=4)
    assert story.go.ask("offset", **queue) == 4
    story.go.ask("persist offsets", name="puller", topic=topic)
    until(
        lambda: bodies(story.go.ask("pull", name="puller", count=4)["messages"]) == ["4", "5"],
        "the broker gives the progress back",
    )


# --- Later, again, never -------------------------------------------------------------------------------------------


def test_a_delayed_message_is_never_early(story: Story) -> None:
    story.listen()
    delays_ms = {"at once": 0, "after a second": 1000, "after five": 5000}
    story.go.send(PRODUCER, [story.message(body, delayLevel=level) for level, body in enumerate(delays_ms)])
    heard = hears_exactly(story.go, CONSUMER, list(delays_ms))
    assert bodies(heard) == list(delays_ms)
    for one in heard:
        assert one["heard_ms"] - one["born_ms"] >= delays_ms[one["body"]]
        assert one["topic"] == story.topic


def test_a_refused_message_comes_again_and_ends_in_the_dead_letters(story: Story) -> None:
    story.listen_again(failBelow=99, maxReconsumeTimes=2, retryLevel=1)
    [sent] = story.go.send(PRODUCER, [story.message("poison", tags="t", keys=["k"])])
    dead_letters = f"%DLQ%{story.group}"
    until(lambda: dead_letters in story.go.ask("topics"), "the group has dead letters")

    state = story.go.listener(CONSUMER)
    assert [one["reconsume_times"] for one in state["refused"]] == [0, 1, 2]
    first, *again = state["refused"]
    assert {one["id"] for one in state["refused"]} == {sent["id"]}
    assert {one["topic"] for one in state["refused"]} == {story.topic}
    assert all(one["properties"]["RETRY_TOPIC"] == story.topic for one in again)
    assert all(one["properties"]["ORIGIN_MESSAGE_ID"] == sent["offset_id"] for one in again)
    assert again[0]["heard_ms"] - first["heard_ms"] >= 1000

    story.go.ask("pull consumer", name="undertaker", group=f"{story.group}-dead", topic=dead_letters)
    pulled = story.go.ask("pull from", name="undertaker", topic=dead_letters, broker=BROKER, queue=0, offset=0, count=9)
    [dead] = pulled["messages"]
    assert (dead["body"], dead["tags"], dead["keys"], dead["id"]) == ("poison", "t", "k", sent["id"])
    assert dead["properties"]["RETRY_TOPIC"] == story.topic
    assert dead["properties"]["ORIGIN_MESSAGE_ID"] == sent["offset_id"]
    assert dead["reconsume_times"] == 3


def test_a_message_refused_once_is_heard_the_second_time(story: Story) -> None:
    story.listen_again(failBelow=1, retryLevel=1)
    story.go.send(PRODUCER, story.messages(5))
    heard = hears_exactly(story.go, CONSUMER, numbers(5))
    assert {one["reconsume_times"] for one in heard} == {1}


# --- Transactions, requests, traces --------------------------------------------------------------------------------


def test_only_committed_transactions_are_heard(story: Story) -> None:
    story.go.ask("producer", name="payer", group="go-payers", transactional=True)
    story.listen()
    scripts = [
        "good commit",
        "bad rollback",
        "lost unknown commit",
        "slow unknown unknown commit",
        "gone unknown rollback",
    ]
    sent = {
        script: story.go.ask("transaction", name="payer", message=story.message(script, keys=["k"], tags="t"))
        for script in scripts
    }
    assert {one["status"] for one in sent.values()} == {SEND_OK}
    story.go.heard(CONSUMER, 1)
    assert "good commit" in bodies(story.go.listener(CONSUMER)["heard"])

    until(lambda: story.go.ask("checks", name="payer")["gone unknown rollback"]["checks"] > 0, "the broker asks back")
    heard = hears_exactly(story.go, CONSUMER, ["good commit", "lost unknown commit", "slow unknown unknown commit"])
    for one in heard:
        assert one["topic"] == story.topic
        assert (one["tags"], one["keys"]) == ("t", "k")
        assert one["id"] == sent[one["body"]]["id"]
    checks = story.go.ask("checks", name="payer")
    assert {script: check["checks"] for script, check in checks.items()} == {
        "good commit": 0,
        "bad rollback": 0,
        "lost unknown commit": 1,
        "slow unknown unknown commit": 2,
        "gone unknown rollback": 1,
    }
    assert all(checks[script]["id"] == sent[script]["id"] for script in scripts)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["waiting", "called back"])
def test_a_request_gets_its_reply(story: Story, asynchronous: bool) -> None:
    story.go.ask("producer", name="replier", group="go-repliers")
    story.listen(replyBy="replier")

    def ask(question: str) -> Line:
        reply: Line = story.go.ask(
            "request", name=PRODUCER, message=story.message(question), timeoutMs=700, **{"async": asynchronous}
        )
        return reply

    def is_answered() -> bool:
        try:
            ask("are you there?")
        except GoFailed as unanswered:
            if "timeout" not in str(unanswered):
                raise
            return False
        return True

    # The client introduces itself to the broker a second after it started; until then no reply can find it.
    until(is_answered, "the first reply comes")
    for question in ("who?", "wo? 🚀"):
        reply = ask(question)
        assert reply["body"] == f"re: {question}"
        assert reply["topic"] == "InteropCluster_REPLY_TOPIC"


def test_traces_of_sending_and_hearing_can_be_read(story: Story) -> None:
    story.go.ask("producer", name="traced", group="go-traced", trace=True)
    [sent] = story.go.send("traced", [story.message("traced", keys=["k"])])
    story.listen(trace=True)
    hears_exactly(story.go, CONSUMER, ["traced"])
    story.go.ask("pull consumer", name="tracker", group=story.group + "-tracker", topic=TRACE_TOPIC)

    def kinds() -> set[str]:
        polled = story.go.ask("poll", name="tracker", count=1, timeoutMs=200)
        seen.extend(one for one in polled if sent["id"] in one["keys"].split())
        return {event.split("\x01")[0] for one in seen for event in one["body"].split("\x02") if event}

    seen: list[Line] = []
    until(lambda: kinds() == {"Pub", "SubBefore", "SubAfter"}, "the trace of one message is complete")
    assert all(sent["id"] in one["body"] for one in seen)


# --- Administration ------------------------------------------------------------------------------------------------


def test_the_admin_client_makes_lists_and_deletes(story: Story) -> None:
    made, address = f"{story.topic}-made", story.cluster.broker_address
    story.go.create_topic(made, address, queues=5)
    assert story.go.ask("queues", topic=made) == [{"broker": BROKER, "queue": queue} for queue in range(5)]
    story.go.create_topic(made, address, queues=7)
    until(lambda: len(story.go.ask("queues", topic=made)) == 7, "the topic has more queues")

    story.listen()
    group = story.go.ask("groups", broker=address)[story.group]
    assert (group["GroupName"], group["ConsumeEnable"], group["ConsumeBroadcastEnable"]) == (story.group, True, True)
    assert (group["RetryMaxTimes"], group["RetryQueueNums"], group["NotifyConsumerIdsChangedEnable"]) == (16, 1, True)

    story.go.ask("delete topic", topic=made, broker=address)
    until(lambda: made not in story.go.ask("topics"), "the topic is gone")
    with pytest.raises(GoFailed, match=r"No topic route info|topic not exist"):
        story.go.ask("queues", topic=made)


def test_the_broker_knows_who_is_connected(story: Story) -> None:
    story.listen(tags="red || blue")
    connections = json.loads(
        story.go.invoke(story.cluster.broker_address, CONSUMER_CONNECTIONS, consumerGroup=story.group)
    )
    [connection] = connections["connectionSet"]
    assert (connection["language"], connection["clientId"].split("@")[1]) == ("GO", CONSUMER)
    assert connections["consumeType"] == "CONSUME_PASSIVELY"
    assert connections["messageModel"] == "CLUSTERING"
    assert connections["consumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"
    subscription = connections["subscriptionTable"][story.topic]
    assert (subscription["subString"], sorted(subscription["tagsSet"])) == ("red || blue", ["blue", "red"])


def test_the_broker_asks_a_consumer_for_administrators(story: Story) -> None:
    broker = story.cluster.broker_address
    story.listen()
    [sent] = story.go.send(PRODUCER, story.messages(1))
    hears_exactly(story.go, CONSUMER, ["0"])
    [client] = json.loads(story.go.invoke(broker, CONSUMERS_OF_GROUP, consumerGroup=story.group))["consumerIdList"]
    asked = {"consumerGroup": story.group, "clientId": client}

    running = story.go.invoke(broker, RUNNING_INFO, **asked, jstackEnable="true")
    assert story.topic in running
    assert "goroutine" in running
    assert '"PROP_CONSUMEORDERLY":"false"' in running.replace(" ", "")

    again = json.loads(story.go.invoke(broker, CONSUME_DIRECTLY, **asked, msgId=sent["offset_id"], brokerName=BROKER))
    assert again["consumeResult"] == CONSUME_SUCCESS  # which this client says with a number
    hears_exactly(story.go, CONSUMER, ["0", "0"])


@pytest.mark.slow  # after a reset of its offset, this client does nothing for ten seconds
def test_a_live_consumer_is_set_back_in_time(story: Story) -> None:
    story.listen()
    story.go.send(PRODUCER, story.messages(8))
    hears_exactly(story.go, CONSUMER, numbers(8))
    story.go.send(PRODUCER, story.messages(8))  # whose pulls tell the broker of the first eight
    hears_exactly(story.go, CONSUMER, numbers(8) * 2)
    story.go.invoke(
        story.cluster.broker_address, RESET_OFFSET, topic=story.topic, group=story.group, timestamp="0", isForce="true"
    )
    story.go.send(PRODUCER, story.messages(8))
    story.go.heard(CONSUMER, 8 * 5)
    assert set(bodies(story.go.listener(CONSUMER)["heard"])) == {*numbers(8)}


# --- The broker goes away: these are the last, because they stop what the others share ------------------------------


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_nothing_acknowledged_is_lost_when_the_broker_restarts_under_load(story: Story, how: signal.Signals) -> None:
    story.go.ask("producer", name="loaded", group="go-loaded", retries=3)
    story.listen("early")
    story.go.ask("load", name="loaded", topic=story.topic)
    story.go.heard("early", 200)
    story.cluster.end_broker(how)
    story.cluster.start_broker()
    before = len(story.go.ask("acknowledged", name="loaded"))
    until(lambda: len(story.go.ask("acknowledged", name="loaded")) >= before + 200, "the load goes on")
    acknowledged = story.go.ask("stop load", name="loaded")

    # Another client continues, because this one waits half a minute for the answers that died with the broker.
    heard_early = {*bodies(story.go.listener("early")["heard"])}
    story.go.ask("stop", name="early")
    until(lambda: story.topic in story.go.ask("topics"), "the name server knows the topic again")
    story.listen("late")
    until(
        lambda: {*acknowledged} <= heard_early | {*bodies(story.go.listener("late")["heard"])},
        "every acknowledged message is heard",
    )
