"""Damaged files: nothing wrong is ever served, and nothing that was synced goes missing without a word.

A store with every kind of file is made once, stopped cleanly or crashed; each case damages a copy of it and reads
everything. `PYROMQ_FLIPS` sets the number of cases per file kind and state; a failure names its seed.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from crash.crash_lab import ROOT, Lab, Sent
from pyromq.clock import ManualClock
from pyromq.errors import CorruptFile, CorruptLog, CorruptQueue, CorruptStore, OffsetNotFound, PyroMQError
from pyromq.files.json_file import Source
from pyromq.records import layout
from pyromq.store.durability.checkpoint import RecoverPointFile
from pyromq.store.message_store import InlineRunner, MessageStore
from pyromq.store.paths import StorePaths
from pyromq.store.queues.queue_reader import ReadStatus
from pyromq.store.tables.offset_files import ConsumerOffsets
from pyromq.testing import SimDisk
from pyromq.testing.sim.file import SECTOR

CASES = int(os.environ.get("PYROMQ_FLIPS", "120"))
PATHS = StorePaths(ROOT)


@dataclass(frozen=True)
class Made:
    """A store directory and its content."""

    disk: SimDisk
    messages: list[Sent]
    #: Everything below was synced, and the recover point on the disk says so.
    synced: int
    end: int

    def files(self, folder: str) -> list[Path]:
        return sorted(path for path in self.disk.files() if path.parts[2] == folder)


@functools.cache
def make(*, clean: bool) -> Made:
    """Old messages that everybody is done with, then some that are synced but in no queue yet, then unsynced ones."""
    lab = Lab(
        20,
    )
    lab.store.open()
    for _ in range(40):
        lab._append()
    lab._dispatch()
    lab._flush()
    lab._recover_point()
    for _ in range(6):
        lab._append()
    lab._flush()
    lab._recover_point()
    synced = lab.store.marks.synced.value
    if clean:
        lab.store.close()
        synced = lab.store.marks.synced.value
    else:
        for _ in range(4):
            lab._append()
    messages = [sent for sent in lab.model.everything() if layout.has_queue_offset(sent.draft.storage_flags)]
    disk = lab.disk.kill()
    disk.sync_all()
    return Made(disk, messages, synced, lab.store.marks.appended.value)


@dataclass
class Found:
    """The result of reading everything."""

    refused: PyroMQError | None = None
    #: Messages that could not be read, with the error that said so.
    failed: int = 0
    #: Messages that are simply not there.
    missing: list[Sent] = None  # type: ignore[assignment]


def open_on(disk: SimDisk, **options: object) -> MessageStore:
    store = MessageStore(
        Lab(0).setting.config(), disk=disk, clock=ManualClock(1_800_000_000_000), runner=InlineRunner()
    )
    store.open(**options)  # type: ignore[arg-type]
    return store


def is_right(view: memoryview, sent: Sent, torn_properties: bool) -> bool:
    """The very bytes that were sent; with `torn_properties` those up to the properties."""
    size = len(sent.data) - (len(sent.draft.properties) + layout.CRC_PROPERTY_SIZE if torn_properties else 0)
    return len(view) == len(sent.data) and view[:size] == sent.data[:size]


def examine(made: Made, disk: SimDisk, *, torn_properties: bool = False, **options: object) -> Found:
    """Open, read and query everything. Each result is right, or a typed error."""
    found = Found(missing=[])
    try:
        store = open_on(disk, **options)
        store.dispatch()
    except PyroMQError as error:
        found.refused = error
        return found
    for sent in made.messages:
        topic, queue = sent.draft.topic.decode(), sent.draft.queue_id
        try:
            result = store.read(topic, queue, sent.offset, max_messages=1)
        except (CorruptLog, CorruptQueue):
            found.failed += 1
            continue
        if result.status is ReadStatus.FOUND:
            wrong = f"{topic}/{queue} offset {sent.offset}: served wrong"
            assert is_right(result.records[0], sent, torn_properties), wrong
        else:
            found.missing.append(sent)
    for sent in made.messages[::5]:
        for hit in store.query(sent.draft.topic.decode(), sent.key):
            assert is_right(hit, sent, torn_properties), f"key {sent.key}: a wrong message"
    return found


def no_word_lost(made: Made, found: Found) -> None:
    """Below the synced mark a message is right or its absence is an error."""
    lost = [sent.position for sent in found.missing if sent.end <= made.synced]
    assert found.refused is not None or not lost, f"synced messages at {lost} are gone without a word"


def flips(rng: random.Random) -> int:
    return rng.choice((1, 1, 1, 2, 3, 8))


STATES = pytest.mark.parametrize("clean", [True, False], ids=["stopped", "crashed"])


# --- bits ----------------------------------------------------------------------------------------------------------


@STATES
def test_flipped_bits_in_the_log_below_the_mark(clean: bool) -> None:
    made = make(clean=clean)
    for seed in range(CASES * 4):
        rng, disk = random.Random(seed), made.disk.copy()
        path = rng.choice([each for each in made.files("commitlog") if int(each.name) < made.synced])
        limit = min(made.synced - int(path.name), 4096)
        places = disk.flip_bits(path, rng, flips(rng), end=limit)
        found = examine(made, disk)
        try:
            no_word_lost(made, found)
            hit = [s for s in made.messages if any(s.position <= int(path.name) + at < s.end for at in places)]
            assert not hit or found.refused or found.failed, "damage that nobody noticed"
            if found.refused:
                assert isinstance(found.refused, CorruptLog)
                assert found.refused.file == path
                assert found.refused.position <= int(path.name) + max(places)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {path.name} at {places}") from error


def test_flipped_bits_in_the_log_above_the_mark_cut_it_there() -> None:
    made = make(clean=False)
    for seed in range(CASES):
        rng, disk = random.Random(seed), made.disk.copy()
        path = made.files("commitlog")[made.end // 4096]
        base = int(path.name)
        places = disk.flip_bits(path, rng, flips(rng), start=max(made.synced - base, 0), end=made.end - base)
        found = examine(made, disk)
        assert found.refused is None, f"seed {seed}"
        assert not found.failed
        assert all(sent.end > base + min(places) for sent in found.missing), (
            f"seed {seed}: more was cut than was damaged"
        )
        assert any(sent.end > base + min(places) for sent in found.missing) or not found.missing


@STATES
def test_flipped_bits_in_a_queue(clean: bool) -> None:
    """An entry of the queue is checked against the log when it is read; one that recovery finds is written again, and
    so is one that damage made look like nothing: the recover point knows how many entries there were."""
    made = make(clean=clean)
    for seed in range(CASES * 2):
        rng, disk = random.Random(seed), made.disk.copy()
        path = rng.choice(made.files("consumequeue"))
        size = len(disk.files()[path].rstrip(b"\0"))
        disk.flip_bits(path, rng, flips(rng), end=size)
        damaged = disk.copy()
        found = examine(made, disk)
        assert found.refused is None, f"seed {seed}: {found.refused}"
        no_word_lost(made, found)
        again = examine(made, damaged, rebuild=True)
        assert (again.refused, again.failed, again.missing) == (None, 0, []), f"seed {seed}: a rebuild repairs it"


@STATES
def test_a_flipped_tag_code(clean: bool) -> None:
    """A filtered read compares codes with records before it believes them: it passes over no message."""
    made = make(clean=clean)
    tagged = [
        s for s in made.messages if s.tag and s.draft.topic != layout.SCHEDULE_TOPIC and s.end <= made.synced // 2
    ]
    for seed, sent in enumerate(tagged):
        rng, disk = random.Random(seed), made.disk.copy()
        path = PATHS.queues / sent.draft.topic.decode() / str(sent.draft.queue_id) / f"{sent.offset // 30 * 600:020d}"
        at = sent.offset % 30 * 20 + 12
        disk.flip_bits(path, rng, 1, start=at, end=at + 8)
        store = open_on(disk)
        topic, queue = sent.draft.topic.decode(), sent.draft.queue_id
        filtered = store.read(topic, queue, sent.offset, max_messages=1, tags=[sent.tag or ""])
        assert filtered.records == [sent.data]
        assert store.read(topic, queue, sent.offset, max_messages=1).records == [sent.data]


@STATES
@pytest.mark.parametrize("folder", ["index", "checkpoint", "recoverpoint", "lock"])
def test_flipped_bits_in_a_file_that_can_be_done_without(folder: str, clean: bool) -> None:
    """Nothing is lost; a query may miss what a damaged index entry stood for, and finds it again after a rebuild."""
    made = make(clean=clean)
    for seed in range(CASES):
        rng, disk = random.Random(seed), made.disk.copy()
        path = rng.choice(made.files(folder))
        disk.flip_bits(path, rng, flips(rng))
        found = examine(made, disk)
        assert (found.refused, found.failed, found.missing) == (None, 0, []), f"{path} seed {seed}: {found.refused}"


def test_a_damaged_abort_mark_is_still_one() -> None:
    made = make(clean=False)
    for seed in range(20):
        disk = made.disk.copy()
        disk.flip_bits(PATHS.abort, random.Random(seed), 3)
        found = examine(made, disk)
        assert (found.refused, found.failed, found.missing) == (None, 0, [])


def test_flipped_bits_in_a_config_file() -> None:
    """The right offset, the one before it, or a clear no. Never another number.

    The limit: without the name of its checksum a file is taken for one of RocketMQ's, which has none.
    """
    clock = ManualClock()
    disk = SimDisk(clock)
    table = ConsumerOffsets(disk, PATHS.config, clock)
    table.load()
    for offset in (41, 42):
        table.commit("group", "orders", 0, offset)
        table.save()
    path = PATHS.config / "consumerOffset.json"
    for seed in range(CASES * 4):
        rng, damaged = random.Random(seed), disk.copy()
        files = [path] if seed % 2 else [path, path.with_name(f"{path.name}.bak")]
        for each in files:
            name = damaged.files()[each].index(b"pyromqCrc") + len(b"pyromqCrc")
            damaged.flip_bits(each, rng, flips(rng), start=name)
        again = ConsumerOffsets(damaged, PATHS.config, clock)
        try:
            source = again.load()
        except CorruptFile:
            assert len(files) == 2, f"seed {seed}: the previous copy was good"
            continue
        expected = {Source.CURRENT: 42, Source.PREVIOUS: 41}[source]
        assert again.offset_of("group", "orders", 0) == expected, f"seed {seed}"


# --- sectors and files ---------------------------------------------------------------------------------------------


@STATES
@pytest.mark.parametrize("folder", ["commitlog", "consumequeue", "index"])
@pytest.mark.parametrize("damage", ["copied", "swapped", "zeroed"])
def test_sectors_in_the_wrong_place(folder: str, damage: str, clean: bool) -> None:
    """A limit: a foreign sector that begins inside a record's properties takes its CRC away, and then the record looks
    like one of RocketMQ's, which has none: head and body are right, the properties are not."""
    made = make(clean=clean)
    for seed in range(CASES // 4):
        rng, disk = random.Random(seed), made.disk.copy()
        one, other = rng.choice(made.files(folder)), rng.choice(made.files(folder))
        a, b = (rng.randrange(0, len(disk.files()[path]), SECTOR) for path in (one, other))
        contents = {path: bytearray(disk.files()[path]) for path in {one, other}}
        first, second = bytes(contents[one][a : a + SECTOR]), bytes(contents[other][b : b + SECTOR])
        size = min(len(first), len(second))
        if damage == "swapped":
            contents[other][b : b + size] = first[:size]
        contents[one][a : a + size] = bytes(size) if damage == "zeroed" else second[:size]
        for path, content in contents.items():
            disk.plant(path, bytes(content))
        damaged = disk.copy()
        found = examine(made, disk, torn_properties=folder == "commitlog")
        if folder != "index":
            try:
                no_word_lost(made, found)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {one} {a} {other} {b}") from error
        if folder == "consumequeue":
            again = examine(made, damaged, rebuild=True)
            assert (again.refused, again.failed, again.missing) == (None, 0, []), f"seed {seed}: a rebuild repairs it"
        if folder == "index":
            assert (found.refused, found.failed, found.missing) == (None, 0, [])


@STATES
def test_a_file_that_was_cut_short(clean: bool) -> None:
    made = make(clean=clean)
    for folder in ("commitlog", "consumequeue", "index", "recoverpoint", "checkpoint"):
        for path in made.files(folder):
            for size in (0, 1, 100, 511):
                disk = made.disk.copy()
                disk.plant(path, disk.files()[path][:size])
                found = examine(made, disk)
                if folder == "commitlog":
                    assert isinstance(found.refused, CorruptStore) or not found.missing, f"{path} of {size} bytes"
                    no_word_lost(made, found)
                else:
                    assert (found.refused, found.failed, found.missing) == (None, 0, []), f"{path} of {size} bytes"


@STATES
def test_two_log_files_that_changed_places(clean: bool) -> None:
    made = make(clean=clean)
    files = [path for path in made.files("commitlog") if int(path.name) + 4096 < made.synced]
    for one, other in itertools.pairwise(files):
        disk = made.disk.copy()
        first, second = disk.files()[one], disk.files()[other]
        disk.plant(one, second)
        disk.plant(other, first)
        found = examine(made, disk)
        assert found.refused or found.failed
        no_word_lost(made, found)


@STATES
def test_a_missing_log_file(clean: bool) -> None:
    """In the middle and at the end the store refuses to start, and names the place. At the front it looks like
    retention: what is gone is told as such (`TOO_SMALL`), not served and not given out again."""
    made = make(clean=clean)
    files = [path for path in made.files("commitlog") if int(path.name) < made.synced]
    for path in files[1:]:
        disk = made.disk.copy()
        disk.remove(path)
        found = examine(made, disk)
        assert isinstance(found.refused, CorruptStore), path
        assert found.refused.position == int(path.name)
    disk = made.disk.copy()
    disk.remove(files[0])
    found = examine(made, disk)
    assert found.refused is None
    assert all(sent.position < 4096 for sent in found.missing)


@STATES
def test_a_missing_queue_file(clean: bool) -> None:
    """A queue without its only file looks like one that never had any; the recover point knows better."""
    made = make(clean=clean)
    for path in made.files("consumequeue"):
        disk = made.disk.copy()
        disk.remove(path)
        found = examine(made, disk)
        assert (found.refused, found.failed, found.missing) == (None, 0, []), path


# --- the way out ---------------------------------------------------------------------------------------------------


def damaged_below_the_mark() -> tuple[Made, SimDisk, CorruptLog]:
    """A record that is synced and in no queue yet: recovery scans it and refuses."""
    made = make(clean=False)
    disk = made.disk.copy()
    point = RecoverPointFile(disk, PATHS.recover_point).load()
    assert point is not None
    assert point.queues_to < point.synced == made.synced
    victim = next(sent for sent in made.messages if point.queues_to < sent.position and sent.end < point.synced)
    path = PATHS.commit_log / f"{victim.position // 4096 * 4096:020d}"
    disk.flip_bits(path, random.Random(1), 1, start=victim.position % 4096 + 100, end=victim.position % 4096 + 101)
    with pytest.raises(CorruptLog) as refusal:
        open_on(disk.copy())
    return made, disk, refusal.value


def test_giving_up_at_the_named_position() -> None:
    made, disk, refusal = damaged_below_the_mark()
    assert f"--truncate-at {refusal.position}" in str(refusal)
    store = open_on(disk, truncate_at=refusal.position)
    assert store.marks.appended.value == refusal.position
    store.dispatch()
    kept = [sent for sent in made.messages if sent.end <= refusal.position]
    for sent in kept:
        result = store.read(sent.draft.topic.decode(), sent.draft.queue_id, sent.offset, max_messages=1)
        assert result.records[0] == sent.data
    store.close()
    again = open_on(disk)
    assert again.marks.appended.value == refusal.position


def test_giving_up_anywhere_else_is_refused_and_changes_nothing() -> None:
    _, disk, refusal = damaged_below_the_mark()
    before = {path: data for path, data in disk.files().items() if path != PATHS.lock}
    for nonsense in (-1, 1, refusal.position - 1, refusal.position + 1, refusal.position + 4096, 1 << 60):
        with pytest.raises(CorruptLog):
            open_on(disk, truncate_at=nonsense)
    assert {path: data for path, data in disk.files().items() if path != PATHS.lock} == before
    with pytest.raises(OffsetNotFound):
        open_on(disk, truncate_at=refusal.position).message_at(refusal.position)
