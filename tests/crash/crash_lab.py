"""A store at work on a simulated disk, power cuts at any moment, and the invariants after each of them.

    Lab(seed, Setting()).run(states=100)

plays one random life of a store. At random moments, also in the middle of an operation, it asks the disk for a state
that a power cut (or a killed process) could leave, opens a store on it and checks:

- it opens, and takes messages again;
- H1: every message below the synced mark is there, byte for byte, at its offset; after a mere kill everything below
  the readable mark is;
- H2: nothing is read that was not appended;
- H3: the offsets of a queue have no gaps, grow with the position, and one that was promised is never given out again;
  under sync flush neither is one that a group has read;
- keys and tags find acknowledged messages;
- recovering once more, after another power cut or in the middle of a recovery, gives the same log and queues;
- the store lives on from there, and the same holds for its next crash: nothing that was cut comes back.

Everything follows from the seed. A `Violation` carries the story: what the store was told to do and what the disk lost.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pyromq.clock import ManualClock
from pyromq.config import FlushConfig, RetentionConfig, StoreConfig
from pyromq.errors import CorruptLog, PyroMQError
from pyromq.model.message import AppendedAt, Draft
from pyromq.records import layout, record
from pyromq.records.properties import without_crc
from pyromq.store.message_store import InlineRunner, MessageStore, decode
from pyromq.store.queues.queue_reader import ReadStatus
from pyromq.testing import PowerCut, SimDisk

ROOT = Path("/store")
HOUR_MS = 3_600_000
Queue = tuple[bytes, int]


class Violation(AssertionError):
    """A promise that was not kept, with the story that led to it."""


@dataclass(frozen=True)
class Setting:
    """The settings of the store. Everything is tiny, so that a short life rolls many files."""

    record_crc: bool = True
    transient: bool = False
    sync: bool = False
    #: Under sync flush, a group reads between an append and its sync, too.
    reads_before_sync: bool = False
    #: Records of one size: a stale record lies exactly behind a new one as often as can be.
    even: bool = False

    def config(self) -> StoreConfig:
        return StoreConfig(
            root=ROOT,
            segment_bytes=4096,
            queue_file_entries=30,
            index_slots=200,  # so that header, slots and entries lie in different sectors
            index_entries=24,
            max_body_bytes=2048,
            prefault_bytes=0,
            recovery_threads=1,
            record_crc=self.record_crc,
            transient_pool=self.transient,
            flush=FlushConfig(sync=self.sync),
            retention=RetentionConfig(max_age_hours=1),
        )


#: Size of a record where all have one size.
EVEN_SIZE = 400


@dataclass
class Sent:
    """A message with its receipt, and the very bytes that the log must hold."""

    draft: Draft
    position: int
    offset: int
    data: bytes
    stored_ms: int

    @property
    def end(self) -> int:
        return self.position + len(self.data)

    @property
    def key(self) -> str:
        return dict(_properties(self.draft))["KEYS"]

    @property
    def tag(self) -> str | None:
        return dict(_properties(self.draft)).get("TAGS")


def _properties(draft: Draft) -> Iterable[tuple[str, str]]:
    for entry in draft.properties.decode().split("\x02"):
        name, found, value = entry.partition("\x01")
        if found:
            yield name, value


@dataclass
class Model:
    """The model of a correct store."""

    queues: dict[Queue, dict[int, Sent]] = field(default_factory=dict)
    halves: list[Sent] = field(default_factory=list)
    #: Appended by the call that is running: they may or may not be there.
    in_flight: list[Draft] = field(default_factory=list)
    #: The next offset of each queue, as far as it was promised in an earlier life.
    promised_next: dict[Queue, int] = field(default_factory=dict)
    #: Retention may have removed what lies below.
    may_be_gone_below: int = 0

    def add(self, draft: Draft, receipt: AppendedAt, now_ms: int, with_crc: bool) -> None:
        data = record.encode(draft, receipt.position, receipt.queue_offset, now_ms, with_crc)
        sent = Sent(draft, receipt.position, receipt.queue_offset, data, now_ms)
        assert len(data) == receipt.size
        if layout.has_queue_offset(draft.storage_flags):
            messages = self.queues.setdefault((draft.topic, draft.queue_id), {})
            assert receipt.queue_offset not in messages, "the store gave an offset out twice"
            messages[receipt.queue_offset] = sent
        else:
            self.halves.append(sent)

    def everything(self) -> list[Sent]:
        return [sent for messages in self.queues.values() for sent in messages.values()] + self.halves


TOPICS = (b"orders", b"pay", b"%RETRY%group", b"t" * 130)


class Lab:
    """One life of a store and the crashes in it."""

    def __init__(self, seed: int, setting: Setting = Setting()) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.setting = setting
        self.clock = ManualClock()
        self.disk = SimDisk(self.clock)
        self.model = Model()
        self.story: list[str] = []
        self.states = 0
        self.serial = 0
        self._goal = 0
        self._life = 0
        self._synced = self._readable = 0
        #: Under sync flush: the offset of a group that has read everything visible.
        self.group: dict[Queue, int] = {}
        self._operations_to_cut = 0
        self._sample_rate = 0.0
        self.store = self._new_store(self.disk)

    def run(self, states: int) -> int:
        """Play until this many crash states were checked; return their number."""
        self._goal = states
        self._open()
        while self.states < states:
            self._sample_rate = self.rng.choice((0.0, 0.1, 0.5))
            self._operations_to_cut = self.rng.randrange(5, 400)
            self.disk.on_operation = self._on_operation
            try:
                for _ in range(self.rng.randrange(1, 30)):
                    self._step()
                    self.disk.mark()
                    for _ in range(self.rng.choice((0, 1, 1, 2, 4))):
                        self._sample()
            except PowerCut:
                self.story.append("  the power is cut")
            except (PyroMQError, OSError) as error:
                story = "\n".join(self.story[-40:])
                raise Violation(f"{error!r} without any crash\nseed {self.seed}, {self.setting}\n{story}") from error
            self._go_on_from_a_crash()
        return self.states

    # --- one life ----------------------------------------------------------------------------------------------------

    def _new_store(self, disk: SimDisk) -> MessageStore:
        return MessageStore(self.setting.config(), disk=disk, clock=self.clock, runner=InlineRunner())

    def _open(self) -> None:
        self.story.append("open")
        self.store.open()

    def _step(self) -> None:
        steps = {
            self._append: 12,
            self._dispatch: 3,
            self._flush: 3,
            self._recover_point: 3,
            self._retention: 2,
            self._reopen: 1,
            self._wait: 1,
        }
        if self.setting.transient:
            steps[self._commit] = 3
        self.rng.choices(list(steps), list(steps.values()))[0]()

    def _append(self) -> None:
        drafts = [self._draft() for _ in range(self.rng.choice((1, 1, 2, 3, 6)))]
        self.story.append(f"append {len(drafts)}")
        self.model.in_flight = drafts
        receipts = self.store.append(drafts)
        self.model.in_flight = []
        for draft, receipt in zip(drafts, receipts, strict=True):
            self.model.add(draft, receipt, self.clock.now_ms(), self.setting.record_crc)
        self.story[-1] += f" at {receipts[0].position}-{receipts[-1].end}"
        if self.setting.sync and not (self.setting.reads_before_sync and self.rng.random() < 0.7):
            self._flush()

    def _draft(self) -> Draft:
        rng = self.rng
        self.serial += 1
        topic, queue = rng.choice(TOPICS[: 1 + self.serial // 10]), rng.choice((0, 0, 1))
        properties = f"KEYS\x01k{self.serial}\x02"
        flags = rng.choice((0, 0, 0, 0, layout.FLAG_PREPARED, layout.FLAG_COMMITTED, layout.FLAG_ROLLED_BACK))
        if rng.random() < 0.5:
            properties += f"TAGS\x01tag{rng.randrange(3)}\x02"
        if rng.random() < 0.1:
            topic, queue, flags = layout.SCHEDULE_TOPIC, rng.randrange(2), 0
            properties += f"DELAY\x01{queue + 1}\x02"
        if rng.random() < 0.3:
            properties += f"UNIQ_KEY\x01u{self.serial}\x02"
        body = b"%d:" % self.serial + rng.randbytes(rng.choice((0, 10, 100, 300, 700, 1500)))
        draft = Draft(topic, queue, body, properties.encode(), storage_flags=flags, born_timestamp_ms=self.serial)
        if self.setting.even:
            draft.body = b"%d:" % self.serial
            draft.body += bytes(EVEN_SIZE - record.encoded_size(draft, self.setting.record_crc))
        return draft

    def _dispatch(self) -> None:
        self.story.append("dispatch")
        self.store.dispatch()

    def _flush(self) -> None:
        self.story.append("flush")
        self.store.flush()

    def _commit(self) -> None:
        self.story.append("commit")
        self.store.commit_gathered()

    def _recover_point(self) -> None:
        self.story.append("save recover point")
        self.store.save_recover_point()

    def _wait(self) -> None:
        self.clock.advance(self.rng.choice((0.001, 1, 100)))

    def _retention(self) -> None:
        """An hour later old segments may go: those in which no message is younger."""
        self.clock.advance(self.rng.choice((1, 4000, 4000)))
        young = [sent.position for sent in self.model.everything() if sent.stored_ms > self.clock.now_ms() - HOUR_MS]
        segments = self.store.log.files.segments
        if segments:
            limit = min([*young, segments[-1].base])
            self.model.may_be_gone_below = max(self.model.may_be_gone_below, limit)
        self.story.append(f"clean, below {self.model.may_be_gone_below} at most")
        self.store.clean()

    def _reopen(self) -> None:
        self.story.append("close")
        self.store.close()
        self._note_promises()
        for _ in range(2):
            self._sample()
        self.disk.mark()
        self.store = self._new_store(self.disk)
        self._open()

    # --- crashes -----------------------------------------------------------------------------------------------------

    def _on_operation(self, operation: str, path: Path) -> None:
        self._operations_to_cut -= 1
        if self._operations_to_cut <= 0:
            self.story.append(f"  at {operation} {path.relative_to(ROOT)}")
            raise PowerCut
        if self.rng.random() < self._sample_rate:
            self.story.append(f"  at {operation} {path.relative_to(ROOT)}")
            self._sample()

    def _note_promises(self) -> None:
        self._synced = max(self._synced, self.store.marks.synced.value)
        self._readable = max(self._readable, self.store.marks.written.value)
        if self.setting.sync:
            for queue in self.store.queues:
                key = (queue.topic, queue.id.number)
                self.group[key] = max(queue.max_offset, self.group.get(key, 0))

    def _sample(self) -> None:
        """Check one possible state of a crash at this moment. The life continues undisturbed."""
        if self.states < self._goal:
            self._note_promises()
            self._check_crash()

    def _check_crash(self) -> tuple[SimDisk, MessageStore]:
        self.states += 1
        if self.rng.random() < 0.08:
            after, promised, what = self.disk.kill(), self._readable, "the process is killed"
        else:
            choice = self.disk.choose_crash(self.rng)
            after, promised, what = self.disk.after(choice), self._synced, ""
        try:
            if not what and self.rng.random() < 0.1:
                after = self._cut_recovery(after)
            store = Check(self, after, promised).everything()
            if self.rng.random() < 0.3:
                self._recover_again(after)
        except (AssertionError, PyroMQError, OSError, ValueError, LookupError, TypeError) as error:
            story = "\n".join(self.story[-40:])
            raise Violation(
                f"{type(error).__name__}: {error}\nseed {self.seed}, {self.setting}, state {self.states}, promised "
                f"{promised}\n{story}\n{what or self.disk.describe(choice)}"
            ) from error
        return after, store

    def _cut_recovery(self, disk: SimDisk) -> SimDisk:
        """The power goes once more while the store recovers."""
        left = self.rng.randrange(1, 25)

        def cut(operation: str, path: Path) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise PowerCut

        disk.on_operation = cut
        try:
            self._new_store(disk).open()
        except PowerCut:
            self.states += 1
        return disk.crash(self.rng)

    def _recover_again(self, disk: SimDisk) -> None:
        """Recovered is recovered: the next start finds the same, whether the power went or only the process."""
        self.states += 1
        before = _log_and_queues(disk)
        messages = read_everything(self.store_of(disk))
        if self.rng.random() < 0.5:
            again, compare = disk.kill(), ("commitlog", "consumequeue")
        else:
            again, compare = disk.crash(self.rng), ("commitlog",)
        store = self._new_store(again)
        self._stores[again] = store
        store.open()
        store.dispatch()
        after = _log_and_queues(again)
        for folder in compare:
            assert before[folder] == after[folder], f"recovering twice changed {folder}"
        assert read_everything(store) == messages, "recovering twice changed what is read"

    def _go_on_from_a_crash(self) -> None:
        """The next life begins where a crash left the last one: with what recovery found, all of it promised now."""
        self._note_promises()
        self.disk.on_operation = None
        self.disk, self.store = self._check_crash()
        self._stores.clear()
        self._life += 1
        self.story.append(f"life {self._life}")
        self.model = Check.survivors(self, self.store)
        self.group.clear()
        self._synced = self._readable = self.store.marks.synced.value

    # The checks open stores of their own; the state of the crash from which the life continues is kept.
    @property
    def _stores(self) -> dict[SimDisk, MessageStore]:
        return self.__dict__.setdefault("_opened", {})

    def store_of(self, disk: SimDisk) -> MessageStore:
        return self._stores[disk]

    def open_on(self, disk: SimDisk) -> MessageStore:
        self._stores.clear()
        self._stores[disk] = store = self._new_store(disk)
        store.open()
        return store


def _log_and_queues(disk: SimDisk) -> dict[str, dict[Path, bytes]]:
    found: dict[str, dict[Path, bytes]] = {"commitlog": {}, "consumequeue": {}}
    for path, data in disk.files().items():
        folder = path.parts[2]
        if folder in found and any(data):  # an empty file that was removed may come back
            found[folder][path] = data
    return found


def read_everything(store: MessageStore) -> dict[Queue, list[bytes]]:
    """All queues, from their first message to their last."""
    found: dict[Queue, list[bytes]] = {}
    for queue in store.queues:
        offset, messages = queue.min_offset, []
        while True:
            result = store.read(queue.id.topic, queue.id.number, offset, max_messages=1000, max_bytes=1 << 20)
            messages += map(bytes, result.records)
            if result.status is not ReadStatus.FOUND and result.status is not ReadStatus.NO_MATCH:
                break
            offset = result.next_offset
        found[queue.topic, queue.id.number] = messages
    return found


class Check:
    """The promises, held against the store that one crash left."""

    def __init__(self, lab: Lab, disk: SimDisk, promised: int) -> None:
        self.lab = lab
        self.model = lab.model
        self.rng = lab.rng
        self.promised = promised
        self.store = lab.open_on(disk)
        self.in_flight = {(draft.topic, draft.queue_id, draft.born_timestamp_ms) for draft in lab.model.in_flight}

    def everything(self) -> MessageStore:
        self.store.dispatch()
        self.store.marks.check()
        found = read_everything(self.store)
        for queue, messages in found.items():
            self._is_what_was_sent(queue, messages)
        self._nothing_promised_is_lost(found)
        self._halves()
        self._keys_and_tags()
        return self.store

    def _is_what_was_sent(self, queue: Queue, messages: list[bytes]) -> None:
        """H2 and H3."""
        store_queue = self.store.queues.get(*queue)
        assert store_queue is not None
        expected, sent = store_queue.min_offset, self.model.queues.get(queue, {})
        last_position = -1
        for data in messages:
            head = layout.HEAD.unpack_from(data)
            offset, position = head[5], head[6]
            assert offset == expected, f"{queue} has offset {offset} where {expected} must be"
            assert position > last_position, f"{queue} goes back to position {position} at offset {offset}"
            expected, last_position = offset + 1, position
            if offset not in sent:
                self._was_in_flight(queue, data)
            else:
                assert self._is_same(data, sent[offset]), f"{queue}, offset {offset}: not what was sent"
        assert expected == store_queue.max_offset, f"{queue} ends at {expected}, not at {store_queue.max_offset}"

    def _is_same(self, data: bytes, sent: Sent) -> bool:
        """RocketMQ's own format covers the body only: without a record CRC torn properties cannot be detected.
        That is the one thing a crash may do to a message that was not promised."""
        if data == sent.data or self.lab.setting.record_crc or sent.end <= self.promised:
            return data == sent.data
        properties = len(data) - len(without_crc(sent.draft.properties))
        return data[:properties] == sent.data[:properties] and all(
            found in (0, expected) for found, expected in zip(data, sent.data, strict=True)
        )

    def _was_in_flight(self, queue: Queue, data: bytes) -> None:
        message = decode(memoryview(data))
        identity = (*queue, message.born_timestamp_ms)
        assert identity in self.in_flight, f"{queue} has a message at offset {message.queue_offset} that nobody sent"
        draft = next(each for each in self.model.in_flight if each.born_timestamp_ms == message.born_timestamp_ms)
        spans = record.spans_of(memoryview(data), 0, len(data))
        assert not isinstance(spans, str)
        assert message.body == draft.body
        properties = without_crc(data[spans.properties : spans.properties_end])
        assert properties == draft.properties or (not self.lab.setting.record_crc and b"\0" in properties)

    def _nothing_promised_is_lost(self, found: dict[Queue, list[bytes]]) -> None:
        """H1, and no offset is given out again."""
        for queue, sent in self.model.queues.items():
            store_queue = self.store.queues.get(*queue)
            low, high = (store_queue.min_offset, store_queue.max_offset) if store_queue is not None else (0, 0)
            for offset, each in sent.items():
                if each.end > self.promised:
                    continue
                assert offset < high, f"{queue}: offset {offset} was promised and would be given out again"
                if each.position >= self.model.may_be_gone_below:
                    assert offset >= low, f"{queue}: offset {offset} at position {each.position} is lost"
            assert high >= self.model.promised_next.get(queue, 0), f"{queue}: offsets before {high} came again"
        for queue, offset in self.lab.group.items():
            end = self.store.max_offset(queue[0].decode(), queue[1])
            assert end >= offset, f"{queue}: a group has read up to {offset}, and {end} would be given out again"
        for queue, promised in self.model.promised_next.items():
            assert self.store.max_offset(queue[0].decode(), queue[1]) >= promised, f"{queue}: begins anew"

    def _halves(self) -> None:
        for half in self.model.halves:
            if half.end <= self.promised and half.position >= self.model.may_be_gone_below:
                found = self.store.log.record_at(half.position, self.store.marks.written.value)
                assert found == half.data, f"the half at {half.position} is damaged"

    def _keys_and_tags(self) -> None:
        queued = [sent for messages in self.model.queues.values() for sent in messages.values()]
        promised = [
            sent for sent in queued if self.model.may_be_gone_below <= sent.position < sent.end <= self.promised
        ]
        for sent in promised if self.rng.random() < 0.1 else self.rng.sample(promised, min(len(promised), 6)):
            hits = self.store.query(sent.draft.topic.decode(), sent.key)
            assert [bytes(hit) for hit in hits] == [sent.data], f"key {sent.key}: {len(hits)} found"
            if sent.draft.topic != layout.SCHEDULE_TOPIC and sent.tag is not None:
                read = self.store.read(sent.draft.topic.decode(), sent.draft.queue_id, sent.offset, tags=[sent.tag])
                assert read.records, f"tag {sent.tag} does not find offset {sent.offset}"
                assert read.records[0] == sent.data

    @staticmethod
    def survivors(lab: Lab, store: MessageStore) -> Model:
        """Return the start state of a new life."""
        old, model = lab.model, Model(may_be_gone_below=lab.model.may_be_gone_below)
        for queue, messages in read_everything(store).items():
            model.promised_next[queue] = store.max_offset(queue[0].decode(), queue[1])
            model.queues[queue] = {sent.offset: sent for sent in (_as_sent(data) for data in messages)}
        for half in old.halves:
            if half.end <= store.marks.appended.value:
                try:
                    if store.log.record_at(half.position, store.marks.written.value) == half.data:
                        model.halves.append(half)
                except CorruptLog:
                    continue
        return model


def _as_sent(data: bytes) -> Sent:
    message = decode(memoryview(data))
    spans = record.spans_of(memoryview(data), 0, len(data))
    assert not isinstance(spans, str)
    draft = Draft(
        data[spans.topic : spans.topic_end],
        message.queue_id,
        message.body,
        without_crc(data[spans.properties : spans.properties_end]),
        storage_flags=message.storage_flags,
        born_timestamp_ms=message.born_timestamp_ms,
    )
    return Sent(draft, message.position, message.queue_offset, data, message.store_timestamp_ms)


def wanted_states(default: int) -> int:
    """`PYROMQ_CRASH_STATES` asks for a longer run, in states per setting."""
    return int(os.environ.get("PYROMQ_CRASH_STATES", default))
