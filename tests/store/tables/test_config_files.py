"""The tables under `config/`: what a crash, a flipped bit, RocketMQ or a careless hand may do to them."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.clock import ManualClock
from pyromq.errors import CorruptFile, IllegalOffset, WrongShape
from pyromq.files.disk import OsDisk
from pyromq.files.json_checks import CHECKSUM
from pyromq.files.json_file import JsonFile, Source
from pyromq.model.data_version import DataVersion
from pyromq.model.group import GroupConfig
from pyromq.model.json_form import from_json, to_json
from pyromq.model.topic import Permission, TopicConfig
from pyromq.store.tables.config_files import GroupTable, TopicTable
from pyromq.store.tables.offset_files import ConsumerOffsets, DelayOffsets
from pyromq.testing import PowerCut, SimDisk

CONFIG = Path("/store/config")
FILE = CONFIG / "table.json"
PREVIOUS = CONFIG / "table.json.bak"
DAMAGED = CONFIG / "table.json.damaged"
OFFSETS = CONFIG / "consumerOffset.json"

OLD, NEW = {"n": 1}, {"n": 2}

NAMES = st.text(min_size=1).filter(lambda name: "@" not in name)
COUNTS = st.integers(0, 2**31 - 1)
BIG_COUNTS = st.integers(0, 2**63 - 1)
ATTRIBUTES = st.dictionaries(st.text(), st.text(), max_size=3)
UNKNOWN = st.dictionaries(st.text().map(lambda name: f"x{name}"), st.integers(-9, 9) | st.lists(st.text()), max_size=3)
TOPICS = st.builds(
    TopicConfig,
    NAMES,
    COUNTS,
    COUNTS,
    permission=st.integers(0, 7),
    order=st.booleans(),
    attributes=ATTRIBUTES,
    unknown=UNKNOWN,
)
GROUPS = st.builds(
    GroupConfig,
    NAMES,
    consume_enabled=st.booleans(),
    max_retries=st.integers(-1, 99),
    subscriptions=st.none() | st.just(({"topic": "t", "expression": "*"},)),
    attributes=ATTRIBUTES,
    unknown=UNKNOWN,
)


def saved(*values: dict[str, object]) -> SimDisk:
    """A disk on which these were saved, one after the other."""
    disk = SimDisk()
    for value in values:
        JsonFile(disk, FILE).save(value)
    return disk


def load(disk: SimDisk) -> tuple[dict[str, object], Source] | None:
    loaded = JsonFile(disk, FILE).load()
    return None if loaded is None else (loaded.value, loaded.source)


def consumer_offsets(disk: SimDisk) -> ConsumerOffsets:
    table = ConsumerOffsets(disk, CONFIG, ManualClock())
    table.load()
    return table


def planted(text: str | bytes) -> SimDisk:
    """A disk with a consumerOffset.json, and nothing else."""
    disk = SimDisk()
    disk.plant(OFFSETS, text.encode() if isinstance(text, str) else text)
    return disk


# -- one file and its previous copy ----------------------------------------------------------------


def test_a_new_store_has_nothing_to_load() -> None:
    assert load(SimDisk()) is None


def test_a_saved_value_is_loaded_and_the_one_before_is_kept() -> None:
    disk = saved({"n": 0}, OLD, NEW)
    assert load(disk) == (NEW, Source.CURRENT)
    assert json.loads(disk.read_bytes(PREVIOUS))["n"] == 1


def test_it_works_on_a_real_disk(tmp_path: Path) -> None:
    file = JsonFile(OsDisk(tmp_path / "staging"), tmp_path / "config" / "table.json")
    file.save(OLD)
    file.save(NEW)
    file.path.write_bytes(b"")
    loaded = file.load()
    assert loaded is not None
    assert loaded.value == OLD
    assert sorted(path.name for path in file.path.parent.iterdir()) == ["table.json", "table.json.bak"]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (b"", "it is empty"),
        (bytes(100), "only zero bytes"),
        (b'{"n":', "line 1"),
        (b"[" * 200_000, "depth"),
        (b"[1]", "an object expected"),
        (b"null", "an object expected"),
        (b'{"pyromqCrc":1,"n":2}', "checksum"),
        (b'{"pyromqCrc":null,"n":2}', "checksum"),
    ],
)
def test_a_damaged_file_falls_back_with_a_warning(
    damage: bytes, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk = saved(OLD, NEW)
    disk.plant(FILE, damage)
    assert load(disk) == (OLD, Source.PREVIOUS)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("pyromq.store", logging.WARNING)
    for part in (str(FILE), problem, "went on with table.json.bak"):
        assert part in record.getMessage()


def test_a_missing_file_falls_back_too(caplog: pytest.LogCaptureFixture) -> None:
    """RocketMQ renames the file to `.bak` and then writes a new one: it may have stopped in between."""
    disk = saved(OLD, NEW)
    disk.remove(FILE)
    assert load(disk) == (OLD, Source.PREVIOUS)
    assert "it is missing" in caplog.text


def test_damage_right_after_the_first_save_is_survived() -> None:
    disk = saved(OLD)
    disk.plant(FILE, b"")
    assert load(disk) == (OLD, Source.PREVIOUS)


@pytest.mark.parametrize("previous", [None, b"", b"[]", bytes(10)])
@pytest.mark.parametrize("current", [None, b"", b"{", bytes(10)])
def test_two_bad_copies_are_an_error_and_stay_as_they_are(current: bytes | None, previous: bytes | None) -> None:
    if current is None and previous is None:
        return  # a new store
    disk = SimDisk()
    for path, data in ((FILE, current), (PREVIOUS, previous)):
        if data is not None:
            disk.plant(path, data)
    before = disk.files()
    with pytest.raises(CorruptFile, match=r"table\.json cannot be used: .* Put back either file"):
        load(disk)
    assert disk.files() == before


def test_a_disk_that_cannot_read_the_file_is_damage_but_a_missing_right_is_not() -> None:
    disk = saved(OLD, NEW)
    read = disk.read_bytes

    def fail_with(number: int) -> None:
        def read_bytes(path: Path) -> bytes:
            if path == FILE:
                raise OSError(number, "no")
            return read(path)

        disk.read_bytes = read_bytes  # type: ignore[method-assign]

    fail_with(errno.EIO)
    assert load(disk) == (OLD, Source.PREVIOUS)
    fail_with(errno.EACCES)
    with pytest.raises(PermissionError):
        load(disk)


def test_saving_over_a_damaged_file_keeps_the_good_copy_and_the_damaged_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = saved(OLD, NEW)
    disk.plant(FILE, b'{"n": 2, edited by hand')
    JsonFile(disk, FILE).save({"n": 3})
    assert load(disk) == ({"n": 3}, Source.CURRENT)
    assert json.loads(disk.read_bytes(PREVIOUS))["n"] == 1
    assert disk.read_bytes(DAMAGED) == b'{"n": 2, edited by hand'
    assert "kept as table.json.damaged" in caplog.text


def test_a_file_of_the_wrong_shape_does_not_replace_the_good_copy() -> None:
    def has_n(value: dict[str, object]) -> None:
        if "n" not in value:
            raise WrongShape("n is missing")

    disk = saved(OLD, NEW)
    disk.plant(FILE, b"{}")
    file = JsonFile(disk, FILE, has_n)
    assert file.load() is not None
    file.save({"n": 3})
    assert json.loads(disk.read_bytes(PREVIOUS))["n"] == 1


def test_a_value_of_the_wrong_shape_is_not_written() -> None:
    disk = saved(OLD)
    before = disk.files()
    with pytest.raises(WrongShape):
        ConsumerOffsets(disk, CONFIG, ManualClock())._file.save({})
    assert disk.files() == before


def crashes_in_save(disk: SimDisk, value: dict[str, object]) -> Iterator[SimDisk]:
    """The disk after a power cut at each step of this save, some ways each; last, after it returned."""
    for stop_at in range(100):
        trial = disk.copy()
        steps = iter(range(stop_at + 1))

        def cut(operation: str, path: Path, steps: Iterator[int] = steps) -> None:
            if next(steps, None) is None:
                raise PowerCut

        trial.on_operation = cut
        try:
            JsonFile(trial, FILE).save(value)
        except PowerCut:
            yield from (trial.crash(random.Random(seed)) for seed in range(10))
        else:
            yield trial.crash(random.Random(0))
            return


def test_a_power_cut_in_the_first_save_leaves_a_new_store_or_the_value() -> None:
    for disk in crashes_in_save(SimDisk(), NEW):
        loaded = load(disk)
        assert loaded is None or loaded[0] == NEW


@pytest.mark.parametrize("damage", [None, b"", b"{", bytes(600)])
def test_a_power_cut_in_a_save_leaves_the_old_or_the_new_value(damage: bytes | None) -> None:
    start = saved({"n": 0}, OLD)
    if damage is not None:
        start.plant(FILE, damage)
    good = {0, 2} if damage is not None else {1, 2}
    states = [load(disk) for disk in crashes_in_save(start, NEW)]
    assert {state and state[0]["n"] for state in states} == good
    assert states[-1] == (NEW, Source.CURRENT)


def test_a_power_cut_may_come_again_and_again() -> None:
    """Saves of 1, 2, 3 … each cut somewhere: the loaded value is never older than the last completed save."""
    rng = random.Random(7)
    disk, completed = saved({"n": 0}), 0
    for n in range(1, 150):
        countdown = iter(range(rng.randrange(8)))

        def cut(operation: str, path: Path, countdown: Iterator[int] = countdown) -> None:
            if next(countdown, None) is None:
                raise PowerCut

        disk.on_operation = cut
        try:
            JsonFile(disk, FILE).save({"n": n})
            completed = n
        except PowerCut:
            pass
        disk = disk.crash(rng)
        loaded = load(disk)
        assert loaded is not None
        assert completed <= loaded[0]["n"] <= n  # type: ignore[operator]
        completed = loaded[0]["n"]  # type: ignore[assignment]


def test_a_full_disk_leaves_the_old_value() -> None:
    disk = saved(OLD)
    disk.full = True
    with pytest.raises(OSError, match=r"[Ss]pace"):
        JsonFile(disk, FILE).save(NEW)
    assert load(disk) == (OLD, Source.CURRENT)


# -- the checksum ----------------------------------------------------------------------------------


def offsets_on_disk(*counts: int) -> SimDisk:
    """A consumerOffset.json saved with these offsets, one after the other."""
    disk = SimDisk()
    table = consumer_offsets(disk)
    for count in counts:
        for queue in range(2):
            table.commit("billing", "orders", queue, count + queue)
            table.commit("billing", "%RETRY%billing", queue, count + queue)
        table.save()
    return disk


def all_offsets(table: ConsumerOffsets) -> dict[str, dict[int, int]]:
    return {topic: dict(table.offsets_of("billing", topic)) for topic in ("orders", "%RETRY%billing")}


def test_no_flipped_bit_changes_an_offset_silently(caplog: pytest.LogCaptureFixture) -> None:
    disk = offsets_on_disk(1000, 2000)
    older, newer = all_offsets(consumer_offsets(offsets_on_disk(1000))), all_offsets(consumer_offsets(disk))
    data = disk.read_bytes(OFFSETS)
    fallbacks = 0
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        disk.plant(OFFSETS, bytes(flipped))
        caplog.clear()
        found = all_offsets(consumer_offsets(disk))
        if found != newer:
            assert found == older
            assert "consumerOffset.json cannot be used" in caplog.text
            fallbacks += 1
    assert fallbacks > len(data)


def test_no_file_cut_short_is_taken_for_a_smaller_table() -> None:
    disk = offsets_on_disk(1000)
    data = disk.read_bytes(OFFSETS)
    disk.remove(OFFSETS.with_name("consumerOffset.json.bak"))
    for length in range(len(data.rstrip())):
        disk.plant(OFFSETS, data[:length])
        with pytest.raises(CorruptFile):
            consumer_offsets(disk)


def test_with_both_copies_flipped_nothing_is_invented() -> None:
    rng = random.Random(3)
    allowed = [all_offsets(consumer_offsets(offsets_on_disk(count))) for count in (1000, 2000)]
    for _ in range(500):
        disk = offsets_on_disk(1000, 2000)
        for path in (OFFSETS, OFFSETS.with_name("consumerOffset.json.bak")):
            disk.flip_bits(path, rng)
        with contextlib.suppress(CorruptFile):
            assert all_offsets(consumer_offsets(disk)) in allowed


def test_other_white_space_is_no_damage() -> None:
    disk = saved(NEW)
    disk.plant(FILE, json.dumps(json.loads(disk.read_bytes(FILE)), indent=7, sort_keys=True).encode())
    assert load(disk) == (NEW, Source.CURRENT)


def test_a_change_by_hand_counts_once_the_checksum_line_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    disk = saved(OLD, NEW)
    edited = disk.read_bytes(FILE).replace(b'"n": 2', b'"n": 20')
    disk.plant(FILE, edited)
    assert load(disk) == (OLD, Source.PREVIOUS)
    assert f'"{CHECKSUM}" line must go' in caplog.text
    disk.plant(FILE, b"".join(line for line in edited.splitlines(True) if CHECKSUM.encode() not in line))
    assert load(disk) == ({"n": 20}, Source.CURRENT)


def test_a_file_that_rocketmq_wrote_has_no_checksum_and_gets_one() -> None:
    disk = planted('{"offsetTable":{"orders@billing":{0:12}}}')
    table = consumer_offsets(disk)
    table.commit("billing", "orders", 0, 13)
    table.save()
    assert next(iter(json.loads(disk.read_bytes(OFFSETS)))) == CHECKSUM


# -- consumer offsets ------------------------------------------------------------------------------

WRITTEN_BY_ROCKETMQ = """{
\t"dataVersion":{
\t\t"counter":3,
\t\t"stateVersion":1,
\t\t"timestamp":1700000000000
\t},
\t"groupTopicMap":{
\t\t"billing":["orders","%RETRY%billing"]
\t},
\t"offsetTable":{
\t\t"%RETRY%billing@billing":{0:5
\t\t},
\t\t"orders@billing":{0:12,1:9223372036854775807
\t\t},
\t\t"orders@%SYS%x":{}
\t},
\t"pullOffsetTable":{}
}"""


def test_what_rocketmq_wrote_is_read() -> None:
    table = consumer_offsets(planted(WRITTEN_BY_ROCKETMQ))
    assert table.offsets_of("billing", "orders") == {0: 12, 1: 2**63 - 1}
    assert table.offset_of("billing", "%RETRY%billing", 0) == 5
    assert table.topics_of("billing") == {"orders", "%RETRY%billing"}
    assert table.groups_of("orders") == {"billing", "%SYS%x"}
    assert table.version == DataVersion(timestamp_ms=1700000000000, counter=3, state_version=1)


def test_what_we_write_has_rocketmqs_fields() -> None:
    disk = planted(WRITTEN_BY_ROCKETMQ)
    table = consumer_offsets(disk)
    table.commit("billing", "orders", 0, 13)
    table.save()
    document = json.loads(disk.read_bytes(OFFSETS))
    assert document["offsetTable"] == {
        "%RETRY%billing@billing": {"0": 5},
        "orders@billing": {"0": 13, "1": 2**63 - 1},
        "orders@%SYS%x": {},
    }
    assert document["dataVersion"]["counter"] == 4
    assert document["pullOffsetTable"] == {}
    assert "groupTopicMap" not in document  # derived: RocketMQ makes it again


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"dataVersion":{"counter":1}}',
        '{"offsetTable":null}',
        '{"offsetTable":[]}',
        '{"offsetTable":{"t@g":[1]}}',
        '{"offsetTable":{"t@g":null}}',
        '{"offsetTable":{"t@g":{"0":-1}}}',
        '{"offsetTable":{"t@g":{"0":"7"}}}',
        '{"offsetTable":{"t@g":{"0":7.0}}}',
        '{"offsetTable":{"t@g":{"0":true}}}',
        '{"offsetTable":{"t@g":{"0":null}}}',
        '{"offsetTable":{"t@g":{"0":NaN}}}',
        '{"offsetTable":{"t@g":{"0":9223372036854775808}}}',
        '{"offsetTable":{"t@g":{"0":1e400}}}',
        '{"offsetTable":{"t@g":{-1:7}}}',
        '{"offsetTable":{"t@g":{"00":7}}}',
        '{"offsetTable":{"t@g":{"٣":7}}}',
        '{"offsetTable":{"t@g":{"4294967296":7}}}',
        '{"offsetTable":{"t@g":{"' + "9" * 5000 + '":7}}}',
        '{"offsetTable":{},"dataVersion":7}',
        '{"offsetTable":{},"dataVersion":{"counter":"7"}}',
    ],
)
def test_a_wrong_shape_is_damage(text: str) -> None:
    with pytest.raises(CorruptFile):
        consumer_offsets(planted(text))


def test_a_commit_moves_forward_only_and_a_reset_anywhere() -> None:
    table = consumer_offsets(SimDisk())
    assert table.offset_of("billing", "orders", 0) is None
    assert table.commit("billing", "orders", 0, 0)
    assert table.commit("billing", "orders", 0, 10)
    assert not table.commit("billing", "orders", 0, 10)
    assert not table.commit("billing", "orders", 0, 4)
    assert table.offset_of("billing", "orders", 0) == 10
    table.reset("billing", "orders", 0, 4)
    assert table.offset_of("billing", "orders", 0) == 4


def test_loading_moves_no_offset_back() -> None:
    disk = offsets_on_disk(1000)
    table = ConsumerOffsets(disk, CONFIG, ManualClock())
    table.commit("billing", "orders", 0, 1500)
    table.load()
    assert table.offsets_of("billing", "orders") == {0: 1500, 1: 1001}
    assert table.save()


def test_only_changes_are_saved() -> None:
    disk = offsets_on_disk(1000)
    table = consumer_offsets(disk)
    before = disk.files()
    table.commit("billing", "orders", 0, 1)
    assert not table.save()
    assert disk.files() == before
    table.reset("billing", "orders", 0, 1)
    assert table.save()
    assert not table.save()


def test_a_failed_save_is_tried_again() -> None:
    disk = offsets_on_disk(1000)
    table = consumer_offsets(disk)
    table.commit("billing", "orders", 0, 1500)
    disk.fail_next_sync()
    with pytest.raises(OSError, match="error"):
        table.save()
    assert table.save()
    assert consumer_offsets(disk).offset_of("billing", "orders", 0) == 1500


def test_after_a_fallback_the_next_save_repairs_the_file() -> None:
    disk = offsets_on_disk(1000, 2000)
    disk.plant(OFFSETS, b"")
    assert consumer_offsets(disk).save()
    table = ConsumerOffsets(disk, CONFIG, ManualClock())
    assert table.load() is Source.CURRENT
    assert table.offset_of("billing", "orders", 0) == 1000


def test_a_table_that_was_not_loaded_cannot_be_saved() -> None:
    disk = planted(b"")
    table = ConsumerOffsets(disk, CONFIG, ManualClock())
    with pytest.raises(CorruptFile):
        table.load()
    table.commit("billing", "orders", 0, 1)
    with pytest.raises(AssertionError, match="loaded first"):
        table.save()


@pytest.mark.parametrize(
    ("group", "topic", "queue", "offset"),
    [
        ("bil@ling", "orders", 0, 1),
        ("billing", "or@ders", 0, 1),
        ("", "orders", 0, 1),
        ("billing", "", 0, 1),
        ("billing", "\ud800", 0, 1),
        ("billing", "orders", -1, 1),
        ("billing", "orders", 2**31, 1),
        ("billing", "orders", 0, -1),
        ("billing", "orders", 0, 2**63),
    ],
)
def test_what_no_file_could_hold_is_refused_at_once(group: str, topic: str, queue: int, offset: int) -> None:
    """Were it taken, every later save would fail, or two pairs of names would share one offset."""
    table = consumer_offsets(SimDisk())
    for change in (table.commit, table.reset):
        with pytest.raises(IllegalOffset):
            change(group, topic, queue, offset)
    assert not table.save()


def test_keys_that_are_no_topic_and_group_stay_in_the_file() -> None:
    odd = {"a@b@c": {"0": 1}, "alone": {"1": 2}, "@g": {"0": 3}, "t@": {"0": 4}, "": {"0": 5}}
    disk = planted(json.dumps({"offsetTable": {**odd, "t@g": {"0": 6}}}))
    table = consumer_offsets(disk)
    assert table.topics_of("g") == {"t"}
    assert table.offset_of("b@c", "a", 0) is None
    table.commit("g", "t", 0, 7)
    table.save()
    assert json.loads(disk.read_bytes(OFFSETS))["offsetTable"] == {**odd, "t@g": {"0": 7}}


def test_a_group_or_a_topic_can_be_forgotten() -> None:
    disk = SimDisk()
    table = consumer_offsets(disk)
    for group, topic in (("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")):
        table.commit(group, topic, 0, 1)
    table.forget_group("a")
    table.forget_topic("y")
    table.save()
    table = consumer_offsets(disk)
    assert (table.topics_of("a"), table.topics_of("b")) == (set(), {"x"})
    table.forget_group("nobody")
    assert not table.save()


@given(st.dictionaries(st.tuples(NAMES, NAMES), st.dictionaries(COUNTS, BIG_COUNTS, min_size=1)))
def test_any_offsets_come_back(tables: dict[tuple[str, str], dict[int, int]]) -> None:
    disk = SimDisk()
    table = consumer_offsets(disk)
    for (group, topic), offsets in tables.items():
        for queue, offset in offsets.items():
            table.commit(group, topic, queue, offset)
    assert table.save() == bool(tables)
    again = consumer_offsets(disk)
    for (group, topic), offsets in tables.items():
        assert again.offsets_of(group, topic) == offsets


@settings(deadline=None)
@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_give_a_table_or_corrupt_file(current: bytes, previous: bytes) -> None:
    disk = planted(current)
    disk.plant(OFFSETS.with_name("consumerOffset.json.bak"), previous)
    with pytest.raises(CorruptFile):
        consumer_offsets(disk)


# -- topics and groups -----------------------------------------------------------------------------


def topic_table(disk: SimDisk) -> TopicTable:
    table = TopicTable(disk, CONFIG, ManualClock())
    table.load()
    return table


def group_table(disk: SimDisk) -> GroupTable:
    table = GroupTable(disk, CONFIG, ManualClock())
    table.load()
    return table


def test_a_topic_is_put_changed_and_removed() -> None:
    disk = SimDisk()
    table = topic_table(disk)
    assert table.put(TopicConfig("orders"))
    assert not table.put(TopicConfig("orders"))
    assert table.put(replace(TopicConfig("orders"), permission=int(Permission.READ)))
    assert table.version.counter == 2
    table.save()
    again = topic_table(disk)
    assert [topic.name for topic in again] == ["orders"]
    topic = again.get("orders")
    assert topic is not None
    assert (topic.readable, topic.writable) == (True, False)
    assert again.version.counter == 2
    assert again.remove("orders")
    assert not again.remove("orders")
    again.save()
    assert len(topic_table(disk)) == 0
    assert "orders" not in topic_table(disk)


@given(st.lists(TOPICS, unique_by=lambda topic: topic.name, max_size=4))
def test_any_topics_come_back(topics: list[TopicConfig]) -> None:
    disk = SimDisk()
    table = topic_table(disk)
    for topic in topics:
        table.put(topic)
    table.save()
    assert list(topic_table(disk)) == topics


@given(st.lists(GROUPS, unique_by=lambda group: group.name, max_size=4))
def test_any_groups_come_back(groups: list[GroupConfig]) -> None:
    disk = SimDisk()
    table = group_table(disk)
    for group in groups:
        table.put(group)
    table.save()
    assert list(group_table(disk)) == groups


def test_the_fields_of_a_newer_rocketmq_survive_a_change() -> None:
    disk = SimDisk()
    path = CONFIG / "topics.json"
    document = {
        "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 5, "epoch": 9},
        "future": {"a": [1, None, 2.5]},
        "topicConfigTable": {"orders": {"topicName": "orders", "liteTopic": {"ttl": 3}, "perm": 6}},
    }
    disk.plant(path, json.dumps(document).encode())
    table = topic_table(disk)
    topic = table.get("orders")
    assert topic is not None
    table.put(replace(topic, read_queues=4))
    table.save()
    after = json.loads(disk.read_bytes(path))
    assert after["future"] == document["future"]
    assert after["dataVersion"]["epoch"] == 9
    assert after["topicConfigTable"]["orders"]["liteTopic"] == {"ttl": 3}
    assert after["topicConfigTable"]["orders"]["readQueueNums"] == 4


@pytest.mark.parametrize(
    "entry",
    [
        '{"topicName":"another"}',
        '{"readQueueNums":-1}',
        '{"readQueueNums":"8"}',
        '{"order":1}',
        '{"perm":true}',
        '{"attributes":{"a":1}}',
        "[]",
        "null",
    ],
)
def test_a_topic_of_the_wrong_shape_is_damage(entry: str) -> None:
    disk = SimDisk()
    disk.plant(CONFIG / "topics.json", b'{"topicConfigTable":{"orders":%s}}' % entry.encode())
    with pytest.raises(CorruptFile, match="orders"):
        topic_table(disk)


def test_a_topic_that_no_file_could_hold_is_refused_at_once() -> None:
    table = topic_table(SimDisk())
    for topic in (TopicConfig(""), TopicConfig("\ud800"), TopicConfig("t", read_queues=-1)):
        with pytest.raises(WrongShape):
            table.put(topic)
    assert not table.save()


def test_an_absent_or_null_field_has_rocketmqs_default() -> None:
    form = {"groupName": "billing", "retryMaxTimes": None}
    assert from_json(GroupConfig, form) == GroupConfig("billing")
    assert to_json(GroupConfig("billing")) == {
        "groupName": "billing",
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeBroadcastEnable": True,
        "consumeMessageOrderly": False,
        "retryQueueNums": 1,
        "retryMaxTimes": 16,
        "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
        "notifyConsumerIdsChangedEnable": True,
        "groupSysFlag": 0,
        "consumeTimeoutMinute": 15,
        "attributes": {},
    }
    with pytest.raises(WrongShape, match="topicName is missing"):
        from_json(TopicConfig, {})


def test_what_groups_are_forbidden_is_kept_until_the_group_goes() -> None:
    disk = SimDisk()
    forbidden = {"billing": {"orders": 4}, "audit": {"orders": 2}}
    group = {"groupName": "billing", "consumeEnable": False}
    document = {"forbiddenTable": forbidden, "subscriptionGroupTable": {"billing": group}}
    disk.plant(CONFIG / "subscriptionGroup.json", json.dumps(document).encode())
    table = group_table(disk)
    table.put(GroupConfig("new"))
    table.save()
    assert group_table(disk).forbidden == forbidden
    table.remove("billing")
    table.save()
    assert group_table(disk).forbidden == {"audit": {"orders": 2}}


def test_a_forbidden_table_that_is_no_object_is_damage() -> None:
    disk = SimDisk()
    disk.plant(CONFIG / "subscriptionGroup.json", b'{"forbiddenTable":7,"subscriptionGroupTable":{}}')
    with pytest.raises(CorruptFile, match="forbiddenTable"):
        group_table(disk)


# -- delay offsets ---------------------------------------------------------------------------------


def test_delay_offsets_as_rocketmq_writes_them() -> None:
    disk = SimDisk()
    disk.plant(CONFIG / "delayOffset.json", b'{\n\t"offsetTable":{1:5,18:9\n\t}\n}')
    table = DelayOffsets(disk, CONFIG, ManualClock())
    table.load()
    assert [table.offset_of(level) for level in (1, 2, 18)] == [5, None, 9]
    assert table.commit(1, 6)
    assert not table.commit(1, 3)
    table.reset(18, 2)
    table.save()
    again = DelayOffsets(disk, CONFIG, ManualClock())
    again.load()
    assert [again.offset_of(level) for level in (1, 18)] == [6, 2]
    with pytest.raises(IllegalOffset):
        table.commit(1, -1)


# --- another broker's table ------------------------------------------------------------------------------------------


def test_another_brokers_table_is_adopted_with_its_version() -> None:
    mine, theirs = topic_table(SimDisk()), topic_table(SimDisk())
    mine.put(TopicConfig("gone", 1, 1))
    for queues in (1, 4):
        theirs.put(TopicConfig("orders", queues, queues))
    document = {"dataVersion": to_json(theirs.version), "topicConfigTable": {"orders": to_json(theirs.get("orders"))}}
    assert mine.adopt(document)
    assert ([topic.name for topic in mine], mine.version) == (["orders"], theirs.version)
    assert not mine.adopt(document)
    assert mine.save()


def test_an_empty_table_or_a_broken_one_is_not_adopted() -> None:
    mine = topic_table(SimDisk())
    mine.put(TopicConfig("orders", 4, 4))
    assert not mine.adopt({"dataVersion": to_json(DataVersion(9, 9)), "topicConfigTable": {}})
    with pytest.raises(WrongShape):
        mine.adopt({"dataVersion": to_json(DataVersion(9, 9))})
    with pytest.raises(WrongShape):
        mine.adopt({"dataVersion": to_json(DataVersion(9, 9)), "topicConfigTable": {"orders": 7}})
    assert "orders" in mine


def test_delay_offsets_that_are_adopted_may_go_back() -> None:
    delays = DelayOffsets(SimDisk(), CONFIG, ManualClock())
    delays.load()
    delays.commit(3, 10)
    delays.commit(5, 1)
    assert delays.adopt({"offsetTable": {"3": 4}})
    assert (delays.offset_of(3), delays.offset_of(5)) == (4, None)


def test_places_of_another_brokers_progress() -> None:
    document = {"offsetTable": {"orders@shop": {"0": 7, "2": 1}, "no pair": {"0": 1}}}
    assert ConsumerOffsets.places_in(document) == {("orders", "shop"): {0: 7, 2: 1}}
    with pytest.raises(WrongShape):
        ConsumerOffsets.places_in({"offsetTable": {"orders@shop": {"0": -7}}})


def test_one_place_can_be_forgotten() -> None:
    offsets = ConsumerOffsets(SimDisk(), CONFIG, ManualClock())
    offsets.load()
    offsets.commit("shop", "orders", 0, 7)
    offsets.commit("shop", "orders", 1, 8)
    offsets.forget("shop", "orders", 0)
    assert offsets.all() == {("orders", "shop"): {1: 8}}
    offsets.forget("shop", "orders", 1)
    offsets.forget("shop", "nothing", 1)
    assert offsets.all() == {}
