"""All queues of a store: found by their directories, made when they are needed."""

from __future__ import annotations

import asyncio

import pytest

from pyromq.errors import IllegalMessage
from pyromq.store.queues.queue_table import QueueTable, is_safe_topic
from pyromq.testing import SimDisk
from store.support import ROOT, open_store, order, read_all

QUEUES = ROOT / "consumequeue"
NOTHING = bytes(20 * 50)


def table(disk: SimDisk) -> QueueTable:
    queues = QueueTable(disk, QUEUES, 50)
    queues.load()
    return queues


@pytest.mark.parametrize("topic", [b"orders", b"%RETRY%g", b"...", "заказы".encode(), b"\xff", b"x" * 255])
def test_most_names_are_safe(topic: bytes) -> None:
    assert is_safe_topic(topic)


@pytest.mark.parametrize("topic", [b"", b".", b"..", b"a/b", b"/etc", b"a\0", b"x" * 256])
def test_some_names_are_not(topic: bytes) -> None:
    assert not is_safe_topic(topic)
    with pytest.raises(IllegalMessage, match="cannot be the name of a directory"):
        table(SimDisk()).get_or_create(topic, 0)


def test_a_queue_is_made_once_and_has_no_file_before_its_first_message() -> None:
    disk = SimDisk()
    queues = table(disk)
    assert queues.get(b"orders", 3) is None
    queue = queues.get_or_create(b"orders", 3)
    assert queues.get_or_create(b"orders", 3) is queues.get(b"orders", 3) is queue
    assert queues.get(b"orders", -1) is None
    assert str(queue.id) == "orders/3"
    assert disk.files() == {}
    assert queues.cursors[b"orders\0\0\0\3"] is queue.cursor


def test_queues_are_found_by_their_directories_and_strays_are_not() -> None:
    disk = SimDisk()
    for name in ("orders/0", "orders/12", "заказы/0", "orders/x", "orders/-1", "orders/99999999999", "orders/²"):
        disk.plant(QUEUES / name / "00000000000000000000", NOTHING)
    disk.plant(QUEUES / "a file", b"not a directory")
    queues = table(disk)
    assert sorted(str(queue.id) for queue in queues) == ["orders/0", "orders/12", "заказы/0"]
    assert queues.topics() == ["orders", "заказы"]
    assert [queue.id.number for queue in queues.of_topic(b"orders")] == [0, 12]
    assert len(queues) == 3


def test_a_topic_that_is_removed_leaves_no_files_and_begins_again() -> None:
    store = open_store()
    store.append([order("a"), order("b", topic="other")])
    store.dispatch()
    asyncio.run(store.remove_topic("orders"))
    assert store.disk.names(QUEUES) == ["other"]
    assert store.queues.topics() == ["other"]
    assert store.append([order("c")])[0].queue_offset == 0
    store.dispatch()
    assert read_all(store) == [b"c"]
    assert read_all(store, "other") == [b"b"]


def test_a_topic_that_was_removed_does_not_come_back_after_a_crash() -> None:
    disk = SimDisk()
    store = open_store(disk)
    store.append([order("a"), order("b", topic="other")])
    store.dispatch()
    store.flush()
    store.save_recover_point()
    asyncio.run(store.remove_topic("orders"))
    assert open_store(disk.kill()).queues.topics() == ["other"]
