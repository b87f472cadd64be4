"""The plan of an archive run, and its report."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from pyromq.config.checks import require, require_at_least
from pyromq.errors import ConfigError
from pyromq.spark.decode.columns import NAMES, arrow_schema
from pyromq.spark.lake.model import DATE, KEPT
from pyromq.spark.lake.opening import FORMATS
from pyromq.spark.option_reader import moment_ms

EARLIEST = "earliest"
DECODINGS = ("raw", "json", "avro")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePlan:
    """Topics into a lake. One of `namesrv` and `segments` says where they are."""

    #: The lake: a directory, or a path that Arrow knows (`s3://…`).
    path: str
    #: "parquet", "delta" or "iceberg".
    format: str = "parquet"
    #: Name servers of the cluster, as host:port;host:port.
    namesrv: str | None = None
    #: The path of a store, a commit log or a backup, instead of a cluster.
    segments: str | None = None
    #: The value of column `broker` for messages from files; to continue a cluster's archive, its broker's name.
    broker: str = "files"
    topics: tuple[str, ...] = ()
    #: A regular expression, instead of topics.
    pattern: str | None = None
    #: Of messages; what a lake cannot do without is always there. None: all.
    columns: tuple[str, ...] | None = None
    #: Only these messages, chosen by the broker.
    tags: str | None = None
    sql: str | None = None
    #: The form of bodies: "raw" bytes, "json" or "avro". Decoded bodies are in column `value`.
    decode: str = "raw"
    #: Of JSON: columns as in a CREATE TABLE. Of Avro: the path of a schema file.
    schema: str | None = None
    #: The lake of rows that could not be decoded; None: `_bad` below the path.
    bad_path: str | None = None
    #: The first offset of a queue that is new to the lake: "earliest", or a time (ISO, or ms since 1970).
    from_: str = EARLIEST
    #: Go on until stopped, with a commit every so often.
    follow: bool = False
    every_s: float = 10.0
    max_offsets_per_commit: int = 5_000_000
    #: Rewrite small files when there are many.
    compact: bool = True
    #: Keep replaced files this long for readers; 0 removes them at once.
    grace_s: float = 3600.0
    #: Remove files of an unfinished run elsewhere when they are this old.
    safe_age_s: float = 86_400.0
    #: Stop when messages were removed before they could be archived.
    fail_on_data_loss: bool = True
    #: Count the rows of every commit against its offsets. A filter switches that off.
    check: bool = True
    #: More options of the source (`acl.…`, `client.…`, `readFrom`).
    source_options: Mapping[str, str] = field(default_factory=dict)
    #: Delta's storage options, or the properties of Iceberg's catalog.
    lake_options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.path != "", "path", self.path, "name the directory of the lake")
        require(self.format in FORMATS, "format", self.format, f"it is one of {', '.join(FORMATS)}")
        require(self.decode in DECODINGS, "decode", self.decode, f"it is one of {', '.join(DECODINGS)}")
        require_at_least(1, "max_offsets_per_commit", self.max_offsets_per_commit)
        require(self.every_s > 0, "every_s", self.every_s, "it is a number of seconds above 0")
        require(min(self.grace_s, self.safe_age_s) >= 0, "grace_s", self.grace_s, "times are not negative")
        self._check_source()
        self._check_schema()
        self._check_bad_path()
        for name in self.columns or ():
            require(name in NAMES, "columns", name, f"messages have {', '.join(NAMES)}")
        require(
            self.from_ == EARLIEST or moment_ms(self.from_) is not None, "from_", self.from_,
            "it is earliest, or a time as in 2026-01-31T12:00:00Z",
        )  # fmt: skip

    def _check_source(self) -> None:
        if (self.namesrv is None) == (self.segments is None):
            raise ConfigError("one of namesrv and segments says where to read: a cluster, or files", "namesrv")
        if bool(self.topics) == (self.pattern is not None) and (self.namesrv is not None or self.topics):
            raise ConfigError("one of topics and pattern says what to archive", "topics")
        if self.segments is not None and (self.tags or self.sql):
            raise ConfigError("brokers filter by tags and sql, files do not: leave them out with segments", "tags")
        require(self.tags is None or self.sql is None, "sql", self.sql, "a broker filters by tags or by SQL")

    def _check_schema(self) -> None:
        if (self.decode == "raw") != (self.schema is None):
            wanted = "needs a schema" if self.schema is None else "takes no schema"
            raise ConfigError(f"decode = {self.decode} {wanted}", "schema")

    def _check_bad_path(self) -> None:
        same = self.bad_path is not None and self.bad_path.rstrip("/") == self.path.rstrip("/")
        require(not same, "bad_path", self.bad_path, "bad rows go to a lake of their own")

    # --- what follows from it ----------------------------------------------------------------------------------------

    @property
    def since_ms(self) -> int | None:
        return None if self.from_ == EARLIEST else moment_ms(self.from_)

    def wants(self, topic: str) -> bool:
        """Is it one of a cluster's topics that the plan names?"""
        if self.namesrv is None:
            return False
        return topic in self.topics or (self.pattern is not None and re.fullmatch(self.pattern, topic) is not None)

    @property
    def may_have_holes(self) -> bool:
        return bool(self.tags or self.sql) or not self.check

    @property
    def table_columns(self) -> tuple[str, ...]:
        """Those of messages that the lake has, in their order."""
        wanted = {*(self.columns or NAMES), *KEPT}
        return tuple(name for name in NAMES if name in wanted)

    @property
    def read_columns(self) -> tuple[str, ...]:
        """Those that are read: decoding needs the body."""
        wanted = {*self.table_columns, *(() if self.decode == "raw" else ("body",))}
        return tuple(name for name in NAMES if name in wanted)

    def table_schema(self, value: pa.DataType | None) -> pa.Schema:
        schema = arrow_schema(self.table_columns).append(pa.field(DATE, pa.date32()))
        return schema if value is None else schema.append(pa.field("value", value))

    def bad_schema(self) -> pa.Schema:
        return (
            arrow_schema(self.read_columns).append(pa.field(DATE, pa.date32())).append(pa.field("reason", pa.string()))
        )

    def source_settings(self) -> dict[str, str]:
        """The options of the format that is read."""
        if self.segments is not None:
            return {"broker": self.broker, **self.source_options, "path": self.segments}
        given = {
            "namesrv": self.namesrv, "subscribe": ",".join(self.topics) or None, "subscribePattern": self.pattern,
            "tags": self.tags, "sql": self.sql,
        }  # fmt: skip
        return {**self.source_options, **{name: value for name, value in given.items() if value is not None}}


@dataclass(slots=True)
class ArchiveReport:
    path: str
    #: Of the lake at the end.
    version: int = 0
    offsets: dict[str, int] = field(default_factory=dict)
    commits: int = 0
    rows: int = 0
    bad_rows: int = 0
    files: int = 0
    bytes: int = 0
    #: Messages that were removed from their queues before they could be archived.
    lost: int = 0
    #: Queues that the lake knows and that could not be read any more at the end.
    vanished: list[str] = field(default_factory=list)
    #: Small files that became large ones.
    compacted: int = 0
    #: Files of dead runs, and replaced ones, that were removed.
    cleaned: int = 0
    seconds: float = 0.0

    def sentences(self) -> list[str]:
        said = [
            f"{_count(self.rows, 'message')} in {_count(self.commits, 'commit')}, {_count(self.files, 'file')}, "
            f"{self.bytes:,} bytes, {self.seconds:.1f} s; {self.path} is at commit {self.version} and knows "
            f"{_count(len(self.offsets), 'queue')}."
        ]
        if self.bad_rows:
            what = "body could not be decoded: it is" if self.bad_rows == 1 else "bodies could not be decoded: they are"
            said.append(f"{self.bad_rows:,} {what} in the side table, with the reason.")
        if self.lost:
            gone = f"{_count(self.lost, 'message')} {'was' if self.lost == 1 else 'were'} removed from the queues"
            said.append(f"{gone} before the archive came there.")
        if self.vanished:
            said.append(
                f"{_count(len(self.vanished), 'queue')} that the lake knows cannot be read any more, "
                f"{self.vanished[0]} for one: the topic was deleted, or the broker is away."
            )
        if self.compacted:
            said.append(f"Rewritten into larger files: {_count(self.compacted, 'small file')}.")
        if self.cleaned:
            said.append(f"Removed: {_count(self.cleaned, 'file')} that no commit has.")
        return said


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
