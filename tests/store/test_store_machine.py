"""Queues and index against a model: whatever is done in whatever order, a read finds what a simple table says."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyromq.clock import ManualClock
from pyromq.store.message_store import InlineRunner, MessageStore
from pyromq.store.queues.queue_reader import ReadStatus
from pyromq.testing import SimDisk
from store.support import bodies, open_store, order

TOPICS = ["orders", "заказы"]
TAGS = ["a", "b", "ü"]
KEYS = ["k1", "k2", "ключ", "Aa", "BB"]


@dataclass(frozen=True)
class Sent:
    """The model's memory of a message."""

    body: bytes
    tag: str
    keys: frozenset[str]
    stored_ms: int


class StoreMachine(RuleBasedStateMachine):
    """A store of very small files; the model is a list per queue."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.disk = SimDisk(self.clock)
        self.queues: dict[tuple[str, int], list[Sent]] = {}
        self.by_time: list[tuple[str, Sent]] = []
        self.number = 0

    @initialize(transient=st.booleans(), with_crc=st.booleans())
    def start(self, transient: bool, with_crc: bool) -> None:
        self.settings = {
            "transient_pool": transient,
            "record_crc": with_crc,
            "segment_bytes": 4096,
            "queue_file_entries": 7,
            "index_entries": 9,
            "index_slots": 3,
        }
        self.store = open_store(self.disk, self.clock, **self.settings)

    # --- what a broker does ------------------------------------------------------------------------------------------

    @rule(
        batch=st.lists(
            st.tuples(
                st.sampled_from(TOPICS), st.integers(0, 1), st.sampled_from(TAGS), st.sets(st.sampled_from(KEYS)),
                st.integers(0, 600),
            ),
            min_size=1, max_size=12,
        ),
    )  # fmt: skip
    def append(self, batch: list[tuple[str, int, str, set[str], int]]) -> None:
        drafts = []
        for topic, queue, tag, keys, size in batch:
            self.number += 1
            body = b"%d:" % self.number + bytes(size)
            properties = {"TAGS": tag} | ({"KEYS": " ".join(sorted(keys))} if keys else {})
            drafts.append(order(body, topic=topic, queue=queue, **properties))
            sent = Sent(body, tag, frozenset(keys), self.clock.now_ms())
            self.queues.setdefault((topic, queue), []).append(sent)
            self.by_time.append((topic, sent))
        receipts = self.store.append(drafts)
        assert len(receipts) == len(drafts)
        for (topic, queue, *_), receipt in zip(reversed(batch), reversed(receipts), strict=True):
            assert receipt.queue_offset < len(self.queues[topic, queue])
        self.store.dispatch()

    @rule(seconds=st.integers(0, 5))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule()
    def flush(self) -> None:
        self.store.flush()

    @rule()
    def save_recover_point(self) -> None:
        self.store.save_recover_point()

    @rule()
    def stop_and_start(self) -> None:
        self.store.close()
        self.store = open_store(self.disk, self.clock, **self.settings)
        assert self.store.report.clean
        self.store.dispatch()

    @rule()
    def kill_and_start(self) -> None:
        self.disk = self.disk.kill()
        self.store = open_store(self.disk, self.clock, **self.settings)
        assert not self.store.report.clean
        self.store.dispatch()

    @rule()
    def rebuild(self) -> None:
        self.store.close()
        self.store = MessageStore(self.store.config, disk=self.disk, clock=self.clock, runner=InlineRunner())
        self.store.open(rebuild=True)
        self.store.dispatch()

    # --- what a consumer sees ----------------------------------------------------------------------------------------

    @rule(
        topic=st.sampled_from(TOPICS), queue=st.integers(0, 1), offset=st.integers(0, 40),
        max_messages=st.integers(1, 20), tags=st.none() | st.sets(st.sampled_from(TAGS), min_size=1),
    )  # fmt: skip
    def read(self, topic: str, queue: int, offset: int, max_messages: int, tags: set[str] | None) -> None:
        sent = self.queues.get((topic, queue))
        result = self.store.read(topic, queue, offset, max_messages=max_messages, max_bytes=1 << 30, tags=tags)
        if sent is None:
            assert result.status is ReadStatus.NO_QUEUE
        elif offset >= len(sent):
            assert result.status is (ReadStatus.AT_END if offset == len(sent) else ReadStatus.TOO_LARGE)
        else:
            wanted = [one.body for one in sent[offset:] if tags is None or one.tag in tags][:max_messages]
            assert bodies(result) == wanted

    @rule(topic=st.sampled_from(TOPICS), key=st.sampled_from(KEYS), back=st.integers(0, 20), span=st.integers(0, 20))
    def query(self, topic: str, key: str, back: int, span: int) -> None:
        begin = self.clock.now_ms() - 1000 * back
        end = begin + 1000 * span
        expected = [
            sent.body
            for sent_to, sent in reversed(self.by_time)
            if sent_to == topic and key in sent.keys and begin <= sent.stored_ms <= end
        ]
        assert bodies(self.store.query(topic, key, begin_ms=begin, end_ms=end, max_messages=10_000)) == expected

    @rule(queue=st.integers(0, 1), back=st.integers(-3, 30))
    def search_by_time(self, queue: int, back: int) -> None:
        sent = self.queues.get(("orders", queue), [])
        moment = self.clock.now_ms() - 1000 * back
        lower = next((offset for offset, one in enumerate(sent) if one.stored_ms >= moment), len(sent))
        assert self.store.offset_at("orders", queue, moment) == lower

    @invariant()
    def marks_are_in_order(self) -> None:
        if hasattr(self, "store"):
            self.store.marks.check()
            for (topic, queue), sent in self.queues.items():
                assert self.store.max_offset(topic, queue) == len(sent)
                assert self.store.min_offset(topic, queue) == 0


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
