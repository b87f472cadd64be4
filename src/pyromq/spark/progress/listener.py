"""Makes streams visible as consumer groups: after each batch, the last one included, the brokers hear how far it went.

    from pyromq.spark.progress.listener import GroupProgress
    spark.streams.addListener(GroupProgress("localhost:9876", group="reports", query="reports", history="lag/"))

`pyromq consumer lag reports` shows the progress then. The end offset of each queue is read after each batch: Spark's
own figures compare a batch with the ends when it was planned, which makes every lag 0. Lags go to the
callback `on_lag`, and to the lag history that `pyromq spark insight` draws (see `lag_history`).

Spark calls a listener on its own thread. The query neither waits nor fails here: see `lag`. With Spark Connect it is
called where the client is, which must reach the brokers then. A program that ends without `spark.stop()` may end before
Spark tells of the last batch: it calls `report(query.lastProgress)` and `flush()` itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from pyromq.client.options import parse_name_servers
from pyromq.clock import Clock
from pyromq.model.names import check_group
from pyromq.model.queue import MessageQueue
from pyromq.spark.connecting import Cluster
from pyromq.spark.option_reader import INT64_MAX
from pyromq.spark.progress.lag import Courier, Heard, QueueStand
from pyromq.spark.progress.lag_history import LagHistory
from pyromq.spark.source.queue_json import parse_queue_name

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

#: The end of a query waits this long for brokers to acknowledge its last batch.
END_SECONDS = 5.0


class GroupProgress(StreamingQueryListener):
    """Tells a cluster how far queries are, as one consumer group.

    `query` is the name or the id of the only query that counts; without it all queries that read from topics do. For a
    cluster with keys or TLS, give a `Cluster` instead of the name servers.
    """

    def __init__(
        self,
        namesrv: str | Cluster,
        group: str,
        *,
        query: str | None = None,
        on_lag: Heard | None = None,
        history: str | os.PathLike[str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        cluster = namesrv if isinstance(namesrv, Cluster) else Cluster(namesrv)
        parse_name_servers(cluster.name_servers)
        check_group(group)
        self._query = query
        kept = None if history is None else LagHistory(history)
        listeners = [one for one in (kept, on_lag) if one is not None]
        self._courier = Courier(cluster, group, _all_of(listeners) if listeners else None, clock)

    def report(self, progress: StreamingQueryProgress | Mapping[str, Any] | None) -> None:
        """Tell of one progress: `query.lastProgress`, for a program that ends before Spark calls its listeners. That is
        None before the first batch."""
        if progress is None:
            return
        form = progress if isinstance(progress, Mapping) else json.loads(progress.json)
        name, query_id = form.get("name"), str(form.get("id"))
        if self._query not in (None, name, query_id):
            return
        offsets = read_offsets(source.get("endOffset") for source in form.get("sources") or ())
        if offsets:
            self._courier.offer(name or query_id, offsets)

    def flush(self, seconds: float = END_SECONDS) -> bool:
        """Wait until the brokers have heard it all; False when that takes longer."""
        return self._courier.flush(seconds)

    # --- what Spark calls --------------------------------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing is done yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        self.report(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing is new."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        self.flush()


def _all_of(listeners: Sequence[Heard]) -> Heard:
    def heard(stands: Sequence[QueueStand]) -> None:
        for listener in listeners:
            listener(stands)

    return heard


def read_offsets(ends: Iterable[object]) -> dict[MessageQueue, int]:
    """The queues of all sources of a query, each as far as it is done everywhere. Offsets of other sources, and the
    placeholder of a stream that has not begun, count for nothing."""
    found: dict[MessageQueue, int] = {}
    for end in ends:
        for queue, offset in _queues_in(end):
            found[queue] = min(offset, found.get(queue, offset))
    return found


def _queues_in(end: object) -> Iterable[tuple[MessageQueue, int]]:
    try:
        form = json.loads(end) if isinstance(end, str) else end
        queues = form["q"] if isinstance(form, dict) and form.get("v") == 1 else {}
        return [(parse_queue_name(name), offset) for name, offset in queues.items() if _is_offset(offset)]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []


def _is_offset(value: object) -> bool:
    return type(value) is int and 0 <= value <= INT64_MAX
