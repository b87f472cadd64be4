"""Everybody who uses a cluster at once: producers of every kind, groups of every kind, and those who look on."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from chaos.support.client import Gone, Wire, connected, progress_of, read_queue
from chaos.support.cluster import Cluster
from chaos.support.members import OPTIONS, Member, MemberProcess
from chaos.support.tally import Tally
from pyromq import (
    ConsumeFrom,
    Decision,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    ReceivedMessage,
    SendReceipt,
    TransactionProducer,
)
from pyromq.errors import PyroMQError, SendUnknown

#: Topics, each with its queues on each broker.
NEWS, STEPS, DEALS = "news", "steps", "deals"
TOPICS = {NEWS: 3, STEPS: 2, DEALS: 2}
#: Groups.
READERS, LINE, EVERYONE, PULLERS, BUYERS = "readers", "line", "everyone", "pullers", "buyers"
SHARED = {READERS: NEWS, LINE: STEPS, PULLERS: NEWS, BUYERS: DEALS}
KEYS = 3
#: Longest time for a send, and the pause between two of the same task.
SEND_SECONDS = 1.5
PAUSE_SECONDS = 0.01
LOOK_SECONDS = 0.1


@dataclass(slots=True)
class Senders:
    """Producers that go on until they are told to stop."""

    addresses: str
    history: Tally
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    #: What the local part of each transaction decided; None while it is under way.
    _deals: dict[str, Decision | None] = field(default_factory=dict)
    _ops: dict[str, int] = field(default_factory=dict)
    #: Producers stay until the end: brokers ask them for the ends of transactions.
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    #: The longest time that any send took.
    longest_s: float = 0.0

    def start(self) -> None:
        for work in (self._plain, self._gathered, self._sharded, self._chosen, self._transactions):
            self._tasks.append(asyncio.create_task(work(), name=work.__name__))

    async def stop_sending(self) -> None:
        """Returns when every send has its outcome."""
        self.stopped.set()
        await asyncio.sleep(2 * SEND_SECONDS)
        self._raise_what_failed()

    async def close(self) -> None:
        self._over.set()
        await asyncio.gather(*self._tasks)

    def _raise_what_failed(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()

    async def _plain(self) -> None:
        async with Producer(self.addresses, group="plain", options=OPTIONS, timeout_s=SEND_SECONDS) as producer:
            await asyncio.gather(*(self._loop(producer, f"plain-{number}", NEWS) for number in range(3)))
            await self._over.wait()

    async def _gathered(self) -> None:
        async with Producer(
            self.addresses, group="gathered", options=OPTIONS, timeout_s=SEND_SECONDS, auto_batch=True
        ) as producer:
            await asyncio.gather(*(self._loop(producer, f"gathered-{number}", NEWS) for number in range(8)))
            await self._over.wait()

    async def _sharded(self) -> None:
        """Half of the keys with batches behind the sends: order holds there too."""
        one = Producer(self.addresses, group="sharded", options=OPTIONS, timeout_s=SEND_SECONDS)
        other = Producer(
            self.addresses, group="sharded-gathered", options=OPTIONS, timeout_s=SEND_SECONDS, auto_batch=True
        )
        async with one, other:
            keys = [(producer, f"k{number}-{producer.group}") for producer in (one, other) for number in range(KEYS)]
            await asyncio.gather(*(self._loop(producer, key, STEPS, sharding_key=key) for producer, key in keys))
            await self._over.wait()

    async def _chosen(self) -> None:
        queue = MessageQueue(NEWS, "broker-b", 1)
        async with Producer(self.addresses, group="chosen", options=OPTIONS, timeout_s=SEND_SECONDS) as producer:
            await self._loop(producer, "chosen", NEWS, queue)
            await self._over.wait()

    async def _loop(
        self, producer: Producer, client: str, topic: str, queue: MessageQueue | None = None, **fields: str
    ) -> None:
        """One after the other, each when the one before has its outcome."""
        key = fields.get("sharding_key", "")
        for sequence in itertools.count(1):
            if self.stopped.is_set():
                return
            name = f"{client}-{sequence}"
            op = self.history.send_called(client, topic, name, key=key, sequence=sequence if key else -1, queue=queue)
            message = Message(topic, name, **fields)
            await self._outcome(op, lambda message=message: producer.send(message, queue=queue))
            await asyncio.sleep(PAUSE_SECONDS)

    async def _outcome(self, op: int, send: Callable[[], Awaitable[SendReceipt]]) -> None:
        began = asyncio.get_running_loop().time()
        try:
            receipt = await send()
        except SendUnknown as unknown:
            self.history.send_unknown(op, str(unknown))
        except PyroMQError as failed:
            self.history.send_failed(op, str(failed))
        else:
            self.history.send_ok(op, receipt.queue, receipt.queue_offset)
        finally:
            self.longest_s = max(self.longest_s, asyncio.get_running_loop().time() - began)

    # --- transactions ------------------------------------------------------------------------------------------------

    async def _transactions(self) -> None:
        async with TransactionProducer(
            self.addresses, group="brokers-of-deals", check=self._check, options=OPTIONS, timeout_s=SEND_SECONDS
        ) as producer:
            await asyncio.gather(*(self._deal(producer, f"deal-{number}") for number in range(2)))
            await self._over.wait()

    async def _deal(self, producer: TransactionProducer, client: str) -> None:
        for sequence in itertools.count(1):
            if self.stopped.is_set():
                return
            name = f"{client}-{sequence}"
            self._deals[name] = None
            self._ops[name] = op = self.history.send_called(client, DEALS, name, transaction=True)
            await self._outcome(op, lambda name=name: self._send_deal(producer, name))
            self._deals[name] = self._deals[name] or Decision.ROLLBACK  # then the local part was never done
            await asyncio.sleep(PAUSE_SECONDS)

    async def _send_deal(self, producer: TransactionProducer, name: str) -> SendReceipt:
        receipt, _ = await producer.send_in_transaction(Message(DEALS, name), self._local)
        return receipt

    def _local(self, message: Message) -> Decision:
        """Commit, roll back, or commit and not say so."""
        name = message.body.decode()
        kind = int(name.rpartition("-")[2]) % 4
        decision = self._deals[name] = Decision.ROLLBACK if kind == 1 else Decision.COMMIT
        if kind == 2:
            return Decision.UNKNOWN
        self.history.decided(self._ops[name], commit=decision is Decision.COMMIT)
        return decision

    def _check(self, message: ReceivedMessage) -> Decision:
        name = message.body.decode()
        decision = self._deals[name]
        if decision is None:
            return Decision.UNKNOWN
        self.history.decided(self._ops[name], commit=decision is Decision.COMMIT)
        return decision


class Groups:
    """Members of every kind, and those that take the place of others."""

    def __init__(self, addresses: str, history: Tally, home: Path) -> None:
        self._addresses = addresses
        self._history = history
        self._home = home
        self._numbers = itertools.count(1)
        self.readers: list[Member] = []
        self.line: list[Member] = []
        self.others: list[Member] = []
        self.processes: list[MemberProcess] = []
        self._pulling: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._history.subscribed(READERS, NEWS)
        self._history.subscribed(LINE, STEPS, ordered=True)
        self._history.subscribed(EVERYONE, NEWS)
        self._history.subscribed(PULLERS, NEWS)
        self._history.subscribed(BUYERS, DEALS)
        for _ in range(2):
            self.join_readers()
            self.join_line()
        self.others.append(self._member(EVERYONE, NEWS, broadcast_in=self._home / "offsets").start())
        self.others.append(self._member(BUYERS, DEALS).start())
        self._pulling = asyncio.create_task(self._pull())
        await self.join_process(READERS)
        await self.join_process(LINE)

    def _name(self, group: str) -> str:
        return f"{group}-{next(self._numbers)}"

    def _member(self, group: str, topic: str, **settings: object) -> Member:
        return Member(self._addresses, group, topic, self._name(group), self._history, **settings)  # type: ignore[arg-type]

    def join_readers(self) -> None:
        self.readers.append(self._member(READERS, NEWS, fails=True).start())

    def join_line(self) -> None:
        self.line.append(self._member(LINE, STEPS, ordered=True).start())

    async def join_process(self, group: str) -> None:
        member = MemberProcess(
            self._addresses, group, SHARED[group], self._name(group), self._history, ordered=group == LINE
        )
        self.processes.append(await member.start())

    async def _pull(self) -> None:
        """A program that is started again when it fails."""
        while True:
            client = self._name(PULLERS)
            try:
                async with PullConsumer(
                    self._addresses, group=PULLERS, options=OPTIONS, consume_from=ConsumeFrom.FIRST, hold_s=2.0,
                    commit_every_s=0.3,
                ) as consumer:  # fmt: skip
                    await consumer.subscribe(NEWS)
                    while True:
                        for message in await consumer.poll(50, 0.5):
                            name, place = message.body.decode(), (message.queue, message.queue_offset)
                            self._history.delivered(client, PULLERS, *place, name)
                            self._history.handled(client, PULLERS, *place, name)
            except PyroMQError:
                await asyncio.sleep(0.3)

    async def close(self) -> None:
        assert self._pulling is not None
        self._pulling.cancel()
        await asyncio.gather(self._pulling, return_exceptions=True)
        await asyncio.gather(*(member.leave() for member in (*self.readers, *self.line, *self.others)))
        await self.kill_processes()

    async def kill_processes(self) -> None:
        for process in self.processes:
            await process.kill()


class ProgressWatch:
    """Writes down what the brokers know of the groups. They are asked directly: no proxy is in between.

    The checker sees each step, and a step back is a broken promise: also where members of a group without locks both
    have a queue for a moment, because one of them hears later than the other that it changed hands.
    """

    def __init__(self, cluster: Cluster, history: Tally) -> None:
        self._cluster = cluster
        self._history = history
        self._highest: dict[tuple[str, MessageQueue], int] = {}
        self._latest: dict[tuple[str, MessageQueue], int] = {}
        self._kills: Counter[tuple[str, MessageQueue]] = Counter()

    async def run(self) -> None:
        await asyncio.gather(*(self._watch(name) for name in self._cluster.brokers))

    def behind(self) -> list[tuple[str, MessageQueue]]:
        """Where a group is not yet where it was before."""
        return [place for place, highest in self._highest.items() if self._latest[place] < highest]

    async def _watch(self, broker: str) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            with contextlib.suppress(OSError, Gone, TimeoutError):  # it was killed, and comes back
                async with connected(self._cluster.brokers[broker].port) as wire:
                    while True:
                        await self._look(broker, wire)
                        await asyncio.sleep(LOOK_SECONDS)

    async def _look(self, broker: str, wire: Wire) -> None:
        for group, topic in SHARED.items():
            for number in range(TOPICS[topic]):
                kills = self._cluster.kills[broker]
                offset = await progress_of(wire, group, topic, number)
                if offset is not None and kills == self._cluster.kills[broker]:
                    self._saw(group, MessageQueue(topic, broker, number), offset, kills)

    def _saw(self, group: str, queue: MessageQueue, offset: int, kills: int) -> None:
        place = (group, queue)
        if kills != self._kills[place]:  # what it had not flushed is forgotten
            self._kills[place] = kills
            self._highest.pop(place, None)
        has_moved = self._latest.get(place) != offset
        self._latest[place] = offset
        is_further = offset > self._highest.get(place, -1)
        if is_further:
            self._highest[place] = offset
        if is_further or has_moved:
            self._history.committed("watcher", group, queue, offset)


async def audit(cluster: Cluster, history: Tally) -> None:
    """Read every queue from front to back, and ask where it ends."""
    for broker_name, broker in cluster.brokers.items():
        async with connected(broker.port) as wire:
            for topic, queues in TOPICS.items():
                for number in range(queues):
                    queue = MessageQueue(topic, broker_name, number)
                    for stored in await read_queue(wire, topic, number):
                        name = bytes(stored.body).decode()
                        history.read("auditor", queue, stored.queue_offset, name, position=stored.position)


def deck(rng: random.Random, kinds: list[str]) -> itertools.chain[str]:
    """All kinds in a new order, again and again: a short run sees each of them."""
    return itertools.chain.from_iterable(rng.sample(kinds, len(kinds)) for _ in itertools.count())
