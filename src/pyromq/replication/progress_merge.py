"""The progress of consumer groups while a master and a slave both may be told of it. No input or output.

A slave takes over what its master knows. What consumers told the slave itself, because the master was gone, is newer:
it stays, and flows back to the master, unless the master knows more. What the master set back on purpose stays back:
only offsets committed here since then are sent there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Place(NamedTuple):
    topic: str
    group: str
    queue: int


class Merged(NamedTuple):
    #: The slave's offsets from now on.
    offsets: dict[Place, int]
    #: The offsets to send to the master.
    to_tell: dict[Place, int]


def merge(master: Mapping[Place, int], slave: Mapping[Place, int], taken: Mapping[Place, int]) -> Merged:
    """`taken` is what the slave took over the last time: where it holds something else now, it was told so itself."""
    offsets, to_tell = dict(master), {}
    for place, offset in slave.items():
        if taken.get(place) == offset:
            continue
        known = master.get(place)
        if known is None or offset > known:
            offsets[place] = to_tell[place] = offset
    return Merged(offsets, to_tell)
