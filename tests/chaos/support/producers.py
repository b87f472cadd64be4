"""Producers of all kinds, side by side, each in a connection of its own, until the broker is killed under them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from chaos.support.client import Gone, Wire, commit, connected, pull, send, send_batch
from chaos.support.recorder import Recorder
from pyromq.wire.codes import RequestCode, ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.requests.client import EndTransaction, Heartbeat

TOPIC, QUEUES = "orders", 4
FILLING = b"." * 200
DELAY_LEVEL, DELAY_MS = "1", 1000
COMMIT, ROLL_BACK = 8, 12
GROUP = "readers"
#: Names of the second form of a send, and of the first.
LONG_NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
    "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode",
    "l": "maxReconsumeTimes", "m": "batch",
}  # fmt: skip


@dataclass
class Half:
    """A half message whose end nobody acknowledged."""

    body: bytes
    request: EndTransaction


@dataclass
class Load:
    """One round of work against one broker, and what it promised."""

    record: Recorder
    life: int
    port: int
    #: Offsets that were committed, and answered.
    commits: list[int] = field(default_factory=list)
    halves: list[Half] = field(default_factory=list)
    delayed: int = 0
    serial: int = 0

    async def run(self, seconds: float, end: Callable[[], None]) -> None:
        """Work for so long, then `end` it under the producers' hands, and wait until each has noticed."""
        kinds = [self.plain, self.plain, self.binary, self.first_form, self.batches, self.delays, self.transactions,
                 self.new_topics, self.consumer]  # fmt: skip
        tasks = [asyncio.ensure_future(self._until_gone(kind)) for kind in kinds]
        await asyncio.sleep(seconds)
        end()
        async with asyncio.timeout(20):
            await asyncio.gather(*tasks)

    async def _until_gone(self, work: Callable[[Wire], Coroutine[Any, Any, None]]) -> None:
        with contextlib.suppress(Gone, OSError):
            async with connected(self.port) as wire:
                while True:
                    await work(wire)

    def _body(self, kind: str) -> bytes:
        self.serial += 1
        return b"%s-%d-%d " % (kind.encode(), self.life, self.serial) + FILLING

    async def _all(self, sends: list[tuple[Command, int, bytes]], wire: Wire) -> None:
        """Many at once, on one connection."""
        for _, queue, body in sends:
            self.record.attempt(TOPIC, queue, body)
        answers = [wire.put(command) for command, _, _ in sends]
        done = await asyncio.gather(*answers, return_exceptions=True)
        for answer, (_, queue, body) in zip(done, sends, strict=True):
            if isinstance(answer, Command):
                assert answer.code == ResponseCode.SUCCESS, answer.reason
                self.record.ack(TOPIC, queue, int(answer.fields["queueOffset"]), body)
        for answer in done:
            if isinstance(answer, BaseException):
                raise answer

    # --- kinds of work -----------------------------------------------------------------------------------------------

    async def plain(self, wire: Wire) -> None:
        """What most clients send: the compiled way takes it."""
        bodies = [self._body("plain") for _ in range(16)]
        await self._all([(send(TOPIC, body, n % QUEUES), n % QUEUES, body) for n, body in enumerate(bodies)], wire)
        await asyncio.sleep(0.003)  # what was sent is read back, which takes longer

    async def binary(self, wire: Wire) -> None:
        bodies = [self._body("binary") for _ in range(4)]
        await self._all([(send(TOPIC, body, n, binary=True), n, body) for n, body in enumerate(bodies)], wire)

    async def first_form(self, wire: Wire) -> None:
        body = self._body("first")
        command = send(TOPIC, body, 1)
        fields = {LONG_NAMES[name]: value for name, value in command.fields.items()}
        command = Command(code=RequestCode.SEND_MESSAGE, fields=fields, body=body)
        await self._all([(command, 1, body)], wire)

    async def batches(self, wire: Wire) -> None:
        bodies = [self._body("batch") for _ in range(5)]
        for body in bodies:
            self.record.attempt(TOPIC, 2, body)
        answer = await wire.call(send_batch(TOPIC, bodies, 2))
        assert answer.code == ResponseCode.SUCCESS, answer.reason
        for number, body in enumerate(bodies):
            self.record.ack(TOPIC, 2, int(answer.fields["queueOffset"]) + number, body)

    async def new_topics(self, wire: Wire) -> None:
        """A topic that its first message makes: once that is acknowledged, it is there to stay."""
        body = self._body("new")
        topic = f"new-{self.life}-{self.serial}"
        self.record.attempt(topic, 0, body)
        answer = await wire.call(send(topic, body))
        assert answer.code == ResponseCode.SUCCESS, answer.reason
        self.record.ack(topic, 0, int(answer.fields["queueOffset"]), body)

    async def delays(self, wire: Wire) -> None:
        body = self._body("delayed")
        self.record.attempt("later", 0, body, delay_ms=DELAY_MS)
        answer = await wire.call(send("later", body, more={"DELAY": DELAY_LEVEL}))
        assert answer.code == ResponseCode.SUCCESS, answer.reason
        self.record.ack("later", 0, int(answer.fields["queueOffset"]), body)
        self.delayed += 1
        await asyncio.sleep(0.005)

    async def transactions(self, wire: Wire) -> None:
        body = self._body("half")
        decision = COMMIT if self.serial % 2 else ROLL_BACK
        self.record.attempt("payments", 0, body, transaction=True)
        half = await wire.call(send("payments", body, more={"TRAN_MSG": "true", "PGROUP": "payers"}, group="payers"))
        assert half.code == ResponseCode.SUCCESS, half.reason
        self.record.ack("payments", 0, int(half.fields["queueOffset"]), body)
        request = EndTransaction(
            producer_group="payers", half_offset=int(half.fields["queueOffset"]),
            half_position=int(half.fields["msgId"][-16:], 16), decision=decision, message_id=half.fields["msgId"],
        )  # fmt: skip
        self.halves.append(Half(body, request))
        self.record.decided(body, commit=decision == COMMIT)
        answer = await wire.call(request)
        assert answer.code == ResponseCode.SUCCESS, answer.reason
        self.halves.pop()

    async def consumer(self, wire: Wire) -> None:
        """Tells how far it is, a little further each time."""
        await wire.call(Heartbeat(body=HEARTBEAT))
        at = self.commits[-1] if self.commits else 0
        while True:
            answer = await wire.call(pull(TOPIC, 0, at, most=4, hold_ms=500, group=GROUP))
            if answer.code == ResponseCode.SUCCESS:
                at = int(answer.fields["nextBeginOffset"])
                self.record.progress(GROUP, TOPIC, 0, at)
                told = await commit(wire, GROUP, TOPIC, 0, at)
                assert told.code == ResponseCode.SUCCESS, told.reason
                self.commits.append(at)


HEARTBEAT = (
    b'{"clientID":"reader@1","producerDataSet":[],"consumerDataSet":[{"groupName":"readers","consumeType":'
    b'"CONSUME_PASSIVELY","messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
    b'"subscriptionDataSet":[{"topic":"orders","subString":"*","tagsSet":[],"codeSet":[],"subVersion":1,'
    b'"expressionType":"TAG"}],"unitMode":false}]}'
)
