"""The part of a store that may be read without its broker: the durable part, and nothing more."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pyromq.clock import ManualClock
from pyromq.errors import CorruptLog, StoreError
from pyromq.files.disk import OsDisk
from pyromq.records import record
from pyromq.store.durability.checkpoint import Checkpoint, CheckpointFile
from pyromq.store.log.segmented_file import SegmentedFile
from pyromq.store.message_store import MessageStore
from pyromq.store.offline import readable_log as readable
from pyromq.store.offline.readable_log import LogFile, readable_log
from store.small_store import fill, make_store, open_store, small_config


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_store(tmp_path / "store")
    return tmp_path / "store"


def segments(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def test_all_of_a_store_that_was_closed(root: Path) -> None:
    log = readable_log(root)
    store = open_store(root)
    assert (log.start, log.end, log.live) == (0, store.log.end, False)
    store.close()
    assert [each.path for each in log.segments] == segments(root)
    assert log.segment_bytes == 32768
    assert log.find(40_000) == LogFile(segments(root)[1], 32768, 32768)
    assert log.find(log.segments[-1].end) is None


def test_of_a_store_in_use_what_its_broker_has_noted_as_durable(root: Path) -> None:
    before = readable_log(root).end
    store = open_store(root)
    fill(store, 20)
    assert readable_log(root).live
    assert readable_log(root).end == before
    store.flush()
    store.save_recover_point()
    assert readable_log(root).end == store.log.end
    assert readable_log(root, is_mine=True).live is False
    store.close()


def killed(root: Path, tail: bytes = b"") -> tuple[Path, int]:
    """A copy as a crash leaves it, with bytes behind its end; where the log ended."""
    store = open_store(root)
    fill(store, 20)
    store.flush()
    copy = Path(shutil.copytree(root, root.with_name("killed")))
    end = store.log.end
    store.close()
    path = segments(copy)[-1]
    data = bytearray(path.read_bytes())
    data[end - int(path.name) : end - int(path.name) + len(tail)] = tail
    path.write_bytes(data)
    return copy, end


def test_of_a_store_that_was_killed_what_its_next_start_keeps(root: Path) -> None:
    copy, end = killed(root, b"torn" * 20)
    assert readable_log(copy).end == end
    with MessageStore(small_config(copy)) as store:
        assert store.log.end == end


def test_a_log_that_ends_below_what_was_synced_is_refused(root: Path) -> None:
    """As far as a start looks: a reader verifies the rest."""
    segments(root)[-1].unlink()
    with pytest.raises(CorruptLog, match="no torn tail"):
        readable_log(root)
    with pytest.raises(CorruptLog, match="no torn tail"):
        MessageStore(small_config(root)).open()


def test_a_gap_is_refused_with_a_way_out(root: Path) -> None:
    segments(root)[1].unlink()
    with pytest.raises(StoreError, match="no file holds the bytes"):
        readable_log(root)


def test_a_beginning_that_retention_removed(root: Path) -> None:
    segments(root)[0].unlink()
    log = readable_log(root)
    assert log.start == 32768
    assert len(log.segments) == len(segments(root))


def test_files_made_ahead_are_not_of_the_log(root: Path) -> None:
    before = readable_log(root)
    last = int(segments(root)[-1].name)
    with (root / "commitlog" / f"{last + 32768:020d}").open("wb") as file:
        file.truncate(32768)
    assert readable_log(root) == before


def test_a_store_without_a_message(tmp_path: Path) -> None:
    open_store(tmp_path / "store").close()
    log = readable_log(tmp_path / "store")
    assert (log.start, log.end, log.segments) == (0, 0, ())
    with pytest.raises(StoreError, match="no directory"):
        readable_log(tmp_path / "nothing")


def test_of_a_store_in_use_by_rocketmq_what_is_older_than_its_checkpoint(tmp_path: Path) -> None:
    """It notes no position, but the time of the last durable record, with a margin of seconds."""
    root, clock = tmp_path / "store", ManualClock()
    store = open_store(root, clock=clock)
    positions: list[tuple[int, int]] = []
    for _ in range(120):
        positions.append((clock.now_ms(), store.log.end))
        fill(store, 2)
    (root / "recoverpoint").unlink()
    for noted_ms, _ in positions[10::17]:
        checkpoint = CheckpointFile(OsDisk(root / "staging"), root / "checkpoint")
        checkpoint.save(Checkpoint(noted_ms, noted_ms, 0))
        checkpoint.close()
        end = readable_log(root).end
        before = [position for at_ms, position in positions if at_ms <= noted_ms - 3000]
        after = [position for at_ms, position in positions if at_ms > noted_ms]
        assert before[-1] <= end <= after[0]
    store.close()


def note(root: Path, log_ms: int) -> None:
    """As RocketMQ does it."""
    checkpoint = CheckpointFile(OsDisk(root / "staging"), root / "checkpoint")
    checkpoint.save(Checkpoint(log_ms, log_ms, 0))
    checkpoint.close()


def test_of_our_store_that_rocketmq_took_over_what_its_checkpoint_says(root: Path) -> None:
    """It leaves our recover point as it was, so that this says less and less."""
    closed = readable_log(root).end
    clock = ManualClock()
    clock.advance(3600)
    store = open_store(root, clock=clock)
    fill(store, 100)
    assert readable_log(root).end == closed, "our broker has not noted it"
    half_ms = clock.now_ms() - 30_000
    note(root, half_ms)
    assert closed < readable_log(root).end < store.log.end
    note(root, clock.now_ms() + 10_000)
    assert readable_log(root).end == store.log.end
    note(root, 1)
    assert readable_log(root).end == closed
    store.close()


@pytest.mark.parametrize("look_bytes", [1, 100, 300, 5000, 1 << 20])
def test_how_many_bytes_are_passed_at_once_changes_nothing(
    root: Path, look_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readable, "LOOK_BYTES", look_bytes)
    files = SegmentedFile(OsDisk(root / "staging"), root / "commitlog", 32768, writable=False)
    files.load()
    first_ms = record.stored_at_ms(files.segments[0].buffer, 0, 32768)
    assert first_ms is not None
    ends = [readable.end_by_time(files, first_ms + ms) for ms in range(0, 250_000, 10_000)]
    assert ends == sorted(ends)
    assert (ends[0], len(set(ends)), ends[-1]) == (0, 23, readable_log(root).end)
    files.close()
