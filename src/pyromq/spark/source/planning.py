"""The ranges of a batch and of a stream's next batch, from the cluster's offsets and the rules.

The rules are in `offsets`, `limits` and `loss`; the requests in `discovery`. This module decides which to send when.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from pyromq.errors import ConfigError, PyroMQError, TopicNotFound
from pyromq.model.queue import MessageQueue
from pyromq.spark.progress.lag import report_progress
from pyromq.spark.source import loss, offsets
from pyromq.spark.source.discovery import Bounds, Survey
from pyromq.spark.source.limits import Patience, earlier, within_bytes, within_rows
from pyromq.spark.source.loss import Standing, standing
from pyromq.spark.source.offsets import Form, Span
from pyromq.spark.source.options import Limits, SourceOptions, Start, Where
from pyromq.spark.source.queue_json import ANY_BROKER, ANY_QUEUE, Kind, found_for, queue_name

log = logging.getLogger("pyromq.spark")

#: Look for new queues and topics at this interval.
LOOK_AROUND_SECONDS = 2.0


class BatchPlan:
    """The ranges of a batch query."""

    def __init__(self, options: SourceOptions, survey: Survey | None = None) -> None:
        self._options = options
        self._survey = survey or Survey(options)

    def spans(self) -> list[Span]:
        """Raises TopicNotFound, DataLoss, CallFailed."""
        queues = _some(self._survey.queues(), self._options)
        starts = self._survey.places(self._options.starting, queues)
        bounds = self._survey.bounds(queues)  # later than the starts, which are before the ends therefore
        ends = self._ends(queues, bounds)
        return [Span(queue, self._start(queue, starts[queue], bounds[queue]), ends[queue]) for queue in queues]

    def _start(self, queue: MessageQueue, start: int, bounds: Bounds) -> int:
        fails = self._options.fails_on_loss
        if self._options.starting.start in (Start.EARLIEST, Start.TIME):
            return max(start, bounds.first)  # retention may move the first offset at any time
        match standing(start, bounds.first, bounds.end):
            case Standing.TOO_OLD:
                loss.lose(loss.gone(queue, start, bounds.first), fails=fails, goes_on="it is read from there")
                return bounds.first
            case Standing.AHEAD:
                loss.lose(loss.made_anew(queue, start, bounds.end), fails=fails, goes_on="nothing of it is read")
        return start

    def _ends(self, queues: Collection[MessageQueue], bounds: Mapping[MessageQueue, Bounds]) -> dict[MessageQueue, int]:
        """Not beyond what there is. A queue that the ends do not name is read to its end."""
        ending = self._options.ending
        if ending.start is Start.LATEST:
            return {queue: bounds[queue].end for queue in queues}
        named = [queue for queue in queues if ending.start is Start.TIME or _is_named(ending, queue)]
        places = self._survey.places(ending, named)
        return {queue: min(places.get(queue, bounds[queue].end), bounds[queue].end) for queue in queues}


def _is_named(where: Where, queue: MessageQueue) -> bool:
    return found_for(queue, where.named or {}) is not None


def _some(queues: list[MessageQueue], options: SourceOptions) -> list[MessageQueue]:
    """Raises TopicNotFound for a topic or queue that is named and not there, ConfigError for offsets of such a one."""
    missing = set(options.selection.topics) - {queue.topic for queue in queues}
    if missing:
        raise TopicNotFound(
            f"there is no topic {', '.join(map(repr, sorted(missing)))} that can be read: `pyromq topic list` shows "
            "those there are"
        )
    absent = _exact(options.selection.assigned) - set(queues)
    if absent or (options.selection.assigned and not queues):
        named = ", ".join(map(queue_name, sorted(absent or options.selection.assigned)))
        raise TopicNotFound(
            f"the option assign names {named}, which is not there: `pyromq topic describe` shows queues"
        )
    for where, option in ((options.starting, "startingOffsets"), (options.ending, "endingOffsets")):
        for queue in sorted(_exact(where.named or {}) - set(queues)):
            raise ConfigError(f"the option {option} names {queue_name(queue)}, which is not among what is read", option)
    return queues


def _exact(names: Iterable[MessageQueue]) -> set[MessageQueue]:
    return {name for name in names if name.broker_name != ANY_BROKER and name.queue_id != ANY_QUEUE}


class StreamPlan:
    """The start and end offsets of a stream's batches. Lives as long as the query."""

    def __init__(self, options: SourceOptions, survey: Survey | None = None) -> None:
        self._options = options
        self._survey = survey or Survey(options)
        self._around = Around(options, self._survey)
        #: The end of an `availableNow` query.
        self._target: Mapping[MessageQueue, int] | None = None
        self._patience: Patience | None = None
        #: Queues that are gone for good.
        self._given_up: set[MessageQueue] = set()
        self._reported: Form | None = None
        if (least := options.limits.min_offsets) is not None:
            self._patience = Patience(least, options.limits.max_delay_s, self._survey.now_s)

    # --- where to begin ----------------------------------------------------------------------------------------------

    def initial(self) -> Form:
        """A constant, unless asking again gives the same: Spark asks again after a failure, see `offsets`."""
        starting = self._options.starting
        if not is_steady(starting, self._options.new_queues):
            return offsets.beginning(starting.start.value)
        return offsets.to_form(self._begin())

    def _begin(self) -> dict[MessageQueue, int]:
        queues = _some(self._survey.queues(), self._options)
        places = self._survey.places(self._options.starting, queues)
        self._around.forget()  # cached ends may be below these offsets
        return places

    def stop_at_now(self) -> None:
        """Messages and queues that come from now on are for another query."""
        self._around.look()
        self._around.forget()
        self._target = {queue: bounds.end for queue, bounds in self._around.bounds().items()}

    # --- the next batch ----------------------------------------------------------------------------------------------

    def next(self, start: Form, limits: Limits) -> Form:
        """Return the end of the batch that begins at `start`; `start` itself if there is nothing new."""
        if offsets.is_beginning(start):
            return offsets.to_form(self._begin())
        began = offsets.positions(start)
        self._tell(start, began)
        bounds = self._around.bounds_behind(began)
        self._check_vanished(began.keys() - bounds.keys())
        spans = [self._waiting(queue, at, bounds[queue]) for queue, at in began.items() if queue in bounds]
        ends = began | {span.queue: span.start for span in spans}
        ends |= self._limited([span for span in spans if span.count], limits)
        return offsets.to_form(ends | self._new(began, bounds))

    def _tell(self, start: Form, began: Mapping[MessageQueue, int]) -> None:
        """Commit `start` for the group: Spark requests the next batch only after everything before it is processed."""
        if self._options.group is not None and start != self._reported:
            self._reported = start
            report_progress(self._options.cluster, self._options.group, began)

    def _waiting(self, queue: MessageQueue, at: int, bounds: Bounds) -> Span:
        """The readable range of a queue."""
        end = bounds.end if self._target is None else min(bounds.end, self._target.get(queue, 0))
        how = standing(at, bounds.first, bounds.end)
        if how is not Standing.WITHIN and not bounds.is_certain:
            log.warning("%s is known from a copy only, and that has not what is to be read", loss.shown(queue))
            return Span(queue, at, at)
        match how:
            case Standing.TOO_OLD:
                loss.lose(
                    loss.gone(queue, at, bounds.first), fails=self._options.fails_on_loss,
                    goes_on="it is read from there on",
                )  # fmt: skip
                return Span(queue, bounds.first, max(bounds.first, end))
            case Standing.AHEAD:
                loss.lose(
                    loss.made_anew(queue, at, bounds.end), fails=self._options.fails_on_loss,
                    goes_on="it is read from its beginning",
                )  # fmt: skip
                return Span(queue, bounds.first, bounds.first)
        return Span(queue, at, max(at, end))

    def _limited(self, spans: list[Span], limits: Limits) -> dict[MessageQueue, int]:
        if not self._is_worth_it(sum(span.count for span in spans), limits):
            return {span.queue: span.start for span in spans}
        ends = {span.queue: span.end for span in spans}
        if limits.max_offsets is not None:
            ends = within_rows(spans, limits.max_offsets)
        if limits.max_bytes is not None:
            sizes = self._survey.message_sizes((span.queue, span.start) for span in spans)
            ends = earlier(ends, within_bytes(spans, sizes, limits.max_bytes))
        return ends

    def _is_worth_it(self, waiting: int, limits: Limits) -> bool:
        if self._patience is None or limits.min_offsets is None or self._target is not None:
            return True
        return self._patience.is_enough(waiting, self._survey.now_s)

    def _new(self, began: Mapping[MessageQueue, int], bounds: Mapping[MessageQueue, Bounds]) -> dict[MessageQueue, int]:
        """Return queues without an offset: this batch records their start, the next one reads them."""
        earliest = self._options.new_queues is Start.EARLIEST
        return {
            queue: found.first if earliest else found.end
            for queue, found in bounds.items()
            if queue not in began and (self._target is None or queue in self._target)
        }

    def _check_vanished(self, queues: Collection[MessageQueue]) -> None:
        """Wait for an unreachable broker. A broker that answers without the queue has lost it."""
        missing = set(queues) - self._given_up
        if not missing:
            return
        lost = sorted(self._around.lost_of(missing))
        if lost:
            loss.lose(loss.vanished(lost), fails=self._options.fails_on_loss, goes_on="nothing more is read of it")
            self._given_up |= set(lost)

    # --- what a batch reads ------------------------------------------------------------------------------------------

    def spans(self, start: Form, end: Form) -> list[Span]:
        if offsets.is_beginning(start):
            return []
        found = offsets.spans_between(offsets.positions(start), offsets.positions(end))
        bounds = self._around.bounds_of([span.queue for span in found])
        return [self._left(span, bounds.get(span.queue)) for span in found]

    def _left(self, span: Span, bounds: Bounds | None) -> Span:
        """Return the range without messages that retention removed. A task retries an unknown queue."""
        if bounds is None or not bounds.is_certain or span.start >= bounds.first:
            return span
        loss.lose(
            loss.gone(span.queue, span.start, bounds.first), fails=self._options.fails_on_loss,
            goes_on="it is read from there on",
        )  # fmt: skip
        return Span(span.queue, min(bounds.first, span.end), span.end)

    def newest(self) -> Form | None:
        """Return the lag for Spark's progress; None if a broker does not answer: the query must not fail here."""
        try:
            return offsets.to_form({queue: bounds.end for queue, bounds in self._around.bounds().items()})
        except PyroMQError as error:
            log.warning("the progress does not show how far the queues are: %s", error)
            return None


def is_steady(where: Where, new_queues: Start) -> bool:
    """Return whether a repeated request gives the same offset while messages arrive."""
    if where.start is Start.NAMED:
        places = {one.kind for one in (where.named or {}).values()}
        return places <= {Kind.OFFSET, Kind.EARLIEST} and new_queues is Start.EARLIEST
    return where.start is Start.EARLIEST


class Around:
    """The queues of a stream and their ends, remembered for a moment: an idle query asks a hundred times a second."""

    def __init__(self, options: SourceOptions, survey: Survey) -> None:
        self._options = options
        self._survey = survey
        self._queues: list[MessageQueue] = []
        self._bounds: dict[MessageQueue, Bounds] = {}
        self._looked_s = self._asked_s = float("-inf")
        #: Queues whose broker is not there, and when that was found out last.
        self._away: dict[MessageQueue, float] = {}

    def look(self) -> None:
        self._queues = self._survey.queues()
        self._looked_s = self._survey.now_s
        self._away = {queue: since_s for queue, since_s in self._away.items() if queue not in self._queues}

    def forget(self) -> None:
        """Read the end offsets again next time."""
        self._asked_s = float("-inf")

    def bounds(self) -> dict[MessageQueue, Bounds]:
        if self._survey.now_s - self._looked_s >= LOOK_AROUND_SECONDS:
            self.look()
        if self._survey.now_s - self._asked_s >= self._options.offset_poll_s:
            self._bounds = self._survey.bounds(self._queues)
            self._asked_s = self._survey.now_s
        return self._bounds

    def bounds_behind(self, places: Mapping[MessageQueue, int]) -> dict[MessageQueue, Bounds]:
        """The same; ends that are before a place are asked for once more before anything is made of that."""
        if any(queue in places and places[queue] > found.end for queue, found in self.bounds().items()):
            self.forget()
        return self.bounds()

    def bounds_of(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, Bounds]:
        known = self.bounds()
        return {queue: known[queue] for queue in queues if queue in known}

    def lost_of(self, missing: Collection[MessageQueue]) -> set[MessageQueue]:
        """Those queues whose broker is there without them; the others are away with it, and are asked for now and then.

        They are looked for a second time first, a moment later: routes are a little behind.
        """
        fresh = set(missing) - self._away.keys()
        if fresh:
            self._survey.pause()
            self.look()
        now_s = self._survey.now_s
        asked = fresh | {queue for queue in missing if now_s - self._away.get(queue, now_s) >= LOOK_AROUND_SECONDS}
        gone = asked - set(self._queues)
        lost = {queue for queue in gone if queue.broker_name in self._survey.brokers()} if gone else set()
        for queue in sorted(gone - lost):
            if queue not in self._away:
                log.warning("%s is away: it is read on when its broker is back", loss.shown(queue))
            self._away[queue] = now_s
        return lost
