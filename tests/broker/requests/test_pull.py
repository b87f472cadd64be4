"""Pulling: the messages of a consumer, the answers when there are none, and the time that it may wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.support.fakes import FakePeer, Parts
from net.fakes import until
from pyromq.broker.delivery.long_polls import Holds
from pyromq.broker.requests import pull as pull_module
from pyromq.broker.requests.pull import PullProcessor
from pyromq.broker.state.clients import Consumers, ConsumerSeen, Member
from pyromq.broker.state.offsets import Progress
from pyromq.broker.state.resets import Resets
from pyromq.config import ReplicationConfig
from pyromq.errors import (
    BadRequest,
    FilterSyntaxError,
    GroupNotFound,
    ServiceError,
    SubscriptionNotFound,
    SubscriptionNotLatest,
    TopicNotFound,
)
from pyromq.filters.subscription import build
from pyromq.model.group import GroupConfig
from pyromq.model.message import Draft
from pyromq.model.topic import TopicConfig
from pyromq.net.client import Client
from pyromq.net.server import Server
from pyromq.net.service import Service
from pyromq.records import record
from pyromq.records.properties import encode_properties
from pyromq.store import reader
from pyromq.store.watermarks import Watermark
from pyromq.testing.sim.disk import SimMappedFile
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.client import PullMessage
from pyromq.wire.responses import PullResult, Response

COMMIT, HOLD, SUBSCRIPTION, CLASS_FILTER, LITE = 1, 2, 4, 8, 16
FOUND, NOT_FOUND = ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND
RETRY, MOVED = ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED


class World:
    def __init__(self, **settings: Any) -> None:
        self.parts = Parts(**settings)
        self.peer = FakePeer()
        self.consumers = Consumers()
        self.holds = Holds(self.parts.store.arrivals, max_held=1000)
        self.progress = Progress(self.parts.offsets, self.parts.store)
        self.resets = Resets()
        self.pulls = PullProcessor(
            lambda: self.parts.config, self.parts.topics, self.parts.groups, self.consumers, self.progress,
            self.parts.store, self.holds, self.resets, self.parts.statistics, self.parts.read_advice(),
        )  # fmt: skip
        self.parts.topics.make(TopicConfig("orders", 4, 4, system_flag=3))
        self.parts.groups.make(GroupConfig("readers", system_flag=5))
        self.subscribe("*")

    def subscribe(self, expression: str, kind: str = "TAG", *, version: int = 1, model: str = "CLUSTERING") -> None:
        wanted = {"orders": build("orders", expression, kind, version)}
        self.consumers.left("readers", self.peer)
        self.consumers.seen(
            ConsumerSeen("readers", "CONSUME_PASSIVELY", model, "CONSUME_FROM_LAST_OFFSET", wanted),
            Member(self.peer, "c1", "JAVA", 513, 0), 0,
        )  # fmt: skip

    def send(self, *bodies: str, queue: int = 0, tag: str = "a", **properties: str) -> None:
        encoded = encode_properties({"TAGS": tag, **properties})
        self.parts.store.append([Draft(b"orders", queue, body.encode(), encoded) for body in bodies])
        self.parts.store.dispatch()

    def request(self, offset: int = 0, flags: int = 0, *, most: int = 32, **changes: Any) -> PullMessage:
        settings: dict[str, Any] = {
            "group": "readers", "topic": "orders", "queue_id": 0, "offset": offset, "max_messages": most,
            "flags": flags, "suspend_ms": 15_000, **changes,
        }  # fmt: skip
        return PullMessage(**settings)

    def pull(self, offset: int = 0, flags: int = 0, **changes: Any) -> PullResult:
        answer = self.pulls.pull(self.request(offset, flags, **changes), self.peer)
        assert isinstance(answer, PullResult)
        return answer

    def wait(self, offset: int = 0, flags: int = HOLD, **changes: Any) -> asyncio.Future[Response]:
        answer = self.pulls.pull(self.request(offset, flags, **changes), self.peer)
        assert isinstance(answer, asyncio.Future)
        return answer


@pytest.fixture(autouse=True)
def _no_work_takes_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_module, "cpu_seconds", lambda: 0.0)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.parts.close()


def story(world: World, tell: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await tell()

    asyncio.run(bounded())


def bodies(answer: Response) -> list[str]:
    assert isinstance(answer.body, list)
    assert all(isinstance(view, memoryview) for view in answer.body)
    return [record.decode(view).body.decode() for view in answer.body]


def where(answer: Response) -> tuple[int, int, int, int]:
    assert isinstance(answer, PullResult)
    return answer.code, answer.next_offset, answer.min_offset, answer.max_offset


# --- results ---------------------------------------------------------------------------------------------------------


def test_messages_come_in_order_with_what_the_client_needs_to_go_on(world: World) -> None:
    world.send("0", "1", "2", "3", "4")
    answer = world.pull(1, most=3)
    assert bodies(answer) == ["1", "2", "3"]
    assert where(answer) == (FOUND, 4, 0, 5)
    assert world.parts.statistics.rates("GROUP_GET_NUMS", "orders@readers") is not None
    assert (answer.suggested_broker_id, answer.topic_flags, answer.group_flags) == (0, 3, 5)


@pytest.mark.parametrize(("asked", "given"), [(1, 1), (0, 1), (-5, 1), (10, 10), (2**31 - 1, 20)])
def test_a_client_is_given_no_more_than_it_asks_for_and_no_more_than_the_broker_gives(asked: int, given: int) -> None:
    world = World(max_pull_messages=20)
    world.send(*map(str, range(40)))
    assert len(bodies(world.pull(most=asked))) == given
    world.parts.close()


@pytest.mark.parametrize(
    ("asked", "given"), [(None, 20), (0, 20), (-1, 1), (1, 1), (2500, 2), (10_000, 8), (2**31 - 1, 20)]
)
def test_bytes_are_limited_too_and_one_message_always_fits(world: World, asked: int | None, given: int) -> None:
    world.send(*["x" * 1000] * 20)
    assert len(bodies(world.pull(most=1000, max_bytes=asked))) == given


@pytest.mark.parametrize(("asked", "least"), [(2 << 20, 1900), (4 << 20, 3800)])
def test_a_client_that_asks_for_much_gets_much_at_once(asked: int, least: int) -> None:
    """The defaults: some thousand messages, as many as fit in 2 or 4 MiB."""
    world = World(store={"segment_bytes": 16 << 20, "queue_file_entries": 20_000})
    world.send(*["x" * 900] * 5000)
    answer = world.pull(most=8192, max_bytes=asked)
    found = answer.body
    assert isinstance(found, list)
    assert least <= len(found)
    assert asked - 2000 < sum(map(len, found)) <= asked
    assert where(answer) == (FOUND, len(found), 0, 5000)
    world.send(*["y"] * 8192)
    assert len(bodies(world.pull(5000, most=100_000, max_bytes=asked))) == 8192
    world.parts.close()


def test_views_outlive_the_segment_they_are_of(world: World) -> None:
    world.send(*["x" * 1000] * 400)
    answer = world.pull(most=5)
    files = world.parts.store.log.files
    assert len(files.segments) > 1
    files.remove_first()
    assert bodies(answer) == ["x" * 1000] * 5


# --- where there is nothing ------------------------------------------------------------------------------------------


def test_whoever_has_read_what_is_hidden_again_waits_for_it(world: World) -> None:
    """A sync master that was killed shows less for a moment: no consumer is sent back because of that."""
    world.send("one")
    world.parts.store.marks.limit_visible(Watermark("held back", 0))
    world.send("two", "three")
    assert world.parts.store.max_offset("orders", 0) == 1
    assert where(world.pull(1)) == (NOT_FOUND, 1, 0, 1)
    assert where(world.pull(3)) == (NOT_FOUND, 3, 0, 1)
    assert where(world.pull(4)) == (MOVED, 1, 0, 1), "there has never been such a message"


def test_offsets_that_do_not_exist_are_put_right(world: World) -> None:
    assert where(world.pull(0, queue_id=1)) == (NOT_FOUND, 0, 0, 0)
    assert where(world.pull(7, queue_id=1)) == (MOVED, 0, 0, 0), "the queue has never had a message"
    assert where(world.pull(-1, queue_id=1)) == (MOVED, 0, 0, 0)
    world.send(*map(str, range(10)))
    assert where(world.pull(10)) == (NOT_FOUND, 10, 0, 10)
    assert where(world.pull(11)) == (MOVED, 10, 0, 10)
    assert where(world.pull(2**63 - 1)) == (MOVED, 10, 0, 10)
    assert where(world.pull(-1)) == (MOVED, 0, 0, 10)
    queue = world.parts.store.queues.get(b"orders", 0)
    assert queue is not None
    queue.min_offset = 4
    assert where(world.pull(3)) == (MOVED, 4, 4, 10)
    assert where(world.pull(4)) == (FOUND, 10, 4, 10)
    assert world.pull(3).reason == "OFFSET_TOO_SMALL"


# --- who may pull ----------------------------------------------------------------------------------------------------


def forbidden(world: World) -> str | None:
    answer = world.pulls.pull(world.request(), world.peer)
    assert isinstance(answer, Response)
    assert answer.code == ResponseCode.NO_PERMISSION
    return answer.more.get("forbiddenType")


def test_who_may_not_read_is_told_why(world: World) -> None:
    world.parts.group_table._rest["forbiddenTable"] = {"readers": {"orders": 4}}
    assert forbidden(world) == "5"
    world.parts.group_table._rest["forbiddenTable"] = {"readers": {"orders": 2, "bills": 4}}
    assert world.pull().code == NOT_FOUND, "writing is forbidden, and another topic"
    world.subscribe("*", model="BROADCASTING")
    assert world.pull().code == NOT_FOUND
    world.parts.groups.make(GroupConfig("readers", broadcast_enabled=False))
    assert forbidden(world) == "4"
    world.parts.topics.make(TopicConfig("orders", 4, 4, permission=2))
    assert forbidden(world) == "3"
    world.parts.groups.make(GroupConfig("readers", consume_enabled=False))
    assert forbidden(world) == "2"


def test_a_broker_that_gives_nothing_says_so() -> None:
    world = World(permission=2)
    assert forbidden(world) == "1"
    world.parts.close()


@pytest.mark.parametrize(
    ("error", "changes"),
    [
        (GroupNotFound, {"group": "nobody"}), (TopicNotFound, {"topic": "nothing"}), (BadRequest, {"queue_id": -1}),
        (BadRequest, {"queue_id": 4}), (SubscriptionNotLatest, {"subscription_version": 2}),
        (FilterSyntaxError, {"flags": CLASS_FILTER}),
        (FilterSyntaxError, {"flags": SUBSCRIPTION, "subscription": "a >", "expression_type": "SQL92"}),
        (FilterSyntaxError, {"flags": SUBSCRIPTION, "subscription": "x", "expression_type": "JAVA"}),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_an_error_of_its_own_kind(
    world: World, error: type[Exception], changes: dict[str, Any]
) -> None:
    with pytest.raises(error):
        world.pull(**changes)


def test_a_group_that_nobody_heard_of_here_has_no_subscription(world: World) -> None:
    world.parts.topics.make(TopicConfig("bills", 1, 1))
    with pytest.raises(SubscriptionNotFound, match="subscription not exist"):
        world.pull(topic="bills")
    world.consumers.disconnected(world.peer)
    with pytest.raises(SubscriptionNotFound, match="group info not exist"):
        world.pull()
    assert world.pull(flags=SUBSCRIPTION | LITE, subscription="*").code == NOT_FOUND, "it brings its own"


# --- filters ---------------------------------------------------------------------------------------------------------


def test_tags_choose_and_the_client_goes_on_behind_what_is_not_for_it(world: World) -> None:
    world.send("0", "1", tag="a")
    world.send("2", "3", tag="b")
    world.send("4", tag="c")
    world.subscribe("b || c")
    answer = world.pull()
    assert (bodies(answer), answer.next_offset) == (["2", "3", "4"], 5)
    world.subscribe("z")
    assert where(world.pull()) == (RETRY, 5, 0, 5)
    answer = world.pull(flags=SUBSCRIPTION, subscription="a", expression_type="TAG")
    assert bodies(answer) == ["0", "1"]


def sent_numbers(world: World, count: int, body: str = "") -> None:
    for number in range(count):
        world.send(body or str(number), n=str(number))


def test_expressions_choose_by_properties(world: World) -> None:
    sent_numbers(world, 100)
    world.subscribe("n >= 10 AND n < 60", "SQL92")
    answer = world.pull(most=30)
    assert (bodies(answer), answer.next_offset) == ([str(number) for number in range(10, 40)], 40)
    answer = world.pull(40, most=30)
    assert (bodies(answer), answer.next_offset) == ([str(number) for number in range(40, 60)], 100)
    answer = world.pull(flags=SUBSCRIPTION, subscription="n = 99", expression_type="SQL92")
    assert (bodies(answer), answer.next_offset) == (["99"], 100)


def test_a_pull_by_expression_looks_at_a_part_and_always_gets_on(world: World) -> None:
    sent_numbers(world, 600)
    world.subscribe("n = 599", "SQL92")
    answer, pulls = world.pull(), 1
    while answer.code == RETRY:
        assert answer.body == []
        before = answer.next_offset
        answer = world.pull(answer.next_offset)
        pulls += 1
        assert answer.next_offset > before
    assert (bodies(answer), pulls) == (["599"], 3)


@given(
    tags=st.lists(st.sampled_from("abc"), max_size=300),
    wanted=st.sampled_from([("a || c", "TAG"), ("n = 'a' OR n = 'c'", "SQL92")]),
    most=st.integers(1, 40),
    max_bytes=st.integers(1, 3000),
)
@settings(max_examples=25)
def test_who_follows_the_answers_gets_everything_that_is_for_it_once_and_in_order(
    tags: list[str], wanted: tuple[str, str], most: int, max_bytes: int
) -> None:
    world = World()
    world.parts.store.append(
        [
            Draft(b"orders", 0, b"%d" % number, f"TAGS\x01{tag}\x02n\x01{tag}\x02".encode())
            for number, tag in enumerate(tags)
        ]
    )
    world.parts.store.dispatch()
    world.subscribe(*wanted)
    got: list[str] = []
    answer = world.pull(0, most=most, max_bytes=max_bytes)
    while answer.code != NOT_FOUND:
        assert len(bodies(answer)) <= most
        got += bodies(answer)
        before, answer = answer.next_offset, world.pull(answer.next_offset, most=most, max_bytes=max_bytes)
        assert answer.next_offset > before or answer.code == NOT_FOUND
    assert got == [str(number) for number, tag in enumerate(tags) if tag != "b"]
    world.parts.close()


def test_a_pull_by_a_costly_expression_ends_when_its_time_is_used_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent_numbers(world, 60)
    world.subscribe("n = 59", "SQL92")
    looks = count()
    monkeypatch.setattr(pull_module, "cpu_seconds", lambda: next(looks) * pull_module.FILTER_SECONDS / 10)
    offset = answers = 0
    while offset < 60:
        answer = world.pull(offset=offset)
        assert isinstance(answer, PullResult)
        assert offset < answer.next_offset <= offset + 12
        offset, answers = answer.next_offset, answers + 1
    assert answers >= 5
    assert bodies(answer) == ["59"]


def test_what_an_expression_wants_is_limited_in_bytes(world: World) -> None:
    sent_numbers(world, 20, body="x" * 1000)
    world.subscribe("n < 100", "SQL92")
    answer = world.pull(max_bytes=3000)
    assert (len(bodies(answer)), answer.next_offset) == (2, 2)
    assert len(bodies(world.pull(max_bytes=1))) == 1


def test_long_expressions_that_come_with_a_pull_are_not_kept_in_number(world: World) -> None:
    pull_module._built_long.cache_clear()
    world.send("tea", tag="a")
    for number in range(40):
        answer = world.pull(flags=SUBSCRIPTION, subscription=f"a||{number}{'x' * 5000}", expression_type="TAG")
        assert bodies(answer) == ["tea"]
    assert pull_module._built_long.cache_info().currsize == pull_module.KEPT_LONG_EXPRESSIONS
    with pytest.raises(FilterSyntaxError, match="longer than"):
        world.pull(flags=SUBSCRIPTION, subscription="a||" * 80_000, expression_type="TAG")


def test_expressions_can_be_switched_off() -> None:
    world = World(sql_filters=False)
    world.subscribe("n > 1", "SQL92")
    with pytest.raises(ServiceError, match="does not support consumer to filter message by SQL92") as refused:
        world.pull()
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    world.parts.close()


# --- progress that comes along ---------------------------------------------------------------------------------------


def test_progress_comes_along_with_a_pull(world: World) -> None:
    world.send(*map(str, range(10)))
    world.pull(5, COMMIT, commit_offset=5)
    assert world.progress.offset_of("readers", "orders", 0) == 5
    world.pull(6, commit_offset=6)
    assert world.progress.offset_of("readers", "orders", 0) == 5, "only when the client says that it is one"


@pytest.mark.parametrize("offset", [-1, 11, 2**63 - 1])
def test_progress_that_cannot_be_is_not_kept_and_the_client_is_put_right(
    world: World, offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    world.send(*map(str, range(10)))
    world.pull(5, COMMIT, commit_offset=5)
    assert where(world.pull(offset, COMMIT, commit_offset=offset)) == (MOVED, 0 if offset < 0 else 10, 0, 10)
    assert world.progress.offset_of("readers", "orders", 0) == 5
    assert "not kept" in caplog.text


def test_a_consumer_at_work_hears_of_a_reset_with_its_next_pull(world: World) -> None:
    world.send(*map(str, range(10)))
    world.pull(8, COMMIT, commit_offset=8)
    world.parts.offsets.reset("readers", "orders", 0, 2)
    world.resets.note("readers", "orders", 0, 2)
    answer = world.pull(9, COMMIT, commit_offset=9)
    assert (where(answer), answer.reason) == ((MOVED, 2, 0, 10), "OFFSET_RESET")
    assert world.progress.offset_of("readers", "orders", 0) == 2, "what it told before it knew does not count"
    assert bodies(world.pull(2, COMMIT, commit_offset=2, most=1)) == ["2"]


def test_a_consumer_that_waits_hears_of_a_reset_at_once(world: World) -> None:
    async def tell() -> None:
        world.send("0", "1")
        held = world.wait(2)
        world.resets.note("readers", "orders", 0, 1)
        world.holds.topic_changed("orders")
        assert where(await held) == (MOVED, 1, 0, 2)

    story(world, tell)


# --- waiting ---------------------------------------------------------------------------------------------------------


def test_a_held_pull_is_answered_by_the_next_message(world: World) -> None:
    async def tell() -> None:
        world.send("0")
        held = world.wait(1)
        world.send("1")
        answer = await held
        assert bodies(answer) == ["1"]
        assert where(answer) == (FOUND, 2, 0, 2)

    story(world, tell)


def test_a_queue_without_a_message_can_be_waited_for(world: World) -> None:
    async def tell() -> None:
        held = world.wait(0, queue_id=3)
        world.send("0", queue=2)
        assert not held.done()
        world.send("1", queue=3)
        assert bodies(await held) == ["1"]

    story(world, tell)


def test_a_pull_that_must_not_wait_does_not(world: World) -> None:
    async def tell() -> None:
        assert world.pull(0).code == NOT_FOUND
        held = [world.wait() for _ in range(1000)]
        assert world.pull(0, HOLD).code == NOT_FOUND, "as many wait as may"
        for each in held:
            each.cancel()

    story(world, tell)


@pytest.mark.parametrize("suspend_ms", [-1, 0, 20])
def test_time_is_up(world: World, suspend_ms: int) -> None:
    async def tell() -> None:
        world.send("0", "1")
        assert where(await world.wait(2, suspend_ms=suspend_ms)) == (NOT_FOUND, 2, 0, 2)
        await asyncio.sleep(0)
        assert world.holds.count == 0

    story(world, tell)


def test_how_long_a_pull_waits_is_limited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def tell() -> None:
        monkeypatch.setattr(pull_module, "MAX_HOLD_SECONDS", 0.01)
        assert (await world.wait(suspend_ms=2**62)).code == NOT_FOUND

    story(world, tell)


def test_without_long_polling_it_waits_for_a_moment() -> None:
    world = World(long_polling=False, short_poll_ms=5)

    async def tell() -> None:
        assert (await world.wait(suspend_ms=600_000)).code == NOT_FOUND

    story(world, tell)
    world.parts.close()


@pytest.mark.parametrize(("expression", "kind"), [("b", "TAG"), ("n = 'b'", "SQL92")])
def test_what_is_for_others_does_not_wake_a_pull_and_is_not_looked_at_twice(
    world: World, expression: str, kind: str
) -> None:
    async def tell() -> None:
        world.subscribe(expression, kind)
        held, short = world.wait(), world.wait(suspend_ms=30)
        world.send("0", "1", tag="a", n="a")
        assert not held.done()
        assert where(await short) == (NOT_FOUND, 2, 0, 2), "the next pull begins behind what was looked at"
        world.send("2", tag="b", n="b")
        answer = await held
        assert (bodies(answer), answer.code) == (["2"], FOUND)

    story(world, tell)


def test_who_waits_while_only_others_get_messages_hears_how_far_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyromq.broker.requests.pull.TELL_SECONDS", 0.01)

    async def tell() -> None:
        world.subscribe("b", "TAG")
        held = world.wait()
        world.send("0", "1", tag="a")
        assert where(await held) == (RETRY, 2, 0, 2)

    story(world, tell)


def test_a_held_pull_that_cannot_look_at_all_of_it_is_sent_on_its_way(world: World) -> None:
    async def tell() -> None:
        world.subscribe("n = 'b'", "SQL92")
        held = world.wait()
        world.parts.store.append([Draft(b"orders", 0, b"x", b"n\x01a\x02") for _ in range(300)])
        world.parts.store.append([Draft(b"orders", 0, b"it", b"n\x01b\x02")])
        world.parts.store.dispatch()
        answer = await held
        assert where(answer) == (RETRY, 256, 0, 301), "more may be for it: it comes again at once"
        assert isinstance(answer, PullResult)
        assert bodies(world.pull(answer.next_offset)) == ["it"]

    story(world, tell)


def test_a_topic_that_is_removed_answers_who_waits_there(world: World) -> None:
    async def tell() -> None:
        held = world.wait()
        world.parts.topics.remove("orders")
        world.holds.topics_changed(lambda topic: world.parts.topics.get(topic) is not None)
        with pytest.raises(TopicNotFound):
            await held

    story(world, tell)


def test_a_client_that_is_gone_is_not_waited_for(world: World) -> None:
    async def tell() -> None:
        held = world.wait()
        held.cancel()
        await asyncio.sleep(0)
        assert world.holds.count == 0
        world.send("0")

    story(world, tell)


def test_a_subscription_that_changes_while_a_pull_waits_counts(world: World) -> None:
    async def tell() -> None:
        world.subscribe("b")
        held = world.wait()
        world.send("0", tag="a")
        world.subscribe("c", version=2)
        world.send("1", tag="c")
        assert bodies(await held) == ["1"]

    story(world, tell)


def test_over_a_connection_a_held_pull_is_answered_and_one_whose_client_is_gone_is_forgotten(world: World) -> None:
    async def tell() -> None:
        server = Server(Service({PullMessage: world.pulls.pull}).handle)
        await server.start("127.0.0.1", 0)
        address = f"127.0.0.1:{server.port}"
        stays, goes = Client(), Client()
        try:
            calls = [asyncio.create_task(one.call(address, world.request(flags=HOLD), 10)) for one in (stays, goes)]
            await until(lambda: world.holds.count == 2)
            calls[1].cancel()
            await goes.close(grace_s=0)
            await until(lambda: world.holds.count == 1)
            world.send("0", "1")
            answer = await calls[0]
            assert (answer.code, answer.fields["nextBeginOffset"], answer.fields["maxOffset"]) == (FOUND, "2", "2")
            first = record.decode(memoryview(answer.body))
            assert (first.body, len(answer.body)) == (b"0", 2 * first.size)
            assert world.holds.count == 0
        finally:
            await stays.close()
            await server.stop(1)

    story(world, tell)


# --- data that has left memory ---------------------------------------------------------------------------------------


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each read from the disk: was it the loop's own thread that waited?"""
    fetched: list[bool] = []
    plain = SimMappedFile.read_at

    def read_at(file: SimMappedFile, start: int, size: int) -> bytes:
        fetched.append(threading.current_thread() is threading.main_thread())
        return plain(file, start, size)

    monkeypatch.setattr(SimMappedFile, "read_at", read_at)
    monkeypatch.setattr(reader, "HOT_BYTES", 0)
    return fetched


def chilled(world: World) -> None:
    world.parts.disk.cold = {segment.path for segment in world.parts.store.log.files.segments}


@pytest.mark.parametrize(
    ("expression", "kind", "found"), [("*", "TAG", 32), ("b", "TAG", 20), ("n = '7'", "SQL92", 20)]
)
def test_a_thread_fetches_what_is_cold(
    world: World, fetches: list[bool], expression: str, kind: str, found: int
) -> None:
    async def tell() -> None:
        for number in range(200):
            world.send(str(number), tag="b" if number % 10 == 7 else "a", n=str(number % 10))
        world.subscribe(expression, kind)
        chilled(world)
        answer = world.pulls.pull(world.request(), world.peer)
        assert isinstance(answer, Awaitable)
        assert len(bodies(await answer)) == found
        assert fetches
        assert not any(fetches), "the loop itself waits for no disk"

    story(world, tell)


def test_a_cold_pull_that_finds_nothing_is_held_like_any_other(world: World, fetches: list[bool]) -> None:
    async def tell() -> None:
        world.send(*map(str, range(10)))
        chilled(world)
        world.subscribe("z")
        answer = world.pulls.pull(world.request(flags=HOLD), world.peer)
        assert isinstance(answer, Awaitable)
        assert where(await answer) == (RETRY, 10, 0, 10)
        held = world.wait(10)
        world.send("10", tag="z")
        assert bodies(await held) == ["10"]

    story(world, tell)


# --- a slave ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def slave() -> Iterator[World]:
    """It was a master before, and has these messages."""
    world = World()
    world.send("0", "1", "2")
    world.parts.config = replace(world.parts.config, role="SLAVE", broker_id=1)
    yield world
    world.parts.close()


def test_a_slave_gives_what_it_has_and_sends_the_reader_to_the_master(slave: World) -> None:
    answer = slave.pull(1)
    assert bodies(answer) == ["1", "2"]
    assert answer.suggested_broker_id == 0


@pytest.mark.parametrize("offset", [4, 100])
def test_a_slave_that_is_behind_puts_nobody_right(slave: World, offset: int) -> None:
    assert where(slave.pull(offset)) == (NOT_FOUND, offset, 0, 3)


def test_a_slave_that_has_less_of_the_past_puts_nobody_right(slave: World) -> None:
    queue = slave.parts.store.queues.get(b"orders", 0)
    assert queue is not None
    queue.min_offset = 2
    assert where(slave.pull(1)) == (NOT_FOUND, 1, 2, 3)


def test_a_pull_that_waits_at_a_slave_gets_what_is_copied(slave: World) -> None:
    async def tell() -> None:
        ahead, waiting = slave.wait(4), slave.wait(3)
        slave.send("3")
        assert bodies(await waiting) == ["3"]
        assert not ahead.done()
        slave.send("4")
        assert bodies(await ahead) == ["4"]

    story(slave, tell)


def test_a_reader_that_is_far_behind_is_sent_to_a_slave_that_is_there() -> None:
    world = World(replication=ReplicationConfig(read_from_slaves=True, memory_percent=100))
    world.parts.memory_bytes, world.parts.has_slaves = 1000, True
    world.pulls._advice = world.parts.read_advice()
    for number in range(20):
        world.send(str(number), padding="x" * 100)
    assert world.pull(0, most=1).suggested_broker_id == 1
    assert world.pull(18, most=1).suggested_broker_id == 0
    world.parts.has_slaves = False
    assert world.pull(0, most=1).suggested_broker_id == 0
