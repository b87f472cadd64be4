"""A consumer group's filter of a topic, compiled for the readers of the topic's queues.

Reading has two stages. At a queue entry only the tag's code is known: `tag_codes` says which may pass (None: all).
With the record at hand, `matches_properties` decides, and needs to be asked only if `needs_properties`.

Subscribing by tag: `*`, or tags joined with `||`.

Read as RocketMQ reads it, corners included: nothing and `*` alone mean every message; blanks around a tag do not
count, and neither do empty places between bars. A star with other characters, even blanks, is a tag like any
other, and an expression of blanks names no tag, so nothing matches it. Bars with nothing at all between them are
refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pyromq.errors import FilterSyntaxError
from pyromq.filters.sql92 import compile_sql
from pyromq.records.java_hash import java_hash, java_trim
from pyromq.records.properties import TAGS

EVERYTHING = "*"
#: In characters, as for SQL92, and tags that are named. A filter of the largest size is made in some thousandths of a
#: second, and takes about half a megabyte.
MAX_LENGTH = 65_536
MAX_TAGS = 4096


@dataclass(frozen=True, slots=True)
class TagFilter:
    """Which tags are wanted; `codes` is None when all are, also messages without a tag."""

    codes: frozenset[int] | None
    tags: frozenset[str]

    def matches(self, tag: str | None) -> bool:
        return self.codes is None or tag in self.tags

    @property
    def tag_codes(self) -> frozenset[int] | None:
        return self.codes

    @property
    def needs_properties(self) -> bool:
        """Codes decide. Two tags may share one, which RocketMQ leaves to the client to sort out."""
        return False

    def matches_properties(self, properties: Mapping[str, str]) -> bool:
        return self.matches(properties.get(TAGS))


ALL_TAGS = TagFilter(None, frozenset())


def parse_tags(text: str) -> TagFilter:
    """The filter of a tag expression; raises `FilterSyntaxError` when it is only bars, or too large."""
    if text in ("", EVERYTHING):
        return ALL_TAGS
    if len(text) > MAX_LENGTH:
        raise FilterSyntaxError(MAX_LENGTH, f"it is longer than {MAX_LENGTH} characters")
    places = text.split("||")
    if not any(places):
        raise FilterSyntaxError(0, "expected a tag beside ||; write * to get every message")
    tags = frozenset(tag for place in places if (tag := java_trim(place)))
    if len(tags) > MAX_TAGS:
        raise FilterSyntaxError(0, f"it names {len(tags)} tags, the limit is {MAX_TAGS}")
    return TagFilter(frozenset(map(java_hash, tags)), tags)


TAG = "TAG"
SQL92 = "SQL92"


class MessageFilter(Protocol):
    """The common interface of tag filters and SQL92 filters."""

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
