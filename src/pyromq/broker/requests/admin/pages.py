"""Long lists in pages, as newer admin tools ask for them. Pure.

A page is a part of the names in their order. It holds for one version of the list: who names another one, or none,
starts from the beginning again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from pyromq.errors import NotJson, WrongShape
from pyromq.model.data_version import DataVersion
from pyromq.wire.bodies.routes import decode_data_version

#: RocketMQ's own figure: some 600 KB.
PAGE_SIZE = 2000


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class _Wanted(Protocol):
    """A request that asks for a page; all three None: for everything."""

    first: int | None
    version: str | None
    most: int | None


Item = TypeVar("Item", bound=_Named)


def page_of(items: Iterable[Item], wanted: _Wanted, version: DataVersion) -> list[Item]:
    """Return the requested page of the items."""
    ordered = sorted(items, key=lambda item: item.name)
    if wanted.first is None and wanted.version is None and wanted.most is None:
        return ordered
    most = PAGE_SIZE if wanted.most is None or wanted.most <= 0 else min(wanted.most, PAGE_SIZE)
    first = max(wanted.first or 0, 0) if _is_version(wanted.version, version) else 0
    return ordered[first : first + most]


def _is_version(told: str | None, version: DataVersion) -> bool:
    try:
        asked = decode_data_version((told or "").encode())
    except (NotJson, WrongShape, UnicodeEncodeError):
        return False
    return (asked.timestamp_ms, asked.counter, asked.state_version) == (
        version.timestamp_ms,
        version.counter,
        version.state_version,
    )
