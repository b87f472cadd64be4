"""The progress of groups on a slave: its master's, clamped to the queues here, and what consumers told the slave.

The master's table is kept as it was told, so that a change of a few groups is merged without a look at all others. An
offset that is beyond the end of its queue here is looked at again with every change, until the queue has grown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pyromq.model import names
from pyromq.replication.progress_merge import Place, merge
from pyromq.store.tables.offset_files import ConsumerOffsets

#: A topic and a group.
Pair = tuple[str, str]


class ProgressCopy:
    """Merges the progress of the master into that of the slave. No input or output."""

    def __init__(
        self, offsets: ConsumerOffsets, taken: Mapping[Place, int], queue_end: Callable[[str, int], int]
    ) -> None:
        self._offsets = offsets
        self._taken: dict[Pair, Mapping[int, int]] = by_pairs(taken)
        self._queue_end = queue_end
        self._told: dict[Pair, Mapping[int, int]] = {}
        #: Those with an offset beyond the end of its queue here.
        self._clamped: set[Pair] = set()
        #: Of the slave's own table after the last merge.
        self._token: str | None = None

    def taken(self) -> dict[Pair, Mapping[int, int]]:
        """Return the offsets copied from the master or sent to it: other offsets were committed by consumers here."""
        return dict(self._taken)

    def was_told(self, place: Place, offset: int) -> None:
        """The master has heard what consumers told here."""
        pair = place.topic, place.group
        self._taken[pair] = {**self._taken.get(pair, {}), place.queue: offset}

    def whole(self, told: Mapping[Pair, Mapping[int, int]]) -> dict[Place, int]:
        """Merge a whole table of the master; what it has to hear."""
        self._told = {pair: by_queue for pair, by_queue in told.items() if not is_transactions(pair)}
        mine = [pair for pair in self._offsets.pairs() if not is_transactions(pair)]
        if not self._told:  # a master that lost its table must not take ours with it
            self._told = {pair: self._own_taken(pair) for pair in mine}
        self._clamped.clear()
        pairs = self._told.keys() | set(mine)
        self._taken = {pair: by_queue for pair, by_queue in self._taken.items() if pair in pairs}
        return self._merge(pairs)

    def _own_taken(self, pair: Pair) -> dict[int, int]:
        topic, group = pair
        taken = self._taken.get(pair, {})
        own = self._offsets.offsets_of(group, topic)
        return {queue: offset for queue, offset in own.items() if taken.get(queue) == offset}

    def changed(self, told: Mapping[Pair, Mapping[int, int]]) -> dict[Place, int]:
        """Merge the pairs that changed on the master, an empty one is gone; what it has to hear."""
        for pair, by_queue in told.items():
            if by_queue:
                self._told[pair] = by_queue
            else:
                self._told.pop(pair, None)
        own = self._offsets.changed_since(self._token)
        pairs = {*told, *(self._told if own is None else own), *self._clamped}
        return self._merge(pair for pair in pairs if not is_transactions(pair))

    def _merge(self, pairs: Iterable[Pair]) -> dict[Place, int]:
        to_tell: dict[Place, int] = {}
        for pair in pairs:
            topic, group = pair
            told = self._fitting(pair)
            mine, taken = self._offsets.offsets_of(group, topic), self._taken.get(pair, {})
            if mine == taken:  # consumers told nothing here, as is usual
                offsets, news = told, dict[Place, int]()
            else:
                offsets, news = self._merged(pair, told, mine, taken)
            if offsets != mine:
                self._offsets.replace(group, topic, offsets)
            self._taken[pair] = {
                queue: offset for queue, offset in offsets.items() if Place(topic, group, queue) not in news
            } if news else offsets  # fmt: skip
            if not offsets:
                del self._taken[pair]
            to_tell |= news
        self._token = self._offsets.token
        return to_tell

    def _fitting(self, pair: Pair) -> dict[int, int]:
        """The master's offsets, no further than the queues here."""
        topic, _ = pair
        found: dict[int, int] = {}
        self._clamped.discard(pair)
        for queue, offset in self._told.get(pair, {}).items():
            end = self._queue_end(topic, queue)
            if offset > end:
                self._clamped.add(pair)
            found[queue] = min(offset, end)
        return found

    @staticmethod
    def _merged(
        pair: Pair, told: Mapping[int, int], mine: Mapping[int, int], taken: Mapping[int, int]
    ) -> tuple[dict[int, int], dict[Place, int]]:
        master, slave, before = (
            {Place(*pair, queue): offset for queue, offset in table.items()} for table in (told, mine, taken)
        )
        merged = merge(master, slave, before)
        return {place.queue: offset for place, offset in merged.offsets.items()}, merged.to_tell


def by_pairs(places: Mapping[Place, int]) -> dict[Pair, Mapping[int, int]]:
    found: dict[Pair, dict[int, int]] = {}
    for place, offset in places.items():
        found.setdefault((place.topic, place.group), {})[place.queue] = offset
    return dict(found)


def is_transactions(pair: Pair) -> bool:
    """Return whether it is a position of the broker's own, which depends on more than its queue."""
    topic, group = pair
    return group == names.TRANSACTION_GROUP and topic in names.TRANSACTION_TOPICS
