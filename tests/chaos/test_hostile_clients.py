"""Requests made up by somebody who means harm: each gets a typed answer or a closed connection, the broker lives on,
and nothing happens outside its directory.

`PYROMQ_CHAOS_REQUESTS` sets how often each code is tried.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
from collections import Counter
from pathlib import Path

from chaos.support.client import Gone, Wire, connected, read_queue, send
from chaos.support.producers import HEARTBEAT
from chaos.support.server import Server
from chaos.test_failing_disk import needs_strace
from pyromq.wire.codes import RequestCode, ResponseCode
from pyromq.wire.command import Command, Serialization
from pyromq.wire.requests.admin import DeleteTopic, UpdateTopic
from pyromq.wire.requests.client import UpdateConsumerOffset, known_requests

TIMES = int(os.environ.get("PYROMQ_CHAOS_REQUESTS", "12"))

#: What no honest client sends, and what gets further than the first checks.
ODD = (
    "", "-1", "true", "null", "9" * 400, "-9223372036854775808", "9223372036854775807", "2147483647", "\0", "é" * 200,
    "../../evil", "/etc/evil", "..", "\x01\x02", "[[[[", '{"a":1}', "x" * 30_000, "TBW102", "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC", "%RETRY%readers", "%DLQ%readers", "a" * 127,
)  # fmt: skip
NUMBERS = ("0", "1", "2", "8", "12", "32", "1000", "1700000000000")
TEXTS = ("orders", "readers", "payments", "*", "a || b", "TAG", "SQL92", "a > 1", "+a=b,-c", "TRAN_MSG\x01true\x02",
         "DELAY\x0118\x02", "7F00000100002A9F0000000000000000", "LOWER")  # fmt: skip
BODIES = (
    b"", b"{}", b"[]", b"null", b"0", b"{" * 5000, b"[" * 50_000, b'{"a":' * 300, b"\xff\xfe\0", b"\x1f\x8b\x08\0",
    b"\x78\x9c\x01", bytes(300_000), b"rocketmqHome=/tmp/evil\nfilterServerNums=1\n",
    HEARTBEAT, HEARTBEAT.replace(b'"*"', b'"a > "').replace(b"TAG", b"SQL92"), HEARTBEAT.replace(b"orders", b"../evil"),
    HEARTBEAT.replace(b'"reader@1"', b"null"), HEARTBEAT.replace(b"1,", b"1e400,"), HEARTBEAT[:-7],
    b'{"consumerGroup":"readers","clientId":"reader@1","mqSet":[{"topic":"orders","brokerName":"b","queueId":-1}]}',
    b'{"consumerGroup":"readers","clientId":"reader@1","mqSet":[{"topic":7,"queueId":99999999999}]}',
    b'{"groupName":"..","retryQueueNums":-7}', b'{"topicConfigList":[{"topicName":"..","readQueueNums":1000000}]}',
    b'{"clientId":"reader@1","group":"readers","subscriptionData":{"topic":"orders","subString":"a >"}}',
    b'{"offsetTable":{"orders@readers":{0:-1}}}', b'{"groupList":["readers","../evil",7]}',
)  # fmt: skip
#: A pull that may be held is answered when its time is up: not what is tested here.
SUSPEND = "suspendTimeoutMillis"


class Fuzzer:
    """Makes requests of the fields that a code has: most of them sound right, some are odd, and some are missing."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.kinds = known_requests()

    def request(self, code: int) -> Command:
        rng, fields_of = self.rng, self._fields_of(code)
        odd = rng.choice((0.0, 0.1, 0.5))
        fields = {name: self._value(name, what, odd) for name, what in fields_of.items() if rng.random() > odd / 4}
        if SUSPEND in fields_of:
            fields[SUSPEND] = "5"
        form = rng.choice((Serialization.JSON, Serialization.BINARY))
        return Command(code=code, fields=fields, body=rng.choice(BODIES), serialization=form)

    def _fields_of(self, code: int) -> dict[str, str]:
        """Of each field: what it holds."""
        kind = self.kinds.get(code)
        if kind is None:
            return {"topic": "text", "group": "text", "queueId": "a 32-bit number"}
        form = self.rng.choice(("name", "short"))
        known = [field.metadata for field in dataclasses.fields(kind) if "kind" in field.metadata]
        return {metadata[form]: metadata["kind"].what for metadata in known}

    def _value(self, name: str, what: str, odd: float) -> str:
        rng = self.rng
        if rng.random() < odd:
            return rng.choice(ODD)
        if what != "text":
            return rng.choice(("true", "false") if what == "true or false" else NUMBERS)
        if name.lower().endswith("topic") or name == "b":
            return "orders"
        if name.lower().endswith("group") or name == "a":
            return "readers"
        return rng.choice(TEXTS)


async def ask_all(port: int, commands: list[Command]) -> Counter[str]:
    """One after the other, on a new connection when the old one was closed."""
    outcomes: Counter[str] = Counter()
    wire = await Wire.open(port)
    for command in commands:
        try:
            answer = await wire.call(command, 10)
        except Gone:
            outcomes["closed"] += 1
            wire = await opened_again(port)
            continue
        reason = answer.reason or ""
        assert "fault in the server" not in reason, f"{command.code} with {command.fields} and {command.body[:100]!r}"
        assert len(reason) < 3000, f"{command.code} gives back what it got"
        outcomes[str(answer.code)] += 1
    wire.close()
    return outcomes


async def opened_again(port: int) -> Wire:
    """One of the requests makes the broker start again, in its process: it is away for a moment."""
    async with asyncio.timeout(10):
        while True:
            try:
                return await Wire.open(port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.02)


def test_every_request_with_made_up_fields(tmp_path: Path) -> None:
    async def story() -> None:
        fuzzer = Fuzzer(1)
        codes = [*(int(code) for code in RequestCode), 0, 9999, 32767, 4242]
        with Server(tmp_path) as server:
            async with connected(server.port) as wire:
                for number in range(20):
                    assert (await wire.call(send("orders", b"%d" % number))).code == ResponseCode.SUCCESS
            before = server.anonymous_kib()
            commands = [fuzzer.request(code) for _ in range(TIMES) for code in codes]
            outcomes = await ask_all(server.port, commands)
            assert server.is_running()
            assert server.anonymous_kib() - before < 100 * 1024
            lines = server.log_lines()
            assert "Traceback" not in "\n".join(lines)
            assert len(lines) < len(commands)
            longest = max(lines, key=len)
            assert len(longest) < 20_000, f"a line of the log holds what a client sent: {longest[:300]}"
            async with connected(server.port) as wire:
                await wire.call(send("others", b"goes on"))
                assert await read_queue(wire, "others", 0)
            print(f"{len(commands)} requests: {dict(outcomes)}, {len(lines)} lines, {server.anonymous_kib()} KiB")
            assert server.stop() == 0

    asyncio.run(story())


def files_outside(home: Path, *inside: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in sorted(home.rglob("*"))
        if path.is_file() and path.relative_to(home).parts[0] not in ("said", "trace", *inside)
    }


#: What attackers sent to brokers and name servers of RocketMQ.
SETTINGS_OF_ATTACKERS = (
    b"filterServerNums=1\nrocketmqHome=-c $@|sh . echo touch evil;\n",
    b"rocketmqHome=/tmp/evil\n",
    b"brokerConfigPath=../evil.conf\naaa=1\n",
    b"configStorePath=../evil.conf\n",
    b"storePathRootDir=/tmp/evil\n",
    b"kvConfigPath=../evil.json\nconfigStorePath=../evil.properties\n",
    b"listenPort=1\n",
    b"namesrvAddr=evil:9876\n",
    b"brokerPermission=6\nfilterServerNums=1\n",
)


@needs_strace
def test_settings_and_names_that_reach_outside(tmp_path: Path) -> None:
    """Refused, one and all: no file outside the store is touched, and no process is started."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_text("stays")
    trace = tmp_path / "trace"
    traced = ["strace", "-f", "-qq", "-o", str(trace), "-e", "trace=execve,execveat,fork,vfork"]

    async def story() -> None:
        with Server(tmp_path, before=traced) as server:
            outside = files_outside(tmp_path, "store")
            async with connected(server.port) as wire:
                for settings in SETTINGS_OF_ATTACKERS:
                    for code in (RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG):
                        answer = await wire.call(Command(code=code, body=settings))
                        assert answer.code != ResponseCode.SUCCESS, settings
                for name in ("../../victim", "../victim", "..", ".", str(tmp_path / "victim"), "a/b", "victim\0", ""):
                    await refuse_everything_about(wire, name)
                config = await wire.call(Command(code=RequestCode.GET_BROKER_CONFIG))
                assert b"evil" not in config.body
            assert not server.children()
            assert server.stop() == 0
            assert files_outside(tmp_path, "store") == outside
        started = [line for line in trace.read_text().splitlines() if "execve" in line and "= 0" in line]
        assert len(started) == 1, f"more than the broker itself was started: {started}"

    asyncio.run(story())


async def refuse_everything_about(wire: Wire, name: str) -> None:
    made = UpdateTopic(topic=name, read_queues=1, write_queues=1, permission=6)
    for request in (
        send(name, b"x"),
        made,
        DeleteTopic(topic=name),
        UpdateConsumerOffset(group="readers", topic=name, queue_id=0, offset=1),
        Command(code=RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields={
            "topic": name, "group": "readers", "timestamp": "0", "isForce": "true"}),
        Command(code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"../../victim"}'),
    ):  # fmt: skip
        answer = await wire.call(request)
        assert answer.code != ResponseCode.SUCCESS, (name, request)
        assert "fault in the server" not in (answer.reason or "")


def test_a_name_server_keeps_its_settings_to_itself(tmp_path: Path) -> None:
    async def story() -> None:
        fuzzer = Fuzzer(2)
        with Server(tmp_path, settings="", program="nameserver") as server:
            outside = files_outside(tmp_path, "pyromq-data")
            async with connected(server.port) as wire:
                for settings in SETTINGS_OF_ATTACKERS:
                    answer = await wire.call(Command(code=RequestCode.UPDATE_NAMESRV_CONFIG, body=settings))
                    assert answer.code != ResponseCode.SUCCESS, settings
            outcomes = await ask_all(server.port, [fuzzer.request(int(code)) for code in RequestCode])
            print(dict(outcomes))
            assert "Traceback" not in server.tail()
            assert not server.children()
            assert files_outside(tmp_path, "pyromq-data") == outside
            assert server.stop() == 0

    asyncio.run(story())


def test_the_same_nonsense_again_and_again(tmp_path: Path) -> None:
    """What deserves a line in the log does not deserve ten thousand."""
    wrong_offset = Command(code=RequestCode.PULL_MESSAGE, fields={
        "consumerGroup": "readers", "topic": "orders", "queueId": "0", "queueOffset": "77", "maxMsgNums": "1",
        "sysFlag": "4", "subscription": "*", "expressionType": "TAG"})  # fmt: skip
    settings = Command(code=RequestCode.UPDATE_BROKER_CONFIG, body=b"rocketmqHome=/tmp/evil\n")

    async def story() -> None:
        with Server(tmp_path) as server:
            async with connected(server.port) as wire:
                assert (await wire.call(send("orders", b"x"))).code == ResponseCode.SUCCESS
                for _ in range(10):
                    nonsense = [dataclasses.replace(one) for _ in range(150) for one in (wrong_offset, settings)]
                    answers = await asyncio.gather(*map(wire.put, nonsense))
                    assert all(answer.code != ResponseCode.SUCCESS for answer in answers)
            assert len(server.log_lines()) < 1000

    asyncio.run(story())
