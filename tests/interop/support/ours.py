"""A store of ours with one of everything in it, and what a store holds in the words of the Referee.

`python -m interop.support.ours ROOT FIRST` appends messages FIRST, FIRST + 1, … until it is killed, and says after
each step how many there are: a writer that dies in the middle of its work.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import random
import socket
import struct
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from interop.support.apache import Line
from pyromq.clock import Clock, ManualClock, SystemClock
from pyromq.config import FlushConfig, RetentionConfig, StoreConfig
from pyromq.model.message import Draft, StoredMessage
from pyromq.model.topic import TopicConfig
from pyromq.records import layout
from pyromq.records.batch import encode_batch, split_batch
from pyromq.records.message_id import encode_message_id
from pyromq.records.properties import encode_properties
from pyromq.records.record import decode, spans_of
from pyromq.store.key_index import ENTRY, HEADER
from pyromq.store.message_store import MessageStore
from pyromq.store.tables.config_files import TopicTable

SEGMENT_BYTES = 1 << 20
QUEUE_FILE_ENTRIES = 100
INDEX_SLOTS = 500
INDEX_ENTRIES = 2000

#: The same file lengths in Apache's words.
SAME_FILES = {
    "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
    "mappedFileSizeConsumeQueue": str(QUEUE_FILE_ENTRIES * 20),
    "maxHashSlotNum": str(INDEX_SLOTS),
    "maxIndexNum": str(INDEX_ENTRIES),
}

QUEUES = 4
PLAIN = "Orders"


def _long(prefix: str, size: int) -> str:
    return (prefix + "a-group_with-a-long-name-" * 20)[:size]


#: The longest name with its length in one byte, and the shortest and the longest with it in two. Apache takes
#: names above 127 only for retry and dead-letter topics.
LONGEST_V1 = _long("L", 127)
SHORTEST_V2 = _long("%RETRY%", 128)
LONGEST_V2 = _long("%DLQ%", 255)
TOPICS = (PLAIN, LONGEST_V1, SHORTEST_V2, LONGEST_V2)
BATCHED = "Batched"

#: The topic of our delayed messages that Apache delivers: it writes those records, one of them with a long name.
DELAYED = "Delayed"
DELAYED_V2 = _long("%RETRY%delayed-", 200)
SCHEDULE = layout.SCHEDULE_TOPIC.decode()
DUE_LEVEL = 3  # 10 s
LATER_LEVEL = 18  # 2 h
DELAYED_EACH = 5

TAGS = (None, "plain", "größe", "🚀", "a||b")


def config(root: Path) -> StoreConfig:
    return StoreConfig(
        root=root,
        segment_bytes=SEGMENT_BYTES,
        queue_file_entries=QUEUE_FILE_ENTRIES,
        index_slots=INDEX_SLOTS,
        index_entries=INDEX_ENTRIES,
        prefault_bytes=0,
        # A writer that is killed after a second must have moved its recover point before.
        flush=FlushConfig(interval_ms=50, recover_point_interval_ms=150),
        # A nearly full disk must not fail these tests.
        retention=RetentionConfig(refuse_at=1.0, resume_below=0.99, max_age_hours=87600),
    )


# --- Messages ------------------------------------------------------------------------------------------------------


def host(address: str, port: int) -> bytes:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.inet_pton(family, address) + struct.pack(">i", port)


def number_of(message: StoredMessage) -> int:
    return int(message.properties["number"])


def draft(number: int) -> Draft:
    """Message `number` of the run: any two of its features meet in some message."""
    flags, body = _flags_and_body(number)
    topic = PLAIN if number % 2 else TOPICS[number // 2 % len(TOPICS)]
    return Draft(
        topic=topic.encode(),
        queue_id=number // 5 % QUEUES,
        body=body,
        properties=_properties(number),
        user_flag=(number, -number, 0)[number % 3],
        storage_flags=flags,
        born_timestamp_ms=1_700_000_000_000 + number,
        born_host=host("2001:db8::1", 4000 + number % 100) if number % 5 == 1 else host("10.1.2.3", 5000),
        store_host=host("fe80::1:2", 10911) if number % 11 == 1 else host("192.0.2.7", 10911),
        reconsume_times=number % 3,
        prepared_position=number % 2 * 12345,
    )


def _flags_and_body(number: int) -> tuple[int, bytes]:
    source = random.Random(number)
    flags = 0
    if number % 10 == 3:
        text = f"☕ {number} ".encode() * source.randrange(1, 2000)
        # Either way to say zlib: the compression bits empty, as old clients leave them, or its number.
        return layout.FLAG_COMPRESSED | (number % 20 == 3) * (3 << 8), zlib.compress(text)
    if number % 13 == 0:
        flags = layout.FLAG_COMMITTED
    elif number % 97 in (5, 6):
        flags = layout.FLAG_PREPARED if number % 97 == 5 else layout.FLAG_ROLLED_BACK
    size = source.randrange(1500)
    if number % 25 == 0:
        size = (number * 7919) % (100 * 1024 + 1)
    elif number % 25 == 1:
        size = 0
    return flags, source.randbytes(size)


def _properties(number: int) -> bytes:
    properties = {"number": str(number), "grüße": f"☕ und 🚀 {number}", "a": "=;:\x01"}
    tag = TAGS[number % len(TAGS)]
    if tag is not None:
        properties["TAGS"] = tag
    if number % 4:
        properties["KEYS"] = f"order-{number}  🔑{number % 40} größe"
    if number % 7:
        properties["UNIQ_KEY"] = f"{number:032X}"
    encoded = encode_properties(properties)
    return encoded[:-1] if number % 3 == 0 else encoded  # the last separator may be missing


def delayed_drafts() -> Iterator[Draft]:
    """As a broker stores messages that are delivered later; those of one level are due when they are an hour old."""
    for number in range(DELAYED_EACH):
        for level, target in ((DUE_LEVEL, DELAYED), (DUE_LEVEL, DELAYED_V2), (LATER_LEVEL, DELAYED)):
            properties = {
                "number": str(number),
                "TAGS": "größe",
                "UNIQ_KEY": f"{level:02X}{len(target):02X}{number:028X}",
                "DELAY": str(level),
                "REAL_TOPIC": target,
                "REAL_QID": str(number % QUEUES),
            }
            yield Draft(SCHEDULE.encode(), level - 1, f"later {number}".encode(), encode_properties(properties))


BATCH_BODIES = [b"one", b"", "drei ☕".encode()]


def batch_drafts() -> Iterator[Draft]:
    """Return the records a broker appends for a batch that a client sent."""
    properties = [encode_properties({"number": str(at), "UNIQ_KEY": f"BA{at:030X}"}) for at in range(len(BATCH_BODIES))]
    messages = list(zip(itertools.count(7), BATCH_BODIES, properties, strict=False))
    template = Draft(BATCHED.encode(), 1, encode_batch(messages), born_timestamp_ms=1_700_000_000_000)
    return split_batch(template, 1 << 20)


# --- Stores --------------------------------------------------------------------------------------------------------


def declare_topics(root: Path) -> None:
    store = MessageStore(config(root))
    store.disk.make_dir(store.paths.config)
    topics = TopicTable(store.disk, store.paths.config, SystemClock())
    topics.load()
    for name in (*TOPICS, BATCHED, DELAYED, DELAYED_V2):
        topics.put(TopicConfig(name, read_queues=QUEUES, write_queues=QUEUES))
    topics.save()
    store.close()


def write(root: Path, numbers: Sequence[int]) -> None:
    """All of them, the delayed ones and the batch, over twenty seconds of an hour ago; then a clean stop."""
    clock = ManualClock(int((time.time() - 3600) * 1000))
    with MessageStore(config(root), clock=clock) as store:
        store.append(list(delayed_drafts()))
        store.append(list(batch_drafts()))
        append(store, numbers, clock)
    declare_topics(root)


def append(store: MessageStore, numbers: Sequence[int], clock: Clock | None = None) -> None:
    for start in range(0, len(numbers), 5):
        if isinstance(clock, ManualClock):
            clock.advance(0.05)
        store.append([draft(number) for number in numbers[start : start + 5]])


def records(store: MessageStore) -> Iterator[tuple[memoryview, StoredMessage]]:
    """Every record, in the order of the log, found without queues or index."""
    for segment in store.log.files.segments:
        at = 0
        limit = min(segment.size, store.log.end - segment.base)
        while at < limit and layout.BLANK.unpack_from(segment.buffer, at)[1] != layout.MAGIC_BLANK:
            spans = spans_of(segment.buffer, at, limit)
            assert not isinstance(spans, str), spans
            data = segment.buffer[at : at + spans.total_size]
            yield data, decode(data)
            at += spans.total_size


def in_queues(messages: Iterable[StoredMessage]) -> dict[str, list[StoredMessage]]:
    """By topic, in the order of a dump. Asserts that queue offsets have no gaps."""
    topics: dict[str, list[StoredMessage]] = defaultdict(list)
    for message in messages:
        if layout.has_queue_offset(message.storage_flags):
            topics[message.topic].append(message)
    for found in topics.values():
        found.sort(key=lambda message: (message.queue_id, message.queue_offset))
        for number, queue in itertools.groupby(found, lambda message: message.queue_id):
            offsets = [message.queue_offset for message in queue]
            assert offsets == list(range(len(offsets))), (found[0].topic, number)
    return topics


def line(message: StoredMessage) -> Line:
    """Return the Referee's form of a message."""
    flags, body = message.storage_flags, message.body
    if flags & layout.FLAG_COMPRESSED and body:
        flags, body = flags & ~layout.FLAG_COMPRESSED, zlib.decompress(body)  # the client does both
    offset_id = encode_message_id(message.store_host, message.position)
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "position": message.position,
        "storeSize": message.size,
        "tags": message.tags,
        "keys": message.properties.get("KEYS"),
        "bodyBase64": base64.b64encode(body).decode(),
        "bodyCRC": message.body_crc,
        "flag": message.user_flag,
        "sysFlag": flags,
        "bornTimestamp": message.born_timestamp_ms,
        "storeTimestamp": message.store_timestamp_ms,
        "bornHost": _java_address(message.born_host),
        "storeHost": _java_address(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_position,
        "msgId": message.unique_key or offset_id,
        "offsetMsgId": offset_id,
        "properties": message.properties,
    }


def _java_address(packed: bytes) -> str:
    address, (port,) = packed[:-4], struct.unpack(">i", packed[-4:])
    if len(address) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, address)}:{port}"
    return ":".join(f"{part:x}" for part in struct.unpack(">8H", address)) + f":{port}"


def queue_files(root: Path) -> dict[str, bytes]:
    """The entries of every consume queue, without the room behind them."""
    queues: dict[str, bytes] = {}
    for directory in sorted((root / "consumequeue").glob("*/*")):
        data = b"".join(file.read_bytes() for file in sorted(directory.iterdir()))
        assert {file.stat().st_size for file in directory.iterdir()} <= {QUEUE_FILE_ENTRIES * 20}
        entries = len(data) // 20
        while entries and not any(data[entries * 20 - 20 : entries * 20]):
            entries -= 1
        if entries:
            queues[str(directory.relative_to(root))] = data[: entries * 20]
    return queues


def index_entries(root: Path) -> set[tuple[int, int]]:
    """(hash, position) of everything in the key index."""
    found: set[tuple[int, int]] = set()
    for file in sorted((root / "index").iterdir()):
        data = file.read_bytes()
        count = HEADER.unpack_from(data)[5]
        start = HEADER.size + 4 * INDEX_SLOTS
        found.update(ENTRY.unpack_from(data, start + ENTRY.size * number)[:2] for number in range(1, count))
    return found


def log_bytes(root: Path, end: int) -> bytes:
    files = sorted((root / "commitlog").iterdir())
    assert [int(file.name) for file in files] == [SEGMENT_BYTES * at for at in range(len(files))]
    return b"".join(file.read_bytes() for file in files)[:end]


# --- The writer that is killed -------------------------------------------------------------------------------------


async def write_until_killed(root: Path, first: int) -> None:
    store = MessageStore(config(root))
    async with store.running():
        if first == 0:
            store.append(list(delayed_drafts()))
        for number in range(first, first + 50_000, 5):
            store.append([draft(one) for one in range(number, number + 5)])
            print(number + 5, flush=True)
            await asyncio.sleep(0.001)


if __name__ == "__main__":
    asyncio.run(write_until_killed(Path(sys.argv[1]), int(sys.argv[2])))
