"""The options of `spark.read` and `spark.readStream` with `format("pyromq")`, checked before anything is asked.

`connection_of` is for every format of ours: it makes a `Cluster` of `namesrv`, `acl.…` and `client.…`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from pyromq.client.options import parse_name_servers
from pyromq.errors import ConfigError, FilterSyntaxError, IllegalName
from pyromq.filters.subscription import EVERYTHING, SQL92, build, parse_tags
from pyromq.model.names import TOOLS_GROUP, check_group, check_topic
from pyromq.model.queue import MessageQueue
from pyromq.spark.connecting import Cluster
from pyromq.spark.decode.columns import parse_columns
from pyromq.spark.option_reader import Given
from pyromq.spark.source.queue_json import Placed, parse_assigned, parse_placed, parse_times

#: Address and credentials: options of every format that connects to a cluster.
CONNECTION = (
    "namesrv", "acl.accessKey", "acl.secretKey", "client.callTimeoutMs", "client.connectTimeoutMs", "client.tls",
    "client.tlsCa",
)  # fmt: skip
WHAT = ("subscribe", "subscribePattern", "assign")
STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
ENDS = ("endingOffsets", "endingTimestamp")
STREAM_ONLY = (
    "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "newQueues",
    "offsetPollMs",
)  # fmt: skip
SOURCE = (
    *CONNECTION, *WHAT, *STARTS, *ENDS, *STREAM_ONLY, "tags", "sql", "minPartitions", "maxRecordsPerPartition",
    "failOnDataLoss", "group", "readFrom", "mode", "pullBytes", "pullInFlight", "pullTimeoutMs",
    "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "verifyCrc", "columns",
)  # fmt: skip

#: An answer is one frame, which has at most 16 MiB; and larger ones bring nothing.
MOST_PULL_BYTES = 8 << 20
LONGEST_MS = 24 * 3600 * 1000


class Start(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    #: Start at the offsets of a consumer group.
    GROUP = "group"
    #: Start at a store time.
    TIME = "time"
    #: An offset or a time for each queue that is named; the others are as new ones.
    NAMED = "named"


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The place in each queue where reading begins or ends."""

    start: Start
    timestamp_ms: int = 0
    named: Mapping[MessageQueue, Placed] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which messages: the topics, and what the broker is to leave out."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[MessageQueue, ...] = ()
    tags: str | None = None
    sql: str | None = None

    def is_wanted(self, topic: str) -> bool:
        return topic in self.topics or (self.pattern is not None and re.fullmatch(self.pattern, topic) is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulling:
    """The fetch options; executors receive them."""

    cluster: Cluster
    #: Whose pulls they are. No group is needed to read; this is one that every broker has.
    group: str = TOOLS_GROUP
    tags: str | None = None
    sql: str | None = None
    read_from: str = "auto"
    pull_bytes: int = 2 << 20
    in_flight: int = 3
    #: A task retries for this long before it fails.
    patience_s: float = 120.0
    verify_crc: bool = False
    fail_on_data_loss: bool = True

    @property
    def wanted_tags(self) -> frozenset[str] | None:
        """None: all."""
        by_tag = parse_tags(self.tags or EVERYTHING)
        return None if by_tag.codes is None else by_tag.tags


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a stream's batch."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    #: Wait for this many messages, at most for the delay.
    min_offsets: int | None = None
    max_delay_s: float = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Everything, checked."""

    pulling: Pulling
    selection: Selection
    starting: Where
    #: Of a batch; a stream has none.
    ending: Where = Where(start=Start.LATEST)
    new_queues: Start = Start.EARLIEST
    limits: Limits
    min_partitions: int | None = None
    max_records: int | None = None
    group: str | None = None
    offset_poll_s: float = 0.2
    question_retries: int = 30
    question_pause_s: float = 1.0
    columns: tuple[str, ...] | None = None

    @property
    def cluster(self) -> Cluster:
        return self.pulling.cluster

    @property
    def fails_on_loss(self) -> bool:
        return self.pulling.fail_on_data_loss


def connection_of(options: Mapping[str, str] | Given) -> Cluster:
    """Return address and credentials; other options are ignored. Raises ConfigError."""
    given = options if isinstance(options, Given) else Given(_about_connection(options), CONNECTION)
    name_servers = given.required("namesrv", "localhost:9876")
    try:
        parse_name_servers(name_servers)
    except ConfigError as error:
        raise ConfigError(f"the option namesrv cannot be {name_servers!r}: {error}", "namesrv") from None
    access_key, secret_key = given.text("acl.accessKey"), given.text("acl.secretKey")
    if (access_key is None) != (secret_key is None):
        raise ConfigError("acl.accessKey and acl.secretKey belong together: one of them is missing", "acl.accessKey")
    tls_ca = given.text("client.tlsCa")
    return Cluster(
        name_servers=name_servers,
        access_key=access_key,
        secret_key=secret_key,
        tls=given.flag("client.tls", tls_ca is not None),
        tls_ca=tls_ca,
        call_timeout_s=(given.number("client.callTimeoutMs", least=1, most=LONGEST_MS) or 10_000) / 1000,
        connect_timeout_s=(given.number("client.connectTimeoutMs", least=1, most=LONGEST_MS) or 5_000) / 1000,
    )


def _about_connection(options: Mapping[str, str]) -> dict[str, str]:
    names = {name.lower() for name in CONNECTION}
    return {name: value for name, value in options.items() if name.lower() in names}


def batch_options(options: Mapping[str, str]) -> SourceOptions:
    """Of `spark.read`. Raises ConfigError."""
    given = source_given(options)
    given.refuse(STREAM_ONLY, "is for spark.readStream: a batch reads from the start to the end in one go")
    given.refuse_together("endingOffsets", ("endingTimestamp",), "each says where to end")
    starting, ending = _starting(given, Start.EARLIEST), _ending(given)
    if starting.start is Start.LATEST:
        raise given.wrong("startingOffsets", "a batch that begins at the end is empty; use earliest, group or JSON")
    return _source_options(given, starting, ending)


def stream_options(options: Mapping[str, str]) -> SourceOptions:
    """Of `spark.readStream`. Raises ConfigError."""
    given = source_given(options)
    given.refuse(
        ENDS, "is for spark.read: a stream has no end; trigger(availableNow=True) stops at what there is when it starts"
    )
    return _source_options(given, _starting(given, Start.LATEST), Where(start=Start.LATEST))


def check_options(options: Mapping[str, str]) -> None:
    """Raise ConfigError for what neither a batch nor a stream can work with, while it is not known which it will be."""
    try:
        stream_options(options)
    except ConfigError as not_for_streams:
        try:
            batch_options(options)
        except ConfigError as not_for_batches:
            is_stream = any(source_given(options).text(name) for name in STREAM_ONLY)
            raise (not_for_streams if is_stream else not_for_batches) from None


def source_given(options: Mapping[str, str]) -> Given:
    """All that is known is let in. Raises ConfigError for the rest, above all for the path of `load(path)`."""
    if any(name.lower() == "path" for name in options):
        raise ConfigError(
            "load() of the format pyromq takes no path: name topics with the option subscribe; files of a commit log "
            'are read with format("pyromq-segments")',
            "path",
        )
    return Given(options, SOURCE)


def columns_of(given: Given) -> tuple[str, ...] | None:
    text = given.text("columns")
    return None if text is None else parse_columns(text)


def _source_options(given: Given, starting: Where, ending: Where) -> SourceOptions:
    group = _group(given)
    if starting.start is Start.GROUP and group is None:
        raise given.wrong("startingOffsets", "the option group must say which one's offsets to begin at")
    selection = _selection(given)
    return SourceOptions(
        pulling=_pulling(given, selection, group),
        selection=selection,
        starting=starting,
        ending=ending,
        new_queues=Start(given.choice("newQueues", ("earliest", "latest"), "earliest")),
        limits=_limits(given),
        min_partitions=given.number("minPartitions", least=1, most=100_000),
        max_records=given.number("maxRecordsPerPartition", least=1),
        group=group,
        offset_poll_s=_or(given.number("offsetPollMs", most=LONGEST_MS), 200) / 1000,
        question_retries=_or(given.number("fetchOffset.numRetries", most=10_000), 30),
        question_pause_s=_or(given.number("fetchOffset.retryIntervalMs", most=LONGEST_MS), 1000) / 1000,
        columns=columns_of(given),
    )


def _limits(given: Given) -> Limits:
    max_offsets, min_offsets = given.number("maxOffsetsPerTrigger", least=1), given.number("minOffsetsPerTrigger")
    if max_offsets is not None and min_offsets is not None and min_offsets > max_offsets:
        raise given.wrong("minOffsetsPerTrigger", f"it is above maxOffsetsPerTrigger, which is {max_offsets}")
    if min_offsets is None:
        given.refuse(("maxTriggerDelay",), "says how long to wait for minOffsetsPerTrigger, which is not given")
    return Limits(
        max_offsets=max_offsets,
        max_bytes=given.size("maxBytesPerTrigger"),
        min_offsets=min_offsets,
        max_delay_s=given.seconds("maxTriggerDelay", 900.0),
    )


def _pulling(given: Given, selection: Selection, group: str | None) -> Pulling:
    mode = given.choice("mode", ("remote", "file", "auto"), "auto")
    if mode == "file":
        raise given.wrong("mode", 'files of a commit log are read with format("pyromq-segments"), option path')
    cluster = connection_of(given)
    # With access control a user has rights to its own group rather than to the tools' group.
    knows_group = group is not None and cluster.access_key is not None
    return Pulling(
        cluster=cluster,
        group=group if group is not None and knows_group else TOOLS_GROUP,
        tags=selection.tags,
        sql=selection.sql,
        read_from=given.choice("readFrom", ("master", "replica", "auto"), "auto"),
        pull_bytes=_or(given.size("pullBytes", least=1024, most=MOST_PULL_BYTES), 2 << 20),
        in_flight=_or(given.number("pullInFlight", least=1, most=64), 3),
        patience_s=_or(given.number("pullTimeoutMs", least=1, most=LONGEST_MS), 120_000) / 1000,
        verify_crc=given.flag("verifyCrc", False),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
    )


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


# --- which messages --------------------------------------------------------------------------------------------------


def _selection(given: Given) -> Selection:
    given.refuse_together("subscribe", ("subscribePattern", "assign"), "each says which topics to read")
    given.refuse_together("subscribePattern", ("assign",), "each says which topics to read")
    if not any(given.text(name) for name in WHAT):
        raise ConfigError(
            "no topic is given: one of the options subscribe, subscribePattern and assign says what to read, for "
            "example .option('subscribe', 'orders')",
            "subscribe",
        )
    given.refuse_together("tags", ("sql",), "a broker filters by one of them; SQL has TAGS for the tag")
    _check_filters(given)
    return Selection(
        topics=_topics(given),
        pattern=_pattern(given),
        assigned=_assigned(given),
        tags=given.text("tags"),
        sql=given.text("sql"),
    )


def _check_filters(given: Given) -> None:
    try:
        parse_tags(given.text("tags") or EVERYTHING)
    except FilterSyntaxError as error:
        raise given.wrong("tags", str(error)) from None
    try:
        build("", given.text("sql") or "TRUE", SQL92, 0)
    except FilterSyntaxError as error:
        raise given.wrong("sql", str(error)) from None


def _topics(given: Given) -> tuple[str, ...]:
    names = sorted({name.strip() for name in (given.text("subscribe") or "").split(",") if name.strip()})
    _check_names(given, "subscribe", names)
    return tuple(names)


def _check_names(given: Given, option: str, topics: Collection[str]) -> None:
    for topic in topics:
        try:
            check_topic(topic)
        except IllegalName as error:
            raise given.wrong(option, str(error)) from None


def _pattern(given: Given) -> str | None:
    pattern = given.text("subscribePattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise given.wrong("subscribePattern", f"it is no regular expression ({error})") from None
    return pattern


def _assigned(given: Given) -> tuple[MessageQueue, ...]:
    form = given.json("assign")
    if form is None:
        return ()
    try:
        assigned = parse_assigned(form)
    except ValueError as error:
        raise given.wrong("assign", str(error)) from None
    _check_names(given, "assign", {queue.topic for queue in assigned})
    return assigned


def _group(given: Given) -> str | None:
    group = given.text("group")
    if group is not None:
        try:
            check_group(group)
        except IllegalName as error:
            raise given.wrong("group", str(error)) from None
    return group


# --- from where and to where -----------------------------------------------------------------------------------------


def _starting(given: Given, default: Start) -> Where:
    given.refuse_together("startingOffsets", STARTS[1:], "each says where to begin")
    given.refuse_together("startingTimestamp", STARTS[2:], "each says where to begin")
    if (since_ms := given.moment_ms("startingTimestamp")) is not None:
        return Where(start=Start.TIME, timestamp_ms=since_ms)
    if (times := given.json("startingOffsetsByTimestamp")) is not None:
        return Where(start=Start.NAMED, named=_parsed(given, "startingOffsetsByTimestamp", times))
    return _offsets(given, "startingOffsets", ("earliest", "latest", "group"), default)


def _ending(given: Given) -> Where:
    if (until_ms := given.moment_ms("endingTimestamp")) is not None:
        return Where(start=Start.TIME, timestamp_ms=until_ms)
    return _offsets(given, "endingOffsets", ("latest",), Start.LATEST)


def _offsets(given: Given, option: str, words: Collection[str], default: Start) -> Where:
    text = given.text(option)
    if text is None:
        return Where(start=default)
    if text.startswith(("{", "[")):
        return Where(start=Start.NAMED, named=_parsed(given, option, given.json(option)))
    if text.lower() not in words:
        raise given.wrong(option, f'it is {", ".join(words)} or JSON such as {{"topic@broker@0": 17}}')
    return Where(start=Start(text.lower()))


def _parsed(given: Given, option: str, form: object) -> Mapping[MessageQueue, Placed]:
    try:
        return parse_times(form) if option == "startingOffsetsByTimestamp" else parse_placed(form)
    except ValueError as error:
        raise given.wrong(option, str(error)) from None
