"""A stage for kills: a broker, a topic with a constant producer, and an application that copies it.

The stage observes from outside: a streaming query writes `offsets/N` into its checkpoint when batch N begins and
`commits/N` when it is done, so the two files show when it is in the middle of a batch. The moment within the batch is
drawn from a seed. The stage restarts killed processes that Spark does not restart.
"""

from __future__ import annotations

import json
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from pyromq.errors import PyroMQError
from pyromq.sync import Admin, ConsumeFrom, Message, Producer, PullConsumer
from pyromq.testing import BrokerProcess
from spark.kills.processes import Process, descendants, kill, python_workers, wait_until_gone
from spark.support.cluster import SparkCluster, environment_of

APPLICATION = Path(__file__).with_name("application.py")
#: Far more than anything takes: when it is over, something hangs.
SECONDS = 400.0
LOOK_AGAIN_SECONDS = 0.01
#: Brokers have asked for everything that was left behind.
ASKING_SECONDS = 60.0
#: More than arrives while a batch is written, so that no lane falls behind for good.
BATCH_ROWS = 2_000
LONGEST_DELAY_SECONDS = 0.8
FEED_ROWS = 25
FEED_SECONDS = 0.1
QUEUES = 4
#: Brokers check undecided half messages this soon.
BROKER_SETTINGS = {"transaction.timeout_ms": 3_000, "transaction.check_interval_ms": 1_000}


class Kind(Enum):
    """The process to kill."""

    DRIVER = "the driver's Python"
    JVM = "the driver's JVM"
    EXECUTOR = "an executor"
    WORKER = "a Python worker"
    BROKER = "the broker"


class Lane(NamedTuple):
    """One way of copying, and whether it may repeat messages."""

    name: str
    kind: str
    mode: str = ""
    may_repeat: bool = False


FILES = Lane("files", "files")
LAKE = Lane("lake", "lake")
TRANSACTIONAL = Lane("transactional", "topic", "transactional")
IDEMPOTENT = Lane("idempotent", "topic", "idempotent")
AT_LEAST_ONCE = Lane("at-least-once", "topic", "atLeastOnce", may_repeat=True)
LANES = (FILES, LAKE, TRANSACTIONAL, IDEMPOTENT, AT_LEAST_ONCE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One lane's output compared with the input."""

    lane: Lane
    expected: int
    missing: list[str]
    repeated: list[str]
    foreign: list[str]

    @property
    def is_kept(self) -> bool:
        return not self.missing and not self.foreign and (self.lane.may_repeat or not self.repeated)

    def __str__(self) -> str:
        return (
            f"{self.lane.name}: {self.expected} in, {len(self.missing)} missing {self.missing[:3]}, "
            f"{len(self.repeated)} repeated {self.repeated[:3]}, {len(self.foreign)} foreign {self.foreign[:3]}"
        )


def judge(lane: Lane, wanted: Iterable[str], found: Iterable[str]) -> Verdict:
    expected, counts = set(wanted), Counter(found)
    return Verdict(
        lane,
        len(expected),
        sorted(expected - counts.keys()),
        sorted(text for text, times in counts.items() if times > 1),
        sorted(counts.keys() - expected),
    )


def texts_in(name_servers: str, topic: str) -> list[tuple[int, int, str]]:
    """Everything that readers see in a topic: queue, offset and text of each message."""
    with PullConsumer(name_servers, group=f"reader-of-{topic}", consume_from=ConsumeFrom.FIRST) as consumer:
        queues = consumer.queues(topic)
        consumer.assign(queues)
        for queue in queues:
            consumer.seek_to_begin(queue)
        total = sum(consumer.end_offset(queue) - consumer.begin_offset(queue) for queue in queues)
        found: list[tuple[int, int, str]] = []
        while len(found) < total:
            messages = consumer.poll(timeout_s=SECONDS)
            assert messages, f"{topic}: {len(found)} of {total} messages"
            found += [(one.queue.queue_id, one.queue_offset, one.text) for one in messages]
    return found


def count_of(name_servers: str, topic: str) -> int:
    """Return the number of readable messages."""
    with Admin(name_servers) as admin:
        return sum(queue.max_offset - queue.min_offset for queue in admin.topics.stats(topic).queues)


class Feed:
    """Keeps writing to the topic from a thread, also while the broker is away."""

    def __init__(self, name_servers: str, topic: str) -> None:
        self._name_servers, self._topic = name_servers, topic
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join(SECONDS)

    def _run(self) -> None:
        with Producer(self._name_servers, group="feed") as producer:
            while not self._end.wait(FEED_SECONDS):
                texts = [f"m{self.sent + number}" for number in range(FEED_ROWS)]
                try:
                    producer.send_batch([Message(self._topic, text) for text in texts])
                except PyroMQError:  # killed: what the topic holds is the truth, a message more or less is no matter
                    continue
                self.sent += FEED_ROWS


class Stage:
    """The broker, the producer and the application of one test. Leaving the block ends the application."""

    def __init__(
        self,
        home: Path,
        mq: BrokerProcess,
        python: Path,
        *,
        name: str,
        lanes: Sequence[Lane],
        seed: int,
        master: str = "local[2,8]",
        cluster: SparkCluster | None = None,
    ) -> None:
        self.home, self.mq, self.python, self.lanes, self.cluster = home, mq, python, lanes, cluster
        self.topic = f"{name}-in"
        self.targets = {lane.name: f"{name}-{lane.name}" for lane in lanes}
        self.chance = random.Random(seed)
        self.seed = seed
        self.starts = 0
        self.story: list[str] = []
        self._master = cluster.master_url if cluster else master
        self._feed = Feed(mq.name_servers, self.topic)
        self._driver: subprocess.Popen[bytes] | None = None

    # --- the beginning and the end -----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.home.mkdir(parents=True)
        for topic in [self.topic, *(self.targets[lane.name] for lane in self.lanes if lane.kind == "topic")]:
            self.mq.create_topic(topic, QUEUES)
        self._write_task()
        self._feed.start()
        self._start_driver()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._feed.stop()
        if self._driver is not None:
            self._end_driver()

    def finish(self) -> list[Verdict]:
        """No more input; go on until everything is through, and compare."""
        self._feed.stop()
        self._finish_file.touch()
        self._until(self._found_file.exists)
        wanted = [f"{queue}:{offset} {text}" for queue, offset, text in texts_in(self.mq.name_servers, self.topic)]
        # A decided batch whose driver was killed is made visible when brokers ask for it.
        self._until(lambda: all(count >= len(wanted) for count in self._counts()), or_not=True)
        self._leave_file.touch()
        assert self._driver
        assert self._driver.wait(SECONDS) == 0, self._tail()
        tables: dict[str, list[str]] = json.loads(self._found_file.read_text(encoding="utf-8"))
        return [judge(lane, wanted, self._output_of(lane, tables)) for lane in self.lanes]

    def _counts(self) -> list[int]:
        topics = [self.targets[lane.name] for lane in self.lanes if lane.kind == "topic"]
        return [count_of(self.mq.name_servers, topic) for topic in topics]

    def _output_of(self, lane: Lane, tables: dict[str, list[str]]) -> list[str]:
        if lane.kind != "topic":
            return tables[lane.name]
        return [text for _, _, text in texts_in(self.mq.name_servers, self.targets[lane.name])]

    def _write_task(self) -> None:
        lanes = [
            {
                "name": lane.name, "kind": lane.kind, "mode": lane.mode, "checkpoint": str(self._checkpoint(lane)),
                "target": self.targets[lane.name] if lane.kind == "topic" else str(self.home / "tables" / lane.name),
            }
            for lane in self.lanes
        ]  # fmt: skip
        task = {
            "master": self._master, "name_servers": self.mq.name_servers, "topic": self.topic, "lanes": lanes,
            "batch_rows": BATCH_ROWS, "finish": str(self._finish_file), "found": str(self._found_file),
            "leave": str(self._leave_file),
        }  # fmt: skip
        self._task_file.write_text(json.dumps(task), encoding="utf-8")

    @property
    def _task_file(self) -> Path:
        return self.home / "task.json"

    @property
    def _finish_file(self) -> Path:
        return self.home / "finish"

    @property
    def _leave_file(self) -> Path:
        return self.home / "leave"

    @property
    def _found_file(self) -> Path:
        return self.home / "found.json"

    @property
    def log_file(self) -> Path:
        """The application's output, over all its restarts."""
        return self.home / "application.log"

    # --- the application ---------------------------------------------------------------------------------------------

    def _start_driver(self) -> None:
        self.starts += 1
        assert self.starts <= 200, f"it ends again and again; see {self.log_file}\n{self._tail()}"
        with self.log_file.open("ab") as log:
            self._driver = subprocess.Popen(
                [str(self.python), str(APPLICATION), str(self._task_file)], cwd=self.home,
                env=environment_of(self.python), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def _end_driver(self) -> None:
        """Kill it with everything that it has started, and wait until nothing of it runs."""
        assert self._driver
        family = descendants([self._driver.pid])
        self._driver.kill()
        self._driver.wait(SECONDS)
        self._bury(family)

    def _bury(self, family: Iterable[Process]) -> None:
        """A second driver must not begin while the first one's JVM is alive: no cluster would allow that either."""
        left = wait_until_gone(family)
        for process in left:
            kill(process)
        assert not wait_until_gone(left)

    def _keep_alive(self) -> None:
        """The application may give up when it is hurt, as any may; its supervisor starts it again."""
        assert self._driver
        if self._driver.poll() is not None:
            self.story.append(f"the application ended with {self._driver.returncode}")
            self._start_driver()

    def _family(self) -> list[Process]:
        assert self._driver
        return descendants([self._driver.pid])

    def _tail(self) -> str:
        return self.log_file.read_text(encoding="utf-8", errors="replace")[-4000:]

    # --- waiting -----------------------------------------------------------------------------------------------------

    def _checkpoint(self, lane: Lane) -> Path:
        return self.home / "checkpoints" / lane.name

    def _newest(self, lane: Lane, what: str) -> int:
        directory = self._checkpoint(lane) / what
        if not directory.is_dir():
            return -1
        return max((int(path.name) for path in directory.iterdir() if path.name.isdigit()), default=-1)

    @property
    def _queries(self) -> list[Lane]:
        """Those with a checkpoint; a lake has none."""
        return [lane for lane in self.lanes if lane.kind != "lake"]

    def _committed(self) -> dict[Lane, int]:
        return {lane: self._newest(lane, "commits") for lane in self._queries}

    def until_all_have_moved(self, batches: int = 1) -> None:
        """Wait until every lane has finished this many more batches: everything killed has recovered."""
        before = self._committed()
        self._until(lambda: all(now >= before[lane] + batches for lane, now in self._committed().items()))

    def until_in_the_middle_of_a_batch(self, lane: Lane) -> int:
        self._until(lambda: self._newest(lane, "offsets") > self._newest(lane, "commits"))
        return self._newest(lane, "offsets")

    def _until(self, is_so: Callable[[], bool], *, or_not: bool = False) -> None:
        """`or_not`: what does not become so is left to the judge."""
        end = time.monotonic() + (ASKING_SECONDS if or_not else SECONDS)
        while not is_so():
            self._keep_alive()
            if time.monotonic() > end:
                assert or_not, "\n".join([*self.story, f"nothing moves: {self._committed()}", self._tail()])
                return
            time.sleep(LOOK_AGAIN_SECONDS)

    # --- kills -------------------------------------------------------------------------------------------------------

    def kill(self, kind: Kind) -> None:
        """Kill in the middle of a batch, at a moment that the seed chooses; restart processes that Spark does not."""
        self.until_all_have_moved()
        lane = self.chance.choice(self._queries)
        batch = self.until_in_the_middle_of_a_batch(lane)
        delay = self.chance.random() * LONGEST_DELAY_SECONDS
        time.sleep(delay)  # not to wait for anything: this is the moment that was drawn
        self.story.append(f"killed {kind.value} in batch {batch} of {lane.name}, after {delay:.3f} s")
        if kind is Kind.BROKER:
            self.mq.kill()
            self.mq.start()
        else:
            self._kill_of_spark(kind)

    def _kill_of_spark(self, kind: Kind) -> None:
        assert self._driver
        family = self._family()
        if kind is Kind.DRIVER:
            self._driver.kill()
        else:
            kill(self.chance.choice(sorted(self._candidates(kind, family))))
        if kind in (Kind.DRIVER, Kind.JVM):
            self._driver.wait(SECONDS)
            self._bury(family)
            self._start_driver()

    def _candidates(self, kind: Kind, family: list[Process]) -> list[Process]:
        workers = descendants([daemon.pid for daemon in self.cluster.workers]) if self.cluster else []
        if kind is Kind.JVM:
            return [one for one in family if one.is_java]
        if kind is Kind.EXECUTOR:
            assert self.cluster, "with a local master the executor is the driver's JVM"
            return [one for one in workers if one.is_executor]
        found = python_workers(workers if self.cluster else family)
        return found or [one for one in [*workers, *family] if one.is_daemon]
