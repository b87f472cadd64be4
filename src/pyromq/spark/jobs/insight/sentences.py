"""The three most important sentences of a report: the volume first, then the most urgent findings.

Each candidate has a weight: 0 is not worth a sentence, 100 is urgent. If there are fewer problems than sentences, the
rest say which parts are healthy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pyromq.spark.jobs.insight.findings import Findings, QueueFacts
from pyromq.spark.jobs.insight.scales import amount, counted, duration, moment, percent, times

#: A queue with fewer messages than this may have its share by chance.
ENOUGH_MESSAGES = 100
SKEWED = 1.5
SLOW_MS = 1000.0
FAR_BEHIND = 1000


class Remark(NamedTuple):
    weight: float
    text: str


def sentences(found: Findings, count: int = 3) -> list[str]:
    if not found.total:
        return [_nothing(found)]
    worries = sorted((one for one in _worries(found) if one.weight > 0), key=lambda one: -one.weight)
    said = [_volume(found), *(one.text for one in worries)]
    return [*said, *_comforts(found)][:count]


def _nothing(found: Findings) -> str:
    return f"No messages were found in {found.source}."


def _volume(found: Findings) -> str:
    first = found.topics[0]
    rate = f"{_rate(found.rate)} on average over {duration(found.span_ms)}"
    if len(found.topics) == 1:
        return f"{first.topic} is the only topic: {counted(first.messages, 'message')}, {rate}."
    share = percent(first.messages / found.total)
    return (
        f"{first.topic} is {share} of the volume: {amount(first.messages)} of "
        f"{counted(found.total, 'message')} in {len(found.topics)} topics, {rate}."
    )


def _rate(a_second: float) -> str:
    if a_second >= 1:
        return f"{amount(a_second)} a second"
    return f"{amount(a_second * 60)} a minute" if a_second * 60 >= 1 else f"{amount(a_second * 3600)} an hour"


def _worries(found: Findings) -> Iterator[Remark]:
    yield _dead_letters(found)
    yield _lag(found)
    yield _skew(found)
    yield _latency(found)
    yield _failures(found)
    yield _retries(found)
    yield _clocks(found)
    yield _peak(found)


def _dead_letters(found: Findings) -> Remark:
    if not found.dead_count:
        return Remark(0, "")
    worst = max(found.dead, key=lambda one: one.messages)
    groups = {one.group for one in found.dead}
    who = f"all of the group {worst.group}" if len(groups) == 1 else f"{worst.group} has most of them"
    ended = counted(found.dead_count, "message ended", "messages ended")
    return Remark(90, f"{ended} in dead letters, {who}; the newest at {moment(max(o.newest_ms for o in found.dead))}.")


def _lag(found: Findings) -> Remark:
    worst = max(found.lag, key=lambda one: one.last, default=None)
    if worst is None or worst.last < FAR_BEHIND:
        return Remark(0, "")
    grows = worst.last >= worst.most
    how = "as far as it ever was" if grows else f"down from {amount(worst.most)}"
    return Remark(
        85 if grows else 55, f"{worst.group} is {amount(worst.last)} messages behind in {worst.topic}, {how}."
    )


def _skew(found: Findings) -> Remark:
    worst = max(_judged_queues(found), key=lambda one: one.times_fair, default=None)
    if worst is None or worst.times_fair < SKEWED:
        return Remark(0, "")
    where = f"Queue {worst.queue_id} of {worst.topic}"
    weight = min(30 + 10 * worst.times_fair, 80)
    return Remark(weight, f"{where} gets {times(worst.times_fair)} its share: {counted(worst.messages, 'message')}.")


def _judged_queues(found: Findings) -> list[QueueFacts]:
    return [one for one in found.queues if one.messages >= ENOUGH_MESSAGES]


def _latency(found: Findings) -> Remark:
    """The topic whose slow messages are the most."""
    worst = max((one for one in found.topics if one.latency), key=lambda one: one.latency.p99, default=None)  # type: ignore[union-attr]
    if worst is None or worst.latency is None or worst.latency.p99 < SLOW_MS:
        return Remark(0, "")
    weight = 40 + 20 * min(worst.latency.p99 / 60_000, 1)
    return Remark(
        weight,
        f"1 in 100 messages of {worst.topic} takes {duration(worst.latency.p99)} or more to be stored, where half take "
        f"{duration(worst.latency.p50)} at most.",
    )


def _failures(found: Findings) -> Remark:
    worst = max(found.consuming, key=lambda one: one.failed, default=None)
    if worst is None or not worst.failed:
        return Remark(0, "")
    share = worst.failed / max(worst.messages, 1)
    return Remark(35 + 40 * share, f"{worst.group} failed at {percent(share)} of what it handled from {worst.topic}.")


def _retries(found: Findings) -> Remark:
    if not found.retry_count:
        return Remark(0, "")
    worst = max(found.retries, key=lambda one: one.messages)
    came = counted(found.retry_count, "delivery was a retry", "deliveries were retries")
    return Remark(45, f"{came}, most of them of the group {worst.group}: some messages up to {worst.most_tries} times.")


def _clocks(found: Findings) -> Remark:
    early = sum(one.early for one in found.topics)
    if not early:
        return Remark(0, "")
    share = percent(early / found.total)
    return Remark(
        20, f"{share} of the messages were stored before they were born: a client's clock is ahead of the brokers'."
    )


def _peak(found: Findings) -> Remark:
    windows = found.windows
    mean, most = sum(windows) / max(len(windows), 1), max(windows, default=0)
    if len(windows) < 5 or most < 3 * mean:
        return Remark(0, "")
    at = moment(found.starts[windows.index(most)])
    rate = _rate(most * 1000 / found.window_ms)
    return Remark(25, f"The peak was {times(most / mean)} the average: {rate} at {at}.")


def _comforts(found: Findings) -> Iterator[str]:
    slowest = max((one.latency.p99 for one in found.topics if one.latency), default=None)
    if slowest is not None and slowest < SLOW_MS:
        yield f"99 in 100 messages of every topic are stored within {duration(max(slowest, 1))} of being sent."
    if not found.dead_count and not found.retry_count:
        yield "No message was retried or ended in dead letters."
    queues = _judged_queues(found)
    if queues and max(one.times_fair for one in queues) < SKEWED:
        yield "Every queue gets about its share."
    if found.windows:
        yield f"The busiest {duration(found.window_ms)} had {counted(max(found.windows), 'message')}."
