"""Clients of a pair: producers and groups that go on through everything, and a history of what they were told."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from chaos.support.client import Gone, progress_of, read_queue
from chaos.support.members import OPTIONS, Member
from chaos.support.pair_cluster import NAME, TOPICS, Node, Pair
from chaos.support.tally import Tally
from pyromq import Message, Producer, SendReceipt
from pyromq.errors import PyroMQError, SendUnknown
from pyromq.model.queue import MessageQueue
from pyromq.testing import Report, check
from pyromq.testing.history.events import Delivered, Event, Read, SendCalled, SendOk

NEWS, STEPS = "news", "steps"
READERS, LINE = "readers", "line"
GROUPS = {READERS: NEWS, LINE: STEPS}
PLAIN, KEYS = 8, 6
SEND_SECONDS = 2.0
PAUSE_SECONDS = 0.006
LOOK_SECONDS = 0.15
FILLING = "." * 200
CATCH_UP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Promotion:
    """A slave became the master, with the log as far as it had it."""

    at: float
    #: Who led, and who leads: the machines' addresses.
    old: str
    new: str
    #: The new master's log began to be its own here.
    kept_to: int
    #: When the old master was asked for the last time, and what it said: its end, and how far the slave was behind.
    asked_at: float
    end: int
    lag: int


@dataclass(slots=True)
class Load:
    """Until it is stopped."""

    pair: Pair
    history: Tally = field(default_factory=Tally)
    promotions: list[Promotion] = field(default_factory=list)
    longest_s: float = 0.0
    #: Where messages are, by their names, as producers were told: the machine's address, and the position in its log.
    places: dict[str, tuple[str, int]] = field(default_factory=dict)
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _members: list[Member] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Load]:
        self.history.subscribed(READERS, NEWS)
        self.history.subscribed(LINE, STEPS, ordered=True)
        for group, topic, ordered, number in (
            (READERS, NEWS, False, 1),
            (READERS, NEWS, False, 2),
            (LINE, STEPS, True, 1),
        ):
            name = f"{group}-{number}"
            self._members.append(Member(self.pair.name_server, group, topic, name, self.history, ordered).start())
        self._tasks = [asyncio.create_task(work()) for work in (self._plain, self._keyed, self._watch)]
        try:
            yield self
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.gather(*(member.leave() for member in self._members))

    # --- sending -----------------------------------------------------------------------------------------------------

    async def _plain(self) -> None:
        async with Producer(self.pair.name_server, group="plain", options=OPTIONS, timeout_s=SEND_SECONDS) as producer:
            await asyncio.gather(*(self._send(producer, f"plain-{number}", NEWS) for number in range(PLAIN)))

    async def _keyed(self) -> None:
        async with Producer(self.pair.name_server, group="keyed", options=OPTIONS, timeout_s=SEND_SECONDS) as producer:
            keys = [f"key-{number}" for number in range(KEYS)]
            await asyncio.gather(*(self._send(producer, key, STEPS, sharding_key=key) for key in keys))

    async def _send(self, producer: Producer, client: str, topic: str, **fields: str) -> None:
        """One after the other, each when the one before has its outcome."""
        key = fields.get("sharding_key", "")
        for sequence in itertools.count(1):
            if self._stopped.is_set():
                return
            name = f"{client}-{sequence}"
            op = self.history.send_called(client, topic, name, key=key, sequence=sequence if key else -1)
            await self._outcome(op, name, producer, Message(topic, name, properties={"filling": FILLING}, **fields))
            await asyncio.sleep(PAUSE_SECONDS)

    async def _outcome(self, op: int, name: str, producer: Producer, message: Message) -> None:
        began = asyncio.get_running_loop().time()
        try:
            receipt = await producer.send(message)
        except SendUnknown as unknown:
            self.history.send_unknown(op, str(unknown))
        except PyroMQError as failed:
            self.history.send_failed(op, str(failed))
        else:
            self.places[name] = _place(receipt)
            self.history.send_ok(op, receipt.queue, receipt.queue_offset)
        self.longest_s = max(self.longest_s, asyncio.get_running_loop().time() - began)

    async def stop_sending(self) -> None:
        """Returns when every send has its outcome."""
        self._stopped.set()
        async with asyncio.timeout(10 * SEND_SECONDS):
            await asyncio.gather(*self._tasks[:2])

    def check_alive(self) -> None:
        """Raises what ended a task that goes on for ever."""
        for task in self._tasks:
            if task.done():
                task.result()

    # --- groups ------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Writes down what the master knows of the groups."""
        while True:
            with contextlib.suppress(OSError, Gone, TimeoutError):
                await self._watch_master(self.pair.master)
            await asyncio.sleep(LOOK_SECONDS)

    async def _watch_master(self, node: Node) -> None:
        async with node.wire() as wire:
            while node is self.pair.master:
                for group, topic in GROUPS.items():
                    for number in range(TOPICS[topic]):
                        offset = await progress_of(wire, group, topic, number)
                        if offset is not None and node is self.pair.master:
                            self.history.committed("watcher", group, MessageQueue(topic, NAME, number), offset)
                await asyncio.sleep(LOOK_SECONDS)

    async def until_sending_works(self, seconds: float = 20.0) -> None:
        """Until something new is acknowledged."""
        acked = self.history.acked
        try:
            async with asyncio.timeout(seconds):
                while self.history.acked < acked + 10:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        except TimeoutError:
            last = [
                event for event in self.history.events[-400:] if type(event).__name__ in ("SendUnknown", "SendFailed")
            ]
            raise AssertionError(f"nothing is acknowledged any more: {last[-3:]}") from None

    def owed(self) -> dict[str, int]:
        """By group, acknowledged messages that it has not handled; those that it need not handle do not count."""
        missing = self.history.missing_names()
        if not any(missing.values()):
            return {}
        lost, places = self.lost_names(), self.history.acked_places()
        passed = self.passed_places(lost)
        left = {
            group: [name for name in names - lost if (group, *places[name]) not in passed]
            for group, names in missing.items()
        }
        return {group: len(names) for group, names in left.items() if names}

    def passed_places(self, lost: set[str]) -> set[tuple[str, MessageQueue, int]]:
        """Where a group was given a message that a promotion lost: it need not be given what is there now.

        That is so with async masters alone: a sync master shows what its slave has.
        """
        if not self.promotions or self.pair.mode.is_sync:
            return set()
        there = {place: name for name, place in self.history.acked_places().items() if name not in lost}
        there |= {(event.queue, event.offset): event.message_id for event in self.history if isinstance(event, Read)}
        return {
            (event.group, event.queue, event.offset)
            for event in self.history
            if isinstance(event, Delivered)
            and there.get((event.queue, event.offset), event.message_id) != event.message_id
        }

    def lost_names(self) -> set[str]:
        """Acknowledged by a master whose log ended, for everybody, before them."""
        if not self.promotions:
            return set()
        return {name for lost in self.losses().values() for name, _, _ in lost}

    def _lost_by(self, name: str, at: float) -> Promotion | None:
        """What ended the reign of the master who acknowledged it, if that did not keep it."""
        machine, position = self.places[name]
        began = [one.at for one in self.promotions if one.new == machine and one.at <= at]
        since = began[-1] if began else 0.0
        ended = [number for number, one in enumerate(self.promotions) if one.old == machine and one.at > since]
        later = self.promotions[ended[0] :] if ended else []
        return next((one for one in later if position >= one.kept_to), None)

    async def caught_up(self) -> None:
        """Until both groups have handled what was acknowledged."""
        try:
            async with asyncio.timeout(CATCH_UP_SECONDS):
                while self.owed():  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(
                f"consumers do not get everything; by group, so many are missing: {self.owed()}"
            ) from None

    # --- afterwards --------------------------------------------------------------------------------------------------

    async def audit(self, node: Node, auditor: str) -> None:
        """Read every queue from front to back."""
        async with node.wire() as wire:
            for topic, queues in TOPICS.items():
                for number in range(queues):
                    queue = MessageQueue(topic, NAME, number)
                    asked = self.history.now()
                    found = await read_queue(wire, topic, number)
                    self.history.queue_end(asked, auditor, queue, found[-1].queue_offset + 1 if found else 0)
                    for stored in found:
                        name = bytes(stored.body).decode()
                        self.history.read(auditor, queue, stored.queue_offset, name, position=stored.position)

    def judge(self, *, may_lose: bool) -> Report:
        """Everything against the promises. What a promotion lost, where that may be, is taken out before."""
        lost = self.lost_names()
        if not may_lose:
            assert not lost, f"{len(lost)} acknowledged messages were lost by a promotion, such as {sorted(lost)[:5]}"
        self._check_lag()
        gone = lost | self._never_promised()
        if not may_lose:
            seen = {event.message_id for event in self.history if isinstance(event, Delivered)} & gone
            assert not seen, f"{len(seen)} messages were seen that no slave had, such as {sorted(seen)[:5]}"
        return check(self._without(gone), passed=self.passed_places(lost))

    def _never_promised(self) -> set[str]:
        """Not acknowledged, and not there: no promise is broken."""
        there = {event.message_id for event in self.history if isinstance(event, Read)}
        return {name for name in self.history.unacked_names() if name not in there}

    def losses(self) -> dict[Promotion, list[tuple[str, int, float]]]:
        """What each promotion cost: acknowledged messages with their positions and the times of their answers."""
        found: dict[Promotion, list[tuple[str, int, float]]] = {one: [] for one in self.promotions}
        for event in self.history:
            if isinstance(event, SendOk):
                name = self.history.name_of(event.op)
                promotion = self._lost_by(name, event.at)
                if promotion is not None:
                    found[promotion].append((name, self.places[name][1], event.at))
        return found

    def _check_lag(self) -> None:
        """Of what was acknowledged before the old master was asked, no more is lost than it said."""
        for promotion, lost in self.losses().items():
            for name, position, at in lost:
                assert at >= promotion.asked_at or position < promotion.kept_to + promotion.lag, (
                    f"{name} at {position} is lost, though only {promotion.lag} bytes behind {promotion.kept_to} were "
                    "said to be missing"
                )

    def cost(self) -> list[str]:
        """For people."""
        return [
            f"a promotion at {one.kept_to} lost {len(lost)} acknowledged messages, {self._known_lost(one, lost)} of "
            f"them acknowledged before the lag was asked for, which was {one.lag} bytes"
            for one, lost in self.losses().items()
            if lost
        ]

    @staticmethod
    def _known_lost(promotion: Promotion, lost: list[tuple[str, int, float]]) -> int:
        return sum(at < promotion.asked_at for _, _, at in lost)

    def _without(self, gone: set[str]) -> list[Event]:
        """As if those had never been: nobody reads them again, and their offsets are others' now."""
        ops = {event.op for event in self.history if isinstance(event, SendCalled) and event.message_id in gone}
        return [
            event
            for event in self.history.in_time()
            if getattr(event, "message_id", None) not in gone and getattr(event, "op", None) not in ops
        ]


def _place(receipt: SendReceipt) -> tuple[str, int]:
    found = bytes.fromhex(receipt.offset_message_id)
    return ".".join(map(str, found[:4])), int.from_bytes(found[-8:], "big")
