"""Delayed messages: never early, in order, none lost, and each once unless the broker is killed."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.support.fakes import PEER_HOST, STORE_HOST, Parts, deliver_due
from pyromq.broker.delivery import delays as delays_module
from pyromq.broker.delivery.delays import Delays
from pyromq.clock import Clock, ManualClock, SystemClock
from pyromq.config import FlushConfig
from pyromq.errors import DiskFull, IllegalMessage
from pyromq.model.message import Draft
from pyromq.model.names import HALF_TOPIC, SCHEDULE_TOPIC
from pyromq.model.topic import TopicConfig
from pyromq.records import layout
from pyromq.records.properties import encode_properties

SECONDS = 20  # before a test that hangs gives up
LEVELS = "1s 5s 10s"


class TwoClocks:
    """A wall clock that the test sets, and a clock that only grows."""

    def __init__(self) -> None:
        self.wall_ms = 1_700_000_000_000
        self.seconds = 100.0

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic(self) -> float:
        return self.seconds

    def pass_time(self, seconds: float) -> None:
        self.wall_ms += int(seconds * 1000)
        self.seconds += seconds


class Scene:
    """A store with the topic `orders`, and what delays its messages."""

    def __init__(self, parts: Parts | None = None, clock: Clock | None = None, **store: Any) -> None:
        self.parts = parts or Parts(clock=clock or ManualClock(), store={"delay_levels": LEVELS, **store})
        self.store = self.parts.store
        if parts is None:
            self.parts.topics.make(TopicConfig("orders", 4, 4))
            self.parts.save()
        self.offsets = self.parts.delay_offsets
        self.delays = Delays(self.store, self.parts.writer, self.offsets, self.parts.topics, self.parts.clock)

    def send(self, body: str, level: int, *, topic: str = "orders", queue: int = 0) -> None:
        self.store.append([self.delays.divert(draft(body, topic=topic, queue=queue, DELAY=str(level)))])

    def wait(self, seconds: float) -> None:
        assert isinstance(self.parts.clock, ManualClock)
        self.parts.clock.advance(seconds)

    def deliver(self) -> list[str]:
        """Deliver the due messages; return everything that `orders` has by now."""
        self.store.dispatch()
        asyncio.run(deliver_due(self.delays))
        return self.orders()

    def orders(self) -> list[str]:
        return [body.decode() for body in self.parts.bodies("orders")]

    def confirm(self) -> None:
        """The delivered messages are on the disk, and so is the offset of each level."""
        self.store.flush()
        self.parts.save()

    def killed(self) -> Scene:
        return Scene(self.parts.killed())

    def restarted(self, **changes: Any) -> Scene:
        self.store.flush()
        return Scene(self.parts.restarted(**changes))


def draft(body: str, *, topic: str = "orders", queue: int = 0, flags: int = 0, **properties: str) -> Draft:
    return Draft(topic.encode(), queue, body.encode(), encode_properties(properties), storage_flags=flags)


def story(tell: Callable[[], Coroutine[None, None, None]]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(SECONDS):
            await tell()

    asyncio.run(in_time())


# --- on the way in ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("level", "queue"), [(1, 0), (3, 2), (4, 2), (99, 2)])
def test_a_delayed_message_goes_to_the_queue_of_its_level_and_the_last_level_is_the_longest(
    level: int, queue: int
) -> None:
    aside = Scene().delays.divert(draft("tea", queue=3, DELAY=str(level), TAGS="hot"))
    assert (aside.topic, aside.queue_id) == (b"SCHEDULE_TOPIC_XXXX", queue)
    assert aside.properties == encode_properties(
        {"TAGS": "hot", "DELAY": str(queue + 1), "REAL_TOPIC": "orders", "REAL_QID": "3"}
    )


def test_what_has_no_delay_stays_as_it_is() -> None:
    divert = Scene().delays.divert
    for plain in (
        draft("none"),
        draft("zero", DELAY="0"),
        draft("below", DELAY="-1"),
        draft("other", MYDELAY="3"),
        draft("half", DELAY="3", flags=layout.FLAG_PREPARED),
    ):
        assert divert(plain) is plain
    assert divert(draft("committed", DELAY="3", flags=layout.FLAG_COMMITTED)).topic == layout.SCHEDULE_TOPIC


def test_a_delay_that_is_no_number_is_refused_and_a_time_beside_a_level_is_dropped() -> None:
    divert = Scene().delays.divert
    with pytest.raises(IllegalMessage, match="whole number"):
        divert(draft("soon", DELAY="soon"))
    assert b"TIMER" not in divert(draft("both", DELAY="1", TIMER_DELAY_SEC="60")).properties


def test_where_a_message_goes_is_the_brokers_word_not_the_senders() -> None:
    scene = Scene()
    forged = draft("x", DELAY="1", REAL_TOPIC=HALF_TOPIC, REAL_QID="7")
    scene.store.append([scene.delays.divert(forged)])
    scene.wait(1)
    assert scene.deliver() == ["x"]


# --- delivery --------------------------------------------------------------------------------------------------------


def test_a_message_is_delivered_when_its_delay_has_passed_and_not_a_millisecond_before() -> None:
    scene = Scene()
    scene.send("short", 1)
    scene.send("long", 2)
    scene.wait(0.999)
    assert scene.deliver() == []
    scene.wait(0.001)
    assert scene.deliver() == ["short"]
    scene.wait(3.999)
    assert scene.deliver() == ["short"]
    scene.wait(0.001)
    assert scene.deliver() == ["short", "long"]
    assert scene.delays.progress() == [(1, 1, 1), (2, 1, 1), (3, 0, 0)]


def test_the_message_arrives_as_it_was_sent() -> None:
    scene = Scene()
    sent = Draft(
        b"orders", 2, b"body", encode_properties({"DELAY": "1", "TAGS": "hot", "KEYS": "k1", "UNIQ_KEY": "U"}),
        user_flag=5, storage_flags=layout.FLAG_COMPRESSED, born_timestamp_ms=77, born_host=PEER_HOST,
        store_host=STORE_HOST, reconsume_times=4,
    )  # fmt: skip
    scene.store.append([scene.delays.divert(sent)])
    scene.wait(1)
    scene.deliver()
    (message,) = scene.parts.messages("orders", 2)
    assert (message.body, message.user_flag, message.reconsume_times) == (b"body", 5, 4)
    assert (message.born_timestamp_ms, message.born_host, message.store_host) == (77, PEER_HOST, STORE_HOST)
    assert message.storage_flags == layout.FLAG_COMPRESSED
    shown = {name: value for name, value in message.properties.items() if not name.startswith("__CRC")}
    assert shown == {
        "TAGS": "hot", "KEYS": "k1", "UNIQ_KEY": "U", "DELAY": "1", "REAL_TOPIC": "orders", "REAL_QID": "2",
    }  # fmt: skip
    assert scene.store.read("orders", 2, 0, tags=["hot"]).records  # its tag is in the queue's entry again


def test_all_that_is_due_is_delivered_in_order_in_bounded_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delays_module, "MAX_TURN_MESSAGES", 7)
    scene = Scene()
    sizes: list[int] = []
    append = scene.parts.writer.append
    scene.parts.writer.append = lambda drafts: (sizes.append(len(drafts)), append(drafts))[1]  # type: ignore[method-assign]
    for number in range(40):
        scene.send(str(number), 1)
    scene.wait(1)
    assert scene.deliver() == [str(number) for number in range(40)]
    assert max(sizes) == 7
    assert len(sizes) == 6


def test_a_clock_that_is_set_back_makes_nothing_early_and_holds_nothing_up_for_long() -> None:
    clock = TwoClocks()
    scene = Scene(clock=clock)
    scene.send("before", 2)
    assert scene.deliver() == []
    clock.wall_ms -= 3_600_000
    clock.pass_time(1)
    scene.send("after", 2)
    clock.pass_time(3.875)
    assert scene.deliver() == []
    clock.pass_time(0.125)
    assert scene.deliver() == ["before"]  # it was seen for five seconds; the other may have come just now
    clock.pass_time(4.875)
    assert scene.deliver() == ["before"]
    clock.pass_time(0.125)
    assert scene.deliver() == ["before", "after"]


def test_a_topic_that_was_removed_gets_its_message_and_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.send("lost?", 1, topic="gone")
    scene.send("next", 1)
    scene.wait(1)
    with caplog.at_level(logging.WARNING):
        assert scene.deliver() == ["next"]
    assert "the topic gone, which is not there" in caplog.text
    assert scene.parts.bodies("gone") == [b"lost?"]


@pytest.mark.parametrize(
    "properties",
    [{"REAL_QID": "0"}, {"REAL_TOPIC": "orders"}, {"REAL_TOPIC": HALF_TOPIC, "REAL_QID": "0"},
     {"REAL_TOPIC": "orders", "REAL_QID": "-5"}, {"REAL_TOPIC": "or/ders", "REAL_QID": "0"}],
)  # fmt: skip
def test_a_message_that_can_go_nowhere_is_stepped_over(
    properties: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene()
    scene.send("before", 1)
    scene.store.append([draft("nowhere", topic=SCHEDULE_TOPIC, DELAY="1", **properties)])
    scene.send("after", 1)
    scene.wait(1)
    assert scene.deliver() == ["before", "after"]
    assert "offset 1 of delay level 1 is not delivered" in caplog.text
    scene.confirm()
    assert scene.offsets.offset_of(1) == 3


def test_a_full_disk_is_tried_again_and_what_was_delivered_before_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    for number in range(3):
        scene.send(str(number), 1, queue=number)
    scene.wait(1)
    scene.store.dispatch()
    append = scene.store.append

    def room_for_one(drafts: list[Draft]) -> Any:
        receipts = append(drafts[:1])
        full = DiskFull("no room")
        full.receipts = receipts
        raise full

    monkeypatch.setattr(scene.store, "append", room_for_one)
    with pytest.raises(DiskFull):
        scene.deliver()
    monkeypatch.setattr(scene.store, "append", append)
    scene.deliver()
    assert [scene.parts.bodies("orders", queue) for queue in range(3)] == [[b"0"], [b"1"], [b"2"]]


# --- how far a level is ----------------------------------------------------------------------------------------------


def test_after_a_clean_stop_nothing_is_delivered_twice_and_nothing_is_forgotten() -> None:
    scene = Scene()
    scene.send("first", 1)
    scene.send("second", 2)
    scene.wait(1)
    assert scene.deliver() == ["first"]
    scene = scene.restarted()
    assert scene.deliver() == ["first"]
    scene.wait(4)
    assert scene.deliver() == ["first", "second"]


def test_a_kill_before_the_offset_is_saved_delivers_again() -> None:
    scene = Scene()
    scene.send("tea", 1)
    scene.wait(1)
    assert scene.deliver() == ["tea"]
    assert scene.killed().deliver() == ["tea", "tea"]
    scene.confirm()
    assert scene.killed().deliver() == ["tea"]


def test_an_offset_is_saved_only_when_the_delivered_copy_is_on_the_disk() -> None:
    scene = Scene()
    scene.send("tea", 1)
    scene.store.flush()
    scene.wait(1)
    assert scene.deliver() == ["tea"]
    scene.parts.save()
    assert scene.offsets.offset_of(1) is None
    copies_lost = 0
    for seed in range(12):
        lost = scene.parts.disk.crash(random.Random(seed))
        after = Scene(Parts(lost, scene.parts.clock, store={"delay_levels": LEVELS}))
        copies_lost += not after.orders()
        assert "tea" in after.deliver()
    assert copies_lost


@pytest.mark.parametrize(("saved", "goes_on_at"), [(99, 2), (2, 2), (1, 1), (0, 0)])
def test_an_offset_that_the_queue_does_not_have_becomes_the_nearest(
    saved: int, goes_on_at: int, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene()
    scene.send("a", 1)
    scene.send("b", 1)
    scene.store.dispatch()
    scene.offsets.reset(1, saved)
    scene = scene.restarted()
    assert scene.delays.progress()[0] == (1, goes_on_at, 2)
    assert ("does not hold 99" in caplog.text) == (saved == 99)
    scene.send("new", 1)
    scene.wait(1)
    assert scene.deliver() == ["a", "b", "new"][goes_on_at:]


def test_messages_that_are_gone_are_stepped_over() -> None:
    scene = Scene()
    for number in range(4):
        scene.send(str(number), 1)
    scene.store.dispatch()
    queue = scene.store.queues.get(layout.SCHEDULE_TOPIC, 0)
    assert queue is not None
    queue.min_offset = 3  # as retention leaves it
    scene.wait(1)
    assert scene.deliver() == ["3"]
    scene.confirm()
    assert scene.offsets.offset_of(1) == 4


def test_a_damaged_record_is_stepped_over(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    for number in range(3):
        scene.send(f"message {number}", 1)
    scene.parts.close()
    disk = scene.parts.disk
    segment = next(path for path in sorted(disk.files()) if path.parent.name == "commitlog")
    data = disk.files()[segment]
    disk.plant(segment, data.replace(b"message 1", b"massage 1"))
    after = Scene(Parts(disk, scene.parts.clock, store={"delay_levels": LEVELS}))
    after.wait(1)
    assert after.deliver() == ["message 0", "message 2"]
    assert "offset 1 of delay level 1 is not delivered" in caplog.text


# --- other levels than before ----------------------------------------------------------------------------------------


def test_levels_that_are_no_longer_there_are_emptied_with_the_longest_delay() -> None:
    scene = Scene()
    scene.send("third level", 3)
    scene.store.dispatch()
    scene = scene.restarted(store={"delay_levels": "1s 2s"})
    assert len(scene.delays.progress()) == 3
    scene.wait(1.9)
    assert scene.deliver() == []
    scene.wait(0.1)
    assert scene.deliver() == ["third level"]


def test_more_levels_than_before() -> None:
    scene = Scene().restarted(store={"delay_levels": "1s 2s 3s 4s 5s"})
    scene.send("fifth", 5)
    scene.wait(4.9)
    assert scene.deliver() == []
    scene.wait(0.1)
    assert scene.deliver() == ["fifth"]


# --- on the loop -----------------------------------------------------------------------------------------------------


def running_scene(**store: Any) -> Scene:
    return Scene(clock=SystemClock(), delay_levels="1s 2s", flush=FlushConfig(interval_ms=5), **store)


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def delivered(scene: Scene, count: int) -> None:
    """Wait until a queue of `orders` has this many messages, by the store's notification, as a consumer would."""
    grown = asyncio.Event()
    scene.store.arrivals.listen(lambda queues: grown.set())
    while scene.store.max_offset("orders", 0) < count:
        grown.clear()
        scene.store.arrivals.watch("orders", 0)
        await grown.wait()


@pytest.mark.parametrize("sync", [False, True])
def test_a_level_sleeps_until_a_message_arrives_and_then_until_it_is_due(sync: bool) -> None:
    async def tell() -> None:
        scene = Scene(clock=SystemClock(), delay_levels="1s 2s", flush=FlushConfig(sync=sync, interval_ms=5))
        async with scene.store.running():
            deliverer = asyncio.create_task(scene.delays.run())
            for _ in range(10):
                await asyncio.sleep(0)  # both levels have looked, and wait
            scene.send("one", 1)
            scene.send("two", 1)
            await delivered(scene, 2)
            for message in scene.parts.messages("orders"):
                assert message.store_timestamp_ms >= 1000 + first_stored(scene)
            await stop(deliverer)
            assert scene.offsets.offset_of(1) == 2  # a stop waits for the disk

    story(tell)


def first_stored(scene: Scene) -> int:
    return scene.parts.messages(SCHEDULE_TOPIC)[0].store_timestamp_ms


def test_on_the_loop_a_full_disk_and_a_read_that_fails_are_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delays_module, "RETRY_SECONDS", 0.01)

    async def tell() -> None:
        scene = running_scene()
        async with scene.store.running():
            append, attempts = scene.parts.writer.append, 0

            def full_twice(drafts: list[Draft]) -> Any:
                nonlocal attempts
                attempts += 1
                if attempts <= 2:
                    raise DiskFull("no room") if attempts == 1 else OSError("no such sector")
                return append(drafts)

            monkeypatch.setattr(scene.parts.writer, "append", full_twice)
            deliverer = asyncio.create_task(scene.delays.run())
            scene.send("tea", 1)
            await delivered(scene, 1)
            await stop(deliverer)
            assert attempts == 3

    story(tell)
    assert caplog.text.count("delayed messages wait") == 1


def test_a_store_that_is_fenced_ends_the_deliverers_in_peace() -> None:
    async def tell() -> None:
        scene = running_scene()
        scene.send("tea", 1)
        scene.store.dispatch()
        scene.store.fence(OSError("the disk is gone"))
        await scene.delays._deliver(scene.delays._levels[0])  # returns when the message is due
        assert scene.orders() == []
        scene.store.close()

    story(tell)


# --- everything at once ----------------------------------------------------------------------------------------------


class DelayMachine(RuleBasedStateMachine):
    """Sends, time, deliveries, restarts and kills in any order."""

    @initialize()
    def begin(self) -> None:
        self.clock = ManualClock()
        self.scene = Scene(clock=self.clock)
        self.sent: dict[str, tuple[int, int]] = {}
        self.was_killed = False

    @rule(level=st.integers(1, 3), count=st.integers(1, 4))
    def send(self, level: int, count: int) -> None:
        for _ in range(count):
            body = str(len(self.sent))
            self.scene.send(body, level)
            self.sent[body] = (level, self.clock.now_ms())
        self.scene.store.flush()

    @rule(milliseconds=st.integers(1, 6000))
    def wait(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds / 1000)

    @rule()
    def deliver(self) -> None:
        self.scene.deliver()
        missing = {body for body in self.sent if self.due_ms(body) <= self.clock.now_ms()} - set(self.scene.orders())
        assert not missing, "what is due is delivered"

    @rule()
    def save(self) -> None:
        self.scene.confirm()

    @rule()
    def restart(self) -> None:
        self.scene = self.scene.restarted()

    @rule()
    def kill(self) -> None:
        self.was_killed = True
        self.scene = self.scene.killed()

    def due_ms(self, body: str) -> int:
        level, sent_ms = self.sent[body]
        return sent_ms + (1000, 5000, 10_000)[level - 1]

    @invariant()
    def is_as_promised(self) -> None:
        found = self.scene.parts.messages("orders")
        for message in found:
            assert message.store_timestamp_ms >= self.due_ms(message.body.decode()), "never early"
        bodies = [message.body.decode() for message in found]
        if not self.was_killed:
            assert len(bodies) == len(set(bodies)), "each once"
        firsts = list(dict.fromkeys(bodies))
        for level in (1, 2, 3):
            numbers = [int(body) for body in firsts if self.sent[body][0] == level]
            assert numbers == sorted(numbers), "in order"

    def teardown(self) -> None:
        self.scene.store.close()


TestDelayMachine = DelayMachine.TestCase
TestDelayMachine.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
