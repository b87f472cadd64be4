"""The broker's figures under the names that RocketMQ's tools, exporters and dashboards know.

RocketMQ has queues before thread pools; this broker has one loop: their sizes are 0, and the wait of their head
is the delay of the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pyromq.broker.idempotence.sends import NumberedSends
from pyromq.broker.statistics.traffic import Statistics
from pyromq.clock import Clock
from pyromq.config import BrokerConfig
from pyromq.metrics import Histogram
from pyromq.model import names
from pyromq.records import record
from pyromq.store.message_store import MessageStore
from pyromq.store.tables.offset_files import DelayOffsets
from pyromq.version import version

#: The version of the protocol that `wire.command` names by number.
PROTOCOL_NAME = "V5_5_0"

#: RocketMQ's steps of the time that storing takes: a name, and the seconds up to which it goes.
STEPS = (
    ("[<=0ms]", 0.001), ("[0~10ms]", 0.01), ("[10~50ms]", 0.05), ("[50~100ms]", 0.1), ("[100~200ms]", 0.2),
    ("[200~500ms]", 0.5), ("[500ms~1s]", 1.0), ("[1~2s]", 2.0), ("[2~3s]", 3.0), ("[3~4s]", 4.0), ("[4~5s]", 5.0),
    ("[5~10s]", 10.0), ("[10s~]", float("inf")),
)  # fmt: skip
POOLS = ("send", "pull", "litePull", "query", "ack")


class RuntimeInfo:
    """Call it for the figures of now."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        store: MessageStore,
        statistics: Statistics,
        clock: Clock,
        *,
        delays: DelayOffsets | None = None,
        delay_levels: int = 0,
        loop_lag_ms: Callable[[], float] = lambda: 0.0,
        numbered: NumberedSends | None = None,
        copies: Callable[[], Mapping[str, object]] = dict,
        name_conflict: Callable[[], str] = lambda: "",
    ) -> None:
        self._config = config
        self._store = store
        self._statistics = statistics
        self._clock = clock
        self._delays = delays
        self._delay_levels = delay_levels
        self._loop_lag_ms = loop_lag_ms
        self._numbered = numbered
        self._copies = copies
        self._name_conflict = name_conflict

    def __call__(self) -> Mapping[str, str]:
        figures: dict[str, object] = {
            "brokerActive": "true",
            "brokerVersionDesc": PROTOCOL_NAME,
            "pyromqVersion": version(),
            **self._times(),
            **self._puts(),
            **self._gets(),
            **self._rates(),
            **self._disk(),
            **self._backlog(),
            **self._pools(),
            **self._schedule(),
            **self._writers(),
            **self._safety(),
            **self._copies(),
            "pyromq.nameConflict": self._name_conflict(),
        }
        return {name: str(value) for name, value in sorted(figures.items())}

    def _times(self) -> dict[str, object]:
        started_ms = self._statistics.started_ms
        return {
            "bootTimestamp": started_ms,
            "startAcceptSendRequestTimeStamp": 0,
            "runtime": runtime_text(self._clock.now_ms() - started_ms),
            "earliestMessageTimeStamp": self._earliest_ms(),
        }

    def _earliest_ms(self) -> int:
        """Return the store time of the oldest message of the log; -1 if there is none."""
        files = self._store.log_files()
        segment = files.find(files.start) if self._store.positions().written > files.start else None
        stored_ms = None if segment is None else record.stored_at_ms(segment.buffer, 0, segment.size)
        return -1 if stored_ms is None else stored_ms

    def _puts(self) -> dict[str, object]:
        put, mornings = self._statistics.put, self._statistics.put_mornings
        seconds = self._store.figures().append_seconds
        return {
            "putMessageTimesTotal": put.messages,
            "putMessageFailedTimes": self._statistics.failed_puts,
            "putMessageSizeTotal": put.size,
            "putMessageAverageSize": put.size / max(put.messages, 1),
            "putMessageEntireTimeMax": int(seconds.largest * 1000),
            "putMessageDistributeTime": distribution(seconds),
            "putLatency99": f"{seconds.quantile(0.99) * 1000:.2f}",
            "putLatency999": f"{seconds.quantile(0.999) * 1000:.2f}",
            "msgPutTotalYesterdayMorning": mornings.yesterday,
            "msgPutTotalTodayMorning": mornings.today,
            "msgPutTotalTodayNow": put.messages,
        }

    def _gets(self) -> dict[str, object]:
        mornings = self._statistics.got_mornings
        return {
            "getMessageEntireTimeMax": 0,
            "msgGetTotalYesterdayMorning": mornings.yesterday,
            "msgGetTotalTodayMorning": mornings.today,
            "msgGetTotalTodayNow": self._statistics.got_total.messages,
        }

    def _rates(self) -> dict[str, object]:
        """Each over 10, 60 and 600 seconds."""
        statistics, now_ms = self._statistics, self._clock.now_ms()
        windows = (10, 60, 600)
        found = [statistics.found.tps(now_ms, seconds) for seconds in windows]
        missed = [statistics.missed.tps(now_ms, seconds) for seconds in windows]
        transferred = _joined(statistics.got_total.tps(now_ms, seconds) for seconds in windows)
        return {
            "putTps": _joined(statistics.put.tps(now_ms, seconds) for seconds in windows),
            "getFoundTps": _joined(found),
            "getMissTps": _joined(missed),
            "getTotalTps": _joined(one + other for one, other in zip(found, missed, strict=True)),
            "getTransferredTps": transferred,
            "getTransferedTps": transferred,  # the name of old, which exporters look for
        }

    def _disk(self) -> dict[str, object]:
        figures, positions = self._store.figures(), self._store.positions()
        usage, of_queues = figures.disk_usage
        free = usage.total - usage.used
        return {
            "commitLogDiskRatio": usage.share,
            f"commitLogDiskRatio_{figures.log_directory}": usage.share,
            "consumeQueueDiskRatio": of_queues.share,
            "commitLogMinOffset": positions.log_start,
            "commitLogMaxOffset": positions.appended,
            "commitLogDirCapacity": f"Total : {bytes_text(usage.total)}, Free : {bytes_text(free)}.",
        }

    def _backlog(self) -> dict[str, object]:
        positions = self._store.positions()
        return {
            "dispatchMaxBuffer": 0,
            "dispatchBehindBytes": max(positions.visible - positions.dispatched, 0),
            "remainHowManyDataToFlush": bytes_text(positions.appended - positions.synced),
            "remainHowManyDataToCommit": bytes_text(positions.appended - positions.written),
            "remainTransientStoreBufferNumbs": 0,
            "pageCacheLockTimeMills": 0,
            "timerReadBehind": 0,
            "timerOffsetBehind": 0,
            "timerCongestNum": 0,
            "timerEnqueueTps": 0.0,
            "timerDequeueTps": 0.0,
        }

    def _safety(self) -> dict[str, object]:
        """Return the disk's sync times since the start, and the bytes that a start after a crash would have to scan.
        RocketMQ has no such fields."""
        figures = self._store.figures()
        seconds = figures.flush_seconds
        return {
            "pyromq.flushes": seconds.count,
            "pyromq.flushLastMs": f"{seconds.last * 1000:.2f}",
            "pyromq.flushMeanMs": f"{seconds.total / max(seconds.count, 1) * 1000:.2f}",
            "pyromq.flushP99Ms": f"{seconds.quantile(0.99) * 1000:.2f}",
            "pyromq.flushMaxMs": f"{seconds.largest * 1000:.2f}",
            "pyromq.recoverBytes": figures.recover_bytes,
            "pyromq.retentionPaused": figures.retention_paused,
        }

    def _pools(self) -> dict[str, object]:
        lag_ms = int(self._loop_lag_ms())
        figures: dict[str, object] = {"EndTransactionQueueSize": 0, "EndTransactionThreadPoolQueueCapacity": 0}
        for pool in POOLS:
            figures[f"{pool}ThreadPoolQueueSize"] = 0
            figures[f"{pool}ThreadPoolQueueCapacity"] = 0
            figures[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = lag_ms
        figures["sendThreadPoolQueueCapacity"] = self._config().overload.waiting_sends
        figures["pullThreadPoolQueueCapacity"] = self._config().max_long_polls
        return figures

    def _schedule(self) -> dict[str, object]:
        """By delay level: the next message to deliver, and the end of its queue."""
        if self._delays is None:
            return {}
        known = ((level, self._delays.offset_of(level)) for level in range(1, self._delay_levels + 1))
        return {
            f"scheduleMessageOffset_{level}": f"{offset},{self._store.max_offset(names.SCHEDULE_TOPIC, level - 1)}"
            for level, offset in known
            if offset is not None
        }

    def _writers(self) -> dict[str, object]:
        """Return whether repeated sends are deduplicated, and the counts. RocketMQ has no such fields:
        that is how a client tells the two apart."""
        if self._numbered is None:
            return {}
        return {
            "pyromq.idempotentWriters": "true",
            "pyromq.writersRemembered": self._numbered.writers,
            "pyromq.repeatsDropped": self._numbered.repeats,
        }


def _joined(rates: Iterable[float]) -> str:
    return " ".join(str(rate) for rate in rates)


def runtime_text(elapsed_ms: int) -> str:
    seconds = max(elapsed_ms, 0) // 1000
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]"


def bytes_text(count: int) -> str:
    """As people read sizes: `512 B`, `1.5 KiB`."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 6)
    return f"{count / 1024**power:.1f} {'KMGTPE'[power - 1]}iB"


def distribution(seconds: Histogram) -> str:
    """Return the counts of store times in RocketMQ's steps; a bucket across two steps counts with the earlier one."""
    counts = dict.fromkeys((name for name, _ in STEPS), 0)
    for low, count in zip((0.0, *seconds.bounds), seconds.buckets, strict=True):
        counts[next(name for name, upper in STEPS if low < upper)] += count
    return "".join(f"{name}:{count} " for name, count in counts.items())
