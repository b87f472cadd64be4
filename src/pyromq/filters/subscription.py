"""What a consumer group wants of a topic, ready to be asked by whoever reads the topic's queues.

Reading has two stages. At a queue entry only the tag's code is known: `tag_codes` says which may pass (None: all).
With the record at hand, `matches_properties` decides, and needs to be asked only if `needs_properties`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pyromq.errors import FilterSyntaxError
from pyromq.filters.sql92 import compile_sql
from pyromq.filters.tags import EVERYTHING, TagFilter, parse_tags

TAG = "TAG"
SQL92 = "SQL92"


class MessageFilter(Protocol):
    """What a tag filter and an SQL92 filter have in common."""

    @property
    def tag_codes(self) -> frozenset[int] | None: ...

    @property
    def needs_properties(self) -> bool: ...

    def matches_properties(self, properties: Mapping[str, str]) -> bool: ...


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic's subscription. `version` is the consumer's: the higher one is the newer one."""

    topic: str
    expression: str
    kind: str
    version: int
    tags: frozenset[str]
    #: Follows from `kind` and `expression`.
    filter: MessageFilter = field(compare=False, repr=False)


def build(topic: str, text: str | None, kind: str | None, version: int) -> Subscription:
    """A subscription as it comes over the wire, where no kind means TAG and no tag expression means everything."""
    if not kind or kind == TAG:
        by_tag: TagFilter = parse_tags(text or "")
        return Subscription(topic, text or EVERYTHING, TAG, version, by_tag.tags, by_tag)
    if kind != SQL92:
        raise FilterSyntaxError(0, f"expected an expression of type {TAG} or {SQL92}, found type {kind[:40]}")
    return Subscription(topic, text or "", SQL92, version, frozenset(), compile_sql(text or ""))
