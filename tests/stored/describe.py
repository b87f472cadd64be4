"""The content of a store directory as JSON: every message, every key of the index, every saved table."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from pyromq.broker.failover.leadership import LeadershipFile
from pyromq.broker.idempotence.producer_file import WritersFile, snapshot_to_json
from pyromq.broker.state.request_modes import RequestModeTable
from pyromq.clock import ManualClock
from pyromq.config import RetentionConfig, StoreConfig
from pyromq.model.json_form import to_json
from pyromq.model.message import StoredMessage
from pyromq.records import record
from pyromq.store.durability.checkpoint import CheckpointFile
from pyromq.store.message_store import MessageStore
from pyromq.store.tables.config_files import GroupTable, TopicTable
from pyromq.store.tables.offset_files import ConsumerOffsets, DelayOffsets
from pyromq.wire.bodies.assignment import request_modes_to_json

#: The sizes that the stores were written with; a store is opened with its own sizes only.
SIZES: dict[str, Any] = {
    "segment_bytes": 1 << 16, "queue_file_entries": 50, "index_slots": 32, "index_entries": 64,
    "delay_levels": "1s 5s 2h",
}  # fmt: skip


def config_of(root: Path) -> StoreConfig:
    return StoreConfig(root=root, **SIZES, retention=RetentionConfig(refuse_at=1.0, resume_below=0.99))


def describe(root: Path, now_ms: int) -> dict[str, Any]:
    """Open the store, read everything and close it."""
    store = MessageStore(config_of(root), clock=ManualClock(now_ms))
    report = store.open()
    try:
        store.dispatch()
        messages = {f"{queue.id.topic}/{queue.id.number}": _messages(store, queue) for queue in store.queues}
        checkpoint = CheckpointFile(store.disk, store.paths.checkpoint).load()
        content = {
            "clean": report.clean,
            "log": [report.log_start, report.log_end],
            "log_sha256": hashlib.sha256(_log_bytes(root, report.log_start, report.log_end)).hexdigest(),
            "checkpoint": [checkpoint.log_ms, checkpoint.queue_ms, checkpoint.index_ms],
            "queues": {name: [_message(one) for one in found] for name, found in sorted(messages.items())},
            "keys": _keys(store, [one for found in messages.values() for one in found]),
            "tables": _tables(store),
        }
    finally:
        store.close()
    return content


def _messages(store: MessageStore, queue: Any) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    offset = queue.min_offset
    while offset < queue.max_offset:
        views = store.read(queue.id.topic, queue.id.number, offset, max_messages=32).records
        assert views, f"{queue.id} has no message at {offset}"
        found += map(record.decode, views)
        offset += len(views)
    return found


def _message(one: StoredMessage) -> list[Any]:
    return [
        *(one.queue_offset, one.position, one.size, hashlib.sha256(one.body).hexdigest()[:16], one.properties),
        *(one.user_flag, one.storage_flags, one.born_timestamp_ms, one.store_timestamp_ms),
        *(one.born_host.hex(), one.store_host.hex(), one.reconsume_times, one.prepared_position),
    ]


def _keys(store: MessageStore, messages: list[StoredMessage]) -> dict[str, list[int]]:
    wanted = {(one.topic, key) for one in messages for key in (*one.keys, one.unique_key) if key}
    return {
        f"{topic}/{key}": sorted(record.decode(view).position for view in store.query(topic, key))
        for topic, key in sorted(wanted)
    }


def _tables(store: MessageStore) -> dict[str, Any]:
    place = (store.disk, store.paths.config, store.clock)
    topics, groups = TopicTable(*place), GroupTable(*place)
    offsets, delays = ConsumerOffsets(*place), DelayOffsets(*place)
    modes = RequestModeTable(store.disk, store.paths.config)
    for table in (topics, groups, offsets, delays, modes):
        table.load()
    writers = WritersFile(store.disk, store.paths.config).load()
    return {
        "topics": {one.name: to_json(one) for one in sorted(topics, key=lambda one: one.name)},
        "groups": {one.name: to_json(one) for one in sorted(groups, key=lambda one: one.name)},
        "offsets": {
            f"{topic}@{group}": {str(queue): offset for queue, offset in sorted(by_queue.items())}
            for (topic, group), by_queue in sorted(offsets.all().items())
        },
        "delays": {str(level): delays.offset_of(level) for level in range(1, 4)},
        "request_modes": request_modes_to_json(modes.all()),
        "writers": None if writers is None else snapshot_to_json(writers),
        "leadership": LeadershipFile(store.disk, store.paths.config, lambda: "").load().to_json(),
    }


def _log_bytes(root: Path, start: int, end: int) -> bytes:
    """The log as it is in the files, read without the store's code."""
    files = sorted((root / "commitlog").glob("[0-9]*"))
    return b"".join(file.read_bytes() for file in files)[: end - start]
