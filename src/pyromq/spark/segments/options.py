"""The options of `format("pyromq-segments")`, read and checked on the driver, before anything is looked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pyromq.errors import ConfigError
from pyromq.spark.decode.columns import NAMES, parse_columns
from pyromq.spark.option_reader import Given

KNOWN = (
    "path", "paths", "topics", "subscribe", "columns", "startingTimestamp", "endingTimestamp", "splitBytes",
    "minPartitions", "verifyCrc", "includeSystem", "broker", "failOnDataLoss",
)  # fmt: skip

#: More partitions than this are a mistake, not a wish.
MOST_PARTITIONS = 1_000_000


@dataclass(frozen=True, slots=True)
class SegmentsOptions:
    """The location of the files, and the wanted topics, times and columns."""

    #: `path`, or all that `load` was given.
    places: tuple[str, ...]
    #: None: all topics.
    topics: frozenset[str] | None = None
    columns: tuple[str, ...] = NAMES
    #: By the time at which they were stored: from this one on, and before that one.
    from_ms: int | None = None
    until_ms: int | None = None
    split_bytes: int | None = None
    min_partitions: int | None = None
    verify_crc: bool = False
    #: The broker's own bookkeeping too: halves of transactions, delayed messages that wait.
    include_system: bool = False
    #: The value of the column of this name.
    broker: str | None = None
    fail_on_data_loss: bool = True


def segments_options(options: Mapping[str, str]) -> SegmentsOptions:
    """Raises ConfigError, which names the option."""
    given = _given(options)
    given.refuse_together("topics", ["subscribe"], "they are two names for one thing")
    from_ms, until_ms = given.moment_ms("startingTimestamp"), given.moment_ms("endingTimestamp")
    if from_ms is not None and until_ms is not None and from_ms > until_ms:
        raise ConfigError("startingTimestamp is later than endingTimestamp: nothing is between them", "endingTimestamp")
    columns = given.text("columns")
    return SegmentsOptions(
        places=_places(given),
        topics=_topics(given),
        columns=NAMES if columns is None else parse_columns(columns),
        from_ms=from_ms,
        until_ms=until_ms,
        split_bytes=given.size("splitBytes", least=1024),
        min_partitions=given.number("minPartitions", least=1, most=MOST_PARTITIONS),
        verify_crc=given.flag("verifyCrc", False),
        include_system=given.flag("includeSystem", False),
        broker=given.text("broker"),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
    )


def _given(options: Mapping[str, str]) -> Given:
    try:
        return Given(options, KNOWN)
    except ConfigError as unknown:
        known = ", ".join(name for name in KNOWN if name != "paths")
        raise ConfigError(f"{unknown}; pyromq-segments has the options {known}", unknown.setting) from None


def _places(given: Given) -> tuple[str, ...]:
    given.refuse_together("path", ["paths"], "name all places in one of them")
    several = given.text("paths")
    if several is None:
        return (given.required("path", "/data/store"),)
    try:
        found = json.loads(several)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not found or not all(isinstance(place, str) and place for place in found):
        raise given.wrong("paths", 'it is a list in JSON, as in ["/data/a", "/data/b"]')
    return tuple(found)


def _topics(given: Given) -> frozenset[str] | None:
    name = "topics" if given.text("topics") is not None else "subscribe"
    text = given.text(name)
    if text is None:
        return None
    topics = frozenset(topic.strip() for topic in text.split(",") if topic.strip())
    if not topics:
        raise given.wrong(name, "it is the names of topics, with commas between them")
    return topics
