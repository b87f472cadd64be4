"""A store of a few hundred messages that has everything: several segments, queues, delays, transactions, keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pyromq.clock import Clock, ManualClock
from pyromq.config import StoreConfig
from pyromq.files.disk import Disk
from pyromq.model.message import Draft
from pyromq.model.topic import TopicConfig
from pyromq.records import layout
from pyromq.records.properties import encode_properties
from pyromq.store.message_store import InlineRunner, MessageStore
from pyromq.store.tables.config_files import TopicTable

MESSAGES = 300


def small_config(root: Path) -> StoreConfig:
    return StoreConfig(
        root=root, segment_bytes=32 * 1024, queue_file_entries=50, index_slots=97, index_entries=250, recovery_threads=2
    )


def drafts(count: int = MESSAGES) -> Iterator[Draft]:
    for number in range(count):
        delayed = number % 10 == 0
        properties = {"UNIQ_KEY": f"ID{number:06}", "KEYS": f"order-{number} user-{number % 7}"}
        properties |= {"DELAY": str(number // 10 % 5 + 1)} if delayed else {"TAGS": "TagÄ" if number % 4 else "TagA"}
        yield Draft(
            layout.SCHEDULE_TOPIC if delayed else b"orders",
            number // 10 % 5 if delayed else number % 3,
            bytes([number % 251]) * (number % 200),
            encode_properties(properties),
            storage_flags=layout.FLAG_PREPARED if number % 30 == 7 else 0,
        )


def open_store(root: Path, disk: Disk | None = None, clock: Clock | None = None) -> MessageStore:
    store = MessageStore(small_config(root), disk=disk, clock=clock or ManualClock(), runner=InlineRunner())
    store.open()
    return store


def fill(store: MessageStore, count: int = MESSAGES) -> None:
    clock = store.clock
    for draft in drafts(count):
        store.append([draft])
        if isinstance(clock, ManualClock):
            clock.advance(0.7)
    store.dispatch()


def make_store(root: Path, disk: Disk | None = None) -> StoreConfig:
    """Filled, with a table of topics, and closed cleanly."""
    store = open_store(root, disk)
    fill(store)
    for queues in (1, 2):
        topics = TopicTable(store.disk, store.paths.config, store.clock)
        topics.load()
        topics.put(TopicConfig("orders", 3, queues))
        topics.save()
    store.close()
    return store.config


# --- damage, and where it goes ---------------------------------------------------------------------------------------


def flip(path: Path, byte: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1 << bit
    path.write_bytes(data)


def segments(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def record_starts(path: Path) -> list[int]:
    data, at, starts = path.read_bytes(), 0, []
    while at < len(data):
        size, magic = layout.BLANK.unpack_from(data, at)
        if magic not in (layout.MAGIC_V1, layout.MAGIC_V2):
            break
        starts.append(at)
        at += size
    return starts
