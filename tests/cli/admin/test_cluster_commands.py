"""`pyromq topic | group | consumer | message | dlq | cluster | broker`, told as a person uses them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

import pyromq.testing
from cli.support.cluster_scene import Shell

NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    with pyromq.testing.broker() as mq:
        yield Shell(mq.name_servers)


@pytest.fixture
def topic() -> str:
    return f"topic-{next(NUMBERS)}"


@pytest.fixture
def group() -> str:
    return f"group-{next(NUMBERS)}"


# --- topics ----------------------------------------------------------------------------------------------------------


def test_a_topic_is_made_seen_changed_and_deleted(shell: Shell, topic: str) -> None:
    assert shell.ok("topic", "create", topic, "--queues", "2", "--type", "FIFO") == (
        f"✓ made {topic} on broker-a: 2 queues each, read-write\n"
    )
    assert topic in shell.ok("topic", "list")
    shell.ok("send", topic, "one", "two", "three")
    listed = {one["topic"]: one for one in shell.json("topic", "list", "--counts")}
    assert (listed[topic]["messages"], listed[topic]["brokers"][0]["attributes"]) == (3, {"message.type": "FIFO"})
    assert "TBW102" not in listed
    assert "TBW102" in shell.ok("topic", "list", "--all")
    assert "1 to write each, read" in shell.ok("topic", "update", topic, "--write-queues", "1", "--permission", "read")
    described = shell.ok("topic", "describe", topic)
    assert "2 queues to read, 1 to write, read" in described
    assert shell.json("topic", "route", topic)["queues"][0]["write_queues"] == 1
    deleted = shell("topic", "delete", topic, "--yes")
    assert f"This will delete the topic {topic} on broker-a with 3 messages." in deleted.stderr
    assert deleted.stdout == f"✓ deleted {topic}\n"
    gone = shell("topic", "describe", topic)
    assert (gone.exit_code, len(gone.stderr.splitlines())) == (1, 1)
    assert f"error: no broker has a topic '{topic}': `pyromq topic list` shows those there are" in gone.stderr


def test_nothing_is_destroyed_without_a_yes(shell: Shell, topic: str, group: str) -> None:
    shell.ok("topic", "create", topic)
    shell.ok("group", "create", group)
    for command in (
        ["topic", "delete", topic],
        ["group", "delete", group],
        ["consumer", "reset", group, topic, "--to", "latest"],
        ["consumer", "skip", group, topic],
        ["broker", "set", "broker-a", "fileReservedTime=1"],
    ):
        refused = shell(*command)
        assert (refused.exit_code, refused.stdout) == (1, ""), command
        assert "This will" in refused.stderr
        assert "error: nothing was done: there is no terminal to ask on, so say --yes" in refused.stderr
    assert topic in shell.ok("topic", "list")
    assert group in shell.ok("group", "list")


@pytest.mark.parametrize(
    ("command", "code", "sentence"),
    [
        (["topic", "create", "no topic!"], 1, "error: the topic 'no topic!' may have only letters"),
        (["topic", "create", "TBW102"], 1, "error: the topic 'TBW102' is there already"),
        (["topic", "delete", "TBW102", "-y"], 1, "the broker's own: it cannot be deleted"),
        (["group", "describe", "nobody"], 1, "error: no broker has a group 'nobody'"),
        (["consumer", "reset", "nobody", "TBW102", "--to", "latest"], 1, "error: no broker has a group 'nobody'"),
        (["consumer", "lag", "nobody"], 1, "error: no broker has a group 'nobody'"),
        (["consumer", "members", "nobody"], 1, "error: no member of the group 'nobody' is connected"),
        (["message", "show", "xyz"], 1, "error: 'xyz' is not a message id"),
        (["dlq", "show", "nobody"], 1, "error: the group 'nobody' has no dead letters"),
        (["broker", "status", "nobody"], 1, "error: no broker is called 'nobody': there are broker-a"),
        (["cluster", "-n", "127.0.0.1:1"], 1, "no name server answers at 127.0.0.1:1: start one with"),
        (["cluster", "-n", ";"], 1, "error: no name server is given: use --name-servers"),
        (["cluster", "-n", "here"], 1, "error: 'here' is no address of a name server: it is host:port"),
        (["broker", "--port", "1", "list"], 2, "error: --port is for starting a broker"),
        (["message", "find", "TBW102"], 2, "say what to look for"),
        (["consumer", "reset", "g", "t"], 2, "say either --to"),
        (["consumer", "reset", "g", "t", "--to", "soon"], 2, "'soon' is no time"),
        (["topic", "update", "t", "--attribute", "x"], 2, "'x' is no NAME=VALUE"),
        (["topic", "update", "t"], 2, "say what is to change"),
        (["group", "update", "g"], 2, "say what is to change"),
        (["topic", "nonsense"], 2, "No such command"),
        (["tpoic", "list"], 2, "No such command 'tpoic'. Did you mean 'topic'?"),
        (["message", "show", "7CA9DB8E6DBCFC8F" * 2], 1, "does not say where its message is. If its producer gave it"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_said_with_what_to_do(shell: Shell, command: list[str], code: int, sentence: str) -> None:
    result = shell(*command)
    assert (result.exit_code, result.stdout) == (code, "")
    assert sentence in " ".join(result.stderr.replace("│", " ").split())
    assert "Traceback" not in result.stderr


# --- groups and consumers --------------------------------------------------------------------------------------------


def test_a_group_is_made_changed_followed_and_deleted(shell: Shell, topic: str, group: str) -> None:
    shell.ok("topic", "create", topic, "--queues", "1")
    shell.ok("send", topic, "one", "two", "three")
    shell.ok("group", "create", group, "--max-retries", "2")
    assert shell.json("group", "update", group, "--disable")["consume_enabled"] is False
    assert [one["max_retries"] for one in shell.json("group", "list") if one["group"] == group] == [2]
    shell.ok("group", "update", group, "--enable")
    assert "has not consumed anything yet" in shell("consumer", "lag", group).stderr
    planned = shell.json("consumer", "reset", group, topic, "--to", "earliest", "--dry-run")
    assert planned == {
        "group": group, "topic": topic, "done": False,
        "queues": [{"broker": "broker-a", "queue": 0, "before": None, "after": 0}],
    }  # fmt: skip
    assert (
        shell.ok("consumer", "reset", group, topic, "--offset", "1", "-y") == f"✓ set {group} in 1 queue of {topic}\n"
    )
    lag = shell.json("consumer", "lag", group)
    assert (lag["lag"], lag["queues"][0]["consumer_offset"], lag["queues"][0]["broker_offset"]) == (2, 1, 3)
    assert "is behind by 2 of 3 messages" in shell.ok("consumer", "lag", group)
    assert shell.json("group", "describe", group)["lag"] == 2
    assert "skips 2 messages" in shell("consumer", "skip", group, topic, "--dry-run").stdout
    shell.ok("consumer", "clone", group, f"{group}-copy", topic, "-y")
    shell.ok("consumer", "skip", group, topic, "-y")
    listed = {one["group"]: one for one in shell.json("consumer", "list")}
    assert (listed[group]["lag"], listed[group]["members"], listed[group]["topics"]) == (0, 0, [topic])
    assert f"✓ deleted group {group}" in shell.ok("group", "delete", group, "-y")
    assert group not in shell.ok("group", "list")


def test_times_are_read_as_people_write_them(shell: Shell, topic: str, group: str) -> None:
    shell.ok("topic", "create", topic, "--queues", "1")
    shell.ok("group", "create", group)
    shell.ok("send", topic, "one")
    for when, after in (("10m", 0), ("2001-02-03 04:05", 0), ("now", 1)):
        planned = shell.json("consumer", "reset", group, topic, "--to", when, "--dry-run")
        assert [one["after"] for one in planned["queues"]] == [after], when
    assert len(shell.json("message", "find", topic, "--since", "1h")) == 1
    assert shell.json("message", "find", topic, "--since", "3d", "--until", "2d") == []


# --- messages --------------------------------------------------------------------------------------------------------


def test_messages_are_found_and_shown(shell: Shell, topic: str) -> None:
    shell.ok("topic", "create", topic, "--queues", "1")
    (sent, _) = shell.lines(
        "send", topic, '{"b": [1]}', "second", "--key", "k", "--tag", "T", "--property", "colour=red"
    )
    assert (sent["topic"], sent["queue"], sent["offset"]) == (topic, 0, 0)
    for command in (["show", sent["offset_message_id"]], ["show", sent["message_id"], "--topic", topic]):
        found = shell.json("message", *command)
        assert (found["body"], found["tag"], found["keys"], found["properties"]["colour"]) == (
            '{"b": [1]}', "T", ["k"], "red",
        )  # fmt: skip
        assert found["message_id"] == sent["message_id"]
    shown = shell.ok("message", "show", sent["offset_message_id"])
    assert '{\n  "b": [\n    1\n  ]\n}\n' in shown, "JSON is shown with its structure"
    assert shell.ok("message", "show", sent["offset_message_id"], "--body") == '{"b": [1]}'
    assert [one["body"] for one in shell.json("message", "find", topic, "--key", "k")] == ['{"b": [1]}', "second"]
    assert [one["body"] for one in shell.json("message", "peek", topic, "--newest", "--count", "1")] == ["second"]
    assert [one["offset"] for one in shell.json("message", "peek", topic, "--queue", "0", "--offset", "1")] == [1]
    assert "nothing was found" in shell("message", "find", topic, "--key", "other").stderr


def test_what_comes_from_the_network_has_no_power_over_the_terminal(shell: Shell, topic: str) -> None:
    shell.ok("topic", "create", topic, "--queues", "1")
    shell.ok("send", topic, "\x1b[2Jboo [bold]", "--key", "\x1bk", "--property", "x=\x1b]0;y\x07")
    (message,) = shell.json("message", "peek", topic)
    for command in (
        ["message", "peek", topic],
        ["message", "show", message["offset_message_id"]],
        ["tail", topic, "--no-follow"],
        ["consume", topic, "--count", "1"],
    ):
        out = shell.ok(*command)
        assert "\x1b" not in out, command
        assert r"\x1b[2Jboo [bold]" in out, command


def test_bytes_that_are_no_text_are_told_apart(shell: Shell, topic: str) -> None:
    shell.ok("topic", "create", topic, "--queues", "1")
    shell.ok("send", topic, "\udcff")  # a byte that is no UTF-8, as a shell hands it over
    (message,) = shell.json("message", "peek", topic)
    assert message["body_base64"] == "/w=="
    assert "body" not in message


def test_the_newest_messages(shell: Shell, topic: str) -> None:
    shell.ok("topic", "create", topic, "--queues", "3")
    shell.ok("send", topic, *"abcdefg", "--tag", "T")
    assert [one["body"] for one in shell.lines("tail", topic, "--no-follow", "--last", "3")] == ["e", "f", "g"]
    assert shell.lines("tail", topic, "--no-follow", "--last", "0") == []
    assert shell.lines("tail", topic, "--no-follow", "--tag", "other") == []
    assert shell("tail", "nowhere", "--no-follow").exit_code == 1


def test_consuming_for_a_group_moves_its_progress(shell: Shell, topic: str, group: str) -> None:
    shell.ok("topic", "create", topic, "--queues", "1")
    shell.ok("send", topic, "one", "two")
    assert [one["body"] for one in shell.lines("consume", topic, "--group", group, "--count", "2")] == ["one", "two"]
    assert shell.json("consumer", "lag", group, "--topic", topic)["lag"] == 0
    shell.ok("send", topic, "three", "four", "five")
    assert [one["body"] for one in shell.lines("consume", topic, "--group", group, "--count", "1")] == ["three"]
    assert shell.json("consumer", "lag", group, "--topic", topic)["lag"] == 2
    both = shell("consume", topic, "--group", group, "--new-only")
    assert (both.exit_code, both.stdout) == (1, "")


# --- dead letters ----------------------------------------------------------------------------------------------------


def test_dead_letters_are_listed_looked_into_and_replayed(shell: Shell, topic: str, group: str) -> None:
    shell.ok("topic", "create", topic, "--queues", "1")
    shell.ok("group", "create", group)
    shell.ok("send", topic, "one", "two", "three", "--key", "k")
    shell.bury(topic, group)
    (found,) = [one for one in shell.json("dlq", "list") if one["group"] == group]
    assert (found["messages"], found["waiting"], found["topic"]) == (3, 3, f"%DLQ%{group}")
    letters = shell.json("dlq", "show", group)
    assert [one["body"] for one in letters] == ["one", "two", "three"]
    in_full = shell.ok("dlq", "show", group, "--id", letters[1]["message_id"])
    assert "property DLQ_ORIGIN_TOPIC" in in_full
    assert in_full.endswith("two\n")

    refused = shell("dlq", "replay", group)
    assert refused.exit_code == 1
    assert f"This will send 3 dead letters of {group} again to the topics where they came from" in refused.stderr

    first = shell("dlq", "replay", group, "--count", "1", "--yes")
    assert first.stdout == f"✓ replayed 1 dead letter of {group}, 2 are left\n"
    by_id = shell.lines("dlq", "replay", group, "--id", letters[0]["message_id"], "--yes")
    assert [(one["topic"], one["offset"]) for one in by_id] == [(topic, 4)]
    rest = shell.lines("dlq", "replay", group, "--rate", "0", "--yes")
    assert [one["message_id"] for one in rest] == [one["message_id"] for one in letters[1:]]
    assert "all 3 dead letters" in shell("dlq", "replay", group, "--yes").stderr
    assert shell.json("topic", "describe", topic)["messages"] == 7
    assert shell.json("group", "describe", group)["dead_letters"] == 3


# --- brokers ---------------------------------------------------------------------------------------------------------


def test_the_cluster_and_its_brokers(shell: Shell) -> None:
    (broker,) = shell.json("cluster")
    assert (broker["broker"], broker["pyromq_version"], broker["problem"]) == ("broker-a", pyromq.__version__, None)
    assert shell.json("broker", "list")[0]["address"] == broker["address"]
    assert "PyroMQ" in shell.ok("cluster")
    assert shell.json("broker", "status", "broker-a")["figures"]["brokerActive"] == "true"
    assert "within 1" in shell.ok("broker", "status", broker["address"])
    assert "putTps" in shell.ok("broker", "status", "broker-a", "--all")


def test_settings_of_a_broker(shell: Shell) -> None:
    changed = shell("broker", "set", "broker-a", "fileReservedTime=71", "traceOn=false", "--yes")
    assert "fileReservedTime from " in changed.stderr
    assert changed.stdout == "✓ changed 2 settings of broker-a\n"
    assert shell.json("broker", "config", "broker-a", "--search", "reserved") == {"fileReservedTime": "71"}
    refused = shell("broker", "set", "broker-a", "fileReservedTime=1", "listenPort=1", "--yes")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "nothing was changed" in refused.stderr
    assert "71" in shell.ok("broker", "config", "broker-a", "--search", "filereserved")


def test_the_doctor_looks_at_the_cluster(shell: Shell) -> None:
    found = {one["name"]: one for one in shell.json("doctor", "-n", shell.name_servers)["checks"]}
    assert found["name server"]["good"]
    assert found["broker broker-a"]["good"]
    assert found["clock of broker-a"]["good"]
    sick = shell("doctor", "-n", f"{shell.name_servers};127.0.0.1:1")
    assert sick.exit_code == 1
    assert "127.0.0.1:1: no answer" in sick.stdout


def test_nothing_yet_is_said_kindly() -> None:
    with pyromq.testing.broker() as mq:
        shell = Shell(mq.name_servers)
        for command, note in (
            (["topic", "list"], "no topics yet"),
            (["group", "list"], "no groups yet"),
            (["consumer", "list"], "no groups yet"),
            (["producer", "list"], "no producer is connected now"),
            (["dlq", "list"], "no group has dead letters"),
        ):
            result = shell(*command)
            assert (result.exit_code, result.stdout) == (0, "")
            assert note in result.stderr
            assert shell.json(*command) in ([], {})
