"""The sources of `insight`: topics of a cluster, a store or backup, a lake, or any DataFrame.

Each source is asked for messages of some kinds of topics with some columns, and reads no more than that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pyromq.admin.topics import Topic
from pyromq.errors import TopicNotFound
from pyromq.model.names import TRACE_TOPIC
from pyromq.model.topic import Permission
from pyromq.spark.connecting import Cluster
from pyromq.spark.decode.columns import COLUMNS
from pyromq.spark.jobs.insight.tables import DEAD, RETRY, SYSTEM, USER, kind_of
from pyromq.spark.lake.opening import read_lake
from pyromq.sync import Admin


class MessageSource(Protocol):
    #: The name of the source, for people.
    name: str
    #: Parts that could not be read, in sentences.
    notes: list[str]

    def read(self, columns: Sequence[str], kinds: Collection[str]) -> DataFrame | None:
        """Messages of topics of these kinds; None when there are no such topics."""


class FrameSource:
    """Messages that are a DataFrame already. Columns that it does not have are empty."""

    def __init__(self, name: str, frame: DataFrame, topics: Sequence[str] = ()) -> None:
        self.name = name
        self.notes: list[str] = []
        self._frame = frame
        self._topics = topics

    def read(self, columns: Sequence[str], kinds: Collection[str]) -> DataFrame | None:
        types = {column.name: column.sql_type for column in COLUMNS}
        there = set(self._frame.columns)
        frame = self._frame.select(
            *(name if name in there else F.lit(None).cast(types[name]).alias(name) for name in columns)
        )
        wanted = kind_of(F.col("topic")).isin(sorted(kinds))
        if self._topics:
            wanted &= F.col("topic").isin(list(self._topics)) | (kind_of(F.col("topic")) != USER)
        return frame.where(wanted)


class StoreSource:
    """The commit log of a store or a backup."""

    def __init__(self, spark: SparkSession, path: str, topics: Sequence[str] = ()) -> None:
        self.name = f"the store {path}"
        self.notes: list[str] = []
        self._spark = spark
        self._path = path
        self._topics = topics

    def read(self, columns: Sequence[str], kinds: Collection[str]) -> DataFrame | None:
        reader = self._spark.read.format("pyromq-segments").option("columns", ",".join(columns))
        return FrameSource(self.name, reader.load(self._path), self._topics).read(columns, kinds)


def lake_source(spark: SparkSession, path: str, format: str, topics: Sequence[str] = ()) -> FrameSource:
    return FrameSource(f"the lake {path}", read_lake(spark, path, format), topics)


# --- a cluster -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Span:
    """The range of store times in ms; None is unbounded."""

    since_ms: int | None = None
    until_ms: int | None = None


class ClusterSource:
    """The topics of a cluster, with those that groups have for retries and dead letters."""

    def __init__(self, spark: SparkSession, cluster: Cluster, topics: Sequence[str] = (), span: Span = Span()) -> None:
        self.name = f"the cluster at {cluster.name_servers}"
        self.notes: list[str] = []
        self._spark = spark
        self._cluster = cluster
        self._span = span
        self._topics = self._chosen(topics_of(cluster), topics)

    def _chosen(self, there: Sequence[Topic], wanted: Sequence[str]) -> dict[str, list[str]]:
        """The names by kind. Raises TopicNotFound for one that is not there."""
        for name in set(wanted) - {one.name for one in there}:
            raise TopicNotFound(f"no broker has the topic {name!r}")
        chosen: dict[str, list[str]] = {USER: [], RETRY: [], DEAD: [], SYSTEM: []}
        for topic in there:
            kind = kind_named(topic)
            if (kind == USER and wanted and topic.name not in wanted) or (kind == SYSTEM and topic.name != TRACE_TOPIC):
                continue
            if any(on.permission & Permission.READ for on in topic.brokers):
                chosen[kind].append(topic.name)
            else:
                self.notes.append(f"{topic.name} may not be read: `pyromq topic update {topic.name}` can allow it.")
        return chosen

    def read(self, columns: Sequence[str], kinds: Collection[str]) -> DataFrame | None:
        names = [name for kind in kinds for name in self._topics[kind]]
        if not names:
            return None
        reader = self._spark.read.format("pyromq").options(**connection_options(self._cluster))
        reader = reader.option("subscribe", ",".join(names)).option("columns", ",".join(columns))
        if self._span.since_ms is not None:
            reader = reader.option("startingTimestamp", str(self._span.since_ms))
        if self._span.until_ms is not None:
            reader = reader.option("endingTimestamp", str(self._span.until_ms))
        return reader.load()


def kind_named(topic: Topic) -> str:
    return USER if topic.kind == "normal" else topic.kind


def topics_of(cluster: Cluster) -> Sequence[Topic]:
    with Admin(
        cluster.name_servers,
        tls=cluster.tls_context(),
        credentials=cluster.credentials(),
        options=cluster.client_options(),
    ) as admin:
        return admin.topics.list()


def connection_options(cluster: Cluster) -> dict[str, str]:
    """Return the reader options of the same cluster."""
    options = {
        "namesrv": cluster.name_servers,
        "client.tls": "true" if cluster.tls else "false",
        "client.callTimeoutMs": str(int(cluster.call_timeout_s * 1000)),
        "client.connectTimeoutMs": str(int(cluster.connect_timeout_s * 1000)),
        "client.tlsCa": cluster.tls_ca,
        "acl.accessKey": cluster.access_key,
        "acl.secretKey": cluster.secret_key,
    }
    return {name: value for name, value in options.items() if value is not None}
