"""Commit a change; retry after a concurrent compaction, which moves no offsets."""

from __future__ import annotations

from dataclasses import replace

from pyromq.errors import LakeConflict
from pyromq.spark.lake.model import Change, Head, Lake

#: Give up after this many lost races: another writer is committing in a loop.
ATTEMPTS = 5


def commit(lake: Lake, change: Change) -> Head:
    """Raises LakeConflict when offsets have moved since, or files that the change replaces are gone."""
    for _ in range(ATTEMPTS):
        try:
            return lake.commit(change)
        except LakeConflict:
            head = lake.head()
            if head.version == change.base.version or not _still_holds(lake, change, head):
                raise
            # A rewrite moves no offsets: it takes over those of the newer commit, or that one's rows would come again.
            offsets = head.offsets if change.why == "compact" else change.offsets
            change = replace(change, base=head, offsets=offsets)
    return lake.commit(change)


def _still_holds(lake: Lake, change: Change, head: Head) -> bool:
    if change.why == "compact":
        live = {file.path for file in lake.files()}
        return all(file.path in live for file in change.removed)
    return dict(head.offsets) == dict(change.base.offsets)
