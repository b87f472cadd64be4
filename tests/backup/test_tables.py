"""A restored store is of one moment: no table speaks of messages that its log does not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from backup.memory_target import MemoryTarget
from pyromq.backup.making import back_up
from pyromq.backup.manifest import SavedFile, sha256_of
from pyromq.backup.planning import Until
from pyromq.backup.restoring import RestoreReport, restore
from pyromq.backup.tables import CONSUMERS, DELAYS, NO_WRITERS, TAKEN, WRITERS, fitted
from pyromq.clock import ManualClock
from pyromq.files.disk import OsDisk
from pyromq.model.names import HALF_DONE_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC, TRANSACTION_GROUP
from pyromq.store.message_store import MessageStore
from pyromq.store.tables.log_history import FIELD, Entry, LogHistory, to_json
from pyromq.store.tables.offset_files import ConsumerOffsets, DelayOffsets
from store.small_store import fill, open_store, small_config

ENDS = {("orders", 0): 5, (SCHEDULE_TOPIC, 2): 3, (HALF_TOPIC, 0): 9, (HALF_DONE_TOPIC, 0): 7}


def history(*entries: Entry) -> Any:
    return to_json(LogHistory(entries))


def tables_of(root: Path) -> tuple[ConsumerOffsets, DelayOffsets]:
    place = (OsDisk(root / "staging"), root / "config", ManualClock())
    tables = ConsumerOffsets(*place), DelayOffsets(*place)
    for table in tables:
        table.load()
    return tables


def consumed(root: Path) -> dict[int, int]:
    """Of the group `shop`, by queue."""
    return dict(tables_of(root)[0].offsets_of("shop", "orders"))


def queue_ends(root: Path) -> dict[int, int]:
    with MessageStore(small_config(root)) as store:
        return {queue: store.max_offset("orders", queue) for queue in range(3)}


def run(root: Path, target: MemoryTarget) -> dict[int, int]:
    """Some more messages, a group that has read them all, and a backup of that."""
    store = open_store(root)
    fill(store, 60)
    store.close()
    offsets, delays = tables_of(root)
    ends = queue_ends(root)
    for queue, end in ends.items():
        offsets.commit("shop", "orders", queue, end)
    offsets.save()
    delays.commit(1, (delays.offset_of(1) or 0) + 4, log_end=restored_end(root))
    delays.save()
    back_up(root, target)
    return ends


def restored_end(root: Path) -> int:
    with MessageStore(small_config(root)) as store:
        return store.log.end


# --- whole restores --------------------------------------------------------------------------------------------------


def test_a_log_that_is_cut_has_the_progress_of_the_run_before(root: Path, tmp_path: Path) -> None:
    target, again = MemoryTarget(), tmp_path / "restored"
    first = run(root, target)
    end = restored_end(root)
    assert run(root, target) != first
    report = restore(target, again, until=Until(position=end + 2000))
    assert report.end > end
    assert consumed(again) == first
    assert (report.progress.number, report.manifest.number) == (1, 2)
    assert any("manifest 1" in sentence for sentence in report.sentences())


def test_without_a_run_before_the_progress_is_clamped_to_the_log(root: Path, tmp_path: Path) -> None:
    target, again = MemoryTarget(), tmp_path / "restored"
    run(root, target)
    report: RestoreReport = restore(target, again, until=Until(position=restored_end(root) // 2))
    assert consumed(again) == queue_ends(again)
    assert set(report.clamped) == {"consumerOffset.json", "delayOffset.json"}
    assert tables_of(again)[1].offset_of(1) is None, "nothing shows that their deliveries are in the log"
    assert any("set back" in sentence for sentence in report.sentences())
    previous = orjson.loads((again / "config" / "consumerOffset.json.bak").read_bytes())
    assert previous == orjson.loads((again / "config" / "consumerOffset.json").read_bytes())


def test_a_log_that_was_saved_up_to_where_slaves_are_has_no_progress_beyond(root: Path, tmp_path: Path) -> None:
    """The tables of a running sync master are from beyond the replicated position."""
    target, again = MemoryTarget(), tmp_path / "restored"
    ahead = orjson.dumps({"offsetTable": {"orders@shop": {"0": 10_000, "7": 3}}})
    (root / "config" / "consumerOffset.json").write_bytes(ahead)
    back_up(root, target)
    ends = queue_ends(root)
    restore(target, again)
    assert consumed(again) == {0: ends[0], 7: 0}


def test_tables_that_fit_are_put_back_byte_by_byte(root: Path, tmp_path: Path) -> None:
    target = MemoryTarget()
    run(root, target)
    report = restore(target, tmp_path / "restored")
    assert report.clamped == ()
    for name in (CONSUMERS, DELAYS):
        assert (tmp_path / "restored" / name).read_bytes() == (root / name).read_bytes()
    assert all(isinstance(saved, SavedFile) and saved.sha256 == sha256_of((root / saved.name).read_bytes())
               for saved in report.manifest.files)  # fmt: skip


# --- one table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [CONSUMERS, TAKEN])
def test_groups_are_clamped_to_the_ends_of_queues(name: str) -> None:
    document = {"offsetTable": {"orders@shop": {"0": 9, "1": 2}, "orders@lab": {"0": 4}, "no pair": {"0": 9}}}
    found = fitted(name, document, 100, ENDS, is_later=False)
    assert found == {"offsetTable": {"orders@shop": {"0": 5, "1": 0}, "orders@lab": {"0": 4}, "no pair": {"0": 9}}}


HALF, DONE = f"{HALF_TOPIC}@{TRANSACTION_GROUP}", f"{HALF_DONE_TOPIC}@{TRANSACTION_GROUP}"
OLD, NEW = Entry(100, {HALF_TOPIC: 4, HALF_DONE_TOPIC: 3}), Entry(200, {HALF_TOPIC: 8, HALF_DONE_TOPIC: 6})


@pytest.mark.parametrize(("log_end", "positions"), [(99, None), (199, (4, 3)), (200, (8, 6))])
def test_transactions_are_as_far_as_the_log_has_their_ends(log_end: int, positions: tuple[int, int] | None) -> None:
    document = {"offsetTable": {HALF: {"0": 8}, DONE: {"0": 6}}, FIELD: history(OLD, NEW)}
    table = fitted(CONSUMERS, document, log_end, ENDS, is_later=True)["offsetTable"]
    assert table == ({} if positions is None else {HALF: {"0": positions[0]}, DONE: {"0": positions[1]}})


def test_transactions_that_rocketmq_tells_of_are_read_again_unless_the_log_has_everything() -> None:
    document = {"offsetTable": {HALF: {"0": 8}, DONE: {"0": 6}}}
    assert fitted(CONSUMERS, document, 100, ENDS, is_later=True) == {"offsetTable": {}}
    assert fitted(CONSUMERS, document, 100, ENDS, is_later=False) == document


@pytest.mark.parametrize(
    ("log_end", "entries", "is_later", "table"),
    [
        (200, (Entry(100, {"3": 1}), Entry(200, {"3": 2})), True, {"3": 2}),
        (199, (Entry(100, {"3": 1}), Entry(200, {"3": 2})), True, {"3": 1}),
        (99, (Entry(100, {"3": 1}), Entry(200, {"3": 2})), True, {}),
        (200, (), True, {}),
        (200, (), False, {"3": 2}),
        (200, (Entry(100, {"3": 9}),), False, {"3": 3}),
    ],
)
def test_delays_are_as_far_as_the_log_has_what_was_delivered(
    log_end: int, entries: tuple[Entry, ...], is_later: bool, table: dict[str, int]
) -> None:
    newest = entries[-1].offsets if entries else {"3": 2}
    document = {"offsetTable": dict(newest), **({FIELD: history(*entries)} if entries else {})}
    assert fitted(DELAYS, document, log_end, ENDS, is_later=is_later)["offsetTable"] == table


def test_writers_beyond_the_log_are_found_in_it() -> None:
    document = {"position": 200, "writers": [["orders", 0, "w", 1, [[1, 2, 150]]]]}
    assert fitted(WRITERS, document, 200, ENDS, is_later=False) == document
    assert fitted(WRITERS, document, 199, ENDS, is_later=False) == NO_WRITERS
