"""The offset ranges of an archive's next commit, one for each queue. Pure.

A queue that the lake has continues after the last commit; a new queue begins at the plan's start. If the queue's first
offset is above that, messages are lost: the report says so, and the run fails unless the plan allows loss.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyromq.errors import DataLoss
from pyromq.spark.source.limits import shares
from pyromq.spark.source.loss import Standing, gone, made_anew, standing
from pyromq.spark.source.queue_json import parse_queue_name

log = logging.getLogger("pyromq.spark")

WHAT_TO_DO = (
    "To archive what is left allow the loss (fail_on_data_loss = False, or --skip-lost); archive more often than "
    "brokers remove messages"
)

#: Of a queue, as `topic@broker@id`: its first offset, and the one behind its last.
Bounds = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Step:
    """One commit to be."""

    #: Of each queue that has something, from where to where.
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: The lake's offsets after the commit: of these queues and of all others it has.
    offsets: dict[str, int] = field(default_factory=dict)
    #: Messages that were gone before they could be read.
    lost: int = 0

    @property
    def count(self) -> int:
        return sum(end - start for start, end in self.ranges.values())


def next_step(
    reached: Mapping[str, int], bounds: Bounds, begins: Mapping[str, int], *, most: int, fails_on_loss: bool
) -> Step:
    """`begins` has the first offset of queues that the lake does not know. Raises DataLoss."""
    starts: dict[str, int] = {}
    lost = 0
    for queue, (first, end) in sorted(bounds.items()):
        wanted = reached.get(queue, begins.get(queue, first))
        starts[queue] = _start(queue, wanted, first, end, fails_on_loss=fails_on_loss)
        lost += max(first - wanted, 0)
    given = shares({queue: bounds[queue][1] - start for queue, start in starts.items()}, most)
    ends = {queue: start + given.get(queue, 0) for queue, start in starts.items()}
    ranges = {queue: (start, ends[queue]) for queue, start in starts.items() if ends[queue] > start}
    return Step(ranges, {**reached, **ends}, lost)


def _start(queue: str, wanted: int, first: int, end: int, *, fails_on_loss: bool) -> int:
    found = standing(wanted, first, end)
    if found is Standing.WITHIN:
        return wanted
    name = parse_queue_name(queue)
    said = gone(name, wanted, first) if found is Standing.TOO_OLD else made_anew(name, wanted, end)
    if fails_on_loss:
        raise DataLoss(f"{said}. {WHAT_TO_DO}")
    log.warning("%s; the archive goes on at offset %d", said, first)
    return first


def within(bounds: Bounds, target: Bounds, reached: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Not beyond what there was when the job began: one that does not follow has an end. Another may be further."""
    return {
        queue: (first, max(first, min(end, max(target[queue][1], reached.get(queue, 0)))))
        for queue, (first, end) in bounds.items()
        if queue in target
    }


def vanished(reached: Mapping[str, int], bounds: Bounds, is_wanted: Callable[[str], bool]) -> list[str]:
    """The queues of wanted topics that the lake knows and that cannot be read now."""
    return [queue for queue in sorted(reached.keys() - bounds.keys()) if is_wanted(parse_queue_name(queue).topic)]
