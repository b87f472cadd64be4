"""One fault at a time, and what clients do about it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

import pyromq.testing
from chaos.support.client import commit, connected, progress_of, read_queue, send
from chaos.support.cluster import Cluster, strand
from chaos.support.members import MemberProcess
from chaos.support.tally import Tally
from late import in_time
from pyromq import (
    ClientOptions,
    ConsumeFrom,
    Decision,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
    TransactionProducer,
)
from pyromq.errors import PyroMQError, SendFailed, SendUnknown
from pyromq.testing import Direction, EmbeddedBroker, FaultProxy, check

TOPIC = "orders"
#: No story takes longer.
STORY_SECONDS = 60.0
#: What a deadline may be late by on a busy machine.
LATE_SECONDS = 0.7
QUICK = ClientOptions(call_timeout_s=0.6, connect_timeout_s=0.6, heartbeat_s=0.5, route_refresh_s=0.5)

Story = Callable[[Cluster], Awaitable[None]]


def on_a_cluster(home: Path, story: Story, queues: int = 2) -> None:
    async def run() -> None:
        async with asyncio.timeout(STORY_SECONDS), Cluster(home, {TOPIC: queues}) as cluster:
            await story(cluster)

    asyncio.run(run())


@contextlib.asynccontextmanager
async def one_broker(queues: int = 1) -> AsyncIterator[tuple[EmbeddedBroker, FaultProxy]]:
    """A broker in this process; clients reach it through the proxy, name server and all else directly."""
    async with (
        asyncio.timeout(STORY_SECONDS),
        FaultProxy() as proxy,
        pyromq.testing.broker(topics={TOPIC: queues}, advertise=proxy.address) as mq,
    ):
        proxy.target = mq.broker_address
        yield mq, proxy


async def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110  brokers and clients tell nobody
            await asyncio.sleep(0.01)


def now() -> float:
    return asyncio.get_running_loop().time()


async def stored(port: int, queue: int = 0) -> list[str]:
    async with connected(port) as wire:
        return [bytes(one.body).decode() for one in await read_queue(wire, TOPIC, queue)]


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


# --- producers -------------------------------------------------------------------------------------------------------


def test_a_slow_broker_is_avoided_and_used_again_when_it_is_quick(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        async with Producer(cluster.addresses, group="shop", timeout_s=5) as producer:

            async def spread(count: int) -> Counter[str]:
                receipts = [await producer.send(TOPIC, f"{number}") for number in range(count)]
                return Counter(receipt.queue.broker_name for receipt in receipts)

            assert set(await spread(8)) == {"broker-a", "broker-b"}
            cluster.proxies["broker-a"].delay(0.5)  # 1 s there and back
            await spread(4)  # one of them finds out
            began = now()
            assert await spread(20) == {"broker-b": 20}
            assert now() - began < 1.0
            cluster.proxies["broker-a"].heal()
            async with asyncio.timeout(20):
                while len(await spread(4)) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            await asyncio.sleep(0.1)
            assert set(await spread(20)) == {"broker-a", "broker-b"}

    on_a_cluster(tmp_path, story)


def test_a_stalled_connection_holds_no_send_beyond_its_deadline_and_late_answers_confuse_nobody() -> None:
    async def story() -> None:
        async with one_broker() as (mq, proxy), Producer(mq.name_servers, group="shop", attempts=1) as producer:
            first = await producer.send(TOPIC, "first")
            proxy.stall(Direction.TO_CLIENT)
            began = now()
            waiting = [producer.send(TOPIC, f"stalled-{number}", timeout_s=0.5) for number in range(50)]
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {SendUnknown}
            assert 0.4 < now() - began < 0.5 + LATE_SECONDS
            calls = [asyncio.create_task(producer.send(TOPIC, f"after-{number}")) for number in range(50)]
            await asyncio.sleep(0.05)
            proxy.resume()  # fifty answers come that nobody waits for, and then those of the calls
            receipts = await asyncio.gather(*calls)
            assert first.queue_offset == 0
            names = await stored(port_of(mq.broker_address))
            assert Counter(names).most_common(1)[0][1] == 1
            for number, receipt in enumerate(receipts):
                assert names[receipt.queue_offset] == f"after-{number}"

    asyncio.run(story())


@pytest.mark.parametrize("lost", [Direction.TO_SERVER, Direction.TO_CLIENT], ids=["request", "answer"])
def test_what_nobody_knows_is_raised_as_unknown_and_is_there_once_or_not_at_all(lost: Direction) -> None:
    async def story() -> None:
        async with one_broker() as (mq, proxy), Producer(mq.name_servers, group="shop", attempts=1) as producer:
            await producer.send(TOPIC, "before")
            proxy.stall(lost)
            sending = asyncio.create_task(producer.send(TOPIC, "who knows"))
            if lost is Direction.TO_CLIENT:
                async with asyncio.timeout(5):
                    while len(await stored(port_of(mq.broker_address))) < 2:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
            else:
                await asyncio.sleep(0.2)
            proxy.cut()
            proxy.heal()
            with pytest.raises(SendUnknown) as raised:
                await sending
            assert len(raised.value.attempts) == 1
            await producer.send(TOPIC, "after")
            names = await stored(port_of(mq.broker_address))
            expected = ["before", "who knows", "after"] if lost is Direction.TO_CLIENT else ["before", "after"]
            assert names == expected

    asyncio.run(story())


def test_a_refused_connection_is_a_certain_failure() -> None:
    async def story() -> None:
        async with one_broker() as (mq, proxy), Producer(mq.name_servers, group="shop", timeout_s=1.5) as producer:
            await producer.send(TOPIC, "before")
            await proxy.refuse()
            proxy.cut()
            while True:
                began = now()
                with pytest.raises((SendFailed, SendUnknown)) as raised:
                    await producer.send(TOPIC, "never")
                assert now() - began < 1.5 + LATE_SECONDS
                if raised.type is SendFailed:
                    break  # the first may not have heard yet that its connection is gone
            await proxy.accept()
            await producer.send(TOPIC, "after")
            assert await stored(port_of(mq.broker_address)) == ["before", "after"]

    asyncio.run(story())


@pytest.mark.parametrize("auto_batch", [False, True], ids=["alone", "in batches"])
def test_a_connection_that_leads_nowhere_is_given_up(auto_batch: bool) -> None:
    """Behind a lost NAT entry nothing is refused and nothing comes back; a new connection would be well."""

    async def story() -> None:
        async with (
            one_broker() as (mq, proxy),
            Producer(
                mq.name_servers, group="shop", timeout_s=0.5, auto_batch=auto_batch,
                options=ClientOptions(call_timeout_s=0.6),
            ) as producer,
        ):  # fmt: skip
            await producer.send(TOPIC, "before")
            strand(proxy)
            async with asyncio.timeout(8):
                while True:
                    with contextlib.suppress(SendUnknown):
                        await producer.send(TOPIC, "at last", sharding_key="k")
                        break
            assert proxy.accepted == 2

    asyncio.run(story())


def test_a_transaction_keeps_its_deadline_when_a_broker_says_nothing(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        async with TransactionProducer(
            cluster.addresses, group="deals", check=lambda _: Decision.ROLLBACK, attempts=1
        ) as producer:
            for proxy in cluster.proxies.values():
                proxy.stall()
            began = now()
            with pytest.raises(PyroMQError):
                await producer.send_in_transaction(Message(TOPIC, "x"), lambda _: Decision.COMMIT, timeout_s=0.5)
            assert now() - began < 0.5 + LATE_SECONDS

    on_a_cluster(tmp_path, story)


# --- consumers -------------------------------------------------------------------------------------------------------


class Names:
    """A handler that keeps what it was given."""

    def __init__(self) -> None:
        self.by_broker: dict[str, list[str]] = {"broker-a": [], "broker-b": []}

    async def __call__(self, message: ReceivedMessage) -> None:
        self.by_broker[message.queue.broker_name].append(message.body.decode())

    @property
    def all(self) -> set[str]:
        return {name for names in self.by_broker.values() for name in names}


def test_a_broker_killed_under_long_polls_is_left_alone_and_found_again(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        names = Names()
        consumer = PushConsumer(
            cluster.addresses, group="kitchen", consume_from=ConsumeFrom.FIRST, hold_s=10, options=QUICK
        )
        consumer.subscribe(TOPIC, names)
        async with consumer, Producer(cluster.addresses, group="shop", options=QUICK) as producer:
            await asyncio.gather(*(producer.send(TOPIC, f"before-{number}") for number in range(20)))
            await until(lambda: len(names.all) == 20)
            assert all(names.by_broker.values())
            await cluster.kill("broker-a")
            for number in range(20):
                receipt = await producer.send(TOPIC, f"meanwhile-{number}")
                assert receipt.queue.broker_name == "broker-b"
            await until(lambda: len(names.all) == 40, 2)
            await cluster.start("broker-a")
            async with asyncio.timeout(20):
                while (await producer.send(TOPIC, "back")).queue.broker_name != "broker-a":  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await until(lambda: "back" in names.by_broker["broker-a"])

    on_a_cluster(tmp_path, story)


def test_without_any_name_server_clients_go_on_with_the_routes_they_know(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        names = Names()
        consumer = PushConsumer(cluster.addresses, group="kitchen", consume_from=ConsumeFrom.FIRST, options=QUICK)
        consumer.subscribe(TOPIC, names)
        async with consumer, Producer(cluster.addresses, group="shop", options=QUICK) as producer:
            await producer.send(TOPIC, "before")
            for server in cluster.name_servers:
                await asyncio.to_thread(server.kill)
            for number in range(100):
                await producer.send(TOPIC, f"{number}")
                await asyncio.sleep(0.02)  # long enough for several refreshes
            await until(lambda: len(names.all) == 101)
            cluster.proxies["broker-a"].cut()
            cluster.proxies["broker-b"].cut()
            await asyncio.gather(*(producer.send(TOPIC, f"cut-{number}") for number in range(20)))
            await until(lambda: len(names.all) == 121)

    on_a_cluster(tmp_path, story)


def test_one_name_server_of_two_is_enough_to_start_with(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await asyncio.to_thread(cluster.name_servers[0].kill)
        names = Names()
        consumer = PushConsumer(cluster.addresses, group="kitchen", consume_from=ConsumeFrom.FIRST)
        consumer.subscribe(TOPIC, names)
        async with consumer, Producer(cluster.addresses, group="shop") as producer:
            await producer.send(TOPIC, "hello")
            await until(lambda: names.all == {"hello"})
            cluster.name_server_proxies[1].stall()
            await producer.send(TOPIC, "there")
            await until(lambda: names.all == {"hello", "there"})

    on_a_cluster(tmp_path, story)


def test_of_a_killed_consumer_only_what_was_not_committed_comes_again() -> None:
    async def story() -> None:
        history = Tally()
        history.subscribed("kitchen", TOPIC)
        async with one_broker() as (mq, _), Producer(mq.name_servers, group="shop") as producer:

            async def send(name: str) -> None:
                op = history.send_called("shop", TOPIC, name)
                receipt = await producer.send(TOPIC, name)
                history.send_ok(op, receipt.queue, receipt.queue_offset)

            victim = MemberProcess(mq.name_servers, "kitchen", TOPIC, "victim", history)
            await victim.start()
            for number in range(300):
                await send(f"{number}")
            await until(lambda: not history.missing())
            await asyncio.sleep(1.0)  # it commits every 0.3 s
            await asyncio.gather(*(send(f"{number}") for number in range(300, 400)))
            await victim.kill()
            history.fault("kill -9")
            committed = await _progress(mq, "kitchen")
            assert committed is not None
            assert committed >= 300
            history.committed("broker", "kitchen", MessageQueue(TOPIC, "broker-a", 0), committed)
            heir = MemberProcess(mq.name_servers, "kitchen", TOPIC, "heir", history)
            await heir.start()
            await until(lambda: not history.missing())
            await heir.kill()
        again = [event.offset for event in history if getattr(event, "client", "") == "heir"]
        assert min(again) == committed
        check(history.in_time()).raise_if_bad()

    asyncio.run(story())


def test_a_member_that_has_handled_nothing_sets_no_progress_back() -> None:
    """The member that had the queue before may tell its last progress after the new one has asked where to begin."""

    async def story() -> None:
        async with one_broker() as (mq, _), connected(port_of(mq.broker_address)) as wire:
            handled: list[int] = []

            async def handle(message: ReceivedMessage) -> None:
                handled.append(message.queue_offset)
                if message.queue_offset >= 5:
                    await asyncio.Event().wait()

            def consumer() -> PushConsumer:
                made = PushConsumer(
                    mq.name_servers, group="kitchen", consume_from=ConsumeFrom.FIRST, hold_s=0.1, commit_every_s=0.1,
                    stop_grace_s=0.1,
                )  # fmt: skip
                made.subscribe(TOPIC, handle)
                return made

            for number in range(5):
                await wire.call(send(TOPIC, f"{number}".encode()))
            async with consumer():
                await until(lambda: len(handled) == 5)
            assert await progress_of(wire, "kitchen", TOPIC, 0) == 5
            for number in range(5, 10):
                await wire.call(send(TOPIC, f"{number}".encode()))
            async with consumer():
                await until(lambda: 5 in handled)
                await commit(wire, "kitchen", TOPIC, 0, 9)
                await asyncio.sleep(0.5)  # several fetches, several times to commit
            assert await progress_of(wire, "kitchen", TOPIC, 0) == 9

    asyncio.run(story())


def test_progress_that_a_late_commit_sets_back_is_told_again() -> None:
    """What was on its way on a connection that the client gave up may arrive after later commits, and brokers believe
    it. Nothing is lost by that, and the member that has the queue puts it right with one of its next fetches."""

    async def story() -> None:
        async with one_broker() as (mq, proxy):
            may_go_on = asyncio.Event()
            handled: list[int] = []

            async def handle(message: ReceivedMessage) -> None:
                if message.queue_offset >= 5:
                    await may_go_on.wait()
                handled.append(message.queue_offset)

            consumer = PushConsumer(
                mq.name_servers, group="kitchen", consume_from=ConsumeFrom.FIRST, hold_s=0.5, commit_every_s=0.1,
                options=QUICK,
            )  # fmt: skip
            consumer.subscribe(TOPIC, handle)
            async with connected(port_of(mq.broker_address)) as wire, consumer:

                async def at(offset: int) -> None:
                    async with asyncio.timeout(20):
                        while await progress_of(wire, "kitchen", TOPIC, 0) != offset:  # noqa: ASYNC110
                            await asyncio.sleep(0.005)

                for number in range(10):
                    await wire.call(send(TOPIC, f"{number}".encode()))
                await at(5)
                stranded = list(proxy.lines.values())
                strand(proxy)
                may_go_on.set()  # a commit of 10 leaves, and does not arrive
                await at(10)  # told again, on a new connection
                for number in range(5):
                    await wire.call(send(TOPIC, f"more-{number}".encode()))
                await at(15)
                for line in stranded:
                    line.flows.set()
                await asyncio.sleep(0.3)
                await at(15)
            assert handled == list(range(15))

    asyncio.run(story())


def test_an_ordered_queue_waits_for_its_broker_and_has_one_member_at_a_time() -> None:
    """A broker that was killed has forgotten who had which lock: nobody goes on with what he has before he has it."""
    at_work: Counter[MessageQueue] = Counter()
    handled: list[tuple[MessageQueue, int]] = []

    async def handle(message: ReceivedMessage) -> None:
        at_work[message.queue] += 1
        assert at_work[message.queue] == 1, "two members handle one queue"
        await asyncio.sleep(0.005)
        at_work[message.queue] -= 1
        handled.append((message.queue, message.queue_offset))

    async def story() -> None:
        async with (
            asyncio.timeout(STORY_SECONDS),
            pyromq.testing.broker(topics={TOPIC: 4}, process=True) as mq,
            Producer(mq.name_servers, group="shop") as producer,
        ):
            await asyncio.gather(*(producer.send(TOPIC, f"{number}") for number in range(2000)))
            consumers = [_ordered(mq.name_servers, handle) for _ in range(2)]
            async with consumers[0], consumers[1]:
                await until(lambda: len({queue for queue, _ in handled}) == 4)
                for _ in range(2):
                    await asyncio.to_thread(mq.kill)
                    await asyncio.sleep(0.3)  # clients hear of it, and handlers end
                    so_far = len(handled)
                    await asyncio.sleep(0.2)
                    assert len(handled) == so_far
                    await asyncio.to_thread(mq.start)
                    await until(lambda so_far=so_far: len(handled) > so_far + 200)
                await until(lambda: len(set(handled)) == 2000)
        firsts = list(dict.fromkeys(handled))
        for queue in {queue for queue, _ in firsts}:
            offsets = [offset for one, offset in firsts if one == queue]
            assert offsets == sorted(offsets)

    asyncio.run(story())


def _ordered(name_servers: str, handle: Callable[[ReceivedMessage], Awaitable[None]]) -> PushConsumer:
    consumer = PushConsumer(
        name_servers, group="line", ordered=True, consume_from=ConsumeFrom.FIRST, commit_every_s=0.2, options=QUICK
    )
    consumer.subscribe(TOPIC, handle)
    return consumer


async def _progress(mq: EmbeddedBroker, group: str) -> int | None:
    async with connected(port_of(mq.broker_address)) as wire:
        return await progress_of(wire, group, TOPIC, 0)


@pytest.mark.parametrize("fault", ["stall", "refuse", "kill"])
def test_stopping_in_the_middle_of_a_fault_ends_within_the_grace(tmp_path: Path, fault: str) -> None:
    async def story(cluster: Cluster) -> None:
        names = Names()
        consumers = [
            PushConsumer(
                cluster.addresses, group=group, ordered=group == "line", consume_from=ConsumeFrom.FIRST,
                stop_grace_s=1.0, options=QUICK,
            )
            for group in ("kitchen", "line")
        ]  # fmt: skip
        producer = Producer(cluster.addresses, group="shop", options=QUICK, auto_batch=True, timeout_s=1.0)
        for consumer in consumers:
            consumer.subscribe(TOPIC, names)
            await consumer.start()
        await producer.start()
        await asyncio.gather(*(producer.send(TOPIC, f"{number}") for number in range(50)))
        await until(lambda: bool(names.all))
        for name in cluster.proxies:
            await _break(cluster, name, fault)
        unsent = [asyncio.ensure_future(producer.send(TOPIC, f"late-{number}")) for number in range(10)]
        await asyncio.sleep(0.1)
        took_s = await asyncio.gather(*(_timed(one.close()) for one in (producer, *consumers)))
        # The grace for handlers, then progress, locks and goodbyes, each with the time of a call.
        in_time(max(took_s), 1.0 + 4 * QUICK.call_timeout_s + LATE_SECONDS)
        outcomes = await asyncio.gather(*unsent, return_exceptions=True)
        assert all(isinstance(outcome, PyroMQError) for outcome in outcomes)

    on_a_cluster(tmp_path, story)


async def _break(cluster: Cluster, name: str, fault: str) -> None:
    match fault:
        case "stall":
            cluster.proxies[name].stall()
        case "refuse":
            await cluster.proxies[name].refuse()
            cluster.proxies[name].cut()
        case _:
            await cluster.kill(name)


async def _timed(work: Awaitable[None]) -> float:
    began = now()
    await work
    return now() - began


@pytest.mark.parametrize(
    ("ordered", "limits"),
    [(False, {"max_buffered_messages": 3000}), (True, {"max_buffered_bytes": 2 << 20})],
    ids=["concurrent, by messages", "ordered, by bytes"],
)
def test_a_handler_that_never_returns_does_not_fill_the_memory(ordered: bool, limits: dict[str, int]) -> None:
    body = b"x" * 1024

    async def story() -> None:
        async with one_broker(4) as (mq, _), Producer(mq.name_servers, group="shop") as producer:
            for _ in range(16):
                await producer.send_batch([Message(TOPIC, body) for _ in range(1000)])
            entered = asyncio.Event()

            async def never(message: ReceivedMessage) -> None:
                entered.set()
                await asyncio.Event().wait()

            consumer = PushConsumer(
                mq.name_servers, group="kitchen", ordered=ordered, consume_from=ConsumeFrom.FIRST,
                fetch_bytes=256 << 10, stop_grace_s=0.2, **limits,
            )  # fmt: skip
            consumer.subscribe(TOPIC, never)
            async with consumer:
                await entered.wait()
                most = 0
                for _ in range(40):
                    await asyncio.sleep(0.05)
                    most = max(most, consumer.statistics().fetched)
                # Each queue may have one fetch more than its part.
                assert 1000 <= most <= 3000 + 4 * 256

    asyncio.run(story())


@pytest.mark.parametrize("ordered", [False, True], ids=["concurrent", "ordered"])
def test_poison_for_a_long_time_neither_recurses_nor_leaks(
    ordered: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Thousands of failures, as a handler that raises for hours makes them: the stack stays flat, memory too."""
    caplog.set_level(logging.CRITICAL, "pyromq.client")
    monkeypatch.setattr("pyromq.client.consuming.workers.AGAIN_SECONDS", 0.01)
    attempts: Counter[str] = Counter()
    depths: set[int] = set()

    may_fail = asyncio.Event()

    async def poison(message: ReceivedMessage) -> None:
        attempts[message.body.decode()] += 1
        await may_fail.wait()
        depths.add(_depth())
        raise ValueError("it is always the same")

    async def story() -> None:
        async with one_broker() as (mq, proxy), Producer(mq.name_servers, group="shop") as producer:
            await asyncio.gather(*(producer.send(TOPIC, f"{number}") for number in range(20)))
            consumer = PushConsumer(
                mq.name_servers, group="kitchen", ordered=ordered, consume_from=ConsumeFrom.FIRST, pause_s=0.0005,
                max_attempts=1_000_000, options=QUICK,
            )  # fmt: skip
            consumer.subscribe(TOPIC, poison)
            async with consumer:
                await until(lambda: bool(attempts))
                if not ordered:  # where nothing can be sent back, it is tried again here, again and again
                    await proxy.refuse()
                    proxy.cut()
                may_fail.set()
                await until(lambda: attempts.total() > 200)
                tasks = len(asyncio.all_tasks())
                gc.collect()
                tracemalloc.start()
                before = tracemalloc.get_traced_memory()[0]
                so_far = attempts.total()
                await until(lambda: attempts.total() > so_far + 600)
                gc.collect()
                grown = tracemalloc.get_traced_memory()[0] - before
                tracemalloc.stop()
                assert len(asyncio.all_tasks()) < tasks + 30
                assert grown < 300_000
                await proxy.accept()

    asyncio.run(story())
    assert max(depths) - min(depths) <= 2


def _depth() -> int:
    frame, depth = sys._getframe(), 0
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    return depth
