"""Apache RocketMQ is the referee of our formats: it serves the stores that we write, and we serve those that it writes.

Three directions: Apache reads ours, we read Apache's, and both take turns on one store; each after a clean stop and
after a kill. Every start of a broker takes seconds and a clean stop takes thirteen, so a test is a story.
"""

from __future__ import annotations

import base64
import bisect
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.support import ours
from interop.support.apache import ApacheCluster, ApacheFailed, Line, Referee, message
from interop.support.ours import BATCHED, DELAYED, DELAYED_V2, PLAIN, QUEUES, TOPICS, in_queues, line, records
from late import before
from pyromq.clock import SystemClock
from pyromq.errors import StoreLocked
from pyromq.model.message import Draft, StoredMessage
from pyromq.records import layout, record
from pyromq.records.java_hash import key_hash
from pyromq.records.properties import encode_properties
from pyromq.store.message_store import MessageStore
from pyromq.store.tables.config_files import TopicTable

try:
    from pyromq.records import _kernel
except ImportError:  # it was not built
    _kernel = None

pytestmark = pytest.mark.interop

COUNT = 2000
WITH_CRC = {"enabledAppendPropCRC": "true"}
#: Recovery reads every record's own CRC, and cuts the log at the first that is wrong or has none.
VERIFY = {**WITH_CRC, "forceVerifyPropCRC": "true", "checkCRCOnRecover": "true"}
#: By default Apache does not rebuild the part of the index that a crash cost it, neither ours nor its own.
INDEX_TOO = {"messageIndexSafe": "true"}
INDEX_TIMEOUT_S = 10


def cluster_over(root: Path, conf: dict[str, str] | None = None) -> ApacheCluster:
    return ApacheCluster(root, broker_conf={**ours.SAME_FILES, **(conf or {})})


# --- Comparison ----------------------------------------------------------------------------------------------------


def messages_in(root: Path) -> list[StoredMessage]:
    """Every record that our store finds in a copy of a directory, so that the directory stays as it is."""
    copy = root.with_name(f"{root.name}-seen")
    shutil.copytree(root, copy)
    with MessageStore(ours.config(copy)) as store:
        found = [one for _, one in records(store)]
        check_reading(store, found)
    shutil.rmtree(copy)
    return found


def check_reading(store: MessageStore, found: list[StoredMessage]) -> None:
    """Our queues, index and searches say what the log says."""
    store.dispatch()
    for topic, messages in in_queues(found).items():
        served: list[StoredMessage] = []
        for queue_id in range(max(one.queue_id for one in messages) + 1):
            offset = 0
            while (result := store.read(topic, queue_id, offset)).records:
                served += map(record.decode, result.records)
                offset = result.next_offset
        assert served == messages
    for one in found[::20]:
        assert record.decode(store.message_at(one.position)) == one


def check_served(referee: Referee, found: list[StoredMessage]) -> None:
    """Apache serves every message, each field as we read it."""
    topics = in_queues(found)
    for topic in sorted(topics.keys() - {ours.SCHEDULE}):
        dump = referee.dump(topic)
        assert dump.messages == [line(one) for one in topics[topic]]
        assert sum(dump.max_offsets.values()) == len(topics[topic])
        assert set(dump.min_offsets.values()) == {0}


def check_queries(referee: Referee, found: list[StoredMessage], *, after_kill: bool = False) -> None:
    """Apache finds a sample by id, by key and by unique key, and searches queues by time.

    After a kill it indexes again from the last message that its index has, and so that one twice.
    """
    topics = in_queues(found)
    for topic in TOPICS:
        for one in topics[topic][::7]:
            assert referee.by_id(topic, line(one)["offsetMsgId"]) == line(one)
        for one in topics[topic][3::19]:
            if one.unique_key:
                named = referee.by_unique_key(topic, one.unique_key)
                assert named == [line(one)] or (after_kill and named == [line(one)] * 2)
            for key in one.keys[:2]:  # not the last, which more messages have than one answer holds
                assert positions(referee.by_key(topic, key)) == with_key(found, topic, key)
        assert referee.by_key(topic, "no such key") == []
        for queue_id in range(QUEUES):
            queue = [one for one in topics[topic] if one.queue_id == queue_id]
            for ms in moments(queue):
                assert referee.by_time(topic, queue_id, ms) == first_at(queue, ms), (topic, queue_id, ms)


def positions(lines: list[Line]) -> list[int]:
    return sorted({one["position"] for one in lines})


def with_key(found: list[StoredMessage], topic: str, key: str) -> list[int]:
    """Halves of transactions too, unless they were rolled back: those are in no index."""
    return sorted(
        one.position
        for one in found
        if one.topic == topic
        and (key in one.keys or key == one.unique_key)
        and one.storage_flags & layout.FLAG_TRANSACTION_MASK != layout.FLAG_ROLLED_BACK
    )


def moments(queue: list[StoredMessage]) -> Iterator[int]:
    """Before, at and behind some messages of a queue."""
    for one in (*queue[::23], queue[-1]):
        yield from (one.store_timestamp_ms - 1, one.store_timestamp_ms, one.store_timestamp_ms + 1)


def first_at(queue: list[StoredMessage], ms: int) -> int:
    return bisect.bisect_left([one.store_timestamp_ms for one in queue], ms)


def check_drafts(found: list[StoredMessage], count: int) -> None:
    """Check that every message of a run exists once, with the content of its draft."""
    numbered = [one for one in found if one.topic in TOPICS]
    assert [ours.number_of(one) for one in numbered] == list(range(count))
    for one in numbered:
        wanted = ours.draft(ours.number_of(one))
        assert one.body == bytes(wanted.body)
        assert (one.topic.encode(), one.queue_id, one.user_flag) == (wanted.topic, wanted.queue_id, wanted.user_flag)
        assert (one.born_host, one.store_host) == (wanted.born_host, wanted.store_host)
        assert one.born_timestamp_ms == wanted.born_timestamp_ms
        assert record.storage_flags_of(wanted) == one.storage_flags


def tag_entries(found: list[StoredMessage]) -> set[tuple[int, int]]:
    """Apache also indexes each tag, under `topic#T#tag`; ours does not."""
    return {
        (key_hash(one.topic.encode(), b"T#" + one.tags.encode()), one.position)
        for one in found
        if one.tags and one.storage_flags & layout.FLAG_TRANSACTION_MASK != layout.FLAG_ROLLED_BACK
    }


def rebuilt(root: Path) -> Path:
    """Return a copy whose queues and index our store rebuilt from the log."""
    copy = root.with_name(f"{root.name}-rebuilt")
    shutil.copytree(root, copy)
    store = MessageStore(ours.config(copy))
    store.open(rebuild=True)
    store.close()
    return copy


def await_indexed(referee: Referee, topic: str, unique_key: str) -> None:
    """The index is filled after the queues are."""
    deadline = time.monotonic() + INDEX_TIMEOUT_S
    while not referee.by_unique_key(topic, unique_key):
        before(deadline, f"{topic} {unique_key} is not in Apache's index")
        time.sleep(0.02)


# --- Apache reads ours ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[StoredMessage]]:
    """A store of ours, stopped cleanly, and its content."""
    root = tmp_path_factory.mktemp("ours") / "store"
    ours.write(root, range(COUNT))
    found = messages_in(root)
    check_drafts(found, COUNT)
    assert len(list((root / "commitlog").iterdir())) > 3
    assert len(list((root / "index").iterdir())) > 2
    assert len(list((root / "consumequeue" / PLAIN / "0").iterdir())) > 2
    return root, found


def test_apache_serves_what_we_wrote(tmp_path: Path, written: tuple[Path, list[StoredMessage]]) -> None:
    root = tmp_path / "store"
    shutil.copytree(written[0], root)
    found = written[1]
    with cluster_over(root) as cluster:
        with cluster.referee() as referee:
            check_served(referee, found)
            check_queries(referee, found)
            check_batch_of_ours(referee)
            check_delayed(referee)
        with pytest.raises(StoreLocked) as locked:
            MessageStore(ours.config(root)).open()
        assert locked.value.pid
        cluster.kill()


def check_batch_of_ours(referee: Referee) -> None:
    dump = referee.dump(BATCHED)
    assert [one["queueOffset"] for one in dump.messages] == [0, 1, 2]
    assert [one["flag"] for one in dump.messages] == [7, 8, 9]
    assert [body_of(one) for one in dump.messages] == ours.BATCH_BODIES


def body_of(stored: Line) -> bytes:
    return base64.b64decode(stored["bodyBase64"])


def check_delayed(referee: Referee) -> None:
    """Apache delivers the messages that are due, and leaves the rest."""
    for topic in (DELAYED, DELAYED_V2):
        referee.settle(topic, ours.DELAYED_EACH)
        dump = referee.dump(topic)
        assert {body_of(one) for one in dump.messages} == {b"later %d" % at for at in range(ours.DELAYED_EACH)}
        assert {one["tags"] for one in dump.messages} == {"größe"}


def test_apache_finds_every_record_whole(tmp_path: Path, written: tuple[Path, list[StoredMessage]]) -> None:
    """With nothing but the log Apache recovers all of it, checking our CRCs, to the queues and keys that we have."""
    root = tmp_path / "store"
    shutil.copytree(written[0], root)
    found = written[1]
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    (root / "checkpoint").unlink()
    (root / "abort").touch()
    with cluster_over(root, VERIFY) as cluster:
        with cluster.referee() as referee:
            check_served(referee, found)
            check_queries(referee, found)
            check_delayed(referee)
        cluster.kill()
    theirs, mine = ours.queue_files(root), ours.queue_files(written[0])
    assert {name: theirs[name] for name in mine} == mine
    end = found[-1].position + found[-1].size
    theirs_indexed = {entry for entry in ours.index_entries(root) if entry[1] < end}
    assert theirs_indexed == ours.index_entries(written[0]) | tag_entries(found)


def test_apache_recovers_a_store_that_we_left_killed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    acknowledged = write_and_kill(root, 0, 1500)
    ours.declare_topics(root)
    assert (root / "abort").exists()
    found = messages_in(root)
    count = sum(one.topic in TOPICS for one in found)
    assert count >= acknowledged
    check_drafts(found, count)
    with cluster_over(root, VERIFY | INDEX_TOO) as cluster:
        with cluster.referee() as referee:
            check_served(referee, found)
            check_queries(referee, found, after_kill=True)
        cluster.kill()


def write_and_kill(root: Path, first: int, least: int) -> int:
    """Our writer in a process of its own, killed while it appends; how many messages it had said are there."""
    tests = str(Path(__file__).resolve().parents[1])
    writer = subprocess.Popen(
        [sys.executable, "-m", "interop.support.ours", str(root), str(first)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": tests},
        text=True,
    )
    assert writer.stdout is not None
    with writer, writer.stdout:
        try:
            for said in writer.stdout:
                if int(said) >= first + least:
                    break
        finally:
            writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split()
    return int(rest[-1] if rest else said)  # output read after the kill was printed before it


# --- We read Apache's ----------------------------------------------------------------------------------------------

THEIRS = ("Theirs", ours.LONGEST_V1)
LATER = "TheirsLater"
EACH = 300


def theirs(number: int) -> Line:
    """A message for the client to send; the client compresses those above 4 KiB, even without a gain."""
    source = random.Random(number)
    size = source.randrange(60_000) if number % 7 == 0 else source.randrange(1, 2000)
    is_delayed = number % 50 == 9
    return message(
        LATER if is_delayed else THEIRS[number % 2],
        number // 2 % QUEUES,
        source.randbytes(size) if number % 14 else b"tick " * size,
        tags=ours.TAGS[number % len(ours.TAGS)],
        keys=f"order-{number} 🔑{number % 40}" if number % 4 else None,
        properties={"number": str(number), "grüße": f"☕ und 🚀 {number}"},
        flag=(number, -number, None)[number % 3],
        delay_level=1 if is_delayed else None,
    )


class Answers:
    """Apache's answers about its own store, to compare with ours later."""

    def __init__(self, referee: Referee, sent: list[Line]) -> None:
        # Without the delayed messages: a broker that was killed delivers them again, at a time of its own.
        topics = (*THEIRS, BATCHED)
        self.dumps = {topic: referee.dump(topic) for topic in topics}
        self.by_key = {
            (topic, key): positions(referee.by_key(topic, key))
            for topic in THEIRS
            for key in ("🔑7", "🔑11", "order-13", "order-14", "order-313", "none")
        }
        self.by_unique_key = {
            (one["topic"], one["msgId"]): positions(referee.by_unique_key(one["topic"], one["msgId"]))
            for topic in topics
            for one in self.dumps[topic].messages[::9]
        }
        self.by_time = {
            (topic, queue_id, ms): referee.by_time(topic, queue_id, ms)
            for topic in THEIRS
            for queue_id in range(QUEUES)
            for one in [one for one in self.dumps[topic].messages if one["queueId"] == queue_id][::11]
            for ms in (one["storeTimestamp"] - 1, one["storeTimestamp"], one["storeTimestamp"] + 1)
        }
        self.sent = sent

    def check(self, store: MessageStore) -> None:
        """Our store over the same directory says the same."""
        topics = in_queues(one for _, one in records(store))
        for topic, dump in self.dumps.items():
            assert [line(one) for one in topics[topic]] == dump.messages
        for (topic, key), expected in {**self.by_key, **self.by_unique_key}.items():
            found = [record.decode(view).position for view in store.query(topic, key)]
            assert sorted(found) == expected, (topic, key)
            assert found == sorted(found, reverse=True)
        for (topic, queue_id, ms), offset in self.by_time.items():
            assert store.offset_at(topic, queue_id, ms) == offset, (topic, queue_id, ms)
        for one in self.sent[::5]:
            stored = record.decode(store.message_by_id(one["offsetMsgId"]))
            # A delayed message is answered with the id of its place in the schedule, and has the unique key there too.
            assert stored.unique_key == one["msgId"]


def send_theirs(referee: Referee, start: int) -> list[Line]:
    """Sends, waits until queues and index have all of it, and the delayed messages too."""
    sent = referee.send(theirs(number) for number in range(start, start + EACH))
    counts = Counter(theirs(number)["topic"] for number in range(start + EACH))
    batch = referee.send_batch(
        message(BATCHED, 1, b"part %d" % at, tags="größe", keys=f"part-{start + at}", properties={"a": "b"})
        for at in range(3)
    )
    for topic, count in counts.items():
        referee.settle(topic, count)
    referee.settle(BATCHED, 3 * (1 + start // EACH))
    last = referee.dump(BATCHED).messages[-1]
    assert batch["offsetMsgId"].endswith(last["offsetMsgId"])
    for topic in (*THEIRS, LATER, BATCHED):
        newest = max(referee.dump(topic).messages, key=lambda one: one["position"])
        await_indexed(referee, topic, newest["msgId"])
    return sent


@pytest.mark.parametrize("conf", [WITH_CRC, {}], ids=["with record CRC", "without record CRC"])
def test_we_serve_what_apache_wrote(tmp_path: Path, conf: dict[str, str]) -> None:
    root = tmp_path / "store"
    cluster = cluster_over(root, conf)
    with cluster:
        with cluster.referee() as referee:
            for topic in (*THEIRS, LATER, BATCHED):
                referee.create_topic(topic, QUEUES)
            answers = Answers(referee, send_theirs(referee, 0))
        cluster.kill()
    check_as_ours(root, tmp_path / "killed", answers, clean=False, with_crc=bool(conf))

    with cluster, cluster.referee() as referee:
        answers = Answers(referee, answers.sent + send_theirs(referee, EACH))
    check_as_ours(root, tmp_path / "stopped", answers, clean=True, with_crc=bool(conf))


def check_as_ours(theirs_root: Path, root: Path, answers: Answers, *, clean: bool, with_crc: bool) -> None:
    """Opening it changes nothing that counts, and everything in it is what we would have written."""
    shutil.copytree(theirs_root, root)
    with MessageStore(ours.config(root)) as store:
        assert (store.report.clean, store.report.bytes_cut) == (clean, 0)
        store.dispatch()
        answers.check(store)
        found = [one for _, one in records(store)]
        check_reading(store, found)
        end = store.log.end
        for data, one in records(store):
            check_golden(bytes(data), one, with_crc=with_crc)
    assert ours.log_bytes(root, end) == ours.log_bytes(theirs_root, end)
    assert not any(ours.log_bytes(theirs_root, 1 << 62)[end:])

    mine = rebuilt(theirs_root)
    assert ours.queue_files(theirs_root) == ours.queue_files(root) == ours.queue_files(mine)
    assert ours.index_entries(theirs_root) == ours.index_entries(mine) | tag_entries(found)
    with MessageStore(ours.config(mine)) as store:
        answers.check(store)
    shutil.rmtree(mine)


def check_golden(data: bytes, one: StoredMessage, *, with_crc: bool) -> None:
    """Encoding our decoded records again gives Apache's very bytes, in both forms."""
    properties = dict(one.properties)
    assert (properties.pop("__CRC32#", None) is not None) == with_crc
    draft = Draft(
        topic=one.topic.encode(),
        queue_id=one.queue_id,
        body=one.body,
        properties=encode_properties(properties),
        user_flag=one.user_flag,
        storage_flags=one.storage_flags,
        born_timestamp_ms=one.born_timestamp_ms,
        born_host=one.born_host,
        store_host=one.store_host,
        reconsume_times=one.reconsume_times,
        prepared_position=one.prepared_position,
    )
    place = (one.position, one.queue_offset, one.store_timestamp_ms, with_crc)
    assert record.encode(draft, *place) == data
    if _kernel is not None:
        assert _kernel.encode(draft, *place, len(data) + layout.BLANK_RESERVE, len(one.body)) == data


# --- In turns ------------------------------------------------------------------------------------------------------


def turn_of_apache(referee: Referee, start: int, count: int) -> None:
    """Messages to the topics that we made; the client refuses long names, so those only grow by our turns."""
    referee.send(
        message(topic, number % QUEUES, b"theirs", keys=f"theirs-{number}", properties={"number": str(number)})
        for number in range(start, start + count)
        for topic in TOPICS[:2]
    )


def test_both_take_turns_and_stop_cleanly(tmp_path: Path) -> None:
    root = tmp_path / "store"
    ours.write(root, range(300))
    first = messages_in(root)
    cluster = cluster_over(root, WITH_CRC)
    with cluster, cluster.referee() as referee:
        check_served(referee, first)
        check_delayed(referee)
        turn_of_apache(referee, 0, 100)
        topics = in_queues(first)
        for topic in TOPICS[:2]:
            referee.settle(topic, len(topics[topic]) + 100)
        dumps = {topic: referee.dump(topic).messages for topic in (*TOPICS, DELAYED, DELAYED_V2, BATCHED)}

    with MessageStore(ours.config(root)) as store:
        assert store.report.clean
        found = [one for _, one in records(store)]
        assert found[: len(first)] == first
        check_reading(store, found)
        topics = in_queues(found)
        assert {topic: [line(one) for one in topics[topic]] for topic in dumps} == dumps
        assert {view_key(store, topic, "theirs-7") for topic in TOPICS[:2]} == {"7"}
        for data, one in records(store):
            if one.topic == DELAYED_V2:  # Apache's own record with a long name
                check_golden(bytes(data), one, with_crc=True)
        ours.append(store, range(300, 600))
    check_topic_table(root)

    found = messages_in(root)
    with cluster:
        with cluster.referee() as referee:
            check_served(referee, found)
            check_queries(referee, found)
        cluster.kill()


def view_key(store: MessageStore, topic: str, key: str) -> str:
    [view] = store.query(topic, key)
    return record.decode(view).properties["number"]


def check_topic_table(root: Path) -> None:
    """Apache has rewritten our table; we still read all of it."""
    table = TopicTable(MessageStore(ours.config(root)).disk, root / "config", SystemClock())
    table.load()
    for topic in (*TOPICS, BATCHED, DELAYED, DELAYED_V2):
        config = table.get(topic)
        assert config is not None
        assert (config.read_queues, config.write_queues) == (QUEUES, QUEUES)


def test_both_take_turns_and_are_killed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    acknowledged = write_and_kill(root, 0, 400)
    ours.declare_topics(root)
    first = messages_in(root)
    assert sum(one.topic in TOPICS for one in first) >= acknowledged
    cluster = cluster_over(root, INDEX_TOO)
    with cluster, cluster.referee() as referee:
        check_served(referee, first)
        sent = send_until_killed(referee, cluster)

    second = messages_in(root)
    assert second[: len(first)] == first
    arrived = [(one.topic, ours.number_of(one)) for one in second[len(first) :] if one.body == b"theirs"]
    assert arrived[: len(sent)] == sent

    written = sum(one.topic in TOPICS for one in first)
    acknowledged = write_and_kill(root, written, 400)
    third = messages_in(root)
    assert third[: len(second)] == second
    mine = [ours.number_of(one) for one in third if one.topic in TOPICS and one.body != b"theirs"]
    assert mine == list(range(len(mine)))
    assert len(mine) >= acknowledged
    with cluster:
        with cluster.referee() as referee:
            # A killed Apache does not know what it delivered from the schedule, and does it again.
            check_served(referee, [one for one in third if one.topic not in (DELAYED, DELAYED_V2)])
            check_queries(referee, third, after_kill=True)
        cluster.kill()


def send_until_killed(referee: Referee, cluster: ApacheCluster) -> list[tuple[str, int]]:
    """Send until the broker dies during a send; return the acknowledged messages."""
    killer = threading.Timer(1.0, cluster.kill)
    killer.start()
    sent: list[tuple[str, int]] = []
    try:
        for number in range(100_000):
            turn_of_apache(referee, number, 1)
            sent += [(topic, number) for topic in TOPICS[:2]]
    except ApacheFailed:
        return sent
    finally:
        killer.join()
    raise AssertionError("the broker was not killed")
