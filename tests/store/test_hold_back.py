"""A start that limits visibility shows the messages visible before, and later all the rest, at their offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.support.fakes import store_config
from pyromq.clock import ManualClock
from pyromq.model.message import AppendedAt, Draft
from pyromq.store.message_store import InlineRunner, MessageStore
from pyromq.store.offline.verify import verify
from pyromq.store.watermarks import Watermark
from pyromq.testing import SimDisk

QUEUES = [("orders", 0), ("orders", 1), ("bills", 0)]


def a_store(disk: SimDisk, *, hold_back: bool = False) -> MessageStore:
    config = store_config(queue_file_entries=4)
    store = MessageStore(config, disk=disk, clock=ManualClock(), runner=InlineRunner())
    store.open(hold_back=hold_back)
    return store


def append(store: MessageStore, queues: Iterable[int]) -> list[AppendedAt]:
    drafts = [Draft(QUEUES[number][0].encode(), QUEUES[number][1], b"x" * 20) for number in queues]
    return store.append(drafts) if drafts else []


def entries(store: MessageStore) -> dict[tuple[str, int], list[int]]:
    """The positions in each queue."""
    found = {}
    for topic, number in QUEUES:
        queue = store.queues.get(topic.encode(), number)
        if queue is not None and queue.max_offset:
            found[topic, number] = [entry.position for at in range(queue.max_offset) if (entry := queue.entry(at))]
    return found


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.integers(0, 2), max_size=14),
    st.lists(st.integers(0, 2), max_size=14),
    st.lists(st.integers(0, 2), max_size=6),
    st.lists(st.booleans(), min_size=1, max_size=3),
)
def test_what_was_hidden_stays_hidden_and_keeps_its_place(
    shown: list[int], hidden: list[int], later: list[int], kills: list[bool]
) -> None:
    disk = SimDisk(ManualClock())
    store = a_store(disk)
    append(store, shown)
    store.marks.limit_visible(Watermark("promised", store.log.end))
    append(store, hidden)
    store.dispatch()
    before = entries(store)
    store.flush()
    store.save_recover_point()
    for is_killed in kills:
        if not is_killed:
            store.close()
            assert verify(store.config.root, disk=disk, config=store.config).ok, "a clean stop leaves a store in order"
        disk = disk.kill() if is_killed else disk
        store = a_store(disk, hold_back=True)
        store.dispatch()
        assert entries(store) == before
    places = [(number, receipt) for number, receipt in zip(later, append(store, later), strict=True)]
    store.marks.lift_visible_limit()
    store.dispatch()
    after = entries(store)
    for name, positions in before.items():
        assert after[name][: len(positions)] == positions
    assert sum(map(len, after.values())) == len(shown) + len(hidden) + len(later)
    for number, receipt in places:
        assert after[QUEUES[number]][receipt.queue_offset] == receipt.position
    store.close()


def test_after_a_kill_the_key_index_waits_for_what_is_hidden_and_goes_on_when_it_is_shown() -> None:
    disk = SimDisk(ManualClock())
    store = a_store(disk)
    store.marks.limit_visible(Watermark("promised", 0))
    store.append([Draft(b"orders", 0, b"x", b"KEYS\x01k%d\x02" % number) for number in range(20)])
    store.flush()
    disk = disk.kill()
    store = MessageStore(store.config, disk=disk, clock=ManualClock(), runner=InlineRunner())
    tries = []

    async def story() -> None:
        async with store.running(hold_back=True):
            promised = Watermark("promised", 0)
            store.marks.limit_visible(promised)
            index = store.dispatcher.index

            def counted(max_bytes: int | None = None) -> bool:
                tries.append(max_bytes)
                return index(max_bytes)

            store.dispatcher.index = counted  # type: ignore[method-assign]
            for _ in range(200):
                await asyncio.sleep(0.0005)
            assert len(tries) < 10, "it does not try again and again"
            promised.advance(store.log.end)
            await store.marks.indexed.wait(store.log.end)

    asyncio.run(asyncio.wait_for(story(), 20))
