"""Counts messages and bytes in and out, in all, by topic and by group, lately and since the start.

Counting is a few additions for a whole batch. Rates come from samples that are taken now and then (`run`), and are
computed on request: the count since the oldest sample of a window, over the time since then. An entry that has
not been used for a day is removed, and the number of entries is limited.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from datetime import date, datetime
from typing import NamedTuple, TypeVar

from pyromq.clock import Clock
from pyromq.wire.bodies.stats import Rate

SAMPLE_SECONDS = 1.0
#: A flow is some 3 KB with all its samples; a broker with more topics and groups than this has its figures in part.
MAX_FLOWS = 20_000
#: The shortest time for which a rate is computed: one message a moment ago is not a thousand a second.
LEAST_MS = 10_000
DAY_MS = 86_400_000

Key = TypeVar("Key")


class _Sample(NamedTuple):
    at_ms: int
    times: int
    messages: int
    size: int


class _Window:
    """Samples at even steps; the oldest one is where the window begins."""

    __slots__ = ("_samples", "_step_ms")

    def __init__(self, step_ms: int, steps: int, first: _Sample) -> None:
        self._step_ms = step_ms
        self._samples = deque([first], maxlen=steps + 1)

    def take(self, sample: _Sample) -> None:
        if sample.at_ms - self._samples[-1].at_ms >= self._step_ms:
            self._samples.append(sample)

    def start(self, at_ms: int) -> _Sample:
        """The newest sample that is not younger than a time; if all are, the oldest."""
        found = self._samples[0]
        for sample in self._samples:
            if sample.at_ms > at_ms:
                break
            found = sample
        return found


class Flow:
    """Counts of one kind: what a topic got, what a group took, what the broker did in all."""

    __slots__ = ("day", "hour", "messages", "minute", "size", "times", "used_ms")

    def __init__(self, now_ms: int) -> None:
        self.times = self.messages = self.size = 0
        first = _Sample(now_ms, 0, 0, 0)
        self.minute = _Window(10_000, 6, first)
        self.hour = _Window(600_000, 6, first)
        self.day = _Window(3_600_000, 24, first)
        #: The time at which a sample last found something new.
        self.used_ms = now_ms

    def add(self, messages: int, size: int) -> None:
        self.times += 1
        self.messages += messages
        self.size += size

    def sample(self, now_ms: int) -> None:
        sample = _Sample(now_ms, self.times, self.messages, self.size)
        if self.minute.start(now_ms)[1:] != sample[1:]:
            self.used_ms = now_ms
        self.minute.take(sample)
        self.hour.take(sample)
        self.day.take(sample)

    def rates(self, now_ms: int, *, of_size: bool = False) -> tuple[Rate, Rate, Rate]:
        """In the last minute, hour and day."""
        return (
            self._rate(self.minute.start(now_ms - 60_000), now_ms, of_size),
            self._rate(self.hour.start(now_ms - 3_600_000), now_ms, of_size),
            self._rate(self.day.start(now_ms - DAY_MS), now_ms, of_size),
        )

    def _rate(self, since: _Sample, now_ms: int, of_size: bool) -> Rate:
        total = self.size - since.size if of_size else self.messages - since.messages
        times = self.times - since.times
        seconds = max(now_ms - since.at_ms, LEAST_MS) / 1000
        return Rate(total, total / seconds, total / times if times else 0.0)


class _Totals:
    """Of the whole broker: a sample each second for ten minutes."""

    def __init__(self, now_ms: int) -> None:
        self.messages = self.size = 0
        self._samples = deque([_Sample(now_ms, 0, 0, 0)], maxlen=601)

    def add(self, messages: int, size: int) -> None:
        self.messages += messages
        self.size += size

    def sample(self, now_ms: int) -> None:
        self._samples.append(_Sample(now_ms, 0, self.messages, self.size))

    def tps(self, now_ms: int, seconds: int) -> float:
        """Return the rate over this many seconds, or since the start when that was later."""
        since = self._samples[0]
        for sample in reversed(self._samples):
            since = sample
            if sample.at_ms <= now_ms - seconds * 1000:
                break
        elapsed_ms = max(now_ms - since.at_ms, min(LEAST_MS, seconds * 1000))
        return (self.messages - since.messages) * 1000 / elapsed_ms


class _Mornings:
    """A total as it was at the last two midnights."""

    def __init__(self) -> None:
        self.yesterday = self.today = 0

    def new_day(self, total: int) -> None:
        self.yesterday, self.today = self.today, total


class Statistics:
    """All figures of one broker. Counts arrive in batches; `sample` is called about once a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        now_ms = clock.now_ms()
        self.started_ms = now_ms
        self.put = _Totals(now_ms)
        #: Messages that consumers got.
        self.got_total = _Totals(now_ms)
        #: Pulls that found something, and pulls that did not.
        self.found, self.missed = _Totals(now_ms), _Totals(now_ms)
        self.put_mornings, self.got_mornings = _Mornings(), _Mornings()
        #: Sends that were answered with an error.
        self.failed_puts = 0
        self._topics: dict[str, Flow] = {}
        self._groups: dict[tuple[str, str], Flow] = {}
        self._sent_back: dict[tuple[str, str], Flow] = {}
        self._all_put, self._all_got = Flow(now_ms), Flow(now_ms)
        self._flows_due_ms = now_ms
        self._today = _day(now_ms)
        self._before_sample: list[Callable[[], None]] = []

    def before_sample(self, count_up: Callable[[], None]) -> None:
        """Register a component that counts on its own, to be asked before figures are taken."""
        self._before_sample.append(count_up)

    # --- counting ----------------------------------------------------------------------------------------------------

    def sent(self, topic: str, messages: int, size: int) -> None:
        """Messages were stored for a topic."""
        self.put.add(messages, size)
        self._all_put.add(messages, size)
        flow = self._topics.get(topic) or self._new(self._topics, topic)
        flow.add(messages, size)

    def send_failed(self, sends: int = 1) -> None:
        """Count sends that were answered with an error: refused, or not confirmed by the disk."""
        self.failed_puts += sends

    def got(self, group: str, topic: str, messages: int, size: int, pulls: int = 1) -> None:
        """Pulls were answered with messages."""
        self.found.add(pulls, 0)
        self.got_total.add(messages, size)
        self._all_got.add(messages, size)
        flow = self._groups.get((topic, group)) or self._new(self._groups, (topic, group))
        flow.add(messages, size)

    def got_nothing(self) -> None:
        """A pull found nothing."""
        self.missed.add(1, 0)

    def sent_back(self, group: str, topic: str, messages: int) -> None:
        flow = self._sent_back.get((topic, group)) or self._new(self._sent_back, (topic, group))
        flow.add(messages, 0)

    def _new(self, flows: dict[Key, Flow], key: Key) -> Flow:
        flow = Flow(self._clock.now_ms())
        if len(self._topics) + len(self._groups) + len(self._sent_back) < MAX_FLOWS:
            flows[key] = flow
        return flow

    def forget_topic(self, topic: str) -> None:
        self._topics.pop(topic, None)
        for flows in (self._groups, self._sent_back):
            for key in [key for key in flows if key[0] == topic]:
                del flows[key]

    def forget_group(self, group: str) -> None:
        for flows in (self._groups, self._sent_back):
            for key in [key for key in flows if key[1] == group]:
                del flows[key]

    # --- sampling ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take samples for as long as the broker runs."""
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            self.sample()

    def sample(self) -> None:
        for count_up in self._before_sample:
            count_up()
        now_ms = self._clock.now_ms()
        for totals in (self.put, self.got_total, self.found, self.missed):
            totals.sample(now_ms)
        if _day(now_ms) != self._today:
            self._today = _day(now_ms)
            self.put_mornings.new_day(self.put.messages)
            self.got_mornings.new_day(self.got_total.messages)
        if now_ms >= self._flows_due_ms:
            self._flows_due_ms = now_ms + LEAST_MS
            self._sample_flows(now_ms)

    def _sample_flows(self, now_ms: int) -> None:
        for flow in self._flows():
            flow.sample(now_ms)
        _drop_unused(self._topics, now_ms - DAY_MS)
        _drop_unused(self._groups, now_ms - DAY_MS)
        _drop_unused(self._sent_back, now_ms - DAY_MS)

    def _flows(self) -> Iterator[Flow]:
        yield self._all_put
        yield self._all_got
        yield from self._topics.values()
        yield from self._groups.values()
        yield from self._sent_back.values()

    # --- questions ---------------------------------------------------------------------------------------------------

    def topic_tps(self, topic: str) -> float:
        return self._tps(self._topics.get(topic))

    def group_tps(self, group: str, topic: str) -> float:
        return self._tps(self._groups.get((topic, group)))

    def _tps(self, flow: Flow | None) -> float:
        return 0.0 if flow is None else flow.rates(self._clock.now_ms())[0].per_second

    def rates(self, name: str, key: str) -> tuple[Rate, Rate, Rate] | None:
        """Of RocketMQ's name and key: in the last minute, hour and day. None: nothing is known by it."""
        flow = self._flow(name, key)
        return None if flow is None else flow.rates(self._clock.now_ms(), of_size=name.endswith("_SIZE"))

    def _flow(self, name: str, key: str) -> Flow | None:
        topic, _, group = key.partition("@")
        match name:
            case "TOPIC_PUT_NUMS" | "TOPIC_PUT_SIZE":
                return self._topics.get(key)
            case "GROUP_GET_NUMS" | "GROUP_GET_SIZE":
                return self._groups.get((topic, group))
            case "SNDBCK_PUT_NUMS":
                return self._sent_back.get((topic, group))
            case "BROKER_PUT_NUMS":
                return self._all_put
            case "BROKER_GET_NUMS":
                return self._all_got
        return None


def _day(now_ms: int) -> date:
    return datetime.fromtimestamp(now_ms / 1000).astimezone().date()


def _drop_unused(flows: dict[Key, Flow], before_ms: int) -> None:
    for key in [key for key, flow in flows.items() if flow.used_ms < before_ms]:
        del flows[key]
