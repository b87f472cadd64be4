"""Figures that admin tools read: how long queues are, how far groups are, how much comes and goes.

Written in fastjson's dialect, whose maps have queues for keys: RocketMQ's tools read nothing else. A long body is
a generator of pieces: a broker writes it in slices, and looks at a queue when its piece is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyromq.model.json_form import JsonObject
from pyromq.wire import fastjson
from pyromq.wire.bodies.locks import MessageQueue


@dataclass(frozen=True, slots=True)
class QueueRange:
    """RocketMQ's TopicOffset."""

    min_offset: int
    max_offset: int
    #: Store time of the newest message; 0 if there is none.
    last_ms: int

    def to_json(self) -> JsonObject:
        return {"lastUpdateTimestamp": self.last_ms, "maxOffset": self.max_offset, "minOffset": self.min_offset}


def topic_stats_pieces(queues: Iterable[tuple[MessageQueue, QueueRange]], put_tps: float) -> Iterator[bytes]:
    """RocketMQ's TopicStatsTable, in pieces."""
    yield b'{"offsetTable":'
    yield from fastjson.map_pieces((queue.to_json(), span.to_json()) for queue, span in queues)
    yield b',"topicPutTps":%b}' % fastjson.dumps(float(put_tps))


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """RocketMQ's OffsetWrapper: how far a group is in one queue."""

    broker_offset: int
    consumer_offset: int
    #: End of the delivered messages; never below `consumer_offset`.
    pull_offset: int
    #: Store time of the last consumed message; 0 if it is unknown.
    last_ms: int = 0

    @property
    def lag(self) -> int:
        return self.broker_offset - self.consumer_offset

    @property
    def in_flight(self) -> int:
        return self.pull_offset - self.consumer_offset

    def to_json(self) -> JsonObject:
        return {
            "brokerOffset": self.broker_offset,
            "consumerOffset": self.consumer_offset,
            "lastTimestamp": self.last_ms,
            "pullOffset": self.pull_offset,
        }


def consume_stats_pieces(queues: Iterable[tuple[MessageQueue, QueueProgress]], tps: float) -> Iterator[bytes]:
    """RocketMQ's ConsumeStats: how far a group is in the queues of one topic or several. In pieces."""
    yield b'{"consumeTps":%b,"offsetTable":' % fastjson.dumps(float(tps))
    yield from fastjson.map_pieces((queue.to_json(), one.to_json()) for queue, one in queues)
    yield b"}"


@dataclass(frozen=True, slots=True)
class ConsumeStats:
    """The progress of a group in the queues of one topic. Each queue is read when it is written."""

    queues: Iterable[tuple[MessageQueue, QueueProgress]] = ()
    tps: float = 0.0


def broker_consume_stats_pieces(address: str, groups: Iterable[tuple[str, Iterable[ConsumeStats]]]) -> Iterator[bytes]:
    """RocketMQ's ConsumeStatsList: all groups of a broker, each with its topics. In pieces."""
    lag = in_flight = 0

    def counted(queues: Iterable[tuple[MessageQueue, QueueProgress]]) -> Iterator[tuple[MessageQueue, QueueProgress]]:
        nonlocal lag, in_flight
        for queue, one in queues:
            lag += one.lag
            in_flight += one.in_flight
            yield queue, one

    yield b'{"brokerAddr":%b,"consumeStatsList":[' % fastjson.dumps(address)
    before = b""
    for group, topics in groups:
        yield b"%b{%b:[" % (before, fastjson.dumps(group))
        before = b""
        for topic in topics:
            yield before
            yield from consume_stats_pieces(counted(topic.queues), topic.tps)
            before = b","
        yield b"]}"
        before = b","
    yield b'],"totalDiff":%d,"totalInflightDiff":%d}' % (lag, in_flight)


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """RocketMQ's QueueTimeSpan: the times of a queue's messages, and how late a group is."""

    queue: MessageQueue
    #: -1: there is no message.
    min_ms: int
    max_ms: int
    consumed_ms: int
    delay_ms: int

    def to_json(self) -> JsonObject:
        return {
            "consumeTimeStamp": self.consumed_ms,
            "delayTime": self.delay_ms,
            "maxTimeStamp": self.max_ms,
            "messageQueue": self.queue.to_json(),
            "minTimeStamp": self.min_ms,
        }


def time_span_pieces(spans: Iterable[TimeSpan]) -> Iterator[bytes]:
    """RocketMQ's QueryConsumeTimeSpanBody, in pieces."""
    yield b'{"consumeTimeSpanSet":'
    yield from fastjson.list_pieces(one.to_json() for one in spans)
    yield b"}"


@dataclass(frozen=True, slots=True)
class Rate:
    """RocketMQ's BrokerStatsItem: a count in a span of time."""

    total: int = 0
    per_second: float = 0.0
    #: On average, each time that something was counted.
    each: float = 0.0

    def to_json(self) -> JsonObject:
        return {"avgpt": float(self.each), "sum": self.total, "tps": float(self.per_second)}


def encode_rates(minute: Rate, hour: Rate, day: Rate) -> bytes:
    """RocketMQ's BrokerStatsData."""
    return fastjson.dumps(
        {"statsDay": day.to_json(), "statsHour": hour.to_json(), "statsMinute": minute.to_json()},
    )


@dataclass(frozen=True, slots=True)
class QueueEntryInfo:
    """RocketMQ's ConsumeQueueData."""

    position: int
    size: int
    tag_code: int

    def to_json(self) -> JsonObject:
        return {
            "eval": False,
            "physicOffset": self.position,
            "physicSize": self.size,
            "tagsCode": self.tag_code,
        }


def encode_queue_entries(
    entries: Sequence[QueueEntryInfo],
    min_offset: int,
    max_offset: int,
    *,
    subscription: JsonObject | None = None,
    filter_data: str | None = None,
) -> bytes:
    """RocketMQ's QueryConsumeQueueResponseBody."""
    form: JsonObject = {
        "maxQueueIndex": max_offset,
        "minQueueIndex": min_offset,
        "queueData": [entry.to_json() for entry in entries],
    }
    if subscription is not None:
        form["subscriptionData"] = subscription
    if filter_data is not None:
        form["filterData"] = filter_data
    return fastjson.dumps(form)
