"""Changes of a large table: in small files on top of the whole one, over restarts, crashes and damage."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyromq.clock import ManualClock
from pyromq.errors import CorruptFile
from pyromq.model.group import GroupConfig
from pyromq.model.topic import TopicConfig
from pyromq.store.tables import config_changes
from pyromq.store.tables.config_files import GroupTable, TopicTable
from pyromq.testing import SimDisk

CONFIG = Path("/store/config")
FIRST = CONFIG / "topics.changes.000000.json"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_changes, "FROM_ENTRIES", 10)
    monkeypatch.setattr(config_changes, "PER_FILE", 4)


def loaded(disk: SimDisk) -> TopicTable:
    table = TopicTable(disk, CONFIG, ManualClock())
    table.load()
    return table


def large(disk: SimDisk, count: int = 40) -> TopicTable:
    table = loaded(disk)
    for number in range(count):
        table.put(TopicConfig(f"t{number}", 4, 4))
    table.save()
    return table


def change_files(disk: SimDisk) -> list[str]:
    return [name for name in disk.names(CONFIG) if ".changes." in name]


def same(one: TopicTable, other: TopicTable) -> bool:
    return (sorted(one, key=lambda topic: topic.name), one.version) == (
        sorted(other, key=lambda topic: topic.name),
        other.version,
    )


def test_a_change_of_a_large_table_does_not_write_the_whole_file() -> None:
    disk = SimDisk()
    table = large(disk)
    whole = disk.read_bytes(CONFIG / "topics.json")
    for number in range(6):
        table.put(TopicConfig(f"new{number}", 1, 1))
        assert table.save()
        assert same(loaded(disk), table)
    table.remove("t3")
    table.put(TopicConfig("t4", 8, 8))
    table.save()
    assert not table.save()
    assert disk.read_bytes(CONFIG / "topics.json") == whole
    assert len(change_files(disk)) == 2
    again = loaded(disk)
    assert same(again, table)
    assert again.get("t3") is None
    assert again.get("t4") == TopicConfig("t4", 8, 8)


def test_what_is_loaded_with_changes_is_changed_further() -> None:
    disk = SimDisk()
    large(disk).put(TopicConfig("lost", 1, 1))
    table = loaded(disk)
    table.put(TopicConfig("a", 1, 1))
    table.save()
    table = loaded(disk)
    table.put(TopicConfig("b", 1, 1))
    table.save()
    again = loaded(disk)
    assert same(again, table)
    assert [name for name in ("lost", "a", "b") if name in again] == ["a", "b"]


def test_a_small_table_is_written_as_a_whole() -> None:
    disk = SimDisk()
    table = large(disk, 5)
    table.put(TopicConfig("new", 1, 1))
    table.save()
    assert change_files(disk) == []


def test_many_changes_become_a_whole_file_again() -> None:
    disk = SimDisk()
    table = large(disk)
    most = 0
    for number in range(100):
        table.put(TopicConfig(f"new{number}", 1, 1))
        table.save()
        most = max(most, len(change_files(disk)))
    assert 4 <= most <= 20
    assert same(loaded(disk), table)


def test_a_clean_stop_leaves_one_whole_file() -> None:
    disk = SimDisk()
    table = large(disk)
    table.put(TopicConfig("new", 1, 1))
    table.save()
    table.keep_whole()
    assert table.save()
    assert change_files(disk) == []
    assert b'"new"' in disk.read_bytes(CONFIG / "topics.json")
    assert same(loaded(disk), table)
    table.keep_whole()
    assert not table.save()


def test_changes_of_an_older_whole_file_do_not_count() -> None:
    """A crash came after the whole file was written, and before the changes were removed."""
    disk = SimDisk()
    table = large(disk)
    table.put(TopicConfig("new", 1, 1))
    table.save()
    stale = disk.read_bytes(FIRST)
    table.remove("new")
    table.keep_whole()
    table.save()
    disk.replace_bytes(FIRST, stale)
    again = loaded(disk)
    assert same(again, table)
    assert "new" not in again
    again.put(TopicConfig("other", 1, 1))
    again.save()
    assert same(loaded(disk), again)
    assert change_files(disk) == []


def test_changes_count_on_top_of_the_previous_copy_too() -> None:
    disk = SimDisk()
    table = large(disk)
    table.put(TopicConfig("new", 1, 1))
    table.save()
    disk.plant(CONFIG / "topics.json", b"damaged")
    again = loaded(disk)
    assert "new" in again
    again.save()
    assert change_files(disk) == []
    assert same(loaded(disk), again)


def test_damaged_changes_are_refused() -> None:
    disk = SimDisk()
    table = large(disk)
    table.put(TopicConfig("new", 1, 1))
    table.save()
    disk.plant(FIRST, disk.read_bytes(FIRST).replace(b"new", b"nev"))
    with pytest.raises(CorruptFile, match=r"changes\.000000\.json cannot be used"):
        loaded(disk)


def test_what_is_no_change_of_one_entry_writes_the_whole_file() -> None:
    disk = SimDisk()
    table = GroupTable(disk, CONFIG, ManualClock())
    table.load()
    for number in range(40):
        table.put(GroupConfig(f"g{number}"))
    table.save()
    table.put(GroupConfig("new"))
    table.save()
    assert change_files(disk) == ["subscriptionGroup.changes.000000.json"]
    table.forbid("g1", "orders", 3)
    table.save()
    assert change_files(disk) == []
    table.remove("g1")
    table.save()
    again = GroupTable(disk, CONFIG, ManualClock())
    again.load()
    assert (again.forbidden, again.version) == ({}, table.version)


def test_a_disk_that_does_not_take_a_change_gets_the_whole_file(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    table = large(disk)

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    table.put(TopicConfig("new", 1, 1))
    with monkeypatch.context() as patch:
        patch.setattr(disk, "replace_bytes", full)
        with pytest.raises(OSError, match="No space"):
            table.save()
    assert table.save()
    assert same(loaded(disk), table)


class AnyOrder(RuleBasedStateMachine):
    """After any changes, saves and kills: saved values are there, and no others."""

    @initialize()
    def begin(self) -> None:
        self.disk = SimDisk()
        self.table = large(self.disk)
        self.saved = dict(self.state())

    def state(self) -> dict[str, TopicConfig]:
        return {topic.name: topic for topic in self.table}

    @rule(number=st.integers(0, 60), queues=st.integers(1, 3))
    def put(self, number: int, queues: int) -> None:
        self.table.put(TopicConfig(f"t{number}", queues, queues))

    @rule(number=st.integers(0, 60))
    def remove(self, number: int) -> None:
        self.table.remove(f"t{number}")

    @rule()
    def renew(self) -> None:
        self.table.renew()

    @rule()
    def save(self) -> None:
        self.table.save()
        self.saved = self.state()

    @rule()
    def stop(self) -> None:
        self.table.keep_whole()
        self.save()
        assert change_files(self.disk) == []

    @rule(seed=st.integers(0, 2**16))
    def cut_power(self, seed: int) -> None:
        self.disk = self.disk.crash(random.Random(seed))
        self.table = loaded(self.disk)

    @rule()
    def kill(self) -> None:
        self.table = loaded(self.disk)

    @invariant()
    def what_was_saved_is_there(self) -> None:
        assert {topic.name: topic for topic in loaded(self.disk)} == self.saved


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
